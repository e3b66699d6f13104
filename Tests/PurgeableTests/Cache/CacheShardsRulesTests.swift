// SPDX-License-Identifier: MIT
// A cache that opens its other shards, rule by rule: what readers find between two looks, what a store brings home, what goes at
// limits and without memory, and what a forked child has.

import CPurgeable
import CPurgeable.Testing
import Glibc
import PurgeableTestSupport
import Synchronization
import Testing
import ToolSupport

@testable import Purgeable

/// The readers that take no mutex, where keys are not tracked.
enum Reader: CaseIterable {
  case value, lock, contains

  /// The version of a key's value; -1 where there is one whose bytes are not looked at, nil where there is none.
  func version(of key: UInt32, in cache: PurgeableCache<UInt32, [UInt8]>) -> Int? {
    switch self {
    case .value: cache[key].map { versionDescribed(in: $0, key: key).map(Int.init) ?? -2 }
    case .lock:
      cache.withBytes(forKey: key) { versionDescribed(in: [UInt8](copying: $0), key: key).map(Int.init) ?? -2 }
    case .contains: cache.containsValue(forKey: key) ? -1 : nil
    }
  }
}

@Suite("Cache: shards, rules")
struct CacheShardsRulesTests {
  #if DEBUG
    /// Does something once, before a reader's look of this number.
    private func before(
      look number: Int, of cache: PurgeableCache<UInt32, [UInt8]>, _ body: @escaping @Sendable () -> Void
    ) {
      let hook = OnceHook(number, body)
      _ = cache.engine.shards.sizes.lookHook.storeIfNil(LookHook { hook.call($0) })
    }

    @Test(
      "a reader that loaded the mask before the shards opened misses no value brought home meanwhile",
      arguments: Reader.allCases)
    func oldMask(reader: Reader) throws {
      let cache = try describedCache()
      before(look: 0, of: cache) {
        cache.open()
        cache[5] = described(5, version: 2, count: 300)
      }
      #expect(reader.version(of: 5, in: cache) == (reader == .contains ? -1 : 2))
    }

    @Test(
      "a reader that looked at home too early and in the founder too late finds the value all the same",
      arguments: Reader.allCases)
    func movedBetween(reader: Reader) throws {
      let cache = try describedCache()
      cache.open()
      before(look: 1, of: cache) { cache[5] = described(5, version: 2, count: 300) }
      #expect(reader.version(of: 5, in: cache) == (reader == .contains ? -1 : 2))
      // A key that is nowhere is not found by three looks either.
      #expect(reader.version(of: 1_000_000, in: cache) == nil)
    }

    @Test("a key that is nowhere is looked for twice while the founder drains, and once more where an entry has moved meanwhile")
    func looks() throws {
      let cache = try describedCache()
      cache.open()
      let looks = Mutex<[Int]>([])
      let moves = Atomic<Bool>(false)
      _ = cache.engine.shards.sizes.lookHook.storeIfNil(
        LookHook { number in
          looks.withLock { $0.append(number) }
          if number == 1, moves.exchange(false, ordering: .relaxed) { cache[5] = described(5, version: 2, count: 300) }
        })
      #expect(cache[1_000_000] == nil && looks.withLock { $0 } == [0, 1])
      moves.store(true, ordering: .relaxed)
      #expect(cache[1_000_000] == nil && looks.withLock { $0 } == [0, 1, 0, 1, 2])
      #expect(cache[1_000_000] == nil && looks.withLock { $0 } == [0, 1, 0, 1, 2, 0, 1])
    }

    @Test(
      "a removal between two looks is no miss of another entry, and one of the key itself is a miss",
      arguments: Reader.allCases)
    func removedBetween(reader: Reader) throws {
      let cache = try describedCache()
      cache.open()
      before(look: 1, of: cache) {
        cache.remove(forKey: 5)
        cache.remove(forKey: 6)
      }
      #expect(reader.version(of: 5, in: cache) == nil)
      #expect(reader.version(of: 6, in: cache) == nil)
      #expect(reader.version(of: 7, in: cache) == (reader == .contains ? -1 : 1))
    }
  #endif

