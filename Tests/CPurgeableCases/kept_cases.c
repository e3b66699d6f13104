// SPDX-License-Identifier: MIT
// Slabs that are filled again without a wipe: which are, what that saves, how many are kept, and what gives them back.

#include "heap_cases.h"

#include <sched.h>
#include <sys/resource.h>

// A ring of slabs of four pages with two elements each: the oldest slab ends, and the next two elements are made.
enum { RING_SLABS = 64, RING = 2 * RING_SLABS };
#define RING_LENGTH (2 * PAGE - 64)

typedef struct ring {
  purgeable_heap_t *heap;
  element_t elements[RING];
  uint64_t made;
} ring_t;

// Makes elements until the ring is full, then slab by slab in place of the oldest.
static bool turn(ring_t *ring, size_t slabs) {
  for (size_t i = 0; i < 2 * slabs; i++) {
    element_t *element = &ring->elements[ring->made % RING];
    bool is_full = ring->made >= RING;
    if (is_full && i % 2 == 0) {
      if (purgeable_heap_free(ring->heap, element[0].reference) != 0) return false;
      if (purgeable_heap_free(ring->heap, element[1].reference) != 0) return false;
    }
    if (make(ring->heap, RING_LENGTH, ring->made + 1, element) != 0) return false;
    ring->made++;
  }
  return true;
}

static bool is_ring_intact(const ring_t *ring) {
  for (size_t i = 0; i < RING; i++) {
    if (!is_intact(ring->heap, &ring->elements[i])) return false;
  }
  return true;
}

static uint64_t wipe_count(void) { return purgeable_testing_call_count(purgeable_testing_call_madvise_dontneed); }

static uint64_t fault_count(void) {
  struct rusage usage;
  return getrusage(RUSAGE_SELF, &usage) == 0 ? (uint64_t)usage.ru_minflt : 0;
}

