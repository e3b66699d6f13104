// SPDX-License-Identifier: MIT
// Every system call and allocation refused in turn, in a process of its own: an error or a miss, and all is right afterwards.

import CPurgeable
import CPurgeable.Testing
import Glibc
import PurgeableTestSupport
import Testing

@testable import Purgeable

private let anyCall = UInt32(purgeable_testing_call_any.rawValue)

private func fail(_ calls: UInt32 = anyCall, at number: UInt64, and after: Bool = false) {
  purgeable_testing_fail(calls, number, ENOMEM, after)
}

private func noFaults() { purgeable_testing_fail(0, 0, 0, false) }

/// Requires each of so many entries to be right or, unless `all`, absent.
private func requireContents(_ cache: PurgeableCache<UInt32, [UInt8]>, _ count: UInt32, all: Bool = true) {
  var found = 0
  for key in 0..<count {
    guard let bytes = cache.value(forKey: key) else { continue }
    require(versionDescribed(in: bytes, key: key) != nil, "entry \(key)")
    found += 1
  }
  require(!all || found == Int(count), "\(found) of \(count)")
  require(cache.count == found, "count \(cache.count), found \(found)")
}

@Suite("PurgeableCache, with calls that fail")
struct CacheFaultTests {
  @Test("creation throws out of memory, and leaves nothing behind")
  func creation() async {
    await #expect(processExitsWith: .success) {
      _ = try PurgeableCache<UInt32, [UInt8]>()
      var refused = 0
      for number in 1...UInt64(500) {
        fail(at: number)
        var made: PurgeableCache<UInt32, [UInt8]>?
        do throws(PurgeableError) {
          made = try PurgeableCache<UInt32, [UInt8]>()
        } catch {
          require(error.kind == .outOfMemory, "\(error)")
          refused += 1
        }
        let hasFailed = purgeable_testing_has_failed()
        noFaults()
        if let made {
          for key in 0..<UInt32(50) { made.setValue(described(key, version: 1, count: 100), forKey: key) }
          requireContents(made, 50)
        }
        if !hasFailed {
          require(made != nil && refused > 2, "\(refused) refusals")
          return
        }
      }
      require(false, "500 calls to make a cache")
    }
  }

  @Test("a store that gets no memory is refused, and everything stays")
  func stores() async {
    await #expect(processExitsWith: .success) {
      for tracksKeys in [false, true] {
        // The calls that the first stores of a fresh cache make: chunk, directories, sums of pages.
        for number in 1...UInt64(60) {
          let cache = try PurgeableCache<UInt32, [UInt8]>(tracksKeys: tracksKeys)
          fail(at: number)
          var refused: [UInt32] = []
          for key in 0..<UInt32(300) {
            switch cache.setValue(described(key, version: 1, count: 500), forKey: key) {
            case .stored: break
            case .outOfMemory: refused.append(key)
            case let other: require(false, "\(other)")
            }
          }
          let hasFailed = purgeable_testing_has_failed()
          noFaults()
          require(refused.count <= 1, "\(refused.count) refused")
          for key in refused {
            require(cache[key] == nil, "a refused key is not there")
            require(cache.setValue(described(key, version: 1, count: 500), forKey: key) == .stored, "again")
          }
          requireContents(cache, 300)
          if !hasFailed { break }
          require(number < 60, "60 calls for 300 stores")
        }
      }
    }
  }

  @Test(
    "without any memory from some moment on, large stores are refused and change nothing, small ones find room by policy",
    .notUnderThreadSanitizer)
  func noMemory() async {
    await #expect(processExitsWith: .success) {
      // 1,500 entries lie on pages whose sums fit into the index's home. Later there is no memory for sums of more pages, and
      // when a store needs a slab, a whole one is evicted, with up to 1,500 small entries. With 4,000 entries only the index
      // needs memory.
      let huge = [UInt8](repeating: 1, count: 80 << 20)
      for (tracksKeys, first, least) in [(false, 1500, 1), (true, 1500, 1), (false, 4000, 2500), (true, 4000, 2500)] {
        let cache = try PurgeableCache<UInt32, [UInt8]>(tracksKeys: tracksKeys)
        let first = UInt32(first)
        for key in 0..<first { cache.setValue(described(key, version: 1, count: 100), forKey: key) }
        fail(UInt32(purgeable_testing_call_mmap.rawValue | purgeable_testing_call_allocate.rawValue), at: 1, and: true)
        require(cache.setValue(huge, forKey: 5000) == .outOfMemory, "no chunk for it")
        require(cache.setValue(huge, forKey: 7) == .outOfMemory, "no chunk for it either")
        noFaults()
        require(cache[7] != nil, "what was there before stays")
        requireContents(cache, first)
        fail(UInt32(purgeable_testing_call_mmap.rawValue), at: 1, and: true)
        // The index cannot grow: other entries are evicted by policy.
        let count: UInt32 = TestRun.isFull ? 20_000 : 7000
        var refused = 0
        var fewest = cache.count
        for key in first..<count {
          if cache.setValue(described(key, version: 1, count: 8), forKey: key) != .stored { refused += 1 }
          fewest = min(fewest, cache.count)
        }
        requireContents(cache, count, all: false)
        require(fewest >= least && refused == 0, "\(fewest) entries at the fewest, \(refused) refused")
        noFaults()
        cache.openSooner(count: 6000)
        for key in 0..<count { cache.setValue(described(key, version: 2, count: 8), forKey: key) }
        requireContents(cache, count)
        cache.removeAll()
        require(cache.isEmpty, "empty")
      }
    }
  }

  @Test("refused madvise and mincore change no content: offers, sweeps, trims, removals", .notUnderThreadSanitizer)
  func advice() async {
    await #expect(processExitsWith: .success) {
      let calls =
        purgeable_testing_call_madvise_free.rawValue | purgeable_testing_call_madvise_dontneed.rawValue
        | purgeable_testing_call_madvise_other.rawValue | purgeable_testing_call_mincore.rawValue
      let count: UInt32 = TestRun.isFull ? 5000 : 1500
      let cache = try PurgeableCache<UInt32, [UInt8]>()
      for key in 0..<count { cache.setValue(described(key, version: 1, count: 300), forKey: key) }
      for round in 0..<40 {
        fail(UInt32(calls), at: round < 20 ? UInt64(round / 4 + 1) : 1, and: round >= 20)
        switch round % 4 {
        case 0: cache.offerIdle()
        case 1: cache.sweep()
        case 2: _ = cache.statistics
        default: require(cache.remove(forKey: count - 1 - UInt32(round / 4)), "removal")
        }
        noFaults()
        requireContents(cache, count - UInt32(round + 1) / 4)
      }
      fail(UInt32(calls), at: 1, and: true)
      cache.trim(toCount: Int(count) / 5)
      cache.trim(toBytes: cache.byteCount / 2)
      noFaults()
      requireContents(cache, count, all: false)
      require(cache.count <= Int(count) / 5, "trimmed")
      fail(UInt32(calls), at: 1, and: true)
      cache.removeAll()
      noFaults()
      for key in 0..<count { cache.setValue(described(key, version: 2, count: 300), forKey: key) }
      requireContents(cache, count)
      cache.offerIdle()
      cache.trim(toBytes: 0)
      require(cache.isEmpty && cache.statistics.memory.heldBytes == 0, "all given back in the end")
    }
  }

  @Test("a hit makes no system call and takes nothing from the allocator: copying, into a buffer, with and without tracked keys")
  func calls() async {
    await #expect(processExitsWith: .success) {
      // The library's thread makes calls of its own.
      keepLibraryThreadAway()
      let count: UInt32 = TestRun.isFull ? 5000 : 2000
      for tracksKeys in [false, true] {
        let cache = try PurgeableCache<UInt32, [UInt8]>(tracksKeys: tracksKeys)
        for key in 0..<count { cache.setValue(described(key, version: 1, count: 100), forKey: key) }
        cache.offerIdle()
        cache.offerIdle()
        let offered = cache.statistics.memory.offeredBytes
        require(offered > (TestRun.isFull ? 400_000 : 120_000), "\(offered) bytes on offer")
        let before = purgeable_testing_call_count(anyCall)
        var buffer = [UInt8](repeating: 0, count: 200)
        for _ in 0..<4 {
          for key in 0..<count {
            require(cache.value(forKey: key) != nil, "hit")
            let found = unsafe buffer.withUnsafeMutableBytes { unsafe cache.read(forKey: key, into: $0) }
            require(found == .hit(byteCount: 100), "hit")
            require(cache.containsValue(forKey: key), "there")
          }
        }
        let after = purgeable_testing_call_count(anyCall)
        require(after == before, "\(after - before) calls")
        // No page came off offer.
        require(cache.statistics.memory.offeredBytes == offered, "still on offer")
      }
      require(!hasLibraryThread(), "the library's thread has come")
    }
  }
}
