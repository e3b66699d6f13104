// SPDX-License-Identifier: MIT
// A table of slots whose elements are made, freed and moved by several threads, and the work of each thread.
#ifndef HEAP_STORM_H
#define HEAP_STORM_H

#include "heap_cases.h"

enum { STORM_SLOTS = 1024 };

// A slot is read by sequence lock: odd while it is being changed. Every content has a version of its own, which a move keeps.
typedef struct storm_slot {
  pthread_mutex_t mutex;  // of those who change it
  _Atomic uint64_t sequence, place, generation, version, length;
} storm_slot_t;

typedef enum storm_role { storm_reader, storm_mutator, storm_discarder, storm_anything } storm_role_t;

typedef struct storm {
  purgeable_heap_t *heap;
  purgeable_stream_t streams[3];
  storm_slot_t *slots;
  char *base;  // where its first chunk lies
  uint64_t seed, enough_reads, enough_discards;
  // Of each thread, 32 things a round. Whoever sets `is_over` ends the storm earlier.
  span_t span;
  _Atomic bool is_over;
  _Atomic uint64_t versions, reads, misses, locks, discards;
  // Wrong contents; calls that failed with an error that is not allowed.
  _Atomic uint64_t wrong, failed;
} storm_t;

bool storm_begin(storm_t *storm, uint64_t seed, bool compacts);
void storm_run(storm_t *storm, const storm_role_t *roles, size_t count);
// Frees all that is left.
void storm_empty(storm_t *storm);
void storm_end(storm_t *storm);

#endif
