// SPDX-License-Identifier: MIT
// Where regions get their pages: large chunks for the many, a mapping of its own for the few above 16 MiB.
//
//   chunk   [ lines: a word each, at most as many as pages ][ page 0 | page 1 | ...                     ]  64 MiB, one mapping
//             ^ of some region                                `-- region --' `-- free --'
//   own     [ word, rest of a page unused ][ content ...                                                ]
//   bitmaps 1 1 0 0 ...  in ordinary memory: which content pages are taken, and which lines
//
// Each region has a cache line of its own for its word, so that threads that lock neighbours do not take the line from each
// other. Lines are taken from the lowest on, so only as many are touched as there are regions: 64 bytes for each, whatever its
// length. (A word for each page, side by side, took 8 bytes a page: less for one page, the same for 8, more beyond.)
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
// So regions have no pthread_atfork handlers, and nothing that a fork has to wait for. Kernels without MADV_WIPEONFORK (before
// 4.14) give no such child; the probe reports them. A fork from a signal handler that interrupted this library is outside of the
// contract.

#include "region_pool.h"

enum {
  CHUNK_BYTES = 64 << 20,
  LARGEST_IN_CHUNK_BYTES = 16 << 20,
  WORD_LINE_BYTES = 64,
  WORD_LINE_WORDS = WORD_LINE_BYTES / 8,
  BITS = 64,
};

struct purgeable__pool_chunk {
  struct purgeable__pool_chunk *next;
  // The word of line k is `words[k * WORD_LINE_WORDS]`.
  _Atomic uint64_t *words;
  char *pages;
  // As many lines as pages.
  size_t page_count;
  // Every line before this one is taken.
  size_t lines_from;
  // A bit per line: taken. Guarded by the pool's mutex, like all that follows and the field above.
  uint64_t *lines_taken;
  // Every page before this one is taken.
  size_t search_from;
  // No run of this many free pages exists.
  size_t absent_run;
  // A bit per page; behind them those of the lines.
  uint64_t taken[];
};

// Both outlive a fork. `shared_page`: published by exchange, release; partner: the acquire loads. `chunks`: published by store,
// release, under the mutex; partner: the load under the mutex, or in a forked child.
static _Atomic(purgeable__shared_t *) shared_page;
static _Atomic(purgeable__pool_chunk_t *) chunks;

// Outlive a fork, unlike the counters in the shared page: the child has the regions too. Relaxed: statistics.
static _Atomic uint64_t region_count;
static _Atomic uint64_t region_bytes;

uint64_t purgeable__region_total(uint64_t *count) {
  if (count != NULL) *count = load_relaxed(&region_count);
  return load_relaxed(&region_bytes);
}

void purgeable__region_total_change(size_t bytes, bool is_more) {
  uint64_t before = add_relaxed(&region_bytes, is_more ? (uint64_t)bytes : -(uint64_t)bytes);
  assert(is_more || before >= bytes);
  (void)before;
  add_relaxed(&region_count, is_more ? 1 : (uint64_t)-1);
}

// MARK: The shared page

// The thread that sets `alive` from 0 to 1 books everything the parent held as discarded. The total is read first: it can change
// only through threads that have seen the 1.
static void heal_pool(purgeable__shared_t *shared) {
  uint64_t bytes = purgeable__region_total(NULL);
  uint64_t dead = 0;
  // Partner: the same exchange in another thread of the child.
  if (!atomic_compare_exchange_strong_explicit(&shared->alive, &dead, 1, memory_order_acq_rel, memory_order_acquire)) return;
  add_relaxed(&shared->shards[0].discarded_bytes, bytes);
}

purgeable__shared_t *purgeable__shared(void) {
  purgeable__shared_t *shared = load_acquire(&shared_page);
  if (shared != NULL && load_acquire(&shared->alive) == 0) heal_pool(shared);
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
  store_relaxed(&fresh->alive, 1);
  if (atomic_compare_exchange_strong_explicit(&shared_page, &shared, fresh, memory_order_acq_rel, memory_order_acquire)) {
    return fresh;
  }
  // Another thread was first. A mapping that cannot be unmapped is a page of address space lost, once.
  (void)purgeable__unmap(fresh, length);
  return shared;
}

void purgeable__pool_lock(purgeable__shared_t *shared) {
  if (pthread_mutex_trylock(&shared->mutex) != 0) purgeable__pool_lock_in_turn(shared);
}

void purgeable__pool_lock_in_turn(purgeable__shared_t *shared) {
  int error = pthread_mutex_lock(&shared->gate);
  assert(error == 0);
  error = pthread_mutex_lock(&shared->mutex);
  assert(error == 0);
  error = pthread_mutex_unlock(&shared->gate);
  assert(error == 0);
  (void)error;
}

void purgeable__pool_unlock(purgeable__shared_t *shared) {
  int error = pthread_mutex_unlock(&shared->mutex);
  assert(error == 0);
  (void)error;
}

// MARK: Bitmap (under the mutex)

// The first bit at or after `at` that is clear, or `end`: a whole word of set bits is one step.
static size_t next_clear(const uint64_t *bits, size_t at, size_t end) {
  while (at < end) {
    uint64_t open = ~bits[at / BITS] >> (at % BITS);
    if (open != 0) {
      at += (size_t)__builtin_ctzll(open);
      return at < end ? at : end;
    }
    at = (at / BITS + 1) * BITS;
  }
  return end;
}

