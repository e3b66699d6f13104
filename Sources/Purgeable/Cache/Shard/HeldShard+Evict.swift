// SPDX-License-Identifier: MIT
// Eviction one entry at a time, for limits. `EvictionOrder` decides which entries go.
//
// A queue is a stream of slabs in order of birth, and a slab's elements lie in order of birth too. So the front of a queue is the
// first living element of its oldest slab, and entries need no links. The strict limits (count, cost) evict entry by entry. The
// byte limit and pressure evict whole slabs, since only whole slabs give memory back (HeldShard+EvictSlab.swift,
// GivingBack.swift).

import CPurgeable
import Synchronization

/// The outcome for an entry whose turn it was.
enum Settled {
  case evicted, kept, lost, unknown
}

extension HeldShard {
  // MARK: Strict limits

  /// Makes room for a new entry and its cost, by evicting from this shard, or from the founder what is older there.
  mutating func makeRoom(for cost: UInt64, replacing old: FoundSlot?, among shards: borrowing CacheShards) {
    let countLimit = base.limits.count.load(ordering: .relaxed)
    if countLimit != .max {
      let coming = old == nil ? 1 : 0
      while base.count + coming > countLimit {
        readyGhost()
        guard shards.evictFromFounder(.count, before: &self) || EntryEviction(reason: .count).run(in: &self) else { break }
      }
    }
    let costLimit = base.limits.cost.load(ordering: .relaxed)
    if costLimit != .max {
      // The store itself takes the old value's cost off, unless the old value is evicted here first.
      var spared: UInt64 = 0
      if let slot = old?.slot {
        spared = books.booked(slot, elements.facts(of: heap.reference(slot.place)), elements, index)?.cost ?? 0
      }
      while true {
        if let old, !old.isInUse || heap.isLost(old.slot.place) { spared = 0 }
        let total = base.totalCost
        let others = total - min(total, UInt128(spared))
        guard others + UInt128(cost) > UInt128(costLimit) else { break }
        readyGhost()
        guard shards.evictFromFounder(.cost, before: &self) || EntryEviction(reason: .cost).run(in: &self) else { break }
      }
    }
  }

  /// Above the byte limit, shrinks index and ghost before entries have to go. True when that was enough.
  mutating func fitBookkeeping() -> Bool {
    shrinkIndex()
    let remembered = max(64, slots.count)
    ghost.shrink(toRemember: remembered)
    // A ghost whose size cannot be halved often enough is emptied.
    if ghost.rememberedLimit > 4 * remembered { ghost.removeAll() }
    return base.exceededLimit != .bytes
  }

  /// The queue that evicts next, measured in what the limit counts.
  func nextQueue(_ reason: DepartureReason) -> EvictionQueue {
    let probation = books[.probation]
    let main = books[.main]
    let open = base.openCount.load(ordering: .relaxed)
    switch reason {
    case .count:
      return order.next(
        probation: UInt128(probation.count), main: UInt128(main.count),
        limit: UInt128(base.limits.count.load(ordering: .relaxed) / open))
    case .cost:
      return order.next(
        probation: probation.cost, main: main.cost, limit: UInt128(base.limits.cost.load(ordering: .relaxed)) / UInt128(open))
    default:
      return order.next(probation: UInt128(probation.byteCount), main: UInt128(main.byteCount))
    }
  }

  // MARK: One entry

  mutating func settle(_ entry: FoundEntry, _ reason: DepartureReason, _ rule: inout EvictionOrder.KeepRule) -> Settled {
    let slot = entry.found.slot
    // An entry without cost stays where it is: its eviction would free no cost.
    if reason == .cost, elements.cost(of: slot, entry.facts) == 0 { return .unknown }
    let byteCount = entry.facts.payloadByteCount + SlabHeap.elementOverhead
    let verdict = order.verdict(
      counter: slot.counter, byteCount: byteCount, heap.queue(at: slot.place), reason.cause, rule)
    if case .keep(let counter) = verdict {
      switch move(entry, to: .main, counter: counter) {
      case .kept:
        if rule.room != .max { rule.room -= byteCount }
        return .kept
      case .lost: return .lost
      case .evicted, .unknown: break
      }
    }
    drop(entry.found, reason, facts: entry.facts)
    return .evicted
  }

