// SPDX-License-Identifier: MIT
// A fork waits until nobody is inside of what the child will use, the library's own thread included.
//
//   the forking thread:  prepare: takes every mutex --> fork --> parent: gives them back
//                                                          \--> child:  gives them back, and nothing is half done
//
// The core needs none of this: its mutexes are wiped in the child, and what they guard is put right there. What Swift keeps (arrays,
// dictionaries, references) cannot be put right when a thread was in the middle of changing it.

import Glibc

/// What has mutexes that a forked child will want. A class that is private to the library: no foreign code runs inside of it.
protocol ForkProtected: AnyObject, Sendable {
  /// Takes them in the order in which they nest.
  func lockForFork()
  func unlockAfterFork()
}

/// Runs around every fork(2) of this process (not around vfork and posix_spawn, which do not run pthread_atfork handlers).
///
/// Order of mutexes: one at a time through here, then caches in the order of their making, monitors, sources, and last the two that are
/// taken for a moment while another is held: the maintainer's state and its signal. `@unchecked Sendable`: `held` is touched
/// only by the thread that has `turn`.
final class ForkGuard: @unchecked Sendable {
  static let shared = ForkGuard()
  private let turn = Guarded<Void>(())
  private var held: [any ForkProtected] = []

  /// Once, before there is anything to protect. False where there is no memory for it: then forks are as they are.
  func begin() -> Bool {
    pthread_atfork(
      { ForkGuard.shared.prepare() }, { ForkGuard.shared.release() },
      {
        // What was noted in the parent is the parent's work; a mark that stands would keep the child from ever starting a thread.
        Maintainer.shared.forgetMarks()
        ForkGuard.shared.release()
      }) == 0
  }

  private func prepare() {
    turn.lock()
    held = Maintainer.shared.forkProtected()
    for item in held { item.lockForFork() }
    Maintainer.shared.state.lock()
    Maintainer.shared.signal.lockForFork()
  }

  private func release() {
    Maintainer.shared.signal.unlockAfterFork()
    Maintainer.shared.state.unlock()
    for item in held.reversed() { item.unlockAfterFork() }
    // Kept until the mutexes are free: the last reference to a cache may go with it.
    let released = held
    held = []
    turn.unlock()
    _ = released
  }
}
