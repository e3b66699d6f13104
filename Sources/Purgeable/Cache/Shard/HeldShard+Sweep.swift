// SPDX-License-Identifier: MIT
// Dropping lost entries from a shard.

import CPurgeable

extension HeldShard {
  /// Called before the index grows: lost entries need no room in a larger one. (A sweep once a second would not do. In a small
  /// control group, a program that stores fast loses far more entries within a second than the group can hold, and their slots
  /// would take memory that cannot be discarded.)
  mutating func sweepBeforeGrowth() {
    if base.sweepPace.isDue(now: base.clock.now()) { base.findLosses() }
    sweepLost()
  }

  /// Called by an eviction that finds an element lost. Takes it off the books, if the element's page is lost together with the
  /// page's other entries; their slots are dropped by a pass over all slots, once a sixteenth of them is due. True when an entry
  /// left the books.
  mutating func passLost(_ reference: purgeable_reference_t) -> Bool {
    let before = books.count
    if heap.isLost(reference.place) {
      books.unbookLostPage(reference.place, heap.queue(at: reference.place))
      passedLostCount += before - books.count
      if passedLostCount > slots.count / 16 { sweepLost() }
    } else {
      // A later page of the element, or a loss that the core has not noted.
      sweepLost()
    }
    return books.count < before
  }

  /// One pass over the slots: drops the entries whose pages are known to be lost.
  mutating func sweepLost() {
    passedLostCount = 0
    guard heap.hasLosses else { return }
    let table = index.current()
    guard let tableSlots = table.slots else { return }
    var cursor = 0
    // On the stack.
    var found = InlineArray<256, UInt32>(repeating: 0)
    while cursor < table.slotCount {
      let count = heap.findLosses(tableSlots, table.slotCount, &cursor, &found)
      assert(count <= found.count && cursor <= table.slotCount, "PurgeableCache: losses are found beyond the table")
      for i in 0..<count {
        let pointer = tableSlots[Int(found[i])]
        let slot = Slot(bits: pointer.relaxed)
        if !slot.isEmpty, elements.isGone(slot.place) { drop(FoundSlot(pointer: pointer, slot: slot), .discarded) }
      }
    }
  }
}
