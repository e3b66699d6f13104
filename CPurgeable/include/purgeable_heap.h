// SPDX-License-Identifier: MIT
/// The slab heap: small elements that share purgeable pages.
///
///   chunk   |--------------------------- one mapping, carved into units ---------------------------|
///   slab    |  sealed, on offer  |  sealed, locked  |  open: filled from the front  |  free  | ...
///   element    [header|payload][header|payload] ...  [header|witness table|payload over several pages]
///
///   allocate ---> (being written) ---commit---> living ---free---> bytes come back with the slab
///                        |                        |
///                        +---free (abandoned)     +---the kernel takes a page: discarded, until it is freed
///
/// A slab is filled from front to back, sealed, offered, and no byte of it is written again until the whole slab is given back
/// and begins a new life under a new generation. So small elements need no size classes, one madvise covers hundreds of them, and
/// a reader can prove without a lock that what it copied was there. One lost page loses only the elements on it.
///
/// An element is written between allocate and commit and is read-only afterwards. It is named by a reference, never by a pointer:
/// stale, foreign and forged references are found out (ESTALE). All functions may be called from any thread on a live heap,
/// unless they say otherwise. A forked child finds every element gone (ESTALE) and the heap empty and usable. (Where the kernel
/// refuses MADV_WIPEONFORK, before Linux 4.14, it must not use the heap.)
///
/// Streams, single slabs and places are for owners that decide which elements stay: `purgeable_slabs.h`.
#ifndef PURGEABLE_HEAP_H
#define PURGEABLE_HEAP_H

#include "purgeable_base.h"

