// SPDX-License-Identifier: MIT
// The handler of departures is called for every departure, once, with key, value, cost and reason, under no mutex.

import Synchronization
import Testing
import ToolSupport

@testable import Purgeable

private typealias Told = Departures<String, [UInt8]>

/// A departure as expectations compare it.
private struct Line: Hashable {
  var key: String
  var value: [UInt8]?
  var cost: Int
  var reason: DepartureReason
}

extension Departures where Key == String, Value == [UInt8] {
  fileprivate func takeLines() -> [Line] {
    take().map { Line(key: $0.key, value: $0.value, cost: $0.cost, reason: $0.reason) }
  }
}

@Suite("PurgeableCache, departures")
struct CacheDepartureTests {
  @Test("handlers come and go: a departure is told to the one that is there, and one that is taken away ends")
  func handlers() throws {
    final class Held: Sendable {}
    let (first, second) = (Told(), Told())
    let cache = try PurgeableCache<String, [UInt8]>(tracksKeys: true)
    for key in ["a", "b", "c", "d"] { cache[key] = [1] }
    cache["a"] = nil
    var held: Held? = Held()
    weak let kept = held
    try cache.setDepartureHandler { [held] departure in
      first.note(departure)
      withExtendedLifetime(held) {}
    }
    held = nil
    cache["b"] = nil
    #expect(kept != nil)
    try cache.setDepartureHandler { [weak cache] departure in
      second.note(departure)
      if departure.key == "c" { cache?.removeDepartureHandler() }
    }
    #expect(kept == nil)
    cache["c"] = nil
    cache["d"] = nil
    #expect(first.takeLines() == [Line(key: "b", value: [1], cost: 1, reason: .removed)])
    #expect(second.takeLines() == [Line(key: "c", value: [1], cost: 1, reason: .removed)])

    let untracked = try PurgeableCache<String, [UInt8]>()
    let error = #expect(throws: PurgeableError.self) { try untracked.setDepartureHandler { _ in } }
    if case .notSupported = error?.kind {} else { Issue.record("\(String(describing: error))") }
    untracked.removeDepartureHandler()
  }

  @Test("each reason is told with key, value and cost")
  func reasons() throws {
    let told = Told()
    let cache = try PurgeableCache<String, [UInt8]>(countLimit: 3, costLimit: 100) { told.note($0) }
    cache.setValue([1], forKey: "é", cost: 7)
    #expect(told.takeLines() == [])
    cache.setValue([2, 2], forKey: "e\u{301}")
    #expect(told.takeLines() == [Line(key: "é", value: [1], cost: 7, reason: .replaced)])
    cache.remove(forKey: "é")
    #expect(told.takeLines() == [Line(key: "é", value: [2, 2], cost: 2, reason: .removed)])
    cache.remove(forKey: "é")
    cache["nobody"] = nil
    #expect(told.takeLines() == [])

    for i in 0..<4 { cache.setValue([UInt8(i)], forKey: "\(i)", cost: 10) }
    #expect(told.takeLines() == [Line(key: "0", value: [0], cost: 10, reason: .count)])
    cache.setValue([9], forKey: "3", cost: 85)
    let forCost = told.takeLines()
    #expect(forCost.contains(Line(key: "1", value: [1], cost: 10, reason: .cost)))
    #expect(forCost.contains(Line(key: "3", value: [3], cost: 10, reason: .replaced)))
    #expect(forCost.count == 2)

    // The refused value is told as too large. The old value under that key is gone, and told as replaced.
    #expect(cache.setValue([4, 4, 4], forKey: "3", cost: 101) == .tooLarge)
    #expect(
      told.takeLines() == [
        Line(key: "3", value: [9], cost: 85, reason: .replaced), Line(key: "3", value: [4, 4, 4], cost: 101, reason: .tooLarge),
      ])
    #expect(cache.setValue(pattern(200), forKey: "new") == .tooLarge)
    #expect(told.takeLines() == [Line(key: "new", value: pattern(200), cost: 200, reason: .tooLarge)])

