// SPDX-License-Identifier: MIT
// Enumeration of a cache: the order, each entry once whatever moves, no use counted, and the cache free for loops and closures.

import CPurgeable
import CPurgeable.Testing
import Glibc
import PurgeableTestSupport
import Synchronization
import Testing
import ToolSupport

@testable import Purgeable

extension PurgeableCache {
  /// nil for a tracked key.
  fileprivate func identity(of key: Key) -> UInt64? {
    encode(key) { engineKey, _ in
      engineKey.identity
    } tracked: { _ in
      nil
    }
  }

  /// Pairs of keys that have one identity.
  fileprivate func twins(among keys: some Sequence<Key>) -> [(Key, Key)] {
    var first: [UInt64: Key] = [:]
    return keys.compactMap { key in
      identity(of: key).flatMap { first.updateValue(key, forKey: $0) }.map { ($0, key) }
    }
  }

  /// The first so many keys, and of the others those that share an identity with any: few do.
  fileprivate func few(_ count: Int, of keys: [Key]) -> [Key] where Key == Int {
    let first = Array(keys.prefix(count))
    return first + Set(twins(among: keys).flatMap { [$0.0, $0.1] }).subtracting(first).sorted()
  }
}

/// Numbers at random, always the same ones: hashes of successive numbers are spread too evenly for two to be alike.
private func scattered(_ numbers: Range<Int>) -> [Int] {
  numbers.map { Int(truncatingIfNeeded: SplitMix64.mix(UInt64($0)) >> 1) }
}

/// A cache with the first hash seed, from the run's own on, of which something holds.
private func cacheBySeed<Value>(
  _ options: CacheOptions, suits: (PurgeableCache<Int, Value>) -> Bool
) throws -> PurgeableCache<Int, Value> {
  var seed = chosenSeed
  while true {
    let cache = try PurgeableCache<Int, Value>(options, clock: nil, hashSeed: seed, onDeparture: nil)
    if suits(cache) { return cache }
    seed &+= 1
  }
}

/// A cache in which each of the first numbers has an identity of its own: such keys come exactly in order.
func cacheWithoutTwins<Value>(
  _ count: Int, of value: Value.Type, countLimit: Int? = nil, order: EvictionOrder = .s3FIFO, tracksKeys: Bool = false
) throws -> PurgeableCache<Int, Value> {
  var options = CacheOptions(countLimit: countLimit)
  (options.evictionOrder, options.tracksKeys) = (order, tracksKeys)
  return try cacheBySeed(options) { $0.twins(among: 0..<count).isEmpty }
}

/// A cache in which so many of these keys share an identity with another one; where keys are tracked, they have none.
private func cacheWithTwins(_ count: Int, among keys: [Int], tracksKeys: Bool = false) throws -> PurgeableCache<Int, Int> {
  var options = CacheOptions()
  options.tracksKeys = tracksKeys
  return try cacheBySeed(options) { tracksKeys || $0.twins(among: keys).count >= count }
}

/// How often each element comes.
private func counts<Element: Hashable>(_ elements: some Sequence<Element>) -> [Element: Int] {
  elements.reduce(into: [:]) { $0[$1, default: 0] += 1 }
}

@Suite("Cache: enumeration")
struct CacheWalkTests {
  // MARK: Order

  @Test("keys come in the order in which they leave when the cache is trimmed step by step", arguments: [false, true])
  func order(tracksKeys: Bool) throws {
    let cache = try cacheWithoutTwins(2000, of: [UInt8].self, tracksKeys: tracksKeys)
    for key in 0..<2000 { cache[(key * 7) % 2000] = pattern(60) }
    let order = Array(cache.keys)
    #expect(order == (0..<2000).map { ($0 * 7) % 2000 })
    for left in stride(from: 1990, through: 0, by: -199) {
      cache.trim(toCount: left)
      #expect(Array(cache.keys) == order.suffix(left))
      #expect(order.suffix(left).allSatisfy { cache.containsValue(forKey: $0) })
    }
  }

