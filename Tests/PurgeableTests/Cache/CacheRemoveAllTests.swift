// SPDX-License-Identifier: MIT
// removeAll of untracked keys takes whole slabs: what is locked, lost, large, being read or stored meanwhile.

import Synchronization
import Testing

@testable import Purgeable

private final class Counts: Sendable {
  let wrong = Atomic<Int>(0)
  let isDone = Atomic<Bool>(false)
}

@Suite("PurgeableCache, removeAll")
struct CacheRemoveAllTests {
  @Test("small and large entries, read ones and lost ones: all go, and so does their memory", arguments: [false, true])
  func all(byCost: Bool) throws {
    let cache = try PurgeableCache<Int, [UInt8]>(costLimit: byCost ? .max : nil)
    for round in 0..<3 {
      for key in 0..<3000 { cache[key] = pattern(key % 500 == 0 ? 300_000 : 10 + key % 3000) }
      for key in 0..<1000 { #expect(cache[key] != nil) }
      if round == 1 {
        cache.offerIdle()
        cache.discardEveryThirdPage()
      }
      let before = cache.statistics
      cache.removeAll()
      #expect(cache.count == 0 && cache.totalCost == 0)
      let after = cache.statistics
      #expect(after.memory.heldBytes == 0 && after.memory.payloadBytes == 0)
      let left = after.departures.values.reduce(0, +) - before.departures.values.reduce(0, +)
      #expect(left == before.insertionCount - before.departures.values.reduce(0, +))
      for key in 0..<3000 { #expect(cache.lookUpValue(forKey: key).missReason == .unknown) }
      cache.checkBooksSwept()
    }
  }

  @Test("bytes that are locked stay right until the lock ends, and go then", arguments: [100, 300_000])
  func locked(byteCount: Int) throws {
    let cache = try PurgeableCache<Int, [UInt8]>()
    for key in 0..<100 { cache[key] = pattern(byteCount) }
    let wasRight = cache.withBytes(forKey: 50) { span in
      cache.removeAll()
      #expect(cache.count == 0 && cache.value(forKey: 50) == nil && cache.statistics.memory.heldBytes > 0)
      for key in 0..<100 { cache[key] = pattern(byteCount + 1) }
      cache.removeAll()
      return unsafe span.withUnsafeBytes { bytes in unsafe bytes.elementsEqual(pattern(byteCount)) }
    }
    #expect(wasRight == true)
    #expect(cache.statistics.memory.heldBytes == 0)
    cache.checkBooksSwept()
  }

  @Test("a store at the byte limit takes the memory of entries that are being removed, and no living one's")
  func storeMeanwhile() throws {
    let cache = try PurgeableCache<Int, [UInt8]>(byteLimit: 4 << 20)
    let engine = cache.engine
    for key in 0..<2000 { cache[key] = pattern(2000) }
    // As in the middle of removeAll, after the shards' mutexes were released.
    engine.base.removalCount.add(1, ordering: .relaxed)
    for shard in engine.shards.all { engine.shards.hold(shard) { held in held.detachAll(.removed) } }
    #expect(cache.count == 0 && engine.heap.heldBytes > 3 << 20)
    for key in 5000..<6500 { #expect(cache.setValue(pattern(2000), forKey: key) == .stored) }
    #expect(cache.count == 1500 && cache.byteCount <= 4 << 20)
    for key in 5000..<6500 { #expect(cache.peekValue(forKey: key) == pattern(2000)) }
    engine.base.giveBackRemoved()
    engine.base.removalCount.subtract(1, ordering: .relaxed)
    #expect(engine.heap.oldest(of: engine.heap.removedStream) == nil)
    cache.checkBooksSwept()
  }

  @Test("beside readers, stores and other removals no value is another key's, and all is gone in the end")
  func beside() throws {
    let cache = try PurgeableCache<Int, [UInt8]>()
    let counts = Counts()
    onThreads(5) { thread in
      if thread == 4 {
        for _ in 0..<300 { cache.removeAll() }
        counts.isDone.store(true, ordering: .relaxed)
      }
      var key = thread
      while !counts.isDone.load(ordering: .relaxed) {
        key = (key &* 31 &+ 7) % 6000
        let byteCount = 16 + key % 700
        if thread < 2 {
          cache.setValue(pattern(byteCount, seed: UInt8(key % 251)), forKey: key)
        } else if thread == 2, key % 500 == 0 {
          cache.removeAll()
        } else if let value = cache.value(forKey: key), value != pattern(byteCount, seed: UInt8(key % 251)) {
          counts.wrong.add(1, ordering: .relaxed)
        }
      }
    }
    #expect(counts.wrong.load(ordering: .relaxed) == 0)
    cache.removeAll()
    #expect(cache.count == 0 && cache.statistics.memory.heldBytes == 0)
    cache.checkBooksSwept()
  }
}

extension Lookup {
  fileprivate var missReason: MissReason? {
    if case .miss(let reason) = self { return reason }
    return nil
  }
}
