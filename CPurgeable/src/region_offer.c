// SPDX-License-Identifier: MIT
// Offering one region: by its owner, or by the unlock that left it idle. (Many: region_queue.c.)

#include "region_offer.h"

#include "region_batch.h"
#include "region_queue.h"
#include "region_word.h"

int purgeable__region_offer(purgeable_region_t *region) {
  uint64_t word = purgeable__word_load(region);
  // Linked before the offer, because the region may be destroyed after it. A link to a region that is not on offer is harmless.
  // One that was used since it was linked begins anew.
  bool is_linked = (word & WORD_QUEUED) != 0 || (word & (WORD_AGAIN | WORD_ON_OFFER)) == (WORD_AGAIN | WORD_ON_OFFER);
  if (!is_linked && (word & WORD_DISCARDED) == 0 && purgeable__word_count(word) == 0) purgeable__again_push(region);
  bool again = PURGEABLE_RULE(offer_again);
  for (;;) {
    if ((word & WORD_DISCARDED) != 0) return 0;
    if ((word & WORD_OFFERING) != 0) {
      word = purgeable__word_wait(region, word);
      continue;
    }
    if (purgeable__word_count(word) != 0) return EBUSY;
    if (!purgeable__can_offer(word, again)) return 0;
    if (purgeable__word_change(region, &word, purgeable__word_claimed(word))) break;
  }
  size_t bytes = 0;
  purgeable__batch_t batch;
  batch.count = 1;
  batch.regions[0] = region;
  batch.is_again[0] = (word & (WORD_ON_OFFER | WORD_REFUSED)) == WORD_ON_OFFER;
  return purgeable__batch_offer(&batch, &bytes);
}

int purgeable_region_offer(purgeable_region_t *region) {
  if (region == NULL) return EINVAL;
  if (region->offering == purgeable_offering_never) {
    // With DISCARDED the count is that of lockers on their way back. A word of 0 (forked child) has no count.
    uint64_t word = load_acquire(region->word);
    return (word & WORD_DISCARDED) == 0 && purgeable__word_count(word) != 0 ? EBUSY : 0;
  }
  return purgeable__region_offer(region);
}
