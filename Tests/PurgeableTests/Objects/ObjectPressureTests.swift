// SPDX-License-Identifier: MIT
// Objects when memory is short: who is asked, and in which order. In processes of their own, with a source of pressure that the
// test sets. The machine itself is not short of memory then, so that each event takes one slice.

import PurgeableTestSupport
import Synchronization
import Testing
import ToolSupport

@testable import Purgeable

@Suite("ObjectCache, when memory is short")
struct ObjectPressureTests {
  @Test("content that nobody uses goes first, the oldest first; then the oldest entries; each is asked about and told")
  func order() async {
    await #expect(processExitsWith: .success) {
      let source = FakeSource()
      PurgeableMemory.pressureSource = source
      let told = Departures<Int, any Sendable>()
      let asked = Mutex<[Int]>([])
      let cache = try ObjectCache<Int, any Sendable> { told.note($0) }
      let contents = (0..<8).map { TestContent($0) }
      require(contents[1].beginContentAccess(), "in use")
      // 24 plain objects, the oldest, then eight with content.
      for number in 0..<24 { cache[number] = number }
      for number in 0..<8 { cache[100 + number] = contents[number] }
      cache.shouldEvict = { key, _ in
        asked.withLock { $0.append(key) }
        return key != 0
      }
      source.set(.warning)
      require(patiently { cache.count == 30 }, "a slice of two: \(cache.count)")
      require(told.take().map(\.inShort) == ["100: discarded, 0", "102: discarded, 0"], "content that nobody uses")
      require(asked.withLock { $0 } == [100, 101, 102], "in the order of last use")
      require(!contents[1].isContentDiscarded, "one in use keeps its content")
      for number in 3..<8 { _ = contents[number].beginContentAccess() }
      asked.withLock { $0 = [] }
      source.set(.normal)
      source.set(.critical)
      require(patiently { cache.count <= 29 }, "another slice: \(cache.count)")
      require(told.take().first?.inShort == "1: pressure, 0", "the oldest that may go")
      require(asked.withLock { $0 }.contains(0) && cache.containsValue(forKey: 0), "a veto holds")
      require(cache.statistics.pressure == .critical, "the level is known")
    }
  }

  @Test("registered objects are asked, the longest registered first, and forgotten when they end")
  func registered() async {
    await #expect(processExitsWith: .success) {
      let source = FakeSource()
      PurgeableMemory.pressureSource = source
      var contents = (0..<32).map { TestContent($0) }
      for content in contents { PurgeableMemory.register(content) }
      PurgeableMemory.register(contents[0])
      PurgeableMemory.unregister(contents[1])
      weak let ended = contents[31]
      contents.removeLast()
      require(ended == nil, "is held weakly")
      source.set(.warning)
      require(patiently { contents[0].isContentDiscarded }, "the first")
      require(patiently { contents[2].isContentDiscarded || contents[0].discardCount.load(ordering: .relaxed) == 1 }, "once")
      require(!contents[1].isContentDiscarded && !contents[30].isContentDiscarded, "not the one taken out, not the last")
      source.set(.normal)
      let gone = contents.count { $0.isContentDiscarded }
      let asked = PurgeableMemory.discardRegisteredContent()
      require(gone + asked == 30 && !contents[1].isContentDiscarded, "all the others: \(gone), \(asked)")
    }
  }

  @Test("growth is slow afterwards, by count, and ends after a minute")
  func growth() throws {
    let clock = SetClock()
    let cache = try ObjectCache<Int, Int>(clock: clock.cacheClock)
    for number in 0..<1600 { cache[number] = number }
    #expect(cache.store.giveSlice() && cache.count == 1500)
    cache.store.endRelief(before: 1600)
    cache[5000] = 0
    #expect(cache.count == 1500 && cache.statistics.departures[.growth] == 1)
    clock.advance(seconds: 1)
    for number in 6000..<7000 { cache[number] = number }
    #expect(cache.count == 1600, "a sixteenth a second")
    clock.advance(seconds: 61)
    for number in 8000..<9000 { cache[number] = number }
    #expect(cache.count == 2600)
  }

  @Test("a fork at any moment leaves parent and child with caches that work", .forks)
  func forks() async {
    await #expect(processExitsWith: .success) {
      let cache = try ObjectCache<Int, [Int]>(countLimit: 300)
      func works(_ cache: ObjectCache<Int, [Int]>) -> Bool {
        for key in 0..<400 { cache[key] = [key] }
        var found = 0
        for key in 0..<400 { if let value = cache[key] { found += value == [key] ? 1 : 1000 } }
        return found <= 400 && cache.count <= 300
      }
      require(works(try ObjectCache(countLimit: 300)), "the types are made")
      let isOver = Atomic<Bool>(false)
      let thread = TestThread { while !isOver.load(ordering: .relaxed) { _ = works(cache) } }
      var failures = 0
      for _ in 0..<20 { if !childSays({ works(cache) }) { failures += 1 } }
      isOver.store(true, ordering: .relaxed)
      thread.join()
      require(failures == 0, "\(failures) children")
      require(works(cache), "the parent")
    }
  }
}
