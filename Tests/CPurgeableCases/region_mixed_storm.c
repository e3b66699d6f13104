// SPDX-License-Identifier: MIT
// Regions in the middle of everything at once: four threads that fill, lock, read, discard, offer, end and begin regions and are
// cancelled anywhere, while the kernel takes pages, calls fail, children are forked, and upkeep starts and stops.
//
// Word i of content number n is n * STRIDE + i + 1. While a thread fills, the region is marked, so a thread that is told intact
// over content that is being made notices it, whatever the bytes look like.

#include "mixed_storm.h"
#include "region_cases.h"

#include <sched.h>

#define STRIDE ((uint64_t)1 << 32)
#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT 21
#endif

enum { SLOTS = 12, FILLED_PAGES_MAX = 5, OWN_MAPPING_BYTES = 17 << 20 };

typedef struct slot {
  // Held shared by threads that use the region, and exclusively by the one that ends it and begins another.
  pthread_rwlock_t users;
  purgeable_region_t *region;
  // The number of words of content; zeros follow it.
  size_t words;
  _Atomic bool is_made;
  _Atomic uint64_t number;
} slot_t;

static slot_t slots[SLOTS];
// Pages that a refused call left behind, as documented.
static _Atomic uint64_t leaked_bytes;

enum { intact, waited, filled, given_up, discarded, busy, reads, begun, ended, COUNTS };
static const char *const names[] = {"intact", "of them by calls that wait", "filled", "given up", "discarded", "busy",
                                    "read without lock", "regions begun", "ended", NULL};

// MARK: Content

static _Atomic uint64_t *words_of(slot_t *slot) { return purgeable_region_bytes(slot->region); }

static void write_words(slot_t *slot, uint64_t number, size_t from, size_t to) {
  _Atomic uint64_t *words = words_of(slot);
  for (size_t k = from; k < to; k++) atomic_store_explicit(&words[k], number * STRIDE + k + 1, memory_order_relaxed);
}

static bool are_whole(const _Atomic uint64_t *words, size_t count) {
  uint64_t number = atomic_load_explicit(&words[0], memory_order_relaxed) / STRIDE, wrong = number == 0;
  for (size_t k = 0; k < count; k++) wrong |= atomic_load_explicit(&words[k], memory_order_relaxed) ^ (number * STRIDE + k + 1);
  return wrong == 0;
}

static void look(slot_t *slot) {
  MIXED_WRONG_UNLESS(!atomic_load(&slot->is_made));
  MIXED_WRONG_UNLESS(are_whole(words_of(slot), slot->words));
}

// MARK: Fill

static void give_up(void *context) {
  slot_t *slot = context;
  atomic_store(&slot->is_made, false);
  MIXED_BROKEN_UNLESS(purgeable_region_abandon(slot->region) == 0);
  MIXED_COUNT(given_up);
}

static void give_back(void *context) {
  slot_t *slot = context;
  MIXED_BROKEN_UNLESS(purgeable_region_unlock(slot->region) == 0);
}

static void let_go(void *context) { (void)pthread_rwlock_unlock(context); }

// The caller is the filler.
static void fill(slot_t *slot, uint64_t *state) {
  uint64_t number = atomic_fetch_add(&slot->number, 1) + 1;
  atomic_store(&slot->is_made, true);
  // Volatile, because a cancellation leaves the function by a jump.
  volatile bool fails = next_random(state) % 4 == 0;
  pthread_cleanup_push(give_up, slot);
  write_words(slot, number, 0, slot->words / 2);
  if (next_random(state) % 4 == 0) sched_yield();
  // The filler may lock again, beside its own fill.
  if (next_random(state) % 4 == 0 && purgeable_region_lock(slot->region) == purgeable_outcome_intact) {
    MIXED_BROKEN_UNLESS(purgeable_region_abandon(slot->region) == EBUSY);
    MIXED_BROKEN_UNLESS(purgeable_region_unlock(slot->region) == 0);
  }
  pthread_testcancel();
  if (!fails) write_words(slot, number, slot->words / 2, slot->words);
  pthread_cleanup_pop(fails);
  if (fails) return;
  atomic_store(&slot->is_made, false);
  MIXED_COUNT(filled);
  if (next_random(state) % 2 == 0) {
    MIXED_BROKEN_UNLESS(purgeable_region_publish(slot->region) == 0);
    look(slot);
  }
  give_back(slot);
}

// MARK: Use

static void use(slot_t *slot, uint64_t *state) {
  MIXED_COUNT(intact);
  pthread_cleanup_push(give_back, slot);
  look(slot);
  if (next_random(state) % 8 == 0) (void)madvise(words_of(slot), slot->words * 8, MADV_PAGEOUT);
  if (next_random(state) % 4 == 0) sched_yield();
  pthread_testcancel();
  look(slot);
  pthread_cleanup_pop(true);
}

