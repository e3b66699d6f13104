// SPDX-License-Identifier: MIT
// What the files of the core share and nobody outside sees: the system-call table, futex words, the rseq sentinel, the copy.
#ifndef PURGEABLE_INTERNAL_H
#define PURGEABLE_INTERNAL_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

// What the public headers declare is exported, whatever the flags, and calls of the core to itself stay in this copy of it: a
// program may hold one in a static archive and another in a shared library.
#define PURGEABLE_PUBLIC_VISIBILITY "GCC visibility push(protected)"

#include "purgeable_base.h"
#include "purgeable_testing.h"

// Everything below belongs to this copy of the core alone, and no other copy sees its names.
#pragma GCC visibility push(hidden)

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define PURGEABLE_TSAN 1
#endif
#elif defined(__SANITIZE_THREAD__)
#define PURGEABLE_TSAN 1
#endif

#if defined(__clang__)
#define PURGEABLE_NO_TSAN __attribute__((no_sanitize("thread"), noinline))
#else
#define PURGEABLE_NO_TSAN __attribute__((no_sanitize_thread, noinline))
#endif

// The kernel's numbers, for C libraries whose headers are older than the kernel.
enum {
  PURGEABLE__MADV_FREE = 8,
  PURGEABLE__MADV_NOHUGEPAGE = 15,
  PURGEABLE__MADV_DONTDUMP = 16,
  PURGEABLE__MADV_WIPEONFORK = 18,
  PURGEABLE__MADV_PAGEOUT = 21,
  PURGEABLE__MADV_DONTNEED_LOCKED = 24,
  PURGEABLE__MLOCK_ONFAULT = 1,
  PURGEABLE__FUTEX_WAIT_PRIVATE = 128,
  PURGEABLE__FUTEX_WAKE_PRIVATE = 129,
  PURGEABLE__GRND_NONBLOCK = 1,
};

// MARK: Atomic operations

// The orders that nearly all of the core's operations have, by short names. What has another one says so in full; where no order
// is named it is sequential consistency.
#define load_relaxed(from) atomic_load_explicit(from, memory_order_relaxed)
#define load_acquire(from) atomic_load_explicit(from, memory_order_acquire)
#define store_relaxed(to, value) atomic_store_explicit(to, value, memory_order_relaxed)
#define store_release(to, value) atomic_store_explicit(to, value, memory_order_release)
// Both answer the value before.
#define add_relaxed(to, amount) atomic_fetch_add_explicit(to, amount, memory_order_relaxed)
#define subtract_relaxed(from, amount) atomic_fetch_sub_explicit(from, amount, memory_order_relaxed)

// MARK: The system-call table (syscalls.c)
// Every call that can fail goes through here, so that tests can make the n-th one fail. 0 or an errno; pointers NULL on failure.

// Maps zeroed, private, unreserved memory with the flags that purgeable memory needs: no huge pages, wiped on fork, not in core
// dumps, named for /proc. `aligned_to` is a power of two of at least a page. ENOMEM also where a flag was refused for want of
// mappings (a child would find the content), and where all memory is locked (mlockall) and RLIMIT_MEMLOCK leaves no room.
void *purgeable__map(size_t length_bytes, size_t aligned_to_bytes, const char *name, int *error);
// Maps plain zeroed memory for bookkeeping that is touched bit by bit.
void *purgeable__map_ordinary(size_t length_bytes, int *error);
int purgeable__unmap(void *start, size_t length_bytes);
int purgeable__madvise(void *start, size_t length_bytes, int advice);
int purgeable__mincore(void *start, size_t length_bytes, unsigned char *pages);
void *purgeable__allocate(size_t count, size_t size_bytes);  // calloc
void *purgeable__resize(void *old, size_t size_bytes);       // realloc
int purgeable__random(void *buffer, size_t length_bytes);    // getrandom; never blocks
uint64_t purgeable__now_ns(void);                            // CLOCK_MONOTONIC; cannot fail

// Makes [start, start + length) read as zeros and drains every stale view of it: MADV_DONTNEED. Where memory is mlocked
// (EINVAL: the kernel keeps it, so it was never discarded and no stale view exists) it is given back by MADV_DONTNEED_LOCKED, or,
// before Linux 5.18, cleared by hand.
int purgeable__wipe(void *start, size_t length_bytes);

