// SPDX-License-Identifier: MIT
// The heap's books beside the kernel's: /proc/self/smaps for this process's mappings, and the counters of a memory group.
//
//     heap                       smaps        group, version 1 (2)
//     resident_bytes   equals    Rss          ---
//     offered_bytes    about     LazyFree     inactive_file, but for what was locked again: that stays there
//     held less gone   about     ---          usage, less page tables and other kernel memory
//
// About: each processor keeps up to 31 pages back in a batch of its own, on their way from one list to another, and a page in a
// batch is not on offer yet although madvise took it. So LazyFree may be lower by 31 pages for each processor, and never higher.
// A group's counters are kept by processor too, and added up when 64 pages have come together.

#include "heap_cases.h"
#include "memory_group.h"


enum { CHUNK_BYTES = 64 << 20, SMALL_COUNT = 3000, WHOLE_COUNT = 100, RUN_COUNT = 12 };
enum { ALL_COUNT = SMALL_COUNT + WHOLE_COUNT + RUN_COUNT };

static long batches(long pages_each) { return pages_each * (long)PAGE * sysconf(_SC_NPROCESSORS_CONF); }

// Sums a field of /proc/self/smaps over the mappings that lie in [start, start + length) or around it. -1: cannot be read.
static long from_smaps(const char *field, uintptr_t start, size_t length) {
  FILE *file = fopen("/proc/self/smaps", "re");
  if (file == NULL) return -1;
  char line[512], *end;
  bool inside = false;
  long sum = 0;
  size_t name = strlen(field);
  while (fgets(line, sizeof line, file) != NULL) {
    unsigned long from = strtoul(line, &end, 16);
    if (end != line && *end == '-') {
      inside = from < start + length && strtoul(end + 1, NULL, 16) > start;
    } else if (inside && strncmp(line, field, name) == 0 && line[name] == ':') {
      sum += strtol(line + name + 1, NULL, 10) * 1024;
    }
  }
  (void)fclose(file);
  return sum;
}

// MARK: smaps

typedef struct books {
  purgeable_heap_t *heap;
  element_t *elements;
  uintptr_t base;  // of the heap's only chunk
  // Kernels that keep no names for mappings merge the chunk with neighbours of the same kind, such as the heap's control page.
  long foreign;
  // Large elements that were lost and looked at: of each, mincore calls one page resident, which is the kernel's page of zeros.
  long seen_lost;
} books_t;

// Lengths of small elements that share slabs, of some that fill a slab each, and of some that take several.
static size_t length_of(size_t i) {
  if (i < SMALL_COUNT) return 100 + i * 37 % 4000;
  return i < SMALL_COUNT + WHOLE_COUNT ? 15 * PAGE + i : 40 * PAGE + 100 * i;
}

static void compare(case_report_t *report, const books_t *books, const char *step) {
  purgeable_heap_statistics_t now = heap_statistics(books->heap);
  long rss = from_smaps("Rss", books->base, CHUNK_BYTES) - books->foreign;
  long lazy = from_smaps("LazyFree", books->base, CHUNK_BYTES);
  long zeros = books->seen_lost * (long)PAGE;
  bool right = rss <= (long)now.memory.resident_bytes && rss >= (long)now.memory.resident_bytes - zeros;
  right = right && lazy <= (long)now.memory.offered_bytes && lazy >= (long)now.memory.offered_bytes - batches(31) - zeros;
  EXPECT(right && now.memory.offered_bytes + now.memory.discarded_bytes <= now.memory.held_bytes);
  NOTE("%s: held %llu KiB, resident %llu and Rss %ld, on offer %llu and LazyFree %ld, gone %llu", step,
       (unsigned long long)now.memory.held_bytes >> 10, (unsigned long long)now.memory.resident_bytes >> 10, rss >> 10,
       (unsigned long long)now.memory.offered_bytes >> 10, lazy >> 10, (unsigned long long)now.memory.discarded_bytes >> 10);
}

