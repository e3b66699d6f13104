// SPDX-License-Identifier: MIT
// What the public functions of a cache call on a miss: the load for one key or many, in a group as `Loading` wants it.

extension Loading {
  @inlinable
  func loadedValue<E: Error>(forKey key: Key, _ terms: LoadTerms, _ make: () throws(E) -> Value) throws(E) -> Value {
    // No nil: see `Loading.load`.
    try load(key, terms, takesNil: false, make)!
  }

  @inlinable
  func loadedValueIfAny<E: Error>(forKey key: Key, _ terms: LoadTerms, _ make: () throws(E) -> Value?) throws(E) -> Value? {
    try load(key, terms, takesNil: true, make)
  }

  @usableFromInline
  func loadedValues<E: Error>(
    forKeys keys: [Key], _ found: [Value?], _ terms: LoadTerms, _ make: ([Key]) throws(E) -> [Key: Value]
  ) throws(E) -> [Value?] {
    let missing = MissingKeys(keys, found)
    let made = try load(missing.keys, terms, takesNil: true) { (keys) throws(E) in
      let made = try make(keys)
      return keys.map { made[$0] }
    }
    return missing.fill(found, with: made)
  }

  @usableFromInline
  nonisolated(nonsending) func loadedValue<E: Error>(
    forKey key: Key, _ terms: LoadTerms, _ make: @escaping @Sendable () async throws(E) -> Value
  ) async throws(E) -> Value {
    try await load([key], terms, takesNil: false) { (_) async throws(E) in [try await make()] }[0]!
  }

  @usableFromInline
  nonisolated(nonsending) func loadedValueIfAny<E: Error>(
    forKey key: Key, _ terms: LoadTerms, _ make: @escaping @Sendable () async throws(E) -> Value?
  ) async throws(E) -> Value? {
    try await load([key], terms, takesNil: true) { (_) async throws(E) in [try await make()] }[0]
  }

  @usableFromInline
  nonisolated(nonsending) func loadedValues<E: Error>(
    forKeys keys: [Key], _ found: [Value?], _ terms: LoadTerms,
    _ make: @escaping @Sendable ([Key]) async throws(E) -> [Key: Value]
  ) async throws(E) -> [Value?] {
    let missing = MissingKeys(keys, found)
    let made = try await load(missing.keys, terms, takesNil: true) { (keys) async throws(E) in
      let made = try await make(keys)
      return keys.map { made[$0] }
    }
    return missing.fill(found, with: made)
  }
}
