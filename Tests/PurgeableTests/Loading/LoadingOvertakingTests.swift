// SPDX-License-Identifier: MIT
// Loads that begin while something else is on its way.

import Glibc
import Synchronization
import Testing

@testable import Purgeable

@Suite("loading: overtakings")
struct LoadingOvertakingTests {
  @Test("a load that begins while a store is on its way, and finds no value yet, does not replace what was stored")
  func begunDuringStore() async {
    await #expect(processExitsWith: .success) {
      alarm(600)
      for (kind, modifies) in [(CacheKind.tracked, false), (.tracked, true), (.objects, false), (.objects, true)] {
        let (cache, key) = (try kind.make(BusyHashKey.self), BusyHashKey(number: 1))
        let load = Mutex<HeldLoad?>(nil)
        /// A cache without loads asks for the hash only when it stores, behind the look at what is being loaded.
        func loadDuringStore() {
          BusyHashKey.act(afterHashes: 0) {
            let held = HeldLoad(cache, key, [0])
            require(held.began.blocks(), "the load runs")
            load.withLock { $0 = held }
          }
        }
        if modifies {
          cache.modifyValue(forKey: key) {
            loadDuringStore()
            $0 = [1]
          }
        } else {
          loadDuringStore()
          cache.set([1], key)
        }
        let held = load.withLock { $0 }
        held?.goesOn()
        require(held?.join() == [0], "what was loaded")
        require(cache.peekValue(forKey: key) == [1], "what was stored in \(kind)")
      }
    }
  }

  @Test("a load that begins while removeAll() is on its way, and finds no value any more, is not kept", arguments: [false, true])
  func begunDuringRemoval(isOfObjects: Bool) throws {
    let begin = Mutex<(@Sendable () -> Void)?>(nil)
    let clock = ManualClock()
    // Told of within the removal, before the last entries go: one whose time is over, or any.
    let handler: @Sendable (Departure<Int, [UInt8]>) -> Void = { _ in
      let begins = begin.withLock { begin in
        defer { begin = nil }
        return begin
      }
      begins?()
    }
    var options = CacheOptions()
    options.clock = clock
    if isOfObjects { options.expiry = .sinceCreation(.seconds(1)) }
    let cache: any LoadingCache<Int> =
      isOfObjects ? try ObjectCache(options, onDeparture: handler) : try PurgeableCache(options, onDeparture: handler)
    for key in 0..<10 { cache.set([1], key) }
    clock.advance(by: .seconds(2))
    let load = Mutex<HeldLoad?>(nil)
    begin.withLock {
      $0 = {
        let held = HeldLoad(cache, 100, [7])
        #expect(held.began.blocks())
        load.withLock { $0 = held }
      }
    }
    cache.removeAll()
    let held = try #require(load.withLock { $0 })
    held.goesOn()
    #expect(held.join() == [7])
    #expect(cache.peekValue(forKey: 100) == nil)
    begin.withLock { $0 = nil }
  }
}
