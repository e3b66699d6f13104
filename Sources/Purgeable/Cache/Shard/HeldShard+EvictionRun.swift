// SPDX-License-Identifier: MIT
// The eviction run: a pass over the entries of one slab, or of many slabs together.
//
//   turn     the order names the slabs that are next     by what is known of them, without a look at their pages
//   note     the entries that live there                 one slab: its elements, and their slots in the index
//      |                                                 many: one pass over the index, about 1 ns a slot
//   rule     the order makes a rule for each slab        from the noted bytes by counter
//   spare    what the rule spares moves, or stays        of many slabs, the only entries whose pages are touched
//   drop     all others leave                            slab by slab at once where nothing else lives there, else one by one
//   end      the slabs go back                           by then no slot leads there any more
//
//                            budget
//   evictSlab                one slab                     the byte limit, memory that is refused
//   evictSlabs(ofBytes:)     so many bytes                pressure, trims
//   giveBackIdle             slabs before an idle mark    the eager mode (HeldShard+Idle.swift)
//   compactIfDue             one sparse slab              stores
//   relieveReaders           a few busy slabs             offers
//   dropDueSlab              an expired slab              all of these, and upkeep (HeldShard+Expire.swift)
//
// To look each entry up in the index, at random places in memory, costs less than a pass over the index for one slab, and far
// more for many slabs. Lost entries of many slabs need no sweep of their own: the pass finds their slots with all others.
//
// Each noted entry is looked at again before something is done to it: a note counts only where its slot still leads to the
// element that was noted. So the program could be asked between note and rule, with no mutex held, if the slab still lives
// afterwards.

import CPurgeable

extension HeldShard {
  // MARK: One slab

  /// Runs over a slab, piece by piece, and gives it back if nothing is left in it. `spares`: as in `S3FIFOOrder.rule`.
  /// `isNoted`: whether an element takes part, by its place. False when nothing was freed.
  mutating func run(
    over slab: purgeable_slab_t, _ cause: EvictionCause, spares: Bool = true, where isNoted: (UInt64) -> Bool = { _ in true }
  ) -> Bool {
    let before = slots.count
    if let information = heap.information(slab), information.lost_page_count > 0 { sweepLost() }
    guard let information = heap.information(slab) else { return true }
    EvictionNotes.with(Victim(slab, information, heap.streams.queue(of: information.stream))) { notes in
      var cursor: UInt32 = 0
      while note(&cursor, where: isNoted, &notes) { carryOut(cause, spares: spares, &notes) }
    }
    return heap.giveBackAny(slab) || slots.count < before
  }

  /// Notes the next entries of a slab, in order of birth. False when there are no more.
  private mutating func note(_ cursor: inout UInt32, where isNoted: (UInt64) -> Bool, _ notes: inout EvictionNotes) -> Bool {
    notes.beginPiece()
    notes.changes = slots.changes
    let slab = notes[victim: 0].slab
    let start = heap.start(of: slab)
    var (isAtEnd, hasLost) = (false, false)
    // Slots are scattered in memory: prefetched while other entries are read.
    var group = InlineArray<32, (place: UInt64, identity: UInt64, byteCount: Int)>(repeating: (0, 0, 0))
    while !isAtEnd, notes.count + group.count <= EvictionNotes.pieceCapacity {
      var count = 0
      while count < group.count {
        guard let reference = heap.nextElement(of: slab, &cursor) else {
          isAtEnd = true
          break
        }
        guard isNoted(reference.place) else { continue }
        guard let facts = elements.facts(of: reference) else {
          hasLost = true
          continue
        }
        index.prefetch(identity: facts.identity)
        group[count] = (reference.place, facts.identity, facts.payloadByteCount + SlabHeap.elementOverhead)
        count += 1
      }
      for i in 0..<count {
        let (place, identity, byteCount) = group[i]
        guard let found = index.find(identity: identity, place: place) else { continue }
        notes.note(found.slot, at: index.number(of: found.pointer), 0, granule: place - start, byteCount: byteCount)
      }
    }
    // Dropped before the slab is given back: no slot may be left that leads to it.
    if hasLost { sweepLost() }
    return notes.count > 0 || !isAtEnd
  }

  // MARK: Many slabs

