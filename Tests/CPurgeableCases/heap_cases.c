// SPDX-License-Identifier: MIT
// The slab heap's calls, one by one: normal, at the edge, with bad input; references that are stale, foreign and forged.

#include "heap_cases.h"

// MARK: Options and bad input

static void options_are_checked(case_report_t *report) {
  const size_t page = PAGE;
  const struct {
    size_t slab, chunk;
    int offering, error;
  } table[] = {
      {0, 0, 0, 0},
      {page, 4 * page, 2, 0},
      {64 * page, 256 * page, 1, 0},
      {page / 2, 0, 0, EINVAL},
      {3 * page, 0, 0, EINVAL},
      {128 * page, 0, 0, EINVAL},
      {page + 1, 0, 0, EINVAL},
      {SIZE_MAX, 0, 0, EINVAL},
      {16 * page, 32 * page, 0, EINVAL},
      {16 * page, 96 * page, 0, EINVAL},
      {0, SIZE_MAX, 0, EINVAL},
      {0, (size_t)1 << 41, 0, EINVAL},
      {0, 1, 0, EINVAL},
      {0, 0, 3, EINVAL},
      {0, 0, -1, EINVAL},
  };
  for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
    purgeable_heap_options_t options = {.slab_bytes = table[i].slab, .chunk_bytes = table[i].chunk};
    memcpy(&options.offering, &table[i].offering, sizeof options.offering);
    purgeable_heap_t *heap = NULL;
    EXPECT_EQUAL(purgeable_heap_create(&options, &heap), table[i].error);
    EXPECT((heap != NULL) == (table[i].error == 0));
    if (heap == NULL) continue;
    EXPECT(table[i].slab == 0 || purgeable_heap_slab_bytes(heap) == table[i].slab);
    END_HEAP(heap);
  }
  const struct {
    size_t limit, pages;
  } chosen[] = {{0, 16}, {1, 4}, {(size_t)4 << 20, 16}, {(size_t)1 << 30, 64}, {SIZE_MAX, 64}};
  for (size_t i = 0; i < sizeof chosen / sizeof chosen[0]; i++) {
    MAKE_HEAP(heap, .byte_limit = chosen[i].limit);
    EXPECT_EQUAL(purgeable_heap_slab_bytes(heap), chosen[i].pages * page);
    END_HEAP(heap);
  }
}

static bool never_called(void *context, purgeable_reference_t from, purgeable_reference_t to, uint64_t tag, const void *bytes,
                         size_t length) {
  (void)from, (void)to, (void)tag, (void)bytes, (void)length;
  *(bool *)context = true;
  return true;
}

