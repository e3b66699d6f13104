// SPDX-License-Identifier: MIT
// Enumerating: keys by a walk (Shard/EntryWalk.swift), and what lies under them by peeks.

import CPurgeable

extension PurgeableCache {
  // MARK: Walks

  /// The keys in the order of eviction as it stands when a loop begins, the next to go first: by default entries that were not
  /// used lately, the oldest slab first, then those that were; with `EvictionOrder.lru` the least recently used first. Few keys
  /// have a hash that agrees with another's in 26 bits; the two come together. Copies no values, and counts as no use.
  ///
  ///     let pages = try PurgeableCache<String, [UInt8]>()
  ///     for key in pages.keys.prefix(10) { print("next to go: \(key)") }
  ///
  /// A loop may use and change the cache, as other threads may: no mutex is held between two keys. An entry that stays for the
  /// length of the loop comes exactly once; one that is stored, replaced or removed meanwhile comes once or not at all. Entries
  /// that the kernel took are left out, and so are keys whose bytes `init?(purgeableBytes:)` refuses.
  ///
  /// Cost: at the loop's beginning one pass over the index, some 20 ns an entry (200 for tracked keys), and 8 bytes of ordinary
  /// memory for each as long as the loop lasts; stores wait while their shard is noted. Then some 0.4 to 0.8 us a key, which is
  /// read where its entry is, and a short mutex for each 32. Without memory for that, the loop sees no keys or ends early. Any
  /// thread. A loop that a forked child goes on with sees some keys of the parent's at most.
  @inlinable
  public var keys: some Sequence<Key> { CacheKeys(self) }

  /// The values in the order of `keys`, each copied when its turn comes, as by `peekValue(forKey:)`. Everything else as `keys`.
  @inlinable
  public var values: some Sequence<Value> { keys.lazy.compactMap { self.peekValue(forKey: $0) } }

  /// The entries in the order of `keys`, each copied when its turn comes, as by `peekEntry(forKey:)`. Everything else as `keys`.
  @inlinable
  public var entries: some Sequence<CacheEntry<Key, Value>> {
    keys.lazy.compactMap { self.peekEntry(forKey: $0) }
  }

  /// A key's entry, without counting as a use. nil where `peekValue(forKey:)` is nil. The value is copied under the
  /// mutex of its shard.
  @inlinable
  public func peekEntry(forKey key: Key) -> CacheEntry<Key, Value>? {
    var notes = EntryNotes()
    let found = unsafe lookUp({ buffer in unsafe peek(key, into: buffer, &notes) }, countsAsUse: false)
    guard case .hit(let value) = found else { return nil }
    return CacheEntry(key: key, value: value, notes)
  }

  // MARK: Many

  /// Stores values, each as `setValue(_:forKey:expiry:priority:)`. Returns what was refused: empty where all are stored.
  ///
  /// A `snapshot()` of another thread sees all or none of them, and so do `changes(every:)`; a look-up of one key may see its new
  /// value earlier. They wait for the call, a second at most. Any thread.
  @discardableResult
  public func setValues(
    _ values: [Key: Value], expiry: Expiry? = nil, priority: EntryPriority? = nil
  ) -> [Key: StoreOutcome] {
    engine.lazy.batches.run { values.refused { setValue($0, forKey: $1, expiry: expiry, priority: priority) } }
  }

  /// Removes the entries of keys. Returns how many there were. As `remove(forKey:)` for each key; to others as `setValues`.
  ///
  /// To remove by a condition on keys: `cache.remove(forKeys: cache.keys.filter { … })`, which copies no values.
  @discardableResult
  public func remove(forKeys keys: some Sequence<Key>) -> Int {
    engine.lazy.batches.run { keys.count { remove(forKey: $0) } }
  }

  /// Removes the entries for which the closure says so, over a walk as `entries`. Returns how many were removed.
  ///
  /// A value that was replaced by another one meanwhile, even by the closure, stays. An entry that evictions have only moved
  /// goes: it is told by its cost and a digest of its bytes, made with its value. An error leaves the removals before it. The
  /// closure runs under no mutex. Any thread.
  @discardableResult
  public func removeAll<E: Error>(where isRemovable: (CacheEntry<Key, Value>) throws(E) -> Bool) throws(E) -> Int {
    try takeOutAll(.removed, where: isRemovable)
  }

