// SPDX-License-Identifier: MIT
// The cache of objects, case by case.

import Glibc
import PurgeableTestSupport
import Synchronization
import Testing
import ToolSupport

@testable import Purgeable

private final class Box: Sendable {
  let number: Int
  private let onEnd: (@Sendable () -> Void)?

  init(_ number: Int, onEnd: (@Sendable () -> Void)? = nil) { (self.number, self.onEnd) = (number, onEnd) }
  deinit { onEnd?() }
}

@Suite("ObjectCache")
struct ObjectCacheTests {
  @Test("stores, finds, replaces and removes; peeks do not count as a use")
  func dictionary() throws {
    let cache = try ObjectCache<String, Box>(countLimit: 2)
    #expect(cache.isEmpty && cache["a"] == nil)
    #expect(cache.setValue(Box(1), forKey: "a") == .stored)
    #expect(cache.setValue(Box(2), forKey: "a", cost: 7) == .replaced)
    #expect(cache["a"]?.number == 2 && cache.count == 1 && cache.totalCost == 7)
    cache["b"] = Box(3)
    #expect(cache.peekValue(forKey: "a")?.number == 2 && cache.containsValue(forKey: "a"))
    cache["c"] = Box(4)
    #expect(cache.keys == ["b", "c"], "a was peeked at only")
    #expect(cache.updateValue(Box(5), forKey: "c")?.number == 4)
    #expect(cache.removeValue(forKey: "c")?.number == 5 && !cache.remove(forKey: "c"))
    cache["b"] = nil
    #expect(cache.isEmpty && cache.totalCost == 0)
    cache["d"] = Box(6)
    cache["e"] = Box(7)
    #expect(cache.snapshot().mapValues(\.number) == ["d": 6, "e": 7])
    #expect(cache.remove(forKeys: ["e", "e", "f"]) == 1 && cache.keys == ["d"])
    cache.removeAll()
    #expect(cache.isEmpty && cache.keys.isEmpty && cache["d"] == nil)
  }

  @Test("limits: strict, lowered at once, equal is kept, none is nil, negative is an error")
  func limits() throws {
    let cache = try ObjectCache<Int, Int>(name: "numbers", countLimit: 10, costLimit: 100)
    for number in 0..<50 {
      cache.setValue(number, forKey: number, cost: 10)
      #expect(cache.count == min(10, number + 1))
    }
    #expect(cache.keys == Array(40..<50) && cache.totalCost == 100)
    try cache.setCostLimit(35)
    #expect(cache.keys == [47, 48, 49])
    #expect(cache.setValue(0, forKey: 48, cost: 36) == .tooLarge)
    #expect(cache.keys == [47, 49], "the old value is gone, the others are not")
    #expect(cache.setValue(0, forKey: 1, cost: 35) == .stored)
    #expect(cache.keys == [1])
    try cache.setCostLimit(nil)
    try cache.setCountLimit(0)
    #expect(cache.isEmpty && cache.setValue(0, forKey: 1) == .tooLarge)
    #expect(throws: PurgeableError.self) { try cache.setCountLimit(-1) }
    #expect(cache.countLimit == 0 && cache.costLimit == nil)
    #expect(throws: PurgeableError.self) { try ObjectCache<Int, Int>(costLimit: -1) }
  }

  @Test("costs: sums saturate, less than 0 is 0, entries of no cost stay when the cost limit is exceeded")
  func costs() throws {
    let cache = try ObjectCache<Int, Int>()
    for number in 0..<5 { cache.setValue(number, forKey: number, cost: .max) }
    #expect(cache.totalCost == .max && cache.count == 5)
    for number in 1..<5 { cache.remove(forKey: number) }
    #expect(cache.totalCost == .max)
    cache.setValue(0, forKey: 0, cost: .min)
    #expect(cache.totalCost == 0)
    try cache.setCostLimit(.max)
    cache.setValue(1, forKey: 1, cost: .max)
    cache.setValue(2, forKey: 2, cost: .max)
    // A sum that is `Int.max` does not exceed it.
    cache.trim(toCost: .max)
    #expect(cache.keys == [0, 1, 2] && cache.totalCost == .max)
    try cache.setCostLimit(.max - 1)
    #expect(cache.keys == [0] && cache.totalCost == 0)
    cache.setValue(3, forKey: 3, cost: .max - 1)
    cache.setValue(4, forKey: 4, cost: 1)
    #expect(cache.keys == [0, 4] && cache.totalCost == 1)
  }

