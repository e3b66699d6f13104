// SPDX-License-Identifier: MIT
// What the region files share: the state word, the region, and the process-wide pool that survives a fork with nothing in it.
//
//   63            32 31    28 27      26    25     24      23       22     21        20       19      0
//   +---------------+--------+-------+-----+------+-------+--------+------+---------+--------+--------+
//   | version       | unused |REFUSED|ALIVE|QUEUED|WAITERS|ON_OFFER|WRITER|DISCARDED|OFFERING| count  |
//   +---------------+--------+-------+-----+------+-------+--------+------+---------+--------+--------+
//
// The word lies in memory that a fork wipes. ALIVE is set in every word this process wrote, so a word of 0 says one thing only:
// we are a forked child and have not looked at this region before. It then becomes ALIVE | DISCARDED.
#ifndef PURGEABLE_REGION_INTERNAL_H
#define PURGEABLE_REGION_INTERNAL_H

#include "internal.h"

#include "purgeable_region.h"

#define WORD_COUNT UINT64_C(0xFFFFF)
// A thread is inside a madvise that covers the region. Set from count 0 only (a refill takes its own count with it).
#define WORD_OFFERING (UINT64_C(1) << 20)
// Content is gone until the refill. While it is set nobody holds a lock: every count is a locker on its way back.
#define WORD_DISCARDED (UINT64_C(1) << 21)
// Some holder since the count was last 0 may write.
#define WORD_WRITER (UINT64_C(1) << 22)
// Pages may have been offered and nobody has rescued all of them since. While it is set nobody holds a lock.
#define WORD_ON_OFFER (UINT64_C(1) << 23)
// Somebody sleeps on the word. Whoever clears OFFERING clears it and wakes them.
#define WORD_WAITERS (UINT64_C(1) << 24)
// In the queue, or about to be pushed by the unlock that set it. The links of the region mean something only while it is set.
#define WORD_QUEUED (UINT64_C(1) << 25)
#define WORD_ALIVE (UINT64_C(1) << 26)
// Only with ON_OFFER: a madvise failed, so that any part of it, or nothing, is on offer. Not reported as offered; tried again.
#define WORD_REFUSED (UINT64_C(1) << 27)
#define WORD_VERSION_ONE (UINT64_C(1) << 32)

_Static_assert(WORD_COUNT == PURGEABLE_LOCK_COUNT_MAX, "the count's mask is its maximum");

static inline uint64_t purgeable__word_count(uint64_t word) { return word & WORD_COUNT; }
static inline uint32_t purgeable__word_version(uint64_t word) { return (uint32_t)(word >> 32); }

// Whether waiting makes sense: a madvise is running, or lockers that found the content gone are on their way back.
static inline bool purgeable__word_unsettled(uint64_t word) {
  return (word & WORD_OFFERING) != 0 || ((word & WORD_DISCARDED) != 0 && purgeable__word_count(word) != 0);
}

// What every word obeys at every moment.
static inline bool purgeable__word_is_valid(uint64_t word) {
  if ((word & WORD_ALIVE) == 0) return false;
  if ((word & WORD_DISCARDED) && (word & WORD_ON_OFFER)) return false;
  if ((word & WORD_REFUSED) && !(word & WORD_ON_OFFER)) return false;
  if ((word & WORD_WRITER) && purgeable__word_count(word) == 0) return false;
  return !(word & WORD_WAITERS) || purgeable__word_unsettled(word);
}

// MARK: Shared by the process

typedef struct purgeable__link {
  struct purgeable__link *next;
  struct purgeable__link *previous;
} purgeable__link_t;

enum { PURGEABLE__SHARD_COUNT = 32 };

// Counters of one shard, two cache lines, the busy ones in the first. A region always counts in the same shard: threads that meet there have already met at the
// region's word. Sums are taken modulo 2^64, so one shard alone means nothing. Relaxed; partner: `purgeable_region_statistics`.
typedef struct purgeable__counters {
  _Atomic uint64_t locked_bytes;
  _Atomic uint64_t offered_bytes;
  _Atomic uint64_t discarded_bytes;
  _Atomic uint64_t kernel_discards;
  _Atomic uint64_t own_discards;
  _Atomic uint64_t unbalanced_unlocks;
  _Atomic uint64_t refused_offers;
  _Atomic uint64_t refused_locks;
  _Atomic uint64_t kernel_discard_bytes;
  _Atomic uint64_t own_discard_bytes;
  uint64_t unused[6];
} purgeable__counters_t;

