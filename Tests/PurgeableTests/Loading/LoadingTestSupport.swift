// SPDX-License-Identifier: MIT
// Shared by the tests of loading: caches of either kind, what loads wait for and count, keys with manners.

import PurgeableTestSupport
import Synchronization
import Testing
import ToolSupport

@testable import Purgeable

/// A cache of bytes or of objects, as the tests of loading use it.
protocol LoadingCache<Key>: AnyObject, Loading where Value == [UInt8] {
  var statistics: CacheStatistics { get }
  subscript(key: Key) -> Value? { get set }
  func value(forKey key: Key) -> Value?
  func peekValue(forKey key: Key) -> Value?
  func lookUpValue(forKey key: Key) -> Lookup<Value>
  @discardableResult func trim(level: PressureLevel) -> PressureRelief
  func set(_ value: Value, _ key: Key)
  @discardableResult func remove(forKey key: Key) -> Bool
  func removeValue(forKey key: Key) -> Value?
  @discardableResult
  func modifyValue<R, E: Error>(forKey key: Key, _ body: (inout Value?) throws(E) -> R) throws(E) -> R
  func removeAll()
  /// Checks what always holds.
  func checkTotals()

  /// The public forms by which it loads, without what only one kind of cache has.
  func load<E: Error>(_ key: Key, _ load: () throws(E) -> Value) throws(E) -> Value
  func loadIfAny<E: Error>(_ key: Key, _ time: Duration?, _ load: () throws(E) -> Value?) throws(E) -> Value?
  func load(_ key: Key, version: String, _ time: Duration?, _ load: () -> Value?) -> Value?
  func loadAll<E: Error>(_ keys: [Key], _ load: ([Key]) throws(E) -> [Key: Value]) throws(E) -> [Value?]
  nonisolated(nonsending) func loadInTask<E: Error>(
    _ key: Key, _ load: @escaping @Sendable () async throws(E) -> Value
  ) async throws(E) -> Value
  nonisolated(nonsending) func loadIfAnyInTask<E: Error>(
    _ key: Key, _ time: Duration?, _ load: @escaping @Sendable () async throws(E) -> Value?
  ) async throws(E) -> Value?
  nonisolated(nonsending) func loadAllInTask<E: Error>(
    _ keys: [Key], _ load: @escaping @Sendable ([Key]) async throws(E) -> [Key: Value]
  ) async throws(E) -> [Value?]
}

/// As programs write it.
extension LoadingCache {
  @_disfavoredOverload
  func value<E: Error>(forKey key: Key, loading load: () throws(E) -> Value) throws(E) -> Value { try self.load(key, load) }
  @_disfavoredOverload
  func value<E: Error>(
    forKey key: Key, keepingNilFor time: Duration? = nil, loading load: () throws(E) -> Value?
  ) throws(E) -> Value? { try loadIfAny(key, time, load) }
  @_disfavoredOverload
  func values<E: Error>(forKeys keys: [Key], loading load: ([Key]) throws(E) -> [Key: Value]) throws(E) -> [Value?] {
    try loadAll(keys, load)
  }
  nonisolated(nonsending) func value<E: Error>(
    forKey key: Key, loading load: @escaping @Sendable () async throws(E) -> Value
  ) async throws(E) -> Value { try await loadInTask(key, load) }
  nonisolated(nonsending) func value<E: Error>(
    forKey key: Key, keepingNilFor time: Duration? = nil, loading load: @escaping @Sendable () async throws(E) -> Value?
  ) async throws(E) -> Value? { try await loadIfAnyInTask(key, time, load) }
  nonisolated(nonsending) func values<E: Error>(
    forKeys keys: [Key], loading load: @escaping @Sendable ([Key]) async throws(E) -> [Key: Value]
  ) async throws(E) -> [Value?] { try await loadAllInTask(keys, load) }
}

extension PurgeableCache: LoadingCache where Value == [UInt8] {
  func set(_ value: Value, _ key: Key) { setValue(value, forKey: key) }
  func checkTotals() { checkBooks() }

