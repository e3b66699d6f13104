// SPDX-License-Identifier: MIT
// The memory control group (cgroup) of this process: its place, its limit, its usage.
//
//   /proc/self/cgroup      4:memory:/pod/app        the group's path in its hierarchy, seen from our namespace
//   /proc/self/mountinfo   ... /pod /sys/fs/...     what part of the hierarchy is mounted, and where
//                          -----------------
//                          /sys/fs/.../app          our own directory, and from it upward every one that also limits us:
//                          /sys/fs/...              a group may not use more than any group around it
//
// A container sees only part of that: often its own directory as the mount's root, sometimes only an outer one.

import CPurgeablePressure
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
    /// The part of the usage that the kernel would take first. It includes memory on offer, also after that was locked again.
    package var inactiveFileBytes: UInt64?
    /// The part of the usage that is pages of files on disk.
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

  package init(version: Version, path: String, directories: [String], isOwnDirectory: Bool) {
    assert(!directories.isEmpty, "MemoryGroup: no directory")
    (self.version, self.path) = (version, path)
    (self.directories, self.isOwnDirectory) = (directories, isOwnDirectory)
  }

  /// Finds the group of this process. `root` stands in front of every path, for tests.
  ///
  /// nil where there is none to be found: no /proc, no memory controller, or the group is outside of what is mounted here.
  package static func current(root: String = "/") -> MemoryGroup? {
    current(root: root, versions: [.v1, .v2])
  }

  /// The version 2 group of this process, also where version 1 keeps the memory accounts: stalls (PSI) are counted here in any
  /// case.
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

  /// Whether a directory is the root of its whole hierarchy, and not only of the part that a container sees. If so, facts about
  /// the group are facts about the machine.
  package static func isHierarchyRoot(_ directory: String, _ version: Version) -> Bool {
    switch version {
    case .v1: unsafe access(directory + "/release_agent", F_OK) == 0
    case .v2: unsafe access(directory + "/cgroup.type", F_OK) != 0 && access(directory + "/cgroup.procs", F_OK) == 0
    }
  }

  /// The smallest bound that holds for us, own or around us; nil when there is none.
  package var limitBytes: UInt64? {
    var smallest: UInt64?
    forEachLevel { level in
      if let limit = level.limitBytes { smallest = min(smallest ?? .max, limit) }
    }
    return smallest
  }

  /// What our own group uses, everything in it: other processes, page cache, kernel memory.
  package var usageBytes: UInt64? {
    level(0).usageBytes
  }

  /// Of the usage, the part that is inactive and backed by files, or on offer.
  package var inactiveFileBytes: UInt64? {
    level(0).inactiveFileBytes
  }

  /// What container tools call the working set of our own group.
  package var workingSetBytes: UInt64? {
    level(0).workingSetBytes
  }

  /// The group with the least room left, own or around us; nil when none has a bound. Limit and usage are of the same group,
  /// so that they may be compared. Takes no memory.
  package func tightest() -> Level? {
    var tightest: (level: Level, room: UInt64)?
    forEachLevel { level in
      guard let room = level.roomBytes else { return }
      if let known = tightest, known.room <= room { return }
      tightest = (level, room)
    }
    return tightest?.level
  }

  /// Every level that limits us, own first.
  package func levels() -> [Level] {
    var levels: [Level] = []
    forEachLevel { levels.append($0) }
    return levels
  }

  /// Reads the levels that limit us one after the other, own first. Takes no memory: it is called when there is none.
  package func forEachLevel(_ body: (Level) -> Void) {
    for index in directories.indices {
      // Before 5.11 a version 1 group could be told not to count the groups inside it. Such a group does not limit us, and
      // neither do the groups around it.
      if index > 0, version == .v1, SmallFile.number("memory.use_hierarchy", in: directories[index]) == 0 { return }
      body(level(index))
    }
  }

  private func level(_ index: Int) -> Level {
    var numbers = purgeable__group_memory_t()
    // Lent with a zero behind it, for the length of the call.
    unsafe directories[index].withCString { directory in
      unsafe purgeable__read_group_memory(directory, Int32(version.rawValue), index == directories.count - 1, &numbers)
    }
    return Level(
      directory: directories[index], hardLimitBytes: SmallFile.known(numbers.hard_limit),
      highLimitBytes: SmallFile.known(numbers.high_limit), usageBytes: SmallFile.known(numbers.usage),
      inactiveFileBytes: SmallFile.known(numbers.inactive_file), pageCacheBytes: SmallFile.known(numbers.page_cache))
  }
}

/// Our group, kept for as long as /proc/self/cgroup is unchanged: a look-up takes memory, for a list of mounts that may be
/// long.
struct KnownGroup: Sendable {
  private var found: MemoryGroup?
  private var membership: String?
  private var isKnown = false

  /// The group as of now, as far as there is memory to look up another one.
  mutating func current(root: String = "/") -> MemoryGroup? {
    if isKnown, let membership, SmallFile.says(membership, "proc/self/cgroup", in: root) == true { return found }
    guard MemoryReserve.isThere(MemoryReserve.ofLookups) else { return found }
    membership = SmallFile.text(MemoryGroup.join(root, "proc/self/cgroup"))
    found = MemoryGroup.current(root: root)
    isKnown = true
    return found
  }
}
