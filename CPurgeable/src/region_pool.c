// SPDX-License-Identifier: MIT
// Where regions get their pages: large chunks for the many, a mapping of its own for the few above 16 MiB.
//
//   chunk   [ words: 8 bytes per content page ][ page 0 | page 1 | ...                                  ]  64 MiB, one mapping
//             ^ word of the region at page 0     `-- region --' `-- free --'
//   own     [ word, rest of a page unused ][ content ...                                                ]
//   bitmap  1 1 0 0 ...  in ordinary memory: which content pages are taken
//
// Free pages are zeros at all times: never touched, or wiped before their bits were cleared. Chunks are never unmapped.
//
// Fork. A child runs with one thread and a snapshot of ordinary memory that is, for each other thread of the parent, the state
// between two of its instructions. What could be torn is therefore arranged so that every prefix of its stores is sound:
//   - The mutex, the queue's head and the counters lie in a page that the fork wipes: the child has them unlocked, empty and 0.
//   - A chunk is published by one store after it is complete. One that was not published is lost to the child.
//   - A bit is set before anybody is told of the pages, and cleared by the last owner. A thread that the child does not have may
//     leave bits set that nobody owns (pages lost to the child), never the other way round. The hints of a chunk only make the
//     search skip, so a stale hint loses pages for a while and gives none out twice.
//   - Region structures are reached only by who owns them; their words are wiped with the content they speak of.
// So no pthread_atfork handlers, and nothing that a fork has to wait for. Kernels without MADV_WIPEONFORK (before 4.14) give no
// such child; the probe reports them. A fork from a signal handler that interrupted this library is outside of the contract.

#include "region_internal.h"

enum {
  CHUNK_BYTES = 64 << 20,
  LARGEST_IN_CHUNK_BYTES = 16 << 20,
  BITS = 64,
};

struct purgeable__chunk {
  struct purgeable__chunk *next;
  _Atomic uint64_t *words;
  char *pages;
  size_t page_count;
  // Every page before this one is taken.
  size_t search_from;
  // No run of this many free pages exists.
  size_t absent_run;
  // Guarded by the pool's mutex, like the two fields above.
  uint64_t taken[];
};

// Both outlive a fork. `shared_page`: published by exchange, release; partner: the acquire loads. `chunks`: published by store,
// release, under the mutex; partner: the load under the mutex, or in a forked child.
static _Atomic(purgeable__shared_t *) shared_page;
static _Atomic(purgeable__chunk_t *) chunks;

// MARK: The shared page

// Whoever makes the 0 a 1 counts all that the parent had as discarded. The total is read first: it can only change through
// threads that have seen the 1.
static void heal(purgeable__shared_t *shared) {
  uint64_t bytes = purgeable__region_total(NULL);
  uint64_t dead = 0;
  // Partner: the same exchange in another thread of the child.
  if (!atomic_compare_exchange_strong_explicit(&shared->alive, &dead, 1, memory_order_acq_rel, memory_order_acquire)) return;
  atomic_fetch_add_explicit(&shared->shards[0].discarded_bytes, bytes, memory_order_relaxed);
}

purgeable__shared_t *purgeable__shared(void) {
  purgeable__shared_t *shared = atomic_load_explicit(&shared_page, memory_order_acquire);
  if (shared != NULL && atomic_load_explicit(&shared->alive, memory_order_acquire) == 0) heal(shared);
  return shared;
}

purgeable__shared_t *purgeable__shared_make(void) {
  purgeable__shared_t *shared = purgeable__shared();
  if (shared != NULL) return shared;
  size_t page = purgeable_page_size_bytes();
  size_t length = purgeable__round_up(sizeof *shared, page);
  int error;
  purgeable__shared_t *fresh = purgeable__map(length, page, "purgeable-regions", &error);
  if (fresh == NULL) return NULL;
  atomic_store_explicit(&fresh->alive, 1, memory_order_relaxed);
  if (atomic_compare_exchange_strong_explicit(&shared_page, &shared, fresh, memory_order_acq_rel, memory_order_acquire)) {
    return fresh;
  }
  // Another thread was first. A mapping that cannot be unmapped is a page of address space lost, once.
  (void)purgeable__unmap(fresh, length);
  return shared;
}

void purgeable__pool_lock(purgeable__shared_t *shared) {
  int error = pthread_mutex_lock(&shared->mutex);
  assert(error == 0);
  (void)error;
}

void purgeable__pool_unlock(purgeable__shared_t *shared) {
  int error = pthread_mutex_unlock(&shared->mutex);
  assert(error == 0);
  (void)error;
}

// MARK: Bitmap (under the mutex)

// The first free page at or after `page`, or page_count: a whole word of taken pages is one step.
static size_t next_free(const purgeable__chunk_t *chunk, size_t page) {
  while (page < chunk->page_count) {
    uint64_t open = ~chunk->taken[page / BITS] >> (page % BITS);
    if (open != 0) {
      page += (size_t)__builtin_ctzll(open);
      return page < chunk->page_count ? page : chunk->page_count;
    }
    page = (page / BITS + 1) * BITS;
  }
  return chunk->page_count;
}

