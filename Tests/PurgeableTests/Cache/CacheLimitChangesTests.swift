// SPDX-License-Identifier: MIT
// Limits that are set, lowered or too small, in this process and in a forked child; checked after every call.

import CPurgeable
import Glibc
import PurgeableTestSupport
import Synchronization
import Testing
import ToolSupport

@testable import Purgeable

@Suite("PurgeableCache, limits that change")
struct CacheLimitChangesTests {
  // MARK: Lowered

  /// Some 24 bytes an entry, so that bookkeeping is a large part of what is held.
  private func filled(count: Int = 40_000, tracksKeys: Bool) throws -> PurgeableCache<Int, Int> {
    let cache = try PurgeableCache<Int, Int>(tracksKeys: tracksKeys)
    for key in 0..<count { cache[key] = key }
    return cache
  }

  @Test(
    "a byte limit lowered at run time leaves a cache that works like one made with it", .notUnderThreadSanitizer,
    arguments: [false, true])
  func lowered(tracksKeys: Bool) throws {
    let (limit, stored) = (1 << 20, 20_000)
    let cache = try filled(tracksKeys: tracksKeys)
    #expect(cache.byteCount > 2 * limit)
    try cache.setByteLimit(limit)
    #expect(cache.byteLimit == limit)
    #expect(cache.byteCount <= limit)
    #expect(cache.engine.shards.openCount == 1)
    cache.checkBooks()
    let other = try PurgeableCache<Int, Int>(byteLimit: limit, tracksKeys: tracksKeys)
    for key in 1_000_000..<1_000_000 + stored {
      let isStored = other.setValue(key, forKey: key) == .stored && cache.setValue(key, forKey: key) == .stored
      if !isStored { Issue.record("key \(key)") }
      if key % 64 == 0 {
        #expect(cache.byteCount <= limit)
        #expect(cache.peekValue(forKey: key) == key)
      }
    }
    // A key table that was large gives back less than an index.
    let share = tracksKeys ? 2 : 7
    #expect(cache.count * 10 >= other.count * share, "\(cache.count) entries, \(other.count) where made with the limit")
    cache.checkBooksSwept()
    // The limit is lifted again.
    try cache.setByteLimit(nil)
    for key in 0..<stored / 2 { cache[key] = key }
    #expect((0..<stored / 2).first { cache.peekValue(forKey: $0) != $0 } == nil)
  }

  // MARK: Too small

  /// The bytes that the error says are needed, for a cache of this kind.
  private func needed(tracksKeys: Bool, share: Bool = false) -> Int? {
    do throws(PurgeableError) {
      let tiny = share ? 5000 / Double(ProcessMemory.limit()) : nil
      _ = try PurgeableCache<Int, [UInt8]>(byteLimit: share ? nil : 1000, memoryShare: tiny, tracksKeys: tracksKeys)
      return nil
    } catch {
      #expect(error.kind == .invalidArgument(share ? "memoryShare" : "byteLimit"))
      let words = error.explanation.split { !$0.isNumber }.compactMap { Int($0) }
      return words.max()
    }
  }

