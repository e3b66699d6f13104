// SPDX-License-Identifier: MIT
// Pages on offer can be taken: those in another processor's batch, pages of zeros, refusals; and idle memory that waits for a
// call of the host has a bound.

#include "memory_group.h"
#include "region_cases.h"

#include <sched.h>
#include <sys/syscall.h>

#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT 21
#endif

// MARK: Filled on one processor, offered from another

// The first two processors this process may use. False where there is one.
static bool two_processors(int *first, int *second) {
  cpu_set_t allowed;
  *first = *second = -1;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return false;
  for (int cpu = 0; cpu < CPU_SETSIZE && *second < 0; cpu++) {
    if (!CPU_ISSET((size_t)cpu, &allowed)) continue;
    *(*first < 0 ? first : second) = cpu;
  }
  return *second >= 0;
}

static void move_to(int cpu) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET((size_t)cpu, &one);
  (void)sched_setaffinity(0, sizeof one, &one);
}

enum { MOST = 20 };

static struct {
  purgeable_region_t *regions[MOST];
  size_t count, length;
  // Of the thread that fills, and of the one that offers.
  int cpu, here;
  // 1: filled; 2: drain; 3: drained; 4: end.
  _Atomic int step;
} filled;

// Spins at first, because a thread that runs here instead may drain the batch.
static void wait_for_step(int step) {
  for (uint64_t i = 0; atomic_load(&filled.step) < step; i++) {
    if (i > 20000000) (void)usleep(200);
  }
}

// Fills, and then keeps its processor's batch until it is told to drain it, as any offer of memory there does.
static void *fills_elsewhere(void *context) {
  (void)context;
  move_to(filled.cpu);
  for (size_t i = 0; i < filled.count; i++) fill_pattern(purgeable_region_bytes(filled.regions[i]), filled.length, i);
  atomic_store(&filled.step, 1);
  wait_for_step(2);
  char *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page != MAP_FAILED) {
    *page = 1;
    (void)madvise(page, PAGE, MADV_PAGEOUT);
    (void)munmap(page, PAGE);
  }
  atomic_store(&filled.step, 3);
  wait_for_step(4);
  return NULL;
}

// How many pages are left after the kernel was asked to take all.
static size_t left_after_page_out(void) {
  size_t left = 0;
  for (size_t i = 0; i < filled.count; i++) {
    size_t resident = 0;
    for (int round = 0; round < 2; round++) {
      (void)madvise(purgeable_region_bytes(filled.regions[i]), filled.length, MADV_PAGEOUT);
    }
    if (purgeable_region_resident_bytes(filled.regions[i], &resident) == 0) left += resident / PAGE;
  }
  return left;
}

// Fills regions on one processor, offers them from another, in a mode; returns the pages left after one more upkeep.
static size_t left_of(size_t count, size_t pages, const purgeable_region_options_t *options, bool one_by_one, size_t *first) {
  pthread_t thread;
  atomic_store(&filled.step, 0);
  filled.count = count;
  filled.length = pages * PAGE;
  for (size_t i = 0; i < count; i++) {
    if (purgeable_region_create(filled.length, options, &filled.regions[i]) != 0) abort();
  }
  if (pthread_create(&thread, NULL, fills_elsewhere, NULL) != 0) abort();
  wait_for_step(1);
  for (size_t i = 0; i < count; i++) (void)purgeable_region_unlock(filled.regions[i]);
  (void)purgeable_offer_pending(NULL);
  atomic_store(&filled.step, 2);
  wait_for_step(3);
  for (int round = 0; round < 2; round++) {
    if (!one_by_one) (void)purgeable_offer_pending(NULL);
    for (size_t i = 0; one_by_one && i < count; i++) (void)purgeable_region_offer(filled.regions[i]);
  }
  *first = 0;
  for (size_t i = 0; i < count; i++) *first += purgeable_region_offered_bytes(filled.regions[i]) / PAGE;
  size_t left = left_after_page_out();
  atomic_store(&filled.step, 4);
  (void)pthread_join(thread, NULL);
  for (size_t i = 0; i < count; i++) (void)purgeable_region_destroy(filled.regions[i]);
  return left;
}

