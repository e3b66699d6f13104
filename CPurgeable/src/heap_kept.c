// SPDX-License-Identifier: MIT
// Slabs that are filled again without a wipe.
//
//     sealed, empty --claim--> DYING --rescue, if ever on offer--> generation + 1 --push--> kept --pop--> open, in its pages
//                                         |                                                  |             as they are
//                                         | a page is gone                                   +--drop--> delayed --wipe--> free
//                                         +------------------> generation + 1 --wipe--> free
//
// To wipe a slab costs a system call, and a fault and a page of zeros for each page that is filled again. The wipe is needed for
// two things, and a slab of which the kernel took no page since it was last wiped needs it for neither:
//
//  - It drains stale translations. They come from pages that the kernel took. It takes none that were never on offer. Pages that
//    were are rescued, each of them, as locks do it: a write that adds nothing to a word that is not zero. The write walks the
//    page table again, so the word is that of the page that is there now, and says whether it is the page that was filled. From
//    then on the page is dirty, no madvise runs on it, and none begins before the next life's: the kernel cannot take it any
//    more. So every processor sees the pages that are there. An offer sets WAS_OFFERED under OFFERING and before the madvise;
//    the claim for the end is from a word without OFFERING, so it sees the flag of every offer that was begun. The flag stays,
//    even if the kernel refused the offer or locks have rescued some pages since: only the wipe, or the rescue of all pages,
//    clears it.
//  - It stands between the new generation and the first new byte. Here a release fence does (`begin_element`): each element that
//    begins has one before its header, and whoever begins it has got the slab from the thread that raised the generation, by the
//    heap's and the stream's mutex. A read whose copy has a new byte sees, after its acquire fence, the new generation or a later
//    one, and answers busy. References of the old life are refused by the generation; bytes of the old life pose as no element
//    of the new one, because the check in a header has the generation in it. A thread that writes an element which another one
//    has begun got it from that thread, and has to order what it writes after that, as for any memory.
//
// Two rules can be switched off: `rescue_before_reuse` (stale_cases.c has the wrong results) and `generation_before_reuse`
// (kept_rules.c). x86 keeps stores in order, so there the fence is no instruction and no storm can show its need.
//
// What a wipe does beside that is done here: an element's payload is cleared when it begins, unless its owner writes all of it;
// pages of earlier lives behind the last element are wiped when the slab is sealed or its fill rests, so that what is held is
// what is there.
//
// A page of zeros has no word to tell it by, and so counts as gone.
//
// Kept slabs are held and not purgeable. So they are few: a sixteenth of the slabs in use, KEPT_MAX and KEPT_BYTES_MAX at most.
// They make room before anything is refused for the limit, and go with every upkeep, trim, bulk and page_out. In a forked child
// their pages are zeros, as all are; the child's list is empty and no slab of its stands.

#include "heap_kept.h"

#include "heap_units.h"

// MARK: What stands

void purgeable__clear_standing_part(const purgeable_heap_t *heap, purgeable__spot_t spot, char *bytes, size_t length_bytes) {
  char *end = purgeable__pages_of(heap, spot) + ((size_t)purgeable__standing_pages(spot.slab) << heap->page_shift);
  if (bytes >= end) return;
  size_t left = (size_t)(end - bytes);
  memset(bytes, 0, left < length_bytes ? left : length_bytes);
}

void purgeable__wipe_tail(purgeable_heap_t *heap, purgeable__spot_t spot) {
  purgeable__slab_t *slab = spot.slab;
  uint32_t standing = purgeable__standing_pages(slab);
  if (standing == 0) return;
  assert(load_relaxed(&slab->state) == slab_open);
  assert(purgeable__is_held(purgeable__stream_mutex(heap, load_relaxed(&slab->stream))));
  uint32_t used = (uint32_t)(purgeable__slab_held_bytes(heap, slab) >> heap->page_shift);
  if (standing <= used) return;
  char *tail = purgeable__pages_of(heap, spot) + ((size_t)used << heap->page_shift);
  // Nobody has room there, and no offer covers it. Refused: it stays, and the slab does not stand after its end. If the fill goes
  // on, elements that follow have to clear their payload still, and the next upkeep tries again.
  if (purgeable__wipe(tail, (size_t)(standing - used) << heap->page_shift) != 0) {
    store_relaxed(&heap->pending, true);
    return;
  }
  (void)atomic_fetch_sub_explicit(&slab->standing, (uint8_t)(standing - used), memory_order_relaxed);
}

