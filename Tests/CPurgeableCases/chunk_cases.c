// SPDX-License-Identifier: MIT
// The heap's address space and directories: no cap, given back, used again; a refused munmap; and how large heaps are.

#include "heap_cases.h"

#include <sys/resource.h>

static size_t statm(int field) {
  FILE *file = fopen("/proc/self/statm", "re");
  unsigned long total = 0, resident = 0;
  if (file == NULL) return 0;
  if (fscanf(file, "%lu %lu", &total, &resident) != 2) total = resident = 0;
  (void)fclose(file);
  return (field == 0 ? total : resident) * PAGE;
}

#define MIB ((size_t)1 << 20)

// MARK: Chunks

// Chunks of four slabs of a page each: beyond 4,096 of them.
static void many_small_chunks(case_report_t *report) {
  MAKE_HEAP(heap, .slab_bytes = PAGE, .chunk_bytes = 4 * PAGE);
  const size_t wanted = (size_t)4096 * 4 * PAGE + 64 * PAGE;
  element_t first, element;
  REQUIRE(make(heap, 1500, 0, &first) == 0);
  uint64_t count = 1;
  purgeable_reference_t reference = {0, 0};
  while (purgeable_heap_held_bytes(heap) < wanted) {
    void *bytes;
    REQUIRE(purgeable_heap_allocate(heap, 1500, &reference, &bytes) == 0);
    memset(bytes, 3, 1500);
    EXPECT_EQUAL(purgeable_heap_commit(heap, reference), 0);
    count++;
  }
  REQUIRE(make(heap, 1500, 9, &element) == 0);
  EXPECT(is_intact(heap, &first) && is_intact(heap, &element) && locks_intact(heap, &element));
  EXPECT_EQUAL(heap_statistics(heap).element_count, count + 1);
  // No element has a place beyond the last chunk, or near the end of all numbers.
  const uint64_t places[] = {UINT64_MAX, UINT64_MAX >> 4, (uint64_t)1 << 60, (uint64_t)1 << 40};
  for (size_t i = 0; i < 4; i++) EXPECT(is_stale(heap, (purgeable_reference_t){places[i], element.reference.generation}));
  END_HEAP(heap);
}

// Places that the owner cannot keep are not handed out.
static void places_that_fit(case_report_t *report) {
  MAKE_HEAP(heap, .slab_bytes = PAGE, .chunk_bytes = 4 * PAGE, .place_bits = 14);
  purgeable_reference_t reference = {0, 0};
  void *bytes;
  int error;
  uint64_t most = 0;
  while ((error = purgeable_heap_allocate(heap, 1500, &reference, &bytes)) == 0) {
    EXPECT_EQUAL(purgeable_heap_commit(heap, reference), 0);
    if (reference.place > most) most = reference.place;
  }
  EXPECT_EQUAL(error, ENOMEM);
  EXPECT(most + 1 < (uint64_t)1 << 14 && most > (uint64_t)1 << 13);
  END_HEAP(heap);
}

// Large elements come and go beside others that stay, for longer than 4,096 chunks would last; then each larger than the one
// before.
static void large_come_and_go(case_report_t *report) {
  const size_t chunk = 64 * PAGE;
  MAKE_HEAP(heap, .slab_bytes = 4 * PAGE, .chunk_bytes = chunk);
  size_t before = statm(0), most = 0;
  enum { ROUNDS = 2100 };
  static purgeable_reference_t staying[ROUNDS];
  void *bytes;
  for (size_t i = 0; i < ROUNDS; i++) {
    purgeable_reference_t passing;
    REQUIRE(purgeable_heap_allocate(heap, chunk + PAGE, &passing, &bytes) == 0);
    ((char *)bytes)[chunk] = 1;
    EXPECT_EQUAL(purgeable_heap_commit(heap, passing), 0);
    REQUIRE(purgeable_heap_allocate(heap, chunk * 5 / 8, &staying[i], &bytes) == 0);
    EXPECT_EQUAL(purgeable_heap_commit(heap, staying[i]), 0);
    EXPECT_EQUAL(purgeable_heap_free(heap, passing), 0);
    EXPECT(i % 100 != 0 || is_stale(heap, passing));
  }
  purgeable_heap_statistics_t now = heap_statistics(heap);
  EXPECT_EQUAL(now.element_count, ROUNDS);
  EXPECT(now.mapped_bytes <= (ROUNDS + 2) * chunk);
  for (size_t i = 0; i < ROUNDS; i++) EXPECT_EQUAL(purgeable_heap_free(heap, staying[i]), 0);
  EXPECT_EQUAL(purgeable_heap_trim(heap, NULL), 0);
  uint64_t mapped = heap_statistics(heap).mapped_bytes;
  for (size_t units = 65; units < 65 * 60; units += 64) {
    purgeable_reference_t reference;
    REQUIRE(purgeable_heap_allocate(heap, units * PAGE, &reference, &bytes) == 0);
    ((char *)bytes)[units * PAGE - 1] = 1;
    EXPECT_EQUAL(purgeable_heap_commit(heap, reference), 0);
    size_t space = statm(0);
    if (space > most) most = space;
    EXPECT(purgeable_heap_check(heap, reference) == purgeable_outcome_intact);
    EXPECT_EQUAL(purgeable_heap_free(heap, reference), 0);
  }
  EXPECT_EQUAL(heap_statistics(heap).mapped_bytes, mapped);
  NOTE("%zu MiB of address space at most", (most - before) / MIB);
  END_HEAP(heap);
}

