// SPDX-License-Identifier: MIT
// How an empty slab ends: claimed, its generation raised, its pages wiped, in this order (the states and why: heap_slab.c).
//
//     sealed, empty --claim--> DYING, generation + 1 --wipe--> free
//                                     |                        ^
//                                     +--> delayed ------------+      while many are given back: neighbours by one call
//                                     +--> unwiped ------------+      the kernel refused: tried again, and held until then

#include "heap_internal.h"

// A sealed slab's table fits.
static void forget_tags(purgeable_heap_t *heap, purgeable__slab_t *slab) {
  if (slab->tags == NULL) return;
  atomic_fetch_sub_explicit(&heap->ordinary_bytes, slab->tag_count * sizeof *slab->tags, memory_order_relaxed);
  free(slab->tags);
  slab->tags = NULL;
  slab->tag_count = 0;
}

// Heap's mutex held: the unit cannot be used before it is wiped.
static void leave_unwiped(purgeable_heap_t *heap, purgeable__spot_t spot, purgeable__slab_state_t state) {
  uint32_t unit = purgeable__unit_number(heap, spot);
  if (heap->unwiped_first == heap->unwiped_end) heap->unwiped_first = heap->unwiped_end = unit;
  if (unit < heap->unwiped_first) heap->unwiped_first = unit;
  if (unit >= heap->unwiped_end) heap->unwiped_end = unit + 1;
  heap->delayed_count += state == slab_delayed;
  atomic_store(&spot.slab->state, state);
  atomic_store_explicit(&heap->unwiped, true, memory_order_relaxed);
}

// Heap's mutex held: makes the units of a wiped slab available.
static void return_units(purgeable_heap_t *heap, purgeable__spot_t spot) {
  purgeable__slab_t *slab = spot.slab;
  uint32_t count = atomic_load_explicit(&slab->unit_count, memory_order_relaxed);
  uint32_t generation = GENERATION(atomic_load_explicit(&slab->word, memory_order_relaxed));
  if (PURGEABLE_RULE(wide_generations) && generation == slab->first_generation) {
    atomic_store(&slab->state, slab_retired);
    // Only the first unit's generations are used up.
    if (count > 1) purgeable__units_return(heap, purgeable__find_unit(heap, purgeable__unit_number(heap, spot) + 1), count - 1);
  } else {
    purgeable__units_return(heap, spot, count);
  }
}

static void count_given_back(purgeable_heap_t *heap, size_t held) {
  atomic_fetch_sub_explicit(&heap->held_bytes, held, memory_order_relaxed);
  atomic_fetch_add_explicit(&heap->given_back_bytes, held, memory_order_relaxed);
}

// How many slabs wait to be wiped together. The more, the longer the ranges, and each costs an interrupt of every processor that runs this
// process; but memory must not be late for long. (What is on offer the kernel may take meanwhile.)
static size_t delayed_limit(const purgeable_heap_t *heap) {
  enum { LEAST = 256 };
  size_t quarter = atomic_load_explicit(&heap->slab_count, memory_order_relaxed) / 4;
  return quarter > LEAST ? quarter : LEAST;
}

// The slab is claimed and out of its stream. Wipes it and makes its units available, or leaves it to be wiped later.
static void wipe_and_return(purgeable_heap_t *heap, purgeable__spot_t spot) {
  size_t held = purgeable__slab_held_bytes(heap, spot.slab);
  bool delays = atomic_load_explicit(&heap->giving_count, memory_order_relaxed) != 0 && !purgeable__is_run(spot.slab);
  int error = !delays && PURGEABLE_RULE(dontneed_before_refill) ? purgeable__wipe(spot.unit_base, held) : 0;
  pthread_mutex_lock(&heap->control->mutex);
  if (error != 0) {
    // Nothing may be written there before the wipe succeeds; the bytes stay held.
    leave_unwiped(heap, spot, slab_unwiped);
  } else {
    count_given_back(heap, held);
    if (delays) {
      leave_unwiped(heap, spot, slab_delayed);
    } else {
      return_units(heap, spot);
    }
  }
  bool enough = heap->delayed_count >= delayed_limit(heap);
  pthread_mutex_unlock(&heap->control->mutex);
  if (enough) purgeable__wipe_unwiped(heap);
}

