// SPDX-License-Identifier: MIT
// The probe: its results for this kernel, for one whose calls fail, and for kernels of each other kind, which a child simulates
// with a seccomp filter.

#include "region_cases.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>

void probe_answers(case_report_t *report) {
  purgeable_probe_t first, second;
  memset(&first, 0, sizeof first);
  memset(&second, 0, sizeof second);
  purgeable_testing_forget_probe();
  EXPECT_EQUAL(purgeable_probe(&first), 0);
  uint64_t calls = purgeable_testing_call_count(purgeable_testing_call_any);
  EXPECT_EQUAL(purgeable_probe(&second), 0);
  EXPECT_EQUAL(purgeable_testing_call_count(purgeable_testing_call_any), calls);
  EXPECT_EQUAL(first.kernel_class, second.kernel_class);
  EXPECT_EQUAL(first.confirmed_by_pageout, second.confirmed_by_pageout);
  EXPECT_EQUAL(first.page_size_bytes, sysconf(_SC_PAGESIZE));
  EXPECT_EQUAL(purgeable_page_size_bytes(), first.page_size_bytes);
  NOTE("%s, confirmed %d, wiped on fork %d (tried: %d), rseq %d, huge pages %d",
       purgeable_kernel_class_name(first.kernel_class), first.confirmed_by_pageout, first.wipe_on_fork, first.wipe_is_confirmed,
       first.rseq, first.huge_pages);
  const char *names[] = {"works", "immediate", "no-op", "unsupported", "mlocked", "partial"};
  for (int i = 0; i < 6; i++) EXPECT_EQUAL(strcmp(purgeable_kernel_class_name((purgeable_kernel_class_t)i), names[i]), 0);
}

void probe_classes_by_faults(case_report_t *report) {
  NEED_EXACT_DISCARDS();
  purgeable_probe_t probe;
#define PROBE_WITH(calls, n, error, and_after, expected_error) \
  purgeable_testing_forget_probe();                            \
  purgeable_testing_fail(calls, n, error, and_after);          \
  EXPECT_EQUAL(purgeable_probe(&probe), expected_error);       \
  EXPECT(purgeable_testing_has_failed());                      \
  no_faults()
  PROBE_WITH(purgeable_testing_call_mmap, 1, ENFILE, false, ENFILE);
  // No result was kept.
  EXPECT_EQUAL(purgeable_probe(&probe), 0);
  EXPECT_EQUAL(probe.kernel_class, purgeable_kernel_class_works);
  PROBE_WITH(purgeable_testing_call_madvise_free, 1, EINVAL, true, 0);
  EXPECT_EQUAL(probe.kernel_class, purgeable_kernel_class_unsupported);
  // The result is kept.
  EXPECT_EQUAL(purgeable_probe(&probe), 0);
  EXPECT_EQUAL(probe.kernel_class, purgeable_kernel_class_unsupported);
  PROBE_WITH(purgeable_testing_call_madvise_free, 1, EPERM, false, 0);
  EXPECT_EQUAL(probe.kernel_class, purgeable_kernel_class_unsupported);
  PROBE_WITH(purgeable_testing_call_madvise_free, 1, EINVAL, false, 0);
  EXPECT_EQUAL(probe.kernel_class, purgeable_kernel_class_mlocked);
  // The calls of the other kind: three flags of the mapping, the flag once more, then MADV_PAGEOUT.
  PROBE_WITH(purgeable_testing_call_madvise_other, 5, EINVAL, true, 0);
  EXPECT_EQUAL(probe.kernel_class, purgeable_kernel_class_works);
  EXPECT(!probe.confirmed_by_pageout && probe.wipe_on_fork);
  PROBE_WITH(purgeable_testing_call_madvise_other, 4, EINVAL, true, 0);
  EXPECT(!probe.wipe_on_fork);
  PROBE_WITH(purgeable_testing_call_munmap, 1, ENOMEM, false, 0);
  EXPECT_EQUAL(probe.kernel_class, purgeable_kernel_class_works);
  EXPECT(probe.confirmed_by_pageout);
#undef PROBE_WITH
  purgeable_testing_forget_probe();
  EXPECT_EQUAL(purgeable_probe(&probe), 0);
  EXPECT(probe.confirmed_by_pageout);
}

