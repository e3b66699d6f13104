// SPDX-License-Identifier: MIT
// A slab's pages: which of them there are, and which may go on offer.

#include "heap_slab.h"

size_t purgeable__filled_pages(const purgeable_heap_t *heap, purgeable__slab_t *slab) {
  size_t used = purgeable__used_bytes(slab);
  bool whole = purgeable__is_sealed(slab) || !PURGEABLE_RULE(no_append_after_offer);
  return (whole ? used + heap->page_bytes - 1 : used) >> heap->page_shift;
}

size_t purgeable__offerable_pages(const purgeable_heap_t *heap, purgeable__slab_t *slab) {
  return purgeable__is_withheld(heap, slab) ? 0 : purgeable__filled_pages(heap, slab);
}

uint64_t purgeable__pages_mask(purgeable__slab_t *slab, size_t pages) {
  if (pages == 0) return 0;
  if (purgeable__is_run(slab) || pages > 63) return ~(uint64_t)0;
  return ((uint64_t)1 << pages) - 1;
}
