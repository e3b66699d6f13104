// SPDX-License-Identifier: MIT
// Entries that come from a file, behind all others: the file has the hottest first, and each batch of it is older than the one
// before.
//
//   batch     its entries are stored coldest first, into slabs of their own, at the young end of their lanes
//   its end   these slabs move to the old end, in their order, with ages below all that were there
//
//   lane      [batch 2][batch 1][what was there before or came since]
//
// Shards open between batches: entries that move home in the midst of one would lie among its own. What another thread stores
// into a lane during a batch lies among the batch's entries. An order that names entries is told of each, hottest first.

import CPurgeable
import Synchronization

/// What is saved of an entry beside its bytes and its head.
struct EntryRank {
  let priority: EntryPriority
  let isMain: Bool
  let useCount: UInt64
  /// nil: now, where it matters.
  let lastUse: UseTime?
}

/// The youngest slabs of a shard's lanes when a batch began.
typealias RestoreMarks = EachLane<purgeable_slab_t>

extension HeldShard {
  /// Stores an entry of a file, unless its key has a value. Evicts nothing.
  mutating func restore(
    _ key: EngineKey, _ prefix: RawSpan, _ value: RawSpan, _ head: EntryHead, _ rank: EntryRank
  ) -> RestoreOutcome {
    if find(key, prefix) != nil { return .present }
    let size = EntrySize(prefixByteCount: prefix.byteCount, valueByteCount: value.byteCount, head, base.credits)
    if size.isTooLong || base.exceedsWholeLimit(size.cost, size.byteCount) { return .tooLarge }
    // Who has lost its value has a place.
    let added = isHollow(key) ? 0 : 1
    // Sums over all shards, so only those with a limit.
    let (countLimit, costLimit, growthLimit) = (
      base.limits.count.load(ordering: .relaxed), base.limits.cost.load(ordering: .relaxed), base.growthLimit
    )
    guard countLimit == .max || base.count + added <= countLimit,
      costLimit == .max || base.totalCost + UInt128(size.cost) <= UInt128(costLimit),
      growthLimit == .max || size.byteCount <= growthLimit - min(growthLimit, base.chargedBytes), hasIndexRoom
    else { return .full }
    // One that may not be pinned is a normal one.
    var (queue, reserved) = (entryOrder != nil || rank.isMain ? EvictionQueue.main : .probation, 0)
    switch rank.priority {
    case .pinned: if let room = reserve(size.byteCount) { (queue, reserved) = (.pinned, room) }
    case .speculative: if makeLanes(for: .speculative, isTimed: false) { queue = .speculative }
    case .normal: break
    }
    defer { base.totals.endReservation(reserved) }
    let lane = lane(queue, head)
    guard let element = allocateWithinLimit(size.byteCount, lane) else { return .full }
    unsafe EntryPrefix.write(prefix, head, value, to: element.bytes)
    let outcome = enter(element, key, size, head, lane, replacing: nil, hadOld: false, isRemembered: true, restored: rank)
    return outcome == .outOfMemory ? .full : .stored
  }

  // MARK: Batches

  mutating func beginRestoring() -> RestoreMarks {
    var marks = RestoreMarks(repeating: .none)
    for lane in usedLanes {
      heap.seal(stream(lane))
      marks[lane.index] = heap.youngest(of: stream(lane)) ?? .none
    }
    return marks
  }

  /// Puts the slabs that came since behind all others. Where the mark is gone, or there was none, that is all slabs of the lane,
  /// whose order stays. `ages`: those of the batch, over all shards.
  mutating func endRestoring(_ marks: RestoreMarks, _ ages: Range<UInt64>) {
    for lane in usedLanes {
      let stream = stream(lane)
      let mark = marks[lane.index]
      heap.seal(stream)
      // Nothing came to this lane, which may be long.
      if let youngest = heap.youngest(of: stream), youngest.isSame(as: mark) { continue }
      var (total, next) = (0, heap.next(after: mark) ?? heap.oldest(of: stream))
      while let slab = next {
        total += Int(heap.information(slab)?.element_count ?? 0)
        next = heap.next(after: slab)
      }
      var (first, left) = (purgeable_slab_t?.none, total)
      while let slab = heap.youngest(of: stream), !slab.isSame(as: mark), first.map({ !$0.isSame(as: slab) }) ?? true,
        let information = heap.information(slab), heap.moveToOldEnd(slab, of: stream)
      {
        first = first ?? slab
        func age(_ before: Int) -> UInt64 { ages.lowerBound + UInt64(ages.count * max(0, before) / max(1, total)) }
        heap.noteAge(of: slab, first: age(left - Int(information.element_count)), last: age(left))
        left -= Int(information.element_count)
        lanes[marksOf: lane].removeAll(at: slab)
      }
      if first == nil { continue }
      // What comes next begins a slab, and does not note its age as the last of the one before.
      lanes[lane].youngest = .none
      lanes[lane].cursor = EvictionCursor()
    }
  }
}

extension CacheBase {
  /// How much there is room for without an eviction, as far as that is known beforehand.
  var roomToRestore: (count: Int, cost: UInt128, byteCount: Int) {
    let (countLimit, costLimit) = (limits.count.load(ordering: .relaxed), limits.mostCost)
    let (count, cost) = (max(0, self.count), totalCost)
    let byteLimit = min(limits.bytes.load(ordering: .relaxed), growthLimit)
    return (
      countLimit - min(countLimit, count), costLimit - min(costLimit, cost),
      byteLimit - min(byteLimit, chargedBytes)
    )
  }
}

extension CacheShards {
  /// Runs `body`, which restores a batch, coldest first, and tells of how many entries.
  func restoring(_ body: () -> Int) {
    openIfLarge()
    isRestoring.store(true, ordering: .relaxed)
    defer { isRestoring.store(false, ordering: .relaxed) }
    // Whoever has not seen that has begun to open them, under this mutex too.
    while hold(founder, { _ in base.indexes.mask.isMoving }), goOnOpening() {}
    var marks = InlineArray<17, RestoreMarks>(repeating: RestoreMarks(repeating: .none))
    for (i, shard) in all.enumerated() { marks[i] = hold(shard) { $0.beginRestoring() } }
    let count = UInt64(body())
    let oldest = base.oldestAge.subtract(count, ordering: .relaxed).newValue
    for (i, shard) in all.enumerated() { hold(shard) { $0.endRestoring(marks[i], oldest..<oldest + count) } }
  }
}
