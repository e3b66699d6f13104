// SPDX-License-Identifier: MIT
// Sources on machines as they are found in the field: which open, what they write, what they read.

import Glibc
import PurgeableTestSupport
import Testing

@testable import Purgeable

@Suite("pressure: sources")
struct PressureSourcesTests {
  private static let roomy = "MemTotal: 1000 kB\nMemFree: 500 kB\nMemAvailable: 800 kB\n"

  @Test(
    "the rule: less than an eighth left is some, less than a sixteenth critical",
    arguments: [
      (1600, .none), (200, .none), (199, PressureLevel.some), (100, .some), (99, .critical), (0, .critical),
    ] as [(UInt64, PressureLevel)])
  func rule(room: UInt64, level: PressureLevel) {
    #expect(PressureRule.level(room: room, of: 1600) == level)
    let machine = MachineMemory(meminfo: "MemTotal: 1600 kB\nMemFree: 0 kB\nMemAvailable: \(room) kB\n")
    #expect(PressureRule.level(of: machine) == level)
    let group = MemoryGroup.Level(
      directory: "", hardLimitBytes: 1600, usageBytes: 1600 - room, inactiveFileBytes: 0)
    #expect(PressureRule.level(of: group) == level)
  }

  @Test("the rule: a group full of what can be taken is some; without limit or group there is nothing to say")
  func fullGroup() {
    var group = MemoryGroup.Level(directory: "", hardLimitBytes: 1600, usageBytes: 1550, inactiveFileBytes: 1000)
    #expect(PressureRule.level(of: group) == .some)
    group.hardLimitBytes = nil
    #expect(PressureRule.level(of: group) == .none)
    #expect(PressureRule.level(of: nil as MemoryGroup.Level?) == .none)
    #expect(PressureRule.level(of: nil as MachineMemory?) == .none)
  }

  @Test("stalls: a trigger each for some and full, with a two-second window; an event counts, a group that is gone is let go")
  func stalls() throws {
    let root = try FakeRoot(["memory.pressure": ""])
    defer { root.remove() }
    let file = root.path + "/memory.pressure"
    let source = try #require(StallSource(file: file, scope: .ownGroup))
    defer { source.close() }
    // The second descriptor wrote over what the first had written.
    #expect(SmallFile.text(file) == "full 200000 2000000\0")
    let descriptors = source.descriptors
    try #require(descriptors.count == 2)
    #expect(descriptors.allSatisfy { $0.events == Int16(POLLPRI) })
    #expect(source.level(ready: []) == .none)
    #expect(source.level(ready: [descriptors[0]]) == .some)
    #expect(source.level(ready: [descriptors[1]]) == .critical)
    let gone = descriptors.map { PressureDescriptor(descriptor: $0.descriptor, events: Int16(POLLPRI | POLLERR)) }
    _ = source.level(ready: gone)
    #expect(source.descriptors.isEmpty)
    source.reopen()
    #expect(source.descriptors.count == 2)
    #expect(StallSource(file: root.path + "/nothing", scope: .ownGroup) == nil)
  }

  @Test("stalls of the machine count when the machine is short; with its free memory used up they are some")
  func confirmedStalls() {
    func machine(free: Int, available: Int) -> MachineMemory? {
      MachineMemory(meminfo: "MemTotal: 1600 kB\nMemFree: \(free) kB\nMemAvailable: \(available) kB\n")
    }
    #expect(StallSource.confirmed(.critical, by: machine(free: 400, available: 900)) == .none)
    #expect(StallSource.confirmed(.some, by: machine(free: 50, available: 900)) == .some)
    #expect(StallSource.confirmed(.critical, by: machine(free: 50, available: 900)) == .some)
    #expect(StallSource.confirmed(.critical, by: machine(free: 50, available: 150)) == .critical)
    #expect(StallSource.confirmed(.some, by: machine(free: 50, available: 150)) == .some)
    #expect(StallSource.confirmed(.some, by: machine(free: 50, available: 50)) == .critical)
    #expect(StallSource.confirmed(.critical, by: nil) == .critical)
  }

