// SPDX-License-Identifier: MIT
// The witnesses of a region's pages: taken, compared, rescued.
#ifndef PURGEABLE_REGION_WITNESS_H
#define PURGEABLE_REGION_WITNESS_H

#include "region_structure.h"

#pragma GCC visibility push(hidden)

// Takes the witness of every page afresh. The caller holds the last lock.
void purgeable__witnesses_take(purgeable_region_t *region);
// Whether every page of [first, end) still has its witness. Any thread, no lock, no system call.
bool purgeable__witnesses_stand(const purgeable_region_t *region, size_t first, size_t end);
// Rescues every page. False as soon as one is gone.
bool purgeable__witnesses_rescue(purgeable_region_t *region);

#pragma GCC visibility pop

#endif
