// SPDX-License-Identifier: MIT
// Cases of mapping: advice that is refused, the kernel's limit of mappings, a process that locks all its memory, cancellation.

#include "harness.h"

#include <sys/resource.h>

#define MIB ((size_t)1 << 20)
// A region with a mapping of its own.
#define OWN_MAPPING_BYTES (17 * MIB)

// Runs `body` in a child with a time limit. Returns the child's answer, 1000 and the signal that ended it, or -1.
static int in_child(int (*body)(int), int argument) {
  (void)fflush(NULL);
  pid_t child = fork();
  if (child == 0) {
    (void)alarm(CHILD_SECONDS);
    _exit(body(argument));
  }
  return wait_for_child(child);
}

static size_t resident_bytes(void) {
  FILE *file = fopen("/proc/self/statm", "re");
  unsigned long total, resident = 0;
  if (file == NULL) return 0;
  if (fscanf(file, "%lu %lu", &total, &resident) != 2) resident = 0;
  (void)fclose(file);
  return resident * PAGE;
}

// MARK: Advice that is refused

static void refused_advice(case_report_t *report) {
  const int shortages[] = {ENOMEM, EAGAIN};
  const int unknown[] = {EINVAL, EPERM, ENOSYS};
  purgeable_region_t *region = NULL;
  purgeable_heap_t *heap = NULL;
  for (size_t i = 0; i < 2; i++) {
    for (uint64_t n = 1; n <= 3; n++) {
      purgeable_testing_fail(purgeable_testing_call_madvise_other, n, shortages[i], false);
      EXPECT_EQUAL(purgeable_region_create(OWN_MAPPING_BYTES, NULL, &region), ENOMEM);
      EXPECT(purgeable_testing_has_failed() && region == NULL);
    }
    // For the heap, only its control block's mapping can be refused; blocks that are mapped already are used up first.
    for (uint64_t n = 1; n <= 3; n++) {
      purgeable_heap_t *heaps[65] = {NULL};
      size_t count = 0;
      purgeable_testing_fail(purgeable_testing_call_madvise_other, n, shortages[i], false);
      while (count < 65 && purgeable_heap_create(NULL, &heaps[count]) == 0) count++;
      EXPECT(purgeable_testing_has_failed() && count < 65 && heaps[count] == NULL);
      while (count != 0) EXPECT_EQUAL(purgeable_heap_destroy(heaps[--count]), 0);
    }
    purgeable_testing_fail(purgeable_testing_call_madvise_other, 2, shortages[i], false);
    // Up to two pages share mappings.
    EXPECT(purgeable_bookkeeping_map(3 * PAGE) == NULL && errno == ENOMEM);
  }
  for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++) {
    purgeable_testing_fail(purgeable_testing_call_madvise_other, 1, unknown[i], true);
    REQUIRE(purgeable_region_create(OWN_MAPPING_BYTES, NULL, &region) == 0);
    REQUIRE(purgeable_heap_create(NULL, &heap) == 0);
    purgeable_testing_fail(0, 0, 0, false);
    EXPECT_EQUAL(purgeable_region_destroy(region), 0);
    EXPECT_EQUAL(purgeable_heap_destroy(heap), 0);
    region = NULL;
    heap = NULL;
  }
  purgeable_testing_fail(purgeable_testing_call_mprotect, 1, ENOMEM, false);
  EXPECT_EQUAL(purgeable_region_create(OWN_MAPPING_BYTES, NULL, &region), ENOMEM);
  purgeable_testing_fail(0, 0, 0, false);
}

// A mapping that can be neither made ready nor unmapped holds no memory.
static void refused_advice_and_unmap(case_report_t *report) {
  purgeable_region_t *region = NULL;
  size_t before = resident_bytes();
  for (uint64_t n = 1; n <= 3; n++) {
    purgeable_testing_fail(purgeable_testing_call_madvise_other | purgeable_testing_call_munmap, n, ENOMEM, true);
    EXPECT_EQUAL(purgeable_region_create(OWN_MAPPING_BYTES, NULL, &region), ENOMEM);
  }
  purgeable_testing_fail(0, 0, 0, false);
  EXPECT(resident_bytes() < before + MIB);
  // Content of bookkeeping is cleared although its mapping stays, and the return value says so.
  char *table = purgeable_bookkeeping_map(4 * PAGE);
  REQUIRE(table != NULL);
  memset(table, 7, 4 * PAGE);
  purgeable_testing_fail(purgeable_testing_call_munmap, 1, ENOMEM, false);
  EXPECT_EQUAL(purgeable_bookkeeping_unmap(table, 4 * PAGE), ENOMEM);
  purgeable_testing_fail(0, 0, 0, false);
  EXPECT(table[0] == 0 && table[4 * PAGE - 1] == 0);
  EXPECT_EQUAL(purgeable_bookkeeping_unmap(table, 4 * PAGE), 0);
}

