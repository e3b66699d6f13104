// SPDX-License-Identifier: MIT
// A shared library with a copy of the core of its own. See host.c.

#include <purgeable.h>
#include <string.h>

int plugin_fill(size_t count, uint64_t *region_count, uint64_t *pending_limit);

// Makes `count` regions and one element, and says what its copy of the core knows of.
int plugin_fill(size_t count, uint64_t *region_count, uint64_t *pending_limit) {
  for (size_t i = 0; i < count; i++) {
    purgeable_region_t *region;
    if (purgeable_region_create(100, NULL, &region) != 0) return 1;
    memset(purgeable_region_bytes(region), 7, 100);
    if (purgeable_region_unlock(region) != 0) return 2;
  }
  purgeable_heap_t *heap;
  purgeable_reference_t reference;
  void *bytes;
  if (purgeable_heap_create(NULL, &heap) != 0 || purgeable_heap_allocate(heap, 10, &reference, &bytes) != 0) return 3;
  if (purgeable_offer_pending(NULL) != 0 || purgeable_heap_destroy(heap) != 0) return 4;
  purgeable_set_pending_byte_limit(4711);
  purgeable_region_statistics_t statistics;
  if (purgeable_region_statistics(&statistics) != 0) return 5;
  *region_count = statistics.region_count;
  *pending_limit = purgeable_pending_byte_limit();
  return 0;
}
