// SPDX-License-Identifier: MIT
// Changes that depend on the value that is there: exactly one of several threads has its way, and none is lost.

import Glibc
import PurgeableTestSupport
import Synchronization
import Testing

@testable import Purgeable

private struct Stop: Error {}

/// Is written, and never made again.
private struct Mute: PurgeableValue {
  init() {}
  init?(purgeableBytes: RawSpan) { return nil }
  func withPurgeableBytes<R, E: Error>(_ body: (RawSpan) throws(E) -> R) throws(E) -> R {
    let bytes: [UInt8] = [7]
    return unsafe try body(bytes.span.bytes)
  }
}

@Suite("Cache: changes in one step")
struct CacheUpdateTests {
  @Test(
    "a value that is too large does not take the place of one that was stored meanwhile", arguments: [1000, 140_000, 300_000])
  func tooLargeMeanwhile(byteCount: Int) throws {
    let cache = try PurgeableCache<Int, [UInt8]>(costLimit: byteCount / 2)
    cache.modifyValue(forKey: 1) { value in
      if value == nil {
        cache[1] = [1, 2, 3]
        value = [UInt8](repeating: 7, count: byteCount)
      } else {
        value?.append(4)
      }
    }
    #expect(cache[1] == [1, 2, 3, 4])
    // Of two loads, the first to end is kept.
    let loaded = cache.value(forKey: 2) { () -> [UInt8] in
      #expect(cache.value(forKey: 3) { [3] } == [3])
      cache[2] = [2]
      return [UInt8](repeating: 7, count: byteCount)
    }
    #expect(loaded.count == byteCount && cache[2] == [2])
  }

  @Test("an update that finds no room returns nothing: the old value stays", arguments: [false, true])
  func refusedUpdate(tracksKeys: Bool) throws {
    let cache = try PurgeableCache<Int, [UInt8]>(byteLimit: 1 << 20, tracksKeys: tracksKeys)
    var key = 0
    while cache.setValue([UInt8](repeating: 1, count: 3000), forKey: key, priority: .pinned) == .stored { key += 1 }
    let larger = [UInt8](repeating: 2, count: 60_000)
    #expect(cache.setValue(larger, forKey: 0) == .outOfMemory)
    #expect(cache.updateValue(larger, forKey: 0) == nil && cache.updateValue(larger, forKey: 0) == nil)
    #expect(cache.removeValue(forKey: 0) == [UInt8](repeating: 1, count: 3000))
    cache.checkBooksSwept()
  }

