// SPDX-License-Identifier: MIT
// Speculative entries go before all others, pinned ones stay: by every limit, under pressure, against the kernel, wherever the
// entry goes.

import PurgeableTestSupport
import Synchronization
import Testing

@testable import Purgeable

private typealias Cache = PurgeableCache<Int, [UInt8]>

@Suite("cache: priority")
struct CachePriorityTests {
  enum Keys: CaseIterable { case bytes, tracked }

  @Test("a store that is refused beside what is pinned would be refused again: no room is left unseen", arguments: [70, 80])
  func refusedTwice(percent: Int) throws {
    let limit = 1 << 20
    let cache = try PurgeableCache<Int, [UInt8]>(byteLimit: limit)
    let pinned = limit / 100 * percent / 560
    for key in 0..<pinned {
      #expect(cache.setValue([UInt8](repeating: 1, count: 500), forKey: key, priority: .pinned) == .stored)
    }
    for key in 0..<limit / 500 { cache[1_000_000 + key] = [UInt8](repeating: 1, count: 500) }
    var (cured, key) = (0, 0)
    for _ in 0..<pinned {
      // In an order that leaves holes everywhere.
      key = (key + 7919) % pinned
      let value = [UInt8](repeating: 2, count: 500)
      if cache.setValue(value, forKey: key) != .replaced, cache.setValue(value, forKey: key) == .replaced { cured += 1 }
    }
    #expect(cured == 0)
    cache.checkBooksSwept()
  }

  private func makeCache(
    _ order: EvictionOrder = .s3FIFO, _ keys: Keys = .bytes, countLimit: Int? = nil, costLimit: Int? = nil,
    byteLimit: Int? = nil, pinnedByteLimit: Int? = nil, clock: (any Clock<Duration>)? = nil
  ) throws -> Cache {
    var options = CacheOptions(countLimit: countLimit, costLimit: costLimit, byteLimit: byteLimit)
    (options.evictionOrder, options.tracksKeys) = (order, keys == .tracked)
    (options.pinnedByteLimit, options.clock) = (pinnedByteLimit, clock)
    return try PurgeableCache(options)
  }

  // MARK: The attribute

  @Test("is told with the entry, and is the new store's; only a pin stays", arguments: EvictionOrder.allCases, Keys.allCases)
  func told(order: EvictionOrder, keys: Keys) throws {
    let cache = try makeCache(order, keys)
    func told(_ key: Int) -> EntryPriority? { cache.peekEntry(forKey: key)?.priority }
    for size in [100, 300_000] {
      let value = pattern(size)
      for priority in EntryPriority.allCases {
        cache.removeAll()
        #expect(cache.setValue(value, forKey: 1, priority: priority) == .stored)
        #expect(told(1) == priority)
        #expect((cache.statistics.pinnedBytes > 0) == (priority == .pinned))
        // Without one, only a pin stays.
        cache.setValue(value, forKey: 1)
        #expect(told(1) == (priority == .pinned ? .pinned : .normal))
        cache.updateValue(value, forKey: 1)
        cache.modifyValue(forKey: 1) { $0?.append(1) }
        #expect(told(1) == (priority == .pinned ? .pinned : .normal))
        for next in EntryPriority.allCases {
          #expect(try cache.setPriority(next, forKey: 1))
          #expect(told(1) == next)
          #expect(cache.peekValue(forKey: 1) == value + [1])
          #expect((cache.statistics.pinnedBytes > 0) == (next == .pinned))
          cache.setValue(value + [1], forKey: 1, priority: priority)
          #expect(told(1) == priority)
        }
        #expect(try !cache.setPriority(.pinned, forKey: 2))
        cache.checkBooksSwept()
        cache.remove(forKey: 1)
        #expect(cache.statistics.pinnedBytes == 0 && cache.isEmpty)
      }
    }
  }

  @Test("a hit makes a speculative entry normal; a peek does not", arguments: EvictionOrder.allCases, Keys.allCases)
  func firstHit(order: EvictionOrder, keys: Keys) throws {
    let cache = try makeCache(order, keys)
    for key in 0..<4 { cache.setValue(pattern(100), forKey: key, priority: .speculative) }
    _ = cache.peekValue(forKey: 0)
    _ = cache.containsValue(forKey: 0)
    _ = cache.value(forKey: 1)
    _ = cache.withBytes(forKey: 2) { _ in }
    cache.setValue(pattern(100), forKey: 3)
    #expect((0..<4).map { cache.peekEntry(forKey: $0)?.priority } == [.speculative, .normal, .normal, .normal])
    cache.checkBooksSwept()
  }

