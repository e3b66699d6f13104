// SPDX-License-Identifier: MIT
// Dropping entries whose time is over, without a look at those that live.
//
//   store          the deadline is in the entry's head; the entry goes to the lane of its time to live (LaneTimes.swift), whose
//                  slab has its first and its last deadline noted
//   look-up        compares the deadline with the clock, and drops the entry (HeldShard+Find.swift)
//   slab due       its last deadline is over: all its entries go, and its memory goes back. In a lane slabs become due in about
//                  the order in which they were filled: whoever needs room looks at the oldest, upkeep at all
//   entries        whoever needs room for one entry searches the oldest slab of each lane too, `removeExpired` all slabs whose
//                  first deadline is over

import CPurgeable

extension HeldShard {
  // MARK: Stores

  /// The lane of a new entry.
  @inline(__always)
  mutating func lane(_ queue: EvictionQueue, _ head: EntryHead) -> Lane {
    head.deadline.map { lane(queue, until: $0) } ?? Lane(queue)
  }

  @inline(never)
  private mutating func lane(_ queue: EvictionQueue, until deadline: UInt64) -> Lane {
    // In a small cache, open slabs of many lanes would leave no room.
    let slabCount = base.limits.bytes.load(ordering: .relaxed) / heap.slabBytes
    let most = slabCount < 4 ? 1 : slabCount < 32 ? 2 : Lane.numberLimit
    // Without a lane, it leaves when it is looked up, or as any other does.
    guard most > 1, makeLanes(for: queue, isTimed: true) else { return Lane(queue) }
    base.hasDeadlines.store(true, ordering: .relaxed)
    nextSearch = min(nextSearch, deadline)
    let now = base.clock.now()
    let (heap, place) = (heap, place)
    let number = laneTimes.lane(for: deadline - min(deadline, now), most: most) { number in
      EvictionQueue.all.allSatisfy { heap.oldest(of: heap.streams[Lane($0, number), place]) == nil }
    }
    return Lane(queue, number)
  }

  /// Notes the deadline of an entry that came to a lane, if it has one.
  @inline(__always)
  mutating func noteDeadline(_ deadline: UInt64?, of reference: purgeable_reference_t) {
    if let deadline { base.deadlines.include(deadline, heap.slab(of: reference)) }
  }

  // MARK: Slabs that are due

  /// Drops the entries of a slab that have all expired, and gives the slab back. False where none of the oldest slabs is due.
  mutating func dropDueSlab() -> Bool { laneTimes.count > 1 && dropDueSlab(now: base.clock.now(), looks: 8) }

  /// `looks`: at so many slabs of each lane at most. A lane with entries of other times has slabs that are due behind others.
  mutating func dropDueSlab(now: UInt64, looks: Int = .max) -> Bool {
    for lane in usedLanes where lane.number > 0 {
      for slab in heap.slabs(of: stream(lane)).prefix(looks) {
        guard let range = base.deadlines[slab], range.last <= now, let information = heap.information(slab) else { continue }
        if information.is_open { heap.seal(stream(lane)) }
        let before = slots.count
        _ = run(over: slab, .expiry)
        if slots.count < before { return true }
      }
    }
    return false
  }

  /// When a slab is due next; nil where no entry has a deadline.
  var nextDue: UInt64? {
    var next: UInt64?
    for lane in usedLanes where lane.number > 0 {
      for slab in heap.slabs(of: stream(lane)) {
        // Without a range it is never due; nor without entries, which are left where a reader has locked one.
        guard let range = base.deadlines[slab], heap.information(slab)?.element_count ?? 0 > 0 else { continue }
        next = min(next ?? .max, range.last)
      }
    }
    return next
  }

  // MARK: Entries

  /// Drops entries that have expired, if some are found with a few looks at the oldest slabs, which are not looked at again for a
  /// part of their entries' time. For evictions of single entries.
  mutating func dropExpiredForRoom() -> Bool {
    guard laneTimes.count > 1, base.clock.hasReached(nextSearch) else { return false }
    let now = base.clock.now()
    if dropDueSlab(now: now, looks: 8) { return true }
    for lane in usedLanes where lane.number > 0 {
      guard let slab = heap.nextInUse(after: nil, of: stream(lane)), isDue(slab, now) else { continue }
      if dropExpired(in: slab, now: now) > 0 { return true }
    }
    nextSearch = now + min(laneTimes.shortest / 16, 1_000_000_000)
    return false
  }

  /// Drops all that has expired in one slab of those where something has. Returns how many entries; nil where there is no such
  /// slab.
  mutating func dropExpiredInNextSlab(now: UInt64) -> Int? {
    for lane in usedLanes where lane.number > 0 {
      for slab in heap.slabs(of: stream(lane)) where isDue(slab, now) { return dropExpired(in: slab, now: now) }
    }
    return nil
  }

  private func isDue(_ slab: purgeable_slab_t, _ now: UInt64) -> Bool {
    base.deadlines[slab].map { $0.first <= now } ?? false
  }

  /// Drops the entries of a slab that have expired, and notes the first deadline of those that live.
  private mutating func dropExpired(in slab: purgeable_slab_t, now: UInt64) -> Int {
    let (before, elements) = (slots.count, elements)
    var first = UInt64.max
    _ = run(over: slab, .expiry) { place in
      // In such a lane all have a head with a deadline.
      guard let deadline = elements.deadline(at: place) else { return false }
      if deadline > now { first = min(first, deadline) }
      return deadline <= now
    }
    // A slab in which elements live does not end under the shard's mutex; without any, it may be another shard's by now.
    // What cannot be read is lost, and is not looked at again.
    if heap.information(slab)?.element_count ?? 0 > 0 { base.deadlines[slab]?.first = first }
    return before - slots.count
  }
}
