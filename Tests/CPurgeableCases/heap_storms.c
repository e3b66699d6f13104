// SPDX-License-Identifier: MIT
// The slab heap under real threads: locks beside offers, writers beside offers and trims, reads without lock beside everything.
// Short in the gate; PURGEABLE_STORM=n makes them n times as long, and in the full run the reads go on until 10 million with 1
// million discards.

#include "heap_storm.h"

// MARK: Locks beside offers

enum { LOCK_PAGES = 64 };

typedef struct lock_storm {
  purgeable_heap_t *heap;
  element_t element;
  span_t span;
  uint64_t seed, locks, wrong, lost;
  bool offers;
} lock_storm_t;

// In immediate mode each last unlock is inside a madvise of all the element's pages. One thread only locks and unlocks; the
// other's locks begin at any moment, so every third of them finds the madvise running.
static void *lock_beside_offers(void *context) {
  lock_storm_t *storm = context;
  uint64_t random = storm->seed;
  for (uint64_t rounds = 0; span_goes_on(storm->span, rounds) && storm->wrong + storm->lost == 0; rounds++) {
    for (int round = 0; round < 64; round++) {
      uint64_t pause = storm->offers ? 0 : next_random(&random) % 8192;
      while (pause-- > 0) atomic_signal_fence(memory_order_seq_cst);
      purgeable_outcome_t outcome = purgeable_heap_lock(storm->heap, storm->element.reference, NULL, NULL);
      if (outcome != purgeable_outcome_intact) {
        storm->lost++;
        break;
      }
      if (storm->offers) {
        (void)purgeable_heap_unlock(storm->heap, storm->element.reference);
        continue;
      }
      storm->locks++;
      // Pages that are on offer in spite of the lock would be taken now.
      (void)madvise((void *)((uintptr_t)storm->element.bytes & ~(uintptr_t)(PAGE - 1)), LOCK_PAGES * PAGE, MADV_PAGEOUT);
      bool right = true;
      const volatile char *bytes = storm->element.bytes;
      for (size_t i = 0; i < storm->element.length; i += PAGE / 2) right = right && bytes[i] != 0;
      if (round == 0) right = right && check_pattern(storm->element.bytes, storm->element.length, storm->element.number);
      storm->wrong += !right;
      (void)purgeable_heap_unlock(storm->heap, storm->element.reference);
      if (!right) break;
    }
  }
  return NULL;
}

static uint64_t lock_storm(case_report_t *report, span_t span, uint64_t *locks, uint64_t *waited) {
  lock_storm_t storms[2] = {{0}};
  uint64_t before = purgeable_testing_waited_heap_lock_count();
  purgeable_heap_t *heap = NULL;
  const purgeable_heap_options_t options = {.slab_bytes = 64 * PAGE, .offering = purgeable_offering_immediate};
  EXPECT_EQUAL(purgeable_heap_create(&options, &heap), 0);
  element_t element;
  EXPECT_EQUAL(make(heap, (LOCK_PAGES - 1) * PAGE, 1, &element), 0);
  for (int i = 0; i < 2; i++) {
    storms[i] = (lock_storm_t){
        .heap = heap, .element = element, .span = span, .seed = report->seed + *locks, .offers = i == 0};
  }
  run_threads(2, lock_beside_offers, storms, sizeof storms[0]);
  *locks += storms[1].locks;
  *waited += purgeable_testing_waited_heap_lock_count() - before;
  END_HEAP(heap);
  return storms[1].wrong;
}

static void locks_beside_offers(case_report_t *report) {
  NEED_DISCARDS();
  uint64_t locks = 0, waited = 0, wrong = 0;
  uint64_t start = now_ms(), end = start + 1500 * report->scale;
  // On demand, until 100,000 locks have begun while a madvise was running.
  do {
    wrong += lock_storm(report, report->is_full ? (span_t){.until_ms = now_ms() + 500} : span_of(report, 4, 0), &locks, &waited);
    bool counts = purgeable_testing_has_hooks();
    // On a busy machine a while longer.
    if (counts && waited < 10 && end - start < 30000) end += 500;
    if (counts && report->scale > 1 && waited < 100000) end = now_ms() + 1000;
  } while (report->is_full && now_ms() < end);
  EXPECT_EQUAL(wrong, 0);
  if (report->is_full) EXPECT(waited > 0 || !purgeable_testing_has_hooks());
  NOTE("%llu locks, %llu of them found a madvise running, %llu lost", (unsigned long long)locks, (unsigned long long)waited,
       (unsigned long long)wrong);
}

