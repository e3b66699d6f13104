// SPDX-License-Identifier: MIT
// Batches: calls that change several entries, of which a look at the whole sees all or none.

import Glibc
import Synchronization

/// Who is in a batch, and who looks at the whole: each waits for those of the other kind that came before it. So nobody is passed
/// by again and again, however closely batches or looks follow one another.
///
/// Each waits for a second at most, since a batch may run the program's code, which may wait for that very look or for another
/// batch. Calls that change one entry wait for nobody. Only the making of a gate takes memory.
final class BatchGate: ForkProtected {
  /// Of a batch or a look.
  private struct Ticket {
    /// 0: of nobody.
    var thread: pthread_t = 0
    var isLook = false
    /// In the order of coming.
    var number: UInt64 = 0
    /// nil: waited for by nobody.
    var place: Int?
  }

  private struct Tickets {
    /// A thread has one for each of its batches and looks, which may be in one another. Who comes when none is free goes without.
    private var places = InlineArray<32, Ticket>(repeating: Ticket())
    private var last: UInt64 = 0

    mutating func take(_ thread: pthread_t, isLook: Bool) -> Ticket {
      last += 1
      var ticket = Ticket(thread: thread, isLook: isLook, number: last)
      // A batch within a batch or a look of the same thread comes with that.
      if !isLook {
        for i in places.indices where places[i].thread == thread { ticket.number = min(ticket.number, places[i].number) }
      }
      ticket.place = places.indices.first { places[$0].thread == 0 }
      if let place = ticket.place { places[place] = ticket }
      return ticket
    }

    func mustWait(_ ticket: Ticket) -> Bool {
      places.indices.contains {
        let other = places[$0]
        return other.thread != 0 && other.thread != ticket.thread && other.isLook != ticket.isLook && other.number < ticket.number
      }
    }

    mutating func giveBack(_ ticket: Ticket) { if let place = ticket.place { places[place] = Ticket() } }

    mutating func giveBackAll(besides thread: pthread_t) {
      for place in places.indices where places[place].thread != thread { places[place] = Ticket() }
    }
  }

  private let tickets = Guarded(Tickets())
  private static let longestWait: UInt64 = 1_000_000_000

  init() {
    rehearseFork()
    // What a child may call, too.
    run { look {} }
    ForkGuard.shared.reserve(1)
  }

  deinit { ForkGuard.shared.dismiss(1) }

  func run<R>(_ batch: () -> R) -> R { inTurn(isLook: false, batch) }
  func look<R>(_ look: () -> R) -> R { inTurn(isLook: true, look) }

  private func inTurn<R>(isLook: Bool, _ body: () -> R) -> R {
    let ticket = tickets.withLock { $0.take(pthread_self(), isLook: isLook) }
    defer { tickets.withLock { $0.giveBack(ticket) } }
    if mustWait(ticket) {
      let deadline = MonotonicTime.now + Self.longestWait
      repeat { usleep(100) } while mustWait(ticket) && MonotonicTime.now < deadline
    }
    return body()
  }

  private func mustWait(_ ticket: Ticket) -> Bool { tickets.withLock { $0.mustWait(ticket) } }

  // MARK: Forks (ForkGuard.swift)

  func lockForFork() { tickets.lock() }
  func unlockAfterFork() { tickets.unlock() }
  /// What other threads do has no end here.
  func forgetInChild() {
    let thread = pthread_self()
    tickets.withLock { $0.giveBackAll(besides: thread) }
  }
}