static void null_everywhere(case_report_t *report) {
  size_t length = 7;
  uint32_t cursor = 0;
  uint64_t tag = 7;
  char byte;
  void *bytes = &byte;
  const void *locked = &byte;
  purgeable_reference_t reference = {7, 7};
  purgeable_slab_t slab = {7, 7};
  purgeable_slab_information_t information;
  purgeable_stream_t stream;
  bool called = false;
  EXPECT_EQUAL(purgeable_heap_create(NULL, NULL), EINVAL);
  EXPECT_EQUAL(purgeable_heap_destroy(NULL), EINVAL);
  EXPECT_EQUAL(purgeable_heap_slab_bytes(NULL), 0);
  MAKE_HEAP(heap, .offering = purgeable_offering_deferred);
  element_t element;
  REQUIRE(make(heap, 100, 1, &element) == 0);
  for (int with = 0; with < 2; with++) {
    purgeable_heap_t *one = with == 0 ? NULL : heap;
    // Without a heap, or with one but another argument missing.
    EXPECT_EQUAL(purgeable_heap_allocate(one, 8, with ? NULL : &reference, &bytes), EINVAL);
    EXPECT_EQUAL(purgeable_heap_allocate(one, 8, &reference, with ? NULL : &bytes), EINVAL);
    EXPECT_EQUAL(purgeable_heap_allocate_in(one, with ? 99 : 0, 8, 0, &reference, &bytes), EINVAL);
    EXPECT_EQUAL(purgeable_heap_allocate_within(one, with ? 99 : 0, 8, 0, 0, &reference, &bytes), EINVAL);
    EXPECT_EQUAL(purgeable_heap_allocate(one, with ? 0 : 8, &reference, &bytes), EINVAL);
    EXPECT_EQUAL(purgeable_heap_read(one, element.reference, with ? NULL : &byte, 1, &length), purgeable_outcome_error);
    EXPECT_EQUAL(errno, EINVAL);
    EXPECT_EQUAL(purgeable_heap_read_part(one, element.reference, 0, 1, with ? NULL : &byte), purgeable_outcome_error);
    EXPECT_EQUAL(errno, EINVAL);
    EXPECT_EQUAL(purgeable_heap_read_start(one, element.reference, with ? NULL : &byte, 1, &length), purgeable_outcome_error);
    EXPECT_EQUAL(errno, EINVAL);
    EXPECT_EQUAL(purgeable_heap_length_bytes(one, element.reference, with ? NULL : &length), purgeable_outcome_error);
    EXPECT_EQUAL(errno, EINVAL);
    EXPECT_EQUAL(purgeable_heap_tag(one, element.reference, with ? NULL : &tag), EINVAL);
    EXPECT_EQUAL(purgeable_stream_create(one, with ? NULL : &stream), EINVAL);
    EXPECT_EQUAL(purgeable_stream_seal(one, with ? 5 : 0), EINVAL);
    EXPECT_EQUAL(purgeable_stream_slabs(one, with ? 5 : 0, &slab, 1, &length), EINVAL);
    EXPECT_EQUAL(purgeable_stream_slabs(one, 0, with ? NULL : &slab, 1, &length), EINVAL);
    EXPECT_EQUAL(purgeable_stream_slabs(one, 0, &slab, 1, with ? NULL : &length), EINVAL);
    EXPECT_EQUAL(purgeable_stream_oldest(one, with ? 5 : 0, &slab), EINVAL);
    EXPECT_EQUAL(purgeable_stream_oldest(one, 0, with ? NULL : &slab), EINVAL);
    EXPECT_EQUAL(purgeable_slab_next(one, slab_of(heap, &element), with ? NULL : &slab), EINVAL);
    EXPECT_EQUAL(purgeable_slab_information(one, slab_of(heap, &element), with ? NULL : &information), EINVAL);
    EXPECT_EQUAL(purgeable_slab_next_element(one, slab_of(heap, &element), with ? NULL : &cursor, &reference), EINVAL);
    EXPECT_EQUAL(purgeable_slab_next_element(one, slab_of(heap, &element), &cursor, with ? NULL : &reference), EINVAL);
    EXPECT_EQUAL(purgeable_heap_move(one, element.reference, with ? 5 : 0, never_called, &called, NULL), EINVAL);
    EXPECT_EQUAL(purgeable_heap_move(one, element.reference, 0, with ? NULL : never_called, &called, NULL), EINVAL);
    EXPECT_EQUAL(purgeable_slab_evacuate(one, slab_of(heap, &element), with ? 5 : 0, never_called, &called, NULL), EINVAL);
    EXPECT_EQUAL(purgeable_slab_evacuate(one, slab_of(heap, &element), 0, with ? NULL : never_called, &called, NULL), EINVAL);
    EXPECT_EQUAL(purgeable_slab_restream(one, slab_of(heap, &element), with ? 5 : 0), EINVAL);
    EXPECT_EQUAL(purgeable_slab_restream_oldest(one, slab_of(heap, &element), with ? 5 : 0), EINVAL);
    EXPECT_EQUAL(purgeable_slab_of(one, element.reference, with ? NULL : &slab), EINVAL);
    EXPECT_EQUAL(purgeable_heap_statistics(one, with ? NULL : &(purgeable_heap_statistics_t){0}), EINVAL);
  }
  EXPECT_EQUAL(purgeable_heap_generation(NULL, element.reference.place), 0);
  EXPECT_EQUAL(purgeable_heap_commit(NULL, element.reference), EINVAL);
  EXPECT_EQUAL(purgeable_heap_free(NULL, element.reference), EINVAL);
  EXPECT_EQUAL(purgeable_heap_unlock(NULL, element.reference), EINVAL);
  EXPECT_EQUAL(purgeable_heap_lock(NULL, element.reference, &locked, &length), purgeable_outcome_error);
  EXPECT_EQUAL(errno, EINVAL);
  EXPECT_EQUAL(purgeable_heap_check(NULL, element.reference), purgeable_outcome_error);
  EXPECT_EQUAL(errno, EINVAL);
  EXPECT_EQUAL(purgeable_slab_give_back(NULL, slab), EINVAL);
  EXPECT_EQUAL(purgeable_heap_offer_idle(NULL, NULL), EINVAL);
  EXPECT_EQUAL(purgeable_heap_sweep(NULL, NULL), EINVAL);
  EXPECT_EQUAL(purgeable_heap_trim(NULL, NULL), EINVAL);
  EXPECT_EQUAL(purgeable_heap_set_byte_limit(NULL, 1), EINVAL);
  EXPECT_EQUAL(purgeable_heap_held_bytes(NULL), 0);
  EXPECT_EQUAL(purgeable_heap_ordinary_bytes(NULL), 0);
  EXPECT(!purgeable_heap_has_pending(NULL));
  // Out-parameters that may be missing.
  EXPECT_EQUAL(purgeable_heap_lock(heap, element.reference, NULL, NULL), purgeable_outcome_intact);
  EXPECT_EQUAL(purgeable_heap_unlock(heap, element.reference), 0);
  EXPECT_EQUAL(purgeable_heap_offer_idle(heap, NULL), 0);
  EXPECT_EQUAL(purgeable_heap_sweep(heap, NULL), 0);
  EXPECT_EQUAL(purgeable_heap_trim(heap, NULL), 0);
  EXPECT(!called);
  EXPECT(is_intact(heap, &element));
  EXPECT_EQUAL(heap_statistics(heap).element_count, 1);
  END_HEAP(heap);
}