  @Test("entries that were used come after those that were not, in the order of their uses")
  func orderOfUses() throws {
    let cache = try cacheWithoutTwins(300, of: Int.self)
    for key in 0..<300 { cache[key] = key }
    for key in stride(from: 0, to: 300, by: 3) { for _ in 0...key % 2 { _ = cache[key] } }
    let order = Array(cache.keys)
    let (once, twice) = (stride(from: 0, to: 300, by: 6), stride(from: 3, to: 300, by: 6))
    #expect(order == (0..<300).filter { $0 % 3 != 0 } + Array(once) + Array(twice))
    // As they leave, until what was used is nine tenths of what is left, and its turn comes.
    for number in 0..<180 {
      cache.trim(toCount: 299 - number)
      #expect(!cache.containsValue(forKey: order[number]), "\(number)")
    }
    #expect(Array(cache.keys.prefix(9)) == Array(order[180..<189]))
  }

  @Test("where the order is exactly least recently used, keys come in the order of their last use", arguments: [false, true])
  func orderOfLastUse(tracksKeys: Bool) throws {
    let cache = try cacheWithoutTwins(3000, of: [UInt8].self, order: .lru, tracksKeys: tracksKeys)
    for key in 0..<3000 { cache[key] = pattern(60) }
    for key in 0..<1000 { _ = cache[(key * 7) % 3000] }
    for key in stride(from: 0, to: 3000, by: 5) { cache.remove(forKey: key) }
    let used = (0..<1000).map { ($0 * 7) % 3000 }
    let isUsed = Set(used)
    let expected = ((0..<3000).filter { !isUsed.contains($0) } + used).filter { $0 % 5 != 0 }
    #expect(Array(cache.keys) == expected)
    cache.trim(toCount: 700)
    #expect(Array(cache.entries).map(\.key) == expected.suffix(700))
    cache.trim(toBytes: cache.byteCount / 2)
    #expect(Array(cache.keys) == expected.suffix(cache.count))
  }

  @Test("what a trim of bytes takes comes first, slab by slab")
  func orderOfSlabs() throws {
    let cache = try cacheWithoutTwins(4000, of: [UInt8].self)
    for key in 0..<4000 { cache[key] = pattern(300) }
    let order = Array(cache.keys)
    #expect(Set(order) == Set(0..<4000))
    var gone = 0
    while cache.count > 1500 {
      cache.trim(toBytes: cache.byteCount - 200_000)
      let left = Set(cache.keys)
      #expect(left.count < 4000 - gone)
      gone = 4000 - left.count
      #expect(left == Set(order.dropFirst(gone)))
    }
  }

  @Test("the oldest slabs of all shards come first")
  func orderOfShards() throws {
    // A slab has 1365 entries of 48 bytes, or some 190 of the larger ones.
    if TestRun.isFull {
      try checkOrderOfShards(50_000, perSlab: 1365) { $0 }
    } else {
      try checkOrderOfShards(7200, perSlab: 190) { _ in pattern(300) }
    }
  }

  private func checkOrderOfShards<Value: PurgeableValue>(_ count: Int, perSlab: Int, _ value: (Int) -> Value) throws {
    let cache = try PurgeableCache<Int, Value>(clock: .system, hashSeed: chosenSeed)
    cache.openSooner(count: count / 3)
    for key in 0..<count { cache[key] = value(key) }
    #expect(cache.isOpen)
    // Of pairs with one identity, some 20 of 50,000, one comes out of turn.
    let misplaced = cache.keys.enumerated().count { abs($0.element - $0.offset) > 3 * 16 * perSlab / 2 }
    #expect(misplaced < count / 250, "\(misplaced)")
  }

  // MARK: Keys

