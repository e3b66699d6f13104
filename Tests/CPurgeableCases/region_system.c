// SPDX-License-Identifier: MIT
// Regions, third part: calls that fail, memory that is mlocked, and forks.

#include "region_cases.h"

#include <sys/syscall.h>

static bool same_statistics(const purgeable_region_statistics_t *left, const purgeable_region_statistics_t *right) {
  return memcmp(left, right, sizeof *left) == 0;
}

// MARK: Faults

void faults_in_create(case_report_t *report) {
  const size_t lengths[] = {1, 3 * PAGE, 17u << 20};
  purgeable_region_statistics_t before = statistics_now();
  for (size_t i = 0; i < 3; i++) {
    int refused = 0;
    for (uint64_t n = 1;; n++) {
      REQUIRE(n < 100);
      purgeable_region_t *untouched = (purgeable_region_t *)(void *)&n;
      purgeable_region_t *region = untouched;
      purgeable_testing_fail(purgeable_testing_call_any, n, EAGAIN, false);
      int error = purgeable_region_create(lengths[i], NULL, &region);
      bool has_failed = purgeable_testing_has_failed();
      no_faults();
      if (error != 0) {
        refused++;
        EXPECT_EQUAL(error, ENOMEM);
        EXPECT(region == untouched);
      } else {
        EXPECT(region != untouched);
        EXPECT_EQUAL(purgeable_region_destroy(region), 0);
      }
      purgeable_region_statistics_t after = statistics_now();
      EXPECT(same_statistics(&before, &after));
      if (!has_failed) break;
    }
    // At least the structure; for the large one its mapping too.
    EXPECT(refused >= (lengths[i] > (16u << 20) ? 2 : 1));
  }
  // Until no chunk has room and none can be mapped; then one attempt fails and the smaller one is taken.
  enum { LIMIT = 64 };
  purgeable_region_t *regions[LIMIT];
  size_t count = 0;
  purgeable_testing_fail(purgeable_testing_call_mmap, 1, ENOMEM, true);
  int error = 0;
  while (count < LIMIT && (error = purgeable_region_create(16u << 20, NULL, &regions[count])) == 0) count++;
  EXPECT_EQUAL(error, ENOMEM);
  purgeable_testing_fail(purgeable_testing_call_mmap, 1, ENOMEM, false);
  EXPECT_EQUAL(purgeable_region_create(16u << 20, NULL, &regions[count]), 0);
  EXPECT(purgeable_testing_has_failed());
  no_faults();
  fill_pattern(purgeable_region_bytes(regions[count]), 16u << 20, 5);
  EXPECT(check_pattern(purgeable_region_bytes(regions[count]), 16u << 20, 5));
  for (size_t i = 0; i <= count; i++) EXPECT_EQUAL(purgeable_region_destroy(regions[i]), 0);
  purgeable_region_statistics_t after = statistics_now();
  EXPECT(same_statistics(&before, &after));
}

typedef enum operation { discarding, refilling, measuring } operation_t;

static int operate(purgeable_region_t *region, operation_t operation, size_t *resident) {
  switch (operation) {
    case discarding: return purgeable_region_discard(region);
    case refilling: return purgeable_region_refill(region);
    case measuring: break;
  }
  return purgeable_region_resident(region, resident);
}

