// SPDX-License-Identifier: MIT
// Reading, changing and waiting for the state word.
#ifndef PURGEABLE_REGION_WORD_H
#define PURGEABLE_REGION_WORD_H

#include "region_structure.h"

#pragma GCC visibility push(hidden)

// Reads the word (acquire; partner: every `purgeable__word_change`), healed in a forked child.
uint64_t purgeable__word_load(purgeable_region_t *region);
// The one way a word changes: from exactly `*seen` to `wanted`, counters with it. On failure `*seen` is what stands there now.
// After a success that cleared OFFERING the region may be destroyed by another thread at any moment.
bool purgeable__word_change(purgeable_region_t *region, uint64_t *seen, uint64_t wanted);
// Sleeps while the word is `word`, which is unsettled or says FILLING (or answers at once); answers the word that stands then.
// Keeps errno.
uint64_t purgeable__word_wait(purgeable_region_t *region, uint64_t word);
// Ends OFFERING: clears and sets what else is asked for, and wakes who sleeps. Keeps errno.
void purgeable__word_finish(purgeable_region_t *region, uint64_t clear, uint64_t set);
// Adds what changed from one word to the other to the region's shard.
void purgeable__word_account(const purgeable_region_t *region, uint64_t before, uint64_t after);

#pragma GCC visibility pop

#endif
