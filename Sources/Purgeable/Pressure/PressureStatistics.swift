// SPDX-License-Identifier: MIT
// Statistics of pressure and of the reactions to it.

/// How often memory was short, and how fast the library was then. Counts begin with the process (or with the monitor).
public struct PressureStatistics: Sendable, Hashable {
  /// The source's name, empty while nothing watches.
  public internal(set) var sourceName = ""
  /// The level as of the last look.
  public internal(set) var level = PressureLevel.normal
  /// How many times the level rose from `.normal` to `.warning`.
  public internal(set) var warningCount = 0
  /// How many times it rose to `.critical`.
  public internal(set) var criticalCount = 0
  /// How many times caches were told to react, repetitions included.
  public internal(set) var reactionCount = 0
  /// From the last event (the wait's return, or the look that found the event) until all idle memory was on offer; nil before
  /// the first.
  public internal(set) var lastOfferNanoseconds: UInt64?
  /// From the last event until every cache had finished its reaction; nil before the first.
  public internal(set) var lastReactionNanoseconds: UInt64?
  /// How many times the library's thread woke up, for whatever reason.
  public internal(set) var wakeUpCount = 0
  /// Why there is no such thread: pthread_create's error number when the library last tried to start one; 0 where that thread
  /// started, or none was needed yet. While there is none, nothing goes on offer but by stores, and caches do not react. A store
  /// tries again a second later. Always 0 for a monitor with a source of its own.
  public internal(set) var threadErrorNumber: Int32 = 0

  mutating func noteRise(to level: PressureLevel) {
    switch level {
    case .normal: break
    case .warning: warningCount += 1
    case .critical: criticalCount += 1
    }
  }
}
