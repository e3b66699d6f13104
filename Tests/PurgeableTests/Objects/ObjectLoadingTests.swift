// SPDX-License-Identifier: MIT
// What is special to loading in caches of objects. What both kinds of caches have in common is tested in Loading/.

import PurgeableTestSupport
import Synchronization
import Testing
import ToolSupport

@testable import Purgeable

@Suite("ObjectCache, loading")
struct ObjectLoadingTests {
  @Test("content that was discarded is loaded again, also where only tasks ask; by choice it is found as it is")
  func discarded() async throws {
    let told = Departures<Int, TestContent>()
    let cache = try ObjectCache<Int, TestContent> { told.note($0) }
    func load(_ number: Int) -> TestContent { cache.value(forKey: 1) { TestContent(number) } }
    let first = load(1)
    #expect(load(2) === first)
    first.discardContentIfPossible()
    #expect(load(3).number == 3 && told.take().map(\.inShort) == ["1: discarded, 0"])
    cache[1]?.discardContentIfPossible()
    #expect(await cache.value(forKey: 1) { TestContent(4) }.number == 4)
    cache[1]?.discardContentIfPossible()
    cache[2] = TestContent(20)
    let both = await cache.values(forKeys: [1, 2]) { [$0[0]: TestContent(5)] }
    #expect(both.map { $0?.number } == [5, 20])
    cache[1]?.discardContentIfPossible()
    cache.evictsEntriesWithDiscardedContent = false
    #expect(load(6).number == 5 && cache.statistics.loadCount == 4)
  }

  @Test("what one call returns for many keys has its content, also where the cache has room for fewer", arguments: [false, true])
  func manyBeyondLimit(asks: Bool) async throws {
    let told = Departures<Int, TestContent>()
    func check(_ load: (ObjectCache<Int, TestContent>, [Int]) async -> [TestContent?]) async throws {
      let cache = try ObjectCache<Int, TestContent>(countLimit: 2) { told.note($0) }
      if asks { cache.shouldEvict = { _, _ in true } }
      let (other, hit) = (TestContent(8), TestContent(0))
      cache[8] = other
      cache[0] = hit
      let found = await load(cache, [0, 1, 2, 3, 4])
      #expect(found.map { $0?.number } == [0, 1, 2, 3, 4] && found[0] === hit && cache.count == 2)
      #expect(found.allSatisfy { $0?.isContentDiscarded == false }, "what is returned")
      #expect(other.isContentDiscarded, "what has gone for it")
      // What goes afterwards goes with its content.
      let left = cache.keys
      for key in [5, 6] { cache[key] = TestContent(key) }
      #expect(left.allSatisfy { found[$0]?.isContentDiscarded == true } && told.take().count == 6)
    }
    let make: @Sendable ([Int]) -> [Int: TestContent] = { keys in
      Dictionary(uniqueKeysWithValues: keys.map { ($0, TestContent($0)) })
    }
    try await check { cache, keys in loadedHere(cache, keys, make) }
    try await check { cache, keys in await cache.values(forKeys: keys) { make($0) } }
  }

  /// On this thread.
  private func loadedHere(
    _ cache: ObjectCache<Int, TestContent>, _ keys: [Int], _ make: ([Int]) -> [Int: TestContent]
  ) -> [TestContent?] {
    cache.values(forKeys: keys, loading: make)
  }

