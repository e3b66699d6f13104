// SPDX-License-Identifier: MIT
// Idle memory of a heap that is not on offer yet: the page being filled, the bound on pending bytes, pages that the kernel has
// noted as offered, and what counts against the limit.

#include "heap_cases.h"

enum { SMALL = 100 };

// MARK: The page being filled

// Ten small elements, less than a page, can be discarded too, and the next element stored does not touch their page.
static void page_being_filled(case_report_t *report) {
  NEED_EXACT_DISCARDS();
  MAKE_HEAP(heap, .slab_bytes = 16 * PAGE);
  element_t elements[10], next;
  for (size_t i = 0; i < 10; i++) REQUIRE(make(heap, SMALL, i, &elements[i]) == 0);
  size_t offered = 0;
  EXPECT_EQUAL(purgeable_heap_offer_idle(heap, &offered), 0);
  EXPECT_EQUAL(offered, 0);
  EXPECT(purgeable_heap_has_pending(heap));
  // Not while it is locked.
  EXPECT_EQUAL(purgeable_heap_lock(heap, elements[0].reference, NULL, NULL), purgeable_outcome_intact);
  EXPECT_EQUAL(purgeable_heap_offer_idle(heap, &offered), 0);
  EXPECT_EQUAL(offered, 0);
  EXPECT_EQUAL(purgeable_heap_unlock(heap, elements[0].reference), 0);
  EXPECT_EQUAL(heap_statistics(heap).memory.pending_bytes, PAGE);
  EXPECT_EQUAL(purgeable_heap_offer_idle(heap, &offered), 0);
  EXPECT_EQUAL(offered, PAGE);
  EXPECT(!purgeable_heap_has_pending(heap));
  EXPECT_EQUAL(heap_statistics(heap).memory.offered_bytes, PAGE);
  EXPECT_EQUAL(heap_statistics(heap).memory.pending_bytes, 0);

  REQUIRE(make(heap, SMALL, 99, &next) == 0);
  EXPECT_EQUAL(page_in_heap(next.bytes), page_in_heap(elements[0].bytes) + 1);
  EXPECT_EQUAL(kernel_discard(elements[0].bytes, SMALL), 1);
  for (size_t i = 0; i < 10; i++) EXPECT(is_discarded(heap, &elements[i]));
  EXPECT(is_intact(heap, &next) && locks_intact(heap, &next));
  END_HEAP(heap);
}

// While stores go on between the calls no page is closed: elements lie one behind the other.
static void stores_go_on(case_report_t *report) {
  NEED_OFFERS();
  MAKE_HEAP(heap, .slab_bytes = 64 * PAGE);
  element_t last = {.bytes = NULL}, element;
  REQUIRE(make(heap, SMALL, 0, &last) == 0);
  size_t gaps = 0;
  for (uint64_t i = 1; i < 500; i++) {
    if (i % 3 == 0) EXPECT_EQUAL(purgeable_heap_offer_idle(heap, NULL), 0);
    REQUIRE(make(heap, SMALL, i, &element) == 0);
    gaps += element.bytes - last.bytes > 2 * SMALL;
    last = element;
  }
  EXPECT_EQUAL(gaps, 0);
  // One store now and then, each after the heap was found idle: first each takes a page, then they share pages again.
  uint64_t held = heap_statistics(heap).memory.held_bytes, stores = 0;
  for (uint64_t i = 0; i < 400; i++) {
    EXPECT_EQUAL(purgeable_heap_offer_idle(heap, NULL), 0);
    if (i % 4 != 3) continue;
    REQUIRE(make(heap, SMALL, i, &element) == 0);
    stores++;
  }
  EXPECT(heap_statistics(heap).memory.held_bytes - held < stores * PAGE / 4);
  END_HEAP(heap);
}

// MARK: The bound on what waits

