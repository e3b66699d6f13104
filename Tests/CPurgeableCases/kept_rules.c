// SPDX-License-Identifier: MIT
// The rule behind slabs that are filled again without a wipe: the new generation is there before the first new byte. With the
// rule off, references of an old life read the next one's content. (That no page was taken: stale_cases.c.)

#include "heap_cases.h"

#include <signal.h>

enum { SLABS = 32, ELEMENTS = 2 * SLABS };
#define LENGTH (2 * PAGE - 64)

// Ends the slab of the two oldest elements, and fills two new ones in.
static bool replace(purgeable_heap_t *heap, element_t *pair, uint64_t number) {
  if (purgeable_heap_free(heap, pair[0].reference) != 0 || purgeable_heap_free(heap, pair[1].reference) != 0) return false;
  return make(heap, LENGTH, number, &pair[0]) == 0 && make(heap, LENGTH, number + 1, &pair[1]) == 0;
}

static bool fill_ring(purgeable_heap_t *heap, element_t *elements) {
  for (size_t i = 0; i < ELEMENTS; i++) {
    if (make(heap, LENGTH, i + 1, &elements[i]) != 0) return false;
  }
  return true;
}

// MARK: In the middle of a copy

// The buffer cannot be written at first. The handler of that fault has the slab end and be filled again, in the middle of the
// copy.
static struct {
  char *buffer;
  purgeable_heap_t *heap;
  element_t *pair;
  uint64_t number;
  bool is_replaced;
} trap;

static void replace_in_the_middle(int signal) {
  (void)signal;
  trap.is_replaced = replace(trap.heap, trap.pair, trap.number);
  if (mprotect(trap.buffer, 2 * PAGE, PROT_READ | PROT_WRITE) != 0) _exit(99);
}

