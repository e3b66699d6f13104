// SPDX-License-Identifier: MIT
// What changed, at intervals; and deciders at intervals. For caches of bytes and of objects alike.

import Dispatch
import Glibc
import PurgeableTestSupport
import Synchronization
import Testing
import ToolSupport

@testable import Purgeable

/// What the tests need of a cache of either kind.
private protocol Watchable: AnyObject, Sendable {
  subscript(key: Int) -> [UInt8]? { get set }
  func refuse(_ key: Int)
  @discardableResult func remove(forKey key: Int) -> Bool
  func removeAll()
  func containsValue(forKey key: Int) -> Bool
  func changes(every interval: Duration) throws(PurgeableError) -> AsyncStream<CacheChanges<Int>>
  func setChangeHandler(every interval: Duration, _ handler: @escaping @Sendable (CacheChanges<Int>) -> Void)
    throws(PurgeableError)
  func removeChangeHandler()
  func deliverChanges()
  func setEvictionDecider(
    every interval: Duration, _ isEvictable: @escaping @Sendable (CacheEntry<Int, [UInt8]>) -> Bool
  ) throws(PurgeableError)
  func removeEvictionDecider()
  var statistics: CacheStatistics { get }
}

extension Watchable {
  func set(_ key: Int) { self[key] = [UInt8](repeating: UInt8(truncatingIfNeeded: key), count: 50) }
  func remove(_ key: Int) { remove(forKey: key) }
  func contains(_ key: Int) -> Bool { containsValue(forKey: key) }
  var deciderDepartures: Int { statistics.departures[.decider] ?? 0 }
}

extension PurgeableCache: Watchable where Key == Int, Value == [UInt8] {
  fileprivate func refuse(_ key: Int) {
    #expect(setValue([], forKey: key, cost: 1 << 21) == .tooLarge)
    #expect(setValue([], forKey: key, expiry: .sinceCreation(.zero)) == .expired)
  }
}

extension ObjectCache: Watchable where Key == Int, Value == [UInt8] {
  fileprivate func refuse(_ key: Int) {
    #expect(setValue([], forKey: key, cost: 1 << 21) == .tooLarge)
    #expect(setValue([], forKey: key, expiry: .sinceCreation(.zero)) == .expired)
  }
}

/// Changes as they were told, one after the other.
final class ToldChanges: Sendable {
  private let changes = Mutex<[CacheChanges<Int>]>([])
  func note(_ change: CacheChanges<Int>) { changes.withLock { $0.append(change) } }
  /// Since the last time.
  func take() -> [CacheChanges<Int>] {
    changes.withLock { changes in
      defer { changes = [] }
      return changes
    }
  }
}

@Suite("cache: changes and deciders")
struct CacheChangesTests {
  private static let never = Duration.seconds(100_000)

  private static func each(countLimit: Int? = nil) throws -> [any Watchable] {
    [
      try PurgeableCache<Int, [UInt8]>(countLimit: countLimit, costLimit: 1 << 20, tracksKeys: true),
      try ObjectCache<Int, [UInt8]>(countLimit: countLimit, costLimit: 1 << 20),
    ]
  }

  private func change(_ updated: Set<Int>, _ removed: Set<Int>) -> CacheChanges<Int> {
    CacheChanges(updatedKeys: updated, removedKeys: removed)
  }

  @Test("the net difference: set and removed is removed, removed and set is updated, never stored is neither, nothing is nothing")
  func net() throws {
    for cache in try Self.each() {
      for key in 0..<4 { cache.set(key) }
      let told = ToldChanges()
      try cache.setChangeHandler(every: Self.never) { told.note($0) }
      cache.deliverChanges()
      #expect(told.take() == [])
      cache.set(10)
      cache.set(11)
      cache.remove(11)
      cache.remove(0)
      cache.remove(1)
      cache.set(1)
      cache.set(2)
      cache.remove(99)
      cache.refuse(98)
      cache.refuse(3)
      cache.deliverChanges()
      #expect(told.take() == [change([10, 1, 2], [11, 0, 3])])
      cache.deliverChanges()
      #expect(told.take() == [])
      cache.removeAll()
      cache.set(5)
      cache.deliverChanges()
      #expect(told.take() == [change([5], [10, 1, 2])])
      // Set again, it forgets what is pending; removed, it is not called.
      cache.set(6)
      try cache.setChangeHandler(every: Self.never) { told.note($0) }
      cache.set(7)
      cache.deliverChanges()
      #expect(told.take() == [change([7], [])])
      cache.set(8)
      cache.removeChangeHandler()
      cache.deliverChanges()
      #expect(told.take() == [])
    }
  }

