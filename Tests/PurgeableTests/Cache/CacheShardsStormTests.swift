// SPDX-License-Identifier: MIT
// Threads that store, read and remove while shards open.

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
}

private final class Counter: Sendable {
  private let count = Atomic<Int>(0)
  var value: Int { count.load(ordering: .relaxed) }
  func add() { count.add(1, ordering: .relaxed) }
}

/// So many storms in the full run, and a thirtieth of them outside of it.
private func stormCount(_ full: Int) -> Int { max(1, (TestRun.isFull ? full : full / 30) / slowness) }

/// Each thread has keys of its own: entries that it stored and did not remove have to be there, with the last value stored. The
/// shards open in the middle, beside all of them.
private func storm(
  _ cache: PurgeableCache<UInt32, [UInt8]>, rounds: Int, keys: UInt32 = 100, seed: UInt64, _ findings: Findings
) {
  cache.openEarly(count: .max)
  let done = Atomic<Int>(0)
  onThreads(4) { thread in
    if thread == 3 {
      while done.load(ordering: .relaxed) < rounds { sched_yield() }
      cache.engine.shards.openShards()
      return
    }
    var random = SplitMix64(seed: seed &+ UInt64(thread))
    var versions: [UInt32: UInt32] = [:]
    for round in 0..<rounds {
      done.add(1, ordering: .relaxed)
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
  }
}

/// A value that one thread replaces again and again, beside readers and the opening: no reader may go back.
private func storeBesideReaders(_ cache: PurgeableCache<UInt32, [UInt8]>, _ findings: Findings) {
  let rounds = 2000
  cache.openEarly(count: .max)
  let stored = Atomic<Int>(0)
  cache[1] = described(1, version: 0, count: 100)
  onThreads(3) { thread in
    switch thread {
    case 0:
      for version in 1...rounds {
        cache[1] = described(1, version: UInt32(version), count: 100)
        stored.store(version, ordering: .releasing)
        if version == rounds / 2 { cache.engine.shards.openShards() }
      }
    default:
      while true {
        let before = stored.load(ordering: .acquiring)
        let version = cache[1].flatMap { versionDescribed(in: $0, key: 1) }.map(Int.init)
        if version == nil { findings.missing.add(1, ordering: .relaxed) }
        if let version, version < before { findings.wrong.add(1, ordering: .relaxed) }
        if before == rounds { return }
      }
    }
  }
}

@Suite("Cache: shards, storms")
struct CacheShardsStormTests {
  @Test("no key that was stored is missed while shards open", arguments: [false, true])
  func present(tracksKeys: Bool) throws {
    let findings = Findings()
    for number in 0..<stormCount(200) {
      let cache = try PurgeableCache<UInt32, [UInt8]>(tracksKeys: tracksKeys)
      storm(cache, rounds: 500, seed: chosenSeed &+ UInt64(number) << 8, findings)
      cache.checkBooksSwept()
    }
    let (missing, wrong) = (findings.missing.load(ordering: .relaxed), findings.wrong.load(ordering: .relaxed))
    #expect(missing == 0 && wrong == 0, "\(missing) missing, \(wrong) wrong, seed \(chosenSeed)")
  }

  @Test("a reader that knows of a store never finds an older value, and always one", arguments: [false, true])
  func forward(tracksKeys: Bool) throws {
    let findings = Findings()
    for _ in 0..<stormCount(200) {
      storeBesideReaders(try PurgeableCache<UInt32, [UInt8]>(tracksKeys: tracksKeys), findings)
    }
    let (missing, wrong) = (findings.missing.load(ordering: .relaxed), findings.wrong.load(ordering: .relaxed))
    #expect(missing == 0 && wrong == 0, "\(missing) missing, \(wrong) wrong")
  }

  @Test(
    "with limits that come and go, trims, discards and sweeps no value is wrong, totals stay exact, and each departure is told",
    arguments: [false, true])
  func everything(tracksKeys: Bool) throws {
    for number in 0..<stormCount(20) { try everything(tracksKeys: tracksKeys, seed: chosenSeed &+ UInt64(number) << 8) }
  }

  private func everything(tracksKeys: Bool, seed: UInt64) throws {
    let told = Counter()
    let handler: @Sendable (Departure<UInt32, [UInt8]>) -> Void = { if $0.reason != .tooLarge { told.add() } }
    let cache = try PurgeableCache<UInt32, [UInt8]>(onDeparture: tracksKeys ? handler : nil)
    let stores = Counter()
    cache.openEarly()
    let wrong = Atomic<Int>(0)
    let running = Atomic<Int>(3)
    onThreads(4) { thread in
      var random = SplitMix64(seed: seed &+ 77 &+ UInt64(thread))
      if thread == 3 {
        while running.load(ordering: .relaxed) > 0 {
          switch random.index(below: 11) {
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
          default: cache.engine.shards.openShards()
          }
        }
        return
      }
      for round in 0..<600 {
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
    #expect(wrong.load(ordering: .relaxed) == 0, "seed \(seed)")
    try! cache.setCountLimit(nil)
    try! cache.setCostLimit(nil)
    try! cache.setByteLimit(nil)
    cache.sweep()
    cache.checkBooksSwept()
    cache.removeAll()
    #expect(cache.isEmpty && cache.totalCost == 0, "seed \(seed)")
    // Departures that the library itself caused are told on a thread of their own.
    let isTold = !tracksKeys || patiently { told.value == stores.value }
    #expect(isTold, "\(told.value) of \(stores.value), seed \(seed)")
  }

  @Test("a fork at any moment of an opening leaves both sides with caches that work", .forks, .fullRun)
  func forks() async {
    await #expect(processExitsWith: .success) {
      for _ in 0..<20 {
        let cache = try PurgeableCache<UInt32, [UInt8]>()
        cache.openEarly(count: .max)
        for key in 0..<UInt32(1500) { cache[key] = described(key, version: 1, count: 200) }
        let hasBegun = Atomic<Bool>(false)
        let moving = TestThread {
          hasBegun.store(true, ordering: .releasing)
          cache.engine.shards.openShards()
          for key in 0..<UInt32(1500) { cache[key] = described(key, version: 2, count: 200) }
        }
        while !hasBegun.load(ordering: .acquiring) { sched_yield() }
        for _ in 0..<4 {
          let isWell = childSays {
            guard cache.value(forKey: 3) == nil else { return false }
            for key in 0..<UInt32(300) { cache[key] = described(key, version: 3, count: 100) }
            cache.engine.shards.openShards()
            for key in 0..<UInt32(300) where cache[key] != described(key, version: 3, count: 100) { return false }
            return cache.count == 300 && cache.totalCost == 30_000
          }
          require(isWell, "the child")
        }
        moving.join()
        for key in 0..<UInt32(1500) { require(cache[key] == described(key, version: 2, count: 200), "the parent") }
        require(cache.count == 1500 && cache.totalCost == 300_000, "the parent's totals")
        cache.checkBooksSwept()
      }
    }
  }
}
