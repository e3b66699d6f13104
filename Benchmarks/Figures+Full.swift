// SPDX-License-Identifier: MIT
// A cache at its limit, with String keys and Data values: stores against a textbook LRU, hits against Dictionary and NSCache.

import BenchmarkSupport
import Foundation
import Purgeable
import PurgeableFoundation
import ToolSupport

/// String keys of some 30 bytes, as of files and addresses, and values that are made when they are stored.
struct NamedWorkload {
  let keys: [String]
  let order: [Int]
  let valueByteCount: Int

  init(count: Int, valueByteCount: Int) {
    var generator = SplitMix64()
    keys = (0..<count).map { "https://example.org/image/" + String(SplitMix64.mix(UInt64($0) &+ 1), radix: 36) }
    order = Array(0..<count).shuffled(using: &generator)
    self.valueByteCount = valueByteCount
  }

  func value(_ number: Int) -> Data { Data(repeating: UInt8(truncatingIfNeeded: number % 251), count: valueByteCount) }
}

enum Full {
  static func figures(_ scale: Scale) throws -> [Figure] { try stores(scale) + hits(scale) + allocations(scale) }

  // MARK: Stores

  private enum Limited: Int, CaseIterable {
    case bytes, count, cost
    var name: String { ["byte limit", "count limit", "cost limit"][rawValue] }
  }

  private static func stores(_ scale: Scale) throws -> [Figure] {
    var figures: [Figure] = []
    for (byteCount, reach) in [(100, 1.0), (4096, 1.3)] {
      for limited in Limited.allCases {
        let entries = (byteCount == 100 ? scale(400_000, quick: 40_000) : scale(16_000, quick: 4000))
        let numbers = try ChildRun.run("full-stores", [byteCount, limited.rawValue, entries, scale(5, quick: 3)])
        figures.append(
          Figure(
            "stores at a \(limited.name), String keys, Data of \(byteCount) bytes, against a textbook LRU", .time,
            try Spread(numbers, "store/lru"), .atMost(reach), "times its time",
            note: "store \(Figure.text(try numbers.value("store"))) ns, LRU \(Figure.text(try numbers.value("lru"))) ns"))
      }
    }
    return figures
  }

  /// Arguments: bytes of a value, what is limited, entries at the limit, rounds. Each round stores as many entries again; all of
  /// them are new ones, so that each store has others evicted.
  @Sendable static func measureStores(_ arguments: [Int]) throws -> Numbers {
    let (byteCount, entries, rounds) = (arguments[0], arguments[2], arguments[3])
    let limited = Limited(rawValue: arguments[1])!
    // Keys that left long ago come again.
    let workload = NamedWorkload(count: 4 * entries, valueByteCount: byteCount)
    let entryBytes = workload.keys[0].utf8.count + byteCount
    var limits = Limits()
    let cache: PurgeableCache<String, Data>
    switch limited {
    case .bytes:
      limits.bytes = entries * entryBytes
      cache = try PurgeableCache(name: "figures", byteLimit: limits.bytes)
    case .count:
      limits.count = entries
      cache = try PurgeableCache(name: "figures", countLimit: entries)
    case .cost:
      limits.cost = entries * byteCount
      cache = try PurgeableCache(name: "figures", costLimit: limits.cost)
    }
    let lru = TextbookLRU<String, Data>(limits)
    var (next, lruNext) = (0, 0)
    // Both are full before the first round counts, which is the warm-up round.
    let times = try Rounds.alternate(
      rounds,
      [
        { next = storePass(cache, workload, from: next, count: 2 * entries) },
        { lruNext = storePass(lru, workload, from: lruNext, count: 2 * entries) },
      ])
    guard cache.count > entries / 2, lru.count > entries / 2, cache.count <= entries else {
      throw ToolFailure("\(cache.count) and \(lru.count) entries of \(entries)")
    }
    var numbers: Numbers = [:]
    for (side, name) in ["store", "lru"].enumerated() {
      numbers[name] = Spread(times.map { $0[side] / Double(2 * entries) }).median
    }
    Rounds.ratio(times, 0, over: 1).write(to: &numbers, "store/lru")
    return numbers
  }

