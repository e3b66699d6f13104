// SPDX-License-Identifier: MIT
// Offering what is idle in a stream: for the upkeep, for the page being filled, and by the heap itself when too much waits.

#include "heap_overdue.h"

#include "heap_books.h"
#include "heap_kept.h"
#include "heap_list.h"
#include "heap_offer.h"

// MARK: A stream

// Counts the offers in a row that a slab's holders have kept away. Heap's mutex held.
static void note_busy(purgeable_heap_t *heap, purgeable__slab_t *slab, bool busy) {
  assert(purgeable__is_held(&heap->control->mutex));
  uint8_t rounds = load_relaxed(&slab->busy_round_count);
  if (!busy && rounds == 0) return;
  // The count wraps around to a multiple of BUSY_ROUNDS, never to 0.
  rounds = !busy ? 0 : rounds == UINT8_MAX ? UINT8_MAX + 1 - BUSY_ROUNDS : (uint8_t)(rounds + 1);
  store_relaxed(&slab->busy_round_count, rounds);
  if (busy && rounds % BUSY_ROUNDS == 0) store_relaxed(&heap->has_busy, true);
}

// The next slabs of a stream that are neighbours in memory and have something to offer, from unit number `*unit` - 1 on.
// Of many that have nothing, the next call goes on. Heap's mutex held.
static size_t collect_run(purgeable_heap_t *heap, uint32_t *unit, purgeable__spot_t *run) {
  assert(purgeable__is_held(&heap->control->mutex));
  size_t count = 0, looks = 0;
  uint32_t expected = 0;
  for (; *unit != 0 && count < PURGEABLE__RUN_MAX && looks < PURGEABLE__SLABS_AT_A_TIME; looks++) {
    purgeable__spot_t spot = purgeable__find_unit(heap, *unit - 1);
    purgeable__slab_t *slab = spot.slab;
    uint64_t word = purgeable__slab_word_relaxed(slab);
    uint8_t state = load_relaxed(&slab->state);
    bool sealed = purgeable__state_is_sealed(state);
    uint64_t all = purgeable__pages_mask(slab, purgeable__offerable_pages(heap, slab));
    bool wants = (all & ~load_relaxed(&slab->offered)) != 0;
    bool idle = purgeable__is_idle(word);
    // A locked slab does not wait for a call of the host, nor does one that is withheld: booked anew, it is off the books.
    if (!idle) {
      purgeable__stop_waiting_if_held(heap, slab);
    } else if (sealed && all == 0 && purgeable__is_waiting(slab)) {
      purgeable__begin_waiting(heap, slab, true);
    }
    bool empty = sealed && load_relaxed(&slab->element_count) == 0;
    // Later offers go by address, before this. What was locked since then comes next time.
    bool is_first = (!sealed || load_relaxed(&slab->offer_count) == 0) && !purgeable__rests_refused(heap, slab);
    if (idle && ((wants && is_first) || empty)) {
      if (count != 0 && *unit != expected) break;
      run[count++] = spot;
      expected = *unit + load_relaxed(&slab->unit_count);
    } else if (count != 0) {
      break;
    }
    bool busy = wants && purgeable__lock_count(word) != 0;
    if (sealed) note_busy(heap, slab, busy);
    // A slab locked BUSY_ROUNDS times in a row is not tried for ever: its last unlock says that there is work again.
    bool waits = wants && !idle && !purgeable__is_dying(word);
    if (waits && !(busy && load_relaxed(&slab->busy_round_count) >= BUSY_ROUNDS)) {
      store_relaxed(&heap->pending, true);
    }
    *unit = slab->next;
  }
  PURGEABLE_LOOKS(overdue, looks);
  return count;
}

int purgeable__offer_stream(purgeable_heap_t *heap, purgeable_stream_t stream, size_t *offered_bytes) {
  int first_error = 0;
  purgeable__spot_t run[PURGEABLE__RUN_MAX];
  pthread_mutex_lock(&heap->control->mutex);
  uint32_t unit = purgeable__stream(heap, stream)->oldest;
  while (unit != 0) {
    size_t count = collect_run(heap, &unit, run);
    pthread_mutex_unlock(&heap->control->mutex);
    // Each slab is claimed by its word; one that changed hands since is simply offered in its new life, which does no harm.
    if (count != 0) {
      int error = purgeable__offer_run(heap, run, count, false, offered_bytes);
      if (error != 0 && error != EBUSY && first_error == 0) first_error = error;
    }
    pthread_mutex_lock(&heap->control->mutex);
    if (unit != 0 && !purgeable__is_in_stream(heap, unit, stream)) {
      // The list has changed meanwhile: the next call takes the rest.
      store_relaxed(&heap->pending, true);
      break;
    }
  }
  pthread_mutex_unlock(&heap->control->mutex);
  return first_error;
}

