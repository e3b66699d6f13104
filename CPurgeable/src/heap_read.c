// SPDX-License-Identifier: MIT
// Looking at elements: reads without a lock, and locks.
//
// A read without lock, on one CPU from arming the sentinel to testing it:
//
//     generation -> header -> copy -> witnesses -> header -> generation -> sentinel
//
//  - A discard makes the page zeros at one moment and for good. The copy is before the look at the page's witness: if the witness
//    still stands, so did every byte of the page when it was copied. The header comes after the witnesses because the table of
//    witnesses lies in its page. All of it is one CPU's view of the page tables, which is what the sentinel proves.
//  - Between two lives of a slab the generation changes before the wipe. If it is unchanged at the end, no byte of another life
//    was copied: those are written after the wipe, which is after the change.
//  - A length is trusted only as part of a header whose check fits.

#include "heap_internal.h"

enum { READ_TRIES = 1000 };

// MARK: Common

static bool generation_holds(purgeable__slab_t *slab, uint32_t generation) {
  uint64_t word = atomic_load_explicit(&slab->word, memory_order_acquire);
  return GENERATION(word) == generation && (word & DYING) == 0;
}

static size_t page_of(const purgeable_heap_t *heap, purgeable__spot_t spot) {
  return ((size_t)spot.granule * PURGEABLE_GRANULE_BYTES) >> heap->page_shift;
}

// Looks at the witnesses of the pages that [from, to) of the payload touches. False: a page is gone, `*lost_page` says which.
static bool witnesses_stand(const purgeable_heap_t *heap, purgeable__spot_t spot, purgeable__layout_t layout, size_t from,
                            size_t to, size_t *lost_page) {
  if (layout.more_pages == 0) return true;
  size_t start = (size_t)spot.granule * PURGEABLE_GRANULE_BYTES + layout.payload_offset;
  size_t first = ((start + from) >> heap->page_shift) - layout.first_page;
  size_t last = ((start + (to > from ? to - 1 : from)) >> heap->page_shift) - layout.first_page;
  for (size_t number = first == 0 ? 1 : first; number <= last; number++) {
    uint16_t entry;
    _Atomic uint64_t *witness = purgeable__witness(heap, spot, layout, (uint32_t)number, &entry);
    if (entry == WITNESS_ZEROS) continue;
    if (witness == NULL || purgeable__load_unsettled(witness) == 0) {
      *lost_page = layout.first_page + (witness == NULL ? 0 : number);
      return false;
    }
  }
  return true;
}

// What a read wants: the whole with a capacity, a part, or what follows a known prefix.
typedef struct wish {
  enum { wish_whole, wish_part, wish_rest } kind;
  const void *prefix;
  size_t prefix_bytes, skip_bytes;
  size_t offset, length;  // of a part
  void *buffer;
  size_t capacity;
  // How much of it earlier pieces have settled.
  size_t done_bytes;
  // Answers.
  size_t answer_bytes;
  bool matches;
  int error;
} wish_t;

// A read goes in pieces, each with a sentinel of its own: a thread is preempted every few milliseconds, so over many MiB in one
// go no sentinel would stand. Each piece is proven to be of the same element, whose content never changes, so all of them are.
enum { PIECE_BYTES = 64 << 10, PIECE_BYTES_LOOKED_AT = 2 << 20 };

// The next piece of what is wished, [*from, *to) of the payload, and whether more follow. Sets the wish's error.
static bool plan_piece(wish_t *wish, size_t length, size_t *from, size_t *to) {
  size_t start = 0, end = length, piece = wish->buffer == NULL ? PIECE_BYTES_LOOKED_AT : PIECE_BYTES;
  if (wish->kind == wish_whole && wish->buffer != NULL && wish->capacity < length) {
    wish->error = ENOBUFS;
    end = 0;
  } else if (wish->kind == wish_part) {
    if (wish->offset > length || wish->length > length - wish->offset) {
      wish->error = ERANGE;
      end = 0;
    } else {
      start = wish->offset;
      end = start + wish->length;
    }
  } else if (wish->kind == wish_rest && wish->done_bytes == 0) {
    piece = piece > wish->prefix_bytes ? piece : wish->prefix_bytes;
  }
  start += wish->done_bytes;
  // Nothing at the very end belongs to the last byte's page.
  *from = start < length ? start : length - 1;
  *to = end <= start ? *from : end < start + piece ? end : start + piece;
  return start < end && *to < end;
}

