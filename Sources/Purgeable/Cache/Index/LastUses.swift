// SPDX-License-Identifier: MIT
// When the entry of each slot was last used, where entries expire some time after that: 4 bytes a slot, behind a table's slots.
//
//   | slots, 8 bytes each | last uses, 4 bytes each |
//
// They take memory with the first such entry. Who looks in the index writes and reads them without a mutex:
//
//   store      last use, then the slot (release); in place of another entry the slot, then the last use (release)
//   hit        bytes of the entry, its last use, the clock; fence; slot again: until then it was this entry, so it was this
//              entry's last use, and its time was not over. Then the clock as it was read is noted, unless a later use is there
//
// A late note so falls on the slot's next entry only with an earlier time than that has. A new entry may be taken for one whose
// last use is an older entry's: whoever finds an entry over by its last use looks again under the mutex. What is noted while the
// slots move to another table, or to another shard, may be lost: such an entry's time is over early, never late.

import Synchronization

/// A moment of the cache's clock in steps of 10 ms, rounded down, so that no entry lives too long. It comes round in 497 days.
struct UseTime: Equatable {
  let steps: UInt32

  init(steps: UInt32) { self.steps = steps }
  init(_ moment: UInt64) { steps = UInt32(truncatingIfNeeded: moment / Lifetime.useStep) }

  /// How many steps later another is; 0 where it is not.
  func steps(until later: UseTime) -> UInt32 { UInt32(max(0, Int32(bitPattern: later.steps &- steps))) }

  /// In nanoseconds, as it is known half the way round later.
  func moment(asOf now: UInt64) -> UInt64 {
    let stepsNow = now / Lifetime.useStep
    return (stepsNow - min(stepsNow, UInt64(steps(until: UseTime(now))))) * Lifetime.useStep
  }
}

/// The last use of one slot's entry. `@safe`: made only for a slot of a table, whose mapping stays until the cache is destroyed.
@safe struct LastUse {
  private let word: UnsafeMutablePointer<Atomic<UInt32>>

  /// `slots`: a table's first slot.
  init(at number: Int, behind slots: SlotPointer, slotCount: Int) {
    unsafe word = (slots[slotCount].raw + MemoryLayout<UInt32>.stride * number).assumingMemoryBound(to: Atomic<UInt32>.self)
  }

  var time: UseTime { unsafe UseTime(steps: word.pointee.load(ordering: .relaxed)) }

  /// Release: orders it behind what was stored to the slot before, as said on top.
  func set(_ time: UseTime) { unsafe word.pointee.store(time.steps, ordering: .releasing) }

  /// Notes a use, unless a later one is noted. Of two at the same moment, one may be lost.
  func note(_ time: UseTime) {
    if self.time.steps(until: time) > 0 { set(time) }
  }
}
