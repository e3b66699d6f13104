// SPDX-License-Identifier: MIT
// Keys of every kind: only `==` decides which are the same.

import PurgeableTestSupport
import Testing
import ToolSupport

@testable import Purgeable

@Suite("PurgeableCache, keys")
struct CacheKeysTests {
  /// Stores a value under every key, finds each again, and removes some in between.
  private func check<Key: Hashable & Sendable>(_ keys: [Key], tracksKeys: Bool = false) throws {
    let cache = try PurgeableCache<Key, Int>(tracksKeys: tracksKeys)
    #expect(Set(keys).count == keys.count)
    for (i, key) in keys.enumerated() { #expect(cache.setValue(i, forKey: key) == .stored) }
    #expect(cache.count == keys.count)
    for (i, key) in keys.enumerated() {
      #expect(cache[key] == i)
      #expect(cache.peekValue(forKey: key) == i)
      #expect(cache.containsValue(forKey: key))
      #expect(cache.withBytes(forKey: key) { $0.byteCount } == 8)
    }
    for (i, key) in keys.enumerated() where i % 2 == 0 {
      #expect(cache.remove(forKey: key))
      #expect(!cache.containsValue(forKey: key))
    }
    for (i, key) in keys.enumerated() { #expect(cache[key] == (i % 2 == 0 ? nil : i)) }
    for (i, key) in keys.enumerated() { #expect(cache.setValue(-i, forKey: key) == (i % 2 == 0 ? .stored : .replaced)) }
    for (i, key) in keys.enumerated() { #expect(cache[key] == -i) }
    cache.checkBooksSwept()
  }

  @Test("integers of every size and sign", arguments: [false, true])
  func integers(tracksKeys: Bool) throws {
    func some<I: FixedWidthInteger & Sendable>(_ type: I.Type) -> [I] {
      Array(Set([.min, .max, 0, 1, .max - 1, .min + 1, 17, 100, I(truncatingIfNeeded: -1), I(truncatingIfNeeded: 0x5A5A_5A5A)]))
    }
    try check(some(Int8.self), tracksKeys: tracksKeys)
    try check(some(Int16.self), tracksKeys: tracksKeys)
    try check(some(Int32.self), tracksKeys: tracksKeys)
    try check(some(Int64.self), tracksKeys: tracksKeys)
    try check(some(Int128.self), tracksKeys: tracksKeys)
    try check(some(Int.self), tracksKeys: tracksKeys)
    try check(some(UInt8.self), tracksKeys: tracksKeys)
    try check(some(UInt16.self), tracksKeys: tracksKeys)
    try check(some(UInt32.self), tracksKeys: tracksKeys)
    try check(some(UInt64.self), tracksKeys: tracksKeys)
    try check(some(UInt128.self), tracksKeys: tracksKeys)
    try check(some(UInt.self), tracksKeys: tracksKeys)
    try check(Array(UInt8.min...UInt8.max), tracksKeys: tracksKeys)
  }

  @Test("byte arrays of any length, also such as look like a length", arguments: [false, true])
  func bytes(tracksKeys: Bool) throws {
    var keys: [[UInt8]] = [0, 1, 2, 7, 8, 127, 128, 129, 255, 256, 511, 512, 513, 70_000].map { pattern($0) }
    keys += [[0], [0, 0], [1, 0], [127], [128], [255], [255, 1, 0, 0, 0], [0x80, 0, 0, 1, 0]]
    keys += [pattern(70_000, seed: 2), Array(pattern(70_000).dropLast())]
    try check(keys, tracksKeys: tracksKeys)
  }

  @Test("strings, equal in whatever Unicode form", arguments: [false, true])
  func strings(tracksKeys: Bool) throws {
    try check(
      [
        "", " ", "a", "b", "ab", "a\u{0}b", "\u{0}", "é", "e", "ê", "日本語", "🇦🇹", "🇦", "\r\n", "\n", "\u{301}", "K", "k", ";", "`",
        String(repeating: "x", count: 127), String(repeating: "x", count: 128), String(repeating: "é", count: 5000),
        String(repeating: "K", count: 300),
      ], tracksKeys: tracksKeys)
    let cache = try PurgeableCache<String, Int>(tracksKeys: tracksKeys)
    let pairs: [(String, String)] = [
      ("caf\u{E9}", "cafe\u{301}"), ("\u{212A}elvin", "Kelvin"), ("a\u{37E}b", "a;b"), ("\u{1FEF}x\u{1FEF}", "`x`"),
      ("\u{1E69}", "s\u{323}\u{307}"), ("\u{1E69}", "s\u{307}\u{323}"), ("\u{AC00}", "\u{1100}\u{1161}"), ("\u{2126}", "\u{3A9}"),
      ("\u{212B}", "A\u{30A}"), ("K\u{301}", "\u{212A}\u{301}"),
    ]
    for (i, (one, other)) in pairs.enumerated() {
      #expect(one == other)
      for (first, second) in [(one, other), (other, one)] {
        #expect(cache.setValue(i, forKey: first) == .stored)
        #expect(cache[second] == i)
        #expect(cache.containsValue(forKey: second) && cache.peekValue(forKey: second) == i)
        #expect(cache.setValue(i + 100, forKey: second) == .replaced)
        #expect(cache[first] == i + 100)
        #expect(cache.count == 1)
        #expect(cache.remove(forKey: second))
        #expect(cache[first] == nil)
      }
    }
    cache.checkBooksSwept()
  }

  @Test("strings with a buffer of another kind, and substrings made strings")
  func bridged() throws {
    let cache = try PurgeableCache<String, Int>()
    let long = "the quick brown fox jumps over the lazy dog"
    cache[String(long.dropFirst(4).prefix(5))] = 1
    cache[String(decoding: Array("brown".utf8), as: UTF8.self)] = 2
    #expect(cache["quick"] == 1)
    #expect(cache["bro" + "wn"] == 2)
  }

  @Test("other Hashable types, without bytes of their own", arguments: [false, true])
  func hashables(tracksKeys: Bool) throws {
    try check((0..<500).map { StructKey(a: $0 % 17, b: "\($0)") }, tracksKeys: tracksKeys)
    try check([0.0, 1.5, -1.5, .infinity, -.infinity, .leastNonzeroMagnitude], tracksKeys: tracksKeys)
    try check([false, true], tracksKeys: tracksKeys)
    try check([Optional<Int>.none, 0, 1], tracksKeys: tracksKeys)
    try check([["a"], ["a", "b"], []], tracksKeys: tracksKeys)
    let cache = try PurgeableCache<Double, Int>(tracksKeys: tracksKeys)
    cache[0.0] = 1
    #expect(cache[-0.0] == 1)
  }

  @Test("keys that all collide are told apart")
  func colliding() throws {
    let keys = (0..<(TestRun.isFull ? 200 : 100)).map { CollidingKey(number: $0) }
    try check(keys)
    try check(keys, tracksKeys: true)
  }

  @Test("an encoding of one's own decides for itself what counts", arguments: [false, true])
  func encoded(tracksKeys: Bool) throws {
    try check((0..<500).map { EncodedKey(number: $0, note: "note \($0)") }, tracksKeys: tracksKeys)
    let cache = try PurgeableCache<EncodedKey, Int>(tracksKeys: tracksKeys)
    cache[EncodedKey(number: 1, note: "a")] = 5
    #expect(cache[EncodedKey(number: 1, note: "b")] == 5)
    #expect(cache.setValue(6, forKey: EncodedKey(number: 1, note: "c")) == .replaced)
    #expect(cache.count == 1)
  }

  @Test("a trivially copyable key lies in purgeable memory, unless its memory may say more than the key")
  func trivial() throws {
    let keys = (0..<300).map { (number: Int) -> TileKey in
      TileKey(level: Int8(number % 100), kind: .land, column: Int16(number), place: (UInt8(number % 7), false))
    }
    try check(keys)
    try #expect(PurgeableCache<TileKey, Int>().teller == nil)
    try #expect(PurgeableCache<TileKey.Kind, Int>().teller == nil)
    try #expect(PurgeableCache<FloatKey, Int>().teller != nil)
    let cache = try PurgeableCache<PaddedKey, Int>()
    #expect(cache.teller != nil)
    cache[PaddedKey(5, padding: 0)] = 1
    #expect(cache[PaddedKey(5, padding: 0xFF)] == 1)
  }

  @Test("a tracked key's number can be told from its slot, for all numbers that there are")
  func numbers() {
    var numbers: [UInt32] = [0, 1, 2, 255, 65_535, 65_536, EngineKey.trackedNumberLimit - 1]
    var random = SplitMix64(seed: 5)
    for _ in 0..<1000 { numbers.append(UInt32(random.index(below: Int(EngineKey.trackedNumberLimit)))) }
    for number in numbers {
      let key = EngineKey(trackedNumber: number, hash: random.next())
      for hasHead in [false, true] {
        let slot = Slot(identity: key.identity, place: UInt64(random.index(below: 1 << 33)), counter: 3, hasHead: hasHead)
        #expect(EngineKey.trackedNumber(of: slot) == number)
        #expect(slot.isTracked && slot.hasHead == hasHead && slot.counter == 3)
      }
    }
  }

  @Test("numbers of keys that left are used again")
  func reuse() throws {
    let cache = try PurgeableCache<StructKey, [UInt8]>()
    for round in 0..<2000 {
      let key = StructKey(a: round, b: "x")
      cache[key] = pattern(20)
      #expect(cache[key] == pattern(20))
      if round >= 10 { #expect(cache.remove(forKey: StructKey(a: round - 10, b: "x"))) }
    }
    #expect(cache.count == 10)
    #expect(try #require(cache.teller).nodes.byteCount.load(ordering: .relaxed) < 10_000)
    cache.removeAll()
    #expect(cache.keyCounts == (0, 0))
    cache.checkBooksSwept()
  }

  @Test("keys that leave from everywhere give their memory back, and those that stay are found", arguments: [false, true])
  func compaction(tellsDepartures: Bool) throws {
    let departures = Departures<String, [UInt8]>()
    let cache =
      tellsDepartures
      ? try PurgeableCache<String, [UInt8]> { departures.note($0) } : try PurgeableCache<String, [UInt8]>(tracksKeys: true)
    let nodes = try #require(cache.teller).nodes
    let count = TestRun.isFull ? 12_000 : 4000
    func key(_ i: Int) -> String { i % 7 == 0 ? "a key that has a buffer of its own \(i)" : "k\(i)" }
    for i in 0..<count { cache.setValue(described(UInt32(i), version: 1, count: 40), forKey: key(i), cost: i) }
    let full = nodes.byteCount.load(ordering: .relaxed)
    #expect(full >= count * 60)
    for i in 0..<count where i % 10 != 0 { #expect(cache.remove(forKey: key(i))) }
    let rest = nodes.byteCount.load(ordering: .relaxed)
    #expect(rest > 0 && rest < full * 4 / 10, "\(rest) of \(full)")
    #expect(cache.keyCounts == (count / 10, 0))
    for i in 0..<count {
      #expect(cache.value(forKey: key(i)) == (i % 10 == 0 ? described(UInt32(i), version: 1, count: 40) : nil))
    }
    if tellsDepartures {
      let told = departures.take()
      #expect(told.count == count - count / 10 && Set(told.map(\.key)).count == told.count)
    }
    for i in 0..<count where i % 10 != 0 { cache.setValue([1], forKey: key(i)) }
    #expect(nodes.byteCount.load(ordering: .relaxed) <= full + full / 10)
    for i in 0..<count where i % 10 == 0 { #expect(cache.remove(forKey: key(i))) }
    if tellsDepartures {
      #expect(Set(departures.take().map(\.cost)) == Set((0..<count / 10).map { $0 * 10 }))
    }
    for i in 0..<count { #expect(cache.value(forKey: key(i)) == (i % 10 == 0 ? nil : [1])) }
    cache.checkBooksSwept()
  }

  @Test("a trim keeps of tracked keys as much as of others, also where those that stay are spread over all of the table")
  func trimmedShare() throws {
    try needRealDiscards()
    var kept: [Int] = []
    for tracksKeys in [false, true] {
      let cache = try PurgeableCache<String, [UInt8]>(tracksKeys: tracksKeys)
      for i in 0..<(TestRun.isFull ? 20_000 : 10_000) { cache.setValue(pattern(20 + i * 7 % 300), forKey: "\(i)") }
      // Every third page is discarded.
      cache.discardEveryThirdPage()
      cache.sweep()
      let (count, byteCount) = (cache.count, cache.byteCount)
      cache.trim(toFraction: 0.5)
      #expect(cache.byteCount <= byteCount / 2)
      kept.append(cache.count * 100 / count)
      cache.checkBooksSwept()
    }
    #expect(kept[1] >= kept[0] * 8 / 10, "\(kept[1]) % of tracked keys, \(kept[0]) % of others")
  }
}
