// SPDX-License-Identifier: MIT
// Streams: slabs in order of birth, the elements of a slab, and moving what lives so that a slab can be given back.
//
// Moving an element: it is read without a lock straight into its new place, committed there, and its owner exchanges the old
// reference for the new one by compare-exchange. Only then is the old one freed; until then it stays valid. If the owner says no
// (the element was removed or replaced meanwhile), the copy is freed. So at every moment the owner's reference names an element
// that holds the right bytes, and nobody has to be stopped.

#include "heap_internal.h"

int purgeable_stream_create(purgeable_heap_t *heap, purgeable_stream_t *stream) {
  if (heap == NULL || stream == NULL) return EINVAL;
  purgeable__enter(heap);
  pthread_mutex_lock(&heap->control->mutex);
  uint32_t count = atomic_load_explicit(&heap->stream_count, memory_order_relaxed);
  int error = count == PURGEABLE_STREAM_COUNT_MAX ? ENOMEM : 0;
  if (error == 0) {
    *stream = count;
    // Release: pairs with the acquire in every check of a stream's number.
    atomic_store_explicit(&heap->stream_count, count + 1, memory_order_release);
  }
  pthread_mutex_unlock(&heap->control->mutex);
  return error;
}

static bool is_stream(const purgeable_heap_t *heap, purgeable_stream_t stream) {
  return stream < atomic_load_explicit(&heap->stream_count, memory_order_acquire);
}

int purgeable_stream_seal(purgeable_heap_t *heap, purgeable_stream_t stream) {
  if (heap == NULL) return EINVAL;
  purgeable__enter(heap);
  if (!is_stream(heap, stream)) return EINVAL;
  pthread_mutex_lock(&heap->control->streams[stream]);
  uint32_t open = heap->streams[stream].open;
  if (open != 0) {
    heap->streams[stream].open = 0;
    purgeable__seal(heap, purgeable__find_unit(heap, open - 1));
  }
  pthread_mutex_unlock(&heap->control->streams[stream]);
  return 0;
}

// MARK: Walking the slabs

static purgeable_slab_t name_of(const purgeable_heap_t *heap, uint32_t unit) {
  uint64_t word = atomic_load_explicit(&purgeable__find_unit(heap, unit).slab->word, memory_order_acquire);
  return (purgeable_slab_t){unit, GENERATION(word)};
}

static bool is_dying(const purgeable_heap_t *heap, uint32_t unit) {
  return (atomic_load_explicit(&purgeable__find_unit(heap, unit).slab->word, memory_order_acquire) & DYING) != 0;
}

// The slab that a name means, NULL when its life is over.
static purgeable__spot_t find_slab(const purgeable_heap_t *heap, purgeable_slab_t slab) {
  purgeable_reference_t reference = {(uint64_t)slab.index * heap->granules_per_slab, slab.generation};
  return purgeable__resolve(heap, reference);
}

int purgeable_stream_slabs(purgeable_heap_t *heap, purgeable_stream_t stream, purgeable_slab_t *slabs, size_t capacity,
                           size_t *count) {
  if (heap == NULL || count == NULL || (slabs == NULL && capacity != 0)) return EINVAL;
  purgeable__enter(heap);
  if (!is_stream(heap, stream)) return EINVAL;
  size_t found = 0;
  pthread_mutex_lock(&heap->control->mutex);
  for (uint32_t unit = heap->streams[stream].oldest; unit != 0; unit = purgeable__find_unit(heap, unit - 1).slab->next) {
    if (is_dying(heap, unit - 1)) continue;
    if (found < capacity) slabs[found] = name_of(heap, unit - 1);
    found++;
  }
  pthread_mutex_unlock(&heap->control->mutex);
  *count = found;
  return 0;
}

// Heap's mutex held.
static int first_alive(purgeable_heap_t *heap, uint32_t unit, purgeable_slab_t *slab) {
  while (unit != 0 && is_dying(heap, unit - 1)) unit = purgeable__find_unit(heap, unit - 1).slab->next;
  if (unit == 0) return ENOENT;
  *slab = name_of(heap, unit - 1);
  return 0;
}

