// SPDX-License-Identifier: MIT
// From one shard to several and back: no entry is lost, no total changes, and the order of age stays.

import CPurgeable
import CPurgeable.Testing
import Glibc
import Synchronization
import Testing
import ToolSupport

@testable import Purgeable

extension PurgeableCache {
  /// Lowers the sizes at which shards open, so that a test with some hundreds of entries opens and closes them.
  func openEarly(count: Int = 200, bytes: Int = 1 << 30) {
    engine.shards.sizes.count.store(count, ordering: .relaxed)
    engine.shards.sizes.byteCount.store(bytes, ordering: .relaxed)
    engine.shards.sizes.entriesPerShard.store(100, ordering: .relaxed)
    engine.shards.reviewShards()
  }

  var isOpen: Bool { engine.shards.openCount > 1 }
}

@Suite("Cache: shards")
struct CacheShardsTests {
  @Test("a cache has one shard until it holds 16,384 entries or 8 MiB, and sixteen from then on")
  func growth() throws {
    let cache = try PurgeableCache<Int, Int>()
    for i in 0..<16_383 { cache[i] = i }
    #expect(cache.engine.shards.all.count == 1 && !cache.isOpen)
    cache[16_383] = 16_383
    #expect(cache.engine.shards.openCount == 16)
    #expect(cache.count == 16_384)
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

  @Test("limits say how many shards there may be: entries, bytes, and one where costs are limited")
  func limits() throws {
    func count(_ cache: PurgeableCache<Int, Int>) -> Int {
      for i in 0..<17_000 { cache[i] = i }
      return cache.engine.shards.openCount
    }
    #expect(count(try PurgeableCache(countLimit: 100_000)) == 1)
    #expect(count(try PurgeableCache(countLimit: 524_288)) == 2)
    #expect(count(try PurgeableCache(countLimit: 3_000_000)) == 8)
    #expect(count(try PurgeableCache(costLimit: 1 << 40)) == 1)
    #expect(count(try PurgeableCache(byteLimit: 64 << 20)) == 16)
    #expect(count(try PurgeableCache(byteLimit: 20 << 20)) == 4)
    #expect(count(try PurgeableCache(byteLimit: 6 << 20)) == 1)
  }

  @Test("opening and closing keeps every value, large ones too, costs, counters of use, and totals", arguments: [false, true])
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
    let (count, cost, held) = (cache.count, cache.totalCost, cache.engine.base.heldBytes)
    #expect(cost == costs.values.reduce(0, +))
    let uses = cache.useCounters()
    for round in 0..<6 {
      if round % 2 == 0 { cache.openEarly() }
      if round % 2 == 0 {
        cache.engine.shards.openShards()
      } else {
        let isDone = cache.engine.shards.closeShards()
        #expect(isDone)
      }
      #expect(cache.isOpen == (round % 2 == 0))
      #expect(cache.count == count && cache.totalCost == cost)
      #expect(cache.useCounters() == uses)
      cache.checkBooksSwept()
      for i in 0..<600 {
        #expect(versionDescribed(in: cache.peekValue(forKey: i) ?? [], key: UInt32(i)) == 7, "\(i), round \(round)")
      }
      // The originals of the copies were freed.
      #expect(cache.engine.base.heldBytes < held + 40 * cache.engine.heap.slabBytes)
    }
    for i in 0..<600 { #expect(cache.remove(forKey: i)) }
    #expect(cache.isEmpty && cache.totalCost == 0)
    cache.checkBooksSwept()
  }

  @Test("what the kernel took before a step is found lost by it, and nothing else")
  func losses() throws {
    let cache = try PurgeableCache<Int, [UInt8]>()
    for i in 0..<2000 { cache[i] = described(UInt32(i), version: 1, count: 500) }
    for round in 0..<4 {
      cache.discardEveryThirdPage()
      let there = Set((0..<2000).filter { cache.engine.isThere($0) })
      if round % 2 == 0 { cache.openEarly() }
      if round % 2 == 0 { cache.engine.shards.openShards() } else { cache.engine.shards.closeShards() }
      for i in 0..<2000 {
        let value = cache.peekValue(forKey: i)
        #expect((value != nil) == there.contains(i), "\(i), round \(round)")
        if let value { #expect(versionDescribed(in: value, key: UInt32(i)) == 1) }
      }
      #expect(cache.count == there.count)
      cache.checkBooksSwept()
    }
  }

  @Test("where memory is refused the cache goes on with the shards it has, whichever call it was")
  func refusals() async {
    await #expect(processExitsWith: .success) {
      let cache = try PurgeableCache<Int, [UInt8]>()
      for i in 0..<300 { cache[i] = described(UInt32(i), version: 3, count: i % 50 == 0 ? 150_000 : 900) }
      let (count, cost) = (cache.count, cache.totalCost)
      cache.engine.shards.sizes.count.store(100, ordering: .relaxed)
      for opens in [true, false] {
        var refused = 0
        for failing in 1...UInt64(200) {
          purgeable_testing_fail(
            purgeable_testing_call_mmap.rawValue | purgeable_testing_call_allocate.rawValue, failing, ENOMEM, false)
          if opens { cache.engine.shards.openShards() } else { cache.engine.shards.closeShards() }
          let hasFailed = purgeable_testing_has_failed()
          purgeable_testing_fail(0, 0, 0, false)
          require(cache.count == count && cache.totalCost == cost, "\(cache.count), \(cache.totalCost)")
          for i in 0..<300 { require(versionDescribed(in: cache.peekValue(forKey: i) ?? [], key: UInt32(i)) == 3, "\(i)") }
          cache.checkBooksSwept()
          if cache.isOpen == opens {
            if !hasFailed { break }
            if opens { cache.engine.shards.closeShards() } else { cache.engine.shards.openShards() }
          } else {
            refused += 1
          }
        }
        require(refused >= 1 && cache.isOpen == opens, "\(refused)")
      }
      for i in 0..<300 { require(cache.remove(forKey: i), "\(i)") }
      require(cache.isEmpty && cache.totalCost == 0, "not empty")
    }
  }
}

extension PurgeableCache {
  /// How many entries have each counter of use.
  func useCounters() -> [Int] {
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

extension CacheShardsTests {
  @Test("idle rounds mark a shard that was left with a locked slab; it opens again all the same")
  func marksOfALeftShard() throws {
    let clock = SetClock()
    let cache = try PurgeableCache<Int, [UInt8]>(idleTime: .seconds(4000), clock: clock.cacheClock)
    for key in 0..<400 { cache[key] = pattern(3000) }
    cache.openEarly()
    cache.engine.shards.openShards()
    #expect(cache.isOpen)
    cache.withBytes(forKey: 5) { _ in
      let isClosed = cache.engine.shards.closeShards()
      #expect(isClosed)
      cache.engine.shards.opensAtCount.store(.max, ordering: .relaxed)
      for round in 0..<3 {
        clock.advance(seconds: 1001)
        cache.engine.giveBackIdle()
        for key in 0..<100 { cache[1000 + round * 100 + key] = pattern(3000) }
      }
      cache.engine.shards.openShards()
      #expect(cache.isOpen)
    }
    for _ in 0..<12 {
      clock.advance(seconds: 1001)
      cache.engine.giveBackIdle()
    }
    #expect(cache.isEmpty)
    cache.checkBooksSwept()
  }
}

extension CacheEngine {
  /// Whether an entry's value is still there, without counting a use.
  func isThere(_ number: Int) -> Bool {
    unsafe withUnsafeBytes(of: number) { prefix in
      let key = unsafe base.elements.keys.key(prefix: prefix)
      let shard = shards.shard(of: key.shardHash)
      for found in shard.index.current().candidates(of: key.identity) {
        let reference = heap.reference(found.slot.place)
        let (outcome, matches) = unsafe base.elements.compare(reference, with: prefix)
        if outcome == .intact, matches { return base.elements.check(reference) == .intact }
      }
      return false
    }
  }
}
