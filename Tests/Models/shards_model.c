// SPDX-License-Identifier: MIT
// A cache whose entries move to other shards while it is read and written: a model in C of what is written in Swift.
//
// Stands for, in Sources/Purgeable/Cache: CacheShards+Opening.swift (`openShards`, `goOnOpening`, `bringHome`, `closeIfTooMany`,
// `takeOver`), `hold(homeOf:)` in CacheShards.swift, `ShardLooks` and `ShardMask`, and CacheEngine+Read.swift (`read`). Entries
// move under the mutexes of both shards, which are free for a while when shards open. A writer moves what the founder has of the
// key, and looks at the mask under the mutex of the key's home. A reader looks in the key's home; while entries move, where they
// come from, and then where they go to; then at the mask. Change one, change the other.
//
// One key, whose home the version of the mask tells. An index has one slot. Each RULE_... is 1; a run with one of them 0 has to
// find the wrong result.
#include "model.h"

#ifndef RULE_look_again  // a miss counts only if the mask is what it was
#define RULE_look_again 1
#endif
#ifndef RULE_looks_twice  // while entries move, a reader looks in both shards
#define RULE_looks_twice 1
#endif
#ifndef RULE_source_first  // and where they come from first
#define RULE_source_first 1
#endif
#ifndef RULE_mask_first  // the mask says that entries move before the first one does
#define RULE_mask_first 1
#endif
#ifndef RULE_bring_home  // a writer moves the founder's entry before it stores
#define RULE_bring_home 1
#endif
#ifndef RULE_new_first  // the slot where an entry goes to is inserted before the old one is emptied
#define RULE_new_first 1
#endif
#ifndef RULE_writer_again  // a writer looks at the mask again under the mutex
#define RULE_writer_again 1
#endif
#ifndef RULE_under_mutexes  // entries move under the mutexes of all shards
#define RULE_under_mutexes 1
#endif
#ifndef MASK_STORE
#define MASK_STORE memory_order_release  // partner: MASK_LOAD
#endif
#ifndef MASK_LOAD
#define MASK_LOAD memory_order_acquire
#endif
#ifndef EMPTY_STORE
#define EMPTY_STORE memory_order_release  // the old slot, after the mask and the new one; partner: SLOT_LOAD
#endif
#ifndef SLOT_STORE
#define SLOT_STORE memory_order_release  // partner: SLOT_LOAD
#endif
#ifndef SLOT_LOAD
#define SLOT_LOAD memory_order_acquire
#endif

enum { OLD = 5, NEW = 6, TRIES = 2 };

// Versions: 0 in shard 0, 1 moves to shard 1, 2 in shard 1, 3 moves to shard 0, 4 in shard 0.
static int is_moving(int version) { return version & 1; }
static int home(int version) { return ((version + 1) >> 1) & 1; }

static _Atomic int ready;       // shard 1 is made: what the mask leads to
static _Atomic int mask;        // the version alone
static _Atomic int slots[2];    // 0 or a place + 1, in the index of each shard
static _Atomic int values[4];   // by place: the old value's, its copy's and that one's copy's, the new value's
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
    if (seen != 0) assert(atomic_load_explicit(&ready, memory_order_relaxed) == 1);
    int first = is_moving(seen) && RULE_source_first ? 1 - home(seen) : home(seen);
    int value = look(first);
    if (value == 0 && is_moving(seen) && RULE_looks_twice) value = look(1 - first);
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

static void lock_both(void) {
  if (RULE_under_mutexes) pthread_mutex_lock(&mutexes[0]);
  if (RULE_under_mutexes) pthread_mutex_lock(&mutexes[1]);
}

static void unlock_both(void) {
  if (RULE_under_mutexes) pthread_mutex_unlock(&mutexes[1]);
  if (RULE_under_mutexes) pthread_mutex_unlock(&mutexes[0]);
}

// `version`: of the mask while entries move.
static void move_entry(int version) {
  int to = home(version), from = 1 - to;
  int slot = atomic_load_explicit(&slots[from], memory_order_relaxed);
  if (slot == 0) return;
  int place = (version + 1) / 2;
  atomic_store_explicit(&values[place], atomic_load_explicit(&values[slot - 1], memory_order_relaxed), memory_order_relaxed);
  if (!RULE_new_first) atomic_store_explicit(&slots[from], 0, EMPTY_STORE);
  atomic_store_explicit(&slots[to], place + 1, SLOT_STORE);
  if (RULE_new_first) atomic_store_explicit(&slots[from], 0, EMPTY_STORE);
}

static void bring_home(void) {
  lock_both();
  int version = atomic_load_explicit(&mask, memory_order_relaxed);
  if (version == 1) move_entry(version);
  unlock_both();
}

static void *writer(void *unused) {
  (void)unused;
  for (int tries = 0; tries < 2; tries++) {
    int seen = atomic_load_explicit(&mask, MASK_LOAD);
    int shard = home(seen);
    if (RULE_bring_home && seen == 1 && atomic_load_explicit(&slots[0], SLOT_LOAD) != 0) bring_home();
    pthread_mutex_lock(&mutexes[shard]);
    if (RULE_writer_again && atomic_load_explicit(&mask, memory_order_relaxed) != seen) {
      pthread_mutex_unlock(&mutexes[shard]);
      continue;
    }
    atomic_store_explicit(&values[3], NEW, memory_order_relaxed);
    atomic_store_explicit(&slots[shard], 3 + 1, SLOT_STORE);
#ifdef REMOVES
    atomic_store_explicit(&slots[shard], 0, EMPTY_STORE);
#endif
    pthread_mutex_unlock(&mutexes[shard]);
    atomic_store(&is_stored, 1);
#ifdef REMOVES
    assert(read_key() <= 0);
#endif
    return 0;
  }
  return 0;
}

static void *mover(void *unused) {
  (void)unused;
  // The shards open.
  lock_both();
  atomic_store_explicit(&ready, 1, memory_order_relaxed);
  if (RULE_mask_first) atomic_store_explicit(&mask, 1, MASK_STORE);
  unlock_both();
  lock_both();
  move_entry(1);
  atomic_store_explicit(&mask, 2, MASK_STORE);
  unlock_both();
#ifdef CLOSES
  lock_both();
  if (RULE_mask_first) atomic_store_explicit(&mask, 3, MASK_STORE);
  move_entry(3);
  atomic_store_explicit(&mask, 4, MASK_STORE);
  unlock_both();
#endif
  return 0;
}

int main(void) {
  atomic_store(&values[0], OLD);
  atomic_store(&slots[0], 0 + 1);
  pthread_t threads[3];
  int count = 0;
  pthread_create(&threads[count++], 0, mover, 0);
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
