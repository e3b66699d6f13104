// SPDX-License-Identifier: MIT
// A cache that closes its shards under a lower byte limit, and opens others again: what stays, what is found meanwhile, what
// leaves.

import CPurgeable
import Glibc
import PurgeableTestSupport
import Synchronization
import Testing
import ToolSupport

@testable import Purgeable

extension PurgeableCache {
  /// Closes the shards by a limit that leaves room for one, and for all that the cache holds.
  func close() {
    engine.shards.sizes.slabsPerShard.store(1 << 20, ordering: .relaxed)
    try! setByteLimit(1 << 36)
  }

  /// As `open`, in any process.
  func openAgain() {
    openEarly(count: .max)
    engine.shards.openShards()
  }
}

extension PurgeableCache<UInt32, [UInt8]> {
  fileprivate func isWhole(_ keys: Range<UInt32>, version: UInt32 = 1) -> Bool {
    keys.allSatisfy { versionDescribed(in: peekValue(forKey: $0) ?? [], key: $0) == version }
  }
}

/// Called by `==` with its result, once.
private let comparing = Mutex<(@Sendable (Bool) -> Bool)?>(nil)

/// Eight keys of each hash.
private struct ComparedKey: Hashable, Sendable {
  var number: Int
  static func == (left: Self, right: Self) -> Bool {
    let isEqual = left.number == right.number
    if let hook = comparing.withLock({ $0 }), hook(isEqual) { comparing.withLock { $0 = nil } }
    return isEqual
  }
  func hash(into hasher: inout Hasher) { hasher.combine(number % 8) }
}

@Suite("Cache: shards that close")
struct CacheShardsClosingTests {
  @Test("a byte limit with room for fewer than half of the open shards closes them, and they open again, as many as it allows")
  func when() throws {
    let count = TestRun.isFull ? 17_000 : 4500
    let cache = try PurgeableCache<Int, Int>()
    cache.openSooner(count: 4096)
    for i in 0..<count { cache[i] = i }
    func isWhole() -> Bool { cache.count == count && (0..<count).allSatisfy { cache.peekValue(forKey: $0) == $0 } }
    let share = 64 * cache.engine.heap.slabBytes
    try cache.setByteLimit(8 * share)
    #expect(cache.engine.shards.openCount == 16)
    try cache.setByteLimit(8 * share - 1)
    #expect(cache.engine.shards.openCount == 1 && cache.founderCount == count && isWhole())
    cache.recountBooks()
    cache[0] = 0
    #expect(cache.engine.shards.openCount == 4 && isWhole())
    cache.moveAllHome()
    #expect(cache.founderCount == 0 && isWhole())
    try cache.setByteLimit(2 * share)
    #expect(cache.engine.shards.openCount == 4)
    try cache.setByteLimit(2 * share - 1)
    cache[0] = 0
    #expect(cache.engine.shards.openCount == 1 && isWhole())
    try cache.setByteLimit(nil)
    cache[0] = 0
    #expect(cache.engine.shards.openCount == 16 && isWhole())
    cache.checkBooksSwept()

    // The first that were made are all there are.
    let small = try PurgeableCache<Int, Int>(byteLimit: 4 * share)
    small.openSooner(count: 4096)
    for i in 0..<count { small[i] = i }
    #expect(small.engine.shards.openCount == 4)
    try small.setByteLimit(2 * share - 1)
    #expect(small.engine.shards.openCount == 1)
    try small.setByteLimit(nil)
    for i in 0..<count { small[i] = i }
    #expect(small.engine.shards.openCount == 4 && small.engine.shards.all.count == 5)
    small.checkBooksSwept()
  }

  @Test("no mask comes twice, however often shards open and close")
  func masks() throws {
    let cache = try describedCache(count: 3)
    var seen: [ShardMask] = []
    for _ in 0..<20 {
      for moves in [cache.openAgain, cache.close] {
        #expect(!seen.contains(cache.engine.base.indexes.mask))
        seen.append(cache.engine.base.indexes.mask)
        moves()
      }
    }
    #expect(cache.isWhole(0..<3))
  }

