// SPDX-License-Identifier: MIT
// PurgeableNSCache, case by case.

import Foundation
import Testing

@testable import Purgeable
@testable import PurgeableFoundation

@Suite("PurgeableNSCache")
struct NSCacheTests {
  @Test("begins as NSCache does: no name, no limits, no delegate, and objects without content leave")
  func beginning() {
    let cache = PurgeableNSCache<NSString, Item>()
    #expect(cache.name == "" && cache.countLimit == 0 && cache.totalCostLimit == 0 && cache.delegate == nil)
    #expect(cache.evictsObjectsWithDiscardedContent)
    #expect(cache.count == 0 && cache.totalCost == 0 && cache.allKeys.isEmpty && cache.object(forKey: "a") == nil)
    cache.name = "images"
    cache.setObject(Item(1), forKey: "a", cost: 7)
    #expect(cache.name == "images" && "\(cache)" == "PurgeableNSCache \"images\": 1 object, cost 7")
  }

  @Test("a limit of 0 or less is none, and admits everything")
  func noLimits() {
    let cache = PurgeableNSCache<NSNumber, Item>()
    for limit in [1, 0, 1, -1, 1, .min] { (cache.countLimit, cache.totalCostLimit) = (limit, limit) }
    #expect(cache.countLimit == 0 && cache.totalCostLimit == 0)
    for number in 0..<1000 { cache.setObject(Item(number), forKey: NSNumber(value: number), cost: 3_000_000_000) }
    #expect(cache.count == 1000 && cache.totalCost == 3_000_000_000_000)
    (cache.countLimit, cache.totalCostLimit) = (10, .max)
    #expect(cache.countLimit == 10 && cache.totalCostLimit == .max && cache.count == 10)
  }

  @Test("the same object, and the same cache to its delegate, whatever the types")
  func identity() throws {
    let cache = PurgeableNSCache<NSString, Item>()
    let witness = Witness()
    let item = Item(1)
    var isSame = false
    witness.onTelling = { [unowned cache] told, object in isSame = told === cache && object as? Item === item }
    cache.delegate = witness
    #expect(cache.delegate === witness)
    cache.setObject(item, forKey: "a")
    #expect(cache.object(forKey: key("a")) === item)
    cache.removeObject(forKey: key("a"))
    #expect(isSame)
  }

  @Test("a delegate may store by its view of the cache, and the cache finds that")
  func storesOfDelegates() {
    let cache = PurgeableNSCache<NSString, Item>()
    let witness = Witness()
    witness.onTelling = { cache, object in cache.setObject(object as AnyObject, forKey: key("last"), cost: 2) }
    cache.delegate = witness
    cache.setObject(Item(5), forKey: "a")
    cache.removeObject(forKey: "a")
    cache.delegate = nil
    #expect(cache.object(forKey: "last")?.number == 5 && cache.totalCost == 2 && cache.words == ["last"])
  }

