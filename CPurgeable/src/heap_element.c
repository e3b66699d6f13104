// SPDX-License-Identifier: MIT
// An element's life from commit to free, and its tag. How it gets its room: heap_allocate.c.

#include "heap_element.h"

#include "heap_books.h"
#include "heap_fork.h"
#include "heap_layout.h"
#include "heap_overdue.h"
#include "heap_release.h"

// MARK: Commit

// An element that is being written, by its header; its slab is held by the writer's count, so the header can be trusted.
static bool is_being_written(const purgeable_heap_t *heap, purgeable__spot_t spot, purgeable_reference_t reference,
                             uint32_t *length_bytes) {
  uint64_t header = purgeable__load_unsettled(purgeable__header_at(spot));
  *length_bytes = (uint32_t)header;
  uint64_t expected = purgeable__header(heap, reference.place, (uint32_t)reference.generation, *length_bytes);
  return *length_bytes != 0 && header == purgeable__header_while_written(expected);
}

// Takes the witness of every page after the first: the first non-zero word of the element's own bytes in it.
static void take_witnesses(purgeable_heap_t *heap, purgeable__spot_t spot, purgeable__layout_t layout, size_t length_bytes) {
  assert(length_bytes != 0 && ((uintptr_t)purgeable__header_at(spot) & 7) == 0);
  char *header = (char *)purgeable__header_at(spot);
  char *element_end = header + purgeable__round_up(layout.payload_offset + length_bytes, sizeof(uint64_t));
  _Atomic uint16_t *table = purgeable__table_at(spot);
  // First no entry is 0 any more: pages that hold nothing but entries have a witness in themselves.
  for (uint32_t i = 0; i < layout.more_pages; i++) store_relaxed(&table[i], WITNESS_ZEROS);
  for (uint32_t number = 1; number <= layout.more_pages; number++) {
    char *page = purgeable__pages_of(heap, spot) + ((size_t)(layout.first_page + number) << heap->page_shift);
    char *end = page + heap->page_bytes < element_end ? page + heap->page_bytes : element_end;
    const uint64_t *first = (const uint64_t *)(const void *)page;
    const uint64_t *found = purgeable__first_nonzero(first, (const uint64_t *)(const void *)end);
    uint16_t entry = found == NULL ? WITNESS_ZEROS : (uint16_t)(found - first + 1);
    assert(entry != 0 && (found == NULL || entry != WITNESS_ZEROS));
    store_relaxed(&table[number - 1], entry);
  }
}

int purgeable_heap_commit(purgeable_heap_t *heap, purgeable_reference_t reference) {
  if (heap == NULL) return EINVAL;
  purgeable__enter(heap);
  purgeable__spot_t spot = purgeable__resolve(heap, reference);
  uint32_t length;
  if (spot.slab == NULL || !is_being_written(heap, spot, reference, &length)) return ESTALE;
  take_witnesses(heap, spot, purgeable__layout(heap, spot.granule, length), length);
  uint64_t header = purgeable__header(heap, reference.place, (uint32_t)reference.generation, length);
  // Release: whoever finds the header valid sees the payload and the table.
  store_release(purgeable__header_at(spot), header);
  add_relaxed(purgeable__page_bytes(heap, spot), length);
  add_relaxed(&spot.slab->payload_bytes, length);
  purgeable__tally_t *tally = purgeable__tally(heap);
  add_relaxed(&tally->payload_bytes, length);
  add_relaxed(&tally->element_count, 1);
  subtract_relaxed(&tally->written_bytes, length);
  atomic_fetch_add(&spot.slab->element_count, 1);
  // Release: pairs with `purgeable__is_living`.
  atomic_fetch_or_explicit(purgeable__living_word(heap, spot), (uint64_t)1 << (spot.granule % 64), memory_order_release);
  purgeable__release(heap, spot);
  purgeable__offer_if_overdue(heap);
  return 0;
}

// MARK: Free

// Takes a freed element's payload off the books, unless its page's loss has done so already.
static void forget_payload(purgeable_heap_t *heap, purgeable__spot_t spot, purgeable_reference_t reference) {
  uint64_t header = load_relaxed(purgeable__header_at(spot));
  uint32_t length = (uint32_t)header;
  // A page that is gone reads as zeros. The lengths of its elements are recorded with the page.
  if (header != purgeable__header(heap, reference.place, (uint32_t)reference.generation, length)) {
    size_t page = ((size_t)spot.granule * PURGEABLE_GRANULE_BYTES) >> heap->page_shift;
    purgeable__mark_lost(heap, spot, (uint32_t)reference.generation, page);
    return;
  }
  _Atomic uint32_t *page_bytes = purgeable__page_bytes(heap, spot);
  uint32_t sum = load_relaxed(page_bytes);
  do {
    if (sum < length) return;
  } while (!atomic_compare_exchange_weak_explicit(page_bytes, &sum, sum - length, memory_order_acq_rel, memory_order_relaxed));
  subtract_relaxed(&spot.slab->payload_bytes, length);
  subtract_relaxed(&purgeable__tally(heap)->payload_bytes, length);
}

// The header no longer says "being written". True for one caller only; relaxed, since nobody reads on from what it leaves.
static bool abandon(purgeable_heap_t *heap, purgeable__spot_t spot, purgeable_reference_t reference, uint32_t length_bytes) {
  uint64_t header = purgeable__header(heap, reference.place, (uint32_t)reference.generation, length_bytes);
  uint64_t expected = purgeable__header_while_written(header);
  return atomic_compare_exchange_strong_explicit(purgeable__header_at(spot), &expected, ~(uint64_t)0, memory_order_relaxed,
                                                 memory_order_relaxed);
}

