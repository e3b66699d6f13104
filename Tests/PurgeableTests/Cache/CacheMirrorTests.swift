// SPDX-License-Identifier: MIT
// A list of a cache's keys: kept by departures alone it goes wrong, kept by asking the cache it does not.

import Glibc
import PurgeableTestSupport
import Synchronization
import Testing
import ToolSupport

@testable import Purgeable

/// The example at `onDeparture`.
private final class ListedCache: Sendable {
  // Not Mutex, in which the thread sanitizer does not see one thread come after another.
  private let keys = Guarded<Set<Int>>([])
  private let itself = Mutex<PurgeableCache<Int, Int>?>(nil)
  /// Waits a little between a change and its note, like a thread that loses its processor.
  private let pause: @Sendable () -> Void

  var cache: PurgeableCache<Int, Int> { itself.withLock { $0! } }
  var list: Set<Int> { keys.withLock { $0 } }

  init(pause: @escaping @Sendable () -> Void) throws {
    self.pause = pause
    let cache = try PurgeableCache<Int, Int> { [weak self] departure in
      pause()
      self?.note(departure.key)
    }
    itself.withLock { $0 = cache }
  }

  func set(_ value: Int, forKey key: Int) {
    cache[key] = value
    pause()
    note(key)
  }

  /// The last call is right: all changes of the key before it have happened, and each change after it calls again.
  private func note(_ key: Int) {
    keys.withLock { keys in
      if cache.containsValue(forKey: key) { keys.insert(key) } else { keys.remove(key) }
    }
  }
}

/// Runs `body` in the role of the library's thread, on a thread of the test.
private func asLibrary(_ body: @escaping @Sendable () -> Void) {
  TestThread {
    ThreadRole.enterLibrary()
    body()
  }.join()
}

@Suite("PurgeableCache, a list of keys", .serialized)
struct CacheMirrorTests {
  private static func yieldSometimes() { if Chance.comes(onceIn: 3) { sched_yield() } }

  private let rounds = (TestRun.isFull ? 20_000 : 1000) / slowness

  @Test("one that asks the cache agrees after every round")
  func asking() throws {
    let listed = try ListedCache { Self.yieldSometimes() }
    var disagreements = 0
    for round in 0..<rounds {
      let other = TestThread {
        // Now and then in the library's role, so that departures are told on a third thread.
        if round % 100 == 0 { asLibrary { listed.cache.removeAll() } } else { listed.cache.remove(forKey: 1) }
      }
      listed.set(round, forKey: 1)
      other.join()
      if round % 100 == 0 { #expect(patiently { listed.cache.teller!.waiting.withLock { $0.teller == 0 } }) }
      if listed.cache.containsValue(forKey: 1) != listed.list.contains(1) { disagreements += 1 }
    }
    #expect(disagreements == 0, "seed \(chosenSeed)")
  }

  @Test("one that goes by what it hears disagrees: the rounds are hard enough", .fullRun)
  func hearing() throws {
    let keys = Guarded<Set<Int>>([])
    let cache = try PurgeableCache<Int, Int> { departure in
      Self.yieldSometimes()
      if departure.reason != .replaced { keys.withLock { _ = $0.remove(departure.key) } }
    }
    var disagreements = 0
    for round in 0..<rounds {
      let other = TestThread { cache.remove(forKey: 1) }
      cache[1] = round
      Self.yieldSometimes()
      keys.withLock { _ = $0.insert(1) }
      other.join()
      if cache.containsValue(forKey: 1) != keys.withLock({ $0.contains(1) }) { disagreements += 1 }
    }
    #expect(disagreements > 0)
  }
}
