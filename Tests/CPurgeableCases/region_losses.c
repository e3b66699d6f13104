// SPDX-License-Identifier: MIT
// Regions, second part: content that the real kernel takes, in whole and page by page, and the results of every call then.

#include "region_cases.h"

enum { PAGES = 9 };

// MARK: The compiler trap

// A rescue that the compiler turns into a load leaves the offer standing. Only the real kernel shows that: it must not take
// locked pages.
void lock_cancels_offer(case_report_t *report) {
  NEED_EXACT_DISCARDS();
  const size_t length = 64 * PAGE;
  for (int way = 0; way < 3; way++) {
    purgeable_region_t *region = filled_region(length, &at_once, 40 + (uint64_t)way);
    REQUIRE(region != NULL);
    EXPECT_EQUAL(purgeable_region_offered_bytes(region), length);
    purgeable_outcome_t outcome = way == 0   ? purgeable_region_lock(region)
                                  : way == 1 ? purgeable_region_lock_for_writing(region)
                                             : purgeable_region_try_lock(region);
    REQUIRE(outcome == purgeable_outcome_intact);
    EXPECT_EQUAL(kernel_discard(purgeable_region_bytes(region), length), 0);
    EXPECT(check_pattern(purgeable_region_bytes(region), length, 40 + (uint64_t)way));
    EXPECT_EQUAL(purgeable_region_unlock(region), 0);
    // The unlock offers again, and now the kernel takes the pages.
    EXPECT(kernel_discard(purgeable_region_bytes(region), length) > 0);
    EXPECT_EQUAL(purgeable_region_lock(region), purgeable_outcome_discarded);
    EXPECT_EQUAL(purgeable_region_destroy(region), 0);
  }
}

// MARK: Losses

void all_pages_lost(case_report_t *report) {
  NEED_EXACT_DISCARDS();
  const size_t lengths[] = {1, PAGE, PAGES * PAGE - 7, (16u << 20) + 1};
  for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
    purgeable_region_t *region = filled_region(lengths[i], &at_once, i);
    REQUIRE(region != NULL);
    uint64_t found = statistics_now().kernel_discard_count;
    REQUIRE(kernel_discard(purgeable_region_bytes(region), lengths[i]) > 0);
    EXPECT_EQUAL(purgeable_region_lock(region), purgeable_outcome_discarded);
    EXPECT_EQUAL(purgeable_region_lock_count(region), 0);
    EXPECT_EQUAL(purgeable_region_lock_for_writing(region), purgeable_outcome_discarded);
    EXPECT(purgeable_region_is_discarded(region));
    EXPECT_EQUAL(purgeable_region_offered_bytes(region), 0);
    EXPECT_EQUAL(statistics_now().kernel_discard_count, found + 1);
    EXPECT_EQUAL(purgeable_region_unlock(region), EPERM);
    EXPECT_EQUAL(purgeable_region_refill(region), 0);
    fill_pattern(purgeable_region_bytes(region), lengths[i], 77);
    EXPECT_EQUAL(purgeable_region_unlock(region), 0);
    EXPECT_EQUAL(purgeable_region_lock(region), purgeable_outcome_intact);
    EXPECT(check_pattern(purgeable_region_bytes(region), lengths[i], 77));
    EXPECT_EQUAL(purgeable_region_destroy(region), 0);
  }
}

typedef enum question { by_lock, by_writing_lock, by_try_lock, by_read, by_empty_read, by_looking, questions } question_t;

static bool says_lost(purgeable_region_t *region, question_t question) {
  static char buffer[PAGES << 16];
  switch (question) {
    case by_lock: return purgeable_region_lock(region) == purgeable_outcome_discarded;
    case by_writing_lock: return purgeable_region_lock_for_writing(region) == purgeable_outcome_discarded;
    case by_try_lock: return purgeable_region_try_lock(region) == purgeable_outcome_discarded;
    case by_read:
      return purgeable_region_read(region, 0, purgeable_region_length_bytes(region), buffer) == purgeable_outcome_discarded;
    case by_empty_read: return purgeable_region_read(region, 1, 0, NULL) == purgeable_outcome_discarded;
    case by_looking: return purgeable_region_is_discarded(region);
    case questions: break;
  }
  return false;
}

