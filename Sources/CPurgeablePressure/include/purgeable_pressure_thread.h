// SPDX-License-Identifier: MIT
/// For this library's own use: how the layers below the library's thread reach it. Implemented in Swift, in
/// Sources/Purgeable/Thread; declared here, so that what calls it need not name what hears it. Any thread, no mutex of a client's
/// list held.
#ifndef PURGEABLE_PRESSURE_THREAD_H
#define PURGEABLE_PRESSURE_THREAD_H

/// A client has come. Makes what the thread keeps, so that its first work takes no memory for that.
void purgeable__thread_expect_work(void);

/// Work was noted for the first time since the last round: wakes the thread, and starts it where there is none.
void purgeable__thread_wake(void);

/// The last client of a list has left: if there is a thread, it looks whether it is needed still.
void purgeable__thread_review(void);

#endif
