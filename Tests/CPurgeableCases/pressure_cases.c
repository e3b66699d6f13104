// SPDX-License-Identifier: MIT
// Real pressure: a heap in a memory group that is too small for it, beside a hungry neighbour. The kernel discards; no process is
// killed, locked content stays, the rest is intact or reported lost.
//
//     parent (no member)      group: limit 64 MiB
//        |-- fork -->  holder     stores 160 MiB, offers as it goes, keeps some locked, and checks everything twice
//        '-- fork -->  neighbour  comes when the holder is full, and touches 32 MiB again and again

#include "heap_cases.h"
#include "memory_group.h"

#include <signal.h>

enum {
  LIMIT_BYTES = 64 << 20,
  STORED_BYTES = 160 << 20,
  LOCKED_BYTES = 8 << 20,
  NEIGHBOUR_BYTES = 32 << 20,
  ELEMENT_COUNT_MAX = 100000,
  SECONDS = 60,
};

// MARK: The two of them

// The holder's figures, sent through a pipe.
typedef struct tale {
  uint64_t stored, locked, intact, discarded, wrong, locked_wrong, round;
} tale_t;

// Whether an element is locked from the beginning. Neighbours are locked together, since a slab goes on offer when nothing in it
// is locked.
static bool is_kept(uint64_t number) { return number / 100 % (STORED_BYTES / LOCKED_BYTES) == 0; }

static void look_through(purgeable_heap_t *heap, const element_t *elements, uint64_t count, tale_t *tale) {
  tale->intact = tale->discarded = 0;
  for (uint64_t i = 0; i < count; i++) {
    if (is_kept(i)) {
      tale->locked_wrong += !check_pattern(elements[i].bytes, elements[i].length, elements[i].number);
      continue;
    }
    purgeable_outcome_t outcome;
    if (reads_intact(heap, &elements[i], &outcome)) {
      tale->intact++;
    } else if (outcome == purgeable_outcome_discarded) {
      tale->discarded++;
    } else {
      tale->wrong++;
    }
  }
}

static int hold(const memory_group_t *group, uint64_t seed, int tell, int listen) {
  (void)alarm(SECONDS);
  element_t *elements = calloc(ELEMENT_COUNT_MAX, sizeof *elements);
  purgeable_heap_t *heap = NULL;
  if (!memory_group_join(group)) return 2;
  if (elements == NULL || purgeable_heap_create(NULL, &heap) != 0) return 3;
  tale_t tale = {0};
  uint64_t bytes = 0;
  while (bytes < STORED_BYTES && tale.stored < ELEMENT_COUNT_MAX) {
    element_t *element = &elements[tale.stored];
    size_t length = 100 + next_random(&seed) % 6000;
    if (make(heap, length, tale.stored, element) != 0) return 4;
    if (is_kept(tale.stored)) {
      if (purgeable_heap_lock(heap, element->reference, NULL, NULL) != purgeable_outcome_intact) return 5;
      tale.locked++;
    }
    tale.stored++;
    bytes += length;
    if (tale.stored % 256 == 0 && purgeable_heap_offer_idle(heap, NULL) != 0) return 6;
  }
  if (offer_all(heap) != 0) return 6;
  // Once when the holder is full, and once more after the neighbour has taken its memory.
  for (tale.round = 0; tale.round < 2; tale.round++) {
    look_through(heap, elements, tale.stored, &tale);
    if (write(tell, &tale, sizeof tale) != (ssize_t)sizeof tale) return 7;
    char word;
    if (tale.round == 0 && read(listen, &word, 1) != 1) return 8;
  }
  for (uint64_t i = 0; i < tale.stored; i++) {
    if (is_kept(i) && purgeable_heap_unlock(heap, elements[i].reference) != 0) return 9;
    if (purgeable_heap_free(heap, elements[i].reference) != 0) return 10;
  }
  return purgeable_heap_destroy(heap) == 0 ? 0 : 11;
}

static int eat(const memory_group_t *group) {
  (void)alarm(SECONDS);
  if (!memory_group_join(group)) return 2;
  volatile char *food = mmap(NULL, NEIGHBOUR_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if ((void *)food == MAP_FAILED) return 3;
  for (int round = 1; round < 4; round++) {
    for (size_t at = 0; at < NEIGHBOUR_BYTES; at += PAGE) food[at] = (char)round;
  }
  for (size_t at = 0; at < NEIGHBOUR_BYTES; at += PAGE) {
    if (food[at] != 3) return 4;
  }
  return 0;
}

static void beside_a_hungry_neighbour(case_report_t *report) {
  NEED_DISCARDS();
  if (HAS_SANITIZER) SKIP("the sanitizer's own memory would not fit the group");
  memory_group_t group;
  const char *reason = NULL;
  if (!memory_group_make(&group, LIMIT_BYTES, &reason)) SKIP("%s", reason);
  int tells[2] = {-1, -1}, words[2] = {-1, -1};
  bool piped = pipe(tells) == 0 && pipe(words) == 0;
  pid_t holder = piped ? fork() : -1;
  if (holder == 0) {
    (void)close(tells[0]);
    (void)close(words[1]);
    _exit(hold(&group, report->seed, tells[1], words[0]));
  }
  (void)close(tells[1]);
  (void)close(words[0]);
  tale_t full = {0}, eaten = {0};
  int holder_end = -1, neighbour_end = -1;
  if (holder > 0) {
    bool ready = read(tells[0], &full, sizeof full) == (ssize_t)sizeof full;
    if (ready) {
      pid_t neighbour = fork();
      if (neighbour == 0) _exit(eat(&group));
      neighbour_end = wait_for_child(neighbour);
      ready = write(words[1], "!", 1) == 1 && read(tells[0], &eaten, sizeof eaten) == (ssize_t)sizeof eaten;
    }
    holder_end = wait_for_child(holder);
    EXPECT(ready);
  }
  (void)close(tells[0]);
  (void)close(words[1]);
  int removed = memory_group_remove(&group);
  EXPECT(piped);
  EXPECT_EQUAL(removed, 0);
  EXPECT_EQUAL(holder_end, 0);
  EXPECT_EQUAL(neighbour_end, 0);
  EXPECT(full.locked > 100 && full.stored > 10 * full.locked);
  EXPECT_EQUAL(full.wrong + full.locked_wrong, 0);
  EXPECT_EQUAL(eaten.wrong + eaten.locked_wrong, 0);
  EXPECT_EQUAL(eaten.intact + eaten.discarded + eaten.locked, eaten.stored);
  // The group has room for less than half of what was stored, and for less beside the neighbour; but for more than nothing.
  EXPECT(full.discarded > full.stored / 2);
  EXPECT(eaten.discarded >= full.discarded);
  EXPECT(full.intact > 0);
  NOTE("%llu elements, %llu locked; %llu intact when full, %llu after the neighbour", (unsigned long long)full.stored,
       (unsigned long long)full.locked, (unsigned long long)full.intact, (unsigned long long)eaten.intact);
}

const test_case_t pressure_cases[] = {
    FULL_CASE("pressure: a group that is too small, and a hungry neighbour", beside_a_hungry_neighbour),
    END_OF_CASES,
};
