// SPDX-License-Identifier: MIT
// Eviction one slab at a time: for the byte limit, and where the machine refuses memory. `EvictionOrder` decides which entries
// go.
//
//   choose       a sparse slab, else the oldest slab of the queue whose turn it is
//   empty        each entry is evicted, or copied to the young end of main (SlabNotes.swift)
//   give back    the slab, when no slot leads to it any more
//
// Stores also compact sparse slabs, one at a time.

import CPurgeable

extension HeldShard {
  /// Gives one slab back: a sparse one (`EvictionOrder.isSparse`), else the oldest of the queue whose turn it is. False when
  /// nothing could be given back.
  mutating func evictSlab(_ reason: DepartureReason) -> Bool {
    // Memory of entries that another thread is removing goes before entries that live.
    if base.removalCount.load(ordering: .relaxed) > 0, base.giveBackRemoved(heap.slabBytes) > 0 { return true }
    if reason.cause != .relief { index.noteEviction() }
    // A large entry that was used is passed on to main, which frees nothing. The attempts are bounded, because readers may use
    // large entries all the time.
    let attempts = 16
    for attempt in 1...attempts {
      guard let slab = chooseSlab(reason) else { return false }
      if emptySlab(slab, mayPassOn: attempt < attempts, reason) { return true }
    }
    return false
  }

  /// Copies or evicts the entries of a slab, and gives the slab back. `mayPassOn`: whether a large entry that was used may stay.
  /// `isSwept`: known losses have just been dropped. False when nothing was freed.
  mutating func emptySlab(_ slab: purgeable_slab_t, mayPassOn: Bool, isSwept: Bool = false, _ reason: DepartureReason) -> Bool {
    let before = slots.count
    guard let information = heap.information(slab) else { return true }
    if !isSwept, information.lost_page_count > 0 { sweepLost() }
    var notes = SlabNotes()
    while notes.takeUp(slab, of: self) {
      // Dropped before the slab is given back: no slot may be left that leads to it.
      if notes.hasLost { sweepLost() }
      notes.empty(slab, information, mayPassOn: mayPassOn, reason, of: &self)
    }
    let isGone = heap.giveBackAny(slab)
    // Last, because shrinking moves the slots to another table.
    shrinkIndex()
    return isGone || slots.count < before
  }

  private func chooseSlab(_ reason: DepartureReason) -> purgeable_slab_t? {
    for queue in EvictionQueue.both {
      if let sparse = heap.findSparse(order, from: nil, looks: 16, stream(queue)).found { return sparse }
    }
    let turn = nextQueue(reason == .count || reason == .cost ? .bytes : reason)
    for isSecond in 0..<2 {
      let queue = isSecond == 0 ? turn : turn.other
      for slab in heap.slabs(of: stream(queue)).prefix(64) {
        // A locked slab cannot be given back now. It keeps its place in the queue.
        guard let information = heap.information(slab) else { break }
        if information.lock_count == 0 { return slab }
      }
    }
    return nil
  }

  /// Whether a slab's worth of bytes was stored since the last search for sparse slabs.
  var isCompactionDue: Bool { compaction.stored >= heap.slabBytes }

  /// What is due after a store of so many bytes, when the mutex has been released.
  mutating func takeDue(_ byteCount: Int) -> DueAfterStore {
    unofferedByteCount += byteCount
    var due = DueAfterStore(isCompaction: isCompactionDue, missedRoom: missedRoom)
    missedRoom = false
    if unofferedByteCount >= DueAfterStore.portion {
      due.storedByteCount = unofferedByteCount
      unofferedByteCount = 0
    }
    return due
  }

  /// Once for each slab's worth of stores: when much of the held memory is dead, copies the living entries out of one sparse
  /// slab, and gives it back.
  mutating func compactIfDue() {
    guard isCompactionDue else { return }
    compaction.stored = 0
    let living = books.byteCount + SlabHeap.elementOverhead * books.count
    let open = base.openCount.load(ordering: .relaxed)
    guard order.wantsCompaction(livingBytes: living * open, heldBytes: heap.heldBytes) else { return }
    for queue in EvictionQueue.both {
      let start = compaction.cursor.isNone ? nil : compaction.cursor
      let (found, next) = heap.findSparse(order, from: start, looks: 32, stream(queue))
      compaction.cursor = next ?? .none
      guard let slab = found, let information = heap.information(slab) else { continue }
      if information.lost_page_count > 0 { sweepLost() }
      var notes = SlabNotes()
      while notes.takeUp(slab, of: self) {
        for i in 0..<notes.count {
          guard let entry = notes[i] else { continue }
          let slot = entry.found.slot
          _ = move(entry, to: heap.queue(at: slot.place), counter: slot.counter)
        }
      }
      heap.giveBack(slab)
      return
    }
  }
}
