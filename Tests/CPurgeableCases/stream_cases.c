// SPDX-License-Identifier: MIT
// Streams and upkeep: order of birth, walking, moving, compaction, offers that are merged, sweeps, trimming; and the
// rules that a single thread can break.

#include "heap_cases.h"

// MARK: Owners

static owner_t make_owner(size_t count) {
  owner_t owner = {.count = count, .slots = calloc(count, sizeof(uint64_t)), .generations = calloc(count, sizeof(uint64_t))};
  if (owner.slots == NULL || owner.generations == NULL) abort();
  return owner;
}

static void end_owner(owner_t *owner) {
  free((void *)owner->slots);
  free((void *)owner->generations);
}

static bool take_moved(void *context, purgeable_reference_t from, purgeable_reference_t to, uint64_t tag, const void *bytes,
                       size_t length) {
  owner_t *owner = context;
  if (tag >= owner->count || !check_pattern(bytes, length, tag)) abort();
  if (owner->refuses) return false;
  uint64_t expected = from.place + 1;
  if (!atomic_compare_exchange_strong(&owner->slots[tag], &expected, to.place + 1)) return false;
  atomic_store(&owner->generations[tag], to.generation);
  atomic_fetch_add(&owner->moves, 1);
  return true;
}

static int keep(purgeable_heap_t *heap, owner_t *owner, purgeable_stream_t stream, size_t slot, size_t length) {
  element_t element;
  int error = make_in(heap, stream, length, slot, &element);
  if (error != 0) return error;
  atomic_store(&owner->generations[slot], element.reference.generation);
  atomic_store(&owner->slots[slot], element.reference.place + 1);
  return 0;
}

static purgeable_reference_t kept(owner_t *owner, size_t slot) {
  return (purgeable_reference_t){atomic_load(&owner->slots[slot]) - 1, atomic_load(&owner->generations[slot])};
}

static bool keeps_intact(purgeable_heap_t *heap, owner_t *owner, size_t slot) {
  size_t length;
  purgeable_reference_t reference = kept(owner, slot);
  if (purgeable_heap_length(heap, reference, &length) != purgeable_outcome_intact) return false;
  return is_intact(heap, &(element_t){.reference = reference, .length = length, .number = slot});
}

// Frees a slot's element; true when it was the slot's.
static bool drop(purgeable_heap_t *heap, owner_t *owner, size_t slot) {
  purgeable_reference_t reference = kept(owner, slot);
  return atomic_exchange(&owner->slots[slot], 0) != 0 && purgeable_heap_free(heap, reference) == 0;
}

// MARK: Streams

