// SPDX-License-Identifier: MIT
// Inserting a slot into a shard's index, which may have to grow for it, or to evict another entry.

import Synchronization

extension HeldShard {
  /// Inserts the slot of a new entry. False when there is no memory for it; the slot is not inserted then. `isRestored`: evicts
  /// nothing.
  mutating func insert(_ slot: Slot, lastUse: UseTime?, isRestored: Bool = false) -> Bool {
    assert(index.find(identity: slot.identity, place: slot.place) == nil, "PurgeableCache: an element has a slot already")
    if isIndexFull {
      sweepBeforeGrowth()
      if isIndexFull { _ = growIndex(evicts: !isRestored) }
    }
    if let entryOrder, entryOrder.byteCount == 0 {
      guard entryOrder.resize(slotCount: index.current().slotCount, { _ in nil }) else { return false }
      noteIndexBytes()
    }
    for attempt in 0..<8 {
      if let number = index.insert(slot, lastUse: lastUse) {
        slots.fill()
        if let entryOrder {
          let (position, priority) = (UInt32(truncatingIfNeeded: number), priority(of: slot))
          if isRestored { entryOrder.restored(position, as: priority) } else { entryOrder.entered(position, as: priority) }
        }
        if base.limits.hasFeltPressure { readyGhost() } else if ghost.rememberedLimit == 0 { prepareGhost() }
        return true
      }
      // In a large table, the two buckets of some slot are full long before 84 % of all slots are.
      let before = slots.count
      sweepBeforeGrowth()
      if slots.count < before - before / 16 { continue }
      let reason = base.refusalReason
      if growIndex(evicts: !isRestored) { continue }
      if isRestored { return false }
      // First some of all entries. If both buckets of this slot are still full, then one entry in them.
      guard attempt == 0 ? evictForRoom(reason) : evictRival(of: slot, reason) else { return false }
    }
    return false
  }

  /// Whether the index has room for another entry, or may grow for it without an eviction.
  var hasIndexRoom: Bool {
    let limit = base.limits.bytes.load(ordering: .relaxed)
    if limit == .max || !isIndexFull { return true }
    let larger = SlotIndex.nextSizeClass(after: index.sizeClass)
    guard larger < SlotIndex.classCount else { return false }
    return chargedBytes + index.byteCount(ofSize: larger) - index.byteCount <= limit
  }

  private var isIndexFull: Bool { (slots.count + 1) * 100 > index.current().slotCount * 84 }

  /// Evicts the least used entry in the slot's two buckets; of several, the oldest.
  private mutating func evictRival(of slot: Slot, _ reason: DepartureReason) -> Bool {
    var rival: FoundSlot?
    var least = (counter: UInt64.max, age: UInt64.max)
    let now = base.indexes.birthCount
    for found in index.current().neighbours(of: slot.identity) where !isPinned(found.slot.place) {
      let rank = (counter: found.slot.counter, age: heap.age(at: found.slot.place, now: now))
      if order.goesFirst(rank, before: least) { (rival, least) = (found, rank) }
    }
    guard let rival else { return false }
    drop(rival, elements.isGone(rival.slot.place) ? .discarded : reason)
    return true
  }

  /// Makes room in most buckets. In a small cache, a slab would be far more than that.
  private mutating func evictForRoom(_ reason: DepartureReason) -> Bool {
    for i in 0..<order.countForRoom(ofEntries: slots.count) where !evictEntry(EvictionNeed(reason)) { return i > 0 }
    return true
  }

  /// Grows the index to the next size that fits. Evicts a slab rather than grow past the byte limit, if it may.
  private mutating func growIndex(evicts: Bool) -> Bool {
    let limit = base.limits.bytes.load(ordering: .relaxed)
    let before = index.byteCount
    var sizeClass = index.sizeClass
    for _ in 0..<3 {
      sizeClass = SlotIndex.nextSizeClass(after: sizeClass)
      guard sizeClass < SlotIndex.classCount else { return false }
      // Less the home, a page: a limit that is exceeded by so little is enforced after the store, from all shards.
      let growth = index.byteCount(ofSize: sizeClass) - SlotIndex.homeBytes - before
      if limit != .max, chargedBytes + growth > limit {
        guard evicts else { return false }
        if evictSlab(.bytes) { return true }
      }
      if resizeIndex(to: sizeClass) {
        if base.limits.bytes.load(ordering: .relaxed) == .max { prepareGhost() }
        return true
      }
    }
    return false
  }
}
