// SPDX-License-Identifier: MIT
// Offers that meet what they must not touch, or are refused; and the notes that say whether there is work. The table is in
// stream_cases.c.

#include <sys/syscall.h>

#include "heap_owner.h"

// Elements of a page each, in slabs that are neighbours.
enum { PER_SLAB = 4, SLAB_COUNT = 8, ELEMENT_BYTES = 3900 };

static bool fill_slabs(purgeable_heap_t *heap, element_t *elements, size_t first, size_t end) {
  for (size_t i = first * PER_SLAB; i < end * PER_SLAB; i++) {
    if (make(heap, ELEMENT_BYTES, i, &elements[i]) != 0) return false;
  }
  return true;
}

static int withhold_slab(purgeable_heap_t *heap, const element_t *elements, size_t number) {
  return purgeable_slab_withhold(heap, slab_of(heap, &elements[number * PER_SLAB]), true);
}

// Whatever the kernel can take of a slab's pages it takes; how many of the elements are left, each of them right.
static size_t left_of(purgeable_heap_t *heap, const element_t *elements, size_t number) {
  const element_t *first = &elements[number * PER_SLAB];
  if (kernel_discard(page_start(first->bytes), PER_SLAB * PAGE) < 0) return SIZE_MAX;
  size_t left = 0;
  for (size_t i = 0; i < PER_SLAB; i++) left += is_intact(heap, first + i);
  return left;
}

// A call that offers slabs on both sides does not reach across one that is withheld: beyond the bound of what may wait, and in
// second offers of what was on offer before it was withheld.
void offers_spare_the_withheld(case_report_t *report) {
  NEED_EXACT_DISCARDS();
  for (int way = 0; way < 2; way++) {
    uint64_t limit = purgeable_pending_byte_limit();
    if (way == 0) purgeable_set_pending_byte_limit(UINT64_MAX);
    MAKE_HEAP(heap, .slab_bytes = PER_SLAB * PAGE);
    element_t elements[SLAB_COUNT * PER_SLAB];
    // Slabs 1, 3 and 4 are withheld: one by itself, and two in a row.
    const size_t withheld[] = {1, 3, 4};
    if (way == 0) {
      REQUIRE(fill_slabs(heap, elements, 0, SLAB_COUNT - 1));
      EXPECT_EQUAL(purgeable_stream_seal(heap, 0), 0);
      for (size_t i = 0; i < 3; i++) EXPECT_EQUAL(withhold_slab(heap, elements, withheld[i]), 0);
      purgeable_set_pending_byte_limit(PAGE);
      REQUIRE(fill_slabs(heap, elements, SLAB_COUNT - 1, SLAB_COUNT));
      EXPECT_EQUAL(purgeable_stream_seal(heap, 0), 0);
      EXPECT(locks_intact(heap, &elements[SLAB_COUNT * PER_SLAB - 1]));
    } else {
      REQUIRE(fill_slabs(heap, elements, 0, SLAB_COUNT));
      EXPECT_EQUAL(purgeable_stream_seal(heap, 0), 0);
      EXPECT_EQUAL(purgeable_heap_offer_idle(heap, NULL), 0);
      for (size_t i = 0; i < 3; i++) EXPECT_EQUAL(withhold_slab(heap, elements, withheld[i]), 0);
      // A lock takes it off offer.
      for (size_t i = 0; i < 3; i++) {
        for (size_t k = 0; k < PER_SLAB; k++) EXPECT(locks_intact(heap, &elements[withheld[i] * PER_SLAB + k]));
      }
      // Also without a sum of what was offered the heap comes to rest.
      for (int round = 0; round < 4; round++) EXPECT_EQUAL(purgeable_heap_offer_idle(heap, NULL), 0);
      EXPECT(!purgeable_heap_has_pending(heap));
    }
    EXPECT_EQUAL(elements[7 * PER_SLAB].bytes - elements[0].bytes, 7 * PER_SLAB * PAGE);
    for (size_t i = 0; i < 3; i++) EXPECT_EQUAL(left_of(heap, elements, withheld[i]), PER_SLAB);
    for (size_t i = 0; i < 3; i++) EXPECT(!purgeable_heap_is_on_offer(heap, elements[withheld[i] * PER_SLAB].reference.place));
    EXPECT_EQUAL(left_of(heap, elements, 0), 0);
    EXPECT_EQUAL(left_of(heap, elements, 2), 0);
    END_HEAP(heap);
    if (way == 0) purgeable_set_pending_byte_limit(limit);
  }
}

