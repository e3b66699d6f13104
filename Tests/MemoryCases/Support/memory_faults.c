// SPDX-License-Identifier: MIT
// The allocator that refuses. Unless it is armed, every result is the C library's own.

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "memory_faults.h"

#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define HAS_ITS_OWN_ALLOCATOR 1
#endif
#endif

static uint64_t status_number(const char *key) {
  FILE *file = fopen("/proc/self/status", "r");
  char line[256];
  uint64_t number = 0;
  while (file != NULL && number == 0 && fgets(line, sizeof line, file) != NULL) {
    unsigned long long kilobytes;
    if (sscanf(line, key, &kilobytes) == 1) number = kilobytes * 1024;
  }
  if (file != NULL) (void)fclose(file);
  return number;
}

uint64_t memory_faults_thread_count(void) { return status_number("Threads: %llu") / 1024; }
uint64_t memory_faults_address_space(void) { return status_number("VmSize: %llu"); }

uint64_t memory_faults_resident(void) {
  // Without an allocation, since allocations may be refused.
  char text[128] = {0};
  int file = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  ssize_t length = read(file, text, sizeof text - 1);
  (void)close(file);
  unsigned long long size = 0, resident = 0;
  if (length <= 0 || sscanf(text, "%llu %llu", &size, &resident) != 2) return 0;
  return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

bool memory_faults_limit_address_space(uint64_t more) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_AS, &limit) != 0) return false;
  limit.rlim_cur = memory_faults_address_space() + more;
  return setrlimit(RLIMIT_AS, &limit) == 0;
}

void memory_faults_unlimit_address_space(void) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_AS, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  (void)setrlimit(RLIMIT_AS, &limit);
}

#if !defined(__GLIBC__) || defined(HAS_ITS_OWN_ALLOCATOR)

bool memory_faults_work(void) { return false; }
void memory_faults_count_from_here(memory_faults_scope_t scope) { (void)scope; }
void memory_faults_refuse(memory_faults_scope_t scope, uint64_t n, bool and_after) { (void)scope, (void)n, (void)and_after; }
void memory_faults_leave(uint64_t bytes) { (void)bytes; }
void memory_faults_end(void) {}
uint64_t memory_faults_allocation_count(void) { return 0; }
uint64_t memory_faults_refused_count(void) { return 0; }
void memory_faults_trace(bool on) { (void)on; }

#else

// glibc's own names of the functions that are replaced here.
extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *old, size_t size);
extern void *__libc_memalign(size_t alignment, size_t size);
extern void __libc_free(void *memory);
extern void *memalign(size_t alignment, size_t size);

typedef enum fault_mode { mode_off = 0, mode_count, mode_refuse, mode_leave } fault_mode_t;

// Relaxed throughout: armed by the thread that is watched, or before the others are let go on.
static struct {
  _Atomic int mode;
  _Atomic int scope;
  _Atomic uint64_t count;
  _Atomic uint64_t refused;
  _Atomic uint64_t n;
  _Atomic bool and_after;
  _Atomic int64_t left;
  _Atomic bool traces;
} faults;

// In the executable's own part: reached without a call, which could itself allocate.
static _Thread_local __attribute__((tls_model("initial-exec"))) bool is_armer;
static _Thread_local __attribute__((tls_model("initial-exec"))) bool is_tracing;

bool memory_faults_work(void) { return true; }

static void arm(fault_mode_t mode, memory_faults_scope_t scope, uint64_t n, bool and_after, uint64_t bytes) {
  atomic_store(&faults.mode, mode_off);
  is_armer = true;
  atomic_store(&faults.scope, (int)scope);
  atomic_store(&faults.count, 0);
  atomic_store(&faults.refused, 0);
  atomic_store(&faults.n, n);
  atomic_store(&faults.and_after, and_after);
  atomic_store(&faults.left, (int64_t)bytes);
  atomic_store(&faults.mode, mode);
}

void memory_faults_count_from_here(memory_faults_scope_t scope) { arm(mode_count, scope, 0, false, 0); }
void memory_faults_refuse(memory_faults_scope_t scope, uint64_t n, bool and_after) { arm(mode_refuse, scope, n, and_after, 0); }
void memory_faults_leave(uint64_t bytes) { arm(mode_leave, memory_faults_scope_this_thread, 0, false, bytes); }
void memory_faults_end(void) {
  atomic_store(&faults.mode, mode_off);
  is_armer = false;
}
uint64_t memory_faults_allocation_count(void) { return atomic_load(&faults.count); }
uint64_t memory_faults_refused_count(void) { return atomic_load(&faults.refused); }

