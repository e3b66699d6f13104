// SPDX-License-Identifier: MIT
// Eviction by an order that names entries (EntryOrder.swift).
//
// The entries that go lie anywhere in the slabs, and memory goes back by whole slabs. So an eviction for bytes has two parts:
// entries go until a quarter of what is to stay held would be holes; then what lives in the slabs with the most holes moves
// together. Where all entries are used alike, the least recently used lie together in the oldest slab, and nothing moves.

import CPurgeable

extension HeldShard {
  /// Notes that an entry was hit, if it is still there. `table`: in which it was found, where that is known.
  mutating func noteHit(_ found: FoundSlot, in table: SlotIndex.Table?) {
    let slot = found.slot
    // Most likely nothing has changed since.
    let isThere = index.current().word == table?.word && Slot(bits: found.pointer.relaxed).isSameEntry(as: slot)
    guard let now = isThere ? found : index.find(identity: slot.identity, place: slot.place) else { return }
    noteUse(of: now)
  }

  /// Tells an order that names entries of a hit. `found`: the slot as it was before.
  @inline(__always)
  mutating func noteUse(of found: FoundSlot) {
    if entryOrder != nil { noteUse(of: found, as: isPinned(found.slot.place) ? .pinned : .normal) }
  }

  /// Tells an order that names entries of a use that leaves the entry with a priority.
  mutating func noteUse(of found: FoundSlot, as new: EntryPriority) {
    guard let entryOrder else { return }
    let isSame = new == priority(of: found.slot)
    if isSame { entryOrder.used(position(of: found), as: new) } else { entryOrder.putOff(position(of: found), as: new) }
  }

  func position(of found: FoundSlot) -> UInt32 { UInt32(truncatingIfNeeded: index.number(of: found.pointer)) }

  /// As `nextToGo`.
  mutating func next(by entryOrder: any EntryOrder) -> NextToGo? {
    guard let position = entryOrder.next(after: nil), let slots = index.current().slots else { return nil }
    let pointer = slots[Int(position)]
    let slot = Slot(bits: pointer.relaxed)
    assert(!slot.isEmpty, "PurgeableCache: the order names an entry that has left")
    if isPinned(slot.place) { return nil }
    let found = FoundSlot(pointer: pointer, slot: slot)
    guard !elements.isGone(slot.place), let facts = elements.facts(of: slot) else {
      drop(found, .discarded)
      return .gone
    }
    return .entry(FoundEntry(found: found, facts: facts))
  }

  /// Gives back so many bytes at least, counting the entries that are copied. False when nothing could be given back.
  mutating func evictEntries(ofBytes byteCount: Int, _ reason: DepartureReason) -> Bool {
    if dropDueSlab() || dropHollow(ofBytes: byteCount, reason) { return true }
    let (countBefore, heldBefore) = (slots.count, heap.heldBytes)
    let goal = heldBefore - min(heldBefore, byteCount)
    while livingBytes > goal / 4 * 3, evictEntry(reason) {}
    // Slabs that are three quarters alive give memory back with the fourth that moves; those whose entries leave gaps that no
    // other fits, never.
    var (fruitless, least) = (0, heap.heldBytes)
    while heap.heldBytes > goal {
      if fruitless < 4 {
        compactSparsest()
        fruitless = heap.heldBytes < least ? 0 : fruitless + 1
        least = min(least, heap.heldBytes)
      } else if evictEntry(reason) {
        fruitless = 0
      } else {
        // Nothing is left; an open slab without entries goes back when it is sealed.
        for lane in usedLanes { heap.seal(stream(lane)) }
        break
      }
    }
    shrinkIndex()
    return slots.count < countBefore || heap.heldBytes < heldBefore
  }

  /// Of some slabs from where the last search stopped, moves together what lives in the one with the fewest living bytes, if
  /// they are less than this share of it.
  mutating func compactSparsest(below most: Double = 0.95) {
    var next = heap.information(compaction.cursor) == nil ? nextSlab(after: nil) : compaction.cursor
    var sparsest: (slab: purgeable_slab_t, living: Double)?
    for _ in 0..<S3FIFOOrder.compactionLooks {
      guard let slab = next, let facts = heap.information(slab)?.facts else { break }
      next = nextSlab(after: slab)
      let living = Double(facts.livingBytes) / Double(max(1, facts.heldBytes))
      if !facts.isOpen, !facts.isLarge, !facts.isLocked, living < sparsest?.living ?? most { sparsest = (slab, living) }
    }
    compaction.cursor = next ?? .none
    if let sparsest { _ = run(over: sparsest.slab, .compaction) }
  }

  /// The slab after one, lane by lane; nil begins with the first.
  private func nextSlab(after slab: purgeable_slab_t?) -> purgeable_slab_t? {
    var lanes = usedLanes
    if let slab {
      if let next = heap.next(after: slab) { return next }
      let last = heap.lane(at: heap.start(of: slab))
      while let lane = lanes.next(), lane != last {}
    }
    while let lane = lanes.next() { if let oldest = heap.oldest(of: stream(lane)) { return oldest } }
    return nil
  }
}
