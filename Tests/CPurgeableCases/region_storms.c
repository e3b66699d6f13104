// SPDX-License-Identifier: MIT
// Regions under fire: reads against discards and refills, and everything at random. The table of the storms is here.
//
// Threads count what they saw in atomics; the case reports after they have ended.

#include "region_words.h"

#include <sched.h>
#include <time.h>

// MARK: Reads beside discards and refills

enum { READ_PAGES = 40, READERS = 3 };

static struct {
  purgeable_region_t *region;
  size_t length;
  span_t span;
  uint64_t seed;
  // The thread that writes has ended: so do those that read.
  _Atomic bool is_over;
  // The newest number whose content was complete, and the newest that was begun.
  _Atomic uint64_t complete, begun;
  _Atomic uint64_t outcomes[4], wrong, rounds;
} reading;

// Odd numbers leave one page all zeros, another each time.
static bool is_zero_page(uint64_t number, size_t page) { return number % 2 == 1 && page == number / 2 % READ_PAGES; }

static void write_content(uint64_t number) {
  char *bytes = purgeable_region_bytes(reading.region);
  write_number(bytes, reading.length, number);
  for (size_t page = 0; page < READ_PAGES; page++) {
    if (is_zero_page(number, page)) memset(bytes + page * PAGE, 0, PAGE);
  }
}

static void nap(uint64_t *state) {
  for (uint64_t i = next_random(state) % 4; i > 0; i--) {
    struct timespec time = {0, (long)(next_random(state) % 100000)};
    (void)nanosleep(&time, NULL);
  }
}

static void *rewrites(uint64_t state) {
  for (uint64_t number = 2; span_goes_on(reading.span, number - 2); number++) {
    atomic_store(&reading.begun, number);
    bool in_place = next_random(&state) % 3 == 0;
    if (!in_place || purgeable_region_lock_for_writing(reading.region) != purgeable_outcome_intact) {
      while (purgeable_region_refill(reading.region) != 0) sched_yield();
    }
    write_content(number);
    if (purgeable_region_unlock(reading.region) != 0) abort();
    atomic_store(&reading.complete, number);
    nap(&state);
    size_t from = next_random(&state) % READ_PAGES;
    char *bytes = purgeable_region_bytes(reading.region);
    if (next_random(&state) % 2 == 0) page_out(bytes + from * PAGE, (READ_PAGES - from) * PAGE);
    if (next_random(&state) % 8 == 0) (void)purgeable_region_discard(reading.region);
    // Readers see what is gone before it is written again.
    if (next_random(&state) % 4 == 0) nap(&state);
    atomic_fetch_add(&reading.rounds, 1);
  }
  atomic_store(&reading.is_over, true);
  return NULL;
}

static bool is_one_number(const uint64_t *words, size_t first, size_t count, uint64_t oldest, uint64_t newest) {
  uint64_t number = 0;
  for (size_t i = 0; i < count && number == 0; i++) number = words[i] / STRIDE;
  // All zeros: the range lies in a page of zeros, and has no number.
  if (number == 0) return count <= words_in(PAGE);
  if (number < oldest || number > newest) return false;
  size_t page_words = words_in(PAGE);
  for (size_t i = 0; i < count; i++) {
    bool is_zero = is_zero_page(number, (first + i) / page_words);
    if (words[i] != (is_zero ? 0 : number * STRIDE + first + i + 1)) return false;
  }
  return true;
}

static void *reads(uint64_t state) {
  uint64_t *buffer = malloc(reading.length);
  if (buffer == NULL) abort();
  while (!atomic_load(&reading.is_over)) {
    size_t first = 0, count = words_in(reading.length);
    if (next_random(&state) % 4 != 0) {
      first = next_random(&state) % count;
      count = 1 + next_random(&state) % (count - first);
      if (next_random(&state) % 2 == 0 && count > 100) count = 100;
    }
    uint64_t oldest = atomic_load(&reading.complete);
    purgeable_outcome_t outcome =
        purgeable_region_read(reading.region, first * sizeof(uint64_t), count * sizeof(uint64_t), buffer);
    uint64_t newest = atomic_load(&reading.begun);
    atomic_fetch_add_explicit(&reading.outcomes[outcome], 1, memory_order_relaxed);
    if (outcome == purgeable_outcome_intact && !is_one_number(buffer, first, count, oldest, newest)) {
      atomic_fetch_add(&reading.wrong, 1);
    }
  }
  free(buffer);
  return NULL;
}