void faults_in_operations(case_report_t *report) {
  const size_t length = 4 * PAGE;
  for (operation_t operation = discarding; operation <= measuring; operation++) {
    for (int on_offer = 0; on_offer < 2; on_offer++) {
      purgeable_region_t *region = filled_region(length, on_offer ? &at_once : &not_at_all, 31);
      REQUIRE(region != NULL);
      purgeable_region_statistics_t before = statistics_now();
      for (uint64_t n = 1;; n++) {
        REQUIRE(n < 20);
        size_t resident = 77;
        purgeable_testing_fail(purgeable_testing_call_any, n, EACCES, false);
        int error = operate(region, operation, &resident);
        bool has_failed = purgeable_testing_has_failed();
        no_faults();
        if (!has_failed) {
          EXPECT_EQUAL(error, 0);
          break;
        }
        EXPECT_EQUAL(error, EACCES);
        EXPECT_EQUAL(resident, 77);
        purgeable_region_statistics_t after = statistics_now();
        EXPECT(same_statistics(&before, &after));
        EXPECT(!purgeable_region_is_discarded(region));
        EXPECT_EQUAL(purgeable_region_lock_count(region), 0);
        EXPECT_EQUAL(purgeable_region_lock(region), purgeable_outcome_intact);
        EXPECT(check_pattern(purgeable_region_bytes(region), length, 31));
        EXPECT_EQUAL(purgeable_region_unlock(region), 0);
      }
      EXPECT_EQUAL(purgeable_region_destroy(region), 0);
    }
  }
  // A refill of what is discarded fails: still discarded. A lock that finds a loss cannot give back: still discarded.
  purgeable_region_t *region = filled_region(length, &at_once, 31);
  REQUIRE(region != NULL);
  discard_exactly((char *)purgeable_region_bytes(region) + 2 * PAGE, 1);
  purgeable_testing_fail(purgeable_testing_call_madvise_dontneed, 1, EACCES, true);
  EXPECT_EQUAL(purgeable_region_lock(region), purgeable_outcome_discarded);
  EXPECT_EQUAL(purgeable_region_refill(region), EACCES);
  EXPECT_EQUAL(purgeable_region_lock(region), purgeable_outcome_discarded);
  EXPECT_EQUAL(purgeable_region_lock_count(region), 0);
  no_faults();
  EXPECT_EQUAL(purgeable_region_refill(region), 0);
  for (size_t i = 0; i < length; i++) REQUIRE(((char *)purgeable_region_bytes(region))[i] == 0);
  EXPECT_EQUAL(purgeable_region_destroy(region), 0);
  // A madvise that failed may have taken pages all the same: the next lock looks, also where nothing was ever on offer.
  for (operation_t operation = discarding; operation <= refilling; operation++) {
    region = filled_region(length, &not_at_all, 32);
    REQUIRE(region != NULL);
    purgeable_testing_fail(purgeable_testing_call_madvise_dontneed, 1, EACCES, false);
    EXPECT_EQUAL(operate(region, operation, NULL), EACCES);
    discard_exactly((char *)purgeable_region_bytes(region) + PAGE, 1);
    EXPECT_EQUAL(purgeable_region_lock(region), purgeable_outcome_discarded);
    EXPECT_EQUAL(purgeable_region_destroy(region), 0);
  }
  // A large one that cannot be unmapped gives back its memory.
  REQUIRE(purgeable_region_create(17u << 20, NULL, &region) == 0);
  purgeable_testing_fail(purgeable_testing_call_munmap, 1, ENOMEM, false);
  EXPECT_EQUAL(purgeable_region_destroy(region), 0);
  EXPECT(purgeable_testing_has_failed());
}

