// SPDX-License-Identifier: MIT
// Streams, second part: giving slabs back, one by one and in bulk.

#include "heap_cases.h"

// Slabs that are given back in bulk are wiped together; slabs that the kernel refuses to wipe stay held, and are wiped later.
void stream_giving_back_many(case_report_t *report) {
  enum { SLABS = 40 };
  MAKE_HEAP(heap, .slab_bytes = 4 * PAGE);
  element_t elements[SLABS];
  purgeable_slab_t slabs[SLABS];
  for (int refuses = 0; refuses <= 1; refuses++) {
    for (size_t i = 0; i < SLABS; i++) {
      // One element fills its slab.
      REQUIRE(make(heap, 3 * PAGE, (unsigned)i + 1, &elements[i]) == 0);
      slabs[i] = slab_of(heap, &elements[i]);
    }
    uint64_t held = heap_statistics(heap).memory.held_bytes, given = purgeable_heap_given_back_bytes(heap);
    uint64_t resident = heap_statistics(heap).memory.resident_bytes;
    uint64_t calls = purgeable_testing_call_count(purgeable_testing_call_madvise_dontneed);
    purgeable_heap_begin_giving_back(heap);
    for (size_t i = 0; i < SLABS; i++) EXPECT_EQUAL(purgeable_slab_free_elements(heap, slabs[i], NULL), 0);
    // Given back according to the books, but still in memory.
    uint64_t gone = held - purgeable_heap_held_bytes(heap);
    EXPECT(gone >= SLABS * 3 * PAGE);
    EXPECT_EQUAL(purgeable_heap_given_back_bytes(heap), given + gone);
    EXPECT_EQUAL(heap_statistics(heap).memory.resident_bytes, resident);
    EXPECT_EQUAL(purgeable_testing_call_count(purgeable_testing_call_madvise_dontneed), calls);
    EXPECT_EQUAL(purgeable_heap_length_bytes(heap, elements[0].reference, &(size_t){0}), purgeable_outcome_error);
    // New elements get other places.
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
    EXPECT(heap_statistics(heap).memory.resident_bytes + gone <= resident + 4 * PAGE);
    // Far fewer calls than slabs; without a refusal, where each is wiped alone.
    if (refuses == 0) {
      EXPECT(purgeable_testing_call_count(purgeable_testing_call_madvise_dontneed) - calls <= SLABS / 4);
    }
    EXPECT(is_intact(heap, &young));
    EXPECT_EQUAL(purgeable_heap_free(heap, young.reference), 0);
  }
  purgeable_heap_begin_giving_back(NULL);
  purgeable_heap_end_giving_back(NULL);
  // A surplus call of end does nothing.
  purgeable_heap_end_giving_back(heap);
  END_HEAP(heap);
}

