// SPDX-License-Identifier: MIT
// Upkeep of all that a process has: the list of heaps, one pass over them and the regions, and the thread that makes passes.
//
//   heap_create --register--> block: [heap|heap|  -  |heap] --> block ...      ordinary memory; entries are single words
//                                        ^
//   pass: entry --> page.current --> entry again, unchanged --> work --> page.current = NULL, wake
//                         ^
//   heap_destroy: entry = NULL --> while page.current is this heap: sleep
//
// A fork may come at any moment. The list is in ordinary memory: each change is one word, so the child finds it whole. What says
// who is at work lies in a page that a fork wipes: the child finds no pass, an open mutex, and no thread.

#include "internal.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "purgeable_heap.h"
#include "purgeable_region.h"
#include "purgeable_upkeep.h"

// MARK: State that a fork wipes

enum { NO_THREAD = 0, RUNNING = 1, ENDING = 2, STARTING = 3 };

typedef struct upkeep_page {
  // One pass at a time.
  pthread_mutex_t pass;
  // The heap that the pass is at. Sequentially consistent, as the entries of the list are: a pass that has written this and still
  // finds the heap in the list is seen by whoever takes the heap off it.
  _Atomic(purgeable_heap_t *) current;
  // Rises when `current` changes: what an unregistering thread sleeps on.
  _Atomic uint64_t changes;
  // The thread inside of the pass, and that of `purgeable_upkeep_start`, by the kernel's number; 0: none. Relaxed: only the
  // thread itself finds its own number there.
  _Atomic long pass_owner, upkeep_thread;
  // NO_THREAD ... STARTING. What the thread sleeps on between passes.
  _Atomic uint64_t state;
  // Written before `state` becomes RUNNING, read by who makes it ENDING.
  pthread_t thread;
  uint32_t interval_ms;
} upkeep_page_t;

static _Atomic(upkeep_page_t *) state_page;

static long thread_number(void) { return syscall(SYS_gettid); }

// Made at the first call; NULL where no memory is left.
static upkeep_page_t *make_state_page(void) {
  // Sequentially consistent; partner: the load in `purgeable__heap_unregister`.
  upkeep_page_t *page = atomic_load(&state_page);
  if (page != NULL) return page;
  int error;
  size_t length = purgeable__round_up(sizeof *page, purgeable_page_size_bytes());
  upkeep_page_t *fresh = purgeable__map(length, 1, "purgeable-upkeep", &error);
  if (fresh == NULL) return NULL;
  if (atomic_compare_exchange_strong(&state_page, &page, fresh)) return fresh;
  (void)purgeable__unmap(fresh, length);
  return page;
}

// MARK: The list of heaps

enum { BLOCK_HEAPS = 126 };

// Blocks are never freed: there are as many entries as there were heaps at one time.
typedef struct heap_block {
  _Atomic(struct heap_block *) next;
  // How many entries are not NULL, at least: raised before an entry is taken, lowered after it is free. A forked child may find
  // the count too high by one for each thread that was changing it; then the child searches for an entry in vain.
  _Atomic uint64_t used;
  _Atomic(purgeable_heap_t *) heaps[BLOCK_HEAPS];
} heap_block_t;

static heap_block_t first_block;

static bool take_entry(heap_block_t *block, purgeable_heap_t *heap) {
  for (size_t i = 0; i < BLOCK_HEAPS; i++) {
    purgeable_heap_t *none = NULL;
    if (load_relaxed(&block->heaps[i]) != NULL) continue;
    // Release, by sequential consistency: a pass that finds the heap finds it made.
    if (atomic_compare_exchange_strong(&block->heaps[i], &none, heap)) return true;
  }
  return false;
}

