// SPDX-License-Identifier: MIT
// Access without copying, and calls of the cache while a value is lent.

import Glibc
import PurgeableTestSupport
import Synchronization
import Testing
import ToolSupport

@testable import Purgeable

private struct Stop: Error, Equatable { var number: Int }

@Suite("PurgeableCache, lending bytes")
struct CacheAccessTests {
  @Test("many look-ups in one call find what single ones find, in order", arguments: [false, true])
  func many(tracksKeys: Bool) throws {
    try needRealDiscards()
    let cache = try PurgeableCache<String, [UInt8]>(tracksKeys: tracksKeys)
    #expect(cache.values(forKeys: ["a", "b"]) == [nil, nil] && cache.values(forKeys: []).isEmpty)
    // Some keys are not ASCII or long, some values are large, some keys are missing or twice there.
    func name(_ i: Int) -> String {
      i % 9 == 0 ? "schl\u{FC}ssel \(i)" : String(repeating: "k", count: i % 11 == 0 ? 50 + i % 40 : 1) + "ey \(i)"
    }
    let all = TestRun.isFull ? 20_000 : 5000
    for i in 0..<all where i % 5 != 0 { cache[name(i)] = pattern(i % 1000 == 7 ? 70_000 : i % 300) }
    let hits = cache.statistics.hitCount
    for count in [1, 15, 16, 17, 1000] {
      let wanted = (0..<count).map { ($0 * 7919 + count) % all } + [3, 3]
      let values = cache.values(forKeys: wanted.lazy.map(name))
      #expect(values == wanted.map { $0 % 5 == 0 ? nil : pattern($0 % 1000 == 7 ? 70_000 : $0 % 300) })
    }
    #expect(cache.statistics.hitCount - hits > 800)
    cache.offerIdle()
    cache.discardEveryThirdPage()
    let after = cache.values(forKeys: (0..<all).map(name))
    #expect(after.contains(nil) && after.contains { $0 != nil })
    for i in 0..<all { #expect(after[i] == nil || after[i] == pattern(i % 1000 == 7 ? 70_000 : i % 300)) }
    cache.checkBooks()
  }

  @Test("an error of the closure comes out, and nothing stays locked", arguments: [false, true])
  func throwing(tracksKeys: Bool) throws {
    let cache = try PurgeableCache<Int, [UInt8]>(tracksKeys: tracksKeys)
    cache[1] = pattern(300)
    for number in 0..<3 {
      #expect(throws: Stop(number: number)) {
        try cache.withBytes(forKey: 1) { (span: RawSpan) throws(Stop) -> Int in throw Stop(number: number) }
      }
    }
    #expect(cache.statistics.memory.lockedBytes == 0)
    #expect(try cache.withBytes(forKey: 2) { (span: RawSpan) throws(Stop) -> Int in throw Stop(number: 9) } == nil)
    #expect(cache[1] == pattern(300))
  }

  @Test("removing and replacing what is lent does not disturb the lender", arguments: [false, true], [40, 3000, 300_000])
  func changing(tracksKeys: Bool, count: Int) throws {
    let cache = try PurgeableCache<String, [UInt8]>(tracksKeys: tracksKeys)
    let value = pattern(count)
    let other = pattern(50)
    let changes: [(String, (PurgeableCache<String, [UInt8]>) -> Void)] = [
      ("remove", { $0.remove(forKey: "a") }), ("replace", { $0["a"] = [1, 2] }), ("removeAll", { $0.removeAll() }),
      ("trim", { $0.trim(toCount: 0) }), ("trim to no bytes", { $0.trim(toBytes: 0) }), ("limit", { try! $0.setCountLimit(0) }),
    ]
    for (what, change) in changes {
      try cache.setCountLimit(nil)
      cache["a"] = value
      let seen = cache.withBytes(forKey: "a") { span in
        change(cache)
        // A locked slab gives no memory back: trimming to bytes passes it over.
        let expected: [UInt8]? = what == "replace" ? [1, 2] : what == "trim to no bytes" ? value : nil
        #expect(cache.peekValue(forKey: "a") == expected, "\(what)")
        // Other entries are stored and evicted in its place.
        try! cache.setCountLimit(nil)
        for i in 0..<1000 { cache["\(i)"] = other }
        cache.offerIdle()
        cache.sweep()
        return span.array
      }
      #expect(seen == value, "\(what)")
      cache.removeAll()
      #expect(cache.statistics.memory.lockedBytes == 0)
      cache.checkBooksSwept()
    }
    cache.trim(toBytes: 0)
    #expect(cache.statistics.memory.heldBytes == 0)
  }

  @Test("the closure may use the cache, the same key and others, as deep as it likes", arguments: [false, true])
  func reentering(tracksKeys: Bool) throws {
    let cache = try PurgeableCache<Int, [UInt8]>(tracksKeys: tracksKeys)
    for i in 0..<10 { cache[i] = pattern(10 + i) }
    func descend(_ depth: Int) -> Int {
      if depth == 10 { return 0 }
      return cache.withBytes(forKey: depth) { span in
        #expect(span.array == pattern(10 + depth))
        #expect(cache.withBytes(forKey: depth) { $0.byteCount } == 10 + depth)
        #expect(cache[depth] == pattern(10 + depth))
        cache[100 + depth] = [1]
        return 1 + descend(depth + 1)
      } ?? -1000
    }
    #expect(descend(0) == 10)
    #expect(cache.count == 20)
    #expect(cache.statistics.memory.lockedBytes == 0)
  }

  @Test("a value too large for any limit replaces nothing that is lent")
  func tooLarge() throws {
    let cache = try PurgeableCache<Int, [UInt8]>(costLimit: 1000)
    cache[1] = pattern(500)
    let seen = cache.withBytes(forKey: 1) { span in
      #expect(cache.setValue(pattern(2000), forKey: 1) == .tooLarge)
      #expect(cache[1] == nil)
      return span.array
    }
    #expect(seen == pattern(500))
  }

  @Test("many threads lend the same values while others replace them")
  func threads() throws {
    let cache = try PurgeableCache<UInt32, [UInt8]>()
    for key in 0..<UInt32(8) { cache[key] = described(key, version: 0, count: 500) }
    let wrong = Atomic<Int>(0)
    onThreads(4) { thread in
      var random = SplitMix64(seed: UInt64(thread) + 1)
      for round in 0..<6000 / slowness {
        let key = UInt32(random.index(below: 8))
        if thread == 0 {
          cache.setValue(described(key, version: UInt32(round), count: 100 + random.index(below: 2000)), forKey: key)
          continue
        }
        let isRight = cache.withBytes(forKey: key) { span -> Bool in
          let first = span.array
          if round % 16 == 0 { sched_yield() }
          return versionDescribed(in: first, key: key) != nil && span.array == first
        }
        if isRight != true { wrong.add(1, ordering: .relaxed) }
      }
    }
    #expect(wrong.load(ordering: .relaxed) == 0)
    #expect(cache.statistics.memory.lockedBytes == 0)
    cache.checkBooksSwept()
  }
}
