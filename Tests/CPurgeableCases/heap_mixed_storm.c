// SPDX-License-Identifier: MIT
// A heap in the middle of everything at once: four threads that store, read, lock, move and free elements of all sizes, trim,
// sweep, seal and set limits, and are cancelled anywhere, while the kernel takes pages, calls fail, children are forked, and
// upkeep starts and stops. Rounds with heaps of their own, by turns with all that a heap can be made with.

#include "heap_cases.h"
#include "mixed_storm.h"

#include <sched.h>

enum { SLOTS = 256, HOLDS = 4, STREAMS = 3, LENGTH_MAX = 600 << 10, ROUND_MS = 1000 };

// Sequence lock: odd while it is being changed, under its mutex. Every content has a number of its own, which a move keeps.
typedef struct slot {
  pthread_mutex_t mutex;
  _Atomic uint64_t sequence, place, generation, length, number;
} slot_t;

static slot_t slots[SLOTS];
static purgeable_heap_t *heap;
static purgeable_stream_t streams[STREAMS];
static purgeable_heap_options_t options;
static _Atomic uint64_t numbers;
// A slab's elements were freed without telling their owners.
static _Atomic bool some_went;

enum { stored, refused, intact, discarded, locked, moves, paged_out, large_ones, COUNTS };
static const char *const names[] = {"stored", "refused", "read intact", "discarded", "locked", "moved", "pages taken on demand",
                                    "in mappings of their own", NULL};

typedef struct worker {
  uint64_t state;
  char *buffer;
  // The slot that it changes, and what it writes meanwhile.
  slot_t *slot;
  purgeable_reference_t written;
  struct hold {
    purgeable_reference_t reference;
    const void *bytes;
    size_t length;
    uint64_t number;
  } holds[HOLDS];
  size_t hold_count;
} worker_t;

// MARK: Slots

// False while it is being changed. Number 0: empty.
static bool snapshot(slot_t *slot, element_t *element) {
  uint64_t before = atomic_load(&slot->sequence);
  *element = (element_t){.reference = {atomic_load(&slot->place), atomic_load(&slot->generation)},
                         .length = (size_t)atomic_load(&slot->length),
                         .number = atomic_load(&slot->number)};
  return (before & 1) == 0 && atomic_load(&slot->sequence) == before;
}

static void put(slot_t *slot, purgeable_reference_t reference, size_t length, uint64_t number) {
  atomic_fetch_add(&slot->sequence, 1);
  atomic_store(&slot->place, reference.place);
  atomic_store(&slot->generation, reference.generation);
  atomic_store(&slot->length, length);
  atomic_store(&slot->number, number);
  atomic_fetch_add(&slot->sequence, 1);
}

// The owner's answer to a move; a cancellation point that must not end the thread here.
static bool take(void *context, purgeable_reference_t from, purgeable_reference_t to, uint64_t tag, const void *bytes,
                 size_t length) {
  (void)context;
  pthread_testcancel();
  slot_t *slot = &slots[tag];
  if (pthread_mutex_trylock(&slot->mutex) != 0) return false;
  bool is_same = atomic_load(&slot->place) == from.place && atomic_load(&slot->generation) == from.generation &&
                 atomic_load(&slot->number) != 0;
  if (is_same) {
    MIXED_WRONG_UNLESS(check_pattern(bytes, length, atomic_load(&slot->number)));
    put(slot, to, length, atomic_load(&slot->number));
    MIXED_COUNT(moves);
  }
  (void)pthread_mutex_unlock(&slot->mutex);
  return is_same;
}

// MARK: Store

static void free_old(const element_t *old) {
  if (old->number == 0) return;
  int error = purgeable_heap_free(heap, old->reference);
  MIXED_BROKEN_UNLESS(error == 0 || (error == ESTALE && atomic_load(&some_went)));
}

// Cleanup of a thread that is cancelled in the middle of a store: the element that it was writing is abandoned.
static void end_store(void *context) {
  worker_t *worker = context;
  if (worker->written.generation != 0) MIXED_BROKEN_UNLESS(purgeable_heap_free(heap, worker->written) == 0);
  worker->written = (purgeable_reference_t){0, 0};
  (void)pthread_mutex_unlock(&worker->slot->mutex);
}

static size_t choose_length(uint64_t *state) {
  static const size_t reach[] = {64, 700, 700, 700, 9000, 9000, 120000, LENGTH_MAX};
  return 1 + next_random(state) % reach[next_random(state) % 8];
}

