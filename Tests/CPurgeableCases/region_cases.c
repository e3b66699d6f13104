// SPDX-License-Identifier: MIT
// Regions, first part: every public call with good, odd and bad input, and the table of all cases of regions.

#include "region_cases.h"


// MARK: Bad input

static void bad_input_to_create(case_report_t *report) {
  purgeable_region_t *untouched = (purgeable_region_t *)(void *)&report->scale;
  purgeable_region_t *region = untouched;
  purgeable_region_options_t unknown;
  memset(&unknown, 0x7F, sizeof unknown);
  EXPECT_EQUAL(purgeable_region_create(1, NULL, NULL), EINVAL);
  EXPECT_EQUAL(purgeable_region_create(0, NULL, &region), EINVAL);
  EXPECT_EQUAL(purgeable_region_create(1, &unknown, &region), EINVAL);
  const size_t page = PAGE;
  const size_t too_large[] = {SIZE_MAX,          SIZE_MAX - 1,     SIZE_MAX - page,  SIZE_MAX - page + 1, SIZE_MAX - 2 * page,
                              (size_t)PTRDIFF_MAX, SIZE_MAX / 2 + 1, SIZE_MAX / 2 + 2, (size_t)PTRDIFF_MAX - 2 * page};
  for (size_t i = 0; i < sizeof too_large / sizeof too_large[0]; i++) {
    EXPECT_EQUAL(purgeable_region_create(too_large[i], NULL, &region), ENOMEM);
  }
  EXPECT(region == untouched);
}

static void bad_input_elsewhere(case_report_t *report) {
  size_t out = 77;
  char byte;
  EXPECT_EQUAL(purgeable_region_destroy(NULL), EINVAL);
  EXPECT(purgeable_region_bytes(NULL) == NULL);
  EXPECT_EQUAL(purgeable_region_length_bytes(NULL), 0);
  EXPECT_EQUAL(purgeable_region_lock_count(NULL), 0);
  EXPECT_EQUAL(purgeable_region_offered_bytes(NULL), 0);
  EXPECT(!purgeable_region_is_discarded(NULL));
  EXPECT_EQUAL(purgeable_region_unlock(NULL), EINVAL);
  EXPECT_EQUAL(purgeable_region_discard(NULL), EINVAL);
  EXPECT_EQUAL(purgeable_region_refill(NULL), EINVAL);
  EXPECT_EQUAL(purgeable_region_offer(NULL), EINVAL);
  EXPECT_EQUAL(purgeable_region_resident_bytes(NULL, &out), EINVAL);
  EXPECT_EQUAL(out, 77);
  EXPECT_EQUAL(purgeable_region_statistics(NULL), EINVAL);
  EXPECT_EQUAL(purgeable_probe(NULL), EINVAL);
  errno = 0;
  EXPECT_EQUAL(purgeable_region_lock(NULL), purgeable_outcome_error);
  EXPECT_EQUAL(errno, EINVAL);
  errno = 0;
  EXPECT_EQUAL(purgeable_region_lock_for_writing(NULL), purgeable_outcome_error);
  EXPECT_EQUAL(errno, EINVAL);
  errno = 0;
  EXPECT_EQUAL(purgeable_region_try_lock(NULL), purgeable_outcome_error);
  EXPECT_EQUAL(errno, EINVAL);
  errno = 0;
  EXPECT_EQUAL(purgeable_region_read(NULL, 0, 1, &byte), purgeable_outcome_error);
  EXPECT_EQUAL(errno, EINVAL);

  purgeable_region_t *region = filled_region(3 * PAGE + 5, &not_at_all, 9);
  REQUIRE(region != NULL);
  EXPECT_EQUAL(purgeable_region_resident_bytes(region, NULL), EINVAL);
  errno = 0;
  EXPECT_EQUAL(purgeable_region_read(region, 0, 1, NULL), purgeable_outcome_error);
  EXPECT_EQUAL(errno, EINVAL);
  const size_t length = 3 * PAGE + 5;
  const size_t outside[][2] = {{length, 1},   {0, length + 1}, {SIZE_MAX, 1},        {1, SIZE_MAX},
                               {SIZE_MAX, 0}, {length + 1, 0}, {SIZE_MAX, SIZE_MAX}, {5, length - 4}};
  for (size_t i = 0; i < sizeof outside / sizeof outside[0]; i++) {
    errno = 0;
    EXPECT_EQUAL(purgeable_region_read(region, outside[i][0], outside[i][1], &byte), purgeable_outcome_error);
    EXPECT_EQUAL(errno, ERANGE);
  }
  EXPECT_EQUAL(purgeable_region_read(region, length, 0, NULL), purgeable_outcome_intact);
  EXPECT_EQUAL(purgeable_region_destroy(region), 0);
}

