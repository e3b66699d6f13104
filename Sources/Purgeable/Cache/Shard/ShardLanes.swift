// SPDX-License-Identifier: MIT
// What a shard knows of its lanes. Those of entries with a priority or a deadline take memory with the first such entry, and the
// marks of the eager mode with the first round.

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
}

struct ShardLanes: ~Copyable {
  private static let firstCount = EvictionQueue.firstCount

  private var first = InlineArray<2, ShardLane>(repeating: ShardLane())
  private var others: BookkeepingArray<ShardLane>?
  private var marks: BookkeepingArray<SlabMarks>?

  /// Makes the other lanes, unless they are there. False without memory.
  mutating func makeOthers() -> Bool {
    if !hasOthers { others = BookkeepingArray(zeros: Lane.count - Self.firstCount) }
    return hasOthers
  }

  var hasOthers: Bool { Self.byteCount(others) > 0 }
  var byteCount: Int { Self.byteCount(others) + Self.byteCount(marks) }

  private static func byteCount<T>(_ array: borrowing BookkeepingArray<T>?) -> Int {
    switch array {
    case .some(let array): array.byteCount
    case nil: 0
    }
  }

  /// Makes room for marks, unless there is. False without memory.
  mutating func makeMarks() -> Bool {
    if Self.byteCount(marks) == 0 { marks = BookkeepingArray(zeros: Lane.count) }
    return Self.byteCount(marks) > 0
  }

  /// Of the eager mode; no marks without room.
  subscript(marksOf lane: Lane) -> SlabMarks {
    get {
      switch marks {
      case .some(let marks): marks[lane.index]
      case nil: SlabMarks()
      }
    }
    set { marks?[lane.index] = newValue }
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
