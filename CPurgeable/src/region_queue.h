// SPDX-License-Identifier: MIT
// The rings of regions that wait to be offered, or to be offered again.
#ifndef PURGEABLE_REGION_QUEUE_H
#define PURGEABLE_REGION_QUEUE_H

#include "region_structure.h"

#pragma GCC visibility push(hidden)

// For the last unlock that set QUEUED. Beyond the bound on what may wait it offers all that does.
void purgeable__queue_push(purgeable_region_t *region);
// Has the region offered again by later upkeeps, unless it is in a ring already.
void purgeable__again_push(purgeable_region_t *region);
// Takes the region out of its ring, whichever; for destroy. False: another thread is sorting the link, so the structure has to be
// left to `purgeable__queue_part` at the end of the destroy.
bool purgeable__queue_remove(purgeable_region_t *region);
// Frees the structure, or leaves that to who meets the link.
void purgeable__queue_part(purgeable_region_t *region);

#pragma GCC visibility pop

#endif
