// SPDX-License-Identifier: MIT
// The cache's operations.

import CPurgeable
import Glibc
import Purgeable

let cacheOperations: [Operation] =
  lookUps + stores + removals + upkeep + limits + makings + departureOperations + loadingOperations

private let lookUps: [Operation] = [
  Operation("cache: read into a buffer, hit and miss") {
    let cache = filled(try IntCache())
    let buffer = Buffer()
    return {
      for key in stride(from: 0, to: 6000, by: 100) { _ = unsafe cache.read(forKey: key, into: buffer.bytes) }
      return true
    }
  },
  Operation("cache: withBytes, contains, count, totalCost, byteCount, isEmpty") {
    let cache = filled(try IntCache())
    return {
      for key in stride(from: 0, to: 6000, by: 100) {
        _ = cache.withBytes(forKey: key) { $0.byteCount }
        _ = cache.containsValue(forKey: key)
      }
      return cache.count + cache.byteCount > 0 && cache.totalCost > 0 && !cache.isEmpty
    }
  },
  Operation("cache: value, small: 100 bytes", takes: .result, floor: valueFloor) {
    let cache = filled(try IntCache())
    return { cache.value(forKey: 5) != nil }
  },
  Operation("cache: lookUp, peek and subscript, small", takes: .result, floor: valueFloor) {
    let cache = filled(try IntCache())
    return {
      _ = cache.lookUpValue(forKey: 5)
      _ = cache.lookUpValue(forKey: 50_000)
      return cache.peekValue(forKey: 5) != nil && cache[6] != nil
    }
  },
  Operation("cache: keys and entries, in order", takes: .result, floor: valueFloor) {
    let cache = filled(try IntCache())
    return { cache.keys.reduce(0) { count, _ in count + 1 } == cache.count && cache.entries.prefix(50).contains { $0.key == 5 } }
  },
  Operation("cache: all at one moment", takes: .result, floor: valueFloor) {
    let cache = filled(try IntCache())
    return { cache.snapshot().count == cache.count }
  },
  Operation("cache: changes in one step", takes: .result, floor: valueFloor) {
    let cache = filled(try IntCache())
    let value = bytes(100)
    return {
      cache.modifyValue(forKey: 5) { $0 = value }
      return cache.updateValue(value, forKey: 5) != nil && cache.evictAll { $0.key < 0 } == 0
    }
  },
  Operation("cache: entries with a deadline") {
    let clock = ManualClock()
    var options = CacheOptions(byteLimit: 4 << 20)
    options.clock = clock
    let cache = try PurgeableCache<Int, [UInt8]>(options)
    let value = bytes(100)
    let times = [1, 60, 4000].map { Expiry.sinceCreation(.seconds($0)) }
    return {
      for key in 0..<3000 { cache.setValue(value, forKey: key, expiry: times[key % 3]) }
      clock.advance(by: .seconds(2))
      cache.removeExpired()
      for key in 3000..<9000 { cache.setValue(value, forKey: key, expiry: times[key % 3]) }
      clock.advance(by: .seconds(100))
      return !cache.containsValue(forKey: 3000)
    }
  },
  Operation(
    "cache: stores where the program is asked before an eviction", takes: .result,
    floor: Floor(bytes: 4096, reason: "the key that is asked about is made of its bytes")
  ) {
    let cache = try PurgeableCache<Int, [UInt8]>(countLimit: 500, byteLimit: 1 << 20)
    let value = bytes(100)
    cache.shouldEvict = { key, _ in key % 7 != 0 }
    return {
      for key in 0..<3000 { cache.setValue(value, forKey: key) }
      return cache.containsValue(forKey: 2999)
    }
  },
  Operation("cache: value, a mebibyte", takes: .result, floor: valueFloor) {
    let cache = try IntCache()
    cache.setValue(bytes(1 << 20), forKey: 1)
    return { cache.value(forKey: 1) != nil }
  },
  Operation("cache: value as a string, a mebibyte", takes: .result, floor: valueFloor) {
    let cache = try PurgeableCache<Int, String>()
    cache.setValue(String(repeating: "x", count: 1 << 20), forKey: 1)
    return { cache.value(forKey: 1) != nil }
  },
  Operation("cache: read into a buffer, string keys") {
    let cache = try StringCache()
    let keys = stringKeys(300)
    let value = bytes(100)
    for key in keys { cache.setValue(value, forKey: key) }
    let buffer = Buffer()
    return {
      for key in keys {
        _ = unsafe cache.read(forKey: key, into: buffer.bytes)
        _ = cache.containsValue(forKey: key)
        _ = cache.withBytes(forKey: key) { $0.byteCount }
      }
      return true
    }
  },
  Operation("cache: read into a buffer, tracked keys") {
    let cache = try PairCache()
    let value = bytes(100)
    for key in 0..<300 { cache.setValue(value, forKey: PairKey(left: key, right: 1)) }
    let buffer = Buffer()
    return {
      for number in 0..<600 {
        let key = PairKey(left: number, right: 1)
        _ = unsafe cache.read(forKey: key, into: buffer.bytes)
        _ = cache.containsValue(forKey: key)
        _ = cache.withBytes(forKey: key) { $0.byteCount }
      }
      return true
    }
  },
]

