// SPDX-License-Identifier: MIT
// Every system call and allocation refused in turn, in a process of its own: an error or a miss, and all is right afterwards.

import CPurgeable
import CPurgeable.Testing
import Glibc
import Testing

@testable import Purgeable

private let anyCall = UInt32(purgeable_testing_call_any.rawValue)

private func fail(_ calls: UInt32 = anyCall, at number: UInt64, and after: Bool = false) {
  purgeable_testing_fail(calls, number, ENOMEM, after)
}

private func noFaults() { purgeable_testing_fail(0, 0, 0, false) }

/// So many entries, each right or not there.
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
          for key in 0..<UInt32(50) { made.set(described(key, version: 1, count: 100), forKey: key) }
          requireContents(made, 50)
        }
        if !hasFailed {
          require(made != nil && refused > 3, "\(refused) refusals")
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
        // What the first stores of a fresh cache need: chunk, directories, sums of pages.
        for number in 1...UInt64(60) {
          let cache = try PurgeableCache<UInt32, [UInt8]>(tracksKeys: tracksKeys)
          fail(at: number)
          var refused: [UInt32] = []
          for key in 0..<UInt32(300) {
            switch cache.set(described(key, version: 1, count: 500), forKey: key) {
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
            require(cache.set(described(key, version: 1, count: 500), forKey: key) == .stored, "again")
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
      for tracksKeys in [false, true] {
        let cache = try PurgeableCache<UInt32, [UInt8]>(tracksKeys: tracksKeys)
        for key in 0..<UInt32(2000) { cache.set(described(key, version: 1, count: 100), forKey: key) }
        fail(UInt32(purgeable_testing_call_mmap.rawValue | purgeable_testing_call_allocate.rawValue), at: 1, and: true)
        let huge = [UInt8](repeating: 1, count: 80 << 20)
        require(cache.set(huge, forKey: 5000) == .outOfMemory, "no chunk for it")
        require(cache.set(huge, forKey: 7) == .outOfMemory, "no chunk for it either")
        noFaults()
        require(cache[7] != nil, "what was there before stays")
        requireContents(cache, 2000)
        fail(UInt32(purgeable_testing_call_mmap.rawValue), at: 1, and: true)
        // The index cannot grow: others make room, by policy.
        var refused = 0
        for key in 2000..<UInt32(60_000) where cache.set(described(key, version: 1, count: 8), forKey: key) != .stored {
          refused += 1
        }
        requireContents(cache, 60_000, all: false)
        require(cache.count > 2000 && refused < 30_000, "\(cache.count) entries, \(refused) refused")
        noFaults()
        for key in 0..<UInt32(60_000) { cache.set(described(key, version: 2, count: 8), forKey: key) }
        requireContents(cache, 60_000)
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
      let cache = try PurgeableCache<UInt32, [UInt8]>()
      for key in 0..<UInt32(5000) { cache.set(described(key, version: 1, count: 300), forKey: key) }
      for round in 0..<40 {
        fail(UInt32(calls), at: round < 20 ? UInt64(round / 4 + 1) : 1, and: round >= 20)
        switch round % 4 {
        case 0: cache.offerIdle()
        case 1: cache.sweep()
        case 2: _ = cache.statistics
        default: require(cache.remove(UInt32(4999 - round / 4)), "removal")
        }
        noFaults()
        requireContents(cache, 5000 - UInt32(round + 1) / 4)
      }
      fail(UInt32(calls), at: 1, and: true)
      cache.trim(toCount: 1000)
      cache.trim(toBytes: cache.byteCount / 2)
      noFaults()
      requireContents(cache, 5000, all: false)
      require(cache.count <= 1000, "trimmed")
      fail(UInt32(calls), at: 1, and: true)
      cache.removeAll()
      noFaults()
      for key in 0..<UInt32(5000) { cache.set(described(key, version: 2, count: 300), forKey: key) }
      requireContents(cache, 5000)
      cache.offerIdle()
      cache.trim(toBytes: 0)
      require(cache.isEmpty && cache.statistics.heldBytes == 0, "all given back in the end")
    }
  }

  @Test("a hit makes no system call and takes nothing from the allocator: copying, into a buffer, with and without tracked keys")
  func calls() async {
    await #expect(processExitsWith: .success) {
      for tracksKeys in [false, true] {
        let cache = try PurgeableCache<UInt32, [UInt8]>(tracksKeys: tracksKeys)
        for key in 0..<UInt32(5000) { cache.set(described(key, version: 1, count: 100), forKey: key) }
        // The library's thread has done its rounds, and sleeps.
        cache.offerIdle()
        cache.offerIdle()
        for _ in 0..<40 where cache.engine.hasPending { usleep(100_000) }
        usleep(700_000)
        let offered = cache.statistics.offeredBytes
        require(offered > 400_000, "\(offered) bytes on offer")
        let before = purgeable_testing_call_count(anyCall)
        var buffer = [UInt8](repeating: 0, count: 200)
        for _ in 0..<4 {
          for key in 0..<UInt32(5000) {
            require(cache.value(forKey: key) != nil, "hit")
            let found = unsafe buffer.withUnsafeMutableBytes { unsafe cache.read(forKey: key, into: $0) }
            require(found == .hit(byteCount: 100), "hit")
            require(cache.contains(key), "there")
          }
        }
        let after = purgeable_testing_call_count(anyCall)
        require(after == before, "\(after - before) calls")
        // And nothing came off offer for it.
        require(cache.statistics.offeredBytes == offered, "still on offer")
      }
    }
  }
}
