// SPDX-License-Identifier: MIT
// The slab heap's own structures: who guards which field, and the order in which mutexes are taken.
//
//   heap --- chunks[] ---> chunk: one mapping, `units_per_chunk` units of `slab_bytes`, and for each unit, in ordinary memory:
//     |                      slab        80 bytes: the lock word, masks of pages, counters, the links of its stream
//     |                      living      a bit per granule: an element that is committed and not freed begins here
//     |                      page_bytes  for each page: payload of living elements whose header lies in it
//     +--- streams[] ---> oldest <-> ... <-> youngest slab, by unit number + 1
//
// Mutexes, in the order in which they may be nested: a stream's, then the heap's. Both lie in the control block, which a forked
// child finds zeroed, that is, unlocked, whatever other threads were doing at that moment; `alive` reads 0 there as well.
#ifndef PURGEABLE_HEAP_INTERNAL_H
#define PURGEABLE_HEAP_INTERNAL_H

#include "internal.h"
#include "purgeable_heap.h"

// MARK: The slab's word
//
//   63           32 31    24 23  20 19             0
//   |  generation  |  flags |      |  lock count   |
//
// One atomic word, so that "count up if this is still the life I mean" and "claim if nobody holds it" are single exchanges.
#define COUNT_MASK ((uint64_t)0xFFFFF)
// A thread is inside the madvise that covers this slab. Set only from count 0; lockers count up, then wait until it is clear.
#define OFFERING ((uint64_t)1 << 24)
// Claimed to be given back, or not in use. Set only from count 0 and not OFFERING; nobody counts up from here on.
#define DYING ((uint64_t)1 << 25)
// Somebody sleeps until OFFERING is clear.
#define WAITERS ((uint64_t)1 << 26)

#define GENERATION(word) ((uint32_t)((word) >> 32))

typedef enum purgeable__slab_state {
  slab_never_used = 0,
  slab_free,
  slab_open,
  slab_sealed,
  // One element in a run of units; sealed from birth.
  slab_large,
  // A unit of such a run, but not its first.
  slab_continuation,
  // Given back, but the kernel refused to take the pages: to be wiped before it can be used again.
  slab_unwiped,
  // Given back while slabs are given back in numbers: not held any more, and to be wiped together with its neighbours.
  slab_delayed,
  // Its generations are used up: never used again.
  slab_retired,
} purgeable__slab_state_t;

typedef struct purgeable__slab {
  _Atomic uint64_t word;
  // A bit per page (`purgeable__page_bit`): on offer, as far as we did it. Set under OFFERING, cleared by lockers that rescued.
  _Atomic uint64_t offered;
  // A bit per page: known to be gone. Set while the slab is pinned by a count or the heap's mutex, cleared when it is given back.
  _Atomic uint64_t lost;
  _Atomic uint64_t living_bytes;
  _Atomic uint32_t living_count;
  // Granules used from the front. Written under the stream's mutex while open, constant afterwards.
  _Atomic uint32_t used_granules;
  // Unit numbers + 1, 0 for none. Heap's mutex.
  uint32_t next, previous;
  // The generation of the first life. When it comes round, the slab retires.
  uint32_t first_generation;
  // Units of the run: 1, more for a large element. Written under the heap's mutex before the life begins.
  _Atomic uint32_t unit_count;
  _Atomic uint8_t state;
  // How often the whole sealed slab was offered: 0, 1, 2. Written under OFFERING.
  _Atomic uint8_t offer_count;
  // Some element of this life touches more than one page. Stream's mutex.
  _Atomic bool spans_pages;
  // Offers in a row that found it locked although pages of it were waiting. Relaxed: a hint.
  _Atomic uint8_t busy_rounds;
  // The stream it belongs to. Heap's mutex; read without it by statistics.
  _Atomic uint16_t stream;
  // How many elements lived when a compaction had to leave them: it does not come again while that is so. Relaxed: a hint.
  _Atomic uint32_t stuck_count;
  // Where the heap keeps tags: how many, and their table. Stream's mutex while open, constant afterwards, freed when the slab is
  // claimed.
  uint32_t tag_count;
  struct purgeable__tag *tags;
} purgeable__slab_t;

// The tag of an element; a slab's table has them in order of birth, so they are found by binary search over their granules.
// 10 bytes, which is why a heap that keeps tags has slabs of 1 MiB at most: a granule's number fits 16 bits.
typedef struct purgeable__tag {
  uint16_t granule, parts[4];
} purgeable__tag_t;

