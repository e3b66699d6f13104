// SPDX-License-Identifier: MIT
// The table of all cases, and the helpers they share.

#include "harness.h"

#include <endian.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/wait.h>
#include <time.h>

// MARK: The table

static const test_case_t *const groups[] = {
    harness_cases, region_cases, region_fill_cases, region_again_cases, region_storm_cases, region_fill_storm_cases,
    region_mixed_storm_cases, heap_cases, stream_cases, heap_storm_cases, heap_mixed_storm_cases, stale_cases, fault_cases,
    fault_table_cases, fork_cases, bounded_cases, bounded_region_cases,
    budget_cases, pending_cases, shared_bound_cases, chunk_cases, chunk_race_cases, book_cases, limit_cases, map_cases,
    pressure_cases, upkeep_cases, kept_cases, kept_rule_cases, heap_doubt_cases,
};

static const test_case_t *find(size_t index) {
  for (size_t group = 0; group < sizeof groups / sizeof groups[0]; group++) {
    for (const test_case_t *one = groups[group]; one->name != NULL; one++) {
      if (index-- == 0) return one;
    }
  }
  return NULL;
}

size_t cases_count(void) {
  size_t count = 0;
  while (find(count) != NULL) count++;
  return count;
}

const char *cases_name(size_t index) {
  const test_case_t *one = find(index);
  return one == NULL ? NULL : one->name;
}

bool cases_is_full(size_t index) {
  const test_case_t *one = find(index);
  return one != NULL && one->is_full;
}

static uint64_t from_environment(const char *name, uint64_t otherwise) {
  const char *text = getenv(name);
  if (text == NULL || *text == 0) return otherwise;
  char *end;
  errno = 0;
  uint64_t value = strtoull(text, &end, 0);
  if (errno != 0 || *end != 0 || value == 0) {
    fprintf(stderr, "%s: not a positive number: \"%s\"\n", name, text);
    exit(2);
  }
  return value;
}

void stay_on_one_processor(void) {
  int cpu = sched_getcpu();
  if (cpu < 0) return;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET((size_t)cpu, &one);
  (void)sched_setaffinity(0, sizeof one, &one);
}

void drain_processors(void) {
  cpu_set_t before;
  if (sched_getaffinity(0, sizeof before, &before) != 0) return;
  for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++) {
    if (!CPU_ISSET(cpu, &before)) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    if (sched_setaffinity(0, sizeof one, &one) != 0) continue;
    volatile char *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) continue;
    *page = 1;
    (void)madvise((void *)page, PAGE, MADV_FREE);
    (void)munmap((void *)page, PAGE);
  }
  (void)sched_setaffinity(0, sizeof before, &before);
}

void cases_run(size_t index, bool is_full, case_report_t *report) {
  memset(report, 0, sizeof *report);
  report->is_full = is_full || cases_is_full(index);
  report->scale = from_environment("PURGEABLE_STORM", 1);
  uint64_t now = (uint64_t)getpid() * 1000003u + (uint64_t)index;
  report->seed = from_environment("PURGEABLE_SEED", is_full ? next_random(&now) | 1 : 1);
  const test_case_t *one = find(index);
  REQUIRE(one != NULL);
  // A child that was killed is a failed expectation, and not the end of the program that writes to it.
  (void)signal(SIGPIPE, SIG_IGN);
  cpu_set_t processors;
  bool known = sched_getaffinity(0, sizeof processors, &processors) == 0;
  one->run(report);
  if (known) (void)sched_setaffinity(0, sizeof processors, &processors);
  purgeable_testing_fail(0, 0, 0, false);
  purgeable_testing_switch_off(0);
  purgeable_testing_slow_reads(0);
  if (report->failure_count != 0) report_note(report, "seed: PURGEABLE_SEED=%llu", (unsigned long long)report->seed);
}

// MARK: Reports

static void append(case_report_t *report, const char *format, va_list arguments) {
  size_t used = strlen(report->text);
  if (used + 2 >= sizeof report->text) return;
  (void)vsnprintf(report->text + used, sizeof report->text - used - 1, format, arguments);
  strcat(report->text, "\n");
}

void report_note(case_report_t *report, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  append(report, format, arguments);
  va_end(arguments);
}

void report_skip(case_report_t *report, const char *format, ...) {
  report->skipped = true;
  va_list arguments;
  va_start(arguments, format);
  append(report, format, arguments);
  va_end(arguments);
}

void report_failure(case_report_t *report, const char *file, int line, const char *what) {
  report->failure_count++;
  if (report->failure_count > 8) return;
  const char *slash = strrchr(file, '/');
  report_note(report, "%s:%d: not so: %s", slash == NULL ? file : slash + 1, line, what);
}

void report_equal(case_report_t *report, const char *file, int line, const char *what, long long actual, long long expected) {
  if (actual == expected) return;
  report->failure_count++;
  if (report->failure_count > 8) return;
  const char *slash = strrchr(file, '/');
  report_note(report, "%s:%d: %s is %lld, expected %lld", slash == NULL ? file : slash + 1, line, what, actual, expected);
}

// MARK: Time and children