// MARK: The limit of mappings

static unsigned long mapping_limit(void) {
  FILE *file = fopen("/proc/sys/vm/max_map_count", "re");
  unsigned long limit = 0;
  if (file == NULL) return 0;
  if (fscanf(file, "%lu", &limit) != 1) limit = 0;
  (void)fclose(file);
  return limit;
}

// Uses up every mapping, the lowest one with the given protection, then gives `free_count` back.
static void use_up_mappings(int last_protection, int free_count) {
  static void *made[100000];
  int count = 0;
  int other = last_protection == PROT_NONE ? PROT_READ | PROT_WRITE : PROT_NONE;
  for (; count < 100000; count++) {
    int protection = count % 2 == 0 ? other : last_protection;
    made[count] = mmap(NULL, PAGE, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (made[count] == MAP_FAILED) break;
  }
  // The last mapping has the protection asked for. Early mappings fill gaps between others, so the ones given back are from the
  // middle.
  if (count % 2 == 1) (void)munmap(made[--count], PAGE);
  for (int i = count / 2; i < count / 2 + 2 * free_count && i < count; i++) (void)munmap(made[i], PAGE);
}

// In a child with all mappings in use: of all that can still be made, a child of that child finds no content.
static int at_the_limit(int argument) {
  use_up_mappings(argument % 2 == 0 ? PROT_NONE : PROT_READ | PROT_WRITE, argument / 2);
  purgeable_region_t *region;
  int error = purgeable_region_create(OWN_MAPPING_BYTES, NULL, &region);
  if (error != 0) return error == ENOMEM ? 0 : 10;
  memset(purgeable_region_bytes(region), 7, OWN_MAPPING_BYTES);
  if (purgeable_region_unlock(region) != 0) return 11;
  pid_t child = fork();
  if (child == 0) {
    unsigned char byte = 0;
    purgeable_outcome_t outcome = purgeable_region_read(region, 5, 1, &byte);
    _exit(outcome == purgeable_outcome_discarded && *((unsigned char *)purgeable_region_bytes(region) + 5) == 0 ? 0 : 12);
  }
  // Fork copies the mappings: where there is no memory for that, there is no child to find anything.
  if (child < 0) return 0;
  int status = wait_for_child(child);
  return status >= 0 && status < 1000 ? status : 13;
}

static void fork_at_the_limit(case_report_t *report) {
  if (HAS_SANITIZER) SKIP("the sanitizer needs mappings of its own");
  purgeable_probe_t probe;
  REQUIRE(purgeable_probe(&probe) == 0);
  if (!probe.wipe_on_fork) SKIP("no MADV_WIPEONFORK here");
  if (mapping_limit() == 0 || mapping_limit() > 99000) SKIP("vm.max_map_count is %lu", mapping_limit());
  // In the gate: none free, below it closed and writable memory, and a few free.
  for (int argument = 0; argument < 12; argument++) {
    if (!report->is_full && argument != 0 && argument != 1 && argument != 7) continue;
    int answer = in_child(at_the_limit, argument);
    if (answer != 0) NOTE("%d mappings free, lowest one %s", argument / 2, argument % 2 == 0 ? "closed" : "writable");
    EXPECT_EQUAL(answer, 0);
  }
}

// MARK: All memory locked

static int small_under_lock(int argument) {
  (void)argument;
  if (mlockall(MCL_FUTURE) != 0) return 77;
  size_t before = resident_bytes();
  purgeable_region_t *region;
  purgeable_heap_t *heap;
  purgeable_reference_t reference;
  void *bytes;
  if (purgeable_region_create(100, NULL, &region) != 0) return 1;
  memset(purgeable_region_bytes(region), 7, 100);
  if (resident_bytes() > before + MIB) return 2;
  if (purgeable_heap_create(NULL, &heap) != 0 || purgeable_heap_allocate(heap, 16, &reference, &bytes) != 0) return 3;
  memset(bytes, 8, 16);
  if (purgeable_heap_commit(heap, reference) != 0) return 4;
  if (resident_bytes() > before + MIB) return 5;
  // A region that nobody ever wrote to, made and destroyed, is not touched for that.
  purgeable_region_t *large;
  if (purgeable_region_create(8 * MIB, NULL, &large) != 0 || purgeable_region_destroy(large) != 0) return 6;
  if (purgeable_region_create(32 * MIB, NULL, &large) != 0 || purgeable_region_destroy(large) != 0) return 7;
  if (resident_bytes() > before + MIB) return 8;
  char read[16];
  if (purgeable_heap_read(heap, reference, read, 16, NULL) != purgeable_outcome_intact || read[15] != 8) return 9;
  return purgeable_heap_destroy(heap) == 0 && purgeable_region_destroy(region) == 0 ? 0 : 10;
}

static void small_where_all_is_locked(case_report_t *report) {
  if (HAS_SANITIZER) SKIP("under the sanitizer mlockall does nothing");
  struct rlimit limit;
  bool is_allowed = getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && (geteuid() == 0 || limit.rlim_cur > 512 * MIB);
  if (!is_allowed) SKIP("RLIMIT_MEMLOCK does not allow for a chunk");
  int answer = in_child(small_under_lock, 0);
  if (answer == 77) SKIP("this process may not lock its memory");
  EXPECT_EQUAL(answer, 0);
}

// With 8 MiB to lock and no rights: memory that fits works, more is ENOMEM, and a heap says so in chunks of its own size.
static int limited_under_lock(int argument) {
  (void)argument;
  struct rlimit limit = {.rlim_cur = 8 * MIB, .rlim_max = 8 * MIB};
  if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0 || (geteuid() == 0 && setuid(65534) != 0)) return 77;
  if (mlockall(MCL_FUTURE) != 0) return 77;
  purgeable_region_t *region, *large = NULL;
  if (purgeable_region_create(100, NULL, &region) != 0) return 1;
  memset(purgeable_region_bytes(region), 7, 100);
  if (purgeable_region_create(32 * MIB, NULL, &large) != ENOMEM || large != NULL) return 2;
  purgeable_heap_t *heap;
  purgeable_reference_t reference;
  void *bytes;
  if (purgeable_heap_create(NULL, &heap) != 0) return 3;
  if (purgeable_heap_allocate(heap, 16, &reference, &bytes) != ENOMEM) return 4;
  if (purgeable_heap_destroy(heap) != 0) return 5;
  purgeable_heap_options_t small = {.slab_bytes = 4 * PAGE, .chunk_bytes = 64 * PAGE};
  if (purgeable_heap_create(&small, &heap) != 0) return 6;
  if (purgeable_heap_allocate(heap, 16, &reference, &bytes) != 0) return 7;
  return purgeable_heap_commit(heap, reference) == 0 && purgeable_heap_destroy(heap) == 0 ? 0 : 8;
}

