// SPDX-License-Identifier: MIT
// What the region files share: the state word, the region, and the process-wide pool that survives a fork with nothing in it.
//
//   63      32 31  30 29    28      27      26    25     24      23       22     21        20       19      0
//   +---------+------+-----+-------+-------+-----+------+-------+--------+------+---------+--------+--------+
//   | version | fill |AGAIN|FILLING|REFUSED|ALIVE|QUEUED|WAITERS|ON_OFFER|WRITER|DISCARDED|OFFERING| count  |
//   +---------+------+-----+-------+-------+-----+------+-------+--------+------+---------+--------+--------+
//
// The word lies in memory that a fork wipes. ALIVE is set in every word this process wrote, so a word of 0 says one thing only:
// we are a forked child and have not looked at this region before. The word then becomes ALIVE | DISCARDED.
#ifndef PURGEABLE_REGION_STRUCTURE_H
#define PURGEABLE_REGION_STRUCTURE_H

#include "internal.h"

#include "purgeable_region.h"

#pragma GCC visibility push(hidden)

#define WORD_COUNT UINT64_C(0xFFFFF)
// A thread is inside a madvise that covers the region. Set from count 0 only (a refill takes its own count with it).
#define WORD_OFFERING (UINT64_C(1) << 20)
// Content is gone until the refill. While it is set nobody holds a lock: every remaining count belongs to a locker that is
// backing off.
#define WORD_DISCARDED (UINT64_C(1) << 21)
// Some holder since the count was last 0 may write.
#define WORD_WRITER (UINT64_C(1) << 22)
// Pages may have been offered and nobody has rescued all of them since. While it is set nobody holds a lock.
#define WORD_ON_OFFER (UINT64_C(1) << 23)
// Somebody sleeps on the word. Whoever clears OFFERING or FILLING clears it and wakes them.
#define WORD_WAITERS (UINT64_C(1) << 24)
// In the queue, or about to be pushed by the unlock that set it. The links of the region mean something only while this or AGAIN
// is set.
#define WORD_QUEUED (UINT64_C(1) << 25)
#define WORD_ALIVE (UINT64_C(1) << 26)
// Only with ON_OFFER: a madvise failed, or the offer ended early for a locker, so that any part of it, or nothing, is on offer.
// Not reported as offered; tried again.
#define WORD_REFUSED (UINT64_C(1) << 27)
// The content is being made: from the exchange that began it (create, refill) to the one that ends it (the last unlock, publish,
// abandon). WRITER is set all the while, and every count is one of the filler's: a lock of anybody else does not count.
#define WORD_FILLING (UINT64_C(1) << 28)
// In one of the rings of regions to be offered again. Changes under the pool's mutex only.
#define WORD_AGAIN (UINT64_C(1) << 29)
// Which fill this is, modulo 4, so that a thread that waits for one fill does not mistake the next fill for it.
#define WORD_FILL_ONE (UINT64_C(1) << 30)
#define WORD_FILL_NUMBER (UINT64_C(3) << 30)
#define WORD_VERSION_ONE (UINT64_C(1) << 32)

_Static_assert(WORD_COUNT == PURGEABLE_LOCK_COUNT_MAX, "the count's mask is its maximum");

static inline uint64_t purgeable__word_count(uint64_t word) { return word & WORD_COUNT; }
static inline uint32_t purgeable__word_version(uint64_t word) { return (uint32_t)(word >> 32); }

// Whether waiting makes sense: a madvise is running, or lockers that found the content gone are on their way back.
static inline bool purgeable__word_unsettled(uint64_t word) {
  return (word & WORD_OFFERING) != 0 || ((word & WORD_DISCARDED) != 0 && purgeable__word_count(word) != 0);
}

// The word with the next fill's number.
static inline uint64_t purgeable__word_next_fill(uint64_t word) {
  return (word & ~WORD_FILL_NUMBER) | ((word + WORD_FILL_ONE) & WORD_FILL_NUMBER);
}

// Whether there is anything to sleep for: a madvise, lockers that back off, or a fill.
static inline bool purgeable__word_may_sleep(uint64_t word) {
  return (word & WORD_FILLING) != 0 || purgeable__word_unsettled(word);
}

// What every word obeys at every moment.
static inline bool purgeable__word_is_valid(uint64_t word) {
  if ((word & WORD_ALIVE) == 0) return false;
  if ((word & WORD_DISCARDED) && (word & WORD_ON_OFFER)) return false;
  if ((word & WORD_REFUSED) && !(word & WORD_ON_OFFER)) return false;
  if ((word & WORD_WRITER) && purgeable__word_count(word) == 0) return false;
  if ((word & WORD_FILLING) && !(word & WORD_WRITER)) return false;
  return !(word & WORD_WAITERS) || purgeable__word_may_sleep(word);
}

// MARK: Shared by the process

typedef struct purgeable__link {
  struct purgeable__link *next;
  struct purgeable__link *previous;
} purgeable__link_t;

enum { PURGEABLE__SHARD_COUNT = 32, PURGEABLE__AGAIN_LEVELS = 6 };

