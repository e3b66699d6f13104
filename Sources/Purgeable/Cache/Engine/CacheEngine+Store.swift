// SPDX-License-Identifier: MIT
// Stores and removals.

import Glibc
import Synchronization

/// A store's search for room that another thread keeps for a moment.
struct RoomSearch {
  var isBegun = false
  /// How often it may still be tried. A condition is asked once.
  var tries: Int

  init(_ condition: StoreCondition?) { tries = condition == nil ? 64 : 0 }
}

extension CacheEngine {
  /// Stores `value` under a key whose payload begins with `prefix`. nil where the condition did not hold,
  /// and nothing was stored.
  func store(
    _ key: EngineKey, prefix: RawSpan, value: RawSpan, _ head: EntryHead,
    if condition: StoreCondition? = nil
  ) -> StoreOutcome? {
    if value.byteCount >= heap.largeByteCount {
      return LargeStore(key, prefix, value, head, base.credits, if: condition).run(in: self)
    }
    var search = RoomSearch(condition)
    while true {
      let stored = shards.hold(homeOf: key) { held -> (StoreOutcome, DueAfterStore)? in
        if let condition, !condition.holds(key, prefix, in: &held) { return nil }
        return (held.store(key, prefix, value, head, among: shards), held.takeDue())
      }
      guard let (outcome, due) = stored else { return nil }
      if makesRoom(key, outcome, due, &search) { continue }
      finishStore(key, outcome, due)
      return outcome
    }
  }

  /// Whether a store that has missed room should try again. There was some in a shard whose mutex was taken, or in a slab that
  /// was being offered while its entries left: it goes back with the end of the offer. So waits for the mutex of the shard with
  /// the oldest slab, and evicts one; or waits for a moment. Called with no mutex held.
  func makesRoom(_ key: EngineKey, _ outcome: StoreOutcome, _ due: DueAfterStore, _ search: inout RoomSearch) -> Bool {
    if outcome == .outOfMemory, base.isAsking.load(ordering: .acquiring), search.tries > 0 {
      search.tries -= 1
      return asker.load()?.giveSlice() ?? false
    }
    if due.missedRoom { search.isBegun = true }
    guard outcome == .outOfMemory, search.isBegun, search.tries > 0 else { return false }
    search.tries -= 1
    var hasRoom = false
    shards.evictByAge(
      sparing: shards.shard(of: key).number, age: { $0.oldestSlabAge() }, until: { hasRoom },
      evict: { held in
        hasRoom = held.evictSlab(base.refusalReason)
        return hasRoom
      })
    if !hasRoom { usleep(100) }
    return true
  }

  /// Called after a store, with no mutex held.
  @inline(__always)
  func finishStore(_ key: EngineKey, _ outcome: StoreOutcome, _ due: DueAfterStore) {
    if outcome == .outOfMemory || outcome == .pinnedByteLimit { shards.hold(shards.shard(of: key)) { $0.counters.refusals += 1 } }
    // Compaction comes after the store: it may find the new value lost, and a store tells of one departure of its key only, the
    // old value's.
    if due.isCompaction { shards.hold(shards.shard(of: key)) { $0.compactIfDue() } }
    // Of two stores in two shards that exceed a limit together, one sees what the other has published.
    if base.limits.areStrict { atomicMemoryFence(ordering: .sequentiallyConsistent) }
    // Before the limits are looked at: other shards take bookkeeping.
    shards.openIfLarge()
    if base.isAsking.load(ordering: .acquiring) { return enforceLimitsAsking(sparing: key) }
    // The store's own shard had nothing left to evict; others may have.
    if base.isOverLimits { evictAboveLimits(sparing: shards.shard(of: key).number) }
  }

  private func enforceLimitsAsking(sparing key: EngineKey) {
    if let loads, let later = unsafe ThreadRole.putOff(for: ObjectIdentifier(loads)) {
      return unsafe later.pointee.append { [self] in enforceLimitsAsking(sparing: key) }
    }
    // Entries that fit in the slabs of fewer shards wait for those to close (`evict`).
    repeat { asker.load()?.enforceLimits(sparing: key) } while base.isOverByteLimit && shards.closeIfTooMany()
  }

  // MARK: Removing

  /// Removes everything. Other threads wait for a short while only (Shard/Removal.swift).
  func removeAll(_ reason: DepartureReason = .removed) {
    if base.observer != nil {
      shards.visit { shard in
        var removal = TrackedRemoval()
        shards.holdInParts(shard) { held in !removal.removeSlice(reason, from: &held) }
      }
      // Another call that gives back much may be in its handler, and slabs wait for its end: these go now.
      return heap.givingBackTogether {}
    }
    heap.givingBackTogether {
      base.removalCount.add(1, ordering: .relaxed)
      shards.visit { shard in shards.hold(shard) { held in held.detachAll(reason) } }
      base.giveBackRemoved()
      base.removalCount.subtract(1, ordering: .relaxed)
    }
  }
}
