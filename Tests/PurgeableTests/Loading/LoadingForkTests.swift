// SPDX-License-Identifier: MIT
// Loads beside a fork: what a child knows of them, and what becomes of the one that forked.

import Glibc
import Synchronization
import Testing
import ToolSupport

@testable import Purgeable

@Suite("loading: forks")
struct LoadingForkTests {
  /// The child comes out of a load of two keys, one of which another thread of the parent is loading. `isOvertaken`: and a third
  /// thread after a removal.
  private static func forkInGroup(_ cache: any LoadingCache<Int>, isOvertaken: Bool) {
    let held = HeldLoad(cache, 21, [21])
    require(held.began.blocks(), "the other thread loads")
    var later: HeldLoad?
    var child: pid_t = -1
    let values = cache.values(forKeys: [20, 21]) { missing in
      if child < 0 {
        if isOvertaken {
          cache.remove(forKey: 21)
          later = HeldLoad(cache, 21, [22])
          require(later?.began.blocks() == true, "the third thread loads")
        }
        child = fork()
        // The parent waits for the other thread, whose load may end now.
        if child > 0 { held.goesOn() } else { endAfter(seconds: 60) }
      }
      return Dictionary(uniqueKeysWithValues: missing.map { ($0, [UInt8($0)]) })
    }
    if child == 0 { _exit(values == [[20], [21]] ? 0 : 1) }
    require(ChildEnd.of(child) == .exited(0), "the child loads what nobody loads there")
    require(values == [[20], [21]], "the parent waits")
    require(held.join() == [21], "the other thread's")
    later?.goesOn()
    require(later == nil || later?.join() == [22], "the third thread's")
    cache.removeAll()
  }

  @Test("a manual clock goes on in a child that was forked while threads moved it", .forks)
  func clock() async {
    await #expect(processExitsWith: .success) {
      let clock = ManualClock()
      let isOver = Atomic<Bool>(false)
      let threads = [1, -1].map { step in
        TestThread { while !isOver.load(ordering: .relaxed) { clock.advance(by: .nanoseconds(step)) } }
      }
      let start = clock.now
      for _ in 0..<100 {
        let isWell = childSays {
          let before = clock.now
          clock.advance(by: .seconds(1))
          return clock.now - before == .seconds(1)
        }
        require(isWell, "the child's clock")
      }
      isOver.store(true, ordering: .relaxed)
      for thread in threads { thread.join() }
      require(abs((clock.now - start) / .nanoseconds(1)) < 1e9, "the parent's stands where it stood, about")
      clock.advance(by: .seconds(Int64.max))
      clock.advance(by: .seconds(Int64.min))
    }
  }

  @Test("a forked child knows nothing of its parent's loads, and goes on with the one that forked, which is not kept", .forks)
  func forked() async {
    await #expect(processExitsWith: .success) {
      for kind in CacheKind.allCases {
        let cache = try kind.make()
        let held = HeldLoad(cache, 2, [2])
        require(held.began.blocks(), "the other thread loads")
        var waiters: [TestThread] = []
        var isChild = false
        let value = cache.value(forKey: 1) {
          waiters = [1, 2].map { key in
            TestThread { require(cache.value(forKey: key) { [9] } == [UInt8(key)], "the parent's") }
          }
          require(patiently { cache.loads.counts(of: 1).waiters + cache.loads.counts(of: 2).waiters == 2 }, "both wait")
          // All that the child does was done here before: types are made under locks of the runtime.
          _ = cache.value(forKey: 3) { [3] }
          let childIsWell = childSays {
            isChild = true
            return cache.loads.counts(of: 1).waiters == 0
              && cache.value(forKey: 2) { [4] } == [4] && cache.peekValue(forKey: 2) == [4]
              && cache.value(forKey: 1) { [5] } == [5] && cache.peekValue(forKey: 1) == [5]
          }
          require(childIsWell, "the child loads what its parent was loading")
          return [1]
        }
        require(value == [1] && !isChild, "the parent's load")
        held.goesOn()
        require(held.join() == [2], "the other thread's")
        for thread in waiters { thread.join() }
        require(cache.peekValue(forKey: 1) == [1] && cache.peekValue(forKey: 2) == [2], "the parent keeps both")

        // The child comes out of the load that it was forked in.
        let child = Atomic<Int32>(-1)
        let result = cache.value(forKey: 7) {
          child.store(fork(), ordering: .relaxed)
          if child.load(ordering: .relaxed) == 0 {
            endAfter(seconds: 60)
            cache[7] = [70]
          }
          return [7]
        }
        if child.load(ordering: .relaxed) == 0 { _exit(result == [7] && cache.peekValue(forKey: 7) == [70] ? 0 : 1) }
        require(ChildEnd.of(child.load(ordering: .relaxed)) == .exited(0), "what the child stores stands")
        require(cache.peekValue(forKey: 7) == [7], "what the parent loaded is kept")
        for isOvertaken in [false, true] { Self.forkInGroup(cache, isOvertaken: isOvertaken) }
      }
    }
  }
}
