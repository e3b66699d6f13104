// SPDX-License-Identifier: MIT
// A key's slot against replacement, growth of the index and the next life of its old place: a model in C of what is in Swift.
//
// Stands for, in Sources/Purgeable/Cache: SlotIndex.swift (`current`, `isCurrent`, `insert`, `resize`, `clear`),
// CacheEngine+Read.swift (`read`), HeldShard+Store.swift (`store`, `replace`); and for what these call in the core:
// `purgeable_heap_generation`, `purgeable_heap_read_matching`, commit and give-back. Change one, change the other.
//
// Two tables of two buckets of one slot. A slot is 0 or a place + 1. A place holds one element: its key and its value.
// Each RULE_... is 1; a run with one of them 0 has to find the wrong result.
#include "model.h"

#ifndef RULE_slot_again  // the slot is looked at again after the generation
#define RULE_slot_again 1
#endif
#ifndef RULE_slot_after  // and after the copy
#define RULE_slot_after 1
#endif
#ifndef RULE_is_current  // "not found" only in the present table
#define RULE_is_current 1
#endif
#ifndef RULE_publish_first  // the new table is published before the old one is emptied
#define RULE_publish_first 1
#endif
#ifndef RULE_free_last  // the old place is freed after the slot has changed
#define RULE_free_last 1
#endif
#ifndef RULE_generation_first  // the generation rises before the wipe
#define RULE_generation_first 1
#endif
// Orders, each with its partner.
#ifndef SLOT_STORE
#define SLOT_STORE memory_order_release  // `insert`, `replace`; partner: SLOT_LOAD
#endif
#ifndef SLOT_LOAD
#define SLOT_LOAD memory_order_acquire  // `read`, first look
#endif
#ifndef SLOT_LOAD_AGAIN
#define SLOT_LOAD_AGAIN memory_order_acquire  // `read`, second look
#endif
#ifndef CURRENT_STORE
#define CURRENT_STORE memory_order_release  // `resize`; partner: CURRENT_LOAD
#endif
#ifndef CURRENT_LOAD
#define CURRENT_LOAD memory_order_acquire  // `current`
#endif
#ifndef CLEAR_STORE
#define CLEAR_STORE memory_order_release  // `clear`, where the kernel does not do it; partner: SLOT_LOAD
#endif
#ifndef FENCE_IS_CURRENT
#define FENCE_IS_CURRENT memory_order_acquire  // `isCurrent`
#endif
#ifndef FENCE_SLOT_AFTER
#define FENCE_SLOT_AFTER memory_order_acquire  // `read`, before the last look at the slot
#endif
#ifndef GENERATION_LOAD
#define GENERATION_LOAD memory_order_acquire  // `purgeable_heap_generation`
#endif
#ifndef FENCE_NEXT_LIFE
#define FENCE_NEXT_LIFE memory_order_release  // `begin_element`: before a life's first bytes; partner: FENCE_COPY
#endif
#ifndef FENCE_COPY
#define FENCE_COPY memory_order_acquire  // `read_unlocked`: between copy and checks
#endif

#ifndef READS
#define READS 1
#endif

enum { KEY = 1, OTHER_KEY = 2, PLACES = 3, TRIES = 2 };
enum { OLD = 5, NEW = 6, NEWER = 7, NEVER_SEEN = 13 };

// The number of the present table, which is its version too: each is used once.
static _Atomic int current = 0;
static _Atomic int slots[2][2];
static _Atomic int generation[PLACES];
static _Atomic int keys[PLACES], values[PLACES];

// MARK: The heap

static void put(int place, int key, int value) {
  atomic_thread_fence(FENCE_NEXT_LIFE);
  atomic_store_explicit(&keys[place], key, memory_order_relaxed);
  atomic_store_explicit(&values[place], value, memory_order_relaxed);
}

static void wipe(int place) {
  atomic_store_explicit(&keys[place], 0, memory_order_relaxed);
  atomic_store_explicit(&values[place], 0, memory_order_relaxed);
}

// The slab was the element's alone: freed is given back.
static void give_back(int place) {
  int next = atomic_load_explicit(&generation[place], memory_order_relaxed) + 1;
  if (!RULE_generation_first) wipe(place);
  atomic_store(&generation[place], next);
  atomic_thread_fence(memory_order_seq_cst);  // the kernel: who asks for pages to be dropped has all processors told
  if (RULE_generation_first) wipe(place);
}

enum outcome { busy, intact, other };

