// SPDX-License-Identifier: MIT
// Work that must not grow with the heap or the region, by count: how far searches look, and what is called.

#include "heap_owner.h"

// MARK: Compaction

enum { SLABS = 1500, HAND_LOOKS = 64 };

// Drops `percent` of the owner's elements, at random.
static void thin_out(purgeable_heap_t *heap, owner_t *owner, unsigned percent, uint64_t *random) {
  for (size_t slot = 0; slot < owner->count; slot++) {
    if (next_random(random) % 100 < percent) (void)drop(heap, owner, slot);
  }
}

// With many slabs, none of them sparse enough, an allocation looks at a few; and a sparse one is found in its turn.
static void compaction_looks_at_few(case_report_t *report) {
  NEED_HOOKS();
  const size_t length = 100;
  size_t per_slab = PAGE / 112;
  owner_t owner = make_owner(2 * SLABS * per_slab);
  MAKE_HEAP(heap, .slab_bytes = PAGE, .keeps_tags = true, .moved = take_moved, .context = &owner);
  size_t slot = 0;
  while (heap_statistics(heap).slab_count < SLABS) {
    for (size_t i = 0; i < per_slab; i++) REQUIRE(keep(heap, &owner, 0, slot++, length) == 0);
  }
  uint64_t random = report->seed;
  thin_out(heap, &owner, 30, &random);
  // A slab in the middle is left with one element.
  size_t last = slot / 2;
  while (atomic_load(&owner.slots[last]) == 0) last++;
  element_t middle = {.reference = kept(&owner, last)};
  purgeable_slab_t sparse = slab_of(heap, &middle), other;
  for (size_t i = last < 2 * per_slab ? 0 : last - 2 * per_slab; i < last + 2 * per_slab; i++) {
    if (i == last || atomic_load(&owner.slots[i]) == 0) continue;
    element_t neighbour = {.reference = kept(&owner, i)};
    other = slab_of(heap, &neighbour);
    if (other.index == sparse.index && other.generation == sparse.generation) (void)drop(heap, &owner, i);
  }
  (void)purgeable_testing_take_most_looks(purgeable_testing_looks_compaction);
  uint64_t before = purgeable_testing_look_count(purgeable_testing_looks_compaction);
  purgeable_slab_information_t information;
  // Each slab that begins moves the hand on.
  size_t fresh = 0;
  for (; fresh < SLABS / HAND_LOOKS + 4 && purgeable_slab_information(heap, sparse, &information) == 0; fresh++) {
    for (size_t i = 0; i < per_slab; i++) REQUIRE(keep(heap, &owner, 0, slot++, length) == 0);
  }
  EXPECT_EQUAL(purgeable_slab_information(heap, sparse, &information), ESTALE);
  EXPECT(keeps_intact(heap, &owner, last));
  uint64_t most = purgeable_testing_take_most_looks(purgeable_testing_looks_compaction);
  uint64_t looks = purgeable_testing_look_count(purgeable_testing_looks_compaction) - before;
  EXPECT(most != 0 && most <= HAND_LOOKS);
  EXPECT(looks <= (fresh + 2) * HAND_LOOKS);
  NOTE("%zu slabs, %llu looks for %zu fresh ones", (size_t)SLABS, (unsigned long long)looks, fresh);
  EXPECT_EQUAL(purgeable_heap_trim(heap, NULL), 0);
  END_HEAP(heap);
  end_owner(&owner);
}

// MARK: Runs of units

enum { CHUNK_UNITS = 64, CHUNKS = 100 };

static element_t large_element(purgeable_heap_t *heap, size_t units, case_report_t *report) {
  element_t element = {.number = 0};
  EXPECT_EQUAL(make(heap, units * PAGE - PAGE / 2, 1, &element), 0);
  return element;
}

// Holes of two units everywhere: what needs three finds that out with a look or two, not one for each chunk, and takes the lowest
// hole that fits.
static void room_is_found_at_once(case_report_t *report) {
  NEED_HOOKS();
  enum { PAIRS = CHUNK_UNITS / 2 * CHUNKS };
  MAKE_HEAP(heap, .slab_bytes = PAGE, .chunk_bytes = CHUNK_UNITS * PAGE, .offering = purgeable_offering_never);
  element_t *pairs = calloc(PAIRS, sizeof *pairs);
  REQUIRE(pairs != NULL);
  for (size_t i = 0; i < PAIRS; i++) pairs[i] = large_element(heap, 2, report);
  uint64_t mapped = heap_statistics(heap).mapped_bytes;
  for (size_t i = 0; i < PAIRS; i += 2) EXPECT_EQUAL(purgeable_heap_free(heap, pairs[i].reference), 0);
  // A hole of six units, in the last chunk but one.
  size_t wide = PAIRS - CHUNK_UNITS / 2 - 3;
  wide |= 1;
  uint64_t place = pairs[wide - 1].reference.place;
  EXPECT_EQUAL(purgeable_heap_free(heap, pairs[wide].reference), 0);
  EXPECT_VALID(heap);
  (void)purgeable_testing_take_most_looks(purgeable_testing_looks_rooms);
  element_t three = large_element(heap, 3, report), next = large_element(heap, 3, report);
  EXPECT_EQUAL(three.reference.place, place);
  EXPECT(next.reference.place > place);
  EXPECT_EQUAL(heap_statistics(heap).mapped_bytes, mapped);
  EXPECT_EQUAL(purgeable_testing_take_most_looks(purgeable_testing_looks_rooms), 1);
  // No room for another three: a new chunk, without a look at one of the others.
  element_t more = large_element(heap, 3, report);
  EXPECT(heap_statistics(heap).mapped_bytes > mapped);
  EXPECT(purgeable_testing_take_most_looks(purgeable_testing_looks_rooms) <= 1);
  // Two units go into the lowest hole.
  uint64_t lowest = pairs[0].reference.place;
  pairs[0] = large_element(heap, 2, report);
  EXPECT_EQUAL(pairs[0].reference.place, lowest);
  EXPECT_EQUAL(purgeable_testing_take_most_looks(purgeable_testing_looks_rooms), 1);
  // Single units take holes until the chunk is full. Searches for two then fail at most once for each chunk that they left short.
  element_t ones[2 * CHUNK_UNITS];
  for (size_t i = 0; i < 2 * CHUNK_UNITS; i++) ones[i] = large_element(heap, 1, report);
  EXPECT(purgeable_testing_take_most_looks(purgeable_testing_looks_rooms) <= 1);
  element_t two = large_element(heap, 2, report);
  EXPECT(purgeable_testing_take_most_looks(purgeable_testing_looks_rooms) <= 2);
  EXPECT_VALID(heap);
  for (size_t i = 0; i < 2 * CHUNK_UNITS; i++) EXPECT_EQUAL(purgeable_heap_free(heap, ones[i].reference), 0);
  EXPECT_EQUAL(purgeable_heap_free(heap, two.reference), 0);
  EXPECT_EQUAL(purgeable_heap_free(heap, three.reference), 0);
  EXPECT_EQUAL(purgeable_heap_free(heap, next.reference), 0);
  EXPECT_EQUAL(purgeable_heap_free(heap, more.reference), 0);
  free(pairs);
  END_HEAP(heap);
}

const test_case_t bounded_cases[] = {
    CASE("bounded: an allocation that compacts looks at a few slabs", compaction_looks_at_few),
    CASE("bounded: room for a run of units is found without looking at every chunk", room_is_found_at_once),
    END_OF_CASES,
};