static bool probe_is(purgeable_kernel_class_t expected) {
  purgeable_probe_t probe;
  purgeable_testing_forget_probe();
  CHECK(purgeable_probe(&probe) == 0);
  CHECK(probe.kernel_class == expected);
  CHECK(expected == purgeable_kernel_class_works || !probe.confirmed_by_pageout);
  return true;
}

#if defined(__x86_64__) || defined(__aarch64__)
#define CAN_ANSWER_TRAPS 1
// MADV_FREE as on a swapless 4.5: the pages go at once.
static void drop_at_once(int number, siginfo_t *information, void *context) {
  (void)number, (void)information;
  ucontext_t *machine = context;
#if defined(__x86_64__)
  (void)madvise((void *)machine->uc_mcontext.gregs[REG_RDI], (size_t)machine->uc_mcontext.gregs[REG_RSI], MADV_DONTNEED);
  machine->uc_mcontext.gregs[REG_RAX] = 0;
#else
  (void)madvise((void *)machine->uc_mcontext.regs[0], (size_t)machine->uc_mcontext.regs[1], MADV_DONTNEED);
  machine->uc_mcontext.regs[0] = 0;
#endif
}

// Every offer is a discard there, and the library stays correct.
static bool use_of_immediate(void) {
  struct sigaction action = {.sa_sigaction = drop_at_once, .sa_flags = SA_SIGINFO};
  CHECK(sigaction(SIGSYS, &action, NULL) == 0);
  if (!kernel_answers(SYS_madvise, 8, ANSWER_TRAP)) _exit(77);
  CHECK(probe_is(purgeable_kernel_class_immediate));
  purgeable_region_t *region = filled_region(3 * PAGE, &at_once, 1);
  CHECK(region != NULL && purgeable_region_lock(region) == purgeable_outcome_discarded);
  return true;
}
#endif

static bool use_of_unsupported(void) {
  if (!kernel_answers(SYS_madvise, 8, ANSWER_ERRNO | EINVAL)) _exit(77);
  CHECK(probe_is(purgeable_kernel_class_unsupported));
  purgeable_region_t *region = filled_region(3 * PAGE, &at_once, 1);
  CHECK(region != NULL && purgeable_region_lock(region) == purgeable_outcome_intact);
  CHECK(check_pattern(purgeable_region_bytes(region), 3 * PAGE, 1));
  CHECK(purgeable_region_unlock(region) == 0 && purgeable_region_offered_bytes(region) == 0);
  CHECK(purgeable_region_discard(region) == 0 && purgeable_region_lock(region) == purgeable_outcome_discarded);
  return true;
}

static bool use_of_no_op(void) {
  if (!kernel_answers(SYS_madvise, 21, ANSWER_ERRNO)) _exit(77);
  return probe_is(purgeable_kernel_class_no_op);
}

static bool use_of_unconfirmed(void) {
  if (!kernel_answers(SYS_madvise, 21, ANSWER_ERRNO | EPERM)) _exit(77);
  return probe_is(purgeable_kernel_class_works);
}

void probe_classes_by_kernel(case_report_t *report) {
  NEED_EXACT_DISCARDS();
  bool (*const uses[])(void) = {
      use_of_unsupported, use_of_no_op, use_of_unconfirmed,
#if defined(CAN_ANSWER_TRAPS)
      use_of_immediate,
#endif
  };
  for (size_t i = 0; i < sizeof uses / sizeof uses[0]; i++) {
    int child = fork();
    if (child == 0) _exit(uses[i]() ? 0 : 1);
    int status = wait_for_child(child);
    if (status == 77) SKIP("no seccomp filters here");
    EXPECT_EQUAL(status, 0);
  }
}

