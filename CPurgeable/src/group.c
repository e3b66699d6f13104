// SPDX-License-Identifier: MIT
// The memory group of this process, from the files of either version.
//
//   /proc/self/cgroup      4:memory:/pod/app          the group's path in its hierarchy
//   /proc/self/mountinfo   ... /pod /sys/fs/... -     what part of the hierarchy is mounted, and where
//                          --------------------
//                          /sys/fs/.../app            the group's own directory, then every one around it: each has a limit
//
// A container sees only part of that: often its own directory as the mount's root, sometimes only an outer one. Formats:
// cgroups(7), proc(5). Nothing is allocated, so the answer is there also when memory is short. System calls are made directly
// because the C library's functions are cancellation points.

#include "internal.h"

#include "purgeable_group.h"

#include <stdio.h>

// Room for the longest name of a file behind a directory. All of it is on the stack.
enum { LINE_ROOM = 2048, FILE_ROOM = PURGEABLE_GROUP_ROOM + 32 };

// MARK: Lines of a file

typedef struct lines {
  int descriptor;
  size_t begin, end;
  char room[512];
} lines_t;

static int lines_open(lines_t *lines, const char *path) {
  lines->begin = lines->end = 0;
  lines->descriptor = -1;
  return purgeable__file_open(path, &lines->descriptor);
}

static void lines_close(lines_t *lines) { purgeable__file_close(lines->descriptor); }

// The next line without its end, of at most `room` - 1 bytes; what is longer is cut. False at the end of the file.
static bool lines_next(lines_t *lines, char *line, size_t room) {
  size_t length = 0;
  for (;;) {
    if (lines->begin == lines->end) {
      lines->begin = 0;
      lines->end = purgeable__file_read(lines->descriptor, lines->room, sizeof lines->room);
      if (lines->end == 0) break;
    }
    char next = lines->room[lines->begin++];
    if (next == '\n') {
      line[length] = 0;
      return true;
    }
    if (length + 1 < room) line[length++] = next;
  }
  line[length] = 0;
  return length != 0;
}

// MARK: Numbers

// A decimal number that is all of the text; "max" and everything else is none.
static uint64_t number_of(const char *text) {
  uint64_t value = 0;
  if (*text == 0) return PURGEABLE_NO_NUMBER;
  for (; *text != 0; text++) {
    if (*text < '0' || *text > '9' || value > (UINT64_MAX - 9) / 10) return PURGEABLE_NO_NUMBER;
    value = value * 10 + (uint64_t)(*text - '0');
  }
  return value;
}

// Whether a file that could not be opened may be there.
static bool may_pass(int error) { return error == EMFILE || error == ENFILE || error == ENOMEM || error == EAGAIN; }

// The numbers in a file of the group behind keys at the beginnings of lines. 0, or an error that may pass.
static int numbers_in(const purgeable_group_t *group, const char *name, size_t count, const char *const keys[],
                      uint64_t numbers[]) {
  lines_t lines;
  char path[FILE_ROOM], line[64];
  for (size_t i = 0; i < count; i++) numbers[i] = PURGEABLE_NO_NUMBER;
  int printed = snprintf(path, sizeof path, "%s/%s", group->directory, name);
  if (printed < 0 || (size_t)printed >= sizeof path) return 0;
  int error = lines_open(&lines, path);
  if (error != 0) return may_pass(error) ? error : 0;
  for (size_t found = 0; found < count && lines_next(&lines, line, sizeof line);) {
    for (size_t i = 0; i < count; i++) {
      size_t length = strlen(keys[i]);
      if (strncmp(line, keys[i], length) != 0) continue;
      numbers[i] = number_of(line + length);
      found++;
    }
  }
  lines_close(&lines);
  return 0;
}

static int read_number(const purgeable_group_t *group, const char *name, uint64_t *number) {
  return numbers_in(group, name, 1, (const char *const[]){""}, number);
}

static uint64_t number_in(const purgeable_group_t *group, const char *name) {
  uint64_t number;
  (void)read_number(group, name, &number);
  return number;
}

static uint64_t smaller(uint64_t left, uint64_t right) { return left < right ? left : right; }

// MARK: Paths

typedef struct memberships {
  // The path of the process's group in each hierarchy; empty: none.
  char version1[PURGEABLE_GROUP_ROOM], version2[PURGEABLE_GROUP_ROOM];
} memberships_t;

// Whether a list with commas names an item.
static bool names(const char *list, const char *item) {
  size_t length = strlen(item);
  for (const char *at = list; at != NULL; at = strchr(at, ',')) {
    at += *at == ',';
    if (strncmp(at, item, length) == 0 && (at[length] == ',' || at[length] == 0)) return true;
  }
  return false;
}

static void copy_path(char *to, const char *path) {
  if (path[0] == '/' && strlen(path) < PURGEABLE_GROUP_ROOM) strcpy(to, path);
}

