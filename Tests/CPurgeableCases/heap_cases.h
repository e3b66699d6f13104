// SPDX-License-Identifier: MIT
// The cases of the slab heap, by file, and their shared helpers. The tables are in heap_cases.c and stream_cases.c.
#ifndef HEAP_CASES_H
#define HEAP_CASES_H

#include "harness.h"

typedef struct element {
  purgeable_reference_t reference;
  char *bytes;  // where they are; only to be touched while locked, or handed to the kernel
  size_t length;
  uint64_t number;
} element_t;

// Makes an element filled with pattern `number`, committed and idle. Returns 0, or the error of allocate or commit.
static inline int make_in(purgeable_heap_t *heap, purgeable_stream_t stream, size_t length, uint64_t number, element_t *element) {
  void *bytes;
  purgeable_reference_t reference;
  *element = (element_t){.length = length, .number = number};
  int error = purgeable_heap_allocate_in(heap, stream, length, number, &reference, &bytes);
  if (error != 0) return error;
  fill_pattern(bytes, length, number);
  *element = (element_t){reference, bytes, length, number};
  return purgeable_heap_commit(heap, reference);
}

static inline int make(purgeable_heap_t *heap, size_t length, uint64_t number, element_t *element) {
  return make_in(heap, 0, length, number, element);
}

// Whether a read without lock gives exactly what was written. False and `*outcome` otherwise.
static inline bool reads_intact(purgeable_heap_t *heap, const element_t *element, purgeable_outcome_t *outcome) {
  char *buffer = malloc(element->length);
  size_t length = 0;
  if (buffer == NULL) abort();
  do {
    *outcome = purgeable_heap_read(heap, element->reference, buffer, element->length, &length);
  } while (*outcome == purgeable_outcome_busy);
  bool right = *outcome == purgeable_outcome_intact && length == element->length &&
               check_pattern(buffer, length, element->number);
  free(buffer);
  return right;
}

static inline bool is_intact(purgeable_heap_t *heap, const element_t *element) {
  purgeable_outcome_t outcome;
  return reads_intact(heap, element, &outcome);
}

static inline bool is_discarded(purgeable_heap_t *heap, const element_t *element) {
  purgeable_outcome_t outcome;
  return !reads_intact(heap, element, &outcome) && outcome == purgeable_outcome_discarded;
}

// Whether every look-up of the reference returns ESTALE.
static inline bool is_stale(purgeable_heap_t *heap, purgeable_reference_t reference) {
  char byte;
  size_t length;
  const void *bytes;
  errno = 0;
  bool stale = purgeable_heap_read(heap, reference, &byte, 1, &length) == purgeable_outcome_error && errno == ESTALE;
  errno = 0;
  stale = stale && purgeable_heap_read_part(heap, reference, 0, 1, &byte) == purgeable_outcome_error && errno == ESTALE;
  errno = 0;
  stale = stale && purgeable_heap_read_start(heap, reference, &byte, 1, NULL) == purgeable_outcome_error && errno == ESTALE;
  errno = 0;
  stale = stale && purgeable_heap_check(heap, reference) == purgeable_outcome_error && errno == ESTALE;
  errno = 0;
  stale = stale && purgeable_heap_length_bytes(heap, reference, &length) == purgeable_outcome_error && errno == ESTALE;
  errno = 0;
  return stale && purgeable_heap_lock(heap, reference, &bytes, &length) == purgeable_outcome_error && errno == ESTALE;
}

// Locks, compares, unlocks.
static inline bool locks_intact(purgeable_heap_t *heap, const element_t *element) {
  const void *bytes = NULL;
  size_t length = 0;
  if (purgeable_heap_lock(heap, element->reference, &bytes, &length) != purgeable_outcome_intact) return false;
  bool right = bytes == element->bytes && length == element->length && check_pattern(bytes, length, element->number);
  return purgeable_heap_unlock(heap, element->reference) == 0 && right;
}

// Makes both offers of everything that is idle.
static inline int offer_all(purgeable_heap_t *heap) {
  int error = purgeable_heap_offer_idle(heap, NULL);
  return error != 0 ? error : purgeable_heap_offer_idle(heap, NULL);
}

static inline purgeable_heap_statistics_t heap_statistics(purgeable_heap_t *heap) {
  purgeable_heap_statistics_t statistics;
  if (purgeable_heap_statistics(heap, &statistics) != 0) abort();
  return statistics;
}

