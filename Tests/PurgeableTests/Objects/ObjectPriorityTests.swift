// SPDX-License-Identifier: MIT
// Priorities of objects: speculative ones go first, pinned ones stay.

import PurgeableTestSupport
import Testing

@testable import Purgeable

private final class Content: DiscardableContent, @unchecked Sendable {
  private let isGone = Guarded(false)
  var isContentDiscarded: Bool { isGone.withLock { $0 } }
  func beginContentAccess() -> Bool { !isContentDiscarded }
  func endContentAccess() {}
  func discardContentIfPossible() { isGone.withLock { $0 = true } }
}

@Suite("objects: priority")
struct ObjectPriorityTests {
  private func told(_ cache: ObjectCache<Int, String>, _ key: Int) -> EntryPriority? { cache.peekEntry(forKey: key)?.priority }

  @Test("beside what is pinned, at the limit: what is stored goes at once, of any priority; what was loaded keeps its content")
  func fullOfPins() throws {
    for priority in [EntryPriority.normal, .speculative] {
      let cache = try ObjectCache<Int, String>(countLimit: 1)
      cache.setValue("pinned", forKey: 1, priority: .pinned)
      cache.setValue("other", forKey: 2, priority: priority)
      #expect(cache.keys == [1])
    }
    let cache = try ObjectCache<Int, Content>(countLimit: 1)
    cache.setValue(Content(), forKey: 1, priority: .pinned)
    let loaded = cache.value(forKey: 2) { Content() }
    #expect(!loaded.isContentDiscarded && cache.keys == [1])
    let stored = Content()
    cache.setValue(stored, forKey: 2)
    #expect(stored.isContentDiscarded && cache.keys == [1])
  }

  @Test("of content that is gone no priority is changed")
  func ofGoneContent() throws {
    let cache = try ObjectCache<Int, TestContent>()
    let content = TestContent(1)
    cache.setValue(content, forKey: 1)
    content.discardContentIfPossible()
    #expect(!cache.setPriority(.pinned, forKey: 1) && cache.isEmpty)
    cache.evictsEntriesWithDiscardedContent = false
    cache.setValue(content, forKey: 1)
    #expect(cache.setPriority(.pinned, forKey: 1) && cache.count == 1)
  }

  @Test("is told with the entry, and is the new store's; only a pin stays")
  func told() throws {
    let cache = try ObjectCache<Int, String>()
    for priority in EntryPriority.allCases {
      cache.removeAll()
      cache.setValue("a", forKey: 1, priority: priority)
      #expect(told(cache, 1) == priority)
      cache.setValue("b", forKey: 1, cost: 5)
      #expect(told(cache, 1) == (priority == .pinned ? .pinned : .normal))
      for next in EntryPriority.allCases {
        #expect(cache.setPriority(next, forKey: 1))
        #expect(told(cache, 1) == next)
        #expect(cache.peekValue(forKey: 1) == "b")
      }
    }
    #expect(!cache.setPriority(.pinned, forKey: 2))
    cache.setValue("c", forKey: 3, priority: .speculative)
    _ = cache.peekValue(forKey: 3)
    #expect(told(cache, 3) == .speculative)
    _ = cache.value(forKey: 3)
    #expect(told(cache, 3) == .normal)
  }

  @Test(
    "speculative entries go before all others, in the order of their stores; a full cache takes one in", arguments: [false, true])
  func speculative(asks: Bool) throws {
    let cache = try ObjectCache<Int, String>(countLimit: 100)
    if asks { cache.shouldEvict = { _, _ in true } }
    for key in 0..<50 { cache.setValue("normal", forKey: key) }
    for key in 50..<100 { cache.setValue("speculative", forKey: key, priority: .speculative) }
    _ = cache.value(forKey: 60)
    #expect(Array(cache.keys.prefix(49)) == (50..<100).filter { $0 != 60 })
    for key in 100..<120 {
      cache.setValue("new", forKey: key)
      #expect(cache.containsValue(forKey: key))
    }
    #expect((0..<50).allSatisfy { cache.containsValue(forKey: $0) } && cache.containsValue(forKey: 60))
    #expect((50..<71).allSatisfy { $0 == 60 || !cache.containsValue(forKey: $0) })
    #expect((71..<100).allSatisfy { cache.containsValue(forKey: $0) })
    for key in 200..<300 {
      cache.setValue("new", forKey: key, priority: .speculative)
      #expect(cache.containsValue(forKey: key))
    }
    #expect(cache.count == 100 && cache.containsValue(forKey: 0))
  }

  @Test("in a cache full of normal entries, a speculative one takes the place of the oldest", arguments: [false, true])
  func speculativeInFull(byCost: Bool) throws {
    let cache = try ObjectCache<Int, String>(countLimit: byCost ? nil : 50, costLimit: byCost ? 50 : nil)
    for key in 0..<50 { cache.setValue("normal", forKey: key, cost: 1) }
    for key in 100..<120 { cache.setValue("new", forKey: key, cost: 1, priority: .speculative) }
    #expect(cache.count == 50)
    #expect((1..<50).allSatisfy { cache.containsValue(forKey: $0) } && cache.containsValue(forKey: 119))
  }

  @Test("pinned entries stay: by limits, trims, deciders and pressure, with a veto and without", arguments: [false, true])
  func pinned(asks: Bool) throws {
    let cache = try ObjectCache<Int, String>(countLimit: 500)
    if asks { cache.shouldEvict = { _, _ in true } }
    for key in 0..<100 { cache.setValue("pinned", forKey: key, cost: 10, priority: .pinned) }
    for key in 100..<2000 { cache.setValue("normal", forKey: key, cost: 10) }
    #expect(cache.count == 500)
    try cache.setCostLimit(1500)
    #expect(cache.count == 150)
    #expect(cache.evictAll { _ in true } == 50)
    #expect(cache.count == 100)
    for key in 100..<400 { cache.setValue("normal", forKey: key, cost: 0) }
    for _ in 0..<200 { _ = cache.store.giveSlice() }
    #expect(cache.count == 100 && !cache.store.giveSlice())
    cache.trim(toCount: 0)
    #expect((0..<100).allSatisfy { cache.containsValue(forKey: $0) })
    #expect(cache.setPriority(.normal, forKey: 0))
    cache.trim(toCount: 0)
    #expect(cache.count == 99 && !cache.containsValue(forKey: 0))
    #expect(cache.removeAll { $0.key < 50 } == 49)
    cache.removeAll()
    #expect(cache.isEmpty)
  }

  @Test("pinned content is not asked to go under pressure; when it is gone by itself, its entry leaves")
  func pinnedContent() throws {
    let cache = try ObjectCache<Int, Content>()
    for key in 0..<100 { cache.setValue(Content(), forKey: key, priority: key < 50 ? .pinned : nil) }
    for _ in 0..<200 { _ = cache.store.giveSlice() }
    #expect(cache.count == 50 && (0..<50).allSatisfy { cache.peekValue(forKey: $0)?.isContentDiscarded == false })
    cache.peekValue(forKey: 7)?.discardContentIfPossible()
    #expect(cache.store.sweep() == 1 && cache.count == 49)
  }
}