  @Test("a handler is told once of each departure, with key, value, cost and reason, and may change the cache")
  func handlers() throws {
    let told = Departures<Int, Int>()
    let cache = try ObjectCache<Int, Int>(countLimit: 2) { told.note($0) }
    cache.setValue(10, forKey: 1, cost: 5)
    cache.setValue(11, forKey: 1, cost: 6)
    cache.setValue(20, forKey: 2)
    cache.setValue(30, forKey: 3)
    cache.remove(forKey: 2)
    let first = told.take()
    #expect(first.map(\.inShort) == ["1: replaced, 5", "1: count limit, 6", "2: removed, 0"])
    #expect(first.map(\.value) == [10, 11, 20])
    // Stores what limits take, once more each time: told one after the other, not one within the other.
    let depth = Mutex((now: 0, most: 0, calls: 0))
    cache.setDepartureHandler { departure in
      let goesOn = depth.withLock { depth in
        depth.now += 1
        depth.calls += 1
        depth.most = max(depth.most, depth.now)
        return depth.calls < 1000
      }
      if goesOn { cache.setValue(departure.value!, forKey: departure.key + 1000) }
      depth.withLock { $0.now -= 1 }
    }
    for number in 4..<8 { cache.setValue(number, forKey: number) }
    #expect(depth.withLock { $0.calls == 1000 || $0.calls > 1 && $0.most == 1 } && depth.withLock { $0.most } == 1)
    cache.removeDepartureHandler()
    let calls = depth.withLock { $0.calls }
    cache.removeAll()
    #expect(depth.withLock { $0.calls } == calls && told.take().isEmpty)
  }

  @Test("a veto is asked in order and passed over; where all are kept the call returns above the limit; removals ask nobody")
  func vetoes() throws {
    let asked = Mutex<[Int]>([])
    let cache = try ObjectCache<Int, Int>(countLimit: 3)
    cache.shouldEvict = { key, reason in
      asked.withLock { $0.append(key) }
      // May use the cache.
      _ = cache.peekValue(forKey: key)
      return reason != .count || key >= 2
    }
    for number in 0..<5 { cache.setValue(number, forKey: number) }
    #expect(asked.withLock { $0 } == [0, 1, 2, 0, 1, 3] && cache.keys == [0, 1, 4])
    cache.shouldEvict = { _, _ in false }
    for number in 5..<9 { cache.setValue(number, forKey: number) }
    #expect(cache.keys == [0, 1, 4, 5, 6, 7, 8])
    asked.withLock { $0 = [] }
    cache.remove(forKey: 0)
    cache.trim(toCount: 4)
    #expect(cache.keys == [5, 6, 7, 8] && asked.withLock { $0.isEmpty })
    // What is above the limit goes as soon as it may.
    cache.shouldEvict = nil
    #expect(cache.keys == [6, 7, 8])
    cache.setValue(9, forKey: 9)
    #expect(cache.keys == [7, 8, 9])
  }

