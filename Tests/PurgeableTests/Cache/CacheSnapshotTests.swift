// SPDX-License-Identifier: MIT
// Snapshots: all entries as they were at one moment, beside a thread that stores.

import PurgeableTestSupport
import Synchronization
import Testing

@testable import Purgeable

@Suite("Cache: snapshots")
struct CacheSnapshotTests {
  @Test("a snapshot has no store without the one before it", arguments: [false, true])
  func moment(tracksKeys: Bool) throws {
    let cache = try PurgeableCache<Int, Int>(tracksKeys: tracksKeys)
    cache.openEarly(count: 500)
    for key in 0..<2000 { cache[key] = 0 }
    #expect(cache.isOpen)
    checkMoments(count: TestRun.isFull ? 30 : 12) {
      cache[$0] = $1
    } snapshot: {
      cache.snapshot()
    }
  }

  @Test("a snapshot of objects has no store without the one before it")
  func momentOfObjects() throws {
    let cache = try ObjectCache<Int, Int>()
    for key in 0..<2000 { cache[key] = 0 }
    checkMoments(count: TestRun.isFull ? 100 : 30) {
      cache[$0] = $1
    } snapshot: {
      cache.snapshot()
    }
  }

  /// Of 2,000 keys, which a thread stores over and over in the order of their numbers.
  private func checkMoments(
    count: Int, _ store: @escaping @Sendable (_ key: Int, _ round: Int) -> Void, snapshot: @escaping @Sendable () -> [Int: Int]
  ) {
    let isDone = Atomic<Bool>(false)
    let failures = Atomic<Int>(0)
    onThreads(2) { thread in
      if thread == 1 {
        var round = 1
        while !isDone.load(ordering: .acquiring) {
          for key in 0..<2000 { store(key, round) }
          round += 1
        }
        return
      }
      for _ in 0..<count {
        let all = snapshot()
        // A prefix has the newest round, and the rest the one before it.
        let isMoment = all.count == 2000 && (1..<2000).allSatisfy { all[$0]! <= all[$0 - 1]! } && all[0]! - all[1999]! <= 1
        if !isMoment { failures.add(1, ordering: .relaxed) }
      }
      isDone.store(true, ordering: .releasing)
    }
    #expect(failures.load(ordering: .relaxed) == 0)
  }
}
