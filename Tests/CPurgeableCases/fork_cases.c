// SPDX-License-Identifier: MIT
// Forks in the middle of work: the child finds everything gone, never hangs, and goes on with an empty heap; the parent notices
// nothing.

#include "heap_storm.h"
#include "region_cases.h"

#include <fcntl.h>
#include <sys/stat.h>

// The work of a child. It does not use the report, which is the parent's, but returns a number that says what was wrong. A hang
// ends in SIGALRM.
static int in_child(purgeable_heap_t *heap, const element_t *elements, size_t count, size_t locked) {
  (void)alarm(CHILD_SECONDS);
  for (size_t i = 0; i < count; i++) {
    char byte;
    size_t length;
    bool matches;
    if (i % 4 == 0) {
      purgeable_outcome_t outcome =
          purgeable_heap_read_matching(heap, elements[i].reference, "", 0, NULL, 0, &byte, 1, &length, &matches);
      if (outcome == purgeable_outcome_intact) return 2;
    }
    if (!is_stale(heap, elements[i].reference)) return 3;
    if (purgeable_heap_free(heap, elements[i].reference) != ESTALE) return 4;
    if (i < locked && purgeable_heap_unlock(heap, elements[i].reference) != ESTALE) return 5;
  }
  purgeable_heap_statistics_t now;
  if (purgeable_heap_statistics(heap, &now) != 0) return 6;
  if (now.element_count + now.memory.payload_bytes + now.memory.locked_bytes != 0) return 7;
  if (now.memory.held_bytes + now.slab_count + now.memory.offered_bytes != 0) return 7;
  if (purgeable_heap_held_bytes(heap) != 0) return 8;
  purgeable_slab_t slab;
  if (purgeable_stream_oldest(heap, 0, &slab) != ENOENT) return 9;
  // The child makes elements of its own, at the places of the parent's elements.
  enum { OWN = 200 };
  static element_t own[OWN];
  for (size_t i = 0; i < OWN; i++) {
    if (make(heap, 1 + i * 37 % 3000 + (i % 50 == 0 ? 200000 : 0), i, &own[i]) != 0) return 10;
  }
  if (offer_all(heap) != 0 || purgeable_heap_sweep(heap, NULL) != 0 || purgeable_heap_trim(heap, NULL) != 0) return 11;
  for (size_t i = 0; i < OWN; i++) {
    if (!is_intact(heap, &own[i]) || !locks_intact(heap, &own[i])) return 12;
  }
  for (size_t i = 0; i < count; i++) {
    if (!is_stale(heap, elements[i].reference)) return 13;
  }
  for (size_t i = 0; i < OWN; i++) {
    if (purgeable_heap_free(heap, own[i].reference) != 0) return 14;
  }
  if (purgeable_stream_seal(heap, 0) != 0 || purgeable_heap_held_bytes(heap) != 0) return 15;
  return purgeable_heap_destroy(heap) != 0 ? 16 : 0;
}

#define NEED_WIPE_ON_FORK()                                                                      \
  do {                                                                                           \
    purgeable_probe_t probe_;                                                                    \
    if (purgeable_probe(&probe_) != 0 || !probe_.wipe_on_fork) SKIP("no MADV_WIPEONFORK here");  \
  } while (0)

