// SPDX-License-Identifier: MIT
// What limits and usage say about pressure: the rule that polling goes by, and that events are confirmed by.

/// Levels from how much room is left. Pure functions of what was read.
enum PressureRule {
  /// Less than an eighth left is pressure, less than a sixteenth is critical.
  static func level(room: UInt64, of total: UInt64) -> PressureLevel {
    room < total / 16 ? .critical : room < total / 8 ? .some : .none
  }

  /// By what could be had without swapping. Memory on offer and clean files count as room.
  static func level(of machine: MachineMemory?) -> PressureLevel {
    machine.map { level(room: $0.availableBytes, of: $0.totalBytes) } ?? .none
  }

  /// By the working set of the group with the least room; nil: no group, or none has a limit.
  static func level(of tightest: MemoryGroup.Level?) -> PressureLevel {
    guard let tightest, let limit = tightest.limitBytes, let used = tightest.workingSetBytes else { return .none }
    let level = level(room: limit - min(limit, used), of: limit)
    // Full, though of what can be taken: the kernel has begun to choose.
    if level == .none, let room = tightest.roomBytes, room < limit / 16 { return .some }
    return level
  }
}
