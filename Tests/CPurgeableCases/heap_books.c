// SPDX-License-Identifier: MIT
// The slab heap, third part: its statistics, against a model and against the kernel; limits, modes, mlock.

#include "heap_cases.h"

#include <sys/syscall.h>

// MARK: Statistics

// Random operations of one thread beside a model of the sums, compared after each step.
void heap_books_after_each_step(case_report_t *report) {
  NEED_OFFERS();
  enum { SLOTS = 300 };
  static element_t elements[SLOTS];
  static uint8_t states[SLOTS];  // 0 free, 1 being written, 2 committed, 3 and above: locked so often less 2
  memset(states, 0, sizeof states);
  MAKE_HEAP(heap, .slab_bytes = 16 * PAGE, .keeps_tags = true);
  uint64_t random = report->seed, payload = 0, locked = 0, count = 0;
  for (int step = 0; step < 4000 && report->failure_count == 0; step++) {
    uint64_t number = next_random(&random);
    element_t *one = &elements[number % SLOTS];
    uint8_t *state = &states[number % SLOTS];
    switch ((number >> 32) % 8) {
      case 0:
      case 1:
      case 2:
        if (*state == 0) {
          void *bytes;
          one->length = 1 + (number >> 40) % ((number >> 36) % 16 == 0 ? 100000 : 2000);
          REQUIRE(purgeable_heap_allocate_in(heap, 0, one->length, number, &one->reference, &bytes) == 0);
          *one = (element_t){one->reference, bytes, one->length, number};
          *state = 1;
          locked += one->length;
        } else if (*state == 1) {
          fill_pattern(one->bytes, one->length, one->number);
          EXPECT_EQUAL(purgeable_heap_commit(heap, one->reference), 0);
          *state = 2;
          locked -= one->length, payload += one->length, count++;
        }
        break;
      case 3:
        if (*state >= 2 && *state < 200) {
          EXPECT_EQUAL(purgeable_heap_lock(heap, one->reference, NULL, NULL), purgeable_outcome_intact);
          ++*state;
          locked += one->length;
        }
        break;
      case 4:
        if (*state >= 3) {
          EXPECT(check_pattern(one->bytes, one->length, one->number));
          EXPECT_EQUAL(purgeable_heap_unlock(heap, one->reference), 0);
          --*state;
          locked -= one->length;
        }
        break;
      case 5:
        if (*state == 1 || *state == 2) {
          EXPECT_EQUAL(purgeable_heap_free(heap, one->reference), 0);
          if (*state == 1) locked -= one->length;
          if (*state == 2) payload -= one->length, count--;
          *state = 0;
        }
        break;
      case 6:
        if (*state >= 2) EXPECT(is_intact(heap, one));
        break;
      case 7:
        if (number >> 61 == 0) EXPECT_EQUAL(purgeable_heap_offer_idle(heap, NULL), 0);
        if (number >> 61 == 1) EXPECT_EQUAL(purgeable_heap_trim(heap, NULL), 0);
        if (number >> 61 == 2) EXPECT_EQUAL(purgeable_heap_sweep(heap, NULL), 0);
        if (number >> 61 == 3) EXPECT_EQUAL(purgeable_stream_seal(heap, 0), 0);
        break;
    }
    // A walk over all granules, which is most of the time: in the gate now and then.
    if (report->is_full || step % 16 == 0) EXPECT_VALID(heap);
    purgeable_heap_statistics_t now = heap_statistics(heap);
    EXPECT_EQUAL(now.memory.payload_bytes, payload);
    EXPECT_EQUAL(now.memory.locked_bytes, locked);
    EXPECT_EQUAL(now.element_count, count);
    EXPECT(now.memory.resident_bytes <= now.memory.held_bytes && now.memory.offered_bytes <= now.memory.held_bytes);
    EXPECT(now.memory.held_bytes <= purgeable_heap_held_bytes(heap) && now.memory.held_bytes >= payload);
    EXPECT_EQUAL(now.memory.ordinary_bytes, purgeable_heap_ordinary_bytes(heap));
    // The slabs' figures add up to the heap's.
    uint64_t living = 0, living_bytes = 0, held = 0, slabs = 0;
    purgeable_slab_t slab;
    for (int error = purgeable_stream_oldest(heap, 0, &slab); error == 0; error = purgeable_slab_next(heap, slab, &slab)) {
      purgeable_slab_information_t information;
      EXPECT_EQUAL(purgeable_slab_information(heap, slab, &information), 0);
      living += information.element_count, living_bytes += information.payload_bytes;
      held += information.held_bytes, slabs++;
    }
    EXPECT_EQUAL(living, count);
    EXPECT_EQUAL(living_bytes, payload);
    EXPECT_EQUAL(held + now.kept_bytes, now.memory.held_bytes);
    uint64_t charged = purgeable_heap_charged_bytes(heap);
    EXPECT_EQUAL(charged + now.kept_bytes, purgeable_heap_held_bytes(heap) - now.memory.discarded_bytes);
    EXPECT_EQUAL(slabs, now.slab_count);
  }
  for (size_t i = 0; i < SLOTS; i++) {
    for (; states[i] >= 3; states[i]--) EXPECT_EQUAL(purgeable_heap_unlock(heap, elements[i].reference), 0);
    if (states[i] != 0) EXPECT_EQUAL(purgeable_heap_free(heap, elements[i].reference), 0);
  }
  EXPECT_EQUAL(purgeable_stream_seal(heap, 0), 0);
  EXPECT_VALID(heap);
  purgeable_heap_statistics_t end = heap_statistics(heap);
  EXPECT_EQUAL(end.memory.held_bytes + end.memory.payload_bytes + end.memory.locked_bytes + end.memory.resident_bytes, 0);
  EXPECT_EQUAL(end.slab_count, 0);
  EXPECT_EQUAL(purgeable_heap_held_bytes(heap), 0);
  END_HEAP(heap);
}

