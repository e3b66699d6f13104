// SPDX-License-Identifier: MIT
// Objects when memory is short: who is asked, and in which order. The slices are taken by the tests; that an event takes them is
// shown in a process of its own, with a source of pressure that the test sets.

import Glibc
import PurgeableTestSupport
import Synchronization
import Testing
import ToolSupport

@testable import Purgeable

@Suite("ObjectCache, when memory is short")
struct ObjectPressureTests {
  @Test("content that nobody uses goes first, the oldest first; then the oldest entries; each is asked about and told")
  func order() throws {
    let told = Departures<Int, any Sendable>()
    let asked = Mutex<[Int]>([])
    let cache = try ObjectCache<Int, any Sendable> { told.note($0) }
    let contents = (0..<8).map { TestContent($0) }
    #expect(contents[1].beginContentAccess(), "in use")
    // 24 plain objects, the oldest, then eight with content.
    for number in 0..<24 { cache[number] = number }
    for number in 0..<8 { cache[100 + number] = contents[number] }
    cache.shouldEvict = { key, _ in
      asked.withLock { $0.append(key) }
      return key != 0
    }
    #expect(cache.store.giveSlice() && cache.count == 30, "a slice of two")
    #expect(told.take().map(\.inShort) == ["100: discarded, 0", "102: discarded, 0"], "content that nobody uses")
    #expect(asked.withLock { $0 } == [100, 101, 102], "in the order of last use")
    #expect(!contents[1].isContentDiscarded, "one in use keeps its content")
    for number in 3..<8 { _ = contents[number].beginContentAccess() }
    asked.withLock { $0 = [] }
    #expect(cache.store.giveSlice() && cache.count == 29)
    #expect(told.take().map(\.inShort) == ["1: pressure, 0"], "the oldest that may go")
    #expect(asked.withLock { $0 }.suffix(2) == [0, 1] && cache.containsValue(forKey: 0), "a veto holds")
  }

  @Test("entries whose content is gone leave before the first slice")
  func lostEntries() throws {
    let told = Departures<Int, TestContent>()
    let cache = try ObjectCache<Int, TestContent> { told.note($0) }
    for number in 0..<4 { cache[number] = TestContent(number) }
    for number in 1...2 { cache[number]?.discardContentIfPossible() }
    #expect(cache.store.beginRelief() && cache.keys == [0, 3] && !cache.store.beginRelief())
    #expect(told.all.map(\.inShort) == ["1: discarded, 0", "2: discarded, 0"])
  }

  @Test("where the cache is told to keep its entries, their content goes all the same, and nobody is asked")
  func keptEntries() throws {
    let cache = try ObjectCache<Int, TestContent>()
    cache.evictsEntriesWithDiscardedContent = false
    let contents = (0..<32).map { TestContent($0) }
    for content in contents { cache[content.number] = content }
    cache.shouldEvict = { _, _ in
      Issue.record("asked about an entry that stays")
      return true
    }
    #expect(cache.store.giveSlice() && cache.count == 32)
    #expect(contents.map(\.isContentDiscarded) == (0..<32).map { $0 < 2 })
  }

  @Test("an event takes slices on a thread of the cache's own, and the level is known")
  func event() async {
    await #expect(processExitsWith: .success) {
      let source = FakeSource()
      PurgeableMemory.pressureSource = source
      let told = Departures<Int, Int>()
      let threads = Mutex<Set<UInt>>([])
      let cache = try ObjectCache<Int, Int> { departure in
        threads.withLock { _ = $0.insert(UInt(pthread_self())) }
        require(!ThreadRole.isLibrary, "not the library's thread")
        told.note(departure)
      }
      for number in 0..<32 { cache[number] = number }
      source.set(.critical)
      require(patiently { told.all.count >= 2 }, "a slice of two")
      require(told.take().prefix(2).map(\.inShort) == ["0: pressure, 0", "1: pressure, 0"], "the oldest")
      require(cache.statistics.pressure == .critical, "the level")
      require(!threads.withLock { $0.contains(UInt(pthread_self())) }, "not this thread")
    }
  }

  @Test("registered objects are asked, the longest registered first, and forgotten when they end")
  func registered() async {
    await #expect(processExitsWith: .success) {
      var contents = (0..<32).map { TestContent($0) }
      for content in contents { PurgeableMemory.register(content) }
      PurgeableMemory.register(contents[0])
      PurgeableMemory.unregister(contents[1])
      weak let ended = contents[31]
      contents.removeLast()
      require(ended == nil, "is held weakly")
      require(DiscardableRegistry.shared.giveSlice(), "a slice of one")
      require(contents.map(\.isContentDiscarded) == (0..<31).map { $0 == 0 }, "the first")
      require(contents[0].discardCount.load(ordering: .relaxed) == 1, "once")
      require(PurgeableMemory.discardRegisteredContent() == 29, "all the others")
      require(!contents[1].isContentDiscarded, "not the one taken out")
      // An event asks those that come later.
      let source = FakeSource()
      PurgeableMemory.pressureSource = source
      let late = TestContent(99)
      PurgeableMemory.register(late)
      source.set(.critical)
      require(patiently { late.isContentDiscarded }, "by an event")
    }
  }

  @Test("growth is slow afterwards, by count, and ends after a minute")
  func growth() throws {
    let clock = SetClock()
    let cache = try ObjectCache<Int, Int>(clock: clock.monotonic)
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

  @Test("a cache of fewer entries than a sixteenth counts grows too, by as many sixteenths")
  func smallGrowth() throws {
    let clock = SetClock()
    let cache = try ObjectCache<Int, Int>(clock: clock.monotonic)
    cache.store.growth.begin(before: 24, held: 12, now: clock.monotonic.now())
    for (seconds, most) in [(0, 16), (1, 17), (2, 19), (32, 64)] {
      for number in 0..<200 { cache[number] = number }
      #expect(cache.count == most, "after \(seconds) s")
      clock.advance(seconds: (seconds == 0 ? 1 : seconds == 1 ? 1 : 30))
    }
  }

  @Test("a fork at any moment leaves parent and child with caches that work", .forks, .fullRun)
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

  @Test("a child that was forked while another thread sets name or listener can set and read both", .forks)
  func forksBesideSettings() async {
    await #expect(processExitsWith: .success) {
      let cache = try ObjectCache<Int, Int>()
      func sets() -> Bool {
        let listener = TestContent(1)
        cache.name = "images"
        cache.setListener(listener, tells: { _ in }, asks: { _, _, _ in true })
        cache.askNoMore(listener)
        return cache.name == "images" && cache.listener != nil
      }
      require(sets(), "the types are made")
      let store = cache.store
      let isInside = Atomic<Bool>(false)
      let forks = Atomic<Bool>(false)
      let hold = {
        isInside.store(true, ordering: .releasing)
        while !forks.load(ordering: .acquiring) { sched_yield() }
        // Time for a fork that does not wait; one that does takes no harm from it.
        usleep(100_000)
      }
      for holds in [{ store.name.withLock { _ in hold() } }, { store.guardedHandlers.withLock { _ in hold() } }] {
        let holder = TestThread(holds)
        while !isInside.exchange(false, ordering: .acquiring) { sched_yield() }
        forks.store(true, ordering: .releasing)
        let isWell = childSays(seconds: 30, sets)
        holder.join()
        forks.store(false, ordering: .relaxed)
        require(isWell, "the child")
      }
    }
  }
}
