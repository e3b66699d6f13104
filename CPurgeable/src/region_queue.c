// SPDX-License-Identifier: MIT
// Which regions wait to be offered, for the first time or again, and the upkeep that does it.
//
//   last unlock --QUEUED--> queue --splice--> taken --sort by address--> batch (<= 2 MiB, adjacent) --> madvise --> finish
//                             ^  ^                                         | OFFERING | ON_OFFER | AGAIN
//                             |  `---- under another thread's madvise -----'                v
//                             `---------- unlocked again ------------------------- again[0] -> again[1] -> ... -> again[5] <-.
//                                                                              the next two upkeeps, then 1 s, 8 s, ...  '---'
//
// Links are guarded by the pool's mutex, in the queue, in the rings and in every `taken` ring, so that a region can be unlinked
// wherever it is by who destroys it, or unlocks it. The one exception is the sort, which works outside of the mutex. A region has
// one link: with AGAIN it is in one of the rings or taken from it, else with QUEUED in the queue. An unlock sets QUEUED before it
// has moved the link, so both may be set for a moment.
//
// Nobody waits for a whole queue. The mutex is held for `LOOKS_AT_A_TIME` regions, and a drain stands in line for it again. A
// destroy whose region is being sorted goes on without the link. Under the mutex, the destroy clears QUEUED and marks the region
// as parting. So the drain looks neither at the word nor at the pages, which may belong to another region by then. Sorting needs
// the structure alone: address and link. Of destroy and drain the second one frees the structure:
//
//   parting    none ---destroy begins---> begun ---destroy ends--> ended ---drain meets the link--> (freed)
//                                           '------drain meets the link--> unlinked ---destroy ends--> (freed)
//
// A forked child has the queue empty, and loses the structures of which the parent's other threads were parting.
//
// Why again: MADV_FREE passes over pages that wait in another processor's batch on their way to the kernel's lists, 31 at the
// most, answers 0 all the same, and nothing that is cheap tells which. Waiting pages leave their batch when that processor takes
// 31 more, or when a process there offers memory or ends. So each later offer finds fewer; the last ring repeats. What the kernel
// refused stays in the rings as well: memory that was mlocked for a while is not for ever.

#include "region_queue.h"

#include "region_batch.h"
#include "region_pool.h"
#include "region_word.h"

enum {
  // How many regions a drain looks at before it gives the mutex back: well below a millisecond.
  LOOKS_AT_A_TIME = PURGEABLE__BATCH_COUNT,
  ROUND_MASK = (1 << 30) - 1,
};

// MARK: Rings (under the mutex)

// How long a ring waits from the moment it got its first region.
static const uint64_t again_delays_ms[PURGEABLE__AGAIN_LEVELS] = {0, 0, 1000, 8000, 64000, 256000};

#if defined(PURGEABLE_TEST_HOOKS)
static _Atomic uint64_t stopped_at_ms;
static uint64_t stopped_clock_ms(void) { return load_relaxed(&stopped_at_ms); }
bool purgeable_testing_set_queue_clock_ms(uint64_t now_ms) {
  store_relaxed(&stopped_at_ms, now_ms);
  return true;
}
#else
static uint64_t stopped_clock_ms(void) { return 0; }
bool purgeable_testing_set_queue_clock_ms(uint64_t now_ms) { return now_ms == 0; }
#endif

static uint64_t now_ms(void) {
  uint64_t stopped = stopped_clock_ms();
  if (stopped != 0) return stopped;
  return purgeable__now_ns() / 1000000;
}

static purgeable_region_t *region_of(purgeable__link_t *link) {
  return (purgeable_region_t *)(void *)((char *)link - offsetof(purgeable_region_t, link));
}

static void ring_init(purgeable__link_t *head) { head->next = head->previous = head; }

// In a new page, and in a forked child, the heads are all zeros.
static bool ring_is_empty(const purgeable__link_t *head) { return head->next == NULL || head->next == head; }

static void ring_append(purgeable__link_t *head, purgeable__link_t *link) {
  if (head->next == NULL) ring_init(head);
  assert(head->previous->next == head && head->next->previous == head);
  link->previous = head->previous;
  link->next = head;
  head->previous->next = link;
  head->previous = link;
}

static void ring_remove(purgeable__link_t *link) {
  assert(link->previous->next == link && link->next->previous == link);
  link->previous->next = link->next;
  link->next->previous = link->previous;
  link->next = link->previous = NULL;
}

static void queue_append(purgeable__shared_t *shared, purgeable_region_t *region) {
  assert(purgeable__is_held(&shared->mutex));
  region->queue_round = shared->queue_round & ROUND_MASK;
  ring_append(&shared->queue, &region->link);
}