  @Test("objects: what expired or was discarded is told once, also by the telling itself, and is gone then")
  func deadObjects() throws {
    let clock = ManualClock()
    var options = CacheOptions()
    (options.clock, options.expiry) = (clock, .sinceCreation(.seconds(10)))
    let cache = try ObjectCache<Int, PurgeableData>(options)
    cache.staysAlone()
    let told = ToldChanges()
    try cache.setChangeHandler(every: Self.never) { told.note($0) }
    let contents = try (0..<5).map { try PurgeableData([UInt8($0)]) }
    for content in contents { content.endContentAccess() }
    for key in 0..<3 { cache[key] = contents[key] }
    clock.advance(by: .seconds(10))
    (cache[3], cache[4]) = (contents[3], contents[4])
    contents[4].discardContentIfPossible()
    cache.deliverChanges()
    #expect(told.take() == [change([3], [0, 1, 2, 4])])
    #expect(cache.count == 1)
    cache.removeExpired()
    try contents[4].refill(with: [4])
    cache.deliverChanges()
    #expect(told.take() == [] && !cache.containsValue(forKey: 4))
  }

  @Test("while a handler is at work, what is pending is bounded by the keys, and all of it is told afterwards")
  func slowHandler() throws {
    let cache = try ObjectCache<Int, Int>()
    let (told, begun, goesOn) = (ToldChanges(), DispatchSemaphore(value: 0), DispatchSemaphore(value: 0))
    try cache.setChangeHandler(every: Self.never) {
      told.note($0)
      begun.signal()
      goesOn.wait()
    }
    cache[0] = 0
    let teller = TestThread { cache.deliverChanges() }
    #expect(begun.comes())
    for round in 0..<100_000 { cache[round % 3] = round }
    let pendingCount = cache.store.lazyBoard.load()?.pendingCount ?? .max
    #expect(pendingCount < 10_000)
    goesOn.signal()
    teller.join()
    goesOn.signal()
    cache.deliverChanges()
    #expect(told.take() == [change([0], []), change([0, 1, 2], [])])
  }

  @Test("what expired or was lost is told once, when it is found, also by the telling itself")
  func dead() throws {
    try needRealDiscards()
    let clock = ManualClock()
    var options = CacheOptions()
    (options.clock, options.tracksKeys, options.expiry) = (clock, true, .sinceCreation(.seconds(10)))
    let cache = try PurgeableCache<Int, [UInt8]>(options)
    let told = ToldChanges()
    try cache.setChangeHandler(every: Self.never) { told.note($0) }
    for key in 0..<3 { cache[key] = [1] }
    clock.advance(by: .seconds(10))
    cache[3] = [3]
    cache.deliverChanges()
    #expect(told.take() == [change([3], [0, 1, 2])])
    cache.removeExpired()
    cache.deliverChanges()
    #expect(told.take() == [])
    clock.advance(by: .seconds(10))
    #expect(cache[3] == nil)
    cache.deliverChanges()
    #expect(told.take() == [change([], [3])])
    for key in 0..<100 { cache.setValue([UInt8](repeating: 1, count: 4000), forKey: key, expiry: .never) }
    cache.deliverChanges()
    #expect(told.take().count == 1)
    cache.discardAll()
    cache[1] = [7]
    cache.deliverChanges()
    cache.sweep()
    cache.deliverChanges()
    let changes = told.take()
    #expect(changes.reduce(0) { $0 + $1.removedKeys.count } == 99 && changes.first?.updatedKeys == [1])
  }

  @Test("what limits evict is told; each key once, however often it is stored")
  func evicted() throws {
    for cache in try Self.each(countLimit: 10) {
      let told = ToldChanges()
      try cache.setChangeHandler(every: Self.never) { told.note($0) }
      for round in 0..<(TestRun.isFull ? 200 : 60) { for key in 0..<100 { cache.set(key + round % 2 * 1000) } }
      cache.deliverChanges()
      let changes = told.take()
      #expect(changes.count == 1)
      #expect(changes.first?.updatedKeys.count == 10)
      #expect(changes.first?.updatedKeys.allSatisfy { cache.contains($0) } == true)
      #expect(changes.first?.removedKeys.count == 190)
    }
  }

