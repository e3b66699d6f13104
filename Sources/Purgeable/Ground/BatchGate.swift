// SPDX-License-Identifier: MIT
// Batches: calls that change several entries, of which a look at the whole sees all or none.

import Glibc
import Synchronization

/// Who is in a batch, and who looks at the whole. A look waits for a moment without a batch of another thread. Where it does not
/// come at once, no batch begins until the look is over: else threads with a batch after the other would keep it waiting.
///
/// Each waits for a second at most, since a batch may run the program's code, which may wait for that very look or for another
/// batch. Calls that change one entry wait for nobody.
final class BatchGate: ForkProtected {
  private struct Users {
    /// A thread is here once for each of its batches, or looks.
    var inBatch: [pthread_t] = []
    var looking: [pthread_t] = []

    init() {
      // So that a look takes no memory, which may be short, as a rule.
      inBatch.reserveCapacity(16)
      looking.reserveCapacity(16)
    }

    static func remove(_ thread: pthread_t, from threads: inout [pthread_t]) {
      if let at = threads.firstIndex(of: thread) { threads.remove(at: at) }
    }
  }

  private let users = Guarded(Users())
  private let begunCount = Atomic<UInt64>(0)
  private static let longestWait: UInt64 = 1_000_000_000

  init() {
    rehearseFork()
    ForkGuard.shared.reserve(1)
  }

  deinit { ForkGuard.shared.dismiss(1) }

  func run<R>(_ batch: () -> R) -> R {
    let thread = pthread_self()
    if !begin(thread, isLast: false) {
      let deadline = MonotonicTime.now + Self.longestWait
      repeat { usleep(100) } while !begin(thread, isLast: MonotonicTime.now >= deadline)
    }
    defer { users.withLock { Users.remove(thread, from: &$0.inBatch) } }
    return batch()
  }

  /// False where another thread looks. Within a batch or a look of this thread another batch need not wait.
  private func begin(_ thread: pthread_t, isLast: Bool) -> Bool {
    users.withLock { users in
      let mayBegin =
        isLast || users.looking.isEmpty || users.looking.contains(thread) || users.inBatch.contains(thread)
      guard mayBegin else { return false }
      users.inBatch.append(thread)
      begunCount.add(1, ordering: .relaxed)
      return true
    }
  }

  /// Rises with each batch.
  var begun: UInt64 { begunCount.load(ordering: .relaxed) }

  /// Whether no other thread is in a batch.
  var isQuiet: Bool {
    let thread = pthread_self()
    return users.withLock { users in users.inBatch.allSatisfy { $0 == thread } }
  }

  /// Calls `look` until it was called in a quiet moment, which it finds out by asking. `gate`: nil as long as there was no batch.
  static func whenQuiet(of gate: @autoclosure () -> BatchGate?, _ look: (_ isLast: Bool) -> Bool) {
    if look(false) { return }
    let (thread, deadline) = (pthread_self(), MonotonicTime.now + longestWait)
    let held = gate()
    held?.users.withLock { $0.looking.append(thread) }
    defer { held?.users.withLock { Users.remove(thread, from: &$0.looking) } }
    while !look(MonotonicTime.now >= deadline) { usleep(100) }
  }

  // MARK: Forks (ForkGuard.swift)

  func lockForFork() { users.lock() }
  func unlockAfterFork() { users.unlock() }
  /// What other threads do has no end here.
  func forgetInChild() {
    let thread = pthread_self()
    users.withLock { users in
      users.inBatch.removeAll { $0 != thread }
      users.looking.removeAll { $0 != thread }
    }
  }
}
