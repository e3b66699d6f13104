// SPDX-License-Identifier: MIT
// Offering idle regions to the kernel: one at once, or all that were queued, neighbours merged.
//
//   last unlock --QUEUED--> queue --splice--> taken --sort by address--> batch (<= 2 MiB, adjacent) --> madvise --> finish
//                             ^                                            | OFFERING | ON_OFFER
//                             `---- under another thread's madvise --------'
//
// Links are guarded by the pool's mutex, in the queue and in every `taken` ring, so that a region can be unlinked wherever it is
// by who destroys it. The one exception is the sort, which works outside of the mutex: destroy waits until no sort runs.
//
// A region is OFFERING only while its own batch is at the kernel, not while the queue is: what a locker waits for is bounded by
// 2 MiB, or by the region itself if that is larger.
//
// Pages with a witness get MADV_FREE. Pages of zeros get MADV_DONTNEED, which leaves them zeros and leaves no CPU with a view of
// the old page: were they offered and taken, a writer could fill such a page anew while another CPU still read the old zeros,
// and nothing would have to flush them (a page without witness is not rescued).

#include "region_internal.h"

enum {
  BATCH_BYTES = 2 << 20,
  BATCH_COUNT = BATCH_BYTES / 4096,
};

typedef struct batch {
  size_t count;
  size_t bytes;
  purgeable_region_t *regions[BATCH_COUNT];
  int errors[BATCH_COUNT];
} batch_t;

// Adjacent pages that get the same advice, and the regions they belong to.
typedef struct run {
  char *start;
  size_t bytes;
  bool is_zeros;
  size_t first_region;
  size_t last_region;
} run_t;

// MARK: The kernel calls

static void advise(batch_t *batch, const run_t *run) {
  if (run->bytes == 0) return;
  if (run->is_zeros) {
    // Refused (mlocked): the pages stay as they are, resident, never on offer.
    (void)purgeable__madvise(run->start, run->bytes, MADV_DONTNEED);
    return;
  }
  int error = purgeable__madvise(run->start, run->bytes, PURGEABLE__MADV_FREE);
  if (error == 0) return;
  if (run->first_region == run->last_region) {
    batch->errors[run->first_region] = error;
    return;
  }
  // One mlocked page stops the rest of the range. What it stopped gets its own call.
  char *at = run->start;
  for (size_t i = run->first_region; i <= run->last_region; i++) {
    char *end = batch->regions[i]->bytes + purgeable__region_bytes(batch->regions[i]);
    if (end > run->start + run->bytes) end = run->start + run->bytes;
    error = purgeable__madvise(at, (size_t)(end - at), PURGEABLE__MADV_FREE);
    if (error != 0) batch->errors[i] = error;
    at = end;
  }
}

static void advise_all(batch_t *batch) {
  run_t run = {0};
  for (size_t i = 0; i < batch->count; i++) {
    purgeable_region_t *region = batch->regions[i];
    size_t page_size = region->page_size_bytes;
    for (size_t page = 0; page < region->page_count; page++) {
      char *start = region->bytes + page * page_size;
      bool is_zeros = atomic_load_explicit(&region->witnesses[page], memory_order_relaxed) == 0;
      if (run.bytes != 0 && run.start + run.bytes == start && run.is_zeros == is_zeros && run.bytes < BATCH_BYTES) {
        run.bytes += page_size;
        run.last_region = i;
        continue;
      }
      advise(batch, &run);
      run = (run_t){.start = start, .bytes = page_size, .is_zeros = is_zeros, .first_region = i, .last_region = i};
    }
  }
  advise(batch, &run);
}

// Offers a batch that was claimed, and ends its OFFERING. Answers the first errno; adds to `*offered_bytes`.
static int offer_batch(batch_t *batch, size_t *offered_bytes) {
  int first_error = 0;
  memset(batch->errors, 0, batch->count * sizeof batch->errors[0]);
  advise_all(batch);
  for (size_t i = 0; i < batch->count; i++) {
    purgeable_region_t *region = batch->regions[i];
    int error = batch->errors[i];
    if (error == 0) {
      *offered_bytes += purgeable__region_bytes(region);
      purgeable__word_finish(region, 0, 0);
      continue;
    }
    if (first_error == 0) first_error = error;
    atomic_fetch_add_explicit(&region->counters->refused_offers, 1, memory_order_relaxed);
    // A part may be on offer all the same, so ON_OFFER stays and the next lock looks at every page.
    purgeable__word_finish(region, 0, WORD_REFUSED);
  }
  return first_error;
}

// MARK: Claiming

static bool can_offer(uint64_t word) {
  if (purgeable__word_count(word) != 0 || (word & (WORD_OFFERING | WORD_DISCARDED)) != 0) return false;
  return (word & WORD_ON_OFFER) == 0 || (word & WORD_REFUSED) != 0;
}

static uint64_t claimed(uint64_t word) {
  assert(can_offer(word));
  return (word & ~WORD_REFUSED) | WORD_OFFERING | WORD_ON_OFFER;
}

int purgeable__region_offer(purgeable_region_t *region) {
  uint64_t word = purgeable__word_load(region);
  for (;;) {
    if ((word & WORD_DISCARDED) != 0) return 0;
    if ((word & WORD_OFFERING) != 0) {
      word = purgeable__word_wait(region, word);
      continue;
    }
    if (purgeable__word_count(word) != 0) return EBUSY;
    if (!can_offer(word)) return 0;
    if (purgeable__word_change(region, &word, claimed(word))) break;
  }
  size_t bytes = 0;
  batch_t batch;
  batch.count = 1;
  batch.regions[0] = region;
  return offer_batch(&batch, &bytes);
}

