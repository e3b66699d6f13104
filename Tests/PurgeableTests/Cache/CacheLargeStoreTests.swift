// SPDX-License-Identifier: MIT
// Stores of large values, which copy the value under no mutex: what other calls do between its two halves.

import Glibc
import PurgeableTestSupport
import Synchronization
import Testing

@testable import Purgeable

private let byteCount = 300_000

/// What happens between the allocation of a large value's memory and its entry into the index.
private enum Between: CaseIterable {
  case nothing, smallStore, largeStore, removal, removeAll, shardsOpen, trim, lowerLimit, losses

  func happen(in cache: PurgeableCache<Int, [UInt8]>) throws {
    switch self {
    case .nothing: break
    case .smallStore: cache[0] = pattern(10)
    case .largeStore: cache[0] = pattern(byteCount + 1)
    case .removal: cache.remove(forKey: 0)
    case .removeAll: cache.removeAll()
    case .shardsOpen:
      cache.openEarly()
      for key in 1000..<1300 { cache[key] = pattern(10) }
      #expect(cache.isOpen)
    case .trim: cache.trimUntimed(level: .critical)
    case .lowerLimit: try cache.setByteLimit(600_000)
    case .losses:
      cache.offerIdle()
      cache.discardEveryThirdPage()
      cache.sweep()
    }
  }
}

