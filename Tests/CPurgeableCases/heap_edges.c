// SPDX-License-Identifier: MIT
// Edge cases of the slab heap: a signal in a forked child, two lockers at once, unlocks without a lock, losses at the last
// numbers, owners' mutexes.

#include "heap_cases.h"

#include <signal.h>
#include <sys/time.h>

#define MIB ((size_t)1 << 20)

// MARK: Signals in a forked child

static purgeable_heap_t *heap_of_handler;
static purgeable_reference_t reference_of_handler;
static volatile sig_atomic_t handled, answered_wrongly;

static void read_in_handler(int number) {
  (void)number;
  char buffer[64];
  size_t length;
  int error = errno;
  purgeable_outcome_t outcome = purgeable_heap_read(heap_of_handler, reference_of_handler, buffer, sizeof buffer, &length);
  if (outcome != purgeable_outcome_error || errno != ESTALE) answered_wrongly = 1;
  bool matches;
  outcome =
      purgeable_heap_read_matching(heap_of_handler, reference_of_handler, "", 0, NULL, 0, buffer, sizeof buffer, &length,
                                   &matches);
  if (outcome == purgeable_outcome_intact) answered_wrongly = 1;
  errno = error;
  handled++;
}

static int child_with_timer(purgeable_heap_t *heap) {
  (void)alarm(CHILD_SECONDS);
  struct sigaction action = {.sa_handler = read_in_handler, .sa_flags = SA_RESTART};
  if (sigaction(SIGPROF, &action, NULL) != 0) return 1;
  struct itimerval often = {{0, 200}, {0, 200}}, never = {{0, 0}, {0, 0}};
  (void)setitimer(ITIMER_PROF, &often, NULL);
  // The first call makes the heap begin anew, slab by slab; the signals come in the middle of that.
  element_t element;
  int error = make(heap, 100, 1, &element);
  for (volatile int i = 0; handled < 3 && i < 200000000; i++) continue;
  (void)setitimer(ITIMER_PROF, &never, NULL);
  return error != 0 ? 2 : answered_wrongly ? 3 : is_intact(heap, &element) ? 0 : 4;
}

void signals_in_children(case_report_t *report) {
  purgeable_probe_t probe;
  if (purgeable_probe(&probe) != 0 || !probe.wipe_on_fork) SKIP("no MADV_WIPEONFORK here");
  enum { SLABS = 100000 };
  MAKE_HEAP(heap, .slab_bytes = PAGE);
  purgeable_reference_t reference = {0, 0};
  void *bytes;
  for (size_t i = 0; i < SLABS; i++) {
    REQUIRE(purgeable_heap_allocate(heap, 1500, &reference, &bytes) == 0 && purgeable_heap_commit(heap, reference) == 0);
    REQUIRE(purgeable_stream_seal(heap, 0) == 0);
  }
  heap_of_handler = heap;
  reference_of_handler = reference;
  for (int i = 0; i < (report->is_full ? 5 : 2); i++) {
    pid_t child = fork();
    if (child == 0) _exit(child_with_timer(heap));
    EXPECT_EQUAL(wait_for_child(child), 0);
  }
  END_HEAP(heap);
}

// MARK: Books at the edges

void counters_stay_above_zero(case_report_t *report) {
  MAKE_HEAP(heap, .slab_bytes = 16 * PAGE, .locked_byte_limit = MIB);
  element_t large, small;
  REQUIRE(make(heap, 1000, 1, &large) == 0 && make(heap, 16, 2, &small) == 0);
  EXPECT_EQUAL(purgeable_heap_lock(heap, small.reference, NULL, NULL), purgeable_outcome_intact);
  // The caller's error: the neighbour's lock is ended, and its length must not be subtracted twice.
  EXPECT_EQUAL(purgeable_heap_unlock(heap, large.reference), 0);
  EXPECT_EQUAL(heap_statistics(heap).memory.locked_bytes, 0);
  EXPECT(locks_intact(heap, &small) && locks_intact(heap, &large));
  EXPECT_EQUAL(heap_statistics(heap).memory.locked_bytes, 0);
  END_HEAP(heap);
}

typedef struct locker {
  purgeable_heap_t *heap;
  const element_t *element;
  _Atomic bool *done;
  // How often the other thread has tried.
  _Atomic uint64_t *turns;
  uint64_t locked, refused;
} locker_t;

