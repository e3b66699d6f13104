// SPDX-License-Identifier: MIT
// What the kernel really does with memory on offer, found by offering 64 pages and looking.
//
//   map, fill --> MADV_FREE --refused--> munlock, again --refused--> unsupported
//                     |                        '--accepted--> mlocked
//                     v
//                 all gone --> immediate
//                     | still there
//                     v
//                 MADV_PAGEOUT --refused--> works (not confirmed)
//                     |  '-- a page is gone --> works
//                     '-- after some tries none is --> no-op

#include "internal.h"

#include <sys/syscall.h>
#include <unistd.h>

enum { PAGES = 64, ROUNDS = 8 };

// The answer in one word, so that it is whole or not there, also in a child forked meanwhile. 0: not known yet. Relaxed: it
// speaks of nothing but itself. Two threads may both try; they find the same.
enum {
  KNOWN = 1 << 8,
  CONFIRMED = 1 << 9,
  WIPES = 1 << 10,
  CLASS_MASK = 0xFF,
};
static _Atomic unsigned kept;

void purgeable_testing_forget_probe(void) { atomic_store_explicit(&kept, 0, memory_order_relaxed); }

static void fill(char *start, size_t page) {
  for (size_t i = 0; i < PAGES; i++) memset(start + i * page, 0xA5, page);
}

// Volatile: it is the kernel that changes these bytes.
static size_t gone_count(const char *start, size_t page) {
  size_t gone = 0;
  for (size_t i = 0; i < PAGES; i++) gone += *(const volatile char *)(start + i * page) == 0;
  return gone;
}

// Offers the pages. False: refused, and the class that this means.
static bool offer(char *start, size_t length, purgeable_kernel_class_t *refused_as) {
  int error = purgeable__madvise(start, length, PURGEABLE__MADV_FREE);
  if (error == 0) return true;
  *refused_as = purgeable_kernel_class_unsupported;
  // EINVAL is what both an old kernel and an mlocked mapping answer. Ours, unlocked, tells the two apart. The call is made
  // directly because sanitizers turn the C library's function into nothing.
  if (error != EINVAL || syscall(SYS_munlock, start, length) != 0) return false;
  if (purgeable__madvise(start, length, PURGEABLE__MADV_FREE) == 0) *refused_as = purgeable_kernel_class_mlocked;
  return false;
}

static unsigned look(char *start, size_t page) {
  size_t length = PAGES * page;
  purgeable_kernel_class_t refused_as;
  fill(start, page);
  if (!offer(start, length, &refused_as)) return refused_as;
  // All at once is the kernel's way; a few are reclaim under pressure, which is what "works" means.
  size_t gone = gone_count(start, page);
  if (gone == PAGES) return purgeable_kernel_class_immediate;
  if (gone != 0) return purgeable_kernel_class_works | CONFIRMED;
  for (int round = 0; round < ROUNDS; round++) {
    if (purgeable__madvise(start, length, PURGEABLE__MADV_PAGEOUT) != 0) return purgeable_kernel_class_works;
    if (gone_count(start, page) != 0) return purgeable_kernel_class_works | CONFIRMED;
    // A first offer skips pages that are on their way to the kernel's lists.
    if (purgeable__madvise(start, length, PURGEABLE__MADV_FREE) != 0) return purgeable_kernel_class_works;
  }
  return purgeable_kernel_class_no_op;
}

int purgeable_probe(purgeable_probe_t *probe) {
  if (probe == NULL) return EINVAL;
  size_t page = purgeable_page_size_bytes();
  unsigned found = atomic_load_explicit(&kept, memory_order_relaxed);
  if (found == 0) {
    int error = 0;
    char *start = purgeable__map(PAGES * page, page, "purgeable-probe", &error);
    if (start == NULL) return error;
    found = KNOWN;
    if (purgeable__madvise(start, PAGES * page, PURGEABLE__MADV_WIPEONFORK) == 0) found |= WIPES;
    found |= look(start, page);
    // 64 pages of address space, once, are no reason to know nothing; their memory is given back.
    if (purgeable__unmap(start, PAGES * page) != 0) (void)purgeable__wipe(start, PAGES * page);
    atomic_store_explicit(&kept, found, memory_order_relaxed);
  }
  *probe = (purgeable_probe_t){
      .kernel_class = (purgeable_kernel_class_t)(found & CLASS_MASK),
      .page_size_bytes = page,
      .confirmed_by_pageout = (found & CONFIRMED) != 0,
      .wipe_on_fork = (found & WIPES) != 0,
      .rseq = purgeable__rseq_available(),
  };
  return 0;
}

const char *purgeable_kernel_class_name(purgeable_kernel_class_t kernel_class) {
  switch (kernel_class) {
    case purgeable_kernel_class_works: return "works";
    case purgeable_kernel_class_immediate: return "immediate";
    case purgeable_kernel_class_no_op: return "no-op";
    case purgeable_kernel_class_unsupported: return "unsupported";
    case purgeable_kernel_class_mlocked: return "mlocked";
  }
  return "unknown";
}
