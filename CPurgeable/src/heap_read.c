// SPDX-License-Identifier: MIT
// Looking at elements: reads without a lock. (Locks: heap_lock.c.)
//
// A read without lock, on one CPU from arming the sentinel to testing it:
//
//     generation -> header -> copy -> witnesses -> header -> generation -> sentinel
//
//  - A discard makes the page zeros at one moment and for good. The copy is before the look at the page's witness: if the witness
//    still stands, so did every byte of the page when it was copied. The header comes after the witnesses because the table of
//    witnesses lies in its page. All of it is one CPU's view of the page tables, which is what the sentinel proves.
//  - Between two lives of a slab the generation changes before the wipe. If it is unchanged at the end, no byte of another life
//    was copied: those are written after the wipe, which is after the change; or, where a slab is filled again without a wipe,
//    after a release fence that pairs with the acquire fence behind the copy.
//  - A length is trusted only as part of a header whose check fits.

#include "heap_books.h"
#include "heap_fork.h"
#include "heap_layout.h"
#include "heap_release.h"

enum { READ_TRIES = 1000 };

// MARK: Common

// Whether the life goes on; of what lies alone in its mapping only for who has counted up.
static inline bool generation_holds(const purgeable__slab_t *slab, uint32_t generation, bool may_be_alone) {
  uint64_t word = purgeable__slab_word_acquire(slab);
  return may_be_alone ? purgeable__is_of_life(word, generation) : purgeable__is_of_shared_life(word, generation);
}

