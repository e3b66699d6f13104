// SPDX-License-Identifier: MIT
// Chunks: mappings of content and their directories in ordinary memory, the table of them, and giving them back.
//
//   number   0               1               2               3               4
//   kind     of slabs        alone           continued       vacant          of slabs
//            |u|u|u|...|u|   |one element of 100 MiB  |                      |u|u|u|...|u|
//
//   directory:  ... slab 2 | slab 1 | slab 0 | chunk, lossy, used | record 0 | record 1 ...
//                                   ^ the first slabs, the chunk and the first records share a page: all that a small heap
//                                     touches
//
// Readers without a lock may look at any place at any time, and nobody knows of them. What that allows:
//
//  - The address space of a chunk of slabs stays mapped until the heap is destroyed, and is used again; its pages go back.
//  - A large element in a mapping of its own is read by who has counted up (ALONE in its slab's word), so its mapping can end
//    with it. Its numbers are used again, by whatever comes; a stale reference is told by its generation.
//  - A directory stays mapped, because a reader may be looking at a slab's word; its pages go back when nothing in the chunk is
//    used. They read as zeros then, and generation 0 is nobody's. So that no generation comes back, the chunk keeps how many
//    lives its units have had at most, and each unit's next life comes after that number.

#include "heap_chunks.h"

#include "heap_rooms.h"

enum {
  // Slabs that share a page with their chunk and are never forgotten.
  SLABS_KEPT = SLABS_TOGETHER,
  CHUNK_HEAD_BYTES = 128,
  EMPTY_ROUNDS = 2,
};
static_assert(sizeof(purgeable__chunk_t) <= CHUNK_HEAD_BYTES, "the chunk stands between its slabs and its bits");
static_assert(sizeof(purgeable__slab_t) % 8 == 0, "slabs lie one behind the other");

// MARK: Finding things

purgeable__spot_t purgeable__find_unit(const purgeable_heap_t *heap, uint32_t unit_number) {
  return purgeable__find(heap, (uint64_t)unit_number * heap->granules_per_slab);
}

uint32_t purgeable__unit_number(const purgeable_heap_t *heap, purgeable__spot_t spot) {
  return spot.chunk->number * heap->units_per_chunk + spot.unit;
}

uint64_t purgeable__place_of(const purgeable_heap_t *heap, purgeable__spot_t spot) {
  return (uint64_t)purgeable__unit_number(heap, spot) * heap->granules_per_slab + spot.granule;
}

// MARK: Directories

static size_t bits_bytes(const purgeable_heap_t *heap) { return purgeable__round_up(heap->units_per_chunk, 64) / 8; }

void purgeable__reset_bits(const purgeable_heap_t *heap, purgeable__chunk_t *chunk) {
  memset(chunk->used, 0, bits_bytes(heap));
  memset((void *)chunk->lossy, 0, bits_bytes(heap));
  chunk->used_count = 0;
}

// Where the chunk's page begins: before it all slabs but the first sixteen.
static size_t head_page(const purgeable_heap_t *heap) {
  size_t slabs = heap->units_per_chunk > SLABS_KEPT ? heap->units_per_chunk - SLABS_KEPT : 0;
  return purgeable__round_up(slabs * sizeof(purgeable__slab_t), heap->page_bytes);
}

static size_t head_offset(const purgeable_heap_t *heap) { return head_page(heap) + SLABS_KEPT * sizeof(purgeable__slab_t); }

static size_t directory_bytes(const purgeable_heap_t *heap) {
  size_t records = (size_t)heap->units_per_chunk * heap->record_bytes;
  return purgeable__round_up(head_offset(heap) + CHUNK_HEAD_BYTES + 2 * bits_bytes(heap) + records, heap->page_bytes);
}

