// SPDX-License-Identifier: MIT
// Regions, third part: calls that fail, and memory that is mlocked.

#include "region_cases.h"

#include <sys/resource.h>
#include <sys/syscall.h>

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
    // The large region's mapping and its structure can be refused; a small one goes on with a smaller chunk where a chunk is
    // refused.
    EXPECT(refused >= 2 || lengths[i] <= (16u << 20));
    purgeable_region_t *none = NULL;
    purgeable_testing_fail(purgeable_testing_call_allocate, 1, ENOMEM, false);
    EXPECT_EQUAL(purgeable_region_create(lengths[i], NULL, &none), ENOMEM);
    no_faults();
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
  return purgeable_region_resident_bytes(region, resident);
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
  // A large one that cannot be unmapped gives back its memory, and the answer says so.
  REQUIRE(purgeable_region_create(17u << 20, NULL, &region) == 0);
  char *bytes = purgeable_region_bytes(region);
  memset(bytes, 5, 17u << 20);
  purgeable_testing_fail(purgeable_testing_call_munmap, 1, ENOMEM, false);
  EXPECT_EQUAL(purgeable_region_destroy(region), ENOMEM);
  EXPECT(purgeable_testing_has_failed());
  unsigned char pages[1];
  for (size_t at = 0; at < 17u << 20; at += PAGE) REQUIRE(mincore(bytes + at, PAGE, pages) == 0 && (pages[0] & 1) == 0);
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

  // In bulk, each n-th call fails once. The call returns the first errno, the rest is offered, and all content stays.
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
    EXPECT_EQUAL(statistics_now().pending_count, refusals);
    for (size_t i = 0; i < COUNT; i++) {
      EXPECT_EQUAL(purgeable_region_lock(regions[i]), purgeable_outcome_intact);
      EXPECT(check_pattern(purgeable_region_bytes(regions[i]), length, i));
      EXPECT_EQUAL(purgeable_region_destroy(regions[i]), 0);
    }
    if (!has_failed) break;
    if (n % 2 == 0) EXPECT(refusals != 0);
    // When a merged call fails once, each of its regions is offered alone.
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
  EXPECT_EQUAL(purgeable_region_destroy(region), EPERM);
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
  // Not by the C library's function, which sanitizers turn into nothing.
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
  // Destroyed while mlocked: wiped by hand, so the next owner of the pages finds zeros.
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
  struct rlimit limit;
  bool is_room = getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur >= (256u << 20);
  if (!is_room && geteuid() != 0) SKIP("RLIMIT_MEMLOCK does not allow for 64 MiB");
  if (!kernel_offers()) SKIP("offers are refused to everybody here");
  int child = fork();
  if (child == 0) {
    if (syscall(SYS_mlockall, MCL_FUTURE) != 0) _exit(77);
    _exit(use_under_mlockall() ? 0 : 1);
  }
  int status = wait_for_child(child);
  if (status == 77) SKIP("mlockall is refused");
  EXPECT_EQUAL(status, 0);
}
