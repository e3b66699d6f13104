// SPDX-License-Identifier: MIT
// Each rule of the slab heap whose need a single thread, or two, can show: with the rule on, every result is right; with it off,
// some are wrong.

#include "heap_cases.h"

#include <signal.h>

// Runs the body with the rule on, then off, and expects wrong results only then.
static void compare(case_report_t *report, unsigned rule, long (*wrong)(case_report_t *report)) {
  EXPECT_EQUAL(wrong(report), 0);
  EXPECT(purgeable_testing_switch_off(rule));
  long without = wrong(report);
  EXPECT(purgeable_testing_switch_off(0));
  EXPECT(without > 0);
  NOTE("wrong results with the rule off: %ld", without);
}

#define MAKE_HEAP_OR(answer, name, ...)                                                                            \
  purgeable_heap_t *name = NULL;                                                                                   \
  if (purgeable_heap_create(&(purgeable_heap_options_t){__VA_ARGS__}, &name) != 0) return answer

// Locked content is gone when a slab is given back without the claim.
static long give_back_under_lock(case_report_t *report) {
  long wrong = 0;
  for (uint64_t round = 0; round < 20; round++) {
    MAKE_HEAP_OR(-1, heap, .slab_bytes = 4 * PAGE);
    element_t element;
    EXPECT_EQUAL(make(heap, 500, round, &element), 0);
    purgeable_slab_t slab = slab_of(heap, &element);
    EXPECT_EQUAL(purgeable_heap_lock(heap, element.reference, NULL, NULL), purgeable_outcome_intact);
    EXPECT_EQUAL(purgeable_heap_free(heap, element.reference), 0);
    EXPECT_EQUAL(purgeable_slab_give_back(heap, slab), 0);
    wrong += !check_pattern(element.bytes, 500, round);
    (void)purgeable_heap_unlock(heap, element.reference);
    END_HEAP(heap);
  }
  return wrong;
}

void rule_claim(case_report_t *report) {
  NEED_HOOKS();
  compare(report, purgeable_testing_rule_claim_before_give_back, give_back_under_lock);
}

// An owner's slot is replaced at the very moment in which the old element is being moved.
typedef struct contended_slot {
  purgeable_heap_t *heap;
  _Atomic uint64_t place;
  element_t young;
} contended_slot_t;

static bool replaced_meanwhile(void *context, purgeable_reference_t from, purgeable_reference_t to, uint64_t tag,
                               const void *bytes, size_t length) {
  (void)tag, (void)bytes, (void)length;
  contended_slot_t *slot = context;
  if (make(slot->heap, 100, 2, &slot->young) != 0) abort();
  atomic_store(&slot->place, slot->young.reference.place);
  if (!purgeable_testing_rule_holds(purgeable_testing_rule_exchange_not_store)) {
    atomic_store(&slot->place, to.place);
    return true;
  }
  uint64_t expected = from.place;
  return atomic_compare_exchange_strong(&slot->place, &expected, to.place);
}

static long replace_while_moved(case_report_t *report) {
  long wrong = 0;
  for (int round = 0; round < 20; round++) {
    MAKE_HEAP_OR(-1, heap, .slab_bytes = 4 * PAGE);
    contended_slot_t slot = {.heap = heap};
    element_t old;
    EXPECT_EQUAL(make(heap, 100, 1, &old), 0);
    atomic_store(&slot.place, old.reference.place);
    int error = purgeable_heap_move(heap, old.reference, 0, replaced_meanwhile, &slot, NULL);
    EXPECT(error == 0 || error == EBUSY);
    // A look-up has to find the element that was stored last.
    uint64_t place = atomic_load(&slot.place);
    element_t found = {{place, purgeable_heap_generation(heap, place)}, NULL, 100, 2};
    wrong += !is_intact(heap, &found);
    END_HEAP(heap);
  }
  return wrong;
}

void rule_exchange(case_report_t *report) {
  NEED_HOOKS();
  compare(report, purgeable_testing_rule_exchange_not_store, replace_while_moved);
}

// Witnesses that are read before the copy say nothing about the copy. The discard comes in the middle of the copy: the buffer
// cannot be written at first, and the handler of that fault gives up pages of the element.
static struct {
  char *buffer, *from;
  size_t buffer_bytes, from_bytes;
} trap;

static void discard_in_the_middle(int signal) {
  (void)signal;
  (void)madvise(trap.from, trap.from_bytes, MADV_DONTNEED);
  if (mprotect(trap.buffer, trap.buffer_bytes, PROT_READ | PROT_WRITE) != 0) _exit(99);
}

