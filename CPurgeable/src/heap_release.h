// SPDX-License-Identifier: MIT
// Letting go of a slab: the last count offers it or gives it back; sealing; and what is known to be gone.
#ifndef PURGEABLE_HEAP_RELEASE_H
#define PURGEABLE_HEAP_RELEASE_H

#include "heap_chunks.h"

#pragma GCC visibility push(hidden)

// Gives a count back. The last one may give the slab back or offer it, by system calls. False: there was no count to give back.
bool purgeable__release(purgeable_heap_t *heap, purgeable__spot_t spot);
// Gives a count back without a system call or a mutex, for reads in signal handlers. What a last count leaves is booked as
// waiting; later calls and the upkeep do the rest.
void purgeable__release_quietly(purgeable_heap_t *heap, purgeable__slab_t *slab);
// Seals an open slab. The stream's mutex held, not the heap's.
void purgeable__seal(purgeable_heap_t *heap, purgeable__spot_t spot);
// Seals it, if it is still this open slab of its stream. No mutex held.
void purgeable__seal_if_open(purgeable_heap_t *heap, purgeable_slab_t slab, purgeable__spot_t spot);
// Records that a page is gone. Returns false when the slab's life was over.
bool purgeable__mark_lost(purgeable_heap_t *heap, purgeable__spot_t spot, uint32_t generation, size_t page);

#pragma GCC visibility pop

#endif
