// SPDX-License-Identifier: MIT
// Room for an element: behind the last one of its stream's open slab, in a slab that begins, or in a run of its own.

#include "heap_allocate.h"

#include "heap_books.h"
#include "heap_give_back.h"
#include "heap_kept.h"
#include "heap_layout.h"
#include "heap_list.h"
#include "heap_release.h"
#include "heap_units.h"

// MARK: Where it goes

static bool is_large(const purgeable_heap_t *heap, size_t length_bytes) {
  return length_bytes + PURGEABLE_HEADER_BYTES > heap->slab_bytes / 2;
}

// Where an element of this length goes in an open slab: at the first free granule, or at the next page where it would otherwise
// cross into it needlessly or tear header from table.
static uint32_t place_in_slab(const purgeable_heap_t *heap, uint32_t granule, size_t length_bytes) {
  assert(granule <= heap->granules_per_slab);
  purgeable__layout_t layout = purgeable__layout(heap, granule, length_bytes);
  size_t start = (size_t)granule * PURGEABLE_GRANULE_BYTES;
  size_t next_page = purgeable__round_up(start, heap->page_bytes);
  size_t header_end = start + heap->lead_bytes + layout.payload_offset;
  bool small = length_bytes + PURGEABLE_HEADER_BYTES <= SMALL_TOTAL_MAX;
  if (layout.more_pages > 0 && next_page != start && (small || header_end > next_page)) {
    return (uint32_t)(next_page / PURGEABLE_GRANULE_BYTES);
  }
  return granule;
}

// Appends the tag in birth order. The table of an open slab is the stream's spare one, which has been large enough before; a
// sealed slab gets one that fits (`purgeable__seal`), a large one is born with it. Stream's mutex held.
static int keep_tag(purgeable_heap_t *heap, purgeable__spot_t spot, uint32_t granule, uint64_t tag) {
  purgeable__slab_t *slab = spot.slab;
  purgeable__tag_t **table = purgeable__tags_at(heap, spot.chunk, spot.unit);
  purgeable__stream_t *list = purgeable__stream(heap, load_relaxed(&slab->stream));
  bool large = purgeable__is_large_slab(slab);
  assert(heap->keeps_tags && granule <= UINT16_MAX);
  assert(purgeable__is_held(purgeable__stream_mutex(heap, load_relaxed(&slab->stream))));
  if (*table == NULL && !large) {
    *table = list->spare_tags;
    list->spare_tags = NULL;
    slab->tag_count = 0;
  }
  uint32_t capacity = large || *table == NULL ? 0 : list->tag_capacity;
  if (*table == NULL || slab->tag_count == capacity) {
    uint32_t now = large ? 1 : capacity == 0 ? 32 : capacity + capacity / 2;
    purgeable__tag_t *tags = purgeable__resize(*table, now * sizeof *tags);
    if (tags == NULL) return ENOMEM;
    *table = tags;
    if (!large) list->tag_capacity = now;
    add_relaxed(&heap->ordinary_bytes, (now - capacity) * sizeof *tags);
  }
  assert(slab->tag_count == 0 || (*table)[slab->tag_count - 1].granule < granule);
  purgeable__tag_t *entry = &(*table)[slab->tag_count++];
  entry->granule = (uint16_t)granule;
  memcpy(entry->parts, &tag, sizeof tag);
  return 0;
}

// MARK: A slab begins

static uint64_t sum(uint64_t one, uint64_t other) { return one > UINT64_MAX - other ? UINT64_MAX : one + other; }

uint64_t purgeable__limit_of_allocations(const purgeable_heap_t *heap, uint64_t limit) {
  bool reserves = heap->moved != NULL && heap->defers_compaction && limit > 2 * heap->slab_bytes;
  return reserves ? limit - heap->slab_bytes : limit;
}

uint64_t purgeable__limit_of_copies(const purgeable_heap_t *heap) {
  uint64_t limit = load_relaxed(&heap->byte_limit);
  if (limit == 0) return 0;
  uint64_t held = load_relaxed(&heap->held_at_limit);
  if (!heap->defers_compaction) limit = sum(limit, heap->slab_bytes);
  return held != 0 && sum(held, heap->slab_bytes) > limit ? sum(held, heap->slab_bytes) : limit;
}

