// SPDX-License-Identifier: MIT
// More static thread-local storage than the stack of a small thread has room for, or nearly as much.

/// The calling thread's first byte of it.
char *thread_storage(void);