  /// Evicts the entries for which the closure says so: as `removeAll(where:)`, but they leave for the reason `decider`, as a
  /// decision about the cache and not about what is true; pinned entries are not asked about. Returns how many left. What the
  /// verdicts go by is what the closure captures.
  @discardableResult
  public func evictAll<E: Error>(where isEvictable: (CacheEntry<Key, Value>) throws(E) -> Bool) throws(E) -> Int {
    try takeOutAll(.decider, where: isEvictable)
  }

  private func takeOutAll<E: Error>(
    _ reason: DepartureReason, where mayGo: (CacheEntry<Key, Value>) throws(E) -> Bool
  ) throws(E) -> Int {
    var count = 0
    for key in keys {
      guard let (entry, peeked) = peek(key, digests: true), reason == .removed || entry.priority != .pinned,
        try mayGo(entry), takeOut(key, peeked, reason)
      else { continue }
      count += 1
    }
    return count
  }

  // MARK: All at one moment

  /// All keys and values as they are at one moment.
  ///
  /// Stores and removals wait while bytes are copied; look-ups do not, nor does anything while keys and values are made of the
  /// bytes. Of what another thread's `setValues` or `remove(forKeys:)` does it sees all or nothing: it waits for these, a
  /// second at most. Counts as no use. Takes twice the ordinary memory that the values need; empty without it. Any thread.
  public func snapshot() -> [Key: Value] {
    engine.shards.healIfChild()
    var copies = EntryCopies<Key>()
    BatchGate.whenQuiet { isLast in
      engine.shards.lockAll()
      defer { engine.shards.unlockAll() }
      if !isLast, engine.lazy.knownBatches?.isQuiet == false { return false }
      copies = copyAll()
      return true
    }
    let entryByteCount = 4 * (MemoryLayout<Key>.stride + MemoryLayout<Value>.stride + 16)
    guard MemoryReserve.isThere(2 * copies.byteCount + copies.count * entryByteCount) else { return [:] }
    var all: [Key: Value] = [:]
    all.reserveCapacity(copies.count)
    copies.takeAll(for: self) { key, value in all[key] = Value(purgeableBytes: value) }
    return all
  }

  /// Under the mutexes of all shards. Nothing where there is no memory.
  private func copyAll() -> EntryCopies<Key> {
    var copies = EntryCopies<Key>()
    let (count, byteCount) = engine.shards.all.reduce((0, 0)) { sum, shard in
      shard.held.whileHeld { (sum.0 + $0.slots.count, sum.1 + $0.books.byteCount) }
    }
    guard copies.reserve(count, byteCount: byteCount) else { return copies }
    for shard in engine.shards.all {
      shard.held.whileHeld { held in held.index.forEachSlot { copies.append($0, in: held, withValue: true) } }
    }
    return copies
  }

  // MARK: Inside

  /// A key's entry, without counting as a use. `digests`: whether a digest of the value is made.
  func peek(_ key: Key, digests: Bool = false) -> (entry: CacheEntry<Key, Value>, peeked: PeekedEntry)? {
    var (notes, peeked) = (EntryNotes(), PeekedEntry?.none)
    let found = unsafe lookUp(
      { buffer in unsafe peek(key, into: buffer, &notes, &peeked, digests: digests) }, countsAsUse: false)
    guard case .hit(let value) = found, let peeked else { return nil }
    return (CacheEntry(key: key, value: value, notes), peeked)
  }

  /// Copies a key's value, and notes what else is known of the entry.
  @usableFromInline
  func peek(_ key: Key, into buffer: UnsafeMutableRawBufferPointer, _ notes: inout EntryNotes) -> BufferRead {
    var peeked: PeekedEntry?
    return unsafe peek(key, into: buffer, &notes, &peeked, digests: false)
  }

