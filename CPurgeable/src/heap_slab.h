// SPDX-License-Identifier: MIT
// What a slab's fields say: its state, what it holds, its pages as bits.
#ifndef PURGEABLE_HEAP_SLAB_H
#define PURGEABLE_HEAP_SLAB_H

#include "heap_chunks.h"

#pragma GCC visibility push(hidden)

// MARK: State

static inline bool purgeable__state_is_sealed(uint8_t state) { return state == slab_sealed || state == slab_large; }
// Open, sealed or large: a life is going on.
static inline bool purgeable__state_is_in_use(uint8_t state) { return state == slab_open || purgeable__state_is_sealed(state); }
// Sequentially consistent: pairs with the store in `purgeable__seal`.
static inline bool purgeable__is_sealed(const purgeable__slab_t *slab) {
  return purgeable__state_is_sealed(atomic_load(&slab->state));
}
static inline bool purgeable__is_large_slab(const purgeable__slab_t *slab) { return load_relaxed(&slab->state) == slab_large; }
static inline bool purgeable__is_run(const purgeable__slab_t *slab) { return load_relaxed(&slab->unit_count) > 1; }

// MARK: Bytes and pages

static inline size_t purgeable__used_bytes(purgeable__slab_t *slab) {
  return (size_t)load_acquire(&slab->used_granule_count) * PURGEABLE_GRANULE_BYTES;
}
// What a slab holds of its memory: whole pages up to the last granule in use.
static inline size_t purgeable__slab_held_bytes(const purgeable_heap_t *heap, purgeable__slab_t *slab) {
  return purgeable__round_up(purgeable__used_bytes(slab), heap->page_bytes);
}
// The bit of a page in a slab's masks. Runs of several units have one bit for all of their pages.
static inline uint64_t purgeable__page_bit(purgeable__slab_t *slab, size_t page) {
  return purgeable__is_run(slab) || page > 63 ? ~(uint64_t)0 : (uint64_t)1 << page;
}
// The bits of a slab's first pages.
uint64_t purgeable__pages_mask(purgeable__slab_t *slab, size_t pages);
static inline bool purgeable__has_trait(const purgeable__slab_t *slab, purgeable__trait_t trait) {
  return (load_relaxed(&slab->traits) & trait) != 0;
}
static inline void purgeable__set_trait(purgeable__slab_t *slab, purgeable__trait_t trait, bool holds) {
  if (purgeable__has_trait(slab, trait) == holds) return;
  if (holds) {
    (void)atomic_fetch_or_explicit(&slab->traits, (uint8_t)trait, memory_order_relaxed);
  } else {
    (void)atomic_fetch_and_explicit(&slab->traits, (uint8_t)~trait, memory_order_relaxed);
  }
}
// Whether the slab, or its whole stream, is kept off offer (`purgeable_slab_withhold`, `purgeable_stream_withhold`).
static inline bool purgeable__is_withheld(const purgeable_heap_t *heap, const purgeable__slab_t *slab) {
  if (purgeable__has_trait(slab, trait_withheld)) return true;
  purgeable_stream_t stream = load_relaxed(&slab->stream);
  const purgeable__stream_t *block =
      stream < STREAM_FIRST ? heap->first_streams : heap->stream_blocks[stream / STREAM_BLOCK];
  return load_relaxed(&block[stream % (stream < STREAM_FIRST ? STREAM_FIRST : STREAM_BLOCK)].is_withheld);
}
// The offer of a slab was refused, and is not tried again now.
static inline bool purgeable__rests_refused(const purgeable_heap_t *heap, const purgeable__slab_t *slab) {
  return purgeable__has_trait(slab, trait_refused) && !load_relaxed(&heap->tries_refused);
}
// How many pages of a slab are not written any more: all of a sealed one, those before the page being filled of an open one.
size_t purgeable__filled_pages(const purgeable_heap_t *heap, purgeable__slab_t *slab);
// How many of them may go on offer: all, or none where the slab is withheld.
size_t purgeable__offerable_pages(const purgeable_heap_t *heap, purgeable__slab_t *slab);

// A number of the calling thread, never 0; two threads may have the same one by chance.
static inline uint16_t purgeable__own_filler(void) {
  uint64_t self = (uint64_t)(uintptr_t)pthread_self() * 0x9E3779B97F4A7C15u;
  return (uint16_t)((self >> 48) | 1);
}

#pragma GCC visibility pop

#endif
