// SPDX-License-Identifier: MIT
// Reads of the slab heap, whole, in part and by prefix, and tags: their results when pages are gone, and on a busy machine.

#include "heap_cases.h"

enum { MANY = 400 };

void heap_parts_need_their_pages(case_report_t *report) {
  MAKE_HEAP(heap, .slab_bytes = 16 * PAGE);
  const size_t lengths[] = {6 * PAGE, 30 * PAGE};
  char *buffer = malloc(30 * PAGE);
  REQUIRE(buffer != NULL);
  for (size_t i = 0; i < 2; i++) {
    element_t element;
    REQUIRE(make(heap, lengths[i], i, &element) == 0);
    const size_t length = lengths[i], lost_from = (size_t)(page_start(element.bytes) + 3 * PAGE - element.bytes);
    static const struct {
      size_t offset, length;
      bool from_end;
      int error;
    } edges[] = {{0, 0, 0, 0}, {0, 1, 0, 0},       {0, 0, 1, 0},          {0, 1, 1, ERANGE},
                 {1, 0, 1, ERANGE}, {0, SIZE_MAX, 0, ERANGE}, {SIZE_MAX, 1, 0, ERANGE}, {SIZE_MAX, SIZE_MAX, 0, ERANGE}};
    for (size_t k = 0; k < sizeof edges / sizeof edges[0]; k++) {
      size_t offset = edges[k].offset + (edges[k].from_end ? length : 0);
      buffer[0] = 'x', errno = 0;
      purgeable_outcome_t outcome = purgeable_heap_read_part(heap, element.reference, offset, edges[k].length, buffer);
      EXPECT_EQUAL(outcome, edges[k].error ? purgeable_outcome_error : purgeable_outcome_intact);
      EXPECT_EQUAL(errno, edges[k].error);
      EXPECT(edges[k].error == 0 && edges[k].length != 0 ? buffer[0] == element.bytes[offset] : buffer[0] == 'x');
    }
    EXPECT_EQUAL(purgeable_heap_read_part(heap, element.reference, length, 0, NULL), purgeable_outcome_intact);
    uint64_t random = report->seed;
    for (int lost = 0; lost < 2; lost++) {
      if (lost) discard_exactly(element.bytes + lost_from, 1);
      for (int round = 0; round < 500; round++) {
        size_t from = next_random(&random) % length, part = 1 + next_random(&random) % (length - from);
        if (round % 2) part = part % 300 + 1 < length - from ? part % 300 + 1 : length - from;
        bool hit = lost && from < lost_from + PAGE && from + part > lost_from;
        purgeable_outcome_t outcome = purgeable_heap_read_part(heap, element.reference, from, part, buffer);
        EXPECT_EQUAL(outcome, hit ? purgeable_outcome_discarded : purgeable_outcome_intact);
        if (outcome != purgeable_outcome_intact) continue;
        for (size_t k = 0; k < part; k++) {
          uint64_t mixed = (element.number + (from + k) / 8) * 0x9E3779B97F4A7C15u;
          REQUIRE(buffer[k] == (char)((mixed >> (8 * ((from + k) % 8))) | 1));
        }
      }
    }
    // The first bytes are there while all of the element is.
    element_t whole;
    REQUIRE(make(heap, length, i + 7, &whole) == 0);
    for (int lost = 0; lost < 2; lost++) {
      if (lost) discard_exactly(whole.bytes + lost_from, 1);
      const size_t capacities[] = {0, 1, 100, lost_from, length - 1, length, length + 1};
      for (size_t k = 0; k < sizeof capacities / sizeof capacities[0]; k++) {
        size_t told = 0, copied = capacities[k] < length ? capacities[k] : length;
        memset(buffer, 0, length);
        purgeable_outcome_t outcome =
            purgeable_heap_read_start(heap, whole.reference, capacities[k] ? buffer : NULL, capacities[k], &told);
        EXPECT_EQUAL(outcome, lost ? purgeable_outcome_discarded : purgeable_outcome_intact);
        if (lost) continue;
        EXPECT_EQUAL(told, length);
        EXPECT(memcmp(buffer, whole.bytes, copied) == 0);
        EXPECT(copied == length || buffer[copied] == 0);
      }
    }
    // A buffer that is too small gets the length that is needed, and no content.
    element_t other;
    size_t needed = 0;
    REQUIRE(make(heap, lengths[i], 9, &other) == 0);
    buffer[0] = 'x';
    EXPECT_EQUAL(purgeable_heap_read(heap, other.reference, buffer, length - 1, &needed), purgeable_outcome_error);
    EXPECT_EQUAL(errno, ENOBUFS);
    EXPECT_EQUAL(needed, length);
    EXPECT_EQUAL(buffer[0], 'x');
    needed = 0;
    EXPECT_EQUAL(purgeable_heap_read(heap, other.reference, NULL, 0, &needed), purgeable_outcome_error);
    EXPECT_EQUAL(needed, length);
  }
  free(buffer);
  END_HEAP(heap);
}

