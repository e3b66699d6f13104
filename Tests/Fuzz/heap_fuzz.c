// SPDX-License-Identifier: MIT
// A libFuzzer target for the slab heap: operations decoded from bytes, beside a model that knows every element's content and page
// by page what was discarded. A result of the heap that the model does not allow is a crash. `heap_fuzz [-max_total_time=60]`.

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "purgeable.h"
#include "purgeable_testing.h"

#define SLOTS 48
#define STREAMS 3
#define CHECK(condition)                                                     \
  do {                                                                       \
    if (!(condition)) {                                                      \
      fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
      abort();                                                               \
    }                                                                        \
  } while (0)

// An element in the model. Its bytes are those of `number`, some stretches of them zeros.
typedef struct slot {
  enum { slot_empty, slot_written, slot_living } state;
  purgeable_reference_t reference;
  unsigned char *bytes;
  size_t length;
  uint32_t number;
  uint32_t locks;
  bool lost;
} slot_t;

static slot_t slots[SLOTS];
static purgeable_heap_t *heap;
static purgeable_stream_t streams[STREAMS];
static bool refuses, gives_back_many;
static size_t alignment_bytes, locked_limit;

typedef struct input {
  const uint8_t *at, *end;
} input_t;

static uint32_t take(input_t *input, uint32_t below) {
  uint32_t value = 0;
  for (uint32_t reach = 1; reach < below && input->at < input->end; reach <<= 8) {
    value = value << 8 | *input->at++;
    if (reach > 0xFFFFFF) break;
  }
  return below == 0 ? 0 : value % below;
}

static unsigned char byte_of(uint32_t number, size_t index) {
  // Every other number has pages of zeros.
  if (number % 2 == 1 && (index / 4096) % 3 == 1) return 0;
  return (unsigned char)((number * 167 + index * 13 + index / 251) | 1);
}

static bool is_right(const slot_t *slot, const unsigned char *bytes) {
  for (size_t i = 0; i < slot->length; i++) {
    if (bytes[i] != byte_of(slot->number, i)) return false;
  }
  return true;
}

// The model of a discard: every element with a byte that is not zero in the page, its header and table included, is lost. These
// lie in front of the payload.
static void model_discard(unsigned char *page, size_t page_bytes) {
  for (slot_t *slot = slots; slot < slots + SLOTS; slot++) {
    if (slot->state != slot_living) continue;
    unsigned char *header = slot->bytes - 8;
    size_t pages = 0;
    // The table's length, as documented: 2 bytes for each further page that is touched, padded to 8, or to 16.
    for (size_t before = 1; before != pages;) {
      before = pages;
      header = slot->bytes - 8 - ((2 * pages + alignment_bytes - 1) & ~(alignment_bytes - 1));
      unsigned char *last = slot->bytes + ((slot->length - 1) | 7);
      pages = ((uintptr_t)last / page_bytes) - ((uintptr_t)header / page_bytes);
    }
    if (header < page + page_bytes && slot->bytes > page) slot->lost = true;
    for (size_t i = 0; i < slot->length && !slot->lost; i++) {
      if (slot->bytes + i >= page && slot->bytes + i < page + page_bytes) slot->lost = byte_of(slot->number, i) != 0;
    }
  }
}

static bool moved(void *context, purgeable_reference_t from, purgeable_reference_t to, uint64_t tag, const void *bytes,
                  size_t length) {
  (void)context;
  CHECK(tag < SLOTS);
  slot_t *slot = &slots[tag];
  CHECK(length == slot->length && is_right(slot, bytes));
  if (refuses || slot->state != slot_living || slot->locks != 0 || slot->reference.place != from.place) return false;
  slot->reference = to;
  slot->bytes = (unsigned char *)(uintptr_t)bytes;
  return true;
}

