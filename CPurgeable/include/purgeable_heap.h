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
/// unless they say otherwise. A forked child finds every element gone (ESTALE) and the heap empty and usable.
#ifndef PURGEABLE_HEAP_H
#define PURGEABLE_HEAP_H

#include "purgeable_base.h"

#ifdef __cplusplus
extern "C" {
#endif
PURGEABLE_NONNULL_BEGIN

typedef struct purgeable_heap purgeable_heap_t;

/// Names an element: its place, in units of 16 bytes from the heap's beginning, and the generation of its slab.
/// All zero names nothing. A plain value: copy and compare it freely.
typedef struct purgeable_reference {
  uint64_t place;
  uint64_t generation;
} purgeable_reference_t;

/// Names a sequence of slabs in order of birth. 0 is the stream that every heap has.
typedef uint32_t purgeable_stream_t;

/// Names a slab during one of its lives. All zero names nothing.
typedef struct purgeable_slab {
  uint32_t index;
  uint32_t generation;
} purgeable_slab_t;

enum {
  /// The bytes that a place counts, and the alignment of every element's header; payloads are aligned to 8 bytes.
  PURGEABLE_GRANULE_BYTES = 16,
  /// The header in front of every payload.
  PURGEABLE_HEADER_BYTES = 8,
};

/// The largest element: 4 GiB less one chunk.
#define PURGEABLE_ELEMENT_BYTES_MAX ((size_t)0xFFFFFFFFu - ((size_t)64 << 20))

/// An owner's answer when an element was copied to a new place: exchange the old reference for the new one wherever the owner
/// keeps it, by compare-exchange, and say true; or say false, and the copy is freed and the old place stays. Called outside the
/// heap's mutexes; may call the heap. `tag` is 0 unless the heap keeps tags. `bytes` is the copy, readable during the call.
typedef bool (*purgeable_moved_t)(void *PURGEABLE_NULLABLE context, purgeable_reference_t from, purgeable_reference_t to,
                                  uint64_t tag, const void *bytes, size_t length_bytes);

typedef struct purgeable_heap_options {
  /// The most bytes of slabs to hold at a time, 0 for no limit. Above it an allocation fails with ENOMEM.
  size_t limit_bytes;
  /// A power of two of 1 to 64 pages; 0 chooses: 4 pages for a limit below 4 MiB, 64 from 1 GiB on, else 16.
  size_t slab_bytes;
  /// A power of two, at least 4 slabs; 0 chooses: 64 MiB, less for a small limit.
  size_t chunk_bytes;
  purgeable_offering_t offering;
  /// The most payload to have locked at a time, each lock counted, 0 for no limit. Above it a lock is refused with EAGAIN.
  size_t locked_limit_bytes;
  /// Keep each element's tag in ordinary memory (10 bytes an element), where it survives the loss of the element's page. The
  /// slab size is 1 MiB at most then.
  bool keeps_tags;
  /// Lets the heap compact stream 0 by itself: slabs less than half alive are copied together when a fresh slab is needed.
  purgeable_moved_t PURGEABLE_NULLABLE moved;
  void *PURGEABLE_NULLABLE context;
} purgeable_heap_options_t;

// MARK: The heap

/// Makes an empty heap; `options` may be NULL. No memory is mapped until the first allocation, but for a page of control words.
/// Returns 0, EINVAL (a NULL `heap`, sizes that are no powers of two or out of range, an unknown mode), ENOMEM.
int purgeable_heap_create(const purgeable_heap_options_t *PURGEABLE_NULLABLE options,
                          purgeable_heap_t *PURGEABLE_NULLABLE *PURGEABLE_NULLABLE heap);

/// Unmaps everything. Like free(): nobody may use the heap, its elements or pointers into them any more. 0, or EINVAL for NULL.
int purgeable_heap_destroy(purgeable_heap_t *PURGEABLE_NULLABLE heap);

/// The slab size in bytes that was chosen; 0 for NULL.
size_t purgeable_heap_slab_bytes(const purgeable_heap_t *PURGEABLE_NULLABLE heap);

// MARK: Elements

/// Makes room for `length_bytes` in stream 0. The caller writes `*bytes` (zeros so far, 8-aligned) and then commits or frees.
/// Until then the slab is kept off offer.
///
/// Returns 0; EINVAL (NULL, length 0), EFBIG (above PURGEABLE_ELEMENT_BYTES_MAX), ENOMEM (the limit, memory, address space),
/// EAGAIN (too many elements of one slab are being written at once). On error nothing is changed.
/// Cost: no system call, but for an mmap per chunk, and an madvise per slab in immediate mode.
int purgeable_heap_allocate(purgeable_heap_t *PURGEABLE_NULLABLE heap, size_t length_bytes,
                            purgeable_reference_t *PURGEABLE_NULLABLE reference,
                            void *PURGEABLE_NULLABLE *PURGEABLE_NULLABLE bytes);

/// As `purgeable_heap_allocate`, in a stream of one's own and with a tag (ignored unless the heap keeps tags). EINVAL also for
/// an unknown stream.
int purgeable_heap_allocate_in(purgeable_heap_t *PURGEABLE_NULLABLE heap, purgeable_stream_t stream, size_t length_bytes,
                               uint64_t tag, purgeable_reference_t *PURGEABLE_NULLABLE reference,
                               void *PURGEABLE_NULLABLE *PURGEABLE_NULLABLE bytes);

/// Ends the writing: takes the witnesses and makes the element known to look-ups. Only the thread that allocated, or one that
/// synchronised with it, may commit. Returns 0, EINVAL (NULL), ESTALE (not an element that is being written).
int purgeable_heap_commit(purgeable_heap_t *PURGEABLE_NULLABLE heap, purgeable_reference_t reference);

/// Locks: `*bytes` stay in place, unchanged, until the matching unlock, whatever the kernel needs. Either out-parameter may be NULL.
/// Intact, discarded, or error with errno: EINVAL (NULL heap), ESTALE, EOVERFLOW (count at its maximum), EAGAIN (it would exceed
/// the limit of what may be locked; copying reads still work). A refused lock leaves everything as it was, offers included.
/// Cost: one atomic operation for the slab and one for each page the element touches; no system call.
purgeable_outcome_t purgeable_heap_lock(purgeable_heap_t *PURGEABLE_NULLABLE heap, purgeable_reference_t reference,
                                        const void *PURGEABLE_NULLABLE *PURGEABLE_NULLABLE bytes,
                                        size_t *PURGEABLE_NULLABLE length_bytes);

/// Gives a lock back. Returns 0, EINVAL (NULL), ESTALE (wrong generation: also after a fork), EPERM (nothing in that slab is
/// locked). The count is the slab's: an unlock too many while a neighbour is locked is the caller's error and goes unnoticed.
/// An element that was freed while it was locked is unlocked with the same reference.
int purgeable_heap_unlock(purgeable_heap_t *PURGEABLE_NULLABLE heap, purgeable_reference_t reference);

/// Copies an element without locking: no system call, nothing dirtied, the offer stands. `*length_bytes` gets its length.
/// Intact: `buffer` holds it. Discarded, busy: the buffer's content is unspecified. Error, with errno: EINVAL (NULL), ESTALE,
/// ENOBUFS (`capacity_bytes` is too small; `*length_bytes` says what is needed). May be called in a signal handler.
purgeable_outcome_t purgeable_heap_read(purgeable_heap_t *PURGEABLE_NULLABLE heap, purgeable_reference_t reference,
                                        void *PURGEABLE_NULLABLE buffer, size_t capacity_bytes,
                                        size_t *PURGEABLE_NULLABLE length_bytes);

/// As `purgeable_heap_read`, for a part: exactly `length_bytes` from `offset_bytes`; ERANGE outside of the element.
purgeable_outcome_t purgeable_heap_read_part(purgeable_heap_t *PURGEABLE_NULLABLE heap, purgeable_reference_t reference,
                                             size_t offset_bytes, size_t length_bytes, void *PURGEABLE_NULLABLE buffer);

/// Ends an element's life, committed or not. While it is locked, it is gone for look-ups at once and its bytes stay until the
/// last unlock. Returns 0, EINVAL (NULL), ESTALE. Cost: no system call, but for one when the slab's last element goes.
int purgeable_heap_free(purgeable_heap_t *PURGEABLE_NULLABLE heap, purgeable_reference_t reference);

/// Whether content was lost: looks at every witness. Outcomes and errors as `purgeable_heap_lock`, without locking.
purgeable_outcome_t purgeable_heap_check(purgeable_heap_t *PURGEABLE_NULLABLE heap, purgeable_reference_t reference);

/// The payload's length in bytes. Intact, discarded (the length went with the header), or error: EINVAL (NULL), ESTALE.
purgeable_outcome_t purgeable_heap_length(purgeable_heap_t *PURGEABLE_NULLABLE heap, purgeable_reference_t reference,
                                          size_t *PURGEABLE_NULLABLE length_bytes);

/// The tag given at allocation, also of discarded content. Returns 0, EINVAL (NULL), ESTALE, ENOTSUP (the heap keeps none).
int purgeable_heap_tag(purgeable_heap_t *PURGEABLE_NULLABLE heap, purgeable_reference_t reference,
                       uint64_t *PURGEABLE_NULLABLE tag);

// MARK: Streams and slabs

/// Makes a stream. Returns 0, EINVAL (NULL), ENOMEM (a heap has at most PURGEABLE_STREAM_COUNT_MAX).
int purgeable_stream_create(purgeable_heap_t *PURGEABLE_NULLABLE heap, purgeable_stream_t *PURGEABLE_NULLABLE stream);
#define PURGEABLE_STREAM_COUNT_MAX 1024u

/// Seals the stream's open slab, so that the next allocation begins a fresh one. Returns 0 or EINVAL.
int purgeable_stream_seal(purgeable_heap_t *PURGEABLE_NULLABLE heap, purgeable_stream_t stream);

/// The slabs of a stream, oldest first: fills `slabs` with up to `capacity`, `*count` gets how many there are.
/// Returns 0, EINVAL. Cost: linear in the slabs.
int purgeable_stream_slabs(purgeable_heap_t *PURGEABLE_NULLABLE heap, purgeable_stream_t stream,
                           purgeable_slab_t *PURGEABLE_NULLABLE slabs, size_t capacity, size_t *PURGEABLE_NULLABLE count);

/// The youngest slab of a stream. ENOENT where there is none.
int purgeable_stream_youngest(purgeable_heap_t *PURGEABLE_NULLABLE heap, purgeable_stream_t stream,
                              purgeable_slab_t *PURGEABLE_NULLABLE slab);

/// The oldest slab of a stream, or the next younger one after `slab`. ENOENT where there is none, ESTALE when `slab` is gone.
int purgeable_stream_oldest(purgeable_heap_t *PURGEABLE_NULLABLE heap, purgeable_stream_t stream,
                            purgeable_slab_t *PURGEABLE_NULLABLE slab);
int purgeable_slab_next(purgeable_heap_t *PURGEABLE_NULLABLE heap, purgeable_slab_t slab,
                        purgeable_slab_t *PURGEABLE_NULLABLE next);

typedef struct purgeable_slab_information {
  purgeable_stream_t stream;
  /// Elements committed and not freed, and their payload in bytes (less what is known to be lost).
  uint32_t living_count;
  uint64_t living_bytes;
  /// Bytes of the slab that were ever written in this life, in whole pages, and how many of its pages are known to be gone.
  uint64_t held_bytes;
  uint32_t lost_page_count;
  uint32_t lock_count;
  /// Offers in a row that its holders kept away although pages were waiting; 255 at most, then on from 248.
  uint32_t busy_rounds;
  /// Still being filled.
  bool is_open;
  /// One element in a page run of its own.
  bool is_large;
} purgeable_slab_information_t;

/// Returns 0, EINVAL (NULL), ESTALE (the slab's life is over).
int purgeable_slab_information(purgeable_heap_t *PURGEABLE_NULLABLE heap, purgeable_slab_t slab,
                               purgeable_slab_information_t *PURGEABLE_NULLABLE information);

/// The next living element of a slab at or after `*cursor` (start with 0; moved past the element found), in order of birth.
/// The element may be discarded. ENOENT at the end, ESTALE when the slab is gone, EINVAL. Needs no lock; what is freed meanwhile
/// may or may not be seen.
int purgeable_slab_next_element(purgeable_heap_t *PURGEABLE_NULLABLE heap, purgeable_slab_t slab,
                                uint32_t *PURGEABLE_NULLABLE cursor, purgeable_reference_t *PURGEABLE_NULLABLE reference);

/// Copies one element to the end of `stream` and has `moved` exchange the references; on true the old one is freed.
/// The copy is made without locking: the old page is not dirtied. Returns 0, EBUSY (the owner refused: nothing is changed),
/// ENODATA (discarded), ESTALE, EINVAL, ENOMEM.
int purgeable_heap_move(purgeable_heap_t *PURGEABLE_NULLABLE heap, purgeable_reference_t reference, purgeable_stream_t stream,
                        purgeable_moved_t PURGEABLE_NULLABLE moved, void *PURGEABLE_NULLABLE context,
                        purgeable_reference_t *PURGEABLE_NULLABLE to);

/// Copies all living elements of a slab to the end of `stream` (`purgeable_heap_move` for each) and gives the slab back.
/// Discarded elements stay for their owner to free; `*staying` (may be NULL) gets how many elements stay for whatever reason.
/// Returns 0 (given back, or nothing but locks keeps it: then the last unlock gives it back), EBUSY (elements stay), ESTALE,
/// EINVAL, ENOMEM. The slab is sealed by this.
int purgeable_slab_evacuate(purgeable_heap_t *PURGEABLE_NULLABLE heap, purgeable_slab_t slab, purgeable_stream_t stream,
                            purgeable_moved_t PURGEABLE_NULLABLE moved, void *PURGEABLE_NULLABLE context,
                            uint32_t *PURGEABLE_NULLABLE staying);

/// Gives a slab without living elements back to the system (MADV_DONTNEED): the slab is claimed, its generation raised, its pages
/// wiped, in this order. Returns 0 (also when locks delay it to the last unlock), EBUSY (elements live), ESTALE, EINVAL.
int purgeable_slab_give_back(purgeable_heap_t *PURGEABLE_NULLABLE heap, purgeable_slab_t slab);

/// Between these two the wipes of slabs that are given back wait for each other, so that neighbours are wiped by one call to the
/// kernel: for whoever gives back many. Such slabs count as given back at once; their memory follows when they are a quarter of all (256 at
/// least), when somebody offers or trims, and at the end. Calls of several threads may overlap.
void purgeable_heap_begin_giving_back(purgeable_heap_t *PURGEABLE_NULLABLE heap);
void purgeable_heap_end_giving_back(purgeable_heap_t *PURGEABLE_NULLABLE heap);

/// Frees every living element of a slab, as `purgeable_heap_free` would one after the other, and seals it: with the last lock it is
/// given back, or at once. `*freed` (may be NULL) gets how many elements that were. Elements that are being written are not
/// touched. Returns 0, ESTALE, EINVAL.
int purgeable_slab_free_elements(purgeable_heap_t *PURGEABLE_NULLABLE heap, purgeable_slab_t slab,
                                 uint32_t *PURGEABLE_NULLABLE freed);

/// Puts a sealed slab at the young end of another stream, or of its own, without copying. Returns 0, EBUSY (open), ESTALE, EINVAL.
int purgeable_slab_restream(purgeable_heap_t *PURGEABLE_NULLABLE heap, purgeable_slab_t slab, purgeable_stream_t stream);

/// The slab that an element lies in. Returns 0, EINVAL (NULL), ESTALE.
int purgeable_slab_of(purgeable_heap_t *PURGEABLE_NULLABLE heap, purgeable_reference_t reference,
                      purgeable_slab_t *PURGEABLE_NULLABLE slab);

// MARK: Upkeep

/// Offers everything idle that is not on offer yet: stream by stream in order of creation, each from its oldest slab, neighbours
/// merged; before that, what an earlier call offered for the first time is offered again, because one offer skips pages.
/// `*offered_bytes` (may be NULL) gets how much. Returns 0, EINVAL, or the first errno of madvise (the rest is still offered).
int purgeable_heap_offer_idle(purgeable_heap_t *PURGEABLE_NULLABLE heap, size_t *PURGEABLE_NULLABLE offered_bytes);

/// Whether, since this was last asked, some slab was found locked by eight offers in a row, or by eight more: while its holders
/// overlap, no page that any of them used can be offered again. A heap with a `moved` callback and no stream but 0 moves the
/// elements on such pages by itself, when less than half the slab is in use; a policy asks here, finds the slab by its
/// `busy_rounds` (a multiple of 8) and moves what `purgeable_heap_is_on_offer` denies. One atomic exchange. False for NULL.
bool purgeable_heap_take_busy(purgeable_heap_t *PURGEABLE_NULLABLE heap);

/// Whether the page that an element begins on is on offer, as far as we did it. One load; false for NULL and for foreign places.
bool purgeable_heap_is_on_offer(const purgeable_heap_t *PURGEABLE_NULLABLE heap, uint64_t place);

/// Whether `purgeable_heap_offer_idle` would find work.
bool purgeable_heap_has_pending(const purgeable_heap_t *PURGEABLE_NULLABLE heap);

/// Finds out which pages on offer are gone (mincore; where swap is in use, a look at the elements) and records it.
/// `*lost_bytes` (may be NULL) gets the bytes of pages newly found gone. The elements stay for their owners to free; those
/// of a page are found by `purgeable_slab_next_element`. Returns 0, EINVAL, ENOMEM or the errno of mincore.
/// Cost: one system call per chunk; 1 ms per GiB on offer.
int purgeable_heap_sweep(purgeable_heap_t *PURGEABLE_NULLABLE heap, size_t *PURGEABLE_NULLABLE lost_bytes);

/// Has the kernel discard what is on offer now (MADV_PAGEOUT), slab by slab, until `limit_bytes` or a little more are gone: what
/// shortage would do, on demand. For demonstrations and tests; needs no rights, no memory group and no swap.
///
/// `*hand` (NULL: the first slab) says where to begin, 0 at first, and is moved to where it stopped: calls in a row take slabs in
/// turn, all round. `*discarded_bytes` (may be NULL). Nothing is recorded: losses are found out as after any discard, and what is
/// locked meanwhile is not lost. Returns 0, EINVAL (a NULL `heap`; a kernel that knows no MADV_PAGEOUT, before 5.4), ENOMEM or
/// another errno of madvise or mincore. Cost: three system calls for each slab on offer.
int purgeable_heap_page_out(purgeable_heap_t *PURGEABLE_NULLABLE heap, size_t limit_bytes, uint32_t *PURGEABLE_NULLABLE hand,
                            size_t *PURGEABLE_NULLABLE discarded_bytes);

/// Gives back what can be had without losing anything: slabs without living elements, and with a `moved` callback the room in
/// slabs of stream 0 that are less than half alive. `*freed_bytes` (may be NULL). Returns 0, EINVAL or ENOMEM.
int purgeable_heap_trim(purgeable_heap_t *PURGEABLE_NULLABLE heap, size_t *PURGEABLE_NULLABLE freed_bytes);

/// Changes the limit of what may be locked (0 for none). What is locked stays so; locks are refused until enough is unlocked.
/// Returns 0 or EINVAL.
int purgeable_heap_set_locked_limit(purgeable_heap_t *PURGEABLE_NULLABLE heap, size_t limit_bytes);

/// Changes the limit (0 for none). Nothing is freed; allocations fail until enough is given back. Returns 0 or EINVAL.
int purgeable_heap_set_limit(purgeable_heap_t *PURGEABLE_NULLABLE heap, size_t limit_bytes);

/// A heap's bytes by state.
typedef struct purgeable_heap_statistics {
  uint64_t element_count;
  /// Payload of living elements, less what is known to be lost.
  uint64_t payload_bytes;
  /// Payload of locked elements, each lock counted; elements being written count as locked.
  uint64_t locked_bytes;
  /// Slab bytes held: written in this life, in whole pages, gone or not.
  uint64_t held_bytes;
  /// Of the held: on offer and not known to be gone. `LazyFree` in smaps is lower by what is still on its way to the kernel's list:
  /// up to 31 pages for each processor.
  uint64_t offered_bytes;
  /// Of the held: known to be gone.
  uint64_t discarded_bytes;
  /// In memory now (mincore): the Rss of the heap's mappings in /proc/self/smaps, but for a page or two of each large element that
  /// was looked at after it was lost.
  uint64_t resident_bytes;
  /// Bookkeeping outside of slabs.
  uint64_t ordinary_bytes;
  uint64_t mapped_bytes;
  uint64_t slab_count;
  /// Since creation: payload found discarded, slabs given back and their bytes, elements moved, unlocks without a lock, locks
  /// refused for their limit, offers refused.
  uint64_t discarded_payload_bytes;
  uint64_t given_back_count;
  uint64_t given_back_bytes;
  uint64_t moved_count;
  uint64_t unbalanced_unlock_count;
  uint64_t refused_lock_count;
  uint64_t refused_offer_count;
} purgeable_heap_statistics_t;

/// Fills in the statistics. Returns 0, EINVAL, or the errno of mincore (then `resident_bytes` is 0 and the rest is right).
/// Cost: a walk over the slabs and one mincore per chunk.
int purgeable_heap_statistics(purgeable_heap_t *PURGEABLE_NULLABLE heap,
                              purgeable_heap_statistics_t *PURGEABLE_NULLABLE statistics);

/// What was given back to the system since creation, in bytes of slabs. One atomic load; 0 for NULL.
uint64_t purgeable_heap_given_back_bytes(const purgeable_heap_t *PURGEABLE_NULLABLE heap);

/// The slab bytes counted against the limit and the ordinary memory, now. Cheap: two atomic loads. 0 for NULL.
uint64_t purgeable_heap_held_bytes(const purgeable_heap_t *PURGEABLE_NULLABLE heap);
uint64_t purgeable_heap_ordinary_bytes(const purgeable_heap_t *PURGEABLE_NULLABLE heap);

// MARK: For owners that keep places only
// An index that stores 8-byte slots keeps the place and asks for the generation: load the slot, ask, load the slot again. If it
// still names the same place, the generation is the element's. These do not check the directory of living elements: the owner's
// slot says whether an element lives.

/// Asks the CPU to fetch memory that is about to be looked at.
__attribute__((unused)) static inline void purgeable_prefetch(const void *address) { __builtin_prefetch(address); }

/// The generation of the slab around a place, or 0 when there is none. One load; also asks for the element's first bytes.
uint32_t purgeable_heap_generation(const purgeable_heap_t *PURGEABLE_NULLABLE heap, uint64_t place);

/// Reads an element whose payload begins with `prefix_bytes` known bytes: compares them, and only if they are equal copies up to
/// `capacity_bytes` of what follows after `skip_bytes` more. `*rest_bytes` gets how much that is; a capacity below it copies
/// nothing and answers intact. Outcomes: intact (`*matches` says whether the prefix was equal), discarded, busy (the generation
/// has changed: look again). Never sets errno. All pointers must be valid. May be called in a signal handler.
purgeable_outcome_t purgeable_heap_read_matching(purgeable_heap_t *heap, purgeable_reference_t reference, const void *prefix,
                                                 size_t prefix_bytes, size_t skip_bytes, void *PURGEABLE_NULLABLE buffer,
                                                 size_t capacity_bytes, size_t *rest_bytes, bool *matches);

/// Has the processor fetch the beginning of an element that will be read soon. Any place will do.
void purgeable_heap_prefetch(const purgeable_heap_t *heap, uint64_t place);

/// The stream of the slab around a place. One load; right for as long as the owner keeps an element there.
purgeable_stream_t purgeable_heap_stream_at(const purgeable_heap_t *heap, uint64_t place);

/// Whether any page of any slab in use is known to be gone. One load.
bool purgeable_heap_has_losses(const purgeable_heap_t *heap);

/// Goes through an index of 8-byte slots, `place_bits` low bits of each being a place + 1 (0: an empty slot), and notes in `found`
/// the numbers of those, `capacity` at most, whose page is known to be gone, or that may reach into such a page. Starts at `*cursor` and moves it; the end is
/// reached when it is `slot_count`. Returns how many were noted. Cost: about 1 ns a slot. The slots may change meanwhile.
size_t purgeable_heap_find_losses(const purgeable_heap_t *heap, const void *slots, size_t slot_count, uint32_t place_bits,
                                  size_t *cursor, uint32_t *found, size_t capacity);

/// Whether the page that holds an element's header is known to be gone (by a sweep or a touch). A bit in ordinary memory.
bool purgeable_heap_page_is_lost(const purgeable_heap_t *heap, uint64_t place);

/// Whether any page of the slab around a place is known to be gone. A bit in ordinary memory, dense enough for whole-index passes.
bool purgeable_heap_slab_has_losses(const purgeable_heap_t *heap, uint64_t place);

PURGEABLE_NONNULL_END
#ifdef __cplusplus
}
#endif

#endif
