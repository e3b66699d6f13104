// SPDX-License-Identifier: MIT
// What the whole machine has, for processes whose group sets no limit.

import CPurgeablePressure

/// The machine's memory as /proc/meminfo tells it, in bytes.
package struct MachineMemory: Equatable, Sendable {
  package var totalBytes: UInt64
  /// The memory available without swapping. Memory on offer counts as available.
  package var availableBytes: UInt64
  /// The memory used for nothing, not even for cached files.
  package var freeBytes: UInt64
  package var swapTotalBytes: UInt64
  /// How much address space may be promised when overcommit is off (mode 2), and how much is.
  package var commitLimitBytes: UInt64
  package var committedBytes: UInt64

  /// Reads it; nil where /proc is not mounted or tells no total. `root` stands in front of every path, for tests. Takes no
  /// memory.
  package static func current(root: String = "/") -> MachineMemory? {
    var numbers = purgeable__machine_memory_t()
    // Lent with a zero behind it, for the length of the call.
    let isRead = unsafe root.withCString { root in unsafe purgeable__read_machine_memory(root, &numbers) }
    return isRead ? MachineMemory(numbers) : nil
  }

  /// Kernels before 3.14 have no MemAvailable: free memory stands in for it there.
  package init?(meminfo: String) {
    var numbers = purgeable__machine_memory_t()
    unsafe meminfo.withCString { unsafe purgeable__parse_machine_memory($0, meminfo.utf8.count, &numbers) }
    self.init(numbers)
  }

  private init?(_ numbers: purgeable__machine_memory_t) {
    guard let total = SmallFile.known(numbers.total) else { return nil }
    totalBytes = total
    freeBytes = SmallFile.known(numbers.free) ?? 0
    availableBytes = SmallFile.known(numbers.available) ?? freeBytes
    swapTotalBytes = SmallFile.known(numbers.swap_total) ?? 0
    commitLimitBytes = SmallFile.known(numbers.commit_limit) ?? 0
    committedBytes = SmallFile.known(numbers.committed) ?? 0
  }
}
