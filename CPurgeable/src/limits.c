// SPDX-License-Identifier: MIT
// How much memory this process may use, and what follows for idle memory that waits for a call of the host.
//
//   /proc/self/cgroup      4:memory:/pod/app          the group's path in its hierarchy
//   /proc/self/mountinfo   ... /pod /sys/fs/... -     what part of the hierarchy is mounted, and where
//                          --------------------
//                          /sys/fs/.../app            the group's own directory, then every one around it: each has a limit
//
// A limit is read again after some seconds: that of a container may change while it runs. Nothing is allocated, so the answer is
// there also when memory is short. System calls are made directly because the C library's functions are cancellation points.

#include "internal.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/sysinfo.h>
#include <time.h>

enum {
  AGAIN_AFTER_S = 5,
  PATH_ROOM = 1024,
  LINE_ROOM = 2048,
};

#define PENDING_SHARE 16
#define PENDING_LEAST_BYTES ((uint64_t)1 << 20)
#define PENDING_MOST_BYTES ((uint64_t)64 << 20)
// In all as many times that: what locks have taken off offer was in memory before. And where a thread takes care of what waits.
#define PENDING_FACTOR 4
#define TENDED_SHARE 4
#define TENDED_MOST_BYTES ((uint64_t)1 << 30)

// MARK: Lines of a file

typedef struct lines {
  int descriptor;
  size_t begin, end;
  char room[512];
} lines_t;

static bool lines_open(lines_t *lines, const char *path) {
  lines->begin = lines->end = 0;
  lines->descriptor = -1;
  return purgeable__file_open(path, &lines->descriptor) == 0;
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

// The number in a file, behind `key` at the beginning of a line, or UINT64_MAX: "max", no file, nothing that is a number.
static uint64_t number_in(const char *path, const char *key) {
  lines_t lines;
  char text[64];
  size_t length = strlen(key);
  if (!lines_open(&lines, path)) return UINT64_MAX;
  bool is_there;
  do is_there = lines_next(&lines, text, sizeof text);
  while (is_there && strncmp(text, key, length) != 0);
  lines_close(&lines);
  if (!is_there || text[length] == 0) return UINT64_MAX;
  uint64_t value = 0;
  for (const char *digit = text + length; *digit != 0; digit++) {
    if (*digit < '0' || *digit > '9') return UINT64_MAX;
    if (value > (UINT64_MAX - 9) / 10) return UINT64_MAX;
    value = value * 10 + (uint64_t)(*digit - '0');
  }
  return value;
}

// MARK: Groups

typedef struct groups {
  // The path of the process's group in each hierarchy; empty: none.
  char version1[PATH_ROOM], version2[PATH_ROOM];
} groups_t;

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
  if (path[0] == '/' && strlen(path) < PATH_ROOM) strcpy(to, path);
}

