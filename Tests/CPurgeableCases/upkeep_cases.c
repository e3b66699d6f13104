// SPDX-License-Identifier: MIT
// Cases of upkeep: one call for all regions and heaps, the thread that makes it, forks and callbacks in the middle of it.

#include "heap_cases.h"
#include "memory_group.h"

#include <dirent.h>

// The thread sanitizer ends a child that starts a thread after its parent had several.
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define CHILDREN_START_NONE 1
#endif
#endif
#if !defined(CHILDREN_START_NONE)
#define CHILDREN_START_NONE 0
#endif

// MARK: One call

static void one_call(case_report_t *report) {
  NEED_EXACT_DISCARDS();
  purgeable_upkeep_result_t result;
  REQUIRE(purgeable_upkeep(&result) == 0);
  uint64_t others = result.heap_count;
  purgeable_region_t *region;
  element_t left[400], right[400];
  REQUIRE(purgeable_region_create(4 * PAGE, NULL, &region) == 0);
  memset(purgeable_region_bytes(region), 7, 4 * PAGE);
  EXPECT_EQUAL(purgeable_region_unlock(region), 0);
  MAKE_HEAP(first, .slab_bytes = 4 * PAGE);
  MAKE_HEAP(second, .slab_bytes = 4 * PAGE);
  for (uint64_t i = 0; i < 400; i++) {
    REQUIRE(make(first, 1000, i, &left[i]) == 0 && make(second, 1000, i, &right[i]) == 0);
  }
  REQUIRE(purgeable_upkeep(&result) == 0);
  EXPECT_EQUAL(result.heap_count, others + 2);
  EXPECT(result.offered_bytes >= 4 * PAGE + 2 * (size_t)90 * 4096);
  EXPECT_EQUAL(result.discarded_bytes, 0);
  // The second offers are made, too.
  EXPECT(!purgeable_heap_has_pending(first) && !purgeable_heap_has_pending(second));
  EXPECT_EQUAL(purgeable_region_offered_bytes(region), 4 * PAGE);
  EXPECT_EQUAL(kernel_discard(purgeable_region_bytes(region), 4 * PAGE), 4);
  EXPECT_EQUAL(kernel_discard(left[5].bytes, 1000) > 0, 1);
  for (uint64_t i = 0; i < 400; i++) REQUIRE(purgeable_heap_free(second, right[i].reference) == 0);
  REQUIRE(purgeable_upkeep(&result) == 0);
  EXPECT(result.discarded_bytes >= PAGE);
  EXPECT(is_discarded(first, &left[5]));
  EXPECT_EQUAL(purgeable_region_lock(region), purgeable_outcome_discarded);
  END_HEAP(first);
  END_HEAP(second);
  REQUIRE(purgeable_upkeep(NULL) == 0 && purgeable_upkeep(&result) == 0);
  EXPECT_EQUAL(result.heap_count, others);
  EXPECT_EQUAL(purgeable_region_destroy(region), 0);
}

// More heaps than one block of the list has room for, destroyed in another order.
static void many_heaps(case_report_t *report) {
  NEED_OFFERS();
  enum { COUNT = 300 };
  static purgeable_heap_t *heaps[COUNT];
  purgeable_upkeep_result_t result;
  REQUIRE(purgeable_upkeep(&result) == 0);
  uint64_t others = result.heap_count;
  for (size_t i = 0; i < COUNT; i++) REQUIRE(purgeable_heap_create(NULL, &heaps[i]) == 0);
  EXPECT(purgeable_upkeep(&result) == 0 && result.heap_count == others + COUNT);
  for (size_t i = 0; i < COUNT; i += 3) EXPECT_EQUAL(purgeable_heap_destroy(heaps[i]), 0);
  EXPECT(purgeable_upkeep(&result) == 0 && result.heap_count == others + COUNT - COUNT / 3);
  for (size_t i = 0; i < COUNT; i += 3) REQUIRE(purgeable_heap_create(NULL, &heaps[i]) == 0);
  EXPECT(purgeable_upkeep(&result) == 0 && result.heap_count == others + COUNT);
  for (size_t i = COUNT; i-- > 0;) EXPECT_EQUAL(purgeable_heap_destroy(heaps[i]), 0);
  EXPECT(purgeable_upkeep(&result) == 0 && result.heap_count == others);
  // Without memory for a heap's entry, if it needs any, no heap is made.
  for (uint64_t n = 1; n < 8; n++) {
    purgeable_heap_t *heap = NULL;
    purgeable_testing_fail(purgeable_testing_call_allocate, n, ENOMEM, false);
    int error = purgeable_heap_create(NULL, &heap);
    purgeable_testing_fail(0, 0, 0, false);
    EXPECT(error == 0 ? purgeable_heap_destroy(heap) == 0 : error == ENOMEM && heap == NULL);
  }
}

