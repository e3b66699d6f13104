// SPDX-License-Identifier: MIT
// Swift's runtime ends a program when an object or an array cannot be allocated. Code that makes one asks here first.

import CPurgeable

/// Whether that much ordinary memory is available right now. The memory is taken and given back at once, so another thread may
/// take it in between; a program that runs on its last bytes with several threads can still be ended by its own next allocation
/// or the runtime's.
enum MemoryReserve {
  /// Results from this size on are tested: below, the test would cost more than a hundredth of the copy.
  static let ofLargeResults = 128 << 10
  /// What looking up a group, a list of mounts included, or opening a source takes.
  static let ofLookups = 256 << 10
  /// What making a cache, a monitor or an object of this library takes beside its mappings.
  static let ofObjects = 64 << 10
  /// What telling a sequence of levels takes.
  static let ofNews = 16 << 10

  static func isThere(_ byteCount: Int) -> Bool { purgeable_bookkeeping_is_available(byteCount) }
}
