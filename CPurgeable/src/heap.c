// SPDX-License-Identifier: MIT
// A heap as a whole: creation, what a forked child does first, statistics.

#include "heap_internal.h"

// MARK: Creation

static bool is_power_of_two(size_t value) { return value != 0 && (value & (value - 1)) == 0; }

static int choose_sizes(purgeable_heap_t *heap, const purgeable_heap_options_t *options) {
  size_t limit = options->limit_bytes, page = purgeable_page_size_bytes();
  size_t slab = options->slab_bytes, chunk = options->chunk_bytes;
  if (slab == 0) slab = page * (limit != 0 && limit < ((size_t)4 << 20) ? 4 : limit >= ((size_t)1 << 30) ? 64 : 16);
  if (!is_power_of_two(slab) || slab < page || slab > 64 * page) return EINVAL;
  if (chunk == 0) {
    chunk = (size_t)64 << 20;
    // A small limit never needs more than twice itself at a time.
    while (limit != 0 && chunk / 4 >= limit && chunk / 2 >= 16 * slab) chunk /= 2;
  }
  if (options->keeps_tags && slab > (size_t)0x10000 * PURGEABLE_GRANULE_BYTES) return EINVAL;
  if (!is_power_of_two(chunk) || chunk < 4 * slab || chunk > ((size_t)1 << 40)) return EINVAL;
  heap->page_bytes = page;
  heap->slab_bytes = slab;
  heap->chunk_bytes = chunk;
  heap->page_shift = (uint32_t)__builtin_ctzll(page);
  heap->slab_shift = (uint32_t)__builtin_ctzll(slab);
  heap->chunk_shift = (uint32_t)__builtin_ctzll(chunk);
  heap->units_per_chunk = (uint32_t)(chunk / slab);
  heap->pages_per_slab = (uint32_t)(slab / page);
  heap->granules_per_slab = (uint32_t)(slab / PURGEABLE_GRANULE_BYTES);
  return 0;
}

int purgeable_heap_create(const purgeable_heap_options_t *options, purgeable_heap_t **out) {
  static const purgeable_heap_options_t none;
  if (out == NULL) return EINVAL;
  if (options == NULL) options = &none;
  if ((unsigned)options->offering > (unsigned)purgeable_offering_never) return EINVAL;
  // Mapped, not allocated: most of its two tables is never touched.
  int error;
  purgeable_heap_t *heap = purgeable__map_ordinary(sizeof *heap, &error);
  if (heap == NULL) return error;
  error = choose_sizes(heap, options);
  if (error == 0) heap->control = purgeable__map(sizeof *heap->control, 1, "purgeable control", &error);
  if (error != 0) {
    (void)purgeable__unmap(heap, sizeof *heap);
    return error;
  }
  heap->offering = options->offering;
  heap->keeps_tags = options->keeps_tags;
  heap->moved = options->moved;
  heap->context = options->context;
  (void)purgeable__random(heap->secret, sizeof heap->secret);
  atomic_store(&heap->limit_bytes, options->limit_bytes);
  atomic_store(&heap->locked_limit_bytes, options->locked_limit_bytes);
  atomic_store(&heap->stream_count, 1);
  // A mutex of zeros is a valid unlocked one on Linux; that is what a forked child finds here.
  atomic_store(&heap->control->alive, 1);
  // Of the heap the first and the last page and one of streams, of the control block one.
  atomic_store(&heap->ordinary_bytes, 4 * heap->page_bytes);
  *out = heap;
  return 0;
}

int purgeable_heap_destroy(purgeable_heap_t *heap) {
  if (heap == NULL) return EINVAL;
  purgeable__enter(heap);
  purgeable__chunks_destroy(heap);
  for (uint32_t i = 0; i < atomic_load(&heap->stream_count); i++) free(heap->streams[i].spare_tags);
  (void)purgeable__unmap(heap->control, sizeof *heap->control);
  (void)purgeable__unmap(heap, sizeof *heap);
  return 0;
}

size_t purgeable_heap_slab_bytes(const purgeable_heap_t *heap) { return heap == NULL ? 0 : heap->slab_bytes; }

int purgeable_heap_set_limit(purgeable_heap_t *heap, size_t limit_bytes) {
  if (heap == NULL) return EINVAL;
  atomic_store_explicit(&heap->limit_bytes, limit_bytes, memory_order_relaxed);
  return 0;
}

int purgeable_heap_set_locked_limit(purgeable_heap_t *heap, size_t limit_bytes) {
  if (heap == NULL) return EINVAL;
  atomic_store_explicit(&heap->locked_limit_bytes, limit_bytes, memory_order_relaxed);
  return 0;
}

// MARK: Fork
//
// MADV_WIPEONFORK gives the child zeros for every chunk and for the control block: all content is gone, all mutexes are open, and
// `alive` is 0. What is left in ordinary memory, the slabs' words and lists, may be in the middle of a change that another thread
// of the parent was making. None of it is repaired: all of it is set anew. Generations are raised, so that references from before
// the fork are stale; counts, OFFERING and DYING are cleared with them. Tables of tags are left alone: the allocator's own state
// may know them half-way, so they are leaked, once.