static void *lock_often(void *context) {
  locker_t *locker = context;
  // Until the other thread, too, has had its turns.
  for (int round = 0; round < 200000 || atomic_load(locker->turns) < 100; round++) {
    if (purgeable_heap_lock(locker->heap, locker->element->reference, NULL, NULL) != purgeable_outcome_intact) {
      locker->refused++;
    } else {
      locker->locked += purgeable_heap_unlock(locker->heap, locker->element->reference) == 0;
    }
  }
  atomic_store(locker->done, true);
  return NULL;
}

static void *ask_in_vain(void *context) {
  locker_t *locker = context;
  while (!atomic_load(locker->done)) {
    locker->locked += purgeable_heap_lock(locker->heap, locker->element->reference, NULL, NULL) == purgeable_outcome_intact;
    atomic_fetch_add(locker->turns, 1);
  }
  return NULL;
}

// A lock that is refused takes no room, even for a moment, from a lock that fits.
void two_lockers(case_report_t *report) {
  MAKE_HEAP(heap, .slab_bytes = 16 * PAGE, .locked_byte_limit = 1500);
  element_t fits, too_large;
  REQUIRE(make(heap, 1000, 1, &fits) == 0 && make(heap, 2000, 2, &too_large) == 0);
  _Atomic bool done = false;
  _Atomic uint64_t turns = 0;
  locker_t often = {.heap = heap, .element = &fits, .done = &done, .turns = &turns};
  locker_t in_vain = {.heap = heap, .element = &too_large, .done = &done, .turns = &turns};
  pthread_t thread;
  REQUIRE(pthread_create(&thread, NULL, ask_in_vain, &in_vain) == 0);
  (void)lock_often(&often);
  (void)pthread_join(thread, NULL);
  EXPECT_EQUAL(in_vain.locked, 0);
  EXPECT_EQUAL(often.refused, 0);
  EXPECT_EQUAL(heap_statistics(heap).memory.locked_bytes, 0);
  END_HEAP(heap);
}

void finding_losses_at_the_edges(case_report_t *report) {
  MAKE_HEAP(heap, .slab_bytes = 16 * PAGE);
  element_t element;
  REQUIRE(make(heap, 100, 1, &element) == 0 && purgeable_stream_seal(heap, 0) == 0 && offer_all(heap) == 0);
  discard_exactly(element.bytes, 1);
  EXPECT(is_discarded(heap, &element));
  _Atomic uint64_t slots[3] = {0, element.reference.place + 1, 0};
  uint32_t found[3];
  for (uint32_t bits = 62; bits <= 65; bits++) {
    size_t cursor = 0;
    EXPECT_EQUAL(purgeable_heap_find_losses(heap, slots, 3, bits, &cursor, found, 3), 1);
    EXPECT(found[0] == 1 && cursor == 3);
  }
  // No slot beyond the 2^32nd is looked at, or noted under a wrong number.
  size_t cursor = ((size_t)1 << 32) + 1;
  EXPECT_EQUAL(purgeable_heap_find_losses(heap, slots, ((size_t)1 << 32) + 3, 64, &cursor, found, 3), 0);
  EXPECT_EQUAL(cursor, ((size_t)1 << 32) + 3);
  END_HEAP(heap);
}

// MARK: The owner's mutex

typedef struct keeper {
  pthread_mutex_t mutex;
  purgeable_heap_t *heap;
  size_t count, moves;
  purgeable_reference_t references[12000];
} keeper_t;

static bool take_under_mutex(void *context, purgeable_reference_t from, purgeable_reference_t to, uint64_t tag, const void *bytes,
                             size_t length) {
  keeper_t *keeper = context;
  (void)bytes, (void)length;
  (void)pthread_mutex_lock(&keeper->mutex);
  bool is_same = keeper->references[tag].place == from.place && keeper->references[tag].generation == from.generation;
  if (is_same) keeper->references[tag] = to;
  keeper->moves += is_same;
  (void)pthread_mutex_unlock(&keeper->mutex);
  return is_same;
}