static void fork_at_rest(case_report_t *report) {
  NEED_WIPE_ON_FORK();
  enum { COUNT = 300, LOCKED = 20 };
  static element_t elements[COUNT];
  MAKE_HEAP(heap, .keeps_tags = true);
  for (size_t i = 0; i < COUNT; i++) REQUIRE(make(heap, 1 + i * 31 % 2000 + (i == 99 ? 400000 : 0), i, &elements[i]) == 0);
  EXPECT_EQUAL(offer_all(heap), 0);
  for (size_t i = 0; i < LOCKED; i++) {
    EXPECT_EQUAL(purgeable_heap_lock(heap, elements[i].reference, NULL, NULL), purgeable_outcome_intact);
  }
  purgeable_reference_t reference;
  void *bytes;
  REQUIRE(purgeable_heap_allocate(heap, 50, &reference, &bytes) == 0);
  for (int round = 0; round < 5; round++) {
    pid_t child = fork();
    if (child == 0) {
      // An element that was being written is gone as well, and so is everything in a grandchild.
      if (purgeable_heap_commit(heap, reference) != ESTALE) _exit(30);
      if (round == 1) {
        pid_t grandchild = fork();
        if (grandchild == 0) _exit(in_child(heap, elements, COUNT, LOCKED));
        if (wait_for_child(grandchild) != 0) _exit(31);
      }
      _exit(in_child(heap, elements, COUNT, LOCKED));
    }
    EXPECT_EQUAL(wait_for_child(child), 0);
    for (size_t i = 0; i < COUNT; i++) EXPECT(i < LOCKED ? check_pattern(elements[i].bytes, elements[i].length, i) : true);
    for (size_t i = 0; i < COUNT; i++) EXPECT(is_intact(heap, &elements[i]));
  }
  fill_pattern(bytes, 50, 9);
  EXPECT_EQUAL(purgeable_heap_commit(heap, reference), 0);
  for (size_t i = 0; i < LOCKED; i++) EXPECT_EQUAL(purgeable_heap_unlock(heap, elements[i].reference), 0);
  for (size_t i = 0; i < COUNT; i++) EXPECT(locks_intact(heap, &elements[i]));
  END_HEAP(heap);
}

// Generations of a child's new elements differ from those of inherited references, however often a child forks again.
static void generations_in_children(case_report_t *report) {
  NEED_WIPE_ON_FORK();
  NEED_HOOKS();
  MAKE_HEAP(heap, .slab_bytes = 4 * PAGE);
  element_t element, next;
  REQUIRE(make(heap, 100, 1, &element) == 0);
  EXPECT(purgeable_testing_begin_last_life(heap, element.reference.place));
  pid_t child = fork();
  if (child == 0) {
    (void)alarm(CHILD_SECONDS);
    for (int round = 0; round < 100; round++) {
      if (make(heap, 100, 2, &next) != 0 || next.reference.place == element.reference.place) _exit(1);
      if (purgeable_stream_seal(heap, 0) != 0 || purgeable_heap_free(heap, next.reference) != 0) _exit(2);
    }
    _exit(0);
  }
  EXPECT_EQUAL(wait_for_child(child), 0);
  EXPECT(is_intact(heap, &element));
  END_HEAP(heap);
}

typedef struct beside {
  storm_t *storm;
  element_t *elements;
  size_t count;
  uint64_t forks, bad;
  int first_status;
} beside_t;

static void *storm_beside(void *context) {
  const storm_role_t roles[] = {storm_anything, storm_anything, storm_discarder};
  storm_run(((beside_t *)context)->storm, roles, 3);
  return NULL;
}