  @Test("what is not of the cache's types stops the program, with a message")
  func wrongTypes() async {
    let wrongObject = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      let cache = PurgeableNSCache<NSString, Item>()
      let witness = Witness()
      witness.onTelling = { cache, _ in cache.setObject(NSString(string: "no item"), forKey: NSString(string: "b")) }
      cache.delegate = witness
      cache.setObject(Item(1), forKey: "a")
      cache.removeAllObjects()
    }
    let wrongKey = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      let cache = PurgeableNSCache<NSString, Item>()
      let witness = Witness()
      witness.onTelling = { cache, object in cache.setObject(object as AnyObject, forKey: NSNumber(value: 1)) }
      cache.delegate = witness
      cache.setObject(Item(1), forKey: "a")
      cache.removeAllObjects()
    }
    func text(_ result: ExitTest.Result?) -> String { String(decoding: result?.standardErrorContent ?? [], as: UTF8.self) }
    #expect(text(wrongObject).contains("PurgeableNSCache<NSString, Item>.setObject: an object of the class NSString"))
    #expect(text(wrongKey).contains("PurgeableNSCache<NSString, Item>.setObject: a key of the class NSNumber"))
  }

  @Test("objects and keys of derived classes are of the cache's types")
  func derivedClasses() {
    let cache = PurgeableNSCache<NSObject, NSObject>()
    cache.setObject(NSString(string: "text"), forKey: NSNumber(value: 1))
    cache.setObject(NSNumber(value: 2), forKey: NSString(string: "two"))
    cache.setObject(NSMutableString(string: "more"), forKey: NSNumber(value: 1))
    #expect(cache.object(forKey: NSNumber(value: 1)) == NSString(string: "more"))
    #expect(cache.object(forKey: NSMutableString(string: "two")) == NSNumber(value: 2) && cache.count == 2)
  }

  @Test("a subclass may override what it likes")
  func subclasses() {
    final class Counting: PurgeableNSCache<NSString, Item> {
      var lookUpCount = 0
      override func object(forKey key: NSString) -> Item? {
        lookUpCount += 1
        return super.object(forKey: key)
      }
    }
    let cache = Counting()
    cache["a"] = Item(1)
    #expect(cache["a"]?.number == 1 && cache["b"] == nil && cache.lookUpCount == 2)
  }

  @Test("the delegate is held weakly, and may change: the old one is told of nothing more")
  func delegates() {
    let cache = PurgeableNSCache<NSString, Item>()
    let first = Witness()
    var second: Witness? = Witness()
    cache.delegate = first
    cache.setObject(Item(1), forKey: "a")
    cache.delegate = second
    cache.removeObject(forKey: "a")
    #expect(first.takeTold().isEmpty && second?.takeTold() == [1])
    second = nil
    #expect(cache.delegate == nil)
    cache.countLimit = 1
    for (number, word) in ["a", "b", "c"].enumerated() { cache.setObject(Item(number), forKey: key(word)) }
    #expect(cache.words == ["c"])
    cache.delegate = first
    cache.delegate = nil
    cache.removeAllObjects()
    #expect(first.takeTold().isEmpty && cache.count == 0)
    // A limit that a delegate did not let hold holds when it is gone.
    first.onAsking = { _, _ in false }
    cache.delegate = first
    for (number, word) in ["a", "b", "c"].enumerated() { cache.setObject(Item(number), forKey: key(word)) }
    #expect(cache.words == ["a", "b", "c"])
    cache.delegate = nil
    #expect(cache.words == ["c"])
  }

  @Test("the delegate's functions are optional: without them everything may go, and nothing is told")
  func optionalFunctions() {
    let cache = PurgeableNSCache<NSString, Item>()
    let delegate = SilentDelegate()
    cache.delegate = delegate
    cache.countLimit = 2
    for (number, word) in ["a", "b", "c"].enumerated() { cache.setObject(Item(number), forKey: key(word)) }
    #expect(cache.words == ["b", "c"])
  }

  @Test("a delegate without a veto is not asked again; one that asks others is, whatever these have")
  func forwarding() {
    final class Forwarder: PurgeableNSCacheDelegate {
      let inner = SilentDelegate()
      var askedCount = 0

      func cache(_ cache: AnyNSCache, shouldEvictObject obj: Any) -> Bool {
        askedCount += 1
        return inner.cache(cache, shouldEvictObject: obj) && (obj as? Item)?.number != 2
      }
    }
    let cache = PurgeableNSCache<NSNumber, Item>()
    cache.countLimit = 3
    let (silent, forwarder) = (SilentDelegate(), Forwarder())
    cache.delegate = silent
    func store(_ numbers: Range<Int>) { for number in numbers { cache.setObject(Item(number), forKey: NSNumber(value: number)) } }
    var isAsked: Bool { cache.core.objects.store.handlers.asks != nil }
    store(0..<3)
    #expect(isAsked)
    store(3..<5)
    #expect(!isAsked && cache.allKeys == [2, 3, 4])
    cache.delegate = forwarder
    store(5..<8)
    #expect(cache.allKeys == [2, 6, 7] && forwarder.askedCount == 6)
  }

  @Test("an object above the whole cost limit is refused: told, its key's old object is gone, and the others stay")
  func tooLarge() {
    let cache = PurgeableNSCache<NSString, Item>()
    let witness = Witness()
    cache.delegate = witness
    cache.totalCostLimit = 10
    cache.setObject(Item(1), forKey: "a", cost: 4)
    cache.setObject(Item(2), forKey: "b", cost: 6)
    cache.setObject(Item(3), forKey: "a", cost: 11)
    #expect(witness.takeTold() == [1, 3] && cache.words == ["b"] && cache.totalCost == 6)
    cache.setObject(Item(4), forKey: "a", cost: -5)
    cache.setObject(Item(5), forKey: "c", cost: 10)
    #expect(witness.takeTold() == [2] && cache.words == ["a", "c"] && cache.totalCost == 10)
  }

  @Test("an object stored again under its key has not left: nobody is told, its content stays, and the cost is the new one")
  func sameObject() {
    let cache = PurgeableNSCache<NSString, Content>()
    let witness = Witness()
    cache.delegate = witness
    let content = Content(1)
    cache.setObject(content, forKey: "a", cost: 3)
    cache.setObject(content, forKey: key("a"), cost: 4)
    #expect(witness.takeTold().isEmpty && !content.isContentDiscarded && cache.totalCost == 4)
    cache.setObject(Content(2), forKey: "a")
    #expect(witness.takeTold() == [1] && content.isContentDiscarded)
    // Also one whose content is gone, which leaves when it is found so; and one that is refused leaves once.
    let gone = Content(3)
    cache.setObject(gone, forKey: "b")
    gone.discardContentIfPossible()
    cache.setObject(gone, forKey: "b")
    #expect(witness.takeTold().isEmpty && cache.object(forKey: "b") == nil && witness.takeTold() == [3])
    cache.totalCostLimit = 10
    let large = Content(4)
    cache.setObject(large, forKey: "c", cost: 10)
    cache.setObject(large, forKey: "c", cost: 11)
    #expect(witness.takeTold() == [4] && cache.object(forKey: "c") == nil && large.isContentDiscarded)
  }

  @Test("any thread: what they store is whole, limits hold, and each object that leaves is told once")
  func threads() {
    let cache = PurgeableNSCache<NSNumber, Item>()
    let witness = Witness()
    cache.delegate = witness
    cache.countLimit = 100
    cache.totalCostLimit = 5000
    // Safe: any thread may call it. So may the delegate be called.
    nonisolated(unsafe) let (shared, delegate) = (cache, witness)
    let wrong = Count()
    DispatchQueue.concurrentPerform(iterations: 4) { thread in
      for step in 0..<3000 {
        let number = thread * 3000 + step
        let key = NSNumber(value: number % 250)
        switch step % 8 {
        case 0..<4: unsafe shared.setObject(Item(number), forKey: key, cost: number % 90)
        case 4: unsafe shared.removeObject(forKey: key)
        case 5: unsafe shared.name = "\(thread)"
        case 6:
          unsafe (shared.delegate, shared.totalCostLimit, shared.countLimit) = (delegate, 5000, 100)
          unsafe shared.evictsObjectsWithDiscardedContent = true
          if unsafe shared.delegate !== delegate || shared.totalCostLimit != 5000 { wrong.add() }
        default: if let item = unsafe shared.object(forKey: key), item.number % 250 != key.intValue { wrong.add() }
        }
      }
    }
    #expect(wrong.isNone && cache.count <= 100 && cache.totalCost <= 5000)
    cache.removeAllObjects()
    let told = witness.takeTold()
    #expect(told.count == 6000 && Set(told).count == 6000)
  }
}