// With `defers_wipes` an element's free makes no system call. The slab's memory goes with the call for it, with the next slab
// that begins, or with the upkeep; in a bulk give-back at its end.
void stream_deferred_wipes(case_report_t *report) {
  enum { SLABS = 6, BY_CALL = 0, BY_ALLOCATION, BY_UPKEEP, BY_END_OF_BULK, WAYS };
  MAKE_HEAP(heap, .slab_bytes = 4 * PAGE, .offering = purgeable_offering_never, .defers_wipes = true);
  for (int way = BY_CALL; way < WAYS; way++) {
    element_t elements[SLABS + 2];
    for (size_t i = 0; i < SLABS; i++) REQUIRE(make(heap, 3 * PAGE, (unsigned)i + 1, &elements[i]) == 0);
    uint64_t held = purgeable_heap_held_bytes(heap), resident = heap_statistics(heap).memory.resident_bytes;
    uint64_t calls = purgeable_testing_call_count(purgeable_testing_call_madvise_dontneed);
    if (way == BY_END_OF_BULK) purgeable_heap_begin_giving_back(heap);
    // The last one's slab is open.
    for (size_t i = 0; i + 1 < SLABS; i++) EXPECT_EQUAL(purgeable_heap_free(heap, elements[i].reference), 0);
    EXPECT(purgeable_heap_held_bytes(heap) + (SLABS - 1) * 3 * PAGE <= held);
    EXPECT_EQUAL(heap_statistics(heap).memory.resident_bytes, resident);
    EXPECT_EQUAL(purgeable_testing_call_count(purgeable_testing_call_madvise_dontneed), calls);
    EXPECT(purgeable_heap_has_pending(heap));
    switch (way) {
      case BY_CALL: purgeable_heap_wipe_deferred(heap); break;
      case BY_ALLOCATION: REQUIRE(make(heap, 3 * PAGE, 77, &elements[SLABS]) == 0); break;
      case BY_UPKEEP: EXPECT_EQUAL(purgeable_heap_offer_idle(heap, NULL), 0); break;
      default:
        purgeable_heap_wipe_deferred(heap);
        EXPECT_EQUAL(heap_statistics(heap).memory.resident_bytes, resident);
        purgeable_heap_end_giving_back(heap);
    }
    EXPECT(purgeable_testing_call_count(purgeable_testing_call_madvise_dontneed) > calls);
    uint64_t young = way == BY_ALLOCATION ? 4 * PAGE : 0;
    EXPECT(heap_statistics(heap).memory.resident_bytes + (SLABS - 1) * 3 * PAGE <= resident + young);
    EXPECT(is_intact(heap, &elements[SLABS - 1]));
    if (way == BY_ALLOCATION) EXPECT_EQUAL(purgeable_heap_free(heap, elements[SLABS].reference), 0);
    EXPECT_EQUAL(purgeable_heap_free(heap, elements[SLABS - 1].reference), 0);
  }
  purgeable_heap_wipe_deferred(NULL);
  END_HEAP(heap);
}

// Deferred wipes that the kernel refuses: each slab stays held and is tried again, in bounded work; none is deferred twice.
void stream_refused_deferred_wipes(case_report_t *report) {
  enum { SLABS = 200 };
  MAKE_HEAP(heap, .slab_bytes = 4 * PAGE, .offering = purgeable_offering_never, .defers_wipes = true);
  element_t elements[SLABS + 1];
  for (size_t i = 0; i < SLABS + 1; i++) REQUIRE(make(heap, 3 * PAGE, (unsigned)i + 1, &elements[i]) == 0);
  uint64_t held = purgeable_heap_held_bytes(heap), given = purgeable_heap_given_back_bytes(heap);
  uint64_t calls = purgeable_testing_call_count(purgeable_testing_call_madvise_dontneed);
  purgeable_testing_fail(purgeable_testing_call_madvise_dontneed, 1, ENOMEM, true);
  for (size_t i = 0; i < SLABS; i++) EXPECT_EQUAL(purgeable_heap_free(heap, elements[i].reference), 0);
  purgeable_heap_wipe_deferred(heap);
  purgeable_heap_wipe_deferred(heap);
  purgeable_testing_fail(0, 0, 0, false);
  // Each round tries what was refused before, once.
  EXPECT(purgeable_testing_call_count(purgeable_testing_call_madvise_dontneed) - calls <= SLABS * (SLABS / 16 + 3));
  EXPECT_EQUAL(purgeable_heap_given_back_bytes(heap), given);
  EXPECT_EQUAL(purgeable_heap_held_bytes(heap), held);
  EXPECT(is_intact(heap, &elements[SLABS]));
  purgeable_heap_wipe_deferred(heap);
  EXPECT(purgeable_heap_given_back_bytes(heap) >= given + SLABS * 3 * PAGE);
  EXPECT(heap_statistics(heap).memory.resident_bytes <= 8 * PAGE);
  EXPECT(is_intact(heap, &elements[SLABS]));
  // What was wiped is used again.
  for (size_t i = 0; i < SLABS; i++) REQUIRE(make(heap, 3 * PAGE, (unsigned)i + 300, &elements[i]) == 0);
  for (size_t i = 0; i < SLABS + 1; i++) EXPECT(is_intact(heap, &elements[i]));
  END_HEAP(heap);
}