  private func check<Key: Hashable & Sendable>(_ keys: [Key], tracksKeys: Bool = false) throws {
    let cache = try PurgeableCache<Key, Int>(tracksKeys: tracksKeys)
    #expect(Array(cache.keys).isEmpty && Array(cache.entries).isEmpty && cache.snapshot().isEmpty)
    for (number, key) in keys.enumerated() { cache.setValue(number, forKey: key, cost: number % 2 == 0 ? nil : number) }
    let expected = keys.enumerated().map { number, key in (key, number, number % 2 == 0 ? 8 : number) }
    #expect(Set(cache.keys) == Set(keys) && Array(cache.keys).count == keys.count, "\(Key.self)")
    // Of keys with one identity one comes out of turn.
    if Key.self != CollidingKey.self, cache.twins(among: keys).isEmpty {
      #expect(Array(cache.keys) == keys && Array(cache.values) == Array(keys.indices), "\(Key.self)")
      #expect(zip(cache.entries, expected).allSatisfy { $0.key == $1.0 && $0.value == $1.1 && $0.cost == $1.2 })
    }
    #expect(cache.snapshot() == Dictionary(uniqueKeysWithValues: zip(keys, keys.indices)), "\(Key.self)")
    for (key, value, cost) in expected {
      let entry = cache.peekEntry(forKey: key)
      #expect(entry?.key == key && entry?.value == value && entry?.cost == cost, "\(Key.self)")
    }
    #expect(cache.remove(forKeys: keys.prefix(5) + keys.prefix(5)) == 5)
    #expect(cache.peekEntry(forKey: keys[0]) == nil && Set(cache.keys) == Set(keys.dropFirst(5)))
    #expect(cache.removeAll { $0.value % 2 == 0 } == (5..<keys.count).count { $0 % 2 == 0 })
    #expect(Set(cache.values) == Set((5..<keys.count).filter { $0 % 2 != 0 }))
    cache.checkBooksSwept()
  }

  @Test("keys of all kinds come back: integers, strings, bytes, own encodings, tracked ones, and those with one hash")
  func kinds() throws {
    let share = TestRun.isFull ? 1 : 4
    let lengths = (0..<600).filter { TestRun.isFull || $0 < 20 || $0 % 5 == 0 }
    try check((0..<700 / share).map { $0 &* 0x9E37_79B9 })
    try check((0..<250 / share).map { UInt8($0) })
    try check((0..<300 / share).map { Int128($0) << 90 - 7 })
    try check(lengths.map { $0 % 3 == 0 ? "schlüssel \($0)" : $0 == 1 ? "" : String(repeating: "k", count: $0) })
    try check(lengths.map { [UInt8](repeating: UInt8($0 % 256), count: $0) })
    try check((0..<300 / share).map { EncodedKey(number: Int32($0), note: "from bytes") })
    try check((0..<300 / share).map { TileKey(level: 1, kind: .water, column: Int16($0), place: (2, true)) })
    try check((0..<100 / share).map { PaddedKey(Int8($0), padding: 0) })
    try check((0..<300 / share).map { StructKey(a: $0, b: "\($0)") })
    try check((0..<200 / share).map { CollidingKey(number: $0) })
    try check((0..<300 / share).map { "\($0)" }, tracksKeys: true)
  }

  @Test("keys with one identity come once each")
  func identities() throws {
    let all = scattered(0..<(TestRun.isFull ? 60_000 : 30_000))
    let cache = try cacheWithTwins(TestRun.isFull ? 6 : 2, among: all)
    cache.staysInOneShard()
    let keys = cache.few(TestRun.isFull ? 60_000 : 8000, of: all)
    let pairs = cache.twins(among: keys)
    #expect(pairs.count > (TestRun.isFull ? 5 : 1))
    for key in keys { cache[key] = key }
    #expect(!cache.isOpen)
    #expect(counts(cache.keys) == counts(keys))
    // The loop removes one of each pair as soon as any of the two has come.
    let other = Dictionary(uniqueKeysWithValues: pairs.map { ($0.0, $0.1) })
    var seen: [Int: Int] = [:]
    for key in cache.keys {
      seen[key, default: 0] += 1
      if let other = other[key] { cache.remove(forKey: other) }
    }
    #expect(seen.values.allSatisfy { $0 == 1 } && seen.count >= keys.count - pairs.count)
  }

  // MARK: What moves meanwhile

