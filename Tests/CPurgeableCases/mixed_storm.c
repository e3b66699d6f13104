// SPDX-License-Identifier: MIT
// See mixed_storm.h.

#include "mixed_storm.h"

#include <sched.h>

#include "memory_group.h"

mixed_storm_t mixed;

enum { HUNGRY_BYTES = 24 << 20 };
static _Atomic bool is_in_group;

// Rounds in the gate, of those who cancel and of those who make calls fail.
enum { CANCEL_ROUNDS = 12, FAIL_ROUNDS = 32 };

bool mixed_is_over(void) {
  uint64_t until_ms = atomic_load(&mixed.until_ms);
  return (until_ms != 0 && now_ms() >= until_ms) || atomic_load(&mixed.result->wrong) != 0;
}

static bool goes_on(uint64_t round, uint64_t rounds) { return (mixed.is_full || round < rounds) && !mixed_is_over(); }

// MARK: Calls that fail

static const int faults[] = {EAGAIN, ENOMEM, EINVAL};

bool mixed_is_fault(int error) { return error == 0 || error == EAGAIN || error == ENOMEM || error == EINVAL; }

static void make_a_call_fail(uint64_t *state) {
  static const unsigned kinds[] = {
      purgeable_testing_call_mmap,         purgeable_testing_call_munmap,   purgeable_testing_call_madvise_free,
      purgeable_testing_call_madvise_dontneed, purgeable_testing_call_mincore, purgeable_testing_call_allocate,
      purgeable_testing_call_mprotect,     purgeable_testing_call_file,     purgeable_testing_call_thread,
      purgeable_testing_call_madvise_other,
  };
  unsigned kind = kinds[next_random(state) % (sizeof kinds / sizeof kinds[0])];
  // A mapping, or the kernel's own advice, is refused for want of memory; EINVAL would say that the kernel does not know it.
  bool is_mapping = kind == purgeable_testing_call_mmap || kind == purgeable_testing_call_madvise_other;
  int error = is_mapping ? ENOMEM : faults[next_random(state) % 3];
  purgeable_testing_fail(kind, 1 + next_random(state) % 20, error, next_random(state) % 8 == 0);
}

// MARK: Forks

static bool fork_and_look(void) {
  purgeable_testing_fail(0, 0, 0, false);
  mixed.holds_still(true);
  pid_t child = fork();
  if (child == 0) {
    (void)alarm(CHILD_SECONDS);
    _exit(!purgeable_upkeep_is_running() && mixed.looks_in_child() ? 0 : 1);
  }
  mixed.holds_still(false);
  // Without memory no child is forked.
  if (child < 0) return true;
  atomic_fetch_add(&mixed.result->forked, 1);
  int status = wait_for_child(child);
  if (status == 0) return true;
  fprintf(stderr, "child: status %d\n", status);
  return false;
}

static void *fails_and_forks(void *unused) {
  (void)unused;
  uint64_t state = mixed.seed ^ 77;
  for (uint64_t round = 0; goes_on(round, FAIL_ROUNDS); round++) {
    make_a_call_fail(&state);
    (void)usleep((useconds_t)(next_random(&state) % 4000));
    atomic_fetch_add(&mixed.result->faults, purgeable_testing_has_failed());
    if (next_random(&state) % 4 == 0) purgeable_testing_fail(0, 0, 0, false);
    // In the gate once for certain.
    if (next_random(&state) % 32 == 0 || (!mixed.is_full && round == FAIL_ROUNDS / 2)) MIXED_BROKEN_UNLESS(fork_and_look());
    if (next_random(&state) % 16 == 0) {
      int error = purgeable_upkeep_is_running() ? purgeable_upkeep_stop() : purgeable_upkeep_start(1 + next_random(&state) % 8);
      MIXED_BROKEN_UNLESS(mixed_is_fault(error));
    }
    if (next_random(&state) % 16 == 0) {
      purgeable_set_pending_byte_limit(next_random(&state) % 3 == 0 ? PURGEABLE_PENDING_BYTE_LIMIT_DEFAULT
                                                               : next_random(&state) % 64 * PAGE);
    }
  }
  purgeable_testing_fail(0, 0, 0, false);
  return NULL;
}

// MARK: Threads that are cancelled

static void *cancels(void *context) {
  uint64_t number = *(uint64_t *)context, state = mixed.seed ^ number;
  for (uint64_t round = 0; goes_on(round, CANCEL_ROUNDS); round++) {
    pthread_t thread;
    uint64_t seed = number += 1000;
    if (pthread_create(&thread, NULL, mixed.acts, &seed) != 0) continue;
    (void)usleep((useconds_t)(next_random(&state) % 6000));
    (void)pthread_cancel(thread);
    void *result = NULL;
    (void)pthread_join(thread, &result);
    atomic_fetch_add(&mixed.result->cancelled, result == PTHREAD_CANCELED);
  }
  return NULL;
}

