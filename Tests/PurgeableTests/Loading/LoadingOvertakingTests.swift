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
}