#ifdef __cplusplus
extern "C" {
#endif
PURGEABLE_PUBLIC_BEGIN
PURGEABLE_NONNULL_BEGIN

/// A slab heap.
typedef struct purgeable_heap purgeable_heap_t;

/// Names an element. All zero names nothing. A plain value: copy and compare it freely.
typedef struct purgeable_reference {
  /// Where the element begins, in granules of 16 bytes from the heap's beginning.
  uint64_t place;
  /// Which life of the slab the element belongs to.
  uint64_t generation;
} purgeable_reference_t;

/// Names a sequence of slabs in order of birth. 0 is the stream that every heap has.
typedef uint32_t purgeable_stream_t;

enum {
  /// The bytes that a place counts, and the alignment of every element; payloads are aligned to 8 bytes, or to 16 where
  /// `payload_alignment_bytes` says so.
  PURGEABLE_GRANULE_BYTES = 16,
  /// The header in front of every payload.
  PURGEABLE_HEADER_BYTES = 8,
};

/// The largest element: 4 GiB less one chunk.
#define PURGEABLE_ELEMENT_BYTES_MAX ((size_t)0xFFFFFFFFu - ((size_t)64 << 20))

/// An owner's answer when an element was copied to a new place: exchange the old reference for the new one wherever the owner
/// keeps it, by compare-exchange, and say true; or say false, and the copy is freed and the old place stays. `tag` is 0 unless
/// the heap keeps tags. `bytes` is the copy, readable during the call. Locked elements move, too: whoever holds a lock keeps the
/// reference for the unlock.
///
/// Called on the thread, and inside the call, that moves: `purgeable_heap_move` and `purgeable_slab_evacuate` with the callback
/// given to them; with the callback of the options `purgeable_heap_allocate` and its like, also moves and evacuations (into
/// stream 0, when a fresh slab is needed or the limit is reached), `purgeable_heap_trim` and `purgeable_heap_offer_idle`. None
/// of the heap's mutexes is held, and the callback may call the heap. **A mutex of the owner that is held around one of these
/// calls must not be taken in the callback.** An owner who holds one around allocations sets `defers_compaction`: then none of
/// the first three calls it, and compaction is left to trims and upkeep, which are called without that mutex. The callback
/// returns: no exception, longjmp or pthread_exit leaves it. The thread cannot be cancelled during it. It may fork: in the child
/// every element is gone, an allocation around it answers an element of the child, and `purgeable_heap_move` answers ESTALE.
typedef bool (*purgeable_moved_t)(void *PURGEABLE_NULLABLE context, purgeable_reference_t from, purgeable_reference_t to,
                                  uint64_t tag, const void *bytes, size_t length_bytes);

/// What a heap is made with. All zero is what a program without special needs wants.
typedef struct purgeable_heap_options {
  /// The most bytes of slabs to hold at a time, 0 for no limit: those of `purgeable_heap_charged_bytes`, so what is known to be
  /// gone leaves room. Above it an allocation fails with ENOMEM. With `moved`, and without `defers_compaction`, one slab more may
  /// be held: what compaction copies into.
  size_t byte_limit;
  /// A power of two of 1 to 64 pages; 0 chooses: 4 pages for a limit below 4 MiB, 64 from 1 GiB on, else 16.
  size_t slab_bytes;
  /// A power of two, at least 4 slabs; 0 chooses: 64 MiB, less for a small limit.
  size_t chunk_bytes;
  /// When idle slabs are offered to the kernel.
  purgeable_offering_t offering;
  /// The most payload to have locked at a time, each lock counted, 0 for no limit. Above it a lock is refused with EAGAIN.
  size_t locked_byte_limit;
  /// Keep each element's tag in ordinary memory (10 bytes an element), where it survives the loss of the element's page. The
  /// slab size is 1 MiB at most then.
  bool keeps_tags;
  /// Keep the ages that `purgeable_slab_note_age` notes: 16 bytes a slab of ordinary memory.
  bool keeps_ages;
  /// Lets the heap compact stream 0 by itself: slabs less than half alive are copied together when a fresh slab is needed.
  purgeable_moved_t PURGEABLE_NULLABLE moved;
  /// The first argument of `moved`.
  void *PURGEABLE_NULLABLE context;
  /// With `moved`: allocations never compact, so never call back. `purgeable_heap_trim` does, and `purgeable_heap_offer_idle`
  /// where it has work (`purgeable_heap_has_pending`; none with `purgeable_offering_never`). A slab less than the limit is left
  /// for allocations then, so that there is room for the copies; above it an allocation answers ENOMEM, and may be tried again
  /// after a trim.
  bool defers_compaction;
  /// For owners that free under a mutex of their own: a slab that ends is not wiped there and then, which is a system call.
  /// `purgeable_heap_wipe_deferred` does it, or the next slab that begins, `purgeable_heap_offer_idle` or `purgeable_heap_trim`.
  bool defers_wipes;
  /// For owners that write every byte of an element before they commit it: `*bytes` may hold bytes of elements that ended, where
  /// they would be cleared otherwise.
  bool fills_whole;
  /// For owners that keep a place + 1 in this many low bits of a slot: no place is handed out that does not fit. 0: any place.
  uint32_t place_bits;
  /// 8 (also for 0) or 16: the alignment of every payload. 16 is what malloc gives: for vectors, long double, structs with
  /// alignas(16). It costs 8 bytes a page and nothing for each element within a page; an element of several pages may take 8
  /// bytes more for its table of witnesses. So 100-byte elements take 112 bytes each either way, 36 to a page of 4 KiB.
  size_t payload_alignment_bytes;
} purgeable_heap_options_t;

// MARK: The heap

/// Makes an empty heap; `options` may be NULL. No memory is mapped until the first allocation, but for a page of control words.
/// Returns 0, EINVAL (a NULL `heap`, sizes that are no powers of two or out of range, an unknown mode, `place_bits` too few for
/// one chunk), ENOMEM, or what mmap says where a filter of system calls refuses it.
PURGEABLE_MUST_USE
int purgeable_heap_create(const purgeable_heap_options_t *PURGEABLE_NULLABLE options,
                          purgeable_heap_t *PURGEABLE_NULLABLE *PURGEABLE_NULLABLE heap);

/// Unmaps everything. Like free(): nobody may use the heap, its elements or pointers into them any more. Waits while
/// `purgeable_upkeep` is at this heap, so hold no mutex that the heap's `moved` callback takes.
///
/// Returns 0, EINVAL (NULL), EBUSY (from within the heap's own callback called by upkeep: nothing is changed), or the errno of
/// munmap: mappings of several heaps may be one to the kernel, and to unmap the middle of it is refused where the process has as
/// many mappings as it may (vm.max_map_count). The heap has ended then as well, and its content has been wiped: no memory stays,
/// only address space, for good. Nothing can be done about that but to unmap something else earlier; the call must not be
/// repeated.
int purgeable_heap_destroy(purgeable_heap_t *PURGEABLE_NULLABLE heap);

/// The slab size in bytes that was chosen; 0 for NULL.
size_t purgeable_heap_slab_bytes(const purgeable_heap_t *PURGEABLE_NULLABLE heap);

// MARK: Elements

/// Makes room for `length_bytes` in stream 0, with tag 0 (`purgeable_heap_allocate_in` takes another one). The caller writes
/// `*bytes` (zeros so far, 8-aligned or as the options say) and then commits or frees. Until then the slab is kept off offer.
///
/// Returns 0; EINVAL (NULL, length 0), EFBIG (above PURGEABLE_ELEMENT_BYTES_MAX), ENOMEM (the limit, memory, address space),
/// EAGAIN (too many elements of one slab are being written at once). On error nothing is changed, but that the slab which was
/// being filled may be closed, and that elements may have moved. Cost: no system call, but for an mmap per chunk, and for each
/// element larger than a chunk; in immediate mode one madvise for each page that is filled, as every commit that leaves the slab
/// idle offers; and where more waits than `purgeable_set_pending_byte_limit` says, offers. Who begins a slab makes those wipes
/// that `defers_wipes` has put off, and compacts, in a heap that does; at the limit it waits for a compaction of another thread,
/// for a tenth of a second at most.
PURGEABLE_MUST_USE
int purgeable_heap_allocate(purgeable_heap_t *PURGEABLE_NULLABLE heap, size_t length_bytes,
                            purgeable_reference_t *PURGEABLE_NULLABLE reference,
                            void *PURGEABLE_NULLABLE *PURGEABLE_NULLABLE bytes);

/// As `purgeable_heap_allocate`, in a stream of one's own and with a tag (ignored unless the heap keeps tags). EINVAL also for
/// an unknown stream.
PURGEABLE_MUST_USE
int purgeable_heap_allocate_in(purgeable_heap_t *PURGEABLE_NULLABLE heap, purgeable_stream_t stream, size_t length_bytes,
                               uint64_t tag, purgeable_reference_t *PURGEABLE_NULLABLE reference,
                               void *PURGEABLE_NULLABLE *PURGEABLE_NULLABLE bytes);

/// As `purgeable_heap_allocate_in`, within a limit of this call's own in place of the heap's: the most bytes of slabs that the
/// heap may hold afterwards (`purgeable_heap_charged_bytes`), 0 for no limit. For owners that count memory of theirs against it.
/// Room in the slab that is being filled counts as held already; a heap with `moved` leaves it to copies above the limit.
PURGEABLE_MUST_USE
int purgeable_heap_allocate_within(purgeable_heap_t *PURGEABLE_NULLABLE heap, purgeable_stream_t stream, size_t length_bytes,
                                   uint64_t tag, size_t byte_limit, purgeable_reference_t *PURGEABLE_NULLABLE reference,
                                   void *PURGEABLE_NULLABLE *PURGEABLE_NULLABLE bytes);

/// Ends the writing: takes the witnesses and makes the element known to look-ups. Only the thread that allocated, or one that
/// synchronised with it, may commit. Returns 0, EINVAL (NULL), ESTALE (not an element that is being written).
PURGEABLE_MUST_USE
int purgeable_heap_commit(purgeable_heap_t *PURGEABLE_NULLABLE heap, purgeable_reference_t reference);

/// Locks: `*bytes` stay in place, unchanged, until the matching unlock, whatever the kernel needs. Either out-parameter may be
/// NULL.
/// Intact, discarded, or error with errno: EINVAL (NULL heap), ESTALE, EOVERFLOW (count at its maximum), EAGAIN (it would exceed
/// the limit of what may be locked; copying reads still work). A refused lock leaves everything as it was, offers included.
/// Cost: one atomic operation for the slab and one for each page the element touches. No system call, but for a futex wait while
/// the slab is being offered; a lock that fails is an unlock as well, and costs what that does.
PURGEABLE_MUST_USE
purgeable_outcome_t purgeable_heap_lock(purgeable_heap_t *PURGEABLE_NULLABLE heap, purgeable_reference_t reference,
                                        const void *PURGEABLE_NULLABLE *PURGEABLE_NULLABLE bytes,
                                        size_t *PURGEABLE_NULLABLE length_bytes);

/// Gives a lock back. Returns 0, EINVAL (NULL), ESTALE (wrong generation: also after a fork), EPERM (nothing in that slab is
/// locked). The count is the slab's: an unlock too many while a neighbour is locked is the caller's error and goes unnoticed.
/// So does one beside a read without lock of an element larger than a chunk, which counts: its memory may then go under the read.
/// An element that was freed or moved while it was locked is unlocked with the reference that it was locked by.
/// Cost: two atomic operations; some more for the last unlock of a slab, which in immediate mode offers; and where more waits
/// than `purgeable_set_pending_byte_limit` says, offers whose cost many unlocks share.
int purgeable_heap_unlock(purgeable_heap_t *PURGEABLE_NULLABLE heap, purgeable_reference_t reference);

/// Copies an element without locking: no system call, nothing dirtied, the offer stands. `*length_bytes` gets its length.
/// Intact: `buffer` holds it. Discarded, busy: the buffer's content is unspecified. Error, with errno: EINVAL (NULL), ESTALE,
/// ENOBUFS (`capacity_bytes` is too small; `*length_bytes` says what is needed). May be called in a signal handler, also of a
/// forked child, where it answers ESTALE at once. What is larger than a chunk is held mapped by the lock count during the read.
PURGEABLE_MUST_USE
purgeable_outcome_t purgeable_heap_read(purgeable_heap_t *PURGEABLE_NULLABLE heap, purgeable_reference_t reference,
                                        void *PURGEABLE_NULLABLE buffer, size_t capacity_bytes,
                                        size_t *PURGEABLE_NULLABLE length_bytes);

/// As `purgeable_heap_read`, for a part: exactly `length_bytes` from `offset_bytes`; ERANGE outside of the element.
PURGEABLE_MUST_USE
purgeable_outcome_t purgeable_heap_read_part(purgeable_heap_t *PURGEABLE_NULLABLE heap, purgeable_reference_t reference,
                                             size_t offset_bytes, size_t length_bytes, void *PURGEABLE_NULLABLE buffer);

/// Ends an element's life, committed or not. While it is locked, it is gone for look-ups at once and its bytes stay until the
/// last unlock. Returns 0, EINVAL (NULL), ESTALE. Cost: no system call, but for one when the slab's last element goes (with
/// `defers_wipes` for all of sixteen such slabs, a call for each run of neighbours); in immediate mode an offer, if it is due.
int purgeable_heap_free(purgeable_heap_t *PURGEABLE_NULLABLE heap, purgeable_reference_t reference);

/// Whether content was lost: looks at every witness, without locking. Outcomes and errors as `purgeable_heap_read`, but for
/// ENOBUFS.
PURGEABLE_MUST_USE
purgeable_outcome_t purgeable_heap_check(purgeable_heap_t *PURGEABLE_NULLABLE heap, purgeable_reference_t reference);

/// As `purgeable_heap_check`. Intact: also copies the element's first bytes, `capacity_bytes` or as many as it has, and
/// `*length_bytes` gets the length of all of it. Errors, signals and forks as `purgeable_heap_read`; ENOBUFS never.
PURGEABLE_MUST_USE
purgeable_outcome_t purgeable_heap_read_start(purgeable_heap_t *PURGEABLE_NULLABLE heap, purgeable_reference_t reference,
                                              void *PURGEABLE_NULLABLE buffer, size_t capacity_bytes,
                                              size_t *PURGEABLE_NULLABLE length_bytes);

/// The payload's length in bytes. Intact also where only other pages of the element than its header's are gone; discarded (the
/// length went with the header), or error: EINVAL (NULL), ESTALE.
PURGEABLE_MUST_USE
purgeable_outcome_t purgeable_heap_length_bytes(purgeable_heap_t *PURGEABLE_NULLABLE heap, purgeable_reference_t reference,
                                          size_t *PURGEABLE_NULLABLE length_bytes);

/// The tag given at allocation, also of discarded content. Returns 0, EINVAL (NULL), ESTALE, ENOTSUP (the heap keeps none).
PURGEABLE_MUST_USE
int purgeable_heap_tag(purgeable_heap_t *PURGEABLE_NULLABLE heap, purgeable_reference_t reference,
                       uint64_t *PURGEABLE_NULLABLE tag);

// MARK: Upkeep

/// Offers everything idle that is not on offer yet: stream by stream in order of creation, each from its oldest slab, neighbours
/// merged; before that, what an earlier call offered for the first time is offered again, because one offer skips pages.
///
/// Of a slab that is still being filled the pages in front of the one being filled go on offer. That page follows when nothing
/// was stored in the stream since the call before: the next element begins a fresh page then. Where stores come seldom and few,
/// so that each would take a page, it takes up to 8 calls without a store. `*offered_bytes` (may be NULL) gets how much. Returns
/// 0, EINVAL, or the first errno of madvise (the rest is still offered). What the kernel has refused is tried again by the next
/// two calls, and then after 2, 4, 8 calls and so on, 512 at most.
int purgeable_heap_offer_idle(purgeable_heap_t *PURGEABLE_NULLABLE heap, size_t *PURGEABLE_NULLABLE offered_bytes);

/// Whether there is anything that `purgeable_heap_offer_idle` has not looked at. False: it would find no work. An offer or a wipe
/// that the kernel refuses stays work: where memory is mlocked this is true after each call.
bool purgeable_heap_has_pending(const purgeable_heap_t *PURGEABLE_NULLABLE heap);

/// Finds out which pages on offer are gone (mincore; where swap is in use, a look at the elements) and records it.
/// `*discarded_bytes` (may be NULL) gets the bytes of pages newly found gone. The elements stay for their owners to free; those
/// of a page are found by `purgeable_slab_next_element`. Returns 0, EINVAL, ENOMEM or the errno of mincore.
/// Cost: one system call per chunk, and one for each slab of which pages are newly gone; 1 ms per GiB on offer.
int purgeable_heap_sweep(purgeable_heap_t *PURGEABLE_NULLABLE heap, size_t *PURGEABLE_NULLABLE discarded_bytes);

/// Has the kernel discard what is on offer now (MADV_PAGEOUT), slab by slab, until `wanted_bytes` or a little more are gone: what
/// shortage would do, on demand. For demonstrations and tests; needs no rights, no memory group and no swap.
///
/// `*hand` (NULL: the first slab) says where to begin, 0 at first, and is moved to where it stopped: calls in a row take slabs in
/// turn, all round. `*discarded_bytes` (may be NULL). Nothing is recorded: losses are found out as after any discard, and what is
/// locked meanwhile is not lost. Returns 0, EINVAL (a NULL `heap`; a kernel that knows no MADV_PAGEOUT, before 5.4), ENOMEM or
/// another errno of madvise or mincore. Cost: three system calls for each slab on offer.
int purgeable_heap_page_out(purgeable_heap_t *PURGEABLE_NULLABLE heap, size_t wanted_bytes, uint32_t *PURGEABLE_NULLABLE hand,
                            size_t *PURGEABLE_NULLABLE discarded_bytes);

/// Gives back what can be had without losing anything: sealed slabs without living elements, and with a `moved` callback the room
/// in slabs of stream 0 that are less than half alive. The slab that a stream is filling stays; `purgeable_stream_seal` seals it.
/// `*given_back_bytes` (may be NULL). Returns 0 or EINVAL.
int purgeable_heap_trim(purgeable_heap_t *PURGEABLE_NULLABLE heap, size_t *PURGEABLE_NULLABLE given_back_bytes);

/// Changes the limit of what may be locked (0 for none). What is locked stays so; locks are refused until enough is unlocked.
/// Returns 0 or EINVAL.
int purgeable_heap_set_locked_byte_limit(purgeable_heap_t *PURGEABLE_NULLABLE heap, size_t byte_limit);

/// Changes the limit (0 for none). No element is freed, and empty slabs that are kept go back where the limit leaves them no
/// room. Allocations that need a fresh slab fail until enough is given back. With `moved` all do, and a trim compacts what is
/// held above it, too. Returns 0 or EINVAL.
int purgeable_heap_set_byte_limit(purgeable_heap_t *PURGEABLE_NULLABLE heap, size_t byte_limit);

/// A heap's bytes by state, and what happened to the heap since it was made.
///
/// An offer passes over pages that wait in the batch of another processor than the caller's. So pages that several threads
/// filled, or another processor than the one that offers, count as offered from their second offer on. `LazyFree` in smaps is
/// lower by the pages on their way to the kernel's list: up to 31 for each processor. Resident memory is the Rss of the heap's
/// mappings in smaps, but for a page or two of each large element that was looked at after it was lost.
typedef struct purgeable_heap_statistics {
  /// The bytes by state.
  purgeable_memory_use_t memory;
  /// Living elements, discarded ones included.
  uint64_t element_count;
  /// Address space.
  uint64_t mapped_bytes;
  /// Slabs in use.
  uint64_t slab_count;
  /// So far: slabs that ended: given back to the system, or kept (`kept_bytes`).
  uint64_t given_back_slab_count;
  /// So far: elements moved.
  uint64_t moved_element_count;
  /// So far: unlocks without a lock.
  uint64_t unbalanced_unlock_count;
  /// So far: offers that the kernel refused.
  uint64_t refused_offer_count;
  /// Of the held: empty slabs that the heap keeps, to fill them again without a system call.
  uint64_t kept_bytes;
} purgeable_heap_statistics_t;

/// Fills in the statistics. Returns 0, EINVAL, ENOMEM (no room for mincore's answers, a byte for each page of a chunk), or the
/// errno of mincore. Where the kernel was not asked or refused, `memory.resident_bytes` is 0, all pages of large elements that
/// were lost count as discarded, and the rest is right. Cost: a walk over the slabs and one mincore per chunk.
int purgeable_heap_statistics(purgeable_heap_t *PURGEABLE_NULLABLE heap,
                              purgeable_heap_statistics_t *PURGEABLE_NULLABLE statistics);

/// What was given back to the system since creation, in bytes of slabs. One atomic load; 0 for NULL.
uint64_t purgeable_heap_given_back_bytes(const purgeable_heap_t *PURGEABLE_NULLABLE heap);

/// The slab bytes that count against the limit: what is held, less the pages of it that are known to be gone (found by a sweep or
/// a touch), which take no memory, and less the empty slabs that are kept, which make room for whatever is allocated next. The
/// limit holds for both together. Three atomic loads; 0 for NULL.
uint64_t purgeable_heap_charged_bytes(const purgeable_heap_t *PURGEABLE_NULLABLE heap);

/// The slab bytes held now, gone or not, and empty slabs that are kept. A slab of which the kernel took no page is kept
/// when it ends, off offer, and filled again as it is: a sixteenth of the slabs in use, 16 slabs and 1 MiB at most. Upkeep,
/// trims, giving back in bulk, `page_out`, and what would otherwise exceed the limit, give them back. One atomic load; 0 for
/// NULL.
uint64_t purgeable_heap_held_bytes(const purgeable_heap_t *PURGEABLE_NULLABLE heap);

/// The heap's bookkeeping outside of slabs now, in bytes. One atomic load; 0 for NULL.
uint64_t purgeable_heap_ordinary_bytes(const purgeable_heap_t *PURGEABLE_NULLABLE heap);

PURGEABLE_NONNULL_END
PURGEABLE_PUBLIC_END
#ifdef __cplusplus
}
#endif

#endif
