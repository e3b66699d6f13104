// SPDX-License-Identifier: MIT
// What a forked child does with a heap first.
//
// MADV_WIPEONFORK gives the child zeros for every chunk and for the control block: all content is gone, all mutexes are open, and
// `alive` is 0. What is left in ordinary memory, the slabs' words and lists, may be in the middle of a change that another thread
// of the parent was making. None of it is repaired: all of it is set anew. Generations are raised, so that references from before
// the fork are stale; counts, OFFERING and DYING are cleared with them. Tables of tags are left alone: the allocator's own state
// may know them half-way, so they are leaked, once.

#include "heap_fork.h"

#include "heap_rooms.h"

static void begin_anew(purgeable_heap_t *heap) {
  assert(!purgeable__is_put_right(heap));
  uint32_t chunks = load_acquire(&heap->chunk_count);
  // Another thread of the parent may have been between making a table and publishing it.
  atomic_store(&heap->chunks, heap->table->entries);
  for (uint32_t number = 0; number < chunks; number++) {
    purgeable__chunk_t *chunk = load_relaxed(&heap->table->entries[number]);
    if (chunk == heap->nowhere) continue;
    // Another thread of the parent was unmapping this chunk.
    if (purgeable__chunk_kind(heap, number) == chunk_alone && chunk->mapped_bytes == 0) purgeable__forget_alone(heap, chunk);
    purgeable__reset_bits(heap, chunk);
    for (uint32_t unit = 0; unit < heap->units_per_chunk; unit++) {
      purgeable__slab_t *slab = purgeable__slab_at(chunk, unit);
      if (slab->first_generation == 0) continue;
      if (unit >= atomic_load(&chunk->high_water)) atomic_store(&chunk->high_water, unit + 1);
      uint32_t generation = purgeable__slab_generation(slab) + 1;
      if (generation == 0) generation = 1;
      uint32_t first = slab->first_generation;
      // A slab whose generations are used up stays so. A generation that would wrap around now counts as used up, too.
      bool retired = load_relaxed(&slab->state) == slab_retired || generation == first;
      memset((void *)slab, 0, sizeof *slab);
      slab->first_generation = first;
      purgeable__reset_life(slab, retired ? first : generation);
      atomic_store(&slab->state, retired ? slab_retired : slab_free);
      if (retired) purgeable__mark_used(chunk, unit, true);
      memset(chunk->records + (size_t)unit * heap->record_bytes, 0, heap->record_bytes);
    }
  }
  for (uint32_t i = 0; i < atomic_load(&heap->stream_count); i++) {
    purgeable__stream_t *stream = purgeable__stream(heap, i);
    *stream = (purgeable__stream_t){.is_withheld = load_relaxed(&stream->is_withheld)};
  }
  purgeable__reset_rooms(heap);
  heap->compact_hand = 0;
  atomic_store(&heap->held_bytes, 0);
  atomic_store(&heap->slab_count, 0);
  atomic_store(&heap->lossy_count, 0);
  atomic_store(&heap->lost_bytes, 0);
  atomic_store(&heap->waiting_bytes, 0);
  atomic_store(&heap->unoffered_bytes, 0);
  memset(heap->control->tallies, 0, sizeof heap->control->tallies);
  atomic_store(&heap->locked_bytes, 0);
  atomic_store(&heap->pending, false);
  atomic_store(&heap->overdue, false);
  atomic_store(&heap->offering_overdue, false);
  heap->round_from = heap->round_end = 0;
  atomic_store(&heap->unwiped, false);
  heap->unwiped_first = heap->unwiped_end = heap->delayed_count = 0;
  // The child's pages are zeros: no slab of the parent's is filled as it was.
  heap->kept_count = 0;
  atomic_store(&heap->kept_bytes, 0);
  atomic_store(&heap->giving_count, 0);
  atomic_store(&heap->compacting, 0);
  atomic_store(&heap->held_at_limit, 0);
}

void purgeable__heal(purgeable_heap_t *heap) {
  uint64_t expected = 0;
  if (atomic_compare_exchange_strong(&heap->control->alive, &expected, 2)) {
    begin_anew(heap);
    atomic_store(&heap->control->alive, 1);
    purgeable__wake_all(&heap->control->alive);
    return;
  }
  // Another thread of the child is already doing this.
  while (load_acquire(&heap->control->alive) == 2) purgeable__wait(&heap->control->alive, 2);
}
