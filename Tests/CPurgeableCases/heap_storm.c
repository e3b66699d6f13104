// SPDX-License-Identifier: MIT
// The threads of a storm: see heap_storm.h.

#include "heap_storm.h"

enum { STORM_BYTES_MAX = 300000, HOLDS = 8 };

typedef struct worker {
  storm_t *storm;
  storm_role_t role;
  uint64_t random;
  char *buffer;
  // Locks that it holds.
  struct hold {
    purgeable_reference_t reference;
    const void *bytes;
    size_t length;
    uint64_t version;
  } holds[HOLDS];
  size_t hold_count;
} worker_t;

// MARK: Slots

// A snapshot of a slot; version 0: empty.
static element_t look(storm_slot_t *slot) {
  element_t element;
  uint64_t before;
  do {
    before = atomic_load(&slot->sequence);
    element = (element_t){.reference = {atomic_load(&slot->place), atomic_load(&slot->generation)},
                          .length = (size_t)atomic_load(&slot->length),
                          .number = atomic_load(&slot->version)};
  } while ((before & 1) != 0 || atomic_load(&slot->sequence) != before);
  return element;
}

static void put(storm_slot_t *slot, purgeable_reference_t reference, size_t length, uint64_t version) {
  atomic_fetch_add(&slot->sequence, 1);
  atomic_store(&slot->place, reference.place);
  atomic_store(&slot->generation, reference.generation);
  atomic_store(&slot->length, length);
  atomic_store(&slot->version, version);
  atomic_fetch_add(&slot->sequence, 1);
}

// The owner's answer to a move: no while another thread changes the slot.
static bool take(void *context, purgeable_reference_t from, purgeable_reference_t to, uint64_t tag, const void *bytes,
                 size_t length) {
  storm_t *storm = context;
  storm_slot_t *slot = &storm->slots[tag];
  if (pthread_mutex_trylock(&slot->mutex) != 0) return false;
  bool same = atomic_load(&slot->place) == from.place && atomic_load(&slot->generation) == from.generation &&
              atomic_load(&slot->version) != 0;
  if (same) {
    if (!check_pattern(bytes, length, atomic_load(&slot->version))) atomic_fetch_add(&storm->wrong, 1);
    put(slot, to, length, atomic_load(&slot->version));
  }
  pthread_mutex_unlock(&slot->mutex);
  return same;
}

// MARK: What a worker does

static void do_read(worker_t *worker) {
  storm_t *storm = worker->storm;
  element_t element = look(&storm->slots[next_random(&worker->random) % STORM_SLOTS]);
  if (element.number == 0) return;
  size_t length = 0;
  purgeable_outcome_t outcome = purgeable_heap_read(storm->heap, element.reference, worker->buffer, STORM_BYTES_MAX, &length);
  atomic_fetch_add_explicit(&storm->reads, 1, memory_order_relaxed);
  if (outcome == purgeable_outcome_discarded) atomic_fetch_add_explicit(&storm->misses, 1, memory_order_relaxed);
  if (outcome != purgeable_outcome_intact) return;
  if (length != element.length || !check_pattern(worker->buffer, length, element.number)) atomic_fetch_add(&storm->wrong, 1);
}

static void do_store(worker_t *worker) {
  storm_t *storm = worker->storm;
  uint64_t number = next_random(&worker->random);
  size_t slot_number = number % STORM_SLOTS;
  storm_slot_t *slot = &storm->slots[slot_number];
  number >>= 16;
  bool removes = number % 8 == 0;
  size_t most = number % 64 == 1 ? STORM_BYTES_MAX : number % 8 == 1 ? 9000 : 700;
  size_t length = 1 + (number >> 8) % most;
  purgeable_stream_t stream = storm->streams[(number >> 40) % 3];
  if (pthread_mutex_trylock(&slot->mutex) != 0) return;
  element_t old = look(slot);
  purgeable_reference_t reference = {0, 0};
  void *bytes;
  uint64_t version = atomic_fetch_add(&storm->versions, 1);
  int error = removes ? 0 : purgeable_heap_allocate_in(storm->heap, stream, length, slot_number, &reference, &bytes);
  if (error == 0 && !removes) {
    fill_pattern(bytes, length, version);
    if (number % 32 == 5) {
      error = purgeable_heap_free(storm->heap, reference) != 0 ? EINVAL : ENOMEM;
    } else {
      error = purgeable_heap_commit(storm->heap, reference);
    }
  }
  if (error == 0) {
    put(slot, reference, length, removes ? 0 : version);
    if (old.number != 0 && purgeable_heap_free(storm->heap, old.reference) != 0) atomic_fetch_add(&storm->failed, 1);
  } else if (error != ENOMEM) {
    atomic_fetch_add(&storm->failed, 1);
  }
  pthread_mutex_unlock(&slot->mutex);
}