typedef struct early_lock {
  purgeable_heap_t *heap;
  element_t element;
  bool done, locked;
} early_lock_t;

static void lock_now(void *context) {
  early_lock_t *lock = context;
  if (lock->done) return;
  lock->done = true;
  lock->locked = purgeable_heap_lock(lock->heap, lock->element.reference, NULL, NULL) == purgeable_outcome_intact;
}

// A lock that begins between the claim and the madvise, and does not wait, in the same thread: the madvise undoes its rescue.
// (With the rule on it would wait for itself; there it is other threads that lock, above.)
static void locks_need_the_wait(case_report_t *report) {
  NEED_HOOKS();
  NEED_DISCARDS();
  uint64_t wrong = 0, rounds = 20;
  for (uint64_t round = 0; round < rounds; round++) {
    MAKE_HEAP(heap, .slab_bytes = 64 * PAGE);
    early_lock_t lock = {.heap = heap};
    REQUIRE(make(heap, (LOCK_PAGES / 2 - 1) * PAGE, round, &lock.element) == 0 && purgeable_stream_seal(heap, 0) == 0);
    // Drains the batch of young pages, which a madvise skips.
    (void)kernel_discard(lock.element.bytes, lock.element.length);
    EXPECT(purgeable_testing_switch_off(purgeable_testing_rule_wait_for_offer));
    purgeable_testing_set_pause(lock_now, &lock);
    EXPECT_EQUAL(purgeable_heap_offer_idle(heap, NULL), 0);
    purgeable_testing_set_pause(NULL, NULL);
    EXPECT(purgeable_testing_switch_off(0));
    REQUIRE(lock.locked);
    (void)kernel_discard(lock.element.bytes, lock.element.length);
    wrong += !check_pattern(lock.element.bytes, lock.element.length, round);
    // The unlock is refused when the header is gone, which cannot happen in a heap with the rule on.
    (void)purgeable_heap_unlock(heap, lock.element.reference);
    END_HEAP(heap);
  }
  EXPECT(wrong > 0);
  NOTE("rule off: %llu of %llu locks lost their content", (unsigned long long)wrong, (unsigned long long)rounds);
}

// MARK: Writers beside offers and trims

typedef struct writer_storm {
  purgeable_heap_t *heap;
  purgeable_stream_t stream;
  span_t span;
  uint64_t seed, count, wrong;
  bool writes;
} writer_storm_t;

// Makes elements slowly, and has the kernel take what is on offer meanwhile: no page of an element may go before the commit.
static void write_slowly(writer_storm_t *storm) {
  uint64_t number = next_random(&storm->seed);
  size_t length = number % 8 == 0 ? 20 * PAGE : 1 + (number >> 8) % (3 * PAGE);
  purgeable_reference_t reference;
  void *bytes;
  if (purgeable_heap_allocate_in(storm->heap, storm->stream, length, number, &reference, &bytes) != 0) return;
  char *start = (char *)((uintptr_t)bytes & ~(uintptr_t)(PAGE - 1));
  size_t range = ((size_t)((char *)bytes - start) + length + PAGE - 1) & ~(PAGE - 1);
  // The first call drains this CPU's batch, so that a madvise from elsewhere takes effect on pages as young as these.
  for (size_t i = 0; i < length; i += PAGE / 2) ((char *)bytes)[i] = 1;
  (void)madvise(start, range, MADV_PAGEOUT);
  fill_pattern(bytes, length, number);
  for (uint64_t pause = 0; pause < number % 50000; pause++) atomic_signal_fence(memory_order_seq_cst);
  if (number % 4 != 3) (void)madvise(start, range, MADV_PAGEOUT);
  storm->wrong += !check_pattern(bytes, length, number);
  storm->wrong += purgeable_heap_commit(storm->heap, reference) != 0;
  const void *locked;
  size_t got;
  // The element may have gone since, but content that is there is right.
  if (purgeable_heap_lock(storm->heap, reference, &locked, &got) == purgeable_outcome_intact) {
    storm->wrong += got != length || !check_pattern(locked, length, number);
    storm->wrong += purgeable_heap_unlock(storm->heap, reference) != 0;
  }
  storm->wrong += purgeable_heap_free(storm->heap, reference) != 0;
  storm->count++;
}

