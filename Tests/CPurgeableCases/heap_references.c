// SPDX-License-Identifier: MIT
// References of the slab heap: stale, foreign and forged ones, payload that looks like a header, generations that are used up.

#include "heap_cases.h"

static const purgeable_reference_t nothing = {0, 0};

void stale_after_rebirth(case_report_t *report) {
  MAKE_HEAP(heap, .offering = purgeable_offering_deferred);
  element_t old, young;
  REQUIRE(make(heap, 200, 1, &old) == 0);
  purgeable_slab_t slab = slab_of(heap, &old);
  EXPECT_EQUAL(purgeable_heap_free(heap, old.reference), 0);
  EXPECT_EQUAL(purgeable_slab_give_back(heap, slab), 0);
  EXPECT_EQUAL(purgeable_heap_generation(heap, old.reference.place), 0);
  REQUIRE(make(heap, 200, 2, &young) == 0);
  // The same place and length, in the slab's next life.
  EXPECT_EQUAL(young.reference.place, old.reference.place);
  EXPECT(young.reference.generation != old.reference.generation);
  EXPECT_EQUAL(purgeable_heap_generation(heap, young.reference.place), young.reference.generation);
  EXPECT(is_stale(heap, old.reference) && is_intact(heap, &young));
  EXPECT_EQUAL(purgeable_heap_free(heap, old.reference), ESTALE);
  EXPECT_EQUAL(purgeable_heap_commit(heap, old.reference), ESTALE);
  EXPECT_EQUAL(purgeable_heap_unlock(heap, old.reference), ESTALE);
  EXPECT_EQUAL(purgeable_slab_of(heap, old.reference, &slab), ESTALE);
  EXPECT_EQUAL(purgeable_slab_next(heap, slab, &slab), ESTALE);
  EXPECT_EQUAL(purgeable_slab_give_back(heap, slab), ESTALE);
  EXPECT_EQUAL(purgeable_slab_restream(heap, slab, 0), ESTALE);
  EXPECT_EQUAL(purgeable_slab_restream_oldest(heap, slab, 0), ESTALE);
  uint32_t cursor = 0;
  EXPECT_EQUAL(purgeable_slab_next_element(heap, slab, &cursor, &old.reference), ESTALE);
  EXPECT(is_intact(heap, &young));
  // A generation with bits above the 32nd is another one.
  EXPECT(is_stale(heap, (purgeable_reference_t){young.reference.place, young.reference.generation | (uint64_t)1 << 32}));
  EXPECT(is_stale(heap, nothing));
  size_t rest;
  bool matches;
  purgeable_reference_t forged = {young.reference.place, young.reference.generation | (uint64_t)1 << 32};
  EXPECT_EQUAL(purgeable_heap_read_matching(heap, forged, "", 0, NULL, 0, &rest, 0, &rest, &matches), purgeable_outcome_busy);
  END_HEAP(heap);
}

typedef struct ended_inside {
  purgeable_heap_t *heap;
  element_t old, young;
  int step;
} ended_inside_t;

static void end_and_make(void *context) {
  ended_inside_t *inside = context;
  switch (inside->step++) {
    case 0: (void)purgeable_heap_free(inside->heap, inside->old.reference); break;
    case 1: (void)make(inside->heap, 200 * PAGE, 2, &inside->young); break;
    default: break;
  }
}

// A large element, which has a mapping of its own, ends while its length is asked for, and another one begins under its number.
void length_of_what_ends(case_report_t *report) {
  NEED_HOOKS();
  MAKE_HEAP(heap, .slab_bytes = 16 * PAGE, .chunk_bytes = 64 * PAGE);
  ended_inside_t inside = {.heap = heap};
  REQUIRE(make(heap, 300 * PAGE, 1, &inside.old) == 0);
  size_t length = 0;
  errno = 0;
  EXPECT_EQUAL(purgeable_heap_length_bytes(heap, inside.old.reference, &length), purgeable_outcome_intact);
  EXPECT(length == 300 * PAGE && errno == 0);
  (void)purgeable_testing_set_pause(end_and_make, &inside);
  purgeable_outcome_t outcome = purgeable_heap_length_bytes(heap, inside.old.reference, &length);
  (void)purgeable_testing_set_pause(NULL, NULL);
  EXPECT(outcome == purgeable_outcome_error && errno == ESTALE && inside.step >= 2);
  EXPECT(is_intact(heap, &inside.young));
  END_HEAP(heap);
}

