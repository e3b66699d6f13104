// SPDX-License-Identifier: MIT
// A cache that ends gives back all that it took: mappings, memory, its thread. Each test in a process of its own.

import CPurgeable
import Glibc
import PurgeableTestSupport
import Synchronization
import Testing
import ToolSupport

@testable import Purgeable

/// A number of /proc/self/status, in the file's unit.
private func status(_ name: String) -> Int {
  guard let text = try? SmallFile.read("/proc/self/status", limit: 1 << 16) else { return -1 }
  for line in text.split(separator: "\n") where line.hasPrefix(name + ":") {
    return line.split { $0 == " " || $0 == "\t" }.dropFirst().first.flatMap { Int($0) } ?? -1
  }
  return -1
}

private func residentKilobytes() -> Int { status("VmRSS") }

/// How many of the process's threads are the library's, by their name.
private func threadCount() -> Int {
  guard let folder = unsafe opendir("/proc/self/task") else { return -1 }
  defer { unsafe closedir(folder) }
  var count = 0
  while let entry = unsafe readdir(folder) {
    // Safe: the name ends with a zero, within the entry.
    let name = unsafe withUnsafePointer(to: &entry.pointee.d_name) { pointer in
      unsafe pointer.withMemoryRebound(to: CChar.self, capacity: 256) { unsafe String(cString: $0) }
    }
    if (try? SmallFile.read("/proc/self/task/\(name)/comm", limit: 64)) == "purgeable\n" { count += 1 }
  }
  return count
}

private func mappingCount() -> Int {
  (try? SmallFile.read("/proc/self/maps", limit: 16 << 20))?.split(separator: "\n").count ?? -1
}

