// SPDX-License-Identifier: MIT
// Upkeep: offering what is idle, giving back what is empty. All of it is called by the host. (Losses: heap_sweep.c.)

#include "heap_books.h"
#include "heap_compact.h"
#include "heap_fork.h"
#include "heap_give_back.h"
#include "heap_offer.h"
#include "heap_overdue.h"

// MARK: Offering again

typedef enum again { again_not, again_second, again_later } again_t;

// Whether a slab's second offer is due, or it was offered twice and a lock has taken pages of it off offer since. Heap's mutex
// held.
static again_t is_due_again(const purgeable_heap_t *heap, purgeable__slab_t *slab) {
  assert(purgeable__is_held(&heap->control->mutex));
  uint8_t state = load_relaxed(&slab->state);
  uint8_t times = load_relaxed(&slab->offer_count);
  if (!purgeable__state_is_sealed(state) || times == 0 || purgeable__rests_refused(heap, slab)) return again_not;
  uint64_t word = purgeable__slab_word_relaxed(slab);
  uint64_t all = purgeable__pages_mask(slab, purgeable__offerable_pages(heap, slab));
  if (times == 1) return all != 0 ? again_second : again_not;
  bool wants = (all & ~load_relaxed(&slab->offered)) != 0;
  return wants && purgeable__is_idle(word) ? again_later : again_not;
}

// The slabs that are due again for one and the same reason, from unit number `*unit` on, as long as they are neighbours. Of many
// that are not, the next call goes on. Heap's mutex held.
static size_t collect_again(purgeable_heap_t *heap, uint32_t *unit, uint32_t units, purgeable__spot_t *run, again_t *why) {
  size_t count = 0, looks = 0;
  *why = again_not;
  for (; *unit < units && count < PURGEABLE__RUN_MAX && looks < PURGEABLE__SLABS_AT_A_TIME; looks++) {
    purgeable__spot_t spot = purgeable__find_unit(heap, *unit);
    if (spot.unit >= load_relaxed(&spot.chunk->high_water)) {
      // No unit further up in this chunk was ever used.
      if (count != 0) break;
      *unit += heap->units_per_chunk - *unit % heap->units_per_chunk;
      continue;
    }
    again_t due = is_due_again(heap, spot.slab);
    if (count != 0 && due != *why) break;
    *why = due;
    if (due != again_not) run[count++] = spot;
    bool large = load_relaxed(&spot.slab->state) == slab_large;
    *unit += large ? load_relaxed(&spot.slab->unit_count) : 1;
  }
  PURGEABLE_LOOKS(overdue, looks);
  return count;
}

// Second and later offers, in the order of addresses, whatever the stream: to offer pages again does not move them in the
// kernel's list, so each call covers as much as it can. The second offer covers all pages, those on offer included. Later offers
// leave pages on offer alone, and so keep what the kernel knows of their use, but for those between pages that locks took off.
static int offer_slabs_again(purgeable_heap_t *heap, size_t *offered_bytes) {
  int first_error = 0;
  purgeable__spot_t run[PURGEABLE__RUN_MAX];
  uint32_t units = load_acquire(&heap->chunk_count) * heap->units_per_chunk;
  for (uint32_t unit = 0; unit < units;) {
    again_t why;
    pthread_mutex_lock(&heap->control->mutex);
    size_t count = collect_again(heap, &unit, units, run, &why);
    pthread_mutex_unlock(&heap->control->mutex);
    if (count == 0) continue;
    assert(why != again_not && count <= PURGEABLE__RUN_MAX);
    int error = purgeable__offer_run(heap, run, count, why == again_second, offered_bytes);
    if (error != 0 && error != EBUSY && first_error == 0) first_error = error;
  }
  return first_error;
}

// MARK: Refused offers

// Where all memory is mlocked, or the kernel knows no such offers, each try is a call for each slab, in vain. So what was refused
// is offered again by the next call of the upkeep, by the one after it, and then after 2, 4, 8, ... calls.
enum { REFUSED_ROUNDS_MAX = 512 };

