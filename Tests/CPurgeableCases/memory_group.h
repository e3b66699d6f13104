// SPDX-License-Identifier: MIT
// Memory groups (cgroups) of a test's own: made inside the group that the test runs in, entered by children only, removed by the
// process that made them. Version 1 where its memory controller is in use, else version 2.
#ifndef MEMORY_GROUP_H
#define MEMORY_GROUP_H

#include <stdbool.h>
#include <stddef.h>

typedef struct memory_group {
  char path[512];
  bool is_first;  // version 1
} memory_group_t;

// Makes a group with a limit of `byte_limit` (0: without a limit). False, and why, where this process may not.
bool memory_group_make(memory_group_t *group, size_t byte_limit, const char **reason);
// Moves the calling process into the group.
bool memory_group_join(const memory_group_t *group);
// Removes the group, once it is empty. 0 when it is gone.
int memory_group_remove(const memory_group_t *group);

// The bytes that the group uses (`memory.usage_in_bytes`, `memory.current`); -1 where they cannot be read.
long long memory_group_usage_bytes(const memory_group_t *group);
// A line of its `memory.stat`, by its name in that version; -1 where there is none.
long long memory_group_stat(const memory_group_t *group, const char *name);

#endif