static void bound_on_pending(case_report_t *report) {
  NEED_OFFERS();
  const size_t slab = 16 * PAGE, limit = 16 * slab;
  uint64_t before = purgeable_pending_byte_limit();
  purgeable_set_pending_byte_limit(limit);
  MAKE_HEAP(heap, .slab_bytes = slab);
  purgeable_stream_t other = 0;
  REQUIRE(purgeable_stream_create(heap, &other) == 0);
  enum { COUNT = 8000 };
  element_t *elements = calloc(COUNT, sizeof *elements);
  REQUIRE(elements != NULL);
  uint64_t most = 0;
  // The host makes no call: allocations that seal a slab offer.
  for (size_t i = 0; i < COUNT; i++) {
    REQUIRE(make_in(heap, i % 5 == 0 ? other : 0, 2000, i, &elements[i]) == 0);
    uint64_t pending = i % 64 == 0 ? heap_statistics(heap).memory.pending_bytes : 0;
    if (pending > most) most = pending;
  }
  // The open slab of each stream is not part of the bound.
  EXPECT(most > limit / 2 && most <= limit + 3 * slab);
  purgeable_heap_statistics_t now = heap_statistics(heap);
  EXPECT(now.memory.offered_bytes + now.memory.pending_bytes == now.memory.held_bytes && now.memory.held_bytes > 12 * limit);
  // Locks take pages off offer; the unlocks put them back, beyond four times the bound.
  for (size_t i = 0; i < COUNT; i++) EXPECT_EQUAL(purgeable_heap_lock(heap, elements[i].reference, NULL, NULL), 0);
  EXPECT_EQUAL(heap_statistics(heap).memory.pending_bytes, 0);
  most = 0;
  for (size_t i = 0; i < COUNT; i++) {
    EXPECT_EQUAL(purgeable_heap_unlock(heap, elements[i].reference), 0);
    uint64_t pending = i % 64 == 0 ? heap_statistics(heap).memory.pending_bytes : 0;
    if (pending > most) most = pending;
  }
  EXPECT(most > 2 * limit && most <= 4 * limit);
  NOTE("%llu KiB of %llu waited at most", (unsigned long long)most >> 10, (unsigned long long)now.memory.held_bytes >> 10);
  // No bound: nothing is offered but by a call.
  purgeable_set_pending_byte_limit(UINT64_MAX);
  uint64_t calls = purgeable_testing_call_count(purgeable_testing_call_madvise_free);
  for (size_t i = 0; i < COUNT; i++) EXPECT(locks_intact(heap, &elements[i]));
  EXPECT_EQUAL(purgeable_testing_call_count(purgeable_testing_call_madvise_free), calls);
  EXPECT_EQUAL(offer_all(heap), 0);
  EXPECT(heap_statistics(heap).memory.pending_bytes <= 2 * slab);
  purgeable_set_pending_byte_limit(before);
  free(elements);
  END_HEAP(heap);
}

typedef struct last_look {
  purgeable_heap_t *heap;
  purgeable_reference_t locked;
  bool is_unlocked;
} last_look_t;

// In the middle of a read: the lock that the element had is given back, so that the read lets go of the element last.
static void unlock_in_read(void *context) {
  last_look_t *look = context;
  if (!look->is_unlocked) look->is_unlocked = purgeable_heap_unlock(look->heap, look->locked) == 0;
}