// The usual pattern, with compaction left to trims: a mutex held around allocations and taken in the callback.
static int own_under_mutex(void) {
  (void)alarm(CHILD_SECONDS);
  static keeper_t keeper;
  if (pthread_mutex_init(&keeper.mutex, NULL) != 0) return 1;
  const purgeable_heap_options_t options = {.slab_bytes = 4 * PAGE, .byte_limit = 3 * MIB, .keeps_tags = true,
                                            .moved = take_under_mutex, .context = &keeper, .defers_compaction = true};
  if (purgeable_heap_create(&options, &keeper.heap) != 0) return 2;
  uint64_t random = 5, refused = 0;
  for (size_t i = 0; i < 100000; i++) {
    size_t slot = next_random(&random) % 12000;
    (void)pthread_mutex_lock(&keeper.mutex);
    if (keeper.references[slot].generation != 0) {
      if (purgeable_heap_free(keeper.heap, keeper.references[slot]) != 0) return 3;
      keeper.references[slot].generation = 0;
    }
    void *bytes;
    int error = purgeable_heap_allocate_in(keeper.heap, 0, 150, slot, &keeper.references[slot], &bytes);
    if (error == 0) memset(bytes, 1, 150);
    if (error == 0 && purgeable_heap_commit(keeper.heap, keeper.references[slot]) != 0) return 4;
    (void)pthread_mutex_unlock(&keeper.mutex);
    if (error == ENOMEM) {
      refused++;
      if (purgeable_heap_trim(keeper.heap, NULL) != 0) return 5;
    }
  }
  return keeper.moves == 0 ? 6 : refused == 0 ? 7 : refused >= 20000 ? 8 : 0;
}

// Two heaps whose callbacks each allocate in the other one, which is at its limit and being compacted.
typedef struct pair {
  pthread_barrier_t *both;
  purgeable_heap_t *heap, *other;
  bool has_met;
} pair_t;

static bool allocate_in_other(void *context, purgeable_reference_t from, purgeable_reference_t to, uint64_t tag,
                              const void *bytes, size_t length) {
  pair_t *pair = context;
  (void)from, (void)to, (void)tag, (void)bytes, (void)length;
  if (!pair->has_met) {
    pair->has_met = true;
    (void)pthread_barrier_wait(pair->both);
    purgeable_reference_t reference;
    void *place;
    if (purgeable_heap_allocate(pair->other, 3 * PAGE, &reference, &place) == 0) {
      (void)purgeable_heap_free(pair->other, reference);
    }
  }
  return false;
}

static void *trim_one(void *context) {
  (void)purgeable_heap_trim(((pair_t *)context)->heap, NULL);
  return NULL;
}

static int compact_both(void) {
  (void)alarm(CHILD_SECONDS);
  enum { COUNT = 8 * 100 };
  static purgeable_reference_t references[COUNT];
  static pthread_barrier_t both;
  static pair_t pairs[2];
  if (pthread_barrier_init(&both, NULL, 2) != 0) return 1;
  for (int i = 0; i < 2; i++) {
    const purgeable_heap_options_t options = {.slab_bytes = 4 * PAGE, .byte_limit = 8 * 4 * PAGE, .moved = allocate_in_other,
                                              .context = &pairs[i]};
    pairs[i].both = &both;
    if (purgeable_heap_create(&options, &pairs[i].heap) != 0) return 2;
    size_t count = 0;
    void *bytes;
    while (count < COUNT && purgeable_heap_allocate(pairs[i].heap, 400, &references[count], &bytes) == 0) {
      memset(bytes, 1, 400);
      if (purgeable_heap_commit(pairs[i].heap, references[count++]) != 0) return 3;
    }
    if (count == COUNT) return 4;
    for (size_t k = 0; k < count; k++) {
      if (k % 4 != 0 && purgeable_heap_free(pairs[i].heap, references[k]) != 0) return 5;
    }
  }
  pairs[0].other = pairs[1].heap;
  pairs[1].other = pairs[0].heap;
  pthread_t threads[2];
  for (int i = 0; i < 2; i++) {
    if (pthread_create(&threads[i], NULL, trim_one, &pairs[i]) != 0) return 6;
  }
  for (int i = 0; i < 2; i++) (void)pthread_join(threads[i], NULL);
  return pairs[0].has_met && pairs[1].has_met ? 0 : 7;
}

void compactions_of_two_heaps(case_report_t *report) {
  pid_t child = fork();
  if (child == 0) _exit(compact_both());
  EXPECT_EQUAL(wait_for_child(child), 0);
}

void owners_mutex(case_report_t *report) {
  pid_t child = fork();
  if (child == 0) _exit(own_under_mutex());
  EXPECT_EQUAL(wait_for_child(child), 0);
}
