// SPDX-License-Identifier: MIT
// Discards on demand: has the kernel take what is on offer, for demonstrations and tests.

#include "heap_fork.h"
#include "heap_give_back.h"
#include "heap_release.h"
#include "heap_slab.h"

static size_t count_resident(const unsigned char *pages, size_t count) {
  size_t resident = 0;
  for (size_t page = 0; page < count; page++) resident += pages[page] & 1;
  return resident;
}

// Pages [first, end) of what begins at `base`, a chunk's length at a time: `pages` has room for that much.
static int page_out_range(purgeable_heap_t *heap, char *base, size_t first, size_t end, unsigned char *pages,
                          size_t *gone_bytes) {
  size_t most = heap->chunk_bytes >> heap->page_shift;
  assert(first <= end && most != 0);
  while (first < end) {
    size_t count = end - first < most ? end - first : most;
    char *start = base + (first << heap->page_shift);
    size_t length = count << heap->page_shift;
    int error = purgeable__mincore(start, length, pages);
    size_t before = error == 0 ? count_resident(pages, count) : 0;
    if (before != 0) {
      error = purgeable__madvise(start, length, PURGEABLE__MADV_PAGEOUT);
      if (error == 0) error = purgeable__mincore(start, length, pages);
      size_t after = error == 0 ? count_resident(pages, count) : before;
      if (after < before) *gone_bytes += (before - after) << heap->page_shift;
    }
    if (error != 0) return error;
    first += count;
  }
  return 0;
}

int purgeable_heap_page_out(purgeable_heap_t *heap, size_t wanted_bytes, uint32_t *hand, size_t *discarded_bytes) {
  if (heap == NULL) return EINVAL;
  purgeable__enter(heap);
  if (discarded_bytes != NULL) *discarded_bytes = 0;
  purgeable__give_back_kept(heap);
  unsigned char *pages = purgeable__allocate(heap->chunk_bytes >> heap->page_shift, 1);
  if (pages == NULL) return ENOMEM;
  uint32_t units = load_acquire(&heap->chunk_count) * heap->units_per_chunk;
  uint32_t unit = hand == NULL || *hand >= units ? 0 : *hand;
  size_t gone = 0;
  int error = 0;
  for (uint32_t seen = 0; seen < units && gone < wanted_bytes && error == 0; seen++) {
    purgeable__spot_t spot = purgeable__find_unit(heap, unit);
    unit = unit + 1 == units ? 0 : unit + 1;
    // No mutex and no claim: pages whose offer was cancelled meanwhile are dirty, and the kernel keeps the content of those.
    uint8_t state = load_acquire(&spot.slab->state);
    if (!purgeable__state_is_in_use(state)) continue;
    // A large element that lies alone in its mapping has to stay mapped during the call.
    uint64_t word = purgeable__slab_word_acquire(spot.slab);
    if (purgeable__is_dying(word)) continue;
    bool is_alone = purgeable__is_alone(word);
    if (is_alone && purgeable__pin(spot.slab, purgeable__generation(word)) != 0) continue;
    if (is_alone) spot = purgeable__find_unit(heap, purgeable__unit_number(heap, spot));
    uint64_t offered = load_relaxed(&spot.slab->offered);
    size_t used = purgeable__slab_held_bytes(heap, spot.slab) >> heap->page_shift;
    for (size_t first = 0, end; first < used && error == 0; first = end) {
      bool wanted = (offered & purgeable__page_bit(spot.slab, first)) != 0;
      for (end = first + 1; end < used && ((offered & purgeable__page_bit(spot.slab, end)) != 0) == wanted;) end++;
      if (wanted) error = page_out_range(heap, purgeable__pages_of(heap, spot), first, end, pages, &gone);
    }
    if (is_alone) purgeable__release(heap, spot);
  }
  free(pages);
  if (hand != NULL) *hand = unit;
  if (discarded_bytes != NULL) *discarded_bytes = gone;
  return error;
}
