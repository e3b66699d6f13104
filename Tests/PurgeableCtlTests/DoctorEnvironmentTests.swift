// SPDX-License-Identifier: MIT
// Containers, sandboxes and emulators, by the files that they leave; and the doctor's advice for each.

import Foundation
import PurgeableTestSupport
import Testing

@testable import Purgeable
@testable import purgeablectl

@Suite("doctor: environments")
struct DoctorEnvironmentTests {
  struct Place: Sendable, CustomTestStringConvertible {
    var name: String
    var files: [String: String]
    var testDescription: String { "\(name): \(files.keys.sorted().joined(separator: " "))" }
  }

  static let intel = "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: Intel\nflags\t\t: fpu vme sse2 hypervisor lm\n"
  static let arm = "processor\t: 0\nBogoMIPS\t: 50.00\nFeatures\t: fp asimd\nCPU implementer\t: 0x41\n"

  static let places: [Place] = [
    Place(name: "bare", files: ["proc/1/cgroup": "0::/init.scope\n", "proc/cpuinfo": intel]),
    Place(name: "bare", files: ["proc/self/cgroup": "0::/system.slice/docker.service\n", "proc/1/environ": "HOME=/\0"]),
    Place(name: "docker", files: [".dockerenv": ""]),
    Place(name: "docker", files: ["proc/1/cgroup": "4:memory:/docker/abc\n"]),
    Place(name: "docker", files: ["proc/self/cgroup": "0::/system.slice/docker-abc.scope\n"]),
    Place(name: "podman", files: ["run/.containerenv": "engine=\"podman-4.9\"\n"]),
    Place(name: "podman", files: ["proc/1/environ": "PATH=/bin\0container=podman\0"]),
    Place(name: "podman", files: ["proc/1/cgroup": "0::/machine.slice/libpod-abc.scope/container\n"]),
    Place(name: "kubernetes", files: ["proc/self/environ": "HOME=/\0KUBERNETES_SERVICE_HOST=10.0.0.1\0", ".dockerenv": ""]),
    Place(name: "kubernetes", files: ["proc/1/cgroup": "0::/kubepods.slice/kubepods-burstable.slice/cri-containerd-abc.scope\n"]),
    Place(name: "kubernetes", files: ["var/run/secrets/kubernetes.io/serviceaccount/namespace": "default"]),
    Place(name: "systemd-nspawn", files: ["proc/1/environ": "container=systemd-nspawn\0TERM=xterm\0"]),
    Place(name: "systemd-nspawn", files: ["run/systemd/container": "systemd-nspawn\n"]),
    Place(name: "lxc", files: ["proc/1/environ": "container=lxc\0"]),
    Place(name: "lxc", files: ["proc/1/cgroup": "0::/lxc.payload.web/init.scope\n"]),
    Place(name: "container", files: ["proc/1/environ": "container=oci\0"]),
    Place(
      name: "gvisor",
      files: [
        "proc/version": "Linux version 4.4.0 #1 SMP Sun Jan 10 15:06:54 PST 2016\n", "proc/sys/kernel/osrelease": "4.4.0\n",
      ]),
    Place(name: "gvisor", files: ["proc/sys/kernel/osrelease": "4.19.0-gvisor\n", ".dockerenv": ""]),
    Place(name: "wsl1", files: ["proc/sys/kernel/osrelease": "4.4.0-19041-Microsoft\n"]),
    Place(name: "wsl2", files: ["proc/sys/kernel/osrelease": "5.15.153.1-microsoft-standard-WSL2\n"]),
    Place(name: "docker", files: ["proc/sys/kernel/osrelease": "5.15.153.1-microsoft-standard-WSL2\n", ".dockerenv": ""]),
    Place(
      name: "valgrind", files: ["proc/self/maps": "58000000-58200000 r-xp 0 08:01 7 /usr/libexec/valgrind/memcheck-amd64-linux\n"]
    ),
    Place(name: "emulated", files: ["proc/cpuinfo": arm]),
    Place(name: "emulated", files: ["proc/cpuinfo": "vendor_id\t: VirtualApple\nflags\t\t: fpu\n"]),
  ]

  @Test("each is known by each of its marks", arguments: places)
  func recognised(place: Place) throws {
    let root = try FakeRoot(place.files)
    defer { root.remove() }
    let environment = RunEnvironment.current(root: root.path, builtFor: "x86_64")
    #expect(environment.name == place.name)
    #expect(environment.marks.values.allSatisfy { !$0.isEmpty })
    var facts = DoctorTests.healthy
    facts.environment = environment
    facts.kernelClass = environment.standsInForKernel ? "unsupported" : "works"
    let findings = Doctor.findings(facts)
    let finding = try #require(findings.first { $0.name == "environment" })
    #expect(finding.state == (environment.standsInForKernel ? .bad : place.name == "valgrind" ? .limited : .good))
    #expect(finding.remedy.isEmpty == (finding.state == .good))
    #expect(Doctor.verdict(facts, findings).contains(place.name == "bare" ? "here" : "here (\(place.name))"))
    guard case .object(let members) = Doctor.json(facts, findings) else { throw CancellationError() }
    #expect(members.map(\.name) == ["findings", "kernelClass", "pageSize", "environment", "verdict"])
  }

