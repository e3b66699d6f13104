// SPDX-License-Identifier: MIT
// Loads on the asker's own thread: shared, not kept, overtaken, within each other, for many keys.

import Glibc
import PurgeableTestSupport
import Synchronization
import Testing
import ToolSupport

@testable import Purgeable

@Suite("loading on threads")
struct LoadingThreadTests {
  @Test("of threads that ask for a key at the same time, one loads and all get its value", arguments: CacheKind.allCases)
  func shared(_ kind: CacheKind) throws {
    let cache = try kind.make()
    let loads = LoadCounter()
    onThreads(6) { _ in
      let value = cache.value(forKey: 1) {
        loads.next()
        #expect(patiently { cache.loads.counts(of: 1).waiters == 5 })
        return [7]
      }
      #expect(value == [7])
    }
    #expect(loads.value == 1 && cache.peekValue(forKey: 1) == [7])
    let statistics = cache.statistics
    #expect(statistics.loadCount == 1 && statistics.loadFailureCount == 0 && statistics.sharedLoadCount == 5)
    #expect(statistics.loadTime > .zero)
  }

  @Test(
    "a load holds up no other key, not even one with the same hash, nor who looks up, stores or removes its own",
    arguments: CacheKind.allCases)
  func otherKeys(_ kind: CacheKind) throws {
    let cache = try kind.make(CollidingKey.self)
    let (one, two) = (CollidingKey(number: 1), CollidingKey(number: 2))
    let (began, isOver) = (Event(), Event())
    let thread = TestThread {
      let value = cache.value(forKey: one) {
        began.happens()
        isOver.blocks()
        return [1]
      }
      #expect(value == [1])
    }
    #expect(began.blocks())
    #expect(cache.value(forKey: two) { [2] } == [2])
    #expect(cache.value(forKey: one) == nil)
    cache.remove(forKey: two)
    #expect(cache.value(forKey: two) { [3] } == [3])
    isOver.happens()
    thread.join()
    // The other key's store and removal did not overtake.
    #expect(cache.peekValue(forKey: one) == [1] && cache.peekValue(forKey: two) == [3])
  }

  @Test("errors and nil are not kept, values are", arguments: CacheKind.allCases)
  func notKept(_ kind: CacheKind) throws {
    let cache = try kind.make(String.self)
    #expect(throws: LoadError(number: 1)) { try cache.value(forKey: "a") { () throws -> [UInt8] in throw LoadError(number: 1) } }
    #expect(cache.value(forKey: "a") { () -> [UInt8]? in nil } == nil)
    #expect(cache.peekValue(forKey: "a") == nil)
    #expect(cache.value(forKey: "a") { () -> [UInt8]? in [1] } == [1])
    #expect(cache.value(forKey: "a") { () -> [UInt8] in [2] } == [1])
    let statistics = cache.statistics
    #expect(statistics.loadCount == 3 && statistics.loadFailureCount == 1 && statistics.hitCount == 1)
  }

  @Test("an error goes to those who wait and could throw it; the others load by themselves", arguments: CacheKind.allCases)
  func errors(_ kind: CacheKind) throws {
    let cache = try kind.make()
    let began = Event()
    let first = TestThread {
      #expect(throws: LoadError(number: 1)) {
        try cache.value(forKey: 1) { () throws(LoadError) -> [UInt8] in
          began.happens()
          _ = patiently { cache.loads.counts(of: 1).waiters == 2 }
          throw LoadError(number: 1)
        }
      }
    }
    #expect(began.blocks())
    let second = TestThread {
      #expect(throws: LoadError(number: 1)) { try cache.value(forKey: 1) { () throws -> [UInt8] in throw LoadError(number: 2) } }
    }
    let third = TestThread { #expect(cache.value(forKey: 1) { [3] } == [3]) }
    for thread in [first, second, third] { thread.join() }
    #expect(cache.peekValue(forKey: 1) == [3])
    #expect(cache.statistics.sharedLoadCount == 1)
  }