// Copies a piece; shortens it, with nothing to follow, where a prefix differs or a buffer is too small.
static bool copy_piece(wish_t *wish, const char *payload, size_t length, size_t from, size_t *to, bool more) {
  size_t answer_from = wish->offset;
  switch (wish->kind) {
    case wish_whole:
      wish->answer_bytes = length;
      if (wish->buffer == NULL) return more;
      break;
    case wish_part: break;
    case wish_rest:
      if (wish->done_bytes == 0) {
        wish->matches = length >= wish->prefix_bytes && purgeable__equal_unsettled(payload, wish->prefix, wish->prefix_bytes);
        size_t known = wish->prefix_bytes + wish->skip_bytes;
        wish->answer_bytes = wish->matches && length > known ? length - known : 0;
        if (!wish->matches || wish->capacity < wish->answer_bytes) {
          *to = wish->prefix_bytes < length ? wish->prefix_bytes : length;
          return false;
        }
      }
      answer_from = length - wish->answer_bytes;
      if (from < answer_from) from = answer_from;
      break;
  }
  if (wish->error != 0 || from >= *to) return more;
  purgeable__copy_unsettled((char *)wish->buffer + (from - answer_from), payload + from, *to - from);
  return more;
}

// `error` of the wish is set only together with intact: then the answer is that error.
static purgeable_outcome_t read_unlocked(purgeable_heap_t *heap, purgeable__spot_t spot, purgeable_reference_t reference,
                                         wish_t *wish) {
  uint32_t generation = (uint32_t)reference.generation;
  purgeable__slab_t *slab = spot.slab;
  _Atomic uint64_t *header_word = purgeable__header_at(spot);
  for (int tries = 0; tries < READ_TRIES; tries++) {
    wish->error = 0;
    if (!generation_holds(slab, generation)) return purgeable_outcome_busy;
    purgeable__sentinel_t sentinel = purgeable__sentinel_arm();
    uint64_t header = purgeable__load_unsettled(header_word);
    size_t length = (uint32_t)header;
    size_t lost_page = page_of(heap, spot), from = 0, to = 0;
    bool valid = header == purgeable__header(heap, reference.place, generation, (uint32_t)length) && length != 0;
    bool stands = false, more = false, unchanged = generation_holds(slab, generation);
    if (valid && unchanged) {
      purgeable__layout_t layout = purgeable__layout(heap, spot.granule, length);
      bool in_order = PURGEABLE_RULE(order_of_checks);
      more = plan_piece(wish, length, &from, &to);
      // Without a sentinel, a look before the copy as well makes the wrong interleavings rarer, not impossible.
      if (!in_order || sentinel == NULL) stands = witnesses_stand(heap, spot, layout, from, to, &lost_page);
      more = copy_piece(wish, (const char *)header_word + layout.payload_offset, length, from, &to, more);
      // Acquire: the copy's loads come before the checks' loads.
      atomic_thread_fence(memory_order_acquire);
      PURGEABLE_TEST_PAUSE();
      if (in_order && (stands || sentinel != NULL)) {
        stands = witnesses_stand(heap, spot, layout, from, to, &lost_page) &&
                 purgeable__load_unsettled(header_word) == header;
        unchanged = generation_holds(slab, generation);
      }
    }
    bool one_view = purgeable__sentinel_holds(sentinel);
    purgeable__sentinel_disarm(sentinel);
    if (!one_view) continue;
    if (!unchanged) return purgeable_outcome_busy;
    if (valid && stands && !more) return purgeable_outcome_intact;
    if (valid && stands) {
      wish->done_bytes += to - from;
      tries = -1;
      continue;
    }
    if (!valid && header != 0) {
      wish->error = ESTALE;
      return purgeable_outcome_error;
    }
    // Gone, in a life that is still going on.
    return purgeable__mark_lost(heap, spot, generation, lost_page) ? purgeable_outcome_discarded : purgeable_outcome_busy;
  }
  // Preempted a thousand times within a few microseconds each: not on this planet, but not a reason to hang either.
  return purgeable_outcome_busy;
}

