// SPDX-License-Identifier: MIT
// Every operation of the slab heap with its n-th system call or allocation failing, n = 1, 2, 3 ... until no fault is met: an
// error or a miss, nothing leaked, nothing changed, and the heap goes on.

#include "heap_cases.h"

enum { FULL = 40, MOST_CALLS = 60 };

// A heap with some of everything: small, middle and large elements, some of them lost, some slabs with room to gain.
typedef struct scene {
  purgeable_heap_t *heap;
  purgeable_stream_t stream;
  element_t elements[FULL];
  bool lives[FULL];
  uint64_t tries;
} scene_t;

static bool take_always(void *context, purgeable_reference_t from, purgeable_reference_t to, uint64_t tag, const void *bytes,
                        size_t length) {
  scene_t *scene = context;
  (void)bytes, (void)length;
  element_t *element = &scene->elements[tag % FULL];
  if (element->reference.place != from.place || element->number != tag) return false;
  element->reference = to;
  return true;
}

static bool begin_scene(scene_t *scene) {
  memset(scene, 0, sizeof *scene);
  const purgeable_heap_options_t options = {
      .slab_bytes = 4 * PAGE, .chunk_bytes = 64 * PAGE, .keeps_tags = true, .moved = take_always, .context = scene};
  if (purgeable_heap_create(&options, &scene->heap) != 0) return false;
  if (purgeable_stream_create(scene->heap, &scene->stream) != 0) return false;
  for (size_t i = 0; i < FULL; i++) {
    size_t length = i % 10 == 0 ? 10 * PAGE : i % 10 == 5 ? PAGE + 100 : 300;
    if (make(scene->heap, length, i, &scene->elements[i]) != 0) return false;
    scene->lives[i] = true;
  }
  for (size_t i = 0; i < FULL; i++) {
    if (i % 3 == 0) continue;
    scene->lives[i] = false;
    if (purgeable_heap_free(scene->heap, scene->elements[i].reference) != 0) return false;
  }
  return true;
}

// Living elements are intact by both ways of reading, the sums are right, and an element can still be made.
static void check_scene(case_report_t *report, scene_t *scene) {
  uint64_t payload = 0, count = 0;
  for (size_t i = 0; i < FULL; i++) {
    if (!scene->lives[i]) continue;
    EXPECT(is_intact(scene->heap, &scene->elements[i]));
    const void *bytes;
    EXPECT_EQUAL(purgeable_heap_lock(scene->heap, scene->elements[i].reference, &bytes, NULL), purgeable_outcome_intact);
    EXPECT_EQUAL(purgeable_heap_unlock(scene->heap, scene->elements[i].reference), 0);
    payload += scene->elements[i].length, count++;
  }
  purgeable_heap_statistics_t now = heap_statistics(scene->heap);
  EXPECT_EQUAL(now.memory.payload_bytes, payload);
  EXPECT_EQUAL(now.element_count, count);
  EXPECT_EQUAL(now.memory.locked_bytes, 0);
  EXPECT(now.memory.held_bytes <= purgeable_heap_held_bytes(scene->heap));
  element_t element;
  EXPECT_EQUAL(make(scene->heap, 200, FULL, &element), 0);
  EXPECT(is_intact(scene->heap, &element));
  EXPECT_EQUAL(purgeable_heap_free(scene->heap, element.reference), 0);
}

static void end_scene(case_report_t *report, scene_t *scene) {
  for (size_t i = 0; i < FULL; i++) {
    if (scene->lives[i]) EXPECT_EQUAL(purgeable_heap_free(scene->heap, scene->elements[i].reference), 0);
  }
  EXPECT_EQUAL(purgeable_stream_seal(scene->heap, 0), 0);
  EXPECT_EQUAL(purgeable_stream_seal(scene->heap, scene->stream), 0);
  // Slabs that could not be wiped before are wiped now.
  EXPECT_EQUAL(purgeable_heap_trim(scene->heap, NULL), 0);
  purgeable_heap_statistics_t end = heap_statistics(scene->heap);
  EXPECT_EQUAL(end.slab_count + end.memory.held_bytes + end.memory.resident_bytes, 0);
  EXPECT_EQUAL(end.memory.payload_bytes + end.memory.locked_bytes, 0);
  EXPECT_EQUAL(purgeable_heap_held_bytes(scene->heap), 0);
  END_HEAP(scene->heap);
}

// How many bytes of address space are mapped under the heap's name.
static long mapped_bytes(void) {
  FILE *file = fopen("/proc/self/statm", "r");
  long pages = 0;
  if (file == NULL || fscanf(file, "%ld", &pages) != 1) pages = 0;
  if (file != NULL) (void)fclose(file);
  return pages * (long)PAGE;
}