int purgeable_stream_oldest(purgeable_heap_t *heap, purgeable_stream_t stream, purgeable_slab_t *slab) {
  if (heap == NULL || slab == NULL) return EINVAL;
  purgeable__enter(heap);
  if (!is_stream(heap, stream)) return EINVAL;
  pthread_mutex_lock(&heap->control->mutex);
  int error = first_alive(heap, heap->streams[stream].oldest, slab);
  pthread_mutex_unlock(&heap->control->mutex);
  return error;
}

int purgeable_stream_youngest(purgeable_heap_t *heap, purgeable_stream_t stream, purgeable_slab_t *slab) {
  if (heap == NULL || slab == NULL) return EINVAL;
  purgeable__enter(heap);
  if (!is_stream(heap, stream)) return EINVAL;
  pthread_mutex_lock(&heap->control->mutex);
  uint32_t unit = heap->streams[stream].youngest;
  while (unit != 0 && is_dying(heap, unit - 1)) unit = purgeable__find_unit(heap, unit - 1).slab->previous;
  if (unit != 0) *slab = name_of(heap, unit - 1);
  pthread_mutex_unlock(&heap->control->mutex);
  return unit == 0 ? ENOENT : 0;
}

int purgeable_slab_next(purgeable_heap_t *heap, purgeable_slab_t slab, purgeable_slab_t *next) {
  if (heap == NULL || next == NULL) return EINVAL;
  purgeable__enter(heap);
  pthread_mutex_lock(&heap->control->mutex);
  // Under the mutex a slab that is found alive stays linked.
  purgeable__spot_t spot = find_slab(heap, slab);
  int error = spot.slab == NULL ? ESTALE : first_alive(heap, spot.slab->next, next);
  pthread_mutex_unlock(&heap->control->mutex);
  return error;
}

int purgeable_slab_information(purgeable_heap_t *heap, purgeable_slab_t slab, purgeable_slab_information_t *information) {
  if (heap == NULL || information == NULL) return EINVAL;
  purgeable__enter(heap);
  purgeable__spot_t spot = find_slab(heap, slab);
  if (spot.slab == NULL) return ESTALE;
  uint64_t word = atomic_load_explicit(&spot.slab->word, memory_order_acquire);
  size_t held = purgeable__slab_held_bytes(heap, spot.slab);
  uint64_t lost = atomic_load_explicit(&spot.slab->lost, memory_order_relaxed);
  size_t pages = held >> heap->page_shift;
  *information = (purgeable_slab_information_t){
      .stream = atomic_load_explicit(&spot.slab->stream, memory_order_relaxed),
      .living_count = atomic_load_explicit(&spot.slab->living_count, memory_order_relaxed),
      .living_bytes = atomic_load_explicit(&spot.slab->living_bytes, memory_order_relaxed),
      .held_bytes = held,
      .lost_page_count = (uint32_t)(lost == ~(uint64_t)0 ? pages : (size_t)__builtin_popcountll(lost)),
      .lock_count = (uint32_t)(word & COUNT_MASK),
      .busy_rounds = atomic_load_explicit(&spot.slab->busy_rounds, memory_order_relaxed),
      .is_open = atomic_load_explicit(&spot.slab->state, memory_order_relaxed) == slab_open,
      .is_large = purgeable__is_large_slab(spot.slab),
  };
  return 0;
}

int purgeable_slab_of(purgeable_heap_t *heap, purgeable_reference_t reference, purgeable_slab_t *slab) {
  if (heap == NULL || slab == NULL) return EINVAL;
  purgeable__enter(heap);
  purgeable__spot_t spot = purgeable__resolve(heap, reference);
  if (spot.slab == NULL) return ESTALE;
  *slab = (purgeable_slab_t){(uint32_t)(reference.place / heap->granules_per_slab), (uint32_t)reference.generation};
  return 0;
}

// MARK: Walking the elements

int purgeable_slab_next_element(purgeable_heap_t *heap, purgeable_slab_t slab, uint32_t *cursor,
                                purgeable_reference_t *reference) {
  if (heap == NULL || cursor == NULL || reference == NULL) return EINVAL;
  purgeable__enter(heap);
  purgeable__spot_t spot = find_slab(heap, slab);
  if (spot.slab == NULL) return ESTALE;
  uint32_t end = purgeable__is_run(spot.slab) ? 1 : atomic_load_explicit(&spot.slab->used_granules, memory_order_acquire);
  for (uint32_t granule = *cursor; granule < end;) {
    spot.granule = granule;
    uint64_t word = atomic_load_explicit(purgeable__living_word(heap, spot), memory_order_acquire) >> (granule % 64);
    if (word == 0) {
      granule += 64 - granule % 64;
      continue;
    }
    granule += (uint32_t)__builtin_ctzll(word);
    if (granule >= end) break;
    *reference = (purgeable_reference_t){(uint64_t)slab.index * heap->granules_per_slab + granule, slab.generation};
    *cursor = granule + 1;
    // Whoever walks the elements looks at them next, and they are far apart.
    __builtin_prefetch(spot.unit_base + (size_t)granule * PURGEABLE_GRANULE_BYTES);
    return 0;
  }
  return ENOENT;
}

