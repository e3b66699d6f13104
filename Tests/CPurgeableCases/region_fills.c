// SPDX-License-Identifier: MIT
// Fills: which threads may use a region while its content is being made, how a fill ends, and what waiting threads are told.

#include "region_cases.h"

#include <sched.h>

enum { PAGES = 3 };

// MARK: Another thread

typedef enum act {
  act_lock, act_lock_for_writing, act_try_lock, act_lock_waiting, act_lock_for_writing_waiting, act_lock_or_fill,
  act_read, act_refill, act_discard, act_offer, act_publish, act_abandon, act_unlock, act_fills_here,
} act_t;

typedef struct other {
  purgeable_region_t *region;
  act_t act;
  // An outcome, an errno or a truth.
  int answer;
  bool is_filler;
  bool unlocks;
  _Atomic bool done;
} other_t;

static int do_act(other_t *other) {
  purgeable_region_t *region = other->region;
  char byte;
  switch (other->act) {
    case act_lock: return (int)purgeable_region_lock(region);
    case act_lock_for_writing: return (int)purgeable_region_lock_for_writing(region);
    case act_try_lock: return (int)purgeable_region_try_lock(region);
    case act_lock_waiting: return (int)purgeable_region_lock_waiting(region);
    case act_lock_for_writing_waiting: return (int)purgeable_region_lock_for_writing_waiting(region);
    case act_lock_or_fill: return (int)purgeable_region_lock_or_fill(region, &other->is_filler);
    case act_read: return (int)purgeable_region_read(region, 0, 1, &byte);
    case act_refill: return purgeable_region_refill(region);
    case act_discard: return purgeable_region_discard(region);
    case act_offer: return purgeable_region_offer(region);
    case act_publish: return purgeable_region_publish(region);
    case act_abandon: return purgeable_region_abandon(region);
    case act_unlock: return purgeable_region_unlock(region);
    case act_fills_here: return purgeable_region_fills_here(region);
  }
  return -1;
}

static void *run_other(void *context) {
  other_t *other = context;
  other->answer = do_act(other);
  if (other->unlocks && other->answer == (int)purgeable_outcome_intact) (void)purgeable_region_unlock(other->region);
  atomic_store(&other->done, true);
  return NULL;
}

// The answer that another thread gets; it gives a lock back.
static int elsewhere(purgeable_region_t *region, act_t act) {
  other_t other = {.region = region, .act = act, .unlocks = act <= act_lock_or_fill};
  run_threads(1, run_other, &other, sizeof other);
  return other.answer;
}

// Starts a thread that has to wait, and returns when it does. False when its call returned at once.
static bool begin_waiting(pthread_t *thread, other_t *other) {
  uint64_t before = purgeable_testing_waited_fill_count();
  if (pthread_create(thread, NULL, run_other, other) != 0) abort();
  if (purgeable_testing_has_hooks()) {
    WAIT_UNTIL(purgeable_testing_waited_fill_count() != before || atomic_load(&other->done));
  } else {
    // Without hooks nobody can be seen waiting: time for the thread to fall asleep.
    for (int i = 0; i < 20 && !atomic_load(&other->done); i++) (void)usleep(2000);
  }
  return !atomic_load(&other->done);
}

// MARK: While it is being filled

static void expect_filling(case_report_t *report, purgeable_region_t *region, bool is_nested) {
  EXPECT_EQUAL(purgeable_region_state(region), purgeable_state_filling);
  EXPECT(purgeable_region_fills_here(region));
  EXPECT_EQUAL(elsewhere(region, act_fills_here), false);
  EXPECT_EQUAL(elsewhere(region, act_lock), purgeable_outcome_busy);
  EXPECT_EQUAL(elsewhere(region, act_lock_for_writing), purgeable_outcome_busy);
  EXPECT_EQUAL(elsewhere(region, act_try_lock), purgeable_outcome_busy);
  EXPECT_EQUAL(elsewhere(region, act_read), purgeable_outcome_busy);
  EXPECT_EQUAL(elsewhere(region, act_refill), EBUSY);
  EXPECT_EQUAL(elsewhere(region, act_discard), EBUSY);
  EXPECT_EQUAL(elsewhere(region, act_offer), EBUSY);
  EXPECT(!purgeable_region_is_discarded(region));
  EXPECT_EQUAL(purgeable_region_lock_count(region), is_nested ? 2 : 1);
}

