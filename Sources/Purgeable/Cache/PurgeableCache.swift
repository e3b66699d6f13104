// SPDX-License-Identifier: MIT
// The cache: a typed shell over the engine.

import Synchronization

/// A cache whose values lie in memory that the kernel may take back at any moment, page by page.
///
/// Without limits it holds whatever is stored, for as long as nobody else needs the memory. When somebody does, the kernel takes
/// pages, without swapping and without killing anybody; the cache notices, and answers `nil` for what was on them. It never
/// answers a wrong value. With limits it evicts by S3-FIFO, which keeps what is used again and lets pass what is not.
///
///     let thumbnails = PurgeableCache<String, [UInt8]>()
///     thumbnails["cat"] = bytes
///     let again = thumbnails["cat"]     // nil when never stored, evicted or discarded
///
/// Use it for what can be made again. It is no store: any value can be gone at any time.
///
/// Every function may be called from any thread. A read that starts after a write has returned sees it. Reads of cached values
/// take no mutex and make no system call; they copy the value out, or lock it for the length of a closure (`withBytes`).
/// Callbacks run outside of the cache's mutexes and may use the cache.
///
/// Memory: values and, where they have bytes of their own, keys lie on purgeable pages; some 15 bytes an entry are ordinary
/// memory. Keys of other types, and all keys of a cache with a delegate, lie in ordinary memory.
public final class PurgeableCache<Key: Hashable & Sendable, Value: PurgeableValue>: Sendable {
  let engine: CacheEngine
  let form: KeyForm<Key>
  /// Of every cache that may have tracked keys: with strings those are the ones outside of ASCII.
  let table: KeyTable<Key, Value>?

  /// Shown in its description, statistics and messages.
  public let name: String

  /// Makes an empty cache. A limit of `nil` is none; a limit of 0 admits nothing that counts against it.
  ///
  /// - Parameters:
  ///   - name: for people.
  ///   - countLimit: the most entries.
  ///   - costLimit: the most that the entries' costs may add up to. An entry's cost is its value's bytes unless another is given.
  ///   - byteLimit: the most memory to hold, slabs and bookkeeping together.
  ///   - memoryShare: the same as a share of the memory that limits this process, above 0 and up to 1.
  ///   - lockedByteLimit: the most payload to have locked at a time (`lockedByteLimit`); nil: half the memory.
  ///   - idleTime: give back what nobody read for this long (`idleTime`); nil: never.
  ///   - tracksKeys: keep keys in ordinary memory, so that losses can be told by key. Implied by `onDeparture`.
  ///   - onDeparture: is told of every entry that leaves, once, after the mutex was released.
  /// - Throws: `PurgeableError` of kind `outOfMemory`, or `invalidArgument` for a negative limit, a share that is none, a time of 0.
  ///
  /// Where the kernel does not discard (see `KernelSupport`), a cache without any limit limits itself to a quarter of its control
  /// group's or the machine's memory: `byteLimit` tells.
  public init(
    name: String = "cache", countLimit: Int? = nil, costLimit: UInt64? = nil, byteLimit: Int? = nil, memoryShare: Double? = nil,
    lockedByteLimit: Int? = nil, idleTime: Duration? = nil, tracksKeys: Bool = false,
    onDeparture: (@Sendable (Departure<Key, Value>) -> Void)? = nil
  ) throws(PurgeableError) {
    for (label, limit) in [("countLimit", countLimit), ("byteLimit", byteLimit), ("lockedByteLimit", lockedByteLimit)] {
      if let limit, limit < 0 {
        throw PurgeableError(
          .invalidArgument(label), in: "PurgeableCache.init(\(name))", explanation: "a limit is nil or at least 0, not \(limit)")
      }
    }
    if let share = memoryShare, !(share > 0 && share <= 1) {
      throw PurgeableError(
        .invalidArgument("memoryShare"), in: "PurgeableCache.init(\(name))",
        explanation: "a share is above 0 and at most 1, not \(share)")
    }
    if let idleTime, idleTime <= .zero {
      throw PurgeableError(
        .invalidArgument("idleTime"), in: "PurgeableCache.init(\(name))", explanation: "a time is above 0, not \(idleTime)")
    }
    let form = KeyForm<Key>(tracking: tracksKeys || onDeparture != nil)
    engine = try CacheEngine(
      EngineOptions(
        countLimit: countLimit, costLimit: costLimit, byteLimit: byteLimit, memoryShare: memoryShare,
        lockedByteLimit: lockedByteLimit, idleNanoseconds: idleTime.map(CacheBudget.nanoseconds), keyLayout: form.layout))
    self.form = form
    self.name = name
    switch form {
    case .tracked, .string: table = KeyTable(shardCount: engine.shards.count, tell: onDeparture)
    case .integer, .bytes, .custom: table = nil
    }
    if let table { engine.observer.withLock { $0.value = table } }
    Maintainer.shared.add(engine)
  }

  deinit {
    // What the delegate is owed is not owed for a cache that is gone; the entries go with their memory.
    Maintainer.shared.remove(engine)
  }

  // MARK: Limits

  /// The most entries, nil for no limit. Lowering it evicts before it returns.
  public var countLimit: Int? {
    get { Self.limit(engine.countLimit.load(ordering: .relaxed)) }
    set {
      engine.countLimit.store(max(0, newValue ?? .max), ordering: .relaxed)
      engine.enforceLimits()
    }
  }

  /// The most that costs may add up to, nil for no limit. Lowering it evicts before it returns.
  public var costLimit: UInt64? {
    get {
      let limit = engine.costLimit.load(ordering: .relaxed)
      return limit == .max ? nil : limit
    }
    set {
      engine.costLimit.store(newValue ?? .max, ordering: .relaxed)
      engine.enforceLimits()
    }
  }

  /// The most bytes to hold, bookkeeping included, nil for no limit. Lowering it evicts before it returns; it cannot go below what
  /// an empty cache needs, some 30 KiB a shard.
  public var byteLimit: Int? {
    get { engine.budget.withLock { $0.byteLimit } }
    set {
      engine.budget.withLock { $0.byteLimit = newValue.map { max(0, $0) } }
      engine.applyBudget()
      engine.enforceLimits()
    }
  }

  private static func limit(_ stored: Int) -> Int? { stored == .max ? nil : stored }

  // MARK: Totals

  /// How many entries there are. Those on pages that are known to be lost do not count; those lost without anybody having noticed do.
  public var count: Int { max(0, engine.totalCount.load(ordering: .relaxed)) }

  /// Whether there is no entry.
  public var isEmpty: Bool { count == 0 }

  /// What the entries' costs add up to, `UInt64.max` where they are more.
  public var totalCost: UInt64 { UInt64(clamping: engine.totalCost.withLock { $0 }) }

  /// Bytes held: slabs, whether the kernel has taken pages of them or not, and bookkeeping.
  public var byteCount: Int { engine.heldBytes + engine.ordinaryBytes }
}

extension PurgeableCache: CustomStringConvertible {
  public var description: String { "PurgeableCache \"\(name)\": \(count) entries, \(byteCount) bytes held" }
}