// Whether all that may still happen to the elements of a slab that the caller has pinned is that they are read or freed: it is
// sealed, and nobody else has it locked, to write to one of them.
static bool is_settled(purgeable__slab_t *slab) {
  uint32_t count = purgeable__is_sealed(slab) ? purgeable__lock_count(purgeable__slab_word_ordered(slab)) : 0;
  return count == 1 && !purgeable__is_large_slab(slab);
}

uint32_t purgeable__free_living(purgeable_heap_t *heap, purgeable__spot_t spot, purgeable_slab_t slab) {
  uint32_t end = purgeable__is_run(spot.slab) ? 1 : load_acquire(&spot.slab->used_granule_count);
  bool at_once = is_settled(spot.slab);
  uint32_t freed = 0;
  for (uint32_t first = 0; first < end; first += 64) {
    spot.granule = first;
    // The exchange makes this caller the one who frees them, as the single bit does in `purgeable_heap_free`.
    uint64_t word = atomic_exchange(purgeable__living_word(heap, spot), 0);
    freed += (uint32_t)__builtin_popcountll(word);
    for (; !at_once && word != 0; word &= word - 1) {
      spot.granule = first + (uint32_t)__builtin_ctzll(word);
      purgeable_reference_t reference = {(uint64_t)slab.index * heap->granules_per_slab + spot.granule, slab.generation};
      forget_payload(heap, spot, reference);
    }
  }
  // Books page by page, without a look at the elements. A thread that frees one of them at this moment finds its bytes already
  // taken off the books.
  uint64_t bytes = 0;
  for (size_t granule = 0; at_once && granule < end; granule += heap->page_bytes / PURGEABLE_GRANULE_BYTES) {
    spot.granule = (uint32_t)granule;
    bytes += atomic_exchange_explicit(purgeable__page_bytes(heap, spot), 0, memory_order_acq_rel);
  }
  subtract_relaxed(&spot.slab->payload_bytes, (uint32_t)bytes);
  subtract_relaxed(&purgeable__tally(heap)->payload_bytes, bytes);
  subtract_relaxed(&purgeable__tally(heap)->element_count, freed);
  atomic_fetch_sub(&spot.slab->element_count, freed);
  return freed;
}

int purgeable_heap_free(purgeable_heap_t *heap, purgeable_reference_t reference) {
  if (heap == NULL) return EINVAL;
  purgeable__enter(heap);
  purgeable__spot_t spot = purgeable__resolve(heap, reference);
  if (spot.slab == NULL) return ESTALE;
  uint64_t bit = (uint64_t)1 << (spot.granule % 64);
  // The bit makes one caller the one who frees; the slab cannot end its life until the count of the living goes down below.
  // A reference whose slab was given back since `resolve` finds the bit clear, unless an element of the next life begins at the
  // same granule: then the generation is asked again while the slab is pinned.
  // If the lock count is saturated (EOVERFLOW), those locks already keep the life going: no pin is needed.
  int error = purgeable__pin(spot.slab, (uint32_t)reference.generation);
  bool pinned = error == 0;
  if (!pinned && error != EOVERFLOW) return ESTALE;
  uint32_t length;
  if ((atomic_fetch_and(purgeable__living_word(heap, spot), ~bit) & bit) != 0) {
    forget_payload(heap, spot, reference);
    subtract_relaxed(&purgeable__tally(heap)->element_count, 1);
    // Sequentially consistent: before the look at the lock count in unpin (3 in heap_word.c).
    atomic_fetch_sub(&spot.slab->element_count, 1);
    error = 0;
  } else if (is_being_written(heap, spot, reference, &length) && abandon(heap, spot, reference, length)) {
    // Gives back the writer's count.
    subtract_relaxed(&purgeable__tally(heap)->written_bytes, length);
    purgeable__release(heap, spot);
    error = 0;
  } else {
    error = ESTALE;
  }
  if (pinned) purgeable__release(heap, spot);
  return error;
}

// MARK: Tags

// The tag of an element whose slab is pinned. Stream's mutex held.
static uint64_t tag_of(purgeable_heap_t *heap, purgeable__spot_t spot) {
  if (!heap->keeps_tags) return 0;
  const purgeable__tag_t *tags = *purgeable__tags_at(heap, spot.chunk, spot.unit);
  uint32_t low = 0, high = spot.slab->tag_count;
  while (low < high) {
    uint32_t middle = low + (high - low) / 2;
    if (tags[middle].granule < spot.granule) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  assert(low < spot.slab->tag_count && tags[low].granule == spot.granule);
  uint64_t tag;
  memcpy(&tag, tags[low].parts, sizeof tag);
  return tag;
}

int purgeable_heap_tag(purgeable_heap_t *heap, purgeable_reference_t reference, uint64_t *tag) {
  if (heap == NULL || tag == NULL) return EINVAL;
  if (!heap->keeps_tags) return ENOTSUP;
  purgeable__enter(heap);
  purgeable__spot_t spot = purgeable__resolve(heap, reference);
  if (spot.slab == NULL || purgeable__pin(spot.slab, (uint32_t)reference.generation) != 0) return ESTALE;
  int error = ESTALE;
  // Acquire: pairs with `purgeable__list_insert`.
  purgeable_stream_t stream = load_acquire(&spot.slab->stream);
  // The stream's mutex: an open slab's table may be growing.
  pthread_mutex_lock(purgeable__stream_mutex(heap, stream));
  if (purgeable__is_living(heap, spot)) {
    error = 0;
    *tag = tag_of(heap, spot);
  }
  pthread_mutex_unlock(purgeable__stream_mutex(heap, stream));
  purgeable__release(heap, spot);
  return error;
}
