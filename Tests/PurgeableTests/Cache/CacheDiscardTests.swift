// SPDX-License-Identifier: MIT
// Real discards of a cache's pages: hits are right, misses have the right reason, totals are exact.

import CPurgeable
import Glibc
import PurgeableTestSupport
import Testing

@testable import Purgeable

@Suite("PurgeableCache, with real discards")
struct CacheDiscardTests {
  private func filled(_ count: Int, tracksKeys: Bool = false, size: (Int) -> Int = { 20 + $0 % 300 }) throws
    -> PurgeableCache<UInt32, [UInt8]>
  {
    let cache = try PurgeableCache<UInt32, [UInt8]>(tracksKeys: tracksKeys)
    for i in 0..<count { cache.setValue(described(UInt32(i), version: 1, count: size(i)), forKey: UInt32(i)) }
    return cache
  }

  @Test("after all was taken, every look-up misses as discarded, and totals are zero", arguments: [false, true])
  func everything(tracksKeys: Bool) throws {
    try needRealDiscards()
    let cache = try filled(5000, tracksKeys: tracksKeys)
    cache.discardAll()
    #expect(cache.count == 5000)
    // Of a lost entry only its key's tag is known: a look-up drops all lost entries of its tag. A look-up of the other key with
    // that tag is then told the reason from the ghost, which is small here.
    let keys = cache.engine.base.elements.keys
    let tags = Set(
      (0..<UInt32(5000)).map { key in unsafe withUnsafeBytes(of: key) { unsafe keys.key(prefix: $0.bytes).identity } })
    let twins = tracksKeys ? 0 : 5000 - tags.count
    var reasons: [MissReason?: Int] = [:]
    for i in 0..<5000 { reasons[MissReason.of(cache.lookUpValue(forKey: UInt32(i))), default: 0] += 1 }
    let told = reasons[.discarded, default: 0]
    #expect(told + reasons[.unknown, default: 0] == 5000)
    #expect(told >= 5000 - twins)
    #expect(cache.count == 0)
    #expect(cache.totalCost == 0)
    cache.checkBooksSwept()
    let numbers = cache.statistics
    #expect(numbers.missesByReason[.discarded] == Int(told))
    #expect(numbers.missCount == 5000)
    #expect(numbers.departures[.discarded] == 5000)
    #expect(numbers.memory.payloadBytes == 0)
  }

  @Test("a sweep finds everything that was taken, without a look-up", arguments: [false, true])
  func sweeping(tracksKeys: Bool) throws {
    try needRealDiscards()
    let cache = try filled(5000, tracksKeys: tracksKeys)
    #expect(cache.sweep() == 0)
    cache.discardAll()
    #expect(cache.sweep() == 5000)
    #expect(cache.isEmpty)
    #expect(cache.totalCost == 0)
    cache.checkBooksSwept()
    // The ghost remembers as many as it has room for.
    let remembered = (0..<5000).count { MissReason.of(cache.lookUpValue(forKey: UInt32($0))) == .discarded }
    #expect(remembered > 0)
    #expect(cache.sweep() == 0)
  }

