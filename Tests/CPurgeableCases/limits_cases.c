// SPDX-License-Identifier: MIT
// Cases of the memory limit, which is found from the files of groups of either version, real ones or made up below a directory of
// the test's own.

#include "harness.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>

#include "memory_group.h"
#include "purgeable_group.h"

#define MIB ((uint64_t)1 << 20)

static uint64_t machine_bytes(void) {
  struct sysinfo information;
  return sysinfo(&information) == 0 ? (uint64_t)information.totalram * information.mem_unit : 0;
}

// Writes a file below a directory, with the directories that lead to it.
static bool put(const char *root, const char *path, const char *text) {
  char whole[512];
  (void)snprintf(whole, sizeof whole, "%s%s", root, path);
  for (char *at = strchr(whole + strlen(root) + 1, '/'); at != NULL; at = strchr(at + 1, '/')) {
    *at = 0;
    (void)mkdir(whole, 0700);
    *at = '/';
  }
  FILE *file = fopen(whole, "w");
  if (file == NULL) return false;
  bool is_written = fputs(text, file) >= 0;
  return fclose(file) == 0 && is_written;
}

static void remove_tree(const char *root) {
  char command[300];
  (void)snprintf(command, sizeof command, "rm -rf '%s'", root);
  if (system(command) != 0) fprintf(stderr, "%s stays behind\n", root);
}

typedef struct tree {
  const char *what;
  const char *groups, *mounts;
  const char *files[4][2];
  uint64_t expected;  // 0: the machine's memory
} tree_t;

#define LINE "36 35 98:0 "
static const tree_t trees[] = {
    {"version 2, the group around is smaller", "0::/pod/app\n", LINE "/ /cg rw - cgroup2 cgroup2 rw\n",
     {{"/cg/pod/app/memory.max", "209715200\n"}, {"/cg/pod/memory.max", "104857600\n"}}, 100 * MIB},
    {"version 2, memory.high, and no limit of its own", "0::/app\n", LINE "/ /cg rw shared:9 master:2 - cgroup2 none rw\n",
     {{"/cg/app/memory.max", "max\n"}, {"/cg/app/memory.high", "62914560\n"}}, 60 * MIB},
    {"version 1 beside an empty version 2", "5:cpu,memory:/a\n0::/\n",
     LINE "/ /cg/cpu,memory rw - cgroup cgroup rw,cpu,memory\n37 35 0:1 / /cg/unified rw - cgroup2 cgroup2 rw\n",
     {{"/cg/cpu,memory/a/memory.limit_in_bytes", "52428800\n"},
      {"/cg/cpu,memory/memory.limit_in_bytes", "9223372036854771712\n"}}, 50 * MIB},
    {"a container's own directory is the mount's root", "0::/pod/app\n", LINE "/pod/app /cg rw - cgroup2 cgroup2 rw\n",
     {{"/cg/memory.max", "31457280\n"}}, 30 * MIB},
    {"a namespace that ends below the mount's root", "0::/\n", LINE "/../.. /cg rw - cgroup2 cgroup2 rw\n",
     {{"/cg/memory.max", "41943040\n"}}, 40 * MIB},
    {"version 1, a limit around what is mounted", "5:memory:/pod/app\n", LINE "/pod/app /cg rw - cgroup cgroup rw,memory\n",
     {{"/cg/memory.limit_in_bytes", "9223372036854771712\n"},
      {"/cg/memory.stat", "cache 4096\nhierarchical_memory_limit 73400320\nhierarchical_memsw_limit 1\n"}}, 70 * MIB},
    {"version 1, a group around that does not count the groups inside it", "5:memory:/pod/app\n",
     LINE "/ /cg rw - cgroup cgroup rw,memory\n",
     {{"/cg/pod/app/memory.limit_in_bytes", "94371840\n"}, {"/cg/pod/memory.limit_in_bytes", "10485760\n"},
      {"/cg/pod/memory.use_hierarchy", "0\n"}, {"/cg/memory.limit_in_bytes", "5242880\n"}}, 90 * MIB},
    {"a blank in the mount point", "0::/a\n", LINE "/ /c\\040g rw - cgroup2 cgroup2 rw\n",
     {{"/c g/a/memory.max", "20971520\n"}}, 20 * MIB},
    {"a group outside of what is mounted", "0::/other\n", LINE "/pod /cg rw - cgroup2 cgroup2 rw\n",
     {{"/cg/memory.max", "1048576\n"}}, 0},
    {"a controller whose name only begins like memory's", "3:memory2:/a\n",
     LINE "/ /cg rw - cgroup cgroup rw,memory2\n", {{"/cg/a/memory.limit_in_bytes", "1048576\n"}}, 0},
    {"numbers that are none", "0::/a\n", LINE "/ /cg rw - cgroup2 cgroup2 rw\n",
     {{"/cg/a/memory.max", "-5\n"}, {"/cg/a/memory.high", "99999999999999999999999\n"}, {"/cg/memory.max", ""}}, 0},
    {"lines that are cut short", "0:\n::\n\n0::relative\n", "36\n" LINE "/ /cg rw - cgroup2\n - cgroup2\n", {{NULL, NULL}}, 0},
    {"no files at all", NULL, NULL, {{NULL, NULL}}, 0},
};