// One page that is mlocked keeps no other slab off offer, is not reported as on offer however often that is tried, and goes on
// offer once it is unlocked.
void refused_offers_come_back(case_report_t *report) {
  NEED_EXACT_DISCARDS();
  MAKE_HEAP(heap, .slab_bytes = PER_SLAB * PAGE);
  element_t elements[SLAB_COUNT * PER_SLAB];
  REQUIRE(fill_slabs(heap, elements, 0, SLAB_COUNT));
  EXPECT_EQUAL(purgeable_stream_seal(heap, 0), 0);
  char *locked = page_start(elements[1 * PER_SLAB].bytes);
  // The system call itself: the address sanitizer turns mlock() into nothing.
  if (syscall(SYS_mlock, locked, PAGE) != 0) {
    END_HEAP(heap);
    SKIP("mlock is refused: %s", strerror(errno));
  }
  for (int round = 0; round < 4; round++) {
    size_t offered = 0;
    // The fourth call leaves it alone.
    EXPECT_EQUAL(purgeable_heap_offer_idle(heap, &offered), round < 3 ? EINVAL : 0);
    EXPECT_EQUAL(heap_statistics(heap).memory.offered_bytes, (SLAB_COUNT - 1) * PER_SLAB * PAGE);
    EXPECT_EQUAL(heap_statistics(heap).memory.pending_bytes, PER_SLAB * PAGE);
    EXPECT(purgeable_heap_has_pending(heap));
  }
  for (size_t i = 0; i < SLAB_COUNT; i++) {
    if (i != 1) EXPECT_EQUAL(left_of(heap, elements, i), 0);
  }
  for (size_t i = 0; i < PER_SLAB; i++) EXPECT(is_intact(heap, &elements[1 * PER_SLAB + i]));
  EXPECT_EQUAL(syscall(SYS_munlock, locked, PAGE), 0);
  for (int round = 0; round < 3; round++) EXPECT_EQUAL(purgeable_heap_offer_idle(heap, NULL), 0);
  EXPECT(!purgeable_heap_has_pending(heap));
  EXPECT_EQUAL(left_of(heap, elements, 1), 0);
  END_HEAP(heap);
}

// What stays refused is tried ever more seldom, and keeps nothing else off offer meanwhile.
void refused_offers_are_tried_seldom(case_report_t *report) {
  NEED_EXACT_DISCARDS();
  MAKE_HEAP(heap, .slab_bytes = PER_SLAB * PAGE);
  element_t elements[(SLAB_COUNT + 1) * PER_SLAB];
  REQUIRE(fill_slabs(heap, elements, 0, SLAB_COUNT));
  EXPECT_EQUAL(purgeable_stream_seal(heap, 0), 0);
  char *locked = page_start(elements[0].bytes);
  size_t length = SLAB_COUNT * PER_SLAB * PAGE;
  EXPECT_EQUAL(page_start(elements[(SLAB_COUNT - 1) * PER_SLAB].bytes) - locked, length - PER_SLAB * PAGE);
  if (syscall(SYS_mlock, locked, length) != 0) {
    END_HEAP(heap);
    SKIP("mlock is refused: %s", strerror(errno));
  }
  uint64_t before = purgeable_testing_call_count(purgeable_testing_call_madvise_free);
  for (int call = 1; call <= 128; call++) {
    bool tries = call <= 3 || ((call - 1) & (call - 2)) == 0;
    EXPECT_EQUAL(purgeable_heap_offer_idle(heap, NULL), tries ? EINVAL : 0);
    EXPECT(purgeable_heap_has_pending(heap));
  }
  // One call for all of it, and one for each slab; in calls 1, 2, 3, 5, 9, 17, 33 and 65.
  EXPECT_EQUAL(purgeable_testing_call_count(purgeable_testing_call_madvise_free) - before, 8 * (1 + SLAB_COUNT));
  // Another slab goes on offer at once.
  REQUIRE(fill_slabs(heap, elements, SLAB_COUNT, SLAB_COUNT + 1));
  EXPECT_EQUAL(purgeable_stream_seal(heap, 0), 0);
  EXPECT_EQUAL(purgeable_heap_offer_idle(heap, NULL), EINVAL);
  EXPECT_EQUAL(heap_statistics(heap).memory.offered_bytes, PER_SLAB * PAGE);
  EXPECT_EQUAL(syscall(SYS_munlock, locked, length), 0);
  for (int call = 0; call < 130; call++) EXPECT_EQUAL(purgeable_heap_offer_idle(heap, NULL), 0);
  EXPECT(!purgeable_heap_has_pending(heap));
  EXPECT_EQUAL(heap_statistics(heap).memory.offered_bytes, (SLAB_COUNT + 1) * PER_SLAB * PAGE);
  for (size_t i = 0; i < SLAB_COUNT; i++) EXPECT_EQUAL(left_of(heap, elements, i), 0);
  END_HEAP(heap);
}