  @Test("a machine of another processor, seen from a program for each")
  func processors() throws {
    let root = try FakeRoot(["proc/cpuinfo": Self.intel])
    defer { root.remove() }
    #expect(RunEnvironment.current(root: root.path, builtFor: "x86_64").name == "bare")
    #expect(RunEnvironment.current(root: root.path, builtFor: "x86_64").isVirtualMachine)
    #expect(RunEnvironment.current(root: root.path, builtFor: "aarch64").name == "emulated")
    #expect(RunEnvironment.current(root: root.path, builtFor: "other").name == "bare")
    try root.write("proc/cpuinfo", Self.arm)
    #expect(RunEnvironment.current(root: root.path, builtFor: "aarch64").name == "bare")
  }

  @Test("a machine made from a container's image is no container")
  func imageOfMachine() throws {
    let root = try FakeRoot([".dockerenv": "", "run/.containerenv": ""])
    defer { root.remove() }
    try root.link("proc/self/ns/pid", "pid:[4026531836]")
    try root.link("proc/self/ns/uts", "uts:[4026531838]")
    #expect(RunEnvironment.current(root: root.path).name == "podman")
    try root.link("proc/self/ns/ipc", "ipc:[4026531839]")
    #expect(RunEnvironment.current(root: root.path).name == "bare")
    try root.write("proc/1/cgroup", "0::/docker/abc\n")
    #expect(RunEnvironment.current(root: root.path).name == "docker")
  }

  @Test("layers are named from the one that matters most")
  func layers() throws {
    let root = try FakeRoot([
      "proc/sys/kernel/osrelease": "6.6.87.2-microsoft-standard-WSL2\n",
      "proc/self/environ": "KUBERNETES_SERVICE_HOST=10.0.0.1\0",
      ".dockerenv": "",
    ])
    defer { root.remove() }
    let environment = RunEnvironment.current(root: root.path)
    #expect(environment.layers == [.kubernetes, .docker, .wsl2])
    var facts = DoctorTests.healthy
    facts.environment = environment
    #expect(
      Doctor.environment(facts).value
        == "kubernetes (by KUBERNETES_SERVICE_HOST), in docker (by /.dockerenv), in wsl2 (by the kernel's release)")
  }

  /// Facts in a place, nearly at the limit, with swap and a filter in the way.
  static func troubled(_ layer: RunEnvironment.Layer?) -> MachineFacts {
    var facts = DoctorTests.healthy
    if let layer { facts.environment.add(layer, by: "a test") }
    facts.group = nil
    facts.tightest = MemoryGroup.Level(directory: "/sys/fs/cgroup/app", hardLimitBytes: 1 << 30, usageBytes: 1 << 30)
    facts.swaps = [.init(name: "/swap", kind: .file, sizeBytes: 1 << 30, usedBytes: 0)]
    facts.refusals = [.init("MADV_DONTNEED", EPERM), .init("mincore", ENOSYS), .init("process_madvise", EPERM)]
    facts.seccompMode = 2
    return facts
  }

  @Test("remedies are in the words of the place")
  func words() throws {
    func remedy(_ name: String, _ layer: RunEnvironment.Layer?) throws -> String {
      try #require(Doctor.findings(Self.troubled(layer)).first { $0.name == name }).remedy
    }
    #expect(try remedy("group-limit", .docker).contains("docker update --memory"))
    #expect(try remedy("group-limit", .podman).contains("podman update --memory"))
    #expect(try remedy("group-limit", .kubernetes).contains("kubectl set resources"))
    #expect(try remedy("group-limit", nil).contains("echo 2G > /sys/fs/cgroup/app/memory.max"))
    // Never to less than there is.
    var facts = Self.troubled(.kubernetes)
    facts.tightest = MemoryGroup.Level(directory: "/sys/fs/cgroup/app", hardLimitBytes: 3 << 30, usageBytes: 3 << 30)
    #expect(Doctor.raiseLimit(facts).hasSuffix("memory=6Gi"))
    facts.tightest = MemoryGroup.Level(directory: "/", hardLimitBytes: 1500 << 20, usageBytes: 1500 << 20)
    #expect(Doctor.raiseLimit(facts).hasSuffix("memory=3000Mi"))
    #expect(try remedy("swap", .docker).contains("--memory-swap"))
    #expect(try remedy("swap", .kubernetes).contains("NoSwap"))
    #expect(try remedy("swap", nil).contains("swapoff"))
    #expect(try remedy("system-calls", .docker).contains("madvise mincore to the allowed names"))
    #expect(try remedy("system-calls", .kubernetes).contains("seccompProfile"))
    #expect(try remedy("system-calls", nil).contains("SystemCallFilter=madvise mincore"))
    #expect(try remedy("system-calls", .valgrind) == "Run outside of valgrind.")
    #expect(try remedy("memory-group", .podman).contains("--cgroupns=private"))
    #expect(try remedy("memory-group", nil).contains("mount -t cgroup2"))
    // In every environment, findings that are not good give advice, and good ones give none.
    for layer in RunEnvironment.Layer.allCases.map(Optional.some) + [nil] {
      for finding in Doctor.findings(Self.troubled(layer)) {
        #expect(finding.remedy.isEmpty == (finding.state == .good), "\(finding)")
        #expect(!finding.meaning.isEmpty)
      }
    }
  }
}
