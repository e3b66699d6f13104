// SPDX-License-Identifier: MIT
// The heap's books of what waits for an offer, and of what is known to be gone.
//
//     last unlock, or seal --begin_waiting--> slab->waiting pages, heap->waiting_bytes --stop_waiting--> offered, locked,
//                                                        |                                                given back
//                                                        +-- too much: `overdue`, and the call that saw it offers; a read
//                                                            sets `overdue` unseen, and the next unlock or store looks
//
// Each change of a slab's `waiting` is one exchange, and the difference goes to the heap's sum, so the sum is exact in whatever
// order threads come. What is locked does not wait: an offer that finds it locked takes it off, and the last unlock books it
// again.

#include "heap_books.h"

// MARK: What waits

// So much of a heap may wait for a first offer whatever the others have, or two slabs.
#define UNOFFERED_LEAST_BYTES ((uint64_t)256 << 10)

// What `waiting` says: at most 64 pages of a slab, or all pages of a run, and whether the slab was never on offer.
enum { ALL_WAIT = 0x7F, UNOFFERED = 0x80 };

static uint64_t bytes_waiting(const purgeable_heap_t *heap, purgeable__slab_t *slab, uint8_t waiting) {
  uint64_t pages = waiting & ALL_WAIT;
  return (pages == ALL_WAIT ? purgeable__filled_pages(heap, slab) : pages) << heap->page_shift;
}

// `quietly`: the limit, which is read from files now and then, is not looked at. The next unlock or store looks at it.
static void set_waiting(purgeable_heap_t *heap, purgeable__slab_t *slab, uint8_t now, bool quietly) {
  if (load_relaxed(&slab->waiting) == now) return;
  uint8_t before = atomic_exchange_explicit(&slab->waiting, now, memory_order_relaxed);
  uint64_t bytes = bytes_waiting(heap, slab, now), bytes_before = bytes_waiting(heap, slab, before);
  add_relaxed(&heap->waiting_bytes, bytes - bytes_before);
  if (((now | before) & UNOFFERED) != 0) {
    uint64_t unoffered = (now & UNOFFERED) != 0 ? bytes : 0, unoffered_before = (before & UNOFFERED) != 0 ? bytes_before : 0;
    add_relaxed(&heap->unoffered_bytes, unoffered - unoffered_before);
    purgeable__note_unoffered((int64_t)(unoffered - unoffered_before));
  }
  if (bytes <= bytes_before) return;
  if (quietly || purgeable__waits_beyond(heap, 1)) store_relaxed(&heap->overdue, true);
}

uint64_t purgeable__bytes_waiting(const purgeable_heap_t *heap, purgeable__slab_t *slab, bool *is_unoffered) {
  uint8_t waiting = load_relaxed(&slab->waiting);
  *is_unoffered = (waiting & UNOFFERED) != 0;
  return bytes_waiting(heap, slab, waiting);
}

bool purgeable__waits_beyond(const purgeable_heap_t *heap, uint64_t share) {
  uint64_t limit = purgeable__pending_byte_limit();
  uint64_t unoffered = load_relaxed(&heap->unoffered_bytes);
  if (unoffered > limit / share) return true;
  uint64_t least = 2 * heap->slab_bytes > UNOFFERED_LEAST_BYTES ? 2 * heap->slab_bytes : UNOFFERED_LEAST_BYTES;
  if (unoffered > least / share && purgeable__unoffered_bytes() > limit / share) return true;
  uint64_t waiting = load_relaxed(&heap->waiting_bytes);
  return waiting > limit / share && waiting > purgeable__pending_byte_limit_in_all(limit) / share;
}

void purgeable__begin_waiting(purgeable_heap_t *heap, purgeable__slab_t *slab, bool quietly) {
  if (heap->offering != purgeable_offering_deferred || !purgeable__is_sealed(slab)) return;
  size_t pages = purgeable__offerable_pages(heap, slab);
  uint64_t off = purgeable__pages_mask(slab, pages) & ~load_relaxed(&slab->offered) & ~load_relaxed(&slab->lost);
  int some = off == 0 ? 0 : purgeable__is_run(slab) ? ALL_WAIT : __builtin_popcountll(off);
  bool is_first = some != 0 && load_relaxed(&slab->offer_count) == 0;
  set_waiting(heap, slab, (uint8_t)(some | (is_first ? UNOFFERED : 0)), quietly);
}

void purgeable__stop_waiting(purgeable_heap_t *heap, purgeable__slab_t *slab) { set_waiting(heap, slab, 0, true); }

void purgeable__stop_waiting_if_held(purgeable_heap_t *heap, purgeable__slab_t *slab) {
  if (purgeable__lock_count(purgeable__slab_word_ordered(slab)) == 0) return;
  purgeable__stop_waiting(heap, slab);
  // The last unlock may have come between the two, and what that unlock booked would be lost.
  if (purgeable__is_unheld(purgeable__slab_word_ordered(slab))) purgeable__begin_waiting(heap, slab, false);
}

// MARK: What is gone

void purgeable__book_lost(purgeable_heap_t *heap, purgeable__slab_t *slab, uint32_t pages) {
  uint32_t known = load_relaxed(&slab->lost_pages);
  do {
    if (pages <= known) return;
  } while (!atomic_compare_exchange_weak_explicit(&slab->lost_pages, &known, pages, memory_order_relaxed, memory_order_relaxed));
  add_relaxed(&heap->lost_bytes, (uint64_t)(pages - known) << heap->page_shift);
}

void purgeable__forget_lost(purgeable_heap_t *heap, purgeable__slab_t *slab) {
  uint32_t known = atomic_exchange_explicit(&slab->lost_pages, 0, memory_order_relaxed);
  if (known != 0) subtract_relaxed(&heap->lost_bytes, (uint64_t)known << heap->page_shift);
}

uint64_t purgeable_heap_charged_bytes(const purgeable_heap_t *heap) {
  if (heap == NULL) return 0;
  // What is kept makes room as soon as it is asked for.
  uint64_t lost = load_relaxed(&heap->lost_bytes) + load_relaxed(&heap->kept_bytes);
  uint64_t held = load_relaxed(&heap->held_bytes);
  return held > lost ? held - lost : 0;
}

// MARK: Elements

static uint64_t not_below_0(uint64_t sum) { return (int64_t)sum < 0 ? 0 : sum; }

uint64_t purgeable__payload_bytes(const purgeable_heap_t *heap) {
  uint64_t sum = 0;
  for (int i = 0; i < TALLY_COUNT; i++) sum += load_relaxed(&heap->control->tallies[i].payload_bytes);
  return not_below_0(sum);
}

uint64_t purgeable__element_count(const purgeable_heap_t *heap) {
  uint64_t sum = 0;
  for (int i = 0; i < TALLY_COUNT; i++) sum += load_relaxed(&heap->control->tallies[i].element_count);
  return not_below_0(sum);
}

uint64_t purgeable__written_bytes(const purgeable_heap_t *heap) {
  uint64_t sum = 0;
  for (int i = 0; i < TALLY_COUNT; i++) sum += load_relaxed(&heap->control->tallies[i].written_bytes);
  return not_below_0(sum);
}
