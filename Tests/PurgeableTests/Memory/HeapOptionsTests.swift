// SPDX-License-Identifier: MIT
// Each option of a heap does what it says, and each number of statistics is the one of its name.

import CPurgeable
import Glibc
import PurgeableTestSupport
import Synchronization
import Testing

@testable import Purgeable

@Suite("PurgeableHeap, options")
struct HeapOptionsTests {
  private static func fault<R: ~Copyable>(_ body: () throws(PurgeableError) -> R) -> PurgeableError.Kind? {
    do throws(PurgeableError) {
      _ = try body()
      return nil
    } catch {
      return error.kind
    }
  }

  @Test("a limit of what may be locked")
  func lockedLimit() throws {
    let heap = try PurgeableHeap(.init(lockedByteLimit: 10_000))
    let elements = try [heap.store(pattern(8000)), heap.store(pattern(8000))]
    let inner = try heap.withBytes(of: elements[0]) { _ throws(PurgeableError) in
      Self.fault { () throws(PurgeableError) in try heap.withBytes(of: elements[1]) { _ throws(PurgeableError) in } }
    }
    #expect(inner == .some(.some(.busy)))
    #expect(try heap.bytes(of: elements[1]) == pattern(8000))
    #expect(try heap.statistics().memory.refusedLockCount == 1)
  }

  @Test("immediate offers: what is idle is on offer without a call, in deferred mode by offerIdle()")
  func immediate() throws {
    for (offering, isOffered) in [(OfferingMode.immediate, true), (.deferred, false)] {
      let heap = try PurgeableHeap(.init(offering: offering))
      let element = try heap.store(pattern(8000))
      try heap.seal(.first)
      try heap.withBytes(of: element) { _ throws(PurgeableError) in }
      #expect(try (heap.statistics().memory.offeredBytes > 0) == isOffered)
    }
  }

  @Test("payloads are aligned as is asked")
  func alignment() throws {
    func offsets(_ alignment: Int?) throws -> Set<Int> {
      let heap = try PurgeableHeap(.init(payloadAlignment: alignment))
      var found: Set<Int> = []
      for count in 1...40 {
        let element = try heap.store(pattern(count))
        try heap.withBytes(of: element) { span throws(PurgeableError) in
          _ = unsafe span.withUnsafeBytes { bytes in found.insert(Int(bitPattern: bytes.baseAddress!) % 16) }
        }
      }
      return found
    }
    #expect(try offsets(16) == [0] && offsets(nil).contains(8))
  }

  @Test("address space is taken by chunks of the size that is asked for")
  func chunks() throws {
    func mappedBytes(_ chunk: Int) throws -> Int {
      let heap = try PurgeableHeap(.init(slabByteCount: 16 * pageSize, chunkByteCount: chunk))
      _ = try heap.store(pattern(100))
      return try heap.statistics().mappedBytes
    }
    let (small, large) = (try mappedBytes(64 * pageSize), try mappedBytes(4096 * pageSize))
    #expect(small >= 64 * pageSize && small < 1024 * pageSize && large >= 4096 * pageSize, "\(small), \(large)")
  }

  @Test("a byte limit that is lowered refuses the next slab, and one that is lifted does not")
  func byteLimit() throws {
    let heap = try PurgeableHeap(.init(slabByteCount: 4 * pageSize))
    func fill() -> PurgeableError.Kind? {
      Self.fault { () throws(PurgeableError) in for _ in 0..<20 { _ = try heap.store(pattern(4 * pageSize - 500)) } }
    }
    #expect(fill() == nil)
    try heap.setByteLimit(heap.heldBytes)
    #expect(fill() == .outOfMemory)
    try heap.setByteLimit(nil)
    #expect(fill() == nil)
  }

