// SPDX-License-Identifier: MIT
// Regions, two calls at a time: locks against offers that are running and against discards, and regions that are destroyed while
// they are offered.

#include "region_words.h"

#include <sched.h>

// MARK: Locks that began inside an offer

enum { OFFERED_PAGES = 64 };

static struct {
  purgeable_region_t *region;
  size_t length;
  uint64_t target;
  // 0: until the target is reached.
  uint64_t rounds;
  _Atomic bool stop;
  uint64_t waited, lost, refused;
} duel;

// The two threads have to be on two CPUs: otherwise a lock meets a madvise only when that is preempted, and wake-ups would pull
// the threads together.
static void stay_on_cpu(int which) {
  cpu_set_t allowed, one;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) < 2) return;
  CPU_ZERO(&one);
  for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++) {
    if (!CPU_ISSET(cpu, &allowed) || which-- != 0) continue;
    CPU_SET(cpu, &one);
    (void)pthread_setaffinity_np(pthread_self(), sizeof one, &one);
    return;
  }
}

static void *offers(void *context) {
  (void)context;
  while (!atomic_load_explicit(&duel.stop, memory_order_relaxed)) {
    if (purgeable_region_offer(duel.region) == EBUSY) sched_yield();
  }
  return NULL;
}

// Locks the moment it sees the region offered, which is when the madvise begins. Then it has the kernel try to take the locked
// pages.
static void *locks(void *context) {
  (void)context;
  uint64_t number = 1;
  uint64_t give_up = now_ms() + 5000 + 2 * duel.target;
  // Without hooks waits are not counted, and every lock is examined.
  bool counts = purgeable_testing_has_hooks();
  for (uint64_t round = 0; duel.rounds != 0 ? round < duel.rounds : duel.waited < duel.target && now_ms() < give_up; round++) {
    for (int spin = 0; spin < 20000 && purgeable_region_offered_bytes(duel.region) == 0; spin++) {
      if (spin % 1000 == 999 && duel.rounds == 0) sched_yield();
    }
    uint64_t before = purgeable_testing_waited_lock_count();
    purgeable_outcome_t outcome = purgeable_region_lock(duel.region);
    bool waited = !counts || purgeable_testing_waited_lock_count() != before;
    duel.waited += waited;
    if (outcome == purgeable_outcome_intact && waited) {
      page_out(purgeable_region_bytes(duel.region), duel.length);
      page_out(purgeable_region_bytes(duel.region), duel.length);
      if (!is_number(purgeable_region_bytes(duel.region), 0, words_in(duel.length), number)) {
        duel.lost++;
        outcome = purgeable_outcome_discarded;
      }
    }
    if (purgeable_region_lock_count(duel.region) != 0) (void)purgeable_region_unlock(duel.region);
    if (outcome == purgeable_outcome_intact) continue;
    // This test pages out only locked pages, but under real pressure the kernel may take others.
    duel.refused++;
    while (purgeable_region_refill(duel.region) == EBUSY) sched_yield();
    write_number(purgeable_region_bytes(duel.region), duel.length, ++number);
    (void)purgeable_region_unlock(duel.region);
  }
  atomic_store(&duel.stop, true);
  return NULL;
}

static void *either(void *context) {
  int role = *(int *)context;
  stay_on_cpu(role);
  return role == 0 ? offers(NULL) : locks(NULL);
}

// Until so many locks have waited for an offer; `rounds` != 0: so many locks, whether they waited or not.
static bool run_duel(uint64_t target, uint64_t rounds) {
  memset(&duel, 0, sizeof duel);
  duel.length = OFFERED_PAGES * PAGE;
  duel.target = target;
  duel.rounds = rounds;
  if (purgeable_region_create(duel.length, NULL, &duel.region) != 0) return false;
  write_number(purgeable_region_bytes(duel.region), duel.length, 1);
  (void)purgeable_region_unlock(duel.region);
  int roles[] = {0, 1};
  run_threads(2, either, roles, sizeof roles[0]);
  return purgeable_region_destroy(duel.region) == 0;
}

void locks_inside_offers(case_report_t *report) {
  NEED_DISCARDS();
  uint64_t target = 1500 * report->scale;
  REQUIRE(run_duel(target, report->is_full ? 0 : 200 * report->scale));
  NOTE("%llu of %llu locks %s, %llu lost, %llu discarded otherwise", (unsigned long long)duel.waited,
       (unsigned long long)target,
       purgeable_testing_has_hooks() ? "began inside a madvise" : "beside offers", (unsigned long long)duel.lost,
       (unsigned long long)(duel.refused - duel.lost));
  // On a machine that is busy with other things the time may run out first.
  if (report->is_full) EXPECT(duel.waited > target / 50);
  EXPECT_EQUAL(duel.lost, 0);
}

