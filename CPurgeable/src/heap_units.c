// SPDX-License-Identifier: MIT
// Chunks and units: where slabs and large runs get their address space from.
//
//   chunks[0]  |u|u|u|u|...|u|        a mapping of chunk_bytes
//   chunks[1]  |u|u|u|u|...|u|
//   chunks[2..4]  |u|u|...            a mapping of three chunks, for one element larger than a chunk
//
// Mappings live as long as the heap: per-range flags would split them, and a reader without a lock may look at any place at any
// time. Units are taken from the lowest address on, so a heap that shrank stays dense.

#include "heap_internal.h"

purgeable__spot_t purgeable__find_unit(const purgeable_heap_t *heap, uint32_t unit_number) {
  return purgeable__find(heap, (uint64_t)unit_number * heap->granules_per_slab);
}

uint64_t purgeable__place_of(const purgeable_heap_t *heap, purgeable__spot_t spot) {
  size_t offset = (size_t)(spot.unit_base - spot.chunk->base) + (size_t)spot.granule * PURGEABLE_GRANULE_BYTES;
  // In a mapping of several chunks, `base` is that of the entry the place was found through.
  for (uint32_t number = spot.chunk->span_first;; number++) {
    assert(number < spot.chunk->span_first + spot.chunk->span_count);
    if (atomic_load_explicit(&heap->chunks[number], memory_order_relaxed) != spot.chunk) continue;
    return (((uint64_t)number << heap->chunk_shift) + offset) / PURGEABLE_GRANULE_BYTES;
  }
}

uint32_t purgeable__unit_number(const purgeable_heap_t *heap, purgeable__spot_t spot) {
  return (uint32_t)(purgeable__place_of(heap, spot) / heap->granules_per_slab);
}

// MARK: Mapping

// The directory of one chunk: one mapping, touched unit by unit.
enum { CHUNK_HEAD_BYTES = 128 };
static_assert(sizeof(purgeable__chunk_t) <= CHUNK_HEAD_BYTES, "the chunk stands at the beginning of its directory");

static size_t directory_bytes(const purgeable_heap_t *heap) {
  size_t units = heap->units_per_chunk;
  size_t bits = purgeable__round_up(units, 64) / 8;
  size_t for_units = units * (sizeof(purgeable__slab_t) + heap->granules_per_slab / 8 + heap->pages_per_slab * 4);
  return CHUNK_HEAD_BYTES + for_units + 2 * bits;
}

static purgeable__chunk_t *make_chunk(purgeable_heap_t *heap, char *base, uint32_t first, uint32_t count) {
  int error;
  char *directory = purgeable__map_ordinary(directory_bytes(heap), &error);
  if (directory == NULL) return NULL;
  purgeable__chunk_t *chunk = (purgeable__chunk_t *)(void *)directory;
  directory += CHUNK_HEAD_BYTES;
  size_t units = heap->units_per_chunk;
  size_t bits = purgeable__round_up(units, 64) / 8;
  chunk->base = base;
  chunk->slabs = (purgeable__slab_t *)(void *)directory;
  directory += units * sizeof(purgeable__slab_t);
  chunk->living = (_Atomic uint64_t *)(void *)directory;
  directory += units * heap->granules_per_slab / 8;
  chunk->lossy = (_Atomic uint64_t *)(void *)directory;
  chunk->used = (uint64_t *)(void *)(directory + bits);
  chunk->page_bytes = (_Atomic uint32_t *)(void *)(directory + 2 * bits);
  chunk->span_first = first;
  chunk->span_count = count;
  return chunk;
}

static void destroy_chunk(purgeable_heap_t *heap, purgeable__chunk_t *chunk) {
  (void)purgeable__unmap(chunk, directory_bytes(heap));
}