// Opens a file below the root. 0 or an errno.
static int open_below(lines_t *lines, const char *root, const char *name) {
  char path[FILE_ROOM];
  int printed = snprintf(path, sizeof path, "%s%s", root, name);
  return printed < 0 || (size_t)printed >= sizeof path ? ENAMETOOLONG : lines_open(lines, path);
}

// Lines ID:CONTROLLERS:PATH. 0 or an errno.
static int read_memberships(const char *root, memberships_t *found) {
  lines_t lines;
  char line[LINE_ROOM];
  found->version1[0] = found->version2[0] = 0;
  int error = open_below(&lines, root, "/proc/self/cgroup");
  if (error != 0) return error;
  while (lines_next(&lines, line, sizeof line)) {
    char *controllers = strchr(line, ':');
    char *path = controllers == NULL ? NULL : strchr(controllers + 1, ':');
    if (path == NULL) continue;
    *path++ = 0;
    controllers++;
    if (names(controllers, "memory")) copy_path(found->version1, path);
    if (strncmp(line, "0:", 2) == 0 && controllers[0] == 0) copy_path(found->version2, path);
  }
  lines_close(&lines);
  return 0;
}

// Mountinfo writes space, tab, newline and backslash as a backslash and three octal digits. In place.
static void unescape(char *word) {
  char *to = word;
  for (const char *from = word; *from != 0; to++) {
    bool is_octal = from[0] == '\\';
    for (int i = 1; is_octal && i <= 3; i++) is_octal = from[i] >= '0' && from[i] <= '7';
    if (is_octal) {
      *to = (char)((from[1] - '0') * 64 + (from[2] - '0') * 8 + (from[3] - '0'));
      from += 4;
    } else {
      *to = *from++;
    }
  }
  *to = 0;
}

// Whether a path has a "..".
static bool climbs(const char *path) {
  for (const char *at = path; (at = strstr(at, "/..")) != NULL; at += 3) {
    if (at[3] == '/' || at[3] == 0) return true;
  }
  return false;
}

// What follows `top` in `path`, both paths in one hierarchy: "" or "/a/b". NULL where `path` does not lie below. A top of "/.."
// lies around the process's own group by a way that nothing names: then the mount's root is all that can be seen, and it is not
// the own one.
static const char *path_below(const char *path, const char *top, bool *is_own) {
  size_t length = strlen(top);
  while (length != 0 && top[length - 1] == '/') length--;
  *is_own = true;
  if (strncmp(path, top, length) == 0 && (path[length] == '/' || path[length] == 0)) {
    const char *rest = path + length;
    return climbs(rest) ? NULL : rest[0] != 0 && rest[1] == 0 ? "" : rest;
  }
  for (const char *at = top; *at != 0; at += 3) {
    if (strncmp(at, "/..", 3) != 0 || (at[3] != '/' && at[3] != 0)) return NULL;
  }
  *is_own = false;
  return "";
}

static bool is_outermost(const purgeable_group_t *group) { return strlen(group->directory) <= group->mount_length_bytes; }

// Of the directory around, which the directory of this one begins with.
static size_t length_around(const purgeable_group_t *group) {
  size_t length = strlen(group->directory);
  do length--;
  while (length > group->mount_length_bytes && group->directory[length] != '/');
  return length;
}

// Cuts a directory to the part of it that is there, the mount point at least. False where not even that is there.
static bool cut_to_visible(purgeable_group_t *group) {
  for (;;) {
    lines_t lines;
    char path[FILE_ROOM];
    (void)snprintf(path, sizeof path, "%s/.", group->directory);
    int error = lines_open(&lines, path);
    if (error == 0) lines_close(&lines);
    // Another error says nothing of the directory.
    if (error != ENOENT && error != ENOTDIR) return true;
    if (is_outermost(group)) return false;
    group->directory[length_around(group)] = 0;
    group->is_own = false;
  }
}

// MARK: The group

// The group that one line of mountinfo leads to: ID PARENT DEVICE ROOT POINT OPTIONS [MORE...] - TYPE SOURCE SUPEROPTIONS.
static bool follow_mount(const char *root, char *line, const memberships_t *memberships, purgeable_group_t *group) {
  // The type is checked first, because most lines are of other types.
  char *dash = strstr(line, " - ");
  if (dash == NULL || strncmp(dash, " - cgroup", 9) != 0) return false;
  group->version = dash[9] == '2' ? 2 : 1;
  const char *path = group->version == 2 ? memberships->version2 : memberships->version1;
  if (path[0] == 0 || (group->version == 1 && !names(strrchr(line, ' ') + 1, "memory"))) return false;
  char *words[6], *save = line;
  for (int i = 0; i < 6; i++) {
    words[i] = save;
    save = strchr(save, ' ');
    if (save == NULL) return false;
    *save++ = 0;
  }
  unescape(words[3]);
  unescape(words[4]);
  const char *below = path_below(path, words[3], &group->is_own);
  if (below == NULL) return false;
  size_t mount_length = strlen(root) + strlen(words[4]);
  if (mount_length + strlen(below) >= PURGEABLE_GROUP_ROOM) return false;
  group->mount_length_bytes = mount_length;
  strcpy(group->path, path);
  strcpy(group->directory, root);
  strcat(group->directory, words[4]);
  strcat(group->directory, below);
  return cut_to_visible(group);
}

