// SPDX-License-Identifier: MIT
// From one shard to several: when, and that no entry is lost and no total changes.

import CPurgeable
import CPurgeable.Testing
import Glibc
import PurgeableTestSupport
import Synchronization
import Testing
import ToolSupport

@testable import Purgeable

extension PurgeableCache {
  /// Lowers the sizes at which shards open, so that a test with some hundreds of entries opens them.
  func openEarly(count: Int = 200, bytes: Int = 1 << 30) {
    engine.shards.sizes.count.store(count, ordering: .relaxed)
    engine.shards.sizes.byteCount.store(bytes, ordering: .relaxed)
    engine.shards.sizes.entriesPerShard.store(100, ordering: .relaxed)
    engine.shards.sizes.slabsPerShard.store(1, ordering: .relaxed)
    engine.shards.sizes.leastEntriesPerShard.store(0, ordering: .relaxed)
    engine.shards.reviewOpening()
  }

  /// In the quick run, lowers the count at which shards open, and nothing else: what limits allow stays as it is.
  func openSooner(count: Int) {
    if !TestRun.isFull { engine.shards.sizes.count.store(count, ordering: .relaxed) }
  }

  /// Opens no shards by itself.
  func staysInOneShard() {
    engine.shards.sizes.count.store(.max, ordering: .relaxed)
    engine.shards.sizes.byteCount.store(.max, ordering: .relaxed)
  }

  /// Opens the shards now. Entries move home with later stores, those of tracked keys at once.
  func open() {
    openAgain()
    #expect(isOpen)
  }

  var isOpen: Bool { engine.shards.openCount > 1 }

  /// Whether the founder may have entries beside those of the other shards. Not for long: the library's thread moves them, too.
  var isMoving: Bool { engine.base.indexes.mask.isMoving }

  /// Moves all that the founder still has.
  func moveAllHome() { while engine.shards.goOnOpening() {} }

  /// How many entries the founder has.
  var founderCount: Int { engine.shards.hold(engine.shards.founder) { $0.slots.count } }

  /// How many entries have each counter of use.
  func useCounters() -> [Int] {
    engine.shards.lockAll()
    defer { engine.shards.unlockAll() }
    var counters = [0, 0, 0, 0]
    for shard in engine.shards.all {
      let table = shard.index.current()
      for i in 0..<table.slotCount {
        let slot = Slot(bits: table.slots![i].relaxed)
        if !slot.isEmpty { counters[Int(slot.counter)] += 1 }
      }
    }
    return counters
  }
}

/// A cache with described values, for tests of what moves between shards.
func describedCache(tracksKeys: Bool = false, count: UInt32 = 300) throws -> PurgeableCache<UInt32, [UInt8]> {
  var options = CacheOptions()
  options.tracksKeys = tracksKeys
  // By a random seed two of 300 keys share an identity once in 1,500 times.
  let cache = try PurgeableCache<UInt32, [UInt8]>(options, clock: nil, hashSeed: 7, onDeparture: nil)
  for key in 0..<count { cache[key] = described(key, version: 1, count: 200) }
  return cache
}

/// Asks on one thread, again and again, while another does something, which begins after the first answer. Returns how often the
/// answer was no.
func negatives(of holds: @escaping @Sendable () -> Bool, while body: @escaping @Sendable () -> Void) -> Int {
  let isRunning = Atomic<Bool>(false)
  let isOver = Atomic<Bool>(false)
  let count = Atomic<Int>(0)
  onThreads(2) { thread in
    if thread == 0 {
      while !isOver.load(ordering: .acquiring) {
        if !holds() { count.add(1, ordering: .relaxed) }
        isRunning.store(true, ordering: .releasing)
      }
    } else {
      while !isRunning.load(ordering: .acquiring) { sched_yield() }
      body()
      isOver.store(true, ordering: .releasing)
    }
  }
  return count.load(ordering: .relaxed)
}

@Suite("Cache: shards")
struct CacheShardsTests {
  // MARK: When