bool purgeable__give_back_if_empty(purgeable_heap_t *heap, purgeable__spot_t spot, uint32_t generation) {
  purgeable__slab_t *slab = spot.slab;
  // Looked at before the word: while open, an element could be born and the slab sealed between a look at the living and the
  // claim, and the word would be what it was. From a word that is read later with count 0, a sealed slab's living only go down.
  bool sealed = purgeable__is_sealed(slab);
  // The claim: from count 0, no madvise running, and of the generation that was found empty. Pairs with the pins.
  uint64_t word = atomic_load(&slab->word);
  do {
    if (GENERATION(word) != generation || (word & DYING) != 0) return true;
    if (PURGEABLE_RULE(claim_before_give_back) && (word & (COUNT_MASK | OFFERING)) != 0) {
      // The last unlock comes here again; after an offer the upkeep does.
      atomic_store_explicit(&heap->pending, true, memory_order_relaxed);
      return false;
    }
    if (!sealed || atomic_load(&slab->living_count) != 0) return false;
  } while (!atomic_compare_exchange_weak(&slab->word, &word, word | DYING));

  pthread_mutex_lock(&heap->control->mutex);
  purgeable__unlink(heap, spot);
  // Generation first, then the wipe: a reader that finds it unchanged has not seen the wipe.
  uint64_t next = (uint64_t)purgeable__next_generation(GENERATION(word)) << 32;
  atomic_store(&slab->word, next | DYING);
  atomic_store_explicit(&slab->offered, 0, memory_order_relaxed);
  atomic_store_explicit(&slab->lost, 0, memory_order_relaxed);
  atomic_store_explicit(&slab->living_bytes, 0, memory_order_relaxed);
  atomic_store_explicit(&slab->busy_rounds, 0, memory_order_relaxed);
  uint64_t lossy_bit = (uint64_t)1 << (spot.unit % 64);
  uint64_t lossy = atomic_fetch_and_explicit(&spot.chunk->lossy[spot.unit / 64], ~lossy_bit, memory_order_relaxed);
  if ((lossy & lossy_bit) != 0) atomic_fetch_sub_explicit(&heap->lossy_count, 1, memory_order_relaxed);
  memset((void *)&spot.chunk->page_bytes[(size_t)spot.unit * heap->pages_per_slab], 0, heap->pages_per_slab * 4);
  forget_tags(heap, slab);
  atomic_fetch_sub_explicit(&heap->slab_count, 1, memory_order_relaxed);
  atomic_fetch_add_explicit(&heap->given_back_count, 1, memory_order_relaxed);
  pthread_mutex_unlock(&heap->control->mutex);

  wipe_and_return(heap, spot);
  return true;
}

// Wipes slabs that lie side by side, which this thread has claimed, and makes their units available.
static void wipe_together(purgeable_heap_t *heap, uint32_t first, uint32_t count, size_t bytes) {
  if (count == 0) return;
  int error = PURGEABLE_RULE(dontneed_before_refill) ? purgeable__wipe(purgeable__find_unit(heap, first).unit_base, bytes) : 0;
  pthread_mutex_lock(&heap->control->mutex);
  for (uint32_t unit = first; unit < first + count; unit++) {
    purgeable__spot_t spot = purgeable__find_unit(heap, unit);
    if (error == 0) {
      return_units(heap, spot);
    } else {
      // Held again, until the kernel takes it.
      size_t held = purgeable__slab_held_bytes(heap, spot.slab);
      atomic_fetch_add_explicit(&heap->held_bytes, held, memory_order_relaxed);
      atomic_fetch_sub_explicit(&heap->given_back_bytes, held, memory_order_relaxed);
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
  // Delayed ones, side by side in one chunk's memory, so far.
  uint32_t first = 0, count = 0;
  size_t bytes = 0;
  for (; unit < end; unit++) {
    purgeable__spot_t spot = purgeable__find_unit(heap, unit);
    // The exchange makes this thread the only one to wipe it.
    uint8_t expected = slab_delayed;
    bool delayed = atomic_compare_exchange_strong(&spot.slab->state, &expected, slab_free);
    bool joins = delayed && count != 0 && spot.unit != 0 && bytes == (size_t)count << heap->slab_shift;
    if (!joins) {
      wipe_together(heap, first, count, bytes);
      first = unit;
      count = 0;
      bytes = 0;
    }
    if (delayed) {
      bytes = ((size_t)count << heap->slab_shift) + purgeable__slab_held_bytes(heap, spot.slab);
      count++;
      continue;
    }
    expected = slab_unwiped;
    if (atomic_compare_exchange_strong(&spot.slab->state, &expected, slab_free)) wipe_and_return(heap, spot);
  }
  wipe_together(heap, first, count, bytes);
}

void purgeable_heap_begin_giving_back(purgeable_heap_t *heap) {
  if (heap == NULL) return;
  purgeable__enter(heap);
  atomic_fetch_add_explicit(&heap->giving_count, 1, memory_order_relaxed);
}

void purgeable_heap_end_giving_back(purgeable_heap_t *heap) {
  if (heap == NULL) return;
  purgeable__enter(heap);
  // In a forked child the count began anew.
  uint32_t count = atomic_load_explicit(&heap->giving_count, memory_order_relaxed);
  while (count != 0 && !atomic_compare_exchange_weak(&heap->giving_count, &count, count - 1)) continue;
  purgeable__wipe_unwiped(heap);
}