static void *write_or_keep_up(void *context) {
  writer_storm_t *storm = context;
  for (uint64_t rounds = 0; span_goes_on(storm->span, rounds); rounds++) {
    for (int i = 0; i < 50; i++) {
      if (storm->writes) {
        write_slowly(storm);
      } else {
        storm->wrong += purgeable_heap_offer_idle(storm->heap, NULL) != 0;
        storm->wrong += purgeable_heap_trim(storm->heap, NULL) != 0;
        storm->count++;
      }
    }
  }
  return NULL;
}

static void writers_beside_upkeep(case_report_t *report) {
  NEED_OFFERS();
  MAKE_HEAP(heap, .slab_bytes = 16 * PAGE);
  purgeable_stream_t stream;
  REQUIRE(purgeable_stream_create(heap, &stream) == 0);
  enum { THREADS = 3 };
  writer_storm_t storms[THREADS];
  for (size_t i = 0; i < THREADS; i++) {
    storms[i] = (writer_storm_t){.heap = heap, .stream = i == 1 ? stream : 0, .span = span_of(report, 4, 1500),
                                 .seed = report->seed + i, .writes = i != 2};
  }
  // Wider windows: an offer that has begun, a large element that was just made.
  purgeable_testing_slow_reads(5000);
  run_threads(THREADS, write_or_keep_up, storms, sizeof storms[0]);
  purgeable_testing_slow_reads(0);
  for (size_t i = 0; i < THREADS; i++) EXPECT_EQUAL(storms[i].wrong, 0);
  EXPECT_EQUAL(purgeable_stream_seal(heap, 0), 0);
  EXPECT_EQUAL(purgeable_stream_seal(heap, stream), 0);
  EXPECT_EQUAL(purgeable_heap_trim(heap, NULL), 0);
  purgeable_heap_statistics_t end = heap_statistics(heap);
  EXPECT_EQUAL(end.memory.held_bytes + end.memory.locked_bytes + end.memory.payload_bytes, 0);
  EXPECT_EQUAL(end.slab_count + end.element_count, 0);
  EXPECT_EQUAL(purgeable_heap_held_bytes(heap), 0);
  EXPECT_EQUAL(end.unbalanced_unlock_count, 0);
  NOTE("%llu elements beside %llu rounds of upkeep", (unsigned long long)(storms[0].count + storms[1].count),
       (unsigned long long)storms[2].count);
  END_HEAP(heap);
}

typedef struct window {
  purgeable_heap_t *heap;
  purgeable_reference_t reference;
  char *bytes;
  bool done;
  // The slab in which it is born.
  bool seals;
} window_t;

enum { BORN_PAGES = 20 };

static void give_birth(void *context) {
  window_t *window = context;
  if (window->done) return;
  window->done = true;
  void *bytes;
  if (purgeable_heap_allocate(window->heap, BORN_PAGES * PAGE, &window->reference, &bytes) != 0) abort();
  window->bytes = bytes;
  fill_pattern(bytes, BORN_PAGES * PAGE, 1);
  if (window->seals && purgeable_stream_seal(window->heap, 0) != 0) abort();
  // Drains the batch of young pages; see above.
  (void)kernel_discard(bytes, BORN_PAGES * PAGE);
}

