// SPDX-License-Identifier: MIT
// Witnesses: for every page the place of a word of its content that is not zero, kept in ordinary memory.
//
//   witnesses   [  1  |  0  |  3  ]            0: a page of zeros, which needs none; k: word k - 1 of the page
//                  |           |
//   pages       [x....][......][..x...]        a page that was discarded has zeros everywhere, at the witness too
//
// Content is read here while others may be writing it: by readers without lock, by lockers who find out only afterwards that a
// writer came before them, and by an unlock that a writing lock overtakes. In each case the state word, looked at afterwards,
// says that the answer does not count. So these loads are volatile, and excluded from the thread sanitizer.

#include "region_internal.h"

_Static_assert(65536 / sizeof(uint64_t) + 1 <= UINT16_MAX, "a page of 64 KiB fits the index");

static size_t words_in_page(const purgeable_region_t *region) { return region->page_size_bytes / sizeof(uint64_t); }

static uint64_t *page_words(const purgeable_region_t *region, size_t page) {
  assert(page < region->page_count);
  return (uint64_t *)(void *)(region->bytes + page * region->page_size_bytes);
}

// The index is bounded by the array's own writer; a torn or foreign value cannot occur.
static size_t witness_of(const purgeable_region_t *region, size_t page) {
  size_t witness = load_relaxed(&region->witnesses[page]);
  assert(witness <= words_in_page(region));
  return witness;
}

PURGEABLE_NO_TSAN static bool is_nonzero(const uint64_t *word) { return *(const volatile uint64_t *)word != 0; }

PURGEABLE_NO_TSAN static size_t find_witness(const uint64_t *words, size_t count) {
  const volatile uint64_t *at = words;
  for (size_t i = 0; i < count; i += 4) {
    if ((at[i] | at[i + 1] | at[i + 2] | at[i + 3]) == 0) continue;
    for (size_t k = i; k < i + 4; k++) {
      if (at[k] != 0) return k + 1;
    }
  }
  return 0;
}

void purgeable__witnesses_take(purgeable_region_t *region) {
  size_t count = words_in_page(region);
  size_t witnessed = 0;
  assert(count % 4 == 0);
  for (size_t page = 0; page < region->page_count; page++) {
    const uint64_t *words = page_words(region, page);
    size_t old = witness_of(region, page);
    bool stands = old != 0 && is_nonzero(words + old - 1);
    size_t fresh = stands ? old : find_witness(words, count);
    witnessed += fresh != 0;
    if (fresh != old) store_relaxed(&region->witnesses[page], (uint16_t)fresh);
  }
  store_relaxed(&region->witnessed_count, witnessed);
}

bool purgeable__witnesses_stand(const purgeable_region_t *region, size_t first, size_t end) {
  assert(first <= end && end <= region->page_count);
  for (size_t page = first; page < end; page++) {
    size_t witness = witness_of(region, page);
    if (witness != 0 && !is_nonzero(page_words(region, page) + witness - 1)) return false;
  }
  return true;
}

bool purgeable__witnesses_rescue(purgeable_region_t *region) {
  for (size_t page = 0; page < region->page_count; page++) {
    size_t witness = witness_of(region, page);
    if (witness == 0) continue;
    if (!purgeable__rescue((_Atomic uint64_t *)(page_words(region, page) + witness - 1))) return false;
  }
  return true;
}
