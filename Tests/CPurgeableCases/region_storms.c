// SPDX-License-Identifier: MIT
// Regions under fire: locks against running offers, reads against discards and refills, everything at random, signal handlers.
//
// Content is words: word i of number n is n * STRIDE + i + 1, so one look tells whether all of it is of one number. Threads count
// what they saw in atomics; the case reports after they have ended.

#include "region_cases.h"

#include <sched.h>
#include <signal.h>
#include <sys/time.h>
#include <time.h>

#define STRIDE ((uint64_t)1 << 32)
#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT 21
#endif

static size_t words_in(size_t bytes) { return bytes / sizeof(uint64_t); }

static void write_number(void *bytes, size_t length, uint64_t number) {
  uint64_t *words = bytes;
  for (size_t i = 0; i < words_in(length); i++) words[i] = number * STRIDE + i + 1;
}

// Whether the words from the `first`-th on are of `number`.
static bool is_number(const void *bytes, size_t first, size_t count, uint64_t number) {
  const uint64_t *words = bytes;
  uint64_t wrong = 0;
  for (size_t i = 0; i < count; i++) wrong |= words[i] ^ (number * STRIDE + first + i + 1);
  return wrong == 0;
}

static uint64_t now_ms(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static void page_out(void *bytes, size_t length) { (void)madvise(bytes, length, MADV_PAGEOUT); }

// MARK: Locks that began inside an offer

enum { OFFERED_PAGES = 64 };

static struct {
  purgeable_region_t *region;
  size_t length;
  uint64_t target;
  _Atomic bool stop;
  uint64_t waited, lost, refused;
} duel;

// The two have to be on two CPUs, or a lock meets a madvise only when that is preempted; waking pulls them together otherwise.
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

// Locks the moment it sees the region offered, which is when the madvise begins. What it locked it has the kernel try to take.
static void *locks(void *context) {
  (void)context;
  uint64_t number = 1;
  uint64_t give_up = now_ms() + 5000 + 2 * duel.target;
  // Without hooks nobody counts, and every lock is examined.
  bool counts = purgeable_testing_has_hooks();
  while (duel.waited < duel.target && now_ms() < give_up) {
    for (int spin = 0; spin < 20000 && purgeable_region_offered_bytes(duel.region) == 0; spin++) {
      if (spin % 1000 == 999) sched_yield();
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
    // Nobody pages out what is not locked here, but under real pressure the kernel may.
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

static bool run_duel(uint64_t target) {
  memset(&duel, 0, sizeof duel);
  duel.length = OFFERED_PAGES * PAGE;
  duel.target = target;
  if (purgeable_region_create(duel.length, NULL, &duel.region) != 0) return false;
  write_number(purgeable_region_bytes(duel.region), duel.length, 1);
  (void)purgeable_region_unlock(duel.region);
  int roles[] = {0, 1};
  run_threads(2, either, roles, sizeof roles[0]);
  return purgeable_region_destroy(duel.region) == 0;
}

static void locks_inside_offers(case_report_t *report) {
  NEED_DISCARDS();
  uint64_t target = 1500 * report->scale;
  REQUIRE(run_duel(target));
  NOTE("%llu of %llu locks %s, %llu lost, %llu discarded otherwise", (unsigned long long)duel.waited,
       (unsigned long long)target,
       purgeable_testing_has_hooks() ? "began inside a madvise" : "beside offers", (unsigned long long)duel.lost,
       (unsigned long long)(duel.refused - duel.lost));
  // On a machine that is busy with other things the time may run out first.
  EXPECT(duel.waited > target / 50);
  EXPECT_EQUAL(duel.lost, 0);
}

static void locks_that_do_not_wait(case_report_t *report) {
  NEED_DISCARDS();
  if (!purgeable_testing_has_hooks()) SKIP("this build cannot switch rules off");
  purgeable_testing_switch_off(purgeable_testing_rule_wait_for_offer);
  bool ran = run_duel(500 * report->scale);
  purgeable_testing_switch_off(0);
  REQUIRE(ran);
  NOTE("%llu of %llu locks lost content", (unsigned long long)duel.lost, (unsigned long long)duel.waited);
  EXPECT(duel.lost > 0);
}

// MARK: Locks that wait for a discard

static struct {
  purgeable_region_t *region;
  uint64_t until_ms;
  _Atomic uint64_t intact, discarded, refills, wrong;
} tug;

// Whoever waits for a madvise that ends as a discard has to find its way back, also while others wait to refill.
static void *pulls(void *context) {
  const size_t length = 2 * PAGE;
  while (now_ms() < tug.until_ms) {
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
      // Long enough that the count falls to 0 and somebody else has his turn.
      for (int spin = 0; spin < 400; spin++) atomic_signal_fence(memory_order_seq_cst);
      if (i % 8 == 0) sched_yield();
    }
  }
  return NULL;
}

static void locks_beside_discards(case_report_t *report) {
  memset(&tug, 0, sizeof tug);
  REQUIRE(purgeable_region_create(2 * PAGE, &at_once, &tug.region) == 0);
  EXPECT_EQUAL(purgeable_region_unlock(tug.region), 0);
  tug.until_ms = now_ms() + 700 * report->scale;
  int roles[] = {0, 1, 2, 3};
  run_threads(4, pulls, roles, sizeof roles[0]);
  NOTE("%llu refills, %llu locks intact, %llu discarded", (unsigned long long)tug.refills, (unsigned long long)tug.intact,
       (unsigned long long)tug.discarded);
  EXPECT(tug.refills > 0 && tug.intact > 0 && tug.discarded > 0);
  EXPECT_EQUAL(tug.wrong, 0);
  EXPECT_EQUAL(purgeable_region_lock_count(tug.region), 0);
  EXPECT_EQUAL(purgeable_region_destroy(tug.region), 0);
}

// MARK: Regions destroyed while they are offered

enum { CROWD = 400 };

static struct {
  uint64_t until_ms, seed, rounds, wrong, caught;
  _Atomic bool stop;
} doomed;

static void offer_what_is_queued(void) {
  purgeable_region_statistics_t statistics;
  while (!atomic_load(&doomed.stop)) {
    // Not all the time at the mutex: the other thread has to come to its turn.
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

// Enough of them that the sort of the queue takes a while, and they leave it meanwhile.
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
  for (; now_ms() < doomed.until_ms; doomed.rounds++) {
    for (uint64_t i = 0; i < 10; i++) destroy_one_in_offer(doomed.rounds + i);
    destroy_crowd_in_queue(&state);
  }
  atomic_store(&doomed.stop, true);
  return NULL;
}

static void destroyed_beside_offers(case_report_t *report) {
  NEED_DISCARDS();
  purgeable_region_statistics_t before = statistics_now();
  memset(&doomed, 0, sizeof doomed);
  doomed.seed = report->seed;
  doomed.until_ms = now_ms() + 700 * report->scale;
  int roles[] = {0, 1};
  run_threads(2, destroy_or_offer, roles, sizeof roles[0]);
  NOTE("%llu rounds, %llu destroyed in their offer or just after", (unsigned long long)doomed.rounds,
       (unsigned long long)doomed.caught);
  EXPECT(doomed.rounds > 0);
  EXPECT_EQUAL(doomed.wrong, 0);
  purgeable_region_statistics_t after = statistics_now();
  EXPECT_EQUAL(memcmp(&before, &after, sizeof before), 0);
}

// MARK: Reads beside discards and refills

enum { READ_PAGES = 40, READERS = 3 };

static struct {
  purgeable_region_t *region;
  size_t length;
  uint64_t until_ms, seed;
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

static void *rewrites(uint64_t state) {
  for (uint64_t number = 2; now_ms() < reading.until_ms; number++) {
    atomic_store(&reading.begun, number);
    bool in_place = next_random(&state) % 3 == 0;
    if (!in_place || purgeable_region_lock_for_writing(reading.region) != purgeable_outcome_intact) {
      while (purgeable_region_refill(reading.region) != 0) sched_yield();
    }
    write_content(number);
    if (purgeable_region_unlock(reading.region) != 0) abort();
    atomic_store(&reading.complete, number);
    for (uint64_t i = next_random(&state) % 4; i > 0; i--) {
      struct timespec nap = {0, (long)(next_random(&state) % 100000)};
      (void)nanosleep(&nap, NULL);
    }
    size_t from = next_random(&state) % READ_PAGES;
    char *bytes = purgeable_region_bytes(reading.region);
    if (next_random(&state) % 2 == 0) page_out(bytes + from * PAGE, (READ_PAGES - from) * PAGE);
    if (next_random(&state) % 8 == 0) (void)purgeable_region_discard(reading.region);
    atomic_fetch_add(&reading.rounds, 1);
  }
  return NULL;
}

static bool is_one_number(const uint64_t *words, size_t first, size_t count, uint64_t oldest, uint64_t newest) {
  uint64_t number = 0;
  for (size_t i = 0; i < count && number == 0; i++) number = words[i] / STRIDE;
  // All zeros: inside of a page of zeros, then. No number can be named.
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
  while (now_ms() < reading.until_ms) {
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
    reading.until_ms = now_ms() + 1000 * report->scale;
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
    EXPECT(reading.outcomes[purgeable_outcome_intact] > 0);
    discarded += reading.outcomes[purgeable_outcome_discarded];
    EXPECT_EQUAL(purgeable_region_destroy(reading.region), 0);
  }
  EXPECT(discarded > 0);
}

// MARK: Anything at random

enum { SHARED = 12, ACTORS = 4, OWN = 6 };

// Holders of a region agree on its content by `users`: readers add 1, a writer takes it from 0 to -1. All of them try and go on.
static struct {
  purgeable_region_t *region;
  size_t length;
  _Atomic int users;
  _Atomic uint64_t number;
} shared[SHARED];

static struct {
  uint64_t until_ms, seed;
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

// Regions of this thread alone, so that others meet their pages and their place in the queue only: made, used, destroyed.
static void churn(purgeable_region_t **own, uint64_t *state) {
  size_t i = next_random(state) % OWN;
  if (own[i] != NULL) {
    purgeable_outcome_t outcome = purgeable_region_lock(own[i]);
    size_t length = purgeable_region_length(own[i]);
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
  while (now_ms() < chaos.until_ms) {
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
  chaos.until_ms = now_ms() + 2000 * report->scale;
  uint64_t actors[ACTORS] = {0, 1, 2, 3};
  run_threads(ACTORS, acts, actors, sizeof actors[0]);
  NOTE("%llu holds, %llu writes, %llu reads, %llu locks told discarded", (unsigned long long)chaos.holds,
       (unsigned long long)chaos.writes, (unsigned long long)chaos.reads, (unsigned long long)chaos.losses);
  EXPECT_EQUAL(chaos.wrong, 0);
  EXPECT_EQUAL(chaos.broken, 0);
  EXPECT(chaos.holds > 0 && chaos.writes > 0 && chaos.reads > 0);
  for (size_t i = 0; i < SHARED; i++) {
    EXPECT_EQUAL(purgeable_region_lock_count(shared[i].region), 0);
    if (purgeable_region_lock(shared[i].region) == purgeable_outcome_intact) expect_content(i, atomic_load(&shared[i].number));
    EXPECT_EQUAL(purgeable_region_destroy(shared[i].region), 0);
  }
  EXPECT_EQUAL(chaos.wrong, 0);
  purgeable_region_statistics_t after = statistics_now();
  EXPECT_EQUAL(after.region_count, before.region_count);
  EXPECT_EQUAL(after.region_bytes, before.region_bytes);
  EXPECT_EQUAL(after.locked_bytes, before.locked_bytes);
  EXPECT_EQUAL(after.offered_bytes, before.offered_bytes);
  EXPECT_EQUAL(after.discarded_bytes, before.discarded_bytes);
  EXPECT_EQUAL(after.pending_count, before.pending_count);
  EXPECT_EQUAL(after.unbalanced_unlock_count, before.unbalanced_unlock_count);
}

// MARK: Signal handlers

static struct {
  purgeable_region_t *region;
  _Atomic uint64_t number, owed, handled, intact, wrong, errno_changed;
} interrupted;

static void on_signal(int signal_number) {
  (void)signal_number;
  uint64_t words[700];
  int kept = errno;
  errno = 4711;
  purgeable_outcome_t outcome = purgeable_region_read(interrupted.region, 8, sizeof words, words);
  if (outcome == purgeable_outcome_intact) {
    atomic_fetch_add(&interrupted.intact, 1);
    if (!is_number(words, 1, 700, words[0] / STRIDE) || words[0] == 0) atomic_fetch_add(&interrupted.wrong, 1);
  }
  if (purgeable_region_try_lock(interrupted.region) == purgeable_outcome_intact) atomic_fetch_add(&interrupted.owed, 1);
  if (errno != 4711) atomic_fetch_add(&interrupted.errno_changed, 1);
  atomic_fetch_add(&interrupted.handled, 1);
  errno = kept;
}

static void pay_back(void) {
  uint64_t owed = atomic_exchange(&interrupted.owed, 0);
  while (owed-- > 0) {
    if (purgeable_region_unlock(interrupted.region) != 0) atomic_fetch_add(&interrupted.wrong, 1);
  }
}

// The handler interrupts the library anywhere: inside a lock, a rescue, an unlock, an offer, a refill.
static void handlers_interrupt(case_report_t *report) {
  const size_t length = 8 * PAGE;
  memset(&interrupted, 0, sizeof interrupted);
  REQUIRE(purgeable_region_create(length, &at_once, &interrupted.region) == 0);
  purgeable_region_t *region = interrupted.region;
  write_number(purgeable_region_bytes(region), length, 1);
  EXPECT_EQUAL(purgeable_region_unlock(region), 0);
  struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART}, old;
  REQUIRE(sigaction(SIGALRM, &action, &old) == 0);
  struct itimerval often = {{0, 200}, {0, 200}}, off = {{0, 0}, {0, 0}};
  REQUIRE(setitimer(ITIMER_REAL, &often, NULL) == 0);
  uint64_t number = 1;
  for (uint64_t until = now_ms() + 700 * report->scale; now_ms() < until; pay_back()) {
    if (number % 4 == 0) page_out(purgeable_region_bytes(region), length);
    if (purgeable_region_lock_for_writing(region) == purgeable_outcome_intact) {
      if (!is_number(purgeable_region_bytes(region), 0, words_in(length), number)) atomic_fetch_add(&interrupted.wrong, 1);
    } else {
      for (int error; (error = purgeable_region_refill(region)) != 0; pay_back()) REQUIRE(error == EBUSY);
    }
    write_number(purgeable_region_bytes(region), length, ++number);
    (void)purgeable_region_unlock(region);
  }
  (void)setitimer(ITIMER_REAL, &off, NULL);
  (void)sigaction(SIGALRM, &old, NULL);
  pay_back();
  NOTE("%llu signals, %llu reads intact, %llu rounds", (unsigned long long)interrupted.handled,
       (unsigned long long)interrupted.intact, (unsigned long long)number);
  EXPECT(interrupted.handled > 0);
  EXPECT_EQUAL(interrupted.wrong, 0);
  EXPECT_EQUAL(interrupted.errno_changed, 0);
  EXPECT_EQUAL(purgeable_region_lock_count(region), 0);
  EXPECT_EQUAL(purgeable_region_destroy(region), 0);
}

const test_case_t region_storm_cases[] = {
    {"region storm: locks that began inside an offer are worth something", locks_inside_offers},
    {"region storm: locks that do not wait for the offer lose content", locks_that_do_not_wait},
    {"region storm: locks and refills that wait for a discard", locks_beside_discards},
    {"region storm: regions destroyed while they are offered", destroyed_beside_offers},
    {"region storm: reads beside discards and refills", reads_beside_refills},
    {"region storm: anything at random", anything_at_random},
    {"region storm: signal handlers interrupt the library", handlers_interrupt},
    {NULL, NULL},
};