// The numbers of a large element that was freed become a chunk of slabs, below chunks that are full: that room is found.
static void numbers_of_large_used_for_slabs(case_report_t *report) {
  MAKE_HEAP(heap, .slab_bytes = 4 * PAGE, .chunk_bytes = 16 * PAGE);
  enum { PER_CHUNK = 4, COUNT = 4 * PER_CHUNK };
  element_t elements[COUNT], alone;
  size_t made = 0;
  for (; made < PER_CHUNK; made++) REQUIRE(make(heap, 3 * PAGE, made, &elements[made]) == 0);
  REQUIRE(make(heap, 30 * PAGE, 77, &alone) == 0);
  REQUIRE(make(heap, 3 * PAGE, made, &elements[made]) == 0);
  uint64_t beyond = elements[made++].reference.place;
  EXPECT(beyond > alone.reference.place);
  EXPECT_EQUAL(purgeable_heap_free(heap, alone.reference), 0);
  for (; made < COUNT; made++) {
    EXPECT_EQUAL(make(heap, 3 * PAGE, made, &elements[made]), 0);
    EXPECT_VALID(heap);
  }
  EXPECT_EQUAL(elements[2 * PER_CHUNK].reference.place, alone.reference.place);
  for (size_t i = 0; i < COUNT; i++) EXPECT(is_intact(heap, &elements[i]));
  END_HEAP(heap);
}

// After everything was freed and trimmed, almost nothing is left of the directories, and no old reference finds a new element.
static void directories_go_back(case_report_t *report) {
  MAKE_HEAP(heap, .slab_bytes = PAGE, .chunk_bytes = 4 * MIB);
  enum { COUNT = 60000, KEPT = 500 };
  purgeable_reference_t *old = calloc(COUNT, sizeof *old);
  REQUIRE(old != NULL);
  uint64_t empty = purgeable_heap_ordinary_bytes(heap), full = 0;
  size_t resident = statm(1);
  void *bytes;
  for (int round = 0; round < 4; round++) {
    for (size_t i = 0; i < COUNT; i++) {
      purgeable_reference_t reference;
      REQUIRE(purgeable_heap_allocate(heap, 1000, &reference, &bytes) == 0);
      memset(bytes, 1, 1000);
      EXPECT_EQUAL(purgeable_heap_commit(heap, reference), 0);
      if (round != 0 && i % 100 == 0) EXPECT(is_stale(heap, old[i]));
      old[i] = reference;
    }
    full = purgeable_heap_ordinary_bytes(heap);
    for (size_t i = 0; i < COUNT; i++) EXPECT_EQUAL(purgeable_heap_free(heap, old[i]), 0);
    EXPECT_EQUAL(purgeable_stream_seal(heap, 0), 0);
    if (round % 2 == 0) {
      EXPECT_EQUAL(purgeable_heap_trim(heap, NULL), 0);
    } else {
      // Without a trim, upkeep gives the directories back, when they have been empty for two rounds.
      int calls = 0;
      for (; purgeable_heap_has_pending(heap) && calls < 8; calls++) EXPECT_EQUAL(purgeable_heap_offer_idle(heap, NULL), 0);
      EXPECT(calls < 8);
      EXPECT(calls >= 1);
    }
    EXPECT(purgeable_heap_ordinary_bytes(heap) - empty < (full - empty) / 20);
    EXPECT_EQUAL(heap_statistics(heap).memory.resident_bytes, 0);
    for (size_t i = 0; i < COUNT; i += 50) EXPECT(is_stale(heap, old[i]));
  }
  size_t left = statm(1) > resident ? statm(1) - resident : 0;
  EXPECT(left < (full - empty) / 2 + 2 * MIB || HAS_SANITIZER);
  NOTE("%llu KiB of directories at most, %llu left", (unsigned long long)(full - empty) >> 10,
       (unsigned long long)(purgeable_heap_ordinary_bytes(heap) - empty) >> 10);
  free(old);
  END_HEAP(heap);
}

