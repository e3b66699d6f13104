// SPDX-License-Identifier: MIT
// Counting, and the limit on what is locked.
#ifndef PURGEABLE_REGION_COUNTERS_H
#define PURGEABLE_REGION_COUNTERS_H

#include "region_structure.h"

#pragma GCC visibility push(hidden)

// Whether `bytes` more may be locked (`purgeable_region_set_locked_byte_limit`).
bool purgeable__may_lock(purgeable_region_t *region, size_t bytes);

#pragma GCC visibility pop

#endif
