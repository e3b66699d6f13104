// SPDX-License-Identifier: MIT
// What objects have beside value, cost and time: versions, recompute costs, ages, and the loads that go by them.

import PurgeableTestSupport
import Synchronization
import Testing
import ToolSupport

@testable import Purgeable

private typealias Cache = ObjectCache<Int, [UInt8]>

@Suite("objects: versions, recompute costs, refreshes")
struct ObjectNotesTests {
  private func make(_ clock: ManualClock = ManualClock(), countLimit: Int? = nil, expiry: Expiry? = nil) throws -> Cache {
    var options = CacheOptions(countLimit: countLimit)
    (options.clock, options.expiry) = (clock, expiry)
    return try Cache(options)
  }

  @Test("versions are told by their bytes, as in a cache of bytes, also where Swift calls two of them equal")
  func versionBytes() throws {
    let (one, other) = ("\u{e9}", "e\u{301}")
    #expect(one == other)
    let (objects, bytes) = (try ObjectCache<Int, [UInt8]>(), try PurgeableCache<Int, [UInt8]>())
    objects.setValue([1], forKey: 1, version: one)
    bytes.setValue([1], forKey: 1, version: one)
    #expect(objects.value(forKey: 1, version: one) == [1] && bytes.value(forKey: 1, version: one) == [1])
    #expect(MissReason.of(objects.lookUpValue(forKey: 1, version: other)) == .outdated)
    #expect(MissReason.of(bytes.lookUpValue(forKey: 1, version: other)) == .outdated)
  }

  private func noteCount(of cache: Cache) -> Int {
    (0..<ObjectGate.count).reduce(0) { $0 + cache.store.hold(shard: $1) { $0.table.notes.count } }
  }

  /// So many loads have ended, and none of the key is under way.
  private func hasEnded(_ count: Int, _ cache: Cache) async -> Bool {
    await TestRun.comes { cache.statistics.loadCount == count && cache.loads.counts(of: 1).waiters == 0 }
  }

  @Test("who asks for a version gets no other; a store without one takes it away, and modifyValue keeps it")
  func versions() throws {
    let cache = try make()
    #expect(cache.setValue([1], forKey: 1, version: "a") == .stored && cache.setValue([2], forKey: 2) == .stored)
    #expect(cache.value(forKey: 1, version: "a") == [1] && cache.value(forKey: 1, version: "b") == nil)
    #expect(cache.value(forKey: 2, version: "a") == nil && cache[1] == [1] && cache[2] == [2])
    #expect(MissReason.of(cache.lookUpValue(forKey: 1, version: "b")) == .outdated)
    #expect(MissReason.of(cache.lookUpValue(forKey: 3, version: "b")) == .unknown)
    var statistics = cache.statistics
    #expect(statistics.hitCount == 3 && statistics.missCount == 4 && statistics.missesByReason[.outdated] == 3)
    #expect(statistics.missesByReason.values.reduce(0, +) == 4)
    #expect(cache.peekEntry(forKey: 1)?.version == "a" && cache.entries.map(\.version) == ["a", nil])
    cache.modifyValue(forKey: 1) { $0 = [3] }
    #expect(cache.value(forKey: 1, version: "a") == [3])
    cache.updateValue([4], forKey: 1)
    #expect(cache.value(forKey: 1, version: "a") == nil && cache.peekEntry(forKey: 1)?.version == nil)
    // One that is too long changes nothing.
    cache.setValue([5], forKey: 1, version: "c")
    #expect(cache.setValue([6], forKey: 1, version: String(repeating: "v", count: 256)) == .notEncodable)
    #expect(cache.value(forKey: 1, version: "c") == [5])
    #expect(cache.setValue([7], forKey: 1, version: String(repeating: "v", count: 255)) == .replaced)
    statistics = cache.statistics
    #expect(statistics.refusalCount == 1)
  }