static void limits_by_files(case_report_t *report) {
  for (size_t i = 0; i < sizeof trees / sizeof trees[0]; i++) {
    const tree_t *tree = &trees[i];
    char root[] = "/tmp/purgeable-limits-XXXXXX";
    REQUIRE(mkdtemp(root) != NULL);
    bool is_made = tree->groups == NULL || (put(root, "/proc/self/cgroup", tree->groups) &&
                                            put(root, "/proc/self/mountinfo", tree->mounts));
    for (size_t k = 0; k < 4 && tree->files[k][0] != NULL; k++) is_made &= put(root, tree->files[k][0], tree->files[k][1]);
    uint64_t limit = purgeable_testing_memory_byte_limit(root);
    remove_tree(root);
    EXPECT(is_made);
    uint64_t expected = tree->expected == 0 ? machine_bytes() : tree->expected;
    if (limit != expected) NOTE("%s", tree->what);
    EXPECT_EQUAL(limit, expected);
  }
}

// A path longer than there is room for, and a line of mountinfo longer than a page.
static void limits_of_long_paths(case_report_t *report) {
  char root[] = "/tmp/purgeable-limits-XXXXXX";
  REQUIRE(mkdtemp(root) != NULL);
  static char long_text[9000];
  memset(long_text, 'x', sizeof long_text - 1);
  static char groups[10000], mounts[10000];
  (void)snprintf(groups, sizeof groups, "4:memory:/%s\n0::/a\n", long_text);
  (void)snprintf(mounts, sizeof mounts, "35 1 0:9 / /o rw - overlay o %s\n" LINE "/ /cg rw - cgroup2 cgroup2 rw\n", long_text);
  EXPECT(put(root, "/proc/self/cgroup", groups) && put(root, "/proc/self/mountinfo", mounts));
  EXPECT(put(root, "/cg/a/memory.max", "10485760"));
  EXPECT_EQUAL(purgeable_testing_memory_byte_limit(root), 10 * MIB);
  // Any call may fail: the result is then another limit that is known, or the machine's memory.
  for (uint64_t n = 1; n < 64; n++) {
    purgeable_testing_fail(purgeable_testing_call_file, n, EMFILE, false);
    uint64_t limit = purgeable_testing_memory_byte_limit(root);
    bool has_failed = purgeable_testing_has_failed();
    purgeable_testing_fail(0, 0, 0, false);
    EXPECT(limit == 10 * MIB || limit == machine_bytes());
    if (!has_failed) break;
  }
  remove_tree(root);
}

static bool ends_with(const char *text, const char *end) {
  size_t length = strlen(text), end_length = strlen(end);
  return length >= end_length && strcmp(text + length - end_length, end) == 0;
}