static size_t next_free(const purgeable__pool_chunk_t *chunk, size_t page) {
  return next_clear(chunk->taken, page, chunk->page_count);
}

// The first taken page at or after `page`, but at most `end`.
static size_t next_taken(const purgeable__pool_chunk_t *chunk, size_t page, size_t end) {
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

static void mark(purgeable__pool_chunk_t *chunk, size_t first, size_t count, bool taken) {
  assert(count != 0 && first < chunk->page_count && count <= chunk->page_count - first);
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
static bool take_run(purgeable__pool_chunk_t *chunk, size_t count, size_t *first) {
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

// A free line. False: a thread that this process, a forked child, does not have may have left lines taken that nobody owns.
static bool take_line(purgeable__pool_chunk_t *chunk, size_t *line) {
  *line = chunk->lines_from = next_clear(chunk->lines_taken, chunk->lines_from, chunk->page_count);
  if (*line == chunk->page_count) return false;
  chunk->lines_taken[*line / BITS] |= UINT64_C(1) << (*line % BITS);
  return true;
}

static void give_line(purgeable__pool_chunk_t *chunk, size_t line) {
  uint64_t bit = UINT64_C(1) << (line % BITS);
  assert(line < chunk->page_count && (chunk->lines_taken[line / BITS] & bit) != 0);
  chunk->lines_taken[line / BITS] &= ~bit;
  if (line < chunk->lines_from) chunk->lines_from = line;
}

// Takes a line and `count` pages for a region, or neither. False: this chunk has none.
static bool take_both(purgeable__pool_chunk_t *chunk, size_t count, size_t *first, size_t *line) {
  if (count >= chunk->absent_run || !take_line(chunk, line)) return false;
  if (take_run(chunk, count, first)) return true;
  give_line(chunk, *line);
  return false;
}

// Maps a chunk with room for `page_count` pages and publishes it; NULL where no memory is left.
static purgeable__pool_chunk_t *make_pool_chunk(size_t page_count) {
  size_t page = purgeable_page_size_bytes();
  size_t words_length = purgeable__round_up(page_count * WORD_LINE_BYTES, page);
  size_t bitmap_words = (page_count + BITS - 1) / BITS;
  assert(page_count != 0);
  purgeable__pool_chunk_t *chunk = purgeable__allocate(1, sizeof *chunk + 2 * bitmap_words * sizeof(uint64_t));
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
  chunk->lines_taken = chunk->taken + bitmap_words;
  chunk->absent_run = page_count + 1;
  chunk->next = load_relaxed(&chunks);
  store_release(&chunks, chunk);
  return chunk;
}

// MARK: Pages for a region

static int take_from_chunks(purgeable_region_t *region) {
  size_t page = region->page_size_bytes;
  purgeable__shared_t *shared = purgeable__shared();
  purgeable__pool_lock(shared);
  size_t first = 0, line = 0;
  purgeable__pool_chunk_t *chunk = load_acquire(&chunks);
  while (chunk != NULL && !take_both(chunk, region->page_count, &first, &line)) chunk = chunk->next;
  if (chunk == NULL) {
    // A chunk's lines take one part in (page / 64) of its addresses. Where a full one is too much, room for this region alone.
    size_t full = (CHUNK_BYTES / page) - purgeable__round_up(CHUNK_BYTES / page * WORD_LINE_BYTES, page) / page;
    chunk = make_pool_chunk(full);
    if (chunk == NULL) chunk = make_pool_chunk(region->page_count);
    if (chunk != NULL && !take_both(chunk, region->page_count, &first, &line)) chunk = NULL;
  }
  purgeable__pool_unlock(shared);
  if (chunk == NULL) return ENOMEM;
  region->chunk = chunk;
  region->word = chunk->words + line * WORD_LINE_WORDS;
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

int purgeable__pages_give(purgeable_region_t *region) {
  size_t page = region->page_size_bytes;
  size_t bytes = purgeable__region_bytes(region);
  purgeable__pool_chunk_t *chunk = region->chunk;
  if (chunk == NULL) {
    int refused = purgeable__unmap(region->bytes - page, page + bytes);
    if (refused == 0) return 0;
    // What cannot be unmapped gives back its memory at least.
    int error = purgeable__wipe(region->bytes, bytes);
    return error != 0 ? error : refused;
  }
  // Wiped outside of the mutex: the bits still say taken. A page that may not be zeros must never be found free.
  int error = purgeable__wipe(region->bytes, bytes);
  if (error != 0) return error;
  size_t first = (size_t)(region->bytes - chunk->pages) / page;
  size_t line = (size_t)(region->word - chunk->words) / WORD_LINE_WORDS;
  assert(region->word == chunk->words + line * WORD_LINE_WORDS && chunk->pages + first * page == region->bytes);
  purgeable__shared_t *shared = purgeable__shared();
  purgeable__pool_lock(shared);
  if (first < chunk->search_from) chunk->search_from = first;
  chunk->absent_run = chunk->page_count + 1;
  mark(chunk, first, region->page_count, false);
  give_line(chunk, line);
  purgeable__pool_unlock(shared);
  return 0;
}

uintptr_t purgeable_testing_region_line(const purgeable_region_t *region) {
  return region == NULL ? 0 : (uintptr_t)(void *)region->word / WORD_LINE_BYTES;
}
