// SPDX-License-Identifier: MIT
// How much one eviction does: few copies where all entries are hot, no look at entries that cost nothing, and no pass over the
// index for each lost page.

import PurgeableTestSupport
import Testing

@testable import Purgeable

@Suite("PurgeableCache, bounds of an eviction")
struct CacheBoundsTests {
  @Test("where all entries are hot, a store keeps few of them before it evicts one", arguments: [false, true])
  func hot(byCost: Bool) throws {
    let count = 4000
    let cache = try PurgeableCache<Int, Int>(countLimit: byCost ? nil : count, costLimit: byCost ? 8 * count : nil)
    for key in 0..<count { cache[key] = key }
    for _ in 0..<4 {
      for key in 0..<count { #expect(cache[key] == key) }
    }
    for key in count..<count + 50 {
      let copies = cache.statistics.copyCount
      cache[key] = key
      #expect(cache.statistics.copyCount - copies <= 256)
      #expect(cache.count == count && cache[key] == key)
    }
    cache.checkBooksSwept()
  }

  @Test("an eviction for cost leaves entries without cost, wherever they lie between others")
  func withoutCost() throws {
    let cache = try PurgeableCache<Int, [UInt8]>(costLimit: 100)
    // Pages of entries without cost, pages of both kinds, and large entries.
    func hasCost(_ key: Int) -> Bool { key % 1000 > 900 && key % 3 == 0 }
    for key in 0..<3000 {
      cache.setValue(pattern(key % 700 == 699 ? 100_000 : 40 + key % 300), forKey: key, cost: hasCost(key) ? 1 : 0)
    }
    #expect(cache.totalCost == 99)
    for key in 3000..<3300 {
      cache.setValue(pattern(50), forKey: key, cost: 1)
      #expect(cache.totalCost <= 100)
    }
    for key in 0..<3000 where !hasCost(key) {
      #expect(cache.peekValue(forKey: key) == pattern(key % 700 == 699 ? 100_000 : 40 + key % 300))
    }
    let left = (0..<3300).filter { (hasCost($0) || $0 >= 3000) && cache.containsValue(forKey: $0) }
    #expect(left.count == 100 && left.suffix(10) == Array(3290..<3300))
    cache.checkBooksSwept()
  }

  @Test(
    "stores at a limit count lost entries as gone, whatever part of them the kernel took",
    arguments: [false, true], [100, 5000])
  func lost(byCost: Bool, byteCount: Int) throws {
    let count = (byteCount == 100 ? 20_000 : 1000) / (TestRun.isFull ? 1 : 3)
    let cache = try PurgeableCache<Int, [UInt8]>(countLimit: byCost ? nil : count, costLimit: byCost ? byteCount * count : nil)
    for round in 0..<(TestRun.isFull ? 4 : 2) {
      let first = round * count
      for key in first..<first + count { cache[key] = pattern(byteCount) }
      #expect(cache.count <= count)
      cache.offerIdle()
      cache.discardEveryThirdPage()
      for key in first + count..<first + count + count / 4 {
        #expect(cache.setValue(pattern(byteCount), forKey: key) == .stored)
        #expect(cache.peekValue(forKey: key) == pattern(byteCount))
      }
      cache.checkBooks()
      #expect(cache.count <= count && cache.totalCost == cache.count * byteCount)
      let readable = (0..<first + 2 * count).count { cache.peekValue(forKey: $0) != nil }
      #expect(readable > count / 4)
      cache.sweep()
      #expect(cache.count == readable)
      cache.checkBooksSwept()
    }
  }

  @Test("a trim to nothing leaves nothing, tells of everything, and remembers what went", arguments: [false, true])
  func toNothing(tells: Bool) throws {
    let told = Departures<Int, Int>()
    let tell: @Sendable (Departure<Int, Int>) -> Void = { told.note($0) }
    let cache = try PurgeableCache<Int, Int>(onDeparture: tells ? tell : nil)
    for key in 0..<5000 { cache[key] = key }
    for key in 0..<5000 { #expect(cache[key] == key) }
    cache.trim(toCount: 0)
    #expect(cache.isEmpty && cache.totalCost == 0)
    if tells { #expect(told.all.count == 5000 && told.count(of: .trimmed) == 5000) }
    let remembered = (0..<5000).count { MissReason.of(cache.lookUpValue(forKey: $0)) == .evicted }
    #expect(remembered > 0)
    #expect(cache.statistics.departures[.trimmed] == 5000 && cache.statistics.copyCount == 0)
    cache.checkBooksSwept()
  }
}
