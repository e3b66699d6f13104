// SPDX-License-Identifier: MIT
// Settings as files tell them: swap, reclaim, limits, pressure information; and calls that are really refused.

import CPurgeable.Testing
import CPurgeableCases
import Foundation
import PurgeableTestSupport
import Testing

@testable import Purgeable
@testable import purgeablectl

@Suite("doctor: settings and refusals")
struct DoctorSettingsTests {
  /// The findings about a machine of these files.
  static func findings(_ files: [String: String]) throws -> [String: Finding] {
    let root = try FakeRoot(files)
    defer { root.remove() }
    let facts = MachineFacts.current(root: root.path)
    return Dictionary(uniqueKeysWithValues: Doctor.findings(facts).map { ($0.name, $0) })
  }

  static let heading = "Filename\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"

  @Test("swap by kind, by swappiness, and for a group without")
  func swap() throws {
    func swap(_ lines: String, _ more: [String: String] = [:]) throws -> Finding {
      var files = FieldMachine.unified.merging(more) { $1 }
      files["proc/swaps"] = Self.heading + lines
      return try #require(try Self.findings(files)["swap"])
    }
    let zram = "/dev/zram0 partition 1048576 0 100\n"
    let file = "/swapfile file 1048576 1024 -2\n"
    #expect(try swap("").state == .good)
    #expect(try swap(zram).meaning.contains("stays in memory, compressed"))
    #expect(try swap(file).value == "1 GiB of file, 1 MiB used")
    #expect(try swap(zram + file).value == "2 GiB of zram and file, 1 MiB used")
    #expect(
      try swap("/dev/sda2 partition 1048576 0 -2\n", ["sys/module/zswap/parameters/enabled": "Y\n"]).value.contains("zswap"))
    #expect(try swap(zram, ["proc/sys/vm/swappiness": "180\n"]).remedy == "sysctl vm.swappiness=60")
    #expect(try swap(file, ["proc/sys/vm/swappiness": "60\n"]).remedy.contains("web.service/memory.swap.max"))
    let kept = try swap(file, ["sys/fs/cgroup/app.slice/memory.swap.max": "0\n"])
    #expect(kept.state == .good && kept.value.hasSuffix("none for this group"))
    #expect(try swap(file, ["sys/fs/cgroup/app.slice/memory.swap.max": "max\n"]).state == .limited)
  }

  @Test("swap in version 1: what the second limit leaves beyond the first")
  func swapOfVersion1() throws {
    var files = FieldMachine.version1Container
    files["proc/swaps"] = Self.heading + "/swapfile file 1048576 1024 -2\n"
    files["sys/fs/cgroup/memory/memory.limit_in_bytes"] = "1073741824\n"
    files["sys/fs/cgroup/memory/memory.memsw.limit_in_bytes"] = "1073741824\n"
    #expect(try Self.findings(files)["swap"]?.state == .good)
    files["sys/fs/cgroup/memory/memory.memsw.limit_in_bytes"] = "2147483648\n"
    #expect(try Self.findings(files)["swap"]?.remedy.contains("--memory-swap") == true)
    files["sys/fs/cgroup/memory/memory.memsw.limit_in_bytes"] = "9223372036854771712\n"
    #expect(try Self.findings(files)["swap"]?.state == .limited)
  }

  @Test("reclaim by generations, with and without a time that pages are kept")
  func generations() throws {
    let enabled = ["sys/kernel/mm/lru_gen/enabled": "0x0007\n", "sys/kernel/mm/lru_gen/min_ttl_ms": "0\n"]
    #expect(try Self.findings(enabled)["reclaim"]?.state == .good)
    #expect(try Self.findings(enabled)["reclaim"]?.value == "multi-generation LRU")
    let keeps = enabled.merging(["sys/kernel/mm/lru_gen/min_ttl_ms": "1000\n"]) { $1 }
    #expect(try Self.findings(keeps)["reclaim"]?.remedy == "echo 0 > /sys/kernel/mm/lru_gen/min_ttl_ms")
    #expect(try Self.findings(keeps.merging(["sys/kernel/mm/lru_gen/enabled": "0x0000\n"]) { $1 })["reclaim"]?.state == .good)
  }

  @Test("limits of the process")
  func limits() throws {
    func limits(space: String, data: String, files: String) throws -> [String: Finding] {
      try Self.findings([
        "proc/self/limits": """
        Limit                     Soft Limit           Hard Limit           Units
        Max data size             \(data)            unlimited            bytes
        Max open files            \(files)                 524288               files
        Max address space         \(space)            unlimited            bytes

        """, "proc/meminfo": "MemTotal:  16000000 kB\nMemAvailable: 9000000 kB\n",
      ])
    }
    let free = try limits(space: "unlimited", data: "unlimited", files: "1024")
    #expect(free["address-space"]?.state == .good)
    #expect(free["open-files"]?.value == "1024")
    let small = try limits(space: "4294967296", data: "unlimited", files: "16")
    #expect(small["address-space"]?.value == "in all 4 GiB, data no limit")
    #expect(small["address-space"]?.remedy.contains("ulimit -v unlimited") == true)
    #expect(small["open-files"]?.remedy.contains("ulimit -n") == true)
    #expect(try limits(space: "unlimited", data: "1073741824", files: "9")["address-space"]?.state == .limited)
    #expect(try limits(space: "68719476736", data: "unlimited", files: "unlimited")["address-space"]?.state == .good)
  }

  @Test("pressure information that is not there: why, and what to do")
  func pressure() throws {
    let release = ["proc/sys/kernel/osrelease": "6.1.0\n"]
    func value(_ files: [String: String]) throws -> String? {
      try Self.findings(release.merging(files) { $1 })["pressure"]?.value
    }
    #expect(try value([:]) == "none")
    #expect(try value(["proc/cmdline": "root=/dev/sda1 psi=0 quiet\n"]) == "switched off")
    #expect(try value(["boot/config-6.1.0": "CONFIG_SWAP=y\n# CONFIG_PSI is not set\n"]) == "not compiled in")
    #expect(try value(["boot/config-6.1.0": "CONFIG_PSI=y\nCONFIG_PSI_DEFAULT_DISABLED=y\n"]) == "switched off")
    let group = FieldMachine.namespaced.merging(["sys/fs/cgroup/cgroup.pressure": "0\n"]) { $1 }
    #expect(try value(group) == "switched off for this group")
    #expect(try Self.findings(group)["pressure"]?.remedy.contains("/sys/fs/cgroup/cgroup.pressure") == true)
  }

  // MARK: Calls, each in a process of its own

  /// A finding about the real machine now.
  static func now(_ name: String) throws -> Finding {
    purgeable_testing_forget_probe()
    return try #require(Doctor.findings(MachineFacts.current()).first { $0.name == name })
  }

  @Test("faults in the core's table of system calls")
  func faults() async {
    await #expect(processExitsWith: .success) {
      let bad: Set = ["MADV_DONTNEED"]
      let table: [(purgeable_testing_call_t, Int32, String)] = [
        (purgeable_testing_call_madvise_free, EINVAL, "MADV_FREE (EINVAL)"),
        (purgeable_testing_call_madvise_dontneed, EPERM, "MADV_DONTNEED (EPERM)"),
        (purgeable_testing_call_madvise_other, ENOSYS, "MADV_PAGEOUT (ENOSYS)"),
        (purgeable_testing_call_mincore, ENOSYS, "mincore (ENOSYS)"),
        (purgeable_testing_call_random, EPERM, "getrandom (EPERM)"),
      ]
      for (call, error, name) in table {
        purgeable_testing_fail(UInt32(call.rawValue), 1, error, true)
        let finding = try Self.now("system-calls")
        purgeable_testing_fail(0, 0, 0, false)
        #expect(finding.value.contains(name), "\(finding)")
        #expect(finding.state == (bad.contains { finding.value.contains($0) } ? .bad : .limited))
        #expect(!finding.remedy.isEmpty)
      }
      purgeable_testing_fail(UInt32(purgeable_testing_call_madvise_free.rawValue), 1, EINVAL, true)
      let refused = try Self.now("offering")
      #expect(refused.value == "unsupported")
      purgeable_testing_fail(UInt32(purgeable_testing_call_mmap.rawValue), 1, ENOMEM, true)
      let unknown = try Self.now("system-calls")
      purgeable_testing_fail(0, 0, 0, false)
      #expect(unknown.value.hasPrefix("not asked"))
    }
  }

  @Test("a filter that refuses: seen, named, and what to write where", .filters)
  func filter() async {
    await #expect(processExitsWith: .success) {
      try #require(cases_refuse(cases_call_mincore, EPERM) && cases_refuse(cases_call_process_madvise, ENOSYS))
      let finding = try Self.now("system-calls")
      #expect(finding.value.contains("mincore (EPERM)") && finding.value.hasSuffix("a filter (seccomp) is in force"))
      #expect(finding.remedy.contains("mincore") && !finding.remedy.contains("process_madvise"), "\(finding)")
    }
  }

  @Test("as in gVisor: offers refused, everything else answered", .filters)
  func asInGVisor() async {
    await #expect(processExitsWith: .success) {
      try #require(cases_refuse_advice(8, EINVAL))
      let (offering, calls) = try (Self.now("offering"), Self.now("system-calls"))
      #expect(offering.value == "unsupported" && offering.state == .bad)
      #expect(calls.value.contains("MADV_FREE (EINVAL)"))
    }
  }

  @Test("as in an emulator: offers and page-outs answered, without any effect", .filters)
  func asEmulated() async {
    await #expect(processExitsWith: .success) {
      try #require(cases_refuse_advice(8, 0) && cases_refuse_advice(21, 0))
      let (offering, environment) = try (Self.now("offering"), Self.now("environment"))
      #expect(offering.value == "no-op")
      #expect(environment.value.contains("emulated (by offers without effect)") && environment.state == .bad)
    }
  }

  @Test("a process that mlocks all of its memory")
  func mlocked() async {
    await #expect(processExitsWith: .success) {
      // Without the right to lock memory, or under a sanitizer that ignores the call, there is nothing to see.
      guard mlockall(Int32(MCL_FUTURE)) == 0 else { return }
      let offering = try Self.now("offering")
      let mlock = try Self.now("mlock")
      guard mlock.state == .limited else { return }
      #expect(offering.value == "mlocked" && offering.remedy.contains("munlockall"))
    }
  }
}
