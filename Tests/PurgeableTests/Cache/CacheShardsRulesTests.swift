// SPDX-License-Identifier: MIT
// A cache that opens its other shards, rule by rule: what a store or a removal finds, what goes at limits and without memory,
// what is told, and what a forked child has.

import CPurgeable
import CPurgeable.Testing
import Glibc
import PurgeableTestSupport
import Synchronization
import Testing
import ToolSupport

@testable import Purgeable

@Suite("Cache: shards, rules")
struct CacheShardsRulesTests {
  @Test("a store brings the founder's entry home first: the old value is nowhere any more", arguments: [false, true])
  func replaced(tracksKeys: Bool) throws {
    let cache = try describedCache(tracksKeys: tracksKeys)
    cache.open()
    // From the youngest on: the oldest move by themselves.
    for key in (0..<UInt32(300)).reversed() {
      let count = key % 10 == 0 ? 150_000 : 200
      #expect(cache.setValue(described(key, version: 2, count: count), forKey: key) == .replaced)
      #expect(versionDescribed(in: cache[key] ?? [], key: key) == 2)
      #expect(cache.count == 300)
      // Gone for good, also where the new value leaves.
      if key % 3 == 0 {
        #expect(cache.remove(forKey: key) && cache.peekValue(forKey: key) == nil)
        #expect(cache.setValue(described(key, version: 3, count: 100), forKey: key) == .stored)
      }
    }
    #expect(!cache.isMoving && cache.founderCount == 0)
    cache.checkBooksSwept()
  }

  @Test("a removal takes the entry, with its value or without, once, wherever it is", arguments: [false, true])
  func removed(tracksKeys: Bool) throws {
    let cache = try describedCache(tracksKeys: tracksKeys)
    cache.open()
    for key in 0..<UInt32(300) {
      if key % 2 == 0 {
        #expect(cache.remove(forKey: key))
      } else {
        #expect(versionDescribed(in: cache.removeValue(forKey: key) ?? [], key: key) == 1)
      }
      #expect(!cache.remove(forKey: key) && cache.removeValue(forKey: key) == nil && cache.peekValue(forKey: key) == nil)
    }
    #expect(cache.isEmpty && cache.statistics.departures[.removed] == 300)
    cache.checkBooksSwept()
    cache[1] = [1]
    cache.open()
    cache.removeAll()
    #expect(cache.isEmpty)
  }

