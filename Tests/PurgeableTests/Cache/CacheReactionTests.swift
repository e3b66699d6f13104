// SPDX-License-Identifier: MIT
// What caches do when memory is short: the steps, their order, what they cost at most, and growth afterwards.

import CPurgeable
import Glibc
import Testing

@testable import Purgeable

@Suite("PurgeableCache, reaction to pressure", .notUnderThreadSanitizer)
struct CacheReactionTests {
  private func filled(_ count: Int = 16_000) throws -> PurgeableCache<Int, [UInt8]> {
    let cache = try PurgeableCache<Int, [UInt8]>()
    for key in 0..<count { cache[key] = pattern(300) }
    return cache
  }

  @Test("at no level everything goes on offer, and nothing is lost")
  func none() throws {
    let cache = try filled()
    let relief = cache.trim(level: .none)
    let numbers = cache.statistics
    #expect(cache.count == 16_000)
    #expect(relief.givenBackByteCount == 0)
    // Open slabs too, to the last page.
    #expect(numbers.offeredBytes == numbers.heldBytes)
    cache.checkBooksSwept()
  }

  @Test("some gives back a sixteenth, critical a quarter, in slabs that are gone from the process")
  func shares() throws {
    for (level, share) in [(PressureLevel.some, 16), (.critical, 4)] {
      let cache = try filled()
      cache.offerIdle()
      let before = cache.statistics
      let relief = cache.trim(level: level)
      let after = cache.statistics
      let slack = 4 * cache.engine.slabBytes * cache.engine.shards.count
      #expect(abs(before.heldBytes - after.heldBytes - before.heldBytes / share) < slack, "\(level)")
      #expect(relief.givenBackByteCount > before.heldBytes / share / 2)
      #expect(after.residentBytes <= after.heldBytes)
      #expect(before.residentBytes - after.residentBytes > before.heldBytes / share / 2)
      #expect(after.memory.givenBack - before.memory.givenBack >= UInt64(before.heldBytes / share / 2))
      #expect(after.departures[.pressure, default: 0] > 0)
      // Asked for, not felt.
      #expect(after.pressure == .none)
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
    for _ in 0..<4 { cache.trim(level: .critical) }
    let kept = hot.count { cache.contains($0) }
    let cold = (0..<16_000).count { $0 % 10 != 0 && cache.contains($0) }
    #expect(kept > hot.count * 95 / 100, "\(kept) of \(hot.count) hot ones, \(cold) cold ones")
    #expect(cold < 14_400 / 2)
  }

  @Test("of what was read for long, what was read last stays: counters tell it, since reads age them where nothing is evicted")
  func orderAfterManyReads() throws {
    let count = 48_000
    let cache = try filled(count)
    // All of them, until their counters are as high as they go; then a tenth, as often as it takes to go over all counters twice.
    for _ in 0..<3 { for key in 0..<count { #expect(cache.value(forKey: key) != nil) } }
    for _ in 0..<120 { for key in 0..<count / 10 { _ = cache.value(forKey: key * 10) } }
    for _ in 0..<4 { cache.trim(level: .critical) }
    let kept = (0..<count / 10).count { cache.contains($0 * 10) }
    let others = cache.count - kept
    #expect(kept > count / 10 * 95 / 100, "\(kept) of \(count / 10), and \(others) others")
    #expect(others < count / 2)
    cache.checkBooksSwept()
  }

  @Test("where a limit evicts, reads age nothing")
  func noAgingBesideLimits() throws {
    let cache = try PurgeableCache<Int, [UInt8]>(countLimit: 1000)
    for key in 0..<1001 { cache[key] = pattern(300) }
    let index = cache.engine.shards[0].index
    let slots = try #require(index.current().slots)
    func counters() -> Int {
      (0..<index.current().slotCount).reduce(0) { $0 + Int(Slot(bits: slots[$1].relaxed).counter) }
    }
    let hits = index.current().slotCount * 4
    for _ in 0..<hits / 1000 { for key in 1..<1001 { _ = cache.value(forKey: key) } }
    let before = counters()
    #expect(before == 3000)
    // Nothing was evicted for four reads a slot: from here on they do, and 64 hits halve 16 slots, which hold some entries.
    for _ in 0..<4 { for key in 1..<501 { _ = cache.value(forKey: key) } }
    #expect(counters() < before)
    // An eviction ends that.
    cache[5000] = pattern(300)
    for key in 1..<1001 { for _ in 0..<3 { _ = cache.value(forKey: key) } }
    #expect(counters() > 2990)
  }

  @Test("lost pages are dropped before anything is evicted")
  func lostFirst() throws {
    try needRealDiscards()
    let cache = try filled()
    cache.discardAll()
    let relief = cache.trim(level: .some)
    #expect(relief.lostEntryCount == 16_000)
    #expect(cache.statistics.departures[.pressure, default: 0] == 0)
    #expect(cache.isEmpty)
    #expect(cache.statistics.heldBytes == 0)
  }

  @Test("a reaction gives slices for as long as memory is short, of all caches in turn, and no longer")
  func slices() throws {
    let caches = try [filled(), filled(), filled(4000)]
    let before = caches.map { $0.statistics.heldBytes }
    var asked = 0
    PressureReaction.run(caches.map(\.engine), .some, timeLimit: .max) { _ in
      asked += 1
      return asked <= 3
    }
    for (cache, held) in zip(caches, before) {
      let given = held - cache.statistics.heldBytes
      #expect(given > held / 8 && given < held / 3, "\(given) of \(held)")
      #expect(cache.statistics.pressure == .some)
    }
    PressureReaction.run(caches.map(\.engine), .none) { _ in true }
    #expect(caches.allSatisfy { $0.statistics.pressure == .none })
    // Not short: nothing but step 1 and 2.
    let counts = caches.map(\.count)
    PressureReaction.run(caches.map(\.engine), .some) { _ in false }
    #expect(caches.map(\.count) == counts)
  }

  @Test("one reaction ends in time whatever is short")
  func bounded() throws {
    let cache = try filled(60_000 / slowness)
    let relief = PressureReaction.run([cache.engine], .critical) { _ in true }
    // A slice begun is finished.
    #expect(relief.time < .seconds(20))
    cache.checkBooksSwept()
  }

  @Test("a reaction that need not give anything back does not slow growth down, however much the kernel took meanwhile")
  func noGrowthLimit() throws {
    let cache = try filled()
    for _ in 0..<3 {
      PressureReaction.run([cache.engine], .some) { _ in false }
      #expect(cache.engine.growthLimit == .max)
    }
    cache.trim(level: .some)
    #expect(cache.engine.growthLimit < .max)
  }

  @Test("several reactions in a row do not make growth slower than the first")
  func growthRate() throws {
    let cache = try filled(40_000)
    let before = cache.byteCount
    for _ in 0..<6 { cache.trim(level: .critical) }
    #expect(cache.byteCount < before / 2)
    let base = cache.engine.growthLimit
    cache.engine.growthBegin.subtract(8_000_000_000, ordering: .relaxed)
    // Half a sixteenth of a quarter of a minute: half of what was held.
    let grown = cache.engine.growthLimit - base
    #expect(abs(grown - before / 2) < before / 16, "\(grown) of \(before)")
  }

  @Test("growth afterwards is slow, yields to what has no other room, and ends")
  func growth() throws {
    let cache = try filled()
    cache.trim(level: .critical)
    let base = cache.engine.growthBase.load(ordering: .relaxed)
    let held = cache.byteCount
    #expect(base == max(held, CacheEngine.growthFloor))
    for key in 100_000..<116_000 {
      // However long this takes here, no time passes for the cache.
      cache.engine.growthBegin.store(MonotonicTime.now, ordering: .relaxed)
      cache[key] = pattern(300)
    }
    // A minute has not passed: it holds little more, and evicted by policy instead.
    #expect(cache.byteCount < held + held / 2)
    #expect(cache.value(forKey: 115_999) == pattern(300))
    #expect(cache.statistics.departures[.bytes, default: 0] > 0)
    // A value larger than all of that is stored none the less.
    cache[-1] = pattern(2 * held)
    #expect(cache.value(forKey: -1)?.count == 2 * held)
    // A minute later nothing holds it back.
    cache.engine.growthBegin.subtract(CacheEngine.growthEnd, ordering: .relaxed)
    #expect(cache.engine.growthLimit == .max)
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