// MARK: Life

static bool is_zeros(const void *bytes, size_t length) {
  const unsigned char *in = bytes;
  for (size_t i = 0; i < length; i++) {
    if (in[i] != 0) return false;
  }
  return true;
}

static void born_locked_and_zero(case_report_t *report) {
  const size_t page = PAGE;
  const size_t lengths[] = {1, 7, page - 1, page, page + 1, 3 * page, 1u << 20, 16u << 20, (16u << 20) + 1, 20u << 20};
  for (int round = 0; round < 2; round++) {
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
      size_t length = lengths[i];
      purgeable_region_t *region = NULL;
      REQUIRE(purgeable_region_create(length, round == 0 ? NULL : &at_once, &region) == 0);
      unsigned char *bytes = purgeable_region_bytes(region);
      EXPECT_EQUAL((uintptr_t)bytes % page, 0);
      EXPECT_EQUAL(purgeable_region_length_bytes(region), length);
      EXPECT_EQUAL(purgeable_region_lock_count(region), 1);
      EXPECT(!purgeable_region_is_discarded(region));
      EXPECT(is_zeros(bytes, length));
      EXPECT_EQUAL(purgeable_region_read(region, 0, 1, &(char){0}), purgeable_outcome_busy);
      fill_pattern(bytes, length, i);
      EXPECT_EQUAL(purgeable_region_unlock(region), 0);
      EXPECT_EQUAL(purgeable_region_lock_count(region), 0);
      EXPECT_EQUAL(purgeable_region_lock(region), purgeable_outcome_intact);
      EXPECT(purgeable_region_bytes(region) == (void *)bytes);
      EXPECT(check_pattern(bytes, length, i));
      EXPECT_EQUAL(purgeable_region_unlock(region), 0);
      // The second round gets the same pages again: they must be zeros.
      EXPECT_EQUAL(purgeable_region_destroy(region), 0);
    }
  }
  // A locked region may be destroyed.
  purgeable_region_statistics_t before = statistics_now();
  purgeable_region_t *region = NULL;
  REQUIRE(purgeable_region_create(page, NULL, &region) == 0);
  EXPECT_EQUAL(purgeable_region_lock(region), purgeable_outcome_intact);
  EXPECT_EQUAL(purgeable_region_destroy(region), 0);
  EXPECT_EQUAL(statistics_now().memory.locked_bytes, before.memory.locked_bytes);
}

