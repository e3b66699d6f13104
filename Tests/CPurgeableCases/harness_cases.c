// SPDX-License-Identifier: MIT
// Those shared helpers in which a mistake would make cases pass.

#include "harness.h"

#include <signal.h>

static void ends_of_children(case_report_t *report) {
  pid_t child = fork();
  if (child == 0) _exit(7);
  EXPECT_EQUAL(wait_for_child(child), 7);
  EXPECT_EQUAL(wait_for_child(child), -1);
  child = fork();
  if (child == 0) {
    (void)raise(SIGKILL);
    _exit(0);
  }
  EXPECT_EQUAL(wait_for_child(child), 1000 + SIGKILL);
  EXPECT_EQUAL(wait_for_child(-1), -1);
}

static void time_goes_on(case_report_t *report) {
  uint64_t before_ms = now_ms(), before = now_ns();
  (void)usleep(20000);
  uint64_t after = now_ns();
  EXPECT(after - before >= 20000000);
  EXPECT(before / 1000000 >= before_ms && now_ms() >= after / 1000000);
}

static void random_numbers(case_report_t *report) {
  // The numbers that the generator's authors print.
  uint64_t state = 1234567;
  EXPECT(next_random(&state) == 6457827717110365317u);
  EXPECT(next_random(&state) == 3203168211198807973u);
}

static void patterns(case_report_t *report) {
  unsigned char bytes[100];
  fill_pattern(bytes, sizeof bytes, 5);
  EXPECT(check_pattern(bytes, sizeof bytes, 5) && !check_pattern(bytes, sizeof bytes, 6));
  for (size_t i = 0; i < sizeof bytes; i++) {
    bytes[i] ^= 4;
    EXPECT(!check_pattern(bytes, sizeof bytes, 5));
    bytes[i] ^= 4;
  }
}

const test_case_t harness_cases[] = {
    CASE("harness: how a child ended is told, and that there is none", ends_of_children),
    CASE("harness: the clock goes on", time_goes_on),
    CASE("harness: random numbers are splitmix64's", random_numbers),
    CASE("harness: a pattern differs by its number, and with any byte that is changed", patterns),
    END_OF_CASES,
};
