// SPDX-License-Identifier: MIT
// Every call of the cache: normal, edge, bad input.

import Glibc
import PurgeableTestSupport
import Synchronization
import Testing
import ToolSupport

@testable import Purgeable

@Suite("PurgeableCache, call by call")
struct CacheCallsTests {
  @Test(
    "gives back what was stored, byte for byte", arguments: [0, 1, 7, 8, 100, 1000, 1023, 1024, 1025, 5000, 70_000, 1_000_000])
  func storing(count: Int) throws {
    let cache = try PurgeableCache<String, [UInt8]>()
    #expect(cache.setValue(pattern(count), forKey: "a") == .stored)
    #expect(cache.value(forKey: "a") == pattern(count))
    #expect(cache["a"] == pattern(count))
    #expect(cache.peekValue(forKey: "a") == pattern(count))
    #expect(cache.containsValue(forKey: "a"))
    #expect(cache.withBytes(forKey: "a") { $0.array } == pattern(count))
    guard case .hit(let found) = cache.lookUpValue(forKey: "a") else {
      Issue.record("no hit")
      return
    }
    #expect(found == pattern(count))
    var buffer = [UInt8](repeating: 9, count: count + 2)
    var span = buffer.mutableSpan
    var bytes = unsafe span.mutableBytes
    #expect(cache.read(forKey: "a", into: &bytes) == .hit(byteCount: count))
    #expect(buffer == pattern(count) + [9, 9])
    #expect(cache.count == 1)
    #expect(cache.totalCost == count)
    #expect(cache.byteCount > count)
  }

  @Test("values of zeros are values", arguments: [1, 100, 4096, 10_000, 300_000])
  func zeros(count: Int) throws {
    let cache = try PurgeableCache<[UInt8], [UInt8]>()
    cache.setValue([UInt8](repeating: 0, count: count), forKey: [])
    cache.setValue([UInt8](repeating: 0, count: count), forKey: [0, 0])
    #expect(cache[[]] == [UInt8](repeating: 0, count: count))
    #expect(cache[[0, 0]] == [UInt8](repeating: 0, count: count))
    #expect(cache[[0]] == nil)
  }

  @Test("a value of 70 MiB, larger than a chunk, is stored, read, replaced and removed")
  func huge() throws {
    let cache = try PurgeableCache<Int, [UInt8]>()
    var value = [UInt8](repeating: 3, count: 70 << 20)
    value[0] = 1
    value[value.count - 1] = 2
    #expect(cache.setValue(value, forKey: 1) == .stored)
    #expect(cache.setValue([5], forKey: 2) == .stored)
    #expect(cache.withBytes(forKey: 1) { $0.byteCount } == 70 << 20)
    var isRight = cache[1] == value
    #expect(isRight)
    value[1] = 77
    #expect(cache.setValue(value, forKey: 1) == .replaced)
    isRight = cache[1] == value
    #expect(isRight)
    #expect(cache.count == 2)
    let held = cache.byteCount
    #expect(cache.remove(forKey: 1))
    #expect(cache.byteCount < held - (69 << 20))
    #expect(cache[2] == [5])
  }

  @Test("an empty cache answers everything")
  func empty() throws {
    let cache = try PurgeableCache<String, [UInt8]>(name: "thumbnails")
    #expect(cache.value(forKey: "a") == nil)
    #expect(cache["a"] == nil)
    #expect(cache.peekValue(forKey: "a") == nil)
    #expect(!cache.containsValue(forKey: "a"))
    #expect(MissReason.of(cache.lookUpValue(forKey: "a")) == .unknown)
    #expect(cache.withBytes(forKey: "a") { _ in 1 } == nil)
    #expect(!cache.remove(forKey: "a"))
    cache["a"] = nil
    cache.removeAll()
    cache.trim(toCount: 0)
    cache.trim(toCount: -5)
    cache.trim(toCost: 0)
    cache.trim(toBytes: 0)
    cache.trim(toBytes: -1)
    cache.trim(toFraction: 0)
    cache.trim(toFraction: -.infinity)
    #expect(cache.sweep() == 0)
    #expect(cache.offerIdle() == 0)
    #expect(cache.isEmpty && cache.count == 0 && cache.totalCost == 0)
    #expect(cache.countLimit == nil && cache.costLimit == nil)
    #expect(cache.name == "thumbnails")
    #expect(cache.description.contains("thumbnails") && cache.description.contains("0 entries"))
    #expect(cache.statistics.name == "thumbnails")
    cache.checkBooks()
  }

