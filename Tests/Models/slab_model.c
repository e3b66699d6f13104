// SPDX-License-Identifier: MIT
// A slab's word: pin, claim, offer, give back and the next life. A small model of C that is larger than GenMC takes.
//
// Stands for, in CPurgeable/src: heap_word.c (`purgeable__pin`, `purgeable__end_offer`), heap_release.c (`count_down`,
// `purgeable__release`), heap_offer.c (`begin_offer`, `purgeable__wait_for_offer`, `purgeable__offer_run`), heap_give_back.c
// (`purgeable__give_back_if_empty`),
// heap_element.c (`purgeable_heap_free`, commit), heap_allocate.c, heap_units.c (`purgeable__units_take`), heap_lock.c
// (`purgeable_heap_lock`). Change one, change the other.
//
// One slab of one page with one element, sealed. Threads, each begun by the macro of its name:
//   F frees the element   L, L2 lock it, look, unlock   O offers   K kernel   A stores the next life's element, in an open slab
// Each RULE_... is 1; a run with one of them 0 has to find the wrong result.
#include "model.h"

#ifndef RULE_claim_from_zero  // only what nobody counts in, and no madvise covers, is given back
#define RULE_claim_from_zero 1
#endif
#ifndef RULE_wait_for_offer  // lockers wait for a running madvise
#define RULE_wait_for_offer 1
#endif
#ifndef RULE_pin_looks  // a pin looks at generation and DYING
#define RULE_pin_looks 1
#endif
#ifndef RULE_offer_from_zero  // only what nobody counts in is offered
#define RULE_offer_from_zero 1
#endif
#ifndef RULE_offer_gives_back  // after an offer an empty slab is given back
#define RULE_offer_gives_back 1
#endif
#ifndef RULE_own_life  // and only the life that was offered, not one that has begun since
#define RULE_own_life 1
#endif
#ifndef RULE_living_first  // free counts the living down before it gives its own count back
#define RULE_living_first 1
#endif
// Orders, each with its partner. In the core the first five are sequentially consistent.
#ifndef PIN
#define PIN memory_order_seq_cst  // partner: CLAIM, BEGIN_OFFER, END_OFFER, REBIRTH
#endif
#ifndef COUNT_DOWN
#define COUNT_DOWN memory_order_seq_cst  // partner: CLAIM, and the count downs of others
#endif
#ifndef LIVING_DOWN
#define LIVING_DOWN memory_order_seq_cst  // partner: the look at the living after a count down
#endif
#ifndef CLAIM
#define CLAIM memory_order_seq_cst  // partner: COUNT_DOWN
#endif
#ifndef END_OFFER
#define END_OFFER memory_order_seq_cst  // partner: WAIT
#endif
#ifndef WAIT
#define WAIT memory_order_acquire  // `purgeable__wait_for_offer`
#endif
#ifndef REBIRTH
#define REBIRTH memory_order_release  // `purgeable__units_take`; partner: PIN
#endif

enum { COUNT = 0xF, OFFERING = 0x10, DYING = 0x20, GENERATION = 0x100 };
enum { OLD = 5, NEW = 9 };

static _Atomic int word = GENERATION;
static _Atomic int living = 1;
static _Atomic int is_sealed = 1;
static _Atomic int is_free;  // the unit may be taken: under the heap's mutex in the core
static _Atomic int content;
// How many threads hold a lock, and how often the page was wiped.
static _Atomic int holders, wipes;

static bool exchange(int *seen, int wanted, memory_order order) {
  switch (order) {
    case memory_order_relaxed:
      return atomic_compare_exchange_strong_explicit(&word, seen, wanted, memory_order_relaxed, memory_order_relaxed);
    case memory_order_acquire:
      return atomic_compare_exchange_strong_explicit(&word, seen, wanted, memory_order_acquire, memory_order_relaxed);
    case memory_order_release:
      return atomic_compare_exchange_strong_explicit(&word, seen, wanted, memory_order_release, memory_order_relaxed);
    case memory_order_acq_rel:
      return atomic_compare_exchange_strong_explicit(&word, seen, wanted, memory_order_acq_rel, memory_order_relaxed);
    default: return atomic_compare_exchange_strong(&word, seen, wanted);
  }
}

static bool pin(int generation) {
  int seen = atomic_load_explicit(&word, memory_order_relaxed);
  do {
    if (RULE_pin_looks && (seen / GENERATION != generation || (seen & DYING) != 0)) return false;
  } while (!exchange(&seen, seen + 1, PIN));
  return true;
}

static void wipe(void) {
  assert(atomic_load(&holders) == 0);
  model_drop();
  atomic_store_explicit(&content, 0, memory_order_relaxed);
  atomic_fetch_add(&wipes, 1);
}

