// SPDX-License-Identifier: MIT
// Sources on machines as they are found in the field: which of them open, what they write and what they read.

import Glibc
import PurgeableTestSupport
import Testing
import ToolSupport

@testable import Purgeable

@Suite("pressure: sources")
struct PressureSourcesTests {
  private static let roomy = "MemTotal: 1000 kB\nMemFree: 500 kB\nMemAvailable: 800 kB\n"

  @Test("stalls: a trigger each for some and full, with a two-second window; an event counts, a group that is gone is let go")
  func stalls() throws {
    let root = try FakeRoot(["memory.pressure": StallTriggerTests.text(some: 0, full: 0)])
    defer { root.remove() }
    let file = root.path + "/memory.pressure"
    let source = try #require(StallSource(file: file, scope: .ownGroup))
    defer { source.close() }
    // The second descriptor's text replaced that of the first.
    #expect(SmallFile.text(file)?.hasPrefix("full 200000 2000000\0") == true)
    let descriptors = source.descriptors
    try #require(descriptors.count == 2)
    #expect(descriptors.allSatisfy { $0.events == Int16(POLLPRI) })
    try Self.overwrite(file, StallTriggerTests.text(some: 100_000, full: 200_000))
    #expect(source.level(ready: []) == .normal)
    #expect(source.level(ready: [descriptors[0]]) == .warning)
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
    #expect(StallSource.confirmed(.critical, by: machine(free: 400, available: 900)) == .normal)
    #expect(StallSource.confirmed(.warning, by: machine(free: 50, available: 900)) == .warning)
    #expect(StallSource.confirmed(.critical, by: machine(free: 50, available: 900)) == .warning)
    #expect(StallSource.confirmed(.critical, by: machine(free: 50, available: 150)) == .critical)
    #expect(StallSource.confirmed(.warning, by: machine(free: 50, available: 150)) == .warning)
    #expect(StallSource.confirmed(.warning, by: machine(free: 50, available: 50)) == .critical)
    #expect(StallSource.confirmed(.critical, by: nil) == .critical)
  }

  @Test("version 2: what the counters say when they have changed")
  func counters() {
    let text = "low 1\nhigh 2\nmax 3\noom 4\noom_kill 5\noom_group_kill 6\n"
    let counters = GroupEventsSource.Counters(text: text)
    #expect(counters.high == 2 && counters.max == 3 && counters.outOfMemory == 9)
    #expect(counters.event(since: counters) == .normal)
    func changed(_ from: String, _ to: String) -> PressureLevel {
      GroupEventsSource.Counters(text: text.replacing(from, with: to)).event(since: counters)
    }
    #expect(changed("low 1", "low 2") == .normal)
    #expect(changed("high 2", "high 9") == .warning)
    #expect(changed("max 3", "max 4") == .warning)
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
    let clock = SetClock()
    let source = try #require(GroupEventsSource(group: group, clock: clock.monotonic))
    defer { source.close() }
    let descriptors = source.descriptors
    #expect(descriptors.count == 2)
    #expect(source.level(ready: descriptors) == .normal)
    try Self.overwrite(root.path + "/sys/fs/cgroup/app.slice/memory.events.local", "max 2\n")
    #expect(source.level(ready: []) == .normal, "nobody said that it changed")
    #expect(source.level(ready: descriptors) == .warning)
    // The working set against the limit decides the level.
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
    // The counters are unchanged: a descriptor reported as ready is then no event.
    #expect(source.level(ready: descriptors) == .normal)
    // Here the group around ours is nearly full: reclaim that finds enough means some pressure, reclaim that does not is
    // critical.
    Self.signal(descriptors[0])
    #expect(source.level(ready: [descriptors[0]]) == .critical)
    #expect(ReclaimSource.confirmed(.normal, by: .normal) == .normal)
    #expect(ReclaimSource.confirmed(.warning, by: .normal) == .warning)
    #expect(ReclaimSource.confirmed(.critical, by: .normal) == .warning)
    #expect(ReclaimSource.confirmed(.critical, by: .warning) == .critical)
    #expect(ReclaimSource.confirmed(.normal, by: .critical) == .critical)
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
    let stalls = StallTriggerTests.text(some: 0, full: 0)
    #expect(try parts([:]) == ["polling of the machine"])
    #expect(try parts(FieldMachine.version1Container) == ["polling"])
    #expect(try parts(FieldMachine.unified) == ["polling"])
    let withStalls = FieldMachine.unified.merging(["proc/pressure/memory": stalls]) { $1 }
    #expect(try parts(withStalls) == ["stalls of the machine (PSI)", "polling of the group"])
    let own = withStalls.merging([
      "sys/fs/cgroup/app.slice/web.service/memory.pressure": stalls,
      "sys/fs/cgroup/app.slice/web.service/cgroup.type": "domain\n",
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
    let clock = SetClock()
    let source = PollingSource(root: root.path, clock: clock.monotonic)
    #expect(source.level(ready: []) == .warning)
    try root.write("proc/meminfo", "MemTotal: 1600 kB\nMemAvailable: 50 kB\n")
    #expect(source.look() == .critical)
    clock.advance(seconds: 0.8)
    #expect(source.level(ready: []) == .warning, "what it saw last")
    clock.advance(seconds: 0.2)
    #expect(source.level(ready: []) == .critical)
    #expect(PollingSource(root: root.path, machine: false).look() == .normal)
    try root.write("sys/fs/cgroup/memory.current", "402000000\n")
    #expect(PollingSource(root: root.path, machine: false).look() == .critical)
    #expect(PollingSource(root: root.path, machine: true, group: false).look() == .critical)
  }

  @Test("a process that was moved to another group hears of that one")
  func moved() throws {
    let root = try FakeRoot(FieldMachine.unified)
    defer { root.remove() }
    let clock = SetClock()
    let source = SystemPressureSource(root: root.path, clock: clock.monotonic)
    defer { source.close() }
    #expect(source.partNames == ["polling"])
    try root.write("sys/fs/cgroup/other/memory.events", "max 0\n")
    try root.write("proc/self/cgroup", "0::/other\n")
    clock.advance(seconds: 4.5)
    _ = source.level(ready: [])
    #expect(source.partNames == ["polling"], "looked a moment ago")
    clock.advance(seconds: 0.5)
    _ = source.level(ready: [])
    #expect(source.partNames == ["events of the group (cgroup v2)", "polling of the machine"])
  }

  @Test("a descriptor that means something else by now is not closed")
  func ownership() throws {
    let event = try #require(OwnedDescriptor.event())
    let other = try #require(OwnedDescriptor.event())
    // Safe beside other tests: the number stays in use from one file to the other.
    #expect(dup2(other.number, event.number) == event.number)
    event.close()
    #expect(fcntl(event.number, F_GETFD) >= 0)
    Glibc.close(event.number)
    other.close()
    #expect(OwnedDescriptor(-1) == nil)
  }

  /// Written in place, so that the open descriptor sees it.
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