static void order_of_birth(case_report_t *report) {
  MAKE_HEAP(heap, .slab_bytes = 4 * PAGE);
  purgeable_stream_t streams[3] = {0};
  EXPECT_EQUAL(purgeable_stream_create(heap, &streams[1]), 0);
  EXPECT_EQUAL(purgeable_stream_create(heap, &streams[2]), 0);
  enum { COUNT = 600 };
  static element_t elements[COUNT];
  for (size_t i = 0; i < COUNT; i++) REQUIRE(make_in(heap, streams[i % 3], 300 + i % 9, i, &elements[i]) == 0);
  for (size_t s = 0; s < 3; s++) {
    purgeable_slab_t slabs[COUNT], slab;
    size_t count = 0, more = 0, seen = s, walked = 0;
    EXPECT_EQUAL(purgeable_stream_slabs(heap, streams[s], slabs, COUNT, &count), 0);
    EXPECT_EQUAL(purgeable_stream_slabs(heap, streams[s], NULL, 0, &more), 0);
    EXPECT_EQUAL(more, count);
    EXPECT(count > 3);
    // The slabs of the walk are those of the list; their elements, one after the other, are in order of birth.
    for (int error = purgeable_stream_oldest(heap, streams[s], &slab); error == 0;
         error = purgeable_slab_next(heap, slab, &slab), walked++) {
      REQUIRE(walked < count);
      EXPECT(slab.index == slabs[walked].index && slab.generation == slabs[walked].generation);
      uint32_t cursor = 0;
      purgeable_reference_t reference;
      purgeable_slab_information_t information;
      EXPECT_EQUAL(purgeable_slab_information(heap, slab, &information), 0);
      EXPECT(information.stream == streams[s] && information.is_open == (walked + 1 == count) && !information.is_large);
      while (purgeable_slab_next_element(heap, slab, &cursor, &reference) == 0) {
        REQUIRE(seen < COUNT);
        EXPECT(reference.place == elements[seen].reference.place && reference.generation == elements[seen].reference.generation);
        seen += 3, information.living_count--;
      }
      EXPECT_EQUAL(information.living_count, 0);
    }
    EXPECT_EQUAL(walked, count);
    EXPECT_EQUAL(seen, COUNT + s);
  }
  // To the young end of another stream, or of its own.
  purgeable_slab_t oldest, first;
  EXPECT_EQUAL(purgeable_stream_oldest(heap, streams[1], &oldest), 0);
  EXPECT_EQUAL(purgeable_slab_restream(heap, oldest, streams[2]), 0);
  EXPECT_EQUAL(purgeable_stream_oldest(heap, streams[2], &first), 0);
  EXPECT_EQUAL(purgeable_slab_restream(heap, first, streams[2]), 0);
  EXPECT_EQUAL(purgeable_slab_next(heap, oldest, &oldest), 0);
  EXPECT_EQUAL(oldest.index, first.index);
  EXPECT_EQUAL(purgeable_slab_next(heap, first, &first), ENOENT);
  purgeable_slab_t open = slab_of(heap, &elements[COUNT - 1]);
  EXPECT_EQUAL(purgeable_slab_restream(heap, open, streams[1]), EBUSY);
  for (size_t i = 0; i < COUNT; i++) EXPECT(is_intact(heap, &elements[i]));
  // Exhausted.
  purgeable_stream_t stream = 0;
  for (uint32_t i = 3; i < PURGEABLE_STREAM_COUNT_MAX; i++) EXPECT_EQUAL(purgeable_stream_create(heap, &stream), 0);
  EXPECT_EQUAL(stream, PURGEABLE_STREAM_COUNT_MAX - 1);
  EXPECT_EQUAL(purgeable_stream_create(heap, &stream), ENOMEM);
  EXPECT_EQUAL(make_in(heap, PURGEABLE_STREAM_COUNT_MAX - 1, 9, 9, &elements[0]), 0);
  EXPECT_EQUAL(make_in(heap, PURGEABLE_STREAM_COUNT_MAX, 9, 9, &elements[0]), EINVAL);
  END_HEAP(heap);
}

// MARK: Moving

static void moves(case_report_t *report) {
  const size_t lengths[] = {1, 900, 5 * PAGE, 40 * PAGE};
  owner_t owner = make_owner(8);
  MAKE_HEAP(heap, .keeps_tags = true);
  purgeable_stream_t stream;
  REQUIRE(purgeable_stream_create(heap, &stream) == 0);
  for (size_t i = 0; i < 4; i++) {
    REQUIRE(keep(heap, &owner, 0, i, lengths[i]) == 0);
    purgeable_reference_t from = kept(&owner, i), to = {0};
    EXPECT_EQUAL(purgeable_stream_seal(heap, 0), 0);
    owner.refuses = true;
    purgeable_heap_statistics_t before = heap_statistics(heap);
    EXPECT_EQUAL(purgeable_heap_move(heap, from, stream, take_moved, &owner, &to), EBUSY);
    EXPECT(keeps_intact(heap, &owner, i) && to.place == 0);
    EXPECT_EQUAL(heap_statistics(heap).payload_bytes, before.payload_bytes);
    EXPECT_EQUAL(heap_statistics(heap).element_count, before.element_count);
    owner.refuses = false;
    EXPECT_EQUAL(purgeable_heap_move(heap, from, stream, take_moved, &owner, &to), 0);
    EXPECT(to.place == kept(&owner, i).place && keeps_intact(heap, &owner, i) && is_stale(heap, from));
    uint64_t tag = 99;
    EXPECT_EQUAL(purgeable_heap_tag(heap, to, &tag), 0);
    EXPECT_EQUAL(tag, i);
    EXPECT_EQUAL(purgeable_heap_move(heap, from, stream, take_moved, &owner, NULL), ESTALE);
    EXPECT_EQUAL(heap_statistics(heap).payload_bytes, before.payload_bytes);
    purgeable_slab_t slab;
    purgeable_slab_information_t information;
    EXPECT_EQUAL(purgeable_slab_of(heap, to, &slab), 0);
    EXPECT_EQUAL(purgeable_slab_information(heap, slab, &information), 0);
    EXPECT_EQUAL(information.stream, stream);
    EXPECT_EQUAL(purgeable_heap_set_limit(heap, 1), 0);
    EXPECT_EQUAL(purgeable_stream_seal(heap, stream), 0);
    EXPECT_EQUAL(purgeable_heap_move(heap, to, stream, take_moved, &owner, NULL), ENOMEM);
    EXPECT_EQUAL(purgeable_heap_set_limit(heap, 0), 0);
    EXPECT(keeps_intact(heap, &owner, i));
  }
  EXPECT_EQUAL(heap_statistics(heap).moved_count, 4);
  // Lost content cannot be moved.
  element_t lost;
  REQUIRE(make_in(heap, 0, 50, 7, &lost) == 0 && offer_all(heap) == 0);
  discard_exactly(lost.bytes, 1);
  EXPECT_EQUAL(purgeable_heap_move(heap, lost.reference, stream, take_moved, &owner, NULL), ENODATA);
  END_HEAP(heap);
  end_owner(&owner);
}