  /// Gives back slabs that hold `byteCount` bytes together, counting the entries that are copied, and large entries that were
  /// used, which move with their slabs. False when nothing could be given back.
  mutating func evictSlabs(ofBytes byteCount: Int, _ reason: DepartureReason) -> Bool {
    if dropDueSlab() || dropHollow(ofBytes: byteCount, reason) { return true }
    if base.asks(reason) { return false }
    if entryOrder != nil { return evictEntries(ofBytes: byteCount, reason) }
    let before = slots.count
    let isGone = GivingBackTurn.shared.use { notes in
      choose(byteCount, &notes)
      if notes.victimCount == 0 { return false }
      noteSlots(&notes)
      carryOut(reason.cause, &notes)
      return (0..<notes.victimCount).reduce(false) { heap.giveBackAny(notes[victim: $1].slab) || $0 }
    }
    // Without memory for the notes, and where nothing could be chosen or all was spared, one slab goes.
    return isGone == true || slots.count < before || evictSlab(reason)
  }

  /// Chooses the slabs whose turn it is, as far as their entries can be noted.
  private func choose(_ byteCount: Int, _ notes: inout EvictionNotes) {
    var (chosen, living) = (0, 0)
    forEachSlabInTurn { slab, information, queue in
      if chosen >= byteCount { return .last }
      // The open slab takes the copies.
      if information.is_open || information.lock_count > 0 { return .passed }
      // Lost elements count, so a sparse slab may have very many.
      let together = living + Int(information.element_count)
      guard together <= EvictionNotes.mostEntries else { return order.isSparse(information.facts) ? .passed : .last }
      guard notes.append(Victim(slab, information, queue)) else { return .passed }
      chosen += Int(information.held_bytes)
      living = together
      return .taken
    }
  }

  /// The pass over the index: notes the slots that lead to victims.
  private func noteSlots(_ notes: inout EvictionNotes) {
    let table = index.current()
    guard let slots = table.slots else { return }
    notes.changes = self.slots.changes
    let (shift, granules) = (heap.slabPlaceShift, heap.granulesPerSlab)
    for i in 0..<table.slotCount {
      let slot = Slot(bits: slots[i].relaxed)
      // An empty slot's place is beyond all slabs.
      let place = slot.bits & Slot.placeMask &- 1
      guard let victim = notes.victim(ofSlab: place >> shift) else { continue }
      notes.note(slot, at: i, victim, granule: place & (granules - 1))
    }
  }

  // MARK: What becomes of the entries

  /// Makes the rules, and does to each noted entry what its fate says. The slabs are left to be given back.
  private mutating func carryOut(_ cause: EvictionCause, spares: Bool = true, _ notes: inout EvictionNotes) {
    #if DEBUG
      base.notesHook.load()?.body(&self)
    #endif
    guard let slots = index.current().slots else { return }
    let isExact = self.slots.changes == notes.changes
    let leavesNone = if case .drop = order.fate(unmoved: 0, cause) { true } else { false }
    for number in 0..<notes.victimCount {
      let victim = notes[victim: number]
      let (information, count) = (victim.information, victim.entryCount)
      notes[victim: number].rule = order.rule(
        victim.queue, cause, of: information.facts, byteCounts: victim.byteCounts,
        isWhole: count == information.element_count, spares: spares)
      // An open slab takes copies, a large one is moved as it is, and tracked keys are told of one by one.
      notes[victim: number].endsWhole =
        isExact && leavesNone && !information.is_open && !information.is_large && !victim.hasTracked
        && heap.information(victim.slab)?.element_count == count
    }
    notes.link { Slot(bits: slots[$0.slot].relaxed).counter >= $1.rule.threshold }
    for number in 0..<notes.victimCount { spare(number, &notes) }
    guard let reason = cause.reason else { return }
    dropRest(reason, &notes)
    for number in 0..<notes.victimCount where notes[victim: number].endsWhole {
      let victim = notes[victim: number]
      for page in heap.pages(of: victim.slab) { books.unbookPage(page, victim.queue) }
      heap.freeElements(of: victim.slab)
    }
  }

  /// The entry of a note; nil when the slot leads elsewhere by now.
  @inline(__always) private func slot(of note: EntryNote, _ table: SlotIndex.Table, _ victim: Victim) -> FoundSlot? {
    guard let slots = table.slots, note.slot < table.slotCount else { return nil }
    let slot = Slot(bits: slots[note.slot].relaxed)
    // Empty where the kernel took its page between two looks, and a sweep has dropped it.
    guard !slot.isEmpty, slot.place == heap.start(of: victim.slab) + UInt64(note.granule) else { return nil }
    return FoundSlot(pointer: slots[note.slot], slot: slot)
  }