  @Test("entries that move during a walk come once each", arguments: [false, true])
  func moves(tracksKeys: Bool) throws {
    let cache = try PurgeableCache<Int, Int>(tracksKeys: tracksKeys)
    let count = TestRun.isFull ? 30_000 : 4000
    for key in 0..<count { cache[key] = key }
    let before = cache.engine.shards.hold(cache.engine.shards.founder) { $0.counters.copies }
    var seen: [Int: Int] = [:]
    for (number, key) in cache.keys.enumerated() {
      seen[key, default: 0] += 1
      if number % (count / 5) == 100 { cache.moveAll() }
    }
    #expect(seen == counts(0..<count))
    #expect(cache.engine.shards.hold(cache.engine.shards.all.last!) { $0.counters.copies } > before)
    cache.checkBooks()
  }

  @Test(
    "entries come once each while shards open and the founder's entries go home",
    arguments: [false, true], [false, true])
  func opening(tracksKeys: Bool, opensBefore: Bool) throws {
    let count = TestRun.isFull ? 40_000 : 20_000
    let all = scattered(0..<count)
    let cache = try cacheWithTwins(1, among: all, tracksKeys: tracksKeys)
    cache.openEarly(count: .max)
    var keys = cache.few(TestRun.isFull ? count : 6000, of: all)
    for key in keys { cache[key] = key }
    let pairs = tracksKeys ? [] : cache.twins(among: keys)
    #expect(tracksKeys || !pairs.isEmpty)
    let replaced = Set(pairs.map { $0.0 } + keys.filter { $0 % 9 == 0 }).subtracting(pairs.map { $0.1 })
    if opensBefore {
      cache.open()
      let more = scattered(count..<count + (TestRun.isFull ? 5000 : 1500))
      for key in more { cache[key] = key }
      keys += more
    }
    var seen: [Int: Int] = [:]
    for (number, key) in cache.keys.enumerated() {
      seen[key, default: 0] += 1
      if number == 1000, !opensBefore { cache.open() }
      // Its twin only moves.
      if number == 2000 { for key in replaced { cache[key] = -key } }
      if number == 3000 { cache.moveAll() }
    }
    #expect(seen.values.allSatisfy { $0 == 1 })
    #expect(Set(keys).subtracting(replaced).isSubset(of: seen.keys))
    #expect(cache.count == keys.count)
    cache.checkBooks()
  }

  @Test("entries come once each while shards close, open again, and close once more", arguments: [false, true])
  func closing(tracksKeys: Bool) throws {
    let step = TestRun.isFull ? 5000 : 800
    let all = scattered(0..<(TestRun.isFull ? 50_000 : 25_000))
    let later = Array(all.dropFirst(all.count / 5))
    let cache = try cacheWithTwins(1, among: later, tracksKeys: tracksKeys)
    cache.openEarly(count: .max)
    let keys = Array(all.prefix(2 * step)) + cache.few(8 * step, of: later)
    #expect(tracksKeys || !cache.twins(among: keys.dropFirst(2 * step)).isEmpty)
    for key in keys.prefix(2 * step) { cache[key] = key }
    cache.open()
    for key in keys.dropFirst(2 * step) { cache[key] = key }
    let replaced = Set(keys.enumerated().filter { $0.offset % 9 == 0 }.map(\.element))
    var seen: [Int: Int] = [:]
    for (number, key) in cache.keys.enumerated() {
      seen[key, default: 0] += 1
      switch number {
      case 1000, 6 * step:
        cache.close()
        #expect(!cache.isOpen)
      case 4 * step:
        cache.openAgain()
        #expect(cache.isOpen)
      case 5 * step, 7 * step: for key in replaced { cache[key] = -key }
      default: break
      }
    }
    #expect(seen.values.allSatisfy { $0 == 1 })
    #expect(Set(keys).subtracting(replaced).isSubset(of: seen.keys))
    #expect(cache.count == keys.count)
    cache.checkBooks()
  }