static void look(slot_t *slot, uint32_t how) {
  static unsigned char buffer[1 << 20];
  size_t length = 0;
  purgeable_outcome_t outcome;
  do {
    outcome = purgeable_heap_read(heap, slot->reference, buffer, sizeof buffer, &length);
  } while (outcome == purgeable_outcome_busy);
  if (slot->state != slot_living) {
    CHECK(outcome == purgeable_outcome_error && errno == ESTALE);
    return;
  }
  CHECK(outcome == (slot->lost ? purgeable_outcome_discarded : purgeable_outcome_intact));
  CHECK(slot->lost || (length == slot->length && is_right(slot, buffer)));
  CHECK(slot->lost || (purgeable_heap_length_bytes(heap, slot->reference, &length) == outcome && length == slot->length));
  CHECK(purgeable_heap_check(heap, slot->reference) == outcome);
  uint64_t tag;
  CHECK(purgeable_heap_tag(heap, slot->reference, &tag) == 0 && tag == (uint64_t)(slot - slots));
  if (slot->lost) return;
  size_t offset = how % slot->length, part = 1 + how / 7 % (slot->length - offset);
  CHECK(purgeable_heap_read_part(heap, slot->reference, offset, part, buffer) == purgeable_outcome_intact);
  for (size_t i = 0; i < part; i++) CHECK(buffer[i] == byte_of(slot->number, offset + i));
  // A key of some bytes, equal or not.
  size_t prefix = how % 40 < slot->length ? how % 40 : slot->length, rest = 0;
  unsigned char key[40];
  bool matches = false;
  for (size_t i = 0; i < prefix; i++) key[i] = byte_of(slot->number, i);
  if (how % 3 == 0 && prefix != 0) key[prefix - 1] ^= 4;
  CHECK(purgeable_heap_read_matching(heap, slot->reference, key, prefix, NULL, 0, buffer, sizeof buffer, &rest, &matches) ==
        purgeable_outcome_intact);
  CHECK(matches == (how % 3 != 0 || prefix == 0) && (!matches || rest == slot->length - prefix));
  for (size_t i = 0; matches && i < rest; i++) CHECK(buffer[i] == byte_of(slot->number, prefix + i));
}

static void lock(slot_t *slot) {
  const void *bytes;
  size_t length, locked = 0;
  for (const slot_t *other = slots; other < slots + SLOTS; other++) locked += other->length * other->locks;
  purgeable_outcome_t outcome = purgeable_heap_lock(heap, slot->reference, &bytes, &length);
  if (slot->state != slot_living) {
    CHECK(outcome == purgeable_outcome_error && errno == ESTALE);
    return;
  }
  bool is_refused = outcome == purgeable_outcome_error && errno == EAGAIN;
  bool fits = locked_limit == 0 || locked + slot->length <= locked_limit;
  // An element whose header is lost tells no length.
  CHECK(!is_refused || !fits);
  if (is_refused) return;
  CHECK(outcome == (slot->lost ? purgeable_outcome_discarded : purgeable_outcome_intact));
  if (slot->lost) return;
  CHECK(fits && bytes == slot->bytes && length == slot->length && is_right(slot, bytes));
  slot->locks++;
}

static void free_slab(purgeable_slab_t slab) {
  uint32_t freed = 0, count = 0;
  for (slot_t *slot = slots; slot < slots + SLOTS; slot++) {
    purgeable_slab_t own;
    if (slot->state != slot_living) continue;
    CHECK(purgeable_slab_of(heap, slot->reference, &own) == 0);
    if (own.index != slab.index || own.generation != slab.generation) continue;
    slot->state = slot_empty;
    count++;
  }
  CHECK(purgeable_slab_free_elements(heap, slab, &freed) == 0 && freed == count);
}

// Operations that concern no single element.
static void arrange(input_t *input) {
  static const size_t limits[] = {0, 64 << 10, 1 << 20, 4 << 20};
  purgeable_slab_t slab;
  uint32_t choice = take(input, 6);
  size_t limit = limits[take(input, 4)];
  switch (choice) {
    case 0: CHECK(purgeable_heap_set_byte_limit(heap, limit) == 0); return;
    case 1:
      locked_limit = limit;
      CHECK(purgeable_heap_set_locked_byte_limit(heap, limit) == 0);
      return;
    case 2: purgeable_set_pending_byte_limit(limit); return;
    case 3: CHECK(purgeable_upkeep(NULL) == 0); return;
    case 4:
      if (purgeable_stream_oldest(heap, streams[take(input, STREAMS)], &slab) == 0) free_slab(slab);
      return;
    default:
      gives_back_many = !gives_back_many;
      (gives_back_many ? purgeable_heap_begin_giving_back : purgeable_heap_end_giving_back)(heap);
      purgeable_heap_wipe_deferred(heap);
      return;
  }
}

