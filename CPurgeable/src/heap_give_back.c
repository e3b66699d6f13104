// SPDX-License-Identifier: MIT
// How an empty slab ends: claimed, its generation raised, its pages wiped, in this order (the states and why: heap_word.c).
//
//     sealed, empty --claim--> DYING, generation + 1 --wipe--> free
//                                     |                        ^
//                                     +--> delayed ------------+      while many are given back: neighbours by one call;
//                                     |                        |      or until the owner has released its mutex
//                                     +--> unwiped ------------+      the kernel refused: tried again, and held until then
//                                     +--> kept ---------------+      no page was taken: filled again as it is, or wiped later
//                                                                     (heap_kept.c)

#include "heap_give_back.h"

#include "heap_books.h"
#include "heap_fork.h"
#include "heap_kept.h"
#include "heap_list.h"
#include "heap_units.h"

// MARK: Wiping

// A sealed slab's table has exactly the size that fits its elements.
static void forget_tags(purgeable_heap_t *heap, purgeable__spot_t spot) {
  assert(purgeable__is_held(&heap->control->mutex));
  purgeable__tag_t **tags = heap->keeps_tags ? purgeable__tags_at(heap, spot.chunk, spot.unit) : NULL;
  if (tags == NULL || *tags == NULL) return;
  subtract_relaxed(&heap->ordinary_bytes, spot.slab->tag_count * sizeof **tags);
  free(*tags);
  *tags = NULL;
  spot.slab->tag_count = 0;
}

// Heap's mutex held: the unit cannot be used before it is wiped.
static void leave_unwiped(purgeable_heap_t *heap, purgeable__spot_t spot, purgeable__slab_state_t state) {
  assert(purgeable__is_held(&heap->control->mutex));
  assert(state == slab_unwiped || state == slab_delayed);
  uint32_t unit = purgeable__unit_number(heap, spot);
  if (heap->unwiped_first == heap->unwiped_end) heap->unwiped_first = heap->unwiped_end = unit;
  if (unit < heap->unwiped_first) heap->unwiped_first = unit;
  if (unit >= heap->unwiped_end) heap->unwiped_end = unit + 1;
  if (state == slab_delayed && heap->delayed_count++ == 0) heap->delayed_since_ns = purgeable__now_ns();
  atomic_store(&spot.slab->state, state);
  // Where nobody wipes it before, the next upkeep does. In this order, sequentially consistent: an upkeep that takes the note
  // finds that there is something to wipe.
  atomic_store(&heap->unwiped, true);
  atomic_store(&heap->pending, true);
}

// Heap's mutex held: makes the units of a wiped slab available.
static void return_units(purgeable_heap_t *heap, purgeable__spot_t spot) {
  assert(purgeable__is_held(&heap->control->mutex));
  purgeable__slab_t *slab = spot.slab;
  uint32_t count = load_relaxed(&slab->unit_count);
  uint32_t generation = purgeable__slab_generation(slab);
  if (PURGEABLE_RULE(wide_generations) && generation == slab->first_generation) {
    atomic_store(&slab->state, slab_retired);
    // Only the first unit's generations are used up.
    bool is_run = count > 1 && count <= heap->units_per_chunk;
    if (is_run) purgeable__units_return(heap, purgeable__find_unit(heap, purgeable__unit_number(heap, spot) + 1), count - 1);
  } else {
    purgeable__units_return(heap, spot, count);
  }
}

static void count_given_back(purgeable_heap_t *heap, size_t held) {
  subtract_relaxed(&heap->held_bytes, held);
  add_relaxed(&heap->given_back_bytes, held);
}

