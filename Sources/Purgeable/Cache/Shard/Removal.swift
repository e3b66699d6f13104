// SPDX-License-Identifier: MIT
// Removing everything from a shard.
//
// Where keys are tracked, entry by entry, in slices, between which the shard's mutex is free. Where none are, all at once:
//
//   under the shard's mutex   the index begins anew, empty; page sums and totals become 0; the slabs leave the shard's streams
//                             for the heap's stream of removed slabs
//   after its release         elements of removed slabs are freed, and the slabs given back
//
// A removed slab belongs to no shard. No slot leads there, no sum counts its entries, and evictions do not find it. Only its
// memory is still there: so a store that finds nothing left to evict gives removed slabs back itself (`giveBackRemoved`).

import CPurgeable

extension HeldShard {
  /// Removes all entries, none of which may have a tracked key. Their slabs are the removed stream's then. About 1 us for a slab,
  /// and one system call.
  mutating func detachAll(_ reason: DepartureReason) {
    assert(base.observer == nil || slots.count == 0, "PurgeableCache: a tracked entry leaves untold")
    if reason != .removed {
      // What was trimmed may be asked for again.
      let (index, heap) = (index, heap)
      index.forEachSlot { slot in remember(slot.identity, heap.isLost(slot.place) ? .discarded : .evicted) }
    }
    counters.departures[reason.rawValue] += UInt64(slots.count)
    // The index first: a reader that is still looking at it finds its version raised before any element is freed.
    index.empty()
    for lane in usedLanes {
      heap.seal(stream(lane))
      // A slab that was locked and has no elements may end at any moment: so it is always the oldest that leaves.
      while let slab = heap.oldest(of: stream(lane)) {
        for page in heap.pages(of: slab) { books.unbookPage(page, lane.queue) }
        guard heap.move(slab, to: heap.removedStream) || heap.information(slab) == nil else { break }
      }
    }
    books.forgetAll()
    forgetEntries(keepingGhost: reason != .removed)
    assert(books.count == 0 && books.cost == 0, "PurgeableCache: a shard that was emptied has entries")
  }
}

extension CacheBase {
  /// Gives back removed slabs, of all removals under way, until `byteCount` bytes or all of them are gone. Returns how many
  /// bytes. Any thread, with or without a shard's mutex.
  @discardableResult
  func giveBackRemoved(_ byteCount: Int = .max) -> Int {
    var gone = 0
    var following = heap.nextInUse(after: nil, of: heap.removedStream)
    while gone < byteCount, let slab = following {
      following = heap.nextInUse(after: slab, of: heap.removedStream)
      gone += heap.information(slab).map { Int($0.held_bytes) } ?? 0
      heap.freeElements(of: slab)
      heap.giveBack(slab)
    }
    return gone
  }
}

/// How far the removal of everything from a shard with tracked keys has got.
struct TrackedRemoval {
  /// Of a slice: bounds how long other threads wait.
  private static let entriesPerSlice = 256

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
    var dropped = 0
    while position < table.slotCount {
      let pointer = slots[position]
      let slot = Slot(bits: pointer.relaxed)
      position += 1
      if slot.isEmpty { continue }
      held.drop(FoundSlot(pointer: pointer, slot: slot), reason)
      dropped += 1
      if dropped >= Self.entriesPerSlice || held.departures.sliceIsFull, restarts < 16 { return false }
    }
    if held.dropHollow(Self.entriesPerSlice, reason) { return false }
    // What was trimmed may be asked for again.
    if reason == .removed { held.ghost.removeAll() }
    held.shrinkIndex()
    for lane in held.usedLanes { held.heap.seal(held.stream(lane)) }
    return true
  }
}
