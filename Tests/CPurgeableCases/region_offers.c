// SPDX-License-Identifier: MIT
// Offers of regions: the modes, neighbours that are merged, and large regions in pieces.

#include "region_cases.h"

void offering_modes(case_report_t *report) {
  purgeable_region_t *now = filled_region(3 * PAGE, &at_once, 1);
  purgeable_region_t *later = filled_region(2 * PAGE - 1, NULL, 2);
  purgeable_region_t *never = filled_region(PAGE, &not_at_all, 3);
  REQUIRE(now != NULL && later != NULL && never != NULL);
  bool offers_work = kernel_offers();
  EXPECT_EQUAL(purgeable_region_offered_bytes(now), offers_work ? 3 * PAGE : 0);
  EXPECT_EQUAL(purgeable_region_offered_bytes(later), 0);
  EXPECT_EQUAL(statistics_now().pending_count, 1);
  size_t offered = 99;
  (void)purgeable_offer_pending(&offered);
  EXPECT_EQUAL(offered, offers_work ? 2 * PAGE : 0);
  EXPECT_EQUAL(purgeable_region_offered_bytes(later), offered);
  EXPECT_EQUAL(purgeable_region_offered_bytes(never), 0);
  if (!offers_work) {
    // What is refused stays pending.
    EXPECT_EQUAL(purgeable_region_destroy(later), 0);
    EXPECT_EQUAL(purgeable_region_destroy(now), 0);
    EXPECT_EQUAL(purgeable_region_destroy(never), 0);
    return;
  }
  EXPECT_EQUAL(statistics_now().pending_count, 0);
  EXPECT_EQUAL(purgeable_offer_pending(&offered), 0);
  EXPECT_EQUAL(offered, 0);
  EXPECT_EQUAL(purgeable_offer_pending(NULL), 0);
  EXPECT_EQUAL(purgeable_region_offer(never), 0);
  EXPECT_EQUAL(purgeable_region_offered_bytes(never), 0);
  // The call offers once more what is on offer, since the kernel may have skipped pages; that counts nothing new.
  uint64_t calls = purgeable_testing_call_count(purgeable_testing_call_madvise_free);
  purgeable_region_statistics_t before = statistics_now();
  EXPECT_EQUAL(purgeable_region_offer(now), 0);
  EXPECT_EQUAL(purgeable_region_offer(later), 0);
  EXPECT_EQUAL(purgeable_testing_call_count(purgeable_testing_call_madvise_free), calls + 2);
  EXPECT_EQUAL(statistics_now().memory.offered_bytes, before.memory.offered_bytes);
  // Locked in between: the queue stays as it is, and the region is not offered while locked.
  EXPECT_EQUAL(purgeable_region_lock(later), purgeable_outcome_intact);
  EXPECT_EQUAL(purgeable_region_offered_bytes(later), 0);
  EXPECT_EQUAL(purgeable_region_unlock(later), 0);
  EXPECT_EQUAL(statistics_now().pending_count, 1);
  EXPECT_EQUAL(purgeable_region_lock(later), purgeable_outcome_intact);
  EXPECT_EQUAL(statistics_now().pending_count, 1);
  EXPECT_EQUAL(purgeable_offer_pending(&offered), 0);
  EXPECT_EQUAL(offered, 0);
  EXPECT_EQUAL(statistics_now().pending_count, 0);
  EXPECT_EQUAL(purgeable_region_unlock(later), 0);
  EXPECT_EQUAL(statistics_now().pending_count, 1);
  // Destroyed while queued.
  EXPECT_EQUAL(purgeable_region_destroy(later), 0);
  EXPECT_EQUAL(statistics_now().pending_count, 0);
  EXPECT_EQUAL(purgeable_offer_pending(&offered), 0);
  EXPECT_EQUAL(purgeable_region_destroy(now), 0);
  EXPECT_EQUAL(purgeable_region_destroy(never), 0);
}