// Runs an operation with its n-th call failing; `operation` returns 0 or the error. An error is one of those injected, or one
// that the documentation names.
static void with_faults(case_report_t *report, int (*operation)(scene_t *scene, case_report_t *report)) {
  uint64_t faults = 0;
  for (int after = 0; after < 2; after++) {
    for (uint64_t n = 1;; n++) {
      REQUIRE(n < MOST_CALLS);
      scene_t *scene = calloc(1, sizeof *scene);
      REQUIRE(scene != NULL && begin_scene(scene));
      scene->tries = n;
      purgeable_testing_fail(purgeable_testing_call_any, n, ENOMEM, after != 0);
      int error = operation(scene, report);
      bool failed = purgeable_testing_has_failed();
      purgeable_testing_fail(0, 0, 0, false);
      EXPECT(error == 0 || (failed && error == ENOMEM));
      faults += failed;
      check_scene(report, scene);
      // The second time, no call fails.
      EXPECT_EQUAL(operation(scene, report), 0);
      check_scene(report, scene);
      end_scene(report, scene);
      free(scene);
      if (!failed) break;
    }
  }
  NOTE("%llu faults", (unsigned long long)faults);
}

// MARK: The operations

static int allocate_and_free(scene_t *scene, size_t length) {
  purgeable_reference_t reference = {7, 7};
  void *bytes = scene;
  int error = purgeable_heap_allocate_in(scene->heap, scene->stream, length, 1, &reference, &bytes);
  if (error != 0) return reference.place == 7 && bytes == scene ? error : EINVAL;
  error = purgeable_heap_commit(scene->heap, reference);
  return error != 0 ? error : purgeable_heap_free(scene->heap, reference);
}

static int allocate_small(scene_t *scene, case_report_t *report) {
  (void)report;
  return allocate_and_free(scene, 100);
}

static int allocate_large(scene_t *scene, case_report_t *report) {
  (void)report;
  return allocate_and_free(scene, 20 * PAGE);
}

static int allocate_over_chunks(scene_t *scene, case_report_t *report) {
  (void)report;
  return allocate_and_free(scene, 200 * PAGE);
}

static int offer(scene_t *scene, case_report_t *report) {
  (void)report;
  return purgeable_heap_offer_idle(scene->heap, NULL);
}

static int sweep(scene_t *scene, case_report_t *report) {
  size_t lost = 99;
  int error = purgeable_heap_sweep(scene->heap, &lost);
  EXPECT_EQUAL(lost, 0);
  return error;
}

static int trim(scene_t *scene, case_report_t *report) {
  (void)report;
  return purgeable_heap_trim(scene->heap, NULL);
}

static int seal(scene_t *scene, case_report_t *report) {
  (void)report;
  return purgeable_stream_seal(scene->heap, 0);
}

static int evacuate(scene_t *scene, case_report_t *report) {
  purgeable_slab_t slab;
  int error = purgeable_stream_oldest(scene->heap, 0, &slab);
  if (error == 0) error = purgeable_slab_evacuate(scene->heap, slab, scene->stream, take_always, scene, NULL);
  EXPECT(error != EBUSY);
  return error == ESTALE || error == ENOENT ? 0 : error;
}

static int free_and_refill(scene_t *scene, case_report_t *report) {
  for (size_t i = 0; i < FULL; i++) {
    if (scene->lives[i]) EXPECT_EQUAL(purgeable_heap_free(scene->heap, scene->elements[i].reference), 0);
    scene->lives[i] = false;
  }
  int error = purgeable_stream_seal(scene->heap, 0);
  for (size_t i = 0; i < FULL && error == 0; i++) {
    purgeable_reference_t reference;
    void *bytes;
    size_t length = i % 10 == 0 ? 10 * PAGE : 300;
    error = purgeable_heap_allocate_in(scene->heap, 0, length, i, &reference, &bytes);
    if (error != 0) break;
    // The payload is zeros, also where the kernel refused to take the pages at first.
    size_t dirty = 0;
    for (size_t k = 0; k < length; k++) dirty += ((char *)bytes)[k] != 0;
    EXPECT_EQUAL(dirty, 0);
    fill_pattern(bytes, length, i);
    scene->elements[i] = (element_t){reference, bytes, length, i};
    EXPECT_EQUAL(purgeable_heap_commit(scene->heap, reference), 0);
    scene->lives[i] = true;
  }
  return error;
}

static int look_and_lock(scene_t *scene, case_report_t *report) {
  // No system call: no fault.
  for (size_t i = 0; i < FULL; i++) {
    if (!scene->lives[i]) continue;
    EXPECT(is_intact(scene->heap, &scene->elements[i]));
    EXPECT(purgeable_heap_lock(scene->heap, scene->elements[i].reference, NULL, NULL) == purgeable_outcome_intact);
    EXPECT_EQUAL(purgeable_heap_unlock(scene->heap, scene->elements[i].reference), 0);
  }
  EXPECT(!purgeable_testing_has_failed());
  return 0;
}

