// SPDX-License-Identifier: MIT
// Room for an element. Where there is none it is refused: making room is above (heap_compact.c).
#ifndef PURGEABLE_HEAP_ALLOCATE_H
#define PURGEABLE_HEAP_ALLOCATE_H

#include "heap_chunks.h"

#pragma GCC visibility push(hidden)

// Takes room for an element of 1 ... PURGEABLE_ELEMENT_BYTES_MAX bytes in a stream that exists. `byte_limit`: of the charged
// bytes of all slabs, 0 for none. `*is_fresh`: a slab was begun. 0, ENOMEM, or EAGAIN. No mutex held.
int purgeable__allocate_element(purgeable_heap_t *heap, purgeable_stream_t stream, size_t length_bytes, uint64_t tag,
                                uint64_t byte_limit, purgeable_reference_t *reference, void **bytes, bool *is_fresh);

#pragma GCC visibility pop

#endif
