// SPDX-License-Identifier: MIT
// How short memory is, in three levels.

/// How short memory is for this process: for its group, or for the machine when that is worse.
///
/// Levels compare: `.none < .some < .critical`.
public enum PressureLevel: Int32, Sendable, Hashable, Comparable, CaseIterable {
  /// Whoever asks for memory gets it.
  case none = 0
  /// Memory is being taken from somebody, or soon will be: give back what is cheap to make again.
  case some = 1
  /// Work stands still for want of memory, or somebody is about to be killed: give back whatever can be had.
  case critical = 2

  /// Whether memory is less short at the level on the left.
  public static func < (left: PressureLevel, right: PressureLevel) -> Bool { left.rawValue < right.rawValue }
}

extension PressureLevel: CustomStringConvertible {
  /// "none", "some", "critical".
  public var description: String {
    switch self {
    case .none: "none"
    case .some: "some"
    case .critical: "critical"
    }
  }
}
