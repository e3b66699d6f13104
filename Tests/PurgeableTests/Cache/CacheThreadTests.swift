// SPDX-License-Identifier: MIT
// Many real threads at once: values that describe themselves, versions that never go back, an index that grows under reads.

import CPurgeable
import Glibc
import PurgeableTestSupport
import Synchronization
import Testing
import ToolSupport

@testable import Purgeable

/// A counter, in a class so that an array can hold it.
private final class Version: Sendable {
  let stored = Atomic<UInt32>(0)
}

/// The quick run's part of a storm.
private let stormShare = TestRun.isFull ? 1 : 3

@Suite("PurgeableCache, from many threads", .serialized)
struct CacheThreadTests {
  /// Writers own keys and note a version once its store has returned; readers note it before they read.
  private func storm(_ cache: PurgeableCache<UInt32, [UInt8]>, disturb: @escaping @Sendable (Int) -> Void) -> (
    wrong: Int, hits: Int
  ) {
    let keyCount = 400
    let versions = (0..<keyCount).map { _ in Version() }
    let wrong = Atomic<Int>(0)
    let hits = Atomic<Int>(0)
    let seed = chosenSeed
    onThreads(4) { thread in
      var random = SplitMix64(seed: seed &+ UInt64(thread))
      for round in 0..<15_000 / stormShare / slowness {
        let number = random.index(below: keyCount)
        let key = UInt32(number)
        if number % 4 == thread, random.index(below: 3) == 0 {
          let version = versions[number].stored.load(ordering: .relaxed) + 1
          let count = random.index(below: 20) == 0 ? 9000 : random.index(below: 500)
          cache.setValue(described(key, version: version, count: count), forKey: key)
          versions[number].stored.store(version, ordering: .releasing)
          continue
        }
        if random.index(below: 40) == 0 {
          // A key that no writer owns.
          let shared = UInt32(keyCount + random.index(below: 50))
          if random.index(below: 3) == 0 { cache.remove(forKey: shared) }
          cache.setValue(described(shared, version: UInt32(round), count: 100), forKey: shared)
          continue
        }
        let least = versions[number].stored.load(ordering: .acquiring)
        let found: [UInt8]? =
          switch random.index(below: 4) {
          case 0: cache.withBytes(forKey: key) { $0.array }
          case 1: cache.peekValue(forKey: key)
          default: cache.value(forKey: key)
          }
        if let found {
          hits.add(1, ordering: .relaxed)
          let version = versionDescribed(in: found, key: key)
          if version == nil || version! < least { wrong.add(1, ordering: .relaxed) }
        }
        if thread == 3, round % 50 == 0 { disturb(round) }
      }
    }
    return (wrong.load(ordering: .relaxed), hits.load(ordering: .relaxed))
  }

  @Test("a read that starts after a store returned sees it or a newer one", arguments: [false, true])
  func undisturbed(tracksKeys: Bool) throws {
    let cache = try PurgeableCache<UInt32, [UInt8]>(tracksKeys: tracksKeys)
    let (wrong, hits) = storm(cache) { _ in }
    #expect(wrong == 0, "of \(hits); PURGEABLE_SEED=\(chosenSeed)")
    #expect(hits > 10_000 / stormShare / slowness)
    cache.checkBooksSwept()
  }

  @Test("the same beside discards, trims, sweeps and changing limits: gone or right", arguments: [false, true])
  func disturbed(tracksKeys: Bool) throws {
    let cache = try PurgeableCache<UInt32, [UInt8]>(tracksKeys: tracksKeys)
    let (wrong, hits) = storm(cache) { round in
      switch round / 50 % 9 {
      case 0, 4: cache.discardOffered()
      case 1: cache.sweep()
      case 2: cache.discardMost()
      case 3: cache.trim(toCount: cache.count * 3 / 4)
      case 5: try! cache.setCountLimit(300)
      case 6: cache.trim(toFraction: 0.8)
      case 7: cache.trim(level: .critical)
      default: try! cache.setCountLimit(nil)
      }
    }
    #expect(wrong == 0, "of \(hits); PURGEABLE_SEED=\(chosenSeed)")
    // The number of hits depends on how often a limit of 300 entries is in force meanwhile.
    #expect(hits > 1000 / stormShare / slowness, "\(hits)")
    cache.checkBooksSwept()
  }

