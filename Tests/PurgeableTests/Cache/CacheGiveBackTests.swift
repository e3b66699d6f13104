// SPDX-License-Identifier: MIT
// Many slabs given back together: whatever stays is right, whatever leaves is accounted for, and costs what was said.

import CPurgeable
import Glibc
import Testing

@testable import Purgeable

@Suite("PurgeableCache, giving back together", .notUnderThreadSanitizer)
struct CacheGiveBackTests {
  private static func size(_ i: Int) -> Int { 20 + i * 7 % 300 }
  private static func cost(_ i: Int) -> UInt64? { i % 3 == 0 ? UInt64(i % 11) * 1000 : nil }

  /// Filled, partly replaced, partly read, partly removed.
  private func filled<Key: Hashable & Sendable>(_ count: Int, tracksKeys: Bool, _ key: (Int) -> Key) throws
    -> PurgeableCache<Key, [UInt8]>
  {
    let cache = try PurgeableCache<Key, [UInt8]>(tracksKeys: tracksKeys)
    for version in 1...2 {
      for i in 0..<count where version == 1 || i % 10 == 3 {
        let value = described(UInt32(i), version: UInt32(version), count: Self.size(i))
        cache.set(value, forKey: key(i), cost: Self.cost(i))
      }
    }
    for i in 0..<count where i % 17 == 0 { cache.remove(key(i)) }
    for i in 0..<count where i % 5 == 0 { for _ in 0..<2 { _ = cache.value(forKey: key(i)) } }
    return cache
  }

  private func check<Key: Hashable & Sendable>(
    tracksKeys: Bool, isPartlyLost: Bool, findsLosses: Bool, _ key: (Int) -> Key
  ) throws {
    let count = 20_000
    let cache = try filled(count, tracksKeys: tracksKeys, key)
    if isPartlyLost { cache.discardEveryThirdPage() }
    if findsLosses { _ = unsafe purgeable_heap_sweep(cache.engine.heap.raw, nil) }
    let before = cache.byteCount
    let fraction = 0.6
    cache.trim(toFraction: fraction)
    #expect(cache.byteCount <= Int(Double(before) * fraction) + 1)
    cache.checkBooks()
    for level in [PressureLevel.some, .critical] { cache.trim(level: level) }
    var (hits, cost) = (0, UInt64(0))
    for i in 0..<count {
      guard let bytes = cache.value(forKey: key(i)) else { continue }
      hits += 1
      #expect(i % 17 != 0, "\(i) was removed")
      #expect(bytes.count == Self.size(i))
      #expect(versionDescribed(in: bytes, key: UInt32(i)) == (i % 10 == 3 ? 2 : 1), "\(i)")
      cost += Self.cost(i) ?? UInt64(bytes.count)
    }
    #expect(hits > count / 10 && hits < count * 6 / 10, "\(hits)")
    cache.checkBooksSwept()
    #expect(cache.count == hits)
    #expect(cache.totalCost == cost)
    // The index is as good as before: everything can be stored again, once a minute has passed, and found.
    cache.engine.growthBegin.subtract(CacheEngine.growthEnd, ordering: .relaxed)
    for i in 0..<count { cache.set(described(UInt32(i), version: 3, count: Self.size(i)), forKey: key(i)) }
    let found = (0..<count).count { i in cache.value(forKey: key(i)).flatMap { versionDescribed(in: $0, key: UInt32(i)) } == 3 }
    #expect(found == count)
    cache.trim(toBytes: 0)
    #expect(cache.isEmpty)
    #expect(cache.totalCost == 0)
    cache.checkBooksSwept()
  }

  @Test("keys of one size", arguments: [false, true], [false, true])
  func fixed(tracksKeys: Bool, isPartlyLost: Bool) throws {
    if isPartlyLost { try needRealDiscards() }
    try check(tracksKeys: tracksKeys, isPartlyLost: isPartlyLost, findsLosses: false) { UInt32($0) }
  }

  @Test("keys of many sizes", arguments: [false, true], [false, true])
  func variable(tracksKeys: Bool, isPartlyLost: Bool) throws {
    if isPartlyLost { try needRealDiscards() }
    let tail = String(repeating: "long ", count: 30)
    try check(tracksKeys: tracksKeys, isPartlyLost: isPartlyLost, findsLosses: true) { $0 % 100 == 0 ? tail + "\($0)" : "\($0)" }
  }

  @Test("losses that are known are told as such, others as given for pressure", arguments: [false, true])
  func reasons(isKnown: Bool) throws {
    try needRealDiscards()
    let cache = try filled(20_000, tracksKeys: false) { UInt32($0) }
    cache.discardEveryThirdPage()
    if isKnown { _ = unsafe purgeable_heap_sweep(cache.engine.heap.raw, nil) }
    // As the reaction does, but without its look for losses.
    #expect(cache.engine.giveSlice(cache.byteCount / 2))
    let departures = cache.statistics.departures
    #expect(departures[.pressure, default: 0] > 1000)
    if isKnown { #expect(departures[.discarded, default: 0] > 1000) }
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
    #expect(cache.statistics.heldBytes == 0)
  }
}

extension [UInt8] {
  fileprivate init(copying span: RawSpan) {
    self = span.byteOffsets.map { unsafe span.unsafeLoad(fromByteOffset: $0, as: UInt8.self) }
  }
}
