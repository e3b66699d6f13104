// SPDX-License-Identifier: MIT
// Hostile keys, and the index alone: no operation becomes expensive.

import Glibc
import PurgeableTestSupport
import Testing
import ToolSupport

@testable import Purgeable

private func secondsTaken(_ body: () throws -> Void) rethrows -> Double {
  let clock = ContinuousClock()
  let time = try clock.measure(body)
  return Double(time.components.seconds) + Double(time.components.attoseconds) * 1e-18
}

@Suite("PurgeableCache, hostile keys", .serialized)
struct CacheHostileTests {
  /// Stores, finds and removes all of the keys. Returns the seconds that took.
  private func seconds<Key: Hashable & Sendable>(_ keys: [Key]) throws -> Double {
    let cache = try PurgeableCache<Key, UInt8>()
    var found = 0
    let taken = secondsTaken {
      for key in keys { cache[key] = 1 }
      for key in keys where cache.containsValue(forKey: key) { found += 1 }
    }
    #expect(found == keys.count)
    #expect(cache.count == keys.count)
    // The index is no larger than for other keys.
    let slots = cache.engine.shards.all.reduce(0) { $0 + $1.index.current().slotCount }
    #expect(slots < keys.count * 4 + 16 * 64 * 8, "\(slots) slots for \(keys.count) keys")
    cache.checkBooks()
    return taken
  }

  /// Everywhere that the index is no larger, which is what makes look-ups cheap; times are compared in the full run.
  @Test("keys with equal low bits, equal high bits, or in sequence cost what random ones do")
  func patterns() throws {
    let count = (TestRun.isFull ? 20_000 : 2500) / slowness
    var random = SplitMix64(seed: 3)
    _ = try seconds((0..<1000).map { UInt64($0) })
    let usual = try seconds((0..<count).map { _ in random.next() })
    let kinds: [(String, [UInt64])] = [
      ("sequence", (0..<UInt64(count)).map { $0 }),
      ("equal low bits", (0..<UInt64(count)).map { $0 << 40 }),
      ("equal low half and high bits", (0..<UInt64(count)).map { $0 << 32 | 0x1234_5678 | 0xFF << 56 }),
      ("multiples of a page", (0..<UInt64(count)).map { $0 &* 4096 }),
      ("by the golden ratio", (0..<UInt64(count)).map { $0 &* 0x9E37_79B9_7F4A_7C15 }),
      ("complements", (0..<UInt64(count)).map { $0 % 2 == 0 ? $0 / 2 : ~($0 / 2) }),
    ]
    for (what, keys) in kinds {
      let taken = try seconds(keys)
      // Quadratic behaviour would be a factor of hundreds; the machine is shared.
      #expect(!TestRun.isFull || taken < usual * 20 + 0.2, "\(what): \(taken) s against \(usual) s")
    }
    let strings = try seconds((0..<count).map { "same beginning, same length, \(100_000 + $0)" })
    #expect(!TestRun.isFull || strings < usual * 30 + 0.2, "\(strings) s against \(usual) s")
  }

  @Test("two caches, and two runs, have different hashes of the same key")
  func seeds() throws {
    let one = try CacheEngine(CacheOptions(), keyLayout: .fixed(8))
    let other = try CacheEngine(CacheOptions(), keyLayout: .fixed(8))
    func tags(_ engine: CacheEngine) -> [UInt64] {
      (0..<100).map { (number: UInt64) in
        unsafe withUnsafeBytes(of: number) { unsafe engine.base.elements.keys.key(prefix: $0.bytes).identity }
      }
    }
    #expect(zip(tags(one), tags(other)).count { $0 == $1 } < 3)
    #expect(tags(one) == tags(one))
  }