// MARK: Lengths

// Every interesting length, each at many positions of a page, in small, middle and large slabs.
static void all_lengths(case_report_t *report) {
  NEED_OFFERS();
  const size_t page = PAGE, slab_pages[] = {1, 4, 64};
  for (size_t s = 0; s < 3; s++) {
    const size_t slab = slab_pages[s] * page;
    const size_t lengths[] = {1,        7,        8,        9,        15,          16,           17,           24,
                              100,      1007,     1008,     1015,     1016,        1017,         1024,         2000,
                              page - 9, page - 8, page - 7, page,     page + 1,    2 * page + 3, slab / 2 - 9, slab / 2 - 8,
                              slab / 2, slab - 8, slab,     slab + 1, 3 * slab + 5};
    enum { LENGTHS = sizeof lengths / sizeof lengths[0], ROUNDS = 12 };
    MAKE_HEAP(heap, .slab_bytes = slab, .chunk_bytes = 64 * slab);
    static element_t elements[LENGTHS * ROUNDS];
    uint64_t sum = 0, random = report->seed;
    for (size_t i = 0; i < LENGTHS * ROUNDS; i++) {
      size_t length = lengths[i < LENGTHS ? i : next_random(&random) % LENGTHS];
      REQUIRE(make(heap, length, i, &elements[i]) == 0);
      EXPECT_EQUAL((uintptr_t)elements[i].bytes % 8, 0);
      size_t first = page_in_heap(elements[i].bytes - PURGEABLE_HEADER_BYTES);
      size_t last = page_in_heap(elements[i].bytes + length - 1);
      EXPECT(length + PURGEABLE_HEADER_BYTES > 1024 || first == last);
      sum += length;
    }
    EXPECT_EQUAL(heap_statistics(heap).memory.payload_bytes, sum);
    EXPECT_EQUAL(offer_all(heap), 0);
    for (size_t i = 0; i < LENGTHS * ROUNDS; i++) {
      size_t length = 0;
      EXPECT(is_intact(heap, &elements[i]) && locks_intact(heap, &elements[i]));
      EXPECT_EQUAL(purgeable_heap_length_bytes(heap, elements[i].reference, &length), purgeable_outcome_intact);
      EXPECT_EQUAL(length, elements[i].length);
    }
    for (size_t i = 0; i < LENGTHS * ROUNDS; i++) {
      sum -= elements[i].length;
      EXPECT_EQUAL(purgeable_heap_free(heap, elements[i].reference), 0);
      EXPECT_EQUAL(heap_statistics(heap).memory.payload_bytes, sum);
    }
    EXPECT_EQUAL(purgeable_stream_seal(heap, 0), 0);
    EXPECT_EQUAL(heap_statistics(heap).memory.held_bytes, 0);
    EXPECT_EQUAL(purgeable_heap_held_bytes(heap), 0);
    END_HEAP(heap);
  }
}