static void evacuation(case_report_t *report) {
  enum { COUNT = 60 };
  for (int way = 0; way < 5; way++) {
    owner_t owner = make_owner(COUNT);
    MAKE_HEAP(heap, .slab_bytes = 16 * PAGE, .keeps_tags = true);
    for (size_t i = 0; i < COUNT; i++) REQUIRE(keep(heap, &owner, 0, i, 700) == 0);
    purgeable_slab_t slab;
    EXPECT_EQUAL(purgeable_stream_oldest(heap, 0, &slab), 0);
    purgeable_reference_t held = kept(&owner, 3);
    const void *bytes;
    if (way == 1) owner.refuses = true;
    if (way == 2) EXPECT_EQUAL(purgeable_heap_lock(heap, held, &bytes, NULL), purgeable_outcome_intact);
    if (way == 3) {
      EXPECT_EQUAL(purgeable_heap_lock(heap, held, &bytes, NULL), purgeable_outcome_intact);
      EXPECT_EQUAL(purgeable_heap_unlock(heap, held), 0);
      discard_exactly((void *)(uintptr_t)bytes, 1);
    }
    if (way == 4) EXPECT(drop(heap, &owner, 5) && drop(heap, &owner, 59));
    uint32_t staying = 99;
    int error = purgeable_slab_evacuate(heap, slab, 0, take_moved, &owner, &staying);
    EXPECT_EQUAL(error, way == 1 || way == 3 ? EBUSY : 0);
    EXPECT(way == 1 ? staying == COUNT : way == 3 ? staying >= 4 && staying < 8 : staying == 0);
    bool gone = purgeable_slab_information(heap, slab, &(purgeable_slab_information_t){0}) == ESTALE;
    EXPECT_EQUAL(gone, way == 0 || way == 4);
    size_t lost = 0;
    for (size_t i = 0; i < COUNT; i++) {
      if (way == 4 && (i == 5 || i == 59)) continue;
      bool intact = keeps_intact(heap, &owner, i);
      EXPECT(intact || way == 3);
      lost += !intact;
    }
    EXPECT_EQUAL(lost, way == 3 ? staying : 0);
    if (way == 2) {
      EXPECT(check_pattern(bytes, 700, 3));
      EXPECT(is_stale(heap, held));
      EXPECT_EQUAL(purgeable_heap_unlock(heap, held), 0);
      EXPECT_EQUAL(purgeable_slab_information(heap, slab, &(purgeable_slab_information_t){0}), ESTALE);
      EXPECT(keeps_intact(heap, &owner, 3));
    }
    for (size_t i = 0; i < COUNT; i++) EXPECT(drop(heap, &owner, i) || way == 4);
    EXPECT_EQUAL(purgeable_stream_seal(heap, 0), 0);
    EXPECT_EQUAL(heap_statistics(heap).held_bytes, 0);
    END_HEAP(heap);
    end_owner(&owner);
  }
}

