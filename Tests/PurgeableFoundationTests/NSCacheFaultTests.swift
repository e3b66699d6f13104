// SPDX-License-Identifier: MIT
// What NSCache of Linux's Foundation gets wrong (Swift 6.3), each with a test that it fails: PurgeableNSCache does not.

import Foundation
import Purgeable
import Synchronization
import Testing
import ToolSupport

@testable import PurgeableFoundation

/// A key that counts what it is asked, of one test.
private final class CountingKey: NSObject {
  private let number: Int
  static let hashCount = Atomic<Int>(0)
  static let comparisonCount = Atomic<Int>(0)

  init(_ number: Int) { self.number = number }

  override var hash: Int {
    Self.hashCount.add(1, ordering: .relaxed)
    return number
  }

  override func isEqual(_ object: Any?) -> Bool {
    Self.comparisonCount.add(1, ordering: .relaxed)
    return (object as? CountingKey)?.number == number
  }
}

@Suite("PurgeableNSCache, where Linux's NSCache fails")
struct NSCacheFaultTests {
  @Test("evictsObjectsWithDiscardedContent is true at first, and is heeded")
  func discardedContent() {
    let cache = PurgeableNSCache<NSString, Content>()
    let witness = Witness()
    cache.delegate = witness
    let (first, second) = (Content(1), Content(2))
    cache.setObject(first, forKey: "a", cost: 5)
    cache.setObject(second, forKey: "b", cost: 6)
    first.discardContentIfPossible()
    #expect(cache.object(forKey: "a") == nil && cache.count == 1 && cache.totalCost == 6 && witness.takeTold() == [1])
    cache.evictsObjectsWithDiscardedContent = false
    second.discardContentIfPossible()
    #expect(cache.object(forKey: "b") === second && cache.totalCost == 6 && witness.takeTold().isEmpty)
  }

  // MARK: Who goes

  @Test("at its count limit a cache keeps the newest objects, and not its first ones for ever")
  func newestStay() {
    let cache = PurgeableNSCache<NSString, Item>()
    cache.countLimit = 2
    for (number, word) in ["a", "b", "c", "d"].enumerated() { cache.setObject(Item(number), forKey: key(word)) }
    #expect(cache.words == ["c", "d"])
  }

  @Test("a look-up counts as a use: what is read stays, whatever it costs")
  func readsCount() {
    let cache = PurgeableNSCache<NSString, Item>()
    cache.countLimit = 3
    for (cost, word) in ["a", "b", "c"].enumerated() { cache.setObject(Item(cost), forKey: key(word), cost: 3 - cost) }
    #expect(cache.object(forKey: "a") != nil)
    cache.setObject(Item(3), forKey: "d")
    #expect(cache.words == ["c", "a", "d"])
  }

  @Test("the cost limit does not cost the objects that cost nothing")
  func freeObjectsStay() {
    let cache = PurgeableNSCache<NSNumber, Item>()
    cache.totalCostLimit = 10
    for number in 0..<1000 { cache.setObject(Item(number), forKey: NSNumber(value: number)) }
    cache.setObject(Item(1000), forKey: 1000, cost: 5)
    cache.setObject(Item(1001), forKey: 1001, cost: 6)
    #expect(cache.count == 1001 && cache.totalCost == 6 && cache.object(forKey: 1000) == nil)
  }

  @Test("one object above the whole limit does not empty the cache")
  func oversize() {
    let cache = PurgeableNSCache<NSNumber, Item>()
    cache.totalCostLimit = 10
    for cost in 1...3 { cache.setObject(Item(cost), forKey: NSNumber(value: cost), cost: cost) }
    cache.setObject(Item(4), forKey: 4, cost: 20)
    #expect(cache.allKeys == [1, 2, 3] && cache.totalCost == 6)
  }

  @Test("a new object of the same cost makes its key the last to go")
  func replacedIsUsed() {
    let cache = PurgeableNSCache<NSString, Item>()
    cache.countLimit = 3
    for (cost, word) in ["a", "b", "c"].enumerated() { cache.setObject(Item(0), forKey: key(word), cost: cost + 1) }
    cache.setObject(Item(1), forKey: "a", cost: 1)
    cache.setObject(Item(2), forKey: "d", cost: 4)
    #expect(cache.words == ["c", "a", "d"])
  }

  @Test("a lower limit evicts at once, and not with the next store")
  func lowerLimits() {
    let cache = PurgeableNSCache<NSNumber, Item>()
    for number in 0..<10 { cache.setObject(Item(number), forKey: NSNumber(value: number), cost: 2) }
    cache.countLimit = 7
    #expect(cache.allKeys == [3, 4, 5, 6, 7, 8, 9])
    cache.totalCostLimit = 5
    #expect(cache.allKeys == [8, 9])
  }

  // MARK: Concurrency

  private func needsSendable<T: Sendable>(_: T.Type) -> Bool { true }

