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
  private var others = BookkeepingArray<ShardLane>()
  private var marks = BookkeepingArray<SlabMarks>()

  /// Makes the other lanes, unless they are there. False without memory.
  mutating func makeOthers() -> Bool { others.make(Lane.count - Self.firstCount) }

  var hasOthers: Bool { !others.isEmpty }
  var byteCount: Int { others.byteCount + marks.byteCount }

  /// Makes room for marks, unless there is. False without memory.
  mutating func makeMarks() -> Bool { marks.make(Lane.count) }

  /// Of the eager mode; no marks without room.
  subscript(marksOf lane: Lane) -> SlabMarks {
    get { marks.isEmpty ? SlabMarks() : marks[lane.index] }
    set { if !marks.isEmpty { marks[lane.index] = newValue } }
  }

  /// Gets and sets the whole: an accessor that lends something so large takes memory for that.
  subscript(lane: Lane) -> ShardLane {
    @inline(__always) get {
      let index = lane.index
      if index < Self.firstCount { return first[index] }
      return others.isEmpty ? ShardLane() : others[index - Self.firstCount]
    }
    @inline(__always) set {
      let index = lane.index
      if index < Self.firstCount { first[index] = newValue } else if hasOthers { others[index - Self.firstCount] = newValue }
    }
  }
}