void foreign_and_forged(case_report_t *report) {
  MAKE_HEAP(heap, .slab_bytes = 16 * PAGE);
  MAKE_HEAP(other, .slab_bytes = 16 * PAGE);
  enum { COUNT = 2000 };
  static element_t own[COUNT];
  element_t foreign;
  for (size_t i = 0; i < COUNT; i++) {
    REQUIRE(make(heap, 1 + i % 300, i, &own[i]) == 0);
    REQUIRE(make(other, 1 + i % 300, i, &foreign) == 0);
    EXPECT(is_stale(heap, foreign.reference));
    EXPECT_EQUAL(purgeable_heap_free(heap, foreign.reference), ESTALE);
    EXPECT_EQUAL(purgeable_heap_commit(heap, foreign.reference), ESTALE);
    EXPECT(purgeable_heap_unlock(heap, foreign.reference) != 0);
  }
  // A million forgeries, or ten in the full run, half of them with a right generation at a wrong place, asked without the
  // directory's help as well.
  uint64_t random = report->seed, passed = 0, tries = report->is_full && !HAS_SANITIZER ? 10000000 : 1000000;
  if (report->scale > 1) tries *= 4;
  const uint64_t end = own[COUNT - 1].reference.place + 64;
  for (uint64_t i = 0; i < tries; i++) {
    const element_t *near = &own[next_random(&random) % COUNT];
    purgeable_reference_t forged = {next_random(&random) % end, next_random(&random) >> 32};
    if (i % 2 == 0) {
      forged = (purgeable_reference_t){near->reference.place + 1 + next_random(&random) % 400, near->reference.generation};
    }
    if (i % 64 == 1) forged.place = next_random(&random);
    size_t rest;
    bool matches;
    if (i % 4 < 2) {
      purgeable_slab_t slab;
      bool living = purgeable_slab_of(heap, forged, &slab) == 0 && purgeable_heap_check(heap, forged) == purgeable_outcome_intact;
      // The place may be that of another element by chance.
      for (size_t k = 0; living && k < COUNT; k++) living = own[k].reference.place != forged.place;
      passed += living;
    } else if (purgeable_heap_read_matching(heap, forged, "", 0, NULL, 0, NULL, 0, &rest, &matches) == purgeable_outcome_intact) {
      bool real = false;
      for (size_t k = 0; k < COUNT; k++) real = real || own[k].reference.place == forged.place;
      passed += !real;
    }
  }
  EXPECT_EQUAL(passed, 0);
  for (size_t i = 0; i < COUNT; i++) EXPECT(is_intact(heap, &own[i]));
  NOTE("%llu forged references, %llu passed", (unsigned long long)tries, (unsigned long long)passed);
  END_HEAP(other);
  END_HEAP(heap);
}

// Payload that copies the heap's own headers, and lies where a header could.
void payload_poses_as_header(case_report_t *report) {
  MAKE_HEAP(heap, .offering = purgeable_offering_deferred);
  element_t model;
  REQUIRE(make(heap, 40, 1, &model) == 0);
  uint64_t header;
  memcpy(&header, model.bytes - PURGEABLE_HEADER_BYTES, sizeof header);
  purgeable_reference_t reference;
  void *bytes;
  REQUIRE(purgeable_heap_allocate(heap, 32768, &reference, &bytes) == 0);
  for (size_t i = 0; i < 4096; i++) memcpy((char *)bytes + 8 * i, &header, sizeof header);
  EXPECT_EQUAL(purgeable_heap_commit(heap, reference), 0);
  size_t rest;
  bool matches;
  for (uint64_t place = reference.place + 1; place < reference.place + 2048; place++) {
    purgeable_reference_t posing = {place, reference.generation};
    EXPECT(is_stale(heap, posing));
    EXPECT_EQUAL(purgeable_heap_read_matching(heap, posing, "", 0, NULL, 0, NULL, 0, &rest, &matches), purgeable_outcome_busy);
    EXPECT_EQUAL(purgeable_heap_free(heap, posing), ESTALE);
    EXPECT_EQUAL(purgeable_heap_commit(heap, posing), ESTALE);
    EXPECT(purgeable_heap_unlock(heap, posing) != 0);
  }
  EXPECT(is_intact(heap, &model));
  END_HEAP(heap);
}

void generations_retire(case_report_t *report) {
  NEED_HOOKS();
  MAKE_HEAP(heap, .slab_bytes = 4 * PAGE);
  element_t element, next;
  const size_t lengths[] = {100, 10 * PAGE};
  for (size_t i = 0; i < 2; i++) {
    purgeable_heap_statistics_t before = heap_statistics(heap);
    REQUIRE(make(heap, lengths[i], 1, &element) == 0);
    EXPECT(purgeable_testing_begin_last_life(heap, element.reference.place));
    EXPECT_EQUAL(purgeable_stream_seal(heap, 0), 0);
    EXPECT_EQUAL(purgeable_heap_free(heap, element.reference), 0);
    EXPECT_EQUAL(heap_statistics(heap).slab_count, before.slab_count);
    EXPECT_EQUAL(heap_statistics(heap).memory.held_bytes, before.memory.held_bytes);
    // The place is never used again, neither for small elements nor as a part of a run.
    for (int round = 0; round < 64; round++) {
      REQUIRE(make(heap, lengths[round % 2], 2, &next) == 0);
      EXPECT(next.reference.place / (4 * PAGE / 16) != element.reference.place / (4 * PAGE / 16));
      EXPECT(is_intact(heap, &next));
    }
    EXPECT_EQUAL(purgeable_stream_seal(heap, 0), 0);
    EXPECT(is_stale(heap, element.reference));
  }
  EXPECT(!purgeable_testing_begin_last_life(heap, UINT64_MAX));
  END_HEAP(heap);
}
