// SPDX-License-Identifier: MIT
// Entries whose values are dear to make again: told, kept wherever the entry goes, and counted in what stays.

import PurgeableTestSupport
import Testing

@testable import Purgeable

@Suite("cache: recompute cost")
struct CacheRecomputeTests {
  // MARK: The attribute

  @Test("is told with the entry, is the new store's each time, and is unknown below 0", arguments: [false, true])
  func told(tracksKeys: Bool) throws {
    let cache = try PurgeableCache<Int, [UInt8]>(tracksKeys: tracksKeys)
    func told(_ key: Int) -> Duration? { cache.peekEntry(forKey: key)?.recomputeCost }
    for (time, expected) in [
      (Duration?.none, Duration?.none), (.seconds(3), .seconds(3)), (.nanoseconds(1), .nanoseconds(1)), (.zero, .zero),
      (.seconds(-1), nil), (.seconds(Int64.max), .nanoseconds(Int64(UInt64.max / 4))),
    ] {
      cache.setValue(pattern(100), forKey: 1, recomputeCost: time)
      #expect(told(1) == expected)
      #expect(cache.value(forKey: 1) == pattern(100))
    }
    // All attributes together, beside a large value.
    let large = pattern(300_000)
    cache.setValue(large, forKey: 2, cost: 7, expiry: .sinceCreation(.seconds(3600)), recomputeCost: .seconds(5))
    let entry = try #require(cache.peekEntry(forKey: 2))
    #expect(entry.value == large && entry.cost == 7 && entry.recomputeCost == .seconds(5))
    #expect((3590...3600).contains(try #require(entry.remainingTime) / .seconds(1)))
    // A changed value is the same entry; an updated one is another.
    cache.modifyValue(forKey: 2) { $0 = pattern(50) }
    #expect(told(2) == .seconds(5))
    cache.updateValue(pattern(60), forKey: 2)
    #expect(told(2) == nil)
    #expect(cache.entries.allSatisfy { $0.recomputeCost == told($0.key) })
    cache.checkBooksSwept()
  }

  @Test("stays with the entry when it moves: by eviction, by compaction, to another shard", arguments: [false, true])
  func moved(tracksKeys: Bool) throws {
    let share = TestRun.isFull ? 1 : 20
    let cache = try PurgeableCache<Int, [UInt8]>(byteLimit: (24 << 20) / share, tracksKeys: tracksKeys)
    func cost(_ key: Int) -> Duration { .microseconds(1 + key % 1000) }
    for key in 0..<200_000 / share {
      cache.setValue(pattern(100, seed: UInt8(truncatingIfNeeded: key)), forKey: key, recomputeCost: cost(key))
      for old in [key / 2, key / 3] { _ = cache.value(forKey: old) }
    }
    #expect(cache.statistics.copyCount > 4000 / share)
    var count = 0
    for entry in cache.entries {
      count += 1
      guard entry.recomputeCost == cost(entry.key), entry.value == pattern(100, seed: UInt8(truncatingIfNeeded: entry.key)) else {
        Issue.record("key \(entry.key): \(String(describing: entry.recomputeCost))")
        return
      }
    }
    #expect(count > 50_000 / share)
    cache.checkBooksSwept()
  }

  // MARK: Loads

  /// In code that is not async, where the blocking forms are meant.
  private static func now<R>(_ body: () -> R) -> R { body() }