static void offered_from_another_processor(case_report_t *report) {
  NEED_DISCARDS();
  if (!two_processors(&filled.cpu, &filled.here)) SKIP("one processor");
  move_to(filled.here);
  const size_t shapes[][2] = {{20, 1}, {20, 16}};
  for (size_t i = 0; i < 2; i++) {
    for (int way = 0; way < 4; way++) {
      size_t said = 0, pages = shapes[i][0] * shapes[i][1];
      size_t left = left_of(shapes[i][0], shapes[i][1], way < 2 ? NULL : &at_once, way % 2 == 1, &said);
      EXPECT_EQUAL(said, pages);
      EXPECT_EQUAL(left, 0);
    }
  }
  if (!purgeable_testing_has_hooks()) return;
  purgeable_testing_switch_off(purgeable_testing_rule_offer_again);
  size_t said = 0, left = 0;
  for (int i = 0; i < 100 && left == 0; i++) left = left_of(20, 1, NULL, false, &said);
  purgeable_testing_switch_off(0);
  NOTE("offered once: %zu of 20 pages are never taken", left);
  EXPECT(left > 0);
}

// By a clock that the case sets: a wait ends at its very millisecond.
static void offered_again_until_used(case_report_t *report) {
  NEED_HOOKS();
  NEED_DISCARDS();
  // Entries that other cases left in the rings have gone with their regions.
  EXPECT_EQUAL(purgeable_offer_pending(NULL), 0);
  EXPECT_EQUAL(purgeable_offer_pending_due_ms(), UINT64_MAX);
  purgeable_region_t *region = filled_region(2 * PAGE, NULL, 1);
  REQUIRE(region != NULL);
  EXPECT_EQUAL(purgeable_offer_pending_due_ms(), 0);
  // Two offers at once, one after a second, one after another eight seconds: the calls a millisecond before those come too early.
  const uint64_t begin_ms = now_ms();
  const struct {
    uint64_t at_ms, offers, due_ms;
  } steps[] = {{0, 1, 0},    {0, 2, 0},       {0, 3, 1000},      {0, 3, 1000},     {999, 3, 1},
               {1000, 4, 8000}, {1000, 4, 8000}, {8999, 4, 1}, {9000, 5, 64000}, {9001, 5, 63999}};
  uint64_t begun = purgeable_testing_call_count(purgeable_testing_call_madvise_free);
  for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
    size_t offered = 9;
    EXPECT(purgeable_testing_set_queue_clock_ms(begin_ms + steps[i].at_ms));
    EXPECT_EQUAL(purgeable_offer_pending(&offered), 0);
    EXPECT_EQUAL(offered, i == 0 ? 2 * PAGE : 0);
    EXPECT_EQUAL(purgeable_testing_call_count(purgeable_testing_call_madvise_free) - begun, steps[i].offers);
    EXPECT_EQUAL(purgeable_offer_pending_due_ms(), steps[i].due_ms);
    EXPECT_EQUAL(statistics_now().pending_count, 0);
  }
  // When the region is used again, counting begins anew; when it is discarded, it leaves the queue.
  EXPECT_EQUAL(purgeable_region_lock(region), purgeable_outcome_intact);
  EXPECT_EQUAL(purgeable_region_unlock(region), 0);
  EXPECT_EQUAL(statistics_now().pending_count, 1);
  EXPECT_EQUAL(statistics_now().memory.pending_bytes, 2 * PAGE);
  EXPECT_EQUAL(purgeable_offer_pending(NULL), 0);
  EXPECT_EQUAL(statistics_now().memory.pending_bytes, 0);
  EXPECT_EQUAL(purgeable_offer_pending_due_ms(), 0);
  EXPECT_EQUAL(purgeable_region_discard(region), 0);
  EXPECT_EQUAL(purgeable_offer_pending(NULL), 0);
  EXPECT_EQUAL(purgeable_offer_pending_due_ms(), UINT64_MAX);
  EXPECT_EQUAL(purgeable_region_destroy(region), 0);
  // By the machine's clock a wait lasts no longer.
  EXPECT(purgeable_testing_set_queue_clock_ms(0));
  REQUIRE((region = filled_region(2 * PAGE, NULL, 1)) != NULL);
  for (int i = 0; i < 3; i++) EXPECT_EQUAL(purgeable_offer_pending(NULL), 0);
  EXPECT(purgeable_offer_pending_due_ms() <= 1000);
  EXPECT_EQUAL(purgeable_region_destroy(region), 0);
}

