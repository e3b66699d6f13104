// SPDX-License-Identifier: MIT
// Every call of the public headers, one row each, with its n-th system call or allocation failing, once and from then on: it
// returns, content that it calls intact is right, and afterwards everything works. fault_cases.c looks at heaps in more detail.

#include "heap_cases.h"

enum { REGION_PAGES = 20, MOST_FAULTS = 80 };

// One region, and one heap with an element, made without faults.
typedef struct table_scene {
  purgeable_region_t *region;
  purgeable_heap_t *heap;
  purgeable_stream_t stream;
  element_t element;
  void *bookkeeping, *small;
  unsigned char buffer[REGION_PAGES * 4096];
} table_scene_t;

typedef struct table_row {
  const char *name;
  void (*call)(table_scene_t *scene, case_report_t *report);
} table_row_t;

static bool takes_all(void *context, purgeable_reference_t from, purgeable_reference_t to, uint64_t tag, const void *bytes,
                      size_t length) {
  (void)from, (void)tag, (void)bytes, (void)length;
  ((table_scene_t *)context)->element.reference = to;
  return true;
}

static bool begin(table_scene_t *scene) {
  memset(scene, 0, sizeof *scene);
  if (purgeable_region_create(REGION_PAGES * PAGE, NULL, &scene->region) != 0) return false;
  fill_pattern(purgeable_region_bytes(scene->region), REGION_PAGES * PAGE, 5);
  const purgeable_heap_options_t options = {
      .slab_bytes = 4 * PAGE, .chunk_bytes = 64 * PAGE, .keeps_tags = true, .keeps_ages = true};
  if (purgeable_region_unlock(scene->region) != 0 || purgeable_heap_create(&options, &scene->heap) != 0) return false;
  if (purgeable_stream_create(scene->heap, &scene->stream) != 0 || make(scene->heap, 300, 3, &scene->element) != 0) return false;
  scene->bookkeeping = purgeable_bookkeeping_map(4 * PAGE);
  scene->small = purgeable_bookkeeping_allocate(100);
  return scene->bookkeeping != NULL && scene->small != NULL;
}

// After any refusal, content that is called intact is right, and a lock, a refill and an element can be had again.
static void check_and_end(case_report_t *report, table_scene_t *scene) {
  purgeable_outcome_t outcome = purgeable_region_lock(scene->region);
  EXPECT(outcome == purgeable_outcome_intact || outcome == purgeable_outcome_discarded);
  if (outcome == purgeable_outcome_intact) {
    EXPECT(check_pattern(purgeable_region_bytes(scene->region), REGION_PAGES * PAGE, 5));
    EXPECT_EQUAL(purgeable_region_unlock(scene->region), 0);
  }
  EXPECT_EQUAL(purgeable_region_discard(scene->region), 0);
  EXPECT_EQUAL(purgeable_region_refill(scene->region), 0);
  EXPECT_EQUAL(purgeable_region_unlock(scene->region), 0);
  EXPECT_EQUAL(purgeable_region_destroy(scene->region), 0);
  purgeable_outcome_t check = purgeable_heap_check(scene->heap, scene->element.reference);
  EXPECT(check != purgeable_outcome_busy);
  if (check == purgeable_outcome_intact) EXPECT(is_intact(scene->heap, &scene->element));
  element_t element;
  EXPECT_EQUAL(make(scene->heap, 200, 9, &element), 0);
  EXPECT(is_intact(scene->heap, &element));
  EXPECT_EQUAL(purgeable_bookkeeping_unmap(scene->bookkeeping, 4 * PAGE), 0);
  purgeable_bookkeeping_free(scene->small);
  END_HEAP(scene->heap);
}

// MARK: Rows

#define ROW(name) static void row_##name(table_scene_t *scene, case_report_t *report)
#define QUIET (void)report, (void)scene
// For calls that may return anything while faults happen.
#define ANY_ANSWER(call) ((void)!(call))