static inline purgeable_slab_t slab_of(purgeable_heap_t *heap, const element_t *element) {
  purgeable_slab_t slab = {0, 0};
  return purgeable_slab_of(heap, element->reference, &slab) == 0 ? slab : (purgeable_slab_t){0, 0};
}

static inline char *page_start(const void *bytes) { return (char *)((uintptr_t)bytes & ~(uintptr_t)(PAGE - 1)); }

static inline size_t page_in_heap(const void *bytes) { return (uintptr_t)bytes / PAGE; }

#define MAKE_HEAP(name, ...)                                                \
  purgeable_heap_t *name = NULL;                                            \
  REQUIRE(purgeable_heap_create(&(purgeable_heap_options_t){__VA_ARGS__}, &name) == 0)
// No other thread is inside the heap.
#define EXPECT_VALID(heap)                                                                    \
  do {                                                                                        \
    const char *wrong_;                                                                       \
    EXPECT(purgeable_testing_heap_is_valid(heap, &wrong_));                                   \
    if (wrong_ != NULL) NOTE("%s", wrong_);                                                   \
  } while (0)
#define END_HEAP(name)                               \
  do {                                               \
    EXPECT_VALID(name);                              \
    EXPECT_EQUAL(purgeable_heap_destroy(name), 0);   \
  } while (0)

// heap_losses.c
void heap_all_pages_lost(case_report_t *report);
void heap_one_page_lost(case_report_t *report);
void heap_neighbours_survive(case_report_t *report);
void heap_each_page_of_large(case_report_t *report);
void heap_table_pages(case_report_t *report);
void heap_zero_pages(case_report_t *report);
void heap_touched_before_asked(case_report_t *report);
void heap_lock_cancels_offer(case_report_t *report);
void heap_locked_stays_neighbours_go(case_report_t *report);

// heap_books.c
void heap_books_after_each_step(case_report_t *report);
void heap_books_against_kernel(case_report_t *report);
void heap_limits(case_report_t *report);
void heap_modes(case_report_t *report);
void heap_later_offers(case_report_t *report);
void heap_mlocked(case_report_t *report);
void heap_refused_ranges(case_report_t *report);
void heap_ordinary_memory(case_report_t *report);

// stream_give_back.c
void stream_giving_back(case_report_t *report);
void stream_giving_back_many(case_report_t *report);
void stream_deferred_wipes(case_report_t *report);
void stream_refused_deferred_wipes(case_report_t *report);
void stream_trimmed_deferred_wipes(case_report_t *report);
void stream_ages(case_report_t *report);

// heap_rules.c
void rule_claim(case_report_t *report);
void rule_exchange(case_report_t *report);
void rule_order_of_checks(case_report_t *report);
void rule_wide_generations(case_report_t *report);
void rule_no_append(case_report_t *report);
void rule_wipe_before_refill(case_report_t *report);

// heap_references.c
void stale_after_rebirth(case_report_t *report);
void foreign_and_forged(case_report_t *report);
void payload_poses_as_header(case_report_t *report);
void generations_retire(case_report_t *report);

// heap_reads.c
void heap_parts_need_their_pages(case_report_t *report);
void heap_matching_reads(case_report_t *report);
void heap_tags_survive(case_report_t *report);
void heap_large_read_on_busy_machine(case_report_t *report);

// heap_edges.c
void signals_in_children(case_report_t *report);
void counters_stay_above_zero(case_report_t *report);
void two_lockers(case_report_t *report);
void finding_losses_at_the_edges(case_report_t *report);
void owners_mutex(case_report_t *report);

// stream_upkeep.c
void hot_elements_move(case_report_t *report);
void offers_are_merged(case_report_t *report);
void withheld_streams_stay(case_report_t *report);
void withheld_slabs_stay(case_report_t *report);
void open_slabs_offer_full_pages(case_report_t *report);
void trimming(case_report_t *report);
void sweeps_with_swap(case_report_t *report);

// heap_offers.c
void offers_spare_the_withheld(case_report_t *report);
void offers_end_with_their_mapping(case_report_t *report);
void immediate_mode_leaves_the_rest_to_upkeep(case_report_t *report);
void refused_offers_come_back(case_report_t *report);
void refused_offers_are_tried_seldom(case_report_t *report);
void refused_wipes_are_pending(case_report_t *report);
void busy_slabs_are_told_to_policies(case_report_t *report);
void compaction_goes_on_where_its_slab_is_taken(case_report_t *report);
void length_of_what_ends(case_report_t *report);
void compactions_of_two_heaps(case_report_t *report);

#endif
