// SPDX-License-Identifier: MIT
// Where room is wanted, what has expired goes before all that lives.

import PurgeableTestSupport
import Testing

@testable import Purgeable

@Suite("cache: expired entries make room")
struct CacheExpiryRoomTests {
  @Test("what has expired goes before all that lives, for each limit", arguments: EvictionOrder.allCases, [false, true])
  func goesFirst(order: EvictionOrder, tracksKeys: Bool) throws {
    let clock = ManualClock()
    let cache: PurgeableCache<String, [UInt8]> = try makeExpiringCache(clock, order, tracksKeys: tracksKeys, countLimit: 4)
    for key in ["a", "b"] { cache[key] = [1] }
    cache.setValue([1], forKey: "short", expiry: .sinceCreation(.seconds(1)))
    cache.setValue([1], forKey: "long", expiry: .sinceCreation(.seconds(100)))
    clock.advance(by: .seconds(2))
    // Used more than all others while it lived.
    for _ in 0..<3 { _ = cache["long"] }
    cache["c"] = [1]
    #expect(Set(cache.keys) == ["a", "b", "long", "c"] && cache.statistics.departures[.expired] == 1)
    clock.advance(by: .seconds(100))
    try cache.setCountLimit(3)
    #expect(Set(cache.keys) == ["a", "b", "c"] && cache.statistics.departures[.count] == 0)
    cache.checkBooks()
  }