  @Test("where entries have come to cost so much that few have room, the library's thread closes the shards")
  func costly() throws {
    let (limit, entries) = (8 * 32_768, TestRun.isFull ? 17_000 : 4500)
    let cache = try PurgeableCache<Int, Int>(costLimit: limit)
    cache.openSooner(count: 4096)
    for i in 0..<entries { cache[i] = i }
    #expect(cache.engine.shards.openCount == 2)
    _ = cache.engine.upkeepRound()
    #expect(cache.engine.shards.openCount == 2)
    for i in 0..<2 * entries { cache.setValue(i, forKey: i, cost: limit / 100) }
    #expect(cache.count <= 100)
    let keys = Set(cache.keys)
    _ = cache.engine.upkeepRound()
    #expect(cache.engine.shards.openCount == 1)
    #expect(Set(cache.keys) == keys && keys.allSatisfy { cache.peekValue(forKey: $0) == $0 })
    // Now the hundred are in one order.
    for i in 0..<100 { cache.setValue(-i, forKey: i, cost: limit / 100) }
    #expect(cache.totalCost <= limit)
    cache.checkBooksSwept()

    // So does a lower limit on entries.
    let counted = try PurgeableCache<Int, Int>()
    counted.openSooner(count: 4096)
    for i in 0..<entries { counted[i] = i }
    try counted.setCountLimit(1024)
    #expect(counted.engine.shards.openCount == 16)
    try counted.setCountLimit(1023)
    #expect(counted.engine.shards.openCount == 1 && counted.count == 1023)
  }

