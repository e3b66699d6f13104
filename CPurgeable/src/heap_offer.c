// SPDX-License-Identifier: MIT
// Offering slabs that are neighbours in memory by as few calls as possible.
//
//     claim each (OFFERING) --> mark pages --> madvise, range by range --> end each, and give back what is empty
//
// Why a lock waits for it, and what it claims from: heap_word.c.

#include "heap_offer.h"

#include "heap_books.h"
#include "heap_give_back.h"
#include "heap_kept.h"

// MARK: Waiting for an offer

#if defined(PURGEABLE_TEST_HOOKS)
static _Atomic uint64_t waited_heap_locks;
#define COUNT_WAITED_HEAP_LOCK() ((void)add_relaxed(&waited_heap_locks, 1))
uint64_t purgeable_testing_waited_heap_lock_count(void) { return load_relaxed(&waited_heap_locks); }
#else
#define COUNT_WAITED_HEAP_LOCK() ((void)0)
uint64_t purgeable_testing_waited_heap_lock_count(void) { return 0; }
#endif

void purgeable__wait_for_offer(purgeable_heap_t *heap, purgeable__slab_t *slab) {
  for (bool counted = false;; counted = true) {
    uint64_t word = purgeable__slab_word_acquire(slab);
    if (!purgeable__is_offering(word)) return;
    if (!counted) COUNT_WAITED_HEAP_LOCK();
    if (!PURGEABLE_RULE(wait_for_offer)) return;
    // In a forked child no thread is left that could finish the madvise.
    if (load_acquire(&heap->control->alive) != 1) return;
    if (!purgeable__has_waiters(word) && !purgeable__note_waiter(slab, word)) continue;
    purgeable__sleep_while_offered(slab, word);
  }
}

// MARK: Ranges

typedef struct range {
  char *start;
  size_t length;
  // Up to here it may be made longer: what lies between is on offer, and of a slab that is claimed.
  char *reach;
} range_t;

// Notes which of the pages that are offered now the kernel will have taken note of. It passes over pages that wait in another
// processor's batch, and so over those that another thread has just filled: they count from the second offer on. Under OFFERING.
// `again`: those that are offered again.
static void settle(purgeable__slab_t *slab, uint64_t again, uint64_t wanted) {
  assert(purgeable__is_offering(purgeable__slab_word_relaxed(slab)));
  bool is_old = load_relaxed(&slab->offer_count) >= 2;
  bool is_own = load_relaxed(&slab->filler) == purgeable__own_filler();
  atomic_fetch_or_explicit(&slab->settled, is_old || is_own ? wanted : wanted & again, memory_order_relaxed);
}

// What one call offers, and the range that has not been handed to the kernel yet.
typedef struct offer_round {
  purgeable_heap_t *heap;
  const purgeable__spot_t *spots;
  // How many of those slabs the range may lie in.
  size_t count;
  // Offers all pages that are on offer again.
  bool again;
  size_t *offered_bytes;
  range_t range;
  int first_error;
} offer_round_t;

// Takes back the marks of a slab's pages that were refused: where memory is mlocked nothing is on offer, and the figures say so.
// What was accepted earlier loses its mark too, which a lock or a read does not heed. The offer is due again, but not in each
// call of the upkeep (heap_upkeep.c). Under OFFERING.
static void refuse(offer_round_t *round, const purgeable__spot_t *spot, const char *start, const char *end) {
  purgeable__slab_t *slab = spot->slab;
  const char *pages = purgeable__pages_of(round->heap, *spot);
  size_t first = (size_t)(start - pages) >> round->heap->page_shift, after = (size_t)(end - pages) >> round->heap->page_shift;
  uint64_t kept = purgeable__is_run(slab) ? 0 : ~(purgeable__pages_mask(slab, after) & ~purgeable__pages_mask(slab, first));
  atomic_fetch_and_explicit(&slab->offered, kept, memory_order_relaxed);
  atomic_fetch_and_explicit(&slab->settled, kept, memory_order_relaxed);
  if (purgeable__is_sealed(slab)) {
    store_relaxed(&slab->offer_count, round->again ? 1 : 0);
    purgeable__set_trait(slab, trait_refused, true);
    store_relaxed(&round->heap->has_refused, true);
  }
  store_relaxed(&round->heap->pending, true);
  add_relaxed(&round->heap->refused_offer_count, 1);
}

