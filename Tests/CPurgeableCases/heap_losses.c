// SPDX-License-Identifier: MIT
// The slab heap, second part: content that the kernel takes, page by page, and what every call says then.

#include "heap_cases.h"

enum { MANY = 400 };

// Elements of mixed small lengths, on offer. False without memory.
static bool fill_many(purgeable_heap_t *heap, element_t *elements, size_t count, uint64_t seed) {
  for (size_t i = 0; i < count; i++) {
    size_t length = 1 + next_random(&seed) % (i % 7 == 0 ? 6000 : 500);
    if (make(heap, length, i, &elements[i]) != 0) return false;
  }
  return purgeable_stream_seal(heap, 0) == 0 && offer_all(heap) == 0;
}

// Whether any byte of an element, its header included, lies in the page at `start`.
static bool touches(const element_t *element, const char *start) {
  // The header and the table lie before the payload: in the same page as the place says.
  const char *from = element->bytes - PURGEABLE_HEADER_BYTES;
  return from < start + PAGE && element->bytes + element->length > start;
}

static char *page_start(const void *bytes) { return (char *)((uintptr_t)bytes & ~(uintptr_t)(PAGE - 1)); }

void heap_all_pages_lost(case_report_t *report) {
  NEED_EXACT_DISCARDS();
  MAKE_HEAP(heap, .keeps_tags = true);
  static element_t elements[MANY];
  REQUIRE(fill_many(heap, elements, MANY, report->seed));
  uint64_t payload = heap_statistics(heap).payload_bytes;
  for (size_t i = 0; i < MANY; i++) (void)kernel_discard(elements[i].bytes - 8, elements[i].length + 8);
  size_t lost = 0;
  EXPECT_EQUAL(purgeable_heap_sweep(heap, &lost), 0);
  purgeable_heap_statistics_t now = heap_statistics(heap);
  EXPECT_EQUAL(lost, now.discarded_bytes);
  EXPECT_EQUAL(now.held_bytes, now.discarded_bytes + now.resident_bytes);
  EXPECT_EQUAL(now.offered_bytes, now.resident_bytes);
  size_t gone = 0;
  for (size_t i = 0; i < MANY; i++) {
    bool discarded = is_discarded(heap, &elements[i]);
    EXPECT(discarded || is_intact(heap, &elements[i]));
    gone += discarded;
    if (discarded) EXPECT_EQUAL(purgeable_heap_lock(heap, elements[i].reference, NULL, NULL), purgeable_outcome_discarded);
  }
  EXPECT(gone > MANY / 2);
  EXPECT_EQUAL(purgeable_heap_sweep(heap, &lost), 0);
  EXPECT_EQUAL(heap_statistics(heap).element_count, MANY);
  for (size_t i = 0; i < MANY; i++) EXPECT_EQUAL(purgeable_heap_free(heap, elements[i].reference), 0);
  now = heap_statistics(heap);
  EXPECT_EQUAL(now.payload_bytes, 0);
  EXPECT_EQUAL(now.element_count, 0);
  EXPECT_EQUAL(now.held_bytes, 0);
  EXPECT(now.discarded_payload_bytes > 0 && now.discarded_payload_bytes <= payload);
  NOTE("%zu of %d elements lost", gone, MANY);
  END_HEAP(heap);
}

