// SPDX-License-Identifier: MIT
// What the cases share: expectations that name their place, random numbers from the printed seed, threads, real discards.
#ifndef HARNESS_H
#define HARNESS_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cases.h"
#include "purgeable.h"
#include "purgeable_testing.h"

#define EXPECT(condition)                                                                         \
  do {                                                                                            \
    if (!(condition)) report_failure(report, __FILE__, __LINE__, #condition);                     \
  } while (0)
#define EXPECT_EQUAL(actual, expected) \
  report_equal(report, __FILE__, __LINE__, #actual, (long long)(actual), (long long)(expected))
// Ends the case: what follows would make no sense.
#define REQUIRE(condition)                                                                        \
  do {                                                                                            \
    if (!(condition)) {                                                                           \
      report_failure(report, __FILE__, __LINE__, #condition);                                     \
      return;                                                                                     \
    }                                                                                             \
  } while (0)
#define SKIP(...)                                                                                 \
  do {                                                                                            \
    report_skip(report, __VA_ARGS__);                                                             \
    return;                                                                                       \
  } while (0)
#define NOTE(...) report_note(report, __VA_ARGS__)

void report_failure(case_report_t *report, const char *file, int line, const char *what);
void report_equal(case_report_t *report, const char *file, int line, const char *what, long long actual, long long expected);
__attribute__((format(printf, 2, 3))) void report_skip(case_report_t *report, const char *format, ...);
__attribute__((format(printf, 2, 3))) void report_note(case_report_t *report, const char *format, ...);

// splitmix64: small, seeded, good enough to choose what a test does next.
static inline uint64_t next_random(uint64_t *state) {
  uint64_t z = (*state += 0x9E3779B97F4A7C15u);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

// Content that depends on a number and the position, with no zero byte when `nonzero`.
void fill_pattern(void *bytes, size_t length, uint64_t number);
bool check_pattern(const void *bytes, size_t length, uint64_t number);

// Has the real kernel discard what is on offer in [start, start + length): MADV_PAGEOUT, twice, after draining this CPU's batch.
// Answers how many pages are not resident afterwards, or -1 where the kernel refuses.
long kernel_discard(void *start, size_t length);

// Keeps this thread, and those it makes, on one processor until the case ends. An offer passes over pages that wait in another
// processor's batch: a thread that is moved between writing and offering has nothing discarded, rightly.
void stay_on_one_processor(void);

// Gives up one range by MADV_DONTNEED behind the library's back: exact, for pages in the middle.
void discard_exactly(void *start, size_t length);
// Whether MADV_FREE and MADV_PAGEOUT really discard here; the reason otherwise.
bool kernel_discards(const char **reason);
// Skips the case where not.
#define NEED_DISCARDS()                                                  \
  do {                                                                   \
    const char *reason_;                                                 \
    if (!kernel_discards(&reason_)) SKIP("no real discards: %s", reason_); \
  } while (0)
// The same, for cases of one thread that say exactly what is taken.
#define NEED_EXACT_DISCARDS() \
  do {                        \
    NEED_DISCARDS();          \
    stay_on_one_processor();  \
  } while (0)

// A kernel that answers `action` (SECCOMP_RET_...) to this call, for this process and for good. `advice`: only with this third
// argument; ANY_ADVICE: whatever the arguments. False where there are no filters.
bool kernel_answers(long call, unsigned advice, unsigned action);
#define ANY_ADVICE 0xFFFFFFFFu

// Runs `count` threads of `body` with a context each and waits for all of them.
void run_threads(size_t count, void *(*body)(void *), void *contexts, size_t context_size);

#define PAGE purgeable_page_size_bytes()

extern const test_case_t region_cases[];
extern const test_case_t region_storm_cases[];
extern const test_case_t heap_cases[];
extern const test_case_t stream_cases[];
extern const test_case_t budget_cases[];
extern const test_case_t heap_storm_cases[];
extern const test_case_t stale_cases[];
extern const test_case_t fault_cases[];
extern const test_case_t fork_cases[];
extern const test_case_t book_cases[];
extern const test_case_t pressure_cases[];

#endif
