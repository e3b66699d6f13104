// SPDX-License-Identifier: MIT
// The cache: a typed shell over the engine.

import Synchronization

/// A cache whose values lie in memory that the kernel may take back at any moment, page by page.
///
/// Without limits it holds all values, as long as no program needs the memory. When memory is short, the kernel takes pages,
/// without swapping and without killing a process; the cache notices, and returns `nil` for the values that were on them. It
/// never returns a wrong value. With limits it evicts by S3-FIFO, which keeps entries that are used again.
///
///     let thumbnails = try PurgeableCache<String, [UInt8]>()
///     thumbnails["cat"] = render("cat")
///     let again = thumbnails["cat"]     // nil when never stored, evicted or discarded
///
/// Use it for values that can be made again: any value can be gone at any time.
///
/// Every function may be called from any thread. A read that starts after a write has returned sees it. Reads of cached values
/// make no system call, and take no mutex where keys have bytes of their own and the order is S3-FIFO; they copy the value out,
/// or lock it for the length of a closure (`withBytes`). Callbacks run outside of the cache's mutexes and may use the cache.
///
/// Memory: values lie on purgeable pages, and so do keys that have bytes of their own; some 15 bytes an entry are ordinary
/// memory. Keys of other types, strings that are not ASCII, and all keys of a cache with `onDeparture` or `tracksKeys` lie in
/// ordinary memory, and a hit takes a mutex.
public final class PurgeableCache<Key: Hashable & Sendable, Value: PurgeableValue>: Sendable {
  let engine: CacheEngine
  @usableFromInline let form: KeyForm<Key>
  /// Exists in caches that may have tracked keys: with `String` keys, those outside of ASCII.
  let teller: KeyTeller<Key, Value>?
  /// The keys that are being loaded.
  @usableFromInline let loads: LoadTable<Key>
  /// PurgeableCache+Tier.swift.
  let hasTier = Atomic<Bool>(false)

  /// The cache's name, for its description, statistics and messages.
  public let name: String

  /// Makes an empty cache. A limit of `nil` is no limit; a limit of 0 admits no entry that counts against it.
  ///
  /// The parameters are those of `CacheOptions` under their names. `onDeparture`: called once for every entry that leaves, under
  /// no mutex of the library; see below. Keys are tracked with it.
  ///
  /// - Throws: `PurgeableError` of kind `outOfMemory`; or of kind `invalidArgument` for a negative limit, a share that is not
  ///   above 0 and at most 1, a time of 0 or less, and a byte limit or a share that is less than an empty cache needs (some 50
  ///   KiB; the explanation says how much). A byte limit of 0 is allowed: it admits nothing.
  ///
  /// The handler `onDeparture`:
  /// - Departures that a call of the program causes are told on its thread before the call returns. A call that takes many
  ///   entries out tells in slices of about a mebibyte of values, between which other threads may use the cache.
  /// - What the handler's own calls take out is told when it has returned, on the same thread and before the outer call returns.
  ///   So a handler may store again what limits evict, and such calls do not nest. A value that the handler itself replaces, or
  ///   that is refused as too large, is told at once, within the handler: such calls nest, as deep as the handler goes on doing
  ///   so, on the stack of its thread. A handler that replaces a value in answer to each such call never ends.
  /// - Departures that the library causes by itself (under pressure, for `idleTime`, of what has expired or what the kernel took)
  ///   are told on a thread that this cache has as long as there are any to tell. The thread has the default stack of the
  ///   process's threads, and all signals are blocked in it. If no thread can be made, the program's next calls tell.
  /// - So the handler may be called on several threads at a time. It may take its time, use this cache and any other, make
  ///   caches, end this one, and fork. Only the call that caused the departure and this cache's other departures wait for it.
  /// - What a load takes out is told when its value has been given to all who wait, what a load of many keys takes out when it
  ///   has ended for all of them: a handler may load, also what another handler's call is loading. A load in a task is told of
  ///   on the task's thread, before the call that began it returns.
  /// - 1 MiB of values may wait for the thread, and 8 MiB of values in all. Beyond that, or without memory for a copy, a
  ///   departure is told without its value (`Departure.absence` is `notKept`, and `CacheStatistics.notKeptValueCount` counts it).
  ///   The first value that a call takes out, and in a load of many keys the first for each key, is kept beyond that.
  ///   No departure itself is dropped: each waits in the entry of its key. When more than 65,536 wait
  ///   (`CacheStatistics.waitingDepartureCount`), each call of the program tells up to four of them first, unless a handler makes
  ///   the call.
  /// - A store tells first of the departures that made room for its value, then of its key's old value, then of what limits take
  ///   afterwards, each in the order in which they happened. Between threads there is no order: a departure may be told after its
  ///   key was stored again. So a list of the keys is kept by `changes(every:)`, which tells what there is now; or by
  ///   `containsValue(forKey:)`, which never calls the handler: asked in the handler and after each store, under the list's own
  ///   mutex, the last caller is right.
  /// - In a forked child the cache is empty, and no departures of the parent's entries are told, not even waiting ones: the
  ///   parent tells those.
  /// - After a cache's end, no departures are told.
  ///
  /// `hash(into:)` and `==` of keys are called under no mutex either, and may use the cache. If a key changes after it was
  /// stored, its entry can no longer be found by any key, and leaves as any other does.
  ///
  /// Where the kernel does not discard (see `KernelSupport`), a cache without any limit limits itself to a quarter of its control
  /// group's or the machine's memory: `byteLimit` says how much.
  public convenience init(
    name: String = "cache", countLimit: Int? = nil, costLimit: Int? = nil, byteLimit: Int? = nil, memoryShare: Double? = nil,
    lockedByteLimit: Int? = nil, idleTime: Duration? = nil, evictionOrder: EvictionOrder = .s3FIFO, expiry: Expiry? = nil,
    tracksKeys: Bool = false, onDeparture: (@Sendable (Departure<Key, Value>) -> Void)? = nil
  ) throws(PurgeableError) {
    var options = CacheOptions(
      name: name, countLimit: countLimit, costLimit: costLimit, byteLimit: byteLimit, memoryShare: memoryShare)
    (options.lockedByteLimit, options.idleTime, options.tracksKeys) = (lockedByteLimit, idleTime, tracksKeys)
    (options.evictionOrder, options.expiry) = (evictionOrder, expiry)
    try self.init(options, onDeparture: onDeparture)
  }

