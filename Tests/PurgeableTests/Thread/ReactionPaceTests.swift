// SPDX-License-Identifier: MIT
// When caches react, with a clock that the test sets.

import Testing

@testable import Purgeable

@Suite("pressure: pace of reactions")
struct ReactionPaceTests {
  private static let millisecond: UInt64 = 1_000_000
  /// Any time will do: the clock begins before the process.
  private static let start: UInt64 = 5_000_000_000

  private static func answer(
    _ raw: PressureLevel, _ level: PressureLevel, before: PressureLevel
  ) -> PressureFeed.Answer {
    PressureFeed.Answer(raw: raw, level: level, before: before)
  }

  @Test("a rise is reacted to at once, by however many steps and however soon after the last reaction")
  func rising() {
    var pace = ReactionPace()
    #expect(pace.step(after: Self.answer(.warning, .warning, before: .normal), at: Self.start) == .react)
    #expect(pace.step(after: Self.answer(.critical, .critical, before: .warning), at: Self.start + 1) == .react)
    var other = ReactionPace()
    #expect(other.step(after: Self.answer(.critical, .critical, before: .normal), at: 0) == .react)
  }

  @Test("while a source goes on saying so, a tenth of a second lies between two reactions, and looks between them")
  func pauses() {
    var pace = ReactionPace()
    let lasting = Self.answer(.warning, .warning, before: .warning)
    #expect(pace.step(after: Self.answer(.warning, .warning, before: .normal), at: Self.start) == .react)
    #expect(pace.step(after: lasting, at: Self.start + 10 * Self.millisecond - 1) == .rest)
    #expect(pace.step(after: lasting, at: Self.start + 10 * Self.millisecond) == .look)
    #expect(pace.step(after: lasting, at: Self.start + 19 * Self.millisecond) == .rest)
    #expect(pace.step(after: lasting, at: Self.start + 20 * Self.millisecond) == .look)
    #expect(pace.step(after: lasting, at: Self.start + 100 * Self.millisecond - 1) == .look)
    #expect(pace.step(after: lasting, at: Self.start + 100 * Self.millisecond) == .react)
  }

  @Test("while the level only waits to fall nothing is due; at its end caches are eased, once")
  func falling() {
    var pace = ReactionPace()
    _ = pace.step(after: Self.answer(.critical, .critical, before: .normal), at: Self.start)
    #expect(pace.step(after: Self.answer(.normal, .critical, before: .critical), at: Self.start + 1_000_000_000) == .rest)
    #expect(pace.step(after: Self.answer(.normal, .warning, before: .critical), at: Self.start + 2_000_000_000) == .rest)
    #expect(pace.step(after: Self.answer(.normal, .normal, before: .warning), at: Self.start + 4_000_000_000) == .ease)
    #expect(pace.step(after: Self.answer(.normal, .normal, before: .normal), at: Self.start + 5_000_000_000) == .rest)
  }

  @Test("after a reaction that gave something back the thread looks every four milliseconds, for a tenth of a second")
  func following() {
    var pace = ReactionPace()
    _ = pace.step(after: Self.answer(.warning, .warning, before: .normal), at: Self.start)
    #expect(pace.follows(.warning, at: Self.start + 1) == false, "nothing was given back")
    let done = Self.start + 3 * Self.millisecond
    pace.noteRelief(at: done)
    #expect(pace.follows(.warning, at: Self.start) == false, "the wake-up that reacted does not look as well")
    #expect(pace.deadline(.warning, at: done) == done + 4 * Self.millisecond)
    // The thread looks by itself; no event is needed.
    let lasting = Self.answer(.warning, .warning, before: .warning)
    #expect(pace.step(after: lasting, at: Self.start + 50 * Self.millisecond) == .rest)
    #expect(pace.follows(.warning, at: done + 4 * Self.millisecond) == true)
    #expect(pace.follows(.normal, at: done + 8 * Self.millisecond) == false, "pressure has ended")
    let end = done + 100 * Self.millisecond
    #expect(pace.deadline(.normal, at: end - 1) != nil && pace.deadline(.normal, at: end) == nil)
    #expect(pace.follows(.warning, at: end - 1) == true)
    #expect(pace.follows(.warning, at: end) == false)
    // After a look that gave something back, time counts from its end.
    pace.noteRelief(at: end)
    #expect(pace.follows(.warning, at: end + 100 * Self.millisecond - 1) == true)
  }

  @Test("without any further event the thread looks every tenth of a second, as long as the level is above normal")
  func watching() {
    let pause = ReactionPace.watchPause
    var pace = ReactionPace()
    #expect(pace.deadline(.normal, at: Self.start) == nil && !pace.follows(.normal, at: Self.start))
    // The event came in the middle of a demand for memory: nothing was short yet, nothing was given back.
    #expect(pace.step(after: Self.answer(.warning, .warning, before: .normal), at: Self.start) == .react)
    #expect(pace.deadline(.warning, at: Self.start + 1) == Self.start + pause)
    #expect(pace.follows(.warning, at: Self.start + pause - 1) == false)
    #expect(pace.follows(.warning, at: Self.start + pause) == true)
    #expect(pace.deadline(.warning, at: Self.start + pause) == Self.start + 2 * pause)
    // The source is quiet, and its level not yet normal.
    let quiet = Self.answer(.normal, .warning, before: .warning)
    #expect(pace.step(after: quiet, at: Self.start + 2 * pause) == .rest)
    #expect(pace.follows(.warning, at: Self.start + 2 * pause) == true)
    #expect(pace.follows(.normal, at: Self.start + 3 * pause) == false)
    #expect(pace.deadline(.normal, at: Self.start + 3 * pause) == nil)
  }

  @Test("all sequences of seven raw levels, thirty milliseconds apart")
  func exhaustive() {
    let step = 30 * Self.millisecond
    for number in 0..<2187 {
      var rest = number
      let raw = (0..<7).map { _ -> PressureLevel in
        defer { rest /= 3 }
        return PressureLevel.allCases[rest % 3]
      }
      var hysteresis = PressureHysteresis(fallNanoseconds: 60 * Self.millisecond)
      var pace = ReactionPace()
      var lastReaction: UInt64?
      for (time, raw) in raw.enumerated() {
        let now = Self.start + UInt64(time) * step
        let before = hysteresis.level
        let level = hysteresis.update(raw, at: now)
        let due = pace.step(after: Self.answer(raw, level, before: before), at: now)
        let isOver = lastReaction.map { now >= $0 + ReactionPace.reactionPause } ?? true
        let expected: ReactionPace.Step
        if raw > .normal {
          // Each look is more than ten milliseconds after the last.
          expected = level > before || isOver ? .react : .look
        } else {
          expected = level == .normal && before > .normal ? .ease : .rest
        }
        #expect(due == expected, "\(number) at \(time)")
        if due == .react { lastReaction = now }
      }
    }
  }
}
