// SPDX-License-Identifier: MIT
// Loads that find nothing, which is remembered for a time: how long, what ends it, and how much of it.

import Glibc
import PurgeableTestSupport
import Synchronization
import Testing
import ToolSupport

@testable import Purgeable

extension LoadingCache {
  /// Whether the cache says that there is nothing, without a load.
  fileprivate func isAbsent(_ key: Key) -> Bool {
    let says = MissReason.of(lookUpValue(forKey: key)) == .absent
    var loads = false
    _ = value(forKey: key) { () -> Value? in
      loads = true
      return nil
    }
    #expect(says != loads)
    return says
  }

  /// Has the cache remember that there is nothing.
  fileprivate func note(_ key: Key) { _ = value(forKey: key, keepingNilFor: .seconds(10)) { () -> Value? in nil } }

  fileprivate var absentByteCount: Int { loads.absentBytes.value }
}

/// A key whose end tests see.
private final class EndingKey: Hashable, Sendable {
  static let ended = LoadCounter()
  let number: Int
  init(_ number: Int) { self.number = number }
  deinit { Self.ended.next() }
  static func == (left: EndingKey, right: EndingKey) -> Bool { left.number == right.number }
  func hash(into hasher: inout Hasher) { hasher.combine(number) }
}

@Suite("loading: absence")
struct LoadingAbsenceTests {
  @Test("no reason of misses is counted below 0 between two statistics")
  func differences() throws {
    let cache = try ObjectCache<Int, Int>()
    #expect(cache.value(forKey: 9) == nil)
    cache.setValue(1, forKey: 1, version: "1")
    let before = cache.statistics
    for _ in 0..<2 { #expect(cache.value(forKey: 1, version: "2", keepingNilFor: .seconds(60)) { () -> Int? in nil } == nil) }
    let period = cache.statistics.difference(from: before)
    #expect(period.missCount == 2 && period.missesByReason.values.allSatisfy { $0 >= 0 })
  }

  @Test("that a load found nothing is remembered for the time it says, by the cache's clock", arguments: CacheKind.allCases)
  func remembered(_ kind: CacheKind) async throws {
    let clock = ManualClock()
    let cache = try kind.make(clock: clock)
    let loads = LoadCounter()
    func ask(_ key: Int) {
      let value = cache.value(forKey: key, keepingNilFor: .seconds(10)) { () -> [UInt8]? in
        loads.next()
        return nil
      }
      #expect(value == nil)
    }
    func askInTask(_ key: Int) async {
      let value = await cache.value(forKey: key, keepingNilFor: .seconds(10)) { () async -> [UInt8]? in
        loads.next()
        return nil
      }
      #expect(value == nil)
    }
    ask(1)
    await askInTask(2)
    #expect(loads.value == 2)
    clock.advance(by: .seconds(10) - .nanoseconds(1))
    for key in [1, 2] {
      ask(key)
      await askInTask(key)
      #expect(MissReason.of(cache.lookUpValue(forKey: key)) == .absent)
    }
    func askForMany() {
      #expect(cache.values(forKeys: [1, 3]) { Dictionary(uniqueKeysWithValues: $0.map { ($0, [UInt8($0)]) }) } == [nil, [3]])
    }
    askForMany()
    #expect(await cache.values(forKeys: [2, 3]) { _ in [:] } == [nil, [3]])
    #expect(loads.value == 2, "answered without a load")
    var statistics = cache.statistics
    #expect(statistics.missesByReason[.absent] == 8 && statistics.count == 1 && statistics.loadCount == 3)
    #expect(statistics.missesByReason.values.reduce(0, +) == statistics.missCount)
    clock.advance(by: .nanoseconds(1))
    for key in [1, 2] { #expect(MissReason.of(cache.lookUpValue(forKey: key)) != .absent) }
    ask(1)
    await askInTask(2)
    #expect(loads.value == 4, "over, and loaded anew")
    ask(1)
    #expect(loads.value == 4, "and remembered anew")
    statistics = cache.statistics
    #expect(statistics.loadFailureCount == 0 && statistics.count == 1)
    cache.checkTotals()
  }

  @Test("a miss has one reason in the statistics, also where a removal is remembered", arguments: CacheKind.allCases)
  func oneReason(_ kind: CacheKind) throws {
    let cache = try kind.make(clock: ManualClock())
    cache[1] = [1]
    cache.remove(forKey: 1)
    #expect(cache.value(forKey: 1, keepingNilFor: .seconds(10)) { () -> [UInt8]? in nil } == nil)
    for _ in 0..<10 { #expect(MissReason.of(cache.lookUpValue(forKey: 1)) == .absent) }
    let statistics = cache.statistics
    #expect(statistics.missesByReason[.absent] == 10 && statistics.missCount == 11)
    #expect(statistics.missesByReason.values.reduce(0, +) == 11, "\(statistics.missesByReason)")
  }

  @Test("that a load of one version found nothing says nothing of a load that takes any", arguments: CacheKind.allCases)
  func versions(_ kind: CacheKind) async throws {
    let cache = try kind.make(clock: ManualClock())
    let loads = LoadCounter()
    func ask(_ version: String?) -> [UInt8]? {
      func find() -> [UInt8]? {
        loads.next()
        return nil
      }
      guard let version else { return cache.loadIfAny(1, .seconds(10), find) }
      return cache.load(1, version: version, .seconds(10), find)
    }
    for _ in 0..<2 { #expect(ask("1") == nil && loads.value == 1) }
    #expect(MissReason.of(cache.lookUpValue(forKey: 1)) == .absent)
    for _ in 0..<2 { #expect(ask(nil) == nil && loads.value == 2) }
    #expect(ask("1") == nil && loads.value == 3, "the last one is remembered")
  }

  @Test("a miss has one reason, also where there is an entry of another version")
  func oneReasonOfVersions() throws {
    let cache = try PurgeableCache<Int, [UInt8]>()
    cache.setValue([1], forKey: 1, version: "old")
    for _ in 0..<5 {
      #expect(cache.value(forKey: 1, version: "new", keepingNilFor: .seconds(1000)) { () -> [UInt8]? in nil } == nil)
    }
    let statistics = cache.statistics
    #expect(statistics.missesByReason[.absent] == 4 && statistics.missCount == 5)
    #expect(statistics.missesByReason.values.reduce(0, +) == 5, "\(statistics.missesByReason)")
  }

  @Test("without a time, and with one of 0 or less, nothing is remembered", arguments: CacheKind.allCases)
  func notRemembered(_ kind: CacheKind) async throws {
    let cache = try kind.make(clock: ManualClock())
    func ask(_ time: Duration?) {
      #expect(cache.value(forKey: 1, keepingNilFor: time) { () -> [UInt8]? in nil } == nil)
      #expect(!cache.isAbsent(1))
    }
    for time in [nil, Duration.zero, .seconds(-1)] {
      ask(time)
      #expect(await cache.value(forKey: 1, keepingNilFor: time) { () async -> [UInt8]? in nil } == nil)
      #expect(MissReason.of(cache.lookUpValue(forKey: 1)) != .absent && cache.absentByteCount == 0)
    }
    await #expect(throws: LoadError()) {
      try await cache.value(forKey: 1, keepingNilFor: .seconds(9)) { () async throws(LoadError) -> [UInt8]? in throw LoadError() }
    }
    #expect(MissReason.of(cache.lookUpValue(forKey: 1)) != .absent)
  }

  @Test("a store and a removal end it, and win over a load that finds nothing", arguments: CacheKind.allCases, Overtaker.allCases)
  func ended(_ kind: CacheKind, _ overtaker: Overtaker) throws {
    func check<Key: Hashable & Sendable>(_ key: Key, _ other: Key) throws {
      let cache = try kind.make(Key.self)
      cache.note(key)
      cache.note(other)
      #expect(cache.isAbsent(key) && cache.isAbsent(other))
      overtaker.act(on: cache, key)
      #expect(cache.value(forKey: key) == overtaker.left)
      cache.remove(forKey: key)
      #expect(!cache.isAbsent(key) && cache.isAbsent(other) == (overtaker != .removeAll))
      let value = cache.value(forKey: key, keepingNilFor: .seconds(10)) { () -> [UInt8]? in
        overtaker.act(on: cache, key)
        return nil
      }
      #expect(value == nil && cache.peekValue(forKey: key) == overtaker.left)
      if overtaker.left == nil { #expect(!cache.isAbsent(key), "overtaken") }
      cache.checkTotals()
    }
    try check(1, 2)
    try check("ä", "a")
    try check(EncodedKey(number: 1, note: "b"), EncodedKey(number: 2, note: "b"))
    try check(StructKey(a: 1, b: "b"), StructKey(a: 2, b: "b"))
  }

  @Test("a load that always makes a value asks nobody, and what it makes ends it", arguments: CacheKind.allCases)
  func madeAllTheSame(_ kind: CacheKind) async throws {
    let cache = try kind.make()
    for key in [1, 2] { cache.note(key) }
    func load() { #expect(cache.value(forKey: 1) { [1] } == [1]) }
    load()
    #expect(await cache.value(forKey: 2) { [2] } == [2])
    #expect(cache.peekValue(forKey: 1) == [1] && cache.peekValue(forKey: 2) == [2])
    for key in [1, 2] {
      cache.remove(forKey: key)
      #expect(MissReason.of(cache.lookUpValue(forKey: key)) != .absent)
    }
  }

  @Test("what a load made ends it also where the value was not kept")
  func madeAndNotKept() throws {
    let cache = try PurgeableCache<Int, [UInt8]>(costLimit: 10)
    cache.note(1)
    #expect(cache.value(forKey: 1) { pattern(20) } == pattern(20))
    #expect(!cache.isAbsent(1))
  }

  @Test(
    "who waits for a load that finds nothing gets nil, and what comes after is answered from memory",
    arguments: CacheKind.allCases)
  func shared(_ kind: CacheKind) throws {
    let cache = try kind.make()
    let loads = LoadCounter()
    onThreads(4) { _ in
      let value = cache.value(forKey: 1, keepingNilFor: .seconds(100)) { () -> [UInt8]? in
        loads.next()
        _ = patiently { cache.loads.counts(of: 1).waiters == 3 }
        return nil
      }
      #expect(value == nil)
    }
    #expect(loads.value == 1 && cache.isAbsent(1))
  }

  /// The storer knows that the load began, and stores or removes at any moment up to after its end.
  @Test("at whatever moment of a load's end a store or a removal comes, nothing is remembered", arguments: CacheKind.allCases)
  func race(_ kind: CacheKind) throws {
    let cache = try kind.make()
    let rounds = 2000 / slowness
    let begun = Atomic<Int>(0)
    let done = Atomic<Int>(0)
    let wrong = Atomic<Int>(0)
    onThreads(2) { thread in
      for round in 1...rounds {
        if thread == 0 {
          _ = cache.value(forKey: round, keepingNilFor: .seconds(1000)) { () -> [UInt8]? in
            begun.store(round, ordering: .releasing)
            return nil
          }
          done.store(round, ordering: .releasing)
          continue
        }
        while begun.load(ordering: .acquiring) < round { sched_yield() }
        for _ in 0..<round % 64 * 4 { atomicMemoryFence(ordering: .sequentiallyConsistent) }
        if round % 2 == 0 { cache[round] = [1] } else { cache.remove(forKey: round) }
        while done.load(ordering: .acquiring) < round { sched_yield() }
        if round % 2 == 0, cache.peekValue(forKey: round) != [1] { wrong.add(1, ordering: .relaxed) }
        if cache.loads.isAbsent(round, at: 0) { wrong.add(1, ordering: .relaxed) }
      }
    }
    #expect(wrong.load(ordering: .relaxed) == 0)
  }

  // MARK: How much

  @Test(
    "however many keys are asked for, memory has a bound, and the last of them are remembered", arguments: CacheKind.allCases)
  func bounded(_ kind: CacheKind) throws {
    let cache = try kind.make(String.self)
    func key(_ number: Int) -> String { "\(number)" + String(repeating: "x", count: number % 200) }
    // More than the 4096 that are remembered.
    let count = TestRun.isFull ? 20_000 : 7000
    var most = 0
    for number in 0..<count {
      cache.note(key(number))
      most = max(most, cache.absentByteCount)
      if number % 1000 == 0 { #expect(cache.isAbsent(key(number))) }
    }
    #expect(most <= 1 << 20 && most > 100 << 10)
    let remembered = (0..<count).count { cache.loads.isAbsent(key($0), at: 0) }
    #expect(remembered > 2000 && remembered <= 4096)
    #expect(cache.statistics.memory.ordinaryBytes >= cache.absentByteCount)
    cache.note(String(repeating: "y", count: 257))
    #expect(!cache.isAbsent(String(repeating: "y", count: 257)), "too long")
    cache.removeAll()
    #expect(cache.absentByteCount <= 32 << 10 && !cache.isAbsent(key(count - 1)))
  }

  @Test("of keys with one hash the last is remembered, and no other is answered for", arguments: CacheKind.allCases)
  func colliding(_ kind: CacheKind) throws {
    let cache = try kind.make(CollidingKey.self)
    for number in 0..<100 {
      cache.note(CollidingKey(number: number))
      #expect(cache.isAbsent(CollidingKey(number: number)) && !cache.isAbsent(CollidingKey(number: number + 1)))
    }
    #expect(!cache.isAbsent(CollidingKey(number: 3)))
  }

  @Test("it counts against the byte limit, of which it takes a sixteenth; too small a limit has no room for it")
  func byteLimit() throws {
    let cache = try PurgeableCache<Int, [UInt8]>(byteLimit: 2 << 20)
    var key = 0
    while cache.statistics.departures[.bytes, default: 0] == 0 {
      cache[key] = pattern(1000)
      key += 1
    }
    for key in 1...10_000 { cache.note(-key) }
    #expect(cache.byteCount <= 2 << 20 && cache.isAbsent(-10_000))
    #expect(cache.absentByteCount <= 128 << 10 && cache.absentByteCount > 20 << 10)
    cache.checkBooks()
    let unlimited = try PurgeableCache<Int, [UInt8]>()
    unlimited[1] = [1]
    let before = unlimited.byteCount
    unlimited.note(2)
    #expect(unlimited.absentByteCount > 0 && unlimited.byteCount == before + unlimited.absentByteCount)
    let small = try PurgeableCache<Int, [UInt8]>(byteLimit: 255 << 10)
    small.note(1)
    #expect(!small.isAbsent(1) && small.absentByteCount == 0)
  }

  @Test("it goes under pressure, and its memory with it", arguments: CacheKind.allCases)
  func pressure(_ kind: CacheKind) throws {
    let cache = try kind.make()
    for key in 0..<1000 { cache.note(key) }
    let before = cache.absentByteCount
    cache.trim(level: .normal)
    #expect(cache.isAbsent(999) && cache.absentByteCount == before)
    cache.trim(level: .warning)
    #expect(!cache.isAbsent(999) && cache.absentByteCount <= 32 << 10 && before > 100 << 10)
    cache.note(999)
    #expect(cache.isAbsent(999) && !cache.isAbsent(998))
  }

  @Test("keys whose end is code of the program end on a thread of the program's")
  func endOfKeys() throws {
    let cache = try PurgeableCache<EndingKey, [UInt8]>()
    for number in 0..<100 { cache.note(EndingKey(number)) }
    let before = EndingKey.ended.value
    cache.engine.shrinkBookkeeping(.warning)
    #expect(EndingKey.ended.value == before && !cache.loads.isAbsent(EndingKey(7), at: 0))
    #expect(EndingKey.ended.value >= before + 100)
  }

  @Test("a forked child begins anew, its parent remembers", .forks)
  func forked() async {
    await #expect(processExitsWith: .success) {
      for kind in CacheKind.allCases {
        let cache = try kind.make(String.self)
        for key in ["a", "b", "c"] { cache.note(key) }
        // All that the child does was done here before.
        cache["c"] = [3]
        require(cache.isAbsent("a") && !cache.isAbsent("d"), "remembered")
        require(
          childSays {
            let forgot = !cache.isAbsent("a")
            cache.note("b")
            return forgot && cache.isAbsent("b") && !cache.isAbsent("a")
          }, "the child begins anew")
        require(cache.isAbsent("a") && cache.isAbsent("b"), "the parent remembers")
      }
    }
  }
}
