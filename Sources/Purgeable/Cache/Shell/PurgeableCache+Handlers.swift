// SPDX-License-Identifier: MIT
// Handlers that come and go: told of departures and of changes, and asked at intervals what may go.

import Synchronization

extension PurgeableCache {
  /// Sets what is told of each departure, in place of an earlier handler, that of the initializer included: everything as
  /// `onDeparture` there. Departures that wait already go to the new handler. A handler may set and remove handlers. Any thread.
  ///
  /// - Throws: `PurgeableError` of kind `notSupported` where keys are not tracked: a page that the kernel takes takes the keys
  ///   along that lie in it.
  public func setDepartureHandler(_ handler: @escaping @Sendable (Departure<Key, Value>) -> Void) throws(PurgeableError) {
    try tracking("setDepartureHandler").setHandler(.init(tell: handler, decode: { Value(purgeableBytes: $0) }))
  }

  /// Takes the handler away. Of what leaves after this returns nobody is told; a call that is under way goes on. Any thread.
  public func removeDepartureHandler() { teller?.setHandler(nil) }

  /// What tells of keys, where they are tracked.
  private func tracking(_ operation: String) throws(PurgeableError) -> KeyTeller<Key, Value> {
    guard let teller, case .tracked = form else {
      throw PurgeableError(
        .notSupported, in: "PurgeableCache '\(name)'.\(operation)",
        explanation: "the keys of this cache lie in purgeable memory and may be lost; make it with tracksKeys: true")
    }
    return teller
  }

  // MARK: A decider at intervals

  /// Evicts what the closure says, each interval from now on: as `evictAll(where:)`, on a thread of the cache's own, in place of
  /// an earlier decider. The first time comes after one interval of the machine's clock; tests call `evictAll(where:)`.
  /// `shouldEvict` is not asked. Any thread. Does not keep the cache alive. Each time looks at a copy of each value; for
  /// verdicts by key alone `remove(forKeys: cache.keys.filter { … })` copies none.
  ///
  ///     let stories = try PurgeableCache<String, [UInt8]>()
  ///     try stories.setEvictionDecider(every: .seconds(60)) { $0.value.count > 1 << 20 }
  ///
  /// - Throws: `PurgeableError` of kind `invalidArgument` for an interval of 0 or less; the earlier decider stays then.
  public func setEvictionDecider(
    every interval: Duration, _ isEvictable: @escaping @Sendable (CacheEntry<Key, Value>) -> Bool
  ) throws(PurgeableError) {
    try LimitCheck.time(interval, "interval", in: "PurgeableCache '\(name)'.setEvictionDecider")
    engine.lazy.intervals.set(every: interval) { [weak self] mark in
      self?.evictAll { mark.isSet.load(ordering: .relaxed) && isEvictable($0) }
    }
  }

  /// Takes the decider away: a call of it that has begun ends, no other one begins. Any thread.
  public func removeEvictionDecider() { engine.lazy.knownIntervals?.unset() }

  // MARK: Changes

  /// What changed, each interval: the net difference since the last time, for one task. Nothing comes where nothing changed; a
  /// task that is slow gets the sum. Begins with this call and ends with the cache, which it does not keep alive.
  ///
  ///     let pages = try PurgeableCache<String, [UInt8]>(tracksKeys: true)
  ///     for await change in try pages.changes(every: .seconds(1)) {
  ///       print("\(change.updatedKeys.count) stored, \(change.removedKeys.count) gone")
  ///     }
  ///
  /// What is pending when the cache ends is not told: call `deliverChanges()` before, where there is a handler. A load that says
  /// `unchanged` is an update, as a store of an equal value is; so is what a restore stores.
  ///
  /// Cost: while anybody is told of changes, each store and departure notes its key, in ordinary memory, once for each who is
  /// told. Any thread.
  ///
  /// - Throws: `PurgeableError` of kind `notSupported` where keys are not tracked; `invalidArgument` for an interval of 0 or
  ///   less.
  public func changes(every interval: Duration) throws(PurgeableError) -> AsyncStream<CacheChanges<Key>> {
    try LimitCheck.time(interval, "interval", in: "PurgeableCache '\(name)'.changes")
    return try board("changes").stream(every: interval)
  }

  /// As `changes(every:)`, by a handler that is called on a thread of the cache's own, in place of an earlier one, whose pending
  /// changes are forgotten. The handler may use the cache.
  public func setChangeHandler(
    every interval: Duration, _ handler: @escaping @Sendable (CacheChanges<Key>) -> Void
  ) throws(PurgeableError) {
    try LimitCheck.time(interval, "interval", in: "PurgeableCache '\(name)'.setChangeHandler")
    try board("setChangeHandler").setHandler(every: interval, handler)
  }

  /// Takes the handler of changes away. A call that is at work, or just beginning, goes on. Any thread.
  public func removeChangeHandler() { teller?.board.load()?.removeHandler() }

  /// Tells handler and sequences now what is pending: the handler has returned when this returns, on whichever thread it was
  /// called. Within the handler it tells what came meanwhile. Two handlers that deliver the changes of each other's caches may
  /// wait for each other for ever. Any thread.
  public func deliverChanges() { teller?.board.load()?.deliverAll() }

  /// What is dead is dropped and told of, unless its entry stays.
  private func holdsEntry(forKey key: Key) -> Bool {
    withEntry(key) { engineKey, prefix, held in held.contains(engineKey, prefix) || held.isHollow(engineKey) } ?? false
  }

  private func board(_ operation: String) throws(PurgeableError) -> ChangeBoard<Key> {
    let teller = try tracking(operation)
    return teller.board.load()
      ?? LazyParts.publish(ChangeBoard(engine.lazy) { [weak self] in self?.holdsEntry(forKey: $0) }, teller.board)
  }
}
