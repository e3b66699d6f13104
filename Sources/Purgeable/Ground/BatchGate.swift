// SPDX-License-Identifier: MIT
// Batches: calls that change several entries, of which a look at the whole sees all or none.

import Glibc
import Synchronization

/// Who is in a batch. Nobody is kept from storing: who looks at the whole waits for a moment without a batch of another thread.
/// For a second at most, since a batch may run the program's code, which may wait for that very look.
final class BatchGate: ForkProtected {
  private let threads = Guarded([pthread_t]())
  private let begunCount = Atomic<UInt64>(0)
  private static let longestWait: UInt64 = 1_000_000_000

  init() {
    rehearseFork()
    ForkGuard.shared.reserve(1)
  }

  deinit { ForkGuard.shared.dismiss(1) }

  func run<R>(_ batch: () -> R) -> R {
    let thread = pthread_self()
    threads.withLock { threads in
      threads.append(thread)
      begunCount.add(1, ordering: .relaxed)
    }
    defer {
      threads.withLock { threads in
        if let at = threads.firstIndex(where: { pthread_equal($0, thread) != 0 }) { threads.remove(at: at) }
      }
    }
    return batch()
  }

  /// Rises with each batch.
  var begun: UInt64 { begunCount.load(ordering: .relaxed) }

  /// Whether no other thread is in a batch.
  var isQuiet: Bool {
    let thread = pthread_self()
    return threads.withLock { threads in threads.allSatisfy { pthread_equal($0, thread) != 0 } }
  }

  /// Calls `look` until it was called in a quiet moment, which it finds out by asking.
  static func whenQuiet(_ look: (_ isLast: Bool) -> Bool) {
    let deadline = MonotonicTime.now + longestWait
    while !look(MonotonicTime.now >= deadline) { usleep(100) }
  }

  // MARK: Forks (ForkGuard.swift)

  func lockForFork() { threads.lock() }
  func unlockAfterFork() { threads.unlock() }
  /// The batches of other threads have no end here.
  func forgetInChild() {
    let thread = pthread_self()
    threads.withLock { threads in threads.removeAll { pthread_equal($0, thread) == 0 } }
  }
}