// Sums a field of /proc/self/smaps over the heap's mappings, which cover [from, from + length). -1 where it cannot be read.
static long from_smaps(const char *field, const void *from, size_t length) {
  FILE *file = fopen("/proc/self/smaps", "r");
  if (file == NULL) return -1;
  char line[512];
  bool inside = false;
  long sum = 0;
  size_t name = strlen(field);
  while (fgets(line, sizeof line, file) != NULL) {
    char *end;
    unsigned long start = strtoul(line, &end, 16);
    if (*end == '-') {
      unsigned long stop = strtoul(end + 1, NULL, 16);
      inside = start < (uintptr_t)from + length && stop > (uintptr_t)from;
    } else if (inside && strncmp(line, field, name) == 0 && line[name] == ':') {
      sum += strtol(line + name + 1, NULL, 10) * 1024;
    }
  }
  (void)fclose(file);
  return sum;
}

void heap_books_against_kernel(case_report_t *report) {
  NEED_EXACT_DISCARDS();
  MAKE_HEAP(heap, .chunk_bytes = (size_t)16 << 20);
  enum { COUNT = 4000 };
  static element_t elements[COUNT];
  for (size_t i = 0; i < COUNT; i++) REQUIRE(make(heap, 1000 + i % 1000, i, &elements[i]) == 0);
  const void *base = (const char *)elements[0].bytes - PURGEABLE_HEADER_BYTES;
  const size_t length = (size_t)16 << 20;
  if (from_smaps("Rss", base, length) < 0) SKIP("no /proc/self/smaps");
  // Kernels that keep no names for mappings may merge the chunk with the heap's control page.
  const long foreign = from_smaps("Rss", base, length) - (long)heap_statistics(heap).memory.resident_bytes;
  EXPECT(foreign == 0 || foreign == (long)PAGE);
  EXPECT_EQUAL(from_smaps("LazyFree", base, length), 0);
  EXPECT_EQUAL(heap_statistics(heap).memory.offered_bytes, 0);
  EXPECT_EQUAL(purgeable_stream_seal(heap, 0), 0);
  EXPECT_EQUAL(offer_all(heap), 0);
  // Each CPU keeps up to 31 pages back in a batch of its own.
  const long batches = 31 * (long)PAGE * sysconf(_SC_NPROCESSORS_CONF);
  for (int round = 0; round < 3; round++) {
    purgeable_heap_statistics_t now = heap_statistics(heap);
    long lazy = from_smaps("LazyFree", base, length);
    EXPECT_EQUAL(from_smaps("Rss", base, length) - foreign, now.memory.resident_bytes);
    EXPECT(lazy <= (long)now.memory.offered_bytes && lazy >= (long)now.memory.offered_bytes - batches);
    EXPECT_EQUAL(now.memory.held_bytes, purgeable_heap_held_bytes(heap));
    if (round == 0) {
      EXPECT_EQUAL(now.memory.offered_bytes, now.memory.held_bytes);
      // Reads change no figure; locks take pages off offer.
      for (size_t i = 0; i < COUNT; i++) EXPECT(is_intact(heap, &elements[i]));
      EXPECT_EQUAL(from_smaps("LazyFree", base, length), lazy);
      for (size_t i = 0; i < COUNT / 2; i++) {
        EXPECT_EQUAL(purgeable_heap_lock(heap, elements[i].reference, NULL, NULL), purgeable_outcome_intact);
      }
    } else if (round == 1) {
      EXPECT(now.memory.offered_bytes < now.memory.held_bytes * 11 / 20);
      for (size_t i = 0; i < COUNT / 2; i++) EXPECT_EQUAL(purgeable_heap_unlock(heap, elements[i].reference), 0);
      for (size_t i = COUNT / 2; i < COUNT; i++) (void)kernel_discard(elements[i].bytes, elements[i].length);
      EXPECT_EQUAL(purgeable_heap_sweep(heap, NULL), 0);
    } else {
      EXPECT_EQUAL(now.memory.held_bytes, now.memory.resident_bytes + now.memory.discarded_bytes);
      EXPECT(now.memory.discarded_bytes > now.memory.held_bytes / 3);
    }
  }
  END_HEAP(heap);
}

