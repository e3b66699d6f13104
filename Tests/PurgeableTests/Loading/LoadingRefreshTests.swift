// SPDX-License-Identifier: MIT
// Values that are loaded anew while the old one is returned.

import PurgeableTestSupport
import Testing
import ToolSupport

@testable import Purgeable

/// A cache and what its loads do: each returns its number, when it may.
private final class Refreshed: Sendable {
  let clock = ManualClock()
  let cache: PurgeableCache<Int, [UInt8]>
  let began = LoadCounter()
  let allowed = LoadCounter()

  init(tracksKeys: Bool, departures: Departures<Int, [UInt8]>? = nil) throws {
    cache = try makeExpiringCache(clock, tracksKeys: tracksKeys, departures: departures)
  }

  func ask(refreshAfter: Duration? = .seconds(10), version: String? = nil, expiry: Expiry? = nil) async -> [UInt8] {
    await cache.value(forKey: 1, version: version, expiry: expiry, refreshAfter: refreshAfter) { await self.next() }
  }

  /// A load.
  func next() async -> [UInt8] {
    let number = began.next()
    _ = await TestRun.comes { self.allowed.value >= number }
    return [UInt8(number)]
  }

  func allow() { allowed.next() }

  /// So many loads have ended, and none is under way.
  func hasEnded(_ count: Int) async -> Bool {
    await TestRun.comes { self.cache.statistics.loadCount == count && self.cache.loads.counts(of: 1).waiters == 0 }
  }
}

