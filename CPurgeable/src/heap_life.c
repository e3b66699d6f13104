// SPDX-License-Identifier: MIT
// A heap as a whole: its creation, its limits and its end.

#include "heap_fork.h"
#include "heap_give_back.h"

// MARK: Creation

static bool is_power_of_two(size_t value) { return value != 0 && (value & (value - 1)) == 0; }

// A granule's number in a tag has 16 bits.
#define TAGGED_SLAB_BYTES_MAX ((size_t)0x10000 * PURGEABLE_GRANULE_BYTES)

static size_t default_slab_bytes(size_t page, size_t limit, bool keeps_tags) {
  size_t slab = page * (limit != 0 && limit < ((size_t)4 << 20) ? 4 : limit >= ((size_t)1 << 30) ? 64 : 16);
  while (keeps_tags && slab > TAGGED_SLAB_BYTES_MAX) slab /= 2;
  return slab;
}

size_t purgeable_testing_default_slab_bytes(size_t page_bytes, size_t byte_limit, bool keeps_tags) {
  return default_slab_bytes(page_bytes, byte_limit, keeps_tags);
}

static int choose_sizes(purgeable_heap_t *heap, const purgeable_heap_options_t *options) {
  size_t limit = options->byte_limit, page = purgeable_page_size_bytes();
  size_t slab = options->slab_bytes, chunk = options->chunk_bytes;
  if (slab == 0) slab = default_slab_bytes(page, limit, options->keeps_tags);
  if (!is_power_of_two(slab) || slab < page || slab > 64 * page) return EINVAL;
  if (chunk == 0) {
    chunk = (size_t)64 << 20;
    // A heap with a small limit never needs more than twice the limit at a time.
    while (limit != 0 && chunk / 4 >= limit && chunk / 2 >= 16 * slab) chunk /= 2;
  }
  if (options->keeps_tags && slab > TAGGED_SLAB_BYTES_MAX) return EINVAL;
  if (!is_power_of_two(chunk) || chunk < 4 * slab || chunk > ((size_t)1 << 40)) return EINVAL;
  heap->page_bytes = page;
  heap->slab_bytes = slab;
  heap->chunk_bytes = chunk;
  heap->page_shift = (uint32_t)__builtin_ctzll(page);
  heap->slab_shift = (uint32_t)__builtin_ctzll(slab);
  heap->chunk_shift = (uint32_t)__builtin_ctzll(chunk);
  heap->units_per_chunk = (uint32_t)(chunk / slab);
  heap->pages_per_slab = (uint32_t)(slab / page);
  heap->granules_per_slab = (uint32_t)(slab / PURGEABLE_GRANULE_BYTES);
  heap->chunk_place_shift = heap->chunk_shift - GRANULE_SHIFT;
  heap->slab_place_shift = heap->slab_shift - GRANULE_SHIFT;
  // Slabs are named by 32 bits, 0 being none; places by as many as their owner keeps, the last being left out for the same
  // reason.
  uint64_t count = (UINT32_MAX - 1) / heap->units_per_chunk;
  uint32_t bits = options->place_bits == 0 || options->place_bits > 60 ? 60 : options->place_bits;
  uint64_t places = (((uint64_t)1 << bits) - 1) >> heap->chunk_place_shift;
  if (places == 0) return EINVAL;
  heap->chunk_count_max = (uint32_t)(count < places ? count : places);
  assert(is_power_of_two(page) && heap->pages_per_slab <= 64 && heap->units_per_chunk >= 4);
  return 0;
}

