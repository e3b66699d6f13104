// SPDX-License-Identifier: MIT
// A cache that opens its other shards while it is read and written: a model in C of what is written in Swift.
//
// Stands for, in Sources/Purgeable/Cache: CacheShards+Opening.swift (`openShards`, `bringHome`), `hold(toStore:)` in
// CacheShards.swift, `ShardLooks` and CacheEngine+Read.swift (`read`). Opening publishes a mask and moves nothing. A writer looks
// without a mutex whether the founder has the key's entry, and moves it home under both mutexes before it stores. A reader looks
// at home, in the founder, and at home once more; then at the mask. Change one, change the other. Closing is not in here.
//
// One key, which belongs to the founder until the mask says that it belongs to the other shard, its home. An index has one slot.
// Each RULE_... is 1; a run with one of them 0 has to find the wrong result.
#include "model.h"

#ifndef RULE_look_again  // a miss counts only if the mask is what it was
#define RULE_look_again 1
#endif
#ifndef RULE_founder  // a reader that finds nothing at home looks in the founder
#define RULE_founder 1
#endif
#ifndef RULE_third_look  // and at home once more
#define RULE_third_look 1
#endif
#ifndef RULE_bring_home  // a writer moves the founder's entry before it stores
#define RULE_bring_home 1
#endif
#ifndef RULE_new_first  // the slot at home is inserted before the founder's is emptied
#define RULE_new_first 1
#endif
#ifndef RULE_writer_again  // a writer looks at the mask again under the mutex
#define RULE_writer_again 1
#endif
#ifndef RULE_under_mutex  // the mask is published under the founder's mutex
#define RULE_under_mutex 1
#endif
#ifndef MASK_STORE
#define MASK_STORE memory_order_release  // partner: MASK_LOAD
#endif
#ifndef MASK_LOAD
#define MASK_LOAD memory_order_acquire
#endif
#ifndef EMPTY_STORE
#define EMPTY_STORE memory_order_release  // the founder's slot, after the one at home; partner: SLOT_LOAD
#endif
#ifndef SLOT_STORE
#define SLOT_STORE memory_order_release  // partner: SLOT_LOAD
#endif
#ifndef SLOT_LOAD
#define SLOT_LOAD memory_order_acquire
#endif

enum { OLD = 5, NEW = 6, TRIES = 2, FOUNDER = 0, HOME = 1 };

static _Atomic int ready;       // the home is made: what the mask leads to
static _Atomic int mask;        // 0: the key belongs to the founder; 1: to its home
static _Atomic int slots[2];    // 0 or a place + 1, in the index of each shard
static _Atomic int values[3];
static pthread_mutex_t mutexes[2];
static _Atomic int is_stored;   // NEW was stored, and the store has returned

// The value in a shard; 0: none, -1: look again.
static int look(int shard) {
  int slot = atomic_load_explicit(&slots[shard], SLOT_LOAD);
  if (slot == 0) return 0;
  int value = atomic_load_explicit(&values[slot - 1], memory_order_relaxed);
  atomic_thread_fence(memory_order_acquire);
  if (value == 0 || atomic_load_explicit(&slots[shard], memory_order_relaxed) != slot) return -1;
  return value;
}

static int read_key(void) {
  for (int tries = 0; tries < TRIES; tries++) {
    int seen = atomic_load_explicit(&mask, MASK_LOAD);
    if (seen == 1) assert(atomic_load_explicit(&ready, memory_order_relaxed) == 1);
    int value = look(seen == 1 ? HOME : FOUNDER);
    if (seen == 1 && value == 0 && RULE_founder) value = look(FOUNDER);
    if (seen == 1 && value == 0 && RULE_third_look) value = look(HOME);
    if (value > 0) return value;
    if (value == -1) continue;
    atomic_thread_fence(memory_order_acquire);
    if (!RULE_look_again || atomic_load_explicit(&mask, memory_order_relaxed) == seen) return 0;
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

static void empty_founder(void) { atomic_store_explicit(&slots[FOUNDER], 0, EMPTY_STORE); }

static void bring_home(void) {
  pthread_mutex_lock(&mutexes[FOUNDER]);
  int slot = atomic_load_explicit(&slots[FOUNDER], memory_order_relaxed);
  if (slot != 0) {
    pthread_mutex_lock(&mutexes[HOME]);
    int value = atomic_load_explicit(&values[slot - 1], memory_order_relaxed);
    atomic_store_explicit(&values[1], value, memory_order_relaxed);
    if (!RULE_new_first) empty_founder();
    atomic_store_explicit(&slots[HOME], 1 + 1, SLOT_STORE);
    if (RULE_new_first) empty_founder();
    pthread_mutex_unlock(&mutexes[HOME]);
  }
  pthread_mutex_unlock(&mutexes[FOUNDER]);
}

static void *writer(void *unused) {
  (void)unused;
  for (int tries = 0; tries < 2; tries++) {
    int seen = atomic_load_explicit(&mask, MASK_LOAD);
    if (RULE_bring_home && seen == 1 && atomic_load_explicit(&slots[FOUNDER], SLOT_LOAD) != 0) bring_home();
    pthread_mutex_lock(&mutexes[seen]);
    if (RULE_writer_again && atomic_load_explicit(&mask, memory_order_relaxed) != seen) {
      pthread_mutex_unlock(&mutexes[seen]);
      continue;
    }
    atomic_store_explicit(&values[2], NEW, memory_order_relaxed);
    atomic_store_explicit(&slots[seen], 2 + 1, SLOT_STORE);
    // Nothing comes to the founder after the mask.
    if (seen == 0) assert(atomic_load_explicit(&mask, memory_order_relaxed) == 0);
    pthread_mutex_unlock(&mutexes[seen]);
    atomic_store(&is_stored, 1);
#ifdef REMOVES
    // At home: what the store left is the only value.
    if (seen == 1) {
      pthread_mutex_lock(&mutexes[HOME]);
      atomic_store_explicit(&slots[HOME], 0, EMPTY_STORE);
      pthread_mutex_unlock(&mutexes[HOME]);
      assert(read_key() <= 0);
    }
#endif
    return 0;
  }
  return 0;
}

static void *opener(void *unused) {
  (void)unused;
  if (RULE_under_mutex) pthread_mutex_lock(&mutexes[FOUNDER]);
  atomic_store_explicit(&ready, 1, memory_order_relaxed);
  atomic_store_explicit(&mask, 1, MASK_STORE);
  if (RULE_under_mutex) pthread_mutex_unlock(&mutexes[FOUNDER]);
  return 0;
}

int main(void) {
  atomic_store(&values[0], OLD);
  atomic_store(&slots[FOUNDER], 0 + 1);
  pthread_t threads[3];
  int count = 0;
  pthread_create(&threads[count++], 0, opener, 0);
  pthread_create(&threads[count++], 0, writer, 0);
#ifdef READS
  pthread_create(&threads[count++], 0, reader, 0);
#endif
  for (int i = 0; i < count; i++) pthread_join(threads[i], 0);
#ifndef REMOVES
  if (atomic_load(&is_stored)) assert(read_key() == NEW);
#endif
  return 0;
}
