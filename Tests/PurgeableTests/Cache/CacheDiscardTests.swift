// SPDX-License-Identifier: MIT
// The kernel really takes pages of a cache: hits are right, misses say why, totals are exact.

import CPurgeable
import Glibc
import Testing

@testable import Purgeable

@Suite("PurgeableCache, with real discards")
struct CacheDiscardTests {
  private func filled(_ count: Int, tracksKeys: Bool = false, size: (Int) -> Int = { 20 + $0 % 300 }) throws
    -> PurgeableCache<UInt32, [UInt8]>
  {
    let cache = try PurgeableCache<UInt32, [UInt8]>(tracksKeys: tracksKeys)
    for i in 0..<count { cache.set(described(UInt32(i), version: 1, count: size(i)), forKey: UInt32(i)) }
    return cache
  }

  @Test("after all was taken, every look-up misses as discarded, and totals are zero", arguments: [false, true])
  func everything(tracksKeys: Bool) throws {
    try needRealDiscards()
    let cache = try filled(5000, tracksKeys: tracksKeys)
    cache.discardAll()
    #expect(cache.count == 5000)
    var reasons: [MissReason?: Int] = [:]
    for i in 0..<5000 { reasons[MissReason.of(cache.lookUp(UInt32(i))), default: 0] += 1 }
    #expect(reasons == [.discarded: 5000])
    #expect(cache.count == 0)
    #expect(cache.totalCost == 0)
    cache.checkBooksSwept()
    let numbers = cache.statistics
    #expect(numbers.missesByReason[.discarded] == 5000)
    #expect(numbers.misses == 5000)
    #expect(numbers.departures[.discarded] == 5000)
    #expect(numbers.payloadBytes == 0)
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
    // Remembered by the ghost, where it has room.
    let remembered = (0..<5000).count { MissReason.of(cache.lookUp(UInt32($0))) == .discarded }
    #expect(remembered > 0)
    #expect(cache.sweep() == 0)
  }

  @Test("with some pages taken, hits are right to the byte and the rest is told as discarded", arguments: [false, true])
  func some(tracksKeys: Bool) throws {
    try needRealDiscards()
    let cache = try filled(20_000, tracksKeys: tracksKeys)
    cache.discardEveryThirdPage()
    var hits = 0
    var lost = 0
    for i in 0..<UInt32(20_000) {
      switch cache.lookUp(i) {
      case .hit(let bytes):
        #expect(bytes == described(i, version: 1, count: 20 + Int(i) % 300))
        hits += 1
      case .miss(let reason):
        #expect(reason == .discarded)
        lost += 1
      }
    }
    #expect(hits > 5000 && lost > 2000, "\(hits) hits, \(lost) lost")
    #expect(cache.count == hits)
    cache.checkBooksSwept()
    #expect(cache.count == hits)
    #expect(cache.totalCost == (0..<UInt32(20_000)).reduce(0) { $0 + (cache.contains($1) ? UInt64(20 + $1 % 300) : 0) })
  }

