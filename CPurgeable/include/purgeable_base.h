// SPDX-License-Identifier: MIT
/// Words that every part of the core shares: outcomes, offering modes, and what this machine's kernel really does.
#ifndef PURGEABLE_BASE_H
#define PURGEABLE_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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

#ifdef __cplusplus
extern "C" {
#endif
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
} purgeable_kernel_class_t;

/// Facts about this machine, found by trying. All sizes in bytes.
typedef struct purgeable_probe {
  purgeable_kernel_class_t kernel_class;
  size_t page_size_bytes;
  /// False when MADV_PAGEOUT was refused, so that `works` could not be confirmed by a real discard.
  bool confirmed_by_pageout;
  /// MADV_WIPEONFORK: a forked child finds everything discarded.
  bool wipe_on_fork;
  /// The C library registered restartable sequences: reads without lock are proven, not statistical.
  bool rseq;
} purgeable_probe_t;

/// Finds out what the kernel does with memory on offer, by mapping 64 pages, offering them and having them paged out.
///
/// The answer is kept for the life of the process: the first call costs about 10 system calls, later ones none. Any thread.
/// Returns 0, EINVAL for NULL, or the errno of a failed mmap (then nothing is kept and a later call tries again).
int purgeable_probe(purgeable_probe_t *PURGEABLE_NULLABLE probe);

/// How each call was answered, for programs that say why something does not work: 0, or an errno. A filter of system calls
/// (seccomp) answers EPERM or ENOSYS, an emulator ENOSYS, a kernel that does not know the request EINVAL.
typedef struct purgeable_call_answers {
  int offer;         // madvise, MADV_FREE
  int give_back;     // madvise, MADV_DONTNEED
  int page_out;      // madvise, MADV_PAGEOUT
  int no_huge_page;  // madvise, MADV_NOHUGEPAGE; EINVAL also where there are no huge pages
  int wipe_on_fork;  // madvise, MADV_WIPEONFORK
  int dont_dump;     // madvise, MADV_DONTDUMP
  int mincore;
  int random;  // getrandom
  /// process_madvise with MADV_FREE on the own process: one call for many ranges, from Linux 6.13. The core does without.
  int offer_by_descriptor;
} purgeable_call_answers_t;

/// Tries each call once, on a page of its own. About 12 system calls each time. Any thread.
/// Returns 0, EINVAL for NULL, or the errno of a failed mmap (then nothing is filled in).
int purgeable_probe_calls(purgeable_call_answers_t *PURGEABLE_NULLABLE answers);

/// The name of a class in plain letters: "works", "immediate", "no-op", "unsupported", "mlocked"; "unknown" for anything else.
const char *purgeable_kernel_class_name(purgeable_kernel_class_t kernel_class);

/// The page size of this machine in bytes: a run-time fact (4, 16 or 64 KiB).
size_t purgeable_page_size_bytes(void);

// MARK: Bookkeeping memory
// For an index that readers look at without a lock: mapped until it is unmapped, touched page by page, wiped in a forked child.

/// Maps `length_bytes` of zeros. NULL, with errno, when there is no memory or the length is 0.
void *PURGEABLE_NULLABLE purgeable_bookkeeping_map(size_t length_bytes);

/// Gives the pages of a mapping back: it reads as zeros again, and stays mapped. Returns 0 or an errno.
int purgeable_bookkeeping_clear(void *start, size_t length_bytes);

/// Ends a mapping. Returns 0 or an errno.
int purgeable_bookkeeping_unmap(void *start, size_t length_bytes);

PURGEABLE_NONNULL_END
#ifdef __cplusplus
}
#endif

#endif
