// SPDX-License-Identifier: MIT
// Opens, and keeps open, the moment in which a discard is visible to one CPU and not yet to another. Drawn in stale_cases.c.
#ifndef STALE_WINDOW_H
#define STALE_WINDOW_H

#include "harness.h"

enum {
  STALE_TARGETS = 128,
  // Pages acted on in one window: the kernel's batches are 31 pages, so these lie in the last one.
  STALE_REACH = 4,
};

typedef struct stale_counts {
  // Calls of MADV_PAGEOUT; times it was caught with pages gone; pages of which CPU B still showed the old content then.
  uint64_t calls, caught, windows;
  // The results of the windows.
  uint64_t right, wrong, other;
  uint64_t took_ns;
} stale_counts_t;

// The functions of one case. They run on the threads that are named; `index` is a target. All of them are required but `poll`.
typedef struct stale_script {
  // CPU A: puts old content into every target and has it on offer. False ends the run as failed.
  bool (*prepare)(void *context);
  // CPU B: reads a target without lock, so that this CPU has its translation. True: the old content is (still) seen.
  bool (*see)(void *context, size_t index);
  // CPU A, above the reclaimer, in the window: the action that the rule is about.
  void (*act)(void *context, size_t index);
  // CPU B, in the window, after `act`: counts what it finds.
  void (*judge)(void *context, size_t index, stale_counts_t *counts);
  // CPU B, while it has nothing else to do. May be NULL.
  void (*poll)(void *context);
  void *context;
  // One page for each target, ascending; filled in by `prepare`.
  char *pages[STALE_TARGETS];
  size_t count;
  // Pages acted on in one window, at most STALE_REACH.
  size_t reach;
} stale_script_t;

typedef struct stale_stage {
  int cpu_a, cpu_b;
} stale_stage_t;

// Finds two CPUs that this process may use.
bool stale_cpus(stale_stage_t *stage);
// As `stale_cpus`, and tries real-time priority. Says why not in `*reason`.
bool stale_stage(stale_stage_t *stage, const char **reason);

// Starts a thread pinned to one CPU; SCHED_FIFO with that priority, or the normal policy for 0. 0 or an errno.
int stale_thread(pthread_t *thread, int cpu, int priority, void *(*body)(void *), void *argument);

// Sends a thread to one CPU.
void stale_pin(pthread_t thread, int cpu);

// Priorities. The viewer on B never sleeps while a window is open: a sleeping CPU would drop its stale translations on waking.
enum { STALE_RECLAIMER = 1, STALE_VIEWER = 5, STALE_HOLDER = 10, STALE_PUSHER = 15, STALE_MOVER = 20 };

// Plays the script until so many milliseconds have passed or `enough` results are wrong. Restores nothing, since it works on
// threads of its own only, all joined. False: the threads could not be started, or `prepare` failed; `*reason` says which.
bool stale_run(const stale_stage_t *stage, stale_script_t *script, uint64_t milliseconds, uint64_t enough, uint64_t seed,
               stale_counts_t *counts, const char **reason);

// MARK: The scripts (stale_scripts.c)

typedef struct stale_play stale_play_t;

typedef enum stale_kind {
  // A reader is pushed from A to B between copy and check.
  stale_kind_region_migration,
  stale_kind_element_migration,
  // A region is refilled on A and read on B.
  stale_kind_region_refill,
  // An element is appended on A to the slab being filled, and read on B.
  stale_kind_element_append,
  // A slab that ends on A is filled again there, and its new element is read on B.
  stale_kind_slab_again,
} stale_kind_t;

// Makes the memory and the threads of a script; NULL when that fails.
stale_play_t *stale_play_make(stale_kind_t kind, const stale_stage_t *stage);
stale_script_t *stale_play_script(stale_play_t *play);
// Results called wrong that later turned out to be intact, seen from CPU A: what was called discarded was there.
uint64_t stale_play_confirmed(stale_play_t *play);
void stale_play_end(stale_play_t *play);

#endif
