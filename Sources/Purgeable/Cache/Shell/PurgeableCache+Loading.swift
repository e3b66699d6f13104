// SPDX-License-Identifier: MIT
// Loading: the value, else what a closure of the program makes, once for all who ask at the same time (Loading/).

// The look-up is compiled into its callers, as `value(forKey:)` is: a hit pays nothing for the load.
extension PurgeableCache: Loading {
  // MARK: On the caller's thread

  /// The value of a key, else what `load` makes, on this thread.
  ///
  ///     let pages = try PurgeableCache<String, [UInt8]>()
  ///     func page(_ name: String) -> [UInt8] { pages.value(forKey: name) { render(name) } }
  ///
  /// - One load a key at a time: other threads that ask for the key meanwhile wait, and get the value of the first; other keys
  ///   are not held up. They get its error where their own `load` could throw it; else they load by themselves.
  /// - What was loaded is returned also where the cache could not keep it, and is stored with its bytes as its cost. Errors are
  ///   not kept. A value that the kernel took, or that was evicted, is loaded again.
  /// - A store or a removal of the key while `load` runs wins: what was loaded is returned, and not kept; who asks after it does
  ///   not get what was being loaded before. Also where the key has no value, and for `removeAll`. In a forked child, what its
  ///   parent was loading is not kept.
  /// - `load` runs under no mutex and may use the cache. Where it asks for its own key on the same thread, the inner load runs at
  ///   once. Two loads that wait for each other's keys wait for ever, as two mutexes would. A load that never returns harms its
  ///   own key only; who asks after a removal of the key does not wait for it.
  /// - Waits for loads of threads only. Where a task loads the key (the async form), this loads by itself; who ends first is
  ///   kept.
  ///
  /// `version`: an entry of another version, or of none, is a miss (`outdated`), and what is loaded gets this one and takes its
  /// place. Askers of different versions do not share a load: the first to end is kept. One of more than 255 bytes has what is
  /// loaded returned, and not kept. A call that gives no version takes any.
  ///
  /// `expiry`: how long what is loaded is valid; nil stands for the cache's default. With a time of 0 or less it is returned, and
  /// not kept. Of askers that share a load, the one that loads says it. The time of the load, by the cache's clock, is the
  /// entry's recompute cost. Where only the load knows how long its value is valid, it stores the value itself, and returns it.
  ///
  /// Any thread. Counts as a use or as a miss, and then as a load in the statistics. Cost: a hit as `value(forKey:)`; a miss two
  /// short mutexes and some ten small allocations beside the load and the store. Not for code that has to survive without
  /// memory.
  ///
  /// `@_disfavoredOverload`: in async code the compiler takes the async form and asks for `await`.
  @_disfavoredOverload
  @inlinable
  public func value<E: Error>(
    forKey key: Key, version: String? = nil, expiry: Expiry? = nil, loading load: () throws(E) -> Value
  ) throws(E) -> Value {
    if let value = found(key, version) { return value }
    return try loadedValue(forKey: key, LoadTerms(version, expiry), load)
  }