// With limit 0: a read lets go of a large element last, then a lock lets go of that element itself, or of another one.
static void read_then_unlock(case_report_t *report, bool is_itself) {
  uint64_t before = purgeable_pending_byte_limit();
  MAKE_HEAP(heap, .slab_bytes = 4 * PAGE, .chunk_bytes = 16 * PAGE);
  // Nothing may wait; but a read makes no system call.
  purgeable_set_pending_byte_limit(0);
  element_t large, other;
  REQUIRE(make(heap, 40 * PAGE, 1, &large) == 0);
  REQUIRE(make(heap, 3 * PAGE, 2, &other) == 0);
  EXPECT(purgeable_heap_is_on_offer(heap, large.reference.place));
  EXPECT_EQUAL(purgeable_heap_lock(heap, large.reference, NULL, NULL), purgeable_outcome_intact);
  last_look_t look = {.heap = heap, .locked = large.reference};
  char *buffer = malloc(large.length);
  REQUIRE(buffer != NULL && purgeable_testing_set_pause(unlock_in_read, &look));
  uint64_t calls = purgeable_testing_call_count(purgeable_testing_call_any);
  purgeable_outcome_t outcome = purgeable_heap_read_part(heap, large.reference, 0, large.length, buffer);
  EXPECT_EQUAL(purgeable_testing_call_count(purgeable_testing_call_any), calls);
  (void)purgeable_testing_set_pause(NULL, NULL);
  EXPECT_EQUAL(outcome, purgeable_outcome_intact);
  EXPECT(look.is_unlocked && check_pattern(buffer, large.length, 1));
  free(buffer);
  EXPECT(!purgeable_heap_is_on_offer(heap, large.reference.place));
  // The next call that lets go of something offers it as well.
  EXPECT(locks_intact(heap, is_itself ? &large : &other));
  EXPECT(purgeable_heap_is_on_offer(heap, large.reference.place));
  EXPECT_EQUAL(heap_statistics(heap).memory.pending_bytes, 0);
  EXPECT_VALID(heap);
  EXPECT(is_intact(heap, &large));
  purgeable_set_pending_byte_limit(before);
  END_HEAP(heap);
}

static void reads_that_let_go_last(case_report_t *report) {
  NEED_HOOKS();
  NEED_OFFERS();
  read_then_unlock(report, false);
  read_then_unlock(report, true);
}

// MARK: Calls that unlocks share

enum { SLAB_PAGES = 16, SLABS = 256, PENDING_PAGES = 256, MOST_ELEMENTS = 200000 };

// A heap of many slabs, all on offer, and a bound that is a sixteenth of it. `*elements` is the caller's to free.
static purgeable_heap_t *offered_heap(size_t length, element_t **elements, size_t *count) {
  purgeable_heap_t *heap;
  *elements = calloc(MOST_ELEMENTS, sizeof **elements);
  if (*elements == NULL) return NULL;
  purgeable_set_pending_byte_limit(UINT64_MAX);
  const purgeable_heap_options_t options = {.slab_bytes = SLAB_PAGES * PAGE, .chunk_bytes = SLABS / 2 * SLAB_PAGES * PAGE};
  if (purgeable_heap_create(&options, &heap) != 0) return NULL;
  for (*count = 0; purgeable_heap_held_bytes(heap) < SLABS * SLAB_PAGES * PAGE; ++*count) {
    if (*count == MOST_ELEMENTS || make(heap, length, *count, &(*elements)[*count]) != 0) return NULL;
  }
  if (purgeable_stream_seal(heap, 0) != 0 || offer_all(heap) != 0) return NULL;
  purgeable_set_pending_byte_limit(PENDING_PAGES * PAGE);
  return heap;
}

typedef struct locker {
  purgeable_heap_t *heap;
  const element_t *elements;
  size_t count, operations, failures;
  uint64_t state, most_bytes, promise_bytes;
} locker_t;

static void *lock_at_random(void *context) {
  locker_t *locker = context;
  for (size_t i = 0; i < locker->operations; i++) {
    const element_t *element = &locker->elements[next_random(&locker->state) % locker->count];
    bool is_intact = purgeable_heap_lock(locker->heap, element->reference, NULL, NULL) == purgeable_outcome_intact;
    if (!is_intact || purgeable_heap_unlock(locker->heap, element->reference) != 0) locker->failures++;
    if (locker->promise_bytes == 0 || i % 16 != 0) continue;
    uint64_t pending = heap_statistics(locker->heap).memory.pending_bytes;
    if (pending > locker->most_bytes) locker->most_bytes = pending;
  }
  return NULL;
}