// The first taken page at or after `page`, but at most `end`.
static size_t next_taken(const purgeable__chunk_t *chunk, size_t page, size_t end) {
  while (page < end) {
    uint64_t closed = chunk->taken[page / BITS] >> (page % BITS);
    if (closed != 0) {
      page += (size_t)__builtin_ctzll(closed);
      return page < end ? page : end;
    }
    page = (page / BITS + 1) * BITS;
  }
  return end;
}

static void mark(purgeable__chunk_t *chunk, size_t first, size_t count, bool taken) {
  for (size_t page = first; page < first + count; page++) {
    uint64_t bit = UINT64_C(1) << (page % BITS);
    assert(page < chunk->page_count && ((chunk->taken[page / BITS] & bit) != 0) != taken);
    if (taken) {
      chunk->taken[page / BITS] |= bit;
    } else {
      chunk->taken[page / BITS] &= ~bit;
    }
  }
}

// Finds and marks a run of `count` free pages. False: this chunk has none.
static bool take_run(purgeable__chunk_t *chunk, size_t count, size_t *first) {
  assert(count != 0);
  if (count >= chunk->absent_run) return false;
  chunk->search_from = next_free(chunk, chunk->search_from);
  for (size_t page = chunk->search_from; page < chunk->page_count && count <= chunk->page_count - page;) {
    size_t end = next_taken(chunk, page, page + count);
    if (end == page + count) {
      mark(chunk, page, count, true);
      *first = page;
      return true;
    }
    page = next_free(chunk, end);
  }
  chunk->absent_run = count;
  return false;
}

// Maps a chunk with room for `page_count` pages and publishes it; NULL where no memory is left.
static purgeable__chunk_t *make_chunk(size_t page_count) {
  size_t page = purgeable_page_size_bytes();
  size_t words_length = purgeable__round_up(page_count * sizeof(uint64_t), page);
  size_t bitmap_words = (page_count + BITS - 1) / BITS;
  purgeable__chunk_t *chunk = purgeable__allocate(1, sizeof *chunk + bitmap_words * sizeof(uint64_t));
  if (chunk == NULL) return NULL;
  int error;
  char *start = purgeable__map(words_length + page_count * page, page, "purgeable-regions", &error);
  if (start == NULL) {
    free(chunk);
    return NULL;
  }
  chunk->words = (_Atomic uint64_t *)(void *)start;
  chunk->pages = start + words_length;
  chunk->page_count = page_count;
  chunk->absent_run = page_count + 1;
  chunk->next = atomic_load_explicit(&chunks, memory_order_relaxed);
  atomic_store_explicit(&chunks, chunk, memory_order_release);
  return chunk;
}

// MARK: Pages for a region

static int take_from_chunks(purgeable_region_t *region) {
  size_t page = region->page_size_bytes;
  purgeable__shared_t *shared = purgeable__shared();
  purgeable__pool_lock(shared);
  size_t first = 0;
  purgeable__chunk_t *chunk = atomic_load_explicit(&chunks, memory_order_acquire);
  while (chunk != NULL && !take_run(chunk, region->page_count, &first)) chunk = chunk->next;
  if (chunk == NULL) {
    // A chunk's words take one part in (page / 8) of it. Where even that is too much, room for this region alone.
    size_t full = (CHUNK_BYTES / page) - purgeable__round_up(CHUNK_BYTES / page * sizeof(uint64_t), page) / page;
    chunk = make_chunk(full);
    if (chunk == NULL) chunk = make_chunk(region->page_count);
    if (chunk != NULL && !take_run(chunk, region->page_count, &first)) chunk = NULL;
  }
  purgeable__pool_unlock(shared);
  if (chunk == NULL) return ENOMEM;
  region->chunk = chunk;
  region->word = chunk->words + first;
  region->bytes = chunk->pages + first * page;
  return 0;
}

int purgeable__pages_take(purgeable_region_t *region) {
  size_t page = region->page_size_bytes;
  size_t bytes = purgeable__region_bytes(region);
  if (bytes <= LARGEST_IN_CHUNK_BYTES) return take_from_chunks(region);
  int error;
  if (bytes > SIZE_MAX - page) return ENOMEM;
  char *start = purgeable__map(page + bytes, page, "purgeable-region", &error);
  if (start == NULL) return ENOMEM;
  region->chunk = NULL;
  region->word = (_Atomic uint64_t *)(void *)start;
  region->bytes = start + page;
  return 0;
}

void purgeable__pages_give(purgeable_region_t *region) {
  size_t page = region->page_size_bytes;
  size_t bytes = purgeable__region_bytes(region);
  purgeable__chunk_t *chunk = region->chunk;
  if (chunk == NULL) {
    // What cannot be unmapped gives back its memory at least.
    if (purgeable__unmap(region->bytes - page, page + bytes) != 0) (void)purgeable__wipe(region->bytes, bytes);
    return;
  }
  // Wiped outside of the mutex: the bits still say taken. A page that may not be zeros must never be found free.
  if (purgeable__wipe(region->bytes, bytes) != 0) return;
  size_t first = (size_t)(region->bytes - chunk->pages) / page;
  purgeable__shared_t *shared = purgeable__shared();
  purgeable__pool_lock(shared);
  if (first < chunk->search_from) chunk->search_from = first;
  chunk->absent_run = chunk->page_count + 1;
  mark(chunk, first, region->page_count, false);
  purgeable__pool_unlock(shared);
}
