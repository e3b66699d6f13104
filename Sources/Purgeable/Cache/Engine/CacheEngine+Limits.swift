// SPDX-License-Identifier: MIT
// Changing limits, and bringing the cache below them.

import Synchronization

extension CacheEngine {
  /// Changes the budget, and brings the cache below its limits.
  func change(_ body: (inout CacheBudget) -> Void) {
    base.limits.change(heap, body)
    fillMainAnew()
    enforceByteLimit()
  }

  /// Called after a limit of count or cost was changed.
  func enforceChangedLimits() {
    fillMainAnew()
    enforceLimits()
  }

  /// Where a limit was raised, there is room as in a new cache.
  private func fillMainAnew() {
    for shard in shards.all { shards.hold(shard) { held in held.hasEvicted = false } }
  }

  /// Brings the cache below its limits, where one may be exceeded. On the library's thread the program cannot be asked: where it
  /// has to be, the next store does this.
  func enforceLimits() {
    if base.isAsking.load(ordering: .acquiring), let loads, let later = unsafe ThreadRole.putOff(for: ObjectIdentifier(loads)) {
      return unsafe later.pointee.append { [self] in enforceLimits() }
    }
    repeat {
      if base.isAsking.load(ordering: .acquiring) {
        if ThreadRole.isLibrary { break }
        asker.load()?.enforceLimits(sparing: nil)
      } else {
        // Who lowers a limit wants the memory: no slab is kept for the next store.
        heap.givingBackTogether { evictAboveLimits() }
      }
    } while shards.closeIfTooMany()
    shards.reviewOpening()
  }

  /// Brings the cache below its limits by evicting from the shard that is next by age, again and again. After a store whose own
  /// shard had nothing left to evict, that shard is spared as long as others have entries, since evicting there could take the
  /// entry just stored.
  func evictAboveLimits(sparing spared: Int? = nil) {
    shards.evictByAge(
      sparing: spared,
      age: { held in
        switch base.exceededLimit {
        case .bytes, nil: held.oldestSlabAge()
        case let reason?: held.nextAge(EvictionNeed(reason))
        }
      },
      until: { !base.isOverLimits },
      evict: { held in
        switch base.exceededLimit {
        case .bytes: held.fitBookkeeping() || held.evictSlab(.bytes)
        case let reason?: held.evictEntry(EvictionNeed(reason))
        case nil: true
        }
      })
  }

  /// Called after the byte limit was changed. A cache that has grown needs more memory when it is empty than a fresh one does: if
  /// it is still above the limit with no entry left, the limit becomes what it needs.
  func enforceByteLimit() {
    fitBookkeeping()
    enforceLimits()
    fitBookkeeping()
    let limit = base.limits.bytes.load(ordering: .relaxed)
    let needed = base.neededBytes
    guard limit > 0, base.count <= 0, needed > limit else { return }
    base.limits.leastBytes.store(needed, ordering: .relaxed)
    base.limits.apply(to: heap)
  }

  /// Above the byte limit, shrinks the bookkeeping of all shards, also of those that have nothing to evict.
  func fitBookkeeping() {
    for shard in shards.all where base.exceededLimit == .bytes { _ = shards.hold(shard) { held in held.fitBookkeeping() } }
  }

  /// Notes the level of pressure, on which the locked limit depends.
  func setPressure(_ level: PressureLevel) {
    let before = base.limits.pressure.exchange(level.rawValue, ordering: .relaxed)
    if level > .normal { base.limits.pressureFelt.store(true, ordering: .relaxed) }
    if before != level.rawValue { base.limits.apply(to: heap) }
  }
}
