// SPDX-License-Identifier: MIT
// How the kernel, or the filter or the emulator in front of it, answers each call that the core makes. Each is tried once, on a
// page of its own, and changes nothing else.

#include "internal.h"

#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

// One range of the own process by way of a descriptor of it: Linux 6.13, where neither a filter nor an emulator refuses.
static int offer_by_descriptor(void *start, size_t length) {
#if defined(SYS_pidfd_open) && defined(SYS_process_madvise)
  int self = (int)syscall(SYS_pidfd_open, getpid(), 0);
  if (self < 0) return errno;
  struct iovec range = {.iov_base = start, .iov_len = length};
  int error = syscall(SYS_process_madvise, self, &range, 1, PURGEABLE__MADV_FREE, 0) < 0 ? errno : 0;
  // Directly: the C library's function is a cancellation point.
  (void)syscall(SYS_close, self);
  return error;
#else
  (void)start, (void)length;
  return ENOSYS;
#endif
}

int purgeable_probe_calls(purgeable_call_answers_t *answers) {
  if (answers == NULL) return EINVAL;
  size_t length = purgeable_page_size_bytes();
  int error = 0;
  char *start = purgeable__map_ordinary(length, &error);
  if (start == NULL) return error;
  start[0] = 1;
  unsigned char resident = 0;
  uint64_t number = 0;
  // Initialisers run in no fixed order, so one statement each.
  purgeable_call_answers_t found = {0};
  found.no_huge_page = purgeable__madvise(start, length, PURGEABLE__MADV_NOHUGEPAGE);
  found.wipe_on_fork = purgeable__madvise(start, length, PURGEABLE__MADV_WIPEONFORK);
  found.dont_dump = purgeable__madvise(start, length, PURGEABLE__MADV_DONTDUMP);
  found.mincore = purgeable__mincore(start, length, &resident);
  found.offer = purgeable__madvise(start, length, PURGEABLE__MADV_FREE);
  found.offer_by_descriptor = offer_by_descriptor(start, length);
  found.page_out = purgeable__madvise(start, length, PURGEABLE__MADV_PAGEOUT);
  found.give_back = purgeable__madvise(start, length, MADV_DONTNEED);
  found.random = purgeable__random(&number, sizeof number);
  (void)purgeable__unmap(start, length);
  *answers = found;
  return 0;
}
