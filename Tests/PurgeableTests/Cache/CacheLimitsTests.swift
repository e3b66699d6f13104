// SPDX-License-Identifier: MIT
// Limits of count and cost: exact, before the call returns.

import Synchronization
import Testing

@testable import Purgeable

@Suite("PurgeableCache, limits")
struct CacheLimitsTests {
  @Test("negative limits at creation are an error that names the limit; later ones count as 0")
  func negative() throws {
    for (count, bytes) in [(-1, nil), (nil, Int.min)] as [(Int?, Int?)] {
      do throws(PurgeableError) {
        _ = try PurgeableCache<Int, Int>(countLimit: count, byteLimit: bytes)
        Issue.record("no error")
      } catch {
        #expect(error.kind == .invalidArgument(count == nil ? "byteLimit" : "countLimit"))
      }
    }
    let cache = try PurgeableCache<Int, Int>()
    cache[1] = 1
    cache.countLimit = -3
    #expect(cache.countLimit == 0)
    #expect(cache.isEmpty)
    cache.countLimit = nil
    cache[1] = 1
    cache.byteLimit = -3
    #expect(cache.byteLimit == 0)
    #expect(cache.isEmpty)
  }

  @Test("a limit of 0 admits nothing that counts against it", arguments: [false, true])
  func zero(tracksKeys: Bool) throws {
    let count = try PurgeableCache<Int, [UInt8]>(countLimit: 0, tracksKeys: tracksKeys)
    #expect(count.set([], forKey: 1, cost: 0) == .tooLarge)
    #expect(count.isEmpty && count[1] == nil)
    let cost = try PurgeableCache<Int, [UInt8]>(costLimit: 0, tracksKeys: tracksKeys)
    #expect(cost.set([1], forKey: 1) == .tooLarge)
    #expect(cost.set([1], forKey: 1, cost: 1) == .tooLarge)
    #expect(cost.set([1], forKey: 1, cost: 0) == .stored)
    #expect(cost.set([], forKey: 2) == .stored)
    #expect(cost.count == 2 && cost.totalCost == 0)
    let bytes = try PurgeableCache<Int, [UInt8]>(byteLimit: 0, tracksKeys: tracksKeys)
    #expect(bytes.set([], forKey: 1) == .tooLarge)
    #expect(bytes.isEmpty)
    for cache in [count, cost, bytes] { cache.checkBooksSwept() }
    #expect(count.statistics.refusals == 1)
  }

  @Test(
    "the count limit holds after every store, and the newest is always there", arguments: [1, 2, 3, 10, 100, 1000], [false, true])
  func count(limit: Int, tracksKeys: Bool) throws {
    let cache = try PurgeableCache<Int, [UInt8]>(countLimit: limit, tracksKeys: tracksKeys)
    for i in 0..<5 * limit + 50 {
      #expect(cache.set(pattern(30 + i % 40), forKey: i) == .stored)
      #expect(cache.count <= limit)
      #expect(cache.peek(i) == pattern(30 + i % 40))
    }
    #expect(cache.count == limit)
    cache.checkBooksSwept()
  }

