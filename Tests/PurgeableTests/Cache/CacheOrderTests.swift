// SPDX-License-Identifier: MIT
// Limits that are set late, and trims, keep the entries that a cache made with the limit would have kept.

import Glibc
import PurgeableTestSupport
import Testing
import ToolSupport

@testable import Purgeable

/// The ways to have fewer entries. Each entry costs 1.
enum LateLimit: String, CaseIterable, Sendable {
  case countLimit, costLimit, trimToCount, trimToCost

  func apply(_ count: Int, to cache: PurgeableCache<Int, Int>) {
    switch self {
    case .countLimit: try! cache.setCountLimit(count)
    case .costLimit: try! cache.setCostLimit(count)
    case .trimToCount: cache.trim(toCount: count)
    case .trimToCost: cache.trim(toCost: count)
    }
  }
}

/// Requests by a Zipf distribution with an exponent of 1.
private func zipf(_ count: Int, of objects: Int, seed: UInt64) -> [Int] {
  var random = SplitMix64(seed: seed)
  var sums: [Double] = []
  var sum = 0.0
  for rank in 1...objects {
    sum += 1 / Double(rank)
    sums.append(sum)
  }
  return (0..<count).map { _ in
    let wanted = Double(random.next() >> 11) / Double(1 << 53) * sum
    var (low, high) = (0, objects - 1)
    while low < high {
      let middle = (low + high) / 2
      if sums[middle] < wanted { low = middle + 1 } else { high = middle }
    }
    return low
  }
}

/// Limits, how many keys are asked for, and whether the limit is one of costs.
private let hitCases: [(limit: Int, keys: Int, byCost: Bool)] =
  TestRun.isFull
  ? [false, true].flatMap { [(10, 100, $0), (50, 1000, $0), (100, 1000, $0), (1000, 10_000, $0)] }
  : [(10, 100, false), (100, 1000, true), (1000, 10_000, false)]

@Suite("Cache: the order that stays")
struct CacheOrderTests {
  @Test("of three entries the oldest goes, every time", arguments: LateLimit.allCases, [false, true])
  func three(limit: LateLimit, tracksKeys: Bool) throws {
    var random = SplitMix64(seed: chosenSeed)
    for _ in 0..<(TestRun.isFull ? 300 : 100) {
      let cache = try PurgeableCache<Int, Int>(tracksKeys: tracksKeys)
      let keys = [random.index(below: 1 << 40), -1 - random.index(below: 1 << 40), 1 << 41 + random.index(below: 1 << 40)]
      for key in keys { cache.setValue(key, forKey: key, cost: 1) }
      limit.apply(2, to: cache)
      #expect(
        cache.peekValue(forKey: keys[0]) == nil && cache.peekValue(forKey: keys[1]) != nil
          && cache.peekValue(forKey: keys[2]) != nil)
      limit.apply(1, to: cache)
      #expect(cache.peekValue(forKey: keys[1]) == nil && cache.peekValue(forKey: keys[2]) != nil)
    }
  }

  @Test("by bytes, whole slabs go, and the oldest first")
  func byBytes() throws {
    for late in [true, false] {
      let cache = try PurgeableCache<Int, [UInt8]>()
      for i in 0..<4000 { cache[i] = pattern(900) }
      if late { try cache.setByteLimit(cache.byteCount / 2) } else { cache.trim(toBytes: cache.byteCount / 2) }
      let kept = (0..<4000).filter { cache.peekValue(forKey: $0) != nil }
      #expect(kept.count > 1000 && kept.count < 2200, "\(kept.count)")
      #expect(kept == Array(4000 - kept.count..<4000))
    }
  }

  @Test(
    "half of the entries go, and the newer half stays", arguments: LateLimit.allCases,
    [4, 10, 100, 1000, TestRun.isFull ? 10_000 : 5000])
  func half(limit: LateLimit, count: Int) throws {
    let cache = try PurgeableCache<Int, Int>()
    for i in 0..<count { cache.setValue(i, forKey: i, cost: 1) }
    limit.apply(count / 2, to: cache)
    #expect(cache.count == count / 2)
    #expect((count / 2..<count).allSatisfy { cache.peekValue(forKey: $0) == $0 })
  }

  /// The age of an entry is estimated by its place in its slab, and shards are compared by ages. Where a shard has few entries,
  /// the estimates are off by a larger part of them; how much follows from the seed.
  @Test("of so many entries that there are several shards, nearly all of the newer half stay", arguments: LateLimit.allCases)
  func halfOfMany(limit: LateLimit) throws {
    let (count, percent) = TestRun.isFull ? (100_000, 99) : (7500, 96)
    let cache = try PurgeableCache<Int, Int>(clock: .system, hashSeed: chosenSeed)
    if !TestRun.isFull { cache.openEarly(count: count * 2 / 3) }
    for i in 0..<count { cache.setValue(i, forKey: i, cost: 1) }
    #expect(cache.engine.shards.openCount == 16)
    limit.apply(count / 2, to: cache)
    let kept = (count / 2..<count).count { cache.peekValue(forKey: $0) != nil }
    #expect(cache.count == count / 2)
    #expect(kept >= count / 2 * percent / 100, "\(kept), seed \(chosenSeed)")
    cache.checkBooksSwept()
  }

  @Test(
    "a limit set after creation hits as often as one set at creation, within half a point",
    arguments: hitCases)
  func hits(sizes: (limit: Int, keys: Int, byCost: Bool)) throws {
    let byCost = sizes.byCost
    // Which keys share a bucket of a ghost follows from the seed of the hashes. Several caches even that out for a ghost of ten.
    let caches = sizes.limit == 10 ? 8 : 1
    let count = (sizes.limit == 10 ? 50_000 : 100_000) / slowness / (TestRun.isFull ? 1 : 10)
    let requests = zipf(count, of: sizes.keys, seed: 11)
    func hits(late: Bool) throws -> Double {
      var hits = 0
      for number in 0..<caches {
        let cache = try PurgeableCache<Int, Int>(
          countLimit: late || byCost ? nil : sizes.limit, costLimit: late || !byCost ? nil : sizes.limit, clock: .system,
          hashSeed: chosenSeed &+ UInt64(number))
        if late, byCost { try cache.setCostLimit(sizes.limit) }
        if late, !byCost { try cache.setCountLimit(sizes.limit) }
        for key in requests {
          if cache.value(forKey: key) == key {
            hits += 1
          } else {
            cache.setValue(key, forKey: key, cost: 1)
          }
        }
      }
      return 100 * Double(hits) / Double(requests.count * caches)
    }
    let (early, late) = (try hits(late: false), try hits(late: true))
    #expect(abs(early - late) <= 0.5, "\(early) % against \(late) %")
  }
}
