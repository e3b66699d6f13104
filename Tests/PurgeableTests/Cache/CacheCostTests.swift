// SPDX-License-Identifier: MIT
// Costs of departures: the costs told and those left add up to the costs stored, whatever the kernel took.

import CPurgeable
import Glibc
import PurgeableTestSupport
import Synchronization
import Testing
import ToolSupport

@testable import Purgeable

@Suite("PurgeableCache, costs of departures")
struct CacheCostTests {
  /// Every departure is told, those that the library itself caused within moments.
  private func compare<Key>(
    _ cache: PurgeableCache<Key, [UInt8]>, _ told: Departures<Key, [UInt8]>, _ stored: (count: Int, cost: UInt128), _ step: String
  ) {
    _ = patiently(seconds: 60) { told.all.count + cache.count == stored.count }
    let all = told.all
    #expect(all.count + cache.count == stored.count, "\(step): \(all.count) told, \(cache.count) left of \(stored.count)")
    let cost = all.reduce(UInt128(0)) { $0 + UInt128($1.cost) }
    let left = cache.engine.base.totalCost
    #expect(cost + left == stored.cost, "\(step): costs told \(cost), left \(left) of \(stored.cost), seed \(chosenSeed)")
  }

  @Test("a store that evicts its own key's old value stays within the limit all the time")
  func replacingTheOldest() throws {
    let holder = Mutex<PurgeableCache<Int, [UInt8]>?>(nil)
    let most = Atomic<Int>(0)
    let told = Atomic<Int>(0)
    let cache = try PurgeableCache<Int, [UInt8]>(costLimit: 100) { _ in
      told.add(1, ordering: .relaxed)
      most.max(holder.withLock { $0 }?.totalCost ?? 0, ordering: .relaxed)
    }
    holder.withLock { $0 = cache }
    cache.setValue([1], forKey: 1, cost: 60)
    cache.setValue([2], forKey: 2, cost: 40)
    // Room for this takes both, and its own key's is the first to go.
    cache.setValue([3], forKey: 1, cost: 90)
    #expect(told.load(ordering: .relaxed) == 2)
    #expect(most.load(ordering: .relaxed) == 90)
    #expect(cache[1] == [3] && cache[2] == nil && cache.totalCost == 90)
    holder.withLock { $0 = nil }
  }

  @Test("costs told and left add up to what was stored, under discards of single pages and of all", .notUnderThreadSanitizer)
  func sums() throws {
    try needRealDiscards()
    var random = SplitMix64(seed: chosenSeed)
    let told = Departures<StructKey, [UInt8]>()
    let cache = try PurgeableCache<StructKey, [UInt8]>(onDeparture: { told.note($0) })
    var stored = (count: 0, cost: UInt128(0))
    let (rounds, stores) = TestRun.isFull ? (8, 3000) : (4, 2000)
    for round in 0..<rounds {
      for _ in 0..<stores {
        let length = random.index(below: 20) == 0 ? random.index(below: 9000) : random.index(below: 400)
        let cost: Int? = random.index(below: 2) == 0 ? random.index(below: 1_000_000) : nil
        let outcome = cache.setValue(
          [UInt8](repeating: 9, count: length), forKey: StructKey(a: random.index(below: 2 * stores), b: ""), cost: cost)
        #expect(outcome == .stored || outcome == .replaced)
        stored.count += 1
        stored.cost += UInt128(cost ?? length)
      }
      if round % 2 == 0 { cache.discardEveryThirdPage() } else { cache.discardMost() }
      // Losses are found one by one by reads and removals, and by a sweep.
      for _ in 0..<stores / 6 { _ = cache.value(forKey: StructKey(a: random.index(below: 2 * stores), b: "")) }
      for _ in 0..<stores / 30 { cache.remove(forKey: StructKey(a: random.index(below: 2 * stores), b: "")) }
      cache.sweep()
      cache.trim(toCount: cache.count * 4 / 5)
      compare(cache, told, stored, "round \(round)")
    }
    let lost = told.all.filter { $0.reason == .discarded }
    #expect(lost.count > rounds * stores / 24 && lost.count { $0.cost > 0 } > rounds * stores / 24)
    cache.removeAll()
    compare(cache, told, stored, "the end")
    cache.checkBooksSwept()
  }

  @Test("the cost of one lost entry is told as it was given")
  func one() throws {
    try needRealDiscards()
    let told = Departures<String, [UInt8]>()
    let cache = try PurgeableCache<String, [UInt8]>(onDeparture: { told.note($0) })
    cache.setValue(pattern(100), forKey: "it", cost: 42)
    for i in 0..<5000 { cache.setValue(pattern(100), forKey: "\(i)", cost: 1) }
    cache.discardAll()
    #expect(MissReason.of(cache.lookUpValue(forKey: "it")) == .discarded)
    _ = patiently(seconds: 60) { told.all.contains { $0.key == "it" } }
    let it = told.all.filter { $0.key == "it" }
    #expect(it.map(\.cost) == [42] && it.map(\.reason) == [.discarded] && it[0].value == nil)
  }
}
