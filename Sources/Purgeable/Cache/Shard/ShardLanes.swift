// SPDX-License-Identifier: MIT
// What a shard knows of its lanes. Those of entries with a priority or a deadline take memory with the first such entry.

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
  private static let firstCount = EvictionQueue.firstCount

  private var first = InlineArray<2, ShardLane>(repeating: ShardLane())
  private var others: BookkeepingArray<ShardLane>?

  /// Makes the other lanes, unless they are there. False without memory.
  mutating func makeOthers() -> Bool {
    if byteCount == 0 { others = BookkeepingArray(zeros: Lane.count - Self.firstCount) }
    return byteCount > 0
  }

  var byteCount: Int {
    switch others {
    case .some(let others): others.byteCount
    case nil: 0
    }
  }

  /// Gets and sets the whole: an accessor that lends something so large takes memory for that.
  subscript(lane: Lane) -> ShardLane {
    @inline(__always) get {
      let index = lane.index
      if index < Self.firstCount { return first[index] }
      return switch others {
      case .some(let others): others[index - Self.firstCount]
      case nil: ShardLane()
      }
    }
    @inline(__always) set {
      let index = lane.index
      if index < Self.firstCount { first[index] = newValue } else { others?[index - Self.firstCount] = newValue }
    }
  }
}
