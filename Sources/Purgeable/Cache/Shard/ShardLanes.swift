// SPDX-License-Identifier: MIT
// What a shard knows of its lanes.

import CPurgeable

/// How far eviction entry by entry has got in a lane.
struct EvictionCursor {
  var slab = purgeable_slab_t.none
  var element: UInt32 = 0
}

/// Read and written as wholes: accessors that lend a part of something large take memory for that.
struct ShardLanes: ~Copyable {
  var cursors = EachLane<EvictionCursor>(repeating: EvictionCursor())
  /// The slab that the last small entry of each lane went to.
  var youngest = EachLane<purgeable_slab_t>(repeating: .none)
  /// Marks of the eager mode. Those of entries with a deadline take memory with the first such entry.
  private var firstMarks = EachQueue<IdleMarks>(repeating: IdleMarks())
  private var timedMarks: BookkeepingArray<IdleMarks>?

  /// Makes the marks of entries with a deadline, unless they are there. False without memory.
  mutating func makeTimed() -> Bool {
    // All zeros are no marks.
    if byteCount == 0 { timedMarks = BookkeepingArray(zeros: Lane.count - EvictionQueue.count) }
    return byteCount > 0
  }

  var byteCount: Int {
    switch timedMarks {
    case .some(let marks): marks.byteCount
    case nil: 0
    }
  }

  func idleMarks(_ lane: Lane) -> IdleMarks {
    if lane.number == 0 { return firstMarks[lane.queue.rawValue] }
    return switch timedMarks {
    case .some(let marks): marks[lane.index - EvictionQueue.count]
    case nil: IdleMarks()
    }
  }

  mutating func setIdleMarks(_ lane: Lane, _ marks: IdleMarks) {
    if lane.number == 0 { firstMarks[lane.queue.rawValue] = marks } else { timedMarks?[lane.index - EvictionQueue.count] = marks }
  }
}
