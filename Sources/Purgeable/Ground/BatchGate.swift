// SPDX-License-Identifier: MIT
// Batches: calls that change several entries. A look at the whole, and another batch, come before all of it or after.

import Glibc
import Synchronization

/// Who is in a batch of one cache, and who looks at its whole: a batch waits for all that came before it, a look for batches. So
/// nobody is passed by again and again, however closely batches or looks follow one another.
///
/// Each waits for a second at most, since a batch may run the program's code, which may wait for that very look or for another
/// batch. Calls that change one entry wait for nobody. No call takes memory.
struct BatchGate: Sendable {
  private static let lastNumber = Atomic<UInt64>(0)
  /// Nanoseconds. Tests have it longer: what a machine with much else to do holds up for a second is no fault.
  static let longestWait = Atomic<UInt64>(1_000_000_000)
  private let number: UInt64

  init() {
    // Made with the first cache, when there is memory.
    _ = BatchTickets.shared
    number = Self.lastNumber.add(1, ordering: .relaxed).newValue
  }

  func run<R>(_ batch: () -> R) -> R { inTurn(isLook: false, batch) }
  func look<R>(_ look: () -> R) -> R { inTurn(isLook: true, look) }

  private func inTurn<R>(isLook: Bool, _ body: () -> R) -> R {
    let tickets = BatchTickets.shared
    let ticket = tickets.take(at: number, isLook: isLook)
    defer { tickets.giveBack(ticket) }
    if tickets.mustWait(ticket) {
      let deadline = MonotonicTime.now + Self.longestWait.load(ordering: .relaxed)
      repeat { usleep(100) } while tickets.mustWait(ticket) && MonotonicTime.now < deadline
    }
    return body()
  }
}

/// Of a batch or a look that is under way.
private struct BatchTicket {
  var number: UInt64 = 0
  var gate: UInt64 = 0
  var thread: pthread_t = 0
  var isLook = false
  /// In the order of coming.
  var turn: UInt64 = 0

  func waits(for other: BatchTicket) -> Bool {
    other.gate == gate && other.thread != thread && !(isLook && other.isLook) && other.turn < turn
  }
}

/// Those of all caches.
private final class BatchTickets: ForkProtected {
  static let shared = BatchTickets()

  private struct Taken {
    /// A thread has one for each of its batches and looks, which may be in one another. Who finds all taken goes without.
    private var tickets = InlineArray<256, BatchTicket>(repeating: BatchTicket())
    private var count = 0
    private var lastNumber: UInt64 = 0

    mutating func add(_ ticket: BatchTicket) -> BatchTicket {
      lastNumber += 1
      var ticket = ticket
      (ticket.number, ticket.turn) = (lastNumber, lastNumber)
      // What is within a batch or a look of the same thread comes with that.
      for i in 0..<count where tickets[i].thread == ticket.thread && tickets[i].gate == ticket.gate {
        ticket.turn = min(ticket.turn, tickets[i].turn)
      }
      if count < tickets.count {
        tickets[count] = ticket
        count += 1
      }
      return ticket
    }

    func mustWait(_ ticket: BatchTicket) -> Bool { (0..<count).contains { ticket.waits(for: tickets[$0]) } }

    mutating func removeAll(where isGone: (BatchTicket) -> Bool) {
      for i in (0..<count).reversed() where isGone(tickets[i]) {
        count -= 1
        tickets[i] = tickets[count]
      }
    }
  }

  private let taken = Guarded(Taken())

  private init() {
    rehearseFork()
    // What a child may call, too.
    let ticket = take(at: 0, isLook: false)
    _ = mustWait(ticket)
    giveBack(ticket)
    ForkGuard.shared.announce(.batches) { $0.append(BatchTickets.shared) }
  }

  func take(at gate: UInt64, isLook: Bool) -> BatchTicket {
    taken.withLock { $0.add(BatchTicket(gate: gate, thread: pthread_self(), isLook: isLook)) }
  }

  func mustWait(_ ticket: BatchTicket) -> Bool { taken.withLock { $0.mustWait(ticket) } }

  func giveBack(_ ticket: BatchTicket) { taken.withLock { $0.removeAll { $0.number == ticket.number } } }

  // MARK: Forks (ForkGuard.swift)

  func lockForFork() { taken.lock() }
  func unlockAfterFork() { taken.unlock() }
  /// What other threads do has no end here.
  func forgetInChild() {
    let thread = pthread_self()
    taken.withLock { $0.removeAll { $0.thread != thread } }
  }
}