@Suite("PurgeableCache, memory of the process")
struct CacheMemoryTests {
  @Test(
    "dropping a cache of many entries gives its memory back, in less than a second of the processor's time", .countsMemory,
    arguments: [false, true])
  func dropping(tracksKeys: Bool) async {
    await #expect(processExitsWith: .success) { [tracksKeys] in
      // The first cache starts the library's thread and has the runtime allocate its own memory.
      do {
        let first = try PurgeableCache<Int, [UInt8]>(tracksKeys: tracksKeys)
        for key in 0..<2000 { first[key] = [1] }
      }
      require(patiently { threadCount() == 0 }, "the library's thread ends with the last cache")
      let before = residentKilobytes()
      let mappings = mappingCount()
      // In the quick run fewer entries that are larger.
      let (share, byteCount) = isOptimized ? (1, 100) : TestRun.isFull ? (4, 100) : (12, 1000)
      let value = pattern(byteCount)
      let count = (tracksKeys ? 100_000 : 400_000) / share
      var cache: PurgeableCache<Int, [UInt8]>? = try PurgeableCache(tracksKeys: tracksKeys)
      for key in 0..<count { cache![key] = value }
      require(cache!.count == count, "all there")
      let full = residentKilobytes()
      require(full - before > count * byteCount / 1024, "\(full - before) KiB for \(count) entries")
      // Measured in processor time: other tests run beside this one. Bounded in the full run only, since beside others the same
      // work takes more of it.
      let begin = clock()
      cache = nil
      let time = Double(clock() - begin) / Double(CLOCKS_PER_SEC)
      require(!TestRun.isFull || time < 1, "dropping took \(time) s")
      // The library's thread may hold the last reference until the end of its round. malloc keeps some of the memory that keys
      // took.
      let limit = before + (full - before) / (tracksKeys ? 3 : 10) + 4096
      require(patiently { residentKilobytes() < limit }, "\(residentKilobytes()) KiB, \(before) before, \(full) full")
      require(patiently { mappingCount() <= mappings + 8 }, "\(mappingCount()) mappings, \(mappings) before")
    }
  }

  @Test("making and dropping many caches leaves no mapping and no thread", .countsMemory)
  func manyCaches() async {
    await #expect(processExitsWith: .success) {
      for round in 0..<(TestRun.isFull ? 20 : 8) {
        let cache = try PurgeableCache<String, [UInt8]>(byteLimit: 1 << 20, tracksKeys: round % 2 == 0)
        cache["a"] = [1]
        require(patiently { threadCount() == 1 }, "\(threadCount()) threads")
      }
      require(patiently { threadCount() == 0 }, "the library's thread ends with the last cache")
      let before = mappingCount()
      for round in 0..<(TestRun.isFull ? 200 : 60) {
        let cache = try PurgeableCache<String, [UInt8]>(
          countLimit: round % 3 == 0 ? 10 : nil, byteLimit: round % 2 == 0 ? 1 << 20 : nil, tracksKeys: round % 5 == 0)
        for key in 0..<20 { cache["\(key)"] = pattern(2000) }
        require(cache["19"] == pattern(2000), "the newest")
        if round % 4 == 0 { cache.offerIdle() }
      }
      require(patiently { threadCount() == 0 }, "\(threadCount()) threads without a cache")
      require(patiently { mappingCount() <= before + 12 }, "\(mappingCount()) mappings, \(before) before")
      // The thread starts again for the next cache.
      let next = try PurgeableCache<Int, [UInt8]>()
      for key in 0..<5000 { next[key] = pattern(100) }
      require(patiently { next.statistics.memory.offeredBytes > 300_000 }, "\(next.statistics.memory.offeredBytes) on offer")
      require(threadCount() == 1, "\(threadCount()) threads")
    }
  }

  @Test("the byte limit bounds what the process has resident", .countsMemory)
  func resident() async {
    await #expect(processExitsWith: .success) {
      let limit = TestRun.isFull ? 32 << 20 : 12 << 20
      let warm = try PurgeableCache<UInt32, [UInt8]>()
      for key in 0..<UInt32(2000) { warm[key] = [1] }
      let before = residentKilobytes()
      let cache = try PurgeableCache<UInt32, [UInt8]>(byteLimit: limit)
      let value = pattern(1000)
      for key in 0..<UInt32((TestRun.isFull ? 150_000 : 45_000) / slowness) { cache[key] = value }
      let grown = (residentKilobytes() - before) << 10
      require(cache.byteCount <= limit, "\(cache.byteCount) bytes held")
      require(slowness > 1 || cache.byteCount > limit / 2, "\(cache.byteCount) bytes held")
      require(grown < limit + limit / 8 + (4 << 20) * slowness, "\(grown) bytes resident for a limit of \(limit)")
    }
  }

  @Test("everything sealed and idle is on offer within some seconds, without anybody asking", .fullRun)
  func offering() async throws {
    try needRealDiscards()
    await #expect(processExitsWith: .success) {
      let cache = try PurgeableCache<UInt32, [UInt8]>()
      for key in 0..<UInt32(20_000) { cache[key] = described(key, version: 1, count: 500) }
      let held = cache.statistics.memory.heldBytes
      // Two open slabs in each of 16 shards are at most a quarter of what is held.
      require(
        patiently { cache.statistics.memory.offeredBytes > held * 3 / 4 }, "\(cache.statistics.memory.offeredBytes) of \(held)")
    }
  }

  @Test("a forked child finds a cache that is empty and works, and the parent's is untouched", .forks)
  func fork() async {
    await #expect(processExitsWith: .success) {
      for tracksKeys in [false, true] {
        let cache = try PurgeableCache<UInt32, [UInt8]>(tracksKeys: tracksKeys)
        for key in 0..<UInt32(3000) { cache[key] = described(key, version: 1, count: 200) }
        let isWell = childSays {
          for key in 0..<UInt32(3000) where cache.value(forKey: key) != nil { return false }
          for key in 0..<UInt32(3000) { cache[key] = described(key, version: 2, count: 200) }
          for key in 0..<UInt32(3000) where cache[key] != described(key, version: 2, count: 200) { return false }
          return cache.count == 3000 && cache.totalCost == 600_000
        }
        require(isWell, "the child")
        for key in 0..<UInt32(3000) { require(cache[key] == described(key, version: 1, count: 200), "the parent") }
        require(cache.count == 3000, "the parent's count")
      }
    }
  }

  @Test("a child that is forked while another thread makes the process's first cache without limits makes caches too", .forks)
  func forkBesideTheFirst() async {
    await #expect(processExitsWith: .success) {
      // Swift's runtime makes types when they are first used, under locks of its own that no fork waits for: a child that is
      // forked meanwhile hangs in its first use of any such type. So all that the children do was done before, by this process.
      let usesCache = {
        guard let cache = try? PurgeableCache<Int, Int>() else { return false }
        cache[1] = 2
        return cache[1] == 2
      }
      let usesCacheBeside = { (delay: UInt32) in
        let making = TestThread { _ = try? PurgeableCache<Int, Int>() }
        usleep(delay)
        let isWell = childSays(usesCache)
        making.join()
        return isWell
      }
      require(usesCache(), "the first cache")
      TestThread { _ = try? PurgeableCache<Int, Int>() }.join()
      for round in 0..<30 {
        let isWell = childSays {
          CacheLimits.forgetMachine()
          return usesCacheBeside(UInt32(round) * 100)
        }
        require(isWell, "round \(round)")
      }
    }
  }

  @Test("a fork at any moment, beside stores and the library's thread, leaves both sides with caches that work", .forks, .fullRun)
  func forkInTheMiddle() async {
    await #expect(processExitsWith: .success) {
      let source = FakeSource()
      PurgeableMemory.pressureSource = source
      // One cache whose keys are bytes, and one that keeps its keys in a table.
      func makeCaches() throws -> [PurgeableCache<UInt32, [UInt8]>] {
        try (0..<2).map { try PurgeableCache(byteLimit: 8 << 20, tracksKeys: $0 == 1) }
      }
      // What a child does: every cache is empty, and works.
      func startEmpty(_ caches: [PurgeableCache<UInt32, [UInt8]>]) -> Bool {
        for cache in caches {
          for key in 0..<UInt32(200) where cache.value(forKey: key) != nil { return false }
          for key in 0..<UInt32(200) { cache[key] = described(key, version: 2, count: 200) }
          // An entry is right, or gone, since pressure goes on in the child as well.
          for key in 0..<UInt32(200) {
            if let bytes = cache[key], bytes != described(key, version: 2, count: 200) { return false }
          }
        }
        return true
      }
      // Once here, before any other thread runs: Swift makes the descriptions of types at their first use, under a mutex of its
      // own, and a child whose parent's other thread holds that mutex at the fork would wait for ever for the first of them.
      require(startEmpty(try makeCaches()), "no child")
      let caches = try makeCaches()
      let isOver = Atomic<Bool>(false)
      let storing = (0..<2).map { index in
        TestThread {
          var key: UInt32 = 0
          while !isOver.load(ordering: .relaxed) {
            key = (key &+ 7919) % 40_000
            caches[index][key] = described(key, version: 1, count: 300)
            if key % 512 == 0 { source.set(.critical) }
          }
        }
      }
      var failures = 0
      for _ in 0..<200 where failures == 0 {
        if !childSays({ startEmpty(caches) }) { failures += 1 }
      }
      isOver.store(true, ordering: .relaxed)
      for thread in storing { thread.join() }
      require(failures == 0, "a child")
      for cache in caches {
        for key in 0..<UInt32(40_000) {
          guard let bytes = cache[key] else { continue }
          require(bytes == described(key, version: 1, count: 300), "the parent's content")
        }
      }
    }
  }
}