static void every_state(case_report_t *report) {
  NEED_EXACT_DISCARDS();
  MAKE_HEAP(heap, .chunk_bytes = CHUNK_BYTES, .slab_bytes = 16 * PAGE);
  static element_t elements[ALL_COUNT];
  books_t books = {.heap = heap, .elements = elements};
  for (size_t i = 0; i < ALL_COUNT; i++) {
    REQUIRE(make(heap, length_of(i), i, &elements[i]) == 0);
    if (i != 0) continue;
    // The first element begins the chunk.
    books.base = ((uintptr_t)elements[0].bytes - PURGEABLE_HEADER_BYTES) / PAGE * PAGE;
    long rss = from_smaps("Rss", books.base, CHUNK_BYTES);
    if (rss < 0) {
      END_HEAP(heap);
      SKIP("no /proc/self/smaps");
    }
    books.foreign = rss - (long)heap_statistics(heap).memory.resident_bytes;
    EXPECT(books.foreign >= 0 && books.foreign <= 64 * (long)PAGE);
  }
  EXPECT_EQUAL(heap_statistics(heap).mapped_bytes, CHUNK_BYTES);
  compare(report, &books, "filled");
  EXPECT_EQUAL(purgeable_stream_seal(heap, 0), 0);
  EXPECT_EQUAL(offer_all(heap), 0);
  compare(report, &books, "on offer");
  for (size_t i = 0; i < ALL_COUNT; i++) EXPECT(is_intact(heap, &elements[i]));
  compare(report, &books, "read without lock");
  for (size_t i = 0; i < ALL_COUNT; i += 2) {
    EXPECT_EQUAL(purgeable_heap_lock(heap, elements[i].reference, NULL, NULL), purgeable_outcome_intact);
  }
  compare(report, &books, "every other one locked");
  for (size_t i = 0; i < ALL_COUNT; i += 2) EXPECT_EQUAL(purgeable_heap_unlock(heap, elements[i].reference), 0);
  compare(report, &books, "unlocked");
  EXPECT_EQUAL(offer_all(heap), 0);
  compare(report, &books, "on offer again");

  // The kernel takes the young half, which has some of every kind.
  for (size_t i = SMALL_COUNT / 2; i < ALL_COUNT; i++) {
    if (i < SMALL_COUNT || i % 2 == 0) (void)kernel_discard(elements[i].bytes, elements[i].length);
  }
  size_t lost = 0, again = 1;
  EXPECT_EQUAL(purgeable_heap_sweep(heap, &lost), 0);
  EXPECT_EQUAL(purgeable_heap_sweep(heap, &again), 0);
  EXPECT_EQUAL(again, 0);
  books.seen_lost = RUN_COUNT / 2;
  compare(report, &books, "half taken");
  purgeable_heap_statistics_t now = heap_statistics(heap);
  EXPECT(now.memory.discarded_bytes <= lost && now.memory.discarded_bytes + (uint64_t)books.seen_lost * PAGE >= lost);
  EXPECT_EQUAL(now.memory.held_bytes, now.memory.resident_bytes + now.memory.discarded_bytes);
  EXPECT(now.memory.discarded_bytes > now.memory.held_bytes / 3);

  // One page is lost of a large element in one slab, and of one in several: each element is lost as a whole, but all of its other
  // pages stay in memory.
  const size_t two[] = {SMALL_COUNT + 1, SMALL_COUNT + WHOLE_COUNT + 1};
  for (size_t i = 0; i < 2; i++) {
    uint64_t before = heap_statistics(heap).memory.discarded_bytes;
    discard_exactly((char *)((uintptr_t)elements[two[i]].bytes / PAGE * PAGE) + 5 * PAGE, 1);
    EXPECT(is_discarded(heap, &elements[two[i]]));
    books.seen_lost += (long)i;
    EXPECT_EQUAL(heap_statistics(heap).memory.discarded_bytes, before + (i == 0 ? PAGE : 0));
    compare(report, &books, "one page of a large one lost");
  }
  for (size_t i = 0; i < ALL_COUNT; i += 3) EXPECT_EQUAL(purgeable_heap_free(heap, elements[i].reference), 0);
  compare(report, &books, "every third freed");
  for (size_t i = 0; i < ALL_COUNT; i++) {
    if (i % 3 != 0) EXPECT_EQUAL(purgeable_heap_free(heap, elements[i].reference), 0);
  }
  compare(report, &books, "all freed");
  EXPECT_EQUAL(heap_statistics(heap).memory.resident_bytes, 0);
  END_HEAP(heap);
}

// MARK: The memory group

enum { GROUP_STEPS = 6, GROUP_BYTES = 48 << 20 };
static const char *const group_steps[GROUP_STEPS] = {"empty", "filled", "on offer", "locked again", "half taken", "given back"};

// The figures that a child in the group saw after each step.
typedef struct view {
  long long offered, resident, locked, usage, inactive_file, anonymous;
} view_t;

static view_t look(purgeable_heap_t *heap, const memory_group_t *group) {
  purgeable_heap_statistics_t now = heap_statistics(heap);
  return (view_t){
      .offered = (long long)now.memory.offered_bytes,
      .resident = (long long)now.memory.resident_bytes,
      .locked = (long long)now.memory.locked_bytes,
      .usage = memory_group_usage_bytes(group),
      .inactive_file = memory_group_stat(group, group->is_first ? "total_inactive_file" : "inactive_file"),
      .anonymous = memory_group_stat(group, group->is_first ? "total_rss" : "anon"),
  };
}