static void operate(input_t *input, uint32_t number) {
  slot_t *slot = &slots[take(input, SLOTS)];
  size_t page = purgeable_page_size_bytes();
  purgeable_slab_t slab;
  switch (take(input, 18)) {
    case 0:
    case 1:
    case 2: {
      if (slot->state != slot_empty || slot->locks != 0) return;
      static const uint32_t reach[] = {64, 1100, 9000, 400000};
      size_t length = 1 + take(input, reach[take(input, 4)]);
      void *bytes;
      purgeable_stream_t stream = streams[take(input, STREAMS)];
      int error = purgeable_heap_allocate_in(heap, stream, length, (uint64_t)(slot - slots), &slot->reference, &bytes);
      CHECK(error == 0 || error == ENOMEM);
      if (error != 0) return;
      *slot = (slot_t){slot_written, slot->reference, bytes, length, number, 0, false};
      CHECK((uintptr_t)bytes % alignment_bytes == 0);
      for (size_t i = 0; i < length; i++) CHECK(slot->bytes[i] == 0);
      if (take(input, 4) == 0) return;
    }
    // Mostly committed at once.
    // fall through
    case 3:
      if (slot->state != slot_written) return;
      for (size_t i = 0; i < slot->length; i++) slot->bytes[i] = byte_of(slot->number, i);
      CHECK(purgeable_heap_commit(heap, slot->reference) == 0);
      CHECK(purgeable_heap_commit(heap, slot->reference) == ESTALE);
      slot->state = slot_living;
      return;
    case 4:
    case 5:
      CHECK(purgeable_heap_free(heap, slot->reference) == (slot->state == slot_empty ? ESTALE : 0));
      slot->state = slot_empty;
      look(slot, 0);
      return;
    case 6:
    case 7: lock(slot); return;
    case 8:
      if (slot->locks == 0) return;
      // Also of an element that was freed meanwhile.
      CHECK(is_right(slot, slot->bytes));
      CHECK(purgeable_heap_unlock(heap, slot->reference) == 0);
      slot->locks--;
      return;
    case 9: look(slot, take(input, 1 << 16)); return;
    case 10: {
      // One exact page of a living element, if nothing in it is locked or being written.
      if (slot->state != slot_living) return;
      unsigned char *start = (unsigned char *)(((uintptr_t)slot->bytes + take(input, (uint32_t)slot->length)) & ~(page - 1));
      for (slot_t *other = slots; other < slots + SLOTS; other++) {
        if (other->locks == 0 && other->state != slot_written) continue;
        // Headers and tables lie before the payload; two pages are enough for them here.
        if (other->bytes - 2 * page < start + page && other->bytes + other->length > start) return;
      }
      // Only pages on offer can go: an open slab's last page is not on offer.
      CHECK(purgeable_slab_of(heap, slot->reference, &slab) == 0);
      purgeable_slab_information_t information;
      CHECK(purgeable_slab_information(heap, slab, &information) == 0);
      if (information.is_open || information.lock_count != 0) return;
      CHECK(madvise(start, page, MADV_DONTNEED) == 0);
      model_discard(start, page);
      return;
    }
    case 11: CHECK(purgeable_heap_offer_idle(heap, NULL) == 0); return;
    case 12: CHECK(purgeable_heap_sweep(heap, NULL) == 0); return;
    case 13: CHECK(purgeable_heap_trim(heap, NULL) == 0); return;
    case 14: CHECK(purgeable_stream_seal(heap, streams[take(input, STREAMS)]) == 0); return;
    case 16:
    case 17: arrange(input); return;
    case 15: {
      uint32_t choice = take(input, 4);
      refuses = take(input, 4) == 0;
      if (choice == 0 && slot->state == slot_living && slot->locks == 0) {
        int error = purgeable_heap_move(heap, slot->reference, streams[take(input, STREAMS)], moved, NULL, NULL);
        CHECK(error == (slot->lost ? ENODATA : refuses ? EBUSY : 0) || error == ENOMEM);
      } else if (purgeable_stream_oldest(heap, streams[take(input, STREAMS)], &slab) == 0) {
        purgeable_stream_t to = streams[take(input, STREAMS)];
        int error = choice == 1   ? purgeable_slab_evacuate(heap, slab, to, moved, NULL, NULL)
                    : choice == 2 ? purgeable_slab_restream(heap, slab, to)
                                  : purgeable_slab_give_back(heap, slab);
        CHECK(error == 0 || error == EBUSY || error == ENOMEM);
      }
      return;
    }
  }
}

