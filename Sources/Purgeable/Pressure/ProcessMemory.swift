// SPDX-License-Identifier: MIT
// How much memory this process may use, by the group that it is in now.

/// The memory group of this process and its limit, looked up once for everybody, and again when the process is in another group.
package final class ProcessMemory: ForkProtected {
  private static let shared = ProcessMemory()
  private let known = Guarded(KnownGroup())

  private init() {
    ForkGuard.shared.announce(.group) { $0.append(ProcessMemory.shared) }
    rehearseFork()
  }

  /// Makes the shared object, so that later calls need no memory for it.
  static func prepare() { _ = shared }

  /// Our memory group. Looked up outside of the mutex.
  static var group: MemoryGroup? {
    var known = shared.known.withLock { $0 }
    let found = known.current()
    let lookedUp = known
    shared.known.withLock { $0 = lookedUp }
    return found
  }

  /// The smallest limit of the process's groups, or the machine's memory. Some 5 system calls for each level of nesting. Takes
  /// memory only where the process has come to another group, and where there is some: a reaction asks for it, too.
  package static func limit() -> UInt64 {
    let machine = MachineMemory.current()?.totalBytes ?? 1 << 30
    return min(machine, group?.limitBytes ?? .max)
  }

  func lockForFork() { known.lock() }
  func unlockAfterFork() { known.unlock() }
}
