// SPDX-License-Identifier: MIT
// Regions: locking, unlocking, claiming and discarding, as transitions of one atomic word. Fills: region_fill.c.
//
//                         lock, unlock                          W: WRITER   O: OFFERING   D: DISCARDED   F: ON_OFFER
//                          .-------.                            n: count    L: FILLING
//                          v       |  last unlock           offer           madvise returns
//       publish  .--> [ n > 0 (W) ] ---------------> [ idle ] ------> [ O F ] --------------> [ F ] <--. again: [ O F ]
//                |         ^       ^                |    ^  ^                                  | |     |     ^
//                |         |       '----- lock -----'    |  '-- refused: [ F REFUSED ]         | '-----+-----'
//      create    |         |                             |                                     | lock
//   (nothing) --> [ n > 0 W L ] --- last unlock ---------'                                     v
//                ^  |      '<---------- every witness rescued ---------------------- [ n > 0, F ]
//        madvise |  | abandon                                                             |
//        returns |  '--------------------------------.                        one is gone v
//      [ 1 W L O (D) (F) ] <--- refill --- [ D ] <---+- madvise returns --- [ O D ] <--- [ n > 0, D ]
//                    ^                      ^                                  last one on the way back
//                    '--- refill --- [ idle or F ]  '--- madvise returns --- [ O (F) ] <--- discard --- [ idle or F ]
//
// The proof, by transition. "Holder" is who was told intact by a lock, or who fills, and has not unlocked.
//
// A. While OFFERING, ON_OFFER or DISCARDED is set there is no holder. OFFERING is set from count 0 only, or together with the
//    filler's own count, or by abandon in the place of it; a locker that counts up afterwards waits until it is clear. ON_OFFER
//    is set only together with OFFERING, and a locker leaves with "intact" only after a word without ON_OFFER. DISCARDED is set
//    from count 0, or by abandon from the filler's last count, or by a locker from a word that still has ON_OFFER. So every count
//    seen with one of the three belongs to a locker under way, and an unlock that sees one of them is one too many.
// B. A lock is worth something. The locker counted up before it rescued, so from then on nobody can begin a madvise (OFFERING
//    needs count 0), and it waited for the one that ran: the exchange that ends OFFERING comes after madvise has returned
//    (release; the locker's load acquires). A rescue that succeeds has set the dirty bit of a page that was mapped at that moment
//    (the CPU walks the page table again), and the kernel does not take dirty pages that were not offered since. A page without
//    witness is all zeros and was never on offer (region_batch.c). So when every witness was rescued, every page is there and
//    stays until the count is back at 0.
// C. Two lockers rescue at once, one of them for writing; the writer is done first, clears ON_OFFER, and stores a zero over a
//    witness before the other has looked at it. The other finds 0 although nothing was lost. Therefore a lost witness counts only
//    while ON_OFFER is still in the word, tested by the exchange that sets DISCARDED. The two exchanges are in one order: if the
//    one with DISCARDED comes first, the writer's fails, and it stores nothing; if it comes second, it fails. Nobody can set
//    ON_OFFER anew in between, since the slower locker has counted.
// D. A failed rescue has dirtied pages before the one that was gone. When the last locker on its way back brings the count to 0,
//    the same exchange sets OFFERING: no refill can begin before MADV_DONTNEED has handed those pages back. Who wants to refill
//    or discard waits for that (WORD_WAITERS), so that it gets no EBUSY merely because failed lockers are still backing off.
// E. Witnesses fit the content. They are taken by the last unlock while it still counts 1: nobody offers, nobody discards. If a
//    lock for writing overtakes it, the version in the word has changed, its exchange fails, and it looks again. If one for
//    reading does, that one takes over the duty with the WRITER mark. Without WRITER the content is what it was at the last
//    unlock. WRITER goes only with the count reaching 0, after witnesses were taken or with content that is gone or untouched.
// F. Refill publishes nothing old. The exchange that claims sets WRITER and raises the version, so no reader without lock begins,
//    and one from before finds WRITER or another version; and FILLING, so nobody counts. MADV_DONTNEED leaves no CPU with a view
//    of an old page (docs/kernel.md, stale reads), and only after it DISCARDED goes and the filler writes.
// G. A madvise that fails halfway may have taken pages. What is put back then is [ F REFUSED ]: the next lock looks at all.
// H. Nobody waits for ever. OFFERING spans one madvise batch (2 MiB, or the region; of a region, to the next call of at most
//    2 MiB once a locker counts), and who clears it wakes all sleepers. An offer that ends early leaves [ F REFUSED ], as in G. A
//    locker that counts sleeps on OFFERING only, so it always goes on and counts down; who waits for lockers on their way back
//    (D) does not count. Who waits for a fill does not count either, and waits as long as the program takes to fill: a filler
//    that never ends its fill is an error of the program, which any thread can end by abandon.
// I. Nobody but the filler is told intact over content that is being made. FILLING is set by the exchange that takes the filler's
//    count from 0 (or before anybody knows the region), and every exchange that counts compares the whole word: one that counted
//    before makes the claim fail, one that would count after sees FILLING. It goes with the last count, by the exchange that
//    releases the content; with publish, which does the same and keeps the count; or with abandon, which sets DISCARDED in the
//    same exchange. So a locker that finds neither FILLING nor DISCARDED has acquired content that was finished.
// J. Who is the filler. The number of a thread is never given to another one. It is stored after the claim and before the
//    exchange that ends OFFERING (refill), or before anybody knows the region (create). A thread that reads its own number beside
//    a word with FILLING and without OFFERING has stored it in this fill: had it been in an earlier one, the store of this fill's
//    own thread would have come before the word that was loaded.
//
// In a forked child the word is 0 and becomes [ D ] when it is first looked at; see region_pool.c for the rest of the fork.

