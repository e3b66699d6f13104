// SPDX-License-Identifier: MIT
// The eager mode: entries that were not used for a time are given back, even when memory is not short.
//
// For environments that judge a process by its resident memory (RSS): pages on offer stay resident until the kernel needs them.
// No entry carries a time. Instead each lane of a queue is marked every quarter of the idle time. When a mark is as old as the
// idle time, so are all entries before it, and the counters show which of them were used meanwhile.
//
//     oldest [slab][slab] mark [slab][slab][slab] mark [slab] mark  youngest
//             idle time ago          3/4              1/2
//
// Entries that were used move to the young end with a counter of 0. So an entry goes after one to two idle times without use.

import CPurgeable

/// All elements up to this slab were allocated before this time.
struct IdleMark {
  let time: UInt64
  let slab: purgeable_slab_t
}

/// The marks of one lane, oldest first. They are a quarter of the idle time apart, so five are enough. When there is no room
/// for another one, the next mark covers its slabs too.
struct IdleMarks {
  private static let capacity = 6
  private var marks = InlineArray<6, IdleMark>(
    repeating: IdleMark(time: 0, slab: .none))
  private var count = 0

  var first: IdleMark? { count > 0 ? marks[0] : nil }
  var last: IdleMark? { count > 0 ? marks[count - 1] : nil }

  mutating func append(_ mark: IdleMark) {
    assert(count == 0 || marks[count - 1].time <= mark.time, "PurgeableCache: a mark is older than the one before")
    guard count < Self.capacity else { return }
    marks[count] = mark
    count += 1
  }

  mutating func removeFirst() { remove(at: 0) }

  /// Removes all marks at a slab.
  mutating func removeAll(at slab: purgeable_slab_t) {
    for i in (0..<count).reversed() where marks[i].slab.isSame(as: slab) {
      remove(at: i)
    }
  }

  private mutating func remove(at place: Int) {
    guard place < count else { return }
    for i in place + 1..<max(count, place + 1) { marks[i - 1] = marks[i] }
    count -= 1
  }
}

extension HeldShard {
  /// One round of the eager mode: gives back the slabs that are due, and sets marks. Times are in nanoseconds of the cache's
  /// clock.
  mutating func giveBackIdle(after idleTime: UInt64, now: UInt64) {
    let before = lanes.byteCount
    guard lanes.makeMarks() else { return }
    if lanes.byteCount > before { noteIndexBytes() }
    for lane in evictedLanes {
      let stream = stream(lane)
      while let mark = lanes[marksOf: lane].first, now - min(now, mark.time) >= idleTime {
        lanes[marksOf: lane].removeFirst()
        // When the marked slab is gone, so are all slabs before it. When it was moved to the young end, it is due later.
        while heap.information(mark.slab)?.stream == stream, let slab = heap.oldest(of: stream) {
          _ = run(over: slab, .idle)
          if heap.information(slab) != nil { restream(slab, lane, to: lane) }
          if slab.isSame(as: mark.slab) { break }
        }
      }
      let newest = lanes[marksOf: lane].last?.time ?? 0
      guard now - min(now, newest) >= idleTime / 4 else { continue }
      // Sealed, so that later entries go to a slab after the mark.
      heap.seal(stream)
      if let slab = heap.youngest(of: stream) { lanes[marksOf: lane].append(IdleMark(time: now, slab: slab)) }
    }
    sweepLost()
    shrinkIndex()
  }
}
