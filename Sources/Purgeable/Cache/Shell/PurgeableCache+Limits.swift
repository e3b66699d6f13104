// SPDX-License-Identifier: MIT
// The limits of a cache, and changing them.

import Synchronization

extension PurgeableCache {
  // MARK: Entries, costs, bytes

  /// The most entries, nil for no limit, which `Int.max` is too.
  public var countLimit: Int? {
    let limit = engine.base.limits.count.load(ordering: .relaxed)
    return limit == .max ? nil : limit
  }

  /// Sets `countLimit`. A lower limit evicts before this returns, but for what is pinned. Any thread.
  /// Throws `invalidArgument` for a negative limit, which stays as it was then.
  public func setCountLimit(_ limit: Int?) throws(PurgeableError) {
    try LimitCheck.limit(limit, "limit", in: "PurgeableCache '\(name)'.setCountLimit")
    engine.base.limits.count.store(limit ?? .max, ordering: .relaxed)
    engine.enforceChangedLimits()
  }

  /// The most that costs may add up to, nil for no limit. `Int.max` is none: no sum counts as more.
  public var costLimit: Int? {
    let limit = engine.base.limits.cost.load(ordering: .relaxed)
    return limit == .max ? nil : Int(clamping: limit)
  }

  /// Sets `costLimit`. A lower limit evicts before this returns, but for what is pinned. Any thread.
  /// Throws `invalidArgument` for a negative limit, which stays as it was then.
  public func setCostLimit(_ limit: Int?) throws(PurgeableError) {
    try LimitCheck.limit(limit, "limit", in: "PurgeableCache '\(name)'.setCostLimit")
    engine.base.limits.cost.store(LimitCheck.ofCosts(limit), ordering: .relaxed)
    engine.enforceChangedLimits()
  }

  /// The most bytes to hold, bookkeeping included, nil for no limit.
  public var byteLimit: Int? { engine.base.limits.budget.withLock { $0.byteLimit }.map { engine.base.limits.atLeast($0) } }

  /// Sets `byteLimit`. A lower limit evicts, and makes bookkeeping smaller, before this returns. Any thread.
  ///
  /// A limit below what this cache needs when it is empty becomes as much as that, and `byteLimit` then says how much; `init`
  /// refuses such a limit with an error. 0 stays 0 and admits nothing. A cache that has been large needs more when it is empty
  /// than a fresh one: some hundreds of KiB.
  /// Throws `invalidArgument` for a negative limit, which stays as it was then.
  public func setByteLimit(_ limit: Int?) throws(PurgeableError) {
    try LimitCheck.limit(limit, "limit", in: "PurgeableCache '\(name)'.setByteLimit")
    engine.change { budget in
      budget.byteLimit = limit
      budget.isDefault = false
    }
  }

  /// The cache's share of the memory that limits this process (the smallest limit of its control groups, or the machine's
  /// memory), above 0 and up to 1; nil for none. Works as a byte limit beside `byteLimit`, and follows changes of the group's
  /// limit within a second of the next store. `statistics.limitInForce` has the smallest limit in force, in bytes.
  public var memoryShare: Double? { engine.base.limits.budget.withLock { $0.memoryShare } }

  /// Sets `memoryShare`. A smaller share evicts before this returns; one that is less than an empty cache needs counts as what it
  /// needs. Any thread.
  /// Throws `invalidArgument` for a share that is not above 0 and at most 1; it stays as it was then.
  public func setMemoryShare(_ share: Double?) throws(PurgeableError) {
    try LimitCheck.share(share, "share", in: "PurgeableCache '\(name)'.setMemoryShare")
    engine.change { $0.memoryShare = share }
  }

  // MARK: Locks

  /// The most payload that `withBytes` may keep locked at a time, in bytes, each lock counted; nil for half the memory that
  /// limits this process. Above the limit `withBytes` returns nil (the statistics count that as `lockLimit`), and copying reads
  /// still find values. While memory is short, half of the limit holds; at the critical level a quarter.
  ///
  /// Neither the kernel nor the library can give locked memory back, and container tools do not see how much there is. This limit
  /// keeps a process alive whose readers keep values locked for long.
  public var lockedByteLimit: Int? { engine.base.limits.budget.withLock { $0.lockedByteLimit } }

  /// Sets `lockedByteLimit`. Bytes that are locked already stay locked. With 0 nothing can be locked. Any thread.
  /// Throws `invalidArgument` for a negative limit, which stays as it was then.
  public func setLockedByteLimit(_ limit: Int?) throws(PurgeableError) {
    try LimitCheck.limit(limit, "limit", in: "PurgeableCache '\(name)'.setLockedByteLimit")
    engine.base.limits.change(engine.heap) { $0.lockedByteLimit = limit }
  }

  // MARK: What is on offer

  /// What stays off offer while there is room beside it; nil, the default, for nothing. `CacheCore` says what it gives up.
  public var core: CacheCore? { engine.base.limits.budget.withLock { $0.core } }

  /// Sets `core`; takes effect with the library's next round, half a second later at most. nil lets everything go on offer before
  /// this returns. Any thread.
  /// Throws `invalidArgument` for a share that is not above 0 and at most 1, and a time of 0 or less; the core stays then.
  public func setCore(_ core: CacheCore?) throws(PurgeableError) {
    try CacheCore.check(core, in: "PurgeableCache '\(name)'.setCore")
    engine.setCore(core)
  }

  // MARK: Idleness

  /// The eager mode: entries that were not read for this long are given back to the system, even when memory is not short; nil,
  /// the default, for never. An entry goes after one to two times that long, and up to half a second later, since the library's
  /// rounds are half a second apart (20 milliseconds come to about a second). For environments that judge a process by its
  /// resident memory; not a limit on the age of values. Cost: four times in each idle time, a pass over the entries that are due.
  public var idleTime: Duration? {
    engine.base.limits.budget.withLock { $0.idleNanoseconds }.map { .nanoseconds(Int64(clamping: $0)) }
  }

  /// Sets `idleTime`; takes effect with the library's next round. Any thread.
  /// Throws `invalidArgument` for 0 or less; the time stays as it was then.
  public func setIdleTime(_ time: Duration?) throws(PurgeableError) {
    try LimitCheck.time(time, "time", in: "PurgeableCache '\(name)'.setIdleTime")
    let nanoseconds = time.map(CacheBudget.nanoseconds)
    engine.base.limits.budget.withLock { $0.idleNanoseconds = nanoseconds }
    WorkBell.ring()
  }
}

// MARK: Times

extension PurgeableCache {
  /// How long entries are valid that are stored without an expiry of their own; nil: for ever.
  public var expiry: Expiry? { Expiry(engine.base.limits.lifetime.value) }

  /// Sets `expiry`, for values stored from now on: what is in the cache keeps its own. Any thread.
  /// Throws `invalidArgument` for a time of 0 or less; the expiry stays as it was then.
  public func setExpiry(_ expiry: Expiry?) throws(PurgeableError) {
    try Expiry.check(expiry, in: "PurgeableCache '\(name)'.setExpiry")
    engine.base.limits.lifetime.value = expiry?.lifetime ?? Lifetime()
  }

  /// Drops what has expired, now. Returns how many entries.
  ///
  /// Without it an expired entry is dropped when it is looked up or when room is needed, and by the library's thread once all of
  /// its slab has expired: entries of about the same time to live share slabs, so that this is after a part of that time more.
  /// Until then it counts in `count` and the other totals. Any thread. Cost: a look at each slab that entries with a deadline are
  /// in, and at each entry of the slabs where some have expired.
  @discardableResult
  public func removeExpired() -> Int { engine.removeExpired() }
}
