// SPDX-License-Identifier: MIT
// Offering what is idle in a stream. No mutex held.
#ifndef PURGEABLE_HEAP_OVERDUE_H
#define PURGEABLE_HEAP_OVERDUE_H

#include "heap_chunks.h"

#pragma GCC visibility push(hidden)

// How many offers in a row a slab may be locked before its hot elements are moved, and again after as many more.
enum { BUSY_ROUNDS = 8 };

// A round of upkeep: offers what is idle in a stream, and counts slabs that are locked.
int purgeable__offer_stream(purgeable_heap_t *heap, purgeable_stream_t stream, size_t *offered_bytes);
// Closes the page being filled of an open slab that has been idle for long enough, so that it can go on offer.
void purgeable__close_idle_page(purgeable_heap_t *heap, purgeable_stream_t stream, size_t *offered_bytes);
// Where more waits than the limit allows: offers until half of that waits.
void purgeable__offer_overdue(purgeable_heap_t *heap);
static inline void purgeable__offer_if_overdue(purgeable_heap_t *heap) {
  if (load_relaxed(&heap->overdue)) purgeable__offer_overdue(heap);
}

#pragma GCC visibility pop

#endif
