// SPDX-License-Identifier: MIT
// Entries whose time is over: never returned, told as expired, and gone without a look at those that live.

import PurgeableTestSupport
import Synchronization
import Testing

@testable import Purgeable

/// A cache whose clock the test sets, and whose upkeep is the test's: the library's thread would drop what the test is about to
/// count.
func makeExpiringCache<Key: Hashable & Sendable>(
  _ clock: ManualClock, _ order: EvictionOrder = .s3FIFO, tracksKeys: Bool = false, countLimit: Int? = nil,
  byteLimit: Int? = nil, expiry: Expiry? = nil, departures: Departures<Key, [UInt8]>? = nil
) throws -> PurgeableCache<Key, [UInt8]> {
  var options = CacheOptions(countLimit: countLimit, byteLimit: byteLimit)
  (options.clock, options.evictionOrder, options.tracksKeys, options.expiry) = (clock, order, tracksKeys, expiry)
  let cache = try departures.map { departures in try PurgeableCache(options) { departures.note($0) } } ?? PurgeableCache(options)
  ClientRoster.shared.remove(cache.engine)
  // The cache's end takes it off once more.
  ForkGuard.shared.reserve(3)
  return cache
}

extension PurgeableCache {
  /// The slabs that entries with a deadline are in.
  fileprivate var expiringSlabCount: Int {
    engine.shards.all.reduce(0) { count, shard in
      engine.shards.hold(shard) { held in
        held.usedLanes.reduce(count) { $0 + ($1.number > 0 ? Array(held.heap.slabs(of: held.stream($1))).count : 0) }
      }
    }
  }
}

@Suite("cache: expiry")
struct CacheExpiryTests {
  // MARK: What is returned

  @Test(
    "a value is returned until its time is over, and then by no call",
    arguments: EvictionOrder.allCases, [false, true])
  func untilOver(order: EvictionOrder, tracksKeys: Bool) throws {
    let clock = ManualClock()
    let cache: PurgeableCache<Int, [UInt8]> = try makeExpiringCache(clock, order, tracksKeys: tracksKeys)
    let calls: [(String, (Int) -> Bool)] = [
      ("value", { cache[$0] != nil }),
      ("look-up", { if case .hit = cache.lookUpValue(forKey: $0) { true } else { false } }),
      ("peek", { cache.peekValue(forKey: $0) != nil }),
      ("entry", { cache.peekEntry(forKey: $0) != nil }),
      ("contains", { cache.containsValue(forKey: $0) }),
      ("lock", { cache.withBytes(forKey: $0) { $0.byteCount } != nil }),
      ("many", { cache.values(forKeys: [$0])[0] != nil }),
      ("keys", { cache.keys.contains($0) }),
      ("snapshot", { cache.snapshot()[$0] != nil }),
      ("replaced", { cache.updateValue(pattern(10), forKey: $0) != nil }),
      ("removed", { cache.removeValue(forKey: $0) != nil }),
      ("removed, untold", { cache.remove(forKey: $0) }),
    ]
    for (i, (name, finds)) in calls.enumerated() {
      let key = i + 1
      cache.setValue(pattern(100), forKey: key, expiry: .sinceCreation(.seconds(10)))
      clock.advance(by: .seconds(10) - .nanoseconds(1))
      #expect(finds(key), "\(name): a nanosecond before the end")
      cache.setValue(pattern(100), forKey: key, expiry: .sinceCreation(.seconds(10)))
      clock.advance(by: .seconds(10))
      #expect(!finds(key), "\(name): at the end")
    }
    cache.removeExpired()
    cache.checkBooks()
    #expect(cache.count == 1)
  }

