// SPDX-License-Identifier: MIT
// Eviction: what has expired goes first, then speculative entries, then the least recently used one of all shards, if the program
// does not object; none that is pinned, unless it has expired.

import Synchronization

extension ObjectStore {
  /// Evicts until the limits hold, or all that is left is passed over. `stamp`: of an entry that nobody is asked about, which
  /// stays then. `begun`: what has this stamp or a later one keeps its content where it goes: a load returns it.
  @inlinable
  func enforceLimits(sparing stamp: UInt64 = 0, keepingContentSince begun: UInt64 = .max) {
    if asks { return enforceLimitsAsking(sparing: stamp, keepingContentSince: begun) }
    while true {
      let growthLimit = growthLimit
      guard let reason = exceededLimit(growing: growthLimit) else { return }
      if mayHaveExpired, dropExpired(while: { exceededLimit(growing: growthLimit) != nil }) > 0 { continue }
      guard
        evictOldest(
          reason, onlyWithCost: reason.isOfCosts, sparing: stamp, keepingContentSince: begun,
          { exceededLimit(growing: growthLimit) == reason })
      else { return }
    }
  }

  /// Evicts the entry that is next, unless `isDue` says under its mutex that this is done. False where there is none.
  @inlinable
  func evictOldest(
    _ reason: DepartureReason, onlyWithCost: Bool, sparing stamp: UInt64 = 0, keepingContentSince begun: UInt64 = .max,
    _ isDue: () -> Bool
  ) -> Bool {
    while true {
      let oldest = unsafe OldestObject(gates, queues(onlyWithCost: onlyWithCost), sparing: stamp)
      guard oldest.stamp != .max else { return false }
      let departed = hold(shard: oldest.shard) { shard -> Departed? in
        guard shard.table.oldestStamp(oldest.queue) == oldest.stamp, isDue() else { return nil }
        return remove(shard.table.oldest[oldest.queue], reason, from: &shard)
      }
      if var departed {
        if oldest.stamp >= begun { departed.isDiscardable = false }
        finish(departed)
        return true
      }
      if !isDue() { return true }
    }
  }

  private func mayGo(_ noted: NotedObject<Key, Value>, _ reason: DepartureReason) -> Bool {
    guard let asks = handlers.asks else { return true }
    return ThreadRole.whileTelling(of: question) { asks(noted.entry.key, noted.entry.value, reason) }
  }

  /// What a thread that asks is known by: not what one that tells is, since the departure handler's stores ask.
  private var question: ObjectIdentifier { ObjectIdentifier(noHandlers) }

  /// Each entry is asked about once, in the order of eviction; once more where a limit of entries comes to be exceeded beside one
  /// of costs. Not from inside of the closure, which would be asked about the same entry again and again: what its stores add
  /// the call around it evicts.
  @usableFromInline
  func enforceLimitsAsking(sparing stamp: UInt64, keepingContentSince begun: UInt64) {
    guard !ThreadRole.isTelling(of: question) else { return }
    if let later = unsafe ThreadRole.putOff(for: ObjectIdentifier(loads)) {
      return unsafe later.pointee.append { [self] in enforceLimits(sparing: stamp, keepingContentSince: begun) }
    }
    // Nobody is asked about these.
    if mayHaveExpired { dropExpired { isOverLimit } }
    guard let first = exceededLimit(growing: growthLimit) else { return }
    let end = MonotonicTime.now
    var isOfCosts = first.isOfCosts
    var walk = ObjectWalk(self, before: end) { !$0.isPinned && ($0.hasCost || !isOfCosts) }
    while let noted = walk.next(in: self) {
      guard let reason = exceededLimit(growing: growthLimit) else { return }
      if isOfCosts, !reason.isOfCosts {
        isOfCosts = false
        walk = ObjectWalk(self, before: end) { !$0.isPinned }
        continue
      }
      if noted.stamp == stamp || reason.isOfCosts && noted.entry.cost == 0 { continue }
      // The closure may have read the entry, or removed others.
      if mayGo(noted, reason), exceededLimit(growing: growthLimit) != nil {
        _ = remove(noted, reason, evenIfUsed: true, keepingContentSince: begun)
      }
    }
  }

  // MARK: On demand

  /// Evicts the oldest entries until `isDone`.
  func trim(_ reason: DepartureReason, onlyWithCost: Bool = false, until isDone: () -> Bool) {
    if mayHaveExpired { dropExpired { !isDone() } }
    // Bounded, because other threads may store meanwhile.
    var left = count
    while left > 0, !isDone() {
      left -= 1
      if !evictOldest(reason, onlyWithCost: onlyWithCost, { !isDone() }) { return }
    }
  }

  /// Drops the entries whose content is discarded. Returns how many.
  func sweep() -> Int {
    guard evictsDiscarded.load(ordering: .relaxed) else { return 0 }
    // Not those that are used or come meanwhile: the walk would go on as long as there are any.
    var walk = ObjectWalk(self, before: MonotonicTime.now + 1) { $0.isDiscardable }
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
    let wanted = max(1, count / PressureReaction.sliceShare)
    let hasGiven = discardContents(wanted, asks: true) > 0 || evictSlice(wanted)
    // What those who were asked have stored.
    if asks, isOverLimit { enforceLimits() }
    return hasGiven
  }

  /// Returns of how many entries the content is discarded. `asks`: whether they may go.
  func discardContents(_ wanted: Int, asks: Bool) -> Int {
    let evicts = evictsDiscarded.load(ordering: .relaxed)
    var walk = ObjectWalk(self, before: MonotonicTime.now) { $0.isDiscardable && !$0.isPinned }
    var discarded = 0
    while discarded < wanted, let noted = walk.next(in: self) {
      guard let content = noted.entry.value as? any DiscardableContent, !content.isContentDiscarded else { continue }
      // The entry would go with its content.
      if asks, evicts, !mayGo(noted, .pressure) { continue }
      content.discardContentIfPossible()
      guard content.isContentDiscarded else { continue }
      discarded += 1
      if evicts { _ = remove(noted, .discarded) }
    }
    return discarded
  }

  private func evictSlice(_ wanted: Int) -> Bool {
    var walk = ObjectWalk(self, before: MonotonicTime.now) { !$0.isPinned }
    var evicted = 0
    while evicted < wanted, let noted = walk.next(in: self) {
      if mayGo(noted, .pressure), remove(noted, .pressure, evenIfUsed: self.asks) { evicted += 1 }
    }
    return evicted > 0
  }
}

extension DepartureReason {
  /// Whether the limit is one that only entries with a cost count against.
  @usableFromInline var isOfCosts: Bool { self == .cost || self == .bytes }
}
