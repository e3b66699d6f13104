// SPDX-License-Identifier: MIT
// How much memory this process may use, and what follows for idle memory that waits for a call of the host.
//
// A limit is read again after some seconds: that of a container may change while it runs.

#include "internal.h"

#include "purgeable_group.h"

#include <sys/sysinfo.h>
#include <time.h>

enum { AGAIN_AFTER_S = 5 };

#define PENDING_SHARE 16
#define PENDING_LEAST_BYTES ((uint64_t)1 << 20)
#define PENDING_MOST_BYTES ((uint64_t)64 << 20)
// In all as many times that: what locks have taken off offer was in memory before. And where a thread takes care of what waits.
#define PENDING_FACTOR 4
#define TENDED_SHARE 4
#define TENDED_MOST_BYTES ((uint64_t)1 << 30)

// Never 0.
static uint64_t machine_bytes(void) {
  struct sysinfo information;
  if (sysinfo(&information) != 0 || information.totalram == 0) return UINT64_MAX;
  return (uint64_t)information.totalram * information.mem_unit;
}

// The smallest limit of all groups, UINT64_MAX for none; false where /proc does not say.
static bool read_groups(const char *root, uint64_t *limit) {
  char path[PURGEABLE_GROUP_ROOM], directory[PURGEABLE_GROUP_ROOM];
  purgeable_group_t group = {.path = path, .directory = directory};
  *limit = UINT64_MAX;
  int error = purgeable_group_find(root, PURGEABLE_GROUP_ANY_VERSION, &group);
  bool is_read = error == 0 || error == ESRCH;
  while (error == 0) {
    purgeable_group_limits_t limits;
    is_read = purgeable_group_read_limits(&group, &limits) == 0 && is_read;
    if (limits.hard_bytes < *limit) *limit = limits.hard_bytes;
    if (limits.high_bytes < *limit) *limit = limits.high_bytes;
    error = purgeable_group_leave(&group);
  }
  return is_read;
}

uint64_t purgeable_testing_memory_byte_limit(const char *root) {
  uint64_t limit, machine = machine_bytes();
  if (root == NULL || !read_groups(root, &limit)) return machine;
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

// What all heaps and threads share: in a page, so that a forked child, which nobody tends and where nothing waits yet, finds
// zeros. Relaxed: decides nothing but how much waits.
typedef struct common {
  // How many threads tend the memory.
  _Atomic uint64_t tenders;
  // What waits for a first offer. Signed: a thread may note that it waits no more before another has noted that it waits.
  _Atomic int64_t unoffered_bytes;
} common_t;
static common_t *_Atomic common;

int purgeable__make_common(void) {
  common_t *known = load_acquire(&common);
  if (known != NULL) return 0;
  int error;
  common_t *fresh = purgeable__pair_take(&error);
  if (fresh == NULL) return error;
  // Sequentially consistent; partner: the acquires.
  if (!atomic_compare_exchange_strong(&common, &known, fresh)) purgeable__pair_return(fresh);
  return 0;
}

int purgeable__tend(bool begins) {
  int error = begins ? purgeable__make_common() : 0;
  if (error != 0) return error;
  common_t *known = load_acquire(&common);
  if (begins) {
    add_relaxed(&known->tenders, 1);
    return 0;
  }
  uint64_t before = known == NULL ? 0 : load_relaxed(&known->tenders);
  while (before != 0) {
    if (atomic_compare_exchange_weak_explicit(&known->tenders, &before, before - 1, memory_order_relaxed, memory_order_relaxed)) {
      return 0;
    }
  }
  return ESRCH;
}

static bool is_tended(void) {
  common_t *known = load_acquire(&common);
  return known != NULL && load_relaxed(&known->tenders) != 0;
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

// There is a heap, so what is common was made.
void purgeable__note_unoffered(int64_t change) { add_relaxed(&load_acquire(&common)->unoffered_bytes, change); }

uint64_t purgeable__unoffered_bytes(void) {
  int64_t bytes = load_relaxed(&load_acquire(&common)->unoffered_bytes);
  return bytes < 0 ? 0 : (uint64_t)bytes;
}

uint64_t purgeable_pending_byte_limit(void) { return purgeable__pending_byte_limit(); }

uint64_t purgeable_pending_byte_limit_in_all(void) {
  return purgeable__pending_byte_limit_in_all(purgeable__pending_byte_limit());
}
