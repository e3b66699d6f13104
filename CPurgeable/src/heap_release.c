// SPDX-License-Identifier: MIT
// Letting go of a slab. Every count that goes may be the last one, and then there is work:
//
//     last count --- sealed and empty -----------> given back
//                |-- immediate, or limit 0 ------> offered
//                '-- else -----------------------> booked as waiting, for the upkeep

#include "heap_release.h"

#include "heap_books.h"
#include "heap_give_back.h"
#include "heap_kept.h"
#include "heap_offer.h"

// MARK: Counting down

// Answers the word before. An extra unlock steals another holder's count; it must not underflow into the flags.
static uint64_t count_down(purgeable_heap_t *heap, purgeable__slab_t *slab, bool quietly) {
  uint64_t before = purgeable__slab_word_relaxed(slab);
  bool booked = false;
  do {
    if (purgeable__lock_count(before) == 0) break;
    // Booked while the slab is still held, so the books are of this life.
    if (purgeable__lock_count(before) == 1 && !booked && purgeable__is_sealed(slab)) {
      purgeable__begin_waiting(heap, slab, quietly);
      booked = true;
    }
    // Before the look at the living (3 in heap_word.c).
  } while (!purgeable__slab_word_change(slab, &before, before - 1));
  return before;
}

// A look at content must not call the kernel, nor take a mutex in a signal handler. The upkeep does the rest, or the next call
// that finds too much waiting.
void purgeable__release_quietly(purgeable_heap_t *heap, purgeable__slab_t *slab) {
  if (purgeable__lock_count(count_down(heap, slab, true)) == 1) purgeable__note_pending(heap);
}

bool purgeable__release(purgeable_heap_t *heap, purgeable__spot_t spot) {
  uint64_t before = count_down(heap, spot.slab, false);
  if (purgeable__lock_count(before) != 1) return purgeable__lock_count(before) != 0;
  bool is_empty = atomic_load(&spot.slab->element_count) == 0, is_sealed = purgeable__is_sealed(spot.slab);
  if (is_empty && is_sealed) {
    purgeable__give_back_if_empty(heap, spot, purgeable__generation(before));
  } else if (heap->offering == purgeable_offering_immediate || (is_sealed && purgeable__nothing_may_wait(heap))) {
    int error = purgeable__offer_run(heap, &spot, 1, false, NULL);
    // An open slab's last page is left, and what was written beside an offer that is under way.
    if (!is_sealed || error == EBUSY) purgeable__note_pending(heap);
  } else {
    purgeable__note_pending(heap);
  }
  return true;
}

// MARK: Sealing

// Makes a table that fits, so that the next slab of the stream can have the large table. Without memory for a table that fits,
// the slab keeps the large one.
static void fit_tags(purgeable_heap_t *heap, purgeable__spot_t spot) {
  if (!heap->keeps_tags) return;
  purgeable__slab_t *slab = spot.slab;
  purgeable__tag_t **table = purgeable__tags_at(heap, spot.chunk, spot.unit);
  purgeable__stream_t *list = purgeable__stream(heap, load_relaxed(&slab->stream));
  purgeable__tag_t *wide = *table;
  if (wide == NULL) return;
  size_t bytes = slab->tag_count * sizeof *wide;
  assert(slab->tag_count <= list->tag_capacity);
  purgeable__tag_t *fitted = purgeable__allocate(1, bytes);
  if (fitted == NULL) {
    // From here on the table counts as one that fits: the claim knows no other size.
    subtract_relaxed(&heap->ordinary_bytes, list->tag_capacity * sizeof *wide - bytes);
    list->tag_capacity = 0;
    return;
  }
  memcpy(fitted, wide, bytes);
  *table = fitted;
  list->spare_tags = wide;
  add_relaxed(&heap->ordinary_bytes, bytes);
}

// The stream's mutex held.
void purgeable__seal(purgeable_heap_t *heap, purgeable__spot_t spot) {
  purgeable__slab_t *slab = spot.slab;
  uint32_t generation = purgeable__slab_generation(slab);
  assert(atomic_load(&slab->state) == slab_open);
  assert(purgeable__is_held(purgeable__stream_mutex(heap, load_relaxed(&slab->stream))));
  fit_tags(heap, spot);
  purgeable__wipe_tail(heap, spot);
  // Pages that were never touched are not held.
  subtract_relaxed(&heap->held_bytes, heap->slab_bytes - purgeable__slab_held_bytes(heap, slab));
  // Pinned over the change of state: so the slab's elements may be freed by others meanwhile, and the unpin sees that.
  bool pinned = purgeable__pin(slab, generation) == 0;
  atomic_store(&slab->state, slab_sealed);
  store_relaxed(&heap->pending, true);
  if (pinned) purgeable__release(heap, spot);
}

void purgeable__seal_if_open(purgeable_heap_t *heap, purgeable_slab_t slab, purgeable__spot_t spot) {
  purgeable_stream_t stream = load_relaxed(&spot.slab->stream);
  pthread_mutex_lock(purgeable__stream_mutex(heap, stream));
  if (purgeable__stream(heap, stream)->open == slab.index + 1 && purgeable__slab_generation(spot.slab) == slab.generation) {
    purgeable__stream(heap, stream)->open = 0;
    purgeable__seal(heap, spot);
  }
  pthread_mutex_unlock(purgeable__stream_mutex(heap, stream));
}

// MARK: Losses

bool purgeable__mark_lost(purgeable_heap_t *heap, purgeable__spot_t spot, uint32_t generation, size_t page) {
  purgeable__slab_t *slab = spot.slab;
  // Generation 0 is nobody's, though the directory of an emptied chunk reads as 0.
  if (generation == 0) return false;
  // The pin keeps this life going until the books are right.
  if (purgeable__pin(slab, generation) != 0) return false;
  uint64_t bit = purgeable__page_bit(slab, page);
  if ((atomic_fetch_or_explicit(&slab->lost, bit, memory_order_acq_rel) & bit) == 0) {
    // A large element's payload is booked on its first page, whichever of them went.
    size_t booked = purgeable__is_large_slab(slab) ? 0 : page;
    _Atomic uint32_t *bytes = purgeable__pages_at(heap, spot.chunk, spot.unit) + booked;
    // Exchange: a free that finds 0 here knows that its bytes have been taken off already.
    uint32_t lost = atomic_exchange_explicit(bytes, 0, memory_order_acq_rel);
    subtract_relaxed(&slab->payload_bytes, lost);
    subtract_relaxed(&purgeable__tally(heap)->payload_bytes, lost);
    add_relaxed(&heap->discarded_by_kernel_bytes, lost);
    // Sweeps count the lost pages of a run: its other pages are still resident.
    if (!purgeable__is_run(slab)) {
      uint64_t lost_mask = load_relaxed(&slab->lost);
      purgeable__book_lost(heap, slab, (uint32_t)__builtin_popcountll(lost_mask));
    }
    if (!purgeable__set_lossy(spot.chunk, spot.unit)) atomic_fetch_add_explicit(&heap->lossy_count, 1, memory_order_release);
  }
  purgeable__release_quietly(heap, slab);
  return true;
}