static void little_may_be_locked(case_report_t *report) {
  if (HAS_SANITIZER) SKIP("under the sanitizer mlockall does nothing");
  int answer = in_child(limited_under_lock, 0);
  if (answer == 77) SKIP("this process may not lock its memory");
  EXPECT_EQUAL(answer, 0);
}

// MARK: Cancellation

static _Atomic bool has_gone_through;

// With a cancellation pending, each call does its work: no call is a cancellation point.
static void *call_while_cancelled(void *unused) {
  (void)unused;
  (void)pthread_cancel(pthread_self());
  purgeable_heap_t *heap = NULL;
  purgeable_reference_t reference;
  void *bytes;
  purgeable_probe_t probe;
  purgeable_call_answers_t answers;
  purgeable_testing_forget_probe();
  bool is_right = purgeable_probe(&probe) == 0 && purgeable_probe_calls(&answers) == 0;
  is_right = purgeable_testing_memory_byte_limit("") != 0 && is_right;
  is_right = purgeable_heap_create(NULL, &heap) == 0 && is_right;
  is_right = purgeable_heap_allocate(heap, 100, &reference, &bytes) == 0 && is_right;
  is_right = purgeable_heap_commit(heap, reference) == 0 && purgeable_heap_destroy(heap) == 0 && is_right;
  atomic_store(&has_gone_through, is_right);
  pthread_testcancel();
  return &has_gone_through;
}

static void cancelled_calls(case_report_t *report) {
  pthread_t thread;
  void *answer = NULL;
  atomic_store(&has_gone_through, false);
  REQUIRE(pthread_create(&thread, NULL, call_while_cancelled, NULL) == 0);
  REQUIRE(pthread_join(thread, &answer) == 0);
  EXPECT(atomic_load(&has_gone_through));
  EXPECT(answer == PTHREAD_CANCELED);
}

