// SPDX-License-Identifier: MIT
// The byte limit bounds slabs and bookkeeping together, and no store that fits fails because of it.

import Glibc
import PurgeableTestSupport
import Synchronization
import Testing
import ToolSupport

@testable import Purgeable

@Suite("PurgeableCache, byte limit")
struct CacheBytesTests {
  /// Sizes of one kind of load; `kind` is its number.
  private static func size(_ kind: Int, _ random: inout SplitMix64) -> Int {
    switch kind {
    case 0: 0
    case 1: 24
    case 2: 1 + random.index(below: 300)
    case 3: 1 + random.index(below: 20_000)
    case 4: random.index(below: 100) == 0 ? 200_000 : random.index(below: 500)
    default: 100_000
    }
  }

  @Test(
    "held bytes and bookkeeping stay below the limit after every store, and no store that fits fails", .notUnderThreadSanitizer,
    arguments: [512 << 10, TestRun.isFull ? 4 << 20 : 1 << 20], [0, 1, 2, 3, 4, 5])
  func bounds(limit: Int, kind: Int) throws {
    var random = SplitMix64(seed: UInt64(kind) + 1)
    let cache = try PurgeableCache<UInt32, [UInt8]>(byteLimit: limit)
    var refused = 0
    var stored = 0
    var over = 0
    var keys: [UInt32] = []
    while stored < 5 * limit / 2, refused < 5 {
      let key = UInt32(random.index(below: 1 << 24))
      keys.append(key)
      let count = Self.size(kind, &random)
      let outcome = cache.setValue(described(key, version: 7, count: count), forKey: key)
      if outcome == .outOfMemory || (outcome == .tooLarge && count < limit / 4) { refused += 1 }
      if cache.byteCount > limit { over += 1 }
      // Small entries take their granules too.
      stored += max(count, 60) + 100
    }
    #expect(refused == 0)
    #expect(over == 0, "up to \(cache.byteCount)")
    #expect(cache.totalCost > limit / 8 || kind == 0, "\(cache.totalCost) of \(limit)")
    var hits = 0
    for key in keys.suffix(TestRun.isFull ? 3000 : 1000) {
      if let bytes = cache.value(forKey: key) {
        #expect(versionDescribed(in: bytes, key: key) == 7)
        hits += 1
      }
    }
    cache.checkBooksSwept()
    cache.trim(toBytes: 0)
    #expect(cache.isEmpty)
  }