// Many regions of random lengths, made and destroyed in random order: none overlaps another, and all start as zeros.
static void regions_do_not_overlap(case_report_t *report) {
  enum { SLOTS = 200, STEPS = 6000 };
  static struct {
    purgeable_region_t *region;
    size_t length;
    uint64_t number;
  } slots[SLOTS];
  memset(slots, 0, sizeof slots);
  uint64_t state = report->seed;
  purgeable_region_statistics_t before = statistics_now();
  for (uint64_t step = 0; step < STEPS + SLOTS; step++) {
    size_t slot = step < STEPS ? next_random(&state) % SLOTS : step - STEPS;
    if (slots[slot].region != NULL) {
      EXPECT(check_pattern(purgeable_region_bytes(slots[slot].region), slots[slot].length, slots[slot].number));
      EXPECT_EQUAL(purgeable_region_destroy(slots[slot].region), 0);
      slots[slot].region = NULL;
      continue;
    }
    if (step >= STEPS) continue;
    size_t length = 1 + next_random(&state) % (next_random(&state) % 8 == 0 ? 40 * PAGE : 2 * PAGE);
    REQUIRE(purgeable_region_create(length, NULL, &slots[slot].region) == 0);
    EXPECT(is_zeros(purgeable_region_bytes(slots[slot].region), length));
    slots[slot].length = length;
    slots[slot].number = step;
    fill_pattern(purgeable_region_bytes(slots[slot].region), length, step);
    if (next_random(&state) % 2 == 0) EXPECT_EQUAL(purgeable_region_unlock(slots[slot].region), 0);
  }
  purgeable_region_statistics_t after = statistics_now();
  EXPECT_EQUAL(memcmp(&before, &after, sizeof before), 0);
}

// MARK: Counting

static void unlocks_are_counted(case_report_t *report) {
  for (int mode = 0; mode < 3; mode++) {
    purgeable_region_options_t options = {.offering = (purgeable_offering_t)mode};
    purgeable_region_t *region = filled_region(2 * PAGE, &options, 5);
    REQUIRE(region != NULL);
    uint64_t before = statistics_now().unbalanced_unlock_count;
    EXPECT_EQUAL(purgeable_region_unlock(region), EPERM);
    EXPECT_EQUAL(purgeable_region_unlock(region), EPERM);
    EXPECT_EQUAL(statistics_now().unbalanced_unlock_count, before + 2);
    EXPECT_EQUAL(purgeable_region_lock_count(region), 0);
    EXPECT_EQUAL(purgeable_region_lock(region), purgeable_outcome_intact);
    EXPECT_EQUAL(purgeable_region_lock_for_writing(region), purgeable_outcome_intact);
    EXPECT_EQUAL(purgeable_region_try_lock(region), purgeable_outcome_intact);
    EXPECT_EQUAL(purgeable_region_lock_count(region), 3);
    EXPECT(check_pattern(purgeable_region_bytes(region), 2 * PAGE, 5));
    for (int i = 0; i < 3; i++) EXPECT_EQUAL(purgeable_region_unlock(region), 0);
    EXPECT_EQUAL(purgeable_region_unlock(region), EPERM);
    EXPECT_EQUAL(purgeable_region_discard(region), 0);
    EXPECT_EQUAL(purgeable_region_unlock(region), EPERM);
    EXPECT_EQUAL(statistics_now().unbalanced_unlock_count, before + 4);
    EXPECT_EQUAL(purgeable_region_destroy(region), 0);
  }
}

static void count_at_its_maximum(case_report_t *report) {
  NEED_OFFERS();
  purgeable_region_t *region = NULL;
  REQUIRE(purgeable_region_create(PAGE, &at_once, &region) == 0);
  fill_pattern(purgeable_region_bytes(region), PAGE, 3);
  for (uint32_t count = 1; count < PURGEABLE_LOCK_COUNT_MAX; count++) {
    REQUIRE((count & 1 ? purgeable_region_lock(region) : purgeable_region_lock_for_writing(region)) == purgeable_outcome_intact);
  }
  EXPECT_EQUAL(purgeable_region_lock_count(region), PURGEABLE_LOCK_COUNT_MAX);
  errno = 0;
  EXPECT_EQUAL(purgeable_region_lock(region), purgeable_outcome_error);
  EXPECT_EQUAL(errno, EOVERFLOW);
  EXPECT_EQUAL(purgeable_region_lock_for_writing(region), purgeable_outcome_error);
  EXPECT_EQUAL(purgeable_region_try_lock(region), purgeable_outcome_error);
  EXPECT_EQUAL(purgeable_region_lock_count(region), PURGEABLE_LOCK_COUNT_MAX);
  EXPECT_EQUAL(purgeable_region_unlock(region), 0);
  EXPECT_EQUAL(purgeable_region_lock(region), purgeable_outcome_intact);
  for (uint32_t count = 0; count < PURGEABLE_LOCK_COUNT_MAX; count++) REQUIRE(purgeable_region_unlock(region) == 0);
  EXPECT_EQUAL(purgeable_region_unlock(region), EPERM);
  EXPECT_EQUAL(purgeable_region_offered_bytes(region), PAGE);
  EXPECT_EQUAL(purgeable_region_lock(region), purgeable_outcome_intact);
  EXPECT(check_pattern(purgeable_region_bytes(region), PAGE, 3));
  EXPECT_EQUAL(purgeable_region_destroy(region), 0);
}

