// SPDX-License-Identifier: MIT
// How an empty slab ends. No mutex held, unless something else is said.
#ifndef PURGEABLE_HEAP_GIVE_BACK_H
#define PURGEABLE_HEAP_GIVE_BACK_H

#include "heap_chunks.h"

#pragma GCC visibility push(hidden)

// True when the slab was given back or is on its way; false when it lives, is locked or is being offered.
bool purgeable__give_back_if_empty(purgeable_heap_t *heap, purgeable__spot_t spot, uint32_t generation);
// Leaves all kept slabs but the last `most` to be wiped: true where there were more. Heap's mutex held.
bool purgeable__drop_kept(purgeable_heap_t *heap, uint32_t most);
// Gives all kept slabs back to the system.
void purgeable__give_back_kept(purgeable_heap_t *heap);
// Wipes what was left to be wiped later, neighbours by one call.
void purgeable__wipe_unwiped(purgeable_heap_t *heap);

#pragma GCC visibility pop

#endif
