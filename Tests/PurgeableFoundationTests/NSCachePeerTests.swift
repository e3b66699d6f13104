// SPDX-License-Identifier: MIT
// What the tests of other implementations of NSCache ask of theirs, in words of our own: swift-corelibs-foundation, GNUstep,
// WinObjC (whose tests also ran on Darwin), Cappuccino and OSCache. Where these disagree, the case says what holds here.

import Foundation
import PurgeableFoundation
import Testing

@Suite("PurgeableNSCache, asked what other implementations are asked")
struct NSCachePeerTests {
  // MARK: swift-corelibs-foundation

  @Test("a string that is equal finds what was stored under another")
  func equalStrings() {
    let cache = PurgeableNSCache<NSString, NSString>()
    let (stored, asked) = (NSString(string: "name"), NSString(string: "na" + "me"))
    cache.setObject("value", forKey: stored)
    #expect(cache.object(forKey: stored) == "value" && cache.object(forKey: asked) == "value")
    cache.setObject("other", forKey: asked)
    #expect(cache.object(forKey: stored) == "other" && cache.count == 1)
  }

  @Test("a key that changes is lost under both spellings, and found when it is itself again")
  func changingKeys() {
    let cache = PurgeableNSCache<TextKey, Item>()
    let changing = TextKey("old")
    cache.setObject(Item(1), forKey: changing)
    changing.text = "new"
    #expect(cache.object(forKey: changing) == nil && cache.object(forKey: TextKey("old")) == nil)
    changing.text = "old"
    #expect(cache.object(forKey: changing)?.number == 1 && cache.object(forKey: TextKey("old"))?.number == 1)
    // One that stays changed still leaves with the others.
    changing.text = "new"
    cache.countLimit = 1
    cache.setObject(Item(2), forKey: TextKey("other"))
    #expect(cache.count == 1 && cache.object(forKey: TextKey("other"))?.number == 2)
  }

  @Test("the cost limit takes the first of three, whose cost is the least, too")
  func costLimit() {
    let cache = PurgeableNSCache<NSNumber, Item>()
    cache.totalCostLimit = 5
    for number in 1...3 { cache.setObject(Item(number), forKey: NSNumber(value: number), cost: number) }
    #expect(cache.object(forKey: 1) == nil && cache.object(forKey: 2) != nil && cache.object(forKey: 3) != nil)
  }

  @Test("the count limit takes the first of three")
  func countLimit() {
    let cache = PurgeableNSCache<NSNumber, Item>()
    cache.countLimit = 2
    for number in 1...3 { cache.setObject(Item(number), forKey: NSNumber(value: number), cost: number) }
    #expect(cache.object(forKey: 1) == nil && cache.object(forKey: 2) != nil && cache.object(forKey: 3) != nil)
  }

  @Test("Hashable keys are told apart, and found by equal ones")
  func hashableKeys() {
    let cache = PurgeableNSCache<NumberKey, Item>()
    let keys = (0..<3).map(NumberKey.init)
    for key in keys { cache.setObject(Item(key.number * 10), forKey: key) }
    #expect(keys.map { cache.object(forKey: $0)?.number } == [0, 10, 20])
    #expect((0..<3).map { cache.object(forKey: NumberKey($0))?.number } == [0, 10, 20])
  }

  @Test("keys that are not Hashable are told apart")
  func otherKeys() {
    let cache = PurgeableNSCache<PlainKey, Item>()
    let keys = (0..<3).map(PlainKey.init)
    for key in keys { cache.setObject(Item(key.number * 10), forKey: key) }
    #expect(keys.map { cache.object(forKey: $0)?.number } == [0, 10, 20])
  }

  @Test("what a limit evicts ends, and so do its keys")
  func evictedEnds() {
    let cache = PurgeableNSCache<PlainKey, Item>()
    cache.countLimit = 1
    var ended: [Int] = []
    weak var first: PlainKey?
    do {
      let key = PlainKey(1)
      first = key
      cache.setObject(Item(1) { ended.append(1) }, forKey: key)
    }
    #expect(first != nil && ended.isEmpty)
    cache.setObject(Item(2) { ended.append(2) }, forKey: PlainKey(2))
    #expect(first == nil && ended == [1])
  }

  // MARK: GNUstep