// MARK: Limits, modes, mlock

void heap_limits(case_report_t *report) {
  const size_t slab = 16 * PAGE, limit = 8 * slab;
  MAKE_HEAP(heap, .byte_limit = limit, .slab_bytes = slab);
  enum { MOST = 1000 };
  static element_t elements[MOST];
  size_t count = 0;
  int error;
  while ((error = make(heap, PER_PAGE(3000), count, &elements[count])) == 0) {
    EXPECT(purgeable_heap_held_bytes(heap) <= limit);
    REQUIRE(++count < MOST);
  }
  EXPECT_EQUAL(error, ENOMEM);
  EXPECT(count * PER_PAGE(3000) > limit * 8 / 10);
  purgeable_heap_statistics_t before = heap_statistics(heap), after;
  purgeable_reference_t reference;
  void *bytes;
  for (int i = 0; i < 3; i++) {
    EXPECT_EQUAL(purgeable_heap_allocate(heap, i == 0 ? PER_PAGE(3000) : i == 1 ? slab : limit + 1, &reference, &bytes), ENOMEM);
    after = heap_statistics(heap);
    EXPECT(memcmp(&before, &after, sizeof after) == 0);
  }
  for (size_t i = 0; i < count; i++) EXPECT(is_intact(heap, &elements[i]));
  // A limit of the call's own, in place of the heap's: smaller, larger, none.
  size_t held = purgeable_heap_charged_bytes(heap);
  EXPECT_EQUAL(purgeable_stream_seal(heap, 0), 0);
  EXPECT_EQUAL(purgeable_heap_allocate_within(heap, 0, 8, 0, held, &reference, &bytes), ENOMEM);
  EXPECT_EQUAL(purgeable_heap_charged_bytes(heap), held);
  EXPECT_EQUAL(purgeable_heap_allocate_within(heap, 0, 8, 0, held + slab, &reference, &bytes), 0);
  EXPECT_EQUAL(purgeable_heap_free(heap, reference), 0);
  EXPECT_EQUAL(purgeable_heap_allocate_within(heap, 0, 100 * limit, 0, 0, &reference, &bytes), 0);
  EXPECT_EQUAL(purgeable_heap_free(heap, reference), 0);
  EXPECT_EQUAL(purgeable_heap_allocate(heap, 100 * limit, &reference, &bytes), ENOMEM);
  EXPECT_EQUAL(purgeable_stream_seal(heap, 0), 0);
  EXPECT_EQUAL(purgeable_heap_charged_bytes(heap), held);
  // The limit is raised, lowered below what is held, and lifted.
  EXPECT_EQUAL(purgeable_heap_set_byte_limit(heap, limit + slab), 0);
  EXPECT_EQUAL(make(heap, PER_PAGE(3000), count, &elements[count]), 0);
  count++;
  EXPECT_EQUAL(purgeable_heap_set_byte_limit(heap, 1), 0);
  EXPECT_EQUAL(purgeable_stream_seal(heap, 0), 0);
  EXPECT_EQUAL(purgeable_heap_allocate(heap, 8, &reference, &bytes), ENOMEM);
  for (size_t i = 0; i < count; i++) EXPECT(is_intact(heap, &elements[i]));
  EXPECT_EQUAL(purgeable_heap_set_byte_limit(heap, 0), 0);
  EXPECT_EQUAL(make(heap, 100 * limit, 5, &elements[count]), 0);
  EXPECT(is_intact(heap, &elements[count]));
  END_HEAP(heap);
  // A limit below one slab.
  MAKE_HEAP(tiny, .byte_limit = 1);
  EXPECT_EQUAL(purgeable_heap_allocate(tiny, 1, &reference, &bytes), ENOMEM);
  EXPECT_EQUAL(heap_statistics(tiny).mapped_bytes, 0);
  END_HEAP(tiny);
}