  @Test("a store brings the founder's entry home first: the old value is nowhere any more", arguments: [false, true])
  func replaced(tracksKeys: Bool) throws {
    let cache = try describedCache(tracksKeys: tracksKeys)
    cache.open()
    for key in 0..<UInt32(300) {
      let count = key % 10 == 0 ? 150_000 : 200
      #expect(cache.setValue(described(key, version: 2, count: count), forKey: key) == .replaced)
      #expect(versionDescribed(in: cache[key] ?? [], key: key) == 2)
      #expect(cache.founderCount == (tracksKeys ? 0 : 299 - Int(key)) && cache.count == 300)
      // Gone for good, also where the new value leaves.
      if key % 3 == 0 {
        #expect(cache.remove(forKey: key) && cache.peekValue(forKey: key) == nil)
        #expect(cache.setValue(described(key, version: 3, count: 100), forKey: key) == .stored)
      }
    }
    #expect(!cache.isDraining)
    cache.checkBooksSwept()
  }

  @Test("a removal takes the entry where it is, with its value or without, once", arguments: [false, true])
  func removed(tracksKeys: Bool) throws {
    let cache = try describedCache(tracksKeys: tracksKeys)
    cache.open()
    for key in 0..<UInt32(300) {
      if key % 2 == 0 {
        #expect(cache.remove(forKey: key))
      } else {
        #expect(versionDescribed(in: cache.removeValue(forKey: key) ?? [], key: key) == 1)
      }
      #expect(!cache.remove(forKey: key) && cache.removeValue(forKey: key) == nil && cache.peekValue(forKey: key) == nil)
      #expect(cache.founderCount == (tracksKeys ? 0 : 299 - Int(key)))
    }
    #expect(cache.isEmpty && !cache.isDraining && cache.statistics.departures[.removed] == 300)
    cache.checkBooksSwept()
    cache[1] = [1]
    cache.open()
    cache.removeAll()
    #expect(cache.isEmpty)
  }