// How long a head is that begins here, as its flags say.
static size_t head_bytes(const char *head, size_t left) {
  if (left == 0) return 0;
  unsigned char flags = (unsigned char)*head;
  size_t bytes = 1 + 8 * (size_t)__builtin_popcount(flags & 0x7f);
  if (flags >= 0x80 && bytes < left) bytes += 1 + (size_t)(unsigned char)head[bytes];
  return bytes < left ? bytes : left;
}

void heap_matching_reads(case_report_t *report) {
  MAKE_HEAP(heap, .offering = purgeable_offering_deferred);
  const size_t lengths[] = {40, 900, 5 * PAGE, 50 * PAGE};
  char *buffer = malloc(50 * PAGE), *key = malloc(50 * PAGE);
  REQUIRE(buffer != NULL && key != NULL);
  for (size_t i = 0; i < 4; i++) {
    element_t element;
    REQUIRE(make(heap, lengths[i], i, &element) == 0);
    fill_pattern(key, lengths[i], i);
    const size_t length = lengths[i], prefixes[] = {0, 1, 24, length / 2, length - 1, length, length + 1};
    for (size_t k = 0; k < 7; k++) {
      for (int change = 0; change < 2; change++) {
        size_t prefix = prefixes[k], rest = 99;
        bool matches = false, fits = prefix <= length;
        if (change && prefix != 0) key[prefix / 2] ^= 2;
        purgeable_outcome_t outcome =
            purgeable_heap_read_matching(heap, element.reference, key, prefix, NULL, 0, buffer, 50 * PAGE, &rest, &matches);
        EXPECT_EQUAL(outcome, purgeable_outcome_intact);
        EXPECT_EQUAL(matches, fits && (!change || prefix == 0));
        if (matches) EXPECT_EQUAL(rest, length - prefix);
        if (matches) EXPECT(memcmp(buffer, element.bytes + prefix, rest) == 0);
        // Without room: the size, and nothing copied.
        buffer[0] = 'x';
        outcome = purgeable_heap_read_matching(heap, element.reference, key, prefix, NULL, 0, buffer, 0, &rest, &matches);
        EXPECT_EQUAL(outcome, purgeable_outcome_intact);
        EXPECT_EQUAL(buffer[0], 'x');
        // A head behind the prefix, as long as its first byte says, or as the payload is.
        unsigned char head[313];
        memset(head, 0, sizeof head);
        outcome = purgeable_heap_read_matching(heap, element.reference, key, prefix, head, sizeof head, buffer, 50 * PAGE,
                                               &rest, &matches);
        EXPECT_EQUAL(outcome, purgeable_outcome_intact);
        if (matches) {
          const char *after = element.bytes + prefix;
          size_t left = length - prefix, bytes = head_bytes(after, left);
          EXPECT_EQUAL(rest, left - bytes);
          EXPECT(memcmp(head, after, bytes) == 0 && (bytes == sizeof head || head[bytes] == 0));
          if (rest != 0) EXPECT(memcmp(buffer, after + bytes, rest) == 0);
          // Less room than it has bytes.
          head[1] = 'x';
          outcome = purgeable_heap_read_matching(heap, element.reference, key, prefix, head, 1, buffer, 0, &rest, &matches);
          EXPECT_EQUAL(outcome, purgeable_outcome_intact);
          EXPECT_EQUAL(rest, left - bytes);
          EXPECT_EQUAL(head[1], 'x');
        }
        if (change && prefix != 0) key[prefix / 2] ^= 2;
      }
    }
    size_t rest;
    bool matches;
    purgeable_reference_t wrong = {element.reference.place, element.reference.generation + 1};
    EXPECT_EQUAL(purgeable_heap_read_matching(heap, wrong, key, 1, NULL, 0, buffer, 9, &rest, &matches), purgeable_outcome_busy);
    wrong.place = UINT64_MAX;
    EXPECT_EQUAL(purgeable_heap_read_matching(heap, wrong, key, 1, NULL, 0, buffer, 9, &rest, &matches), purgeable_outcome_busy);
    discard_exactly(element.bytes + length - 1, 1);
    EXPECT_EQUAL(purgeable_heap_read_matching(heap, element.reference, key, 8, NULL, 0, buffer, 50 * PAGE, &rest, &matches),
                 purgeable_outcome_discarded);
  }
  free(key);
  free(buffer);
  END_HEAP(heap);
}

