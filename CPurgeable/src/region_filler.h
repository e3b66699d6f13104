// SPDX-License-Identifier: MIT
// Which thread fills a region.
#ifndef PURGEABLE_REGION_FILLER_H
#define PURGEABLE_REGION_FILLER_H

#include "region_structure.h"

#pragma GCC visibility push(hidden)

// A number that names the calling thread for good: no thread gets that of one that has ended. Not for signal handlers.
uint64_t purgeable__this_thread(void);
// Whether the calling thread is the one that fills. `word`: the region's, with FILLING.
bool purgeable__fills_here(const purgeable_region_t *region, uint64_t word);

#pragma GCC visibility pop

#endif