// The first, a middle and the last page of a slab, found by a read, a lock, a check or a sweep.
void heap_one_page_lost(case_report_t *report) {
  static element_t elements[MANY];
  for (int where = 0; where < 3; where++) {
    for (int how = 0; how < 4; how++) {
      MAKE_HEAP(heap, .offering = purgeable_offering_deferred);
      REQUIRE(fill_many(heap, elements, MANY, report->seed));
      purgeable_slab_t slab = slab_of(heap, &elements[MANY / 2]);
      size_t first = MANY / 2, last = MANY / 2;
      while (first > 0 && slab_of(heap, &elements[first - 1]).index == slab.index) first--;
      while (last + 1 < MANY && slab_of(heap, &elements[last + 1]).index == slab.index) last++;
      const element_t *victim = &elements[where == 0 ? first : where == 1 ? (first + last) / 2 : last];
      char *page = page_start(victim->bytes - 8);
      purgeable_heap_statistics_t before = heap_statistics(heap);
      discard_exactly(page, PAGE);
      size_t lost = 0;
      if (how == 0) EXPECT(is_discarded(heap, victim));
      if (how == 1) EXPECT_EQUAL(purgeable_heap_lock(heap, victim->reference, NULL, NULL), purgeable_outcome_discarded);
      if (how == 2) EXPECT_EQUAL(purgeable_heap_check(heap, victim->reference), purgeable_outcome_discarded);
      EXPECT_EQUAL(purgeable_heap_sweep(heap, &lost), 0);
      EXPECT_EQUAL(lost, how == 3 ? PAGE : 0);
      // Booked are the elements that begin in the page.
      uint64_t begin = 0;
      for (size_t i = 0; i < MANY; i++) {
        bool hit = touches(&elements[i], page);
        EXPECT(hit ? is_discarded(heap, &elements[i]) : is_intact(heap, &elements[i]) && locks_intact(heap, &elements[i]));
        bool begins = page_start(elements[i].bytes - 1) == page && touches(&elements[i], page);
        if (begins) begin += elements[i].length;
        EXPECT_EQUAL(purgeable_heap_page_is_lost(heap, elements[i].reference.place), begins);
        bool same = slab_of(heap, &elements[i]).index == slab.index;
        EXPECT_EQUAL(purgeable_heap_slab_has_losses(heap, elements[i].reference.place), same);
      }
      purgeable_heap_statistics_t after = heap_statistics(heap);
      EXPECT_EQUAL(after.payload_bytes, before.payload_bytes - begin);
      EXPECT_EQUAL(after.discarded_payload_bytes, begin);
      EXPECT_EQUAL(after.discarded_bytes, PAGE);
      purgeable_slab_information_t information;
      EXPECT_EQUAL(purgeable_slab_information(heap, slab, &information), 0);
      EXPECT_EQUAL(information.lost_page_count, 1);
      for (size_t i = 0; i < MANY; i++) EXPECT_EQUAL(purgeable_heap_free(heap, elements[i].reference), 0);
      EXPECT_EQUAL(heap_statistics(heap).payload_bytes, 0);
      EXPECT_EQUAL(heap_statistics(heap).held_bytes, 0);
      END_HEAP(heap);
    }
  }
}

// The real kernel this time: whatever it took, exactly the elements on those pages are gone.
void heap_neighbours_survive(case_report_t *report) {
  NEED_EXACT_DISCARDS();
  MAKE_HEAP(heap, .offering = purgeable_offering_deferred);
  static element_t elements[MANY];
  REQUIRE(fill_many(heap, elements, MANY, report->seed));
  uint64_t random = report->seed;
  for (int round = 0; round < 60; round++) (void)kernel_discard(elements[next_random(&random) % MANY].bytes, 1);
  size_t gone = 0;
  for (size_t i = 0; i < MANY; i++) {
    char *from = page_start(elements[i].bytes - 8), *end = elements[i].bytes + elements[i].length;
    bool all_here = true;
    for (char *page = from; page < end; page += PAGE) {
      unsigned char here = 0;
      EXPECT_EQUAL(mincore(page, PAGE, &here), 0);
      all_here = all_here && (here & 1);
    }
    // Asked of the kernel before any look could map the zero page.
    elements[i].number |= all_here ? 0 : (uint64_t)1 << 63;
  }
  for (size_t i = 0; i < MANY; i++) {
    bool hit = elements[i].number >> 63;
    elements[i].number &= INT64_MAX;
    gone += hit;
    EXPECT(hit ? is_discarded(heap, &elements[i]) : is_intact(heap, &elements[i]));
  }
  EXPECT(gone > 0 && gone < MANY);
  END_HEAP(heap);
}

void heap_each_page_of_large(case_report_t *report) {
  // Within a slab over some pages, in a run of its own.
  const size_t lengths[] = {3 * PAGE + 77, 6 * PAGE, 40 * PAGE + 5};
  for (size_t i = 0; i < 3; i++) {
    size_t pages = 1;
    for (size_t page = 0; page < pages; page++) {
      MAKE_HEAP(heap, .slab_bytes = 16 * PAGE);
      element_t before, element, after;
      REQUIRE(make(heap, 1000, 1, &before) == 0 && make(heap, lengths[i], 2, &element) == 0);
      REQUIRE(make(heap, 3 * PAGE, 3, &after) == 0 && purgeable_stream_seal(heap, 0) == 0 && offer_all(heap) == 0);
      char *start = page_start(element.bytes - 8);
      pages = (size_t)(element.bytes + element.length - 1 - start) / PAGE + 1;
      discard_exactly(start + page * PAGE, PAGE);
      EXPECT(page % 2 == 0 || is_discarded(heap, &element));
      EXPECT_EQUAL(purgeable_heap_lock(heap, element.reference, NULL, NULL), purgeable_outcome_discarded);
      EXPECT_EQUAL(purgeable_heap_check(heap, element.reference), purgeable_outcome_discarded);
      EXPECT(is_discarded(heap, &element));
      EXPECT(is_intact(heap, &before) || page == 0);
      EXPECT(is_intact(heap, &after) || page + 1 == pages);
      EXPECT_EQUAL(heap_statistics(heap).locked_bytes, 0);
      EXPECT_EQUAL(purgeable_heap_free(heap, element.reference), 0);
      EXPECT(is_stale(heap, element.reference));
      END_HEAP(heap);
    }
  }
}

