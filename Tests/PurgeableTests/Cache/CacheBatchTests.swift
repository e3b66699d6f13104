// SPDX-License-Identifier: MIT
// Calls that change several entries: who looks at the whole sees all or none of them.

import Glibc
import PurgeableTestSupport
import Synchronization
import Testing
import ToolSupport

@testable import Purgeable

/// What the tests need of a cache of either kind.
private protocol Batched: AnyObject, Sendable {
  func setValues(_ values: [Int: [UInt8]]) -> [Int: StoreOutcome]
  func remove(forKeys keys: [Int]) -> Int
  func removeAll()
  func snapshot() -> [Int: [UInt8]]
  func setChangeHandler(every interval: Duration, _ handler: @escaping @Sendable (CacheChanges<Int>) -> Void)
    throws(PurgeableError)
  func deliverChanges()
}

extension PurgeableCache: Batched where Key == Int, Value == [UInt8] {
  fileprivate func setValues(_ values: [Int: [UInt8]]) -> [Int: StoreOutcome] { setValues(values, expiry: nil) }
  fileprivate func remove(forKeys keys: [Int]) -> Int { remove(forKeys: AnySequence(keys)) }
}

extension ObjectCache: Batched where Key == Int, Value == [UInt8] {
  fileprivate func setValues(_ values: [Int: [UInt8]]) -> [Int: StoreOutcome] { setValues(values, priority: nil) }
  fileprivate func remove(forKeys keys: [Int]) -> Int { remove(forKeys: AnySequence(keys)) }
}

@Suite("cache: batches")
struct CacheBatchTests {
  private static let longestWait: UInt64 = 120_000_000_000
  /// What needs no wait has taken less, however much else the machine does, and what waits in vain has taken more.
  private static let soon: UInt64 = 100_000_000_000

  /// After a second a batch goes on beside another one: not here, where a busy machine may hold up a thread that long.
  init() { BatchGate.longestWait.store(Self.longestWait, ordering: .relaxed) }

  private static func each() throws -> [any Batched] {
    [try PurgeableCache<Int, [UInt8]>(tracksKeys: true), try ObjectCache<Int, [UInt8]>()]
  }

  private static let keys = Array(0..<40)
  private static let rounds = TestRun.isFull ? 120 : 40
  private static func values(_ version: UInt8) -> [Int: [UInt8]] {
    Dictionary(uniqueKeysWithValues: keys.map { ($0, [UInt8](repeating: version, count: 60)) })
  }

  @Test("stores what it can, and tells what was refused")
  func refused() throws {
    let bytes = try PurgeableCache<Int, [UInt8]>(costLimit: 1000)
    #expect(bytes.setValues([1: [1], 2: [UInt8](repeating: 2, count: 2000), 3: [3, 3]]) == [2: .tooLarge])
    #expect(bytes.snapshot() == [1: [1], 3: [3, 3]])
    #expect(bytes.setValues([1: [7], 4: [4]], expiry: .sinceCreation(.zero)) == [1: .expired, 4: .expired])
    #expect(bytes.snapshot() == [3: [3, 3]] && bytes.setValues([:]).isEmpty)
    let objects = try ObjectCache<Int, [UInt8]>(costLimit: 1000)
    objects.costOfValue = { $0.count }
    #expect(objects.setValues([1: [1], 2: [UInt8](repeating: 2, count: 2000)]) == [2: .tooLarge])
    #expect(objects.snapshot() == [1: [1]])
  }

