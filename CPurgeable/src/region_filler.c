// SPDX-License-Identifier: MIT
// Who fills a region. The proof is in region.c: J.

#include "region_filler.h"

uint64_t purgeable__this_thread(void) {
  // Numbers, not addresses of something the thread has: those go to the next thread when this one ends. A forked child goes on
  // with the parent's numbers, where they name nobody: there every region is discarded and none is being filled.
  static _Atomic uint64_t last;
  static _Thread_local uint64_t own;
  // Relaxed: only being different matters.
  if (own == 0) own = add_relaxed(&last, 1) + 1;
  return own;
}

bool purgeable__fills_here(const purgeable_region_t *region, uint64_t word) {
  assert((word & WORD_FILLING) != 0);
  if ((word & WORD_OFFERING) != 0) return false;
  return load_relaxed(&region->filler) == purgeable__this_thread();
}
