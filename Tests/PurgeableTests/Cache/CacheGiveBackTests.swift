// SPDX-License-Identifier: MIT
// Giving many slabs back together: entries that stay are right, and those that leave are accounted for, at the expected cost.

import CPurgeable
import Glibc
import PurgeableTestSupport
import Testing

@testable import Purgeable

/// Whether keys are tracked, and whether the kernel takes pages before. The quick run has the first two for keys of one size, and
/// the others for keys of many sizes.
private let kinds = [(false, false), (true, true), (false, true), (true, false)]

@Suite("PurgeableCache, giving back together", .notUnderThreadSanitizer)
struct CacheGiveBackTests {
  private static func size(_ i: Int) -> Int { 20 + i * 7 % 300 }
  private static func cost(_ i: Int) -> Int? { i % 3 == 0 ? i % 11 * 1000 : nil }

  /// A cache that was filled, and whose entries were partly replaced, read and removed.
  private func filled<Key: Hashable & Sendable>(
    _ count: Int, tracksKeys: Bool, clock: MonotonicClock = .system, _ key: (Int) -> Key
  ) throws -> PurgeableCache<Key, [UInt8]> {
    let cache = try PurgeableCache<Key, [UInt8]>(tracksKeys: tracksKeys, clock: clock)
    for version in 1...2 {
      for i in 0..<count where version == 1 || i % 10 == 3 {
        let value = described(UInt32(i), version: UInt32(version), count: Self.size(i))
        cache.setValue(value, forKey: key(i), cost: Self.cost(i))
      }
    }
    for i in 0..<count where i % 17 == 0 { cache.remove(forKey: key(i)) }
    for i in 0..<count where i % 5 == 0 { for _ in 0..<2 { _ = cache.value(forKey: key(i)) } }
    return cache
  }

  private func check<Key: Hashable & Sendable>(
    tracksKeys: Bool, isPartlyLost: Bool, findsLosses: Bool, _ key: (Int) -> Key
  ) throws {
    let count = TestRun.isFull ? 20_000 : 10_000
    let clock = SetClock()
    let cache = try filled(count, tracksKeys: tracksKeys, clock: clock.monotonic, key)
    if isPartlyLost { cache.discardEveryThirdPage() }
    if findsLosses { cache.engine.heap.findLosses() }
    let before = cache.byteCount
    let fraction = 0.6
    cache.trim(toFraction: fraction)
    #expect(cache.byteCount <= Int(Double(before) * fraction) + 1)
    cache.checkBooks()
    for level in [PressureLevel.warning, .critical] { cache.trimUntimed(level: level) }
    var (hits, cost) = (0, 0)
    for i in 0..<count {
      guard let bytes = cache.value(forKey: key(i)) else { continue }
      hits += 1
      let isRight = bytes.count == Self.size(i) && versionDescribed(in: bytes, key: UInt32(i)) == (i % 10 == 3 ? 2 : 1)
      if i % 17 == 0 || !isRight { Issue.record("\(i) \(isRight ? "was removed" : "has another value")") }
      cost += Self.cost(i) ?? bytes.count
    }
    #expect(hits > count / 10 && hits < count * 6 / 10, "\(hits)")
    cache.checkBooksSwept()
    #expect(cache.count == hits)
    #expect(cache.totalCost == cost)
    // The index still works: once a minute has passed, every entry can be stored again and found.
    clock.advance(seconds: 60)
    for i in 0..<count { cache.setValue(described(UInt32(i), version: 3, count: Self.size(i)), forKey: key(i)) }
    let found = (0..<count).count { i in cache.value(forKey: key(i)).flatMap { versionDescribed(in: $0, key: UInt32(i)) } == 3 }
    #expect(found == count)
    cache.trim(toBytes: 0)
    #expect(cache.isEmpty)
    #expect(cache.totalCost == 0)
    cache.checkBooksSwept()
  }