  func load<E: Error>(_ key: Key, _ load: () throws(E) -> Value) throws(E) -> Value { try value(forKey: key, loading: load) }
  func loadIfAny<E: Error>(_ key: Key, _ time: Duration?, _ load: () throws(E) -> Value?) throws(E) -> Value? {
    try value(forKey: key, keepingNilFor: time, loading: load)
  }
  func load(_ key: Key, version: String, _ time: Duration?, _ load: () -> Value?) -> Value? {
    value(forKey: key, version: version, keepingNilFor: time, loading: load)
  }
  func loadAll<E: Error>(_ keys: [Key], _ load: ([Key]) throws(E) -> [Key: Value]) throws(E) -> [Value?] {
    try values(forKeys: keys, loading: load)
  }
  nonisolated(nonsending) func loadInTask<E: Error>(
    _ key: Key, _ load: @escaping @Sendable () async throws(E) -> Value
  ) async throws(E) -> Value { try await value(forKey: key, loading: load) }
  nonisolated(nonsending) func loadIfAnyInTask<E: Error>(
    _ key: Key, _ time: Duration?, _ load: @escaping @Sendable () async throws(E) -> Value?
  ) async throws(E) -> Value? { try await value(forKey: key, keepingNilFor: time, loading: load) }
  nonisolated(nonsending) func loadAllInTask<E: Error>(
    _ keys: [Key], _ load: @escaping @Sendable ([Key]) async throws(E) -> [Key: Value]
  ) async throws(E) -> [Value?] { try await values(forKeys: keys, loading: load) }
}

extension ObjectCache: LoadingCache where Value == [UInt8] {
  func set(_ value: Value, _ key: Key) { setValue(value, forKey: key) }
  func checkTotals() { #expect(count == entries.count && totalCost == 0) }

  func load<E: Error>(_ key: Key, _ load: () throws(E) -> Value) throws(E) -> Value { try value(forKey: key, loading: load) }
  func loadIfAny<E: Error>(_ key: Key, _ time: Duration?, _ load: () throws(E) -> Value?) throws(E) -> Value? {
    try value(forKey: key, keepingNilFor: time, loading: load)
  }
  func load(_ key: Key, version: String, _ time: Duration?, _ load: () -> Value?) -> Value? {
    value(forKey: key, version: version, keepingNilFor: time, loading: load)
  }
  func loadAll<E: Error>(_ keys: [Key], _ load: ([Key]) throws(E) -> [Key: Value]) throws(E) -> [Value?] {
    try values(forKeys: keys, loading: load)
  }
  nonisolated(nonsending) func loadInTask<E: Error>(
    _ key: Key, _ load: @escaping @Sendable () async throws(E) -> Value
  ) async throws(E) -> Value { try await value(forKey: key, loading: load) }
  nonisolated(nonsending) func loadIfAnyInTask<E: Error>(
    _ key: Key, _ time: Duration?, _ load: @escaping @Sendable () async throws(E) -> Value?
  ) async throws(E) -> Value? { try await value(forKey: key, keepingNilFor: time, loading: load) }
  nonisolated(nonsending) func loadAllInTask<E: Error>(
    _ keys: [Key], _ load: @escaping @Sendable ([Key]) async throws(E) -> [Key: Value]
  ) async throws(E) -> [Value?] { try await values(forKeys: keys, loading: load) }
}

/// The kinds of caches that load.
enum CacheKind: CaseIterable, Sendable {
  /// Of bytes; with tracked keys or, where keys have bytes of their own, without.
  case bytes, tracked
  case objects

  func make<Key: Hashable & Sendable>(
    _: Key.Type = Int.self, countLimit: Int? = nil, clock: ManualClock? = nil
  ) throws -> any LoadingCache<Key> {
    var options = CacheOptions(countLimit: countLimit)
    (options.clock, options.tracksKeys) = (clock, self == .tracked)
    return if self == .objects { try ObjectCache(options) } else { try PurgeableCache(options) }
  }
}

/// Something that happens once, for threads and tasks to wait for.
final class Event: Sendable {
  private let hasHappened = Atomic<Bool>(false)