// Reads without lock of elements in mappings of their own, while these are freed and others are mapped at their numbers.
typedef struct reader {
  purgeable_heap_t *heap;
  _Atomic uint64_t *slots;  // place + 1
  _Atomic uint64_t *generations;
  _Atomic bool *done;
  uint64_t intact, wrong;
} reader_t;

static void *read_on(void *context) {
  reader_t *reader = context;
  static _Thread_local char buffer[4096];
  while (!atomic_load(reader->done)) {
    for (size_t i = 0; i < 4; i++) {
      uint64_t place = atomic_load(&reader->slots[i]), generation = atomic_load(&reader->generations[i]);
      if (place == 0) continue;
      purgeable_reference_t reference = {place - 1, generation};
      purgeable_outcome_t outcome = purgeable_heap_read_part(reader->heap, reference, 70 * PAGE, sizeof buffer, buffer);
      if (outcome != purgeable_outcome_intact) continue;
      reader->intact++;
      for (size_t k = 1; k < sizeof buffer; k++) reader->wrong += buffer[k] != buffer[0];
    }
  }
  return NULL;
}

static void reads_while_mappings_end(case_report_t *report) {
  MAKE_HEAP(heap, .slab_bytes = 4 * PAGE, .chunk_bytes = 64 * PAGE);
  static _Atomic uint64_t slots[4], generations[4];
  static _Atomic bool done;
  atomic_store(&done, false);
  reader_t readers[2] = {{heap, slots, generations, &done, 0, 0}, {heap, slots, generations, &done, 0, 0}};
  pthread_t threads[2];
  for (size_t i = 0; i < 2; i++) REQUIRE(pthread_create(&threads[i], NULL, read_on, &readers[i]) == 0);
  purgeable_reference_t old[4] = {{0, 0}};
  uint64_t rounds = report->is_full ? 1500 : 300;
  for (uint64_t round = 1; round < rounds; round++) {
    size_t slot = round % 4;
    purgeable_reference_t reference;
    void *bytes;
    // Some elements of an ordinary size take the numbers that were free.
    size_t length = (round % 7 == 0 ? 20 : 71 + round % 3 * 64) * PAGE;
    REQUIRE(purgeable_heap_allocate(heap, length, &reference, &bytes) == 0);
    if (length > 70 * PAGE) memset((char *)bytes + 70 * PAGE, (int)(1 + round % 255), PAGE);
    EXPECT_EQUAL(purgeable_heap_commit(heap, reference), 0);
    atomic_store(&slots[slot], 0);
    atomic_store(&generations[slot], reference.generation);
    atomic_store(&slots[slot], reference.place + 1);
    if (old[slot].generation != 0) EXPECT_EQUAL(purgeable_heap_free(heap, old[slot]), 0);
    old[slot] = reference;
    if (round % 64 == 0) EXPECT_EQUAL(purgeable_heap_trim(heap, NULL), 0);
  }
  atomic_store(&done, true);
  for (size_t i = 0; i < 2; i++) (void)pthread_join(threads[i], NULL);
  EXPECT_EQUAL(readers[0].wrong + readers[1].wrong, 0);
  NOTE("%llu reads", (unsigned long long)(readers[0].intact + readers[1].intact));
  END_HEAP(heap);
}

// MARK: A refused munmap

static void refused_unmap(case_report_t *report) {
  MAKE_HEAP(heap, .slab_bytes = 16 * PAGE);
  element_t element;
  for (uint64_t i = 0; i < 20; i++) REQUIRE(make(heap, MIB, i, &element) == 0);
  size_t before = statm(1);
  purgeable_testing_fail(purgeable_testing_call_munmap, 1, ENOMEM, true);
  EXPECT_EQUAL(purgeable_heap_destroy(heap), ENOMEM);
  purgeable_testing_fail(0, 0, 0, false);
  EXPECT(statm(1) + 18 * MIB < before);
}

