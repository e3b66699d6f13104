// SPDX-License-Identifier: MIT
// All at once: keys that use the cache, handlers that use the cache, discards, the library's own work, forks.

import Glibc
import PurgeableTestSupport
import Synchronization
import Testing
import ToolSupport

@testable import Purgeable

/// A key that is slow now and then, looks into the cache now and then, and has few different hashes.
private final class StormKey: Hashable, Sendable {
  static let cache = Mutex<PurgeableCache<StormKey, Int>?>(nil)
  static let ends = Atomic<Int>(0)
  static let makes = Atomic<Int>(0)
  let number: Int

  init(_ number: Int) {
    self.number = number
    Self.makes.add(1, ordering: .relaxed)
  }

  deinit {
    Self.ends.add(1, ordering: .relaxed)
    if number % 97 == 0 { _ = Self.cache.withLock { $0 }?.count }
  }

  private static func look(_ number: Int) {
    guard number < 1000, Chance.comes(onceIn: 40), let cache = cache.withLock({ $0 }) else { return }
    _ = cache.byteCount
    _ = cache[StormKey(1000 + number % 50)]
    if number % 8 == 0 { usleep(50) }
  }

  static func == (left: StormKey, right: StormKey) -> Bool {
    look(left.number)
    return left.number == right.number
  }

  func hash(into hasher: inout Hasher) {
    Self.look(number)
    hasher.combine(number % 61)
  }
}

@Suite("PurgeableCache, code of the program, stormed", .serialized)
struct CacheUserCodeStormTests {
  @Test("what was stored is there or was told once, and a list of keys agrees, whatever keys and handlers do", .forks)
  func storm() async throws {
    try needRealDiscards()
    await #expect(processExitsWith: .success) {
      alarm(900)
      let list = Mutex<Set<Int>>([])
      let told = Mutex<[Int: Int]>([:])
      let stored = Atomic<Int>(0)
      let isChild = Atomic<Bool>(false)
      let cache = try PurgeableCache<StormKey, Int>(countLimit: 500) { departure in
        // Each cost is stored only once, so it names the store.
        told.withLock { $0[Int(departure.cost), default: 0] += 1 }
        if isChild.load(ordering: .relaxed) { return }
        guard let cache = StormKey.cache.withLock({ $0 }) else { return }
        let key = departure.key
        list.withLock { list in
          if cache.containsValue(forKey: key) { list.insert(key.number) } else { list.remove(key.number) }
        }
        switch Int(departure.cost) % 50 {
        case 0: _ = cache[key]
        case 1: cache.remove(forKey: StormKey(key.number + 1))
        case 2: usleep(100)
        default: break
        }
      }
      StormKey.cache.withLock { $0 = cache }
      let isOver = Atomic<Bool>(false)
      let library = TestThread {
        ThreadRole.enterLibrary()
        var round = 0
        while !isOver.load(ordering: .relaxed) {
          round += 1
          if round % 3 == 0 { cache.discardOffered() }
          if round % 5 == 0 { cache.sweep() }
          if round % 7 == 0 { cache.trim(toCount: 300) }
          usleep(2000)
        }
      }
      onThreads(4) { thread in
        var random = SplitMix64(seed: chosenSeed &+ UInt64(thread))
        for round in 0..<(TestRun.isFull ? 3000 : 300) {
          let key = StormKey(random.index(below: 900))
          switch random.index(below: 8) {
          case 0: cache.remove(forKey: key)
          case 1: _ = cache.withBytes(forKey: key) { $0.byteCount }
          case 2, 3: _ = cache[key]
          default:
            let cost = stored.add(1, ordering: .relaxed).newValue
            cache.setValue(cost, forKey: key, cost: cost)
            list.withLock { list in
              if cache.containsValue(forKey: key) { list.insert(key.number) } else { list.remove(key.number) }
            }
          }
          // A fork beside threads that are in the runtime may hang in the child (`childSays`).
          if TestRun.isFull, thread == 0, round % 500 == 250 {
            let isWell = childSays {
              isChild.store(true, ordering: .relaxed)
              for number in 2000..<2100 { cache.setValue(number, forKey: StormKey(number)) }
              return (2000..<2100).allSatisfy { cache[StormKey($0)] == $0 }
            }
            require(isWell, "a child")
          }
        }
      }
      isOver.store(true, ordering: .relaxed)
      library.join()
      require(patiently { cache.teller!.waiting.withLock { $0.teller == 0 && $0.list.isEmpty } }, "not all was told")
      cache.sweep()
      cache.checkBooksSwept()
      let left = cache.count
      let times = told.withLock { $0 }
      require(times.values.allSatisfy { $0 == 1 }, "told twice")
      let all = stored.load(ordering: .relaxed)
      require(times.count + left == all, "\(times.count) told and \(left) left of \(all) stored; PURGEABLE_SEED=\(chosenSeed)")
      let there = Set((0..<1000).filter { cache.containsValue(forKey: StormKey($0)) })
      require(there.count == left, "\(there.count) of \(left) found")
      require(list.withLock { $0 } == there, "the list")
      cache.removeAll()
      require(cache.keyCounts == (0, 0), "keys are left")
      require(cache.teller!.copiedByteCount.load(ordering: .relaxed) == 0, "copies are left")
      StormKey.cache.withLock { $0 = nil }
      require(StormKey.ends.load(ordering: .relaxed) >= StormKey.makes.load(ordering: .relaxed) - 200, "keys leak")
    }
  }
}