// Whether enough slabs wait to be wiped together. More slabs make longer ranges, and each range costs an interrupt of every
// processor that runs this process; but memory must not be late for long. The kernel may take pages on offer before the wipe.
static bool have_waited(const purgeable_heap_t *heap) {
  enum { LEAST = 256, SHORT_TIME_NS = 10 * 1000 * 1000 };
  size_t quarter = load_relaxed(&heap->slab_count) / 4;
  if (heap->delayed_count < (quarter > LEAST ? quarter : LEAST)) return false;
  return purgeable__now_ns() - heap->delayed_since_ns >= SHORT_TIME_NS;
}

static bool is_alone_in_mapping(const purgeable_heap_t *heap, purgeable__slab_t *slab) {
  return load_relaxed(&slab->unit_count) > heap->units_per_chunk;
}

// Whole units are wiped: beyond what is held a huge page may have put pages where MADV_NOHUGEPAGE is refused.
static size_t unit_bytes(const purgeable_heap_t *heap, purgeable__slab_t *slab) {
  return (size_t)load_relaxed(&slab->unit_count) << heap->slab_shift;
}

// Ends the mapping of a claimed slab that lies alone. False: the mapping is still there.
static bool unmap(purgeable_heap_t *heap, purgeable__chunk_t *chunk) {
  assert(chunk->used_count == 1);
  pthread_mutex_lock(&heap->control->mutex);
  size_t bytes = purgeable__begin_unmapping(chunk);
  pthread_mutex_unlock(&heap->control->mutex);
  // Outside of the mutex: to unmap many pages takes a while.
  if (purgeable__unmap_alone(heap, chunk, bytes) == 0) return true;
  pthread_mutex_lock(&heap->control->mutex);
  chunk->mapped_bytes = bytes;
  pthread_mutex_unlock(&heap->control->mutex);
  return false;
}

// The slab is claimed and out of its stream. Wipes it and makes its units available; a refused wipe is left for later.
static void wipe_and_return(purgeable_heap_t *heap, purgeable__spot_t spot) {
  assert(purgeable__is_dying(purgeable__slab_word_relaxed(spot.slab)));
  size_t held = purgeable__slab_held_bytes(heap, spot.slab);
  bool is_alone = is_alone_in_mapping(heap, spot.slab);
  bool is_unmapped = is_alone && unmap(heap, spot.chunk);
  int error = 0;
  if (!is_unmapped && PURGEABLE_RULE(dontneed_before_refill)) {
    error = purgeable__wipe(purgeable__pages_of(heap, spot), is_alone ? spot.chunk->mapped_bytes : unit_bytes(heap, spot.slab));
  }
  pthread_mutex_lock(&heap->control->mutex);
  if (error != 0) {
    // Nothing may be written there before the wipe succeeds; the bytes stay held.
    leave_unwiped(heap, spot, slab_unwiped);
  } else {
    count_given_back(heap, held);
    return_units(heap, spot);
    if (is_unmapped) purgeable__forget_alone(heap, spot.chunk);
  }
  pthread_mutex_unlock(&heap->control->mutex);
}

// The slab is claimed and out of its stream. Wipes it, or leaves it to be wiped with others. Only a slab whose life has just
// ended may be delayed: a delayed slab whose wipe is refused is tried again by itself, or the two would follow each other for
// ever.
static void wipe_or_delay(purgeable_heap_t *heap, purgeable__spot_t spot) {
  bool is_bulk = load_relaxed(&heap->giving_count) != 0;
  if (!(is_bulk || heap->defers_wipes) || purgeable__is_run(spot.slab)) {
    wipe_and_return(heap, spot);
    return;
  }
  enum { DEFERRED_MOST = 16 };
  pthread_mutex_lock(&heap->control->mutex);
  count_given_back(heap, purgeable__slab_held_bytes(heap, spot.slab));
  leave_unwiped(heap, spot, slab_delayed);
  bool enough = is_bulk ? have_waited(heap) : heap->delayed_count >= DEFERRED_MOST;
  pthread_mutex_unlock(&heap->control->mutex);
  if (enough) purgeable__wipe_unwiped(heap);
}

// MARK: Slabs that are kept

