// SPDX-License-Identifier: MIT
// When caches react to what their source says, and when the thread looks whether memory is short again.
//
//   raw     ____warning___________________warning_______________normal_________________
//   level   ____warning_______________________________________________________normal___
//   step        react  follow follow ...  react  follow ...  look ... look    ease
//               |-- 0.1 s at least -------|                  |--| 0.1 s

/// The stamps and pauses of reactions. A value without a clock of its own: times are nanoseconds of any clock that does not go
/// back.
struct ReactionPace: Equatable, Sendable {
  /// What an answer of the source asks for.
  enum Step: Equatable, Sendable {
    case rest
    /// Pressure has ended: caches may lock as much as before.
    case ease
    /// React if the figures say that memory is short.
    case look
    case react
  }

  /// Reactions come when the level rises, then with each event, but not more often than this; and once more after the pause.
  /// Once the source is quiet, the figures alone decide (`watchPause`).
  static let reactionPause: UInt64 = 100_000_000

  /// A consumer of memory takes more than one reaction gives back, and the next event comes only when the kernel has begun to
  /// choose. So after a reaction that gave something back the thread looks by itself, for as long as more is needed.
  static let followPause: UInt64 = 4_000_000
  static let followTime: UInt64 = 100_000_000

  /// As long as the level is above normal the thread looks so often without any event. An event may come in the middle of a
  /// demand for memory, and what is asked for after it need not cause another.
  static let watchPause: UInt64 = 100_000_000

  /// An event this soon after a reaction is worth a look at the figures: the reaction may have preceded the demand for memory.
  static let lookPause: UInt64 = 10_000_000

  private var lastReaction: UInt64 = 0
  private var lastLook: UInt64 = 0
  /// Until this time the thread looks every few milliseconds whether memory is short again.
  private var followsUntil: UInt64 = 0

  /// Takes in an answer of the source, and the step that is due for it.
  mutating func step(after answer: PressureFeed.Answer, at now: UInt64) -> Step {
    if answer.level == .normal { return answer.before > .normal ? .ease : .rest }
    if answer.level > answer.before || answer.raw > .normal && now >= lastReaction + Self.reactionPause {
      (lastReaction, lastLook) = (now, now)
      return .react
    }
    guard answer.raw > .normal, now >= lastLook + Self.lookPause, now >= followsUntil else { return .rest }
    lastLook = now
    return .look
  }

  /// Whether the thread looks by itself at this wake-up. Asked after all steps.
  mutating func follows(_ level: PressureLevel, at now: UInt64) -> Bool {
    guard lastReaction != now, level > .normal, now < followsUntil || now >= lastLook + Self.watchPause else { return false }
    lastLook = now
    return true
  }

  /// A reaction or a look gave something back, and ended at `done`.
  mutating func noteRelief(at done: UInt64) { followsUntil = done + Self.followTime }

  /// When the thread has to wake up to look; nil: not at all.
  func deadline(_ level: PressureLevel, at now: UInt64) -> UInt64? {
    now < followsUntil ? now + Self.followPause : level > .normal ? lastLook + Self.watchPause : nil
  }
}