static void others_are_told_busy(case_report_t *report) {
  const size_t length = PAGES * PAGE;
  for (int mode = 0; mode < 3; mode++) {
    purgeable_region_options_t options = {.offering = (purgeable_offering_t)mode};
    purgeable_region_t *region = NULL;
    REQUIRE(purgeable_region_create(length, &options, &region) == 0);
    for (uint64_t round = 0; round < 3; round++) {
      fill_pattern(purgeable_region_bytes(region), length / 2, round);
      expect_filling(report, region, false);
      // The filler may lock again, for reading and for writing; try_lock may be a handler that interrupts it.
      EXPECT_EQUAL(purgeable_region_lock(region), purgeable_outcome_intact);
      expect_filling(report, region, true);
      EXPECT_EQUAL(purgeable_region_unlock(region), 0);
      EXPECT_EQUAL(purgeable_region_lock_for_writing(region), purgeable_outcome_intact);
      EXPECT_EQUAL(purgeable_region_unlock(region), 0);
      EXPECT_EQUAL(purgeable_region_lock_waiting(region), purgeable_outcome_intact);
      EXPECT_EQUAL(purgeable_region_unlock(region), 0);
      EXPECT_EQUAL(purgeable_region_try_lock(region), purgeable_outcome_busy);
      expect_filling(report, region, false);
      fill_pattern(purgeable_region_bytes(region), length, round);
      EXPECT_EQUAL(purgeable_region_unlock(region), 0);
      EXPECT(!purgeable_region_fills_here(region));
      EXPECT_EQUAL(elsewhere(region, act_lock), purgeable_outcome_intact);
      EXPECT_EQUAL(elsewhere(region, act_lock_for_writing), purgeable_outcome_intact);
      EXPECT_EQUAL(elsewhere(region, act_try_lock), purgeable_outcome_intact);
      EXPECT_EQUAL(elsewhere(region, act_read), purgeable_outcome_intact);
      EXPECT_EQUAL(purgeable_region_lock(region), purgeable_outcome_intact);
      EXPECT(check_pattern(purgeable_region_bytes(region), length, round));
      EXPECT_EQUAL(purgeable_region_unlock(region), 0);
      if (round == 1) EXPECT_EQUAL(purgeable_region_discard(region), 0);
      EXPECT_EQUAL(purgeable_region_refill(region), 0);
    }
    EXPECT_EQUAL(purgeable_region_destroy(region), 0);
  }
}

// MARK: Ends of a fill

typedef enum ending { ends_by_unlock, ends_by_publish, ends_by_abandon, endings } ending_t;

static int end_fill(purgeable_region_t *region, ending_t ending) {
  switch (ending) {
    case ends_by_unlock: return purgeable_region_unlock(region);
    case ends_by_publish: return purgeable_region_publish(region);
    case ends_by_abandon: return purgeable_region_abandon(region);
    case endings: break;
  }
  return -1;
}

static void waiters_hear_of_the_end(case_report_t *report) {
  const size_t length = PAGES * PAGE;
  const act_t waits[] = {act_lock_waiting, act_lock_for_writing_waiting, act_lock_or_fill};
  for (ending_t ending = ends_by_unlock; ending < endings; ending++) {
    for (size_t wait = 0; wait < 3; wait++) {
      for (int refills = 0; refills < 2; refills++) {
        purgeable_region_t *region = NULL;
        REQUIRE(purgeable_region_create(length, &at_once, &region) == 0);
        if (refills) {
          EXPECT_EQUAL(purgeable_region_unlock(region), 0);
          EXPECT_EQUAL(purgeable_region_refill(region), 0);
        }
        other_t other = {.region = region, .act = waits[wait], .is_filler = true, .unlocks = true};
        pthread_t thread;
        EXPECT(begin_waiting(&thread, &other));
        fill_pattern(purgeable_region_bytes(region), length, 8);
        EXPECT_EQUAL(end_fill(region, ending), 0);
        (void)pthread_join(thread, NULL);
        EXPECT_EQUAL(other.answer, ending == ends_by_abandon ? purgeable_outcome_discarded : purgeable_outcome_intact);
        // A thread that is told of a fill that was given up is not elected in the same call.
        if (waits[wait] == act_lock_or_fill) EXPECT(!other.is_filler);
        EXPECT_EQUAL(purgeable_region_lock_count(region), ending == ends_by_publish ? 1 : 0);
        EXPECT_EQUAL(purgeable_region_destroy(region), 0);
      }
    }
  }
}