  @Test("removing everything misses nothing, in the founder or at home", arguments: [false, true])
  func removedAll(tracksKeys: Bool) throws {
    let cache = try describedCache(tracksKeys: tracksKeys)
    cache.open()
    for key in 0..<UInt32(100) { cache[key] = described(key, version: 2, count: 200) }
    cache.removeAll()
    #expect(cache.isEmpty && cache.totalCost == 0)
    for key in 0..<UInt32(300) { #expect(cache.peekValue(forKey: key) == nil) }
    cache.checkBooksSwept()
  }

  @Test("each departure is told once, with its value and its reason, beside an opening")
  func told() throws {
    let told = Mutex<[UInt32: [DepartureReason]]>([:])
    let cache = try PurgeableCache<UInt32, [UInt8]>(onDeparture: { departure in
      #expect(departure.value.flatMap { versionDescribed(in: $0, key: departure.key) } == 1)
      told.withLock { $0[departure.key, default: []].append(departure.reason) }
    })
    for key in 0..<UInt32(300) { cache[key] = described(key, version: 1, count: 200) }
    cache.open()
    #expect(told.withLock { $0.isEmpty })
    for key in 0..<UInt32(100) { cache[key] = described(key, version: 1, count: 300) }
    for key in 100..<UInt32(200) { cache.remove(forKey: key) }
    cache.trim(toCount: 150)
    #expect(cache.count == 150)
    let reasons = told.withLock { $0 }
    #expect((0..<UInt32(100)).allSatisfy { reasons[$0]?.first == .replaced })
    #expect((100..<UInt32(200)).allSatisfy { reasons[$0] == [.removed] })
    #expect(reasons.values.reduce(0) { $0 + $1.count { $0 == .trimmed } } == 50)
    cache.checkBooksSwept()
  }

  @Test("whether a tracked key has a value tells of no departure, and moves nothing")
  func containsTracked() throws {
    try needRealDiscards()
    let told = Atomic<Int>(0)
    let cache = try PurgeableCache<UInt32, [UInt8]>(onDeparture: { _ in told.add(1, ordering: .relaxed) })
    for key in 0..<UInt32(1000) { cache[key] = described(key, version: 1, count: 500) }
    cache.open()
    cache.discardEveryThirdPage()
    let left = (0..<UInt32(1000)).count { cache.containsValue(forKey: $0) }
    #expect(left < 1000 && told.load(ordering: .relaxed) == 0)
    cache.sweep()
    #expect(cache.count == left && told.load(ordering: .relaxed) == 1000 - left)
  }

  // MARK: At limits

  @Test("what was stored before the shards opened is evicted before what came after", arguments: [DepartureReason.count, .cost])
  func order(limit: DepartureReason) throws {
    let cache = try PurgeableCache<UInt32, [UInt8]>()
    for key in 0..<UInt32(2000) { cache[key] = described(key, version: 1, count: 1000) }
    cache.open()
    if limit == .count { try cache.setCountLimit(4000) } else { try cache.setCostLimit(4_000_000) }
    for key in 2000..<UInt32(5000) { cache[key] = described(key, version: 1, count: 1000) }
    let gone = (0..<UInt32(5000)).filter { !cache.containsValue(forKey: $0) }
    // What came while entries moved, 256 with each store, came between them.
    let early = gone.filter { $0 >= 2000 }
    #expect(gone.count == 1000 && early.count < 8 && early.allSatisfy { $0 <= 2000 + 2000 / 256 }, "\(early)")
    cache.checkBooksSwept()
  }

  @Test("a cache at its byte limit opens its shards, and holds the limit with the next store")
  func atByteLimit() throws {
    let cache = try PurgeableCache<UInt32, [UInt8]>(byteLimit: 4 << 20)
    cache.staysInOneShard()
    for key in 0..<UInt32(8000) { cache[key] = described(key, version: 1, count: 1000) }
    let count = cache.count
    cache.open()
    #expect(cache.engine.shards.openCount == 16)
    cache.moveAllHome()
    cache[0] = described(0, version: 1, count: 1000)
    #expect(cache.byteCount <= 4 << 20)
    // A slab that is not full for each shard is what that takes.
    #expect(cache.count > count / 2, "\(cache.count) of \(count)")
    for key in 0..<UInt32(8000) {
      if let value = cache.peekValue(forKey: key) { #expect(versionDescribed(in: value, key: key) == 1) }
    }
    cache.checkBooksSwept()
  }

  @Test("whichever call is refused memory while tracked keys move, each entry is whole or has left, and is told of once")
  func refusedTracked() async {
    await #expect(processExitsWith: .success) {
      for failing in 1...UInt64(200) {
        let told = Mutex<[UInt32: Int]>([:])
        let cache = try PurgeableCache<UInt32, [UInt8]> { departure in
          told.withLock { $0[departure.key, default: 0] += 1 }
        }
        cache.openEarly(count: .max)
        for key in 0..<UInt32(300) { cache[key] = described(key, version: 1, count: key % 50 == 0 ? 150_000 : 700) }
        purgeable_testing_fail(
          purgeable_testing_call_mmap.rawValue | purgeable_testing_call_allocate.rawValue, failing, ENOMEM, true)
        cache.engine.shards.openShards()
        let hasFailed = purgeable_testing_has_failed()
        purgeable_testing_fail(0, 0, 0, false)
        for key in 0..<UInt32(300) {
          let value = cache.peekValue(forKey: key)
          require(value == nil || versionDescribed(in: value!, key: key) == 1, "another value")
          require((value == nil) == (told.withLock { $0[key] } == 1), "told \(told.withLock { $0[key] ?? 0 }) times: \(key)")
        }
        cache.checkBooksSwept()
        cache.removeAll()
        require(cache.keyCounts == (0, 0), "keys are left")
        if !hasFailed { return }
      }
    }
  }

  @Test(
    "whichever call is refused memory while an entry is brought home, the store or the eviction is whole",
    arguments: [200, 150_000])
  func refused(byteCount: Int) async {
    await #expect(processExitsWith: .success) { [byteCount] in
      for failing in 1...UInt64(40) {
        let cache = try PurgeableCache<UInt32, [UInt8]>()
        for key in 0..<UInt32(300) { cache[key] = described(key, version: 1, count: byteCount) }
        cache.open()
        purgeable_testing_fail(
          purgeable_testing_call_mmap.rawValue | purgeable_testing_call_allocate.rawValue, failing, ENOMEM, true)
        let outcome = cache.setValue(described(7, version: 2, count: byteCount), forKey: 7)
        let hasFailed = purgeable_testing_has_failed()
        purgeable_testing_fail(0, 0, 0, false)
        let value = cache.peekValue(forKey: 7)
        switch outcome {
        case .stored, .replaced: require(versionDescribed(in: value ?? [], key: 7) == 2, "not stored")
        default: require(value == nil || versionDescribed(in: value!, key: 7) == 1, "neither value")
        }
        cache.checkBooksSwept()
        if !hasFailed { return }
      }
      require(false, "always refused")
    }
  }

  @Test("a forked child of a cache whose shards open begins anew, empty, and both go on", .forks)
  func forked() async {
    await #expect(processExitsWith: .success) {
      let cache = try PurgeableCache<UInt32, [UInt8]>()
      for key in 0..<UInt32(300) { cache[key] = described(key, version: 1, count: 200) }
      cache.openEarly(count: .max)
      cache.engine.shards.openShards()
      for key in 0..<UInt32(100) { cache[key] = described(key, version: 2, count: 200) }
      let isWell = childSays {
        guard cache.isEmpty, (0..<300).allSatisfy({ cache.value(forKey: $0) == nil }) else { return false }
        for key in 0..<UInt32(300) { cache[key] = described(key, version: 3, count: 100) }
        return (0..<UInt32(300)).allSatisfy { cache[$0] == described($0, version: 3, count: 100) } && cache.count == 300
          && cache.totalCost == 30_000 && cache.founderCount == 0
      }
      require(isWell, "the child")
      for key in 0..<UInt32(300) {
        require(cache[key] == described(key, version: key < 100 ? 2 : 1, count: 200), "the parent")
      }
      cache.checkBooksSwept()
    }
  }
}