static void begin_refused_round(purgeable_heap_t *heap) {
  uint32_t rounds = load_relaxed(&heap->refused_rounds), left = load_relaxed(&heap->refused_rounds_left);
  bool tries = left == 0;
  if (!atomic_exchange_explicit(&heap->has_refused, false, memory_order_relaxed)) {
    rounds = left = 0;
    tries = true;
  } else if (tries) {
    rounds = rounds == 0 ? 1 : rounds < REFUSED_ROUNDS_MAX ? 2 * rounds : rounds;
    left = rounds - 1;
  } else {
    left--;
    store_relaxed(&heap->has_refused, true);
    store_relaxed(&heap->pending, true);
  }
  store_relaxed(&heap->refused_rounds, rounds);
  store_relaxed(&heap->refused_rounds_left, left);
  store_relaxed(&heap->tries_refused, tries);
}

// MARK: Offering

static void give_back_ended(purgeable_heap_t *heap) {
  purgeable__give_back_kept(heap);
  purgeable__wipe_unwiped(heap);
}

int purgeable_heap_offer_idle(purgeable_heap_t *heap, size_t *offered_bytes) {
  if (heap == NULL) return EINVAL;
  purgeable__enter(heap);
  if (offered_bytes != NULL) *offered_bytes = 0;
  // Before anything is looked for: what ends or becomes idle from here on is noted anew.
  bool was_pending = atomic_exchange(&heap->pending, false);
  // Pairs with `purgeable__note_pending`, and with the notes of slabs that end.
  atomic_thread_fence(memory_order_seq_cst);
  give_back_ended(heap);
  if (!was_pending || heap->offering == purgeable_offering_never) return 0;
  begin_refused_round(heap);
  // Second offers first: those slabs had their first one in an earlier call.
  int first_error = offer_slabs_again(heap, offered_bytes);
  uint32_t streams = load_acquire(&heap->stream_count);
  for (purgeable_stream_t stream = 0; stream < streams; stream++) {
    purgeable__close_idle_page(heap, stream, offered_bytes);
    int error = purgeable__offer_stream(heap, stream, offered_bytes);
    if (first_error == 0) first_error = error;
  }
  // Where there are other streams, whoever made them has a policy, and asks by himself.
  if (heap->moved != NULL && streams == 1 && purgeable_heap_take_busy(heap)) purgeable__relieve(heap);
  if (heap->defers_compaction) {
    while (purgeable__compact_step(heap, true)) continue;
  }
  if (purgeable__release_empty(heap, false)) store_relaxed(&heap->pending, true);
  return first_error;
}

bool purgeable_heap_has_pending(const purgeable_heap_t *heap) {
  return heap != NULL && load_relaxed(&heap->pending);
}

bool purgeable_heap_take_busy(purgeable_heap_t *heap) {
  return heap != NULL && atomic_exchange_explicit(&heap->has_busy, false, memory_order_relaxed);
}

// MARK: Trimming

int purgeable_heap_trim(purgeable_heap_t *heap, size_t *given_back_bytes) {
  if (heap == NULL) return EINVAL;
  purgeable__enter(heap);
  uint64_t before = load_relaxed(&heap->held_bytes);
  purgeable__wipe_unwiped(heap);
  uint32_t units = load_acquire(&heap->chunk_count) * heap->units_per_chunk;
  for (uint32_t unit = 0; unit < units; unit++) {
    purgeable__spot_t spot = purgeable__find_unit(heap, unit);
    if (spot.unit >= load_relaxed(&spot.chunk->high_water)) {
      unit += heap->units_per_chunk - 1 - spot.unit;
      continue;
    }
    uint8_t state = load_acquire(&spot.slab->state);
    if (!purgeable__state_is_sealed(state)) continue;
    uint64_t word = purgeable__slab_word_acquire(spot.slab);
    if (!purgeable__is_dying(word) && atomic_load(&spot.slab->element_count) == 0) {
      (void)purgeable__give_back_if_empty(heap, spot, purgeable__generation(word));
    }
  }
  while (purgeable__compact_step(heap, true)) continue;
  // What has just ended too, where wipes are deferred.
  give_back_ended(heap);
  (void)purgeable__release_empty(heap, true);
  uint64_t after = load_relaxed(&heap->held_bytes);
  if (given_back_bytes != NULL) *given_back_bytes = before > after ? before - after : 0;
  return 0;
}