  @Test("version 2: what the counters say when they have changed")
  func counters() {
    let text = "low 1\nhigh 2\nmax 3\noom 4\noom_kill 5\noom_group_kill 6\n"
    let counters = GroupEventsSource.Counters(text: text)
    #expect(counters.high == 2 && counters.max == 3 && counters.outOfMemory == 9)
    #expect(counters.event(since: counters) == .none)
    func changed(_ from: String, _ to: String) -> PressureLevel {
      GroupEventsSource.Counters(text: text.replacing(from, with: to)).event(since: counters)
    }
    #expect(changed("low 1", "low 2") == .none)
    #expect(changed("high 2", "high 9") == .some)
    #expect(changed("max 3", "max 4") == .some)
    #expect(changed("oom_kill 5", "oom_kill 6") == .critical)
    #expect(GroupEventsSource.Counters(text: "") == GroupEventsSource.Counters())
  }

  @Test("version 2: own group and those around it are watched, by their own counters where there are such")
  func groupEvents() throws {
    var files = FieldMachine.unified
    files["sys/fs/cgroup/app.slice/memory.events.local"] = "max 1\n"
    files["sys/fs/cgroup/app.slice/memory.events"] = "max 100\n"
    files["sys/fs/cgroup/app.slice/web.service/memory.events"] = "high 0\n"
    files["proc/meminfo"] = Self.roomy
    let root = try FakeRoot(files)
    defer { root.remove() }
    let group = try #require(MemoryGroup.current(root: root.path))
    let source = try #require(GroupEventsSource(group: group, root: root.path))
    defer { source.close() }
    let descriptors = source.descriptors
    #expect(descriptors.count == 2)
    #expect(source.level(ready: descriptors) == .none)
    try Self.overwrite(root.path + "/sys/fs/cgroup/app.slice/memory.events.local", "max 2\n")
    #expect(source.level(ready: []) == .none, "nobody said that it changed")
    #expect(source.level(ready: descriptors) == .some)
    // The limit's working set is what decides how bad it is.
    try root.write("sys/fs/cgroup/app.slice/memory.current", "1073000000\n")
    try root.write("sys/fs/cgroup/app.slice/memory.stat", "inactive_file 0\n")
    #expect(source.level(ready: []) == .critical)
    let none = try #require(MemoryGroup.current(root: root.path))
    #expect(ReclaimSource(group: none) == nil)
  }

  @Test("version 1: eventfds for strengths and usage, with every visible group; what cannot be registered with is told")
  func reclaim() throws {
    var files = FieldMachine.version1Nested
    for group in ["", "outer/", "outer/inner/"] {
      files["my groups/memory/\(group)memory.pressure_level"] = ""
      files["my groups/memory/\(group)cgroup.event_control"] = ""
    }
    files["proc/meminfo"] = Self.roomy
    let root = try FakeRoot(files)
    defer { root.remove() }
    let group = try #require(MemoryGroup.current(root: root.path))
    let source = try #require(ReclaimSource(group: group, root: root.path))
    defer { source.close() }
    #expect(source.directories == group.directories)
    let descriptors = source.descriptors
    try #require(descriptors.count == 4)
    let line = try #require(SmallFile.text(root.path + "/my groups/memory/outer/cgroup.event_control"))
    #expect(line.hasPrefix("\(descriptors[2].descriptor) ") && line.hasSuffix(" critical,local"))
    // Nothing was counted: a descriptor that others say is ready is no event.
    #expect(source.level(ready: descriptors) == .none)
    // Here the group around ours is nearly full: reclaim that finds what it needs is some, one that does not is critical.
    Self.signal(descriptors[0])
    #expect(source.level(ready: [descriptors[0]]) == .critical)
    #expect(ReclaimSource.confirmed(.none, by: .none) == .none)
    #expect(ReclaimSource.confirmed(.some, by: .none) == .some)
    #expect(ReclaimSource.confirmed(.critical, by: .none) == .some)
    #expect(ReclaimSource.confirmed(.critical, by: .some) == .critical)
    #expect(ReclaimSource.confirmed(.none, by: .critical) == .critical)
    let readOnly = try FakeRoot(FieldMachine.version1Container)
    defer { readOnly.remove() }
    #expect(ReclaimSource(group: try #require(MemoryGroup.current(root: readOnly.path)), root: readOnly.path) == nil)
  }

