// SPDX-License-Identifier: MIT
// Loading: the value, else what a closure of the program makes, once for all who ask at the same time (Loading/).

// The forms of PurgeableCache+Loading.swift, which describes them, with the look-up compiled into callers as there.
extension ObjectCache: Loading {
  @inlinable var loads: LoadTable<Key, Value> { store.loads }
  @usableFromInline var moment: UInt64 { store.clock.now() }

  // MARK: On the caller's thread

  /// The value of a key, else what `load` makes, on this thread.
  ///
  ///     let pages = try ObjectCache<String, [UInt8]>(countLimit: 500)
  ///     func page(_ name: String) -> [UInt8] { pages.value(forKey: name) { render(name) } }
  ///
  /// As `PurgeableCache.value(forKey:loading:)`, in threads, errors, removals, forks and costs, with these differences:
  /// - What was loaded is stored with the cost of `costOfValue`, and with `expiry`; nil stands for the cache's default.
  /// - A value whose content was found discarded is loaded again, unless `evictsEntriesWithDiscardedContent` is false.
  /// - An object that could not be kept is returned with its content: it is not asked to discard it.
  @_disfavoredOverload
  @inlinable
  public func value<E: Error>(
    forKey key: Key, expiry: Expiry? = nil, loading load: () throws(E) -> Value
  ) throws(E) -> Value {
    if let value = value(forKey: key) { return value }
    return try loadedValue(forKey: key, LoadTerms(nil, expiry), load)
  }

  /// As the first, for a load that may find nothing. `keepingNilFor`: how long, by the cache's clock, that is remembered, of
  /// 4,096 keys at most; nil stands for not at all. Of what keys of types that are not Swift's own refer to, no bytes are known.
  /// See `PurgeableCache`.
  @_disfavoredOverload
  @inlinable
  public func value<E: Error>(
    forKey key: Key, expiry: Expiry? = nil, keepingNilFor: Duration? = nil, loading load: () throws(E) -> Value?
  ) throws(E) -> Value? {
    if let value = value(forKey: key) { return value }
    return try loadedValueIfAny(forKey: key, LoadTerms(nil, expiry, keepingNilFor), load)
  }

  /// The values of keys, in the order of the keys, with one call of `load` for those that the cache lacks and that no other
  /// thread loads. Keys that the result of `load` lacks are nil, and not remembered. As the first form, for each key; see
  /// `PurgeableCache`.
  @_disfavoredOverload
  @inlinable
  public func values<E: Error>(
    forKeys keys: some Collection<Key>, expiry: Expiry? = nil, loading load: (_ missing: [Key]) throws(E) -> [Key: Value]
  ) throws(E) -> [Value?] {
    let values = values(forKeys: keys)
    if values.allSatisfy({ $0 != nil }) { return values }
    return try loadedValues(forKeys: Array(keys), values, LoadTerms(nil, expiry), load)
  }

  // MARK: In a task

  /// The value of a key, else what `load` makes, in a task of its own, with the first asker's priority and task-local values.
  ///
  ///     let pages = try ObjectCache<String, [UInt8]>(countLimit: 500)
  ///     let page = try await pages.value(forKey: "cat") { try await fetch("cat") }
  ///
  /// As the form without `async`, and in what concerns tasks as that of `PurgeableCache`: blocks no thread; a hit does not
  /// suspend; who is cancelled leaves, and the load is cancelled when nobody waits for it.
  @inlinable
  public nonisolated(nonsending) func value<E: Error>(
    forKey key: Key, expiry: Expiry? = nil, loading load: @escaping @Sendable () async throws(E) -> Value
  ) async throws(E) -> Value {
    if let value = value(forKey: key) { return value }
    return try await loadedValue(forKey: key, LoadTerms(nil, expiry), load)
  }

  /// As the async form for loads that always find something. `keepingNilFor`: as in the form without `async`. See
  /// `PurgeableCache`.
  @inlinable
  public nonisolated(nonsending) func value<E: Error>(
    forKey key: Key, expiry: Expiry? = nil, keepingNilFor: Duration? = nil,
    loading load: @escaping @Sendable () async throws(E) -> Value?
  ) async throws(E) -> Value? {
    if let value = value(forKey: key) { return value }
    return try await loadedValueIfAny(forKey: key, LoadTerms(nil, expiry, keepingNilFor), load)
  }

  /// The values of keys, in the order of the keys, with one call of `load`, in a task of its own, for those that the cache lacks
  /// and that nobody else loads. Keys that the result of `load` lacks are nil, and not remembered. See `PurgeableCache`.
  @inlinable
  public nonisolated(nonsending) func values<E: Error>(
    forKeys keys: some Collection<Key>, expiry: Expiry? = nil,
    loading load: @escaping @Sendable (_ missing: [Key]) async throws(E) -> [Key: Value]
  ) async throws(E) -> [Value?] {
    let values = values(forKeys: keys)
    if values.allSatisfy({ $0 != nil }) { return values }
    return try await loadedValues(forKeys: Array(keys), values, LoadTerms(nil, expiry), load)
  }

  // MARK: Keeping

  @usableFromInline
  func keep(_ value: Value, forKey key: Key, _ terms: LoadTerms, _ permit: LoadPermit, recomputeCost: UInt64) {
    _ = set(value, key, nil, store.time(terms.lifetime), if: .permit(permit))
  }

  // Nobody asks for a version or an age.
  @usableFromInline func birth(ofValueForKey key: Key) -> UInt64? { nil }
  @usableFromInline func drop(_ key: Key, _ permit: LoadPermit) -> Bool { false }
  @usableFromInline func peekValue(forKey key: Key, version: String?) -> Value? { peekValue(forKey: key) }
  @usableFromInline var absentByteLimit: Int { Self.mostAbsentBytes }
  @usableFromInline func absenceWasNoted() {}
}
