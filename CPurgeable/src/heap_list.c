// SPDX-License-Identifier: MIT
// The lists of slabs that streams are: oldest <-> ... <-> youngest, by unit number + 1, 0 for none. Heap's mutex held.

#include "heap_list.h"

#include "heap_slab.h"

void purgeable__list_insert(purgeable_heap_t *heap, purgeable__spot_t spot, purgeable_stream_t stream, bool is_oldest) {
  assert(purgeable__is_held(&heap->control->mutex));
  purgeable__slab_t *slab = spot.slab;
  assert(slab->next == 0 && slab->previous == 0);
  purgeable__stream_t *list = purgeable__stream(heap, stream);
  uint32_t self = purgeable__unit_number(heap, spot) + 1;
  assert(list->oldest != self && list->youngest != self && (list->oldest == 0) == (list->youngest == 0));
  // Release: whoever takes this stream's mutex to look at the tags sees those that were kept under the last one's.
  store_release(&slab->stream, (uint16_t)stream);
  uint32_t neighbour = is_oldest ? list->oldest : list->youngest;
  *(is_oldest ? &slab->next : &slab->previous) = neighbour;
  if (neighbour != 0) {
    purgeable__slab_t *its = purgeable__find_unit(heap, neighbour - 1).slab;
    *(is_oldest ? &its->previous : &its->next) = self;
  }
  if (neighbour == 0 || is_oldest) list->oldest = self;
  if (neighbour == 0 || !is_oldest) list->youngest = self;
}

void purgeable__list_remove(purgeable_heap_t *heap, purgeable__spot_t spot) {
  assert(purgeable__is_held(&heap->control->mutex));
  purgeable__slab_t *slab = spot.slab;
  purgeable__stream_t *list = purgeable__stream(heap, load_relaxed(&slab->stream));
  assert(list->oldest != 0 && list->youngest != 0);
  // Compaction's hand goes on behind the slab, so that the hand never points out of its list.
  if (heap->compact_hand == purgeable__unit_number(heap, spot) + 1) heap->compact_hand = slab->next;
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

// Whether the place in the list that `unit` names is still one of this stream. Heap's mutex held.
bool purgeable__is_in_stream(purgeable_heap_t *heap, uint32_t unit, purgeable_stream_t stream) {
  assert(unit != 0);
  assert(purgeable__is_held(&heap->control->mutex));
  purgeable__slab_t *slab = purgeable__find_unit(heap, unit - 1).slab;
  uint8_t state = load_relaxed(&slab->state);
  return purgeable__state_is_in_use(state) && load_relaxed(&slab->stream) == stream;
}
