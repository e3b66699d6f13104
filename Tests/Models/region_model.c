// SPDX-License-Identifier: MIT
// The word of a region against offers, fills, discards and readers: region.c, region_word.c, region_read.c, region_filler.c and
// region_fill.c of the core, unchanged.
//
// One region of one page that holds two words of content. Threads, each begun by the macro of its name:
//   R reads without lock   W locks for writing   L locks   T locks and waits for fills   O offers   D discards   K kernel
//   F refills   P refills and publishes   X refills and gives up   E, E2 lock or fill
#include "model.h"

#include "region_structure.h"

#include "region_word.c"

#include "region.c"

#include "region_read.c"

// Threads take numbers: here the addition decides something.
#undef atomic_fetch_add_explicit
#define atomic_fetch_add_explicit __c11_atomic_fetch_add
#include "region_filler.c"

#include "region_fill.c"

// MARK: What they call

enum { WORDS = 2 };

static _Atomic uint64_t frames[FRAMES][WORDS];
static _Atomic uint64_t the_word = WORD_ALIVE;
static purgeable__counters_t counters;
static struct purgeable_region region;

purgeable__shared_t *purgeable__shared(void) { return 0; }
bool purgeable__may_lock(purgeable_region_t *r, size_t bytes) { return r != 0 || bytes != 0; }
void purgeable__queue_push(purgeable_region_t *r) { (void)r; }

// A futex: a thread that sleeps goes on after a later wake. So with SLEEPS, for liveness; elsewhere a change of the word is
// enough.
#ifdef SLEEPS
static _Atomic int wakes;
void purgeable__wait(_Atomic uint64_t *word, uint32_t low) {
  int before = atomic_load(&wakes);
  if ((uint32_t)atomic_load(word) != low) return;
  while (atomic_load(&wakes) == before) continue;
}
void purgeable__wake_all(_Atomic uint64_t *word) {
  (void)word;
  atomic_fetch_add(&wakes, 1);
}
#else
void purgeable__wait(_Atomic uint64_t *word, uint32_t low) { __VERIFIER_assume((uint32_t)atomic_load(word) != low); }
void purgeable__wake_all(_Atomic uint64_t *word) { (void)word; }
#endif

int purgeable__madvise(void *start, size_t length, int advice) {
  (void)start;
  (void)length;
  if (advice == MADV_DONTNEED) {
    model_drop();
  } else {
    model_free();
  }
  return 0;
}

// Where memory is mlocked the kernel refuses; the core stores zeros by hand, the witness first: `clear_by_hand` in syscalls.c.
int purgeable__wipe(void *start, size_t length) {
#ifdef MLOCKED
#ifndef WITNESS_LAST
  atomic_store_explicit(&frames[0][0], 0, memory_order_relaxed);
#ifndef NO_FENCE_AFTER_WITNESS
  atomic_thread_fence(memory_order_release);
#endif
  atomic_store_explicit(&frames[0][1], 0, memory_order_relaxed);
#else
  atomic_store_explicit(&frames[0][1], 0, memory_order_relaxed);
  atomic_thread_fence(memory_order_release);
  atomic_store_explicit(&frames[0][0], 0, memory_order_relaxed);
#endif
  return start == 0 || length == 0;
#else
  return purgeable__madvise(start, length, MADV_DONTNEED);
#endif
}

static uint64_t see(int word) {
  int frame;
  return content_is_seen(&frame) ? atomic_load_explicit(&frames[frame][word], memory_order_relaxed) : 0;
}

// The witness is word 0: gone with the page, or cleared by hand.
static bool witness_stands(void) {
  if ((atomic_load_explicit(&page, memory_order_relaxed) & PRESENT) == 0) return false;
#ifdef MLOCKED
  return atomic_load_explicit(&frames[0][0], memory_order_relaxed) != 0;
#else
  return true;
#endif
}

void purgeable__witnesses_take(purgeable_region_t *r) { (void)r; }
bool purgeable__witnesses_stand(const purgeable_region_t *r, size_t first, size_t end) {
  (void)r;
  (void)first;
  (void)end;
  return witness_stands();
}
bool purgeable__witnesses_rescue(purgeable_region_t *r) { return r != 0 && model_rescue(); }

void purgeable__copy_unsettled(void *to, const void *from, size_t length) {
  (void)from;
  (void)length;
  ((uint64_t *)to)[0] = see(0);
  ((uint64_t *)to)[1] = see(1);
}

static void *volatile token;
purgeable__sentinel_t purgeable__sentinel_arm(void) { return &token; }
bool purgeable__sentinel_holds(purgeable__sentinel_t s) { return s != 0; }
void purgeable__sentinel_disarm(purgeable__sentinel_t s) { (void)s; }

// The claim of region_offer.c and region_batch.c (`purgeable__region_offer`, `purgeable__can_offer`, `purgeable__word_claimed`)
// for one region.
int purgeable__region_offer(purgeable_region_t *r) {
  uint64_t word = purgeable__word_load(r);
  for (;;) {
    if ((word & WORD_DISCARDED) != 0) return 0;
    if ((word & WORD_OFFERING) != 0) {
      word = purgeable__word_wait(r, word);
      continue;
    }
    if (purgeable__word_count(word) != 0) return EBUSY;
    if (purgeable__word_change(r, &word, (word & ~WORD_REFUSED) | WORD_OFFERING | WORD_ON_OFFER)) break;
  }
  purgeable__madvise(r->bytes, 4096, PURGEABLE__MADV_FREE);
  purgeable__word_finish(r, 0, 0);
  return 0;
}