static long discard_while_copying(case_report_t *report) {
  const size_t length = 6 * PAGE;
  long wrong = 0;
  MAKE_HEAP_OR(-1, heap, .slab_bytes = 64 * PAGE);
  trap.buffer_bytes = length;
  trap.buffer = mmap(NULL, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (trap.buffer == MAP_FAILED) abort();
  struct sigaction action = {.sa_handler = discard_in_the_middle}, before;
  (void)sigaction(SIGSEGV, &action, &before);
  for (uint64_t round = 0; round < 20; round++) {
    element_t element;
    EXPECT_EQUAL(make(heap, length, round, &element), 0);
    // Not the header's page, and not the last one.
    trap.from = (char *)(((uintptr_t)element.bytes & ~(uintptr_t)(PAGE - 1)) + 2 * PAGE);
    trap.from_bytes = 2 * PAGE;
    EXPECT_EQUAL(mprotect(trap.buffer, length, PROT_NONE), 0);
    size_t got;
    purgeable_outcome_t outcome = purgeable_heap_read(heap, element.reference, trap.buffer, length, &got);
    EXPECT(outcome == purgeable_outcome_discarded || outcome == purgeable_outcome_intact);
    if (outcome == purgeable_outcome_intact) wrong += !check_pattern(trap.buffer, length, round);
    EXPECT_EQUAL(purgeable_heap_free(heap, element.reference), 0);
  }
  (void)sigaction(SIGSEGV, &before, NULL);
  (void)munmap(trap.buffer, length);
  END_HEAP(heap);
  return wrong;
}

void rule_order_of_checks(case_report_t *report) {
  NEED_HOOKS();
  // The signal would clear the sentinel as well. That rule is switched off both times, so that only the order counts.
  EXPECT(purgeable_testing_switch_off(purgeable_testing_rule_rseq_sentinel));
  EXPECT_EQUAL(discard_while_copying(report), 0);
  EXPECT(purgeable_testing_switch_off(purgeable_testing_rule_rseq_sentinel | purgeable_testing_rule_order_of_checks));
  long without = discard_while_copying(report);
  EXPECT(purgeable_testing_switch_off(0));
  // And with both rules.
  EXPECT_EQUAL(discard_while_copying(report), 0);
  EXPECT(without > 0);
  NOTE("wrong results with the rule off: %ld", without);
}

// A reference from some lives ago must not find a new element at its place.
static long many_rebirths(case_report_t *report) {
  long wrong = 0;
  MAKE_HEAP_OR(-1, heap, .slab_bytes = 4 * PAGE);
  element_t first, element;
  EXPECT_EQUAL(make(heap, 200, 1, &first), 0);
  EXPECT_EQUAL(purgeable_stream_seal(heap, 0), 0);
  EXPECT_EQUAL(purgeable_heap_free(heap, first.reference), 0);
  for (uint64_t life = 2; life < 40; life++) {
    EXPECT_EQUAL(make(heap, 200, life, &element), 0);
    char buffer[200];
    size_t length;
    purgeable_outcome_t outcome = purgeable_heap_read(heap, first.reference, buffer, sizeof buffer, &length);
    wrong += outcome == purgeable_outcome_intact && !check_pattern(buffer, length, 1);
    EXPECT_EQUAL(purgeable_stream_seal(heap, 0), 0);
    EXPECT_EQUAL(purgeable_heap_free(heap, element.reference), 0);
  }
  END_HEAP(heap);
  return wrong;
}

void rule_wide_generations(case_report_t *report) {
  NEED_HOOKS();
  compare(report, purgeable_testing_rule_wide_generations, many_rebirths);
}

// An element appended to a page that has been on offer can be taken before it is committed, and be reported lost though it is
// there.
static long append_to_offered_page(case_report_t *report) {
  long wrong = 0;
  for (uint64_t round = 0; round < 20; round++) {
    MAKE_HEAP_OR(-1, heap, .slab_bytes = 4 * PAGE);
    element_t first, second;
    EXPECT_EQUAL(make(heap, 100, round, &first), 0);
    EXPECT_EQUAL(offer_all(heap), 0);
    (void)kernel_discard(first.bytes, 100);
    EXPECT_EQUAL(purgeable_heap_sweep(heap, NULL), 0);
    EXPECT_EQUAL(make(heap, 100, round + 100, &second), 0);
    EXPECT(is_intact(heap, &second));
    wrong += purgeable_heap_page_is_lost(heap, second.reference.place);
    END_HEAP(heap);
  }
  return wrong;
}

void rule_no_append(case_report_t *report) {
  NEED_HOOKS();
  NEED_EXACT_DISCARDS();
  compare(report, purgeable_testing_rule_no_append_after_offer, append_to_offered_page);
}

// A new element begins with zeros, whatever lay there before.
static long refill_without_wipe(case_report_t *report) {
  long wrong = 0;
  MAKE_HEAP_OR(-1, heap, .slab_bytes = 4 * PAGE);
  for (uint64_t round = 0; round < 20; round++) {
    element_t element;
    purgeable_reference_t reference;
    void *bytes;
    EXPECT_EQUAL(make(heap, 900, round, &element), 0);
    EXPECT_EQUAL(purgeable_stream_seal(heap, 0), 0);
    EXPECT_EQUAL(purgeable_heap_free(heap, element.reference), 0);
    EXPECT_EQUAL(purgeable_heap_allocate(heap, 900, &reference, &bytes), 0);
    EXPECT_EQUAL(purgeable_heap_commit(heap, reference), 0);
    char buffer[900], zeros[900] = {0};
    size_t length;
    EXPECT_EQUAL(purgeable_heap_read(heap, reference, buffer, 900, &length), purgeable_outcome_intact);
    wrong += memcmp(buffer, zeros, 900) != 0;
    EXPECT_EQUAL(purgeable_stream_seal(heap, 0), 0);
    EXPECT_EQUAL(purgeable_heap_free(heap, reference), 0);
  }
  END_HEAP(heap);
  return wrong;
}

void rule_wipe_before_refill(case_report_t *report) {
  NEED_HOOKS();
  compare(report, purgeable_testing_rule_dontneed_before_refill, refill_without_wipe);
}
