// SPDX-License-Identifier: MIT
// From the text of /proc/self/cgroup and /proc/self/mountinfo to directories. Formats: cgroups(7), proc(5).

import Glibc

extension MemoryGroup {
  /// One line of /proc/self/mountinfo that mounts a hierarchy with memory accounts.
  struct Mount: Equatable {
    var version: Version
    /// The part of the hierarchy that is mounted, as a path in it seen from our namespace.
    var hierarchyRoot: String
    var mountPoint: String
  }

  /// The group's path in each hierarchy that may keep memory accounts, from lines `ID:CONTROLLERS:PATH`.
  static func paths(memberships: String) -> [Version: String] {
    var found: [Version: String] = [:]
    for line in memberships.split(separator: "\n") {
      let fields = line.split(separator: ":", maxSplits: 2, omittingEmptySubsequences: false)
      guard fields.count == 3, fields[2].hasPrefix("/") else { continue }
      if fields[0] == "0" && fields[1].isEmpty {
        found[.v2] = String(fields[2])
      } else if fields[1].split(separator: ",").contains("memory") {
        found[.v1] = String(fields[2])
      }
    }
    return found
  }

  /// The mounts of memory hierarchies, from lines `ID PARENT DEVICE ROOT POINT OPTIONS [MORE...] - TYPE SOURCE SUPEROPTIONS`.
  static func memoryMounts(mountinfo: String) -> [Mount] {
    mountinfo.split(separator: "\n").compactMap { line in
      let words = line.split(separator: " ")
      // The optional fields vary in number; a dash ends them.
      guard let dash = words.dropFirst(6).firstIndex(of: "-"), let options = words.last, words.count > dash + 1 else {
        return nil
      }
      let version: Version
      if words[dash + 1] == "cgroup2" {
        version = .v2
      } else if words[dash + 1] == "cgroup", options.split(separator: ",").contains("memory") {
        version = .v1
      } else {
        return nil
      }
      return Mount(version: version, hierarchyRoot: unescape(words[3]), mountPoint: unescape(words[4]))
    }
  }

  /// The group that the two files describe, or nil. Version 1 is tried first: while its memory controller is in use, that of
  /// version 2 is not. Otherwise version 1 has no line for it.
  static func find(
    memberships: String, mounts: String, root: String, versions: [Version] = [.v1, .v2]
  ) -> MemoryGroup? {
    let paths = paths(memberships: memberships)
    let mounts = memoryMounts(mountinfo: mounts)
    for version in versions {
      guard let path = paths[version] else { continue }
      let groups = mounts.filter { $0.version == version }.compactMap { group(version, path: path, mount: $0, root: root) }
      // A mount that shows our own directory tells more than one that shows only the groups around it.
      if let group = groups.first(where: \.isOwnDirectory) ?? groups.first { return group }
    }
    return nil
  }

  private static func group(_ version: Version, path: String, mount: Mount, root: String) -> MemoryGroup? {
    let top = join(root, mount.mountPoint)
    guard isDirectory(top), let below = components(of: path, below: mount.hierarchyRoot) else { return nil }
    var visible = [top]
    var isOwn = !below.isHidden
    for component in below.names {
      let next = join(visible[visible.count - 1], component)
      // The hierarchy that the container sees may end early; the groups above still limit us.
      guard isDirectory(next) else {
        isOwn = false
        break
      }
      visible.append(next)
    }
    return MemoryGroup(version: version, path: path, directories: visible.reversed(), isOwnDirectory: isOwn)
  }

  /// The steps from a mount's root down to a group. nil where the group is not below it; `isHidden` where it is below it by a
  /// way that our namespace does not name ("/.." is the mount's root, "/" is our group: some unnamed child of it).
  static func components(of path: String, below hierarchyRoot: String) -> (names: [String], isHidden: Bool)? {
    let path = path.split(separator: "/").map(String.init)
    let top = hierarchyRoot.split(separator: "/").map(String.init)
    let common = zip(path, top).prefix { $0 == $1 }.count
    if common == top.count {
      let rest = path[common...]
      return rest.contains("..") ? nil : (Array(rest), false)
    }
    // The rest of the root is "..": the root lies around our namespace, so around our group.
    return top[common...].allSatisfy { $0 == ".." } && common == path.prefix { $0 == ".." }.count ? ([], true) : nil
  }

  /// Mountinfo writes space, tab, newline and backslash as a backslash and three octal digits.
  static func unescape(_ word: Substring) -> String {
    guard word.utf8.contains(UInt8(ascii: "\\")) else { return String(word) }
    let bytes = Array(word.utf8)
    var plain: [UInt8] = []
    var index = 0
    while index < bytes.count {
      let digits = bytes[index...].dropFirst().prefix(3)
      if bytes[index] == UInt8(ascii: "\\"), digits.count == 3, digits.allSatisfy({ (0x30...0x37).contains($0) }) {
        plain.append(UInt8(truncatingIfNeeded: digits.reduce(0) { $0 * 8 + Int($1 - 0x30) }))
        index += 4
      } else {
        plain.append(bytes[index])
        index += 1
      }
    }
    return String(decoding: plain, as: UTF8.self)
  }

  /// Two parts of a path with exactly one slash between them.
  package static func join(_ front: String, _ back: String) -> String {
    let tail = back.drop { $0 == "/" }
    if tail.isEmpty { return front }
    return front.hasSuffix("/") ? front + tail : front + "/" + tail
  }

  private static func isDirectory(_ path: String) -> Bool {
    var status = stat()
    return unsafe stat(path, &status) == 0 && status.st_mode & S_IFMT == S_IFDIR
  }
}
