// SPDX-License-Identifier: MIT
// Reactions of caches to shortage of memory: the steps, their order, their costs, and growth afterwards.

import CPurgeable
import Glibc
import PurgeableTestSupport
import Testing
import ToolSupport

@testable import Purgeable

@Suite("PurgeableCache, reaction to pressure", .notUnderThreadSanitizer)
struct CacheReactionTests {
  /// With the test run's seed: which shares of entries stay depends on where their keys lie.
  private func filled(_ count: Int = 16_000, clock: MonotonicClock = .system) throws -> PurgeableCache<Int, [UInt8]> {
    let cache = try PurgeableCache<Int, [UInt8]>(clock: clock, hashSeed: chosenSeed)
    for key in 0..<count { cache[key] = pattern(300) }
    return cache
  }

  @Test("at no level everything goes on offer, and nothing is lost")
  func none() throws {
    let cache = try filled()
    // Open slabs too. A page that a processor has not handed to the kernel's lists yet goes with a later offer.
    let isAllOnOffer = patiently {
      drainBatches()
      let relief = cache.trimUntimed(level: .normal)
      #expect(relief.givenBackBytes == 0)
      let numbers = cache.statistics
      return numbers.memory.offeredBytes == numbers.memory.heldBytes
    }
    #expect(isAllOnOffer, "to the last page")
    #expect(cache.count == 16_000)
    cache.checkBooksSwept()
  }

  @Test("of a small cache a level takes no more slabs than its part needs")
  func small() throws {
    let clock = SetClock()
    for (count, byteCount, least) in [(2000, 100, 700), (100, 4000, 60), (300, 4000, 200)] {
      let cache = try PurgeableCache<Int, [UInt8]>(clock: clock.monotonic, hashSeed: chosenSeed)
      for key in 0..<count { cache[key] = pattern(byteCount) }
      cache.trimUntimed(level: .critical)
      #expect(cache.count >= least && cache.count < count * 7 / 8, "\(cache.count) of \(count)")
      cache.checkBooksSwept()
    }
  }

  @Test("a cache of one slab gives it when calls have come to a quarter of it", arguments: EvictionOrder.allCases)
  func smallest(order: EvictionOrder) throws {
    var options = CacheOptions()
    options.evictionOrder = order
    func filled() throws -> PurgeableCache<Int, [UInt8]> {
      let cache = try PurgeableCache<Int, [UInt8]>(options)
      for key in 0..<20 { cache[key] = pattern(1000) }
      return cache
    }
    let cache = try filled()
    for level in [PressureLevel.warning, .normal, .warning, .warning] {
      cache.trimUntimed(level: level)
      #expect(cache.count == 20 && cache.value(forKey: 7) == pattern(1000))
    }
    let other = try filled()
    other.trimUntimed(level: .critical)
    #expect(other.count == 0)
    _ = cache.trimUntimed(level: .warning)
    #expect(cache.count < 20)
    cache.checkBooksSwept()
  }

