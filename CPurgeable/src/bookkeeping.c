// SPDX-License-Identifier: MIT
// Memory for an owner's notes: mappings, and ordinary memory in amounts too small for them. A lack of memory is an answer; it
// never ends the program.

#include "internal.h"

#include <errno.h>

void *purgeable_bookkeeping_map(size_t length_bytes) {
  int error = EINVAL;
  void *start = NULL;
  if (length_bytes != 0 && length_bytes <= purgeable__pair_bytes()) {
    start = purgeable__pair_take(&error);
  } else if (length_bytes != 0) {
    start = purgeable__map(length_bytes, 1, "purgeable bookkeeping", &error);
  }
  if (start == NULL) errno = error;
  return start;
}

int purgeable_bookkeeping_clear(void *start, size_t length_bytes) { return purgeable__wipe(start, length_bytes); }

int purgeable_bookkeeping_unmap(void *start, size_t length_bytes) {
  if (length_bytes == 0) return EINVAL;
  // Its length does not tell: it may be what is left of a longer mapping.
  bool is_whole = false;
  if (length_bytes <= purgeable__pair_bytes() && purgeable__is_of_pair(start, &is_whole)) {
    // The end of a pair goes without its place.
    if (!is_whole) return purgeable__wipe(start, length_bytes);
    purgeable__pair_return(start);
    return 0;
  }
  int error = purgeable__unmap(start, length_bytes);
  if (error != 0) (void)purgeable__wipe(start, length_bytes);
  return error;
}

void *purgeable_bookkeeping_allocate(size_t length_bytes) {
  return length_bytes == 0 ? NULL : purgeable__allocate(1, length_bytes);
}

void *purgeable_bookkeeping_resize(void *old, size_t length_bytes) {
  return length_bytes == 0 ? NULL : purgeable__resize(old, length_bytes);
}

void purgeable_bookkeeping_free(void *start) { free(start); }

bool purgeable_bookkeeping_is_available(size_t length_bytes) {
  void *memory = purgeable__resize(NULL, length_bytes == 0 ? 1 : length_bytes);
  free(memory);
  return memory != NULL;
}
