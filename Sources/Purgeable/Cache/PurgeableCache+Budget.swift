// SPDX-License-Identifier: MIT
// What a cache may take, and giving memory back on demand.

import Synchronization

extension PurgeableCache {
  /// The cache's share of the memory that limits this process (the smallest limit of its control groups, or the machine's memory),
  /// between 0 and 1; nil for none. Works as a byte limit, beside `byteLimit`; follows the group's limit when that is changed, within
  /// a second of the next store. Values outside of 0 to 1 count as the nearest that is inside.
  public var memoryShare: Double? {
    get { engine.budget.withLock { $0.memoryShare } }
    set {
      engine.budget.withLock { $0.memoryShare = newValue.map { $0.isNaN ? 1 : min(1, max(0, $0)) } }
      engine.applyBudget()
      engine.enforceLimits()
    }
  }

  /// The most payload that `withBytes` may keep locked at a time, each lock counted. nil: half the memory that limits this process.
  /// Above it `withBytes` finds nothing (`lookUp` says `lockLimit` in the statistics); copying reads still answer. While memory is
  /// short half of it holds, at the critical level a quarter; what is locked already stays so.
  ///
  /// Locked memory is the one thing that neither kernel nor library can give back, and container tools do not see it: this limit is
  /// what keeps a process alive whose readers hold on to what they lent.
  public var lockedByteLimit: Int? {
    get { engine.budget.withLock { $0.lockedByteLimit } }
    set {
      engine.budget.withLock { $0.lockedByteLimit = newValue.map { max(0, $0) } }
      engine.applyBudget()
    }
  }

  /// The eager mode: entries that nobody read for this long are given back to the system, also where nobody needs the memory; nil,
  /// the default, for never. An entry goes after one to two times that long. For environments where only resident memory counts.
  /// Costs a pass over what has come of age four times in that time.
  public var idleTime: Duration? {
    get { engine.budget.withLock { $0.idleNanoseconds }.map { .nanoseconds(Int64(clamping: $0)) } }
    set {
      let nanoseconds = newValue.map(CacheBudget.nanoseconds)
      engine.budget.withLock { $0.idleNanoseconds = nanoseconds }
      Maintainer.shared.noteWork()
    }
  }

  /// Does now what the library does when memory is short at this level: offers everything idle, drops what is lost, gives slabs back
  /// in the policy's order (a sixteenth of what is held at `some`, a quarter at `critical`; nothing at `none`), makes bookkeeping
  /// smaller, and grows slowly for a minute. Returns what that came to. About a second for each GiB of
  /// values of a kilobyte, of which a fifth is copied; 0.2 s at most.
  @discardableResult
  public func trim(level: PressureLevel) -> PressureRelief { engine.trim(level: level) }
}