static void locked_refuses(case_report_t *report) {
  NEED_OFFERS();
  for (int writing = 0; writing < 2; writing++) {
    purgeable_region_t *region = filled_region(4 * PAGE, &at_once, 8);
    REQUIRE(region != NULL);
    purgeable_region_statistics_t before = statistics_now();
    EXPECT_EQUAL(writing ? purgeable_region_lock_for_writing(region) : purgeable_region_lock(region), purgeable_outcome_intact);
    EXPECT_EQUAL(purgeable_region_refill(region), EBUSY);
    EXPECT_EQUAL(purgeable_region_discard(region), EBUSY);
    EXPECT_EQUAL(purgeable_region_offer(region), EBUSY);
    EXPECT_EQUAL(purgeable_region_lock_count(region), 1);
    EXPECT(!purgeable_region_is_discarded(region));
    EXPECT(check_pattern(purgeable_region_bytes(region), 4 * PAGE, 8));
    EXPECT_EQUAL(purgeable_region_unlock(region), 0);
    purgeable_region_statistics_t after = statistics_now();
    EXPECT_EQUAL(memcmp(&before, &after, sizeof before), 0);
    EXPECT_EQUAL(purgeable_region_destroy(region), 0);
  }
}

// MARK: Discard and refill

static void discard_and_refill(case_report_t *report) {
  const size_t lengths[] = {1, 5 * PAGE - 3, (16u << 20) + 9};
  for (size_t i = 0; i < 3; i++) {
    for (int mode = 0; mode < 3; mode++) {
      purgeable_region_options_t options = {.offering = (purgeable_offering_t)mode};
      size_t length = lengths[i], resident = 1;
      purgeable_region_t *region = filled_region(length, &options, 4);
      REQUIRE(region != NULL);
      uint64_t own = statistics_now().own_discard_count;
      EXPECT_EQUAL(purgeable_region_discard(region), 0);
      EXPECT_EQUAL(purgeable_region_discard(region), 0);
      EXPECT_EQUAL(statistics_now().own_discard_count, own + 1);
      EXPECT_EQUAL(purgeable_region_resident_bytes(region, &resident), 0);
      EXPECT_EQUAL(resident, 0);
      EXPECT(purgeable_region_is_discarded(region));
      EXPECT_EQUAL(purgeable_region_offered_bytes(region), 0);
      EXPECT_EQUAL(purgeable_region_offer(region), 0);
      EXPECT_EQUAL(purgeable_region_lock(region), purgeable_outcome_discarded);
      EXPECT_EQUAL(purgeable_region_lock_for_writing(region), purgeable_outcome_discarded);
      EXPECT_EQUAL(purgeable_region_try_lock(region), purgeable_outcome_discarded);
      EXPECT_EQUAL(purgeable_region_read(region, 0, 1, &(char){0}), purgeable_outcome_discarded);
      EXPECT_EQUAL(purgeable_region_read(region, 0, 0, NULL), purgeable_outcome_discarded);
      EXPECT_EQUAL(purgeable_region_lock_count(region), 0);
      EXPECT_EQUAL(purgeable_region_refill(region), 0);
      EXPECT_EQUAL(purgeable_region_lock_count(region), 1);
      EXPECT(!purgeable_region_is_discarded(region));
      EXPECT(is_zeros(purgeable_region_bytes(region), length));
      EXPECT_EQUAL(purgeable_region_read(region, 0, 1, &(char){0}), purgeable_outcome_busy);
      fill_pattern(purgeable_region_bytes(region), length, 6);
      EXPECT_EQUAL(purgeable_region_unlock(region), 0);
      EXPECT_EQUAL(purgeable_region_lock(region), purgeable_outcome_intact);
      EXPECT(check_pattern(purgeable_region_bytes(region), length, 6));
      EXPECT_EQUAL(purgeable_region_unlock(region), 0);
      // A refill of a region that was not discarded starts anew as well.
      EXPECT_EQUAL(purgeable_region_refill(region), 0);
      EXPECT(is_zeros(purgeable_region_bytes(region), length));
      EXPECT_EQUAL(purgeable_region_destroy(region), 0);
    }
  }
}

