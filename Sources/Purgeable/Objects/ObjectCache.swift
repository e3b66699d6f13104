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
/// Swift's own. Memory: 80 bytes and more an entry, by the sizes of key and value, beside what these refer to.
public final class ObjectCache<Key: Hashable & Sendable, Value: Sendable>: Sendable {
  @usableFromInline let store: ObjectStore<Key, Value>

  /// The cache's name, for its description, statistics and messages.
  public let name: String

  /// Makes an empty cache. A limit of `nil` is no limit; a limit of 0 admits no entry that counts against it.
  ///
  /// - Parameters:
  ///   - name: for people.
  ///   - countLimit: the most entries.
  ///   - costLimit: the most that the entries' costs may add up to. An entry's cost is 0 unless another is given; a negative cost
  ///     counts as 0. Entries of no cost stay when the cost limit is exceeded.
  ///   - onDeparture: told of each entry that leaves (`setDepartureHandler`).
  /// - Throws: `PurgeableError` of kind `outOfMemory`, or `invalidArgument` for a negative limit.
  public convenience init(
    name: String = "cache", countLimit: Int? = nil, costLimit: Int? = nil,
    onDeparture: (@Sendable (Departure<Key, Value>) -> Void)? = nil
  ) throws(PurgeableError) {
    try self.init(name: name, countLimit: countLimit, costLimit: costLimit, clock: .monotonic, onDeparture: onDeparture)
  }

  /// As above, with a clock of the caller's for slow growth.
  init(
    name: String = "cache", countLimit: Int? = nil, costLimit: Int? = nil, clock: CacheClock,
    onDeparture: (@Sendable (Departure<Key, Value>) -> Void)? = nil
  ) throws(PurgeableError) {
    let operation = "ObjectCache '\(name)'.init"
    // Swift's runtime ends the program when it gets no memory for objects and arrays.
    guard MemoryReserve.isThere(MemoryReserve.ofObjects) else { throw PurgeableError.withoutMemory(in: operation) }
    try LimitCheck.limit(countLimit, "countLimit", in: operation)
    try LimitCheck.limit(costLimit, "costLimit", in: operation)
    store = ObjectStore(ObjectBooks(countLimit: countLimit, costLimit: costLimit, clock: clock))
    self.name = name
    if let onDeparture { setDepartureHandler(onDeparture) }
    ClientRoster.shared.add(store)
  }

  deinit { ClientRoster.shared.remove(store) }

  // MARK: Totals

  /// The number of entries. Any thread, no mutex.
  public var count: Int { max(0, store.books.count) }

  /// Whether `count` is 0.
  public var isEmpty: Bool { count == 0 }

  /// The sum of the entries' costs; `Int.max` when it is larger. Any thread, no mutex.
  public var totalCost: Int { Int(clamping: store.books.totalCost) }

  // MARK: Limits

  /// The most entries, nil for no limit.
  public var countLimit: Int? {
    let limit = store.books.countLimit.load(ordering: .relaxed)
    return limit == .max ? nil : limit
  }

  /// Sets `countLimit`. A lower limit evicts before this returns. Any thread.
  ///
  /// - Throws: `PurgeableError` of kind `invalidArgument` for a negative limit; the limit stays as it was then.
  public func setCountLimit(_ limit: Int?) throws(PurgeableError) {
    try LimitCheck.limit(limit, "limit", in: "ObjectCache '\(name)'.setCountLimit")
    store.books.countLimit.store(limit ?? .max, ordering: .relaxed)
    store.enforceLimits()
  }

  /// The most that costs may add up to, nil for no limit.
  public var costLimit: Int? {
    let limit = store.books.costLimit.load(ordering: .relaxed)
    return limit == .max ? nil : Int(clamping: limit)
  }

  /// Sets `costLimit`. A lower limit evicts before this returns. Any thread.
  ///
  /// - Throws: `PurgeableError` of kind `invalidArgument` for a negative limit; the limit stays as it was then.
  public func setCostLimit(_ limit: Int?) throws(PurgeableError) {
    try LimitCheck.limit(limit, "limit", in: "ObjectCache '\(name)'.setCostLimit")
    store.books.costLimit.store(limit.map { UInt64($0) } ?? .max, ordering: .relaxed)
    store.enforceLimits()
  }

  /// Whether an entry leaves when its object's content is found discarded, by a look-up or a sweep; true at first. False: such an
  /// entry stays and is found, without its content. Any thread.
  public var evictsEntriesWithDiscardedContent: Bool {
    get { store.books.evictsDiscarded.load(ordering: .relaxed) }
    set { store.books.evictsDiscarded.store(newValue, ordering: .relaxed) }
  }
}

extension ObjectCache: CustomStringConvertible {
  /// Name and entries in one line, for messages.
  public var description: String { "ObjectCache \"\(name)\": \(count) entries, cost \(totalCost)" }
}
