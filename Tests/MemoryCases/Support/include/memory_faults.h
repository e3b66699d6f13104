// SPDX-License-Identifier: MIT
/// An allocator that can be told to refuse: the C library's entry points, defined in the executable, so that the calls of the
/// Swift runtime and of all libraries come here first.
#ifndef MEMORY_FAULTS_H
#define MEMORY_FAULTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/// Whether this build stands in for the allocator. A sanitizer brings one of its own.
bool memory_faults_work(void);

/// The threads whose allocations are counted and refused.
typedef enum memory_faults_scope {
  memory_faults_scope_this_thread = 0,
  memory_faults_scope_other_threads = 1,
} memory_faults_scope_t;

/// Counts allocations from here on, and refuses none.
void memory_faults_count_from_here(memory_faults_scope_t scope);

/// Refuses the n-th allocation from here on (1 is the next one); with `and_after` every later one too.
void memory_faults_refuse(memory_faults_scope_t scope, uint64_t n, bool and_after);

/// From here on so many bytes are left; freed bytes can be allocated again. Every thread.
void memory_faults_leave(uint64_t bytes);

/// Ends counting and refusing.
void memory_faults_end(void);

/// How many allocations were counted since the last of the calls above, and how many of them were refused.
uint64_t memory_faults_allocation_count(void);
uint64_t memory_faults_refused_count(void);

/// Prints the callers (addresses and symbols, to standard error) of each allocation that is counted. Needs a first call before
/// any fault, because it loads a library.
void memory_faults_trace(bool on);

/// How many threads this process has.
uint64_t memory_faults_thread_count(void);

/// How many bytes of this process are in memory now; takes no memory.
uint64_t memory_faults_resident(void);

/// The address space that is in use, in bytes, and a limit to it (RLIMIT_AS): no more than that and `more` bytes.
uint64_t memory_faults_address_space(void);
bool memory_faults_limit_address_space(uint64_t more);
void memory_faults_unlimit_address_space(void);

#endif
