// SPDX-License-Identifier: MIT
// Stale reads: each rule against them switched off, with wrong results to show, and switched on, with none.
//
//   CPU A   reclaimer   MADV_PAGEOUT: entry cleared, entry cleared, ...  |         stopped         | ... flush, return
//           holder      (real-time priority)                             | wakes, acts on a page   |
//                                                                        |<------- window -------->|
//   CPU B   viewer      has just read the pages, spins                   | still sees the old page | sees zeros
//
// The kernel defers the flush to the end of a batch of 31 pages; a thread of higher priority on the reclaimer's CPU stops it in
// between for as long as it likes. In the window the entry in the page table is empty, CPU A finds zeros, CPU B the old page:
//
//   migration   copy on A (zeros), check on B (old witness)                 rule: rseq_sentinel
//   refill      new content on A under a new fill, read on B (old content)  rule: dontneed_before_refill
//   append      new element on A, read on B (not there: "discarded")        rule: no_append_after_offer
//   slab again  new life of a slab on A, read on B (old header: refused)    rule: rescue_before_reuse
//
// A window counts only when CPU B was asked and still saw the old content. Where none could be forced, the case is skipped.

#include "stale_window.h"

#include <sched.h>
#include <signal.h>

// MARK: The sentinel by itself

typedef enum disturbance { nothing, migration, preemption, signal_delivery } disturbance_t;

typedef struct sentinel_trial {
  stale_stage_t stage;
  disturbance_t disturbance;
  purgeable_region_t *region;
  pthread_t reader;
  _Atomic bool wants, stop;
  _Atomic uint64_t steps;
  // For one read: how often it was tried, and whether the first try was really disturbed.
  uint64_t tries;
  bool was_disturbed;
  // For all reads.
  uint64_t reads, disturbed, tried_once, not_intact;
} sentinel_trial_t;

static _Atomic uint64_t signals_seen;

static void note_signal(int number) {
  (void)number;
  atomic_fetch_add(&signals_seen, 1);
}

static bool has_happened(const sentinel_trial_t *trial, uint64_t steps, uint64_t signals) {
  switch (trial->disturbance) {
    case nothing:
      return true;
    case migration:
      return sched_getcpu() == trial->stage.cpu_b;
    case preemption:
      // The other thread is pinned to this CPU: a step of it means that this one was off.
      return atomic_load(&trial->steps) != steps;
    case signal_delivery:
      return atomic_load(&signals_seen) != signals;
  }
  return false;
}

// Between copy and check of the first try: waits, without a system call, until the other thread has disturbed it.
static void be_disturbed(void *context) {
  sentinel_trial_t *trial = context;
  if (trial->tries++ != 0) return;
  uint64_t steps = atomic_load(&trial->steps), signals = atomic_load(&signals_seen);
  atomic_store(&trial->wants, trial->disturbance != nothing);
  uint64_t patience_ns = now_ns() + 60000000000;
  bool happened = has_happened(trial, steps, signals);
  while (!happened && now_ns() < patience_ns) happened = has_happened(trial, steps, signals);
  atomic_store(&trial->wants, false);
  trial->was_disturbed = happened;
}

static void *disturb(void *argument) {
  sentinel_trial_t *trial = argument;
  while (!atomic_load(&trial->stop)) {
    if (atomic_load(&trial->wants)) {
      if (trial->disturbance == migration) stale_pin(trial->reader, trial->stage.cpu_b);
      if (trial->disturbance == signal_delivery) (void)pthread_kill(trial->reader, SIGURG);
      if (trial->disturbance == preemption) atomic_fetch_add(&trial->steps, 1);
    }
    (void)usleep(50);
  }
  return NULL;
}

