// SPDX-License-Identifier: MIT
// Offering regions that are neighbours by one madvise.
#ifndef PURGEABLE_REGION_BATCH_H
#define PURGEABLE_REGION_BATCH_H

#include "region_structure.h"

#pragma GCC visibility push(hidden)

enum {
  PURGEABLE__BATCH_BYTES = 2 << 20,
  PURGEABLE__BATCH_COUNT = PURGEABLE__BATCH_BYTES / 4096,
};

// Regions side by side that were claimed for one madvise.
typedef struct purgeable__batch {
  size_t count;
  size_t bytes;
  purgeable_region_t *regions[PURGEABLE__BATCH_COUNT];
  int errors[PURGEABLE__BATCH_COUNT];
  // Was on offer before: its pages of zeros are gone, and it does not count as newly offered.
  bool is_again[PURGEABLE__BATCH_COUNT];
} purgeable__batch_t;

// Whether an idle region with this word can go on offer, or (again) on offer once more.
bool purgeable__can_offer(uint64_t word, bool again);
// The word while it is offered.
uint64_t purgeable__word_claimed(uint64_t word);
// Offers a batch that was claimed, and ends its OFFERING. Answers the first errno; adds what is new on offer to `*offered_bytes`.
// One region alone is left in the middle where a locker waits for it.
int purgeable__batch_offer(purgeable__batch_t *batch, size_t *offered_bytes);

#pragma GCC visibility pop

#endif