  @Test("a cache has one shard until it holds 16,384 entries or 8 MiB, and sixteen others from then on")
  func growth() throws {
    let cache = try PurgeableCache<Int, Int>()
    for i in 0..<16_383 { cache[i] = i }
    #expect(cache.engine.shards.all.count == 1 && !cache.isOpen)
    cache[16_383] = 16_383
    #expect(cache.engine.shards.openCount == 16)
    #expect(cache.count == 16_384)
    #expect((0..<16_384).allSatisfy { cache[$0] == $0 })
    for i in 0...64 {
      cache[i] = i
      #expect(cache.count == 16_384 && cache.founderCount <= 16_384 - 256 * i)
    }
    #expect(!cache.isMoving && cache.founderCount == 0)
    #expect((0..<16_384).allSatisfy { cache[$0] == $0 })
    for i in 0..<16_384 { #expect(cache.remove(forKey: i)) }
    #expect(cache.isEmpty && cache.totalCost == 0)
    cache.checkBooksSwept()

    let wide = try PurgeableCache<Int, [UInt8]>()
    var stored = 0
    while !wide.isOpen, stored < 4000 {
      wide[stored] = described(UInt32(stored), version: 1, count: 4000)
      stored += 1
    }
    #expect(stored > 1900 && stored < 2200, "\(stored)")
    for i in 0..<stored { #expect(versionDescribed(in: wide[i] ?? [], key: UInt32(i)) == 1) }
  }

  @Test("limits say how many shards there may be: entries, bytes, and costs by what entries cost")
  func limits() throws {
    let entries = TestRun.isFull ? 17_000 : 4500
    func count(_ cache: PurgeableCache<Int, Int>) -> Int {
      cache.openSooner(count: 4096)
      for i in 0..<entries { cache[i] = i }
      #expect(cache.engine.shards.all.count == (cache.isOpen ? cache.engine.shards.openCount + 1 : 1))
      return cache.engine.shards.openCount
    }
    #expect(count(try PurgeableCache(countLimit: 32_767)) == 1)
    #expect(count(try PurgeableCache(countLimit: 32_768)) == 2)
    #expect(count(try PurgeableCache(countLimit: 200_000)) == 8)
    #expect(count(try PurgeableCache(costLimit: 8 * 32_767)) == 1)
    #expect(count(try PurgeableCache(costLimit: 8 * 32_768)) == 2)
    #expect(count(try PurgeableCache(costLimit: 1 << 40)) == 16)
    // What costs nothing is limited by no sum of costs.
    let free = try PurgeableCache<Int, Int>(costLimit: 1000)
    free.openSooner(count: 4096)
    for i in 0..<entries { free.setValue(i, forKey: i, cost: 0) }
    #expect(free.engine.shards.openCount == 16 && free.count == entries)
    #expect(count(try PurgeableCache(byteLimit: 64 << 20)) == 16)
    #expect(count(try PurgeableCache(byteLimit: 20 << 20)) == 4)
    #expect(count(try PurgeableCache(byteLimit: 6 << 20)) == 1)
    // A limit that goes lets others open; of those that come, only one of bytes closes any.
    let cache = try PurgeableCache<Int, Int>(costLimit: 8 * 32_000)
    #expect(count(cache) == 1)
    // Stores do not try again and again.
    let triesAgain = cache.engine.shards.mayOpen.load(ordering: .relaxed)
    #expect(!triesAgain)
    try cache.setCostLimit(nil)
    cache[0] = 1
    #expect(cache.engine.shards.openCount == 16)
    try cache.setCostLimit(8 * 32_000)
    #expect(cache.engine.shards.openCount == 16 && cache.count == entries)
  }

  @Test("where memory for other shards is refused the cache goes on with one, and opens them after the next review")
  func refusals() async {
    await #expect(processExitsWith: .success) {
      keepLibraryThreadAway()
      let cache = try PurgeableCache<Int, [UInt8]>()
      for i in 0..<300 { cache[i] = described(UInt32(i), version: 3, count: i % 50 == 0 ? 150_000 : 900) }
      cache.openEarly(count: 100)
      // The home of each shard is a pair of pages out of a block. All are taken, down to the end of a block.
      func mapped() -> UInt64 { purgeable_testing_call_count(purgeable_testing_call_mmap.rawValue) }
      func take() -> UInt { unsafe UInt(bitPattern: purgeable_bookkeeping_map(1)) }
      var pairs: [UInt] = []
      let blocks = mapped()
      while mapped() == blocks { pairs.append(take()) }
      for _ in 1..<64 { pairs.append(take()) }
      var refused = 0
      while !cache.isOpen {
        let before = cache.byteCount
        // So many shards get a home.
        for _ in 0..<refused { unsafe purgeable_bookkeeping_unmap(UnsafeMutableRawPointer(bitPattern: pairs.removeLast())!, 1) }
        purgeable_testing_fail(purgeable_testing_call_mmap.rawValue, 1, ENOMEM, true)
        cache.engine.shards.openShards()
        purgeable_testing_fail(0, 0, 0, false)
        if cache.isOpen { break }
        let calls = mapped()
        for _ in 0..<refused { pairs.append(take()) }
        require(mapped() == calls, "a home is not given back")
        refused += 1
        require(cache.count == 300 && cache.byteCount == before, "\(cache.count) entries, \(cache.byteCount) bytes")
        // Stores do not try again.
        cache[0] = described(0, version: 3, count: 150_000)
        require(!cache.isOpen, "opened too soon")
        cache.engine.shards.reviewOpening()
        cache.checkBooksSwept()
      }
      require(refused == 16, "\(refused)")
      for i in 0..<300 { require(versionDescribed(in: cache.peekValue(forKey: i) ?? [], key: UInt32(i)) == 3, "\(i)") }
      for i in 0..<300 { require(cache.remove(forKey: i), "\(i)") }
      require(cache.isEmpty && cache.totalCost == 0, "not empty")
    }
  }

  // MARK: What stays

  @Test(
    "opening keeps every value, large ones too, costs, counters and totals, and empties the founder", arguments: [false, true])
  func everything(tracksKeys: Bool) throws {
    let cache = try PurgeableCache<Int, [UInt8]>(tracksKeys: tracksKeys)
    var random = SplitMix64(seed: chosenSeed)
    var costs: [Int: Int] = [:]
    for i in 0..<600 {
      let size = i % 40 == 0 ? 100_000 + random.index(below: 200_000) : random.index(below: 3000)
      costs[i] = random.index(below: 1_000_000)
      #expect(
        cache.setValue(described(UInt32(i), version: 7, count: size), forKey: i, cost: i % 3 == 0 ? nil : costs[i]!) == .stored)
      if i % 3 == 0 { costs[i] = max(8, size) }
      if i % 7 == 0 { for _ in 0..<3 { _ = cache[i] } }
    }
    let (count, cost) = (cache.count, cache.totalCost)
    #expect(cost == costs.values.reduce(0, +))
    let uses = cache.useCounters()
    cache.open()
    #expect(!tracksKeys || cache.founderCount == 0)
    for round in 0..<100 where cache.isMoving {
      #expect(cache.count == count && cache.totalCost == cost && cache.useCounters() == uses)
      if round % 10 == 3 { cache.recountBooks() }
      cache.engine.shards.goOnOpening()
    }
    #expect(!cache.isMoving && cache.founderCount == 0)
    #expect(cache.count == count && cache.totalCost == cost && cache.useCounters() == uses)
    cache.recountBooks()
    for i in 0..<600 {
      #expect(versionDescribed(in: cache.peekValue(forKey: i) ?? [], key: UInt32(i)) == 7, "\(i)")
      #expect(cache.containsValue(forKey: i))
    }
    for i in 0..<600 { #expect(cache.remove(forKey: i)) }
    #expect(cache.isEmpty && cache.totalCost == 0)
    cache.checkBooksSwept()
    cache.trim(toBytes: 0)
    #expect(cache.statistics.memory.heldBytes == 0)
  }

  @Test("totals are exact at every moment of an opening")
  func totals() throws {
    for _ in 0..<(isOptimized ? 60 : TestRun.isFull ? 20 : 7) {
      let cache = try PurgeableCache<Int, Int>()
      for i in 0..<1000 { cache[i] = i }
      let wrong = negatives {
        cache.count == 1000 && cache.totalCost == 8000 && !cache.isEmpty
      } while: {
        cache.open()
        cache.moveAllHome()
      }
      #expect(wrong == 0)
    }
  }

  @Test("the library's round moves what is left of the founder's entries, and brings the cache below its byte limit then")
  func limitWhileOpening() throws {
    // Its rounds are the test's.
    let cache: PurgeableCache<Int, [UInt8]> = try makeExpiringCache(ManualClock())
    cache.openEarly(count: 2000, bytes: .max)
    for i in 0..<2000 { cache[i] = described(UInt32(i), version: 1, count: 1000) }
    #expect(cache.isOpen && cache.founderCount == 2000)
    let limit = cache.byteCount
    try cache.setByteLimit(limit)
    // Each of the sixteen begins a slab.
    _ = cache.engine.upkeepRound()
    #expect(cache.isOpen && cache.founderCount == 0 && cache.byteCount <= limit && cache.count > 0)
    cache.checkBooksSwept()
  }

  @Test("what the kernel took before the shards opened is found lost, and nothing else", arguments: [false, true])
  func losses(tracksKeys: Bool) throws {
    try needRealDiscards()
    let cache = try PurgeableCache<Int, [UInt8]>(tracksKeys: tracksKeys)
    for i in 0..<2000 { cache[i] = described(UInt32(i), version: 1, count: 500) }
    cache.discardEveryThirdPage()
    cache.open()
    cache.moveAllHome()
    let left = (0..<2000).filter { cache.containsValue(forKey: $0) }
    #expect(left.count > 100 && left.count < 1900)
    #expect(left.allSatisfy { versionDescribed(in: cache.peekValue(forKey: $0) ?? [], key: UInt32($0)) == 1 })
    #expect(cache.count == left.count && cache.statistics.departures[.discarded] == 2000 - left.count)
    for i in 0..<2000 { #expect(cache.setValue(described(UInt32(i), version: 3, count: 400), forKey: i) != .outOfMemory) }
    #expect(cache.count == 2000)
    cache.checkBooksSwept()
  }
}
