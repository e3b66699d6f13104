// SPDX-License-Identifier: MIT
// Upkeep of streams: hot elements, offers that are merged, open slabs, trims, sweeps.

#include "heap_owner.h"

static uint64_t free_calls(void) { return purgeable_testing_call_count(purgeable_testing_call_madvise_free); }

// Overlapping holders of one element keep its slab from ever being idle: the element is moved after some rounds, so that its
// neighbours' pages can be offered again. When most of a slab is locked, its elements stay.
void hot_elements_move(case_report_t *report) {
  NEED_OFFERS();
  enum { COUNT = 200, ROUNDS = 8 };
  owner_t owner = make_owner(COUNT);
  MAKE_HEAP(heap, .slab_bytes = 16 * PAGE, .keeps_tags = true, .moved = take_moved, .context = &owner);
  for (size_t i = 0; i < COUNT; i++) REQUIRE(keep(heap, &owner, 0, i, 300) == 0);
  EXPECT_EQUAL(purgeable_stream_seal(heap, 0), 0);
  EXPECT_EQUAL(offer_all(heap), 0);
  const size_t hot[] = {3, 70};
  for (size_t h = 0; h < 2; h++) {
    purgeable_reference_t old = kept(&owner, hot[h]);
    REQUIRE(purgeable_heap_lock(heap, old, NULL, NULL) == purgeable_outcome_intact);
    // With the second one nine pages are locked.
    for (size_t i = 0; h == 1 && i < COUNT; i += 13) {
      REQUIRE(i == hot[1] || purgeable_heap_lock(heap, kept(&owner, i), NULL, NULL) == purgeable_outcome_intact);
    }
    purgeable_slab_t slab;
    purgeable_slab_information_t facts;
    EXPECT_EQUAL(purgeable_slab_of(heap, old, &slab), 0);
    for (size_t round = 1; round <= ROUNDS; round++) {
      EXPECT_EQUAL(kept(&owner, hot[h]).place, old.place);
      // The next holder locks before the last one unlocks.
      REQUIRE(purgeable_heap_lock(heap, kept(&owner, hot[h]), NULL, NULL) == purgeable_outcome_intact);
      EXPECT_EQUAL(purgeable_heap_unlock(heap, old), 0);
      EXPECT_EQUAL(purgeable_heap_offer_idle(heap, NULL), 0);
      if (round == ROUNDS) continue;
      EXPECT_EQUAL(purgeable_slab_information(heap, slab, &facts), 0);
      EXPECT_EQUAL(facts.busy_round_count, round);
    }
    EXPECT(keeps_intact(heap, &owner, hot[h]));
    if (h == 1) {
      EXPECT_EQUAL(kept(&owner, hot[h]).place, old.place);
      continue;
    }
    EXPECT(kept(&owner, hot[h]).place != old.place);
    EXPECT(is_stale(heap, old));
    // The holder that had it locked during the move unlocks the old reference; then all of that slab goes on offer.
    EXPECT(!purgeable_heap_is_on_offer(heap, old.place));
    EXPECT_EQUAL(purgeable_heap_unlock(heap, old), 0);
    EXPECT_EQUAL(offer_all(heap), 0);
    EXPECT(purgeable_heap_is_on_offer(heap, old.place));
    EXPECT_EQUAL(purgeable_slab_information(heap, slab, &facts), 0);
    EXPECT_EQUAL(facts.busy_round_count, 0);
    EXPECT(!purgeable_heap_take_busy(heap));
  }
  for (size_t i = 0; i < COUNT; i++) EXPECT(keeps_intact(heap, &owner, i));
  EXPECT(!purgeable_heap_take_busy(NULL));
  EXPECT(!purgeable_heap_is_on_offer(NULL, 0));
  EXPECT(!purgeable_heap_is_on_offer(heap, UINT64_MAX));
  END_HEAP(heap);
  end_owner(&owner);
}

