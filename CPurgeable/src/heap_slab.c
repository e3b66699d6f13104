// SPDX-License-Identifier: MIT
// A slab's life: the lock word, sealing, offering. How it ends: heap_give_back.c.
//
//                    units_take                                   first use or rebirth
//     free (DYING) -------------> open, count 0 ------------------------------------------------------------+
//        ^                          |  allocate: count + 1;  commit or free: count - 1                       |
//        |                          v                                                                        |
//        |                        sealed  <---- seal, when the next element does not fit                     |
//        |                          |  ^                                                                     |
//        |            OFFERING set  |  | OFFERING cleared, waiters woken                                     |
//        |            from count 0  v  |                                                                     |
//        |                        inside madvise (MADV_FREE)     lockers: count + 1, wait, check, rescue     |
//        |                                                                                                   |
//        +--- wipe, generation + 1 <--- DYING set from count 0 and not OFFERING, when no element lives <-----+
//
// Why each step is sound:
//
//  1. A lock cannot be lost to a running madvise: OFFERING is set only by exchanging a word whose count is 0, so whoever counted
//     up before makes that exchange fail, and whoever counts up after sees OFFERING in the very word it exchanged and waits. A
//     rescue done while the madvise ran would be worthless: the kernel may clear the dirty bit after it.
//  2. A slab is not wiped under a lock: DYING, too, is set only from count 0 without OFFERING, and nobody counts up on DYING.
//  3. Whoever drops the last count of an empty sealed slab gives it back. Free decrements the living, then looks at the count; the
//     last unlock decrements the count, then looks at the living. All four are sequentially consistent, so at least one of the two
//     sees the other's step; the exchange that sets DYING lets only one of them through.
//  4. Readers without a lock: the generation is raised before the pages are wiped, and the wipe (MADV_DONTNEED) comes before
//     anything new is written. A reader that copied anything but its own generation's bytes finds the generation changed; and
//     after the wipe no CPU has a stale translation through which old bytes could be read under the new generation.

#include "heap_internal.h"

// MARK: Counting

bool purgeable__pin(purgeable__slab_t *slab, uint32_t generation, int *error) {
  uint64_t word = atomic_load_explicit(&slab->word, memory_order_relaxed);
  for (;;) {
    if (GENERATION(word) != generation || (word & DYING) != 0) {
      *error = ESTALE;
      return false;
    }
    if ((word & COUNT_MASK) == COUNT_MASK) {
      *error = EOVERFLOW;
      return false;
    }
    // Sequentially consistent: pairs with the claim in give_back and with the offer's exchange (1 and 2 above).
    if (atomic_compare_exchange_weak(&slab->word, &word, word + 1)) return true;
  }
}

// Counts down, never below 0: an unlock too many takes another holder's count, and must not then run through the whole word.
// Answers the word before. Sequentially consistent: before the look at the living (3 above).
static uint64_t count_down(purgeable__slab_t *slab) {
  uint64_t word = atomic_load_explicit(&slab->word, memory_order_relaxed);
  while ((word & COUNT_MASK) != 0 && !atomic_compare_exchange_weak(&slab->word, &word, word - 1)) continue;
  return word;
}

bool purgeable__unpin(purgeable_heap_t *heap, purgeable__spot_t spot) {
  uint64_t before = count_down(spot.slab);
  if ((before & COUNT_MASK) != 1) return (before & COUNT_MASK) != 0;
  if (atomic_load(&spot.slab->living_count) == 0 && purgeable__is_sealed(spot.slab)) {
    purgeable__give_back_if_empty(heap, spot, GENERATION(before));
  } else if (heap->offering == purgeable_offering_immediate) {
    (void)purgeable__offer_run(heap, &spot, 1, false, NULL);
  } else {
    atomic_store_explicit(&heap->pending, true, memory_order_relaxed);
  }
  return true;
}

#if defined(PURGEABLE_TEST_HOOKS)
static _Atomic uint64_t waited_locks;
#define COUNT_WAITED_LOCK() ((void)atomic_fetch_add_explicit(&waited_locks, 1, memory_order_relaxed))
uint64_t purgeable_testing_waited_heap_lock_count(void) { return atomic_load_explicit(&waited_locks, memory_order_relaxed); }