typedef struct purgeable__chunk {
  char *base;
  purgeable__slab_t *slabs;
  _Atomic uint64_t *living;
  _Atomic uint32_t *page_bytes;
  // A bit per unit: some page of the slab is known to be gone. Pinned like `lost`.
  _Atomic uint64_t *lossy;
  // A bit per unit: in use. Heap's mutex.
  uint64_t *used;
  uint32_t used_count;
  // Units below this were used at some time. Heap's mutex.
  uint32_t high_water;
  // A mapping larger than a chunk stands in several entries of the table: the first of them, and how many.
  uint32_t span_first, span_count;
} purgeable__chunk_t;

typedef struct purgeable__stream {
  // Unit numbers + 1, 0 for none. Heap's mutex, `open` the stream's.
  uint32_t oldest, youngest, open;
  // A table of tags for the next open slab, and the room in that or in the open slab's. Stream's mutex.
  struct purgeable__tag *spare_tags;
  uint32_t tag_capacity;
  bool exists;
} purgeable__stream_t;

typedef struct purgeable__control {
  // 1 while the heap lives in the process that made it. 0: this is a forked child that has not put the heap right. 2: being done.
  _Atomic uint64_t alive;
  pthread_mutex_t mutex;
  pthread_mutex_t streams[PURGEABLE_STREAM_COUNT_MAX];
} purgeable__control_t;

enum { CHUNK_COUNT_MAX = 4096 };

struct purgeable_heap {
  purgeable__control_t *control;
  // Constant after creation.
  size_t page_bytes, slab_bytes, chunk_bytes;
  uint32_t page_shift, slab_shift, chunk_shift;  // in bytes
  uint32_t units_per_chunk, pages_per_slab, granules_per_slab;
  purgeable_offering_t offering;
  bool keeps_tags;
  purgeable_moved_t moved;
  void *context;
  uint64_t secret[2];

  // Append-only: an entry is written before the count that covers it.
  _Atomic uint32_t chunk_count;
  purgeable__chunk_t *_Atomic chunks[CHUNK_COUNT_MAX];
  uint32_t first_chunk_with_room;  // heap's mutex
  _Atomic uint32_t stream_count;
  purgeable__stream_t streams[PURGEABLE_STREAM_COUNT_MAX];

  // Counters; relaxed: they decide nothing but the limit.
  _Atomic uint64_t limit_bytes;
  // Slabs in use with a page known to be gone.
  _Atomic uint64_t lossy_count;
  _Atomic uint64_t held_bytes, ordinary_bytes, mapped_bytes, slab_count;
  _Atomic uint64_t element_count, payload_bytes;
  // What is being written, and what is locked, each lock counted.
  _Atomic uint64_t written_bytes, locked_bytes;
  _Atomic uint64_t locked_limit_bytes, refused_lock_count, given_back_bytes;
  _Atomic uint64_t discarded_payload_bytes, given_back_count, moved_count, unbalanced_unlock_count, refused_offer_count;
  // Something is idle and not on offer, or empty and not given back.
  _Atomic bool pending;
  // Some slab is `slab_unwiped` or `slab_delayed`: those of units in [unwiped_first, unwiped_end). The range is the heap mutex's.
  _Atomic bool unwiped;
  uint32_t unwiped_first, unwiped_end, delayed_count;
  // How many callers are giving slabs back in numbers.
  _Atomic uint32_t giving_count;
  _Atomic bool compacting;
  // Some slab has been busy for `BUSY_ROUNDS`, or a multiple of it, since this was last asked.
  _Atomic bool has_busy;
};

// MARK: Finding things (heap_units.c)

// A place resolved to its slab. `slab` is NULL when the place lies outside of the heap.
typedef struct purgeable__spot {
  purgeable__chunk_t *chunk;
  purgeable__slab_t *slab;
  uint32_t unit;        // in the chunk
  uint32_t granule;     // in the unit
  char *unit_base;      // of the unit
} purgeable__spot_t;

static inline purgeable__spot_t purgeable__find(const purgeable_heap_t *heap, uint64_t place) {
  purgeable__spot_t spot = {0};
  uint64_t offset = place * PURGEABLE_GRANULE_BYTES;
  uint64_t number = offset >> heap->chunk_shift;
  // Acquire: pairs with the release that published the chunk.
  if (place >> 60 != 0 || number >= atomic_load_explicit(&heap->chunk_count, memory_order_acquire)) return spot;
  spot.chunk = atomic_load_explicit(&heap->chunks[number], memory_order_relaxed);
  uint64_t within = offset & (heap->chunk_bytes - 1);
  spot.unit = (uint32_t)(within >> heap->slab_shift);
  spot.granule = (uint32_t)(within & (heap->slab_bytes - 1)) / PURGEABLE_GRANULE_BYTES;
  spot.slab = &spot.chunk->slabs[spot.unit];
  spot.unit_base = spot.chunk->base + ((size_t)spot.unit << heap->slab_shift);
  return spot;
}