// Moves all links to the empty ring `taken`.
static void ring_take(purgeable__link_t *head, purgeable__link_t *taken) {
  ring_init(taken);
  if (ring_is_empty(head)) return;
  *taken = *head;
  taken->next->previous = taken->previous->next = taken;
  ring_init(head);
}

static void count_pending(purgeable__shared_t *shared, uint64_t bytes, bool is_more) {
  assert(purgeable__is_held(&shared->mutex));
  assert(is_more || load_relaxed(&shared->pending_count) != 0);
  add_relaxed(&shared->pending_count, is_more ? 1 : (uint64_t)-1);
  add_relaxed(&shared->pending_bytes, is_more ? bytes : -bytes);
}

static void again_append(purgeable__shared_t *shared, size_t level, purgeable_region_t *region) {
  assert(purgeable__is_held(&shared->mutex));
  assert(level < PURGEABLE__AGAIN_LEVELS);
  if (ring_is_empty(&shared->again[level])) {
    shared->again_due_ms[level] = again_delays_ms[level] == 0 ? 0 : now_ms() + again_delays_ms[level];
  }
  ring_append(&shared->again[level], &region->link);
}

// Takes the region out of the ring that AGAIN speaks of.
static void again_remove(purgeable_region_t *region) {
  uint64_t word = purgeable__word_load(region);
  while ((word & WORD_AGAIN) != 0) {
    if (!purgeable__word_change(region, &word, word & ~WORD_AGAIN)) continue;
    ring_remove(&region->link);
    return;
  }
}

// MARK: In and out

static int offer_queue(purgeable__shared_t *shared, size_t *offered_bytes);

void purgeable__queue_push(purgeable_region_t *region) {
  purgeable__shared_t *shared = purgeable__shared();
  purgeable__pool_lock(shared);
  again_remove(region);
  queue_append(shared, region);
  count_pending(shared, purgeable__region_bytes(region), true);
  uint64_t pending = load_relaxed(&shared->pending_bytes);
  purgeable__pool_unlock(shared);
  // From here on the region may be gone. The bound is asked for without the mutex, since that may read files now and then. What
  // is refused stays with the program, as in immediate mode.
  size_t offered_bytes = 0;
  if (pending > purgeable__pending_byte_limit()) (void)offer_queue(shared, &offered_bytes);
}

void purgeable__again_push(purgeable_region_t *region) {
  if (!PURGEABLE_RULE(offer_again)) return;
  purgeable__shared_t *shared = purgeable__shared();
  purgeable__pool_lock(shared);
  again_remove(region);
  uint64_t word = purgeable__word_load(region);
  while ((word & (WORD_QUEUED | WORD_AGAIN)) == 0) {
    if (!purgeable__word_change(region, &word, word | WORD_AGAIN)) continue;
    again_append(shared, 0, region);
    break;
  }
  purgeable__pool_unlock(shared);
}

// Whether a thread may be sorting the link of a region with QUEUED: such a region was taken with the queue of an earlier round.
static bool is_being_sorted(const purgeable__shared_t *shared, const purgeable_region_t *region) {
  return shared->sorting_count != 0 && region->queue_round != (shared->queue_round & ROUND_MASK);
}

bool purgeable__queue_remove(purgeable_region_t *region) {
  uint64_t word = purgeable__word_load(region);
  // Nobody sets QUEUED or the first AGAIN while the region is being destroyed, so without them there is nothing to unlink.
  if ((word & (WORD_QUEUED | WORD_AGAIN)) == 0) return true;
  bool is_free = true;
  purgeable__shared_t *shared = purgeable__shared();
  purgeable__pool_lock(shared);
  again_remove(region);
  word = purgeable__word_load(region);
  while ((word & WORD_QUEUED) != 0) {
    if (!purgeable__word_change(region, &word, word & ~WORD_QUEUED)) continue;
    is_free = !is_being_sorted(shared, region);
    if (is_free) ring_remove(&region->link);
    if (!is_free) region->parting = purgeable__parting_begun;
    count_pending(shared, purgeable__region_bytes(region), false);
    break;
  }
  purgeable__pool_unlock(shared);
  return is_free;
}

void purgeable__queue_part(purgeable_region_t *region) {
  purgeable__shared_t *shared = purgeable__shared();
  purgeable__pool_lock(shared);
  bool is_last = region->parting == purgeable__parting_unlinked;
  assert(is_last || region->parting == purgeable__parting_begun);
  if (!is_last) region->parting = purgeable__parting_ended;
  purgeable__pool_unlock(shared);
  if (is_last) free(region);
}

// Takes out a link whose region is parting. True: the structure is to be freed.
static bool unlink_parting(purgeable_region_t *region) {
  // Off: what this protects from. The pages, which may be another region's by now, go on offer.
  if (!PURGEABLE_RULE(parting_stay_out)) {
    (void)purgeable__madvise(region->bytes, purgeable__region_bytes(region), PURGEABLE__MADV_FREE);
  }
  ring_remove(&region->link);
  if (region->parting == purgeable__parting_ended) return true;
  region->parting = purgeable__parting_unlinked;
  return false;
}

