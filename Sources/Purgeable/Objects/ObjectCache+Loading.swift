// SPDX-License-Identifier: MIT
// Loading: the value, else what a closure of the program makes, once for all who ask at the same time (Loading/).

// The forms of PurgeableCache+Loading.swift, which describes them, with the look-up compiled into callers as there.
extension ObjectCache: Reloading {
  @inlinable var loads: LoadTable<Key> { store.loads }
  @usableFromInline var moment: UInt64 { store.clock.now() }

  // MARK: On the caller's thread

  /// The value of a key, else what `load` makes, on this thread.
  ///
  ///     let pages = try ObjectCache<String, [UInt8]>(countLimit: 500)
  ///     func page(_ name: String) -> [UInt8] { pages.value(forKey: name) { render(name) } }
  ///
  /// As `PurgeableCache.value(forKey:loading:)`, in threads, errors, removals, forks and costs, with these differences:
  /// - What was loaded is stored with the cost of `costOfValue`, with `version`, and with `expiry`; nil stands for the cache's
  ///   default. The time of the load is noted as its recompute cost, which takes some 80 bytes.
  /// - A value whose content was found discarded is loaded again, unless `evictsEntriesWithDiscardedContent` is false.
  /// - An object that could not be kept is returned with its content: it is not asked to discard it.
  @_disfavoredOverload
  @inlinable
  public func value<E: Error>(
    forKey key: Key, version: String? = nil, expiry: Expiry? = nil, loading load: () throws(E) -> Value
  ) throws(E) -> Value {
    if let value = found(key, version) { return value }
    return try loadedValue(forKey: key, LoadTerms(version, expiry), load)
  }

  /// As the first, for a load that may find nothing. `keepingNilFor`: how long, by the cache's clock, that is remembered, of
  /// 4,096 keys at most; nil stands for not at all. Of what keys of types that are not Swift's own refer to, no bytes are known.
  /// See `PurgeableCache`.
  @_disfavoredOverload
  @inlinable
  public func value<E: Error>(
    forKey key: Key, version: String? = nil, expiry: Expiry? = nil, keepingNilFor: Duration? = nil,
    loading load: () throws(E) -> Value?
  ) throws(E) -> Value? {
    if let value = found(key, version) { return value }
    return try loadedValueIfAny(forKey: key, LoadTerms(version, expiry, keepingNilFor), load)
  }

  /// The values of keys, in the order of the keys, with one call of `load` for those that the cache lacks and that no other
  /// thread loads. Keys that the result of `load` lacks are nil, and not remembered. As the first form, for each key; see
  /// `PurgeableCache`.
  @_disfavoredOverload
  @inlinable
  public func values<E: Error>(
    forKeys keys: some Collection<Key>, expiry: Expiry? = nil, loading load: (_ missing: [Key]) throws(E) -> [Key: Value]
  ) throws(E) -> [Value?] {
    let begun = MonotonicTime.now
    let values = values(forKeys: keys)
    if values.allSatisfy({ $0 != nil }) { return values }
    return try loadedValues(forKeys: Array(keys), values, LoadTerms(nil, expiry, begun: begun), load)
  }

  // MARK: In a task

  /// The value of a key, else what `load` makes, in a task of its own, with the first asker's priority and task-local values.
  ///
  ///     let pages = try ObjectCache<String, [UInt8]>(countLimit: 500)
  ///     let page = try await pages.value(forKey: "cat") { try await fetch("cat") }
  ///
  /// As the form without `async`, and in what concerns tasks as that of `PurgeableCache`: blocks no thread; a hit does not
  /// suspend; who is cancelled leaves, and the load is cancelled when nobody waits for it; with `refreshAfter` an older value is
  /// returned at once, and loaded anew meanwhile.
  @inlinable
  public nonisolated(nonsending) func value<E: Error>(
    forKey key: Key, version: String? = nil, expiry: Expiry? = nil, refreshAfter: Duration? = nil,
    loading load: @escaping @Sendable () async throws(E) -> Value
  ) async throws(E) -> Value {
    let isFound = found(key, version)
    if let value = isFound, refreshAfter == nil { return value }
    let terms = LoadTerms(version, expiry, nil, refreshAfter)
    guard let value = isFound else { return try await loadedValue(forKey: key, terms, load) }
    refresh(key, terms) { () async throws(E) in try await load() }
    return value
  }

  /// As the async form for loads that always find something. `keepingNilFor`: as in the form without `async`. See
  /// `PurgeableCache`.
  @inlinable
  public nonisolated(nonsending) func value<E: Error>(
    forKey key: Key, version: String? = nil, expiry: Expiry? = nil, refreshAfter: Duration? = nil,
    keepingNilFor: Duration? = nil, loading load: @escaping @Sendable () async throws(E) -> Value?
  ) async throws(E) -> Value? {
    let isFound = found(key, version)
    if let value = isFound, refreshAfter == nil { return value }
    let terms = LoadTerms(version, expiry, keepingNilFor, refreshAfter)
    guard let value = isFound else { return try await loadedValueIfAny(forKey: key, terms, load) }
    refresh(key, terms, load)
    return value
  }

