// SPDX-License-Identifier: MIT
// A fork while slabs of a cache are given back that its program has let go of.

import Glibc
import Synchronization
import Testing
import ToolSupport

@testable import Purgeable

@Suite("giving back: forks")
struct GivingBackForkTests {
  /// The library's thread holds the turn, and no mutex of a cache that a fork knows: as the thread does for a cache that has
  /// ended. A fork has to wait for it.
  @Test("a child that was forked in the turn of a cache that is listed no more can give back", .forks)
  func turnOfAnEndedCache() async {
    await #expect(processExitsWith: .success) {
      let cache = try PurgeableCache<Int, [UInt8]>()
      for key in 0..<2000 { cache[key] = [UInt8](repeating: 7, count: 500) }
      let isInside = Atomic<Bool>(false)
      let forks = Atomic<Bool>(false)
      let holder = TestThread {
        _ = GivingBackTurn.shared.use { _ in
          isInside.store(true, ordering: .releasing)
          while !forks.load(ordering: .acquiring) { sched_yield() }
          // Time for a fork that does not wait; one that does takes no harm from it.
          usleep(100_000)
        }
      }
      while !isInside.load(ordering: .acquiring) { sched_yield() }
      forks.store(true, ordering: .releasing)
      let isWell = childSays {
        for key in 0..<2000 { cache[key] = [UInt8](repeating: 8, count: 500) }
        cache.trim(toCount: 100)
        return GivingBackTurn.shared.use { _ in true } == true && cache.count <= 100
      }
      holder.join()
      require(isWell, "the child")
    }
  }
}