  @Test("nil goes to those whose load may find nothing; the others load by themselves", arguments: CacheKind.allCases)
  func absence(_ kind: CacheKind) throws {
    let cache = try kind.make()
    let began = Event()
    let first = TestThread {
      let value = cache.value(forKey: 1) { () -> [UInt8]? in
        began.happens()
        _ = patiently { cache.loads.counts(of: 1).waiters == 2 }
        return nil
      }
      #expect(value == nil)
    }
    #expect(began.blocks())
    let loads = LoadCounter()
    let second = TestThread {
      let value = cache.value(forKey: 1) { () -> [UInt8]? in
        loads.next()
        return [9]
      }
      #expect(value == nil)
    }
    let third = TestThread { #expect(cache.value(forKey: 1) { () -> [UInt8] in [3] } == [3]) }
    for thread in [first, second, third] { thread.join() }
    #expect(loads.value == 0)
  }

  @Test("a load uses the cache, loads other keys, and asks for its own key without waiting", arguments: CacheKind.allCases)
  func within(_ kind: CacheKind) throws {
    let cache = try kind.make()
    let value = cache.value(forKey: 1) {
      let two = cache.value(forKey: 2) { cache.value(forKey: 1) { [1] } + [2] }
      cache.set([3], 3)
      return two + [4]
    }
    #expect(value == [1, 2, 4])
    // The inner load ended first, and is kept.
    #expect(cache.peekValue(forKey: 1) == [1] && cache.peekValue(forKey: 2) == [1, 2] && cache.peekValue(forKey: 3) == [3])
  }

  @Test("a value that was discarded is loaded again, and one that was evicted")
  func discarded() throws {
    try needRealDiscards()
    let cache = try PurgeableCache<UInt32, [UInt8]>()
    for key in 0..<UInt32(100) { #expect(cache.value(forKey: key) { described(key, version: 1, count: 5000) }.count == 5000) }
    cache.discardAll()
    for key in 0..<UInt32(100) {
      let value = cache.value(forKey: key) { described(key, version: 2, count: 5000) }
      #expect(versionDescribed(in: value, key: key) == 2)
    }
    cache.trim(toCount: 0)
    #expect(versionDescribed(in: cache.value(forKey: 1) { described(1, version: 3, count: 5000) }, key: 1) == 3)
  }

  @Test("what the cache cannot keep is returned")
  func unkept() throws {
    let cache = try PurgeableCache<Int, [UInt8]>(costLimit: 10)
    for round in 0..<3 { #expect(cache.value(forKey: 1) { [UInt8](repeating: UInt8(round), count: 20) }[0] == UInt8(round)) }
    #expect(cache.statistics.loadCount == 3 && cache.count == 0)
  }

  @Test("stores and removals during a load win over it, in any form of keys and for large values", arguments: Overtaker.allCases)
  func overtaken(_ overtaker: Overtaker) throws {
    func check<Key: Hashable & Sendable>(_ kind: CacheKind, _ key: Key) throws {
      let cache = try kind.make(Key.self)
      for byteCount in [1, 300 << 10] {
        cache.removeAll()
        let value = cache.value(forKey: key) {
          overtaker.act(on: cache, key)
          return [UInt8](repeating: 8, count: byteCount)
        }
        // Large values are not for messages.
        let isRight = value == [UInt8](repeating: 8, count: byteCount)
        let isLeft = cache.peekValue(forKey: key) == overtaker.left
        let isKept = cache.value(forKey: key) { [9] } == overtaker.left ?? [9]
        #expect(isRight && isLeft && isKept, "\(byteCount) bytes; what comes later is kept")
      }
      cache.checkTotals()
    }
    for kind in CacheKind.allCases {
      try check(kind, 1)
      try check(kind, "ä")
      try check(kind, EncodedKey(number: 1, note: "b"))
      try check(kind, StructKey(a: 1, b: "b"))
    }
  }

  @Test("a loaded value that is too large does not take away what was stored during the load", arguments: [20, 300 << 10])
  func tooLarge(byteCount: Int) throws {
    let cache = try PurgeableCache<Int, [UInt8]>(costLimit: 10)
    let value = cache.value(forKey: 1) {
      cache[1] = [1]
      return [UInt8](repeating: 2, count: byteCount)
    }
    let byteCounts = (value.count, cache.peekValue(forKey: 1)?.count)
    #expect(byteCounts == (byteCount, 1))
  }

  /// The setter knows that the load began, and stores or removes at any moment up to after its end.
  @Test("at whatever moment of a load's end a store or a removal comes, it wins", arguments: [1, 200 << 10], CacheKind.allCases)
  func race(byteCount: Int, _ kind: CacheKind) throws {
    let cache = try kind.make()
    let rounds = (byteCount == 1 ? 2000 : 400) / (TestRun.isFull ? 1 : 3) / slowness
    let begun = Atomic<Int>(0)
    let done = Atomic<Int>(0)
    let wrong = Atomic<Int>(0)
    let loaded = [UInt8](repeating: 9, count: byteCount)
    onThreads(2) { thread in
      for round in 1...rounds {
        if thread == 0 {
          _ = cache.value(forKey: round) {
            begun.store(round, ordering: .releasing)
            return loaded
          }
          done.store(round, ordering: .releasing)
          continue
        }
        while begun.load(ordering: .acquiring) < round { sched_yield() }
        for _ in 0..<round % 64 * (byteCount == 1 ? 4 : 200) { atomicMemoryFence(ordering: .sequentiallyConsistent) }
        if round % 2 == 0 { cache[round] = [1] } else { cache.remove(forKey: round) }
        while done.load(ordering: .acquiring) < round { sched_yield() }
        if cache.peekValue(forKey: round) != (round % 2 == 0 ? [1] : nil) { wrong.add(1, ordering: .relaxed) }
        cache.remove(forKey: round)
      }
    }
    #expect(wrong.load(ordering: .relaxed) == 0)
    cache.checkTotals()
  }

  /// Overtaken while the load waits for the mutex: a check outside of the mutex would have been made by then.
  @Test("whether a loaded value is kept is decided under the mutex of its shard", arguments: [1, 200 << 10], [false, true])
  func decidedUnderMutex(byteCount: Int, tracksKeys: Bool) throws {
    let cache = try PurgeableCache<Int, [UInt8]>(tracksKeys: tracksKeys)
    let (began, goes) = (Event(), Event())
    let thread = TestThread {
      _ = cache.value(forKey: 1) {
        began.happens()
        goes.blocks()
        return [UInt8](repeating: 9, count: byteCount)
      }
    }
    #expect(began.blocks())
    cache.engine.shards.hold(cache.engine.shards.founder) { _ in
      goes.happens()
      usleep(50_000)
      cache.loads.overtake(1)
    }
    thread.join()
    #expect(!cache.containsValue(forKey: 1))
    cache.checkBooks()
  }

  @Test("an asker that found nothing just before another's load ended does not load again")
  func secondLook() async {
    await #expect(processExitsWith: .success) {
      for kind in CacheKind.allCases {
        let cache = try kind.make(BusyHashKey.self)
        let key = BusyHashKey(number: 1)
        // After the miss, before the asker has its place.
        let skipped = kind == .bytes ? 0 : 1
        BusyHashKey.act(afterHashes: skipped) { require(cache.value(forKey: key) { [1] } == [1], "the other's load") }
        require(cache.value(forKey: key) { [2] } == [1], "the other's value")
        require(cache.statistics.loadCount == 1, "one load")
      }
    }
  }

  @Test("a load asks for its own key without waiting also where another thread loads the key since a removal")
  func ownKeyOvertaken() async {
    await #expect(processExitsWith: .success) {
      alarm(600)
      for kind in CacheKind.allCases {
        let cache = try kind.make()
        var later: HeldLoad?
        let value = cache.value(forKey: 1) {
          cache.remove(forKey: 1)
          later = HeldLoad(cache, 1, [2])
          require(later?.began.blocks() == true, "the other thread loads")
          return cache.value(forKey: 1) { [3] }
        }
        later?.goesOn()
        require(value == [3] && later?.join() == [2], "each its own")
      }
    }
  }

  @Test("who asks between the moment when a load is kept and its end waits for it; after a removal nobody does")
  func keptMeanwhile() async throws {
    let loads = LoadTable<Int>(refreshLimit: 1)
    func seat() -> LoadSeat { loads.join(TypedLoadedKey(1), 0, for: LoadCall(thread: nil), within: nil) }
    let first = seat()
    #expect(first.isOwn && first.flight.permit.take() && !seat().isOwn)
    loads.overtake(1)
    let second = seat()
    #expect(second.isOwn && !seat().isOwn)
    loads.end(first.flight, .success(1))
    #expect(second.flight.permit.take() && !seat().isOwn)
    loads.end(second.flight, .success(2))
    #expect(seat().isOwn)
  }

  @Test("a task's load is joined, however many loads of threads were kept meanwhile")
  func keptByOthers() {
    let loads = LoadTable<Int>(refreshLimit: 1)
    func seat(_ thread: pthread_t?) -> LoadSeat { loads.join(TypedLoadedKey(1), 0, for: LoadCall(thread: thread), within: nil) }
    let task = seat(nil)
    for _ in 0..<3 {
      let thread = seat(pthread_self())
      #expect(thread.isOwn && thread.flight.permit.take())
      loads.end(thread.flight, .success(1))
    }
    #expect(task.isOwn && !seat(nil).isOwn && !task.flight.permit.take())
    loads.end(task.flight, .success(2))
  }

  @Test("threads that go through the same keys at the same time load each once", arguments: CacheKind.allCases)
  func once(kind: CacheKind) throws {
    let cache = try kind.make()
    let loads = Atomic<Int>(0)
    let count = (TestRun.isFull ? 4000 : 1300) / slowness
    onThreads(4) { _ in
      for key in 0..<count {
        _ = cache.value(forKey: key) {
          loads.add(1, ordering: .relaxed)
          return [1]
        }
      }
    }
    #expect(loads.load(ordering: .relaxed) == count && cache.statistics.replacementCount == 0)
  }

  @Test("keys are compared under no mutex: a comparison may use the cache, and load")
  func userCode() async {
    await #expect(processExitsWith: .success) {
      for kind in CacheKind.allCases {
        let cache = try kind.make(BusyLoadKey.self)
        let value = cache.value(forKey: BusyLoadKey(number: 1)) {
          BusyLoadKey.manners.withLock {
            $0 = {
              cache.set([3], BusyLoadKey(number: 3))
              require(cache.value(forKey: BusyLoadKey(number: 4)) { [4] } == [4], "loaded within a comparison")
              cache.remove(forKey: BusyLoadKey(number: 3))
            }
          }
          return cache.value(forKey: BusyLoadKey(number: 2)) { [2] }
        }
        require(value == [2], "the outer load")
        require(BusyLoadKey.manners.withLock { $0 == nil }, "a comparison came")
      }
    }
  }