// MARK: The thread

static bool goes_on_offer(purgeable_region_t *region) {
  WAIT_UNTIL(purgeable_region_offered_bytes(region) != 0);
  return purgeable_region_offered_bytes(region) != 0;
}

// Whether a thread of that name has blocked all signals that can be blocked.
static bool has_all_signals_blocked(void) {
  DIR *tasks = opendir("/proc/self/task");
  bool is_found = false;
  for (struct dirent *task; tasks != NULL && !is_found && (task = readdir(tasks)) != NULL;) {
    char path[300], line[200];
    (void)snprintf(path, sizeof path, "/proc/self/task/%s/status", task->d_name);
    FILE *file = fopen(path, "re");
    bool is_ours = false;
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
      if (strcmp(line, "Name:\tpurgeable\n") == 0) is_ours = true;
      // All but SIGKILL, SIGSTOP and the few that the C library keeps for itself.
      if (is_ours && strncmp(line, "SigBlk:", 7) == 0) is_found = strtoull(line + 7, NULL, 16) >> 36 == 0xFFFFFFF;
    }
    if (file != NULL) (void)fclose(file);
  }
  if (tasks != NULL) (void)closedir(tasks);
  return is_found;
}

static void thread_begins_and_ends(case_report_t *report) {
  EXPECT_EQUAL(purgeable_upkeep_start(0), EINVAL);
  EXPECT_EQUAL(purgeable_upkeep_stop(), ESRCH);
  EXPECT(!purgeable_upkeep_is_running());
  purgeable_testing_fail(purgeable_testing_call_thread, 1, EAGAIN, false);
  EXPECT_EQUAL(purgeable_upkeep_start(20), EAGAIN);
  EXPECT(!purgeable_upkeep_is_running());
  for (int round = 0; round < 20; round++) {
    REQUIRE(purgeable_upkeep_start(round % 2 == 0 ? 20 : UINT32_MAX) == 0);
    EXPECT_EQUAL(purgeable_upkeep_start(20), EALREADY);
    EXPECT(purgeable_upkeep_is_running());
    if (round == 0) {
      purgeable_region_t *region;
      REQUIRE(purgeable_region_create(PAGE, NULL, &region) == 0);
      memset(purgeable_region_bytes(region), 7, PAGE);
      EXPECT_EQUAL(purgeable_region_unlock(region), 0);
      const char *reason;
      if (kernel_discards(&reason)) EXPECT(goes_on_offer(region));
      // The thread gives itself its name when it begins.
      WAIT_UNTIL(has_all_signals_blocked());
      EXPECT(has_all_signals_blocked());
      EXPECT_EQUAL(purgeable_region_destroy(region), 0);
    }
    // Stopping does not wait for the interval to end.
    EXPECT_EQUAL(purgeable_upkeep_stop(), 0);
    EXPECT(!purgeable_upkeep_is_running());
    EXPECT_EQUAL(purgeable_upkeep_stop(), ESRCH);
  }
}

static int child_of_a_thread(purgeable_heap_t *heap, bool offers) {
  if (purgeable_upkeep_is_running() || purgeable_upkeep_stop() != ESRCH) return 1;
  purgeable_upkeep_result_t result;
  if (purgeable_upkeep(&result) != 0 || result.heap_count == 0) return 2;
  element_t element;
  if (make(heap, 1000, 7, &element) != 0) return 3;
  if (CHILDREN_START_NONE) return 0;
  if (purgeable_upkeep_start(5) != 0) return 4;
  if (purgeable_upkeep_start(5) != EALREADY) return 5;
  // The thread has made a pass when nothing waits any more.
  if (offers) WAIT_UNTIL(!purgeable_heap_has_pending(heap));
  if (offers && purgeable_heap_has_pending(heap)) return 8;
  if (!is_intact(heap, &element)) return 6;
  return purgeable_upkeep_stop() == 0 && purgeable_heap_destroy(heap) == 0 ? 0 : 7;
}

