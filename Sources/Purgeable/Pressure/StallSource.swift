// SPDX-License-Identifier: MIT
// Pressure by stalls (PSI): the kernel tells when work has waited for memory.

import Glibc

/// Triggers on `memory.pressure` of our own version 2 group, or on `/proc/pressure/memory`.
///
/// Sees: time that tasks lost to reclaim, to refaults and to memory.high, whatever limit was the cause, also one that is not
/// visible here. Blind to: memory that the kernel takes without anybody waiting (kswapd); a stall is told up to two seconds late
/// without CAP_SYS_RESOURCE. The triggers' window is two seconds: without that capability the kernel takes only
/// multiples of that (6.5 and newer; before, it takes none).
///
/// Stalls of the whole machine include those of neighbours that are at limits of their own: they count only when the machine
/// itself is short (or, for "some", its free memory is used up).
final class StallSource: SystemSourcePart {
  enum Scope {
    case ownGroup
    case machine
  }

  static let windowMicroseconds = 2_000_000
  /// A twentieth of the time somebody waited; a tenth of the time nobody could work.
  static let someTrigger = "some 100000 \(windowMicroseconds)"
  static let fullTrigger = "full 200000 \(windowMicroseconds)"

  private struct State {
    var some: OwnedDescriptor?
    var full: OwnedDescriptor?
    var events = RecentEvents()
  }

  private let file: String
  private let root: String
  private let scope: Scope
  private let state: Guarded<State>

  /// Opens the file twice, one trigger each; nil where the kernel refuses, or PSI is off or not there.
  init?(file: String, scope: Scope, root: String = "/") {
    self.file = file
    self.root = root
    self.scope = scope
    guard let opened = Self.open(file) else { return nil }
    state = Guarded(opened)
  }

  private static func open(_ file: String) -> State? {
    guard let some = trigger(someTrigger, file) else { return nil }
    // The root group has no "full" in old kernels: "some" alone is worth having.
    return State(some: some, full: trigger(fullTrigger, file))
  }

  private static func trigger(_ text: String, _ file: String) -> OwnedDescriptor? {
    guard let descriptor = OwnedDescriptor.open(file, O_RDWR | O_NONBLOCK) else { return nil }
    // The kernel wants the terminating zero.
    guard descriptor.write(text + "\0") else {
      descriptor.close()
      return nil
    }
    return descriptor
  }

  var name: String { scope == .machine ? "stalls of the machine (PSI)" : "stalls of the group (PSI)" }

  var descriptors: [PressureDescriptor] {
    state.withLock { state in
      [state.some, state.full].compactMap { $0 }.map {
        PressureDescriptor(descriptor: $0.number, events: Int16(POLLPRI))
      }
    }
  }

  var isIntact: Bool { state.withLock { $0.some?.isOurs != false && $0.full?.isOurs != false } }

  func level(ready: [PressureDescriptor]) -> PressureLevel {
    let level = state.withLock { state -> PressureLevel in
      let now = MonotonicTime.now
      for item in ready {
        let isSome = item.descriptor == state.some?.number
        guard isSome || item.descriptor == state.full?.number else { continue }
        if item.events & Int16(POLLERR) != 0 {
          // The group is gone, and would be ready for ever.
          if isSome { state.some?.close() } else { state.full?.close() }
          if isSome { state.some = nil } else { state.full = nil }
        } else if item.events & Int16(POLLPRI) != 0 {
          state.events.note(isSome ? .some : .critical, at: now)
        }
      }
      return state.events.level(at: now)
    }
    guard scope == .machine, level != .none else { return level }
    return Self.confirmed(level, by: MachineMemory.current(root: root))
  }

  /// Stalls of the machine, as far as they can be ours. Without /proc/meminfo they are believed.
  static func confirmed(_ level: PressureLevel, by machine: MachineMemory?) -> PressureLevel {
    guard let machine else { return level }
    let shortage = PressureRule.level(of: machine)
    guard shortage == .none else { return max(level, shortage) }
    return machine.freeBytes < machine.totalBytes / 16 ? min(level, .some) : .none
  }

  func reopen() {
    let file = file
    state.withLock { state in
      state.some?.close()
      state.full?.close()
      let opened = Self.open(file)
      state.some = opened?.some
      state.full = opened?.full
    }
  }

  func close() {
    state.withLock { state in
      state.some?.close()
      state.full?.close()
      state.some = nil
      state.full = nil
    }
  }
}