void offers_are_merged(case_report_t *report) {
  NEED_OFFERS();
  const size_t slab = 16 * PAGE;
  MAKE_HEAP(heap, .slab_bytes = slab);
  element_t element = {.bytes = NULL};
  size_t count = 0;
  while (purgeable_heap_held_bytes(heap) < 256 * slab) REQUIRE(make(heap, 500, count++, &element) == 0);
  EXPECT_EQUAL(purgeable_stream_seal(heap, 0), 0);
  uint64_t calls = free_calls();
  size_t offered = 0;
  EXPECT(purgeable_heap_has_pending(heap));
  EXPECT_EQUAL(purgeable_heap_offer_idle(heap, &offered), 0);
  EXPECT_EQUAL(offered, heap_statistics(heap).memory.held_bytes);
  // Neighbours are merged, 64 slabs a call at most.
  EXPECT_EQUAL(free_calls() - calls, 4);
  // Once more, because one offer skips pages; then nothing is left to do.
  EXPECT(purgeable_heap_has_pending(heap));
  EXPECT_EQUAL(purgeable_heap_offer_idle(heap, &offered), 0);
  EXPECT_EQUAL(free_calls() - calls, 8);
  EXPECT_EQUAL(offered, heap_statistics(heap).memory.held_bytes);
  EXPECT(!purgeable_heap_has_pending(heap));
  EXPECT_EQUAL(purgeable_heap_offer_idle(heap, &offered), 0);
  EXPECT_EQUAL(free_calls() - calls, 8);
  EXPECT_EQUAL(offered, 0);
  // After a lock and its unlock, only the rescued pages are offered.
  EXPECT(locks_intact(heap, &element));
  EXPECT(purgeable_heap_has_pending(heap));
  EXPECT_EQUAL(purgeable_heap_offer_idle(heap, &offered), 0);
  EXPECT_EQUAL(offered, PAGE);
  NOTE("%zu elements, %.4f calls each", count, 8.0 / (double)count);
  END_HEAP(heap);
}

// Single slabs are withheld as streams are, also while they wait for their offer or after they were on offer, and for this life
// only; the core books nothing as waiting that will not be offered.
void withheld_slabs_stay(case_report_t *report) {
  NEED_OFFERS();
  MAKE_HEAP(heap, .slab_bytes = 4 * PAGE, .offering = purgeable_offering_deferred);
  enum { COUNT = 60, PER_SLAB = 4 };
  element_t elements[COUNT], large;
  for (size_t i = 0; i < COUNT; i++) REQUIRE(make_in(heap, 0, 3900, i, &elements[i]) == 0);
  REQUIRE(make_in(heap, 0, 20 * PAGE, 7, &large) == 0);
  EXPECT_EQUAL(purgeable_stream_seal(heap, 0), 0);
  purgeable_slab_t slab, run;
  for (size_t i = 0; i < COUNT; i += 2 * PER_SLAB) {
    REQUIRE(purgeable_slab_of(heap, elements[i].reference, &slab) == 0);
    EXPECT_EQUAL(purgeable_slab_withhold(heap, slab, true), 0);
  }
  REQUIRE(purgeable_slab_of(heap, large.reference, &run) == 0);
  EXPECT_EQUAL(purgeable_slab_withhold(heap, run, true), 0);
  EXPECT_EQUAL(offer_all(heap), 0);
  EXPECT(!purgeable_heap_has_pending(heap));
  purgeable_heap_statistics_t statistics;
  REQUIRE(purgeable_heap_statistics(heap, &statistics) == 0);
  EXPECT_EQUAL(statistics.memory.pending_bytes, 0);
  for (size_t i = 0; i < COUNT; i++) {
    REQUIRE(purgeable_slab_of(heap, elements[i].reference, &slab) == 0);
    purgeable_slab_t first;
    REQUIRE(purgeable_slab_of(heap, elements[i / (2 * PER_SLAB) * (2 * PER_SLAB)].reference, &first) == 0);
    bool is_withheld = slab.index == first.index;
    EXPECT_EQUAL(purgeable_heap_is_on_offer(heap, elements[i].reference.place), !is_withheld);
  }
  EXPECT(!purgeable_heap_is_on_offer(heap, large.reference.place));
  // What is on offer stays so until it is locked, and then off.
  element_t *offered = &elements[PER_SLAB];
  REQUIRE(purgeable_slab_of(heap, offered->reference, &slab) == 0);
  EXPECT_EQUAL(purgeable_slab_withhold(heap, slab, true), 0);
  EXPECT(purgeable_heap_is_on_offer(heap, offered->reference.place));
  EXPECT(locks_intact(heap, offered));
  EXPECT_EQUAL(offer_all(heap), 0);
  EXPECT(!purgeable_heap_is_on_offer(heap, offered->reference.place));
  // Let go, all of it follows.
  EXPECT_EQUAL(purgeable_slab_withhold(heap, slab, false), 0);
  EXPECT_EQUAL(purgeable_slab_withhold(heap, run, false), 0);
  EXPECT(purgeable_heap_has_pending(heap));
  EXPECT_EQUAL(offer_all(heap), 0);
  EXPECT(purgeable_heap_is_on_offer(heap, offered->reference.place));
  EXPECT(purgeable_heap_is_on_offer(heap, large.reference.place));
  // The next life of a slab begins without.
  REQUIRE(purgeable_slab_of(heap, elements[0].reference, &slab) == 0);
  for (size_t i = 0; i < COUNT; i++) EXPECT_EQUAL(purgeable_heap_free(heap, elements[i].reference), 0);
  EXPECT_EQUAL(purgeable_slab_withhold(heap, slab, true), ESTALE);
  for (size_t i = 0; i < COUNT; i++) REQUIRE(make_in(heap, 0, 3900, i, &elements[i]) == 0);
  EXPECT_EQUAL(purgeable_stream_seal(heap, 0), 0);
  EXPECT_EQUAL(offer_all(heap), 0);
  for (size_t i = 0; i < COUNT; i++) EXPECT(purgeable_heap_is_on_offer(heap, elements[i].reference.place));
  EXPECT_EQUAL(purgeable_slab_withhold(NULL, slab, true), EINVAL);
  END_HEAP(heap);
}