ROW(probe) {
  QUIET;
  purgeable_probe_t probe;
  purgeable_testing_forget_probe();
  ANY_ANSWER(purgeable_probe(&probe));
  EXPECT(purgeable_kernel_class_name(purgeable_kernel_class_works) != NULL && purgeable_page_size_bytes() > 0);
}
ROW(probe_calls) {
  QUIET;
  purgeable_call_answers_t answers;
  ANY_ANSWER(purgeable_probe_calls(&answers));
}
ROW(pending_limit) {
  QUIET;
  uint64_t limit = purgeable_pending_byte_limit();
  (void)purgeable_pending_byte_limit_in_all();
  purgeable_set_pending_byte_limit(UINT64_MAX);
  purgeable_set_pending_byte_limit(limit);
}
ROW(bookkeeping) {
  EXPECT(scene->small != NULL);
  void *made = purgeable_bookkeeping_map(8 * PAGE);
  if (made != NULL) (void)purgeable_bookkeeping_unmap(made, 8 * PAGE);
  memset(scene->bookkeeping, 1, PAGE);
  if (purgeable_bookkeeping_clear(scene->bookkeeping, 4 * PAGE) == 0) EXPECT_EQUAL(((char *)scene->bookkeeping)[1], 0);
  void *small = purgeable_bookkeeping_allocate(64);
  purgeable_bookkeeping_free(small);
  void *larger = purgeable_bookkeeping_resize(scene->small, 200);
  if (larger != NULL) scene->small = larger;
  ANY_ANSWER(purgeable_bookkeeping_is_available(4096));
}
ROW(region_create) {
  QUIET;
  const size_t lengths[] = {PAGE, 3 * PAGE, 300 * PAGE, 5000 * PAGE};
  for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
    purgeable_region_t *region = NULL;
    int error = purgeable_region_create(lengths[i], NULL, &region);
    EXPECT((error == 0) == (region != NULL));
    if (region == NULL) continue;
    memset(purgeable_region_bytes(region), 1, lengths[i]);
    (void)purgeable_region_unlock(region);
    (void)purgeable_region_destroy(region);
  }
}
ROW(region_locks) {
  purgeable_region_t *region = scene->region;
  if (purgeable_region_lock(region) == purgeable_outcome_intact) (void)purgeable_region_unlock(region);
  if (purgeable_region_try_lock(region) == purgeable_outcome_intact) (void)purgeable_region_unlock(region);
  if (purgeable_region_lock_for_writing(region) == purgeable_outcome_intact) (void)purgeable_region_unlock(region);
  EXPECT_EQUAL(purgeable_region_lock_count(region), 0);
  EXPECT_EQUAL(purgeable_region_length_bytes(region), REGION_PAGES * PAGE);
}
ROW(region_offers) {
  (void)purgeable_region_offer(scene->region);
  (void)purgeable_offer_pending(NULL);
  (void)purgeable_region_offered_bytes(scene->region);
  purgeable_outcome_t outcome = purgeable_region_read(scene->region, 0, PAGE, scene->buffer);
  if (outcome == purgeable_outcome_intact) EXPECT(memcmp(scene->buffer, purgeable_region_bytes(scene->region), PAGE) == 0);
  EXPECT(purgeable_region_is_discarded(scene->region) || outcome != purgeable_outcome_discarded);
}
ROW(region_discard_and_refill) {
  QUIET;
  (void)purgeable_region_discard(scene->region);
  if (purgeable_region_refill(scene->region) != 0) return;
  fill_pattern(purgeable_region_bytes(scene->region), REGION_PAGES * PAGE, 5);
  (void)purgeable_region_unlock(scene->region);
}
ROW(region_fills) {
  QUIET;
  purgeable_region_t *region = scene->region;
  bool is_filler = false;
  if (purgeable_region_lock_waiting(region) == purgeable_outcome_intact) (void)purgeable_region_unlock(region);
  (void)purgeable_region_discard(region);
  purgeable_outcome_t outcome = purgeable_region_lock_or_fill(region, &is_filler);
  if (outcome == purgeable_outcome_error) return;
  if (is_filler) {
    (void)purgeable_region_abandon(region);
  } else if (outcome == purgeable_outcome_intact) {
    (void)purgeable_region_unlock(region);
  }
}
ROW(region_made_discarded) {
  QUIET;
  const size_t lengths[] = {PAGE, 300 * PAGE, 5000 * PAGE};
  for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
    purgeable_region_t *region = NULL;
    int error = purgeable_region_create_discarded(lengths[i], NULL, &region);
    EXPECT((error == 0) == (region != NULL));
    if (region == NULL) continue;
    EXPECT_EQUAL(purgeable_region_state(region), purgeable_state_discarded);
    bool is_filler = false;
    purgeable_outcome_t outcome = purgeable_region_lock_or_fill(region, &is_filler);
    EXPECT(outcome == purgeable_outcome_discarded ? is_filler : outcome == purgeable_outcome_error);
    EXPECT_EQUAL(purgeable_region_fills_here(region), is_filler);
    if (is_filler) {
      fill_pattern(purgeable_region_bytes(region), lengths[i], 7);
      EXPECT_EQUAL(purgeable_region_publish(region), 0);
      EXPECT_EQUAL(purgeable_region_unlock(region), 0);
      if (purgeable_region_lock_for_writing_waiting(region) == purgeable_outcome_intact) {
        EXPECT(check_pattern(purgeable_region_bytes(region), lengths[i], 7));
        (void)purgeable_region_unlock(region);
      }
    }
    (void)purgeable_region_destroy(region);
  }
}
ROW(upkeep) {
  QUIET;
  purgeable_upkeep_result_t result;
  (void)purgeable_upkeep(&result);
  if (purgeable_tending_begin() == 0) EXPECT_EQUAL(purgeable_tending_end(), 0);
  if (purgeable_upkeep_start(10) == 0) EXPECT(purgeable_upkeep_is_running());
  (void)purgeable_upkeep(NULL);
  (void)purgeable_upkeep_stop();
  EXPECT(!purgeable_upkeep_is_running());
  (void)purgeable_offer_pending_due_ms();
}
ROW(region_numbers) {
  QUIET;
  size_t resident = 0;
  purgeable_region_statistics_t statistics;
  ANY_ANSWER(purgeable_region_resident_bytes(scene->region, &resident));
  (void)purgeable_region_statistics(&statistics);
  purgeable_region_set_locked_byte_limit(0);
}
ROW(heap_create) {
  QUIET;
  purgeable_heap_t *heap = NULL;
  int error = purgeable_heap_create(NULL, &heap);
  EXPECT((error == 0) == (heap != NULL));
  if (heap == NULL) return;
  EXPECT(purgeable_heap_slab_bytes(heap) > 0);
  (void)purgeable_heap_destroy(heap);
}
ROW(heap_aligned) {
  QUIET;
  const purgeable_heap_options_t options = {.payload_alignment_bytes = 16, .slab_bytes = 4 * PAGE, .byte_limit = 64 * PAGE};
  purgeable_heap_t *heap = NULL;
  int error = purgeable_heap_create(&options, &heap);
  EXPECT((error == 0) == (heap != NULL));
  if (heap == NULL) return;
  for (size_t length = 1; length < 6 * PAGE; length = length * 3 + 1) {
    purgeable_reference_t reference;
    void *bytes;
    if (purgeable_heap_allocate(heap, length, &reference, &bytes) != 0) continue;
    EXPECT_EQUAL((uintptr_t)bytes % 16, 0);
    fill_pattern(bytes, length, length);
    EXPECT_EQUAL(purgeable_heap_commit(heap, reference), 0);
    const void *locked;
    if (purgeable_heap_lock(heap, reference, &locked, NULL) != purgeable_outcome_intact) continue;
    EXPECT(check_pattern(locked, length, length));
    EXPECT_EQUAL(purgeable_heap_unlock(heap, reference), 0);
  }
  EXPECT_EQUAL(purgeable_heap_set_byte_limit(heap, 4 * PAGE), 0);
  EXPECT(purgeable_heap_charged_bytes(heap) <= purgeable_heap_held_bytes(heap));
  (void)purgeable_heap_destroy(heap);
}
ROW(heap_elements) {
  const size_t lengths[] = {8, 3000, 10 * 4096, 90 * 4096};
  for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
    purgeable_reference_t reference;
    void *bytes;
    if (purgeable_heap_allocate_in(scene->heap, scene->stream, lengths[i], i, &reference, &bytes) != 0) continue;
    fill_pattern(bytes, lengths[i], i);
    EXPECT_EQUAL(purgeable_heap_commit(scene->heap, reference), 0);
    uint64_t tag = 0;
    EXPECT_EQUAL(purgeable_heap_tag(scene->heap, reference, &tag), 0);
    EXPECT_EQUAL(tag, i);
    const void *locked;
    size_t length;
    EXPECT_EQUAL(purgeable_heap_lock(scene->heap, reference, &locked, &length), purgeable_outcome_intact);
    EXPECT(check_pattern(locked, lengths[i], i));
    EXPECT_EQUAL(purgeable_heap_unlock(scene->heap, reference), 0);
    EXPECT_EQUAL(purgeable_heap_read_part(scene->heap, reference, 0, 8, scene->buffer), purgeable_outcome_intact);
    EXPECT_EQUAL(purgeable_heap_length_bytes(scene->heap, reference, &length), purgeable_outcome_intact);
    ANY_ANSWER(purgeable_heap_read(scene->heap, reference, scene->buffer, sizeof scene->buffer, &length));
    EXPECT_EQUAL(purgeable_heap_free(scene->heap, reference), 0);
  }
}
ROW(heap_streams) {
  QUIET;
  purgeable_stream_t stream;
  if (purgeable_stream_create(scene->heap, &stream) == 0) (void)purgeable_stream_seal(scene->heap, stream);
  purgeable_slab_t slab, other;
  size_t count;
  ANY_ANSWER(purgeable_stream_slabs(scene->heap, 0, &slab, 1, &count));
  ANY_ANSWER(purgeable_stream_youngest(scene->heap, 0, &slab));
  if (purgeable_stream_oldest(scene->heap, 0, &slab) != 0) return;
  purgeable_slab_information_t information;
  uint32_t cursor = 0, freed;
  purgeable_reference_t reference;
  ANY_ANSWER(purgeable_slab_information(scene->heap, slab, &information));
  ANY_ANSWER(purgeable_slab_next(scene->heap, slab, &other));
  (void)purgeable_slab_note_age(scene->heap, slab, 1, 2);
  ANY_ANSWER(purgeable_slab_next_element(scene->heap, slab, &cursor, &reference));
  ANY_ANSWER(purgeable_slab_of(scene->heap, scene->element.reference, &other));
  (void)purgeable_slab_restream(scene->heap, slab, scene->stream);
  (void)purgeable_slab_restream_oldest(scene->heap, slab, scene->stream);
  (void)purgeable_slab_give_back(scene->heap, slab);
  (void)freed;
}
ROW(heap_moves) {
  purgeable_reference_t to;
  int error = purgeable_heap_move(scene->heap, scene->element.reference, scene->stream, takes_all, scene, &to);
  EXPECT(error == 0 || error == ENOMEM || error == ENODATA);
  purgeable_slab_t slab;
  if (purgeable_slab_of(scene->heap, scene->element.reference, &slab) != 0) return;
  uint32_t staying;
  (void)purgeable_slab_evacuate(scene->heap, slab, scene->stream, takes_all, scene, &staying);
}
ROW(heap_upkeep) {
  QUIET;
  uint32_t hand = 0;
  (void)purgeable_stream_seal(scene->heap, 0);
  (void)purgeable_heap_offer_idle(scene->heap, NULL);
  ANY_ANSWER(purgeable_heap_take_busy(scene->heap));
  (void)purgeable_heap_is_on_offer(scene->heap, scene->element.reference.place);
  (void)purgeable_heap_has_pending(scene->heap);
  (void)purgeable_heap_page_out(scene->heap, 0, &hand, NULL);
  (void)purgeable_heap_sweep(scene->heap, NULL);
  purgeable_heap_begin_giving_back(scene->heap);
  (void)purgeable_heap_trim(scene->heap, NULL);
  purgeable_heap_end_giving_back(scene->heap);
  (void)purgeable_heap_set_byte_limit(scene->heap, 0);
  (void)purgeable_heap_set_locked_byte_limit(scene->heap, 0);
}
ROW(heap_numbers) {
  QUIET;
  purgeable_heap_statistics_t statistics;
  (void)purgeable_heap_statistics(scene->heap, &statistics);
  EXPECT(purgeable_heap_held_bytes(scene->heap) >= purgeable_heap_charged_bytes(scene->heap));
  (void)purgeable_heap_given_back_bytes(scene->heap);
  (void)purgeable_heap_ordinary_bytes(scene->heap);
}
ROW(heap_places) {
  uint64_t place = scene->element.reference.place;
  size_t rest = 0, cursor = 0;
  bool matches = false;
  uint32_t found[4];
  uint64_t slots[4] = {place + 1, 0, 0, 0};
  unsigned char first = 0;
  EXPECT(purgeable_heap_generation(scene->heap, place) != 0);
  if (purgeable_heap_read_part(scene->heap, scene->element.reference, 0, 1, &first) == purgeable_outcome_intact) {
    EXPECT_EQUAL(purgeable_heap_read_matching(scene->heap, scene->element.reference, &first, 1, NULL, 0, scene->buffer,
                                              sizeof scene->buffer, &rest, &matches),
                 purgeable_outcome_intact);
  }
  purgeable_heap_prefetch(scene->heap, place);
  EXPECT_EQUAL(purgeable_heap_stream_at(scene->heap, place), 0);
  (void)purgeable_heap_has_losses(scene->heap);
  ANY_ANSWER(purgeable_heap_find_losses(scene->heap, slots, 4, 40, &cursor, found, 4));
  (void)purgeable_heap_page_is_lost(scene->heap, place);
  (void)purgeable_heap_slab_has_losses(scene->heap, place);
}
ROW(heap_frees_a_slab) {
  QUIET;
  purgeable_slab_t slab;
  uint32_t freed;
  if (purgeable_slab_of(scene->heap, scene->element.reference, &slab) == 0) {
    (void)purgeable_slab_free_elements(scene->heap, slab, &freed);
  }
}

