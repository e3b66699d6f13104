// SPDX-License-Identifier: MIT
// Fills under fire: several threads fill, wait, give up and are cancelled, while the kernel discards, forks happen and calls
// fail.
//
// Content is words: word i of number n is n * STRIDE + i + 1. While a filler is at work its region is marked, so a thread that is
// told intact meanwhile notices it, whatever the bytes look like.

#include "region_cases.h"

#include <sched.h>

#define STRIDE ((uint64_t)1 << 32)
#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT 21
#endif

enum { REGIONS = 6, ACTORS = 4 };

static struct {
  purgeable_region_t *region;
  size_t length;
  // The filler was told to fill and is not done; only the filler writes this.
  _Atomic bool is_made;
  _Atomic uint64_t number;
} shared[REGIONS];

typedef enum way {
  // As programs did without fills: lock; discarded -> refill, fill, unlock.
  by_hand,
  // lock_or_fill, published or unlocked.
  by_election,
} way_t;

static struct {
  way_t way;
  // Some fills are given up; threads are cancelled, and calls fail.
  bool some_fail, with_cancels;
  // Of each thread that acts, and of each that cancels others or has calls fail.
  span_t acting, breaking;
  uint64_t seed;
  _Atomic uint64_t intact, busy, discarded, filled, given_up, told_given_up, cancelled, wrong, broken;
} storm;

static void write_words(size_t i, uint64_t number, size_t from, size_t to) {
  uint64_t *words = purgeable_region_bytes(shared[i].region);
  for (size_t k = from; k < to; k++) words[k] = number * STRIDE + k + 1;
}

static bool is_whole(size_t i) {
  const uint64_t *words = purgeable_region_bytes(shared[i].region);
  uint64_t number = words[0] / STRIDE, wrong = number == 0;
  for (size_t k = 0; k < shared[i].length / 8; k++) wrong |= words[k] ^ (number * STRIDE + k + 1);
  return wrong == 0;
}

static void look(size_t i) {
  if (atomic_load(&shared[i].is_made) || !is_whole(i)) atomic_fetch_add(&storm.wrong, 1);
}

// MARK: Fill

static void give_up(void *context) {
  size_t i = *(size_t *)context;
  atomic_store(&shared[i].is_made, false);
  int error = purgeable_region_abandon(shared[i].region);
  // Busy only when the rule is off and another thread locks between the two steps.
  if (error != 0 && error != EBUSY) atomic_fetch_add(&storm.broken, 1);
  atomic_fetch_add(&storm.given_up, 1);
}

static void give_back(void *context) {
  if (purgeable_region_unlock(shared[*(size_t *)context].region) != 0) atomic_fetch_add(&storm.broken, 1);
}

// The caller is the filler, or has refilled.
static void fill(size_t i, uint64_t *state) {
  uint64_t number = atomic_load(&shared[i].number) + 1;
  size_t words = shared[i].length / 8;
  atomic_store(&shared[i].is_made, true);
  // Volatile, because a cancellation leaves the function by a jump.
  volatile bool fails = storm.some_fail && next_random(state) % 3 == 0;
  pthread_cleanup_push(give_up, &i);
  write_words(i, number, 0, words / 2);
  if (next_random(state) % 4 == 0) sched_yield();
  if (storm.with_cancels) pthread_testcancel();
  if (!fails) write_words(i, number, words / 2, words);
  pthread_cleanup_pop(fails);
  if (fails) return;
  atomic_store(&shared[i].number, number);
  atomic_store(&shared[i].is_made, false);
  atomic_fetch_add(&storm.filled, 1);
  bool keeps = storm.way == by_election && next_random(state) % 2 == 0;
  if (keeps) {
    if (purgeable_region_publish(shared[i].region) != 0) atomic_fetch_add(&storm.broken, 1);
    look(i);
  }
  give_back(&i);
}

// MARK: Use

static void use(size_t i, uint64_t *state) {
  pthread_cleanup_push(give_back, &i);
  look(i);
  if (next_random(state) % 8 == 0) (void)madvise(purgeable_region_bytes(shared[i].region), shared[i].length, MADV_PAGEOUT);
  if (next_random(state) % 4 == 0) sched_yield();
  if (storm.with_cancels) pthread_testcancel();
  look(i);
  pthread_cleanup_pop(true);
  atomic_fetch_add(&storm.intact, 1);
}

// Whether an errno is that of the calls that fail. (Which call has failed is asked in vain: the next fault may be set already.)
static bool is_fault(int error) { return storm.with_cancels && error == EAGAIN; }

