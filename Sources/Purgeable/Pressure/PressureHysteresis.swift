// SPDX-License-Identifier: MIT
// From raw levels, which flicker, to a level that can be acted on.
//
//   raw     _____warning_normal_warning_critical_normal_______________________________
//   level   _____warning________________critical_________warning__________normal______
//                |  at once             | at once |-2 s--|----- 2 s ------|

/// A level that rises at once and falls one step at a time, each step only after the raw level has been lower for a while.
///
/// A value without a clock of its own: times are nanoseconds of any clock that does not go back.
package struct PressureHysteresis: Equatable, Sendable {
  /// How long the raw level has to be lower before the level falls by one step.
  package static let usualFallNanoseconds: UInt64 = 2_000_000_000

  package let fallNanoseconds: UInt64

  /// The smoothed level.
  package private(set) var level = PressureLevel.normal

  /// Since when the raw level has been lower without a break, or since the last step down.
  private var lowerSince: UInt64?

  package init(fallNanoseconds: UInt64 = usualFallNanoseconds) {
    self.fallNanoseconds = fallNanoseconds
  }

  /// Takes in the raw level of a moment; returns the level from then on. A time before the last one counts as the last one.
  @discardableResult
  package mutating func update(_ raw: PressureLevel, at now: UInt64) -> PressureLevel {
    guard raw < level else {
      level = raw
      lowerSince = nil
      return level
    }
    guard let since = lowerSince else {
      lowerSince = now
      return level
    }
    if now >= since, now - since >= fallNanoseconds {
      // Never below the raw level: that is at least one step down from here.
      level = level == .critical ? .warning : .normal
      lowerSince = raw < level ? now : nil
    }
    return level
  }
}
