// SPDX-License-Identifier: MIT
// Takes memory and gives it back, in waves of a second, until its parent ends: a neighbour for `.ci/repeat`. Takes a quarter of
// what is free, and 1 GiB at most.

#define _DEFAULT_SOURCE
#include <stdio.h>
#include <string.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

int main(void) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (;;) {
    size_t bytes = (size_t)sysconf(_SC_AVPHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE) / 4;
    if (bytes > (size_t)1 << 30) bytes = (size_t)1 << 30;
    void *taken = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (taken != MAP_FAILED) {
      memset(taken, 1, bytes);
      usleep(500000);
      munmap(taken, bytes);
    }
    usleep(500000);
  }
}
