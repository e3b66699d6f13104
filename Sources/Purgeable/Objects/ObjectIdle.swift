// SPDX-License-Identifier: MIT
// Entries that were not used for a time leave, even when memory is not short: `idleTime`.
//
// They stand in the order of their last use, by stamps of the machine's clock; the idle time is by the cache's own. So each
// round, four in an idle time, notes a moment of both. When a round is as long ago as the idle time, what was not used since
// then leaves.

import Synchronization

extension ObjectBooks {
  /// What comes from a file comes with the lowest stamps: marks of before say nothing about it.
  final func beginRestoring() { restored.store(.max, ordering: .sequentiallyConsistent) }
  final func endRestoring() { restored.store(MonotonicTime.now, ordering: .sequentiallyConsistent) }

  /// As `untilDue`. The clock, which may be the program's, is asked under no mutex.
  final func untilIdleRound() -> UInt64 {
    guard let idle = budget.withLock({ $0.bytes.idleNanoseconds }), count > 0 else { return .max }
    let now = clock.now()
    if budget.withLock({ $0.idleMarks.wantsMark(idle, now: now) }) { begin { $0.wantsUpkeep = true } }
    return 0
  }
}

extension ObjectStore {
  /// Drops what is idle. Under no mutex.
  func dropIdle() {
    let (now, stamp) = (clock.now(), MonotonicTime.now)
    let bound: UInt64? = budget.withLock { budget in
      guard let idle = budget.bytes.idleNanoseconds else { return nil }
      var bound: UInt64?
      while let due = budget.idleMarks.takeDue(idle, now: now) { bound = due }
      if budget.idleMarks.wantsMark(idle, now: now) { budget.idleMarks.append(stamp, now: now) }
      return bound
    }
    guard let bound else { return }
    // In a child of a process that restored when it was forked.
    if restored.load(ordering: .relaxed) == .max, lazy.knownFiles?.isAtWork != true { endRestoring() }
    var walk = ObjectWalk(self, before: bound) { !$0.isPinned }
    while let noted = walk.next(in: self) {
      if noted.stamp >= firstStamp || bound >= restored.load(ordering: .sequentiallyConsistent) { _ = remove(noted, .idle) }
    }
    for shard in 0..<ObjectGate.count { hold(shard: shard) { $0.table.shrink() } }
  }
}

extension ObjectCache {
  /// Entries that were not used for this long leave, even when memory is not short; nil, the default: never. Pinned ones stay.
  /// An entry goes after one to one and a half times that long, and up to a second later, told as `idle`. Not a limit on the age
  /// of values: that is `expiry`. A clock that leaps counts from its next round on. Cost: four times in each idle time, a look at
  /// the entries that leave.
  public var idleTime: Duration? {
    store.budget.withLock { $0.bytes.idleNanoseconds }.map { .nanoseconds(Int64(clamping: $0)) }
  }

  /// Sets `idleTime`; takes effect with the library's next round. Any thread.
  ///
  /// - Throws: `PurgeableError` of kind `invalidArgument` for 0 or less; the time stays as it was then.
  public func setIdleTime(_ time: Duration?) throws(PurgeableError) {
    try LimitCheck.time(time, "time", in: "ObjectCache '\(name)'.setIdleTime")
    let nanoseconds = time.map(CacheBudget.nanoseconds)
    store.budget.withLock { $0.bytes.idleNanoseconds = nanoseconds }
    WorkBell.ring()
  }
}
