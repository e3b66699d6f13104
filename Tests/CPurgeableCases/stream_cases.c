// SPDX-License-Identifier: MIT
// Streams: order of birth, walking, moving, compaction; and the table of these, of upkeep, and of the rules that a single thread
// can break.

#include "heap_owner.h"

// MARK: Streams

static void order_of_birth(case_report_t *report) {
  MAKE_HEAP(heap, .slab_bytes = 4 * PAGE);
  purgeable_stream_t streams[3] = {0};
  EXPECT_EQUAL(purgeable_stream_create(heap, &streams[1]), 0);
  EXPECT_EQUAL(purgeable_stream_create(heap, &streams[2]), 0);
  enum { COUNT = 600 };
  static element_t elements[COUNT];
  for (size_t i = 0; i < COUNT; i++) REQUIRE(make_in(heap, streams[i % 3], PER_PAGE(300 + i % 9), i, &elements[i]) == 0);
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
        seen += 3, information.element_count--;
      }
      EXPECT_EQUAL(information.element_count, 0);
    }
    EXPECT_EQUAL(walked, count);
    EXPECT_EQUAL(seen, COUNT + s);
  }
  // Moved to the young end of another stream, or of its own.
  purgeable_slab_t oldest, first;
  EXPECT_EQUAL(purgeable_stream_oldest(heap, streams[1], &oldest), 0);
  EXPECT_EQUAL(purgeable_slab_restream(heap, oldest, streams[2]), 0);
  EXPECT_EQUAL(purgeable_stream_oldest(heap, streams[2], &first), 0);
  EXPECT_EQUAL(purgeable_slab_restream(heap, first, streams[2]), 0);
  EXPECT_EQUAL(purgeable_slab_next(heap, oldest, &oldest), 0);
  EXPECT_EQUAL(oldest.index, first.index);
  purgeable_slab_t first_youngest = first;
  EXPECT_EQUAL(purgeable_slab_next(heap, first, &first), ENOENT);
  purgeable_slab_t open = slab_of(heap, &elements[COUNT - 1]);
  EXPECT_EQUAL(purgeable_slab_restream(heap, open, streams[1]), EBUSY);
  EXPECT_EQUAL(purgeable_slab_restream_oldest(heap, open, streams[1]), EBUSY);
  // And at the old end: of its own stream, of another one, of an empty one.
  purgeable_slab_t second, found;
  EXPECT_EQUAL(purgeable_stream_oldest(heap, streams[2], &second), 0);
  EXPECT_EQUAL(purgeable_slab_restream_oldest(heap, first_youngest, streams[2]), 0);
  EXPECT_EQUAL(purgeable_stream_oldest(heap, streams[2], &found), 0);
  EXPECT_EQUAL(found.index, first_youngest.index);
  EXPECT_EQUAL(purgeable_slab_next(heap, found, &found), 0);
  EXPECT_EQUAL(found.index, second.index);
  EXPECT_EQUAL(purgeable_stream_oldest(heap, streams[1], &second), 0);
  EXPECT_EQUAL(purgeable_slab_restream_oldest(heap, first_youngest, streams[1]), 0);
  EXPECT_EQUAL(purgeable_stream_oldest(heap, streams[1], &found), 0);
  EXPECT_EQUAL(found.index, first_youngest.index);
  EXPECT_EQUAL(purgeable_slab_next(heap, found, &found), 0);
  EXPECT_EQUAL(found.index, second.index);
  purgeable_stream_t empty;
  REQUIRE(purgeable_stream_create(heap, &empty) == 0);
  EXPECT_EQUAL(purgeable_slab_restream_oldest(heap, first_youngest, empty), 0);
  EXPECT(purgeable_stream_oldest(heap, empty, &found) == 0 && found.index == first_youngest.index);
  EXPECT(purgeable_stream_youngest(heap, empty, &found) == 0 && found.index == first_youngest.index);
  EXPECT_EQUAL(purgeable_slab_next(heap, found, &found), ENOENT);
  for (size_t i = 0; i < COUNT; i++) EXPECT(is_intact(heap, &elements[i]));
  // The streams are exhausted.
  purgeable_stream_t stream = 0;
  for (uint32_t i = 4; i < PURGEABLE_STREAM_COUNT_MAX; i++) EXPECT_EQUAL(purgeable_stream_create(heap, &stream), 0);
  EXPECT_EQUAL(stream, PURGEABLE_STREAM_COUNT_MAX - 1);
  EXPECT_EQUAL(purgeable_stream_create(heap, &stream), ENOMEM);
  EXPECT_EQUAL(make_in(heap, PURGEABLE_STREAM_COUNT_MAX - 1, 9, 9, &elements[0]), 0);
  EXPECT_EQUAL(make_in(heap, PURGEABLE_STREAM_COUNT_MAX, 9, 9, &elements[0]), EINVAL);
  END_HEAP(heap);
}

// MARK: Moving