static void *read_disturbed(void *argument) {
  sentinel_trial_t *trial = argument;
  trial->reader = pthread_self();
  pthread_t other;
  int other_cpu = trial->disturbance == preemption ? trial->stage.cpu_a : trial->stage.cpu_b;
  if (stale_thread(&other, other_cpu, 0, disturb, trial) != 0) return NULL;
  uint64_t reads = trial->disturbance == nothing ? 200 : 20;
  for (trial->reads = 0; trial->reads < reads; trial->reads++) {
    stale_pin(trial->reader, trial->stage.cpu_a);
    trial->tries = 0;
    uint64_t word = 0;
    purgeable_outcome_t outcome = purgeable_region_read(trial->region, 0, sizeof word, &word);
    trial->not_intact += outcome != purgeable_outcome_intact || word != 42;
    trial->disturbed += trial->was_disturbed;
    trial->tried_once += trial->tries == 1;
  }
  atomic_store(&trial->stop, true);
  pthread_join(other, NULL);
  return NULL;
}

static void try_sentinel(case_report_t *report, purgeable_region_t *region, const stale_stage_t *stage, disturbance_t disturbance,
                         bool is_in_force) {
  static const char *const names[] = {"nothing", "migration", "preemption", "a signal"};
  sentinel_trial_t *trial = calloc(1, sizeof *trial);
  REQUIRE(trial != NULL);
  trial->stage = *stage, trial->disturbance = disturbance, trial->region = region;
  (void)purgeable_testing_switch_off(is_in_force ? 0 : purgeable_testing_rule_rseq_sentinel);
  (void)purgeable_testing_set_pause(be_disturbed, trial);
  pthread_t reader;
  bool started = stale_thread(&reader, stage->cpu_a, 0, read_disturbed, trial) == 0;
  if (started) pthread_join(reader, NULL);
  (void)purgeable_testing_set_pause(NULL, NULL);
  (void)purgeable_testing_switch_off(0);
  uint64_t expected = disturbance == nothing ? 200 : 20;
  EXPECT(started);
  EXPECT_EQUAL(trial->reads, expected);
  EXPECT_EQUAL(trial->disturbed, expected);
  EXPECT_EQUAL(trial->not_intact, 0);
  if (disturbance == nothing && is_in_force) {
    // The expectation allows for the machine's own interruptions.
    EXPECT(trial->tried_once >= expected / 2);
  } else {
    EXPECT_EQUAL(trial->tried_once, is_in_force ? 0 : expected);
  }
  NOTE("%s, rule %s: %llu of %llu reads accepted at the first try", names[disturbance], is_in_force ? "on" : "off",
       (unsigned long long)trial->tried_once, (unsigned long long)trial->reads);
  free(trial);
}

static void sentinel(case_report_t *report) {
  if (!purgeable_testing_has_hooks()) SKIP("built without PURGEABLE_TEST_HOOKS");
  purgeable_probe_t probe;
  REQUIRE(purgeable_probe(&probe) == 0);
  if (!probe.rseq) SKIP("no restartable sequences here: reads without lock are statistical");
  stale_stage_t stage;
  if (!stale_cpus(&stage)) SKIP("needs two CPUs");
  purgeable_region_t *region = NULL;
  REQUIRE(purgeable_region_create(8, NULL, &region) == 0);
  uint64_t *word = purgeable_region_bytes(region);
  *word = 42;
  EXPECT_EQUAL(purgeable_region_unlock(region), 0);
  struct sigaction before, handler = {.sa_handler = note_signal};
  REQUIRE(sigaction(SIGURG, &handler, &before) == 0);
  for (int off = 0; off < 2; off++) {
    for (disturbance_t one = nothing; one <= signal_delivery; one++) try_sentinel(report, region, &stage, one, off == 0);
  }
  (void)sigaction(SIGURG, &before, NULL);
  EXPECT_EQUAL(purgeable_region_destroy(region), 0);
}

// MARK: A rule, off and on

