// SPDX-License-Identifier: MIT
// The slab heap: small elements share purgeable pages. One lost page loses only the elements on it.
//
//   cc -std=c17 -ICPurgeable/include docs/examples/heap.c CPurgeable/src/*.c -pthread -o heap && ./heap

#define _DEFAULT_SOURCE  // madvise, under -std=c17
#include <purgeable.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { COUNT = 20000 };

static void fail(const char *what, int error) {
  fprintf(stderr, "%s: %s\n", what, strerror(error));
  exit(1);
}

static int write_line(char *line, size_t capacity, int number) {
  return snprintf(line, capacity, "line %d of something that could be computed again", number);
}

int main(void) {
  purgeable_heap_t *heap = NULL;
  int error = purgeable_heap_create(NULL, &heap);
  if (error != 0) fail("create", error);

  // References are plain values and stay in ordinary memory; the elements' bytes do not.
  static purgeable_reference_t lines[COUNT];
  char line[80];
  for (int i = 0; i < COUNT; i++) {
    size_t length = (size_t)write_line(line, sizeof line, i);
    void *bytes = NULL;
    error = purgeable_heap_allocate(heap, length, &lines[i], &bytes);
    if (error != 0) fail("allocate", error);
    memcpy(bytes, line, length);
    error = purgeable_heap_commit(heap, lines[i]);  // Read-only from here on, and the kernel may take it.
    if (error != 0) fail("commit", error);
  }

  size_t offered;
  error = purgeable_heap_offer_idle(heap, &offered);
  if (error == 0) printf("on offer: %zu bytes\n", offered);

  // This stands in for a machine that is short of memory: one page in the middle goes.
  const void *place = NULL;
  if (purgeable_heap_lock(heap, lines[COUNT / 2], &place, NULL) != purgeable_outcome_intact) fail("lock", 0);
  purgeable_heap_unlock(heap, lines[COUNT / 2]);
  size_t page = purgeable_page_size_bytes();
  madvise((char *)((size_t)place / page * page), page, MADV_DONTNEED);

  int intact = 0, discarded = 0, wrong = 0;
  for (int i = 0; i < COUNT; i++) {
    char copy[80] = "";
    size_t length = 0;
    switch (purgeable_heap_read(heap, lines[i], copy, sizeof copy, &length)) {
      case purgeable_outcome_intact:
        write_line(line, sizeof line, i);
        wrong += length != strlen(line) || memcmp(copy, line, length) != 0;
        intact++;
        break;
      case purgeable_outcome_discarded:
        discarded++;
        break;
      case purgeable_outcome_busy:
      case purgeable_outcome_error:
        wrong++;
    }
    error = purgeable_heap_free(heap, lines[i]);
    if (error != 0) fail("free", error);
  }
  printf("%d intact, %d discarded with one page of %zu bytes, %d wrong\n", intact, discarded, page, wrong);

  purgeable_heap_destroy(heap);
  return wrong == 0 && intact + discarded == COUNT && discarded > 0 && intact > COUNT / 2 ? 0 : 1;
}
