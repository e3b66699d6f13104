// SPDX-License-Identifier: MIT
// Shared by the cases: rows of tables, expectations that name their place, random numbers from the printed seed, a clock, storms'
// ends, children, threads, real discards.
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
#include <sys/types.h>
#include <unistd.h>

#include "cases.h"
#include "purgeable.h"
#include "purgeable_testing.h"

// Whether a sanitizer is built in whose own memory and mappings count as the program's.
#if defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
#define HAS_SANITIZER 1
#endif
#endif
#if !defined(HAS_SANITIZER)
#define HAS_SANITIZER 0
#endif
// A rule that is switched off makes threads race for real, which the thread sanitizer rightly reports.
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define HAS_THREAD_SANITIZER 1
#endif
#endif
#if !defined(HAS_THREAD_SANITIZER)
#define HAS_THREAD_SANITIZER 0
#endif

// Rows of a table. What hangs on the scheduler, the clock, reclaim, memory groups, or a race that has to happen, is a FULL_CASE.
#define CASE(name, run) {name, run, false}
#define FULL_CASE(name, run) {name, run, true}
#define END_OF_CASES {NULL, NULL, false}

#define EXPECT(condition)                                                                         \
  do {                                                                                            \
    if (!(condition)) report_failure(report, __FILE__, __LINE__, #condition);                     \
  } while (0)
#define EXPECT_EQUAL(actual, expected) \
  report_equal(report, __FILE__, __LINE__, #actual, (long long)(actual), (long long)(expected))
// Ends the case, since the rest of it would make no sense.
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
// For children, which cannot report: prints the place and ends the child with 1.
#define CHECK(condition)                                                     \
  do {                                                                       \
    if (!(condition)) {                                                      \
      fprintf(stderr, "child: %s:%d: %s\n", __FILE__, __LINE__, #condition); \
      return false;                                                          \
    }                                                                        \
  } while (0)

void report_failure(case_report_t *report, const char *file, int line, const char *what);
void report_equal(case_report_t *report, const char *file, int line, const char *what, long long actual, long long expected);
__attribute__((format(printf, 2, 3))) void report_skip(case_report_t *report, const char *format, ...);
__attribute__((format(printf, 2, 3))) void report_note(case_report_t *report, const char *format, ...);

// splitmix64: small, seeded, and good enough for tests.
static inline uint64_t next_random(uint64_t *state) {
  uint64_t z = (*state += 0x9E3779B97F4A7C15u);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

// CLOCK_MONOTONIC.
uint64_t now_ns(void);
static inline uint64_t now_ms(void) { return now_ns() / 1000000; }

// How long a storm goes on: in the gate so many rounds of each of its threads, in the full run so many milliseconds.
typedef struct span {
  // 0: as long as the time lasts.
  uint64_t rounds;
  uint64_t until_ms;
} span_t;

// Both figures are those of scale 1.
span_t span_of(const case_report_t *report, uint64_t rounds, uint64_t milliseconds);
static inline bool span_goes_on(span_t span, uint64_t rounds_done) {
  return span.rounds != 0 ? rounds_done < span.rounds : now_ms() < span.until_ms;
}

// Waits for what is sure to come, however busy the machine is; for a minute.
#define WAIT_UNTIL(condition)                                                                            \
  do {                                                                                                   \
    for (uint64_t end_ = now_ms() + 60000; !(condition) && now_ms() < end_;) (void)usleep(500);          \
  } while (0)

// The time limit of children, in seconds: only a hang takes as long.
enum { CHILD_SECONDS = 120 };

// Waits for a child: its exit status, 1000 and the signal that ended it, or -1 where there is no such child.
int wait_for_child(pid_t child);

// Content that depends on a number and the position, with no zero byte when `nonzero`.
void fill_pattern(void *bytes, size_t length, uint64_t number);
bool check_pattern(const void *bytes, size_t length, uint64_t number);

// Has the real kernel discard what is on offer in [start, start + length): MADV_PAGEOUT, twice, after draining this CPU's batch.
// Returns how many pages are not resident afterwards, or -1 where the kernel refuses.
long kernel_discard(void *start, size_t length);

// Keeps this thread, and the threads it makes, on one processor until the case ends. An offer skips pages that wait in another
// processor's batch: a thread that is moved between writing and offering would have nothing discarded.
void stay_on_one_processor(void);

// Empties the batch of each processor that this thread may run on: the kernel does so where memory is offered.
void drain_processors(void);

// Gives up one range by MADV_DONTNEED without telling the library: exact, for pages in the middle.
void discard_exactly(void *start, size_t length);
// Whether MADV_FREE and MADV_PAGEOUT really discard here; the reason otherwise.
bool kernel_discards(const char **reason);
// Whether the kernel accepts offers and leaves the pages until it needs them, whether or not it can be seen to take them.
bool kernel_offers(void);
// Skips a case that offers and expects content afterwards, on kernels where content goes at once or is never on offer.
#define NEED_OFFERS()                                                              \
  do {                                                                             \
    if (!kernel_offers()) SKIP("offers are refused here, or take content at once"); \
  } while (0)
// Skips the case where the kernel does not really discard.
#define NEED_DISCARDS()                                                  \
  do {                                                                   \
    const char *reason_;                                                 \
    if (!kernel_discards(&reason_)) SKIP("no real discards: %s", reason_); \
  } while (0)
// The same, for cases of one thread that expect exactly which pages are taken.
#define NEED_EXACT_DISCARDS() \
  do {                        \
    NEED_DISCARDS();          \
    stay_on_one_processor();  \
  } while (0)

#define NEED_HOOKS()                                                                              \
  do {                                                                                            \
    if (!purgeable_testing_has_hooks()) SKIP("rules cannot be switched off: built without hooks"); \
  } while (0)

// Has the kernel answer this call with `action` (SECCOMP_RET_...), for this process and for good. `advice`: only with this third
// argument; ANY_ADVICE: with any arguments. False where there are no filters.
bool kernel_answers(long call, unsigned advice, unsigned action);
#define ANY_ADVICE 0xFFFFFFFFu
// SECCOMP_RET_ERRNO and SECCOMP_RET_TRAP, for C libraries without the kernel's headers.
#define ANSWER_ERRNO 0x00050000u
#define ANSWER_TRAP 0x00030000u

// Runs `count` threads of `body` with a context each and waits for all of them.
void run_threads(size_t count, void *(*body)(void *), void *contexts, size_t context_size);

#define PAGE purgeable_page_size_bytes()
// Lengths that were chosen for pages of 4 KiB, as many to a page where pages are larger.
#define PER_PAGE(bytes) ((bytes) * (PAGE / 4096))

extern const test_case_t harness_cases[];
extern const test_case_t region_cases[];
extern const test_case_t region_storm_cases[];
extern const test_case_t region_fill_cases[];
extern const test_case_t region_fill_storm_cases[];
extern const test_case_t region_mixed_storm_cases[];
extern const test_case_t region_again_cases[];
extern const test_case_t heap_cases[];
extern const test_case_t stream_cases[];
extern const test_case_t pending_cases[];
extern const test_case_t shared_bound_cases[];
extern const test_case_t chunk_cases[];
extern const test_case_t chunk_race_cases[];
extern const test_case_t budget_cases[];
extern const test_case_t bounded_cases[];
extern const test_case_t bounded_region_cases[];
extern const test_case_t heap_storm_cases[];
extern const test_case_t heap_mixed_storm_cases[];
extern const test_case_t stale_cases[];
extern const test_case_t fault_cases[];
extern const test_case_t fault_table_cases[];
extern const test_case_t fork_cases[];
extern const test_case_t book_cases[];
extern const test_case_t limit_cases[];
extern const test_case_t map_cases[];
extern const test_case_t upkeep_cases[];
extern const test_case_t pressure_cases[];
extern const test_case_t kept_cases[];
extern const test_case_t kept_rule_cases[];
extern const test_case_t heap_doubt_cases[];

#endif