static void check_books(void) {
  uint64_t living = 0, locked = 0, most = 0, least = 0;
  for (slot_t *slot = slots; slot < slots + SLOTS; slot++) {
    living += slot->state == slot_living;
    locked += slot->length * (slot->locks + (slot->state == slot_written));
    if (slot->state == slot_living) most += slot->length;
    if (slot->state == slot_living && !slot->lost) least += slot->length;
  }
  purgeable_heap_statistics_t now;
  CHECK(purgeable_heap_statistics(heap, &now) == 0);
  CHECK(now.element_count == living && now.memory.locked_bytes == locked);
  CHECK(now.memory.payload_bytes <= most && now.memory.payload_bytes >= least);
  CHECK(now.memory.held_bytes <= purgeable_heap_held_bytes(heap));
  CHECK(now.memory.offered_bytes + now.memory.discarded_bytes <= now.memory.held_bytes);
  CHECK(now.memory.offered_bytes + now.memory.discarded_bytes + now.memory.pending_bytes <= now.memory.held_bytes);
  CHECK(purgeable_heap_charged_bytes(heap) <= purgeable_heap_held_bytes(heap));
}

static void check_valid(void) {
  const char *wrong;
  if (purgeable_testing_heap_is_valid(heap, &wrong)) return;
  fprintf(stderr, "the heap is not whole: %s\n", wrong);
  abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  input_t input = {data, data + size};
  size_t page = purgeable_page_size_bytes();
  size_t slab_bytes = page << take(&input, 5);
  const purgeable_heap_options_t options = {
      .slab_bytes = slab_bytes,
      // Of a few slabs: then large elements lie in mappings of their own.
      .chunk_bytes = slab_bytes << (2 + take(&input, 7)),
      .byte_limit = take(&input, 2) == 0 ? 0 : (size_t)1 << 20,
      .offering = (purgeable_offering_t)take(&input, 3),
      .keeps_tags = true,
      .moved = take(&input, 2) == 0 ? NULL : moved,
      .defers_compaction = take(&input, 2) != 0,
      .defers_wipes = take(&input, 2) != 0,
      .payload_alignment_bytes = take(&input, 2) == 0 ? 8 : 16,
      .locked_byte_limit = take(&input, 2) == 0 ? 0 : (size_t)1 << 18,
  };
  memset(slots, 0, sizeof slots);
  alignment_bytes = options.payload_alignment_bytes;
  locked_limit = options.locked_byte_limit;
  purgeable_set_pending_byte_limit(PURGEABLE_PENDING_BYTE_LIMIT_DEFAULT);
  CHECK(purgeable_heap_create(&options, &heap) == 0);
  for (int i = 1; i < STREAMS; i++) CHECK(purgeable_stream_create(heap, &streams[i]) == 0);
  for (uint32_t number = 1; input.at < input.end && number < 2000; number++) {
    operate(&input, number);
    check_valid();
    if (number % 8 == 0) check_books();
  }
  check_books();
  for (slot_t *slot = slots; slot < slots + SLOTS; slot++) {
    look(slot, 77);
    if (slot->locks != 0) CHECK(is_right(slot, slot->bytes));
    for (; slot->locks != 0; slot->locks--) CHECK(purgeable_heap_unlock(heap, slot->reference) == 0);
    if (slot->state != slot_empty) CHECK(purgeable_heap_free(heap, slot->reference) == 0);
    slot->state = slot_empty;
  }
  if (gives_back_many) purgeable_heap_end_giving_back(heap);
  gives_back_many = false;
  for (int i = 0; i < STREAMS; i++) CHECK(purgeable_stream_seal(heap, streams[i]) == 0);
  CHECK(purgeable_heap_trim(heap, NULL) == 0);
  CHECK(purgeable_heap_held_bytes(heap) == 0);
  check_valid();
  CHECK(purgeable_heap_destroy(heap) == 0);
  return 0;
}
