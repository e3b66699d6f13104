// SPDX-License-Identifier: MIT
// Pressure by looking at limits and usage at intervals, where no event tells of it.

/// Sees: the group's working set near a limit, the group full of whatever, the machine with little available. Blind to: anything
/// shorter than its interval, and limits that are not visible here.
///
/// A look costs some 10 system calls for the machine, and 10 for each level of nesting of the group.
final class PollingSource: SystemSourcePart {
  private struct State {
    var lastLook: UInt64 = 0
    var level = PressureLevel.normal
    var group = KnownGroup()
  }

  private let root: String
  private let looksAtMachine: Bool
  private let looksAtGroup: Bool
  private let clock: MonotonicClock
  private let state = Guarded(State())

  init(root: String = "/", machine: Bool = true, group: Bool = true, clock: MonotonicClock = .system) {
    self.root = root
    looksAtMachine = machine
    looksAtGroup = group
    self.clock = clock
  }

  var name: String {
    looksAtMachine && looksAtGroup ? "polling" : looksAtMachine ? "polling of the machine" : "polling of the group"
  }

  var pollingInterval: Duration? { .seconds(1) }

  var isIntact: Bool { true }

  /// Within nine tenths of a second: what it saw last.
  func addDescriptors(to list: inout DescriptorList) {}

  func level(of ready: DescriptorList) -> PressureLevel {
    let now = clock.now()
    let recent = state.withLock { state -> PressureLevel? in
      if state.lastLook != 0, now - min(now, state.lastLook) < 900_000_000 { return state.level }
      state.lastLook = now
      return nil
    }
    if let recent { return recent }
    let level = look()
    state.withLock { $0.level = level }
    return level
  }

  /// Reads the files now.
  func look() -> PressureLevel {
    max(
      looksAtMachine ? MemoryRoom.level(of: MachineMemory.current(root: root)) : .normal,
      looksAtGroup ? MemoryRoom.level(of: state.withLock { $0.group.current(root: root) }) : .normal)
  }
}
