// SPDX-License-Identifier: MIT
// Budgets: the limit of locked bytes, a share of the memory, the eager mode; and trimming by level.

import CPurgeable
import Glibc
import PurgeableTestSupport
import Synchronization
import Testing
import ToolSupport

@testable import Purgeable

@Suite("PurgeableCache, budgets")
struct CacheBudgetTests {
  // MARK: Locks

  @Test("a lock above the limit is a miss with that reason, and a copying read answers", arguments: [false, true])
  func lockLimit(tracksKeys: Bool) throws {
    let cache = try PurgeableCache<Int, [UInt8]>(lockedByteLimit: 5000, tracksKeys: tracksKeys)
    for key in 0..<20 { cache[key] = pattern(1000 + key) }
    cache.withBytes(forKey: 0) { first in
      cache.withBytes(forKey: 1) { second in
        #expect(first.array == pattern(1000) && second.array == pattern(1001))
        cache.withBytes(forKey: 2) { _ in
          cache.withBytes(forKey: 3) { _ in
            let before = cache.statistics
            var ran = false
            cache.withBytes(forKey: 4) { _ in ran = true }
            #expect(!ran)
            let after = cache.statistics
            let refused = after.missesByReason[.lockLimit, default: 0] - before.missesByReason[.lockLimit, default: 0]
            #expect(refused == 1)
            #expect(after.memory.refusedLockCount == before.memory.refusedLockCount + 1)
            #expect(cache.value(forKey: 4) == pattern(1004))
            #expect(cache.count == 20)
          }
        }
      }
    }
    // Unlocked bytes make room again.
    #expect(cache.withBytes(forKey: 4) { $0.array } == pattern(1004))
    #expect(cache.statistics.memory.lockedBytes == 0)
    try cache.setLockedByteLimit(10)
    #expect(cache.withBytes(forKey: 4) { $0.array } == nil)
    try cache.setLockedByteLimit(nil)
    #expect(cache.withBytes(forKey: 4) { $0.array } == pattern(1004))
    cache.checkBooks()
  }

  @Test("while memory is short less may be locked, and afterwards as much as before")
  func lockLimitUnderPressure() throws {
    let cache = try PurgeableCache<Int, [UInt8]>(lockedByteLimit: 100_000)
    cache[0] = pattern(40_000)
    cache[1] = pattern(60_000)
    func mayLock(_ key: Int = 0) -> Bool { cache.withBytes(forKey: key) { _ in true } ?? false }
    #expect(mayLock(0) && mayLock(1))
    cache.engine.setPressure(.warning)
    #expect(mayLock(0) && !mayLock(1))
    cache.engine.setPressure(.critical)
    #expect(!mayLock(0) && !mayLock(1))
    #expect(cache.statistics.pressure == .critical)
    #expect(cache.value(forKey: 0) == pattern(40_000))
    cache.engine.setPressure(.normal)
    #expect(mayLock(0) && mayLock(1))
  }

  @Test("threads that hold locks never hold more than the limit together")
  func lockLimitAcrossThreads() throws {
    let length = 1000
    let limit = 3 * length
    let cache = try PurgeableCache<Int, [UInt8]>(lockedByteLimit: limit)
    for key in 0..<50 { cache[key] = pattern(length) }
    let held = Atomic<Int>(0)
    let most = Atomic<Int>(0)
    let refused = Atomic<Int>(0)
    onThreads(6) { thread in
      for i in 0..<3000 / slowness {
        let got: Bool? = cache.withBytes(forKey: (i * 7 + thread) % 50) { bytes in
          let now = held.add(1, ordering: .relaxed).newValue
          if now > most.load(ordering: .relaxed) { most.store(now, ordering: .relaxed) }
          if i % 8 == 0 { sched_yield() }
          let isWhole = bytes.byteCount == length
          held.subtract(1, ordering: .relaxed)
          return isWhole
        }
        if got == nil { refused.add(1, ordering: .relaxed) }
        #expect(got != false)
      }
    }
    // The counter goes up after the lock and down before the unlock, so it never shows more locks than there were.
    #expect(most.load(ordering: .relaxed) * length <= limit)
    #expect(cache.statistics.memory.lockedBytes == 0)
    #expect(cache.statistics.memory.refusedLockCount == Int(refused.load(ordering: .relaxed)))
  }

