// SPDX-License-Identifier: MIT
// Enumerating, and what is decided over all entries. What is fast is compiled into its callers, as in ObjectCache+Access.swift.

extension ObjectCache {
  /// All entries at about this moment, the least recently used first, for loops that may change the cache. Does not count as a
  /// use. Each entry that stays meanwhile is there once. Takes the memory of the list; holds one shard's mutex at a time.
  @inlinable
  public var entries: [CacheEntry<Key, Value>] { entries(atOnce: false) }

  @inlinable
  func entries(atOnce: Bool) -> [CacheEntry<Key, Value>] {
    let now = moment
    let all = store.all(atOnce: atOnce) { table, position, _ in
      (CacheEntry(table, position, now: now), table[position].queue.isDiscardable)
    }
    return all.compactMap { entry, isDiscardable in
      entry.isOver || isDiscardable && isLeaving(entry.value) ? nil : entry
    }
  }

  /// The keys of `entries`, in the order of eviction: speculative ones first, pinned ones last.
  @inlinable
  public var keys: [Key] { entries.map { $0.key } }

  /// The values of `entries`.
  @inlinable
  public var values: [Value] { entries.map { $0.value } }

  /// All keys and values as they are at one moment. Stores, removals and look-ups wait while they are listed. Of what another
  /// thread's `setValues`, `remove(forKeys:)` or `removeAll()` does it sees all or nothing: it waits for these, a second at
  /// most, and sees a part of what takes longer.
  public func snapshot() -> [Key: Value] {
    let entries = store.lazy.batches.look { self.entries(atOnce: true) }
    // A key that the program changed after it was stored may come twice.
    return Dictionary(entries.map { ($0.key, $0.value) }, uniquingKeysWith: { $1 })
  }

  // MARK: Verdicts

  /// Removes the entries for which the closure says so, over a snapshot, the least recently used first. A value that was stored
  /// meanwhile stays. Returns how many were removed. An error leaves the removals before it.
  @discardableResult
  public func removeAll<E: Error>(where isRemovable: (CacheEntry<Key, Value>) throws(E) -> Bool) throws(E) -> Int {
    try takeOutAll(.removed, where: isRemovable)
  }

  /// Evicts the entries for which the closure says so: as `removeAll(where:)`, but they leave for the reason `decider`, and
  /// pinned ones, and those that leave for discarded content, are not asked about. What the verdicts go by is what the closure
  /// captures. Returns how many left.
  @discardableResult
  public func evictAll<E: Error>(where isEvictable: (CacheEntry<Key, Value>) throws(E) -> Bool) throws(E) -> Int {
    try takeOutAll(.decider, where: isEvictable)
  }

  private func takeOutAll<E: Error>(
    _ reason: DepartureReason, where mayGo: (CacheEntry<Key, Value>) throws(E) -> Bool
  ) throws(E) -> Int {
    let now = moment
    var count = 0
    for noted in store.all({ NotedObject($0, $1, shard: $2, now: now) }) {
      let entry = noted.entry
      if entry.isOver || reason != .removed && (entry.priority == .pinned || isLeaving(entry.value)) { continue }
      guard try mayGo(entry) else { continue }
      loads.overtake(entry.key)
      // What the handler loads comes after the removal.
      ending {
        if store.remove(noted, reason, evenIfUsed: true) { count += 1 }
        loads.overtake(entry.key)
      }
    }
    return count
  }
}