static void end_hold(worker_t *worker) {
  if (worker->hold_count == 0) return;
  struct hold hold = worker->holds[--worker->hold_count];
  if (!check_pattern(hold.bytes, hold.length, hold.version)) atomic_fetch_add(&worker->storm->wrong, 1);
  if (purgeable_heap_unlock(worker->storm->heap, hold.reference) != 0) atomic_fetch_add(&worker->storm->failed, 1);
}

static void do_lock(worker_t *worker) {
  storm_t *storm = worker->storm;
  element_t element = look(&storm->slots[next_random(&worker->random) % STORM_SLOTS]);
  if (worker->hold_count == HOLDS || element.number == 0) return;
  struct hold *hold = &worker->holds[worker->hold_count];
  *hold = (struct hold){.reference = element.reference, .version = element.number};
  purgeable_outcome_t outcome = purgeable_heap_lock(storm->heap, element.reference, &hold->bytes, &hold->length);
  if (outcome != purgeable_outcome_intact) return;
  atomic_fetch_add_explicit(&storm->locks, 1, memory_order_relaxed);
  worker->hold_count++;
  bool right = hold->length == element.length && check_pattern(hold->bytes, hold->length, hold->version);
  if (!right) atomic_fetch_add(&storm->wrong, 1);
}

static void do_discard(worker_t *worker) {
  storm_t *storm = worker->storm;
  enum { WINDOW = 64 };
  unsigned char before[WINDOW], after[WINDOW];
  char *start = storm->base + next_random(&worker->random) % 4096 * PAGE;
  if (mincore(start, WINDOW * PAGE, before) != 0) return;
  (void)madvise(start, WINDOW * PAGE, MADV_PAGEOUT);
  if (mincore(start, WINDOW * PAGE, after) != 0) return;
  uint64_t gone = 0;
  for (size_t i = 0; i < WINDOW; i++) gone += (before[i] & 1) > (after[i] & 1);
  atomic_fetch_add_explicit(&storm->discards, gone, memory_order_relaxed);
}

static void do_one_upkeep(worker_t *worker) {
  storm_t *storm = worker->storm;
  uint64_t number = next_random(&worker->random);
  purgeable_stream_t stream = storm->streams[(number >> 8) % 3], other = storm->streams[(number >> 16) % 3];
  purgeable_slab_t slab;
  int error = 0;
  switch (number % 8) {
    case 0:
    case 1: error = purgeable_heap_offer_idle(storm->heap, NULL); break;
    case 2: error = purgeable_heap_sweep(storm->heap, NULL); break;
    case 3: error = purgeable_heap_trim(storm->heap, NULL); break;
    case 4: error = purgeable_stream_seal(storm->heap, stream); break;
    case 5:
      if (purgeable_stream_oldest(storm->heap, stream, &slab) != 0) return;
      error = purgeable_slab_evacuate(storm->heap, slab, other, take, storm, NULL);
      break;
    case 6:
      if (purgeable_stream_oldest(storm->heap, stream, &slab) != 0) return;
      error = purgeable_slab_restream(storm->heap, slab, other);
      break;
    case 7:
      if (purgeable_stream_oldest(storm->heap, stream, &slab) != 0) return;
      error = purgeable_slab_give_back(storm->heap, slab);
      break;
  }
  if (error != 0 && error != EBUSY && error != ESTALE && error != ENOMEM) atomic_fetch_add(&storm->failed, 1);
}

// Half of the time within a bulk give-back, so that wipes are late.
static void do_upkeep(worker_t *worker) {
  bool many = next_random(&worker->random) % 2 == 0;
  if (many) purgeable_heap_begin_giving_back(worker->storm->heap);
  do_one_upkeep(worker);
  if (many) {
    sched_yield();
    purgeable_heap_end_giving_back(worker->storm->heap);
  }
}

