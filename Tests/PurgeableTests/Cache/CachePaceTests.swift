// SPDX-License-Identifier: MIT
// Slow growth after memory was given back, and the pace of sweeps, each tested as a value with given times.

import Testing

@testable import Purgeable

@Suite("PurgeableCache, pace")
struct CachePaceTests {
  private let second: UInt64 = 1_000_000_000
  private let mebibyte = 1 << 20

  private func expect(_ growth: borrowing SlowGrowth, _ clock: SetClock, _ limit: Int) {
    let found = growth.limit(by: clock.monotonic)
    #expect(found == limit)
  }

  private func expect(_ growth: borrowing SlowGrowth, _ clock: SetClock, remaining: UInt64) {
    let found = growth.remaining(now: clock.monotonic.now())
    #expect(found == remaining)
  }

  @Test("growth begins at what is held, rises by a sixteenth a second of what was held, and is free after a minute")
  func growth() {
    let clock = SetClock()
    let growth = SlowGrowth()
    expect(growth, clock, .max)
    growth.begin(before: 160 * mebibyte, held: 100 * mebibyte, now: clock.monotonic.now())
    expect(growth, clock, 100 * mebibyte)
    clock.advance(seconds: 1)
    expect(growth, clock, 110 * mebibyte)
    expect(growth, clock, remaining: 59 * second)
    clock.advance(seconds: 58.5)
    expect(growth, clock, 695 * mebibyte)
    clock.advance(seconds: 0.5)
    expect(growth, clock, .max)
    expect(growth, clock, remaining: 0)
  }

  @Test("a second give-back keeps the higher rate, and begins the minute anew")
  func again() {
    let clock = SetClock()
    let growth = SlowGrowth()
    growth.begin(before: 160 * mebibyte, held: 100 * mebibyte, now: clock.monotonic.now())
    clock.advance(seconds: 30)
    growth.begin(before: 16 * mebibyte, held: 10 * mebibyte, now: clock.monotonic.now())
    clock.advance(seconds: 59)
    expect(growth, clock, 600 * mebibyte)
    // After the minute the rate is the new one.
    clock.advance(seconds: 1)
    expect(growth, clock, .max)
    growth.begin(before: 16 * mebibyte, held: 10 * mebibyte, now: clock.monotonic.now())
    clock.advance(seconds: 1)
    expect(growth, clock, 11 * mebibyte)
  }

  @Test("where the room is known, growth begins there, after a pause, and never above what was held before")
  func toRoom() {
    let clock = SetClock()
    let growth = SlowGrowth()
    growth.begin(before: 160 * mebibyte, held: 100 * mebibyte, room: 130 * mebibyte, now: clock.monotonic.now())
    expect(growth, clock, 130 * mebibyte)
    clock.advance(seconds: 1)
    expect(growth, clock, 130 * mebibyte)
    clock.advance(seconds: 1)
    expect(growth, clock, 140 * mebibyte)
    // From here on it may hold 150, and could hold as much: nothing begins anew, however little is held.
    clock.advance(seconds: 1)
    growth.begin(before: 110 * mebibyte, held: 90 * mebibyte, room: 150 * mebibyte, now: clock.monotonic.now())
    expect(growth, clock, 150 * mebibyte)
    expect(growth, clock, remaining: 57 * second)
    clock.advance(seconds: 57)
    for room in [300, 20] {
      growth.begin(before: 160 * mebibyte, held: 100 * mebibyte, room: room * mebibyte, now: clock.monotonic.now())
      expect(growth, clock, (room == 300 ? 160 : 100) * mebibyte)
    }
  }

  @Test("the pause doubles where memory is short again within four seconds of it, up to sixteen seconds, else it halves")
  func pauses() {
    let clock = SetClock()
    let growth = SlowGrowth()
    /// Short again after so many seconds: looks for the pause that follows.
    func begin(after seconds: Double, room: Int = 100, pause: Double) {
      clock.advance(seconds: seconds)
      growth.begin(before: 160 * mebibyte, held: 80 * mebibyte, room: room * mebibyte, now: clock.monotonic.now())
      clock.advance(seconds: pause)
      expect(growth, clock, room * mebibyte)
      clock.advance(seconds: 0.5)
      expect(growth, clock, (room + 5) * mebibyte)
    }
    for (seconds, pause) in [
      (100.0, 1.0), (0, 2), (3, 4), (0, 8), (0, 16), (3, 16), (4, 8), (4, 4), (4, 2), (4, 1), (4, 1), (0, 2),
    ] { begin(after: seconds, pause: pause) }
    // In the pause: the wave was deeper, not sooner.
    growth.begin(before: 160 * mebibyte, held: 80 * mebibyte, room: 100 * mebibyte, now: clock.monotonic.now())
    clock.advance(seconds: 4)
    expect(growth, clock, 100 * mebibyte)
    begin(after: 0, room: 90, pause: 4)
    // After a minute all is forgotten.
    begin(after: 60, pause: 1)
  }

  @Test("however little is left, a cache may hold four mebibytes; a clock that went back is a clock that stands")
  func floor() {
    let clock = SetClock()
    let growth = SlowGrowth()
    growth.begin(before: mebibyte, held: 0, now: clock.monotonic.now() + second)
    expect(growth, clock, SlowGrowth.byteFloor)
  }

  @Test("sweeps take a twentieth of the time at most, and are a hundredth of a second apart")
  func sweeps() {
    let pace = SweepPace()
    var dues: [Bool] = []
    dues.append(pace.isDue(now: second))
    pace.note(from: second, to: second + 1000)
    dues.append(pace.isDue(now: second + 1000 + second / 100 - 1))
    dues.append(pace.isDue(now: second + 1000 + second / 100))
    pace.note(from: 2 * second, to: 3 * second)
    dues.append(pace.isDue(now: 23 * second - 1))
    dues.append(pace.isDue(now: 23 * second))
    #expect(dues == [true, false, true, false, true])
  }
}
