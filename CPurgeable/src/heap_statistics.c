// SPDX-License-Identifier: MIT
// A heap's figures: what its counters say, what its slabs say page by page, and what the kernel says.

#include "heap_books.h"
#include "heap_fork.h"
#include "heap_kept.h"
#include "heap_slab.h"

uint64_t purgeable_heap_held_bytes(const purgeable_heap_t *heap) {
  return heap == NULL ? 0 : load_relaxed(&heap->held_bytes);
}

uint64_t purgeable_heap_given_back_bytes(const purgeable_heap_t *heap) {
  return heap == NULL ? 0 : load_relaxed(&heap->given_back_bytes);
}

uint64_t purgeable_heap_ordinary_bytes(const purgeable_heap_t *heap) {
  return heap == NULL ? 0 : load_relaxed(&heap->ordinary_bytes);
}

// If a run loses any page, all its content is lost; its remaining pages stay resident until its owner frees it.
static void add_lost_run(const purgeable_heap_t *heap, bool on_offer, size_t held, const unsigned char *resident,
                         purgeable_heap_statistics_t *sums) {
  size_t gone = 0;
  for (size_t page = 0; page < held >> heap->page_shift; page++) gone += (resident[page] & 1) == 0;
  sums->memory.discarded_bytes += gone << heap->page_shift;
  sums->memory.offered_bytes += on_offer ? held - (gone << heap->page_shift) : 0;
}

// Idle pages that are not on offer wait for a call of the host, unless they are withheld.
static void add_waiting(const purgeable_heap_t *heap, purgeable__slab_t *slab, size_t bytes, purgeable_heap_statistics_t *sums) {
  uint64_t word = purgeable__slab_word_relaxed(slab);
  bool is_idle = purgeable__is_unheld(word) && heap->offering != purgeable_offering_never && !purgeable__is_withheld(heap, slab);
  if (is_idle) sums->memory.pending_bytes += bytes;
}

// Adds up one slab's pages by state. `resident` tells of `known` pages from the slab's first on. Heap's mutex held.
static void add_slab(const purgeable_heap_t *heap, purgeable__slab_t *slab, const unsigned char *resident, size_t known,
                     purgeable_heap_statistics_t *sums) {
  uint8_t state = load_relaxed(&slab->state);
  assert(purgeable__is_held(&heap->control->mutex));
  bool is_held = state == slab_unwiped || state == slab_kept;
  if (!purgeable__state_is_in_use(state) && !is_held) return;
  size_t held = purgeable__slab_held_bytes(heap, slab);
  sums->memory.held_bytes += purgeable__slab_standing_bytes(heap, slab);
  if (state == slab_kept) sums->kept_bytes += held;
  if (is_held) return;
  uint64_t lost = load_relaxed(&slab->lost);
  // Pages whose offer the kernel has not taken note of yet do not count as on offer.
  uint64_t offered = load_relaxed(&slab->offered) & load_relaxed(&slab->settled);
  if (purgeable__is_run(slab)) {
    if (lost == 0) {
      sums->memory.offered_bytes += offered != 0 ? held : 0;
      if (offered == 0) add_waiting(heap, slab, held, sums);
    } else if (held >> heap->page_shift <= known) {
      add_lost_run(heap, offered != 0, held, resident, sums);
    } else {
      sums->memory.discarded_bytes += held;
    }
    return;
  }
  size_t pages = held >> heap->page_shift;
  uint64_t all = pages > 63 ? ~(uint64_t)0 : ((uint64_t)1 << pages) - 1;
  sums->memory.offered_bytes += (uint64_t)__builtin_popcountll(offered & ~lost & all) << heap->page_shift;
  sums->memory.discarded_bytes += (uint64_t)__builtin_popcountll(lost & all) << heap->page_shift;
  add_waiting(heap, slab, (size_t)__builtin_popcountll(all & ~offered & ~lost) << heap->page_shift, sums);
  // A lost page that was looked at shows the kernel's one page of zeros, which mincore calls resident.
  for (size_t page = 0; page < pages && page < known; page++) {
    bool is_zeros = (lost & purgeable__page_bit(slab, page)) != 0 && (resident[page] & 1) != 0;
    if (is_zeros) sums->memory.resident_bytes -= heap->page_bytes;
  }
}