  @Test("removing everything misses nothing, in the founder or at home", arguments: [false, true])
  func removedAll(tracksKeys: Bool) throws {
    let cache = try describedCache(tracksKeys: tracksKeys)
    cache.open()
    for key in 0..<UInt32(100) { cache[key] = described(key, version: 2, count: 200) }
    cache.removeAll()
    #expect(cache.isEmpty && cache.totalCost == 0 && !cache.isDraining)
    for key in 0..<UInt32(300) { #expect(cache.peekValue(forKey: key) == nil) }
    cache.checkBooksSwept()
  }

  @Test("each departure of a founder's entry is told once, with its value and its reason")
  func told() throws {
    let told = Mutex<[UInt32: [DepartureReason]]>([:])
    let cache = try PurgeableCache<UInt32, [UInt8]>(onDeparture: { departure in
      #expect(departure.value.flatMap { versionDescribed(in: $0, key: departure.key) } == 1)
      told.withLock { $0[departure.key, default: []].append(departure.reason) }
    })
    for key in 0..<UInt32(300) { cache[key] = described(key, version: 1, count: 200) }
    cache.open()
    for key in 0..<UInt32(100) { cache[key] = described(key, version: 1, count: 300) }
    for key in 100..<UInt32(200) { cache.remove(forKey: key) }
    cache.trim(toCount: 150)
    #expect(cache.count == 150)
    let reasons = told.withLock { $0 }
    #expect((0..<UInt32(100)).allSatisfy { reasons[$0]?.first == .replaced })
    #expect((100..<UInt32(200)).allSatisfy { reasons[$0] == [.removed] })
    #expect(reasons.values.reduce(0) { $0 + $1.count { $0 == .trimmed } } == 50)
    cache.checkBooksSwept()
  }

  @Test("whether a tracked key has a value tells of no departure, and moves nothing")
  func containsTracked() throws {
    try needRealDiscards()
    let told = Atomic<Int>(0)
    let cache = try PurgeableCache<UInt32, [UInt8]>(onDeparture: { _ in told.add(1, ordering: .relaxed) })
    for key in 0..<UInt32(1000) { cache[key] = described(key, version: 1, count: 500) }
    cache.open()
    cache.discardEveryThirdPage()
    let left = (0..<UInt32(1000)).count { cache.containsValue(forKey: $0) }
    #expect(left < 1000 && told.load(ordering: .relaxed) == 0)
    cache.sweep()
    #expect(cache.count == left && told.load(ordering: .relaxed) == 1000 - left)
  }

  // MARK: At limits

  private enum Limit: CaseIterable { case count, cost, bytes }

  @Test("at a limit the founder's older entries go before any of the others', until it is empty", arguments: Limit.allCases)
  private func drains(limit: Limit) throws {
    let cache = try PurgeableCache<UInt32, [UInt8]>()
    // As many slabs in both runs.
    let (count, byteCount): (UInt32, Int) = TestRun.isFull ? (4000, 1000) : (2000, 2000)
    for key in 0..<count { cache[key] = described(key, version: 1, count: byteCount) }
    cache.open()
    switch limit {
    case .count: try cache.setCountLimit(Int(count))
    case .cost: try cache.setCostLimit(4_000_000)
    case .bytes: try cache.setByteLimit(cache.byteCount + 32 * cache.engine.heap.slabBytes)
    }
    var stored = count
    while cache.isDraining, stored < 5 * count {
      #expect(cache.setValue(described(stored, version: 1, count: byteCount), forKey: stored) == .stored)
      stored += 1
      if stored % 500 == 0 {
        #expect((count..<stored).allSatisfy { cache.containsValue(forKey: $0) }, "\(stored)")
        cache.recountBooks()
      }
    }
    // A byte limit is kept by whole slabs, of which the others have some that are not full yet.
    #expect(stored >= count * 7 / 4 && stored <= 2 * count + (limit == .bytes ? count / 2 : 0), "\(stored)")
    #expect(!cache.isDraining)
    cache.checkBooksSwept()
  }

  @Test("an entry that has no memory at home has the founder's oldest slab go for it, or goes itself")
  func withoutMemory() throws {
    let cache = try PurgeableCache<UInt32, [UInt8]>()
    for key in 0..<UInt32(1000) { cache[key] = described(key, version: 1, count: 1000) }
    cache.open()
    try cache.setByteLimit(cache.byteCount)
    let limit = cache.byteCount
    // The youngest: its copy needs a slab, for which the oldest goes.
    #expect(cache.setValue(described(999, version: 2, count: 1000), forKey: 999) == .replaced)
    #expect(versionDescribed(in: cache.peekValue(forKey: 999) ?? [], key: 999) == 2 && cache.peekValue(forKey: 0) == nil)
    #expect(cache.statistics.departures[.replaced] == 1 && cache.statistics.departures[.bytes]! > 0)
    #expect(cache.byteCount <= limit)
    cache.checkBooksSwept()

    let small = try PurgeableCache<UInt32, [UInt8]>()
    for key in 0..<UInt32(20) { small[key] = described(key, version: 1, count: 1000) }
    // Two, which no limit closes.
    try small.setByteLimit(3 * small.engine.heap.slabBytes)
    small.open()
    let held = small.withBytes(forKey: 3) { _ -> StoreOutcome in
      try! small.setByteLimit(small.byteCount + small.engine.heap.slabBytes / 4 * 3)
      // The only slab is locked. Nothing else can be evicted, so there is no memory for the new value either.
      return small.setValue(described(4, version: 2, count: 1000), forKey: 4)
    }
    #expect(held == .outOfMemory)
    #expect(small.peekValue(forKey: 4) == nil && small.statistics.departures[.bytes] == 1 && small.count == 19)
    small.checkBooksSwept()
  }

  @Test("whichever call is refused memory while tracked keys go home, each entry is whole or has left, and is told of once")
  func refusedTracked() async {
    await #expect(processExitsWith: .success) {
      for failing in 1...UInt64(200) {
        let told = Mutex<[UInt32: Int]>([:])
        let cache = try PurgeableCache<UInt32, [UInt8]> { departure in
          told.withLock { $0[departure.key, default: 0] += 1 }
        }
        cache.openEarly(count: .max)
        for key in 0..<UInt32(300) { cache[key] = described(key, version: 1, count: key % 50 == 0 ? 150_000 : 700) }
        purgeable_testing_fail(
          purgeable_testing_call_mmap.rawValue | purgeable_testing_call_allocate.rawValue, failing, ENOMEM, true)
        cache.engine.shards.openShards()
        let hasFailed = purgeable_testing_has_failed()
        purgeable_testing_fail(0, 0, 0, false)
        for key in 0..<UInt32(300) {
          let value = cache.peekValue(forKey: key)
          require(value == nil || versionDescribed(in: value!, key: key) == 1, "another value")
          require((value == nil) == (told.withLock { $0[key] } == 1), "told \(told.withLock { $0[key] ?? 0 }) times: \(key)")
        }
        cache.checkBooksSwept()
        cache.removeAll()
        require(cache.keyCounts == (0, 0), "keys are left")
        if !hasFailed { return }
      }
    }
  }

