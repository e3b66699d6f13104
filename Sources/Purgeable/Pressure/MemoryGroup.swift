// SPDX-License-Identifier: MIT
// The memory control group (cgroup) of this process: its place, its limit, its usage, as the core reads them (group.c).

import CPurgeable
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
    /// False where a limit could not be read for now, for want of a descriptor.
    package var isSure = true

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

  /// Our own directory first, then those around it that limit us, up to the mount point. Never empty.
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
    look(root: root, PURGEABLE_GROUP_ANY_VERSION).group
  }

  /// The version 2 group of this process, also where version 1 keeps the memory accounts: stalls (PSI) are counted here in any
  /// case.
  package static func currentUnified(root: String = "/") -> MemoryGroup? {
    look(root: root, PURGEABLE_GROUP_VERSION_2).group
  }

  /// `isSure`: another look would find the same. Not where a descriptor was short.
  fileprivate static func look(root: String, _ leastVersion: Int32) -> (group: MemoryGroup?, isSure: Bool) {
    let room = Int(PURGEABLE_GROUP_ROOM)
    // Lent to the group for as long as it is used.
    return unsafe withUnsafeTemporaryAllocation(of: CChar.self, capacity: 2 * room) { bytes in
      var group = unsafe purgeable_group_t(
        path: bytes.baseAddress!, directory: bytes.baseAddress! + room, mount_length_bytes: 0, version: 0, is_own: false)
      let error = unsafe purgeable_group_find(root == "/" ? "" : root, leastVersion, &group)
      guard error == 0, let version = unsafe Version(rawValue: Int(group.version)) else { return (nil, error == ESRCH) }
      let (path, isOwn) = unsafe (String(cString: group.path), group.is_own)
      var directories: [String] = []
      repeat { unsafe directories.append(String(cString: group.directory)) } while unsafe purgeable_group_leave(&group) == 0
      return (MemoryGroup(version: version, path: path, directories: directories, isOwnDirectory: isOwn), true)
    }
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
    for index in directories.indices { body(level(index)) }
  }

  private func level(_ index: Int) -> Level {
    var limits = purgeable_group_limits_t()
    var use = purgeable_group_use_t()
    var isSure = true
    let isOutermost = index == directories.count - 1
    // Lent with a zero behind it, for the length of the calls, which only read it.
    unsafe directories[index].withCString { directory in
      let bytes = unsafe UnsafeMutablePointer(mutating: directory)
      var group = unsafe purgeable_group_t(
        path: bytes, directory: bytes, mount_length_bytes: isOutermost ? strlen(directory) : 0, version: Int32(version.rawValue),
        is_own: false)
      isSure = unsafe purgeable_group_read_limits(&group, &limits) == 0
      unsafe purgeable_group_read_use(&group, &use)
    }
    return Level(
      directory: directories[index], hardLimitBytes: SmallFile.known(limits.hard_bytes),
      highLimitBytes: SmallFile.known(limits.high_bytes), usageBytes: SmallFile.known(use.bytes),
      inactiveFileBytes: SmallFile.known(use.inactive_file_bytes), pageCacheBytes: SmallFile.known(use.page_cache_bytes),
      isSure: isSure)
  }

  /// Two parts of a path with exactly one slash between them.
  package static func join(_ front: String, _ back: String) -> String {
    let tail = back.drop { $0 == "/" }
    if tail.isEmpty { return front }
    return front.hasSuffix("/") ? front + tail : front + "/" + tail
  }
}

/// Our group, kept for as long as /proc/self/cgroup is unchanged: a look-up takes memory, for a list of mounts that may be
/// long.
struct KnownGroup: Sendable {
  private var found: MemoryGroup?
  private var membership: String?
  /// Whether the last look found what is there.
  private(set) var isSure = false

  /// The group as of now, as far as there is memory to look up another one, and a descriptor.
  mutating func current(root: String = "/") -> MemoryGroup? {
    if isSure, let membership, SmallFile.says(membership, "proc/self/cgroup", in: root) == true { return found }
    guard MemoryReserve.isThere(MemoryReserve.ofLookups) else { return found }
    let membership = SmallFile.text(MemoryGroup.join(root, "proc/self/cgroup"))
    let look = MemoryGroup.look(root: root, PURGEABLE_GROUP_ANY_VERSION)
    isSure = look.isSure
    if look.isSure { (found, self.membership) = (look.group, membership) }
    return found
  }
}
