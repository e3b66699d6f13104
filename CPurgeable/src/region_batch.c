// SPDX-License-Identifier: MIT
// Offering idle regions to the kernel, a batch of neighbours at a time.
//
// A region is OFFERING only while its own batch is at the kernel, not while the queue is: what a locker waits for is bounded by
// 2 MiB. A larger region, or one whose pages of zeros cut it into many calls, is left in the middle as soon as a locker counts:
// the locker would take everything off offer anyway, and the last unlock offers the region again.
//
// Pages with a witness get MADV_FREE. Pages of zeros get MADV_DONTNEED, which leaves them zeros and leaves no CPU with a view of
// the old page: were they offered and taken, a writer could fill such a page anew while another CPU still read the old zeros,
// and nothing would have to flush them (a page without witness is not rescued).

#include "region_batch.h"

#include "region_word.h"

// Adjacent pages that get the same advice, and the regions they belong to.
typedef struct run {
  char *start;
  size_t bytes;
  bool is_zeros;
  size_t first_region;
  size_t last_region;
} run_t;

// MARK: The kernel calls

static void advise(purgeable__batch_t *batch, const run_t *run) {
  if (run->bytes == 0) return;
  if (run->is_zeros) {
    // Refused (mlocked): the pages stay as they are, resident, never on offer.
    (void)purgeable__madvise(run->start, run->bytes, MADV_DONTNEED);
    return;
  }
  int error = purgeable__madvise(run->start, run->bytes, PURGEABLE__MADV_FREE);
  if (error == 0) return;
  if (run->first_region == run->last_region) {
    batch->errors[run->first_region] = error;
    return;
  }
  // One mlocked page ends the call in the middle of the range. The rest of the range gets a call of its own.
  char *at = run->start;
  for (size_t i = run->first_region; i <= run->last_region; i++) {
    char *end = batch->regions[i]->bytes + purgeable__region_bytes(batch->regions[i]);
    if (end > run->start + run->bytes) end = run->start + run->bytes;
    error = purgeable__madvise(at, (size_t)(end - at), PURGEABLE__MADV_FREE);
    if (error != 0) batch->errors[i] = error;
    at = end;
  }
}

// Whether an offer of one region has a locker waiting. Relaxed: the locker's sleep ends with OFFERING, whenever that is seen.
static bool is_awaited(const purgeable__batch_t *batch) {
  if (batch->count != 1) return false;
  PURGEABLE_TEST_PAUSE();
  return purgeable__word_count(load_relaxed(batch->regions[0]->word)) != 0 && PURGEABLE_RULE(lockers_end_offers);
}

// Goes on with the pages [first, end) of a region. False: a locker waits, and what has been advised is only a part.
static bool advise_pages(purgeable__batch_t *batch, size_t i, size_t first, size_t end, run_t *run) {
  purgeable_region_t *region = batch->regions[i];
  size_t page_size = region->page_size_bytes;
  for (size_t page = first; page < end; page++) {
    char *start = region->bytes + page * page_size;
    bool is_zeros = load_relaxed(&region->witnesses[page]) == 0;
    // Given back by the first offer.
    if (is_zeros && batch->is_again[i]) continue;
    bool goes_on = run->bytes != 0 && run->start + run->bytes == start && run->is_zeros == is_zeros;
    if (goes_on && run->bytes < PURGEABLE__BATCH_BYTES) {
      run->bytes += page_size;
      run->last_region = i;
      continue;
    }
    if (run->bytes != 0) {
      advise(batch, run);
      if (is_awaited(batch)) return false;
    }
    *run = (run_t){.start = start, .bytes = page_size, .is_zeros = is_zeros, .first_region = i, .last_region = i};
  }
  return true;
}

// The same for all of a region. Of a sparse one, only the pages that hold anything: all with a witness do, and a page of zeros
// that holds nothing has nothing to give back. No processor has a stale view of such a page: it was never touched since the
// wipe before the fill, or was given back by an earlier offer; the kernel took none, since every page on offer was rescued before
// the content could change.
static bool advise_region(purgeable__batch_t *batch, size_t i, run_t *run) {
  purgeable_region_t *region = batch->regions[i];
  purgeable__touched_t touched;
  if (!purgeable__is_sparse(region) || !purgeable__touched_begin(&touched, region->bytes, purgeable__region_bytes(region))) {
    return advise_pages(batch, i, 0, region->page_count, run);
  }
  bool goes_on = true;
  char *start, *end;
  while (goes_on && purgeable__touched_next(&touched, &start, &end)) {
    size_t first = (size_t)(start - region->bytes) / region->page_size_bytes;
    goes_on = advise_pages(batch, i, first, (size_t)(end - region->bytes) / region->page_size_bytes, run);
  }
  purgeable__touched_end(&touched);
  return goes_on;
}

static bool advise_all(purgeable__batch_t *batch) {
  run_t run = {0};
  for (size_t i = 0; i < batch->count; i++) {
    if (!advise_region(batch, i, &run)) return false;
  }
  advise(batch, &run);
  return true;
}

int purgeable__batch_offer(purgeable__batch_t *batch, size_t *offered_bytes) {
  assert(batch->count <= PURGEABLE__BATCH_COUNT);
  int first_error = 0;
  memset(batch->errors, 0, batch->count * sizeof batch->errors[0]);
  bool is_whole = advise_all(batch);
  for (size_t i = 0; i < batch->count; i++) {
    purgeable_region_t *region = batch->regions[i];
    assert((load_relaxed(region->word) & WORD_OFFERING) != 0);
    int error = batch->errors[i];
    if (error == 0 && !is_whole) {
      purgeable__word_finish(region, 0, WORD_REFUSED);
      continue;
    }
    if (error == 0) {
      if (!batch->is_again[i]) *offered_bytes += purgeable__region_witnessed_bytes(region);
      purgeable__word_finish(region, 0, 0);
      continue;
    }
    if (first_error == 0) first_error = error;
    add_relaxed(&region->counters->refused_offers, 1);
    // A part may still be on offer, so ON_OFFER stays and the next lock looks at every page.
    purgeable__word_finish(region, 0, WORD_REFUSED);
  }
  return first_error;
}

// MARK: Claiming

bool purgeable__can_offer(uint64_t word, bool again) {
  if (purgeable__word_count(word) != 0 || (word & (WORD_OFFERING | WORD_DISCARDED)) != 0) return false;
  return (word & WORD_ON_OFFER) == 0 || (word & WORD_REFUSED) != 0 || again;
}

uint64_t purgeable__word_claimed(uint64_t word) {
  assert(purgeable__can_offer(word, true));
  return (word & ~WORD_REFUSED) | WORD_OFFERING | WORD_ON_OFFER;
}
