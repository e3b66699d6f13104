// SPDX-License-Identifier: MIT
// Chunks: where a place lies, what ordinary memory says of it, and the table of chunks.
#ifndef PURGEABLE_HEAP_CHUNKS_H
#define PURGEABLE_HEAP_CHUNKS_H

#include "heap_word.h"

#pragma GCC visibility push(hidden)

// MARK: Finding things

// A place resolved to its slab. `slab` is NULL when the place lies outside of the heap.
typedef struct purgeable__spot {
  purgeable__chunk_t *chunk;
  purgeable__slab_t *slab;
  uint32_t unit;        // in the chunk
  uint32_t granule;     // in the unit
  char *unit_base;      // of the unit: the header of its first granule
} purgeable__spot_t;

// Slabs in front of the chunk, by unit, for each sixteen (in front of those, units 16 to 31 in the same order, and so on):
//
//   9 2 11 4 13 6 15 8 1 10 3 12 5 14 7 0 | chunk
//
// Threads fill neighbouring units at the same time. So slabs that lie side by side, and may share a line of the processor's
// cache, are those of units that are seven apart, or nine.
enum { SLABS_TOGETHER = 16 };

static inline purgeable__slab_t *purgeable__slab_at(const purgeable__chunk_t *chunk, uint32_t unit) {
  uint32_t place = unit / SLABS_TOGETHER * SLABS_TOGETHER + unit * 7 % SLABS_TOGETHER;
  return (purgeable__slab_t *)(uintptr_t)chunk - 1 - place;
}

// Where the header of a unit's first granule is.
static inline char *purgeable__unit_base(const purgeable_heap_t *heap, const purgeable__chunk_t *chunk, uint32_t unit) {
  return load_relaxed(&chunk->elements) + ((size_t)unit << heap->slab_shift);
}

static inline purgeable__spot_t purgeable__find(const purgeable_heap_t *heap, uint64_t place) {
  purgeable__spot_t spot = {0};
  uint64_t number = place >> heap->chunk_place_shift;
  // Acquire, both: pair with the releases that published the chunk, and the table.
  if (number >= load_acquire(&heap->chunk_count)) return spot;
  spot.chunk = load_acquire(&load_acquire(&heap->chunks)[number]);
  spot.unit = (uint32_t)(place >> heap->slab_place_shift) & (heap->units_per_chunk - 1);
  spot.granule = (uint32_t)place & (heap->granules_per_slab - 1);
  spot.slab = purgeable__slab_at(spot.chunk, spot.unit);
  spot.unit_base = purgeable__unit_base(heap, spot.chunk, spot.unit);
  return spot;
}

// The first page of a unit.
static inline char *purgeable__pages_of(const purgeable_heap_t *heap, purgeable__spot_t spot) {
  return spot.unit_base - heap->lead_bytes;
}

// Resolves a reference to the slab in whose present life it was made. NULL `slab` otherwise.
static inline purgeable__spot_t purgeable__resolve(const purgeable_heap_t *heap, purgeable_reference_t reference) {
  purgeable__spot_t spot = purgeable__find(heap, reference.place);
  if (spot.slab == NULL) return spot;
  uint64_t word = purgeable__slab_word_acquire(spot.slab);
  bool valid = reference.generation != 0 && purgeable__generation(word) == reference.generation && !purgeable__is_dying(word);
  if (!valid) spot.slab = NULL;
  return spot;
}

purgeable__spot_t purgeable__find_unit(const purgeable_heap_t *heap, uint32_t unit_number);
uint32_t purgeable__unit_number(const purgeable_heap_t *heap, purgeable__spot_t spot);
uint64_t purgeable__place_of(const purgeable_heap_t *heap, purgeable__spot_t spot);

// MARK: Bits of units

// In use: such a bit is also set for a unit that retired, or whose pages the kernel would not take. Heap's mutex.
static inline bool purgeable__is_used(const purgeable__chunk_t *chunk, uint32_t unit) {
  return (chunk->used[unit / 64] >> (unit % 64)) & 1;
}
static inline void purgeable__mark_used(purgeable__chunk_t *chunk, uint32_t unit, bool used) {
  assert(purgeable__is_used(chunk, unit) != used);
  chunk->used[unit / 64] ^= (uint64_t)1 << (unit % 64);
  chunk->used_count += used ? 1u : ~0u;
}

// Some page of the slab is known to be gone: set, which answers whether it was before, cleared likewise, and looked at.
static inline bool purgeable__set_lossy(purgeable__chunk_t *chunk, uint32_t unit) {
  uint64_t bit = (uint64_t)1 << (unit % 64);
  return (atomic_fetch_or_explicit(&chunk->lossy[unit / 64], bit, memory_order_release) & bit) != 0;
}
static inline bool purgeable__clear_lossy(purgeable__chunk_t *chunk, uint32_t unit) {
  uint64_t bit = (uint64_t)1 << (unit % 64);
  return (atomic_fetch_and_explicit(&chunk->lossy[unit / 64], ~bit, memory_order_relaxed) & bit) != 0;
}
static inline bool purgeable__is_lossy(const purgeable__chunk_t *chunk, uint32_t unit) {
  return (load_acquire(&chunk->lossy[unit / 64]) >> (unit % 64)) & 1;
}
// For callers that look at many slabs, and ask again.
static inline bool purgeable__may_be_lossy(const purgeable__chunk_t *chunk, size_t unit) {
  return (load_relaxed(&chunk->lossy[unit / 64]) >> (unit % 64)) & 1;
}