static void published_and_kept(case_report_t *report) {
  NEED_EXACT_DISCARDS();
  const size_t length = PAGES * PAGE;
  purgeable_region_t *region = NULL;
  REQUIRE(purgeable_region_create(length, &at_once, &region) == 0);
  fill_pattern(purgeable_region_bytes(region), length, 3);
  EXPECT_EQUAL(elsewhere(region, act_publish), 0);  // whoever did the work
  EXPECT_EQUAL(purgeable_region_publish(region), EPERM);
  EXPECT_EQUAL(purgeable_region_abandon(region), EPERM);
  EXPECT_EQUAL(purgeable_region_state(region), purgeable_state_writing);
  EXPECT_EQUAL(elsewhere(region, act_lock), purgeable_outcome_intact);
  EXPECT_EQUAL(elsewhere(region, act_read), purgeable_outcome_busy);
  EXPECT_EQUAL(purgeable_region_lock_count(region), 1);
  // The witnesses are taken by the last unlock, with what was written since.
  fill_pattern(purgeable_region_bytes(region), length, 4);
  EXPECT_EQUAL(purgeable_region_unlock(region), 0);
  EXPECT_EQUAL(purgeable_region_offered_bytes(region), length);
  EXPECT_EQUAL(elsewhere(region, act_read), purgeable_outcome_intact);
  EXPECT(kernel_discard(purgeable_region_bytes(region), length) > 0);
  EXPECT_EQUAL(purgeable_region_lock(region), purgeable_outcome_discarded);
  EXPECT_EQUAL(purgeable_region_destroy(region), 0);
}

static void given_up_in_one_call(case_report_t *report) {
  const size_t length = PAGES * PAGE;
  for (int mode = 0; mode < 3; mode++) {
    purgeable_region_options_t options = {.offering = (purgeable_offering_t)mode};
    purgeable_region_t *region = NULL;
    purgeable_region_statistics_t before = statistics_now();
    REQUIRE(purgeable_region_create(length, &options, &region) == 0);
    EXPECT_EQUAL(purgeable_region_abandon(NULL), EINVAL);
    EXPECT_EQUAL(purgeable_region_publish(NULL), EINVAL);
    for (int round = 0; round < 3; round++) {
      size_t resident = 1;
      fill_pattern(purgeable_region_bytes(region), length - PAGE, 2);
      // A filler that has locked again has not finished.
      EXPECT_EQUAL(purgeable_region_lock(region), purgeable_outcome_intact);
      EXPECT_EQUAL(purgeable_region_abandon(region), EBUSY);
      EXPECT_EQUAL(purgeable_region_lock_count(region), 2);
      EXPECT_EQUAL(purgeable_region_unlock(region), 0);
      // In the last round another thread ends the fill, for a filler that has ended.
      EXPECT_EQUAL(round == 2 ? elsewhere(region, act_abandon) : purgeable_region_abandon(region), 0);
      EXPECT_EQUAL(purgeable_region_abandon(region), EPERM);
      EXPECT_EQUAL(purgeable_region_unlock(region), EPERM);
      EXPECT_EQUAL(purgeable_region_lock_count(region), 0);
      EXPECT_EQUAL(purgeable_region_state(region), purgeable_state_discarded);
      EXPECT(purgeable_region_is_discarded(region));
      EXPECT_EQUAL(elsewhere(region, act_lock), purgeable_outcome_discarded);
      EXPECT_EQUAL(elsewhere(region, act_lock_waiting), purgeable_outcome_discarded);
      EXPECT_EQUAL(elsewhere(region, act_read), purgeable_outcome_discarded);
      EXPECT_EQUAL(purgeable_region_resident_bytes(region, &resident), 0);
      EXPECT_EQUAL(resident, 0);
      EXPECT_EQUAL(purgeable_region_refill(region), 0);
      EXPECT_EQUAL(*(char *)purgeable_region_bytes(region), 0);
    }
    EXPECT_EQUAL(purgeable_region_destroy(region), 0);
    purgeable_region_statistics_t after = statistics_now();
    EXPECT_EQUAL(after.abandoned_fill_count, before.abandoned_fill_count + 3);
    EXPECT_EQUAL(after.own_discard_count, before.own_discard_count);
    EXPECT_EQUAL(after.memory.locked_bytes, before.memory.locked_bytes);
    EXPECT_EQUAL(after.memory.discarded_bytes, before.memory.discarded_bytes);
    EXPECT_EQUAL(after.memory.pending_bytes, before.memory.pending_bytes);
  }
  // The kernel refuses to take the pages back: discarded all the same, and zeros after the next refill.
  purgeable_region_t *region = NULL;
  REQUIRE(purgeable_region_create(length, NULL, &region) == 0);
  fill_pattern(purgeable_region_bytes(region), length, 2);
  purgeable_testing_fail(purgeable_testing_call_madvise_dontneed, 1, EACCES, true);
  EXPECT_EQUAL(purgeable_region_abandon(region), 0);
  EXPECT_EQUAL(purgeable_region_lock(region), purgeable_outcome_discarded);
  no_faults();
  EXPECT_EQUAL(purgeable_region_refill(region), 0);
  for (size_t i = 0; i < length; i++) REQUIRE(((char *)purgeable_region_bytes(region))[i] == 0);
  EXPECT_EQUAL(purgeable_region_destroy(region), 0);
}