  @Test("below a byte limit expired slabs make the room: nothing that lives leaves", arguments: EvictionOrder.allCases)
  func makesRoom(order: EvictionOrder) throws {
    let clock = ManualClock()
    let cache: PurgeableCache<Int, [UInt8]> = try makeExpiringCache(clock, order, byteLimit: 4 << 20)
    for key in 0..<1000 { cache[key] = described(UInt32(key), version: 0, count: 1000) }
    for round in 0..<5 {
      for key in 1000..<3000 {
        cache.setValue(
          described(UInt32(key), version: 0, count: 1000), forKey: key + round * 2000, expiry: .sinceCreation(.seconds(60)))
      }
      clock.advance(by: .seconds(120))
    }
    let statistics = cache.statistics
    #expect(statistics.departures[.bytes] == 0 && statistics.departures[.expired, default: 0] >= 8000 - 2000)
    for key in 0..<1000 { #expect(cache[key] == described(UInt32(key), version: 0, count: 1000)) }
    cache.checkBooks()
  }

  @Test("a search in vain holds up none for entries that come later, and live shorter", arguments: EvictionOrder.allCases)
  func searchesAgain(order: EvictionOrder) throws {
    let clock = ManualClock()
    let cache: PurgeableCache<String, [UInt8]> = try makeExpiringCache(clock, order, countLimit: 4)
    cache.setValue([1], forKey: "day", expiry: .sinceCreation(.seconds(86_400)))
    for key in ["a", "b", "c", "d"] { cache[key] = [1] }
    for key in ["a", "b"] { cache.remove(forKey: key) }
    for key in ["e", "f"] { cache.setValue([1], forKey: key, expiry: .sinceCreation(.seconds(1))) }
    let before = cache.statistics
    clock.advance(by: .seconds(600))
    for key in ["g", "h"] { cache[key] = [1] }
    let departures = cache.statistics.difference(from: before).departures
    #expect(departures[.count] == 0 && departures[.expired] == 2)
  }

  @Test("what leaves after its end leaves as expired, whatever it leaves for", arguments: EvictionOrder.allCases)
  func reasons(order: EvictionOrder) throws {
    let clock = ManualClock()
    let departures = Departures<Int, [UInt8]>()
    let leaves: [(PurgeableCache<Int, [UInt8]>) -> Void] = [
      { $0.trim(toFraction: 0) }, { $0.removeAll() }, { $0.trim(toCount: 0) }, { for key in 0..<100 { $0.remove(forKey: key) } },
    ]
    // Below four slabs those with a deadline have no slabs of their own.
    for (leave, limit) in leaves.flatMap({ leave in [nil, 60_000].map { (leave, $0) } }) {
      let cache = try makeExpiringCache(clock, order, byteLimit: limit, departures: departures)
      for key in 0..<100 {
        cache.setValue(pattern(100), forKey: key, expiry: .sinceCreation(.seconds(key % 2 == 0 ? 10 : 15)))
        for _ in 0..<3 { _ = cache[key] }
      }
      clock.advance(by: .seconds(10))
      leave(cache)
      let told = departures.take()
      #expect(told.count == 100 && told.allSatisfy { ($0.reason == .expired) == ($0.key % 2 == 0) })
      cache.checkBooksSwept()
    }
  }

  @Test("at the least byte limit entries with a deadline are stored too", arguments: EvictionOrder.allCases)
  func leastLimit(order: EvictionOrder) throws {
    let clock = ManualClock()
    for created in [64 << 20, 1 << 20] {
      let cache: PurgeableCache<Int, [UInt8]> = try makeExpiringCache(clock, order, byteLimit: created)
      try cache.setByteLimit(1)
      for key in 0..<400 {
        let expiry: Expiry = key % 3 == 0 ? .never : .sinceCreation(.seconds(10 * (key % 3)))
        #expect(cache.setValue(pattern(300), forKey: key, expiry: expiry) == .stored)
        #expect(cache[key] == pattern(300))
      }
      #expect(cache.byteCount <= cache.byteLimit!)
      cache.checkBooks()
    }
  }

  @Test(
    "in a cache of few slabs, too, what has expired goes, and first where room is wanted", arguments: [false, true],
    EvictionOrder.allCases)
  func fewSlabs(tracksKeys: Bool, order: EvictionOrder) throws {
    let clock = ManualClock()
    let departures = Departures<Int, [UInt8]>()
    let cache = try makeExpiringCache(
      clock, order, tracksKeys: tracksKeys, countLimit: 60, byteLimit: 60_000, departures: departures)
    func store(_ keys: Range<Int>, for seconds: Int? = nil, sinceUse: Bool = false) {
      for key in keys {
        let time = seconds.map { Duration.seconds($0) }
        cache.setValue([1], forKey: key, expiry: time.map { sinceUse ? .sinceLastUse($0) : .sinceCreation($0) } ?? .never)
      }
    }
    store(0..<20)
    store(20..<40, for: 5)
    store(40..<60, for: 5, sinceUse: true)
    clock.advance(by: .seconds(4))
    for key in 50..<60 { #expect(cache[key] != nil) }
    #expect(cache.removeExpired() == 0 && cache.count == 60)
    clock.advance(by: .seconds(2))
    store(60..<70)
    #expect(departures.count(of: .count) == 0 && departures.count(of: .expired) >= 10)
    _ = cache.removeExpired()
    #expect(departures.take().map { $0.key }.sorted() == Array(20..<50))
    #expect(cache.count == 40 && cache.removeExpired() == 0)
    clock.advance(by: .seconds(4))
    // As the library's thread does.
    cache.engine.dropDueSlabs()
    #expect(departures.take().map { $0.key }.sorted() == Array(50..<60))
    #expect(cache.engine.dropDueSlabs() == .max && Set(cache.keys) == Set([Int](0..<20) + [Int](60..<70)))
    cache.checkBooksSwept()
  }

  @Test("what has expired goes before what lives, wherever it is", arguments: EvictionOrder.allCases)
  func expiredBehindOthers(order: EvictionOrder) throws {
    let clock = ManualClock()
    let departures = Departures<Int, [UInt8]>()
    let cache = try makeExpiringCache(clock, order, countLimit: 1200, departures: departures)
    func store(_ keys: Range<Int>, for seconds: (Int) -> Int) {
      for key in keys {
        cache.setValue([UInt8](repeating: 1, count: 1000), forKey: key, expiry: .sinceCreation(.seconds(seconds(key))))
      }
    }
    // Of one octave: in one lane.
    store(0..<600) { _ in 119 }
    store(600..<1200) { $0 % 30 == 0 ? 119 : 70 }
    clock.advance(by: .seconds(71))
    store(1200..<1300) { _ in 119 }
    #expect(departures.count(of: .expired) >= 100 && departures.count(of: .count) == 0)
    cache.checkBooksSwept()
  }
}