static enum outcome read_matching(int place, int its_generation, int *value) {
  if (atomic_load_explicit(&generation[place], memory_order_acquire) != its_generation) return busy;
  int key = atomic_load_explicit(&keys[place], memory_order_relaxed);
  *value = atomic_load_explicit(&values[place], memory_order_relaxed);
  atomic_thread_fence(FENCE_COPY);
  if (atomic_load_explicit(&generation[place], memory_order_acquire) != its_generation) return busy;
  return key == KEY ? intact : other;
}

// MARK: Reading

// A value, 0 for "not there", -1 for "ask under the mutex".
static int read_key(void) {
  for (int tries = 0; tries < TRIES; tries++) {
    int table = atomic_load_explicit(&current, CURRENT_LOAD);
    bool again = false;
    for (int bucket = 0; bucket < 2 && !again; bucket++) {
      _Atomic int *pointer = &slots[table][bucket];
      int slot = atomic_load_explicit(pointer, SLOT_LOAD);
      if (slot == 0) continue;
      int place = slot - 1, value;
      int its_generation = atomic_load_explicit(&generation[place], GENERATION_LOAD);
      if (RULE_slot_again && atomic_load_explicit(pointer, SLOT_LOAD_AGAIN) != slot) {
        again = true;
        continue;
      }
      enum outcome outcome = read_matching(place, its_generation, &value);
      if (outcome == other) continue;
      if (outcome == busy) {
        again = true;
        continue;
      }
      atomic_thread_fence(FENCE_SLOT_AFTER);
      if (RULE_slot_after && atomic_load_explicit(pointer, memory_order_relaxed) != slot) {
        again = true;
        continue;
      }
      return value;
    }
    if (again) continue;
    if (!RULE_is_current) return 0;
    atomic_thread_fence(FENCE_IS_CURRENT);
    if (atomic_load_explicit(&current, memory_order_relaxed) == table) return 0;
  }
  return -1;
}

// MARK: Changing, one thread at a time

static void replace(int bucket, int old_place, int place, int value) {
  _Atomic int *pointer = &slots[atomic_load_explicit(&current, memory_order_relaxed) ][bucket];
  put(place, KEY, value);
  if (!RULE_free_last) give_back(old_place);
  atomic_store_explicit(pointer, place + 1, SLOT_STORE);
  if (RULE_free_last) give_back(old_place);
}

static void grow(void) {
  if (RULE_publish_first) {
    atomic_store_explicit(&slots[1][1], atomic_load_explicit(&slots[0][0], memory_order_relaxed), SLOT_STORE);
    atomic_store_explicit(&current, 1, CURRENT_STORE);
    atomic_store_explicit(&slots[0][0], 0, CLEAR_STORE);
  } else {
    int slot = atomic_load_explicit(&slots[0][0], memory_order_relaxed);
    atomic_store_explicit(&slots[0][0], 0, CLEAR_STORE);
    atomic_store_explicit(&slots[1][1], slot, SLOT_STORE);
    atomic_store_explicit(&current, 1, CURRENT_STORE);
  }
}

// MARK: Threads

// The key is there throughout. Its values follow each other: no read goes back.
static void *reader(void *unused) {
  (void)unused;
  int last = OLD;
  for (int i = 0; i < READS; i++) {
    int value = read_key();
    assert(value != 0);
    if (value == -1) continue;
    assert(value == OLD || value == NEW || value == NEWER);
    assert(value >= last);
    last = value;
  }
  return 0;
}

static void *changer(void *unused) {
  (void)unused;
#ifdef REPLACES
  replace(0, 0, 1, NEW);
#ifdef REUSES
  // The next element at the old place belongs to another key.
  put(0, OTHER_KEY, NEVER_SEEN);
#endif
#ifdef COMES_BACK
  // The element was stored, but the index had no room: it was freed again, seen by no reader. Then the place is the key's once
  // more.
  put(0, KEY, NEVER_SEEN);
  give_back(0);
  replace(0, 1, 0, NEWER);
#endif
#endif
#ifdef GROWS
  grow();
#ifdef REPLACES_AFTER
  replace(1, 0, 1, NEW);
#endif
#endif
  return 0;
}

int main(void) {
  pthread_t thread;
  put(0, KEY, OLD);
  atomic_store(&slots[0][0], 0 + 1);
  pthread_create(&thread, 0, reader, 0);
  pthread_create(&thread, 0, changer, 0);
  return 0;
}
