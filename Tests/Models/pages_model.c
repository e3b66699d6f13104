// SPDX-License-Identifier: MIT
// Pairs of pages against takers, returners and the end of a block: pages.c of the core, unchanged, with one pair to a block.
//
// A pair's content is one word, 0 where it was wiped or newly mapped. A thread that takes a pair finds 0, writes its name, and
// finds the name still there before it gives the pair back. The kernel maps at the lowest place that is free: so the place of a
// block that was unmapped is that of the next one.
//
// Threads: A and B take a pair and return it (with ONE: A alone). With SPARE a block with a free pair is there, and C returns
// another block's. That `base` becomes NULL before the pages go wants three blocks to go wrong, which is too large for a model.
#include "model.h"

static int model_ctz(uint64_t value) {
  int count = 0;
  while ((value & 1) == 0) {
    value >>= 1;
    count++;
  }
  return count;
}
#define __builtin_ctzll model_ctz
#define PURGEABLE__BLOCK_PAIRS 1
#include "pages.c"

enum { PLACES = 4 };
static _Atomic int is_mapped[PLACES];
static _Atomic int content[PLACES];
// A page is a byte.
static char places[2 * PLACES];
static block_t blocks[PLACES];
static _Atomic int block_count;

size_t purgeable_page_size_bytes(void) { return 1; }

static int place_of(void *start) { return (int)((char *)start - places) / 2; }

// MARK: The kernel: one call at a time

void *purgeable__map(size_t length, size_t alignment, const char *name, int *error) {
  (void)length;
  (void)alignment;
  (void)name;
  for (int i = 0; i < PLACES; i++) {
    int none = 0;
    if (!atomic_compare_exchange_strong(&is_mapped[i], &none, 1)) continue;
    return &places[2 * i];
  }
  *error = ENOMEM;
  return 0;
}

int purgeable__unmap(void *start, size_t length) {
  (void)length;
#ifdef REFUSES
  (void)start;
  return ENOMEM;
#else
  int place = place_of(start);
  // Pages that come back are zeros.
  atomic_store_explicit(&content[place], 0, memory_order_relaxed);
  int was = atomic_exchange(&is_mapped[place], 0);
  assert(was == 1);
  return 0;
#endif
}

int purgeable__wipe(void *start, size_t length) {
  (void)length;
  atomic_store_explicit(&content[place_of(start)], 0, memory_order_relaxed);
  return 0;
}

void *purgeable__allocate(size_t count, size_t size) {
  (void)count;
  (void)size;
  int number = __c11_atomic_fetch_add(&block_count, 1, memory_order_relaxed);
  assert(number < PLACES);
  return &blocks[number];
}

// MARK: Threads

static void hold(int name) {
  int error = 0;
  char *pair = purgeable__pair_take(&error);
  assert(pair >= places && pair < places + 2 * PLACES);
  _Atomic int *word = &content[place_of(pair)];
  assert(atomic_load_explicit(word, memory_order_relaxed) == 0);
  atomic_store_explicit(word, name, memory_order_relaxed);
  assert(atomic_load_explicit(word, memory_order_relaxed) == name);
  purgeable__pair_return(pair);
}

static void *a(void *unused) {
  hold(1);
  return unused;
}
static void *b(void *unused) {
  hold(2);
  return unused;
}
static char *others;
static void *c(void *unused) {
  purgeable__pair_return(others);
  return unused;
}

int main(void) {
  pthread_t thread_a, thread_b, thread_c;
  int error = 0;
#ifdef SPARE
  char *spare = purgeable__pair_take(&error);
  others = purgeable__pair_take(&error);
  assert(spare != 0 && others != 0 && spare != others);
  purgeable__pair_return(spare);
  pthread_create(&thread_c, 0, c, 0);
#endif
  pthread_create(&thread_a, 0, a, 0);
#ifndef ONE
  pthread_create(&thread_b, 0, b, 0);
#endif
#ifdef SPARE
  pthread_join(thread_c, 0);
#endif
  pthread_join(thread_a, 0);
#ifndef ONE
  pthread_join(thread_b, 0);
#endif
  (void)thread_b;
  (void)thread_c;
  (void)b;
  (void)error;
  (void)c;
  (void)others;
  return 0;
}
