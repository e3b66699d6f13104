// SPDX-License-Identifier: MIT
// Offering one region.
#ifndef PURGEABLE_REGION_OFFER_H
#define PURGEABLE_REGION_OFFER_H

#include "region_structure.h"

#pragma GCC visibility push(hidden)

// Offers one region if it is idle, again if it is on offer; 0, EBUSY or the errno of madvise.
int purgeable__region_offer(purgeable_region_t *region);

#pragma GCC visibility pop

#endif