  @Test("a trim leaves a cache below its byte limit, though used entries move on the way", arguments: EvictionOrder.allCases)
  func trimmed(order: EvictionOrder) throws {
    for trim in 0..<3 {
      var options = CacheOptions(byteLimit: 4 << 20)
      options.evictionOrder = order
      let cache = try PurgeableCache<Int, [UInt8]>(options)
      cache[1] = pattern(100)
      #expect(cache[1] == pattern(100))
      try cache.setByteLimit(cache.byteCount + 4096)
      switch trim {
      case 0: cache.trim(toCost: 0)
      case 1: cache.trim(toCost: 1)
      default: cache.trim(toFraction: 0.01)
      }
      let (count, limit) = (cache.byteCount, try #require(cache.byteLimit))
      #expect(count <= limit, "\(count) of \(limit)")
      cache.checkBooks()
    }
  }

  @Test("a limit that is less than an empty cache needs is an error that says how much that is", arguments: [false, true])
  func tooSmall(tracksKeys: Bool) throws {
    let least = try #require(needed(tracksKeys: tracksKeys))
    #expect(least > 10_000 && least < 200_000)
    _ = try #require(needed(tracksKeys: tracksKeys, share: true))
    #expect(throws: PurgeableError.self) { try PurgeableCache<Int, [UInt8]>(byteLimit: least - 1, tracksKeys: tracksKeys) }
    let cache = try PurgeableCache<Int, [UInt8]>(byteLimit: least, tracksKeys: tracksKeys)
    #expect(cache.byteLimit == least)
    // Many tracked keys would need a larger table than fits into such a cache.
    for key in 0..<(tracksKeys ? 100 : 1000) {
      #expect(cache.setValue([1, 2, 3], forKey: key) == .stored)
      #expect(cache.peekValue(forKey: key) == [1, 2, 3])
      #expect(cache.byteCount <= least)
    }
    // 0 is the limit that admits nothing, as it is for counts and costs.
    let nothing = try PurgeableCache<Int, [UInt8]>(byteLimit: 0, tracksKeys: tracksKeys)
    #expect(nothing.setValue([], forKey: 1) == .tooLarge)
  }

  @Test("a limit set that is less than an empty cache needs becomes that much", arguments: [false, true])
  func clamped(tracksKeys: Bool) throws {
    let cache = try filled(count: TestRun.isFull ? 40_000 : 10_000, tracksKeys: tracksKeys)
    try cache.setByteLimit(1000)
    let limit = try #require(cache.byteLimit)
    #expect(limit > 1000)
    #expect(cache.byteCount <= limit)
    for key in 0..<1000 {
      #expect(cache.setValue(key, forKey: key) == .stored)
      // With so little room, a key table that grows may evict the entry that made it grow.
      #expect(tracksKeys || cache.peekValue(forKey: key) == key)
      #expect(cache.byteCount <= limit)
    }
    try cache.setByteLimit(0)
    #expect(cache.byteLimit == 0)
    #expect(cache.isEmpty && cache.setValue(1, forKey: 1) == .tooLarge)
    try cache.setByteLimit(nil)
    #expect(cache.setValue(1, forKey: 1) == .stored)
    try cache.setMemoryShare(5000 / Double(ProcessMemory.limit()))
    #expect(cache.memoryShare == 5000 / Double(ProcessMemory.limit()))
    #expect(cache.setValue(2, forKey: 2) == .stored)
    #expect(cache.byteCount <= cache.statistics.limitInForce ?? 0)
    try cache.setLockedByteLimit(0)
    #expect(cache.lockedByteLimit == 0 && cache.withBytes(forKey: 2) { _ in true } == nil)
    cache.checkBooksSwept()
  }

  // MARK: In a forked child

  @Test("in a forked child an empty cache counts what a fresh one does, and its byte limit works", .forks)
  func forked() async {
    await #expect(processExitsWith: .success) {
      for tracksKeys in [false] {
        let (count, stored, limit) = TestRun.isFull ? (40_000, 20_000, 1 << 20) : (8000, 10_000, 1 << 19)
        let cache = try PurgeableCache<Int, Int>(tracksKeys: tracksKeys)
        // So that its shards open.
        if !TestRun.isFull { cache.engine.shards.sizes.count.store(count / 2, ordering: .relaxed) }
        for key in 0..<count { cache[key] = key }
        // The trim fills the ghost too.
        cache.trim(toCount: count / 2)
        let fresh = try PurgeableCache<Int, Int>(tracksKeys: tracksKeys)
        let limited = try PurgeableCache<Int, Int>(byteLimit: limit, tracksKeys: tracksKeys)
        for key in 0..<stored { limited[key] = key }
        let isWell = childSays {
          guard cache.count == 0, cache.totalCost == 0, cache.isEmpty else { return false }
          // The directories of the parent's chunks exist in the child too and stay, and so do the smallest indexes of the shards
          // it had opened.
          func books(of cache: PurgeableCache<Int, Int>) -> Int {
            cache.engine.heap.ordinaryBytes
          }
          func isLikeFresh() -> Bool {
            let more = (cache.engine.shards.all.count - fresh.engine.shards.all.count) * SlotIndex.homeBytes
            return cache.byteCount - books(of: cache) == fresh.byteCount - books(of: fresh) + more
          }
          guard isLikeFresh() else { return false }
          cache[1] = 1
          fresh[1] = 1
          guard cache.count == 1, isLikeFresh() else { return false }
          for key in 0..<stored where limited.setValue(key, forKey: key) == .tooLarge || limited.byteCount > limit {
            return false
          }
          guard limited.count > stored / 10, limited[stored - 1] == stored - 1 else { return false }
          try! cache.setByteLimit(limit)
          for key in 0..<stored where cache.setValue(key, forKey: key) == .tooLarge || cache.byteCount > limit { return false }
          return cache[stored - 1] == stored - 1
        }
        require(isWell, "the child")
        require(cache.count == count / 2, "the parent")
      }
    }
  }

  // MARK: After every call

