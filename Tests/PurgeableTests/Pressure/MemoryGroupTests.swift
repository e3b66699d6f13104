// SPDX-License-Identifier: MIT
// The control group of a process and its limits, on machines as they are found in the field.

import PurgeableTestSupport
import Testing

@testable import Purgeable

@Suite("memory groups")
struct MemoryGroupTests {
  @Test("version 2: a limit on a group around ours is ours")
  func unified() throws {
    let root = try FakeRoot(FieldMachine.unified)
    defer { root.remove() }
    let group = try #require(MemoryGroup.current(root: root.path))
    #expect(group.version == .v2)
    #expect(group.path == "/app.slice/web.service")
    #expect(group.isOwnDirectory)
    let top = root.path + "/sys/fs/cgroup"
    #expect(group.directories == [top + "/app.slice/web.service", top + "/app.slice", top])
    #expect(group.limitBytes == 1_073_741_824)
    #expect(group.usageBytes == 50_000_000)
    #expect(group.inactiveFileBytes == 20_000_000)
    #expect(group.workingSetBytes == 30_000_000)
    let tightest = try #require(group.tightest())
    #expect(tightest.directory == top + "/app.slice")
    #expect(tightest.usageBytes == 900_000_000)
    #expect(tightest.roomBytes == 173_741_824)
    #expect(tightest.workingSetBytes == 800_000_000)
  }

  @Test("version 2 in a namespace: the mount's root is our group, and memory.high is a limit")
  func namespaced() throws {
    let root = try FakeRoot(FieldMachine.namespaced)
    defer { root.remove() }
    let group = try #require(MemoryGroup.current(root: root.path))
    #expect(group.directories == [root.path + "/sys/fs/cgroup"])
    #expect(group.isOwnDirectory)
    #expect(group.limitBytes == 402_653_184)
    #expect(group.levels().first?.hardLimitBytes == 536_870_912)
    #expect(group.workingSetBytes == 100_000_000)
  }

  @Test("version 1 in a container: the limit of groups that have no directory here")
  func version1Container() throws {
    let root = try FakeRoot(FieldMachine.version1Container)
    defer { root.remove() }
    let group = try #require(MemoryGroup.current(root: root.path))
    #expect(group.version == .v1)
    #expect(group.directories == [root.path + "/sys/fs/cgroup/memory"])
    #expect(group.isOwnDirectory)
    #expect(group.limitBytes == 2_147_483_648)
    #expect(group.workingSetBytes == 200_000_000)
  }

  @Test("version 1, nested: the smallest limit counts, and the least room; spaces in the mount point are read")
  func version1Nested() throws {
    let root = try FakeRoot(FieldMachine.version1Nested)
    defer { root.remove() }
    let group = try #require(MemoryGroup.current(root: root.path))
    #expect(group.directories.count == 3)
    #expect(group.limitBytes == 300_000_000)
    #expect(group.workingSetBytes == 0)
    #expect(group.tightest()?.directory == root.path + "/my groups/memory/outer")
    #expect(group.tightest()?.roomBytes == 10_000_000)
  }

  @Test("version 1: a group that does not count what is inside of it does not limit it")
  func version1WithoutHierarchy() throws {
    let root = try FakeRoot(FieldMachine.version1Nested)
    defer { root.remove() }
    try root.write("my groups/memory/outer/memory.use_hierarchy", "0\n")
    let group = try #require(MemoryGroup.current(root: root.path))
    #expect(group.levels().count == 1)
    #expect(group.tightest()?.limitBytes == 300_000_000)
  }

  @Test("no limit anywhere")
  func unlimited() throws {
    let root = try FakeRoot(FieldMachine.unified)
    defer { root.remove() }
    try root.write("sys/fs/cgroup/app.slice/memory.max", "max\n")
    let group = try #require(MemoryGroup.current(root: root.path))
    #expect(group.limitBytes == nil)
    #expect(group.tightest() == nil)
  }

  @Test("a group whose directory is not visible: the groups around it still count, and it says so")
  func partlyVisible() throws {
    var files = FieldMachine.unified
    for name in files.keys where name.contains("web.service") { files[name] = nil }
    files["proc/self/cgroup"] = "0::/app.slice/web.service\n"
    let root = try FakeRoot(files)
    defer { root.remove() }
    let group = try #require(MemoryGroup.current(root: root.path))
    #expect(!group.isOwnDirectory)
    #expect(group.directories.count == 2)
    #expect(group.limitBytes == 1_073_741_824)
  }