purgeable__spot_t purgeable__find_unit(const purgeable_heap_t *heap, uint32_t unit_number);
uint32_t purgeable__unit_number(const purgeable_heap_t *heap, purgeable__spot_t spot);
uint64_t purgeable__place_of(const purgeable_heap_t *heap, purgeable__spot_t spot);

// Takes `count` neighbouring units into use, mapping a chunk where none has room, and begins a life for the first of them.
// 0 or ENOMEM. Heap's mutex held.
int purgeable__units_take(purgeable_heap_t *heap, uint32_t count, purgeable__slab_state_t state, purgeable__spot_t *spot);
// Makes units available again. Heap's mutex held; their pages read as zeros.
void purgeable__units_return(purgeable_heap_t *heap, purgeable__spot_t spot, uint32_t count);
void purgeable__chunks_destroy(purgeable_heap_t *heap);

// MARK: The living directory

static inline _Atomic uint64_t *purgeable__living_word(const purgeable_heap_t *heap, purgeable__spot_t spot) {
  return &spot.chunk->living[((size_t)spot.unit * heap->granules_per_slab + spot.granule) / 64];
}
static inline bool purgeable__is_living(const purgeable_heap_t *heap, purgeable__spot_t spot) {
  uint64_t bit = (uint64_t)1 << (spot.granule % 64);
  return (atomic_load_explicit(purgeable__living_word(heap, spot), memory_order_acquire) & bit) != 0;
}
static inline _Atomic uint32_t *purgeable__page_bytes(const purgeable_heap_t *heap, purgeable__spot_t spot) {
  uint32_t page = (uint32_t)(((size_t)spot.granule * PURGEABLE_GRANULE_BYTES) >> heap->page_shift);
  return &spot.chunk->page_bytes[(size_t)spot.unit * heap->pages_per_slab + page];
}

// Ends every living element of a slab that the caller has pinned (heap_element.c). Returns how many there were.
uint32_t purgeable__free_living(purgeable_heap_t *heap, purgeable__spot_t spot, purgeable_slab_t slab);

// MARK: Slabs (heap_slab.c, heap_give_back.c)

static inline size_t purgeable__used_bytes(purgeable__slab_t *slab) {
  return (size_t)atomic_load_explicit(&slab->used_granules, memory_order_acquire) * PURGEABLE_GRANULE_BYTES;
}
// What a slab holds of its memory: whole pages up to the last granule in use.
static inline size_t purgeable__slab_held_bytes(const purgeable_heap_t *heap, purgeable__slab_t *slab) {
  return purgeable__round_up(purgeable__used_bytes(slab), heap->page_bytes);
}
static inline bool purgeable__is_sealed(purgeable__slab_t *slab) {
  uint8_t state = atomic_load_explicit(&slab->state, memory_order_seq_cst);
  return state == slab_sealed || state == slab_large;
}
static inline uint32_t purgeable__next_generation(uint32_t generation) {
  generation++;
  if (!PURGEABLE_RULE(wide_generations)) generation &= 3;
  return generation == 0 ? 1 : generation;
}
static inline bool purgeable__is_run(purgeable__slab_t *slab) {
  return atomic_load_explicit(&slab->unit_count, memory_order_relaxed) > 1;
}
// The bit of a page in a slab's masks. Runs of several units have one bit for all of their pages.
static inline uint64_t purgeable__page_bit(purgeable__slab_t *slab, size_t page) {
  return purgeable__is_run(slab) || page > 63 ? ~(uint64_t)0 : (uint64_t)1 << page;
}

