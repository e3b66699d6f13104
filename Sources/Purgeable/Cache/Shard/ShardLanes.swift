// SPDX-License-Identifier: MIT
// What a shard knows of its lanes. Those of entries with a deadline take memory with the first such entry.

import CPurgeable

/// How far eviction entry by entry has got in a lane.
struct EvictionCursor {
  var slab = purgeable_slab_t.none
  var element: UInt32 = 0
}

/// One lane of a shard. All zeros are a lane that nothing was noted of.
struct ShardLane: BitwiseCopyable {
  var cursor = EvictionCursor()
  /// The slab that the last small entry of the lane went to.
  var youngest = purgeable_slab_t.none
  /// Of the eager mode.
  var idleMarks = IdleMarks()
}

struct ShardLanes: ~Copyable {
  private var first = EachQueue<ShardLane>(repeating: ShardLane())
  private var timed: BookkeepingArray<ShardLane>?

  /// Makes the lanes of entries with a deadline, unless they are there. False without memory.
  mutating func makeTimed() -> Bool {
    if byteCount == 0 { timed = BookkeepingArray(zeros: Lane.count - EvictionQueue.count) }
    return byteCount > 0
  }

  var byteCount: Int {
    switch timed {
    case .some(let timed): timed.byteCount
    case nil: 0
    }
  }

  /// Gets and sets the whole: an accessor that lends something so large takes memory for that.
  subscript(lane: Lane) -> ShardLane {
    @inline(__always) get {
      if lane.number == 0 { return first[lane.queue.rawValue] }
      return switch timed {
      case .some(let timed): timed[lane.index - EvictionQueue.count]
      case nil: ShardLane()
      }
    }
    @inline(__always) set {
      if lane.number == 0 { first[lane.queue.rawValue] = newValue } else { timed?[lane.index - EvictionQueue.count] = newValue }
    }
  }
}
