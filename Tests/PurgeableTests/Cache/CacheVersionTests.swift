// SPDX-License-Identifier: MIT
// Entries with a version: who asks for one gets no other, and it stays with its value.

import PurgeableTestSupport
import Testing

@testable import Purgeable

/// Versions of all lengths, also outside of ASCII.
private let versions: [String?] = [
  nil, "", "1", "\"etag\"", "ä", String(repeating: "v", count: 100), String(repeating: "w", count: 255),
  String(repeating: "é", count: 127),
]

/// Shorter ones of these, and ones that differ in their last byte only.
private func others(_ version: String) -> [String] {
  [version + "x", String(version.dropLast()), String(version.dropLast()) + "z"].filter { $0 != version && $0.utf8.count < 256 }
}

@Suite("cache: versions")
struct CacheVersionTests {
  @Test(
    "a value is found by its version and without one, and by no other", arguments: [false, true], [0, 10, 1100, 300 << 10])
  func found(tracksKeys: Bool, byteCount: Int) throws {
    for order in EvictionOrder.allCases {
      try find(in: PurgeableCache(evictionOrder: order, tracksKeys: tracksKeys), byteCount)
    }
  }

  private func find(in cache: PurgeableCache<Int, [UInt8]>, _ byteCount: Int) throws {
    var buffer = [UInt8](repeating: 0, count: byteCount)
    for (key, version) in versions.enumerated() {
      for (number, (withCost, withTimes)) in [(false, false), (true, false), (true, true)].enumerated() {
        // Each differs from the one before, which the buffer still has.
        let value = pattern(byteCount, seed: UInt8(3 * key + number + 1))
        cache.setValue(
          value, forKey: key, cost: withCost ? 7 : nil, expiry: withTimes ? .sinceCreation(.seconds(1000)) : nil,
          recomputeCost: withTimes ? .seconds(1) : nil, version: version)
        let entry = try #require(cache.peekEntry(forKey: key))
        #expect(entry.version == version && entry.cost == (withCost ? 7 : byteCount))
        #expect(entry.recomputeCost == (withTimes ? .seconds(1) : nil) && (entry.remainingTime == nil) == !withTimes)
        // Large values are not for messages.
        let isSame = entry.value == value && cache[key] == value && cache.values(forKeys: [key])[0] == value
        let isLent = cache.withBytes(forKey: key) { $0.byteCount } == byteCount
        #expect(isSame && isLent)
        let read = unsafe buffer.withUnsafeMutableBytes { unsafe cache.read(forKey: key, into: $0) }
        let isRead = buffer == value
        #expect(read == .hit(byteCount: byteCount) && isRead)
        if let version {
          let isFound = cache.value(forKey: key, version: version) == value
          #expect(isFound)
        }
        for other in others(version ?? "") + (version == nil ? [""] : []) {
          let isNil = cache.value(forKey: key, version: other) == nil
          #expect(isNil && MissReason.of(cache.lookUpValue(forKey: key, version: other)) == .outdated)
        }
        #expect(cache.containsValue(forKey: key), "nothing was removed")
      }
    }
    #expect(MissReason.of(cache.lookUpValue(forKey: 99, version: "1")) == .unknown)
    let snapshot = cache.snapshot()
    #expect(snapshot.count == versions.count && snapshot.allSatisfy { $0.value.count == byteCount })
    let statistics = cache.statistics
    #expect(statistics.missesByReason[.outdated, default: 0] > 10)
    #expect(statistics.missesByReason.values.reduce(0, +) == statistics.missCount)
    cache.checkBooks()
  }

  @Test("a version of more than 255 bytes is refused, and the old value stays")
  func tooLong() throws {
    let cache = try PurgeableCache<Int, [UInt8]>()
    cache.setValue([1], forKey: 1, version: "1")
    for version in [String(repeating: "v", count: 256), String(repeating: "é", count: 128)] {
      #expect(cache.setValue([2], forKey: 1, version: version) == .notEncodable)
      #expect(cache.value(forKey: 1, version: version) == nil)
    }
    #expect(cache.peekEntry(forKey: 1)?.version == "1" && cache[1] == [1] && cache.statistics.refusalCount == 2)
  }

