// SPDX-License-Identifier: MIT
// The cache of objects: values that stay as they are, in ordinary memory.

import Synchronization

/// A cache for values that stay as they are, in ordinary memory: instances of classes, decoded structs.
///
/// Without limits it holds all values until memory is short; then the least recently used go, a sixteenth of them at a time, and
/// for a minute the cache grows only slowly. With limits it evicts exactly the least recently used entry. Objects that adopt
/// `DiscardableContent` are asked to discard their content when they leave, and before others leave when memory is short.
///
///     let widths = try ObjectCache<String, [Character: Double]>(countLimit: 500)
///     widths["Sans"] = ["a": 7.5, "b": 8]
///     let again = widths["Sans"]     // nil when never stored, or evicted
///
/// For values that are bytes take `PurgeableCache`: the kernel frees its memory by itself, without any of this library's or the
/// program's code, and a page at a time.
///
/// Every function may be called from any thread. A read that starts after a write has returned sees it. No code of the program
/// runs under a mutex of the cache: not handlers, not the ends of keys and values, and not the `==` of keys of types that are not
/// Swift's own. (The clock of `CacheOptions` is read there.) Memory: 80 bytes and more an entry, by the sizes of key and
/// value, beside what these refer to.
public final class ObjectCache<Key: Hashable & Sendable, Value: Sendable>: Sendable {
  @usableFromInline let store: ObjectStore<Key, Value>

  /// The cache's name, for its description, statistics and messages.
  public package(set) var name: String {
    get { store.name.withLock { $0 } }
    set { store.name.withLock { $0 = newValue } }
  }

  /// Makes an empty cache. A limit of `nil` is no limit; a limit of 0 admits no entry that counts against it.
  ///
  /// - Parameters:
  ///   - name: for people.
  ///   - countLimit: the most entries.
  ///   - costLimit: the most that the entries' costs may add up to. An entry's cost is 0 unless another is given, or
  ///     `costOfValue` finds one; a negative cost counts as 0. Entries of no cost stay when the cost limit is exceeded.
  ///   - memoryShare: a cost limit as a share of the memory that limits this process, above 0 and up to 1 (`memoryShare`).
  ///   - onDeparture: told of each entry that leaves (`setDepartureHandler`).
  /// - Throws: `PurgeableError` of kind `outOfMemory`, or `invalidArgument` for a negative limit, and for a share that is not
  ///   above 0 and at most 1.
  public convenience init(
    name: String = "cache", countLimit: Int? = nil, costLimit: Int? = nil, memoryShare: Double? = nil,
    onDeparture: (@Sendable (Departure<Key, Value>) -> Void)? = nil
  ) throws(PurgeableError) {
    try self.init(
      CacheOptions(name: name, countLimit: countLimit, costLimit: costLimit, memoryShare: memoryShare), onDeparture: onDeparture)
  }

  /// Makes an empty cache as the options say. `byteLimit` and `memoryShare` limit the sum of the costs, which count as bytes
  /// then. `tracksKeys` has no meaning: keys of objects are always in ordinary memory.
  ///
  /// - Throws: as the initializer with all parameters; and `PurgeableError` of kind `invalidArgument` for `lockedByteLimit`,
  ///   `pinnedByteLimit` and `core`, which are about purgeable pages, and for an `idleTime` or an `expiry` of 0 or less.
  public convenience init(
    _ options: CacheOptions, onDeparture: (@Sendable (Departure<Key, Value>) -> Void)? = nil
  ) throws(PurgeableError) {
    try self.init(options, clock: nil, onDeparture: onDeparture)
  }

  /// `isSurelyEqual`: says of two keys that they are equal, where that is known without code of the program; it may say false of
  /// any.
  package convenience init(name: String, isSurelyEqual: @escaping @Sendable (Key, Key) -> Bool) throws(PurgeableError) {
    try self.init(CacheOptions(name: name), clock: nil, isSurelyEqual: isSurelyEqual)
  }

  /// `clock`: of slow growth and expiry; nil for the one of the options.
  init(
    _ options: CacheOptions = CacheOptions(), clock: MonotonicClock?,
    isSurelyEqual: @escaping @Sendable (Key, Key) -> Bool = { _, _ in false },
    onDeparture: (@Sendable (Departure<Key, Value>) -> Void)? = nil
  ) throws(PurgeableError) {
    // Swift's runtime ends the program when it gets no memory for objects and arrays.
    guard MemoryReserve.isThere(MemoryReserve.ofObjects) else { throw PurgeableError.withoutMemory(in: "ObjectCache.init") }
    let operation = "ObjectCache '\(options.name)'.init"
    try options.check(in: operation)
    let ofBytes = [
      ("lockedByteLimit", options.lockedByteLimit != nil), ("pinnedByteLimit", options.pinnedByteLimit != nil),
      ("core", options.core != nil),
    ]
    for (label, isSet) in ofBytes where isSet {
      throw PurgeableError(.invalidArgument(label), in: operation, explanation: "this option is for caches of bytes")
    }
    store = ObjectStore(options, clock: clock ?? options.monotonicClock, isSurelyEqual: isSurelyEqual)
    KnownTypes.make([
      Value?.self, Lookup<Value>.self, Found?.self, CacheEntry<Key, Value>?.self, NotedObject<Key, Value>?.self,
      DepartedObject<Key, Value>?.self, (Bool, DepartedObject<Key, Value>?).self, (StoreOutcome?, Value?).self,
      (value: Value, isDiscardable: Bool, birth: UInt64)?.self, Departure<Key, Value>.self, ObjectNode<Key, Value>.self,
      [DepartedObject<Key, Value>].self, (Key?, Key?).self,
    ])
    // The same for types that have no value: those of walks and of tables.
    removeAll()
    _ = (store.sweep(), store.dropExpired())
    if let onDeparture { setDepartureHandler(onDeparture) }
    ClientRoster.shared.add(store)
  }

  deinit {
    ClientRoster.shared.remove(store)
    // Here, and not on a thread of the library's that still works for the store.
    store.dropAll()
  }

  // MARK: Totals

  /// The number of entries. Any thread, no mutex.
  public var count: Int { max(0, store.count) }

  /// Whether `count` is 0.
  public var isEmpty: Bool { count == 0 }

  /// The sum of the entries' costs; `Int.max` when it is larger. Any thread, no mutex.
  public var totalCost: Int { Int(clamping: store.totalCost) }

  /// Exactly least recently used, among entries of the same priority.
  public var evictionOrder: EvictionOrder { .lru }

  /// Whether an entry leaves when its object's content is found discarded, by a look-up or a sweep; true at first. False: such an
  /// entry stays and is found, without its content. Any thread.
  public var evictsEntriesWithDiscardedContent: Bool {
    get { store.evictsDiscarded.load(ordering: .relaxed) }
    set { store.evictsDiscarded.store(newValue, ordering: .relaxed) }
  }
}

extension ObjectCache: CustomStringConvertible {
  /// Name and entries in one line, for messages.
  public var description: String { "ObjectCache \"\(name)\": \(count) entries, cost \(totalCost)" }
}
