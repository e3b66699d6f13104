// SPDX-License-Identifier: MIT
/// Regions: whole pages behind one lock count.
///
///            create            last unlock, publish             offer (MADV_FREE)
///   (nothing) ----> being filled ----------------> idle --------------------------> on offer
///                     ^      |     locked <---------'  lock                          |  |
///                     |      |       ^   (nothing to rescue)                         |  | the kernel takes a page
///                     |      |       '---- lock: every page is rescued <-------------'  v
///                     |      '---- abandon ----------------------------------------> discarded (sticky)
///                     '--------------------- refill ------------------------------------'
///
/// **Fills.** From creation, or a refill, until the filler's last unlock a region is being filled, and nobody but the filler is
/// told intact: `purgeable_region_lock` answers busy to every other thread, `purgeable_region_lock_waiting` waits, reads without
/// lock answer busy. The filler is the thread that called create or refill; it may lock again, nested, while it fills. Any thread
/// may write the bytes on its behalf, and any thread may end the fill: by the last unlock, by `purgeable_region_publish` (the
/// lock is kept), or by `purgeable_region_abandon` where it failed. **A filler that ends without any of these leaves the region
/// being filled**: whoever waits waits on, in `purgeable_region_lock_waiting` or `_lock_or_fill` (to be seen in a debugger, and
/// by `purgeable_region_state`, which says filling), until some thread abandons the fill. A thread that may be cancelled abandons
/// in a cleanup handler.
///
/// A region's content is contiguous and byte-identical at all times. What proves that a page is still there, its witness, is a
/// word of the content itself that is not zero; its place is kept in ordinary memory. A page of zeros needs no witness: a
/// discard cannot change it.
///
/// Any thread may call anything on a live region. A forked child finds every region discarded and unlocked, also those that were
/// being filled: nobody there waits for a thread that the child does not have. (Where the kernel refuses MADV_WIPEONFORK, before
/// Linux 4.14, it may find content intact.) No call is a cancellation point, nor allocates but create; the first offer of a
/// process may, for pthread_atfork.
///
/// The memory of regions up to 16 MiB is carved from large chunks shared by the whole process, so that a million regions do not
/// need a million mappings. Those chunks and the queue of regions waiting to be offered are state of the process; the core has no
/// other but the list of heaps, pages shared by small bookkeeping, the upkeep thread, the probed facts, and the settings.
#ifndef PURGEABLE_REGION_H
#define PURGEABLE_REGION_H

#include "purgeable_base.h"

