// SPDX-License-Identifier: MIT
// A region: pages that the kernel may take while nobody has them locked, and that say so instead of showing wrong bytes.
//
//   cc -std=c17 -ICPurgeable/include docs/examples/region.c CPurgeable/src/*.c -pthread -o region && ./region

#define _DEFAULT_SOURCE  // madvise, under -std=c17
#include <errno.h>
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

static void fail(const char *what, int error) {
  fprintf(stderr, "%s: %s\n", what, strerror(error));
  exit(1);
}

int main(void) {
  purgeable_probe_t probe;
  int error = purgeable_probe(&probe);
  if (error != 0) fail("probe", error);
  printf("this kernel: %s\n", purgeable_kernel_class_name(probe.kernel_class));

  // Born locked for writing.
  purgeable_region_t *region = NULL;
  error = purgeable_region_create(LENGTH, NULL, &region);
  if (error != 0) fail("create", error);
  render(purgeable_region_bytes(region));
  unsigned long expected = sum(purgeable_region_bytes(region));
  purgeable_region_unlock(region);

  // The program says when idle regions are offered; before that, locking again costs one atomic operation.
  size_t offered;
  error = purgeable_offer_pending(&offered);
  if (error != 0) fprintf(stderr, "nothing can be offered here (%s); the content simply stays\n", strerror(error));
  printf("on offer: %zu of %d bytes\n", offered, LENGTH);

  // Stand in for a machine that is short of memory: have the kernel take one page in the middle.
  void *middle = (char *)purgeable_region_bytes(region) + LENGTH / 2;
  if (madvise(middle, probe.page_size_bytes, MADV_DONTNEED) != 0) fail("madvise", errno);

  // Every user asks by locking, and is told.
  for (int attempt = 0; attempt < 2; attempt++) {
    switch (purgeable_region_lock(region)) {
      case purgeable_outcome_intact:
        printf("intact: %s\n", sum(purgeable_region_bytes(region)) == expected ? "every byte is right" : "WRONG");
        purgeable_region_unlock(region);
        break;
      case purgeable_outcome_discarded:
        printf("discarded: rendering it again\n");
        error = purgeable_region_refill(region);  // All zeros, locked for writing.
        if (error != 0) fail("refill", error);
        render(purgeable_region_bytes(region));
        purgeable_region_unlock(region);
        break;
      case purgeable_outcome_busy:
      case purgeable_outcome_error:
        fail("lock", errno);
    }
  }

  // A look without locking: copied out, and only then known to be right.
  unsigned char pixel;
  if (purgeable_region_read(region, 12345, 1, &pixel) == purgeable_outcome_intact) printf("pixel 12345 is %d\n", pixel);

  return purgeable_region_destroy(region) == 0 ? 0 : 1;
}
