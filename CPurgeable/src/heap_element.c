// SPDX-License-Identifier: MIT
// Elements: where they lie, what proves that they are still there, and their life from allocate to free.
//
//      page 0                          | page 1             | page 2
//      ... [header|w1|w2|payload ......|....................|........] [header|payload] ...
//             |    |  +------------------------------------------^ a word of the payload in page 2 that is not zero
//             |    +-----------------------------^ the same for page 1
//             +-- the witness of page 0: a header is never zero
//
// Up to 1 KiB with its header an element stays within one page and needs no table. The table begins in the header's page. An entry
// is never 0, so a table page that is gone shows in any of its entries, and a page that holds nothing but entries is its own
// witness: so the tables of elements of many MiB need no ordinary memory either.

#include "heap_internal.h"

// MARK: Layout

purgeable__layout_t purgeable__layout(const purgeable_heap_t *heap, uint32_t granule, size_t length_bytes) {
  size_t start = (size_t)granule * PURGEABLE_GRANULE_BYTES;
  size_t first = start >> heap->page_shift;
  purgeable__layout_t layout = {.first_page = (uint32_t)first};
  // The table's size depends on how many pages are touched, and the other way round: a few rounds settle it.
  for (;;) {
    size_t table = purgeable__round_up((size_t)layout.more_pages * sizeof(uint16_t), 8);
    layout.payload_offset = PURGEABLE_HEADER_BYTES + table;
    layout.total_bytes = purgeable__round_up(layout.payload_offset + length_bytes, PURGEABLE_GRANULE_BYTES);
    uint32_t more = (uint32_t)(((start + layout.total_bytes - 1) >> heap->page_shift) - first);
    if (more <= layout.more_pages) return layout;
    layout.more_pages = more;
  }
}