  @Test("what `containsValue` finds lost counts no more, and whoever is told of departures is told later, of each once")
  func contained() throws {
    try needRealDiscards()
    let departures = Departures<UInt32, [UInt8]>()
    let cache = try PurgeableCache<UInt32, [UInt8]> { departures.note($0) }
    for key in 0..<UInt32(2000) { cache.setValue(described(key, version: 1, count: 100), forKey: key) }
    cache.discardAll()
    #expect(cache.count == 2000)
    for key in 0..<UInt32(2000) { #expect(!cache.containsValue(forKey: key)) }
    #expect(cache.count == 0 && cache.totalCost == 0)
    #expect(departures.all.isEmpty)
    cache.checkBooks()
    #expect(cache.sweep() == 2000)
    #expect(Set(departures.all.map(\.key)) == Set(0..<2000) && departures.all.count == 2000)
    cache.checkBooksSwept()
  }

  @Test("with some pages taken, hits are right to the byte and the rest is told as discarded", arguments: [false, true])
  func some(tracksKeys: Bool) throws {
    try needRealDiscards()
    let count = TestRun.isFull ? 20_000 : 6000
    let cache = try filled(count, tracksKeys: tracksKeys)
    cache.discardEveryThirdPage()
    var hits = 0
    var lost = 0
    for i in 0..<UInt32(count) {
      switch cache.lookUpValue(forKey: i) {
      case .hit(let bytes):
        #expect(bytes == described(i, version: 1, count: 20 + Int(i) % 300))
        hits += 1
      case .miss(let reason):
        // A loss that a sweep of the library's thread found first is remembered by the ghost only, which is small when memory is
        // short.
        #expect(reason == .discarded || reason == .unknown)
        lost += 1
      }
    }
    #expect(hits > count / 4 && lost > count / 10, "\(hits) hits, \(lost) lost")
    #expect(cache.count == hits)
    cache.checkBooksSwept()
    #expect(cache.count == hits)
    #expect(cache.totalCost == (0..<UInt32(count)).reduce(0) { $0 + (cache.containsValue(forKey: $1) ? 20 + $1 % 300 : 0) })
  }

  @Test("any page of a larger value decides", arguments: [5000, 20_000, 60_000, 200_000, 1_000_000], [false, true])
  func largeOnes(count: Int, tracksKeys: Bool) throws {
    try needRealDiscards()
    let cache = try PurgeableCache<String, [UInt8]>(tracksKeys: tracksKeys)
    let value = pattern(count)
    for page in [0, count / pageSize / 2, (count - 1) / pageSize] {
      for (round, look) in ["get", "read", "withBytes", "contains", "peek", "set", "remove", "sweep"].enumerated() {
        cache.setValue(value, forKey: "the one", cost: round)
        let range = try #require(cache.valueRange("the one"))
        cache.sealAll()
        cache.offerIdle()
        // Discarded without the library, exactly one page.
        range.advise(adviceDontneed, page: page, pageCount: 1)
        var buffer = [UInt8](repeating: 0, count: count)
        switch look {
        case "get": #expect(cache.value(forKey: "the one") == nil)
        case "read":
          let found = unsafe buffer.withUnsafeMutableBytes { unsafe cache.read(forKey: "the one", into: $0) }
          #expect(found == .miss(.discarded))
        case "withBytes": #expect(cache.withBytes(forKey: "the one") { $0.byteCount } == nil)
        case "contains": #expect(!cache.containsValue(forKey: "the one"))
        case "peek": #expect(cache.peekValue(forKey: "the one") == nil)
        case "set":
          cache["the one"] = [1, 2, 3]
          #expect(cache["the one"] == [1, 2, 3])
          cache.remove(forKey: "the one")
        case "sweep": cache.sweep()
        default: cache.remove(forKey: "the one")
        }
        cache.sweep()
        #expect(cache.count == 0, "\(look), page \(page)")
        #expect(cache.totalCost == 0, "\(look), page \(page)")
        #expect(cache["the one"] == nil)
        cache.checkBooksSwept()
      }
    }
  }

  @Test("what was lost can be stored again, and stays", arguments: [false, true], [false, true])
  func reload(tracksKeys: Bool, looksFirst: Bool) throws {
    try needRealDiscards()
    let count = TestRun.isFull ? 3000 : 1500
    let cache = try filled(count, tracksKeys: tracksKeys)
    cache.discardAll()
    for i in 0..<UInt32(count) {
      if looksFirst { #expect(cache.value(forKey: i) == nil) }
      cache.setValue(described(i, version: 2, count: 40), forKey: i)
      #expect(cache.value(forKey: i) == described(i, version: 2, count: 40))
    }
    for i in 0..<UInt32(count) { #expect(cache.value(forKey: i) == described(i, version: 2, count: 40)) }
    #expect(cache.count == count)
    #expect(cache.totalCost == count * 40)
    cache.checkBooksSwept()
    #expect(cache.count == count)
    // A reload after a loss counts as a ghost hit.
    let main = cache.engine.shards.all.reduce(0) { sum, shard in
      sum + cache.engine.shards.hold(shard) { $0.books[.main].count }
    }
    #expect(main > count * 2 / 3, "\(main) of \(count) in main")
  }

  @Test("departures name the keys of what was lost, each once, with its cost and no value")
  func departures() throws {
    try needRealDiscards()
    let told = Departures<StructKey, [UInt8]>()
    let cache = try PurgeableCache<StructKey, [UInt8]> { told.note($0) }
    let keys = (0..<2000).map { StructKey(a: $0, b: "key \($0)") }
    for key in keys { cache.setValue(pattern(100 + key.a % 50), forKey: key, cost: key.a) }
    cache.discardAll()
    for key in keys[..<500] { #expect(cache.value(forKey: key) == nil) }
    #expect(told.all.count == 500)
    #expect(cache.sweep() == 1500)
    #expect(told.all.count == 2000)
    #expect(Set(told.all.map(\.key)) == Set(keys))
    #expect(told.all.allSatisfy { $0.reason == .discarded && $0.value == nil })
    for key in keys { #expect(!cache.containsValue(forKey: key)) }
    #expect(told.all.count == 2000)
    cache.checkBooksSwept()
  }

  @Test("costs that do not fit 64 bits come off the books exactly when their pages are lost")
  func hugeCosts() throws {
    try needRealDiscards()
    let cache = try PurgeableCache<Int, [UInt8]>()
    for i in 0..<100 { cache.setValue([1, 2, 3], forKey: i, cost: .max) }
    cache.setValue([4], forKey: 1000, cost: 5)
    #expect(cache.totalCost == .max)
    cache.discardAll()
    cache.sweep()
    #expect(cache.count == 0)
    #expect(cache.totalCost == 0)
    cache.setValue([4], forKey: 1000, cost: 5)
    #expect(cache.totalCost == 5)
    cache.checkBooks()
  }

  @Test("locked content stays while everything around it is taken, also in a slab that was on offer", arguments: [false, true])
  func locked(wasOnOffer: Bool) throws {
    try needRealDiscards()
    let cache = try filled(3000)
    if wasOnOffer { cache.offerIdle() }
    let seen = cache.withBytes(forKey: 1500) { span in
      for _ in 0..<10 {
        drainBatches()
        cache.discardMost()
      }
      cache.sweep()
      // Away from a slab that is always busy, of which all else was on offer, the entry moves (`relieveReaders`), and the kernel
      // may take the copy.
      if let found = cache.value(forKey: 1500) { #expect(found == span.array) }
      return span.array
    }
    #expect(seen == described(1500, version: 1, count: 20 + 1500 % 300))
    // The slab of the locked value stays off offer meanwhile.
    #expect(cache.count < 500)
    cache.checkBooksSwept()
  }

  @Test("the open slab's early pages may go, its last page stays and is filled on")
  func openSlab() throws {
    try needRealDiscards()
    let cache = try filled(200) { _ in 200 }
    for round in 0..<20 {
      cache.discardOffered()
      for i in 0..<UInt32(20) {
        let key = 10_000 + UInt32(round) * 100 + i
        cache.setValue(described(key, version: 3, count: 200), forKey: key)
        #expect(cache.value(forKey: key) == described(key, version: 3, count: 200))
      }
    }
    for i in 0..<UInt32(12_000) {
      if let bytes = cache.value(forKey: i) { #expect(versionDescribed(in: bytes, key: i) != nil) }
    }
    cache.checkBooksSwept()
  }
}
