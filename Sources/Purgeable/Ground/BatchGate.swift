// SPDX-License-Identifier: MIT
// Batches: calls that change several entries, of which a look at the whole sees all or none.

import Glibc
import Synchronization

/// Who is in a batch, and who looks at the whole. A look begins when no other thread is in a batch; and while it waits, and until
/// it is over, no other thread begins one: else threads with a batch after the other would keep it waiting.
///
/// Each waits for a second at most, since a batch may run the program's code, which may wait for that very look or for another
/// batch. Calls that change one entry wait for nobody. Only the making of a gate takes memory.
final class BatchGate: ForkProtected {
  /// Who is in. A thread has a place for each of its batches and looks, which may be in one another.
  private struct Users {
    private var places = InlineArray<32, (thread: pthread_t, isLook: Bool)>(repeating: (0, false))

    private func hasPlace(_ isMeant: (pthread_t, Bool) -> Bool) -> Bool {
      places.indices.contains { places[$0].thread != 0 && isMeant(places[$0].thread, places[$0].isLook) }
    }

    func has(_ thread: pthread_t) -> Bool { hasPlace { user, _ in user == thread } }
    func hasLook(besides thread: pthread_t) -> Bool { hasPlace { user, isLook in user != thread && isLook } }
    func hasBatch(besides thread: pthread_t) -> Bool { hasPlace { user, isLook in user != thread && !isLook } }

    /// The number of its place; nil where none is free.
    mutating func add(_ thread: pthread_t, isLook: Bool) -> Int? {
      guard let place = places.indices.first(where: { places[$0].thread == 0 }) else { return nil }
      places[place] = (thread, isLook)
      return place
    }

    mutating func remove(_ place: Int) { places[place].thread = 0 }

    mutating func removeAll(besides thread: pthread_t) {
      for place in places.indices where places[place].thread != thread { remove(place) }
    }
  }

  private let users = Guarded(Users())
  private static let longestWait: UInt64 = 1_000_000_000

  init() {
    rehearseFork()
    ForkGuard.shared.reserve(1)
  }

  deinit { ForkGuard.shared.dismiss(1) }

  func run<R>(_ batch: () -> R) -> R {
    let thread = pthread_self()
    var place: Int?
    Self.wait {
      place = users.withLock { users in
        // Within a batch or a look of its own it need not wait.
        guard users.has(thread) || !users.hasLook(besides: thread) else { return nil }
        return users.add(thread, isLook: false)
      }
      return place != nil
    }
    // One that has waited in vain is waited for, too.
    place = place ?? users.withLock { $0.add(thread, isLook: false) }
    defer { leave(place) }
    return batch()
  }

  func look<R>(_ body: () -> R) -> R {
    let thread = pthread_self()
    let place = users.withLock { $0.add(thread, isLook: true) }
    defer { leave(place) }
    Self.wait { users.withLock { !$0.hasBatch(besides: thread) } }
    return body()
  }

  /// `place`: nil where there was none.
  private func leave(_ place: Int?) { if let place { users.withLock { $0.remove(place) } } }

  /// Until it is so, for the longest wait at most.
  private static func wait(_ isSo: () -> Bool) {
    if isSo() { return }
    let deadline = MonotonicTime.now + longestWait
    repeat { usleep(100) } while !isSo() && MonotonicTime.now < deadline
  }

  // MARK: Forks (ForkGuard.swift)

  func lockForFork() { users.lock() }
  func unlockAfterFork() { users.unlock() }
  /// What other threads do has no end here.
  func forgetInChild() {
    let thread = pthread_self()
    users.withLock { $0.removeAll(besides: thread) }
  }
}
