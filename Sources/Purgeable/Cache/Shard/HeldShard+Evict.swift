// SPDX-License-Identifier: MIT
// Eviction one entry at a time, for limits of count and cost; and what is done to an entry whose turn has come.
//
// A queue is a stream of slabs in order of birth, and a slab's elements lie in order of birth too. So the front of a queue is the
// first living element of its oldest slab, and entries need no links. A cursor in each queue remembers how far evictions have
// got. The byte limit and pressure evict whole slabs, since only whole slabs give memory back (HeldShard+EvictionRun.swift).

import CPurgeable
import Synchronization

extension HeldShard {
  // MARK: Strict limits

  /// Makes room for a new entry and its cost, by evicting from this shard.
  mutating func makeRoom(for cost: UInt64, of key: EngineKey, replacing old: FoundSlot?) {
    // Made when the program has been asked.
    if base.isAsking.load(ordering: .relaxed) { return }
    let countLimit = base.limits.count.load(ordering: .relaxed)
    if countLimit != .max {
      let coming = old == nil && !isHollow(key) ? 1 : 0
      while base.count + coming > countLimit {
        readyGhost()
        guard evictEntry(EvictionNeed(.count)) else { break }
      }
    }
    let costLimit = base.limits.cost.load(ordering: .relaxed)
    if costLimit != .max {
      // The store itself takes the old value's cost off, unless the old value is evicted here first.
      var spared: UInt64 = 0
      if let slot = old?.slot {
        spared = books.booked(slot, elements.parts(of: slot))?.cost ?? 0
      }
      while true {
        if let old, !old.isInUse || heap.isLost(old.slot.place) { spared = 0 }
        let total = base.totalCost
        let others = total - min(total, UInt128(spared))
        guard others + UInt128(cost) > UInt128(costLimit) else { break }
        readyGhost()
        // The old value leaves as replaced.
        let own = old.flatMap { $0.isInUse ? Slot(bits: $0.pointer.relaxed).place : nil }
        guard evictEntry(EvictionNeed(.cost), sparing: own) else { break }
      }
    }
  }

  /// Above the byte limit, shrinks index and ghost before entries have to go. True when that was enough.
  mutating func fitBookkeeping() -> Bool {
    shrinkIndex()
    let remembered = leastGhost
    ghost.shrink(toRemember: remembered)
    // A ghost whose size cannot be halved often enough is emptied.
    if ghost.rememberedLimit > 4 * remembered { ghost.removeAll() }
    return base.exceededLimit != .bytes
  }

  /// The queue that evicts next, measured in what the limit counts.
  func nextQueue(_ need: EvictionNeed) -> EvictionQueue { nextQueue(need, of: books.sums, hasSpeculative: hasSpeculative) }

  /// `sums`: as the books' own once some have left.
  @inline(__always)
  func nextQueue(_ need: EvictionNeed, of sums: EachQueue<QueueSums>, hasSpeculative: Bool) -> EvictionQueue {
    let (probation, main) = (sums[EvictionQueue.probation.rawValue], sums[EvictionQueue.main.rawValue])
    let (pinned, open) = (books[.pinned], base.openCount)
    if need.isOfCost {
      let limit = UInt128(base.limits.cost.load(ordering: .relaxed)) / UInt128(open)
      return order.next(
        probation: probation.cost, main: main.cost, limit: need.reason == .cost ? limit - min(limit, pinned.cost) : nil,
        hasSpeculative: hasSpeculative && books[.speculative].cost > 0)
    }
    switch need.reason {
    case .count:
      let limit = base.limits.count.load(ordering: .relaxed) / open
      return order.next(
        probation: UInt128(probation.count), main: UInt128(main.count), limit: UInt128(limit - min(limit, pinned.count)),
        hasSpeculative: hasSpeculative)
    default:
      return order.next(
        probation: UInt128(probation.byteCount), main: UInt128(main.byteCount), hasSpeculative: hasSpeculative)
    }
  }