  @Test("each entry that stays comes once, beside threads that store and remove others, trim and compact")
  func storm() throws {
    let count = (TestRun.isFull ? 100_000 : 6000) / slowness
    let cache = try PurgeableCache<Int, Int>()
    cache.openEarly(count: count / 4)
    for key in 0..<count { cache[key] = key }
    #expect(cache.isOpen)
    let isDone = Atomic<Bool>(false)
    let failures = Atomic<Int>(0)
    let walks = Atomic<Int>(0)
    onThreads(3) { thread in
      if thread == 0 {
        for _ in 0..<2 {
          let seen = counts(cache.keys)
          walks.add(1, ordering: .relaxed)
          if seen.values.contains(where: { $0 != 1 }) { failures.add(1, ordering: .relaxed) }
          // A key that was trimmed is never stored again.
          for key in 0..<count where cache.containsValue(forKey: key) && seen[key] != 1 { failures.add(1, ordering: .relaxed) }
        }
        isDone.store(true, ordering: .releasing)
        return
      }
      var random = SplitMix64(seed: chosenSeed &+ UInt64(thread))
      while !isDone.load(ordering: .acquiring) {
        let other = count * thread + random.index(below: count / 10)
        switch random.index(below: 1000) {
        case 0: cache.moveAll()
        case 1: cache.trim(toCount: cache.count - 20)
        case 2..<500: cache.remove(forKey: other)
        default: cache[other] = other
        }
      }
    }
    #expect(failures.load(ordering: .relaxed) == 0 && walks.load(ordering: .relaxed) == 2)
    cache.checkBooks()
  }

  // MARK: What the kernel took

  @Test("entries that the kernel took are left out, found or not", arguments: [false, true])
  func losses(tracksKeys: Bool) throws {
    try needRealDiscards()
    let cache = try PurgeableCache<Int, [UInt8]>(tracksKeys: tracksKeys)
    for key in 0..<3000 { cache[key] = pattern(key % 10 == 0 ? 9000 : 200) }
    cache.discardEveryThirdPage()
    let keys = Array(cache.keys)
    let there = (0..<3000).filter { cache.containsValue(forKey: $0) }
    #expect(keys.sorted() == there && !there.isEmpty && there.count < 2900, "\(keys.count), \(there.count)")
    #expect(cache.snapshot().keys.sorted() == there && cache.snapshot().allSatisfy { $1 == pattern($1.count) })
    #expect(cache.entries.map(\.key).sorted() == there)
    cache.checkBooksSwept()
  }

  // MARK: Use

  @Test("nothing counts as a use", arguments: [false, true])
  func uses(tracksKeys: Bool) throws {
    let cache = try PurgeableCache<Int, Int>(tracksKeys: tracksKeys)
    for key in 0..<500 { cache[key] = key }
    for key in 0..<100 { _ = cache[key] }
    let (before, counters, order) = (cache.statistics, cache.useCounters(), Array(cache.keys))
    #expect(Array(cache.values).count == 500 && Array(cache.entries).count == 500 && cache.snapshot().count == 500)
    for key in 0..<600 { _ = cache.peekEntry(forKey: key) }
    #expect(cache.removeAll { _ in false } == 0)
    let after = cache.statistics
    #expect(after.hitCount == before.hitCount && after.missCount == before.missCount)
    #expect(cache.useCounters() == counters && Array(cache.keys) == order)
  }

  @Test("a loop may read, store, remove and enumerate")
  func loops() throws {
    let cache = try cacheWithoutTwins(1000, of: Int.self)
    for key in 0..<1000 { cache[key] = key }
    var seen: [Int] = []
    for entry in cache.entries {
      seen.append(entry.key)
      #expect(cache[entry.key] == entry.value)
      cache.remove(forKey: entry.key)
      cache[entry.key + 5000] = 0
      if seen.count % 100 == 0 { #expect(Array(cache.keys).count == 1000) }
    }
    #expect(seen == Array(0..<1000) && cache.count == 1000)
    var last: [Int] = []
    for key in cache.keys {
      last.append(key)
      if last.count == 1 { cache.removeAll() }
    }
    // Those that were found together with the first one.
    #expect(last.count < 100)
  }

  @Test("a forked child sees an empty walk, and ends one of its parent's", .forks)
  func forked() async {
    await #expect(processExitsWith: .success) {
      let count = TestRun.isFull ? 30_000 : 8000
      for tracksKeys in [false, true] {
        let cache = try PurgeableCache<Int, Int>(tracksKeys: tracksKeys)
        cache.openSooner(count: count / 2)
        for key in 0..<count { cache[key] = key }
        var walk = cache.keys.makeIterator()
        require(walk.next() != nil, "a first key")
        let isWell = childSays {
          var left = 0
          while walk.next() != nil { left += 1 }
          guard left < 100, Array(cache.keys).isEmpty, cache.snapshot().isEmpty, cache.removeAll(where: { _ in true }) == 0 else {
            return false
          }
          for key in 0..<100 { cache[key] = key }
          return Set(cache.keys) == Set(0..<100)
        }
        require(isWell, "the child")
        var left = 0
        while walk.next() != nil { left += 1 }
        require(left == count - 1, "the parent: \(left)")
      }
    }
  }