#define MAKE_RING(name, ...)                                                                          \
  MAKE_HEAP(name##_heap, .slab_bytes = 4 * PAGE __VA_ARGS__);                                         \
  ring_t name = {.heap = name##_heap};                                                                \
  REQUIRE(turn(&name, RING_SLABS))

// MARK: What it saves

static void ring_costs(case_report_t *report) {
  MAKE_RING(ring, );
  REQUIRE(turn(&ring, RING_SLABS));
  uint64_t wipes = wipe_count(), faults = fault_count();
  REQUIRE(turn(&ring, 4 * RING_SLABS));
  wipes = wipe_count() - wipes;
  faults = fault_count() - faults;
  EXPECT_EQUAL(wipes, 0);
  // The patterns' own memory aside, and what a sanitizer does.
  if (report->is_full && !HAS_SANITIZER) EXPECT(faults < RING_SLABS);
  EXPECT(is_ring_intact(&ring));
  NOTE("%d slabs of 4 pages filled again: %llu wipes, %llu faults", 4 * RING_SLABS, (unsigned long long)wipes,
       (unsigned long long)faults);
  // The same where each slab has been on offer, and the kernel took nothing.
  NEED_OFFERS();
  wipes = wipe_count();
  faults = fault_count();
  for (int i = 0; i < RING_SLABS; i++) {
    EXPECT_EQUAL(purgeable_heap_offer_idle(ring.heap, NULL), 0);
    // The upkeep gives back what is kept; nothing is kept between two turns.
    REQUIRE(turn(&ring, 1));
  }
  EXPECT_EQUAL(wipe_count() - wipes, 0);
  if (report->is_full && !HAS_SANITIZER) EXPECT(fault_count() - faults < RING_SLABS);
  EXPECT(is_ring_intact(&ring));
  END_HEAP(ring.heap);
}

// The same place again: old references are stale, the new element begins with zeros, and statistics are the kernel's.
static void fills_again(case_report_t *report) {
  MAKE_RING(ring, );
  element_t old[2] = {ring.elements[0], ring.elements[1]};
  uint64_t held = purgeable_heap_held_bytes(ring.heap), wipes = wipe_count();
  uint64_t resident = heap_statistics(ring.heap).memory.resident_bytes;
  EXPECT_EQUAL(purgeable_heap_free(ring.heap, old[0].reference), 0);
  EXPECT_EQUAL(purgeable_heap_free(ring.heap, old[1].reference), 0);
  // Kept: held and in memory, but not charged.
  EXPECT_VALID(ring.heap);
  EXPECT_EQUAL(purgeable_heap_held_bytes(ring.heap), held);
  EXPECT_EQUAL(heap_statistics(ring.heap).memory.held_bytes, held);
  EXPECT_EQUAL(heap_statistics(ring.heap).memory.resident_bytes, resident);
  EXPECT_EQUAL(purgeable_heap_charged_bytes(ring.heap), held - 4 * PAGE);
  EXPECT(is_stale(ring.heap, old[0].reference) && is_stale(ring.heap, old[1].reference));
  purgeable_reference_t reference;
  void *bytes;
  REQUIRE(purgeable_heap_allocate(ring.heap, RING_LENGTH, &reference, &bytes) == 0);
  EXPECT_EQUAL(reference.place, old[0].reference.place);
  EXPECT(reference.generation != old[0].reference.generation);
  for (size_t i = 0; i < RING_LENGTH; i++) {
    if (((const char *)bytes)[i] != 0) {
      EXPECT(((const char *)bytes)[i] == 0);
      break;
    }
  }
  EXPECT(is_stale(ring.heap, old[0].reference) && is_stale(ring.heap, old[1].reference));
  fill_pattern(bytes, RING_LENGTH, 7);
  EXPECT_EQUAL(purgeable_heap_commit(ring.heap, reference), 0);
  EXPECT(is_intact(ring.heap, &(element_t){reference, bytes, RING_LENGTH, 7}));
  EXPECT(is_stale(ring.heap, old[0].reference) && is_stale(ring.heap, old[1].reference));
  EXPECT_EQUAL(heap_statistics(ring.heap).memory.resident_bytes, resident);
  EXPECT_EQUAL(heap_statistics(ring.heap).memory.held_bytes, purgeable_heap_held_bytes(ring.heap));
  EXPECT_EQUAL(wipe_count(), wipes);
  // Sealed half full: the pages behind go back, so that what is held is what is there.
  EXPECT_EQUAL(purgeable_stream_seal(ring.heap, 0), 0);
  EXPECT_EQUAL(wipe_count(), wipes + 1);
  EXPECT_EQUAL(purgeable_heap_held_bytes(ring.heap), held - 2 * PAGE);
  EXPECT_EQUAL(heap_statistics(ring.heap).memory.resident_bytes, resident - 2 * PAGE);
  EXPECT(is_intact(ring.heap, &(element_t){reference, bytes, RING_LENGTH, 7}));
  END_HEAP(ring.heap);
}

// With `fills_whole` nothing is cleared for the next element, which stands all the same.
static void fills_whole(case_report_t *report) {
  MAKE_RING(ring, , .fills_whole = true);
  element_t old = ring.elements[0];
  REQUIRE(purgeable_heap_free(ring.heap, old.reference) == 0);
  REQUIRE(purgeable_heap_free(ring.heap, ring.elements[1].reference) == 0);
  purgeable_reference_t reference;
  void *bytes;
  REQUIRE(purgeable_heap_allocate(ring.heap, RING_LENGTH, &reference, &bytes) == 0);
  EXPECT_EQUAL(reference.place, old.reference.place);
  EXPECT(check_pattern(bytes, RING_LENGTH, old.number));
  EXPECT(is_stale(ring.heap, old.reference));
  fill_pattern(bytes, RING_LENGTH, 77);
  EXPECT_EQUAL(purgeable_heap_commit(ring.heap, reference), 0);
  EXPECT(is_intact(ring.heap, &(element_t){reference, bytes, RING_LENGTH, 77}));
  EXPECT(is_stale(ring.heap, old.reference));
  // A new slab begins with zeros.
  for (int i = 0; i < 3; i++) REQUIRE(purgeable_heap_allocate(ring.heap, RING_LENGTH, &reference, &bytes) == 0);
  size_t zeros = 0;
  while (zeros < RING_LENGTH && ((const char *)bytes)[zeros] == 0) zeros++;
  EXPECT_EQUAL(zeros, RING_LENGTH);
  EXPECT_EQUAL(purgeable_heap_commit(ring.heap, reference), 0);
  END_HEAP(ring.heap);
}

// MARK: Which are kept

// One that was on offer is, if each of its pages is still there; not if one is gone, noted or not, or tells nothing.
static void after_an_offer(case_report_t *report) {
  NEED_OFFERS();
  enum { NOTHING = 0, LOCKS, FIRST_PAGE, LAST_PAGE, SWEPT, ZEROS, WAYS };
  for (int way = NOTHING; way < WAYS; way++) {
    MAKE_RING(ring, );
    element_t *pair = &ring.elements[0];
    char *second = (char *)(((uintptr_t)pair[1].bytes + PAGE) & ~(uintptr_t)(PAGE - 1));
    if (way == ZEROS) {
      // The last element made is in the open slab: a whole page of zeros in it.
      REQUIRE(purgeable_heap_free(ring.heap, pair[0].reference) == 0 && purgeable_heap_free(ring.heap, pair[1].reference) == 0);
      for (int i = 0; i < 2; i++) {
        void *bytes;
        pair[i].length = RING_LENGTH;
        REQUIRE(purgeable_heap_allocate(ring.heap, RING_LENGTH, &pair[i].reference, &bytes) == 0);
        REQUIRE(purgeable_heap_commit(ring.heap, pair[i].reference) == 0);
      }
      REQUIRE(purgeable_stream_seal(ring.heap, 0) == 0);
    }
    EXPECT_EQUAL(purgeable_heap_offer_idle(ring.heap, NULL), 0);
    if (way == LOCKS) {
      for (int i = 0; i < 2; i++) {
        EXPECT_EQUAL(purgeable_heap_lock(ring.heap, pair[i].reference, NULL, NULL), purgeable_outcome_intact);
        EXPECT_EQUAL(purgeable_heap_unlock(ring.heap, pair[i].reference), 0);
      }
    }
    if (way == FIRST_PAGE) discard_exactly((void *)((uintptr_t)pair[0].bytes & ~(uintptr_t)(PAGE - 1)), PAGE);
    if (way == LAST_PAGE || way == SWEPT) discard_exactly(second, PAGE);
    if (way == SWEPT) EXPECT_EQUAL(purgeable_heap_sweep(ring.heap, NULL), 0);
    uint64_t wipes = wipe_count();
    REQUIRE(purgeable_heap_free(ring.heap, pair[0].reference) == 0);
    REQUIRE(purgeable_heap_free(ring.heap, pair[1].reference) == 0);
    bool is_kept = way == NOTHING || way == LOCKS;
    EXPECT_EQUAL(wipe_count() - wipes, !is_kept);
    EXPECT_EQUAL(purgeable_heap_held_bytes(ring.heap) - purgeable_heap_charged_bytes(ring.heap), is_kept ? 4 * PAGE : 0);
    EXPECT_VALID(ring.heap);
    // Kept or not, the next life begins with zeros, and stands when the kernel takes what is on offer.
    purgeable_reference_t reference;
    void *bytes;
    REQUIRE(purgeable_heap_allocate(ring.heap, RING_LENGTH, &reference, &bytes) == 0);
    size_t zeros = 0;
    while (zeros < RING_LENGTH && ((const char *)bytes)[zeros] == 0) zeros++;
    EXPECT_EQUAL(zeros, RING_LENGTH);
    fill_pattern(bytes, RING_LENGTH, 7);
    EXPECT_EQUAL(purgeable_heap_commit(ring.heap, reference), 0);
    const char *reason = NULL;
    if (kernel_discards(&reason)) (void)kernel_discard(second, PAGE);
    EXPECT(is_intact(ring.heap, &(element_t){reference, bytes, RING_LENGTH, 7}));
    END_HEAP(ring.heap);
  }
}

// Few, and fewer where the heap shrinks; none in a heap that ends.
static void how_many(case_report_t *report) {
  MAKE_RING(ring, );
  uint64_t held = purgeable_heap_held_bytes(ring.heap), most = 0;
  for (size_t i = 0; i < RING; i += 2) {
    REQUIRE(purgeable_heap_free(ring.heap, ring.elements[i].reference) == 0);
    REQUIRE(purgeable_heap_free(ring.heap, ring.elements[i + 1].reference) == 0);
    uint64_t kept = purgeable_heap_held_bytes(ring.heap) - purgeable_heap_charged_bytes(ring.heap);
    most = kept > most ? kept : most;
    EXPECT(kept <= held / 16);
    EXPECT_VALID(ring.heap);
  }
  EXPECT(most >= 2 * 4 * PAGE);
  // The last slab is still open.
  EXPECT_EQUAL(purgeable_stream_seal(ring.heap, 0), 0);
  EXPECT_EQUAL(purgeable_heap_held_bytes(ring.heap), 0);
  EXPECT_EQUAL(heap_statistics(ring.heap).memory.resident_bytes, 0);
  END_HEAP(ring.heap);
}

// Frees the oldest slabs of a full ring. Answers how many bytes are kept.
static uint64_t free_slabs(ring_t *ring, size_t slabs) {
  for (size_t i = 0; i < 2 * slabs; i++) (void)purgeable_heap_free(ring->heap, ring->elements[i].reference);
  return purgeable_heap_held_bytes(ring->heap) - purgeable_heap_charged_bytes(ring->heap);
}

typedef enum taker { by_upkeep, by_trim, by_bulk, by_page_out, by_limit, by_large, TAKERS } taker_t;

static void take_back(case_report_t *report, ring_t *ring, taker_t taker) {
  purgeable_heap_t *heap = ring->heap;
  size_t given = 0;
  element_t large;
  switch (taker) {
    case by_upkeep: EXPECT(purgeable_heap_has_pending(heap) && purgeable_heap_offer_idle(heap, NULL) == 0); break;
    case by_trim:
      EXPECT_EQUAL(purgeable_heap_trim(heap, &given), 0);
      EXPECT_EQUAL(given, 2 * 4 * PAGE);
      break;
    case by_bulk:
      purgeable_heap_begin_giving_back(heap);
      purgeable_heap_end_giving_back(heap);
      break;
    case by_page_out: EXPECT_EQUAL(purgeable_heap_page_out(heap, 0, NULL, NULL), 0); break;
    case by_limit:
      // Slightly lower than what was held, and too high to matter.
      EXPECT_EQUAL(purgeable_heap_set_byte_limit(heap, purgeable_heap_held_bytes(heap)), 0);
      EXPECT(purgeable_heap_held_bytes(heap) != purgeable_heap_charged_bytes(heap));
      EXPECT_EQUAL(purgeable_heap_set_byte_limit(heap, purgeable_heap_held_bytes(heap) - PAGE), 0);
      break;
    case by_large:
      // What is kept makes room where the limit would refuse, and the heap stays within the limit.
      EXPECT_EQUAL(purgeable_heap_set_byte_limit(heap, purgeable_heap_held_bytes(heap)), 0);
      EXPECT_EQUAL(make(heap, 7 * PAGE, 3, &large), 0);
      EXPECT(is_intact(heap, &large));
      break;
    case TAKERS: break;
  }
}

static void what_gives_back(case_report_t *report) {
  for (taker_t taker = by_upkeep; taker < TAKERS; taker++) {
    MAKE_RING(ring, );
    uint64_t limit = purgeable_heap_held_bytes(ring.heap);
    EXPECT_EQUAL(free_slabs(&ring, 2), 2 * 4 * PAGE);
    uint64_t given = purgeable_heap_given_back_bytes(ring.heap);
    take_back(report, &ring, taker);
    EXPECT_EQUAL(purgeable_heap_held_bytes(ring.heap), purgeable_heap_charged_bytes(ring.heap));
    EXPECT_EQUAL(purgeable_heap_given_back_bytes(ring.heap), given + 2 * 4 * PAGE);
    EXPECT(heap_statistics(ring.heap).memory.resident_bytes <= purgeable_heap_held_bytes(ring.heap));
    EXPECT(purgeable_heap_held_bytes(ring.heap) <= limit);
    END_HEAP(ring.heap);
  }
}

// Slabs that the kernel refuses to wipe are held until it takes their pages; nothing is written there before.
static void refused_wipes(case_report_t *report) {
  MAKE_RING(ring, );
  EXPECT_EQUAL(free_slabs(&ring, 2), 2 * 4 * PAGE);
  uint64_t held = purgeable_heap_held_bytes(ring.heap);
  purgeable_testing_fail(purgeable_testing_call_madvise_dontneed, 1, ENOMEM, true);
  EXPECT_EQUAL(purgeable_heap_trim(ring.heap, NULL), 0);
  EXPECT_EQUAL(purgeable_heap_held_bytes(ring.heap), held);
  EXPECT_VALID(ring.heap);
  purgeable_testing_fail(0, 0, 0, false);
  EXPECT_EQUAL(purgeable_heap_trim(ring.heap, NULL), 0);
  EXPECT_EQUAL(purgeable_heap_held_bytes(ring.heap), held - 2 * 4 * PAGE);
  // A tail that cannot be wiped: the slab is wiped when it ends.
  REQUIRE(purgeable_heap_free(ring.heap, ring.elements[4].reference) == 0);
  REQUIRE(purgeable_heap_free(ring.heap, ring.elements[5].reference) == 0);
  element_t element;
  REQUIRE(make(ring.heap, 100, 5, &element) == 0);
  purgeable_testing_fail(purgeable_testing_call_madvise_dontneed, 1, ENOMEM, false);
  EXPECT_EQUAL(purgeable_stream_seal(ring.heap, 0), 0);
  purgeable_testing_fail(0, 0, 0, false);
  uint64_t wipes = wipe_count();
  EXPECT_EQUAL(purgeable_heap_free(ring.heap, element.reference), 0);
  EXPECT_EQUAL(wipe_count(), wipes + 1);
  EXPECT(heap_statistics(ring.heap).memory.resident_bytes <= purgeable_heap_held_bytes(ring.heap));
  END_HEAP(ring.heap);
}

// A small element at the beginning of the ring's first slab, which ended and is filled again.
static bool begin_again(ring_t *ring, element_t *element) {
  (void)free_slabs(ring, 1);
  return make(ring->heap, 100, 5, element) == 0 && element->reference.place == ring->elements[0].reference.place;
}

// An idle fill in a slab that was filled before: the pages behind it go back.
static void idle_fill(case_report_t *report) {
  NEED_OFFERS();
  MAKE_RING(ring, );
  element_t element;
  REQUIRE(begin_again(&ring, &element));
  for (int i = 0; i < 4 && purgeable_heap_has_pending(ring.heap); i++) {
    EXPECT_EQUAL(purgeable_heap_offer_idle(ring.heap, NULL), 0);
  }
  purgeable_memory_use_t memory = heap_statistics(ring.heap).memory;
  EXPECT_EQUAL(memory.resident_bytes, memory.held_bytes);
  EXPECT_EQUAL(memory.offered_bytes, memory.held_bytes);
  EXPECT(is_intact(ring.heap, &element));
  END_HEAP(ring.heap);
}

// Whether an element of this length that is allocated now has zeros, however many earlier lives were there.
static bool begins_with_zeros(purgeable_heap_t *heap, size_t length) {
  purgeable_reference_t reference;
  void *bytes;
  if (purgeable_heap_allocate(heap, length, &reference, &bytes) != 0) return false;
  bool is_zeros = true;
  for (size_t i = 0; i < length && is_zeros; i++) is_zeros = ((const char *)bytes)[i] == 0;
  return purgeable_heap_free(heap, reference) == 0 && is_zeros;
}

// Where the kernel refuses to take those pages, they stay, and so does what is known of them.
static void idle_fill_refused(case_report_t *report) {
  NEED_OFFERS();
  MAKE_RING(ring, );
  element_t element;
  REQUIRE(begin_again(&ring, &element));
  // The upkeep notes where the fill is, and finds it there again.
  EXPECT_EQUAL(purgeable_heap_offer_idle(ring.heap, NULL), 0);
  purgeable_testing_fail(purgeable_testing_call_madvise_dontneed, 1, ENOMEM, true);
  EXPECT_EQUAL(purgeable_heap_offer_idle(ring.heap, NULL), 0);
  EXPECT(purgeable_testing_has_failed());
  purgeable_testing_fail(0, 0, 0, false);
  purgeable_memory_use_t memory = heap_statistics(ring.heap).memory;
  EXPECT_EQUAL(memory.resident_bytes, memory.held_bytes);
  // Elements that follow in that slab begin with zeros.
  EXPECT(begins_with_zeros(ring.heap, PAGE / 2));
  EXPECT(begins_with_zeros(ring.heap, PAGE));
  // The upkeep tries again.
  EXPECT(purgeable_heap_has_pending(ring.heap));
  uint64_t wipes = wipe_count();
  EXPECT_EQUAL(purgeable_heap_offer_idle(ring.heap, NULL), 0);
  EXPECT_EQUAL(purgeable_heap_offer_idle(ring.heap, NULL), 0);
  EXPECT_EQUAL(wipe_count(), wipes + 1);
  memory = heap_statistics(ring.heap).memory;
  EXPECT_EQUAL(memory.resident_bytes, memory.held_bytes);
  EXPECT(begins_with_zeros(ring.heap, PAGE / 2));
  EXPECT(is_intact(ring.heap, &element));
  EXPECT_VALID(ring.heap);
  END_HEAP(ring.heap);
}

// MARK: Beside an upkeep

typedef struct beside {
  purgeable_heap_t *heap;
  _Atomic bool is_at_work, are_ended;
} beside_t;

// An upkeep whenever there is something to do, as a host calls it.
static void *keep_up(void *context) {
  beside_t *beside = context;
  atomic_store(&beside->is_at_work, true);
  for (bool is_over = false; !is_over;) {
    is_over = atomic_load(&beside->are_ended);
    for (int i = 0; i < 16 && purgeable_heap_has_pending(beside->heap); i++) (void)purgeable_heap_offer_idle(beside->heap, NULL);
  }
  return NULL;
}

// A slab that ends while an upkeep is at work goes with that one, or the heap says that there is work for the next one.
static void beside_an_upkeep(case_report_t *report) {
  MAKE_RING(ring, , .offering = purgeable_offering_never);
  uint64_t random = report->seed, trials = 400 * report->scale, left = 0;
  for (uint64_t trial = 0; trial < trials; trial++) {
    beside_t beside = {.heap = ring.heap};
    pthread_t thread;
    REQUIRE(pthread_create(&thread, NULL, keep_up, &beside) == 0);
    while (!atomic_load(&beside.is_at_work)) (void)sched_yield();
    // The ring begins with its oldest element. The first slab's end wakes the upkeep, the second one's comes while it is busy.
    element_t *oldest = &ring.elements[ring.made % RING];
    for (size_t i = 0; i < 4; i++) {
      if (i == 2) {
        for (uint64_t spins = next_random(&random) % 4096; spins > 0; spins--) atomic_signal_fence(memory_order_seq_cst);
      }
      EXPECT_EQUAL(purgeable_heap_free(ring.heap, oldest[i].reference), 0);
    }
    atomic_store(&beside.are_ended, true);
    (void)pthread_join(thread, NULL);
    EXPECT(!purgeable_heap_has_pending(ring.heap));
    left += purgeable_heap_held_bytes(ring.heap) != purgeable_heap_charged_bytes(ring.heap);
    for (size_t i = 0; i < 4; i++, ring.made++) REQUIRE(make(ring.heap, RING_LENGTH, ring.made + 1, &oldest[i]) == 0);
  }
  EXPECT_EQUAL(left, 0);
  EXPECT(is_ring_intact(&ring));
  END_HEAP(ring.heap);
}

// MARK: A forked child

static bool in_child(ring_t *ring) {
  // The first call in the child: the limit that gives kept slabs back.
  CHECK(purgeable_heap_set_byte_limit(ring->heap, 64 * PAGE) == 0);
  CHECK(purgeable_heap_set_byte_limit(ring->heap, 0) == 0);
  CHECK(purgeable_testing_heap_is_valid(ring->heap, NULL) || purgeable_heap_offer_idle(ring->heap, NULL) == 0);
  CHECK(is_stale(ring->heap, ring->elements[4].reference));
  purgeable_reference_t reference;
  void *bytes;
  CHECK(purgeable_heap_allocate(ring->heap, RING_LENGTH, &reference, &bytes) == 0);
  for (size_t i = 0; i < RING_LENGTH; i++) CHECK(((const char *)bytes)[i] == 0);
  CHECK(purgeable_heap_free(ring->heap, reference) == 0);
  ring->made = 0;
  CHECK(turn(ring, RING_SLABS) && is_ring_intact(ring) && turn(ring, RING_SLABS) && is_ring_intact(ring));
  CHECK(purgeable_testing_heap_is_valid(ring->heap, NULL));
  return purgeable_heap_destroy(ring->heap) == 0;
}

static void forks(case_report_t *report) {
  MAKE_RING(ring, );
  EXPECT_EQUAL(free_slabs(&ring, 2), 2 * 4 * PAGE);
  pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) _exit(in_child(&ring) ? 0 : 1);
  EXPECT_EQUAL(wait_for_child(child), 0);
  EXPECT_EQUAL(purgeable_heap_held_bytes(ring.heap) - purgeable_heap_charged_bytes(ring.heap), 2 * 4 * PAGE);
  END_HEAP(ring.heap);
}

const test_case_t kept_cases[] = {
    CASE("kept: a ring of slabs that are not offered costs no wipe and no fault", ring_costs),
    CASE("kept: a slab is filled again as it is, with zeros first and under a new generation", fills_again),
    CASE("kept: with fills_whole a slab is filled again with nothing cleared", fills_whole),
    CASE("kept: a slab that was on offer is kept if all of its pages can be rescued, and wiped if not", after_an_offer),
    CASE("kept: few, and fewer as the heap shrinks", how_many),
    CASE("kept: upkeep, trims, bulk, page_out and limits give them back", what_gives_back),
    CASE("kept: a refused wipe keeps the slab out of use", refused_wipes),
    CASE("kept: pages behind an idle fill go back", idle_fill),
    CASE("kept: where those pages cannot go back, elements begin with zeros and the upkeep tries again", idle_fill_refused),
    CASE("kept: what ends beside an upkeep goes with it or with the next one", beside_an_upkeep),
    CASE("kept: a forked child fills none of them as it was", forks),
    END_OF_CASES,
};