static void flush_range(offer_round_t *round) {
  range_t range = round->range;
  round->range.length = 0;
  if (range.length == 0) return;
  assert((((uintptr_t)range.start | range.length) & (round->heap->page_bytes - 1)) == 0);
  size_t accepted = range.length;
  int error = purgeable__madvise(range.start, range.length, PURGEABLE__MADV_FREE);
  // The call ends at the first page that it refuses. Slab by slab, one page that is mlocked keeps no other slab off offer.
  for (size_t i = 0; error != 0 && i < round->count; i++) {
    const purgeable__spot_t *spot = &round->spots[i];
    if (spot->slab == NULL) continue;
    char *start = purgeable__pages_of(round->heap, *spot), *range_end = range.start + range.length;
    char *end = start + ((size_t)load_relaxed(&spot->slab->unit_count) << round->heap->slab_shift);
    if (start < range.start) start = range.start;
    if (end > range_end) end = range_end;
    if (start >= end) continue;
    size_t length = (size_t)(end - start);
    int refused = length == range.length ? error : purgeable__madvise(start, length, PURGEABLE__MADV_FREE);
    if (refused == 0) continue;
    accepted -= length;
    refuse(round, spot, start, end);
    if (round->first_error == 0) round->first_error = refused;
  }
  if (round->offered_bytes != NULL) *round->offered_bytes += accepted;
}

// MARK: Offering

// Claims the slab for an offer of its first `*pages`. False when it is locked, dying, or being offered by another thread.
static bool begin_offer(const purgeable_heap_t *heap, purgeable__slab_t *slab, size_t *pages) {
  // Acquire: the fields that are read below are those of this life or a later one; a later one makes the exchange fail.
  uint64_t word = purgeable__slab_word_acquire(slab);
  do {
    if (!purgeable__is_idle(word)) return false;
    // Listed before its chunk was emptied and its page of the directory was given back: free, though nothing says DYING.
    if (purgeable__generation(word) == 0) return false;
    // Looked at before the exchange: whoever took room up to here has left, since the count is 0 there; whoever counts up after
    // it takes room beyond, although OFFERING is set, and writes in pages that this offer leaves out.
    *pages = purgeable__offerable_pages(heap, slab);
    // Pairs with the pins (1 in heap_word.c).
  } while (!purgeable__claim_for_offer(slab, &word));
  return true;
}

// Offers the wanted ones of a claimed slab's first pages, joined to the range so far where that reaches them. `is_whole`: there
// are no more.
static void offer_pages(offer_round_t *round, const purgeable__spot_t *spot, size_t pages, uint64_t wanted, bool is_whole) {
  uint32_t shift = round->heap->page_shift;
  range_t *range = &round->range;
  char *first = purgeable__pages_of(round->heap, *spot), *pages_end = first + (pages << shift);
  // A slab that is withheld has none, and nothing is offered across it.
  if (pages == 0) return;
  if (range->reach == first) range->reach = pages_end;
  for (size_t page = 0, end; page < pages; page = end) {
    bool wants = (wanted & purgeable__page_bit(spot->slab, page)) != 0;
    // All pages of a run have one bit.
    end = purgeable__is_run(spot->slab) ? pages : page + 1;
    while (end < pages && ((wanted & purgeable__page_bit(spot->slab, end)) != 0) == wants) end++;
    if (!wants) continue;
    char *start = first + (page << shift), *wanted_end = first + (end << shift);
    char *range_end = range->start + range->length;
    // The next slab may lie in another mapping, anywhere.
    bool is_near = start >= range_end && start <= range->reach && (size_t)(start - range_end) >> shift <= PURGEABLE__GAP_PAGES;
    if (range->length == 0 || !is_near) {
      flush_range(round);
      range->start = start;
    }
    range->length = (size_t)(wanted_end - range->start);
    range->reach = pages_end;
  }
  // Behind the last page of a whole slab there is nothing that could be in use; but a mapping of its own may end there.
  uint32_t units = load_relaxed(&spot->slab->unit_count);
  if (range->reach == pages_end && is_whole && units <= round->heap->units_per_chunk) {
    range->reach = first + units * round->heap->slab_bytes;
  }
}