// MARK: A filler that ends without a word

static void *creates_and_ends(void *context) {
  if (purgeable_region_create(PAGE, NULL, (purgeable_region_t **)context) != 0) abort();
  return NULL;
}

static void filler_that_ended(case_report_t *report) {
  purgeable_region_t *region = NULL;
  run_threads(1, creates_and_ends, &region, sizeof region);
  REQUIRE(region != NULL);
  // Later threads get the filler's stack and thread-local storage, but none of them counts as the filler.
  for (int i = 0; i < 20; i++) {
    EXPECT_EQUAL(elsewhere(region, act_fills_here), false);
    EXPECT_EQUAL(elsewhere(region, act_lock), purgeable_outcome_busy);
  }
  EXPECT_EQUAL(purgeable_region_state(region), purgeable_state_filling);
  other_t other = {.region = region, .act = act_lock_waiting};
  pthread_t thread;
  EXPECT(begin_waiting(&thread, &other));
  EXPECT_EQUAL(purgeable_region_abandon(region), 0);
  (void)pthread_join(thread, NULL);
  EXPECT_EQUAL(other.answer, purgeable_outcome_discarded);
  EXPECT_EQUAL(purgeable_region_destroy(region), 0);
}

static bool child_of_a_fill(purgeable_region_t **regions) {
  for (int i = 0; i < 2; i++) {
    bool is_filler = false;
    CHECK(purgeable_region_state(regions[i]) == purgeable_state_discarded);
    CHECK(!purgeable_region_fills_here(regions[i]));
    CHECK(purgeable_region_lock_waiting(regions[i]) == purgeable_outcome_discarded);
    CHECK(purgeable_region_abandon(regions[i]) == EPERM && purgeable_region_publish(regions[i]) == EPERM);
    CHECK(purgeable_region_unlock(regions[i]) == EPERM);
    CHECK(purgeable_region_lock_or_fill(regions[i], &is_filler) == purgeable_outcome_discarded && is_filler);
    fill_pattern(purgeable_region_bytes(regions[i]), PAGE, 9);
    CHECK(purgeable_region_unlock(regions[i]) == 0 && elsewhere(regions[i], act_lock) == (int)purgeable_outcome_intact);
    CHECK(purgeable_region_destroy(regions[i]) == 0);
  }
  return true;
}