  @Test("some gives back a sixteenth, critical a quarter, in slabs that are gone from the process")
  func shares() throws {
    for (level, share) in [(PressureLevel.warning, 16), (.critical, 4)] {
      let cache = try filled()
      cache.offerIdle()
      let before = cache.statistics
      let relief = cache.trimUntimed(level: level)
      let after = cache.statistics
      let slack = 4 * cache.engine.heap.slabBytes * cache.engine.shards.all.count
      #expect(abs(before.memory.heldBytes - after.memory.heldBytes - before.memory.heldBytes / share) < slack, "\(level)")
      #expect(relief.givenBackBytes > before.memory.heldBytes / share / 2)
      #expect(after.memory.residentBytes! <= after.memory.heldBytes)
      #expect(before.memory.residentBytes! - after.memory.residentBytes! > before.memory.heldBytes / share / 2)
      #expect(after.memory.givenBackBytes - before.memory.givenBackBytes >= before.memory.heldBytes / share / 2)
      #expect(after.departures[.trimmed, default: 0] > 0)
      // The level was asked for by the program, not felt.
      #expect(after.pressure == .normal)
      for key in 0..<16_000 {
        if let value = cache.value(forKey: key) { #expect(value == pattern(300)) }
      }
      cache.checkBooksSwept()
    }
  }

  @Test("what is used stays, what is not goes first")
  func order() throws {
    let cache = try filled()
    let hot = (0..<1600).map { $0 * 10 }
    for _ in 0..<3 { for key in hot { #expect(cache.value(forKey: key) != nil) } }
    for _ in 0..<4 { cache.trimUntimed(level: .critical) }
    let kept = hot.count { cache.containsValue(forKey: $0) }
    let cold = (0..<16_000).count { $0 % 10 != 0 && cache.containsValue(forKey: $0) }
    #expect(kept > hot.count * 95 / 100, "\(kept) of \(hot.count) hot ones, \(cold) cold ones")
    #expect(cold < 14_400 / 2)
  }

  @Test("of what was read for long, what was read last stays: counters tell it, since reads age them where nothing is evicted")
  func orderAfterManyReads() throws {
    let count = TestRun.isFull ? 48_000 : 6000
    let cache = try filled(count)
    // All entries, until their counters are at the maximum; then a tenth of them, as often as it takes to go over all counters
    // twice.
    for _ in 0..<3 { for key in 0..<count { #expect(cache.value(forKey: key) != nil) } }
    for _ in 0..<120 { for key in 0..<count / 10 { _ = cache.value(forKey: key * 10) } }
    for _ in 0..<4 { cache.trimUntimed(level: .critical) }
    let kept = (0..<count / 10).count { cache.containsValue(forKey: $0 * 10) }
    let others = cache.count - kept
    #expect(kept > count / 10 * 95 / 100, "\(kept) of \(count / 10), and \(others) others")
    #expect(others < count / 2)
    cache.checkBooksSwept()
  }

  @Test("where a limit evicts, reads age nothing")
  func noAgingBesideLimits() throws {
    let cache = try PurgeableCache<Int, [UInt8]>(countLimit: 1000)
    for key in 0..<1001 { cache[key] = pattern(300) }
    let index = cache.engine.shards.all[0].index
    let slots = try #require(index.current().slots)
    func counters() -> Int {
      (0..<index.current().slotCount).reduce(0) { $0 + Int(Slot(bits: slots[$1].relaxed).counter) }
    }
    let hits = index.current().slotCount * 4
    for _ in 0..<hits / 1000 { for key in 1..<1001 { _ = cache.value(forKey: key) } }
    let before = counters()
    #expect(before == 3000)
    // Nothing was evicted for four reads a slot, so reads age counters from here on: 64 hits halve the counters of 16 slots, some
    // of which are in use.
    for _ in 0..<4 { for key in 1..<501 { _ = cache.value(forKey: key) } }
    #expect(counters() < before)
    // An eviction ends the ageing by reads.
    cache[5000] = pattern(300)
    for key in 1..<1001 { for _ in 0..<3 { _ = cache.value(forKey: key) } }
    #expect(counters() > 2990)
  }

  @Test("lost pages are dropped before anything is evicted")
  func lostFirst() throws {
    try needRealDiscards()
    let cache = try filled()
    cache.discardAll()
    let relief = cache.trimUntimed(level: .warning)
    #expect(relief.lostEntryCount == 16_000)
    #expect(cache.statistics.departures[.pressure, default: 0] == 0)
    #expect(cache.isEmpty)
    #expect(cache.statistics.memory.heldBytes == 0)
  }

  @Test("a reaction gives slices for as long as memory is short, of all caches in turn, and no longer")
  func slices() throws {
    let caches = try [filled(), filled(), filled(4000)]
    let before = caches.map { $0.statistics.memory.heldBytes }
    var asked = 0
    PressureReaction.run(caches.map(\.engine), .warning, timeLimit: .max) { _ in
      asked += 1
      return asked <= 3
    }
    for (cache, held) in zip(caches, before) {
      let given = held - cache.statistics.memory.heldBytes
      #expect(given > held / 8 && given < held / 3, "\(given) of \(held)")
      #expect(cache.statistics.pressure == .warning)
    }
    PressureReaction.run(caches.map(\.engine), .normal) { _ in true }
    #expect(caches.allSatisfy { $0.statistics.pressure == .normal })
    // Memory is not short: only steps 1 and 2 are done.
    let counts = caches.map(\.count)
    PressureReaction.run(caches.map(\.engine), .warning) { _ in false }
    #expect(caches.map(\.count) == counts)
  }

  @Test("a reaction whose time is over gives no more slices, whatever is short")
  func bounded() throws {
    let cache = try filled()
    let relief = PressureReaction.run([cache.engine], .critical, timeLimit: 0) { _ in true }
    #expect(relief.offeredBytes > 0 && cache.count == 16_000)
    // Over when it is asked for the first slice.
    let begin = MonotonicTime.now
    var asked = 0
    PressureReaction.run([cache.engine], .warning, timeLimit: 50_000_000) { _ in
      while MonotonicTime.now < begin + 100_000_000 { usleep(1000) }
      asked += 1
      return true
    }
    #expect(asked <= 1)
    cache.checkBooksSwept()
  }

  @Test("one reaction ends in time whatever is short", .fullRun)
  func endsInTime() throws {
    let cache = try filled(60_000 / slowness)
    let relief = PressureReaction.run([cache.engine], .critical) { _ in true }
    #expect(relief.time < .seconds(20))
    cache.checkBooksSwept()
  }

  @Test("a reaction that need not give anything back does not slow growth down, however much the kernel took meanwhile")
  func noGrowthLimit() throws {
    let cache = try filled()
    for _ in 0..<3 {
      PressureReaction.run([cache.engine], .warning) { _ in false }
      #expect(cache.engine.base.growthLimit == .max)
    }
    cache.trimUntimed(level: .warning)
    #expect(cache.engine.base.growthLimit < .max)
  }

  @Test("several reactions in a row do not make growth slower than the first")
  func growthRate() throws {
    let clock = SetClock()
    let cache = try filled(40_000, clock: clock.monotonic)
    let before = cache.byteCount
    for _ in 0..<6 { cache.trimUntimed(level: .critical) }
    #expect(cache.byteCount < before / 2)
    let base = cache.engine.base.growthLimit
    clock.advance(seconds: 8)
    // After eight seconds at a sixteenth a second: half of what was held.
    let grown = cache.engine.base.growthLimit - base
    #expect(abs(grown - before / 2) < before / 16, "\(grown) of \(before)")
  }

  @Test("where the reaction knows how much there is room for, growth begins there")
  func learntGrowth() throws {
    let clock = SetClock()
    let cache = try filled(40_000, clock: clock.monotonic)
    let base = cache.engine.base
    let before = base.chargedBytes
    var slices = 0
    PressureReaction.run(
      [cache.engine], .warning, timeLimit: .max,
      isShort: { _ in
        slices += 1
        return slices <= 4
      }, growth: { _ in 1.125 })
    let held = base.chargedBytes
    #expect(
      held < before / 5 * 4 && base.growthLimit == held / 8 * 9 + held % 8 * 9 / 8, "\(base.growthLimit), \(held), \(before)")
    clock.advance(seconds: 1)
    #expect(base.growthLimit == held / 8 * 9 + held % 8 * 9 / 8, "a pause")
    clock.advance(seconds: 0.5)
    #expect(base.growthLimit > held / 8 * 9 + before / 40)
  }

  @Test("growth afterwards is slow, yields to what has no other room, and ends")
  func growth() throws {
    // The test's clock stands still, however long the calls take.
    let clock = SetClock()
    let cache = try filled(clock: clock.monotonic)
    cache.trimUntimed(level: .critical)
    let held = cache.byteCount
    #expect(cache.engine.base.growthLimit == max(held, SlowGrowth.byteFloor))
    for key in 100_000..<116_000 { cache[key] = pattern(300) }
    // The minute has not passed: the cache holds little more, and has evicted by policy instead.
    #expect(cache.byteCount < held + held / 2)
    #expect(cache.value(forKey: 115_999) == pattern(300))
    #expect(cache.statistics.departures[.growth, default: 0] > 0)
    // A value larger than the limit of slow growth is stored all the same.
    cache[-1] = pattern(2 * held)
    #expect(cache.value(forKey: -1)?.count == 2 * held)
    // A minute later there is no limit.
    clock.advance(seconds: 60)
    #expect(cache.engine.base.growthLimit == .max)
    for key in 200_000..<216_000 { cache[key] = pattern(300) }
    #expect(cache.byteCount > held + held / 2)
    cache.checkBooksSwept()
  }

  @Test("the ghost shrinks and still remembers the youngest")
  func ghost() {
    var ghost = Ghost()
    ghost.reserve(4000)
    let identities = (0..<4000).map { UInt64($0 &* 0x9E37_79B9) << Slot.tagShift }
    for identity in identities { ghost.note(identity, .evicted) }
    let before = ghost.byteCount
    ghost.shrink(toRemember: 1000)
    #expect(ghost.byteCount < before * 2 / 3)
    #expect(ghost.rememberedLimit < 4000)
    let young = identities.suffix(500).count { ghost.reason(of: $0) == .evicted }
    #expect(young > 450, "\(young) of 500")
    ghost.note(identities[0], .removed)
    #expect(ghost.reason(of: identities[0]) == .removed)
    ghost.shrink(toRemember: 0)
    #expect(ghost.byteCount > 0)
  }
}
