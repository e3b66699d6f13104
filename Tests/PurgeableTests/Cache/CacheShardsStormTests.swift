// SPDX-License-Identifier: MIT
// Threads that store, read and remove while shards open and close again and again.

import CPurgeable
import Glibc
import PurgeableTestSupport
import Synchronization
import Testing
import ToolSupport

@testable import Purgeable

/// Counts of errors in a storm.
private final class Findings: Sendable {
  let missing = Atomic<Int>(0)
  let wrong = Atomic<Int>(0)
  let steps = Atomic<Int>(0)
}

private final class Counter: Sendable {
  private let count = Atomic<Int>(0)
  var value: Int { count.load(ordering: .relaxed) }
  func add() { count.add(1, ordering: .relaxed) }
}

/// So many rounds of a storm in the full run, and a tenth of them outside of it, where no race is demanded to happen.
private func stormRounds(_ full: Int, gate: Int) -> Int { (TestRun.isFull ? full : gate) / slowness }

/// Each thread has keys of its own: entries that it stored and did not remove have to be there, with the last value stored.
private func storm(_ cache: PurgeableCache<UInt32, [UInt8]>, rounds: Int, keys: UInt32 = 300, _ findings: Findings) {
  let running = Atomic<Int>(3)
  onThreads(4) { thread in
    if thread == 3 {
      while running.load(ordering: .relaxed) > 0 {
        cache.engine.shards.openShards()
        cache.engine.shards.closeShards()
        findings.steps.add(1, ordering: .relaxed)
      }
      return
    }
    var random = SplitMix64(seed: chosenSeed &+ UInt64(thread))
    var versions: [UInt32: UInt32] = [:]
    for round in 0..<rounds {
      let key = UInt32(random.index(below: Int(keys))) * 3 + UInt32(thread)
      switch random.index(below: 10) {
      case 0..<3:
        let version = UInt32(truncatingIfNeeded: round)
        cache[key] = described(key, version: version, count: random.index(below: 50) == 0 ? 40_000 : 8 + random.index(below: 400))
        versions[key] = version
      case 3:
        let wasThere = cache.remove(forKey: key)
        if wasThere != (versions[key] != nil) { findings.missing.add(1, ordering: .relaxed) }
        versions[key] = nil
      case 4:
        if cache.containsValue(forKey: key) != (versions[key] != nil) { findings.missing.add(1, ordering: .relaxed) }
      case 5:
        let found = cache.withBytes(forKey: key) { versionDescribed(in: [UInt8](copying: $0), key: key) }
        if found != nil, versions[key] == nil || found! != versions[key] { findings.wrong.add(1, ordering: .relaxed) }
        if found == nil, versions[key] != nil { findings.missing.add(1, ordering: .relaxed) }
      default:
        if let bytes = cache[key] {
          if versions[key] == nil || versionDescribed(in: bytes, key: key) != versions[key] {
            findings.wrong.add(1, ordering: .relaxed)
          }
        } else if versions[key] != nil {
          findings.missing.add(1, ordering: .relaxed)
        }
      }
    }
    for (key, version) in versions where versionDescribed(in: cache[key] ?? [], key: key) != version {
      findings.missing.add(1, ordering: .relaxed)
    }
    running.subtract(1, ordering: .relaxed)
  }
}

@Suite("Cache: shards, storms")
struct CacheShardsStormTests {
  @Test("no key that was stored is missed while shards open and close", arguments: [false, true])
  func present(tracksKeys: Bool) throws {
    let cache = try PurgeableCache<UInt32, [UInt8]>(tracksKeys: tracksKeys)
    cache.openEarly()
    let findings = Findings()
    #if DEBUG
      let rounds = stormRounds(500, gate: 150)
    #else
      let rounds = stormRounds(5000, gate: 500)
    #endif
    storm(cache, rounds: rounds, findings)
    let (missing, wrong) = (findings.missing.load(ordering: .relaxed), findings.wrong.load(ordering: .relaxed))
    #expect(missing == 0 && wrong == 0, "\(missing) missing, \(wrong) wrong, seed \(chosenSeed)")
    #expect(!TestRun.isFull || findings.steps.load(ordering: .relaxed) > 5)
    cache.checkBooksSwept()
  }

