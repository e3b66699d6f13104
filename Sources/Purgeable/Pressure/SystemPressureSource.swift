// SPDX-License-Identifier: MIT
// The best that this machine and container allow: several sources at once, the worst level counts.
//
//                         the group                                  the machine
//   events    stalls of the group (PSI, version 2)          stalls of the machine (PSI)
//             events of the group (version 2)               reclaim in the root group (version 1)
//             reclaim in the group (version 1)
//   else      polling of the group                          polling of the machine

import Glibc

/// What the best source is put together from.
protocol SystemSourcePart: PressureSource {
  /// Whether its descriptors are still what it opened.
  var isIntact: Bool { get }
}

/// The source that the library uses unless it is told otherwise.
///
/// Opens all that works here. Where no event tells of the group, or of the machine, that one is polled, once a second at most. The
/// process may be moved to another group: found out when the source is asked, at most every five seconds, and everything is
/// opened anew.
///
/// Descriptors: 2 for each PSI file, 3 for version 1, 1 for each level of nesting for version 2; all closed on exec. Any thread.
public final class SystemPressureSource: PressureSource, ForkProtected {
  private struct State {
    var parts: [any SystemSourcePart] = []
    /// What /proc/self/cgroup said when the parts were opened.
    var membership: String?
    var lastCheck: UInt64 = 0
    /// A part is missing for want of descriptors: worth another try.
    var isIncomplete = false
  }

  private static let checkNanoseconds: UInt64 = 5_000_000_000

  private let root: String
  private let state = Guarded(State())

  /// Opens what works here: some 60 system calls.
  public convenience init() { self.init(root: "/") }

  /// `root` stands in front of every path, for tests.
  package init(root: String) {
    self.root = root
    reopen()
  }

  /// The names of its parts.
  public var name: String { partNames.joined(separator: ", ") }

  package var partNames: [String] { state.withLock { $0.parts.map(\.name) } }

  public var descriptors: [PressureDescriptor] { state.withLock { $0.parts.flatMap(\.descriptors) } }

  public var pollingInterval: Duration? { state.withLock { $0.parts.compactMap(\.pollingInterval).min() } }

  public func level(ready: [PressureDescriptor]) -> PressureLevel {
    state.withLock { state in
      // A number that the program has closed and opened anew is not ours to read, and might be ready for ever.
      if !ready.isEmpty, !state.parts.allSatisfy(\.isIntact) { reopen(&state) }
      let level = state.parts.map { $0.level(ready: ready) }.max() ?? .none
      if mayBeStale(&state) { reopen(&state) }
      return level
    }
  }

  /// What it holds from before a fork is closed here only, and stays open for the parent.
  public func reopen() {
    state.withLock { reopen(&$0) }
  }

  public func close() {
    state.withLock { close(&$0) }
  }

  // One mutex for all of it, so that a fork that waits for that finds the parts whole (ForkGuard.swift).

  func lockForFork() { state.lock() }
  func unlockAfterFork() { state.unlock() }

  private func reopen(_ state: inout State) {
    close(&state)
    open(&state)
  }

  private func close(_ state: inout State) {
    for part in state.parts { part.close() }
    state.parts = []
  }

  private func mayBeStale(_ state: inout State) -> Bool {
    let now = MonotonicTime.now
    guard now - min(now, state.lastCheck) >= Self.checkNanoseconds else { return false }
    state.lastCheck = now
    return state.isIncomplete || state.membership != SmallFile.text(MemoryGroup.join(root, "proc/self/cgroup"))
  }

  private func open(_ state: inout State) {
    state.membership = SmallFile.text(MemoryGroup.join(root, "proc/self/cgroup"))
    state.parts = Self.openParts(root)
    // With the last descriptor gone, nothing above could tell why it failed; this call can.
    state.isIncomplete = Self.descriptorsAreExhausted()
    state.lastCheck = MonotonicTime.now
  }

  private static func openParts(_ root: String) -> [any SystemSourcePart] {
    var parts: [any SystemSourcePart] = []
    var hearsOfMachine = false
    var hearsOfGroup = false
    if let stalls = StallSource(file: MemoryGroup.join(root, "proc/pressure/memory"), scope: .machine, root: root) {
      parts.append(stalls)
      hearsOfMachine = true
    }
    if let unified = MemoryGroup.currentUnified(root: root), unified.isOwnDirectory,
      !MemoryGroup.isHierarchyRoot(unified.directories[0], .v2),
      let stalls = StallSource(file: unified.directories[0] + "/memory.pressure", scope: .ownGroup, root: root)
    {
      parts.append(stalls)
      hearsOfGroup = true
    }
    let group = MemoryGroup.current(root: root)
    if let group {
      if let events = GroupEventsSource(group: group, root: root) {
        parts.append(events)
        hearsOfGroup = true
      }
      if let reclaim = ReclaimSource(group: group, root: root) {
        parts.append(reclaim)
        hearsOfGroup = hearsOfGroup || reclaim.directories == group.directories
        hearsOfMachine = hearsOfMachine || reclaim.directories.contains { MemoryGroup.isHierarchyRoot($0, .v1) }
      }
    } else {
      hearsOfGroup = true
    }
    if !hearsOfMachine || !hearsOfGroup {
      parts.append(PollingSource(root: root, machine: !hearsOfMachine, group: !hearsOfGroup))
    }
    return parts
  }

  private static func descriptorsAreExhausted() -> Bool {
    guard let probe = OwnedDescriptor.event() else { return true }
    probe.close()
    return false
  }
}
