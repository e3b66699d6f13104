// SPDX-License-Identifier: MIT
// Shared by the two mixed storms: a child in a small memory group to storm in, threads that are cancelled and begun again, and
// calls that fail.
#ifndef MIXED_STORM_H
#define MIXED_STORM_H

#include "harness.h"

enum { MIXED_ACTORS = 4, MIXED_NOTES = 24 };

// The result of a storm, in memory that its child shares with its parent.
typedef struct mixed_result {
  // Wrong contents; answers that a call may not give; books that do not add up.
  _Atomic uint64_t wrong, broken, left;
  // The line of the first of each.
  _Atomic int wrong_line, broken_line, left_line;
  _Atomic uint64_t cancelled, forked, faults;
  _Atomic uint64_t counts[MIXED_NOTES];
  bool is_finished;
} mixed_result_t;

typedef struct mixed_storm {
  mixed_result_t *result;
  uint64_t seed;
  // The full run: by time, and in a memory group.
  bool is_full;
  // 0: the storm ends by itself.
  _Atomic uint64_t until_ms;
  // Operates until it is cancelled, or `mixed_is_over`; its number begins its random numbers.
  void *(*acts)(void *number);
  // In a child that was forked in the middle of the storm: whether everything is right.
  bool (*looks_in_child)(void);
  // Called with true before a child is forked, and with false afterwards: the storm avoids some states meanwhile.
  void (*holds_still)(bool holds);
} mixed_storm_t;

extern mixed_storm_t mixed;

#define MIXED_COUNT(what) ((void)atomic_fetch_add_explicit(&mixed.result->counts[what], 1, memory_order_relaxed))
#define MIXED_NOTE_LINE(field)                                           \
  do {                                                                   \
    int none_ = 0;                                                       \
    (void)atomic_compare_exchange_strong(&mixed.result->field##_line, &none_, __LINE__); \
    atomic_fetch_add(&mixed.result->field, 1);                           \
  } while (0)
#define MIXED_WRONG_UNLESS(condition)             \
  do {                                            \
    if (!(condition)) MIXED_NOTE_LINE(wrong);     \
  } while (0)
#define MIXED_BROKEN_UNLESS(condition)            \
  do {                                            \
    if (!(condition)) MIXED_NOTE_LINE(broken);    \
  } while (0)
#define MIXED_LEFT_UNLESS(condition)              \
  do {                                            \
    if (!(condition)) MIXED_NOTE_LINE(left);      \
  } while (0)

// Whether an errno is one that a failing call may lead to.
bool mixed_is_fault(int error);

// Runs `storms` in a child of its own in a memory group of `group_bytes` where that can be had, else here: in the gate, with a
// sanitizer, and where this process may make no group. Reports the result; `names` are those of the counts, NULL at the end.
void mixed_run(case_report_t *report, size_t group_bytes, void (*storms)(uint64_t scale), const char *const *names);

// Four threads that act, each cancelled every few milliseconds and begun again; one that makes calls fail, forks and starts and
// stops upkeep; one that is hungry. For so long in the full run, else for a few rounds.
void mixed_act(uint64_t milliseconds);
bool mixed_is_over(void);

// Bytes in memory, and number, of the mappings whose name begins so; 0 where the kernel keeps no names.
size_t mixed_named_resident(const char *name);
size_t mixed_named_count(const char *name);

#endif