  @Test("a heap that defers compaction never calls its owner from a store")
  func deferred() throws {
    for defers in [false, true] {
      let calls = Atomic<Int>(0)
      let heap = try PurgeableHeap(.init(byteLimit: 64 * pageSize, slabByteCount: 4 * pageSize, defersCompaction: defers)) {
        _, _, _, _ in
        calls.add(1, ordering: .relaxed)
        return false
      }
      var elements: [ElementReference] = []
      while let element = try? heap.store(pattern(1000)) { elements.append(element) }
      for (i, element) in elements.enumerated() where i % 3 != 0 { try heap.free(element) }
      let before = calls.load(ordering: .relaxed)
      for _ in 0..<20 { _ = try? heap.store(pattern(1000)) }
      let after = calls.load(ordering: .relaxed)
      #expect(defers == (after == before), "\(after - before) calls")
      try heap.trim()
      #expect(!defers || calls.load(ordering: .relaxed) > after)
    }
  }

  @Test("a slab's elements go to the stream that is named; slabs are counted as they come and go")
  func evacuating() throws {
    let heap = try PurgeableHeap(.init(slabByteCount: 4 * pageSize))
    let other = try heap.makeStream()
    for _ in 0..<10 { _ = try heap.store(pattern(1000)) }
    try heap.seal(.first)
    let (slab, before) = (try #require(try heap.slabs(of: .first).first), try heap.statistics())
    #expect(before.slabCount == (try heap.slabs(of: .first).count) && before.givenBackSlabCount == 0)
    #expect(try heap.evacuate(slab, to: other) { _, _, _, _ in true } == 0)
    let after = try heap.statistics()
    #expect(try heap.slabs(of: other).count == 1 && after.movedElementCount > 0 && after.givenBackSlabCount == 1)
    #expect(after.slabCount == before.slabCount)
  }
}

@Suite("memory in numbers")
struct MemoryNumbersTests {
  private static func numbers(of value: Any) -> [String: Int] {
    var found: [String: Int] = [:]
    for child in Mirror(reflecting: value).children {
      guard let label = child.label else { continue }
      if let number = child.value as? Int { found[label] = number }
    }
    return found
  }

  @Test("two accounts add up, number by number")
  func sum() {
    func use(_ factor: Int) -> MemoryUse {
      var use = MemoryUse()
      (use.payloadBytes, use.lockedBytes, use.heldBytes, use.offeredBytes) = (factor, 2 * factor, 3 * factor, 4 * factor)
      (use.pendingBytes, use.discardedBytes, use.residentBytes, use.ordinaryBytes) = (
        5 * factor, 6 * factor, 7 * factor, 8 * factor
      )
      (use.discardedByKernelBytes, use.givenBackBytes, use.refusedLockCount) = (9 * factor, 10 * factor, 11 * factor)
      return use
    }
    #expect(use(1) + use(100) == use(101) && use(1) + MemoryUse() == use(1))
    var unknown = use(1)
    unknown.residentBytes = nil
    #expect((use(1) + unknown).residentBytes == nil && (unknown + use(1)).residentBytes == nil)
  }