int purgeable_region_offer(purgeable_region_t *region) {
  if (region == NULL) return EINVAL;
  if (region->offering == purgeable_offering_never) return purgeable_region_lock_count(region) != 0 ? EBUSY : 0;
  return purgeable__region_offer(region);
}

// MARK: The queue (under the mutex, but for the sort)

static purgeable_region_t *region_of(purgeable__link_t *link) {
  return (purgeable_region_t *)(void *)((char *)link - offsetof(purgeable_region_t, link));
}

static void ring_init(purgeable__link_t *head) { head->next = head->previous = head; }

static void ring_append(purgeable__link_t *head, purgeable__link_t *link) {
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

// In a new page, and in a forked child, the head is all zeros.
static purgeable__link_t *queue_of(purgeable__shared_t *shared) {
  if (shared->queue.next == NULL) ring_init(&shared->queue);
  return &shared->queue;
}

static void count_pending(purgeable__shared_t *shared, uint64_t change) {
  atomic_fetch_add_explicit(&shared->pending_count, change, memory_order_relaxed);
}

void purgeable__queue_push(purgeable_region_t *region) {
  purgeable__shared_t *shared = purgeable__shared();
  purgeable__pool_lock(shared);
  ring_append(queue_of(shared), &region->link);
  count_pending(shared, 1);
  purgeable__pool_unlock(shared);
}

void purgeable__queue_remove(purgeable_region_t *region) {
  uint64_t word = purgeable__word_load(region);
  // Nobody sets QUEUED while the region is being destroyed, so without it there is nothing to unlink.
  if ((word & WORD_QUEUED) == 0) return;
  purgeable__shared_t *shared = purgeable__shared();
  purgeable__pool_lock(shared);
  while (shared->sorting_count != 0) (void)pthread_cond_wait(&shared->sorted, &shared->mutex);
  word = purgeable__word_load(region);
  while ((word & WORD_QUEUED) != 0) {
    if (!purgeable__word_change(region, &word, word & ~WORD_QUEUED)) continue;
    ring_remove(&region->link);
    count_pending(shared, (uint64_t)-1);
    break;
  }
  purgeable__pool_unlock(shared);
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
  purgeable__link_t *sorted = NULL;
  for (size_t bin = 0; bin < BINS; bin++) sorted = merge(bins[bin], sorted);
  ring_init(head);
  for (purgeable__link_t *link = sorted; link != NULL;) {
    purgeable__link_t *next = link->next;
    ring_append(head, link);
    link = next;
  }
}

// MARK: All that is queued

// Takes one region out of `taken`. True: it is claimed. What is locked again comes back with its last unlock; what another
// thread has under its madvise comes back to the queue, because that may end with the region idle and not on offer.
static bool claim_from(purgeable__shared_t *shared, purgeable_region_t *region) {
  ring_remove(&region->link);
  uint64_t word = purgeable__word_load(region);
  for (;;) {
    if ((word & WORD_QUEUED) != 0 && (word & WORD_OFFERING) != 0) {
      ring_append(queue_of(shared), &region->link);
      return false;
    }
    bool is_idle = can_offer(word);
    uint64_t wanted = (is_idle ? claimed(word) : word) & ~WORD_QUEUED;
    if (!purgeable__word_change(region, &word, wanted)) continue;
    count_pending(shared, (uint64_t)-1);
    return is_idle;
  }
}

// Claims the next regions of `taken` as long as each begins where the one before ended.
static void claim_batch(purgeable__shared_t *shared, purgeable__link_t *taken, batch_t *batch) {
  batch->count = 0;
  batch->bytes = 0;
  while (taken->next != taken && batch->count < BATCH_COUNT) {
    purgeable_region_t *region = region_of(taken->next);
    size_t bytes = purgeable__region_bytes(region);
    if (batch->count != 0) {
      if (batch->bytes + bytes > BATCH_BYTES) return;
      if (batch->regions[0]->bytes + batch->bytes != region->bytes) return;
    }
    if (!claim_from(shared, region)) continue;
    batch->regions[batch->count++] = region;
    batch->bytes += bytes;
  }
}

int purgeable_offer_pending(size_t *offered_bytes) {
  if (offered_bytes != NULL) *offered_bytes = 0;
  purgeable__shared_t *shared = purgeable__shared();
  if (shared == NULL) return 0;
  purgeable__link_t taken;
  ring_init(&taken);
  purgeable__pool_lock(shared);
  purgeable__link_t *queue = queue_of(shared);
  if (queue->next == queue) {
    purgeable__pool_unlock(shared);
    return 0;
  }
  taken = *queue;
  taken.next->previous = taken.previous->next = &taken;
  ring_init(queue);
  shared->sorting_count++;
  purgeable__pool_unlock(shared);
  sort(&taken);
  purgeable__pool_lock(shared);
  if (--shared->sorting_count == 0) (void)pthread_cond_broadcast(&shared->sorted);
  size_t offered = 0;
  int first_error = 0;
  while (taken.next != &taken) {
    batch_t batch;
    claim_batch(shared, &taken, &batch);
    purgeable__pool_unlock(shared);
    int error = offer_batch(&batch, &offered);
    if (first_error == 0) first_error = error;
    purgeable__pool_lock(shared);
  }
  purgeable__pool_unlock(shared);
  if (offered_bytes != NULL) *offered_bytes = offered;
  return first_error;
}