static void write_and_commit(worker_t *worker, size_t length, purgeable_stream_t stream, const element_t *old) {
  purgeable_reference_t reference = {0, 0};
  void *bytes;
  size_t number_of_slot = (size_t)(worker->slot - slots);
  int error = purgeable_heap_allocate_in(heap, stream, length, number_of_slot, &reference, &bytes);
  MIXED_BROKEN_UNLESS(error == 0 || error == ENOMEM || error == EAGAIN);
  if (error != 0) {
    MIXED_COUNT(refused);
    return;
  }
  worker->written = reference;
  if (length > options.chunk_bytes) MIXED_COUNT(large_ones);
  MIXED_WRONG_UNLESS((uintptr_t)bytes % (options.payload_alignment_bytes == 16 ? 16 : 8) == 0);
  // Zeros so far: at both ends and in between. Unless this storm writes whole elements, as it does, and says so.
  const char *zeros = bytes;
  bool are_zeros = options.fills_whole || (zeros[0] == 0 && zeros[length - 1] == 0 && zeros[length / 2] == 0);
  MIXED_WRONG_UNLESS(are_zeros);
  uint64_t number = atomic_fetch_add(&numbers, 1) + 1;
  fill_pattern(bytes, length, number);
  pthread_testcancel();
  if (next_random(&worker->state) % 16 == 0) return;
  MIXED_BROKEN_UNLESS(purgeable_heap_commit(heap, reference) == 0);
  worker->written = (purgeable_reference_t){0, 0};
  put(worker->slot, reference, length, number);
  MIXED_COUNT(stored);
  free_old(old);
}

// The slot's mutex is held.
static void replace(worker_t *worker) {
  static const purgeable_reference_t none;
  element_t old;
  (void)snapshot(worker->slot, &old);
  if (next_random(&worker->state) % 6 == 0) {
    put(worker->slot, none, 0, 0);
    free_old(&old);
  } else {
    write_and_commit(worker, choose_length(&worker->state), streams[next_random(&worker->state) % STREAMS], &old);
  }
}

static void store(worker_t *worker) {
  worker->slot = &slots[next_random(&worker->state) % SLOTS];
  if (pthread_mutex_trylock(&worker->slot->mutex) != 0) return;
  pthread_cleanup_push(end_store, worker);
  replace(worker);
  pthread_cleanup_pop(true);
}

// MARK: Read and lock

static void read_one(worker_t *worker) {
  element_t element;
  if (!snapshot(&slots[next_random(&worker->state) % SLOTS], &element) || element.number == 0) return;
  size_t length = 0, offset = next_random(&worker->state) % element.length & ~(size_t)7;
  bool in_part = next_random(&worker->state) % 3 == 0;
  errno = 0;
  purgeable_outcome_t outcome =
      in_part ? purgeable_heap_read_part(heap, element.reference, offset, element.length - offset, worker->buffer)
              : purgeable_heap_read(heap, element.reference, worker->buffer, LENGTH_MAX, &length);
  if (outcome == purgeable_outcome_discarded) MIXED_COUNT(discarded);
  MIXED_BROKEN_UNLESS(outcome != purgeable_outcome_error || errno == ESTALE);
  if (outcome != purgeable_outcome_intact) return;
  MIXED_COUNT(intact);
  if (!in_part) MIXED_WRONG_UNLESS(length == element.length && check_pattern(worker->buffer, length, element.number));
  if (in_part) MIXED_WRONG_UNLESS(check_pattern(worker->buffer, element.length - offset, element.number + offset / 8));
}

static void lock_one(worker_t *worker) {
  element_t element;
  if (!snapshot(&slots[next_random(&worker->state) % SLOTS], &element) || element.number == 0) return;
  if (worker->hold_count == HOLDS) return;
  struct hold *hold = &worker->holds[worker->hold_count];
  *hold = (struct hold){.reference = element.reference, .number = element.number};
  errno = 0;
  purgeable_outcome_t outcome = purgeable_heap_lock(heap, element.reference, &hold->bytes, &hold->length);
  MIXED_BROKEN_UNLESS(outcome != purgeable_outcome_error || errno == ESTALE || errno == EAGAIN);
  if (outcome != purgeable_outcome_intact) return;
  worker->hold_count++;
  MIXED_COUNT(locked);
  MIXED_WRONG_UNLESS(hold->length == element.length && check_pattern(hold->bytes, hold->length, hold->number));
}

static void end_hold(worker_t *worker) {
  if (worker->hold_count == 0) return;
  struct hold hold = worker->holds[--worker->hold_count];
  MIXED_WRONG_UNLESS(check_pattern(hold.bytes, hold.length, hold.number));
  MIXED_BROKEN_UNLESS(purgeable_heap_unlock(heap, hold.reference) == 0);
}

// MARK: Upkeep