  @Test(
    "whichever call is refused memory while an entry is brought home, the store or the eviction is whole",
    arguments: [200, 150_000])
  func refused(byteCount: Int) async {
    await #expect(processExitsWith: .success) { [byteCount] in
      for failing in 1...UInt64(40) {
        let cache = try PurgeableCache<UInt32, [UInt8]>()
        for key in 0..<UInt32(300) { cache[key] = described(key, version: 1, count: byteCount) }
        cache.open()
        purgeable_testing_fail(
          purgeable_testing_call_mmap.rawValue | purgeable_testing_call_allocate.rawValue, failing, ENOMEM, true)
        let outcome = cache.setValue(described(7, version: 2, count: byteCount), forKey: 7)
        let hasFailed = purgeable_testing_has_failed()
        purgeable_testing_fail(0, 0, 0, false)
        let value = cache.peekValue(forKey: 7)
        switch outcome {
        case .stored, .replaced: require(versionDescribed(in: value ?? [], key: 7) == 2, "not stored")
        default: require(value == nil || versionDescribed(in: value!, key: 7) == 1, "neither value")
        }
        cache.checkBooksSwept()
        if !hasFailed { return }
      }
      require(false, "always refused")
    }
  }

  @Test("a forked child of a cache whose founder drains begins anew, empty, and both go on", .forks)
  func forked() async {
    await #expect(processExitsWith: .success) {
      let cache = try PurgeableCache<UInt32, [UInt8]>()
      for key in 0..<UInt32(300) { cache[key] = described(key, version: 1, count: 200) }
      cache.openEarly(count: .max)
      cache.engine.shards.openShards()
      for key in 0..<UInt32(100) { cache[key] = described(key, version: 2, count: 200) }
      let isWell = childSays {
        guard cache.isEmpty, (0..<300).allSatisfy({ cache.value(forKey: $0) == nil }) else { return false }
        for key in 0..<UInt32(300) { cache[key] = described(key, version: 3, count: 100) }
        return (0..<UInt32(300)).allSatisfy { cache[$0] == described($0, version: 3, count: 100) } && cache.count == 300
          && cache.totalCost == 30_000 && cache.founderCount == 0 && !cache.isDraining
      }
      require(isWell, "the child")
      for key in 0..<UInt32(300) {
        require(cache[key] == described(key, version: key < 100 ? 2 : 1, count: 200), "the parent")
      }
      cache.checkBooksSwept()
    }
  }
}

#if DEBUG
  /// Calls `body` the first time that it is called with a number.
  private final class OnceHook: Sendable {
    private let number: Int
    private let body: @Sendable () -> Void
    private let isDone = Atomic<Bool>(false)

    init(_ number: Int, _ body: @escaping @Sendable () -> Void) { (self.number, self.body) = (number, body) }

    func call(_ look: Int) {
      if look == number, !isDone.exchange(true, ordering: .relaxed) { body() }
    }
  }
#endif
