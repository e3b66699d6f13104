// SPDX-License-Identifier: MIT
// The mappings and resident pages of small caches, counted in a process of its own.

import CPurgeable
import Glibc
import Testing

@testable import Purgeable

/// The lines of a file under /proc.
private func lines(_ path: String) -> [Substring] { SmallFile.text(path, limit: 1 << 26)?.split(separator: "\n") ?? [] }

@Suite("Cache: small ones")
struct CacheSmallTests {
  /// A slot has two buckets of eight, by a hash with a new seed for every cache. Among two million simulated indexes, no index of
  /// 100 entries had an entry with both buckets full; of those with 128 entries 10 had, and with 200 every 23rd.
  @Test("an index of 100 entries and the sums of the first pages lie in one page, and grow out of it")
  func home() throws {
    let cache = try PurgeableCache<Int, Int>(clock: .system, hashSeed: chosenSeed)
    #expect(cache.engine.shards.founder.index.byteCount == 4096)
    for i in 0..<100 { cache[i] = i }
    #expect(cache.engine.shards.founder.index.byteCount == 4096)
    for i in 100..<5000 { cache[i] = i }
    #expect(cache.engine.shards.founder.index.byteCount > 40_000)
    #expect((0..<5000).allSatisfy { cache[$0] == $0 })
    for i in 0..<4990 { cache.remove(forKey: i) }
    cache.sweep()
    #expect(cache.engine.shards.founder.index.byteCount == 4096)
    #expect((4990..<5000).allSatisfy { cache[$0] == $0 })
    cache.checkBooksSwept()
  }

  @Test("nine of ten indexes of 200 entries lie in one page")
  func nearlyFullHome() throws {
    var count = 0
    for number in UInt64(0)..<200 {
      let cache = try PurgeableCache<Int, Int>(clock: .system, hashSeed: chosenSeed &+ number)
      for i in 0..<200 { cache[i] = i }
      if cache.engine.shards.founder.index.byteCount == 4096 { count += 1 }
    }
    // Expected are 191, with a standard deviation of 3.
    #expect(count > 170, "\(count) of 200")
  }

  @Test("the sums of pages go on beyond the first ones, and costs stay exact")
  func sums() throws {
    let cache = try PurgeableCache<Int, [UInt8]>()
    var cost: Int = 0
    for i in 0..<1200 {
      cache.setValue(pattern(1000), forKey: i, cost: i)
      cost += i
    }
    #expect(cache.totalCost == cost)
    cache.discardAll()
    cache.sweep()
    cache.checkBooksSwept()
    cache.removeAll()
    #expect(cache.totalCost == 0 && cache.isEmpty)
  }

  @Test("an empty cache has three mappings at most and 24 KiB resident; all goes when it ends", .countsMemory)
  func empty() async {
    await #expect(processExitsWith: .success) {
      let first = try PurgeableCache<Int, Int>()
      first[0] = 0
      var caches: [PurgeableCache<Int, Int>] = []
      caches.reserveCapacity(2000)
      let (mappings, resident) = (lines("/proc/self/maps").count, residentBytes())
      for _ in 0..<1000 { caches.append(try PurgeableCache()) }
      let (mapped, taken) = (lines("/proc/self/maps").count - mappings, residentBytes() - resident)
      require(mapped <= 3000, "\(mapped) mappings")
      require(taken <= 1000 * 24 << 10, "\(taken) bytes")
      caches.removeAll(keepingCapacity: true)
      require(lines("/proc/self/maps").count <= mappings + 20, "\(lines("/proc/self/maps").count) of \(mappings) mappings")
    }
  }
}