int purgeable_heap_create(const purgeable_heap_options_t *options, purgeable_heap_t **out) {
  static const purgeable_heap_options_t none;
  if (out == NULL) return EINVAL;
  if (options == NULL) options = &none;
  size_t alignment = options->payload_alignment_bytes;
  if (alignment != 0 && alignment != 8 && alignment != 16) return EINVAL;
  if ((unsigned)options->offering > (unsigned)purgeable_offering_never) return EINVAL;
  purgeable_heap_t *heap = purgeable__allocate(1, sizeof *heap);
  if (heap == NULL) return ENOMEM;
  int error = choose_sizes(heap, options);
  if (error == 0) error = purgeable__make_common();
  if (error == 0) heap->control = purgeable__pair_take(&error);
  if (error != 0) {
    free(heap);
    return error;
  }
  heap->first_table = (purgeable__table_t){
      .capacity = TABLE_FIRST, .kinds = heap->first_kinds, .rooms = heap->first_rooms, .entries = heap->first_entries};
  heap->table = &heap->first_table;
  atomic_store(&heap->chunks, heap->first_entries);
  heap->offering = options->offering;
  heap->keeps_tags = options->keeps_tags;
  heap->keeps_ages = options->keeps_ages;
  uint64_t record = purgeable__round_up(heap->granules_per_slab / 8 + heap->pages_per_slab * sizeof(uint32_t), sizeof(uint64_t));
  if (heap->keeps_ages) record += sizeof(purgeable__ages_t);
  if (heap->keeps_tags) record += sizeof(purgeable__tag_t *);
  heap->record_bytes = (uint32_t)record;
  assert(record % sizeof(uint64_t) == 0 && sizeof(purgeable__control_t) <= heap->page_bytes);
  heap->moved = options->moved;
  heap->lead_bytes = alignment == 16 ? 8 : 0;
  heap->defers_compaction = options->defers_compaction;
  heap->defers_wipes = options->defers_wipes;
  heap->fills_whole = options->fills_whole;
  heap->context = options->context;
  (void)purgeable__random(heap->secret, sizeof heap->secret);
  atomic_store(&heap->byte_limit, options->byte_limit);
  atomic_store(&heap->locked_byte_limit, options->locked_byte_limit);
  atomic_store(&heap->stream_count, 1);
  // A mutex of zeros is a valid unlocked mutex on Linux. A forked child finds zeros here.
  atomic_store(&heap->control->alive, 1);
  atomic_store(&heap->ordinary_bytes, sizeof *heap + heap->page_bytes);
  error = purgeable__heap_register(heap);
  if (error != 0) {
    purgeable__pair_return(heap->control);
    free(heap);
    return error;
  }
  *out = heap;
  return 0;
}

int purgeable_heap_destroy(purgeable_heap_t *heap) {
  if (heap == NULL) return EINVAL;
  purgeable__enter(heap);
  int error = purgeable__heap_unregister(heap);
  if (error != 0) return error;
  purgeable__note_unoffered(-(int64_t)load_relaxed(&heap->unoffered_bytes));
  int first_error = purgeable__chunks_destroy(heap);
  for (uint32_t i = 0; i < atomic_load(&heap->stream_count); i++) free(purgeable__stream(heap, i)->spare_tags);
  for (uint32_t i = 0; i < STREAM_BLOCKS; i++) free(heap->stream_blocks[i]);
  purgeable__pair_return(heap->control);
  free(heap);
  return first_error;
}

size_t purgeable_heap_slab_bytes(const purgeable_heap_t *heap) { return heap == NULL ? 0 : heap->slab_bytes; }

// MARK: Limits

// For a heap that compacts: what the heap holds, if the limit leaves no further slab.
static int note_held(purgeable_heap_t *heap, size_t byte_limit) {
  uint64_t held = byte_limit == 0 ? 0 : purgeable_heap_charged_bytes(heap);
  bool leaves_none = held + heap->slab_bytes > byte_limit;
  store_relaxed(&heap->held_at_limit, leaves_none ? held : 0);
  return 0;
}

int purgeable_heap_set_byte_limit(purgeable_heap_t *heap, size_t byte_limit) {
  if (heap == NULL) return EINVAL;
  // Set again and again by owners that count their own memory against it: only a change is written.
  if (load_relaxed(&heap->byte_limit) != byte_limit) {
    store_relaxed(&heap->byte_limit, byte_limit);
    uint64_t kept = load_relaxed(&heap->kept_bytes);
    if (kept != 0 && byte_limit != 0 && purgeable_heap_charged_bytes(heap) + kept > byte_limit) {
      purgeable__enter(heap);
      purgeable__give_back_kept(heap);
    }
  }
  return heap->moved == NULL ? 0 : note_held(heap, byte_limit);
}

int purgeable_heap_set_locked_byte_limit(purgeable_heap_t *heap, size_t byte_limit) {
  if (heap == NULL) return EINVAL;
  store_relaxed(&heap->locked_byte_limit, byte_limit);
  return 0;
}
