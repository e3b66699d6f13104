// SPDX-License-Identifier: MIT
// Which chunk has room for a run of units: a tree over the numbers of the table, in the table.
//
//                        1: 9                    each node: the larger of the two below
//                  2: 9        3: 2
//               4: 0  5: 9  6: 2  7: 0           the leaves: the room of numbers 0, 1, 2, 3
//
// The way down prefers the lower half, so the lowest chunk with room is found in as many steps as the tree is high. A room is an
// upper bound: the search that finds it too high sets it right (heap_units.c). The tree grows with the table, in one allocation,
// so that want of memory is met there or nowhere.

#include "heap_rooms.h"

static uint32_t larger(const uint32_t *rooms, uint32_t node) {
  uint32_t left = rooms[2 * node], right = rooms[2 * node + 1];
  return left > right ? left : right;
}

uint32_t purgeable__room(const purgeable_heap_t *heap, uint32_t number) {
  assert(number < heap->table->capacity);
  return heap->table->rooms[heap->table->capacity + number];
}

void purgeable__set_room(purgeable_heap_t *heap, uint32_t number, uint32_t units) {
  assert(purgeable__is_held(&heap->control->mutex));
  assert(number < heap->table->capacity && units <= heap->units_per_chunk);
  uint32_t *rooms = heap->table->rooms, node = heap->table->capacity + number;
  if (rooms[node] == units) return;
  rooms[node] = units;
  for (node /= 2; node != 0 && rooms[node] != larger(rooms, node); node /= 2) rooms[node] = larger(rooms, node);
}

bool purgeable__find_room(const purgeable_heap_t *heap, uint32_t count, uint32_t *number) {
  assert(purgeable__is_held(&heap->control->mutex));
  assert(count != 0);
  const uint32_t *rooms = heap->table->rooms;
  uint32_t capacity = heap->table->capacity, node = 1;
  if (rooms[1] < count) return false;
  while (node < capacity) node = rooms[2 * node] >= count ? 2 * node : 2 * node + 1;
  assert(rooms[node] >= count);
  *number = node - capacity;
  return true;
}

static void set_inner(purgeable__table_t *table) {
  for (uint32_t node = table->capacity - 1; node != 0; node--) table->rooms[node] = larger(table->rooms, node);
}

void purgeable__copy_rooms(purgeable__table_t *table, const purgeable__table_t *from) {
  assert(table->capacity >= from->capacity);
  memcpy(table->rooms + table->capacity, from->rooms + from->capacity, from->capacity * sizeof *table->rooms);
  set_inner(table);
}

void purgeable__reset_rooms(purgeable_heap_t *heap) {
  purgeable__table_t *table = heap->table;
  for (uint32_t number = 0; number < table->capacity; number++) {
    bool has_slabs = table->kinds[number] == chunk_of_slabs;
    table->rooms[table->capacity + number] = has_slabs ? heap->units_per_chunk : 0;
  }
  set_inner(table);
}

bool purgeable__rooms_are_valid(const purgeable_heap_t *heap) {
  const purgeable__table_t *table = heap->table;
  for (uint32_t node = 1; node < table->capacity; node++) {
    if (table->rooms[node] != larger(table->rooms, node)) return false;
  }
  for (uint32_t number = 0; number < table->capacity; number++) {
    if (table->kinds[number] != chunk_of_slabs && purgeable__room(heap, number) != 0) return false;
  }
  return true;
}