  /// As the first, for a load that may find nothing. Those who wait get nil too, unless their `load` always makes a value; they
  /// load by themselves then. (A closure of several statements means the form above, unless its type says otherwise. Where the
  /// result goes to an optional, as in `let page: [UInt8]? =`, it is this form, whatever the closure makes.)
  ///
  ///     let pages = try PurgeableCache<String, [UInt8]>()
  ///     func page(_ name: String) -> [UInt8]? {
  ///       pages.value(forKey: name, keepingNilFor: .seconds(5)) { () -> [UInt8]? in name.isEmpty ? nil : render(name) }
  ///     }
  ///
  /// `keepingNilFor`: how long, by the cache's clock, it is remembered that there is nothing; nil, or 0 or less, stands for not
  /// at all. For that time this and the other forms for loads that may find nothing, and those for many keys, return nil without
  /// a load where they ask for the same `version` (nil: for any), and `lookUpValue(forKey:)` says `MissReason.absent`. A store
  /// under the key or a removal ends it at once, and wins over a load that is under way; so does a load that always makes a
  /// value. What is remembered is no entry: it is in no count, cost or list, and limits do not evict it. It is forgotten when
  /// memory is short, in a forked child, and where more is asked for than can be remembered: 4,096 keys at most, of 256 bytes at
  /// most. They take a sixteenth of the byte limit at most, and no more than 1 MiB, of ordinary memory, which counts; with a
  /// limit of less than 256 KiB nothing is remembered. Cost: none for a hit, a short mutex for a miss.
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
  /// thread loads. Keys that the result of `load` lacks are nil, and not remembered.
  ///
  ///     let pages = try PurgeableCache<String, [UInt8]>()
  ///     func found(_ names: [String]) -> [[UInt8]?] {
  ///       pages.values(forKeys: names) { missing in
  ///         Dictionary(uniqueKeysWithValues: missing.map { ($0, render($0)) })
  ///       }
  ///     }
  ///
  /// As the first form, for each key; a key that comes twice is loaded once. Others wait for single keys of the call until the
  /// call has ended. The caller's own load runs before it waits for others, so two calls with the same keys do not block each
  /// other. Where another's load fails with an error that this `load` cannot throw, `load` is called once more, for those keys.
  /// Values under keys that were not asked for are dropped. Any thread. Cost: hits as `values(forKeys:)`.
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
  ///     let pages = try PurgeableCache<String, [UInt8]>()
  ///     let page = try await pages.value(forKey: "cat") { try await fetch("cat") }
  ///
  /// As the form without `async`, with these differences:
  /// - Blocks no thread; a hit does not suspend. Waits for loads of tasks and of threads.
  /// - An asker whose task is cancelled leaves with `CancellationError` where E can be that (plain `throws`), else it waits: also
  ///   where the closure throws nothing, unless it says `{ () async throws -> [UInt8] in`. The load goes on for the others. It is
  ///   cancelled when nobody waits; who asks then loads anew.
  /// - Where `load` asks for its own key, in its task or in a child task, the inner load runs at once. (Not in a detached task,
  ///   which knows nothing of the load.)
  ///
  /// `refreshAfter`: a value that was loaded with a `refreshAfter`, that long ago by the cache's clock, is returned at once all
  /// the same, and loaded anew meanwhile, by one task whoever else asks; 0 or less stands for each hit. What that load makes
  /// takes the value's place, with an age and an expiry that begin anew. Where it throws, the old value stays until it expires,
  /// and the next hit tries again: only `CacheStatistics.loadFailureCount` tells of the error. A store or a removal meanwhile
  /// wins, as over any load. Values that were stored, or loaded without it, are never loaded anew. `CacheOptions.refreshLimit`
  /// values are loaded anew at a time, no more. Such an entry takes 9 bytes more, and a hit looks at it twice; one that begins a
  /// load takes a task.
  ///
  /// Any thread and any actor; `load` runs where its own isolation says. Cost: a hit as `value(forKey:)`; a miss, beside the load
  /// and the store, a task and two short mutexes.
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

  /// As the async form for loads that always find something. Those who wait get nil too, unless their `load` always makes a
  /// value: they load by themselves then. `keepingNilFor`: as in the form without `async`. `refreshAfter`, cancellation, threads
  /// and cost: as in the first async form. A refresh that finds nothing takes the older value away (`removed`).
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
  /// and that nobody else loads. Keys that the result of `load` lacks are nil, and not remembered.
  ///
  ///     let pages = try PurgeableCache<String, [UInt8]>()
  ///     let found = try await pages.values(forKeys: ["cat", "dog"]) { missing in
  ///       var made: [String: [UInt8]] = [:]
  ///       for name in missing { made[name] = try await fetch(name) }
  ///       return made
  ///     }
  ///
  /// As the form without `async`, and for cancellation as the async form for one key: the load is cancelled when nobody waits for
  /// any of its keys. Where another's load fails, and the error is shared, this throws at once; the call's own load goes on as
  /// long as others wait for it. Any thread and any actor. Cost: hits as `values(forKeys:)`.
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