// What a claimed slab has to offer: marked before the madvise, under OFFERING.
static void offer_slab(offer_round_t *round, purgeable__spot_t *spot, size_t pages) {
  purgeable__slab_t *slab = spot->slab;
  // Looked up again: the number may have belonged to another mapping when the slab was listed.
  spot->unit_base = purgeable__unit_base(round->heap, spot->chunk, spot->unit);
  purgeable__stop_waiting(round->heap, slab);
  uint64_t before = load_relaxed(&slab->offered);
  uint64_t wanted = purgeable__pages_mask(slab, pages) & (round->again ? ~(uint64_t)0 : ~before);
  store_relaxed(&slab->offered, before | wanted);
  if (wanted != 0) purgeable__note_offered(slab);
  purgeable__set_trait(slab, trait_refused, false);
  // In an open slab a page may have been closed since its others were offered.
  uint64_t again = !round->again ? 0 : purgeable__is_sealed(slab) ? ~(uint64_t)0 : before;
  settle(slab, again, wanted);
  // Where it was sealed after the claim, more pages have been filled, and may be written at this moment.
  bool is_whole = purgeable__is_sealed(slab) && pages == purgeable__filled_pages(round->heap, slab);
  // An open slab's offers do not count: its pages are offered again when it is sealed. Nor does what is only gone over.
  if (wanted != 0 && is_whole) {
    bool is_first = load_relaxed(&slab->offer_count) == 0;
    store_relaxed(&slab->offer_count, is_first ? 1 : 2);
    // The second offer is due next time.
    if (is_first) store_relaxed(&round->heap->pending, true);
  }
  // Of an open slab they are offered once more, too.
  if (!is_whole && (wanted & ~load_relaxed(&slab->settled)) != 0) store_relaxed(&round->heap->pending, true);
  offer_pages(round, spot, pages, wanted, is_whole);
}

int purgeable__offer_run(purgeable_heap_t *heap, purgeable__spot_t *spots, size_t count, bool again, size_t *offered_bytes) {
  assert(count <= PURGEABLE__RUN_MAX);
  offer_round_t round = {.heap = heap, .spots = spots, .again = again, .offered_bytes = offered_bytes};
  size_t begun = 0;
  for (size_t i = 0; i < count; i++) {
    size_t pages;
    if (!begin_offer(heap, spots[i].slab, &pages)) {
      spots[i].slab = NULL;
      continue;
    }
    PURGEABLE_TEST_PAUSE();
    begun++;
    round.count = i + 1;
    offer_slab(&round, &spots[i], pages);
  }
  flush_range(&round);
  for (size_t i = 0; i < count; i++) {
    if (spots[i].slab == NULL) continue;
    uint32_t generation = purgeable__end_offer(spots[i].slab);
    // A free that found the offer running has left the slab to us. Of this life only: a generation read now may be the next
    // one's, while the slab is still marked as sealed; by the time of the claim it would be the open slab of a stream.
    if (atomic_load(&spots[i].slab->element_count) == 0 && purgeable__is_sealed(spots[i].slab)) {
      purgeable__give_back_if_empty(heap, spots[i], generation);
    }
  }
  return begun == 0 && count != 0 ? EBUSY : round.first_error;
}