// In immediate mode each use begins anew, too, without a queue.
static void offered_at_once_and_again(case_report_t *report) {
  NEED_HOOKS();
  NEED_DISCARDS();
  EXPECT_EQUAL(purgeable_offer_pending(NULL), 0);
  EXPECT_EQUAL(purgeable_offer_pending_due_ms(), UINT64_MAX);
  const uint64_t begin_ms = now_ms();
  EXPECT(purgeable_testing_set_queue_clock_ms(begin_ms));
  purgeable_region_t *region = filled_region(2 * PAGE, &at_once, 1);
  REQUIRE(region != NULL);
  for (int use = 0; use < 2; use++) {
    uint64_t begun = purgeable_testing_call_count(purgeable_testing_call_madvise_free);
    EXPECT_EQUAL(purgeable_offer_pending_due_ms(), 0);
    for (uint64_t offers = 1; offers <= 2; offers++) {
      EXPECT_EQUAL(purgeable_offer_pending(NULL), 0);
      EXPECT_EQUAL(purgeable_testing_call_count(purgeable_testing_call_madvise_free) - begun, offers);
    }
    EXPECT_EQUAL(purgeable_offer_pending_due_ms(), 1000);
    EXPECT_EQUAL(purgeable_region_lock(region), purgeable_outcome_intact);
    EXPECT_EQUAL(purgeable_region_unlock(region), 0);
  }
  EXPECT_EQUAL(purgeable_region_destroy(region), 0);
  EXPECT(purgeable_testing_set_queue_clock_ms(0));
}

// MARK: What counts as offered

static void zeros_are_not_on_offer(case_report_t *report) {
  NEED_EXACT_DISCARDS();
  const size_t pages = 10;
  purgeable_region_statistics_t before = statistics_now();
  purgeable_region_t *region = NULL;
  REQUIRE(purgeable_region_create(pages * PAGE, NULL, &region) == 0);
  // Every third page has content.
  size_t with_content = 0, offered = 0;
  for (size_t i = 0; i < pages; i += 3, with_content++) ((char *)purgeable_region_bytes(region))[i * PAGE] = 1;
  EXPECT_EQUAL(purgeable_region_unlock(region), 0);
  EXPECT_EQUAL(purgeable_offer_pending(&offered), 0);
  EXPECT_EQUAL(offered, with_content * PAGE);
  EXPECT_EQUAL(purgeable_region_offered_bytes(region), with_content * PAGE);
  EXPECT_EQUAL(statistics_now().memory.offered_bytes - before.memory.offered_bytes, with_content * PAGE);
  EXPECT_EQUAL(kernel_discard(purgeable_region_bytes(region), pages * PAGE), pages);
  EXPECT_EQUAL(purgeable_region_lock(region), purgeable_outcome_discarded);
  EXPECT_EQUAL(statistics_now().memory.offered_bytes, before.memory.offered_bytes);
  EXPECT_EQUAL(purgeable_region_destroy(region), 0);
}

