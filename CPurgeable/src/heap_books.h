// SPDX-License-Identifier: MIT
// The heap's books of what waits for an offer, and of what is known to be gone.
#ifndef PURGEABLE_HEAP_BOOKS_H
#define PURGEABLE_HEAP_BOOKS_H

#include "heap_slab.h"

#pragma GCC visibility push(hidden)

static inline bool purgeable__is_waiting(const purgeable__slab_t *slab) { return load_relaxed(&slab->waiting) != 0; }
// How much of a slab waits; and whether it waits for its first offer.
uint64_t purgeable__bytes_waiting(const purgeable_heap_t *heap, purgeable__slab_t *slab, bool *is_unoffered);
// Whether more than this share of what may wait does: for a first offer, of this heap or of all together where some of it is
// this one's; or of this heap in all. 1: the whole, 2: half of it.
bool purgeable__waits_beyond(const purgeable_heap_t *heap, uint64_t share);
// Whether what was just booked is to be offered at once.
static inline bool purgeable__nothing_may_wait(const purgeable_heap_t *heap) {
  return load_relaxed(&heap->overdue) && purgeable__pending_byte_limit() == 0;
}
// Books the pages of a sealed slab that are not on offer. The caller has the slab pinned, or the heap's mutex. `quietly`: without
// a system call; more than the limit is found out by the next unlock or store.
void purgeable__begin_waiting(purgeable_heap_t *heap, purgeable__slab_t *slab, bool quietly);
// The slab does not wait any more. The caller has claimed it, for an offer or for giving back.
void purgeable__stop_waiting(purgeable_heap_t *heap, purgeable__slab_t *slab);
// The same for a slab that is locked. Heap's mutex held, and the slab in a stream.
void purgeable__stop_waiting_if_held(purgeable_heap_t *heap, purgeable__slab_t *slab);
// Books `pages` as the number of a slab's pages that are gone; never fewer than before. The slab's life is held.
void purgeable__book_lost(purgeable_heap_t *heap, purgeable__slab_t *slab, uint32_t pages);
void purgeable__forget_lost(purgeable_heap_t *heap, purgeable__slab_t *slab);

// Sums of the tallies: the payload of living elements, their number, and what is being written. One tally may be below 0, where
// elements ended on another processor than they began on. So may a sum for a moment, while other threads count; it reads as 0
// then.
uint64_t purgeable__payload_bytes(const purgeable_heap_t *heap);
uint64_t purgeable__element_count(const purgeable_heap_t *heap);
uint64_t purgeable__written_bytes(const purgeable_heap_t *heap);

// Subtracts an amount from a counter, which never falls below 0.
static inline void purgeable__take_off(_Atomic uint64_t *counter, uint64_t amount) {
  uint64_t before = load_relaxed(counter);
  while (!atomic_compare_exchange_weak_explicit(counter, &before, before < amount ? 0 : before - amount, memory_order_relaxed,
                                                memory_order_relaxed)) {
  }
}

#pragma GCC visibility pop

#endif
