// SPDX-License-Identifier: MIT
// Budgets: the limits of locked bytes, of a heap and of all regions together; and the count of bytes given back.

#include "heap_cases.h"

static bool lock_is_refused(purgeable_heap_t *heap, const element_t *element) {
  errno = 0;
  return purgeable_heap_lock(heap, element->reference, NULL, NULL) == purgeable_outcome_error && errno == EAGAIN;
}

static bool locks(purgeable_heap_t *heap, const element_t *element) {
  return purgeable_heap_lock(heap, element->reference, NULL, NULL) == purgeable_outcome_intact;
}

// A lock above the limit is refused, and leaves no trace; reads still work; an unlock makes room; the limit can change.
static void locked_limit_of_a_heap(case_report_t *report) {
  NEED_OFFERS();
  enum { COUNT = 10, LENGTH = 1000 };
  element_t elements[COUNT];
  MAKE_HEAP(heap, .slab_bytes = 16 * PAGE, .locked_byte_limit = 3 * LENGTH);
  for (size_t i = 0; i < COUNT; i++) REQUIRE(make(heap, LENGTH, i, &elements[i]) == 0);
  EXPECT_EQUAL(purgeable_stream_seal(heap, 0), 0);
  EXPECT_EQUAL(offer_all(heap), 0);
  for (size_t i = 0; i < 3; i++) EXPECT(locks(heap, &elements[i]));
  uint64_t offered = heap_statistics(heap).memory.offered_bytes;
  for (size_t i = 0; i < COUNT; i++) {
    EXPECT(lock_is_refused(heap, &elements[i]));
    EXPECT(is_intact(heap, &elements[i]));
  }
  purgeable_heap_statistics_t numbers = heap_statistics(heap);
  EXPECT_EQUAL(numbers.memory.locked_bytes, 3 * LENGTH);
  EXPECT_EQUAL(numbers.memory.refused_lock_count, COUNT);
  // A refused lock has rescued nothing.
  EXPECT_EQUAL(numbers.memory.offered_bytes, offered);
  // Each lock of the same element counts. Room made by an unlock can be used at once.
  EXPECT_EQUAL(purgeable_heap_unlock(heap, elements[0].reference), 0);
  EXPECT(locks(heap, &elements[1]));
  EXPECT(lock_is_refused(heap, &elements[0]));
  // An element that is being written does not count as locked.
  element_t written;
  EXPECT_EQUAL(make(heap, 5 * LENGTH, COUNT, &written), 0);
  EXPECT_EQUAL(purgeable_heap_set_locked_byte_limit(heap, LENGTH), 0);
  EXPECT(lock_is_refused(heap, &elements[0]));
  EXPECT_EQUAL(purgeable_heap_set_locked_byte_limit(heap, 0), 0);
  for (size_t i = 0; i < COUNT; i++) EXPECT(locks(heap, &elements[i]));
  for (size_t i = 0; i < COUNT; i++) EXPECT_EQUAL(purgeable_heap_unlock(heap, elements[i].reference), 0);
  EXPECT_EQUAL(purgeable_heap_unlock(heap, elements[1].reference), 0);
  EXPECT_EQUAL(purgeable_heap_unlock(heap, elements[1].reference), 0);
  EXPECT_EQUAL(purgeable_heap_unlock(heap, elements[2].reference), 0);
  EXPECT_EQUAL(heap_statistics(heap).memory.locked_bytes, 0);
  // A discarded element books nothing, and says discarded also where the limit is full.
  EXPECT_EQUAL(purgeable_heap_set_locked_byte_limit(heap, 1), 0);
  EXPECT_EQUAL(offer_all(heap), 0);
  discard_exactly(elements[0].bytes, 1);
  EXPECT_EQUAL(purgeable_heap_lock(heap, elements[0].reference, NULL, NULL), purgeable_outcome_discarded);
  EXPECT_EQUAL(heap_statistics(heap).memory.locked_bytes, 0);
  EXPECT_EQUAL(purgeable_heap_set_locked_byte_limit(NULL, 1), EINVAL);
  // Bytes given back count whole pages of written elements.
  uint64_t held = heap_statistics(heap).memory.held_bytes;
  for (size_t i = 0; i < COUNT; i++) EXPECT_EQUAL(purgeable_heap_free(heap, elements[i].reference), 0);
  EXPECT_EQUAL(purgeable_heap_free(heap, written.reference), 0);
  EXPECT_EQUAL(purgeable_stream_seal(heap, 0), 0);
  EXPECT_EQUAL(purgeable_heap_trim(heap, NULL), 0);
  numbers = heap_statistics(heap);
  EXPECT_EQUAL(numbers.memory.held_bytes, 0);
  EXPECT_EQUAL(numbers.memory.given_back_bytes, held);
  END_HEAP(heap);
}

