// SPDX-License-Identifier: MIT
// Regions: locking, unlocking, discarding and refilling, as transitions of one atomic word.
//
//                         lock, unlock                          W: WRITER   O: OFFERING   D: DISCARDED   F: ON_OFFER
//                          .-------.                            n: count
//              create      v       |  last unlock           offer           madvise returns
//   (nothing) --------> [ n > 0 (W) ] -----------> [ idle ] ------> [ O F ] --------------> [ F ]
//                          ^       ^                |    ^                                   | |
//                          |       '----- lock -----'    '-- refused: [ F REFUSED ]          | | lock
//                          |                                                                 | v
//                          |<---------- every witness rescued ----------------------- [ n > 0, F ]
//                          |                                                              |
//                  madvise | returns                                         one is gone  v
//                    [ 1 W O (D) ] <--- refill --- [ D ] <--- madvise returns --- [ O D ] <--- [ n > 0, D ]
//                                                    ^                              last one on the way back
//                                                    '--- madvise returns --- [ O (F) ] <--- discard --- [ idle or F ]
//
// The proof, by transition. "Holder" is who was told intact by a lock and has not unlocked.
//
// A. While OFFERING, ON_OFFER or DISCARDED is set there is no holder. OFFERING is set from count 0 only, or together with the
//    refill's own count; a locker that counts up afterwards waits until it is clear. ON_OFFER is set only together with OFFERING,
//    and a locker leaves with "intact" only after a word without ON_OFFER. DISCARDED is set from count 0, or by a locker from a
//    word that still has ON_OFFER. So every count seen with one of the three belongs to a locker under way, and an unlock that
//    sees one of them is one too many.
// B. A lock is worth something. The locker counted up before it rescued, so from then on nobody can begin a madvise (OFFERING
//    needs count 0), and it waited for the one that ran: the exchange that ends OFFERING comes after madvise has returned
//    (release; the locker's load acquires). A rescue that succeeds has set the dirty bit of a page that was mapped at that moment
//    (the CPU walks the page table again), and the kernel does not take dirty pages that were not offered since. A page without
//    witness is all zeros and was never on offer (region_offer.c). So when every witness was rescued, every page is there and
//    stays until the count is back at 0.
// C. Two lockers rescue at once, one of them for writing; the writer is done first, clears ON_OFFER, and stores a zero over a
//    witness before the other has looked at it. The other finds 0 although nothing was lost. Therefore a lost witness counts only
//    while ON_OFFER is still in the word, tested by the exchange that sets DISCARDED. The two exchanges are in one order: if the
//    one with DISCARDED comes first, the writer's fails, and it stores nothing; if it comes second, it fails. Nobody can set
//    ON_OFFER anew in between, since the slower locker has counted.
// D. A failed rescue has dirtied pages before the one that was gone. When the last locker on its way back brings the count to 0,
//    the same exchange sets OFFERING: no refill can begin before MADV_DONTNEED has handed those pages back. Who wants to refill
//    or discard waits for that (WORD_WAITERS), so it is not told "busy" because of lockers that are told "discarded".
// E. Witnesses fit the content. They are taken by the last unlock while it still counts 1: nobody offers, nobody discards. If a
//    lock for writing overtakes it, the version in the word has changed, its exchange fails, and it looks again. If one for
//    reading does, that one takes over the duty with the WRITER mark. Without WRITER the content is what it was at the last
//    unlock. WRITER goes only with the count reaching 0, after witnesses were taken or with content that is gone or untouched.
// F. Refill publishes nothing old. Until the exchange that ends it the word says WRITER, so no reader without lock begins, and
//    OFFERING, so no locker goes on. MADV_DONTNEED leaves no CPU with a view of an old page (KERNEL: stale reads), and only
//    after it the version rises and DISCARDED goes. A reader from before finds WRITER or another version.
// G. A madvise that fails halfway may have taken pages. What is put back then is [ F REFUSED ]: the next lock looks at all.
// H. Nobody waits for ever. OFFERING spans one madvise batch (2 MiB, or the region), and who clears it wakes all sleepers. A
//    locker that counts sleeps on OFFERING only, so it always goes on and counts down; who waits for lockers on their way back
//    (D) does not count.
//
// In a forked child the word is 0 and becomes [ D ] when it is first looked at; see region_pool.c for the rest of the fork.

#include "region_internal.h"

#if defined(PURGEABLE_TEST_HOOKS)
static _Atomic uint64_t waited_locks;
#define COUNT_WAITED_LOCK() ((void)atomic_fetch_add_explicit(&waited_locks, 1, memory_order_relaxed))
uint64_t purgeable_testing_waited_lock_count(void) { return atomic_load_explicit(&waited_locks, memory_order_relaxed); }
#else
#define COUNT_WAITED_LOCK() ((void)0)
uint64_t purgeable_testing_waited_lock_count(void) { return 0; }
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

