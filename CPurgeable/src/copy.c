// SPDX-License-Identifier: MIT
// Touching content that another thread, or the kernel, may change at any moment: the copy, the comparison, the rescue.
//
// Why the copy may race: its result is used only after the reader has found, in this order, every witness not zero, the header
// unchanged and the generation unchanged, all on the CPU that copied. A discard shows in a witness, a reuse in the generation.
// Until then the bytes are noise, and noise is never looked at.

#include "internal.h"

#if defined(PURGEABLE_TSAN)
// memcpy and memcmp are intercepted by the sanitizer even in an excluded function; volatile bytes are not.
PURGEABLE_NO_TSAN void purgeable__copy_unsettled(void *to, const void *from, size_t length_bytes) {
  volatile unsigned char *out = to;
  const volatile unsigned char *in = from;
  for (size_t i = 0; i < length_bytes; i++) out[i] = in[i];
}

// Attributes do not keep the sanitizer away from atomics, but from volatile words, which are as whole.
PURGEABLE_NO_TSAN uint64_t purgeable__load_unsettled(const _Atomic uint64_t *word) {
  uint64_t value = *(const volatile uint64_t *)word;
  atomic_thread_fence(memory_order_acquire);
  return value;
}

PURGEABLE_NO_TSAN uint16_t purgeable__load_entry_unsettled(const _Atomic uint16_t *entry) {
  uint16_t value = *(const volatile uint16_t *)entry;
  atomic_thread_fence(memory_order_acquire);
  return value;
}

PURGEABLE_NO_TSAN bool purgeable__equal_unsettled(const void *unsettled, const void *key, size_t length_bytes) {
  const volatile unsigned char *left = unsettled;
  const volatile unsigned char *right = key;
  for (size_t i = 0; i < length_bytes; i++) {
    if (left[i] != right[i]) return false;
  }
  return true;
}
#else
// The C library copies much at once by `rep movsb`. Where the target lies 1 to 31 bytes behind the source, but for whole pages of
// 4 KiB, AMD's Zen takes its loads for loads of what it has just stored, and waits: such a copy takes up to 25 times as long
// (5 KB in 1,400 ns where 50 are usual, on EPYC with glibc 2.36; sourceware.org bug 30994). Short pieces are copied by other
// instructions.
enum { ALIAS_BYTES = 4096, ALIASED_MOST = 31, SHORT_BYTES = 1024 };

void purgeable__copy_unsettled(void *to, const void *from, size_t length_bytes) {
  size_t behind = ((uintptr_t)to - (uintptr_t)from) % ALIAS_BYTES;
  size_t piece = behind == 0 || behind > ALIASED_MOST ? length_bytes : SHORT_BYTES;
  for (size_t at = 0; at < length_bytes; at += piece) {
    memcpy((char *)to + at, (const char *)from + at, length_bytes - at < piece ? length_bytes - at : piece);
  }
}

bool purgeable__equal_unsettled(const void *unsettled, const void *key, size_t length_bytes) {
  return memcmp(unsettled, key, length_bytes) == 0;
}
#endif

// Pairs with nothing: the exchange is there to make the CPU set the dirty bit, which walks the page table anew, so that it
// succeeds only on a page that is still mapped. The holder of a writing lock may be storing to the same word; the exchange then
// fails and the word is read again.
static inline bool exchange_same(_Atomic uint64_t *witness) {
  uint64_t value = load_acquire(witness);
  while (value != 0) {
    if (atomic_compare_exchange_weak_explicit(witness, &value, value, memory_order_acq_rel, memory_order_acquire)) return true;
  }
  return false;
}

#if defined(PURGEABLE_TSAN)
// Attributes do not keep the sanitizer away from atomics. It would see a write beside the plain reads of who was faster and holds
// the lock already; but the value stays what it is.
void AnnotateIgnoreReadsBegin(const char *file, int line);
void AnnotateIgnoreReadsEnd(const char *file, int line);
void AnnotateIgnoreWritesBegin(const char *file, int line);
void AnnotateIgnoreWritesEnd(const char *file, int line);

bool purgeable__rescue(_Atomic uint64_t *witness) {
  AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
  AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  bool is_there = exchange_same(witness);
  AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
  AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  return is_there;
}
#else
bool purgeable__rescue(_Atomic uint64_t *witness) { return exchange_same(witness); }
#endif

const uint64_t *purgeable__first_nonzero(const uint64_t *start, const uint64_t *end) {
  assert(((uintptr_t)start & 7) == 0 && ((uintptr_t)end & 7) == 0);
  for (const uint64_t *word = start; word < end; word++) {
    if (*word != 0) return word;
  }
  return NULL;
}