  // MARK: One entry

  /// Evicts the one entry that the order names. False when no entry could be evicted. `own`: as in `nextToGo`.
  mutating func evictEntry(_ need: EvictionNeed, sparing own: UInt64? = nil) -> Bool {
    if base.asks(need.reason) { return dropDead(for: need) }
    guard let next = nextToGo(need, sparing: own) else { return false }
    if case .entry(let found, let facts) = next { drop(found, need.reason, facts: facts) }
    return true
  }

  enum NextToGo {
    /// Its slot, and what its element tells.
    case entry(FoundSlot, EntryFacts)
    /// Something has left on the way: lost or expired entries.
    case gone
  }

  /// The entry that goes next for a reason; those before it that the order spares have been moved. nil where none can go.
  /// `resting`: a bit for each queue that is passed over. `own`: the place of an entry that is passed over, since another value
  /// is being stored under its key.
  mutating func nextToGo(_ need: EvictionNeed, resting: UInt8 = 0, sparing own: UInt64? = nil) -> NextToGo? {
    if dropDead(for: need) { return .gone }
    let (before, cause) = (slots.count, need.reason.cause)
    if case .limit = cause { index.noteEviction() }
    if need.isOfCost, books.cost == 0 { return nil }
    if let entryOrder { return next(by: entryOrder, need, sparing: own) }
    var spared = 0
    var (resting, hasPassed) = (resting, false)
    // Every entry can be spared three times at most; beyond that the books and the queues disagree.
    var looks = 4 * before + 1024
    while slots.count > 0, looks > 0 {
      looks -= 1
      guard let reference = nextElement(need, resting) else { break }
      if reference.place == own {
        // Its queue may have nothing else.
        if hasPassed { resting |= heap.queue(at: reference.place).bit }
        hasPassed = true
        continue
      }
      var outcome = Outcome.lost
      if let facts = elements.facts(of: reference) {
        guard let found = index.find(identity: facts.identity, place: reference.place) else { continue }
        // An entry without cost stays where it is: its eviction would free no cost.
        if need.isOfCost, elements.cost(of: found.slot, facts) == 0 { continue }
        var rule = order.rule(
          heap.queue(at: reference.place), cause, spares: spared < S3FIFOOrder.mostSpared)
        let byteCount = facts.payloadByteCount + SlabHeap.elementOverhead
        let fate = order.fate(
          counter: found.slot.counter, credit: credit(of: found.slot, facts), byteCount: byteCount, &rule)
        if case .drop = fate { return .entry(found, facts) }
        outcome = apply(fate, cause, to: found, facts)
      }
      switch outcome {
      case .left: return .gone
      case .spared: spared += 1
      case .lost: if passLost(reference) { return .gone }
      }
    }
    // Nothing was evicted from the queues. Slots that are left may belong to lost entries.
    sweepLost()
    return slots.count < before ? .gone : nil
  }

  /// The next living element of the first queue in turn that has one: of a queue the oldest of its lanes' next ones.
  private mutating func nextElement(_ need: EvictionNeed, _ resting: UInt8) -> purgeable_reference_t? {
    let turns = nextQueue(need).turns
    for i in turns.indices where resting & turns[i].bit == 0 {
      if laneTimes.count > 1, let next = nextInTurn(turns[i]), let found = nextElement(next.lane, need) { return found }
      for lane in usedLanes(of: turns[i]) { if let found = nextElement(lane, need) { return found } }
    }
    return nil
  }

  /// The lane of a queue whose next element is the oldest, and that element's age; nil where there is none.
  private func nextInTurn(_ queue: EvictionQueue) -> (lane: Lane, age: UInt64)? {
    var next: (lane: Lane, age: UInt64)?
    for lane in usedLanes(of: queue) {
      let cursor = lanes[lane].cursor
      let information = cursor.slab.isNone ? nil : heap.information(cursor.slab)
      let age = information?.age(at: cursor.element, now: base.indexes.birthCount) ?? heap.firstAge(ofOldestIn: stream(lane))
      if let age, next.map({ age < $0.age }) ?? true { next = (lane, age) }
    }
    return next
  }

