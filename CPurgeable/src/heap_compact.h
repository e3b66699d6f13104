// SPDX-License-Identifier: MIT
// Compaction by the heap itself, where its owner gave it a callback.
#ifndef PURGEABLE_HEAP_COMPACT_H
#define PURGEABLE_HEAP_COMPACT_H

#include "heap_structure.h"

#pragma GCC visibility push(hidden)

// Compacts one slab of stream 0, or finds that its elements have to stay. False when no other is worth a try: of all where
// `goes_round`, else of the few that the call looks at.
bool purgeable__compact_step(purgeable_heap_t *heap, bool goes_round);
// Moves what is hot out of the slabs of stream 0 that stay locked too long, where the owner gave a callback.
void purgeable__relieve(purgeable_heap_t *heap);

#pragma GCC visibility pop

#endif