// From the own group outward, with what each says; and the group of version 2 beside.
static void groups_by_files(case_report_t *report) {
  char path[PURGEABLE_GROUP_ROOM], directory[PURGEABLE_GROUP_ROOM], root[] = "/tmp/purgeable-limits-XXXXXX";
  REQUIRE(mkdtemp(root) != NULL);
  EXPECT(put(root, "/proc/self/cgroup", "5:memory:/pod/app\n0::/unified\n"));
  EXPECT(put(root, "/proc/self/mountinfo", LINE "/ /two rw - cgroup2 cgroup2 rw\n" LINE "/ /one rw - cgroup cgroup rw,memory\n"));
  EXPECT(put(root, "/one/pod/app/memory.limit_in_bytes", "9223372036854771712\n"));
  EXPECT(put(root, "/one/pod/app/memory.usage_in_bytes", "7000\n"));
  EXPECT(put(root, "/one/pod/app/memory.stat", "cache 1\ntotal_cache 900\ntotal_shmem 200\ntotal_inactive_file 300\n"));
  EXPECT(put(root, "/one/pod/memory.limit_in_bytes", "8192\n"));
  EXPECT(put(root, "/one/memory.stat", "hierarchical_memory_limit 4096\n"));
  EXPECT(put(root, "/two/memory.high", "5\n"));
  purgeable_group_t group = {.path = path, .directory = directory};
  purgeable_group_limits_t limits;
  purgeable_group_use_t use;
  EXPECT_EQUAL(purgeable_group_find(root, PURGEABLE_GROUP_ANY_VERSION, &group), 0);
  EXPECT(group.version == 1 && group.is_own && strcmp(path, "/pod/app") == 0 && ends_with(directory, "/one/pod/app"));
  purgeable_group_read_limits(&group, &limits);
  purgeable_group_read_use(&group, &use);
  EXPECT(limits.hard_bytes == PURGEABLE_NO_NUMBER && limits.high_bytes == PURGEABLE_NO_NUMBER);
  EXPECT(use.bytes == 7000 && use.inactive_file_bytes == 300 && use.page_cache_bytes == 700);
  EXPECT_EQUAL(purgeable_group_leave(&group), 0);
  purgeable_group_read_limits(&group, &limits);
  purgeable_group_read_use(&group, &use);
  EXPECT(!group.is_own && ends_with(directory, "/one/pod") && limits.hard_bytes == 8192);
  EXPECT(use.bytes == PURGEABLE_NO_NUMBER && use.page_cache_bytes == PURGEABLE_NO_NUMBER);
  EXPECT_EQUAL(purgeable_group_leave(&group), 0);
  purgeable_group_read_limits(&group, &limits);
  EXPECT(ends_with(directory, "/one") && limits.hard_bytes == 4096);
  EXPECT_EQUAL(purgeable_group_leave(&group), ENOENT);
  EXPECT(ends_with(directory, "/one"));
  // Its own directory cannot be seen.
  EXPECT_EQUAL(purgeable_group_find(root, PURGEABLE_GROUP_VERSION_2, &group), 0);
  purgeable_group_read_limits(&group, &limits);
  EXPECT(group.version == 2 && !group.is_own && ends_with(directory, "/two") && strcmp(path, "/unified") == 0);
  EXPECT(limits.hard_bytes == PURGEABLE_NO_NUMBER && limits.high_bytes == 5);
  EXPECT_EQUAL(purgeable_group_leave(&group), ENOENT);
  // Without a descriptor a limit is not taken for none.
  int child = fork();
  if (child == 0) {
    struct rlimit none = {0, 0};
    int error = setrlimit(RLIMIT_NOFILE, &none) == 0 ? purgeable_group_read_limits(&group, &limits) : 0;
    _exit(error == EMFILE && limits.high_bytes == PURGEABLE_NO_NUMBER ? 0 : 1);
  }
  EXPECT_EQUAL(wait_for_child(child), 0);
  // A name may begin with dots.
  EXPECT(put(root, "/proc/self/cgroup", "0::/..x\n"));
  EXPECT(put(root, "/two/..x/memory.high", "7\n"));
  EXPECT_EQUAL(purgeable_group_find(root, PURGEABLE_GROUP_ANY_VERSION, &group), 0);
  EXPECT(purgeable_group_read_limits(&group, &limits) == 0 && group.is_own && limits.high_bytes == 7);
  EXPECT(purgeable_group_leave(&group) == 0 && ends_with(directory, "/two"));
  EXPECT(put(root, "/proc/self/cgroup", "0::/../x\n"));
  EXPECT_EQUAL(purgeable_group_find(root, PURGEABLE_GROUP_ANY_VERSION, &group), ESRCH);
  EXPECT(put(root, "/proc/self/cgroup", "5:cpu:/pod/app\n"));
  EXPECT_EQUAL(purgeable_group_find(root, PURGEABLE_GROUP_ANY_VERSION, &group), ESRCH);
  EXPECT_EQUAL(purgeable_group_find(root, 0, &group), EINVAL);
  EXPECT_EQUAL(purgeable_group_find(root, 3, &group), EINVAL);
  remove_tree(root);
  errno = 77;
  EXPECT_EQUAL(purgeable_group_find(root, PURGEABLE_GROUP_ANY_VERSION, &group), ENOENT);
  purgeable_group_read_limits(&group, &limits);
  purgeable_group_read_use(&group, &use);
  EXPECT(limits.high_bytes == PURGEABLE_NO_NUMBER && use.bytes == PURGEABLE_NO_NUMBER);
  EXPECT_EQUAL(purgeable_group_leave(&group), ENOENT);
  EXPECT_EQUAL(errno, 77);
}