// Nothing of a withheld stream goes on offer, by whichever way: small and large, sealed and open, after locks, when too much
// waits. Others go on offer as ever, and what was withheld follows when it is let go.
void withheld_streams_stay(case_report_t *report) {
  NEED_OFFERS();
  for (int way = 0; way < 3; way++) {
    const purgeable_offering_t offering = way == 1 ? purgeable_offering_immediate : purgeable_offering_deferred;
    uint64_t limit = purgeable_pending_byte_limit();
    if (way == 2) purgeable_set_pending_byte_limit(0);
    MAKE_HEAP(heap, .slab_bytes = 4 * PAGE, .offering = offering);
    purgeable_stream_t withheld;
    REQUIRE(purgeable_stream_create(heap, &withheld) == 0 && purgeable_stream_withhold(heap, withheld, true) == 0);
    enum { COUNT = 60 };
    element_t stays[COUNT], goes[COUNT], large, other;
    for (size_t i = 0; i < COUNT; i++) {
      REQUIRE(make_in(heap, withheld, 900, i, &stays[i]) == 0 && make_in(heap, 0, 900, COUNT + i, &goes[i]) == 0);
      EXPECT(locks_intact(heap, &stays[i]));
    }
    REQUIRE(make_in(heap, withheld, 20 * PAGE, 7, &large) == 0 && make_in(heap, 0, 20 * PAGE, 8, &other) == 0);
    EXPECT(locks_intact(heap, &large) && locks_intact(heap, &other));
    EXPECT_EQUAL(purgeable_stream_seal(heap, 0), 0);
    for (int round = 0; round < 12; round++) EXPECT_EQUAL(purgeable_heap_offer_idle(heap, NULL), 0);
    EXPECT(!purgeable_heap_has_pending(heap));
    for (size_t i = 0; i < COUNT; i++) {
      EXPECT(!purgeable_heap_is_on_offer(heap, stays[i].reference.place));
      EXPECT(purgeable_heap_is_on_offer(heap, goes[i].reference.place));
    }
    EXPECT(!purgeable_heap_is_on_offer(heap, large.reference.place));
    EXPECT(purgeable_heap_is_on_offer(heap, other.reference.place));
    EXPECT_EQUAL(purgeable_heap_page_out(heap, SIZE_MAX, NULL, NULL), 0);
    for (size_t i = 0; i < COUNT; i++) EXPECT(is_intact(heap, &stays[i]));
    EXPECT(is_intact(heap, &large));
    EXPECT(is_discarded(heap, &other) && is_discarded(heap, &goes[0]));
    // An open slab's page is filled on: it need not be closed.
    element_t next;
    REQUIRE(make_in(heap, withheld, 40, 9, &next) == 0 && make_in(heap, withheld, 40, 10, &other) == 0);
    for (int round = 0; round < 12; round++) EXPECT_EQUAL(purgeable_heap_offer_idle(heap, NULL), 0);
    element_t after;
    REQUIRE(make_in(heap, withheld, 40, 11, &after) == 0);
    EXPECT_EQUAL(after.reference.place - other.reference.place, other.reference.place - next.reference.place);
    // A slab that is emptied goes back.
    uint64_t held = purgeable_heap_held_bytes(heap);
    EXPECT_EQUAL(purgeable_heap_free(heap, large.reference), 0);
    EXPECT(purgeable_heap_held_bytes(heap) < held);
    EXPECT_EQUAL(purgeable_stream_seal(heap, withheld), 0);
    EXPECT_EQUAL(purgeable_stream_withhold(heap, withheld, false), 0);
    EXPECT(purgeable_heap_has_pending(heap));
    EXPECT_EQUAL(offer_all(heap), 0);
    for (size_t i = 0; i < COUNT; i++) EXPECT(purgeable_heap_is_on_offer(heap, stays[i].reference.place));
    EXPECT_EQUAL(purgeable_stream_withhold(heap, withheld + 1, true), EINVAL);
    EXPECT_EQUAL(purgeable_stream_withhold(NULL, 0, true), EINVAL);
    END_HEAP(heap);
    if (way == 2) purgeable_set_pending_byte_limit(limit);
  }
}

