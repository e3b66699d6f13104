// SPDX-License-Identifier: MIT
// Keeps a fork from catching the library's thread inside of Swift's runtime.
//
//   library's thread:  set --> round, reaction --> clear --> poll --> set --> ...
//   forking thread:    waits until it is clear, for `patience` at most --> fork
//
// The runtime makes a generic type at its first use, under a mutex that no handler can take. A child that was forked while the
// library's thread had that mutex waits for ever at its own next new type (seen: the table of `Optional`, in a program without
// any thread of its own).

/// Set by the library's thread whenever it is awake; waits there for a fork that is under way.
///
/// Of the program's code that thread runs sources of pressure, and the end of an object whose last reference it happens to drop.
/// They may wait for the thread that forks, or fork themselves: so a fork waits only so long, and not on that thread.
///
/// `@unchecked Sendable`: what changes is under the mutex.
final class AwakeMark: ForkProtected, @unchecked Sendable {
  private let mutex = WaitableMutex()
  /// More than one while a thread that cannot hear is replaced by another.
  private var awakeThreads = 0
  /// In nanoseconds. Set by tests, before they fork. Shorter when the thread has reacted to pressure once, which may take a fifth
  /// of a second: by then all that it does has run before.
  var patience: UInt64 = 1_000_000_000
  private static let laterPatience: UInt64 = 10_000_000

  func set() { mutex.withLock { awakeThreads += 1 } }

  func clear() {
    mutex.withLock {
      // 0 in a child that this thread has forked.
      awakeThreads = max(0, awakeThreads - 1)
      mutex.signal()
    }
  }

  func noteReaction() { mutex.withLock { patience = min(patience, Self.laterPatience) } }

  func lockForFork() {
    mutex.lock()
    guard awakeThreads > 0, !ThreadRole.isLibrary else { return }
    let end = MonotonicTime.now + patience
    while awakeThreads > 0, mutex.wait(until: end) {}
  }

  func unlockAfterFork() { mutex.unlock() }

  /// The parent's thread is not here.
  func forgetInChild() {
    mutex.forgetWaiters()
    awakeThreads = 0
  }
}