// Elements whose table of witnesses takes pages of its own, within a chunk and over several.
void heap_table_pages(case_report_t *report) {
  const size_t mib = (size_t)1 << 20, lengths[] = {24 * mib, 80 * mib};
  for (size_t i = 0; i < 2; i++) {
    MAKE_HEAP(heap, .offering = purgeable_offering_deferred);
    size_t table_pages = lengths[i] / PAGE * 2 / PAGE;
    REQUIRE(table_pages >= 2);
    for (size_t page = 0; page <= table_pages + 1; page++) {
      // Mostly zeros, which need no witness: a lost table must not read as a page of zeros.
      purgeable_reference_t reference;
      void *bytes;
      REQUIRE(purgeable_heap_allocate(heap, lengths[i], &reference, &bytes) == 0);
      char *base = page_start((char *)bytes - table_pages * PAGE);
      memset(bytes, 1, 2 * PAGE);
      ((char *)bytes)[lengths[i] - 1] = 1;
      EXPECT_EQUAL(purgeable_heap_commit(heap, reference), 0);
      EXPECT_EQUAL(offer_all(heap), 0);
      EXPECT_EQUAL(purgeable_heap_check(heap, reference), purgeable_outcome_intact);
      size_t lost = 0;
      EXPECT_EQUAL(purgeable_heap_sweep(heap, &lost), 0);
      EXPECT_EQUAL(lost, 0);
      discard_exactly(base + page * PAGE, PAGE);
      if (page % 2 == 0) {
        EXPECT_EQUAL(purgeable_heap_sweep(heap, &lost), 0);
        EXPECT(lost > 0);
        EXPECT_EQUAL(purgeable_heap_sweep(heap, &lost), 0);
        EXPECT_EQUAL(lost, 0);
        EXPECT_EQUAL(heap_statistics(heap).payload_bytes, 0);
      }
      EXPECT_EQUAL(purgeable_heap_check(heap, reference), purgeable_outcome_discarded);
      EXPECT_EQUAL(purgeable_heap_lock(heap, reference, NULL, NULL), purgeable_outcome_discarded);
      EXPECT_EQUAL(purgeable_heap_free(heap, reference), 0);
    }
    EXPECT_EQUAL(heap_statistics(heap).held_bytes, 0);
    END_HEAP(heap);
  }
}

void heap_zero_pages(case_report_t *report) {
  const size_t lengths[] = {8 * PAGE, 40 * PAGE};
  for (size_t i = 0; i < 2; i++) {
    for (int written = 0; written < 2; written++) {
      MAKE_HEAP(heap, .slab_bytes = 64 * PAGE);
      purgeable_reference_t reference;
      void *bytes;
      REQUIRE(purgeable_heap_allocate(heap, lengths[i], &reference, &bytes) == 0);
      char *start = page_start(bytes) + PAGE;
      if (written) memset(start, 0, 3 * PAGE);
      start[4 * PAGE + 9] = 1;
      EXPECT_EQUAL(purgeable_heap_commit(heap, reference), 0);
      EXPECT_EQUAL(purgeable_stream_seal(heap, 0), 0);
      EXPECT_EQUAL(offer_all(heap), 0);
      discard_exactly(start, 3 * PAGE);
      EXPECT_EQUAL(purgeable_heap_sweep(heap, NULL), 0);
      EXPECT_EQUAL(purgeable_heap_check(heap, reference), purgeable_outcome_intact);
      const void *locked;
      size_t length;
      EXPECT_EQUAL(purgeable_heap_lock(heap, reference, &locked, &length), purgeable_outcome_intact);
      size_t ones = 0;
      for (size_t k = 0; k < length; k++) ones += ((const char *)locked)[k] != 0;
      EXPECT_EQUAL(ones, 1);
      EXPECT_EQUAL(purgeable_heap_unlock(heap, reference), 0);
      EXPECT(!purgeable_heap_page_is_lost(heap, reference.place));
      // But with the one page that was written.
      EXPECT_EQUAL(offer_all(heap), 0);
      discard_exactly(start + 4 * PAGE, PAGE);
      EXPECT_EQUAL(purgeable_heap_check(heap, reference), purgeable_outcome_discarded);
      END_HEAP(heap);
    }
  }
  // A payload of nothing but zeros, small: its header is its page's witness.
  MAKE_HEAP(heap, .offering = purgeable_offering_deferred);
  purgeable_reference_t reference;
  void *bytes;
  REQUIRE(purgeable_heap_allocate(heap, 64, &reference, &bytes) == 0 && purgeable_heap_commit(heap, reference) == 0);
  EXPECT_EQUAL(purgeable_heap_check(heap, reference), purgeable_outcome_intact);
  discard_exactly(bytes, 1);
  EXPECT_EQUAL(purgeable_heap_check(heap, reference), purgeable_outcome_discarded);
  END_HEAP(heap);
}

