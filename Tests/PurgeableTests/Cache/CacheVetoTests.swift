// SPDX-License-Identifier: MIT
// The program's say in evictions: who is asked, about what, and what happens where all is kept.

import Glibc
import PurgeableTestSupport
import Synchronization
import Testing
import ToolSupport

@testable import Purgeable

/// What a closure was asked, and what it answers.
private final class Asked: Sendable {
  private let calls = Mutex<[(key: Int, reason: DepartureReason)]>([])
  private let kept: @Sendable (Int) -> Bool

  init(keeping kept: @escaping @Sendable (Int) -> Bool) { self.kept = kept }

  func mayGo(_ key: Int, _ reason: DepartureReason) -> Bool {
    calls.withLock { $0.append((key, reason)) }
    return !kept(key)
  }

  /// Since the last time.
  func take() -> [(key: Int, reason: DepartureReason)] {
    calls.withLock { calls in
      defer { calls = [] }
      return calls
    }
  }
}

extension PurgeableCache {
  fileprivate func departures(_ reason: DepartureReason) -> Int { statistics.departures[reason] ?? 0 }
}

@Suite("cache: veto")
struct CacheVetoTests {
  private static func value(_ key: Int, _ count: Int = 100) -> [UInt8] {
    [UInt8](repeating: UInt8(truncatingIfNeeded: key), count: count)
  }

  private static func make(
    _ order: EvictionOrder, tracksKeys: Bool = false, countLimit: Int? = nil, costLimit: Int? = nil, byteLimit: Int? = nil
  ) throws -> PurgeableCache<Int, [UInt8]> {
    try PurgeableCache(
      countLimit: countLimit, costLimit: costLimit, byteLimit: byteLimit, evictionOrder: order, tracksKeys: tracksKeys)
  }

