// SPDX-License-Identifier: MIT
// Code of the program that the cache calls: `==`, `hash(into:)`, encodings. It may use the cache, fork, and return changing
// results.

import Glibc
import PurgeableTestSupport
import Synchronization
import Testing
import ToolSupport

@testable import Purgeable

/// What a key's functions do in addition; set by each test, in a process of its own.
private let manners = Mutex<(@Sendable (Int) -> Void)?>(nil)
/// How many calls of `manners` are under way: bounds the recursion when a key's function uses the cache.
private let depth = Atomic<Int>(0)

private func behave(_ number: Int) {
  guard depth.add(1, ordering: .relaxed).newValue == 1 else { return }
  defer { depth.store(0, ordering: .relaxed) }
  manners.withLock { $0 }?(number)
}

private struct EqualityKey: Hashable, Sendable {
  var number: Int
  static func == (left: Self, right: Self) -> Bool {
    behave(right.number)
    return left.number == right.number
  }
  func hash(into hasher: inout Hasher) { hasher.combine(number) }
}

private struct HashKey: Hashable, Sendable {
  var number: Int
  static func == (left: Self, right: Self) -> Bool { left.number == right.number }
  func hash(into hasher: inout Hasher) {
    behave(number)
    hasher.combine(number)
  }
}

/// A key whose number, which decides equality, may be changed.
private final class ChangingKey: Hashable, @unchecked Sendable {
  var number: Int
  init(_ number: Int) { self.number = number }
  static func == (left: ChangingKey, right: ChangingKey) -> Bool { left.number == right.number }
  func hash(into hasher: inout Hasher) { hasher.combine(number) }
}

/// A key that compares at random, with few different hashes, so that it is often compared.
private struct RandomKey: Hashable, Sendable {
  var number: Int
  static func == (left: Self, right: Self) -> Bool { (left.number == right.number) != Chance.comes(onceIn: 8) }
  func hash(into hasher: inout Hasher) { hasher.combine(number % 7) }
}

/// A value that uses a cache while it is encoded.
private struct BusyValue: PurgeableValue {
  var number: Int
  init(number: Int) { self.number = number }
  init?(purgeableBytes: RawSpan) {
    behave(-1)
    guard let number = Int(purgeableBytes: purgeableBytes) else { return nil }
    self.number = number
  }
  func withPurgeableBytes<R, E: Error>(_ body: (RawSpan) throws(E) -> R) throws(E) -> R {
    behave(number)
    return try number.withPurgeableBytes(body)
  }
}