int purgeable__heap_register(purgeable_heap_t *heap) {
  for (heap_block_t *block = &first_block;;) {
    if (add_relaxed(&block->used, 1) < BLOCK_HEAPS && take_entry(block, heap)) return 0;
    (void)subtract_relaxed(&block->used, 1);
    heap_block_t *next = load_acquire(&block->next);
    if (next == NULL) {
      heap_block_t *fresh = purgeable__allocate(1, sizeof *fresh);
      if (fresh == NULL) return ENOMEM;
      // Partner: the same exchange in another thread, and the loads of `next`.
      if (atomic_compare_exchange_strong_explicit(&block->next, &next, fresh, memory_order_acq_rel, memory_order_acquire)) {
        next = fresh;
      } else {
        free(fresh);
      }
    }
    block = next;
  }
}

// Empties the heap's entry. Only one thread destroys a heap, so the entry stays where it is found.
static void drop_entry(const purgeable_heap_t *heap) {
  for (heap_block_t *block = &first_block; block != NULL; block = load_acquire(&block->next)) {
    for (size_t i = 0; i < BLOCK_HEAPS; i++) {
      if (load_relaxed(&block->heaps[i]) != heap) continue;
      atomic_store(&block->heaps[i], NULL);
      (void)subtract_relaxed(&block->used, 1);
      return;
    }
  }
}

int purgeable__heap_unregister(purgeable_heap_t *heap) {
  upkeep_page_t *page = atomic_load(&state_page);
  bool is_inside = page != NULL && load_relaxed(&page->pass_owner) == thread_number();
  if (is_inside && atomic_load(&page->current) == heap) return EBUSY;
  drop_entry(heap);
  // After the store: a page that was made only after this load belongs to a pass that finds the entry empty.
  page = atomic_load(&state_page);
  while (page != NULL) {
    uint64_t changes = atomic_load(&page->changes);
    if (atomic_load(&page->current) != heap) break;
    purgeable__wait(&page->changes, (uint32_t)changes);
  }
  return 0;
}

// MARK: One pass

static void visit(upkeep_page_t *page, purgeable_heap_t *heap) {
  atomic_store(&page->current, heap);
  (void)atomic_fetch_add(&page->changes, 1);
  if (heap == NULL) purgeable__wake_all(&page->changes);
}

static void keep_first(int *first_error, int error) {
  if (*first_error == 0) *first_error = error;
}

// Trims and offers.
static int begin_with(purgeable_heap_t *heap, purgeable_upkeep_result_t *result) {
  size_t freed = 0, offered = 0;
  int first_error = purgeable_heap_trim(heap, &freed);
  keep_first(&first_error, purgeable_heap_offer_idle(heap, &offered));
  result->heap_count++;
  result->given_back_bytes += freed;
  result->offered_bytes += offered;
  return first_error;
}

// Offers again and looks for losses.
static int end_with(purgeable_heap_t *heap, purgeable_upkeep_result_t *result) {
  size_t offered = 0, lost = 0;
  int first_error = purgeable_heap_offer_idle(heap, &offered);
  keep_first(&first_error, purgeable_heap_sweep(heap, &lost));
  result->offered_bytes += offered;
  result->discarded_bytes += lost;
  return first_error;
}

static int for_each_heap(upkeep_page_t *page, int (*work)(purgeable_heap_t *, purgeable_upkeep_result_t *),
                         purgeable_upkeep_result_t *result) {
  int first_error = 0;
  for (heap_block_t *block = &first_block; block != NULL; block = load_acquire(&block->next)) {
    if (load_relaxed(&block->used) == 0) continue;
    for (size_t i = 0; i < BLOCK_HEAPS; i++) {
      purgeable_heap_t *heap = atomic_load(&block->heaps[i]);
      if (heap == NULL) continue;
      visit(page, heap);
      // The heap is still in the list: whoever destroys it from now on waits for this pass. Another heap at the same address
    // is as good.
      if (atomic_load(&block->heaps[i]) == heap) keep_first(&first_error, work(heap, result));
      visit(page, NULL);
    }
  }
  return first_error;
}

static int offer_regions(purgeable_upkeep_result_t *result) {
  size_t offered = 0;
  int error = purgeable_offer_pending(&offered);
  result->offered_bytes += offered;
  return error;
}