  // MARK: A share of the memory

  @Test("a share of the memory is a byte limit", .notUnderThreadSanitizer)
  func share() throws {
    let memory = ProcessMemory.limit()
    let (limit, count) = TestRun.isFull ? (8 << 20, 20_000) : (3 << 20, 7000)
    let share = Double(limit) / Double(memory)
    let cache = try PurgeableCache<Int, [UInt8]>(memoryShare: share)
    let value = pattern(1000)
    for key in 0..<count { cache[key] = value }
    #expect(cache.byteCount <= limit)
    #expect(cache.byteCount > limit / 2)
    // Of the share and a byte limit, the smaller one holds.
    try cache.setByteLimit(limit / 4)
    #expect(cache.byteCount <= limit / 4)
    #expect(cache.byteLimit == limit / 4)
    try cache.setByteLimit(nil)
    try cache.setMemoryShare(share / 2)
    for key in 0..<count { cache[key] = value }
    #expect(cache.byteCount <= limit / 2)
    try cache.setMemoryShare(nil)
    for key in 0..<count { cache[key] = value }
    #expect(cache.count == count)
    cache.checkBooks()
  }

  @Test("a share follows the limit of the process's group")
  func shareOfGroup() async throws {
    try needGroup(MemoryGroup.current()?.version ?? .v1, limitBytes: 256 << 20)
    await #expect(processExitsWith: .success) {
      let (group, reason) = TestGroup.make(version: MemoryGroup.current()!.version, limitBytes: 256 << 20)
      guard let group else { fatalError(reason) }
      defer { group.leave() }
      let cache = try PurgeableCache<Int, [UInt8]>(memoryShare: 0.125)
      let objects = try ObjectCache<Int, Int>(memoryShare: 0.125)
      func limits(_ byteCount: Int) -> Bool {
        cache.statistics.limitInForce == byteCount && objects.statistics.limitInForce == byteCount
      }
      require(limits(32 << 20), "an eighth of 256 MiB")
      for key in 0..<24 {
        cache[key] = [UInt8](repeating: UInt8(key), count: 1 << 20)
        objects.setValue(key, forKey: key, cost: 1 << 20)
      }
      require(cache.count == 24 && objects.count == 24, "all have room")
      require(group.setLimit(128 << 20), "another limit")
      _ = (cache.engine.upkeepRound(), objects.store.upkeepRound())
      require(limits(16 << 20) && cache.byteCount <= 16 << 20 && cache.count > 8, "\(cache)")
      objects.setValue(0, forKey: 100, cost: 1 << 20)
      require(objects.totalCost <= 16 << 20 && objects.count > 8, "\(objects)")
      for key in 0..<24 {
        let value = cache.peekValue(forKey: key)
        require(value == nil || value == [UInt8](repeating: UInt8(key), count: 1 << 20), "\(key)")
      }
    }
  }

  @Test("shares and times that are none are an error that names them", arguments: [0, -1, 1.5, .nan])
  func badShares(share: Double) {
    let error = #expect(throws: PurgeableError.self) { try PurgeableCache<Int, Int>(memoryShare: share) }
    #expect(error?.kind == .invalidArgument("memoryShare"))
    let other = #expect(throws: PurgeableError.self) { try PurgeableCache<Int, Int>(idleTime: .seconds(-1)) }
    #expect(other?.kind == .invalidArgument("idleTime"))
    let third = #expect(throws: PurgeableError.self) { try PurgeableCache<Int, Int>(lockedByteLimit: -1) }
    #expect(third?.kind == .invalidArgument("lockedByteLimit"))
  }

  // MARK: Idle

  /// The test sets the cache's clock and waits for nothing.
  @Test(
    "what nobody read for the idle time is given back, what was read stays", .notUnderThreadSanitizer, arguments: [false, true])
  func idle(tracksKeys: Bool) throws {
    let told = Departures<Int, [UInt8]>()
    var observer: (@Sendable (Departure<Int, [UInt8]>) -> Void)?
    if tracksKeys { observer = { told.note($0) } }
    let clock = SetClock()
    let cache = try PurgeableCache<Int, [UInt8]>(idleTime: .seconds(1000), clock: clock.monotonic, onDeparture: observer)
    for key in 0..<4000 { cache[key] = pattern(500) }
    let held = cache.statistics.memory.heldBytes
    let used = (0..<4000).filter { $0 % 20 == 0 }
    // Within the idle time no entry goes. Not until its very end: from then on the library's thread may take what was not read.
    for _ in 0..<4 {
      cache.engine.giveBackIdle()
      clock.advance(seconds: 249)
      for key in used { #expect(cache.value(forKey: key) == pattern(500)) }
    }
    #expect(cache.count == 4000)
    clock.advance(seconds: 4)
    for _ in 4..<14 {
      cache.engine.giveBackIdle()
      clock.advance(seconds: 250)
      for key in used { #expect(cache.value(forKey: key) == pattern(500)) }
    }
    #expect(cache.count == used.count)
    #expect(cache.statistics.departures[DepartureReason.idle] == 4000 - used.count)
    #expect(cache.statistics.memory.heldBytes < held / 4)
    #expect(cache.statistics.memory.residentBytes! <= cache.statistics.memory.heldBytes)
    if tracksKeys {
      #expect(told.all.count == 4000 - used.count)
      #expect(told.all.allSatisfy { $0.reason == .idle && $0.key % 20 != 0 })
    }
    cache.checkBooks()
    // Later the entries that were read go too.
    for _ in 14..<30 {
      cache.engine.giveBackIdle()
      clock.advance(seconds: 250)
    }
    #expect(cache.isEmpty)
    #expect(cache.statistics.memory.heldBytes == 0)
    cache.checkBooks()
  }

  @Test("in the eager mode locked entries and large ones in use stay, however often an idle round comes")
  func idleButInUse() throws {
    let clock = SetClock()
    let cache = try PurgeableCache<Int, [UInt8]>(idleTime: .seconds(1000), clock: clock.monotonic)
    for key in 0..<1000 { cache[key] = pattern(500) }
    cache[-1] = pattern(300_000)
    cache.withBytes(forKey: 7) { locked in
      for _ in 0..<40 where cache.count > 2 {
        #expect(cache.value(forKey: -1) == pattern(300_000))
        cache.engine.giveBackIdle()
        clock.advance(seconds: 250)
      }
      #expect(cache.value(forKey: -1) == pattern(300_000))
      #expect(cache.count == 2 && cache.value(forKey: 8) == nil)
      #expect(locked.array == pattern(500))
    }
    cache.checkBooks()
  }

  @Test("in the eager mode the library's thread gives back by itself")
  func idleByItself() throws {
    let cache = try PurgeableCache<Int, [UInt8]>(idleTime: .milliseconds(50))
    for key in 0..<1000 { cache[key] = pattern(500) }
    cache[-1] = pattern(300_000)
    #expect(patiently { cache.isEmpty })
    #expect(cache.statistics.departures[DepartureReason.idle] == 1001)
    cache.checkBooks()
  }

  @Test("what is read several times within the idle time stays beside the library's thread", .fullRun)
  func idleBesideReads() throws {
    let cache = try PurgeableCache<Int, [UInt8]>(idleTime: .milliseconds(400))
    for key in 0..<1000 { cache[key] = pattern(500) }
    cache[-1] = pattern(300_000)
    let isAlone = patiently {
      #expect(cache.value(forKey: -1) == pattern(300_000))
      return cache.count == 1
    }
    #expect(isAlone)
    cache.checkBooks()
  }
}
