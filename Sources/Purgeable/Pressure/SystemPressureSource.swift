// SPDX-License-Identifier: MIT
// The best that this machine and container allow: several sources at once, the worst level counts.
//
//                         the group                                  the machine
//   events    stalls of the group (PSI, version 2)          stalls of the machine (PSI)
//             events of the group (version 2)               reclaim in the root group (version 1)
//             reclaim in the group (version 1)
//   else      polling of the group                          polling of the machine

import Glibc

/// A part of the system source.
protocol SystemSourcePart: ListedSource {
  /// Whether its descriptors still name what the part opened.
  var isIntact: Bool { get }
}

/// The source that the library uses unless it is told otherwise.
///
/// Opens all parts that work here. Where no event tells of the group, or of the machine, that one is polled, once a second at
/// most. The process may be moved to another group, or close descriptors that are not its own. The source checks for that when it
/// is asked, at most every five seconds, and then opens everything anew.
///
/// Descriptors: 2 for each PSI file, 4 for version 1, 1 for each level of nesting for version 2; all closed on exec, and at the
/// source's end. Any thread.
public final class SystemPressureSource: PressureSource, ListedSource, ForkProtected {
  private struct State {
    var parts: [any SystemSourcePart] = []
    /// The names of the parts, put together when they were opened.
    var name = ""
    /// What /proc/self/cgroup said when the parts were opened.
    var membership: String?
    var lastCheck: UInt64 = 0
    /// A part is missing for lack of descriptors: opening it again may succeed.
    var isIncomplete = false
    /// The program has closed a descriptor of the library's, and perhaps the parts' too.
    var isDoubtful = false
  }

  private static let checkNanoseconds: UInt64 = 5_000_000_000

  private let root: String
  private let clock: MonotonicClock
  private let state = Guarded(State())

  /// Opens what works here: some 60 system calls.
  public convenience init() { self.init(root: "/") }

  /// `root` stands in front of every path, for tests.
  package convenience init(root: String) { self.init(root: root, clock: .system) }

  init(root: String, clock: MonotonicClock) {
    self.root = root
    self.clock = clock
    reopen()
    rehearseFork()
  }

  deinit { close() }

  /// The names of its parts.
  public var name: String { state.withLock { $0.name } }

  package var partNames: [String] { state.withLock { $0.parts.map(\.name) } }

  /// What its parts wait on.
  public var descriptors: [PressureDescriptor] {
    var list = DescriptorList()
    addDescriptors(to: &list)
    return Array(list)
  }

  func addDescriptors(to list: inout DescriptorList) {
    state.withLock { state in
      for part in state.parts { part.addDescriptors(to: &list) }
    }
  }

  /// How often to ask, where some part only polls; nil else.
  public var pollingInterval: Duration? {
    state.withLock { state in
      // Nothing could be opened: the next query opens it.
      var shortest: Duration? = state.parts.isEmpty && state.isIncomplete ? .seconds(1) : nil
      for part in state.parts {
        if let interval = part.pollingInterval { shortest = min(shortest ?? interval, interval) }
      }
      return shortest
    }
  }

  /// The worst level that a part tells of now. One system call for each descriptor that is ready; some 10 where a part polls.
  public func level(ready: [PressureDescriptor]) -> PressureLevel { level(of: DescriptorList(ready)) }

  /// Takes no memory, unless a part has to be opened anew: the source then checks first that there is memory.
  func level(of ready: DescriptorList) -> PressureLevel {
    state.withLock { state in
      // A number that the program has closed and opened anew is not ours to read, and might be ready for ever.
      if !ready.isEmpty, !isIntact(state), hasReserve { reopen(&state) }
      var level = PressureLevel.normal
      for part in state.parts { level = max(level, part.level(of: ready)) }
      if mayBeStale(&state), hasReserve { reopen(&state) }
      return level
    }
  }

  private func isIntact(_ state: borrowing State) -> Bool {
    for part in state.parts where !part.isIntact { return false }
    return true
  }

  /// Called where a descriptor of the library's turned out to be closed: the next query looks at all of them.
  func doubt() { state.withLock { $0.isDoubtful = true } }

  private var hasReserve: Bool { MemoryReserve.isThere(MemoryReserve.ofLookups) }

  /// Descriptors from before a fork are closed in this process only, and stay open in the parent.
  public func reopen() {
    state.withLock { reopen(&$0) }
  }

  /// Closes what its parts have open.
  public func close() {
    state.withLock { close(&$0) }
  }

  // One mutex guards all state, so that a fork that waits for it finds the parts complete (ForkGuard.swift).

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
    let now = clock.now()
    guard state.isDoubtful || now - min(now, state.lastCheck) >= Self.checkNanoseconds else { return false }
    (state.lastCheck, state.isDoubtful) = (now, false)
    // What stands under a closed number may never be ready, and would hold the program's file open.
    guard !state.isIncomplete, isIntact(state) else { return true }
    // Unreadable then and unreadable now counts as the same, too.
    let isSame = SmallFile.says(state.membership ?? "", "proc/self/cgroup", in: root)
    return state.membership == nil ? isSame != nil : isSame != true
  }

  private func open(_ state: inout State) {
    state.lastCheck = clock.now()
    guard hasReserve else {
      // Without memory for it, there is nothing to wait for until somebody asks again (`mayBeStale`).
      (state.membership, state.name, state.isIncomplete) = (nil, "", true)
      return
    }
    state.membership = SmallFile.text(MemoryGroup.join(root, "proc/self/cgroup"))
    state.parts = Self.openParts(root, clock)
    state.name = state.parts.map(\.name).joined(separator: ", ")
    // If the last descriptor is used up, nothing above could tell why it failed; this call can.
    state.isIncomplete = Self.descriptorsAreExhausted()
  }

  private static func openParts(_ root: String, _ clock: MonotonicClock) -> [any SystemSourcePart] {
    var parts: [any SystemSourcePart] = []
    var hearsOfMachine = false
    var hearsOfGroup = false
    if let stalls = StallSource(file: MemoryGroup.join(root, "proc/pressure/memory"), scope: .machine, root: root, clock: clock) {
      parts.append(stalls)
      hearsOfMachine = true
    }
    if let unified = MemoryGroup.currentUnified(root: root), unified.isOwnDirectory,
      !MemoryGroup.isHierarchyRoot(unified.directories[0], .v2),
      let stalls = StallSource(file: unified.directories[0] + "/memory.pressure", scope: .ownGroup, root: root, clock: clock)
    {
      parts.append(stalls)
      hearsOfGroup = true
    }
    let group = MemoryGroup.current(root: root)
    if let group {
      if let events = GroupEventsSource(group: group, clock: clock) {
        parts.append(events)
        hearsOfGroup = true
      }
      if let reclaim = ReclaimSource(group: group, root: root, clock: clock) {
        parts.append(reclaim)
        hearsOfGroup = hearsOfGroup || reclaim.directories == group.directories
        hearsOfMachine = hearsOfMachine || reclaim.directories.contains { MemoryGroup.isHierarchyRoot($0, .v1) }
      }
    } else {
      hearsOfGroup = true
    }
    if !hearsOfMachine || !hearsOfGroup {
      parts.append(PollingSource(root: root, machine: !hearsOfMachine, group: !hearsOfGroup, clock: clock))
    }
    return parts
  }

  private static func descriptorsAreExhausted() -> Bool {
    guard let probe = OwnedDescriptor.event() else { return true }
    probe.close()
    return false
  }
}