// A fork while other threads hold mutexes, are inside a madvise, or are in the middle of a change.
static void fork_beside_storm(case_report_t *report) {
  NEED_WIPE_ON_FORK();
  NEED_DISCARDS();
  enum { COUNT = 50 };
  static element_t elements[COUNT];
  storm_t storm;
  REQUIRE(storm_begin(&storm, report->seed, false));
  storm.span = (span_t){.until_ms = now_ms() + 600000};
  for (size_t i = 0; i < COUNT; i++) {
    REQUIRE(make_in(storm.heap, 0, 400 + i, i, &elements[i]) == 0);
    EXPECT_EQUAL(purgeable_heap_lock(storm.heap, elements[i].reference, NULL, NULL), purgeable_outcome_intact);
  }
  beside_t beside = {.storm = &storm, .elements = elements, .count = COUNT};
  pthread_t thread;
  REQUIRE(pthread_create(&thread, NULL, storm_beside, &beside) == 0);
  uint64_t end = (report->is_full ? 60 : 15) * report->scale;
  for (uint64_t round = 0; round < end; round++) {
    pid_t child = fork();
    if (child == 0) _exit(in_child(storm.heap, elements, COUNT, COUNT));
    int status = wait_for_child(child);
    if (status != 0) beside.bad++;
    if (status != 0 && beside.first_status == 0) beside.first_status = status;
    (void)usleep((useconds_t)(report->seed >> (round % 32) & 1023));
  }
  atomic_store(&storm.is_over, true);
  pthread_join(thread, NULL);
  EXPECT_EQUAL(beside.bad, 0);
  EXPECT_EQUAL(beside.first_status, 0);
  for (size_t i = 0; i < COUNT; i++) {
    EXPECT(check_pattern(elements[i].bytes, elements[i].length, i));
    EXPECT_EQUAL(purgeable_heap_unlock(storm.heap, elements[i].reference), 0);
    EXPECT_EQUAL(purgeable_heap_free(storm.heap, elements[i].reference), 0);
  }
  storm_empty(&storm);
  EXPECT_EQUAL(storm.wrong, 0);
  EXPECT_EQUAL(storm.failed, 0);
  purgeable_heap_statistics_t now = heap_statistics(storm.heap);
  EXPECT_EQUAL(now.slab_count + now.memory.held_bytes + now.memory.payload_bytes + now.memory.locked_bytes, 0);
  NOTE("%llu forks beside %llu reads and %llu locks", (unsigned long long)end, (unsigned long long)storm.reads,
       (unsigned long long)storm.locks);
  storm_end(&storm);
}

// MARK: A callback that forks

enum { MOVED_SLABS = 12 };

typedef struct forking {
  purgeable_heap_t *heap;
  // What the child allocates inside of the callback and does not commit: each in a slab of its own, held by its writer.
  element_t own[MOVED_SLABS];
  bool is_child;
  pid_t child;
} forking_t;

static bool fork_in_callback(void *context, purgeable_reference_t from, purgeable_reference_t to, uint64_t tag,
                             const void *bytes, size_t length) {
  forking_t *forking = context;
  (void)from, (void)to, (void)tag, (void)bytes, (void)length;
  if (forking->child != 0 || forking->is_child) return true;
  forking->child = fork();
  forking->is_child = forking->child == 0;
  if (!forking->is_child) return true;
  (void)alarm(CHILD_SECONDS);
  for (uint64_t i = 0; i < MOVED_SLABS; i++) {
    void *own;
    element_t *element = &forking->own[i];
    if (purgeable_heap_allocate(forking->heap, 3 * PAGE, &element->reference, &own) != 0) _exit(20);
    fill_pattern(own, 3 * PAGE, 100 + i);
    *element = (element_t){element->reference, own, 3 * PAGE, 100 + i};
  }
  return true;
}

// What a call has made of the child after such a callback: `error` and, if that is 0, `reference` and `bytes` of an element of
// `length` that can be written.
static int after_callback(forking_t *forking, int error, purgeable_reference_t reference, void *bytes, size_t length) {
  purgeable_heap_t *heap = forking->heap;
  if (error == 0) {
    fill_pattern(bytes, length, 7);
    if (purgeable_heap_commit(heap, reference) != 0) return 2;
    if (!is_intact(heap, &(element_t){reference, bytes, length, 7})) return 3;
  }
  for (size_t i = 0; i < MOVED_SLABS; i++) {
    element_t *own = &forking->own[i];
    purgeable_slab_information_t slab;
    if (purgeable_slab_information(heap, slab_of(heap, own), &slab) != 0 || slab.lock_count != 1) return 4;
    if (!check_pattern(own->bytes, own->length, own->number)) return 5;
    if (purgeable_heap_commit(heap, own->reference) != 0 || !is_intact(heap, own)) return 6;
  }
  if (purgeable_heap_trim(heap, NULL) != 0 || purgeable_heap_offer_idle(heap, NULL) != 0) return 7;
  return purgeable_testing_heap_is_valid(heap, NULL) ? 0 : 8;
}

