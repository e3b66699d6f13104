// SPDX-License-Identifier: MIT
// Upkeep: offering what is idle, finding out what is gone, giving back what is empty. All of it is called by the host.

#include "heap_internal.h"

// Slabs that one madvise may cover: a locker waits for it, 0.1 ms at 64 slabs of 64 KiB.
enum { RUN_MAX = 64 };

// MARK: Offering

// Counts the offers in a row that a slab's holders have kept away. Heap's mutex held.
static void note_busy(purgeable_heap_t *heap, purgeable__slab_t *slab, bool busy) {
  uint8_t rounds = atomic_load_explicit(&slab->busy_rounds, memory_order_relaxed);
  if (!busy && rounds == 0) return;
  // Comes round to a multiple of BUSY_ROUNDS, never to 0.
  rounds = !busy ? 0 : rounds == UINT8_MAX ? UINT8_MAX + 1 - BUSY_ROUNDS : (uint8_t)(rounds + 1);
  atomic_store_explicit(&slab->busy_rounds, rounds, memory_order_relaxed);
  if (busy && rounds % BUSY_ROUNDS == 0) atomic_store_explicit(&heap->has_busy, true, memory_order_relaxed);
}

// The next slabs of a stream that are neighbours in memory and have something to offer, from unit number `*unit` - 1 on.
// Heap's mutex held.
static size_t collect_run(purgeable_heap_t *heap, uint32_t *unit, purgeable__spot_t *run) {
  size_t count = 0;
  uint32_t expected = 0;
  while (*unit != 0 && count < RUN_MAX) {
    purgeable__spot_t spot = purgeable__find_unit(heap, *unit - 1);
    purgeable__slab_t *slab = spot.slab;
    uint64_t word = atomic_load_explicit(&slab->word, memory_order_relaxed);
    uint8_t state = atomic_load_explicit(&slab->state, memory_order_relaxed);
    bool sealed = state == slab_sealed || state == slab_large;
    uint64_t all = purgeable__pages_mask(slab, purgeable__offerable_pages(heap, slab));
    bool wants = (all & ~atomic_load_explicit(&slab->offered, memory_order_relaxed)) != 0;
    bool idle = (word & (COUNT_MASK | OFFERING | DYING)) == 0;
    bool empty = sealed && atomic_load_explicit(&slab->living_count, memory_order_relaxed) == 0;
    if (idle && (wants || empty)) {
      if (count != 0 && *unit != expected) break;
      run[count++] = spot;
      expected = *unit + atomic_load_explicit(&slab->unit_count, memory_order_relaxed);
    } else if (count != 0) {
      break;
    }
    bool busy = wants && (word & COUNT_MASK) != 0;
    if (sealed) note_busy(heap, slab, busy);
    // Locks that last are counted, then left alone: the last unlock says that there is work again.
    bool waits = wants && !idle && (word & DYING) == 0;
    if (waits && !(busy && atomic_load_explicit(&slab->busy_rounds, memory_order_relaxed) >= BUSY_ROUNDS)) {
      atomic_store_explicit(&heap->pending, true, memory_order_relaxed);
    }
    *unit = slab->next;
  }
  return count;
}

// Whether the place in the list that `unit` names is still one of this stream. Heap's mutex held.
static bool still_in(purgeable_heap_t *heap, uint32_t unit, purgeable_stream_t stream) {
  purgeable__slab_t *slab = purgeable__find_unit(heap, unit - 1).slab;
  uint8_t state = atomic_load_explicit(&slab->state, memory_order_relaxed);
  bool in_use = state == slab_open || state == slab_sealed || state == slab_large;
  return in_use && atomic_load_explicit(&slab->stream, memory_order_relaxed) == stream;
}