static purgeable__chunk_t *make_chunk(purgeable_heap_t *heap, uint32_t number) {
  int error;
  char *directory = purgeable__map_ordinary(directory_bytes(heap), &error);
  if (directory == NULL) return NULL;
  char *head = directory + head_offset(heap);
  assert(((uintptr_t)head & (sizeof(uint64_t) - 1)) == 0);
  purgeable__chunk_t *chunk = (purgeable__chunk_t *)(void *)head;
  chunk->lossy = (_Atomic uint64_t *)(void *)(head + CHUNK_HEAD_BYTES);
  chunk->used = (uint64_t *)(void *)(head + CHUNK_HEAD_BYTES + bits_bytes(heap));
  chunk->records = head + CHUNK_HEAD_BYTES + 2 * bits_bytes(heap);
  chunk->base = directory;
  store_relaxed(&chunk->elements, directory);
  chunk->number = number;
  uint64_t bytes = CHUNK_HEAD_BYTES + 2 * bits_bytes(heap);
  add_relaxed(&heap->ordinary_bytes, bytes);
  return chunk;
}

// Unmaps; where the kernel refuses that, gives at least the pages back.
static void destroy_chunk(purgeable_heap_t *heap, purgeable__chunk_t *chunk) {
  char *directory = (char *)chunk - head_offset(heap);
  if (purgeable__unmap(directory, directory_bytes(heap)) != 0) (void)purgeable__wipe(directory, directory_bytes(heap));
}

// How many lives a unit has had, by its generation: 0 is none, and is left out when it comes round.
static uint32_t lives_of(const purgeable__slab_t *slab, uint32_t generation) {
  uint32_t first = slab->first_generation;
  assert(first != 0 && generation != 0);
  return generation >= first ? generation - first : generation - first - 1;
}

// Of a chunk in which nothing is used: forgets all slabs but the first. Heap's mutex held.
static void release_directory(purgeable_heap_t *heap, purgeable__chunk_t *chunk) {
  assert(chunk->used_count == 0);
  assert(purgeable__is_held(&heap->control->mutex));
  uint32_t high = load_relaxed(&chunk->high_water), lives = chunk->lives;
  for (uint32_t unit = SLABS_KEPT; unit < high; unit++) {
    const purgeable__slab_t *slab = purgeable__slab_at(chunk, unit);
    if (slab->first_generation == 0) continue;
    uint32_t own = lives_of(slab, purgeable__slab_generation(slab)) + 1;
    if (own > lives) lives = own;
  }
  // If half of the generations are used, the slabs are not forgotten: each retires by itself.
  if (lives > UINT32_MAX / 2) return;
  char *directory = (char *)chunk - head_offset(heap);
  size_t head = head_page(heap), rest = head + heap->page_bytes, all = directory_bytes(heap);
  chunk->lives = lives;
  chunk->empty_rounds = 0;
  if (purgeable__wipe(directory, head) != 0) return;
  if (all > rest) (void)purgeable__wipe(directory + rest, all - rest);
  store_relaxed(&chunk->high_water, SLABS_KEPT);
  uint64_t bytes = sizeof(purgeable__slab_t) + heap->record_bytes;
  subtract_relaxed(&heap->ordinary_bytes, (high - SLABS_KEPT) * bytes);
}

// MARK: The table

static int grow_table(purgeable_heap_t *heap) {
  assert(purgeable__is_held(&heap->control->mutex));
  purgeable__table_t *old = heap->table;
  uint32_t capacity = old->capacity * 2;
  size_t bytes = sizeof *old + capacity * (sizeof old->entries[0] + 2 * sizeof old->rooms[0] + sizeof old->kinds[0]);
  purgeable__table_t *table = purgeable__allocate(1, bytes);
  if (table == NULL) return ENOMEM;
  table->older = old;
  table->capacity = capacity;
  table->entries = (purgeable__chunk_t *_Atomic *)(void *)(table + 1);
  table->rooms = (uint32_t *)(void *)(table->entries + capacity);
  table->kinds = (uint8_t *)(table->rooms + 2 * capacity);
  for (uint32_t i = 0; i < old->capacity; i++) {
    purgeable__chunk_t *chunk = load_relaxed(&old->entries[i]);
    store_relaxed(&table->entries[i], chunk);
    table->kinds[i] = old->kinds[i];
  }
  purgeable__copy_rooms(table, old);
  heap->table = table;
  add_relaxed(&heap->ordinary_bytes, bytes);
  // Release: whoever finds the table sees what is in it.
  store_release(&heap->chunks, table->entries);
  return 0;
}