static void begin_anew(purgeable_heap_t *heap) {
  uint32_t chunks = atomic_load_explicit(&heap->chunk_count, memory_order_acquire);
  for (uint32_t number = 0; number < chunks; number++) {
    purgeable__chunk_t *chunk = atomic_load_explicit(&heap->chunks[number], memory_order_relaxed);
    memset(chunk->used, 0, purgeable__round_up(heap->units_per_chunk, 64) / 8);
    memset((void *)chunk->lossy, 0, purgeable__round_up(heap->units_per_chunk, 64) / 8);
    chunk->used_count = 0;
    for (uint32_t unit = 0; unit < heap->units_per_chunk; unit++) {
      purgeable__slab_t *slab = &chunk->slabs[unit];
      if (slab->first_generation == 0) continue;
      if (unit >= chunk->high_water) chunk->high_water = unit + 1;
      uint32_t generation = GENERATION(atomic_load_explicit(&slab->word, memory_order_relaxed)) + 1;
      if (generation == 0) generation = 1;
      uint32_t first = slab->first_generation;
      // Used up stays used up, and what would come round now is used up as well.
      bool retired = atomic_load_explicit(&slab->state, memory_order_relaxed) == slab_retired || generation == first;
      memset((void *)slab, 0, sizeof *slab);
      slab->first_generation = first;
      atomic_store(&slab->word, (uint64_t)(retired ? first : generation) << 32 | DYING);
      atomic_store(&slab->state, retired ? slab_retired : slab_free);
      if (retired) chunk->used[unit / 64] |= (uint64_t)1 << (unit % 64);
      chunk->used_count += retired;
      memset((void *)&chunk->living[(size_t)unit * heap->granules_per_slab / 64], 0, heap->granules_per_slab / 8);
      memset((void *)&chunk->page_bytes[(size_t)unit * heap->pages_per_slab], 0, heap->pages_per_slab * 4);
    }
  }
  memset(heap->streams, 0, sizeof heap->streams);
  heap->first_chunk_with_room = 0;
  atomic_store(&heap->held_bytes, 0);
  atomic_store(&heap->slab_count, 0);
  atomic_store(&heap->lossy_count, 0);
  atomic_store(&heap->element_count, 0);
  atomic_store(&heap->payload_bytes, 0);
  atomic_store(&heap->written_bytes, 0);
  atomic_store(&heap->locked_bytes, 0);
  atomic_store(&heap->pending, false);
  atomic_store(&heap->unwiped, false);
  heap->unwiped_first = heap->unwiped_end = heap->delayed_count = 0;
  atomic_store(&heap->giving_count, 0);
  atomic_store(&heap->compacting, false);
}

void purgeable__heal(purgeable_heap_t *heap) {
  uint64_t expected = 0;
  if (atomic_compare_exchange_strong(&heap->control->alive, &expected, 2)) {
    begin_anew(heap);
    atomic_store(&heap->control->alive, 1);
    purgeable__wake_all(&heap->control->alive);
    return;
  }
  // Another thread of the child is at it.
  while (atomic_load_explicit(&heap->control->alive, memory_order_acquire) == 2) purgeable__wait(&heap->control->alive, 2);
}

// MARK: Statistics

uint64_t purgeable_heap_held_bytes(const purgeable_heap_t *heap) {
  return heap == NULL ? 0 : atomic_load_explicit(&heap->held_bytes, memory_order_relaxed);
}

uint64_t purgeable_heap_given_back_bytes(const purgeable_heap_t *heap) {
  return heap == NULL ? 0 : atomic_load_explicit(&heap->given_back_bytes, memory_order_relaxed);
}

uint64_t purgeable_heap_ordinary_bytes(const purgeable_heap_t *heap) {
  return heap == NULL ? 0 : atomic_load_explicit(&heap->ordinary_bytes, memory_order_relaxed);
}

// Of a run that lost some page all content is lost, but its other pages stay where they are until its owner frees it.
static void add_lost_run(const purgeable_heap_t *heap, bool on_offer, size_t held, const unsigned char *resident,
                         purgeable_heap_statistics_t *sums) {
  size_t gone = 0;
  for (size_t page = 0; page < held >> heap->page_shift; page++) gone += (resident[page] & 1) == 0;
  sums->discarded_bytes += gone << heap->page_shift;
  sums->offered_bytes += on_offer ? held - (gone << heap->page_shift) : 0;
}