static void one_round(size_t i, uint64_t *state) {
  purgeable_region_t *region = shared[i].region;
  bool is_filler = false;
  purgeable_outcome_t outcome = storm.way == by_election                  ? purgeable_region_lock_or_fill(region, &is_filler)
                                : next_random(state) % 2 == 0             ? purgeable_region_lock(region)
                                                                          : purgeable_region_lock_waiting(region);
  switch (outcome) {
    case purgeable_outcome_intact: use(i, state); return;
    case purgeable_outcome_busy: atomic_fetch_add(&storm.busy, 1); return;
    case purgeable_outcome_error: atomic_fetch_add(&storm.broken, !is_fault(errno)); return;
    case purgeable_outcome_discarded: break;
  }
  atomic_fetch_add(&storm.discarded, 1);
  if (storm.way == by_hand) {
    int error = purgeable_region_refill(region);
    if (error == 0) fill(i, state);
    if (error != 0 && error != EBUSY && !is_fault(error)) atomic_fetch_add(&storm.broken, 1);
    return;
  }
  if (!is_filler) {
    atomic_fetch_add(&storm.told_given_up, 1);
    return;
  }
  fill(i, state);
}

static void *acts(void *context) {
  uint64_t state = storm.seed + *(uint64_t *)context;
  for (uint64_t round = 0; span_goes_on(storm.acting, round); round++) {
    size_t i = next_random(&state) % REGIONS;
    switch (next_random(&state) % 12) {
      case 0: (void)purgeable_region_discard(shared[i].region); break;
      case 1: (void)purgeable_offer_pending(NULL); break;
      case 2: (void)purgeable_region_offer(shared[i].region); break;
      case 3: (void)madvise(purgeable_region_bytes(shared[i].region), shared[i].length, MADV_PAGEOUT); break;
      default: one_round(i, &state); break;
    }
    if (storm.with_cancels) pthread_testcancel();
  }
  return NULL;
}

// MARK: Storms

static bool begin(case_report_t *report, way_t way, bool some_fail) {
  memset(&storm, 0, sizeof storm);
  storm.way = way;
  storm.some_fail = some_fail;
  storm.seed = report->seed;
  for (size_t i = 0; i < REGIONS; i++) {
    purgeable_region_options_t options = {.offering = (purgeable_offering_t)(i % 3)};
    shared[i].length = (1 + i % 4) * PAGE;
    atomic_store(&shared[i].is_made, false);
    atomic_store(&shared[i].number, 0);
    if (purgeable_region_create_discarded(shared[i].length, &options, &shared[i].region) != 0) return false;
  }
  return true;
}

static void note(case_report_t *report, const char *what) {
  NOTE("%s: %llu intact, %llu filled, %llu given up, %llu told so, %llu discarded, %llu busy, %llu wrong", what,
       (unsigned long long)storm.intact, (unsigned long long)storm.filled, (unsigned long long)storm.given_up,
       (unsigned long long)storm.told_given_up, (unsigned long long)storm.discarded, (unsigned long long)storm.busy,
       (unsigned long long)storm.wrong);
}

static void end(case_report_t *report) {
  for (size_t i = 0; i < REGIONS; i++) {
    EXPECT_EQUAL(purgeable_region_lock_count(shared[i].region), 0);
    EXPECT(purgeable_region_state(shared[i].region) != purgeable_state_filling);
    EXPECT_EQUAL(purgeable_region_destroy(shared[i].region), 0);
  }
}

static void run_for(span_t span) {
  storm.acting = span;
  uint64_t actors[ACTORS] = {0, 1, 2, 3};
  run_threads(ACTORS, acts, actors, sizeof actors[0]);
}

static void fills_beside_locks(case_report_t *report) {
  NEED_DISCARDS();
  for (way_t way = by_hand; way <= by_election; way++) {
    REQUIRE(begin(report, way, true));
    run_for(span_of(report, 500, 700));
    note(report, way == by_hand ? "by hand" : "elected");
    EXPECT_EQUAL(storm.wrong, 0);
    EXPECT_EQUAL(storm.broken, 0);
    EXPECT(storm.filled > 0);
    if (report->is_full) EXPECT(storm.intact > 0 && storm.given_up > 0);
    end(report);
  }
}

#define NEED_RULES()                                                                            \
  do {                                                                                          \
    if (!purgeable_testing_has_hooks()) SKIP("this build cannot switch rules off");             \
    if (HAS_THREAD_SANITIZER) SKIP("without the rule threads race, which the sanitizer reports"); \
  } while (0)