static void very_large_lengths(case_report_t *report) {
  NEED_OFFERS();
  MAKE_HEAP(heap, .offering = purgeable_offering_deferred);
  purgeable_reference_t reference;
  void *bytes;
  const size_t refused[] = {SIZE_MAX, SIZE_MAX - 7, SIZE_MAX / 2, PURGEABLE_ELEMENT_BYTES_MAX + 1, (size_t)1 << 40};
  for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
    EXPECT_EQUAL(purgeable_heap_allocate(heap, refused[i], &reference, &bytes), EFBIG);
  }
  // The largest element, of which only a few bytes are touched.
  if (purgeable_heap_allocate(heap, PURGEABLE_ELEMENT_BYTES_MAX, &reference, &bytes) == 0) {
    ((char *)bytes)[PURGEABLE_ELEMENT_BYTES_MAX - 1] = 1;
    EXPECT(is_stale(heap, reference));
    EXPECT_EQUAL(purgeable_heap_free(heap, reference), 0);
  } else {
    NOTE("no address space for the largest element");
  }
  EXPECT_EQUAL(heap_statistics(heap).memory.held_bytes, 0);
  const size_t mib = (size_t)1 << 20, lengths[] = {63 * mib, 64 * mib, 65 * mib + 1, 130 * mib};
  for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
    element_t element, small;
    REQUIRE(make(heap, lengths[i], i, &element) == 0);
    REQUIRE(make(heap, 50, i, &small) == 0);
    EXPECT_EQUAL(offer_all(heap), 0);
    EXPECT(is_intact(heap, &element) && is_intact(heap, &small) && locks_intact(heap, &element));
    EXPECT_EQUAL(purgeable_heap_free(heap, element.reference), 0);
    EXPECT(is_stale(heap, element.reference));
    EXPECT(is_intact(heap, &small));
  }
  END_HEAP(heap);
}

// MARK: Order of calls

static void wrong_order(case_report_t *report) {
  MAKE_HEAP(heap, .offering = purgeable_offering_deferred);
  purgeable_reference_t reference;
  void *bytes;
  REQUIRE(purgeable_heap_allocate(heap, 100, &reference, &bytes) == 0);
  EXPECT_EQUAL(heap_statistics(heap).memory.locked_bytes, 100);
  // Look-ups do not find an element before it is committed, and an unlock of it fails.
  EXPECT(is_stale(heap, reference));
  EXPECT_EQUAL(purgeable_heap_unlock(heap, reference), ESTALE);
  fill_pattern(bytes, 100, 1);
  EXPECT_EQUAL(purgeable_heap_commit(heap, reference), 0);
  EXPECT_EQUAL(purgeable_heap_commit(heap, reference), ESTALE);
  EXPECT_EQUAL(heap_statistics(heap).memory.locked_bytes, 0);
  element_t element = {reference, bytes, 100, 1};
  EXPECT(is_intact(heap, &element));
  // Unlocks that have no lock.
  EXPECT_EQUAL(purgeable_heap_unlock(heap, reference), EPERM);
  EXPECT(locks_intact(heap, &element));
  EXPECT_EQUAL(purgeable_heap_unlock(heap, reference), EPERM);
  EXPECT_EQUAL(heap_statistics(heap).unbalanced_unlock_count, 2);
  EXPECT_EQUAL(heap_statistics(heap).memory.locked_bytes, 0);
  EXPECT_EQUAL(purgeable_heap_free(heap, reference), 0);
  EXPECT_EQUAL(purgeable_heap_free(heap, reference), ESTALE);
  EXPECT_EQUAL(purgeable_heap_commit(heap, reference), ESTALE);
  EXPECT_EQUAL(purgeable_heap_unlock(heap, reference), EPERM);
  EXPECT(is_stale(heap, reference));
  // An allocation that is abandoned.
  REQUIRE(purgeable_heap_allocate(heap, 30, &reference, &bytes) == 0);
  EXPECT_EQUAL(purgeable_heap_free(heap, reference), 0);
  EXPECT_EQUAL(purgeable_heap_free(heap, reference), ESTALE);
  EXPECT_EQUAL(purgeable_heap_commit(heap, reference), ESTALE);
  EXPECT_EQUAL(heap_statistics(heap).memory.locked_bytes, 0);
  EXPECT_EQUAL(heap_statistics(heap).element_count, 0);
  EXPECT_EQUAL(heap_statistics(heap).memory.payload_bytes, 0);
  EXPECT_EQUAL(purgeable_stream_seal(heap, 0), 0);
  EXPECT_EQUAL(heap_statistics(heap).slab_count, 0);
  END_HEAP(heap);
}