static int count_descriptors(void) {
  int count = 0;
  for (int i = 0; i < 256; i++) count += fcntl(i, F_GETFD) >= 0;
  return count;
}

static void pending_bound(case_report_t *report) {
  uint64_t limit = purgeable_testing_memory_byte_limit("");
  uint64_t share = limit / 16 < MIB ? MIB : limit / 16 > 64 * MIB ? 64 * MIB : limit / 16;
  EXPECT_EQUAL(purgeable_pending_byte_limit(), share);
  const uint64_t settings[] = {0, 1, 12345, UINT64_MAX};
  for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
    purgeable_set_pending_byte_limit(settings[i]);
    EXPECT_EQUAL(purgeable_pending_byte_limit(), settings[i]);
  }
  purgeable_set_pending_byte_limit(PURGEABLE_PENDING_BYTE_LIMIT_DEFAULT);
  EXPECT_EQUAL(purgeable_pending_byte_limit(), share);
  int descriptors = count_descriptors();
  // What reading the limit takes: that hangs on how much is mounted.
  uint64_t calls = purgeable_testing_call_count(purgeable_testing_call_any);
  (void)purgeable_testing_memory_byte_limit("");
  uint64_t calls_once = purgeable_testing_call_count(purgeable_testing_call_any) - calls;
  errno = 77;
  calls += calls_once;
  for (int i = 0; i < 1000; i++) (void)purgeable_pending_byte_limit();
  // Read again once at most, unless the thousand calls took long.
  EXPECT(purgeable_testing_call_count(purgeable_testing_call_any) - calls <= 2 * calls_once);
  EXPECT_EQUAL(errno, 77);
  EXPECT_EQUAL(count_descriptors(), descriptors);
}

static bool is_untended(void) {
  uint64_t limit = purgeable_pending_byte_limit();
  return purgeable_pending_byte_limit_in_all() == 4 * limit && purgeable_tending_end() == ESRCH;
}

