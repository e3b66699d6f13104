// SPDX-License-Identifier: MIT
// For a second tier behind the cache (PurgeableSQLite): stores that a later one may have overtaken, and loads that look there
// first.

/// What the second tier, or a load behind it, found.
package enum TierResult<Value: Sendable>: Sendable {
  case found(TierValue<Value>)
  /// `keptFor`: so long it is remembered; nil for not at all. `isMade`: by a load behind the tier. `announce`: as of a value; an
  /// older one goes.
  case absent(keptFor: Duration? = nil, isMade: Bool = false, announce: (@Sendable () -> Bool)? = nil)
}

package struct TierValue<Value: Sendable>: Sendable {
  package var value: Value
  package var cost: Int?
  package var expiry: Expiry?
  package var version: String?
  /// In nanoseconds; nil for the time of the load.
  package var recomputeCost: UInt64?
  /// By a load behind the tier, and not found there.
  package var isMade = false
  /// Since it was made.
  package var age = Duration.zero
  /// Asked once whether the value is kept, unless something else was stored under the key, or the key was removed, while it was
  /// loaded. Here the second tier takes what it is to have, too; and says no where it has had a change of the key since it was
  /// read: such a change may have overtaken loads before this one began, and be stored after it.
  package var announce: (@Sendable () -> Bool)?

  package init(_ value: Value) { self.value = value }

  /// As it is kept.
  fileprivate init(_ value: Value, _ terms: EntryTerms) {
    self.value = value
    (cost, recomputeCost, version) = (terms.cost.map { Int(clamping: $0) }, terms.recomputeCost, terms.version)
    expiry = Expiry(terms.lifetime) ?? .never
  }
}

extension PurgeableCache {
  /// As `setValue`. `announce` is called once, when its turn among all stores of the key is decided: under a mutex, so it is not
  /// to do much. Where nothing is stored, the key has no value afterwards.
  package func setValue(
    _ value: Value, forKey key: Key, cost: Int?, expiry: Expiry?, version: String?, announcing announce: () -> Void
  ) -> StoreOutcome {
    loads.overtake(key)
    defer { loads.overtake(key) }
    var isAnnounced = false
    var terms = LoadTerms(version, expiry)
    terms.cost = cost.map { UInt64(max(0, $0)) }
    let outcome = withoutActuallyEscaping(announce) { announce in
      keep(
        value, forKey: key, terms,
        if: .announced(nil) {
          isAnnounced = true
          announce()
          return true
        })
    }
    if outcome.isStored { return outcome }
    if !isAnnounced { announce() }
    // An older value must not outlive this one.
    remove(forKey: key)
    return outcome
  }

  /// As `remove(forKey:)`, with `announce` called when no load from before can be kept any more.
  package func remove(forKey key: Key, announcing announce: () -> Void) {
    loads.overtake(key)
    announce()
    remove(forKey: key)
  }

  /// As `removeAll()`.
  package func removeAll(announcing announce: () -> Void) {
    loads.overtakeAll()
    announce()
    removeAll()
  }

  // MARK: Loads, for a key that has just been looked up in vain

  /// What `load` finds, on this thread. `isLookUp`: it looks in the second tier, and nowhere else. `takesNil`: false for a load
  /// that always finds a value: an asker of the other kind, whose load found none, is none to wait for; then the value is there.
  package func loadedValue<E: Error>(
    forKey key: Key, version: String?, isLookUp: Bool = false, takesNil: Bool = true,
    tier load: () throws(E) -> TierResult<Value>
  ) throws(E) -> Value? {
    let (terms, answer) = tierTerms(version, nil, isLookUp: isLookUp)
    return try self.load(key, terms, takesNil: takesNil) { () throws(E) in answer.take(try load(), terms) }
  }

  /// `found`: what the look-up found. A value is due to be loaded anew after that time; `load` gets whether there is one.
  package nonisolated(nonsending) func loadedValue<E: Error>(
    _ found: Value? = nil, forKey key: Key, version: String?, refreshAfter: Duration? = nil, isLookUp: Bool = false,
    takesNil: Bool = true, tier load: @escaping @Sendable (_ isRefresh: Bool) async throws(E) -> TierResult<Value>
  ) async throws(E) -> Value? {
    let (terms, answer) = tierTerms(version, refreshAfter, isLookUp: isLookUp)
    guard let value = found else {
      return try await self.load([key], terms, takesNil: takesNil) { (_) async throws(E) in
        [answer.take(try await load(false), terms)]
      }[0]
    }
    refresh(key, terms) { () async throws(E) in answer.take(try await load(true), terms) }
    return value
  }

  /// The entry that is loaded anew, with all that it is kept by.
  package func currentInTier(_ key: Key) -> (entry: CacheEntry<Key, Value>, kept: TierValue<Value>)? {
    current(key).map { entry, terms in (entry, TierValue(entry.value, terms)) }
  }

  // MARK: One tier, its time and its uses

  /// False where another tier has the cache.
  package func takeForTier() -> Bool { !hasTier.exchange(true, ordering: .relaxed) }
  package func leaveTier() { hasTier.store(false, ordering: .relaxed) }

  /// The time of the day, in nanoseconds since 1970: the machine's, or, where the cache has a clock of its own, from now on by
  /// that one.
  package var wallTime: @Sendable () -> Int64 {
    let clock = engine.base.clock
    if clock.isSystem { return { WallTime.now } }
    let (start, moment) = (WallTime.now, clock.now())
    return {
      let now = clock.now()
      let (sum, isBeyond) = start.addingReportingOverflow(Int64(clamping: now - min(now, moment)))
      return isBeyond ? .max : sum
    }
  }

  /// From now on the last use of each entry is noted, also where nothing expires by it.
  package func noteUses() { engine.noteUses() }

  /// The moment to ask for uses since, in nanoseconds of the cache's clock.
  package var useMoment: UInt64 { moment }

  /// Calls `body` for the keys of entries that were stored or used since a moment, as in `keys`, with the nanoseconds since then,
  /// until it returns false.
  package func forEachKey(usedSince moment: UInt64, _ body: (Key, _ age: UInt64) -> Bool) {
    var walk = KeyWalk(self, usedSince: UseTime(moment))
    while let key = walk.next() {
      let now = self.moment
      guard body(key, now - min(now, walk.lastUse?.moment(asOf: now) ?? now)) else { return }
    }
  }

  private func tierTerms(_ version: String?, _ refreshTime: Duration?, isLookUp: Bool = false) -> (LoadTerms, LoadAnswer) {
    var terms = LoadTerms(version, nil, nil, refreshTime)
    let answer = LoadAnswer()
    (terms.answer, terms.isLookUp) = (answer, isLookUp)
    return (terms, answer)
  }
}

extension LoadAnswer {
  fileprivate func take<Value>(_ result: TierResult<Value>, _ terms: LoadTerms) -> Value? {
    var said = terms
    defer { self.terms = said }
    switch result {
    case .absent(let time, let isMade, let announce):
      (said.absenceTime, said.countsAsLoad, said.announce) = (time?.wholeNanoseconds ?? 0, isMade, announce)
      return nil
    case .found(let found):
      (said.cost, said.recomputeCost) = (found.cost.map { UInt64(max(0, $0)) }, found.recomputeCost)
      (said.lifetime, said.version, said.age) = (found.expiry?.lifetime, found.version, found.age.wholeNanoseconds)
      (said.announce, said.countsAsLoad) = (found.announce, found.isMade)
      return found.value
    }
  }
}