static int offer_stream(purgeable_heap_t *heap, purgeable_stream_t stream, size_t *offered_bytes) {
  int first_error = 0;
  purgeable__spot_t run[RUN_MAX];
  pthread_mutex_lock(&heap->control->mutex);
  uint32_t unit = heap->streams[stream].oldest;
  while (unit != 0) {
    size_t count = collect_run(heap, &unit, run);
    pthread_mutex_unlock(&heap->control->mutex);
    // Each slab is claimed by its word; one that changed hands since is simply offered in its new life, which does no harm.
    if (count != 0) {
      int error = purgeable__offer_run(heap, run, count, false, offered_bytes);
      if (error != 0 && error != EBUSY && first_error == 0) first_error = error;
    }
    pthread_mutex_lock(&heap->control->mutex);
    if (unit != 0 && !still_in(heap, unit, stream)) {
      // The list moved on under us: the next call takes the rest.
      atomic_store_explicit(&heap->pending, true, memory_order_relaxed);
      break;
    }
  }
  pthread_mutex_unlock(&heap->control->mutex);
  return first_error;
}

typedef enum again { again_not, again_second, again_later } again_t;

// Whether a slab's second offer is due, or it was offered twice and a lock has taken pages of it off offer since. Heap's mutex held.
static again_t is_due_again(const purgeable_heap_t *heap, purgeable__slab_t *slab) {
  uint8_t state = atomic_load_explicit(&slab->state, memory_order_relaxed);
  uint8_t times = atomic_load_explicit(&slab->offer_count, memory_order_relaxed);
  if ((state != slab_sealed && state != slab_large) || times == 0) return again_not;
  if (times == 1) return again_second;
  uint64_t word = atomic_load_explicit(&slab->word, memory_order_relaxed);
  uint64_t all = purgeable__pages_mask(slab, purgeable__offerable_pages(heap, slab));
  bool wants = (all & ~atomic_load_explicit(&slab->offered, memory_order_relaxed)) != 0;
  return wants && (word & (COUNT_MASK | OFFERING | DYING)) == 0 ? again_later : again_not;
}

// The slabs that are due again for one and the same reason, from unit number `*unit` on, as long as they are neighbours. Heap's mutex held.
static size_t collect_again(purgeable_heap_t *heap, uint32_t *unit, uint32_t units, purgeable__spot_t *run, again_t *why) {
  size_t count = 0;
  *why = again_not;
  while (*unit < units && count < RUN_MAX) {
    purgeable__spot_t spot = purgeable__find_unit(heap, *unit);
    if (*unit % heap->units_per_chunk >= spot.chunk->high_water) {
      // Nothing further up in this chunk was ever used.
      if (count != 0) break;
      *unit += heap->units_per_chunk - *unit % heap->units_per_chunk;
      continue;
    }
    again_t due = is_due_again(heap, spot.slab);
    if (count != 0 && due != *why) break;
    *why = due;
    if (due != again_not) run[count++] = spot;
    bool large = atomic_load_explicit(&spot.slab->state, memory_order_relaxed) == slab_large;
    *unit += large ? atomic_load_explicit(&spot.slab->unit_count, memory_order_relaxed) : 1;
  }
  return count;
}

// Second and later offers, in the order of addresses, whatever the stream: offering again moves nothing in the kernel's list, so all that
// counts is to cover much with each call. The second is one of all pages, what is on offer included; later ones leave that alone, and
// with it what the kernel knows of its use.
static int offer_again(purgeable_heap_t *heap, size_t *offered_bytes) {
  int first_error = 0;
  purgeable__spot_t run[RUN_MAX];
  uint32_t units = atomic_load_explicit(&heap->chunk_count, memory_order_acquire) * heap->units_per_chunk;
  for (uint32_t unit = 0; unit < units;) {
    again_t why;
    pthread_mutex_lock(&heap->control->mutex);
    size_t count = collect_again(heap, &unit, units, run, &why);
    pthread_mutex_unlock(&heap->control->mutex);
    if (count == 0) break;
    int error = purgeable__offer_run(heap, run, count, why == again_second, offered_bytes);
    if (error != 0 && error != EBUSY && first_error == 0) first_error = error;
  }
  return first_error;
}