// A real refusal: mappings of neighbouring heaps are one mapping to the kernel, and at the limit of mappings its middle cannot be
// unmapped.
static int destroy_in_the_middle(void) {
  enum { HEAPS = 9, EACH_MIB = 12 };
  (void)alarm(CHILD_SECONDS);
  purgeable_heap_t *heaps[HEAPS];
  element_t element;
  for (size_t i = 0; i < HEAPS; i++) {
    if (purgeable_heap_create(NULL, &heaps[i]) != 0) return 1;
    for (uint64_t k = 0; k < EACH_MIB; k++) {
      if (make(heaps[i], MIB - 100, k, &element) != 0) return 2;
    }
  }
  static void *taken[100000];
  size_t count = 0;
  for (; count < 100000; count++) {
    taken[count] = mmap(NULL, PAGE, count % 2 == 0 ? PROT_READ : PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (taken[count] == MAP_FAILED) break;
  }
  if (count == 100000) return 77;
  size_t before = statm(1);
  int error = purgeable_heap_destroy(heaps[HEAPS / 2]);
  size_t after = statm(1);
  if (error != 0 && error != ENOMEM) return 3;
  return after + (EACH_MIB - 2) * MIB < before ? 0 : 4;
}

static void destroy_at_the_limit(case_report_t *report) {
  if (HAS_SANITIZER) SKIP("the sanitizer needs mappings of its own");
  pid_t child = fork();
  if (child == 0) _exit(destroy_in_the_middle());
  int status = wait_for_child(child);
  if (status == 77) SKIP("the limit of mappings is too high");
  EXPECT_EQUAL(status, 0);
}

// MARK: Sizes

static void default_slabs_with_tags(case_report_t *report) {
  for (size_t page = 4096; page <= 65536; page *= 4) {
    for (size_t limit = 0; limit <= (size_t)1 << 32; limit = limit == 0 ? MIB : limit * 16) {
      size_t with = purgeable_testing_default_slab_bytes(page, limit, true);
      size_t without = purgeable_testing_default_slab_bytes(page, limit, false);
      EXPECT(with <= MIB && with >= page && (with == without || without > MIB));
    }
  }
  MAKE_HEAP(heap, .keeps_tags = true, .byte_limit = (size_t)1 << 30);
  END_HEAP(heap);
}

// Payloads at multiples of 16, of any length, with tables of witnesses, in runs and in mappings of their own; each page's loss is
// found; and what it costs is 8 bytes a page.
static void aligned_payloads(case_report_t *report) {
  NEED_EXACT_DISCARDS();
  uint64_t held[2] = {0, 0};
  for (size_t aligned = 0; aligned < 2; aligned++) {
    MAKE_HEAP(heap, .slab_bytes = 16 * PAGE, .payload_alignment_bytes = aligned == 1 ? 16 : 8);
    purgeable_reference_t reference;
    void *bytes;
    size_t wrong = 0;
    for (size_t i = 0; i < 20 * PAGE; i++) {
      REQUIRE(purgeable_heap_allocate(heap, 100, &reference, &bytes) == 0);
      wrong += ((uintptr_t)bytes & 15) != (aligned == 1 ? 0 : 8);
      EXPECT_EQUAL(purgeable_heap_commit(heap, reference), 0);
    }
    EXPECT_EQUAL(wrong, 0);
    EXPECT_EQUAL(purgeable_stream_seal(heap, 0), 0);
    held[aligned] = purgeable_heap_held_bytes(heap);
    END_HEAP(heap);
  }
  // 36 of 112 bytes to a page of 4 KiB, either way.
  EXPECT(held[1] <= held[0] + held[0] / 256);
  NOTE("100 bytes: %llu held, %llu aligned", (unsigned long long)held[0], (unsigned long long)held[1]);

  MAKE_HEAP(heap, .slab_bytes = 4 * PAGE, .chunk_bytes = 64 * PAGE, .payload_alignment_bytes = 16);
  enum { COUNT = 3000 };
  static element_t elements[COUNT];
  size_t wrong = 0;
  for (size_t i = 0; i < COUNT; i++) {
    size_t length = i % 500 == 499 ? (70 + i / 500) * PAGE + i : i % 20 == 19 ? 3 * PAGE + i : 1 + i * 13 % (2 * PAGE - 20);
    REQUIRE(make(heap, length, i, &elements[i]) == 0);
    wrong += ((uintptr_t)elements[i].bytes & 15) != 0;
  }
  EXPECT_EQUAL(wrong, 0);
  EXPECT_EQUAL(purgeable_stream_seal(heap, 0), 0);
  EXPECT_EQUAL(offer_all(heap), 0);
  for (size_t i = 0; i < COUNT; i++) EXPECT(is_intact(heap, &elements[i]));
  // Every third page is discarded. An element is intact exactly if all of its pages are there.
  for (size_t i = 0; i < COUNT; i += 7) discard_exactly(elements[i].bytes + elements[i].length - 1, 1);
  for (size_t i = 0; i < COUNT; i++) {
    const char *first = elements[i].bytes - PURGEABLE_HEADER_BYTES, *last = elements[i].bytes + elements[i].length - 1;
    bool is_gone = false;
    for (size_t k = 0; k < COUNT && !is_gone; k += 7) {
      size_t page = page_in_heap(elements[k].bytes + elements[k].length - 1);
      is_gone = page >= page_in_heap(first) && page <= page_in_heap(last);
    }
    bool right = is_gone ? is_discarded(heap, &elements[i]) : is_intact(heap, &elements[i]) && locks_intact(heap, &elements[i]);
    EXPECT(right);
    if (!right) NOTE("%zu: length %zu at %zu, gone %d", i, elements[i].length, (uintptr_t)first % PAGE, is_gone);
  }
  for (size_t i = 0; i < COUNT; i++) EXPECT_EQUAL(purgeable_heap_free(heap, elements[i].reference), 0);
  EXPECT_EQUAL(purgeable_heap_trim(heap, NULL), 0);
  purgeable_heap_statistics_t end = heap_statistics(heap);
  EXPECT_EQUAL(end.memory.held_bytes + end.memory.resident_bytes + end.slab_count, 0);
  END_HEAP(heap);
  purgeable_heap_t *none = NULL;
  EXPECT_EQUAL(purgeable_heap_create(&(purgeable_heap_options_t){.payload_alignment_bytes = 32}, &none), EINVAL);
  // Of one chunk of this size the last place does not fit into these bits, as place + 1.
  uint32_t bits = (uint32_t)__builtin_ctzl(4 * PAGE / 16);
  purgeable_heap_options_t few = {.slab_bytes = PAGE, .chunk_bytes = 4 * PAGE, .place_bits = bits};
  EXPECT_EQUAL(purgeable_heap_create(&few, &none), EINVAL);
}

// An empty heap, and one with a single element, are small; many of them do not need many mappings.
static void small_heaps(case_report_t *report) {
  if (HAS_SANITIZER) SKIP("the sanitizer's own memory is in the figures");
  enum { HEAPS = 500 };
  static purgeable_heap_t *heaps[HEAPS];
  element_t element;
  size_t before = statm(1);
  for (size_t i = 0; i < HEAPS; i++) REQUIRE(purgeable_heap_create(NULL, &heaps[i]) == 0);
  size_t empty = (statm(1) - before) / HEAPS;
  for (size_t i = 0; i < HEAPS; i++) REQUIRE(make(heaps[i], 100, i, &element) == 0);
  size_t one = (statm(1) - before) / HEAPS;
  EXPECT(empty <= 2 * PAGE);
  EXPECT(one <= 5 * PAGE);
  NOTE("%zu bytes resident an empty heap, %zu one with an element", empty, one);
  for (size_t i = 0; i < HEAPS; i++) END_HEAP(heaps[i]);
}

const test_case_t chunk_cases[] = {
    CASE("chunk: more than 4096 small chunks", many_small_chunks),
    CASE("chunk: places fit the bits that the owner keeps", places_that_fit),
    CASE("chunk: large elements come and go beside others that stay", large_come_and_go),
    CASE("chunk: numbers of a large element that ended are used for slabs", numbers_of_large_used_for_slabs),
    CASE("chunk: directories of what was freed go back", directories_go_back),
    CASE("chunk: reads while mappings end and their numbers are used again", reads_while_mappings_end),
    CASE("chunk: a heap that cannot be unmapped is wiped, and says so", refused_unmap),
    CASE("chunk: a heap between others at the limit of mappings", destroy_at_the_limit),
    CASE("chunk: reads in a signal handler of a forked child", signals_in_children),
    CASE("chunk: counters never fall below zero", counters_stay_above_zero),
    CASE("chunk: a lock that is refused is in nobody's way", two_lockers),
    CASE("chunk: losses at the edges of their numbers", finding_losses_at_the_edges),
    CASE("chunk: an owner's mutex around allocations and in the callback", owners_mutex),
    CASE("chunk: compactions of two heaps, whose callbacks each allocate in the other one", compactions_of_two_heaps),
    CASE("chunk: default slabs fit tags, whatever the page size", default_slabs_with_tags),
    CASE("chunk: payloads can be 16-aligned", aligned_payloads),
    CASE("chunk: a small heap is small", small_heaps),
    END_OF_CASES,
};
