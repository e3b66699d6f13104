// SPDX-License-Identifier: MIT
// What is restored where there is not room for all of it, and what goes on meanwhile.

import PurgeableTestSupport
import Testing
import ToolSupport

@testable import Purgeable

/// Writes an array of equal bytes as its length and one of them: far less than it takes in memory.
private let short = StoredFormat<[UInt8]>(version: 1) { value in
  [UInt8(value.count % 256), UInt8(value.count / 256), value.first ?? 0]
} decode: { bytes, _ in
  [UInt8](purgeableBytes: bytes).map { [UInt8](repeating: $0[2], count: Int($0[0]) + 256 * Int($0[1])) }
}

/// Writes each byte three times.
private let long = StoredFormat<[UInt8]>(version: 1) { value in
  value + value + value
} decode: { bytes, _ in
  [UInt8](purgeableBytes: bytes).map { Array($0[..<($0.count / 3)]) }
}

@Suite("a restore into little room")
struct RestoreRoomTests {
  @Test("the hottest are restored also where a format has written fewer bytes than memory holds", arguments: [false, true])
  func shortFormat(hasCosts: Bool) throws {
    try withFolder { folder in
      let path = folder.path + "/cache"
      let saved = try PurgeableCache<Int, [UInt8]>()
      // The youngest are the hottest.
      for key in 0..<1000 { saved.setValue([UInt8](repeating: 7, count: 4096), forKey: key, cost: hasCosts ? 1 : nil) }
      try saved.save(to: path, format: short, isSynchronized: false)
      let restored = try PurgeableCache<Int, [UInt8]>(byteLimit: 2 << 20)
      let count = try restored.restore(from: path, format: short).entryCount
      #expect(count > 200 && restored.count == count && restored.statistics.departures.values.allSatisfy { $0 == 0 })
      let hottest = 1000 - count * 9 / 10
      let missing = (hottest..<1000).count { restored.peekValue(forKey: $0) == nil }
      #expect(missing == 0, "\(missing) of the hottest \(1000 - hottest)")
      #expect(restored.keys.allSatisfy { restored.peekValue(forKey: $0) == [UInt8](repeating: 7, count: 4096) })
    }
  }

  @Test("high costs take no room in bytes, as pieces of few entries would, which begin slabs of their own in each shard")
  func highCosts() throws {
    try withFolder { folder in
      let path = folder.path + "/cache"
      let saved = try PurgeableCache<Int, [UInt8]>()
      for key in 0..<20_000 { saved.setValue([UInt8](repeating: 7, count: 100), forKey: key, cost: 1_000_000) }
      let byteCounts = try [StoredFormat<[UInt8]>.purgeableBytes, short].map { format in
        try saved.save(to: path, format: format, isSynchronized: false)
        let restored = try PurgeableCache<Int, [UInt8]>(byteLimit: 16 << 20)
        restored.openEarly(count: 100)
        #expect(try restored.restore(from: path, format: format).entryCount == 20_000)
        return restored.byteCount
      }
      #expect(byteCounts[1] < byteCounts[0] * 5 / 4, "\(byteCounts)")
    }
  }

  @Test("a value that is longer in the file than it is in memory is restored where memory has room for it")
  func longFormat() throws {
    try withFolder { folder in
      let path = folder.path + "/cache"
      let saved = try PurgeableCache<Int, [UInt8]>(byteLimit: 4 << 20)
      let value = described(1, version: 1, count: 2_000_000)
      saved[1] = value
      try saved.save(to: path, format: long, isSynchronized: false)
      let restored = try PurgeableCache<Int, [UInt8]>(byteLimit: 4 << 20)
      let report = try restored.restore(from: path, format: long)
      #expect(report.entryCount == 1 && restored[1] == value, "\(report)")
    }
  }

  @Test("no entry leaves for the index of many small ones, wherever the byte limit ends it")
  func index() throws {
    try withFolder { folder in
      let path = folder.path + "/cache"
      let count = 20_000
      let saved = try PurgeableCache<Int, UInt8>()
      for key in 0..<count { saved[key] = UInt8(key % 256) }
      try saved.save(to: path, isSynchronized: false)
      var least = count
      for limit in stride(from: 600_000, through: 700_000, by: 10_000) {
        let restored = try PurgeableCache<Int, UInt8>(byteLimit: limit, clock: .system, hashSeed: 1)
        restored.staysInOneShard()
        let report = try restored.restore(from: path)
        let departures = restored.statistics.departures
        #expect(departures.values.allSatisfy { $0 == 0 } && restored.count == report.entryCount, "\(limit): \(departures)")
        least = min(least, report.entryCount)
      }
      #expect(least < count, "some limits end it")
    }
  }

