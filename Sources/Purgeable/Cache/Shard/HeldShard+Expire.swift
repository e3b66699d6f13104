// SPDX-License-Identifier: MIT
// Dropping entries whose time is over, without a look at those that live.
//
//   store          the deadline is in the entry's head; the entry goes to the lane of its time to live (ShardLanes.swift), whose
//                  slab has its first and its last deadline noted. A time since the last use (LastUses.swift) is there as well:
//                  it is noted as if the entry were not used again
//   look-up        compares the deadline with the clock, and drops the entry (HeldShard+Find.swift)
//   slab due       its last deadline is over: all its entries go, and its memory goes back; where some were used meanwhile, these
//                  stay, and it is due again with the last of them. In a lane slabs become due in about the order in which they
//                  were filled: whoever needs room looks at the oldest, upkeep at all
//   small cache    has one lane, in whose slabs entries without a deadline lie too: such a slab is due with its first deadline,
//                  and what has expired there goes
//   entries        whoever needs room for one entry searches slabs whose first deadline is over too, `removeExpired` all of them

import CPurgeable

extension HeldShard {
  // MARK: Stores

  /// The lane of a new entry.
  @inline(__always)
  mutating func lane(_ queue: EvictionQueue, _ head: EntryHead) -> Lane {
    head.isTimed ? timedLane(queue, head) : Lane(queue)
  }

  @inline(never)
  private mutating func timedLane(_ queue: EvictionQueue, _ head: EntryHead) -> Lane {
    if head.sinceLastUse != nil { keepLastUses() }
    base.hasDeadlines.store(true, ordering: .relaxed)
    // Where the deadline is known, it only chooses the lane.
    let now = head.sinceLastUse == nil ? base.clock.recent : base.clock.now()
    let deadline = base.end(head, UseTime(now), asOf: now) ?? .max
    nextSearch = min(nextSearch, deadline)
    // In a small cache, open slabs of many lanes would leave no room.
    let slabCount = base.limits.bytes.load(ordering: .relaxed) / heap.slabBytes
    let most = slabCount < 4 ? 1 : slabCount < 32 ? 2 : Lane.numberLimit
    guard most > 1, makeLanes(for: queue, isTimed: true) else {
      laneTimes.sharesFirst = true
      return Lane(queue)
    }
    let (heap, place) = (heap, place)
    let number = laneTimes.lane(for: deadline - min(deadline, now), most: most) { number in
      EvictionQueue.all.allSatisfy { heap.oldest(of: heap.streams[Lane($0, number), place]) == nil }
    }
    return Lane(queue, number)
  }

  /// Notes when the time of an entry that came to a lane is over, if it is ever.
  @inline(__always)
  mutating func noteEnd(_ head: EntryHead, _ lastUse: UseTime?, of reference: purgeable_reference_t) {
    if head.isTimed, let end = base.end(head, lastUse, asOf: base.clock.now()) {
      base.slabNotes.include(end, heap.slab(of: reference))
    }
  }

  /// The last use of an entry that is used now; nil where it does not matter.
  @inline(__always) func useNow(_ head: EntryHead) -> UseTime? { base.useMoment(head).map { UseTime($0) } }

  /// From here on, of all entries.
  mutating func keepLastUses() {
    if index.keepsLastUses { return }
    index.keepLastUses()
    noteIndexBytes()
  }

  func lastUse(of slot: Slot) -> UseTime? { index.lastUse(identity: slot.identity, place: slot.place) }

  /// Notes a use of an entry whose time is over some time after it.
  @inline(__always) func noteLastUse(of found: FoundSlot, _ head: EntryHead) {
    if let use = useNow(head) { index.current().lastUse(of: found.pointer).note(use) }
  }

  // MARK: Slabs that are due

  /// Whether entries of a lane may have a deadline.
  private func mayBeDue(_ lane: Lane) -> Bool { lane.number >= laneTimes.firstTimed }
  private var hasTimedLanes: Bool { laneTimes.firstTimed < laneTimes.count }

  /// When a slab of a lane is due; nil where it never is.
  private func due(_ slab: purgeable_slab_t, in lane: Lane) -> UInt64? {
    base.slabNotes[deadlinesOf: slab].map { lane.number > 0 ? $0.last : $0.first }
  }

