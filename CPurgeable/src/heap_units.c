// SPDX-License-Identifier: MIT
// Units: where slabs and large runs get their room from. Taken from the lowest address on, so a heap that shrank stays dense.

#include "heap_units.h"

#include "heap_layout.h"
#include "heap_rooms.h"

// MARK: Runs of free units

// The first unit at or after `unit` that is in use, or is not; the number of units where there is none.
static uint32_t next_unit(const purgeable_heap_t *heap, const purgeable__chunk_t *chunk, uint32_t unit, bool used) {
  while (unit < heap->units_per_chunk) {
    uint64_t word = (used ? chunk->used[unit / 64] : ~chunk->used[unit / 64]) >> (unit % 64);
    if (word != 0) {
      unit += (uint32_t)__builtin_ctzll(word);
      break;
    }
    unit = (unit / 64 + 1) * 64;
  }
  return unit < heap->units_per_chunk ? unit : heap->units_per_chunk;
}

// The first run of `count` free units; `*length` is how long it is. False: there is none, and the longest one has `*length`.
static bool find_run(const purgeable_heap_t *heap, const purgeable__chunk_t *chunk, uint32_t count, uint32_t *found,
                     uint32_t *length) {
  assert(count != 0);
  *length = 0;
  uint32_t start = next_unit(heap, chunk, 0, false);
  while (start < heap->units_per_chunk) {
    uint32_t end = next_unit(heap, chunk, start, true);
    if (end - start > *length) *length = end - start;
    if (*length >= count) {
      *found = start;
      return true;
    }
    start = next_unit(heap, chunk, end, false);
  }
  return false;
}

// The chunk's room after `count` units at `unit` were taken out of a run of `length`: only the longest run's end needs a look at
// all others. Single units leave the bound too high instead, until a search for more fails.
static void lower_room(purgeable_heap_t *heap, purgeable__chunk_t *chunk, uint32_t count, uint32_t length) {
  uint32_t room = purgeable__room(heap, chunk->number), free_units = heap->units_per_chunk - chunk->used_count, none;
  assert(length <= room);
  if (count > 1 && length == room) (void)find_run(heap, chunk, UINT32_MAX, &none, &room);
  purgeable__set_room(heap, chunk->number, room < free_units ? room : free_units);
}

// The chunk's room after `count` units at `unit` were returned: the run that they are part of now may be the longest.
static void raise_room(purgeable_heap_t *heap, purgeable__chunk_t *chunk, uint32_t unit, uint32_t count) {
  uint32_t start = unit, end = next_unit(heap, chunk, unit + count, true);
  while (start != 0 && !purgeable__is_used(chunk, start - 1)) {
    bool is_free_word = start % 64 == 0 && chunk->used[start / 64 - 1] == 0;
    start -= is_free_word ? 64 : 1;
  }
  uint32_t room = purgeable__room(heap, chunk->number);
  purgeable__set_room(heap, chunk->number, end - start > room ? end - start : room);
}

// The lowest place for a run, and how long the free run is that it begins. A chunk whose room was too high is set right.
static bool find_units(purgeable_heap_t *heap, uint32_t count, purgeable__chunk_t **chunk, uint32_t *unit, uint32_t *length) {
  uint32_t number, looks = 0;
  bool found = false;
  while (!found && purgeable__find_room(heap, count, &number)) {
    *chunk = purgeable__chunk_at(heap, number);
    assert(*chunk != NULL && purgeable__chunk_kind(heap, number) == chunk_of_slabs);
    found = find_run(heap, *chunk, count, unit, length);
    if (!found) purgeable__set_room(heap, number, *length);
    looks++;
  }
  PURGEABLE_LOOKS(rooms, looks);
  return found;
}

// MARK: Lives

