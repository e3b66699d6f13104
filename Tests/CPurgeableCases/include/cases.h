// SPDX-License-Identifier: MIT
/// The core's tests: plain C functions in one table, run one by one by Swift Testing and by the runner without Swift.
#ifndef CASES_H
#define CASES_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/// The report of one run of a case. Filled in by EXPECT, SKIP and NOTE.
typedef struct case_report {
  int failure_count;
  bool skipped;
  /// The first failure with its place, or the reason for skipping, or notes on what was seen. Lines end with '\n'.
  char text[4096];
  /// Whether this is the full run, which has the machine for itself and may take its time. In the gate, storms end after a number
  /// of rounds, and nothing is expected that only the scheduler or the clock can bring about.
  bool is_full;
  /// 1, or larger for storms on demand (PURGEABLE_STORM in the environment).
  uint64_t scale;
  /// Every random choice follows from this. Printed when a case fails.
  uint64_t seed;
} case_report_t;

typedef struct test_case {
  const char *name;
  void (*run)(case_report_t *report);
  /// Belongs to the full run only: the outcome, or the duration, hangs on the machine.
  bool is_full;
} test_case_t;

/// Every case of the core, in the order of the layers.
size_t cases_count(void);
const char *cases_name(size_t index);
/// Whether the case belongs to the full run only, and not to the gate.
bool cases_is_full(size_t index);
/// Runs one case in a report of its own, as in the full run or as in the gate. Scale and seed come from PURGEABLE_STORM and
/// PURGEABLE_SEED, if set; else the seed is random in the full run, and always the same in the gate. A case that belongs to the
/// full run only has no other form.
void cases_run(size_t index, bool is_full, case_report_t *report);

/// Calls that a test can have refused in its own process, for good: by a filter (seccomp), as sandboxes do it.
typedef enum cases_call {
  cases_call_madvise,
  cases_call_mincore,
  cases_call_process_madvise,
  cases_call_getrandom,
  cases_call_write,  // pwrite
  cases_call_fsync,
  cases_call_fdatasync,
  cases_call_rename,  // renameat
} cases_call_t;

/// Whether there are such filters here.
bool cases_can_refuse(void);
/// From now on this process and its children get `error` for the call; 0 is success without any effect. False: no filters here.
bool cases_refuse(cases_call_t call, int error);
/// The same for madvise with one advice, by the kernel's number.
bool cases_refuse_advice(unsigned advice, int error);

/// From now on a fork of this process begins by waiting for a mutex, as a program's own handler does; it was added before main.
/// NULL: no more.
void cases_await_before_forks(pthread_mutex_t *mutex);
/// Whether a fork has begun to wait since.
bool cases_fork_waits(void);

#endif