static bool take_moved(void *context, purgeable_reference_t from, purgeable_reference_t to, uint64_t tag, const void *bytes,
                       size_t length) {
  element_t *element = (element_t *)context + tag;
  if (element->reference.place != from.place || element->reference.generation != from.generation) return false;
  *element = (element_t){.reference = to, .bytes = (char *)(uintptr_t)bytes, .length = length, .number = tag};
  return true;
}

// A trim that empties slabs gives their memory back before it returns, with `defers_wipes` too.
void stream_trimmed_deferred_wipes(case_report_t *report) {
  enum { SLABS = 8, EACH = 4, ALL = SLABS * EACH };
  static element_t elements[ALL];
  MAKE_HEAP(heap, .slab_bytes = 4 * PAGE, .keeps_tags = true, .moved = take_moved, .context = elements,
            .defers_compaction = true, .defers_wipes = true);
  // One element to a page, and one of four is left alive in each slab.
  for (size_t i = 0; i < ALL; i++) REQUIRE(make(heap, PAGE / 4 * 3, i, &elements[i]) == 0);
  EXPECT_EQUAL(purgeable_stream_seal(heap, 0), 0);
  for (size_t i = 0; i < ALL; i++) {
    if (i % EACH != 0) EXPECT_EQUAL(purgeable_heap_free(heap, elements[i].reference), 0);
  }
  size_t given = 0;
  uint64_t resident = heap_statistics(heap).memory.resident_bytes;
  EXPECT_EQUAL(purgeable_heap_trim(heap, &given), 0);
  EXPECT(given >= 4 * 4 * PAGE);
  EXPECT(heap_statistics(heap).memory.resident_bytes + given <= resident);
  // Nothing is left for others to wipe.
  uint64_t calls = purgeable_testing_call_count(purgeable_testing_call_madvise_dontneed);
  purgeable_heap_wipe_deferred(heap);
  EXPECT_EQUAL(purgeable_testing_call_count(purgeable_testing_call_madvise_dontneed), calls);
  for (size_t i = 0; i < ALL; i += EACH) EXPECT(is_intact(heap, &elements[i]));
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
  uint64_t given = heap_statistics(heap).given_back_slab_count;
  EXPECT_EQUAL(purgeable_heap_unlock(heap, two.reference), 0);
  EXPECT_EQUAL(heap_statistics(heap).given_back_slab_count, given + 1);
  EXPECT_EQUAL(purgeable_slab_give_back(heap, slab), ESTALE);
  // An open slab without living elements is given back as any other.
  uint32_t freed = 7;
  REQUIRE(make(heap, 100, 3, &one) == 0);
  slab = slab_of(heap, &one);
  EXPECT_EQUAL(purgeable_heap_free(heap, one.reference), 0);
  EXPECT_EQUAL(purgeable_slab_free_elements(heap, slab, &freed), 0);
  EXPECT_EQUAL(freed, 0);
  EXPECT_EQUAL(purgeable_slab_free_elements(heap, slab, &freed), ESTALE);
  EXPECT_EQUAL(heap_statistics(heap).slab_count, 0);
  // All elements are freed at once: locked ones stay readable until the unlock, and one that is being written is not touched.
  REQUIRE(make(heap, 100, 4, &one) == 0 && make(heap, 100, 5, &two) == 0);
  uint64_t payload = heap_statistics(heap).memory.payload_bytes;
  purgeable_reference_t reference;
  void *bytes;
  REQUIRE(purgeable_heap_allocate(heap, 100, &reference, &bytes) == 0);
  slab = slab_of(heap, &one);
  EXPECT_EQUAL(purgeable_heap_lock(heap, two.reference, NULL, NULL), purgeable_outcome_intact);
  EXPECT_EQUAL(purgeable_slab_free_elements(NULL, slab, &freed), EINVAL);
  EXPECT_EQUAL(purgeable_slab_free_elements(heap, slab, &freed), 0);
  EXPECT_EQUAL(freed, 2);
  EXPECT_EQUAL(heap_statistics(heap).memory.payload_bytes, payload - 200);
  EXPECT_EQUAL(heap_statistics(heap).element_count, 0);
  EXPECT(check_pattern(two.bytes, 100, 5));
  EXPECT_EQUAL(purgeable_heap_free(heap, one.reference), ESTALE);
  EXPECT_EQUAL(purgeable_slab_free_elements(heap, slab, &freed), 0);
  EXPECT_EQUAL(freed, 0);
  fill_pattern(bytes, 100, 6);
  EXPECT_EQUAL(purgeable_heap_commit(heap, reference), 0);
  given = heap_statistics(heap).given_back_slab_count;
  EXPECT_EQUAL(purgeable_heap_unlock(heap, two.reference), 0);
  EXPECT(is_intact(heap, &(element_t){reference, bytes, 100, 6}));
  EXPECT_EQUAL(purgeable_slab_free_elements(heap, slab, NULL), 0);
  EXPECT_EQUAL(heap_statistics(heap).given_back_slab_count, given + 1);
  EXPECT_EQUAL(heap_statistics(heap).memory.payload_bytes, payload - 200);
  EXPECT_EQUAL(purgeable_slab_free_elements(heap, slab, NULL), ESTALE);
  // An element that is being written holds the slab too.
  REQUIRE(purgeable_heap_allocate(heap, 100, &reference, &bytes) == 0 && purgeable_slab_of(heap, reference, &slab) == 0);
  EXPECT_EQUAL(purgeable_slab_give_back(heap, slab), 0);
  fill_pattern(bytes, 100, 3);
  EXPECT_EQUAL(purgeable_heap_commit(heap, reference), 0);
  EXPECT(is_intact(heap, &(element_t){reference, bytes, 100, 3}));
  EXPECT_EQUAL(purgeable_heap_free(heap, reference), 0);
  EXPECT_EQUAL(heap_statistics(heap).memory.held_bytes, 0);
  EXPECT_EQUAL(heap_statistics(heap).memory.resident_bytes, 0);
  END_HEAP(heap);
}