// MARK: Numbers

static void statistics_follow(case_report_t *report) {
  const size_t page = PAGE;
  purgeable_region_statistics_t base = statistics_now(), now;
#define SINCE(field) (now = statistics_now(), (long long)(now.field - base.field))
  purgeable_region_t *region = NULL;
  REQUIRE(purgeable_region_create(2 * page + 1, &at_once, &region) == 0);
  EXPECT_EQUAL(SINCE(region_count), 1);
  EXPECT_EQUAL(SINCE(memory.held_bytes), 3 * page);
  EXPECT_EQUAL(SINCE(memory.locked_bytes), 3 * page);
  fill_pattern(purgeable_region_bytes(region), 2 * page + 1, 1);
  EXPECT_EQUAL(purgeable_region_lock(region), purgeable_outcome_intact);
  EXPECT_EQUAL(SINCE(memory.locked_bytes), 3 * page);
  EXPECT_EQUAL(purgeable_region_unlock(region), 0);
  EXPECT_EQUAL(purgeable_region_unlock(region), 0);
  EXPECT_EQUAL(SINCE(memory.locked_bytes), 0);
  EXPECT_EQUAL(SINCE(memory.offered_bytes), purgeable_region_offered_bytes(region));
  EXPECT_EQUAL(purgeable_region_lock(region), purgeable_outcome_intact);
  EXPECT_EQUAL(SINCE(memory.offered_bytes), 0);
  EXPECT_EQUAL(purgeable_region_unlock(region), 0);
  EXPECT_EQUAL(purgeable_region_discard(region), 0);
  EXPECT_EQUAL(SINCE(memory.offered_bytes), 0);
  EXPECT_EQUAL(SINCE(memory.discarded_bytes), 3 * page);
  EXPECT_EQUAL(SINCE(memory.payload_bytes), 0);
  EXPECT_EQUAL(SINCE(memory.given_back_bytes), 3 * page);
  EXPECT_EQUAL(SINCE(own_discard_count), 1);
  EXPECT_EQUAL(purgeable_region_refill(region), 0);
  EXPECT_EQUAL(SINCE(memory.discarded_bytes), 0);
  EXPECT_EQUAL(SINCE(memory.payload_bytes), 3 * page);
  EXPECT_EQUAL(SINCE(memory.locked_bytes), 3 * page);
  EXPECT_EQUAL(purgeable_region_destroy(region), 0);
  EXPECT_EQUAL(SINCE(region_count), 0);
  EXPECT_EQUAL(SINCE(memory.held_bytes), 0);
  EXPECT_EQUAL(SINCE(memory.locked_bytes), 0);
  EXPECT_EQUAL(SINCE(kernel_discard_count), 0);
#undef SINCE
}

