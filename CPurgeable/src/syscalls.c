// SPDX-License-Identifier: MIT
// The one table of system calls and allocations. Every call counts itself, and a test can make the n-th of a kind fail.

#include "internal.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <time.h>
#include <unistd.h>

#ifndef PR_SET_VMA
#define PR_SET_VMA 0x53564d41
#define PR_SET_VMA_ANON_NAME 0
#endif

enum { KINDS = 12 };

// The fault that a test asked for. `remaining` counts down to the call that fails. Relaxed: a test arms it before it calls.
static struct {
  _Atomic unsigned calls;
  _Atomic int64_t remaining;
  _Atomic int error;
  _Atomic bool and_after;
  _Atomic bool has_failed;
  _Atomic unsigned pretended;
  _Atomic uint64_t counts[KINDS];
} table;

// Counts one call; answers the errno it has to fail with, or 0.
static int count_call(unsigned call) {
  add_relaxed(&table.counts[__builtin_ctz(call)], 1);
  if ((load_relaxed(&table.calls) & call) == 0) return 0;
  int64_t left = subtract_relaxed(&table.remaining, 1);
  if (left == 1 || (left < 1 && load_relaxed(&table.and_after))) {
    store_relaxed(&table.has_failed, true);
    return load_relaxed(&table.error);
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

void purgeable_testing_pretend(unsigned pretences) { atomic_store(&table.pretended, pretences); }

uint64_t purgeable_testing_call_count(unsigned calls) {
  uint64_t sum = 0;
  for (int kind = 0; kind < KINDS; kind++) {
    if (calls & (1u << kind)) sum += load_relaxed(&table.counts[kind]);
  }
  return sum;
}

bool purgeable_testing_has_failed(void) { return load_relaxed(&table.has_failed); }

// MARK: Memory

// Maps pages that nobody may touch yet. So they are merged with no neighbour, the advice that follows splits nothing, and
// nothing is populated.
static char *map_closed(size_t length_bytes, int *error) {
  *error = count_call(purgeable_testing_call_mmap);
  if (*error != 0) return NULL;
  void *start = mmap(NULL, length_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (start != MAP_FAILED) return start;
  // EAGAIN: all memory to come is locked, and RLIMIT_MEMLOCK leaves no room. A second call would fail, too.
  *error = errno == EAGAIN ? ENOMEM : errno;
  return NULL;
}

// A mapping that is smaller costs little where it is populated whole.
enum { WORTH_A_LOOK_BYTES = 256 << 10 };

// Where all memory to come is locked (mlockall with MCL_FUTURE), the kernel would populate the whole mapping as soon as it may
// be written to. Locked on first touch instead, a mapping holds what is used of it. What tells: MADV_DONTNEED is refused on
// locked memory. Where mlock2 is refused the mapping is populated.
static void lock_on_touch(void *start, size_t length_bytes) {
#if defined(SYS_mlock2)
  if (length_bytes < WORTH_A_LOOK_BYTES || madvise(start, length_bytes, MADV_DONTNEED) == 0 || errno != EINVAL) return;
  (void)syscall(SYS_mlock2, start, length_bytes, PURGEABLE__MLOCK_ONFAULT);
#else
  (void)start, (void)length_bytes;
#endif
}

// Gives advice that the mapping must not go without. Refused for want of mappings or memory: an errno. Any other answer says
// that the kernel, or a filter in front of it, does not know the advice: the core does without, and the probe tells.
static int advise_once(void *start, size_t length_bytes, int advice) {
  int error = purgeable__madvise(start, length_bytes, advice);
  return error == ENOMEM || error == EAGAIN ? ENOMEM : 0;
}

static int make_writable(void *start, size_t length_bytes) {
  int error = count_call(purgeable_testing_call_mprotect);
  if (error == 0 && mprotect(start, length_bytes, PROT_READ | PROT_WRITE) != 0) error = errno;
  return error == 0 ? 0 : ENOMEM;
}

// A mapping that could not be made ready. Nothing was written to it: what cannot be unmapped is address space, and no memory.
static void *give_up(void *start, size_t length_bytes, int found, int *error) {
  (void)purgeable__unmap(start, length_bytes);
  *error = found;
  return NULL;
}

void *purgeable__map(size_t length_bytes, size_t aligned_to_bytes, const char *name, int *error) {
  size_t page = purgeable_page_size_bytes();
  size_t slack = aligned_to_bytes > page ? aligned_to_bytes - page : 0;
  if (length_bytes == 0 || length_bytes > SIZE_MAX - slack - page) {
    *error = ENOMEM;
    return NULL;
  }
  char *start = map_closed(length_bytes + slack, error);
  if (start == NULL) return NULL;
  if (slack != 0) {
    // Trim to the alignment. What cannot be unmapped stays reserved address space and costs no memory.
    size_t before = (size_t)(-(uintptr_t)start & (aligned_to_bytes - 1));
    if (before != 0) (void)munmap(start, before);
    if (slack > before) (void)munmap(start + before + length_bytes, slack - before);
    start += before;
  }
  lock_on_touch(start, length_bytes);
  // Set once on the whole mapping: set on parts, these flags would split it.
  int found = advise_once(start, length_bytes, PURGEABLE__MADV_NOHUGEPAGE);
  if (found == 0) found = advise_once(start, length_bytes, PURGEABLE__MADV_WIPEONFORK);
  if (found == 0) found = advise_once(start, length_bytes, PURGEABLE__MADV_DONTDUMP);
  if (found == 0) (void)prctl(PR_SET_VMA, PR_SET_VMA_ANON_NAME, start, length_bytes, name);
  if (found == 0) found = make_writable(start, length_bytes);
  return found == 0 ? start : give_up(start, length_bytes, found, error);
}

void *purgeable__map_ordinary(size_t length_bytes, int *error) {
  char *start = map_closed(length_bytes, error);
  if (start == NULL) return NULL;
  lock_on_touch(start, length_bytes);
  // A huge page would make bookkeeping of a few bytes cost 2 MiB.
  int found = advise_once(start, length_bytes, PURGEABLE__MADV_NOHUGEPAGE);
  if (found == 0) found = make_writable(start, length_bytes);
  return found == 0 ? start : give_up(start, length_bytes, found, error);
}

int purgeable__unmap(void *start, size_t length_bytes) {
  int error = count_call(purgeable_testing_call_munmap);
  if (error != 0) return error;
  return munmap(start, length_bytes) == 0 ? 0 : errno;
}

// What a kernel of another kind makes of an advice. True: it says yes and does nothing.
static bool pretend(unsigned pretended, int advice, size_t *length_bytes) {
  if ((pretended & purgeable_testing_pretence_no_wipe) != 0 && advice == PURGEABLE__MADV_WIPEONFORK) return true;
  if ((pretended & purgeable_testing_pretence_half_offers) != 0 && advice == PURGEABLE__MADV_FREE) {
    size_t page = purgeable_page_size_bytes();
    if (*length_bytes > page) *length_bytes = *length_bytes / 2 / page * page;
  }
  return false;
}

int purgeable__madvise(void *start, size_t length_bytes, int advice) {
  int error = count_call(advice == PURGEABLE__MADV_FREE ? purgeable_testing_call_madvise_free
                    : advice == MADV_DONTNEED      ? purgeable_testing_call_madvise_dontneed
                                                   : purgeable_testing_call_madvise_other);
  if (error != 0) return error;
  unsigned pretended = load_relaxed(&table.pretended);
  if (__builtin_expect(pretended != 0, 0) && pretend(pretended, advice, &length_bytes)) return 0;
  return madvise(start, length_bytes, advice) == 0 ? 0 : errno;
}

int purgeable__mincore(void *start, size_t length_bytes, unsigned char *pages) {
  int error = count_call(purgeable_testing_call_mincore);
  if (error != 0) return error;
  return mincore(start, length_bytes, pages) == 0 ? 0 : errno;
}

// Stores zeros where the kernel keeps the pages. Readers without lock may be copying them; partners of both fences are the
// acquire fences between such a reader's copy and its checks. The first: whoever copies a zero sees what this thread did before
// (a word, a generation, another table). The second: whoever copies a zero of a page finds its witness gone, which is the page's
// first word that is not zero (region_witness.c).
static void clear_by_hand(char *start, size_t length_bytes) {
  size_t page = purgeable_page_size_bytes();
  atomic_thread_fence(memory_order_release);
  for (size_t at = 0; at < length_bytes; at += page) {
    size_t bytes = length_bytes - at < page ? length_bytes - at : page;
    uint64_t *words = (uint64_t *)(void *)(start + at);
    uint64_t *first = words;
    while (first < words + bytes / 8 && *(volatile uint64_t *)first == 0) first++;
    if (first < words + bytes / 8) *(volatile uint64_t *)first = 0;
    atomic_thread_fence(memory_order_release);
    memset(words, 0, bytes);
  }
}

int purgeable__wipe(void *start, size_t length_bytes) {
  if (length_bytes == 0) return 0;
  int error = purgeable__madvise(start, length_bytes, MADV_DONTNEED);
  if (error != EINVAL) return error;
  // Locked. Linux 5.18 and later can give locked pages back; before, touching them is all that is left.
  if (purgeable__madvise(start, length_bytes, PURGEABLE__MADV_DONTNEED_LOCKED) == 0) return 0;
  clear_by_hand(start, length_bytes);
  return 0;
}

void *purgeable__allocate(size_t count, size_t size_bytes) {
  int error = count_call(purgeable_testing_call_allocate);
  if (error != 0) return NULL;
  return calloc(count, size_bytes);
}

void *purgeable__resize(void *old, size_t size_bytes) {
  int error = count_call(purgeable_testing_call_allocate);
  if (error != 0) return NULL;
  return realloc(old, size_bytes);
}

int purgeable__random(void *buffer, size_t length_bytes) {
  int error = count_call(purgeable_testing_call_random);
  if (error == 0) {
    // Directly: the C library's function is a cancellation point.
    if (syscall(SYS_getrandom, buffer, length_bytes, PURGEABLE__GRND_NONBLOCK) == (long)length_bytes) return 0;
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

uint64_t purgeable__now_ns(void) {
  struct timespec now = {0};
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

// Directly, not by the C library's functions: those are cancellation points.
int purgeable__open(const char *path, int *descriptor) {
  int error = count_call(purgeable_testing_call_file);
  if (error != 0) return error;
  long opened = syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
  if (opened < 0) return errno;
  *descriptor = (int)opened;
  return 0;
}

size_t purgeable__file_read(int descriptor, void *buffer, size_t room_bytes) {
  if (count_call(purgeable_testing_call_file) != 0) return 0;
  long length = syscall(SYS_read, descriptor, buffer, room_bytes);
  return length < 0 ? 0 : (size_t)length;
}

long purgeable__scan(int descriptor, unsigned long request, void *argument) {
  return count_call(purgeable_testing_call_scan) != 0 ? -1 : syscall(SYS_ioctl, descriptor, request, argument);
}

void purgeable__close(int descriptor) { (void)syscall(SYS_close, descriptor); }

void purgeable__block_signals(sigset_t *before) {
  sigset_t all;
  (void)sigfillset(&all);
  // Sandboxes answer system calls by this signal. Blocked, it ends the process.
  (void)sigdelset(&all, SIGSYS);
  (void)pthread_sigmask(SIG_BLOCK, &all, before);
}

void purgeable__restore_signals(const sigset_t *before) { (void)pthread_sigmask(SIG_SETMASK, before, NULL); }

int purgeable__thread_create(pthread_t *thread, void *(*body)(void *), void *context) {
  int error = count_call(purgeable_testing_call_thread);
  if (error != 0) return error;
  // A new thread has the mask of the one that makes it.
  sigset_t before;
  purgeable__block_signals(&before);
  error = pthread_create(thread, NULL, body, context);
  purgeable__restore_signals(&before);
  return error;
}

bool purgeable__swap_in_use(void) {
  struct sysinfo information;
  return sysinfo(&information) != 0 || information.totalswap != 0;
}

size_t purgeable_page_size_bytes(void) {
  static _Atomic size_t known;
  size_t size = load_relaxed(&known);
  if (size == 0) {
    long answer = sysconf(_SC_PAGESIZE);
    size = answer > 0 ? (size_t)answer : 4096;
    store_relaxed(&known, size);
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
  (void)syscall(SYS_futex, low_half(word), PURGEABLE__FUTEX_WAIT_PRIVATE, low, NULL, NULL, 0);
}

void purgeable__wait_ms(_Atomic uint64_t *word, uint32_t low, uint32_t timeout_ms) {
  struct timespec time = {.tv_sec = timeout_ms / 1000, .tv_nsec = (long)(timeout_ms % 1000) * 1000000};
  (void)syscall(SYS_futex, low_half(word), PURGEABLE__FUTEX_WAIT_PRIVATE, low, &time, NULL, 0);
}

void purgeable__wake_all(_Atomic uint64_t *word) {
  (void)syscall(SYS_futex, low_half(word), PURGEABLE__FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

// MARK: Rules

#if defined(PURGEABLE_TEST_HOOKS)
_Atomic unsigned purgeable__rules_off;
_Atomic uint32_t purgeable__slow_read_rounds;
typedef struct test_pause {
  void (*_Atomic body)(void *);
  void *_Atomic context;
} test_pause_t;
static test_pause_t pause_of_reads, pause_inside;

bool purgeable_testing_has_hooks(void) { return true; }

bool purgeable_testing_switch_off(unsigned rules) {
  atomic_store(&purgeable__rules_off, rules);
  return true;
}

bool purgeable_testing_rule_holds(purgeable_testing_rule_t rule) {
  return (load_relaxed(&purgeable__rules_off) & (unsigned)rule) == 0;
}

void purgeable_testing_slow_reads(uint32_t rounds) { atomic_store(&purgeable__slow_read_rounds, rounds); }

static void pause_here(test_pause_t *pause) {
  // Acquire: pairs with the release in `set_pause`, which has written the context before.
  void (*body)(void *) = load_acquire(&pause->body);
  if (body != NULL) body(load_relaxed(&pause->context));
}

static bool set_pause(test_pause_t *pause, void (*body)(void *context), void *context) {
  store_relaxed(&pause->context, context);
  store_release(&pause->body, body);
  return true;
}

void purgeable__pause_for_test(void) {
  uint32_t rounds = load_relaxed(&purgeable__slow_read_rounds);
  for (uint32_t i = 0; i < rounds; i++) atomic_signal_fence(memory_order_seq_cst);
  pause_here(&pause_of_reads);
}

bool purgeable_testing_set_pause(void (*pause)(void *context), void *context) {
  return set_pause(&pause_of_reads, pause, context);
}

void purgeable__pause_inside_for_test(void) { pause_here(&pause_inside); }

bool purgeable_testing_set_inner_pause(void (*pause)(void *context), void *context) {
  return set_pause(&pause_inside, pause, context);
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
bool purgeable_testing_set_inner_pause(void (*pause)(void *context), void *context) {
  (void)context;
  return pause == NULL;
}
#endif