  @Test("every counter of a cache's statistics is taken off by the earlier one, and no size is")
  func difference() throws {
    var (now, earlier) = (try PurgeableCache<Int, Int>().statistics, try PurgeableCache<Int, Int>().statistics)
    let counters: [WritableKeyPath<CacheStatistics, Int>] = [
      \.hitCount, \.missCount, \.loadCount, \.loadFailureCount, \.sharedLoadCount, \.insertionCount, \.replacementCount,
      \.notKeptValueCount, \.copyCount, \.refusalCount, \.givenBackSlabCount, \.refusedOfferCount,
    ]
    let sizes: [WritableKeyPath<CacheStatistics, Int>] = [
      \.count, \.totalCost, \.pinnedBytes, \.coreBytes, \.waitingDepartureCount,
    ]
    #expect(Self.numbers(of: now).count == counters.count + sizes.count, "a number that this test does not know")
    for number in counters + sizes { (now[keyPath: number], earlier[keyPath: number]) = (5, 3) }
    (now.loadTime, earlier.loadTime) = (.seconds(5), .seconds(3))
    let between = now.difference(from: earlier)
    for counter in counters { #expect(between[keyPath: counter] == 2, "\(counter)") }
    for size in sizes { #expect(between[keyPath: size] == 5, "\(size)") }
    #expect(between.loadTime == .seconds(2))
  }

  @Test("a report of a save or a restore in one line")
  func report() {
    var report = FileReport()
    #expect("\(report)" == "no file")
    (report.entryCount, report.byteCount, report.expiredCount, report.leftOutCount) = (1, 40_055_603, 3, 20)
    report.skip("cat.jpg", because: "it has no bytes")
    #expect("\(report)" == "1 entry, file of 38.2 MiB, 3 expired, 1 skipped (first: cat.jpg: it has no bytes), 20 left out")
  }

  @Test("a clock that tests set wakes who sleeps when it shows the moment, and not before")
  func manualClock() async throws {
    let clock = ManualClock()
    let end = clock.now.advanced(by: .seconds(60))
    let sleeper = Task { try await clock.sleep(until: end, tolerance: nil) }
    clock.advance(by: .seconds(59))
    try await Task.sleep(for: .milliseconds(20))
    #expect(clock.now < end)
    clock.advance(by: .seconds(1))
    try await sleeper.value
    let other = Task { try await clock.sleep(until: clock.now.advanced(by: .seconds(60)), tolerance: nil) }
    other.cancel()
    await #expect(throws: CancellationError.self) { try await other.value }
  }
}

@Suite("limits by default")
struct DefaultLimitTests {
  @Test("an eighth of the memory may be pinned, and a half locked; where the kernel discards nothing, a cache limits itself")
  func defaults() async {
    await #expect(processExitsWith: .success) {
      let memory = ProcessMemory.limit()
      let cache = try? PurgeableCache<Int, Int>()
      let pinned = cache?.engine.base.limits.pinned.load(ordering: .relaxed)
      demand(pinned == Int(clamping: memory / 8) && cache?.byteLimit == nil, "\(pinned as Any) of \(memory)")
      purgeable_testing_fail(purgeable_testing_call_madvise_free.rawValue, 1, EINVAL, true)
      purgeable_testing_forget_probe()
      CacheLimits.forgetMachine()
      let limited = try? PurgeableCache<Int, Int>()
      demand(limited?.byteLimit == Int(clamping: memory / 4), "\(limited?.byteLimit as Any) of \(memory)")
      demand(limited?.statistics.limitReason == .noDiscards, "the reason")
      let counted = try? PurgeableCache<Int, Int>(countLimit: 10)
      demand(counted?.byteLimit == nil, "a limit of the program's is enough")
    }
  }

  @Test("regions: above the limit of what may be locked they are neither read by reference nor discarded")
  func regions() async {
    await #expect(processExitsWith: .success) {
      let one = try PurgeableRegion(byteCount: 8000)
      let other = try PurgeableRegion(byteCount: 8000)
      let data = try PurgeableData(byteCount: 8000)
      data.endContentAccess()
      try PurgeableRegion.setLockedByteLimit(10_000)
      try one.withBytes { _ throws(PurgeableError) in
        demand(try other.withBytes { _ throws(PurgeableError) in true } == nil && !other.isDiscarded, "a second lock")
        let refilled = try other.withBytes { (_) throws(PurgeableError) in
        } _: { _ throws(PurgeableError) in
          true
        }
        demand(refilled == nil, "a second lock to refill")
        demand(!data.beginContentAccess(), "access")
      }
      demand(try other.withBytes { _ throws(PurgeableError) in true } == true, "alone")
      try one.withBytes { _ throws(PurgeableError) in
        try PurgeableRegion.setLockedByteLimit(nil)
        demand(try other.withBytes { _ throws(PurgeableError) in true } == true && data.beginContentAccess(), "without a limit")
      }
    }
  }
}