void faults_in_offers(case_report_t *report) {
  NEED_EXACT_DISCARDS();
  const size_t length = 2 * PAGE;
  uint64_t refused = statistics_now().refused_offer_count;
  // At once: the unlock succeeds, nothing counts as offered, the next offer is a real one.
  purgeable_region_t *region = NULL;
  REQUIRE(purgeable_region_create(length, &at_once, &region) == 0);
  fill_pattern(purgeable_region_bytes(region), length, 6);
  purgeable_testing_fail(purgeable_testing_call_madvise_free, 1, EINVAL, true);
  EXPECT_EQUAL(purgeable_region_unlock(region), 0);
  EXPECT_EQUAL(purgeable_region_offered_bytes(region), 0);
  EXPECT_EQUAL(purgeable_region_offer(region), EINVAL);
  EXPECT_EQUAL(purgeable_region_offer(region), EINVAL);
  EXPECT_EQUAL(statistics_now().refused_offer_count, refused + 3);
  EXPECT_EQUAL(purgeable_region_lock(region), purgeable_outcome_intact);
  EXPECT(check_pattern(purgeable_region_bytes(region), length, 6));
  EXPECT_EQUAL(purgeable_region_unlock(region), 0);
  no_faults();
  EXPECT_EQUAL(purgeable_region_offer(region), 0);
  EXPECT_EQUAL(purgeable_region_offered_bytes(region), length);
  EXPECT(kernel_discard(purgeable_region_bytes(region), length) > 0);
  EXPECT_EQUAL(purgeable_region_lock(region), purgeable_outcome_discarded);
  EXPECT_EQUAL(purgeable_region_destroy(region), 0);

  // In bulk: each n-th call fails once. The first errno is answered, the rest is offered, all content stays.
  enum { COUNT = 12 };
  for (uint64_t n = 1;; n++) {
    REQUIRE(n < 100);
    purgeable_region_t *regions[COUNT];
    size_t offered = 0, expected = 0;
    for (size_t i = 0; i < COUNT; i++) {
      REQUIRE(purgeable_region_create(length, i % 4 == 3 ? &not_at_all : NULL, &regions[i]) == 0);
      fill_pattern(purgeable_region_bytes(regions[i]), length, i);
      EXPECT_EQUAL(purgeable_region_unlock(regions[i]), 0);
    }
    bool are_merged = true;
    for (size_t i = 0; i + 1 < COUNT; i++) {
      char *end = (char *)purgeable_region_bytes(regions[i]) + length;
      if (i % 4 < 2 && end != (char *)purgeable_region_bytes(regions[i + 1])) are_merged = false;
    }
    uint64_t refused_before = statistics_now().refused_offer_count;
    // From the second call on twice in a row, so that also the single call that follows a merged one is refused.
    purgeable_testing_fail(purgeable_testing_call_madvise_free, n, EPERM, n % 2 == 0);
    int error = purgeable_offer_pending(&offered);
    bool has_failed = purgeable_testing_has_failed();
    no_faults();
    for (size_t i = 0; i < COUNT; i++) expected += purgeable_region_offered_bytes(regions[i]);
    EXPECT_EQUAL(offered, expected);
    uint64_t refusals = statistics_now().refused_offer_count - refused_before;
    EXPECT_EQUAL(offered, (COUNT - COUNT / 4 - refusals) * length);
    EXPECT_EQUAL(error, refusals == 0 ? 0 : EPERM);
    EXPECT_EQUAL(statistics_now().pending_count, 0);
    for (size_t i = 0; i < COUNT; i++) {
      EXPECT_EQUAL(purgeable_region_lock(regions[i]), purgeable_outcome_intact);
      EXPECT(check_pattern(purgeable_region_bytes(regions[i]), length, i));
      EXPECT_EQUAL(purgeable_region_destroy(regions[i]), 0);
    }
    if (!has_failed) break;
    if (n % 2 == 0) EXPECT(refusals != 0);
    // A merged call that fails once is made up for, region by region.
    if (n % 2 == 1 && are_merged) EXPECT_EQUAL(refusals, 0);
  }
  // Zeros whose DONTNEED is refused are no refusal of the offer.
  REQUIRE(purgeable_region_create(length, &at_once, &region) == 0);
  *(char *)purgeable_region_bytes(region) = 1;
  refused = statistics_now().refused_offer_count;
  purgeable_testing_fail(purgeable_testing_call_madvise_dontneed, 1, EPERM, true);
  EXPECT_EQUAL(purgeable_region_unlock(region), 0);
  EXPECT(purgeable_testing_has_failed());
  no_faults();
  EXPECT_EQUAL(statistics_now().refused_offer_count, refused);
  EXPECT_EQUAL(purgeable_region_lock(region), purgeable_outcome_intact);
  EXPECT_EQUAL(purgeable_region_destroy(region), 0);
}

void pages_that_cannot_be_wiped(case_report_t *report) {
  enum { COUNT = 300 };
  static purgeable_region_t *regions[COUNT];
  purgeable_region_t *region = filled_region(PAGE, NULL, 1);
  REQUIRE(region != NULL);
  void *tainted = purgeable_region_bytes(region);
  purgeable_region_statistics_t before = statistics_now();
  purgeable_testing_fail(purgeable_testing_call_madvise_dontneed, 1, EPERM, true);
  EXPECT_EQUAL(purgeable_region_destroy(region), 0);
  EXPECT(purgeable_testing_has_failed());
  no_faults();
  EXPECT_EQUAL(statistics_now().region_count, before.region_count - 1);
  EXPECT_EQUAL(statistics_now().pending_count, before.pending_count - 1);
  for (size_t i = 0; i < COUNT; i++) {
    REQUIRE(purgeable_region_create(1, NULL, &regions[i]) == 0);
    EXPECT(purgeable_region_bytes(regions[i]) != tainted);
    EXPECT_EQUAL(*(char *)purgeable_region_bytes(regions[i]), 0);
  }
  for (size_t i = 0; i < COUNT; i++) EXPECT_EQUAL(purgeable_region_destroy(regions[i]), 0);
}

// MARK: mlock

