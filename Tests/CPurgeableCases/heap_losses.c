// SPDX-License-Identifier: MIT
// The slab heap, second part: content that the kernel takes, page by page, and the results of every call then.

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

void heap_all_pages_lost(case_report_t *report) {
  NEED_EXACT_DISCARDS();
  MAKE_HEAP(heap, .keeps_tags = true);
  static element_t elements[MANY];
  REQUIRE(fill_many(heap, elements, MANY, report->seed));
  uint64_t payload = heap_statistics(heap).memory.payload_bytes;
  for (size_t i = 0; i < MANY; i++) (void)kernel_discard(elements[i].bytes - 8, elements[i].length + 8);
  size_t lost = 0;
  EXPECT_EQUAL(purgeable_heap_sweep(heap, &lost), 0);
  purgeable_heap_statistics_t now = heap_statistics(heap);
  EXPECT_EQUAL(lost, now.memory.discarded_bytes);
  EXPECT_EQUAL(now.memory.held_bytes, now.memory.discarded_bytes + now.memory.resident_bytes);
  EXPECT_EQUAL(now.memory.offered_bytes, now.memory.resident_bytes);
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
  EXPECT_EQUAL(now.memory.payload_bytes, 0);
  EXPECT_EQUAL(now.element_count, 0);
  EXPECT_EQUAL(now.memory.held_bytes, 0);
  EXPECT(now.memory.discarded_by_kernel_bytes > 0 && now.memory.discarded_by_kernel_bytes <= payload);
  NOTE("%zu of %d elements lost", gone, MANY);
  END_HEAP(heap);
}

// The first, a middle and the last page of a slab, found by a read, a lock, a check or a sweep.
void heap_one_page_lost(case_report_t *report) {
  NEED_OFFERS();
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
      // The books count elements by the page in which they begin.
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
      EXPECT_EQUAL(after.memory.payload_bytes, before.memory.payload_bytes - begin);
      EXPECT_EQUAL(after.memory.discarded_by_kernel_bytes, begin);
      EXPECT_EQUAL(after.memory.discarded_bytes, PAGE);
      purgeable_slab_information_t information;
      EXPECT_EQUAL(purgeable_slab_information(heap, slab, &information), 0);
      EXPECT_EQUAL(information.lost_page_count, 1);
      for (size_t i = 0; i < MANY; i++) EXPECT_EQUAL(purgeable_heap_free(heap, elements[i].reference), 0);
      EXPECT_EQUAL(heap_statistics(heap).memory.payload_bytes, 0);
      EXPECT_EQUAL(heap_statistics(heap).memory.held_bytes, 0);
      END_HEAP(heap);
    }
  }
}

// The real kernel this time: exactly the elements on the pages it took are gone.
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
    // The kernel is asked before any look could map the zero page.
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
  NEED_OFFERS();
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
      EXPECT_EQUAL(heap_statistics(heap).memory.locked_bytes, 0);
      EXPECT_EQUAL(purgeable_heap_free(heap, element.reference), 0);
      EXPECT(is_stale(heap, element.reference));
      END_HEAP(heap);
    }
  }
}

// Elements whose table of witnesses takes pages of its own, within a chunk and over several.
void heap_table_pages(case_report_t *report) {
  NEED_OFFERS();
  const size_t mib = (size_t)1 << 20, lengths[] = {24 * mib, 80 * mib};
  for (size_t i = 0; i < 2; i++) {
    MAKE_HEAP(heap, .offering = purgeable_offering_deferred);
    size_t table_pages = lengths[i] / PAGE * 2 / PAGE;
    if (table_pages < 2) {
      END_HEAP(heap);
      SKIP("a table of two pages takes an element of %zu MiB here", PAGE * PAGE / mib);
    }
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
        EXPECT_EQUAL(heap_statistics(heap).memory.payload_bytes, 0);
      }
      EXPECT_EQUAL(purgeable_heap_check(heap, reference), purgeable_outcome_discarded);
      EXPECT_EQUAL(purgeable_heap_lock(heap, reference, NULL, NULL), purgeable_outcome_discarded);
      EXPECT_EQUAL(purgeable_heap_free(heap, reference), 0);
    }
    EXPECT_EQUAL(heap_statistics(heap).memory.held_bytes, 0);
    END_HEAP(heap);
  }
}

void heap_zero_pages(case_report_t *report) {
  NEED_OFFERS();
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
      // Intact, too, with the one page that was written.
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

// A rescue that the compiler turns into a load leaves the offer standing. Only the real kernel shows that.
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
    EXPECT_EQUAL(heap_statistics(heap).memory.offered_bytes, 0);
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
  uint64_t offered = heap_statistics(heap).memory.offered_bytes;
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
  // Pages that the failed locks dirtied, and the element that was locked, go on offer again.
  size_t again = 0;
  EXPECT_EQUAL(purgeable_heap_offer_idle(heap, &again), 0);
  EXPECT(again > 0);
  END_HEAP(heap);
}