  @Test("keys of one size", arguments: TestRun.isFull ? kinds : Array(kinds.prefix(2)))
  func fixed(tracksKeys: Bool, isPartlyLost: Bool) throws {
    if isPartlyLost { try needRealDiscards() }
    try check(tracksKeys: tracksKeys, isPartlyLost: isPartlyLost, findsLosses: false) { UInt32($0) }
  }

  @Test("keys of many sizes", arguments: TestRun.isFull ? kinds : Array(kinds.suffix(2)))
  func variable(tracksKeys: Bool, isPartlyLost: Bool) throws {
    if isPartlyLost { try needRealDiscards() }
    let tail = String(repeating: "long ", count: 30)
    try check(tracksKeys: tracksKeys, isPartlyLost: isPartlyLost, findsLosses: true) { $0 % 100 == 0 ? tail + "\($0)" : "\($0)" }
  }

  @Test("losses that are known are told as such, others as given for pressure", arguments: [false, true])
  func reasons(isKnown: Bool) throws {
    try needRealDiscards()
    let count = TestRun.isFull ? 20_000 : 8000
    let cache = try filled(count, tracksKeys: false) { UInt32($0) }
    cache.discardEveryThirdPage()
    if isKnown { cache.engine.heap.findLosses() }
    // As the reaction does, but without its sweep.
    #expect(cache.engine.giveSlice(ofParts: 2, isFelt: true))
    let departures = cache.statistics.departures
    #expect(departures[.pressure, default: 0] > count / 20)
    if isKnown { #expect(departures[.discarded, default: 0] > count / 20) }
    cache.checkBooksSwept()
  }

  @Test("an entry in use stays where it is, and right; it goes with a later call")
  func locked() throws {
    let cache = try filled(20_000, tracksKeys: false) { UInt32($0) }
    let used: [UInt32] = [1, 5000, 10_001, 19_999]
    func within(_ rest: ArraySlice<UInt32>, _ body: () -> Void) {
      guard let key = rest.first else { return body() }
      let isThere = cache.withBytes(forKey: key) { bytes in
        let before = Array(copying: bytes)
        within(rest.dropFirst(), body)
        #expect(Array(copying: bytes) == before)
        #expect(versionDescribed(in: before, key: key) == 1)
        return true
      }
      #expect(isThere == true)
    }
    within(used[...]) {
      cache.trim(toBytes: 0)
      #expect(cache.byteCount > 0)
    }
    cache.checkBooksSwept()
    cache.trim(toBytes: 0)
    #expect(cache.isEmpty)
    #expect(cache.statistics.memory.heldBytes == 0)
  }

  #if DEBUG
    @Test("entries that leave between the notes of an eviction and their use leave once", arguments: [false, true])
    func leftBetween(tracksKeys: Bool) throws {
      let count = TestRun.isFull ? 20_000 : 8000
      let cache = try filled(count, tracksKeys: tracksKeys) { $0 }
      // As a sweep does that finds pages lost.
      let hook = NotesHook { held in
        let table = held.index.current()
        for i in stride(from: 0, to: table.slotCount, by: 5) {
          guard let pointer = table.slots?[i] else { return }
          let slot = Slot(bits: pointer.relaxed)
          if !slot.isEmpty { held.drop(FoundSlot(pointer: pointer, slot: slot), .removed) }
        }
      }
      _ = cache.engine.base.notesHook.storeIfNil(hook)
      // Many slabs together, then slab by slab.
      cache.trim(toFraction: 0.7)
      try cache.setByteLimit(cache.byteCount * 3 / 4)
      for i in 0..<count {
        guard let bytes = cache.peekValue(forKey: i) else { continue }
        if versionDescribed(in: bytes, key: UInt32(i)) != (i % 10 == 3 ? 2 : 1) { Issue.record("\(i)") }
      }
      let numbers = cache.statistics
      let gone = DepartureReason.allCases.filter { $0 != .replaced }.reduce(0) { $0 + numbers.departures[$1, default: 0] }
      #expect(numbers.insertionCount == cache.count + gone)
      #expect(numbers.departures[.trimmed]! > 0 && numbers.departures[.bytes]! > 0)
      cache.checkBooksSwept()
    }
  #endif

  @Test("large entries have their turn among the others: a trim gets as far as it says, and what goes of both is the oldest")
  func largeAmongOthers() throws {
    let cache = try PurgeableCache<Int, [UInt8]>()
    func isLarge(_ key: Int) -> Bool { key % 10 == 0 }
    let count = 3000
    for key in 0..<count { cache[key] = described(UInt32(key), version: 1, count: isLarge(key) ? 120_000 : 2000) }
    let before = cache.byteCount
    for part in [3, 2] {
      cache.trim(toBytes: before / 4 * part)
      #expect(cache.byteCount <= before / 4 * part, "\(part) quarters of \(before)")
      let left = Set(cache.keys)
      func share(_ range: Range<Int>, ofLarge large: Bool) -> Double {
        let all = range.filter { isLarge($0) == large }
        return Double(all.count { left.contains($0) }) / Double(all.count)
      }
      let shares = (share(0..<count, ofLarge: true), share(0..<count, ofLarge: false))
      #expect(abs(shares.0 - shares.1) < 0.2, "\(shares)")
      // Exact to a slab of each shard.
      for large in [true, false] { #expect(share(count / 4 * 3..<count, ofLarge: large) > 0.9, "\(large)") }
      for key in left { #expect(versionDescribed(in: cache.peekValue(forKey: key) ?? [], key: UInt32(key)) == 1) }
      cache.checkBooks()
    }
  }
}

extension CacheGiveBackTests {
  @Test("more lost elements than there is working memory for are given back all the same")
  func manyLost() throws {
    try needRealDiscards()
    // Large slabs of the smallest elements: 16,384 each, of which five do not fit.
    let cache = try PurgeableCache<UInt32, [UInt8]>(byteLimit: 1 << 30)
    cache.staysInOneShard()
    let (count, more, largeCount, lostSlabs): (UInt32, UInt32, UInt32, Int) =
      TestRun.isFull ? (200_000, 60_000, 12_000, 10) : (100_000, 20_000, 8000, 6)
    for key in 0..<count { cache.setValue([], forKey: key) }
    // So that a slice, a sixteenth of all, is some slabs.
    let large = pattern(4000)
    for key in 0..<largeCount { cache.setValue(large, forKey: 0x1000_0000 + key) }
    cache.sealAll()
    let ranges = cache.slabRanges().prefix(lostSlabs)
    for _ in 0..<4 {
      cache.offerIdle()
      for range in ranges { range.advise(advicePageout) }
    }
    // Found by another thread's look, say, after this one's sweep.
    cache.engine.base.findLosses()
    let wanted = cache.engine.base.chargedBytes / 2
    cache.engine.giveBack(.trimmed) { cache.engine.base.chargedBytes - wanted }
    cache.recountBooks()
    // In the places that became free.
    for key in count..<count + more { cache.setValue([], forKey: key) }
    cache.checkBooksSwept()
    let readable = (0..<count + more).count { cache.peekValue(forKey: $0) != nil }
    let readableLarge = (0..<largeCount).count { cache.peekValue(forKey: 0x1000_0000 + $0) == large }
    #expect(readable + readableLarge == cache.count)
  }

  @Test("a trim gets as far as it says where nearly all memory is that of large entries, and all of them were used")
  func usedLarge() throws {
    let cache = try PurgeableCache<Int, [UInt8]>()
    let count = 400
    for key in 0..<count { cache[key] = described(UInt32(key), version: 1, count: key % 10 == 0 ? 2000 : 120_000) }
    for _ in 0..<4 { for key in 0..<count { _ = cache[key] } }
    let wanted = cache.byteCount / 2
    cache.trim(toBytes: wanted)
    #expect(cache.byteCount <= wanted && cache.byteCount > wanted / 4 * 3, "\(cache.byteCount) bytes, and not \(wanted)")
    cache.checkBooks()
  }
}

extension [UInt8] {
  fileprivate init(copying span: RawSpan) {
    self = span.byteOffsets.map { unsafe span.unsafeLoad(fromByteOffset: $0, as: UInt8.self) }
  }
}
