// SPDX-License-Identifier: MIT
// Shared by the models: the C library as GenMC knows it, the kernel's part of one page, the futex, the sentinel.
//
// A model includes files of the core unchanged. What they call outside of themselves stands here or in the model. Statistics
// (relaxed additions) are left out: they decide nothing, and each would multiply the executions.
#ifndef PURGEABLE_MODEL_H
#define PURGEABLE_MODEL_H

#include <assert.h>
#include <errno.h>
#include <pthread.h>
typedef int pthread_cond_t;  // GenMC has none; only structs name it
// The C library's header does not go together with GenMC's, and the core's only name its set of signals.
#define _SIGNAL_H 1
typedef int sigset_t;
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#undef atomic_fetch_add_explicit
#undef atomic_fetch_sub_explicit
#define atomic_fetch_add_explicit(p, v, o) \
  ((o) == memory_order_relaxed ? ((void)(p), (void)(v), 0) : __c11_atomic_fetch_add(p, v, o))
#define atomic_fetch_sub_explicit(p, v, o) \
  ((o) == memory_order_relaxed ? ((void)(p), (void)(v), 0) : __c11_atomic_fetch_sub(p, v, o))

// GenMC's headers are short of these.
#ifndef static_assert
#define static_assert _Static_assert
#endif
#ifndef ENOTSUP
#define ENOTSUP 95
#endif

void __VERIFIER_assume(int);

// MARK: The C library

static int the_errno;
int *__errno_location(void) { return &the_errno; }

// MARK: One page, and what the kernel does with it
//
//   page     PRESENT: a witness stands. DIRTY: written to since the last MADV_FREE. Above these the number of the frame.
//   mapped   the number of the frame whose content is seen
//   gone     by frame: it was taken, or dropped, and reads as zeros
//
// The kernel takes a page, content and witness, in one step for the one processor whose view a reader has (that is the sentinel's
// part, which is not modelled). Two locations stand for the two loads: content is gone after the witness is, so a reader that
// orders its loads, and finds the witness, has seen no zeros of the kernel's.

enum { PRESENT = 1, DIRTY = 2, FRAME = 4, FRAMES = 4 };

static _Atomic int page = PRESENT | DIRTY;
static _Atomic int mapped, gone[FRAMES];
static _Atomic int in_madvise;

static bool content_is_seen(int *frame) {
  *frame = atomic_load_explicit(&mapped, memory_order_relaxed);
  return atomic_load_explicit(&gone[*frame], memory_order_relaxed) == 0;
}

// The effect of a store on the page, by a thread that may write. The first store to a page that is gone brings a page of zeros.
// Returns the page's frame.
static int touch(void) {
  int seen = atomic_load(&page);
  if ((seen & PRESENT) == 0) {
    int next = seen / FRAME + 1;
    // The kernel writes the entry after it has cleared the frame, and after what this thread did before.
    atomic_store_explicit(&mapped, next, memory_order_release);
    atomic_store(&page, next * FRAME | PRESENT | DIRTY);
    return next;
  }
  if ((seen & DIRTY) == 0) atomic_fetch_or(&page, DIRTY);
  return seen / FRAME;
}

// MADV_FREE clears the dirty bit; a processor that still has the old translation while that runs marks nothing when it writes.
static void model_free(void) {
  atomic_store(&in_madvise, 1);
  atomic_fetch_and(&page, ~DIRTY);
  atomic_store(&in_madvise, 0);
}

// MADV_DONTNEED. The kernel has every processor drop its view before it answers: a fence for all, for which one of ours stands.
static void model_drop(void) {
  int seen = atomic_fetch_and(&page, ~(PRESENT | DIRTY));
  atomic_store_explicit(&gone[seen / FRAME], 1, memory_order_release);
  atomic_thread_fence(memory_order_seq_cst);
}

// A rescue: a write of what is there. False: the page is gone.
static bool model_rescue(void) {
  int stale = atomic_load(&in_madvise);
  int seen = atomic_load(&page);
  if ((seen & PRESENT) == 0) return false;
  if (stale) return true;
  if (atomic_compare_exchange_strong(&page, &seen, seen | DIRTY)) return true;
  return (seen & PRESENT) != 0 && atomic_compare_exchange_strong(&page, &seen, seen | DIRTY);
}

// Takes the page, if it is present and clean.
static void *kernel(void *unused) {
  (void)unused;
  int seen = atomic_load(&page);
  if ((seen & (PRESENT | DIRTY)) != PRESENT) return 0;
  if (atomic_compare_exchange_strong(&page, &seen, seen & ~PRESENT)) {
    atomic_store_explicit(&gone[seen / FRAME], 1, memory_order_release);
  }
  return 0;
}

#endif