void heap_tags_survive(case_report_t *report) {
  NEED_OFFERS();
  MAKE_HEAP(heap, .keeps_tags = true);
  static element_t elements[MANY];
  uint64_t random = report->seed, tag;
  purgeable_reference_t reference;
  void *bytes;
  for (size_t i = 0; i < MANY; i++) {
    uint64_t number = next_random(&random);
    REQUIRE(make_in(heap, 0, 1 + (size_t)(number % (i % 50 == 0 ? 70000 : 900)), number, &elements[i]) == 0);
    if (i % 9 == 0) {
      REQUIRE(purgeable_heap_allocate_in(heap, 0, 33, 5, &reference, &bytes) == 0);
      EXPECT_EQUAL(purgeable_heap_tag(heap, reference, &tag), ESTALE);
      EXPECT_EQUAL(purgeable_heap_free(heap, reference), 0);
    }
  }
  EXPECT_EQUAL(offer_all(heap), 0);
  for (size_t i = 0; i < MANY; i += 2) discard_exactly(elements[i].bytes, elements[i].length);
  for (int round = 0; round < 2; round++) {
    for (size_t i = 0; i < MANY; i++) {
      EXPECT_EQUAL(purgeable_heap_tag(heap, elements[i].reference, &tag), 0);
      EXPECT(tag == elements[i].number);
    }
    EXPECT_EQUAL(purgeable_heap_sweep(heap, NULL), 0);
  }
  for (size_t i = 0; i < MANY; i++) {
    EXPECT_EQUAL(purgeable_heap_free(heap, elements[i].reference), 0);
    EXPECT_EQUAL(purgeable_heap_tag(heap, elements[i].reference, &tag), ESTALE);
  }
  END_HEAP(heap);
  MAKE_HEAP(without, .offering = purgeable_offering_deferred);
  REQUIRE(make(without, 9, 1, &elements[0]) == 0);
  EXPECT_EQUAL(purgeable_heap_tag(without, elements[0].reference, &tag), ENOTSUP);
  END_HEAP(without);
}

static void *keep_busy(void *context) {
  while (!atomic_load((_Atomic bool *)context)) continue;
  return NULL;
}

// A copy of many MiB is never made within one stretch on a CPU: it must come in pieces, or it would be tried for ever.
void heap_large_read_on_busy_machine(case_report_t *report) {
  enum { THREADS = 4 };
  MAKE_HEAP(heap, .offering = purgeable_offering_deferred);
  element_t element;
  REQUIRE(make(heap, (size_t)64 << 20, 1, &element) == 0);
  char *buffer = malloc(element.length);
  REQUIRE(buffer != NULL);
  _Atomic bool stop = false;
  pthread_t threads[THREADS];
  for (int i = 0; i < THREADS; i++) REQUIRE(pthread_create(&threads[i], NULL, keep_busy, &stop) == 0);
  size_t length = 0;
  purgeable_outcome_t outcome = purgeable_heap_read(heap, element.reference, buffer, element.length, &length);
  atomic_store(&stop, true);
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  EXPECT_EQUAL(outcome, purgeable_outcome_intact);
  EXPECT(length == element.length && check_pattern(buffer, length, 1));
  free(buffer);
  END_HEAP(heap);
}
