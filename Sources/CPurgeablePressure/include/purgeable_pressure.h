// SPDX-License-Identifier: MIT
/// Memory pressure for C programs. Implemented in Swift: link the library `Purgeable`.
///
///     #include <stdatomic.h>
///
///     static _Atomic int32_t now;
///     static void note(int32_t level, void *context) { atomic_store((_Atomic int32_t *)context, level); }
///
///     purgeable_pressure_watch_t *watch;
///     if (purgeable_pressure_watch(note, &now, &watch) == 0) purgeable_pressure_unwatch(watch);
///
/// Levels are smoothed: they rise at once, and fall one step at a time, each after two seconds.
#ifndef PURGEABLE_PRESSURE_H
#define PURGEABLE_PRESSURE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/// Whoever asks for memory gets it.
#define PURGEABLE_PRESSURE_NORMAL 0
/// Memory is being taken from somebody, or soon will be.
#define PURGEABLE_PRESSURE_WARNING 1
/// Work stands still for want of memory, or somebody is about to be killed.
#define PURGEABLE_PRESSURE_CRITICAL 2

/// A callback that is registered.
typedef struct purgeable_pressure_watch purgeable_pressure_watch_t;

/// Hears of levels. Runs on a thread that this watch has while there is something to tell: with the stack that the process's
/// threads have by default and all signals blocked, one call at a time. It keeps nobody else waiting; while it runs levels wait
/// for it, 16 at most, the newest among them. It may call everything in this library.
typedef void (*purgeable_pressure_callback_t)(int32_t level, void *context);

/// Registers a callback: called with the current level soon, then at every change, until `purgeable_pressure_unwatch`.
///
/// Answers 0, and the watch in `*watch`, before the first call; EINVAL where `callback` or `watch` is NULL; ENOMEM; an errno of
/// pthread_create (EAGAIN) where the library's thread does not run and cannot be started. Any thread. In a forked child nothing
/// is called until the child uses the library itself.
int32_t purgeable_pressure_watch(
    purgeable_pressure_callback_t callback, void *context, purgeable_pressure_watch_t **watch);

/// Ends it, once for each watch; NULL is nothing to end. Any thread. Once this has returned the callback does not run and will
/// not be called again: it waits for a call that is under way, unless it is called from that very call. So a mutex that the
/// callback takes must not be held here. In a forked child, which has no thread of its parent's, it ends the child's watch at
/// once.
void purgeable_pressure_unwatch(purgeable_pressure_watch_t *watch);

/// The level: what the library's thread saw last, or, when nobody makes it watch, one look at limits and usage, or what the
/// source says that the program gave in Swift. Any thread.
int32_t purgeable_pressure_level(void);

#ifdef __cplusplus
}
#endif

#endif
