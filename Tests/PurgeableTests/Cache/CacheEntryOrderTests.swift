// SPDX-License-Identifier: MIT
// Orders that name entries: exactly least recently used, and one that only this file has.

import Glibc
import PurgeableTestSupport
import Synchronization
import Testing
import ToolSupport

@testable import Purgeable

/// First in, first out: an order that a stranger might add.
private final class FIFOOrder: EntryOrder {
  private var list = EntryList()
  var byteCount: Int { list.byteCount }
  func resize(slotCount: Int, _ carry: (UInt32) -> UInt32?) -> Bool { list.resize(slotCount: slotCount, carry) }
  func entered(_ position: UInt32, as priority: EntryPriority) { list.append(position, priority) }
  func restored(_ position: UInt32, as priority: EntryPriority) { list.prepend(position, priority) }
  func used(_ position: UInt32, as priority: EntryPriority) { list.passed = nil }
  func putOff(_ position: UInt32, as priority: EntryPriority) { list.moveToEnd(position, priority) }
  func left(_ position: UInt32) { list.remove(position) }
  func removeAll() { list = EntryList() }
  func next(after position: UInt32?) -> UInt32? { list.next(after: position) }
  var passed: UInt32? {
    get { list.passed }
    set { list.passed = newValue }
  }
}

private final class Told: Sendable {
  let list = Guarded<[(key: Int, reason: DepartureReason)]>([])
}

/// A cache and a plain simulation of its order, step by step.
private final class Simulated {
  enum Order: String, CaseIterable, Sendable { case lru, fifo }

  let cache: PurgeableCache<Int, [UInt8]>
  private let order: Order
  private let told = Told()
  /// The keys by their last use, and the other way round.
  private var turns: [Int: Int] = [:]
  private var keys: [Int: Int] = [:]
  private var costs: [Int: Int] = [:]
  /// As `keys`, of what costs something.
  private var priced: [Int: Int] = [:]
  private var now = 0
  private var first = 0
  private(set) var evictedCount = 0

  init(_ order: Order, countLimit: Int? = nil, costLimit: Int? = nil, byteLimit: Int? = nil) throws {
    self.order = order
    let told = told
    cache = try PurgeableCache(
      countLimit: countLimit, costLimit: costLimit, byteLimit: byteLimit, clock: .system, hashSeed: chosenSeed,
      entryOrder: { if order == .lru { LRUOrder() } else { FIFOOrder() } },
      onDeparture: { departure in told.list.withLock { $0.append((departure.key, departure.reason)) } })
  }

  private func enter(_ key: Int) {
    now += 1
    (turns[key], keys[now]) = (now, key)
    if costs[key] != 0 { priced[now] = key }
  }

  private func leave(_ key: Int) { if let turn = turns.removeValue(forKey: key) { (keys[turn], priced[turn]) = (nil, nil) } }

  private func use(_ key: Int) {
    guard order == .lru, turns[key] != nil else { return }
    leave(key)
    enter(key)
  }

  /// Compares the evictions since the last step with the simulation's order. False when another entry went. `stored`: the key
  /// that is being stored, whose old value is told of last.
  private func takeEvictions(storing stored: Int? = nil) -> Bool {
    let departures = told.list.withLock { told in
      defer { told = [] }
      return told
    }
    let evicted = departures.filter { $0.reason != .replaced && $0.reason != .removed }
    let losesOld = evicted.last { $0.key == stored }
    for (key, reason) in evicted where key != stored {
      if losesOld != nil, oldest(reason, storing: stored) == stored { leave(stored!) }
      guard oldest(reason, storing: stored) == key else { return false }
      leave(key)
      evictedCount += 1
    }
    if let reason = losesOld?.reason, turns[stored!] != nil {
      guard oldest(reason, storing: stored) == stored else { return false }
      leave(stored!)
    }
    return true
  }

  /// The key that goes next: for costs, of those that cost something, and not the one that is being stored.
  private func oldest(_ reason: DepartureReason, storing stored: Int?) -> Int? {
    while keys[first] == nil, first <= now { first += 1 }
    if reason != .cost { return keys[first] }
    return priced.lazy.filter { $0.value != stored }.min { $0.key < $1.key }?.value
  }

