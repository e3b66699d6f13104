// SPDX-License-Identifier: MIT
// How fast a cache may grow after it gave memory back: each second by a sixteenth of what it held before. So it takes a quarter
// of a minute at least to grow back, and does not swing. The limit ends after a minute in which nothing was given back.
//
//   bytes ^
//  before |-----+                   . . . no limit
//         |     |              . '  |
//         |     |        . '        |
//    base |     +  . '              |
//         +-----+-------------------+-----> time
//             begin              a minute later

import Synchronization

/// Times are in nanoseconds of the cache's clock (`MonotonicClock`). All loads and stores are relaxed: a limit that is a moment
/// old will do.
struct SlowGrowth: ~Copyable, Sendable {
  static let partsPerSecond = 16
  static let duration: UInt64 = 60_000_000_000
  static let byteFloor = 4 << 20
  /// The lowest limit.
  private let floor: Int

  /// The bytes that were left when memory had been given back; `Int.max` for no limit.
  private let base = Atomic<Int>(.max)
  /// When it was given back.
  private let begun = Atomic<UInt64>(0)
  /// The bytes held before: a sixteenth of them a second.
  private let before = Atomic<Int>(0)

  /// Of bytes, or of whatever the cache counts its size in.
  init(floor: Int = byteFloor) { self.floor = floor }

  /// From `now` on the cache grows slowly. `before`, `held`: bytes, before it gave something back and afterwards.
  func begin(before: Int, held: Int, now: UInt64) {
    assert(before >= 0 && held >= 0, "PurgeableCache: a cache holds fewer than 0 bytes")
    // While a limit holds, the higher rate stays, so that the effects of several reactions do not add up.
    let present = base.load(ordering: .relaxed) == .max ? 0 : self.before.load(ordering: .relaxed)
    self.before.store(max(present, before), ordering: .relaxed)
    begun.store(now, ordering: .relaxed)
    base.store(max(floor, held), ordering: .relaxed)
  }

  /// The limit now, in bytes; `Int.max` for none, without a look at the clock.
  func limit(by clock: MonotonicClock) -> Int {
    let base = base.load(ordering: .relaxed)
    guard base != .max else { return .max }
    let elapsed = elapsed(clock.now())
    guard elapsed < Self.duration else {
      // Unless it began anew meanwhile.
      _ = self.base.compareExchange(expected: base, desired: .max, ordering: .relaxed)
      return .max
    }
    return base + Int(Double(before.load(ordering: .relaxed)) / Double(Self.partsPerSecond) * (Double(elapsed) / 1e9))
  }

  /// How long growth stays slow, in nanoseconds.
  func remaining(now: UInt64) -> UInt64 { Self.duration - min(Self.duration, elapsed(now)) }

  private func elapsed(_ now: UInt64) -> UInt64 { now - min(now, begun.load(ordering: .relaxed)) }
}
