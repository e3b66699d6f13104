// SPDX-License-Identifier: MIT
// Loads that get the entry that is due, and say what holds now.

import PurgeableTestSupport
import Synchronization
import Testing
import ToolSupport

@testable import Purgeable

@Suite("loading for validators: how long")
struct KeptTermsTests {
  @Test("an entry that is kept on is valid as long as at its beginning; where that is not known, as long as it has left")
  func lifetime() async throws {
    let (hour, clock) = (UInt64(3600) * 1_000_000_000, ManualClock())
    let cache: PurgeableCache<Int, [UInt8]> = try makeExpiringCache(clock)
    var options = CacheOptions()
    options.clock = clock
    let objects = try ObjectCache<Int, [UInt8]>(options)
    func lives() -> [UInt64?] {
      [cache.current(1)?.terms.lifetime.sinceCreation, objects.current(1)?.terms.lifetime.sinceCreation]
    }
    cache.setValue([1], forKey: 1, expiry: .sinceCreation(.seconds(3600)))
    objects.setValue([1], forKey: 1, expiry: .sinceCreation(.seconds(3600)))
    clock.advance(by: .seconds(600))
    #expect(lives() == [hour / 6 * 5, hour / 6 * 5])
    cache.remove(forKey: 1)
    objects.remove(forKey: 1)
    let expiry = Expiry.sinceCreation(.seconds(3600))
    #expect(await cache.value(forKey: 1, expiry: expiry, refreshAfter: .seconds(9)) { [2] } == [2])
    #expect(await objects.value(forKey: 1, expiry: expiry, refreshAfter: .seconds(9)) { [2] } == [2])
    clock.advance(by: .seconds(600))
    #expect(lives() == [hour, hour])
  }
}

/// A cache, and what its loads were given and say.
private final class Reloaded: Sendable {
  let clock = ManualClock()
  let cache: PurgeableCache<Int, [UInt8]>
  private let given = Mutex<[CacheEntry<Int, [UInt8]>?]>([])
  let (began, goes) = (LoadCounter(), LoadCounter())

  init(tracksKeys: Bool = false, expiry: Expiry? = nil, departures: Departures<Int, [UInt8]>? = nil) throws {
    cache = try makeExpiringCache(clock, tracksKeys: tracksKeys, expiry: expiry, departures: departures)
  }

  /// `takes`: the time of the load.
  func ask(
    refreshAfter: Duration? = .seconds(10), takes: Duration = .zero, _ result: LoadResult<[UInt8]>
  ) async -> [UInt8]? {
    await cache.value(forKey: 1, refreshAfter: refreshAfter) { current in
      self.given.withLock { $0.append(current) }
      let number = self.began.next()
      _ = await TestRun.comes { self.goes.value >= number }
      self.clock.advance(by: takes)
      return result
    }
  }

  /// Asks, and lets the load end that this begins.
  func load(
    refreshAfter: Duration? = .seconds(10), takes: Duration = .zero, _ result: LoadResult<[UInt8]>
  ) async -> [UInt8]? {
    goes.next()
    let value = await ask(refreshAfter: refreshAfter, takes: takes, result)
    #expect(await hasEnded(goes.value))
    return value
  }

  /// So many loads have ended, and none is under way.
  func hasEnded(_ count: Int) async -> Bool {
    await TestRun.comes { self.cache.statistics.loadCount == count && self.cache.loads.counts(of: 1).waiters == 0 }
  }

  var entry: CacheEntry<Int, [UInt8]>? { cache.peekEntry(forKey: 1) }
  var lastGiven: CacheEntry<Int, [UInt8]>? { given.withLock { $0.last ?? nil } }
}

@Suite("loading: reloads")
struct LoadingReloadTests {
  @Test("a miss loads without an entry, and what was found is kept as the load says", arguments: [false, true])
  func found(tracksKeys: Bool) async throws {
    let test = try Reloaded(tracksKeys: tracksKeys)
    let found = LoadResult<[UInt8]>.found([1, 2], cost: 7, expiry: .sinceCreation(.seconds(100)), version: "a")
    #expect(await test.load(takes: .seconds(3), found) == [1, 2])
    #expect(test.began.value == 1 && test.lastGiven == nil)
    let entry = try #require(test.entry)
    #expect(entry.value == [1, 2] && entry.cost == 7 && entry.version == "a")
    #expect(entry.remainingTime == .seconds(100) && entry.recomputeCost == .seconds(3))
    #expect(test.cache.totalCost == 7)
  }