  @Test(
    "a forked child whose parent was about to close its shards has nothing to close, and its library's thread goes on", .forks)
  func child() async {
    await #expect(processExitsWith: .success) {
      let cache = try PurgeableCache<UInt32, [UInt8]>()
      for key in 0..<2000 as Range<UInt32> { cache[key] = described(key, version: 1, count: 30) }
      cache.open()
      // As between a lower limit and its enforcement.
      cache.engine.shards.sizes.leastEntriesPerShard.store(64, ordering: .relaxed)
      cache.engine.base.limits.count.store(100, ordering: .relaxed)
      require(cache.engine.shards.areTooMany, "too many shards")
      let isWell = childSays(seconds: 60) {
        _ = cache.engine.upkeepRound()
        guard cache.isEmpty else { return false }
        cache[1] = [1]
        return cache[1] == [1] && cache.count == 1
      }
      require(isWell, "the child")
    }
  }

  @Test("where the program is asked, a store closes shards that are too many, and the byte limit holds after each store")
  func asking() throws {
    let limit = 4 << 20
    let cache = try PurgeableCache<UInt32, [UInt8]>(byteLimit: limit)
    for key in 0..<2000 as Range<UInt32> { cache[key] = described(key, version: 1, count: 80) }
    cache.open()
    cache.shouldEvict = { _, _ in true }
    // Each shard's part of the slabs is sparse.
    cache.engine.shards.sizes.leastEntriesPerShard.store(1 << 40, ordering: .relaxed)
    for key in 0..<2000 as Range<UInt32> { cache.remove(forKey: key) }
    cache.engine.base.limits.count.store(1 << 20, ordering: .relaxed)
    let areTooMany = cache.engine.shards.areTooMany
    #expect(areTooMany)
    var random = SplitMix64(seed: chosenSeed)
    let keys = limit / 100 * 72 / 22_500
    for version in 1..<1000 as Range<UInt32> {
      let key = UInt32(random.index(below: keys))
      cache[key] = described(key, version: version, count: 22_500 + random.index(below: 400))
      #expect(cache.byteCount <= limit, "store \(version): \(cache.byteCount)")
    }
    #expect(cache.count > keys * 9 / 10 && cache.engine.shards.openCount == 1, "\(cache.count) of \(keys)")
    cache.checkBooksSwept()
  }

  @Test("the library's thread asks nobody, also where the program wants to be asked while that thread closes the shards")
  func askedMeanwhile() throws {
    let cache = try PurgeableCache<UInt32, [UInt8]>()
    for key in 0..<2000 as Range<UInt32> { cache[key] = described(key, version: 1, count: 80) }
    cache.open()
    for key in 0..<2000 as Range<UInt32> { cache[key] = described(key, version: 2, count: 80) }
    cache.shouldEvict = { key, _ in
      Issue.record("asked about \(key)")
      return true
    }
    let base = cache.engine.base
    base.isAsking.store(false, ordering: .relaxed)
    cache.engine.shards.sizes.leastEntriesPerShard.store(1 << 40, ordering: .relaxed)
    base.limits.count.store(1 << 20, ordering: .relaxed)
    #if DEBUG
      _ = base.moveHook.storeIfNil(
        LookHook { [unowned base] _ in
          base.limits.count.store(1000, ordering: .relaxed)
          base.isAsking.store(true, ordering: .releasing)
        })
      let library = TestThread {
        ThreadRole.enterLibrary()
        _ = cache.engine.upkeepRound()
      }
      library.join()
      #expect(cache.engine.shards.openCount == 1 && cache.count == 2000)
    #endif
    // The next store does, on its own thread.
    let asked = Atomic<Int>(0)
    cache.shouldEvict = { _, _ in
      asked.add(1, ordering: .relaxed)
      return true
    }
    try cache.setCountLimit(1000)
    let count = asked.load(ordering: .relaxed)
    #expect(count == 1000 && cache.count == 1000)
    cache.checkBooksSwept()
  }

  // MARK: What stays

  @Test(
    "closing keeps every value, large ones too, costs, counters and totals, and gives the others' memory back",
    arguments: [false, true])
  func everything(tracksKeys: Bool) throws {
    let cache = try PurgeableCache<UInt32, [UInt8]>(tracksKeys: tracksKeys)
    var random = SplitMix64(seed: chosenSeed)
    func store(_ keys: StrideTo<UInt32>) {
      for key in keys {
        let size = key % 40 == 0 ? 100_000 + random.index(below: 200_000) : random.index(below: 3000)
        cache.setValue(described(key, version: 1, count: size), forKey: key, cost: key % 3 == 0 ? nil : Int(key))
        if key % 7 == 0 { for _ in 0..<3 { _ = cache[key] } }
      }
    }
    store(stride(from: 0, to: 600, by: 1))
    for _ in 0..<3 {
      cache.open()
      // Some are at home, some in the founder.
      store(stride(from: 0, to: 600, by: 2))
      let (count, cost, uses) = (cache.count, cache.totalCost, cache.useCounters())
      cache.close()
      #expect(!cache.isOpen && cache.founderCount == 600)
      #expect(cache.count == count && cache.totalCost == cost && cache.useCounters() == uses)
      for shard in cache.engine.shards.all.dropFirst() {
        #expect(shard.index.byteCount == SlotIndex.homeBytes && cache.engine.shards.hold(shard) { $0.ghost.byteCount } == 0)
      }
      #expect(cache.isWhole(0..<600))
      cache.checkBooksSwept()
    }
    #expect(cache.statistics.departures.values.reduce(0, +) == 900)
    for key in 0..<UInt32(600) { #expect(cache.remove(forKey: key)) }
    #expect(cache.isEmpty && cache.totalCost == 0)
    cache.checkBooksSwept()
    cache.trim(toBytes: 0)
    #expect(cache.statistics.memory.heldBytes == 0)
  }

  @Test("the founder evicts what it got back in the order of age")
  func order() throws {
    let cache = try PurgeableCache<UInt32, [UInt8]>()
    cache[0] = [0]
    cache.open()
    // About as many slabs in both runs.
    let (half, byteCount): (UInt32, Int) = TestRun.isFull ? (10_000, 1000) : (3000, 3300)
    for key in 0..<2 * half { cache[key] = described(key, version: 1, count: byteCount) }
    cache.close()
    cache.trim(toCount: Int(half))
    let stayed = (half..<2 * half).count { cache.containsValue(forKey: $0) }
    #expect(stayed > Int(half) * 9 / 10, "\(stayed)")
  }

  @Test("what the kernel took before the shards closed is found lost, and nothing else", arguments: [false, true])
  func losses(tracksKeys: Bool) throws {
    try needRealDiscards()
    let cache = try describedCache(tracksKeys: tracksKeys, count: 2000)
    cache.open()
    for key in 0..<UInt32(500) { cache[key] = described(key, version: 2, count: 700) }
    cache.discardEveryThirdPage()
    cache.close()
    #expect(!cache.isOpen)
    var left = 0
    for key in 0..<UInt32(2000) {
      guard let value = cache.peekValue(forKey: key) else { continue }
      #expect(versionDescribed(in: value, key: key) == (key < 500 ? 2 : 1))
      left += 1
    }
    #expect(left > 100 && left < 1900)
    cache.sweep()
    #expect(cache.count == left && cache.statistics.departures[.discarded] == 2000 - left)
    cache.checkBooksSwept()
  }

  @Test("what a lower limit leaves no room for leaves once, and is told once; the rest fits the limit")
  func told() throws {
    let told = Mutex<[UInt32: [DepartureReason]]>([:])
    let cache = try PurgeableCache<UInt32, [UInt8]>(onDeparture: { departure in
      told.withLock { $0[departure.key, default: []].append(departure.reason) }
    })
    for key in 0..<UInt32(2000) { cache[key] = described(key, version: 1, count: 2000) }
    cache.open()
    cache.engine.shards.sizes.slabsPerShard.store(64, ordering: .relaxed)
    try cache.setByteLimit(1 << 20)
    #expect(!cache.isOpen && cache.byteCount <= 1 << 20)
    let reasons = told.withLock { $0 }
    #expect(reasons.count == 2000 - cache.count && reasons.values.allSatisfy { $0 == [.bytes] })
    for key in 0..<UInt32(2000) { #expect((cache.peekValue(forKey: key) == nil) == (reasons[key] != nil)) }
    cache.checkBooksSwept()
    cache.removeAll()
    #expect(cache.keyCounts == (0, 0))
  }

  @Test("removing everything removes also what moves to the founder meanwhile")
  func removed() throws {
    let hasClosed = Atomic<Bool>(false)
    let cache = Mutex<PurgeableCache<UInt32, [UInt8]>?>(nil)
    let made = try PurgeableCache<UInt32, [UInt8]>(onDeparture: { _ in
      if !hasClosed.exchange(true, ordering: .relaxed) { cache.withLock { $0 }?.close() }
    })
    cache.withLock { $0 = made }
    for key in 0..<UInt32(300) { made[key] = described(key, version: 1, count: 200) }
    made.open()
    made.removeAll()
    #expect(hasClosed.load(ordering: .relaxed) && !made.isOpen && made.isEmpty)
    cache.withLock { $0 = nil }
  }

  // MARK: What is found meanwhile

  @Test("a tracked key whose table changes while keys are compared is found, and no other key", arguments: [false, true])
  func compared(opens: Bool) async {
    await #expect(processExitsWith: .success) { [opens] in
      for equal in [false, true] {
        // In the quick run a third of them, of each hash.
        for number in stride(from: 0, to: 64, by: TestRun.isFull ? 1 : 3) {
          let cache = try PurgeableCache<ComparedKey, Int>()
          for number in 0..<64 { cache[ComparedKey(number: number)] = number }
          if !opens { cache.openAgain() }
          comparing.withLock { hook in
            hook = { isEqual in
              guard isEqual == equal else { return false }
              opens ? cache.openAgain() : cache.close()
              return true
            }
          }
          let found = cache[ComparedKey(number: number)]
          comparing.withLock { $0 = nil }
          require(found == number, "\(number): \(found ?? -1)")
        }
      }
    }
  }

  @Test("totals are exact at every moment of a closing")
  func totals() throws {
    for _ in 0..<(isOptimized ? 60 : TestRun.isFull ? 20 : 7) {
      let cache = try PurgeableCache<Int, Int>()
      for i in 0..<1000 { cache[i] = i }
      cache.open()
      let wrong = negatives {
        cache.count == 1000 && cache.totalCost == 8000
      } while: {
        cache.close()
      }
      #expect(wrong == 0)
    }
  }

  @Test("no entry that stays is missed while shards open and close again and again", arguments: [false, true])
  func storm(tracksKeys: Bool) throws {
    let cache = try describedCache(tracksKeys: tracksKeys)
    let isOver = Atomic<Bool>(false)
    let missed = Atomic<Int>(0)
    onThreads(4) { thread in
      switch thread {
      case 0:
        for round in 0..<max(2, (TestRun.isFull ? 40 : 14) / slowness) {
          cache.openAgain()
          for key in 0..<UInt32(round % 2 == 0 ? 100 : 300) { cache[key] = described(key, version: 1, count: 200) }
          cache.close()
        }
        isOver.store(true, ordering: .releasing)
      case 1:
        // Its own keys: what it stored is there, and what it removed is not.
        var random = SplitMix64(seed: chosenSeed)
        var version: UInt32 = 0
        while !isOver.load(ordering: .acquiring) {
          let key = 1000 + UInt32(random.index(below: 50))
          version += 1
          cache[key] = described(key, version: version, count: 100 + random.index(below: 300))
          if !cache.isWhole(key..<key + 1, version: version) { missed.add(1, ordering: .relaxed) }
          if version % 3 == 0, !cache.remove(forKey: key) || cache.peekValue(forKey: key) != nil {
            missed.add(1, ordering: .relaxed)
          }
        }
      default:
        while !isOver.load(ordering: .acquiring) {
          for key in 0..<UInt32(300) where versionDescribed(in: cache[key] ?? [], key: key) != 1 {
            missed.add(1, ordering: .relaxed)
          }
        }
      }
    }
    #expect(missed.load(ordering: .relaxed) == 0, "seed \(chosenSeed)")
    cache.checkBooksSwept()
  }

  @Test("a fork at any moment of opening and closing leaves both sides with caches that work", .forks)
  func forks() async {
    await #expect(processExitsWith: .success) {
      let cache = try PurgeableCache<UInt32, [UInt8]>()
      for key in 0..<UInt32(500) { cache[key] = described(key, version: 1, count: 200) }
      let isOver = Atomic<Bool>(false)
      func works(_ cache: PurgeableCache<UInt32, [UInt8]>) -> Bool {
        guard cache.value(forKey: 3) == nil, cache.isEmpty else { return false }
        for _ in 0..<2 {
          cache.close()
          for key in 0..<UInt32(100) { cache[key] = described(key, version: 3, count: 100) }
          cache.openAgain()
          for key in 0..<UInt32(100) where cache[key] != described(key, version: 3, count: 100) { return false }
          guard cache.count == 100, cache.totalCost == 10_000 else { return false }
        }
        return true
      }
      // The runtime makes the types for all of this here: in a child it could wait for ever (`childSays`).
      require(works(try PurgeableCache()), "without a fork")
      let moving = TestThread {
        while !isOver.load(ordering: .acquiring) {
          cache.openAgain()
          for key in 0..<UInt32(250) { cache[key] = described(key, version: 1, count: 200) }
          cache.close()
        }
      }
      for _ in 0..<8 {
        let isWell = childSays { works(cache) }
        require(isWell, "the child")
      }
      isOver.store(true, ordering: .releasing)
      moving.join()
      require(cache.isWhole(0..<500) && cache.count == 500, "the parent")
      cache.checkBooksSwept()
    }
  }
}