static uint64_t mix(uint64_t left, uint64_t right) {
  // splitmix64's finaliser over both words: every bit of either reaches every bit of the result.
  uint64_t z = left + right * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

uint64_t purgeable__header(const purgeable_heap_t *heap, uint64_t place, uint32_t generation, uint32_t length_bytes) {
  uint64_t identity = ((uint64_t)generation << 32 | length_bytes) ^ heap->secret[1];
  return (mix(place ^ heap->secret[0], identity) & 0xFFFFFFFF00000000u) | length_bytes;
}

_Atomic uint64_t *purgeable__witness(const purgeable_heap_t *heap, purgeable__spot_t spot, purgeable__layout_t layout,
                                     uint32_t number, uint16_t *entry) {
  assert(number >= 1 && number <= layout.more_pages);
  *entry = purgeable__load_entry_unsettled(&purgeable__table_at(spot)[number - 1]);
  if (*entry == 0 || *entry == WITNESS_ZEROS || (size_t)(*entry - 1) * 8 >= heap->page_bytes) return NULL;
  char *page = spot.unit_base + ((size_t)(layout.first_page + number) << heap->page_shift);
  return (_Atomic uint64_t *)(void *)(page + (size_t)(*entry - 1) * 8);
}

// MARK: Allocate

static bool is_large(const purgeable_heap_t *heap, size_t length_bytes) {
  return length_bytes + PURGEABLE_HEADER_BYTES > heap->slab_bytes / 2;
}

// Where an element of this length goes in an open slab: at the first free granule, or at the next page where it would otherwise
// cross into it needlessly or tear header from table.
static uint32_t place_in_slab(const purgeable_heap_t *heap, uint32_t granule, size_t length_bytes) {
  purgeable__layout_t layout = purgeable__layout(heap, granule, length_bytes);
  size_t start = (size_t)granule * PURGEABLE_GRANULE_BYTES;
  size_t next_page = purgeable__round_up(start, heap->page_bytes);
  size_t header_end = start + layout.payload_offset;
  bool small = length_bytes + PURGEABLE_HEADER_BYTES <= SMALL_TOTAL_MAX;
  if (layout.more_pages > 0 && next_page != start && (small || header_end > next_page)) {
    return (uint32_t)(next_page / PURGEABLE_GRANULE_BYTES);
  }
  return granule;
}

// Appends the tag in birth order. The table of an open slab is the stream's spare one, which has been large enough before; a sealed
// slab gets one that fits (`purgeable__seal`), a large one is born with it. Stream's mutex held.
static int keep_tag(purgeable_heap_t *heap, purgeable__slab_t *slab, uint32_t granule, uint64_t tag) {
  purgeable__stream_t *list = &heap->streams[atomic_load_explicit(&slab->stream, memory_order_relaxed)];
  bool large = purgeable__is_large_slab(slab);
  if (slab->tags == NULL && !large) {
    slab->tags = list->spare_tags;
    list->spare_tags = NULL;
    slab->tag_count = 0;
  }
  uint32_t capacity = large || slab->tags == NULL ? 0 : list->tag_capacity;
  if (slab->tags == NULL || slab->tag_count == capacity) {
    uint32_t now = large ? 1 : capacity == 0 ? 32 : capacity + capacity / 2;
    purgeable__tag_t *tags = purgeable__resize(slab->tags, now * sizeof *tags);
    if (tags == NULL) return ENOMEM;
    slab->tags = tags;
    if (!large) list->tag_capacity = now;
    atomic_fetch_add_explicit(&heap->ordinary_bytes, (now - capacity) * sizeof *tags, memory_order_relaxed);
  }
  assert(slab->tag_count == 0 || slab->tags[slab->tag_count - 1].granule < granule);
  purgeable__tag_t *entry = &slab->tags[slab->tag_count++];
  entry->granule = (uint16_t)granule;
  memcpy(entry->parts, &tag, sizeof tag);
  return 0;
}

// Begins a slab, or a large run of `units`. Stream's mutex held.
static int begin_slab(purgeable_heap_t *heap, purgeable_stream_t stream, uint32_t units, size_t bytes,
                      purgeable__slab_state_t state, purgeable__spot_t *spot) {
  // While slabs are given back in numbers, what is copied out of them does not hurry that.
  if (atomic_load_explicit(&heap->giving_count, memory_order_relaxed) == 0) purgeable__wipe_unwiped(heap);
  uint64_t limit = atomic_load_explicit(&heap->limit_bytes, memory_order_relaxed);
  pthread_mutex_lock(&heap->control->mutex);
  uint64_t held = atomic_load_explicit(&heap->held_bytes, memory_order_relaxed);
  int error = limit != 0 && (held > limit || bytes > limit - held) ? ENOMEM : 0;
  if (error == 0) error = purgeable__units_take(heap, units, state, spot);
  if (error == 0) {
    purgeable__link(heap, *spot, stream);
    atomic_fetch_add_explicit(&heap->held_bytes, bytes, memory_order_relaxed);
    atomic_fetch_add_explicit(&heap->slab_count, 1, memory_order_relaxed);
  }
  pthread_mutex_unlock(&heap->control->mutex);
  return error;
}

// Notes the element as being written: counted in the slab's word by the caller, marked by a header that no look-up accepts.
static void begin_element(purgeable_heap_t *heap, purgeable__spot_t spot, uint32_t generation, size_t length_bytes,
                          purgeable_reference_t *reference, void **bytes) {
  uint64_t place = purgeable__place_of(heap, spot);
  uint64_t header = purgeable__header(heap, place, generation, (uint32_t)length_bytes);
  atomic_store_explicit(purgeable__header_at(spot), purgeable__header_while_written(header), memory_order_relaxed);
  purgeable__layout_t layout = purgeable__layout(heap, spot.granule, length_bytes);
  *reference = (purgeable_reference_t){place, generation};
  *bytes = (char *)purgeable__header_at(spot) + layout.payload_offset;
  atomic_fetch_add_explicit(&heap->written_bytes, length_bytes, memory_order_relaxed);
}

static int allocate_large(purgeable_heap_t *heap, purgeable_stream_t stream, size_t length_bytes, uint64_t tag,
                          purgeable__spot_t *spot) {
  size_t total = purgeable__layout(heap, 0, length_bytes).total_bytes;
  size_t bytes = purgeable__round_up(total, heap->page_bytes);
  uint32_t units = (uint32_t)((bytes + heap->slab_bytes - 1) >> heap->slab_shift);
  int error = begin_slab(heap, stream, units, bytes, slab_large, spot);
  if (error != 0) return error;
  // The writer's count is there from birth: others find the slab in its stream from here on.
  PURGEABLE_TEST_PAUSE();
  atomic_store_explicit(&spot->slab->used_granules, (uint32_t)(total / PURGEABLE_GRANULE_BYTES), memory_order_release);
  if (heap->keeps_tags && keep_tag(heap, spot->slab, 0, tag) != 0) {
    // The last count of a sealed slab without elements: gives it back.
    purgeable__unpin(heap, *spot);
    return ENOMEM;
  }
  return 0;
}

// Stream's mutex held.
static int allocate_small(purgeable_heap_t *heap, purgeable_stream_t stream, size_t length_bytes, uint64_t tag,
                          purgeable__spot_t *spot) {
  purgeable__stream_t *list = &heap->streams[stream];
  for (;;) {
    if (list->open == 0) {
      int error = begin_slab(heap, stream, 1, heap->slab_bytes, slab_open, spot);
      if (error != 0) return error;
      list->open = purgeable__unit_number(heap, *spot) + 1;
    }
    *spot = purgeable__find_unit(heap, list->open - 1);
    purgeable__slab_t *slab = spot->slab;
    uint32_t used = atomic_load_explicit(&slab->used_granules, memory_order_relaxed);
    uint32_t granule = place_in_slab(heap, used, length_bytes);
    purgeable__layout_t layout = purgeable__layout(heap, granule, length_bytes);
    size_t end = (size_t)granule * PURGEABLE_GRANULE_BYTES + layout.total_bytes;
    if (end > heap->slab_bytes) {
      list->open = 0;
      purgeable__seal(heap, *spot);
      continue;
    }
    uint32_t generation = GENERATION(atomic_load_explicit(&slab->word, memory_order_relaxed));
    int error;
    // Counted before the room is taken: an offer that begins now sees either the count or the old end.
    if (!purgeable__pin(slab, generation, &error)) return error == EOVERFLOW ? EAGAIN : error;
    if (heap->keeps_tags && (error = keep_tag(heap, slab, granule, tag)) != 0) {
      purgeable__unpin(heap, *spot);
      return error;
    }
    spot->granule = granule;
    if (layout.more_pages > 0) atomic_store_explicit(&slab->spans_pages, true, memory_order_relaxed);
    // The end never goes back, also when this element is abandoned.
    atomic_store_explicit(&slab->used_granules, (uint32_t)(end / PURGEABLE_GRANULE_BYTES), memory_order_release);
    return 0;
  }
}

int purgeable_heap_allocate_in(purgeable_heap_t *heap, purgeable_stream_t stream, size_t length_bytes, uint64_t tag,
                               purgeable_reference_t *reference, void **bytes) {
  if (heap == NULL || reference == NULL || bytes == NULL || length_bytes == 0) return EINVAL;
  if (length_bytes > PURGEABLE_ELEMENT_BYTES_MAX) return EFBIG;
  purgeable__enter(heap);
  if (stream >= atomic_load_explicit(&heap->stream_count, memory_order_acquire)) return EINVAL;
  bool large = is_large(heap, length_bytes);
  bool may_compact = stream == 0 && heap->moved != NULL;
  for (;;) {
    purgeable__spot_t spot;
    pthread_mutex_lock(&heap->control->streams[stream]);
    uint32_t open_before = heap->streams[stream].open;
    int error = large ? allocate_large(heap, stream, length_bytes, tag, &spot)
                      : allocate_small(heap, stream, length_bytes, tag, &spot);
    bool fresh = heap->streams[stream].open != open_before;
    pthread_mutex_unlock(&heap->control->streams[stream]);
    if (error == ENOMEM && may_compact && purgeable__compact_step(heap)) continue;
    if (error != 0) return error;
    uint32_t generation = GENERATION(atomic_load_explicit(&spot.slab->word, memory_order_relaxed));
    begin_element(heap, spot, generation, length_bytes, reference, bytes);
    // A fresh slab is the moment to win one back, if much of what is held is dead.
    if (fresh && may_compact) (void)purgeable__compact_step(heap);
    return 0;
  }
}

int purgeable_heap_allocate(purgeable_heap_t *heap, size_t length_bytes, purgeable_reference_t *reference, void **bytes) {
  return purgeable_heap_allocate_in(heap, 0, length_bytes, 0, reference, bytes);
}

// MARK: Commit and free

// An element that is being written, by its header; its slab is held by the writer's count, so the header can be trusted.
static bool is_being_written(const purgeable_heap_t *heap, purgeable__spot_t spot, purgeable_reference_t reference,
                             uint32_t *length_bytes) {
  uint64_t header = purgeable__load_unsettled(purgeable__header_at(spot));
  *length_bytes = (uint32_t)header;
  uint64_t expected = purgeable__header(heap, reference.place, (uint32_t)reference.generation, *length_bytes);
  return *length_bytes != 0 && header == purgeable__header_while_written(expected);
}

// Resolves a reference to the slab in whose present life it was made. NULL `slab` otherwise.
purgeable__spot_t purgeable__resolve(const purgeable_heap_t *heap, purgeable_reference_t reference) {
  purgeable__spot_t spot = purgeable__find(heap, reference.place);
  if (spot.slab == NULL) return spot;
  uint64_t word = atomic_load_explicit(&spot.slab->word, memory_order_acquire);
  bool valid = reference.generation != 0 && GENERATION(word) == reference.generation && (word & DYING) == 0;
  if (!valid) spot.slab = NULL;
  return spot;
}

bool purgeable__is_large_slab(purgeable__slab_t *slab) {
  return atomic_load_explicit(&slab->state, memory_order_relaxed) == slab_large;
}

// Takes the witness of every page after the first: the first non-zero word of the element's own bytes in it.
static void take_witnesses(purgeable_heap_t *heap, purgeable__spot_t spot, purgeable__layout_t layout) {
  char *header = (char *)purgeable__header_at(spot);
  char *element_end = header + layout.total_bytes;
  _Atomic uint16_t *table = purgeable__table_at(spot);
  // First no entry is 0 any more: pages that hold nothing but entries have a witness in themselves.
  for (uint32_t i = 0; i < layout.more_pages; i++) atomic_store_explicit(&table[i], WITNESS_ZEROS, memory_order_relaxed);
  for (uint32_t number = 1; number <= layout.more_pages; number++) {
    char *page = spot.unit_base + ((size_t)(layout.first_page + number) << heap->page_shift);
    char *end = page + heap->page_bytes < element_end ? page + heap->page_bytes : element_end;
    const uint64_t *first = (const uint64_t *)(const void *)page;
    const uint64_t *found = purgeable__first_nonzero(first, (const uint64_t *)(const void *)end);
    uint16_t entry = found == NULL ? WITNESS_ZEROS : (uint16_t)(found - first + 1);
    atomic_store_explicit(&table[number - 1], entry, memory_order_relaxed);
  }
}

int purgeable_heap_commit(purgeable_heap_t *heap, purgeable_reference_t reference) {
  if (heap == NULL) return EINVAL;
  purgeable__enter(heap);
  purgeable__spot_t spot = purgeable__resolve(heap, reference);
  uint32_t length;
  if (spot.slab == NULL || !is_being_written(heap, spot, reference, &length)) return ESTALE;
  take_witnesses(heap, spot, purgeable__layout(heap, spot.granule, length));
  uint64_t header = purgeable__header(heap, reference.place, (uint32_t)reference.generation, length);
  // Release: whoever finds the header valid sees the payload and the table.
  atomic_store_explicit(purgeable__header_at(spot), header, memory_order_release);
  atomic_fetch_add_explicit(purgeable__page_bytes(heap, spot), length, memory_order_relaxed);
  atomic_fetch_add_explicit(&spot.slab->living_bytes, length, memory_order_relaxed);
  atomic_fetch_add_explicit(&heap->payload_bytes, length, memory_order_relaxed);
  atomic_fetch_add_explicit(&heap->element_count, 1, memory_order_relaxed);
  atomic_fetch_add(&spot.slab->living_count, 1);
  // Release: pairs with `purgeable__is_living`.
  atomic_fetch_or_explicit(purgeable__living_word(heap, spot), (uint64_t)1 << (spot.granule % 64), memory_order_release);
  atomic_fetch_sub_explicit(&heap->written_bytes, length, memory_order_relaxed);
  purgeable__unpin(heap, spot);
  return 0;
}

// Takes a freed element's payload off the books, unless its page's loss has done so already.
static void forget_payload(purgeable_heap_t *heap, purgeable__spot_t spot, purgeable_reference_t reference) {
  uint64_t header = atomic_load_explicit(purgeable__header_at(spot), memory_order_relaxed);
  uint32_t length = (uint32_t)header;
  // A page that is gone reads as zeros; what its elements had in length is recorded with the page.
  if (header != purgeable__header(heap, reference.place, (uint32_t)reference.generation, length)) {
    size_t page = ((size_t)spot.granule * PURGEABLE_GRANULE_BYTES) >> heap->page_shift;
    purgeable__mark_lost(heap, spot, (uint32_t)reference.generation, page);
    return;
  }
  _Atomic uint32_t *page_bytes = purgeable__page_bytes(heap, spot);
  uint32_t sum = atomic_load_explicit(page_bytes, memory_order_relaxed);
  do {
    if (sum < length) return;
  } while (!atomic_compare_exchange_weak_explicit(page_bytes, &sum, sum - length, memory_order_acq_rel, memory_order_relaxed));
  atomic_fetch_sub_explicit(&spot.slab->living_bytes, length, memory_order_relaxed);
  atomic_fetch_sub_explicit(&heap->payload_bytes, length, memory_order_relaxed);
}

// The header no longer says "being written". True for one caller only; relaxed, since nobody reads on from what it leaves.
static bool abandon(purgeable_heap_t *heap, purgeable__spot_t spot, purgeable_reference_t reference, uint32_t length_bytes) {
  uint64_t header = purgeable__header(heap, reference.place, (uint32_t)reference.generation, length_bytes);
  uint64_t expected = purgeable__header_while_written(header);
  return atomic_compare_exchange_strong_explicit(purgeable__header_at(spot), &expected, ~(uint64_t)0, memory_order_relaxed,
                                                 memory_order_relaxed);
}

// Whether all that may still happen to the elements of a slab that the caller has pinned is that they are read or freed: it is sealed,
// and nobody else has it locked, to write to one of them.
static bool is_settled(purgeable__slab_t *slab) {
  return purgeable__is_sealed(slab) && (atomic_load(&slab->word) & COUNT_MASK) == 1 && !purgeable__is_large_slab(slab);
}

uint32_t purgeable__free_living(purgeable_heap_t *heap, purgeable__spot_t spot, purgeable_slab_t slab) {
  uint32_t end = purgeable__is_run(spot.slab) ? 1 : atomic_load_explicit(&spot.slab->used_granules, memory_order_acquire);
  bool at_once = is_settled(spot.slab);
  uint32_t freed = 0;
  for (uint32_t first = 0; first < end; first += 64) {
    spot.granule = first;
    // The exchange makes this caller the one who frees them, as the single bit does in `purgeable_heap_free`.
    uint64_t word = atomic_exchange(purgeable__living_word(heap, spot), 0);
    freed += (uint32_t)__builtin_popcountll(word);
    for (; !at_once && word != 0; word &= word - 1) {
      spot.granule = first + (uint32_t)__builtin_ctzll(word);
      purgeable_reference_t reference = {(uint64_t)slab.index * heap->granules_per_slab + spot.granule, slab.generation};
      forget_payload(heap, spot, reference);
    }
  }
  // Page by page then, without a look at the elements. Whoever frees one at this moment finds its bytes gone from the books.
  uint64_t bytes = 0;
  for (size_t granule = 0; at_once && granule < end; granule += heap->page_bytes / PURGEABLE_GRANULE_BYTES) {
    spot.granule = (uint32_t)granule;
    bytes += atomic_exchange_explicit(purgeable__page_bytes(heap, spot), 0, memory_order_acq_rel);
  }
  atomic_fetch_sub_explicit(&spot.slab->living_bytes, bytes, memory_order_relaxed);
  atomic_fetch_sub_explicit(&heap->payload_bytes, bytes, memory_order_relaxed);
  atomic_fetch_sub_explicit(&heap->element_count, freed, memory_order_relaxed);
  atomic_fetch_sub(&spot.slab->living_count, freed);
  return freed;
}

int purgeable_heap_free(purgeable_heap_t *heap, purgeable_reference_t reference) {
  if (heap == NULL) return EINVAL;
  purgeable__enter(heap);
  purgeable__spot_t spot = purgeable__resolve(heap, reference);
  if (spot.slab == NULL) return ESTALE;
  uint64_t bit = (uint64_t)1 << (spot.granule % 64);
  // The bit makes one caller the one who frees; the slab cannot end its life until the count of the living goes down below.
  // A reference whose slab was given back since `resolve` finds the bit clear, unless an element of the next life begins at the
  // same granule: then the generation is asked again while the slab is pinned.
  int error = 0;
  // As many locks as the word can count (EOVERFLOW) hold the slab's life as well as a pin would.
  bool pinned = purgeable__pin(spot.slab, (uint32_t)reference.generation, &error);
  if (!pinned && error != EOVERFLOW) return ESTALE;
  uint32_t length;
  if ((atomic_fetch_and(purgeable__living_word(heap, spot), ~bit) & bit) != 0) {
    forget_payload(heap, spot, reference);
    atomic_fetch_sub_explicit(&heap->element_count, 1, memory_order_relaxed);
    // Sequentially consistent: before the look at the lock count in unpin (3 in heap_slab.c).
    atomic_fetch_sub(&spot.slab->living_count, 1);
    error = 0;
  } else if (is_being_written(heap, spot, reference, &length) && abandon(heap, spot, reference, length)) {
    // The writer's count goes.
    atomic_fetch_sub_explicit(&heap->written_bytes, length, memory_order_relaxed);
    purgeable__unpin(heap, spot);
    error = 0;
  } else {
    error = ESTALE;
  }
  if (pinned) purgeable__unpin(heap, spot);
  return error;
}