// Lives in a mapping that a fork wipes: a child finds an unlocked mutex (zeros are one, in glibc and musl), an empty queue, and
// counters at 0, whatever the parent's other threads were doing.
typedef struct purgeable__shared {
  // 1 in the process that owns this page, 0 in a forked child until it is healed.
  _Atomic uint64_t alive;
  // Guards the queue's links, `sorting_count`, and (region_pool.c) the chunks and their bitmaps.
  pthread_mutex_t mutex;
  // Signalled when `sorting_count` falls to 0.
  pthread_cond_t sorted;
  // How many threads rearrange links of queued regions outside of the mutex.
  unsigned sorting_count;
  // Head of the ring of regions waiting to be offered; all zeros means empty.
  purgeable__link_t queue;
  // Written under the mutex, read by `purgeable_region_statistics` without.
  _Atomic uint64_t pending_count;
  _Alignas(64) purgeable__counters_t shards[PURGEABLE__SHARD_COUNT];
} purgeable__shared_t;

typedef struct purgeable__chunk purgeable__chunk_t;

struct purgeable_region {
  // In wiped-on-fork memory: in the chunk's first pages, or in the page in front of a region that has its own mapping.
  _Atomic uint64_t *word;
  char *bytes;
  size_t length_bytes;
  size_t page_size_bytes;
  size_t page_count;
  // NULL: own mapping, which begins one page before `bytes`.
  purgeable__chunk_t *chunk;
  purgeable__counters_t *counters;
  purgeable_offering_t offering;
  // Guarded by the pool's mutex; meaningful only while QUEUED is set.
  purgeable__link_t link;
  // Per page: 0 for a page of zeros, else 1 + the index of an 8-byte word of it that is not zero. Written by the last unlock of
  // a writer, read by readers without lock meanwhile; those find the version changed. Relaxed: the word orders them.
  _Atomic uint16_t witnesses[];
};

static inline size_t purgeable__region_bytes(const purgeable_region_t *region) {
  return region->page_count * region->page_size_bytes;
}

static inline void purgeable__count_kernel_discard(purgeable_region_t *region) {
  atomic_fetch_add_explicit(&region->counters->kernel_discards, 1, memory_order_relaxed);
  atomic_fetch_add_explicit(&region->counters->kernel_discard_bytes, purgeable__region_bytes(region), memory_order_relaxed);
}

// MARK: region_life.c

// Whether so many more bytes may be locked (`purgeable_region_set_locked_limit`).
bool purgeable__may_lock(purgeable_region_t *region, size_t bytes);

// Bytes, in whole pages, and (if asked for) number of the regions that live.
uint64_t purgeable__region_total(uint64_t *region_count);

// MARK: region_pool.c

// The shared page, made at the first call; NULL where no memory is left.
purgeable__shared_t *purgeable__shared_make(void);
// The shared page if there is one. In a forked child it is healed first: everything there was counts as discarded.
purgeable__shared_t *purgeable__shared(void);
void purgeable__pool_lock(purgeable__shared_t *shared);
void purgeable__pool_unlock(purgeable__shared_t *shared);

// Gives `region`, whose page count and page size are set, its pages, all zeros, and its word. 0 or ENOMEM.
int purgeable__pages_take(purgeable_region_t *region);
// Wipes the pages and takes them back. Pages that cannot be wiped are kept out of use for good.
void purgeable__pages_give(purgeable_region_t *region);

// MARK: region_word.c

// Reads the word (acquire; partner: every `purgeable__word_change`), healed in a forked child.
uint64_t purgeable__word_load(purgeable_region_t *region);
// The one way a word changes: from exactly `*seen` to `wanted`, counters with it. On failure `*seen` is what stands there now.
// After a success that cleared OFFERING the region may be destroyed by another thread at any moment.
bool purgeable__word_change(purgeable_region_t *region, uint64_t *seen, uint64_t wanted);
// Sleeps while the word is `word`, which is unsettled (or answers at once); answers the word that stands then. Keeps errno.
uint64_t purgeable__word_wait(purgeable_region_t *region, uint64_t word);
// Ends OFFERING: clears and sets what else is asked for, and wakes who sleeps. Keeps errno.
void purgeable__word_finish(purgeable_region_t *region, uint64_t clear, uint64_t set);
// Adds what changed from one word to the other to the shard.
void purgeable__word_account(purgeable__counters_t *counters, size_t bytes, uint64_t before, uint64_t after);

// MARK: region_witness.c

// Takes the witness of every page afresh. The caller holds the last lock.
void purgeable__witnesses_take(purgeable_region_t *region);
// Whether every page of [first, end) still has its witness. Any thread, no lock, no system call.
bool purgeable__witnesses_stand(const purgeable_region_t *region, size_t first, size_t end);
// Rescues every page. False as soon as one is gone.
bool purgeable__witnesses_rescue(purgeable_region_t *region);

// MARK: region_offer.c

// Offers one region if it is idle and not on offer; 0, EBUSY or the errno of madvise.
int purgeable__region_offer(purgeable_region_t *region);
void purgeable__queue_push(purgeable_region_t *region);
// Takes the region out of the queue, wherever it is; for destroy.
void purgeable__queue_remove(purgeable_region_t *region);

#endif
