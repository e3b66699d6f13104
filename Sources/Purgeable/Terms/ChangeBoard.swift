// SPDX-License-Identifier: MIT
// The keys that were touched, for who wants to know what changed.
//
//   store, departure --note--> pending keys of each listener     no hash, no ==: these are the program's code
//   interval, or the program's wish --deliver--> a handler is called; a sequence's task gets a signal, and takes what is pending
//                                                when it asks
//   what is told                                 each key once: there now? updated, else removed (in a moment without a batch:
//                                                Ground/BatchGate.swift)
//
// What became of a key is asked when it is told. So no order of notes matters, and what comes after the question is noted for the
// next time.

import Glibc
import Synchronization

/// Who is told of changes. What changes in it is under the mutex of its board.
final class ChangeListener<Key: Hashable & Sendable>: @unchecked Sendable {
  let way: Way
  /// Called once, when the cache has ended or the listener leaves.
  let end: @Sendable () -> Void
  fileprivate var pending: [Key] = []
  /// So many of them, from the first on, are those of the process that forked this one.
  fileprivate var foreignCount = 0
  fileprivate var mostPending = firstMost
  /// Of its interval.
  fileprivate var work: Int?
  /// The thread that tells it now.
  fileprivate var teller: pthread_t?
  /// The thread that looks which of the pending keys are there twice.
  fileprivate var thinner: pthread_t?

  fileprivate static var firstMost: Int { 4096 }

  enum Way {
    case handler(@Sendable (CacheChanges<Key>) -> Void)
    /// Who gets the signal takes what is pending.
    case signal(@Sendable () -> Void)
  }

  init(_ way: Way, end: @escaping @Sendable () -> Void = {}) { (self.way, self.end) = (way, end) }
}

final class ChangeBoard<Key: Hashable & Sendable>: ForkProtected {
  private struct State {
    var listeners: [ChangeListener<Key>] = []
    /// The one that is set and removed, among them.
    var handler: ChangeListener<Key>?
  }

  private let state = Guarded(State())
  /// Whether a note is of use. A hint.
  private let hasListener = Atomic<Bool>(false)
  private let intervals: IntervalThread
  private let batches: BatchGate
  /// Whether the cache has a value for a key; drops an entry that is found lost or over, which is noted then. nil once the cache
  /// has ended.
  private let contains: @Sendable (Key) -> Bool?

  init(_ parts: borrowing LazyParts, contains: @escaping @Sendable (Key) -> Bool?) {
    (intervals, batches, self.contains) = (parts.intervals, parts.batches, contains)
    rehearseFork()
    ForkGuard.shared.reserve(1)
  }

  deinit { ForkGuard.shared.dismiss(1) }

  var isWatched: Bool { hasListener.load(ordering: .acquiring) }

  // MARK: Listeners

  func setHandler(every interval: Duration, _ handler: @escaping @Sendable (CacheChanges<Key>) -> Void) {
    add(ChangeListener(.handler(handler)), every: interval, isHandler: true)
  }

  /// For one task. What it has not taken stays pending, together with what comes.
  func stream(every interval: Duration) -> AsyncStream<CacheChanges<Key>> {
    // One signal says as much as many.
    let (signals, signal) = AsyncStream.makeStream(of: Void.self, bufferingPolicy: .bufferingNewest(1))
    let listener = ChangeListener<Key>(.signal { signal.yield() }, end: { signal.finish() })
    signal.onTermination = { [weak self, weak listener] _ in
      if let listener { self?.remove(listener) }
    }
    add(listener, every: interval, isHandler: false)
    return AsyncStream { [weak self, weak listener] in
      for await _ in signals {
        guard let self, let listener else { continue }
        let changes = inTurn(with: listener) { takeChanges(of: listener) }
        if !changes.isEmpty { return changes }
      }
      return nil
    }
  }

  private func add(_ listener: ChangeListener<Key>, every interval: Duration, isHandler: Bool) {
    let work = intervals.add(every: interval) { [weak self, weak listener] in
      if let self, let listener { deliver(to: listener) }
    }
    let old = state.withLock { state -> ChangeListener<Key>? in
      listener.work = work
      state.listeners.append(listener)
      hasListener.store(true, ordering: .releasing)
      guard isHandler else { return nil }
      defer { state.handler = listener }
      return state.handler
    }
    if let old { remove(old) }
  }

  func removeHandler() { if let handler = state.withLock({ $0.handler }) { remove(handler) } }

  private func remove(_ listener: ChangeListener<Key>) {
    let isHere = state.withLock { state -> Bool in
      let before = state.listeners.count
      state.listeners.removeAll { $0 === listener }
      if state.handler === listener { state.handler = nil }
      hasListener.store(!state.listeners.isEmpty, ordering: .releasing)
      return state.listeners.count < before
    }
    guard isHere else { return }
    intervals.remove(listener.work)
    listener.end()
  }