  @Test("content: any departure discards what nobody uses; what is found discarded leaves, or stays by choice")
  func content() throws {
    let told = Departures<Int, TestContent>()
    let cache = try ObjectCache<Int, TestContent>(countLimit: 2) { told.note($0) }
    let contents = (0..<6).map(TestContent.init)
    #expect(contents[1].beginContentAccess())
    cache[0] = contents[0]
    cache[1] = contents[1]
    cache[2] = contents[2]
    cache[3] = contents[3]
    #expect(contents[0].isContentDiscarded && !contents[1].isContentDiscarded, "one in use keeps its content")
    cache[2] = contents[2]
    #expect(!contents[2].isContentDiscarded, "the same object, stored again")
    cache[2] = contents[4]
    #expect(contents[2].isContentDiscarded)
    _ = told.take()
    contents[4].discardContentIfPossible()
    #expect(!cache.containsValue(forKey: 2) && cache.count == 2)
    #expect(cache[2] == nil && cache.count == 1 && told.take().map(\.inShort) == ["2: discarded, 0"])
    #expect(cache.statistics.missesByReason[.discarded] == 1 && cache.statistics.departures[.discarded] == 1)
    contents[3].discardContentIfPossible()
    #expect(cache.sweep() == 1 && cache.isEmpty)
    cache.evictsEntriesWithDiscardedContent = false
    cache[4] = contents[4]
    #expect(cache[4] === contents[4] && cache.sweep() == 0 && cache.count == 1)
  }

  @Test("content of objects behind a protocol or a superclass, and of PurgeableData")
  func contentBehind() throws {
    let data = try PurgeableData([1, 2, 3])
    data.endContentAccess()
    let cache = try ObjectCache<Int, any Sendable>()
    cache[0] = data
    cache[1] = 5
    cache.removeAll()
    #expect(data.isContentDiscarded)
    let content = TestContent(0)
    let objects = try ObjectCache<Int, any AnyObject & Sendable>()
    objects[0] = Box(0)
    objects[1] = content
    objects[0] = nil
    objects[1] = nil
    #expect(content.isContentDiscarded)
  }

  @Test("no mutex is held around user code: `==` of keys, ends of values, handlers and enumeration may use the cache")
  func userCode() throws {
    let cache = try ObjectCache<OddKey, Box>(countLimit: 50)
    let calls = Atomic<Int>(0)
    @Sendable func use() {
      calls.add(1, ordering: .relaxed)
      for number in 0..<3 { _ = cache.count + (cache.peekValue(forKey: OddKey(number))?.number ?? 0) }
    }
    for number in 0..<100 { cache[OddKey(number, compares: use)] = Box(number, onEnd: use) }
    #expect(cache.count == 50 && calls.load(ordering: .relaxed) > 100)
    for key in cache.keys { cache[key] = Box(1, onEnd: use) }
    let removed = cache.removeAll { entry in
      use()
      return entry.key.number % 2 == 0
    }
    #expect(removed == 25 && cache.count == 25)
    cache.removeAll()
  }

  @Test("many values end without recursion, 100,000 within a second, and a list of them one by one")
  func dropping() throws {
    let count = TestRun.isFull ? 100_000 : 30_000
    let ended = Atomic<Int>(0)
    var begin = clock()
    do {
      let cache = try ObjectCache<Int, Box>()
      for number in 0..<count { cache[number] = Box(number) { ended.add(1, ordering: .relaxed) } }
      #expect(cache.count == count && cache.keys == Array(0..<count))
      cache.trim(toFraction: 0.5)
      #expect(ended.load(ordering: .relaxed) == count / 2)
      for number in 0..<count { cache[number] = cache[number] ?? Box(number) { ended.add(1, ordering: .relaxed) } }
      begin = clock()
    }
    let seconds = Double(clock() - begin) / Double(CLOCKS_PER_SEC)
    #expect(ended.load(ordering: .relaxed) == count / 2 * 3)
    // Of the processor's time. Bounded in the full run only: beside other tests the same work takes more of it.
    #expect(!TestRun.isFull || seconds < 1, "\(seconds) s")
  }

