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
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "purgeable_base.h"
#include "purgeable_testing.h"

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
};

// MARK: The system-call table (syscalls.c)
// Every call that can fail goes through here, so that tests can make the n-th one fail. 0 or an errno; pointers NULL on failure.

// Maps zeroed, private, unreserved memory with the flags that purgeable memory needs: no huge pages, wiped on fork, not in core
// dumps, named for /proc. `aligned_to` is a power of two of at least a page.
void *purgeable__map(size_t length_bytes, size_t aligned_to_bytes, const char *name, int *error);
// Maps plain zeroed memory for bookkeeping that is touched bit by bit.
void *purgeable__map_ordinary(size_t length_bytes, int *error);
int purgeable__unmap(void *start, size_t length_bytes);
int purgeable__madvise(void *start, size_t length_bytes, int advice);
int purgeable__mincore(void *start, size_t length_bytes, unsigned char *pages);
void *purgeable__allocate(size_t count, size_t size_bytes);  // calloc
void *purgeable__resize(void *old, size_t size_bytes);       // realloc
int purgeable__random(void *buffer, size_t length_bytes);    // getrandom; never blocks

// Makes [start, start + length) read as zeros and drains every stale view of it: MADV_DONTNEED. Where memory is mlocked
// (EINVAL: the kernel keeps it, so it was never discarded and no stale view exists) it is cleared by hand.
int purgeable__wipe(void *start, size_t length_bytes);

// Whether any swap space is in use on this machine: then "not resident" does not prove "discarded".
bool purgeable__swap_in_use(void);

// MARK: Rules that tests can switch off

#if defined(PURGEABLE_TEST_HOOKS)
extern _Atomic unsigned purgeable__rules_off;
extern _Atomic uint32_t purgeable__slow_read_rounds;
#define PURGEABLE_RULE(name)                                                                                      \
  ((atomic_load_explicit(&purgeable__rules_off, memory_order_relaxed) & (unsigned)purgeable_testing_rule_##name) == 0)
#define PURGEABLE_TEST_PAUSE() purgeable__pause_for_test()
void purgeable__pause_for_test(void);
#else
#define PURGEABLE_RULE(name) true
#define PURGEABLE_TEST_PAUSE() ((void)0)
#endif

// MARK: Waiting

// Sleeps while the low half of `word` is `low`. Spurious returns are allowed.
void purgeable__wait(_Atomic uint64_t *word, uint32_t low);
void purgeable__wake_all(_Atomic uint64_t *word);

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
  return atomic_load_explicit(word, memory_order_acquire);
}
static inline uint16_t purgeable__load_entry_unsettled(const _Atomic uint16_t *entry) {
  return atomic_load_explicit(entry, memory_order_acquire);
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

#endif