  func happens() { hasHappened.store(true, ordering: .releasing) }
  var isThere: Bool { hasHappened.load(ordering: .acquiring) }
  /// Blocks the thread. False after two minutes, or other `seconds`.
  @discardableResult
  func blocks(seconds: Int = 120) -> Bool { patiently(seconds: seconds) { isThere } }
  /// Leaves the thread to others. False after two minutes.
  @discardableResult
  func comes() async -> Bool { await TestRun.comes { isThere } }
}

/// A load on a thread of its own, which goes on until it is let go.
final class HeldLoad: Sendable {
  let began = Event()
  private let goes = Event()
  private let got = Mutex<[UInt8]?>(nil)
  private let thread = Mutex<TestThread?>(nil)

  /// `value`: nil where it finds nothing.
  init<Key>(_ cache: any LoadingCache<Key>, _ key: Key, _ value: [UInt8]?) {
    let thread = TestThread { [self] in
      let value = cache.value(forKey: key) { () -> [UInt8]? in
        began.happens()
        // Who lets it go waits for tasks, which a busy machine's pool may begin minutes later.
        goes.blocks(seconds: 30 * 60)
        return value
      }
      got.withLock { $0 = value }
    }
    self.thread.withLock { $0 = thread }
  }

  func goesOn() { goes.happens() }

  /// What the thread got, when it has ended.
  func join() -> [UInt8]? {
    thread.withLock { $0 }?.join()
    return got.withLock { $0 }
  }
}

struct LoadError: Error, Hashable {
  var number = 0
}

/// A count in an object, for closures that escape.
final class LoadCounter: Sendable {
  private let count = Atomic<Int>(0)
  @discardableResult
  func next() -> Int { count.add(1, ordering: .acquiringAndReleasing).newValue }
  var value: Int { count.load(ordering: .acquiring) }
}

/// What comes between a load and its end, by all functions that do.
enum Overtaker: CaseIterable, Sendable {
  case set, subscripted, remove, removeValue, removeNothing, modifyNothing, removeAll

  func act<Key>(on cache: any LoadingCache<Key>, _ key: Key) {
    switch self {
    case .set: cache.set([1], key)
    case .subscripted: cache[key] = [1]
    case .remove:
      cache[key] = [2]
      cache.remove(forKey: key)
    case .removeValue:
      cache[key] = [2]
      _ = cache.removeValue(forKey: key)
    case .removeNothing: cache.remove(forKey: key)
    case .modifyNothing: cache.modifyValue(forKey: key) { $0 = nil }
    case .removeAll: cache.removeAll()
    }
  }

  /// What the cache has afterwards.
  var left: [UInt8]? { self == .set || self == .subscripted ? [1] : nil }
}

/// A key of which tests say what its comparison does in addition.
struct BusyLoadKey: Hashable, Sendable {
  static let manners = Mutex<(@Sendable () -> Void)?>(nil)
  var number: Int

  static func == (left: Self, right: Self) -> Bool {
    let acts = manners.withLock { manners in
      defer { manners = nil }
      return manners
    }
    acts?()
    return left.number == right.number
  }
  func hash(into hasher: inout Hasher) {}
}

/// A key with bytes of its own, of which tests say what its hash does in addition. In a cache of bytes whose keys are not
/// tracked, only the table of loads asks for it; other caches ask at each look-up.
struct BusyHashKey: PurgeableKey, BitwiseCopyable {
  static let manners = Mutex<(skipped: Int, acts: (@Sendable () -> Void)?)>((0, nil))
  var number: Int

  /// The hash does this once, after some that do not.
  static func act(afterHashes skipped: Int, _ acts: @escaping @Sendable () -> Void) { manners.withLock { $0 = (skipped, acts) } }

  func hash(into hasher: inout Hasher) {
    let acts = Self.manners.withLock { manners -> (@Sendable () -> Void)? in
      manners.skipped -= 1
      guard manners.skipped < 0 else { return nil }
      defer { manners.acts = nil }
      return manners.acts
    }
    acts?()
    hasher.combine(number)
  }
}