  @Test("any page of a larger value decides", arguments: [5000, 20_000, 60_000, 200_000, 1_000_000], [false, true])
  func largeOnes(count: Int, tracksKeys: Bool) throws {
    try needRealDiscards()
    let cache = try PurgeableCache<String, [UInt8]>(tracksKeys: tracksKeys)
    let value = pattern(count)
    for page in [0, count / pageSize / 2, (count - 1) / pageSize] {
      for (round, look) in ["get", "read", "withBytes", "contains", "peek", "set", "remove", "sweep"].enumerated() {
        cache.set(value, forKey: "the one", cost: UInt64(round))
        let range = try #require(cache.valueRange("the one"))
        for shard in cache.engine.shards {
          for stream in shard.streams { _ = unsafe purgeable_stream_seal(cache.engine.heap.raw, stream) }
        }
        cache.offerIdle()
        // Behind the library's back, for one page exactly.
        range.advise(adviceDontneed, page: page, pageCount: 1)
        var buffer = [UInt8](repeating: 0, count: count)
        switch look {
        case "get": #expect(cache.value(forKey: "the one") == nil)
        case "read":
          let found = unsafe buffer.withUnsafeMutableBytes { unsafe cache.read(forKey: "the one", into: $0) }
          #expect(found == .miss(.discarded))
        case "withBytes": #expect(cache.withBytes(forKey: "the one") { $0.byteCount } == nil)
        case "contains": #expect(!cache.contains("the one"))
        case "peek": #expect(cache.peek("the one") == nil)
        case "set":
          cache["the one"] = [1, 2, 3]
          #expect(cache["the one"] == [1, 2, 3])
          cache.remove("the one")
        case "sweep": cache.sweep()
        default: cache.remove("the one")
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
    let cache = try filled(3000, tracksKeys: tracksKeys)
    cache.discardAll()
    for i in 0..<UInt32(3000) {
      if looksFirst { #expect(cache.value(forKey: i) == nil) }
      cache.set(described(i, version: 2, count: 40), forKey: i)
      #expect(cache.value(forKey: i) == described(i, version: 2, count: 40))
    }
    for i in 0..<UInt32(3000) { #expect(cache.value(forKey: i) == described(i, version: 2, count: 40)) }
    #expect(cache.count == 3000)
    #expect(cache.totalCost == 3000 * 40)
    cache.checkBooksSwept()
    #expect(cache.count == 3000)
    // A reload after a loss counts as a ghost hit.
    let main = cache.engine.shards.reduce(0) { sum, shard in
      sum + cache.engine.withState(shard) { $0.sums[EngineQueue.main.rawValue].count }
    }
    #expect(main > 2000, "\(main) of 3000 in main")
  }

  @Test("departures name the keys of what was lost, each once, with its cost and no value")
  func departures() throws {
    try needRealDiscards()
    let told = Departures<StructKey, [UInt8]>()
    let cache = try PurgeableCache<StructKey, [UInt8]> { told.note($0) }
    let keys = (0..<2000).map { StructKey(a: $0, b: "key \($0)") }
    for key in keys { cache.set(pattern(100 + key.a % 50), forKey: key, cost: UInt64(key.a)) }
    cache.discardAll()
    for key in keys[..<500] { #expect(cache.value(forKey: key) == nil) }
    #expect(told.all.count == 500)
    #expect(cache.sweep() == 1500)
    #expect(told.all.count == 2000)
    #expect(Set(told.all.map(\.key)) == Set(keys))
    #expect(told.all.allSatisfy { $0.reason == .discarded && $0.value == nil })
    for key in keys { #expect(!cache.contains(key)) }
    #expect(told.all.count == 2000)
    cache.checkBooksSwept()
  }

  @Test("costs that do not fit 64 bits come off the books exactly when their pages are lost")
  func hugeCosts() throws {
    try needRealDiscards()
    let cache = try PurgeableCache<Int, [UInt8]>()
    for i in 0..<100 { cache.set([1, 2, 3], forKey: i, cost: .max) }
    cache.set([4], forKey: 1000, cost: 5)
    #expect(cache.totalCost == .max)
    cache.discardAll()
    cache.sweep()
    #expect(cache.count == 0)
    #expect(cache.totalCost == 0)
    cache.set([4], forKey: 1000, cost: 5)
    #expect(cache.totalCost == 5)
    cache.checkBooks()
  }

  @Test("locked content stays while everything around it is taken")
  func locked() throws {
    try needRealDiscards()
    let cache = try filled(3000)
    let seen = cache.withBytes(forKey: 1500) { span in
      cache.discardAll()
      cache.sweep()
      return span.array
    }
    #expect(seen == described(1500, version: 1, count: 20 + 1500 % 300))
    #expect(cache.value(forKey: 1500) == seen)
    // Its slab stays off offer for so long.
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
        cache.set(described(key, version: 3, count: 200), forKey: key)
        #expect(cache.value(forKey: key) == described(key, version: 3, count: 200))
      }
    }
    for i in 0..<UInt32(12_000) {
      if let bytes = cache.value(forKey: i) { #expect(versionDescribed(in: bytes, key: i) != nil) }
    }
    cache.checkBooksSwept()
  }
}
