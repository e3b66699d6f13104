// SPDX-License-Identifier: MIT
// Who shows what: 256 MiB of a heap go through every state. After each step the program asks the process, the machine, the memory
// group and the heap how much memory is in use, and in the end it prints the table that docs/accounting.md explains.
//
//   cc -std=c17 -ICPurgeable/include docs/examples/accounting.c CPurgeable/src/*.c -pthread -o accounting && ./accounting
//
// As root with memory groups of version 1 the program makes a group with a limit, and a neighbour in the group takes half of what
// is on offer. Elsewhere the program asks the kernel to page half of the heap out, and shows the group that it is in, if one can
// be seen.

#define _GNU_SOURCE
#include <errno.h>
#include <purgeable.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { COUNT = 4096, LENGTH = 65000 };  // 256 MiB, as each takes 16 pages of 4 KiB
enum { TOTAL_MIB = 256, LIMIT_MIB = TOTAL_MIB + 96, NEIGHBOUR_MIB = 96 + TOTAL_MIB / 2 };
enum { STEPS = 6, SHOWN = 10 };

static const char *const steps[STEPS] = {"empty", "locked", "on offer", "locked again", "half taken", "given back"};
static const char *const shown[SHOWN] = {
    "top, ps: RSS",
    "smaps_rollup: Rss",
    "smaps_rollup: LazyFree",
    "free: available, change (with what processors keep)",
    "group: usage",
    "group: inactive file",
    "docker stats, kubectl top: usage less inactive file",
    "heap: payload locked",
    "heap: on offer",
    "heap: known to be gone",
};
static long long table[STEPS][SHOWN];  // bytes
enum { UNKNOWN = -1 };

static void fail(const char *what, int error) {
  fprintf(stderr, "%s: %s\n", what, strerror(error));
  exit(1);
}

// MARK: Reading

// The number behind `key` at the beginning of a line, "kB" counted as such; the first number of the file for NULL.
static long long number_in(const char *folder, const char *name, const char *key) {
  char path[600], line[512];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE *file = fopen(path, "re");
  if (file == NULL) return UNKNOWN;
  size_t length = key == NULL ? 0 : strlen(key);
  long long number = UNKNOWN;
  while (number == UNKNOWN && fgets(line, sizeof line, file) != NULL) {
    if (length != 0 && (strncmp(line, key, length) != 0 || strchr(": ", line[length]) == NULL)) continue;
    number = strtoll(line + length + (length != 0), NULL, 10) * (strstr(line, " kB") != NULL ? 1024 : 1);
  }
  fclose(file);
  return number;
}

// Memory that was freed a moment ago lies in lists of the processors. MemFree and MemAvailable miss it until it is used again.
static long long kept_by_processors(void) {
  FILE *file = fopen("/proc/zoneinfo", "re");
  if (file == NULL) return 0;
  char line[256];
  long long pages = 0, number;
  while (fgets(line, sizeof line, file) != NULL) {
    if (sscanf(line, " count: %lld", &number) == 1) pages += number;
  }
  fclose(file);
  return pages * (long long)purgeable_page_size_bytes();
}

// MARK: The memory group

static struct {
  char outer[400];   // the group this process began in; empty where none is to be seen
  char folder[450];  // the group that is looked at
  bool is_first, is_own;
} group;

static bool write_to(const char *folder, const char *name, long long value) {
  char path[600];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE *file = fopen(path, "we");
  if (file == NULL) return false;
  fprintf(file, "%lld", value);
  return fclose(file) == 0;
}

static void enter_group(void) {
  char line[300], first[300] = "", unified[300] = "";
  FILE *file = fopen("/proc/self/cgroup", "re");
  while (file != NULL && fgets(line, sizeof line, file) != NULL) {
    line[strcspn(line, "\n")] = 0;
    const char *path = strstr(line, ":memory:");
    if (path != NULL) snprintf(first, sizeof first, "%s", path + strlen(":memory:"));
    if (strncmp(line, "0::", 3) == 0) snprintf(unified, sizeof unified, "%s", line + 3);
  }
  if (file != NULL) fclose(file);
  group.is_first = first[0] != 0;
  const char *top = group.is_first ? "/sys/fs/cgroup/memory" : "/sys/fs/cgroup";
  snprintf(group.outer, sizeof group.outer, "%s%s", top, group.is_first ? first : unified);
  const char *usage = group.is_first ? "memory.usage_in_bytes" : "memory.current";
  // A container may see its own group as the root.
  if (number_in(group.outer, usage, NULL) == UNKNOWN) snprintf(group.outer, sizeof group.outer, "%s", top);
  if (number_in(group.outer, usage, NULL) == UNKNOWN) group.outer[0] = 0;
  snprintf(group.folder, sizeof group.folder, "%s", group.outer);
  if (!group.is_first || group.outer[0] == 0) return;

  char own[450];
  snprintf(own, sizeof own, "%s/purgeable-accounting-%d", group.outer, (int)getpid());
  if (mkdir(own, 0755) != 0) return;
  group.is_own = write_to(own, "memory.limit_in_bytes", (long long)LIMIT_MIB << 20) && write_to(own, "cgroup.procs", getpid());
  if (group.is_own) {
    snprintf(group.folder, sizeof group.folder, "%s", own);
  } else {
    rmdir(own);
  }
}

// Registered with `atexit`, so that nothing is left behind.
static void leave_group(void) {
  if (!group.is_own) return;
  (void)write_to(group.outer, "cgroup.procs", getpid());
  // The kernel takes a moment to see that the group is empty.
  for (int i = 0; i < 100 && rmdir(group.folder) != 0; i++) nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
}

