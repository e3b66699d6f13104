// SPDX-License-Identifier: MIT
// The files of one memory group (cgroup): its limit, what it uses, whom it had to kill.

import Glibc
import Purgeable

/// A memory group's directory. A value; each property reads a file anew.
struct GroupFiles: Equatable, Sendable {
  var version: MemoryGroup.Version
  var directory: String

  func file(_ name: String) -> String { MemoryGroup.join(directory, name) }

  /// Whoever writes 0 to it moves into the group.
  var processes: String { file("cgroup.procs") }

  /// Everything that the group uses.
  var usageBytes: UInt64? {
    SmallFile.number(file(version == .v1 ? "memory.usage_in_bytes" : "memory.current"))
  }

  /// Usage less what the kernel would take first: cached files and memory on offer.
  var workingSetBytes: UInt64? {
    guard let usage = usageBytes, let text = SmallFile.text(file("memory.stat")) else { return nil }
    let inactive = SmallFile.number(after: version == .v1 ? "total_inactive_file" : "inactive_file", in: text) ?? 0
    return usage - min(usage, inactive)
  }

  /// How many processes of the group the kernel has killed for want of memory; nil where it does not tell.
  var killCount: UInt64? {
    SmallFile.text(file(version == .v1 ? "memory.oom_control" : "memory.events"))
      .flatMap { SmallFile.number(after: "oom_kill", in: $0) }
  }

  /// Sets the limit, and that nothing beyond it goes to swap unless it may. 0 or an errno.
  func setLimit(_ bytes: UInt64, allowsSwap: Bool = false) -> Int32 {
    switch version {
    case .v1:
      let error = Self.write(String(bytes), to: file("memory.limit_in_bytes"))
      // Memory and swap together; missing where swap is not accounted for.
      if !allowsSwap { _ = Self.write(String(bytes), to: file("memory.memsw.limit_in_bytes")) }
      return error
    case .v2:
      _ = Self.write(allowsSwap ? "max" : "0", to: file("memory.swap.max"))
      return Self.write(String(bytes), to: file("memory.max"))
    }
  }

  /// Has the kernel take back what the group's former processes left: cached files. As good as it can.
  func dropLeftovers() {
    switch version {
    case .v1: _ = Self.write("0", to: file("memory.force_empty"))
    case .v2: _ = Self.write(String(usageBytes ?? 0), to: file("memory.reclaim"))
    }
  }

  /// Writes to a control file that is there. 0 or an errno.
  static func write(_ text: String, to path: String) -> Int32 {
    let descriptor = unsafe open(path, O_WRONLY | O_CLOEXEC | O_NOCTTY)
    guard descriptor >= 0 else { return errno }
    defer { close(descriptor) }
    let bytes = Array(text.utf8)
    let written = unsafe bytes.withUnsafeBytes { unsafe Glibc.write(descriptor, $0.baseAddress, $0.count) }
    return written == bytes.count ? 0 : written < 0 ? errno : EIO
  }
}
