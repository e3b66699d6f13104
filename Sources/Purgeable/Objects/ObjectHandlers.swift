// SPDX-License-Identifier: MIT
// Who is told of departures, who is asked before an eviction, and who finds costs.

import Synchronization

/// The program's closures: called under no mutex.
struct ObjectHandlers<Key: Hashable & Sendable, Value: Sendable>: Sendable {
  var tells: (@Sendable (Departure<Key, Value>) -> Void)?
  /// As the program set it, and as it is called.
  var shouldEvict: (@Sendable (Key, DepartureReason) -> Bool)?
  var asks: (@Sendable (Key, Value, DepartureReason) -> Bool)?
  /// Who set both together, if anybody did.
  var listener: (any AnyObject & Sendable)?
  var costs: (@Sendable (Value) -> Int)?

  var isEmpty: Bool { tells == nil && asks == nil && costs == nil }
}

/// Handlers as they were set at one time. An object, because the runtime takes memory for a closure that comes out of generic
/// code.
final class ObjectHandlersInForce<Key: Hashable & Sendable, Value: Sendable>: Sendable {
  let handlers: ObjectHandlers<Key, Value>
  init(_ handlers: ObjectHandlers<Key, Value>) { self.handlers = handlers }
}

extension ObjectStore {
  var handlers: ObjectHandlers<Key, Value> { guardedHandlers.withLock { $0 }.handlers }

  /// Changes the handlers. Old ones end outside of the mutex.
  func setHandlers(_ change: (inout ObjectHandlers<Key, Value>) -> Void) {
    let old = guardedHandlers.withLock { inForce -> ObjectHandlersInForce<Key, Value> in
      let old = inForce
      var handlers = old.handlers
      change(&handlers)
      // Taking handlers away takes no memory.
      inForce = handlers.isEmpty ? noHandlers : ObjectHandlersInForce(handlers)
      hasHandler.store(handlers.tells != nil, ordering: .releasing)
      hasVeto.store(handlers.asks != nil, ordering: .releasing)
      hasCosts.store(handlers.costs != nil, ordering: .releasing)
      return old
    }
    _ = consume old
  }

  /// The cost of a value that is stored without one. Under no mutex.
  @inlinable @inline(__always)
  func cost(of value: Value) -> Int { findsCosts ? foundCost(of: value) : 0 }

  @usableFromInline
  func foundCost(of value: Value) -> Int { handlers.costs?(value) ?? 0 }

  /// Tells of a departure: now, or when the handler that is at work on this thread has returned. So a handler that stores again
  /// what limits evict does not nest.
  @usableFromInline
  func tell(_ departed: Departed) {
    if let later = unsafe ThreadRole.putOff(for: ObjectIdentifier(loads)) {
      return unsafe later.pointee.append { [self] in tell(departed) }
    }
    let owner = ObjectIdentifier(self)
    if let notes = unsafe ThreadRole.notes(of: owner) {
      // Safe: the call of `tell` further out on this thread, whose notes they are, has not returned.
      return unsafe notes.assumingMemoryBound(to: [Departed].self).pointee.append(departed)
    }
    // What calls of the handler take out. Without any, telling takes no memory.
    var later: [Departed] = []
    unsafe withUnsafeMutablePointer(to: &later) { later in
      unsafe call(departed, UnsafeMutableRawPointer(later))
      var at = 0
      while unsafe at < later.pointee.count {
        let next = unsafe later.pointee[at]
        at += 1
        // What was told ends here, not with the last of many.
        if unsafe at == later.pointee.count { unsafe (later.pointee, at) = ([], 0) }
        unsafe call(next, UnsafeMutableRawPointer(later))
      }
    }
  }

  private func call(_ departed: Departed, _ later: UnsafeMutableRawPointer) {
    defer { if departed.isDiscardable { discardContent(of: departed) } }
    guard let handler = handlers.tells else { return }
    let departure = Departure(
      key: departed.key, value: departed.value, cost: departed.cost, reason: departed.reason, absence: nil,
      isStoredAgain: departed.isStoredAgain)
    unsafe ThreadRole.whileTelling(of: ObjectIdentifier(self), later) { handler(departure) }
  }
}

extension ObjectCache {
  /// Sets who is told of each departure, once, on the thread that caused it, after the mutex is released: in place of an earlier
  /// handler. It may read and change the cache and its handlers; what its own calls take out is told when it has returned. What a
  /// load takes out is told, and asked about, when its value has been given to all who wait, so the handler may load. An
  /// object that is stored again under its own key is told of as replaced too; its content stays.
  ///
  /// Of what the library evicts under pressure it is told on a thread of the cache's own. Any thread.
  public func setDepartureHandler(_ handler: @escaping @Sendable (Departure<Key, Value>) -> Void) {
    store.setHandlers { $0.tells = handler }
  }

  /// Takes the handler away. Of what leaves after this returns nobody is told; a call that is under way goes on. Any thread.
  public func removeDepartureHandler() { store.setHandlers { $0.tells = nil } }

