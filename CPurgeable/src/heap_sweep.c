// SPDX-License-Identifier: MIT
// Finding losses: which pages of what is on offer the kernel has taken.

#include "heap_books.h"
#include "heap_fork.h"
#include "heap_layout.h"
#include "heap_release.h"

// Pages of a slab: a bit of a word each.
enum { PAGES_MAX = 64 };

// Whether the page's first living element, touched, turns out to be gone. False where none begins in this page.
static bool touch_proves_loss(purgeable_heap_t *heap, purgeable__spot_t spot, size_t page) {
  uint32_t granules = (uint32_t)(heap->page_bytes / PURGEABLE_GRANULE_BYTES);
  for (uint32_t i = 0; i < granules; i++) {
    spot.granule = (uint32_t)page * granules + i;
    if (!purgeable__is_living(heap, spot)) continue;
    return load_acquire(purgeable__header_at(spot)) == 0;
  }
  return false;
}

// A large element's pages of zeros may go without loss: its witnesses decide.
static bool large_is_lost(purgeable_heap_t *heap, purgeable__spot_t spot) {
  assert(purgeable__is_large_slab(spot.slab));
  uint64_t word = purgeable__slab_word_acquire(spot.slab);
  purgeable_reference_t reference = {purgeable__place_of(heap, spot), purgeable__generation(word)};
  return purgeable__is_living(heap, spot) && purgeable_heap_check(heap, reference) == purgeable_outcome_discarded;
}

// The kernel goes on taking pages of a run that is known to be lost.
static void book_run(purgeable_heap_t *heap, purgeable__slab_t *slab, const unsigned char *resident) {
  assert(purgeable__is_run(slab));
  size_t pages = purgeable__slab_held_bytes(heap, slab) >> heap->page_shift, gone = 0;
  for (size_t page = 0; page < pages; page++) gone += (resident[page] & 1) == 0;
  purgeable__book_lost(heap, slab, (uint32_t)gone);
}

static size_t sweep_slab(purgeable_heap_t *heap, purgeable__spot_t spot, const unsigned char *resident, bool swap) {
  assert(purgeable__is_held(&heap->control->mutex));
  purgeable__slab_t *slab = spot.slab;
  PURGEABLE_TEST_PAUSE();
  uint64_t offered = load_relaxed(&slab->offered);
  uint64_t known = load_relaxed(&slab->lost);
  uint64_t word = purgeable__slab_word_acquire(slab);
  if (purgeable__is_dying(word)) return 0;
  if (known != 0 && purgeable__is_run(slab) && !swap) book_run(heap, slab, resident);
  if ((offered & ~known) == 0) return 0;
  size_t pages = purgeable__slab_held_bytes(heap, slab) >> heap->page_shift;
  size_t gone = 0;
  if (purgeable__is_large_slab(slab)) {
    for (size_t page = 0; page < pages; page++) {
      gone += (resident[page] & 1) == 0 && (known & purgeable__page_bit(slab, page)) == 0;
    }
    if (gone == 0 || !large_is_lost(heap, spot)) return 0;
    if (purgeable__is_run(slab) && !swap) purgeable__book_lost(heap, slab, (uint32_t)gone);
    // The first loss found has been recorded; for a run, that is the whole run. A page that is swapped out is not gone.
    if (purgeable__is_run(slab) || swap) return gone << heap->page_shift;
    gone = 0;
  }
  bool has_suspect = false;
  for (size_t page = 0; page < pages && !has_suspect; page++) {
    has_suspect = (resident[page] & 1) == 0 && (offered & ~known & purgeable__page_bit(slab, page)) != 0;
  }
  if (!has_suspect) return 0;
  // Asked again: a page that was not resident then may have been filled and offered since, under the stream's mutex alone. What
  // `offered` names has been filled, so what is not resident now is gone. Without an answer, the next sweep asks. A large element
  // has been proven lost, and the look at it has made a page resident that is gone: the kernel's page of zeros.
  unsigned char now[PAGES_MAX];
  assert(pages <= PAGES_MAX);
  if (!purgeable__is_large_slab(slab) && PURGEABLE_RULE(ask_again_before_loss)) {
    if (purgeable__mincore(purgeable__pages_of(heap, spot), pages << heap->page_shift, now) != 0) return 0;
    resident = now;
  }
  for (size_t page = 0; page < pages; page++) {
    uint64_t bit = purgeable__page_bit(slab, page);
    if ((resident[page] & 1) != 0 || (offered & ~known & bit) == 0) continue;
    if (swap && !touch_proves_loss(heap, spot, page)) continue;
    gone += purgeable__mark_lost(heap, spot, purgeable__generation(word), page);
  }
  return gone << heap->page_shift;
}

