// SPDX-License-Identifier: MIT
// Removing entries: results, what is left, and which of several threads gets the value.

import PurgeableTestSupport
import Synchronization
import Testing
import ToolSupport

@testable import Purgeable

@Suite("PurgeableCache, removals")
struct CacheRemovalTests {
  @Test(
    "the value comes back byte for byte, once, and the entry is gone", arguments: [false, true], [0, 1, 40, 1024, 1025, 300_000])
  func returned(tracksKeys: Bool, count: Int) throws {
    let cache = try PurgeableCache<String, [UInt8]>(tracksKeys: tracksKeys)
    for key in ["a", "b", "é"] { cache.setValue(pattern(count), forKey: key, cost: 3) }
    let before = cache.statistics
    for key in ["a", "é"] {
      #expect(cache.removeValue(forKey: key) == pattern(count))
      #expect(cache.removeValue(forKey: key) == nil)
      #expect(!cache.containsValue(forKey: key))
    }
    #expect(cache.count == 1 && cache.totalCost == 3 && cache.peekValue(forKey: "b") == pattern(count))
    let after = cache.statistics
    #expect(after.departures[.removed] == 2)
    #expect(after.hitCount == before.hitCount && after.missCount == before.missCount, "it is no use of the entry")
    #expect(MissReason.of(cache.lookUpValue(forKey: "a")) == .removed)
    #expect(cache.removeValue(forKey: "never") == nil)
    cache.checkBooksSwept()
  }

  @Test("values of other types come back, and the entry goes also where its bytes are no value")
  func types() throws {
    let numbers = try PurgeableCache<Int, Double>()
    numbers[1] = .pi
    #expect(numbers.removeValue(forKey: 1) == .pi)
    #expect(numbers.isEmpty)
    let texts = try PurgeableCache<[UInt8], String>()
    texts[[1, 2]] = "naïve"
    #expect(texts.removeValue(forKey: [1, 2]) == "naïve")
    #expect(texts.isEmpty)
    let picky = try PurgeableCache<Int, Unreadable>()
    picky[1] = Unreadable()
    #expect(picky.count == 1)
    #expect(picky.removeValue(forKey: 1) == nil)
    #expect(picky.isEmpty)
  }

  /// A type that writes a byte and makes no value of it.
  private struct Unreadable: PurgeableValue {
    init() {}
    init?(purgeableBytes: RawSpan) { nil }
    func withPurgeableBytes<R, E: Error>(_ body: (RawSpan) throws(E) -> R) throws(E) -> R {
      let bytes: [UInt8] = [7]
      return try unsafe body(bytes.span.bytes)
    }
  }

  @Test("what the kernel took does not come back, and counts as discarded", arguments: [false, true])
  func discarded(tracksKeys: Bool) throws {
    try needRealDiscards()
    let cache = try PurgeableCache<Int, [UInt8]>(tracksKeys: tracksKeys)
    let count = 3000
    for key in 0..<count { cache[key] = pattern(100 + key % 900) }
    cache.offerIdle()
    cache.discardEveryThirdPage()
    var (found, lost) = (0, 0)
    for key in 0..<count {
      guard let value = cache.removeValue(forKey: key) else {
        lost += 1
        continue
      }
      if value == pattern(100 + key % 900) { found += 1 }
    }
    #expect(lost > count / 10 && found > count / 10 && lost + found == count, "\(lost) lost, \(found) found")
    #expect(cache.isEmpty)
    let departures = cache.statistics.departures
    #expect(departures[.removed] == found && departures[.discarded] == lost)
    cache.checkBooks()
  }

  @Test("of several threads that remove one entry, one gets the value", arguments: [false, true])
  func once(tracksKeys: Bool) throws {
    let cache = try PurgeableCache<Int, [UInt8]>(tracksKeys: tracksKeys)
    let keys = TestRun.isFull ? 4000 : 1500
    for key in 0..<keys { cache[key] = pattern(key % 3000) }
    let taken = Atomic<Int>(0)
    let wrong = Atomic<Int>(0)
    onThreads(4) { _ in
      for key in 0..<keys {
        guard let value = cache.removeValue(forKey: key) else { continue }
        taken.add(1, ordering: .relaxed)
        if value != pattern(key % 3000) { wrong.add(1, ordering: .relaxed) }
      }
    }
    #expect(taken.load(ordering: .relaxed) == keys && wrong.load(ordering: .relaxed) == 0)
    #expect(cache.isEmpty)
    cache.checkBooksSwept()
  }
}