  @Test("all that works is opened, and what nothing tells of is polled")
  func composition() throws {
    func parts(_ files: [String: String]) throws -> [String] {
      let root = try FakeRoot(files)
      defer { root.remove() }
      let source = SystemPressureSource(root: root.path)
      defer { source.close() }
      #expect((source.pollingInterval != nil) == source.name.contains("polling"))
      return source.partNames
    }
    #expect(try parts([:]) == ["polling of the machine"])
    #expect(try parts(FieldMachine.version1Container) == ["polling"])
    #expect(try parts(FieldMachine.unified) == ["polling"])
    let withStalls = FieldMachine.unified.merging(["proc/pressure/memory": ""]) { $1 }
    #expect(try parts(withStalls) == ["stalls of the machine (PSI)", "polling of the group"])
    let own = withStalls.merging([
      "sys/fs/cgroup/app.slice/web.service/memory.pressure": "", "sys/fs/cgroup/app.slice/web.service/cgroup.type": "domain\n",
    ]) { $1 }
    #expect(try parts(own) == ["stalls of the machine (PSI)", "stalls of the group (PSI)"])
    let events = FieldMachine.unified.merging(["sys/fs/cgroup/app.slice/web.service/memory.events": "max 0\n"]) { $1 }
    #expect(try parts(events) == ["events of the group (cgroup v2)", "polling of the machine"])
    var version1 = FieldMachine.version1Container
    version1["sys/fs/cgroup/memory/memory.pressure_level"] = ""
    version1["sys/fs/cgroup/memory/cgroup.event_control"] = ""
    #expect(try parts(version1) == ["reclaim in the group (cgroup v1)", "polling of the machine"])
    version1["sys/fs/cgroup/memory/release_agent"] = ""
    #expect(try parts(version1) == ["reclaim in the group (cgroup v1)"])
  }

  @Test("polling goes by the worse of machine and group, and looks once a second")
  func polling() throws {
    var files = FieldMachine.namespaced
    files["proc/meminfo"] = "MemTotal: 1600 kB\nMemAvailable: 150 kB\n"
    let root = try FakeRoot(files)
    defer { root.remove() }
    let source = PollingSource(root: root.path)
    #expect(source.level(ready: []) == .some)
    try root.write("proc/meminfo", "MemTotal: 1600 kB\nMemAvailable: 50 kB\n")
    #expect(source.look() == .critical)
    #expect(PollingSource(root: root.path, machine: false).look() == .none)
    try root.write("sys/fs/cgroup/memory.current", "402000000\n")
    #expect(PollingSource(root: root.path, machine: false).look() == .critical)
    #expect(PollingSource(root: root.path, machine: true, group: false).look() == .critical)
  }

  @Test("a process that was moved to another group hears of that one")
  func moved() throws {
    let root = try FakeRoot(FieldMachine.unified)
    defer { root.remove() }
    let source = SystemPressureSource(root: root.path)
    defer { source.close() }
    #expect(source.partNames == ["polling"])
    try root.write("sys/fs/cgroup/other/memory.events", "max 0\n")
    try root.write("proc/self/cgroup", "0::/other\n")
    #expect(
      patiently {
        _ = source.level(ready: [])
        return source.partNames == ["events of the group (cgroup v2)", "polling of the machine"]
      })
  }

  @Test("a descriptor that means something else by now is not closed")
  func ownership() throws {
    let event = try #require(OwnedDescriptor.event())
    let other = try #require(OwnedDescriptor.event())
    // Safe enough beside other tests: the number stays in use from the one file to the other.
    #expect(dup2(other.number, event.number) == event.number)
    event.close()
    #expect(fcntl(event.number, F_GETFD) >= 0)
    Glibc.close(event.number)
    other.close()
    #expect(OwnedDescriptor(-1) == nil)
  }

  /// In place: the descriptor that is open on it has to see it.
  private static func overwrite(_ path: String, _ text: String) throws {
    let file = try #require(OwnedDescriptor.open(path, O_WRONLY))
    defer { file.close() }
    #expect(file.write(text))
  }

  private static func signal(_ descriptor: PressureDescriptor) {
    var one: UInt64 = 1
    #expect(unsafe write(descriptor.descriptor, &one, 8) == 8)
  }
}