// Maps `count` chunks as one. 0 or ENOMEM; on failure nothing is left behind.
static int map_chunks(purgeable_heap_t *heap, uint32_t count) {
  uint32_t first = atomic_load_explicit(&heap->chunk_count, memory_order_relaxed);
  if (count > CHUNK_COUNT_MAX - first || ((uint64_t)first + count) * heap->units_per_chunk >= UINT32_MAX) return ENOMEM;
  int error;
  char *base = purgeable__map(heap->chunk_bytes * count, heap->page_bytes, "purgeable heap", &error);
  if (base == NULL) return ENOMEM;
  for (uint32_t i = 0; i < count; i++) {
    purgeable__chunk_t *chunk = make_chunk(heap, base + (size_t)i * heap->chunk_bytes, first, count);
    if (chunk == NULL) {
      while (i-- > 0) destroy_chunk(heap, atomic_load_explicit(&heap->chunks[first + i], memory_order_relaxed));
      (void)purgeable__unmap(base, heap->chunk_bytes * count);
      return ENOMEM;
    }
    atomic_store_explicit(&heap->chunks[first + i], chunk, memory_order_relaxed);
  }
  atomic_fetch_add_explicit(&heap->mapped_bytes, heap->chunk_bytes * count, memory_order_relaxed);
  atomic_fetch_add_explicit(&heap->ordinary_bytes, (uint64_t)CHUNK_HEAD_BYTES * count, memory_order_relaxed);
  // Release: whoever sees the count sees the chunks.
  atomic_store_explicit(&heap->chunk_count, first + count, memory_order_release);
  return 0;
}

void purgeable__chunks_destroy(purgeable_heap_t *heap) {
  uint32_t count = atomic_load_explicit(&heap->chunk_count, memory_order_relaxed);
  for (uint32_t number = 0; number < count;) {
    purgeable__chunk_t *first = atomic_load_explicit(&heap->chunks[number], memory_order_relaxed);
    uint32_t span = first->span_count;
    (void)purgeable__unmap(first->base, heap->chunk_bytes * span);
    for (uint32_t i = 0; i < span; i++) {
      purgeable__chunk_t *chunk = atomic_load_explicit(&heap->chunks[number + i], memory_order_relaxed);
      for (uint32_t unit = 0; unit < chunk->high_water; unit++) free(chunk->slabs[unit].tags);
      destroy_chunk(heap, chunk);
    }
    number += span;
  }
}

// MARK: Taking and returning units

// A unit that retired, or whose pages the kernel would not take, keeps its `used` bit, so only free ones are ever found here.
static bool is_used(const purgeable__chunk_t *chunk, uint32_t unit) { return (chunk->used[unit / 64] >> (unit % 64)) & 1; }

static bool find_run(const purgeable_heap_t *heap, const purgeable__chunk_t *chunk, uint32_t count, uint32_t *found) {
  uint32_t run = 0;
  for (uint32_t unit = 0; unit < heap->units_per_chunk; unit++) {
    if (run == 0 && unit % 64 == 0 && chunk->used[unit / 64] == ~(uint64_t)0) {
      unit += 63;
      continue;
    }
    run = is_used(chunk, unit) ? 0 : run + 1;
    if (run == count) {
      *found = unit + 1 - count;
      return true;
    }
  }
  return false;
}

static bool find_units(purgeable_heap_t *heap, uint32_t count, uint32_t *chunk_number, uint32_t *unit) {
  uint32_t chunk_count = atomic_load_explicit(&heap->chunk_count, memory_order_relaxed);
  if (count > heap->units_per_chunk) {
    // A run over several chunks needs a mapping of its own size or larger, wholly free.
    uint32_t needed = (count + heap->units_per_chunk - 1) / heap->units_per_chunk;
    for (uint32_t number = 0; number < chunk_count;) {
      purgeable__chunk_t *first = atomic_load_explicit(&heap->chunks[number], memory_order_relaxed);
      uint32_t used = 0;
      for (uint32_t i = 0; i < first->span_count; i++) {
        used += atomic_load_explicit(&heap->chunks[number + i], memory_order_relaxed)->used_count;
      }
      if (first->span_count >= needed && used == 0) {
        *chunk_number = number;
        *unit = 0;
        return true;
      }
      number += first->span_count;
    }
    return false;
  }
  for (uint32_t number = count == 1 ? heap->first_chunk_with_room : 0; number < chunk_count; number++) {
    purgeable__chunk_t *chunk = atomic_load_explicit(&heap->chunks[number], memory_order_relaxed);
    if (heap->units_per_chunk - chunk->used_count >= count && find_run(heap, chunk, count, unit)) {
      if (count == 1) heap->first_chunk_with_room = number;
      *chunk_number = number;
      return true;
    }
  }
  return false;
}