// An offer that has begun leaves out room that is allocated meanwhile, although nothing is locked at the moment of its claim;
// also where the slab is sealed meanwhile, and the same call offers the next one.
static void births_in_running_offers_of(case_report_t *report, bool seals) {
  MAKE_HEAP(heap, .slab_bytes = 64 * PAGE);
  element_t element, next;
  for (size_t i = 0; i < 10; i++) REQUIRE(make(heap, PAGE / 2, i, &element) == 0);
  // A slab of its own, right behind the open one.
  if (seals) REQUIRE(make(heap, 40 * PAGE, 10, &next) == 0 && next.bytes - element.bytes < 64 * (ptrdiff_t)PAGE);
  window_t window = {.heap = heap, .seals = seals};
  purgeable_testing_set_pause(give_birth, &window);
  EXPECT_EQUAL(purgeable_heap_offer_idle(heap, NULL), 0);
  purgeable_testing_set_pause(NULL, NULL);
  REQUIRE(window.done);
  EXPECT(heap_statistics(heap).memory.offered_bytes <= (seals ? 46 : 5) * PAGE);
  EXPECT_EQUAL(kernel_discard(window.bytes + PAGE, (BORN_PAGES - 2) * PAGE), 0);
  EXPECT(check_pattern(window.bytes, BORN_PAGES * PAGE, 1));
  EXPECT_EQUAL(purgeable_heap_commit(heap, window.reference), 0);
  EXPECT(is_intact(heap, &(element_t){window.reference, window.bytes, BORN_PAGES * PAGE, 1}));
  // What was left out has its first offer and its second, as all of a slab that is sealed.
  uint64_t begun = purgeable_testing_call_count(purgeable_testing_call_madvise_free);
  for (int round = 0; seals && round < 4; round++) EXPECT_EQUAL(purgeable_heap_offer_idle(heap, NULL), 0);
  if (seals) EXPECT_EQUAL(purgeable_testing_call_count(purgeable_testing_call_madvise_free) - begun, 3);
  END_HEAP(heap);
}

static void births_in_running_offers(case_report_t *report) {
  NEED_HOOKS();
  NEED_DISCARDS();
  births_in_running_offers_of(report, false);
  births_in_running_offers_of(report, true);
}

static void trim_now(void *context) {
  window_t *window = context;
  if (window->done) return;
  window->done = true;
  (void)purgeable_heap_trim(window->heap, NULL);
}

// A large element is in its stream's list before its writer has it: sealed, empty, and not to be given back.
static void trim_beside_large_birth(case_report_t *report) {
  NEED_HOOKS();
  MAKE_HEAP(heap, .slab_bytes = 4 * PAGE);
  window_t window = {.heap = heap};
  purgeable_testing_set_pause(trim_now, &window);
  element_t large, other;
  EXPECT_EQUAL(make(heap, 10 * PAGE, 1, &large), 0);
  purgeable_testing_set_pause(NULL, NULL);
  REQUIRE(window.done);
  EXPECT_EQUAL(make(heap, 10 * PAGE, 2, &other), 0);
  EXPECT(is_intact(heap, &large) && is_intact(heap, &other));
  EXPECT_EQUAL(heap_statistics(heap).slab_count, 2);
  EXPECT_EQUAL(purgeable_heap_free(heap, large.reference), 0);
  EXPECT_EQUAL(purgeable_heap_free(heap, other.reference), 0);
  EXPECT_EQUAL(purgeable_heap_held_bytes(heap), 0);
  END_HEAP(heap);
}

// MARK: Reads without lock beside everything

static void expect_books_closed(case_report_t *report, storm_t *storm) {
  storm_empty(storm);
  EXPECT_EQUAL(storm->wrong, 0);
  EXPECT_EQUAL(storm->failed, 0);
  purgeable_heap_statistics_t end = heap_statistics(storm->heap);
  EXPECT_EQUAL(end.memory.held_bytes + end.memory.locked_bytes + end.memory.payload_bytes, 0);
  EXPECT_EQUAL(end.slab_count + end.element_count, 0);
  EXPECT_EQUAL(purgeable_heap_held_bytes(storm->heap), 0);
  EXPECT_EQUAL(end.unbalanced_unlock_count, 0);
  NOTE("%llu reads (%llu of them discarded), %llu locks, %llu pages discarded, %llu moves, %llu slabs given back",
       (unsigned long long)storm->reads, (unsigned long long)storm->misses, (unsigned long long)storm->locks,
       (unsigned long long)storm->discards, (unsigned long long)end.moved_element_count,
       (unsigned long long)end.given_back_slab_count);
}

