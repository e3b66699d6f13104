// SPDX-License-Identifier: MIT
// The lists of slabs that streams are, in order of birth. Heap's mutex held.
#ifndef PURGEABLE_HEAP_LIST_H
#define PURGEABLE_HEAP_LIST_H

#include "heap_chunks.h"

#pragma GCC visibility push(hidden)

// Puts a slab at the young end, or at the old one.
void purgeable__list_insert(purgeable_heap_t *heap, purgeable__spot_t spot, purgeable_stream_t stream, bool is_oldest);
void purgeable__list_remove(purgeable_heap_t *heap, purgeable__spot_t spot);
// Whether the place in the list that `unit` names, a unit number + 1, is one of this stream.
bool purgeable__is_in_stream(purgeable_heap_t *heap, uint32_t unit, purgeable_stream_t stream);

#pragma GCC visibility pop

#endif
