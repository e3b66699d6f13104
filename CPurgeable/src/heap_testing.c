// SPDX-License-Identifier: MIT
// A heap's seams for tests.

#include "heap_chunks.h"

#if defined(PURGEABLE_TEST_HOOKS)
bool purgeable_testing_begin_last_life(purgeable_heap_t *heap, uint64_t place) {
  purgeable__spot_t spot = purgeable__find(heap, place);
  if (spot.slab == NULL) return false;
  pthread_mutex_lock(&heap->control->mutex);
  spot.slab->first_generation = purgeable__next_generation(purgeable__slab_generation(spot.slab));
  pthread_mutex_unlock(&heap->control->mutex);
  return true;
}
#else
bool purgeable_testing_begin_last_life(purgeable_heap_t *heap, uint64_t place) { return heap == NULL && place != 0; }
#endif