// Entry for references: the directory of the living is asked first.
static purgeable_outcome_t read_reference(purgeable_heap_t *heap, purgeable_reference_t reference, wish_t *wish) {
  purgeable__enter(heap);
  purgeable__spot_t spot = purgeable__resolve(heap, reference);
  if (spot.slab == NULL || !purgeable__is_living(heap, spot)) {
    errno = ESTALE;
    return purgeable_outcome_error;
  }
  purgeable_outcome_t outcome = read_unlocked(heap, spot, reference, wish);
  if (outcome == purgeable_outcome_busy && !generation_holds(spot.slab, (uint32_t)reference.generation)) {
    errno = ESTALE;
    return purgeable_outcome_error;
  }
  if (outcome == purgeable_outcome_error || (outcome == purgeable_outcome_intact && wish->error != 0)) {
    errno = wish->error;
    return purgeable_outcome_error;
  }
  return outcome;
}

// MARK: Reads without lock

purgeable_outcome_t purgeable_heap_read(purgeable_heap_t *heap, purgeable_reference_t reference, void *buffer,
                                        size_t capacity_bytes, size_t *length_bytes) {
  if (heap == NULL || (buffer == NULL && capacity_bytes != 0)) {
    errno = EINVAL;
    return purgeable_outcome_error;
  }
  char nothing;
  wish_t wish = {.kind = wish_whole, .buffer = buffer == NULL ? &nothing : buffer, .capacity = capacity_bytes};
  purgeable_outcome_t outcome = read_reference(heap, reference, &wish);
  bool known = outcome == purgeable_outcome_intact || (outcome == purgeable_outcome_error && wish.error == ENOBUFS);
  if (length_bytes != NULL && known) *length_bytes = wish.answer_bytes;
  return outcome;
}

purgeable_outcome_t purgeable_heap_read_part(purgeable_heap_t *heap, purgeable_reference_t reference, size_t offset_bytes,
                                             size_t length_bytes, void *buffer) {
  if (heap == NULL || (buffer == NULL && length_bytes != 0)) {
    errno = EINVAL;
    return purgeable_outcome_error;
  }
  char nothing;
  wish_t wish = {.kind = wish_part, .buffer = buffer == NULL ? &nothing : buffer, .offset = offset_bytes, .length = length_bytes};
  return read_reference(heap, reference, &wish);
}

purgeable_outcome_t purgeable_heap_check(purgeable_heap_t *heap, purgeable_reference_t reference) {
  if (heap == NULL) {
    errno = EINVAL;
    return purgeable_outcome_error;
  }
  wish_t wish = {.kind = wish_whole};
  return read_reference(heap, reference, &wish);
}

purgeable_outcome_t purgeable_heap_length(purgeable_heap_t *heap, purgeable_reference_t reference, size_t *length_bytes) {
  if (heap == NULL || length_bytes == NULL) {
    errno = EINVAL;
    return purgeable_outcome_error;
  }
  char nothing;
  wish_t wish = {.kind = wish_whole, .buffer = &nothing};
  purgeable_outcome_t outcome = read_reference(heap, reference, &wish);
  if (outcome != purgeable_outcome_error || wish.error != ENOBUFS) return outcome;
  *length_bytes = wish.answer_bytes;
  return purgeable_outcome_intact;
}