// MARK: Moving

int purgeable_heap_move(purgeable_heap_t *heap, purgeable_reference_t reference, purgeable_stream_t stream,
                        purgeable_moved_t moved, void *context, purgeable_reference_t *to) {
  if (heap == NULL || moved == NULL) return EINVAL;
  purgeable__enter(heap);
  if (!is_stream(heap, stream)) return EINVAL;
  size_t length;
  purgeable_outcome_t outcome = purgeable_heap_length(heap, reference, &length);
  if (outcome != purgeable_outcome_intact) return outcome == purgeable_outcome_discarded ? ENODATA : ESTALE;
  uint64_t tag = 0;
  if (heap->keeps_tags && purgeable_heap_tag(heap, reference, &tag) != 0) return ESTALE;
  purgeable_reference_t copy;
  void *bytes;
  int error = purgeable_heap_allocate_in(heap, stream, length, tag, &copy, &bytes);
  if (error != 0) return error;
  outcome = purgeable_heap_read(heap, reference, bytes, length, &length);
  if (outcome != purgeable_outcome_intact) {
    (void)purgeable_heap_free(heap, copy);
    return outcome == purgeable_outcome_discarded ? ENODATA : ESTALE;
  }
  // Held over the call, so that `bytes` can be looked at: the writer's count ends with the commit.
  int pin_error;
  purgeable__spot_t spot = purgeable__find(heap, copy.place);
  bool pinned = purgeable__pin(spot.slab, (uint32_t)copy.generation, &pin_error);
  error = purgeable_heap_commit(heap, copy);
  assert(error == 0);
  bool taken = pinned && moved(context, reference, copy, tag, bytes, length);
  (void)purgeable_heap_free(heap, taken ? reference : copy);
  if (pinned) purgeable__unpin(heap, spot);
  if (!taken) return EBUSY;
  atomic_fetch_add_explicit(&heap->moved_count, 1, memory_order_relaxed);
  if (to != NULL) *to = copy;
  return 0;
}

static void seal_if_open(purgeable_heap_t *heap, purgeable_slab_t slab, purgeable__spot_t spot) {
  purgeable_stream_t stream = atomic_load_explicit(&spot.slab->stream, memory_order_relaxed);
  pthread_mutex_lock(&heap->control->streams[stream]);
  if (heap->streams[stream].open == slab.index + 1 &&
      GENERATION(atomic_load_explicit(&spot.slab->word, memory_order_relaxed)) == slab.generation) {
    heap->streams[stream].open = 0;
    purgeable__seal(heap, spot);
  }
  pthread_mutex_unlock(&heap->control->streams[stream]);
}

int purgeable_slab_evacuate(purgeable_heap_t *heap, purgeable_slab_t slab, purgeable_stream_t stream, purgeable_moved_t moved,
                            void *context, uint32_t *staying) {
  if (heap == NULL || moved == NULL) return EINVAL;
  purgeable__enter(heap);
  if (!is_stream(heap, stream)) return EINVAL;
  purgeable__spot_t spot = find_slab(heap, slab);
  if (spot.slab == NULL) return ESTALE;
  seal_if_open(heap, slab, spot);
  uint32_t cursor = 0, stay = 0;
  purgeable_reference_t reference;
  int error;
  while ((error = purgeable_slab_next_element(heap, slab, &cursor, &reference)) == 0) {
    int moving = purgeable_heap_move(heap, reference, stream, moved, context, NULL);
    if (moving == ENOMEM || moving == EAGAIN) return moving;
    if (moving == EBUSY || moving == ENODATA) stay++;
  }
  if (staying != NULL) *staying = stay;
  // The last free may have given it back already.
  if (error == ESTALE) return 0;
  return purgeable_slab_give_back(heap, slab) == EBUSY ? EBUSY : 0;
}