  /// Moves the entries of a slab that its rule spares, or leaves them where they are. Slab by slab: a slab's pages and their sums
  /// are in the processor's cache then.
  private mutating func spare(_ number: Int, _ notes: inout EvictionNotes) {
    let (victim, table) = (notes[victim: number], index.current())
    var rule = victim.rule
    let start = heap.start(of: victim.slab)
    // The entry that is prefetched, some entries ahead of the one that is copied.
    var (next, ahead, step) = (victim.first, victim.first, 0)
    while next != EntryNote.none {
      while step < 4, ahead != EntryNote.none {
        let note = notes[Int(ahead)]
        heap.prefetch(start + UInt64(note.granule))
        (ahead, step) = (note.next, step + 1)
      }
      let i = Int(next)
      (next, step) = (notes[i].next, step - 1)
      guard let found = slot(of: notes[i], table, victim), let facts = elements.facts(of: found.slot) else { continue }
      let byteCount = facts.payloadByteCount + SlabHeap.elementOverhead
      let fate = order.fate(
        counter: found.slot.counter, credit: credit(of: found.slot, facts), byteCount: byteCount, &rule)
      if case .drop = fate { continue }
      if apply(fate, victim.rule.cause, to: found, facts, freesOld: !victim.endsWhole) != .lost { notes.setDone(i) }
    }
    assert(rule.room >= 0, "PurgeableCache: more was spared than there is room for")
  }

  /// Drops the noted entries that were not spared. Of a slab that ends whole, only their slots are emptied here.
  private mutating func dropRest(_ reason: DepartureReason, _ notes: inout EvictionNotes) {
    let table = index.current()
    guard let slots = table.slots else { return }
    // The ghost's buckets are scattered in memory: prefetched some entries ahead.
    let ahead = 8
    for i in 0..<notes.count {
      if i + ahead < notes.count { ghost.prefetch(Slot(bits: slots[notes[i + ahead].slot].relaxed).identity) }
      let note = notes[i]
      if note.isDone { continue }
      let victim = notes[victim: Int(note.victim)]
      guard let found = slot(of: note, table, victim) else { continue }
      if victim.endsWhole {
        let isLost = victim.information.lost_page_count > 0 && heap.isLost(found.slot.place)
        leave(found, isLost ? .discarded : reason, from: victim.queue, .unwanted, freeing: nil)
      } else {
        let facts = elements.facts(of: found.slot)
        drop(found, facts == nil ? .discarded : reason, facts: facts)
      }
    }
  }

  // MARK: Whose turn it is

  enum TurnAnswer { case taken, passed, last }

  /// Calls `body` with slabs in the order in which they go, until it answers that one was the last: the sparse ones among the
  /// oldest of each queue, which lose no entry, then again and again the oldest of the queue whose turn it is. `looks`: at so
  /// many of each queue at most. `sparseFirst`: false for the order in which entries go. `need`: what they go for.
  func forEachSlabInTurn(
    looks: Int = .max, sparseFirst: Bool = true, for need: EvictionNeed = EvictionNeed(.bytes),
    _ body: (purgeable_slab_t, SlabInformation, EvictionQueue) -> TurnAnswer
  ) {
    var next = EachLane<purgeable_slab_t?>(repeating: nil)
    for lane in evictedLanes {
      next[lane.index] = heap.oldest(of: stream(lane))
      for slab in heap.slabs(of: stream(lane)).prefix(sparseFirst ? S3FIFOOrder.sparseLooks : 0) {
        guard let information = heap.information(slab) else { break }
        if order.isSparse(information.facts), body(slab, information, lane.queue) == .last { return }
      }
    }
    var left = EachQueue<Int>(repeating: looks)
    var sums = books.sums
    while true {
      let wanted = nextQueue(need, of: sums, hasSpeculative: hasSpeculative && oldest(of: .speculative, next) != nil)
      guard let (lane, slab, information) = oldest(by: wanted.turns, next) else { return }
      let queue = lane.queue
      left[queue.rawValue] -= 1
      // The open slab is the youngest of its lane.
      next[lane.index] = information.is_open ? nil : heap.next(after: slab)
      if left[queue.rawValue] == 0 { for lane in usedLanes(of: queue) { next[lane.index] = nil } }
      switch body(slab, information, queue) {
      case .taken: takeOff(slab, information, of: &sums[queue.rawValue], withCost: need.isOfCost)
      case .passed: break
      case .last: return
      }
    }
  }

  private func takeOff(_ slab: purgeable_slab_t, _ information: SlabInformation, of sums: inout QueueSums, withCost: Bool) {
    sums.byteCount -= min(sums.byteCount, Int(information.payload_bytes))
    sums.count -= min(sums.count, Int(information.element_count))
    if withCost { for page in heap.pages(of: slab) { sums.cost -= min(sums.cost, base.pageSums.sum(at: page)?.cost ?? 0) } }
  }