  @Test("an update returns the value that it replaced, to one thread of several", arguments: [false, true])
  func updates(tracksKeys: Bool) throws {
    let cache = try PurgeableCache<Int, Int>(tracksKeys: tracksKeys)
    #expect(cache.updateValue(0, forKey: 1) == nil)
    let returned = Mutex<[Int]>([])
    onThreads(4) { thread in
      var mine: [Int] = []
      for round in 1...500 { mine.append(cache.updateValue(thread * 1000 + round, forKey: 1) ?? -1) }
      returned.withLock { $0 += mine }
    }
    // Each value but the last was replaced, once.
    let all = returned.withLock { $0 } + [try #require(cache.peekValue(forKey: 1))]
    #expect(Set(all) == Set([0] + (0..<4).flatMap { thread in (1...500).map { thread * 1000 + $0 } }) && all.count == 2001)
    #expect(cache.updateValue(7, forKey: 1, cost: 99) != nil && cache.peekEntry(forKey: 1)?.cost == 99)
    cache.checkBooksSwept()
  }

  @Test("no change of several threads is lost", arguments: [false, true])
  func counts(tracksKeys: Bool) throws {
    let cache = try PurgeableCache<Int, Int>(tracksKeys: tracksKeys)
    let objects = try ObjectCache<Int, Int>()
    let rounds = TestRun.isFull ? 2000 : 600
    onThreads(4) { _ in
      for round in 0..<rounds {
        cache.modifyValue(forKey: round % 3) { $0 = ($0 ?? 0) + 1 }
        objects.modifyValue(forKey: round % 3) { $0 = ($0 ?? 0) + 1 }
      }
    }
    #expect((0..<3).map { cache[$0, default: 0] }.reduce(0, +) == 4 * rounds)
    #expect((0..<3).map { objects[$0, default: 0] }.reduce(0, +) == 4 * rounds)
    cache.checkBooksSwept()
  }

  @Test("a change sees the newest value: it runs again where another one was stored, removed or added meanwhile")
  func again() throws {
    let cache = try PurgeableCache<String, Int>(tracksKeys: false)
    let objects = try ObjectCache<String, Int>()
    var seen: [Int?] = []
    func change(_ value: inout Int?, _ meanwhile: (Int) -> Void) -> Int {
      seen.append(value)
      if seen.count < 4 { meanwhile(seen.count) }
      value = (value ?? 0) * 10
      return seen.count
    }
    cache["a"] = 1
    let runs = cache.modifyValue(forKey: "a") { value in
      change(&value) { run in if run == 2 { cache["a"] = nil } else { cache["a"] = run + 10 } }
    }
    #expect(runs == 4 && seen == [1, 11, nil, 13] && cache["a"] == 130)
    seen = []
    objects["a"] = 1
    let objectRuns = objects.modifyValue(forKey: "a") { value in
      change(&value) { run in if run == 2 { objects["a"] = nil } else { objects["a"] = run + 10 } }
    }
    #expect(objectRuns == 4 && seen == [1, 11, nil, 13] && objects["a"] == 130)
  }

  @Test("nil removes, an error changes nothing, a given cost stays", arguments: [false, true])
  func rules(tracksKeys: Bool) throws {
    let cache = try PurgeableCache<Int, [UInt8]>(costLimit: 1000, tracksKeys: tracksKeys)
    cache.modifyValue(forKey: 1) { #expect($0 == nil) }
    #expect(cache.isEmpty)
    cache.modifyValue(forKey: 1) { $0 = pattern(20) }
    #expect(cache.peekEntry(forKey: 1)?.cost == 20)
    cache.modifyValue(forKey: 1) { $0?.append(7) }
    #expect(cache.peekEntry(forKey: 1)?.cost == 21 && cache[1] == pattern(20) + [7])
    cache.setValue(pattern(30), forKey: 2, cost: 77)
    cache.modifyValue(forKey: 2) { $0?.removeLast() }
    #expect(cache.peekEntry(forKey: 2)?.cost == 77 && cache[2] == Array(pattern(30).dropLast()))
    #expect(throws: Stop.self) {
      try cache.modifyValue(forKey: 2) { (value: inout [UInt8]?) throws(Stop) in
        value = nil
        throw Stop()
      }
    }
    #expect(cache[2] == Array(pattern(30).dropLast()))
    cache.modifyValue(forKey: 2) { $0 = nil }
    #expect(!cache.containsValue(forKey: 2) && cache.count == 1)
    // Refused, as by a store: the old value is gone.
    cache.modifyValue(forKey: 1) { $0 = pattern(2000) }
    #expect(cache.isEmpty && cache.statistics.refusalCount == 1)
    cache.checkBooksSwept()
  }

  @Test("an entry whose bytes make no value is as none: it is replaced, or removed, in one run", arguments: [false, true])
  func unreadable(tracksKeys: Bool) throws {
    let cache = try PurgeableCache<Int, Mute>(tracksKeys: tracksKeys)
    for key in 0..<3 { cache[key] = Mute() }
    var runs = 0
    cache.modifyValue(forKey: 0) { value in
      runs += 1
      #expect(value == nil)
      value = Mute()
    }
    cache.modifyValue(forKey: 1) { value in
      runs += 1
      value = nil
    }
    #expect(cache.updateValue(Mute(), forKey: 2) == nil)
    #expect(runs == 2 && cache.containsValue(forKey: 0) && !cache.containsValue(forKey: 1) && cache.count == 2)
    #expect(cache.statistics.replacementCount == 2 && cache.statistics.departures[.removed] == 1)
    cache.checkBooksSwept()
  }

  @Test("values that are copied under no mutex change in one step too")
  func large() throws {
    let cache = try PurgeableCache<Int, [UInt8]>()
    onThreads(3) { thread in
      for _ in 0..<20 {
        cache.modifyValue(forKey: 1) { value in
          var bytes = value ?? [UInt8](repeating: 0, count: 200_000)
          bytes[thread * 1000] += 1
          value = bytes
        }
      }
    }
    let bytes = try #require(cache[1])
    #expect((0..<3).allSatisfy { bytes[$0 * 1000] == 20 } && bytes.reduce(0) { $0 + Int($1) } == 60)
    cache.checkBooksSwept()
  }

  @Test("a subscript with a default counts, and stores no default")
  func defaults() throws {
    let cache = try PurgeableCache<String, Int>()
    let objects = try ObjectCache<String, Int>()
    #expect(cache["a", default: 5] == 5 && objects["a", default: 5] == 5 && cache.isEmpty && objects.isEmpty)
    for _ in 0..<3 {
      cache["a", default: 0] += 2
      objects["a", default: 0] += 2
    }
    #expect(cache["a"] == 6 && objects["a"] == 6)
  }

  @Test("what the program's verdict evicts leaves for that reason, and a value that was replaced meanwhile stays")
  func verdicts() throws {
    let departures = Departures<Int, Int>()
    let cache = try PurgeableCache<Int, Int> { departures.note($0) }
    let objects = try ObjectCache<Int, Int>()
    for key in 0..<100 { (cache[key], objects[key]) = (key, key) }
    let evicted = cache.evictAll { entry in
      if entry.key == 50 { cache[50] = 1000 }
      return entry.value % 2 == 0
    }
    let evictedObjects = objects.evictAll { entry in
      if entry.key == 50 { objects[50] = 1000 }
      return entry.value % 2 == 0
    }
    #expect(evicted == 49 && evictedObjects == 49 && cache[50] == 1000 && objects[50] == 1000)
    #expect(departures.count(of: .decider) == 49 && cache.statistics.departures[.decider] == 49)
    #expect(objects.statistics.departures[.decider] == 49)
    // As far as is remembered: keys whose hashes fall together may displace each other.
    let remembered = stride(from: 0, to: 100, by: 2).count {
      if case .miss(.evicted) = cache.lookUpValue(forKey: $0) { true } else { false }
    }
    #expect(remembered > 25)
    cache.checkBooksSwept()
  }

  @Test("a verdict is void for what was pinned since it was asked for")
  func voidVerdicts() throws {
    let cache = try PurgeableCache<Int, Int>()
    let objects = try ObjectCache<Int, Int>(countLimit: 10)
    for key in 0..<10 { (cache[key], objects[key]) = (key, key) }
    #expect(
      cache.evictAll { entry in
        if entry.key < 5 { #expect(throws: Never.self) { try cache.setPriority(.pinned, forKey: entry.key) } }
        return true
      } == 5)
    #expect(Set(cache.keys) == Set(0..<5))
    #expect(
      objects.evictAll { entry in
        if entry.key == 1 { objects.setPriority(.pinned, forKey: 1) }
        return entry.key < 2
      } == 1)
    objects.shouldEvict = { [weak objects] key, _ in
      if key == 2 { objects?.setPriority(.pinned, forKey: 2) }
      return true
    }
    for key in 10..<13 { objects[key] = key }
    #expect(Set(objects.keys) == Set([1, 2] + (5..<13)))
    cache.checkBooksSwept()
  }

  @Test("the difference of two statistics is what happened between them")
  func difference() throws {
    let cache = try PurgeableCache<Int, Int>(countLimit: 100)
    for key in 0..<150 { cache[key] = key }
    _ = cache[149]
    let before = cache.statistics
    for key in 140..<200 { _ = cache.value(forKey: key) { key } }
    let between = cache.statistics.difference(from: before)
    #expect(between.hitCount == 10 && between.missCount == 50 && between.insertionCount == 50 && between.loadCount == 50)
    #expect(between.departures[.count] == 50 && between.departures[.removed] == 0)
    #expect(between.count == 100 && between.hitRate == 10.0 / 60 && between.loadTime > .zero)
    #expect(between.missesByReason.values.reduce(0, +) == 50)
    cache.removeAll()
    let now = cache.statistics
    let nothing = now.difference(from: now)
    #expect(nothing.hitCount == 0 && nothing.departures.values.allSatisfy { $0 == 0 })
    #expect(now.memory.givenBackBytes > 0 && nothing.memory.givenBackBytes == 0)
  }
}