  @Test("values that are stored without a cost get that of the function, while there is one; so do those that are loaded")
  func costs() async throws {
    let told = Departures<Int, [Int]>()
    let cache = try ObjectCache<Int, [Int]>(costLimit: 100) { told.note($0) }
    cache[1] = [1, 2, 3]
    #expect(cache.totalCost == 0 && cache.costOfValue == nil)
    cache.costOfValue = { $0.count }
    cache[2] = [1, 2]
    cache.setValue([1, 2, 3], forKey: 3)
    cache.updateValue([1], forKey: 4)
    cache.setValue([1], forKey: 5, cost: 20)
    #expect(cache.totalCost == 26)
    func loadOnThread() {
      _ = cache.value(forKey: 6) { [1, 2, 3, 4] }
      _ = cache.values(forKeys: [8, 9]) { keys in Dictionary(uniqueKeysWithValues: keys.map { ($0, [0]) }) }
    }
    loadOnThread()
    _ = await cache.value(forKey: 7) { [1, 2, 3, 4] }
    #expect(cache.totalCost == 36 && cache.peekEntry(forKey: 7)?.cost == 4)
    #expect(cache.setValue([Int](repeating: 0, count: 101), forKey: 2) == .tooLarge && cache.peekValue(forKey: 2) == nil)
    cache.costOfValue = { cache[20] == nil ? -$0.count : .max }
    cache.setValue([1], forKey: 10)
    #expect(cache.peekEntry(forKey: 10)?.cost == 0, "it may use the cache; less than 0 is 0")
    cache.costOfValue = nil
    cache[11] = [1, 2, 3]
    #expect(cache.totalCost == 34 && told.all.map(\.reason) == [.replaced, .tooLarge])
  }

  @Test("with N threads storing, the excess over each limit is that of N entries, and none is left")
  func excess() throws {
    let (threads, countLimit, costLimit, most) = (4, 300, 20_000, 1000)
    let cache = try ObjectCache<Int, Int>(countLimit: countLimit, costLimit: costLimit)
    let highestCount = Atomic<Int>(0)
    let highestCost = Atomic<Int>(0)
    // First all threads store what reaches the count limit, then what reaches the cost limit.
    for costs in [20, most] {
      onThreads(threads) { thread in
        var random = SplitMix64(seed: UInt64(thread) + 1)
        for number in 0..<5_000 / slowness {
          cache.setValue(number, forKey: thread << 32 | number % 1000, cost: random.index(below: costs))
          highestCount.max(cache.count, ordering: .relaxed)
          highestCost.max(cache.totalCost, ordering: .relaxed)
        }
      }
    }
    let (count, cost) = (highestCount.load(ordering: .relaxed), highestCost.load(ordering: .relaxed))
    #expect(count >= countLimit && count <= countLimit + threads)
    #expect(cost > costLimit * 9 / 10 && cost <= costLimit + threads * most)
    #expect(cache.count <= countLimit && cache.totalCost <= costLimit)
  }

  @Test("threads: entries are whole, and limits hold when all have ended")
  func threads() throws {
    let cache = try ObjectCache<Int, [Int]>(countLimit: 500, costLimit: 40_000)
    let wrong = Atomic<Int>(0)
    let threads = (0..<4).map { thread in
      TestThread {
        var random = SplitMix64(seed: chosenSeed &+ UInt64(thread))
        for _ in 0..<20_000 / slowness {
          let key = Int.random(in: 0..<1500, using: &random)
          switch Int.random(in: 0..<10, using: &random) {
          case 0..<4: cache.setValue([key, key], forKey: key, cost: key % 200)
          case 4: cache.remove(forKey: key)
          default: if let value = cache[key], value != [key, key] { wrong.add(1, ordering: .relaxed) }
          }
        }
      }
    }
    for thread in threads { thread.join() }
    let entries = cache.entries
    #expect(wrong.load(ordering: .relaxed) == 0 && cache.count <= 500 && cache.totalCost <= 40_000)
    #expect(entries.count == cache.count && entries.reduce(0) { $0 + $1.cost } == cache.totalCost)
    #expect(entries.allSatisfy { $0.value == [$0.key, $0.key] && cache.peekValue(forKey: $0.key) != nil })
  }
}