static int in_group(const memory_group_t *group, int tell) {
  (void)alarm(CHILD_SECONDS);
  if (!memory_group_join(group)) return 2;
  view_t views[GROUP_STEPS];
  purgeable_heap_t *heap = NULL;
  enum { COUNT = GROUP_BYTES / 3000 };
  static element_t elements[COUNT];
  memset(elements, 0, sizeof elements);
  if (purgeable_heap_create(NULL, &heap) != 0) return 3;
  views[0] = look(heap, group);
  for (size_t i = 0; i < COUNT; i++) {
    if (make(heap, 3000, i, &elements[i]) != 0) return 4;
  }
  views[1] = look(heap, group);
  if (purgeable_stream_seal(heap, 0) != 0 || offer_all(heap) != 0) return 5;
  views[2] = look(heap, group);
  for (size_t i = 0; i < COUNT; i++) {
    if (purgeable_heap_lock(heap, elements[i].reference, NULL, NULL) != purgeable_outcome_intact) return 6;
  }
  views[3] = look(heap, group);
  for (size_t i = 0; i < COUNT; i++) {
    if (purgeable_heap_unlock(heap, elements[i].reference) != 0) return 7;
  }
  if (offer_all(heap) != 0 || purgeable_heap_page_out(heap, GROUP_BYTES / 2, NULL, NULL) != 0) return 8;
  if (purgeable_heap_sweep(heap, NULL) != 0) return 9;
  views[4] = look(heap, group);
  for (size_t i = 0; i < COUNT; i++) {
    if (purgeable_heap_free(heap, elements[i].reference) != 0) return 10;
  }
  views[5] = look(heap, group);
  return write(tell, views, sizeof views) == (ssize_t)sizeof views ? 0 : 11;
}

static void the_groups_counters(case_report_t *report) {
  NEED_EXACT_DISCARDS();
  if (HAS_SANITIZER) SKIP("the sanitizer's own memory is in the group's counters");
  memory_group_t group;
  const char *reason = NULL;
  if (!memory_group_make(&group, 0, &reason)) SKIP("%s", reason);
  int tells[2] = {-1, -1};
  view_t views[GROUP_STEPS];
  memset(views, 0, sizeof views);
  pid_t child = pipe(tells) == 0 ? fork() : -1;
  if (child == 0) _exit(in_group(&group, tells[1]));
  (void)close(tells[1]);
  bool told = child > 0 && read(tells[0], views, sizeof views) == (ssize_t)sizeof views;
  int status = wait_for_child(child);
  (void)close(tells[0]);
  EXPECT_EQUAL(memory_group_remove(&group), 0);
  EXPECT_EQUAL(status, 0);
  REQUIRE(told);
  const long lists = batches(31), counters = batches(64);
  for (int step = 0; step < GROUP_STEPS; step++) {
    const view_t *now = &views[step], *first = &views[0];
    NOTE("%s: on offer %lld KiB, resident %lld, locked %lld; group: usage %lld, inactive file %lld, anonymous %lld",
         group_steps[step], now->offered >> 10, now->resident >> 10, now->locked >> 10, now->usage >> 10,
         now->inactive_file >> 10, now->anonymous >> 10);
    // Anonymous memory is counted until it is taken. The elements' table and the heap's bookkeeping grow as well.
    long long anonymous = now->anonymous - first->anonymous - now->resident;
    EXPECT(anonymous >= -counters && anonymous <= counters + (4 << 20));
    // Kernel memory (page tables) comes on top.
    long long usage = now->usage - first->usage - now->resident;
    EXPECT(usage >= -counters && usage <= counters + (8 << 20));
    // Pages that were locked again stay among the inactive pages of files, so the working set reads too low by as much.
    long long expected = step == 3 ? now->resident : now->offered;
    EXPECT(llabs(now->inactive_file - first->inactive_file - expected) <= lists + counters);
  }
  EXPECT_EQUAL(views[3].offered, 0);
  EXPECT(views[3].locked >= GROUP_BYTES * 9LL / 10);
  EXPECT(views[4].offered < views[2].offered * 6 / 10);
}

const test_case_t book_cases[] = {
    FULL_CASE("books: the heap against smaps, in every state", every_state),
    FULL_CASE("books: the heap against its memory group's counters", the_groups_counters),
    END_OF_CASES,
};