static void forked_while_filled(case_report_t *report) {
  purgeable_probe_t probe;
  REQUIRE(purgeable_probe(&probe) == 0);
  if (!probe.wipe_on_fork) SKIP("no MADV_WIPEONFORK");
  // One region is filled by the thread that forks, one by a thread that the child does not have.
  purgeable_region_t *regions[2] = {NULL, NULL};
  REQUIRE(purgeable_region_create(PAGE, NULL, &regions[0]) == 0);
  run_threads(1, creates_and_ends, &regions[1], sizeof regions[1]);
  IN_CHILD(child_of_a_fill(regions));
  for (int i = 0; i < 2; i++) {
    EXPECT_EQUAL(purgeable_region_state(regions[i]), purgeable_state_filling);
    EXPECT_EQUAL(purgeable_region_destroy(regions[i]), 0);
  }
}

// MARK: The rules, each switched off

typedef struct pause_once {
  purgeable_region_t *region;
  other_t other;
  pthread_t thread;
  _Atomic bool has_begun;
} pause_once_t;

// While content is half made: what another thread is told.
static int told_beside_fill(case_report_t *report, unsigned off) {
  purgeable_region_t *region = NULL;
  if (purgeable_region_create(PAGE, &not_at_all, &region) != 0) return -1;
  fill_pattern(purgeable_region_bytes(region), PAGE / 2, 1);
  EXPECT(purgeable_testing_switch_off(off));
  int told = elsewhere(region, act_lock);
  EXPECT(purgeable_testing_switch_off(0));
  EXPECT_EQUAL(purgeable_region_abandon(region), 0);
  EXPECT_EQUAL(purgeable_region_destroy(region), 0);
  return told;
}

// Called between two calls of an offer, which waits for nobody: another thread begins to lock.
static void lock_in_between(void *context) {
  pause_once_t *pause = context;
  if (atomic_exchange(&pause->has_begun, true)) return;
  if (pthread_create(&pause->thread, NULL, run_other, &pause->other) != 0) abort();
  WAIT_UNTIL(purgeable_region_lock_count(pause->region) != 0);
}

// Given up in two steps, an unlock and a discard: the unlock offers, and whoever locks meanwhile is told intact.
static void given_up_in_two(case_report_t *report) {
  pause_once_t pause = {.region = NULL};
  REQUIRE(purgeable_region_create(PAGES * PAGE, &at_once, &pause.region) == 0);
  pause.other = (other_t){.region = pause.region, .act = act_lock};
  // Content on the first page and on the last: calls of their own.
  char *bytes = purgeable_region_bytes(pause.region);
  for (size_t page = 0; page < PAGES; page += PAGES - 1) bytes[page * PAGE] = 1;
  EXPECT(purgeable_testing_switch_off(purgeable_testing_rule_abandon_at_once));
  (void)purgeable_testing_set_pause(lock_in_between, &pause);
  EXPECT_EQUAL(purgeable_region_abandon(pause.region), EBUSY);
  (void)purgeable_testing_set_pause(NULL, NULL);
  EXPECT(purgeable_testing_switch_off(0));
  REQUIRE(atomic_load(&pause.has_begun));
  (void)pthread_join(pause.thread, NULL);
  EXPECT_EQUAL(pause.other.answer, purgeable_outcome_intact);
  EXPECT_EQUAL(purgeable_region_unlock(pause.region), 0);
  EXPECT_EQUAL(purgeable_region_destroy(pause.region), 0);
}

static void *fills_it(void *context) {
  purgeable_region_t *region = *(purgeable_region_t **)context;
  bool is_filler = false;
  if (purgeable_region_lock_or_fill(region, &is_filler) != purgeable_outcome_discarded || !is_filler) abort();
  fill_pattern(purgeable_region_bytes(region), PAGE, 8);
  if (purgeable_region_unlock(region) != 0) abort();
  return NULL;
}

// Called between the look that finds a region discarded and the claim of the fill.
static void fill_in_between(void *context) {
  pause_once_t *pause = context;
  if (!atomic_exchange(&pause->has_begun, true)) run_threads(1, fills_it, &pause->region, sizeof pause->region);
}