  @Test("a snapshot of another thread has all of a batch or nothing")
  func snapshots() throws {
    for cache in try Self.each() {
      let isDone = Atomic<Bool>(false)
      let wholes = Atomic<Int>(0)
      let empties = Atomic<Int>(0)
      onThreads(3) { thread in
        if thread == 0 {
          func isSeen() -> Bool { wholes.load(ordering: .relaxed) > 0 && empties.load(ordering: .relaxed) > 0 }
          for round in 0..<100_000 where round < Self.rounds || !isSeen() {
            #expect(cache.setValues(Self.values(UInt8(truncatingIfNeeded: round))).isEmpty)
            if round % 3 == 0 { #expect(cache.remove(forKeys: Self.keys) == 40) }
            usleep(200)
          }
          isDone.store(true, ordering: .releasing)
          return
        }
        while !isDone.load(ordering: .acquiring) {
          let all = cache.snapshot()
          guard all.isEmpty || all.count == 40 && Set(all.values).count == 1 else {
            Issue.record("\(all.count) of 40, versions \(Set(all.values.map { $0[0] }))")
            return
          }
          _ = all.isEmpty ? empties.add(1, ordering: .relaxed) : wholes.add(1, ordering: .relaxed)
        }
      }
      #expect(wholes.load(ordering: .relaxed) > 0 && empties.load(ordering: .relaxed) > 0)
    }
  }

  @Test("of two batches beside each other one comes before all of the other")
  func beside() throws {
    for cache in try Self.each() {
      for round in 0..<Self.rounds {
        onThreads(3) { thread in
          if thread == 2 { cache.removeAll() } else { #expect(cache.setValues(Self.values(UInt8(thread))).isEmpty) }
        }
        let all = cache.snapshot()
        guard all.isEmpty || all.count == 40 && Set(all.values).count == 1 else {
          Issue.record("round \(round): \(all.count) of 40, versions \(Set(all.values.map { $0[0] }))")
          return
        }
      }
    }
  }

  private final class Removal: Sendable {
    let isBegun = Atomic<Bool>(false)
    let isSeen = Atomic<Bool>(false)
  }

  @Test("a snapshot of another thread, and changes, have all that removeAll() removes")
  func removals() throws {
    for kind in 0..<2 {
      let removal = Removal()
      // The first departure comes long before the last.
      let handler: @Sendable (Departure<Int, [UInt8]>) -> Void = { _ in
        if removal.isBegun.exchange(true, ordering: .relaxed) { return }
        while !removal.isSeen.load(ordering: .relaxed) { usleep(100) }
        usleep(20_000)
      }
      let cache: any Batched =
        kind == 0
        ? try PurgeableCache<Int, [UInt8]>(onDeparture: handler) : try ObjectCache<Int, [UInt8]>(onDeparture: handler)
      let told = Mutex<[CacheChanges<Int>]>([])
      // More than one step of a removal.
      _ = cache.setValues(Dictionary(uniqueKeysWithValues: (0..<600).map { ($0, [UInt8](repeating: 1, count: 60)) }))
      try cache.setChangeHandler(every: .seconds(10_000)) { change in told.withLock { $0.append(change) } }
      onThreads(2) { thread in
        if thread == 0 { return cache.removeAll() }
        while !removal.isBegun.load(ordering: .relaxed) { usleep(100) }
        removal.isSeen.store(true, ordering: .relaxed)
        #expect(cache.snapshot().isEmpty)
        cache.deliverChanges()
      }
      #expect(told.withLock { $0 } == [CacheChanges(updatedKeys: [], removedKeys: Set(0..<600))])
    }
  }

  @Test("changes have all of a batch or nothing")
  func changes() throws {
    for cache in try Self.each() {
      let isDone = Atomic<Bool>(false)
      let told = Mutex<[CacheChanges<Int>]>([])
      try cache.setChangeHandler(every: .seconds(10_000)) { change in told.withLock { $0.append(change) } }
      onThreads(2) { thread in
        if thread == 0 {
          for round in 0..<100_000 where round < Self.rounds || told.withLock({ $0.count }) <= 2 {
            _ = cache.setValues(Self.values(UInt8(truncatingIfNeeded: round)))
            if round % 2 == 0 { _ = cache.remove(forKeys: Self.keys) }
            usleep(200)
          }
          isDone.store(true, ordering: .releasing)
        } else {
          while !isDone.load(ordering: .acquiring) { cache.deliverChanges() }
        }
      }
      cache.deliverChanges()
      let changes = told.withLock { $0 }
      #expect(changes.count > 2)
      for change in changes { #expect([0, 40] == Set([change.updatedKeys.count, change.removedKeys.count])) }
    }
  }

  @Test("whoever looks at the whole gets a turn between threads that begin a batch as soon as one ends")
  func withoutPause() throws {
    for cache in try Self.each() {
      let told = Mutex<[CacheChanges<Int>]>([])
      try cache.setChangeHandler(every: .seconds(10_000)) { change in told.withLock { $0.append(change) } }
      let isDone = Atomic<Bool>(false)
      onThreads(3) { thread in
        let keys = Self.keys.map { $0 + 100 * thread }
        if thread > 0 {
          let values = Dictionary(uniqueKeysWithValues: keys.map { ($0, [UInt8](repeating: 1, count: 60)) })
          while !isDone.load(ordering: .acquiring) {
            _ = cache.setValues(values)
            _ = cache.remove(forKeys: keys)
          }
          return
        }
        for _ in 0..<Self.rounds {
          let all = cache.snapshot().keys
          for writer in 1...2 {
            let count = all.count { $0 / 100 == writer }
            if count != 0, count != 40 { Issue.record("a snapshot has \(count) of 40") }
          }
          cache.deliverChanges()
        }
        isDone.store(true, ordering: .releasing)
      }
      for change in told.withLock({ $0 }) {
        for writer in 1...2 {
          let counts = [change.updatedKeys, change.removedKeys].map { keys in keys.count { $0 / 100 == writer } }
          #expect(counts.allSatisfy { $0 == 0 || $0 == 40 } && counts != [40, 40], "changes have \(counts) of 40")
        }
      }
    }
  }

  @Test("a batch gets its turn between threads that look again as soon as they have looked")
  func besideLooks() throws {
    for cache in try Self.each() {
      let isDone = Atomic<Bool>(false)
      let start = MonotonicTime.now
      onThreads(4) { thread in
        if thread > 0 {
          while !isDone.load(ordering: .acquiring) { _ = cache.snapshot() }
          return
        }
        for round in 0..<Self.rounds { _ = cache.setValues(Self.values(UInt8(round))) }
        isDone.store(true, ordering: .releasing)
      }
      #expect(MonotonicTime.now - start < Self.soon)
    }
  }

  @Test("a batch within a batch does not wait for a look that waits for the outer one")
  func nested() throws {
    let own = Mutex<PurgeableCache<Int, [UInt8]>?>(nil)
    let removal = Removal()
    let cache = try PurgeableCache<Int, [UInt8]>(countLimit: 38) { departure in
      removal.isBegun.store(true, ordering: .relaxed)
      usleep(1000)
      if departure.key < 40, let cache = own.withLock({ $0 }) { _ = cache.setValues([departure.key + 100: [1]]) }
    }
    own.withLock { $0 = cache }
    let start = MonotonicTime.now
    onThreads(2) { thread in
      if thread == 0 {
        _ = cache.setValues(Self.values(1))
        return removal.isSeen.store(true, ordering: .relaxed)
      }
      while !removal.isBegun.load(ordering: .relaxed) { usleep(100) }
      while !removal.isSeen.load(ordering: .relaxed) { _ = cache.snapshot() }
    }
    // Each of the two and more would wait for the next look.
    #expect(MonotonicTime.now - start < Self.soon)
    own.withLock { $0 = nil }
  }

  @Test("a look within a batch does not wait for a batch that waits for the outer one")
  func lookWithin() throws {
    let own = Mutex<PurgeableCache<Int, [UInt8]>?>(nil)
    let isNext = Event()
    let looks = Atomic<Int>(0)
    let cache = try PurgeableCache<Int, [UInt8]>(countLimit: 20) { departure in
      guard departure.key < 40, let cache = own.withLock({ $0 }) else { return }
      // The other batch has come, and waits.
      isNext.blocks()
      usleep(20_000)
      #expect(cache.snapshot().keys.allSatisfy { $0 < 40 }, "the other batch went on within this one")
      looks.add(1, ordering: .relaxed)
    }
    own.withLock { $0 = cache }
    onThreads(2) { thread in
      if thread == 0 {
        #expect(cache.setValues(Self.values(1)).isEmpty)
        return own.withLock { $0 = nil }
      }
      #expect(patiently { cache.count > 0 })
      isNext.happens()
      #expect(cache.setValues([100: [1]]).isEmpty)
    }
    #expect(looks.load(ordering: .relaxed) == 20)
  }

  @Test("a handler within a batch sees the part that is done, and waits for nothing")
  func within() throws {
    let counts = Mutex<[Int]>([])
    let own = Mutex<PurgeableCache<Int, [UInt8]>?>(nil)
    let cache = try PurgeableCache<Int, [UInt8]>(countLimit: 38) { _ in
      if let cache = own.withLock({ $0 }) { counts.withLock { $0.append(cache.snapshot().count) } }
    }
    own.withLock { $0 = cache }
    let start = MonotonicTime.now
    _ = cache.setValues(Self.values(1))
    #expect(counts.withLock { $0.count == 2 && $0.allSatisfy { (1...38).contains($0) } })
    #expect(MonotonicTime.now - start < Self.soon)
    own.withLock { $0 = nil }
  }
}