// MARK: Threads

static void fill(uint64_t value) {
  for (int word = 0; word < WORDS; word++) atomic_store_explicit(&frames[touch()][word], value, memory_order_relaxed);
}

// Content that was read as intact is of one fill, and not the kernel's zeros.
static void *reader(void *unused) {
  (void)unused;
  uint64_t got[2] = {1, 2};
  if (purgeable_region_read(&region, 0, 16, got) == purgeable_outcome_intact) assert(got[0] == got[1] && got[0] != 0);
  return 0;
}

static void *writer(void *unused) {
  (void)unused;
  if (purgeable_region_lock_for_writing(&region) != purgeable_outcome_intact) return 0;
  fill(9);
  assert(purgeable_region_unlock(&region) == 0);
  return 0;
}

// Locked content is there, of one fill, and stays.
static void look_and_unlock(void) {
  uint64_t first = see(0), second = see(1);
  assert(first != 0 && second != 0);
#ifndef W  // who writes holds a lock as well: the program keeps the two apart
  assert(first == second);
#endif
  assert((atomic_load(&page) & PRESENT) != 0);
  assert(purgeable_region_unlock(&region) == 0);
}

static void *locker(void *unused) {
  (void)unused;
  if (purgeable_region_lock(&region) == purgeable_outcome_intact) look_and_unlock();
  return 0;
}

static void *waiter(void *unused) {
  (void)unused;
  purgeable_outcome_t outcome = purgeable_region_lock_waiting(&region);
  assert(outcome != purgeable_outcome_busy);
  if (outcome == purgeable_outcome_intact) look_and_unlock();
  return 0;
}

static void *offerer(void *unused) {
  (void)unused;
  (void)purgeable__region_offer(&region);
  return 0;
}

static void *refiller(void *unused) {
  (void)unused;
  if (purgeable_region_refill(&region) != 0) return 0;
  fill(7);
  assert(purgeable_region_unlock(&region) == 0);
  return 0;
}

static void *publisher(void *unused) {
  (void)unused;
  if (purgeable_region_refill(&region) != 0) return 0;
  fill(7);
  assert(purgeable_region_publish(&region) == 0);
  look_and_unlock();
  return 0;
}

// Gives up half-way.
static void *abandoner(void *unused) {
  (void)unused;
  if (purgeable_region_refill(&region) != 0) return 0;
  atomic_store_explicit(&frames[touch()][0], 8, memory_order_relaxed);
  assert(purgeable_region_abandon(&region) == 0);
  return 0;
}

// Of the threads that find the region discarded one fills, and the others are told intact.
static _Atomic int fillers;
static void *elector(void *unused) {
  (void)unused;
  bool is_filler;
  purgeable_outcome_t outcome = purgeable_region_lock_or_fill(&region, &is_filler);
  if (is_filler) {
    assert(atomic_fetch_add(&fillers, 1) == 0);
    fill(7);
    assert(purgeable_region_unlock(&region) == 0);
  } else if (outcome == purgeable_outcome_intact) {
    look_and_unlock();
  }
  return 0;
}

static void *discarder(void *unused) {
  (void)unused;
  (void)purgeable_region_discard(&region);
  return 0;
}

int main(void) {
  pthread_t thread;
  fill(5);
  region.word = &the_word;
  region.bytes = (char *)&page;
  region.length_bytes = region.page_size_bytes = 4096;
  region.page_count = 1;
  region.counters = &counters;
  region.offering = purgeable_offering_never;
#ifdef START_OFFERED
  atomic_store(&the_word, WORD_ALIVE | WORD_ON_OFFER);
  atomic_fetch_and(&page, ~DIRTY);
#endif
#ifdef START_DISCARDED
  atomic_store(&the_word, WORD_ALIVE | WORD_DISCARDED);
  model_drop();
#endif
#ifdef R
  pthread_create(&thread, 0, reader, 0);
#endif
#ifdef W
  pthread_create(&thread, 0, writer, 0);
#endif
#ifdef L
  pthread_create(&thread, 0, locker, 0);
#endif
#ifdef T
  pthread_create(&thread, 0, waiter, 0);
#endif
#ifdef O
  pthread_create(&thread, 0, offerer, 0);
#endif
#ifdef F
  pthread_create(&thread, 0, refiller, 0);
#endif
#ifdef P
  pthread_create(&thread, 0, publisher, 0);
#endif
#ifdef X
  pthread_create(&thread, 0, abandoner, 0);
#endif
#ifdef E
  pthread_create(&thread, 0, elector, 0);
#endif
#ifdef E2
  pthread_create(&thread, 0, elector, 0);
#endif
#ifdef D
  pthread_create(&thread, 0, discarder, 0);
#endif
#ifdef K
  pthread_create(&thread, 0, kernel, 0);
#endif
  return 0;
}
