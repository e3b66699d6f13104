// SPDX-License-Identifier: MIT
// Clients that run code of the program when memory is short or entries expire: the content of objects, their ends, handlers. The
// library's thread must not wait for that, so a thread of the client's own does it, and ends when it is done.
//
//   library's thread --giveSlice(ofParts:)--> notes, a thread if there is none --> relieve: slices, as long as memory is short

import CPurgeablePressure
import Synchronization

struct ReliefNotes {
  var isWanted = false
  var wantsUpkeep = false
  var hasThread = false
}

/// A subclass says what it holds and gives.
@usableFromInline
class ProgramClient: Teller, PressureClient, @unchecked Sendable {
  final let link = ClientLink<UnownedClient>()
  /// What the library's thread wants, and whether there is a thread for it.
  final let relief = Guarded(ReliefNotes())
  final let pressure = Atomic<Int32>(0)

  // MARK: For subclasses. On the client's thread, under no mutex.

  var holdsAnything: Bool { false }
  /// Before the first slice: gives what is lost. False when nothing went.
  func beginRelief() -> Bool { false }
  /// A sixteenth of what there is. False when nothing went.
  func giveSlice() -> Bool { false }
  /// After the last slice of a reaction that gave something; `before` is what `size` was before the first.
  func endRelief(before: Int) {}
  var size: Int { 0 }
  /// After `begin { $0.wantsUpkeep = true }`.
  func upkeep() {}

  // MARK: For the library's thread

  /// Objects go back to the program's allocator; how much of that reaches the system is not known here.
  final var offeredBytes: Int { 0 }

  func upkeepRound() -> UInt64 { .max }
  final func setPressure(_ level: PressureLevel) { pressure.store(level.rawValue, ordering: .relaxed) }
  final func offerAll() -> Int { 0 }

  /// False: what the others give decides when the reaction ends.
  final func giveSlice(ofParts parts: Int, isFelt: Bool) -> Bool {
    guard holdsAnything else { return false }
    begin { $0.isWanted = true }
    return false
  }

  /// Notes what is wanted, and starts a thread if there is none. Without memory for one, the next event tries again.
  final func begin(_ want: (inout ReliefNotes) -> Void) {
    let needsThread = relief.withLock { notes -> Bool in
      want(&notes)
      defer { notes.hasThread = true }
      return !notes.hasThread
    }
    if needsThread, !startTelling() { relief.withLock { $0.hasThread = false } }
  }

  final override func run() {
    while true {
      let notes = relief.withLock { notes -> ReliefNotes in
        defer { notes = ReliefNotes(hasThread: notes.isWanted || notes.wantsUpkeep) }
        return notes
      }
      guard notes.isWanted || notes.wantsUpkeep else { return }
      if notes.wantsUpkeep { upkeep() }
      guard notes.isWanted else { continue }
      let begin = MonotonicTime.now
      let before = size
      var hasGiven = beginRelief()
      var goesOn = !hasGiven || isShort
      while goesOn, giveSlice() {
        hasGiven = true
        goesOn = MonotonicTime.now - begin < PressureReaction.timeLimit && isShort
      }
      if hasGiven { endRelief(before: before) }
      purgeable__return_free_memory()
    }
  }

  private var isShort: Bool {
    // What was freed is no room before it has left the allocator.
    purgeable__return_free_memory()
    let offered = PressureReaction.offeredBytes(ListedClients())
    return MemoryRoom.missingBytes(in: ProcessMemory.group, isShort: true, offeredBytes: offered) > 0
  }

  // MARK: Forks (ForkGuard.swift)

  func forEachCompanion(_ body: (any ForkProtected) -> Void) {}
  /// A subclass takes its own mutexes first.
  func lockForFork() { relief.lock() }
  func unlockAfterFork() { relief.unlock() }
  /// The child does not have the parent's thread.
  final func forgetInChild() { relief.withLock { $0 = ReliefNotes() } }
}