// MARK: Control blocks

enum { HEAPS = 200, ROUNDS = 40 };

static bool works(purgeable_heap_t *heap, unsigned number) {
  purgeable_reference_t reference;
  void *bytes = NULL;
  if (purgeable_heap_allocate(heap, 100, &reference, &bytes) != 0) return false;
  fill_pattern(bytes, 100, number);
  if (purgeable_heap_commit(heap, reference) != 0) return false;
  unsigned char copy[100];
  size_t length = 0;
  return purgeable_heap_read(heap, reference, copy, sizeof copy, &length) == purgeable_outcome_intact &&
         check_pattern(copy, length, number);
}

// Heaps share mappings for their control blocks, which are made, used again, unmapped, and kept where the kernel refuses to
// unmap.
static void many_heaps(case_report_t *report) {
  purgeable_heap_t *heaps[HEAPS];
  for (int refuses = 0; refuses <= 1; refuses++) {
    uint64_t maps = purgeable_testing_call_count(purgeable_testing_call_mmap);
    for (size_t i = 0; i < HEAPS; i++) REQUIRE(purgeable_heap_create(NULL, &heaps[i]) == 0);
    EXPECT(purgeable_testing_call_count(purgeable_testing_call_mmap) - maps <= HEAPS / 64 + 1);
    for (size_t i = 0; i < HEAPS; i += 20) EXPECT(works(heaps[i], (unsigned)i));
    uint64_t unmaps = purgeable_testing_call_count(purgeable_testing_call_munmap);
    for (size_t i = 0; i < HEAPS; i += 20) EXPECT_EQUAL(purgeable_heap_destroy(heaps[i]), 0);
    if (refuses != 0) purgeable_testing_fail(purgeable_testing_call_munmap, 1, ENOMEM, true);
    for (size_t i = 0; i < HEAPS; i++) {
      if (i % 20 != 0) EXPECT_EQUAL(purgeable_heap_destroy(heaps[i]), 0);
    }
    EXPECT(refuses == 0 || purgeable_testing_has_failed());
    purgeable_testing_fail(0, 0, 0, false);
    EXPECT(purgeable_testing_call_count(purgeable_testing_call_munmap) - unmaps >= 2 + HEAPS / 20);
  }
}

static void *makes_heaps(void *context) {
  uint64_t state = *(uint64_t *)context;
  purgeable_heap_t *heaps[HEAPS] = {NULL};
  bool is_right = true;
  for (unsigned round = 0; round < ROUNDS; round++) {
    // From few to many and back, so that blocks are begun and ended beside the other threads.
    size_t count = next_random(&state) % HEAPS;
    for (size_t i = 0; i < count; i++) {
      is_right &= heaps[i] != NULL || purgeable_heap_create(NULL, &heaps[i]) == 0;
      if (i % 32 == 0) is_right &= works(heaps[i], round);
    }
    for (size_t i = count; i < HEAPS; i++) {
      is_right &= heaps[i] == NULL || purgeable_heap_destroy(heaps[i]) == 0;
      heaps[i] = NULL;
    }
  }
  for (size_t i = 0; i < HEAPS; i++) is_right &= heaps[i] == NULL || purgeable_heap_destroy(heaps[i]) == 0;
  *(uint64_t *)context = is_right;
  return NULL;
}

static void many_heaps_by_threads(case_report_t *report) {
  uint64_t states[4];
  for (size_t i = 0; i < 4; i++) states[i] = report->seed + i;
  run_threads(4, makes_heaps, states, sizeof states[0]);
  for (size_t i = 0; i < 4; i++) EXPECT(states[i] == true);
}

// MARK: Small bookkeeping

enum { SMALL_COUNT = 500 };
static unsigned char *small[SMALL_COUNT];

static size_t small_bytes(int i) { return i % 3 == 0 ? 1 : i % 3 == 1 ? PAGE : 2 * PAGE; }

static int small_in_child(int unused) {
  (void)unused;
  for (int i = 0; i < SMALL_COUNT; i++) {
    for (size_t at = 0; at < small_bytes(i); at++) {
      if (small[i][at] != 0) return 1;
    }
    small[i][0] = 1;
  }
  return 0;
}

