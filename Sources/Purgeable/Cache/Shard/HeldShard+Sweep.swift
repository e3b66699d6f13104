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
      books.unbookPage(reference.place, heap.queue(at: reference.place), isLost: true)
      // An element that is passed again counts too: a queue with few others would be passed again and again.
      passedLostCount += max(1, before - books.count)
      if passedLostCount > slots.count / 16 { sweepLost() }
    } else {
      // A later page of the element, or a loss that the core has not noted.
      sweepLost()
    }
    return books.count < before
  }

  /// Drops the entries whose pages are known to be lost, in one pass over the slots.
  mutating func sweepLost() {
    passedLostCount = 0
    if heap.hasLosses { passSlots(dropsLost: true) }
  }

  /// As `sweepLost`, for a sweep that the program asks for: a pass before it counts what will be dropped, and the ghost grows to
  /// remember it. By no more memory than the index gives back afterwards (`shrinkIndex`): a sweep makes bookkeeping no larger.
  mutating func sweepRemembering() {
    guard heap.hasLosses else { return sweepLost() }
    let lostCount = passSlots(dropsLost: false)
    let shrunk = SlotIndex.byteCount(of: shrunkSizeClass(ofCount: slots.count - lostCount))
    let room = ghost.byteCount + max(0, index.byteCount - shrunk - Int(purgeable_page_size_bytes()))
    ghost.reserve(min(lostCount, wantedGhost, room / Ghost.mostBytesOfKey))
    sweepLost()
  }

  /// Returns how many slots lead to pages that are known to be lost, and drops those entries where it should.
  @discardableResult
  private mutating func passSlots(dropsLost: Bool) -> Int {
    let table = index.current()
    guard let tableSlots = table.slots else { return 0 }
    var (cursor, lostCount) = (0, 0)
    // On the stack.
    var found = InlineArray<256, UInt32>(repeating: 0)
    while cursor < table.slotCount {
      let count = heap.findLosses(tableSlots, table.slotCount, &cursor, &found)
      assert(count <= found.count && cursor <= table.slotCount, "PurgeableCache: losses are found beyond the table")
      lostCount += count
      for i in 0..<(dropsLost ? count : 0) {
        let pointer = tableSlots[Int(found[i])]
        let slot = Slot(bits: pointer.relaxed)
        if !slot.isEmpty, elements.isGone(slot.place) { drop(FoundSlot(pointer: pointer, slot: slot), .discarded) }
      }
    }
    return lostCount
  }
}
