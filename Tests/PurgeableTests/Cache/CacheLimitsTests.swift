// SPDX-License-Identifier: MIT
// Limits of count and cost: exact, before the call returns.

import PurgeableTestSupport
import Synchronization
import Testing
import ToolSupport

@testable import Purgeable

@Suite("PurgeableCache, limits")
struct CacheLimitsTests {
  private typealias Cache = PurgeableCache<Int, Int>

  /// The kind of error that a call throws.
  private static func kind(_ call: () throws(PurgeableError) -> Void) -> PurgeableError.Kind? {
    do throws(PurgeableError) {
      try call()
      return nil
    } catch {
      return error.kind
    }
  }

  @Test("a count limit beyond what the byte limit holds changes nothing", arguments: [1_000_000, 100_000_000, 1 << 62, .max - 1])
  func countLimitOutOfReach(countLimit: Int) throws {
    let (stored, limit) = TestRun.isFull ? (12_000, 4 << 20) : (5000, 2 << 20)
    let alone = try PurgeableCache<Int, [UInt8]>(byteLimit: limit)
    let both = try PurgeableCache<Int, [UInt8]>(countLimit: countLimit, byteLimit: limit)
    let value = pattern(1000)
    for key in 0..<stored {
      alone[key] = value
      if both.setValue(value, forKey: key) != .stored { Issue.record("key \(key)") }
      if key % 100 == 0 { #expect(both.byteCount <= limit) }
    }
    #expect(both.count * 10 > alone.count * 9, "\(both.count) entries, \(alone.count) without a count limit")
    both.checkBooks()
  }

  @Test("limits that nothing reaches, up to the largest number", arguments: [Int.max, Int.max - 1, Int.max & ~4095, 1 << 62])
  func largestLimits(limit: Int) throws {
    let caches = [
      try PurgeableCache<Int, [UInt8]>(byteLimit: limit), try PurgeableCache<Int, [UInt8]>(costLimit: limit),
      try PurgeableCache<Int, [UInt8]>(countLimit: limit, costLimit: limit, byteLimit: limit, lockedByteLimit: limit),
    ]
    let count = TestRun.isFull ? 2000 : 600
    let value = pattern(100)
    for cache in caches {
      for key in 0..<count { cache.setValue(value, forKey: key, cost: key % 3 == 0 ? Int.max : nil) }
      for _ in 0..<3 { for key in 0..<count { _ = cache[key] } }
      // Used entries are copied on.
      cache.trim(toCount: count / 4)
      #expect(cache.count <= count / 4)
      cache.trimUntimed(level: .critical)
      cache.checkBooks()
    }
  }

  @Test("a negative limit, a share that is none and a time of 0 are errors, at creation and where they are set later")
  func negative() throws {
    for limit in [-1, Int.min] {
      #expect(Self.kind { () throws(PurgeableError) in _ = try Cache(countLimit: limit) } == .invalidArgument("countLimit"))
      #expect(Self.kind { () throws(PurgeableError) in _ = try Cache(costLimit: limit) } == .invalidArgument("costLimit"))
      #expect(Self.kind { () throws(PurgeableError) in _ = try Cache(byteLimit: limit) } == .invalidArgument("byteLimit"))
      #expect(
        Self.kind { () throws(PurgeableError) in _ = try Cache(lockedByteLimit: limit) } == .invalidArgument("lockedByteLimit"))
    }
    let cache = try Cache(countLimit: 10, costLimit: 100, byteLimit: 1 << 20, lockedByteLimit: 1000, idleTime: .seconds(100))
    try cache.setMemoryShare(0.9)
    for key in 1...3 { cache[key] = key }
    for limit in [-1, Int.min] {
      #expect(Self.kind { () throws(PurgeableError) in try cache.setCountLimit(limit) } == .invalidArgument("limit"))
      #expect(Self.kind { () throws(PurgeableError) in try cache.setCostLimit(limit) } == .invalidArgument("limit"))
      #expect(Self.kind { () throws(PurgeableError) in try cache.setByteLimit(limit) } == .invalidArgument("limit"))
      #expect(Self.kind { () throws(PurgeableError) in try cache.setLockedByteLimit(limit) } == .invalidArgument("limit"))
      #expect(
        Self.kind { () throws(PurgeableError) in try PurgeableRegion.setLockedByteLimit(limit) } == .invalidArgument("limit"))
    }
    for share in [0, -0.1, 1.1, .nan, .infinity] {
      #expect(Self.kind { () throws(PurgeableError) in try cache.setMemoryShare(share) } == .invalidArgument("share"))
    }
    for time in [Duration.zero, .seconds(-1)] {
      #expect(Self.kind { () throws(PurgeableError) in try cache.setIdleTime(time) } == .invalidArgument("time"))
    }
    // The limits from before still hold.
    #expect(cache.countLimit == 10 && cache.costLimit == 100 && cache.byteLimit == 1 << 20)
    #expect(cache.lockedByteLimit == 1000 && cache.memoryShare == 0.9 && cache.idleTime == .seconds(100))
    #expect(cache.count == 3 && (1...3).allSatisfy { cache[$0] == $0 })
    cache.checkBooks()
  }

  @Test("a negative cost counts as 0, and so does what is negative to trim to", arguments: [false, true])
  func negativeCosts(tracksKeys: Bool) throws {
    let cache = try PurgeableCache<Int, [UInt8]>(costLimit: 5, tracksKeys: tracksKeys)
    for key in 0..<20 { #expect(cache.setValue([1, 2], forKey: key, cost: key == 7 ? .min : -1) == .stored) }
    #expect(cache.count == 20 && cache.totalCost == 0)
    #expect(cache.setValue([3], forKey: 20, cost: 5) == .stored)
    #expect(cache.totalCost == 5 && cache.count == 21)
    cache.trim(toCost: -7)
    #expect(cache.totalCost == 0 && !cache.containsValue(forKey: 20))
    cache.trim(toCount: .min)
    #expect(cache.isEmpty)
    cache.checkBooksSwept()
  }

  @Test("a trim to a cost leaves what costs nothing", arguments: [EvictionOrder.s3FIFO, .lru], [false, true])
  func withoutCost(order: EvictionOrder, tracksKeys: Bool) throws {
    let cache = try PurgeableCache<Int, Int>(evictionOrder: order, tracksKeys: tracksKeys)
    for key in 0..<400 {
      cache.setValue(key, forKey: key, cost: key % 4 == 3 ? 5 : 0, priority: key % 4 == 1 ? .speculative : nil)
    }
    cache.trim(toCost: 200)
    #expect(cache.totalCost == 200 && cache.count == 340)
    cache.trim(toCost: 0)
    #expect(cache.totalCost == 0 && cache.count == 300)
    for key in 0..<400 { #expect(cache.peekValue(forKey: key) == (key % 4 == 3 ? nil : key)) }
    #expect(cache.statistics.departures.filter { $0.value > 0 } == [.trimmed: 100])
    // Nothing is left to free.
    cache.trim(toCost: 0)
    #expect(cache.count == 300)
    cache.trim(toCount: 0)
    #expect(cache.isEmpty)
    cache.checkBooksSwept()
  }

  @Test("a limit of 0 admits nothing that counts against it", arguments: [false, true])
  func zero(tracksKeys: Bool) throws {
    let count = try PurgeableCache<Int, [UInt8]>(countLimit: 0, tracksKeys: tracksKeys)
    #expect(count.setValue([], forKey: 1, cost: 0) == .tooLarge)
    #expect(count.isEmpty && count[1] == nil)
    let cost = try PurgeableCache<Int, [UInt8]>(costLimit: 0, tracksKeys: tracksKeys)
    #expect(cost.setValue([1], forKey: 1) == .tooLarge)
    #expect(cost.setValue([1], forKey: 1, cost: 1) == .tooLarge)
    #expect(cost.setValue([1], forKey: 1, cost: 0) == .stored)
    #expect(cost.setValue([], forKey: 2) == .stored)
    #expect(cost.count == 2 && cost.totalCost == 0)
    let bytes = try PurgeableCache<Int, [UInt8]>(byteLimit: 0, tracksKeys: tracksKeys)
    #expect(bytes.setValue([], forKey: 1) == .tooLarge)
    #expect(bytes.isEmpty)
    for cache in [count, cost, bytes] { cache.checkBooksSwept() }
    #expect(count.statistics.refusalCount == 1)
  }

  @Test(
    "the count limit holds after every store, and the newest is always there", arguments: [1, 2, 3, 10, 100, 1000], [false, true])
  func count(limit: Int, tracksKeys: Bool) throws {
    let cache = try PurgeableCache<Int, [UInt8]>(countLimit: limit, tracksKeys: tracksKeys)
    for i in 0..<(TestRun.isFull ? 5 : 3) * limit + 50 {
      let value = pattern(30 + i % 40)
      let isStored = cache.setValue(value, forKey: i) == .stored && cache.count <= limit
      if !isStored || cache.peekValue(forKey: i) != value { Issue.record("key \(i) of \(cache.count) entries") }
    }
    #expect(cache.count == limit)
    cache.checkBooksSwept()
  }

  @Test("replacing at the limit evicts nobody", arguments: [false, true])
  func replacing(tracksKeys: Bool) throws {
    let cache = try PurgeableCache<Int, [UInt8]>(countLimit: 50, costLimit: 5000, tracksKeys: tracksKeys)
    for i in 0..<50 { cache.setValue([UInt8(i)], forKey: i, cost: 100) }
    for round in 0..<20 {
      for i in 0..<50 { #expect(cache.setValue([UInt8(i), UInt8(round)], forKey: i, cost: 100) == .replaced) }
    }
    for i in 0..<50 { #expect(cache[i] == [UInt8(i), 19]) }
    #expect(cache.statistics.departures[.count] == 0 && cache.statistics.departures[.cost] == 0)
    cache.checkBooksSwept()
  }

  @Test(
    "the cost limit holds after every store; a cost equal to it is kept, one above it refused alone", arguments: [false, true])
  func cost(tracksKeys: Bool) throws {
    let cache = try PurgeableCache<Int, [UInt8]>(costLimit: 1000, tracksKeys: tracksKeys)
    var random = SplitMix64(seed: 11)
    for i in 0..<3000 {
      let cost = random.index(below: 300)
      #expect(cache.setValue(pattern(20), forKey: i % 700, cost: cost) != .tooLarge)
      #expect(cache.totalCost <= 1000)
      #expect(cache.containsValue(forKey: i % 700))
    }
    cache.checkBooksSwept()
    #expect(cache.setValue([1], forKey: 9000, cost: 1000) == .stored)
    #expect(cache.totalCost == 1000)
    let others = (0..<700).count { cache.containsValue(forKey: $0) }
    #expect(cache.setValue([1], forKey: 9001, cost: 1001) == .tooLarge)
    #expect(cache[9000] == [1])
    #expect((0..<700).count { cache.containsValue(forKey: $0) } == others)
    // Only this kind of refusal changes something: the old value of that key goes.
    #expect(cache.setValue([1], forKey: 9000, cost: .max) == .tooLarge)
    #expect(cache[9000] == nil)
    #expect((0..<700).count { cache.containsValue(forKey: $0) } == others)
    cache.checkBooksSwept()
  }

  @Test("entries of no cost are passed over when cost is short", arguments: [false, true], EvictionOrder.allCases)
  func noCost(tracksKeys: Bool, order: EvictionOrder) throws {
    let cache = try PurgeableCache<Int, [UInt8]>(costLimit: 100, evictionOrder: order, tracksKeys: tracksKeys)
    for i in 0..<300 { cache.setValue([1], forKey: -1 - i, cost: 0) }
    for i in 0..<300 {
      #expect(cache.setValue([2], forKey: i, cost: 10) == .stored)
      #expect(cache.totalCost <= 100)
    }
    #expect((0..<300).count { cache.containsValue(forKey: -1 - $0) } == 300)
    #expect(cache.totalCost == 100)
    if order == .lru { #expect(Array(cache.keys.suffix(10)) == Array(290..<300)) }
    // What was passed over and costs something now goes in its turn, wherever it is: also before what is passed over.
    for i in 0..<300 {
      cache.setValue([3], forKey: -1 - i, cost: i % 2 * 10, priority: i % 3 == 0 ? .speculative : .normal)
      #expect(cache.totalCost <= 100)
      if i % 7 == 0 { cache.remove(forKey: -1 - i) }
    }
    #expect((0..<300).count { cache.containsValue(forKey: -1 - $0) && $0 % 2 == 0 } == 300 / 2 - 22)
    try cache.setCostLimit(0)
    #expect(cache.totalCost == 0 && cache.count == 300 / 2 - 22)
    cache.checkBooksSwept()
  }

  @Test("a value that makes room for another one under its own key leaves as replaced", arguments: EvictionOrder.allCases)
  func replacedForRoom(order: EvictionOrder) throws {
    let departures = Departures<Int, [UInt8]>()
    let cache = try PurgeableCache<Int, [UInt8]>(costLimit: 10, evictionOrder: order) { departures.note($0) }
    for (key, cost) in [(1, 4), (2, 3), (3, 3)] { cache.setValue([1], forKey: key, cost: cost) }
    #expect(cache.setValue([2], forKey: 1, cost: 7) == .replaced)
    #expect(departures.take().map { "\($0.key) \($0.reason)" }.sorted() == ["1 replaced", "2 cost limit"])
    // Alone in its queue.
    #expect(cache.setValue([2], forKey: 1, cost: 10) == .replaced)
    #expect(departures.take().map { "\($0.key) \($0.reason)" }.sorted() == ["1 replaced", "3 cost limit"])
    #expect(cache.statistics.replacementCount == 2 && cache.statistics.insertionCount == 3 && cache.totalCost == 10)
    cache.checkBooksSwept()
  }

  @Test("what is given back for bytes is what was asked for, and a slab", arguments: EvictionOrder.allCases)
  func noMoreThanAsked(order: EvictionOrder) throws {
    let cache = try PurgeableCache<Int, [UInt8]>(evictionOrder: order)
    cache.staysInOneShard()
    for key in 0..<6000 { cache[key] = [UInt8](repeating: 1, count: 1000) }
    let (count, held) = (cache.count, cache.byteCount)
    cache.trim(toBytes: held / 20 * 19)
    #expect(cache.byteCount <= held / 20 * 19)
    #expect(cache.count >= count / 20 * 19 - 100, "\(cache.count) of \(count) are left")
    cache.checkBooksSwept()
  }

  @Test("costs beyond 64 bits add up without a trap, saturate, and come back exactly", arguments: [false, true])
  func saturating(tracksKeys: Bool) throws {
    let cache = try PurgeableCache<Int, [UInt8]>(tracksKeys: tracksKeys)
    cache.setValue([1], forKey: 0, cost: 17)
    for i in 1...50 { cache.setValue([1], forKey: i, cost: .max) }
    #expect(cache.totalCost == .max)
    for i in 2...50 { cache.remove(forKey: i) }
    #expect(cache.totalCost == .max)
    cache.setValue([1], forKey: 1, cost: .max - 17)
    #expect(cache.totalCost == .max)
    cache.setValue([1], forKey: 1, cost: .max - 18)
    #expect(cache.totalCost == Int.max - 1)
    cache.remove(forKey: 1)
    #expect(cache.totalCost == 17)
    for i in 1...5 { cache.setValue([1], forKey: i, cost: .max) }
    try cache.setCostLimit(.max - 1)
    #expect(cache.totalCost <= 17)
    cache.checkBooksSwept()
  }

  @Test("lowering a limit evicts before it returns, raising one does nothing", arguments: [false, true])
  func lowering(tracksKeys: Bool) throws {
    let cache = try PurgeableCache<Int, [UInt8]>(tracksKeys: tracksKeys)
    for i in 0..<5000 { cache.setValue(pattern(50), forKey: i, cost: 2) }
    try cache.setCountLimit(6000)
    #expect(cache.count == 5000)
    try cache.setCountLimit(4000)
    #expect(cache.count == 4000)
    try cache.setCostLimit(6001)
    #expect(cache.totalCost == 6000)
    try cache.setCountLimit(nil)
    try cache.setCostLimit(nil)
    #expect(cache.count == 3000)
    for i in 0..<1000 { cache[9000 + i] = pattern(50) }
    #expect(cache.count == 4000)
    try cache.setCostLimit(0)
    #expect(cache.isEmpty && cache.totalCost == 0)
    cache.checkBooksSwept()
  }

  @Test("with N threads storing, the excess is at most N entries, and none is left", arguments: [false, true])
  func threads(tracksKeys: Bool) throws {
    let threads = 4
    let limit = TestRun.isFull ? 3000 : 1000
    // A cache that was made without a limit may have many shards, and the limit holds across them.
    let cache = try PurgeableCache<Int, Int>(tracksKeys: tracksKeys)
    for i in 0..<2 * limit { cache[-1 - i] = i }
    try cache.setCountLimit(limit)
    let highest = Atomic<Int>(0)
    onThreads(threads) { thread in
      for i in 0..<(TestRun.isFull ? 10_000 : 1400) / slowness {
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

  @Test("in a full cache with a limit keys come as stores take them", arguments: [100, 1000], [false, true])
  func orderAtLimit(count: Int, isOfCost: Bool) throws {
    let cache = try cacheWithoutTwins(3 * count, of: Int.self)
    if isOfCost { try cache.setCostLimit(count * 7) } else { try cache.setCountLimit(count) }
    for key in 0..<2 * count { cache.setValue(key, forKey: key, cost: 7) }
    for round in 0..<2 {
      for key in 0..<count where key % 10 == round { _ = cache[key] }
      let order = Array(cache.keys)
      #expect(order.count == count)
      // As many as come before the first of these goes.
      for (number, key) in order.prefix(count / 10).enumerated() {
        cache.setValue(1, forKey: 2 * count + round * count / 10 + number, cost: 7)
        #expect(!cache.containsValue(forKey: key), "\(number)")
      }
    }
  }

  @Test("with several shards, whose parts of a limit are uneven, the first keys are among those that stores take next")
  func orderOfShards() throws {
    let cache = try PurgeableCache<Int, Int>(countLimit: 20_000, clock: .system, hashSeed: 1)
    cache.openEarly(count: 1000)
    for key in 0..<40_000 { cache[key] = key }
    #expect(cache.engine.shards.openCount > 4)
    let order = Array(cache.keys)
    #expect(order.count == 20_000)
    for key in 40_000..<41_600 { cache[key] = key }
    let left = order.prefix(1000).count { cache.containsValue(forKey: $0) }
    #expect(left < 50, "\(left)")
  }
}