// Looks at the witnesses of the pages that [from, to) of the payload touches. False: a page is gone, `*lost_page` says which.
static bool witnesses_stand(const purgeable_heap_t *heap, purgeable__spot_t spot, purgeable__layout_t layout, size_t from,
                            size_t to, size_t *lost_page) {
  if (layout.more_pages == 0) return true;
  size_t start = (size_t)spot.granule * PURGEABLE_GRANULE_BYTES + heap->lead_bytes + layout.payload_offset;
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

// What a read wants: the whole with a capacity, a look at the whole with as many of its first bytes as there is room for, a part,
// or what follows a known prefix.
typedef struct wish {
  enum { wish_whole, wish_start, wish_part, wish_rest } kind;
  const void *prefix;
  size_t prefix_bytes;
  void *head;
  size_t head_capacity;
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
enum { MOST_HEAD_BYTES = 1 + 7 * 8 + 1 + 255 };
enum { PIECE_BYTES = 64 << 10, PIECE_BYTES_LOOKED_AT = 2 << 20 };

// The next piece of what is wished, [*from, *to) of the payload, and whether more follow. Sets the wish's error.
static bool plan_piece(wish_t *wish, size_t length, size_t *from, size_t *to) {
  bool copies = wish->kind != wish_start || wish->done_bytes < wish->capacity;
  size_t start = 0, end = length, piece = copies ? PIECE_BYTES : PIECE_BYTES_LOOKED_AT;
  if (wish->kind == wish_whole && wish->capacity < length) {
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
    size_t least = wish->prefix_bytes + (wish->head == NULL ? 0 : MOST_HEAD_BYTES);
    piece = piece > least ? piece : least;
  }
  start += wish->done_bytes;
  // Nothing at the very end belongs to the last byte's page.
  *from = start < length ? start : length - 1;
  *to = end <= start ? *from : end < start + piece ? end : start + piece;
  return start < end && *to < end;
}

// Copies the head behind the prefix, and returns its length: 0 where there is none.
static size_t copy_head(wish_t *wish, const char *payload, size_t length) {
  size_t after = length - wish->prefix_bytes;
  if (wish->head == NULL || after == 0) return 0;
  const char *head = payload + wish->prefix_bytes;
  unsigned char flags;
  purgeable__copy_unsettled((char *)&flags, head, 1);
  size_t bytes = 1 + 8 * (size_t)__builtin_popcount(flags & 0x7f);
  if ((flags & 0x80) != 0 && bytes < after) {
    unsigned char text_bytes;
    purgeable__copy_unsettled((char *)&text_bytes, head + bytes, 1);
    bytes += 1 + (size_t)text_bytes;
  }
  if (bytes > after) bytes = after;
  purgeable__copy_unsettled(wish->head, head, bytes < wish->head_capacity ? bytes : wish->head_capacity);
  return bytes;
}

// Copies a piece; shortens it, with nothing to follow, where a prefix differs or a buffer is too small.
static bool copy_piece(wish_t *wish, const char *payload, size_t length, size_t from, size_t *to, bool more) {
  size_t answer_from = wish->offset, until = *to;
  switch (wish->kind) {
    case wish_whole: wish->answer_bytes = length; break;
    case wish_start:
      wish->answer_bytes = length;
      if (until > wish->capacity) until = wish->capacity;
      break;
    case wish_part: break;
    case wish_rest:
      if (wish->done_bytes == 0) {
        wish->matches = length >= wish->prefix_bytes && purgeable__equal_unsettled(payload, wish->prefix, wish->prefix_bytes);
        size_t rest_from = !wish->matches ? length : wish->prefix_bytes + copy_head(wish, payload, length);
        wish->answer_bytes = length - rest_from;
        if (!wish->matches || wish->capacity < wish->answer_bytes) {
          *to = wish->matches ? rest_from : wish->prefix_bytes < length ? wish->prefix_bytes : length;
          return false;
        }
      }
      answer_from = length - wish->answer_bytes;
      if (from < answer_from) from = answer_from;
      break;
  }
  if (wish->error != 0 || from >= until) return more;
  purgeable__copy_unsettled((char *)wish->buffer + (from - answer_from), payload + from, until - from);
  return more;
}

// `error` of the wish is set only together with intact: then the answer is that error.
static inline __attribute__((always_inline)) purgeable_outcome_t read_life(purgeable_heap_t *heap, purgeable__spot_t spot,
                                                                           purgeable_reference_t reference, wish_t *wish,
                                                                           bool may_be_alone) {
  uint32_t generation = (uint32_t)reference.generation;
  purgeable__slab_t *slab = spot.slab;
  _Atomic uint64_t *header_word = purgeable__header_at(spot);
  for (int tries = 0; tries < READ_TRIES; tries++) {
    wish->error = 0;
    if (!generation_holds(slab, generation, may_be_alone)) return purgeable_outcome_busy;
    purgeable__sentinel_t sentinel = purgeable__sentinel_arm();
    uint64_t header = purgeable__load_unsettled(header_word);
    size_t length = (uint32_t)header;
    size_t lost_page = purgeable__page_of(heap, spot), from = 0, to = 0;
    bool valid = header == purgeable__header(heap, reference.place, generation, (uint32_t)length) && length != 0;
    bool stands = false, more = false, unchanged = generation_holds(slab, generation, may_be_alone);
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
        unchanged = generation_holds(slab, generation, may_be_alone);
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
    // Not this element's header; or a place where no element begins, which has none to lose.
    if ((!valid && header != 0) || !purgeable__is_living(heap, spot)) {
      wish->error = ESTALE;
      return purgeable_outcome_error;
    }
    // Gone, in a life that is still going on; or in a forked child, where nothing has been put right yet, and nothing is
    // recorded.
    if (!purgeable__is_put_right(heap)) return purgeable_outcome_discarded;
    return purgeable__mark_lost(heap, spot, generation, lost_page) ? purgeable_outcome_discarded : purgeable_outcome_busy;
  }
  // The thread was preempted a thousand times within a few microseconds each: practically impossible, but no reason to hang.
  return purgeable_outcome_busy;
}

// A large element that lies alone in its mapping stays mapped while its count is not 0.
static __attribute__((noinline)) purgeable_outcome_t read_alone(purgeable_heap_t *heap, purgeable_reference_t reference,
                                                                wish_t *wish) {
  purgeable__spot_t spot = purgeable__find(heap, reference.place);
  if (purgeable__pin(spot.slab, (uint32_t)reference.generation) != 0) return purgeable_outcome_busy;
  // Looked up again: the number may have belonged to another mapping a moment ago.
  spot = purgeable__find(heap, reference.place);
  purgeable_outcome_t outcome = read_life(heap, spot, reference, wish, true);
  purgeable__release_quietly(heap, spot.slab);
  return outcome;
}

static inline purgeable_outcome_t read_unlocked(purgeable_heap_t *heap, purgeable__spot_t spot, purgeable_reference_t reference,
                                                wish_t *wish) {
  purgeable_outcome_t outcome = read_life(heap, spot, reference, wish, false);
  if (outcome != purgeable_outcome_busy) return outcome;
  uint64_t word = purgeable__slab_word_acquire(spot.slab);
  bool is_alone = purgeable__is_of_life_alone(word, reference.generation);
  return is_alone ? read_alone(heap, reference, wish) : outcome;
}

// Entry for references: the directory of the living is asked first. In a forked child that has not been put right everything is
// gone. A read needs nothing put right, and may be in a signal handler that interrupted the thread which is doing so.
static purgeable_outcome_t read_reference(purgeable_heap_t *heap, purgeable_reference_t reference, wish_t *wish) {
  bool is_child = !purgeable__is_put_right(heap);
  purgeable__spot_t spot = purgeable__resolve(heap, reference);
  if (spot.slab == NULL || is_child || !purgeable__is_living(heap, spot)) {
    errno = ESTALE;
    return purgeable_outcome_error;
  }
  purgeable_outcome_t outcome = read_unlocked(heap, spot, reference, wish);
  if (outcome == purgeable_outcome_busy && !generation_holds(spot.slab, (uint32_t)reference.generation, true)) {
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

purgeable_outcome_t purgeable_heap_read_start(purgeable_heap_t *heap, purgeable_reference_t reference, void *buffer,
                                              size_t capacity_bytes, size_t *length_bytes) {
  if (heap == NULL || (buffer == NULL && capacity_bytes != 0)) {
    errno = EINVAL;
    return purgeable_outcome_error;
  }
  wish_t wish = {.kind = wish_start, .buffer = buffer, .capacity = capacity_bytes};
  purgeable_outcome_t outcome = read_reference(heap, reference, &wish);
  if (length_bytes != NULL && outcome == purgeable_outcome_intact) *length_bytes = wish.answer_bytes;
  return outcome;
}

purgeable_outcome_t purgeable_heap_check(purgeable_heap_t *heap, purgeable_reference_t reference) {
  return purgeable_heap_read_start(heap, reference, NULL, 0, NULL);
}

// One word tells the length, so no sentinel is needed: the header stands, or its page is gone. If the payload begins on the next
// page, that page may be gone while the header stands.
purgeable_outcome_t purgeable_heap_length_bytes(purgeable_heap_t *heap, purgeable_reference_t reference, size_t *length_bytes) {
  if (heap == NULL || length_bytes == NULL) {
    errno = EINVAL;
    return purgeable_outcome_error;
  }
  bool is_child = !purgeable__is_put_right(heap);
  purgeable__spot_t spot = purgeable__resolve(heap, reference);
  PURGEABLE_TEST_PAUSE();
  // One look: a life that is over by now has no content mapped, perhaps, and is neither.
  uint64_t word = spot.slab == NULL || is_child ? 0 : purgeable__slab_word_acquire(spot.slab);
  PURGEABLE_TEST_PAUSE();
  if (purgeable__is_of_life_alone(word, reference.generation)) {
    // The mapping of such an element stays only while its count is not 0.
    int kept = errno;
    char nothing;
    wish_t wish = {.kind = wish_whole, .buffer = &nothing};
    purgeable_outcome_t outcome = read_reference(heap, reference, &wish);
    if (outcome != purgeable_outcome_error || wish.error != ENOBUFS) return outcome;
    errno = kept;
    *length_bytes = wish.answer_bytes;
    return purgeable_outcome_intact;
  }
  uint32_t generation = (uint32_t)reference.generation;
  if (spot.slab != NULL && purgeable__is_of_shared_life(word, generation) && purgeable__is_living(heap, spot)) {
    uint64_t header = purgeable__load_unsettled(purgeable__header_at(spot));
    uint32_t length = (uint32_t)header;
    // Acquire: the header's load comes before the look at the generation.
    atomic_thread_fence(memory_order_acquire);
    bool holds = generation_holds(spot.slab, generation, true);
    if (holds && length != 0 && header == purgeable__header(heap, reference.place, generation, length)) {
      *length_bytes = length;
      return purgeable_outcome_intact;
    }
    size_t page = purgeable__page_of(heap, spot);
    if (holds && header == 0 && purgeable__mark_lost(heap, spot, generation, page)) return purgeable_outcome_discarded;
  }
  errno = ESTALE;
  return purgeable_outcome_error;
}

purgeable_outcome_t purgeable_heap_read_matching(purgeable_heap_t *heap, purgeable_reference_t reference, const void *prefix,
                                                 size_t prefix_bytes, void *head, size_t head_capacity_bytes, void *buffer,
                                                 size_t capacity_bytes, size_t *rest_bytes, bool *matches) {
  purgeable__spot_t spot = purgeable__find(heap, reference.place);
  // Generation 0 is that of no life: `purgeable_heap_generation` found none, and there may be no content mapped. Nor has any life
  // one of more than 32 bits.
  if (spot.slab == NULL || reference.generation == 0 || reference.generation > UINT32_MAX) return purgeable_outcome_busy;
  wish_t wish = {.kind = wish_rest, .prefix = prefix, .prefix_bytes = prefix_bytes, .head = head,
                 .head_capacity = head_capacity_bytes, .buffer = buffer, .capacity = capacity_bytes};
  purgeable_outcome_t outcome = read_unlocked(heap, spot, reference, &wish);
  if (outcome == purgeable_outcome_error) return purgeable_outcome_busy;
  *rest_bytes = wish.answer_bytes;
  *matches = wish.matches;
  return outcome;
}
