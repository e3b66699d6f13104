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

#include "region_witness.h"

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

// Pages with a witness, before and after.
typedef struct tally {
  size_t before, after;
} tally_t;

// Takes the witnesses of [first, end) afresh, by a look at each page.
static void take_pages(purgeable_region_t *region, size_t first, size_t end, tally_t *tally) {
  size_t count = words_in_page(region);
  assert(count % 4 == 0 && first <= end && end <= region->page_count);
  for (size_t page = first; page < end; page++) {
    const uint64_t *words = page_words(region, page);
    size_t old = witness_of(region, page);
    // Always the first word that is not 0, although the old one may stand: a page that is cleared by hand loses that one first.
    size_t fresh = find_witness(words, count);
    tally->before += old != 0;
    tally->after += fresh != 0;
    if (fresh != old) store_relaxed(&region->witnesses[page], (uint16_t)fresh);
  }
  PURGEABLE_LOOKS(witnesses, end - first);
}

static void forget_pages(purgeable_region_t *region, size_t first, size_t end) {
  for (size_t page = first; page < end; page++) {
    if (witness_of(region, page) != 0) store_relaxed(&region->witnesses[page], 0);
  }
}

// Takes the witnesses of the pages that hold anything, or (`forgets`) clears those of all others. False: the kernel does not tell
// which is which, and the witnesses have to be taken by a look at each page.
static bool take_touched(purgeable_region_t *region, bool forgets, tally_t *tally) {
  purgeable__touched_t touched;
  if (!purgeable__touched_begin(&touched, region->bytes, purgeable__region_bytes(region))) return false;
  char *start, *end;
  size_t page = 0;
  while (purgeable__touched_next(&touched, &start, &end)) {
    size_t first = (size_t)(start - region->bytes) / region->page_size_bytes;
    size_t after = (size_t)(end - region->bytes) / region->page_size_bytes;
    if (forgets) forget_pages(region, page, first);
    if (!forgets) take_pages(region, first, after, tally);
    page = after;
  }
  if (forgets) forget_pages(region, page, region->page_count);
  purgeable__touched_end(&touched);
  // What is left when the kernel stops telling may hold nothing, and keep old witnesses.
  return !(forgets && touched.has_stopped);
}

// A page that holds nothing is a page of zeros: it needs no witness, and no look. So what this costs follows from what was
// written, not from the length. Nobody writes meanwhile, unless a lock for writing overtakes this: then its version makes the
// caller look again. Where all that had a witness holds something, nothing else has one; else those witnesses go, too: of content
// that was discarded before this fill.
void purgeable__witnesses_take(purgeable_region_t *region) {
  size_t known = load_relaxed(&region->witnessed_count);
  tally_t tally = {0};
  bool is_taken = purgeable__is_sparse(region) && take_touched(region, false, &tally);
  bool has_old = tally.before != known && PURGEABLE_RULE(forget_untouched);
  if (is_taken && has_old) is_taken = take_touched(region, true, &tally);
  if (!is_taken) {
    tally = (tally_t){0};
    take_pages(region, 0, region->page_count, &tally);
  }
  store_relaxed(&region->witnessed_count, tally.after);
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