bool purgeable_testing_begin_last_life(purgeable_heap_t *heap, uint64_t place) {
  purgeable__spot_t spot = purgeable__find(heap, place);
  if (spot.slab == NULL) return false;
  pthread_mutex_lock(&heap->control->mutex);
  uint32_t generation = GENERATION(atomic_load_explicit(&spot.slab->word, memory_order_relaxed));
  spot.slab->first_generation = purgeable__next_generation(generation);
  pthread_mutex_unlock(&heap->control->mutex);
  return true;
}
#else
#define COUNT_WAITED_LOCK() ((void)0)
uint64_t purgeable_testing_waited_heap_lock_count(void) { return 0; }
bool purgeable_testing_begin_last_life(purgeable_heap_t *heap, uint64_t place) { return heap == NULL && place != 0; }
#endif

void purgeable__wait_for_offer(purgeable_heap_t *heap, purgeable__slab_t *slab) {
  for (bool counted = false;; counted = true) {
    uint64_t word = atomic_load_explicit(&slab->word, memory_order_acquire);
    if ((word & OFFERING) == 0) return;
    if (!counted) COUNT_WAITED_LOCK();
    if (!PURGEABLE_RULE(wait_for_offer)) return;
    // In a forked child nobody is left to finish that madvise.
    if (atomic_load_explicit(&heap->control->alive, memory_order_acquire) != 1) return;
    if ((word & WAITERS) == 0 && !atomic_compare_exchange_strong(&slab->word, &word, word | WAITERS)) continue;
    purgeable__wait(&slab->word, (uint32_t)(word | WAITERS));
  }
}

// MARK: Streams' lists (heap's mutex held)

void purgeable__link(purgeable_heap_t *heap, purgeable__spot_t spot, purgeable_stream_t stream) {
  purgeable__stream_t *list = &heap->streams[stream];
  uint32_t self = purgeable__unit_number(heap, spot) + 1;
  // Release: whoever takes this stream's mutex to look at the tags sees those that were kept under the last one's.
  atomic_store_explicit(&spot.slab->stream, (uint16_t)stream, memory_order_release);
  spot.slab->next = 0;
  spot.slab->previous = list->youngest;
  if (list->youngest != 0) purgeable__find_unit(heap, list->youngest - 1).slab->next = self;
  if (list->oldest == 0) list->oldest = self;
  list->youngest = self;
}

void purgeable__unlink(purgeable_heap_t *heap, purgeable__spot_t spot) {
  purgeable__slab_t *slab = spot.slab;
  purgeable__stream_t *list = &heap->streams[atomic_load_explicit(&slab->stream, memory_order_relaxed)];
  if (slab->previous != 0) {
    purgeable__find_unit(heap, slab->previous - 1).slab->next = slab->next;
  } else {
    list->oldest = slab->next;
  }
  if (slab->next != 0) {
    purgeable__find_unit(heap, slab->next - 1).slab->previous = slab->previous;
  } else {
    list->youngest = slab->previous;
  }
  slab->next = slab->previous = 0;
}

// MARK: Sealing

// A table that fits, so that the next slab of the stream can have the large one. Without memory for it the slab keeps that.
static void fit_tags(purgeable_heap_t *heap, purgeable__slab_t *slab) {
  purgeable__stream_t *list = &heap->streams[atomic_load_explicit(&slab->stream, memory_order_relaxed)];
  purgeable__tag_t *wide = slab->tags;
  if (wide == NULL) return;
  size_t bytes = slab->tag_count * sizeof *wide;
  purgeable__tag_t *fitted = purgeable__allocate(1, bytes);
  if (fitted == NULL) {
    // Counted as if it fitted from here on: the claim knows no other size.
    atomic_fetch_sub_explicit(&heap->ordinary_bytes, list->tag_capacity * sizeof *wide - bytes, memory_order_relaxed);
    list->tag_capacity = 0;
    return;
  }
  memcpy(fitted, wide, bytes);
  slab->tags = fitted;
  list->spare_tags = wide;
  atomic_fetch_add_explicit(&heap->ordinary_bytes, bytes, memory_order_relaxed);
}