private let stores: [Operation] = [
  Operation("cache: stores, replacements") {
    let cache = filled(try IntCache())
    let value = bytes(100)
    return {
      for key in 0..<300 { cache.setValue(value, forKey: key) }
      return true
    }
  },
  Operation("cache: stores, growing") {
    let cache = try IntCache()
    let value = bytes(100)
    let next = Counter(0)
    return {
      var stored = true
      for _ in 0..<many(6000) { stored = cache.setValue(value, forKey: next.next()) == .stored && stored }
      return stored
    }
  },
  Operation("cache: stores of a mebibyte") {
    let cache = try IntCache()
    let value = bytes(1 << 20)
    let next = Counter(0)
    return {
      var stored = true
      for _ in 0..<8 { stored = cache.setValue(value, forKey: next.next()) == .stored && stored }
      return stored
    }
  },
  Operation("cache: stores at a count limit") {
    let cache = filled(try IntCache(countLimit: many(1000)))
    let value = bytes(100)
    let next = Counter(10_000)
    return {
      for _ in 0..<many(3000) { cache.setValue(value, forKey: next.next()) }
      return true
    }
  },
  Operation("cache: exact LRU: stores and hits, growing, then at a byte limit") {
    let cache = try IntCache(byteLimit: 600_000, evictionOrder: .lru)
    let value = bytes(100)
    let next = Counter(0)
    return {
      for _ in 0..<many(8000) {
        let key = next.next()
        cache.setValue(value, forKey: key)
        if key % 3 == 0 { _ = unsafe cache.read(forKey: key / 2, into: UnsafeMutableRawBufferPointer(start: nil, count: 0)) }
      }
      return cache.byteCount <= 600_000
    }
  },
  Operation("cache: stores at a cost limit") {
    let cache = filled(try IntCache(costLimit: many(100_000)))
    let value = bytes(100)
    let next = Counter(10_000)
    return {
      for number in 0..<many(3000) { cache.setValue(value, forKey: next.next(), cost: number % 300) }
      return true
    }
  },
  Operation("cache: stores at a byte limit") {
    let cache = filled(try IntCache(byteLimit: many(1 << 20)), 12_000)
    let value = bytes(100)
    let next = Counter(100_000)
    return {
      for _ in 0..<many(12_000) { cache.setValue(value, forKey: next.next()) }
      return true
    }
  },
  Operation("cache: stores, string keys, at a byte limit") {
    let cache = try StringCache(byteLimit: many(1 << 20))
    let keys = stringKeys(12_000)
    let value = bytes(100)
    for key in keys { cache.setValue(value, forKey: key) }
    return {
      for key in keys { cache.setValue(value, forKey: key) }
      return true
    }
  },
]

private let removals: [Operation] = [
  Operation("cache: removals") {
    let cache = filled(try IntCache())
    let next = Counter(0)
    return {
      for _ in 0..<500 { _ = cache.remove(forKey: next.next()) }
      return true
    }
  },
  Operation("cache: removals that return the value", takes: .result, floor: valueFloor) {
    let cache = filled(try PurgeableCache<Int, [UInt8]>())
    let next = Counter(0)
    return {
      for _ in 0..<100 {
        let key = next.next()
        let value = cache.removeValue(forKey: key)
        if value != nil && cache.containsValue(forKey: key) { return false }
      }
      return true
    }
  },
  Operation("cache: removeAll") {
    let cache = filled(try IntCache())
    return {
      cache.removeAll()
      return cache.isEmpty
    }
  },
]

/// Fills the cache again before each run, so that there are entries to give back.
private func refilled(_ name: String, _ body: @escaping @Sendable (IntCache) -> Void) -> Operation {
  Operation(name) {
    let cache = filled(try IntCache(), 12_000)
    return {
      body(cache)
      return true
    }
  }
}

private let upkeep: [Operation] = [
  refilled("cache: trim at level normal") { $0.trim(level: .normal) },
  refilled("cache: trim at level warning: every step of a reaction") { $0.trim(level: .warning) },
  refilled("cache: trim at level critical: every step of a reaction") { $0.trim(level: .critical) },
  refilled("cache: trim to a count") { $0.trim(toCount: $0.count - many(500)) },
  refilled("cache: trim to a cost") { $0.trim(toCost: $0.totalCost - many(50_000)) },
  refilled("cache: trim to bytes") { $0.trim(toBytes: $0.byteCount / 4 * 3) },
  refilled("cache: trim to a fraction") { $0.trim(toFraction: 0.7) },
  refilled("cache: sweep") { $0.sweep() },
  refilled("cache: offers") { $0.offerIdle() },
  Operation("cache: sweep, look-ups and a reaction after losses") {
    let cache = filled(try IntCache(), 12_000)
    let buffer = Buffer()
    return {
      cache.offerIdle()
      cache.offerIdle()
      var hand = PageOutHand()
      _ = try? cache.pageOut(300_000, hand: &hand)
      for key in stride(from: 0, to: 12_000, by: 40) { _ = unsafe cache.read(forKey: key, into: buffer.bytes) }
      cache.sweep()
      cache.trim(level: .warning)
      return true
    }
  },
  Operation("cache: statistics", takes: .result) {
    let cache = filled(try IntCache())
    return { cache.statistics.count > 0 }
  },
]

private let limits: [Operation] = [
  refilled("cache: a count limit that is lowered") { try! $0.setCountLimit(max(many(100), $0.count - many(700))) },
  refilled("cache: a cost limit that is lowered") { try! $0.setCostLimit(max(1000, $0.totalCost - many(70_000))) },
  refilled("cache: a byte limit that is lowered") { try! $0.setByteLimit(max(many(2 << 20), $0.byteCount - many(200_000))) },
  refilled("cache: limits that are lifted") {
    try! $0.setByteLimit(nil)
    try! $0.setCountLimit(nil)
    try! $0.setCostLimit(nil)
  },
]

private let makings: [Operation] = [
  Operation("cache: made and ended", takes: .result, floor: objectFloor) {
    return { (try? IntCache(name: "made")) != nil }
  },
  Operation("cache: made with limits, string keys, ended", takes: .result, floor: objectFloor) {
    return { (try? StringCache(byteLimit: 1 << 20)) != nil }
  },
]
