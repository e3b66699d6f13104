// SPDX-License-Identifier: MIT
// What an asker says of the value that is to be loaded: how long it is valid.

import PurgeableTestSupport
import Testing

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
}
