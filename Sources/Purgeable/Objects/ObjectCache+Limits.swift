// SPDX-License-Identifier: MIT
// Limits on entries and costs.

import Synchronization

extension ObjectCache {
  /// The most entries, nil for no limit, which `Int.max` is too.
  public var countLimit: Int? {
    let limit = store.countLimit.load(ordering: .relaxed)
    return limit == .max ? nil : limit
  }

  /// Sets `countLimit`. A lower limit evicts before this returns, but for what is pinned. Any thread.
  ///
  /// - Throws: `PurgeableError` of kind `invalidArgument` for a negative limit; the limit stays as it was then.
  public func setCountLimit(_ limit: Int?) throws(PurgeableError) {
    try LimitCheck.limit(limit, "limit", in: "ObjectCache '\(name)'.setCountLimit")
    store.countLimit.store(limit ?? .max, ordering: .sequentiallyConsistent)
    store.enforceLimits()
  }

  /// The most that costs may add up to, nil for no limit.
  public var costLimit: Int? { store.budget.withLock { $0.costLimit } }

  /// Sets `costLimit`. A lower limit evicts before this returns, but for what is pinned. Any thread.
  ///
  /// - Throws: `PurgeableError` of kind `invalidArgument` for a negative limit; the limit stays as it was then.
  public func setCostLimit(_ limit: Int?) throws(PurgeableError) {
    try LimitCheck.limit(limit, "limit", in: "ObjectCache '\(name)'.setCostLimit")
    change { $0.costLimit = limit }
  }

  /// The bytes that `byteLimit` and `trim(toBytes:)` go by: `totalCost`. Any thread, no mutex.
  public var byteCount: Int { totalCost }

  /// The most bytes that costs may add up to, nil for no limit: a cost limit beside `costLimit`, for programs that give bytes as
  /// costs. What objects take besides is not known here.
  public var byteLimit: Int? { store.budget.withLock { $0.bytes.byteLimit } }

  /// Sets `byteLimit`. A lower limit evicts before this returns, but for what is pinned. Any thread.
  ///
  /// - Throws: `PurgeableError` of kind `invalidArgument` for a negative limit; the limit stays as it was then.
  public func setByteLimit(_ limit: Int?) throws(PurgeableError) {
    try LimitCheck.limit(limit, "limit", in: "ObjectCache '\(name)'.setByteLimit")
    change { $0.bytes.byteLimit = limit }
  }

  /// The share of the memory that limits this process (the smallest limit of its control groups, or the machine's memory) which
  /// the costs may add up to as bytes, above 0 and up to 1; nil for none. A limit beside the others. Where the group's limit
  /// changes, the stores follow a second after the next one.
  public var memoryShare: Double? { store.budget.withLock { $0.bytes.memoryShare } }

  /// Sets `memoryShare`. A smaller share evicts before this returns. Any thread.
  ///
  /// - Throws: `PurgeableError` of kind `invalidArgument` for a share that is not above 0 and at most 1; the share stays as it
  ///   was then.
  public func setMemoryShare(_ share: Double?) throws(PurgeableError) {
    try LimitCheck.share(share, "share", in: "ObjectCache '\(name)'.setMemoryShare")
    change { $0.bytes.memoryShare = share }
  }

  private func change(_ body: (inout ObjectBudget) -> Void) {
    store.change(body)
    store.enforceLimits()
  }
}
