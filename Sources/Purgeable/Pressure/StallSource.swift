// SPDX-License-Identifier: MIT
// Pressure by stalls (PSI): the kernel tells when work has waited for memory.

import Glibc

/// Triggers on `memory.pressure` of our own version 2 group, or on `/proc/pressure/memory`.
///
/// Sees: time that tasks lost to reclaim, to refaults and to memory.high, whatever limit was the cause, also one that is not
/// visible here. Blind to: memory that the kernel takes without anybody waiting (kswapd); a stall is told up to two seconds late
/// without CAP_SYS_RESOURCE. The triggers' window is two seconds: without that capability the kernel takes only
/// multiples of that (6.5 and newer; before, it takes none). Such triggers also fire wrongly after each arming: an event is
/// believed only if `total=` has grown by the threshold (StallLedger.swift).
///
/// Stalls of the whole machine include those of neighbours that are at limits of their own: they count only when the machine
/// itself is short (or, at the level of warning, its free memory is used up).
final class StallSource: SystemSourcePart {
  enum Scope {
    case ownGroup
    case machine
  }

  static let windowMicroseconds = 2_000_000
  /// A twentieth of the time somebody waited; a tenth of the time nobody could work.
  static let someMicroseconds: UInt64 = 100_000
  static let fullMicroseconds: UInt64 = 200_000

  private enum Line: String {
    case some, full

    var thresholdMicroseconds: UInt64 { self == .some ? someMicroseconds : fullMicroseconds }
    var trigger: String { "\(rawValue) \(thresholdMicroseconds) \(windowMicroseconds)" }
    var level: PressureLevel { self == .some ? .warning : .critical }

    func total(_ descriptor: OwnedDescriptor) -> UInt64? {
      StallTotals(of: descriptor).flatMap { self == .some ? $0.some : $0.full }
    }
  }

  /// One trigger. Each arming begins a ledger of its own.
  private struct Trigger {
    let line: Line
    let descriptor: OwnedDescriptor
    var ledger: StallLedger

    /// nil where the kernel refuses, and where `total=` cannot be read: without it no event could be believed, and polling
    /// tells more.
    init?(_ line: Line, _ file: String, at now: UInt64) {
      guard let descriptor = OwnedDescriptor.open(file, O_RDWR | O_NONBLOCK) else { return nil }
      // The kernel wants the terminating zero.
      guard let total = line.total(descriptor), descriptor.write(line.trigger + "\0") else {
        descriptor.close()
        return nil
      }
      self.line = line
      self.descriptor = descriptor
      ledger = StallLedger(thresholdMicroseconds: line.thresholdMicroseconds, total: total, at: now)
    }

    /// The level of an event; normal if the event is not believed. One system call.
    mutating func event(at now: UInt64) -> PressureLevel {
      guard let total = line.total(descriptor), ledger.believes(total: total, at: now) else { return .normal }
      return line.level
    }
  }

  private struct State {
    var some: Trigger?
    var full: Trigger?
    var events = RecentEvents()
  }

  private let file: String
  private let root: String
  private let scope: Scope
  private let clock: MonotonicClock
  private let state: Guarded<State>

  /// Opens the file twice, one trigger each; nil where the kernel refuses, or PSI is off or not there.
  init?(file: String, scope: Scope, root: String = "/", clock: MonotonicClock = .system) {
    self.file = file
    self.root = root
    self.scope = scope
    self.clock = clock
    guard let opened = Self.open(file, at: clock.now()) else { return nil }
    state = Guarded(opened)
  }

  private static func open(_ file: String, at now: UInt64) -> State? {
    guard let some = Trigger(.some, file, at: now) else { return nil }
    // The root group has no "full" in old kernels: "some" alone is worth having.
    return State(some: some, full: Trigger(.full, file, at: now))
  }

  var name: String { scope == .machine ? "stalls of the machine (PSI)" : "stalls of the group (PSI)" }

  func addDescriptors(to list: inout DescriptorList) {
    state.withLock { state in
      if let some = state.some { list.append(PressureDescriptor(descriptor: some.descriptor.number, events: Int16(POLLPRI))) }
      if let full = state.full { list.append(PressureDescriptor(descriptor: full.descriptor.number, events: Int16(POLLPRI))) }
    }
  }

  var isIntact: Bool { state.withLock { $0.some?.descriptor.isOurs != false && $0.full?.descriptor.isOurs != false } }

  func level(of ready: DescriptorList) -> PressureLevel {
    let level = state.withLock { state -> PressureLevel in
      let now = clock.now()
      for item in ready {
        Self.take(item, &state.some, &state.events, at: now)
        Self.take(item, &state.full, &state.events, at: now)
      }
      return state.events.level(at: now)
    }
    guard scope == .machine, level != .normal else { return level }
    return Self.confirmed(level, by: MachineMemory.current(root: root))
  }

  private static func take(
    _ item: PressureDescriptor, _ trigger: inout Trigger?, _ events: inout RecentEvents, at now: UInt64
  ) {
    guard item.descriptor == trigger?.descriptor.number else { return }
    if item.events & Int16(POLLERR) != 0 {
      // The group is gone, and its descriptor would be ready for ever.
      trigger?.descriptor.close()
      trigger = nil
    } else if item.events & Int16(POLLPRI) != 0, let level = trigger?.event(at: now) {
      events.note(level, at: now)
    }
  }

  /// Stalls of the machine, so far as this process can be affected. Without /proc/meminfo they are believed.
  static func confirmed(_ level: PressureLevel, by machine: MachineMemory?) -> PressureLevel {
    guard let machine else { return level }
    let shortage = MemoryRoom.level(of: machine)
    guard shortage == .normal else { return max(level, shortage) }
    return MemoryRoom(machine.freeBytes, of: machine.totalBytes).level == .critical ? min(level, .warning) : .normal
  }

  func reopen() {
    let (file, now) = (file, clock.now())
    state.withLock { state in
      state.some?.descriptor.close()
      state.full?.descriptor.close()
      let opened = Self.open(file, at: now)
      state.some = opened?.some
      state.full = opened?.full
    }
  }

  func close() {
    state.withLock { state in
      state.some?.descriptor.close()
      state.full?.descriptor.close()
      state.some = nil
      state.full = nil
    }
  }
}