// MARK: Compaction without a policy

static void compaction_frees_half_slabs(case_report_t *report) {
  enum { COUNT = 8000 };
  owner_t owner = make_owner(COUNT);
  MAKE_HEAP(heap, .slab_bytes = 16 * PAGE, .keeps_tags = true, .moved = take_moved, .context = &owner);
  for (size_t i = 0; i < COUNT; i++) REQUIRE(keep(heap, &owner, 0, i, 100 + i % 800) == 0);
  uint64_t before = heap_statistics(heap).held_bytes;
  for (size_t i = 0; i < COUNT; i++) EXPECT(i % 4 == 0 || drop(heap, &owner, i));
  EXPECT_EQUAL(owner.moves, 0);
  size_t freed = 0;
  EXPECT_EQUAL(purgeable_heap_trim(heap, &freed), 0);
  purgeable_heap_statistics_t now = heap_statistics(heap);
  EXPECT(owner.moves > 0 && now.held_bytes < before / 2 && freed >= before / 2);
  // A step frees at least half a slab.
  EXPECT(before - now.held_bytes >= now.given_back_count * 8 * PAGE);
  for (size_t i = 0; i < COUNT; i += 4) EXPECT(keeps_intact(heap, &owner, i));
  EXPECT_EQUAL(purgeable_heap_trim(heap, &freed), 0);
  EXPECT(freed <= 16 * PAGE);
  NOTE("%llu KiB held, %llu after trim, %llu moves", (unsigned long long)before / 1024, (unsigned long long)now.held_bytes / 1024,
       (unsigned long long)owner.moves);
  END_HEAP(heap);
  end_owner(&owner);
}

static void compaction_while_allocating(case_report_t *report) {
  enum { SLOTS = 2000, ROUNDS = 40000 };
  owner_t owner = make_owner(SLOTS);
  const size_t limit = (size_t)2 << 20;
  MAKE_HEAP(heap, .limit_bytes = limit, .slab_bytes = 16 * PAGE, .keeps_tags = true, .moved = take_moved, .context = &owner);
  uint64_t random = report->seed, refused = 0;
  // About half of the limit lives, and what dies is scattered: without compaction this cannot go on.
  for (size_t round = 0; round < ROUNDS; round++) {
    size_t slot = next_random(&random) % SLOTS;
    (void)drop(heap, &owner, slot);
    int error = keep(heap, &owner, 0, slot, 1 + next_random(&random) % 1000);
    refused += error == ENOMEM;
    EXPECT(error == 0 || error == ENOMEM);
    EXPECT(purgeable_heap_held_bytes(heap) <= limit);
  }
  EXPECT_EQUAL(refused, 0);
  EXPECT(owner.moves > 0);
  for (size_t i = 0; i < SLOTS; i++) EXPECT(atomic_load(&owner.slots[i]) == 0 || keeps_intact(heap, &owner, i));
  NOTE("%llu moves for %d stores", (unsigned long long)owner.moves, ROUNDS);
  END_HEAP(heap);
  end_owner(&owner);
}

// Payload of a few bytes is less than half of what an element takes: a full slab must not pass for an empty one, for ever.
static void compaction_ends(case_report_t *report) {
  const size_t lengths[] = {1, 9, 17, 33, 600, 2000};
  for (size_t i = 0; i < 6; i++) {
    for (int refuses = 0; refuses < 2; refuses++) {
      enum { COUNT = 4000 };
      owner_t owner = make_owner(COUNT);
      MAKE_HEAP(heap, .slab_bytes = 4 * PAGE, .keeps_tags = true, .moved = take_moved, .context = &owner);
      for (size_t k = 0; k < COUNT; k++) REQUIRE(keep(heap, &owner, 0, k, lengths[i]) == 0);
      for (int step = 0; step < 4; step++) {
        owner.refuses = refuses != 0;
        uint64_t moved = owner.moves;
        EXPECT_EQUAL(purgeable_heap_trim(heap, NULL), 0);
        EXPECT(owner.moves - moved <= COUNT);
        for (size_t k = (size_t)step; k < COUNT; k += 4) EXPECT(keeps_intact(heap, &owner, k) && drop(heap, &owner, k));
      }
      END_HEAP(heap);
      end_owner(&owner);
    }
  }
}

