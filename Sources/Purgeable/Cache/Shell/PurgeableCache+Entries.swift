// SPDX-License-Identifier: MIT
// Enumerating: keys by a walk (Shard/EntryWalk.swift), and what lies under them by peeks.

extension PurgeableCache {
  // MARK: Walks

  /// The keys in the order of eviction as it stands when a loop begins, the next to go first: by default entries that were not
  /// used lately, the oldest first, then those that were; with `EvictionOrder.lru` the least recently used first. A trim in
  /// the default order takes of both, by how many there are of each. Few keys have a hash that agrees with another's in 26 bits;
  /// the two come together. Copies no values, and counts as no use.
  ///
  ///     let pages = try PurgeableCache<String, [UInt8]>()
  ///     for key in pages.keys.prefix(10) { print("next to go: \(key)") }
  ///
  /// A loop may use and change the cache, as other threads may: no mutex is held between two keys. An entry that stays for the
  /// length of the loop comes exactly once; one that is stored, replaced or removed meanwhile comes once or not at all. Entries
  /// that the kernel took are left out, and so are keys whose bytes `init?(purgeableBytes:)` refuses.
  ///
  /// Cost: at the loop's beginning one pass over the index, some 20 ns an entry (200 for tracked keys), and 8 bytes of ordinary
  /// memory for each as long as the loop lasts; stores wait while their shard is noted. Then some 0.2 to 0.5 us a key, which is
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
  /// value earlier. They wait for the call, a second at most: of a batch that takes longer they see a part. Other calls that
  /// store or remove many wait as long. Any thread.
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
  /// bytes. Of what another thread's `setValues`, `remove(forKeys:)` or `removeAll()` does it sees all or nothing: it waits
  /// for these, a second at most, and sees a part of what takes longer. Counts as no use. Takes twice the ordinary memory that
  /// the values need; empty without it. Any thread.
  public func snapshot() -> [Key: Value] {
    engine.shards.healIfChild()
    var (copies, tracked) = (EntryCopies(layout: form.layout), [Key]())
    engine.lazy.batches.look {
      engine.shards.lockAll()
      defer { engine.shards.unlockAll() }
      copyAll(into: &copies, &tracked)
    }
    let entryByteCount = 4 * (MemoryLayout<Key>.stride + MemoryLayout<Value>.stride + 16)
    guard MemoryReserve.isThere(2 * copies.byteCount + copies.count * entryByteCount) else { return [:] }
    var all: [Key: Value] = [:]
    all.reserveCapacity(copies.count)
    for i in 0..<copies.count {
      guard let key = key(i, of: copies, tracked) else { continue }
      copies.withEntry(i) { _, _, _, value in all[key] = Value(purgeableBytes: value) }
    }
    return all
  }

  /// Under the mutexes of all shards. Nothing where there is no memory.
  private func copyAll(into copies: inout EntryCopies, _ tracked: inout [Key]) {
    let (count, byteCount) = engine.shards.all.reduce((0, 0)) { sum, shard in
      shard.held.whileHeld { (sum.0 + $0.slots.count, sum.1 + $0.books.byteCount) }
    }
    guard copies.reserve(count, byteCount: byteCount) else { return }
    if form.layout == .variable {
      guard MemoryReserve.isThere(count * MemoryLayout<Key>.stride + MemoryReserve.ofObjects) else { return }
      tracked.reserveCapacity(count)
    }
    for shard in engine.shards.all {
      shard.held.whileHeld { held in
        held.index.forEachSlot { slot in
          copies.append(slot, in: held, payloadBelow: .max) { tracked.append($0.key(as: Key.self)) }
        }
      }
    }
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

  /// The key of a copied entry; nil where its bytes are none of a key. `tracked`: the keys without bytes.
  @inlinable
  func key(_ number: Int, of copies: EntryCopies, _ tracked: [Key]) -> Key? {
    switch copies.key(of: number) {
    case .bytes(let range): unsafe makeKey(copies.bytes.span.bytes.extracting(range))
    case .tracked(let at): tracked[at]
    case nil: nil
    }
  }

  /// The key that was written as these bytes.
  @inlinable
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

/// The keys of a cache in the order of eviction.
@usableFromInline
struct CacheKeys<Key: Hashable & Sendable, Value: PurgeableValue>: Sequence {
  @usableFromInline let cache: PurgeableCache<Key, Value>

  @usableFromInline init(_ cache: PurgeableCache<Key, Value>) { self.cache = cache }

  @inlinable func makeIterator() -> KeyWalk<Key, Value> { KeyWalk(cache) }
}

/// A walk over keys. What is made of a key's bytes is made where the program knows its type.
@usableFromInline
struct KeyWalk<Key: Hashable & Sendable, Value: PurgeableValue>: IteratorProtocol {
  @usableFromInline let cache: PurgeableCache<Key, Value>
  private var walk: EntryWalk
  /// Of the last visit, and how many of them have come.
  @usableFromInline var copies: EntryCopies
  @usableFromInline var tracked: [Key] = []
  @usableFromInline var position = 0

  /// Entries that were not used since then are left out; of the others the last uses are kept.
  private let start: UseTime?
  private var uses: [UseTime] = []

  init(_ cache: PurgeableCache<Key, Value>, usedSince start: UseTime?) {
    (self.cache, self.start) = (cache, start)
    walk = EntryWalk(cache.engine.shards)
    copies = EntryCopies(layout: cache.form.layout)
  }

  @usableFromInline init(_ cache: PurgeableCache<Key, Value>) { self.init(cache, usedSince: nil) }

  /// Of the key that came last; nil where uses do not matter.
  var lastUse: UseTime? { start == nil ? nil : uses[position - 1] }

  @inlinable
  mutating func next() -> Key? {
    while position < copies.count || visitNext() {
      guard position < copies.count else { continue }
      position += 1
      if let key = cache.key(position - 1, of: copies, tracked) { return key }
    }
    return nil
  }

  /// Fetches some more entries, or none. False at the end.
  @usableFromInline
  mutating func visitNext() -> Bool {
    guard MemoryReserve.isThere(MemoryReserve.ofNews) else { return false }
    let start = start
    // Out of the walk's own, which changes meanwhile.
    var (copies, tracked, uses) = (EntryCopies(layout: cache.form.layout), [Key](), [UseTime]())
    swap(&copies, &self.copies)
    swap(&tracked, &self.tracked)
    swap(&uses, &self.uses)
    copies.removeAll()
    // Here keys may end, which is the program's code.
    tracked.removeAll(keepingCapacity: true)
    uses.removeAll(keepingCapacity: true)
    position = 0
    let goesOn = walk.visitNext(of: cache.engine.shards) { held, found in
      var use: UseTime?
      if let start {
        use = held.lastUse(of: found.slot)
        guard let use, start.steps(until: use) > 0 else { return }
      }
      let copied = copies.append(found.slot, in: held, payloadBelow: 0) { tracked.append($0.key(as: Key.self)) }
      if let use, copied != .nothing { uses.append(use) }
    }
    (self.copies, self.tracked, self.uses) = (copies, tracked, uses)
    return goesOn
  }
}