static void forked_children(case_report_t *report) {
  MAKE_HEAP(heap, .slab_bytes = 4 * PAGE);
  bool offers = kernel_offers();
  REQUIRE(purgeable_upkeep_start(1) == 0);
  for (int round = 0; round < (report->is_full ? 40 : 10); round++) {
    pid_t child = fork();
    if (child == 0) {
      (void)alarm(CHILD_SECONDS);
      _exit(child_of_a_thread(heap, offers));
    }
    REQUIRE(child > 0);
    EXPECT_EQUAL(wait_for_child(child), 0);
  }
  EXPECT(purgeable_upkeep_is_running());
  EXPECT_EQUAL(purgeable_upkeep_stop(), 0);
  END_HEAP(heap);
}

// MARK: Callbacks

typedef struct inside {
  purgeable_heap_t *heap, *other;
  _Atomic int upkeep, stop, destroy, destroy_other;
  _Atomic bool is_called;
} inside_t;

static bool call_from_within(void *context, purgeable_reference_t from, purgeable_reference_t to, uint64_t tag, const void *bytes,
                             size_t length) {
  (void)from, (void)to, (void)tag, (void)bytes, (void)length;
  inside_t *inside = context;
  if (atomic_exchange(&inside->is_called, true)) return true;
  atomic_store(&inside->upkeep, purgeable_upkeep(NULL));
  atomic_store(&inside->stop, purgeable_upkeep_stop());
  atomic_store(&inside->destroy, purgeable_heap_destroy(inside->heap));
  atomic_store(&inside->destroy_other, purgeable_heap_destroy(inside->other));
  return true;
}

// Elements of which most are freed: trimming copies the rest together.
static bool scatter(purgeable_heap_t *heap) {
  static element_t elements[2000];
  for (uint64_t i = 0; i < 2000; i++) {
    if (make(heap, 200, i, &elements[i]) != 0) return false;
  }
  for (uint64_t i = 0; i < 2000; i++) {
    if (i % 10 != 0 && purgeable_heap_free(heap, elements[i].reference) != 0) return false;
  }
  return true;
}

static bool stop_from_within(void *context, purgeable_reference_t from, purgeable_reference_t to, uint64_t tag, const void *bytes,
                             size_t length) {
  (void)from, (void)to, (void)tag, (void)bytes, (void)length;
  inside_t *inside = context;
  if (atomic_exchange(&inside->is_called, true)) return true;
  // The thread begins its first pass, and waits until the present one is over.
  int error = purgeable_upkeep_start(60000);
  (void)usleep(20000);
  atomic_store(&inside->stop, error != 0 ? error : purgeable_upkeep_stop());
  return true;
}

// Upkeep called by hand, whose callback stops the thread that waits for its turn: in a child, because a mistake here is a
// deadlock.
static int stop_while_it_waits(void) {
  (void)alarm(CHILD_SECONDS);
  inside_t inside = {.stop = -1};
  const purgeable_heap_options_t options = {
      .slab_bytes = 4 * PAGE, .keeps_tags = true, .moved = stop_from_within, .context = &inside};
  if (purgeable_heap_create(&options, &inside.heap) != 0) return 1;
  atomic_store(&inside.is_called, true);
  if (!scatter(inside.heap)) return 2;
  atomic_store(&inside.is_called, false);
  if (purgeable_upkeep(NULL) != 0) return 3;
  if (!atomic_load(&inside.is_called) || atomic_load(&inside.stop) != EDEADLK) return 4;
  return purgeable_upkeep_stop() == 0 && purgeable_heap_destroy(inside.heap) == 0 ? 0 : 5;
}

static void stop_within_a_call(case_report_t *report) {
  NEED_OFFERS();
  if (CHILDREN_START_NONE) SKIP("under the sanitizer a child starts no thread");
  pid_t child = fork();
  if (child == 0) _exit(stop_while_it_waits());
  EXPECT_EQUAL(wait_for_child(child), 0);
}