  @Test("at the interval, on a thread of the cache's own, only where something changed")
  func interval() throws {
    for cache in try Self.each() {
      let told = ToldChanges()
      let calls = DispatchSemaphore(value: 0)
      let thread = Mutex<UInt>(0)
      try cache.setChangeHandler(every: .milliseconds(5)) { change in
        thread.withLock { $0 = UInt(pthread_self()) }
        told.note(change)
        calls.signal()
      }
      cache.set(1)
      #expect(calls.comes())
      #expect(told.take() == [change([1], [])])
      #expect(thread.withLock { $0 } != UInt(pthread_self()))
      cache.remove(1)
      #expect(calls.comes())
      #expect(told.take() == [change([], [1])])
    }
  }

  @Test("a sequence gets what comes, the sum where it is slow, and ends with the cache")
  func sequence() async throws {
    for kind in 0..<2 {
      var cache: (any Watchable)? = try Self.each()[kind]
      let sequence = try #require(try cache?.changes(every: Self.never))
      let second = try #require(try cache?.changes(every: Self.never))
      var iterator = sequence.makeAsyncIterator()
      cache?.set(1)
      cache?.deliverChanges()
      #expect(await iterator.next() == change([1], []))
      // Slow: what it has not taken is summed up.
      cache?.set(2)
      cache?.deliverChanges()
      for key in 3..<9 {
        cache?.set(key)
        cache?.deliverChanges()
        cache?.remove(key - 1)
        cache?.deliverChanges()
      }
      #expect(await iterator.next() == change([8], [2, 3, 4, 5, 6, 7]))
      // Two are told of the same, each for itself.
      var other = second.makeAsyncIterator()
      #expect(await other.next() == change([1, 8], [2, 3, 4, 5, 6, 7]))
      cache = nil
      #expect(await iterator.next() == nil)
    }
  }

  @Test("no key is noted any more for a sequence that is let go, or whose task is cancelled")
  func sequenceEnds() async throws {
    let cache = try ObjectCache<Int, Int>()
    var sequence: AsyncStream<CacheChanges<Int>>? = try cache.changes(every: Self.never)
    let lazyBoard = cache.store.lazyBoard.load()
    let board = try #require(lazyBoard)
    cache[1] = 1
    #expect(sequence != nil && board.isWatched)
    sequence = nil
    #expect(!board.isWatched)
    let (begun, begin) = AsyncStream.makeStream(of: Void.self)
    let changes = try cache.changes(every: Self.never)
    let task = Task {
      var count = 0
      for await change in changes {
        count += change.updatedKeys.count
        begin.yield()
      }
      return count
    }
    cache[2] = 2
    cache.deliverChanges()
    var iterator = begun.makeAsyncIterator()
    await iterator.next()
    #expect(board.isWatched)
    task.cancel()
    #expect(await task.value == 1)
    #expect(!board.isWatched)
  }

  @Test("a handler may store, set handlers and deliver; who delivers beside it waits until it has returned")
  func nested() throws {
    for cache in try Self.each() {
      let told = ToldChanges()
      let inside = Atomic<Bool>(false)
      try cache.setChangeHandler(every: Self.never) { [weak cache] change in
        told.note(change)
        inside.store(true, ordering: .releasing)
        guard change.updatedKeys.contains(1) else { return }
        cache?.set(2)
        cache?.deliverChanges()
        usleep(20_000)
        told.note(self.change([], [-1]))
      }
      cache.set(1)
      onThreads(2) { thread in
        if thread == 1 { while !inside.load(ordering: .acquiring) { usleep(100) } }
        cache.deliverChanges()
        if thread == 1 { told.note(self.change([-2], [])) }
      }
      #expect(told.take() == [change([1], []), change([2], []), change([], [-1]), change([-2], [])])
    }
  }

  @Test("what a thread has stored has been told when its delivery returns, also while others' keys are sorted out")
  func delivered() throws {
    for cache in try Self.each() {
      let told = Mutex<Set<Int>>([])
      try cache.setChangeHandler(every: Self.never) { change in told.withLock { $0.formUnion(change.updatedKeys) } }
      let isDone = Atomic<Bool>(false)
      onThreads(2) { thread in
        if thread == 1 {
          var key = 0
          while !isDone.load(ordering: .relaxed) {
            cache.set(1_000_000 + key % 6000)
            key += 1
          }
          return
        }
        for key in 0..<(TestRun.isFull ? 60 : 15) {
          cache.set(key)
          usleep(useconds_t(100 * (key % 20)))
          cache.deliverChanges()
          #expect(told.withLock { $0.contains(key) })
        }
        isDone.store(true, ordering: .relaxed)
      }
    }
  }

