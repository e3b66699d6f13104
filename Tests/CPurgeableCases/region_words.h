// SPDX-License-Identifier: MIT
// Content of the region storms: word i of number n is n * STRIDE + i + 1, so a comparison tells whether all words are of one
// number.
#ifndef REGION_WORDS_H
#define REGION_WORDS_H

#include "region_cases.h"

#define STRIDE ((uint64_t)1 << 32)
#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT 21
#endif

static inline size_t words_in(size_t bytes) { return bytes / sizeof(uint64_t); }

static inline void write_number(void *bytes, size_t length, uint64_t number) {
  uint64_t *words = bytes;
  for (size_t i = 0; i < words_in(length); i++) words[i] = number * STRIDE + i + 1;
}

// Whether the words from the `first`-th on are of `number`.
static inline bool is_number(const void *bytes, size_t first, size_t count, uint64_t number) {
  const uint64_t *words = bytes;
  uint64_t wrong = 0;
  for (size_t i = 0; i < count; i++) wrong |= words[i] ^ (number * STRIDE + first + i + 1);
  return wrong == 0;
}

static inline void page_out(void *bytes, size_t length) { (void)madvise(bytes, length, MADV_PAGEOUT); }

#endif