static void moves(case_report_t *report) {
  NEED_OFFERS();
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
    EXPECT_EQUAL(heap_statistics(heap).memory.payload_bytes, before.memory.payload_bytes);
    EXPECT_EQUAL(heap_statistics(heap).element_count, before.element_count);
    owner.refuses = false;
    EXPECT_EQUAL(purgeable_heap_move(heap, from, stream, take_moved, &owner, &to), 0);
    EXPECT(to.place == kept(&owner, i).place && keeps_intact(heap, &owner, i) && is_stale(heap, from));
    uint64_t tag = 99;
    EXPECT_EQUAL(purgeable_heap_tag(heap, to, &tag), 0);
    EXPECT_EQUAL(tag, i);
    EXPECT_EQUAL(purgeable_heap_move(heap, from, stream, take_moved, &owner, NULL), ESTALE);
    EXPECT_EQUAL(heap_statistics(heap).memory.payload_bytes, before.memory.payload_bytes);
    purgeable_slab_t slab;
    purgeable_slab_information_t information;
    EXPECT_EQUAL(purgeable_slab_of(heap, to, &slab), 0);
    EXPECT_EQUAL(purgeable_slab_information(heap, slab, &information), 0);
    EXPECT_EQUAL(information.stream, stream);
    EXPECT_EQUAL(purgeable_heap_set_byte_limit(heap, 1), 0);
    EXPECT_EQUAL(purgeable_stream_seal(heap, stream), 0);
    EXPECT_EQUAL(purgeable_heap_move(heap, to, stream, take_moved, &owner, NULL), ENOMEM);
    EXPECT_EQUAL(purgeable_heap_set_byte_limit(heap, 0), 0);
    EXPECT(keeps_intact(heap, &owner, i));
  }
  EXPECT_EQUAL(heap_statistics(heap).moved_element_count, 4);
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
    for (size_t i = 0; i < COUNT; i++) REQUIRE(keep(heap, &owner, 0, i, PER_PAGE(700)) == 0);
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
      EXPECT(check_pattern(bytes, PER_PAGE(700), 3));
      EXPECT(is_stale(heap, held));
      EXPECT_EQUAL(purgeable_heap_unlock(heap, held), 0);
      EXPECT_EQUAL(purgeable_slab_information(heap, slab, &(purgeable_slab_information_t){0}), ESTALE);
      EXPECT(keeps_intact(heap, &owner, 3));
    }
    for (size_t i = 0; i < COUNT; i++) EXPECT(drop(heap, &owner, i) || way == 4);
    EXPECT_EQUAL(purgeable_stream_seal(heap, 0), 0);
    EXPECT_EQUAL(heap_statistics(heap).memory.held_bytes, 0);
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
  uint64_t before = heap_statistics(heap).memory.held_bytes;
  for (size_t i = 0; i < COUNT; i++) EXPECT(i % 4 == 0 || drop(heap, &owner, i));
  EXPECT_EQUAL(owner.moves, 0);
  size_t freed = 0;
  EXPECT_EQUAL(purgeable_heap_trim(heap, &freed), 0);
  purgeable_heap_statistics_t now = heap_statistics(heap);
  EXPECT(owner.moves > 0 && now.memory.held_bytes < before / 2 && freed >= before / 2);
  // A step frees at least half a slab.
  EXPECT(before - now.memory.held_bytes >= now.given_back_slab_count * 8 * PAGE);
  for (size_t i = 0; i < COUNT; i += 4) EXPECT(keeps_intact(heap, &owner, i));
  EXPECT_EQUAL(purgeable_heap_trim(heap, &freed), 0);
  EXPECT(freed <= 16 * PAGE);
  NOTE("%llu KiB held, %llu after trim, %llu moves", (unsigned long long)before / 1024,
       (unsigned long long)now.memory.held_bytes / 1024, (unsigned long long)owner.moves);
  END_HEAP(heap);
  end_owner(&owner);
}

