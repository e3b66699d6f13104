// SPDX-License-Identifier: MIT
// Pairs of pages of purgeable kind, for control blocks and for small bookkeeping: handed out from blocks of 64, so that
// thousands of heaps and indexes do not need a mapping each, nor stand between the mappings of content, which the kernel merges.
//
//   newest --> block --> block --> block
//               base: 64 pairs, or NULL where they were given back
//               used: a bit per pair
//
//   used         base    |
//   some bits    pages   | pairs are handed out by setting a bit, and come back by clearing it
//   0            pages   | the block is empty: whoever sets all bits unmaps it
//   all bits     NULL    | given back: whoever sets `base` has mapped new pages, and takes the first of them
//
// Blocks are never taken out of the list, so no mutex is needed, and a forked child finds bits that are right: at worst a page
// or a block that another thread of the parent was changing is not used again by the child.

#include "internal.h"

#include <stdlib.h>
#include <string.h>

// The models use fewer.
#ifndef PURGEABLE__BLOCK_PAIRS
#define PURGEABLE__BLOCK_PAIRS 64
#endif
enum { BLOCK_PAIRS = PURGEABLE__BLOCK_PAIRS };
#define ALL_USED (~(uint64_t)0 >> (64 - BLOCK_PAIRS))

typedef struct block {
  struct block *next;
  char *_Atomic base;
  _Atomic uint64_t used;
} block_t;

static block_t *_Atomic newest;

size_t purgeable__pair_bytes(void) { return 2 * purgeable_page_size_bytes(); }

static char *take_from(block_t *block, size_t pair_bytes) {
  uint64_t used = load_relaxed(&block->used);
  while (used != ALL_USED) {
    int free_one = __builtin_ctzll(~used);
    // Acquire: pairs with the release of `purgeable__pair_take`, so `base` is that of these bits; and with that of
    // `purgeable__pair_return`, so the pair has been wiped.
    if (atomic_compare_exchange_weak_explicit(&block->used, &used, used | (uint64_t)1 << free_one, memory_order_acquire,
                                              memory_order_relaxed)) {
      return load_relaxed(&block->base) + (size_t)free_one * pair_bytes;
    }
  }
  return NULL;
}

// Finds or makes a block without pages. All of its bits are set, so nobody else takes from it.
static block_t *take_block(char *pages) {
  for (block_t *block = load_acquire(&newest); block != NULL; block = block->next) {
    char *none = NULL;
    if (atomic_compare_exchange_strong_explicit(&block->base, &none, pages, memory_order_relaxed, memory_order_relaxed)) {
      return block;
    }
  }
  block_t *block = purgeable__allocate(1, sizeof *block);
  if (block == NULL) return NULL;
  store_relaxed(&block->base, pages);
  store_relaxed(&block->used, ALL_USED);
  block->next = load_relaxed(&newest);
  // Release: whoever finds the block sees its fields.
  while (!atomic_compare_exchange_weak_explicit(&newest, &block->next, block, memory_order_release, memory_order_relaxed)) {
  }
  return block;
}

void *purgeable__pair_take(int *error) {
  size_t bytes = purgeable__pair_bytes();
  for (block_t *block = load_acquire(&newest); block != NULL; block = block->next) {
    char *taken = take_from(block, bytes);
    if (taken != NULL) return taken;
  }
  char *pages = purgeable__map(BLOCK_PAIRS * bytes, 1, "purgeable control", error);
  if (pages == NULL) return NULL;
  block_t *block = take_block(pages);
  if (block == NULL) {
    (void)purgeable__unmap(pages, BLOCK_PAIRS * bytes);
    *error = ENOMEM;
    return NULL;
  }
  // Release: pairs with `take_from`.
  store_release(&block->used, 1);
  return pages;
}

// An empty block's pages are unmapped, unless no other block has any.
static void end_if_empty(block_t *block, size_t pair_bytes) {
  bool is_only = true;
  for (block_t *other = load_acquire(&newest); other != NULL; other = other->next) {
    is_only &= other == block || load_relaxed(&other->used) == ALL_USED;
  }
  uint64_t none = 0;
  // Acquire: what was written to its pages came before.
  if (is_only || !atomic_compare_exchange_strong_explicit(&block->used, &none, ALL_USED, memory_order_acquire,
                                                          memory_order_relaxed)) {
    return;
  }
  char *pages = load_relaxed(&block->base);
  // Before the pages go: the kernel may give their place to the next block, and only one may be found there. Release, although
  // it is the kernel's own locks that bring this store before the end of the mapping.
  store_release(&block->base, NULL);
  if (purgeable__unmap(pages, BLOCK_PAIRS * pair_bytes) == 0) return;
  // The pages have been wiped, and wait for use. Without memory for a block they stay address space.
  block = take_block(pages);
  if (block != NULL) store_release(&block->used, 0);
}

// NULL for an address in no block.
static block_t *block_of(const void *address) {
  size_t bytes = BLOCK_PAIRS * purgeable__pair_bytes();
  block_t *block = load_acquire(&newest);
  while (block != NULL && (size_t)((const char *)address - load_relaxed(&block->base)) >= bytes) block = block->next;
  return block;
}

bool purgeable__is_of_pair(const void *address, bool *is_start) {
  block_t *block = block_of(address);
  if (block == NULL) return false;
  *is_start = (size_t)((const char *)address - load_relaxed(&block->base)) % purgeable__pair_bytes() == 0;
  return true;
}

void purgeable__pair_return(void *pair) {
  size_t bytes = purgeable__pair_bytes();
  block_t *block = block_of(pair);
  if (purgeable__wipe(pair, bytes) != 0) memset(pair, 0, bytes);
  size_t number = (size_t)((char *)pair - load_relaxed(&block->base)) / bytes;
  // Release: pairs with `take_from`.
  uint64_t before = atomic_fetch_and_explicit(&block->used, ~((uint64_t)1 << number), memory_order_release);
  if (before == (uint64_t)1 << number) end_if_empty(block, bytes);
}
