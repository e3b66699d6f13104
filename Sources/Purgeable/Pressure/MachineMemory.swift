// SPDX-License-Identifier: MIT
// What the whole machine has, for processes whose group sets no limit.

/// The machine's memory as /proc/meminfo tells it, in bytes.
package struct MachineMemory: Equatable, Sendable {
  package var totalBytes: UInt64
  /// What could be had without swapping. Memory on offer counts as available.
  package var availableBytes: UInt64
  /// What is used for nothing, not even for cached files.
  package var freeBytes: UInt64
  package var swapTotalBytes: UInt64
  package var swapFreeBytes: UInt64
  /// How much address space may be promised when overcommit is off (mode 2), and how much is.
  package var commitLimitBytes: UInt64
  package var committedBytes: UInt64

  /// Reads it; nil where /proc is not mounted or tells no total. `root` stands in front of every path, for tests.
  package static func current(root: String = "/") -> MachineMemory? {
    SmallFile.text(MemoryGroup.join(root, "proc/meminfo")).flatMap(MachineMemory.init(meminfo:))
  }

  /// Kernels before 3.14 tell no MemAvailable: what is free stands in for it there.
  package init?(meminfo: String) {
    guard let total = SmallFile.number(after: "MemTotal", in: meminfo) else { return nil }
    func number(_ key: String) -> UInt64? { SmallFile.number(after: key, in: meminfo) }
    totalBytes = total
    freeBytes = number("MemFree") ?? 0
    availableBytes = number("MemAvailable") ?? freeBytes
    swapTotalBytes = number("SwapTotal") ?? 0
    swapFreeBytes = number("SwapFree") ?? 0
    commitLimitBytes = number("CommitLimit") ?? 0
    committedBytes = number("Committed_AS") ?? 0
  }
}