purgeable_outcome_t purgeable_heap_read_matching(purgeable_heap_t *heap, purgeable_reference_t reference, const void *prefix,
                                                 size_t prefix_bytes, size_t skip_bytes, void *buffer,
                                                 size_t capacity_bytes, size_t *rest_bytes, bool *matches) {
  purgeable__spot_t spot = purgeable__find(heap, reference.place);
  if (spot.slab == NULL) return purgeable_outcome_busy;
  wish_t wish = {.kind = wish_rest, .prefix = prefix, .prefix_bytes = prefix_bytes, .skip_bytes = skip_bytes,
                 .buffer = buffer, .capacity = capacity_bytes};
  purgeable_outcome_t outcome = read_unlocked(heap, spot, reference, &wish);
  if (outcome == purgeable_outcome_error) return purgeable_outcome_busy;
  *rest_bytes = wish.answer_bytes;
  *matches = wish.matches;
  return outcome;
}

int purgeable_heap_tag(purgeable_heap_t *heap, purgeable_reference_t reference, uint64_t *tag) {
  if (heap == NULL || tag == NULL) return EINVAL;
  if (!heap->keeps_tags) return ENOTSUP;
  purgeable__enter(heap);
  purgeable__spot_t spot = purgeable__resolve(heap, reference);
  int error;
  if (spot.slab == NULL || !purgeable__pin(spot.slab, (uint32_t)reference.generation, &error)) return ESTALE;
  error = ESTALE;
  // Acquire: pairs with `purgeable__link`.
  purgeable_stream_t stream = atomic_load_explicit(&spot.slab->stream, memory_order_acquire);
  // The stream's mutex: an open slab's table may be growing.
  pthread_mutex_lock(&heap->control->streams[stream]);
  if (purgeable__is_living(heap, spot)) {
    error = 0;
    *tag = purgeable__tag_of(heap, spot);
  }
  pthread_mutex_unlock(&heap->control->streams[stream]);
  purgeable__unpin(heap, spot);
  return error;
}