static const table_row_t rows[] = {
    {"probe", row_probe},
    {"probe of calls", row_probe_calls},
    {"bound on idle memory", row_pending_limit},
    {"bookkeeping", row_bookkeeping},
    {"regions: create, destroy", row_region_create},
    {"regions: locks", row_region_locks},
    {"regions: offers, reads", row_region_offers},
    {"regions: discard, refill", row_region_discard_and_refill},
    {"regions: fills, elected and given up", row_region_fills},
    {"regions: made discarded, filled, published", row_region_made_discarded},
    {"regions: numbers", row_region_numbers},
    {"upkeep, and its thread", row_upkeep},
    {"heaps: create, destroy", row_heap_create},
    {"heaps: payloads aligned to 16 bytes", row_heap_aligned},
    {"heaps: elements", row_heap_elements},
    {"heaps: streams and slabs", row_heap_streams},
    {"heaps: moves", row_heap_moves},
    {"heaps: upkeep", row_heap_upkeep},
    {"heaps: numbers", row_heap_numbers},
    {"heaps: places", row_heap_places},
    {"heaps: a slab freed at once", row_heap_frees_a_slab},
};

static void every_call_with_faults(case_report_t *report) {
  uint64_t faults = 0, runs = 0;
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    for (int after = 0; after < 2; after++) {
      bool failed = true;
      for (uint64_t n = 1; failed; n++) {
        if (n >= MOST_FAULTS) report_failure(report, __FILE__, __LINE__, rows[i].name);
        REQUIRE(n < MOST_FAULTS);
        table_scene_t *scene = calloc(1, sizeof *scene);
        REQUIRE(scene != NULL && begin(scene));
        purgeable_testing_fail(purgeable_testing_call_any, n, ENOMEM, after != 0);
        rows[i].call(scene, report);
        failed = purgeable_testing_has_failed();
        purgeable_testing_fail(0, 0, 0, false);
        faults += failed, runs++;
        check_and_end(report, scene);
        free(scene);
      }
    }
  }
  NOTE("%zu rows, %llu runs, %llu faults", sizeof rows / sizeof rows[0], (unsigned long long)runs, (unsigned long long)faults);
}

const test_case_t fault_table_cases[] = {
    CASE("fault: every call of the headers, one after the other", every_call_with_faults),
    END_OF_CASES,
};