// Whether a thread is elected for a region that another one has filled meanwhile.
static bool is_elected_late(case_report_t *report, unsigned off) {
  pause_once_t pause = {.region = NULL};
  bool is_filler = false;
  if (purgeable_region_create_discarded(PAGE, &not_at_all, &pause.region) != 0) return false;
  EXPECT(purgeable_testing_switch_off(off));
  (void)purgeable_testing_set_pause(fill_in_between, &pause);
  purgeable_outcome_t outcome = purgeable_region_lock_or_fill(pause.region, &is_filler);
  (void)purgeable_testing_set_pause(NULL, NULL);
  EXPECT(purgeable_testing_switch_off(0));
  EXPECT(atomic_load(&pause.has_begun));
  EXPECT_EQUAL(outcome, is_filler ? purgeable_outcome_discarded : purgeable_outcome_intact);
  if (!is_filler) EXPECT(check_pattern(purgeable_region_bytes(pause.region), PAGE, 8));
  EXPECT_EQUAL(purgeable_region_unlock(pause.region), 0);
  EXPECT_EQUAL(purgeable_region_destroy(pause.region), 0);
  return is_filler;
}

// The storms of region_fill_storms.c show the same by chance.
static void rules_are_needed(case_report_t *report) {
  NEED_HOOKS();
  EXPECT_EQUAL(told_beside_fill(report, 0), purgeable_outcome_busy);
  EXPECT_EQUAL(told_beside_fill(report, purgeable_testing_rule_fill_excludes), purgeable_outcome_intact);
  given_up_in_two(report);
  EXPECT(!is_elected_late(report, 0));
  EXPECT(is_elected_late(report, purgeable_testing_rule_fill_only_discarded));
}

// MARK: Elected

static void bad_input_to_fills(case_report_t *report) {
  bool is_filler = false;
  purgeable_region_t *region = filled_region(PAGE, NULL, 1);
  REQUIRE(region != NULL);
  errno = 0;
  EXPECT_EQUAL(purgeable_region_lock_or_fill(NULL, &is_filler), purgeable_outcome_error);
  EXPECT_EQUAL(errno, EINVAL);
  errno = 0;
  EXPECT_EQUAL(purgeable_region_lock_or_fill(region, NULL), purgeable_outcome_error);
  EXPECT_EQUAL(errno, EINVAL);
  EXPECT_EQUAL(purgeable_region_lock_waiting(NULL), purgeable_outcome_error);
  EXPECT_EQUAL(purgeable_region_lock_for_writing_waiting(NULL), purgeable_outcome_error);
  EXPECT_EQUAL(purgeable_region_state(NULL), purgeable_state_idle);
  EXPECT(!purgeable_region_fills_here(NULL));
  EXPECT_EQUAL(purgeable_region_create_discarded(0, NULL, &region), EINVAL);
  // When the kernel refuses, no thread is elected and nothing is changed; the next call elects.
  EXPECT_EQUAL(purgeable_region_discard(region), 0);
  purgeable_testing_fail(purgeable_testing_call_madvise_dontneed, 1, EACCES, true);
  errno = 0;
  is_filler = true;
  EXPECT_EQUAL(purgeable_region_lock_or_fill(region, &is_filler), purgeable_outcome_error);
  EXPECT_EQUAL(errno, EACCES);
  EXPECT(!is_filler);
  no_faults();
  EXPECT_EQUAL(purgeable_region_state(region), purgeable_state_discarded);
  EXPECT_EQUAL(purgeable_region_lock_or_fill(region, &is_filler), purgeable_outcome_discarded);
  EXPECT(is_filler);
  // A filler that asks again holds its lock twice, as with any lock.
  EXPECT_EQUAL(purgeable_region_lock_or_fill(region, &is_filler), purgeable_outcome_intact);
  EXPECT(!is_filler);
  EXPECT_EQUAL(purgeable_region_unlock(region), 0);
  EXPECT_EQUAL(purgeable_region_abandon(region), 0);
  EXPECT_EQUAL(purgeable_region_destroy(region), 0);
}

