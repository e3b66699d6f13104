// SPDX-License-Identifier: MIT
// The sentinel of a read without lock, on the restartable-sequence area that glibc (2.35 and later) registers for every thread.
//
//   arm:    rseq->rseq_cs = &descriptor       descriptor: the "critical section" [1, 2), where no instruction of ours is
//   ...     copy, checks
//   holds:  rseq->rseq_cs == &descriptor ?
//
// On preemption, migration and signal delivery the kernel looks at rseq_cs; finding the instruction pointer outside of the
// section it clears the field and goes on (kernel/rseq.c, rseq_ip_fixup). It validates the descriptor first: version 0, an abort
// address outside the section, and the registered signature in the four bytes before that address, hence `landing`.
//
// Nothing between arming and testing may make a system call: from Linux 6.19 on the field is no longer cleared for a thread that
// was switched out inside one.
//
// The field is always left clear: a pointer into a library that was unloaded meanwhile would be fatal at the next preemption.

#include "internal.h"

#if defined(__has_include)
#if __has_include(<sys/rseq.h>)
#include <sys/rseq.h>
#define HAS_RSEQ 1
#endif
#endif

#if defined(HAS_RSEQ) && defined(RSEQ_SIG)

static const struct {
  uint32_t signature;
  uint32_t target;
} landing = {RSEQ_SIG, 0};

static struct rseq_cs descriptor __attribute__((aligned(32)));

static struct rseq *own_area(void) { return (struct rseq *)((char *)__builtin_thread_pointer() + __rseq_offset); }

// Runs before main and before any thread, so the descriptor is constant for all of them.
__attribute__((constructor)) static void prepare(void) {
  descriptor.start_ip = 1;
  descriptor.post_commit_offset = 1;
  descriptor.abort_ip = (uintptr_t)&landing.target;
}

bool purgeable__rseq_available(void) {
  // __rseq_size is 0 where registration failed or was switched off; cpu_id is negative where this thread is not registered.
  return __rseq_size != 0 && (int32_t)own_area()->cpu_id >= 0;
}

purgeable__sentinel_t purgeable__sentinel_arm(void) {
  if (__rseq_size == 0) return NULL;
  struct rseq *area = own_area();
  if ((int32_t)area->cpu_id < 0) return NULL;
  // A 64-bit store is what the kernel asks for; on 32-bit targets the upper half of the field stays 0.
  purgeable__sentinel_t field = (purgeable__sentinel_t)(uintptr_t)&area->rseq_cs;
  *field = &descriptor;
  atomic_signal_fence(memory_order_seq_cst);
  return field;
}

bool purgeable__sentinel_holds(purgeable__sentinel_t sentinel) {
  atomic_signal_fence(memory_order_seq_cst);
  if (!PURGEABLE_RULE(rseq_sentinel)) return true;
  return sentinel == NULL || *sentinel == (void *)&descriptor;
}

void purgeable__sentinel_disarm(purgeable__sentinel_t sentinel) {
  if (sentinel != NULL) *sentinel = NULL;
}

#else

bool purgeable__rseq_available(void) { return false; }
purgeable__sentinel_t purgeable__sentinel_arm(void) { return NULL; }
bool purgeable__sentinel_holds(purgeable__sentinel_t sentinel) { return sentinel == NULL; }
void purgeable__sentinel_disarm(purgeable__sentinel_t sentinel) { (void)sentinel; }

#endif