int purgeable_slab_give_back(purgeable_heap_t *heap, purgeable_slab_t slab) {
  if (heap == NULL) return EINVAL;
  purgeable__enter(heap);
  purgeable__spot_t spot = find_slab(heap, slab);
  if (spot.slab == NULL) return ESTALE;
  seal_if_open(heap, slab, spot);
  if (atomic_load(&spot.slab->living_count) != 0) {
    return GENERATION(atomic_load(&spot.slab->word)) == slab.generation ? EBUSY : 0;
  }
  // Whoever evicts needs the memory now; an offer that is running would only give it back when it ends.
  purgeable__wait_for_offer(heap, spot.slab);
  purgeable__give_back_if_empty(heap, spot, slab.generation);
  return 0;
}

int purgeable_slab_free_elements(purgeable_heap_t *heap, purgeable_slab_t slab, uint32_t *freed) {
  if (heap == NULL) return EINVAL;
  purgeable__enter(heap);
  purgeable__spot_t spot = find_slab(heap, slab);
  if (spot.slab == NULL) return ESTALE;
  seal_if_open(heap, slab, spot);
  int error = 0;
  // As many locks as the word can count (EOVERFLOW) hold the slab's life as well as a pin would.
  bool pinned = purgeable__pin(spot.slab, slab.generation, &error);
  if (!pinned && error != EOVERFLOW) return ESTALE;
  uint32_t count = purgeable__free_living(heap, spot, slab);
  if (freed != NULL) *freed = count;
  if (pinned) purgeable__unpin(heap, spot);
  return 0;
}

int purgeable_slab_restream(purgeable_heap_t *heap, purgeable_slab_t slab, purgeable_stream_t stream) {
  if (heap == NULL) return EINVAL;
  purgeable__enter(heap);
  if (!is_stream(heap, stream)) return EINVAL;
  pthread_mutex_lock(&heap->control->mutex);
  purgeable__spot_t spot = find_slab(heap, slab);
  int error = spot.slab == NULL ? ESTALE : 0;
  if (error == 0 && atomic_load(&spot.slab->state) == slab_open) error = EBUSY;
  if (error == 0) {
    purgeable__unlink(heap, spot);
    purgeable__link(heap, spot, stream);
    // An offer that is walking the lists right now may miss it.
    atomic_store_explicit(&heap->pending, true, memory_order_relaxed);
  }
  pthread_mutex_unlock(&heap->control->mutex);
  return error;
}

// MARK: Slabs that stay locked

bool purgeable_heap_is_on_offer(const purgeable_heap_t *heap, uint64_t place) {
  if (heap == NULL) return false;
  purgeable__spot_t spot = purgeable__find(heap, place);
  if (spot.slab == NULL) return false;
  size_t page = ((size_t)spot.granule * PURGEABLE_GRANULE_BYTES) >> heap->page_shift;
  return (atomic_load_explicit(&spot.slab->offered, memory_order_relaxed) & purgeable__page_bit(spot.slab, page)) != 0;
}

// The slabs of stream 0 whose hot elements are due to move, oldest first.
static size_t find_busy(purgeable_heap_t *heap, purgeable_slab_t *busy, size_t capacity) {
  size_t count = 0;
  pthread_mutex_lock(&heap->control->mutex);
  for (uint32_t unit = heap->streams[0].oldest; unit != 0 && count < capacity;) {
    purgeable__slab_t *slab = purgeable__find_unit(heap, unit - 1).slab;
    uint8_t rounds = atomic_load_explicit(&slab->busy_rounds, memory_order_relaxed);
    uint64_t all = purgeable__pages_mask(slab, purgeable__offerable_pages(heap, slab));
    uint64_t off = all & ~atomic_load_explicit(&slab->offered, memory_order_relaxed);
    // Where most of it is in use, moving that would only make another slab that is locked all the time.
    bool worth = __builtin_popcountll(off) * 2 <= __builtin_popcountll(all);
    bool due = rounds != 0 && rounds % BUSY_ROUNDS == 0;
    if (due && worth && atomic_load(&slab->state) == slab_sealed) busy[count++] = name_of(heap, unit - 1);
    unit = slab->next;
  }
  pthread_mutex_unlock(&heap->control->mutex);
  return count;
}