  // MARK: Speculative

  @Test("speculative entries go before all others, used ones with the others", arguments: EvictionOrder.allCases, Keys.allCases)
  func speculativeFirst(order: EvictionOrder, keys: Keys) throws {
    let cache = try makeCache(order, keys, countLimit: 100)
    for key in 0..<50 { cache.setValue(pattern(100), forKey: key) }
    for key in 50..<100 { cache.setValue(pattern(100), forKey: key, priority: .speculative) }
    for key in 50..<60 { _ = cache.value(forKey: key) }
    // Each new entry takes the place of a speculative one.
    for key in 100..<140 { cache.setValue(pattern(100), forKey: key) }
    #expect((0..<60).allSatisfy { cache.containsValue(forKey: $0) })
    #expect((60..<100).allSatisfy { !cache.containsValue(forKey: $0) })
    // Then they are normal as all.
    cache.setValue(pattern(100), forKey: 140)
    #expect(cache.count == 100)
    #expect((100..<141).allSatisfy { cache.containsValue(forKey: $0) })
    cache.checkBooksSwept()
  }

  @Test("a full cache takes a speculative entry in", arguments: EvictionOrder.allCases)
  func speculativeInFull(order: EvictionOrder) throws {
    for byCost in [false, true] {
      let cache = try makeCache(order, countLimit: byCost ? nil : 50, costLimit: byCost ? 5000 : nil)
      for key in 0..<50 { cache.setValue(pattern(100), forKey: key) }
      for key in 100..<200 {
        cache.setValue(pattern(100), forKey: key, priority: .speculative)
        #expect(cache.containsValue(forKey: key))
      }
      #expect(cache.count == 50)
      #expect((0..<50).count { cache.containsValue(forKey: $0) } == 49)
      cache.checkBooksSwept()
    }
  }

  @Test("under pressure speculative entries go first", arguments: EvictionOrder.allCases)
  func speculativeUnderPressure(order: EvictionOrder) throws {
    let cache = try makeCache(order)
    // One shard: of several, each keeps the slab that it is filling.
    for key in 0..<10_000 { cache.setValue(pattern(200), forKey: key, priority: key % 2 == 0 ? .speculative : nil) }
    while cache.count > 7_000 { _ = cache.trimUntimed(level: .warning) }
    #expect(cache.keys.count { $0 % 2 == 1 } == 5_000)
    cache.checkBooksSwept()
  }

  @Test("of several shards, too: a young speculative entry goes before old normal ones")
  func speculativeOfAnyShard() throws {
    let cache = try makeCache()
    for key in 0..<20_000 { cache[key] = pattern(100) }
    #expect(cache.engine.shards.openCount > 1 && cache.count == 20_000)
    for key in -4..<0 {
      cache.setValue(pattern(100), forKey: key, priority: .speculative)
      cache.trim(toCount: 20_000)
      #expect(cache.peekValue(forKey: key) == nil)
    }
    #expect((0..<20_000).allSatisfy { cache.containsValue(forKey: $0) })
    cache.checkBooks()
  }

  // MARK: Pinned

  @Test("pinned entries are never evicted, by no limit and no trim", arguments: EvictionOrder.allCases, Keys.allCases)
  func pinnedStay(order: EvictionOrder, keys: Keys) throws {
    let (first, second, bytes) = TestRun.isFull ? (3000, 40_000, 2 << 20) : (1500, 3500, 1 << 19)
    let cache = try makeCache(order, keys, countLimit: 500)
    let value = pattern(300)
    for key in 0..<100 { cache.setValue(value, forKey: key, priority: .pinned) }
    for key in 100..<first { cache.setValue(value, forKey: key) }
    #expect(cache.count == 500)
    try cache.setCountLimit(nil)
    try cache.setCostLimit(300 * 400)
    #expect(cache.count == 400)
    try cache.setCostLimit(nil)
    for key in first..<second { cache.setValue(value, forKey: key) }
    #expect(cache.byteCount > bytes)
    try cache.setByteLimit(bytes)
    #expect(cache.byteCount <= bytes)
    try cache.setByteLimit(nil)
    for _ in 0..<40 { _ = cache.trimUntimed(level: .critical) }
    cache.trim(toBytes: 0)
    #expect(cache.evictAll { _ in true } == cache.statistics.departures[.decider])
    cache.trim(toCount: 0)
    #expect(cache.count == 100)
    #expect((0..<100).allSatisfy { cache.peekValue(forKey: $0) == value })
    // Where nothing else is left, what does not fit goes at once.
    try cache.setCountLimit(100)
    cache.setValue(value, forKey: 5000)
    #expect(cache.count == 100 && (0..<100).allSatisfy { cache.containsValue(forKey: $0) })
    cache.checkBooksSwept()
    #expect(cache.removeAll { $0.key < 50 } == 50)
    cache.removeAll()
    #expect(cache.isEmpty && cache.statistics.pinnedBytes == 0)
  }