  @Test("what is loaded anew and is too large, or valid for no time, takes the old value away; not what came meanwhile")
  func refreshedInVain() async throws {
    for (cost, expiry) in [(11, Expiry?.none), (1, .sinceCreation(.zero))] {
      for isOvertaken in [false, true] {
        let cache = try ObjectCache<Int, Int>(costLimit: 10)
        cache.costOfValue = { $0 }
        #expect(await cache.value(forKey: 1, refreshAfter: .zero) { 5 } == 5)
        #expect(
          await cache.value(forKey: 1, expiry: expiry, refreshAfter: .zero) {
            if isOvertaken { cache[1] = 7 }
            return cost
          } == 5)
        #expect(await TestRun.comes { cache.statistics.loadCount == 2 && cache.loads.counts(of: 1).waiters == 0 })
        #expect(await TestRun.comes { cache.peekValue(forKey: 1) == (isOvertaken ? 7 : nil) }, "\(cost) \(isOvertaken)")
      }
    }
  }

  @Test("a change that comes while another is made is not lost, also where what is made is too large")
  func modifiedInVain() throws {
    let cache = try ObjectCache<Int, [Int]>(costLimit: 10)
    cache.costOfValue = { $0.count }
    cache[1] = [1]
    var runs = 0
    cache.modifyValue(forKey: 1) { value in
      runs += 1
      if runs == 1 { cache[1] = [7] }
      value?.append(contentsOf: [Int](repeating: 0, count: runs == 1 ? 20 : 1))
    }
    #expect(runs == 2 && cache[1] == [7, 0])
    cache.modifyValue(forKey: 1) { $0 = [Int](repeating: 0, count: 20) }
    #expect(cache[1] == nil && cache.statistics.refusalCount == 1)
  }

  @Test("what ends while it is changed is changed anew, as if there were none")
  func modifiedTooLate() throws {
    for expiry in [Expiry.sinceCreation(.seconds(5)), .sinceLastUse(.seconds(5))] {
      let clock = ManualClock()
      var options = CacheOptions()
      options.clock = clock
      let cache = try ObjectCache<Int, Int>(options)
      cache.setValue(1, forKey: 1, expiry: expiry)
      var seen: [Int?] = []
      cache.modifyValue(forKey: 1) { value in
        seen.append(value)
        if seen.count == 1 { clock.advance(by: .seconds(6)) }
        value = (value ?? 100) + 1
      }
      #expect(seen == [1, nil] && cache[1] == 101)
      clock.advance(by: .seconds(6))
      #expect(cache[1] == 101)
    }
  }

  @Test("an object that cannot be kept is returned with its content, and takes away nothing that came meanwhile")
  func refused() throws {
    let told = Departures<Int, TestContent>()
    let cache = try ObjectCache<Int, TestContent>(countLimit: 0) { told.note($0) }
    let first = cache.value(forKey: 1) { TestContent(1) }
    #expect(!first.isContentDiscarded && cache.isEmpty && told.take().map(\.inShort) == ["1: too large, 0"])
    #expect(cache.value(forKey: 1) { TestContent(2) }.number == 2 && cache.statistics.refusalCount == 2)
    try cache.setCountLimit(nil)
    let kept = TestContent(4)
    cache.shouldEvict = { _, _ in false }
    let third = try cache.value(forKey: 1) {
      cache[1] = kept
      try cache.setCountLimit(0)
      return TestContent(3)
    }
    #expect(third.number == 3 && !third.isContentDiscarded && cache[1] === kept)
  }

  @Test("the value that a load stores itself stands, with its cost; what is overtaken is not told and keeps its content")
  func costs() throws {
    let told = Departures<Int, TestContent>()
    let cache = try ObjectCache<Int, TestContent>(costLimit: 100) { told.note($0) }
    let content = cache.value(forKey: 1) {
      let content = TestContent(1)
      cache.setValue(content, forKey: 1, cost: 40)
      return content
    }
    #expect(cache[1] === content && cache.totalCost == 40 && !content.isContentDiscarded)
    let overtaken = cache.value(forKey: 2) {
      cache.setValue(TestContent(3), forKey: 2, cost: 50)
      return TestContent(2)
    }
    #expect(overtaken.number == 2 && !overtaken.isContentDiscarded && cache[2]?.number == 3)
    #expect(cache.totalCost == 90 && told.take().isEmpty)
  }

  @Test("what is loaded keeps the limits, as the newest entry; an eviction of the key's entry overtakes no load")
  func limits() throws {
    let cache = try ObjectCache<Int, Int>(countLimit: 3)
    for number in 0..<5 { #expect(cache.value(forKey: number) { number } == number) }
    #expect(cache.keys == [2, 3, 4])
    let value = cache.value(forKey: 5) {
      cache[6] = 6
      cache.trim(toCount: 0)
      return 5
    }
    #expect(value == 5 && cache.keys == [5])
  }

  @Test("removals by a condition win over loads of the keys that they remove")
  func removedByCondition() throws {
    let cache = try ObjectCache<Int, TestContent>()
    cache[1] = TestContent(1)
    cache[2] = TestContent(2)
    cache[2]?.discardContentIfPossible()
    // The entry is still there, without content: a peek leaves it alone.
    let permits = [1, 2].map { cache.loads.join(TypedLoadedKey($0), 0, for: LoadCall(thread: nil), within: nil).flight.permit }
    #expect(cache.removeAll { $0.key == 2 } == 1 && cache.keys == [1])
    #expect(permits.map(\.isCurrent) == [true, false])
  }

  @Test("a look-up says that it found content discarded, and nothing of later ones")
  func reasons() throws {
    let cache = try ObjectCache<Int, TestContent>()
    #expect(MissReason.of(cache.lookUpValue(forKey: 1)) == .unknown)
    cache[1] = TestContent(1)
    let content = try #require(cache.peekValue(forKey: 1))
    #expect(MissReason.of(cache.lookUpValue(forKey: 1)) == nil)
    content.discardContentIfPossible()
    #expect(MissReason.of(cache.lookUpValue(forKey: 1)) == .discarded && cache.isEmpty)
    #expect(MissReason.of(cache.lookUpValue(forKey: 1)) == .unknown)
    cache[1] = content
    cache.evictsEntriesWithDiscardedContent = false
    #expect(MissReason.of(cache.lookUpValue(forKey: 1)) == nil, "stays by choice")
    let statistics = cache.statistics
    #expect(statistics.missesByReason == [.discarded: 1, .unknown: 2] && statistics.hitCount == 2)
  }

  @Test("the values of many keys come in their order, each look-up counted")
  func many() throws {
    let cache = try ObjectCache<Int, Int>(countLimit: 3)
    for number in 0..<3 { cache[number] = number }
    #expect(cache.values(forKeys: [2, 7, 0, 2]) == [2, nil, 0, 2])
    #expect(cache.keys == [1, 0, 2] && cache.statistics.hitCount == 3 && cache.statistics.missCount == 1)
  }
}