// A mount that shows our own group tells more than one that shows only those around it, and version 1 has the accounts of memory
// where it has any.
static bool is_better(const purgeable_group_t *group, const purgeable_group_t *than) {
  if (than->version == 0 || group->version != than->version) return than->version == 0 || group->version == 1;
  return group->is_own && !than->is_own;
}

static int find(const char *root, int32_t least_version, purgeable_group_t *group) {
  memberships_t memberships;
  int error = read_memberships(root, &memberships);
  if (error != 0) return error;
  if (least_version == PURGEABLE_GROUP_VERSION_2) memberships.version1[0] = 0;
  lines_t lines;
  error = open_below(&lines, root, "/proc/self/mountinfo");
  if (error != 0) return error;
  char line[LINE_ROOM], path[PURGEABLE_GROUP_ROOM], directory[PURGEABLE_GROUP_ROOM];
  group->version = 0;
  while (lines_next(&lines, line, sizeof line)) {
    purgeable_group_t next = {.path = path, .directory = directory};
    if (!follow_mount(root, line, &memberships, &next) || !is_better(&next, group)) continue;
    strcpy(group->path, path);
    strcpy(group->directory, directory);
    next.path = group->path;
    next.directory = group->directory;
    *group = next;
  }
  lines_close(&lines);
  return group->version == 0 ? ESRCH : 0;
}

int purgeable_group_find(const char *root, int32_t least_version, purgeable_group_t *group) {
  if (root == NULL || group == NULL || group->path == NULL || group->directory == NULL) return EINVAL;
  if (least_version != PURGEABLE_GROUP_ANY_VERSION && least_version != PURGEABLE_GROUP_VERSION_2) return EINVAL;
  int kept = errno;
  int error = find(root, least_version, group);
  errno = kept;
  return error;
}

int purgeable_group_leave(purgeable_group_t *group) {
  if (group == NULL) return EINVAL;
  int kept = errno;
  if (is_outermost(group)) return ENOENT;
  size_t length = length_around(group);
  group->directory[length] = 0;
  // Before Linux 5.11 a group of version 1 could be told not to count the groups inside it. Such a group limits none of them,
  // and neither do the groups around it.
  bool counts = group->version == 2 || number_in(group, "memory.use_hierarchy") != 0;
  if (!counts) group->directory[length] = '/';
  errno = kept;
  if (!counts) return ENOENT;
  group->is_own = false;
  return 0;
}

// MARK: What it says

// Version 1 writes "no limit" as the largest whole number of pages in a signed 64-bit number.
static uint64_t bound(uint64_t limit) { return limit < (uint64_t)1 << 62 ? limit : PURGEABLE_NO_NUMBER; }

int purgeable_group_read_limits(const purgeable_group_t *group, purgeable_group_limits_t *limits) {
  int kept = errno, error, error_around = 0;
  limits->high_bytes = PURGEABLE_NO_NUMBER;
  if (group->version == 2) {
    error = read_number(group, "memory.max", &limits->hard_bytes);
    error_around = read_number(group, "memory.high", &limits->high_bytes);
  } else {
    uint64_t own, around = PURGEABLE_NO_NUMBER;
    error = read_number(group, "memory.limit_in_bytes", &own);
    if (is_outermost(group)) {
      error_around = numbers_in(group, "memory.stat", 1, (const char *const[]){"hierarchical_memory_limit "}, &around);
    }
    limits->hard_bytes = smaller(bound(own), bound(around));
  }
  errno = kept;
  return error != 0 ? error : error_around;
}

void purgeable_group_read_use(const purgeable_group_t *group, purgeable_group_use_t *use) {
  static const char *const keys[2][3] = {
      {"total_inactive_file ", "total_cache ", "total_shmem "}, {"inactive_file ", "file ", "shmem "}};
  int kept = errno;
  bool is_version2 = group->version == 2;
  uint64_t numbers[3];
  (void)numbers_in(group, "memory.stat", 3, keys[is_version2], numbers);
  use->bytes = number_in(group, is_version2 ? "memory.current" : "memory.usage_in_bytes");
  use->inactive_file_bytes = numbers[0];
  use->page_cache_bytes = numbers[1];
  bool are_both = numbers[1] != PURGEABLE_NO_NUMBER && numbers[2] != PURGEABLE_NO_NUMBER;
  if (are_both) use->page_cache_bytes -= smaller(numbers[1], numbers[2]);
  errno = kept;
}