  @Test("without limits nothing leaves, content included")
  func withoutLimits() {
    let cache = PurgeableNSCache<NSNumber, Content>()
    let contents = (0..<100).map(Content.init)
    for content in contents { cache.setObject(content, forKey: NSNumber(value: content.number), cost: 1000) }
    #expect(cache.count == 100 && contents.allSatisfy { !$0.isContentDiscarded })
  }

  @Test("costs are given back by removal, replacement and removal of all")
  func costsGoBack() {
    let cache = PurgeableNSCache<NSString, Item>()
    cache.totalCostLimit = 10
    for _ in 0..<5 {
      cache.setObject(Item(1), forKey: "a", cost: 10)
      cache.setObject(Item(2), forKey: "a", cost: 4)
      cache.setObject(Item(3), forKey: "b", cost: 6)
      #expect(cache.words == ["a", "b"] && cache.totalCost == 10)
      cache.removeObject(forKey: "a")
      cache.removeObject(forKey: "a")
      cache.removeObject(forKey: "none")
      #expect(cache.totalCost == 6)
      cache.removeAllObjects()
      #expect(cache.totalCost == 0 && cache.object(forKey: "b") == nil)
    }
  }

  // MARK: WinObjC and Cappuccino

  @Test("what was read lately survives, what was not goes first")
  func leastRecentlyUsed() {
    let cache = PurgeableNSCache<NSNumber, Item>()
    cache.countLimit = 5
    for number in 0..<5 { cache.setObject(Item(number), forKey: NSNumber(value: number)) }
    for number in [3, 0] { _ = cache.object(forKey: NSNumber(value: number)) }
    for number in 5..<8 { cache.setObject(Item(number), forKey: NSNumber(value: number)) }
    #expect(cache.allKeys == [3, 0, 5, 6, 7])
  }

  @Test("under a cost limit the least recently used of those with a cost go, as many as are needed")
  func costEviction() {
    let cache = PurgeableNSCache<NSString, Item>()
    cache.totalCostLimit = 50
    cache.setObject(Item(0), forKey: "free")
    cache.setObject(Item(1), forKey: "a", cost: 20)
    cache.setObject(Item(2), forKey: "b", cost: 20)
    cache.setObject(Item(3), forKey: "c", cost: 40)
    #expect(cache.words == ["free", "c"] && cache.totalCost == 40)
  }

  @Test("the delegate is told of evictions by limits, in the order of last use")
  func delegateOfLimits() {
    let cache = PurgeableNSCache<NSNumber, Item>()
    let witness = Witness()
    cache.delegate = witness
    cache.countLimit = 3
    for number in 0..<6 { cache.setObject(Item(number), forKey: NSNumber(value: number), cost: 10) }
    #expect(witness.takeTold() == [0, 1, 2])
    cache.totalCostLimit = 10
    #expect(witness.takeTold() == [3, 4])
    cache.setObject(Item(6), forKey: 6, cost: 100)
    #expect(witness.takeTold() == [6] && cache.allKeys == [5])
  }

  @Test("an object that is removed is asked to discard its content, and keeps it while somebody uses it")
  func removedContent() {
    let cache = PurgeableNSCache<NSString, Content>()
    let (idle, used) = (Content(1), Content(2))
    #expect(used.beginContentAccess())
    cache.setObject(idle, forKey: "idle")
    cache.setObject(used, forKey: "used")
    cache.removeObject(forKey: "idle")
    cache.removeObject(forKey: "used")
    #expect(idle.isContentDiscarded && !used.isContentDiscarded && cache.count == 0)
    used.endContentAccess()
    used.discardContentIfPossible()
    #expect(used.isContentDiscarded)
  }

  @Test("content of all objects that nobody uses is discarded when all are removed")
  func removedContents() {
    let cache = PurgeableNSCache<NSNumber, Content>()
    let contents = (0..<10).map(Content.init)
    for content in contents { cache.setObject(content, forKey: NSNumber(value: content.number)) }
    cache.removeAllObjects()
    #expect(contents.allSatisfy { $0.isContentDiscarded } && cache.count == 0)
  }

  @Test("evicted, replaced and refused objects discard their content", arguments: [true, false])
  func evictedContent(evictsDiscarded: Bool) {
    let cache = PurgeableNSCache<NSString, Content>()
    cache.evictsObjectsWithDiscardedContent = evictsDiscarded
    cache.totalCostLimit = 50
    let contents = (0..<4).map(Content.init)
    cache.setObject(contents[0], forKey: "a", cost: 30)
    cache.setObject(contents[1], forKey: "b", cost: 30)
    cache.setObject(contents[2], forKey: "b", cost: 30)
    cache.setObject(contents[3], forKey: "c", cost: 100)
    #expect(contents.map(\.isContentDiscarded) == [true, true, false, true] && cache.words == ["b"])
  }