// MARK: Sorting

static purgeable__link_t *merge(purgeable__link_t *left, purgeable__link_t *right) {
  purgeable__link_t head = {0};
  purgeable__link_t *last = &head;
  while (left != NULL && right != NULL) {
    purgeable__link_t **lower = region_of(left)->bytes < region_of(right)->bytes ? &left : &right;
    last = last->next = *lower;
    *lower = (*lower)->next;
  }
  last->next = left != NULL ? left : right;
  return head.next;
}

// Merge sort by address, without memory of its own: bin k holds a sorted list of 2^k links, or nothing.
static void sort(purgeable__link_t *head) {
  enum { BINS = 48 };
  purgeable__link_t *bins[BINS] = {0};
  head->previous->next = NULL;
  for (purgeable__link_t *link = head->next; link != NULL;) {
    purgeable__link_t *next = link->next;
    link->next = NULL;
    size_t bin = 0;
    for (; bins[bin] != NULL && bin < BINS - 1; bin++) {
      link = merge(bins[bin], link);
      bins[bin] = NULL;
    }
    bins[bin] = bins[bin] == NULL ? link : merge(bins[bin], link);
    link = next;
  }
  PURGEABLE_TEST_PAUSE();
  purgeable__link_t *sorted = NULL;
  for (size_t bin = 0; bin < BINS; bin++) sorted = merge(bins[bin], sorted);
  ring_init(head);
  for (purgeable__link_t *link = sorted; link != NULL;) {
    purgeable__link_t *next = link->next;
    ring_append(head, link);
    link = next;
  }
}

// MARK: First offers

typedef enum claim { claim_none, claim_first, claim_again } claim_t;

// Takes one region out of what was `taken` from the queue. What is locked again comes back with its last unlock; what another
// thread has under its madvise comes back to the queue, because that may end with the region idle and not on offer.
static claim_t claim_queued(purgeable__shared_t *shared, purgeable_region_t *region, size_t level) {
  (void)level;
  ring_remove(&region->link);
  // Asked for now: where nothing of QUEUED, AGAIN and OFFERING is left, its owner may have destroyed it.
  uint64_t bytes = purgeable__region_bytes(region);
  uint64_t word = purgeable__word_load(region);
  for (;;) {
    if ((word & WORD_QUEUED) != 0 && (word & WORD_OFFERING) != 0) {
      queue_append(shared, region);
      return claim_none;
    }
    bool is_idle = purgeable__can_offer(word, false);
    uint64_t wanted = (is_idle ? purgeable__word_claimed(word) : word) & ~WORD_QUEUED;
    // Offered by its owner meanwhile, or now.
    bool is_offered = (wanted & (WORD_ON_OFFER | WORD_REFUSED)) == WORD_ON_OFFER && PURGEABLE_RULE(offer_again);
    if (is_offered) wanted |= WORD_AGAIN;
    if (!purgeable__word_change(region, &word, wanted)) continue;
    PURGEABLE_TEST_PAUSE_INSIDE();
    count_pending(shared, bytes, false);
    if (is_offered) again_append(shared, 0, region);
    return is_idle ? claim_first : claim_none;
  }
}

// Takes one region out of what was `taken` from a ring, and puts it into the next one. What is locked or discarded leaves.
static claim_t claim_from_ring(purgeable__shared_t *shared, purgeable_region_t *region, size_t level) {
  ring_remove(&region->link);
  uint64_t word = purgeable__word_load(region);
  for (;;) {
    bool is_busy = (word & WORD_OFFERING) != 0;
    bool is_idle = purgeable__can_offer(word, true);
    uint64_t wanted = is_idle ? purgeable__word_claimed(word) : is_busy ? word : word & ~WORD_AGAIN;
    if (!purgeable__word_change(region, &word, wanted)) continue;
    size_t next = is_idle && level + 1 < PURGEABLE__AGAIN_LEVELS ? level + 1 : level;
    if ((wanted & WORD_AGAIN) != 0) again_append(shared, next, region);
    if (!is_idle) return claim_none;
    return (word & (WORD_ON_OFFER | WORD_REFUSED)) == WORD_ON_OFFER ? claim_again : claim_first;
  }
}

// MARK: Batches

typedef claim_t claimer_t(purgeable__shared_t *shared, purgeable_region_t *region, size_t level);

