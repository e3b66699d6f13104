// SPDX-License-Identifier: MIT
// Fills: making the content of a region, anew or for the first time, while everybody else waits or is told so.
//
//   create ------------------------------.                  .--- publish ---> held, content finished
//                                        v                  |
//   refill ---> [ 1 W L O ] --madvise--> [ n > 0 W L ] -----+--- last unlock ---> idle, content finished
//   lock_or_fill (the one elected) --^      |   ^           |
//                                           '---'           '--- abandon ---> discarded, count 0
//                                  nested locks of the filler
//
// The proof is in region.c: F, I and J. Who the filler is: region_filler.c.

#include "region.h"
#include "region_filler.h"
#include "region_word.h"

// MARK: Begin

// Ends a refill that did not happen: the count is given back, and WRITER with the last one.
static void undo_fill(purgeable_region_t *region, uint64_t before) {
  uint64_t word = purgeable__word_load(region);
  uint64_t wanted;
  do {
    assert(purgeable__word_count(word) != 0 && (word & WORD_OFFERING) != 0);
    wanted = ((word - 1) | purgeable__word_doubt(before)) & ~WORD_FILLING;
    if (purgeable__word_count(wanted) == 0) wanted &= ~WORD_WRITER;
  } while (!purgeable__word_change(region, &word, wanted));
  purgeable__word_finish(region, 0, 0);
}

static int begin_fill(purgeable_region_t *region, purgeable__claim_t kind) {
  uint64_t before;
  int error = purgeable__region_claim(region, kind, &before);
  if (error != 0) return error;
  // J.
  store_relaxed(&region->filler, purgeable__this_thread());
  if (PURGEABLE_RULE(dontneed_before_refill)) error = purgeable__wipe(region->bytes, purgeable__region_bytes(region));
  if (error != 0) {
    undo_fill(region, before);
    return error;
  }
  // F. After the madvise.
  purgeable__word_finish(region, WORD_DISCARDED | WORD_ON_OFFER | WORD_REFUSED, 0);
  // What the filler stores must not be seen before WRITER and the version. Partner: the acquire fences in region_read.c.
  atomic_thread_fence(memory_order_release);
  return 0;
}

int purgeable_region_refill(purgeable_region_t *region) {
  if (region == NULL) return EINVAL;
  return begin_fill(region, purgeable__claim_fill);
}

purgeable_outcome_t purgeable_region_lock_waiting(purgeable_region_t *region) {
  return purgeable__region_lock(region, false, purgeable__patience_fill, NULL);
}

purgeable_outcome_t purgeable_region_lock_for_writing_waiting(purgeable_region_t *region) {
  return purgeable__region_lock(region, true, purgeable__patience_fill, NULL);
}

purgeable_outcome_t purgeable_region_lock_or_fill(purgeable_region_t *region, bool *is_filler) {
  if (is_filler == NULL) {
    errno = EINVAL;
    return purgeable_outcome_error;
  }
  *is_filler = false;
  for (;;) {
    bool given_up = false;
    purgeable_outcome_t outcome = purgeable__region_lock(region, false, purgeable__patience_fill, &given_up);
    if (outcome != purgeable_outcome_discarded || given_up) return outcome;
    PURGEABLE_TEST_PAUSE();
    // Only a region that is still discarded: another thread may have filled it since, and more than once.
    int error = begin_fill(region, purgeable__claim_fill_discarded);
    if (error == 0) {
      *is_filler = true;
      return purgeable_outcome_discarded;
    }
    if (error != EBUSY && error != EALREADY) {
      errno = error;
      return purgeable_outcome_error;
    }
  }
}

// MARK: End

// Whether a fill is under way that can be ended.
static bool can_end(uint64_t word) { return (word & WORD_FILLING) != 0 && (word & WORD_OFFERING) == 0; }

int purgeable_region_publish(purgeable_region_t *region) {
  if (region == NULL) return EINVAL;
  _Atomic uint64_t *address = region->word;
  uint64_t word = purgeable__word_load(region);
  do {
    if (!can_end(word)) return EPERM;
    // I. Witnesses are taken by the last unlock: WRITER stays.
  } while (!purgeable__word_change(region, &word, word & ~(WORD_FILLING | WORD_WAITERS)));
  int kept = errno;
  if ((word & WORD_WAITERS) != 0) purgeable__wake_all(address);
  errno = kept;
  return 0;
}

// A test has switched the rule off: unlock, then discard, which is all that a program without abandon could do.
static int give_up_in_two_steps(purgeable_region_t *region) {
  int error = purgeable_region_unlock(region);
  return error != 0 ? error : purgeable_region_discard(region);
}

int purgeable_region_abandon(purgeable_region_t *region) {
  if (region == NULL) return EINVAL;
  uint64_t word = purgeable__word_load(region);
  uint64_t wanted;
  if (!PURGEABLE_RULE(abandon_at_once)) return can_end(word) ? give_up_in_two_steps(region) : EPERM;
  do {
    if (!can_end(word)) return EPERM;
    if (purgeable__word_count(word) != 1) return EBUSY;
    // I. The count goes in the exchange that says DISCARDED, so no word between the two shows the content as idle. OFFERING as
    // for the last locker on its way back (D): no refill begins before the pages are handed back.
    wanted = ((word - 1) & ~(WORD_FILLING | WORD_WRITER)) | WORD_DISCARDED | WORD_OFFERING;
  } while (!purgeable__word_change(region, &word, wanted));
  add_relaxed(&region->counters->abandoned_fills, 1);
  int kept = errno;
  // If it fails, the pages stay resident until the next refill: memory, not content.
  (void)purgeable__madvise(region->bytes, purgeable__region_bytes(region), MADV_DONTNEED);
  errno = kept;
  purgeable__word_finish(region, 0, 0);
  return 0;
}

// MARK: State

bool purgeable_region_fills_here(const purgeable_region_t *region) {
  if (region == NULL) return false;
  // Partner: the exchange that began the fill, or ended its madvise.
  uint64_t word = load_acquire(region->word);
  return (word & WORD_FILLING) != 0 && purgeable__fills_here(region, word);
}

purgeable_state_t purgeable_region_state(const purgeable_region_t *region) {
  if (region == NULL) return purgeable_state_idle;
  // Partner: every exchange of the word. 0: a forked child that has not looked at the region before.
  uint64_t word = load_acquire(region->word);
  if ((word & WORD_FILLING) != 0) return purgeable_state_filling;
  if (word == 0 || (word & WORD_DISCARDED) != 0) return purgeable_state_discarded;
  // While it is on offer a count is that of a locker under way.
  if ((word & WORD_ON_OFFER) != 0) return (word & WORD_REFUSED) != 0 ? purgeable_state_idle : purgeable_state_on_offer;
  if (purgeable__word_count(word) == 0 || (word & WORD_OFFERING) != 0) return purgeable_state_idle;
  return (word & WORD_WRITER) != 0 ? purgeable_state_writing : purgeable_state_locked;
}
