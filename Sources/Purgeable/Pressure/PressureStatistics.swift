// SPDX-License-Identifier: MIT
// What has come of watching pressure, in numbers.

/// How often memory was short, and how fast the library was then. Counts begin with the process (or with the monitor).
public struct PressureStatistics: Sendable, Hashable {
  /// What tells: the source's name, empty while nothing watches.
  public internal(set) var sourceName = ""
  /// The level as of the last look.
  public internal(set) var level = PressureLevel.none
  /// How many times the level rose to `.some`, from none.
  public internal(set) var someCount: UInt64 = 0
  /// How many times it rose to `.critical`, from whatever.
  public internal(set) var criticalCount: UInt64 = 0
  /// How many times caches were told to react, repetitions included.
  public internal(set) var reactionCount: UInt64 = 0
  /// From the last event (the wait's return, or the look that found it) until all that was idle was on offer; nil before the first.
  public internal(set) var lastOfferNanoseconds: UInt64?
  /// From the last event until every cache had done what it does; nil before the first.
  public internal(set) var lastReactionNanoseconds: UInt64?
  /// How many times the library's thread woke up, for whatever reason.
  public internal(set) var wakeUpCount: UInt64 = 0

  mutating func noteRise(to level: PressureLevel) {
    switch level {
    case .none: break
    case .some: someCount += 1
    case .critical: criticalCount += 1
    }
  }
}
