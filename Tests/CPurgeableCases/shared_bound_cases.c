// SPDX-License-Identifier: MIT
// The bound on what waits for a first offer, which all heaps share.

#include "heap_cases.h"

enum { BOUND = 1 << 20, LENGTH = 4000 };

// Two heaps, of which one has all that may wait for a first offer.
static bool beside_full_bound(purgeable_heap_t **other, purgeable_heap_t **heap) {
  purgeable_set_pending_byte_limit(BOUND);
  if (purgeable_heap_create(NULL, other) != 0 || purgeable_heap_create(NULL, heap) != 0) return false;
  element_t element;
  while (heap_statistics(*other).memory.pending_bytes + purgeable_heap_slab_bytes(*other) <= BOUND) {
    if (make(*other, LENGTH, 0, &element) != 0) return false;
  }
  return true;
}

// Heaps that grow at the same time share the bound, beside a little for each; what ends, or begins anew in a forked child, leaves
// its part to the others.
static void heaps_share_bound(case_report_t *report) {
  NEED_OFFERS();
  uint64_t before = purgeable_pending_byte_limit();
  enum { HEAPS = 16, PER_HEAP = 1 << 20 };
  const uint64_t limit = 2 << 20, least = 256 << 10;
  purgeable_set_pending_byte_limit(limit);
  for (size_t round = 0; round < 3; round++) {
    const purgeable_heap_options_t options = {.byte_limit = 0};
    purgeable_heap_t *heaps[HEAPS];
    for (size_t i = 0; i < HEAPS; i++) REQUIRE(purgeable_heap_create(&options, &heaps[i]) == 0);
    const uint64_t slab = purgeable_heap_slab_bytes(heaps[0]);
    element_t element;
    uint64_t most = 0;
    // The first may have as much as it likes, beside others that have nothing.
    for (size_t n = 0; n < PER_HEAP / LENGTH; n++) REQUIRE(make(heaps[0], LENGTH, n, &element) == 0);
    EXPECT(heap_statistics(heaps[0]).memory.pending_bytes > PER_HEAP - 2 * slab);
    for (size_t n = 0; n < PER_HEAP / LENGTH; n++) {
      for (size_t i = 1; i < HEAPS; i++) REQUIRE(make(heaps[i], LENGTH, n, &element) == 0);
      uint64_t sum = 0;
      for (size_t i = 0; i < HEAPS; i++) sum += heap_statistics(heaps[i]).memory.pending_bytes;
      if (sum > most) most = sum;
    }
    EXPECT(most > limit && most <= limit + HEAPS * (least + 2 * slab));
    // Where they had the bound for themselves, nothing would have been offered.
    EXPECT(most < HEAPS * (PER_HEAP - 2 * slab) / 2);
    if (round == 1) {
      // In the child nothing waits, neither of heaps that are not touched nor of those that begin anew.
      pid_t child = fork();
      if (child == 0) {
        purgeable_heap_t *fresh;
        if (purgeable_heap_create(&options, &fresh) != 0) _exit(2);
        for (size_t n = 0; n < PER_HEAP / LENGTH; n++) (void)make(fresh, LENGTH, n, &element);
        if (heap_statistics(fresh).memory.pending_bytes <= PER_HEAP - 2 * slab) _exit(3);
        if (purgeable_heap_destroy(fresh) != 0) _exit(4);
        for (size_t i = 0; i < HEAPS; i++) (void)make(heaps[i], LENGTH, 0, &element);
        for (size_t n = 0; n < PER_HEAP / LENGTH; n++) (void)make(heaps[0], LENGTH, n, &element);
        _exit(heap_statistics(heaps[0]).memory.pending_bytes > PER_HEAP - 2 * slab ? 0 : 1);
      }
      EXPECT_EQUAL(wait_for_child(child), 0);
    }
    for (size_t i = 0; i < HEAPS; i++) EXPECT_EQUAL(purgeable_heap_destroy(heaps[i]), 0);
  }
  purgeable_set_pending_byte_limit(before);
}

// Where others have the bound, a heap goes on in rounds of two slabs or so: not with one for each slab, however far apart what
// waits is. Between any two slabs that wait there is one that is locked, so no call of the kernel covers both.
static void rounds_beside_others(case_report_t *report) {
  NEED_OFFERS();
  uint64_t before = purgeable_pending_byte_limit();
  purgeable_heap_t *other, *heap;
  REQUIRE(beside_full_bound(&other, &heap));
  const uint64_t slab = purgeable_heap_slab_bytes(heap);
  purgeable_stream_t locked;
  REQUIRE(purgeable_stream_create(heap, &locked) == 0);
  uint64_t waiting = 0, rounds = 0;
  enum { SEALS = 200 };
  for (size_t n = 0; n < SEALS; n++) {
    element_t element;
    // Two fill a slab.
    for (size_t half = 0; half < 2; half++) REQUIRE(make_in(heap, locked, slab * 45 / 100, n, &element) == 0);
    REQUIRE(purgeable_heap_lock(heap, element.reference, NULL, NULL) == purgeable_outcome_intact);
    for (size_t half = 0; half < 2; half++) REQUIRE(make(heap, slab * 45 / 100, n, &element) == 0);
    uint64_t now = heap_statistics(heap).memory.pending_bytes;
    if (now < waiting) rounds++;
    waiting = now;
  }
  EXPECT(rounds > 0 && rounds <= SEALS / 2);
  EXPECT_EQUAL(purgeable_heap_destroy(heap), 0);
  EXPECT_EQUAL(purgeable_heap_destroy(other), 0);
  purgeable_set_pending_byte_limit(before);
}

// What is withheld after it began to wait takes no part of the bound from others.
static void withheld_does_not_wait(case_report_t *report) {
  NEED_OFFERS();
  uint64_t before = purgeable_pending_byte_limit();
  purgeable_heap_t *other, *heap;
  REQUIRE(beside_full_bound(&other, &heap));
  const uint64_t slab = purgeable_heap_slab_bytes(heap);
  element_t element;
  EXPECT_EQUAL(purgeable_stream_withhold(other, 0, true), 0);
  EXPECT_EQUAL(purgeable_heap_offer_idle(other, NULL), 0);
  EXPECT_EQUAL(heap_statistics(other).memory.pending_bytes, 0);
  for (uint64_t stored = 0; stored < BOUND - 2 * slab; stored += LENGTH) REQUIRE(make(heap, LENGTH, 0, &element) == 0);
  EXPECT(heap_statistics(heap).memory.pending_bytes > BOUND - 5 * slab);
  // Once it may go, it goes.
  EXPECT_EQUAL(purgeable_stream_withhold(other, 0, false), 0);
  EXPECT_EQUAL(purgeable_heap_offer_idle(other, NULL), 0);
  EXPECT(heap_statistics(other).memory.offered_bytes > BOUND / 2);
  EXPECT_EQUAL(purgeable_heap_destroy(heap), 0);
  EXPECT_EQUAL(purgeable_heap_destroy(other), 0);
  purgeable_set_pending_byte_limit(before);
}

const test_case_t shared_bound_cases[] = {
    CASE("shared bound: heaps that grow at the same time", heaps_share_bound),
    CASE("shared bound: a heap beside others that have it offers in rounds", rounds_beside_others),
    CASE("shared bound: what is withheld does not wait", withheld_does_not_wait),
    END_OF_CASES,
};
