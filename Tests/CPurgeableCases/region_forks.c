// SPDX-License-Identifier: MIT
// Regions and forked children: every state at the fork, and a fork beside offers.

#include "region_cases.h"

enum { STATES = 9, LENGTH_PAGES = 3 };

static size_t length_of(size_t i) { return i == STATES - 1 ? (16u << 20) + 1 : LENGTH_PAGES * PAGE; }

static bool child_uses(purgeable_region_t **regions) {
  size_t bytes = 0;
  purgeable_region_statistics_t now = statistics_now();
  CHECK(now.memory.locked_bytes == 0 && now.memory.offered_bytes == 0 && now.pending_count == 0 && now.kernel_discard_count == 0);
  CHECK(now.region_count == STATES && now.memory.discarded_bytes == now.memory.held_bytes);
  for (size_t i = 0; i < STATES; i++) {
    char byte = 1;
    // A different first question for each.
    if (i % 3 == 0) CHECK(purgeable_region_lock(regions[i]) == purgeable_outcome_discarded);
    if (i % 3 == 1) CHECK(purgeable_region_read(regions[i], 0, 1, &byte) == purgeable_outcome_discarded);
    if (i % 3 == 2) CHECK(purgeable_region_unlock(regions[i]) == EPERM);
    CHECK(purgeable_region_lock_count(regions[i]) == 0);
    CHECK(purgeable_region_offered_bytes(regions[i]) == 0);
    CHECK(purgeable_region_is_discarded(regions[i]));
    CHECK(purgeable_region_try_lock(regions[i]) == purgeable_outcome_discarded);
    bytes += (length_of(i) + PAGE - 1) / PAGE * PAGE;
  }
  now = statistics_now();
  CHECK(now.memory.discarded_bytes == bytes && now.memory.held_bytes == bytes);
  for (size_t i = 0; i < STATES; i++) {
    CHECK(purgeable_region_refill(regions[i]) == 0);
    CHECK(*(char *)purgeable_region_bytes(regions[i]) == 0);
    fill_pattern(purgeable_region_bytes(regions[i]), length_of(i), 100 + i);
    CHECK(purgeable_region_unlock(regions[i]) == 0);
  }
  CHECK(statistics_now().memory.discarded_bytes == 0);
  (void)purgeable_offer_pending(NULL);
  CHECK(statistics_now().pending_count == 0);
  for (size_t i = 0; i < STATES; i++) {
    CHECK(purgeable_region_lock(regions[i]) == purgeable_outcome_intact);
    CHECK(check_pattern(purgeable_region_bytes(regions[i]), length_of(i), 100 + i));
  }
  purgeable_region_t *fresh = filled_region(5 * PAGE, NULL, 7);
  CHECK(fresh != NULL);
  for (size_t i = 0; i < STATES; i++) {
    CHECK((char *)purgeable_region_bytes(fresh) != (char *)purgeable_region_bytes(regions[i]));
    CHECK(purgeable_region_destroy(regions[i]) == 0);
  }
  CHECK(check_pattern(purgeable_region_bytes(fresh), 5 * PAGE, 7));
  CHECK(purgeable_region_destroy(fresh) == 0);
  now = statistics_now();
  CHECK(now.region_count == 0 && now.memory.held_bytes == 0 && now.memory.discarded_bytes == 0 && now.memory.locked_bytes == 0);
  return true;
}

// The child destroys the regions without using them first: regions that were queued in the parent are in no queue here.
static bool child_destroys(purgeable_region_t **regions) {
  for (size_t i = 0; i < STATES; i++) CHECK(purgeable_region_destroy(regions[i]) == 0);
  purgeable_region_statistics_t now = statistics_now();
  CHECK(now.region_count == 0 && now.memory.discarded_bytes == 0 && now.pending_count == 0);
  CHECK(purgeable_offer_pending(NULL) == 0);
  return true;
}

static bool grandchild_uses(purgeable_region_t **regions) {
  for (size_t i = 0; i < STATES; i++) CHECK(purgeable_region_refill(regions[i]) == 0);
  int child = fork();
  if (child == 0) _exit(child_uses(regions) ? 0 : 1);
  CHECK(wait_for_child(child) == 0);
  return true;
}