static void *reads_or_rewrites(void *context) {
  int role = *(int *)context;
  uint64_t state = reading.seed + (uint64_t)role;
  return role == 0 ? rewrites(state) : reads(state);
}

static void reads_beside_refills(case_report_t *report) {
  NEED_DISCARDS();
  uint64_t discarded = 0;
  for (uint32_t slow = 0; slow < 2; slow++) {
    memset(&reading, 0, sizeof reading);
    reading.length = READ_PAGES * PAGE;
    reading.seed = report->seed;
    reading.span = span_of(report, 100, 1000);
    atomic_store(&reading.complete, 1);
    atomic_store(&reading.begun, 1);
    REQUIRE(purgeable_region_create(reading.length, &at_once, &reading.region) == 0);
    write_content(1);
    EXPECT_EQUAL(purgeable_region_unlock(reading.region), 0);
    purgeable_testing_slow_reads(slow * 20000);
    int roles[1 + READERS];
    for (int i = 0; i < 1 + READERS; i++) roles[i] = i;
    run_threads(1 + READERS, reads_or_rewrites, roles, sizeof roles[0]);
    purgeable_testing_slow_reads(0);
    NOTE("%s: %llu rounds; %llu intact, %llu discarded, %llu busy, %llu wrong", slow ? "slow reads" : "reads",
         (unsigned long long)reading.rounds, (unsigned long long)reading.outcomes[purgeable_outcome_intact],
         (unsigned long long)reading.outcomes[purgeable_outcome_discarded],
         (unsigned long long)reading.outcomes[purgeable_outcome_busy], (unsigned long long)reading.wrong);
    EXPECT_EQUAL(reading.wrong, 0);
    EXPECT_EQUAL(reading.outcomes[purgeable_outcome_error], 0);
    if (report->is_full) EXPECT(reading.outcomes[purgeable_outcome_intact] > 0);
    discarded += reading.outcomes[purgeable_outcome_discarded];
    EXPECT_EQUAL(purgeable_region_destroy(reading.region), 0);
  }
  if (report->is_full) EXPECT(discarded > 0);
}

// MARK: Anything at random

enum { SHARED = 12, ACTORS = 4, OWN = 6 };

// Holders of a region agree on its content by `users`: readers add 1, a writer takes it from 0 to -1. No thread waits: each tries
// and goes on.
static struct {
  purgeable_region_t *region;
  size_t length;
  _Atomic int users;
  _Atomic uint64_t number;
} shared[SHARED];

static struct {
  span_t span;
  uint64_t seed;
  _Atomic uint64_t holds, writes, losses, reads, wrong, broken;
} chaos;

static bool begin_use(size_t i, bool writing) {
  int users = atomic_load(&shared[i].users);
  while (writing ? users == 0 : users >= 0) {
    if (atomic_compare_exchange_weak(&shared[i].users, &users, writing ? -1 : users + 1)) return true;
  }
  return false;
}

static void end_use(size_t i, bool writing) {
  if (writing) {
    atomic_store(&shared[i].users, 0);
  } else {
    atomic_fetch_sub(&shared[i].users, 1);
  }
}

static void expect_content(size_t i, uint64_t number) {
  const void *bytes = purgeable_region_bytes(shared[i].region);
  if (!is_number(bytes, 0, words_in(shared[i].length), number)) atomic_fetch_add(&chaos.wrong, 1);
}

