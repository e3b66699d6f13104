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

/// All elements up to a marked slab were allocated before its time.
typealias SlabMarks = IdleMarks<purgeable_slab_t>

extension SlabMarks {
  init() { self.init(none: .none) }

  /// Removes all marks at a slab.
  mutating func removeAll(at slab: purgeable_slab_t) { removeAll { $0.isSame(as: slab) } }
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
      while let marked = lanes[marksOf: lane].takeDue(idleTime, now: now) {
        // When the marked slab is gone, so are all slabs before it. When it was moved to the young end, it is due later.
        while heap.information(marked)?.stream == stream, let slab = heap.oldest(of: stream) {
          _ = run(over: slab, .idle)
          if heap.information(slab) != nil { restream(slab, lane, to: lane) }
          if slab.isSame(as: marked) { break }
        }
      }
      guard lanes[marksOf: lane].wantsMark(idleTime, now: now) else { continue }
      // Sealed, so that later entries go to a slab after the mark.
      heap.seal(stream)
      if let slab = heap.youngest(of: stream) { lanes[marksOf: lane].append(slab, now: now) }
    }
    sweepLost()
    shrinkIndex()
  }
}