static void mlocked_after_the_offer(case_report_t *report) {
  NEED_EXACT_DISCARDS();
  purgeable_region_statistics_t before = statistics_now();
  purgeable_region_t *region = filled_region(3 * PAGE, NULL, 1);
  REQUIRE(region != NULL);
  EXPECT_EQUAL(purgeable_offer_pending(NULL), 0);
  EXPECT_EQUAL(purgeable_region_offered_bytes(region), 3 * PAGE);
  char *bytes = purgeable_region_bytes(region);
  if (syscall(SYS_mlock, bytes, 3 * PAGE) != 0) {
    EXPECT_EQUAL(purgeable_region_destroy(region), 0);
    SKIP("mlock is refused");
  }
  // The next offer of pages on offer finds that out.
  EXPECT_EQUAL(purgeable_offer_pending(NULL), EINVAL);
  EXPECT_EQUAL(purgeable_region_offered_bytes(region), 0);
  EXPECT_EQUAL(statistics_now().memory.offered_bytes, before.memory.offered_bytes);
  EXPECT_EQUAL(purgeable_region_state(region), purgeable_state_idle);
  EXPECT_EQUAL(syscall(SYS_munlock, bytes, 3 * PAGE), 0);
  EXPECT_EQUAL(purgeable_region_offer(region), 0);
  EXPECT_EQUAL(purgeable_region_offered_bytes(region), 3 * PAGE);
  EXPECT_EQUAL(purgeable_region_lock(region), purgeable_outcome_intact);
  EXPECT(check_pattern(bytes, 3 * PAGE, 1));
  EXPECT_EQUAL(purgeable_region_destroy(region), 0);
  EXPECT_EQUAL(statistics_now().memory.offered_bytes, before.memory.offered_bytes);
}

// MARK: The bound on what waits

static void pending_has_a_bound(case_report_t *report) {
  NEED_DISCARDS();
  enum { COUNT = 40 };
  purgeable_region_t *regions[COUNT];
  purgeable_set_pending_byte_limit(8 * PAGE);
  uint64_t most = 0;
  for (size_t i = 0; i < COUNT; i++) {
    REQUIRE((regions[i] = filled_region(PAGE, NULL, i)) != NULL);
    uint64_t pending = statistics_now().memory.pending_bytes;
    if (pending > most) most = pending;
  }
  EXPECT_EQUAL(most, 8 * PAGE);
  EXPECT(statistics_now().memory.offered_bytes >= 24 * PAGE);
  // A region of more than the bound does not wait at all; without a bound all does.
  purgeable_region_t *large = filled_region(9 * PAGE, NULL, 3);
  EXPECT_EQUAL(statistics_now().memory.pending_bytes, 0);
  EXPECT_EQUAL(purgeable_region_offered_bytes(large), 9 * PAGE);
  purgeable_set_pending_byte_limit(UINT64_MAX);
  EXPECT_EQUAL(purgeable_region_lock(large), purgeable_outcome_intact);
  EXPECT(check_pattern(purgeable_region_bytes(large), 9 * PAGE, 3));
  EXPECT_EQUAL(purgeable_region_unlock(large), 0);
  EXPECT_EQUAL(statistics_now().memory.pending_bytes, 9 * PAGE);
  purgeable_set_pending_byte_limit(PURGEABLE_PENDING_BYTE_LIMIT_DEFAULT);
  EXPECT_EQUAL(purgeable_region_destroy(large), 0);
  for (size_t i = 0; i < COUNT; i++) EXPECT_EQUAL(purgeable_region_destroy(regions[i]), 0);
  EXPECT_EQUAL(statistics_now().memory.pending_bytes, 0);
}

static _Atomic bool stop_upkeep;

static void *upkeep_each_second(void *context) {
  (void)context;
  for (int i = 0; !atomic_load(&stop_upkeep); i = (i + 1) % 100) {
    if (i == 0) (void)purgeable_offer_pending(NULL);
    (void)usleep(10000);
  }
  return NULL;
}

// Fills a thousand regions of a MiB in a group of 200, as fast as it can.
static bool pass_through(const memory_group_t *group) {
  enum { COUNT = 1000 };
  static purgeable_region_t *regions[COUNT];
  alarm(300);
  CHECK(memory_group_join(group));
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, upkeep_each_second, NULL) == 0);
  size_t intact = 0;
  for (size_t i = 0; i < COUNT; i++) {
    CHECK(purgeable_region_create(1 << 20, NULL, &regions[i]) == 0);
    memset(purgeable_region_bytes(regions[i]), (int)(i % 255) + 1, 1 << 20);
    CHECK(purgeable_region_unlock(regions[i]) == 0);
  }
  for (size_t i = 0; i < COUNT; i++) {
    if (purgeable_region_lock(regions[i]) != purgeable_outcome_intact) continue;
    const char *bytes = purgeable_region_bytes(regions[i]);
    CHECK((unsigned char)bytes[0] == i % 255 + 1 && memcmp(bytes, bytes + 1, (1 << 20) - 1) == 0);
    CHECK(purgeable_region_unlock(regions[i]) == 0);
    intact++;
  }
  CHECK(intact < 200);
  atomic_store(&stop_upkeep, true);
  CHECK(pthread_join(thread, NULL) == 0);
  return true;
}