@Suite("PurgeableCache, code of the program")
struct CacheUserCodeTests {
  @Test("a key's == may use its cache in every way, on every call")
  func equality() async {
    await #expect(processExitsWith: .success) {
      alarm(600)
      let cache = try PurgeableCache<EqualityKey, Int>(countLimit: 100)
      manners.withLock { manners in
        manners = { number in
          _ = cache.byteCount
          _ = cache.statistics
          cache[EqualityKey(number: number + 1000)] = number
          _ = cache[EqualityKey(number: number + 1000)]
          _ = cache.containsValue(forKey: EqualityKey(number: number))
          cache.remove(forKey: EqualityKey(number: number + 1000))
          cache.sweep()
        }
      }
      for round in 0..<3 {
        for number in 0..<50 { cache[EqualityKey(number: number)] = number + round }
        for number in 0..<50 {
          let key = EqualityKey(number: number)
          require(cache[key] == number + round, "round \(round), \(number)")
          require(cache.containsValue(forKey: key) && cache.peekValue(forKey: key) == number + round, "asked")
          require(cache.withBytes(forKey: key) { $0.byteCount } == 8, "lent")
        }
      }
      for number in 0..<50 { require(cache.remove(forKey: EqualityKey(number: number)), "removed") }
      require(cache.isEmpty, "empty")
      cache.checkBooksSwept()
    }
  }

  @Test("a key's == may remove the very key that is looked for")
  func equalityRemoves() async {
    await #expect(processExitsWith: .success) {
      alarm(600)
      let cache = try PurgeableCache<EqualityKey, Int>()
      manners.withLock { $0 = { cache.remove(forKey: EqualityKey(number: $0)) } }
      for round in 0..<100 {
        for number in 0..<10 { cache[EqualityKey(number: number)] = round }
        for number in 0..<10 { require([nil, round].contains(cache[EqualityKey(number: number)]), "wrong value") }
      }
      manners.withLock { $0 = nil }
      cache.removeAll()
      cache.checkBooksSwept()
      require(cache.keyCounts == (0, 0), "keys are left")
    }
  }

  @Test("a key's == may fork, and the child uses the cache", .forks)
  func equalityForks() async {
    await #expect(processExitsWith: .success) {
      alarm(600)
      let cache = try PurgeableCache<EqualityKey, Int>()
      for number in 0..<20 { cache[EqualityKey(number: number)] = number }
      let forks = Atomic<Int>(0)
      manners.withLock { manners in
        manners = { _ in
          guard forks.add(1, ordering: .relaxed).newValue <= 3 else { return }
          let isWell = childSays {
            for number in 0..<20 where cache[EqualityKey(number: number)] != nil { return false }
            for number in 0..<20 { cache[EqualityKey(number: number)] = -number }
            return (0..<20).allSatisfy { cache[EqualityKey(number: $0)] == -$0 }
          }
          require(isWell, "the child")
        }
      }
      for number in 0..<20 { require(cache[EqualityKey(number: number)] == number, "the parent") }
      require(forks.load(ordering: .relaxed) > 2, "nobody forked")
    }
  }

  @Test("a key's hash(into:) may look up another key")
  func hashing() async {
    await #expect(processExitsWith: .success) {
      alarm(600)
      for costLimit in [nil, 1000 as Int?] {
        manners.withLock { $0 = nil }
        let cache = try PurgeableCache<HashKey, Int>(costLimit: costLimit)
        for number in 0..<40 { cache[HashKey(number: number)] = number }
        manners.withLock { manners in
          manners = { number in
            let other = (number + 1) % 40
            require(cache[HashKey(number: other)] == other, "inside")
            cache[HashKey(number: other)] = other
          }
        }
        for number in 0..<40 { require(cache[HashKey(number: number)] == number, "outside") }
        for number in 40..<80 { cache[HashKey(number: number)] = number }
        cache.checkBooksSwept()
      }
    }
  }

  @Test("keys changed until some are equal lose their entries, and nothing else")
  func changed() async {
    await #expect(processExitsWith: .success) {
      alarm(600)
      let cache = try PurgeableCache<ChangingKey, Int>()
      let keys = (0..<50).map { ChangingKey($0) }
      for (number, key) in keys.enumerated() { cache[key] = number }
      for number in 0..<25 { keys[number].number = 1000 }
      // Enough keys for the table to grow several times.
      for number in 2000..<12_000 { cache[ChangingKey(number)] = number }
      for number in 25..<50 { require(cache[ChangingKey(number)] == number, "\(number)") }
      for number in 2000..<12_000 { require(cache[ChangingKey(number)] == number, "\(number)") }
      for number in 0..<25 { require(cache[ChangingKey(number)] == nil, "lost") }
      cache[ChangingKey(1000)] = 5
      require(cache[ChangingKey(1000)] == 5, "a new one of that number")
      cache.checkBooksSwept()
      cache.removeAll()
      require(cache.isEmpty, "empty")
      require(cache.keyCounts == (0, 0), "keys are left")
    }
  }

  @Test("an == that answers at random harms only its own entries")
  func random() async {
    await #expect(processExitsWith: .success) {
      alarm(600)
      let told = Atomic<Int>(0)
      let cache = try PurgeableCache<RandomKey, Int>(countLimit: 60) { _ in told.add(1, ordering: .relaxed) }
      onThreads(3) { thread in
        var random = SplitMix64(seed: chosenSeed &+ UInt64(thread) &+ 5)
        for round in 0..<(TestRun.isFull ? 4000 : 1200) / slowness {
          let key = RandomKey(number: random.index(below: 100))
          cache[key] = round
          _ = cache[key]
          if round % 3 == 0 { cache.remove(forKey: key) }
        }
      }
      cache.checkBooksSwept()
      let numbers = cache.statistics
      let gone = Int(numbers.insertionCount + numbers.replacementCount) - cache.count
      require(told.load(ordering: .relaxed) == gone, "told; seed \(chosenSeed)")
      cache.removeAll()
      require(cache.keyCounts == (0, 0), "keys are left")
    }
  }

  @Test("encoding and decoding may use the cache and fork", .forks)
  func encoding() async {
    await #expect(processExitsWith: .success) {
      alarm(600)
      for tracksKeys in [false, true] {
        manners.withLock { $0 = nil }
        let cache = try PurgeableCache<Int, BusyValue>(tracksKeys: tracksKeys)
        let forks = Atomic<Int>(0)
        manners.withLock { manners in
          manners = { number in
            cache[number + 500] = BusyValue(number: number)
            _ = cache[number + 500]?.number
            cache.remove(forKey: number + 500)
            _ = cache.statistics
            if forks.add(1, ordering: .relaxed).newValue % 20 == 1 {
              let isWell = childSays {
                cache[1] = BusyValue(number: 7)
                return cache[1]?.number == 7
              }
              require(isWell, "the child")
            }
          }
        }
        for number in 0..<50 { cache[number] = BusyValue(number: number) }
        for number in 0..<50 { require(cache[number]?.number == number, "\(number)") }
        require(cache.count == 50, "\(cache.count)")
      }
    }
  }
}