void one_page_lost(case_report_t *report) {
  const size_t length = PAGES * PAGE - 100;
  for (size_t page = 0; page < PAGES; page++) {
    for (question_t question = by_lock; question < questions; question++) {
      purgeable_region_t *region = filled_region(length, &at_once, page);
      REQUIRE(region != NULL);
      uint64_t found = statistics_now().kernel_discard_count;
      EXPECT(!says_lost(region, by_looking));
      discard_exactly((char *)purgeable_region_bytes(region) + page * PAGE, 1);
      EXPECT(says_lost(region, question));
      EXPECT_EQUAL(statistics_now().kernel_discard_count, found + 1);
      // Every call says so from now on, and the loss is counted once.
      for (question_t again = by_lock; again < questions; again++) EXPECT(says_lost(region, again));
      EXPECT_EQUAL(statistics_now().kernel_discard_count, found + 1);
      EXPECT_EQUAL(purgeable_region_lock_count(region), 0);
      EXPECT_EQUAL(purgeable_region_refill(region), 0);
      EXPECT_EQUAL(*(char *)purgeable_region_bytes(region), 0);
      fill_pattern(purgeable_region_bytes(region), length, 50 + page);
      EXPECT_EQUAL(purgeable_region_unlock(region), 0);
      EXPECT(!says_lost(region, by_looking));
      EXPECT_EQUAL(purgeable_region_lock(region), purgeable_outcome_intact);
      EXPECT(check_pattern(purgeable_region_bytes(region), length, 50 + page));
      EXPECT_EQUAL(purgeable_region_destroy(region), 0);
    }
  }
}

// After a read of a discarded page mincore calls it resident: the zero page is mapped.
void touched_before_asked(case_report_t *report) {
  NEED_EXACT_DISCARDS();
  for (question_t question = by_lock; question < questions; question++) {
    purgeable_region_t *region = filled_region(PAGES * PAGE, &at_once, 3);
    REQUIRE(region != NULL);
    volatile const char *bytes = purgeable_region_bytes(region);
    REQUIRE(kernel_discard(purgeable_region_bytes(region), PAGES * PAGE) > 0);
    int sum = 0;
    for (size_t page = 0; page < PAGES; page++) sum += bytes[page * PAGE + 17];
    size_t resident = 0;
    EXPECT_EQUAL(purgeable_region_resident_bytes(region, &resident), 0);
    EXPECT_EQUAL(resident, PAGES * PAGE);
    EXPECT(says_lost(region, question));
    EXPECT(sum >= 0 || sum < 0);
    EXPECT_EQUAL(purgeable_region_destroy(region), 0);
  }
}

// MARK: Zeros

