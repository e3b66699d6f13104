// SPDX-License-Identifier: MIT
// Chunks that end, or are emptied and forgotten, while another thread is just about to look at them.

#include "heap_cases.h"

#include <signal.h>
#include <sys/syscall.h>

// MARK: Mappings that end

typedef struct churn {
  purgeable_heap_t *heap;
  uint64_t seed, rounds, failed;
  // How often the other thread has looked.
  _Atomic uint64_t *looks;
  _Atomic bool *done;
} churn_t;

static void *come_and_go(void *context) {
  churn_t *churn = context;
  // Until the other thread has looked often enough, too.
  for (uint64_t round = 0; round < churn->rounds || atomic_load(churn->looks) <= 10; round++) {
    element_t element;
    size_t length = (5 + next_random(&churn->seed) % 20) * PAGE;
    churn->failed += make(churn->heap, length, round, &element) != 0;
    if (round % 2 == 0) churn->failed += purgeable_heap_offer_idle(churn->heap, NULL) != 0;
    churn->failed += !is_intact(churn->heap, &element);
    churn->failed += purgeable_heap_free(churn->heap, element.reference) != 0;
  }
  return NULL;
}

// Each of these calls asks the kernel about mappings.
static void *look_on(void *context) {
  churn_t *churn = context;
  while (!atomic_load(churn->done)) {
    purgeable_heap_statistics_t now;
    churn->failed += purgeable_heap_sweep(churn->heap, NULL) != 0;
    churn->failed += purgeable_heap_statistics(churn->heap, &now) != 0;
    churn->failed += purgeable_upkeep(NULL) != 0;
    atomic_fetch_add(churn->looks, 1);
  }
  return NULL;
}

// Elements larger than a chunk come and go, each with its mapping.
static void figures_beside_mappings(case_report_t *report) {
  NEED_OFFERS();
  static _Atomic bool done;
  static _Atomic uint64_t looks;
  atomic_store(&done, false);
  atomic_store(&looks, 0);
  MAKE_HEAP(heap, .slab_bytes = PAGE, .chunk_bytes = 4 * PAGE);
  churn_t looker = {.heap = heap, .done = &done, .looks = &looks}, churns[2];
  pthread_t thread;
  uint64_t rounds = (report->is_full ? 3000 : 300) * report->scale;
  for (uint64_t i = 0; i < 2; i++) {
    churns[i] = (churn_t){.heap = heap, .seed = report->seed + i, .rounds = rounds, .looks = &looks};
  }
  REQUIRE(pthread_create(&thread, NULL, look_on, &looker) == 0);
  run_threads(2, come_and_go, churns, sizeof churns[0]);
  atomic_store(&done, true);
  (void)pthread_join(thread, NULL);
  NOTE("%llu rounds of sweep, statistics and upkeep", (unsigned long long)looks);
  EXPECT_EQUAL(looker.failed + churns[0].failed + churns[1].failed, 0);
  EXPECT_EQUAL(heap_statistics(heap).mapped_bytes, 0);
  END_HEAP(heap);
}

// MARK: A directory that goes back while an offer is on its way

// More than the slabs that are never forgotten.
enum { UNITS = 32, ELEMENTS = 2 * UNITS };

static struct {
  purgeable_heap_t *heap;
  element_t elements[ELEMENTS];
  int calls, errors;
  bool is_inside;
} emptied;

// One element to a slab.
static bool fill_slabs(size_t first, size_t end) {
  for (size_t i = first; i < end; i++) {
    if (make(emptied.heap, 1500, i, &emptied.elements[i]) != 0 || purgeable_stream_seal(emptied.heap, 0) != 0) return false;
  }
  return true;
}

// At the first slab of the offer: the second chunk is emptied, and its directory goes back. At the first slab beyond the first
// chunk, if there is one: all of that chunk comes back to life.
static void pause_in_offer(void *context) {
  (void)context;
  if (emptied.is_inside) return;
  emptied.is_inside = true;
  emptied.calls++;
  if (emptied.calls == 1) {
    for (size_t i = UNITS; i < ELEMENTS; i++) {
      emptied.errors += purgeable_heap_free(emptied.heap, emptied.elements[i].reference) != 0;
    }
    emptied.errors += purgeable_heap_trim(emptied.heap, NULL) != 0;
  }
  if (emptied.calls == UNITS + 1) emptied.errors += !fill_slabs(UNITS, ELEMENTS);
  emptied.is_inside = false;
}

