// SPDX-License-Identifier: MIT
// What a slab heap is made of: who guards which field, and the order in which mutexes are taken.
//
//   heap --- chunks[] ---> chunk: one mapping, `units_per_chunk` units of `slab_bytes`, and for each unit, in ordinary memory:
//     |                      slab        80 bytes: the lock word, counters, masks of pages, the links of its stream
//     |                      living      a bit per granule: an element that is committed and not freed begins here
//     |                      page_bytes  for each page: payload of living elements whose header lies in it
//     |                      ages, tags  where the heap keeps them: 16 bytes, and the address of a table
//     |                    (how they lie: heap_chunks.c)
//     +--- streams[] ---> oldest <-> ... <-> youngest slab, by unit number + 1
//
// Mutexes, in the order in which they may be nested: a stream's, then the heap's. Both lie in the control block, which a forked
// child finds zeroed, that is, unlocked, whatever other threads were doing at that moment; `alive` reads 0 there as well.
#ifndef PURGEABLE_HEAP_STRUCTURE_H
#define PURGEABLE_HEAP_STRUCTURE_H

#include "internal.h"

#include "purgeable_slabs.h"

#pragma GCC visibility push(hidden)

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
  // Given back while slabs are given back in bulk: not held any more, and to be wiped together with its neighbours.
  slab_delayed,
  // Its generations are used up: never used again.
  slab_retired,
  // Given back without a wipe, to be filled again as it is (heap_kept.c): held, and in the heap's list of such slabs.
  slab_kept,
} purgeable__slab_state_t;

typedef enum purgeable__trait {
  // Some element touches more than one page.
  trait_spans_pages = 1,
  // The slab is not offered (`purgeable_slab_withhold`).
  trait_withheld = 2,
  // Sealed, and the kernel refused its last offer.
  trait_refused = 4,
} purgeable__trait_t;

// What changes as elements come and go is in front.
typedef struct purgeable__slab {
  // Read and changed by heap_word.h and heap_word.c only.
  _Atomic uint64_t word;
  // Payload of living elements; 32 bits hold the largest element.
  _Atomic uint32_t payload_bytes;
  _Atomic uint32_t element_count;
  // Granules used from the front. Written under the stream's mutex while open, constant afterwards.
  _Atomic uint32_t used_granule_count;
  // Where the heap keeps tags, how many. Stream's mutex while open, constant afterwards, like the table.
  uint32_t tag_count;
  _Atomic uint8_t state;
  // What holds for this life: bits of `purgeable__trait_t`. Relaxed.
  _Atomic uint8_t traits;
  // Pages that are booked as waiting for an offer, and whether for the first (heap_books.c). 0: none.
  _Atomic uint8_t waiting;
  // Since the last wipe: how many pages at the front earlier lives have written to, and whether any page was ever on offer
  // (heap_kept.h). The count is written under the stream's mutex while open, and before the life begins; the flag under OFFERING.
  _Atomic uint8_t standing;
  // The stream it belongs to. Heap's mutex; read without it by statistics.
  _Atomic uint16_t stream;
  // A number of the thread that filled it, 0 for several. Stream's mutex while open, constant afterwards; relaxed: a hint.
  _Atomic uint16_t filler;
  // A bit per page (`purgeable__page_bit`): an offer was made of it; the kernel may have skipped it. Set under OFFERING,
  // cleared by lockers that rescued.
  _Atomic uint64_t offered;
  // A bit per page: known to be gone. Set while the slab is pinned by a count or the heap's mutex, cleared when it is given back.
  _Atomic uint64_t lost;
  // A bit per page, of those on offer: the kernel has taken note. Set under OFFERING. Means nothing where `offered` is clear.
  _Atomic uint64_t settled;
  // Unit numbers + 1, 0 for none. Heap's mutex.
  uint32_t next, previous;
  // The generation of the first life. When it comes round, the slab retires.
  uint32_t first_generation;
  // Units of the run: 1, more for a large element. Written under the heap's mutex before the life begins.
  _Atomic uint32_t unit_count;
  // Pages known to be gone.
  _Atomic uint32_t lost_pages;
  // How often the whole sealed slab was offered: 0, 1, 2. Written under OFFERING.
  _Atomic uint8_t offer_count;
  // Offers in a row that found the slab locked although pages of it were waiting. Relaxed: a hint.
  _Atomic uint8_t busy_round_count;
  // By how many living elements a compaction had to leave it, in short (heap_compact.c): it does not come again while that is so.
  // 0 for none. Relaxed: a hint.
  _Atomic uint16_t stuck;
} purgeable__slab_t;
static_assert(sizeof(purgeable__slab_t) == 80, "a heap of small slabs has many of these");

