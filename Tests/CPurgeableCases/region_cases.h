// SPDX-License-Identifier: MIT
// The cases of regions, by file, and their shared helpers. The table is in region_cases.c.
#ifndef REGION_CASES_H
#define REGION_CASES_H

#include "harness.h"

static const purgeable_region_options_t at_once = {.offering = purgeable_offering_immediate};
static const purgeable_region_options_t not_at_all = {.offering = purgeable_offering_never};

// A region of `length` bytes filled with pattern `number`, idle. NULL only without memory.
static inline purgeable_region_t *filled_region(size_t length, const purgeable_region_options_t *options, uint64_t number) {
  purgeable_region_t *region = NULL;
  if (purgeable_region_create(length, options, &region) != 0) return NULL;
  fill_pattern(purgeable_region_bytes(region), length, number);
  if (purgeable_region_unlock(region) != 0) abort();
  return region;
}

// A region of which every other page has content, idle: its offer asks the kernel which do, and takes a call for each. NULL only
// without memory.
static inline purgeable_region_t *cut_region(size_t page_count) {
  purgeable_region_t *region = NULL;
  if (purgeable_region_create(page_count * PAGE, NULL, &region) != 0) return NULL;
  char *bytes = purgeable_region_bytes(region);
  for (size_t page = 0; page < page_count; page += 2) bytes[page * PAGE] = 1;
  if (purgeable_region_unlock(region) != 0) abort();
  return region;
}

static inline purgeable_region_statistics_t statistics_now(void) {
  purgeable_region_statistics_t statistics;
  if (purgeable_region_statistics(&statistics) != 0) abort();
  return statistics;
}

static inline bool same_statistics(const purgeable_region_statistics_t *left, const purgeable_region_statistics_t *right) {
  return memcmp(left, right, sizeof *left) == 0;
}

// Runs `body` (an expression that is true when all is well) in a forked child; true when it was and the child ended well.
#define IN_CHILD(body)                     \
  do {                                     \
    int child_ = fork();                   \
    if (child_ == 0) {                     \
      (void)alarm(CHILD_SECONDS);          \
      _exit((body) ? 0 : 1);               \
    }                                      \
    EXPECT_EQUAL(wait_for_child(child_), 0); \
  } while (0)

static inline void no_faults(void) { purgeable_testing_fail(0, 0, 0, false); }

// region_losses.c
void lock_cancels_offer(case_report_t *report);
void all_pages_lost(case_report_t *report);
void one_page_lost(case_report_t *report);
void touched_before_asked(case_report_t *report);
void zeros_cannot_be_lost(case_report_t *report);
void zeros_then_written(case_report_t *report);
void sparse_witnesses(case_report_t *report);
void read_outcomes(case_report_t *report);
void read_of_pages_touched(case_report_t *report);
void loss_gives_back(case_report_t *report);
void offered_again(case_report_t *report);
void first_word_is_witness(case_report_t *report);

// region_system.c
void faults_in_create(case_report_t *report);
void faults_in_operations(case_report_t *report);
void faults_in_offers(case_report_t *report);
void pages_that_cannot_be_wiped(case_report_t *report);

// region_probe.c
void probe_answers(case_report_t *report);
void probe_classes_by_faults(case_report_t *report);
void probe_classes_by_kernel(case_report_t *report);
void probe_calls_by_faults(case_report_t *report);
void probe_tries(case_report_t *report);
void probe_beside_signals(case_report_t *report);
void probe_calls_by_filter(case_report_t *report);
void mlocked_bytes(case_report_t *report);
void mlocked_process(case_report_t *report);

// region_races.c
void locks_inside_offers(case_report_t *report);
void locks_that_do_not_wait(case_report_t *report);
void lock_between_calls(case_report_t *report);
void locks_beside_discards(case_report_t *report);
void destroyed_beside_offers(case_report_t *report);

// region_signals.c
void handlers_interrupt(case_report_t *report);

// region_offers.c
void offering_modes(case_report_t *report);
void neighbours_are_merged(case_report_t *report);
void large_regions_in_pieces(case_report_t *report);
void refused_offers_again(case_report_t *report);

// region_forks.c
void fork_in_every_state(case_report_t *report);
void fork_beside_offers(case_report_t *report);

#endif