// Begins a slab, or a large run of `units`. Stream's mutex held.
static int begin_slab(purgeable_heap_t *heap, purgeable_stream_t stream, uint32_t units, size_t bytes, uint64_t byte_limit,
                      purgeable__slab_state_t state, purgeable__spot_t *spot) {
  assert(purgeable__is_held(purgeable__stream_mutex(heap, stream)));
  assert(bytes != 0 && bytes <= (size_t)units << heap->slab_shift);
  // While slabs are given back in bulk, the allocations of copies do not trigger the deferred wipes.
  if (load_relaxed(&heap->giving_count) == 0) purgeable__wipe_unwiped(heap);
  bool dropped = false;
  pthread_mutex_lock(&heap->control->mutex);
  uint64_t held = purgeable_heap_charged_bytes(heap);
  int error = byte_limit != 0 && (held > byte_limit || bytes > byte_limit - held) ? ENOMEM : 0;
  if (error == 0 && state == slab_open && purgeable__kept_pop(heap, spot)) {
    // The slab holds its pages already.
    subtract_relaxed(&heap->held_bytes, purgeable__slab_held_bytes(heap, spot->slab));
    purgeable__units_begin_again(heap, *spot);
  } else if (error == 0) {
    error = purgeable__units_take(heap, units, bytes, state, spot);
  }
  if (error == 0) {
    purgeable__list_insert(heap, *spot, stream, false);
    add_relaxed(&heap->held_bytes, bytes);
    add_relaxed(&heap->slab_count, 1);
    // What is kept must not take the heap above its limit.
    bool is_above = byte_limit != 0 && held + bytes + load_relaxed(&heap->kept_bytes) > byte_limit;
    dropped = is_above && purgeable__drop_kept(heap, 0);
  }
  pthread_mutex_unlock(&heap->control->mutex);
  if (dropped && load_relaxed(&heap->giving_count) == 0) purgeable__wipe_unwiped(heap);
  return error;
}

// MARK: Room

// Notes the element as being written: counted in the slab's word by the caller, marked by a header that no look-up accepts.
static void begin_element(purgeable_heap_t *heap, purgeable__spot_t spot, uint32_t generation, size_t length_bytes,
                          purgeable_reference_t *reference, void **bytes) {
  uint64_t place = purgeable__place_of(heap, spot);
  uint64_t header = purgeable__header(heap, place, generation, (uint32_t)length_bytes);
  // The first new byte of the element comes after the slab's new generation, also where no wipe stands between the two. Pairs
  // with the acquire fence of a read after its copy (4 in heap_word.c).
  atomic_thread_fence(memory_order_release);
  store_relaxed(purgeable__header_at(spot), purgeable__header_while_written(header));
  purgeable__layout_t layout = purgeable__layout(heap, spot.granule, length_bytes);
  *reference = (purgeable_reference_t){place, generation};
  *bytes = (char *)purgeable__header_at(spot) + layout.payload_offset;
  purgeable__clear_standing(heap, spot, *bytes, length_bytes);
  assert(((uintptr_t)*bytes & (heap->lead_bytes == 0 ? 7 : 15)) == 0);
  add_relaxed(&purgeable__tally(heap)->written_bytes, length_bytes);
}

static int allocate_large(purgeable_heap_t *heap, purgeable_stream_t stream, size_t length_bytes, uint64_t tag,
                          uint64_t byte_limit, purgeable__spot_t *spot) {
  size_t total = purgeable__layout(heap, 0, length_bytes).total_bytes;
  size_t bytes = purgeable__round_up(total, heap->page_bytes);
  uint32_t units = (uint32_t)((bytes + heap->slab_bytes - 1) >> heap->slab_shift);
  int error = begin_slab(heap, stream, units, bytes, byte_limit, slab_large, spot);
  if (error != 0) return error;
  // The writer's count is there from birth: others find the slab in its stream from here on.
  PURGEABLE_TEST_PAUSE();
  store_relaxed(&spot->slab->filler, purgeable__own_filler());
  store_release(&spot->slab->used_granule_count, (uint32_t)(total / PURGEABLE_GRANULE_BYTES));
  if (heap->keeps_tags && keep_tag(heap, *spot, 0, tag) != 0) {
    // If this was the last count of a sealed slab without elements, gives the slab back.
    purgeable__release(heap, *spot);
    return ENOMEM;
  }
  return 0;
}

