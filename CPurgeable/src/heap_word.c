// SPDX-License-Identifier: MIT
// A slab's life, as transitions of its word.
//
//                    units_take                                   first use or rebirth
//     free (DYING) -------------> open, count 0 ------------------------------------------------------------+
//        ^                          |  allocate: count + 1;  commit or free: count - 1                       |
//        |                          v                                                                        |
//        |                        sealed  <---- seal, when the next element does not fit                     |
//        |                          |  ^                                                                     |
//        |            OFFERING set  |  | OFFERING cleared, waiters woken                                     |
//        |            from count 0  v  |                                                                     |
//        |                        inside madvise (MADV_FREE)     lockers: count + 1, wait, check, rescue     |
//        |                                                                                                   |
//        |    (no wipe: 4)                                                                                   |
//        +--- wipe, generation + 1 <--- DYING set from count 0 and not OFFERING, when no element lives <-----+
//
// Why each step is sound:
//
//  1. A lock cannot be lost to a running madvise: OFFERING is set only by exchanging a word whose count is 0, so whoever counted
//     up before makes that exchange fail, and whoever counts up after sees OFFERING in the very word it exchanged and waits. A
//     rescue done while the madvise ran would be worthless: the kernel may clear the dirty bit after it.
//  2. A slab is not wiped under a lock: DYING, too, is set only from count 0 without OFFERING, and nobody counts up on DYING.
//  3. Whoever drops the last count of an empty sealed slab gives it back. Free decrements the living, then looks at the count;
//     the last unlock decrements the count, then looks at the living. All four are sequentially consistent, so at least one of
//     the two sees the other's step; the exchange that sets DYING lets only one of them through.
//  4. Readers without a lock: the generation is raised before the pages are wiped, and the wipe (MADV_DONTNEED) comes before
//     anything new is written. A reader that copied anything but its own generation's bytes finds the generation changed; and
//     after the wipe no CPU has a stale translation through which old bytes could be read under the new generation. A slab of
//     which the kernel took no page (never on offer, or all pages rescued) is filled again without a wipe: no CPU can have a
//     stale translation of it, and a release fence stands between the new generation and the first new byte (heap_kept.c).

#include "heap_word.h"

int purgeable__pin(purgeable__slab_t *slab, uint32_t generation) {
  uint64_t word = purgeable__slab_word_relaxed(slab);
  for (;;) {
    if (!purgeable__is_of_life(word, generation)) return ESTALE;
    if (purgeable__lock_count(word) == COUNT_MASK) return EOVERFLOW;
    // Pairs with the claims for an offer and for the end (1 and 2 above).
    if (purgeable__slab_word_change(slab, &word, word + 1)) return 0;
  }
}

bool purgeable__note_waiter(purgeable__slab_t *slab, uint64_t word) {
  assert(purgeable__is_offering(word));
  return atomic_compare_exchange_strong(&slab->word, &word, word | WAITERS);
}

void purgeable__sleep_while_offered(purgeable__slab_t *slab, uint64_t word) {
  assert(purgeable__is_offering(word));
  purgeable__wait(&slab->word, (uint32_t)(word | WAITERS));
}

uint32_t purgeable__end_offer(purgeable__slab_t *slab) {
  uint64_t before = atomic_fetch_and(&slab->word, ~(OFFERING | WAITERS));
  assert(purgeable__is_offering(before) && purgeable__slab_word_is_valid(before));
  if (purgeable__has_waiters(before)) purgeable__wake_all(&slab->word);
  return purgeable__generation(before);
}

void purgeable__end_life(purgeable__slab_t *slab, uint32_t generation) {
  assert(purgeable__is_dying(purgeable__slab_word_relaxed(slab)) && purgeable__slab_generation(slab) == generation);
  atomic_store(&slab->word, (uint64_t)purgeable__next_generation(generation) << 32 | DYING);
}

void purgeable__begin_life(purgeable__slab_t *slab, uint32_t generation, uint64_t begin) {
  uint64_t word = (uint64_t)generation << 32 | begin;
  assert(generation != 0 && purgeable__slab_word_is_valid(word));
  // Release: whoever counts up from here on sees the slab's fields of this life.
  store_release(&slab->word, word);
}

void purgeable__reset_life(purgeable__slab_t *slab, uint32_t generation) {
  assert(generation != 0);
  atomic_store(&slab->word, (uint64_t)generation << 32 | DYING);
}
