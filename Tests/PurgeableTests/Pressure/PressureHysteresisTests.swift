// SPDX-License-Identifier: MIT
// Every sequence of raw levels, against what is promised, with a clock that the test turns.

import Testing

@testable import Purgeable

@Suite("pressure: hysteresis")
struct PressureHysteresisTests {
  private static let second: UInt64 = 1_000_000_000

  @Test("levels compare, and have the names that tools print")
  func levels() {
    #expect(PressureLevel.none < .some && .some < .critical)
    #expect(PressureLevel.allCases.map(\.description) == ["none", "some", "critical"])
    #expect(PressureLevel.allCases.map(\.rawValue) == [0, 1, 2])
  }

  @Test("rises at once, by however many steps")
  func rising() {
    var hysteresis = PressureHysteresis()
    #expect(hysteresis.update(.some, at: 5) == .some)
    #expect(hysteresis.update(.critical, at: 5) == .critical)
    var other = PressureHysteresis()
    #expect(other.update(.critical, at: 0) == .critical)
  }

  @Test("falls one step at a time, two seconds each")
  func falling() {
    var hysteresis = PressureHysteresis()
    hysteresis.update(.critical, at: 0)
    #expect(hysteresis.update(.none, at: 1 * Self.second) == .critical)
    #expect(hysteresis.update(.none, at: 3 * Self.second - 1) == .critical)
    #expect(hysteresis.update(.none, at: 3 * Self.second) == .some)
    #expect(hysteresis.update(.none, at: 5 * Self.second - 1) == .some)
    #expect(hysteresis.update(.none, at: 5 * Self.second) == .none)
    #expect(hysteresis.update(.none, at: 9 * Self.second) == .none)
  }

  @Test("a raw level as high as the level starts the wait anew; a lower one that is not none stops the fall there")
  func interrupted() {
    var hysteresis = PressureHysteresis()
    hysteresis.update(.critical, at: 0)
    hysteresis.update(.some, at: 1 * Self.second)
    hysteresis.update(.critical, at: 2 * Self.second)
    #expect(hysteresis.update(.some, at: 3 * Self.second) == .critical)
    #expect(hysteresis.update(.some, at: 5 * Self.second) == .some)
    #expect(hysteresis.update(.some, at: 60 * Self.second) == .some)
    #expect(hysteresis.update(.none, at: 61 * Self.second) == .some)
    #expect(hysteresis.update(.none, at: 63 * Self.second) == .none)
  }

  @Test("a clock that goes back does no harm")
  func backwards() {
    var hysteresis = PressureHysteresis()
    hysteresis.update(.some, at: 10 * Self.second)
    hysteresis.update(.none, at: 11 * Self.second)
    #expect(hysteresis.update(.none, at: 1) == .some)
    #expect(hysteresis.update(.none, at: 13 * Self.second) == .none)
  }

  @Test("all sequences of seven raw levels, a second apart")
  func exhaustive() {
    for number in 0..<2187 {
      var rest = number
      let raw = (0..<7).map { _ -> PressureLevel in
        defer { rest /= 3 }
        return PressureLevel.allCases[rest % 3]
      }
      var hysteresis = PressureHysteresis()
      var levels: [PressureLevel] = []
      for (time, level) in raw.enumerated() { levels.append(hysteresis.update(level, at: UInt64(time) * Self.second)) }
      for time in raw.indices {
        let before = time == 0 ? PressureLevel.none : levels[time - 1]
        #expect(levels[time] >= raw[time])
        if raw[time] >= before {
          #expect(levels[time] == raw[time], "\(raw)")
        } else if levels[time] != before {
          // One step, and only when the raw level was lower than what was left for the whole of the last two seconds.
          #expect(levels[time].rawValue == before.rawValue - 1, "\(raw)")
          #expect(time >= 2 && raw[time - 2...time].allSatisfy { $0 < before }, "\(raw)")
        } else {
          // And never later than that: it is lower now, and two seconds ago it was not, or the level was another.
          #expect(time < 2 || !raw[time - 2...time].allSatisfy { $0 < before } || levels[time - 2] != before, "\(raw)")
        }
      }
    }
  }

  @Test("an event counts for a second")
  func recentEvents() {
    var events = RecentEvents()
    #expect(events.level(at: 0) == .none)
    events.note(.none, at: 1)
    #expect(events.level(at: 1) == .none)
    events.note(.critical, at: 1 * Self.second)
    events.note(.some, at: 3 * Self.second / 2)
    #expect(events.level(at: 2 * Self.second - 1) == .critical)
    #expect(events.level(at: 2 * Self.second) == .some)
    #expect(events.level(at: 5 * Self.second / 2) == .none)
    #expect(events.level(at: 0) == .critical, "a clock that goes back")
  }
}
