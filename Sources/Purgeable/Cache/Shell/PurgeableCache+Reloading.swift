// SPDX-License-Identifier: MIT
// Loading for validators that come with the value: the load gets the entry that is due, and says what holds now.

extension PurgeableCache: Reloading {
  /// The value of a key, else what `load` finds, in a task of its own. For validators that come with the value, as HTTP's ETag:
  /// `load` gets the entry that is due, nil where there is none, and says what holds now.
  ///
  ///     let pages = try PurgeableCache<String, [UInt8]>()
  ///     let page = try await pages.value(forKey: "cat", refreshAfter: .seconds(60)) { current in
  ///       current?.version == "7" ? .unchanged : .found(try await fetch("cat"), version: "7")
  ///     }
  ///
  /// `refreshAfter`: a value that was loaded with a `refreshAfter`, that long ago, is returned at once all the same, and `load`
  /// runs meanwhile, as in the async form of `value(forKey:)` for loads that may find nothing. nil: values are never due, and
  /// only misses load. An entry whose time is over is none: `load` gets nil, and the caller waits.
  ///
  /// After `unchanged` the entry has the time to live that it began with, and its cost, recompute cost, version and pin. It
  /// is stored anew by the cache: a handler is told `replaced`; where it was evicted meanwhile, it is back, as a normal one. A
  /// store or a removal while `load` runs wins, over every result. Where `load` throws while there is a value, that stays as it
  /// is. `unchanged` without a current entry returns nil, and nothing is remembered.
  ///
  /// Those who ask at the same time share one load, also with the other forms. Errors, cancellation, threads and cost: as in the
  /// async forms; a load that begins looks at the key's entry once more, and copies its value.
  @inlinable
  public nonisolated(nonsending) func value<E: Error>(
    forKey key: Key, refreshAfter: Duration? = nil,
    reloading load: @escaping @Sendable (_ current: CacheEntry<Key, Value>?) async throws(E) -> LoadResult<Value>
  ) async throws(E) -> Value? {
    let isFound = found(key, nil)
    if let value = isFound, refreshAfter == nil { return value }
    return try await reloaded(isFound, forKey: key, LoadTerms(nil, nil, nil, refreshAfter), load)
  }

  /// A key's entry, and how it was kept: for as long as from its beginning to its deadline.
  @usableFromInline
  func current(_ key: Key) -> (entry: CacheEntry<Key, Value>, terms: EntryTerms)? {
    peek(key).map { entry, peeked in
      let head = peeked.head
      return (
        entry,
        EntryTerms(
          cost: head.cost, recomputeCost: head.recomputeCost, version: entry.version,
          lifetime: Lifetime(until: head.deadline, from: head.made, now: moment, sinceLastUse: head.sinceLastUse))
      )
    }
  }
}
