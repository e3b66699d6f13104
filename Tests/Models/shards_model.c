// SPDX-License-Identifier: MIT
// A cache that opens its other shards while it is read and written: a model in C of what is written in Swift.
//
// Stands for, in Sources/Purgeable/Cache: CacheShards+Step.swift (`openShards`, `transfer`), ShardStep.swift, SlotIndex.swift,
// CacheEngine+Read.swift (`read`, `isCurrent`) and `hold(of:)`. Under all mutexes every entry gets a new place and
// a slot in the index of its own shard; then the mask is published, and then the old slots and places go. Readers that miss look
// at the mask again. Writers look at it again under the mutex. Change one, change the other.
//
// One key, which belongs to the second shard. An index has one slot. Going back to one shard is the same with the two exchanged.
// Each RULE_... is 1; a run with one of them 0 has to find the wrong result.
#include "model.h"

#ifndef RULE_mask_last  // the mask is published after the slots are inserted
#define RULE_mask_last 1
#endif
#ifndef RULE_reader_again  // a miss counts only if the mask is what it was
#define RULE_reader_again 1
#endif
#ifndef RULE_writer_again  // a writer looks at the mask again under the mutex
#define RULE_writer_again 1
#endif
#ifndef RULE_mutexes  // opening holds the mutexes of all shards
#define RULE_mutexes 1
#endif
#ifndef MASK_STORE
#define MASK_STORE memory_order_release  // partner: MASK_LOAD
#endif
#ifndef MASK_LOAD
#define MASK_LOAD memory_order_acquire
#endif
#ifndef EMPTY_STORE
#define EMPTY_STORE memory_order_release  // old slots, after the mask; partner: SLOT_LOAD
#endif
#ifndef FENCE_MISS
#define FENCE_MISS memory_order_acquire  // before a reader that missed looks at the mask again
#endif
#ifndef SLOT_STORE
#define SLOT_STORE memory_order_release  // partner: SLOT_LOAD
#endif
#ifndef SLOT_LOAD
#define SLOT_LOAD memory_order_acquire
#endif

enum { OLD = 5, NEW = 6, TRIES = 2 };

static _Atomic int mask;     // 0: one shard, 1: two
static _Atomic int slots[2];  // 0 or a place + 1, in the index of each shard
static _Atomic int values[3];
static pthread_mutex_t mutexes[2];
static _Atomic int is_stored;  // NEW was stored, and the store has returned

static int read_key(void) {
  for (int tries = 0; tries < TRIES; tries++) {
    int seen = atomic_load_explicit(&mask, MASK_LOAD);
    int slot = atomic_load_explicit(&slots[seen], SLOT_LOAD);
    if (slot != 0) {
      int value = atomic_load_explicit(&values[slot - 1], memory_order_relaxed);
      atomic_thread_fence(memory_order_acquire);
      if (value != 0 && atomic_load_explicit(&slots[seen], memory_order_relaxed) == slot) return value;
      continue;
    }
    if (!RULE_reader_again) return 0;
    atomic_thread_fence(FENCE_MISS);
    if (atomic_load_explicit(&mask, memory_order_relaxed) == seen) return 0;
  }
  return -1;
}

static void *reader(void *unused) {
  (void)unused;
  int was_stored = atomic_load(&is_stored);
  int value = read_key();
  assert(value != 0);
  if (value == -1) return 0;
  assert(value == OLD || value == NEW);
  // A thread that knows that a store has returned reads the stored value.
  if (was_stored) assert(value == NEW);
  return 0;
}

static void *writer(void *unused) {
  (void)unused;
  for (int tries = 0; tries < 2; tries++) {
    int seen = atomic_load_explicit(&mask, MASK_LOAD);
    pthread_mutex_lock(&mutexes[seen]);
    if (RULE_writer_again && atomic_load_explicit(&mask, memory_order_relaxed) != seen) {
      pthread_mutex_unlock(&mutexes[seen]);
      continue;
    }
    atomic_store_explicit(&values[2], NEW, memory_order_relaxed);
    atomic_store_explicit(&slots[seen], 2 + 1, SLOT_STORE);
    pthread_mutex_unlock(&mutexes[seen]);
    atomic_store(&is_stored, 1);
    return 0;
  }
  return 0;
}

static void *opener(void *unused) {
  (void)unused;
  for (int i = 0; RULE_mutexes && i < 2; i++) pthread_mutex_lock(&mutexes[i]);
  int slot = atomic_load_explicit(&slots[0], memory_order_relaxed);
  int value = atomic_load_explicit(&values[slot - 1], memory_order_relaxed);
  atomic_store_explicit(&values[1], value, memory_order_relaxed);
  if (!RULE_mask_last) atomic_store_explicit(&mask, 1, MASK_STORE);
  atomic_store_explicit(&slots[1], 1 + 1, SLOT_STORE);
  if (RULE_mask_last) atomic_store_explicit(&mask, 1, MASK_STORE);
  atomic_store_explicit(&slots[0], 0, EMPTY_STORE);
  for (int i = 1; RULE_mutexes && i >= 0; i--) pthread_mutex_unlock(&mutexes[i]);
  return 0;
}

int main(void) {
  atomic_store(&values[0], OLD);
  atomic_store(&slots[0], 0 + 1);
  pthread_t threads[3];
  int count = 0;
  pthread_create(&threads[count++], 0, opener, 0);
  pthread_create(&threads[count++], 0, reader, 0);
#ifdef WRITES
  pthread_create(&threads[count++], 0, writer, 0);
  for (int i = 0; i < count; i++) pthread_join(threads[i], 0);
  if (atomic_load(&is_stored)) assert(read_key() == NEW);
#endif
  return 0;
}