// Sees to it that a number has an entry: a chunk of its own, or what stands for none.
static int fill_entry(purgeable_heap_t *heap, uint32_t number, bool own) {
  assert(number < heap->table->capacity);
  purgeable__chunk_t *chunk = load_relaxed(&heap->table->entries[number]);
  if (chunk != NULL && (!own || chunk != heap->nowhere)) return 0;
  if (own) {
    chunk = make_chunk(heap, number);
  } else {
    if (heap->nowhere == NULL) heap->nowhere = make_chunk(heap, UINT32_MAX);
    chunk = heap->nowhere;
  }
  if (chunk == NULL) return ENOMEM;
  // Release: pairs with `purgeable__find`.
  store_release(&heap->table->entries[number], chunk);
  return 0;
}

// Finds or makes `count` neighbouring vacant numbers; the first has a chunk of its own. Heap's mutex held.
static int take_numbers(purgeable_heap_t *heap, uint32_t count, uint32_t *first) {
  assert(count != 0);
  assert(purgeable__is_held(&heap->control->mutex));
  uint32_t made = load_relaxed(&heap->chunk_count), run = 0, number = 0;
  for (; number < made && run < count; number++) run = purgeable__chunk_kind(heap, number) == chunk_vacant ? run + 1 : 0;
  *first = number - run;
  if (count > heap->chunk_count_max || *first > heap->chunk_count_max - count) return ENOMEM;
  for (number = *first; number < *first + count; number++) {
    int error = number < heap->table->capacity ? 0 : grow_table(heap);
    if (error == 0) error = fill_entry(heap, number, number == *first);
    if (error != 0) return error;
    // Release: whoever sees the count sees the entry.
    if (number >= made) store_release(&heap->chunk_count, number + 1);
  }
  return 0;
}

// MARK: Mapping

static int map_content(purgeable_heap_t *heap, uint32_t number, size_t bytes) {
  assert(bytes != 0 && (bytes & (heap->page_bytes - 1)) == 0);
  assert(purgeable__chunk_kind(heap, number) == chunk_vacant);
  int error;
  char *base = purgeable__map(bytes, heap->page_bytes, "purgeable heap", &error);
  if (base == NULL) return ENOMEM;
  purgeable__chunk_t *chunk = load_relaxed(&heap->table->entries[number]);
  chunk->base = base;
  store_relaxed(&chunk->elements, base + heap->lead_bytes);
  chunk->mapped_bytes = bytes;
  add_relaxed(&heap->mapped_bytes, bytes);
  return 0;
}

int purgeable__map_chunk(purgeable_heap_t *heap) {
  uint32_t number;
  int error = take_numbers(heap, 1, &number);
  if (error == 0) error = map_content(heap, number, heap->chunk_bytes);
  if (error != 0) return error;
  heap->table->kinds[number] = chunk_of_slabs;
  purgeable__set_room(heap, number, heap->units_per_chunk);
  return 0;
}

int purgeable__map_alone(purgeable_heap_t *heap, uint32_t units, size_t bytes, uint32_t *number) {
  assert(units > heap->units_per_chunk);
  assert(purgeable__is_held(&heap->control->mutex));
  // Reuses a mapping that could not be unmapped, if it is large enough.
  uint32_t made = load_relaxed(&heap->chunk_count);
  for (uint32_t i = 0; i < made; i++) {
    purgeable__chunk_t *chunk = purgeable__chunk_at(heap, i);
    if (chunk == NULL || purgeable__chunk_kind(heap, i) != chunk_alone) continue;
    if (chunk->used_count != 0 || chunk->mapped_bytes < bytes) continue;
    *number = i;
    return 0;
  }
  uint32_t count = (units + heap->units_per_chunk - 1) / heap->units_per_chunk;
  int error = take_numbers(heap, count, number);
  if (error == 0) error = map_content(heap, *number, bytes);
  if (error != 0) return error;
  // In this order, for a child that is forked in between: what says that there is such a mapping comes last.
  load_relaxed(&heap->table->entries[*number])->span_count = count;
  for (uint32_t i = 1; i < count; i++) heap->table->kinds[*number + i] = chunk_continued;
  atomic_thread_fence(memory_order_release);
  heap->table->kinds[*number] = chunk_alone;
  return 0;
}