static void lock_somehow(slot_t *slot, uint64_t *state) {
  bool is_filler = false;
  purgeable_outcome_t outcome = purgeable_outcome_error;
  uint64_t way = next_random(state) % 8;
  errno = 0;
  switch (way) {
    case 0: outcome = purgeable_region_lock(slot->region); break;
    case 1: outcome = purgeable_region_try_lock(slot->region); break;
    case 2: outcome = purgeable_region_lock_for_writing(slot->region); break;
    case 3: outcome = purgeable_region_lock_waiting(slot->region); break;
    case 4: outcome = purgeable_region_lock_for_writing_waiting(slot->region); break;
    default: outcome = purgeable_region_lock_or_fill(slot->region, &is_filler); break;
  }
  if (outcome == purgeable_outcome_intact && way > 2) MIXED_COUNT(waited);
  if (outcome == purgeable_outcome_intact) use(slot, state);
  if (outcome == purgeable_outcome_busy) MIXED_COUNT(busy);
  if (outcome == purgeable_outcome_discarded) MIXED_COUNT(discarded);
  if (outcome == purgeable_outcome_error) MIXED_BROKEN_UNLESS(errno != 0 && mixed_is_fault(errno));
  MIXED_BROKEN_UNLESS(way < 3 || outcome != purgeable_outcome_busy);
  if (outcome != purgeable_outcome_discarded) return;
  if (is_filler) {
    fill(slot, state);
  } else if (way < 3) {
    int error = purgeable_region_refill(slot->region);
    if (error == 0) fill(slot, state);
    MIXED_BROKEN_UNLESS(error == EBUSY || mixed_is_fault(error));
  }
}

static void read_unlocked(slot_t *slot) {
  uint64_t copy[FILLED_PAGES_MAX * 65536 / 8 / 16];
  size_t count = slot->words < sizeof copy / 8 ? slot->words : sizeof copy / 8;
  purgeable_outcome_t outcome = purgeable_region_read(slot->region, 0, count * 8, copy);
  if (outcome != purgeable_outcome_intact) return;
  MIXED_COUNT(reads);
  uint64_t number = copy[0] / STRIDE, wrong = number == 0;
  for (size_t k = 0; k < count; k++) wrong |= copy[k] ^ (number * STRIDE + k + 1);
  MIXED_WRONG_UNLESS(wrong == 0);
}

// MARK: Begin and end

static void end_region(slot_t *slot) {
  if (slot->region == NULL) return;
  size_t bytes = (purgeable_region_length_bytes(slot->region) + PAGE - 1) / PAGE * PAGE;
  int error = purgeable_region_destroy(slot->region);
  slot->region = NULL;
  MIXED_BROKEN_UNLESS(mixed_is_fault(error));
  if (error != 0) atomic_fetch_add(&leaked_bytes, bytes);
  MIXED_COUNT(ended);
}

// No other thread uses the slot.
static void begin_region(slot_t *slot, uint64_t *state) {
  size_t pages = 1 + next_random(state) % FILLED_PAGES_MAX;
  size_t length = next_random(state) % 16 == 0 ? OWN_MAPPING_BYTES : pages * PAGE;
  purgeable_region_options_t options = {.offering = (purgeable_offering_t)(next_random(state) % 3)};
  bool is_filled = next_random(state) % 2 == 0;
  purgeable_region_t *region = NULL;
  int error = is_filled ? purgeable_region_create(length, &options, &region)
                        : purgeable_region_create_discarded(length, &options, &region);
  MIXED_BROKEN_UNLESS(error == 0 || error == ENOMEM);
  if (error != 0) return;
  slot->region = region;
  slot->words = pages * PAGE / 8;
  MIXED_COUNT(begun);
  if (is_filled) fill(slot, state);
}

static void change(slot_t *slot, uint64_t *state) {
  if (pthread_rwlock_trywrlock(&slot->users) != 0) return;
  pthread_cleanup_push(let_go, &slot->users);
  end_region(slot);
  begin_region(slot, state);
  pthread_cleanup_pop(true);
}

// MARK: Actors

static void call_something(slot_t *slot, uint64_t *state) {
  purgeable_region_statistics_t now;
  int error = 0;
  size_t resident;
  switch (next_random(state) % 12) {
    case 0: error = purgeable_region_discard(slot->region); break;
    case 1: error = purgeable_offer_pending(NULL); break;
    case 2: error = purgeable_region_offer(slot->region); break;
    case 3: (void)madvise(words_of(slot), slot->words * 8, MADV_PAGEOUT); break;
    case 4: (void)purgeable_region_is_discarded(slot->region); break;
    case 5: error = purgeable_upkeep(NULL); break;
    case 6: error = purgeable_region_statistics(&now); break;
    case 7: error = purgeable_region_resident_bytes(slot->region, &resident); break;
    case 8: purgeable_region_set_locked_byte_limit(next_random(state) % 4 == 0 ? 8 * PAGE : 0); break;
    case 9: (void)purgeable_offer_pending_due_ms(); break;
    default: read_unlocked(slot); break;
  }
  MIXED_BROKEN_UNLESS(error == EBUSY || mixed_is_fault(error));
}