// More may wait in all where a thread tends the memory, unless the program has set a limit; a forked child has no such thread.
static void tended(case_report_t *report) {
  uint64_t limit = purgeable_pending_byte_limit(), quarter = purgeable_testing_memory_byte_limit("") / 4;
  uint64_t more = quarter > (uint64_t)1 << 30 ? (uint64_t)1 << 30 : quarter;
  EXPECT(is_untended());
  EXPECT_EQUAL(purgeable_tending_begin(), 0);
  EXPECT_EQUAL(purgeable_tending_begin(), 0);
  EXPECT_EQUAL(purgeable_tending_end(), 0);
  EXPECT_EQUAL(purgeable_pending_byte_limit_in_all(), more > 4 * limit ? more : 4 * limit);
  int child = fork();
  if (child == 0) _exit(is_untended() ? 0 : 1);
  EXPECT_EQUAL(wait_for_child(child), 0);
  purgeable_set_pending_byte_limit(5 * PAGE);
  EXPECT_EQUAL(purgeable_pending_byte_limit_in_all(), 20 * PAGE);
  purgeable_set_pending_byte_limit(UINT64_MAX / 2);
  EXPECT_EQUAL(purgeable_pending_byte_limit_in_all(), UINT64_MAX);
  purgeable_set_pending_byte_limit(PURGEABLE_PENDING_BYTE_LIMIT_DEFAULT);
  EXPECT_EQUAL(purgeable_tending_end(), 0);
  EXPECT(is_untended());
}

static void *fork_once(void *status) {
  pid_t child = fork();
  if (child == 0) _exit(0);
  *(int *)status = wait_for_child(child);
  return NULL;
}

// As the library's thread reads files of groups under a mutex of a source of pressure.
static void read_under_awaited_mutex(case_report_t *report) {
  char root[] = "/tmp/purgeable-limits-XXXXXX";
  REQUIRE(mkdtemp(root) != NULL);
  EXPECT(put(root, "/proc/self/cgroup", "0::/a\n"));
  EXPECT(put(root, "/proc/self/mountinfo", LINE "/ /cg rw - cgroup2 cgroup2 rw\n"));
  EXPECT(put(root, "/cg/a/memory.max", "10485760"));
  pthread_mutex_t awaited = PTHREAD_MUTEX_INITIALIZER;
  pthread_t thread;
  int status = -1;
  (void)pthread_mutex_lock(&awaited);
  cases_await_before_forks(&awaited);
  bool is_started = pthread_create(&thread, NULL, fork_once, &status) == 0;
  if (is_started) WAIT_UNTIL(cases_fork_waits());
  uint64_t limit = purgeable_testing_memory_byte_limit(root);
  (void)pthread_mutex_unlock(&awaited);
  if (is_started) (void)pthread_join(thread, NULL);
  bool has_waited = cases_fork_waits();
  cases_await_before_forks(NULL);
  remove_tree(root);
  REQUIRE(is_started);
  EXPECT(has_waited);
  EXPECT_EQUAL(limit, 10 * MIB);
  EXPECT_EQUAL(status, 0);
}

// In a child that moves into a real group of 32 MiB: the bound on pending bytes follows within seconds.
static int child_in_group(const memory_group_t *group) {
  if (purgeable_pending_byte_limit() == 2 * MIB) return 1;
  if (!memory_group_join(group)) return 77;
  // A limit that was read before the child moved stays in use for a while.
  for (int i = 0; i < 80 && purgeable_pending_byte_limit() != 2 * MIB; i++) (void)usleep(100000);
  return purgeable_pending_byte_limit() == 2 * MIB ? 0 : 2;
}

static void bound_in_a_group(case_report_t *report) {
  memory_group_t group;
  const char *reason;
  if (!memory_group_make(&group, 32 * MIB, &reason)) SKIP("%s", reason);
  pid_t child = fork();
  if (child == 0) _exit(child_in_group(&group));
  int status = wait_for_child(child);
  EXPECT_EQUAL(memory_group_remove(&group), 0);
  if (status == 77) SKIP("this process may not move into a group");
  EXPECT_EQUAL(status, 0);
}

const test_case_t limit_cases[] = {
    CASE("limits: by the files of memory groups", limits_by_files),
    CASE("limits: groups from the own one outward, and what they use", groups_by_files),
    CASE("limits: long paths, long lines, failing calls", limits_of_long_paths),
    CASE("limits: read under a mutex for which a fork waits", read_under_awaited_mutex),
    CASE("limits: the bound on idle memory that waits", pending_bound),
    CASE("limits: more may wait where a thread tends the memory", tended),
    FULL_CASE("limits: a process that moves into a group", bound_in_a_group),
    END_OF_CASES,
};
