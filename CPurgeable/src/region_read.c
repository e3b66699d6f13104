// SPDX-License-Identifier: MIT
// Reading a region without lock: copy out, then prove that what was copied was there.
//
//   word: not discarded, no writer, version v
//   for each piece:  arm the sentinel
//                    copy
//                    witnesses of the pages touched: not zero          no --> discarded, if version and writer still say so
//                    word: not discarded, no writer, still version v   no --> discarded, or busy
//                    sentinel holds                                    no --> the piece again
//
// Why that is a proof. The version rises with every writing lock and every refill, and WRITER stands from the former to the last
// unlock: v before and after means that nobody was allowed to write in between (seqlock; Boehm, "Can seqlocks get along with
// programming language memory models?", 2012). So the content is one content throughout, and only the kernel can have touched
// it, by taking pages, which then read as zeros until the next refill, for each CPU from some moment on. The sentinel holds:
// copy and check ran on one CPU, so a witness that stands after the copy stood during the copy, in the same view. A page of
// zeros was not changed by being taken. Pieces have one version, so together they were all there when the first one began.
//
// Why a lost witness is believed without the sentinel: under version v the word was not zero, in the page that every CPU had; no
// view, however stale, shows a zero there unless the page was taken.
//
// A long copy would be preempted on a busy machine each time it is tried; a piece passes.

#include "region_witness.h"
#include "region_word.h"

enum {
  REGION_PIECE_BYTES = 64 << 10,
  TRIES = 1000,
};

// Makes a loss that a reader found known to all: nobody holds a lock, and the word is still of the version that was looked at.
static void record_loss(purgeable_region_t *region, uint64_t word, uint32_t version) {
  while (purgeable__word_version(word) == version && purgeable__word_count(word) == 0 &&
         (word & (WORD_OFFERING | WORD_DISCARDED)) == 0) {
    uint64_t wanted = (word & ~(WORD_ON_OFFER | WORD_REFUSED)) | WORD_DISCARDED;
    if (!purgeable__word_change(region, &word, wanted)) continue;
    purgeable__count_kernel_discard(region);
    return;
  }
}

// One piece, of pages [first, end). `version`: that of the whole read.
static purgeable_outcome_t read_piece(purgeable_region_t *region, size_t offset, size_t length, char *buffer, uint32_t version) {
  size_t first = offset / region->page_size_bytes;
  size_t end = (offset + length - 1) / region->page_size_bytes + 1;
  for (int i = 0; i < TRIES; i++) {
    purgeable__sentinel_t sentinel = purgeable__sentinel_arm();
    // Without rseq the proof has a hole; looking before the copy as well makes it small.
    bool stands = sentinel != NULL || purgeable__witnesses_stand(region, first, end);
    purgeable__copy_unsettled(buffer, region->bytes + offset, length);
    // Orders the copy before the checks. Partner: the release fence after a writing lock (region.c).
    atomic_thread_fence(memory_order_acquire);
    PURGEABLE_TEST_PAUSE();
    if (stands) stands = purgeable__witnesses_stand(region, first, end);
    // And the witnesses before the word.
    atomic_thread_fence(memory_order_acquire);
    uint64_t word = purgeable__word_load(region);
    bool holds = purgeable__sentinel_holds(sentinel);
    purgeable__sentinel_disarm(sentinel);
    if ((word & WORD_DISCARDED) != 0) return purgeable_outcome_discarded;
    if ((word & WORD_WRITER) != 0 || purgeable__word_version(word) != version) return purgeable_outcome_busy;
    if (!stands) {
      record_loss(region, word, version);
      return purgeable_outcome_discarded;
    }
    if (holds) return purgeable_outcome_intact;
  }
  return purgeable_outcome_busy;
}

purgeable_outcome_t purgeable_region_read(purgeable_region_t *region, size_t offset_bytes, size_t length_bytes, void *buffer) {
  if (region == NULL || (buffer == NULL && length_bytes != 0)) {
    errno = EINVAL;
    return purgeable_outcome_error;
  }
  if (offset_bytes > region->length_bytes || length_bytes > region->length_bytes - offset_bytes) {
    errno = ERANGE;
    return purgeable_outcome_error;
  }
  if (length_bytes == 0) {
    return purgeable_region_is_discarded(region) ? purgeable_outcome_discarded : purgeable_outcome_intact;
  }
  // Partner: the exchange of the last unlock, which published content and witnesses.
  uint64_t word = purgeable__word_load(region);
  if ((word & WORD_DISCARDED) != 0) return purgeable_outcome_discarded;
  if ((word & WORD_WRITER) != 0) return purgeable_outcome_busy;
  size_t piece_bytes = region->page_size_bytes > REGION_PIECE_BYTES ? region->page_size_bytes : REGION_PIECE_BYTES;
  size_t end = offset_bytes + length_bytes;
  char *out = buffer;
  for (size_t at = offset_bytes; at < end;) {
    // Pieces end on page boundaries, so that no page is looked at for two of them.
    size_t length = piece_bytes - at % piece_bytes;
    if (length > end - at) length = end - at;
    purgeable_outcome_t outcome = read_piece(region, at, length, out, purgeable__word_version(word));
    if (outcome != purgeable_outcome_intact) return outcome;
    at += length;
    out += length;
  }
  return purgeable_outcome_intact;
}

bool purgeable_region_is_discarded(purgeable_region_t *region) {
  if (region == NULL) return false;
  for (;;) {
    uint64_t word = purgeable__word_load(region);
    if ((word & WORD_DISCARDED) != 0) return true;
    if ((word & WORD_ON_OFFER) == 0) return false;
    if (purgeable__witnesses_stand(region, 0, region->page_count)) return false;
    // Lost, or a writer came meanwhile, rescued all of it, and put a zero where the witness was. Then ON_OFFER is gone.
    // Partner of the fence: the release fence after a writing lock.
    atomic_thread_fence(memory_order_acquire);
    uint64_t now = purgeable__word_load(region);
    if ((now & WORD_ON_OFFER) == 0 || purgeable__word_version(now) != purgeable__word_version(word)) continue;
    record_loss(region, now, purgeable__word_version(now));
    return true;
  }
}