// What the owner notes of a slab's age (`purgeable_slab_note_age`). Relaxed: only its owner reads it.
typedef struct purgeable__ages {
  _Atomic uint64_t first, last;
} purgeable__ages_t;

// The tag of an element; a slab's table has them in order of birth, so they are found by binary search over their granules.
// 10 bytes, which is why a heap that keeps tags has slabs of 1 MiB at most: a granule's number fits 16 bits.
typedef struct purgeable__tag {
  uint16_t granule, parts[4];
} purgeable__tag_t;

// What a number of the table of chunks stands for. Heap's mutex.
typedef enum purgeable__chunk_kind {
  // Nothing is mapped.
  chunk_vacant = 0,
  // A chunk of slabs, mapped until the heap is destroyed.
  chunk_of_slabs,
  // The first number of a mapping of one large element.
  chunk_alone,
  // A further number of such a mapping.
  chunk_continued,
} purgeable__chunk_kind_t;

typedef struct purgeable__chunk {
  // Of the mapping; and where the header of granule 0 is, which is the same but for what leads to aligned payloads. Atomic for
  // lookups by stale references, which find either of a number's mappings and are refused by the slab's word.
  char *base, *_Atomic elements;
  // For each unit: a bit per granule, then four bytes per page, then what the heap keeps of ages and tags.
  char *records;
  // A bit per unit: some page of the slab is known to be gone. Pinned like `lost`.
  _Atomic uint64_t *lossy;
  // A bit per unit: in use. Heap's mutex.
  uint64_t *used;
  uint32_t used_count;
  // Units below this were used at some time. Written under the heap's mutex; relaxed.
  _Atomic uint32_t high_water;
  // The chunk's place in the table. For a large element alone: how many numbers, and how many bytes are mapped. Heap's mutex.
  uint32_t number, span_count;
  size_t mapped_bytes;
  // How many lives any unit has had whose slab was forgotten with its page of the directory: the next one begins after them.
  uint32_t lives;
  uint8_t empty_rounds;
} purgeable__chunk_t;

// The table of chunks. One that is too small is left to readers who may be looking, until the heap is destroyed: each is twice as
// large as the one before, so all of them together are no larger than the last.
typedef struct purgeable__table {
  struct purgeable__table *older;
  uint32_t capacity;
  uint8_t *kinds;
  // A tree of 2 * capacity nodes (heap_rooms.c).
  uint32_t *rooms;
  purgeable__chunk_t *_Atomic *entries;
} purgeable__table_t;
enum { TABLE_FIRST = 8, GRANULE_SHIFT = 4 };
static_assert(1 << GRANULE_SHIFT == PURGEABLE_GRANULE_BYTES, "places count granules");

typedef struct purgeable__stream {
  // Unit numbers + 1, 0 for none. Heap's mutex, `open` the stream's.
  uint32_t oldest, youngest, open;
  // A table of tags for the next open slab, and the room in that or in the open slab's. Stream's mutex.
  struct purgeable__tag *spare_tags;
  uint32_t tag_capacity;
  // What the last round of upkeep found of the open slab, for how many rounds it has been so, and after how many the page being
  // filled is closed; where it was closed last. Stream's mutex.
  uint32_t seen_unit, seen_granules, closed_granules;
  uint8_t idle_rounds, patience;
  // Its slabs are not offered. Relaxed: an offer that is running at that moment may still offer once.
  _Atomic bool is_withheld;
} purgeable__stream_t;