// One unit into or out of use; a first use is counted as ordinary memory.
static void set_used(purgeable_heap_t *heap, purgeable__chunk_t *chunk, uint32_t unit, bool used) {
  assert(unit < heap->units_per_chunk);
  purgeable__mark_used(chunk, unit, used);
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
  assert(purgeable__is_used(one.chunk, one.unit));
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
  store_relaxed(&slab->traits, state == slab_large ? trait_spans_pages : 0);
  store_relaxed(&slab->stuck, 0);
  if (heap->keeps_ages && is_first) {
    purgeable__ages_t *ages = purgeable__ages_at(heap, one);
    store_relaxed(&ages->first, 0);
    store_relaxed(&ages->last, 0);
  }
  store_release(&slab->state, (uint8_t)(is_first ? state : slab_continuation));
  // From here to the word's store it looks sealed and empty. A word of generation 0, as in a first life, is no life's until then.
  if (state == slab_large && is_first) PURGEABLE_TEST_PAUSE_INSIDE();
  // A large slab is sealed and without living elements from birth: its writer's count is what keeps it from being given back.
  uint64_t begin = !is_first ? DYING : state == slab_large ? 1 : 0;
  if (count > heap->units_per_chunk) begin |= ALONE;
  // The run's further units stay claimed.
  purgeable__begin_life(slab, generation, begin);
}

int purgeable__units_take(purgeable_heap_t *heap, uint32_t count, size_t bytes, purgeable__slab_state_t state,
                          purgeable__spot_t *spot) {
  uint32_t number = 0, unit = 0, length = 0;
  purgeable__chunk_t *chunk = NULL;
  assert(count != 0 && bytes <= (size_t)count << heap->slab_shift);
  assert(purgeable__is_held(&heap->control->mutex));
  if (count > heap->units_per_chunk) {
    // In a mapping of its own. The first unit stands for all of them: nothing else begins in the others.
    int error = purgeable__map_alone(heap, count, bytes, &number);
    if (error != 0) return error;
    *spot = purgeable__find_unit(heap, number * heap->units_per_chunk);
    set_used(heap, spot->chunk, spot->unit, true);
    begin_life(heap, *spot, true, count, state);
    return 0;
  }
  if (!find_units(heap, count, &chunk, &unit, &length)) {
    int error = purgeable__map_chunk(heap);
    if (error != 0) return error;
    if (!find_units(heap, count, &chunk, &unit, &length)) return ENOMEM;
  }
  uint32_t first = chunk->number * heap->units_per_chunk + unit;
  for (uint32_t i = 0; i < count; i++) {
    purgeable__spot_t one = purgeable__find_unit(heap, first + i);
    set_used(heap, one.chunk, one.unit, true);
    begin_life(heap, one, i == 0, count, state);
    if (i == 0) *spot = one;
  }
  lower_room(heap, chunk, count, length);
  return 0;
}

void purgeable__units_begin_again(purgeable_heap_t *heap, purgeable__spot_t spot) {
  assert(load_relaxed(&spot.slab->state) == slab_kept && load_relaxed(&spot.slab->unit_count) == 1);
  assert(purgeable__is_held(&heap->control->mutex));
  store_relaxed(&spot.slab->state, slab_free);
  begin_life(heap, spot, true, 1, slab_open);
}

void purgeable__units_return(purgeable_heap_t *heap, purgeable__spot_t spot, uint32_t count) {
  assert(count != 0 && purgeable__is_dying(purgeable__slab_word_relaxed(spot.slab)));
  assert(purgeable__is_held(&heap->control->mutex));
  uint32_t first = purgeable__unit_number(heap, spot);
  for (uint32_t i = 0; i < (count > heap->units_per_chunk ? 1 : count); i++) {
    purgeable__spot_t one = purgeable__find_unit(heap, first + i);
    set_used(heap, one.chunk, one.unit, false);
    // The pages were wiped: nothing of an earlier life stands there, and no offer of them.
    store_relaxed(&one.slab->standing, 0);
    store_relaxed(&one.slab->state, slab_free);
  }
  if (spot.chunk->used_count == 0) store_relaxed(&heap->pending, true);
  bool has_slabs = purgeable__chunk_kind(heap, spot.chunk->number) == chunk_of_slabs;
  if (has_slabs) raise_room(heap, spot.chunk, spot.unit, count);
}
