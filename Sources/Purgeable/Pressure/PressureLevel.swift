// SPDX-License-Identifier: MIT
// How short memory is, in three levels.

/// How short memory is for this process: for its group, or for the machine when that is worse.
///
/// Levels compare: `.normal < .warning < .critical`.
public enum PressureLevel: Int32, Sendable, Hashable, Comparable, CaseIterable {
  /// A request for memory succeeds.
  case normal = 0
  /// Memory is being taken from some process, or soon will be: give back content that is cheap to make again.
  case warning = 1
  /// Work stands still for lack of memory, or a process is about to be killed: give back all that can be given.
  case critical = 2

  /// Whether memory is less short at the level on the left.
  public static func < (left: PressureLevel, right: PressureLevel) -> Bool { left.rawValue < right.rawValue }
}

extension PressureLevel: CustomStringConvertible {
  /// "normal", "warning", "critical".
  public var description: String {
    switch self {
    case .normal: "normal"
    case .warning: "warning"
    case .critical: "critical"
    }
  }
}