// A slab whose owner refuses, or whose elements are lost, does not keep the others from being compacted.
static void compaction_passes_by(case_report_t *report) {
  enum { COUNT = 4000 };
  owner_t owner = make_owner(COUNT);
  MAKE_HEAP(heap, .slab_bytes = 4 * PAGE, .keeps_tags = true, .moved = take_moved, .context = &owner);
  element_t lost;
  REQUIRE(make(heap, 300, 0, &lost) == 0);
  EXPECT_EQUAL(purgeable_stream_seal(heap, 0), 0);
  for (size_t i = 0; i < COUNT; i++) REQUIRE(keep(heap, &owner, 0, i, 300) == 0);
  EXPECT_EQUAL(offer_all(heap), 0);
  discard_exactly(lost.bytes, 1);
  EXPECT(is_discarded(heap, &lost));
  for (size_t i = 0; i < COUNT; i++) EXPECT(i % 5 == 0 || drop(heap, &owner, i));
  uint64_t before = heap_statistics(heap).held_bytes;
  EXPECT_EQUAL(purgeable_heap_trim(heap, NULL), 0);
  EXPECT(heap_statistics(heap).held_bytes < before / 2);
  EXPECT(is_discarded(heap, &lost));
  END_HEAP(heap);
  end_owner(&owner);
}

// MARK: Upkeep

static uint64_t free_calls(void) { return purgeable_testing_call_count(purgeable_testing_call_madvise_free); }

// Holders of one element who overlap keep their slab from ever being idle: what they use is moved after some rounds, so that its
// neighbours' pages can be offered again. Elements that most of a slab is locked for stay.
static void hot_elements_move(case_report_t *report) {
  enum { COUNT = 200, ROUNDS = 8 };
  owner_t owner = make_owner(COUNT);
  MAKE_HEAP(heap, .slab_bytes = 16 * PAGE, .keeps_tags = true, .moved = take_moved, .context = &owner);
  for (size_t i = 0; i < COUNT; i++) REQUIRE(keep(heap, &owner, 0, i, 300) == 0);
  EXPECT_EQUAL(purgeable_stream_seal(heap, 0), 0);
  EXPECT_EQUAL(offer_all(heap), 0);
  const size_t hot[] = {3, 70};
  for (size_t h = 0; h < 2; h++) {
    purgeable_reference_t old = kept(&owner, hot[h]);
    REQUIRE(purgeable_heap_lock(heap, old, NULL, NULL) == purgeable_outcome_intact);
    // With the second one nine pages are locked.
    for (size_t i = 0; h == 1 && i < COUNT; i += 13) {
      REQUIRE(i == hot[1] || purgeable_heap_lock(heap, kept(&owner, i), NULL, NULL) == purgeable_outcome_intact);
    }
    purgeable_slab_t slab;
    purgeable_slab_information_t facts;
    EXPECT_EQUAL(purgeable_slab_of(heap, old, &slab), 0);
    for (size_t round = 1; round <= ROUNDS; round++) {
      EXPECT_EQUAL(kept(&owner, hot[h]).place, old.place);
      // The next holder comes before the last one goes.
      REQUIRE(purgeable_heap_lock(heap, kept(&owner, hot[h]), NULL, NULL) == purgeable_outcome_intact);
      EXPECT_EQUAL(purgeable_heap_unlock(heap, old), 0);
      EXPECT_EQUAL(purgeable_heap_offer_idle(heap, NULL), 0);
      if (round == ROUNDS) continue;
      EXPECT_EQUAL(purgeable_slab_information(heap, slab, &facts), 0);
      EXPECT_EQUAL(facts.busy_rounds, round);
    }
    EXPECT(keeps_intact(heap, &owner, hot[h]));
    if (h == 1) {
      EXPECT_EQUAL(kept(&owner, hot[h]).place, old.place);
      continue;
    }
    EXPECT(kept(&owner, hot[h]).place != old.place);
    EXPECT(is_stale(heap, old));
    // The holder it was moved under ends with the old reference; then all of that slab goes on offer.
    EXPECT(!purgeable_heap_is_on_offer(heap, old.place));
    EXPECT_EQUAL(purgeable_heap_unlock(heap, old), 0);
    EXPECT_EQUAL(offer_all(heap), 0);
    EXPECT(purgeable_heap_is_on_offer(heap, old.place));
    EXPECT_EQUAL(purgeable_slab_information(heap, slab, &facts), 0);
    EXPECT_EQUAL(facts.busy_rounds, 0);
    EXPECT(!purgeable_heap_take_busy(heap));
  }
  for (size_t i = 0; i < COUNT; i++) EXPECT(keeps_intact(heap, &owner, i));
  EXPECT(!purgeable_heap_take_busy(NULL));
  EXPECT(!purgeable_heap_is_on_offer(NULL, 0));
  EXPECT(!purgeable_heap_is_on_offer(heap, UINT64_MAX));
  END_HEAP(heap);
  end_owner(&owner);
}

