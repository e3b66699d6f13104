// SPDX-License-Identifier: MIT
// Counts heap allocations. The allocator's entry points are defined in the executable, so that all calls, those of the Swift
// runtime included, come here first. Each thread has a count of its own: plain increments, without other threads' allocations.

#include "benchmark_support.h"

#include <errno.h>
#include <stdlib.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define HAS_ITS_OWN_ALLOCATOR 1
#endif
#endif

#if !defined(__GLIBC__) || defined(HAS_ITS_OWN_ALLOCATOR)

bool benchmark_counts_allocations(void) { return false; }
uint64_t benchmark_allocation_count(void) { return 0; }

#else

// glibc's own names of what is stood in for here.
extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *old, size_t size);
extern void *__libc_memalign(size_t alignment, size_t size);
extern void *memalign(size_t alignment, size_t size);

// In the executable's own part: reached without a call, which could itself allocate.
static _Thread_local __attribute__((tls_model("initial-exec"))) uint64_t allocation_count;

bool benchmark_counts_allocations(void) { return true; }
uint64_t benchmark_allocation_count(void) { return allocation_count; }

void *malloc(size_t size) {
  allocation_count++;
  return __libc_malloc(size);
}

void *calloc(size_t count, size_t size) {
  allocation_count++;
  return __libc_calloc(count, size);
}

void *realloc(void *old, size_t size) {
  allocation_count++;
  return __libc_realloc(old, size);
}

void *memalign(size_t alignment, size_t size) {
  allocation_count++;
  return __libc_memalign(alignment, size);
}

void *aligned_alloc(size_t alignment, size_t size) { return memalign(alignment, size); }

int posix_memalign(void **memory, size_t alignment, size_t size) {
  if (alignment < sizeof(void *) || (alignment & (alignment - 1)) != 0) return EINVAL;
  void *made = memalign(alignment, size);
  if (made == NULL) return ENOMEM;
  *memory = made;
  return 0;
}

#endif
