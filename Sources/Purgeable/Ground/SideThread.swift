// SPDX-License-Identifier: MIT
// A thread that does one thing at a time for its owner, who does another one meanwhile.

import Glibc

/// Subclasses say what is done. One owner, one thread at a time. The owner calls `end`: the thread keeps this object alive.
///
/// `@unchecked Sendable`: what changes is under the mutex. Not for a forked child, which has no such thread: there nobody waits.
class SideThread: @unchecked Sendable {
  private let mutex = WaitableMutex()
  private let process = getpid()
  private var isAsked = false
  private var hasThread = false
  private var isEnded = false

  /// What is done; of whoever calls `begin`, what it uses is its own until `wait` has returned.
  func work() {}

  /// Has it done by the thread, or at once where there is none. Nothing is being done. `makesThread`: whether it is worth one.
  final func begin(makesThread: Bool) {
    if !hasThread, makesThread, MemoryReserve.isThere(MemoryReserve.ofObjects) { hasThread = startThread { [self] in run() } }
    if !hasThread { return work() }
    mutex.withLock {
      isAsked = true
      mutex.signal()
    }
  }

  /// Waits until it is done.
  final func wait() {
    if getpid() != process { return }
    mutex.withLock {
      while isAsked { _ = mutex.wait(until: nil) }
    }
  }

  /// Waits for the thread's end.
  final func end() {
    if getpid() != process { return }
    mutex.withLock {
      isEnded = true
      mutex.signal()
      while hasThread { _ = mutex.wait(until: nil) }
    }
  }

  private func run() {
    mutex.lock()
    while true {
      if !isAsked {
        if isEnded { break }
        _ = mutex.wait(until: nil)
        continue
      }
      mutex.unlock()
      work()
      mutex.lock()
      isAsked = false
      mutex.signal()
    }
    hasThread = false
    mutex.signal()
    mutex.unlock()
  }
}
