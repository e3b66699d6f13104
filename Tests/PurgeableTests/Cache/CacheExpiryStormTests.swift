// SPDX-License-Identifier: MIT
// Entries whose time is over, by chance: against a model, by threads whose clock moves on, in forked children.

import Glibc
import PurgeableTestSupport
import Synchronization
import Testing
import ToolSupport

@testable import Purgeable

/// A clock that threads move on by seconds, though not while one of them stores: so a store's second is that of its deadline.
private final class SharedTime: Sendable {
  let clock = ManualClock()
  private let second = Atomic<Int>(0)
  /// How many threads are storing; below 0 while the clock is moved on.
  private let storing = Atomic<Int>(0)

  var now: Int { second.load(ordering: .acquiring) }

  func whileItStands(_ body: (_ now: Int) -> Void) {
    while true {
      let count = storing.load(ordering: .relaxed)
      if count >= 0, storing.compareExchange(expected: count, desired: count + 1, ordering: .acquiring).exchanged { break }
      sched_yield()
    }
    body(now)
    storing.subtract(1, ordering: .releasing)
  }

  func moveOn() {
    while !storing.compareExchange(expected: 0, desired: -1, ordering: .acquiring).exchanged { sched_yield() }
    clock.advance(by: .seconds(1))
    second.add(1, ordering: .releasing)
    storing.store(0, ordering: .releasing)
  }
}

@Suite("cache: expiry by chance")
struct CacheExpiryStormTests {
  // MARK: By chance

  @Test(
    "a model says of each value whether it may be returned, over orders, kinds of keys and limits",
    arguments: EvictionOrder.allCases, [false, true])
  func model(order: EvictionOrder, tracksKeys: Bool) throws {
    for (number, limits) in [(count: nil, bytes: nil), (count: 300, bytes: nil), (count: nil, bytes: 1 << 20)].enumerated() {
      var random = SplitMix64(seed: chosenSeed &+ UInt64(number))
      let clock = ManualClock()
      let cache: PurgeableCache<Int, [UInt8]> = try makeExpiringCache(
        clock, order, tracksKeys: tracksKeys, countLimit: limits.count, byteLimit: limits.bytes,
        expiry: .sinceCreation(.seconds(40)))
      let isExact = limits.count == nil && limits.bytes == nil
      var model: [Int: (version: UInt32, idle: Int?, deadline: Int)] = [:]
      var (now, version): (Int, UInt32) = (0, 0)
      for step in 0..<(TestRun.isFull ? 6000 : 1200) / slowness {
        let key = random.index(below: 700)
        switch random.index(below: 20) {
        case 0..<9:
          version += 1
          let seconds = [1, 2, 15, 100, 1000, -1, 0][random.index(below: 7)]
          let isSinceUse = seconds > 0 && random.index(below: 3) == 0
          let count = random.index(below: 40) == 0 ? 30_000 : 20 + random.index(below: 300)
          let expiry: Expiry? =
            seconds < 0
            ? .never : seconds == 0 ? nil : isSinceUse ? .sinceLastUse(.seconds(seconds)) : .sinceCreation(.seconds(seconds))
          let outcome = cache.setValue(described(UInt32(key), version: version, count: count), forKey: key, expiry: expiry)
          #expect(outcome == .stored || outcome == .replaced)
          model[key] = (version, isSinceUse ? seconds : nil, seconds < 0 ? .max : now + (seconds == 0 ? 40 : seconds))
        case 9..<17:
          let value = step % 2 == 0 ? cache[key] : cache.peekValue(forKey: key)
          let living = model[key].flatMap { $0.deadline > now ? $0.version : nil }
          if let value {
            #expect(versionDescribed(in: value, key: UInt32(key)) == living, "seed \(chosenSeed), step \(step)")
            if step % 2 == 0, let idle = model[key]?.idle { model[key]?.deadline = now + idle }
          } else if isExact {
            #expect(living == nil, "seed \(chosenSeed), step \(step)")
          }
        case 17:
          cache.remove(forKey: key)
          model[key] = nil
        case 18:
          now += 1
          clock.advance(by: .seconds(1))
        default:
          let call = random.index(below: 5)
          switch call {
          case 0: cache.removeExpired()
          case 1: _ = cache.engine.dropDueSlabs()
          case 2: cache.moveAll()
          case 3: cache.trim(toFraction: 0.95)
          default: cache.offerIdle()
          }
          if isExact {
            for key in model.keys where !cache.containsValue(forKey: key) {
              // Only a trim takes what lives.
              #expect(call == 3 || model[key]!.deadline <= now, "seed \(chosenSeed), step \(step), call \(call)")
              model[key] = nil
            }
          }
        }
        if step % 200 == 0 { cache.checkBooks() }
      }
      cache.removeExpired()
      let living = model.filter { $0.value.deadline > now }
      if isExact { #expect(cache.count == living.count, "seed \(chosenSeed)") }
      #expect(
        cache.snapshot().allSatisfy { key, value in
          versionDescribed(in: value, key: UInt32(key)) == living[key]?.version
        })
      cache.checkBooksSwept()
    }
  }

