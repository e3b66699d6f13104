// SPDX-License-Identifier: MIT
/// The memory group (cgroup, version 1 or 2) of this process, and those around it: what limits them, and what they use.
///
///     char path[PURGEABLE_GROUP_ROOM], directory[PURGEABLE_GROUP_ROOM];
///     purgeable_group_t group = {.path = path, .directory = directory};
///     uint64_t smallest = PURGEABLE_NO_NUMBER;
///     int error = purgeable_group_find("", PURGEABLE_GROUP_ANY_VERSION, &group);
///     while (error == 0) {
///       purgeable_group_limits_t limits;
///       purgeable_group_read_limits(&group, &limits);
///       if (limits.hard_bytes < smallest) smallest = limits.hard_bytes;
///       error = purgeable_group_leave(&group);
///     }
///
/// Whoever reads these files does it because memory is short: nothing here allocates. Each call reads files anew. A number that
/// is not there, a limit that is none, is PURGEABLE_NO_NUMBER. Any thread; keeps errno.
#ifndef PURGEABLE_GROUP_H
#define PURGEABLE_GROUP_H

#include "purgeable_base.h"

#ifdef __cplusplus
extern "C" {
#endif
PURGEABLE_PUBLIC_BEGIN
PURGEABLE_NONNULL_BEGIN

/// In place of a number that there is not.
#define PURGEABLE_NO_NUMBER UINT64_MAX

/// Bytes for a path. What is longer is not found.
#define PURGEABLE_GROUP_ROOM 1024

/// Which versions are looked for: 1 and 2, or version 2 alone. That counts stalls (PSI) also where version 1 keeps the accounts
/// of memory.
#define PURGEABLE_GROUP_ANY_VERSION 1
#define PURGEABLE_GROUP_VERSION_2 2

/// Where a group is: filled in by `purgeable_group_find`.
typedef struct purgeable_group {
  /// The group's path in its hierarchy, as /proc/self/cgroup has it: "/" at the root of the hierarchy or of a namespace. The
  /// caller's PURGEABLE_GROUP_ROOM bytes.
  char *path;
  /// Where its files are. The caller's PURGEABLE_GROUP_ROOM bytes.
  char *directory;
  /// The first bytes of `directory` that are the mount point: the outermost group that can be seen here.
  size_t mount_length_bytes;
  /// 1 or 2.
  int32_t version;
  /// Whether `directory` is of the process's own group. False where only groups around it can be seen here.
  bool is_own;
} purgeable_group_t;

/// Bytes. Of version 1 the outermost group has the smallest limit of those around it, too: they cannot be seen.
typedef struct purgeable_group_limits {
  /// Above this the kernel reclaims, and kills where it cannot: memory.max, memory.limit_in_bytes.
  uint64_t hard_bytes;
  /// Above this the kernel reclaims and slows the group down: memory.high.
  uint64_t high_bytes;
} purgeable_group_limits_t;

/// Bytes.
typedef struct purgeable_group_use {
  /// Everything in the group: other processes, page cache, kernel memory.
  uint64_t bytes;
  /// Of it what the kernel would take first, memory on offer among it.
  uint64_t inactive_file_bytes;
  /// Of it pages of files on disk.
  uint64_t page_cache_bytes;
} purgeable_group_use_t;

/// Finds the group of this process. `root` stands in front of /proc/self/cgroup, /proc/self/mountinfo and every mount point: "".
/// `least_version`: one of the two above. Where version 1 has the accounts of memory it is version 1's group.
///
/// 0; EINVAL (NULL, also as one of the group's two buffers; no such version); ESRCH where there is none: no controller of memory,
/// or the group is outside of what is mounted; an errno where /proc cannot be read.
PURGEABLE_MUST_USE int purgeable_group_find(const char *root, int32_t least_version, purgeable_group_t *group);

/// Turns a group into the one around it; `path` stays. ENOENT, and nothing changes: there is none that limits it.
PURGEABLE_MUST_USE int purgeable_group_leave(purgeable_group_t *group);

/// Fill in what limits the group, and what it uses, `PURGEABLE_NO_NUMBER` for what cannot be read. 7 to 20 system calls.
/// Of the limits: 0, or the errno of a want that may pass, EMFILE, ENFILE, ENOMEM or EAGAIN: there may be a limit that could
/// not be read.
int purgeable_group_read_limits(const purgeable_group_t *group, purgeable_group_limits_t *limits);
void purgeable_group_read_use(const purgeable_group_t *group, purgeable_group_use_t *use);

PURGEABLE_NONNULL_END
PURGEABLE_PUBLIC_END
#ifdef __cplusplus
}
#endif

#endif