  @Test("a loaded value costs what its load took, and each of many its part")
  func loaded() async throws {
    let cache = try PurgeableCache<Int, [UInt8]>()
    @Sendable func takeTime(_ key: Int) -> [UInt8] {
      let end = MonotonicTime.now + 2_000_000
      while MonotonicTime.now < end {}
      return pattern(100, seed: UInt8(truncatingIfNeeded: key))
    }
    let first = Self.now { cache.value(forKey: 1) { takeTime(1) } }
    #expect(first == pattern(100, seed: 1))
    let later = await cache.value(forKey: 2) { () async in takeTime(2) }
    #expect(later == pattern(100, seed: 2))
    let start = MonotonicTime.now
    let many = Self.now {
      cache.values(forKeys: [3, 4]) { Dictionary(uniqueKeysWithValues: $0.map { ($0, takeTime($0)) }) }
    }
    let most = Duration.nanoseconds(Int64(MonotonicTime.now - start) / 2)
    #expect(many == [pattern(100, seed: 3), pattern(100, seed: 4)])
    for key in 1...4 {
      let cost = try #require(cache.peekEntry(forKey: key)?.recomputeCost)
      #expect(cost >= .milliseconds(2), "\(key): \(cost)")
      if key > 2 { #expect(cost <= most) }
    }
  }

  @Test("a load's time is by the cache's clock")
  func loadedByClock() throws {
    let clock = ManualClock()
    var options = CacheOptions()
    options.clock = clock
    let cache = try PurgeableCache<Int, [UInt8]>(options)
    let value = Self.now {
      cache.value(forKey: 1) {
        clock.advance(by: .seconds(3))
        return [1]
      }
    }
    #expect(value == [1] && cache.peekEntry(forKey: 1)?.recomputeCost == .seconds(3))
    #expect(cache.statistics.loadTime == .seconds(3))
  }

  // MARK: What it is worth

  @Test("a credit is a step for each factor of four beside the mean, from -1 to 3; of unknown cost it is 0")
  func credits() {
    let credits = RecomputeCredit()
    var isInUse: Bool { credits.isInUse }
    #expect(!isInUse)
    let before = [
      credits.credit(of: 1 << 40, byteCount: 1), credits.noted(nil, byteCount: 100),
    ]
    #expect(before == [0, 0] && !isInUse)
    let first = credits.noted(1 << 20, byteCount: 1 << 10)
    #expect(first == 0)
    #expect(isInUse)
    func credit(_ cost: UInt64, _ byteCount: Int) -> Int {
      credits.credit(of: cost, byteCount: byteCount)
    }
    for (factor, expected) in [(-20, -1), (-4, -1), (-2, -1), (-1, 0), (0, 0), (1, 1), (2, 1), (3, 2), (4, 2), (6, 3), (20, 3)] {
      #expect(credit(1 << UInt64(20 + factor), 1 << 10) == expected || abs(factor) == 1, "a factor of 2^\(factor)")
    }
    // Dear for its bytes.
    #expect(credit(1 << 20, 1 << 6) == 2)
    #expect(credit(1 << 20, 1 << 14) == -1)
    // Free, of no bytes, beyond measure.
    #expect(credit(0, 100) == -1 && credit(UInt64.max, 0) == 3 && credit(0, .max) == -1)
    // The mean follows what is stored.
    for _ in 0..<10_000 { _ = credits.noted(1 << 30, byteCount: 1 << 10) }
    #expect(credit(1 << 30, 1 << 10) == 0 && credit(1 << 20, 1 << 10) == -1)
  }

  @Test("what is dear outlives a scan, what is not does not; exact LRU goes by use alone", arguments: EvictionOrder.allCases)
  func scan(order: EvictionOrder) throws {
    let cache = try PurgeableCache<Int, [UInt8]>(countLimit: 1000, evictionOrder: order)
    // Costs like those of the scan first, so that the mean is theirs.
    for key in 10_000..<12_000 { cache.setValue(pattern(24), forKey: key, recomputeCost: .microseconds(10)) }
    for key in 0..<100 {
      cache.setValue(pattern(24, seed: UInt8(truncatingIfNeeded: key)), forKey: key, recomputeCost: .milliseconds(10))
    }
    for key in 12_000..<(TestRun.isFull ? 40_000 : 20_000) {
      cache.setValue(pattern(24), forKey: key, recomputeCost: .microseconds(10))
    }
    let kept = (0..<100).count { cache.peekValue(forKey: $0) == pattern(24, seed: UInt8(truncatingIfNeeded: $0)) }
    #expect(kept == (order == .s3FIFO ? 100 : 0))
    #expect(cache.count == 1000)
    cache.checkBooksSwept()
  }

  @Test("where all cost the same, the small stay; the order is as a simulation's", arguments: [false, true])
  func sizes(isOfCount: Bool) throws {
    let requests = skewedRequests(count: (TestRun.isFull ? 60_000 : 12_000) / slowness, objects: 8000, seed: 44)
    func size(_ key: Int) -> Int { key % 4 == 0 ? 4000 : 40 }
    func run(_ cost: Duration?) throws -> Int {
      let cache =
        isOfCount
        ? try PurgeableCache<Int, [UInt8]>(countLimit: 800, clock: .system, hashSeed: chosenSeed)
        : try PurgeableCache<Int, [UInt8]>(costLimit: 800_000, clock: .system, hashSeed: chosenSeed)
      var misses = 0
      for key in requests where cache.value(forKey: key) == nil {
        misses += 1
        cache.setValue([UInt8](repeating: UInt8(truncatingIfNeeded: key), count: size(key)), forKey: key, recomputeCost: cost)
      }
      cache.checkBooksSwept()
      return misses
    }
    let (without, with) = (try run(nil), try run(.milliseconds(1)))
    // A limit of entries gains nothing by keeping the small ones; a limit of bytes does.
    if isOfCount { #expect(with <= without + requests.count / 50) } else { #expect(with < without - requests.count / 100) }
  }

  @Test("misses cost less together, about as much as with exact credits in a simulation")
  func costs() throws {
    let objects = 8000
    let requests = skewedRequests(count: (TestRun.isFull ? 100_000 : 20_000) / slowness, objects: objects, seed: 45)
    let costs: [Double] = [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 10, 10, 10, 100]
    func cost(_ key: Int) -> Double { costs[key * 7919 % 20] }
    func run(tells: Bool) throws -> (misses: Int, cost: Double) {
      let cache = try PurgeableCache<Int, [UInt8]>(countLimit: objects / 10, clock: .system, hashSeed: chosenSeed)
      var sum = (misses: 0, cost: 0.0)
      for key in requests where cache.value(forKey: key) == nil {
        sum = (sum.misses + 1, sum.cost + cost(key))
        cache.setValue(
          pattern(24, seed: UInt8(truncatingIfNeeded: key)), forKey: key, recomputeCost: tells ? .microseconds(cost(key)) : nil)
      }
      return sum
    }
    let (without, with) = (try run(tells: false), try run(tells: true))
    // The scans are of dear keys too, and none of them comes again.
    #expect(with.cost < without.cost, "\(with.cost) against \(without.cost)")
    var exact = ExactS3FIFO(capacity: objects / 10, asksAnew: true)
    let credits = RecomputeCredit()
    var simulated = 0.0
    for key in requests {
      let nanoseconds = UInt64(1000 * cost(key))
      let credit = credits.credit(of: nanoseconds, byteCount: 32)
      if exact.request(key, credit: credit) { continue }
      _ = credits.noted(nanoseconds, byteCount: 32)
      simulated += cost(key)
    }
    #expect(abs(with.cost - simulated) < 0.05 * simulated, "\(with.cost), the simulation says \(simulated)")
  }
}