// Takes memory from the group, so that the kernel looks for what is on offer.
static void *is_hungry(void *unused) {
  (void)unused;
  while (mixed.is_full && !mixed_is_over()) {
    if (atomic_load(&is_in_group)) {
      volatile char *food = mmap(NULL, HUNGRY_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      for (size_t at = 0; (void *)food != MAP_FAILED && at < HUNGRY_BYTES; at += PAGE) food[at] = 1;
      if ((void *)food != MAP_FAILED) (void)munmap((void *)food, HUNGRY_BYTES);
    }
    (void)usleep(50000);
  }
  return NULL;
}

typedef struct role {
  void *(*body)(void *);
  uint64_t number;
} role_t;

static void *plays(void *context) {
  role_t *role = context;
  return role->body(&role->number);
}

void mixed_act(uint64_t milliseconds) {
  atomic_store(&mixed.until_ms, mixed.is_full ? now_ms() + milliseconds : 0);
  role_t roles[MIXED_ACTORS + 2] = {{fails_and_forks, 0}, {is_hungry, 0}};
  for (uint64_t i = 0; i < MIXED_ACTORS; i++) roles[i + 2] = (role_t){cancels, i + 1};
  run_threads(MIXED_ACTORS + 2, plays, roles, sizeof roles[0]);
  purgeable_testing_fail(0, 0, 0, false);
  if (purgeable_upkeep_is_running()) MIXED_BROKEN_UNLESS(purgeable_upkeep_stop() == 0);
  purgeable_set_pending_byte_limit(PURGEABLE_PENDING_BYTE_LIMIT_DEFAULT);
}

// MARK: Mappings

static size_t from_smaps(const char *name, bool counts) {
  FILE *file = fopen("/proc/self/smaps", "re");
  char line[512], prefix[64];
  (void)snprintf(prefix, sizeof prefix, "[anon:%s", name);
  bool inside = false;
  size_t sum = 0;
  while (file != NULL && fgets(line, sizeof line, file) != NULL) {
    char *end;
    (void)strtoul(line, &end, 16);
    if (end != line && *end == '-') {
      inside = strstr(line, prefix) != NULL;
      sum += counts && inside;
    } else if (inside && !counts && strncmp(line, "Rss:", 4) == 0) {
      sum += strtoul(line + 4, NULL, 10) * 1024;
    }
  }
  if (file != NULL) (void)fclose(file);
  return sum;
}

size_t mixed_named_resident(const char *name) { return from_smaps(name, false); }
size_t mixed_named_count(const char *name) { return from_smaps(name, true); }

// MARK: A storm as a whole

static void storm_here(void (*storms)(uint64_t), uint64_t scale) {
  storms(scale);
  mixed.result->is_finished = true;
}

// True when the storm was run, or could not be begun for a reason that has nothing to do with the core.
static bool storm_in_group(case_report_t *report, size_t group_bytes, void (*storms)(uint64_t)) {
  memory_group_t group;
  const char *reason;
  if (!report->is_full || HAS_SANITIZER || !memory_group_make(&group, group_bytes, &reason)) return false;
  pid_t child = fork();
  if (child == 0) {
    if (!memory_group_join(&group)) _exit(77);
    atomic_store(&is_in_group, true);
    // A hang ends too.
    (void)alarm((unsigned)(120 + 10 * report->scale));
    storm_here(storms, report->scale);
    _exit(0);
  }
  int status = wait_for_child(child);
  EXPECT_EQUAL(memory_group_remove(&group), 0);
  if (status == 77) return false;
  EXPECT_EQUAL(status, 0);
  return true;
}

void mixed_run(case_report_t *report, size_t group_bytes, void (*storms)(uint64_t), const char *const *names) {
  void *page = mmap(NULL, sizeof *mixed.result, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  REQUIRE(page != MAP_FAILED);
  mixed.result = page;
  mixed.seed = report->seed;
  mixed.is_full = report->is_full;
  bool in_group = storm_in_group(report, group_bytes, storms);
  if (!in_group) storm_here(storms, report->scale);
  mixed_result_t *result = mixed.result;
  NOTE("%s: %llu threads cancelled, %llu children, %llu calls failed", in_group ? "in a small group" : "without a group",
       (unsigned long long)result->cancelled, (unsigned long long)result->forked, (unsigned long long)result->faults);
  for (size_t i = 0; names[i] != NULL; i++) NOTE("%s: %llu", names[i], (unsigned long long)result->counts[i]);
  if (result->wrong + result->broken + result->left != 0) {
    NOTE("first wrong at line %d, broken at %d, left at %d", result->wrong_line, result->broken_line, result->left_line);
  }
  EXPECT(result->is_finished && result->cancelled > 0);
  if (report->is_full) EXPECT(result->forked > 0);
  EXPECT_EQUAL(result->wrong, 0);
  EXPECT_EQUAL(result->broken, 0);
  EXPECT_EQUAL(result->left, 0);
  (void)munmap(page, sizeof *mixed.result);
}