// How many slabs a heap keeps unwiped at most, and how many bytes of them.
enum { KEPT_MAX = 16, KEPT_BYTES_MAX = 1 << 20 };

enum { STREAM_MUTEX_COUNT = 48, STREAM_FIRST = 8, STREAM_BLOCK = 64, TALLY_COUNT = 4, LINE_BYTES = 64 };
enum { STREAM_BLOCKS = (PURGEABLE_STREAM_COUNT_MAX + STREAM_BLOCK - 1) / STREAM_BLOCK };

// What every element changes as it comes and goes. Each thread counts in the tally of its processor, so that threads share no
// cache line; only the sum of all tallies says anything (heap_books.h). Relaxed.
typedef struct purgeable__tally {
  _Alignas(LINE_BYTES) _Atomic uint64_t payload_bytes;
  _Atomic uint64_t element_count, written_bytes;
} purgeable__tally_t;

typedef struct purgeable__stream_mutex {
  _Alignas(LINE_BYTES) pthread_mutex_t mutex;
} purgeable__stream_mutex_t;

// One page (pages.c).
typedef struct purgeable__control {
  // 1 while the heap lives in the process that made it. 0: a forked child that has not put the heap right. 2: the child is
  // putting the heap right.
  _Atomic uint64_t alive;
  pthread_mutex_t mutex;
  // Streams share them by their number.
  purgeable__stream_mutex_t streams[STREAM_MUTEX_COUNT];
  // Zeros at first and in a forked child.
  purgeable__tally_t tallies[TALLY_COUNT];
} purgeable__control_t;

struct purgeable_heap {
  purgeable__control_t *control;
  // Constant after creation.
  size_t page_bytes, slab_bytes, chunk_bytes;
  uint32_t page_shift, slab_shift, chunk_shift;  // in bytes
  uint32_t units_per_chunk, pages_per_slab, granules_per_slab;
  uint32_t record_bytes;  // what a unit costs in ordinary memory, beside its slab
  purgeable_offering_t offering;
  // How far into its granule a header lies: 8 where payloads are aligned to 16 bytes, else 0.
  uint32_t lead_bytes;
  bool keeps_tags, keeps_ages, defers_compaction, defers_wipes, fills_whole;
  purgeable_moved_t moved;
  void *context;
  uint64_t secret[2];

  // An entry is written before the count that covers it.
  _Atomic uint32_t chunk_count;
  uint32_t chunk_place_shift, slab_place_shift;  // in granules
  purgeable__chunk_t *_Atomic *_Atomic chunks;   // the newest table's entries
  // Heap's mutex, down to `chunk_count_max`.
  purgeable__table_t *table;
  // Stands for numbers that were never a chunk of their own: a directory of zeros.
  purgeable__chunk_t *nowhere;
  // Constant: how many numbers fit the places that the owner can keep.
  uint32_t chunk_count_max;
  purgeable__table_t first_table;
  purgeable__chunk_t *_Atomic first_entries[TABLE_FIRST];
  uint8_t first_kinds[TABLE_FIRST];
  uint32_t first_rooms[2 * TABLE_FIRST];
  _Atomic uint32_t stream_count;
  purgeable__stream_t first_streams[STREAM_FIRST];
  // Further streams, made when they are needed; written before the count that covers them.
  purgeable__stream_t *stream_blocks[STREAM_BLOCKS];