  @Test("replacing at the limit evicts nobody", arguments: [false, true])
  func replacing(tracksKeys: Bool) throws {
    let cache = try PurgeableCache<Int, [UInt8]>(countLimit: 50, costLimit: 5000, tracksKeys: tracksKeys)
    for i in 0..<50 { cache.set([UInt8(i)], forKey: i, cost: 100) }
    for round in 0..<20 {
      for i in 0..<50 { #expect(cache.set([UInt8(i), UInt8(round)], forKey: i, cost: 100) == .replaced) }
    }
    for i in 0..<50 { #expect(cache[i] == [UInt8(i), 19]) }
    #expect(cache.statistics.departures[.count] == 0 && cache.statistics.departures[.cost] == 0)
    cache.checkBooksSwept()
  }

  @Test(
    "the cost limit holds after every store; a cost equal to it is kept, one above it refused alone", arguments: [false, true])
  func cost(tracksKeys: Bool) throws {
    let cache = try PurgeableCache<Int, [UInt8]>(costLimit: 1000, tracksKeys: tracksKeys)
    var random = SeededRandom(seed: 11)
    for i in 0..<3000 {
      let cost = UInt64(random.below(300))
      #expect(cache.set(pattern(20), forKey: i % 700, cost: cost) != .tooLarge)
      #expect(cache.totalCost <= 1000)
      #expect(cache.contains(i % 700))
    }
    cache.checkBooksSwept()
    #expect(cache.set([1], forKey: 9000, cost: 1000) == .stored)
    #expect(cache.totalCost == 1000)
    let others = (0..<700).count { cache.contains($0) }
    #expect(cache.set([1], forKey: 9001, cost: 1001) == .tooLarge)
    #expect(cache[9000] == [1])
    #expect((0..<700).count { cache.contains($0) } == others)
    // The one refusal that changes something: the old value of that key.
    #expect(cache.set([1], forKey: 9000, cost: .max) == .tooLarge)
    #expect(cache[9000] == nil)
    #expect((0..<700).count { cache.contains($0) } == others)
    cache.checkBooksSwept()
  }

  @Test("entries of no cost are passed over when cost is short", arguments: [false, true])
  func noCost(tracksKeys: Bool) throws {
    let cache = try PurgeableCache<Int, [UInt8]>(costLimit: 100, tracksKeys: tracksKeys)
    for i in 0..<300 { cache.set([1], forKey: -1 - i, cost: 0) }
    for i in 0..<300 {
      #expect(cache.set([2], forKey: i, cost: 10) == .stored)
      #expect(cache.totalCost <= 100)
    }
    #expect((0..<300).count { cache.contains(-1 - $0) } == 300)
    #expect(cache.totalCost == 100)
    cache.checkBooksSwept()
  }

  @Test("costs beyond 64 bits add up without a trap, saturate, and come back exactly", arguments: [false, true])
  func saturating(tracksKeys: Bool) throws {
    let cache = try PurgeableCache<Int, [UInt8]>(tracksKeys: tracksKeys)
    cache.set([1], forKey: 0, cost: 17)
    for i in 1...50 { cache.set([1], forKey: i, cost: .max) }
    #expect(cache.totalCost == .max)
    for i in 2...50 { cache.remove(i) }
    #expect(cache.totalCost == .max)
    cache.set([1], forKey: 1, cost: .max - 17)
    #expect(cache.totalCost == .max)
    cache.set([1], forKey: 1, cost: .max - 18)
    #expect(cache.totalCost == UInt64.max - 1)
    cache.remove(1)
    #expect(cache.totalCost == 17)
    for i in 1...5 { cache.set([1], forKey: i, cost: .max) }
    cache.costLimit = .max - 1
    #expect(cache.totalCost <= 17)
    cache.checkBooksSwept()
  }

  @Test("lowering a limit evicts before it returns, raising one does nothing", arguments: [false, true])
  func lowering(tracksKeys: Bool) throws {
    let cache = try PurgeableCache<Int, [UInt8]>(tracksKeys: tracksKeys)
    for i in 0..<5000 { cache.set(pattern(50), forKey: i, cost: 2) }
    cache.countLimit = 6000
    #expect(cache.count == 5000)
    cache.countLimit = 4000
    #expect(cache.count == 4000)
    cache.costLimit = 6001
    #expect(cache.totalCost == 6000)
    cache.countLimit = nil
    cache.costLimit = nil
    #expect(cache.count == 3000)
    for i in 0..<1000 { cache[9000 + i] = pattern(50) }
    #expect(cache.count == 4000)
    cache.costLimit = 0
    #expect(cache.isEmpty && cache.totalCost == 0)
    cache.checkBooksSwept()
  }

  @Test("with N threads storing, the excess is at most N entries, and none is left", arguments: [false, true])
  func threads(tracksKeys: Bool) throws {
    let threads = 4
    let limit = 3000
    // Made without a limit it has many shards, and the limit holds across them.
    let cache = try PurgeableCache<Int, Int>(tracksKeys: tracksKeys)
    #expect(cache.engine.shards.count > threads)
    for i in 0..<2 * limit { cache[-1 - i] = i }
    cache.countLimit = limit
    let highest = Atomic<Int>(0)
    onThreads(threads) { thread in
      for i in 0..<10_000 / slowness {
        cache[thread << 32 | i] = i
        let now = cache.count
        if now > highest.load(ordering: .relaxed) { highest.store(now, ordering: .relaxed) }
      }
    }
    #expect(highest.load(ordering: .relaxed) <= limit + threads)
    #expect(cache.count <= limit)
    #expect(cache.count >= limit - threads)
    cache.checkBooks()
  }
}
