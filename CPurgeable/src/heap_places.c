// SPDX-License-Identifier: MIT
// For owners that keep places only: an index of 8-byte slots asks for the generation, and for what is known to be lost.

#include "heap_slab.h"

uint32_t purgeable_heap_generation(const purgeable_heap_t *heap, uint64_t place) {
  if (heap == NULL) return 0;
  purgeable__spot_t spot = purgeable__find(heap, place);
  if (spot.slab == NULL) return 0;
  // The caller reads the element next: its two lines come while the slab's word does.
  const char *element = spot.unit_base + (size_t)spot.granule * PURGEABLE_GRANULE_BYTES;
  __builtin_prefetch(element);
  __builtin_prefetch(element + 64);
  uint64_t word = purgeable__slab_word_acquire(spot.slab);
  return purgeable__is_dying(word) ? 0 : purgeable__generation(word);
}

bool purgeable_heap_page_is_lost(const purgeable_heap_t *heap, uint64_t place) {
  purgeable__spot_t spot = purgeable__find(heap, place);
  if (spot.slab == NULL) return true;
  uint64_t bit = purgeable__page_bit(spot.slab, purgeable__page_of(heap, spot));
  return (load_acquire(&spot.slab->lost) & bit) != 0;
}

bool purgeable_heap_slab_has_losses(const purgeable_heap_t *heap, uint64_t place) {
  purgeable__spot_t spot = purgeable__find(heap, place);
  if (spot.slab == NULL) return true;
  return purgeable__is_lossy(spot.chunk, spot.unit);
}

bool purgeable_heap_is_on_offer(const purgeable_heap_t *heap, uint64_t place) {
  if (heap == NULL) return false;
  purgeable__spot_t spot = purgeable__find(heap, place);
  if (spot.slab == NULL) return false;
  uint64_t bit = purgeable__page_bit(spot.slab, purgeable__page_of(heap, spot));
  return (load_relaxed(&spot.slab->offered) & bit) != 0;
}

purgeable_stream_t purgeable_heap_stream_at(const purgeable_heap_t *heap, uint64_t place) {
  purgeable__spot_t spot = purgeable__find(heap, place);
  return spot.slab == NULL ? 0 : load_relaxed(&spot.slab->stream);
}

bool purgeable_heap_has_losses(const purgeable_heap_t *heap) {
  return load_acquire(&heap->lossy_count) != 0;
}

void purgeable_heap_prefetch(const purgeable_heap_t *heap, uint64_t place) {
  enum { CACHE_LINE_BYTES = 64 };
  purgeable__spot_t spot = purgeable__find(heap, place);
  if (spot.slab == NULL) return;
  // The slab's word, and the header with what follows it. The second line is of the same page, or of no use.
  const char *element = spot.unit_base + (size_t)spot.granule * PURGEABLE_GRANULE_BYTES;
  __builtin_prefetch(spot.slab);
  __builtin_prefetch(element);
  __builtin_prefetch(element + CACHE_LINE_BYTES);
}

size_t purgeable_heap_find_losses(const purgeable_heap_t *heap, const void *slots, size_t slot_count, uint32_t place_bits,
                                  size_t *cursor, uint32_t *found, size_t capacity) {
  const _Atomic uint64_t *words = slots;
  uint64_t mask = place_bits > 63 ? UINT64_MAX : ((uint64_t)1 << place_bits) - 1;
  uint32_t chunk_shift = heap->chunk_place_shift, slab_shift = heap->slab_place_shift;
  uint64_t within = ((uint64_t)1 << chunk_shift) - 1;
  uint32_t chunks = load_acquire(&heap->chunk_count);
  // Loaded after the count, so the table is as new as the count.
  purgeable__chunk_t *_Atomic *entries = load_acquire(&heap->chunks);
  size_t count = 0, number = *cursor;
  // Slots beyond the 2^32nd have no number that fits `found`.
  if (number > UINT32_MAX) number = slot_count;
  size_t end = slot_count > (size_t)UINT32_MAX + 1 ? (size_t)UINT32_MAX + 1 : slot_count;
  for (; number < end && count < capacity; number++) {
    uint64_t place = load_relaxed(&words[number]) & mask;
    if (place == 0) continue;
    place--;
    if (place >> chunk_shift >= chunks) continue;
    // Nearly every slot ends here: three loads that stay in the cache.
    const purgeable__chunk_t *chunk = load_acquire(&entries[place >> chunk_shift]);
    size_t unit = (size_t)((place & within) >> slab_shift);
    if (!purgeable__may_be_lossy(chunk, unit)) continue;
    // In a slab of small elements the header's page decides; larger elements have to be looked at.
    bool spans = (load_relaxed(&purgeable__slab_at(chunk, (uint32_t)unit)->traits) & trait_spans_pages) != 0;
    if (spans || purgeable_heap_page_is_lost(heap, place)) found[count++] = (uint32_t)number;
  }
  *cursor = number == end ? slot_count : number;
  return count;
}
