// SPDX-License-Identifier: MIT
// Eviction by an order that names entries (EntryOrder.swift).
//
// The entries that go lie anywhere in the slabs, and memory goes back by whole slabs. So an eviction for bytes has two parts:
// entries go until a quarter of what is to stay held would be holes; then what lives in the slabs with the most holes moves
// together. Where all entries are used alike, the least recently used lie together in the oldest slab, and nothing moves.

extension HeldShard {
  /// Notes that an entry was hit, if it is still there. `table`: in which it was found.
  mutating func noteHit(_ found: FoundSlot, in table: SlotIndex.Table) {
    let slot = found.slot
    // Most likely nothing has changed since.
    let isThere = index.current().word == table.word && Slot(bits: found.pointer.relaxed).isSameEntry(as: slot)
    guard let now = isThere ? found : index.find(identity: slot.identity, place: slot.place) else { return }
    noteUse(of: now)
  }

  /// Tells an order that names entries of a use that leaves the entry with a priority; nil: of a hit. `found`: the slot as it was
  /// before.
  mutating func noteUse(of found: FoundSlot, as given: EntryPriority? = nil) {
    guard let entryOrder else { return }
    let new = given ?? (isPinned(found.slot.place) ? .pinned : .normal)
    let isSame = new == priority(of: found.slot)
    if isSame { entryOrder.used(position(of: found), as: new) } else { entryOrder.putOff(position(of: found), as: new) }
  }

  func position(of found: FoundSlot) -> UInt32 { UInt32(truncatingIfNeeded: index.number(of: found.pointer)) }

  /// As `nextToGo`.
  mutating func next(by entryOrder: any EntryOrder, _ need: EvictionNeed, sparing own: UInt64?) -> NextToGo? {
    var (last, hasPassedOwn) = (need.isOfCost ? entryOrder.passed : nil, false)
    while let position = entryOrder.next(after: last), let slots = index.current().slots {
      let pointer = slots[Int(position)]
      let slot = Slot(bits: pointer.relaxed)
      assert(!slot.isEmpty, "PurgeableCache: the order names an entry that has left")
      if isPinned(slot.place) { return nil }
      let found = FoundSlot(pointer: pointer, slot: slot)
      guard !elements.isGone(slot.place), let facts = elements.facts(of: slot) else {
        drop(found, .discarded)
        return .gone
      }
      // Its eviction would free no cost.
      let isFree = need.isOfCost && elements.cost(of: slot, facts) == 0
      if slot.place != own, !isFree { return .entry(found, facts) }
      last = position
      // Its own cost is about to change.
      if slot.place == own { hasPassedOwn = true }
      if !hasPassedOwn { entryOrder.passed = position }
    }
    return nil
  }

  /// Gives back so many bytes at least, counting the entries that are copied. False when nothing could be given back.
  mutating func evictEntries(ofBytes byteCount: Int, _ reason: DepartureReason) -> Bool {
    let (countBefore, heldBefore) = (slots.count, heap.heldBytes)
    let goal = heldBefore - min(heldBefore, byteCount)
    while heap.heldBytes > goal, livingBytes > goal / 4 * 3, evictEntry(EvictionNeed(reason)) {}
    // Slabs that are three quarters alive give memory back with the fourth that moves; those whose entries leave gaps that no
    // other fits, never.
    var (fruitless, least) = (0, heap.heldBytes)
    while heap.heldBytes > goal {
      if fruitless < 4 {
        compactSparsest()
        fruitless = heap.heldBytes < least ? 0 : fruitless + 1
        least = min(least, heap.heldBytes)
      } else if evictEntry(EvictionNeed(reason)) {
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
}