void mlocked_bytes(case_report_t *report) {
  const size_t length = 6 * PAGE;
  purgeable_region_t *region = NULL;
  REQUIRE(purgeable_region_create(length, &at_once, &region) == 0);
  char *bytes = purgeable_region_bytes(region);
  // Not by the C library's functions: sanitizers turn those into nothing.
  if (syscall(SYS_mlock, bytes, length) != 0) {
    (void)purgeable_region_destroy(region);
    SKIP("mlock is refused");
  }
  fill_pattern(bytes, length - PAGE, 3);
  EXPECT_EQUAL(purgeable_region_unlock(region), 0);
  EXPECT_EQUAL(purgeable_region_offered_bytes(region), 0);
  EXPECT(purgeable_region_offer(region) != 0);
  (void)kernel_discard(bytes, length);
  EXPECT_EQUAL(purgeable_region_lock(region), purgeable_outcome_intact);
  EXPECT(check_pattern(bytes, length - PAGE, 3));
  EXPECT_EQUAL(purgeable_region_unlock(region), 0);
  EXPECT_EQUAL(purgeable_region_discard(region), 0);
  EXPECT_EQUAL(purgeable_region_lock(region), purgeable_outcome_discarded);
  EXPECT_EQUAL(purgeable_region_refill(region), 0);
  for (size_t i = 0; i < length; i++) REQUIRE(bytes[i] == 0);
  // The zeros of the last page are filled in while mlocked, too.
  fill_pattern(bytes, length, 4);
  EXPECT_EQUAL(purgeable_region_unlock(region), 0);
  EXPECT_EQUAL(purgeable_region_lock(region), purgeable_outcome_intact);
  EXPECT(check_pattern(bytes, length, 4));
  EXPECT_EQUAL(purgeable_region_destroy(region), 0);
  // Destroyed while mlocked: wiped by hand, so whoever gets the pages next finds zeros.
  REQUIRE(purgeable_region_create(length, &at_once, &region) == 0);
  for (size_t i = 0; i < length; i++) REQUIRE(((char *)purgeable_region_bytes(region))[i] == 0);
  EXPECT_EQUAL(purgeable_region_destroy(region), 0);
  EXPECT_EQUAL(syscall(SYS_munlock, bytes, length), 0);
}

static bool use_under_mlockall(void) {
  purgeable_probe_t probe;
  purgeable_testing_forget_probe();
  CHECK(purgeable_probe(&probe) == 0);
  CHECK(probe.kernel_class == purgeable_kernel_class_mlocked);
  const size_t length = (16u << 20) + 5;
  purgeable_region_t *region = filled_region(length, NULL, 8);
  CHECK(region != NULL);
  CHECK(purgeable_offer_pending(NULL) == EINVAL);
  CHECK(purgeable_region_offered_bytes(region) == 0);
  CHECK(purgeable_region_lock(region) == purgeable_outcome_intact);
  CHECK(check_pattern(purgeable_region_bytes(region), length, 8));
  CHECK(purgeable_region_unlock(region) == 0);
  CHECK(purgeable_region_refill(region) == 0);
  for (size_t i = 0; i < length; i++) CHECK(((char *)purgeable_region_bytes(region))[i] == 0);
  CHECK(purgeable_region_destroy(region) == 0);
  return true;
}

void mlocked_process(case_report_t *report) {
  int child = fork();
  if (child == 0) {
    if (syscall(SYS_mlockall, MCL_FUTURE) != 0) _exit(77);
    _exit(use_under_mlockall() ? 0 : 1);
  }
  int status = wait_for_child(child);
  if (status == 77) SKIP("mlockall is refused");
  EXPECT_EQUAL(status, 0);
}

// MARK: Fork

enum { STATES = 9, LENGTH_PAGES = 3 };

static size_t length_of(size_t i) { return i == STATES - 1 ? (16u << 20) + 1 : LENGTH_PAGES * PAGE; }

static bool child_uses(purgeable_region_t **regions) {
  size_t bytes = 0;
  purgeable_region_statistics_t now = statistics_now();
  CHECK(now.locked_bytes == 0 && now.offered_bytes == 0 && now.pending_count == 0 && now.kernel_discard_count == 0);
  CHECK(now.region_count == STATES && now.discarded_bytes == now.region_bytes);
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
  CHECK(now.discarded_bytes == bytes && now.region_bytes == bytes);
  for (size_t i = 0; i < STATES; i++) {
    CHECK(purgeable_region_refill(regions[i]) == 0);
    CHECK(*(char *)purgeable_region_bytes(regions[i]) == 0);
    fill_pattern(purgeable_region_bytes(regions[i]), length_of(i), 100 + i);
    CHECK(purgeable_region_unlock(regions[i]) == 0);
  }
  CHECK(statistics_now().discarded_bytes == 0);
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
  CHECK(now.region_count == 0 && now.region_bytes == 0 && now.discarded_bytes == 0 && now.locked_bytes == 0);
  return true;
}

// The child destroys without a look: what was queued in the parent is in no queue here.
static bool child_destroys(purgeable_region_t **regions) {
  for (size_t i = 0; i < STATES; i++) CHECK(purgeable_region_destroy(regions[i]) == 0);
  purgeable_region_statistics_t now = statistics_now();
  CHECK(now.region_count == 0 && now.discarded_bytes == 0 && now.pending_count == 0);
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
  alarm(20);
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
