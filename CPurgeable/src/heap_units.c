// SPDX-License-Identifier: MIT
// Units: where slabs and large runs get their room from. Taken from the lowest address on, so a heap that shrank stays dense.

#include "heap_units.h"

#include "heap_layout.h"

static bool find_run(const purgeable_heap_t *heap, const purgeable__chunk_t *chunk, uint32_t count, uint32_t *found) {
  assert(count != 0 && count <= heap->units_per_chunk);
  uint32_t run = 0;
  for (uint32_t unit = 0; unit < heap->units_per_chunk; unit++) {
    if (run == 0 && purgeable__all_used(chunk, unit)) {
      unit += 63;
      continue;
    }
    run = purgeable__is_used(chunk, unit) ? 0 : run + 1;
    if (run == count) {
      *found = unit + 1 - count;
      return true;
    }
  }
  return false;
}

static bool find_units(purgeable_heap_t *heap, uint32_t count, uint32_t *chunk_number, uint32_t *unit) {
  uint32_t chunk_count = load_relaxed(&heap->chunk_count);
  for (uint32_t number = count == 1 ? heap->first_chunk_with_room : 0; number < chunk_count; number++) {
    if (purgeable__chunk_kind(heap, number) != chunk_of_slabs) continue;
    purgeable__chunk_t *chunk = purgeable__chunk_at(heap, number);
    if (heap->units_per_chunk - chunk->used_count < count || chunk->no_run_of <= count) continue;
    if (!find_run(heap, chunk, count, unit)) {
      chunk->no_run_of = count;
      continue;
    }
    if (count == 1) heap->first_chunk_with_room = number;
    *chunk_number = number;
    return true;
  }
  return false;
}

// One unit into or out of use; a first use is counted as ordinary memory.
static void set_used(purgeable_heap_t *heap, purgeable__chunk_t *chunk, uint32_t unit, bool used) {
  assert(unit < heap->units_per_chunk);
  purgeable__mark_used(chunk, unit, used);
  if (!used) chunk->no_run_of = UINT32_MAX;
  uint32_t high = load_relaxed(&chunk->high_water);
  if (used && unit >= high) {
    store_relaxed(&chunk->high_water, unit + 1);
    uint64_t bytes = (unit + 1 - high) * (sizeof(purgeable__slab_t) + heap->record_bytes);
    add_relaxed(&heap->ordinary_bytes, bytes);
  }
}

// A random start makes generations hard to guess: a forged reference has to hit 32 bits.
static uint32_t first_generation(const purgeable_heap_t *heap, uint64_t place) {
  uint64_t mixed = purgeable__header(heap, place, 0x5EED, 1);
  uint32_t generation = (uint32_t)(mixed >> 32);
  if (!PURGEABLE_RULE(wide_generations)) generation &= 3;
  return generation == 0 ? 1 : generation;
}

// The generation after `lives` lives, 0 left out.
static uint32_t later_generation(uint32_t first, uint32_t lives) {
  assert(first != 0);
  if (!PURGEABLE_RULE(wide_generations)) {
    for (lives %= 3; lives != 0; lives--) first = purgeable__next_generation(first);
    return first;
  }
  uint32_t generation = first + lives;
  return generation < first ? generation + 1 : generation;
}

// Begins a life, of the first unit of a run or of a further one. Heap's mutex held.
static void begin_life(purgeable_heap_t *heap, purgeable__spot_t one, bool is_first, uint32_t count,
                       purgeable__slab_state_t state) {
  set_used(heap, one.chunk, one.unit, true);
  purgeable__slab_t *slab = one.slab;
  assert(load_relaxed(&slab->state) == slab_never_used || load_relaxed(&slab->state) == slab_free);
  assert(load_relaxed(&slab->element_count) == 0 && load_relaxed(&slab->payload_bytes) == 0);
  assert(load_relaxed(&slab->waiting) == 0 && load_relaxed(&slab->lost_pages) == 0);
  uint32_t generation = purgeable__slab_generation(slab);
  if (slab->first_generation == 0) {
    slab->first_generation = first_generation(heap, purgeable__place_of(heap, one));
    generation = later_generation(slab->first_generation, one.chunk->lives);
  }
  store_relaxed(&slab->unit_count, is_first ? count : 1);
  store_relaxed(&slab->used_granule_count, 0);
  store_relaxed(&slab->offer_count, 0);
  store_relaxed(&slab->spans_pages, state == slab_large);
  store_relaxed(&slab->stuck, 0);
  if (heap->keeps_ages && is_first) {
    purgeable__ages_t *ages = purgeable__ages_at(heap, one);
    store_relaxed(&ages->first, 0);
    store_relaxed(&ages->last, 0);
  }
  store_release(&slab->state, (uint8_t)(is_first ? state : slab_continuation));
  // A large slab is sealed and without living elements from birth: its writer's count is what keeps it from being given back.
  uint64_t begin = !is_first ? DYING : state == slab_large ? 1 : 0;
  if (count > heap->units_per_chunk) begin |= ALONE;
  // The run's further units stay claimed.
  purgeable__begin_life(slab, generation, begin);
}

int purgeable__units_take(purgeable_heap_t *heap, uint32_t count, size_t bytes, purgeable__slab_state_t state,
                          purgeable__spot_t *spot) {
  uint32_t number = 0, unit = 0;
  assert(count != 0 && bytes <= (size_t)count << heap->slab_shift);
  assert(purgeable__is_held(&heap->control->mutex));
  if (count > heap->units_per_chunk) {
    // In a mapping of its own. The first unit stands for all of them: nothing else begins in the others.
    int error = purgeable__map_alone(heap, count, bytes, &number);
    if (error != 0) return error;
    *spot = purgeable__find_unit(heap, number * heap->units_per_chunk);
    begin_life(heap, *spot, true, count, state);
    return 0;
  }
  if (!find_units(heap, count, &number, &unit)) {
    int error = purgeable__map_chunk(heap);
    if (error != 0) return error;
    if (!find_units(heap, count, &number, &unit)) return ENOMEM;
  }
  uint32_t first = number * heap->units_per_chunk + unit;
  for (uint32_t i = 0; i < count; i++) {
    purgeable__spot_t one = purgeable__find_unit(heap, first + i);
    begin_life(heap, one, i == 0, count, state);
    if (i == 0) *spot = one;
  }
  return 0;
}

void purgeable__units_return(purgeable_heap_t *heap, purgeable__spot_t spot, uint32_t count) {
  assert(count != 0 && purgeable__is_dying(purgeable__slab_word_relaxed(spot.slab)));
  assert(purgeable__is_held(&heap->control->mutex));
  uint32_t first = purgeable__unit_number(heap, spot);
  for (uint32_t i = 0; i < (count > heap->units_per_chunk ? 1 : count); i++) {
    purgeable__spot_t one = purgeable__find_unit(heap, first + i);
    set_used(heap, one.chunk, one.unit, false);
    store_relaxed(&one.slab->state, slab_free);
  }
  if (spot.chunk->used_count == 0) store_relaxed(&heap->pending, true);
  if (spot.chunk->number < heap->first_chunk_with_room) heap->first_chunk_with_room = spot.chunk->number;
}
