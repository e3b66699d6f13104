// SPDX-License-Identifier: MIT
// The state word of a region: how it is read, changed, waited for, and healed after a fork.
//
//   load --> (0: forked child) --heal--> ALIVE | DISCARDED
//     |
//     v
//   change (compare-exchange of all 64 bits) --> counters follow
//     |
//     +-- unsettled, or a fill: set WAITERS, sleep on the low half <---- finish: clear OFFERING and WAITERS, wake

#include "region_word.h"

#include "region_pool.h"

// In a forked child the pool is healed before the first word is, so that "everything there was counts as discarded" happens
// before the first refill takes something off it.
static uint64_t heal_word(purgeable_region_t *region) {
  (void)purgeable__shared();
  uint64_t seen = 0;
  uint64_t healed = WORD_ALIVE | WORD_DISCARDED;
  // Partner: the same exchange in another thread of the child; one of them wins, both go on with a word that is not 0.
  if (atomic_compare_exchange_strong_explicit(region->word, &seen, healed, memory_order_acq_rel, memory_order_acquire)) {
    return healed;
  }
  assert(purgeable__word_is_valid(seen));
  return seen;
}

uint64_t purgeable__word_load(purgeable_region_t *region) {
  uint64_t word = load_acquire(region->word);
  if (__builtin_expect(word == 0, 0)) word = heal_word(region);
  assert(purgeable__word_is_valid(word));
  return word;
}

// MARK: Change

// Adds or takes off an amount, by what the word says before and after.
static void count(_Atomic uint64_t *counter, size_t bytes, bool before, bool after) {
  if (before == after) return;
  add_relaxed(counter, after ? (uint64_t)bytes : -(uint64_t)bytes);
}

static bool is_offered(uint64_t word) { return (word & (WORD_ON_OFFER | WORD_REFUSED)) == WORD_ON_OFFER; }

// Idle, and to be offered again because the kernel refused. What is in the queue is counted there.
static bool is_refused(uint64_t word) {
  return (word & (WORD_REFUSED | WORD_AGAIN | WORD_QUEUED | WORD_COUNT)) == (WORD_REFUSED | WORD_AGAIN);
}

static void count_all(purgeable__counters_t *counters, size_t bytes, size_t offered, uint64_t before, uint64_t after) {
  count(&counters->locked_bytes, bytes, purgeable__word_count(before) != 0, purgeable__word_count(after) != 0);
  count(&counters->offered_bytes, offered, is_offered(before), is_offered(after));
  count(&counters->discarded_bytes, bytes, (before & WORD_DISCARDED) != 0, (after & WORD_DISCARDED) != 0);
  count(&counters->refused_bytes, bytes, is_refused(before), is_refused(after));
  count(&counters->refused_regions, 1, is_refused(before), is_refused(after));
}

void purgeable__word_account(const purgeable_region_t *region, uint64_t before, uint64_t after) {
  size_t offered = purgeable__region_witnessed_bytes(region);
  count_all(region->counters, purgeable__region_bytes(region), offered, before, after);
}

// Partner: the loads and exchanges of this word in all threads. Release publishes content and witnesses; acquire takes them.
static bool exchange(purgeable_region_t *region, uint64_t *seen, uint64_t wanted) {
  return atomic_compare_exchange_strong_explicit(region->word, seen, wanted, memory_order_acq_rel, memory_order_acquire);
}

// What is read of the region is read before the exchange: after one that ends OFFERING, a thread waiting in destroy may free it.
static __attribute__((noinline)) bool change_state(purgeable_region_t *region, uint64_t *seen, uint64_t wanted) {
  purgeable__counters_t *counters = region->counters;
  size_t bytes = purgeable__region_bytes(region);
  size_t offered = purgeable__region_witnessed_bytes(region);
  if (exchange(region, seen, wanted)) {
    count_all(counters, bytes, offered, *seen, wanted);
    return true;
  }
  if (*seen == 0) *seen = heal_word(region);
  return false;
}

bool purgeable__word_change(purgeable_region_t *region, uint64_t *seen, uint64_t wanted) {
  assert(purgeable__word_is_valid(*seen) && purgeable__word_is_valid(wanted));
  assert(purgeable__word_version(wanted) - purgeable__word_version(*seen) <= 1);
  uint64_t changed = (*seen ^ wanted) & (WORD_ON_OFFER | WORD_REFUSED | WORD_DISCARDED);
  if ((changed | (*seen & WORD_REFUSED)) != 0) return change_state(region, seen, wanted);
  purgeable__counters_t *counters = region->counters;
  size_t bytes = purgeable__region_bytes(region);
  if (exchange(region, seen, wanted)) {
    count(&counters->locked_bytes, bytes, purgeable__word_count(*seen) != 0, purgeable__word_count(wanted) != 0);
    return true;
  }
  if (*seen == 0) *seen = heal_word(region);
  return false;
}

// MARK: Waiting

// Sleeps only on the very word that the caller judged. A locker that counts waits for the end of OFFERING and nothing else: were
// it to sleep on a word that has become DISCARDED meanwhile, it would wait for the last locker on its way back, which may be
// itself.
uint64_t purgeable__word_wait(purgeable_region_t *region, uint64_t word) {
  assert(purgeable__word_may_sleep(word));
  if ((word & WORD_WAITERS) == 0) {
    if (!purgeable__word_change(region, &word, word | WORD_WAITERS)) return word;
    word |= WORD_WAITERS;
  }
  int kept = errno;
  // Any change of the low half since ends the sleep at once; the one that settles the word finds WAITERS and wakes.
  purgeable__wait(region->word, (uint32_t)word);
  errno = kept;
  return purgeable__word_load(region);
}

void purgeable__word_finish(purgeable_region_t *region, uint64_t clear, uint64_t set) {
  _Atomic uint64_t *address = region->word;
  uint64_t word = purgeable__word_load(region);
  uint64_t wanted;
  do {
    wanted = (word & ~(WORD_OFFERING | WORD_WAITERS | clear)) | set;
    // Only where a test let lockers not wait can a rescue have come before this.
    if ((wanted & WORD_ON_OFFER) == 0) wanted &= ~WORD_REFUSED;
    if (purgeable__word_count(wanted) == 0) wanted &= ~WORD_WRITER;
  } while (!purgeable__word_change(region, &word, wanted));
  if ((word & WORD_WAITERS) == 0) return;
  // The region may be gone by now. Waking needs no more than the address, and a sleeper woken for nothing looks again.
  int kept = errno;
  purgeable__wake_all(address);
  errno = kept;
}
