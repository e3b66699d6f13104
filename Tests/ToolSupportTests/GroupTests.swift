// SPDX-License-Identifier: MIT
// Memory groups by their files, and the group that pressure is made in.

import Foundation
import PurgeableTestSupport
import Testing
import ToolSupport

@testable import Purgeable

@Suite("memory groups of the tools")
struct GroupTests {
  @Test("what a group tells is read anew each time, by the names of its version")
  func readsFiles() throws {
    let root = try FakeRoot([
      "v1/memory.usage_in_bytes": "5000\n", "v1/memory.stat": "inactive_file 7\ntotal_inactive_file 1000\n",
      "v1/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
      "v2/memory.current": "900\n", "v2/memory.stat": "inactive_file 1000\n", "v2/memory.events": "oom 1\noom_kill 4\n",
    ])
    defer { root.remove() }
    let first = GroupFiles(version: .v1, directory: root.path + "/v1")
    #expect(first.usageBytes == 5000 && first.workingSetBytes == 4000 && first.killCount == 3)
    let second = GroupFiles(version: .v2, directory: root.path + "/v2")
    #expect(second.usageBytes == 900 && second.workingSetBytes == 0 && second.killCount == 4)
    try root.write("v2/memory.current", "3000\n")
    #expect(second.workingSetBytes == 2000)
    let none = GroupFiles(version: .v2, directory: root.path + "/none")
    #expect(none.usageBytes == nil && none.workingSetBytes == nil && none.killCount == nil && none.room == nil)
    #expect(second.room == nil)
    try root.write("v2/memory.max", "6400\n")
    try root.write("v2/memory.stat", "inactive_file 1000\nfile 300\nshmem 100\n")
    #expect(second.room == MemoryRoom(3600, of: 6400))
  }

  @Test("a limit is written for memory, and for swap unless that is allowed; files that are missing answer an errno")
  func limits() throws {
    let names = ["v1/memory.limit_in_bytes", "v1/memory.memsw.limit_in_bytes", "v2/memory.max", "v2/memory.swap.max"]
    for allowsSwap in [false, true] {
      let root = try FakeRoot(Dictionary(uniqueKeysWithValues: names.map { ($0, "") }))
      defer { root.remove() }
      for version in [MemoryGroup.Version.v1, .v2] {
        let files = GroupFiles(version: version, directory: root.path + "/v\(version.rawValue)")
        #expect(files.setLimit(4096, allowsSwap: allowsSwap) == 0)
      }
      let written = try names.map { try String(contentsOfFile: root.path + "/" + $0, encoding: .utf8) }
      #expect(written == (allowsSwap ? ["4096", "", "4096", "max"] : ["4096", "4096", "4096", "0"]))
      #expect(GroupFiles(version: .v2, directory: root.path + "/none").setLimit(1) == ENOENT)
    }
  }

  @Test("a group is made once, entered by whoever writes 0, and removed when it is empty")
  func life() throws {
    let root = try FakeRoot(["own/here": ""])
    defer { root.remove() }
    let files = GroupFiles(version: .v2, directory: root.path + "/own/group")
    #expect(files.make() == 0)
    #expect(files.make() == EEXIST)
    #expect(files.enter() == ENOENT)
    try root.write("own/group/cgroup.procs", "")
    #expect(files.enter() == 0)
    #expect(try String(contentsOfFile: files.processes, encoding: .utf8) == "0")
    try FileManager.default.removeItem(atPath: files.processes)
    #expect(files.remove())
    #expect(!FileManager.default.fileExists(atPath: files.directory))
    #expect(files.remove())
  }

  /// The kernel's own group: this process stays outside of it.
  @Test("a real group accounts for a child that enters it, and is gone when it is removed")
  func real() throws {
    guard let own = MemoryGroup.current(), own.version == .v1, own.isOwnDirectory else {
      try Test.cancel("no group of version 1 of this process's own")
    }
    let files = GroupFiles(version: .v1, directory: MemoryGroup.join(own.directories[0], "purgeable-support-\(getpid())"))
    let error = files.make()
    if error != 0 { try Test.cancel("no group: \(SystemError.text(error))") }
    defer { #expect(files.remove()) }
    #expect(files.setLimit(64 << 20) == 0)
    #expect(files.usageBytes != nil && files.killCount != nil)
    let child = try ChildProcess.run("/bin/sh", ["-c", "echo 0 > \(files.processes) && cat /proc/self/cgroup"])
    #expect(child.end == .exited(0), "\(child.errors)")
    #expect(child.output.contains("/purgeable-support-\(getpid())\n"))
  }

  @Test("a group that cannot be made is refused with a reason, and nothing is left of the attempt")
  func refusedGroups() throws {
    func refusal(_ group: MemoryGroup?) -> String {
      do throws(PressureGroup.Refusal) {
        _ = try PressureGroup(inside: group, for: "test")
        return ""
      } catch {
        return error.reason
      }
    }
    #expect(refusal(nil).contains("no memory group"))
    // Directories without control files: made, found to be no groups, removed.
    let root = try FakeRoot([
      "own/memory.usage_in_bytes": "5\n", "v2/cgroup.subtree_control": "cpu memory\n", "v3/cgroup.procs": "1\n",
    ])
    defer { root.remove() }
    func group(_ version: MemoryGroup.Version, _ name: String, isOwn: Bool = true) -> MemoryGroup {
      MemoryGroup(version: version, path: "/x", directories: [root.path + "/" + name], isOwnDirectory: isOwn)
    }
    #expect(refusal(group(.v1, "own", isOwn: false)).contains("around"))
    #expect(refusal(group(.v1, "own")).contains("does not account"))
    #expect(refusal(group(.v1, "missing")).contains("No such file"))
    #expect(refusal(group(.v2, "v2")).contains("does not account"))
    #expect(refusal(group(.v2, "v3")).contains("shared"))
    for name in ["own", "v2", "v3"] {
      #expect(try FileManager.default.contentsOfDirectory(atPath: root.path + "/" + name).count == 1)
    }
  }
}
