// SPDX-License-Identifier: MIT
// The one table of system calls and allocations. Every call counts itself, and a test can make the n-th of a kind fail.

#include "internal.h"

#include <linux/futex.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <time.h>
#include <unistd.h>

#ifndef PR_SET_VMA
#define PR_SET_VMA 0x53564d41
#define PR_SET_VMA_ANON_NAME 0
#endif

enum { KINDS = 8 };

// The fault that a test asked for. `remaining` counts down to the call that fails. Relaxed: a test arms it before it calls.
static struct {
  _Atomic unsigned calls;
  _Atomic int64_t remaining;
  _Atomic int error;
  _Atomic bool and_after;
  _Atomic bool has_failed;
  _Atomic uint64_t counts[KINDS];
} table;

// Counts one call; answers the errno it has to fail with, or 0.
static int enter(unsigned call) {
  atomic_fetch_add_explicit(&table.counts[__builtin_ctz(call)], 1, memory_order_relaxed);
  if ((atomic_load_explicit(&table.calls, memory_order_relaxed) & call) == 0) return 0;
  int64_t left = atomic_fetch_sub_explicit(&table.remaining, 1, memory_order_relaxed);
  if (left == 1 || (left < 1 && atomic_load_explicit(&table.and_after, memory_order_relaxed))) {
    atomic_store_explicit(&table.has_failed, true, memory_order_relaxed);
    return atomic_load_explicit(&table.error, memory_order_relaxed);
  }
  return 0;
}

void purgeable_testing_fail(unsigned calls, uint64_t n, int error, bool and_after) {
  atomic_store(&table.calls, 0);
  atomic_store(&table.has_failed, false);
  atomic_store(&table.remaining, (int64_t)n);
  atomic_store(&table.error, error);
  atomic_store(&table.and_after, and_after);
  atomic_store(&table.calls, n == 0 ? 0 : calls);
}

uint64_t purgeable_testing_call_count(unsigned calls) {
  uint64_t sum = 0;
  for (int kind = 0; kind < KINDS; kind++) {
    if (calls & (1u << kind)) sum += atomic_load_explicit(&table.counts[kind], memory_order_relaxed);
  }
  return sum;
}

bool purgeable_testing_has_failed(void) { return atomic_load_explicit(&table.has_failed, memory_order_relaxed); }

// MARK: Memory

static void *map_pages(size_t length_bytes, int *error) {
  *error = enter(purgeable_testing_call_mmap);
  if (*error != 0) return NULL;
  void *start = mmap(NULL, length_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (start != MAP_FAILED) return start;
  *error = errno;
  return NULL;
}

void *purgeable__map(size_t length_bytes, size_t aligned_to_bytes, const char *name, int *error) {
  size_t page = purgeable_page_size_bytes();
  size_t slack = aligned_to_bytes > page ? aligned_to_bytes - page : 0;
  if (length_bytes == 0 || length_bytes > SIZE_MAX - slack - page) {
    *error = ENOMEM;
    return NULL;
  }
  char *start = map_pages(length_bytes + slack, error);
  if (start == NULL) return NULL;
  if (slack != 0) {
    // Trim to the alignment. What cannot be unmapped stays reserved address space and costs no memory.
    size_t before = (size_t)(-(uintptr_t)start & (aligned_to_bytes - 1));
    if (before != 0) (void)munmap(start, before);
    if (slack > before) (void)munmap(start + before + length_bytes, slack - before);
    start += before;
  }
  // Set once on the whole mapping: set on parts, these flags would split it. A kernel without one of them does without; only a
  // fork needs MADV_WIPEONFORK to be exact, and the probe reports where it is missing.
  (void)purgeable__madvise(start, length_bytes, PURGEABLE__MADV_NOHUGEPAGE);
  (void)purgeable__madvise(start, length_bytes, PURGEABLE__MADV_WIPEONFORK);
  (void)purgeable__madvise(start, length_bytes, PURGEABLE__MADV_DONTDUMP);
  (void)prctl(PR_SET_VMA, PR_SET_VMA_ANON_NAME, start, length_bytes, name);
  return start;
}

void *purgeable__map_ordinary(size_t length_bytes, int *error) {
  void *start = map_pages(length_bytes, error);
  // A huge page would make bookkeeping of a few bytes cost 2 MiB.
  if (start != NULL) (void)purgeable__madvise(start, length_bytes, PURGEABLE__MADV_NOHUGEPAGE);
  return start;
}

int purgeable__unmap(void *start, size_t length_bytes) {
  int error = enter(purgeable_testing_call_munmap);
  if (error != 0) return error;
  return munmap(start, length_bytes) == 0 ? 0 : errno;
}

int purgeable__madvise(void *start, size_t length_bytes, int advice) {
  int error = enter(advice == PURGEABLE__MADV_FREE ? purgeable_testing_call_madvise_free
                    : advice == MADV_DONTNEED      ? purgeable_testing_call_madvise_dontneed
                                                   : purgeable_testing_call_madvise_other);
  if (error != 0) return error;
  return madvise(start, length_bytes, advice) == 0 ? 0 : errno;
}

int purgeable__mincore(void *start, size_t length_bytes, unsigned char *pages) {
  int error = enter(purgeable_testing_call_mincore);
  if (error != 0) return error;
  return mincore(start, length_bytes, pages) == 0 ? 0 : errno;
}

int purgeable__wipe(void *start, size_t length_bytes) {
  if (length_bytes == 0) return 0;
  int error = purgeable__madvise(start, length_bytes, MADV_DONTNEED);
  if (error != EINVAL) return error;
  memset(start, 0, length_bytes);
  return 0;
}

void *purgeable__allocate(size_t count, size_t size_bytes) {
  int error = enter(purgeable_testing_call_allocate);
  if (error != 0) return NULL;
  return calloc(count, size_bytes);
}

void *purgeable__resize(void *old, size_t size_bytes) {
  int error = enter(purgeable_testing_call_allocate);
  if (error != 0) return NULL;
  return realloc(old, size_bytes);
}

int purgeable__random(void *buffer, size_t length_bytes) {
  int error = enter(purgeable_testing_call_random);
  if (error == 0) {
    if (getrandom(buffer, length_bytes, GRND_NONBLOCK) == (ssize_t)length_bytes) return 0;
    error = errno;
  }
  // Before the kernel's pool is ready, or without the call: the clock and addresses. Weaker against an attacker, never wrong.
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  uint64_t state = (uint64_t)now.tv_nsec * 0x9E3779B97F4A7C15u ^ (uint64_t)now.tv_sec ^ (uintptr_t)buffer ^ (uintptr_t)&now;
  for (size_t i = 0; i < length_bytes; i++) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    ((unsigned char *)buffer)[i] = (unsigned char)(state >> 24);
  }
  return error;
}

