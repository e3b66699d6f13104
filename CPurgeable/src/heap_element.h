// SPDX-License-Identifier: MIT
// An element's life from commit to free.
#ifndef PURGEABLE_HEAP_ELEMENT_H
#define PURGEABLE_HEAP_ELEMENT_H

#include "heap_chunks.h"

#pragma GCC visibility push(hidden)

// Ends every living element of a slab that the caller has pinned. Returns how many there were.
uint32_t purgeable__free_living(purgeable_heap_t *heap, purgeable__spot_t spot, purgeable_slab_t slab);

#pragma GCC visibility pop

#endif
