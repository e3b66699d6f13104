// SPDX-License-Identifier: MIT
// How far searches look, counted for cases: what is bounded can be shown by count, without a clock.

#include "internal.h"

#if defined(PURGEABLE_TEST_HOOKS)
static struct {
  _Atomic uint64_t sum, most;
} looks[PURGEABLE_TESTING_LOOK_KINDS];

void purgeable__count_looks(purgeable_testing_looks_t kind, uint64_t count) {
  assert(kind < PURGEABLE_TESTING_LOOK_KINDS);
  add_relaxed(&looks[kind].sum, count);
  uint64_t most = load_relaxed(&looks[kind].most);
  while (count > most && !atomic_compare_exchange_weak_explicit(&looks[kind].most, &most, count, memory_order_relaxed,
                                                                memory_order_relaxed)) {
    continue;
  }
}

uint64_t purgeable_testing_look_count(purgeable_testing_looks_t kind) {
  return kind < PURGEABLE_TESTING_LOOK_KINDS ? load_relaxed(&looks[kind].sum) : 0;
}

uint64_t purgeable_testing_take_most_looks(purgeable_testing_looks_t kind) {
  return kind < PURGEABLE_TESTING_LOOK_KINDS ? atomic_exchange_explicit(&looks[kind].most, 0, memory_order_relaxed) : 0;
}
#else
uint64_t purgeable_testing_look_count(purgeable_testing_looks_t kind) { return kind < 0; }
uint64_t purgeable_testing_take_most_looks(purgeable_testing_looks_t kind) { return kind < 0; }
#endif