  func store(_ key: Int, byteCount: Int, cost: Int? = nil) -> Bool {
    use(key)
    cache.setValue(pattern(byteCount), forKey: key, cost: cost)
    guard takeEvictions(storing: key) else { return false }
    costs[key] = cost
    if let turn = turns[key] { priced[turn] = cost == 0 ? nil : key } else { enter(key) }
    return true
  }

  func read(_ key: Int) -> Bool {
    let isThere = cache.value(forKey: key) != nil
    use(key)
    return isThere == (turns[key] != nil)
  }

  func lend(_ key: Int) -> Bool {
    let isThere = cache.withBytes(forKey: key) { _ in } != nil
    use(key)
    return isThere == (turns[key] != nil)
  }

  func peek(_ key: Int) -> Bool {
    let isThere = turns[key] != nil
    return cache.containsValue(forKey: key) == isThere && (cache.peekValue(forKey: key) != nil) == isThere
  }

  func remove(_ key: Int) -> Bool {
    defer { leave(key) }
    return cache.remove(forKey: key) == (turns[key] != nil) && takeEvictions()
  }

  func change(_ body: (PurgeableCache<Int, [UInt8]>) throws -> Void) rethrows -> Bool {
    try body(cache)
    return takeEvictions()
  }

  var isSame: Bool { cache.count == turns.count && turns.keys.allSatisfy { cache.containsValue(forKey: $0) } }
}

@Suite("Cache: orders that name entries", .serialized)
struct CacheEntryOrderTests {
  @Test(
    "entries leave exactly as in a plain simulation", .notUnderThreadSanitizer, arguments: Simulated.Order.allCases, [0, 1, 2])
  fileprivate func exact(order: Simulated.Order, limit: Int) throws {
    var random = SplitMix64(seed: chosenSeed)
    // Smaller limits in the quick run, so that fewer steps reach them.
    let (countLimit, costLimit) = TestRun.isFull ? (700, 9000) : (300, 4500)
    let simulated = try Simulated(
      order, countLimit: limit == 0 ? countLimit : nil, costLimit: limit == 1 ? costLimit : nil,
      byteLimit: limit == 2 ? 1 << 20 : nil)
    let steps = isOptimized ? 1_000_000 : TestRun.isFull ? 40_000 : 5000
    let rounds = TestRun.isFull ? 8 : 4
    for step in 0..<steps {
      // Half of all is asked of a tenth of the keys.
      let key = random.index(below: random.index(below: 2) == 0 ? 200 : 2000)
      let isRight =
        switch random.index(below: 16) {
        case 0..<6:
          simulated.store(
            key, byteCount: random.index(below: 1200), cost: limit == 1 ? max(0, random.index(below: 80) - 20) : nil)
        case 6: simulated.store(key, byteCount: random.index(below: 60_000), cost: limit == 1 ? 10 : nil)
        case 7..<12: simulated.read(key)
        case 12: simulated.lend(key)
        case 13: simulated.remove(key)
        default: simulated.peek(key)
        }
      try #require(isRight, "step \(step)")
      if step % (steps / rounds) == steps / 9 {
        #expect(simulated.isSame)
        simulated.cache.recountBooks()
        // Trims and pressure take the same order, also while the index shrinks and grows.
        try #require(simulated.change { $0.trim(toCount: $0.count * 2 / 3) }, "trim by count")
        try #require(simulated.change { $0.trim(toBytes: $0.byteCount / 2) }, "trim by bytes")
        try #require(simulated.change { $0.trim(level: .critical) }, "trim by level")
        #expect(simulated.isSame)
        simulated.cache.recountBooks()
      }
    }
    #expect(simulated.isSame && simulated.evictedCount > steps / 100, "\(simulated.evictedCount)")
    simulated.cache.checkBooksSwept()
    let all = simulated.cache.count
    try #require(simulated.change { try $0.setByteLimit(0) } && simulated.cache.isEmpty && all > (TestRun.isFull ? 100 : 50))
  }