// Claims the next regions of `taken` as long as each begins where the one before ended. Links of regions that were destroyed
// meanwhile go to the list `*freed`.
static void claim_batch(purgeable__shared_t *shared, purgeable__link_t *taken, purgeable__batch_t *batch, claimer_t *claims,
                        size_t level, purgeable__link_t **freed) {
  size_t looks = 0;
  batch->count = 0;
  batch->bytes = 0;
  for (; taken->next != taken && batch->count < PURGEABLE__BATCH_COUNT && looks < LOOKS_AT_A_TIME; looks++) {
    assert(batch->count == 0 || batch->bytes <= PURGEABLE__BATCH_BYTES || batch->count == 1);
    purgeable_region_t *region = region_of(taken->next);
    if (region->parting != purgeable__parting_none) {
      if (!unlink_parting(region)) continue;
      region->link.next = *freed;
      *freed = &region->link;
      continue;
    }
    size_t bytes = purgeable__region_bytes(region);
    if (batch->count != 0) {
      if (batch->bytes + bytes > PURGEABLE__BATCH_BYTES) break;
      if (batch->regions[0]->bytes + batch->bytes != region->bytes) break;
    }
    claim_t claim = claims(shared, region, level);
    if (claim == claim_none) continue;
    batch->is_again[batch->count] = claim == claim_again;
    batch->regions[batch->count++] = region;
    batch->bytes += bytes;
  }
  PURGEABLE_LOOKS(queue, looks);
}

static void free_all(purgeable__link_t *freed) {
  while (freed != NULL) {
    purgeable__link_t *next = freed->next;
    free(region_of(freed));
    freed = next;
  }
}

// Offers all of a taken ring. Called, and left, with the mutex.
static int offer_taken(purgeable__shared_t *shared, purgeable__link_t *taken, claimer_t *claims, size_t level, size_t *offered) {
  int first_error = 0;
  while (taken->next != taken) {
    purgeable__batch_t batch;
    purgeable__link_t *freed = NULL;
    claim_batch(shared, taken, &batch, claims, level, &freed);
    purgeable__pool_unlock(shared);
    free_all(freed);
    int error = batch.count == 0 ? 0 : purgeable__batch_offer(&batch, offered);
    if (first_error == 0) first_error = error;
    purgeable__pool_lock_in_turn(shared);
  }
  return first_error;
}

static int offer_queue(purgeable__shared_t *shared, size_t *offered_bytes) {
  purgeable__link_t taken;
  purgeable__pool_lock(shared);
  ring_take(&shared->queue, &taken);
  if (ring_is_empty(&taken)) {
    purgeable__pool_unlock(shared);
    return 0;
  }
  shared->queue_round++;
  shared->sorting_count++;
  purgeable__pool_unlock(shared);
  sort(&taken);
  purgeable__pool_lock(shared);
  assert(shared->sorting_count != 0);
  shared->sorting_count--;
  int error = offer_taken(shared, &taken, claim_queued, 0, offered_bytes);
  purgeable__pool_unlock(shared);
  return error;
}

// From the last ring to the first, so that a region is offered once in a call.
static int offer_queue_again(purgeable__shared_t *shared, size_t *offered_bytes) {
  int first_error = 0;
  purgeable__pool_lock(shared);
  for (size_t level = PURGEABLE__AGAIN_LEVELS; level-- > 0;) {
    if (ring_is_empty(&shared->again[level])) continue;
    if (shared->again_due_ms[level] != 0 && shared->again_due_ms[level] > now_ms()) continue;
    purgeable__link_t taken;
    ring_take(&shared->again[level], &taken);
    int error = offer_taken(shared, &taken, claim_from_ring, level, offered_bytes);
    if (first_error == 0) first_error = error;
  }
  purgeable__pool_unlock(shared);
  return first_error;
}

int purgeable_offer_pending(size_t *offered_bytes) {
  if (offered_bytes != NULL) *offered_bytes = 0;
  purgeable__shared_t *shared = purgeable__shared();
  if (shared == NULL) return 0;
  size_t offered = 0;
  int again_error = offer_queue_again(shared, &offered);
  int error = offer_queue(shared, &offered);
  if (offered_bytes != NULL) *offered_bytes = offered;
  return error != 0 ? error : again_error;
}

uint64_t purgeable_offer_pending_due_ms(void) {
  purgeable__shared_t *shared = purgeable__shared();
  if (shared == NULL) return UINT64_MAX;
  uint64_t due = UINT64_MAX;
  purgeable__pool_lock(shared);
  if (!ring_is_empty(&shared->queue)) due = 0;
  for (size_t level = 0; level < PURGEABLE__AGAIN_LEVELS; level++) {
    if (!ring_is_empty(&shared->again[level]) && shared->again_due_ms[level] < due) due = shared->again_due_ms[level];
  }
  purgeable__pool_unlock(shared);
  if (due == UINT64_MAX) return due;
  uint64_t now = now_ms();
  return due > now ? due - now : 0;
}
