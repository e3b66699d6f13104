// SPDX-License-Identifier: MIT
// What the kernel really does with memory on offer, found by offering 64 pages and looking, and with memory that a fork is to
// wipe, by a fork.
//
//   map, fill --> MADV_FREE --refused--> munlock, again --refused--> unsupported
//     ^               |                        '--accepted--> mlocked
//     |               v
//     |           all gone --> immediate
//     |               | still there
//     |               v
//     |           MADV_PAGEOUT --refused--> works (not confirmed)
//     |               |  '-- all are gone --> works
//     '-- some times -+-- after some tries none is --> no-op
//                     '-- never more than a part --> partial
//
// A first offer skips pages that wait in another processor's batch, where the thread was moved while it filled; there they may
// stay for long. So each try begins with fresh pages. That the thread is moved does not happen some times in a row; a kernel that
// offers a part does so each time.

#include "internal.h"

#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
  PAGES = 64,
  ROUNDS = 8,
  FILLS = 12,
};

// A process with more resident memory than this is not forked for a probe.
#define FORK_MOST_BYTES ((size_t)128 << 20)

// The answer in one word, so that it is whole or not there, also in a child forked meanwhile. 0: not known yet. Relaxed: it
// speaks of nothing but itself. Two threads may both try; they find the same.
enum {
  KNOWN = 1 << 8,
  CONFIRMED = 1 << 9,
  WIPES = 1 << 10,
  WIPE_CONFIRMED = 1 << 11,
  HUGE_PAGES = 1 << 12,
  CLASS_MASK = 0xFF,
};
static _Atomic unsigned kept;

void purgeable_testing_forget_probe(void) { store_relaxed(&kept, 0); }