int purgeable_heap_offer_idle(purgeable_heap_t *heap, size_t *offered_bytes) {
  if (heap == NULL) return EINVAL;
  purgeable__enter(heap);
  if (offered_bytes != NULL) *offered_bytes = 0;
  purgeable__wipe_unwiped(heap);
  if (heap->offering == purgeable_offering_never) {
    atomic_store_explicit(&heap->pending, false, memory_order_relaxed);
    return 0;
  }
  if (!atomic_exchange_explicit(&heap->pending, false, memory_order_relaxed)) return 0;
  // Second offers first: those slabs had their first one in an earlier call.
  int first_error = offer_again(heap, offered_bytes);
  uint32_t streams = atomic_load_explicit(&heap->stream_count, memory_order_acquire);
  for (purgeable_stream_t stream = 0; stream < streams; stream++) {
    int error = offer_stream(heap, stream, offered_bytes);
    if (first_error == 0) first_error = error;
  }
  if (heap->moved != NULL && purgeable_heap_take_busy(heap)) purgeable__relieve(heap);
  // Where something was offered for the first time, a second offer is due next time.
  if (offered_bytes == NULL || *offered_bytes != 0) {
    pthread_mutex_lock(&heap->control->mutex);
    bool due = false;
    for (purgeable_stream_t stream = 0; stream < streams && !due; stream++) {
      uint32_t unit = heap->streams[stream].oldest;
      while (unit != 0 && !due) {
        purgeable__slab_t *slab = purgeable__find_unit(heap, unit - 1).slab;
        due = atomic_load_explicit(&slab->offer_count, memory_order_relaxed) == 1;
        unit = slab->next;
      }
    }
    pthread_mutex_unlock(&heap->control->mutex);
    if (due) atomic_store_explicit(&heap->pending, true, memory_order_relaxed);
  }
  return first_error;
}

bool purgeable_heap_has_pending(const purgeable_heap_t *heap) {
  return heap != NULL && atomic_load_explicit(&heap->pending, memory_order_relaxed);
}

bool purgeable_heap_take_busy(purgeable_heap_t *heap) {
  return heap != NULL && atomic_exchange_explicit(&heap->has_busy, false, memory_order_relaxed);
}

// MARK: Finding losses

// Whether the page's first living element, touched, turns out to be gone. False where none begins in this page.
static bool touch_proves_loss(purgeable_heap_t *heap, purgeable__spot_t spot, size_t page) {
  uint32_t granules = (uint32_t)(heap->page_bytes / PURGEABLE_GRANULE_BYTES);
  for (uint32_t i = 0; i < granules; i++) {
    spot.granule = (uint32_t)page * granules + i;
    if (!purgeable__is_living(heap, spot)) continue;
    return atomic_load_explicit(purgeable__header_at(spot), memory_order_acquire) == 0;
  }
  return false;
}

// A large element's pages of zeros may go without loss: its witnesses decide.
static bool large_is_lost(purgeable_heap_t *heap, purgeable__spot_t spot) {
  uint64_t word = atomic_load_explicit(&spot.slab->word, memory_order_acquire);
  purgeable_reference_t reference = {purgeable__place_of(heap, spot), GENERATION(word)};
  return purgeable__is_living(heap, spot) && purgeable_heap_check(heap, reference) == purgeable_outcome_discarded;
}

static size_t sweep_slab(purgeable_heap_t *heap, purgeable__spot_t spot, const unsigned char *resident, bool swap) {
  purgeable__slab_t *slab = spot.slab;
  uint64_t offered = atomic_load_explicit(&slab->offered, memory_order_relaxed);
  uint64_t known = atomic_load_explicit(&slab->lost, memory_order_relaxed);
  uint64_t word = atomic_load_explicit(&slab->word, memory_order_acquire);
  if ((offered & ~known) == 0 || (word & DYING) != 0) return 0;
  size_t pages = purgeable__slab_held_bytes(heap, slab) >> heap->page_shift;
  size_t gone = 0;
  if (purgeable__is_large_slab(slab)) {
    for (size_t page = 0; page < pages; page++) {
      gone += (resident[page] & 1) == 0 && (known & purgeable__page_bit(slab, page)) == 0;
    }
    if (gone == 0 || !large_is_lost(heap, spot)) return 0;
    // What was found first has been recorded: of a run, that is all of it. Swapped out is not gone.
    if (purgeable__is_run(slab) || swap) return gone << heap->page_shift;
    gone = 0;
  }
  for (size_t page = 0; page < pages; page++) {
    uint64_t bit = purgeable__page_bit(slab, page);
    if ((resident[page] & 1) != 0 || (offered & ~known & bit) == 0) continue;
    if (swap && !touch_proves_loss(heap, spot, page)) continue;
    gone += purgeable__mark_lost(heap, spot, GENERATION(word), page);
  }
  return gone << heap->page_shift;
}