#include "region.h"

#include "region_counters.h"
#include "region_filler.h"
#include "region_offer.h"
#include "region_queue.h"
#include "region_witness.h"
#include "region_word.h"

#if defined(PURGEABLE_TEST_HOOKS)
static _Atomic uint64_t waited_locks;
#define COUNT_WAITED_LOCK() ((void)add_relaxed(&waited_locks, 1))
uint64_t purgeable_testing_waited_lock_count(void) { return load_relaxed(&waited_locks); }
static _Atomic uint64_t waited_fills;
#define COUNT_WAITED_FILL() ((void)add_relaxed(&waited_fills, 1))
uint64_t purgeable_testing_waited_fill_count(void) { return load_relaxed(&waited_fills); }
#else
#define COUNT_WAITED_LOCK() ((void)0)
uint64_t purgeable_testing_waited_lock_count(void) { return 0; }
#define COUNT_WAITED_FILL() ((void)0)
uint64_t purgeable_testing_waited_fill_count(void) { return 0; }
#endif

// A: somebody holds a lock. With the wait switched off by a test, lockers hold under a running madvise.
static bool is_held(uint64_t word) {
  uint64_t nobody = WORD_ON_OFFER | WORD_DISCARDED | (PURGEABLE_RULE(wait_for_offer) ? WORD_OFFERING : 0);
  return purgeable__word_count(word) != 0 && (word & nobody) == 0;
}

// MARK: Lock

// D. The caller counts, and DISCARDED is set.
static void back_off(purgeable_region_t *region, uint64_t word) {
  bool is_last;
  uint64_t wanted;
  do {
    assert((word & WORD_DISCARDED) != 0 && purgeable__word_count(word) != 0);
    is_last = purgeable__word_count(word) == 1;
    wanted = word - 1;
    if (is_last) wanted = (wanted & ~WORD_WRITER) | WORD_OFFERING;
  } while (!purgeable__word_change(region, &word, wanted));
  if (!is_last) return;
  int kept = errno;
  // If it fails, the pages that the rescue dirtied stay resident until the refill: memory, not content.
  (void)purgeable__madvise(region->bytes, purgeable__region_bytes(region), MADV_DONTNEED);
  errno = kept;
  purgeable__word_finish(region, 0, 0);
}

// B and C. The caller counts, and nothing runs at the kernel. Answers the word after ON_OFFER has gone from it, by whomever.
static uint64_t rescue(purgeable_region_t *region, uint64_t word) {
  bool is_whole = purgeable__witnesses_rescue(region);
  while ((word & WORD_ON_OFFER) != 0) {
    uint64_t wanted = (word & ~(WORD_ON_OFFER | WORD_REFUSED)) | (is_whole ? 0 : WORD_DISCARDED);
    if (!purgeable__word_change(region, &word, wanted)) continue;
    word = wanted;
    if (!is_whole) purgeable__count_kernel_discard(region);
  }
  return word;
}