  @Test("the default is for stores without an expiry, a store begins anew, a change of the value does not")
  func defaults() throws {
    let clock = ManualClock()
    let cache: PurgeableCache<String, [UInt8]> = try makeExpiringCache(clock, expiry: .sinceCreation(.seconds(60)))
    #expect(cache.expiry == .sinceCreation(.seconds(60)))
    cache["default"] = pattern(10)
    cache.setValue(pattern(10), forKey: "never", expiry: .never)
    cache.setValue(pattern(10), forKey: "short", cost: 7, expiry: .sinceCreation(.seconds(20)))
    cache.setValue(pattern(10), forKey: "changed", expiry: .sinceCreation(.seconds(100)))
    _ = cache.value(forKey: "loaded") { pattern(10) }
    clock.advance(by: .seconds(19))
    #expect(cache.peekEntry(forKey: "default")?.remainingTime == .seconds(41))
    #expect(cache.peekEntry(forKey: "short")?.remainingTime == .seconds(1) && cache.peekEntry(forKey: "short")?.cost == 7)
    #expect(cache.peekEntry(forKey: "loaded")?.remainingTime == .seconds(41))
    #expect(try #require(cache.peekEntry(forKey: "never")).remainingTime == nil)
    cache["short"] = pattern(20)
    cache.modifyValue(forKey: "changed") { $0?.append(1) }
    cache.modifyValue(forKey: "made") { $0 = [1] }
    cache.updateValue([2], forKey: "updated")
    #expect(cache.peekEntry(forKey: "short")?.remainingTime == .seconds(60) && cache["short"] == pattern(20))
    #expect(cache.peekEntry(forKey: "changed")?.remainingTime == .seconds(81) && cache["changed"] == pattern(10) + [1])
    #expect(cache.peekEntry(forKey: "made")?.remainingTime == .seconds(60))
    #expect(cache.peekEntry(forKey: "updated")?.remainingTime == .seconds(60))
    try cache.setExpiry(nil)
    cache["later"] = [3]
    clock.advance(by: .seconds(10_000_000))
    #expect(Set(cache.keys) == ["never", "later"] && cache.expiry == nil)
  }

  @Test("times of 0 or less: refused with the old value gone, and an error where a cache is given one")
  func refused() throws {
    let clock = ManualClock()
    let departures = Departures<String, [UInt8]>()
    let cache = try makeExpiringCache(clock, departures: departures)
    for time in [Duration.zero, .seconds(-1), .nanoseconds(Int64.min), .seconds(-1e20)] {
      cache["a"] = pattern(10)
      #expect(cache.setValue(pattern(20), forKey: "a", expiry: .sinceCreation(time)) == .expired)
      #expect(cache.isEmpty && cache.setValue(pattern(20), forKey: "b", expiry: .sinceCreation(time)) == .expired)
      let told = departures.take()
      #expect(told.map(\.reason) == [.replaced, .expired, .expired])
      #expect(told.map(\.value) == [pattern(10), pattern(20), pattern(20)])
    }
    #expect(cache.statistics.refusalCount == 8)
    // Less than the clock can tell is more than nothing.
    let least = Expiry.sinceCreation(Duration(secondsComponent: 0, attosecondsComponent: 1))
    #expect(cache.setValue(pattern(10), forKey: "short", expiry: least) == .stored && cache["short"] != nil)
    clock.advance(by: .nanoseconds(1))
    #expect(cache["short"] == nil)
    // The last ones are more than the components of a duration can say.
    for time in [Duration.seconds(Int64.max), .seconds(UInt64.max), .seconds(1e20)] {
      cache.setValue(pattern(10), forKey: "long", expiry: .sinceCreation(time), recomputeCost: time)
      #expect(cache.peekEntry(forKey: "long").map { $0.remainingTime == nil } == true)
    }
    let refused = PurgeableError.Kind.invalidArgument("expiry")
    for time in [Duration.zero, .seconds(-1)] {
      #expect { try cache.setExpiry(.sinceCreation(time)) } throws: { ($0 as? PurgeableError)?.kind == refused }
      var options = CacheOptions()
      options.expiry = .sinceCreation(time)
      #expect { try PurgeableCache<Int, Int>(options) } throws: { ($0 as? PurgeableError)?.kind == refused }
    }
    try cache.setExpiry(.never)
    #expect(cache.expiry == nil)
  }

