// SPDX-License-Identifier: MIT
// Every sequence of raw levels, against the documented rules, with a clock that the test sets.

import Testing

@testable import Purgeable

@Suite("pressure: hysteresis")
struct PressureHysteresisTests {
  private static let second: UInt64 = 1_000_000_000

  @Test("levels compare, and have the names that tools print")
  func levels() {
    #expect(PressureLevel.normal < .warning && .warning < .critical)
    #expect(PressureLevel.allCases.map(\.description) == ["normal", "warning", "critical"])
    #expect(PressureLevel.allCases.map(\.rawValue) == [0, 1, 2])
  }

  @Test("rises at once, by however many steps")
  func rising() {
    var hysteresis = PressureHysteresis()
    #expect(hysteresis.update(.warning, at: 5) == .warning)
    #expect(hysteresis.update(.critical, at: 5) == .critical)
    var other = PressureHysteresis()
    #expect(other.update(.critical, at: 0) == .critical)
  }

  @Test("falls one step at a time, two seconds each")
  func falling() {
    var hysteresis = PressureHysteresis()
    hysteresis.update(.critical, at: 0)
    #expect(hysteresis.update(.normal, at: 1 * Self.second) == .critical)
    #expect(hysteresis.update(.normal, at: 3 * Self.second - 1) == .critical)
    #expect(hysteresis.update(.normal, at: 3 * Self.second) == .warning)
    #expect(hysteresis.update(.normal, at: 5 * Self.second - 1) == .warning)
    #expect(hysteresis.update(.normal, at: 5 * Self.second) == .normal)
    #expect(hysteresis.update(.normal, at: 9 * Self.second) == .normal)
  }

  @Test("a raw level as high as the level starts the wait anew; a lower one that is not none stops the fall there")
  func interrupted() {
    var hysteresis = PressureHysteresis()
    hysteresis.update(.critical, at: 0)
    hysteresis.update(.warning, at: 1 * Self.second)
    hysteresis.update(.critical, at: 2 * Self.second)
    #expect(hysteresis.update(.warning, at: 3 * Self.second) == .critical)
    #expect(hysteresis.update(.warning, at: 5 * Self.second) == .warning)
    #expect(hysteresis.update(.warning, at: 60 * Self.second) == .warning)
    #expect(hysteresis.update(.normal, at: 61 * Self.second) == .warning)
    #expect(hysteresis.update(.normal, at: 63 * Self.second) == .normal)
  }

  @Test("a clock that goes back does no harm")
  func backwards() {
    var hysteresis = PressureHysteresis()
    hysteresis.update(.warning, at: 10 * Self.second)
    hysteresis.update(.normal, at: 11 * Self.second)
    #expect(hysteresis.update(.normal, at: 1) == .warning)
    #expect(hysteresis.update(.normal, at: 13 * Self.second) == .normal)
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
        let before = time == 0 ? PressureLevel.normal : levels[time - 1]
        #expect(levels[time] >= raw[time])
        if raw[time] >= before {
          #expect(levels[time] == raw[time], "\(raw)")
        } else if levels[time] != before {
          // The level falls by one step, and only when the raw level was below the old level for all of the last two seconds.
          #expect(levels[time].rawValue == before.rawValue - 1, "\(raw)")
          #expect(time >= 2 && raw[time - 2...time].allSatisfy { $0 < before }, "\(raw)")
        } else {
          // The level falls no later than that: if it did not fall, the raw level was not lower for two seconds, or the level has
          // changed within them.
          #expect(time < 2 || !raw[time - 2...time].allSatisfy { $0 < before } || levels[time - 2] != before, "\(raw)")
        }
      }
    }
  }

  @Test("an event counts for a second")
  func recentEvents() {
    var events = RecentEvents()
    #expect(events.level(at: 0) == .normal)
    events.note(.normal, at: 1)
    #expect(events.level(at: 1) == .normal)
    events.note(.critical, at: 1 * Self.second)
    events.note(.warning, at: 3 * Self.second / 2)
    #expect(events.level(at: 2 * Self.second - 1) == .critical)
    #expect(events.level(at: 2 * Self.second) == .warning)
    #expect(events.level(at: 5 * Self.second / 2) == .normal)
    #expect(events.level(at: 0) == .critical, "a clock that goes back")
  }
}
