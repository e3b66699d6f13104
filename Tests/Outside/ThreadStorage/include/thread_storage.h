// SPDX-License-Identifier: MIT
// More static thread-local storage than the stack of a small thread has room for.

/// The calling thread's first byte of a megabyte.
char *thread_storage(void);