static void fill(char *start, size_t page) {
  (void)purgeable__madvise(start, PAGES * page, MADV_DONTNEED);
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

// Fills, offers and has the pages taken. KNOWN with a class when that is settled, or 0: `*gone` pages went and the others did
// not.
static unsigned try_once(char *start, size_t page, size_t *gone) {
  size_t length = PAGES * page;
  purgeable_kernel_class_t refused_as;
  fill(start, page);
  if (!offer(start, length, &refused_as)) return KNOWN | refused_as;
  // All at once is the kernel's way; a few are reclaim under pressure, which is what "works" means.
  *gone = gone_count(start, page);
  if (*gone == PAGES) return KNOWN | purgeable_kernel_class_immediate;
  for (int round = 0; round < ROUNDS; round++) {
    if (purgeable__madvise(start, length, PURGEABLE__MADV_PAGEOUT) != 0) return KNOWN | purgeable_kernel_class_works;
    *gone = gone_count(start, page);
    if (*gone == PAGES) return KNOWN | purgeable_kernel_class_works | CONFIRMED;
    if (purgeable__madvise(start, length, PURGEABLE__MADV_FREE) != 0) return KNOWN | purgeable_kernel_class_works;
  }
  return 0;
}

static unsigned look(char *start, size_t page) {
  size_t most = 0;
  for (int i = 0; i < FILLS; i++) {
    size_t gone = 0;
    unsigned found = try_once(start, page, &gone);
    if (found != 0) return found;
    if (gone > most) most = gone;
    // If no page went, that is the answer; further fills would not change it.
    if (most == 0) return KNOWN | purgeable_kernel_class_no_op;
  }
  return KNOWN | purgeable_kernel_class_partial;
}

// MARK: Fork

static size_t resident_bytes(void) {
  char text[128];
  int descriptor = -1;
  if (purgeable__file_open("/proc/self/statm", &descriptor) != 0) return SIZE_MAX;
  size_t length = purgeable__file_read(descriptor, text, sizeof text - 1);
  purgeable__file_close(descriptor);
  text[length] = 0;
  const char *second = strchr(text, ' ');
  return second == NULL ? SIZE_MAX : (size_t)strtoull(second, NULL, 10) * purgeable_page_size_bytes();
}

// Whether a child finds zeros at `byte`: 1, 0, or -1 where none could be made. By the bare call: no handlers of the program, no
// signal at its end, and only who asks for children of this kind (__WALL) can wait for it. The child touches nothing but the
// byte and its stack.
static int child_finds_zero(const volatile char *byte) {
  // The child has this mask: a signal to the process group runs no handler there.
  sigset_t before;
  purgeable__block_signals(&before);
  // All arguments are 0, so that their order, which differs between processors, does not matter.
  long child = syscall(SYS_clone, 0L, 0L, 0L, 0L, 0L);
  if (child == 0) {
    long answer = *byte == 0 ? 1 : 2;
    for (;;) (void)syscall(SYS_exit_group, answer);
  }
  purgeable__restore_signals(&before);
  if (child < 0) return -1;
  int status = 0;
  long waited;
  do waited = syscall(SYS_wait4, child, &status, __WALL, NULL);
  while (waited < 0 && errno == EINTR);
  if (waited != child || !WIFEXITED(status)) return -1;
  return WEXITSTATUS(status) == 1 ? 1 : WEXITSTATUS(status) == 2 ? 0 : -1;
}

// Whether a page that is marked for wiping is really wiped on fork.
static unsigned look_at_fork(char *start, size_t page) {
  if (purgeable__madvise(start, PAGES * page, PURGEABLE__MADV_WIPEONFORK) != 0) return 0;
  if (resident_bytes() > FORK_MOST_BYTES) return WIPES;
  start[0] = 1;
  int answer = child_finds_zero(start);
  return answer < 0 ? WIPES : answer == 0 ? WIPE_CONFIRMED : WIPES | WIPE_CONFIRMED;
}

// MARK: Huge pages

// Only where small pages cannot be asked for: whether one byte brings more than its page.
static unsigned look_at_huge_pages(char *start, size_t page) {
  enum { HUGE_BYTES = 2 << 20 };
  if (purgeable__madvise(start, PAGES * page, PURGEABLE__MADV_NOHUGEPAGE) == 0) return 0;
  int error;
  char *area = purgeable__map_ordinary(2 * HUGE_BYTES, &error);
  if (area == NULL) return 0;
  char *at = area + (-(uintptr_t)area & (HUGE_BYTES - 1));
  unsigned char resident[2] = {0};
  at[0] = 1;
  bool is_huge = purgeable__mincore(at, 2 * page, resident) == 0 && (resident[1] & 1) != 0;
  (void)purgeable__unmap(area, 2 * HUGE_BYTES);
  return is_huge ? HUGE_PAGES : 0;
}

// MARK: The probe

int purgeable_probe(purgeable_probe_t *probe) {
  if (probe == NULL) return EINVAL;
  size_t page = purgeable_page_size_bytes();
  unsigned found = load_relaxed(&kept);
  if (found == 0) {
    int error = 0;
    char *start = purgeable__map(PAGES * page, page, "purgeable-probe", &error);
    if (start == NULL) return error;
    int kept_error = errno;
    found = look_at_fork(start, page);
    found |= look(start, page);
    found |= look_at_huge_pages(start, page);
    errno = kept_error;
    // If the unmapping fails, 64 pages of address space are lost once and their memory is given back; the answer still counts.
    if (purgeable__unmap(start, PAGES * page) != 0) (void)purgeable__wipe(start, PAGES * page);
    store_relaxed(&kept, found);
  }
  *probe = (purgeable_probe_t){
      .kernel_class = (purgeable_kernel_class_t)(found & CLASS_MASK),
      .page_size_bytes = page,
      .confirmed_by_pageout = (found & CONFIRMED) != 0,
      .wipe_on_fork = (found & WIPES) != 0,
      .rseq = purgeable__rseq_available(),
      .wipe_is_confirmed = (found & WIPE_CONFIRMED) != 0,
      .huge_pages = (found & HUGE_PAGES) != 0,
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
    case purgeable_kernel_class_partial: return "partial";
  }
  return "unknown";
}
