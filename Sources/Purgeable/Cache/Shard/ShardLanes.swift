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

//     lane   0: for ever    1: 32 to 64 s    2: 1 to 2 h    3: -

/// Which times to live the lanes of a shard are for: each for one octave, from a time to twice that.
///
/// A lane gets the octave of the first entry that needs it, and another one once it is empty. Where all lanes are taken, an entry
/// goes to one for longer times: its memory goes back later.
struct LaneTimes {
  /// How many lanes each queue has.
  private(set) var count = 1
  /// Whether lane 0 has entries with a deadline, too: in a small cache, and where there was no memory for a lane.
  var sharesFirst = false
  /// The first lane that may have entries with a deadline.
  var firstTimed: Int { sharesFirst ? 0 : 1 }
  /// The logarithm of the shortest time of each; lane 0 has none.
  private var octaves = InlineArray<4, UInt8>(repeating: 0)

  /// The lane for entries that live so long, in nanoseconds. `most`: how many lanes there may be, two at least. `isEmpty`:
  /// whether a lane has no entries, in any queue.
  mutating func lane(for lifetime: UInt64, most: Int, isEmpty: (Int) -> Bool) -> Int {
    let octave = UInt8(UInt64.bitWidth - 1 - max(1, lifetime).leadingZeroBitCount)
    for lane in 1..<count where octaves[lane] == octave { return lane }
    if count < most {
      octaves[count] = octave
      count += 1
      return count - 1
    }
    var (coarser, longest) = (0, 1)
    for lane in 1..<count {
      if isEmpty(lane) {
        octaves[lane] = octave
        return lane
      }
      if octaves[lane] > octave, coarser == 0 || octaves[lane] < octaves[coarser] { coarser = lane }
      if octaves[lane] > octaves[longest] { longest = lane }
    }
    if coarser > 0 { return coarser }
    octaves[longest] = octave
    return longest
  }

  /// The shortest time that a lane is for, in nanoseconds.
  var shortest: UInt64 {
    var least = UInt8(UInt64.bitWidth - 1)
    for lane in 1..<count { least = min(least, octaves[lane]) }
    return 1 << UInt64(least)
  }
}