  @Test(
    "what the program keeps stays, at each kind of limit, which holds; nothing else stays in its place",
    arguments: EvictionOrder.allCases, [false, true])
  func kept(order: EvictionOrder, tracksKeys: Bool) throws {
    let limits = [("bytes", DepartureReason.bytes), ("count", .count), ("cost", .cost)]
    // What is asked about tracked keys is the same for each limit.
    for (limit, reason) in limits.prefix(TestRun.isFull || !tracksKeys ? 3 : 1) {
      // Limits of bytes are for whole slabs.
      let (stored, entries, bytes) =
        TestRun.isFull ? (10_000, 1000, 1 << 20) : limit == "bytes" ? (4000, 1000, 400 << 10) : (2000, 500, 0)
      let cache = try Self.make(
        order, tracksKeys: tracksKeys, countLimit: limit == "count" ? entries : nil,
        costLimit: limit == "cost" ? entries * 100 : nil, byteLimit: limit == "bytes" ? bytes : nil)
      let asked = Asked { $0 % 40 == 0 }
      cache.shouldEvict = { asked.mayGo($0, $1) }
      var most = 0
      for key in 0..<stored {
        cache[key] = Self.value(key)
        most = max(most, limit == "count" ? cache.count : limit == "cost" ? cache.totalCost : cache.byteCount)
        if key % 497 == 0 { #expect(cache.peekValue(forKey: key) == Self.value(key), "the entry just stored") }
      }
      // By bytes, kept entries may come to lie together, and a call passes over 64 only.
      #expect(most <= (limit == "count" ? entries : limit == "cost" ? entries * 100 : bytes + (64 << 10)), "\(limit): \(most)")
      let there = (0..<stored).filter { cache.containsValue(forKey: $0) }
      #expect(Set(stride(from: 0, to: stored, by: 40)).isSubset(of: there), "\(limit), \(order)")
      #expect(there.count == cache.count)
      if limit == "count" { #expect(cache.count == entries) }
      let calls = asked.take()
      #expect(calls.allSatisfy { $0.reason == reason })
      #expect(calls.count { $0.key % 40 != 0 } == cache.departures(reason))
      #expect(cache.departures(reason) == stored - there.count)
      #expect(there.first { cache.peekValue(forKey: $0) != Self.value($0) } == nil)
      cache.checkBooksSwept()
      // Without a veto the limits hold by themselves.
      cache.shouldEvict = nil
      #expect(cache.shouldEvict == nil)
      for key in stored..<stored + stored * 2 / 5 { cache[key] = Self.value(key) }
      #expect(asked.take().isEmpty)
      if order == .lru { #expect(!cache.containsValue(forKey: 40)) }
      cache.checkBooksSwept()
    }
  }

  @Test(
    "where all is kept a store returns, above the limit, having asked 64 times at most; then room is made at once",
    arguments: EvictionOrder.allCases, [false, true])
  func allKept(order: EvictionOrder, tracksKeys: Bool) throws {
    // Each store above the limit asks 64 times.
    let cache = try Self.make(order, tracksKeys: tracksKeys, countLimit: TestRun.isFull ? 100 : 220)
    let asked = Asked { _ in true }
    cache.shouldEvict = { asked.mayGo($0, $1) }
    for key in 0..<300 {
      #expect(cache.setValue(Self.value(key), forKey: key) == .stored)
      let calls = asked.take()
      #expect(calls.count <= 64 && !calls.contains { $0.key == key })
      #expect(Set(calls.map(\.key)).count == calls.count, "each once")
    }
    #expect(cache.count == 300)
    // A lower limit asks, too.
    try cache.setCountLimit(50)
    let calls = asked.take()
    #expect((100...300).contains(calls.count) && Set(calls.map(\.key)).count == calls.count && cache.count == 300)
    cache.shouldEvict = { _, _ in true }
    cache[300] = Self.value(300)
    #expect(cache.count == 50 && cache.containsValue(forKey: 300))
    // By bytes: above the limit as long as all is kept.
    let bytes = try Self.make(order, byteLimit: 400 << 10)
    bytes.shouldEvict = { _, _ in false }
    let count = TestRun.isFull ? 2000 : 1050
    for key in 0..<count { #expect(bytes.setValue(Self.value(key, 400), forKey: key) == .stored) }
    #expect(bytes.count == count && bytes.byteCount > count * 400)
    bytes.shouldEvict = nil
    #expect(bytes.byteCount <= 400 << 10 && bytes.count > 500)
    for cache in [cache, bytes] { cache.checkBooksSwept() }
  }

  @Test("a trim asks nobody and ends where it was told to, also above a limit", arguments: EvictionOrder.allCases)
  func trimmed(order: EvictionOrder) throws {
    let cache = try Self.make(order, countLimit: 5)
    let asked = Asked { _ in true }
    cache.shouldEvict = { asked.mayGo($0, $1) }
    for key in 0..<20 { cache[key] = Self.value(key) }
    #expect(cache.count == 20 && !asked.take().isEmpty)
    cache.trim(toCount: 10)
    #expect(cache.count == 10 && asked.take().isEmpty)
    cache.trim(toCost: 700)
    #expect(cache.count == 7 && asked.take().isEmpty)
  }

  @Test("an entry whose key has the tag of one that was kept is not taken for it", arguments: EvictionOrder.allCases)
  func sameTag(order: EvictionOrder) throws {
    let cache = try Self.make(order)
    // Two of some ten thousand keys have the same 26 bits.
    var known: [UInt64: Int] = [:]
    var pair: (kept: Int, other: Int)?
    for key in 0..<100_000 where pair == nil {
      let identity = unsafe withUnsafeBytes(of: key) { unsafe cache.engine.base.elements.keys.key(prefix: $0.bytes).identity }
      if let kept = known.updateValue(key, forKey: identity) { pair = (kept, key) }
    }
    let (kept, other) = try #require(pair)
    cache.shouldEvict = { key, _ in key != kept }
    for key in [kept, other, -1, -2, -3] { cache[key] = Self.value(1, 40) }
    try cache.setCountLimit(1)
    #expect(Array(cache.keys) == [kept])
  }

  @Test("the entry that is stored is not asked about, even where nothing else may go", arguments: [false, true])
  func onlyStored(tracksKeys: Bool) throws {
    for order in EvictionOrder.allCases {
      let cache = try Self.make(order, tracksKeys: tracksKeys, countLimit: 2)
      cache.shouldEvict = { key, _ in key > 2 }
      for key in 1...2 { cache[key] = Self.value(key) }
      #expect(cache.setValue(Self.value(3), forKey: 3) == .stored && Set(cache.keys) == [1, 2, 3])
      #expect(cache.setValue(Self.value(4), forKey: 4) == .stored && Set(cache.keys) == [1, 2, 4])
    }
  }

  @Test("a lowered limit holds at once, however many of the oldest entries are kept", arguments: EvictionOrder.allCases)
  func lowered(order: EvictionOrder) throws {
    let (stored, kept, entries, bytes) = TestRun.isFull ? (4000, 500, 1000, 700 << 10) : (2000, 250, 500, 400 << 10)
    for limit in ["count", "cost", "bytes"] {
      let cache = try Self.make(order)
      cache.shouldEvict = { key, _ in key >= kept }
      for key in 0..<stored { cache[key] = Self.value(key, 400) }
      switch limit {
      case "count": try cache.setCountLimit(entries)
      case "cost": try cache.setCostLimit(entries * 400)
      default: try cache.setByteLimit(bytes)
      }
      if limit == "count" { #expect(cache.count == entries) }
      if limit == "cost" { #expect(cache.totalCost == entries * 400) }
      if limit == "bytes" { #expect(cache.byteCount <= bytes && cache.count > bytes >> 10) }
      #expect((0..<kept).first { cache.peekValue(forKey: $0) != Self.value($0, 400) } == nil)
      cache.checkBooksSwept()
    }
  }

  @Test("a lowered limit holds also where several shards have numbered their keys alike", arguments: [false, true])
  func numberedAlike(tracksKeys: Bool) throws {
    let cache = try Self.make(.s3FIFO, tracksKeys: tracksKeys)
    for key in 0..<40_000 { cache[key] = Self.value(key, 10) }
    try #require(cache.engine.shards.openCount > 1)
    cache.shouldEvict = { key, _ in key % 2 == 0 }
    try cache.setCountLimit(20_000)
    #expect(cache.count == 20_000)
    #expect((0..<40_000).first { cache.containsValue(forKey: $0) != ($0 % 2 == 1) } == nil)
  }

  /// A key whose hash says nothing.
  private struct Alike: Hashable {
    let number: Int
    func hash(into hasher: inout Hasher) {}
  }

  @Test("keys with one hash are asked about, but for the one that is stored", arguments: EvictionOrder.allCases)
  func alike(order: EvictionOrder) throws {
    let cache = try PurgeableCache<Alike, Int>(countLimit: 3, evictionOrder: order)
    cache.shouldEvict = { _, _ in true }
    for number in 0..<50 {
      cache[Alike(number: number)] = number
      #expect(cache.count == min(3, number + 1) && cache.containsValue(forKey: Alike(number: number)))
    }
  }

  @Test(
    "a lowered limit goes through all entries: the young half may go, one of all may, none may", arguments: EvictionOrder.allCases
  )
  func through(order: EvictionOrder) throws {
    for count in [200, 2000] {
      for limit in ["count", "cost", "bytes"] {
        let cache = try Self.make(order)
        for key in 0..<count { cache[key] = Self.value(key, 400) }
        cache.shouldEvict = { key, _ in key >= count / 2 }
        switch limit {
        case "count": try cache.setCountLimit(count / 2)
        case "cost": try cache.setCostLimit(count / 2 * 400)
        default: try cache.setByteLimit(max(cache.byteCount / 2, 1))
        }
        if limit == "bytes" {
          #expect(cache.count <= count / 2 + (count == 200 ? 100 : 0), "\(limit) of \(count): \(cache.count)")
        } else {
          #expect(Array(cache.keys).sorted() == Array(0..<count / 2), "\(limit) of \(count): \(cache.count)")
        }
        cache.checkBooksSwept()
      }
      let cache = try Self.make(order, countLimit: count)
      for key in 0..<count { cache[key] = Self.value(key) }
      cache.shouldEvict = { key, _ in key == count * 3 / 4 }
      try cache.setCountLimit(count / 2)
      #expect(cache.count == count - 1 && !cache.containsValue(forKey: count * 3 / 4))
      let asked = Asked { _ in true }
      cache.shouldEvict = { asked.mayGo($0, $1) }
      for lower in [count / 20, 5] {
        try cache.setCountLimit(lower)
        let calls = asked.take().map(\.key)
        #expect(Set(calls).count == count - 1 && calls.count < 2 * count, "\(lower) of \(count): \(calls.count)")
      }
    }
  }

  @Test("shards that open while a limit is exceeded take no entry that is kept", arguments: [false, true])
  func opening(tracksKeys: Bool) throws {
    let (count, more, limit, slabsPerShard) = TestRun.isFull ? (60_000, 100, 10 << 20, 64) : (4000, 30, 5 << 19, 16)
    let cache = try Self.make(.s3FIFO, tracksKeys: tracksKeys)
    cache.staysInOneShard()
    cache.engine.shards.sizes.slabsPerShard.store(slabsPerShard, ordering: .relaxed)
    for key in 0..<count { cache[key] = Self.value(key, 800) }
    let asked = Asked { _ in true }
    cache.shouldEvict = { asked.mayGo($0, $1) }
    try cache.setByteLimit(limit)
    #expect(cache.count == count && cache.byteCount > limit)
    cache.engine.shards.openShards()
    #expect(cache.engine.shards.openCount > 1)
    for key in count..<count + more { cache[key] = Self.value(key, 800) }
    for key in stride(from: 0, to: count, by: count / (2 * more)) { cache[key] = Self.value(key, 800) }
    #expect(cache.count == count + more && cache.departures(.bytes) == 0)
    for key in 0..<count + more where cache.peekValue(forKey: key) != Self.value(key, 800) {
      Issue.record("key \(key)")
      break
    }
    cache.checkBooksSwept()
  }

  @Test(
    "a lower byte limit takes little more entries where all may go than where nobody is asked", arguments: EvictionOrder.allCases)
  func asMany(order: EvictionOrder) throws {
    // The fewer entries a cache with many shards has, the more of its memory are slabs that each shard needs for itself.
    for stored in TestRun.isFull ? [60_000, 40_000, 20_000] : [20_000] {
      let counts = try [false, true].map { asks in
        let cache = try Self.make(order)
        if asks { cache.shouldEvict = { _, _ in true } }
        for key in 0..<stored { cache[key] = [7, 7, 7, 7] }
        try cache.setByteLimit(cache.byteCount / 2)
        return cache.count
      }
      #expect(Double(counts[1]) > 0.7 * Double(counts[0]), "of \(stored): \(counts)")
    }
  }

  @Test("exact LRU asks in its order; an entry that was passed over is as one that was used")
  func inOrder() throws {
    let cache = try Self.make(.lru, countLimit: 5)
    for key in 0..<5 { cache[key] = Self.value(key) }
    _ = cache[0]
    let asked = Asked { $0 == 1 || $0 == 3 }
    cache.shouldEvict = { asked.mayGo($0, $1) }
    cache[5] = Self.value(5)
    #expect(asked.take().map(\.key) == [1, 2])
    cache[6] = Self.value(6)
    #expect(asked.take().map(\.key) == [3, 4])
    cache[7] = Self.value(7)
    #expect(asked.take().map(\.key) == [0])
    cache[8] = Self.value(8)
    #expect(asked.take().map(\.key) == [5])
    #expect(Set(cache.keys) == [1, 3, 6, 7, 8])
  }

  @Test("not asked for removals, trims, deciders, what has expired or is lost")
  func notAsked() throws {
    let clock = ManualClock()
    var options = CacheOptions()
    options.clock = clock
    options.idleTime = .seconds(1000)
    let cache = try PurgeableCache<Int, [UInt8]>(options)
    let asked = Asked { _ in true }
    cache.shouldEvict = { asked.mayGo($0, $1) }
    for key in 0..<6000 {
      cache.setValue(Self.value(key), forKey: key, expiry: key % 2 == 0 ? .sinceCreation(.seconds(10)) : nil)
    }
    cache.remove(forKey: 1)
    cache.removeAll { $0.key == 3 }
    cache.evictAll { $0.key == 5 }
    clock.advance(by: .seconds(10))
    cache.removeExpired()
    #expect(cache.count == 2997)
    cache.trim(toCount: 2000)
    #expect(cache.count == 2000)
    cache.trimUntimed(level: .critical)
    #expect(cache.count < 2000)
    cache.trim(toBytes: 0)
    #expect(cache.isEmpty)
    for key in 0..<100 { cache[key] = Self.value(key) }
    for _ in 0..<3 {
      clock.advance(by: .seconds(1000))
      cache.engine.giveBackIdle()
    }
    #expect(cache.isEmpty && cache.departures(.idle) + cache.departures(.trimmed) > 2000)
    #expect(asked.take().isEmpty)
    cache.checkBooksSwept()
  }

  @Test("under pressure it is asked on a thread of the cache's own; the reaction goes on without it, what is kept stays")
  func pressure() throws {
    let cache = try Self.make(.s3FIFO)
    let count = TestRun.isFull ? 20_000 : 8000
    for key in 0..<count { cache[key] = Self.value(key) }
    let asked = Asked { $0 % 10 == 0 }
    let own = Mutex<Set<UInt>>([])
    cache.shouldEvict = { key, reason in
      _ = own.withLock { $0.insert(UInt(pthread_self())) }
      return asked.mayGo(key, reason)
    }
    let loaded = cache.engine.asker.load()
    let asker = try #require(loaded)
    let before = cache.byteCount
    let clients: [any PressureClient] = [cache.engine, asker]
    let relief = PressureReaction.run(clients, .warning, mustGive: true) { _ in false }
    #expect(relief.lostEntryCount == 0)
    for _ in 0..<24_000 where cache.departures(.pressure) == 0 || asker.relief.withLock({ $0.hasThread }) { usleep(5000) }
    let calls = asked.take()
    #expect(!calls.isEmpty && calls.allSatisfy { $0.reason == .pressure })
    #expect(!own.withLock { $0 }.contains(UInt(pthread_self())))
    #expect(cache.departures(.pressure) == calls.count { $0.key % 10 != 0 })
    #expect(cache.byteCount < before - before / 32, "\(cache.byteCount) of \(before)")
    // Until nothing but what is kept is left.
    var slices = 0
    while cache.count > count / 10, slices < 3000 {
      slices += 1
      _ = asker.giveSlice()
    }
    #expect(cache.keys.allSatisfy { $0 % 10 == 0 } && cache.count == count / 10)
    cache.checkBooksSwept()
  }

  @Test(
    "the closure may read and change the cache, set and take itself away; what its stores add is evicted by the call around it")
  func reentrant() throws {
    let cache = try Self.make(.s3FIFO, countLimit: 100)
    let count = Mutex(0)
    cache.shouldEvict = { [weak cache] key, _ in
      let number = count.withLock { count -> Int in
        count += 1
        return count
      }
      #expect(cache?.peekValue(forKey: key) == Self.value(key))
      if number % 7 == 0 { cache?.remove(forKey: key) }
      if number % 5 == 0 { cache?[100_000 + number] = Self.value(100_000 + number) }
      if number % 11 == 0 { cache?[key] = Self.value(key) }
      if number == 3000 { cache?.shouldEvict = nil }
      return true
    }
    for key in 0..<5000 { cache[key] = Self.value(key) }
    #expect(count.withLock { $0 } == 3000 && cache.count == 100)
    cache.checkBooksSwept()
  }

  @Test("threads: limits are exceeded by as many entries as there are threads, what is kept stays, and nothing is wrong")
  func threads() throws {
    let (steps, bytes) = TestRun.isFull ? (3000 / slowness, 1 << 20) : (1500 / slowness, 1 << 19)
    for limit in [true, false] {
      let cache = try Self.make(.s3FIFO, countLimit: limit ? 2000 : nil, byteLimit: limit ? nil : bytes)
      cache.shouldEvict = { key, _ in key % 100 != 0 }
      let most = Atomic<Int>(0)
      onThreads(4) { thread in
        var random = SplitMix64(seed: UInt64(thread))
        for step in 0..<steps {
          let key = thread * 100_000 + step
          cache[key] = Self.value(key)
          if limit { most.max(cache.count, ordering: .relaxed) }
          let other = Int(random.next() % 4) * 100_000 + Int(random.next() % UInt64(step + 1))
          if let value = cache[other], value != Self.value(other) { Issue.record("key \(other)") }
          if step % 1000 == 0 { cache.offerIdle() }
        }
      }
      #expect(most.load(ordering: .relaxed) <= 2004)
      for thread in 0..<4 {
        for step in stride(from: 0, to: steps, by: 100) {
          #expect(cache.peekValue(forKey: thread * 100_000 + step) == Self.value(thread * 100_000 + step))
        }
      }
      cache[-1] = []
      if limit { #expect(cache.count <= 2000) } else { #expect(cache.byteCount <= bytes) }
      cache.checkBooksSwept()
    }
  }

  @Test("what the kernel took leaves unasked, also while evictions ask")
  func lost() throws {
    try needRealDiscards()
    let limit = TestRun.isFull ? 20_000 : 2500
    let cache = try Self.make(.s3FIFO, countLimit: limit)
    let wrong = Atomic<Int>(0)
    cache.shouldEvict = { [weak cache] key, _ in
      if let cache, cache.peekValue(forKey: key) == nil { wrong.add(1, ordering: .relaxed) }
      return key % 3 == 0
    }
    for key in 0..<limit { cache[key] = Self.value(key) }
    cache.discardEveryThirdPage()
    for key in limit..<2 * limit { cache[key] = Self.value(key) }
    #expect(wrong.load(ordering: .relaxed) == 0 && cache.statistics.departures[.discarded] ?? 0 > 0)
    for key in 0..<2 * limit {
      if let value = cache.peekValue(forKey: key), value != Self.value(key) { Issue.record("key \(key)") }
    }
    cache.checkBooksSwept()
  }

  @Test("a cache may end inside of its closure: in a store, by a limit that is lowered, and under pressure")
  func ending() async {
    await #expect(processExitsWith: .success) {
      alarm(600)
      for way in 0..<3 {
        let holder = Mutex<PurgeableCache<Int, [UInt8]>?>(nil)
        let asked = Atomic<Int>(0)
        weak var left: PurgeableCache<Int, [UInt8]>?
        do {
          let cache = try PurgeableCache<Int, [UInt8]>(countLimit: 100)
          for key in 0..<100 { cache[key] = [1] }
          cache.shouldEvict = { _, _ in
            asked.add(1, ordering: .relaxed)
            let last = holder.withLock { held in
              defer { held = nil }
              return held
            }
            _ = last
            return true
          }
          left = cache
          holder.withLock { $0 = cache }
        }
        switch way {
        case 0: holder.withLock({ $0 })?.setValue([1], forKey: 100)
        case 1: try? holder.withLock({ $0 })?.setCountLimit(50)
        default: _ = holder.withLock({ $0 })?.engine.asker.load()?.giveSlice()
        }
        require(asked.load(ordering: .relaxed) > 0, "nobody was asked")
        require(patiently { left == nil }, "the cache is left")
      }
    }
  }

  @Test("in a forked child the closure is asked too; the cache ends while a closure is set", .forks)
  func forking() async {
    await #expect(processExitsWith: .success) {
      let cache = try PurgeableCache<Int, [UInt8]>(countLimit: 100)
      cache.shouldEvict = { key, _ in key % 2 == 0 }
      for key in 0..<300 { cache[key] = [1] }
      let isWell = childSays {
        guard cache.isEmpty else { return false }
        for key in 0..<300 { cache[key] = [2] }
        return (150...170).contains(cache.count) && cache[299] == [2] && cache[1] == [2]
      }
      require(isWell, "the child's")
      var other: PurgeableCache<Int, [UInt8]>? = try PurgeableCache(countLimit: 100)
      other?.shouldEvict = { _, _ in true }
      other?[1] = [1]
      weak let left = other
      other = nil
      require(left == nil, "the end")
    }
  }
}
