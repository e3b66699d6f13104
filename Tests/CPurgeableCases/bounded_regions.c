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

// Destroys the region, and writes over what its structure was.
static void part_and_reuse(void *context) {
  parting_t *parting = context;
  if (parting->has_run) return;
  parting->has_run = true;
  if (purgeable_region_destroy(parting->gone) != 0) abort();
  void *block = malloc(256);
  if (block == NULL) abort();
  memset(block, 0xFF, 256);
  atomic_signal_fence(memory_order_seq_cst);
  free(block);
}

// A drain that has taken a region out of the queue, which its owner has discarded since, knows nothing of it any more.
static void destroyed_in_a_drain(case_report_t *report) {
  NEED_HOOKS();
  EXPECT_EQUAL(purgeable_offer_pending(NULL), 0);
  // With a mapping of its own, so that its end takes no mutex of the pool's.
  parting_t parting = {.gone = filled_region(17 << 20, NULL, 1)};
  REQUIRE(parting.gone != NULL && statistics_now().pending_count == 1);
  EXPECT_EQUAL(purgeable_region_discard(parting.gone), 0);
  (void)purgeable_testing_set_inner_pause(part_and_reuse, &parting);
  EXPECT_EQUAL(purgeable_offer_pending(NULL), 0);
  (void)purgeable_testing_set_inner_pause(NULL, NULL);
  REQUIRE(parting.has_run);
  EXPECT_EQUAL(statistics_now().pending_count, 0);
  EXPECT_EQUAL(statistics_now().memory.pending_bytes, 0);
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

// How many calls the offer makes after the locker has come.
static uint64_t calls_beside(case_report_t *report, unsigned off, bool is_destroy) {
  long_offer_t offer = {.region = cut_region(CUT_PAGES), .is_destroy = is_destroy};
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
  // Pages that were never touched may need no call.
  EXPECT(calls_beside(report, purgeable_testing_rule_lockers_end_offers, false) >= CUT_PAGES / 2 - 1);
  purgeable_region_statistics_t after = statistics_now();
  EXPECT_EQUAL(after.refused_offer_count, before.refused_offer_count);
  EXPECT_EQUAL(after.memory.locked_bytes, before.memory.locked_bytes);
  EXPECT_EQUAL(after.memory.offered_bytes, before.memory.offered_bytes);
}

// MARK: Sparse regions

enum { SPARSE_PAGES = 200000, WRITTEN = 5, OLD_PAGES = 1000 };

// What a writer's unlock and an offer cost follows from what was written, not from how long the region is; and no witness is
// forgotten, old or new.
static void sparse_regions(case_report_t *report) {
  NEED_HOOKS();
  NEED_EXACT_DISCARDS();
  purgeable_region_t *region = NULL;
  REQUIRE(purgeable_region_create(SPARSE_PAGES * PAGE, &not_at_all, &region) == 0);
  char *bytes = purgeable_region_bytes(region);
  uint64_t random = report->seed;
  for (int round = 0; round < 6; round++) {
    size_t pages[WRITTEN];
    // The first round after each loss writes to the last page, too.
    for (size_t i = 0; i < WRITTEN; i++) {
      pages[i] = i == 0 && round % 2 == 0 ? SPARSE_PAGES - 1 : next_random(&random) % SPARSE_PAGES;
      bytes[pages[i] * PAGE + next_random(&random) % PAGE] = 1;
    }
    uint64_t before = purgeable_testing_look_count(purgeable_testing_looks_witnesses);
    EXPECT_EQUAL(purgeable_region_unlock(region), 0);
    uint64_t looks = purgeable_testing_look_count(purgeable_testing_looks_witnesses) - before;
    if (looks == SPARSE_PAGES) {
      EXPECT_EQUAL(purgeable_region_destroy(region), 0);
      SKIP("the kernel does not tell which pages hold anything");
    }
    EXPECT(looks <= (uint64_t)WRITTEN * (uint64_t)(round % 2 + 1));
    // Lost in the odd rounds: every page that was written counts, each by itself.
    if (round % 2 == 1) {
      discard_exactly(bytes + pages[round % WRITTEN] * PAGE, PAGE);
      char byte;
      EXPECT_EQUAL(purgeable_region_read(region, pages[round % WRITTEN] * PAGE, 1, &byte), purgeable_outcome_discarded);
      EXPECT_EQUAL(purgeable_region_discard(region), 0);
      EXPECT_EQUAL(purgeable_region_refill(region), 0);
    } else {
      EXPECT_EQUAL(purgeable_region_lock_for_writing(region), purgeable_outcome_intact);
    }
  }
  EXPECT_EQUAL(purgeable_region_destroy(region), 0);
}

// A sparse region on offer: few calls, exact losses, and zeros that were written over content leave.
static void sparse_offers(case_report_t *report) {
  NEED_HOOKS();
  NEED_EXACT_DISCARDS();
  purgeable_region_t *region = NULL;
  REQUIRE(purgeable_region_create(SPARSE_PAGES * PAGE, &at_once, &region) == 0);
  char *bytes = purgeable_region_bytes(region);
  for (size_t i = 0; i < WRITTEN; i++) bytes[i * 40000 * PAGE] = 1;
  uint64_t calls = advice_calls();
  EXPECT_EQUAL(purgeable_region_unlock(region), 0);
  bool tells = advice_calls() - calls == WRITTEN;
  EXPECT_EQUAL(purgeable_region_offered_bytes(region), WRITTEN * PAGE);
  EXPECT_EQUAL(purgeable_region_lock_for_writing(region), purgeable_outcome_intact);
  // A page of zeros now, given back by the offer.
  bytes[40000 * PAGE] = 0;
  EXPECT_EQUAL(purgeable_region_unlock(region), 0);
  EXPECT_EQUAL(purgeable_region_offered_bytes(region), (WRITTEN - 1) * PAGE);
  size_t resident = 0;
  EXPECT_EQUAL(purgeable_region_resident_bytes(region, &resident), 0);
  if (tells) EXPECT_EQUAL(resident, (WRITTEN - 1) * PAGE);
  EXPECT_EQUAL(purgeable_region_lock(region), purgeable_outcome_intact);
  EXPECT_EQUAL(purgeable_region_unlock(region), 0);
  EXPECT(kernel_discard(bytes + 80000 * PAGE, PAGE) == 1);
  EXPECT_EQUAL(purgeable_region_lock(region), purgeable_outcome_discarded);
  EXPECT_EQUAL(purgeable_region_destroy(region), 0);
  NOTE("the kernel %s which pages hold anything", tells ? "tells" : "does not tell");
}

// Written, discarded, and filled again elsewhere: whether the new content is told to be whole.
static bool refilled_elsewhere(case_report_t *report) {
  purgeable_region_t *region = NULL;
  EXPECT_EQUAL(purgeable_region_create(2 * OLD_PAGES * PAGE, &not_at_all, &region), 0);
  if (region == NULL) return false;
  fill_pattern(purgeable_region_bytes(region), OLD_PAGES * PAGE, 1);
  EXPECT_EQUAL(purgeable_region_unlock(region), 0);
  EXPECT_EQUAL(purgeable_region_discard(region), 0);
  EXPECT_EQUAL(purgeable_region_refill(region), 0);
  ((char *)purgeable_region_bytes(region))[3 * PAGE] = 1;
  EXPECT_EQUAL(purgeable_region_unlock(region), 0);
  char byte;
  bool is_whole = purgeable_region_read(region, PAGE, 1, &byte) == purgeable_outcome_intact && byte == 0;
  EXPECT_EQUAL(purgeable_region_destroy(region), 0);
  return is_whole;
}

static void old_witnesses_are_forgotten(case_report_t *report) {
  NEED_HOOKS();
  EXPECT(refilled_elsewhere(report));
  uint64_t before = purgeable_testing_look_count(purgeable_testing_looks_witnesses);
  purgeable_testing_switch_off(purgeable_testing_rule_forget_untouched);
  bool is_whole = refilled_elsewhere(report);
  purgeable_testing_switch_off(0);
  bool tells = purgeable_testing_look_count(purgeable_testing_looks_witnesses) - before < 2 * OLD_PAGES;
  NOTE("rule off: the new content %s", is_whole ? "is whole" : "is taken for lost");
  // Where the kernel does not tell, each page is looked at, and the rule has nothing to do.
  EXPECT(is_whole == !tells);
}

// Where the kernel does not tell, every page is looked at, and the witnesses are the same: with help or without, in turn, each
// page that was written is missed by itself.
static void sparse_without_help(case_report_t *report) {
  NEED_HOOKS();
  enum { PAGES = 3000, APART = 7 };
  purgeable_region_t *region = NULL;
  REQUIRE(purgeable_region_create(PAGES * PAGE, &not_at_all, &region) == 0);
  char *bytes = purgeable_region_bytes(region);
  uint64_t random = report->seed;
  for (size_t round = 0; round < 40; round++) {
    for (size_t page = round % APART; page < PAGES; page += APART) bytes[page * PAGE + 8] = 1;
    uint64_t before = purgeable_testing_look_count(purgeable_testing_looks_witnesses);
    if (round % 2 == 0) purgeable_testing_fail(purgeable_testing_call_file, 1, EMFILE, false);
    EXPECT_EQUAL(purgeable_region_unlock(region), 0);
    if (round % 2 == 0) {
      EXPECT(purgeable_testing_has_failed());
      EXPECT_EQUAL(purgeable_testing_look_count(purgeable_testing_looks_witnesses) - before, PAGES);
    }
    no_faults();
    size_t page = round % APART + next_random(&random) % (PAGES / APART) * APART;
    char byte = 0;
    EXPECT_EQUAL(purgeable_region_read(region, page * PAGE + 8, 1, &byte), purgeable_outcome_intact);
    EXPECT_EQUAL(byte, 1);
    // Nothing written, nothing missed; and what was, is.
    discard_exactly(bytes + (page + 1) % PAGES * PAGE, PAGE);
    EXPECT_EQUAL(purgeable_region_read(region, page * PAGE + 8, 1, &byte), purgeable_outcome_intact);
    discard_exactly(bytes + page * PAGE, PAGE);
    EXPECT_EQUAL(purgeable_region_read(region, page * PAGE + 8, 1, &byte), purgeable_outcome_discarded);
    EXPECT_EQUAL(purgeable_region_refill(region), 0);
  }
  EXPECT_EQUAL(purgeable_region_destroy(region), 0);
}

// The kernel may stop telling at any scan of an unlock. The content is whole all the same: no witness of an earlier fill stays.
static void sparse_help_that_ends(case_report_t *report) {
  enum { PAGES = 3000, MOST_SCANS = 200 };
  uint64_t n = 1;
  for (bool has_failed = true; has_failed; n++) {
    REQUIRE(n < MOST_SCANS);
    purgeable_region_t *region = NULL;
    REQUIRE(purgeable_region_create(PAGES * PAGE, &not_at_all, &region) == 0);
    char *bytes = purgeable_region_bytes(region);
    for (size_t page = 0; page < PAGES; page += 2) bytes[page * PAGE] = 1;
    EXPECT_EQUAL(purgeable_region_unlock(region), 0);
    EXPECT_EQUAL(purgeable_region_discard(region), 0);
    EXPECT_EQUAL(purgeable_region_refill(region), 0);
    // Of what had content every other page has none now.
    for (size_t page = 0; page < PAGES; page += 4) bytes[page * PAGE + 8] = 2;
    purgeable_testing_fail(purgeable_testing_call_scan, n, EINVAL, false);
    EXPECT_EQUAL(purgeable_region_unlock(region), 0);
    has_failed = purgeable_testing_has_failed();
    no_faults();
    for (size_t page = 0; page < PAGES; page++) {
      char byte = 7;
      if (purgeable_region_read(region, page * PAGE + 8, 1, &byte) == purgeable_outcome_intact && byte == 2 * (page % 4 == 0)) {
        continue;
      }
      report_equal(report, __FILE__, __LINE__, "a page that is not told to be whole after the failure of scan", (long long)n, 0);
      break;
    }
    EXPECT_EQUAL(purgeable_region_destroy(region), 0);
  }
  NOTE("%llu scans", (unsigned long long)n - 2);
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
    // At most a few chunks; lines of pages that could not be wiped stay taken.
    EXPECT(gaps <= 20);
    for (size_t i = 0; i < REGIONS; i += 3) EXPECT_EQUAL(purgeable_region_destroy(regions[i]), 0);
  }
  for (size_t i = 0; i < REGIONS; i++) {
    if (i % 3 != 0) EXPECT_EQUAL(purgeable_region_destroy(regions[i]), 0);
  }
}

const test_case_t bounded_region_cases[] = {
    CASE("bounded: a drain of the queue looks at a few regions at a time", drains_look_at_few),
    CASE("bounded: a destroy does not wait for a sort of the queue", destroys_beside_sort),
    CASE("bounded: rule off, a destroyed region's pages are offered", destroys_beside_sort_rule_off),
    CASE("bounded: an offer ends early where a locker waits", lockers_end_offers),
    CASE("bounded: each region's word has a cache line of its own", words_have_lines),
    CASE("bounded: a writer's unlock of a sparse region looks at what was written", sparse_regions),
    CASE("bounded: an offer of a sparse region goes over what was written", sparse_offers),
    CASE("bounded: witnesses of an earlier fill are forgotten", old_witnesses_are_forgotten),
    CASE("bounded: where the kernel does not tell, every page is looked at", sparse_without_help),
    CASE("bounded: where the kernel stops telling, witnesses of an earlier fill are forgotten", sparse_help_that_ends),
    CASE("bounded: a region is destroyed while the queue is drained", destroyed_in_a_drain),
    END_OF_CASES,
};