  @Test("priorities and what the program keeps count in an order that heeds no hits, too", arguments: Simulated.Order.allCases)
  fileprivate func priorities(order: Simulated.Order) throws {
    var options = CacheOptions(countLimit: 4)
    options.pinnedByteLimit = 1 << 20
    let cache = try PurgeableCache<Int, Int>(
      options, clock: nil, entryOrder: { if order == .lru { LRUOrder() } else { FIFOOrder() } }, onDeparture: nil)
    func left(_ keys: Range<Int>) -> [Int] { keys.filter { cache.containsValue(forKey: $0) } }
    for key in 0..<3 { cache[key] = key }
    // What is pinned later holds up no other.
    try cache.setPriority(.pinned, forKey: 0)
    for key in 3..<6 { cache[key] = key }
    #expect(left(0..<6) == [0, 3, 4, 5])
    // One that is speculative goes first, unless it was hit.
    cache.setValue(6, forKey: 6, priority: .speculative)
    cache.setValue(7, forKey: 7, priority: .speculative)
    #expect(left(0..<8) == [0, 4, 5, 7] && cache[7] == 7)
    for key in 8..<10 { cache[key] = key }
    #expect(left(0..<10) == [0, 7, 8, 9])
    // What the program keeps is behind all others: it is asked about once.
    let asked = Guarded<[Int]>([])
    cache.shouldEvict = { key, _ in
      asked.withLock { $0.append(key) }
      return key != 7
    }
    cache[10] = 10
    cache[11] = 11
    #expect(left(0..<12) == [0, 7, 10, 11] && asked.withLock { $0 } == [7, 8, 9])
    // Also what is speculative: it is asked about first, and then behind all others.
    cache.shouldEvict = { key, _ in
      asked.withLock { $0.append(key) }
      return key != 20
    }
    cache.setValue(20, forKey: 20, priority: .speculative)
    asked.withLock { $0 = [] }
    for key in 21..<24 { cache[key] = key }
    #expect(left(0..<24) == [0, 20, 22, 23], "\(left(0..<24)), asked \(asked.withLock { $0 })")
    #expect(asked.withLock { $0.count { $0 == 20 } } == 1)
    cache.checkBooksSwept()
  }

  @Test("keys without bytes of their own, and keys that nobody tracks, are in the order too")
  func forms() throws {
    let tracked = try PurgeableCache<StructKey, Int>(countLimit: 3, evictionOrder: .lru)
    let plain = try PurgeableCache<Int, Int>(countLimit: 3, evictionOrder: .lru)
    func key(_ i: Int) -> StructKey { StructKey(a: i, b: "key") }
    for i in 0..<3 { (tracked[key(i)], plain[i]) = (i, i) }
    #expect(tracked[key(0)] == 0 && plain[0] == 0)
    #expect(tracked.peekValue(forKey: key(1)) == 1 && plain.peekValue(forKey: 1) == 1)
    #expect(tracked.values(forKeys: [key(2)]) == [2] && plain.values(forKeys: [2]) == [2])
    (tracked[key(0)], plain[0]) = (9, 9)
    for i in 3..<5 { (tracked[key(i)], plain[i]) = (i, i) }
    #expect((0..<5).map { tracked.containsValue(forKey: key($0)) } == [true, false, false, true, true])
    #expect((0..<5).map { plain.containsValue(forKey: $0) } == [true, false, false, true, true])
    #expect(plain.evictionOrder == .lru)
    plain.checkBooksSwept()
    tracked.checkBooksSwept()
  }