  /// Keys are compared after what runs outside of the mutex, and before what runs under it.
  @Test("what comes while the key of a loaded value is compared, the last moment before the mutex, wins")
  func decidedAfterComparison() async {
    await #expect(processExitsWith: .success) {
      for kind in CacheKind.allCases {
        let cache = try kind.make(BusyLoadKey.self)
        cache.set([1], BusyLoadKey(number: 1))
        let value = cache.value(forKey: BusyLoadKey(number: 2)) {
          BusyLoadKey.manners.withLock { $0 = { cache.remove(forKey: BusyLoadKey(number: 2)) } }
          return [2]
        }
        require(value == [2] && BusyLoadKey.manners.withLock { $0 == nil }, "a comparison came")
        require(cache.peekValue(forKey: BusyLoadKey(number: 2)) == nil, "the removal won")
        require(cache.peekValue(forKey: BusyLoadKey(number: 1)) == [1], "the other key")
      }
    }
  }

  // MARK: Many keys

  @Test(
    "many keys are loaded by one call, each once, in the order of the keys; those that are not found are nil",
    arguments: CacheKind.allCases)
  func many(_ kind: CacheKind) throws {
    let cache = try kind.make()
    cache[2] = [2]
    let asked = Mutex<[[Int]]>([])
    let values = cache.values(forKeys: [1, 2, 3, 1, 5, 4]) { missing in
      asked.withLock { $0.append(missing) }
      return [1: [1], 3: [3], 4: [4], 99: [99]]
    }
    #expect(values == [[1], [2], [3], [1], nil, [4]])
    #expect(asked.withLock { $0 } == [[1, 3, 5, 4]])
    #expect(cache.peekValue(forKey: 3) == [3] && cache.peekValue(forKey: 99) == nil && cache.peekValue(forKey: 5) == nil)
    #expect(cache.values(forKeys: [1, 2]) { _ in [:] } == [[1], [2]])
    #expect(cache.statistics.loadCount == 1)
    #expect(throws: LoadError()) { try cache.values(forKeys: [1, 7]) { _ throws(LoadError) in throw LoadError() } }
  }

  @Test(
    "a call for many keys waits for those that others load, and loads them itself where it cannot share their errors",
    arguments: CacheKind.allCases)
  func manyShared(_ kind: CacheKind) throws {
    let cache = try kind.make()
    let (one, two) = (Event(), Event())
    let first = TestThread {
      let value = cache.value(forKey: 1) {
        one.happens()
        _ = patiently { cache.loads.counts(of: 1).waiters == 1 }
        return [1]
      }
      #expect(value == [1])
    }
    let second = TestThread {
      #expect(throws: LoadError()) {
        try cache.value(forKey: 2) { () throws(LoadError) -> [UInt8] in
          two.happens()
          _ = patiently { cache.loads.counts(of: 2).waiters == 1 }
          throw LoadError()
        }
      }
    }
    #expect(one.blocks() && two.blocks())
    let asked = Mutex<[[Int]]>([])
    let values = cache.values(forKeys: [1, 2, 3]) { missing in
      asked.withLock { $0.append(missing) }
      return Dictionary(uniqueKeysWithValues: missing.map { ($0, [UInt8($0) + 10]) })
    }
    for thread in [first, second] { thread.join() }
    #expect(values == [[1], [12], [13]])
    #expect(asked.withLock { $0 } == [[3], [2]])
  }

  @Test("calls for many keys that want each other's do not block each other", arguments: CacheKind.allCases)
  func crossing(_ kind: CacheKind) throws {
    let cache = try kind.make(countLimit: 4)
    let seed = chosenSeed
    onThreads(4) { thread in
      var random = SplitMix64(seed: seed &+ UInt64(thread))
      for _ in 0..<(TestRun.isFull ? 1000 : 300) / slowness {
        let start = random.index(below: 12)
        let keys = (0..<6).map { (start + (thread % 2 == 0 ? $0 : 6 - $0)) % 12 }
        let values = cache.values(forKeys: keys) { missing in
          Dictionary(uniqueKeysWithValues: missing.map { ($0, [UInt8($0)]) })
        }
        #expect(values == keys.map { [UInt8($0)] })
      }
    }
  }

  @Test("who asks after a removal does not get what was being loaded before it", arguments: CacheKind.allCases)
  func askedAfterRemoval(_ kind: CacheKind) throws {
    let cache = try kind.make()
    let held = HeldLoad(cache, 1, [1])
    #expect(held.began.blocks())
    cache.remove(forKey: 1)
    #expect(cache.value(forKey: 1) { [2] } == [2])
    held.goesOn()
    #expect(held.join() == [1], "its own")
    #expect(cache.value(forKey: 1) { [3] } == [2], "the newer one is kept")
  }
}