static int statistics(scene_t *scene, case_report_t *report) {
  purgeable_heap_statistics_t all;
  int error = purgeable_heap_statistics(scene->heap, &all);
  EXPECT(error == 0 || all.memory.resident_bytes == 0);
  EXPECT(all.memory.payload_bytes > 0 && all.memory.held_bytes > 0);
  return error;
}

static void faults_in_small_allocations(case_report_t *report) { with_faults(report, allocate_small); }
static void faults_in_large_allocations(case_report_t *report) { with_faults(report, allocate_large); }
static void faults_in_huge_allocations(case_report_t *report) { with_faults(report, allocate_over_chunks); }
static void faults_in_offers(case_report_t *report) { with_faults(report, offer); }
static void faults_in_sweeps(case_report_t *report) { with_faults(report, sweep); }
static void faults_in_trims(case_report_t *report) { with_faults(report, trim); }
static void faults_in_seals(case_report_t *report) { with_faults(report, seal); }
static void faults_in_evacuations(case_report_t *report) { with_faults(report, evacuate); }
static void faults_in_refills(case_report_t *report) { with_faults(report, free_and_refill); }
static void faults_in_looks(case_report_t *report) { with_faults(report, look_and_lock); }
static void faults_in_statistics(case_report_t *report) { with_faults(report, statistics); }

static void faults_in_create(case_report_t *report) {
  // Of blocks of control pages the last one stays.
  int blocks = 0;
  for (int after = 0; after < 2; after++) {
    bool failed = true;
    for (uint64_t n = 1; failed; n++) {
      REQUIRE(n < MOST_CALLS);
      long mapped = mapped_bytes();
      purgeable_heap_t *heap = NULL;
      purgeable_testing_fail(purgeable_testing_call_any & ~(unsigned)purgeable_testing_call_munmap, n, ENOMEM, after != 0);
      int error = purgeable_heap_create(NULL, &heap);
      failed = purgeable_testing_has_failed();
      purgeable_testing_fail(0, 0, 0, false);
      EXPECT((error == 0) == (heap != NULL));
      EXPECT(error == 0 || error == ENOMEM);
      if (heap == NULL) {
        EXPECT_EQUAL(mapped_bytes(), mapped);
        continue;
      }
      // A flag or random bytes were refused: the heap works without them.
      element_t element;
      EXPECT_EQUAL(make(heap, 100, 1, &element), 0);
      EXPECT(is_intact(heap, &element));
      END_HEAP(heap);
      long more = mapped_bytes() - mapped;
      EXPECT(more == 0 || (more == 128 * (long)PAGE && blocks++ == 0));
    }
  }
}

// Failed allocations map nothing for good, however often they fail.
static void failures_do_not_add_up(case_report_t *report) {
  MAKE_HEAP(heap, .chunk_bytes = 256 * PAGE, .slab_bytes = 4 * PAGE);
  purgeable_reference_t reference;
  void *bytes;
  REQUIRE(purgeable_heap_allocate(heap, 10, &reference, &bytes) == 0);
  long mapped = mapped_bytes();
  for (uint64_t n = 1; n < 400; n++) {
    purgeable_testing_fail(purgeable_testing_call_mmap | purgeable_testing_call_allocate, 1 + n % 9, ENOMEM, false);
    int error = purgeable_heap_allocate(heap, 1000 * PAGE, &reference, &bytes);
    bool failed = purgeable_testing_has_failed();
    purgeable_testing_fail(0, 0, 0, false);
    EXPECT_EQUAL(error, failed ? ENOMEM : 0);
    if (error != 0) EXPECT(mapped_bytes() <= mapped + (long)PAGE * 64);
    if (error == 0) {
      EXPECT_EQUAL(purgeable_heap_free(heap, reference), 0);
      mapped = mapped_bytes();
    }
  }
  END_HEAP(heap);
}

const test_case_t fault_cases[] = {
    CASE("fault: create", faults_in_create),
    CASE("fault: small allocations", faults_in_small_allocations),
    CASE("fault: large allocations", faults_in_large_allocations),
    CASE("fault: allocations over several chunks", faults_in_huge_allocations),
    CASE("fault: offers", faults_in_offers),
    CASE("fault: sweeps", faults_in_sweeps),
    CASE("fault: trims", faults_in_trims),
    CASE("fault: seals", faults_in_seals),
    CASE("fault: evacuations", faults_in_evacuations),
    CASE("fault: wipes, frees and refills", faults_in_refills),
    CASE("fault: looks and locks have none", faults_in_looks),
    CASE("fault: statistics", faults_in_statistics),
    CASE("fault: failures do not add up", failures_do_not_add_up),
    END_OF_CASES,
};
