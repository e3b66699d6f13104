// SPDX-License-Identifier: MIT
// Ordinary memory for an owner's notes, in amounts too small for a mapping of their own. A lack of memory is an
// answer; it never ends the program.

#include "internal.h"

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