  #if DEBUG
    /// A cache in whose storms readers pause where it matters.
    private func paused(isOff: Bool) throws -> PurgeableCache<UInt32, [UInt8]> {
      let cache = try PurgeableCache<UInt32, [UInt8]>()
      cache.openEarly()
      cache.engine.shards.sizes.ignoresSteps.store(isOff, ordering: .relaxed)
      cache.engine.shards.sizes.pausesReaders.store(true, ordering: .relaxed)
      return cache
    }

    @Test("with a second look at the mask no key that is there is missed")
    func rule() throws {
      let findings = Findings()
      storm(try paused(isOff: false), rounds: stormRounds(500, gate: 100), keys: 30, findings)
      #expect(findings.missing.load(ordering: .relaxed) == 0 && findings.wrong.load(ordering: .relaxed) == 0)
    }

    @Test("without a second look at the mask keys that are there are missed", .fullRun)
    func withoutTheRule() throws {
      let findings = Findings()
      for _ in 0..<20 where findings.missing.load(ordering: .relaxed) == 0 {
        storm(try paused(isOff: true), rounds: 400, keys: 30, findings)
      }
      #expect(findings.missing.load(ordering: .relaxed) > 0)
      #expect(findings.wrong.load(ordering: .relaxed) == 0)
    }
  #endif

  @Test(
    "with limits that come and go, trims, discards and sweeps no value is wrong, totals stay exact, and each departure is told",
    arguments: [false, true])
  func everything(tracksKeys: Bool) throws {
    let told = Counter()
    let handler: @Sendable (Departure<UInt32, [UInt8]>) -> Void = { if $0.reason != .tooLarge { told.add() } }
    let cache = try PurgeableCache<UInt32, [UInt8]>(onDeparture: tracksKeys ? handler : nil)
    let stores = Counter()
    cache.openEarly()
    let wrong = Atomic<Int>(0)
    let running = Atomic<Int>(3)
    onThreads(4) { thread in
      var random = SplitMix64(seed: chosenSeed &+ 77 &+ UInt64(thread))
      if thread == 3 {
        while running.load(ordering: .relaxed) > 0 {
          switch random.index(below: 12) {
          case 0: try! cache.setCountLimit(50 + random.index(below: 400))
          case 1: try! cache.setCountLimit(nil)
          case 2: try! cache.setCostLimit(10_000 + random.index(below: 200_000))
          case 3: try! cache.setCostLimit(nil)
          case 4: try! cache.setByteLimit(400_000 + random.index(below: 2 << 20))
          case 5: try! cache.setByteLimit(nil)
          case 6: cache.trim(toCount: random.index(below: 500))
          case 7: cache.trim(toFraction: 0.7)
          case 8: cache.discardEveryThirdPage()
          case 9: cache.sweep()
          case 10: cache.engine.shards.openShards()
          default: cache.engine.shards.closeShards()
          }
        }
        return
      }
      for round in 0..<stormRounds(6000, gate: 600) {
        let key = UInt32(random.index(below: 1500))
        switch random.index(below: 10) {
        case 0..<4:
          let count = random.index(below: 60) == 0 ? 50_000 : 8 + random.index(below: 800)
          let cost = random.index(below: 500)
          switch cache.setValue(described(key, version: UInt32(round), count: count), forKey: key, cost: cost) {
          case .stored, .replaced: stores.add()
          default: break
          }
        case 4: cache.remove(forKey: key)
        default:
          if let bytes = cache[key], versionDescribed(in: bytes, key: key) == nil { wrong.add(1, ordering: .relaxed) }
        }
      }
      running.subtract(1, ordering: .relaxed)
    }
    #expect(wrong.load(ordering: .relaxed) == 0, "seed \(chosenSeed)")
    try! cache.setCountLimit(nil)
    try! cache.setCostLimit(nil)
    try! cache.setByteLimit(nil)
    cache.sweep()
    cache.checkBooksSwept()
    cache.removeAll()
    #expect(cache.isEmpty && cache.totalCost == 0, "seed \(chosenSeed)")
    // Departures that the library itself caused are told on a thread of their own.
    let isTold = !tracksKeys || patiently { told.value == stores.value }
    #expect(isTold, "\(told.value) of \(stores.value), seed \(chosenSeed)")
  }