static int by_address(const void *left, const void *right) {
  uintptr_t a = (uintptr_t)purgeable_region_bytes(*(purgeable_region_t *const *)left);
  uintptr_t b = (uintptr_t)purgeable_region_bytes(*(purgeable_region_t *const *)right);
  return (a > b) - (a < b);
}

// Unlocked in random order, neighbours still go to the kernel together, at most 2 MiB a call.
void neighbours_are_merged(case_report_t *report) {
  enum { COUNT = 1500 };
  static purgeable_region_t *regions[COUNT], *sorted[COUNT];
  uint64_t state = report->seed;
  for (size_t i = 0; i < COUNT; i++) {
    REQUIRE(purgeable_region_create(PAGE, NULL, &regions[i]) == 0);
    fill_pattern(purgeable_region_bytes(regions[i]), PAGE, i);
  }
  for (size_t i = COUNT; i > 1; i--) {
    size_t other = next_random(&state) % i;
    purgeable_region_t *swapped = regions[other];
    regions[other] = regions[i - 1];
    regions[i - 1] = swapped;
  }
  // One of them stays locked and one is discarded, so the chain has two holes at least.
  for (size_t i = 1; i < COUNT; i++) EXPECT_EQUAL(purgeable_region_unlock(regions[i]), 0);
  EXPECT_EQUAL(purgeable_region_discard(regions[1]), 0);
  EXPECT_EQUAL(statistics_now().pending_count, COUNT - 1);
  memcpy(sorted, regions + 2, (COUNT - 2) * sizeof sorted[0]);
  qsort(sorted, COUNT - 2, sizeof sorted[0], by_address);
  uint64_t expected = 0;
  const char *end = NULL;
  size_t bytes = 0;
  for (size_t i = 0; i < COUNT - 2; i++) {
    const char *start = purgeable_region_bytes(sorted[i]);
    if (start != end || bytes + PAGE > 2u << 20) expected++, bytes = 0;
    bytes += PAGE;
    end = start + PAGE;
  }
  EXPECT(expected < COUNT / 4);
  size_t offered = 0;
  const char *reason;
  // Asked first, because the first call makes system calls of its own.
  bool discards = kernel_discards(&reason);
  uint64_t calls = purgeable_testing_call_count(purgeable_testing_call_madvise_free);
  if (discards) {
    EXPECT_EQUAL(purgeable_offer_pending(&offered), 0);
    EXPECT_EQUAL(offered, (COUNT - 2) * PAGE);
    EXPECT_EQUAL(purgeable_testing_call_count(purgeable_testing_call_madvise_free) - calls, expected);
    NOTE("%d regions offered in %llu calls", COUNT - 2, (unsigned long long)expected);
  }
  EXPECT_EQUAL(purgeable_region_offered_bytes(regions[0]), 0);
  for (size_t i = 0; i < COUNT; i++) EXPECT_EQUAL(purgeable_region_destroy(regions[i]), 0);
}

void large_regions_in_pieces(case_report_t *report) {
  const size_t length = 17u << 20;
  purgeable_region_t *region = filled_region(length, NULL, 1);
  REQUIRE(region != NULL);
  uint64_t calls = purgeable_testing_call_count(purgeable_testing_call_madvise_free);
  size_t offered = 0;
  if (purgeable_offer_pending(&offered) == 0) {
    EXPECT_EQUAL(offered, length);
    EXPECT_EQUAL(purgeable_testing_call_count(purgeable_testing_call_madvise_free) - calls, 9);
  }
  EXPECT_EQUAL(purgeable_region_lock(region), purgeable_outcome_intact);
  EXPECT(check_pattern(purgeable_region_bytes(region), length, 1));
  EXPECT_EQUAL(purgeable_region_destroy(region), 0);
}

// What is held, less what is locked, waits, is on offer or is discarded: of full regions at rest 0.
static uint64_t unaccounted_bytes(void) {
  purgeable_memory_use_t memory = statistics_now().memory;
  return memory.held_bytes - memory.locked_bytes - memory.pending_bytes - memory.offered_bytes - memory.discarded_bytes;
}

