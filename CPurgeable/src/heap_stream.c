// SPDX-License-Identifier: MIT
// Streams: slabs in order of birth, and the elements of a slab.

#include "heap_stream.h"

#include "heap_books.h"
#include "heap_fork.h"
#include "heap_kept.h"
#include "heap_overdue.h"
#include "heap_release.h"
#include "heap_slab.h"

int purgeable_stream_create(purgeable_heap_t *heap, purgeable_stream_t *stream) {
  if (heap == NULL || stream == NULL) return EINVAL;
  purgeable__enter(heap);
  pthread_mutex_lock(&heap->control->mutex);
  uint32_t count = load_relaxed(&heap->stream_count);
  int error = count == PURGEABLE_STREAM_COUNT_MAX ? ENOMEM : 0;
  if (error == 0 && count >= STREAM_FIRST && heap->stream_blocks[count / STREAM_BLOCK] == NULL) {
    purgeable__stream_t *block = purgeable__allocate(STREAM_BLOCK, sizeof *block);
    if (block == NULL) error = ENOMEM;
    if (block != NULL) add_relaxed(&heap->ordinary_bytes, STREAM_BLOCK * sizeof *block);
    heap->stream_blocks[count / STREAM_BLOCK] = block;
  }
  if (error == 0) {
    *stream = count;
    // Release: pairs with the acquire in every check of a stream's number.
    store_release(&heap->stream_count, count + 1);
  }
  pthread_mutex_unlock(&heap->control->mutex);
  return error;
}

int purgeable_stream_seal(purgeable_heap_t *heap, purgeable_stream_t stream) {
  if (heap == NULL) return EINVAL;
  purgeable__enter(heap);
  if (!purgeable__is_stream(heap, stream)) return EINVAL;
  pthread_mutex_lock(purgeable__stream_mutex(heap, stream));
  uint32_t open = purgeable__stream(heap, stream)->open;
  if (open != 0) {
    purgeable__stream(heap, stream)->open = 0;
    purgeable__seal(heap, purgeable__find_unit(heap, open - 1));
  }
  pthread_mutex_unlock(purgeable__stream_mutex(heap, stream));
  purgeable__offer_if_overdue(heap);
  return 0;
}

int purgeable_stream_withhold(purgeable_heap_t *heap, purgeable_stream_t stream, bool withholds) {
  if (heap == NULL) return EINVAL;
  purgeable__enter(heap);
  if (!purgeable__is_stream(heap, stream)) return EINVAL;
  store_relaxed(&purgeable__stream(heap, stream)->is_withheld, withholds);
  // There is something to offer; or what waited waits no more.
  purgeable__note_pending(heap);
  return 0;
}

// MARK: Walking the slabs

static bool is_dying(const purgeable_heap_t *heap, uint32_t unit) {
  return purgeable__is_dying(purgeable__slab_word_acquire(purgeable__find_unit(heap, unit).slab));
}

int purgeable_stream_slabs(purgeable_heap_t *heap, purgeable_stream_t stream, purgeable_slab_t *slabs, size_t capacity,
                           size_t *count) {
  if (heap == NULL || count == NULL || (slabs == NULL && capacity != 0)) return EINVAL;
  purgeable__enter(heap);
  if (!purgeable__is_stream(heap, stream)) return EINVAL;
  size_t found = 0;
  pthread_mutex_lock(&heap->control->mutex);
  uint32_t unit = purgeable__stream(heap, stream)->oldest;
  for (; unit != 0; unit = purgeable__find_unit(heap, unit - 1).slab->next) {
    if (is_dying(heap, unit - 1)) continue;
    if (found < capacity) slabs[found] = purgeable__slab_name(heap, unit - 1);
    found++;
  }
  pthread_mutex_unlock(&heap->control->mutex);
  *count = found;
  return 0;
}

// Heap's mutex held.
static int first_alive(purgeable_heap_t *heap, uint32_t unit, purgeable_slab_t *slab) {
  assert(purgeable__is_held(&heap->control->mutex));
  while (unit != 0 && is_dying(heap, unit - 1)) unit = purgeable__find_unit(heap, unit - 1).slab->next;
  if (unit == 0) return ENOENT;
  *slab = purgeable__slab_name(heap, unit - 1);
  return 0;
}

int purgeable_stream_oldest(purgeable_heap_t *heap, purgeable_stream_t stream, purgeable_slab_t *slab) {
  if (heap == NULL || slab == NULL) return EINVAL;
  purgeable__enter(heap);
  if (!purgeable__is_stream(heap, stream)) return EINVAL;
  pthread_mutex_lock(&heap->control->mutex);
  int error = first_alive(heap, purgeable__stream(heap, stream)->oldest, slab);
  pthread_mutex_unlock(&heap->control->mutex);
  return error;
}

int purgeable_stream_youngest(purgeable_heap_t *heap, purgeable_stream_t stream, purgeable_slab_t *slab) {
  if (heap == NULL || slab == NULL) return EINVAL;
  purgeable__enter(heap);
  if (!purgeable__is_stream(heap, stream)) return EINVAL;
  pthread_mutex_lock(&heap->control->mutex);
  uint32_t unit = purgeable__stream(heap, stream)->youngest;
  while (unit != 0 && is_dying(heap, unit - 1)) unit = purgeable__find_unit(heap, unit - 1).slab->previous;
  if (unit != 0) *slab = purgeable__slab_name(heap, unit - 1);
  pthread_mutex_unlock(&heap->control->mutex);
  return unit == 0 ? ENOENT : 0;
}

