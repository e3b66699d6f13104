// SPDX-License-Identifier: MIT
// Which pages of a mapping hold anything, asked of the kernel: PAGEMAP_SCAN (Linux 6.7), at a cost of what is there, not of what
// could be there.
//
// What the kernel does not name was never touched, or was given up since: it reads as zeros, and reading it would only make page
// tables. mincore does not tell that, since a page in swap is not resident. The scan takes the locks of the page tables, so a
// page that is on its way to swap, or moves, is named as well.

#include "internal.h"

// The kernel's, for C libraries whose headers are older.
typedef struct scan {
  uint64_t size, flags, start, end, walk_end, ranges, range_count, max_pages;
  uint64_t inverted, mask, any_of_mask, answer_mask;
} scan_t;
enum { SCAN_IS_PRESENT = 1 << 3, SCAN_IS_SWAPPED = 1 << 4 };
static_assert(sizeof(scan_t) == 96, "the kernel's layout");
static_assert(sizeof(purgeable__scanned_t) == 24, "the kernel's layout");
// _IOWR('f', 16, struct pm_scan_arg)
#define SCAN_REQUEST ((3UL << 30) | (sizeof(scan_t) << 16) | ('f' << 8) | 16UL)

// Asks for the next ranges. False: the kernel does not tell.
static bool scan(purgeable__touched_t *touched) {
  uint64_t any = SCAN_IS_PRESENT | SCAN_IS_SWAPPED;
  scan_t request = {
      .size = sizeof request,
      .start = (uintptr_t)touched->at,
      .end = (uintptr_t)touched->end,
      .ranges = (uintptr_t)touched->ranges,
      .range_count = sizeof touched->ranges / sizeof touched->ranges[0],
      .any_of_mask = any,
      .answer_mask = any,
  };
  long count = purgeable__scan(touched->descriptor, SCAN_REQUEST, &request);
  bool has_moved = request.walk_end > (uintptr_t)touched->at && request.walk_end <= (uintptr_t)touched->end;
  if (count < 0 || (size_t)count > request.range_count || !has_moved) return false;
  touched->at += request.walk_end - (uintptr_t)touched->at;
  touched->count = (size_t)count;
  touched->next = 0;
  return true;
}

bool purgeable__touched_begin(purgeable__touched_t *touched, void *start, size_t length_bytes) {
  assert(length_bytes != 0 && ((uintptr_t)start & (purgeable_page_size_bytes() - 1)) == 0);
  int kept = errno;
  *touched = (purgeable__touched_t){.at = start, .end = (char *)start + length_bytes};
  // Opened each time: a descriptor that is kept would, in a forked child, tell of the parent.
  bool is_open = purgeable__file_open("/proc/self/pagemap", &touched->descriptor) == 0;
  bool tells = is_open && scan(touched);
  if (is_open && !tells) purgeable__file_close(touched->descriptor);
  errno = kept;
  return tells;
}

bool purgeable__touched_next(purgeable__touched_t *touched, char **start, char **end) {
  int kept = errno;
  while (touched->next == touched->count) {
    if (touched->at == touched->end) return false;
    if (scan(touched)) continue;
    // What the kernel does not tell of any more counts as touched.
    *start = touched->at;
    *end = touched->at = touched->end;
    touched->has_stopped = true;
    errno = kept;
    return true;
  }
  const purgeable__scanned_t *range = &touched->ranges[touched->next++];
  *start = (char *)(uintptr_t)range->start;
  *end = (char *)(uintptr_t)range->end;
  return true;
}

void purgeable__touched_end(purgeable__touched_t *touched) { purgeable__file_close(touched->descriptor); }