  /// The cache has ended.
  func removeAll() { for listener in state.withLock({ $0.listeners }) { remove(listener) } }

  // MARK: Notes

  /// A key was stored, or its entry has left. Under no mutex.
  func note(_ key: Key) {
    guard isWatched else { return }
    let full = state.withLock { state -> ChangeListener<Key>? in
      for listener in state.listeners { listener.pending.append(key) }
      return state.listeners.first { $0.pending.count >= $0.mostPending }
    }
    if let full { thin(full) }
  }

  /// Keeps each pending key once, also while a handler is at work. Who takes them meanwhile waits, since they are not there.
  private func thin(_ listener: ChangeListener<Key>) {
    let taken = state.withLock { _ -> Taken? in
      guard listener.thinner == nil else { return nil }
      listener.thinner = pthread_self()
      return Self.take(listener)
    }
    guard let taken else { return }
    let keys = Set(taken.pending.dropFirst(taken.foreignCount))
    state.withLock { _ in
      listener.pending.append(contentsOf: keys)
      listener.mostPending = max(ChangeListener<Key>.firstMost, 2 * keys.count)
      listener.thinner = nil
    }
  }

  /// nil where this thread has the turn now; else the thread that has it.
  private func takeTurn(with listener: ChangeListener<Key>) -> pthread_t? {
    state.withLock { _ in
      if let teller = listener.teller { return teller }
      listener.teller = pthread_self()
      return nil
    }
  }

  private func takePending(of listener: ChangeListener<Key>) -> [Key] {
    while true {
      let taken = state.withLock { _ -> Taken? in
        // Where the `==` of a key comes here, the thread would wait for itself.
        if let thinner = listener.thinner, pthread_equal(thinner, pthread_self()) == 0 { return nil }
        return Self.take(listener)
      }
      if let taken { return Array(taken.pending.dropFirst(taken.foreignCount)) }
      usleep(100)
    }
  }

  /// No key may end under the mutex: the foreign ones go with the rest.
  private typealias Taken = (pending: [Key], foreignCount: Int)

  private static func take(_ listener: ChangeListener<Key>) -> Taken {
    defer { (listener.pending, listener.foreignCount) = ([], 0) }
    return (listener.pending, listener.foreignCount)
  }

  // MARK: Telling

  /// Tells all listeners what is pending. When this returns, they have been told, by whichever thread.
  func deliverAll() { for listener in state.withLock({ $0.listeners }) { deliver(to: listener) } }

  private func deliver(to listener: ChangeListener<Key>) {
    switch listener.way {
    case .signal(let signal): if state.withLock({ _ in listener.pending.count > listener.foreignCount }) { signal() }
    case .handler(let handler):
      inTurn(with: listener) {
        let changes = takeChanges(of: listener)
        if !changes.isEmpty, isHere(listener) { handler(changes) }
      }
    }
  }

  /// One thread at a time tells a listener. The others wait for it, but not from inside of what it calls.
  private func inTurn<R>(with listener: ChangeListener<Key>, _ tell: () -> R) -> R {
    while let other = takeTurn(with: listener) {
      if pthread_equal(other, pthread_self()) != 0 { return tell() }
      usleep(100)
    }
    defer { state.withLock { _ in listener.teller = nil } }
    return tell()
  }

  private func takeChanges(of listener: ChangeListener<Key>) -> CacheChanges<Key> {
    batches.look { changes(of: listener) }
  }

  private func changes(of listener: ChangeListener<Key>) -> CacheChanges<Key> {
    var (updated, removed): (Set<Key>, Set<Key>) = ([], [])
    // Once more, for what the first looks have dropped: it would be told twice.
    for _ in 0..<2 {
      for key in Set(takePending(of: listener)) {
        // Nobody is told any more once the cache has ended.
        guard let isThere = contains(key) else { continue }
        if isThere {
          updated.insert(key)
          removed.remove(key)
        } else {
          removed.insert(key)
          updated.remove(key)
        }
      }
    }
    return CacheChanges(updatedKeys: updated, removedKeys: removed)
  }

  /// Of the listener with the most, for tests.
  var pendingCount: Int { state.withLock { $0.listeners.map(\.pending.count).max() ?? 0 } }

  private func isHere(_ listener: ChangeListener<Key>) -> Bool {
    state.withLock { $0.listeners.contains { $0 === listener } }
  }

  // MARK: Forks (ForkGuard.swift)

  func lockForFork() { state.lock() }
  func unlockAfterFork() { state.unlock() }
  /// The child does not have the thread that tells, unless that forked, and none of the parent's changes is its own.
  func forgetInChild() {
    state.withLock { state in
      for listener in state.listeners {
        (listener.foreignCount, listener.teller, listener.thinner) = (listener.pending.count, nil, nil)
      }
    }
  }
}