  /// Asked, the least recently used entry first, before an entry goes for a limit, for slow growth or under pressure (reasons
  /// `count`, `cost`, `bytes`, `growth`, `pressure`); false passes the entry over. nil, as at first: everything may go, and
  /// what is above a limit goes at once.
  ///
  /// Not asked for removals and trims. Where all are passed over, the call returns and the cache stays above its limit. The entry
  /// that is being stored is not asked about. Called under no mutex; may read and change the cache: nothing is asked about from
  /// inside of it, and the call around it, or the next store, evicts what it stored. Cost: an entry that is passed over keeps its
  /// place, and is asked about again by the next store above a limit. So each store there costs as much as all that is kept, some
  /// 2 us an entry: where that is more than some hundred entries, pin them. Any thread.
  public var shouldEvict: (@Sendable (_ key: Key, _ reason: DepartureReason) -> Bool)? {
    get { store.handlers.shouldEvict }
    set {
      store.setHandlers { handlers in
        handlers.shouldEvict = newValue
        handlers.asks = nil
        if let newValue { handlers.asks = { key, _, reason in newValue(key, reason) } }
      }
      if newValue == nil, store.isOverLimit { store.enforceLimits() }
    }
  }

  /// How the cost of a value is found that is stored without one, by a store, a subscript or a load; nil, as at first: its cost
  /// is 0.
  ///
  ///     let pictures = try ObjectCache<String, [UInt8]>(costLimit: 50 << 20)
  ///     pictures.costOfValue = { $0.count }
  ///     func picture(_ name: String) -> [UInt8] { pictures.value(forKey: name) { render(name) } }
  ///
  /// Called once a store, on the thread that stores, under no mutex. Less than 0 counts as 0. Costs of entries that are there
  /// stay as they are. Any thread.
  public var costOfValue: (@Sendable (Value) -> Int)? {
    get { store.handlers.costs }
    set { store.setHandlers { $0.costs = newValue } }
  }

  // MARK: A decider at intervals, and changes

  /// Evicts what the closure says, each interval from now on: as `evictAll(where:)`, on a thread of the cache's own, in place of
  /// an earlier decider. The first time comes after one interval of the machine's clock; tests call `evictAll(where:)`.
  /// `shouldEvict` is not asked. Any thread. Does not keep the cache alive.
  ///
  /// - Throws: `PurgeableError` of kind `invalidArgument` for an interval of 0 or less; the earlier decider stays then.
  public func setEvictionDecider(
    every interval: Duration, _ isEvictable: @escaping @Sendable (CacheEntry<Key, Value>) -> Bool
  ) throws(PurgeableError) {
    try LimitCheck.time(interval, "interval", in: "ObjectCache '\(name)'.setEvictionDecider")
    store.lazy.intervals.set(every: interval) { [weak self] mark in
      self?.evictAll { mark.isSet.load(ordering: .relaxed) && isEvictable($0) }
    }
  }

  /// Takes the decider away: a call of it that has begun ends, no other one begins. Any thread.
  public func removeEvictionDecider() { store.lazy.knownIntervals?.unset() }

  /// What changed, each interval: the net difference since the last time, for one task. Nothing comes where nothing changed; a
  /// task that is slow gets the sum. Begins with this call and ends with the cache, which it does not keep alive. What is pending
  /// then is not told.
  ///
  /// Cost: while anybody is told of changes, each store and departure notes its key, once for each who is told. Any thread.
  ///
  /// - Throws: `PurgeableError` of kind `invalidArgument` for an interval of 0 or less.
  public func changes(every interval: Duration) throws(PurgeableError) -> AsyncStream<CacheChanges<Key>> {
    try LimitCheck.time(interval, "interval", in: "ObjectCache '\(name)'.changes")
    return board.stream(every: interval)
  }

  /// As `changes(every:)`, by a handler that is called on a thread of the cache's own, in place of an earlier one, whose pending
  /// changes are forgotten. The handler may use the cache.
  public func setChangeHandler(
    every interval: Duration, _ handler: @escaping @Sendable (CacheChanges<Key>) -> Void
  ) throws(PurgeableError) {
    try LimitCheck.time(interval, "interval", in: "ObjectCache '\(name)'.setChangeHandler")
    board.setHandler(every: interval, handler)
  }

  /// Takes the handler of changes away. A call that is at work, or just beginning, goes on. Any thread.
  public func removeChangeHandler() { store.lazyBoard.load()?.removeHandler() }

  /// Tells handler and sequences now what is pending: the handler has returned when this returns, on whichever thread it was
  /// called. Within the handler it tells what came meanwhile. Two handlers that deliver the changes of each other's caches may
  /// wait for each other for ever. Any thread.
  public func deliverChanges() { store.lazyBoard.load()?.deliverAll() }

  private var board: ChangeBoard<Key> {
    store.hasWatcher.store(true, ordering: .releasing)
    return store.lazyBoard.load()
      ?? LazyParts.publish(ChangeBoard(store.lazy) { [weak self] in self?.holdsValue(forKey: $0) }, store.lazyBoard)
  }

  /// Who set handler and question together; nil where nobody did.
  package var listener: (any AnyObject & Sendable)? { store.handlers.listener }

  /// Sets both, the question with the value, in one step.
  package func setListener(
    _ listener: (any AnyObject & Sendable)?, tells: (@Sendable (Departure<Key, Value>) -> Void)?,
    asks: (@Sendable (Key, Value, DepartureReason) -> Bool)?
  ) {
    store.setHandlers { ($0.tells, $0.shouldEvict, $0.asks, $0.listener) = (tells, nil, asks, listener) }
    // As `shouldEvict = nil`.
    if asks == nil, store.isOverLimit { store.enforceLimits() }
  }

  /// Asks the listener no more, if it is still this one.
  package func askNoMore(_ listener: AnyObject) {
    store.setHandlers { if $0.listener === listener { $0.asks = nil } }
  }
}