void fork_in_every_state(case_report_t *report) {
  purgeable_probe_t probe;
  REQUIRE(purgeable_probe(&probe) == 0);
  if (!probe.wipe_on_fork) SKIP("no MADV_WIPEONFORK");
  EXPECT_EQUAL(statistics_now().region_count, 0);
  purgeable_region_t *regions[STATES];
  for (size_t i = 0; i < STATES; i++) {
    const purgeable_region_options_t *options = i == 4 ? &at_once : i == 5 ? &not_at_all : NULL;
    REQUIRE(purgeable_region_create(length_of(i), options, &regions[i]) == 0);
    fill_pattern(purgeable_region_bytes(regions[i]), length_of(i), i);
    // 0 stays locked for writing, 1 also for reading, 2 is locked for reading only, 3 and 8 are queued, 4 is on offer, 5 idle,
    // 6 discarded, 7 locked again while queued.
    if (i == 1) EXPECT_EQUAL(purgeable_region_lock(regions[i]), purgeable_outcome_intact);
    if (i >= 2) EXPECT_EQUAL(purgeable_region_unlock(regions[i]), 0);
    if (i == 2 || i == 7) EXPECT_EQUAL(purgeable_region_lock(regions[i]), purgeable_outcome_intact);
    if (i == 6) EXPECT_EQUAL(purgeable_region_discard(regions[i]), 0);
  }
  purgeable_region_statistics_t before = statistics_now();
  IN_CHILD(child_uses(regions));
  IN_CHILD(child_destroys(regions));
  IN_CHILD(grandchild_uses(regions));
  purgeable_region_statistics_t after = statistics_now();
  EXPECT(same_statistics(&before, &after));
  for (size_t i = 0; i < STATES; i++) {
    bool is_locked = i <= 2 || i == 7;
    EXPECT_EQUAL(purgeable_region_lock(regions[i]), i == 6 ? purgeable_outcome_discarded : purgeable_outcome_intact);
    if (i != 6) EXPECT(check_pattern(purgeable_region_bytes(regions[i]), length_of(i), i));
    EXPECT_EQUAL(purgeable_region_lock_count(regions[i]), i == 6 ? 0u : i == 1 ? 3u : is_locked ? 2u : 1u);
    EXPECT_EQUAL(purgeable_region_destroy(regions[i]), 0);
  }
}

static _Atomic bool stop_offering;

static void *offer_all_the_time(void *context) {
  purgeable_region_t **regions = context;
  while (!atomic_load(&stop_offering)) {
    for (size_t i = 0; i < 32; i++) {
      if (purgeable_region_lock(regions[i]) == purgeable_outcome_intact) (void)purgeable_region_unlock(regions[i]);
    }
    purgeable_region_t *passing = filled_region(1, NULL, 1);
    (void)purgeable_offer_pending(NULL);
    (void)purgeable_region_destroy(passing);
  }
  return NULL;
}

static bool child_beside(purgeable_region_t **regions) {
  for (size_t i = 0; i < 32; i++) {
    CHECK(purgeable_region_lock(regions[i]) == purgeable_outcome_discarded);
    CHECK(purgeable_region_refill(regions[i]) == 0);
    fill_pattern(purgeable_region_bytes(regions[i]), 4 * PAGE, i);
    CHECK(purgeable_region_unlock(regions[i]) == 0);
  }
  CHECK(statistics_now().pending_count == 16);
  (void)purgeable_offer_pending(NULL);
  for (size_t i = 0; i < 32; i++) {
    CHECK(purgeable_region_lock(regions[i]) == purgeable_outcome_intact);
    CHECK(check_pattern(purgeable_region_bytes(regions[i]), 4 * PAGE, i));
    CHECK(purgeable_region_destroy(regions[i]) == 0);
  }
  return true;
}

void fork_beside_offers(case_report_t *report) {
  purgeable_probe_t probe;
  REQUIRE(purgeable_probe(&probe) == 0);
  if (!probe.wipe_on_fork) SKIP("no MADV_WIPEONFORK");
  purgeable_region_t *regions[32];
  for (size_t i = 0; i < 32; i++) REQUIRE((regions[i] = filled_region(4 * PAGE, i % 2 ? NULL : &at_once, 500 + i)) != NULL);
  pthread_t threads[2];
  atomic_store(&stop_offering, false);
  for (int i = 0; i < 2; i++) REQUIRE(pthread_create(&threads[i], NULL, offer_all_the_time, regions) == 0);
  for (uint64_t i = 0; i < 40 * report->scale; i++) IN_CHILD(child_beside(regions));
  atomic_store(&stop_offering, true);
  for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
  for (size_t i = 0; i < 32; i++) {
    EXPECT_EQUAL(purgeable_region_lock(regions[i]), purgeable_outcome_intact);
    EXPECT(check_pattern(purgeable_region_bytes(regions[i]), 4 * PAGE, 500 + i));
    EXPECT_EQUAL(purgeable_region_destroy(regions[i]), 0);
  }
}
