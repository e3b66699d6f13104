// SPDX-License-Identifier: MIT
/// Words that every part of the core shares: outcomes, offering modes, and what this machine's kernel really does.
#ifndef PURGEABLE_BASE_H
#define PURGEABLE_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if UINTPTR_MAX < UINT64_MAX
#error "purgeable needs a target of 64 bits: where addresses have 32, there is no room for memory that need not be there"
#endif

// Exported also where all else is hidden (-fvisibility=hidden). PURGEABLE_HIDDEN, defined for the core's own files: exported
// nowhere, for a library that keeps its copy to itself.
#if defined(PURGEABLE_HIDDEN)
#undef PURGEABLE_PUBLIC_VISIBILITY
#define PURGEABLE_PUBLIC_VISIBILITY "GCC visibility push(hidden)"
#elif !defined(PURGEABLE_PUBLIC_VISIBILITY)
#define PURGEABLE_PUBLIC_VISIBILITY "GCC visibility push(default)"
#endif
#define PURGEABLE_PUBLIC_BEGIN _Pragma(PURGEABLE_PUBLIC_VISIBILITY)
#define PURGEABLE_PUBLIC_END _Pragma("GCC visibility pop")

#if defined(__clang__)
#define PURGEABLE_CLOSED_ENUM __attribute__((enum_extensibility(closed)))
// Pointers are not NULL unless marked: what Swift sees as optional or not. A clang extension, hence the pragmas.
#define PURGEABLE_NONNULL_BEGIN                                                                                  \
  _Pragma("clang diagnostic push") _Pragma("clang diagnostic ignored \"-Wnullability-extension\"")               \
      _Pragma("clang assume_nonnull begin")
#define PURGEABLE_NONNULL_END _Pragma("clang assume_nonnull end") _Pragma("clang diagnostic pop")
#define PURGEABLE_NULLABLE _Nullable
#else
#define PURGEABLE_CLOSED_ENUM
#define PURGEABLE_NONNULL_BEGIN
#define PURGEABLE_NONNULL_END
#define PURGEABLE_NULLABLE
#endif

// On functions after which a caller that has not looked at the outcome may use what it does not have: bytes, a lock, memory, an
// object, a value in an out-parameter. A compiler then warns where the outcome is lost. Not on functions that end or give back
// something (unlock, free, destroy, abandon), that the next call makes up for (offer, sweep, trim, upkeep), or that fail only
// for a wrong argument (limits, statistics).
#if defined(__cplusplus) ? __cplusplus >= 201703L : defined(__STDC_VERSION__) && __STDC_VERSION__ >= 202311L
#define PURGEABLE_MUST_USE [[nodiscard]]
#else
#define PURGEABLE_MUST_USE __attribute__((warn_unused_result))
#endif