  private func peek(
    _ key: Key, into buffer: UnsafeMutableRawBufferPointer, _ notes: inout EntryNotes, _ peeked: inout PeekedEntry?, digests: Bool
  ) -> BufferRead {
    var read = BufferRead.miss(.unknown)
    var (text, textByteCount) = (InlineArray<255, UInt8>(repeating: 0), Int?.none)
    visitEntry(key) { engineKey, prefix, held in
      read = unsafe held.peek(engineKey, prefix, into: buffer, digests: digests, &peeked)
      if peeked?.head.version != nil { textByteCount = held.copyVersion(engineKey, prefix, into: &text) }
    }
    guard case .hit = read, let peeked else { return read }
    notes = EntryNotes(
      cost: Int(clamping: peeked.cost),
      remainingTime: peeked.end.map { end in
        let now = engine.base.clock.now()
        return .nanoseconds(Int64(clamping: end - min(end, now)))
      },
      recomputeCost: peeked.head.recomputeCost.map { .nanoseconds(Int64(clamping: $0)) }, priority: peeked.priority,
      version: textByteCount.map { String(decoding: (0..<$0).map { text[$0] }, as: UTF8.self) })
    return read
  }

  /// The key that was written as these bytes.
  func makeKey(_ bytes: RawSpan) -> Key? {
    // Safe: Key is what its form says, as was found out at creation.
    switch form {
    case .integer: return unsafe bytes.withUnsafeBytes { unsafe $0.loadUnaligned(as: Key.self) }
    case .string: return unsafe bytes.withUnsafeBytes { unsafe unsafeBitCast(String(decoding: $0, as: UTF8.self), to: Key.self) }
    case .bytes: return unsafe bytes.withUnsafeBytes { unsafe unsafeBitCast([UInt8]($0), to: Key.self) }
    case .custom(_, let make): return make(bytes)
    case .tracked: return nil
    }
  }
}

/// Entries that were copied under their shards' mutexes. Keys and values are made of the copies under none.
struct EntryCopies<Key: Hashable & Sendable> {
  /// Where an entry's bytes end: its prefix, or its payload.
  private var entries: [(end: Int, hasHead: Bool)] = []
  private var bytes: [UInt8] = []
  /// The keys of those that are tracked, in their order.
  private var tracked: [Key] = []
  /// Whether an entry was left out for want of memory.
  private(set) var lacksMemory = false

  var count: Int { entries.count }
  var byteCount: Int { bytes.count }

  /// Makes room. False where there is no memory.
  mutating func reserve(_ count: Int, byteCount: Int) -> Bool {
    let needed = byteCount + count * (MemoryLayout<(Int, Bool)>.stride + MemoryLayout<Key>.stride)
    guard MemoryReserve.isThere(needed + MemoryReserve.ofObjects) else { return false }
    entries.reserveCapacity(count)
    bytes.reserveCapacity(byteCount)
    tracked.reserveCapacity(count)
    return true
  }

  /// Copies an entry, unless it is lost, its time is over, or there is no memory for a large one. Runs none of the program's
  /// code. False where nothing is copied.
  @discardableResult
  mutating func append(_ slot: Slot, in held: borrowing HeldShard, withValue: Bool) -> Bool {
    let (elements, reference) = (held.elements, held.heap.reference(slot.place))
    if held.isExpired(slot) { return false }
    guard let length = withValue ? elements.length(reference) : elements.facts(of: reference)?.prefixByteCount
    else { return false }
    let needed = 2 * (bytes.count + length) + length
    guard bytes.count + length < MemoryReserve.ofLargeResults || MemoryReserve.isThere(needed) else {
      lacksMemory = true
      return false
    }
    let node = slot.isTracked ? held.keys[EngineKey.trackedNumber(of: slot)] : nil
    if slot.isTracked && node == nil { return false }
    // Unoptimized, Swift fills an array byte by byte, and copies memory as memory.
    let isCopied: ()? = elements.withPart(of: reference, from: 0, count: length) { copy in
      unsafe copy.withUnsafeBytes { unsafe bytes.append(contentsOf: $0) }
    }
    if isCopied == nil { return false }
    if let node { tracked.append(node.key(as: Key.self)) }
    entries.append((bytes.count, slot.hasHead))
    return true
  }

