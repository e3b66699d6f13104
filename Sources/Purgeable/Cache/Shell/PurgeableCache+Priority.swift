// SPDX-License-Identifier: MIT
// Priorities: what is pinned, and how much may be.

import Synchronization

extension PurgeableCache {
  /// Changes the priority of a key's entry, which goes last among those of its new one then. False where there is no intact
  /// value. Copies the value once, unless it has the priority already. Any thread.
  ///
  ///     let pages = try PurgeableCache<String, [UInt8]>()
  ///     pages["home"] = render("home")
  ///     try pages.setPriority(.pinned, forKey: "home")
  ///
  /// - Throws: `PurgeableError` of kind `outOfMemory` where more would be pinned than `pinnedByteLimit` allows, or there is no
  ///   memory for the copy; nothing is changed then.
  @discardableResult
  public func setPriority(_ priority: EntryPriority, forKey key: Key) throws(PurgeableError) -> Bool {
    let change = withEntry(key) { engineKey, prefix, held in
      held.setPriority(priority, engineKey, prefix)
    }
    // The copy may have gone beyond a byte limit.
    if engine.base.isOverLimits { engine.enforceLimits() }
    WorkBell.ring()
    switch change {
    case .done: return true
    case .absent, nil: return false
    case .noRoom where MemoryReserve.isThere(MemoryReserve.ofNews):
      let limit = engine.base.limits.pinned.load(ordering: .relaxed)
      throw PurgeableError(
        .outOfMemory, in: "PurgeableCache '\(name)'.setPriority", errorNumber: outOfMemoryNumber,
        explanation: "more than \(limit) bytes would be pinned; raise pinnedByteLimit, or make others normal")
    // An error of other words would take memory itself.
    case .noRoom, .noMemory: throw PurgeableError.withoutMemory(in: "PurgeableCache.setPriority")
    }
  }

  /// The most payload to be pinned, in bytes; nil, the default, for an eighth of the memory that limits this process. Pinned
  /// memory is as any other program's: neither the kernel nor the library can take it back.
  public var pinnedByteLimit: Int? { engine.base.limits.budget.withLock { $0.pinnedByteLimit } }

  /// Sets `pinnedByteLimit`. What is pinned already stays pinned. Any thread.
  ///
  /// - Throws: `PurgeableError` of kind `invalidArgument` for a negative limit; the limit stays as it was then.
  public func setPinnedByteLimit(_ limit: Int?) throws(PurgeableError) {
    try LimitCheck.limit(limit, "limit", in: "PurgeableCache '\(name)'.setPinnedByteLimit")
    engine.base.limits.change(engine.heap) { $0.pinnedByteLimit = limit }
  }
}