// Lines ID:CONTROLLERS:PATH. False where the file cannot be read.
static bool find_groups(const char *root, char *line, groups_t *groups) {
  lines_t lines;
  groups->version1[0] = groups->version2[0] = 0;
  (void)snprintf(line, LINE_ROOM, "%s/proc/self/cgroup", root);
  if (!lines_open(&lines, line)) return false;
  while (lines_next(&lines, line, LINE_ROOM)) {
    char *controllers = strchr(line, ':');
    char *path = controllers == NULL ? NULL : strchr(controllers + 1, ':');
    if (path == NULL) continue;
    *path++ = 0;
    controllers++;
    if (names(controllers, "memory")) copy_path(groups->version1, path);
    if (strncmp(line, "0:", 2) == 0 && controllers[0] == 0) copy_path(groups->version2, path);
  }
  lines_close(&lines);
  return true;
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

// What follows `top` in `path`, both paths in one hierarchy: "" or "/a/b". NULL where `path` does not lie below. A top of "/.."
// lies around the process's own group by a way that nothing names: then the mount's root is all that can be seen.
static const char *path_below(const char *path, const char *top) {
  size_t length = strlen(top);
  while (length != 0 && top[length - 1] == '/') length--;
  if (strncmp(path, top, length) == 0 && (path[length] == '/' || path[length] == 0)) {
    const char *rest = path + length;
    return strstr(rest, "/..") != NULL ? NULL : rest[0] != 0 && rest[1] == 0 ? "" : rest;
  }
  for (const char *at = top; *at != 0; at += 3) {
    if (strncmp(at, "/..", 3) != 0 || (at[3] != '/' && at[3] != 0)) return NULL;
  }
  return "";
}

// The smallest limit of a group's directory and of those around it, up to the mount point. In version 1 the outermost one also
// tells of those around it that are not mounted here.
static uint64_t smallest_limit(char *directory, size_t mount_length, bool is_version2) {
  static const char *const files[2][2] = {{"/memory.limit_in_bytes", NULL}, {"/memory.max", "/memory.high"}};
  uint64_t smallest = UINT64_MAX;
  for (size_t length = strlen(directory);;) {
    for (int i = 0; i < 2 && files[is_version2][i] != NULL; i++) {
      strcpy(directory + length, files[is_version2][i]);
      uint64_t limit = number_in(directory, "");
      if (limit < smallest) smallest = limit;
    }
    if (length <= mount_length) {
      strcpy(directory + length, "/memory.stat");
      uint64_t limit = is_version2 ? UINT64_MAX : number_in(directory, "hierarchical_memory_limit ");
      return limit < smallest ? limit : smallest;
    }
    do length--;
    while (length > mount_length && directory[length] != '/');
    // Before Linux 5.11 a group of version 1 could be told not to count the groups inside it. Such a group limits none of them,
    // and neither do the groups around it.
    strcpy(directory + length, "/memory.use_hierarchy");
    if (!is_version2 && number_in(directory, "") == 0) return smallest;
  }
}

// The limit that one line of mountinfo leads to: ID PARENT DEVICE ROOT POINT OPTIONS [MORE...] - TYPE SOURCE SUPEROPTIONS.
static uint64_t limit_of_mount(const char *root, char *line, const groups_t *groups) {
  // The type is checked first, because most lines are of other types.
  char *dash = strstr(line, " - ");
  if (dash == NULL || strncmp(dash, " - cgroup", 9) != 0) return UINT64_MAX;
  bool is_version2 = dash[9] == '2';
  const char *options = strrchr(line, ' ') + 1;
  const char *group = is_version2 ? groups->version2 : groups->version1;
  if (group[0] == 0 || (!is_version2 && !names(options, "memory"))) return UINT64_MAX;
  char *words[6], *save = line;
  for (int i = 0; i < 6; i++) {
    words[i] = save;
    save = strchr(save, ' ');
    if (save == NULL) return UINT64_MAX;
    *save++ = 0;
  }
  unescape(words[3]);
  unescape(words[4]);
  const char *below = path_below(group, words[3]);
  if (below == NULL) return UINT64_MAX;
  char directory[LINE_ROOM];
  size_t mount_length = strlen(root) + strlen(words[4]);
  // Room for the longest name of a file.
  if (mount_length + strlen(below) + 32 > sizeof directory) return UINT64_MAX;
  (void)snprintf(directory, sizeof directory, "%s%s%s", root, words[4], below);
  return smallest_limit(directory, mount_length, is_version2);
}

// The smallest limit of all groups, UINT64_MAX for none; false where /proc does not say.
static bool read_groups(const char *root, uint64_t *limit) {
  char line[LINE_ROOM];
  groups_t groups;
  lines_t lines;
  *limit = UINT64_MAX;
  if (!find_groups(root, line, &groups)) return false;
  (void)snprintf(line, sizeof line, "%s/proc/self/mountinfo", root);
  if (!lines_open(&lines, line)) return false;
  while (lines_next(&lines, line, sizeof line)) {
    uint64_t one = limit_of_mount(root, line, &groups);
    if (one < *limit) *limit = one;
  }
  lines_close(&lines);
  return true;
}

// Never 0.
static uint64_t machine_bytes(void) {
  struct sysinfo information;
  if (sysinfo(&information) != 0 || information.totalram == 0) return UINT64_MAX;
  return (uint64_t)information.totalram * information.mem_unit;
}

uint64_t purgeable_testing_memory_byte_limit(const char *root) {
  uint64_t limit, machine = machine_bytes();
  if (root == NULL || strlen(root) > PATH_ROOM || !read_groups(root, &limit)) return machine;
  return limit < machine ? limit : machine;
}

// MARK: What is known

// 0: not read yet. Relaxed: no other memory depends on these values.
static _Atomic uint64_t known_bytes;
static _Atomic int64_t read_again_at_s;
static _Atomic uint64_t pending_setting = PURGEABLE_PENDING_BYTE_LIMIT_DEFAULT;

uint64_t purgeable__memory_byte_limit(void) {
  uint64_t known = load_relaxed(&known_bytes);
  int64_t due = load_relaxed(&read_again_at_s);
  struct timespec now = {0};
  (void)clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  int64_t next = (int64_t)now.tv_sec + AGAIN_AFTER_S;
  if (known != 0) {
    // `due` beyond `next`: a checkpoint was restored on a machine whose clock began later.
    if (now.tv_sec < due && due <= next) return known;
    // One thread reads the files; the others use the last known value.
    if (!atomic_compare_exchange_strong_explicit(&read_again_at_s, &due, next, memory_order_relaxed, memory_order_relaxed)) {
      return known;
    }
  }
  int kept = errno;
  uint64_t groups, machine = machine_bytes();
  bool is_read = read_groups("", &groups);
  errno = kept;
  uint64_t limit = is_read && groups < machine ? groups : machine;
  // The files cannot be read, for instance without a free descriptor: the last known value stays.
  if (!is_read && known != 0) return known;
  if (limit == 0) limit = 1;
  store_relaxed(&known_bytes, limit);
  if (known == 0) store_relaxed(&read_again_at_s, next);
  return limit;
}

// How many threads tend the memory: in a page, so that a forked child finds 0. Relaxed: decides nothing but how much waits.
static _Atomic uint64_t *_Atomic tenders;

int purgeable__tend(bool begins) {
  // Acquire: pairs with the exchange below.
  _Atomic uint64_t *count = load_acquire(&tenders);
  int error;
  if (count == NULL && begins) {
    _Atomic uint64_t *fresh = purgeable__pair_take(&error);
    if (fresh == NULL) return error;
    if (atomic_compare_exchange_strong(&tenders, &count, fresh)) {
      count = fresh;
    } else {
      purgeable__pair_return((void *)fresh);
    }
  }
  if (begins) {
    add_relaxed(count, 1);
    return 0;
  }
  uint64_t before = count == NULL ? 0 : load_relaxed(count);
  while (before != 0) {
    if (atomic_compare_exchange_weak_explicit(count, &before, before - 1, memory_order_relaxed, memory_order_relaxed)) return 0;
  }
  return ESRCH;
}

static bool is_tended(void) {
  _Atomic uint64_t *count = load_acquire(&tenders);
  return count != NULL && load_relaxed(count) != 0;
}

uint64_t purgeable__pending_byte_limit_in_all(uint64_t byte_limit) {
  uint64_t all = byte_limit > UINT64_MAX / PENDING_FACTOR ? UINT64_MAX : byte_limit * PENDING_FACTOR;
  if (load_relaxed(&pending_setting) != PURGEABLE_PENDING_BYTE_LIMIT_DEFAULT || !is_tended()) return all;
  uint64_t share = purgeable__memory_byte_limit() / TENDED_SHARE;
  if (share > TENDED_MOST_BYTES) share = TENDED_MOST_BYTES;
  return share > all ? share : all;
}

uint64_t purgeable__pending_byte_limit(void) {
  uint64_t setting = load_relaxed(&pending_setting);
  if (setting != PURGEABLE_PENDING_BYTE_LIMIT_DEFAULT) return setting;
  uint64_t share = purgeable__memory_byte_limit() / PENDING_SHARE;
  return share < PENDING_LEAST_BYTES ? PENDING_LEAST_BYTES : share > PENDING_MOST_BYTES ? PENDING_MOST_BYTES : share;
}

void purgeable_set_pending_byte_limit(uint64_t byte_limit) {
  store_relaxed(&pending_setting, byte_limit);
}

uint64_t purgeable_pending_byte_limit(void) { return purgeable__pending_byte_limit(); }

uint64_t purgeable_pending_byte_limit_in_all(void) {
  return purgeable__pending_byte_limit_in_all(purgeable__pending_byte_limit());
}
