// SPDX-License-Identifier: MIT
// One memory group (cgroup) by its files: making and removing it, its limit, what it uses, whom it had to kill.

import Glibc
import Purgeable

/// A memory group's directory. A value; each property reads a file anew.
package struct GroupFiles: Equatable, Sendable {
  package var version: MemoryGroup.Version
  package var directory: String

  package init(version: MemoryGroup.Version, directory: String) {
    self.version = version
    self.directory = directory
  }

  package func file(_ name: String) -> String { MemoryGroup.join(directory, name) }

  /// A process that writes 0 to it moves into the group.
  package var processes: String { file("cgroup.procs") }

  // MARK: Life

  /// Makes the group's directory. 0 or an errno.
  package func make() -> Int32 { unsafe mkdir(directory, 0o755) == 0 ? 0 : errno }

  /// Moves this process into the group. 0 or an errno.
  package func enter() -> Int32 { Self.write("0", to: processes) }

  /// Removes the group; its processes have to be gone. False when it is still there.
  package func remove() -> Bool {
    // A process that was waited for can be in its group for a moment longer.
    patiently(seconds: 5) { unsafe rmdir(directory) == 0 || errno == ENOENT }
  }

  // MARK: What it tells

  /// Everything that the group uses.
  package var usageBytes: UInt64? {
    SmallFile.number(file(version == .v1 ? "memory.usage_in_bytes" : "memory.current"))
  }

  /// Usage less what the kernel would take first: cached files and memory on offer.
  package var workingSetBytes: UInt64? {
    guard let usage = usageBytes, let text = SmallFile.text(file("memory.stat")) else { return nil }
    let inactive = SmallFile.number(after: version == .v1 ? "total_inactive_file" : "inactive_file", in: text) ?? 0
    return usage - min(usage, inactive)
  }

  /// What is left of its limit, as a reaction of the library counts it; nil without a limit.
  package var room: MemoryRoom? {
    let group = MemoryGroup(version: version, path: directory, directories: [directory], isOwnDirectory: true)
    return group.tightest().flatMap { MemoryRoom(of: $0, counting: .pageCache(offeredBytes: 0)) }
  }

  /// How many processes of the group the kernel has killed for want of memory; nil where it does not tell.
  package var killCount: UInt64? {
    SmallFile.text(file(version == .v1 ? "memory.oom_control" : "memory.events"))
      .flatMap { SmallFile.number(after: "oom_kill", in: $0) }
  }

  // MARK: What it is told

  /// Sets the limit, and that nothing beyond it goes to swap unless it may. 0 or an errno. Where swap is not accounted for, it
  /// cannot be denied (`deniesSwap`).
  package func setLimit(_ bytes: UInt64, allowsSwap: Bool = false) -> Int32 {
    switch version {
    case .v1:
      let error = Self.write(String(bytes), to: file("memory.limit_in_bytes"))
      // Memory and swap together.
      if !allowsSwap { _ = Self.write(String(bytes), to: file("memory.memsw.limit_in_bytes")) }
      return error
    case .v2:
      _ = Self.write(allowsSwap ? "max" : "0", to: file("memory.swap.max"))
      return Self.write(String(bytes), to: file("memory.max"))
    }
  }

  /// Whether nothing of the group goes to swap.
  package var deniesSwap: Bool {
    switch version {
    case .v1:
      let limit = SmallFile.number(file("memory.limit_in_bytes"))
      return limit != nil && SmallFile.number(file("memory.memsw.limit_in_bytes")) == limit
    case .v2: return SmallFile.number(file("memory.swap.max")) == 0
    }
  }

  /// Has the kernel take back the cached files that the group's former processes left, as far as it can.
  package func dropLeftovers() {
    switch version {
    case .v1: _ = Self.write("0", to: file("memory.force_empty"))
    case .v2: _ = Self.write(String(usageBytes ?? 0), to: file("memory.reclaim"))
    }
  }

  /// Writes to a control file that is there. 0 or an errno.
  package static func write(_ text: String, to path: String) -> Int32 {
    let descriptor = unsafe open(path, O_WRONLY | O_CLOEXEC | O_NOCTTY)
    guard descriptor >= 0 else { return errno }
    defer { close(descriptor) }
    let bytes = Array(text.utf8)
    let written = unsafe bytes.withUnsafeBytes { unsafe Glibc.write(descriptor, $0.baseAddress, $0.count) }
    return written == bytes.count ? 0 : written < 0 ? errno : EIO
  }
}