  @Test("replacing says so, and the new value and cost are in force")
  func replacing() throws {
    let cache = try PurgeableCache<Int, [UInt8]>()
    #expect(cache.setValue([1], forKey: 7) == .stored)
    for i in 0..<300 {
      #expect(cache.setValue(pattern(i), forKey: 7, cost: i * 3) == .replaced)
      #expect(cache[7] == pattern(i))
      #expect(cache.totalCost == i * 3)
      #expect(cache.count == 1)
    }
    let numbers = cache.statistics
    #expect(numbers.insertionCount == 1)
    #expect(numbers.replacementCount == 300)
    #expect(numbers.departures[.replaced] == 300)
    cache.checkBooksSwept()
  }

  @Test("removing takes exactly one key, once")
  func removing() throws {
    let cache = try PurgeableCache<Int, Int>()
    for i in 0..<1000 { cache[i] = i * i }
    for i in stride(from: 0, to: 1000, by: 2) {
      #expect(cache.remove(forKey: i))
      #expect(!cache.remove(forKey: i))
      #expect(MissReason.of(cache.lookUpValue(forKey: i)) == .removed)
    }
    #expect(cache.count == 500)
    for i in 0..<1000 { #expect(cache[i] == (i % 2 == 0 ? nil : i * i)) }
    cache[1] = nil
    #expect(cache[1] == nil)
    #expect(cache.count == 499)
    cache.removeAll()
    #expect(cache.isEmpty && cache.totalCost == 0)
    for i in 0..<1000 { #expect(!cache.containsValue(forKey: i)) }
    cache[1] = 4
    #expect(cache[1] == 4)
    cache.checkBooksSwept()
  }

  @Test("a buffer that is too small gets nothing, and is told how much is needed", arguments: [10, 2000, 100_000])
  func tooSmall(count: Int) throws {
    let cache = try PurgeableCache<Int, [UInt8]>()
    cache[1] = pattern(count)
    let before = cache.statistics
    for room in [0, 1, count / 2, count - 1] {
      var buffer = [UInt8](repeating: 9, count: room)
      let found = unsafe buffer.withUnsafeMutableBytes { unsafe cache.read(forKey: 1, into: $0) }
      #expect(found == .bufferTooSmall(needed: count))
      #expect(buffer == [UInt8](repeating: 9, count: room))
    }
    #expect(unsafe cache.read(forKey: 2, into: UnsafeMutableRawBufferPointer(start: nil, count: 0)) == .miss(.unknown))
    #expect(cache.statistics.hitCount == before.hitCount)
    cache[3] = []
    #expect(unsafe cache.read(forKey: 3, into: UnsafeMutableRawBufferPointer(start: nil, count: 0)) == .hit(byteCount: 0))
  }

  @Test(
    "peek and contains are no use of an entry: neither for the order of eviction nor for the statistics",
    arguments: [false, true])
  func noUse(tracksKeys: Bool) throws {
    let cache = try PurgeableCache<Int, [UInt8]>(tracksKeys: tracksKeys)
    cache[1] = pattern(100)
    cache[2] = pattern(5000)
    func counters() -> [UInt64] {
      cache.engine.shards.all.flatMap { shard in
        let table = shard.index.current()
        return (0..<table.slotCount).map { Slot(bits: table.slots![$0].relaxed) }.filter { !$0.isEmpty }.map(\.counter)
      }
    }
    let before = cache.statistics
    for _ in 0..<5 {
      #expect(cache.peekValue(forKey: 1) == pattern(100))
      #expect(cache.peekValue(forKey: 2) == pattern(5000))
      #expect(cache.containsValue(forKey: 1) && cache.containsValue(forKey: 2) && !cache.containsValue(forKey: 3))
      #expect(cache.peekValue(forKey: 3) == nil)
    }
    #expect(counters() == [0, 0])
    #expect(cache.statistics.hitCount == before.hitCount && cache.statistics.missCount == before.missCount)
    // Every other kind of look-up counts as a use, up to three.
    _ = cache.value(forKey: 1)
    #expect(counters().sorted() == [0, 1])
    _ = cache.lookUpValue(forKey: 1)
    _ = cache.withBytes(forKey: 1) { $0.byteCount }
    #expect(counters().sorted() == [0, 3])
    _ = cache.lookUpValue(forKey: 1)
    _ = cache[2]
    #expect(counters().sorted() == [1, 3])
    _ = cache.withBytes(forKey: 3) { $0.byteCount }
    _ = cache[3]
    let after = cache.statistics
    #expect(after.hitCount - before.hitCount == 5)
    #expect(after.missCount - before.missCount == 2)
    #expect(after.missesByReason.values.reduce(0, +) == after.missCount)
  }

  @Test(
    "a trim ends while other threads go on storing: it evicts what is too much when it begins, and a quarter", arguments: [0, 1])
  func trimmingBeside(kind: Int) throws {
    let cache = try PurgeableCache<Int, [UInt8]>()
    let count = TestRun.isFull ? 10_000 : 3000
    for i in 0..<count { cache.setValue(pattern(100), forKey: i, cost: 10) }
    let isOver = Atomic<Bool>(false)
    let storing = (0..<2).map { number in
      TestThread {
        var random = SplitMix64(seed: chosenSeed &+ UInt64(number))
        while !isOver.load(ordering: .relaxed) {
          cache.setValue(pattern(100), forKey: random.index(below: count), cost: 10)
        }
      }
    }
    let most = cache.count
    if kind == 0 { cache.trim(toCount: count / 10) } else { cache.trim(toCost: count / 10) }
    let trimmed = cache.statistics.departures[.trimmed] ?? 0
    isOver.store(true, ordering: .relaxed)
    for thread in storing { thread.join() }
    #expect(trimmed > 0 && trimmed <= most + most / 4 + 1, "\(trimmed)")
    cache.checkBooksSwept()
  }

  @Test(
    "trimming goes as far as it is asked to, and no further than it must", .notUnderThreadSanitizer, arguments: [false, true])
  func trimming(tracksKeys: Bool) throws {
    let cache = try PurgeableCache<Int, [UInt8]>(tracksKeys: tracksKeys)
    let count = TestRun.isFull ? 20_000 : 8000
    for i in 0..<count { cache.setValue(pattern(100), forKey: i, cost: 10) }
    cache.trim(toCount: count * 3 / 2)
    #expect(cache.count == count)
    cache.trim(toCount: count * 3 / 4)
    #expect(cache.count == count * 3 / 4)
    cache.trim(toCost: count * 5)
    #expect(cache.totalCost == count * 5)
    #expect(cache.count == count / 2)
    let held = cache.byteCount
    cache.trim(toFraction: .nan)
    cache.trim(toFraction: 1)
    #expect(cache.count == count / 2)
    cache.trim(toFraction: 0.5)
    #expect(cache.byteCount <= held / 2)
    #expect(cache.count > count / 10)
    cache.checkBooksSwept()
    for i in 0..<count { if let value = cache[i] { #expect(value == pattern(100)) } }
    cache.trim(toBytes: 0)
    #expect(cache.isEmpty)
    #expect(cache.totalCost == 0)
    #expect(cache.statistics.memory.heldBytes == 0)
    cache[1] = [1]
    #expect(cache[1] == [1])
    cache.checkBooksSwept()
  }

  @Test("misses add up while a shard is busy, which nobody waits for then")
  func busyStatistics() throws {
    let cache = try PurgeableCache<Int, [UInt8]>(countLimit: 100)
    for i in 0..<300 { cache[i] = pattern(50) }
    cache.engine.shards.hold(cache.engine.shards.founder) { _ in
      TestThread { for i in 0..<300 { _ = cache[i] } }.join()
    }
    let numbers = cache.statistics
    #expect(numbers.missCount == 200 && numbers.missesByReason[.unknown] == 200, "\(numbers.missesByReason)")
  }

  @Test("statistics add up over every kind of call")
  func statistics() throws {
    let cache = try PurgeableCache<Int, [UInt8]>(name: "numbers", countLimit: 100)
    for i in 0..<300 { cache[i] = pattern(50) }
    for i in 0..<300 { _ = cache[i] }
    let numbers = cache.statistics
    #expect(numbers.name == "numbers")
    #expect(numbers.count == 100 && numbers.totalCost == 5000)
    #expect(numbers.hitCount == 100 && numbers.missCount == 200)
    #expect(numbers.missesByReason.values.reduce(0, +) == 200)
    #expect((numbers.missesByReason[.evicted] ?? 0) > 50)
    #expect(numbers.insertionCount == 300 && numbers.departures[.count] == 200)
    #expect(numbers.replacementCount == 0 && numbers.refusalCount == 0)
    #expect(numbers.memory.payloadBytes >= 5000 && numbers.memory.heldBytes >= numbers.memory.payloadBytes)
    #expect(numbers.memory.lockedBytes == 0 && numbers.memory.discardedBytes == 0)
    #expect(numbers.memory.residentBytes! > 0 && numbers.memory.residentBytes! <= numbers.memory.heldBytes)
    #expect(numbers.memory.ordinaryBytes > 0)
    // Against the limit, an open slab counts as a whole; in the statistics, by the pages it has touched.
    #expect(cache.byteCount >= numbers.memory.heldBytes + numbers.memory.ordinaryBytes)
    cache.withBytes(forKey: 299) { _ in #expect(cache.statistics.memory.lockedBytes > 0) }
    #expect(cache.statistics.memory.lockedBytes == 0)
    cache.checkBooksSwept()
  }
}
