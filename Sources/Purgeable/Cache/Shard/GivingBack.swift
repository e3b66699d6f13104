// SPDX-License-Identifier: MIT
// Many slabs given back together, in the order of eviction.
//
//   choose       the oldest slabs of the queues             from their books, without a look at their pages
//   find         one pass over the shard's index            which slots lead there, and how often each was used
//   keep         entries worth keeping are copied to main   the only entries whose pages are touched
//   drop         all other slots are emptied                the ghost remembers them; sums go off the books page by page
//   give back    elements are freed slab by slab            by then no slot leads there any more
//
// Eviction one slab at a time looks each entry up in the index, at random places in memory. For one slab that costs less than a
// pass over the index, for many slabs far more. Lost entries need no sweep of their own: the pass finds their slots with all
// others.

import CPurgeable

extension GivingBackRoom {
  /// Gives back slabs of a shard that hold `byteCount` bytes together, counting the entries that are copied. nil when the first
  /// slab to go is a large entry. False when nothing could be given back.
  mutating func evictSlabs(ofBytes byteCount: Int, _ reason: DepartureReason, of held: inout HeldShard) -> Bool? {
    assert(victimCount == 0 && leadingCount == 0, "PurgeableCache: the room is in use already")
    choose(byteCount, of: held)
    if victimCount == 0 { return nil }
    let before = held.slots.count
    findLeading(reason.cause, held)
    held.books.beginSettling()
    keep(reason.cause, of: &held)
    drop(reason, of: &held)
    for i in 0..<victimCount where isPlain(i) { unbookPages(of: self[victim: i], &held) }
    held.books.endSettling()
    // Lost entries of the other victims are dropped by one sweep for all of them.
    var othersHaveLosses = false
    for i in 0..<victimCount where !isPlain(i) {
      if self[victim: i].information.lost_page_count > 0 { othersHaveLosses = true }
    }
    if othersHaveLosses { held.sweepLost() }
    var isGone = false
    for i in 0..<victimCount where isPlain(i) {
      let slab = self[victim: i].slab
      held.heap.freeElements(of: slab)
      isGone = held.heap.giveBackAny(slab) || isGone
    }
    for i in 0..<victimCount where !isPlain(i) {
      let slab = self[victim: i].slab
      isGone = held.emptySlab(slab, mayPassOn: false, isSwept: true, reason) || isGone
    }
    return isGone || held.slots.count < before
  }

  /// Chooses victims in the order of `chooseSlab`: the sparse slabs among the oldest of each queue, then again and again the
  /// oldest slab of the queue whose turn it is. Chooses none when the first one would be a large entry: it is evicted alone,
  /// since a large entry that was used is passed on with its slab, not copied.
  private mutating func choose(_ byteCount: Int, of held: borrowing HeldShard) {
    let (heap, order) = (held.heap, held.order)
    var chosen = 0
    var living = 0
    /// The next slab of each queue.
    var next = InlineArray<2, purgeable_slab_t?>(repeating: nil)
    for queue in EvictionQueue.both {
      let slabs = heap.slabs(of: held.stream(queue))
      next[queue.rawValue] = slabs.first { _ in true }
      for slab in slabs.prefix(16) {
        guard let information = heap.information(slab) else { break }
        guard information.isSparse(order), chosen < byteCount else { continue }
        // Lost elements count, so a sparse slab may have very many.
        let together = living + Int(information.element_count)
        guard together <= GivingBackRoom.entryCapacity, append(Victim(slab, information, queue, isSparse: true)) else { continue }
        chosen += Int(information.held_bytes)
        living = together
      }
    }
    let sparseCount = victimCount
    var sums = InlineArray<2, Int>(repeating: 0)
    for i in 0..<2 { sums[i] = held.books.sums[i].byteCount }
    // The open slab is the youngest of its queue, so the queue ends there. The memory bounds the number of victims.
    while chosen < byteCount {
      let wanted = order.next(probation: UInt128(sums[0]), main: UInt128(sums[1]))
      let queue = next[wanted.rawValue] != nil ? wanted : wanted.other
      guard let slab = next[queue.rawValue], let information = heap.information(slab) else { break }
      next[queue.rawValue] = information.is_open ? nil : heap.next(after: slab)
      if information.is_open || information.lock_count > 0 || hasChosen(slab, ofFirst: sparseCount) { continue }
      if information.is_large {
        if victimCount == 0 { return }
        continue
      }
      living += Int(information.element_count)
      guard living <= GivingBackRoom.entryCapacity, append(Victim(slab, information, queue, isSparse: false)) else { break }
      chosen += Int(information.held_bytes)
      sums[queue.rawValue] -= min(sums[queue.rawValue], Int(information.payload_bytes))
    }
  }