void zeros_cannot_be_lost(case_report_t *report) {
  const size_t length = PAGES * PAGE;
  purgeable_region_t *region = NULL;
  REQUIRE(purgeable_region_create(length, &at_once, &region) == 0);
  EXPECT_EQUAL(purgeable_region_unlock(region), 0);
  for (int round = 0; round < 3; round++) {
    (void)kernel_discard(purgeable_region_bytes(region), length);
    discard_exactly(purgeable_region_bytes(region), length);
    EXPECT(!purgeable_region_is_discarded(region));
    char buffer[64];
    memset(buffer, 1, sizeof buffer);
    EXPECT_EQUAL(purgeable_region_read(region, PAGE - 32, 64, buffer), purgeable_outcome_intact);
    for (size_t i = 0; i < sizeof buffer; i++) EXPECT_EQUAL(buffer[i], 0);
    EXPECT_EQUAL(purgeable_region_lock(region), purgeable_outcome_intact);
    EXPECT_EQUAL(purgeable_region_unlock(region), 0);
  }
  // One page of nine has content: the others may go without harm, this one may not.
  EXPECT_EQUAL(purgeable_region_lock_for_writing(region), purgeable_outcome_intact);
  char *bytes = purgeable_region_bytes(region);
  fill_pattern(bytes + 4 * PAGE, PAGE, 1);
  EXPECT_EQUAL(purgeable_region_unlock(region), 0);
  discard_exactly(bytes, 4 * PAGE);
  discard_exactly(bytes + 5 * PAGE, 4 * PAGE);
  EXPECT_EQUAL(purgeable_region_lock(region), purgeable_outcome_intact);
  EXPECT(check_pattern(bytes + 4 * PAGE, PAGE, 1));
  EXPECT_EQUAL(bytes[4 * PAGE - 1] | bytes[5 * PAGE], 0);
  EXPECT_EQUAL(purgeable_region_unlock(region), 0);
  discard_exactly(bytes + 4 * PAGE, 1);
  EXPECT_EQUAL(purgeable_region_lock(region), purgeable_outcome_discarded);
  EXPECT_EQUAL(purgeable_region_destroy(region), 0);
}

// Each page in turn becomes zeros, is on offer so, and gets content again: nothing looks lost, nothing is lost unseen.
void zeros_then_written(case_report_t *report) {
  const size_t length = PAGES * PAGE;
  purgeable_region_t *region = filled_region(length, &at_once, 1);
  REQUIRE(region != NULL);
  char *bytes = purgeable_region_bytes(region);
  for (size_t page = 0; page < PAGES; page++) {
    EXPECT_EQUAL(purgeable_region_lock_for_writing(region), purgeable_outcome_intact);
    memset(bytes + page * PAGE, 0, PAGE);
    EXPECT_EQUAL(purgeable_region_unlock(region), 0);
    size_t resident = 0;
    EXPECT_EQUAL(purgeable_region_resident_bytes(region, &resident), 0);
    const char *reason;
    if (kernel_discards(&reason)) EXPECT_EQUAL(resident, length - PAGE);
    (void)kernel_discard(bytes + page * PAGE, PAGE);
    EXPECT_EQUAL(purgeable_region_lock_for_writing(region), purgeable_outcome_intact);
    EXPECT_EQUAL(bytes[page * PAGE], 0);
    fill_pattern(bytes, length, page + 2);
    EXPECT_EQUAL(purgeable_region_unlock(region), 0);
    EXPECT_EQUAL(purgeable_region_lock(region), purgeable_outcome_intact);
    EXPECT(check_pattern(bytes, length, page + 2));
    EXPECT_EQUAL(purgeable_region_unlock(region), 0);
    EXPECT(!purgeable_region_is_discarded(region));
  }
  discard_exactly(bytes + 3 * PAGE, 1);
  EXPECT(purgeable_region_is_discarded(region));
  EXPECT_EQUAL(purgeable_region_destroy(region), 0);
}

// The one non-zero byte of a page moves through it; each time its loss is found, and each time the page is rescued by it.
void sparse_witnesses(case_report_t *report) {
  NEED_EXACT_DISCARDS();
  purgeable_region_t *region = NULL;
  REQUIRE(purgeable_region_create(2 * PAGE, &at_once, &region) == 0);
  unsigned char *bytes = purgeable_region_bytes(region);
  const size_t places[] = {0, 1, 7, 8, 15, 31, 32, 33, PAGE / 2, PAGE - 9, PAGE - 8, PAGE - 1};
  for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
    memset(bytes, 0, 2 * PAGE);
    bytes[PAGE + places[i]] = 0x80;
    EXPECT_EQUAL(purgeable_region_unlock(region), 0);
    REQUIRE(purgeable_region_lock(region) == purgeable_outcome_intact);
    EXPECT_EQUAL(kernel_discard(bytes + PAGE, PAGE), 0);
    EXPECT_EQUAL(bytes[PAGE + places[i]], 0x80);
    EXPECT_EQUAL(purgeable_region_unlock(region), 0);
    EXPECT_EQUAL(kernel_discard(bytes + PAGE, PAGE), 1);
    EXPECT_EQUAL(purgeable_region_lock(region), purgeable_outcome_discarded);
    REQUIRE(purgeable_region_refill(region) == 0);
  }
  EXPECT_EQUAL(purgeable_region_destroy(region), 0);
}

