// SPDX-License-Identifier: MIT
// How a region begins and ends, and what can be asked about it: size, residence, statistics.
//
//   create --> [structure, ordinary memory] --> word, bytes [pages of the pool]
//   destroy: out of the queue --> wait out the last madvise --> counters --> wipe the pages --> bits --> free

#include "region_internal.h"

// Outlive a fork, unlike the counters in the shared page: the child has the regions too. Relaxed: statistics.
static _Atomic uint64_t region_count;
static _Atomic uint64_t region_bytes;

uint64_t purgeable__region_total(uint64_t *count) {
  if (count != NULL) *count = atomic_load_explicit(&region_count, memory_order_relaxed);
  return atomic_load_explicit(&region_bytes, memory_order_relaxed);
}

static purgeable__counters_t *shard_of(purgeable__shared_t *shared, const purgeable_region_t *region) {
  uint64_t mixed = (uint64_t)(uintptr_t)region * UINT64_C(0x9E3779B97F4A7C15);
  return &shared->shards[(mixed >> 32) % PURGEABLE__SHARD_COUNT];
}

int purgeable_region_create(size_t length_bytes, const purgeable_region_options_t *options, purgeable_region_t **region) {
  purgeable_offering_t offering = options == NULL ? purgeable_offering_deferred : options->offering;
  if (region == NULL || length_bytes == 0) return EINVAL;
  if (offering != purgeable_offering_deferred && offering != purgeable_offering_immediate &&
      offering != purgeable_offering_never) {
    return EINVAL;
  }
  size_t page = purgeable_page_size_bytes();
  // PTRDIFF_MAX: nothing larger can be mapped, and nothing below it overflows further on.
  if (length_bytes > PTRDIFF_MAX - 2 * page) return ENOMEM;
  size_t page_count = purgeable__round_up(length_bytes, page) / page;
  purgeable__shared_t *shared = purgeable__shared_make();
  if (shared == NULL) return ENOMEM;
  // Pages first: what the system has no address space for must not make us ask for a table of its pages.
  purgeable_region_t draft = {.length_bytes = length_bytes, .page_size_bytes = page, .page_count = page_count};
  if (purgeable__pages_take(&draft) != 0) return ENOMEM;
  purgeable_region_t *made = purgeable__allocate(1, sizeof *made + page_count * sizeof made->witnesses[0]);
  if (made == NULL) {
    purgeable__pages_give(&draft);
    return ENOMEM;
  }
  memcpy(made, &draft, offsetof(purgeable_region_t, witnesses));
  made->counters = shard_of(shared, made);
  made->offering = offering;
  assert(((uintptr_t)made->bytes & (page - 1)) == 0 && ((uintptr_t)made->word & 7) == 0);
  size_t bytes = purgeable__region_bytes(made);
  // The word belongs to these pages and goes on counting versions where the region before left off.
  uint64_t old = atomic_load_explicit(made->word, memory_order_relaxed);
  uint64_t word = (uint64_t)(purgeable__word_version(old) + 1) << 32 | WORD_ALIVE | WORD_WRITER | 1;
  assert(purgeable__word_is_valid(word));
  atomic_store_explicit(made->word, word, memory_order_release);
  purgeable__word_account(made->counters, bytes, WORD_ALIVE, word);
  atomic_fetch_add_explicit(&region_bytes, bytes, memory_order_relaxed);
  atomic_fetch_add_explicit(&region_count, 1, memory_order_relaxed);
  *region = made;
  return 0;
}

int purgeable_region_destroy(purgeable_region_t *region) {
  if (region == NULL) return EINVAL;
  purgeable__queue_remove(region);
  // Out of the queue nobody new claims it. Who claimed it before is inside a madvise, bounded by one batch; after the exchange
  // that ends OFFERING that thread touches neither region nor content.
  uint64_t word = purgeable__word_load(region);
  while ((word & WORD_OFFERING) != 0) word = purgeable__word_wait(region, word);
  size_t bytes = purgeable__region_bytes(region);
  purgeable__word_account(region->counters, bytes, word, WORD_ALIVE);
  atomic_fetch_sub_explicit(&region_bytes, bytes, memory_order_relaxed);
  atomic_fetch_sub_explicit(&region_count, 1, memory_order_relaxed);
  uint64_t last = (uint64_t)(purgeable__word_version(word) + 1) << 32 | WORD_ALIVE | WORD_DISCARDED;
  atomic_store_explicit(region->word, last, memory_order_release);
  purgeable__pages_give(region);
  free(region);
  return 0;
}

// MARK: Facts

void *purgeable_region_bytes(purgeable_region_t *region) { return region == NULL ? NULL : region->bytes; }

