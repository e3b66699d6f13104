// SPDX-License-Identifier: MIT
// Entries whose time is over some time after their last use: what is a use, to which moment it is exact, and that it goes along.

import PurgeableTestSupport
import Synchronization
import Testing
import ToolSupport

@testable import Purgeable

@Suite("cache: expiry since the last use")
struct CacheLastUseTests {
  @Test("they are noted also after the removal of all, for who asks which were used")
  func afterRemoval() throws {
    let clock = ManualClock()
    let cache: PurgeableCache<Int, [UInt8]> = try makeExpiringCache(clock)
    cache.noteUses()
    for key in 0..<10 { cache[key] = [1] }
    for _ in 0..<2 {
      cache.removeAll()
      let moment = cache.useMoment
      clock.advance(by: .seconds(1))
      cache[1] = [2]
      var keys: [Int] = []
      cache.forEachKey(usedSince: moment) { key, _ in
        keys.append(key)
        return true
      }
      #expect(keys == [1])
    }
  }

  @Test("each kind of use prolongs an entry, and nothing else does", arguments: EvictionOrder.allCases, [false, true])
  func uses(order: EvictionOrder, tracksKeys: Bool) throws {
    let clock = ManualClock()
    let cache: PurgeableCache<Int, [UInt8]> = try makeExpiringCache(
      clock, order, tracksKeys: tracksKeys, expiry: .sinceLastUse(.seconds(10)))
    let isTen = pattern(10)
    let calls: [(String, isUse: Bool, (Int) -> Void)] = [
      ("value", true, { #expect(cache[$0] == isTen) }),
      ("look-up", true, { if case .miss = cache.lookUpValue(forKey: $0) { Issue.record() } }),
      ("lock", true, { #expect(cache.withBytes(forKey: $0) { $0.byteCount } == 10) }),
      ("many", true, { #expect(cache.values(forKeys: [$0]) == [isTen]) }),
      ("loading", true, { #expect(cache.value(forKey: $0) { [] } == isTen) }),
      ("store", true, { cache[$0] = isTen }),
      ("update", true, { #expect(cache.updateValue(isTen, forKey: $0) == isTen) }),
      ("modify", true, { cache.modifyValue(forKey: $0) { $0?[0] = 7 } }),
      ("peek", false, { #expect(cache.peekValue(forKey: $0) == isTen) }),
      ("entry", false, { #expect(cache.peekEntry(forKey: $0)?.value == isTen) }),
      ("contains", false, { #expect(cache.containsValue(forKey: $0)) }),
      ("keys", false, { #expect(cache.keys.contains($0)) }),
      ("entries", false, { key in #expect(cache.entries.contains { $0.key == key }) }),
      ("snapshot", false, { #expect(cache.snapshot()[$0] == isTen) }),
      ("remove none", false, { _ in #expect(cache.removeAll { _ in false } == 0) }),
      ("priority", false, { key in #expect(throws: Never.self) { try cache.setPriority(.normal, forKey: key) } }),
      ("upkeep", false, { _ in cache.engine.dropDueSlabs() }),
      ("move", false, { _ in cache.moveAll() }),
    ]
    for (key, (name, isUse, call)) in calls.enumerated() {
      cache[key] = isTen
      for _ in 0..<3 {
        // The clock began anywhere within 10 ms.
        clock.advance(by: .seconds(10) - .milliseconds(10))
        call(key)
        if !isUse { break }
      }
      clock.advance(by: .milliseconds(10))
      #expect(cache.containsValue(forKey: key) == isUse, "\(name)")
      #expect(isUse || MissReason.of(cache.lookUpValue(forKey: key)) == .expired, "\(name)")
      clock.advance(by: .seconds(10) - .milliseconds(10))
      #expect(!cache.containsValue(forKey: key), "\(name), 10 s later")
    }
    cache.removeExpired()
    cache.checkBooksSwept()
    #expect(cache.isEmpty)
  }

  @Test("an entry goes at most 10 ms early, and is never returned late, by no call")
  func exact() throws {
    var random = SplitMix64(seed: chosenSeed)
    let clock = ManualClock()
    let calls: [(PurgeableCache<Int, [UInt8]>) -> Bool] = [
      { $0[1] != nil }, { $0.peekValue(forKey: 1) != nil }, { $0.containsValue(forKey: 1) },
      { $0.withBytes(forKey: 1) { _ in } != nil }, { $0.keys.contains(1) }, { $0.snapshot()[1] != nil },
      { $0.updateValue([2], forKey: 1) != nil }, { $0.remove(forKey: 1) }, { $0.removeExpired() == 0 },
    ]
    for tracksKeys in [false, true] {
      let cache: PurgeableCache<Int, [UInt8]> = try makeExpiringCache(clock, tracksKeys: tracksKeys)
      for call in calls {
        for _ in 0..<20 {
          clock.advance(by: .nanoseconds(random.index(below: 20_000_000)))
          let time = Duration.nanoseconds(1 + random.index(below: 5_000_000_000))
          // A use in the middle; where the time is short, the store is the last one.
          cache.setValue([1], forKey: 1, expiry: .sinceLastUse(time))
          if time > .milliseconds(20) {
            clock.advance(by: time / 2)
            #expect(cache[1] == [1])
            clock.advance(by: time - .milliseconds(10))
            #expect(cache.containsValue(forKey: 1), "10 ms before the end of \(time)")
            clock.advance(by: .milliseconds(10))
          } else {
            clock.advance(by: time)
          }
          #expect(!call(cache), "\(time) after the last use")
          cache.remove(forKey: 1)
        }
      }
    }
  }

  @Test("of two bounds the first one counts, and what is left is the shorter time")
  func bothBounds() throws {
    let clock = ManualClock()
    let both = Expiry(sinceCreation: .seconds(60), sinceLastUse: .seconds(20))
    let cache: PurgeableCache<String, [UInt8]> = try makeExpiringCache(clock, expiry: both)
    #expect(cache.expiry == both && both.description == "60.0 seconds since creation, 20.0 seconds since last use")
    for key in ["used", "idle"] { cache[key] = [1] }
    cache.setValue([1], forKey: "other", expiry: .sinceLastUse(.seconds(30)))
    for _ in 0..<6 {
      clock.advance(by: .milliseconds(9990))
      #expect(cache["used"] == [1] && cache["other"] == [1])
    }
    let left = try #require(cache.peekEntry(forKey: "used")?.remainingTime)
    #expect(left == .milliseconds(60) && cache["idle"] == nil)
    let others = try #require(cache.peekEntry(forKey: "other")?.remainingTime)
    #expect(others > .milliseconds(29_990) && others <= .seconds(30))
    cache.modifyValue(forKey: "used") { $0?.append(2) }
    #expect(cache.peekEntry(forKey: "used")?.remainingTime == left)
    clock.advance(by: left)
    #expect(cache["used"] == nil && cache["other"] == [1])
    cache.modifyValue(forKey: "other") { $0?.append(2) }
    clock.advance(by: .seconds(30))
    #expect(cache["other"] == nil)
    try cache.setExpiry(.sinceLastUse(.seconds(5)))
    #expect(cache.expiry == .sinceLastUse(.seconds(5)))
    cache["new"] = [1]
    #expect(cache.peekEntry(forKey: "new").map { $0.remainingTime! <= .seconds(5) } == true)
  }

  @Test("times of 0 or less are refused, and very long ones are no bound")
  func extremes() throws {
    let clock = ManualClock()
    let cache: PurgeableCache<String, [UInt8]> = try makeExpiringCache(clock)
    cache["a"] = [1]
    #expect(cache.setValue([2], forKey: "a", expiry: .sinceLastUse(.zero)) == .expired && cache.isEmpty)
    #expect(cache.setValue([2], forKey: "a", expiry: Expiry(sinceCreation: .seconds(9), sinceLastUse: .seconds(-1))) == .expired)
    let refused = PurgeableError.Kind.invalidArgument("expiry")
    #expect { try cache.setExpiry(.sinceLastUse(.zero)) } throws: { ($0 as? PurgeableError)?.kind == refused }
    var options = CacheOptions()
    options.expiry = Expiry(sinceCreation: .seconds(9), sinceLastUse: .seconds(-1))
    #expect { try PurgeableCache<Int, Int>(options) } throws: { ($0 as? PurgeableError)?.kind == refused }
    cache.setValue([1], forKey: "long", expiry: .sinceLastUse(.seconds(Int64.max)))
    cache.setValue([1], forKey: "250 days", expiry: .sinceLastUse(.seconds(250 * 86_400)))
    cache.setValue([1], forKey: "248 days", expiry: .sinceLastUse(.seconds(248 * 86_400)))
    clock.advance(by: .seconds(248 * 86_400 - 1))
    #expect(cache.containsValue(forKey: "248 days"))
    clock.advance(by: .seconds(1))
    #expect(!cache.containsValue(forKey: "248 days"))
    clock.advance(by: .seconds(1000 * 86_400))
    #expect(Set(cache.keys) == ["long", "250 days"])
  }

  @Test("a clock that goes back neither ends an entry nor keeps one")
  func clockGoesBack() throws {
    let clock = ManualClock()
    let cache: PurgeableCache<Int, [UInt8]> = try makeExpiringCache(clock, expiry: .sinceLastUse(.seconds(10)))
    cache[1] = [1]
    clock.advance(by: .seconds(-1000))
    #expect(cache[1] == [1])
    clock.advance(by: .seconds(1009))
    #expect(cache.containsValue(forKey: 1))
    clock.advance(by: .seconds(1))
    #expect(!cache.containsValue(forKey: 1))
  }

  @Test(
    "last uses go along: as the index grows and shrinks, to other slabs, queues and shards, and back", arguments: [false, true])
  func moves(tracksKeys: Bool) throws {
    let clock = ManualClock()
    // `grown` and `most` lead to more entries than open the shards.
    let (count, grown, most) = TestRun.isFull ? (2000, 30_000, 60_000) : (900, 14_000, 14_000)
    let steps: [(String, (PurgeableCache<Int, [UInt8]>) throws -> Void)] = [
      ("grows", { cache in for key in 10_000..<grown { cache.setValue([1], forKey: key, expiry: .never) } }),
      (
        "shrinks",
        { cache in
          for key in 10_000..<most { cache.setValue([1], forKey: key, expiry: .never) }
          for key in 10_000..<most { cache.remove(forKey: key) }
          for shard in cache.engine.shards.all { cache.engine.shards.hold(shard) { $0.shrinkIndex() } }
        }
      ),
      ("slabs", { $0.moveAll() }),
      ("queues", { cache in for key in 0..<count { try cache.setPriority(key % 2 == 0 ? .pinned : .speculative, forKey: key) } }),
      (
        "shards",
        { cache in
          cache.engine.shards.openShards()
          for key in stride(from: 0, to: count, by: 7) { _ = cache.peekValue(forKey: key) }
          cache.moveAll()
          for shard in cache.engine.shards.all.dropFirst() { cache.engine.shards.hold(shard) { _ in } }
        }
      ),
      (
        "opened and closed",
        { cache in
          cache.engine.shards.openShards()
          for key in stride(from: 0, to: count, by: 3) { cache.setValue(pattern(60), forKey: key) }
          try cache.setByteLimit(6 << 20)
          cache.moveAll()
        }
      ),
    ]
    for (name, step) in steps {
      let cache: PurgeableCache<Int, [UInt8]> = try makeExpiringCache(
        clock, tracksKeys: tracksKeys, expiry: .sinceLastUse(.seconds(100)))
      cache.openSooner(count: 3000)
      for key in 0..<count { cache[key] = pattern(60) }
      clock.advance(by: .seconds(50))
      for key in stride(from: 0, to: count, by: 3) { #expect(cache[key] == pattern(60)) }
      clock.advance(by: .seconds(40))
      try step(cache)
      clock.advance(by: .seconds(15))
      let left = (0..<count).count { key in
        let isThere = cache.peekValue(forKey: key) == pattern(60)
        #expect(isThere == (key % 3 == 0), "\(name): \(key)")
        return isThere
      }
      #expect(left == (count + 2) / 3, "\(name)")
      clock.advance(by: .seconds(95))
      cache.removeExpired()
      #expect((0..<count).allSatisfy { !cache.containsValue(forKey: $0) }, "\(name)")
      cache.checkBooksSwept()
    }
  }

  @Test("upkeep drops what is not used, slab by slab, keeps what is, and comes again for that", arguments: EvictionOrder.allCases)
  func upkeep(order: EvictionOrder) throws {
    let clock = ManualClock()
    let cache: PurgeableCache<Int, [UInt8]> = try makeExpiringCache(clock, order, expiry: .sinceLastUse(.seconds(60)))
    let count = TestRun.isFull ? 20_000 : 7000
    cache.openSooner(count: count * 4 / 5)
    for key in 0..<count { cache[key] = described(UInt32(key), version: 0, count: 90) }
    let held = cache.statistics.memory.heldBytes
    clock.advance(by: .seconds(30))
    for key in stride(from: 0, to: count, by: 10) { _ = cache[key] }
    clock.advance(by: .seconds(29))
    #expect(cache.engine.dropDueSlabs() < .max && cache.count == count)
    clock.advance(by: .seconds(1))
    #expect(cache.engine.dropDueSlabs() < .max && cache.count == count / 10)
    #expect(cache.statistics.departures[.expired] == count * 9 / 10)
    for key in stride(from: 0, to: count, by: 10) {
      #expect(cache.peekValue(forKey: key) == described(UInt32(key), version: 0, count: 90))
    }
    cache.checkBooks()
    // 30 s later, and rounded down.
    let next = cache.engine.shards.all.compactMap { shard in cache.engine.shards.hold(shard) { $0.nextDue } }.min()
    let due = try #require(next) - cache.engine.base.clock.now()
    #expect(due > 29_900_000_000 && due <= 30_000_000_000)
    clock.advance(by: .seconds(29))
    cache.engine.dropDueSlabs()
    #expect(cache.count == count / 10)
    clock.advance(by: .seconds(1))
    #expect(cache.engine.dropDueSlabs() == .max && cache.isEmpty && cache.statistics.memory.heldBytes < held / 4)
    cache.checkBooks()
  }

  @Test("what was not used goes first where room is needed, and one call drops exactly what is over", arguments: [false, true])
  func room(tracksKeys: Bool) throws {
    let clock = ManualClock()
    let cache: PurgeableCache<Int, [UInt8]> = try makeExpiringCache(
      clock, tracksKeys: tracksKeys, countLimit: 1000, expiry: .sinceLastUse(.seconds(64)))
    for key in 0..<1000 { cache[key] = pattern(200) }
    clock.advance(by: .seconds(40))
    for key in 0..<500 { _ = cache[key] }
    clock.advance(by: .seconds(30))
    for key in 1000..<1100 { cache[key] = pattern(200) }
    #expect(cache.statistics.departures[.count] == 0)
    _ = cache.removeExpired()
    #expect(cache.count == 600 && cache.removeExpired() == 0)
    #expect((0..<500).allSatisfy { cache.containsValue(forKey: $0) })
    clock.advance(by: .seconds(34))
    #expect(cache.removeExpired() == 500 && cache.count == 100)
    cache.checkBooksSwept()
  }

  @Test("moments are told apart for half the way round, across its end too; an earlier one takes no later one's place")
  func moments() {
    let step = Lifetime.useStep
    for start in [7 * step, (UInt64(UInt32.max) - 2) * step + 5, (1 << 40) * step + step - 1] {
      let time = UseTime(start)
      #expect(time.moment(asOf: start) == start / step * step && time.steps(until: time) == 0)
      for later in [1, 100, UInt64(Int32.max)] {
        let other = UseTime(start + later * step)
        #expect(time.steps(until: other) == later && other.steps(until: time) == 0)
        #expect(time.moment(asOf: start + later * step) == start / step * step)
        #expect(other.moment(asOf: start) == start / step * step)
      }
    }
    let words = UnsafeMutableRawPointer.allocate(byteCount: 64, alignment: 64)
    defer { unsafe words.deallocate() }
    unsafe words.initializeMemory(as: UInt8.self, repeating: 0, count: 64)
    let lastUse = LastUse(at: 1, behind: unsafe SlotPointer(words, count: 8), slotCount: 4)
    lastUse.set(UseTime(500 * step))
    lastUse.note(UseTime(400 * step))
    #expect(lastUse.time == UseTime(500 * step))
    lastUse.note(UseTime(501 * step))
    #expect(lastUse.time == UseTime(501 * step))
  }

  @Test("last uses take memory in caches with such entries only, and it counts")
  func memory() throws {
    let clock = ManualClock()
    for (expiry, parts) in [(Expiry.sinceCreation(.seconds(60)), 2), (.sinceLastUse(.seconds(60)), 3)] {
      let cache: PurgeableCache<Int, [UInt8]> = try makeExpiringCache(clock, expiry: expiry)
      for key in 0..<5000 { cache[key] = pattern(8) }
      for shard in cache.engine.shards.all where shard.index.sizeClass > 0 {
        let table = SlotIndex.byteCount(of: shard.index.sizeClass)
        #expect(shard.index.byteCount == SlotIndex.homeBytes + table * parts / 2)
      }
      cache.checkBooks()
    }
    let cache: PurgeableCache<Int, [UInt8]> = try makeExpiringCache(clock, expiry: .sinceLastUse(.seconds(60)))
    let index = cache.engine.shards.founder.index
    cache[1] = pattern(8)
    #expect(index.byteCount == SlotIndex.homeBytes + 1024)
    cache.removeAll()
    cache.setValue([1], forKey: 1, expiry: .never)
    #expect(index.byteCount == SlotIndex.homeBytes)
    cache.checkBooks()
  }

  @Test(
    "threads: nothing is returned after its end, while others store, remove, move and open shards",
    arguments: EvictionOrder.allCases, [false, true])
  func threads(order: EvictionOrder, tracksKeys: Bool) throws {
    let clock = ManualClock()
    let cache: PurgeableCache<Int, [UInt8]> = try makeExpiringCache(
      clock, order, tracksKeys: tracksKeys, byteLimit: 3 << 20, expiry: .sinceLastUse(.seconds(2)))
    let late = Atomic<Int>(0)
    let wrong = Atomic<Int>(0)
    let hits = Atomic<Int>(0)
    // In the quick run fewer keys as well, so that enough of the reads are hits.
    let (keyCount, stepCount, leastHits) = TestRun.isFull ? (1500, 8000, 30) : (300, 2500, 30)
    onThreads(4) { thread in
      var random = SplitMix64(seed: chosenSeed &+ UInt64(thread))
      // A thread's own keys, and when it used each last, at the latest.
      var lastUse = [Int: ContinuousClock.Instant]()
      for step in 0..<(isOptimized ? 60_000 : stepCount) / slowness {
        let key = 4 * random.index(below: keyCount) + thread
        switch random.index(below: 20) {
        case 0..<6:
          cache[key] = described(UInt32(key), version: 0, count: 20 + key % 700)
          lastUse[key] = clock.now
        case 6..<14:
          let begin = clock.now
          guard let value = step % 2 == 0 ? cache[key] : cache.withBytes(forKey: key, { $0.array }) else { continue }
          if value != described(UInt32(key), version: 0, count: 20 + key % 700) { wrong.add(1, ordering: .relaxed) }
          if begin >= lastUse[key]!.advanced(by: .seconds(2)) { late.add(1, ordering: .relaxed) }
          lastUse[key] = clock.now
          hits.add(1, ordering: .relaxed)
        case 14: cache.remove(forKey: key)
        case 15: clock.advance(by: .milliseconds(1 + random.index(below: 30)))
        default:
          switch step % 40 {
          case 0: cache.removeExpired()
          case 1: cache.engine.dropDueSlabs()
          case 2: cache.moveAll()
          case 3: cache.engine.shards.openShards()
          case 4: cache.removeAll()
          default: cache.offerIdle()
          }
        }
      }
    }
    #expect(late.load(ordering: .relaxed) == 0 && wrong.load(ordering: .relaxed) == 0)
    #expect(hits.load(ordering: .relaxed) > leastHits)
    clock.advance(by: .seconds(3))
    cache.removeExpired()
    #expect(cache.isEmpty)
    cache.checkBooksSwept()
  }

  @Test("a forked child begins empty, and keeps last uses of its own", .forks)
  func forking() async {
    await #expect(processExitsWith: .success) {
      let clock = ManualClock()
      var options = CacheOptions()
      (options.clock, options.expiry) = (clock, .sinceLastUse(.seconds(60)))
      let cache = try PurgeableCache<Int, [UInt8]>(options)
      for key in 0..<5000 { cache[key] = pattern(100) }
      let isWell = childSays {
        guard cache.isEmpty, cache.removeExpired() == 0 else { return false }
        for key in 0..<100 { cache[key] = pattern(100) }
        clock.advance(by: .seconds(59))
        for key in 0..<50 { _ = cache[key] }
        clock.advance(by: .seconds(59))
        cache.removeExpired()
        return cache.count == 50 && cache[1] == pattern(100) && cache[51] == nil
      }
      require(isWell, "the child's")
      require(cache[1] == pattern(100), "the parent's")
    }
  }
}