// MARK: Reading without lock

void read_outcomes(case_report_t *report) {
  const size_t length = PAGES * PAGE - 3;
  static unsigned char buffer[PAGES << 16];
  purgeable_region_t *region = filled_region(length, &at_once, 21);
  REQUIRE(region != NULL);
  const unsigned char *bytes = purgeable_region_bytes(region);
  uint64_t state = report->seed;
  uint64_t calls = purgeable_testing_call_count(purgeable_testing_call_any);
  for (int i = 0; i < 3000; i++) {
    size_t offset = next_random(&state) % length;
    size_t count = next_random(&state) % (length - offset + 1);
    memset(buffer, 0, sizeof buffer);
    EXPECT_EQUAL(purgeable_region_read(region, offset, count, buffer), purgeable_outcome_intact);
    // Patterns have no zero byte: bytes that are not copied stay 0, and nothing is copied behind the end.
    REQUIRE(memcmp(buffer, bytes + offset, count) == 0 && buffer[count] == 0);
  }
  EXPECT_EQUAL(purgeable_testing_call_count(purgeable_testing_call_any), calls);
  EXPECT_EQUAL(purgeable_region_read(region, 0, length, buffer), purgeable_outcome_intact);
  EXPECT(check_pattern(buffer, length, 21));
  EXPECT_EQUAL(purgeable_region_lock_count(region), 0);
  // The reads left the offer standing.
  const char *reason;
  if (kernel_discards(&reason)) EXPECT_EQUAL(purgeable_region_offered_bytes(region), PAGES * PAGE);
  // A lock for reading does not disturb reads; one for writing does, until the last unlock.
  EXPECT_EQUAL(purgeable_region_lock(region), purgeable_outcome_intact);
  EXPECT_EQUAL(purgeable_region_read(region, 5, 500, buffer), purgeable_outcome_intact);
  EXPECT_EQUAL(purgeable_region_lock_for_writing(region), purgeable_outcome_intact);
  EXPECT_EQUAL(purgeable_region_read(region, 5, 500, buffer), purgeable_outcome_busy);
  EXPECT_EQUAL(purgeable_region_read(region, 5, 0, NULL), purgeable_outcome_intact);
  EXPECT_EQUAL(purgeable_region_unlock(region), 0);
  EXPECT_EQUAL(purgeable_region_read(region, 5, 500, buffer), purgeable_outcome_busy);
  EXPECT_EQUAL(purgeable_region_unlock(region), 0);
  EXPECT_EQUAL(purgeable_region_read(region, 5, 500, buffer), purgeable_outcome_intact);
  EXPECT_EQUAL(memcmp(buffer, bytes + 5, 500), 0);
  EXPECT_EQUAL(purgeable_region_destroy(region), 0);
}

