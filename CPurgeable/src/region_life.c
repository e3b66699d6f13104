// SPDX-License-Identifier: MIT
// How a region begins and ends, and what can be asked about it: size and residence.
//
//   create --> [structure, ordinary memory] --> word, bytes [pages of the pool]
//   destroy: out of the queue --> wait out the last madvise --> counters --> wipe the pages --> bits --> free

#include "region_filler.h"
#include "region_pool.h"
#include "region_queue.h"
#include "region_word.h"

static purgeable__counters_t *shard_of(purgeable__shared_t *shared, const purgeable_region_t *region) {
  uint64_t mixed = (uint64_t)(uintptr_t)region * UINT64_C(0x9E3779B97F4A7C15);
  return &shared->shards[(mixed >> 32) % PURGEABLE__SHARD_COUNT];
}

// Makes a region whose word says `state`. Its filler is known before anybody knows the region.
static int create(size_t length_bytes, const purgeable_region_options_t *options, uint64_t state, purgeable_region_t **region) {
  purgeable_offering_t offering = options == NULL ? purgeable_offering_deferred : options->offering;
  if (region == NULL || length_bytes == 0) return EINVAL;
  if (offering != purgeable_offering_deferred && offering != purgeable_offering_immediate &&
      offering != purgeable_offering_never) {
    return EINVAL;
  }
  size_t page = purgeable_page_size_bytes();
  // PTRDIFF_MAX: nothing larger can be mapped, and nothing below it overflows further on.
  if (length_bytes > PTRDIFF_MAX - 2 * page) return ENOMEM;
  size_t page_count = purgeable__round_up(length_bytes, page) / page;
  purgeable__shared_t *shared = purgeable__shared_make();
  if (shared == NULL) return ENOMEM;
  // Pages first: a length without address space for it must not lead to an allocation of a table of its pages.
  purgeable_region_t draft = {.length_bytes = length_bytes, .page_size_bytes = page, .page_count = page_count};
  if (purgeable__pages_take(&draft) != 0) return ENOMEM;
  purgeable_region_t *made = purgeable__allocate(1, sizeof *made + page_count * sizeof made->witnesses[0]);
  if (made == NULL) {
    (void)purgeable__pages_give(&draft);
    return ENOMEM;
  }
  memcpy(made, &draft, offsetof(purgeable_region_t, witnesses));
  made->counters = shard_of(shared, made);
  made->offering = offering;
  store_relaxed(&made->filler, purgeable__this_thread());
  assert(((uintptr_t)made->bytes & (page - 1)) == 0 && ((uintptr_t)made->word & 7) == 0);
  size_t bytes = purgeable__region_bytes(made);
  // The word continues the versions of the region that had its line before.
  uint64_t old = load_relaxed(made->word);
  uint64_t word = (uint64_t)(purgeable__word_version(old) + 1) << 32 | WORD_ALIVE | state;
  assert(purgeable__word_is_valid(word));
  store_release(made->word, word);
  purgeable__word_account(made, WORD_ALIVE, word);
  purgeable__region_total_change(bytes, true);
  *region = made;
  return 0;
}

int purgeable_region_create(size_t length_bytes, const purgeable_region_options_t *options, purgeable_region_t **region) {
  return create(length_bytes, options, WORD_WRITER | WORD_FILLING | 1, region);
}

int purgeable_region_create_discarded(size_t length_bytes, const purgeable_region_options_t *options,
                                      purgeable_region_t **region) {
  return create(length_bytes, options, WORD_DISCARDED, region);
}

int purgeable_region_destroy(purgeable_region_t *region) {
  if (region == NULL) return EINVAL;
  bool is_free = purgeable__queue_remove(region);
  // Out of the queue nobody new claims it. Who claimed it before is inside a madvise, bounded by one batch; after the exchange
  // that ends OFFERING that thread touches neither region nor content. Counted as a locker is, so that a long offer ends early.
  uint64_t word = purgeable__word_load(region);
  while ((word & WORD_OFFERING) != 0) {
    bool counts = purgeable__word_count(word) != 0;
    if (counts || purgeable__word_change(region, &word, word + 1)) word = purgeable__word_wait(region, counts ? word : word + 1);
  }
  purgeable__word_account(region, word, WORD_ALIVE);
  purgeable__region_total_change(purgeable__region_bytes(region), false);
  uint64_t last = (uint64_t)(purgeable__word_version(word) + 1) << 32 | WORD_ALIVE | WORD_DISCARDED;
  store_release(region->word, last);
  int error = purgeable__pages_give(region);
  if (is_free) free(region);
  if (!is_free) purgeable__queue_part(region);
  return error;
}

// MARK: Facts

void *purgeable_region_bytes(purgeable_region_t *region) { return region == NULL ? NULL : region->bytes; }

size_t purgeable_region_length_bytes(const purgeable_region_t *region) { return region == NULL ? 0 : region->length_bytes; }

// A word of 0 (forked child, not yet healed) has no count and is not on offer, so these two need not heal it.
uint32_t purgeable_region_lock_count(const purgeable_region_t *region) {
  if (region == NULL) return 0;
  uint64_t word = load_acquire(region->word);
  // With DISCARDED the count is that of lockers on their way back.
  return (word & WORD_DISCARDED) != 0 ? 0 : (uint32_t)purgeable__word_count(word);
}

size_t purgeable_region_offered_bytes(const purgeable_region_t *region) {
  if (region == NULL) return 0;
  uint64_t word = load_acquire(region->word);
  return (word & (WORD_ON_OFFER | WORD_REFUSED)) == WORD_ON_OFFER ? purgeable__region_witnessed_bytes(region) : 0;
}

int purgeable_region_resident_bytes(purgeable_region_t *region, size_t *resident_bytes) {
  if (region == NULL || resident_bytes == NULL) return EINVAL;
  unsigned char states[1024];
  size_t resident = 0;
  for (size_t page = 0; page < region->page_count;) {
    size_t count = region->page_count - page < sizeof states ? region->page_count - page : sizeof states;
    char *start = region->bytes + page * region->page_size_bytes;
    int error = purgeable__mincore(start, count * region->page_size_bytes, states);
    if (error != 0) return error;
    for (size_t i = 0; i < count; i++) resident += states[i] & 1u;
    page += count;
  }
  *resident_bytes = resident * region->page_size_bytes;
  return 0;
}