static purgeable_outcome_t lock(purgeable_region_t *region, bool for_writing, bool may_wait) {
  if (region == NULL) {
    errno = EINVAL;
    return purgeable_outcome_error;
  }
  uint64_t word = purgeable__word_load(region);
  for (;;) {
    if ((word & WORD_DISCARDED) != 0) return purgeable_outcome_discarded;
    if (!may_wait && (word & WORD_OFFERING) != 0) return purgeable_outcome_busy;
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

purgeable_outcome_t purgeable_region_lock(purgeable_region_t *region) { return lock(region, false, true); }

purgeable_outcome_t purgeable_region_lock_for_writing(purgeable_region_t *region) { return lock(region, true, true); }

purgeable_outcome_t purgeable_region_try_lock(purgeable_region_t *region) { return lock(region, false, false); }

// MARK: Unlock

int purgeable_region_unlock(purgeable_region_t *region) {
  if (region == NULL) return EINVAL;
  bool is_deferred = region->offering == purgeable_offering_deferred;
  bool is_immediate = region->offering == purgeable_offering_immediate;
  uint64_t word = purgeable__word_load(region);
  for (;;) {
    if (!is_held(word)) {
      atomic_fetch_add_explicit(&region->counters->unbalanced_unlocks, 1, memory_order_relaxed);
      return EPERM;
    }
    uint64_t wanted = word - 1;
    if (purgeable__word_count(word) == 1) {
      // E. The exchange below compares the version too.
      if ((word & WORD_WRITER) != 0) purgeable__witnesses_take(region);
      wanted &= ~WORD_WRITER;
      if (is_deferred) wanted |= WORD_QUEUED;
    }
    if (purgeable__word_change(region, &word, wanted)) break;
  }
  if (purgeable__word_count(word) != 1) return 0;
  if (is_deferred && (word & WORD_QUEUED) == 0) purgeable__queue_push(region);
  // A refusal is counted and leaves the content intact; the unlock has succeeded. Busy: somebody has locked it again.
  if (is_immediate) (void)purgeable__region_offer(region);
  return 0;
}

// MARK: Discard and refill

// Claims a region that nobody holds for a madvise: waits until it is settled, then goes from count 0 to `wanted_bits` on top of
// OFFERING. Answers EBUSY when it is held or being locked. `*claimed` is the word before.
static int claim(purgeable_region_t *region, uint64_t wanted_bits, bool even_discarded, uint64_t *claimed) {
  uint64_t word = purgeable__word_load(region);
  for (;;) {
    if (!even_discarded && (word & WORD_DISCARDED) != 0) break;
    if (purgeable__word_unsettled(word)) {
      word = purgeable__word_wait(region, word);
      continue;
    }
    if (purgeable__word_count(word) != 0) return EBUSY;
    assert((wanted_bits & word) == 0);
    if (purgeable__word_change(region, &word, word | WORD_OFFERING | wanted_bits)) break;
  }
  *claimed = word;
  return 0;
}

// G. What has to be put back after a madvise that failed on a region whose word was `before`.
static uint64_t doubt(uint64_t before) {
  return (before & (WORD_DISCARDED | WORD_ON_OFFER)) != 0 ? 0 : WORD_ON_OFFER | WORD_REFUSED;
}

int purgeable_region_discard(purgeable_region_t *region) {
  if (region == NULL) return EINVAL;
  uint64_t before;
  int error = claim(region, 0, false, &before);
  if (error != 0) return error;
  if ((before & WORD_DISCARDED) != 0) return 0;
  error = purgeable__wipe(region->bytes, purgeable__region_bytes(region));
  if (error != 0) {
    purgeable__word_finish(region, 0, doubt(before));
    return error;
  }
  atomic_fetch_add_explicit(&region->counters->own_discards, 1, memory_order_relaxed);
  atomic_fetch_add_explicit(&region->counters->own_discard_bytes, purgeable__region_bytes(region), memory_order_relaxed);
  // Lockers that counted meanwhile find DISCARDED and back off.
  purgeable__word_finish(region, WORD_ON_OFFER | WORD_REFUSED, WORD_DISCARDED);
  return 0;
}

// Ends a refill that did not happen: the count is given back, and WRITER with the last one. Others may have counted meanwhile.
static void undo_refill(purgeable_region_t *region, uint64_t before) {
  uint64_t word = purgeable__word_load(region);
  uint64_t wanted;
  do {
    assert(purgeable__word_count(word) != 0 && (word & WORD_OFFERING) != 0);
    wanted = (word - 1) | doubt(before);
    if (purgeable__word_count(wanted) == 0) wanted &= ~WORD_WRITER;
  } while (!purgeable__word_change(region, &word, wanted));
  purgeable__word_finish(region, 0, 0);
}

int purgeable_region_refill(purgeable_region_t *region) {
  if (region == NULL) return EINVAL;
  uint64_t before;
  int error = claim(region, WORD_WRITER | 1, true, &before);
  if (error != 0) return error;
  if (PURGEABLE_RULE(dontneed_before_refill)) error = purgeable__wipe(region->bytes, purgeable__region_bytes(region));
  if (error != 0) {
    undo_refill(region, before);
    return error;
  }
  // F. The version rises while OFFERING still stands: both exchanges come after the madvise.
  uint64_t word = purgeable__word_load(region);
  while (!purgeable__word_change(region, &word, word + WORD_VERSION_ONE)) continue;
  purgeable__word_finish(region, WORD_DISCARDED | WORD_ON_OFFER | WORD_REFUSED, 0);
  atomic_thread_fence(memory_order_release);
  return 0;
}