bool purgeable__pin(purgeable__slab_t *slab, uint32_t generation, int *error);
// False: there was no count to give back.
bool purgeable__unpin(purgeable_heap_t *heap, purgeable__spot_t spot);
void purgeable__wait_for_offer(purgeable_heap_t *heap, purgeable__slab_t *slab);
// Sealing and giving back. No heap mutex held.
void purgeable__seal(purgeable_heap_t *heap, purgeable__spot_t spot);
// True when the slab was given back or is on its way; false when it lives, is locked or is being offered.
bool purgeable__give_back_if_empty(purgeable_heap_t *heap, purgeable__spot_t spot, uint32_t generation);
void purgeable__wipe_unwiped(purgeable_heap_t *heap);
// How many pages of a slab may go on offer, and the bits of its first pages.
size_t purgeable__offerable_pages(const purgeable_heap_t *heap, purgeable__slab_t *slab);
uint64_t purgeable__pages_mask(purgeable__slab_t *slab, size_t pages);
// Offers what of these slabs is idle and not on offer; they have to be neighbours in memory, one run. 0 or madvise's errno.
int purgeable__offer_run(purgeable_heap_t *heap, purgeable__spot_t *spots, size_t count, bool again, size_t *offered_bytes);
// Records that a page is gone. Returns false when the slab's life was over.
bool purgeable__mark_lost(purgeable_heap_t *heap, purgeable__spot_t spot, uint32_t generation, size_t page);
void purgeable__link(purgeable_heap_t *heap, purgeable__spot_t spot, purgeable_stream_t stream);
void purgeable__unlink(purgeable_heap_t *heap, purgeable__spot_t spot);

// MARK: Elements (heap_element.c)
//
// header (8) | witness table (2 bytes for each further page it touches, padded to 8) | payload | padding to 16

typedef struct purgeable__layout {
  uint32_t first_page;   // in the unit
  uint32_t more_pages;   // that it touches beyond the first
  size_t payload_offset; // from the element's start
  size_t total_bytes;    // from the element's start, padding included
} purgeable__layout_t;

purgeable__layout_t purgeable__layout(const purgeable_heap_t *heap, uint32_t granule, size_t length_bytes);
// The largest element with header that stays within one page.
#define SMALL_TOTAL_MAX ((size_t)1024)

// A header: check in the upper half, payload length in the lower. The check mixes place, generation, length and the heap's
// secret, so that payload bytes cannot pose as a header. Never zero, because no length is.
uint64_t purgeable__header(const purgeable_heap_t *heap, uint64_t place, uint32_t generation, uint32_t length_bytes);
static inline uint64_t purgeable__header_while_written(uint64_t header) { return header ^ 0xFFFFFFFF00000000u; }
static inline _Atomic uint64_t *purgeable__header_at(purgeable__spot_t spot) {
  return (_Atomic uint64_t *)(void *)(spot.unit_base + (size_t)spot.granule * PURGEABLE_GRANULE_BYTES);
}

static inline _Atomic uint16_t *purgeable__table_at(purgeable__spot_t spot) {
  return (_Atomic uint16_t *)(void *)((char *)purgeable__header_at(spot) + PURGEABLE_HEADER_BYTES);
}

// Witness tables: a word's number within its page + 1, or this for a page of zeros, which needs none. 0 is never valid.
#define WITNESS_ZEROS ((uint16_t)0xFFFF)

// The witness word of the element's page `number` (1 ...), NULL for a page of zeros. `*entry` gets the table's entry; 0 means
// that the table's page is gone.
_Atomic uint64_t *purgeable__witness(const purgeable_heap_t *heap, purgeable__spot_t spot, purgeable__layout_t layout,
                                     uint32_t number, uint16_t *entry);

purgeable__spot_t purgeable__resolve(const purgeable_heap_t *heap, purgeable_reference_t reference);
bool purgeable__is_large_slab(purgeable__slab_t *slab);
// The tag of an element whose slab is pinned. Stream's mutex held.
uint64_t purgeable__tag_of(purgeable_heap_t *heap, purgeable__spot_t spot);
// Compacts one slab of stream 0, or finds that its elements have to stay. False when no other is worth a try. No mutex held.
// (heap_stream.c)
bool purgeable__compact_step(purgeable_heap_t *heap);
// Moves what is hot out of the slabs of stream 0 that stay locked too long, where the owner gave a callback. No mutex held.
void purgeable__relieve(purgeable_heap_t *heap);
// How many offers in a row a slab may be locked before its hot elements are moved, and again after as many more.
enum { BUSY_ROUNDS = 8 };

// MARK: Entering

void purgeable__heal(purgeable_heap_t *heap);
// Every public function but the reads begins with this: in a forked child the heap is put right first.
static inline void purgeable__enter(purgeable_heap_t *heap) {
  if (atomic_load_explicit(&heap->control->alive, memory_order_acquire) != 1) purgeable__heal(heap);
}

#endif
