// SPDX-License-Identifier: MIT
// Entering a heap: in a forked child it is put right first.
#ifndef PURGEABLE_HEAP_FORK_H
#define PURGEABLE_HEAP_FORK_H

#include "heap_chunks.h"

#pragma GCC visibility push(hidden)

void purgeable__heal(purgeable_heap_t *heap);
// Every public function but the reads begins with this: in a forked child the heap is put right first.
static inline void purgeable__enter(purgeable_heap_t *heap) {
  if (load_acquire(&heap->control->alive) != 1) purgeable__heal(heap);
}
// Whether the heap lives in the process that made it, or has been put right in this one: for reads, which put nothing right.
static inline bool purgeable__is_put_right(const purgeable_heap_t *heap) { return load_acquire(&heap->control->alive) == 1; }

#pragma GCC visibility pop

#endif
