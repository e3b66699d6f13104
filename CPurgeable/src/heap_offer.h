// SPDX-License-Identifier: MIT
// Offering slabs that are neighbours, and waiting until an offer has ended. No mutex held.
#ifndef PURGEABLE_HEAP_OFFER_H
#define PURGEABLE_HEAP_OFFER_H

#include "heap_chunks.h"

#pragma GCC visibility push(hidden)

// Slabs that one madvise may cover: a locker waits for it, 0.1 ms at 64 slabs of 64 KiB.
enum { PURGEABLE__RUN_MAX = 64 };

// Waits until no offer is running on a slab that the caller holds, or is about to give back.
void purgeable__wait_for_offer(purgeable_heap_t *heap, purgeable__slab_t *slab);
// Offers what of these slabs is idle and not on offer; they have to be neighbours in memory, one run. 0 or madvise's errno.
int purgeable__offer_run(purgeable_heap_t *heap, purgeable__spot_t *spots, size_t count, bool again, size_t *offered_bytes);
// The same for slabs of one chunk, by as few calls as possible: they also cover what lies between and is on offer.
void purgeable__offer_across(purgeable_heap_t *heap, purgeable__spot_t *spots, size_t count);

#pragma GCC visibility pop

#endif