int purgeable_slab_next(purgeable_heap_t *heap, purgeable_slab_t slab, purgeable_slab_t *next) {
  if (heap == NULL || next == NULL) return EINVAL;
  purgeable__enter(heap);
  pthread_mutex_lock(&heap->control->mutex);
  // Under the mutex a slab that is found alive stays linked.
  purgeable__spot_t spot = purgeable__find_slab(heap, slab);
  int error = spot.slab == NULL ? ESTALE : first_alive(heap, spot.slab->next, next);
  pthread_mutex_unlock(&heap->control->mutex);
  return error;
}

int purgeable_slab_information(purgeable_heap_t *heap, purgeable_slab_t slab, purgeable_slab_information_t *information) {
  if (heap == NULL || information == NULL) return EINVAL;
  purgeable__enter(heap);
  purgeable__spot_t spot = purgeable__find_slab(heap, slab);
  if (spot.slab == NULL) return ESTALE;
  uint64_t word = purgeable__slab_word_acquire(spot.slab);
  size_t held = purgeable__slab_held_bytes(heap, spot.slab);
  uint64_t lost = load_relaxed(&spot.slab->lost);
  size_t pages = held >> heap->page_shift;
  *information = (purgeable_slab_information_t){
      .stream = load_relaxed(&spot.slab->stream),
      .element_count = load_relaxed(&spot.slab->element_count),
      .payload_bytes = load_relaxed(&spot.slab->payload_bytes),
      .held_bytes = purgeable__slab_standing_bytes(heap, spot.slab),
      .lost_page_count = (uint32_t)(lost == ~(uint64_t)0 ? pages : (size_t)__builtin_popcountll(lost)),
      .lock_count = (uint32_t)purgeable__lock_count(word),
      .busy_round_count = load_relaxed(&spot.slab->busy_round_count),
      .is_open = load_relaxed(&spot.slab->state) == slab_open,
      .is_large = purgeable__is_large_slab(spot.slab),
      .used_granule_count = load_relaxed(&spot.slab->used_granule_count),
  };
  if (heap->keeps_ages) {
    const purgeable__ages_t *ages = purgeable__ages_at(heap, spot);
    information->first_age = load_relaxed(&ages->first);
    information->last_age = load_relaxed(&ages->last);
  }
  return 0;
}

int purgeable_slab_note_age(purgeable_heap_t *heap, purgeable_slab_t slab, uint64_t first, uint64_t last) {
  if (heap == NULL || !heap->keeps_ages) return EINVAL;
  purgeable__enter(heap);
  // Under the mutex its life neither ends nor begins.
  pthread_mutex_lock(&heap->control->mutex);
  purgeable__spot_t spot = purgeable__find_slab(heap, slab);
  if (spot.slab != NULL) {
    purgeable__ages_t *ages = purgeable__ages_at(heap, spot);
    if (first != 0) store_relaxed(&ages->first, first);
    if (last != 0) store_relaxed(&ages->last, last);
  }
  pthread_mutex_unlock(&heap->control->mutex);
  return spot.slab == NULL ? ESTALE : 0;
}

int purgeable_slab_withhold(purgeable_heap_t *heap, purgeable_slab_t slab, bool withholds) {
  if (heap == NULL) return EINVAL;
  purgeable__enter(heap);
  // Under the mutex its life neither ends nor begins.
  pthread_mutex_lock(&heap->control->mutex);
  purgeable__spot_t spot = purgeable__find_slab(heap, slab);
  if (spot.slab != NULL) {
    purgeable__set_trait(spot.slab, trait_withheld, withholds);
    if (withholds) {
      purgeable__stop_waiting(heap, spot.slab);
    } else if (purgeable__is_unheld(purgeable__slab_word_ordered(spot.slab))) {
      purgeable__begin_waiting(heap, spot.slab, true);
    }
  }
  pthread_mutex_unlock(&heap->control->mutex);
  if (spot.slab == NULL) return ESTALE;
  if (!withholds) purgeable__note_pending(heap);
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
  purgeable__spot_t spot = purgeable__find_slab(heap, slab);
  if (spot.slab == NULL) return ESTALE;
  uint32_t end = purgeable__is_run(spot.slab) ? 1 : load_acquire(&spot.slab->used_granule_count);
  for (uint32_t granule = *cursor; granule < end;) {
    spot.granule = granule;
    uint64_t word = load_acquire(purgeable__living_word(heap, spot)) >> (granule % 64);
    if (word == 0) {
      granule += 64 - granule % 64;
      continue;
    }
    granule += (uint32_t)__builtin_ctzll(word);
    if (granule >= end) break;
    *reference = (purgeable_reference_t){(uint64_t)slab.index * heap->granules_per_slab + granule, slab.generation};
    *cursor = granule + 1;
    // A caller that walks the elements looks at each of them next, and they are far apart.
    __builtin_prefetch(spot.unit_base + (size_t)granule * PURGEABLE_GRANULE_BYTES);
    return 0;
  }
  return ENOENT;
}