  @Test("every value stored departs once, with pages lost and slabs compacted at any moment")
  func departingOnce() throws {
    // How often each value was told, by its number.
    let roundCount = (TestRun.isFull ? 60_000 : 5000) / slowness
    let told = (0..<2 * roundCount).map { _ in Version() }
    let stored = (0..<2).map { _ in Version() }
    let cache = try PurgeableCache<UInt32, [UInt8]>(idleTime: nil) { departure in
      told[Int(departure.cost)].stored.add(1, ordering: .relaxed)
    }
    let isDone = Atomic<Bool>(false)
    let seed = chosenSeed
    onThreads(3) { thread in
      guard thread < 2 else {
        while !isDone.load(ordering: .relaxed) {
          cache.discardMost()
          cache.sweep()
        }
        return
      }
      var random = SplitMix64(seed: seed &+ UInt64(thread))
      let value = pattern(6000)
      for round in 0..<roundCount {
        let number = 2 * round + thread
        let count = random.index(below: 20) == 0 ? 6000 : random.index(below: 500)
        let outcome = cache.setValue(Array(value[..<count]), forKey: UInt32(random.index(below: 300)), cost: number)
        if outcome != .stored && outcome != .replaced { told[number].stored.add(1, ordering: .relaxed) }
      }
      stored[thread].stored.store(UInt32(roundCount), ordering: .releasing)
      if stored.allSatisfy({ $0.stored.load(ordering: .acquiring) > 0 }) { isDone.store(true, ordering: .relaxed) }
    }
    cache.removeAll()
    let wrong = told.indices.filter { told[$0].stored.load(ordering: .relaxed) != 1 }
    #expect(wrong.isEmpty, "\(wrong.count) of \(told.count), PURGEABLE_SEED=\(seed)")
    cache.checkBooksSwept()
  }

  @Test("keys that nobody removes are found at every moment while the index grows and shrinks", arguments: [false, true])
  func growing(tracksKeys: Bool) throws {
    let cache = try PurgeableCache<Int, Int>(tracksKeys: tracksKeys)
    let residents = 500
    for key in 0..<residents { cache[key] = key }
    // Half of the fewest open the shards where keys are not tracked.
    let most = TestRun.isFull ? (tracksKeys ? 60_000 : 500_000) : (tracksKeys ? 24_000 : 96_000)
    let growth = most / slowness / (isOptimized ? 1 : 8)
    if !tracksKeys { cache.openSooner(count: 4096) }
    let done = Atomic<Bool>(false)
    let missing = Atomic<Int>(0)
    let looks = Atomic<Int>(0)
    onThreads(4) { thread in
      if thread == 0 {
        for round in 0..<2 {
          for key in 0..<growth / 2 { cache[1000 + key] = round }
          for key in 0..<growth / 2 { cache.remove(forKey: 1000 + key) }
          cache.sweep()
        }
        done.store(true, ordering: .releasing)
        return
      }
      var random = SplitMix64(seed: UInt64(thread))
      while !done.load(ordering: .acquiring) {
        let key = random.index(below: residents)
        let isThere =
          switch random.index(below: 3) {
          case 0: cache.containsValue(forKey: key)
          case 1: cache.withBytes(forKey: key) { $0.byteCount } == 8
          default: cache.value(forKey: key) == key
          }
        if !isThere { missing.add(1, ordering: .relaxed) }
        looks.add(1, ordering: .relaxed)
      }
    }
    #expect(missing.load(ordering: .relaxed) == 0, "of \(looks.load(ordering: .relaxed))")
    #expect(cache.count == residents)
    for key in 0..<residents { #expect(cache[key] == key) }
    cache.checkBooksSwept()
  }

  @Test("keys that nobody removes are found while the policy and compaction move them about")
  func moving() throws {
    let cache = try PurgeableCache<Int, [UInt8]>()
    let value = pattern(300)
    for key in 0..<300 { cache[key] = value }
    let done = Atomic<Bool>(false)
    let missing = Atomic<Int>(0)
    onThreads(3) { thread in
      if thread == 0 {
        for key in 0..<(TestRun.isFull ? 60_000 : 10_000) / slowness {
          cache[1000 + key] = value
          // Nine of ten are removed again: their slabs become sparse.
          if key >= 50, key % 10 != 0 { cache.remove(forKey: 1000 + key - 50) }
        }
        done.store(true, ordering: .releasing)
        return
      }
      var random = SplitMix64(seed: UInt64(thread))
      while !done.load(ordering: .acquiring) {
        if cache.value(forKey: random.index(below: 300)) != value { missing.add(1, ordering: .relaxed) }
      }
    }
    #expect(missing.load(ordering: .relaxed) == 0)
    #expect(slowness > 1 || cache.statistics.copyCount > 0)
    cache.checkBooksSwept()
  }

  @Test("removeAll beside stores leaves books that are right")
  func removingAll() throws {
    let cache = try PurgeableCache<Int, [UInt8]>(countLimit: 1000)
    onThreads(4) { thread in
      for i in 0..<3000 / slowness {
        cache[thread << 32 | i] = [1, 2, 3]
        if i % 100 == 99 { cache.removeAll() }
      }
    }
    cache.checkBooksSwept()
    cache.removeAll()
    #expect(cache.isEmpty && cache.totalCost == 0)
    #expect(cache.engine.base.totals.ghostBytes.load(ordering: .relaxed) == 0)
  }
}