  @inline(never)
  private static func storePass(_ cache: PurgeableCache<String, Data>, _ workload: NamedWorkload, from: Int, count: Int) -> Int {
    for i in from..<from + count {
      cache.setValue(workload.value(i), forKey: workload.keys[i % workload.keys.count])
    }
    return from + count
  }

  @inline(never)
  private static func storePass(_ cache: TextbookLRU<String, Data>, _ workload: NamedWorkload, from: Int, count: Int) -> Int {
    for i in from..<from + count {
      cache.setValue(workload.value(i), forKey: workload.keys[i % workload.keys.count], cost: workload.valueByteCount)
    }
    return from + count
  }

  // MARK: Hits

  private static func hits(_ scale: Scale) throws -> [Figure] {
    var figures: [Figure] = []
    let sizes = [
      (scale(200_000, quick: 50_000), 100, 1.25, 2.5, 1.0), (scale(100_000, quick: 10_000), 4096, 1.4, 1.8, 1.2),
      (scale(10_000, quick: 1000), 65_536, 1.6, 1.1, 1.2),
    ]
    for (count, byteCount, ofDictionary, asNSCache, intoBuffer) in sizes {
      let numbers = try ChildRun.run("full-hits", [count, byteCount, scale(7, quick: 3)])
      let what = "String to Data of \(byteCount) bytes"
      let note = try ["value", "read", "bytes", "dictionary", "nscache"].map { "\($0) \(Figure.text(try numbers.value($0))) ns" }
        .joined(separator: ", ")
      func figure(_ name: String, _ ratio: String, _ reach: Figure.Reach, _ unit: String, _ note: String? = nil) throws -> Figure
      {
        Figure(name, .time, try Spread(numbers, ratio), reach, unit, note: note)
      }
      figures += [
        try figure("hits, \(what), against Dictionary", "value/dictionary", .atMost(ofDictionary), "times its time", note),
        try figure("hits, \(what), against NSCache", "nscache/value", .atLeast(asNSCache), "times as fast"),
        try figure(
          "hits, \(what), into a buffer, against Dictionary", "read/dictionary", .atMost(intoBuffer), "times its time"),
      ]
      if byteCount >= 4096 {
        let reach = byteCount == 4096 ? 1.4 : 1.3
        figures.append(
          try figure("hits, \(what), withBytes, against Dictionary", "bytes/dictionary", .atMost(reach), "times its time"))
      }
    }
    return figures
  }

