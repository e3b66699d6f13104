// SPDX-License-Identifier: MIT
// Pressure by the counters of a version 2 group: the kernel tells when a limit has been met.

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
      func number(_ key: String) -> UInt64 { SmallFile.number(after: key, in: text) ?? 0 }
      high = number("high")
      max = number("max")
      outOfMemory = number("oom") &+ number("oom_kill")
    }

    /// What has happened between two readings.
    func event(since last: Counters) -> PressureLevel {
      if outOfMemory != last.outOfMemory { return .critical }
      return max != last.max || high != last.high ? .some : .none
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

  private let root: String
  private let directories: [String]
  private let state: Guarded<State>

  /// nil where not one file could be opened.
  init?(group: MemoryGroup, root: String = "/") {
    guard group.version == .v2 else { return nil }
    self.root = root
    directories = group.directories
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
        guard let text = read(descriptor) else {
          descriptor.close()
          return nil
        }
        return Watched(descriptor: descriptor, counters: Counters(text: text))
      }
    }
  }

  /// From the beginning; nil once the group is gone.
  private static func read(_ descriptor: OwnedDescriptor) -> String? {
    unsafe withUnsafeTemporaryAllocation(byteCount: 1024, alignment: 1) { buffer -> String? in
      let count = unsafe pread(descriptor.number, buffer.baseAddress, buffer.count, 0)
      guard count >= 0 else { return nil }
      // In bounds: the call has filled that many.
      return unsafe String(decoding: UnsafeRawBufferPointer(rebasing: buffer[0..<count]), as: UTF8.self)
    }
  }

  var name: String { "events of the group (cgroup v2)" }

  var descriptors: [PressureDescriptor] {
    state.withLock { $0.watched.map { PressureDescriptor(descriptor: $0.descriptor.number, events: Int16(POLLPRI)) } }
  }

  var isIntact: Bool { state.withLock { $0.watched.allSatisfy(\.descriptor.isOurs) } }

  func level(ready: [PressureDescriptor]) -> PressureLevel {
    let level = state.withLock { state -> PressureLevel in
      let now = MonotonicTime.now
      for index in state.watched.indices.reversed() {
        let watched = state.watched[index]
        guard ready.contains(where: { $0.descriptor == watched.descriptor.number }) else { continue }
        // This file reports every change with POLLERR beside POLLPRI, so only the reading tells whether the group is still there.
        guard let text = Self.read(watched.descriptor) else {
          watched.descriptor.close()
          state.watched.remove(at: index)
          continue
        }
        let counters = Counters(text: text)
        state.events.note(counters.event(since: watched.counters), at: now)
        state.watched[index].counters = counters
      }
      return state.events.level(at: now)
    }
    guard level == .some else { return level }
    // How bad it is: the files tell.
    return max(level, PressureRule.level(of: MemoryGroup.current(root: root)?.tightest()))
  }

  func reopen() {
    let directories = directories
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