  @Test("beside threads that store and remove, the sums of what was told are what is there")
  func threads() throws {
    for cache in try Self.each(countLimit: 300) {
      let known = Mutex<Set<Int>>([])
      try cache.setChangeHandler(every: .milliseconds(1)) { change in
        known.withLock { $0 = $0.union(change.updatedKeys).subtracting(change.removedKeys) }
      }
      onThreads(4) { thread in
        var random = SplitMix64(seed: UInt64(thread))
        for _ in 0..<(TestRun.isFull ? 5000 : 1500) / slowness {
          let key = Int(random.next() % 1000)
          if random.next() % 4 == 0 { cache.remove(key) } else { cache.set(key) }
        }
      }
      cache.deliverChanges()
      let there = Set((0..<1000).filter { cache.contains($0) })
      #expect(known.withLock { $0 } == there)
    }
  }

  // MARK: Deciders

  @Test("a decider evicts what it says, each interval; set again it is replaced, removed it rests; it does not keep the cache")
  func decider() throws {
    for kind in 0..<2 {
      var cache: (any Watchable)? = try Self.each()[kind]
      for key in 0..<100 { cache?.set(key) }
      let rounds = DispatchSemaphore(value: 0)
      try cache?.setEvictionDecider(every: .milliseconds(2)) { entry in
        let key = entry.key
        if key == 1 { rounds.signal() }
        return key % 2 == 0
      }
      for _ in 0..<3 { #expect(rounds.comes()) }
      #expect((0..<100).allSatisfy { cache?.contains($0) == ($0 % 2 == 1) })
      #expect(cache?.deciderDepartures == 50)
      // Its own: the first decider may have signalled more than was waited for.
      let laterRounds = DispatchSemaphore(value: 0)
      try cache?.setEvictionDecider(every: .milliseconds(2)) { entry in
        let key = entry.key
        if key == 1 { laterRounds.signal() }
        return key % 3 == 0
      }
      for _ in 0..<3 { #expect(laterRounds.comes()) }
      cache?.set(2)
      for _ in 0..<3 { #expect(laterRounds.comes()) }
      #expect(cache?.contains(2) == true && cache?.contains(9) == false)
      cache?.removeEvictionDecider()
      cache?.set(9)
      usleep(20_000)
      #expect(cache?.contains(9) == true)
      try cache?.setEvictionDecider(every: .milliseconds(1)) { _ in false }
      weak let left = cache
      cache = nil
      for _ in 0..<12_000 where left != nil { usleep(10_000) }
      #expect(left == nil)
    }
  }

  @Test("a decider that is taken away, or replaced, in the middle of its pass is asked no more")
  func takenAway() throws {
    for kind in 0..<2 {
      for replaces in [false, true] {
        let cache = try Self.each()[kind]
        for key in 0..<100 { cache.set(key) }
        let calls = Atomic<Int>(0)
        let ended = DispatchSemaphore(value: 0)
        try cache.setEvictionDecider(every: .nanoseconds(1)) { [weak cache] _ in
          if calls.add(1, ordering: .relaxed).newValue == 10 {
            if replaces {
              try? cache?.setEvictionDecider(every: Self.never) { _ in true }
            } else {
              cache?.removeEvictionDecider()
            }
            ended.signal()
          }
          return true
        }
        #expect(ended.comes())
        // The pass goes on, and asks nobody: the ninety are there when the next one would have come.
        usleep(20_000)
        #expect(calls.load(ordering: .relaxed) == 10 && (0..<100).count { cache.contains($0) } == 90)
      }
    }
  }

  @Test("an interval of 0 or less is refused by name, and changes nothing; changes need tracked keys")
  func refused() throws {
    for cache in try Self.each() {
      let told = ToldChanges()
      try cache.setChangeHandler(every: Self.never) { told.note($0) }
      for interval in [Duration.zero, .seconds(-1)] {
        for body in [
          { try cache.setEvictionDecider(every: interval) { _ in true } }, { _ = try cache.changes(every: interval) },
          { try cache.setChangeHandler(every: interval) { _ in } },
        ] as [() throws -> Void] {
          let error = #expect(throws: PurgeableError.self) { try body() }
          #expect(error?.kind == .invalidArgument("interval"))
        }
      }
      cache.set(1)
      cache.deliverChanges()
      #expect(told.take() == [change([1], [])])
    }
    let untracked = try PurgeableCache<Int, Int>()
    #expect(throws: PurgeableError.self) { _ = try untracked.changes(every: .seconds(1)) }
    let error = #expect(throws: PurgeableError.self) { try untracked.setChangeHandler(every: .seconds(1)) { _ in } }
    #expect(error?.kind == .notSupported)
    untracked.removeChangeHandler()
    untracked.deliverChanges()
    untracked.removeEvictionDecider()
  }
}