static void offers_are_merged(case_report_t *report) {
  const size_t slab = 16 * PAGE;
  MAKE_HEAP(heap, .slab_bytes = slab);
  element_t element = {.bytes = NULL};
  size_t count = 0;
  while (purgeable_heap_held_bytes(heap) < 256 * slab) REQUIRE(make(heap, 500, count++, &element) == 0);
  EXPECT_EQUAL(purgeable_stream_seal(heap, 0), 0);
  uint64_t calls = free_calls();
  size_t offered = 0;
  EXPECT(purgeable_heap_has_pending(heap));
  EXPECT_EQUAL(purgeable_heap_offer_idle(heap, &offered), 0);
  EXPECT_EQUAL(offered, heap_statistics(heap).held_bytes);
  // Neighbours are merged, 64 slabs a call at most.
  EXPECT_EQUAL(free_calls() - calls, 4);
  // Once more, because one offer skips pages; then nothing is left to do.
  EXPECT(purgeable_heap_has_pending(heap));
  EXPECT_EQUAL(purgeable_heap_offer_idle(heap, &offered), 0);
  EXPECT_EQUAL(free_calls() - calls, 8);
  EXPECT_EQUAL(offered, heap_statistics(heap).held_bytes);
  EXPECT(!purgeable_heap_has_pending(heap));
  EXPECT_EQUAL(purgeable_heap_offer_idle(heap, &offered), 0);
  EXPECT_EQUAL(free_calls() - calls, 8);
  EXPECT_EQUAL(offered, 0);
  // A lock and its unlock: only what was rescued.
  EXPECT(locks_intact(heap, &element));
  EXPECT(purgeable_heap_has_pending(heap));
  EXPECT_EQUAL(purgeable_heap_offer_idle(heap, &offered), 0);
  EXPECT_EQUAL(offered, PAGE);
  NOTE("%zu elements, %.4f calls each", count, 8.0 / (double)count);
  END_HEAP(heap);
}

static void open_slabs_offer_full_pages(case_report_t *report) {
  MAKE_HEAP(heap, .slab_bytes = 64 * PAGE);
  element_t elements[400];
  size_t count = 0, offered;
  char *end_of_offer = NULL;
  for (int round = 0; round < 8; round++) {
    for (int i = 0; i < 40; i++, count++) {
      REQUIRE(make(heap, 300 + 100 * (size_t)(i % 5), count, &elements[count]) == 0);
      // Nothing is born in a page that has been on offer.
      EXPECT(elements[count].bytes - PURGEABLE_HEADER_BYTES >= end_of_offer);
    }
    EXPECT_EQUAL(purgeable_heap_offer_idle(heap, &offered), 0);
    char *start = (char *)((uintptr_t)elements[0].bytes & ~(uintptr_t)(PAGE - 1));
    const element_t *last = &elements[count - 1];
    end_of_offer = (char *)((uintptr_t)(last->bytes + last->length) & ~(uintptr_t)(PAGE - 1));
    EXPECT_EQUAL(heap_statistics(heap).offered_bytes, (size_t)(end_of_offer - start));
    EXPECT(offered > 0 && offered <= (size_t)(end_of_offer - start));
    // Not while one is being written.
    purgeable_reference_t reference;
    void *bytes;
    REQUIRE(purgeable_heap_allocate(heap, 2 * PAGE, &reference, &bytes) == 0);
    EXPECT_EQUAL(purgeable_heap_offer_idle(heap, &offered), 0);
    EXPECT_EQUAL(offered, 0);
    EXPECT_EQUAL(purgeable_heap_free(heap, reference), 0);
  }
  for (size_t i = 0; i < count; i++) EXPECT(is_intact(heap, &elements[i]));
  END_HEAP(heap);
}