  /// Makes an empty cache as the options say; each means what the parameter of its name means in the initializer with all
  /// parameters, and `onDeparture` the same as there.
  ///
  /// With `evictsEntriesWithDiscardedContent` false, an entry whose value is found discarded stays without it: it is part of
  /// `count`, costs nothing, and its look-up says `MissReason.discarded`, until it is stored anew, removed or evicted, which it
  /// is before others. Walks and snapshots leave it out. Keys are tracked then, and the cache has one shard: calls of several
  /// threads wait for each other.
  ///
  /// - Throws: as there.
  public convenience init(
    _ options: CacheOptions, onDeparture: (@Sendable (Departure<Key, Value>) -> Void)? = nil
  ) throws(PurgeableError) {
    try self.init(options, clock: nil, onDeparture: onDeparture)
  }

  /// `clock`: nil for the one of the options. `hashSeed`: nil for a random one. `entryOrder`: nil for the one of the options.
  init(
    _ options: CacheOptions, clock: MonotonicClock?, hashSeed: UInt64? = nil,
    entryOrder: (@Sendable () -> any EntryOrder)? = nil, onDeparture: (@Sendable (Departure<Key, Value>) -> Void)?
  ) throws(PurgeableError) {
    // Swift's runtime ends the program when it gets no memory for objects and arrays.
    guard MemoryReserve.isThere(MemoryReserve.ofObjects) else {
      throw PurgeableError.withoutMemory(in: "PurgeableCache.init")
    }
    KnownTypes.make([
      BufferRead?.self, EngineLock?.self, HeldShard.PriorityChange?.self, Bool?.self, (Key?, Key?).self, Key?.self, Value?.self,
      Lookup<Value>.self, Departure<Key, Value>.self,
    ])
    let operation = "PurgeableCache '\(options.name)'.init"
    try options.check(in: operation)
    let form = KeyForm<Key>(
      tracking: options.tracksKeys || onDeparture != nil || !options.evictsEntriesWithDiscardedContent)
    let loads = LoadTable<Key>(refreshLimit: options.refreshLimit)
    let teller: KeyTeller<Key, Value>? =
      switch form {
      case .tracked, .string:
        KeyTeller(onDeparture.map { .init(tell: $0, decode: { Value(purgeableBytes: $0) }) }, loads)
      case .integer, .bytes, .custom: nil
      }
    let engine = try CacheEngine(
      options, keyLayout: form.layout, clock: clock ?? options.monotonicClock, hashSeed: hashSeed, observer: teller, loads: loads,
      entryOrder: entryOrder)
    // Needed by this cache when it is empty, tracked keys included.
    let (limit, needed) = (engine.base.limits.bytes.load(ordering: .relaxed), engine.base.neededBytes)
    engine.base.limits.leastBytes.store(needed, ordering: .relaxed)
    if limit > 0, limit < needed {
      let isShare = limit != options.byteLimit
      throw PurgeableError(
        .invalidArgument(isShare ? "memoryShare" : "byteLimit"), in: operation,
        explanation: "\(limit) bytes are less than an empty cache and its first entry need here, \(needed) bytes")
    }
    self.engine = engine
    self.loads = loads
    self.form = form
    self.teller = teller
    name = options.name
    ClientRoster.shared.add(engine)
  }

  deinit {
    // Departures that still wait are not told after the cache's end.
    ClientRoster.shared.remove(engine)
    if let asker = engine.asker.load() { ClientRoster.shared.remove(asker) }
    engine.lazy.endIntervals()
    teller?.board.load()?.removeAll()
    teller?.setHandler(nil)
    if teller != nil { engine.endKeys() }
    // As the keys of entries: none is to end where the library lets the engine go.
    loads.forgetAbsent(endsKeys: true)
  }

  /// Which entry goes first: for the cache's life.
  public var evictionOrder: EvictionOrder { engine.base.evictionOrder }

  // MARK: Totals

  /// The number of entries. Entries on pages that are known to be lost do not count; lost entries that have not been found yet
  /// do. Any thread, no mutex.
  public var count: Int {
    engine.shards.healIfChild()
    return max(0, engine.base.count)
  }

  /// Whether `count` is 0.
  public var isEmpty: Bool { count == 0 }

  /// The sum of the entries' costs; `Int.max` when it is larger. Any thread.
  public var totalCost: Int {
    engine.shards.healIfChild()
    return Int(clamping: engine.base.totalCost)
  }

  /// The bytes that count against `byteLimit` and `memoryShare`: slabs and bookkeeping. Pages that are known to be lost (found by
  /// a sweep or by a look-up) take no memory and do not count; `statistics.memory.heldBytes` includes them.
  public var byteCount: Int {
    engine.shards.healIfChild()
    return engine.base.chargedBytes
  }
}

extension PurgeableCache: CustomStringConvertible {
  /// Name, entries and bytes in one line, for messages.
  public var description: String { "PurgeableCache \"\(name)\": \(count) entries, \(byteCount) bytes held" }
}
