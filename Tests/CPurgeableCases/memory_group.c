// SPDX-License-Identifier: MIT
// Memory groups: directories and small files under /sys/fs/cgroup.

#include "memory_group.h"

#include "harness.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>

static bool write_text(const char *folder, const char *name, const char *text) {
  char path[600];
  (void)snprintf(path, sizeof path, "%s/%s", folder, name);
  int file = open(path, O_WRONLY | O_CLOEXEC);
  if (file < 0) return false;
  bool written = write(file, text, strlen(text)) == (ssize_t)strlen(text);
  (void)close(file);
  return written;
}

// The number behind `key` and a space at the beginning of a line; the file's first number for NULL.
static long long number_in(const char *folder, const char *name, const char *key) {
  char path[600], line[256];
  (void)snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE *file = fopen(path, "re");
  if (file == NULL) return -1;
  size_t length = key == NULL ? 0 : strlen(key);
  long long number = -1;
  while (number < 0 && fgets(line, sizeof line, file) != NULL) {
    if (length == 0 || (strncmp(line, key, length) == 0 && line[length] == ' ')) number = strtoll(line + length, NULL, 10);
  }
  (void)fclose(file);
  return number;
}

bool memory_group_make(memory_group_t *group, size_t byte_limit, const char **reason) {
  char line[400], limit[32];
  char own[400] = "";
  FILE *file = fopen("/proc/self/cgroup", "re");
  *reason = "no /proc/self/cgroup";
  if (file == NULL) return false;
  while (fgets(line, sizeof line, file) != NULL) {
    const char *path = strstr(line, ":memory:");
    if (path != NULL) (void)snprintf(own, sizeof own, "%s", path + strlen(":memory:"));
  }
  (void)fclose(file);
  own[strcspn(own, "\n")] = 0;
  group->is_first = own[0] != 0;
  (void)snprintf(group->path, sizeof group->path, "/sys/fs/cgroup%s%s/purgeable-test-%d", group->is_first ? "/memory" : "",
                 group->is_first && own[1] != 0 ? own : "", (int)getpid());
  *reason = "this process may not make a memory group";
  if (mkdir(group->path, 0755) != 0) return false;
  *reason = "no memory accounts in a new group";
  (void)snprintf(limit, sizeof limit, "%zu", byte_limit);
  const char *name = group->is_first ? "memory.limit_in_bytes" : "memory.max";
  bool made = memory_group_usage_bytes(group) >= 0 && (byte_limit == 0 || write_text(group->path, name, limit));
  if (!made) (void)rmdir(group->path);
  return made;
}

bool memory_group_join(const memory_group_t *group) {
  char text[32];
  (void)snprintf(text, sizeof text, "%d", (int)getpid());
  return write_text(group->path, "cgroup.procs", text);
}

int memory_group_remove(const memory_group_t *group) {
  // The kernel takes a moment to see that the group is empty.
  int removed = -1;
  for (int i = 0; i < 100 && (removed = rmdir(group->path)) != 0; i++) {
    (void)nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
  }
  return removed;
}

long long memory_group_usage_bytes(const memory_group_t *group) {
  return number_in(group->path, group->is_first ? "memory.usage_in_bytes" : "memory.current", NULL);
}

long long memory_group_stat(const memory_group_t *group, const char *name) {
  return number_in(group->path, "memory.stat", name);
}