  @Test(
    "tiny entries, of which less than a quarter of a slab is payload, are evicted like others", .notUnderThreadSanitizer,
    arguments: [false, true])
  func tiny(uses: Bool) throws {
    let cache = try PurgeableCache<UInt16, Bool>(byteLimit: 256 << 10)
    for round in 0..<3 {
      for key in UInt16.min...(TestRun.isFull ? UInt16.max : 16_000) where key % 3 == round {
        let outcome = cache.setValue(key % 2 == 0, forKey: key)
        #expect(outcome == .stored || outcome == .replaced)
        if uses { #expect(cache[key] == (key % 2 == 0)) }
      }
    }
    #expect(cache.byteCount <= 256 << 10)
    #expect(cache.count > 1000)
    cache.checkBooksSwept()
    cache.trim(toBytes: 0)
    #expect(cache.isEmpty)
    cache[1] = true
    #expect(cache[1] == true)
  }

  @Test(
    "one large value makes room for itself, however many slabs have to go", .notUnderThreadSanitizer,
    arguments: [20 << 20, 40 << 20])
  func largeAmongSmall(count: Int) throws {
    let share = TestRun.isFull ? 1 : 4
    let limit = (48 << 20) / share
    let cache = try PurgeableCache<Int, [UInt8]>(byteLimit: limit)
    let small = pattern(2000)
    for i in 0..<30_000 / share { cache[i] = small }
    #expect(cache.byteCount > limit / 2)
    let large = [UInt8](repeating: 7, count: count / share)
    #expect(cache.setValue(large, forKey: -1) == .stored)
    // Compared outside of the expectation: printing the arrays would take minutes.
    let isRight = cache[-1] == large
    #expect(isRight)
    #expect(cache.byteCount <= limit)
    // The large value is evicted when its turn comes.
    for i in 100_000..<(TestRun.isFull ? 160_000 : 110_000) { #expect(cache.setValue(small, forKey: i) == .stored) }
    #expect(!cache.containsValue(forKey: -1))
    #expect(cache.byteCount <= limit)
    cache.checkBooksSwept()
  }

  @Test("a value above the whole limit is refused alone")
  func tooLarge() throws {
    let cache = try PurgeableCache<Int, [UInt8]>(byteLimit: 1 << 20)
    for i in 0..<100 { cache[i] = pattern(1000) }
    #expect(cache.setValue([UInt8](repeating: 1, count: 1 << 20), forKey: 5) == .tooLarge)
    #expect(cache[5] == nil)
    for i in 0..<100 where i != 5 { #expect(cache[i] == pattern(1000)) }
    cache.checkBooksSwept()
  }

  @Test("lowering it gives memory back before it returns", .notUnderThreadSanitizer, arguments: [false, true])
  func lowering(tracksKeys: Bool) throws {
    let cache = try PurgeableCache<Int, [UInt8]>(tracksKeys: tracksKeys)
    let value = pattern(500)
    let share = TestRun.isFull ? 1 : 8
    let count = 40_000 / share
    // In the quick run all that decides about shards is smaller, too.
    cache.openSooner(count: 16_384 / share)
    cache.engine.shards.sizes.slabsPerShard.store(64 / share, ordering: .relaxed)
    for i in 0..<count { cache[i] = value }
    for limit in [16 << 20, 8 << 20, 6 << 20, 20 << 20].map({ $0 / share }) {
      try cache.setByteLimit(limit)
      #expect(cache.byteCount <= limit)
      #expect(cache.count > (TestRun.isFull ? 1000 : 250))
    }
    for i in 0..<count {
      if let found = cache[i] { #expect(found == value) }
    }
    cache.checkBooksSwept()
    // A limit that was lifted holds no longer.
    try cache.setByteLimit(nil)
    for i in 0..<count { cache[i] = value }
    #expect(cache.count == count)
    try cache.setByteLimit(1)
    #expect(cache.isEmpty)
    #expect(cache.byteCount < 2 << 20, "what an empty cache needs")
  }

  @Test("tracked keys and the index count in it")
  func bookkeeping() throws {
    let share = TestRun.isFull ? 1 : 4
    let limit = (4 << 20) / share
    let cache = try PurgeableCache<StructKey, UInt8>(byteLimit: limit)
    for i in 0..<60_000 / share / slowness { cache[StructKey(a: i, b: "a key that is longer than fifteen bytes, \(i)")] = 1 }
    #expect(cache.byteCount <= limit)
    #expect(cache.statistics.memory.ordinaryBytes > cache.count * MemoryLayout<StructKey>.size)
    cache.checkBooksSwept()
  }

  @Test("threads that store at once stay below it together")
  func threads() throws {
    let share = TestRun.isFull ? 1 : 3
    let limit = (8 << 20) / share
    let cache = try PurgeableCache<Int, [UInt8]>(byteLimit: limit)
    let failures = Atomic<Int>(0)
    let highest = Atomic<Int>(0)
    onThreads(4) { thread in
      let value = pattern(700)
      for i in 0..<20_000 / share / slowness {
        if cache.setValue(value, forKey: thread << 32 | i) != .stored { failures.add(1, ordering: .relaxed) }
        if i % 8 == 0 { highest.store(max(cache.byteCount, highest.load(ordering: .relaxed)), ordering: .relaxed) }
      }
    }
    #expect(failures.load(ordering: .relaxed) == 0)
    #expect(cache.byteCount <= limit)
    // Each other thread may be about to add a slab and its bookkeeping.
    #expect(highest.load(ordering: .relaxed) <= limit + 4 * (cache.engine.heap.slabBytes + 4096))
    cache.checkBooksSwept()
  }
}
