// SPDX-License-Identifier: MIT
// Loading for validators that come with the value: the load gets the entry that is due, and says what holds now.

extension PurgeableCache {
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
  /// After `unchanged` the entry has the time to live that it began with, and its cost, recompute cost, priority and version. It
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

  @usableFromInline
  nonisolated(nonsending) func reloaded<E: Error>(
    _ found: Value?, forKey key: Key, _ terms: LoadTerms,
    _ load: @escaping @Sendable (CacheEntry<Key, Value>?) async throws(E) -> LoadResult<Value>
  ) async throws(E) -> Value? {
    if let found, !isDue(key, terms) { return found }
    let answer = LoadAnswer()
    var terms = terms
    terms.answer = answer
    let make = { @Sendable [terms] () async throws(E) -> Value? in
      // The load's permit is older: what is stored from here on wins.
      let current = self.peek(key)
      var said = terms
      let value: Value?
      switch try await load(current?.entry) {
      case .found(let made, let cost, let expiry, let version):
        value = made
        (said.cost, said.lifetime, said.version) = (cost.map { UInt64(max(0, $0)) }, expiry?.lifetime, version)
      case .absent(let time):
        value = nil
        said.absenceTime = time?.wholeNanoseconds ?? 0
      case .unchanged:
        value = current?.entry.value
        if let current { said.holdsOn(to: current.peeked.head, version: current.entry.version) }
      }
      answer.terms = said
      return value
    }
    guard let found else { return try await loadedValueIfAny(forKey: key, terms, make) }
    refresh(key, terms, make)
    return found
  }
}

extension LoadTerms {
  /// As the entry was kept that has this head, for as long as from its beginning to its deadline.
  fileprivate mutating func holdsOn(to head: EntryHead, version: String?) {
    (cost, recomputeCost, self.version) = (head.cost, head.recomputeCost, version)
    // Who is due has its age noted.
    let sinceCreation = head.deadline.map { $0 - min($0, head.made ?? 0) }
    lifetime = Lifetime(sinceCreation: sinceCreation, sinceLastUse: head.sinceLastUse)
  }
}