// Reading a discarded page maps the zero page: mincore then says "resident".
void heap_touched_before_asked(case_report_t *report) {
  NEED_EXACT_DISCARDS();
  static element_t elements[MANY];
  for (int how = 0; how < 4; how++) {
    MAKE_HEAP(heap, .offering = purgeable_offering_deferred);
    REQUIRE(fill_many(heap, elements, MANY, report->seed));
    for (size_t i = 0; i < MANY; i++) (void)kernel_discard(elements[i].bytes, elements[i].length);
    size_t gone = 0;
    for (size_t i = 0; i < MANY; i++) {
      for (size_t k = 0; k < elements[i].length; k += 64) (void)((volatile char *)elements[i].bytes)[k];
      (void)((volatile char *)elements[i].bytes)[elements[i].length - 1];
      (void)((volatile char *)elements[i].bytes)[-8];
    }
    if (how == 3) EXPECT_EQUAL(purgeable_heap_sweep(heap, NULL), 0);
    for (size_t i = 0; i < MANY; i++) {
      purgeable_outcome_t outcome = how == 0   ? purgeable_heap_check(heap, elements[i].reference)
                                    : how == 1 ? purgeable_heap_lock(heap, elements[i].reference, NULL, NULL)
                                               : purgeable_outcome_discarded;
      if (how == 1 && outcome == purgeable_outcome_intact) {
        EXPECT(check_pattern(elements[i].bytes, elements[i].length, i));
        EXPECT_EQUAL(purgeable_heap_unlock(heap, elements[i].reference), 0);
      }
      EXPECT(outcome == purgeable_outcome_discarded || is_intact(heap, &elements[i]));
      gone += is_discarded(heap, &elements[i]);
    }
    EXPECT(gone > MANY / 2);
    END_HEAP(heap);
  }
}

// A rescue that is optimised into a load leaves the offer standing. Only the kernel can tell.
void heap_lock_cancels_offer(case_report_t *report) {
  NEED_EXACT_DISCARDS();
  const size_t lengths[] = {20, 1016, 3 * PAGE, 20 * PAGE, 1000 * PAGE};
  for (size_t i = 0; i < 5; i++) {
    MAKE_HEAP(heap, .offering = purgeable_offering_deferred);
    element_t element;
    REQUIRE(make(heap, lengths[i], i, &element) == 0 && purgeable_stream_seal(heap, 0) == 0 && offer_all(heap) == 0);
    const void *bytes;
    EXPECT_EQUAL(purgeable_heap_lock(heap, element.reference, &bytes, NULL), purgeable_outcome_intact);
    EXPECT_EQUAL(purgeable_heap_offer_idle(heap, NULL), 0);
    EXPECT_EQUAL(kernel_discard(element.bytes - 8, element.length + 8), 0);
    EXPECT(check_pattern(bytes, element.length, i));
    EXPECT_EQUAL(heap_statistics(heap).offered_bytes, 0);
    EXPECT_EQUAL(purgeable_heap_unlock(heap, element.reference), 0);
    EXPECT(is_intact(heap, &element));
    EXPECT_EQUAL(offer_all(heap), 0);
    EXPECT(kernel_discard(element.bytes - 8, element.length + 8) > 0);
    EXPECT(is_discarded(heap, &element));
    END_HEAP(heap);
  }
}