static void hold(size_t i, bool writing, uint64_t *state) {
  purgeable_region_t *region = shared[i].region;
  purgeable_outcome_t outcome = writing                        ? purgeable_region_lock_for_writing(region)
                                : next_random(state) % 4 == 0 ? purgeable_region_try_lock(region)
                                                               : purgeable_region_lock(region);
  if (outcome == purgeable_outcome_busy) return;
  if (outcome == purgeable_outcome_discarded) {
    atomic_fetch_add(&chaos.losses, 1);
    return;
  }
  if (outcome != purgeable_outcome_intact) atomic_fetch_add(&chaos.broken, 1);
  if (begin_use(i, writing)) {
    uint64_t number = atomic_load(&shared[i].number);
    expect_content(i, number);
    if (writing) {
      write_number(purgeable_region_bytes(region), shared[i].length, ++number);
      atomic_store(&shared[i].number, number);
      atomic_fetch_add(&chaos.writes, 1);
    }
    if (next_random(state) % 4 == 0) page_out(purgeable_region_bytes(region), shared[i].length);
    if (next_random(state) % 4 == 0) sched_yield();
    expect_content(i, number);
    end_use(i, writing);
    atomic_fetch_add(&chaos.holds, 1);
  }
  if (purgeable_region_unlock(region) != 0) atomic_fetch_add(&chaos.broken, 1);
}

static void refill(size_t i) {
  if (!begin_use(i, true)) return;
  int error = purgeable_region_refill(shared[i].region);
  if (error == 0) {
    uint64_t number = atomic_load(&shared[i].number) + 1;
    const char *bytes = purgeable_region_bytes(shared[i].region);
    if (bytes[0] != 0 || bytes[shared[i].length - 1] != 0) atomic_fetch_add(&chaos.wrong, 1);
    write_number(purgeable_region_bytes(shared[i].region), shared[i].length, number);
    atomic_store(&shared[i].number, number);
    expect_content(i, number);
  } else if (error != EBUSY) {
    atomic_fetch_add(&chaos.broken, 1);
  }
  end_use(i, true);
  if (error == 0 && purgeable_region_unlock(shared[i].region) != 0) atomic_fetch_add(&chaos.broken, 1);
}

static void read_part(size_t i, uint64_t *state) {
  uint64_t words[600];
  size_t all = words_in(shared[i].length);
  size_t first = next_random(state) % all;
  size_t count = all - first < 600 ? all - first : 600;
  purgeable_outcome_t outcome = purgeable_region_read(shared[i].region, first * 8, count * 8, words);
  if (outcome == purgeable_outcome_error) atomic_fetch_add(&chaos.broken, 1);
  if (outcome != purgeable_outcome_intact) return;
  atomic_fetch_add(&chaos.reads, 1);
  if (!is_number(words, first, count, words[0] / STRIDE) || words[0] == 0) atomic_fetch_add(&chaos.wrong, 1);
}

// Regions of this thread alone, which share only pages and places in the queue with those of others: made, used, destroyed.
static void churn(purgeable_region_t **own, uint64_t *state) {
  size_t i = next_random(state) % OWN;
  if (own[i] != NULL) {
    purgeable_outcome_t outcome = purgeable_region_lock(own[i]);
    size_t length = purgeable_region_length_bytes(own[i]);
    if (outcome == purgeable_outcome_intact) {
      if (!is_number(purgeable_region_bytes(own[i]), 0, words_in(length), length)) atomic_fetch_add(&chaos.wrong, 1);
      if (next_random(state) % 4 != 0) (void)purgeable_region_unlock(own[i]);
    }
    if (purgeable_region_destroy(own[i]) != 0) atomic_fetch_add(&chaos.broken, 1);
    own[i] = NULL;
    return;
  }
  size_t length = (1 + next_random(state) % 6) * PAGE;
  if (purgeable_region_create(length, NULL, &own[i]) != 0) {
    own[i] = NULL;
    return;
  }
  const uint64_t *words = purgeable_region_bytes(own[i]);
  for (size_t k = 0; k < words_in(length); k++) {
    if (words[k] != 0) atomic_fetch_add(&chaos.wrong, 1);
  }
  write_number(purgeable_region_bytes(own[i]), length, length);
  if (purgeable_region_unlock(own[i]) != 0) atomic_fetch_add(&chaos.broken, 1);
}

