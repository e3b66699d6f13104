// SPDX-License-Identifier: MIT
// Streams, second part: giving slabs back, one by one and in numbers.

#include "heap_cases.h"

// Slabs that are given back in numbers are wiped together; what the kernel refuses stays held, and is wiped later.
void stream_giving_back_many(case_report_t *report) {
  enum { SLABS = 40 };
  MAKE_HEAP(heap, .slab_bytes = 4 * PAGE);
  element_t elements[SLABS];
  purgeable_slab_t slabs[SLABS];
  for (int refuses = 0; refuses <= 1; refuses++) {
    for (size_t i = 0; i < SLABS; i++) {
      // One fills its slab.
      REQUIRE(make(heap, 3 * PAGE, (unsigned)i + 1, &elements[i]) == 0);
      slabs[i] = slab_of(heap, &elements[i]);
    }
    uint64_t held = heap_statistics(heap).held_bytes, given = purgeable_heap_given_back_bytes(heap);
    uint64_t resident = heap_statistics(heap).resident_bytes;
    uint64_t calls = purgeable_testing_call_count(purgeable_testing_call_madvise_dontneed);
    purgeable_heap_begin_giving_back(heap);
    for (size_t i = 0; i < SLABS; i++) EXPECT_EQUAL(purgeable_slab_free_elements(heap, slabs[i], NULL), 0);
    // Given back as far as the books go, but still there.
    uint64_t gone = held - purgeable_heap_held_bytes(heap);
    EXPECT(gone >= SLABS * 3 * PAGE);
    EXPECT_EQUAL(purgeable_heap_given_back_bytes(heap), given + gone);
    EXPECT_EQUAL(heap_statistics(heap).resident_bytes, resident);
    EXPECT_EQUAL(purgeable_testing_call_count(purgeable_testing_call_madvise_dontneed), calls);
    EXPECT_EQUAL(purgeable_heap_length(heap, elements[0].reference, &(size_t){0}), purgeable_outcome_error);
    // What is born now lies elsewhere.
    element_t young;
    REQUIRE(make(heap, 3 * PAGE, 99, &young) == 0);
    if (refuses != 0) purgeable_testing_fail(purgeable_testing_call_madvise_dontneed, 1, ENOMEM, true);
    purgeable_heap_end_giving_back(heap);
    purgeable_testing_fail(0, 0, 0, false);
    if (refuses != 0) {
      EXPECT_EQUAL(purgeable_heap_given_back_bytes(heap), given);
      EXPECT(purgeable_heap_held_bytes(heap) >= held);
      EXPECT_EQUAL(purgeable_heap_trim(heap, NULL), 0);
    }
    EXPECT(purgeable_heap_given_back_bytes(heap) >= given + gone);
    EXPECT(heap_statistics(heap).resident_bytes + gone <= resident + 4 * PAGE);
    // Far fewer calls than slabs; without a refusal, where each is wiped alone.
    if (refuses == 0) {
      EXPECT(purgeable_testing_call_count(purgeable_testing_call_madvise_dontneed) - calls <= SLABS / 4);
    }
    EXPECT(is_intact(heap, &young));
    EXPECT_EQUAL(purgeable_heap_free(heap, young.reference), 0);
  }
  purgeable_heap_begin_giving_back(NULL);
  purgeable_heap_end_giving_back(NULL);
  // One end too many is none.
  purgeable_heap_end_giving_back(heap);
  END_HEAP(heap);
}

void stream_giving_back(case_report_t *report) {
  MAKE_HEAP(heap, .slab_bytes = 4 * PAGE);
  element_t one, two;
  REQUIRE(make(heap, 100, 1, &one) == 0 && make(heap, 100, 2, &two) == 0);
  purgeable_slab_t slab = slab_of(heap, &one);
  EXPECT_EQUAL(purgeable_slab_give_back(heap, slab), EBUSY);
  EXPECT_EQUAL(purgeable_heap_free(heap, one.reference), 0);
  EXPECT_EQUAL(purgeable_heap_lock(heap, two.reference, NULL, NULL), purgeable_outcome_intact);
  EXPECT_EQUAL(purgeable_heap_free(heap, two.reference), 0);
  EXPECT_EQUAL(purgeable_slab_give_back(heap, slab), 0);
  EXPECT(check_pattern(two.bytes, 100, 2));
  uint64_t given = heap_statistics(heap).given_back_count;
  EXPECT_EQUAL(purgeable_heap_unlock(heap, two.reference), 0);
  EXPECT_EQUAL(heap_statistics(heap).given_back_count, given + 1);
  EXPECT_EQUAL(purgeable_slab_give_back(heap, slab), ESTALE);
  // All at once: those that are locked stay readable until the unlock, and one that is being written is not touched.
  REQUIRE(make(heap, 100, 4, &one) == 0 && make(heap, 100, 5, &two) == 0);
  uint64_t payload = heap_statistics(heap).payload_bytes;
  purgeable_reference_t reference;
  void *bytes;
  REQUIRE(purgeable_heap_allocate(heap, 100, &reference, &bytes) == 0);
  slab = slab_of(heap, &one);
  EXPECT_EQUAL(purgeable_heap_lock(heap, two.reference, NULL, NULL), purgeable_outcome_intact);
  uint32_t freed = 0;
  EXPECT_EQUAL(purgeable_slab_free_elements(NULL, slab, &freed), EINVAL);
  EXPECT_EQUAL(purgeable_slab_free_elements(heap, slab, &freed), 0);
  EXPECT_EQUAL(freed, 2);
  EXPECT_EQUAL(heap_statistics(heap).payload_bytes, payload - 200);
  EXPECT_EQUAL(heap_statistics(heap).element_count, 0);
  EXPECT(check_pattern(two.bytes, 100, 5));
  EXPECT_EQUAL(purgeable_heap_free(heap, one.reference), ESTALE);
  EXPECT_EQUAL(purgeable_slab_free_elements(heap, slab, &freed), 0);
  EXPECT_EQUAL(freed, 0);
  fill_pattern(bytes, 100, 6);
  EXPECT_EQUAL(purgeable_heap_commit(heap, reference), 0);
  given = heap_statistics(heap).given_back_count;
  EXPECT_EQUAL(purgeable_heap_unlock(heap, two.reference), 0);
  EXPECT(is_intact(heap, &(element_t){reference, bytes, 100, 6}));
  EXPECT_EQUAL(purgeable_slab_free_elements(heap, slab, NULL), 0);
  EXPECT_EQUAL(heap_statistics(heap).given_back_count, given + 1);
  EXPECT_EQUAL(heap_statistics(heap).payload_bytes, payload - 200);
  EXPECT_EQUAL(purgeable_slab_free_elements(heap, slab, NULL), ESTALE);
  // One that is being written holds the slab too.
  REQUIRE(purgeable_heap_allocate(heap, 100, &reference, &bytes) == 0 && purgeable_slab_of(heap, reference, &slab) == 0);
  EXPECT_EQUAL(purgeable_slab_give_back(heap, slab), 0);
  fill_pattern(bytes, 100, 3);
  EXPECT_EQUAL(purgeable_heap_commit(heap, reference), 0);
  EXPECT(is_intact(heap, &(element_t){reference, bytes, 100, 3}));
  EXPECT_EQUAL(purgeable_heap_free(heap, reference), 0);
  EXPECT_EQUAL(heap_statistics(heap).held_bytes, 0);
  EXPECT_EQUAL(heap_statistics(heap).resident_bytes, 0);
  END_HEAP(heap);
}