  /// Moves an entry to the young end of a queue: a large one with its slab, any other by copying. `endsOld`: false when the
  /// caller frees all elements of the old slab afterwards.
  mutating func move(
    _ entry: FoundEntry, to queue: EvictionQueue, counter: UInt64, endsOld: Bool = true
  ) -> Settled {
    let (found, facts) = (entry.found, entry.facts)
    let slot = found.slot
    assert(facts.identity == slot.identity, "PurgeableCache: a slot that leads to another entry")
    let old = heap.reference(slot.place)
    let from = heap.queue(at: slot.place)
    guard let cost = elements.cost(of: slot, facts) else { return .lost }

    let slab = heap.slab(of: old)
    if facts.payloadByteCount > heap.slabBytes / 4, heap.information(slab)?.is_large == true {
      books.unbook(slot.place, from, cost: cost, byteCount: facts.payloadByteCount)
      restream(slab, from, to: queue)
      books.book(slot.place, queue, cost: cost, byteCount: facts.payloadByteCount)
      found.pointer.setCounter(counter)
      return .kept
    }

    guard let new = allocateCopy(facts.payloadByteCount, queue) else { return .evicted }
    // Copied without a lock: locking would take the old page off offer.
    guard unsafe elements.copy(old, from: 0, into: new.bytes) else {
      heap.free(new.reference)
      return .lost
    }
    heap.commit(new.reference)
    // Exchanged, not stored: a reader may be raising the counter.
    let replacement = Slot(identity: slot.identity, place: new.reference.place, counter: counter, isCosted: slot.isCosted)
    var expected = slot
    while true {
      let (exchanged, now) = found.pointer.exchange(expected.bits, for: replacement.bits)
      if exchanged { break }
      expected = Slot(bits: now)
      precondition(expected.isSameEntry(as: slot), "PurgeableCache: a slot changed under its shard's mutex")
    }
    books.unbook(slot.place, from, cost: cost, byteCount: facts.payloadByteCount)
    if endsOld { heap.free(old) }
    books.book(new.reference.place, queue, cost: cost, byteCount: facts.payloadByteCount)
    counters.copies += 1
    base.totals.copiedBytes.add(facts.payloadByteCount, ordering: .relaxed)
    slots.exchange()
    return .kept
  }

  /// Moves a slab to the young end of a queue.
  mutating func restream(_ slab: purgeable_slab_t, _ from: EvictionQueue, to queue: EvictionQueue) {
    assert(heap.information(slab).map { $0.stream == stream(from) } ?? true, "PurgeableCache: a slab of another queue")
    heap.move(slab, to: stream(queue))
    // The slabs before a mark at this slab have had their turn.
    idleMarks[from.rawValue].removeAll(at: slab)
    // A cursor at the slab would lead into another queue: eviction begins again at the front of this one.
    if queues[from.rawValue].cursor.slab.index == slab.index { queues[from.rawValue].cursor = EvictionCursor() }
  }

  // MARK: Age

  /// The age of the entry that `EntryEviction` would look at next; `UInt64.max` when there is none.
  func nextAge(_ reason: DepartureReason) -> UInt64 {
    guard slots.count > 0 else { return .max }
    let wanted = nextQueue(reason)
    for isSecond in 0..<2 {
      let queue = isSecond == 0 ? wanted : wanted.other
      let cursor = queues[queue.rawValue].cursor
      if !cursor.slab.isNone, let information = heap.information(cursor.slab) {
        return information.age(at: cursor.element, now: base.indexes.birthCount)
      }
      if let age = heap.firstAge(ofOldestIn: stream(queue)) { return age }
    }
    // Slots are left for which no queue has an element: this shard is asked last.
    return .max - 1
  }

  /// The age of the slab that would be given back next; `UInt64.max` when there is none.
  func oldestSlabAge() -> UInt64 {
    let wanted = nextQueue(.bytes)
    let age = heap.firstAge(ofOldestIn: stream(wanted)) ?? heap.firstAge(ofOldestIn: stream(wanted.other))
    return age ?? (slots.count > 0 ? .max - 1 : .max)
  }
}