// MARK: Offering by itself
//
// In rounds, each from where the last one ended, in the order of addresses:
//
//     slabs    w . w w . . . . . w w . w w . . . . .      w: some page waits    .: all is on offer
//     calls   '-----'           '-------'
//
// A round ends when half of what the limit allows waits. So as much has to begin to wait before the next round, and all those
// unlocks share its cost. One call goes over what is on offer, too, to reach the next page that waits.

// The slab's units; its spot, or none where no unit from here to the end of the chunk was ever used. Heap's mutex held.
static uint32_t look_at(purgeable_heap_t *heap, uint32_t unit, purgeable__spot_t *spot) {
  assert(purgeable__is_held(&heap->control->mutex));
  *spot = purgeable__find_unit(heap, unit);
  if (spot->unit >= load_relaxed(&spot->chunk->high_water)) {
    spot->slab = NULL;
    return heap->units_per_chunk - unit % heap->units_per_chunk;
  }
  return load_relaxed(&spot->slab->state) == slab_large ? load_relaxed(&spot->slab->unit_count) : 1;
}

// The next slabs from unit number `*unit` on that one call can cover: from one that waits to one that waits. Heap's mutex held.
static size_t collect_waiting(purgeable_heap_t *heap, uint32_t *unit, uint32_t end, purgeable__spot_t *run) {
  size_t count = 0, wanted = 0, gap = 0, looks = 0;
  for (; looks < PURGEABLE__SLABS_AT_A_TIME; looks++) {
    if (*unit >= end || count == PURGEABLE__RUN_MAX || gap > PURGEABLE__GAP_PAGES) break;
    purgeable__spot_t spot;
    uint32_t units = look_at(heap, *unit, &spot);
    bool is_next = spot.slab != NULL && purgeable__state_is_sealed(load_relaxed(&spot.slab->state));
    bool waits = is_next && purgeable__is_waiting(spot.slab);
    // A locked slab does not wait.
    if (waits && !purgeable__is_idle(purgeable__slab_word_relaxed(spot.slab))) {
      purgeable__stop_waiting_if_held(heap, spot.slab);
      waits = false;
    }
    is_next = is_next && purgeable__is_idle(purgeable__slab_word_relaxed(spot.slab));
    if (count != 0 && (!is_next || spot.chunk != run[0].chunk)) break;
    *unit += units;
    if (!waits && count == 0) continue;
    run[count++] = spot;
    gap = waits ? 0 : gap + (size_t)units * heap->pages_per_slab;
    if (waits) wanted = count;
  }
  PURGEABLE_LOOKS(overdue, looks);
  return wanted;
}

// The next slabs that are neighbours and whose first offer was made by an earlier round. Heap's mutex held.
static size_t collect_once_offered(purgeable_heap_t *heap, uint32_t *unit, uint32_t end, purgeable__spot_t *run) {
  size_t count = 0, looks = 0;
  for (; *unit < end && count < PURGEABLE__RUN_MAX && looks < PURGEABLE__SLABS_AT_A_TIME; looks++) {
    purgeable__spot_t spot;
    uint32_t units = look_at(heap, *unit, &spot);
    bool is_due = spot.slab != NULL && purgeable__state_is_sealed(load_relaxed(&spot.slab->state)) &&
                  load_relaxed(&spot.slab->offer_count) == 1 && purgeable__offerable_pages(heap, spot.slab) != 0;
    if (count != 0 && (!is_due || spot.chunk != run[0].chunk)) break;
    *unit += units;
    if (is_due) run[count++] = spot;
  }
  PURGEABLE_LOOKS(overdue, looks);
  return count;
}

static void offer_again(purgeable_heap_t *heap, uint32_t unit, uint32_t end) {
  purgeable__spot_t run[PURGEABLE__RUN_MAX];
  while (unit < end) {
    pthread_mutex_lock(&heap->control->mutex);
    size_t count = collect_once_offered(heap, &unit, end, run);
    pthread_mutex_unlock(&heap->control->mutex);
    if (count != 0) (void)purgeable__offer_run(heap, run, count, true, NULL);
  }
}

