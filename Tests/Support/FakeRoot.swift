// SPDX-License-Identifier: MIT
// A directory that stands in for "/": files under proc and sys as a test wants them.

import Foundation

/// The directory stays until `remove` is called: an object's deinit would come right after its last use, with the path still in
/// use.
public struct FakeRoot: Sendable {
  public let path: String

  /// Makes a directory and writes `files`, by path without a leading slash.
  public init(_ files: [String: String] = [:]) throws {
    let directory = FileManager.default.temporaryDirectory.appendingPathComponent("purgeable-\(UUID().uuidString)")
    try FileManager.default.createDirectory(at: directory, withIntermediateDirectories: true)
    path = directory.path
    for (name, text) in files { try write(name, text) }
  }

  public func remove() {
    try? FileManager.default.removeItem(atPath: path)
  }

  public func write(_ name: String, _ text: String) throws {
    let url = URL(fileURLWithPath: path).appendingPathComponent(name)
    try FileManager.default.createDirectory(at: url.deletingLastPathComponent(), withIntermediateDirectories: true)
    try Data(text.utf8).write(to: url)
  }

  /// Makes a symbolic link; its target need not exist.
  public func link(_ name: String, _ destination: String) throws {
    let url = URL(fileURLWithPath: path).appendingPathComponent(name)
    try FileManager.default.createDirectory(at: url.deletingLastPathComponent(), withIntermediateDirectories: true)
    try FileManager.default.createSymbolicLink(atPath: url.path, withDestinationPath: destination)
  }
}

/// Machines as they are found in the field: the content of /proc/self/cgroup and mountinfo, and the groups' files.
public enum FieldMachine {
  static let otherMounts = """
    22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
    24 22 0:22 / /proc rw,nosuid shared:13 - proc proc rw

    """

  /// Version 2 on a host, two levels deep, the limit on the outer one.
  public static let unified: [String: String] = [
    "proc/self/cgroup": "0::/app.slice/web.service\n",
    "proc/self/mountinfo": otherMounts
      + "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 master:2 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot\n",
    "sys/fs/cgroup/cgroup.controllers": "cpu memory pids\n",
    "sys/fs/cgroup/memory.stat": "anon 1\ninactive_file 7\n",
    "sys/fs/cgroup/app.slice/memory.max": "1073741824\n",
    "sys/fs/cgroup/app.slice/memory.high": "max\n",
    "sys/fs/cgroup/app.slice/memory.current": "900000000\n",
    "sys/fs/cgroup/app.slice/memory.stat": "anon 5\ninactive_file 100000000\nactive_file 3\n",
    "sys/fs/cgroup/app.slice/web.service/memory.max": "max\n",
    "sys/fs/cgroup/app.slice/web.service/memory.high": "max\n",
    "sys/fs/cgroup/app.slice/web.service/memory.current": "50000000\n",
    "sys/fs/cgroup/app.slice/web.service/memory.stat": "anon 5\ninactive_file_extra 9\ninactive_file 20000000\n",
  ]

  /// Version 2 in a container with a namespace of its own: the group is the root of all that can be seen.
  public static let namespaced: [String: String] = [
    "proc/self/cgroup": "0::/\n",
    "proc/self/mountinfo": otherMounts + "841 832 0:26 / /sys/fs/cgroup ro,nosuid,nodev,noexec,relatime - cgroup2 cgroup rw\n",
    "sys/fs/cgroup/memory.max": "536870912\n",
    "sys/fs/cgroup/memory.high": "402653184\n",
    "sys/fs/cgroup/memory.current": "104857600\n",
    "sys/fs/cgroup/memory.stat": "inactive_file 4857600\n",
  ]

  /// Version 1 in a container without a namespace: only the container's own part of the hierarchy is mounted.
  public static let version1Container: [String: String] = [
    "proc/self/cgroup": """
    11:cpu,cpuacct:/docker/abc
    9:memory:/docker/abc
    1:name=systemd:/docker/abc
    0::/system.slice/containerd.service

    """,
    "proc/self/mountinfo": otherMounts + """
      512 511 0:25 /docker/abc /sys/fs/cgroup/cpu,cpuacct ro,nosuid - cgroup cgroup rw,cpu,cpuacct
      520 511 0:33 /docker/abc /sys/fs/cgroup/memory ro,nosuid master:19 - cgroup cgroup rw,memory
      521 511 0:34 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw

      """,
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    "sys/fs/cgroup/memory/memory.usage_in_bytes": "300000000\n",
    "sys/fs/cgroup/memory/memory.stat": """
    cache 1
    inactive_file 1
    hierarchical_memory_limit 2147483648
    total_inactive_file 100000000

    """,
    "sys/fs/cgroup/unified/cgroup.procs": "",
  ]

  /// Version 1, a group inside of a limited group, and the hierarchy mounted where a space is in the name.
  public static let version1Nested: [String: String] = [
    "proc/self/cgroup": "4:memory:/outer/inner\n0::/\n",
    "proc/self/mountinfo": otherMounts + #"35 31 0:32 / /my\040groups/memory rw,relatime - cgroup cgroup rw,memory"# + "\n",
    "my groups/memory/memory.limit_in_bytes": "9223372036854771712\n",
    "my groups/memory/memory.usage_in_bytes": "8000000000\n",
    "my groups/memory/memory.use_hierarchy": "1\n",
    "my groups/memory/memory.stat": "hierarchical_memory_limit 9223372036854771712\n",
    "my groups/memory/outer/memory.limit_in_bytes": "400000000\n",
    "my groups/memory/outer/memory.usage_in_bytes": "390000000\n",
    "my groups/memory/outer/memory.use_hierarchy": "1\n",
    "my groups/memory/outer/memory.stat": "hierarchical_memory_limit 400000000\n",
    "my groups/memory/outer/inner/memory.limit_in_bytes": "300000000\n",
    "my groups/memory/outer/inner/memory.usage_in_bytes": "20000000\n",
    "my groups/memory/outer/inner/memory.stat": "hierarchical_memory_limit 300000000\ntotal_inactive_file 30000000\n",
  ]
}
