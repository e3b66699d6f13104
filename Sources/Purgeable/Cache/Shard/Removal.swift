// SPDX-License-Identifier: MIT
// Removing everything from a shard. Where departures are told with values, this is done in slices, between which the shard's
// mutex is free.

import CPurgeable

/// How far the removal of everything has got in a shard.
struct Removal {
  private var position = 0
  /// The version of the table that the position is in.
  private var table: UInt64 = 0
  private var restarts = 0

  /// Removes the next slice. Returns whether it was the last.
  mutating func removeSlice(_ reason: DepartureReason, from held: inout HeldShard) -> Bool {
    let table = held.index.current()
    guard let slots = table.slots else { return true }
    if table.word != self.table {
      // The index was resized meanwhile, so the pass starts over. Restarts are bounded, because a handler may store as much as is
      // removed.
      (position, self.table) = (0, table.word)
      restarts += 1
    }
    while position < table.slotCount {
      let pointer = slots[position]
      let slot = Slot(bits: pointer.relaxed)
      position += 1
      if slot.isEmpty { continue }
      held.drop(FoundSlot(pointer: pointer, slot: slot), reason)
      if held.departures.sliceIsFull, restarts < 16 { return false }
    }
    // What was trimmed may be asked for again.
    if reason == .removed { held.ghost.removeAll() }
    held.shrinkIndex()
    for queue in EvictionQueue.both { held.heap.seal(held.stream(queue)) }
    return true
  }
}