  @Test("entries with one and the same tag fill two buckets and then make the index grow no further than it can help")
  func equalTags() throws {
    let index = try #require(SlotIndex())
    defer { index.destroy() }
    let identity = UInt64(0x2AA_AAAA) << Slot.tagShift
    for place in 0..<UInt64(16) {
      #expect(index.insert(Slot(identity: identity, place: place, counter: 0, hasHead: false)) != nil)
    }
    #expect(index.insert(Slot(identity: identity, place: 16, counter: 0, hasHead: false)) == nil)
    for place in 0..<UInt64(16) { #expect(index.find(identity: identity, place: place) != nil) }
    #expect(index.find(identity: identity, place: 16) == nil)
    // Entries of one tag fit no other size better, and resizing leaves them as they were.
    #expect(index.resize(to: 5))
    for place in 0..<UInt64(16) { #expect(index.find(identity: identity, place: place) != nil) }
  }

  @Test("the index keeps every slot through every size, up and down")
  func sizes() throws {
    let index = try #require(SlotIndex())
    defer { index.destroy() }
    var random = SplitMix64(seed: 9)
    var slots: [Slot] = []
    for place in 0..<UInt64(150) {
      let identity = random.next() & ~UInt64(0) << Slot.tagShift
      let slot = Slot(identity: identity, place: place, counter: place % 4, hasHead: place % 2 == 0)
      #expect(index.insert(slot) != nil)
      slots.append(slot)
    }
    for sizeClass in [1, 2, 5, 9, 12, 3, 7, 1, 0, 4, 0] {
      let before = index.current()
      #expect(index.resize(to: sizeClass))
      #expect(index.sizeClass == sizeClass)
      #expect(!index.isCurrent(before) && index.isCurrent(index.current()))
      for slot in slots {
        let found = try #require(index.find(identity: slot.identity, place: slot.place))
        #expect(found.slot == slot)
      }
      let table = index.current()
      #expect((0..<table.slotCount).count { table.slots![$0].relaxed != 0 } == slots.count)
    }
    #expect(!index.resize(to: 0) && !index.resize(to: -1) && !index.resize(to: SlotIndex.classCount))
    for sizeClass in 1..<SlotIndex.classCount {
      #expect(SlotIndex.bucketCount(of: sizeClass) >= SlotIndex.bucketCount(of: sizeClass - 1))
    }
    // An index grows to a table with more buckets each time.
    for sizeClass in 0..<SlotIndex.classCount {
      let next = SlotIndex.nextSizeClass(after: sizeClass)
      #expect(next == SlotIndex.classCount || SlotIndex.bucketCount(of: next) > SlotIndex.bucketCount(of: sizeClass))
      #expect((sizeClass..<next).allSatisfy { SlotIndex.bucketCount(of: $0) == SlotIndex.bucketCount(of: sizeClass) })
    }
  }

  @Test("the index of a cache that is filled has more buckets each time it grows")
  func growth() throws {
    let cache = try PurgeableCache<Int, Int>(countLimit: 1_000_000, clock: .system, hashSeed: chosenSeed)
    let index = cache.engine.shards.founder.index
    var sizes = [index.sizeClass]
    for key in 0..<8000 {
      cache[key] = key
      if index.sizeClass != sizes.last { sizes.append(index.sizeClass) }
    }
    let buckets = sizes.map { SlotIndex.bucketCount(of: $0) }
    #expect(sizes.count > 10 && zip(buckets, buckets.dropFirst()).allSatisfy { $0 < $1 }, "\(buckets), seed \(chosenSeed)")
    #expect((0..<8000).allSatisfy { cache[$0] == $0 })
    cache.checkBooks()
  }

  @Test("random tags fill most of an index before it has to grow")
  func load() throws {
    let index = try #require(SlotIndex())
    defer { index.destroy() }
    #expect(index.resize(to: 12))
    var random = SplitMix64(seed: 4)
    let count = index.current().slotCount * 84 / 100
    var inserted = 0
    while inserted < count,
      index.insert(
        Slot(identity: random.next() & ~UInt64(0) << Slot.tagShift, place: UInt64(inserted), counter: 0, hasHead: false)) != nil
    { inserted += 1 }
    #expect(inserted > count * 90 / 100, "\(inserted) of \(count)")
  }

  @Test("a page's sums hold what does not fit 64 bits, and begin anew")
  func pageSums() throws {
    var sum = PageSum()
    for _ in 0..<4096 { sum.cost += UInt128(UInt64.max) }
    #expect(sum.cost == 4096 * UInt128(UInt64.max))
    #expect(!sum.isLost)
    for _ in 0..<4096 { sum.cost -= UInt128(UInt64.max) }
    #expect(sum.cost == 0)
    #expect(PageSum.lost.isLost && PageSum.lost.cost == 0 && PageSum.lost.count == 0)
    #expect(MemoryLayout<PageSum>.size == 16)
  }
}