static void count_at_maximum(case_report_t *report) {
  const uint32_t most = 0xFFFFF;
  MAKE_HEAP(heap, .offering = purgeable_offering_deferred);
  element_t element;
  REQUIRE(make(heap, 10, 1, &element) == 0);
  for (uint32_t i = 0; i < most; i++) {
    REQUIRE(purgeable_heap_lock(heap, element.reference, NULL, NULL) == purgeable_outcome_intact);
  }
  purgeable_slab_information_t information;
  EXPECT_EQUAL(purgeable_slab_information(heap, slab_of(heap, &element), &information), 0);
  EXPECT_EQUAL(information.lock_count, most);
  EXPECT_EQUAL(purgeable_heap_lock(heap, element.reference, NULL, NULL), purgeable_outcome_error);
  EXPECT_EQUAL(errno, EOVERFLOW);
  purgeable_reference_t reference;
  void *bytes;
  EXPECT_EQUAL(purgeable_heap_allocate(heap, 8, &reference, &bytes), EAGAIN);
  EXPECT(is_intact(heap, &element));
  EXPECT_EQUAL(heap_statistics(heap).memory.locked_bytes, 10 * (uint64_t)most);
  // Even while it is locked an element can be freed, and the last unlock gives the slab back.
  EXPECT_EQUAL(purgeable_stream_seal(heap, 0), 0);
  EXPECT_EQUAL(purgeable_heap_free(heap, element.reference), 0);
  EXPECT(check_pattern(element.bytes, 10, 1));
  for (uint32_t i = 0; i < most; i++) {
    REQUIRE(purgeable_heap_unlock(heap, element.reference) == 0);
  }
  EXPECT_EQUAL(purgeable_heap_unlock(heap, element.reference), ESTALE);
  EXPECT_EQUAL(heap_statistics(heap).memory.locked_bytes, 0);
  EXPECT_EQUAL(heap_statistics(heap).slab_count, 0);
  // The same with an element that is still being written.
  REQUIRE(make(heap, 10, 2, &element) == 0);
  REQUIRE(purgeable_heap_allocate(heap, 8, &reference, &bytes) == 0);
  for (uint32_t i = 0; i < most - 1; i++) {
    REQUIRE(purgeable_heap_lock(heap, element.reference, NULL, NULL) == purgeable_outcome_intact);
  }
  EXPECT_EQUAL(purgeable_heap_free(heap, reference), 0);
  EXPECT_EQUAL(purgeable_heap_lock(heap, element.reference, NULL, NULL), purgeable_outcome_intact);
  for (uint32_t i = 0; i < most; i++) (void)purgeable_heap_unlock(heap, element.reference);
  EXPECT_EQUAL(purgeable_heap_unlock(heap, element.reference), EPERM);
  EXPECT_EQUAL(heap_statistics(heap).memory.locked_bytes, 0);
  END_HEAP(heap);
}