static long wrong_in_the_middle(case_report_t *report) {
  long wrong = 0;
  purgeable_heap_t *heap = NULL;
  static element_t elements[ELEMENTS];
  if (purgeable_heap_create(&(purgeable_heap_options_t){.slab_bytes = 4 * PAGE}, &heap) != 0) return -1;
  EXPECT(fill_ring(heap, elements));
  trap.buffer = mmap(NULL, 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (trap.buffer == MAP_FAILED) abort();
  struct sigaction action = {.sa_handler = replace_in_the_middle}, before;
  (void)sigaction(SIGSEGV, &action, &before);
  // Each slab but the last two, which is the open one and what the first replacement seals.
  for (size_t i = 0; i + 4 < ELEMENTS; i += 2) {
    element_t old = elements[i];
    trap.heap = heap;
    trap.pair = &elements[i];
    trap.number = 1000 + i;
    trap.is_replaced = false;
    // The first page of the buffer is filled from the old life, the second from the new one.
    EXPECT_EQUAL(mprotect(trap.buffer, PAGE, PROT_READ | PROT_WRITE), 0);
    EXPECT_EQUAL(mprotect(trap.buffer + PAGE, PAGE, PROT_NONE), 0);
    size_t got = 0;
    purgeable_outcome_t outcome = purgeable_heap_read(heap, old.reference, trap.buffer, LENGTH, &got);
    EXPECT(trap.is_replaced);
    EXPECT_EQUAL(elements[i].reference.place, old.reference.place);
    if (outcome == purgeable_outcome_intact) wrong += !check_pattern(trap.buffer, LENGTH, old.number);
    EXPECT(is_intact(heap, &elements[i]) && is_intact(heap, &elements[i + 1]));
  }
  (void)sigaction(SIGSEGV, &before, NULL);
  (void)munmap(trap.buffer, 2 * PAGE);
  EXPECT_VALID(heap);
  EXPECT_EQUAL(purgeable_heap_destroy(heap), 0);
  return wrong;
}

static void in_the_middle(case_report_t *report) {
  NEED_HOOKS();
  EXPECT_EQUAL(wrong_in_the_middle(report), 0);
  // The signal clears the sentinel, and the read begins again. Without that rule only the generation tells.
  EXPECT(purgeable_testing_switch_off(purgeable_testing_rule_rseq_sentinel));
  EXPECT_EQUAL(wrong_in_the_middle(report), 0);
  EXPECT(purgeable_testing_switch_off(purgeable_testing_rule_rseq_sentinel | purgeable_testing_rule_generation_before_reuse));
  long without = wrong_in_the_middle(report);
  EXPECT(purgeable_testing_switch_off(0));
  EXPECT(without > 0);
  NOTE("wrong results with the rule off: %ld", without);
}

// MARK: A storm

enum { READERS = 2 };

// The writer's notes of its elements: a reader may find one half replaced, and takes no harm.
typedef struct note {
  _Atomic uint64_t place, generation, number;
  void *_Atomic bytes;
} note_t;

typedef struct storm {
  purgeable_heap_t *heap;
  note_t notes[ELEMENTS];
  _Atomic bool stop;
  _Atomic uint64_t reads, intact, wrong, replaced, failed, taken;
} storm_t;

// What a storm does beside filling slabs again: slabs go on offer now and then and are trimmed; all are on offer most of the
// time, and the kernel takes pages of theirs.
typedef enum kind { plain, offers, takes } kind_t;


typedef struct hand {
  storm_t *storm;
  uint64_t seed;
  span_t span;
  kind_t kind;
  void *(*work)(void *);
} hand_t;

// The number stands in every word, and the number is noted before the element is: so what is read is the note's or the read is
// of another life.
static void put(storm_t *storm, size_t index, uint64_t number) {
  purgeable_reference_t reference;
  void *bytes;
  if (purgeable_heap_allocate(storm->heap, LENGTH, &reference, &bytes) != 0) {
    atomic_fetch_add(&storm->failed, 1);
    return;
  }
  for (size_t i = 0; i < LENGTH / 8; i++) ((uint64_t *)bytes)[i] = number;
  if (purgeable_heap_commit(storm->heap, reference) != 0) atomic_fetch_add(&storm->failed, 1);
  note_t *note = &storm->notes[index];
  atomic_store(&note->number, 0);
  atomic_store(&note->bytes, bytes);
  atomic_store(&note->place, reference.place);
  atomic_store(&note->generation, reference.generation);
  atomic_store(&note->number, number);
}

static void *write_storm(void *context) {
  hand_t *hand = context;
  storm_t *storm = hand->storm;
  uint64_t number = 1, random = hand->seed;
  for (size_t i = 0; i < ELEMENTS; i++) put(storm, i, number++);
  for (uint64_t round = 0; span_goes_on(hand->span, round) && atomic_load(&storm->wrong) == 0; round++) {
    for (size_t i = 0; i < ELEMENTS; i += 2) {
      for (size_t half = 0; half < 2; half++) {
        note_t *note = &storm->notes[i + half];
        purgeable_reference_t reference = {atomic_load(&note->place), atomic_load(&note->generation)};
        if (purgeable_heap_free(storm->heap, reference) != 0) atomic_fetch_add(&storm->failed, 1);
      }
      for (size_t half = 0; half < 2; half++) put(storm, i + half, number++);
      atomic_fetch_add(&storm->replaced, 1);
      bool trims = hand->kind == offers && next_random(&random) % 256 == 0;
      bool offers_all = next_random(&random) % (hand->kind == takes ? SLABS / 4 : 256) == 0;
      if (hand->kind != plain && offers_all) (void)purgeable_heap_offer_idle(storm->heap, NULL);
      if (trims) (void)purgeable_heap_trim(storm->heap, NULL);
    }
  }
  atomic_store(&storm->stop, true);
  return NULL;
}

static void *read_storm(void *context) {
  hand_t *hand = context;
  storm_t *storm = hand->storm;
  uint64_t random = hand->seed, *words = malloc(LENGTH);
  if (words == NULL) abort();
  while (!atomic_load(&storm->stop)) {
    note_t *note = &storm->notes[next_random(&random) % ELEMENTS];
    uint64_t number = atomic_load(&note->number);
    purgeable_reference_t reference = {atomic_load(&note->place), atomic_load(&note->generation)};
    if (number == 0 || atomic_load(&note->number) != number) continue;
    // Read a few times: the slab ends meanwhile.
    for (int again = 0; again < 8; again++) {
      size_t length = 0;
      atomic_fetch_add_explicit(&storm->reads, 1, memory_order_relaxed);
      if (purgeable_heap_read(storm->heap, reference, words, LENGTH, &length) != purgeable_outcome_intact) continue;
      atomic_fetch_add_explicit(&storm->intact, 1, memory_order_relaxed);
      bool right = length == LENGTH;
      for (size_t i = 0; i < LENGTH / 8 && right; i++) right = words[i] == number;
      if (!right) atomic_fetch_add(&storm->wrong, 1);
    }
  }
  free(words);
  return NULL;
}

// Has the kernel take what is on offer, a few pages at a time.
static void *take_storm(void *context) {
  hand_t *hand = context;
  storm_t *storm = hand->storm;
  uint64_t random = hand->seed;
  while (!atomic_load(&storm->stop)) {
    char *bytes = atomic_load(&storm->notes[next_random(&random) % ELEMENTS].bytes);
    char *page = (char *)((uintptr_t)bytes & ~(uintptr_t)(PAGE - 1));
    if (bytes != NULL && madvise(page, PAGE * (1 + next_random(&random) % 2), MADV_PAGEOUT) == 0) {
      atomic_fetch_add_explicit(&storm->taken, 1, memory_order_relaxed);
    }
    (void)usleep(20);
  }
  return NULL;
}

static void *hand_in_storm(void *context) { return ((hand_t *)context)->work(context); }

static uint64_t run_storm(case_report_t *report, span_t span, kind_t kind) {
  static storm_t storm;
  memset((void *)&storm, 0, sizeof storm);
  EXPECT_EQUAL(purgeable_heap_create(&(purgeable_heap_options_t){.slab_bytes = 4 * PAGE}, &storm.heap), 0);
  hand_t hands[2 + READERS];
  size_t count = kind == takes ? 2 + READERS : 1 + READERS;
  for (size_t i = 0; i < count; i++) {
    void *(*work)(void *) = i == 0 ? write_storm : i <= READERS ? read_storm : take_storm;
    hands[i] = (hand_t){&storm, report->seed + i, span, kind, work};
  }
  uint64_t wipes = purgeable_testing_call_count(purgeable_testing_call_madvise_dontneed);
  run_threads(count, hand_in_storm, hands, sizeof hands[0]);
  wipes = purgeable_testing_call_count(purgeable_testing_call_madvise_dontneed) - wipes;
  EXPECT_EQUAL(atomic_load(&storm.failed), 0);
  if (kind == plain) EXPECT_EQUAL(wipes, 0);
  EXPECT_VALID(storm.heap);
  EXPECT_EQUAL(purgeable_heap_destroy(storm.heap), 0);
  NOTE("%llu slabs filled again, %llu wipes, %llu reads, %llu intact, %llu wrong, taken %llu times",
       (unsigned long long)storm.replaced, (unsigned long long)wipes, (unsigned long long)storm.reads,
       (unsigned long long)storm.intact, (unsigned long long)storm.wrong, (unsigned long long)storm.taken);
  return storm.wrong;
}

static void storm_of_readers(case_report_t *report) {
  EXPECT_EQUAL(run_storm(report, span_of(report, 20, 1000), plain), 0);
  EXPECT_EQUAL(run_storm(report, span_of(report, 20, 1000), offers), 0);
  const char *reason = NULL;
  if (kernel_discards(&reason)) EXPECT_EQUAL(run_storm(report, span_of(report, 20, 1000), takes), 0);
  if (!report->is_full || !purgeable_testing_has_hooks() || HAS_THREAD_SANITIZER) return;
  // With the rule off, in the full run: until it has been wrong once, which may take a while.
  EXPECT(purgeable_testing_switch_off(purgeable_testing_rule_generation_before_reuse));
  uint64_t wrong = 0;
  for (int tries = 0; tries < 20 && wrong == 0; tries++) wrong = run_storm(report, span_of(report, 0, 1000), plain);
  EXPECT(purgeable_testing_switch_off(0));
  EXPECT(wrong > 0);
}

const test_case_t kept_rule_cases[] = {
    CASE("kept: a read whose slab is filled again in the middle is refused, by the generation", in_the_middle),
    CASE("kept: storm of readers with old references beside a ring that is filled again", storm_of_readers),
    END_OF_CASES,
};
