// SPDX-License-Identifier: MIT
// Locks of elements: counted in the slab, rescued page by page, booked by length.

#include "heap_books.h"
#include "heap_fork.h"
#include "heap_layout.h"
#include "heap_offer.h"
#include "heap_overdue.h"
#include "heap_release.h"

// Rescues every page of the element. False: one is gone, `*lost_page` says which; what was rescued before it is off offer now.
static bool rescue_pages(purgeable_heap_t *heap, purgeable__spot_t spot, purgeable__layout_t layout, uint64_t *rescued,
                         size_t *lost_page) {
  for (uint32_t number = 1; number <= layout.more_pages; number++) {
    uint16_t entry;
    _Atomic uint64_t *witness = purgeable__witness(heap, spot, layout, number, &entry);
    if (entry == WITNESS_ZEROS) continue;
    if (witness == NULL || !purgeable__rescue(witness)) {
      *lost_page = layout.first_page + number;
      return false;
    }
    *rescued |= purgeable__page_bit(spot.slab, layout.first_page + number);
  }
  return true;
}

// Books a lock, unless the limit refuses it. Nothing is added that would have to be taken back, so of two locks at once one
// succeeds if there is room for one.
static bool book_lock(purgeable_heap_t *heap, size_t length_bytes) {
  uint64_t limit = load_relaxed(&heap->locked_byte_limit);
  uint64_t sum = load_relaxed(&heap->locked_bytes);
  do {
    if (limit != 0 && (sum > limit || length_bytes > limit - sum)) {
      add_relaxed(&heap->refused_lock_count, 1);
      return false;
    }
  } while (!atomic_compare_exchange_weak_explicit(&heap->locked_bytes, &sum, sum + length_bytes, memory_order_relaxed,
                                                  memory_order_relaxed));
  return true;
}

// Locks an element whose slab is pinned and inside of no offer. Every outcome but intact releases the pin.
static purgeable_outcome_t lock_pinned(purgeable_heap_t *heap, purgeable__spot_t spot, purgeable_reference_t reference,
                                       const void **bytes, size_t *length_bytes) {
  purgeable_outcome_t outcome = purgeable_outcome_error;
  uint64_t header = 0;
  size_t lost_page = purgeable__page_of(heap, spot);
  // Booked by the length that the header tells before anything is dirtied; a header that is gone, or is none, books 0.
  size_t booked = 0;
  if (purgeable__is_living(heap, spot)) {
    _Atomic uint64_t *header_word = purgeable__header_at(spot);
    header = load_acquire(header_word);
    if (header == purgeable__header(heap, reference.place, (uint32_t)reference.generation, (uint32_t)header)) {
      booked = (uint32_t)header;
      if (!book_lock(heap, booked)) {
        purgeable__release(heap, spot);
        errno = EAGAIN;
        return purgeable_outcome_error;
      }
    }
    // The header is its page's witness; rescued first, so that what it vouches for stays.
    bool here = purgeable__rescue(header_word);
    header = load_acquire(header_word);
    size_t length = (uint32_t)header;
    uint64_t rescued = here ? purgeable__page_bit(spot.slab, lost_page) : 0;
    if (!here) {
      outcome = purgeable_outcome_discarded;
    } else if (header == purgeable__header(heap, reference.place, (uint32_t)reference.generation, (uint32_t)length)) {
      purgeable__layout_t layout = purgeable__layout(heap, spot.granule, length);
      outcome = rescue_pages(heap, spot, layout, &rescued, &lost_page) ? purgeable_outcome_intact : purgeable_outcome_discarded;
      if (outcome == purgeable_outcome_intact) {
        if (bytes != NULL) *bytes = (const char *)header_word + layout.payload_offset;
        if (length_bytes != NULL) *length_bytes = length;
        // What was read before the rescue is this life's header or, on a page that is gone, none.
        assert(booked == length);
      }
    }
    // Off offer until the slab is idle again. A failed rescue gives nothing back: neighbours may be locked on the same page.
    if (rescued != 0) {
      atomic_fetch_and_explicit(&spot.slab->offered, ~rescued, memory_order_relaxed);
      // Set so that the upkeep sees slabs whose holders always overlap (`note_busy`).
      store_relaxed(&heap->pending, true);
    }
  }
  if (outcome == purgeable_outcome_intact) return outcome;
  if (booked != 0) purgeable__take_off(&heap->locked_bytes, booked);
  if (outcome == purgeable_outcome_discarded) {
    (void)purgeable__mark_lost(heap, spot, (uint32_t)reference.generation, lost_page);
  }
  purgeable__release(heap, spot);
  if (outcome == purgeable_outcome_error) errno = ESTALE;
  return outcome;
}

purgeable_outcome_t purgeable_heap_lock(purgeable_heap_t *heap, purgeable_reference_t reference, const void **bytes,
                                        size_t *length_bytes) {
  if (heap == NULL) {
    errno = EINVAL;
    return purgeable_outcome_error;
  }
  purgeable__enter(heap);
  purgeable__spot_t spot = purgeable__find(heap, reference.place);
  bool is_name = spot.slab != NULL && reference.generation != 0 && reference.generation <= UINT32_MAX;
  int error = is_name ? purgeable__pin(spot.slab, (uint32_t)reference.generation) : ESTALE;
  if (error != 0) {
    errno = error;
    return purgeable_outcome_error;
  }
  purgeable__wait_for_offer(heap, spot.slab);
  return lock_pinned(heap, spot, reference, bytes, length_bytes);
}

int purgeable_heap_unlock(purgeable_heap_t *heap, purgeable_reference_t reference) {
  if (heap == NULL) return EINVAL;
  purgeable__enter(heap);
  purgeable__spot_t spot = purgeable__resolve(heap, reference);
  if (spot.slab == NULL) return ESTALE;
  bool is_locked = purgeable__lock_count(purgeable__slab_word_relaxed(spot.slab)) != 0;
  if (is_locked) {
    uint64_t header = load_relaxed(purgeable__header_at(spot));
    uint32_t length = (uint32_t)header;
    if (header != purgeable__header(heap, reference.place, (uint32_t)reference.generation, length)) return ESTALE;
    if (purgeable__release(heap, spot)) {
      // An unlock of a neighbour that was never locked takes off more than was put on: never below 0.
      purgeable__take_off(&heap->locked_bytes, length);
      purgeable__offer_if_overdue(heap);
      return 0;
    }
  }
  add_relaxed(&heap->unbalanced_unlock_count, 1);
  return EPERM;
}