size_t purgeable__begin_unmapping(purgeable__chunk_t *chunk) {
  size_t bytes = chunk->mapped_bytes;
  chunk->mapped_bytes = 0;
  assert(bytes != 0);
  return bytes;
}

int purgeable__unmap_alone(purgeable_heap_t *heap, purgeable__chunk_t *chunk, size_t bytes) {
  int error = purgeable__unmap(chunk->base, bytes);
  if (error == 0) subtract_relaxed(&heap->mapped_bytes, bytes);
  return error;
}

void purgeable__forget_alone(purgeable_heap_t *heap, purgeable__chunk_t *chunk) {
  assert(chunk->span_count != 0 && purgeable__chunk_kind(heap, chunk->number) == chunk_alone);
  memset(&heap->table->kinds[chunk->number], chunk_vacant, chunk->span_count);
  // A slab whose generations are used up keeps its number.
  if (chunk->used_count != 0) heap->table->kinds[chunk->number] = chunk_continued;
  chunk->span_count = 0;
  chunk->mapped_bytes = 0;
}

bool purgeable__release_empty(purgeable_heap_t *heap, bool at_once) {
  bool is_waiting = false;
  pthread_mutex_lock(&heap->control->mutex);
  uint32_t made = load_relaxed(&heap->chunk_count);
  for (uint32_t number = 0; number < made; number++) {
    purgeable__chunk_t *chunk = purgeable__chunk_at(heap, number);
    if (chunk == NULL) continue;
    if (chunk->used_count != 0) {
      chunk->empty_rounds = 0;
    } else if (purgeable__chunk_kind(heap, number) == chunk_alone) {
      size_t bytes = purgeable__begin_unmapping(chunk);
      if (purgeable__unmap_alone(heap, chunk, bytes) == 0) {
        purgeable__forget_alone(heap, chunk);
      } else {
        chunk->mapped_bytes = bytes;
      }
    } else if (load_relaxed(&chunk->high_water) > SLABS_KEPT) {
      bool is_due = at_once || ++chunk->empty_rounds >= EMPTY_ROUNDS;
      if (is_due) release_directory(heap, chunk);
      is_waiting = is_waiting || !is_due;
    }
  }
  pthread_mutex_unlock(&heap->control->mutex);
  return is_waiting;
}

static int unmap_or_wipe(void *start, size_t bytes) {
  int error = purgeable__unmap(start, bytes);
  if (error != 0) (void)purgeable__wipe(start, bytes);
  return error;
}

int purgeable__chunks_destroy(purgeable_heap_t *heap) {
  uint32_t count = load_relaxed(&heap->chunk_count);
  int first_error = 0;
  // Beyond the count lie chunks that were made for an allocation that failed.
  for (uint32_t number = 0; number < heap->table->capacity; number++) {
    purgeable__chunk_t *chunk = load_relaxed(&heap->table->entries[number]);
    if (chunk == NULL || chunk == heap->nowhere) continue;
    if (number < count && purgeable__chunk_at(heap, number) != NULL) {
      int error = unmap_or_wipe(chunk->base, chunk->mapped_bytes);
      if (first_error == 0) first_error = error;
    }
    uint32_t high = load_relaxed(&chunk->high_water);
    for (uint32_t unit = 0; unit < high && heap->keeps_tags; unit++) free(*purgeable__tags_at(heap, chunk, unit));
    destroy_chunk(heap, chunk);
  }
  if (heap->nowhere != NULL) destroy_chunk(heap, heap->nowhere);
  for (purgeable__table_t *table = heap->table; table->older != NULL;) {
    purgeable__table_t *older = table->older;
    free(table);
    table = older;
  }
  return first_error;
}