int purgeable_upkeep(purgeable_upkeep_result_t *result) {
  purgeable_upkeep_result_t sums = {0};
  if (result != NULL) *result = sums;
  upkeep_page_t *page = make_state_page();
  if (page == NULL) return ENOMEM;
  long self = thread_number();
  if (load_relaxed(&page->pass_owner) == self) return EDEADLK;
  // A callback may have a cancellation point: the pass has to end in any case.
  int cancellation;
  (void)pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancellation);
  (void)pthread_mutex_lock(&page->pass);
  store_relaxed(&page->pass_owner, self);
  int first_error = for_each_heap(page, begin_with, &sums);
  keep_first(&first_error, offer_regions(&sums));
  // Second offers, after other work: meanwhile some of the pages that were passed over are on the kernel's lists.
  keep_first(&first_error, offer_regions(&sums));
  keep_first(&first_error, for_each_heap(page, end_with, &sums));
  store_relaxed(&page->pass_owner, 0);
  (void)pthread_mutex_unlock(&page->pass);
  (void)pthread_setcancelstate(cancellation, NULL);
  if (result != NULL) *result = sums;
  return first_error;
}

// MARK: The thread

// A thread that comes at least that often keeps what waits small.
enum { TENDING_MOST_MS = 1000 };

int purgeable_tending_begin(void) { return purgeable__tend(true); }

int purgeable_tending_end(void) { return purgeable__tend(false); }

static void *run(void *context) {
  upkeep_page_t *page = context;
  store_relaxed(&page->upkeep_thread, thread_number());
  (void)prctl(PR_SET_NAME, "purgeable", 0, 0, 0);
  // Without memory for that note, heaps offer earlier by themselves.
  bool tends = page->interval_ms <= TENDING_MOST_MS && purgeable__tend(true) == 0;
  // Acquire: pairs with the stores in start and stop.
  uint64_t state;
  while ((state = load_acquire(&page->state)) == RUNNING || state == STARTING) {
    // An error is that of some memory, which stays as it is; the next pass tries again.
    (void)purgeable_upkeep(NULL);
    state = load_acquire(&page->state);
    if (state == RUNNING) purgeable__wait_ms(&page->state, RUNNING, page->interval_ms);
  }
  if (tends) (void)purgeable__tend(false);
  return NULL;
}

int purgeable_upkeep_start(uint32_t interval_ms) {
  if (interval_ms == 0) return EINVAL;
  upkeep_page_t *page = make_state_page();
  if (page == NULL) return ENOMEM;
  uint64_t none = NO_THREAD;
  // Acquire: the end of an earlier thread comes before the beginning of this one. Partner: the store in stop.
  if (!atomic_compare_exchange_strong_explicit(&page->state, &none, STARTING, memory_order_acq_rel, memory_order_acquire)) {
    return EALREADY;
  }
  page->interval_ms = interval_ms;
  int error = purgeable__thread_create(&page->thread, run, page);
  store_release(&page->state, error == 0 ? RUNNING : NO_THREAD);
  return error;
}

int purgeable_upkeep_stop(void) {
  upkeep_page_t *page = load_acquire(&state_page);
  if (page == NULL) return ESRCH;
  // On the thread itself, or in a pass that it may be waiting for.
  long self = thread_number();
  bool is_inside = load_relaxed(&page->upkeep_thread) == self || load_relaxed(&page->pass_owner) == self;
  if (is_inside && load_relaxed(&page->state) != NO_THREAD) return EDEADLK;
  uint64_t running = RUNNING;
  if (!atomic_compare_exchange_strong_explicit(&page->state, &running, ENDING, memory_order_acq_rel, memory_order_acquire)) {
    return ESRCH;
  }
  purgeable__wake_all(&page->state);
  int cancellation;
  (void)pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancellation);
  int error = pthread_join(page->thread, NULL);
  (void)pthread_setcancelstate(cancellation, NULL);
  store_relaxed(&page->upkeep_thread, 0);
  store_release(&page->state, NO_THREAD);
  return error;
}

bool purgeable_upkeep_is_running(void) {
  upkeep_page_t *page = load_acquire(&state_page);
  return page != NULL && load_relaxed(&page->state) == RUNNING;
}
