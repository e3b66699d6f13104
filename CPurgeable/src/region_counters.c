// SPDX-License-Identifier: MIT
// What all regions add up to: the statistics, and the limit on what is locked.

#include "region_counters.h"

#include "region_pool.h"

// Shards are read one after the other. A sum of them can be off by what changed in between, and can fall below 0.
static uint64_t at_least_zero(uint64_t sum) { return sum > INT64_MAX ? 0 : sum; }

static uint64_t read_counter(const _Atomic uint64_t *counter) { return load_relaxed(counter); }

// A setting of the program, so a forked child has it too. Relaxed: it guards no memory.
static _Atomic uint64_t locked_byte_limit;

void purgeable_region_set_locked_byte_limit(uint64_t byte_limit) {
  store_relaxed(&locked_byte_limit, byte_limit);
}

bool purgeable__may_lock(purgeable_region_t *region, size_t bytes) {
  uint64_t limit = load_relaxed(&locked_byte_limit);
  if (limit == 0) return true;
  const purgeable__shared_t *shared = purgeable__shared();
  uint64_t sum = 0;
  for (size_t i = 0; shared != NULL && i < PURGEABLE__SHARD_COUNT; i++) sum += read_counter(&shared->shards[i].locked_bytes);
  sum = at_least_zero(sum);
  if (bytes <= limit && sum <= limit - bytes) return true;
  add_relaxed(&region->counters->refused_locks, 1);
  return false;
}

int purgeable_region_statistics(purgeable_region_statistics_t *statistics) {
  if (statistics == NULL) return EINVAL;
  purgeable_region_statistics_t sum = {0};
  purgeable__shared_t *shared = purgeable__shared();
  if (shared != NULL) {
    for (size_t i = 0; i < PURGEABLE__SHARD_COUNT; i++) {
      const purgeable__counters_t *shard = &shared->shards[i];
      sum.memory.locked_bytes += read_counter(&shard->locked_bytes);
      sum.memory.offered_bytes += read_counter(&shard->offered_bytes);
      sum.memory.discarded_bytes += read_counter(&shard->discarded_bytes);
      sum.memory.discarded_by_kernel_bytes += read_counter(&shard->discarded_by_kernel_bytes);
      sum.memory.given_back_bytes += read_counter(&shard->given_back_bytes);
      sum.memory.refused_lock_count += read_counter(&shard->refused_locks);
      sum.kernel_discard_count += read_counter(&shard->kernel_discards);
      sum.own_discard_count += read_counter(&shard->own_discards);
      sum.unbalanced_unlock_count += read_counter(&shard->unbalanced_unlocks);
      sum.refused_offer_count += read_counter(&shard->refused_offers);
      sum.abandoned_fill_count += read_counter(&shard->abandoned_fills);
      sum.memory.pending_bytes += read_counter(&shard->refused_bytes);
      sum.pending_count += read_counter(&shard->refused_regions);
    }
    sum.pending_count = at_least_zero(sum.pending_count) + read_counter(&shared->pending_count);
    sum.memory.pending_bytes = at_least_zero(sum.memory.pending_bytes) + read_counter(&shared->pending_bytes);
  }
  sum.memory.locked_bytes = at_least_zero(sum.memory.locked_bytes);
  sum.memory.offered_bytes = at_least_zero(sum.memory.offered_bytes);
  sum.memory.discarded_bytes = at_least_zero(sum.memory.discarded_bytes);
  sum.memory.held_bytes = purgeable__region_total(&sum.region_count);
  // Both were read one after the other, so what is known to be gone may exceed what is held.
  bool is_less = sum.memory.discarded_bytes < sum.memory.held_bytes;
  sum.memory.payload_bytes = is_less ? sum.memory.held_bytes - sum.memory.discarded_bytes : 0;
  *statistics = sum;
  return 0;
}