  /// Has the kernel take what it can, until so many entries are left: one offer skips pages.
  private func takeAll(of cache: Cache, but count: Int) {
    for _ in 0..<200 where cache.count > count {
      drainBatches()
      cache.discardMost()
      cache.sweep()
    }
    #expect(cache.count == count)
  }

  @Test("the kernel cannot take pinned entries, small and large ones, and takes the others", arguments: EvictionOrder.allCases)
  func pinnedOffOffer(order: EvictionOrder) throws {
    try needRealDiscards()
    let cache = try makeCache(order)
    let sizes = [40, 900, 5000, 200_000]
    for key in 0..<400 {
      let value = pattern(sizes[key % 4], seed: UInt8(truncatingIfNeeded: key))
      cache.setValue(value, forKey: key, priority: key % 3 == 0 ? .pinned : nil)
    }
    // Pinned when they are on offer already.
    cache.sealAll()
    for _ in 0..<4 { cache.offerIdle() }
    for key in stride(from: 1, to: 400, by: 15) { #expect(try cache.setPriority(.pinned, forKey: key)) }
    func isPinned(_ key: Int) -> Bool { key % 3 == 0 || key % 15 == 1 }
    // Before anything is locked, which would take it off offer.
    try cache.pageOut()
    takeAll(of: cache, but: (0..<400).count { isPinned($0) })
    for key in 0..<400 {
      let value = cache.value(forKey: key)
      if isPinned(key) {
        #expect(value == pattern(sizes[key % 4], seed: UInt8(truncatingIfNeeded: key)), "key \(key)")
      } else {
        #expect(value == nil, "key \(key)")
      }
    }
    // Made normal, they go as all do.
    for key in 0..<400 where isPinned(key) { #expect(try cache.setPriority(.normal, forKey: key)) }
    #expect(cache.statistics.pinnedBytes == 0)
    takeAll(of: cache, but: 0)
    #expect((0..<400).allSatisfy { cache.value(forKey: $0) == nil })
    cache.checkBooksSwept()
  }

  @Test("in a cache at its byte limit, a value of many slabs can be pinned: it stays, and so does the limit")
  func pinnedAtByteLimit() throws {
    let cache = try makeCache(byteLimit: 4 << 20, pinnedByteLimit: 2 << 20)
    for key in 0..<40 { cache[key] = pattern(300_000, seed: UInt8(key)) }
    let present = (0..<40).filter { cache.containsValue(forKey: $0) }
    #expect(present.count > 8 && cache.statistics.departures[.bytes]! > 0)
    for key in present.prefix(5) {
      #expect(try cache.setPriority(.pinned, forKey: key))
      #expect(cache.byteCount <= 4 << 20 && cache.peekEntry(forKey: key)?.priority == .pinned)
    }
    for key in 40..<80 { cache[key] = pattern(300_000, seed: UInt8(key)) }
    for key in present.prefix(5) { #expect(cache[key] == pattern(300_000, seed: UInt8(key))) }
    cache.checkBooksSwept()
  }

  @Test("the idle time passes pinned entries")
  func pinnedIdle() throws {
    let clock = ManualClock()
    let cache = try makeCache(clock: clock)
    try cache.setIdleTime(.seconds(10))
    for key in 0..<2000 { cache.setValue(pattern(300), forKey: key, priority: key % 2 == 0 ? .pinned : nil) }
    for _ in 0..<20 {
      clock.advance(by: .seconds(3))
      cache.engine.giveBackIdle()
    }
    #expect(cache.count == 1000)
    #expect((0..<2000).allSatisfy { cache.containsValue(forKey: $0) == ($0 % 2 == 0) })
    cache.checkBooksSwept()
  }

  @Test("a pinned entry expires, and goes by its slab or alone", arguments: [1, 600])
  func pinnedExpires(count: Int) throws {
    let clock = ManualClock()
    let cache = try makeCache(clock: clock)
    for key in 0..<count {
      cache.setValue(pattern(300), forKey: key, expiry: .sinceCreation(.seconds(5)), priority: .pinned)
      cache.setValue(pattern(300), forKey: key + 1000, priority: .pinned)
    }
    clock.advance(by: .seconds(6))
    #expect(cache.value(forKey: 0) == nil)
    #expect(cache.lookUpValue(forKey: 1000).value == pattern(300))
    _ = cache.removeExpired()
    #expect(cache.count == count)
    #expect((0..<count).allSatisfy { cache.containsValue(forKey: $0 + 1000) })
    cache.checkBooksSwept()
  }

  @Test("what may be pinned is limited: by a store, by a change, by a larger value under the key", arguments: Keys.allCases)
  func limit(keys: Keys) throws {
    let cache = try makeCache(.s3FIFO, keys, pinnedByteLimit: 10_000)
    #expect(cache.pinnedByteLimit == 10_000)
    for key in 0..<9 { #expect(cache.setValue(pattern(1000), forKey: key, priority: .pinned) == .stored) }
    #expect(cache.setValue(pattern(500), forKey: 20) == .stored)
    #expect(cache.setValue(pattern(1000), forKey: 20, priority: .pinned) == .pinnedByteLimit)
    #expect(cache.value(forKey: 20) == pattern(500))
    cache.setValue(pattern(1000), forKey: 21)
    let error = #expect(throws: PurgeableError.self) { try cache.setPriority(.pinned, forKey: 21) }
    #expect(error?.kind == .outOfMemory && error?.description.contains("10000 bytes") == true)
    #expect(cache.peekEntry(forKey: 21)?.priority == .normal)
    // A pinned key's larger value is normal where it does not fit.
    #expect(cache.setValue(pattern(1500), forKey: 8) == .replaced)
    #expect(cache.peekEntry(forKey: 8)?.priority == .pinned)
    #expect(cache.setValue(pattern(5000), forKey: 7) == .replaced)
    #expect(cache.peekEntry(forKey: 7)?.priority == .normal)
    #expect(cache.value(forKey: 7) == pattern(5000))
    #expect(cache.setValue(pattern(300_000), forKey: 30, priority: .pinned) == .pinnedByteLimit)
    #expect(!cache.containsValue(forKey: 30))
    #expect(cache.statistics.refusalCount == 2)
    // A lower limit leaves what is pinned.
    let pinned = cache.statistics.pinnedBytes
    try cache.setPinnedByteLimit(0)
    #expect(cache.statistics.pinnedBytes == pinned && pinned > 8000)
    #expect(cache.setValue(pattern(1), forKey: 40, priority: .pinned) == .pinnedByteLimit)
    #expect(throws: PurgeableError.self) { try cache.setPinnedByteLimit(-1) }
    #expect(cache.pinnedByteLimit == 0)
    try cache.setPinnedByteLimit(nil)
    #expect(try cache.setPriority(.pinned, forKey: 21))
    cache.checkBooksSwept()
    #expect(throws: PurgeableError.self) { try makeCache(pinnedByteLimit: -1) }
  }

  // MARK: Wherever it goes

  @Test(
    "at a full byte limit, what is pinned stays while shards open, and is pinned then",
    arguments: TestRun.isFull ? [20, 50, 80] : [80], [false, true])
  func fullWhenOpening(percent: Int, tracksKeys: Bool) throws {
    let limit = 8 << 20
    var options = CacheOptions(byteLimit: limit)
    options.tracksKeys = tracksKeys
    let cache = try PurgeableCache<UInt32, [UInt8]>(options)
    cache.staysInOneShard()
    let pinned = 0..<UInt32(limit / 100 * percent / 600)
    func store(_ version: UInt32, _ priority: EntryPriority?, _ wanted: StoreOutcome) -> Bool {
      pinned.allSatisfy { key in
        cache.setValue(described(key, version: version, count: 500), forKey: key, priority: priority) == wanted
      }
    }
    #expect(store(1, .pinned, .stored))
    for key in 1_000_000..<1_020_000 as Range<UInt32> { cache[key] = described(key, version: 1, count: 500) }
    cache.openEarly(count: .max)
    cache.engine.shards.sizes.slabsPerShard.store(32, ordering: .relaxed)
    cache.engine.shards.openShards()
    #expect(cache.engine.shards.openCount == 4)
    #expect(pinned.allSatisfy { cache.peekValue(forKey: $0) != nil })
    for key in 1_020_000..<1_040_000 as Range<UInt32> { cache[key] = described(key, version: 1, count: 500) }
    #expect(store(2, nil, .replaced))
    let changed = pinned.first { key in
      guard let entry = cache.peekEntry(forKey: key) else { return true }
      return entry.priority != .pinned || versionDescribed(in: entry.value, key: key) != 2
    }
    #expect(changed == nil)
    #expect(cache.byteCount <= limit)
    cache.checkBooksSwept()
  }

  @Test("priorities stay when shards open and close, and with compaction", arguments: Keys.allCases)
  func moved(keys: Keys) throws {
    // In the quick run there are a quarter of the shards, so that there too each writes slabs full of pinned values.
    let (count, limit, lowered) = TestRun.isFull ? (30_000, 64 << 20, 3 << 20) : (6000, 16 << 20, 3 << 19)
    let cache = try makeCache(.s3FIFO, keys, byteLimit: limit, pinnedByteLimit: limit / 2)
    if !TestRun.isFull { cache.engine.shards.sizes.count.store(count * 2 / 3, ordering: .relaxed) }
    let value = pattern(500)
    func priority(_ key: Int) -> EntryPriority { key % 50 == 0 ? .pinned : key % 50 == 1 ? .speculative : .normal }
    for key in 0..<count { cache.setValue(value, forKey: key, priority: priority(key)) }
    #expect(cache.engine.shards.openCount > 1)
    func check() {
      for entry in cache.entries where entry.priority != priority(entry.key) {
        Issue.record("key \(entry.key) is \(entry.priority)")
        return
      }
      #expect((0..<count / 50).allSatisfy { cache.containsValue(forKey: $0 * 50) })
      cache.checkBooksSwept()
    }
    check()
    // Most pinned values are written again and again: the slabs that they leave behind are not kept.
    for round in 0..<(TestRun.isFull ? 20 : 16) {
      for key in stride(from: 0, to: count, by: 50) where key % 7 != round % 7 { cache.setValue(value, forKey: key) }
    }
    check()
    try cache.setByteLimit(lowered)
    #expect(cache.engine.shards.openCount == 1)
    #expect(cache.byteCount <= lowered)
    check()
  }

  @Test("a snapshot, keys and entries have pinned entries, and they are last to go", arguments: EvictionOrder.allCases)
  func enumerated(order: EvictionOrder) throws {
    let cache = try cacheWithoutTwins(300, of: [UInt8].self, order: order)
    for key in 0..<300 {
      cache.setValue(pattern(50), forKey: key, priority: key % 3 == 0 ? .pinned : key % 3 == 1 ? .speculative : nil)
    }
    #expect(cache.setValues([1000: pattern(50)], priority: .pinned).isEmpty)
    #expect(cache.peekEntry(forKey: 1000)?.priority == .pinned)
    cache.remove(forKey: 1000)
    // However much the others are used.
    for key in stride(from: 2, to: 300, by: 6) { _ = cache.value(forKey: key) }
    #expect(cache.snapshot().count == 300)
    let keys = Array(cache.keys)
    #expect(keys.count == 300 && Set(keys).count == 300)
    #expect(keys.suffix(100).allSatisfy { $0 % 3 == 0 })
    #expect(keys.prefix(100).allSatisfy { $0 % 3 == 1 })
  }
}

extension CachePriorityTests {
  @Test("keys have the speculative entries of all shards first")
  func enumeratedInShards() throws {
    let cache = try cacheWithoutTwins(600, of: [UInt8].self)
    cache.openEarly(count: 100)
    for key in 0..<600 { cache.setValue(pattern(50), forKey: key, priority: key < 400 ? .normal : .speculative) }
    #expect(cache.engine.shards.openCount > 1)
    let keys = Array(cache.keys)
    #expect(keys.count == 600 && keys.prefix(200).allSatisfy { $0 >= 400 })
  }

  @Test("a large pinned value that is refused changes nothing", arguments: Keys.allCases, [false, true])
  func refusedLarge(keys: Keys, byBytes: Bool) throws {
    let cache = try makeCache(
      .s3FIFO, keys, countLimit: byBytes ? nil : 4, byteLimit: byBytes ? 2 << 20 : nil, pinnedByteLimit: 1000)
    for key in 0..<4 { #expect(cache.setValue(pattern(440_000), forKey: key) == .stored) }
    for key in [3, 9] {
      #expect(cache.setValue(pattern(450_000), forKey: key, priority: .pinned) == .pinnedByteLimit)
      for old in 0..<4 { #expect(cache.peekEntry(forKey: old)?.value == pattern(440_000)) }
    }
    cache.checkBooksSwept()
  }
}

extension Lookup {
  fileprivate var value: Value? { if case .hit(let value) = self { value } else { nil } }
}