#ifdef __cplusplus
extern "C" {
#endif
PURGEABLE_PUBLIC_BEGIN
PURGEABLE_NONNULL_BEGIN

/// A region.
typedef struct purgeable_region purgeable_region_t;

/// What a region is made with.
typedef struct purgeable_region_options {
  /// When the idle region is offered to the kernel.
  purgeable_offering_t offering;
} purgeable_region_options_t;

/// What a region is now, as one look finds it: unless the caller holds a lock, it may be something else the next moment.
typedef enum PURGEABLE_CLOSED_ENUM purgeable_state {
  /// Nobody holds a lock and the kernel may not take it: not offered yet, or the offer was refused.
  purgeable_state_idle = 0,
  /// The kernel may take it, or has and nobody has looked.
  purgeable_state_on_offer = 1,
  /// Known to be gone, until it is refilled.
  purgeable_state_discarded = 2,
  /// Locked, by readers only.
  purgeable_state_locked = 3,
  /// Locked, by somebody who may write.
  purgeable_state_writing = 4,
  /// Being filled, after creation or refill.
  purgeable_state_filling = 5,
} purgeable_state_t;

/// The largest lock count. One more lock is refused with EOVERFLOW.
#define PURGEABLE_LOCK_COUNT_MAX 0xFFFFFu

/// Makes a region of `length_bytes` zero bytes, born locked for writing with a count of 1 and being filled by the calling thread.
/// `options` may be NULL. The bytes begin at a page; memory is used in whole pages.
///
/// Returns 0; EINVAL (NULL `region`, length 0, unknown offering); ENOMEM (no memory, no address space, no mapping left, a length
/// near SIZE_MAX). On error nothing is made and `*region` is not changed.
/// Cost: no system call while a shared chunk has room.
PURGEABLE_MUST_USE
int purgeable_region_create(size_t length_bytes, const purgeable_region_options_t *PURGEABLE_NULLABLE options,
                            purgeable_region_t *PURGEABLE_NULLABLE *PURGEABLE_NULLABLE region);

/// The same, born idle and discarded: nobody has to fill it before somebody wants it. Errors and cost as for create.
PURGEABLE_MUST_USE
int purgeable_region_create_discarded(size_t length_bytes, const purgeable_region_options_t *PURGEABLE_NULLABLE options,
                                      purgeable_region_t *PURGEABLE_NULLABLE *PURGEABLE_NULLABLE region);

/// Frees the region and gives its memory back (MADV_DONTNEED, or munmap above 16 MiB). Like free(), it does not ask who holds a
/// lock: nobody may use the region, or the pointer to its bytes, any more.
///
/// Returns 0, or EINVAL for NULL. Any other errno says what the kernel refused; the region is gone all the same. A refused munmap
/// (ENOMEM, at the limit of mappings): the memory is given back, the address space is not. A refused MADV_DONTNEED: the pages
/// stay as they are, and are never used again.
int purgeable_region_destroy(purgeable_region_t *PURGEABLE_NULLABLE region);

/// The content, `purgeable_region_length_bytes` bytes. To be touched only while holding a lock; NULL for NULL.
void *PURGEABLE_NULLABLE purgeable_region_bytes(purgeable_region_t *PURGEABLE_NULLABLE region);

/// The length in bytes that was asked for at creation; 0 for NULL.
size_t purgeable_region_length_bytes(const purgeable_region_t *PURGEABLE_NULLABLE region);

/// Locks for reading: the content stays until the matching unlock and the holder may not change it.
///
/// Intact: the count went up by 1. Discarded: the count is as before, and the region stays discarded until it is refilled. Busy:
/// another thread is filling it; the count is as before. The thread that fills is told intact, as long as it fills.
/// Error, with errno: EINVAL (NULL), EOVERFLOW (count at its maximum), EAGAIN (the limit of what may be locked).
/// Cost: one atomic operation; after an offer also one per page (the rescue). No system call, but for one that gives the rest of
/// a region back whose loss this finds, and a futex wait while the region is inside a madvise of another thread.
PURGEABLE_MUST_USE
purgeable_outcome_t purgeable_region_lock(purgeable_region_t *PURGEABLE_NULLABLE region);

/// Locks for writing: as `purgeable_region_lock`, and the holder may change the content. Does not exclude other holders: two
/// writers, or a writer and a reader, have to agree among themselves. Reads without lock answer busy until the last unlock.
PURGEABLE_MUST_USE
purgeable_outcome_t purgeable_region_lock_for_writing(purgeable_region_t *PURGEABLE_NULLABLE region);

/// As `purgeable_region_lock`, but answers busy where that would sleep, and to everybody while the region is being filled. The
/// one way of locking a signal handler may use (one that interrupts the filler would see half of the content, hence busy to the
/// filler as well); it must leave the unlock to the program.
PURGEABLE_MUST_USE
purgeable_outcome_t purgeable_region_try_lock(purgeable_region_t *PURGEABLE_NULLABLE region);

/// As `purgeable_region_lock`, but waits while another thread fills the region, and then says what came of it. Discarded: it was
/// discarded, or the fill was given up. Sleeps on a futex, for as long as the filler takes (see above, Fills).
PURGEABLE_MUST_USE
purgeable_outcome_t purgeable_region_lock_waiting(purgeable_region_t *PURGEABLE_NULLABLE region);

/// The same for writing.
PURGEABLE_MUST_USE
purgeable_outcome_t purgeable_region_lock_for_writing_waiting(purgeable_region_t *PURGEABLE_NULLABLE region);

/// Locks for reading, or elects the caller to fill what is discarded. Of many threads that call it, one fills and the others
/// wait.
///
/// Intact: locked for reading. Discarded with `*is_filler`: the caller has refilled the region (all zeros, locked for writing)
/// and has to fill it, then to unlock, publish or abandon it. Discarded without: the fill that was waited for was given up, or
/// the content went again; nothing is locked: call again, or treat it as a miss. Error, with errno: as for lock (EAGAIN never for
/// the one who fills); EINVAL (NULL `is_filler`); the errno of madvise. `*is_filler` is set in every case, but for that EINVAL.
///
///     bool is_filler;
///     purgeable_outcome_t outcome = purgeable_region_lock_or_fill(region, &is_filler);
///     if (is_filler && render(purgeable_region_bytes(region))) {
///       purgeable_region_publish(region);                        // from here on the others read, too
///       outcome = purgeable_outcome_intact;
///     } else if (is_filler) {
///       purgeable_region_abandon(region);                        // those who wait are told discarded
///     }
PURGEABLE_MUST_USE
purgeable_outcome_t purgeable_region_lock_or_fill(purgeable_region_t *PURGEABLE_NULLABLE region,
                                                  bool *PURGEABLE_NULLABLE is_filler);

/// Ends a fill and keeps the lock: the content is complete. Whoever waits goes on, whoever locks is told intact. Reads without
/// lock answer busy until the last unlock. Any thread.
/// Returns 0, EINVAL (NULL), EPERM (nothing is being filled: nothing is changed). Cost: a futex call if somebody waits, else
/// none.
int purgeable_region_publish(purgeable_region_t *PURGEABLE_NULLABLE region);

/// Gives a fill up: the filler's lock is given back and the region is discarded, in one step. What was written is gone, whoever
/// waits is told discarded, and nobody is told intact in between. Any thread, also for one that has ended in the middle of its
/// fill.
///
/// Returns 0, EINVAL (NULL), EPERM (nothing is being filled: nothing is changed), EBUSY (the filler has locked again and holds
/// more than one lock: unlock down to the first). Cost: one system call (MADV_DONTNEED); where the kernel refuses it the pages
/// stay in memory until the next refill, and are discarded all the same.
int purgeable_region_abandon(purgeable_region_t *PURGEABLE_NULLABLE region);

/// What the region is now. Idle for NULL. One atomic load; does not look for losses, as `purgeable_region_is_discarded` does.
purgeable_state_t purgeable_region_state(const purgeable_region_t *PURGEABLE_NULLABLE region);

/// Whether the calling thread is filling the region: it began the fill, and the fill has not ended. False for NULL.
bool purgeable_region_fills_here(const purgeable_region_t *PURGEABLE_NULLABLE region);

/// Gives one lock back. The last one makes the region idle: its witnesses are taken afresh if any holder held a writing lock
/// (a scan of the pages' first non-zero words), and it is offered now, queued, or left, by its offering mode.
///
/// Returns 0, EINVAL (NULL), EPERM (not locked: nothing is changed).
int purgeable_region_unlock(purgeable_region_t *PURGEABLE_NULLABLE region);

/// How many locks are held; while an offer of the region is under way, those that wait for its end. 0 for NULL.
uint32_t purgeable_region_lock_count(const purgeable_region_t *PURGEABLE_NULLABLE region);

/// Whether content was lost. Looks at every page's witness, records a loss it finds, and stays true until refilled.
/// False for NULL. Cost: one read per page while on offer, else one atomic load.
bool purgeable_region_is_discarded(purgeable_region_t *PURGEABLE_NULLABLE region);

/// Gives the content up at once if nobody holds a lock (MADV_DONTNEED). Discarding what is discarded is nothing new and answers
/// 0.
/// Returns 0, EINVAL (NULL), EBUSY (locked: nothing is changed), or the errno of madvise (nothing is changed).
int purgeable_region_discard(purgeable_region_t *PURGEABLE_NULLABLE region);

/// Starts the content anew: all zeros, locked for writing with a count of 1, not discarded any more, being filled by the calling
/// thread. Whatever it held is gone. Of two threads that both found it discarded the later one may refill what the earlier has
/// filled; `purgeable_region_lock_or_fill` does not.
/// Returns 0, EINVAL (NULL), EBUSY (somebody holds a lock or fills it: nothing is changed), or the errno of madvise (nothing is
/// changed). The kernel call: MADV_DONTNEED over the whole region first, so that no CPU can go on seeing old pages.
PURGEABLE_MUST_USE
int purgeable_region_refill(purgeable_region_t *PURGEABLE_NULLABLE region);

/// Copies `length_bytes` from `offset_bytes` into `buffer` without locking: no system call, no page dirtied, the offer stands.
///
/// Intact: the buffer holds bytes that were all there at one moment. Discarded, busy (a writing lock is held, or the content
/// changed meanwhile): the buffer's content is unspecified. Error, with errno: EINVAL (NULL), ERANGE (outside the region).
/// A length of 0 answers intact or discarded for the region as such. May be called in a signal handler.
PURGEABLE_MUST_USE
purgeable_outcome_t purgeable_region_read(purgeable_region_t *PURGEABLE_NULLABLE region, size_t offset_bytes, size_t length_bytes,
                                          void *PURGEABLE_NULLABLE buffer);

/// Bytes of the region that are in memory now (mincore; in whole pages). A page that was discarded and read since counts.
/// Returns 0, EINVAL (NULL), or the errno of mincore.
PURGEABLE_MUST_USE
int purgeable_region_resident_bytes(purgeable_region_t *PURGEABLE_NULLABLE region, size_t *PURGEABLE_NULLABLE resident_bytes);

/// Bytes of the region that were offered and not rescued since, in whole pages; 0 once it is known to be discarded, and for NULL.
/// Pages of zeros do not count (an offer gives them back at once), nor does anything of a region whose offer was refused. Memory
/// that is mlocked after its offer counts until the next offer, which is then refused.
size_t purgeable_region_offered_bytes(const purgeable_region_t *PURGEABLE_NULLABLE region);

/// Offers this region now if it is idle, once more if it is on offer. Returns 0 (also where it is discarded or in never mode),
/// EINVAL (NULL), EBUSY (locked), or the errno of madvise: EINVAL where memory is mlocked or the kernel has no MADV_FREE; the
/// content is intact then.
int purgeable_region_offer(purgeable_region_t *PURGEABLE_NULLABLE region);

/// Offers every region that was queued by its last unlock, neighbours merged into one madvise of at most 2 MiB; and offers again
/// what is on offer and due. `offered_bytes` (may be NULL) gets how much is newly on offer. Returns 0 or the first errno met; the
/// rest is still offered.
///
/// Again, because the kernel passes over pages that wait in another processor's batch (up to 31 for each): a region that was
/// filled on one processor and offered from another is not all on offer, and nothing tells so. Whatever is on offer, in immediate
/// mode too, is therefore offered again by the next two calls, then at most 1, 8 and 64 seconds later, and every 256 seconds from
/// there on, for as long as it stays on offer: 46 ns a page each time. What the kernel refused is offered again as often. Call it
/// about once a second, or have `purgeable_upkeep_start` do so.
int purgeable_offer_pending(size_t *PURGEABLE_NULLABLE offered_bytes);

/// In how many milliseconds `purgeable_offer_pending` has something to do: 0 for now, UINT64_MAX for never as things are. For
/// event loops that sleep while there is nothing to do.
uint64_t purgeable_offer_pending_due_ms(void);

/// All regions of this process together, and what happened to them since the process began. Bytes in whole pages.
typedef struct purgeable_region_statistics {
  /// Pages that wait for `purgeable_offer_pending` are pending, also where the kernel has refused them so far. Pages of discards
  /// that were asked for are given back.
  purgeable_memory_use_t memory;
  /// Regions that exist.
  uint64_t region_count;
  /// Regions waiting for `purgeable_offer_pending`.
  uint64_t pending_count;
  /// So far: discards by the kernel that were found.
  uint64_t kernel_discard_count;
  /// So far: discards that were asked for.
  uint64_t own_discard_count;
  /// So far: unlocks without a lock.
  uint64_t unbalanced_unlock_count;
  /// So far: offers that the kernel refused, those made again included.
  uint64_t refused_offer_count;
  /// So far: fills given up (`purgeable_region_abandon`).
  uint64_t abandoned_fill_count;
} purgeable_region_statistics_t;

/// The most bytes of regions that may be locked at a time, in this process; 0, the default, is no limit. A lock of an idle region
/// that would exceed it answers error with EAGAIN and changes nothing; reads without lock still work. A region is born locked
/// whatever the limit is, and counts; so does a refill. With N threads locking at once the excess is at most N regions.
void purgeable_region_set_locked_byte_limit(uint64_t byte_limit);

/// Fills in the statistics. Cheap: a walk over counters, no system call. Returns 0 or EINVAL for NULL.
int purgeable_region_statistics(purgeable_region_statistics_t *PURGEABLE_NULLABLE statistics);

PURGEABLE_NONNULL_END
PURGEABLE_PUBLIC_END
#ifdef __cplusplus
}
#endif

#endif
