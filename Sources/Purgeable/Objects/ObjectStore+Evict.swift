// SPDX-License-Identifier: MIT
// Eviction: the least recently used entry of all shards goes, if the program does not object.

import Synchronization

extension ObjectStore {
  /// The stamp of a queue's oldest entry, as of the last change.
  func publishedStamp(shard: Int, queue: Int) -> UInt64 { unsafe gates[shard].oldestStamps[queue].load(ordering: .relaxed) }

  /// Evicts until the limits hold, or all that is left is passed over. `end`: entries used from then on stay.
  @usableFromInline
  func enforceLimits(before end: UInt64 = .max) {
    guard books.hasVeto.load(ordering: .acquiring) else {
      while let reason = books.exceededLimit,
        evictOldest(reason, onlyWithCost: reason == .cost, before: end, { books.exceededLimit == reason })
      {}
      return
    }
    enforceLimitsAsking(before: end)
  }

  /// Evicts the oldest entry, unless `isDue` says under its mutex that this is done. False where there is none.
  private func evictOldest(
    _ reason: DepartureReason, onlyWithCost: Bool, before end: UInt64 = .max, _ isDue: () -> Bool
  ) -> Bool {
    while true {
      var (least, at, queue) = (UInt64.max, 0, 0)
      for one in 0..<ObjectQueue.count where !onlyWithCost || ObjectQueue(one).hasCost {
        for shard in 0..<Self.shardCount {
          let stamp = publishedStamp(shard: shard, queue: one)
          if stamp < least { (least, at, queue) = (stamp, shard, one) }
        }
      }
      guard least < end, least != .max else { return false }
      let departed = hold(shard: at) { shard -> Departed? in
        guard shard.table.oldestStamp(queue) == least, isDue() else { return nil }
        return remove(shard.table.oldest[queue], reason, from: &shard)
      }
      if let departed {
        finish(departed)
        return true
      }
      if !isDue() { return true }
    }
  }

  private func mayGo(_ noted: NotedObject<Key, Value>, _ reason: DepartureReason) -> Bool {
    let asks = handlers.withLock { $0.asks }
    return asks?(noted.entry.key, noted.entry.value, reason) ?? true
  }

  /// Each entry is asked about once, in the order of eviction.
  private func enforceLimitsAsking(before end: UInt64) {
    guard let first = books.exceededLimit else { return }
    var reason = first
    var walk = ObjectWalk(self, before: min(end, books.time)) { $0.hasCost || reason != .cost }
    while let noted = walk.next(in: self) {
      guard let exceeded = books.exceededLimit else { return }
      // Entries without cost were left out of a walk for the cost limit, and are in for the others.
      if (exceeded == .cost) != (reason == .cost) { return enforceLimitsAsking(before: end) }
      reason = exceeded
      if mayGo(noted, reason) { _ = remove(noted, reason) }
    }
  }

  // MARK: On demand

  /// Evicts the oldest entries until `isDone`.
  func trim(_ reason: DepartureReason, onlyWithCost: Bool = false, until isDone: () -> Bool) {
    // Bounded, because other threads may store meanwhile.
    var left = books.count
    while left > 0, !isDone() {
      left -= 1
      if !evictOldest(reason, onlyWithCost: onlyWithCost, { !isDone() }) { return }
    }
  }

  /// Drops the entries whose content is discarded. Returns how many.
  func sweep() -> Int {
    guard books.evictsDiscarded.load(ordering: .relaxed) else { return 0 }
    var walk = ObjectWalk(self, before: .max) { $0.isDiscardable }
    var dropped = 0
    while let noted = walk.next(in: self) {
      if let content = noted.entry.value as? any DiscardableContent, content.isContentDiscarded,
        remove(noted, .discarded)
      {
        dropped += 1
      }
    }
    return dropped
  }

  // MARK: Under pressure

  /// Of the entries' content or, where none is left to discard, of the entries.
  func evictSixteenth() -> Bool {
    let lost = sweep() > 0
    let wanted = max(1, books.count / PressureReaction.sliceShare)
    return discardContents(wanted) || evictSlice(wanted) || lost
  }

  private func discardContents(_ wanted: Int) -> Bool {
    let evicts = books.evictsDiscarded.load(ordering: .relaxed)
    var walk = ObjectWalk(self, before: books.time) { $0.isDiscardable }
    var discarded = 0
    while discarded < wanted, let noted = walk.next(in: self) {
      guard let content = noted.entry.value as? any DiscardableContent, !content.isContentDiscarded else { continue }
      // The entry would go with its content.
      if evicts, !mayGo(noted, .pressure) { continue }
      content.discardContentIfPossible()
      guard content.isContentDiscarded else { continue }
      discarded += 1
      if evicts { _ = remove(noted, .discarded) }
    }
    return discarded > 0
  }

  private func evictSlice(_ wanted: Int) -> Bool {
    var walk = ObjectWalk(self, before: books.time) { _ in true }
    var evicted = 0
    while evicted < wanted, let noted = walk.next(in: self) {
      if mayGo(noted, .pressure), remove(noted, .pressure) { evicted += 1 }
    }
    return evicted > 0
  }
}
