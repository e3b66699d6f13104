// SPDX-License-Identifier: MIT
// Pressure by the counters of a version 2 group: the kernel tells when a limit has been met.

import CPurgeablePressure
import Glibc

/// Waits for `memory.events.local` of our own group and of those around it (`memory.events` before 5.2, which counts what happens
/// inside too).
///
/// Sees: every time memory.high or memory.max of a visible group was met, at once, and kills. Blind to: limits that have no
/// directory here, and the machine's shortage. A limit that is met only because the group is full of clean files is told like any
/// other; limit, usage and working set then say how bad it is.
final class GroupEventsSource: SystemSourcePart {
  /// What one file counts, since the group was made.
  struct Counters: Equatable {
    var high: UInt64 = 0
    var max: UInt64 = 0
    var outOfMemory: UInt64 = 0

    init() {}

    init(text: String) {
      var events = purgeable__group_events_t()
      unsafe text.withCString { unsafe purgeable__parse_group_events($0, text.utf8.count, &events) }
      self.init(events)
    }

    init(_ events: purgeable__group_events_t) {
      high = events.high
      max = events.max
      outOfMemory = events.oom &+ events.oom_kill
    }

    /// What has happened between two readings.
    func event(since last: Counters) -> PressureLevel {
      if outOfMemory != last.outOfMemory { return .critical }
      return max != last.max || high != last.high ? .warning : .normal
    }
  }

  private struct Watched {
    var descriptor: OwnedDescriptor
    var counters: Counters
  }

  private struct State {
    var watched: [Watched]
    var events = RecentEvents()
  }

  private let group: MemoryGroup
  private let clock: MonotonicClock
  private let state: Guarded<State>

  /// nil where not one file could be opened.
  init?(group: MemoryGroup, clock: MonotonicClock = .system) {
    guard group.version == .v2 else { return nil }
    self.group = group
    self.clock = clock
    let watched = Self.open(group.directories)
    guard !watched.isEmpty else { return nil }
    state = Guarded(State(watched: watched))
  }

  private static func open(_ directories: [String]) -> [Watched] {
    directories.compactMap { directory in
      // The root of the hierarchy has neither.
      let descriptor =
        OwnedDescriptor.open(directory + "/memory.events.local", O_RDONLY)
        ?? OwnedDescriptor.open(directory + "/memory.events", O_RDONLY)
      return descriptor.flatMap { descriptor in
        // The first reading is also what makes the kernel report the next change.
        guard let counters = read(descriptor) else {
          descriptor.close()
          return nil
        }
        return Watched(descriptor: descriptor, counters: counters)
      }
    }
  }

  /// From the beginning; nil once the group is gone.
  private static func read(_ descriptor: OwnedDescriptor) -> Counters? {
    var events = purgeable__group_events_t()
    return unsafe purgeable__read_group_events(descriptor.number, &events) ? Counters(events) : nil
  }

  var name: String { "events of the group (cgroup v2)" }

  func addDescriptors(to list: inout DescriptorList) {
    state.withLock { state in
      for watched in state.watched {
        list.append(PressureDescriptor(descriptor: watched.descriptor.number, events: Int16(POLLPRI)))
      }
    }
  }

  var isIntact: Bool { state.withLock { $0.watched.allSatisfy(\.descriptor.isOurs) } }

  func level(of ready: DescriptorList) -> PressureLevel {
    let level = state.withLock { state -> PressureLevel in
      let now = clock.now()
      for index in state.watched.indices.reversed() {
        let watched = state.watched[index]
        guard ready.events(of: watched.descriptor.number) != nil else { continue }
        // This file reports every change with POLLERR beside POLLPRI, so only the reading tells whether the group is still there.
        guard let counters = Self.read(watched.descriptor) else {
          watched.descriptor.close()
          state.watched.remove(at: index)
          continue
        }
        state.events.note(counters.event(since: watched.counters), at: now)
        state.watched[index].counters = counters
      }
      return state.events.level(at: now)
    }
    guard level == .warning else { return level }
    // How bad it is: the files tell.
    return max(level, MemoryRoom.level(of: group))
  }

  func reopen() {
    let directories = group.directories
    state.withLock { state in
      for watched in state.watched { watched.descriptor.close() }
      state.watched = Self.open(directories)
    }
  }

  func close() {
    state.withLock { state in
      for watched in state.watched { watched.descriptor.close() }
      state.watched = []
    }
  }
}
