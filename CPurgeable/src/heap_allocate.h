// SPDX-License-Identifier: MIT
// Room for an element. Where there is none it is refused: making room is above (heap_compact.c).
#ifndef PURGEABLE_HEAP_ALLOCATE_H
#define PURGEABLE_HEAP_ALLOCATE_H

#include "heap_chunks.h"

#pragma GCC visibility push(hidden)

// Takes room for an element of 1 ... PURGEABLE_ELEMENT_BYTES_MAX bytes in a stream that exists. `byte_limit`: of the charged
// bytes of all slabs, as one of the two functions below says it; 0 for none. `*is_fresh`: a slab was begun. 0, ENOMEM, or EAGAIN.
// No mutex held.
int purgeable__allocate_element(purgeable_heap_t *heap, purgeable_stream_t stream, size_t length_bytes, uint64_t tag,
                                uint64_t byte_limit, purgeable_reference_t *reference, void **bytes, bool *is_fresh);

// What allocations may take of a limit: where compaction is left to trims, they leave room for the slab that it copies into.
uint64_t purgeable__limit_of_allocations(const purgeable_heap_t *heap, uint64_t limit);
// The limit for the copies of a compaction that begins now, 0 for none. It needs a slab to copy into before it can give any back.
// Where it is left to trims, allocations have left room for that slab inside of the limit. Else the slab lies beyond the limit,
// or beyond what was held when the limit was lowered.
uint64_t purgeable__limit_of_copies(const purgeable_heap_t *heap);

#pragma GCC visibility pop

#endif