// Each rule alone, switched off, shows what it is for.
static void without_exclusion(case_report_t *report) {
  NEED_RULES();
  REQUIRE(begin(report, by_hand, false));
  purgeable_testing_switch_off(purgeable_testing_rule_fill_excludes);
  for (int i = 0; i < 10 && storm.wrong == 0; i++) run_for(span_of(report, 0, 300));
  purgeable_testing_switch_off(0);
  note(report, "locked beside fills");
  EXPECT(storm.wrong > 0);
  end(report);
}

static void given_up_in_two_steps(case_report_t *report) {
  NEED_RULES();
  REQUIRE(begin(report, by_election, true));
  purgeable_testing_switch_off(purgeable_testing_rule_abandon_at_once);
  for (int i = 0; i < 10 && storm.wrong == 0; i++) run_for(span_of(report, 0, 300));
  purgeable_testing_switch_off(0);
  note(report, "unlocked, then discarded");
  EXPECT(storm.wrong > 0);
  end(report);
}

// MARK: One is elected

enum { ROUND_THREADS = 4 };

static struct {
  purgeable_region_t *region;
  pthread_barrier_t barrier;
  _Atomic uint64_t rounds, fills, wrong;
  span_t span;
  _Atomic bool stop;
} elected;

static void *asks(void *context) {
  bool leads = *(int *)context == 0;
  for (;;) {
    (void)pthread_barrier_wait(&elected.barrier);
    if (atomic_load(&elected.stop)) return NULL;
    bool is_filler;
    purgeable_outcome_t outcome = purgeable_region_lock_or_fill(elected.region, &is_filler);
    uint64_t *word = purgeable_region_bytes(elected.region);
    if (is_filler) {
      atomic_fetch_add(&elected.fills, 1);
      *word = 7;
    } else if (outcome != purgeable_outcome_intact || *word != 7) {
      atomic_fetch_add(&elected.wrong, 1);
    }
    if (is_filler || outcome == purgeable_outcome_intact) (void)purgeable_region_unlock(elected.region);
    (void)pthread_barrier_wait(&elected.barrier);
    if (!leads) continue;
    atomic_fetch_add(&elected.rounds, 1);
    if (purgeable_region_discard(elected.region) != 0) atomic_fetch_add(&elected.wrong, 1);
    if (!span_goes_on(elected.span, elected.rounds)) atomic_store(&elected.stop, true);
  }
}

static bool elect_for(span_t span) {
  memset(&elected, 0, sizeof elected);
  if (purgeable_region_create_discarded(PAGE, &not_at_all, &elected.region) != 0) return false;
  elected.span = span;
  int roles[ROUND_THREADS] = {0, 1, 2, 3};
  (void)pthread_barrier_init(&elected.barrier, NULL, ROUND_THREADS);
  run_threads(ROUND_THREADS, asks, roles, sizeof roles[0]);
  (void)pthread_barrier_destroy(&elected.barrier);
  return purgeable_region_destroy(elected.region) == 0;
}

static void one_is_elected(case_report_t *report) {
  REQUIRE(elect_for(span_of(report, 200, 250)));
  EXPECT_EQUAL(elected.fills, elected.rounds);
  EXPECT_EQUAL(elected.wrong, 0);
  purgeable_testing_slow_reads(20000);
  bool ran = elect_for(span_of(report, 200, 250));
  purgeable_testing_slow_reads(0);
  REQUIRE(ran);
  NOTE("%llu rounds of %d threads, %llu fills", (unsigned long long)elected.rounds, ROUND_THREADS,
       (unsigned long long)elected.fills);
  EXPECT_EQUAL(elected.fills, elected.rounds);
  EXPECT_EQUAL(elected.wrong, 0);
}

static void elected_twice(case_report_t *report) {
  NEED_RULES();
  purgeable_testing_switch_off(purgeable_testing_rule_fill_only_discarded);
  // A pause between the lock that says discarded and the claim, so that another thread has filled the region by then.
  purgeable_testing_slow_reads(20000);
  bool ran = true;
  for (int i = 0; i < 20 && ran && elected.fills == elected.rounds; i++) ran = elect_for(span_of(report, 0, 300));
  purgeable_testing_slow_reads(0);
  purgeable_testing_switch_off(0);
  REQUIRE(ran);
  NOTE("%llu rounds, %llu fills", (unsigned long long)elected.rounds, (unsigned long long)elected.fills);
  EXPECT(elected.fills > elected.rounds);
}

// MARK: Cancelled at any moment, forked and refused

