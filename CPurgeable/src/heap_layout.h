// SPDX-License-Identifier: MIT
// Where an element's header, table and payload lie, and what proves that its pages are still there.
//
// header (8) | witness table (2 bytes for each further page it touches, padded to 8) | payload | padding to 16
#ifndef PURGEABLE_HEAP_LAYOUT_H
#define PURGEABLE_HEAP_LAYOUT_H

#include "heap_chunks.h"

#pragma GCC visibility push(hidden)

typedef struct purgeable__layout {
  uint32_t first_page;   // in the unit
  uint32_t more_pages;   // that it touches beyond the first
  size_t payload_offset; // from the element's start
  size_t total_bytes;    // from the element's start, padding included
} purgeable__layout_t;

purgeable__layout_t purgeable__layout_over_pages(const purgeable_heap_t *heap, uint32_t granule, size_t length_bytes);
static inline purgeable__layout_t purgeable__layout(const purgeable_heap_t *heap, uint32_t granule, size_t length_bytes) {
  size_t start = (size_t)granule * PURGEABLE_GRANULE_BYTES + heap->lead_bytes;
  size_t total = PURGEABLE_HEADER_BYTES + length_bytes;
  // Nearly all lie within one page, without a table.
  if ((start & (heap->page_bytes - 1)) + total > heap->page_bytes) {
    return purgeable__layout_over_pages(heap, granule, length_bytes);
  }
  return (purgeable__layout_t){
      .first_page = (uint32_t)(start >> heap->page_shift),
      .payload_offset = PURGEABLE_HEADER_BYTES,
      .total_bytes = purgeable__round_up(total, PURGEABLE_GRANULE_BYTES),
  };
}
// The largest element with header that stays within one page.
#define SMALL_TOTAL_MAX ((size_t)1024)

// splitmix64's finaliser over both words: every bit of either reaches every bit of the result.
static inline uint64_t purgeable__mix(uint64_t left, uint64_t right) {
  uint64_t z = left + right * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

// A header: check in the upper half, payload length in the lower. The check mixes place, generation, length and the heap's
// secret, so that payload bytes cannot pose as a header. Never zero, because no length is. In each read: so it is inline.
static inline uint64_t purgeable__header(const purgeable_heap_t *heap, uint64_t place, uint32_t generation,
                                         uint32_t length_bytes) {
  uint64_t identity = ((uint64_t)generation << 32 | length_bytes) ^ heap->secret[1];
  return (purgeable__mix(place ^ heap->secret[0], identity) & 0xFFFFFFFF00000000u) | length_bytes;
}
static inline uint64_t purgeable__header_while_written(uint64_t header) { return header ^ 0xFFFFFFFF00000000u; }
static inline _Atomic uint64_t *purgeable__header_at(purgeable__spot_t spot) {
  return (_Atomic uint64_t *)(void *)(spot.unit_base + (size_t)spot.granule * PURGEABLE_GRANULE_BYTES);
}

static inline _Atomic uint16_t *purgeable__table_at(purgeable__spot_t spot) {
  return (_Atomic uint16_t *)(void *)((char *)purgeable__header_at(spot) + PURGEABLE_HEADER_BYTES);
}

// Witness tables: a word's number within its page + 1, or this for a page of zeros, which needs none. 0 is never valid.
#define WITNESS_ZEROS ((uint16_t)0xFFFF)

// The witness word of the element's page `number` (1 ...), NULL for a page of zeros. `*entry` gets the table's entry; 0 means
// that the table's page is gone.
_Atomic uint64_t *purgeable__witness(const purgeable_heap_t *heap, purgeable__spot_t spot, purgeable__layout_t layout,
                                     uint32_t number, uint16_t *entry);

#pragma GCC visibility pop

#endif