// Adds up one slab's pages by state. `resident` tells of `known` pages from the slab's first on. Heap's mutex held.
static void add_slab(const purgeable_heap_t *heap, purgeable__slab_t *slab, const unsigned char *resident, size_t known,
                     purgeable_heap_statistics_t *sums) {
  uint8_t state = atomic_load_explicit(&slab->state, memory_order_relaxed);
  if (state != slab_open && state != slab_sealed && state != slab_large && state != slab_unwiped) return;
  size_t held = purgeable__slab_held_bytes(heap, slab);
  sums->held_bytes += held;
  if (state == slab_unwiped) return;
  uint64_t lost = atomic_load_explicit(&slab->lost, memory_order_relaxed);
  uint64_t offered = atomic_load_explicit(&slab->offered, memory_order_relaxed);
  if (purgeable__is_run(slab)) {
    if (lost == 0) {
      sums->offered_bytes += offered != 0 ? held : 0;
    } else if (held >> heap->page_shift <= known) {
      add_lost_run(heap, offered != 0, held, resident, sums);
    } else {
      sums->discarded_bytes += held;
    }
    return;
  }
  size_t pages = held >> heap->page_shift;
  uint64_t all = pages > 63 ? ~(uint64_t)0 : ((uint64_t)1 << pages) - 1;
  sums->offered_bytes += (uint64_t)__builtin_popcountll(offered & ~lost & all) << heap->page_shift;
  sums->discarded_bytes += (uint64_t)__builtin_popcountll(lost & all) << heap->page_shift;
  // A lost page that was looked at shows the kernel's one page of zeros, which mincore calls resident.
  for (size_t page = 0; page < pages && page < known; page++) {
    if ((lost & purgeable__page_bit(slab, page)) != 0 && (resident[page] & 1) != 0) sums->resident_bytes -= heap->page_bytes;
  }
}

// Adds one chunk: what its slabs say, and what the kernel says. Heap's mutex held.
static int add_chunk(const purgeable_heap_t *heap, purgeable__chunk_t *chunk, unsigned char *resident,
                     purgeable_heap_statistics_t *sums) {
  size_t used = (size_t)chunk->high_water << heap->slab_shift, pages = used >> heap->page_shift;
  int error = used == 0 || resident == NULL ? 0 : purgeable__mincore(chunk->base, used, resident);
  bool seen = resident != NULL && error == 0;
  for (size_t page = 0; seen && page < pages; page++) sums->resident_bytes += (uint64_t)(resident[page] & 1) << heap->page_shift;
  // With swap in use, what is not resident may have been swapped out.
  size_t known = seen && !purgeable__swap_in_use() ? pages : 0;
  for (uint32_t unit = 0; unit < chunk->high_water; unit++) {
    size_t first = (size_t)unit << heap->slab_shift >> heap->page_shift;
    add_slab(heap, &chunk->slabs[unit], known == 0 ? NULL : resident + first, known == 0 ? 0 : known - first, sums);
  }
  return error;
}

int purgeable_heap_statistics(purgeable_heap_t *heap, purgeable_heap_statistics_t *statistics) {
  if (heap == NULL || statistics == NULL) return EINVAL;
  purgeable__enter(heap);
  purgeable_heap_statistics_t sums = {
      .element_count = atomic_load_explicit(&heap->element_count, memory_order_relaxed),
      .payload_bytes = atomic_load_explicit(&heap->payload_bytes, memory_order_relaxed),
      .locked_bytes = atomic_load_explicit(&heap->locked_bytes, memory_order_relaxed) +
                      atomic_load_explicit(&heap->written_bytes, memory_order_relaxed),
      .ordinary_bytes = atomic_load_explicit(&heap->ordinary_bytes, memory_order_relaxed),
      .mapped_bytes = atomic_load_explicit(&heap->mapped_bytes, memory_order_relaxed),
      .slab_count = atomic_load_explicit(&heap->slab_count, memory_order_relaxed),
      .discarded_payload_bytes = atomic_load_explicit(&heap->discarded_payload_bytes, memory_order_relaxed),
      .given_back_count = atomic_load_explicit(&heap->given_back_count, memory_order_relaxed),
      .given_back_bytes = atomic_load_explicit(&heap->given_back_bytes, memory_order_relaxed),
      .refused_lock_count = atomic_load_explicit(&heap->refused_lock_count, memory_order_relaxed),
      .moved_count = atomic_load_explicit(&heap->moved_count, memory_order_relaxed),
      .unbalanced_unlock_count = atomic_load_explicit(&heap->unbalanced_unlock_count, memory_order_relaxed),
      .refused_offer_count = atomic_load_explicit(&heap->refused_offer_count, memory_order_relaxed),
  };
  unsigned char *pages = purgeable__allocate(heap->chunk_bytes >> heap->page_shift, 1);
  int first_error = pages == NULL ? ENOMEM : 0;
  uint32_t chunks = atomic_load_explicit(&heap->chunk_count, memory_order_acquire);
  for (uint32_t number = 0; number < chunks; number++) {
    purgeable__chunk_t *chunk = atomic_load_explicit(&heap->chunks[number], memory_order_relaxed);
    pthread_mutex_lock(&heap->control->mutex);
    int error = add_chunk(heap, chunk, pages, &sums);
    if (first_error == 0) first_error = error;
    pthread_mutex_unlock(&heap->control->mutex);
  }
  free(pages);
  if (first_error != 0) sums.resident_bytes = 0;
  *statistics = sums;
  return first_error;
}
