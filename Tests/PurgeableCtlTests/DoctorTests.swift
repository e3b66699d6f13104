// SPDX-License-Identifier: MIT
// The doctor's findings about machines as they are found in the field, and that the real tool prints them.

import Foundation
import PurgeableTestSupport
import Testing
import ToolSupport

@testable import Purgeable
@testable import purgeablectl

@Suite("doctor")
struct DoctorTests {
  /// A machine on which nothing is wrong.
  static var healthy: MachineFacts {
    var facts = MachineFacts()
    facts.kernelRelease = "6.18.44"
    facts.architecture = "x86_64"
    facts.kernelClass = "works"
    facts.pageSizeBytes = 4096
    facts.isConfirmedByPageout = true
    facts.wipesOnFork = true
    facts.hasRestartableSequences = true
    facts.group = MemoryGroup(version: .v2, path: "/app", directories: ["/sys/fs/cgroup/app"], isOwnDirectory: true)
    facts.mayMakeGroups = true
    facts.groupPressure = .triggers
    facts.memory = MachineMemory(meminfo: "MemTotal: 8000000 kB\nMemAvailable: 6000000 kB\n")
    facts.mlockedBytes = 0
    facts.mlockLimitBytes = 8 << 20
    facts.hugePages = "madvise"
    facts.overcommit = 0
    facts.mapCountLimit = 65530
    facts.refusals = []
    facts.seccompMode = 0
    facts.addressSpaceLimitBytes = .max
    facts.dataLimitBytes = .max
    facts.openFileLimit = 1024
    return facts
  }

  static func finding(_ name: String, _ change: (inout MachineFacts) -> Void) throws -> Finding {
    var facts = healthy
    change(&facts)
    return try #require(Doctor.findings(facts).first { $0.name == name })
  }

  @Test("on a healthy machine all is good and nothing is to be changed")
  func healthy() {
    let findings = Doctor.findings(Self.healthy)
    #expect(findings.filter { $0.state != .good } == [])
    #expect(findings.allSatisfy { $0.remedy.isEmpty && !$0.meaning.isEmpty && !$0.value.isEmpty })
    #expect(Set(findings.map(\.name)).count == findings.count)
  }