// What an owner noted of a slab's age ends with the slab's life.
void stream_ages(case_report_t *report) {
  MAKE_HEAP(forgetful, .slab_bytes = 4 * PAGE);
  MAKE_HEAP(heap, .slab_bytes = 4 * PAGE, .keeps_ages = true);
  purgeable_slab_information_t information;
  element_t element;
  REQUIRE(make(forgetful, 100, 1, &element) == 0);
  EXPECT_EQUAL(purgeable_slab_note_age(forgetful, slab_of(forgetful, &element), 1, 2), EINVAL);
  EXPECT_EQUAL(purgeable_slab_information(forgetful, slab_of(forgetful, &element), &information), 0);
  EXPECT(information.first_age == 0 && information.last_age == 0);
  // One large element, whose units' records lie one behind the other, and small ones.
  const size_t lengths[] = {3 * PAGE, 20 * PAGE, 3 * PAGE};
  for (int life = 0; life < 2; life++) {
    element_t elements[3];
    for (size_t i = 0; i < 3; i++) {
      REQUIRE(make(heap, lengths[i], (unsigned)i + 1, &elements[i]) == 0);
      purgeable_slab_t slab = slab_of(heap, &elements[i]);
      EXPECT_EQUAL(purgeable_slab_information(heap, slab, &information), 0);
      EXPECT(information.first_age == 0 && information.last_age == 0);
      EXPECT_EQUAL(purgeable_slab_note_age(heap, slab, 10 + i, 0), 0);
      EXPECT_EQUAL(purgeable_slab_note_age(heap, slab, 0, UINT64_MAX - i), 0);
    }
    for (size_t i = 0; i < 3; i++) {
      purgeable_slab_t slab = slab_of(heap, &elements[i]);
      EXPECT_EQUAL(purgeable_slab_information(heap, slab, &information), 0);
      EXPECT_EQUAL(information.first_age, 10 + i);
      EXPECT_EQUAL(information.last_age, UINT64_MAX - i);
      EXPECT(is_intact(heap, &elements[i]));
      EXPECT_EQUAL(purgeable_slab_free_elements(heap, slab, NULL), 0);
      EXPECT_EQUAL(purgeable_slab_note_age(heap, slab, 1, 1), ESTALE);
    }
  }
  END_HEAP(forgetful);
  END_HEAP(heap);
}