// Small files under /proc and in memory groups. Not cancellation points. Open and close are for files.c.
int purgeable__open(const char *path, int *descriptor);  // for reading
size_t purgeable__file_read(int descriptor, void *buffer, size_t room_bytes);  // 0 at the end, and on failure
void purgeable__close(int descriptor);
long purgeable__scan(int descriptor, unsigned long request, void *argument);  // ioctl, for touched.c; below 0 on failure

// Blocks all signals but SIGSYS in the calling thread; and as it was before.
void purgeable__block_signals(sigset_t *before);
void purgeable__restore_signals(const sigset_t *before);

// A thread with all signals blocked and an ordinary stack.
int purgeable__thread_create(pthread_t *thread, void *(*body)(void *), void *context);

// Whether any swap space is in use on this machine: then "not resident" does not prove "discarded".
bool purgeable__swap_in_use(void);

// MARK: Files (files.c)

// Opens a file for reading and closes it, so that no child that another thread forks meanwhile has the descriptor. 0 or an errno:
// EAGAIN where a fork takes long, EMFILE where very many threads have a file open.
int purgeable__file_open(const char *path, int *descriptor);
void purgeable__file_close(int descriptor);

// MARK: What a mapping holds (touched.c)

// A range as the kernel's scan names it.
typedef struct purgeable__scanned {
  uint64_t start, end, categories;
} purgeable__scanned_t;

// A walk over the pages that hold anything. All others read as zeros, and did when the walk began, unless somebody writes.
typedef struct purgeable__touched {
  int descriptor;
  char *at, *end;
  size_t count, next;
  // The kernel does not tell any more: what is left is named as one range.
  bool has_stopped;
  purgeable__scanned_t ranges[64];
} purgeable__touched_t;

// Begins a walk over whole pages of one mapping. False where the kernel does not tell (before Linux 6.7, no /proc, no descriptor
// left): then every page may hold something, and nothing has to be ended. Keeps errno, as do the others.
bool purgeable__touched_begin(purgeable__touched_t *touched, void *start, size_t length_bytes);
// The next range, in order of address. False after the last one.
bool purgeable__touched_next(purgeable__touched_t *touched, char **start, char **end);
void purgeable__touched_end(purgeable__touched_t *touched);

// MARK: Pairs of pages (pages.c)

// Two pages of zeros as `purgeable__map` maps them, in a mapping with others. NULL with ENOMEM.
void *purgeable__pair_take(int *error);
void purgeable__pair_return(void *pair);
// Whether the address is in a pair that is taken, and whether it is the pair's first.
bool purgeable__is_of_pair(const void *address, bool *is_start);
size_t purgeable__pair_bytes(void);

// MARK: How much memory there is (limits.c)

// The smallest limit of the memory groups (cgroups, version 1 and 2) of this process, with all groups around them, or the
// machine's memory, in bytes. Never 0, never fails: where nothing can be read it is the machine's memory. Read at the first call
// and again at most every 5 seconds, some 20 system calls; else an atomic load and the coarse clock. Keeps errno.
uint64_t purgeable__memory_byte_limit(void);
// How many bytes of idle memory may wait for a call of the host: what `purgeable_set_pending_byte_limit` says, by default a share
// of the memory limit; UINT64_MAX is no bound. Regions and heaps compare what waits of theirs with this bound where memory begins
// to wait.
uint64_t purgeable__pending_byte_limit(void);
// Makes what all heaps of a process share; before the first of them. 0 or ENOMEM.
int purgeable__make_common(void);
// How much of all heaps waits for its first offer. There is a heap.
void purgeable__note_unoffered(int64_t change);
uint64_t purgeable__unoffered_bytes(void);
// How many bytes of a heap may wait in all where that is the bound for first offers.
uint64_t purgeable__pending_byte_limit_in_all(uint64_t byte_limit);
// One more thread that tends the memory, or one less. 0, ENOMEM, ESRCH.
int purgeable__tend(bool begins);

// MARK: Rules that tests can switch off