  @Test("a cache of objects may be shared among tasks, without a word of the program")
  func sendable() { #expect(needsSendable(ObjectCache<String, Content>.self)) }

  // MARK: Work

  @Test("a store or a look-up asks its key's hash once, and compares with no other key, however many there are")
  func work() {
    let cache = PurgeableNSCache<CountingKey, Item>()
    let keys = (0..<4000).map(CountingKey.init)
    // By rising costs, for which Linux's walks a list of all that is there: that is the benchmark's to show.
    for (cost, key) in keys.enumerated() { cache.setObject(Item(cost), forKey: key, cost: cost) }
    for key in keys { _ = cache.object(forKey: key) }
    cache.countLimit = 1000
    for key in keys { cache.removeObject(forKey: key) }
    #expect(CountingKey.hashCount.load(ordering: .relaxed) == 12_000)
    #expect(CountingKey.comparisonCount.load(ordering: .relaxed) == 0 && cache.count == 0)
  }

  // MARK: Keys

  @Test("Swift keys that are equal meet, also one of a derived class")
  func swiftKeys() {
    let cache = PurgeableNSCache<NumberKey, Item>()
    cache.setObject(Item(1), forKey: NumberKey(1))
    cache.setObject(Item(2), forKey: NamedNumberKey(2, name: "two"))
    #expect(cache.object(forKey: NumberKey(1))?.number == 1 && cache.object(forKey: NumberKey(3)) == nil)
    #expect(cache.object(forKey: NamedNumberKey(1, name: "one"))?.number == 1)
    #expect(cache.object(forKey: NumberKey(2))?.number == 2)
    cache.setObject(Item(3), forKey: NumberKey(2))
    #expect(cache.count == 2)
    cache.removeObject(forKey: NamedNumberKey(2, name: ""))
    #expect(cache.allKeys.map(\.number) == [1])
    // Two classes that are derived from the one with the `==`.
    cache.setObject(Item(4), forKey: OtherNumberKey(4))
    #expect(cache.object(forKey: NamedNumberKey(4, name: ""))?.number == 4 && cache.object(forKey: OtherNumberKey(5)) == nil)
    #expect(cache.object(forKey: NumberKey(4))?.number == 4)
    cache.setObject(Item(5), forKey: NamedNumberKey(4, name: ""))
    #expect(cache.count == 2)
  }

  @Test("keys without `==` go by identity, and their hashes differ")
  func plainKeys() {
    let cache = PurgeableNSCache<PlainKey, Item>()
    let keys = (0..<100).map(PlainKey.init)
    for key in keys { cache.setObject(Item(key.number), forKey: key) }
    #expect(keys.allSatisfy { cache.object(forKey: $0)?.number == $0.number } && cache.count == 100)
    #expect(cache.object(forKey: PlainKey(1)) == nil)
    let memo = KeyRulesMemo()
    #expect(Set(keys.map { ObjectKey($0, memo).hashValue }).count > 90)
  }

  @Test("a PurgeableData goes by identity, though it compares by content and refuses to be hashed")
  func purgeableKeys() throws {
    let cache = PurgeableNSCache<PurgeableData, Item>()
    let (one, equal) = (try PurgeableData([1, 2, 3]), try PurgeableData([1, 2, 3]))
    cache.setObject(Item(1), forKey: one)
    #expect(one == equal && cache.object(forKey: equal) == nil && cache.object(forKey: one)?.number == 1)
  }

  @Test("keys of all kinds in one cache stand apart")
  func mixedKeys() {
    let cache = PurgeableNSCache<AnyObject, Item>()
    let plain = PlainKey(1)
    let keys: [AnyObject] = [NSNumber(value: 1), NumberKey(1), plain, NSString(string: "1"), TextKey("1"), OddKey(1)]
    for round in 0..<3 {
      for (number, key) in keys.enumerated() { cache.setObject(Item(number + round), forKey: key) }
      #expect(cache.count == keys.count)
    }
    let again: [AnyObject] = [NSNumber(value: 1), NumberKey(1), plain, NSString(string: "1"), TextKey("1"), OddKey(1)]
    for (number, key) in again.enumerated() { #expect(cache.object(forKey: key)?.number == number + 2) }
  }

  // MARK: User code

  @Test("a delegate may read and change the cache, also from within a call that its own change caused")
  func delegatesUseTheCache() {
    let cache = PurgeableNSCache<NSNumber, Item>()
    let witness = Witness()
    var told = 0
    witness.onTelling = { [unowned cache] _, object in
      told += 1
      _ = cache.object(forKey: 0)
      if let item = object as? Item, item.number < 50 {
        cache.setObject(Item(item.number + 50), forKey: NSNumber(value: item.number + 50))
        cache.removeObject(forKey: NSNumber(value: item.number + 51))
      }
    }
    witness.onAsking = { [unowned cache] _, object in cache.count > 0 && cache.object(forKey: 100_000) == nil }
    cache.delegate = witness
    cache.countLimit = 10
    for number in 0..<50 { cache.setObject(Item(number), forKey: NSNumber(value: number)) }
    #expect(cache.count <= 10 && told >= 50)
    cache.removeAllObjects()
    cache.delegate = nil
  }

  @Test("objects that use the cache as they end: on replacement, removal, eviction and removal of all")
  func endsUseTheCache() {
    let cache = PurgeableNSCache<NSString, Item>()
    var ended: [Int] = []
    func item(_ number: Int) -> Item {
      Item(number) { [unowned cache] in
        ended.append(number)
        _ = cache.object(forKey: "a")
        cache.setObject(Item(number + 100), forKey: "ended")
      }
    }
    cache.setObject(item(1), forKey: "a")
    cache.setObject(item(2), forKey: "a")
    #expect(ended == [1])
    cache.removeObject(forKey: "a")
    #expect(ended == [1, 2])
    cache.setObject(item(3), forKey: "a")
    cache.countLimit = 2
    cache.setObject(item(4), forKey: "b")
    #expect(cache.count == 2)
    cache.removeAllObjects()
    #expect(ended.sorted() == [1, 2, 3, 4])
    cache.removeAllObjects()
    #expect(cache.count == 0)
  }

  @Test("keys that use the cache as they are compared")
  func comparisonsUseTheCache() {
    let cache = PurgeableNSCache<OddKey, Item>()
    var calls = 0
    func use() {
      calls += 1
      _ = cache.count + cache.allKeys.count
    }
    for number in 0..<20 { cache.setObject(Item(number), forKey: OddKey(number, compares: use)) }
    for number in 0..<20 { #expect(cache.object(forKey: OddKey(number, compares: use))?.number == number) }
    #expect(cache.count == 20 && calls > 20)
  }

  @Test("the delegate is told of what is replaced and removed, one by one, and of all when all go")
  func tellsOfAll() {
    let cache = PurgeableNSCache<NSString, Item>()
    let witness = Witness()
    cache.delegate = witness
    cache.setObject(Item(1), forKey: "a")
    cache.setObject(Item(2), forKey: "a")
    #expect(witness.takeTold() == [1])
    cache.removeObject(forKey: "a")
    cache.removeObject(forKey: "a")
    #expect(witness.takeTold() == [2])
    for (number, word) in ["a", "b", "c"].enumerated() { cache.setObject(Item(number), forKey: key(word)) }
    cache.removeAllObjects()
    #expect(witness.takeTold().sorted() == [0, 1, 2] && witness.takeAsked().isEmpty)
  }

  // MARK: Memory and sums

  @Test("a cache that is dropped frees all of its objects and keys", arguments: [1, 2, 100, 10_000])
  func dropped(count: Int) {
    let ended = Count()
    weak var lastKey: NSString?
    weak var gone: PurgeableNSCache<NSString, Item>?
    do {
      let cache = PurgeableNSCache<NSString, Item>()
      gone = cache
      let witness = Witness()
      cache.delegate = witness
      for number in 0..<count {
        let key = NSString(string: "a key of some length, number \(number)")
        cache.setObject(Item(number) { ended.add() }, forKey: key)
        lastKey = key
      }
      #expect(ended.isNone && lastKey != nil)
    }
    #expect(gone == nil)
    // The library's thread may be looking at the cache just now, and let go of it a moment later.
    #expect(patiently { ended.number == count && lastKey == nil })
  }

  @Test("the largest costs add up to the largest number, and no further")
  func largestCosts() {
    let cache = PurgeableNSCache<NSNumber, Item>()
    for number in 0..<3 { cache.setObject(Item(number), forKey: NSNumber(value: number), cost: .max) }
    cache.setObject(Item(3), forKey: 3, cost: 1)
    cache.setObject(Item(4), forKey: 4, cost: .min)
    #expect(cache.totalCost == .max && cache.count == 5)
    for number in 0..<3 { cache.removeObject(forKey: NSNumber(value: number)) }
    #expect(cache.totalCost == 1)
  }

  @Test("count, cost, keys and objects can be asked for, in the order of last use, without being one")
  func questions() {
    let cache = PurgeableNSCache<NSString, Item>()
    for (number, word) in ["a", "b", "c"].enumerated() { cache.setObject(Item(number), forKey: key(word), cost: number) }
    _ = cache["a"]
    #expect(cache.count == 3 && cache.totalCost == 3 && cache.words == ["b", "c", "a"])
    var seen: [String] = []
    cache.enumerateKeysAndObjects { key, object, stop in
      seen.append("\(key) \(object.number)")
      cache.removeObject(forKey: "a")
      stop = seen.count == 2
    }
    #expect(seen == ["b 1", "c 2"] && cache.words == ["b", "c"])
  }
}