size_t purgeable_region_length(const purgeable_region_t *region) { return region == NULL ? 0 : region->length_bytes; }

// A word of 0 (forked child, not yet healed) has no count and is not on offer, so these two need not heal it.
uint32_t purgeable_region_lock_count(const purgeable_region_t *region) {
  if (region == NULL) return 0;
  uint64_t word = atomic_load_explicit(region->word, memory_order_acquire);
  // With DISCARDED the count is that of lockers on their way back.
  return (word & WORD_DISCARDED) != 0 ? 0 : (uint32_t)purgeable__word_count(word);
}

size_t purgeable_region_offered_bytes(const purgeable_region_t *region) {
  if (region == NULL) return 0;
  uint64_t word = atomic_load_explicit(region->word, memory_order_acquire);
  return (word & (WORD_ON_OFFER | WORD_REFUSED)) == WORD_ON_OFFER ? purgeable__region_bytes(region) : 0;
}

int purgeable_region_resident(purgeable_region_t *region, size_t *resident_bytes) {
  if (region == NULL || resident_bytes == NULL) return EINVAL;
  unsigned char states[1024];
  size_t resident = 0;
  for (size_t page = 0; page < region->page_count;) {
    size_t count = region->page_count - page < sizeof states ? region->page_count - page : sizeof states;
    char *start = region->bytes + page * region->page_size_bytes;
    int error = purgeable__mincore(start, count * region->page_size_bytes, states);
    if (error != 0) return error;
    for (size_t i = 0; i < count; i++) resident += states[i] & 1u;
    page += count;
  }
  *resident_bytes = resident * region->page_size_bytes;
  return 0;
}

// MARK: Statistics

// A sum of shards that were read one after the other can be off by what moved meanwhile, also below 0.
static uint64_t at_least_zero(uint64_t sum) { return sum > INT64_MAX ? 0 : sum; }

static uint64_t read_counter(const _Atomic uint64_t *counter) { return atomic_load_explicit(counter, memory_order_relaxed); }

// A setting of the program, so a forked child has it too. Relaxed: it guards no memory.
static _Atomic uint64_t locked_limit_bytes;

void purgeable_region_set_locked_limit(uint64_t limit_bytes) {
  atomic_store_explicit(&locked_limit_bytes, limit_bytes, memory_order_relaxed);
}

bool purgeable__may_lock(purgeable_region_t *region, size_t bytes) {
  uint64_t limit = atomic_load_explicit(&locked_limit_bytes, memory_order_relaxed);
  if (limit == 0) return true;
  const purgeable__shared_t *shared = purgeable__shared();
  uint64_t sum = 0;
  for (size_t i = 0; shared != NULL && i < PURGEABLE__SHARD_COUNT; i++) sum += read_counter(&shared->shards[i].locked_bytes);
  sum = at_least_zero(sum);
  if (bytes <= limit && sum <= limit - bytes) return true;
  atomic_fetch_add_explicit(&region->counters->refused_locks, 1, memory_order_relaxed);
  return false;
}

int purgeable_region_statistics(purgeable_region_statistics_t *statistics) {
  if (statistics == NULL) return EINVAL;
  purgeable_region_statistics_t sum = {0};
  purgeable__shared_t *shared = purgeable__shared();
  if (shared != NULL) {
    for (size_t i = 0; i < PURGEABLE__SHARD_COUNT; i++) {
      const purgeable__counters_t *shard = &shared->shards[i];
      sum.locked_bytes += read_counter(&shard->locked_bytes);
      sum.offered_bytes += read_counter(&shard->offered_bytes);
      sum.discarded_bytes += read_counter(&shard->discarded_bytes);
      sum.kernel_discard_bytes += read_counter(&shard->kernel_discard_bytes);
      sum.own_discard_bytes += read_counter(&shard->own_discard_bytes);
      sum.refused_lock_count += read_counter(&shard->refused_locks);
      sum.kernel_discard_count += read_counter(&shard->kernel_discards);
      sum.own_discard_count += read_counter(&shard->own_discards);
      sum.unbalanced_unlock_count += read_counter(&shard->unbalanced_unlocks);
      sum.refused_offer_count += read_counter(&shard->refused_offers);
    }
    sum.pending_count = read_counter(&shared->pending_count);
  }
  sum.locked_bytes = at_least_zero(sum.locked_bytes);
  sum.offered_bytes = at_least_zero(sum.offered_bytes);
  sum.discarded_bytes = at_least_zero(sum.discarded_bytes);
  sum.region_bytes = purgeable__region_total(&sum.region_count);
  *statistics = sum;
  return 0;
}
