// SPDX-License-Identifier: MIT
// What an asker says of the value that is to be loaded: how long it is valid, and of which version.

import PurgeableTestSupport
import Testing
import ToolSupport

@testable import Purgeable

@Suite("loading: terms")
struct LoadingTermsTests {
  @Test("what is loaded is valid for the time that the asker says, in each form, else for the cache's", arguments: [false, true])
  func expiry(tracksKeys: Bool) async throws {
    let clock = ManualClock()
    let cache: PurgeableCache<Int, [UInt8]> = try makeExpiringCache(
      clock, tracksKeys: tracksKeys, expiry: .sinceCreation(.seconds(100)))
    let short = Expiry.sinceCreation(.seconds(10))
    func onThread() {
      #expect(cache.value(forKey: 1, expiry: short) { [1] } == [1])
      #expect(cache.value(forKey: 2, expiry: short) { () -> [UInt8]? in [2] } == [2])
      #expect(cache.values(forKeys: [3, 4], expiry: short) { [$0[0]: [3]] } == [[3], nil])
      #expect(cache.value(forKey: 5) { [5] } == [5])
      #expect(cache.value(forKey: 6, expiry: .never) { [6] } == [6])
    }
    onThread()
    #expect(await cache.value(forKey: 7, expiry: short) { [7] } == [7])
    #expect(await cache.value(forKey: 8, expiry: short) { () async -> [UInt8]? in [8] } == [8])
    #expect(await cache.values(forKeys: [9], expiry: short) { [$0[0]: [9]] } == [[9]])
    clock.advance(by: .seconds(9))
    for key in [1, 2, 3, 7, 8, 9] { #expect(cache.peekEntry(forKey: key)?.remainingTime == .seconds(1)) }
    clock.advance(by: .seconds(1))
    #expect(Set(cache.keys) == [5, 6])
    // A hit moves nothing; what has expired is loaded anew.
    #expect(await cache.value(forKey: 5, expiry: short) { [0] } == [5])
    #expect(cache.peekEntry(forKey: 5)?.remainingTime == .seconds(90))
    #expect(await cache.value(forKey: 1, expiry: short) { [10] } == [10])
    #expect(cache.peekEntry(forKey: 1)?.remainingTime == .seconds(10))
    cache.checkBooks()
  }

  @Test("what is loaded for a time of 0 or less is returned, not kept, and told of", arguments: [Duration.zero, .seconds(-1)])
  func overAtOnce(_ time: Duration) throws {
    let departures = Departures<Int, [UInt8]>()
    let cache = try makeExpiringCache(ManualClock(), departures: departures)
    #expect(cache.value(forKey: 1, expiry: .sinceCreation(time)) { [1] } == [1])
    #expect(cache.isEmpty && cache.statistics.refusalCount == 1)
    #expect(departures.take().map(\.reason) == [.expired])
    // What was stored meanwhile stands.
    let value = cache.value(forKey: 1, expiry: .sinceCreation(time)) {
      cache[1] = [2]
      return [3]
    }
    #expect(value == [3] && cache[1] == [2])
  }

  // MARK: Versions

  @Test("an entry of another version, or of none, is loaded anew and takes its place", arguments: [false, true])
  func version(tracksKeys: Bool) async throws {
    let cache = try PurgeableCache<Int, [UInt8]>(tracksKeys: tracksKeys)
    func load(_ version: String?, _ byte: UInt8) -> [UInt8] { cache.value(forKey: 1, version: version) { [byte] } }
    cache[1] = [1]
    #expect(load(nil, 0) == [1] && load("a", 2) == [2] && load("a", 0) == [2] && load(nil, 0) == [2])
    #expect(load("b", 3) == [3] && cache.peekEntry(forKey: 1)?.version == "b" && cache.count == 1)
    #expect(await cache.value(forKey: 1, version: "b") { [0] } == [3])
    #expect(await cache.value(forKey: 1, version: "c") { [4] } == [4])
    #expect(await cache.value(forKey: 1, version: "d") { () async -> [UInt8]? in nil } == nil)
    #expect(cache.peekEntry(forKey: 1)?.version == "c", "what finds nothing takes nothing away")
    let clock = ManualClock()
    let expiring: PurgeableCache<Int, [UInt8]> = try makeExpiringCache(clock, tracksKeys: tracksKeys)
    #expect(await expiring.value(forKey: 1, version: "a", expiry: .sinceCreation(.seconds(10))) { [1] } == [1])
    clock.advance(by: .seconds(10))
    #expect(await expiring.value(forKey: 1, version: "a") { [2] } == [2])
    let long = String(repeating: "v", count: 256)
    #expect(load(long, 7) == [7] && cache[1] == [4] && cache.statistics.refusalCount == 1)
    cache.checkBooks()
  }

  @Test("askers of different versions do not share a load; the first to end is kept")
  func versionsApart() throws {
    let cache = try PurgeableCache<Int, [UInt8]>()
    let (began, goes) = (Event(), Event())
    let first = TestThread {
      let value = cache.value(forKey: 1, version: "a") {
        began.happens()
        goes.blocks()
        return [1]
      }
      #expect(value == [1])
    }
    #expect(began.blocks())
    #expect(cache.value(forKey: 1, version: "b") { [2] } == [2])
    goes.happens()
    first.join()
    #expect(cache.peekEntry(forKey: 1)?.version == "b")
    #expect(cache.statistics.sharedLoadCount == 0)
  }

  @Test("who asks for a version that is known to be absent is one miss, for one reason", arguments: CacheKind.allCases)
  func absentVersionCounts(_ kind: CacheKind) throws {
    let cache = try kind.make()
    for _ in 0..<5 { #expect(cache.load(1, version: "a", .seconds(1000)) { nil } == nil) }
    let numbers = cache.statistics
    #expect(numbers.missCount == 5 && numbers.missesByReason.values.reduce(0, +) == 5, "\(numbers.missesByReason)")
    #expect(numbers.missesByReason[.absent] == 4 && numbers.loadCount == 1)
  }

  @Test("that there is nothing is remembered of the version that was asked for")
  func absentVersion() throws {
    let cache = try PurgeableCache<Int, [UInt8]>()
    var loads = 0
    func ask(_ version: String) {
      let value = cache.value(forKey: 1, version: version, keepingNilFor: .seconds(1000)) { () -> [UInt8]? in
        loads += 1
        return nil
      }
      #expect(value == nil)
    }
    for version in ["a", "a"] { ask(version) }
    #expect(loads == 1 && MissReason.of(cache.lookUpValue(forKey: 1, version: "a")) == .absent)
    #expect(MissReason.of(cache.lookUpValue(forKey: 1, version: "b")) == .unknown)
    ask("b")
    #expect(loads == 2)
    cache.setValue([1], forKey: 1, version: "c")
    ask("b")
    #expect(loads == 3 && cache[1] == [1])
  }
}