// A run over several chunks: mincore chunk by chunk, then as any large slab. `resident` has room for one chunk.
static int sweep_run(purgeable_heap_t *heap, purgeable__spot_t spot, unsigned char *resident, size_t *lost_bytes) {
  purgeable__slab_t *slab = spot.slab;
  bool on_offer = atomic_load_explicit(&slab->offered, memory_order_relaxed) != 0;
  if (!on_offer || atomic_load_explicit(&slab->lost, memory_order_relaxed) != 0) return 0;
  size_t used = purgeable__slab_held_bytes(heap, slab), gone = 0;
  for (size_t start = 0; start < used; start += heap->chunk_bytes) {
    size_t length = used - start < heap->chunk_bytes ? used - start : heap->chunk_bytes;
    int error = purgeable__mincore(spot.unit_base + start, length, resident);
    if (error != 0) return error;
    for (size_t page = 0; page < length >> heap->page_shift; page++) gone += (resident[page] & 1) == 0;
  }
  if (gone != 0 && large_is_lost(heap, spot)) *lost_bytes += gone << heap->page_shift;
  return 0;
}

int purgeable_heap_sweep(purgeable_heap_t *heap, size_t *lost_bytes) {
  if (heap == NULL) return EINVAL;
  purgeable__enter(heap);
  if (lost_bytes != NULL) *lost_bytes = 0;
  size_t pages = heap->chunk_bytes >> heap->page_shift;
  unsigned char *resident = purgeable__allocate(pages, 1);
  if (resident == NULL) return ENOMEM;
  bool swap = purgeable__swap_in_use();
  size_t lost = 0;
  int first_error = 0;
  uint32_t chunks = atomic_load_explicit(&heap->chunk_count, memory_order_acquire);
  for (uint32_t number = 0; number < chunks; number++) {
    purgeable__chunk_t *chunk = atomic_load_explicit(&heap->chunks[number], memory_order_relaxed);
    // The heap's mutex keeps every life going from the look to the record; it is held for one chunk at a time.
    pthread_mutex_lock(&heap->control->mutex);
    size_t used = (size_t)chunk->high_water << heap->slab_shift;
    int error = used == 0 || chunk->used_count == 0 ? 0 : purgeable__mincore(chunk->base, used, resident);
    if (first_error == 0) first_error = error;
    for (uint32_t unit = 0; error == 0 && unit < chunk->high_water; unit++) {
      if (((chunk->used[unit / 64] >> (unit % 64)) & 1) == 0) continue;
      purgeable__spot_t spot = purgeable__find_unit(heap, number * heap->units_per_chunk + unit);
      // A run that reaches beyond this chunk is asked about by itself; what follows it in this chunk is its continuation.
      bool beyond = purgeable__used_bytes(spot.slab) > used - ((size_t)unit << heap->slab_shift);
      if (beyond) {
        error = sweep_run(heap, spot, resident, &lost);
        if (first_error == 0) first_error = error;
      } else {
        lost += sweep_slab(heap, spot, resident + ((size_t)unit << heap->slab_shift >> heap->page_shift), swap);
      }
    }
    pthread_mutex_unlock(&heap->control->mutex);
  }
  free(resident);
  if (lost_bytes != NULL) *lost_bytes = lost;
  return first_error;
}

// MARK: Discards on demand

static size_t count_resident(const unsigned char *pages, size_t count) {
  size_t resident = 0;
  for (size_t page = 0; page < count; page++) resident += pages[page] & 1;
  return resident;
}