static uint64_t free_calls(void) { return purgeable_testing_call_count(purgeable_testing_call_madvise_free); }

void heap_modes(case_report_t *report) {
  NEED_OFFERS();
  for (int mode = 0; mode < 3; mode++) {
    MAKE_HEAP(heap, .offering = (purgeable_offering_t)mode);
    element_t element;
    uint64_t calls = free_calls();
    REQUIRE(make(heap, 3 * PAGE, 1, &element) == 0 && purgeable_stream_seal(heap, 0) == 0);
    bool immediate = mode == purgeable_offering_immediate, never = mode == purgeable_offering_never;
    EXPECT((free_calls() > calls) == immediate);
    EXPECT_EQUAL(heap_statistics(heap).memory.offered_bytes, immediate ? heap_statistics(heap).memory.held_bytes : 0);
    size_t offered = 99;
    EXPECT_EQUAL(purgeable_heap_offer_idle(heap, &offered), 0);
    EXPECT(mode == 0 ? offered == heap_statistics(heap).memory.held_bytes : never ? offered == 0 : true);
    EXPECT_EQUAL(purgeable_heap_offer_idle(heap, NULL), 0);
    EXPECT(!purgeable_heap_has_pending(heap));
    EXPECT_EQUAL(heap_statistics(heap).memory.offered_bytes, never ? 0 : heap_statistics(heap).memory.held_bytes);
    // A lock and its unlock: offered once more in immediate mode, and at the next call in deferred mode.
    calls = free_calls();
    EXPECT(locks_intact(heap, &element));
    EXPECT_EQUAL(free_calls() - calls, immediate);
    EXPECT_EQUAL(heap_statistics(heap).memory.offered_bytes, immediate ? heap_statistics(heap).memory.held_bytes : 0);
    const char *reason;
    if (never && kernel_discards(&reason)) {
      EXPECT_EQUAL(kernel_discard(element.bytes, element.length), 0);
      EXPECT(is_intact(heap, &element));
    }
    EXPECT_EQUAL(purgeable_heap_free(heap, element.reference), 0);
    EXPECT_EQUAL(heap_statistics(heap).memory.held_bytes, 0);
    END_HEAP(heap);
  }
}

