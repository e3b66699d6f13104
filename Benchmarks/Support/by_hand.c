// SPDX-License-Identifier: MIT
// Purgeable pages as a program would have them without this library: madvise, and an atomic write a page to take them back.

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "benchmark_support.h"

#include <errno.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

static size_t page_size(void) { return (size_t)sysconf(_SC_PAGESIZE); }

void *benchmark_map(size_t length_bytes) {
  void *start = mmap(NULL, length_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (start == MAP_FAILED) return NULL;
  (void)madvise(start, length_bytes, MADV_NOHUGEPAGE);
  for (size_t i = 0; i < length_bytes; i++) ((unsigned char *)start)[i] = (unsigned char)(i % 251 + 1);
  return start;
}

bool benchmark_rescue(void *start, size_t length_bytes) {
  size_t step = page_size();
  for (size_t at = 0; at < length_bytes; at += step) {
    uint64_t *word = (uint64_t *)(void *)((char *)start + at);
    uint64_t seen = __atomic_load_n(word, __ATOMIC_RELAXED);
    // A compare-exchange of the value for itself. Adding 0 would do it too, but compilers turn that into a load, which takes
    // nothing back from offer.
    if (seen == 0 || !__atomic_compare_exchange_n(word, &seen, seen, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) return false;
  }
  return true;
}

int benchmark_offer(void *start, size_t length_bytes) { return madvise(start, length_bytes, MADV_FREE) == 0 ? 0 : errno; }

void benchmark_drain_offers(void) {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  void *page = mmap(NULL, page_size(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return;
  for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    // Any madvise on a processor completes the earlier ones there.
    if (sched_setaffinity(0, sizeof one, &one) == 0) (void)madvise(page, page_size(), MADV_FREE);
  }
  (void)sched_setaffinity(0, sizeof allowed, &allowed);
  (void)munmap(page, page_size());
}