void heap_locked_stays_neighbours_go(case_report_t *report) {
  NEED_EXACT_DISCARDS();
  MAKE_HEAP(heap, .slab_bytes = 16 * PAGE);
  enum { COUNT = 15 };
  element_t elements[COUNT];
  for (size_t i = 0; i < COUNT; i++) REQUIRE(make(heap, PAGE - 100, i, &elements[i]) == 0);
  REQUIRE(purgeable_stream_seal(heap, 0) == 0 && offer_all(heap) == 0);
  EXPECT_EQUAL(purgeable_heap_lock(heap, elements[7].reference, NULL, NULL), purgeable_outcome_intact);
  uint64_t offered = heap_statistics(heap).offered_bytes;
  EXPECT(offered >= 13 * PAGE && offered <= 15 * PAGE);
  (void)kernel_discard(elements[0].bytes, (size_t)(elements[COUNT - 1].bytes + PAGE - elements[0].bytes));
  EXPECT(check_pattern(elements[7].bytes, PAGE - 100, 7));
  size_t gone = 0;
  // A failed lock of a neighbour takes nothing away from the one that is locked.
  for (size_t i = 0; i < COUNT; i++) {
    if (i == 7) continue;
    purgeable_outcome_t outcome = purgeable_heap_lock(heap, elements[i].reference, NULL, NULL);
    if (outcome == purgeable_outcome_intact) EXPECT_EQUAL(purgeable_heap_unlock(heap, elements[i].reference), 0);
    gone += outcome == purgeable_outcome_discarded;
    EXPECT(check_pattern(elements[7].bytes, PAGE - 100, 7));
  }
  EXPECT(gone >= 10);
  EXPECT_EQUAL(purgeable_heap_unlock(heap, elements[7].reference), 0);
  EXPECT(is_intact(heap, &elements[7]));
  // What the failed locks dirtied, and the one that was locked, go on offer again.
  size_t again = 0;
  EXPECT_EQUAL(purgeable_heap_offer_idle(heap, &again), 0);
  EXPECT(again > 0);
  END_HEAP(heap);
}

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
    // Too small a buffer: the length that is needed, and nothing written.
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
            purgeable_heap_read_matching(heap, element.reference, key, prefix, 0, buffer, 50 * PAGE, &rest, &matches);
        EXPECT_EQUAL(outcome, purgeable_outcome_intact);
        EXPECT_EQUAL(matches, fits && (!change || prefix == 0));
        if (matches) EXPECT_EQUAL(rest, length - prefix);
        if (matches) EXPECT(memcmp(buffer, element.bytes + prefix, rest) == 0);
        // No room: the size, and nothing copied. Some bytes skipped after the prefix.
        buffer[0] = 'x';
        outcome = purgeable_heap_read_matching(heap, element.reference, key, prefix, 0, buffer, 0, &rest, &matches);
        EXPECT_EQUAL(outcome, purgeable_outcome_intact);
        EXPECT_EQUAL(buffer[0], 'x');
        outcome = purgeable_heap_read_matching(heap, element.reference, key, prefix, 8, buffer, 50 * PAGE, &rest, &matches);
        EXPECT_EQUAL(outcome, purgeable_outcome_intact);
        if (matches) EXPECT_EQUAL(rest, length > prefix + 8 ? length - prefix - 8 : 0);
        if (matches && rest != 0) EXPECT(memcmp(buffer, element.bytes + prefix + 8, rest) == 0);
        if (change && prefix != 0) key[prefix / 2] ^= 2;
      }
    }
    size_t rest;
    bool matches;
    purgeable_reference_t wrong = {element.reference.place, element.reference.generation + 1};
    EXPECT_EQUAL(purgeable_heap_read_matching(heap, wrong, key, 1, 0, buffer, 9, &rest, &matches), purgeable_outcome_busy);
    wrong.place = UINT64_MAX;
    EXPECT_EQUAL(purgeable_heap_read_matching(heap, wrong, key, 1, 0, buffer, 9, &rest, &matches), purgeable_outcome_busy);
    discard_exactly(element.bytes + length - 1, 1);
    EXPECT_EQUAL(purgeable_heap_read_matching(heap, element.reference, key, 8, 0, buffer, 50 * PAGE, &rest, &matches),
                 purgeable_outcome_discarded);
  }
  free(key);
  free(buffer);
  END_HEAP(heap);
}

void heap_tags_survive(case_report_t *report) {
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