bool purgeable__drop_kept(purgeable_heap_t *heap, uint32_t most) {
  assert(purgeable__is_held(&heap->control->mutex));
  bool dropped = false;
  for (purgeable__spot_t spot; heap->kept_count > most; dropped = true) {
    purgeable__kept_pop(heap, &spot);
    count_given_back(heap, purgeable__slab_held_bytes(heap, spot.slab));
    leave_unwiped(heap, spot, slab_delayed);
  }
  return dropped;
}

void purgeable__give_back_kept(purgeable_heap_t *heap) {
  if (load_relaxed(&heap->kept_bytes) == 0) return;
  pthread_mutex_lock(&heap->control->mutex);
  bool dropped = purgeable__drop_kept(heap, 0);
  pthread_mutex_unlock(&heap->control->mutex);
  if (dropped) purgeable__wipe_unwiped(heap);
}

// MARK: The end of a life

bool purgeable__give_back_if_empty(purgeable_heap_t *heap, purgeable__spot_t spot, uint32_t generation) {
  purgeable__slab_t *slab = spot.slab;
  // A word of 0 is that of no life: its slab ended a moment ago, and the unit may be on its way to the next one.
  if (generation == 0) return true;
  // Looked at before the word: while open, an element could be born and the slab sealed between a look at the living and the
  // claim, and the word would be what it was. From a word that is read later with count 0, a sealed slab's living only go down.
  bool sealed = purgeable__is_sealed(slab);
  // The claim: from count 0, no madvise running, and of the generation that was found empty. Pairs with the pins.
  uint64_t word = purgeable__slab_word_ordered(slab);
  do {
    if (!purgeable__is_of_life(word, generation)) return true;
    if (PURGEABLE_RULE(claim_before_give_back) && !purgeable__is_idle(word)) {
      // The last unlock tries again; after an offer the upkeep does.
      store_relaxed(&heap->pending, true);
      return false;
    }
    if (!sealed || atomic_load(&slab->element_count) != 0) return false;
  } while (!purgeable__claim_for_end(slab, &word));
  assert(atomic_load(&slab->element_count) == 0);

  bool can_stand = purgeable__may_stand(heap, spot);
  pthread_mutex_lock(&heap->control->mutex);
  purgeable__list_remove(heap, spot);
  // Generation first, then the wipe: a reader that finds it unchanged has not seen the wipe.
  purgeable__end_life(slab, generation);
  store_relaxed(&slab->offered, 0);
  store_relaxed(&slab->lost, 0);
  store_relaxed(&slab->settled, 0);
  purgeable__stop_waiting(heap, slab);
  purgeable__forget_lost(heap, slab);
  store_relaxed(&slab->payload_bytes, 0);
  store_relaxed(&slab->busy_round_count, 0);
  if (purgeable__clear_lossy(spot.chunk, spot.unit)) subtract_relaxed(&heap->lossy_count, 1);
  memset((void *)purgeable__pages_at(heap, spot.chunk, spot.unit), 0, heap->pages_per_slab * sizeof(uint32_t));
  forget_tags(heap, spot);
  subtract_relaxed(&heap->slab_count, 1);
  add_relaxed(&heap->given_back_slab_count, 1);
  bool is_kept = can_stand && purgeable__kept_push(heap, spot, generation);
  // A heap that shrinks keeps fewer.
  bool dropped = purgeable__drop_kept(heap, purgeable__kept_most(heap));
  pthread_mutex_unlock(&heap->control->mutex);

  if (!is_kept) wipe_or_delay(heap, spot);
  if (dropped && load_relaxed(&heap->giving_count) == 0) purgeable__wipe_unwiped(heap);
  return true;
}

// MARK: Many at a time