// First offers go by streams; pages that a lock took off offer are offered by address, whatever the stream, and only they are: so
// few calls are needed.
void heap_later_offers(case_report_t *report) {
  NEED_OFFERS();
  enum { SLABS = 24 };
  MAKE_HEAP(heap, .slab_bytes = 16 * PAGE);
  purgeable_stream_t streams[2] = {0};
  REQUIRE(purgeable_stream_create(heap, &streams[1]) == 0);
  element_t elements[2 * SLABS];
  // Two elements fill a slab to its last page; the streams take slabs in turn.
  for (size_t i = 0; i < 2 * SLABS; i++) REQUIRE(make_in(heap, streams[i / 2 % 2], 8 * PAGE - 300, i, &elements[i]) == 0);
  for (size_t i = 0; i < 2; i++) EXPECT_EQUAL(purgeable_stream_seal(heap, streams[i]), 0);
  uint64_t calls = free_calls();
  EXPECT_EQUAL(purgeable_heap_offer_idle(heap, NULL), 0);
  EXPECT_EQUAL(free_calls() - calls, SLABS);
  EXPECT_EQUAL(offer_all(heap), 0);
  uint64_t held = heap_statistics(heap).memory.held_bytes;
  EXPECT_EQUAL(heap_statistics(heap).memory.offered_bytes, held);

  for (size_t i = 0; i < 2 * SLABS; i++) EXPECT(locks_intact(heap, &elements[i]));
  EXPECT(heap_statistics(heap).memory.offered_bytes < held / 8);
  calls = free_calls();
  EXPECT_EQUAL(purgeable_heap_offer_idle(heap, NULL), 0);
  EXPECT_EQUAL(free_calls() - calls, 1);
  EXPECT_EQUAL(heap_statistics(heap).memory.offered_bytes, held);
  EXPECT(!purgeable_heap_has_pending(heap));

  EXPECT(locks_intact(heap, &elements[9]));
  size_t offered = 0;
  EXPECT_EQUAL(purgeable_heap_offer_idle(heap, &offered), 0);
  EXPECT(offered >= 7 * PAGE && offered <= 9 * PAGE);
  for (size_t i = 0; i < 2 * SLABS; i++) EXPECT(is_intact(heap, &elements[i]));
  END_HEAP(heap);
}

// mlocked pages cannot be offered: the call says so, the statistics count it, and everything else works.
void heap_mlocked(case_report_t *report) {
  NEED_OFFERS();
  MAKE_HEAP(heap, .slab_bytes = 16 * PAGE);
  element_t elements[4];
  for (size_t i = 0; i < 4; i++) REQUIRE(make(heap, 14 * PAGE / 2, i, &elements[i]) == 0);
  EXPECT_EQUAL(purgeable_stream_seal(heap, 0), 0);
  char *start = (char *)((uintptr_t)elements[0].bytes & ~(uintptr_t)(PAGE - 1));
  // The system call itself: the address sanitizer turns mlock() into nothing.
  if (syscall(SYS_mlock, start, 64 * PAGE) != 0) {
    END_HEAP(heap);
    SKIP("mlock is refused: %s", strerror(errno));
  }
  size_t offered = 99;
  EXPECT_EQUAL(purgeable_heap_offer_idle(heap, &offered), EINVAL);
  EXPECT_EQUAL(offered, 0);
  EXPECT_EQUAL(heap_statistics(heap).memory.offered_bytes, 0);
  EXPECT(heap_statistics(heap).refused_offer_count > 0);
  EXPECT_EQUAL(purgeable_heap_sweep(heap, &offered), 0);
  EXPECT_EQUAL(offered, 0);
  for (size_t i = 0; i < 4; i++) EXPECT(is_intact(heap, &elements[i]) && locks_intact(heap, &elements[i]));
  // The slab is given back by hand, and the next element there begins with zeros.
  purgeable_slab_t slab = slab_of(heap, &elements[0]);
  for (size_t i = 0; i < 2; i++) EXPECT_EQUAL(purgeable_heap_free(heap, elements[i].reference), 0);
  EXPECT_EQUAL(purgeable_slab_information(heap, slab, &(purgeable_slab_information_t){0}), ESTALE);
  purgeable_reference_t reference;
  void *bytes;
  REQUIRE(purgeable_heap_allocate(heap, 14 * PAGE / 2, &reference, &bytes) == 0);
  EXPECT_EQUAL(reference.place, elements[0].reference.place);
  size_t dirty = 0;
  for (size_t i = 0; i < 14 * PAGE / 2; i++) dirty += ((char *)bytes)[i] != 0;
  EXPECT_EQUAL(dirty, 0);
  EXPECT_EQUAL(purgeable_heap_commit(heap, reference), 0);
  // Unlocked by the program: offers work again, for pages that were used since.
  EXPECT_EQUAL(syscall(SYS_munlock, start, 64 * PAGE), 0);
  EXPECT(locks_intact(heap, &elements[2]));
  EXPECT_EQUAL(offer_all(heap), 0);
  EXPECT(heap_statistics(heap).memory.offered_bytes > 0);
  END_HEAP(heap);
}

