// SPDX-License-Identifier: MIT
/// Upkeep of all regions and all heaps of a process: one call, or a thread that makes it.
///
/// Nothing in the core works by itself. Idle memory waits, up to a bound (`purgeable_set_pending_byte_limit`), until the host
/// offers it. Pages that an offer passed over stay until they are offered again. Empty slabs are given back, and losses are
/// found, when the host asks. A host that calls `purgeable_upkeep` once a second, or starts the thread, need not know any of
/// that. docs/embedding.md says how often to call it, and what that means for memory limits.
#ifndef PURGEABLE_UPKEEP_H
#define PURGEABLE_UPKEEP_H

#include "purgeable_base.h"

#ifdef __cplusplus
extern "C" {
#endif
PURGEABLE_PUBLIC_BEGIN
PURGEABLE_NONNULL_BEGIN

/// What one call of `purgeable_upkeep` came to, in bytes of whole pages.
typedef struct purgeable_upkeep_result {
  /// Heaps that were seen to.
  uint64_t heap_count;
  /// Put on offer, second offers included.
  uint64_t offered_bytes;
  /// Of heaps: given back.
  uint64_t given_back_bytes;
  /// Of heaps: newly found to be gone.
  uint64_t discarded_bytes;
} purgeable_upkeep_result_t;

/// Does all upkeep once. Each heap is trimmed, then what is idle goes on offer, regions and heaps; then all of it is offered once
/// more, because a first offer passes over pages; then each heap is swept for pages that the kernel took. In this order: what
/// trimming copies is on offer at the end, too.
///
/// `result` may be NULL. Returns 0, or the first errno of `purgeable_heap_trim`, `purgeable_offer_pending`,
/// `purgeable_heap_offer_idle` or `purgeable_heap_sweep` (the other steps are still done); ENOMEM, and nothing is done, where a
/// page for its own state cannot be had; EDEADLK from within a `moved` callback that upkeep itself is calling.
///
/// Any thread; two calls at a time take turns. Calls the `moved` callbacks of heaps on the calling thread, outside of all
/// mutexes; cancellation of the thread waits until the call is over. A heap may be created or destroyed beside it. Cost: a
/// madvise for each 2 MiB that became idle since the last call, a mincore for each chunk of a heap; where nothing is to be
/// done, some 20 ns for each slab.
int purgeable_upkeep(purgeable_upkeep_result_t *PURGEABLE_NULLABLE result);

/// Starts a thread that calls `purgeable_upkeep` every `interval_ms` milliseconds, the first time at once. One for the process.
///
/// The thread has all signals blocked but SIGSYS, an ordinary stack, and the name "purgeable". A forked child has no thread, and
/// no memory of one: there, start anew.
/// Returns 0; EINVAL (interval 0); EALREADY (a thread runs, or is ending; nothing is changed); ENOMEM, EAGAIN or another errno of
/// pthread_create (no thread can be made). Any thread.
PURGEABLE_MUST_USE
int purgeable_upkeep_start(uint32_t interval_ms);

/// Ends the thread and waits until it is gone: the rest of a call of `purgeable_upkeep`, at most. So hold no mutex that a `moved`
/// callback takes. No cancellation point.
/// Returns 0; ESRCH (none runs, as in a forked child, or another call is ending it); EDEADLK (by a `moved` callback that upkeep
/// is calling, on that thread or another). Any thread.
int purgeable_upkeep_stop(void);

/// Says that a thread of the host's offers what waits within a second, as the thread of `purgeable_upkeep_start` does with an
/// interval of a second or less. Then more of what was on offer before may wait for it: `purgeable_set_pending_byte_limit`.
/// Counted: each call wants its own `purgeable_tending_end`. A forked child has no such thread, and says so anew if it starts
/// one. Returns 0, or ENOMEM. Any thread.
PURGEABLE_MUST_USE
int purgeable_tending_begin(void);

/// The thread is about to end. Returns 0, or ESRCH where none tends, as in a forked child. Any thread.
int purgeable_tending_end(void);

/// Whether the thread runs in this process. False in a forked child. Any thread; no system call.
bool purgeable_upkeep_is_running(void);

PURGEABLE_NONNULL_END
PURGEABLE_PUBLIC_END
#ifdef __cplusplus
}
#endif

#endif
