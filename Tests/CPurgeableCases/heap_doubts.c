// SPDX-License-Identifier: MIT
// What the heap must not believe: a residency that is out of date, a reference of nobody, a place where no element begins.

#include "heap_cases.h"

// MARK: A sweep beside a writer

static struct {
  purgeable_heap_t *heap;
  element_t late;
  bool is_inside;
  int calls, error;
} beside;

// Between the sweep's question and its look at the slab: a page of the open slab is filled and offered.
static void store_in_sweep(void *context) {
  (void)context;
  if (beside.is_inside) return;
  beside.is_inside = true;
  if (beside.calls++ == 0) beside.error = make(beside.heap, 2 * PAGE, 2, &beside.late);
  beside.is_inside = false;
}

static int sweep_beside_a_writer(bool asks_again) {
  const purgeable_heap_options_t options = {
      .slab_bytes = 16 * PAGE, .chunk_bytes = 64 * PAGE, .offering = purgeable_offering_immediate};
  if (purgeable_heap_create(&options, &beside.heap) != 0) return 2;
  element_t early;
  if (make(beside.heap, 2 * PAGE, 1, &early) != 0) return 3;
  if (!asks_again) (void)purgeable_testing_switch_off(purgeable_testing_rule_ask_again_before_loss);
  if (!purgeable_testing_set_pause(store_in_sweep, NULL)) return 77;
  size_t lost = 99;
  int error = purgeable_heap_sweep(beside.heap, &lost);
  (void)purgeable_testing_set_pause(NULL, NULL);
  if (error != 0 || beside.error != 0 || beside.calls == 0) return 4;
  // No byte is lost in either case: nobody took a page.
  if (!is_intact(beside.heap, &early) || !is_intact(beside.heap, &beside.late)) return 5;
  bool says_lost = lost != 0 || purgeable_heap_has_losses(beside.heap);
  return says_lost == !asks_again ? 0 : 6;
}

static void sweep_sees_no_loss_beside_a_writer(case_report_t *report) {
  NEED_HOOKS();
  NEED_OFFERS();
  for (int asks_again = 0; asks_again < 2; asks_again++) {
    pid_t child = fork();
    if (child == 0) _exit(sweep_beside_a_writer(asks_again));
    EXPECT_EQUAL(wait_for_child(child), 0);
  }
}

// MARK: References of nobody

// A large element's units behind the first, and those of a chunk that ended, have no content mapped or none of their own.
static void nobody_is_read(case_report_t *report) {
  MAKE_HEAP(heap, .slab_bytes = PAGE, .chunk_bytes = 4 * PAGE);
  element_t large, small;
  REQUIRE(make(heap, 10 * PAGE, 1, &large) == 0);
  REQUIRE(make(heap, 100, 2, &small) == 0);
  EXPECT_EQUAL(purgeable_heap_free(heap, large.reference), 0);
  EXPECT_EQUAL(purgeable_heap_trim(heap, NULL), 0);
  uint64_t granules = 32 * PAGE / PURGEABLE_GRANULE_BYTES;
  char buffer[16];
  for (uint64_t place = 0; place < granules; place++) {
    size_t rest;
    bool matches;
    purgeable_reference_t nobody = {place, 0};
    purgeable_outcome_t outcome =
        purgeable_heap_read_matching(heap, nobody, "", 0, NULL, 0, buffer, sizeof buffer, &rest, &matches);
    if (outcome != purgeable_outcome_busy) EXPECT_EQUAL(outcome, purgeable_outcome_busy);
  }
  EXPECT(!purgeable_heap_has_losses(heap));
  EXPECT(is_intact(heap, &small));
  END_HEAP(heap);
}

// A look with the slab's generation at a place behind what is filled finds zeros. They are no loss.
static void empty_places_are_no_losses(case_report_t *report) {
  MAKE_HEAP(heap, .slab_bytes = 16 * PAGE, .chunk_bytes = 64 * PAGE);
  element_t first;
  REQUIRE(make(heap, 100, 1, &first) == 0);
  for (uint64_t beyond = 1; beyond < 16 * PAGE / PURGEABLE_GRANULE_BYTES; beyond++) {
    purgeable_reference_t forged = {first.reference.place + beyond, first.reference.generation};
    char buffer[16];
    size_t rest;
    bool matches;
    if (purgeable_heap_generation(heap, forged.place) != (uint32_t)forged.generation) break;
    purgeable_outcome_t outcome =
        purgeable_heap_read_matching(heap, forged, "", 0, NULL, 0, buffer, sizeof buffer, &rest, &matches);
    if (outcome != purgeable_outcome_busy) EXPECT_EQUAL(outcome, purgeable_outcome_busy);
  }
  EXPECT(!purgeable_heap_has_losses(heap));
  EXPECT_EQUAL(heap_statistics(heap).memory.discarded_by_kernel_bytes, 0);
  EXPECT(is_intact(heap, &first));
  END_HEAP(heap);
}

const test_case_t heap_doubt_cases[] = {
    CASE("heap: a sweep beside a writer calls nothing lost that is there", sweep_sees_no_loss_beside_a_writer),
    CASE("heap: a reference without a generation is nobody's", nobody_is_read),
    CASE("heap: a look at a place where no element begins loses nothing", empty_places_are_no_losses),
    END_OF_CASES,
};