// I. Waits until the fill that `*word` shows has ended. False: its content is not there, because it was given up, or because
// another fill has begun since.
static bool wait_for_fill(purgeable_region_t *region, uint64_t *word) {
  uint64_t fill = *word & WORD_FILL_NUMBER;
  COUNT_WAITED_FILL();
  while ((*word & WORD_FILLING) != 0 && (*word & WORD_FILL_NUMBER) == fill) *word = purgeable__word_wait(region, *word);
  return (*word & (WORD_FILLING | WORD_DISCARDED)) == 0;
}

typedef enum entry { entry_open, entry_discarded, entry_given_up, entry_busy } entry_t;

// Whether a lock may count at a word with FILLING or DISCARDED. A fill that is waited for changes `*word`.
static __attribute__((noinline)) entry_t enter(purgeable_region_t *region, purgeable__patience_t patience, uint64_t *word) {
  if ((*word & WORD_FILLING) == 0) return entry_discarded;
  if (!PURGEABLE_RULE(fill_excludes)) return (*word & WORD_DISCARDED) != 0 ? entry_discarded : entry_open;
  // A signal handler that interrupts the filler is not the filler, though it has its thread; and it may not touch its number.
  bool counts_more = purgeable__word_count(*word) != PURGEABLE_LOCK_COUNT_MAX;
  if (patience == purgeable__patience_none) return counts_more ? entry_busy : entry_open;
  if (purgeable__fills_here(region, *word)) return entry_open;
  if (patience != purgeable__patience_fill) return entry_busy;
  return wait_for_fill(region, word) ? entry_open : entry_given_up;
}

// The answer to a lock that was not counted.
static purgeable_outcome_t refused(entry_t entry, bool *given_up) {
  if (entry == entry_busy) return purgeable_outcome_busy;
  if (given_up != NULL) *given_up = entry == entry_given_up;
  return purgeable_outcome_discarded;
}

static inline __attribute__((always_inline)) purgeable_outcome_t lock(purgeable_region_t *region, bool for_writing,
                                                                      purgeable__patience_t patience, bool *given_up) {
  if (region == NULL) {
    errno = EINVAL;
    return purgeable_outcome_error;
  }
  uint64_t word = purgeable__word_load(region);
  for (;;) {
    if ((word & (WORD_DISCARDED | WORD_FILLING)) != 0) {
      entry_t entry = enter(region, patience, &word);
      if (entry != entry_open) return refused(entry, given_up);
    }
    if (patience == purgeable__patience_none && (word & WORD_OFFERING) != 0) return purgeable_outcome_busy;
    if (purgeable__word_count(word) == PURGEABLE_LOCK_COUNT_MAX) {
      errno = EOVERFLOW;
      return purgeable_outcome_error;
    }
    if (purgeable__word_count(word) == 0 && !purgeable__may_lock(region, purgeable__region_bytes(region))) {
      errno = EAGAIN;
      return purgeable_outcome_error;
    }
    uint64_t wanted = word + 1;
    if (for_writing) wanted = (wanted + WORD_VERSION_ONE) | WORD_WRITER;
    if (purgeable__word_change(region, &word, wanted)) {
      word = wanted;
      break;
    }
  }
  if ((word & WORD_OFFERING) != 0) COUNT_WAITED_LOCK();
  while ((word & WORD_OFFERING) != 0 && PURGEABLE_RULE(wait_for_offer)) word = purgeable__word_wait(region, word);
  if ((word & WORD_ON_OFFER) != 0) word = rescue(region, word);
  if ((word & WORD_DISCARDED) != 0) {
    back_off(region, word);
    return purgeable_outcome_discarded;
  }
  // What the holder stores must not be seen before the version and WRITER, nor before ON_OFFER has gone (C). A release exchange
  // alone does not hold back later stores. Partner: the acquire fences in region_read.c.
  if (for_writing) atomic_thread_fence(memory_order_release);
  return purgeable_outcome_intact;
}

purgeable_outcome_t purgeable_region_lock(purgeable_region_t *region) {
  return lock(region, false, purgeable__patience_madvise, NULL);
}

purgeable_outcome_t purgeable_region_lock_for_writing(purgeable_region_t *region) {
  return lock(region, true, purgeable__patience_madvise, NULL);
}

purgeable_outcome_t purgeable_region_try_lock(purgeable_region_t *region) {
  return lock(region, false, purgeable__patience_none, NULL);
}

purgeable_outcome_t purgeable__region_lock(purgeable_region_t *region, bool for_writing, purgeable__patience_t patience,
                                           bool *given_up) {
  return lock(region, for_writing, patience, given_up);
}

