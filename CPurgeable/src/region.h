// SPDX-License-Identifier: MIT
// Locking, and claiming for a madvise.
#ifndef PURGEABLE_REGION_LOCK_H
#define PURGEABLE_REGION_LOCK_H

#include "region_structure.h"

#pragma GCC visibility push(hidden)

// What a lock does where it would have to wait.
typedef enum purgeable__patience {
  // Neither for a madvise nor for a fill.
  purgeable__patience_none,
  // For a madvise; a fill makes it busy.
  purgeable__patience_madvise,
  // For both.
  purgeable__patience_fill,
} purgeable__patience_t;

// Locks. `*given_up` (may be NULL) says whether "discarded" is because a fill that was waited for was given up.
purgeable_outcome_t purgeable__region_lock(purgeable_region_t *region, bool for_writing, purgeable__patience_t patience,
                                           bool *given_up);

// How a region that nobody holds is claimed for a madvise.
typedef enum purgeable__claim {
  purgeable__claim_discard,
  // Takes the filler's lock with it, whatever the content.
  purgeable__claim_fill,
  // The same, only if the content is gone.
  purgeable__claim_fill_discarded,
} purgeable__claim_t;

// Waits until the region is settled, then goes from count 0 to OFFERING; `*before` gets the word before. EBUSY: it is held, being
// filled or being locked. EALREADY: it is discarded (for a discard), or is not (for a fill of what is discarded).
int purgeable__region_claim(purgeable_region_t *region, purgeable__claim_t kind, uint64_t *before);

// G. What has to be put back after a madvise that failed on a region whose word was `before`.
static inline uint64_t purgeable__word_doubt(uint64_t before) {
  return (before & (WORD_DISCARDED | WORD_ON_OFFER)) != 0 ? 0 : WORD_ON_OFFER | WORD_REFUSED;
}

#pragma GCC visibility pop

#endif
