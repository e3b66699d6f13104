// SPDX-License-Identifier: MIT
// Streams by number and slabs by name.
#ifndef PURGEABLE_HEAP_STREAM_H
#define PURGEABLE_HEAP_STREAM_H

#include "heap_chunks.h"

#pragma GCC visibility push(hidden)

// Whether there is such a stream.
static inline bool purgeable__is_stream(const purgeable_heap_t *heap, purgeable_stream_t stream) {
  return stream < load_acquire(&heap->stream_count);
}

// The name of the life that a unit has now.
static inline purgeable_slab_t purgeable__slab_name(const purgeable_heap_t *heap, uint32_t unit) {
  uint64_t word = purgeable__slab_word_acquire(purgeable__find_unit(heap, unit).slab);
  return (purgeable_slab_t){unit, purgeable__generation(word)};
}

// The slab that a name means, NULL when its life is over.
static inline purgeable__spot_t purgeable__find_slab(const purgeable_heap_t *heap, purgeable_slab_t slab) {
  purgeable_reference_t reference = {(uint64_t)slab.index * heap->granules_per_slab, slab.generation};
  return purgeable__resolve(heap, reference);
}

#pragma GCC visibility pop

#endif