static void free_while_locked(case_report_t *report) {
  const size_t lengths[] = {100, 5000, 3 * 65536};
  for (size_t i = 0; i < 3; i++) {
    MAKE_HEAP(heap, .offering = purgeable_offering_deferred);
    element_t element;
    REQUIRE(make(heap, lengths[i], i, &element) == 0);
    EXPECT_EQUAL(purgeable_stream_seal(heap, 0), 0);
    purgeable_slab_t slab = slab_of(heap, &element);
    EXPECT_EQUAL(purgeable_heap_lock(heap, element.reference, NULL, NULL), purgeable_outcome_intact);
    EXPECT_EQUAL(purgeable_heap_lock(heap, element.reference, NULL, NULL), purgeable_outcome_intact);
    EXPECT_EQUAL(purgeable_heap_free(heap, element.reference), 0);
    EXPECT(is_stale(heap, element.reference));
    EXPECT_EQUAL(purgeable_slab_give_back(heap, slab), 0);
    EXPECT_EQUAL(purgeable_heap_offer_idle(heap, NULL), 0);
    EXPECT_EQUAL(purgeable_heap_trim(heap, NULL), 0);
    (void)kernel_discard(element.bytes, element.length);
    EXPECT(check_pattern(element.bytes, element.length, i));
    EXPECT_EQUAL(purgeable_heap_unlock(heap, element.reference), 0);
    EXPECT(check_pattern(element.bytes, element.length, i));
    EXPECT_EQUAL(heap_statistics(heap).slab_count, 1);
    EXPECT_EQUAL(purgeable_heap_unlock(heap, element.reference), 0);
    EXPECT_EQUAL(heap_statistics(heap).slab_count, 0);
    EXPECT_EQUAL(heap_statistics(heap).memory.resident_bytes, 0);
    EXPECT_EQUAL(heap_statistics(heap).memory.locked_bytes, 0);
    EXPECT_EQUAL(purgeable_heap_unlock(heap, element.reference), ESTALE);
    EXPECT_EQUAL(purgeable_slab_information(heap, slab, &(purgeable_slab_information_t){0}), ESTALE);
    END_HEAP(heap);
  }
}

const test_case_t heap_cases[] = {
    CASE("heap: options are checked and chosen", options_are_checked),
    CASE("heap: NULL and unknown streams are answered with an error", null_everywhere),
    CASE("heap: elements of all lengths", all_lengths),
    CASE("heap: very large elements, and larger than any", very_large_lengths),
    CASE("heap: calls in the wrong order", wrong_order),
    CASE("heap: the count stops at its maximum", count_at_maximum),
    CASE("heap: freed while locked, bytes stay until the last unlock", free_while_locked),
    CASE("heap: references are stale after a rebirth", stale_after_rebirth),
    CASE("heap: foreign and forged references do not pass", foreign_and_forged),
    CASE("heap: the length of a large element that ends meanwhile", length_of_what_ends),
    CASE("heap: payload cannot pose as a header", payload_poses_as_header),
    CASE("heap: a slab whose generations are used up retires", generations_retire),
    CASE("heap: all pages lost", heap_all_pages_lost),
    CASE("heap: one page lost, its elements and no others", heap_one_page_lost),
    CASE("heap: neighbours of what the kernel took are intact", heap_neighbours_survive),
    CASE("heap: a large element is lost with any one of its pages", heap_each_page_of_large),
    CASE("heap: table pages of very large elements", heap_table_pages),
    CASE("heap: zeros cannot be lost", heap_zero_pages),
    CASE("heap: pages touched before the question are still lost", heap_touched_before_asked),
    CASE("heap: a lock cancels the offer", heap_lock_cancels_offer),
    CASE("heap: what is locked stays, its neighbours on other pages go", heap_locked_stays_neighbours_go),
    CASE("heap: a part needs the pages it touches", heap_parts_need_their_pages),
    CASE("heap: reads that match a prefix", heap_matching_reads),
    CASE("heap: tags survive the loss of their pages", heap_tags_survive),
    CASE("heap: large reads without lock end on a busy machine", heap_large_read_on_busy_machine),
    CASE("heap: statistics are exact after each step", heap_books_after_each_step),
    FULL_CASE("heap: statistics against the kernel's own", heap_books_against_kernel),
    CASE("heap: limits refuse and change nothing", heap_limits),
    CASE("heap: offering modes", heap_modes),
    CASE("heap: what was locked goes on offer again with few calls", heap_later_offers),
    CASE("heap: mlocked memory", heap_mlocked),
    CASE("heap: of several ranges that are refused none counts as on offer", heap_refused_ranges),
    CASE("heap: ordinary memory", heap_ordinary_memory),
    END_OF_CASES,
};
