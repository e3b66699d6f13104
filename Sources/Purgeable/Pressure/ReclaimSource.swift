// SPDX-License-Identifier: MIT
// Pressure by a version 1 group: the kernel tells, by an eventfd, that the group is nearly full, that it reclaims from it, and
// how hard that is.

import Glibc

/// Registers with `memory.pressure_level` through `cgroup.event_control`, for our own group and for those around it.
///
///   low        reclaim goes on, and finds what it needs: pressure only if limit and usage, or the machine, say so too
///   medium     it finds little
///   critical   it finds hardly anything: the kernel is about to kill, or to swap; critical here too if the files agree
///
/// Reclaim is late: the kernel has begun to choose. So usage is watched as well: it tells when fifteen sixteenths of a limit are
/// used, and whether that is pressure the figures decide. A limit that is changed later is watched from the next `reopen` on.
///
/// Sees: reclaim in a visible group that has a limit, at once; in the root group, where that is visible, the machine's shortage.
/// Without a limit anywhere there is no event but the root's. Blind to: limits that have no directory here. Registering takes the
/// right to write to the group's files: most containers have them read-only.
final class ReclaimSource: SystemSourcePart {
  private enum Strength: String, CaseIterable {
    case low, medium, critical

    init?(_ index: Int) {
      switch index {
      case 0: self = .low
      case 1: self = .medium
      case 2: self = .critical
      default: return nil
      }
    }

    var level: PressureLevel { self == .critical ? .critical : self == .medium ? .warning : .normal }
  }

  private struct State {
    /// One for each strength, registered with every group, and one for usage.
    var events: [OwnedDescriptor]
    var recent = RecentEvents()
  }

  /// Groups that events come from.
  let directories: [String]
  private let root: String
  private let group: MemoryGroup
  private let clock: MonotonicClock
  private let state: Guarded<State>

  /// nil where not one group could be registered with.
  init?(group: MemoryGroup, root: String = "/", clock: MonotonicClock = .system) {
    guard group.version == .v1 else { return nil }
    var opened: [OwnedDescriptor] = []
    let directories = Self.register(group.directories, &opened)
    guard !directories.isEmpty else { return nil }
    self.root = root
    self.group = group
    self.clock = clock
    self.directories = directories
    state = Guarded(State(events: opened))
  }

  /// Answers the groups that could be registered with, and the eventfds: one for each strength, and one for usage. Either all
  /// eventfds are there, or none and no group.
  private static func register(_ directories: [String], _ events: inout [OwnedDescriptor]) -> [String] {
    events = (0...Strength.allCases.count).compactMap { _ in OwnedDescriptor.event() }
    var registered: [String] = []
    if events.count == Strength.allCases.count + 1 {
      registered = directories.filter { directory in
        // Without a limit, or with one that cannot be watched, reclaim events still arrive.
        registerUsage(events[Strength.allCases.count], directory)
        return zip(Strength.allCases, events).allSatisfy { register($1, $0, directory) }
      }
    }
    if registered.isEmpty {
      // Closing the last copy of an eventfd ends its registrations.
      for event in events { event.close() }
      events = []
    }
    return registered
  }

  private static func register(_ event: OwnedDescriptor, _ strength: Strength, _ directory: String) -> Bool {
    // Both are needed only for the call.
    guard let level = OwnedDescriptor.open(directory + "/memory.pressure_level", O_RDONLY) else { return false }
    defer { level.close() }
    guard let control = OwnedDescriptor.open(directory + "/cgroup.event_control", O_WRONLY) else { return false }
    defer { control.close() }
    // "local": not what happens in groups inside that nobody listens to. Linux 4.13 and newer.
    let line = "\(event.number) \(level.number) \(strength.rawValue)"
    return control.write(line + ",local") || control.write(line)
  }

  /// A group is nearly full from this usage on: reactions begin here.
  static func usageThreshold(limit: UInt64) -> UInt64 { limit - limit / MemoryRoom.criticalShare }

  private static func registerUsage(_ event: OwnedDescriptor, _ directory: String) {
    guard let limit = SmallFile.number(directory + "/memory.limit_in_bytes"), limit < 1 << 62,
      let usage = OwnedDescriptor.open(directory + "/memory.usage_in_bytes", O_RDONLY)
    else { return }
    defer { usage.close() }
    guard let control = OwnedDescriptor.open(directory + "/cgroup.event_control", O_WRONLY) else { return }
    defer { control.close() }
    _ = control.write("\(event.number) \(usage.number) \(usageThreshold(limit: limit))")
  }

  var name: String { "reclaim in the group (cgroup v1)" }

  func addDescriptors(to list: inout DescriptorList) {
    state.withLock { state in
      for event in state.events { list.append(PressureDescriptor(descriptor: event.number, events: Int16(POLLIN))) }
    }
  }

  var isIntact: Bool { state.withLock { $0.events.allSatisfy(\.isOurs) } }

  func level(of ready: DescriptorList) -> PressureLevel {
    let (strongest, known) = state.withLock { state -> (PressureLevel?, PressureLevel) in
      var strongest: PressureLevel?
      // The last event is that of usage, the others are those of strengths.
      for (index, event) in state.events.enumerated() where ready.events(of: event.number) != nil && event.drain() > 0 {
        strongest = Strength(index)?.level ?? strongest ?? PressureLevel.normal
      }
      return (strongest, state.recent.level(at: clock.now()))
    }
    guard let strongest else { return known }
    let shortage = max(
      MemoryRoom.level(of: group),
      MemoryRoom.level(of: MachineMemory.current(root: root)))
    let level = Self.confirmed(strongest, by: shortage)
    state.withLock { $0.recent.note(level, at: clock.now()) }
    return max(level, known)
  }

  /// The level of an event, checked against limits and usage.
  static func confirmed(_ event: PressureLevel, by shortage: PressureLevel) -> PressureLevel {
    event == .critical && shortage == .normal ? .warning : max(event, shortage)
  }

  func reopen() {
    let directories = directories
    state.withLock { state in
      for event in state.events { event.close() }
      _ = Self.register(directories, &state.events)
    }
  }

  func close() {
    state.withLock { state in
      for event in state.events { event.close() }
      state.events = []
    }
  }
}