  @Test("what expired is told as expired, once, with its value, to who looks and to who is told", arguments: [false, true])
  func told(finds: Bool) throws {
    let clock = ManualClock()
    let departures = Departures<Int, [UInt8]>()
    let cache = try makeExpiringCache(clock, departures: departures)
    for key in 0..<100 {
      cache.setValue(described(UInt32(key), version: 1, count: 40), forKey: key, expiry: .sinceCreation(.seconds(5)))
    }
    clock.advance(by: .seconds(5))
    if finds {
      for key in 0..<100 { #expect(MissReason.of(cache.lookUpValue(forKey: key)) == .expired) }
    } else {
      #expect(cache.removeExpired() == 100)
    }
    let told = departures.take()
    #expect(told.count == 100 && told.allSatisfy { $0.reason == .expired })
    #expect(told.allSatisfy { $0.value == described(UInt32($0.key), version: 1, count: 40) })
    #expect(cache.isEmpty && cache.statistics.departures[.expired] == 100 && cache.removeExpired() == 0)
    // As far as is remembered.
    for key in 0..<100 { cache[key] = [1] }
    clock.advance(by: .seconds(5))
    #expect(cache.count == 100 && cache.statistics.missesByReason[.expired] == (finds ? 100 : 0))
    cache.checkBooksSwept()
  }

  @Test("a clock that goes back stands still until it has caught up")
  func clockGoesBack() throws {
    let clock = ManualClock()
    let cache: PurgeableCache<Int, [UInt8]> = try makeExpiringCache(clock)
    cache.setValue([1], forKey: 1, expiry: .sinceCreation(.seconds(10)))
    cache.setValue([2], forKey: 2, expiry: .sinceCreation(.seconds(30)))
    clock.advance(by: .seconds(10))
    #expect(!cache.containsValue(forKey: 1))
    clock.advance(by: .seconds(-1000))
    #expect(cache[1] == nil && cache[2] == [2] && cache.peekEntry(forKey: 2)?.remainingTime == .seconds(20))
    cache.setValue([3], forKey: 3, expiry: .sinceCreation(.seconds(30)))
    clock.advance(by: .seconds(1019))
    #expect(cache[2] == [2] && cache.peekEntry(forKey: 3)?.remainingTime == .seconds(11))
    clock.advance(by: .seconds(1))
    #expect(cache[2] == nil && cache[3] == [3])
  }

  // MARK: Whole slabs

  @Test("slabs expire as a whole: upkeep drops them, gives their memory back, and looks at no slab that lives")
  func wholeSlabs() throws {
    let clock = ManualClock()
    let cache: PurgeableCache<Int, [UInt8]> = try makeExpiringCache(clock)
    // One after the other, so that without lanes each slab would have all three.
    let times: [Expiry] = [.sinceCreation(.seconds(40)), .sinceCreation(.seconds(3600)), .never]
    for key in 0..<30_000 { cache.setValue(described(UInt32(key), version: 0, count: 90), forKey: key, expiry: times[key % 3]) }
    let runs = Mutex(0)
    #if DEBUG
      _ = cache.engine.base.notesHook.storeIfNil(NotesHook { _ in runs.withLock { $0 += 1 } })
    #endif
    func upkeep() { _ = cache.engine.dropDueSlabs() }
    upkeep()
    clock.advance(by: .seconds(39))
    upkeep()
    #expect(cache.count == 30_000 && runs.withLock { $0 } == 0)
    let (before, slabs) = (cache.statistics.memory.heldBytes, cache.expiringSlabCount)
    clock.advance(by: .seconds(1))
    upkeep()
    #expect(cache.count == 20_000 && cache.statistics.departures[.expired] == 10_000)
    let held = cache.statistics.memory.heldBytes
    #expect(held < before * 3 / 4 && cache.expiringSlabCount < slabs)
    #if DEBUG
      #expect(runs.withLock { $0 } == slabs - cache.expiringSlabCount)
    #endif
    for key in 0..<30_000 where key % 3 > 0 {
      if cache.peekValue(forKey: key) != described(UInt32(key), version: 0, count: 90) { Issue.record("key \(key)") }
    }
    clock.advance(by: .seconds(3600))
    upkeep()
    #expect(cache.count == 10_000 && cache.expiringSlabCount == 0 && cache.statistics.memory.heldBytes < before / 2)
    cache.checkBooks()
    #expect(cache.engine.dropDueSlabs() == .max)
  }

  @Test("one call drops exactly what has expired, also of slabs where others live")
  func exactly() throws {
    let clock = ManualClock()
    let perSecond = TestRun.isFull ? 400 : 40
    for tracksKeys in [false, true] {
      let cache: PurgeableCache<Int, [UInt8]> = try makeExpiringCache(clock, tracksKeys: tracksKeys)
      // Within an octave, and so in one lane.
      for key in 0..<50 * perSecond {
        cache.setValue(
          described(UInt32(key), version: 0, count: 50), forKey: key, expiry: .sinceCreation(.seconds(70 + key % 50)))
      }
      var left = 50 * perSecond
      for second in 70..<120 {
        clock.advance(by: .seconds(second == 70 ? 70 : 1))
        #expect(cache.removeExpired() == perSecond)
        left -= perSecond
        #expect(cache.count == left && cache.removeExpired() == 0)
      }
      #expect(cache.isEmpty && cache.expiringSlabCount == 0)
      cache.checkBooksSwept()
    }
  }

  @Test("more times to live than lanes: what expired is never returned, and its memory goes back in the end")
  func manyTimes() throws {
    let clock = ManualClock()
    let cache: PurgeableCache<Int, [UInt8]> = try makeExpiringCache(clock)
    let (count, step) = TestRun.isFull ? (16_000, 7) : (8000, 21)
    for round in 0..<3 {
      for key in 0..<count {
        let seconds = 1 << (key % 16)
        cache.setValue(
          described(UInt32(key), version: UInt32(round), count: 30), forKey: key, expiry: .sinceCreation(.seconds(seconds)))
      }
      for octave in 0..<16 {
        clock.advance(by: .seconds(octave == 0 ? 1 : 1 << (octave - 1)))
        _ = cache.engine.dropDueSlabs()
        for key in stride(from: 0, to: count, by: step) where (cache.peekValue(forKey: key) != nil) != (key % 16 > octave) {
          Issue.record("round \(round), octave \(octave), key \(key)")
        }
      }
      _ = cache.engine.dropDueSlabs()
      #expect(cache.isEmpty && cache.expiringSlabCount == 0)
    }
    cache.checkBooksSwept()
  }

  @Test("slabs that are due behind one that lives go too: in upkeep, and when room is needed", arguments: [false, true])
  func dueBehindLiving(needsRoom: Bool) throws {
    let clock = ManualClock()
    let cache: PurgeableCache<Int, [UInt8]> = try makeExpiringCache(clock, byteLimit: 8 << 20)
    // As many octaves as lanes, so that the next ones go with entries that live longer.
    for i in 0..<3 { cache.setValue([1], forKey: -1 - i, expiry: .sinceCreation(.seconds(31_536_000 << i))) }
    for key in 0..<5000 { cache.setValue(pattern(1000), forKey: key, expiry: .sinceCreation(.seconds(10))) }
    clock.advance(by: .seconds(86_400))
    if needsRoom {
      for key in 10_000..<14_000 { cache[key] = pattern(1000) }
      #expect(cache.statistics.departures[.bytes] == 0)
      for key in 10_000..<14_000 { #expect(cache.containsValue(forKey: key)) }
    } else {
      _ = cache.engine.dropDueSlabs()
      #expect(cache.count < 200 && cache.statistics.memory.heldBytes < 1 << 20)
    }
    for i in 0..<3 { #expect(cache.containsValue(forKey: -1 - i)) }
    cache.checkBooks()
  }

  @Test("a deadline goes along wherever an entry moves: to other slabs, to other shards and back, within large slabs")
  func moves() throws {
    let clock = ManualClock()
    for tracksKeys in [false, true] {
      let cache: PurgeableCache<Int, [UInt8]> = try makeExpiringCache(clock, tracksKeys: tracksKeys)
      for key in 0..<4000 {
        cache.setValue(
          described(UInt32(key), version: 0, count: key % 100 == 0 ? 70_000 : 60), forKey: key,
          expiry: key % 2 == 0 ? .sinceCreation(.seconds(100 + key % 3)) : nil)
      }
      cache.setValue(described(9999, version: 0, count: 300_000), forKey: 9999, expiry: .sinceCreation(.seconds(50)))
      cache.moveAll()
      cache.engine.shards.openShards()
      for key in stride(from: 0, to: 4000, by: 3) { _ = cache[key] }
      cache.moveAll()
      clock.advance(by: .seconds(50))
      #expect(cache.removeExpired() == 1 && cache.count == 4000)
      cache.checkBooks()
      try cache.setByteLimit(60 << 20)
      cache.moveAll()
      for second in 0..<3 {
        clock.advance(by: .seconds(second == 0 ? 50 : 1))
        let due = (0..<4000).count { $0 % 2 == 0 && $0 % 3 == second }
        #expect(cache.removeExpired() == due)
      }
      for key in 0..<4000 {
        let expected = key % 2 == 0 ? nil : described(UInt32(key), version: 0, count: 60)
        if cache.peekValue(forKey: key) != expected { Issue.record("key \(key)") }
      }
      cache.checkBooksSwept()
    }
  }

  @Test("slabs of which the kernel took pages expire too, and count for what they are")
  func discarded() throws {
    try needRealDiscards()
    let clock = ManualClock()
    let departures = Departures<Int, [UInt8]>()
    let cache = try makeExpiringCache(clock, departures: departures)
    for key in 0..<8000 {
      cache.setValue(
        described(UInt32(key), version: 0, count: 100), forKey: key, expiry: key % 2 == 0 ? .sinceCreation(.seconds(60)) : nil)
    }
    cache.discardEveryThirdPage()
    clock.advance(by: .seconds(120))
    _ = cache.engine.dropDueSlabs()
    cache.removeExpired()
    cache.sweep()
    #expect(cache.expiringSlabCount == 0)
    let told = departures.all
    #expect(Set(told.map(\.key)).count == told.count && told.count + cache.count == 8000)
    #expect(told.allSatisfy { $0.reason == ($0.value == nil ? .discarded : .expired) })
    #expect(told.contains { $0.reason == .discarded } && told.contains { $0.reason == .expired })
    #expect(told.allSatisfy { $0.value == nil || $0.value == described(UInt32($0.key), version: 0, count: 100) })
    for key in cache.keys { #expect(key % 2 == 1 && cache[key] == described(UInt32(key), version: 0, count: 100)) }
    cache.checkBooksSwept()
  }

  @Test(
    "an expired value that a reader has locked stays as long as that, and its memory goes back then; whoever drops it goes on",
    arguments: ["due", "expired", "trim"])
  func locked(_ call: String) throws {
    let clock = ManualClock()
    let cache: PurgeableCache<Int, [UInt8]> = try makeExpiringCache(clock)
    for key in 0..<1000 {
      cache.setValue(described(UInt32(key), version: 0, count: 100), forKey: key, expiry: .sinceCreation(.seconds(9)))
    }
    cache.withBytes(forKey: 500) { bytes in
      clock.advance(by: .seconds(16))
      switch call {
      case "due": _ = cache.engine.dropDueSlabs()
      case "expired": #expect(cache.removeExpired() == 1000)
      default: cache.trim(toCount: 10)
      }
      #expect(cache.isEmpty && cache[500] == nil)
      #expect(unsafe bytes.withUnsafeBytes { unsafe [UInt8]($0) } == described(500, version: 0, count: 100))
    }
    cache.offerIdle()
    #expect(cache.expiringSlabCount == 0)
    cache.checkBooksSwept()
  }

  // MARK: By itself

  @Test("upkeep says in how many milliseconds it is wanted again: not before a slab is due")
  func nextRound() throws {
    let cache = try PurgeableCache<Int, [UInt8]>()
    for key in 0..<100 { cache[key] = [1] }
    #expect(cache.engine.dropDueSlabs() == .max)
    for key in 0..<2000 { cache.setValue(pattern(100), forKey: key, expiry: .sinceCreation(.seconds(7200))) }
    #expect((7_100_000...7_200_001).contains(cache.engine.dropDueSlabs()))
    cache.setValue([1], forKey: 1, expiry: .sinceCreation(.seconds(600)))
    #expect((590_000...600_001).contains(cache.engine.dropDueSlabs()))
    cache.removeAll()
    #expect(cache.engine.dropDueSlabs() == .max)
  }

  @Test("trims take what has expired first, in whichever shard it is", arguments: ["count", "cost", "bytes"])
  func trimmedFirst(by what: String) throws {
    let clock = ManualClock()
    var options = CacheOptions()
    options.clock = clock
    let count = TestRun.isFull ? 20_000 : 6000
    let cache = try PurgeableCache<Int, [UInt8]>(options)
    if !TestRun.isFull { cache.openEarly(count: count * 4 / 5) }
    let value = pattern(100)
    // In some shards all are young, in others most are old.
    for key in 0..<count {
      cache.setValue(value, forKey: key, expiry: key % 4 == 0 ? .sinceCreation(.seconds(10)) : nil)
    }
    #expect(cache.engine.shards.openCount > 1)
    clock.advance(by: .seconds(11))
    switch what {
    case "count": cache.trim(toCount: count * 3 / 4)
    case "cost": cache.trim(toCost: count * 75)
    default: cache.trim(toBytes: cache.byteCount - 1)
    }
    #expect((0..<count).allSatisfy { cache.containsValue(forKey: $0) == ($0 % 4 != 0) })
    cache.checkBooksSwept()
  }

  @Test("by the machine's clock, the library's thread drops what has expired")
  func byItself() async throws {
    let cache = try PurgeableCache<Int, [UInt8]>()
    for key in 0..<20_000 { cache.setValue(pattern(50), forKey: key, expiry: .sinceCreation(.milliseconds(20))) }
    cache[-1] = [1]
    #expect(await TestRun.comes { cache.count == 1 })
    #expect(cache[-1] == [1] && cache.statistics.departures[.expired] == 20_000)
  }
}