// MARK: The list

uint32_t purgeable__kept_most(const purgeable_heap_t *heap) {
  enum { SHARE = 16 };
  uint64_t most = load_relaxed(&heap->slab_count) / SHARE, fit = (uint64_t)KEPT_BYTES_MAX >> heap->slab_shift;
  if (most > fit) most = fit;
  return most < KEPT_MAX ? (uint32_t)most : KEPT_MAX;
}

// Rescues all pages of an empty slab that the caller has claimed for its end. True: the kernel took none of them, and cannot any
// more.
static bool rescue_all(const purgeable_heap_t *heap, purgeable__spot_t spot) {
  const char *pages = purgeable__pages_of(heap, spot), *end = pages + purgeable__slab_held_bytes(heap, spot.slab);
  for (const char *page = pages; page < end; page += heap->page_bytes) {
    // The first words of a page are a header or the inside of a value. No other thread writes there.
    const uint64_t *word = purgeable__first_nonzero((const uint64_t *)page, (const uint64_t *)(page + heap->page_bytes));
    if (word == NULL || !purgeable__rescue((_Atomic uint64_t *)(uintptr_t)word)) return false;
  }
  return true;
}

bool purgeable__may_stand(const purgeable_heap_t *heap, purgeable__spot_t spot) {
  purgeable__slab_t *slab = spot.slab;
  assert(purgeable__is_dying(purgeable__slab_word_relaxed(slab)));
  if (load_relaxed(&slab->state) != slab_sealed || load_relaxed(&slab->lost) != 0) return false;
  // No page is rescued for a list that is full for sure.
  uint64_t room = (uint64_t)purgeable__kept_most(heap) << heap->slab_shift;
  if (load_relaxed(&heap->giving_count) != 0 || load_relaxed(&heap->kept_bytes) >= room) return false;
  // Earlier lives' pages behind the last element, which could not be wiped when the slab was sealed.
  if (purgeable__slab_standing_bytes(heap, slab) > purgeable__slab_held_bytes(heap, slab)) return false;
  return !purgeable__was_offered(slab) || !PURGEABLE_RULE(rescue_before_reuse) || rescue_all(heap, spot);
}

bool purgeable__kept_push(purgeable_heap_t *heap, purgeable__spot_t spot, uint32_t generation) {
  purgeable__slab_t *slab = spot.slab;
  assert(purgeable__is_held(&heap->control->mutex));
  // A slab whose generations are used up is filled no more.
  if (purgeable__slab_generation(slab) == slab->first_generation) return false;
  if (load_relaxed(&heap->giving_count) != 0 || heap->kept_count >= purgeable__kept_most(heap)) return false;
  size_t held = purgeable__slab_held_bytes(heap, slab);
  uint64_t limit = load_relaxed(&heap->byte_limit);
  // A limit that was lowered wants the memory.
  if (limit != 0 && load_relaxed(&heap->held_bytes) - load_relaxed(&heap->lost_bytes) > limit) return false;
  if (!PURGEABLE_RULE(generation_before_reuse)) purgeable__reset_life(slab, generation);
  store_relaxed(&slab->standing, (uint8_t)(held >> heap->page_shift));
  atomic_store(&slab->state, slab_kept);
  heap->kept[heap->kept_count++] = purgeable__unit_number(heap, spot);
  // In this order, sequentially consistent: an upkeep that takes the note finds the bytes. The next one gives the slab back.
  (void)atomic_fetch_add(&heap->kept_bytes, held);
  atomic_store(&heap->pending, true);
  return true;
}

bool purgeable__kept_pop(purgeable_heap_t *heap, purgeable__spot_t *spot) {
  assert(purgeable__is_held(&heap->control->mutex));
  if (heap->kept_count == 0) return false;
  *spot = purgeable__find_unit(heap, heap->kept[--heap->kept_count]);
  assert(load_relaxed(&spot->slab->state) == slab_kept);
  subtract_relaxed(&heap->kept_bytes, purgeable__slab_held_bytes(heap, spot->slab));
  return true;
}