static void note_half(case_report_t *report, const char *half, const stale_counts_t *counts) {
  NOTE("rule %s: %llu windows (%llu calls, caught %llu times, %llu ms): %llu right, %llu wrong, %llu other", half,
       (unsigned long long)counts->windows, (unsigned long long)counts->calls, (unsigned long long)counts->caught,
       (unsigned long long)counts->took_ns / 1000000, (unsigned long long)counts->right, (unsigned long long)counts->wrong,
       (unsigned long long)counts->other);
}

// `must_be_right`: with the rule on, every window has to end well; else it may also end with "discarded".
static void force(case_report_t *report, stale_kind_t kind, purgeable_testing_rule_t rule, bool must_be_right) {
  if (!purgeable_testing_has_hooks()) SKIP("built without PURGEABLE_TEST_HOOKS");
  const char *reason = NULL;
  if (!kernel_discards(&reason)) SKIP("MADV_FREE and MADV_PAGEOUT do not discard here: %s", reason);
  stale_stage_t stage;
  if (!stale_stage(&stage, &reason)) SKIP("%s", reason);
  purgeable_probe_t probe;
  REQUIRE(purgeable_probe(&probe) == 0);
  if (rule == purgeable_testing_rule_rseq_sentinel && !probe.rseq) SKIP("no restartable sequences here");

  // With the rule off: until it has been wrong often enough, for at most as long as with the rule on.
  uint64_t milliseconds = 1500 * report->scale;
  stale_counts_t off, on;
  stale_play_t *play = stale_play_make(kind, &stage);
  REQUIRE(play != NULL);
  (void)purgeable_testing_switch_off(rule);
  bool ran_off = stale_run(&stage, stale_play_script(play), milliseconds, 200 * report->scale, report->seed, &off, &reason);
  (void)purgeable_testing_switch_off(0);
  uint64_t confirmed = stale_play_confirmed(play);
  bool ran_on = ran_off && stale_run(&stage, stale_play_script(play), milliseconds, 1, report->seed + 1, &on, &reason);
  stale_play_end(play);
  if (!ran_off || !ran_on) {
    report_failure(report, __FILE__, __LINE__, reason);
    return;
  }
  note_half(report, "off", &off);
  note_half(report, "on", &on);
  EXPECT_EQUAL(on.wrong, 0);
  if (must_be_right) EXPECT_EQUAL(on.right, on.windows);
  if (kind == stale_kind_element_append) EXPECT_EQUAL(confirmed, off.wrong);
  if (off.wrong == 0) SKIP("no wrong result could be forced with the rule off, so its need is not shown here");
  if (on.windows == 0) SKIP("no window could be forced with the rule on, so that it suffices is not shown here");
}

static void region_migration(case_report_t *report) {
  force(report, stale_kind_region_migration, purgeable_testing_rule_rseq_sentinel, false);
}

static void element_migration(case_report_t *report) {
  force(report, stale_kind_element_migration, purgeable_testing_rule_rseq_sentinel, false);
}

static void region_refill(case_report_t *report) {
  force(report, stale_kind_region_refill, purgeable_testing_rule_dontneed_before_refill, true);
}

static void element_append(case_report_t *report) {
  force(report, stale_kind_element_append, purgeable_testing_rule_no_append_after_offer, true);
}

static void slab_again(case_report_t *report) {
  force(report, stale_kind_slab_again, purgeable_testing_rule_rescue_before_reuse, true);
}

const test_case_t stale_cases[] = {
    CASE("stale: the sentinel falls at migration, preemption and signals, and stands otherwise", sentinel),
    FULL_CASE("stale: a reader of a region that migrates accepts zeros, unless the sentinel falls", region_migration),
    FULL_CASE("stale: a reader of an element that migrates accepts zeros, unless the sentinel falls", element_migration),
    FULL_CASE("stale: a refilled region is read with its old content, unless MADV_DONTNEED came first", region_refill),
    FULL_CASE("stale: an element appended to a page on offer looks discarded, unless such pages are left alone", element_append),
    FULL_CASE("stale: an element in a slab filled again without a wipe is refused, unless its pages were rescued", slab_again),
    END_OF_CASES,
};