  @Test("a save tells of its progress, and can be cancelled, between large values")
  func progress() throws {
    try withFolder { folder in
      let cache = try PurgeableCache<Int, [UInt8]>(evictionOrder: .lru)
      for key in 0..<8 { cache[key] = described(UInt32(key), version: 1, count: 2 << 20) }
      var parts: [Double] = []
      try cache.save(to: folder.path + "/cache", isSynchronized: false) {
        parts.append($0)
        return true
      }
      #expect(parts.count >= 8 && parts == parts.sorted(), "\(parts)")
    }
  }

  @Test("a save can be cancelled also where nothing of it is written")
  func quiet() throws {
    try withFolder { folder in
      let path = folder.path + "/cache"
      let none = StoredFormat<UInt8>(version: 1) { _ in
        throw CancellationError()
      } decode: { _, _ in
        nil
      }
      let (cache, objects) = (try PurgeableCache<Int, UInt8>(), try ObjectCache<Int, UInt8>())
      for key in 0..<25_000 { (cache[key], objects[key]) = (1, 1) }
      for save in [cache.save, objects.save] {
        var calls = 0
        let error = #expect(throws: PurgeableError.self) {
          try save(path, none, 0o600, false) {
            #expect($0 <= 1)
            calls += 1
            return calls < 3
          }
        }
        #expect(error?.kind == .cancelled && calls == 3)
      }
    }
  }

  @Test("a restore that ends at the byte limit evicts nothing: its bookkeeping, and that of shards that open, has room")
  func byteLimit() throws {
    try withFolder { folder in
      let path = folder.path + "/cache"
      /// `byteCounts`: from the hottest on.
      func check(_ byteCounts: [Int], limits: some Sequence<Int>) throws {
        let saved = try PurgeableCache<Int, [UInt8]>()
        for (key, count) in byteCounts.enumerated().reversed() { saved[key] = described(UInt32(key), version: 1, count: count) }
        try saved.save(to: path, isSynchronized: false)
        for limit in limits {
          let cache = try PurgeableCache<Int, [UInt8]>(byteLimit: limit)
          let report = try cache.restore(from: path)
          let departures = cache.statistics.departures
          #expect(departures.values.allSatisfy { $0 == 0 } && cache.count == report.entryCount, "\(limit): \(departures)")
          #expect(report.entryCount + report.leftOutCount == byteCounts.count)
        }
      }
      try check([2_070_000, 100], limits: [2 << 20])
      try check([728_158, 716_936, 471_816, 437_996], limits: [1_476_967])
      try check((0..<60).map { 100_000 + $0 * 37 % 60 * 5000 }, limits: stride(from: 8_400_000, to: 8_900_000, by: 20_000))
    }
  }

  @Test("where the program is asked before entries go, a restore ends at the byte limit all the same", arguments: [false, true])
  func asking(tracksKeys: Bool) throws {
    try withFolder { folder in
      let path = folder.path + "/cache"
      let saved = try PurgeableCache<Int, [UInt8]>()
      for key in 0..<4000 { saved[key] = described(UInt32(key), version: 1, count: 1000) }
      try saved.save(to: path, isSynchronized: false)
      let cache = try PurgeableCache<Int, [UInt8]>(byteLimit: 2 << 20, tracksKeys: tracksKeys)
      cache.shouldEvict = { _, _ in true }
      for key in 10_000..<10_100 { cache[key] = described(UInt32(key), version: 2, count: 1000) }
      let report = try cache.restore(from: path)
      let departures = cache.statistics.departures
      #expect(departures.values.allSatisfy { $0 == 0 } && cache.count == report.entryCount + 100, "\(departures)")
      #expect(report.entryCount > 500 && report.leftOutCount == 4000 - report.entryCount && cache.byteCount <= 2 << 20)
      for key in 10_000..<10_100 { #expect(cache.peekValue(forKey: key) == described(UInt32(key), version: 2, count: 1000)) }
    }
  }

  @Test("a record that is longer than the group has room for is skipped, and nobody is killed")
  func group() async throws {
    try needGroup(MemoryGroup.current()?.version ?? .v1, limitBytes: 256 << 20)
    await #expect(processExitsWith: .success) {
      let folder = try FakeRoot()
      defer { folder.remove() }
      let path = folder.path + "/cache"
      func save() throws {
        let saved = try PurgeableCache<Int, [UInt8]>()
        saved[1] = described(1, version: 1, count: 1000)
        saved[2] = [UInt8](repeating: 7, count: 200 << 20)
        saved[3] = described(3, version: 1, count: 1000)
        try saved.save(to: path, isSynchronized: false)
      }
      try save()
      let (group, reason) = TestGroup.make(version: MemoryGroup.current()!.version, limitBytes: 256 << 20)
      guard let group else { fatalError(reason) }
      defer { group.leave() }
      let cache = try PurgeableCache<Int, [UInt8]>()
      let report = try await cache.restore(from: path)
      require(report.entryCount == 2 && report.skippedCount == 1, "\(report)")
      for key in [1, 3] { require(cache[key] == described(UInt32(key), version: 1, count: 1000), "\(key)") }
    }
  }
}