// Pages that are offered by two calls, both refused: neither page counts as on offer.
void heap_refused_ranges(case_report_t *report) {
  NEED_OFFERS();
  // So far apart that no call covers both.
  MAKE_HEAP(heap, .slab_bytes = 64 * PAGE);
  enum { COUNT = 120 };
  element_t elements[COUNT];
  for (size_t i = 0; i < COUNT; i++) REQUIRE(make(heap, PAGE - 64, i, &elements[i]) == 0);
  EXPECT_EQUAL(purgeable_stream_seal(heap, 0), 0);
  EXPECT_EQUAL(offer_all(heap), 0);
  for (size_t i = 2; i < COUNT; i += 100) EXPECT(locks_intact(heap, &elements[i]));
  uint64_t offered = heap_statistics(heap).memory.offered_bytes;
  EXPECT(offered < heap_statistics(heap).memory.held_bytes);
  char *start = (char *)((uintptr_t)elements[0].bytes & ~(uintptr_t)(PAGE - 1));
  if (syscall(SYS_mlock, start, COUNT * PAGE) != 0) {
    END_HEAP(heap);
    SKIP("mlock is refused: %s", strerror(errno));
  }
  uint64_t calls = free_calls();
  EXPECT_EQUAL(purgeable_heap_offer_idle(heap, NULL), EINVAL);
  EXPECT(free_calls() - calls >= 2);
  EXPECT_EQUAL(heap_statistics(heap).memory.offered_bytes, offered);
  END_HEAP(heap);
}

void heap_ordinary_memory(case_report_t *report) {
  for (int tags = 0; tags < 2; tags++) {
    MAKE_HEAP(heap, .keeps_tags = tags == 1);
    uint64_t empty = purgeable_heap_ordinary_bytes(heap), count = 0;
    element_t element;
    while (purgeable_heap_held_bytes(heap) < (size_t)32 << 20) REQUIRE(make(heap, 200, count++, &element) == 0);
    uint64_t slabs = purgeable_heap_held_bytes(heap), grown = purgeable_heap_ordinary_bytes(heap) - empty;
    // 1 % of the slabs and 4 bytes an element, 8 more with tags that survive; a tag and its place are 12 bytes.
    uint64_t reach = slabs / 100 + count * (tags ? 12 : 4);
    EXPECT(grown <= reach + (tags ? count * 4 : 0));
    NOTE("%s tags: %.2f bytes an element and %.2f %% of the slabs", tags ? "with" : "without", (double)grown / (double)count,
         100 * (double)grown / (double)slabs);
    END_HEAP(heap);
  }
}