uint64_t purgeable__tag_of(purgeable_heap_t *heap, purgeable__spot_t spot) {
  if (!heap->keeps_tags) return 0;
  purgeable__tag_t *tags = spot.slab->tags;
  uint32_t low = 0, high = spot.slab->tag_count;
  while (low < high) {
    uint32_t middle = low + (high - low) / 2;
    if (tags[middle].granule < spot.granule) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  assert(low < spot.slab->tag_count && tags[low].granule == spot.granule);
  uint64_t tag;
  memcpy(&tag, tags[low].parts, sizeof tag);
  return tag;
}

// MARK: Locks

// Rescues every page of the element. False: one is gone, `*lost_page` says which; what was rescued before it is off offer now.
static bool rescue_pages(purgeable_heap_t *heap, purgeable__spot_t spot, purgeable__layout_t layout, uint64_t *rescued,
                         size_t *lost_page) {
  for (uint32_t number = 1; number <= layout.more_pages; number++) {
    uint16_t entry;
    _Atomic uint64_t *witness = purgeable__witness(heap, spot, layout, number, &entry);
    if (entry == WITNESS_ZEROS) continue;
    if (witness == NULL || !purgeable__rescue(witness)) {
      *lost_page = layout.first_page + number;
      return false;
    }
    *rescued |= purgeable__page_bit(spot.slab, layout.first_page + number);
  }
  return true;
}

// Books a lock, unless the limit is in the way.
static bool book_lock(purgeable_heap_t *heap, size_t length_bytes) {
  uint64_t sum = atomic_fetch_add_explicit(&heap->locked_bytes, length_bytes, memory_order_relaxed) + length_bytes;
  uint64_t limit = atomic_load_explicit(&heap->locked_limit_bytes, memory_order_relaxed);
  if (limit == 0 || sum <= limit) return true;
  atomic_fetch_sub_explicit(&heap->locked_bytes, length_bytes, memory_order_relaxed);
  atomic_fetch_add_explicit(&heap->refused_lock_count, 1, memory_order_relaxed);
  return false;
}

purgeable_outcome_t purgeable_heap_lock(purgeable_heap_t *heap, purgeable_reference_t reference, const void **bytes,
                                        size_t *length_bytes) {
  if (heap == NULL) {
    errno = EINVAL;
    return purgeable_outcome_error;
  }
  purgeable__enter(heap);
  purgeable__spot_t spot = purgeable__find(heap, reference.place);
  int error = ESTALE;
  if (spot.slab == NULL || reference.generation == 0 || reference.generation > UINT32_MAX ||
      !purgeable__pin(spot.slab, (uint32_t)reference.generation, &error)) {
    errno = error;
    return purgeable_outcome_error;
  }
  purgeable__wait_for_offer(heap, spot.slab);

  purgeable_outcome_t outcome = purgeable_outcome_error;
  uint64_t header = 0;
  size_t lost_page = page_of(heap, spot);
  // Booked by the length that the header tells before anything is dirtied; a header that is gone, or is none, books 0.
  size_t booked = 0;
  if (purgeable__is_living(heap, spot)) {
    _Atomic uint64_t *header_word = purgeable__header_at(spot);
    header = atomic_load_explicit(header_word, memory_order_acquire);
    if (header == purgeable__header(heap, reference.place, (uint32_t)reference.generation, (uint32_t)header)) {
      booked = (uint32_t)header;
      if (!book_lock(heap, booked)) {
        purgeable__unpin(heap, spot);
        errno = EAGAIN;
        return purgeable_outcome_error;
      }
    }
    // The header is its page's witness; rescued first, so that what it vouches for stays.
    bool here = purgeable__rescue(header_word);
    header = atomic_load_explicit(header_word, memory_order_acquire);
    size_t length = (uint32_t)header;
    uint64_t rescued = here ? purgeable__page_bit(spot.slab, lost_page) : 0;
    if (!here) {
      outcome = purgeable_outcome_discarded;
    } else if (header == purgeable__header(heap, reference.place, (uint32_t)reference.generation, (uint32_t)length)) {
      purgeable__layout_t layout = purgeable__layout(heap, spot.granule, length);
      outcome = rescue_pages(heap, spot, layout, &rescued, &lost_page) ? purgeable_outcome_intact : purgeable_outcome_discarded;
      if (outcome == purgeable_outcome_intact) {
        if (bytes != NULL) *bytes = (const char *)header_word + layout.payload_offset;
        if (length_bytes != NULL) *length_bytes = length;
        // What was read before the rescue is this life's header or, on a page that is gone, none.
        assert(booked == length);
      }
    }
    // Off offer until the slab is idle again. A failed rescue gives nothing back: neighbours may be locked on the same page.
    if (rescued != 0) {
      atomic_fetch_and_explicit(&spot.slab->offered, ~rescued, memory_order_relaxed);
      // So that the upkeep sees slabs whose holders overlap for ever (`note_busy`).
      atomic_store_explicit(&heap->pending, true, memory_order_relaxed);
    }
  }
  if (outcome == purgeable_outcome_intact) return outcome;
  if (booked != 0) atomic_fetch_sub_explicit(&heap->locked_bytes, booked, memory_order_relaxed);
  if (outcome == purgeable_outcome_discarded) {
    (void)purgeable__mark_lost(heap, spot, (uint32_t)reference.generation, lost_page);
  }
  purgeable__unpin(heap, spot);
  if (outcome == purgeable_outcome_error) errno = ESTALE;
  return outcome;
}

int purgeable_heap_unlock(purgeable_heap_t *heap, purgeable_reference_t reference) {
  if (heap == NULL) return EINVAL;
  purgeable__enter(heap);
  purgeable__spot_t spot = purgeable__resolve(heap, reference);
  if (spot.slab == NULL) return ESTALE;
  bool is_locked = (atomic_load_explicit(&spot.slab->word, memory_order_relaxed) & COUNT_MASK) != 0;
  if (is_locked) {
    uint64_t header = atomic_load_explicit(purgeable__header_at(spot), memory_order_relaxed);
    uint32_t length = (uint32_t)header;
    if (header != purgeable__header(heap, reference.place, (uint32_t)reference.generation, length)) return ESTALE;
    if (purgeable__unpin(heap, spot)) {
      atomic_fetch_sub_explicit(&heap->locked_bytes, length, memory_order_relaxed);
      return 0;
    }
  }
  atomic_fetch_add_explicit(&heap->unbalanced_unlock_count, 1, memory_order_relaxed);
  return EPERM;
}

// MARK: For owners that keep places only

uint32_t purgeable_heap_generation(const purgeable_heap_t *heap, uint64_t place) {
  purgeable__spot_t spot = purgeable__find(heap, place);
  if (spot.slab == NULL) return 0;
  // The caller reads the element next: its two lines come while the slab's word does.
  const char *element = spot.unit_base + (size_t)spot.granule * PURGEABLE_GRANULE_BYTES;
  __builtin_prefetch(element);
  __builtin_prefetch(element + 64);
  uint64_t word = atomic_load_explicit(&spot.slab->word, memory_order_acquire);
  return (word & DYING) != 0 ? 0 : GENERATION(word);
}

bool purgeable_heap_page_is_lost(const purgeable_heap_t *heap, uint64_t place) {
  purgeable__spot_t spot = purgeable__find(heap, place);
  if (spot.slab == NULL) return true;
  uint64_t bit = purgeable__page_bit(spot.slab, page_of(heap, spot));
  return (atomic_load_explicit(&spot.slab->lost, memory_order_acquire) & bit) != 0;
}

bool purgeable_heap_slab_has_losses(const purgeable_heap_t *heap, uint64_t place) {
  purgeable__spot_t spot = purgeable__find(heap, place);
  if (spot.slab == NULL) return true;
  return (atomic_load_explicit(&spot.chunk->lossy[spot.unit / 64], memory_order_acquire) >> (spot.unit % 64)) & 1;
}

purgeable_stream_t purgeable_heap_stream_at(const purgeable_heap_t *heap, uint64_t place) {
  purgeable__spot_t spot = purgeable__find(heap, place);
  return spot.slab == NULL ? 0 : atomic_load_explicit(&spot.slab->stream, memory_order_relaxed);
}

bool purgeable_heap_has_losses(const purgeable_heap_t *heap) {
  return atomic_load_explicit(&heap->lossy_count, memory_order_acquire) != 0;
}

void purgeable_heap_prefetch(const purgeable_heap_t *heap, uint64_t place) {
  purgeable__spot_t spot = purgeable__find(heap, place);
  if (spot.slab != NULL) __builtin_prefetch(spot.unit_base + (size_t)spot.granule * PURGEABLE_GRANULE_BYTES);
}

size_t purgeable_heap_find_losses(const purgeable_heap_t *heap, const void *slots, size_t slot_count, uint32_t place_bits,
                                  size_t *cursor, uint32_t *found, size_t capacity) {
  const _Atomic uint64_t *words = slots;
  uint64_t mask = ((uint64_t)1 << place_bits) - 1;
  uint32_t chunk_shift = heap->chunk_shift - 4, slab_shift = heap->slab_shift - 4;  // in granules of 16 bytes
  uint64_t within = ((uint64_t)1 << chunk_shift) - 1;
  uint32_t chunks = atomic_load_explicit(&heap->chunk_count, memory_order_acquire);
  size_t count = 0, number = *cursor;
  for (; number < slot_count && count < capacity; number++) {
    uint64_t place = atomic_load_explicit(&words[number], memory_order_relaxed) & mask;
    if (place == 0) continue;
    place--;
    if (place >> chunk_shift >= chunks) continue;
    // Nearly every slot ends here: three loads that stay in the cache.
    const purgeable__chunk_t *chunk = atomic_load_explicit(&heap->chunks[place >> chunk_shift], memory_order_relaxed);
    size_t unit = (size_t)((place & within) >> slab_shift);
    if (((atomic_load_explicit(&chunk->lossy[unit / 64], memory_order_relaxed) >> (unit % 64)) & 1) == 0) continue;
    // In a slab of small elements the header's page decides; others have to be looked at.
    bool spans = atomic_load_explicit(&chunk->slabs[unit].spans_pages, memory_order_relaxed);
    if (spans || purgeable_heap_page_is_lost(heap, place)) found[count++] = (uint32_t)number;
  }
  *cursor = number;
  return count;
}
