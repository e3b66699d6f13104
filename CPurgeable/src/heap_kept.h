// SPDX-License-Identifier: MIT
// Slabs that are filled again without a wipe: which may be, the list of them, and what earlier lives left in their pages.
#ifndef PURGEABLE_HEAP_KEPT_H
#define PURGEABLE_HEAP_KEPT_H

#include "heap_slab.h"

#pragma GCC visibility push(hidden)

// MARK: What stands

// In a slab's `standing`: some page was on offer since the last wipe.
#define WAS_OFFERED ((uint8_t)0x80)

// How many pages at the front may hold bytes of earlier lives: 64 at most.
static inline uint32_t purgeable__standing_pages(const purgeable__slab_t *slab) {
  return load_relaxed(&slab->standing) & (uint8_t)~WAS_OFFERED;
}
static inline bool purgeable__was_offered(const purgeable__slab_t *slab) {
  return (load_relaxed(&slab->standing) & WAS_OFFERED) != 0;
}
// Under OFFERING, before the madvise: the claim for the end comes after it, and finds it.
static inline void purgeable__note_offered(purgeable__slab_t *slab) {
  (void)atomic_fetch_or_explicit(&slab->standing, WAS_OFFERED, memory_order_relaxed);
}
// What a slab holds of its memory, with what earlier lives left behind the fill.
static inline size_t purgeable__slab_standing_bytes(const purgeable_heap_t *heap, purgeable__slab_t *slab) {
  size_t held = purgeable__slab_held_bytes(heap, slab), standing = (size_t)purgeable__standing_pages(slab) << heap->page_shift;
  return held > standing ? held : standing;
}
void purgeable__clear_standing_part(const purgeable_heap_t *heap, purgeable__spot_t spot, char *bytes, size_t length_bytes);
// Makes what an element may still find of earlier lives zeros. The slab is pinned.
static inline void purgeable__clear_standing(const purgeable_heap_t *heap, purgeable__spot_t spot, char *bytes,
                                             size_t length_bytes) {
  bool has_standing = purgeable__standing_pages(spot.slab) != 0;
  if (has_standing && !heap->fills_whole) purgeable__clear_standing_part(heap, spot, bytes, length_bytes);
}
// Wipes the pages of earlier lives behind the page that is being filled. The stream's mutex held, and the slab open.
void purgeable__wipe_tail(purgeable_heap_t *heap, purgeable__spot_t spot);

// Whether the slab, claimed for its end, may be filled again as it is. Rescues its pages where that decides it. Heap's mutex not
// held.
bool purgeable__may_stand(const purgeable_heap_t *heap, purgeable__spot_t spot);

// MARK: The list. Heap's mutex held.

// How many slabs the heap may keep now.
uint32_t purgeable__kept_most(const purgeable_heap_t *heap);
// Keeps a slab whose life `generation` has ended, and that may stand, if there is room: then true, and it stays held.
bool purgeable__kept_push(purgeable_heap_t *heap, purgeable__spot_t spot, uint32_t generation);
// Takes the slab that was kept last off the list. False: there is none.
bool purgeable__kept_pop(purgeable_heap_t *heap, purgeable__spot_t *spot);

#pragma GCC visibility pop

#endif