void purgeable__relieve(purgeable_heap_t *heap) {
  // As for compaction: the copies allocate too.
  if (atomic_exchange_explicit(&heap->compacting, true, memory_order_acquire)) return;
  // Listed before anything is moved: what is moved goes to the end of the same list.
  purgeable_slab_t slabs[16];
  size_t count = find_busy(heap, slabs, sizeof slabs / sizeof slabs[0]);
  for (size_t i = 0; i < count; i++) {
    uint32_t cursor = 0;
    purgeable_reference_t reference;
    while (purgeable_slab_next_element(heap, slabs[i], &cursor, &reference) == 0) {
      if (purgeable_heap_is_on_offer(heap, reference.place)) continue;
      int error = purgeable_heap_move(heap, reference, 0, heap->moved, heap->context, NULL);
      if (error == ENOMEM || error == EAGAIN) break;
    }
  }
  atomic_store_explicit(&heap->compacting, false, memory_order_release);
}

// MARK: Compaction without a policy

// What the living of a slab take up at most, small ones with their headers and padding: by payload alone a slab full of elements
// of a few bytes would pass for an empty one, and be copied for ever.
static uint64_t living_room(purgeable__slab_t *slab) {
  uint64_t count = atomic_load_explicit(&slab->living_count, memory_order_relaxed);
  uint64_t bytes = atomic_load_explicit(&slab->living_bytes, memory_order_relaxed);
  return bytes + count * (PURGEABLE_HEADER_BYTES + PURGEABLE_GRANULE_BYTES);
}

// The sealed slab of stream 0 that is least alive, if it is less than half alive.
static bool find_emptiest(purgeable_heap_t *heap, purgeable_slab_t *emptiest) {
  uint64_t best_share = 128;  // of 256
  bool found = false;
  pthread_mutex_lock(&heap->control->mutex);
  for (uint32_t unit = heap->streams[0].oldest; unit != 0;) {
    purgeable__slab_t *slab = purgeable__find_unit(heap, unit - 1).slab;
    uint64_t word = atomic_load_explicit(&slab->word, memory_order_relaxed);
    bool ready = atomic_load(&slab->state) == slab_sealed && (word & (DYING | COUNT_MASK)) == 0;
    uint64_t used = purgeable__used_bytes(slab);
    uint64_t share = used == 0 ? 0 : living_room(slab) * 256 / used;
    uint32_t count = atomic_load_explicit(&slab->living_count, memory_order_relaxed);
    bool stuck = count != 0 && count == atomic_load_explicit(&slab->stuck_count, memory_order_relaxed);
    if (ready && share < best_share && !stuck) {
      best_share = share;
      *emptiest = name_of(heap, unit - 1);
      found = true;
    }
    unit = slab->next;
  }
  pthread_mutex_unlock(&heap->control->mutex);
  return found;
}

static void remember_stuck(purgeable_heap_t *heap, purgeable_slab_t slab) {
  purgeable__spot_t spot = find_slab(heap, slab);
  if (spot.slab == NULL) return;
  uint32_t count = atomic_load_explicit(&spot.slab->living_count, memory_order_relaxed);
  atomic_store_explicit(&spot.slab->stuck_count, count, memory_order_relaxed);
}

bool purgeable__compact_step(purgeable_heap_t *heap) {
  if (heap->moved == NULL) return false;
  uint64_t held = atomic_load_explicit(&heap->held_bytes, memory_order_relaxed);
  uint64_t payload = atomic_load_explicit(&heap->payload_bytes, memory_order_relaxed);
  // While most of what is held lives, copying would cost more than it wins.
  if (payload > held / 4 * 3) return false;
  // One at a time: the copies allocate too, and must not begin a compaction of their own.
  if (atomic_exchange_explicit(&heap->compacting, true, memory_order_acquire)) return false;
  purgeable_slab_t slab;
  bool more = false;
  if (find_emptiest(heap, &slab)) {
    int error = purgeable_slab_evacuate(heap, slab, 0, heap->moved, heap->context, NULL);
    // What an owner refuses, or has lost, stays; the next step takes another slab.
    if (error == EBUSY) remember_stuck(heap, slab);
    more = error == 0 || error == EBUSY;
  }
  atomic_store_explicit(&heap->compacting, false, memory_order_release);
  return more;
}
