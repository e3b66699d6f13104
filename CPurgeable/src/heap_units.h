// SPDX-License-Identifier: MIT
// Units: where slabs and large runs get their room from.
#ifndef PURGEABLE_HEAP_UNITS_H
#define PURGEABLE_HEAP_UNITS_H

#include "heap_chunks.h"

#pragma GCC visibility push(hidden)

// Takes `count` neighbouring units into use, mapping a chunk where none has room, and begins a life for the first of them.
// `bytes`: what of them will be used. 0 or ENOMEM. Heap's mutex held.
int purgeable__units_take(purgeable_heap_t *heap, uint32_t count, size_t bytes, purgeable__slab_state_t state,
                          purgeable__spot_t *spot);
// Begins the next life of a slab that is kept, in its pages as they are. Heap's mutex held.
void purgeable__units_begin_again(purgeable_heap_t *heap, purgeable__spot_t spot);
// Makes units available again. Heap's mutex held; their pages read as zeros.
void purgeable__units_return(purgeable_heap_t *heap, purgeable__spot_t spot, uint32_t count);

#pragma GCC visibility pop

#endif
