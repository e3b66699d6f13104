// SPDX-License-Identifier: MIT
// Moving elements so that their slab can be given back. Nothing here makes room: that is above (heap_compact.c).
#ifndef PURGEABLE_HEAP_MOVE_H
#define PURGEABLE_HEAP_MOVE_H

#include "heap_chunks.h"

#pragma GCC visibility push(hidden)

// Where copies go, and which owner decides about them.
typedef struct purgeable__move {
  purgeable_stream_t stream;
  purgeable_moved_t moved;
  void *context;
  // A compaction's (`purgeable__limit_of_copies`); 0: the limit of all allocations, if there is one.
  uint64_t byte_limit;
  // Answer: a copy has begun a slab.
  bool is_fresh;
} purgeable__move_t;

// `purgeable_heap_move` and `purgeable_slab_evacuate`, where memory that is short stays short.
int purgeable__move(purgeable_heap_t *heap, purgeable_reference_t reference, purgeable__move_t *move, purgeable_reference_t *to);
int purgeable__evacuate(purgeable_heap_t *heap, purgeable_slab_t slab, purgeable__move_t *move, uint32_t *staying);

#pragma GCC visibility pop

#endif