static void callbacks(case_report_t *report) {
  NEED_OFFERS();
  for (int by_thread = 0; by_thread < 2; by_thread++) {
    inside_t inside = {.upkeep = -1};
    MAKE_HEAP(heap, .slab_bytes = 4 * PAGE, .keeps_tags = true, .moved = call_from_within, .context = &inside);
    inside.heap = heap;
    REQUIRE(purgeable_heap_create(NULL, &inside.other) == 0);
    // Moves during `scatter` must not make the calls yet.
    atomic_store(&inside.is_called, true);
    REQUIRE(scatter(heap));
    atomic_store(&inside.is_called, false);
    if (by_thread) {
      REQUIRE(purgeable_upkeep_start(1) == 0);
      WAIT_UNTIL(atomic_load(&inside.is_called));
      EXPECT_EQUAL(purgeable_upkeep_stop(), 0);
    } else {
      EXPECT_EQUAL(purgeable_upkeep(NULL), 0);
    }
    EXPECT(atomic_load(&inside.is_called));
    EXPECT_EQUAL(atomic_load(&inside.upkeep), EDEADLK);
    EXPECT_EQUAL(atomic_load(&inside.stop), by_thread ? EDEADLK : ESRCH);
    EXPECT_EQUAL(atomic_load(&inside.destroy), EBUSY);
    EXPECT_EQUAL(atomic_load(&inside.destroy_other), 0);
    END_HEAP(heap);
  }
}

// MARK: Storm

// Unlike the C library's, the allocator of the address sanitizer is not mended in a child: a free there waits for ever for one
// that another thread of the parent was in. Under it nobody is in the middle of a heap while the parent forks.
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HOLDS_STILL 1
#endif
#endif
#if defined(HOLDS_STILL)
static pthread_rwlock_t making = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;
static void begin_making(void) { (void)pthread_rwlock_rdlock(&making); }
static void end_making(void) { (void)pthread_rwlock_unlock(&making); }
static void hold_still(void) { (void)pthread_rwlock_wrlock(&making); }
#else
static void begin_making(void) {}
static void end_making(void) {}
static void hold_still(void) {}
#endif

typedef struct churn {
  uint64_t seed, wrong, rounds;
} churn_t;

static void *make_and_end(void *context) {
  churn_t *churn = context;
  for (uint64_t round = 0; round < churn->rounds; round++) {
    purgeable_heap_t *heap;
    begin_making();
    if (purgeable_heap_create(NULL, &heap) != 0) {
      end_making();
      return NULL;
    }
    element_t elements[50];
    for (uint64_t i = 0; i < 50; i++) {
      if (make(heap, 100 + next_random(&churn->seed) % 4000, i, &elements[i]) != 0) churn->wrong++;
    }
    if (next_random(&churn->seed) % 4 == 0) churn->wrong += purgeable_upkeep(NULL) != 0;
    for (uint64_t i = 0; i < 50; i++) churn->wrong += !is_intact(heap, &elements[i]);
    churn->wrong += purgeable_heap_destroy(heap) != 0;
    end_making();
  }
  return NULL;
}

