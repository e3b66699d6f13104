// SPDX-License-Identifier: MIT
// One save or restore of a cache at a time.

import Glibc

/// `@unchecked Sendable`: what changes is under the mutex.
final class FileGate: ForkProtected, @unchecked Sendable {
  private let mutex = WaitableMutex()
  /// Who saves or restores.
  private var owner: pthread_t?

  init() {
    rehearseFork()
    ForkGuard.shared.reserve(1)
  }

  deinit { ForkGuard.shared.dismiss(1) }

  /// Waits for its turn. nil where the thread has it already: it is in a closure of the program's that a save or a restore calls.
  func run<R, E: Error>(_ body: () throws(E) -> R) throws(E) -> R? {
    let thread = pthread_self()
    let isFree = mutex.withLock { () -> Bool in
      while let owner {
        if pthread_equal(owner, thread) != 0 { return false }
        _ = mutex.wait(until: nil)
      }
      owner = thread
      return true
    }
    guard isFree else { return nil }
    defer {
      mutex.withLock {
        owner = nil
        mutex.signal()
      }
    }
    return try body()
  }

  // MARK: Forks (ForkGuard.swift)

  func lockForFork() { mutex.lock() }
  func unlockAfterFork() { mutex.unlock() }
  /// The child has no thread but the one that forked.
  func forgetInChild() {
    mutex.forgetWaiters()
    if let owner, pthread_equal(owner, pthread_self()) == 0 { self.owner = nil }
  }
}