  /// The oldest of some slabs, one of each lane, of the first of these queues that has any.
  private func oldest(
    by turns: InlineArray<3, EvictionQueue>, _ slabs: borrowing EachLane<purgeable_slab_t?>
  ) -> (lane: Lane, slab: purgeable_slab_t, information: SlabInformation)? {
    for i in turns.indices { if let oldest = oldest(of: turns[i], slabs) { return oldest } }
    return nil
  }

  /// The oldest of some slabs of a queue, one of each lane.
  private func oldest(
    of queue: EvictionQueue, _ slabs: borrowing EachLane<purgeable_slab_t?>
  ) -> (lane: Lane, slab: purgeable_slab_t, information: SlabInformation)? {
    var oldest: (lane: Lane, slab: purgeable_slab_t, information: SlabInformation)?
    for lane in usedLanes(of: queue) {
      guard let slab = slabs[lane.index], let information = heap.information(slab) else { continue }
      if oldest.map({ information.first_age < $0.information.first_age }) ?? true { oldest = (lane, slab, information) }
    }
    return oldest
  }

  // MARK: Who runs

  /// Gives one slab back. False when nothing could be given back.
  mutating func evictSlab(_ reason: DepartureReason) -> Bool {
    if dropDueSlab() || dropHollow(ofBytes: heap.slabBytes, reason) { return true }
    // Memory of entries that another thread is removing goes before entries that live.
    if base.removalCount.load(ordering: .relaxed) > 0, base.giveBackRemoved(heap.slabBytes) > 0 { return true }
    if base.asks(reason) { return false }
    if entryOrder != nil { return evictEntries(ofBytes: heap.slabBytes, reason) }
    if case .limit = reason.cause { index.noteEviction() }
    // A large entry that is spared frees nothing. The attempts are bounded, because readers may use large entries all the time.
    for attempt in 0...S3FIFOOrder.mostLargeSpared {
      var chosen: purgeable_slab_t?
      forEachSlabInTurn(looks: S3FIFOOrder.lockedLooks) { slab, information, _ in
        // A locked slab cannot be given back now. It keeps its place in the queue.
        if information.lock_count > 0 { return .passed }
        chosen = slab
        return .last
      }
      guard let slab = chosen else { return false }
      let hasFreed = run(over: slab, reason.cause, spares: attempt < S3FIFOOrder.mostLargeSpared)
      // After the run, because shrinking moves the slots to another table.
      shrinkIndex()
      if hasFreed { return true }
    }
    return false
  }

  /// Makes room for a slab: gives one back, or, where all that could go is pinned, moves together what lives in some with holes.
  mutating func freeSlab(_ reason: DepartureReason) -> Bool {
    if evictSlab(reason) { return true }
    guard books[.pinned].count > 0 else { return false }
    let before = heap.heldBytes
    // What lives in four such slabs fits in three. They may come after many without holes.
    for _ in 0..<8 where heap.heldBytes >= before { compactSparsest(below: 0.75) }
    return heap.heldBytes < before
  }

  /// Once for each slab's worth of stores: when much of the held memory is dead, moves the living entries out of one sparse slab,
  /// and gives it back.
  mutating func compactIfDue() {
    guard isCompactionDue else { return }
    compaction.stored = 0
    let open = base.openCount
    guard order.wantsCompaction(livingBytes: livingBytes * open, heldBytes: heap.heldBytes) else { return }
    // With an order that names entries no slab may be so sparse though half of all is dead.
    if entryOrder == nil { compactSparsest(below: S3FIFOOrder.sparseShare) } else { compactSparsest() }
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
      if facts.mayBeEmptied, living < sparsest?.living ?? most { sparsest = (slab, living) }
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

  /// Overlapping readers of an entry keep its slab from ever being idle. The entries that they use move to a fresh slab, so that
  /// the rest of the old one can be offered again.
  mutating func relieveReaders() {
    let heap = heap
    for lane in usedLanes {
      var relieved = 0
      for slab in heap.slabs(of: stream(lane)) {
        if relieved == S3FIFOOrder.mostRelieved { break }
        guard let information = heap.information(slab),
          order.isBusy(information.facts, rounds: Int(information.busy_round_count))
        else { continue }
        relieved += 1
        _ = run(over: slab, .busy) { !heap.isOnOffer($0) }
      }
    }
  }
}