extension PurgeableCache where Value == [UInt8] {
  /// Calls `body` between the halves of a store, with what ends it; nil where there is no room for the value.
  fileprivate func writing(
    _ value: [UInt8], forKey key: Key, _ body: ((() -> StoreOutcome)?) throws -> Void
  ) throws {
    var result: Result<Void, any Error> = .success(())
    unsafe value.withUnsafeBytes { bytes in
      encode(key) { engineKey, prefix -> Void in
        let store = unsafe LargeStore(engineKey, prefix, bytes.bytes, EntryHead(), engine.base.credits)
        var (failure, due) = (StoreOutcome?.some(.outOfMemory), DueAfterStore())
        let element = store.begin(in: engine, &failure, &due)
        if element == nil { #expect(failure == .outOfMemory) }
        result = Result {
          guard let element else { return try body(nil) }
          try body {
            store.write(element)
            return store.end(element, in: self.engine) ?? .replaced
          }
        }
      } tracked: { _ in
        Issue.record("a tracked key")
      }
    }
    try result.get()
  }
}

@Suite("PurgeableCache, large stores")
struct CacheLargeStoreTests {
  @Test("whatever happens between its halves, the store ends with its value and right books", arguments: Between.allCases)
  fileprivate func between(_ between: Between) throws {
    for hadOld in [false, true] {
      let cache = try PurgeableCache<Int, [UInt8]>()
      for key in 1..<100 { cache[key] = pattern(200) }
      if hadOld { cache[0] = pattern(500) }
      let value = pattern(byteCount, seed: 9)
      unsafe value.withUnsafeBytes { bytes in
        var outcome: StoreOutcome?
        cache.encode(0) { key, prefix in
          let store = unsafe LargeStore(key, prefix, bytes.bytes, EntryHead(), cache.engine.base.credits)
          var (failure, due) = (StoreOutcome?.some(.outOfMemory), DueAfterStore())
          guard let element = store.begin(in: cache.engine, &failure, &due) else {
            Issue.record("\(String(describing: failure))")
            return
          }
          store.write(element)
          #expect(throws: Never.self) { try between.happen(in: cache) }
          cache.checkBooks()
          outcome = store.end(element, in: cache.engine) ?? .outOfMemory
        } tracked: { _ in
          Issue.record("a tracked key")
        }
        #expect(outcome == .stored || outcome == .replaced)
      }
      #expect(cache.peekValue(forKey: 0) == value)
      #expect(cache.engine.heap.oldest(of: cache.engine.heap.writingStream) == nil)
      if between == .lowerLimit { #expect(cache.byteCount <= 600_000) }
      cache.checkBooksSwept()
      cache.removeAll()
      #expect(cache.statistics.memory.heldBytes == 0)
    }
  }

  @Test("a large value above a limit is refused, and the old one goes; without room the old one stays as a rule")
  func refused() throws {
    let cache = try PurgeableCache<Int, [UInt8]>(costLimit: byteCount)
    cache[0] = pattern(100)
    #expect(cache.setValue(pattern(byteCount + 1), forKey: 0) == .tooLarge && cache.isEmpty)
    #expect(cache.setValue(pattern(byteCount), forKey: 0) == .stored && cache.totalCost == byteCount)
    #expect(cache.setValue(pattern(byteCount), forKey: 1) == .stored && cache.count == 1)
    #expect(cache.setValue(pattern(byteCount), forKey: 1, cost: 5) == .replaced && cache.totalCost == 5)
    #expect(cache.value(forKey: 1) == pattern(byteCount) && cache.statistics.refusalCount == 1)
    cache.checkBooksSwept()
  }

  @Test("a large value that has no room while another one is written evicts nothing, and has room when that one can be evicted")
  func noRoom() throws {
    let cache = try PurgeableCache<Int, [UInt8]>(byteLimit: 8 << 20)
    for key in 1..<1001 { cache[key] = pattern(1000) }
    let value = pattern(5 << 20)
    try cache.writing(value, forKey: -1) { end in
      try cache.writing(value, forKey: -2) { second in
        #expect(second == nil)
      }
      #expect(cache.count == 1000)
      // A small value has room all the same.
      #expect(cache.setValue(pattern(1000), forKey: 1001) == .stored && cache.count == 1001)
      #expect(end?() == .stored)
    }
    #expect(cache.setValue(value, forKey: -2) == .stored)
    #expect(cache.peekValue(forKey: -2) == value && cache.peekValue(forKey: -1) == nil)
    #expect(cache.statistics.refusalCount == 0)
    cache.checkBooksSwept()
  }

  @Test("under tracked keys too", .fullRun)
  func noRoomUnderTrackedKey() throws {
    let cache = try PurgeableCache<String, [UInt8]>(byteLimit: 8 << 20)
    for key in 0..<1000 { cache["\(key)"] = pattern(1000) }
    let value = pattern(5 << 20)
    try cache.writing(value, forKey: "beside") { end in
      // Not ASCII: the key is kept in ordinary memory.
      #expect(cache.setValue(value, forKey: "größer") == .outOfMemory)
      #expect(cache.count == 1000 && cache.statistics.refusalCount == 1)
      #expect(end?() == .stored)
    }
    #expect(cache.setValue(value, forKey: "größer") == .stored)
    #expect(cache.peekValue(forKey: "größer") == value && cache.peekValue(forKey: "beside") == nil)
    cache.checkBooksSwept()
  }

  @Test(
    "what nearly fills the byte limit is stored and stays, or is refused and nothing leaves", arguments: EvictionOrder.allCases)
  func nearTheLimit(order: EvictionOrder) throws {
    for (limit, others) in [(128 << 10, 200), (1 << 20, 0), (1 << 20, 3000), (2 << 20, 200), (6 << 20, 200)] {
      var outcomes: [StoreOutcome: Int] = [:]
      for rest in stride(from: 0, through: limit / 16 + 50_000, by: max(2000, limit / 128)) {
        let cache = try PurgeableCache<Int, [UInt8]>(byteLimit: limit, evictionOrder: order)
        for key in 0..<others { cache[key] = pattern(3) }
        let value = [UInt8](repeating: 7, count: limit - rest)
        let outcome = cache.setValue(value, forKey: -1)
        outcomes[outcome, default: 0] += 1
        if outcome == .stored {
          #expect(cache.peekValue(forKey: -1) == value, "\(rest) bytes below \(limit), \(others) others")
        } else {
          #expect(cache.count == others && outcome == .tooLarge, "\(rest) bytes below \(limit), \(others) others: \(outcome)")
        }
        #expect(cache.byteCount <= limit)
      }
      #expect(outcomes[.stored] ?? 0 >= 4 && outcomes[.tooLarge] ?? 0 >= 4, "\(limit) bytes, \(others) others: \(outcomes)")
    }
  }

  @Test("a value that fits beside what an empty cache keeps is stored, however much the cache remembers of what left for it")
  func afterManySmall() throws {
    let cache = try PurgeableCache<Int, [UInt8]>(byteLimit: 1 << 20)
    for key in 0..<20_000 { cache[key] = [1, 2, 3] }
    let value = pattern(1 << 20 - 120_000)
    #expect(cache.setValue(value, forKey: -1) == .stored)
    #expect(cache.peekValue(forKey: -1) == value && cache.byteCount <= 1 << 20)
    cache.checkBooksSwept()
  }

  @Test("where two large stores in two shards have both found room, the second evicts nothing")
  func overtakenInAllocation() throws {
    let cache = try PurgeableCache<Int, [UInt8]>(byteLimit: 8 << 20)
    for key in 1..<1001 { cache[key] = pattern(1000) }
    let value = pattern(5 << 20)
    try cache.writing(value, forKey: -1) { end in
      // As after the check of `begin`, which came before the other's allocation.
      let element = cache.engine.shards.hold(cache.engine.shards.founder) { held in
        held.allocate(value.count + 16, nil, among: cache.engine.shards)
      }
      #expect(element == nil && cache.count == 1000)
      #expect(end?() == .stored)
    }
    cache.checkBooksSwept()
  }

  @Test("a store whose room is in a shard that another thread holds waits for that shard, large or small, tracked or not")
  func busyShard() throws {
    let cache = try PurgeableCache<String, [UInt8]>(byteLimit: 4 << 20)
    cache.engine.shards.sizes.slabsPerShard.store(1, ordering: .relaxed)
    cache.openEarly()
    for key in 0..<3000 { cache["\(key)"] = pattern(2000) }
    #expect(cache.isOpen)
    let engine = cache.engine
    let owner = engine.shards.all[3]
    // Keys of one shard, each looked for once.
    var (owned, number) = ([String](), 0)
    func ownedKey(_ at: Int) -> String {
      while owned.count <= at {
        number += 1
        let key = "\(number)"
        cache.encode(key) { engineKey, _ in
          if engine.shards.shard(of: engineKey).number == owner.number { owned.append(key) }
        } tracked: { _ in
        }
      }
      return owned[at]
    }
    let filling = pattern(2000)
    for (key, byteCount) in [("small", 1000), ("große", 1000), ("large", 2 << 20), ("größte", 2 << 20)] {
      for shard in engine.shards.all { engine.shards.hold(shard) { held in while held.evictSlab(.trimmed) {} } }
      // All there is, in one shard.
      var stored = 0
      while cache.byteCount < 4 << 20 - 200_000 {
        cache[ownedKey(stored)] = filling
        stored += 1
      }
      let before = cache.count
      var thread: TestThread?
      let outcome = Guarded<StoreOutcome?>(nil)
      engine.shards.hold(owner) { _ in
        thread = TestThread {
          let result = cache.setValue(pattern(byteCount, seed: 3), forKey: key)
          outcome.withLock { $0 = result }
        }
        // Time for a store that does not wait.
        usleep(20_000)
      }
      thread?.join()
      #expect(outcome.withLock { $0 } == .stored)
      #expect(cache.peekValue(forKey: key) == pattern(byteCount, seed: 3))
      #expect(before > 1000 && cache.byteCount <= 4 << 20)
      cache.checkBooksSwept()
    }
    #expect(cache.statistics.refusalCount == 0)
  }

  @Test("a large value that has room only when another thread's has been written waits for it", .fullRun)
  func waits() throws {
    let cache = try PurgeableCache<Int, [UInt8]>(byteLimit: 8 << 20)
    let isBeside = Atomic<Bool>(false)
    var other: TestThread?
    try cache.writing(pattern(5 << 20), forKey: 0) { end in
      other = TestThread {
        isBeside.store(true, ordering: .relaxed)
        #expect(cache.setValue(pattern(5 << 20, seed: 7), forKey: 1) == .stored)
      }
      while !isBeside.load(ordering: .relaxed) { usleep(100) }
      usleep(10_000)
      #expect(end?() == .stored)
    }
    other?.join()
    // The first value made room for the second one.
    #expect(cache.peekValue(forKey: 0) == nil && cache.peekValue(forKey: 1) == pattern(5 << 20, seed: 7))
    #expect(cache.statistics.refusalCount == 0)
    cache.checkBooksSwept()
  }

  @Test("a large value is refused in the end where what is being written is never finished", .fullRun)
  func waitsInVain() throws {
    let cache = try PurgeableCache<Int, [UInt8]>(byteLimit: 8 << 20)
    try cache.writing(pattern(5 << 20), forKey: 0) { end in
      #expect(cache.setValue(pattern(5 << 20), forKey: 1) == .outOfMemory && cache.statistics.refusalCount == 1)
      #expect(end?() == .stored)
    }
    cache.checkBooksSwept()
  }

  @Test("several threads store large values at a byte limit: no wrong byte, the limit holds, the books are right")
  func storm() throws {
    let (limit, rounds) = TestRun.isFull ? (16 << 20, 120) : (6 << 20, 42)
    let cache = try PurgeableCache<Int, [UInt8]>(byteLimit: limit)
    let counts = WrongCount()
    onThreads(4) { thread in
      for round in 0..<rounds {
        let key = (round * 7 + thread * 3) % 60
        let size = key % 4 == 0 ? 50 : 130_000 + key * 7919 % 400_000
        if thread < 3 { cache.setValue(pattern(size, seed: UInt8(key)), forKey: key) }
        if thread == 3, (round + 1) % (rounds / 3) == 0 { cache.removeAll() }
        if let value = cache.value(forKey: key), value != pattern(size, seed: UInt8(key)) {
          counts.wrong.add(1, ordering: .relaxed)
        }
        if cache.byteCount > limit + 3 * 600_000 { counts.wrong.add(1, ordering: .relaxed) }
      }
    }
    #expect(counts.wrong.load(ordering: .relaxed) == 0)
    #expect(cache.byteCount <= limit)
    cache.checkBooksSwept()
    cache.removeAll()
    #expect(cache.statistics.memory.heldBytes == 0)
  }
}

private final class WrongCount: Sendable {
  let wrong = Atomic<Int>(0)
}