@Suite("loading: refreshes")
struct LoadingRefreshTests {
  @Test(
    "an older value is returned at once and loaded anew by one task, however many ask; a younger one is not",
    arguments: [false, true])
  func once(tracksKeys: Bool) async throws {
    let test = try Refreshed(tracksKeys: tracksKeys)
    test.allow()
    #expect(await test.ask() == [1])
    test.clock.advance(by: .seconds(10) - .nanoseconds(1))
    #expect(await test.ask() == [1] && test.began.value == 1)
    test.clock.advance(by: .nanoseconds(1))
    for _ in 0..<20 { #expect(await test.ask() == [1]) }
    #expect(await TestRun.comes { test.began.value == 2 })
    for _ in 0..<20 { #expect(await test.ask() == [1]) }
    #expect(test.began.value == 2 && test.cache.statistics.loadCount == 1)
    test.allow()
    #expect(await test.hasEnded(2))
    #expect(test.cache[1] == [2] && test.cache.count == 1)
    test.clock.advance(by: .seconds(9))
    #expect(await test.ask() == [2] && test.began.value == 2, "its age began anew")
    test.clock.advance(by: .seconds(1))
    #expect(await test.ask() == [2])
    test.allow()
    #expect(await test.hasEnded(3))
    #expect(test.cache[1] == [3] && test.cache.statistics.loadFailureCount == 0)
    test.cache.checkBooks()
  }

  @Test("with a time of 0 or less each hit loads anew; without one, and of what was stored, none does", arguments: [false, true])
  func always(tracksKeys: Bool) async throws {
    let test = try Refreshed(tracksKeys: tracksKeys)
    for _ in 0..<10 { test.allow() }
    #expect(await test.ask(refreshAfter: .seconds(-1)) == [1])
    #expect(await test.ask(refreshAfter: .zero) == [1])
    #expect(await test.hasEnded(2))
    #expect(await test.ask(refreshAfter: nil) == [2])
    test.cache[1] = [100]
    test.clock.advance(by: .seconds(1000))
    #expect(await test.ask(refreshAfter: .zero) == [100] && test.began.value == 2)
    test.cache.remove(forKey: 1)
    #expect(await test.ask(refreshAfter: nil) == [3])
    #expect(await test.ask(refreshAfter: .zero) == [3] && test.began.value == 3, "its age was not noted")
  }

  @Test("what the program has changed is its own, and not loaded anew", arguments: CacheKind.allCases)
  func changed(_ kind: CacheKind) async throws {
    let clock = ManualClock()
    func test(_ modify: (Int) -> Void, _ ask: (Int) async -> [UInt8], _ loads: LoadTable<Int>) async {
      #expect(await ask(1) == [0])
      modify(1)
      clock.advance(by: .seconds(1000))
      for _ in 0..<3 { #expect(await ask(1) == [0, 7]) }
      #expect(loads.loadCount.load(ordering: .relaxed) == 1 && loads.counts(of: 1).waiters == 0)
    }
    let cache = try kind.make(clock: clock)
    if let cache = cache as? ObjectCache<Int, [UInt8]> {
      await test(
        { cache.modifyValue(forKey: $0) { $0?.append(7) } }, { await cache.value(forKey: $0, refreshAfter: .seconds(1)) { [0] } },
        cache.loads)
    } else if let cache = cache as? PurgeableCache<Int, [UInt8]> {
      await test(
        { cache.modifyValue(forKey: $0) { $0?.append(7) } }, { await cache.value(forKey: $0, refreshAfter: .seconds(1)) { [0] } },
        cache.loads)
    }
  }

  @Test("no more values are loaded anew at a time than the limit says; a hit beyond it returns the old one, a later one loads")
  func limited() async throws {
    var options = CacheOptions()
    options.refreshLimit = 2
    let (bytes, objects) = (try PurgeableCache<Int, [UInt8]>(options), try ObjectCache<Int, [UInt8]>(options))
    try await limited(bytes.loads) { await bytes.value(forKey: $0, refreshAfter: .zero, loading: $1) }
    try await limited(objects.loads) { await objects.value(forKey: $0, refreshAfter: .zero, loading: $1) }
    options.refreshLimit = -1
    let refusal = #expect(throws: PurgeableError.self) { try PurgeableCache<Int, [UInt8]>(options) }
    #expect(refusal?.kind == .invalidArgument("refreshLimit"))
  }

  private func limited(
    _ loads: LoadTable<Int>, _ ask: (Int, @escaping @Sendable () async -> [UInt8]) async -> [UInt8]
  ) async throws {
    let (began, allowed) = (LoadCounter(), LoadCounter())
    for key in 0..<5 { #expect(await ask(key) { [0] } == [0]) }
    for round in 0..<2 {
      for key in 0..<5 {
        let value = await ask(key) {
          began.next()
          _ = await TestRun.comes { allowed.value > round }
          return [UInt8(key)]
        }
        #expect(value.count == 1)
      }
      #expect(await TestRun.comes { began.value == 2 * (round + 1) })
      #expect(!loads.mayRefresh && loads.loadCount.load(ordering: .relaxed) == 5 + 2 * round)
      allowed.next()
      #expect(await TestRun.comes { loads.mayRefresh && loads.loadCount.load(ordering: .relaxed) == 7 + 2 * round })
    }
  }

  @Test("where the load fails the old value stays until it expires, and the next hit tries again")
  func fails() async throws {
    let test = try Refreshed(tracksKeys: false)
    test.allow()
    #expect(await test.ask(expiry: .sinceCreation(.seconds(100))) == [1])
    for round in 1...3 {
      test.clock.advance(by: .seconds(10))
      let value = try await test.cache.value(forKey: 1, refreshAfter: .seconds(10)) { () async throws(LoadError) -> [UInt8] in
        throw LoadError()
      }
      #expect(value == [1])
      #expect(await test.hasEnded(1 + round))
      #expect(test.cache.statistics.loadFailureCount == round)
      #expect(test.cache.peekEntry(forKey: 1)?.remainingTime == .seconds(100 - 10 * round))
    }
    test.clock.advance(by: .seconds(70))
    #expect(test.cache[1] == nil)
  }

  @Test("a store or a removal during the load wins, in each form of them", arguments: Overtaker.allCases, [false, true])
  func overtaken(_ overtaker: Overtaker, tracksKeys: Bool) async throws {
    let test = try Refreshed(tracksKeys: tracksKeys)
    test.allow()
    #expect(await test.ask(refreshAfter: .zero) == [1])
    #expect(await test.ask(refreshAfter: .zero) == [1])
    #expect(await TestRun.comes { test.began.value == 2 })
    overtaker.act(on: test.cache, 1)
    test.allow()
    #expect(await test.hasEnded(2))
    #expect(test.cache[1] == overtaker.left)
  }

  @Test("a load that finds nothing takes the old value away, and that is remembered", arguments: [false, true])
  func nothing(tracksKeys: Bool) async throws {
    let departures = Departures<Int, [UInt8]>()
    let test = try Refreshed(tracksKeys: tracksKeys, departures: tracksKeys ? departures : nil)
    test.allow()
    #expect(await test.ask() == [1])
    test.clock.advance(by: .seconds(10))
    let loads = LoadCounter()
    func ask() async -> [UInt8]? {
      await test.cache.value(forKey: 1, refreshAfter: .seconds(10), keepingNilFor: .seconds(5)) { () async -> [UInt8]? in
        loads.next()
        return nil
      }
    }
    #expect(await ask() == [1])
    #expect(await test.hasEnded(2))
    #expect(await TestRun.comes { MissReason.of(test.cache.lookUpValue(forKey: 1)) == .absent })
    #expect(await ask() == nil && loads.value == 1 && test.cache.isEmpty)
    if tracksKeys { #expect(departures.take().map(\.reason) == [.removed]) }
    test.clock.advance(by: .seconds(5))
    #expect(await ask() == nil && loads.value == 2)
  }

  @Test("a store or a removal during a load that finds nothing wins too", arguments: Overtaker.allCases, [false, true])
  func nothingOvertaken(_ overtaker: Overtaker, tracksKeys: Bool) async throws {
    let test = try Refreshed(tracksKeys: tracksKeys)
    test.allow()
    #expect(await test.ask() == [1])
    test.clock.advance(by: .seconds(10))
    let (began, goes) = (Event(), Event())
    let (age, time) = (Duration.seconds(10), Duration.seconds(5))
    let value = await test.cache.value(forKey: 1, refreshAfter: age, keepingNilFor: time) { () async -> [UInt8]? in
      began.happens()
      await goes.comes()
      return nil
    }
    #expect(value == [1])
    #expect(await began.comes())
    overtaker.act(on: test.cache, 1)
    goes.happens()
    #expect(await test.hasEnded(2))
    #expect(test.cache[1] == overtaker.left)
    test.cache.trim(toCount: 0)
    #expect(MissReason.of(test.cache.lookUpValue(forKey: 1)) != .absent)
  }

  @Test("who asks when the old value has left waits for the load that is under way; a load asks for its own key without end")
  func within() async throws {
    let test = try Refreshed(tracksKeys: false)
    test.allow()
    #expect(await test.ask(refreshAfter: .zero) == [1])
    #expect(await test.ask(refreshAfter: .zero) == [1])
    #expect(await TestRun.comes { test.began.value == 2 })
    test.cache.trim(toCount: 0)
    let late = Task { await test.ask(refreshAfter: .zero) }
    #expect(await TestRun.comes { test.cache.loads.counts(of: 1).waiters == 2 })
    test.allow()
    #expect(await late.value == [2] && test.began.value == 2)
    // The inner asker gets the old value, and begins nothing.
    let value = await test.cache.value(forKey: 1, refreshAfter: .zero) {
      await test.cache.value(forKey: 1, refreshAfter: .zero) { [50] } + [7]
    }
    #expect(value == [2])
    #expect(await test.hasEnded(3))
    #expect(test.cache[1] == [2, 7])
  }

  @Test("the version and the expiry are those of the asker whose hit began the load")
  func terms() async throws {
    let test = try Refreshed(tracksKeys: false)
    for _ in 0..<3 { test.allow() }
    #expect(await test.ask(version: "a", expiry: .sinceCreation(.seconds(100))) == [1])
    test.clock.advance(by: .seconds(20))
    #expect(await test.ask(version: "a", expiry: .sinceCreation(.seconds(50))) == [1])
    #expect(await test.hasEnded(2))
    let entry = try #require(test.cache.peekEntry(forKey: 1))
    #expect(entry.value == [2] && entry.version == "a" && entry.remainingTime == .seconds(50))
    #expect(await test.ask(version: "b") == [3], "of another version: loaded at once")
  }
}