#if defined(PURGEABLE_TEST_HOOKS)
extern _Atomic unsigned purgeable__rules_off;
extern _Atomic uint32_t purgeable__slow_read_rounds;
#define PURGEABLE_RULE(name)                                                                                      \
  ((load_relaxed(&purgeable__rules_off) & (unsigned)purgeable_testing_rule_##name) == 0)
#define PURGEABLE_TEST_PAUSE() purgeable__pause_for_test()
void purgeable__pause_for_test(void);
#define PURGEABLE_TEST_PAUSE_INSIDE() purgeable__pause_inside_for_test()
void purgeable__pause_inside_for_test(void);
// Counts the looks of one piece of work (looks.c).
#define PURGEABLE_LOOKS(kind, count) purgeable__count_looks(purgeable_testing_looks_##kind, count)
void purgeable__count_looks(purgeable_testing_looks_t kind, uint64_t count);
#else
#define PURGEABLE_RULE(name) true
#define PURGEABLE_TEST_PAUSE() ((void)0)
#define PURGEABLE_TEST_PAUSE_INSIDE() ((void)0)
#define PURGEABLE_LOOKS(kind, count) ((void)(count))
#endif

// MARK: Waiting

// Sleeps while the low half of `word` is `low`. Spurious returns are allowed.
void purgeable__wait(_Atomic uint64_t *word, uint32_t low);
void purgeable__wake_all(_Atomic uint64_t *word);
// The same, for `timeout_ms` at most.
void purgeable__wait_ms(_Atomic uint64_t *word, uint32_t low, uint32_t timeout_ms);

// For assertions: whether somebody holds the mutex.
static inline bool purgeable__is_held(pthread_mutex_t *mutex) { return pthread_mutex_trylock(mutex) == EBUSY; }

// MARK: Upkeep (upkeep.c)

// Makes a heap, once it is complete, known to upkeep: 0 or ENOMEM.
int purgeable__heap_register(struct purgeable_heap *heap);
// Takes the heap off the list, before any part of the heap is destroyed, and waits while upkeep works on the heap. 0, or EBUSY
// where upkeep called the heap's own callback, and that callback called this.
int purgeable__heap_unregister(struct purgeable_heap *heap);

// MARK: Restartable sequences (rseq.c)
// A sentinel is a descriptor whose range holds no instruction of ours. The kernel clears the pointer to it when it preempts,
// migrates or signals the thread, so a pointer that still stands proves that everything in between ran on one CPU, with one view
// of the page tables. Without rseq, arming answers NULL and the check is always true: then the guarantee is statistical.
typedef void *volatile *purgeable__sentinel_t;
bool purgeable__rseq_available(void);
purgeable__sentinel_t purgeable__sentinel_arm(void);
bool purgeable__sentinel_holds(purgeable__sentinel_t sentinel);
void purgeable__sentinel_disarm(purgeable__sentinel_t sentinel);

// MARK: Content that may change or vanish under the reader (copy.c)

// Copies bytes that another thread may be replacing. The one routine excluded from the thread sanitizer: whatever it copies is
// thrown away unless the witness, header and generation checks after it prove that nothing happened meanwhile.
void purgeable__copy_unsettled(void *to, const void *from, size_t length_bytes);
// Loads a header, a witness or a table's entry where, for all the reader knows, somebody may be writing the payload of another
// life. Acquire. What it gives is checked as the copy is, so it is excluded from the thread sanitizer for the same reason.
#if defined(PURGEABLE_TSAN)
uint64_t purgeable__load_unsettled(const _Atomic uint64_t *word);
uint16_t purgeable__load_entry_unsettled(const _Atomic uint16_t *entry);
#else
static inline uint64_t purgeable__load_unsettled(const _Atomic uint64_t *word) {
  return load_acquire(word);
}
static inline uint16_t purgeable__load_entry_unsettled(const _Atomic uint16_t *entry) {
  return load_acquire(entry);
}
#endif
bool purgeable__equal_unsettled(const void *unsettled, const void *key, size_t length_bytes);

// Rescues the page of a witness: loads it, and only when it is not zero stores the same value back by compare-exchange (clang
// turns fetch_or(p, 0) into a fence, which dirties nothing; a failed exchange would allocate the page). False: the page is gone.
bool purgeable__rescue(_Atomic uint64_t *witness);

// The first non-zero word at or after `start`, before `end` (both 8-aligned); NULL when all is zero.
const uint64_t *purgeable__first_nonzero(const uint64_t *start, const uint64_t *end);

static inline size_t purgeable__round_up(size_t value, size_t power_of_two) {
  return (value + power_of_two - 1) & ~(power_of_two - 1);
}

#pragma GCC visibility pop

#endif