// What unlocks leave waiting beyond the bound is offered by few calls, each for many unlocks; and never does more wait than is
// promised.
static void unlocks_share_calls(case_report_t *report) {
  NEED_DISCARDS();
  uint64_t before = purgeable_pending_byte_limit();
  enum { OPERATIONS = 30000 };
  const size_t lengths[] = {SMALL, PAGE, 3 * PAGE};
  for (size_t i = 0; i < 3; i++) {
    element_t *elements;
    size_t count;
    purgeable_heap_t *heap = offered_heap(lengths[i], &elements, &count);
    REQUIRE(heap != NULL);
    locker_t lockers[2];
    for (size_t k = 0; k < 2; k++) {
      lockers[k] = (locker_t){.heap = heap, .elements = elements, .count = count, .operations = OPERATIONS, .state = k + 1};
    }
    lockers[0].promise_bytes = 4 * PENDING_PAGES * PAGE;
    uint64_t calls = purgeable_testing_call_count(purgeable_testing_call_madvise_free);
    (void)lock_at_random(&lockers[0]);
    uint64_t alone = purgeable_testing_call_count(purgeable_testing_call_madvise_free) - calls;
    EXPECT(alone > 0 && alone <= OPERATIONS / 50);
    EXPECT(lockers[0].most_bytes > lockers[0].promise_bytes / 2 && lockers[0].most_bytes <= lockers[0].promise_bytes);
    lockers[0].promise_bytes = 0;
    run_threads(2, lock_at_random, lockers, sizeof *lockers);
    uint64_t both = purgeable_testing_call_count(purgeable_testing_call_madvise_free) - calls - alone;
    EXPECT(both > 0 && both <= 2 * OPERATIONS / 50);
    EXPECT_EQUAL(lockers[0].failures + lockers[1].failures, 0);
    NOTE("%zu bytes, %d unlocks: %llu calls; %d by two threads: %llu", lengths[i], OPERATIONS, (unsigned long long)alone,
         2 * OPERATIONS, (unsigned long long)both);
    END_HEAP(heap);
    free(elements);
  }
  purgeable_set_pending_byte_limit(before);
}

// What locks took off offer does not make stores offer, as long as no more waits than four times the bound; what was stored does.
static void stores_count_apart(case_report_t *report) {
  NEED_DISCARDS();
  uint64_t before = purgeable_pending_byte_limit();
  element_t *elements, element;
  size_t count, stored = 0;
  purgeable_heap_t *heap = offered_heap(SMALL, &elements, &count);
  REQUIRE(heap != NULL);
  uint64_t calls = purgeable_testing_call_count(purgeable_testing_call_madvise_free);
  for (size_t i = 0; heap_statistics(heap).memory.pending_bytes < 2 * PENDING_PAGES * PAGE; i += 20) {
    REQUIRE(i < count && locks_intact(heap, &elements[i]));
  }
  uint64_t held = purgeable_heap_held_bytes(heap);
  for (; purgeable_heap_held_bytes(heap) - held < (PENDING_PAGES - SLAB_PAGES) * PAGE; stored++) {
    REQUIRE(make(heap, SMALL, stored, &element) == 0);
  }
  EXPECT_EQUAL(purgeable_testing_call_count(purgeable_testing_call_madvise_free), calls);
  for (; purgeable_heap_held_bytes(heap) - held < 8 * PENDING_PAGES * PAGE; stored++) {
    REQUIRE(make(heap, SMALL, stored, &element) == 0);
    if (stored % 64 == 0) EXPECT(heap_statistics(heap).memory.pending_bytes <= (3 * PENDING_PAGES + 2 * SLAB_PAGES) * PAGE);
  }
  calls = purgeable_testing_call_count(purgeable_testing_call_madvise_free) - calls;
  EXPECT(calls > 0 && calls <= 100);
  END_HEAP(heap);
  free(elements);
  purgeable_set_pending_byte_limit(before);
}

