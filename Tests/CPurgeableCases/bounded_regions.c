// SPDX-License-Identifier: MIT
// Work of regions that must not grow with the queue or the region, by count.

#include "heap_cases.h"
#include "region_cases.h"

// MARK: The queue

enum { QUEUED = 5000, LOOKS_AT_A_TIME = 512 };

// Regions that were locked again are passed over, and neither these nor the others keep the mutex for long.
static void drains_look_at_few(case_report_t *report) {
  NEED_HOOKS();
  static purgeable_region_t *regions[QUEUED];
  for (size_t i = 0; i < QUEUED; i++) {
    regions[i] = filled_region(PAGE, NULL, i);
    REQUIRE(regions[i] != NULL);
  }
  for (size_t i = 0; i < QUEUED; i++) {
    if (i % 1000 != 0) EXPECT_EQUAL(purgeable_region_lock(regions[i]), purgeable_outcome_intact);
  }
  (void)purgeable_testing_take_most_looks(purgeable_testing_looks_queue);
  uint64_t before = purgeable_testing_look_count(purgeable_testing_looks_queue);
  (void)purgeable_offer_pending(NULL);
  uint64_t most = purgeable_testing_take_most_looks(purgeable_testing_looks_queue);
  EXPECT(most != 0 && most <= LOOKS_AT_A_TIME);
  EXPECT(purgeable_testing_look_count(purgeable_testing_looks_queue) - before >= QUEUED);
  EXPECT_EQUAL(statistics_now().pending_count, 0);
  for (size_t i = 0; i < QUEUED; i++) {
    if (i % 1000 != 0) EXPECT_EQUAL(purgeable_region_unlock(regions[i]), 0);
    EXPECT_EQUAL(purgeable_region_destroy(regions[i]), 0);
  }
  EXPECT_EQUAL(statistics_now().pending_count, 0);
}

// MARK: A destroy beside a sort

// What the drain's own thread does while its links are being sorted: a destroy that waited for the sort would wait for ever.
typedef struct parting {
  purgeable_region_t *gone, *next;
  bool has_run;
} parting_t;

static void part(void *context) {
  parting_t *parting = context;
  if (parting->has_run) return;
  parting->has_run = true;
  if (purgeable_region_destroy(parting->gone) != 0) abort();
  // Gets the pages, is never offered.
  parting->next = filled_region(PAGE, &not_at_all, 77);
}

// Whether the region that got the pages still has its content after the drain.
static bool next_survives(case_report_t *report, unsigned off) {
  purgeable_region_t *regions[3];
  for (size_t i = 0; i < 3; i++) regions[i] = filled_region(PAGE, NULL, i);
  void *pages = purgeable_region_bytes(regions[1]);
  parting_t parting = {.gone = regions[1]};
  purgeable_testing_switch_off(off);
  (void)purgeable_testing_set_pause(part, &parting);
  (void)purgeable_offer_pending(NULL);
  (void)purgeable_testing_set_pause(NULL, NULL);
  purgeable_testing_switch_off(0);
  EXPECT(parting.has_run && parting.next != NULL);
  if (parting.next == NULL) return false;
  EXPECT(purgeable_region_bytes(parting.next) == pages);
  EXPECT_EQUAL(statistics_now().pending_count, 0);
  for (size_t i = 0; i < 3; i += 2) EXPECT_EQUAL(purgeable_region_offered_bytes(regions[i]), PAGE);
  (void)kernel_discard(pages, PAGE);
  bool survives = check_pattern(pages, PAGE, 77);
  EXPECT_EQUAL(purgeable_region_destroy(parting.next), 0);
  for (size_t i = 0; i < 3; i += 2) EXPECT_EQUAL(purgeable_region_destroy(regions[i]), 0);
  return survives;
}

static void destroys_beside_sort(case_report_t *report) {
  NEED_HOOKS();
  NEED_EXACT_DISCARDS();
  for (int round = 0; round < 20; round++) EXPECT(next_survives(report, 0));
}

static void destroys_beside_sort_rule_off(case_report_t *report) {
  NEED_HOOKS();
  NEED_EXACT_DISCARDS();
  int lost = 0;
  for (int round = 0; round < 20; round++) lost += !next_survives(report, purgeable_testing_rule_parting_stay_out);
  NOTE("%d of 20 lost", lost);
  EXPECT(lost > 0);
}

// MARK: A lock beside a long offer

enum { CUT_PAGES = 1024 };

// A region that is offered in one call a page, and a locker that comes when the first call has been made.
typedef struct long_offer {
  purgeable_region_t *region;
  pthread_t locker;
  purgeable_outcome_t outcome;
  uint64_t calls;
  bool is_destroy, has_begun;
} long_offer_t;

static uint64_t advice_calls(void) {
  return purgeable_testing_call_count(purgeable_testing_call_madvise_free | purgeable_testing_call_madvise_dontneed);
}

static void *lock_it(void *context) {
  long_offer_t *offer = context;
  if (offer->is_destroy) {
    if (purgeable_region_destroy(offer->region) != 0) abort();
  } else {
    offer->outcome = purgeable_region_lock(offer->region);
  }
  return NULL;
}

// Called by the offering thread between two calls: waits until the locker counts.
static void come_in_between(void *context) {
  long_offer_t *offer = context;
  if (offer->has_begun) return;
  offer->has_begun = true;
  if (pthread_create(&offer->locker, NULL, lock_it, offer) != 0) abort();
  while (purgeable_region_lock_count(offer->region) == 0) (void)usleep(100);
  offer->calls = advice_calls();
}

