// SPDX-License-Identifier: MIT
// How a cache may grow after it gave memory back: at once to its goal, after a pause by a sixteenth a second of what it held
// before. So it does not swing. It learns from one reaction to the next what the neighbours take:
//
//     how deep, how fast   the goal is what the cache could have held at the worst moment of the reaction, so that none would
//                          have begun. A wave like this one finds room.
//     how often            the pause is twice as long where memory was short again soon after the one before, else half as long.
//
//   bytes ^
//  before |-----+                        . '  . . . no limit
//    goal |     |  .-- pause ---.    . '      |
//         |     | '              ' '          |
//    held |     +                             |
//         +-----+-----------------------------+-----> time
//             begin                     a minute later

import Synchronization

/// Times are in nanoseconds of the cache's clock (`MonotonicClock`). All loads and stores are relaxed: a limit that is a moment
/// old will do.
struct SlowGrowth: ~Copyable, Sendable {
  static let partsPerSecond = 16
  static let duration: UInt64 = 60_000_000_000
  static let leastPause: UInt64 = 1_000_000_000
  static let mostPause: UInt64 = 16_000_000_000
  /// Growth that lasts longer has added a quarter of what was held before: a pause would have left much room unused.
  static let soon: UInt64 = 4_000_000_000
  static let byteFloor = 4 << 20
  /// The lowest limit.
  private let floor: Int

  /// The bytes that may be held at once; `Int.max` for no limit.
  private let goal = Atomic<Int>(.max)
  /// When memory was given back.
  private let begun = Atomic<UInt64>(0)
  /// From then on.
  private let pause = Atomic<UInt64>(0)
  /// The bytes held before: a sixteenth of them a second.
  private let before = Atomic<Int>(0)

  /// Of bytes, or of whatever the cache counts its size in.
  init(floor: Int = byteFloor) { self.floor = floor }

  /// From `now` on the cache grows slowly. `before`, `held`: bytes, before it gave something back and afterwards. `room`: what it
  /// could have held all the time; nil where nobody knows, and growth begins at `held`, without a pause.
  func begin(before: Int, held: Int, room: Int? = nil, now: UInt64) {
    assert(before >= 0 && held >= 0, "PurgeableCache: a cache holds fewer than 0 bytes")
    let (elapsed, present) = (self.elapsed(now), goal.load(ordering: .relaxed))
    let stands = present != .max && elapsed < Self.duration
    // Something was given back though there was room for all that may be held: that teaches nothing.
    if stands, let room, room >= limit(present, after: elapsed) { return }
    // While a limit holds, the higher rate stays, so that the effects of several reactions do not add up.
    self.before.store(max(stands ? self.before.load(ordering: .relaxed) : 0, before), ordering: .relaxed)
    pause.store(room == nil ? 0 : stands ? nextPause(elapsed) : Self.leastPause, ordering: .relaxed)
    begun.store(now, ordering: .relaxed)
    goal.store(max(floor, held, min(before, room ?? held)), ordering: .relaxed)
  }

  private func nextPause(_ elapsed: UInt64) -> UInt64 {
    let pause = max(Self.leastPause, pause.load(ordering: .relaxed))
    // It has not grown yet: a deeper wave.
    guard elapsed > pause else { return pause }
    return elapsed - pause < Self.soon ? min(2 * pause, Self.mostPause) : max(pause / 2, Self.leastPause)
  }

  /// The limit now, in bytes; `Int.max` for none, without a look at the clock.
  func limit(by clock: MonotonicClock) -> Int {
    let goal = goal.load(ordering: .relaxed)
    guard goal != .max else { return .max }
    let elapsed = self.elapsed(clock.now())
    guard elapsed < Self.duration else {
      // Unless it began anew meanwhile.
      _ = self.goal.compareExchange(expected: goal, desired: .max, ordering: .relaxed)
      return .max
    }
    return limit(goal, after: elapsed)
  }

  private func limit(_ goal: Int, after elapsed: UInt64) -> Int {
    let seconds = Double(elapsed - min(elapsed, pause.load(ordering: .relaxed))) / 1e9
    return goal + Int(Double(before.load(ordering: .relaxed)) / Double(Self.partsPerSecond) * seconds)
  }

  /// How long growth stays slow, in nanoseconds.
  func remaining(now: UInt64) -> UInt64 { Self.duration - min(Self.duration, elapsed(now)) }

  private func elapsed(_ now: UInt64) -> UInt64 { now - min(now, begun.load(ordering: .relaxed)) }
}
