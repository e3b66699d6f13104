// SPDX-License-Identifier: MIT
// What a cache of objects does when memory is short. The content of objects, their ends and the handlers are the program's code,
// which the library's thread must not wait for: a thread of the cache's own does it, and ends when it is done.

import CPurgeablePressure
import Synchronization

struct ObjectReliefNotes {
  var isWanted = false
  var hasThread = false
}

extension ObjectStore: PressureClient {
  var holdsAnything: Bool { books.count > 0 }
  var offeredBytes: Int { 0 }
  /// Objects go back to the program's allocator; how much of it reaches the system is not known here.
  var returnedBytes: Int { 0 }

  func upkeepRound() -> Bool { false }
  func setPressure(_ level: PressureLevel) { books.pressure.store(level.rawValue, ordering: .relaxed) }
  func offerAll() -> Int { 0 }
  func dropLost() -> Int { 0 }
  func beginReaction() {}
  func shrinkBookkeeping(_ level: PressureLevel) {}
  func beginSlowGrowth() {}

  /// Has the cache's thread give slices. False: what the others hold decides when the reaction ends.
  func giveSlice(ofParts parts: Int) -> Bool {
    let needsThread = relief.withLock { notes -> Bool in
      notes.isWanted = true
      defer { notes.hasThread = true }
      return !notes.hasThread
    }
    // Without a thread, the next event tries again.
    if needsThread, !startTelling() { relief.withLock { $0.hasThread = false } }
    return false
  }

  /// On the cache's thread.
  func relieve() {
    while relief.withLock({ notes -> Bool in
      defer { (notes.isWanted, notes.hasThread) = (false, notes.isWanted) }
      return notes.isWanted
    }) {
      let begin = MonotonicTime.now
      let before = books.count
      _ = sweep()
      var gave = giveSlice()
      while gave, MonotonicTime.now - begin < PressureReaction.timeLimit, isShort { gave = giveSlice() }
      for shard in 0..<Self.shardCount { hold(shard: shard) { $0.table.shrink() } }
      purgeable__return_free_memory()
      books.growth.begin(before: before, held: books.count, now: books.clock.now())
    }
  }

  private var isShort: Bool {
    // What was freed is no room before it has left the allocator.
    purgeable__return_free_memory()
    let offered = ListedClients().reduce(UInt64(0)) { $0 + UInt64($1.offeredBytes) }
    return MemoryRoom.missingBytes(in: ProcessMemory.group, isShort: true, offeredBytes: offered) > 0
  }
}