static void compaction_while_allocating(case_report_t *report) {
  enum { SLOTS = 2000, ROUNDS = 40000 };
  owner_t owner = make_owner(SLOTS);
  const size_t limit = 512 * PAGE;
  MAKE_HEAP(heap, .byte_limit = limit, .slab_bytes = 16 * PAGE, .keeps_tags = true, .moved = take_moved, .context = &owner);
  uint64_t random = report->seed, refused = 0;
  // About half of the limit lives, and freed elements are scattered: without compaction this cannot go on.
  for (size_t round = 0; round < ROUNDS; round++) {
    size_t slot = next_random(&random) % SLOTS;
    (void)drop(heap, &owner, slot);
    int error = keep(heap, &owner, 0, slot, 1 + next_random(&random) % PER_PAGE(1000));
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

// A heap that is full to its limit, or above a lowered one: the copies need a slab before any can be given back.
static void compaction_at_the_limit(case_report_t *report) {
  enum { SLOTS = 40000, LENGTH = 200, SLAB_PAGES = 16 };
  for (int round = 0; round < 6; round++) {
    bool defers = round % 2 == 1;
    owner_t owner = make_owner(SLOTS);
    size_t slab = SLAB_PAGES * PAGE, limit = 64 * slab;
    MAKE_HEAP(heap, .byte_limit = limit, .slab_bytes = slab, .keeps_tags = true, .moved = take_moved, .context = &owner,
              .defers_compaction = defers);
    size_t count = 0;
    while (count < SLOTS && keep(heap, &owner, 0, count, LENGTH) == 0) count++;
    EXPECT(count > 1000 && count < SLOTS);
    size_t held = purgeable_heap_held_bytes(heap);
    // The limit stays as it is, is lowered to what is held, or is lowered far below.
    if (round / 2 == 1) limit = held;
    if (round / 2 == 2) limit = held / 2;
    if (round / 2 != 0) EXPECT_EQUAL(purgeable_heap_set_byte_limit(heap, limit), 0);
    for (size_t i = 0; i < count; i++) {
      if (i % 4 != 0) EXPECT_EQUAL(drop(heap, &owner, i), true);
    }
    size_t freed = 0, again = 0;
    EXPECT_EQUAL(purgeable_heap_trim(heap, &freed), 0);
    EXPECT(freed > held / 2);
    EXPECT(owner.moves > 0);
    for (size_t i = 0; i < count; i += 4) EXPECT(keeps_intact(heap, &owner, i));
    // There is room again, and the limit holds.
    for (size_t i = 1; i < count && keep(heap, &owner, 0, i, LENGTH) == 0; i += 4) again++;
    EXPECT(again > count / 8);
    EXPECT(purgeable_heap_held_bytes(heap) <= limit + (defers ? 0 : slab));
    END_HEAP(heap);
    end_owner(&owner);
  }
}

// A payload of a few bytes is less than half of its element: a full slab must not count as sparse, or compaction would never end.
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
  NEED_OFFERS();
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
  uint64_t before = heap_statistics(heap).memory.held_bytes;
  EXPECT_EQUAL(purgeable_heap_trim(heap, NULL), 0);
  EXPECT(heap_statistics(heap).memory.held_bytes < before / 2);
  EXPECT(is_discarded(heap, &lost));
  END_HEAP(heap);
  end_owner(&owner);
}

const test_case_t stream_cases[] = {
    CASE("stream: slabs and elements in order of birth", order_of_birth),
    CASE("stream: giving back, busy and locked", stream_giving_back),
    CASE("stream: giving back in bulk", stream_giving_back_many),
    CASE("stream: wipes that wait for the owner", stream_deferred_wipes),
    CASE("stream: wipes that wait for the owner and are refused", stream_refused_deferred_wipes),
    CASE("stream: a trim leaves no wipe for later", stream_trimmed_deferred_wipes),
    CASE("stream: noted ages end with the slab's life", stream_ages),
    CASE("stream: moving one element", moves),
    CASE("stream: evacuating a slab", evacuation),
    CASE("stream: compaction frees at least half a slab a step", compaction_frees_half_slabs),
    CASE("stream: compaction keeps a heap at its limit going", compaction_while_allocating),
    CASE("stream: a heap at its limit, or above a lowered one, compacts", compaction_at_the_limit),
    CASE("stream: compaction ends", compaction_ends),
    CASE("stream: compaction passes by what has to stay", compaction_passes_by),
    CASE("stream: hot elements leave slabs that stay locked", hot_elements_move),
    CASE("stream: offers are merged and repeated once", offers_are_merged),
    CASE("stream: withheld streams stay off offer", withheld_streams_stay),
    CASE("stream: withheld slabs stay off offer", withheld_slabs_stay),
    CASE("stream: offers do not reach across what is withheld", offers_spare_the_withheld),
    CASE("stream: offers end with their mapping", offers_end_with_their_mapping),
    CASE("stream: in immediate mode, too, nothing is left off offer", immediate_mode_leaves_the_rest_to_upkeep),
    CASE("stream: refused offers come back, and keep no others off offer", refused_offers_come_back),
    CASE("stream: what stays refused is tried ever more seldom", refused_offers_are_tried_seldom),
    CASE("stream: refused wipes are pending", refused_wipes_are_pending),
    CASE("stream: busy slabs are told to policies", busy_slabs_are_told_to_policies),
    CASE("stream: compaction goes on where its slab is taken", compaction_goes_on_where_its_slab_is_taken),
    CASE("stream: open slabs offer full pages only", open_slabs_offer_full_pages),
    CASE("stream: trimming", trimming),
    CASE("stream: sweeps where there is swap", sweeps_with_swap),
    CASE("rule: claim before give-back", rule_claim),
    CASE("rule: owners exchange, not store", rule_exchange),
    CASE("rule: order of checks", rule_order_of_checks),
    CASE("rule: wide generations", rule_wide_generations),
    CASE("rule: no append after an offer", rule_no_append),
    CASE("rule: wipe before a refill", rule_wipe_before_refill),
    END_OF_CASES,
};
