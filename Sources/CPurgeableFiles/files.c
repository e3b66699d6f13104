// SPDX-License-Identifier: MIT
// Around the page cache.

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <fcntl.h>

#include "purgeable_files.h"

int purgeable__open_direct(int directory, const char *path, int flags, mode_t mode) {
  return openat(directory, path, flags | O_DIRECT | O_CLOEXEC, mode);
}

bool purgeable__leave_direct(int file) {
  int flags = fcntl(file, F_GETFL);
  return flags >= 0 && fcntl(file, F_SETFL, flags & ~O_DIRECT) == 0;
}

void purgeable__write_out(int file, off_t start, off_t byte_count) {
  unsigned all = SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
  (void)sync_file_range(file, start, byte_count, all);
  (void)posix_fadvise(file, start, byte_count, POSIX_FADV_DONTNEED);
}