// The stream's mutex held.
void purgeable__seal(purgeable_heap_t *heap, purgeable__spot_t spot) {
  purgeable__slab_t *slab = spot.slab;
  uint32_t generation = GENERATION(atomic_load_explicit(&slab->word, memory_order_relaxed));
  assert(atomic_load(&slab->state) == slab_open);
  fit_tags(heap, slab);
  // What was never touched is not held.
  atomic_fetch_sub_explicit(&heap->held_bytes, heap->slab_bytes - purgeable__slab_held_bytes(heap, slab), memory_order_relaxed);
  // Pinned over the change of state: so the slab's elements may be freed by others meanwhile, and the unpin sees that.
  int error;
  bool pinned = purgeable__pin(slab, generation, &error);
  atomic_store(&slab->state, slab_sealed);
  atomic_store_explicit(&heap->pending, true, memory_order_relaxed);
  if (pinned) purgeable__unpin(heap, spot);
}

// MARK: Offering

// The pages of a slab that may go on offer: all of a sealed one, those before the page being filled of an open one.
size_t purgeable__offerable_pages(const purgeable_heap_t *heap, purgeable__slab_t *slab) {
  size_t used = purgeable__used_bytes(slab);
  bool whole = purgeable__is_sealed(slab) || !PURGEABLE_RULE(no_append_after_offer);
  return (whole ? used + heap->page_bytes - 1 : used) >> heap->page_shift;
}

uint64_t purgeable__pages_mask(purgeable__slab_t *slab, size_t pages) {
  if (purgeable__is_run(slab) || pages > 63) return ~(uint64_t)0;
  return ((uint64_t)1 << pages) - 1;
}

// Claims the slab for an offer of its first `*pages`. False when it is locked, dying, or being offered by another thread.
static bool begin_offer(const purgeable_heap_t *heap, purgeable__slab_t *slab, size_t *pages) {
  // Acquire: the fields that are read below are those of this life or a later one; a later one makes the exchange fail.
  uint64_t word = atomic_load_explicit(&slab->word, memory_order_acquire);
  do {
    if ((word & (COUNT_MASK | OFFERING | DYING)) != 0) return false;
    // Looked at before the exchange: whoever took room up to here has left, since the count is 0 there; whoever counts up after
    // it takes room beyond, although OFFERING is set, and writes in pages that this offer leaves out.
    *pages = purgeable__offerable_pages(heap, slab);
    // Sequentially consistent: pairs with the pins (1 above).
  } while (!atomic_compare_exchange_weak(&slab->word, &word, word | OFFERING));
  return true;
}

static void end_offer(purgeable__slab_t *slab) {
  uint64_t before = atomic_fetch_and(&slab->word, ~(OFFERING | WAITERS));
  assert((before & OFFERING) != 0);
  if ((before & WAITERS) != 0) purgeable__wake_all(&slab->word);
}

typedef struct range {
  char *start;
  size_t length;
} range_t;

// Takes back the marks of pages in a range that was refused: where memory is mlocked nothing is on offer, and the figures say so.
static void unmark(const purgeable_heap_t *heap, const purgeable__spot_t *spots, size_t count, range_t range) {
  for (size_t i = 0; i < count; i++) {
    if (spots[i].slab == NULL) continue;
    for (uint32_t page = 0; page < heap->pages_per_slab; page++) {
      char *start = spots[i].unit_base + ((size_t)page << heap->page_shift);
      if (start < range.start || start >= range.start + range.length) continue;
      atomic_fetch_and_explicit(&spots[i].slab->offered, ~purgeable__page_bit(spots[i].slab, page), memory_order_relaxed);
    }
  }
}

static int flush_range(purgeable_heap_t *heap, range_t *range, const purgeable__spot_t *spots, size_t count, bool again,
                       size_t *offered_bytes) {
  if (range->length == 0) return 0;
  int error = purgeable__madvise(range->start, range->length, PURGEABLE__MADV_FREE);
  if (error != 0) {
    atomic_fetch_add_explicit(&heap->refused_offer_count, 1, memory_order_relaxed);
    // A second offer's pages were accepted the first time.
    if (!again) unmark(heap, spots, count, *range);
  } else if (offered_bytes != NULL) {
    *offered_bytes += range->length;
  }
  range->length = 0;
  return error;
}