  // MARK: Threads and forks

  @Test(
    "threads: stores with all kinds of times, reads, removals, trims: nothing wrong, nothing late",
    arguments: EvictionOrder.allCases, [false, true])
  func threads(order: EvictionOrder, tracksKeys: Bool) throws {
    let time = SharedTime()
    let cache: PurgeableCache<Int, [UInt8]> = try makeExpiringCache(time.clock, order, tracksKeys: tracksKeys, byteLimit: 3 << 20)
    let wrongCount = Atomic<Int>(0)
    let lateCount = Atomic<Int>(0)
    onThreads(4) { thread in
      var random = SplitMix64(seed: chosenSeed &+ UInt64(thread))
      for step in 0..<(isOptimized ? 60_000 : TestRun.isFull ? 8000 : 1200) / slowness {
        let key = random.index(below: 6000)
        switch random.index(below: 16) {
        case 0..<6:
          // The version is the first second in which the value is over.
          let seconds = [1, 3, 40, 500][random.index(below: 4)]
          time.whileItStands { now in
            let value = described(UInt32(key), version: UInt32(now + seconds), count: 20 + key % 700)
            cache.setValue(value, forKey: key, expiry: .sinceCreation(.seconds(seconds)))
          }
        case 6..<13:
          let before = time.now
          guard let bytes = step % 2 == 0 ? cache[key] : cache.withBytes(forKey: key, { $0.array }) else { continue }
          guard let over = versionDescribed(in: bytes, key: UInt32(key)) else {
            wrongCount.add(1, ordering: .relaxed)
            continue
          }
          if before >= Int(over) { lateCount.add(1, ordering: .relaxed) }
        case 13: cache.remove(forKey: key)
        case 14 where thread == 0: time.moveOn()
        case 14: cache.removeExpired()
        default:
          switch step % 40 {
          case 0: cache.trim(toFraction: 0.7)
          case 1: cache.engine.dropDueSlabs()
          case 2: cache.recountBooks()
          case 3: cache.engine.shards.openShards()
          default: cache.offerIdle()
          }
        }
      }
    }
    #expect(wrongCount.load(ordering: .relaxed) == 0 && lateCount.load(ordering: .relaxed) == 0)
    time.clock.advance(by: .seconds(1001))
    cache.removeExpired()
    #expect(cache.isEmpty)
    cache.checkBooksSwept()
  }

  @Test("a forked child begins empty, with lanes of its own", .forks)
  func forking() async {
    await #expect(processExitsWith: .success) {
      let clock = ManualClock()
      var options = CacheOptions()
      options.clock = clock
      let cache = try PurgeableCache<Int, [UInt8]>(options)
      func fill(_ count: Int, _ seconds: Int) {
        for key in 0..<count { cache.setValue(pattern(100), forKey: key, expiry: .sinceCreation(.seconds(seconds << (key % 2)))) }
      }
      fill(20_000, 60)
      let isWell = childSays {
        guard cache.isEmpty, cache.removeExpired() == 0 else { return false }
        fill(2000, 500)
        clock.advance(by: .seconds(500))
        cache.removeExpired()
        return cache.count == 1000 && cache[1] == pattern(100) && cache[2] == nil
      }
      require(isWell, "the child's")
      clock.advance(by: .seconds(60))
      // The library's thread may have dropped some already.
      cache.removeExpired()
      require(cache.count == 10_000 && cache[1] == pattern(100), "the parent's")
    }
  }
}