static int offer_what_was_emptied(void) {
  (void)alarm(CHILD_SECONDS);
  const purgeable_heap_options_t options = {.slab_bytes = PAGE, .chunk_bytes = UNITS * PAGE};
  if (purgeable_heap_create(&options, &emptied.heap) != 0 || !fill_slabs(0, ELEMENTS)) return 1;
  uint64_t before = purgeable_heap_ordinary_bytes(emptied.heap);
  if (!purgeable_testing_set_pause(pause_in_offer, NULL)) return 77;
  int error = purgeable_heap_offer_idle(emptied.heap, NULL);
  (void)purgeable_testing_set_pause(NULL, NULL);
  if (error != 0 || emptied.errors != 0) return 2;
  // The chunk's directory went back, and only the slabs of the first chunk were offered.
  if (purgeable_heap_ordinary_bytes(emptied.heap) >= before) return 3;
  if (emptied.calls != UNITS) return 4;
  // A place in that chunk has no generation, and no page that could have been lost.
  purgeable_reference_t nobody = {emptied.elements[ELEMENTS - 1].reference.place, 0};
  char buffer[16];
  size_t rest;
  bool matches;
  if (purgeable_heap_generation(emptied.heap, nobody.place) != 0) return 5;
  if (purgeable_heap_read_matching(emptied.heap, nobody, "", 0, NULL, 0, buffer, sizeof buffer, &rest, &matches) !=
      purgeable_outcome_busy) {
    return 6;
  }
  if (purgeable_heap_has_losses(emptied.heap)) return 7;
  if (!fill_slabs(UNITS, ELEMENTS)) return 8;
  for (size_t i = 0; i < ELEMENTS; i++) {
    if (!is_intact(emptied.heap, &emptied.elements[i])) return 9;
  }
  return purgeable_heap_destroy(emptied.heap) == 0 ? 0 : 10;
}

static void offered_after_it_was_emptied(case_report_t *report) {
  NEED_HOOKS();
  NEED_OFFERS();
  pid_t child = fork();
  if (child == 0) _exit(offer_what_was_emptied());
  EXPECT_EQUAL(wait_for_child(child), 0);
}

// MARK: A trim beside a first birth

static struct {
  purgeable_heap_t *heap;
  pthread_t thread;
  _Atomic long number;
  int error;
} trimmer;

static void *trim_beside_birth(void *context) {
  (void)context;
  atomic_store(&trimmer.number, syscall(SYS_gettid));
  trimmer.error = purgeable_heap_trim(trimmer.heap, NULL);
  return NULL;
}

// Whether a thread of this process sleeps.
static bool sleeps(long number) {
  char path[60], state = 0;
  (void)snprintf(path, sizeof path, "/proc/self/task/%ld/stat", number);
  FILE *file = fopen(path, "r");
  if (file == NULL) return false;
  bool is_read = fscanf(file, "%*d %*s %c", &state) == 1;
  (void)fclose(file);
  return is_read && state == 'S';
}

// The slab looks sealed and empty, and its word is that of nobody. The trim goes as far as it can without the heap's mutex.
static void trim_in_birth(void *context) {
  (void)context;
  if (pthread_create(&trimmer.thread, NULL, trim_beside_birth, NULL) != 0) abort();
  WAIT_UNTIL(atomic_load(&trimmer.number) != 0 && sleeps(atomic_load(&trimmer.number)));
}

static int born_beside_a_trim(void) {
  (void)alarm(CHILD_SECONDS);
  const purgeable_heap_options_t options = {.slab_bytes = 4 * PAGE, .chunk_bytes = 64 * PAGE};
  if (purgeable_heap_create(&options, &trimmer.heap) != 0) return 1;
  purgeable_reference_t reference;
  void *bytes;
  if (!purgeable_testing_set_inner_pause(trim_in_birth, NULL)) return 77;
  int error = purgeable_heap_allocate(trimmer.heap, 3 * PAGE, &reference, &bytes);
  (void)purgeable_testing_set_inner_pause(NULL, NULL);
  if (error != 0) return 2;
  fill_pattern(bytes, 3 * PAGE, 5);
  if (pthread_join(trimmer.thread, NULL) != 0 || trimmer.error != 0) return 3;
  // The memory is the writer's alone.
  element_t next;
  if (make(trimmer.heap, 3 * PAGE, 6, &next) != 0 || next.bytes == bytes) return 4;
  if (!check_pattern(bytes, 3 * PAGE, 5)) return 5;
  if (purgeable_heap_commit(trimmer.heap, reference) != 0) return 6;
  if (!is_intact(trimmer.heap, &(element_t){reference, bytes, 3 * PAGE, 5}) || !is_intact(trimmer.heap, &next)) return 7;
  if (!purgeable_testing_heap_is_valid(trimmer.heap, NULL)) return 8;
  return purgeable_heap_destroy(trimmer.heap) == 0 ? 0 : 9;
}

static void trimmed_while_it_is_born(case_report_t *report) {
  NEED_HOOKS();
  pid_t child = fork();
  if (child == 0) _exit(born_beside_a_trim());
  EXPECT_EQUAL(wait_for_child(child), 0);
}

const test_case_t chunk_race_cases[] = {
    CASE("chunk: figures are answered beside mappings that end", figures_beside_mappings),
    CASE("chunk: an offer passes over slabs that were emptied and forgotten since they were listed",
         offered_after_it_was_emptied),
    CASE("chunk: a trim leaves a slab alone whose first life is about to begin", trimmed_while_it_is_born),
    END_OF_CASES,
};