// Limit 0: each unlock offers what it made idle, and looks for nothing else, however large the heap is.
static void nothing_waits(case_report_t *report) {
  NEED_DISCARDS();
  uint64_t before = purgeable_pending_byte_limit();
  element_t *elements;
  size_t count;
  purgeable_heap_t *heap = offered_heap(SMALL, &elements, &count);
  REQUIRE(heap != NULL);
  purgeable_set_pending_byte_limit(0);
  uint64_t calls = purgeable_testing_call_count(purgeable_testing_call_madvise_free);
  uint64_t looks = purgeable_testing_look_count(purgeable_testing_looks_overdue), unlocks = 0;
  for (size_t i = 0; i < count; i += count / 100, unlocks++) {
    EXPECT(locks_intact(heap, &elements[i]));
    EXPECT_EQUAL(heap_statistics(heap).memory.pending_bytes, 0);
  }
  EXPECT_EQUAL(purgeable_testing_call_count(purgeable_testing_call_madvise_free) - calls, unlocks);
  EXPECT_EQUAL(purgeable_testing_look_count(purgeable_testing_looks_overdue), looks);
  END_HEAP(heap);
  free(elements);
  purgeable_set_pending_byte_limit(before);
}

// MARK: What the kernel has taken note of

typedef struct filling {
  purgeable_heap_t *heap;
  element_t elements[300];
  int error;
} filling_t;

static void *fill_elsewhere(void *context) {
  filling_t *filling = context;
  for (size_t i = 0; i < 300 && filling->error == 0; i++) filling->error = make(filling->heap, SMALL, i, &filling->elements[i]);
  return NULL;
}

// Filled by one thread, offered by another: its pages may wait in another processor's batch, so they count from the second offer
// on.
static void filled_by_another_thread(case_report_t *report) {
  NEED_DISCARDS();
  MAKE_HEAP(heap, .slab_bytes = 64 * PAGE);
  filling_t *filling = calloc(1, sizeof *filling);
  REQUIRE(filling != NULL);
  filling->heap = heap;
  run_threads(1, fill_elsewhere, filling, sizeof *filling);
  EXPECT_EQUAL(filling->error, 0);
  EXPECT_EQUAL(purgeable_heap_offer_idle(heap, NULL), 0);
  EXPECT_EQUAL(heap_statistics(heap).memory.offered_bytes, 0);
  // As other work on those processors would in time.
  drain_processors();
  stay_on_one_processor();
  int calls = 1;
  for (; purgeable_heap_has_pending(heap) && calls < 10; calls++) EXPECT_EQUAL(purgeable_heap_offer_idle(heap, NULL), 0);
  EXPECT(calls >= 3 && calls <= 4);
  // Now all of it counts, the page that was being filled included, and the kernel takes all of it.
  purgeable_heap_statistics_t now = heap_statistics(heap);
  EXPECT_EQUAL(now.memory.offered_bytes, (300 * 112 + PAGE - 1) / PAGE * PAGE);
  char *start = (char *)((uintptr_t)filling->elements[0].bytes & ~(uintptr_t)(PAGE - 1));
  EXPECT_EQUAL(kernel_discard(start, now.memory.offered_bytes), now.memory.offered_bytes / PAGE);
  for (size_t i = 0; i < 300; i++) EXPECT(is_discarded(heap, &filling->elements[i]));
  free(filling);
  END_HEAP(heap);
}

// MARK: What is known to be gone

