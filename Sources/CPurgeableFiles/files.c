// SPDX-License-Identifier: MIT
// Around the page cache.

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "purgeable_files.h"

int purgeable__open_direct(int directory, const char *path, int flags, mode_t mode) {
  return openat(directory, path, flags | O_DIRECT | O_CLOEXEC, mode);
}

bool purgeable__leave_direct(int file) {
  int flags = fcntl(file, F_GETFL);
  return flags >= 0 && fcntl(file, F_SETFL, flags & ~O_DIRECT) == 0;
}

bool purgeable__write_out(int file, off_t start, off_t byte_count) {
  unsigned all = SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
  // The kernel tells of a failed write once: what is not reported here, fsync does not know any more.
  bool is_written = sync_file_range(file, start, byte_count, all) == 0 || errno == ENOSYS || errno == EINVAL || errno == ESPIPE;
  int error = errno;
  (void)posix_fadvise(file, start, byte_count, POSIX_FADV_DONTNEED);
  errno = error;
  return is_written;
}

bool purgeable__take_room(int file, off_t byte_count) {
  struct stat status;
  if (fstat(file, &status) != 0 || status.st_size >= byte_count) return true;
  struct rlimit limit;
  // The kernel applies it where the end moves, which is too late.
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && (rlim_t)byte_count > limit.rlim_cur) {
    errno = EFBIG;
    return false;
  }
  int result;
  do result = fallocate(file, FALLOC_FL_KEEP_SIZE, status.st_size, byte_count - status.st_size);
  while (result != 0 && errno == EINTR);
  return result == 0 || (errno != ENOSPC && errno != EDQUOT);
}

bool purgeable__sync_file_system(int file) {
  while (syncfs(file) != 0)
    if (errno != EINTR) return false;
  return true;
}

bool purgeable__sync_file(int file) {
  while (fsync(file) != 0)
    if (errno != EINTR) return false;
  return true;
}

long purgeable__file_system(const char *path) {
  struct statfs status;
  return statfs(path, &status) == 0 ? (long)status.f_type : 0;
}