static void *cancels(void *context) {
  uint64_t state = storm.seed ^ *(uint64_t *)context;
  uint64_t number = *(uint64_t *)context;
  for (uint64_t round = 0; span_goes_on(storm.breaking, round); round++) {
    pthread_t thread;
    uint64_t seed = number += 1000;
    if (pthread_create(&thread, NULL, acts, &seed) != 0) abort();
    (void)usleep((useconds_t)(next_random(&state) % 3000));
    (void)pthread_cancel(thread);
    void *result = NULL;
    (void)pthread_join(thread, &result);
    atomic_fetch_add(&storm.cancelled, result == PTHREAD_CANCELED);
  }
  return NULL;
}

static bool child_of_a_storm(void) {
  for (size_t i = 0; i < REGIONS; i++) {
    bool is_filler = false;
    CHECK(purgeable_region_lock_waiting(shared[i].region) == purgeable_outcome_discarded);
    CHECK(purgeable_region_lock_or_fill(shared[i].region, &is_filler) == purgeable_outcome_discarded && is_filler);
    write_words(i, 3, 0, shared[i].length / 8);
    CHECK(purgeable_region_publish(shared[i].region) == 0 && is_whole(i));
    CHECK(purgeable_region_unlock(shared[i].region) == 0);
  }
  (void)purgeable_offer_pending(NULL);
  for (size_t i = 0; i < REGIONS; i++) CHECK(purgeable_region_destroy(shared[i].region) == 0);
  return true;
}

static void *forks_and_fails(void *context) {
  case_report_t *report = *(case_report_t **)context;
  uint64_t state = storm.seed ^ 77;
  for (uint64_t round = 0; span_goes_on(storm.breaking, round); round++) {
    // A call that fails, in whichever thread is next.
    unsigned calls = next_random(&state) % 2 == 0 ? purgeable_testing_call_madvise_free : purgeable_testing_call_madvise_dontneed;
    purgeable_testing_fail(calls, 1 + next_random(&state) % 50, EAGAIN, false);
    (void)usleep((useconds_t)(next_random(&state) % 20000));
    if (next_random(&state) % 4 != 0) continue;
    no_faults();
    purgeable_probe_t probe;
    if (purgeable_probe(&probe) == 0 && probe.wipe_on_fork) IN_CHILD(child_of_a_storm());
  }
  return NULL;
}

typedef struct role {
  uint64_t number;
  case_report_t *report;
} role_t;

static void *either(void *context) {
  role_t *role = context;
  return role->number == 0 ? forks_and_fails(&role->report) : cancels(&role->number);
}

static void everything_at_once(case_report_t *report) {
  NEED_DISCARDS();
  purgeable_region_statistics_t before = statistics_now();
  for (way_t way = by_hand; way <= by_election; way++) {
    REQUIRE(begin(report, way, true));
    storm.with_cancels = true;
    storm.breaking = span_of(report, 10, 1000);
    // Until they are cancelled.
    storm.acting = report->is_full ? storm.breaking : (span_t){.rounds = UINT64_MAX};
    role_t roles[ACTORS] = {{0, report}, {1, report}, {2, report}, {3, report}};
    run_threads(ACTORS, either, roles, sizeof roles[0]);
    no_faults();
    note(report, way == by_hand ? "by hand" : "elected");
    NOTE("%llu threads cancelled", (unsigned long long)storm.cancelled);
    EXPECT(storm.cancelled > 0);
    if (report->is_full) EXPECT(storm.filled > 0);
    EXPECT_EQUAL(storm.wrong, 0);
    EXPECT_EQUAL(storm.broken, 0);
    end(report);
  }
  purgeable_region_statistics_t after = statistics_now();
  EXPECT_EQUAL(after.region_count, before.region_count);
  EXPECT_EQUAL(after.memory.locked_bytes, before.memory.locked_bytes);
  EXPECT_EQUAL(after.memory.offered_bytes, before.memory.offered_bytes);
  EXPECT_EQUAL(after.memory.discarded_bytes, before.memory.discarded_bytes);
  EXPECT_EQUAL(after.pending_count, before.pending_count);
  EXPECT_EQUAL(after.memory.pending_bytes, before.memory.pending_bytes);
  EXPECT_EQUAL(after.unbalanced_unlock_count, before.unbalanced_unlock_count);
}

const test_case_t region_fill_storm_cases[] = {
    CASE("region fill storm: nobody is told intact beside a fill", fills_beside_locks),
    FULL_CASE("region fill storm: without exclusion half-made content is told intact", without_exclusion),
    FULL_CASE("region fill storm: given up in two steps it is told intact in between", given_up_in_two_steps),
    CASE("region fill storm: one of many is elected", one_is_elected),
    FULL_CASE("region fill storm: without a second look content is made twice", elected_twice),
    CASE("region fill storm: cancelled, forked and refused at any moment", everything_at_once),
    END_OF_CASES,
};