void memory_faults_trace(bool on) {
  void *addresses[4];
  // The first use loads the unwinder, with allocations of its own.
  (void)backtrace(addresses, 4);
  atomic_store(&faults.traces, on);
}

static void trace(size_t size, bool refused) {
  if (is_tracing || !atomic_load_explicit(&faults.traces, memory_order_relaxed)) return;
  is_tracing = true;
  char line[80];
  void *addresses[40];
  int length = snprintf(line, sizeof line, "%s allocation of %zu bytes\n", refused ? "refused" : "counted", size);
  if (length > 0) (void)!write(2, line, (size_t)length);
  int count = backtrace(addresses, 40);
  backtrace_symbols_fd(addresses, count, 2);
  is_tracing = false;
}

// Whether this allocation is to be refused for its number.
static bool is_refused(size_t size) {
  int mode = atomic_load_explicit(&faults.mode, memory_order_relaxed);
  if (mode == mode_off || is_tracing) return false;
  if (mode == mode_leave) {
    atomic_fetch_add_explicit(&faults.count, 1, memory_order_relaxed);
    return false;
  }
  bool wants_armer = atomic_load_explicit(&faults.scope, memory_order_relaxed) == memory_faults_scope_this_thread;
  if (wants_armer != is_armer) return false;
  uint64_t number = atomic_fetch_add_explicit(&faults.count, 1, memory_order_relaxed) + 1;
  uint64_t n = atomic_load_explicit(&faults.n, memory_order_relaxed);
  bool refused = mode == mode_refuse &&
                 (number == n || (number > n && atomic_load_explicit(&faults.and_after, memory_order_relaxed)));
  trace(size, refused);
  if (refused) atomic_fetch_add_explicit(&faults.refused, 1, memory_order_relaxed);
  return refused;
}

static int64_t weight(void *memory) { return (int64_t)malloc_usable_size(memory) + 8; }

// Takes an allocation from what is left; false, and it is given back, where that is too little.
static void *within_what_is_left(void *memory, size_t size) {
  if (memory == NULL || atomic_load_explicit(&faults.mode, memory_order_relaxed) != mode_leave || is_tracing) return memory;
  int64_t its = weight(memory);
  if (atomic_fetch_sub_explicit(&faults.left, its, memory_order_relaxed) >= its) return memory;
  atomic_fetch_add_explicit(&faults.left, its, memory_order_relaxed);
  atomic_fetch_add_explicit(&faults.refused, 1, memory_order_relaxed);
  trace(size, true);
  __libc_free(memory);
  errno = ENOMEM;
  return NULL;
}

static void *refusal(void) {
  errno = ENOMEM;
  return NULL;
}

void *malloc(size_t size) { return is_refused(size) ? refusal() : within_what_is_left(__libc_malloc(size), size); }

void *calloc(size_t count, size_t size) {
  return is_refused(count * size) ? refusal() : within_what_is_left(__libc_calloc(count, size), count * size);
}

void *realloc(void *old, size_t size) {
  if (is_refused(size)) return refusal();
  if (old == NULL || atomic_load_explicit(&faults.mode, memory_order_relaxed) != mode_leave) return __libc_realloc(old, size);
  // Beside the old one, as it may have to be.
  void *made = malloc(size);
  if (made == NULL) return NULL;
  size_t had = malloc_usable_size(old);
  for (size_t i = 0; i < had && i < size; i++) ((char *)made)[i] = ((char *)old)[i];
  free(old);
  return made;
}

void *memalign(size_t alignment, size_t size) {
  return is_refused(size) ? refusal() : within_what_is_left(__libc_memalign(alignment, size), size);
}

void *aligned_alloc(size_t alignment, size_t size) { return memalign(alignment, size); }

int posix_memalign(void **memory, size_t alignment, size_t size) {
  if (alignment < sizeof(void *) || (alignment & (alignment - 1)) != 0) return EINVAL;
  void *made = memalign(alignment, size);
  if (made == NULL) return ENOMEM;
  *memory = made;
  return 0;
}

void free(void *memory) {
  if (memory != NULL && atomic_load_explicit(&faults.mode, memory_order_relaxed) == mode_leave) {
    atomic_fetch_add_explicit(&faults.left, weight(memory), memory_order_relaxed);
  }
  __libc_free(memory);
}

#endif
