// SPDX-License-Identifier: MIT
/// Regions: whole pages behind one lock count.
///
///            create                 last unlock             offer (MADV_FREE)
///   (nothing) ----> locked, writing ----------> idle --------------------------> on offer
///                        ^   ^                   |  lock                            |  |
///                        |   +-------------------+  (nothing to rescue)             |  | the kernel takes a page
///                        |   lock: every page is rescued <--------------------------+  v
///                        +----------- refill ------------------------------------- discarded (sticky)
///
/// A region's content is contiguous and byte-identical at all times. What proves that a page is still there, its witness, is a
/// word of the content itself that is not zero; its place is kept in ordinary memory. A page of zeros needs no witness: a
/// discard cannot change it.
///
/// Any thread may call anything on a live region. A forked child finds every region discarded and unlocked.
///
/// The memory of regions up to 16 MiB is carved from large chunks shared by the whole process, so that a million regions do not
/// need a million mappings. Those chunks, the queue of regions waiting to be offered, and the probed facts are the core's only
/// process-wide state.
#ifndef PURGEABLE_REGION_H
#define PURGEABLE_REGION_H

#include "purgeable_base.h"

#ifdef __cplusplus
extern "C" {
#endif
PURGEABLE_NONNULL_BEGIN

typedef struct purgeable_region purgeable_region_t;

typedef struct purgeable_region_options {
  purgeable_offering_t offering;
} purgeable_region_options_t;

/// The largest lock count. One more lock is refused with EOVERFLOW.
#define PURGEABLE_LOCK_COUNT_MAX 0xFFFFFu

/// Makes a region of `length_bytes` zero bytes, born locked for writing with a count of 1. `options` may be NULL.
///
/// Returns 0; EINVAL (NULL `region`, length 0, unknown offering); ENOMEM (no memory, no address space, no mapping left, a length
/// near SIZE_MAX). On error nothing is made and `*region` is not changed.
/// Cost: no system call while a shared chunk has room.
int purgeable_region_create(size_t length_bytes, const purgeable_region_options_t *PURGEABLE_NULLABLE options,
                            purgeable_region_t *PURGEABLE_NULLABLE *PURGEABLE_NULLABLE region);

/// Frees the region and gives its memory back (MADV_DONTNEED, or munmap above 16 MiB). Like free(), it does not ask who holds a
/// lock: nobody may use the region, or the pointer to its bytes, any more. Returns 0, or EINVAL for NULL.
int purgeable_region_destroy(purgeable_region_t *PURGEABLE_NULLABLE region);

/// The content, `purgeable_region_length` bytes. To be touched only while holding a lock; NULL for NULL.
void *PURGEABLE_NULLABLE purgeable_region_bytes(purgeable_region_t *PURGEABLE_NULLABLE region);

/// The length in bytes that was asked for at creation; 0 for NULL.
size_t purgeable_region_length(const purgeable_region_t *PURGEABLE_NULLABLE region);

/// Locks for reading: the content stays until the matching unlock and the holder may not change it.
///
/// Intact: the count went up by 1. Discarded: the count is as before, and the region stays discarded until it is refilled.
/// Error, with errno: EINVAL (NULL), EOVERFLOW (count at its maximum), EAGAIN (the limit of what may be locked).
/// Cost: one atomic operation; after an offer also one per page (the rescue), and no system call. Sleeps on a futex while the
/// region is inside a madvise of another thread.
purgeable_outcome_t purgeable_region_lock(purgeable_region_t *PURGEABLE_NULLABLE region);

/// Locks for writing: as `purgeable_region_lock`, and the holder may change the content. Does not exclude other holders: two
/// writers, or a writer and a reader, have to agree among themselves. Reads without lock answer busy until the last unlock.
purgeable_outcome_t purgeable_region_lock_for_writing(purgeable_region_t *PURGEABLE_NULLABLE region);

/// As `purgeable_region_lock`, but answers busy where that would sleep. The one way of locking a signal handler may use; it
/// must leave the unlock to the program.
purgeable_outcome_t purgeable_region_try_lock(purgeable_region_t *PURGEABLE_NULLABLE region);

/// Gives one lock back. The last one makes the region idle: its witnesses are taken afresh if any holder held a writing lock
/// (a scan of the pages' first non-zero words), and it is offered now, queued, or left, by its offering mode.
///
/// Returns 0, EINVAL (NULL), EPERM (not locked: nothing is changed).
int purgeable_region_unlock(purgeable_region_t *PURGEABLE_NULLABLE region);

/// How many locks are held; 0 for NULL.
uint32_t purgeable_region_lock_count(const purgeable_region_t *PURGEABLE_NULLABLE region);

/// Whether content was lost. Looks at every page's witness, records a loss it finds, and stays true until refilled.
/// False for NULL. Cost: one read per page while on offer, else one atomic load.
bool purgeable_region_is_discarded(purgeable_region_t *PURGEABLE_NULLABLE region);

/// Gives the content up at once if nobody holds a lock (MADV_DONTNEED). Discarding what is discarded is nothing new and answers 0.
/// Returns 0, EINVAL (NULL), EBUSY (locked: nothing is changed), or the errno of madvise (nothing is changed).
int purgeable_region_discard(purgeable_region_t *PURGEABLE_NULLABLE region);

/// Starts the content anew: all zeros, locked for writing with a count of 1, not discarded any more. Whatever it held is gone.
/// Returns 0, EINVAL (NULL), EBUSY (somebody holds a lock: nothing is changed), or the errno of madvise (nothing is changed).
/// The kernel call: MADV_DONTNEED over the whole region first, so that no CPU can go on seeing old pages.
int purgeable_region_refill(purgeable_region_t *PURGEABLE_NULLABLE region);

/// Copies `length_bytes` from `offset_bytes` into `buffer` without locking: no system call, no page dirtied, the offer stands.
///
/// Intact: the buffer holds bytes that were all there at one moment. Discarded, busy (a writing lock is held, or the content
/// changed meanwhile): the buffer's content is unspecified. Error, with errno: EINVAL (NULL), ERANGE (outside the region).
/// A length of 0 answers intact or discarded for the region as such. May be called in a signal handler.
purgeable_outcome_t purgeable_region_read(purgeable_region_t *PURGEABLE_NULLABLE region, size_t offset_bytes, size_t length_bytes,
                                          void *PURGEABLE_NULLABLE buffer);

/// Bytes of the region that are in memory now (mincore; in whole pages). A page that was discarded and read since counts.
/// Returns 0, EINVAL (NULL), or the errno of mincore.
int purgeable_region_resident(purgeable_region_t *PURGEABLE_NULLABLE region, size_t *PURGEABLE_NULLABLE resident_bytes);

/// Bytes of the region that were offered and not rescued since, in whole pages; 0 once it is known to be discarded, and for NULL.
size_t purgeable_region_offered_bytes(const purgeable_region_t *PURGEABLE_NULLABLE region);

/// Offers this region now if it is idle. Returns 0 (also where it is on offer, discarded or in never mode), EINVAL (NULL), EBUSY
/// (locked), or the errno of madvise: EINVAL where memory is mlocked or the kernel has no MADV_FREE; the content is intact then.
int purgeable_region_offer(purgeable_region_t *PURGEABLE_NULLABLE region);

/// Offers every region that was queued by its last unlock, neighbours merged into one madvise of at most 2 MiB.
/// `offered_bytes` (may be NULL) gets how much. Returns 0 or the first errno met; the rest is still offered.
int purgeable_offer_pending(size_t *PURGEABLE_NULLABLE offered_bytes);

/// All regions of this process together. Bytes in whole pages.
typedef struct purgeable_region_statistics {
  uint64_t region_count;
  uint64_t region_bytes;
  uint64_t locked_bytes;
  uint64_t offered_bytes;
  uint64_t discarded_bytes;
  /// Regions waiting for `purgeable_offer_pending`.
  uint64_t pending_count;
  /// Since the process began: discards found that the kernel made, discards asked for, what they add up to, unlocks without a
  /// lock, offers refused, locks refused for their limit.
  uint64_t kernel_discard_count;
  uint64_t own_discard_count;
  uint64_t kernel_discard_bytes;
  uint64_t own_discard_bytes;
  uint64_t unbalanced_unlock_count;
  uint64_t refused_offer_count;
  uint64_t refused_lock_count;
} purgeable_region_statistics_t;

/// The most bytes of regions that may be locked at a time, in this process; 0, the default, is no limit. A lock of an idle region
/// that would exceed it answers error with EAGAIN and changes nothing; reads without lock still work. A region is born locked
/// whatever the limit is, and counts; so does a refill. With N threads locking at once the excess is at most N regions.
void purgeable_region_set_locked_limit(uint64_t limit_bytes);

/// Fills in the statistics. Cheap: a walk over counters, no system call. Returns 0 or EINVAL for NULL.
int purgeable_region_statistics(purgeable_region_statistics_t *PURGEABLE_NULLABLE statistics);

PURGEABLE_NONNULL_END
#ifdef __cplusplus
}
#endif

#endif