  /// Makes all keys, and empties itself. `body`: gets each with the bytes of its value, as far as these were copied.
  mutating func takeAll<Value>(for cache: PurgeableCache<Key, Value>, _ body: (Key, RawSpan) -> Void) {
    takeEach(for: cache) { _, key, payload, prefixByteCount, hasHead in
      let start = EntryPrefix.valueStart(in: payload, behind: prefixByteCount, hasHead: hasHead)
      body(key, payload.extracting(start..<payload.byteCount))
    }
  }

  /// As above. `body` gets the number of each entry, its key, its payload, how long the prefix is, and whether a head follows.
  mutating func takeEach<Value, E: Error>(
    for cache: PurgeableCache<Key, Value>, _ body: (Int, Key, RawSpan, Int, Bool) throws(E) -> Void
  ) throws(E) {
    defer {
      entries.removeAll(keepingCapacity: true)
      bytes.removeAll(keepingCapacity: true)
      tracked.removeAll(keepingCapacity: true)
    }
    var (start, trackedCount) = (0, 0)
    for (number, entry) in entries.enumerated() {
      let payload = unsafe bytes.span.bytes.extracting(start..<entry.end)
      start = entry.end
      let (key, prefixByteCount): (Key?, Int)
      switch EntryPrefix.parse(payload, layout: cache.form.layout) {
      case .key(let byteCount, let keyAt):
        (key, prefixByteCount) = (cache.makeKey(payload.extracting(keyAt..<byteCount)), byteCount)
      case .tracked:
        (key, prefixByteCount) = (tracked[trackedCount], EntryPrefix.trackedByteCount)
        trackedCount += 1
      case nil: continue
      }
      guard let key else { continue }
      try body(number, key, payload, prefixByteCount, entry.hasHead)
    }
  }
}

/// The keys of a cache in the order of eviction.
@usableFromInline
struct CacheKeys<Key: Hashable & Sendable, Value: PurgeableValue>: Sequence {
  @usableFromInline let cache: PurgeableCache<Key, Value>

  @usableFromInline init(_ cache: PurgeableCache<Key, Value>) { self.cache = cache }

  @inlinable func makeIterator() -> KeyWalk<Key, Value> { KeyWalk(cache) }
}

/// A walk over keys.
@usableFromInline
final class KeyWalk<Key: Hashable & Sendable, Value: PurgeableValue>: IteratorProtocol {
  private let cache: PurgeableCache<Key, Value>
  private var walk: EntryWalk
  private var copies = EntryCopies<Key>()
  /// Of the last visit, and how many of them have come.
  @usableFromInline var keys: [Key] = []
  private var lastUses: [UseTime] = []
  @usableFromInline var position = 0

  /// Entries that were not used since then are left out; of the others the last uses are kept with the keys.
  private let start: UseTime?
  private var uses: [UseTime] = []

  init(_ cache: PurgeableCache<Key, Value>, usedSince start: UseTime?) {
    (self.cache, self.start) = (cache, start)
    walk = EntryWalk(cache.engine.shards)
  }

  @usableFromInline convenience init(_ cache: PurgeableCache<Key, Value>) { self.init(cache, usedSince: nil) }

  /// Of the key that came last; nil where uses do not matter.
  var lastUse: UseTime? { start == nil ? nil : lastUses[position - 1] }

  @inlinable
  func next() -> Key? {
    while position == keys.count { if !visitNext() { return nil } }
    position += 1
    return keys[position - 1]
  }

  /// Fetches some more keys, or none. False at the end.
  @usableFromInline
  func visitNext() -> Bool {
    guard MemoryReserve.isThere(MemoryReserve.ofNews),
      walk.visitNext(
        of: cache.engine.shards,
        { held, found in
          guard let start else {
            _ = copies.append(found.slot, in: held, withValue: false)
            return
          }
          guard let use = held.lastUse(of: found.slot), start.steps(until: use) > 0,
            copies.append(found.slot, in: held, withValue: false)
          else { return }
          uses.append(use)
        })
    else { return false }
    // Here keys may end, which is the program's code.
    keys.removeAll(keepingCapacity: true)
    position = 0
    lastUses.removeAll(keepingCapacity: true)
    copies.takeEach(for: cache) { number, key, _, _, _ in
      keys.append(key)
      if start != nil { lastUses.append(uses[number]) }
    }
    uses.removeAll(keepingCapacity: true)
    return true
  }
}
