// SPDX-License-Identifier: MIT
// The memory control group (cgroup) of this process: which one it is, what it may use, what it uses.
//
//   /proc/self/cgroup      4:memory:/pod/app        the group's path in its hierarchy, seen from our namespace
//   /proc/self/mountinfo   ... /pod /sys/fs/...     what part of the hierarchy is mounted, and where
//                          -----------------
//                          /sys/fs/.../app          our own directory, and from it upward every one that also limits us:
//                          /sys/fs/...              a group may not use more than any group around it
//
// A container sees only part of that: often its own directory as the mount's root, sometimes only an outer one.

import Glibc

/// The memory group this process belongs to. A value that names directories; each property reads files anew.
///
/// Not for frequent use: a reading costs some 10 system calls for each level of nesting. Any thread.
package struct MemoryGroup: Equatable, Sendable {
  /// Which generation of control groups keeps the memory accounts.
  package enum Version: Int, Sendable {
    case v1 = 1
    case v2 = 2
  }

  /// One group that limits us: our own or one around it. Bytes.
  package struct Level: Equatable, Sendable {
    package var directory: String
    /// Above this the kernel reclaims from the group, and kills when it cannot: `memory.max`, `memory.limit_in_bytes`.
    package var hardLimitBytes: UInt64?
    /// Above this the kernel reclaims and slows the group down: `memory.high`. Version 1 has none.
    package var highLimitBytes: UInt64?
    package var usageBytes: UInt64?
    /// Of the usage, what the kernel would take first. Memory on offer is in here, also after it was locked again.
    package var inactiveFileBytes: UInt64?
    /// Of the usage, pages of files on disk.
    package var pageCacheBytes: UInt64?

    /// The bound that is met first.
    package var limitBytes: UInt64? {
      guard let hardLimitBytes, let highLimitBytes else { return hardLimitBytes ?? highLimitBytes }
      return min(hardLimitBytes, highLimitBytes)
    }

    /// What container tools call the working set: usage less what is inactive and backed by files, or on offer.
    package var workingSetBytes: UInt64? {
      guard let usageBytes else { return nil }
      return usageBytes - min(usageBytes, inactiveFileBytes ?? 0)
    }

    /// How much more the group may use before its bound is met; nil without a bound.
    package var roomBytes: UInt64? {
      guard let limitBytes else { return nil }
      return limitBytes - min(limitBytes, usageBytes ?? 0)
    }

    /// How much more the group may use when its page cache gives way; nil without a bound.
    package var roomWithPageCacheBytes: UInt64? {
      guard let limitBytes, let usageBytes else { return nil }
      let firm = usageBytes - min(usageBytes, pageCacheBytes ?? 0)
      return limitBytes - min(limitBytes, firm)
    }
  }

  package let version: Version

  /// The path that /proc/self/cgroup names, "/" at the root of the hierarchy or of the namespace.
  package let path: String

  /// Our own directory first, then those around it up to the mount point. Never empty.
  package let directories: [String]

  /// Whether `directories` begins with our own group. False where only groups around it are visible.
  package let isOwnDirectory: Bool

  /// Finds the group of this process. `root` stands in front of every path, for tests.
  ///
  /// nil where there is none to be found: no /proc, no memory controller, or the group is outside of what is mounted here.
  package static func current(root: String = "/") -> MemoryGroup? {
    current(root: root, versions: [.v1, .v2])
  }

  /// The version 2 group of this process, also where version 1 keeps the memory accounts: stalls (PSI) are counted here in any case.
  package static func currentUnified(root: String = "/") -> MemoryGroup? {
    current(root: root, versions: [.v2])
  }

  private static func current(root: String, versions: [Version]) -> MemoryGroup? {
    guard
      let memberships = SmallFile.text(join(root, "proc/self/cgroup")),
      // A host with thousands of containers has a long list of mounts.
      let mounts = SmallFile.text(join(root, "proc/self/mountinfo"), limit: 8 << 20)
    else { return nil }
    return find(memberships: memberships, mounts: mounts, root: root, versions: versions)
  }

  /// Whether a directory is the root of its whole hierarchy, and not only of what a container sees of it: there, what concerns the
  /// group concerns the machine.
  package static func isHierarchyRoot(_ directory: String, _ version: Version) -> Bool {
    switch version {
    case .v1: unsafe access(directory + "/release_agent", F_OK) == 0
    case .v2: unsafe access(directory + "/cgroup.type", F_OK) != 0 && access(directory + "/cgroup.procs", F_OK) == 0
    }
  }

  /// The smallest bound that holds for us, own or around us; nil when there is none.
  package var limitBytes: UInt64? {
    levels().compactMap(\.limitBytes).min()
  }

  /// What our own group uses, everything in it: other processes, page cache, kernel memory.
  package var usageBytes: UInt64? {
    level(of: directories[0]).usageBytes
  }

  /// Of the usage, the part that is inactive and backed by files, or on offer.
  package var inactiveFileBytes: UInt64? {
    level(of: directories[0]).inactiveFileBytes
  }

  /// What container tools call the working set of our own group.
  package var workingSetBytes: UInt64? {
    level(of: directories[0]).workingSetBytes
  }

  /// The group with the least room left, own or around us; nil when none has a bound. Limit and usage are of the same group,
  /// so that they may be compared.
  package func tightest() -> Level? {
    levels().compactMap { level in level.roomBytes.map { (level, $0) } }.min { $0.1 < $1.1 }?.0
  }

  /// Every level that limits us, own first.
  package func levels() -> [Level] {
    // Before 5.11 a version 1 group could be told not to count what is inside of it: then it does not limit us.
    let limiting = directories.enumerated().prefix { index, directory in
      index == 0 || version == .v2 || SmallFile.number(directory + "/memory.use_hierarchy") != 0
    }
    return limiting.map { level(of: $1) }
  }

  private func level(of directory: String) -> Level {
    func file(_ name: String) -> String { directory + "/" + name }
    let stat = SmallFile.text(file("memory.stat")) ?? ""
    switch version {
    case .v1:
      // Version 1 also tells the smallest limit around a group. Only the outermost needs it: what is around that one has no
      // directory here.
      let own = SmallFile.number(file("memory.limit_in_bytes"))
      let inherited = directory == directories.last ? SmallFile.number(after: "hierarchical_memory_limit", in: stat) : nil
      return Level(
        directory: directory, hardLimitBytes: [own, inherited].compactMap { $0 }.filter(Self.isBound).min(),
        usageBytes: SmallFile.number(file("memory.usage_in_bytes")),
        inactiveFileBytes: SmallFile.number(after: "total_inactive_file", in: stat),
        pageCacheBytes: Self.difference("total_cache", "total_shmem", in: stat))
    case .v2:
      return Level(
        directory: directory, hardLimitBytes: SmallFile.number(file("memory.max")),
        highLimitBytes: SmallFile.number(file("memory.high")), usageBytes: SmallFile.number(file("memory.current")),
        inactiveFileBytes: SmallFile.number(after: "inactive_file", in: stat),
        pageCacheBytes: Self.difference("file", "shmem", in: stat))
    }
  }

  private static func difference(_ whole: String, _ part: String, in stat: String) -> UInt64? {
    guard let whole = SmallFile.number(after: whole, in: stat) else { return nil }
    return whole - min(whole, SmallFile.number(after: part, in: stat) ?? 0)
  }

  /// Version 1 writes "no limit" as the largest whole number of pages in a signed 64-bit number.
  private static func isBound(_ limit: UInt64) -> Bool { limit < 1 << 62 }
}