static void trimming(case_report_t *report) {
  MAKE_HEAP(heap, .offering = purgeable_offering_deferred);
  element_t elements[3];
  const size_t lengths[] = {100, 70000, 900000};
  for (size_t i = 0; i < 3; i++) REQUIRE(make(heap, lengths[i], i, &elements[i]) == 0);
  size_t freed = 99;
  EXPECT_EQUAL(purgeable_heap_trim(heap, &freed), 0);
  EXPECT_EQUAL(freed, 0);
  for (size_t i = 0; i < 3; i++) EXPECT(is_intact(heap, &elements[i]));
  // An open slab stays, also when nothing lives in it.
  EXPECT_EQUAL(purgeable_heap_free(heap, elements[0].reference), 0);
  EXPECT_EQUAL(purgeable_heap_trim(heap, &freed), 0);
  REQUIRE(make(heap, 100, 5, &elements[0]) == 0);
  for (size_t i = 0; i < 3; i++) EXPECT_EQUAL(purgeable_heap_free(heap, elements[i].reference), 0);
  EXPECT_EQUAL(heap_statistics(heap).slab_count, 1);
  EXPECT_EQUAL(purgeable_stream_seal(heap, 0), 0);
  EXPECT_EQUAL(heap_statistics(heap).slab_count, 0);
  END_HEAP(heap);
}

static void sweeps_with_swap(case_report_t *report) {
  FILE *file = fopen("/proc/swaps", "r");
  char line[256] = "";
  bool has_swap = file != NULL && fgets(line, sizeof line, file) != NULL && fgets(line, sizeof line, file) != NULL;
  if (file != NULL) (void)fclose(file);
  if (!has_swap) SKIP("no swap on this machine: there \"not resident\" is proof, and the look at the elements is not taken");
  NEED_DISCARDS();
  MAKE_HEAP(heap, .slab_bytes = 16 * PAGE);
  element_t element;
  REQUIRE(make(heap, 900, 1, &element) == 0 && purgeable_stream_seal(heap, 0) == 0 && offer_all(heap) == 0);
  size_t lost = 0;
  EXPECT(kernel_discard(element.bytes, 900) == 1);
  EXPECT_EQUAL(purgeable_heap_sweep(heap, &lost), 0);
  EXPECT_EQUAL(lost, PAGE);
  EXPECT(is_discarded(heap, &element));
  END_HEAP(heap);
}

const test_case_t stream_cases[] = {
    {"stream: slabs and elements in order of birth", order_of_birth},
    {"stream: giving back, busy and locked", stream_giving_back},
    {"stream: giving back in numbers", stream_giving_back_many},
    {"stream: moving one element", moves},
    {"stream: evacuating a slab", evacuation},
    {"stream: compaction frees at least half a slab a step", compaction_frees_half_slabs},
    {"stream: compaction keeps a heap at its limit going", compaction_while_allocating},
    {"stream: compaction ends", compaction_ends},
    {"stream: compaction passes by what has to stay", compaction_passes_by},
    {"stream: hot elements leave slabs that stay locked", hot_elements_move},
    {"stream: offers are merged and repeated once", offers_are_merged},
    {"stream: open slabs offer full pages only", open_slabs_offer_full_pages},
    {"stream: trimming", trimming},
    {"stream: sweeps where there is swap", sweeps_with_swap},
    {"rule: claim before give-back", rule_claim},
    {"rule: owners exchange, not store", rule_exchange},
    {"rule: order of checks", rule_order_of_checks},
    {"rule: wide generations", rule_wide_generations},
    {"rule: no append after an offer", rule_no_append},
    {"rule: wipe before a refill", rule_wipe_before_refill},
    {NULL, NULL},
};
