// SPDX-License-Identifier: MIT
// Totals stay exact whichever page is lost: random entries and random losses, against a recount after each step.

import CPurgeable
import PurgeableTestSupport
import Testing
import ToolSupport

@testable import Purgeable

/// A cache under test, and the entries that were stored in it.
private final class BooksRun<Key: Hashable & Sendable> {
  var random: SplitMix64
  let cache: PurgeableCache<Key, [UInt8]>
  let key: (Int) -> Key
  let keyCount: Int
  var costs: [Key: Int] = [:]

  init(seed: UInt64, cache: PurgeableCache<Key, [UInt8]>, keyCount: Int, key: @escaping (Int) -> Key) {
    random = SplitMix64(seed: seed)
    self.cache = cache
    self.keyCount = keyCount
    self.key = key
  }

  /// Mostly small lengths, so that pages hold many entries; some entries cross one page or several, and a few are large.
  private func length() -> Int {
    switch random.index(below: 100) {
    case 0..<50: 8 + random.index(below: 200)
    case 50..<75: 8 + random.index(below: 1000)
    case 75..<99: 1000 + random.index(below: 7193)
    default: 30_000 + random.index(below: 100_000)
    }
  }

  func store(_ count: Int) {
    for _ in 0..<count {
      let key = key(random.index(below: keyCount))
      let value = [UInt8](repeating: 1 + UInt8(random.index(below: 255)), count: length())
      let cost: Int? =
        switch random.index(below: 4) {
        case 0: random.index(below: 1000)
        case 1 where random.index(below: 100) == 0: Int.max - random.index(below: 100)
        default: nil
        }
      let outcome = cache.setValue(value, forKey: key, cost: cost)
      if outcome == .tooLarge {
        costs[key] = nil
        continue
      }
      #expect(outcome == .stored || outcome == .replaced)
      costs[key] = cost ?? value.count
    }
  }

  func remove(_ count: Int) {
    for _ in 0..<count { cache.remove(forKey: key(random.index(below: keyCount))) }
  }

  /// Has the kernel take single pages, chosen at random: by one call pages on offer, by a stricter one sealed pages in any state.
  func losePages() {
    cache.sealAll()
    let ranges = cache.slabRanges()
    for _ in 0..<4 { cache.offerIdle() }
    let share = 1 + random.index(below: 8)
    for range in ranges {
      let pageCount = range.byteCount / pageSize
      if random.index(below: 2) == 0 {
        // One page in the middle of the slab.
        range.advise(adviceDontneed, page: random.index(below: pageCount), pageCount: 1)
        continue
      }
      for page in 0..<pageCount where random.index(below: share) == 0 {
        range.advise(random.index(below: 2) == 0 ? advicePageout : adviceDontneed, page: page, pageCount: 1)
      }
    }
  }

  /// Entries that can be read add up to the totals, and the cache has no others.
  func compare(_ step: String) {
    cache.sweep()
    cache.checkBooks()
    var count = 0
    var cost: UInt128 = 0
    for (key, itsCost) in costs {
      if cache.peekValue(forKey: key) == nil { continue }
      count += 1
      cost += UInt128(itsCost)
    }
    #expect(cache.count == count, "\(step): count \(cache.count), readable \(count)")
    #expect(cache.engine.base.totalCost == cost, "\(step): cost \(cache.totalCost), readable \(cost)")
  }

  func run(rounds: Int) {
    for round in 0..<rounds {
      store(keyCount / 3)
      cache.recountBooks()
      losePages()
      cache.recountBooks()
      // Losses are found one by one, by reads, removals and replacements, before any sweep.
      for _ in 0..<keyCount / 8 { _ = cache.value(forKey: key(random.index(below: keyCount))) }
      cache.recountBooks()
      remove(keyCount / 16)
      store(keyCount / 16)
      cache.recountBooks()
      switch random.index(below: 4) {
      case 0: cache.trim(toCount: cache.count * 3 / 4)
      case 1: cache.trim(toFraction: 0.8)
      case 2: cache.trimUntimed(level: .critical)
      default: break
      }
      cache.recountBooks()
      compare("round \(round)")
    }
    cache.removeAll()
    cache.checkBooks()
    #expect(cache.isEmpty && cache.totalCost == 0)
  }
}

@Suite("PurgeableCache, totals after losses")
struct CacheBooksTests {
  private let rounds = (isOptimized ? 12 : 5)
  /// By which keys and limits are divided.
  private let share = TestRun.isFull ? 1 : 3

  private func run<Key: Hashable & Sendable>(
    _ keyCount: Int, tracksKeys: Bool = false, countLimit: Int? = nil, costLimit: Int? = nil, _ key: @escaping (Int) -> Key
  ) throws {
    try needRealDiscards()
    let cache = try PurgeableCache<Key, [UInt8]>(
      countLimit: countLimit.map { $0 / share }, costLimit: costLimit.map { $0 / share }, tracksKeys: tracksKeys)
    let run = BooksRun(seed: chosenSeed, cache: cache, keyCount: keyCount / share, key: key)
    run.run(rounds: rounds)
    print("PURGEABLE_SEED=\(chosenSeed): \(cache.statistics.departures[.discarded, default: 0]) discarded")
    #expect(cache.statistics.departures[.discarded, default: 0] > 0)
  }

  @Test("integer keys", .notUnderThreadSanitizer)
  func integers() throws { try run(6000) { $0 } }

  @Test("short string keys", .notUnderThreadSanitizer)
  func shortStrings() throws { try run(6000) { "k\($0)" } }

  @Test("string keys that cross pages", .notUnderThreadSanitizer)
  func longStrings() throws {
    try run(4000) { number in
      String(repeating: "abcdefgh", count: number % 7 == 0 ? 20 + number % 300 : number % 20) + "\(number)"
    }
  }

  @Test("tracked keys", .notUnderThreadSanitizer)
  func tracked() throws { try run(4000, tracksKeys: true) { StructKey(a: $0, b: "") } }

  @Test("evictions that come upon the same lost entries again and again drop them, few as they are beside the others")
  func passedAgain() throws {
    let limit = 1600
    let cache = try PurgeableCache<Int, [UInt8]>(countLimit: limit, clock: .system, hashSeed: chosenSeed)
    func store(_ keys: Range<Int>) { for key in keys { cache[key] = pattern(240, seed: UInt8(truncatingIfNeeded: key)) } }
    store(0..<2 * limit)
    cache.sealAll()
    for range in cache.founderRanges(of: .probation) {
      for page in stride(from: 0, to: range.byteCount / pageSize, by: 2) {
        range.advise(adviceDontneed, page: page, pageCount: 1)
      }
    }
    store(2 * limit..<3 * limit)
    // A sixteenth of the slots would be dropped at once.
    let lostCount = cache.statistics.departures[.discarded, default: 0]
    #expect(lostCount > 20 && lostCount < limit / 16, "\(lostCount)")
    let slotCount = cache.engine.shards.all.reduce(0) { sum, shard in
      sum + cache.engine.shards.hold(shard) { held in held.slots.count }
    }
    #expect(slotCount == cache.count)
    cache.checkBooks()
  }

  @Test("limits of count and of cost", .notUnderThreadSanitizer)
  func limited() throws {
    try run(6000, countLimit: 1000) { $0 }
    try run(4000, costLimit: 1 << 20) { "key \($0)" }
  }
}
