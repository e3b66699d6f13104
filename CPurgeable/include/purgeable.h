// SPDX-License-Identifier: MIT
/// Purgeable memory for Linux, the C core: one header to include.
///
///   purgeable_base.h     outcomes, what this machine can do, the core's own version
///   purgeable_region.h   whole pages behind one lock count
///   purgeable_heap.h     small elements that share purgeable pages
///
/// The core has no thread of its own, never aborts the program on bad input, and answers 0 or a positive errno, or an outcome.
#ifndef PURGEABLE_H
#define PURGEABLE_H

#include "purgeable_base.h"
#include "purgeable_heap.h"
#include "purgeable_region.h"

#endif