// MARK: Kernels that say yes and do otherwise

static bool ignores_wipe(void) {
  if (!kernel_answers(SYS_madvise, 18, ANSWER_ERRNO)) _exit(77);
  purgeable_probe_t probe;
  purgeable_testing_forget_probe();
  CHECK(purgeable_probe(&probe) == 0);
  return !probe.wipe_is_confirmed || !probe.wipe_on_fork;
}

void probe_tries(case_report_t *report) {
  NEED_EXACT_DISCARDS();
  purgeable_probe_t probe;
  for (int i = 0; i < 5; i++) {
    purgeable_testing_pretend(purgeable_testing_pretence_half_offers);
    purgeable_testing_forget_probe();
    EXPECT_EQUAL(purgeable_probe(&probe), 0);
    EXPECT_EQUAL(probe.kernel_class, purgeable_kernel_class_partial);
    EXPECT(!probe.confirmed_by_pageout);
    purgeable_testing_pretend(purgeable_testing_pretence_no_wipe);
    purgeable_testing_forget_probe();
    EXPECT_EQUAL(purgeable_probe(&probe), 0);
    EXPECT_EQUAL(probe.kernel_class, purgeable_kernel_class_works);
    // A large process is not forked for a probe: then only the kernel's answer counts.
    EXPECT(!probe.wipe_on_fork || !probe.wipe_is_confirmed);
    if (!probe.wipe_is_confirmed) NOTE("too large to be forked");
    purgeable_testing_pretend(0);
    purgeable_testing_forget_probe();
    EXPECT_EQUAL(purgeable_probe(&probe), 0);
    EXPECT_EQUAL(probe.kernel_class, purgeable_kernel_class_works);
    EXPECT(probe.confirmed_by_pageout && !probe.huge_pages);
  }
  // No child of ours is left; a sanitizer may have one of its own.
  errno = 0;
  EXPECT(HAS_SANITIZER || (waitpid(-1, NULL, __WALL | WNOHANG) == -1 && errno == ECHILD));
  int child = fork();
  if (child == 0) _exit(ignores_wipe() ? 0 : 1);
  int status = wait_for_child(child);
  if (status == 77) SKIP("no seccomp filters here");
  EXPECT_EQUAL(status, 0);
}

// MARK: How each call is answered

void probe_calls_by_faults(case_report_t *report) {
  purgeable_call_answers_t answers;
  EXPECT_EQUAL(purgeable_probe_calls(NULL), EINVAL);
  const struct {
    unsigned call;
    uint64_t n;
    int *answer;
  } calls[] = {
      // The page's own mapping asks for small pages too, so the calls of the other kind begin with the second.
      {purgeable_testing_call_madvise_other, 2, &answers.no_huge_page},
      {purgeable_testing_call_madvise_other, 3, &answers.wipe_on_fork},
      {purgeable_testing_call_madvise_other, 4, &answers.dont_dump},
      {purgeable_testing_call_madvise_other, 5, &answers.page_out},
      {purgeable_testing_call_madvise_free, 1, &answers.offer},
      {purgeable_testing_call_madvise_dontneed, 1, &answers.give_back},
      {purgeable_testing_call_mincore, 1, &answers.mincore},
      {purgeable_testing_call_random, 1, &answers.random},
  };
  for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
    memset(&answers, 0, sizeof answers);
    purgeable_testing_fail(calls[i].call, calls[i].n, EPERM, false);
    EXPECT_EQUAL(purgeable_probe_calls(&answers), 0);
    EXPECT(purgeable_testing_has_failed());
    no_faults();
    EXPECT_EQUAL(*calls[i].answer, EPERM);
    for (size_t other = 0; other < sizeof calls / sizeof calls[0]; other++) {
      EXPECT(other == i || *calls[other].answer != EPERM);
    }
  }
  // Without its page the function fills in nothing.
  memset(&answers, 0x55, sizeof answers);
  purgeable_testing_fail(purgeable_testing_call_mmap, 1, ENFILE, false);
  EXPECT_EQUAL(purgeable_probe_calls(&answers), ENFILE);
  no_faults();
  EXPECT_EQUAL(answers.random, 0x55555555);
}