void locks_that_do_not_wait(case_report_t *report) {
  NEED_DISCARDS();
  if (!purgeable_testing_has_hooks()) SKIP("this build cannot switch rules off");
  purgeable_testing_switch_off(purgeable_testing_rule_wait_for_offer);
  bool ran = run_duel(500 * report->scale, 0);
  purgeable_testing_switch_off(0);
  REQUIRE(ran);
  NOTE("%llu of %llu locks lost content", (unsigned long long)duel.lost, (unsigned long long)duel.waited);
  EXPECT(duel.lost > 0);
}

typedef struct early_lock {
  purgeable_region_t *region;
  purgeable_outcome_t outcome;
  bool is_done;
} early_lock_t;

static void lock_now(void *context) {
  early_lock_t *lock = context;
  if (lock->is_done) return;
  lock->is_done = true;
  lock->outcome = purgeable_region_lock(lock->region);
}

// The same without a race: the lock comes between two calls of the offer, in the same thread. (With the rule on it would wait for
// itself.) The later calls put pages on offer that are locked.
void lock_between_calls(case_report_t *report) {
  if (!purgeable_testing_has_hooks()) SKIP("this build cannot switch rules off");
  NEED_EXACT_DISCARDS();
  enum { PAGES = 16, ROUNDS = 20 };
  int lost = 0;
  for (int round = 0; round < ROUNDS; round++) {
    early_lock_t lock = {.region = NULL, .outcome = purgeable_outcome_error};
    REQUIRE(purgeable_region_create(PAGES * PAGE, NULL, &lock.region) == 0);
    char *bytes = purgeable_region_bytes(lock.region);
    // Every other page has content, so that each gets a call of its own.
    for (size_t page = 0; page < PAGES; page += 2) bytes[page * PAGE] = 1;
    EXPECT_EQUAL(purgeable_region_unlock(lock.region), 0);
    // Drains the batch of young pages, which a madvise skips.
    (void)kernel_discard(bytes, PAGES * PAGE);
    purgeable_testing_switch_off(purgeable_testing_rule_wait_for_offer | purgeable_testing_rule_lockers_end_offers);
    (void)purgeable_testing_set_pause(lock_now, &lock);
    EXPECT_EQUAL(purgeable_region_offer(lock.region), 0);
    (void)purgeable_testing_set_pause(NULL, NULL);
    purgeable_testing_switch_off(0);
    REQUIRE(lock.outcome == purgeable_outcome_intact);
    (void)kernel_discard(bytes, PAGES * PAGE);
    int found = 0;
    for (size_t page = 0; page < PAGES; page += 2) found += bytes[page * PAGE];
    lost += found != PAGES / 2;
    EXPECT_EQUAL(purgeable_region_unlock(lock.region), 0);
    EXPECT_EQUAL(purgeable_region_destroy(lock.region), 0);
  }
  NOTE("rule off: %d of %d locks lost content", lost, ROUNDS);
  EXPECT(lost > 0);
}

// MARK: Locks that wait for a discard

static struct {
  purgeable_region_t *region;
  span_t span;
  _Atomic uint64_t intact, discarded, refills, wrong;
} tug;

// A thread that waits for a madvise that ends as a discard has to go on, also while others wait to refill.
static void *pulls(void *context) {
  const size_t length = 2 * PAGE;
  for (uint64_t round = 0; span_goes_on(tug.span, round); round++) {
    for (int i = 0; i < 50; i++) {
      if (*(int *)context < 2) {
        (void)purgeable_region_discard(tug.region);
        if (purgeable_region_refill(tug.region) != 0) continue;
        atomic_fetch_add(&tug.refills, 1);
        write_number(purgeable_region_bytes(tug.region), length, 1);
        if (purgeable_region_unlock(tug.region) != 0) atomic_fetch_add(&tug.wrong, 1);
        continue;
      }
      purgeable_outcome_t outcome = purgeable_region_lock(tug.region);
      atomic_fetch_add(outcome == purgeable_outcome_intact ? &tug.intact : &tug.discarded, 1);
      if (outcome == purgeable_outcome_intact && purgeable_region_unlock(tug.region) != 0) atomic_fetch_add(&tug.wrong, 1);
      // Long enough for the count to fall to 0 and for another thread to have its turn.
      for (int spin = 0; spin < 400; spin++) atomic_signal_fence(memory_order_seq_cst);
      if (i % 8 == 0) sched_yield();
    }
  }
  return NULL;
}