static void lost_pages_are_not_charged(case_report_t *report) {
  NEED_EXACT_DISCARDS();
  const size_t slab = 16 * PAGE, limit = 16 * slab;
  MAKE_HEAP(heap, .slab_bytes = slab, .byte_limit = limit);
  enum { MOST = 4000 };
  static element_t elements[MOST];
  size_t count = 0;
  while (make(heap, 1000, count, &elements[count]) == 0) REQUIRE(++count < MOST);
  EXPECT_EQUAL(purgeable_heap_charged_bytes(heap), purgeable_heap_held_bytes(heap));
  EXPECT_EQUAL(purgeable_stream_seal(heap, 0), 0);
  EXPECT_EQUAL(offer_all(heap), 0);
  size_t gone = 0;
  EXPECT_EQUAL(purgeable_heap_page_out(heap, limit / 2, NULL, &gone), 0);
  EXPECT(gone >= limit / 2);
  EXPECT_EQUAL(purgeable_heap_charged_bytes(heap), purgeable_heap_held_bytes(heap));
  EXPECT_EQUAL(purgeable_heap_sweep(heap, NULL), 0);
  purgeable_heap_statistics_t now = heap_statistics(heap);
  EXPECT_EQUAL(now.memory.discarded_bytes, gone);
  EXPECT_EQUAL(purgeable_heap_charged_bytes(heap), now.memory.held_bytes - gone);
  // There is room for as much as is gone, although nothing was freed; and the bytes that are there never exceed the limit.
  size_t more = 0;
  element_t element;
  while (make(heap, 1000, more, &element) == 0) more++;
  EXPECT(more * 1000 > limit / 3);
  EXPECT(heap_statistics(heap).memory.resident_bytes <= limit);
  // After the frees the books add up again.
  for (size_t i = 0; i < count; i++) EXPECT_EQUAL(purgeable_heap_free(heap, elements[i].reference), 0);
  EXPECT_EQUAL(purgeable_heap_charged_bytes(heap), purgeable_heap_held_bytes(heap));
  EXPECT_EQUAL(purgeable_heap_charged_bytes(NULL), 0);

  // In a run, pages that are gone are found by sweeps.
  EXPECT_EQUAL(purgeable_heap_set_byte_limit(heap, 0), 0);
  element_t large;
  REQUIRE(make(heap, 40 * slab, 7, &large) == 0);
  EXPECT_EQUAL(offer_all(heap), 0);
  char *start = (char *)((uintptr_t)large.bytes & ~(uintptr_t)(PAGE - 1));
  uint64_t held = purgeable_heap_held_bytes(heap), charged = purgeable_heap_charged_bytes(heap);
  discard_exactly(start + 20 * slab, 5 * slab);
  EXPECT(is_discarded(heap, &large));
  EXPECT_EQUAL(purgeable_heap_sweep(heap, NULL), 0);
  // Except for a page or two that were looked at: mincore calls the kernel's page of zeros resident.
  uint64_t found = charged - purgeable_heap_charged_bytes(heap);
  EXPECT(found <= 5 * slab && found >= 5 * slab - 2 * PAGE);
  discard_exactly(start + 30 * slab, 5 * slab);
  EXPECT_EQUAL(purgeable_heap_sweep(heap, NULL), 0);
  found = charged - purgeable_heap_charged_bytes(heap);
  EXPECT(found <= 10 * slab && found >= 10 * slab - 2 * PAGE);
  EXPECT_EQUAL(purgeable_heap_held_bytes(heap), held);
  EXPECT_EQUAL(purgeable_heap_free(heap, large.reference), 0);
  EXPECT_EQUAL(purgeable_heap_charged_bytes(heap), purgeable_heap_held_bytes(heap));
  END_HEAP(heap);
}

const test_case_t pending_cases[] = {
    CASE("pending: the page being filled of an idle heap goes on offer", page_being_filled),
    CASE("pending: no page is closed while stores go on", stores_go_on),
    CASE("pending: what waits in a heap has a bound", bound_on_pending),
    CASE("pending: what a read lets go of last waits for the next call, not for the upkeep", reads_that_let_go_last),
    CASE("pending: unlocks beyond the bound share their calls", unlocks_share_calls),
    CASE("pending: stores do not offer what locks took off offer", stores_count_apart),
    CASE("pending: with limit 0 an unlock offers its own slab alone", nothing_waits),
    CASE("pending: what another thread filled counts from its second offer on", filled_by_another_thread),
    CASE("pending: what is known to be gone is not charged", lost_pages_are_not_charged),
    END_OF_CASES,
};