// How many signals ran a handler in the program, and in what is no process of the program's.
static _Atomic long signals_here, signals_elsewhere;
static long own_number;
static int told[2];

static void count_signal(int number) {
  (void)number;
  int kept = errno;
  bool is_here = syscall(SYS_getpid) == own_number;
  atomic_fetch_add(is_here ? &signals_here : &signals_elsewhere, 1);
  // The probe's child has memory of its own.
  if (!is_here && write(told[1], "x", 1) != 1) _exit(1);
  errno = kept;
}

// Sends signals into its process group until its parent ends. With pauses: under signals without one, the receiver hardly comes
// from one instruction to the next.
static void send_signals(void) {
  enum { PAUSE_US = 20 };
  (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (;;) {
    (void)kill(0, SIGUSR1);
    (void)usleep(PAUSE_US);
  }
}

// In a process group of its own, into which another process sends signals all the time.
static bool probe_among_signals(void) {
  enum { PROBES = 300 };
  purgeable_probe_t probe;
  CHECK(setpgid(0, 0) == 0 && pipe(told) == 0);
  own_number = syscall(SYS_getpid);
  CHECK(signal(SIGUSR1, SIG_IGN) != SIG_ERR);
  pid_t sender = fork();
  CHECK(sender >= 0);
  if (sender == 0) send_signals();
  const struct sigaction action = {.sa_handler = count_signal, .sa_flags = SA_RESTART};
  CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
  while (atomic_load(&signals_here) == 0) (void)usleep(100);
  for (int i = 0; i < PROBES; i++) {
    purgeable_testing_forget_probe();
    CHECK(purgeable_probe(&probe) == 0);
  }
  CHECK(kill(sender, SIGKILL) == 0 && wait_for_child(sender) == 1000 + SIGKILL);
  CHECK(close(told[1]) == 0);
  char byte;
  CHECK(read(told[0], &byte, 1) == 0);
  return true;
}

void probe_beside_signals(case_report_t *report) { IN_CHILD(probe_among_signals()); }

// A system-call filter as sandboxes have them: real refusals, of one call each.
static bool answers_of_a_filter(void) {
  purgeable_call_answers_t answers;
  CHECK(purgeable_probe_calls(&answers) == 0);
  purgeable_call_answers_t before = answers;
  if (!cases_refuse(cases_call_mincore, EPERM)) _exit(77);
  CHECK(purgeable_probe_calls(&answers) == 0);
  CHECK(answers.mincore == EPERM && answers.give_back == before.give_back && answers.offer == before.offer);
  CHECK(cases_refuse(cases_call_process_madvise, ENOSYS) && cases_refuse(cases_call_getrandom, EPERM));
  CHECK(purgeable_probe_calls(&answers) == 0);
  CHECK(answers.offer_by_descriptor == ENOSYS && answers.random == EPERM && answers.offer == before.offer);
  CHECK(cases_refuse(cases_call_madvise, EPERM));
  CHECK(purgeable_probe_calls(&answers) == 0);
  CHECK(answers.offer == EPERM && answers.give_back == EPERM && answers.wipe_on_fork == EPERM);
  return true;
}

void probe_calls_by_filter(case_report_t *report) {
  int child = fork();
  if (child == 0) _exit(answers_of_a_filter() ? 0 : 1);
  int status = wait_for_child(child);
  if (status == 77) SKIP("no seccomp filters here");
  EXPECT_EQUAL(status, 0);
}
