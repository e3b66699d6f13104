// SPDX-License-Identifier: MIT
// Inserting a slot into a shard's index, which may have to grow for it, or to evict another entry.

import CPurgeable
import Synchronization

struct IndexInsertion {
  let slot: Slot

  /// False when there is no memory for it; the slot is not inserted then.
  func run(in held: inout HeldShard) -> Bool {
    assert(held.index.find(identity: slot.identity, place: slot.place) == nil, "PurgeableCache: an element has a slot already")
    if (held.slots.count + 1) * 100 > held.index.current().slotCount * 84 {
      held.sweepBeforeGrowth()
      if (held.slots.count + 1) * 100 > held.index.current().slotCount * 84 { _ = grow(&held) }
    }
    for attempt in 0..<8 {
      if held.index.insert(slot) {
        held.slots.fill()
        if held.ghost.rememberedLimit == 0 { held.prepareGhost() }
        return true
      }
      // In a large table, the two buckets of some slot are full long before 84 % of all slots are.
      let before = held.slots.count
      held.sweepBeforeGrowth()
      if held.slots.count < before - before / 16 { continue }
      let reason = held.base.refusalReason
      if grow(&held) { continue }
      // First a sixteenth of the entries, which makes room for the next stores too. If both buckets of this slot are still full,
      // then one entry in them.
      guard attempt == 0 ? evictSixteenth(reason, &held) : evictRival(reason, &held) else { return false }
    }
    return false
  }

  /// Evicts the least used entry in the slot's two buckets; of several, the oldest.
  private func evictRival(_ reason: DepartureReason, _ held: inout HeldShard) -> Bool {
    var rival: FoundSlot?
    var least = (counter: UInt64.max, age: UInt64.max)
    let now = held.base.indexes.birthCount
    for found in held.index.current().neighbours(of: slot.identity) {
      let rank = (counter: found.slot.counter, age: held.heap.age(at: found.slot.place, now: now))
      if held.order.goesFirst(rank, before: least) { (rival, least) = (found, rank) }
    }
    guard let rival else { return false }
    held.drop(rival, held.elements.isGone(rival.slot.place) ? .discarded : reason)
    return true
  }

  /// Evicts a sixteenth of the entries when there is no memory for a larger index: that makes room in most buckets. In a small
  /// cache, a slab would be far more than that.
  private func evictSixteenth(_ reason: DepartureReason, _ held: inout HeldShard) -> Bool {
    let wanted = held.slots.count / 16 + 1
    for i in 0..<wanted where !EntryEviction(reason: reason).run(in: &held) { return i > 0 }
    return true
  }

  /// Grows the index to the next size that fits. Evicts a slab rather than grow past the byte limit.
  private func grow(_ held: inout HeldShard) -> Bool {
    let limit = held.base.limits.bytes.load(ordering: .relaxed)
    let before = held.index.byteCount
    var sizeClass = held.index.sizeClass
    for _ in 0..<3 {
      sizeClass = SlotIndex.nextSizeClass(after: sizeClass)
      guard sizeClass < SlotIndex.classCount else { return false }
      let growth = SlotIndex.byteCount(of: sizeClass) - before
      if limit != .max, held.base.chargedBytes + growth > limit, held.evictSlab(.bytes) { return true }
      if held.resizeIndex(to: sizeClass) {
        if held.base.limits.bytes.load(ordering: .relaxed) == .max { held.prepareGhost() }
        return true
      }
    }
    return false
  }
}