  /// The values of keys, in the order of the keys, with one call of `load`, in a task of its own, for those that the cache lacks
  /// and that nobody else loads. Keys that the result of `load` lacks are nil, and not remembered. See `PurgeableCache`.
  @inlinable
  public nonisolated(nonsending) func values<E: Error>(
    forKeys keys: some Collection<Key>, expiry: Expiry? = nil,
    loading load: @escaping @Sendable (_ missing: [Key]) async throws(E) -> [Key: Value]
  ) async throws(E) -> [Value?] {
    let begun = MonotonicTime.now
    let values = values(forKeys: keys)
    if values.allSatisfy({ $0 != nil }) { return values }
    return try await loadedValues(forKeys: Array(keys), values, LoadTerms(nil, expiry, begun: begun), load)
  }

  /// The value of a key, else what `load` finds, in a task of its own: `load` gets the entry that is due, nil where there is
  /// none, and says what holds now. As `PurgeableCache.value(forKey:refreshAfter:reloading:)`, with the cost of `costOfValue`
  /// where the load says none. After `unchanged` the same object stands there, with its content.
  @inlinable
  public nonisolated(nonsending) func value<E: Error>(
    forKey key: Key, refreshAfter: Duration? = nil,
    reloading load: @escaping @Sendable (_ current: CacheEntry<Key, Value>?) async throws(E) -> LoadResult<Value>
  ) async throws(E) -> Value? {
    let isFound = found(key, nil)
    if let value = isFound, refreshAfter == nil { return value }
    return try await reloaded(isFound, forKey: key, LoadTerms(nil, nil, nil, refreshAfter), load)
  }

  // MARK: Keeping

  /// Of a version, or whatever there is.
  @inlinable @inline(__always)
  func found(_ key: Key, _ version: String?) -> Value? {
    guard let version else { return value(forKey: key) }
    // Whether it is known to be absent, the load asks.
    guard case .hit(let value) = lookUp(key, version) else { return nil }
    return value
  }

  @inlinable
  func keep(_ value: Value, forKey key: Key, _ terms: LoadTerms, _ permit: LoadPermit, recomputeCost: UInt64) {
    guard let notes = ObjectNotes(terms, recomputeCost: recomputeCost, at: moment) else {
      _ = countRefusal(.notEncodable)
      return
    }
    _ = set(
      value, key, terms.cost.map { Int(clamping: $0) }, store.time(terms.lifetime), nil, notes,
      if: .permit(permit, begun: terms.begun))
  }

  @inlinable var callsProgram: Bool { store.tells || store.asks }

  @usableFromInline
  func birth(ofValueForKey key: Key) -> UInt64? {
    store.hold(key) { shard, position, _ in
      position == noPosition || store.isOver(position, in: shard.table) ? nil : shard.table.notes(at: position)?.made
    }
  }

  @usableFromInline
  func current(_ key: Key) -> (entry: CacheEntry<Key, Value>, terms: EntryTerms)? {
    guard let found = find(key), !isGone(found) else { return nil }
    let (deadline, idle) = (found.time.deadline, found.time.idle)
    return (
      found.entry,
      EntryTerms(
        cost: UInt64(found.entry.cost), recomputeCost: found.notes?.recomputeCost, version: found.entry.version,
        lifetime: Lifetime(
          until: deadline == .max ? nil : deadline, from: found.notes?.made, now: moment, sinceLastUse: idle == .max ? nil : idle)
      )
    )
  }

  @usableFromInline
  func drop(_ key: Key, version: String?, _ permit: LoadPermit, _ announce: (@Sendable () -> Bool)?) -> Bool {
    var isCurrent = false
    let departed = store.hold(key) { shard, position, _ -> DepartedObject<Key, Value>? in
      isCurrent = permit.take(announcing: announce)
      guard isCurrent, position != noPosition,
        version == nil || VersionLimit.isSame(shard.table.notes(at: position)?.version, version)
      else { return nil }
      return store.remove(position, store.isOver(position, in: shard.table) ? .expired : .removed, from: &shard)
    }
    if let departed { store.finish(departed) }
    return isCurrent
  }

  @inlinable
  func peekValue(forKey key: Key, version: String?) -> Value? {
    store.hold(key) { _, position, _ in position != noPosition } ? peekListed(key, version) : nil
  }

  @usableFromInline
  func peekListed(_ key: Key, _ version: String?) -> Value? {
    guard let entry = peekEntry(forKey: key), version == nil || VersionLimit.isSame(entry.version, version) else { return nil }
    return entry.value
  }

  @usableFromInline var absentByteLimit: Int { Self.mostAbsentBytes }
  @usableFromInline func absenceWasNoted() {}
}
