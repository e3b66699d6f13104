// SPDX-License-Identifier: MIT
// Regions and signal handlers, which interrupt the library anywhere.

#include "region_words.h"

#include <signal.h>
#include <sys/time.h>

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
void handlers_interrupt(case_report_t *report) {
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
  // In the gate until enough signals have come, which they are sure to do.
  uint64_t until = now_ms() + 700 * report->scale;
  for (; report->is_full ? now_ms() < until : interrupted.handled < 200 * report->scale || number < 200; pay_back()) {
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