static int work_on_a_slab(worker_t *worker, uint64_t choice) {
  purgeable_stream_t other = streams[next_random(&worker->state) % STREAMS];
  purgeable_slab_t slab;
  element_t element;
  uint32_t freed;
  if (purgeable_stream_oldest(heap, streams[next_random(&worker->state) % STREAMS], &slab) != 0) return 0;
  switch (choice % 6) {
    case 0: return purgeable_slab_evacuate(heap, slab, other, take, NULL, NULL);
    case 1: return (slab.index % 2 == 0 ? purgeable_slab_restream : purgeable_slab_restream_oldest)(heap, slab, other);
    case 2: return purgeable_slab_give_back(heap, slab);
    case 3: return purgeable_slab_note_age(heap, slab, choice + 1, choice + 1);
    case 4:
      if (choice % 64 != 4) return 0;
      atomic_store(&some_went, true);
      return purgeable_slab_free_elements(heap, slab, &freed);
    default: break;
  }
  if (!snapshot(&slots[choice % SLOTS], &element) || element.number == 0) return 0;
  int error = purgeable_heap_move(heap, element.reference, other, take, NULL, NULL);
  return error == ENODATA ? 0 : error;
}

static int set_a_limit(uint64_t choice) {
  static const size_t limits[] = {0, 512 << 10, 4 << 20, 24 << 20};
  if (choice % 2 == 0) return purgeable_heap_set_byte_limit(heap, limits[choice / 2 % 4]);
  return purgeable_heap_set_locked_byte_limit(heap, choice / 2 % 4 == 1 ? 1 << 20 : 0);
}

static void look_after(worker_t *worker) {
  uint64_t choice = next_random(&worker->state);
  purgeable_heap_statistics_t now;
  uint32_t hand = (uint32_t)(choice >> 32) % 512;
  size_t bytes = 0;
  int error = 0;
  switch (choice % 12) {
    case 0:
    case 1: error = purgeable_heap_offer_idle(heap, NULL); break;
    case 2: error = purgeable_heap_sweep(heap, NULL); break;
    case 3: error = purgeable_heap_trim(heap, NULL); break;
    case 4: error = purgeable_stream_seal(heap, streams[choice / 16 % STREAMS]); break;
    case 5: error = purgeable_heap_page_out(heap, 256 << 10, &hand, &bytes); break;
    case 6: error = purgeable_upkeep(NULL); break;
    case 7: error = purgeable_heap_statistics(heap, &now); break;
    case 8: error = set_a_limit(choice >> 8); break;
    default: error = work_on_a_slab(worker, choice >> 8); break;
  }
  if (bytes != 0) MIXED_COUNT(paged_out);
  // The slab may be gone meanwhile, or a limit was set.
  MIXED_BROKEN_UNLESS(error == EBUSY || error == ESTALE || mixed_is_fault(error));
}

// Half of the time within a bulk give-back, so that wipes are late.
static void look_after_many(worker_t *worker) {
  bool many = next_random(&worker->state) % 2 == 0;
  if (many) purgeable_heap_begin_giving_back(heap);
  look_after(worker);
  if (many) purgeable_heap_end_giving_back(heap);
  purgeable_heap_wipe_deferred(heap);
}

// MARK: Actors

static void end_worker(void *context) {
  worker_t *worker = context;
  while (worker->hold_count != 0) end_hold(worker);
  free(worker->buffer);
}

static void *acts(void *context) {
  worker_t worker = {.state = mixed.seed + *(uint64_t *)context, .buffer = malloc(LENGTH_MAX)};
  if (worker.buffer == NULL) return NULL;
  pthread_cleanup_push(end_worker, &worker);
  while (!mixed_is_over()) {
    uint64_t choice = next_random(&worker.state) % 100;
    if (choice < 30) read_one(&worker);
    else if (choice < 60) store(&worker);
    else if (choice < 74) lock_one(&worker);
    else if (choice < 87) end_hold(&worker);
    else look_after_many(&worker);
    pthread_testcancel();
  }
  pthread_cleanup_pop(true);
  return NULL;
}

// A child may be forked at any moment.
static void holds_still(bool holds) { (void)holds; }

