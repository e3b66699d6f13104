// SPDX-License-Identifier: MIT
// The target of a load: the cache, or one of its rivals.

import Purgeable

/// A store of bytes by number. Called from as many threads as the load has.
protocol StressStore: Sendable {
  /// Copies a key's bytes into `buffer`; nil when it has none.
  func read(_ key: UInt64, into buffer: UnsafeMutableRawBufferPointer) -> Int?
  /// Whether it was stored.
  func store(_ key: UInt64, _ bytes: UnsafeRawBufferPointer) -> Bool
  /// What it says about its memory.
  var facts: Tally { get }
}

extension StressStore {
  var facts: Tally { [:] }
}

extension PurgeableCache: StressStore where Key == UInt64, Value == [UInt8] {
  func read(_ key: UInt64, into buffer: UnsafeMutableRawBufferPointer) -> Int? {
    guard case .hit(let byteCount) = unsafe read(forKey: key, into: buffer) else { return nil }
    return byteCount
  }

  func store(_ key: UInt64, _ bytes: UnsafeRawBufferPointer) -> Bool {
    let outcome = unsafe setValue(Array(bytes), forKey: key)
    // Another thread may have been faster.
    return outcome == .stored || outcome == .replaced
  }

  var facts: Tally {
    let statistics = statistics
    var tally: Tally = [
      "entries": UInt64(statistics.count), "residentBytes": UInt64(statistics.memory.residentBytes ?? 0),
      "offeredBytes": UInt64(statistics.memory.offeredBytes), "heldBytes": UInt64(statistics.memory.heldBytes),
      "ordinaryBytes": UInt64(statistics.memory.ordinaryBytes), "payloadBytes": UInt64(statistics.memory.payloadBytes),
      "refusals": UInt64(statistics.refusalCount),
    ]
    tally["discardedEntries"] = UInt64(statistics.departures[.discarded] ?? 0)
    tally["evictedEntries"] = UInt64(statistics.departures[.pressure] ?? 0)
    tally["coreBytes"] = UInt64(statistics.coreBytes)
    tally["copies"] = UInt64(statistics.copyCount)
    return tally
  }
}
