// SPDX-License-Identifier: MIT
/// For this library's own use: what the kernel's small text files say of memory, read without taking any.
///
/// Who reads these files does it because memory is short: nothing here allocates. Numbers that are not there are
/// PURGEABLE__NO_NUMBER. A path is a directory and a name below it. Any thread.
#ifndef PURGEABLE_PRESSURE_FILES_H
#define PURGEABLE_PRESSURE_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PURGEABLE__NO_NUMBER UINT64_MAX

/// Has the C library give free memory of its allocator back to the system, where it can. Milliseconds for each GiB.
void purgeable__return_free_memory(void);

/// The number that a text begins with, its first word: "max" and everything else that is no decimal number is none.
uint64_t purgeable__first_number(const char *text, size_t length_bytes);

/// The number after `key` at the beginning of a line, as in `inactive_file 4096` or `MemTotal:  24684084 kB`. A "kB" multiplies
/// by 1,024 (saturating); the key has to be the line's whole first word, a colon after it aside. False where there is none.
bool purgeable__find_number(const char *key, const char *text, size_t length_bytes, uint64_t *number);

/// The number that a file begins with.
uint64_t purgeable__file_number(const char *directory, const char *name);

/// Whether a file says exactly this: 1 yes, 0 no, -1 it cannot be read.
int32_t purgeable__file_says(const char *directory, const char *name, const char *text, size_t length_bytes);

/// /proc/meminfo, in bytes.
typedef struct purgeable__machine_memory {
  uint64_t total, available, free, swap_total, swap_free, commit_limit, committed;
} purgeable__machine_memory_t;

void purgeable__parse_machine_memory(const char *text, size_t length_bytes, purgeable__machine_memory_t *memory);
/// False where it cannot be read.
bool purgeable__read_machine_memory(const char *root, purgeable__machine_memory_t *memory);

/// What memory.events counts, from the beginning of a file that is open. False once the group is gone.
typedef struct purgeable__group_events {
  uint64_t high, max, oom, oom_kill;
} purgeable__group_events_t;

void purgeable__parse_group_events(const char *text, size_t length_bytes, purgeable__group_events_t *events);
bool purgeable__read_group_events(int32_t descriptor, purgeable__group_events_t *events);

/// The number by which the kernel tells an eventfd from others (Linux 5.2); none elsewhere.
uint64_t purgeable__eventfd_number(int32_t descriptor);

#endif