// Wipes slabs that lie side by side, which this thread has claimed, and makes their units available.
static void wipe_together(purgeable_heap_t *heap, uint32_t first, uint32_t count, size_t bytes) {
  if (count == 0) return;
  assert(bytes == (size_t)count << heap->slab_shift);
  char *start = purgeable__pages_of(heap, purgeable__find_unit(heap, first));
  int error = PURGEABLE_RULE(dontneed_before_refill) ? purgeable__wipe(start, bytes) : 0;
  pthread_mutex_lock(&heap->control->mutex);
  for (uint32_t unit = first; unit < first + count; unit++) {
    purgeable__spot_t spot = purgeable__find_unit(heap, unit);
    if (error == 0) {
      return_units(heap, spot);
    } else {
      // The slab counts as held again, until the kernel takes its pages.
      size_t held = purgeable__slab_held_bytes(heap, spot.slab);
      add_relaxed(&heap->held_bytes, held);
      subtract_relaxed(&heap->given_back_bytes, held);
      leave_unwiped(heap, spot, slab_unwiped);
    }
  }
  pthread_mutex_unlock(&heap->control->mutex);
}

void purgeable__wipe_unwiped(purgeable_heap_t *heap) {
  if (!atomic_exchange_explicit(&heap->unwiped, false, memory_order_relaxed)) return;
  pthread_mutex_lock(&heap->control->mutex);
  uint32_t unit = heap->unwiped_first, end = heap->unwiped_end;
  heap->unwiped_first = heap->unwiped_end = heap->delayed_count = 0;
  pthread_mutex_unlock(&heap->control->mutex);
  // Delayed slabs found so far that lie side by side in one chunk's memory.
  uint32_t first = 0, count = 0;
  size_t bytes = 0;
  for (; unit < end; unit++) {
    purgeable__spot_t spot = purgeable__find_unit(heap, unit);
    if (spot.unit >= load_relaxed(&spot.chunk->high_water)) {
      // Nothing further up in this chunk was ever used.
      unit += heap->units_per_chunk - 1 - spot.unit;
      continue;
    }
    // The exchange makes this thread the only one to wipe the slab. The state is read before the exchange, which would touch the
      // directory of units that are not used.
    uint8_t expected = slab_delayed;
    uint8_t state = atomic_load(&spot.slab->state);
    bool delayed = state == slab_delayed && atomic_compare_exchange_strong(&spot.slab->state, &expected, slab_free);
    bool joins = delayed && count != 0 && spot.unit != 0;
    if (!joins) {
      wipe_together(heap, first, count, bytes);
      first = unit;
      count = 0;
      bytes = 0;
    }
    if (delayed) {
      bytes += heap->slab_bytes;
      count++;
      continue;
    }
    if (state != slab_unwiped) continue;
    expected = slab_unwiped;
    if (atomic_compare_exchange_strong(&spot.slab->state, &expected, slab_free)) wipe_and_return(heap, spot);
  }
  wipe_together(heap, first, count, bytes);
}

void purgeable_heap_wipe_deferred(purgeable_heap_t *heap) {
  if (heap == NULL || !load_relaxed(&heap->unwiped) || load_relaxed(&heap->giving_count) != 0) return;
  purgeable__enter(heap);
  purgeable__wipe_unwiped(heap);
}

void purgeable_heap_begin_giving_back(purgeable_heap_t *heap) {
  if (heap == NULL) return;
  purgeable__enter(heap);
  add_relaxed(&heap->giving_count, 1);
  // Whoever gives back in bulk wants the memory: the kept slabs are wiped with the others.
  pthread_mutex_lock(&heap->control->mutex);
  (void)purgeable__drop_kept(heap, 0);
  pthread_mutex_unlock(&heap->control->mutex);
}

void purgeable_heap_end_giving_back(purgeable_heap_t *heap) {
  if (heap == NULL) return;
  purgeable__enter(heap);
  // In a forked child the count started again at 0.
  uint32_t count = load_relaxed(&heap->giving_count);
  while (count != 0 && !atomic_compare_exchange_weak(&heap->giving_count, &count, count - 1)) continue;
  purgeable__wipe_unwiped(heap);
}