int purgeable__offer_run(purgeable_heap_t *heap, purgeable__spot_t *spots, size_t count, bool again, size_t *offered_bytes) {
  int first_error = 0;
  range_t range = {0};
  size_t begun = 0;
  for (size_t i = 0; i < count; i++) {
    purgeable__spot_t *spot = &spots[i];
    purgeable__slab_t *slab = spot->slab;
    size_t pages;
    if (!begin_offer(heap, slab, &pages)) {
      spot->slab = NULL;
      continue;
    }
    PURGEABLE_TEST_PAUSE();
    begun++;
    uint64_t before = atomic_load_explicit(&slab->offered, memory_order_relaxed);
    uint64_t wanted = purgeable__pages_mask(slab, pages) & (again ? ~(uint64_t)0 : ~before);
    // Marked before the madvise, under OFFERING.
    atomic_store_explicit(&slab->offered, before | wanted, memory_order_relaxed);
    for (size_t page = 0; page < pages;) {
      size_t end = page + 1;
      bool wants = (wanted & purgeable__page_bit(slab, page)) != 0;
      if (purgeable__is_run(slab)) {
        end = pages;
      } else {
        while (end < pages && ((wanted & purgeable__page_bit(slab, end)) != 0) == wants) end++;
      }
      if (wants) {
        char *start = spot->unit_base + (page << heap->page_shift);
        if (range.length == 0 || range.start + range.length != start) {
          int error = flush_range(heap, &range, spots, i, again, offered_bytes);
          if (first_error == 0) first_error = error;
          range.start = start;
        }
        range.length += (end - page) << heap->page_shift;
      }
      page = end;
    }
    // An open slab's offers do not count: its pages are offered again when it is sealed.
    if (purgeable__is_sealed(slab)) {
      uint8_t times = atomic_load_explicit(&slab->offer_count, memory_order_relaxed);
      atomic_store_explicit(&slab->offer_count, times == 0 ? 1 : 2, memory_order_relaxed);
    }
  }
  int error = flush_range(heap, &range, spots, count, again, offered_bytes);
  if (first_error == 0) first_error = error;
  for (size_t i = 0; i < count; i++) {
    if (spots[i].slab == NULL) continue;
    end_offer(spots[i].slab);
    // A free that found the offer running has left the slab to us.
    if (atomic_load(&spots[i].slab->living_count) == 0 && purgeable__is_sealed(spots[i].slab)) {
      uint64_t word = atomic_load(&spots[i].slab->word);
      purgeable__give_back_if_empty(heap, spots[i], GENERATION(word));
    }
  }
  return begun == 0 && count != 0 ? EBUSY : first_error;
}

// MARK: Losses

bool purgeable__mark_lost(purgeable_heap_t *heap, purgeable__spot_t spot, uint32_t generation, size_t page) {
  int error;
  purgeable__slab_t *slab = spot.slab;
  // The pin keeps this life going until the books are right.
  if (!purgeable__pin(slab, generation, &error)) return false;
  uint64_t bit = purgeable__page_bit(slab, page);
  if ((atomic_fetch_or_explicit(&slab->lost, bit, memory_order_acq_rel) & bit) == 0) {
    // A large element's payload is booked on its first page, whichever of them went.
    size_t booked = purgeable__is_large_slab(slab) ? 0 : page;
    _Atomic uint32_t *bytes = &spot.chunk->page_bytes[(size_t)spot.unit * heap->pages_per_slab + booked];
    // Exchange: a free that finds 0 here knows that its bytes have been taken off already.
    uint32_t lost = atomic_exchange_explicit(bytes, 0, memory_order_acq_rel);
    atomic_fetch_sub_explicit(&slab->living_bytes, lost, memory_order_relaxed);
    atomic_fetch_sub_explicit(&heap->payload_bytes, lost, memory_order_relaxed);
    atomic_fetch_add_explicit(&heap->discarded_payload_bytes, lost, memory_order_relaxed);
    uint64_t lossy_bit = (uint64_t)1 << (spot.unit % 64);
    uint64_t lossy = atomic_fetch_or_explicit(&spot.chunk->lossy[spot.unit / 64], lossy_bit, memory_order_release);
    if ((lossy & lossy_bit) == 0) atomic_fetch_add_explicit(&heap->lossy_count, 1, memory_order_release);
  }
  // Not `unpin`: a look at content must not call the kernel, nor take a mutex in a signal handler. The upkeep does the rest.
  if ((count_down(slab) & COUNT_MASK) == 1) atomic_store_explicit(&heap->pending, true, memory_order_relaxed);
  return true;
}
