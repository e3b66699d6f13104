// SPDX-License-Identifier: MIT
/// For this library's own use: sums over bytes that go to files, and what Swift's C library module lacks of files.
#ifndef PURGEABLE_FILES_H
#define PURGEABLE_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/// The CRC-32C (Castagnoli, as in iSCSI and ext4) of bytes that follow those of which `sum` is the CRC; 0 to begin with. Any
/// thread. Some 8 GB/s where the processor has an instruction for it, 1.5 GB/s elsewhere.
uint32_t purgeable__crc32c(uint32_t sum, const void *bytes, size_t byte_count);

/// The same without the processor's instruction, for tests.
uint32_t purgeable__crc32c_by_tables(uint32_t sum, const void *bytes, size_t byte_count);

/// SipHash-1-3 of the bytes, with a key of two words. Any thread. The same on every machine.
uint64_t purgeable__siphash(uint64_t low, uint64_t high, const void *bytes, size_t byte_count);

/// `openat` with O_DIRECT and O_CLOEXEC: the file's pages go around the page cache. Answers -1 with EINVAL where the file system
/// knows no such thing.
int purgeable__open_direct(int directory, const char *path, int flags, mode_t mode);

/// Ends that. False with errno.
bool purgeable__leave_direct(int file);

/// Has a part of a file written to the disk, waits for it, and gives its pages in the page cache up. False with errno where it
/// could not be written; true where the file system does not write on demand.
bool purgeable__write_out(int file, off_t start, off_t byte_count);

/// Has a file's room on the disk taken up to `byte_count` bytes, beyond its end, which stays. False with errno where the disk, or
/// what the user or the process may write, has none; true where the file system cannot say.
bool purgeable__take_room(int file, off_t byte_count);

/// Has all that was written to the file system of an open file brought to the disk. False with errno.
bool purgeable__sync_file_system(int file);
bool purgeable__sync_file(int file);

/// The number of the type of the file system that a path is on (statfs(2)); 0 where it cannot be told.
long purgeable__file_system(const char *path);

#endif
