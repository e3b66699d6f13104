// SPDX-License-Identifier: MIT
// Loads that get the entry that is due, and say what holds now.

/// How an entry was kept.
@usableFromInline
struct EntryTerms {
  var cost: UInt64?
  var recomputeCost: UInt64?
  var version: String?
  var lifetime: Lifetime
}

/// A cache whose loads may get the entry that is due.
@usableFromInline
protocol Reloading<Key, Value>: Loading {
  /// A key's entry, without counting a use, and how it was kept.
  func current(_ key: Key) -> (entry: CacheEntry<Key, Value>, terms: EntryTerms)?
}

extension Reloading {
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
      let current = self.current(key)
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
        if let kept = current?.terms {
          (said.cost, said.recomputeCost, said.version) = (kept.cost, kept.recomputeCost, kept.version)
          said.lifetime = kept.lifetime
        }
      }
      answer.terms = said
      return value
    }
    guard let found else { return try await loadedValueIfAny(forKey: key, terms, make) }
    refresh(key, terms, make)
    return found
  }
}