// MARK: The steps

static purgeable_heap_t *heap;
static purgeable_reference_t elements[COUNT];

static void look(int step) {
  static long long available_before;
  const char *usage = group.is_first ? "memory.usage_in_bytes" : "memory.current";
  const char *inactive = group.is_first ? "total_inactive_file" : "inactive_file";
  bool seen = group.folder[0] != 0;
  purgeable_heap_statistics_t own;
  int error = purgeable_heap_statistics(heap, &own);
  if (error != 0) fail("statistics", error);
  long long available = number_in("/proc", "meminfo", "MemAvailable") + kept_by_processors();
  if (step == 0) available_before = available;
  long long *column = table[step];
  column[0] = number_in("/proc/self", "status", "VmRSS");
  column[1] = number_in("/proc/self", "smaps_rollup", "Rss");
  column[2] = number_in("/proc/self", "smaps_rollup", "LazyFree");
  column[3] = available - available_before;
  column[4] = seen ? number_in(group.folder, usage, NULL) : UNKNOWN;
  column[5] = seen ? number_in(group.folder, "memory.stat", inactive) : UNKNOWN;
  column[6] = column[4] == UNKNOWN || column[5] == UNKNOWN ? UNKNOWN : column[4] - column[5];
  column[7] = (long long)own.memory.locked_bytes;
  column[8] = (long long)own.memory.offered_bytes;
  column[9] = (long long)own.memory.discarded_bytes;
}

static void lock_all(void) {
  for (int i = 0; i < COUNT; i++) {
    // Under pressure some elements may be lost already. They stay unlocked.
    if (purgeable_heap_lock(heap, elements[i], NULL, NULL) == purgeable_outcome_error) fail("lock", errno);
  }
}

// Unlocks and offers the whole heap. A refusal of the kernel is printed, and changes only what the table shows.
static void unlock_and_offer(void) {
  for (int i = 0; i < COUNT; i++) purgeable_heap_unlock(heap, elements[i]);
  // Twice: an offer skips pages that are on their way to the kernel's lists.
  int error = purgeable_heap_offer_idle(heap, NULL);
  if (error == 0) error = purgeable_heap_offer_idle(heap, NULL);
  if (error != 0) fprintf(stderr, "offers are refused here: %s\n", strerror(error));
}

// A neighbour in the same group that wants more than is left. The neighbour's memory is free again when the neighbour has ended.
static void press(void) {
  pid_t neighbour = group.is_own ? fork() : -1;
  if (neighbour == 0) {
    size_t length = (size_t)NEIGHBOUR_MIB << 20;
    char *food = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (food == MAP_FAILED) _exit(1);
    for (size_t at = 0; at < length; at += 4096) ((volatile char *)food)[at] = 1;
    _exit(0);
  }
  if (neighbour > 0) {
    int status = 0;
    if (waitpid(neighbour, &status, 0) != neighbour || status != 0) fprintf(stderr, "the neighbour did not end well\n");
  } else {
    int error = purgeable_heap_page_out(heap, (size_t)TOTAL_MIB << 19, NULL, NULL);
    if (error != 0) fprintf(stderr, "the kernel does not discard on request here: %s\n", strerror(error));
  }
  // Finds out what is gone.
  (void)purgeable_heap_sweep(heap, NULL);
}

static void print(void) {
  purgeable_probe_t probe;
  bool known = purgeable_probe(&probe) == 0;
  printf("offering here: %s; group: %s; pressure: %s\n\n", known ? purgeable_kernel_class_name(probe.kernel_class) : "unknown",
         group.is_own ? "one of its own" : group.folder[0] != 0 ? "shared with others" : "none to be seen",
         group.is_own ? "a neighbour in the group" : "MADV_PAGEOUT");
  printf("| MiB ");
  for (int step = 0; step < STEPS; step++) printf("| %s ", steps[step]);
  printf("|\n|---|---|---|---|---|---|---|\n");
  for (int row = 0; row < SHOWN; row++) {
    printf("| %s ", shown[row]);
    for (int step = 0; step < STEPS; step++) {
      long long bytes = table[step][row];
      if (bytes == UNKNOWN) {
        printf("| ? ");
      } else {
        printf("| %.0f ", (double)bytes / (1 << 20));
      }
    }
    printf("|\n");
  }
}

int main(void) {
  enter_group();
  if (atexit(leave_group) != 0) fail("atexit", ENOMEM);
  int error = purgeable_heap_create(NULL, &heap);
  if (error != 0) fail("create", error);
  look(0);
  for (int i = 0; i < COUNT; i++) {
    void *bytes = NULL;
    error = purgeable_heap_allocate(heap, LENGTH, &elements[i], &bytes);
    if (error != 0) fail("allocate", error);
    memset(bytes, 1 + i % 255, LENGTH);
    error = purgeable_heap_commit(heap, elements[i]);
    if (error != 0) fail("commit", error);
    // At once: what is idle beyond the pending limit would be offered by the next allocation.
    if (purgeable_heap_lock(heap, elements[i], NULL, NULL) != purgeable_outcome_intact) fail("lock", errno);
  }
  look(1);
  unlock_and_offer();
  look(2);
  lock_all();
  look(3);
  unlock_and_offer();
  press();
  look(4);
  for (int i = 0; i < COUNT; i++) purgeable_heap_free(heap, elements[i]);
  (void)purgeable_heap_trim(heap, NULL);
  look(5);
  print();
  error = purgeable_heap_destroy(heap);
  return error == 0 ? 0 : 1;
}