// MARK: Unlock

// What follows the unlock that brought the count to 0. `word`: the word before that unlock.
static int became_idle(purgeable_region_t *region, uint64_t word) {
  // A refusal is counted and leaves the content intact; the unlock has succeeded. Busy: somebody has locked it again.
  if (region->offering == purgeable_offering_immediate) (void)purgeable__region_offer(region);
  if (region->offering == purgeable_offering_deferred && (word & WORD_QUEUED) == 0) purgeable__queue_push(region);
  return 0;
}

// The last unlock where somebody wrote: witnesses (E), and the end of a fill (I).
static __attribute__((noinline)) int unlock_last_writer(purgeable_region_t *region, uint64_t word) {
  _Atomic uint64_t *address = region->word;
  for (;;) {
    if (!is_held(word)) {
      add_relaxed(&region->counters->unbalanced_unlocks, 1);
      return EPERM;
    }
    uint64_t wanted = word - 1;
    bool is_last = purgeable__word_count(word) == 1;
    if (is_last) {
      // E. The exchange below compares the version too.
      if ((word & WORD_WRITER) != 0) purgeable__witnesses_take(region);
      wanted &= ~(WORD_WRITER | WORD_FILLING);
      if ((word & WORD_FILLING) != 0) wanted &= ~WORD_WAITERS;
      if (region->offering == purgeable_offering_deferred) wanted |= WORD_QUEUED;
    }
    if (!purgeable__word_change(region, &word, wanted)) continue;
    if (!is_last) return 0;
    int kept = errno;
    if ((word & WORD_WAITERS & ~wanted) != 0) purgeable__wake_all(address);
    errno = kept;
    return became_idle(region, word);
  }
}

int purgeable_region_unlock(purgeable_region_t *region) {
  if (region == NULL) return EINVAL;
  bool is_deferred = region->offering == purgeable_offering_deferred;
  uint64_t word = purgeable__word_load(region);
  for (;;) {
    if (!is_held(word)) {
      add_relaxed(&region->counters->unbalanced_unlocks, 1);
      return EPERM;
    }
    uint64_t wanted = word - 1;
    if (purgeable__word_count(word) == 1) {
      if ((word & WORD_WRITER) != 0) return unlock_last_writer(region, word);
      if (is_deferred) wanted |= WORD_QUEUED;
    }
    if (purgeable__word_change(region, &word, wanted)) break;
  }
  return purgeable__word_count(word) == 1 ? became_idle(region, word) : 0;
}

// MARK: Claim and discard

int purgeable__region_claim(purgeable_region_t *region, purgeable__claim_t kind, uint64_t *before) {
  uint64_t word = purgeable__word_load(region);
  for (;;) {
    if ((word & WORD_FILLING) != 0) return EBUSY;
    if (kind == purgeable__claim_discard && (word & WORD_DISCARDED) != 0) return EALREADY;
    if (purgeable__word_unsettled(word)) {
      word = purgeable__word_wait(region, word);
      continue;
    }
    if (kind == purgeable__claim_fill_discarded && (word & WORD_DISCARDED) == 0 && PURGEABLE_RULE(fill_only_discarded)) {
      return EALREADY;
    }
    if (purgeable__word_count(word) != 0) return EBUSY;
    uint64_t wanted = word | WORD_OFFERING;
    // F, I.
    if (kind != purgeable__claim_discard) {
      wanted = (purgeable__word_next_fill(wanted) + WORD_VERSION_ONE + 1) | WORD_WRITER | WORD_FILLING;
    }
    if (purgeable__word_change(region, &word, wanted)) break;
  }
  *before = word;
  return 0;
}

int purgeable_region_discard(purgeable_region_t *region) {
  if (region == NULL) return EINVAL;
  uint64_t before;
  int error = purgeable__region_claim(region, purgeable__claim_discard, &before);
  if (error != 0) return error == EALREADY ? 0 : error;
  error = purgeable__wipe(region->bytes, purgeable__region_bytes(region));
  if (error != 0) {
    purgeable__word_finish(region, 0, purgeable__word_doubt(before));
    return error;
  }
  add_relaxed(&region->counters->own_discards, 1);
  add_relaxed(&region->counters->given_back_bytes, purgeable__region_bytes(region));
  // Lockers that counted meanwhile find DISCARDED and back off.
  purgeable__word_finish(region, WORD_ON_OFFER | WORD_REFUSED, WORD_DISCARDED);
  return 0;
}
