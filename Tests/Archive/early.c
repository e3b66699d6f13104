// SPDX-License-Identifier: MIT
// A program that reads purgeable memory in a constructor of its own, before main and, linked from a static archive, before any
// constructor of the core's objects could run. Interrupted by a timer all the while. Run by `.ci/run archive`.

#include <purgeable.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>

static volatile sig_atomic_t interruptions;

static void count_interruption(int number) {
  (void)number;
  interruptions++;
}

static void check(bool is_so, const char *what) {
  if (is_so) return;
  fprintf(stderr, "not so: %s\n", what);
  abort();
}

// A priority as early as a program may have.
__attribute__((constructor(101))) static void read_early(void) {
  (void)signal(SIGALRM, count_interruption);
  struct itimerval often = {.it_interval = {.tv_usec = 500}, .it_value = {.tv_usec = 500}};
  purgeable_region_t *region = NULL;
  purgeable_heap_t *heap = NULL;
  purgeable_reference_t reference;
  void *bytes;
  char buffer[100];
  check(purgeable_region_create(100, NULL, &region) == 0, "a region");
  memset(purgeable_region_bytes(region), 7, 100);
  check(purgeable_region_unlock(region) == 0, "its unlock");
  check(purgeable_heap_create(NULL, &heap) == 0, "a heap");
  check(purgeable_heap_allocate(heap, 100, &reference, &bytes) == 0, "an element");
  memset(bytes, 8, 100);
  check(purgeable_heap_commit(heap, reference) == 0, "its commit");
  check(setitimer(ITIMER_REAL, &often, NULL) == 0, "a timer");
  while (interruptions < 200) {
    check(purgeable_region_read(region, 0, 100, buffer) == purgeable_outcome_intact && buffer[99] == 7, "a read");
    check(purgeable_heap_read(heap, reference, buffer, 100, NULL) == purgeable_outcome_intact && buffer[99] == 8, "a read of it");
  }
  struct itimerval never = {0};
  (void)setitimer(ITIMER_REAL, &never, NULL);
  check(purgeable_heap_destroy(heap) == 0 && purgeable_region_destroy(region) == 0, "the end");
}

int main(void) {
  printf("read before main, interrupted %d times\n", (int)interruptions);
  return 0;
}