// Counters of one shard, two cache lines, the busy ones in the first. A region always counts in the same shard: threads that meet
// there have already met at the region's word. Sums are taken modulo 2^64, so one shard alone means nothing. Relaxed; partner:
// `purgeable_region_statistics`.
typedef struct purgeable__counters {
  _Atomic uint64_t locked_bytes;
  _Atomic uint64_t offered_bytes;
  _Atomic uint64_t discarded_bytes;
  _Atomic uint64_t kernel_discards;
  _Atomic uint64_t own_discards;
  _Atomic uint64_t unbalanced_unlocks;
  _Atomic uint64_t refused_offers;
  _Atomic uint64_t refused_locks;
  _Atomic uint64_t discarded_by_kernel_bytes;
  _Atomic uint64_t given_back_bytes;
  _Atomic uint64_t abandoned_fills;
  // Idle, refused by the kernel, and in a ring to be offered again.
  _Atomic uint64_t refused_bytes;
  _Atomic uint64_t refused_regions;
  uint64_t unused[3];
} purgeable__counters_t;

// Lives in a mapping that a fork wipes: a child finds an unlocked mutex (zeros are one, in glibc and musl), an empty queue, and
// counters at 0, whatever the parent's other threads were doing.
typedef struct purgeable__shared {
  // 1 in the process that owns this page, 0 in a forked child until it is healed.
  _Atomic uint64_t alive;
  // Guards the links of all rings, `sorting_count`, `queue_round`, and (region_pool.c) the chunks and their bitmaps.
  pthread_mutex_t mutex;
  // Held while waiting for the mutex. A drain of the queue, which takes the mutex again and again, stands in the same line.
  pthread_mutex_t gate;
  // How many threads rearrange links of queued regions outside of the mutex.
  unsigned sorting_count;
  // How often the queue was taken: regions that were queued in an earlier round are in no queue, but with who took it.
  unsigned queue_round;
  // Heads of the rings: of regions waiting to be offered, and of those to be offered again. All zeros means empty.
  purgeable__link_t queue;
  purgeable__link_t again[PURGEABLE__AGAIN_LEVELS];
  // When each of those is due (CLOCK_MONOTONIC, ms).
  uint64_t again_due_ms[PURGEABLE__AGAIN_LEVELS];
  // Written under the mutex, read without: how many regions wait to be offered, and their bytes in whole pages.
  _Atomic uint64_t pending_count;
  _Atomic uint64_t pending_bytes;
  _Alignas(64) purgeable__counters_t shards[PURGEABLE__SHARD_COUNT];
} purgeable__shared_t;

typedef struct purgeable__pool_chunk purgeable__pool_chunk_t;

// How far a destroy is whose region's link another thread was sorting. Under the pool's mutex.
typedef enum purgeable__parting {
  purgeable__parting_none,
  // Destroy has begun: the link stands, and means nothing.
  purgeable__parting_begun,
  // The drain has met the link and taken it out: destroy frees the structure.
  purgeable__parting_unlinked,
  // Destroy has ended: the drain frees the structure.
  purgeable__parting_ended,
} purgeable__parting_t;

struct purgeable_region {
  // In wiped-on-fork memory: a cache line of its own in the chunk's first pages, or in the page in front of a region that has its
  // own mapping.
  _Atomic uint64_t *word;
  char *bytes;
  size_t length_bytes;
  size_t page_size_bytes;
  size_t page_count;
  // NULL: own mapping, which begins one page before `bytes`.
  purgeable__pool_chunk_t *chunk;
  purgeable__counters_t *counters;
  // The thread that began the last fill (`purgeable__this_thread`), in ordinary memory: a child has no use for it. Believed only
  // together with a word that says FILLING and not OFFERING. Relaxed: written before the exchange that ends OFFERING.
  _Atomic uint64_t filler;
  // Pages that have a witness: what an offer of the region offers. Relaxed: written by the last unlock, under its lock.
  _Atomic size_t witnessed_count;
  purgeable_offering_t offering;
  // Guarded by the pool's mutex, as is the link: the round in which the region was queued, and a `purgeable__parting_t`.
  unsigned queue_round : 30, parting : 2;
  // Meaningful only while QUEUED or AGAIN is set, and to a drain while `parting` is.
  purgeable__link_t link;
  // Per page: 0 for a page of zeros, else 1 + the index of an 8-byte word of it that is not zero. Written by the last unlock of
  // a writer, read by readers without lock meanwhile; those find the version changed. Relaxed: the word orders them.
  _Atomic uint16_t witnesses[];
};

static inline size_t purgeable__region_bytes(const purgeable_region_t *region) {
  return region->page_count * region->page_size_bytes;
}

// What is on offer while the region is: pages of zeros are given back instead.
static inline size_t purgeable__region_witnessed_bytes(const purgeable_region_t *region) {
  return load_relaxed(&region->witnessed_count) * region->page_size_bytes;
}

// Whether so many pages have no witness that it is cheaper to ask the kernel which of them hold anything than to look at each.
static inline bool purgeable__is_sparse(const purgeable_region_t *region) {
  enum { WORTH_ASKING_PAGES = 512 };
  return region->page_count - load_relaxed(&region->witnessed_count) >= WORTH_ASKING_PAGES;
}

static inline void purgeable__count_kernel_discard(purgeable_region_t *region) {
  add_relaxed(&region->counters->kernel_discards, 1);
  add_relaxed(&region->counters->discarded_by_kernel_bytes, purgeable__region_bytes(region));
}

#pragma GCC visibility pop

#endif