  /// The next living element of a lane, from where the last eviction stopped.
  private mutating func nextElement(_ lane: Lane, _ need: EvictionNeed) -> purgeable_reference_t? {
    var cursor = lanes[lane].cursor
    defer { lanes[lane].cursor = cursor }
    var wraps = 0
    while wraps < 2 {
      if cursor.slab.isNone {
        wraps += 1
        cursor = EvictionCursor(slab: heap.oldest(of: stream(lane)) ?? .none)
        if cursor.slab.isNone { return nil }
      }
      if need.isOfCost { passPagesWithoutCost(&cursor) }
      if let reference = heap.nextElement(of: cursor.slab, &cursor.element) { return reference }
      // No more elements in this slab: on to the next one, or to the front of the lane when the slab was given back. Elements
      // that stay are looked at again after a wrap.
      cursor = EvictionCursor(slab: heap.next(after: cursor.slab) ?? .none)
    }
    return nil
  }

  /// Moves the cursor past pages whose entries cost nothing together, without a look at the entries. Evicting them would free no
  /// cost.
  private func passPagesWithoutCost(_ cursor: inout EvictionCursor) {
    let start = heap.start(of: cursor.slab)
    let pageGranules = UInt32(SlabHeap.granulesPerPage)
    while UInt64(cursor.element) < heap.granulesPerSlab,
      let sum = base.pageSums.sum(at: start + UInt64(cursor.element)), sum.cost == 0
    {
      cursor.element = (cursor.element / pageGranules + 1) * pageGranules
    }
  }

  // MARK: What is done to an entry

  /// What an entry is worth beside the others.
  @inline(__always) func credit(of slot: Slot, _ facts: EntryFacts) -> Int {
    guard slot.hasHead, base.credits.isInUse, let head = elements.head(of: slot, facts) else { return 0 }
    return base.credits.credit(of: head.recomputeCost, byteCount: facts.payloadByteCount)
  }

  /// What became of an entry whose turn it was.
  enum Outcome {
    case left, spared, lost
  }

  /// Does to an entry what its fate says. `freesOld`: false when the caller frees the slab's elements afterwards.
  mutating func apply(
    _ fate: S3FIFOOrder.Fate, _ cause: EvictionCause, to found: FoundSlot, _ facts: EntryFacts, freesOld: Bool = true
  ) -> Outcome {
    switch fate {
    case .drop(let reason):
      drop(found, reason, facts: facts)
      return .left
    case .stay(let counter):
      found.pointer.setCounter(counter)
      return .spared
    case .move(let queue, let counter):
      guard let outcome = move(found, facts, to: queue, counter: counter, freesOld: freesOld) else {
        return apply(order.fate(unmoved: found.slot.counter, cause), cause, to: found, facts)
      }
      // Most likely a later page of the entry, and its header's page is not lost: this entry goes alone.
      guard outcome == .lost, elements.isGone(found.slot.place) else { return outcome }
      drop(found, .discarded)
      return .left
    }
  }

