// SPDX-License-Identifier: MIT
// Which chunk has room for a run of units: a tree over the numbers of the table. Heap's mutex held, in all of it.
#ifndef PURGEABLE_HEAP_ROOMS_H
#define PURGEABLE_HEAP_ROOMS_H

#include "heap_structure.h"

#pragma GCC visibility push(hidden)

// The room of a number: no free run of units in the chunk is longer. 0 for what is no chunk of slabs.
uint32_t purgeable__room(const purgeable_heap_t *heap, uint32_t number);
void purgeable__set_room(purgeable_heap_t *heap, uint32_t number, uint32_t units);
// The lowest number with room for `count` units. False where there is none.
bool purgeable__find_room(const purgeable_heap_t *heap, uint32_t count, uint32_t *number);
// Sets the rooms of a table with those of a smaller one, or (a forked child) with all that the chunks of slabs could have.
void purgeable__copy_rooms(purgeable__table_t *table, const purgeable__table_t *from);
void purgeable__reset_rooms(purgeable_heap_t *heap);
// For tests: whether each node is what its children say.
bool purgeable__rooms_are_valid(const purgeable_heap_t *heap);

#pragma GCC visibility pop

#endif