void locks_beside_discards(case_report_t *report) {
  memset(&tug, 0, sizeof tug);
  REQUIRE(purgeable_region_create(2 * PAGE, &at_once, &tug.region) == 0);
  EXPECT_EQUAL(purgeable_region_unlock(tug.region), 0);
  tug.span = span_of(report, 40, 700);
  int roles[] = {0, 1, 2, 3};
  run_threads(4, pulls, roles, sizeof roles[0]);
  NOTE("%llu refills, %llu locks intact, %llu discarded", (unsigned long long)tug.refills, (unsigned long long)tug.intact,
       (unsigned long long)tug.discarded);
  if (report->is_full) EXPECT(tug.refills > 0 && tug.intact > 0 && tug.discarded > 0);
  EXPECT_EQUAL(tug.wrong, 0);
  EXPECT_EQUAL(purgeable_region_lock_count(tug.region), 0);
  EXPECT_EQUAL(purgeable_region_destroy(tug.region), 0);
}

// MARK: Regions destroyed while they are offered

enum { CROWD = 400 };

static struct {
  span_t span;
  uint64_t seed, rounds, wrong, caught;
  _Atomic bool stop;
} doomed;

static void offer_what_is_queued(void) {
  purgeable_region_statistics_t statistics;
  while (!atomic_load(&doomed.stop)) {
    // Not always at the mutex, so that the other thread has its turn.
    if (purgeable_region_statistics(&statistics) == 0 && statistics.pending_count != 0) (void)purgeable_offer_pending(NULL);
  }
}

// The pages of a destroyed region belong to the next one at once: a madvise that still ran on them would put that on offer.
static void destroy_one_in_offer(uint64_t number) {
  const size_t length = 100 * PAGE;
  purgeable_region_t *queued = NULL, *next = NULL;
  if (purgeable_region_create(length, NULL, &queued) != 0) return;
  write_number(purgeable_region_bytes(queued), length, number);
  (void)purgeable_region_unlock(queued);
  for (int i = 0; i < 20000 && purgeable_region_offered_bytes(queued) == 0; i++) continue;
  doomed.caught += purgeable_region_offered_bytes(queued) != 0;
  (void)purgeable_region_destroy(queued);
  if (purgeable_region_create(length, NULL, &next) != 0) return;
  write_number(purgeable_region_bytes(next), length, number + 1);
  page_out(purgeable_region_bytes(next), length);
  page_out(purgeable_region_bytes(next), length);
  doomed.wrong += !is_number(purgeable_region_bytes(next), 0, words_in(length), number + 1);
  (void)purgeable_region_destroy(next);
}

// Enough regions that the sort of the queue takes a while, during which they leave it.
static void destroy_crowd_in_queue(uint64_t *state) {
  purgeable_region_t *crowd[CROWD] = {0};
  size_t count = 0;
  while (count < CROWD && purgeable_region_create(PAGE, NULL, &crowd[count]) == 0) count++;
  for (size_t i = count; i > 1; i--) {
    size_t other = next_random(state) % i;
    purgeable_region_t *swapped = crowd[other];
    crowd[other] = crowd[i - 1];
    crowd[i - 1] = swapped;
  }
  for (size_t i = 0; i < count; i++) {
    *(char *)purgeable_region_bytes(crowd[i]) = 1;
    (void)purgeable_region_unlock(crowd[i]);
    if (i % 2 == 1) (void)purgeable_region_destroy(crowd[i]);
  }
  for (size_t i = 0; i < count; i += 2) (void)purgeable_region_destroy(crowd[i]);
}

static void *destroy_or_offer(void *context) {
  int role = *(int *)context;
  stay_on_cpu(role);
  if (role == 0) {
    offer_what_is_queued();
    return NULL;
  }
  uint64_t state = doomed.seed;
  for (; span_goes_on(doomed.span, doomed.rounds); doomed.rounds++) {
    for (uint64_t i = 0; i < 10; i++) destroy_one_in_offer(doomed.rounds + i);
    destroy_crowd_in_queue(&state);
  }
  atomic_store(&doomed.stop, true);
  return NULL;
}

void destroyed_beside_offers(case_report_t *report) {
  NEED_DISCARDS();
  purgeable_region_statistics_t before = statistics_now();
  memset(&doomed, 0, sizeof doomed);
  doomed.seed = report->seed;
  doomed.span = span_of(report, 10, 700);
  int roles[] = {0, 1};
  run_threads(2, destroy_or_offer, roles, sizeof roles[0]);
  NOTE("%llu rounds, %llu destroyed in their offer or just after", (unsigned long long)doomed.rounds,
       (unsigned long long)doomed.caught);
  EXPECT(doomed.rounds > 0);
  EXPECT_EQUAL(doomed.wrong, 0);
  purgeable_region_statistics_t after = statistics_now();
  EXPECT_EQUAL(memcmp(&before, &after, sizeof before), 0);
}