static void *acts(void *context) {
  uint64_t state = mixed.seed + *(uint64_t *)context;
  while (!mixed_is_over()) {
    slot_t *slot = &slots[next_random(&state) % SLOTS];
    if (next_random(&state) % 64 == 0) change(slot, &state);
    if (pthread_rwlock_tryrdlock(&slot->users) == 0) {
      pthread_cleanup_push(let_go, &slot->users);
      if (slot->region != NULL) {
        if (next_random(&state) % 2 == 0) call_something(slot, &state);
        else lock_somehow(slot, &state);
      }
      pthread_cleanup_pop(true);
    }
    pthread_testcancel();
  }
  return NULL;
}

// While a child is forked, no thread is in the middle of ending a region; everything else goes on.
static void holds_still(bool holds) {
  for (size_t i = 0; i < SLOTS; i++) {
    if (holds) (void)pthread_rwlock_rdlock(&slots[i].users);
    else (void)pthread_rwlock_unlock(&slots[i].users);
  }
}

static uint64_t count_outside;

static bool looks_in_child(void) {
  purgeable_region_set_locked_byte_limit(0);
  for (size_t i = 0; i < SLOTS; i++) {
    slot_t *slot = &slots[i];
    if (slot->region == NULL) continue;
    bool is_filler = false;
    CHECK(purgeable_region_lock_waiting(slot->region) == purgeable_outcome_discarded);
    CHECK(purgeable_region_lock_or_fill(slot->region, &is_filler) == purgeable_outcome_discarded && is_filler);
    write_words(slot, 3, 0, slot->words);
    CHECK(purgeable_region_publish(slot->region) == 0 && are_whole(words_of(slot), slot->words));
    CHECK(purgeable_region_unlock(slot->region) == 0);
  }
  CHECK(purgeable_upkeep(NULL) == 0);
  for (size_t i = 0; i < SLOTS; i++) CHECK(slots[i].region == NULL || purgeable_region_destroy(slots[i].region) == 0);
  purgeable_region_statistics_t now = statistics_now();
  CHECK(now.region_count == count_outside && now.memory.locked_bytes == 0);
  CHECK(now.memory.offered_bytes == 0 && now.memory.pending_bytes == 0);
  return true;
}

static void storms(uint64_t scale) {
  purgeable_region_statistics_t before = statistics_now(), after;
  count_outside = before.region_count;
  size_t resident = mixed_named_resident("purgeable-region");
  uint64_t state = mixed.seed;
  for (size_t i = 0; i < SLOTS; i++) (void)pthread_rwlock_init(&slots[i].users, NULL);
  for (size_t i = 0; i < SLOTS; i++) begin_region(&slots[i], &state);
  mixed = (mixed_storm_t){mixed.result, mixed.seed, mixed.is_full, 0, acts, looks_in_child, holds_still};
  mixed_act(2000 * scale);
  purgeable_region_set_locked_byte_limit(0);
  for (size_t i = 0; i < SLOTS; i++) {
    MIXED_LEFT_UNLESS(slots[i].region == NULL || purgeable_region_lock_count(slots[i].region) == 0);
    MIXED_LEFT_UNLESS(purgeable_region_state(slots[i].region) != purgeable_state_filling);
    end_region(&slots[i]);
  }
  after = statistics_now();
  MIXED_LEFT_UNLESS(after.region_count == before.region_count && after.memory.held_bytes == before.memory.held_bytes);
  MIXED_LEFT_UNLESS(after.memory.locked_bytes == before.memory.locked_bytes);
  MIXED_LEFT_UNLESS(after.memory.offered_bytes == before.memory.offered_bytes);
  MIXED_LEFT_UNLESS(after.memory.discarded_bytes == before.memory.discarded_bytes);
  MIXED_LEFT_UNLESS(after.pending_count == before.pending_count && after.memory.pending_bytes == before.memory.pending_bytes);
  MIXED_LEFT_UNLESS(after.unbalanced_unlock_count == before.unbalanced_unlock_count);
  // What remains are the words of regions, 8 bytes for each page, and pages that a refused call had to leave.
  size_t most = resident + ((size_t)512 << 10) + atomic_load(&leaked_bytes);
  MIXED_LEFT_UNLESS(mixed_named_resident("purgeable-region") <= most);
}

static void everything(case_report_t *report) {
  NEED_DISCARDS();
  mixed_run(report, (size_t)64 << 20, storms, names);
}

const test_case_t region_mixed_storm_cases[] = {
    CASE("region mixed storm: fills, forks, cancellations, failing calls and pressure at once", everything),
    END_OF_CASES,
};