void open_slabs_offer_full_pages(case_report_t *report) {
  NEED_OFFERS();
  MAKE_HEAP(heap, .slab_bytes = 64 * PAGE);
  element_t elements[400];
  size_t count = 0, offered;
  char *end_of_offer = NULL;
  for (int round = 0; round < 8; round++) {
    for (int i = 0; i < 40; i++, count++) {
      REQUIRE(make(heap, PER_PAGE(300 + 100 * (size_t)(i % 5)), count, &elements[count]) == 0);
      // No element is allocated in a page that has been on offer.
      EXPECT(elements[count].bytes - PURGEABLE_HEADER_BYTES >= end_of_offer);
    }
    EXPECT_EQUAL(purgeable_heap_offer_idle(heap, &offered), 0);
    char *start = (char *)((uintptr_t)elements[0].bytes & ~(uintptr_t)(PAGE - 1));
    const element_t *last = &elements[count - 1];
    end_of_offer = (char *)((uintptr_t)(last->bytes + last->length) & ~(uintptr_t)(PAGE - 1));
    EXPECT_EQUAL(heap_statistics(heap).memory.offered_bytes, (size_t)(end_of_offer - start));
    EXPECT(offered > 0 && offered <= (size_t)(end_of_offer - start));
    // Not while one is being written.
    purgeable_reference_t reference;
    void *bytes;
    REQUIRE(purgeable_heap_allocate(heap, 2 * PAGE, &reference, &bytes) == 0);
    EXPECT_EQUAL(purgeable_heap_offer_idle(heap, &offered), 0);
    EXPECT_EQUAL(offered, 0);
    EXPECT_EQUAL(purgeable_heap_free(heap, reference), 0);
  }
  for (size_t i = 0; i < count; i++) EXPECT(is_intact(heap, &elements[i]));
  END_HEAP(heap);
}

void trimming(case_report_t *report) {
  MAKE_HEAP(heap, .offering = purgeable_offering_deferred);
  element_t elements[3];
  const size_t lengths[] = {100, 70000, 900000};
  for (size_t i = 0; i < 3; i++) REQUIRE(make(heap, lengths[i], i, &elements[i]) == 0);
  size_t freed = 99;
  EXPECT_EQUAL(purgeable_heap_trim(heap, &freed), 0);
  EXPECT_EQUAL(freed, 0);
  for (size_t i = 0; i < 3; i++) EXPECT(is_intact(heap, &elements[i]));
  // An open slab stays, also when nothing lives in it.
  EXPECT_EQUAL(purgeable_heap_free(heap, elements[0].reference), 0);
  EXPECT_EQUAL(purgeable_heap_trim(heap, &freed), 0);
  REQUIRE(make(heap, 100, 5, &elements[0]) == 0);
  for (size_t i = 0; i < 3; i++) EXPECT_EQUAL(purgeable_heap_free(heap, elements[i].reference), 0);
  EXPECT_EQUAL(heap_statistics(heap).slab_count, 1);
  EXPECT_EQUAL(purgeable_stream_seal(heap, 0), 0);
  EXPECT_EQUAL(heap_statistics(heap).slab_count, 0);
  END_HEAP(heap);
}

void sweeps_with_swap(case_report_t *report) {
  FILE *file = fopen("/proc/swaps", "r");
  char line[256] = "";
  bool has_swap = file != NULL && fgets(line, sizeof line, file) != NULL && fgets(line, sizeof line, file) != NULL;
  if (file != NULL) (void)fclose(file);
  if (!has_swap) SKIP("no swap on this machine: there \"not resident\" is proof, and the look at the elements is not taken");
  NEED_DISCARDS();
  MAKE_HEAP(heap, .slab_bytes = 16 * PAGE);
  element_t element;
  REQUIRE(make(heap, 900, 1, &element) == 0 && purgeable_stream_seal(heap, 0) == 0 && offer_all(heap) == 0);
  size_t lost = 0;
  EXPECT(kernel_discard(element.bytes, 900) == 1);
  EXPECT_EQUAL(purgeable_heap_sweep(heap, &lost), 0);
  EXPECT_EQUAL(lost, PAGE);
  EXPECT(is_discarded(heap, &element));
  END_HEAP(heap);
}