  @Test(
    "limits hold after every call, whatever is stored, lost, trimmed or set", .notUnderThreadSanitizer, arguments: [false, true])
  func everyCall(tracksKeys: Bool) throws {
    var random = SplitMix64(seed: chosenSeed)
    let cache = try PurgeableCache<Int, [UInt8]>(tracksKeys: tracksKeys)
    for step in 0..<(isOptimized ? 60_000 : 8000) {
      let key = random.index(below: 8000)
      var call = "set"
      switch random.index(below: 1000) {
      case 0..<700:
        let length = random.index(below: 200) == 0 ? random.index(below: 200_000) : random.index(below: 1500)
        let cost: Int? = random.index(below: 3) == 0 ? random.index(below: 5000) : nil
        cache.setValue([UInt8](repeating: 7, count: length), forKey: key, cost: cost)
      case 700..<900:
        call = "get"
        _ = cache.value(forKey: key)
      case 900..<980:
        call = "remove"
        cache.remove(forKey: key)
      case 980..<984:
        call = "byteLimit"
        // None of these limits allows a second shard: the call closes them, and none opens until the limit is lifted.
        try cache.setByteLimit(random.index(below: 4) == 0 ? nil : (300 << 10) + random.index(below: 6 << 20))
        #expect(cache.byteLimit == nil || cache.engine.shards.openCount == 1, "step \(step), seed \(chosenSeed)")
      case 984..<988:
        call = "countLimit"
        try cache.setCountLimit(random.index(below: 2) == 0 ? nil : random.index(below: 5000))
      case 988..<992:
        call = "costLimit"
        try cache.setCostLimit(random.index(below: 2) == 0 ? nil : random.index(below: 4 << 20))
      case 992..<994:
        call = "sweep"
        cache.discardEveryThirdPage()
        cache.sweep()
      case 994..<996:
        call = "trim"
        cache.trim(toFraction: 0.7)
      default:
        call = "offer"
        cache.offerIdle()
      }
      let byteCount = cache.byteCount
      #expect(byteCount <= cache.byteLimit ?? .max, "step \(step), \(call): \(byteCount) bytes, seed \(chosenSeed)")
      #expect(cache.count <= cache.countLimit ?? .max, "step \(step), \(call), seed \(chosenSeed)")
      #expect(cache.totalCost <= cache.costLimit ?? .max, "step \(step), \(call), seed \(chosenSeed)")
      if step % 1000 == 0 { cache.recountBooks() }
    }
    cache.checkBooksSwept()
  }

  @Test("with N threads storing, the excess over each limit is that of N entries, and none is left", arguments: [false, true])
  func threads(tracksKeys: Bool) throws {
    let threads = 4
    let (countLimit, costLimit, byteLimit) = (2000, 600_000, 1 << 20)
    let cache = try PurgeableCache<Int, [UInt8]>(
      countLimit: countLimit, costLimit: costLimit, byteLimit: byteLimit, tracksKeys: tracksKeys)
    let most = 1000
    let failures = Mutex<[String]>([])
    onThreads(threads) { thread in
      var random = SplitMix64(seed: UInt64(thread) + 1)
      for i in 0..<(TestRun.isFull ? 4000 : 1400) / slowness {
        cache[thread << 32 | i] = [UInt8](repeating: 7, count: random.index(below: most))
        let (count, cost, bytes) = (cache.count, cache.totalCost, cache.byteCount)
        let isOver =
          count > countLimit + threads || cost > costLimit + threads * most
          || bytes > byteLimit + threads * cache.engine.heap.slabBytes
        if isOver {
          failures.withLock { $0.append("\(count) entries, cost \(cost), \(bytes) bytes") }
        }
        if i % 1000 == 0 { cache.recountBooks() }
      }
    }
    #expect(failures.withLock { $0 } == [])
    #expect(cache.count <= countLimit && cache.totalCost <= costLimit && cache.byteCount <= byteLimit)
    cache.checkBooks()
  }

  // MARK: What is gone

  @Test("what is known to be gone leaves room within the limit", .notUnderThreadSanitizer)
  func gone() throws {
    try needRealDiscards()
    let limit = 8 << 20
    let cache = try PurgeableCache<Int, [UInt8]>(byteLimit: limit)
    for key in 0..<5000 { cache[key] = pattern(1000) }
    let full = cache.byteCount
    cache.discardEveryThirdPage()
    cache.sweep()
    let numbers = cache.statistics
    #expect(numbers.memory.discardedBytes > 1 << 20)
    #expect(cache.byteCount <= full - numbers.memory.discardedBytes + (64 << 10))
    #expect(cache.byteCount == numbers.memory.heldBytes - numbers.memory.discardedBytes + numbers.memory.ordinaryBytes)
    // As many bytes as were lost can be stored without an eviction.
    let count = cache.count
    let more = numbers.memory.discardedBytes / 1100 * 3 / 4
    for key in 10_000..<10_000 + more { #expect(cache.setValue(pattern(1000), forKey: key) == .stored) }
    #expect(cache.statistics.departures[.bytes, default: 0] == 0)
    #expect(cache.count == count + more)
    #expect(cache.byteCount <= limit)
    cache.checkBooksSwept()
  }
}
