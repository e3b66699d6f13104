// SPDX-License-Identifier: MIT
// What could have been had: the demonstration's reads once more, in a process without pressure, through a cache whose byte limit
// follows the room that the neighbour left at each moment.

import Purgeable

struct RoomReplay {
  /// A read's time and its file, in turn.
  var reads: [UInt64]
  /// A time, and what the neighbour held from then on, in turn.
  var neighbour: [UInt64]
  /// Of the files, by their numbers.
  var sizes: [UInt64]
  /// What the cache and the neighbour have together.
  var sharedBytes: UInt64

  /// How many of the reads are hits.
  func countHits() throws -> UInt64 {
    let cache = try PurgeableCache<Int, [UInt8]>(name: "demo, in the room that is left", byteLimit: Int(clamping: sharedBytes))
    for file in sizes.indices {
      try Children.checkInterruption()
      store(file, in: cache)
    }
    var hits: UInt64 = 0
    var next = 0
    for at in stride(from: 0, to: reads.count - 1, by: 2) {
      if at % 2000 == 0 { try Children.checkInterruption() }
      // The least room since the last read, then the present one.
      var (least, now) = (UInt64.max, UInt64.max)
      while next + 1 < neighbour.count, neighbour[next] <= reads[at] {
        now = sharedBytes - min(sharedBytes, neighbour[next + 1])
        least = min(least, now)
        next += 2
      }
      if now != .max {
        if least < now { try cache.setByteLimit(Int(clamping: least)) }
        try cache.setByteLimit(Int(clamping: now))
      }
      let file = Int(clamping: reads[at + 1])
      if cache.withBytes(forKey: file, { _ in true }) != nil { hits += 1 } else { store(file, in: cache) }
    }
    return hits
  }

  private func store(_ file: Int, in cache: PurgeableCache<Int, [UInt8]>) {
    guard sizes.indices.contains(file) else { return }
    cache.setValue([UInt8](repeating: 0x5A, count: Int(clamping: sizes[file])), forKey: file)
  }
}