void *purgeable_bookkeeping_map(size_t length_bytes) {
  int error = EINVAL;
  void *start = length_bytes == 0 ? NULL : purgeable__map(length_bytes, 1, "purgeable bookkeeping", &error);
  if (start == NULL) errno = error;
  return start;
}

int purgeable_bookkeeping_clear(void *start, size_t length_bytes) { return purgeable__wipe(start, length_bytes); }

int purgeable_bookkeeping_unmap(void *start, size_t length_bytes) { return purgeable__unmap(start, length_bytes); }

bool purgeable__swap_in_use(void) {
  struct sysinfo information;
  return sysinfo(&information) != 0 || information.totalswap != 0;
}

size_t purgeable_page_size_bytes(void) {
  static _Atomic size_t known;
  size_t size = atomic_load_explicit(&known, memory_order_relaxed);
  if (size == 0) {
    long answer = sysconf(_SC_PAGESIZE);
    size = answer > 0 ? (size_t)answer : 4096;
    atomic_store_explicit(&known, size, memory_order_relaxed);
  }
  return size;
}

// MARK: Waiting

static _Atomic uint64_t *low_half(_Atomic uint64_t *word) {
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
  return (_Atomic uint64_t *)((char *)word + 4);
#else
  return word;
#endif
}

void purgeable__wait(_Atomic uint64_t *word, uint32_t low) {
  (void)syscall(SYS_futex, low_half(word), FUTEX_WAIT_PRIVATE, low, NULL, NULL, 0);
}

void purgeable__wake_all(_Atomic uint64_t *word) {
  (void)syscall(SYS_futex, low_half(word), FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

// MARK: Rules

#if defined(PURGEABLE_TEST_HOOKS)
_Atomic unsigned purgeable__rules_off;
_Atomic uint32_t purgeable__slow_read_rounds;
static void (*_Atomic pause_of_reads)(void *);
static void *_Atomic pause_context;

bool purgeable_testing_has_hooks(void) { return true; }

bool purgeable_testing_switch_off(unsigned rules) {
  atomic_store(&purgeable__rules_off, rules);
  return true;
}

bool purgeable_testing_rule_holds(purgeable_testing_rule_t rule) {
  return (atomic_load_explicit(&purgeable__rules_off, memory_order_relaxed) & (unsigned)rule) == 0;
}

void purgeable_testing_slow_reads(uint32_t rounds) { atomic_store(&purgeable__slow_read_rounds, rounds); }

void purgeable__pause_for_test(void) {
  uint32_t rounds = atomic_load_explicit(&purgeable__slow_read_rounds, memory_order_relaxed);
  for (uint32_t i = 0; i < rounds; i++) atomic_signal_fence(memory_order_seq_cst);
  // Acquire: pairs with the release in `purgeable_testing_set_pause`, which has written the context before.
  void (*pause)(void *) = atomic_load_explicit(&pause_of_reads, memory_order_acquire);
  if (pause != NULL) pause(atomic_load_explicit(&pause_context, memory_order_relaxed));
}

bool purgeable_testing_set_pause(void (*pause)(void *context), void *context) {
  atomic_store_explicit(&pause_context, context, memory_order_relaxed);
  atomic_store_explicit(&pause_of_reads, pause, memory_order_release);
  return true;
}
#else
bool purgeable_testing_has_hooks(void) { return false; }
bool purgeable_testing_switch_off(unsigned rules) { return rules == 0; }
bool purgeable_testing_rule_holds(purgeable_testing_rule_t rule) { return rule != 0; }
void purgeable_testing_slow_reads(uint32_t rounds) { (void)rounds; }
bool purgeable_testing_set_pause(void (*pause)(void *context), void *context) {
  (void)context;
  return pause == NULL;
}
#endif