  /// Arguments: entries, bytes of a value, rounds. Each side adds up what it finds.
  @Sendable static func measureHits(_ arguments: [Int]) throws -> Numbers {
    let (count, byteCount) = (arguments[0], arguments[1])
    let workload = NamedWorkload(count: count, valueByteCount: byteCount)
    let cache = try PurgeableCache<String, Data>(name: "figures")
    var dictionary: [String: Data] = [:]
    let nsCache = NSCache<NSString, NSData>()
    let nsKeys = workload.keys.map { NSString(string: $0) }
    for i in 0..<count {
      cache.setValue(workload.value(i), forKey: workload.keys[i])
      dictionary[workload.keys[i]] = workload.value(i)
      nsCache.setObject(NSData(data: workload.value(i)), forKey: nsKeys[i])
    }
    settle(cache)
    // Aligned to a line of the processor's cache: what is read across lines is summed up more slowly.
    let buffer = UnsafeMutableRawBufferPointer.allocate(byteCount: byteCount, alignment: 64)
    defer { unsafe buffer.deallocate() }
    var sums: [UInt64] = []
    func pass(_ sum: (Int) -> UInt64) { sums.append(workload.order.reduce(into: 0) { $0 &+= sum($1) }) }
    let times = try Rounds.alternate(
      arguments[2],
      [
        { pass { cache.value(forKey: workload.keys[$0]).map(Self.sum) ?? 0 } },
        {
          pass { i in
            guard case .hit(let count) = unsafe cache.read(forKey: workload.keys[i], into: buffer) else { return 0 }
            return unsafe benchmark_sum(buffer.baseAddress!, count)
          }
        },
        {
          pass { i in
            cache.withBytes(forKey: workload.keys[i]) { span in
              unsafe span.withUnsafeBytes { unsafe benchmark_sum($0.baseAddress!, $0.count) }
            } ?? 0
          }
        },
        { pass { dictionary[workload.keys[$0]].map(Self.sum) ?? 0 } },
        { pass { nsCache.object(forKey: nsKeys[$0]).map { unsafe benchmark_sum($0.bytes, $0.length) } ?? 0 } },
      ])
    guard Set(sums).count == 1 else { throw ToolFailure("the sides found different bytes") }
    var numbers: Numbers = [:]
    for (side, name) in ["value", "read", "bytes", "dictionary", "nscache"].enumerated() {
      numbers[name] = Spread(times.map { $0[side] / Double(count) }).median
    }
    Rounds.ratio(times, 0, over: 3).write(to: &numbers, "value/dictionary")
    Rounds.ratio(times, 4, over: 0).write(to: &numbers, "nscache/value")
    Rounds.ratio(times, 1, over: 3).write(to: &numbers, "read/dictionary")
    Rounds.ratio(times, 2, over: 3).write(to: &numbers, "bytes/dictionary")
    return numbers
  }

  @inline(__always)
  private static func sum(_ data: Data) -> UInt64 {
    // The data's own bytes, for the length of the closure.
    unsafe data.withUnsafeBytes { unsafe benchmark_sum($0.baseAddress!, $0.count) }
  }

  // MARK: Allocations

  private static func allocations(_ scale: Scale) throws -> [Figure] {
    let numbers = try ChildRun.run("full-allocations", [scale(100_000, quick: 20_000)])
    return [("Int", 0.0), ("Double", 0), ("String", 0), ("Array", 1), ("Data", 1)].map { name, reach in
      Figure(
        "allocations per hit, String keys, values of \(name == "Array" ? "[UInt8]" : name)", .time, numbers[name],
        .atMost(reach), "allocations", note: numbers[name] == nil ? "this build does not count them" : nil)
    }
  }

  /// Arguments: hits.
  @Sendable static func countAllocations(_ arguments: [Int]) throws -> Numbers {
    var numbers: Numbers = [:]
    guard benchmark_counts_allocations() else { return numbers }
    numbers["Int"] = try allocationsPerHit(arguments[0]) { $0 }
    numbers["Double"] = try allocationsPerHit(arguments[0]) { Double($0) }
    numbers["String"] = try allocationsPerHit(arguments[0]) { "\($0)" }
    numbers["Array"] = try allocationsPerHit(arguments[0]) { [UInt8](repeating: UInt8($0 % 256), count: 100) }
    numbers["Data"] = try allocationsPerHit(arguments[0]) { Data(repeating: UInt8($0 % 256), count: 100) }
    return numbers
  }

  private static func allocationsPerHit<Value: PurgeableValue & Equatable>(
    _ count: Int, _ value: (Int) -> Value
  ) throws -> Double {
    let cache = try PurgeableCache<String, Value>(name: "figures")
    let workload = NamedWorkload(count: 1000, valueByteCount: 0)
    for i in workload.order { cache.setValue(value(i), forKey: workload.keys[i]) }
    // The first pass makes what the runtime makes once.
    var hits = workload.keys.count { cache.value(forKey: $0) != nil } - 1000
    let before = benchmark_allocation_count()
    for i in 0..<count where cache.value(forKey: workload.keys[i % 1000]) != nil { hits += 1 }
    let allocations = benchmark_allocation_count() - before
    guard hits == count else { throw ToolFailure("\(hits) hits of \(count)") }
    return Double(allocations) / Double(count)
  }
}
