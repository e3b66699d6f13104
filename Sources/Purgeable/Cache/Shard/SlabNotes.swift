// SPDX-License-Identifier: MIT
// Notes on the entries of a slab that is evicted or inspected: on the stack, for one piece of the slab at a time.
//
//   slab    [e][e][e][e][e][e][e][e][e][e]...      takeUp: reads the next 512 entries at most, and finds their slots
//            |<---- one piece ---->|               then they are evicted, copied or inspected
//
// The notes need no allocation, because eviction runs when memory is short. A slab of entries of 128 bytes and more is one piece,
// unless slabs are large (a byte limit of a gigabyte and more). In a slab of several pieces, decisions for the whole slab are
// made for each piece.

import CPurgeable

/// One entry of a piece.
private struct EntryNote {
  var place: UInt64 = 0
  var identity: UInt64 = 0
  /// nil when the entry has no slot, or has left.
  var pointer: SlotPointer?
  var prefixByteCount: UInt32 = 0
  var payloadByteCount: UInt32 = 0
}

struct SlabNotes: ~Copyable {
  static let capacity = 512

  private var notes = InlineArray<512, EntryNote>(repeating: EntryNote())
  private(set) var count = 0
  /// Where the next piece begins, as `purgeable_slab_next_element` counts.
  private var cursor: UInt32 = 0
  private var pieceCount = 0
  /// Some element of the piece is lost and, most likely, still has a slot.
  private(set) var hasLost = false
  private var isAtEnd = false

  /// Whether the present piece is the whole slab.
  var isWhole: Bool { isAtEnd && pieceCount <= 1 }

  /// Starts at the front of a slab.
  mutating func begin() {
    count = 0
    cursor = 0
    pieceCount = 0
    isAtEnd = false
    hasLost = false
  }

  /// An entry as it is now; nil when it has left or moved.
  subscript(index: Int) -> FoundEntry? {
    let note = notes[index]
    guard let pointer = note.pointer else { return nil }
    let slot = Slot(bits: pointer.relaxed)
    guard !slot.isEmpty, slot.place == note.place, slot.identity == note.identity else { return nil }
    return FoundEntry(
      found: FoundSlot(pointer: pointer, slot: slot),
      facts: EntryFacts(
        identity: note.identity, prefixByteCount: Int(note.prefixByteCount), payloadByteCount: Int(note.payloadByteCount)))
  }

  /// Marks an entry that has left: `freeElements` frees its element.
  private mutating func markLeft(_ index: Int) {
    notes[index].pointer = nil
    notes[index].identity = Self.left
  }

  private func hasLeft(_ index: Int) -> Bool { notes[index].pointer == nil && notes[index].identity == Self.left }

  /// No entry has this identity: an identity has only tag and flag.
  private static let left = UInt64.max

  // MARK: Being taken up

  private mutating func beginPiece() {
    count = 0
    hasLost = false
  }

  private mutating func append(place: UInt64) {
    assert(count < Self.capacity, "PurgeableCache: a piece has more entries than fit")
    notes[count] = EntryNote(place: place)
    count += 1
  }

  private mutating func set(_ index: Int, _ facts: EntryFacts?) {
    guard let facts else {
      hasLost = true
      return
    }
    notes[index].identity = facts.identity
    notes[index].prefixByteCount = UInt32(truncatingIfNeeded: facts.prefixByteCount)
    notes[index].payloadByteCount = UInt32(truncatingIfNeeded: facts.payloadByteCount)
  }

  private mutating func find(_ number: Int, in index: SlotIndex) -> UInt64? {
    let note = notes[number]
    // An element that could not be read has a length of 0 here: every payload has at least one byte.
    guard note.payloadByteCount > 0, let found = index.find(identity: note.identity, place: note.place) else { return nil }
    notes[number].pointer = found.pointer
    return note.identity
  }

  /// Notes the next living entries of a slab, in order of birth; false when there are no more.
  mutating func takeUp(_ slab: purgeable_slab_t, of held: borrowing HeldShard) -> Bool {
    // The notes of the last piece stay.
    if isAtEnd { return false }
    beginPiece()
    while count < Self.capacity {
      guard let reference = held.heap.nextElement(of: slab, &cursor) else {
        isAtEnd = true
        break
      }
      append(place: reference.place)
    }
    pieceCount += 1
    for i in 0..<count {
      let reference = purgeable_reference_t(place: notes[i].place, generation: UInt64(slab.generation))
      let facts = held.elements.facts(of: reference)
      // Slots and ghost buckets are scattered in memory: prefetched while the other entries are read.
      if let facts { held.index.prefetch(identity: facts.identity) }
      set(i, facts)
    }
    for i in 0..<count {
      if let identity = find(i, in: held.index) { held.ghost.prefetch(identity) }
    }
    return count > 0
  }

  // MARK: Being emptied

  /// Evicts or copies the entries of the piece.
  mutating func empty(
    _ slab: purgeable_slab_t, _ information: SlabInformation, mayPassOn: Bool, _ reason: DepartureReason,
    of held: inout HeldShard
  ) {
    if information.isSparse(held.order) {
      for i in 0..<count {
        guard let entry = self[i] else { continue }
        let slot = entry.found.slot
        if case .kept = held.move(entry, to: held.heap.queue(at: slot.place), counter: slot.counter) { continue }
        held.drop(entry.found, reason, facts: entry.facts)
      }
      return
    }
    var rule = keepRule(information, reason, held)
    if information.is_large, !mayPassOn { rule.threshold = .max }
    assert(count <= Self.capacity, "PurgeableCache: a piece has more entries than fit")
    var leftCount: UInt32 = 0
    held.books.beginSettling()
    for i in 0..<count {
      guard let entry = self[i], case .evicted = held.settle(entry, reason, &rule) else { continue }
      markLeft(i)
      leftCount += 1
    }
    held.books.endSettling()
    freeElements(of: slab, leftCount, held.heap)
  }

  /// Frees the elements of entries that left: all at once when nothing else lives in the slab.
  private func freeElements(of slab: purgeable_slab_t, _ leftCount: UInt32, _ heap: SlabHeap) {
    if heap.information(slab)?.element_count == leftCount {
      heap.freeElements(of: slab)
      return
    }
    // Other elements live in the slab: lost ones, whose slots are still to be dropped, or those of another piece.
    for i in 0..<count where hasLeft(i) { heap.free(heap.reference(notes[i].place)) }
  }

  /// The rule for the piece, which gets its share of the slab's room. A large entry needs no room: it is passed on with its slab,
  /// not copied.
  private func keepRule(
    _ information: SlabInformation, _ reason: DepartureReason, _ held: borrowing HeldShard
  ) -> EvictionOrder.KeepRule {
    let order = held.order
    let queue = held.heap.queue(of: information.stream)
    if information.is_large { return order.rule(queue, reason.cause) }
    // Bytes of entries, by counter.
    var bytes = SIMD4<Int>()
    for i in 0..<count {
      guard let entry = self[i] else { continue }
      bytes[Int(entry.found.slot.counter)] += entry.facts.payloadByteCount + SlabHeap.elementOverhead
    }
    var room = order.room(ofBytes: Int(information.held_bytes))
    if !isWhole {
      let all = Int(information.payload_bytes) + SlabHeap.elementOverhead * Int(information.element_count)
      let share = Double(bytes.wrappedSum()) / Double(max(1, all))
      room = Int(Double(room) * min(1, share))
    }
    return order.rule(queue, reason.cause, byteCounts: bytes, room: room)
  }
}