  // MARK: Removing by a condition

  @Test("a value that was replaced during the closure stays, and an entry that only moved goes", arguments: [false, true])
  func replaced(tracksKeys: Bool) throws {
    let cache = try PurgeableCache<Int, Int>(tracksKeys: tracksKeys)
    for key in 0..<300 { cache.setValue(key, forKey: key, cost: 5) }
    let removed = cache.removeAll { entry in
      if entry.key % 3 == 0 { cache[entry.key] = -entry.key - 1 }
      if entry.key % 3 == 1 { cache.remove(forKey: entry.key) }
      if entry.key % 30 == 2 { cache.moveAll() }
      return true
    }
    #expect(removed == 100)
    #expect(cache.snapshot() == Dictionary(uniqueKeysWithValues: stride(from: 0, to: 300, by: 3).map { ($0, -$0 - 1) }))
    // The same value at another cost.
    #expect(cache.removeAll { cache.setValue($0.value, forKey: $0.key, cost: 77) == .replaced } == 0)
    #expect(cache.count == 100)
    #expect(cache.removeAll { $0.cost == 77 } == 100 && cache.isEmpty)
    cache.checkBooksSwept()
  }

  @Test("an error leaves the removals before it, and departures are told as removals")
  func errors() throws {
    struct Stop: Error {}
    let departures = Departures<Int, Int>()
    let cache = try PurgeableCache<Int, Int> { departures.note($0) }
    for key in 0..<200 { cache[key] = key }
    #expect(throws: Stop.self) {
      try cache.removeAll { entry throws(Stop) in
        if entry.key == 50 { throw Stop() }
        return entry.key % 2 == 0
      }
    }
    #expect(cache.count == 175 && departures.all.map(\.key) == Array(stride(from: 0, to: 50, by: 2)))
    #expect(departures.count(of: .removed) == 25)
  }

  // MARK: Want of memory

  @Test("without memory a walk is empty, and so is a snapshot")
  func wantOfMemory() async {
    await #expect(processExitsWith: .success) {
      keepLibraryThreadAway()
      let cache = try PurgeableCache<Int, Int>()
      cache.openEarly()
      let all = TestRun.isFull ? 10_000 : 4000
      for key in 0..<all { cache[key] = key }
      var refused = 0
      while true {
        let mask = purgeable_testing_call_mmap.rawValue | purgeable_testing_call_allocate.rawValue
        purgeable_testing_fail(mask, UInt64(refused + 1), ENOMEM, false)
        var count = 0
        for _ in cache.keys { count += 1 }
        purgeable_testing_fail(0, 0, 0, false)
        if count == all { break }
        refused += 1
        // Three lists for each of 17 shards. Later refusals end the walk.
        require(refused <= 51 ? count == 0 : count < all, "\(refused): \(count)")
        if refused > 51 { refused += 100 }
      }
      require(refused > 51, "\(refused)")
      purgeable_testing_fail(purgeable_testing_call_allocate.rawValue, 1, ENOMEM, false)
      require(cache.snapshot().isEmpty, "a snapshot")
      purgeable_testing_fail(0, 0, 0, false)
      require(cache.snapshot().count == all, "a snapshot")
    }
  }
}