static void small_bookkeeping(case_report_t *report) {
  uint64_t maps = purgeable_testing_call_count(purgeable_testing_call_mmap);
  for (int round = 0; round < 3; round++) {
    for (int i = 0; i < SMALL_COUNT; i++) {
      if (round > 0 && i % 2 == 0) continue;
      small[i] = purgeable_bookkeeping_map(small_bytes(i));
      REQUIRE(small[i] != NULL && ((uintptr_t)small[i] & (PAGE - 1)) == 0);
      for (size_t at = 0; at < small_bytes(i); at++) EXPECT(small[i][at] == 0);
      memset(small[i], i % 251 + 1, small_bytes(i));
    }
    // What was unmapped is used again.
    EXPECT(purgeable_testing_call_count(purgeable_testing_call_mmap) - maps <= SMALL_COUNT / 64 + 1);
    for (int i = 0; i < SMALL_COUNT; i++) {
      for (size_t at = 0; at < small_bytes(i); at++) EXPECT(small[i][at] == i % 251 + 1);
    }
    EXPECT_EQUAL(in_child(small_in_child, 0), 0);
    for (int i = 1; i < SMALL_COUNT; i += 2) EXPECT_EQUAL(purgeable_bookkeeping_unmap(small[i], small_bytes(i)), 0);
  }
  EXPECT_EQUAL(purgeable_bookkeeping_clear(small[2], small_bytes(2)), 0);
  EXPECT(small[2][0] == 0 && small[2][small_bytes(2) - 1] == 0 && small[4][0] == 5);
  for (int i = 0; i < SMALL_COUNT; i += 2) EXPECT_EQUAL(purgeable_bookkeeping_unmap(small[i], small_bytes(i)), 0);
}

static bool is_unmapped(void *page) {
  unsigned char seen;
  return mincore(page, PAGE, &seen) != 0 && errno == ENOMEM;
}

// From eight pages on to any number of them, whatever the length of the end that goes.
static void bookkeeping_ends(case_report_t *report) {
  for (size_t kept = 1; kept < 8; kept++) {
    char *pair = purgeable_bookkeeping_map(2 * PAGE);
    char *table = purgeable_bookkeeping_map(8 * PAGE);
    REQUIRE(pair != NULL && table != NULL);
    memset(pair, 1, 2 * PAGE);
    memset(table, 2, 8 * PAGE);
    EXPECT_EQUAL(purgeable_bookkeeping_unmap(table + kept * PAGE, (8 - kept) * PAGE), 0);
    EXPECT(is_unmapped(table + kept * PAGE));
    for (size_t at = 0; at < kept * PAGE; at++) EXPECT(table[at] == 2);
    // The end of a pair reads as zeros, and nobody else gets it.
    EXPECT_EQUAL(purgeable_bookkeeping_unmap(pair + PAGE, PAGE), 0);
    char *other = purgeable_bookkeeping_map(PAGE);
    REQUIRE(other != NULL && other != pair && pair[PAGE] == 0 && pair[PAGE - 1] == 1);
    EXPECT_EQUAL(purgeable_bookkeeping_unmap(other, PAGE), 0);
    EXPECT_EQUAL(purgeable_bookkeeping_unmap(pair, PAGE), 0);
    EXPECT_EQUAL(purgeable_bookkeeping_unmap(table, kept * PAGE), 0);
    EXPECT(is_unmapped(table));
  }
  // What names no mapping changes none.
  char *pair = purgeable_bookkeeping_map(2 * PAGE);
  REQUIRE(pair != NULL);
  pair[0] = 5;
  EXPECT_EQUAL(purgeable_bookkeeping_unmap(pair, 0), EINVAL);
  EXPECT_EQUAL(pair[0], 5);
  EXPECT_EQUAL(purgeable_bookkeeping_unmap(pair, 2 * PAGE), 0);
}

const test_case_t map_cases[] = {
    CASE("map: advice refused for want of mappings is a failed mapping", refused_advice),
    CASE("map: what can be neither used nor unmapped holds nothing", refused_advice_and_unmap),
    CASE("map: a child finds nothing at the limit of mappings", fork_at_the_limit),
    CASE("map: small things stay small where all memory is locked", small_where_all_is_locked),
    CASE("map: where little may be locked, what does not fit is refused", little_may_be_locked),
    CASE("map: many heaps share mappings of control blocks", many_heaps),
    CASE("map: many heaps, begun and ended by four threads", many_heaps_by_threads),
    CASE("map: small bookkeeping shares mappings, and reads as zeros each time and in a child", small_bookkeeping),
    CASE("map: bookkeeping ends page by page, to any length", bookkeeping_ends),
    CASE("cancellation: no call of the probe, the limits or a heap's beginning ends the thread", cancelled_calls),
    END_OF_CASES,
};