#ifdef __cplusplus
extern "C" {
#endif
PURGEABLE_PUBLIC_BEGIN
PURGEABLE_NONNULL_BEGIN

/// What became of content. *Discarded* is an outcome, not an error.
typedef enum PURGEABLE_CLOSED_ENUM purgeable_outcome {
  /// Every byte is what was written.
  purgeable_outcome_intact = 0,
  /// At least one page is gone; none of the content may be used.
  purgeable_outcome_discarded = 1,
  /// Somebody is writing or the kernel is at work on it: ask again.
  purgeable_outcome_busy = 2,
  /// Nothing was done; errno says why.
  purgeable_outcome_error = 3,
} purgeable_outcome_t;

/// When unlocked memory is offered to the kernel (MADV_FREE).
typedef enum PURGEABLE_CLOSED_ENUM purgeable_offering {
  /// Queued at the last unlock, offered in bulk with neighbours merged when the host asks for it. The cheapest; the default.
  purgeable_offering_deferred = 0,
  /// Offered inside the last unlock: one system call each time.
  purgeable_offering_immediate = 1,
  /// Never offered: only the program itself discards.
  purgeable_offering_never = 2,
} purgeable_offering_t;

/// What the kernel was seen to do with memory on offer.
typedef enum PURGEABLE_CLOSED_ENUM purgeable_kernel_class {
  /// Content stays after the offer and goes when the memory is needed.
  purgeable_kernel_class_works = 0,
  /// Content goes at the moment of the offer (swapless 4.5 to 4.11): usable, but every offer is a discard.
  purgeable_kernel_class_immediate = 1,
  /// The offer is accepted and nothing is ever taken (some emulators).
  purgeable_kernel_class_no_op = 2,
  /// The offer is refused (before 4.5, gVisor).
  purgeable_kernel_class_unsupported = 3,
  /// All memory of this process is mlocked (mlockall with MCL_FUTURE): the offer is refused.
  purgeable_kernel_class_mlocked = 4,
  /// Of what is offered a part is taken, and a part never, time after time (an emulator, a filter that shortens the call):
  /// usable, but not all of what counts as offered can be taken.
  purgeable_kernel_class_partial = 5,
} purgeable_kernel_class_t;

/// One account of memory, in the same words for regions and for heaps. The statistics of both begin with it.
///
///   held  =  locked or pending  +  on offer  +  known to be discarded      what the core did and found out
///   resident                                                               what the kernel says
///
/// Idle memory that nobody will offer (`purgeable_offering_never`, withheld slabs) is held, and in none of the three. A page on
/// offer may be gone before anybody has looked. So resident memory lies between held - offered - discarded and held - discarded;
/// above that where a read has found a region lost, of which the kernel left some pages, and while wipes are put off
/// (`defers_wipes`, `purgeable_heap_begin_giving_back`), for what is put off is not held.
typedef struct purgeable_memory_use {
  /// Content that was stored and could be read now, less what is known to be lost. Regions: held less discarded.
  uint64_t payload_bytes;
  /// Heaps: payload of locked elements, each lock counted, and of elements that are being written. Regions: whole pages.
  uint64_t locked_bytes;
  /// Pages written to in this life of a slab, there or not; `purgeable_heap_held_bytes` counts whole slabs. Regions: their pages.
  uint64_t held_bytes;
  /// Of the held: on offer, and not known to be gone.
  uint64_t offered_bytes;
  /// Of the held: idle, and waiting for an offer. `purgeable_set_pending_byte_limit` bounds it, but for the open slabs of a heap,
  /// and for what the kernel refused and is offered again later.
  uint64_t pending_bytes;
  /// Of the held: known to be gone.
  uint64_t discarded_bytes;
  /// Of the held: in memory now, by the kernel's account (mincore). Regions: 0, not asked for.
  uint64_t resident_bytes;
  /// Bookkeeping outside of purgeable pages. Regions: 0, not counted.
  uint64_t ordinary_bytes;
  /// So far: content that the kernel took, as found out. Heaps: payload. Regions: whole pages.
  uint64_t discarded_by_kernel_bytes;
  /// So far: pages that the core or the program gave back to the system.
  uint64_t given_back_bytes;
  /// So far: locks that were refused for a limit.
  uint64_t refused_lock_count;
} purgeable_memory_use_t;

/// Facts about this machine, found by trying. All sizes in bytes.
typedef struct purgeable_probe {
  /// What the kernel does with memory on offer.
  purgeable_kernel_class_t kernel_class;
  /// The page size, as `purgeable_page_size_bytes` says.
  size_t page_size_bytes;
  /// False when MADV_PAGEOUT was refused, so that `works` could not be confirmed by a real discard.
  bool confirmed_by_pageout;
  /// MADV_WIPEONFORK: a forked child finds everything discarded. Where `wipe_is_confirmed`, a child was made and looked; else the
  /// kernel's answer is believed, and some emulators accept the call and ignore it.
  bool wipe_on_fork;
  /// The C library registered restartable sequences: reads without lock are proven, not statistical.
  bool rseq;
  /// A forked child has looked at a byte of such memory: `wipe_on_fork` says what it found.
  bool wipe_is_confirmed;
  /// MADV_NOHUGEPAGE is refused, and a page that was touched brought its neighbours along: one byte in use keeps up to 2 MiB.
  bool huge_pages;
} purgeable_probe_t;

/// Finds out what the kernel does with memory on offer, by mapping 64 pages, offering them and having them paged out; and with
/// memory that is to be wiped on fork, by a child that reads one byte of it and ends. That child runs no handler of the program
/// (pthread_atfork, SIGCHLD) and is nobody else's to wait for. It is made only where less than 128 MiB of the process are
/// resident, because a fork copies page tables: 1 to 2 ms there, and all threads that map memory wait.
///
/// The answer is kept for the life of the process: the first call costs about 20 system calls, later ones none. Any thread.
/// Returns 0, EINVAL for NULL, or the errno of a failed mmap (then nothing is kept and a later call tries again).
PURGEABLE_MUST_USE
int purgeable_probe(purgeable_probe_t *PURGEABLE_NULLABLE probe);

/// How each call was answered, for programs that say why something does not work: 0, or an errno. A filter of system calls
/// (seccomp) answers EPERM or ENOSYS, an emulator ENOSYS, a kernel that does not know the request EINVAL.
typedef struct purgeable_call_answers {
  int offer;  ///< madvise, MADV_FREE
  int give_back;  ///< madvise, MADV_DONTNEED
  int page_out;  ///< madvise, MADV_PAGEOUT
  int no_huge_page;  ///< madvise, MADV_NOHUGEPAGE; EINVAL also where there are no huge pages
  int wipe_on_fork;  ///< madvise, MADV_WIPEONFORK
  int dont_dump;  ///< madvise, MADV_DONTDUMP
  int mincore;  ///< mincore
  int random;  ///< getrandom
  /// process_madvise with MADV_FREE on the own process: one call for many ranges, from Linux 6.13. The core does without.
  int offer_by_descriptor;
} purgeable_call_answers_t;

/// Tries each call once, on a page of its own. Some 16 system calls each time. Any thread.
/// Returns 0, EINVAL for NULL, or the errno of a failed mmap (then nothing is filled in).
PURGEABLE_MUST_USE
int purgeable_probe_calls(purgeable_call_answers_t *PURGEABLE_NULLABLE answers);

/// The name of a class in plain letters: "works", "immediate", "no-op", "unsupported", "mlocked", "partial"; "unknown"
/// for anything else.
const char *purgeable_kernel_class_name(purgeable_kernel_class_t kernel_class);

/// The page size of this machine in bytes: a run-time fact (4, 16 or 64 KiB).
size_t purgeable_page_size_bytes(void);

// MARK: Idle memory that waits
// In deferred mode idle memory waits for a call of the host before it is on offer; until then the kernel can not take it, and a
// host that fills faster than it calls would run into its memory limit. So what waits has a bound in bytes.

/// No setting of the program: a sixteenth of the memory limit (the smallest of the process's memory groups, or the machine's
/// memory), at least 1 MiB, at most 64 MiB.
#define PURGEABLE_PENDING_BYTE_LIMIT_DEFAULT (UINT64_MAX - 1)

/// The most bytes that wait for an offer. For regions together: `byte_limit`. For heaps, of sealed slabs: `byte_limit` for the
/// first offers of all together, but 256 KiB or two slabs for each; and for each four times `byte_limit` in all, with what locks
/// have taken off offer. The call that makes idle what is beyond the bound (an unlock, a commit, a seal, an allocation that
/// begins a slab) offers before it returns: all regions that wait; of its own heap, until half of the bound waits. So the heap's
/// next calls make no offer until as much waits again. While one thread offers, others may go beyond the bound by what they make
/// idle.
///
/// Where no limit is set and a thread tends the memory (`purgeable_upkeep.h`), which comes within a second, a quarter of the
/// memory limit may wait in all, at most 1 GiB, if that is more than four times `byte_limit`.
///
/// Cost: for regions, one madvise for each 2 MiB, or for each region that has no neighbour. For a heap, one for up to 64 slabs in
/// a row; it goes over up to 64 pages on offer to reach the next that waits, at 50 ns a page or less. To find what waits, some
/// 20 ns for each slab of the heap at most.
///
/// 0: nothing ever waits; each unlock offers what it made idle. UINT64_MAX: no bound. A setting of the whole process, which a
/// forked child has too. Any thread; no system call.
void purgeable_set_pending_byte_limit(uint64_t byte_limit);

/// The bound that is in force, in bytes. By default the memory limit is read again at most every 5 seconds. Any thread.
uint64_t purgeable_pending_byte_limit(void);

/// The same for what waits in a heap in all: four times as much or, where a thread tends the memory, more. Any thread.
uint64_t purgeable_pending_byte_limit_in_all(void);

// MARK: Bookkeeping memory
// For an index that readers look at without a lock: mapped until it is unmapped, touched page by page, wiped in a forked child.

/// Maps `length_bytes` of zeros. NULL, with errno, when there is no memory or the length is 0. Up to two pages share a mapping
/// with others of that size.
PURGEABLE_MUST_USE
void *PURGEABLE_NULLABLE purgeable_bookkeeping_map(size_t length_bytes);

/// Gives the pages of a mapping back: it reads as zeros again, and stays mapped. Returns 0 or an errno.
PURGEABLE_MUST_USE
int purgeable_bookkeeping_clear(void *start, size_t length_bytes);

/// Ends a mapping, or the last of its pages: what is left before them is ended by another call, with its own length. Returns 0,
/// EINVAL (length 0), or another errno; then the content is wiped, and its address space, without memory, stays taken.
int purgeable_bookkeeping_unmap(void *start, size_t length_bytes);

/// `length_bytes` of zeros from the C library's allocator, for notes too small for a mapping of their own. NULL when there is no
/// memory or the length is 0. Unlike a mapping it is not wiped in a forked child.
PURGEABLE_MUST_USE
void *PURGEABLE_NULLABLE purgeable_bookkeeping_allocate(size_t length_bytes);

/// Changes the length of memory from `purgeable_bookkeeping_allocate`. The content stays, up to the shorter of both lengths, and
/// bytes beyond it are not zeroed. NULL when there is no memory or the length is 0: then the old memory stays as it is.
PURGEABLE_MUST_USE
void *PURGEABLE_NULLABLE purgeable_bookkeeping_resize(void *old, size_t length_bytes);

/// Whether the C library's allocator has `length_bytes` right now: the memory is taken and given back at once.
PURGEABLE_MUST_USE
bool purgeable_bookkeeping_is_available(size_t length_bytes);

/// Gives memory of `purgeable_bookkeeping_allocate` or `_resize` back. NULL is ignored.
void purgeable_bookkeeping_free(void *PURGEABLE_NULLABLE start);

PURGEABLE_NONNULL_END
PURGEABLE_PUBLIC_END
#ifdef __cplusplus
}
#endif

#endif
