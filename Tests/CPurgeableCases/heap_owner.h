// SPDX-License-Identifier: MIT
// An owner of elements that move.
#ifndef HEAP_OWNER_H
#define HEAP_OWNER_H

#include "heap_cases.h"

// Owners keep references in slots; `number` of the pattern is the slot's index, and with tags the tag is.
typedef struct owner {
  size_t count;
  _Atomic uint64_t *slots;  // places + 1; 0 for none
  _Atomic uint64_t *generations;
  _Atomic uint64_t moves;
  bool refuses;
} owner_t;

static inline owner_t make_owner(size_t count) {
  owner_t owner = {.count = count, .slots = calloc(count, sizeof(uint64_t)), .generations = calloc(count, sizeof(uint64_t))};
  if (owner.slots == NULL || owner.generations == NULL) abort();
  return owner;
}

static inline void end_owner(owner_t *owner) {
  free((void *)owner->slots);
  free((void *)owner->generations);
}

static inline bool take_moved(void *context, purgeable_reference_t from, purgeable_reference_t to, uint64_t tag,
                              const void *bytes, size_t length) {
  owner_t *owner = context;
  if (tag >= owner->count || !check_pattern(bytes, length, tag)) abort();
  if (owner->refuses) return false;
  uint64_t expected = from.place + 1;
  if (!atomic_compare_exchange_strong(&owner->slots[tag], &expected, to.place + 1)) return false;
  atomic_store(&owner->generations[tag], to.generation);
  atomic_fetch_add(&owner->moves, 1);
  return true;
}

static inline int keep(purgeable_heap_t *heap, owner_t *owner, purgeable_stream_t stream, size_t slot, size_t length) {
  element_t element;
  int error = make_in(heap, stream, length, slot, &element);
  if (error != 0) return error;
  atomic_store(&owner->generations[slot], element.reference.generation);
  atomic_store(&owner->slots[slot], element.reference.place + 1);
  return 0;
}

static inline purgeable_reference_t kept(owner_t *owner, size_t slot) {
  return (purgeable_reference_t){atomic_load(&owner->slots[slot]) - 1, atomic_load(&owner->generations[slot])};
}

static inline bool keeps_intact(purgeable_heap_t *heap, owner_t *owner, size_t slot) {
  size_t length;
  purgeable_reference_t reference = kept(owner, slot);
  if (purgeable_heap_length_bytes(heap, reference, &length) != purgeable_outcome_intact) return false;
  return is_intact(heap, &(element_t){.reference = reference, .length = length, .number = slot});
}

// Frees a slot's element; true when it was the slot's.
static inline bool drop(purgeable_heap_t *heap, owner_t *owner, size_t slot) {
  purgeable_reference_t reference = kept(owner, slot);
  return atomic_exchange(&owner->slots[slot], 0) != 0 && purgeable_heap_free(heap, reference) == 0;
}

#endif