  @Test("about a machine of which nothing is known it says so, and does not call it good")
  func unknown() {
    let findings = Doctor.findings(MachineFacts())
    let names = findings.filter { $0.state != .good }.map(\.name)
    #expect(
      Set(names).isSuperset(of: ["kernel", "offering", "memory-group", "pressure", "memory", "overcommit", "map-count"]))
  }

  @Test(
    "kernels, and their known faults",
    arguments: [
      ("4.4.0-210-generic", "x86_64", Finding.State.bad), ("4.19.0", "x86_64", .limited), ("5.17.9", "aarch64", .limited),
      ("5.10.3", "aarch64", .limited), ("5.18.0-rc1", "x86_64", .good), ("6.1.0-13-amd64", "aarch64", .good),
      ("nonsense", "x86_64", .limited), ("10.0.0", "x86_64", .good),
    ])
  func kernels(release: String, architecture: String, state: Finding.State) throws {
    let finding = try Self.finding("kernel") {
      $0.kernelRelease = release
      $0.architecture = architecture
    }
    #expect(finding.state == state)
    #expect(finding.value == release)
  }

  @Test(
    "classes of offering",
    arguments: [
      ("works", Finding.State.good), ("immediate", .limited), ("no-op", .bad), ("unsupported", .bad), ("mlocked", .bad),
      ("partial", .bad), ("unknown", .bad),
    ])
  func offering(kernelClass: String, state: Finding.State) throws {
    let finding = try Self.finding("offering") { $0.kernelClass = kernelClass }
    #expect(finding.state == state)
    #expect(finding.value == kernelClass)
    #expect(finding.remedy.isEmpty == (state == .good))
  }

  @Test("a wipe on fork that is promised and not done is bad")
  func wipeOnFork() throws {
    let ignored = try Self.finding("fork") { ($0.wipesOnFork, $0.isWipeConfirmed) = (false, true) }
    #expect(ignored.state == .bad && !ignored.remedy.isEmpty)
    let tried = try Self.finding("fork") { $0.isWipeConfirmed = true }
    #expect(tried.state == .good && tried.meaning.contains("tried"))
  }

  @Test("what is missing is limited, and a remedy is named")
  func limited() throws {
    let changes: [(String, (inout MachineFacts) -> Void)] = [
      ("page-out", { $0.isConfirmedByPageout = false }), ("rseq", { $0.hasRestartableSequences = false }),
      ("fork", { $0.wipesOnFork = false }), ("page-size", { $0.pageSizeBytes = 65536 }), ("memory-group", { $0.group = nil }),
      ("own-groups", { $0.mayMakeGroups = false }), ("pressure", { $0.groupPressure = .off }),
      ("pressure", { $0.groupPressure = .missing }), ("pressure", { $0.groupPressure = .readable }),
      ("memory", { $0.memory = MachineMemory(meminfo: "MemTotal: 8000000 kB\nMemAvailable: 1000 kB\n") }),
      ("memory", { $0.memory = nil }),
      ("swap", { $0.swaps = [.init(name: "/dev/zram0", kind: .zram, sizeBytes: 1 << 30, usedBytes: 5)] }),
      ("mlock", { $0.mlockedBytes = 4096 }), ("overcommit", { $0.overcommit = 2 }), ("overcommit", { $0.overcommit = nil }),
      ("map-count", { $0.mapCountLimit = 1000 }), ("map-count", { $0.mapCountLimit = nil }),
      ("address-space", { $0.addressSpaceLimitBytes = 1 << 30 }), ("address-space", { $0.dataLimitBytes = 4 << 30 }),
      ("address-space", { $0.addressSpaceLimitBytes = nil }), ("open-files", { $0.openFileLimit = 20 }),
      ("open-files", { $0.openFileLimit = nil }), ("system-calls", { $0.refusals = nil }),
      ("system-calls", { $0.refusals = [.init("mincore", EPERM)] }), ("kernel", { $0.kernelRelease = "5.15.0" }),
    ]
    for (name, change) in changes {
      let finding = try Self.finding(name, change)
      #expect(finding.state == .limited, "\(finding)")
      #expect(!finding.remedy.isEmpty, "\(finding)")
    }
  }

  @Test("files that take most of a group are told, with what keeps a cache's place beside them, and what that gives up")
  func pageCache() throws {
    func finding(_ files: UInt64?) throws -> Finding {
      try Self.finding("page-cache") {
        $0.tightest = MemoryGroup.Level(
          directory: "/sys/fs/cgroup/app", hardLimitBytes: 100 << 20, usageBytes: 90 << 20, pageCacheBytes: files)
      }
    }
    #expect(try finding(51 << 20).state == .limited && finding(51 << 20).remedy.contains(".share(0.5)"))
    #expect(try finding(50 << 20).state == .good && finding(50 << 20).value == "50 MiB of the limit of 100 MiB")
    #expect(try finding(nil).state == .good)
    for files: UInt64? in [nil, 0, 51 << 20] { #expect(try finding(files).meaning.contains("a process that is stopped")) }
  }

  @Test("a pressure signal of any kind is enough")
  func pressure() throws {
    #expect(try Self.finding("pressure") { $0.groupPressure = .readable }.value == "readable, no triggers")
    #expect(try Self.finding("pressure") { $0.groupPressure = .off }.value == "switched off for this group")
    let version1 = try Self.finding("pressure") {
      $0.groupPressure = .missing
      $0.hasPressureLevel = true
    }
    #expect(version1.state == .good)
    let machine = try Self.finding("pressure") {
      $0.groupPressure = .missing
      $0.machinePressure = .triggers
    }
    #expect(machine.value == "stall triggers of the machine")
    for (group, text) in [
      (MachineFacts.PressureSource.readable, "only when its group's limit"), (.missing, "limit has been met"),
    ] {
      let events = try Self.finding("pressure") { ($0.groupPressure, $0.hasGroupEvents) = (group, true) }
      #expect(events.state == .limited && events.meaning.contains(text), "\(events.meaning)")
    }
  }

  @Test("files of a machine: version 2, nested, the outer group nearly full")
  func unified() throws {
    var files = FieldMachine.unified
    files["sys/fs/cgroup/app.slice/memory.current"] = "1073000000\n"
    files["proc/meminfo"] =
      "MemTotal:  16000000 kB\nMemAvailable: 9000000 kB\nCommitLimit: 8000000 kB\nCommitted_AS: 4000000 kB\n"
    files["proc/swaps"] = "Filename\tType\tSize\tUsed\tPriority\n/dev/zram0  partition\t4194304\t1024\t100\n"
    files["proc/sys/vm/swappiness"] = "60\n"
    files["proc/sys/vm/overcommit_memory"] = "2\n"
    files["proc/sys/vm/max_map_count"] = "262144\n"
    files["proc/self/status"] = "Name:\tx\nVmLck:\t     8 kB\n"
    files["proc/sys/kernel/osrelease"] = "5.4.0-150\n"
    files["sys/kernel/mm/transparent_hugepage/enabled"] = "[always] madvise never\n"
    files["sys/kernel/mm/lru_gen/enabled"] = "0x0007\n"
    files["proc/pressure/memory"] = "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
    let root = try FakeRoot(files)
    defer { root.remove() }
    let facts = MachineFacts.current(root: root.path)
    #expect(facts.kernelRelease == "5.4.0-150")
    #expect(facts.mlockedBytes == 8192)
    #expect(facts.hugePages == "always")
    #expect(facts.usesMultiGenerations == true)
    #expect(facts.machinePressure == .readable)
    #expect(facts.groupPressure == .missing)
    let swap = MachineFacts.Swap(name: "/dev/zram0", kind: .zram, sizeBytes: 4 << 30, usedBytes: 1 << 20)
    #expect(facts.swaps == [swap])
    let findings = Dictionary(uniqueKeysWithValues: Doctor.findings(facts).map { ($0.name, $0) })
    #expect(findings["group-limit"]?.state == .limited)
    #expect(findings["group-limit"]?.meaning.contains("app.slice") == true)
    #expect(findings["swap"]?.value == "4 GiB of zram, 1 MiB used, swappiness 60")
    #expect(findings["overcommit"]?.value == "never, 3.8 GiB of 7.6 GiB promised")
    #expect(findings["map-count"]?.state == .good)
    #expect(findings["mlock"]?.value.hasPrefix("8 KiB mlocked") == true)
  }

  @Test("files of a machine: namespaced, version 1, and nothing at all")
  func others() throws {
    let container = try FakeRoot(FieldMachine.namespaced)
    defer { container.remove() }
    let namespaced = MachineFacts.current(root: container.path)
    let limit = try #require(Doctor.findings(namespaced).first { $0.name == "group-limit" })
    #expect(limit.value == "384 MiB, 100 MiB used, 284 MiB left")
    #expect(limit.meaning.contains("memory.high"))
    let root = try FakeRoot(FieldMachine.version1Container)
    defer { root.remove() }
    try root.write("sys/fs/cgroup/memory/memory.pressure_level", "")
    let version1 = MachineFacts.current(root: root.path)
    #expect(!version1.hasPressureLevel, "nobody may register")
    try root.write("sys/fs/cgroup/memory/cgroup.event_control", "")
    #expect(MachineFacts.current(root: root.path).hasPressureLevel)
    #expect(Doctor.findings(version1).first { $0.name == "memory-group" }?.value == "version 1, /docker/abc")
    let empty = try FakeRoot()
    defer { empty.remove() }
    #expect(MachineFacts.current(root: empty.path) == MachineFacts())
  }

  @Test("the report fits its width and shows every finding once")
  func report() {
    let facts = MachineFacts()
    let findings = Doctor.findings(facts)
    let lines = Doctor.report(facts, findings, lineWidth: 72).split(separator: "\n")
    #expect(lines.allSatisfy { $0.count <= 72 })
    #expect(lines.contains("Purgeable memory does not work as it should here: offering."))
    for finding in findings {
      #expect(lines.count { $0.contains(" \(finding.name) ") && $0.hasPrefix(finding.state.rawValue) } == 1)
    }
  }

  @Test("the real tool prints one JSON object, and a report")
  func realTool() throws {
    let json = try run(["doctor", "--json"])
    #expect(json.status == 0)
    let object = try #require(try JSONSerialization.jsonObject(with: Data(json.output.utf8)) as? [String: Any])
    #expect(Set(object.keys) == ["findings", "kernelClass", "pageSize", "environment", "verdict"])
    #expect((object["verdict"] as? String)?.hasPrefix("Purgeable memory ") == true)
    #expect((object["environment"] as? String).map { $0 == "bare" || RunEnvironment.Layer(rawValue: $0) != nil } == true)
    #expect(object["pageSize"] as? Int == Int(sysconf(Int32(_SC_PAGESIZE))))
    let findings = try #require(object["findings"] as? [[String: String]])
    #expect(findings.count == Doctor.findings(MachineFacts()).count)
    for finding in findings {
      #expect(Set(finding.keys) == ["name", "state", "value", "meaning", "remedy"])
      let state = try #require(Finding.State(rawValue: finding["state"] ?? ""))
      #expect(finding["meaning"] != "")
      #expect((finding["remedy"] == "") == (state == .good), "\(finding)")
    }
    let report = try run(["doctor"])
    #expect(report.status == 0)
    #expect(report.output.contains("Linux "))
  }

  @Test("the real tool, called wrongly, says what was wrong and ends with 2")
  func realToolRefuses() throws {
    let unknown = try run(["doctor", "--jsom"])
    #expect(unknown.status == 2)
    #expect(unknown.output.isEmpty)
    #expect(unknown.errors.contains("unknown option \"--jsom\""))
    #expect(try run(["docter"]).errors.contains("unknown command \"docter\""))
    #expect(try run([]).status == 2)
    #expect(try run(["--help"]).status == 0)
    #expect(try run(["doctor", "--help"]).output.contains("--json"))
  }

  private func run(_ words: [String]) throws -> ChildProcess {
    try ChildProcess.runBuilt("purgeablectl", words)
  }
}