// In a forked child: nothing is in use.
void purgeable__reset_bits(const purgeable_heap_t *heap, purgeable__chunk_t *chunk);

// MARK: Records of units

static inline _Atomic uint32_t *purgeable__pages_at(const purgeable_heap_t *heap, const purgeable__chunk_t *chunk,
                                                    uint32_t unit) {
  char *record = chunk->records + (size_t)unit * heap->record_bytes;
  return (_Atomic uint32_t *)(void *)(record + heap->granules_per_slab / 8);
}
// Of a heap that keeps tags: a slab's table. Stream's mutex while it is open, constant afterwards, freed when it is claimed. The
// last of the record.
static inline purgeable__tag_t **purgeable__tags_at(const purgeable_heap_t *heap, const purgeable__chunk_t *chunk,
                                                    uint32_t unit) {
  return (purgeable__tag_t **)(void *)(chunk->records + ((size_t)unit + 1) * heap->record_bytes) - 1;
}
// Of a heap that keeps ages: in front of that.
static inline purgeable__ages_t *purgeable__ages_at(const purgeable_heap_t *heap, purgeable__spot_t spot) {
  char *end = spot.chunk->records + ((size_t)spot.unit + 1) * heap->record_bytes;
  return (purgeable__ages_t *)(void *)(end - (heap->keeps_tags ? sizeof(void *) : 0)) - 1;
}

static inline _Atomic uint64_t *purgeable__living_word(const purgeable_heap_t *heap, purgeable__spot_t spot) {
  char *record = spot.chunk->records + (size_t)spot.unit * heap->record_bytes;
  return (_Atomic uint64_t *)(void *)record + spot.granule / 64;
}
static inline bool purgeable__is_living(const purgeable_heap_t *heap, purgeable__spot_t spot) {
  uint64_t bit = (uint64_t)1 << (spot.granule % 64);
  return (load_acquire(purgeable__living_word(heap, spot)) & bit) != 0;
}
static inline size_t purgeable__page_of(const purgeable_heap_t *heap, purgeable__spot_t spot) {
  return ((size_t)spot.granule * PURGEABLE_GRANULE_BYTES) >> heap->page_shift;
}
static inline _Atomic uint32_t *purgeable__page_bytes(const purgeable_heap_t *heap, purgeable__spot_t spot) {
  uint32_t page = (uint32_t)(((size_t)spot.granule * PURGEABLE_GRANULE_BYTES) >> heap->page_shift);
  return purgeable__pages_at(heap, spot.chunk, spot.unit) + page;
}

// MARK: The table

// The kind of a number of the table, and its chunk where something is mapped, else NULL. Heap's mutex held.
static inline purgeable__chunk_kind_t purgeable__chunk_kind(const purgeable_heap_t *heap, uint32_t number) {
  return (purgeable__chunk_kind_t)heap->table->kinds[number];
}
static inline purgeable__chunk_t *purgeable__chunk_at(const purgeable_heap_t *heap, uint32_t number) {
  purgeable__chunk_kind_t kind = purgeable__chunk_kind(heap, number);
  bool is_there = kind == chunk_of_slabs || kind == chunk_alone;
  return is_there ? load_relaxed(&heap->table->entries[number]) : NULL;
}
// Maps a chunk of slabs, or what one large element of `units` units needs. 0 or ENOMEM. Heap's mutex held.
int purgeable__map_chunk(purgeable_heap_t *heap);
int purgeable__map_alone(purgeable_heap_t *heap, uint32_t units, size_t bytes, uint32_t *number);
// Ends the mapping of what lies alone, in two steps: the first answers how much is mapped, and from there on nobody asks the
// kernel about it, nor does a child that is forked in the middle use it. Heap's mutex held. The second needs no mutex, since the
// slab is claimed. 0 or munmap's errno: then `mapped_bytes` has to be put back, under the heap's mutex.
size_t purgeable__begin_unmapping(purgeable__chunk_t *chunk);
int purgeable__unmap_alone(purgeable_heap_t *heap, purgeable__chunk_t *chunk, size_t bytes);
// The mapping of a large element has ended: its numbers can be used again. Heap's mutex held.
void purgeable__forget_alone(purgeable_heap_t *heap, purgeable__chunk_t *chunk);
// Gives back what empty chunks need: mappings that could not be unmapped before, and directories; `at_once`, or those that have
// been empty for two rounds of upkeep. True when some are waiting for that. No mutex held.
bool purgeable__release_empty(purgeable_heap_t *heap, bool at_once);
// Unmaps everything. 0, or the first errno of munmap: then what stays mapped has been wiped.
int purgeable__chunks_destroy(purgeable_heap_t *heap);

#pragma GCC visibility pop

#endif