static void born_discarded(case_report_t *report) {
  for (int mode = 0; mode < 3; mode++) {
    purgeable_region_options_t options = {.offering = (purgeable_offering_t)mode};
    purgeable_region_statistics_t before = statistics_now();
    purgeable_region_t *region = NULL;
    bool is_filler = false;
    REQUIRE(purgeable_region_create_discarded(PAGE + 1, &options, &region) == 0);
    EXPECT_EQUAL(purgeable_region_state(region), purgeable_state_discarded);
    EXPECT_EQUAL(purgeable_region_lock_count(region), 0);
    EXPECT_EQUAL(purgeable_region_lock(region), purgeable_outcome_discarded);
    EXPECT_EQUAL(purgeable_region_unlock(region), EPERM);
    EXPECT_EQUAL(purgeable_region_offer(region), 0);
    EXPECT_EQUAL(purgeable_region_discard(region), 0);
    EXPECT_EQUAL(statistics_now().memory.discarded_bytes, before.memory.discarded_bytes + 2 * PAGE);
    EXPECT_EQUAL(statistics_now().own_discard_count, before.own_discard_count);
    EXPECT_EQUAL(purgeable_region_lock_or_fill(region, &is_filler), purgeable_outcome_discarded);
    EXPECT(is_filler);
    fill_pattern(purgeable_region_bytes(region), PAGE + 1, 7);
    EXPECT_EQUAL(purgeable_region_unlock(region), 0);
    EXPECT_EQUAL(purgeable_region_lock_or_fill(region, &is_filler), purgeable_outcome_intact);
    EXPECT(!is_filler && check_pattern(purgeable_region_bytes(region), PAGE + 1, 7));
    EXPECT_EQUAL(purgeable_region_destroy(region), 0);
    EXPECT_EQUAL(statistics_now().memory.discarded_bytes, before.memory.discarded_bytes);
  }
}

static void states_follow(case_report_t *report) {
  const char *reason;
  purgeable_region_t *region = filled_region(PAGE, NULL, 1);
  REQUIRE(region != NULL);
  EXPECT_EQUAL(purgeable_region_state(region), purgeable_state_idle);
  EXPECT_EQUAL(purgeable_region_lock(region), purgeable_outcome_intact);
  EXPECT_EQUAL(purgeable_region_state(region), purgeable_state_locked);
  EXPECT_EQUAL(purgeable_region_lock_for_writing(region), purgeable_outcome_intact);
  EXPECT_EQUAL(purgeable_region_state(region), purgeable_state_writing);
  EXPECT_EQUAL(purgeable_region_unlock(region), 0);
  EXPECT_EQUAL(purgeable_region_unlock(region), 0);
  EXPECT_EQUAL(purgeable_region_state(region), purgeable_state_idle);
  if (kernel_discards(&reason)) {
    EXPECT_EQUAL(purgeable_region_offer(region), 0);
    EXPECT_EQUAL(purgeable_region_state(region), purgeable_state_on_offer);
  }
  purgeable_testing_fail(purgeable_testing_call_madvise_free, 1, EINVAL, true);
  EXPECT_EQUAL(purgeable_region_offer(region), EINVAL);
  no_faults();
  EXPECT_EQUAL(purgeable_region_state(region), purgeable_state_idle);
  EXPECT_EQUAL(purgeable_region_discard(region), 0);
  EXPECT_EQUAL(purgeable_region_state(region), purgeable_state_discarded);
  EXPECT_EQUAL(purgeable_region_destroy(region), 0);
}

const test_case_t region_fill_cases[] = {
    CASE("region fill: nobody but the filler is told intact", others_are_told_busy),
    CASE("region fill: who waits is told how it ended", waiters_hear_of_the_end),
    CASE("region fill: published, and the lock kept", published_and_kept),
    CASE("region fill: given up in one call", given_up_in_one_call),
    CASE("region fill: a filler that ended is nobody else, and can be given up", filler_that_ended),
    CASE("region fill: forked in the middle of it", forked_while_filled),
    CASE("region fill: bad input, and refusals by the kernel", bad_input_to_fills),
    CASE("region fill: born idle and discarded", born_discarded),
    CASE("region fill: states follow every change", states_follow),
    CASE("region fill: each rule alone, switched off, shows what it is for", rules_are_needed),
    END_OF_CASES,
};