  /// Drops the entries of a slab that have all expired, and gives the slab back. False where none of the oldest slabs is due.
  mutating func dropDueSlab() -> Bool { hasTimedLanes && dropDueSlab(now: base.clock.now(), looks: 8) }

  /// `looks`: at so many slabs of each lane at most. A lane with entries of other times has slabs that are due behind others.
  mutating func dropDueSlab(now: UInt64, looks: Int = .max) -> Bool {
    for lane in usedLanes where mayBeDue(lane) {
      let isTimed = lane.number > 0
      for slab in heap.slabs(of: stream(lane)).prefix(looks) {
        guard let due = due(slab, in: lane), due <= now, let information = heap.information(slab) else { continue }
        if isTimed, information.is_open { heap.seal(stream(lane)) }
        let before = slots.count
        if index.keepsLastUses || !isTimed {
          _ = dropExpired(in: slab, now: now, dropsLost: isTimed)
        } else {
          _ = run(over: slab, .expiry)
        }
        if slots.count < before { return true }
      }
    }
    return false
  }

  /// When a slab is due next; nil where no entry has a deadline.
  var nextDue: UInt64? {
    var next: UInt64?
    for lane in usedLanes where mayBeDue(lane) {
      for slab in heap.slabs(of: stream(lane)) {
        guard let due = due(slab, in: lane), due != .max, hasEntries(slab) else { continue }
        next = min(next ?? .max, due)
      }
    }
    return next
  }

  // MARK: Entries

  /// Drops entries that have expired, if some are found with a few looks at the oldest slabs, which are not looked at again for a
  /// part of their entries' time. For evictions of single entries.
  mutating func dropExpiredForRoom() -> Bool {
    guard hasTimedLanes, base.clock.hasReached(nextSearch) else { return false }
    let now = base.clock.now()
    if dropDueSlab(now: now, looks: 8) { return true }
    for lane in usedLanes where mayBeDue(lane) {
      // A look reads two words.
      for slab in heap.slabs(of: stream(lane)).prefix(256) where isDue(slab, now) {
        if dropExpired(in: slab, now: now) > 0 { return true }
      }
    }
    nextSearch = now + min(laneTimes.shortest / 16, 1_000_000_000)
    return false
  }

  /// Drops all that has expired in one slab of those where something has. Returns how many entries; nil where there is no such
  /// slab.
  mutating func dropExpiredInNextSlab(now: UInt64) -> Int? {
    for lane in usedLanes where mayBeDue(lane) {
      for slab in heap.slabs(of: stream(lane)) where isDue(slab, now) { return dropExpired(in: slab, now: now) }
    }
    return nil
  }

  private func isDue(_ slab: purgeable_slab_t, _ now: UInt64) -> Bool {
    base.slabNotes[deadlinesOf: slab].map { $0.first <= now } ?? false && hasEntries(slab)
  }

  /// A slab without entries, of which a reader has locked one that left, stays until that unlocks it, and is never due.
  private func hasEntries(_ slab: purgeable_slab_t) -> Bool { heap.information(slab)?.element_count ?? 0 > 0 }

  /// Drops the entries of a slab that have expired, and notes the deadlines of those that live.
  private mutating func dropExpired(in slab: purgeable_slab_t, now: UInt64, dropsLost: Bool = false) -> Int {
    let (before, base, index, elements) = (slots.count, base, index, elements)
    var (first, last) = (UInt64.max, UInt64(0))
    _ = run(over: slab, .expiry) { place in
      guard let facts = elements.facts(of: base.heap.reference(place)),
        let found = index.find(identity: facts.identity, place: place), let head = elements.head(of: found.slot, facts)
      else { return dropsLost }
      guard let end = base.end(head, index.lastUse(of: found), asOf: now) else { return false }
      if end > now { (first, last) = (min(first, end), max(last, end)) }
      return end <= now
    }
    // A slab in which elements live does not end under the shard's mutex; without any, it may be another shard's by now.
    // What cannot be read is lost, and is not looked at again.
    if hasEntries(slab), let old = base.slabNotes[deadlinesOf: slab] {
      base.slabNotes[deadlinesOf: slab] = DeadlineRange(first: first, last: last == 0 ? old.last : last)
    }
    return before - slots.count
  }
}
