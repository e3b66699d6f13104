// SPDX-License-Identifier: MIT
// How much memory this process may use, by the group that it is in now.

import CPurgeable
import Glibc
import Synchronization

/// The memory group of this process and its limit, looked up once for everybody, and again when the process is in another group.
package final class ProcessMemory: ForkProtected {
  private static let shared = ProcessMemory()
  private let known = Guarded(KnownGroup())
  /// As it was last read; 0: never.
  private static let lastLimit = Atomic<UInt64>(0)

  private init() {
    ForkGuard.shared.announce(.group) { $0.append(ProcessMemory.shared) }
    rehearseFork()
  }

  /// Makes the shared object, so that later calls need no memory for it.
  static func prepare() { _ = shared }

  /// Our memory group.
  static var group: MemoryGroup? { lookUp().group }

  /// `isSure`: another look would find the same. Outside of the mutex.
  private static func lookUp() -> (group: MemoryGroup?, isSure: Bool) {
    var known = shared.known.withLock { $0 }
    let found = known.current()
    let lookedUp = known
    shared.known.withLock { $0 = lookedUp }
    return (found, lookedUp.isSure)
  }

  /// The smallest limit of the process's groups, or the machine's memory. Where no descriptor is left to read it by, as it was
  /// last. Some 5 system calls for each level of nesting. Takes memory only where the process has come to another group, and
  /// where there is some: a reaction asks for it, too.
  package static func limit() -> UInt64 {
    var (group, isSure) = lookUp()
    // By sysinfo(2), or by a file.
    let pages = sysconf(Int32(_SC_PHYS_PAGES))
    if pages <= 0 { isSure = false }
    var limit = pages > 0 ? UInt64(pages) * UInt64(purgeable_page_size_bytes()) : 1 << 30
    group?.forEachLevel { level in
      isSure = isSure && level.isSure
      limit = min(limit, level.limitBytes ?? .max)
    }
    if isSure { lastLimit.store(limit, ordering: .relaxed) }
    return isKnown && !isSure ? lastLimit.load(ordering: .relaxed) : limit
  }

  /// Whether the limits leave room for so many bytes more, beside what the kernel would not take, as far as that is known.
  /// A kill cannot be caught as a call that fails. Cost: twice that of `limit()`.
  package static func hasRoom(for byteCount: Int) -> Bool {
    let wanted = UInt64(max(0, byteCount))
    var hasRoom = wanted <= limit()
    group?.forEachLevel { level in
      guard let limit = level.limitBytes, let used = level.workingSetBytes else { return }
      hasRoom = hasRoom && wanted <= max(limit - min(limit, used), level.roomWithPageCacheBytes ?? 0)
    }
    return hasRoom
  }

  /// Whether the limit was ever read.
  static var isKnown: Bool { lastLimit.load(ordering: .relaxed) != 0 }

  func lockForFork() { known.lock() }
  func unlockAfterFork() { known.unlock() }
}