  @Test("without cost, expiry and version it has its bytes, the default and none")
  func defaults() async throws {
    let test = try Reloaded(expiry: .sinceCreation(.seconds(50)))
    #expect(await test.load(.found([1, 2])) == [1, 2])
    let entry = try #require(test.entry)
    #expect(entry.cost == 2 && entry.remainingTime == .seconds(50) && entry.version == nil)
    #expect(await test.load(refreshAfter: .zero, .found([3], expiry: .sinceCreation(.zero))) == [1, 2])
    #expect(test.entry == nil)
  }

  @Test("a younger value is a hit; an older one is returned at once, and one load gets its entry", arguments: [false, true])
  func due(tracksKeys: Bool) async throws {
    let test = try Reloaded(tracksKeys: tracksKeys)
    let found = LoadResult<[UInt8]>.found([1], cost: 7, expiry: .sinceCreation(.seconds(100)), version: "a")
    _ = await test.load(takes: .seconds(3), found)
    try test.cache.setPriority(.pinned, forKey: 1)
    test.clock.advance(by: .seconds(10) - .nanoseconds(1))
    #expect(await test.ask(.found([9])) == [1] && test.began.value == 1)
    test.clock.advance(by: .nanoseconds(1))
    #expect(await test.ask(refreshAfter: nil, .found([9])) == [1] && test.began.value == 1, "never due")
    for _ in 0..<20 { #expect(await test.ask(.found([2], version: "b")) == [1]) }
    #expect(await TestRun.comes { test.began.value == 2 })
    let current = try #require(test.lastGiven)
    #expect(current.key == 1 && current.value == [1] && current.cost == 7 && current.version == "a")
    #expect(current.remainingTime == .seconds(90) && current.recomputeCost == .seconds(3) && current.priority == .pinned)
    test.goes.next()
    #expect(await test.hasEnded(2))
    let entry = try #require(test.entry)
    #expect(test.began.value == 2 && entry.value == [2] && entry.version == "b" && entry.remainingTime == nil)
  }

  @Test("an unchanged entry begins its age and its time anew, and keeps all else, as often as it is", arguments: [false, true])
  func unchanged(tracksKeys: Bool) async throws {
    let departures = Departures<Int, [UInt8]>()
    let test = try Reloaded(
      tracksKeys: tracksKeys, expiry: .sinceCreation(.seconds(5)), departures: tracksKeys ? departures : nil)
    let expiry = Expiry(sinceCreation: .seconds(100), sinceLastUse: .seconds(1000))
    _ = await test.load(takes: .seconds(3), .found([1], cost: 7, expiry: expiry, version: "a"))
    try test.cache.setPriority(.pinned, forKey: 1)
    for round in 2...4 {
      test.clock.advance(by: .seconds(40))
      #expect(await test.load(takes: .seconds(20), .unchanged) == [1])
      let entry = try #require(test.entry)
      #expect(entry.value == [1] && entry.cost == 7 && entry.version == "a" && entry.remainingTime == .seconds(100))
      #expect(entry.recomputeCost == .seconds(3) && entry.priority == .pinned)
      test.clock.advance(by: .seconds(9))
      #expect(await test.ask(.found([9])) == [1] && test.began.value == round, "its age began anew")
    }
    test.cache.checkBooks()
    test.clock.advance(by: .seconds(91))
    #expect(test.cache[1] == nil)
    if tracksKeys { #expect(departures.take().map(\.reason) == [.replaced, .replaced, .replaced, .expired]) }
  }

  @Test("an unchanged entry without an end has none, whatever the default; without an entry there is nothing")
  func unchangedForms() async throws {
    let test = try Reloaded(expiry: .sinceCreation(.seconds(50)))
    #expect(await test.load(.unchanged) == nil)
    #expect(test.cache.isEmpty && MissReason.of(test.cache.lookUpValue(forKey: 1)) != .absent)
    _ = await test.load(.found([1], expiry: .never))
    test.clock.advance(by: .seconds(10))
    #expect(await test.load(.unchanged) == [1])
    #expect(test.entry?.remainingTime == nil && test.entry?.cost == 1)
    // Expired: gone to loads, too.
    _ = await test.load(refreshAfter: .zero, .found([2]))
    test.clock.advance(by: .seconds(50))
    #expect(await test.load(.unchanged) == nil && test.lastGiven == nil)
  }

  @Test("a store or a removal during the load wins over each result", arguments: Overtaker.allCases, [false, true])
  func overtaken(_ overtaker: Overtaker, tracksKeys: Bool) async throws {
    for result in [LoadResult<[UInt8]>.unchanged, .found([9]), .absent(keptFor: .seconds(100))] {
      let test = try Reloaded(tracksKeys: tracksKeys)
      _ = await test.load(.found([5]))
      #expect(await test.ask(refreshAfter: .zero, result) == [5])
      #expect(await TestRun.comes { test.began.value == 2 })
      overtaker.act(on: test.cache, 1)
      test.goes.next()
      #expect(await test.hasEnded(2))
      #expect(test.cache[1] == overtaker.left)
      test.cache.trim(toCount: 0)
      #expect(MissReason.of(test.cache.lookUpValue(forKey: 1)) != .absent)
    }
  }

  @Test("who asks when the due entry has left waits for its load, and gets the entry that is unchanged")
  func evicted() async throws {
    let test = try Reloaded()
    _ = await test.load(.found([5], version: "a"))
    #expect(await test.ask(refreshAfter: .zero, .unchanged) == [5])
    #expect(await TestRun.comes { test.began.value == 2 })
    test.cache.trim(toCount: 0)
    let late = Task { await test.ask(.found([9])) }
    #expect(await TestRun.comes { test.cache.loads.counts(of: 1).waiters == 2 })
    test.goes.next()
    #expect(await late.value == [5] && test.entry?.version == "a" && test.began.value == 2)
  }

  @Test("absence takes the old value away, and is remembered where that is asked for", arguments: [false, true])
  func absent(tracksKeys: Bool) async throws {
    let test = try Reloaded(tracksKeys: tracksKeys)
    _ = await test.load(.found([1]))
    test.clock.advance(by: .seconds(10))
    #expect(await test.load(.absent(keptFor: .seconds(5))) == [1])
    #expect(test.cache.isEmpty && MissReason.of(test.cache.lookUpValue(forKey: 1)) == .absent)
    #expect(await test.ask(.found([9])) == nil && test.began.value == 2)
    test.clock.advance(by: .seconds(5))
    #expect(await test.load(.absent()) == nil)
    #expect(await test.load(.found([3])) == [3], "was not remembered")
  }

  @Test("an error of a refresh leaves the entry as it was; one of a miss is thrown")
  func fails() async throws {
    let test = try Reloaded()
    func fail() async throws(LoadError) -> [UInt8]? {
      try await test.cache.value(forKey: 1, refreshAfter: .seconds(10)) { _ async throws(LoadError) -> LoadResult<[UInt8]> in
        throw LoadError()
      }
    }
    await #expect(throws: LoadError()) { try await fail() }
    test.goes.next()
    _ = await test.ask(.found([1], expiry: .sinceCreation(.seconds(100)), version: "a"))
    test.clock.advance(by: .seconds(10))
    #expect(try await fail() == [1])
    #expect(await test.hasEnded(3))
    #expect(test.entry?.value == [1] && test.entry?.version == "a" && test.entry?.remainingTime == .seconds(90))
    #expect(test.cache.statistics.loadFailureCount == 2)
  }

  @Test("what a load says of its value is gone with the load")
  func ends() {
    weak var known: LoadAnswer?
    do {
      let answer = LoadAnswer()
      var terms = LoadTerms()
      (terms.answer, terms.version) = (answer, "v1")
      answer.terms = terms
      #expect(answer.terms?.version == "v1")
      known = answer
    }
    #expect(known == nil)
  }
}