static bool looks_in_child(void) {
  char buffer[64];
  for (size_t i = 0; i < SLOTS; i++) {
    element_t element;
    if (!snapshot(&slots[i], &element) || element.number == 0) continue;
    errno = 0;
    CHECK(purgeable_heap_read(heap, element.reference, buffer, sizeof buffer, NULL) == purgeable_outcome_error);
    CHECK(errno == ESTALE && purgeable_heap_free(heap, element.reference) == ESTALE);
  }
  CHECK(purgeable_heap_set_byte_limit(heap, 0) == 0 && purgeable_heap_set_locked_byte_limit(heap, 0) == 0);
  enum { FRESH = 40 };
  element_t fresh[FRESH];
  uint64_t state = 5;
  for (size_t i = 0; i < FRESH; i++) CHECK(make_in(heap, streams[i % STREAMS], choose_length(&state), i, &fresh[i]) == 0);
  CHECK(purgeable_upkeep(NULL) == 0);
  for (size_t i = 0; i < FRESH; i++) {
    purgeable_outcome_t outcome;
    CHECK(reads_intact(heap, &fresh[i], &outcome) || outcome == purgeable_outcome_discarded);
  }
  CHECK(heap_statistics(heap).element_count == FRESH);
  CHECK(purgeable_testing_heap_is_valid(heap, NULL));
  CHECK(purgeable_heap_destroy(heap) == 0);
  return true;
}

// MARK: Rounds

static bool begin_round(uint64_t round) {
  options = (purgeable_heap_options_t){
      .slab_bytes = 4 * PAGE,
      .chunk_bytes = 16 * 4 * PAGE,
      .offering = round % 3 == 2 ? purgeable_offering_immediate : purgeable_offering_deferred,
      .byte_limit = round % 4 == 3 ? (size_t)8 << 20 : 0,
      .keeps_tags = true,
      .keeps_ages = true,
      .moved = round % 2 == 0 ? take : NULL,
      .defers_compaction = round % 4 == 2,
      .defers_wipes = round % 5 < 2,
      .fills_whole = round % 2 == 0,
      .payload_alignment_bytes = round / 2 % 2 == 0 ? 16 : 8,
  };
  atomic_store(&some_went, false);
  if (purgeable_heap_create(&options, &heap) != 0) return false;
  for (size_t i = 1; i < STREAMS; i++) {
    if (purgeable_stream_create(heap, &streams[i]) != 0) return false;
  }
  return true;
}

static void end_round(void) {
  for (size_t i = 0; i < SLOTS; i++) {
    element_t element;
    MIXED_LEFT_UNLESS(snapshot(&slots[i], &element));
    MIXED_LEFT_UNLESS(pthread_mutex_trylock(&slots[i].mutex) == 0);
    (void)pthread_mutex_unlock(&slots[i].mutex);
    free_old(&element);
    put(&slots[i], (purgeable_reference_t){0, 0}, 0, 0);
  }
  for (size_t i = 0; i < STREAMS; i++) MIXED_LEFT_UNLESS(purgeable_stream_seal(heap, streams[i]) == 0);
  MIXED_LEFT_UNLESS(purgeable_heap_trim(heap, NULL) == 0);
  purgeable_heap_statistics_t end = heap_statistics(heap);
  MIXED_LEFT_UNLESS(end.slab_count == 0 && end.memory.held_bytes == 0 && end.element_count == 0 && end.memory.payload_bytes == 0);
  MIXED_LEFT_UNLESS(end.memory.locked_bytes == 0 && end.memory.pending_bytes == 0);
  MIXED_LEFT_UNLESS(end.memory.offered_bytes == 0 && end.memory.discarded_bytes == 0);
  MIXED_LEFT_UNLESS(end.memory.resident_bytes == 0 && end.unbalanced_unlock_count == 0);
  MIXED_LEFT_UNLESS(purgeable_heap_held_bytes(heap) == 0 && purgeable_heap_charged_bytes(heap) == 0);
  MIXED_LEFT_UNLESS(!purgeable_heap_has_losses(heap) && end.mapped_bytes % options.chunk_bytes == 0);
  MIXED_LEFT_UNLESS(purgeable_testing_heap_is_valid(heap, NULL));
  MIXED_LEFT_UNLESS(purgeable_heap_destroy(heap) == 0);
}

static void storms(uint64_t scale) {
  size_t before = mixed_named_count("purgeable heap");
  for (size_t i = 0; i < SLOTS; i++) (void)pthread_mutex_init(&slots[i].mutex, NULL);
  mixed = (mixed_storm_t){mixed.result, mixed.seed, mixed.is_full, 0, acts, looks_in_child, holds_still};
  for (uint64_t round = 0; round < 3 * scale && mixed.result->wrong == 0; round++) {
    mixed.seed = next_random(&mixed.seed);
    if (!begin_round(mixed.seed >> 8)) abort();
    mixed_act(ROUND_MS);
    end_round();
    MIXED_LEFT_UNLESS(mixed_named_count("purgeable heap") == before);
  }
}

static void everything(case_report_t *report) {
  NEED_DISCARDS();
  mixed_run(report, (size_t)64 << 20, storms, names);
}

const test_case_t heap_mixed_storm_cases[] = {
    CASE("heap mixed storm: all sizes, limits, forks, cancellations, failing calls and pressure at once", everything),
    END_OF_CASES,
};