// Adds one chunk: what its slabs say, and what the kernel says. Heap's mutex held.
static int add_chunk(const purgeable_heap_t *heap, purgeable__chunk_t *chunk, unsigned char *resident,
                     purgeable_heap_statistics_t *sums) {
  uint32_t high = load_relaxed(&chunk->high_water);
  assert(high <= heap->units_per_chunk);
  size_t used = chunk->used_count == 0 ? 0 : (size_t)high << heap->slab_shift, pages = used >> heap->page_shift;
  int error = used == 0 || resident == NULL ? 0 : purgeable__mincore(chunk->base, used, resident);
  bool seen = resident != NULL && error == 0;
  for (size_t page = 0; seen && page < pages; page++) {
    sums->memory.resident_bytes += (uint64_t)(resident[page] & 1) << heap->page_shift;
  }
  // With swap in use, what is not resident may have been swapped out.
  size_t known = seen && !purgeable__swap_in_use() ? pages : 0;
  for (uint32_t unit = 0; unit < high && used != 0; unit++) {
    size_t first = (size_t)unit << heap->slab_shift >> heap->page_shift;
    add_slab(heap, purgeable__slab_at(chunk, unit), known == 0 ? NULL : resident + first, known == 0 ? 0 : known - first, sums);
  }
  return error;
}

// Adds a large element in a mapping of its own, a chunk's length at a time: `resident` has room for that. Heap's mutex held.
static int add_alone(const purgeable_heap_t *heap, purgeable__chunk_t *chunk, unsigned char *resident,
                     purgeable_heap_statistics_t *sums) {
  purgeable__slab_t *slab = purgeable__slab_at(chunk, 0);
  assert(purgeable__chunk_kind(heap, chunk->number) == chunk_alone && chunk->used_count <= 1);
  size_t there = 0;
  int error = 0;
  for (size_t start = 0; chunk->used_count != 0 && resident != NULL && start < chunk->mapped_bytes && error == 0;) {
    size_t length = chunk->mapped_bytes - start < heap->chunk_bytes ? chunk->mapped_bytes - start : heap->chunk_bytes;
    error = purgeable__mincore(chunk->base + start, length, resident);
    for (size_t page = 0; error == 0 && page < length >> heap->page_shift; page++) there += resident[page] & 1;
    start += length;
  }
  sums->memory.resident_bytes += there << heap->page_shift;
  if (chunk->used_count == 0) return 0;
  bool is_lost = load_relaxed(&slab->lost) != 0;
  if (!is_lost || error != 0 || purgeable__swap_in_use()) {
    add_slab(heap, slab, NULL, 0, sums);
    return error;
  }
  size_t held = purgeable__slab_held_bytes(heap, slab), left = there << heap->page_shift;
  sums->memory.held_bytes += held;
  sums->memory.discarded_bytes += held - left;
  if (load_relaxed(&slab->offered) != 0) sums->memory.offered_bytes += left;
  return 0;
}

int purgeable_heap_statistics(purgeable_heap_t *heap, purgeable_heap_statistics_t *statistics) {
  if (heap == NULL || statistics == NULL) return EINVAL;
  purgeable__enter(heap);
  purgeable_heap_statistics_t sums = {
      .memory =
          {
              .payload_bytes = purgeable__payload_bytes(heap),
              .locked_bytes = load_relaxed(&heap->locked_bytes) + purgeable__written_bytes(heap),
              .ordinary_bytes = load_relaxed(&heap->ordinary_bytes),
              .discarded_by_kernel_bytes = load_relaxed(&heap->discarded_by_kernel_bytes),
              .given_back_bytes = load_relaxed(&heap->given_back_bytes),
              .refused_lock_count = load_relaxed(&heap->refused_lock_count),
          },
      .element_count = purgeable__element_count(heap),
      .mapped_bytes = load_relaxed(&heap->mapped_bytes),
      .slab_count = load_relaxed(&heap->slab_count),
      .given_back_slab_count = load_relaxed(&heap->given_back_slab_count),
      .moved_element_count = load_relaxed(&heap->moved_element_count),
      .unbalanced_unlock_count = load_relaxed(&heap->unbalanced_unlock_count),
      .refused_offer_count = load_relaxed(&heap->refused_offer_count),
  };
  unsigned char *pages = purgeable__allocate(heap->chunk_bytes >> heap->page_shift, 1);
  int first_error = pages == NULL ? ENOMEM : 0;
  uint32_t chunks = load_acquire(&heap->chunk_count);
  for (uint32_t number = 0; number < chunks; number++) {
    pthread_mutex_lock(&heap->control->mutex);
    purgeable__chunk_t *chunk = purgeable__chunk_at(heap, number);
    bool is_alone = chunk != NULL && purgeable__chunk_kind(heap, number) == chunk_alone;
    int error = chunk == NULL ? 0 : is_alone ? add_alone(heap, chunk, pages, &sums) : add_chunk(heap, chunk, pages, &sums);
    if (first_error == 0) first_error = error;
    pthread_mutex_unlock(&heap->control->mutex);
  }
  free(pages);
  if (first_error != 0) sums.memory.resident_bytes = 0;
  *statistics = sums;
  return first_error;
}
