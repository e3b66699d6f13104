// SPDX-License-Identifier: MIT
// Upkeep by a thread: the program fills regions, and the thread offers what is idle.
//
//   cc -std=c17 -ICPurgeable/include docs/examples/upkeep.c CPurgeable/src/*.c -pthread -o upkeep && ./upkeep

#define _DEFAULT_SOURCE  // usleep, under -std=c17
#include <purgeable.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { COUNT = 64, BYTES = 64 << 10 };

static void fail(const char *what, int error) {
  fprintf(stderr, "%s: %s\n", what, strerror(error));
  exit(1);
}

int main(void) {
  // Every tenth of a second here, so that the example is short; once a second suits most programs.
  int error = purgeable_upkeep_start(100);
  if (error != 0) fail("upkeep", error);

  static purgeable_region_t *tiles[COUNT];
  for (int i = 0; i < COUNT; i++) {
    error = purgeable_region_create(BYTES, NULL, &tiles[i]);
    if (error != 0) fail("create", error);
    memset(purgeable_region_bytes(tiles[i]), i + 1, BYTES);
    error = purgeable_region_unlock(tiles[i]);
    if (error != 0) fail("unlock", error);
  }

  // The program itself offers nothing. Where the kernel refuses offers (an emulator, a process that locks all its memory),
  // content stays.
  purgeable_probe_t probe;
  bool offers = purgeable_probe(&probe) == 0 && probe.kernel_class == purgeable_kernel_class_works;
  purgeable_region_statistics_t now = {0};
  for (int i = 0; i < 100 && offers && now.memory.offered_bytes < (uint64_t)COUNT * BYTES; i++) {
    (void)usleep(50000);
    error = purgeable_region_statistics(&now);
    if (error != 0) fail("statistics", error);
  }
  printf("on offer: %llu of %d bytes\n", (unsigned long long)now.memory.offered_bytes, COUNT * BYTES);

  error = purgeable_upkeep_stop();
  if (error != 0) fail("stop", error);
  int intact = 0;
  for (int i = 0; i < COUNT; i++) {
    if (purgeable_region_lock(tiles[i]) == purgeable_outcome_intact) {
      const unsigned char *bytes = purgeable_region_bytes(tiles[i]);
      intact += bytes[0] == i + 1 && bytes[BYTES - 1] == i + 1;
      purgeable_region_unlock(tiles[i]);
    }
    purgeable_region_destroy(tiles[i]);
  }
  printf("intact: %d of %d\n", intact, COUNT);
  return offers && now.memory.offered_bytes < (uint64_t)COUNT * BYTES;
}
