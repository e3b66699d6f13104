// SPDX-License-Identifier: MIT
// Who is told of departures, and who is asked before an eviction.

import Synchronization

/// The program's closures: called under no mutex.
struct ObjectHandlers<Key: Hashable & Sendable, Value: Sendable>: Sendable {
  var tells: (@Sendable (Departure<Key, Value>) -> Void)?
  /// As the program set it, and as it is called.
  var shouldEvict: (@Sendable (Key, DepartureReason) -> Bool)?
  var asks: (@Sendable (Key, Value, DepartureReason) -> Bool)?
}

extension ObjectStore {
  /// Changes the handlers. Old ones end outside of the mutex.
  func setHandlers(_ change: (inout ObjectHandlers<Key, Value>) -> Void) {
    let old = handlers.withLock { handlers -> ObjectHandlers<Key, Value> in
      let old = handlers
      change(&handlers)
      books.hasHandler.store(handlers.tells != nil, ordering: .releasing)
      books.hasVeto.store(handlers.asks != nil, ordering: .releasing)
      return old
    }
    _ = consume old
  }

  /// Tells of a departure: now, or when the handler that is at work on this thread has returned. So a handler that stores again
  /// what limits evict does not nest.
  func tell(_ departed: Departed) {
    let owner = ObjectIdentifier(self)
    if let notes = unsafe ThreadRole.notes(of: owner) {
      // Safe: the call of `tell` further out on this thread, whose notes they are, has not returned.
      return unsafe notes.assumingMemoryBound(to: [Departed].self).pointee.append(departed)
    }
    var waiting = [departed]
    unsafe withUnsafeMutablePointer(to: &waiting) { waiting in
      var at = 0
      while unsafe at < waiting.pointee.count {
        let next = unsafe waiting.pointee[at]
        at += 1
        guard let handler = handlers.withLock({ $0.tells }) else { continue }
        let departure = Departure(key: next.key, value: next.value, cost: next.cost, reason: next.reason, absence: nil)
        unsafe ThreadRole.whileTelling(of: owner, UnsafeMutableRawPointer(waiting)) { handler(departure) }
        // What was told ends here, not with the last of many.
        if unsafe at == waiting.pointee.count { unsafe (waiting.pointee, at) = ([], 0) }
      }
    }
  }
}

extension ObjectCache {
  /// Sets who is told of each departure, once, on the thread that caused it, after the mutex is released: in place of an earlier
  /// handler. It may read and change the cache and its handlers; what its own calls take out is told when it has returned.
  ///
  /// Of what the library evicts under pressure it is told on a thread of the cache's own. Any thread.
  public func setDepartureHandler(_ handler: @escaping @Sendable (Departure<Key, Value>) -> Void) {
    store.setHandlers { $0.tells = handler }
  }

  /// Takes the handler away. No call of it begins after this returns; one at work may still end. Any thread.
  public func removeDepartureHandler() { store.setHandlers { $0.tells = nil } }

  /// Asked, the least recently used entry first, before an entry goes for a limit, for slow growth or under pressure (reasons
  /// `count`, `cost`, `growth`, `pressure`); false passes the entry over. nil, as at first: everything may go.
  ///
  /// Not asked for removals and trims. Where all are passed over, the call returns and the cache stays above its limit. The entry
  /// that is being stored is not asked about. Called under no mutex; may read and change the cache. Cost: an entry that is passed
  /// over keeps its place, and is asked about again by the next store above a limit. Any thread.
  public var shouldEvict: (@Sendable (_ key: Key, _ reason: DepartureReason) -> Bool)? {
    get { store.handlers.withLock { $0.shouldEvict } }
    set {
      store.setHandlers { handlers in
        handlers.shouldEvict = newValue
        handlers.asks = nil
        if let newValue { handlers.asks = { key, _, reason in newValue(key, reason) } }
      }
    }
  }

  /// As `shouldEvict`, with the value, and in its place.
  package func setEvictionQuestion(_ asks: (@Sendable (Key, Value, DepartureReason) -> Bool)?) {
    store.setHandlers { ($0.shouldEvict, $0.asks) = (nil, asks) }
  }
}