// Stream's mutex held.
static int allocate_small(purgeable_heap_t *heap, purgeable_stream_t stream, size_t length_bytes, uint64_t tag,
                          uint64_t byte_limit, purgeable__spot_t *spot) {
  purgeable__stream_t *list = purgeable__stream(heap, stream);
  // What a compaction has begun beyond the limit is for its copies: filled by others, it would win nothing from then on.
  if (heap->moved != NULL && byte_limit != 0 && purgeable_heap_charged_bytes(heap) > byte_limit) return ENOMEM;
  for (;;) {
    if (list->open == 0) {
      int error = begin_slab(heap, stream, 1, heap->slab_bytes, byte_limit, slab_open, spot);
      if (error != 0) return error;
      list->open = purgeable__unit_number(heap, *spot) + 1;
    }
    *spot = purgeable__find_unit(heap, list->open - 1);
    purgeable__slab_t *slab = spot->slab;
    assert(load_relaxed(&slab->state) == slab_open && load_relaxed(&slab->stream) == stream);
    uint32_t used = load_relaxed(&slab->used_granule_count);
    uint32_t granule = place_in_slab(heap, used, length_bytes);
    assert(granule >= used);
    purgeable__layout_t layout = purgeable__layout(heap, granule, length_bytes);
    size_t end = (size_t)granule * PURGEABLE_GRANULE_BYTES + layout.total_bytes;
    if (end > heap->slab_bytes) {
      list->open = 0;
      purgeable__seal(heap, *spot);
      continue;
    }
    uint32_t generation = purgeable__slab_generation(slab);
    // Counted before the room is taken: an offer that begins now sees either the count or the old end.
    int error = purgeable__pin(slab, generation);
    if (error != 0) return error == EOVERFLOW ? EAGAIN : error;
    if (heap->keeps_tags) error = keep_tag(heap, *spot, granule, tag);
    if (error != 0) {
      purgeable__release(heap, *spot);
      return error;
    }
    spot->granule = granule;
    uint16_t filler = purgeable__own_filler();
    if (load_relaxed(&slab->filler) != filler) {
      store_relaxed(&slab->filler, used == 0 ? filler : 0);
    }
    if (layout.more_pages > 0) purgeable__set_trait(slab, trait_spans_pages, true);
    // The end of the used part never moves back, even if this element is abandoned.
    store_release(&slab->used_granule_count, (uint32_t)(end / PURGEABLE_GRANULE_BYTES));
    return 0;
  }
}

int purgeable__allocate_element(purgeable_heap_t *heap, purgeable_stream_t stream, size_t length_bytes, uint64_t tag,
                                uint64_t byte_limit, purgeable_reference_t *reference, void **bytes, bool *is_fresh) {
  assert(length_bytes != 0 && length_bytes <= PURGEABLE_ELEMENT_BYTES_MAX);
  purgeable__spot_t spot;
  pthread_mutex_lock(purgeable__stream_mutex(heap, stream));
  uint32_t open_before = purgeable__stream(heap, stream)->open;
  int error = is_large(heap, length_bytes) ? allocate_large(heap, stream, length_bytes, tag, byte_limit, &spot)
                                           : allocate_small(heap, stream, length_bytes, tag, byte_limit, &spot);
  *is_fresh = purgeable__stream(heap, stream)->open != open_before;
  pthread_mutex_unlock(purgeable__stream_mutex(heap, stream));
  if (error != 0) return error;
  begin_element(heap, spot, purgeable__slab_generation(spot.slab), length_bytes, reference, bytes);
  return 0;
}