// Offers what waits from unit number `unit` on until no more than half of what may wait does. Answers where it ended.
static uint32_t offer_waiting(purgeable_heap_t *heap, uint32_t unit, uint32_t end) {
  purgeable__spot_t run[PURGEABLE__RUN_MAX];
  while (unit < end && purgeable__waits_beyond(heap, 2)) {
    pthread_mutex_lock(&heap->control->mutex);
    size_t count = collect_waiting(heap, &unit, end, run);
    pthread_mutex_unlock(&heap->control->mutex);
    if (count != 0) (void)purgeable__offer_run(heap, run, count, false, NULL);
  }
  return unit;
}

void purgeable__offer_overdue(purgeable_heap_t *heap) {
  // One thread at a time; what becomes overdue meanwhile is seen by the next call that books.
  if (atomic_exchange_explicit(&heap->offering_overdue, true, memory_order_acquire)) return;
  store_relaxed(&heap->overdue, false);
  if (purgeable__waits_beyond(heap, 1)) {
    uint32_t units = load_acquire(&heap->chunk_count) * heap->units_per_chunk;
    uint32_t last = heap->round_from, from = heap->round_end;
    offer_again(heap, last, last <= from ? from : units);
    if (last > from) offer_again(heap, 0, from);
    uint32_t end = offer_waiting(heap, from, units);
    if (end >= units) end = offer_waiting(heap, 0, from);
    heap->round_from = from;
    heap->round_end = end;
  }
  store_release(&heap->offering_overdue, false);
}

// MARK: The page being filled

// How many rounds of upkeep an open slab has to be idle before its last page is closed, at most.
enum { PATIENCE_MAX = 8 };

// Closes the page that is being filled: the fill goes on at the next page. The stream's mutex held. A stream that stores little
// and often would spend a page on every store. So each time that a page less than half full is closed, the next close waits for
// twice as many idle rounds.
static void close_page(purgeable_heap_t *heap, purgeable__stream_t *list, purgeable__slab_t *slab, uint32_t used) {
  uint32_t granules = (uint32_t)(heap->page_bytes / PURGEABLE_GRANULE_BYTES);
  uint32_t end = (used + granules - 1) / granules * granules;
  assert(end >= used && end <= heap->granules_per_slab && load_relaxed(&slab->state) == slab_open);
  bool is_waste = used - list->closed_granules < granules / 2 && list->closed_granules != 0 && list->closed_granules <= used;
  list->patience = !is_waste ? 1 : list->patience >= PATIENCE_MAX ? PATIENCE_MAX : (uint8_t)(list->patience * 2);
  list->seen_granules = list->closed_granules = end;
  // Release: as in an allocation. From here on the page belongs to what may be offered, and nobody is given room in it.
  store_release(&slab->used_granule_count, end);
}

void purgeable__close_idle_page(purgeable_heap_t *heap, purgeable_stream_t stream, size_t *offered_bytes) {
  purgeable__stream_t *list = purgeable__stream(heap, stream);
  pthread_mutex_t *mutex = purgeable__stream_mutex(heap, stream);
  bool again = false;
  purgeable__spot_t spot = {0};
  pthread_mutex_lock(mutex);
  if (list->open != 0) {
    spot = purgeable__find_unit(heap, list->open - 1);
    uint32_t used = load_relaxed(&spot.slab->used_granule_count);
    bool is_partial = used % (heap->page_bytes / PURGEABLE_GRANULE_BYTES) != 0 && !purgeable__is_withheld(heap, spot.slab) &&
                      PURGEABLE_RULE(no_append_after_offer);
    bool is_held = purgeable__lock_count(purgeable__slab_word_relaxed(spot.slab)) != 0;
    uint64_t offered = load_relaxed(&spot.slab->offered);
    again = (offered & ~load_relaxed(&spot.slab->settled)) != 0;
    bool is_idle = used == list->seen_granules && list->seen_unit == list->open;
    if (!is_idle) {
      list->seen_granules = used;
      list->seen_unit = list->open;
      list->idle_rounds = 0;
    } else if (is_partial && !is_held && ++list->idle_rounds >= list->patience) {
      close_page(heap, list, spot.slab, used);
      is_partial = false;
    }
    // What earlier lives left behind the fill is idle too, and is not purgeable.
    if (is_idle) purgeable__wipe_tail(heap, spot);
    if (!is_idle && purgeable__standing_pages(spot.slab) != 0) store_relaxed(&heap->pending, true);
    // The last unlock offers a page that is held now.
    if ((is_partial && !is_held) || again) store_relaxed(&heap->pending, true);
  }
  pthread_mutex_unlock(mutex);
  // Pages that were offered before, and that the kernel may have skipped. A slab that was sealed meanwhile is offered whole.
  if (again) (void)purgeable__offer_run(heap, &spot, 1, true, offered_bytes);
}