// A wipe that was refused is work for the next upkeep, and `has_pending` says so.
void refused_wipes_are_pending(case_report_t *report) {
  MAKE_HEAP(heap, .slab_bytes = PER_SLAB * PAGE, .offering = purgeable_offering_never);
  element_t elements[SLAB_COUNT * PER_SLAB];
  REQUIRE(fill_slabs(heap, elements, 0, SLAB_COUNT));
  EXPECT_EQUAL(purgeable_stream_seal(heap, 0), 0);
  EXPECT_EQUAL(purgeable_heap_offer_idle(heap, NULL), 0);
  // What was kept to be filled again is left out: the wipe comes at once.
  purgeable_heap_begin_giving_back(heap);
  for (size_t i = 0; i < SLAB_COUNT * PER_SLAB; i++) EXPECT_EQUAL(purgeable_heap_free(heap, elements[i].reference), 0);
  purgeable_testing_fail(purgeable_testing_call_madvise_dontneed | purgeable_testing_call_madvise_other, 1, ENOMEM, true);
  purgeable_heap_end_giving_back(heap);
  EXPECT_EQUAL(purgeable_heap_offer_idle(heap, NULL), 0);
  purgeable_testing_fail(0, 0, 0, false);
  EXPECT_EQUAL(purgeable_heap_held_bytes(heap), SLAB_COUNT * PER_SLAB * PAGE);
  EXPECT(purgeable_heap_has_pending(heap));
  EXPECT_EQUAL(purgeable_heap_offer_idle(heap, NULL), 0);
  EXPECT_EQUAL(purgeable_heap_held_bytes(heap), 0);
  END_HEAP(heap);
}

// A policy with streams of its own hears of its busy slabs, although the heap moves what is busy in stream 0 by itself.
void busy_slabs_are_told_to_policies(case_report_t *report) {
  NEED_OFFERS();
  owner_t owner = make_owner(2);
  MAKE_HEAP(heap, .slab_bytes = PER_SLAB * PAGE, .keeps_tags = true, .moved = take_moved, .context = &owner);
  purgeable_stream_t stream;
  REQUIRE(purgeable_stream_create(heap, &stream) == 0);
  REQUIRE(keep(heap, &owner, 0, 0, 300) == 0 && keep(heap, &owner, stream, 1, 300) == 0);
  EXPECT_EQUAL(purgeable_stream_seal(heap, stream), 0);
  EXPECT_EQUAL(offer_all(heap), 0);
  REQUIRE(purgeable_heap_lock(heap, kept(&owner, 1), NULL, NULL) == purgeable_outcome_intact);
  for (int round = 0; round < 8; round++) {
    // There is something to offer.
    REQUIRE(purgeable_heap_lock(heap, kept(&owner, 0), NULL, NULL) == purgeable_outcome_intact);
    EXPECT_EQUAL(purgeable_heap_unlock(heap, kept(&owner, 0)), 0);
    EXPECT_EQUAL(purgeable_heap_offer_idle(heap, NULL), 0);
  }
  EXPECT(purgeable_heap_take_busy(heap));
  EXPECT_EQUAL(purgeable_heap_unlock(heap, kept(&owner, 1)), 0);
  END_HEAP(heap);
  end_owner(&owner);
}

// MARK: What lies behind a mapping

// The element's mapping, from its first page.
static char *mapping_of(const element_t *element) { return page_start(element->bytes); }