  @Test("a store without a version takes it away, modifyValue keeps it, and a look-up counts a use of its own version only")
  func kept() throws {
    let cache = try PurgeableCache<Int, [UInt8]>()
    cache.setValue([1], forKey: 1, cost: 5, version: "a")
    cache.modifyValue(forKey: 1) { $0?.append(2) }
    #expect(cache.peekEntry(forKey: 1).map { $0.version == "a" && $0.value == [1, 2] && $0.cost == 5 } == true)
    #expect(cache.removeAll { $0.version != "a" } == 0)
    for priority in [EntryPriority.pinned, .normal] {
      try cache.setPriority(priority, forKey: 1)
      #expect(cache.value(forKey: 1, version: "a") == [1, 2])
    }
    cache[1] = [3]
    #expect(cache.peekEntry(forKey: 1).map { $0.version == nil } == true)
    cache.setValue([4], forKey: 1, version: "b")
    #expect(cache.updateValue([5], forKey: 1) == [4])
    #expect(cache.peekEntry(forKey: 1).map { $0.version == nil } == true)
    cache.setValue([6], forKey: 1, version: "c")
    let before = cache.statistics
    _ = cache.value(forKey: 1, version: "d")
    _ = cache.value(forKey: 1, version: "c")
    let since = cache.statistics.difference(from: before)
    #expect(since.hitCount == 1 && since.missCount == 1)
    #expect(cache.removeValue(forKey: 1) == [6])
    cache.checkBooks()
  }

  @Test("a change of the version alone, to one of the same length, is a change to who changes a value", arguments: [false, true])
  func changed(tracksKeys: Bool) throws {
    let cache = try PurgeableCache<Int, [UInt8]>(tracksKeys: tracksKeys)
    cache.setValue([1], forKey: 1, version: "a")
    var runs = 0
    cache.modifyValue(forKey: 1) { value in
      runs += 1
      if runs == 1 { cache.setValue([1], forKey: 1, version: "b") }
      value = [2]
    }
    #expect(runs == 2 && cache.peekEntry(forKey: 1)?.version == "b")
  }

  @Test("versions stay with their values where entries move: evictions, compactions, shards that open", arguments: [false, true])
  func moved(tracksKeys: Bool) throws {
    let told = Departures<Int, [UInt8]>()
    let share = TestRun.isFull ? 1 : 6
    let cache =
      tracksKeys
      ? try PurgeableCache<Int, [UInt8]>(byteLimit: (4 << 20) / share, onDeparture: { told.note($0) })
      : try PurgeableCache<Int, [UInt8]>(byteLimit: (4 << 20) / share)
    func version(_ key: Int) -> String? { key % 3 == 0 ? nil : String(repeating: "v", count: key % 256) }
    for key in 0..<60_000 / slowness / share {
      cache.setValue(described(UInt32(key), version: 1, count: 100), forKey: key, version: version(key))
      for hot in 0..<4 { _ = cache[key - key % 50 + hot] }
      if key % 3 == 1 { cache.remove(forKey: key - 5) }
    }
    var count = 0
    for entry in cache.entries {
      count += 1
      guard versionDescribed(in: entry.value, key: UInt32(entry.key)) == 1, entry.version == version(entry.key) else {
        Issue.record("key \(entry.key): version \(entry.version ?? "none")")
        continue
      }
      if let its = entry.version, cache.value(forKey: entry.key, version: its) != entry.value {
        Issue.record("key \(entry.key): not found by its version")
      }
    }
    #expect(count > 1000)
    for departure in told.take() {
      if let value = departure.value, versionDescribed(in: value, key: UInt32(departure.key)) != 1 {
        Issue.record("told of key \(departure.key): \(value.count) bytes")
      }
    }
    cache.checkBooks()
  }

  @Test("an entry without a version takes no more than before, one with takes its bytes and two")
  func size() throws {
    func payload(_ version: String?, _ cost: Int? = nil) throws -> Int {
      let cache = try PurgeableCache<Int, [UInt8]>()
      cache.setValue(pattern(100), forKey: 1, cost: cost, version: version)
      return cache.statistics.memory.payloadBytes
    }
    #expect(try payload(nil) == 108 && payload("") == 110 && payload("abc") == 113 && payload(nil, 7) == 117)
    #expect(try payload("abc", 7) == 121)
  }
}
