// SPDX-License-Identifier: MIT
/// Streams, slabs and places of a heap: for owners that decide which elements stay, and in which order memory goes back.
///
///   stream   oldest [slab][slab][slab] ... [open slab] youngest          allocate_in, move, evacuate: at the young end
///
/// A program that only stores elements needs `purgeable_heap.h` alone. An owner with an order of its own (a cache) puts elements
/// into streams, walks a stream from its oldest slab, moves what is to stay, and gives whole slabs back.
#ifndef PURGEABLE_SLABS_H
#define PURGEABLE_SLABS_H

#include "purgeable_heap.h"

#ifdef __cplusplus
extern "C" {
#endif
PURGEABLE_PUBLIC_BEGIN
PURGEABLE_NONNULL_BEGIN

/// Names a slab during one of its lives. All zero names nothing.
typedef struct purgeable_slab {
  /// Which slab of the heap.
  uint32_t index;
  /// Which of the slab's lives.
  uint32_t generation;
} purgeable_slab_t;

// MARK: Streams

/// The most streams that a heap has, stream 0 included.
#define PURGEABLE_STREAM_COUNT_MAX 1024u

/// Makes a stream. Returns 0, EINVAL (NULL), ENOMEM (a heap has at most PURGEABLE_STREAM_COUNT_MAX).
PURGEABLE_MUST_USE
int purgeable_stream_create(purgeable_heap_t *PURGEABLE_NULLABLE heap, purgeable_stream_t *PURGEABLE_NULLABLE stream);

/// Seals the stream's open slab, so that the next allocation begins a fresh one. Returns 0 or EINVAL.
int purgeable_stream_seal(purgeable_heap_t *PURGEABLE_NULLABLE heap, purgeable_stream_t stream);

/// Keeps a stream's slabs off offer from now on, or lets them go on offer again: with the next `purgeable_heap_offer_idle` or
/// another offer. For elements that have to stay. What is on offer already, as of a slab that comes from another stream, stays so
/// until it is locked. A slab that is being offered at this moment may be offered once. Returns 0 or EINVAL.
int purgeable_stream_withhold(purgeable_heap_t *PURGEABLE_NULLABLE heap, purgeable_stream_t stream, bool withholds);

/// The slabs of a stream, oldest first: fills `slabs` with up to `capacity`, `*count` gets how many there are.
/// Returns 0, EINVAL. Cost: linear in the slabs.
PURGEABLE_MUST_USE
int purgeable_stream_slabs(purgeable_heap_t *PURGEABLE_NULLABLE heap, purgeable_stream_t stream,
                           purgeable_slab_t *PURGEABLE_NULLABLE slabs, size_t capacity, size_t *PURGEABLE_NULLABLE count);

/// The youngest slab of a stream. ENOENT where there is none.
PURGEABLE_MUST_USE
int purgeable_stream_youngest(purgeable_heap_t *PURGEABLE_NULLABLE heap, purgeable_stream_t stream,
                              purgeable_slab_t *PURGEABLE_NULLABLE slab);

/// The oldest slab of a stream. ENOENT where there is none.
PURGEABLE_MUST_USE
int purgeable_stream_oldest(purgeable_heap_t *PURGEABLE_NULLABLE heap, purgeable_stream_t stream,
                            purgeable_slab_t *PURGEABLE_NULLABLE slab);

/// The next younger slab of the same stream. ENOENT where there is none, ESTALE when `slab` is gone.
PURGEABLE_MUST_USE
int purgeable_slab_next(purgeable_heap_t *PURGEABLE_NULLABLE heap, purgeable_slab_t slab,
                        purgeable_slab_t *PURGEABLE_NULLABLE next);

// MARK: Slabs

/// The slab that an element lies in, from its allocation on. Asks for the slab alone: a reference to an element that was freed
/// answers 0 as well, as long as the slab lives. Returns 0, EINVAL (NULL), ESTALE (the slab's life is over).
PURGEABLE_MUST_USE
int purgeable_slab_of(purgeable_heap_t *PURGEABLE_NULLABLE heap, purgeable_reference_t reference,
                      purgeable_slab_t *PURGEABLE_NULLABLE slab);

/// One slab, as one look finds it.
typedef struct purgeable_slab_information {
  /// The stream that the slab belongs to.
  purgeable_stream_t stream;
  /// Elements committed and not freed.
  uint32_t element_count;
  /// The payload of those elements, less what is known to be lost.
  uint64_t payload_bytes;
  /// Bytes that were ever written in this life, in whole pages.
  uint64_t held_bytes;
  /// Pages known to be gone.
  uint32_t lost_page_count;
  /// Locks held on elements of the slab.
  uint32_t lock_count;
  /// Offers in a row that its holders kept away although pages were waiting; 255 at most, then on from 248.
  uint32_t busy_round_count;
  /// Still being filled.
  bool is_open;
  /// One element in a page run of its own.
  bool is_large;
  /// Granules (16 bytes) in use from the front, living or not.
  uint32_t used_granule_count;
  /// What `purgeable_slab_note_age` noted; 0 for nothing, and where the heap keeps no ages.
  uint64_t first_age, last_age;
} purgeable_slab_information_t;

/// Looks at a slab. Returns 0, EINVAL (NULL), ESTALE (the slab's life is over).
PURGEABLE_MUST_USE
int purgeable_slab_information(purgeable_heap_t *PURGEABLE_NULLABLE heap, purgeable_slab_t slab,
                               purgeable_slab_information_t *PURGEABLE_NULLABLE information);

/// Notes the ages of a slab's first and last element, in whatever unit its owner counts (0 leaves what was noted): with them an
/// owner of several streams can tell which of their oldest slabs is the oldest. A slab begins its life without. Returns 0, EINVAL
/// (NULL, or a heap without `keeps_ages`), ESTALE.
int purgeable_slab_note_age(purgeable_heap_t *PURGEABLE_NULLABLE heap, purgeable_slab_t slab, uint64_t first, uint64_t last);

/// Keeps one slab off offer for the rest of its life, or lets it go on offer again, as `purgeable_stream_withhold` does with all
/// of a stream: a slab is offered where neither is withheld. Returns 0, EINVAL (NULL), ESTALE (the slab's life is over).
int purgeable_slab_withhold(purgeable_heap_t *PURGEABLE_NULLABLE heap, purgeable_slab_t slab, bool withholds);

/// The next living element of a slab at or after `*cursor` (start with 0; moved past the element found), in order of birth.
/// The element may be discarded. ENOENT at the end, ESTALE when the slab is gone, EINVAL. Needs no lock; what is freed meanwhile
/// may or may not be seen.
PURGEABLE_MUST_USE
int purgeable_slab_next_element(purgeable_heap_t *PURGEABLE_NULLABLE heap, purgeable_slab_t slab,
                                uint32_t *PURGEABLE_NULLABLE cursor, purgeable_reference_t *PURGEABLE_NULLABLE reference);

// MARK: Moving

/// Copies one element to the end of `stream` and has `moved` exchange the references; on true the old one is freed.
/// The copy is made without locking: the old page is not dirtied. Returns 0, EBUSY (the owner refused: nothing is changed),
/// ENODATA (discarded), ESTALE, EINVAL, ENOMEM, EAGAIN (too many elements of one slab are being written at once).
PURGEABLE_MUST_USE
int purgeable_heap_move(purgeable_heap_t *PURGEABLE_NULLABLE heap, purgeable_reference_t reference, purgeable_stream_t stream,
                        purgeable_moved_t PURGEABLE_NULLABLE moved, void *PURGEABLE_NULLABLE context,
                        purgeable_reference_t *PURGEABLE_NULLABLE to);

/// Copies all living elements of a slab to the end of `stream` (`purgeable_heap_move` for each) and gives the slab back.
/// Discarded elements stay for their owner to free. With 0 and EBUSY `*staying_count` (may be NULL) is how many elements stay
/// because they are discarded, or because the owner refused.
/// Returns 0 (given back, or nothing but locks keeps it: then the last unlock gives it back), EBUSY (elements stay), ESTALE,
/// EINVAL, ENOMEM, EAGAIN (as `purgeable_heap_move`). The slab is sealed by this.
int purgeable_slab_evacuate(purgeable_heap_t *PURGEABLE_NULLABLE heap, purgeable_slab_t slab, purgeable_stream_t stream,
                            purgeable_moved_t PURGEABLE_NULLABLE moved, void *PURGEABLE_NULLABLE context,
                            uint32_t *PURGEABLE_NULLABLE staying_count);

/// Puts a sealed slab at the young end of another stream, or of its own, without copying. Returns 0, EBUSY (open), ESTALE,
/// EINVAL.
int purgeable_slab_restream(purgeable_heap_t *PURGEABLE_NULLABLE heap, purgeable_slab_t slab, purgeable_stream_t stream);

/// As `purgeable_slab_restream`, at the old end.
int purgeable_slab_restream_oldest(purgeable_heap_t *PURGEABLE_NULLABLE heap, purgeable_slab_t slab, purgeable_stream_t stream);

/// Whether, since this was last asked, some slab was found locked by eight offers in a row, or by eight more: while its holders
/// overlap, no page that any of them used can be offered again. A heap with a `moved` callback and no stream but 0 moves the
/// elements on such pages by itself, when less than half the slab is in use; a policy asks here, finds the slab by its
/// `busy_round_count` (a multiple of 8) and moves the elements that are not on offer. One atomic exchange. False for NULL.
PURGEABLE_MUST_USE
bool purgeable_heap_take_busy(purgeable_heap_t *PURGEABLE_NULLABLE heap);

/// Whether the page that an element begins on has been offered; the kernel may have skipped the page. One load; false for NULL
/// and for foreign places.
bool purgeable_heap_is_on_offer(const purgeable_heap_t *PURGEABLE_NULLABLE heap, uint64_t place);

// MARK: Giving back

/// Gives a slab without living elements back to the system (MADV_DONTNEED): the slab is claimed, its generation raised, its pages
/// wiped, in this order. Where the kernel took none of them, the pages may stay instead, for a slab that begins soon
/// (`purgeable_heap_statistics_t.kept_bytes`). Returns 0 (also when locks delay it to the last unlock), EBUSY (elements live),
/// ESTALE, EINVAL.
int purgeable_slab_give_back(purgeable_heap_t *PURGEABLE_NULLABLE heap, purgeable_slab_t slab);

/// With `defers_wipes`: gives the memory of slabs that have ended back to the system. Called with no mutex held that others wait
/// for. One load where there are none, and while a bulk give-back is under way, which wipes them at its end. NULL does nothing.
void purgeable_heap_wipe_deferred(purgeable_heap_t *PURGEABLE_NULLABLE heap);

/// Begins a bulk give-back, until `purgeable_heap_end_giving_back`: the wipes of slabs that are given back wait for each other,
/// so that one call to the kernel wipes neighbours. Such slabs count as given back at once; their memory follows when they are a
/// quarter of all (256 at least) and 10 ms have passed, when somebody offers or trims, and at the end. Calls of several threads
/// may overlap.
void purgeable_heap_begin_giving_back(purgeable_heap_t *PURGEABLE_NULLABLE heap);

/// Ends a bulk give-back: what waits is wiped now.
void purgeable_heap_end_giving_back(purgeable_heap_t *PURGEABLE_NULLABLE heap);

/// Frees every living element of a slab, as `purgeable_heap_free` would one after the other, and seals it: with the last lock it
/// is given back, or at once. `*freed_count` (may be NULL) counts the elements. Elements that are being written are not touched.
/// Returns 0, ESTALE, EINVAL.
int purgeable_slab_free_elements(purgeable_heap_t *PURGEABLE_NULLABLE heap, purgeable_slab_t slab,
                                 uint32_t *PURGEABLE_NULLABLE freed_count);

// MARK: For owners that keep places only
// An index that stores 8-byte slots keeps the place and asks for the generation: load the slot, ask, load the slot again. If it
// still names the same place, the generation is the element's. These do not check the directory of living elements: the owner's
// slot says whether an element lives.

/// A number of the processor that the calling thread runs on, or was running on a moment ago; 0 where the C library does not
/// tell without a system call. For counters that threads should not share.
uint32_t purgeable_processor_hint(void);

/// Asks the CPU to fetch memory that is about to be looked at.
__attribute__((unused)) static inline void purgeable_prefetch(const void *address) { __builtin_prefetch(address); }

/// The generation of the slab around a place, or 0 when there is none, as in no heap (NULL). One load; also asks for the
/// element's first bytes.
uint32_t purgeable_heap_generation(const purgeable_heap_t *PURGEABLE_NULLABLE heap, uint64_t place);

/// Reads an element whose payload begins with `prefix_bytes` known bytes: compares them, and only if they are equal copies up to
/// `capacity_bytes` of the rest. `*rest_bytes` gets how much that is; a capacity below it copies nothing of it and answers
/// intact. Where `head` is not NULL, a head lies between prefix and rest, and goes to `head` as far as `head_capacity_bytes`
/// reach: a byte, and 8 bytes for each of its lower 7 bits that is set; where the highest bit is set another byte, and as many
/// bytes as it says. Outcomes: intact (`*matches` says whether the prefix was equal), discarded, busy (the generation has
/// changed: look again). Never sets errno. All pointers must be valid. May be called in a signal handler.
PURGEABLE_MUST_USE
purgeable_outcome_t purgeable_heap_read_matching(purgeable_heap_t *heap, purgeable_reference_t reference, const void *prefix,
                                                 size_t prefix_bytes, void *PURGEABLE_NULLABLE head, size_t head_capacity_bytes,
                                                 void *PURGEABLE_NULLABLE buffer, size_t capacity_bytes,
                                                 size_t *rest_bytes, bool *matches);

/// Has the processor fetch the beginning of an element that will be read soon. Any place will do.
void purgeable_heap_prefetch(const purgeable_heap_t *heap, uint64_t place);

/// The stream of the slab around a place. One load; right for as long as the owner keeps an element there.
purgeable_stream_t purgeable_heap_stream_at(const purgeable_heap_t *heap, uint64_t place);

/// Whether any page of any slab in use is known to be gone. One load.
bool purgeable_heap_has_losses(const purgeable_heap_t *heap);

/// Goes through an index of 8-byte slots, `place_bits` low bits of each being a place + 1 (0: an empty slot), and notes in
/// `found` the numbers of those, `capacity` at most, whose page is known to be gone, or that may reach into such a page. Starts
/// at `*cursor` and moves it; the end is reached when it is `slot_count`. Returns how many were noted. Cost: about 1 ns a slot.
/// The slots may change meanwhile. Slots beyond the 2^32nd are not looked at, since `found` cannot name them: pass those of a
/// larger index as a second one.
PURGEABLE_MUST_USE
size_t purgeable_heap_find_losses(const purgeable_heap_t *heap, const void *slots, size_t slot_count, uint32_t place_bits,
                                  size_t *cursor, uint32_t *found, size_t capacity);

/// Whether the page that holds an element's header is known to be gone (by a sweep or a touch). A bit in ordinary memory. True
/// too for a place that is none of the heap's.
bool purgeable_heap_page_is_lost(const purgeable_heap_t *heap, uint64_t place);

/// Whether any page of the slab around a place is known to be gone. A bit in ordinary memory, dense enough for whole-index
/// passes.
bool purgeable_heap_slab_has_losses(const purgeable_heap_t *heap, uint64_t place);

PURGEABLE_NONNULL_END
PURGEABLE_PUBLIC_END
#ifdef __cplusplus
}
#endif

#endif