static void give_back_if_empty(int generation) {
  int sealed = atomic_load(&is_sealed);
  int seen = atomic_load(&word);
  do {
    if (seen / GENERATION != generation || (seen & DYING) != 0) return;
    // The last unlock comes here again; after an offer the offer does.
    if (RULE_claim_from_zero && (seen & (COUNT | OFFERING)) != 0) return;
    if (!sealed || atomic_load(&living) != 0) return;
  } while (!exchange(&seen, seen | DYING, CLAIM));
  atomic_store(&word, (generation + 1) * GENERATION | DYING);
  wipe();
  // `return_units`, under the heap's mutex.
  atomic_store_explicit(&is_sealed, 0, memory_order_relaxed);
  atomic_store_explicit(&is_free, 1, memory_order_release);
}

static void unpin(void) {
  int seen = atomic_load_explicit(&word, memory_order_relaxed);
  while (!exchange(&seen, seen - 1, COUNT_DOWN)) continue;
  assert((seen & COUNT) != 0);
  if ((seen & COUNT) != 1) return;
  if (atomic_load(&living) == 0 && atomic_load(&is_sealed)) give_back_if_empty(seen / GENERATION);
}

static void *freer(void *unused) {
  (void)unused;
  bool pinned = pin(1);
  assert(pinned);
  if (RULE_living_first) atomic_fetch_sub_explicit(&living, 1, LIVING_DOWN);
  unpin();
  if (!RULE_living_first) atomic_fetch_sub_explicit(&living, 1, LIVING_DOWN);
  return 0;
}

static void *locker(void *unused) {
  (void)unused;
  if (!pin(1)) return 0;
  while (RULE_wait_for_offer) {
    int seen = atomic_load_explicit(&word, WAIT);
    if ((seen & OFFERING) == 0) break;
    __VERIFIER_assume(atomic_load(&word) != seen);
  }
  if (model_rescue()) {
    atomic_fetch_add(&holders, 1);
    assert(atomic_load_explicit(&content, memory_order_relaxed) == OLD);
    assert((atomic_load(&page) & PRESENT) != 0);
    atomic_fetch_sub(&holders, 1);
  }
  unpin();
  return 0;
}

static void *offerer(void *unused) {
  (void)unused;
  int seen = atomic_load_explicit(&word, memory_order_acquire);
  do {
    if ((seen & (OFFERING | DYING)) != 0 || (RULE_offer_from_zero && (seen & COUNT) != 0)) return 0;
  } while (!exchange(&seen, seen | OFFERING, memory_order_seq_cst));
  model_free();
  int before = atomic_fetch_and_explicit(&word, ~OFFERING, END_OFFER);
  if (RULE_offer_gives_back && atomic_load(&living) == 0 && atomic_load(&is_sealed)) {
    give_back_if_empty((RULE_own_life ? before : atomic_load(&word)) / GENERATION);
  }
  return 0;
}

static void *storer(void *unused) {
  (void)unused;
  if (atomic_load_explicit(&is_free, memory_order_acquire) == 0) return 0;
  // An open slab is the stream's, and no other thread ends it.
  int seen = atomic_load_explicit(&word, memory_order_relaxed);
  atomic_store_explicit(&word, seen & ~DYING, REBIRTH);
  bool pinned = pin(seen / GENERATION);
  assert(pinned);
  touch();
  atomic_store_explicit(&content, NEW, memory_order_relaxed);
  atomic_fetch_add(&living, 1);
  unpin();
  return 0;
}

int main(void) {
  atomic_store(&content, OLD);
#ifdef START_OFFERED
  atomic_fetch_and(&page, ~DIRTY);
#endif
  enum { MOST = 6 };
  pthread_t threads[MOST];
  int count = 0;
#ifdef F
  pthread_create(&threads[count++], 0, freer, 0);
#endif
#ifdef L
  pthread_create(&threads[count++], 0, locker, 0);
#endif
#ifdef L2
  pthread_create(&threads[count++], 0, locker, 0);
#endif
#ifdef O
  pthread_create(&threads[count++], 0, offerer, 0);
#endif
#ifdef A
  pthread_create(&threads[count++], 0, storer, 0);
#endif
#ifdef K
  pthread_create(&threads[count++], 0, kernel, 0);
#endif
  for (int i = 0; i < count; i++) pthread_join(threads[i], 0);
#ifdef F
  // An empty slab that no thread holds was given back, once, by one of them.
  assert(atomic_load(&wipes) == 1);
  assert((atomic_load(&word) & (COUNT | OFFERING)) == 0);
#endif
  return 0;
}