    cache.trim(toCount: 0)
    #expect(told.takeLines() == [Line(key: "2", value: [2], cost: 10, reason: .trimmed)])
    cache["x"] = [1]
    cache["y"] = [2]
    cache.removeAll()
    #expect(
      Set(told.takeLines()) == [
        Line(key: "x", value: [1], cost: 1, reason: .removed), Line(key: "y", value: [2], cost: 1, reason: .removed),
      ])
    cache["z"] = [3]
    try cache.setCountLimit(0)
    #expect(told.takeLines() == [Line(key: "z", value: [3], cost: 1, reason: .count)])
    cache.checkBooksSwept()
  }

  @Test("the byte limit and trims tell of every entry of a slab", .notUnderThreadSanitizer)
  func bytes() throws {
    let told = Told()
    let cache = try PurgeableCache<String, [UInt8]>(byteLimit: 2 << 20) { told.note($0) }
    for i in 0..<8000 { #expect(cache.setValue(pattern(400, seed: UInt8(i % 200)), forKey: "\(i)") == .stored) }
    var left = Set<String>()
    for departure in told.take() {
      #expect(departure.reason == .bytes)
      #expect(left.insert(departure.key).inserted)
      #expect(departure.value == pattern(400, seed: UInt8(Int(departure.key)! % 200)))
      #expect(departure.cost == 400)
    }
    for i in 0..<8000 { #expect(cache.containsValue(forKey: "\(i)") != left.contains("\(i)")) }
    #expect(cache.count == 8000 - left.count && left.count > 2000)
    cache.trim(toBytes: 0)
    #expect(told.all.count == 8000 - left.count)
    #expect(told.all.allSatisfy { $0.reason == .trimmed })
    cache.checkBooksSwept()
  }

  @Test("the delegate may use the cache: store, look up, remove, trim")
  func reentering() throws {
    final class Holder: Sendable {
      let cache = Mutex<PurgeableCache<Int, [UInt8]>?>(nil)
      let depth = Atomic<Int>(0)
    }
    let holder = Holder()
    let cache = try PurgeableCache<Int, [UInt8]>(countLimit: 50) { departure in
      guard let cache = holder.cache.withLock({ $0 }) else { return }
      #expect(departure.value != nil)
      #expect(cache.value(forKey: departure.key) == nil || departure.reason == .replaced)
      #expect(cache.count <= 51)
      _ = cache.statistics
      // A store in the handler evicts again, which calls the handler again: bounded here.
      guard holder.depth.add(1, ordering: .relaxed).newValue < 20 else { return }
      cache[departure.key + 1000] = [1, 2, 3]
      cache.remove(forKey: departure.key + 999)
      cache.sweep()
    }
    holder.cache.withLock { $0 = cache }
    for i in 0..<200 {
      holder.depth.store(0, ordering: .relaxed)
      cache[i] = pattern(100)
      cache[i] = pattern(101)
      #expect(cache.count <= 50)
    }
    cache.trim(toCount: 10)
    holder.depth.store(100, ordering: .relaxed)
    cache.removeAll()
    #expect(cache.isEmpty)
    holder.cache.withLock { $0 = nil }
    cache.checkBooksSwept()
  }

  /// Uses the cache when it is destroyed.
  private final class Token: Hashable, Sendable {
    let number: Int
    let onEnd: @Sendable () -> Void
    init(_ number: Int, onEnd: @escaping @Sendable () -> Void) {
      self.number = number
      self.onEnd = onEnd
    }
    deinit { onEnd() }
    static func == (left: Token, right: Token) -> Bool { left.number == right.number }
    func hash(into hasher: inout Hasher) { hasher.combine(number) }
  }

  @Test("a key whose end uses the cache ends under no mutex", arguments: [false, true])
  func keyEnds(hasDelegate: Bool) throws {
    let other = try PurgeableCache<Int, Int>()
    final class Ends: Sendable { let count = Atomic<Int>(0) }
    let ends = Ends()
    let told = Ends()
    let tell: @Sendable (Departure<Token, [UInt8]>) -> Void = { _ in told.count.add(1, ordering: .relaxed) }
    let cache = try PurgeableCache<Token, [UInt8]>(countLimit: 20, onDeparture: hasDelegate ? tell : nil)
    func token(_ number: Int) -> Token {
      Token(number) { [weak cache] in
        ends.count.add(1, ordering: .relaxed)
        other[number] = number
        if let cache {
          _ = cache.count
          _ = cache.statistics.hitCount
          cache.trim(toCount: 100)
        }
      }
    }
    for i in 0..<200 { cache[token(i)] = pattern(10) }
    #expect(cache.count == 20)
    // Which of them are left is for the order to say, and differs with the hashes.
    var (asked, removed) = (0, 0)
    for i in (0..<200).reversed() where removed < 10 {
      asked += 1
      if cache.remove(forKey: token(i)) { removed += 1 }
    }
    #expect(removed == 10)
    #expect(cache.count == 10)
    cache.removeAll()
    if hasDelegate { #expect(told.count.load(ordering: .relaxed) == 200) }
    // One token for each store, and one for each removal that was tried.
    #expect(ends.count.load(ordering: .relaxed) == 200 + asked)
  }

  @Test("from many threads, what left and what is there add up to what was stored")
  func threads() throws {
    let told = Departures<Int, Int>()
    let cache = try PurgeableCache<Int, Int>(countLimit: 500) { told.note($0) }
    let stores = 3000 / slowness
    onThreads(4) { thread in
      var random = SplitMix64(seed: UInt64(thread) + 77)
      for i in 0..<stores {
        // Values are unique, keys are not.
        cache[random.index(below: 2000)] = thread << 32 | i
        if i % 7 == 0 { cache.remove(forKey: random.index(below: 2000)) }
        if i % 500 == 0 { cache.trim(toCount: 300) }
      }
    }
    var values = told.all.compactMap(\.value)
    #expect(values.count == told.all.count)
    for key in 0..<2000 { if let value = cache[key] { values.append(value) } }
    #expect(values.count == 4 * stores)
    #expect(Set(values).count == 4 * stores)
    cache.checkBooksSwept()
  }

  @Test("dropping a cache tells of nothing")
  func dropping() throws {
    let told = Told()
    do {
      let cache = try PurgeableCache<String, [UInt8]> { told.note($0) }
      for i in 0..<100 { cache["\(i)"] = [1] }
    }
    #expect(told.all.isEmpty)
  }
}