// Makes two large elements of `length` bytes, so that the second one's mapping begins `stride` bytes behind the first one's, and
// foreign memory fills the gap. Their numbers have been used before, so that no directory is mapped in between. Returns the gap,
// or NULL where the kernel has placed them otherwise.
static char *make_beside_gap(purgeable_heap_t *heap, size_t length, size_t mapped, size_t stride, element_t elements[2]) {
  for (size_t i = 0; i < 2; i++) {
    if (make(heap, length, i, &elements[i]) != 0) abort();
  }
  for (size_t i = 0; i < 2; i++) {
    if (purgeable_heap_free(heap, elements[i].reference) != 0) abort();
  }
  // Above what is mapped next: the gap, and the place of the second mapping.
  char *above = mmap(NULL, stride, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (above == MAP_FAILED || make(heap, length, 0, &elements[0]) != 0) abort();
  char *gap = mapping_of(&elements[0]) + mapped, *second = mapping_of(&elements[0]) + stride;
  bool fits = gap == above;
  if (fits) (void)munmap(second, mapped);
  if (make(heap, length, 1, &elements[1]) != 0) abort();
  if (fits && mapping_of(&elements[1]) == second) return gap;
  if (fits) (void)munmap(above, (size_t)(second - above));
  if (!fits) (void)munmap(above, stride);
  return NULL;
}

// A large element's mapping may end before its last unit does. What follows is not the heap's, though the next mapping begins
// where the unit ends, and both are offered by one call.
void offers_end_with_their_mapping(case_report_t *report) {
  NEED_DISCARDS();
  const size_t slab = 16 * PAGE, length = 120 * PAGE;
  MAKE_HEAP(heap, .slab_bytes = slab, .chunk_bytes = 4 * slab);
  element_t first;
  REQUIRE(make(heap, length, 0, &first) == 0);
  const size_t mapped = purgeable_heap_held_bytes(heap), stride = 8 * slab;
  REQUIRE(mapped > length && mapped < stride);
  for (int try = 0; try < 50; try++) {
    element_t elements[2];
    char *gap = make_beside_gap(heap, length, mapped, stride, elements);
    if (gap == NULL) continue;
    fill_pattern(gap, stride - mapped, 7);
    for (int round = 0; round < 3; round++) EXPECT_EQUAL(purgeable_heap_offer_idle(heap, NULL), 0);
    (void)kernel_discard(gap, stride - mapped);
    EXPECT(check_pattern(gap, stride - mapped, 7));
    EXPECT(purgeable_heap_is_on_offer(heap, elements[0].reference.place));
    EXPECT(purgeable_heap_is_on_offer(heap, elements[1].reference.place));
    (void)munmap(gap, stride - mapped);
    END_HEAP(heap);
    return;
  }
  (void)purgeable_heap_destroy(heap);
  SKIP("the kernel places mappings otherwise");
}

// MARK: Immediate mode

typedef struct beside_offer {
  purgeable_heap_t *heap;
  element_t element;
  bool done;
} beside_offer_t;

static void make_beside_offer(void *context) {
  beside_offer_t *beside = context;
  if (beside->done) return;
  beside->done = true;
  if (make(beside->heap, 7 * PAGE, 2, &beside->element) != 0) abort();
}

// What an offer of one's own leaves out is work for the upkeep: the page that is being filled, and what was written beside an
// offer that was under way.
void immediate_mode_leaves_the_rest_to_upkeep(case_report_t *report) {
  NEED_OFFERS();
  NEED_HOOKS();
  MAKE_HEAP(heap, .slab_bytes = 64 * PAGE, .offering = purgeable_offering_immediate);
  element_t small, large;
  REQUIRE(make(heap, 100, 0, &small) == 0);
  EXPECT(purgeable_heap_has_pending(heap) && !purgeable_heap_is_on_offer(heap, small.reference.place));
  for (int round = 0; round < 12; round++) EXPECT_EQUAL(purgeable_heap_offer_idle(heap, NULL), 0);
  EXPECT(purgeable_heap_is_on_offer(heap, small.reference.place));
  EXPECT(!purgeable_heap_has_pending(heap));
  beside_offer_t beside = {.heap = heap};
  (void)purgeable_testing_set_pause(make_beside_offer, &beside);
  REQUIRE(make(heap, 3 * PAGE, 1, &large) == 0);
  (void)purgeable_testing_set_pause(NULL, NULL);
  REQUIRE(beside.done);
  EXPECT(purgeable_heap_has_pending(heap));
  for (int round = 0; round < 12; round++) EXPECT_EQUAL(purgeable_heap_offer_idle(heap, NULL), 0);
  EXPECT(purgeable_heap_is_on_offer(heap, beside.element.reference.place));
  EXPECT(!purgeable_heap_has_pending(heap));
  EXPECT(is_intact(heap, &small) && is_intact(heap, &large) && is_intact(heap, &beside.element));
  END_HEAP(heap);
}

// MARK: Compaction that others are in the way of

typedef struct greedy_owner {
  owner_t owner;
  purgeable_heap_t *heap;
  // It stores elements of its own, in slots from here on, with each move, until it is refused.
  size_t next;
  size_t stored;
} greedy_owner_t;

static bool take_moved_and_store(void *context, purgeable_reference_t from, purgeable_reference_t to, uint64_t tag,
                                 const void *bytes, size_t length) {
  greedy_owner_t *greedy = context;
  bool taken = take_moved(&greedy->owner, from, to, tag, bytes, length);
  while (greedy->stored < 2000 && keep(greedy->heap, &greedy->owner, 0, greedy->next, length) == 0) {
    greedy->next++;
    greedy->stored++;
  }
  return taken;
}

// A callback of a compaction that fills the slab which the compaction has begun does not leave a heap that is mostly dead without
// room for ever; neither does a limit that leaves no room in the numbers.
void compaction_goes_on_where_its_slab_is_taken(case_report_t *report) {
  enum { SLOTS = 30000, LENGTH = 200 };
  for (int defers = 0; defers < 2; defers++) {
    greedy_owner_t greedy = {.owner = make_owner(SLOTS)};
    const size_t slab = 16 * PAGE, limit = 64 * slab;
    MAKE_HEAP(heap, .byte_limit = limit, .slab_bytes = slab, .keeps_tags = true, .moved = take_moved_and_store,
              .context = &greedy, .defers_compaction = defers == 1);
    greedy.heap = heap;
    size_t count = 0;
    greedy.stored = SIZE_MAX / 2;
    while (count < SLOTS && keep(heap, &greedy.owner, 0, count, LENGTH) == 0) count++;
    REQUIRE(count > 1000 && count < SLOTS - 5000);
    greedy.next = count;
    for (size_t i = 0; i < count; i++) {
      if (i % 4 != 0) EXPECT(drop(heap, &greedy.owner, i));
    }
    greedy.stored = 0;
    size_t freed = 0, again = 0;
    EXPECT_EQUAL(purgeable_heap_trim(heap, &freed), 0);
    EXPECT(greedy.stored > 0);
    EXPECT(freed > limit / 4);
    for (size_t i = 0; i < count; i += 4) EXPECT(keeps_intact(heap, &greedy.owner, i));
    for (size_t i = count; i < greedy.next; i++) EXPECT(keeps_intact(heap, &greedy.owner, i));
    greedy.stored = SIZE_MAX / 2;
    for (size_t i = 1; i < count && keep(heap, &greedy.owner, 0, i, LENGTH) == 0; i += 4) again++;
    EXPECT(again > count / 8);
    EXPECT(purgeable_heap_held_bytes(heap) <= limit + (defers == 1 ? 0 : slab));
    END_HEAP(heap);
    end_owner(&greedy.owner);
  }
  owner_t owner = make_owner(2000);
  MAKE_HEAP(heap, .byte_limit = SIZE_MAX, .slab_bytes = 4 * PAGE, .keeps_tags = true, .moved = take_moved, .context = &owner);
  for (size_t i = 0; i < 2000; i++) REQUIRE(keep(heap, &owner, 0, i, 200) == 0);
  for (size_t i = 0; i < 2000; i++) {
    if (i % 4 != 0) EXPECT(drop(heap, &owner, i));
  }
  size_t freed = 0;
  EXPECT_EQUAL(purgeable_heap_trim(heap, &freed), 0);
  EXPECT(freed > 0);
  END_HEAP(heap);
  end_owner(&owner);
}