  @Test("a fork at any moment of a step leaves both sides with caches that work", .forks, .fullRun)
  func forks() async {
    await #expect(processExitsWith: .success) {
      let cache = try PurgeableCache<UInt32, [UInt8]>()
      cache.openEarly()
      for key in 0..<UInt32(1500) { cache[key] = described(key, version: 1, count: 200) }
      let isOver = Atomic<Bool>(false)
      let stepping = TestThread {
        while !isOver.load(ordering: .relaxed) {
          cache.engine.shards.openShards()
          cache.engine.shards.closeShards()
        }
      }
      for _ in 0..<40 {
        let isWell = childSays {
          guard cache.value(forKey: 3) == nil else { return false }
          for key in 0..<UInt32(300) { cache[key] = described(key, version: 2, count: 100) }
          cache.engine.shards.openShards()
          for key in 0..<UInt32(300) where cache[key] != described(key, version: 2, count: 100) { return false }
          cache.engine.shards.closeShards()
          for key in 0..<UInt32(300) where cache[key] != described(key, version: 2, count: 100) { return false }
          return cache.count == 300 && cache.totalCost == 30_000
        }
        require(isWell, "the child")
      }
      isOver.store(true, ordering: .relaxed)
      stepping.join()
      for key in 0..<UInt32(1500) { require(cache[key] == described(key, version: 1, count: 200), "the parent") }
      require(cache.count == 1500 && cache.totalCost == 300_000, "the parent's totals")
      cache.checkBooksSwept()
    }
  }
}

extension PurgeableCache {
  /// Holds the values of keys, each removed while it is held, and lets go from the last to the first after `body`.
  fileprivate func removeHeld(_ keys: ArraySlice<Key>, _ body: () -> Void) {
    guard let key = keys.first else { return body() }
    _ = withBytes(forKey: key) { _ in
      remove(forKey: key)
      removeHeld(keys.dropFirst(), body)
    }
    for _ in 0..<10 { sched_yield() }
  }
}

@Suite("Cache: shards, slabs that end meanwhile")
struct CacheShardsUnlockTests {
  @Test("slabs that end by an unlock while shards are left take no others' entries with them")
  func unlocking() throws {
    for trial in 0..<(TestRun.isFull ? isOptimized ? 60 : 20 : 4) {
      let cache = try PurgeableCache<UInt32, [UInt8]>()
      cache.engine.shards.sizes.count.store(1 << 20, ordering: .relaxed)
      cache.engine.shards.sizes.byteCount.store(1 << 40, ordering: .relaxed)
      cache.engine.shards.sizes.entriesPerShard.store(10, ordering: .relaxed)
      // Slabs with many entries, and between them slabs of one.
      let lone = (0..<UInt32(24)).map { 0x1000_0000 + $0 }
      for (number, key) in lone.enumerated() {
        for i in 0..<300 { cache[UInt32(number * 1000 + i)] = pattern(50) }
        cache.sealAll()
        cache[key] = pattern(20_000)
        cache.sealAll()
      }
      let isReady = Atomic<Bool>(false)
      onThreads(2) { thread in
        if thread == 1 {
          while !isReady.load(ordering: .acquiring) { usleep(100) }
          cache.engine.shards.openShards()
          return
        }
        var random = SplitMix64(seed: chosenSeed &+ UInt64(trial))
        let order = trial % 2 == 0 ? random.shuffled(lone.count).map { lone[$0] } : lone
        cache.removeHeld(order[...]) {
          isReady.store(true, ordering: .releasing)
          // From here on the step frees what it left.
          while cache.engine.shards.mask.load(ordering: .acquiring) == 0 {}
        }
      }
      #expect(cache.count == 24 * 300)
      for number in 0..<UInt32(24) {
        for i in 0..<UInt32(300) { #expect(cache.peekValue(forKey: number * 1000 + i)?.count == 50) }
      }
      cache.checkBooksSwept()
      cache.removeAll()
      cache.trim(toBytes: 0)
      #expect(cache.statistics.memory.heldBytes == 0, "trial \(trial)")
      cache.checkBooksSwept()
    }
  }
}