  // Counters; relaxed: they decide nothing but the limit.
  _Atomic uint64_t byte_limit;
  // Slabs in use with a page known to be gone.
  _Atomic uint64_t lossy_count;
  // Of slabs in use: pages known to be gone; what is idle and sealed but not on offer; and of that, what never was.
  _Atomic uint64_t lost_bytes, waiting_bytes, unoffered_bytes;
  _Atomic uint64_t held_bytes, ordinary_bytes, mapped_bytes, slab_count;
  // What is locked, each lock counted.
  _Atomic uint64_t locked_bytes;
  _Atomic uint64_t locked_byte_limit, refused_lock_count, given_back_bytes;
  _Atomic uint64_t discarded_by_kernel_bytes, given_back_slab_count, moved_element_count;
  _Atomic uint64_t unbalanced_unlock_count, refused_offer_count;
  // Something is idle and not on offer, or empty and not given back.
  _Atomic bool pending;
  // More waits than the limit allows, or may; and whether a thread is in a round of offering it (heap_overdue.c).
  _Atomic bool overdue, offering_overdue;
  // Which units the last round went over: from `round_from` to before `round_end`, which may lie before it. Only the thread that
  // has set `offering_overdue` looks.
  uint32_t round_from, round_end;
  // Some slab is `slab_unwiped` or `slab_delayed`: those of units in [unwiped_first, unwiped_end). The range is the heap mutex's.
  _Atomic bool unwiped;
  uint32_t unwiped_first, unwiped_end, delayed_count;
  // When the first of the delayed ones began to wait. The heap mutex's.
  uint64_t delayed_since_ns;
  // The slabs that are kept: unit numbers, the one that ended last at the end. The heap mutex's.
  uint32_t kept[KEPT_MAX], kept_count;
  // What they hold, which is part of `held_bytes`; changed under the heap's mutex.
  _Atomic uint64_t kept_bytes;
  // How many callers are giving slabs back in bulk.
  _Atomic uint32_t giving_count;
  // The thread that compacts; 0 for none.
  _Atomic uintptr_t compacting;
  // How many compactions have made room. The low half is waited on.
  _Atomic uint64_t compaction_count;
  // Where compaction goes on looking for a slab: one of stream 0, as a unit number + 1, or 0 for its oldest. Heap's mutex.
  uint32_t compact_hand;
  // What was held when a limit was set that left no slab beyond it, less what has been given back since; else 0.
  _Atomic uint64_t held_at_limit;
  // Some slab has been busy for `BUSY_ROUNDS`, or a multiple of it, since this was last asked.
  _Atomic bool has_busy;
  // Some offer was refused since the upkeep last looked; whether it makes such offers again now; how many of its calls lie
  // between two tries, and how many are left to the next one (heap_upkeep.c).
  _Atomic bool has_refused, tries_refused;
  _Atomic uint32_t refused_rounds, refused_rounds_left;
};

static inline purgeable__stream_t *purgeable__stream(purgeable_heap_t *heap, purgeable_stream_t stream) {
  if (stream < STREAM_FIRST) return &heap->first_streams[stream];
  return &heap->stream_blocks[stream / STREAM_BLOCK][stream % STREAM_BLOCK];
}
static inline pthread_mutex_t *purgeable__stream_mutex(purgeable_heap_t *heap, purgeable_stream_t stream) {
  return &heap->control->streams[stream % STREAM_MUTEX_COUNT].mutex;
}
// There is work for the upkeep. Every commit and free says so. It is written only where it is news, since all threads share it.
// Called after the slab's word was counted down. All sequentially consistent, as the upkeep's exchange and fence are: who finds
// the note of before the exchange has counted down before the upkeep looks at the slab.
static inline void purgeable__note_pending(purgeable_heap_t *heap) {
  if (!atomic_load(&heap->pending)) store_relaxed(&heap->pending, true);
}

static inline purgeable__tally_t *purgeable__tally(const purgeable_heap_t *heap) {
  return &heap->control->tallies[purgeable_processor_hint() % TALLY_COUNT];
}

#pragma GCC visibility pop

#endif