  /// The pass over the index: notes the slots that lead to victims. About 1 ns a slot.
  private mutating func findLeading(_ cause: EvictionCause, _ held: borrowing HeldShard) {
    let table = held.index.current()
    guard let slots = table.slots else { return }
    var first = UInt64.max
    var last: UInt64 = 0
    var capacity = 0
    for i in 0..<victimCount {
      let victim = self[victim: i]
      first = min(first, UInt64(victim.slab.index))
      last = max(last, UInt64(victim.slab.index))
      capacity += Int(victim.information.element_count)
    }
    fillNumbers()
    let shift = held.heap.slabPlaceShift
    for i in 0..<table.slotCount {
      let slot = Slot(bits: slots[i].relaxed)
      // An empty slot's place is beyond all slabs.
      let at = (slot.bits & Slot.placeMask &- 1) >> shift
      guard at &- first <= last &- first, let number = victim(ofSlab: at) else { continue }
      note(slot, at: i, number, capacity: capacity)
    }
    for i in 0..<victimCount { self[victim: i].decide(held.order, cause, overhead: SlabHeap.elementOverhead) }
  }

  /// Copies the entries worth keeping, slab by slab: a slab's pages and their sums are in the processor's cache then.
  private func keep(_ cause: EvictionCause, of held: inout HeldShard) {
    let (heap, order, elements) = (held.heap, held.order, held.elements)
    guard let slots = held.index.current().slots else { return }
    sortWorthy { Slot(bits: slots[Int($0.slot)].relaxed).counter >= $1.rule.threshold }
    let ahead = 4
    for number in 0..<victimCount {
      var victim = self[victim: number]
      for at in victim.worthyBegin..<victim.worthyEnd {
        if at + ahead < victim.worthyEnd {
          let next = Slot(bits: slots[Int(self[leading: self[worthy: at + ahead]].slot)].relaxed)
          heap.prefetch(next.place)
        }
        let pointer = slots[Int(self[leading: self[worthy: at]].slot)]
        let slot = Slot(bits: pointer.relaxed)
        guard let facts = elements.facts(of: slot) else { continue }
        let byteCount = facts.payloadByteCount + SlabHeap.elementOverhead
        var (queue, counter) = (victim.queue, slot.counter)
        if !victim.isSparse {
          let verdict = order.verdict(counter: slot.counter, byteCount: byteCount, victim.queue, cause, victim.rule)
          guard case .keep(let left) = verdict else { continue }
          (queue, counter) = (.main, left)
        }
        let entry = FoundEntry(found: FoundSlot(pointer: pointer, slot: slot), facts: facts)
        guard case .kept = held.move(entry, to: queue, counter: counter, endsOld: false) else { continue }
        setDone(self[worthy: at])
        if !victim.isSparse { victim.rule.room -= byteCount }
        assert(victim.rule.room >= 0, "PurgeableCache: more was kept than there is room for")
      }
    }
  }

  /// Empties the slots of plain victims that were not copied.
  private func drop(_ reason: DepartureReason, of held: inout HeldShard) {
    guard let slots = held.index.current().slots else { return }
    // The ghost's buckets are scattered in memory: prefetched some entries ahead.
    let ahead = 8
    var dropped = (evicted: 0, discarded: 0)
    for i in 0..<leadingCount {
      if i + ahead < leadingCount {
        held.ghost.prefetch(Slot(bits: slots[Int(self[leading: i + ahead].slot)].relaxed).identity)
      }
      let item = self[leading: i]
      guard !item.isDone, isPlain(Int(item.victim)) else { continue }
      let pointer = slots[Int(item.slot)]
      let slot = Slot(bits: pointer.relaxed)
      let hasLost = hasLost(Int(item.victim))
      let isLost = hasLost && held.heap.isLost(slot.place)
      pointer.store(releasing: 0)
      held.remember(slot.identity, isLost ? .discarded : .evicted)
      if isLost { dropped.discarded += 1 } else { dropped.evicted += 1 }
    }
    held.slots.empty(dropped.evicted + dropped.discarded)
    held.counters.departures[reason.rawValue] += UInt64(dropped.evicted)
    held.counters.departures[DepartureReason.discarded.rawValue] += UInt64(dropped.discarded)
  }

  /// Takes off the books all entries that a slab's pages still have.
  private func unbookPages(of victim: Victim, _ held: inout HeldShard) {
    for page in held.heap.pages(of: victim.slab) { held.books.unbookPage(page, victim.queue) }
  }
}
