// SPDX-License-Identifier: MIT
// Handlers are added when the library is loaded, and told later what to do.
//
// Before a fork the handlers run in the reverse order of their adding. The library's take its mutexes. If they ran before a
// program's own, which may wait for a mutex under which another thread is using a cache, all three would wait for ever.

#include "purgeable_pressure_forks.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

static void (*before)(void), (*in_parent)(void), (*in_child)(void);
static _Atomic bool is_set;
// Whether `before` ran in the fork that this thread is making: they may be set in the middle of it.
static _Thread_local bool has_run;

static void before_fork(void) {
  has_run = atomic_load(&is_set);
  if (has_run) before();
}

static void after_fork_in_parent(void) {
  if (has_run) in_parent();
}

static void after_fork_in_child(void) {
  if (has_run) in_child();
}

// Before the program's constructors. Behind the core's (files.c), whose handlers are for what is done under these mutexes.
// Without memory for the handlers, forks go unprotected.
__attribute__((constructor(102))) static void add_handlers(void) {
  (void)pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

void purgeable__set_around_forks(void (*new_before)(void), void (*new_in_parent)(void), void (*new_in_child)(void)) {
  before = new_before;
  in_parent = new_in_parent;
  in_child = new_in_child;
  atomic_store(&is_set, true);
}