static void heaps_come_and_go(case_report_t *report) {
  const char *reason;
  if (!kernel_discards(&reason)) SKIP("offers are refused, or take at once: %s", reason);
  enum { THREADS = 3 };
  churn_t churns[THREADS];
  for (size_t i = 0; i < THREADS; i++) churns[i] = (churn_t){.seed = report->seed + i, .rounds = 150 * report->scale};
  MAKE_HEAP(heap, .slab_bytes = 4 * PAGE);
  REQUIRE(purgeable_upkeep_start(1) == 0);
  pid_t children[8];
  pthread_t threads[THREADS];
  for (size_t i = 0; i < THREADS; i++) REQUIRE(pthread_create(&threads[i], NULL, make_and_end, &churns[i]) == 0);
  for (int i = 0; i < 8; i++) {
    (void)usleep(10000);
    hold_still();
    children[i] = fork();
    if (children[i] != 0) {
      end_making();
      continue;
    }
    (void)alarm(CHILD_SECONDS);
    // No allocation: another thread of the parent may be inside of malloc, which the C library mends and sanitizers do not.
    purgeable_upkeep_result_t result;
    _exit(purgeable_upkeep_is_running() || purgeable_upkeep_stop() != ESRCH || purgeable_heap_destroy(heap) != 0 ||
          (i % 2 == 0 && !CHILDREN_START_NONE && (purgeable_upkeep_start(3) != 0 || purgeable_upkeep_stop() != 0)) ||
          purgeable_upkeep(&result) != 0);
  }
  for (size_t i = 0; i < THREADS; i++) REQUIRE(pthread_join(threads[i], NULL) == 0);
  for (int i = 0; i < 8; i++) {
    EXPECT_EQUAL(wait_for_child(children[i]), 0);
  }
  EXPECT_EQUAL(purgeable_upkeep_stop(), 0);
  for (size_t i = 0; i < THREADS; i++) EXPECT_EQUAL(churns[i].wrong, 0);
  END_HEAP(heap);
}

// MARK: Faster than upkeep comes

enum { FILLED_MIB = 1000, GROUP_MIB = 200 };

static int fill_regions(void) {
  for (int i = 0; i < FILLED_MIB; i++) {
    purgeable_region_t *region;
    if (purgeable_region_create((size_t)1 << 20, NULL, &region) != 0) return 3;
    memset(purgeable_region_bytes(region), 7, (size_t)1 << 20);
    if (purgeable_region_unlock(region) != 0) return 4;
  }
  return 0;
}

static int fill_elements(void) {
  purgeable_heap_t *heap;
  if (purgeable_heap_create(NULL, &heap) != 0) return 5;
  const size_t length = 10000;
  for (uint64_t i = 0; i < ((uint64_t)FILLED_MIB << 20) / length; i++) {
    purgeable_reference_t reference;
    void *bytes;
    if (purgeable_heap_allocate(heap, length, &reference, &bytes) != 0) return 6;
    memset(bytes, 7, length);
    if (purgeable_heap_commit(heap, reference) != 0) return 7;
  }
  return 0;
}

static void fills_faster(case_report_t *report, int (*fill)(void)) {
  if (HAS_SANITIZER) SKIP("the sanitizer's own memory would not fit the group");
  NEED_DISCARDS();
  memory_group_t group;
  const char *reason;
  if (!memory_group_make(&group, (size_t)GROUP_MIB << 20, &reason)) SKIP("%s", reason);
  pid_t child = fork();
  if (child == 0) {
    (void)alarm(CHILD_SECONDS);
    if (!memory_group_join(&group)) _exit(77);
    // Only the limit that an earlier case read is known yet: the library reads the group's within seconds.
    if (purgeable_upkeep_start(1000) != 0) _exit(2);
    int answer = fill();
    _exit(answer == 0 && purgeable_upkeep_stop() != 0 ? 8 : answer);
  }
  int status = wait_for_child(child);
  EXPECT_EQUAL(memory_group_remove(&group), 0);
  if (status == 77) SKIP("this process may not move into a group");
  EXPECT_EQUAL(status, 0);
}

static void fill_faster_by_regions(case_report_t *report) { fills_faster(report, fill_regions); }
static void fill_faster_by_elements(case_report_t *report) { fills_faster(report, fill_elements); }

const test_case_t upkeep_cases[] = {
    CASE("upkeep: one call trims, offers, offers again and sweeps", one_call),
    CASE("upkeep: many heaps", many_heaps),
    CASE("upkeep: the thread begins once and ends at once", thread_begins_and_ends),
    CASE("upkeep: a forked child has no thread and may start one", forked_children),
    CASE("upkeep: callbacks may not end what they are called by", callbacks),
    CASE("upkeep: a callback of a call may not end the thread that waits for its turn", stop_within_a_call),
    CASE("upkeep: heaps come and go beside it, and children", heaps_come_and_go),
    FULL_CASE("upkeep: regions filled faster than it comes survive in a small group", fill_faster_by_regions),
    FULL_CASE("upkeep: elements filled faster than it comes survive in a small group", fill_faster_by_elements),
    END_OF_CASES,
};