// Every other page has content.
static purgeable_region_t *cut_region(void) {
  purgeable_region_t *region = NULL;
  if (purgeable_region_create(CUT_PAGES * PAGE, NULL, &region) != 0) return NULL;
  char *bytes = purgeable_region_bytes(region);
  for (size_t page = 0; page < CUT_PAGES; page += 2) bytes[page * PAGE] = 1;
  if (purgeable_region_unlock(region) != 0) abort();
  return region;
}

// How many calls the offer makes after the locker has come.
static uint64_t calls_beside(case_report_t *report, unsigned off, bool is_destroy) {
  long_offer_t offer = {.region = cut_region(), .is_destroy = is_destroy};
  if (offer.region == NULL) return UINT64_MAX;
  purgeable_testing_switch_off(off);
  (void)purgeable_testing_set_pause(come_in_between, &offer);
  EXPECT_EQUAL(purgeable_region_offer(offer.region), 0);
  uint64_t calls = advice_calls() - offer.calls;
  (void)purgeable_testing_set_pause(NULL, NULL);
  purgeable_testing_switch_off(0);
  EXPECT(offer.has_begun);
  if (!offer.has_begun) return UINT64_MAX;
  (void)pthread_join(offer.locker, NULL);
  if (is_destroy) return calls;
  EXPECT_EQUAL(offer.outcome, purgeable_outcome_intact);
  EXPECT_EQUAL(purgeable_region_offered_bytes(offer.region), 0);
  EXPECT_EQUAL(purgeable_region_unlock(offer.region), 0);
  // Nobody waits: all of it.
  EXPECT_EQUAL(purgeable_region_offer(offer.region), 0);
  EXPECT_EQUAL(purgeable_region_offered_bytes(offer.region), CUT_PAGES / 2 * PAGE);
  EXPECT_EQUAL(purgeable_region_lock(offer.region), purgeable_outcome_intact);
  const char *bytes = purgeable_region_bytes(offer.region);
  for (size_t page = 0; page < CUT_PAGES; page++) EXPECT(bytes[page * PAGE] == (page % 2 == 0));
  EXPECT_EQUAL(purgeable_region_destroy(offer.region), 0);
  return calls;
}

static void lockers_end_offers(case_report_t *report) {
  NEED_HOOKS();
  NEED_OFFERS();
  purgeable_region_statistics_t before = statistics_now();
  for (int round = 0; round < 10; round++) {
    EXPECT_EQUAL(calls_beside(report, 0, false), 0);
    // The destroy gives the pages back.
    EXPECT(calls_beside(report, 0, true) <= 1);
  }
  EXPECT_EQUAL(calls_beside(report, purgeable_testing_rule_lockers_end_offers, false), CUT_PAGES - 1);
  purgeable_region_statistics_t after = statistics_now();
  EXPECT_EQUAL(after.refused_offer_count, before.refused_offer_count);
  EXPECT_EQUAL(after.memory.locked_bytes, before.memory.locked_bytes);
  EXPECT_EQUAL(after.memory.offered_bytes, before.memory.offered_bytes);
}

// MARK: Words

static int compare_lines(const void *left, const void *right) {
  uintptr_t a = *(const uintptr_t *)left, b = *(const uintptr_t *)right;
  return (a > b) - (a < b);
}

// Regions of one page and of several: each has a line of its own, and the lines lie side by side, so that as few pages as can be
// are touched. The lines of regions that end are taken again.
static void words_have_lines(case_report_t *report) {
  enum { REGIONS = 2000 };
  static purgeable_region_t *regions[REGIONS];
  static uintptr_t lines[REGIONS];
  for (int round = 0; round < 3; round++) {
    for (size_t i = 0; i < REGIONS; i++) {
      if (round != 0 && i % 3 != 0) continue;
      regions[i] = filled_region((1 + i % 2 * 7) * PAGE, &not_at_all, i);
      REQUIRE(regions[i] != NULL);
    }
    for (size_t i = 0; i < REGIONS; i++) lines[i] = purgeable_testing_region_line(regions[i]);
    qsort(lines, REGIONS, sizeof lines[0], compare_lines);
    size_t gaps = 0;
    for (size_t i = 1; i < REGIONS; i++) {
      EXPECT(lines[i] != lines[i - 1]);
      gaps += lines[i] != lines[i - 1] + 1;
    }
    // One chunk, or two.
    EXPECT(gaps <= 1);
    for (size_t i = 0; i < REGIONS; i += 3) EXPECT_EQUAL(purgeable_region_destroy(regions[i]), 0);
  }
  for (size_t i = 0; i < REGIONS; i++) {
    if (i % 3 != 0) EXPECT_EQUAL(purgeable_region_destroy(regions[i]), 0);
  }
}

const test_case_t bounded_region_cases[] = {
    {"bounded: a drain of the queue looks at a few regions at a time", drains_look_at_few},
    {"bounded: a destroy does not wait for a sort of the queue", destroys_beside_sort},
    {"bounded: rule off, a destroyed region's pages are offered", destroys_beside_sort_rule_off},
    {"bounded: an offer ends early where a locker waits", lockers_end_offers},
    {"bounded: each region's word has a cache line of its own", words_have_lines},
    {NULL, NULL},
};