uint64_t now_ns(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

span_t span_of(const case_report_t *report, uint64_t rounds, uint64_t milliseconds) {
  if (!report->is_full) return (span_t){.rounds = rounds * report->scale};
  return (span_t){.until_ms = now_ms() + milliseconds * report->scale};
}

int wait_for_child(pid_t child) {
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

static pthread_mutex_t *_Atomic awaited;
static _Atomic bool fork_waits;

static void wait_before_fork(void) {
  pthread_mutex_t *mutex = atomic_load(&awaited);
  if (mutex == NULL) return;
  atomic_store(&fork_waits, true);
  (void)pthread_mutex_lock(mutex);
  (void)pthread_mutex_unlock(mutex);
}

// Before all that is done before main, but for what the libraries do.
__attribute__((constructor(103))) static void add_handler(void) { (void)pthread_atfork(wait_before_fork, NULL, NULL); }

void cases_await_before_forks(pthread_mutex_t *mutex) {
  atomic_store(&fork_waits, false);
  atomic_store(&awaited, mutex);
}

bool cases_fork_waits(void) { return atomic_load(&fork_waits); }

// MARK: Content

// Eight bytes at a time: many cases write and read nothing but this.
static uint64_t pattern_word(uint64_t number, size_t index) {
  return htole64((number + index) * 0x9E3779B97F4A7C15u | 0x0101010101010101u);
}

void fill_pattern(void *bytes, size_t length, uint64_t number) {
  unsigned char *out = bytes;
  for (size_t i = 0; i < length; i += 8) {
    uint64_t word = pattern_word(number, i / 8);
    if (length - i >= 8) memcpy(out + i, &word, 8);
    else memcpy(out + i, &word, length - i);
  }
}

bool check_pattern(const void *bytes, size_t length, uint64_t number) {
  const unsigned char *in = bytes;
  for (size_t i = 0; i < length; i += 8) {
    uint64_t word = pattern_word(number, i / 8), found = word;
    if (length - i >= 8) memcpy(&found, in + i, 8);
    else memcpy(&found, in + i, length - i);
    if (found != word) return false;
  }
  return true;
}

// MARK: Real discards

#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT 21
#endif

// The first call drains this processor's batch of pages on their way to the kernel's lists, the second takes those too.
static bool page_out(char *from, size_t bytes) {
  for (int round = 0; round < 2; round++) {
    if (madvise(from, bytes, MADV_PAGEOUT) != 0) return false;
  }
  return true;
}

static long count_gone(char *from, size_t count) {
  unsigned char *pages = malloc(count);
  if (pages == NULL) return -1;
  long gone = 0;
  if (mincore(from, count * PAGE, pages) == 0) {
    for (size_t i = 0; i < count; i++) gone += (pages[i] & 1) == 0;
  }
  free(pages);
  return gone;
}

long kernel_discard(void *start, size_t length) {
  size_t page = PAGE;
  char *from = (char *)((uintptr_t)start & ~(page - 1));
  char *to = (char *)(((uintptr_t)start + length + page - 1) & ~(page - 1));
  size_t bytes = (size_t)(to - from);
  if (!page_out(from, bytes)) return -1;
  long gone = count_gone(from, bytes / page);
  if (gone < 0 || (size_t)gone == bytes / page) return gone;
  // Pages that were offered on another processor, before this thread was moved here, wait in that processor's batch.
  cpu_set_t before;
  if (sched_getaffinity(0, sizeof before, &before) != 0) return gone;
  for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++) {
    if (!CPU_ISSET(cpu, &before)) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    if (sched_setaffinity(0, sizeof one, &one) == 0) (void)page_out(from, bytes);
  }
  (void)sched_setaffinity(0, sizeof before, &before);
  return count_gone(from, bytes / page);
}

void discard_exactly(void *start, size_t length) {
  size_t page = PAGE;
  char *from = (char *)((uintptr_t)start & ~(page - 1));
  char *to = (char *)(((uintptr_t)start + length + page - 1) & ~(page - 1));
  (void)madvise(from, (size_t)(to - from), MADV_DONTNEED);
}

bool kernel_discards(const char **reason) {
  purgeable_probe_t probe;
  if (purgeable_probe(&probe) != 0) {
    *reason = "the probe could not map memory";
    return false;
  }
  *reason = purgeable_kernel_class_name(probe.kernel_class);
  if (probe.kernel_class == purgeable_kernel_class_works && !probe.confirmed_by_pageout) *reason = "no MADV_PAGEOUT here";
  return probe.kernel_class == purgeable_kernel_class_works && probe.confirmed_by_pageout;
}

bool kernel_offers(void) {
  purgeable_probe_t probe;
  if (purgeable_probe(&probe) != 0) return false;
  return probe.kernel_class == purgeable_kernel_class_works || probe.kernel_class == purgeable_kernel_class_partial ||
         probe.kernel_class == purgeable_kernel_class_no_op;
}

// MARK: Threads

void run_threads(size_t count, void *(*body)(void *), void *contexts, size_t context_size) {
  pthread_t *threads = calloc(count, sizeof *threads);
  if (threads == NULL) abort();
  for (size_t i = 0; i < count; i++) {
    if (pthread_create(&threads[i], NULL, body, (char *)contexts + i * context_size) != 0) abort();
  }
  for (size_t i = 0; i < count; i++) pthread_join(threads[i], NULL);
  free(threads);
}