static void locked_limit_of_regions(case_report_t *report) {
  enum { COUNT = 4 };
  const size_t length = 8 * PAGE;
  purgeable_region_t *regions[COUNT];
  for (size_t i = 0; i < COUNT; i++) {
    REQUIRE(purgeable_region_create(length, NULL, &regions[i]) == 0);
    fill_pattern(purgeable_region_bytes(regions[i]), length, i);
    EXPECT_EQUAL(purgeable_region_unlock(regions[i]), 0);
  }
  purgeable_region_statistics_t before, after;
  EXPECT_EQUAL(purgeable_region_statistics(&before), 0);
  purgeable_region_set_locked_byte_limit(before.memory.locked_bytes + 2 * length);
  for (size_t i = 0; i < 2; i++) EXPECT_EQUAL(purgeable_region_lock(regions[i]), purgeable_outcome_intact);
  // A second lock of a locked region adds nothing to the locked bytes.
  EXPECT_EQUAL(purgeable_region_lock(regions[0]), purgeable_outcome_intact);
  errno = 0;
  EXPECT_EQUAL(purgeable_region_lock(regions[2]), purgeable_outcome_error);
  EXPECT_EQUAL(errno, EAGAIN);
  EXPECT_EQUAL(purgeable_region_try_lock(regions[3]), purgeable_outcome_error);
  EXPECT_EQUAL(purgeable_region_lock_count(regions[2]), 0);
  char byte;
  EXPECT_EQUAL(purgeable_region_read(regions[2], 0, 1, &byte), purgeable_outcome_intact);
  EXPECT_EQUAL(purgeable_region_unlock(regions[1]), 0);
  EXPECT_EQUAL(purgeable_region_lock_for_writing(regions[2]), purgeable_outcome_intact);
  EXPECT_EQUAL(purgeable_region_statistics(&after), 0);
  EXPECT_EQUAL(after.memory.refused_lock_count - before.memory.refused_lock_count, 2);
  EXPECT_EQUAL(after.memory.locked_bytes - before.memory.locked_bytes, 2 * length);
  purgeable_region_set_locked_byte_limit(0);
  EXPECT_EQUAL(purgeable_region_lock(regions[3]), purgeable_outcome_intact);
  EXPECT_EQUAL(purgeable_region_unlock(regions[3]), 0);
  EXPECT_EQUAL(purgeable_region_discard(regions[3]), 0);
  EXPECT_EQUAL(purgeable_region_statistics(&after), 0);
  EXPECT_EQUAL(after.memory.given_back_bytes - before.memory.given_back_bytes, length);
  for (size_t i = 0; i < COUNT; i++) EXPECT_EQUAL(purgeable_region_destroy(regions[i]), 0);
}

const test_case_t budget_cases[] = {
    CASE("budget: what may be locked in a heap", locked_limit_of_a_heap),
    CASE("budget: what may be locked of regions", locked_limit_of_regions),
    END_OF_CASES,
};
