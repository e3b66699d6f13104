// SPDX-License-Identifier: MIT
// Offering slabs that are neighbours, and waiting until an offer has ended. No mutex held.
#ifndef PURGEABLE_HEAP_OFFER_H
#define PURGEABLE_HEAP_OFFER_H

#include "heap_chunks.h"

#pragma GCC visibility push(hidden)

// Slabs that one madvise may cover: a locker waits for it, 0.1 ms at 64 slabs of 64 KiB.
enum { PURGEABLE__RUN_MAX = 64 };
// How many pages in a row that are on offer one call goes over to reach the next that are not: each costs a thirtieth of a call,
// or less. The kernel forgets that they were used since the last offer.
enum { PURGEABLE__GAP_PAGES = 64 };

// How many slabs are looked at before the heap's mutex is given back.
enum { PURGEABLE__SLABS_AT_A_TIME = 1024 };

// Waits until no offer is running on a slab that the caller holds, or is about to give back.
void purgeable__wait_for_offer(purgeable_heap_t *heap, purgeable__slab_t *slab);
// Offers what of these slabs is idle and not on offer, or with `again` all of it; they have to be neighbours in memory, one run.
// 0 or madvise's errno.
int purgeable__offer_run(purgeable_heap_t *heap, purgeable__spot_t *spots, size_t count, bool again, size_t *offered_bytes);

#pragma GCC visibility pop

#endif