  @Test("a mount that shows our own group is preferred to one that does not")
  func twoMounts() throws {
    let root = try FakeRoot(FieldMachine.unified)
    defer { root.remove() }
    try root.write("elsewhere/cgroup.controllers", "")
    let mounts = try #require(FieldMachine.unified["proc/self/mountinfo"])
    try root.write("proc/self/mountinfo", "29 23 0:26 / /elsewhere rw - cgroup2 cgroup2 rw\n" + mounts)
    let group = try #require(MemoryGroup.current(root: root.path))
    #expect(group.isOwnDirectory)
    #expect(group.directories.last == root.path + "/sys/fs/cgroup")
  }

  @Test("nothing to be found: no /proc, no controller, a mount that is not there, a group outside of what is mounted")
  func missing() throws {
    let empty = try FakeRoot()
    defer { empty.remove() }
    #expect(MemoryGroup.current(root: empty.path) == nil)
    try empty.write("proc/self/cgroup", "0::/\n")
    #expect(MemoryGroup.current(root: empty.path) == nil)
    let unmounted = try FakeRoot(FieldMachine.unified.filter { $0.key.hasPrefix("proc/") })
    defer { unmounted.remove() }
    #expect(MemoryGroup.current(root: unmounted.path) == nil)
    let outside = try FakeRoot(FieldMachine.version1Container)
    defer { outside.remove() }
    try outside.write("proc/self/cgroup", "9:memory:/docker/other\n")
    #expect(MemoryGroup.current(root: outside.path) == nil)
    let garbage = try FakeRoot(["proc/self/cgroup": "\n:::\nx\n0::\n", "proc/self/mountinfo": "1 2 3\n - \n\u{0}\n"])
    defer { garbage.remove() }
    #expect(MemoryGroup.current(root: garbage.path) == nil)
  }

  @Test(
    "from a mount's root to a group, as namespaces show them",
    arguments: [
      ("/a/b", "/", ["a", "b"], false), ("/a/b", "/a", ["b"], false), ("/a", "/a", [], false), ("/", "/", [], false),
      // The mount was made outside of our namespace, or our group was moved out of it.
      ("/../sibling", "/..", ["sibling"], false), ("/", "/..", [], true), ("/own", "/../..", [], true),
      ("/../sibling", "/../..", [], true),
    ])
  func steps(path: String, hierarchyRoot: String, names: [String], isHidden: Bool) throws {
    let found = try #require(try Self.find(path, below: hierarchyRoot, names: names))
    #expect(found.directories.count == names.count + 1)
    #expect(found.directories[0].hasSuffix((["/groups"] + names).joined(separator: "/")))
    #expect(found.isOwnDirectory == !isHidden)
  }

  @Test("no way from a mount's root to a group", arguments: [("/ab", "/a"), ("/", "/a"), ("/../x", "/"), ("/../../x", "/..")])
  func noSteps(path: String, hierarchyRoot: String) throws {
    #expect(try Self.find(path, below: hierarchyRoot, names: []) == nil)
  }

  /// The group at a path of a hierarchy of which a part is mounted.
  private static func find(_ path: String, below hierarchyRoot: String, names: [String]) throws -> MemoryGroup? {
    let root = try FakeRoot([
      "proc/self/cgroup": "0::\(path)\n",
      "proc/self/mountinfo": "29 23 0:26 \(hierarchyRoot) /groups rw - cgroup2 cgroup2 rw\n",
      (["groups"] + names + ["memory.max"]).joined(separator: "/"): "max\n",
    ])
    defer { root.remove() }
    return MemoryGroup.current(root: root.path)
  }

  @Test("the real machine: usage is not more than the machine has")
  func real() throws {
    let group = try #require(MemoryGroup.current(), "no memory group is visible here")
    let memory = try #require(MachineMemory.current())
    let usage = group.usageBytes ?? memory.totalBytes
    #expect(usage > 0 && usage <= memory.totalBytes + memory.swapTotalBytes)
  }
}
