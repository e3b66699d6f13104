// SPDX-License-Identifier: MIT
// An event marks one moment; a level has to last for a while.

/// The level that the events of the last second add up to. A value without a clock of its own.
struct RecentEvents: Equatable, Sendable {
  /// How long an event counts. Together with the two seconds of `PressureHysteresis` longer than the two seconds between two
  /// events of a lasting stall, so that the level does not fall in between.
  static let holdNanoseconds: UInt64 = 1_000_000_000

  private var lastWarning: UInt64?
  private var lastCritical: UInt64?

  mutating func note(_ level: PressureLevel, at now: UInt64) {
    switch level {
    case .normal: break
    case .warning: lastWarning = now
    case .critical: lastCritical = now
    }
  }

  func level(at now: UInt64) -> PressureLevel {
    func isRecent(_ time: UInt64?) -> Bool { time.map { now < $0 || now - $0 < Self.holdNanoseconds } ?? false }
    return isRecent(lastCritical) ? .critical : isRecent(lastWarning) ? .warning : .normal
  }
}
