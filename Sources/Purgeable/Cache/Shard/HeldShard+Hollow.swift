// SPDX-License-Identifier: MIT
// Entries that stay when their values are lost (`CacheOptions.evictsEntriesWithDiscardedContent`): hollow entries.
//
// Such a cache tracks all its keys, and has one shard. When a value is found lost, its slot and its element go as ever, and its
// key stays in the shard's table: it counts as an entry, costs nothing, and says why there is no value, until a store, a removal
// or an eviction ends it. Evictions take hollow entries first, but for the cost limit: nothing else of them can be given back.
// Where the option is not chosen, there is none, and all this costs a look at one flag.

extension HeldShard {
  func isHollow(_ key: EngineKey) -> Bool { base.keepsLost && key.isTracked && keys.isHollow(key.trackedNumber) }

  /// Ends the hollow entry of a key. False where there is none.
  @discardableResult
  mutating func endHollow(_ key: EngineKey, _ reason: DepartureReason) -> Bool {
    guard isHollow(key) else { return false }
    endHollow(key.trackedNumber, reason)
    return true
  }

  private mutating func endHollow(_ number: UInt32, _ reason: DepartureReason) {
    keys.endHollow(number)
    books.addLost(-1)
    let slot = Slot(bits: EngineKey(trackedNumber: number, hash: 0).identity)
    noteInGhost(slot, reason, from: nil)
    report(slot, reason, .discarded)
  }

  /// The ordinary memory of the entries that are kept without their values.
  var lostBytes: Int { books.lostCount * (base.observer?.nodes.nodeByteCount ?? 0) }

  /// Ends so many hollow entries at most, the oldest first. False where there were none.
  mutating func dropHollow(_ most: Int, _ reason: DepartureReason) -> Bool {
    var left = most
    while left > 0, let number = keys.firstHollow {
      endHollow(number, reason)
      left -= 1
    }
    return left < most
  }

  /// As many as take so many bytes of ordinary memory.
  mutating func dropHollow(ofBytes byteCount: Int, _ reason: DepartureReason) -> Bool {
    dropHollow(byteCount / (base.observer?.nodes.nodeByteCount ?? .max) + 1, reason)
  }

  /// Drops what has no value any more before entries have to go for want of room. False where there was nothing.
  mutating func dropDead(for need: EvictionNeed) -> Bool {
    dropExpiredForRoom() || !need.isOfCost && dropHollow(1, need.reason)
  }
}
