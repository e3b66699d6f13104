// SPDX-License-Identifier: MIT
/// What the figures need of C: a count of heap allocations, and offering and rescuing by hand to compare with.
#ifndef BENCHMARK_SUPPORT_H
#define BENCHMARK_SUPPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/// Whether this build counts allocations. A sanitizer brings an allocator of its own, which must not be stood in for.
bool benchmark_counts_allocations(void);

/// How many heap allocations the calling thread has made since it began.
uint64_t benchmark_allocation_count(void);

/// Maps `length_bytes` without huge pages, every page holding something; NULL when there is no memory.
void *benchmark_map(size_t length_bytes);

/// Takes pages back from offer, one atomic write each. False when one of them is gone.
bool benchmark_rescue(void *start, size_t length_bytes);

/// Offers pages (MADV_FREE). 0 or an errno.
int benchmark_offer(void *start, size_t length_bytes);

/// Lets every processor that this thread may run on finish the offers it has begun: each keeps the last few pages back.
void benchmark_drain_offers(void);

/// Adds up bytes: the same code for every side of a comparison.
static inline uint64_t benchmark_sum(const void *start, size_t length_bytes) {
  const unsigned char *bytes = (const unsigned char *)start;
  uint64_t sum = 0;
  for (size_t i = 0; i < length_bytes; i++) sum += bytes[i];
  return sum;
}

#endif