  @Test("content that went before is noticed by a look-up: the object leaves and is told, or stays by choice")
  func noticed() {
    let cache = PurgeableNSCache<NSString, Content>()
    let witness = Witness()
    cache.delegate = witness
    let content = Content(1)
    cache.setObject(content, forKey: "a", cost: 9)
    content.discardContentIfPossible()
    cache.evictsObjectsWithDiscardedContent = false
    #expect(cache.object(forKey: "a") === content && witness.takeTold().isEmpty && cache.totalCost == 9)
    cache.evictsObjectsWithDiscardedContent = true
    #expect(cache.object(forKey: "a") == nil && witness.takeTold() == [1] && cache.totalCost == 0 && cache.count == 0)
  }

  @Test("content behind a wider type is found, and so is a PurgeableData")
  func contentBehind() throws {
    let cache = PurgeableNSCache<NSNumber, AnyObject>()
    let content = Content(1)
    let data = try PurgeableData([1, 2, 3])
    data.endContentAccess()
    cache.setObject(Item(0), forKey: 0)
    cache.setObject(content, forKey: 1)
    cache.setObject(data, forKey: 2)
    cache.removeAllObjects()
    #expect(content.isContentDiscarded && data.isContentDiscarded)
  }

  // MARK: OSCache

  @Test("subscripts look up, store and remove")
  func subscripts() {
    let cache = PurgeableNSCache<NSString, Item>()
    cache["a"] = Item(1)
    cache["a"] = Item(2)
    cache["b"] = Item(3)
    #expect(cache["a"]?.number == 2 && cache["c"] == nil)
    cache["a"] = nil
    cache["c"] = nil
    #expect(cache["a"] == nil && cache.words == ["b"])
  }

  @Test("a veto passes an object over, and the next goes; removals ask nobody")
  func vetoes() {
    let cache = PurgeableNSCache<NSNumber, Item>()
    let witness = Witness()
    witness.onAsking = { _, object in (object as? Item)?.number != 0 }
    cache.delegate = witness
    cache.countLimit = 3
    for number in 0..<5 { cache.setObject(Item(number), forKey: NSNumber(value: number)) }
    #expect(cache.allKeys == [0, 3, 4] && witness.takeTold() == [1, 2] && witness.takeAsked() == [0, 1, 0, 2])
    cache.removeObject(forKey: 0)
    cache.removeAllObjects()
    #expect(witness.takeTold().sorted() == [0, 3, 4] && witness.takeAsked().isEmpty)
  }

  @Test("where every object is kept by a veto the store returns, above the limit")
  func allVetoed() {
    let cache = PurgeableNSCache<NSNumber, Item>()
    let witness = Witness()
    witness.onAsking = { _, _ in false }
    cache.delegate = witness
    (cache.countLimit, cache.totalCostLimit) = (2, 10)
    for number in 0..<5 { cache.setObject(Item(number), forKey: NSNumber(value: number), cost: 10) }
    #expect(cache.count == 5 && cache.totalCost == 50 && witness.takeTold().isEmpty)
    cache.delegate = nil
    cache.setObject(Item(5), forKey: 5, cost: 5)
    #expect(cache.allKeys == [5] && cache.totalCost == 5)
  }

  @Test("an unlimited cost is unlimited: more than 32 bits hold")
  func manyBits() {
    let cache = PurgeableNSCache<NSString, Item>()
    cache.setObject(Item(1), forKey: "a", cost: 3_000_000_000)
    #expect(cache.object(forKey: "a") != nil && cache.totalCost == 3_000_000_000)
  }

  @Test("an enumeration ends where it is told to, and may take out what it stands on")
  func enumeration() {
    let cache = PurgeableNSCache<NSNumber, Item>()
    for number in 0..<10 { cache.setObject(Item(number), forKey: NSNumber(value: number)) }
    var seen: [Int] = []
    cache.enumerateKeysAndObjects { key, object, stop in
      seen.append(object.number)
      if object.number % 2 == 0 { cache.removeObject(forKey: key) }
      stop = object.number == 6
    }
    #expect(seen == Array(0...6) && cache.allKeys == [1, 3, 5, 7, 8, 9])
  }
}
