// SPDX-License-Identifier: MIT
// The page that all regions share, and the pages of each region.
#ifndef PURGEABLE_REGION_POOL_H
#define PURGEABLE_REGION_POOL_H

#include "region_structure.h"

#pragma GCC visibility push(hidden)

// Bytes, in whole pages, and (if asked for) number of the regions that live.
uint64_t purgeable__region_total(uint64_t *region_count);
// A region of `bytes` begins, or ends.
void purgeable__region_total_change(size_t bytes, bool is_more);

// The shared page, made at the first call; NULL where no memory is left.
purgeable__shared_t *purgeable__shared_make(void);
// The shared page if there is one. In a forked child it is healed first: everything there was counts as discarded.
purgeable__shared_t *purgeable__shared(void);
void purgeable__pool_lock(purgeable__shared_t *shared);
// The same for a thread that has just given the mutex back: who waits for it comes first.
void purgeable__pool_lock_in_turn(purgeable__shared_t *shared);
void purgeable__pool_unlock(purgeable__shared_t *shared);

// Gives `region`, whose page count and page size are set, its pages, all zeros, and its word. 0 or ENOMEM.
int purgeable__pages_take(purgeable_region_t *region);
// Wipes the pages and takes them back. 0 or an errno: of a munmap, then the pages are wiped and the address space stays; or of
// the wiping, then they keep what they hold and are kept out of use for good.
int purgeable__pages_give(purgeable_region_t *region);

#pragma GCC visibility pop

#endif
