// SPDX-License-Identifier: MIT
// Filters of system calls (seccomp), with which tests simulate another kernel or a sandbox.

#include "harness.h"

#include <errno.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#if !__has_include(<linux/filter.h>) || !__has_include(<linux/seccomp.h>)
// Without the kernel's headers (musl alone) there are no filters.
bool kernel_answers(long call, unsigned advice, unsigned action) {
  (void)call, (void)advice, (void)action;
  return false;
}

bool cases_can_refuse(void) { return false; }
#else
#include <linux/filter.h>
#include <linux/seccomp.h>

bool kernel_answers(long call, unsigned advice, unsigned action) {
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
  const unsigned low_half = 4;
#else
  const unsigned low_half = 0;
#endif
  // Another call jumps to the end. Where any advice will do, both ways of the second jump lead to the action.
  struct sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)call, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (unsigned)offsetof(struct seccomp_data, args[2]) + low_half),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, advice, 0, advice == ANY_ADVICE ? 0 : 1),
      BPF_STMT(BPF_RET | BPF_K, action),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog program = {.len = sizeof code / sizeof code[0], .filter = code};
  // For the threads that exist already, as well as for later ones.
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0;
}

// A filter at address 0: the kernel finds that wrong before anything else, if it has filters at all.
bool cases_can_refuse(void) { return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, NULL, 0, 0) == -1 && errno == EFAULT; }
#endif

bool cases_refuse(cases_call_t call, int error) {
#ifdef SYS_renameat
  const long rename_number = SYS_renameat;
#else
  const long rename_number = SYS_renameat2;
#endif
  // process_madvise has one number on all processors, and older headers do not know it.
  const long numbers[] = {SYS_madvise, SYS_mincore, 440, SYS_getrandom, SYS_pwrite64, SYS_fsync, SYS_fdatasync, rename_number};
  return kernel_answers(numbers[call], ANY_ADVICE, ANSWER_ERRNO | (unsigned)error);
}

bool cases_refuse_advice(unsigned advice, int error) {
  return kernel_answers(SYS_madvise, advice, ANSWER_ERRNO | (unsigned)error);
}
