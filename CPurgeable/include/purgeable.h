// SPDX-License-Identifier: MIT
/// Purgeable memory for Linux, the C core: one header to include.
///
///   purgeable_base.h     outcomes, offering modes, what this machine can do
///   purgeable_region.h   whole pages behind one lock count
///   purgeable_heap.h     small elements that share purgeable pages
///   purgeable_slabs.h    slabs, streams and places of a heap, for owners that decide which elements stay
///   purgeable_upkeep.h   all upkeep in one call, or by a thread
///   purgeable_group.h    the memory group of the process: its limits, and what it uses
///
/// The core has no thread unless one is asked for, never aborts the program on bad input, and answers 0 or a positive errno, or
/// an outcome.
#ifndef PURGEABLE_H
#define PURGEABLE_H

#include "purgeable_base.h"
#include "purgeable_group.h"
#include "purgeable_heap.h"
#include "purgeable_region.h"
#include "purgeable_slabs.h"
#include "purgeable_upkeep.h"

#endif