// Pages [first, end) of what begins at `base`, a chunk's length at a time: `pages` has room for that much.
static int page_out_range(purgeable_heap_t *heap, char *base, size_t first, size_t end, unsigned char *pages, size_t *gone_bytes) {
  size_t most = heap->chunk_bytes >> heap->page_shift;
  while (first < end) {
    size_t count = end - first < most ? end - first : most;
    char *start = base + (first << heap->page_shift);
    size_t length = count << heap->page_shift;
    int error = purgeable__mincore(start, length, pages);
    size_t before = error == 0 ? count_resident(pages, count) : 0;
    if (before != 0) {
      error = purgeable__madvise(start, length, PURGEABLE__MADV_PAGEOUT);
      if (error == 0) error = purgeable__mincore(start, length, pages);
      size_t after = error == 0 ? count_resident(pages, count) : before;
      if (after < before) *gone_bytes += (before - after) << heap->page_shift;
    }
    if (error != 0) return error;
    first += count;
  }
  return 0;
}

int purgeable_heap_page_out(purgeable_heap_t *heap, size_t limit_bytes, uint32_t *hand, size_t *discarded_bytes) {
  if (heap == NULL) return EINVAL;
  purgeable__enter(heap);
  if (discarded_bytes != NULL) *discarded_bytes = 0;
  unsigned char *pages = purgeable__allocate(heap->chunk_bytes >> heap->page_shift, 1);
  if (pages == NULL) return ENOMEM;
  uint32_t units = atomic_load_explicit(&heap->chunk_count, memory_order_acquire) * heap->units_per_chunk;
  uint32_t unit = hand == NULL || *hand >= units ? 0 : *hand;
  size_t gone = 0;
  int error = 0;
  for (uint32_t seen = 0; seen < units && gone < limit_bytes && error == 0; seen++) {
    purgeable__spot_t spot = purgeable__find_unit(heap, unit);
    unit = unit + 1 == units ? 0 : unit + 1;
    // No mutex and no claim: pages whose offer was cancelled meanwhile are dirty, and the kernel keeps the content of those.
    uint8_t state = atomic_load_explicit(&spot.slab->state, memory_order_acquire);
    if (state != slab_open && state != slab_sealed && state != slab_large) continue;
    uint64_t offered = atomic_load_explicit(&spot.slab->offered, memory_order_relaxed);
    size_t used = purgeable__slab_held_bytes(heap, spot.slab) >> heap->page_shift;
    for (size_t first = 0, end; first < used && error == 0; first = end) {
      bool wanted = (offered & purgeable__page_bit(spot.slab, first)) != 0;
      for (end = first + 1; end < used && ((offered & purgeable__page_bit(spot.slab, end)) != 0) == wanted;) end++;
      if (wanted) error = page_out_range(heap, spot.unit_base, first, end, pages, &gone);
    }
  }
  free(pages);
  if (hand != NULL) *hand = unit;
  if (discarded_bytes != NULL) *discarded_bytes = gone;
  return error;
}

// MARK: Trimming

int purgeable_heap_trim(purgeable_heap_t *heap, size_t *freed_bytes) {
  if (heap == NULL) return EINVAL;
  purgeable__enter(heap);
  uint64_t before = atomic_load_explicit(&heap->held_bytes, memory_order_relaxed);
  purgeable__wipe_unwiped(heap);
  uint32_t units = atomic_load_explicit(&heap->chunk_count, memory_order_acquire) * heap->units_per_chunk;
  for (uint32_t unit = 0; unit < units; unit++) {
    purgeable__spot_t spot = purgeable__find_unit(heap, unit);
    uint8_t state = atomic_load_explicit(&spot.slab->state, memory_order_acquire);
    if (state != slab_sealed && state != slab_large) continue;
    uint64_t word = atomic_load_explicit(&spot.slab->word, memory_order_acquire);
    if ((word & DYING) == 0 && atomic_load(&spot.slab->living_count) == 0) {
      (void)purgeable__give_back_if_empty(heap, spot, GENERATION(word));
    }
  }
  while (purgeable__compact_step(heap)) continue;
  uint64_t after = atomic_load_explicit(&heap->held_bytes, memory_order_relaxed);
  if (freed_bytes != NULL) *freed_bytes = before > after ? before - after : 0;
  return 0;
}