// Allocates among slabs of which most is dead, until a compaction calls back.
static int allocate_until_forked(forking_t *forking, size_t length, purgeable_reference_t *reference, void **bytes) {
  for (int i = 0; i < 10000; i++) {
    int error = purgeable_heap_allocate(forking->heap, length, reference, bytes);
    if (error != 0 || forking->is_child || forking->child != 0) return error;
    error = i % 8 == 0 ? purgeable_heap_commit(forking->heap, *reference) : purgeable_heap_free(forking->heap, *reference);
    if (error != 0) return error;
  }
  return 0;
}

static void fork_in_compaction(case_report_t *report) {
  NEED_WIPE_ON_FORK();
  const size_t length = PAGE / 2 - 64;
  for (int is_move = 0; is_move < 2; is_move++) {
    forking_t forking = {.child = 0};
    MAKE_HEAP(heap, .slab_bytes = 4 * PAGE, .moved = fork_in_callback, .context = &forking);
    forking.heap = heap;
    element_t first;
    REQUIRE(make(heap, length, 1, &first) == 0);
    purgeable_reference_t reference;
    void *bytes = NULL;
    int error = is_move ? purgeable_heap_move(heap, first.reference, 0, fork_in_callback, &forking, &reference)
                        : allocate_until_forked(&forking, length, &reference, &bytes);
    if (forking.is_child) {
      // An allocation answers an element of the child. A move answers that the element is gone.
      if (error != (is_move ? ESTALE : 0)) _exit(1);
      _exit(after_callback(&forking, error, reference, bytes, length));
    }
    EXPECT_EQUAL(error, 0);
    REQUIRE(forking.child > 0);
    if (!is_move) EXPECT_EQUAL(purgeable_heap_commit(heap, reference), 0);
    EXPECT_EQUAL(wait_for_child(forking.child), 0);
    EXPECT_VALID(heap);
    END_HEAP(heap);
  }
}

// MARK: Descriptors

enum { MOST_DESCRIPTORS = 512, CUT_PAGES = 2048 };

typedef struct descriptors {
  bool are_open[MOST_DESCRIPTORS];
} descriptors_t;

static descriptors_t open_descriptors(void) {
  descriptors_t found;
  for (int i = 0; i < MOST_DESCRIPTORS; i++) found.are_open[i] = fcntl(i, F_GETFD) != -1;
  return found;
}

// How many are open now that were not.
static int more_descriptors(const descriptors_t *before) {
  int more = 0;
  for (int i = 0; i < MOST_DESCRIPTORS; i++) more += !before->are_open[i] && fcntl(i, F_GETFD) != -1;
  return more;
}

// Forks a child that counts, and ends with that count.
static int more_in_child(const descriptors_t *before) {
  pid_t child = fork();
  if (child != 0) return wait_for_child(child);
  (void)alarm(CHILD_SECONDS);
  _exit(more_descriptors(before));
}

typedef struct fork_inside {
  descriptors_t before;
  bool has_forked;
  int in_parent, in_child;
} fork_inside_t;

static void fork_in_offer(void *context) {
  fork_inside_t *inside = context;
  if (inside->has_forked) return;
  inside->has_forked = true;
  inside->in_parent = more_descriptors(&inside->before);
  inside->in_child = more_in_child(&inside->before);
}

static void descriptor_of_an_offer(case_report_t *report) {
  NEED_HOOKS();
  NEED_OFFERS();
  purgeable_region_t *region = cut_region(CUT_PAGES);
  REQUIRE(region != NULL);
  fork_inside_t inside = {.before = open_descriptors()};
  (void)purgeable_testing_set_pause(fork_in_offer, &inside);
  EXPECT_EQUAL(purgeable_region_offer(region), 0);
  (void)purgeable_testing_set_pause(NULL, NULL);
  EXPECT_EQUAL(more_descriptors(&inside.before), 0);
  EXPECT_EQUAL(purgeable_region_destroy(region), 0);
  EXPECT(inside.has_forked);
  EXPECT_EQUAL(inside.in_child, 0);
  if (inside.in_parent == 0) SKIP("no file is open during an offer here");
}

