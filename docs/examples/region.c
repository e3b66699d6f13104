// SPDX-License-Identifier: MIT
// A region: pages that the kernel may take while nobody has them locked, and that say so instead of showing wrong bytes.
//
//   cc -std=c17 -ICPurgeable/include docs/examples/region.c CPurgeable/src/*.c -pthread -o region && ./region

#define _DEFAULT_SOURCE  // madvise, under -std=c17
#include <errno.h>
#include <pthread.h>
#include <purgeable.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { LENGTH = 1 << 20 };

static void render(unsigned char *picture) {
  for (size_t i = 0; i < LENGTH; i++) picture[i] = (unsigned char)(i * 31 % 251 + 1);
}

static unsigned long sum(const unsigned char *picture) {
  unsigned long total = 0;
  for (size_t i = 0; i < LENGTH; i++) total += picture[i];
  return total;
}

// The sum of an intact picture.
static unsigned long expected;

// Any number of threads may run this function. If they find the content gone, one of them makes it again and the others wait;
// nobody sees half-made content.
static void *use(void *context) {
  purgeable_region_t *region = context;
  bool is_filler;
  purgeable_outcome_t outcome = purgeable_region_lock_or_fill(region, &is_filler);
  if (is_filler) {
    // All zeros, locked for writing. A renderer that fails calls purgeable_region_abandon instead: the others are told discarded.
    printf("discarded: rendering it again\n");
    render(purgeable_region_bytes(region));
    purgeable_region_publish(region);
    outcome = purgeable_outcome_intact;
  }
  // Discarded, and not the filler: another thread gave its fill up. Error: errno says why.
  if (outcome != purgeable_outcome_intact) return NULL;
  printf("intact: %s\n", sum(purgeable_region_bytes(region)) == expected ? "every byte is right" : "WRONG");
  purgeable_region_unlock(region);
  return NULL;
}

static void fail(const char *what, int error) {
  fprintf(stderr, "%s: %s\n", what, strerror(error));
  exit(1);
}

int main(void) {
  purgeable_probe_t probe;
  int error = purgeable_probe(&probe);
  if (error != 0) fail("probe", error);
  printf("this kernel: %s\n", purgeable_kernel_class_name(probe.kernel_class));

  // A new region is locked for writing. Until the unlock it is being filled, and no other thread can lock it.
  purgeable_region_t *region = NULL;
  error = purgeable_region_create(LENGTH, NULL, &region);
  if (error != 0) fail("create", error);
  render(purgeable_region_bytes(region));
  expected = sum(purgeable_region_bytes(region));
  purgeable_region_unlock(region);

  // The program says when idle regions are offered; before that, locking again costs one atomic operation.
  size_t offered;
  error = purgeable_offer_pending(&offered);
  if (error != 0) fprintf(stderr, "nothing can be offered here (%s); the content simply stays\n", strerror(error));
  printf("on offer: %zu of %d bytes\n", offered, LENGTH);

  // This stands in for a machine that is short of memory: the kernel takes one page in the middle.
  void *middle = (char *)purgeable_region_bytes(region) + LENGTH / 2;
  if (madvise(middle, probe.page_size_bytes, MADV_DONTNEED) != 0) fail("madvise", errno);

  // Each user locks, and the outcome says whether the content is there. Two users at once:
  pthread_t threads[2];
  for (int i = 0; i < 2; i++) {
    error = pthread_create(&threads[i], NULL, use, region);
    if (error != 0) fail("thread", error);
  }
  for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);

  // A read without lock: it copies first, and then checks that the copy is right.
  unsigned char pixel;
  if (purgeable_region_read(region, 12345, 1, &pixel) == purgeable_outcome_intact) printf("pixel 12345 is %d\n", pixel);

  return purgeable_region_destroy(region) == 0 ? 0 : 1;
}