static void reads_beside_everything(case_report_t *report) {
  NEED_DISCARDS();
  storm_t storm;
  REQUIRE(storm_begin(&storm, report->seed, false));
  storm.span = report->is_full ? (span_t){.until_ms = now_ms() + 3000} : span_of(report, 20, 0);
  if (report->is_full && report->scale > 1) {
    storm.span.until_ms = now_ms() + 600000;
    storm.enough_reads = 10000000, storm.enough_discards = 1000000;
  }
  if (purgeable_testing_has_hooks()) purgeable_testing_slow_reads(report->seed % 2 ? 50 : 0);
  const storm_role_t roles[] = {storm_reader, storm_reader, storm_mutator, storm_discarder};
  storm_run(&storm, roles, 4);
  purgeable_testing_slow_reads(0);
  if (report->is_full) EXPECT(storm.reads > 1000 && storm.discards > 100);
  EXPECT(storm.reads >= storm.enough_reads && storm.discards >= storm.enough_discards);
  expect_books_closed(report, &storm);
  storm_end(&storm);
}

static void everything_at_random(case_report_t *report) {
  NEED_OFFERS();
  for (int compacts = 0; compacts < 2; compacts++) {
    storm_t storm;
    REQUIRE(storm_begin(&storm, report->seed, compacts != 0));
    storm.span = span_of(report, 20, 1500);
    const storm_role_t roles[] = {storm_anything, storm_anything, storm_anything, storm_anything};
    storm_run(&storm, roles, 4);
    expect_books_closed(report, &storm);
    storm_end(&storm);
  }
}

// Too many unlocks, at the same time, from two threads: an error, or another thread's lock is ended; nothing else breaks.
static void *unlock_too_often(void *context) {
  const element_t *element = ((void **)context)[0];
  purgeable_heap_t *heap = ((void **)context)[1];
  for (int round = 0; round < 20000; round++) {
    if (purgeable_heap_lock(heap, element->reference, NULL, NULL) != purgeable_outcome_intact) break;
    (void)purgeable_heap_unlock(heap, element->reference);
    (void)purgeable_heap_unlock(heap, element->reference);
  }
  return NULL;
}

static void unbalanced_unlocks(case_report_t *report) {
  MAKE_HEAP(heap, .slab_bytes = 4 * PAGE);
  element_t element;
  REQUIRE(make(heap, 100, 1, &element) == 0);
  void *contexts[2][2] = {{&element, heap}, {&element, heap}};
  run_threads(2, unlock_too_often, contexts, sizeof contexts[0]);
  purgeable_slab_information_t information;
  EXPECT_EQUAL(purgeable_slab_information(heap, slab_of(heap, &element), &information), 0);
  EXPECT_EQUAL(information.lock_count, 0);
  EXPECT(locks_intact(heap, &element));
  EXPECT_EQUAL(purgeable_heap_unlock(heap, element.reference), EPERM);
  END_HEAP(heap);
}

const test_case_t heap_storm_cases[] = {
    CASE("heap storm: locks that begin while a madvise runs are kept", locks_beside_offers),
    CASE("heap storm: without the wait they are lost", locks_need_the_wait),
    CASE("heap storm: writers beside offers and trims", writers_beside_upkeep),
    CASE("heap storm: births while an offer runs are left out of it", births_in_running_offers),
    CASE("heap storm: large births beside a trim", trim_beside_large_birth),
    CASE("heap storm: reads without lock beside everything", reads_beside_everything),
    CASE("heap storm: everything at random by four threads", everything_at_random),
    CASE("heap storm: unlocks too many break nothing else", unbalanced_unlocks),
    END_OF_CASES,
};
