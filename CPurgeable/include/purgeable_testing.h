// SPDX-License-Identifier: MIT
/// Seams for tests: counted faults in the system-call table, and switches that turn single rules of the protocol off.
///
/// Not part of the stable interface. Nothing here is needed, or useful, in a program.
#ifndef PURGEABLE_TESTING_H
#define PURGEABLE_TESTING_H

#include "purgeable_base.h"

#ifdef __cplusplus
extern "C" {
#endif
PURGEABLE_PUBLIC_BEGIN

/// The calls that go through the table.
typedef enum purgeable_testing_call {
  purgeable_testing_call_mmap = 1 << 0,  ///< mmap
  purgeable_testing_call_munmap = 1 << 1,  ///< munmap
  purgeable_testing_call_madvise_free = 1 << 2,  ///< madvise with MADV_FREE
  purgeable_testing_call_madvise_dontneed = 1 << 3,  ///< madvise with MADV_DONTNEED
  purgeable_testing_call_madvise_other = 1 << 4,  ///< madvise with any other advice
  purgeable_testing_call_mincore = 1 << 5,  ///< mincore
  purgeable_testing_call_allocate = 1 << 6,  ///< calloc and its like
  purgeable_testing_call_random = 1 << 7,  ///< getrandom
  /// Opening and reading small files: the limits of memory groups.
  purgeable_testing_call_file = 1 << 8,
  purgeable_testing_call_mprotect = 1 << 9,  ///< mprotect
  purgeable_testing_call_thread = 1 << 10,  ///< pthread_create
  purgeable_testing_call_scan = 1 << 11,  ///< ioctl with PAGEMAP_SCAN
  purgeable_testing_call_any = (1 << 12) - 1,  ///< all of them
} purgeable_testing_call_t;

/// Makes the n-th call (1 is the next one) of the kinds in `calls` fail with `error`, once; n = 0 switches this off.
/// With `and_after`, every later call of those kinds fails as well. Whole process.
void purgeable_testing_fail(unsigned calls, uint64_t n, int error, bool and_after);

/// Kernels that say yes and do otherwise.
typedef enum purgeable_testing_pretence {
  /// MADV_FREE offers the first half of each range of more than one page.
  purgeable_testing_pretence_half_offers = 1 << 0,
  /// MADV_WIPEONFORK is accepted and ignored.
  purgeable_testing_pretence_no_wipe = 1 << 1,
} purgeable_testing_pretence_t;

/// Makes the table behave as such a kernel would; 0: as the kernel is. Whole process.
void purgeable_testing_pretend(unsigned pretences);

/// How many calls of the kinds in `calls` went through the table since the process began.
uint64_t purgeable_testing_call_count(unsigned calls);

/// Whether the fault that was asked for has happened.
bool purgeable_testing_has_failed(void);

/// Rules that tests can switch off to prove that they are needed. Compiled in only with PURGEABLE_TEST_HOOKS.
typedef enum purgeable_testing_rule {
  /// A locker waits until no madvise is running on what it locks.
  purgeable_testing_rule_wait_for_offer = 1 << 0,
  /// A read without lock is valid only if the thread was neither preempted nor migrated meanwhile.
  purgeable_testing_rule_rseq_sentinel = 1 << 1,
  /// MADV_DONTNEED before anything new is written where something old was.
  purgeable_testing_rule_dontneed_before_refill = 1 << 2,
  /// No page is appended to once it has been on offer.
  purgeable_testing_rule_no_append_after_offer = 1 << 3,
  /// A slab is claimed from count 0 before it is given back.
  purgeable_testing_rule_claim_before_give_back = 1 << 4,
  /// An owner takes a moved element by compare-exchange, not by store.
  purgeable_testing_rule_exchange_not_store = 1 << 5,
  /// After a copy: witnesses, then header, then generation.
  purgeable_testing_rule_order_of_checks = 1 << 6,
  /// Generations are 32 bits wide (off: 2 bits).
  purgeable_testing_rule_wide_generations = 1 << 7,
  /// While a region is being filled only the filler may lock it.
  purgeable_testing_rule_fill_excludes = 1 << 16,
  /// A fill that is given up says so in the exchange that gives the lock back (off: unlock, then discard).
  purgeable_testing_rule_abandon_at_once = 1 << 17,
  /// Whoever is to fill a region because it was discarded fills it only if it still is.
  purgeable_testing_rule_fill_only_discarded = 1 << 18,
  /// What is on offer is offered again, since the kernel may have passed over pages of it.
  purgeable_testing_rule_offer_again = 1 << 19,
  /// A region that is destroyed while its link is sorted is not offered: its pages may be another's.
  purgeable_testing_rule_parting_stay_out = 1 << 20,
  /// An offer of one region ends early where a locker waits for it.
  purgeable_testing_rule_lockers_end_offers = 1 << 21,
  /// A slab that was on offer is filled again without a wipe only if all of its pages are rescued before.
  purgeable_testing_rule_rescue_before_reuse = 1 << 22,
  /// A slab that is filled again without a wipe has its new generation before its first new byte (off: it keeps the old one).
  purgeable_testing_rule_generation_before_reuse = 1 << 23,
  /// A page of a region that holds nothing when a writer unlocks loses the witness that it had in an earlier fill.
  purgeable_testing_rule_forget_untouched = 1 << 24,
  /// A sweep asks again about pages that were not resident, after it has seen that they were offered.
  purgeable_testing_rule_ask_again_before_loss = 1 << 25,
} purgeable_testing_rule_t;

/// Whether this build can switch rules off.
bool purgeable_testing_has_hooks(void);

/// Switches the rules in `rules` off, all others on. Returns false, and does nothing, in a build without hooks.
bool purgeable_testing_switch_off(unsigned rules);

/// Whether a rule is in force: for owners (tests, the cache) whose own code carries one of the rules.
bool purgeable_testing_rule_holds(purgeable_testing_rule_t rule);

/// In a build with hooks: every read without lock spins this many rounds between copy and check (0: none), and so do the births
/// of large elements, the beginnings of offers in a heap, sweeps before each slab, drains of the regions' queue while they sort
/// it, and offers of one region after each call, so that races show.
void purgeable_testing_slow_reads(uint32_t rounds);

/// In a build with hooks: every read without lock, in every thread, calls `pause` between copy and check, once per try (NULL: no
/// more), and so do those births, offers and sweeps. Whoever changes it sees to it that none of them is under way. Returns false,
/// and does nothing, in a build without hooks.
bool purgeable_testing_set_pause(void (*pause)(void *context), void *context);

/// The same where a mutex is held: in births of large elements, after the slab looks sealed and before its life begins (the
/// heap's), and in drains of the regions' queue, when a region has been taken from it (the pool's). `pause` must not call what
/// takes it.
bool purgeable_testing_set_inner_pause(void (*pause)(void *context), void *context);

/// In a build with hooks: how many locks of regions found a madvise running when they began, and waited for it; else 0.
uint64_t purgeable_testing_waited_lock_count(void);

/// In a build with hooks: how many locks of regions found a fill under way and have begun to wait for its end; else 0. From then
/// on the outcome of such a lock follows from how that fill ends.
uint64_t purgeable_testing_waited_fill_count(void);

/// The same as `purgeable_testing_waited_lock_count` for locks of elements.
uint64_t purgeable_testing_waited_heap_lock_count(void);

/// In a build with hooks: stops the clock by which regions are offered again, at this time; 0: it goes on, as the machine's does.
/// Returns false, and does nothing, in a build without hooks.
bool purgeable_testing_set_queue_clock_ms(uint64_t now_ms);

/// What a search looks at, one after the other.
typedef enum purgeable_testing_looks {
  /// Slabs that a compaction looks at to choose one, while it holds the heap's mutex.
  purgeable_testing_looks_compaction,
  /// Chunks that are searched for a run of free units.
  purgeable_testing_looks_rooms,
  /// Queued regions that a drain looks at while it holds the pool's mutex.
  purgeable_testing_looks_queue,
  /// Pages of regions whose content is looked at for a witness.
  purgeable_testing_looks_witnesses,
  /// Slabs that are searched for what waits, beyond the bound, while the heap's mutex is held.
  purgeable_testing_looks_overdue,
} purgeable_testing_looks_t;
#define PURGEABLE_TESTING_LOOK_KINDS 5

/// In a build with hooks: how many looks there were since the process began; else 0.
uint64_t purgeable_testing_look_count(purgeable_testing_looks_t kind);

/// In a build with hooks: the most looks of one piece of work since this was last asked; else 0.
uint64_t purgeable_testing_take_most_looks(purgeable_testing_looks_t kind);

struct purgeable_heap;
/// In a build with hooks: lets the slab around a place be in the last of its lives, as if its generations were used up. False in
/// a build without, and where there is no slab.
bool purgeable_testing_begin_last_life(struct purgeable_heap *heap, uint64_t place);

/// Whether the heap is whole while nobody is inside of it: lists, bits and counts, each against the others, and the heap's sums
/// against what they are sums of. Where it is not, `*wrong` (may be NULL) says what, else it is NULL. Walks over all granules.
bool purgeable_testing_heap_is_valid(struct purgeable_heap *heap, const char **wrong);

struct purgeable_region;
/// The cache line, by number, in which the region's word lies; 0 for NULL.
uintptr_t purgeable_testing_region_line(const struct purgeable_region *region);

/// The memory limit, in bytes, that the files below `root` tell, read at once: "" is the machine. `root` stands in front of
/// /proc/self/cgroup, /proc/self/mountinfo and every mount point.
uint64_t purgeable_testing_memory_byte_limit(const char *root);

/// The slab size that a heap chooses on a machine with such pages.
size_t purgeable_testing_default_slab_bytes(size_t page_bytes, size_t byte_limit, bool keeps_tags);

/// Makes the next `purgeable_probe` try again.
void purgeable_testing_forget_probe(void);

PURGEABLE_PUBLIC_END
#ifdef __cplusplus
}
#endif

#endif