void refused_offers_again(case_report_t *report) {
  NEED_HOOKS();
  NEED_OFFERS();
  purgeable_region_statistics_t before = statistics_now();
  uint64_t unaccounted = unaccounted_bytes(), clock = 1000000;
  (void)purgeable_testing_set_queue_clock_ms(clock);
  purgeable_region_t *region = filled_region(3 * PAGE, NULL, 1), *other = filled_region(PAGE, NULL, 2);
  purgeable_testing_fail(purgeable_testing_call_madvise_free, 1, EINVAL, true);
  purgeable_region_t *now = filled_region(2 * PAGE, &at_once, 3);
  REQUIRE(region != NULL && other != NULL && now != NULL);
  // Refused each time, for as long as it may take: the regions wait, and something is due.
  for (int i = 0; i < 8; i++) {
    EXPECT_EQUAL(purgeable_offer_pending(NULL), EINVAL);
    EXPECT_EQUAL(purgeable_region_state(region), purgeable_state_idle);
    EXPECT_EQUAL(statistics_now().memory.pending_bytes - before.memory.pending_bytes, 6 * PAGE);
    EXPECT_EQUAL(statistics_now().pending_count - before.pending_count, 3);
    EXPECT_EQUAL(statistics_now().memory.offered_bytes, before.memory.offered_bytes);
    EXPECT_EQUAL(unaccounted_bytes(), unaccounted);
    uint64_t due = purgeable_offer_pending_due_ms();
    EXPECT(due <= 256000);
    (void)purgeable_testing_set_queue_clock_ms(clock += due <= 256000 ? due : 0);
  }
  // One leaves by a lock, one at its end.
  EXPECT_EQUAL(purgeable_region_lock(region), purgeable_outcome_intact);
  EXPECT_EQUAL(statistics_now().memory.pending_bytes - before.memory.pending_bytes, 3 * PAGE);
  EXPECT_EQUAL(unaccounted_bytes(), unaccounted);
  EXPECT_EQUAL(purgeable_region_unlock(region), 0);
  EXPECT_EQUAL(unaccounted_bytes(), unaccounted);
  EXPECT_EQUAL(purgeable_region_destroy(other), 0);
  EXPECT_EQUAL(statistics_now().memory.pending_bytes - before.memory.pending_bytes, 5 * PAGE);
  EXPECT_EQUAL(purgeable_offer_pending(NULL), EINVAL);
  EXPECT_EQUAL(unaccounted_bytes(), unaccounted);
  // As soon as the kernel accepts it, all is on offer.
  no_faults();
  (void)purgeable_testing_set_queue_clock_ms(clock + 256000);
  size_t offered = 0;
  EXPECT_EQUAL(purgeable_offer_pending(&offered), 0);
  EXPECT_EQUAL(offered, 5 * PAGE);
  EXPECT_EQUAL(purgeable_region_state(region), purgeable_state_on_offer);
  EXPECT_EQUAL(purgeable_region_state(now), purgeable_state_on_offer);
  EXPECT_EQUAL(statistics_now().memory.pending_bytes, before.memory.pending_bytes);
  EXPECT_EQUAL(statistics_now().pending_count, before.pending_count);
  EXPECT_EQUAL(unaccounted_bytes(), unaccounted);
  EXPECT_EQUAL(purgeable_region_lock(region), purgeable_outcome_intact);
  EXPECT(check_pattern(purgeable_region_bytes(region), 3 * PAGE, 1));
  EXPECT_EQUAL(purgeable_region_destroy(region), 0);
  EXPECT_EQUAL(purgeable_region_destroy(now), 0);
  EXPECT_EQUAL(unaccounted_bytes(), unaccounted);
  (void)purgeable_testing_set_queue_clock_ms(0);
}
