// SPDX-License-Identifier: MIT
// Where slots and other words that threads share lie.

import CPurgeable
import Synchronization

/// Words that threads share, in memory that outlives all of its readers.
///
/// `@safe`: made only of mappings that stay until the cache is destroyed, and indexed only within a table's bounds.
/// `@unchecked Sendable`: all accesses are atomic.
@safe struct SlotPointer: @unchecked Sendable {
  private let words: UnsafeMutablePointer<Atomic<UInt64>>

  /// Zeroed memory is valid as atomics: an `Atomic<UInt64>` is a plain word.
  init(_ start: UnsafeMutableRawPointer, count: Int) {
    unsafe words = start.bindMemory(to: Atomic<UInt64>.self, capacity: count)
  }

  init?(address: UInt64) {
    guard let words = unsafe UnsafeMutablePointer<Atomic<UInt64>>(bitPattern: UInt(address)) else { return nil }
    unsafe self.words = words
  }

  private init(_ words: UnsafeMutablePointer<Atomic<UInt64>>) { unsafe self.words = words }

  @inline(__always) subscript(index: Int) -> SlotPointer { unsafe SlotPointer(words + index) }

  var raw: UnsafeMutableRawPointer { unsafe UnsafeMutableRawPointer(words) }

  @inline(__always) func prefetch() { unsafe purgeable_prefetch(words) }
  @inline(__always) var relaxed: UInt64 { unsafe words.pointee.load(ordering: .relaxed) }
  @inline(__always) var acquired: UInt64 { unsafe words.pointee.load(ordering: .acquiring) }
  @inline(__always) func store(relaxed value: UInt64) { unsafe words.pointee.store(value, ordering: .relaxed) }
  @inline(__always) func store(releasing value: UInt64) { unsafe words.pointee.store(value, ordering: .releasing) }
  /// Adds, and returns the value before.
  @discardableResult
  @inline(__always) func add(_ value: UInt64) -> UInt64 {
    unsafe words.pointee.wrappingAdd(value, ordering: .relaxed).oldValue
  }

  /// Exchanges if the value is the expected one; returns the value before.
  @inline(__always) func exchange(_ expected: UInt64, for desired: UInt64) -> (exchanged: Bool, original: UInt64) {
    unsafe words.pointee.compareExchange(expected: expected, desired: desired, ordering: .acquiringAndReleasing)
  }

  /// Counts a use of the entry that `slot` was. Does nothing when the slot has changed: the use was not of the new entry.
  @inline(__always) func countUse(of slot: Slot) {
    guard slot.counter < Slot.highestCounter else { return }
    // Weak and relaxed: counters are only hints, so a use may go uncounted.
    tryExchange(slot.bits, for: slot.bits &+ 1 << Slot.counterShift)
  }

  /// Sets a slot's counter. The shard's mutex is held, so only readers change the slot meanwhile.
  func setCounter(_ counter: UInt64) {
    assert(counter <= Slot.highestCounter, "PurgeableCache: a counter of more than two bits")
    while true {
      let now = relaxed
      if exchange(now, for: Slot(bits: now).with(counter: counter)).exchanged { return }
    }
  }

  /// May fail spuriously, and orders nothing.
  @inline(__always) func tryExchange(_ expected: UInt64, for desired: UInt64) {
    _ = unsafe words.pointee.weakCompareExchange(expected: expected, desired: desired, ordering: .relaxed)
  }
}