// One unit into or out of use; a first use is counted as ordinary memory.
static void set_used(purgeable_heap_t *heap, purgeable__chunk_t *chunk, uint32_t unit, bool used) {
  uint64_t bit = (uint64_t)1 << (unit % 64);
  assert(is_used(chunk, unit) != used);
  chunk->used[unit / 64] ^= bit;
  chunk->used_count += used ? 1u : ~0u;
  if (used && unit >= chunk->high_water) {
    chunk->high_water = unit + 1;
    uint64_t bytes = sizeof(purgeable__slab_t) + heap->granules_per_slab / 8 + heap->pages_per_slab * 4;
    atomic_fetch_add_explicit(&heap->ordinary_bytes, bytes, memory_order_relaxed);
  }
}

// A random start makes generations hard to guess: a forged reference has to hit 32 bits.
static uint32_t first_generation(const purgeable_heap_t *heap, uint64_t place) {
  uint64_t mixed = purgeable__header(heap, place, 0x5EED, 1);
  uint32_t generation = (uint32_t)(mixed >> 32);
  if (!PURGEABLE_RULE(wide_generations)) generation &= 3;
  return generation == 0 ? 1 : generation;
}

int purgeable__units_take(purgeable_heap_t *heap, uint32_t count, purgeable__slab_state_t state, purgeable__spot_t *spot) {
  uint32_t number = 0, unit = 0;
  if (!find_units(heap, count, &number, &unit)) {
    uint32_t chunks = (count + heap->units_per_chunk - 1) / heap->units_per_chunk;
    int error = map_chunks(heap, chunks);
    if (error != 0) return error;
    if (!find_units(heap, count, &number, &unit)) return ENOMEM;
  }
  uint64_t first = (uint64_t)number * heap->units_per_chunk + unit;
  for (uint32_t i = 0; i < count; i++) {
    purgeable__spot_t one = purgeable__find_unit(heap, (uint32_t)(first + i));
    set_used(heap, one.chunk, one.unit, true);
    purgeable__slab_t *slab = one.slab;
    uint64_t word = atomic_load_explicit(&slab->word, memory_order_relaxed);
    if (slab->first_generation == 0) {
      slab->first_generation = first_generation(heap, (first + i) * heap->granules_per_slab);
      word = (uint64_t)slab->first_generation << 32;
    }
    atomic_store_explicit(&slab->unit_count, i == 0 ? count : 1, memory_order_relaxed);
    atomic_store_explicit(&slab->used_granules, 0, memory_order_relaxed);
    atomic_store_explicit(&slab->offer_count, 0, memory_order_relaxed);
    atomic_store_explicit(&slab->spans_pages, state == slab_large, memory_order_relaxed);
    atomic_store_explicit(&slab->stuck_count, 0, memory_order_relaxed);
    atomic_store_explicit(&slab->state, (uint8_t)(i == 0 ? state : slab_continuation), memory_order_release);
    // A large slab is sealed and without living elements from birth: its writer's count is what keeps it from being given back.
    uint64_t begin = i != 0 ? DYING : state == slab_large ? 1 : 0;
    // Release: whoever counts up from here on sees the slab's fields of this life. Continuations stay claimed.
    atomic_store_explicit(&slab->word, (word & ~(DYING | OFFERING | WAITERS | COUNT_MASK)) | begin, memory_order_release);
    if (i == 0) *spot = one;
  }
  return 0;
}

void purgeable__units_return(purgeable_heap_t *heap, purgeable__spot_t spot, uint32_t count) {
  uint32_t first = purgeable__unit_number(heap, spot);
  for (uint32_t i = 0; i < count; i++) {
    purgeable__spot_t one = purgeable__find_unit(heap, first + i);
    set_used(heap, one.chunk, one.unit, false);
    atomic_store_explicit(&one.slab->state, slab_free, memory_order_relaxed);
  }
  uint32_t number = (uint32_t)(((uint64_t)first << heap->slab_shift) >> heap->chunk_shift);
  if (number < heap->first_chunk_with_room) heap->first_chunk_with_room = number;
}