  @Test("a byte limit holds, and three quarters of it are full however entries are used", arguments: [100, 3000])
  func bytes(byteCount: Int) throws {
    let limit = TestRun.isFull ? 4 << 20 : 2 << 20
    let cache = try PurgeableCache<Int, [UInt8]>(byteLimit: limit, evictionOrder: .lru)
    var random = SplitMix64(seed: chosenSeed)
    let keyCount = 3 * limit / byteCount
    for step in 0..<4 * keyCount / (isOptimized ? 1 : TestRun.isFull ? 3 : 6) {
      let key = random.index(below: random.index(below: 2) == 0 ? keyCount / 10 : keyCount)
      if cache.value(forKey: key) == nil { cache[key] = pattern(byteCount) }
      if step % 64 == 0 { try #require(cache.byteCount <= limit) }
    }
    let living = cache.count * byteCount
    // Beside the values: keys, headers, index and order, which are up to 60 bytes an entry.
    #expect(living * (byteCount + 60) / byteCount > limit * 2 / 3, "\(cache.count) entries")
    cache.checkBooksSwept()
  }

  @Test("where the oldest slabs are full of what is used, holes in younger ones are found all the same")
  func holes() throws {
    let share = TestRun.isFull ? 1 : 4
    let cache = try PurgeableCache<Int, [UInt8]>(byteLimit: (6 << 20) / share, evictionOrder: .lru)
    let (hot, all) = (25_000 / share, 36_000 / share)
    for key in 0..<all { cache[key] = pattern(100) }
    // Of each ten younger entries one is used. What is not used is evicted, and leaves nine holes.
    var next = all
    for _ in 0..<8 {
      for key in 0..<hot { _ = cache[key] }
      for key in stride(from: hot, to: next, by: 10) { _ = cache[key] }
      for _ in 0..<1500 / share {
        cache[next] = pattern(100)
        next += 1
      }
    }
    #expect((0..<hot).allSatisfy { cache.containsValue(forKey: $0) })
    #expect(stride(from: hot, to: all, by: 10).allSatisfy { cache.containsValue(forKey: $0) })
    cache.checkBooksSwept()
  }

  @Test("what the kernel takes leaves the order")
  func losses() throws {
    try needRealDiscards()
    let cache = try PurgeableCache<Int, [UInt8]>(countLimit: 3000, evictionOrder: .lru)
    for round in 0..<3 {
      for i in 0..<3000 { cache[i] = described(UInt32(i), version: UInt32(round), count: 500) }
      cache.discardEveryThirdPage()
      for i in stride(from: 0, to: 3000, by: 7) {
        if let bytes = cache[i] { #expect(versionDescribed(in: bytes, key: UInt32(i)) == UInt32(round)) }
      }
      cache.checkBooksSwept()
      #expect(cache.count > 100 && cache.count < 3000, "\(cache.count)")
    }
    cache.removeAll()
    cache.checkBooksSwept()
    #expect(cache.isEmpty)
  }

  @Test("threads: hits, stores, removals and trims at the same time")
  func threads() throws {
    let share = TestRun.isFull ? 1 : 3
    let cache = try PurgeableCache<Int, [UInt8]>(countLimit: 4000 / share, byteLimit: (2 << 20) / share, evictionOrder: .lru)
    let wrongCount = Atomic<Int>(0)
    onThreads(4) { thread in
      var random = SplitMix64(seed: chosenSeed &+ UInt64(thread))
      for step in 0..<(isOptimized ? 100_000 : 10_000 / share) / slowness {
        let key = random.index(below: 8000 / share)
        switch random.index(below: 8) {
        case 0..<3: cache[key] = described(UInt32(key), version: UInt32(step), count: 20 + key % 900)
        case 3: cache.remove(forKey: key)
        case 4 where step % 500 == 0: cache.trim(toCount: 1000 / share)
        default:
          if let bytes = cache[key], versionDescribed(in: bytes, key: UInt32(key)) == nil {
            wrongCount.add(1, ordering: .relaxed)
          }
        }
        if step % 2000 == 0 { cache.recountBooks() }
      }
    }
    #expect(wrongCount.load(ordering: .relaxed) == 0 && cache.count <= 4000 / share)
    cache.checkBooksSwept()
  }

  @Test("a forked child begins with an empty order", .forks)
  func forking() async {
    await #expect(processExitsWith: .success) {
      let cache = try PurgeableCache<Int, [UInt8]>(countLimit: 500, evictionOrder: .lru)
      for i in 0..<1000 { cache[i] = pattern(300) }
      let isWell = childSays {
        guard cache.isEmpty else { return false }
        for i in 0..<600 { cache[i] = pattern(300) }
        return cache.count == 500 && cache[0] == nil && cache[100] == pattern(300)
      }
      require(isWell, "the child's")
      require(cache.count == 500 && cache[999] == pattern(300), "the parent's")
    }
  }

  @Test("a trim ends where values leave gaps in their slabs that no other fits")
  func gaps() throws {
    for byteCount in [7_000, 20_500, 21_000, 30_000] {
      for count in 1...12 {
        for fraction in [0.95, 0.7, 0.4] {
          let cache = try PurgeableCache<Int, [UInt8]>(evictionOrder: .lru)
          for key in 0..<count { cache[key] = pattern(byteCount) }
          let held = cache.byteCount
          cache.trim(toFraction: fraction)
          #expect(cache.isEmpty || cache.byteCount < held, "\(count) of \(byteCount)")
          let left = cache.count
          #expect(Set(cache.keys) == Set(count - left..<count))
          cache.checkBooks()
        }
      }
    }
  }
}