static void resident_bytes(case_report_t *report) {
  const size_t page = PAGE;
  const size_t page_count = 2500;
  size_t resident = 1;
  purgeable_region_t *region = NULL;
  REQUIRE(purgeable_region_create(page_count * page, &not_at_all, &region) == 0);
  EXPECT_EQUAL(purgeable_region_resident_bytes(region, &resident), 0);
  EXPECT_EQUAL(resident, 0);
  char *bytes = purgeable_region_bytes(region);
  bytes[0] = 1;
  bytes[1030 * page] = 1;
  bytes[page_count * page - 1] = 1;
  EXPECT_EQUAL(purgeable_region_resident_bytes(region, &resident), 0);
  EXPECT_EQUAL(resident, 3 * page);
  fill_pattern(bytes, page_count * page, 1);
  EXPECT_EQUAL(purgeable_region_resident_bytes(region, &resident), 0);
  EXPECT_EQUAL(resident, page_count * page);
  EXPECT_EQUAL(purgeable_region_destroy(region), 0);
}

const test_case_t region_cases[] = {
    CASE("region: bad input to create changes nothing", bad_input_to_create),
    CASE("region: bad input elsewhere is answered with an error", bad_input_elsewhere),
    CASE("region: born locked and zero, also on used pages", born_locked_and_zero),
    CASE("region: regions do not overlap", regions_do_not_overlap),
    CASE("region: unlocks are counted, one too many is refused", unlocks_are_counted),
    CASE("region: the count stops at its maximum", count_at_its_maximum),
    CASE("region: what is locked is not refilled, discarded or offered", locked_refuses),
    CASE("region: discard is sticky until refill", discard_and_refill),
    CASE("region: offering modes", offering_modes),
    CASE("region: neighbours are merged", neighbours_are_merged),
    CASE("region: a large region is offered in pieces", large_regions_in_pieces),
    CASE("region: an offer that the kernel refuses is made again, and counts as pending until then", refused_offers_again),
    CASE("region: statistics follow every change", statistics_follow),
    CASE("region: resident bytes", resident_bytes),
    CASE("region: a lock cancels the offer", lock_cancels_offer),
    CASE("region: all pages lost", all_pages_lost),
    CASE("region: exactly one page lost, found by every call", one_page_lost),
    CASE("region: pages touched before the question are still lost", touched_before_asked),
    CASE("region: zeros cannot be lost", zeros_cannot_be_lost),
    CASE("region: zeros that are written later", zeros_then_written),
    CASE("region: one byte in a page is witness enough", sparse_witnesses),
    CASE("region: outcomes of reading without lock", read_outcomes),
    CASE("region: a read needs the pages it touches", read_of_pages_touched),
    CASE("region: a failed rescue gives back what it touched", loss_gives_back),
    CASE("region: offered, rescued and offered again", offered_again),
    CASE("region: the first word that is not 0 is a page's witness, whatever was written first", first_word_is_witness),
    CASE("region: faults in create leak and change nothing", faults_in_create),
    CASE("region: faults in operations change nothing", faults_in_operations),
    CASE("region: faults in offers keep the content", faults_in_offers),
    CASE("region: pages that cannot be wiped are not used again", pages_that_cannot_be_wiped),
    CASE("region: mlocked bytes", mlocked_bytes),
    CASE("region: mlocked process", mlocked_process),
    CASE("region: fork in every state", fork_in_every_state),
    CASE("region: fork beside offers", fork_beside_offers),
    CASE("probe: answers and names", probe_answers),
    CASE("probe: classes by faults", probe_classes_by_faults),
    CASE("probe: classes by a kernel that behaves so", probe_classes_by_kernel),
    CASE("probe: answers to calls, by faults", probe_calls_by_faults),
    CASE("probe: kernels that say yes and do otherwise", probe_tries),
    CASE("probe: answers to calls, by a filter", probe_calls_by_filter),
    FULL_CASE("probe: its child runs no handler of signals to the group", probe_beside_signals),
    END_OF_CASES,
};