static bool is_over(const storm_t *storm, uint64_t rounds) {
  if (atomic_load(&storm->wrong) != 0 || atomic_load(&storm->is_over) || !span_goes_on(storm->span, rounds)) return true;
  return storm->enough_reads != 0 && storm->reads >= storm->enough_reads && storm->discards >= storm->enough_discards;
}

static void *work(void *context) {
  worker_t *worker = context;
  for (uint64_t rounds = 0; !is_over(worker->storm, rounds); rounds++) {
    for (int i = 0; i < 32; i++) {
      uint64_t number = next_random(&worker->random) % 100;
      switch (worker->role) {
        case storm_reader: do_read(worker); break;
        case storm_mutator: number < 90 ? do_store(worker) : do_upkeep(worker); break;
        case storm_discarder:
          if (number % 4 == 0) (void)purgeable_heap_offer_idle(worker->storm->heap, NULL);
          // As long as enough is left to read.
          if (worker->storm->misses <= worker->storm->reads / 2) do_discard(worker);
          break;
        case storm_anything:
          if (number < 30) do_read(worker);
          else if (number < 60) do_store(worker);
          else if (number < 72) do_lock(worker);
          else if (number < 85) end_hold(worker);
          else if (number < 95) do_upkeep(worker);
          else do_discard(worker);
          break;
      }
    }
  }
  while (worker->hold_count != 0) end_hold(worker);
  return NULL;
}

// MARK: A storm as a whole

bool storm_begin(storm_t *storm, uint64_t seed, bool compacts) {
  memset(storm, 0, sizeof *storm);
  storm->seed = seed;
  atomic_store(&storm->versions, 1);
  storm->slots = calloc(STORM_SLOTS, sizeof *storm->slots);
  if (storm->slots == NULL) return false;
  for (size_t i = 0; i < STORM_SLOTS; i++) pthread_mutex_init(&storm->slots[i].mutex, NULL);
  purgeable_heap_options_t options = {.slab_bytes = 16 * PAGE, .chunk_bytes = (size_t)64 << 20, .keeps_tags = true};
  if (compacts) options.moved = take, options.context = storm;
  if (purgeable_heap_create(&options, &storm->heap) != 0) return false;
  if (purgeable_stream_create(storm->heap, &storm->streams[1]) != 0) return false;
  if (purgeable_stream_create(storm->heap, &storm->streams[2]) != 0) return false;
  element_t first;
  if (make(storm->heap, 8, 1, &first) != 0 || purgeable_heap_free(storm->heap, first.reference) != 0) return false;
  storm->base = (char *)((uintptr_t)first.bytes & ~(uintptr_t)(PAGE - 1));
  return true;
}

void storm_run(storm_t *storm, const storm_role_t *roles, size_t count) {
  worker_t *workers = calloc(count, sizeof *workers);
  if (workers == NULL) abort();
  for (size_t i = 0; i < count; i++) {
    workers[i] = (worker_t){.storm = storm, .role = roles[i], .random = storm->seed * 31 + i, .buffer = malloc(STORM_BYTES_MAX)};
    if (workers[i].buffer == NULL) abort();
  }
  run_threads(count, work, workers, sizeof *workers);
  const char *wrong;
  if (!purgeable_testing_heap_is_valid(storm->heap, &wrong)) {
    fprintf(stderr, "after a storm: %s\n", wrong);
    atomic_fetch_add(&storm->failed, 1);
  }
  for (size_t i = 0; i < count; i++) free(workers[i].buffer);
  free(workers);
}

void storm_empty(storm_t *storm) {
  for (size_t i = 0; i < STORM_SLOTS; i++) {
    element_t element = look(&storm->slots[i]);
    if (element.number == 0) continue;
    if (purgeable_heap_free(storm->heap, element.reference) != 0) atomic_fetch_add(&storm->failed, 1);
  }
  for (size_t i = 0; i < 3; i++) (void)purgeable_stream_seal(storm->heap, storm->streams[i]);
  (void)purgeable_heap_trim(storm->heap, NULL);
}

void storm_end(storm_t *storm) {
  (void)purgeable_heap_destroy(storm->heap);
  free(storm->slots);
}
