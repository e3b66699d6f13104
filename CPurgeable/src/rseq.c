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

#include "purgeable_slabs.h"

#if defined(__has_include)
#if __has_include(<sys/rseq.h>)
#include <sys/rseq.h>
#define HAS_RSEQ 1
#endif
#endif

// Where the thread's own area is found from. gcc knows the builtin everywhere and refuses it where it was not yet written:
// before 11 on x86-64, and for POWER up to 12 at least. Any other combination does without rseq.
#if !defined(PURGEABLE_TEST_NO_THREAD_POINTER) && \
    (defined(__clang__) || (defined(__x86_64__) && __GNUC__ >= 11) || defined(__aarch64__) || defined(__s390x__))
#define THREAD_POINTER(to) ((to) = __builtin_thread_pointer())
#elif defined(__x86_64__)
#define THREAD_POINTER(to) __asm__("mov %%fs:0, %0" : "=r"(to))
#elif defined(__powerpc64__)
#define THREAD_POINTER(to) __asm__("mr %0, 13" : "=r"(to))
#elif defined(__riscv)
#define THREAD_POINTER(to) __asm__("mv %0, tp" : "=r"(to))
#endif

#if defined(HAS_RSEQ) && defined(RSEQ_SIG) && defined(THREAD_POINTER)

static const struct {
  uint32_t signature;
  uint32_t target;
} landing = {RSEQ_SIG, 0};

// Constant data, complete before the first instruction of the program: reads happen also in constructors, in any order.
static const struct rseq_cs descriptor __attribute__((aligned(32))) = {
    .start_ip = 1, .post_commit_offset = 1, .abort_ip = (uintptr_t)&landing.target};

static struct rseq *own_area(void) {
  char *thread;
  THREAD_POINTER(thread);
  return (struct rseq *)(void *)(thread + __rseq_offset);
}

// The field is no pointer to something constant, for all that the kernel says.
static void *descriptor_address(void) { return (void *)(uintptr_t)&descriptor; }

bool purgeable__rseq_available(void) {
  // __rseq_size is 0 where registration failed or was switched off; cpu_id is negative where this thread is not registered.
  return __rseq_size != 0 && (int32_t)own_area()->cpu_id >= 0;
}

uint32_t purgeable_processor_hint(void) {
  // Like `cpu_id`, and 0 instead of negative.
  return __rseq_size == 0 ? 0 : own_area()->cpu_id_start;
}

purgeable__sentinel_t purgeable__sentinel_arm(void) {
  if (__rseq_size == 0) return NULL;
  struct rseq *area = own_area();
  if ((int32_t)area->cpu_id < 0) return NULL;
  // One store of 64 bits is what the kernel asks for.
  purgeable__sentinel_t field = (purgeable__sentinel_t)(uintptr_t)&area->rseq_cs;
  *field = descriptor_address();
  atomic_signal_fence(memory_order_seq_cst);
  return field;
}

bool purgeable__sentinel_holds(purgeable__sentinel_t sentinel) {
  atomic_signal_fence(memory_order_seq_cst);
  if (!PURGEABLE_RULE(rseq_sentinel)) return true;
  return sentinel == NULL || *sentinel == descriptor_address();
}

void purgeable__sentinel_disarm(purgeable__sentinel_t sentinel) {
  if (sentinel != NULL) *sentinel = NULL;
}

#else

bool purgeable__rseq_available(void) { return false; }
uint32_t purgeable_processor_hint(void) { return 0; }
purgeable__sentinel_t purgeable__sentinel_arm(void) { return NULL; }
bool purgeable__sentinel_holds(purgeable__sentinel_t sentinel) { return sentinel == NULL; }
void purgeable__sentinel_disarm(purgeable__sentinel_t sentinel) { (void)sentinel; }

#endif