  /// Of a version, or whatever there is.
  @inlinable @inline(__always)
  package func found(_ key: Key, _ version: String?) -> Value? {
    guard let version else { return value(forKey: key) }
    // Whether it is known to be absent, the load asks.
    guard case .hit(let value) = lookUp(key, version: version, countsAsUse: true) else { return nil }
    return value
  }

  @inlinable
  func peekValue(forKey key: Key, version: String?) -> Value? {
    guard let version else { return peekValue(forKey: key) }
    guard case .hit(let value) = lookUp(key, version: version, countsAsUse: false) else { return nil }
    return value
  }

  @usableFromInline
  var moment: UInt64 { engine.base.clock.now() }

  @usableFromInline
  func keep(_ value: Value, forKey key: Key, _ terms: LoadTerms, _ permit: LoadPermit, recomputeCost: UInt64) {
    let outcome = keep(value, forKey: key, terms, if: .announced(permit, terms.announce), recomputeCost: recomputeCost)
    guard let announce = terms.announce, !outcome.isStored else { return }
    // The second tier may take what this one does not; then no older value is to be here, and what has come meanwhile stays.
    if permit.isKept { remove(forKey: key) } else { _ = drop(key, version: nil, permit, announce) }
  }

  @discardableResult
  func keep(
    _ value: Value, forKey key: Key, _ terms: LoadTerms, if condition: StoreCondition, recomputeCost: UInt64? = nil
  ) -> StoreOutcome {
    // Without the permit it counts as replaced by what overtook it.
    encoding(value, forKey: key, cost: terms.cost) { bytes in
      if terms.lifetime?.isOver == true { return refuseAtOnce(key, if: condition) }
      if VersionLimit.isExceeded(by: terms.version) { return .notEncodable }
      let now = terms.notesAge ? moment : nil
      var head = engine.base.head(cost: terms.cost, lifetime: terms.lifetime, recomputeCost: recomputeCost, at: now)
      // Wraps round where the clock does not reach back so far.
      if let now { head.made = now &- terms.age }
      return store(bytes, forKey: key, head, terms.version, if: condition)
    } ?? .replaced
  }

  @usableFromInline
  var absentByteLimit: Int {
    let limit = engine.base.limits.bytes.load(ordering: .relaxed)
    return limit < 256 << 10 ? 0 : min(Self.mostAbsentBytes, limit / 16)
  }

  @usableFromInline
  func ownByteCount(of key: Key) -> Int {
    if let text = key as? String { return text.utf8.count }
    return encode(key) { _, prefix in
      prefix.byteCount
    } tracked: { _ in
      0
    }
  }

  @usableFromInline
  func absenceWasNoted() {
    if engine.base.isOverLimits { engine.enforceLimits() }
  }

  @usableFromInline
  var callsProgram: Bool { teller?.wantsValues == true || engine.base.isAsking.load(ordering: .relaxed) }

  @usableFromInline
  func birth(ofValueForKey key: Key) -> UInt64? {
    encode(key) { engineKey, prefix in
      engine.birth(of: engineKey, prefix)
    } tracked: { hash in
      withTracked(key, hash: hash) { engineKey, prefix, held in
        held.peeked(engineKey, prefix, digests: false)?.head.made
      } ?? nil
    }
  }

  @usableFromInline
  func drop(_ key: Key, version: String?, _ permit: LoadPermit, _ announce: (@Sendable () -> Bool)?) -> Bool {
    withEntry(key) { engineKey, prefix, held in
      guard permit.take(announcing: announce) else { return false }
      if held.isOf(version, engineKey, prefix) { _ = held.remove(engineKey, prefix) }
      return true
    } ?? permit.take(announcing: announce)
  }

  /// The value is valid for no time: an older one goes all the same.
  func refuseAtOnce(_ key: Key, if condition: StoreCondition?) -> StoreOutcome {
    _ = withEntry(key) { engineKey, prefix, held in
      (condition?.holds(engineKey, prefix, in: &held) ?? true) && held.remove(engineKey, prefix, .replaced)
    }
    countRefusal()
    return .expired
  }
}