void read_of_pages_touched(case_report_t *report) {
  static char buffer[PAGES << 16];
  const size_t page = PAGE;
  // Page 4 is lost. Ranges that do not touch it are intact; those that do are not, and then all of it is known to be lost.
  const struct {
    size_t offset, length;
    bool is_lost;
  } ranges[] = {{0, page, false},           {0, 4 * page, false},      {4 * page - 1, 1, false}, {5 * page, 4 * page, false},
                {5 * page, 1, false},       {4 * page - 1, 2, true},   {4 * page, 1, true},      {5 * page - 1, 1, true},
                {5 * page - 1, 2, true},    {3 * page + 9, 2 * page, true}, {0, 9 * page, true}, {page / 2, page, false},
                {2 * page + 1, 2 * page - 1, false}};
  for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++) {
    purgeable_region_t *region = filled_region(PAGES * page, &at_once, 2);
    REQUIRE(region != NULL);
    char *bytes = purgeable_region_bytes(region);
    discard_exactly(bytes + 4 * page, 1);
    purgeable_outcome_t outcome = purgeable_region_read(region, ranges[i].offset, ranges[i].length, buffer);
    EXPECT_EQUAL(outcome, ranges[i].is_lost ? purgeable_outcome_discarded : purgeable_outcome_intact);
    if (!ranges[i].is_lost) EXPECT_EQUAL(memcmp(buffer, bytes + ranges[i].offset, ranges[i].length), 0);
    if (ranges[i].is_lost) EXPECT_EQUAL(purgeable_region_read(region, 0, 1, buffer), purgeable_outcome_discarded);
    EXPECT(purgeable_region_is_discarded(region));
    EXPECT_EQUAL(purgeable_region_destroy(region), 0);
  }
}

// MARK: After a loss

void loss_gives_back(case_report_t *report) {
  purgeable_region_t *region = filled_region(PAGES * PAGE, &at_once, 2);
  REQUIRE(region != NULL);
  discard_exactly((char *)purgeable_region_bytes(region) + (PAGES - 1) * PAGE, 1);
  EXPECT_EQUAL(purgeable_region_lock(region), purgeable_outcome_discarded);
  size_t resident = 1;
  EXPECT_EQUAL(purgeable_region_resident_bytes(region, &resident), 0);
  EXPECT_EQUAL(resident, 0);
  EXPECT_EQUAL(purgeable_region_destroy(region), 0);
}

void offered_again(case_report_t *report) {
  NEED_EXACT_DISCARDS();
  purgeable_region_t *region = filled_region(PAGES * PAGE, NULL, 2);
  REQUIRE(region != NULL);
  for (uint64_t round = 0; round < 200; round++) {
    EXPECT_EQUAL(purgeable_offer_pending(NULL), 0);
    EXPECT_EQUAL(purgeable_region_offered_bytes(region), PAGES * PAGE);
    bool writes = round % 3 == 0;
    REQUIRE((writes ? purgeable_region_lock_for_writing(region) : purgeable_region_lock(region)) == purgeable_outcome_intact);
    (void)kernel_discard(purgeable_region_bytes(region), PAGES * PAGE);
    REQUIRE(check_pattern(purgeable_region_bytes(region), PAGES * PAGE, round == 0 ? 2 : (round - 1) / 3 * 3));
    if (writes) fill_pattern(purgeable_region_bytes(region), PAGES * PAGE, round);
    EXPECT_EQUAL(purgeable_region_unlock(region), 0);
  }
  EXPECT_EQUAL(purgeable_region_destroy(region), 0);
}

// Where a page is cleared by hand, its first word that is not 0 goes first: a read that copies any zero must find that one gone,
// whatever was written first.
void first_word_is_witness(case_report_t *report) {
  purgeable_region_t *region = NULL;
  REQUIRE(purgeable_region_create(PAGE, NULL, &region) == 0);
  volatile uint64_t *words = purgeable_region_bytes(region);
  words[100] = 7;
  EXPECT_EQUAL(purgeable_region_unlock(region), 0);
  REQUIRE(purgeable_region_lock_for_writing(region) == purgeable_outcome_intact);
  for (size_t i = 0; i < 100; i++) words[i] = i + 1;
  EXPECT_EQUAL(purgeable_region_unlock(region), 0);
  uint64_t copy[104];
  EXPECT_EQUAL(purgeable_region_read(region, 0, sizeof copy, copy), purgeable_outcome_intact);
  EXPECT(copy[0] == 1 && copy[99] == 100 && copy[100] == 7);
  words[0] = 0;
  EXPECT_EQUAL(purgeable_region_read(region, 0, sizeof copy, copy), purgeable_outcome_discarded);
  EXPECT_EQUAL(purgeable_region_destroy(region), 0);
}