  /// Moves an entry to the young end of a queue: a large one with its slab, any other by copying. nil where there is no memory
  /// for the copy.
  mutating func move(
    _ found: FoundSlot, _ facts: EntryFacts, to queue: EvictionQueue, counter: UInt64, freesOld: Bool
  ) -> Outcome? {
    let slot = found.slot
    assert(facts.identity == slot.identity, "PurgeableCache: a slot that leads to another entry")
    let old = heap.reference(slot.place)
    let lane = heap.lane(at: slot.place)
    let (from, to) = (lane.queue, Lane(queue, lane.number))
    guard let head = elements.head(of: slot, facts) else { return .lost }
    let use = lastUse(of: slot)
    if base.isOver(head, use) {
      drop(found, .expired, facts: facts)
      return .left
    }
    let cost = facts.cost(head)

    let slab = heap.slab(of: old)
    // What was on offer would stay there.
    let takesSlab = queue != .pinned || from == .pinned
    if takesSlab, facts.payloadByteCount > heap.slabBytes / 4, heap.information(slab)?.is_large == true {
      books.unbook(slot.place, from, cost: cost, byteCount: facts.payloadByteCount)
      restream(slab, lane, to: to)
      books.book(slot.place, queue, cost: cost, byteCount: facts.payloadByteCount)
      found.pointer.setCounter(counter)
      return .spared
    }

    guard let new = allocateCopy(facts.payloadByteCount, to) else { return nil }
    // Copied without a lock: locking would take the old page off offer.
    guard unsafe elements.copy(old, from: 0, into: new.bytes) else {
      heap.free(new.reference)
      return .lost
    }
    heap.commit(new.reference)
    // Exchanged, not stored: a reader may be raising the counter.
    let replacement = Slot(identity: slot.identity, place: new.reference.place, counter: counter, hasHead: slot.hasHead)
    var expected = slot
    while true {
      let (exchanged, now) = found.pointer.exchange(expected.bits, for: replacement.bits)
      if exchanged { break }
      expected = Slot(bits: now)
      precondition(expected.isSameEntry(as: slot), "PurgeableCache: a slot changed under its shard's mutex")
    }
    books.unbook(slot.place, from, cost: cost, byteCount: facts.payloadByteCount)
    if freesOld { heap.free(old) }
    books.book(new.reference.place, queue, cost: cost, byteCount: facts.payloadByteCount)
    noteEnd(head, use, of: new.reference)
    counters.copies += 1
    base.totals.copiedBytes.add(facts.payloadByteCount, ordering: .relaxed)
    slots.exchange()
    return .spared
  }

  /// Moves a slab to the young end of a lane.
  mutating func restream(_ slab: purgeable_slab_t, _ from: Lane, to lane: Lane) {
    assert(heap.information(slab).map { $0.stream == stream(from) } ?? true, "PurgeableCache: a slab of another lane")
    heap.move(slab, to: stream(lane))
    noteCore(slab, in: lane)
    // The slabs before a mark at this slab have had their turn.
    lanes[marksOf: from].removeAll(at: slab)
    // A cursor at the slab would lead into another lane: eviction begins again at the front of this one.
    if lanes[from].cursor.slab.index == slab.index { lanes[from].cursor = EvictionCursor() }
    // So would the search for sparse slabs, perhaps into a lane of another shard.
    if compaction.cursor.index == slab.index { compaction.cursor = .none }
  }

  // MARK: Age

  /// By which shards are compared: the lowest is next. Speculative entries go before all others, of whichever shard.
  func turn(_ age: UInt64, _ queue: EvictionQueue) -> UInt64 { queue == .speculative ? age : age | 1 << 62 }

  /// The turn of the entry that `evictEntry` would look at next; `UInt64.max` when there is none.
  func nextAge(_ need: EvictionNeed) -> UInt64 {
    if !need.isOfCost, keys.hollowCount > 0 { return 0 }
    guard slots.count > 0 else { return .max }
    let turns = nextQueue(need).turns
    for i in turns.indices { if let age = nextInTurn(turns[i])?.age { return turn(age, turns[i]) } }
    // Slots are left for which no queue has an element: this shard is asked last.
    return .max - 1
  }

  /// The turn of the slab that would be given back next; `UInt64.max` when there is none.
  func oldestSlabAge() -> UInt64 {
    if keys.hollowCount > 0 { return 0 }
    let turns = nextQueue(EvictionNeed(.bytes)).turns
    for i in turns.indices {
      let oldest = usedLanes(of: turns[i]).reduce(UInt64.max) { min($0, heap.firstAge(ofOldestIn: stream($1)) ?? .max) }
      if oldest != .max { return turn(oldest, turns[i]) }
    }
    return slots.count > 0 ? .max - 1 : .max
  }
}