static void *acts(void *context) {
  uint64_t state = chaos.seed + *(uint64_t *)context;
  purgeable_region_t *own[OWN] = {0};
  purgeable_region_statistics_t statistics;
  for (uint64_t round = 0; span_goes_on(chaos.span, round); round++) {
    size_t i = next_random(&state) % SHARED;
    switch (next_random(&state) % 16) {
      case 0: case 1: case 2: hold(i, false, &state); break;
      case 3: case 4: hold(i, true, &state); break;
      case 5: case 6: read_part(i, &state); break;
      case 7: if (purgeable_region_is_discarded(shared[i].region)) refill(i); break;
      case 8: if (next_random(&state) % 8 == 0) (void)purgeable_region_discard(shared[i].region); break;
      case 9: refill(i); break;
      case 10: (void)purgeable_region_offer(shared[i].region); break;
      case 11: (void)purgeable_offer_pending(NULL); break;
      case 12: if (next_random(&state) % 4 == 0) page_out(purgeable_region_bytes(shared[i].region), shared[i].length); break;
      case 13: (void)purgeable_region_statistics(&statistics); break;
      default: churn(own, &state); break;
    }
  }
  for (size_t i = 0; i < OWN; i++) {
    if (own[i] != NULL) (void)purgeable_region_destroy(own[i]);
  }
  return NULL;
}

static void anything_at_random(case_report_t *report) {
  memset(&chaos, 0, sizeof chaos);
  purgeable_region_statistics_t before = statistics_now();
  for (size_t i = 0; i < SHARED; i++) {
    purgeable_region_options_t options = {.offering = (purgeable_offering_t)(i % 3)};
    shared[i].length = i == SHARED - 1 ? 80 * PAGE : (1 + i % 5) * PAGE;
    atomic_store(&shared[i].users, 0);
    atomic_store(&shared[i].number, 1);
    REQUIRE(purgeable_region_create(shared[i].length, &options, &shared[i].region) == 0);
    write_number(purgeable_region_bytes(shared[i].region), shared[i].length, 1);
    EXPECT_EQUAL(purgeable_region_unlock(shared[i].region), 0);
  }
  chaos.seed = report->seed;
  chaos.span = span_of(report, 1000, 2000);
  uint64_t actors[ACTORS] = {0, 1, 2, 3};
  run_threads(ACTORS, acts, actors, sizeof actors[0]);
  NOTE("%llu holds, %llu writes, %llu reads, %llu locks told discarded", (unsigned long long)chaos.holds,
       (unsigned long long)chaos.writes, (unsigned long long)chaos.reads, (unsigned long long)chaos.losses);
  EXPECT_EQUAL(chaos.wrong, 0);
  EXPECT_EQUAL(chaos.broken, 0);
  if (report->is_full) EXPECT(chaos.holds > 0 && chaos.writes > 0 && chaos.reads > 0);
  for (size_t i = 0; i < SHARED; i++) {
    EXPECT_EQUAL(purgeable_region_lock_count(shared[i].region), 0);
    if (purgeable_region_lock(shared[i].region) == purgeable_outcome_intact) expect_content(i, atomic_load(&shared[i].number));
    EXPECT_EQUAL(purgeable_region_destroy(shared[i].region), 0);
  }
  EXPECT_EQUAL(chaos.wrong, 0);
  purgeable_region_statistics_t after = statistics_now();
  EXPECT_EQUAL(after.region_count, before.region_count);
  EXPECT_EQUAL(after.memory.held_bytes, before.memory.held_bytes);
  EXPECT_EQUAL(after.memory.locked_bytes, before.memory.locked_bytes);
  EXPECT_EQUAL(after.memory.offered_bytes, before.memory.offered_bytes);
  EXPECT_EQUAL(after.memory.discarded_bytes, before.memory.discarded_bytes);
  EXPECT_EQUAL(after.pending_count, before.pending_count);
  EXPECT_EQUAL(after.unbalanced_unlock_count, before.unbalanced_unlock_count);
}

const test_case_t region_storm_cases[] = {
    CASE("region storm: locks that began inside an offer are worth something", locks_inside_offers),
    FULL_CASE("region storm: locks that do not wait for the offer lose content", locks_that_do_not_wait),
    CASE("region storm: a lock between two calls of an offer, without the wait, loses content", lock_between_calls),
    CASE("region storm: locks and refills that wait for a discard", locks_beside_discards),
    CASE("region storm: regions destroyed while they are offered", destroyed_beside_offers),
    CASE("region storm: reads beside discards and refills", reads_beside_refills),
    CASE("region storm: anything at random", anything_at_random),
    CASE("region storm: signal handlers interrupt the library", handlers_interrupt),
    END_OF_CASES,
};