// A run over several chunks: mincore chunk by chunk, then as any large slab. `resident` has room for one chunk.
static int sweep_run(purgeable_heap_t *heap, purgeable__spot_t spot, unsigned char *resident, size_t *discarded_bytes) {
  assert(purgeable__is_held(&heap->control->mutex));
  purgeable__slab_t *slab = spot.slab;
  bool is_known = load_relaxed(&slab->lost) != 0;
  if (load_relaxed(&slab->offered) == 0 && !is_known) return 0;
  size_t used = purgeable__slab_held_bytes(heap, slab), gone = 0;
  for (size_t start = 0; start < used; start += heap->chunk_bytes) {
    size_t length = used - start < heap->chunk_bytes ? used - start : heap->chunk_bytes;
    int error = purgeable__mincore(purgeable__pages_of(heap, spot) + start, length, resident);
    if (error != 0) return error;
    for (size_t page = 0; page < length >> heap->page_shift; page++) gone += (resident[page] & 1) == 0;
  }
  bool is_new = gone != 0 && !is_known && large_is_lost(heap, spot);
  if ((is_new || is_known) && !purgeable__swap_in_use()) purgeable__book_lost(heap, slab, (uint32_t)gone);
  if (is_new) *discarded_bytes += gone << heap->page_shift;
  return 0;
}

int purgeable_heap_sweep(purgeable_heap_t *heap, size_t *discarded_bytes) {
  if (heap == NULL) return EINVAL;
  purgeable__enter(heap);
  if (discarded_bytes != NULL) *discarded_bytes = 0;
  size_t pages = heap->chunk_bytes >> heap->page_shift;
  unsigned char *resident = purgeable__allocate(pages, 1);
  if (resident == NULL) return ENOMEM;
  bool swap = purgeable__swap_in_use();
  size_t lost = 0;
  int first_error = 0;
  uint32_t chunks = load_acquire(&heap->chunk_count);
  for (uint32_t number = 0; number < chunks; number++) {
    // The heap's mutex keeps every life going from the look to the record; it is held for one chunk at a time.
    pthread_mutex_lock(&heap->control->mutex);
    purgeable__chunk_t *chunk = purgeable__chunk_at(heap, number);
    // No part of the chunk is in use, or its mapping is just being ended.
    bool is_gone = chunk == NULL || chunk->used_count == 0 || chunk->mapped_bytes == 0;
    uint32_t high = is_gone ? 0 : load_relaxed(&chunk->high_water);
    size_t used = (size_t)high << heap->slab_shift;
    int error = used == 0 ? 0 : purgeable__mincore(chunk->base, used, resident);
    if (first_error == 0) first_error = error;
    for (uint32_t unit = 0; error == 0 && unit < high; unit++) {
      if (!purgeable__is_used(chunk, unit)) continue;
      purgeable__spot_t spot = purgeable__find_unit(heap, number * heap->units_per_chunk + unit);
      // A run that extends past this chunk is queried on its own; the rest of this chunk belongs to it.
      bool beyond = purgeable__used_bytes(spot.slab) > used - ((size_t)unit << heap->slab_shift);
      if (beyond) {
        error = sweep_run(heap, spot, resident, &lost);
        if (first_error == 0) first_error = error;
      } else {
        lost += sweep_slab(heap, spot, resident + ((size_t)unit << heap->slab_shift >> heap->page_shift), swap);
      }
    }
    pthread_mutex_unlock(&heap->control->mutex);
  }
  free(resident);
  if (discarded_bytes != NULL) *discarded_bytes = lost;
  return first_error;
}