  @Test("beside threads that store other versions, nobody gets a value of one")
  func versionsBesideStores() throws {
    let cache = try make()
    let isDone = Atomic<Bool>(false)
    onThreads(2) { thread in
      if thread == 1 {
        for round in 0..<20_000 / slowness { cache.setValue([UInt8(round % 2)], forKey: 1, version: "\(round % 2)") }
        isDone.store(true, ordering: .releasing)
        return
      }
      while !isDone.load(ordering: .acquiring) {
        for version in 0..<2 { #expect([nil, [UInt8(version)]].contains(cache.value(forKey: 1, version: "\(version)"))) }
      }
    }
  }

  @Test("a look-up of another version is no use")
  func order() throws {
    let cache = try make(countLimit: 2)
    cache.setValue([1], forKey: 1, version: "a")
    cache.setValue([2], forKey: 2, version: "a")
    #expect(cache.value(forKey: 1, version: "b") == nil)
    cache[3] = [3]
    #expect(cache.keys == [2, 3])
    #expect(cache.value(forKey: 2, version: "a") == [2])
    cache[4] = [4]
    #expect(cache.keys == [2, 4])
  }

  @Test("a recompute cost is told with its entry; what is less than 0 is unknown; of what is loaded it is the time of the load")
  func recomputeCosts() throws {
    let clock = ManualClock()
    let cache = try make(clock)
    for (time, told) in [(Duration.seconds(3), Duration.seconds(3)), (.zero, .zero), (.seconds(-1), nil)]
      as [(Duration, Duration?)]
    {
      cache.setValue([1], forKey: 1, recomputeCost: time)
      #expect(cache.peekEntry(forKey: 1)?.recomputeCost == told)
    }
    let value = cache.value(forKey: 2, version: "a") { () -> [UInt8] in
      clock.advance(by: .seconds(5))
      return [2]
    }
    let entry = cache.peekEntry(forKey: 2)
    #expect(value == [2] && entry?.recomputeCost == .seconds(5) && entry?.version == "a")
    cache.modifyValue(forKey: 2) { $0 = [3] }
    #expect(cache.peekEntry(forKey: 2)?.recomputeCost == .seconds(5))
  }

  @Test("notes go with their entries, whichever way these go, and move with the table")
  func ends() throws {
    let clock = ManualClock()
    let cache = try make(clock)
    cache.staysAlone()
    for key in 0..<5000 {
      cache.setValue([UInt8(truncatingIfNeeded: key)], forKey: key, version: key % 2 == 0 ? "\(key)" : nil)
    }
    #expect(noteCount(of: cache) == 2500)
    for key in 0..<5000 { #expect(cache.peekEntry(forKey: key)?.version == (key % 2 == 0 ? "\(key)" : nil)) }
    for key in 0..<1000 { cache.remove(forKey: key) }
    #expect(noteCount(of: cache) == 2000)
    for key in 1000..<2000 { cache[key] = [1] }
    #expect(noteCount(of: cache) == 1500)
    cache.trim(toCount: 2000)
    #expect(noteCount(of: cache) == cache.entries.count { $0.version != nil })
    for key in 0..<100 { cache.setValue([1], forKey: key, expiry: .sinceCreation(.seconds(1)), version: "e") }
    clock.advance(by: .seconds(2))
    #expect(cache.removeExpired() == 100)
    #expect(noteCount(of: cache) == cache.entries.count { $0.version != nil })
    let before = cache.statistics.memory.ordinaryBytes
    cache.removeAll()
    #expect(noteCount(of: cache) == 0 && cache.statistics.memory.ordinaryBytes < before)
  }

  @Test("a load gives its version; a value of another one is loaded anew, and takes its place")
  func loadedVersions() async throws {
    let cache = try make()
    let loads = LoadCounter()
    func ask(_ version: String?) -> [UInt8] { cache.value(forKey: 1, version: version) { [UInt8(loads.next())] } }
    #expect(ask("a") == [1] && ask("a") == [1] && ask(nil) == [1] && ask("b") == [2] && ask("a") == [3])
    #expect(cache.peekEntry(forKey: 1)?.version == "a" && cache.count == 1)
    #expect(await cache.value(forKey: 1, version: "c") { () async -> [UInt8] in [9] } == [9])
    #expect(cache.value(forKey: 1, version: "c") == [9])
    func askForNothing() -> [UInt8]? {
      cache.value(forKey: 2, version: "c", keepingNilFor: .seconds(5)) { () -> [UInt8]? in nil }
    }
    #expect(askForNothing() == nil)
    #expect(MissReason.of(cache.lookUpValue(forKey: 2, version: "c")) == .absent)
    // Too long to be kept.
    func askForLong() -> [UInt8] { cache.value(forKey: 3, version: String(repeating: "v", count: 256)) { [4] } }
    #expect(askForLong() == [4] && cache[3] == nil)
  }

  @Test("an older value is returned at once and loaded anew by one task; what was stored is not")
  func refreshes() async throws {
    let clock = ManualClock()
    let cache = try make(clock)
    let (began, allowed) = (LoadCounter(), LoadCounter())
    func ask(_ time: Duration? = .seconds(10)) async -> [UInt8] {
      await cache.value(forKey: 1, refreshAfter: time) {
        let number = began.next()
        _ = await TestRun.comes { allowed.value >= number }
        return [UInt8(number)]
      }
    }
    allowed.next()
    #expect(await ask() == [1])
    clock.advance(by: .seconds(10) - .nanoseconds(1))
    #expect(await ask() == [1] && began.value == 1)
    clock.advance(by: .nanoseconds(1))
    for _ in 0..<20 { #expect(await ask() == [1]) }
    allowed.next()
    #expect(await hasEnded(2, cache))
    #expect(cache[1] == [2] && began.value == 2 && cache.count == 1)
    // A store meanwhile wins.
    clock.advance(by: .seconds(10))
    #expect(await ask() == [2])
    #expect(await TestRun.comes { began.value == 3 })
    cache[1] = [100]
    allowed.next()
    #expect(await hasEnded(3, cache))
    #expect(cache[1] == [100])
    clock.advance(by: .seconds(1000))
    #expect(await ask(.zero) == [100] && began.value == 3, "its age was not noted")
  }

  @Test("a refresh that finds nothing takes the old value away; one that fails leaves it")
  func refreshedAway() async throws {
    let clock = ManualClock()
    let cache = try make(clock)
    _ = await cache.value(forKey: 1, refreshAfter: .zero) { () async -> [UInt8] in [1] }
    let value = try await cache.value(forKey: 1, refreshAfter: .zero) { () async throws(LoadError) -> [UInt8] in throw LoadError()
    }
    #expect(value == [1])
    #expect(await hasEnded(2, cache))
    #expect(cache.peekValue(forKey: 1) == [1] && cache.statistics.loadFailureCount == 1)
    #expect(await cache.value(forKey: 1, refreshAfter: .zero, keepingNilFor: .seconds(5)) { () async -> [UInt8]? in nil } == [1])
    #expect(await TestRun.comes { cache.statistics.departures[.removed] == 1 })
    #expect(await hasEnded(3, cache))
    #expect(MissReason.of(cache.lookUpValue(forKey: 1)) == .absent)
  }

  @Test("a load gets the entry that is due, and what it says holds: unchanged, found, absent")
  func reloads() async throws {
    let clock = ManualClock()
    let cache = try make(clock, expiry: .sinceCreation(.seconds(5)))
    let given = Mutex<[CacheEntry<Int, [UInt8]>?]>([])
    func ask(_ count: Int, _ result: LoadResult<[UInt8]>) async -> [UInt8]? {
      let value = await cache.value(forKey: 1, refreshAfter: .seconds(10)) { current in
        given.withLock { $0.append(current) }
        clock.advance(by: .seconds(3))
        return result
      }
      #expect(await hasEnded(count, cache))
      return value
    }
    #expect(await ask(1, .unchanged) == nil && cache.isEmpty)
    #expect(await ask(2, .found([1], cost: 7, expiry: .sinceCreation(.seconds(100)), version: "a")) == [1])
    #expect(given.withLock { $0.allSatisfy { $0 == nil } } && cache.setPriority(.pinned, forKey: 1))
    for round in 3...4 {
      clock.advance(by: .seconds(40))
      #expect(await ask(round, .unchanged) == [1])
      let entry = try #require(cache.peekEntry(forKey: 1))
      #expect(entry.value == [1] && entry.cost == 7 && entry.version == "a" && entry.priority == .pinned)
      #expect(entry.remainingTime == .seconds(100) && entry.recomputeCost == .seconds(3))
      #expect(given.withLock { $0.last??.version } == "a")
    }
    clock.advance(by: .seconds(10))
    #expect(await ask(5, .found([2], version: "b")) == [1] && cache.value(forKey: 1, version: "b") == [2])
    #expect(cache.peekEntry(forKey: 1)?.remainingTime == .seconds(5))
    _ = await ask(5, .unchanged)
    clock.advance(by: .seconds(4))
    _ = await cache.value(forKey: 1, refreshAfter: .zero) { _ in .absent(keptFor: .seconds(9)) }
    #expect(await hasEnded(6, cache))
    #expect(MissReason.of(cache.lookUpValue(forKey: 1)) == .absent && cache.isEmpty)
  }

  @Test("the same object that is unchanged keeps its content")
  func content() async throws {
    let cache = try ObjectCache<Int, TestContent>()
    let content = TestContent(1)
    _ = await cache.value(forKey: 1, refreshAfter: .zero) { (_) async in LoadResult.found(content) }
    _ = await cache.value(forKey: 1, refreshAfter: .zero) { (_) async in LoadResult<TestContent>.unchanged }
    #expect(await TestRun.comes { cache.statistics.loadCount == 2 && cache.loads.counts(of: 1).waiters == 0 })
    #expect(!content.isContentDiscarded && cache.peekValue(forKey: 1) === content)
  }

  @Test("trims by bytes where costs are bytes; the order is that of last use")
  func trims() throws {
    let cache = try ObjectCache<Int, Int>(CacheOptions(byteLimit: 1000))
    for key in 0..<10 { cache.setValue(key, forKey: key, cost: 100) }
    cache.trim(toBytes: 350)
    #expect(cache.keys == [7, 8, 9] && cache.evictionOrder == .lru)
  }
}