static void *read_limit(void *context) {
  (void)purgeable_testing_memory_byte_limit(context);
  return NULL;
}

// The file of groups is a pipe, so that the thread that reads it waits.
static void descriptor_of_a_limit(case_report_t *report) {
  char root[] = "/tmp/purgeable-fork-XXXXXX", path[100];
  const char *const parts[] = {"/proc/self/cgroup", "/proc/self", "/proc", ""};
  REQUIRE(mkdtemp(root) != NULL);
  for (int i = 2; i >= 0; i--) {
    (void)snprintf(path, sizeof path, "%s%s", root, parts[i]);
    REQUIRE((i == 0 ? mkfifo(path, 0600) : mkdir(path, 0700)) == 0);
  }
  int pipe = open(path, O_RDWR | O_CLOEXEC);
  REQUIRE(pipe >= 0);
  descriptors_t before = open_descriptors();
  pthread_t thread;
  REQUIRE(pthread_create(&thread, NULL, read_limit, root) == 0);
  WAIT_UNTIL(more_descriptors(&before) == 1);
  EXPECT_EQUAL(more_descriptors(&before), 1);
  EXPECT_EQUAL(more_in_child(&before), 0);
  EXPECT_EQUAL(more_descriptors(&before), 1);
  EXPECT_EQUAL(write(pipe, "0::/\n", 5), 5);
  (void)close(pipe);
  (void)pthread_join(thread, NULL);
  EXPECT_EQUAL(more_descriptors(&before), 0);
  for (int i = 0; i < 4; i++) {
    (void)snprintf(path, sizeof path, "%s%s", root, parts[i]);
    EXPECT_EQUAL(remove(path), 0);
  }
}

static _Atomic bool stop_scanning;

static void *offer_and_offer(void *context) {
  while (!atomic_load(&stop_scanning)) (void)purgeable_region_offer(context);
  return NULL;
}

// At any moment of opening, scanning and closing.
static void descriptors_at_any_moment(case_report_t *report) {
  NEED_OFFERS();
  enum { THREADS = 2 };
  pthread_t threads[THREADS];
  purgeable_region_t *regions[THREADS];
  descriptors_t before = open_descriptors();
  atomic_store(&stop_scanning, false);
  for (int i = 0; i < THREADS; i++) {
    REQUIRE((regions[i] = cut_region(CUT_PAGES)) != NULL);
    REQUIRE(pthread_create(&threads[i], NULL, offer_and_offer, regions[i]) == 0);
  }
  uint64_t forks = 0;
  int more = 0;
  for (span_t span = span_of(report, 50, 5000); span_goes_on(span, forks); forks++) more += more_in_child(&before);
  atomic_store(&stop_scanning, true);
  for (int i = 0; i < THREADS; i++) (void)pthread_join(threads[i], NULL);
  EXPECT_EQUAL(more, 0);
  EXPECT_EQUAL(more_descriptors(&before), 0);
  for (int i = 0; i < THREADS; i++) EXPECT_EQUAL(purgeable_region_destroy(regions[i]), 0);
  NOTE("%llu forks", (unsigned long long)forks);
}

const test_case_t fork_cases[] = {
    CASE("fork: at rest, with locks and unfinished writing", fork_at_rest),
    CASE("fork: generations that are used up stay so in children", generations_in_children),
    CASE("fork: in the middle of a storm", fork_beside_storm),
    CASE("fork: in a callback of a compaction or a move, whose caller gets nothing of somebody else", fork_in_compaction),
    CASE("fork: a child has no descriptor of an offer that was under way", descriptor_of_an_offer),
    CASE("fork: a child has no descriptor of files of limits", descriptor_of_a_limit),
    FULL_CASE("fork: a child has no descriptor more, at any moment", descriptors_at_any_moment),
    END_OF_CASES,
};