static void survives_in_a_group(case_report_t *report) {
  NEED_DISCARDS();
  memory_group_t group;
  const char *reason;
  if (!memory_group_make(&group, 200u << 20, &reason)) SKIP("%s", reason);
  int child = fork();
  if (child == 0) _exit(pass_through(&group) ? 0 : 1);
  EXPECT_EQUAL(wait_for_child(child), 0);
  EXPECT_EQUAL(memory_group_remove(&group), 0);
}

// MARK: Cancelled in the middle of destroy

enum { CROWD = 60000 };

static purgeable_region_t *crowd[CROWD];
static _Atomic size_t destroyed;
static _Atomic bool stop_sorting;

static void *destroys_a_crowd(void *context) {
  (void)context;
  for (size_t i; (i = atomic_fetch_add(&destroyed, 1)) < CROWD;) {
    (void)purgeable_region_destroy(crowd[i]);
    pthread_testcancel();
  }
  return NULL;
}

static void *offers_a_crowd(void *context) {
  (void)context;
  while (!atomic_load(&stop_sorting)) (void)purgeable_offer_pending(NULL);
  return NULL;
}

// A destroy that waits for a sort of the queue was a place where a thread could be cancelled, with the mutex of all regions.
static bool cancelled_in_destroy(void) {
  purgeable_set_pending_byte_limit(UINT64_MAX);
  for (size_t i = 0; i < CROWD; i++) CHECK((crowd[i] = filled_region(1, NULL, i)) != NULL);
  pthread_t sorter, destroyer;
  CHECK(pthread_create(&sorter, NULL, offers_a_crowd, NULL) == 0);
  for (int i = 0; i < 200 && atomic_load(&destroyed) < CROWD; i++) {
    CHECK(pthread_create(&destroyer, NULL, destroys_a_crowd, NULL) == 0);
    (void)usleep(i == 0 ? 100 : 500);
    CHECK(pthread_cancel(destroyer) == 0 && pthread_join(destroyer, NULL) == 0);
    for (size_t k = 0; k < 200 && atomic_load(&destroyed) + 2 * k < CROWD; k++) {
      purgeable_region_t *region = crowd[CROWD - 1 - k];
      if (purgeable_region_lock(region) == purgeable_outcome_intact) CHECK(purgeable_region_unlock(region) == 0);
    }
  }
  atomic_store(&stop_sorting, true);
  CHECK(pthread_join(sorter, NULL) == 0);
  purgeable_region_t *region = filled_region(1, NULL, 1);
  CHECK(region != NULL && purgeable_region_destroy(region) == 0);
  return true;
}

static void destroy_is_no_cancellation_point(case_report_t *report) { IN_CHILD(cancelled_in_destroy()); }

const test_case_t region_again_cases[] = {
    FULL_CASE("region offer: filled on one processor, offered from another", offered_from_another_processor),
    CASE("region offer: again and again while it is on offer", offered_again_until_used),
    CASE("region offer: in immediate mode, too, each use begins anew", offered_at_once_and_again),
    CASE("region offer: pages of zeros are not on offer", zeros_are_not_on_offer),
    CASE("region offer: mlocked after the offer", mlocked_after_the_offer),
    CASE("region offer: what waits has a bound", pending_has_a_bound),
    FULL_CASE("region offer: a thousand MiB through a group of 200", survives_in_a_group),
    CASE("region: destroy is no cancellation point", destroy_is_no_cancellation_point),
    END_OF_CASES,
};
