// SPDX-License-Identifier: MIT
// Moving what lives so that a slab can be given back, and whole slabs: giving back, emptying, putting into another stream.
//
// Moving an element: it is read without a lock straight into its new place, committed there, and its owner exchanges the old
// reference for the new one by compare-exchange. Only then is the old one freed; until then it stays valid. If the owner says no
// (the element was removed or replaced meanwhile), the copy is freed. So at every moment the owner's reference names an element
// that holds the right bytes, and nobody has to be stopped.

#include "heap_move.h"

#include "heap_allocate.h"
#include "heap_element.h"
#include "heap_fork.h"
#include "heap_give_back.h"
#include "heap_list.h"
#include "heap_offer.h"
#include "heap_overdue.h"
#include "heap_release.h"
#include "heap_stream.h"

// MARK: Elements

int purgeable__move(purgeable_heap_t *heap, purgeable_reference_t reference, purgeable__move_t *move,
                    purgeable_reference_t *to) {
  assert(move->moved != NULL && purgeable__is_stream(heap, move->stream));
  size_t length;
  purgeable_outcome_t outcome = purgeable_heap_length_bytes(heap, reference, &length);
  if (outcome != purgeable_outcome_intact) return outcome == purgeable_outcome_discarded ? ENODATA : ESTALE;
  uint64_t tag = 0;
  if (heap->keeps_tags && purgeable_heap_tag(heap, reference, &tag) != 0) return ESTALE;
  purgeable_reference_t copy;
  void *bytes;
  bool is_fresh;
  uint64_t limit = move->byte_limit;
  if (limit == 0) limit = purgeable__limit_of_allocations(heap, load_relaxed(&heap->byte_limit));
  int error = purgeable__allocate_element(heap, move->stream, length, tag, limit, &copy, &bytes, &is_fresh);
  if (error != 0) return error;
  move->is_fresh |= is_fresh;
  purgeable__offer_if_overdue(heap);
  outcome = purgeable_heap_read(heap, reference, bytes, length, &length);
  if (outcome != purgeable_outcome_intact) {
    (void)purgeable_heap_free(heap, copy);
    return outcome == purgeable_outcome_discarded ? ENODATA : ESTALE;
  }
  // Held over the call, so that `bytes` can be looked at: the writer's count ends with the commit.
  purgeable__spot_t spot = purgeable__find(heap, copy.place);
  bool pinned = purgeable__pin(spot.slab, (uint32_t)copy.generation) == 0;
  error = purgeable_heap_commit(heap, copy);
  assert(error == 0);
  // A thread that is cancelled inside the callback would leave the copy pinned.
  int cancel_state;
  (void)pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state);
  bool taken = pinned && move->moved(move->context, reference, copy, tag, bytes, length);
  (void)pthread_setcancelstate(cancel_state, NULL);
  (void)purgeable_heap_free(heap, taken ? reference : copy);
  // The pin keeps the life going, unless the callback has forked: in the child all elements are gone, and a count that is found
  // there is somebody else's.
  if (pinned) spot = purgeable__resolve(heap, copy);
  if (spot.slab == NULL) return ESTALE;
  if (pinned) purgeable__release(heap, spot);
  if (!taken) return EBUSY;
  add_relaxed(&heap->moved_element_count, 1);
  if (to != NULL) *to = copy;
  return 0;
}

int purgeable__evacuate(purgeable_heap_t *heap, purgeable_slab_t slab, purgeable__move_t *move, uint32_t *staying) {
  assert(move->moved != NULL && purgeable__is_stream(heap, move->stream));
  purgeable__spot_t spot = purgeable__find_slab(heap, slab);
  if (spot.slab == NULL) return ESTALE;
  purgeable__seal_if_open(heap, slab, spot);
  uint32_t cursor = 0, stay = 0;
  purgeable_reference_t reference;
  int error;
  while ((error = purgeable_slab_next_element(heap, slab, &cursor, &reference)) == 0) {
    int moving = purgeable__move(heap, reference, move, NULL);
    if (moving == ENOMEM || moving == EAGAIN) return moving;
    if (moving == EBUSY || moving == ENODATA) stay++;
  }
  if (staying != NULL) *staying = stay;
  // The last free may have given the slab back already.
  if (error == ESTALE) return 0;
  return purgeable_slab_give_back(heap, slab) == EBUSY ? EBUSY : 0;
}

// MARK: Slabs

int purgeable_slab_give_back(purgeable_heap_t *heap, purgeable_slab_t slab) {
  if (heap == NULL) return EINVAL;
  purgeable__enter(heap);
  purgeable__spot_t spot = purgeable__find_slab(heap, slab);
  if (spot.slab == NULL) return ESTALE;
  purgeable__seal_if_open(heap, slab, spot);
  if (atomic_load(&spot.slab->element_count) != 0) {
    return purgeable__generation(purgeable__slab_word_ordered(spot.slab)) == slab.generation ? EBUSY : 0;
  }
  // A caller that evicts needs the memory now; a running offer would give the slab back only at its end.
  purgeable__wait_for_offer(heap, spot.slab);
  purgeable__give_back_if_empty(heap, spot, slab.generation);
  return 0;
}

int purgeable_slab_free_elements(purgeable_heap_t *heap, purgeable_slab_t slab, uint32_t *freed) {
  if (heap == NULL) return EINVAL;
  purgeable__enter(heap);
  purgeable__spot_t spot = purgeable__find_slab(heap, slab);
  if (spot.slab == NULL) return ESTALE;
  // If the lock count is saturated (EOVERFLOW), those locks already keep the life going: no pin is needed.
  int error = purgeable__pin(spot.slab, slab.generation);
  if (error != 0 && error != EOVERFLOW) return ESTALE;
  // Pinned before the seal: an open slab without living elements is given back as soon as it is sealed.
  purgeable__seal_if_open(heap, slab, spot);
  uint32_t count = purgeable__free_living(heap, spot, slab);
  if (freed != NULL) *freed = count;
  if (error == 0) purgeable__release(heap, spot);
  return 0;
}

static int restream(purgeable_heap_t *heap, purgeable_slab_t slab, purgeable_stream_t stream, bool is_oldest) {
  if (heap == NULL) return EINVAL;
  purgeable__enter(heap);
  if (!purgeable__is_stream(heap, stream)) return EINVAL;
  pthread_mutex_lock(&heap->control->mutex);
  purgeable__spot_t spot = purgeable__find_slab(heap, slab);
  int error = spot.slab == NULL ? ESTALE : 0;
  if (error == 0 && atomic_load(&spot.slab->state) == slab_open) error = EBUSY;
  if (error == 0) {
    purgeable__list_remove(heap, spot);
    purgeable__list_insert(heap, spot, stream, is_oldest);
    // An offer that walks the lists right now may miss the slab.
    store_relaxed(&heap->pending, true);
  }
  pthread_mutex_unlock(&heap->control->mutex);
  return error;
}

int purgeable_slab_restream(purgeable_heap_t *heap, purgeable_slab_t slab, purgeable_stream_t stream) {
  return restream(heap, slab, stream, false);
}

int purgeable_slab_restream_oldest(purgeable_heap_t *heap, purgeable_slab_t slab, purgeable_stream_t stream) {
  return restream(heap, slab, stream, true);
}
