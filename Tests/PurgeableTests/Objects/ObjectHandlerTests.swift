// SPDX-License-Identifier: MIT
// Handlers, clocks and predicates of the program that use the cache while it works, and what must not go on for ever then.

import Glibc
import PurgeableTestSupport
import Synchronization
import Testing
import ToolSupport

@testable import Purgeable

private final class Counted: Sendable {
  private let onEnd: @Sendable () -> Void
  init(_ onEnd: @escaping @Sendable () -> Void) { self.onEnd = onEnd }
  deinit { onEnd() }
}

/// Content that is refilled and stored again just after it was asked.
private final class RefilledContent: DiscardableContent {
  let isThere = Atomic<Bool>(true)
  let onAsking = Mutex<(@Sendable () -> Void)?>(nil)

  func beginContentAccess() -> Bool { isThere.load(ordering: .relaxed) }
  func endContentAccess() {}
  func discardContentIfPossible() { isThere.store(false, ordering: .relaxed) }
  var isContentDiscarded: Bool {
    let answer = !isThere.load(ordering: .relaxed)
    let acts = onAsking.withLock { acts in
      defer { acts = nil }
      return acts
    }
    acts?()
    return answer
  }
}

/// A key whose hash is one of 64, and whose `==` does something in addition.
private struct WideKey: Hashable, Sendable {
  static let manners = Mutex<(@Sendable () -> Void)?>(nil)
  let number: Int

  static func == (left: Self, right: Self) -> Bool {
    manners.withLock { $0 }?()
    return left.number == right.number
  }
  func hash(into hasher: inout Hasher) { hasher.combine(number % 64) }
}

@Suite("ObjectCache, while the program's code uses it")
struct ObjectHandlerTests {
  @Test("removeAll ends although each entry is stored again, and leaves those")
  func storedAgain() async {
    await #expect(processExitsWith: .success) {
      alarm(600)
      let cache = try ObjectCache<Int, Int>()
      for key in 0..<1000 { cache.setValue(key, forKey: key, cost: 3) }
      cache.setDepartureHandler { departure in
        if departure.reason == .removed { cache.setValue(-1, forKey: departure.key, cost: 5) }
      }
      cache.removeAll()
      require(cache.count == 1000 && cache.totalCost == 5000 && cache.values.allSatisfy { $0 == -1 }, "the new ones")
      require(cache.statistics.departures[.removed] == 1000, "each once")
      cache.removeDepartureHandler()
      for key in 0..<2000 { cache[key] = key }
      require(cache.count == 2000 && (0..<2000).allSatisfy { cache[$0] == $0 }, "the tables work on")
    }
  }

  @Test("removeAll leaves what the handler stores under keys of its own")
  func storedMeanwhile() throws {
    let cache = try ObjectCache<Int, Int>()
    cache.setDepartureHandler { [weak cache] departure in
      if departure.key < 300 { cache?.setValue(-1, forKey: departure.key + 300) }
    }
    for key in 0..<300 { cache[key] = key }
    cache.removeAll()
    #expect(cache.count == 300 && (300..<600).allSatisfy { cache[$0] == -1 })
  }

  @Test("with a veto, too, a limit holds after a store during which the handler stored", arguments: [false, true])
  func storedWhenTold(_ hasVeto: Bool) throws {
    let cache = try ObjectCache<Int, Int>(countLimit: 10)
    if hasVeto { cache.shouldEvict = { key, _ in key != 0 } }
    cache.setDepartureHandler { [weak cache] departure in
      if departure.key < 1000 { cache?.setValue(-1, forKey: departure.key + 1000) }
    }
    for key in 0..<300 {
      cache[key] = key
      #expect(cache.count <= 10)
    }
    #expect(hasVeto == cache.keys.contains(0))
    for limit in [7, 3, 1] {
      for key in 300..<320 { cache[key] = key }
      try cache.setCountLimit(limit)
      #expect(cache.count <= limit)
      try cache.setCountLimit(20)
    }
  }

  @Test("an entry that may go leaves, also where the closure has read it")
  func readWhenAsked() throws {
    let cache = try ObjectCache<Int, [UInt8]>(countLimit: 10)
    cache.shouldEvict = { [weak cache] key, _ in cache?.value(forKey: key) != nil }
    for key in 0..<300 { cache[key] = [1] }
    #expect(cache.count == 10)
  }

  @Test("a veto that removes others and agrees leaves the entry where the limit holds by then")
  func removedWhenAsked() throws {
    let cache = try ObjectCache<Int, Int>(countLimit: 10)
    for key in 0..<10 { cache[key] = key }
    cache.shouldEvict = { [weak cache] key, _ in
      cache?.remove(forKey: 9)
      return true
    }
    cache[10] = 10
    #expect(cache.count == 10 && cache[0] == 0 && cache[9] == nil && cache[10] == 10)
  }

  @Test("a veto that stores, pins or sets limits is not asked inside of itself, and limits hold when the call returns")
  func changedWhenAsked() throws {
    let cache = try ObjectCache<Int, Int>(countLimit: 10)
    let depth = Atomic<Int>(0)
    let most = Atomic<Int>(0)
    func ask(_ change: @escaping @Sendable (_ key: Int) -> Bool) {
      cache.shouldEvict = { key, _ in
        let now = depth.add(1, ordering: .relaxed).newValue
        defer { depth.subtract(1, ordering: .relaxed) }
        most.max(now, ordering: .relaxed)
        return now > 3 || change(key)
      }
    }
    ask { [weak cache] _ in
      cache?.setValue(0, forKey: -1)
      return true
    }
    for key in 0..<300 { cache[key] = key }
    #expect(cache.count == 10 && cache[299] == 299 && most.load(ordering: .relaxed) == 1)
    ask { [weak cache] _ in
      try? cache?.setCountLimit(5)
      return true
    }
    cache[300] = 300
    #expect(cache.count == 5 && cache[300] == 300 && most.load(ordering: .relaxed) == 1)
    cache.removeAll()
    try cache.setCountLimit(nil)
    for key in 0..<300 { cache[key] = key }
    ask { [weak cache] key in
      cache?.setPriority(.pinned, forKey: key)
      return false
    }
    try cache.setCountLimit(100)
    #expect(cache.count == 300 && most.load(ordering: .relaxed) == 1, "all are pinned")
    try cache.setCountLimit(nil)
    cache.shouldEvict = nil
    try cache.setCountLimit(100)
    #expect(cache.count == 300)
  }

  @Test("a sweep ends although each discarded object is stored again")
  func sweptAgain() async {
    await #expect(processExitsWith: .success) {
      alarm(600)
      let cache = try ObjectCache<Int, TestContent>()
      let contents = (0..<100).map(TestContent.init)
      for content in contents { cache[content.number] = content }
      cache.setDepartureHandler { departure in
        if departure.reason == .discarded { cache[departure.key] = departure.value }
      }
      for content in contents { content.discardContentIfPossible() }
      require(cache.sweep() == 100 && cache.count == 100, "each once")
    }
  }

  @Test("a limit holds after a store during which all other entries were used")
  func usedMeanwhile() throws {
    let cache = try ObjectCache<String, Int>(costLimit: 10)
    cache.setDepartureHandler { _ in _ = cache["other"] }
    cache.setValue(1, forKey: "one", cost: 5)
    cache.setValue(2, forKey: "other", cost: 5)
    cache.setValue(3, forKey: "one", cost: 9)
    #expect(cache.totalCost <= 10 && cache.count == 1)
    // The same where the program is asked: it is not asked about what is being stored.
    let asked = Mutex<[String]>([])
    cache.removeAll()
    cache.shouldEvict = { key, _ in
      asked.withLock { $0.append(key) }
      return true
    }
    cache.setValue(1, forKey: "one", cost: 5)
    cache.setValue(2, forKey: "other", cost: 5)
    cache.setValue(3, forKey: "one", cost: 9)
    #expect(cache.totalCost == 9 && cache.keys == ["one"] && asked.withLock { $0 } == ["other"])
  }

  @Test("an object that was refilled and stored again stays, whoever found it without content before")
  func refilledMeanwhile() throws {
    let told = Departures<Int, RefilledContent>()
    let cache = try ObjectCache<Int, RefilledContent> { told.note($0) }
    let content = RefilledContent()
    cache[1] = content
    content.discardContentIfPossible()
    content.onAsking.withLock {
      $0 = {
        content.isThere.store(true, ordering: .relaxed)
        cache.setValue(content, forKey: 1, cost: 5)
      }
    }
    #expect(cache[1] == nil, "it was found without")
    #expect(cache[1] === content && content.isThere.load(ordering: .relaxed) && cache.totalCost == 5)
    #expect(told.all.map(\.reason) == [.replaced])
  }

  @Test("a veto that changes limits is asked about each entry twice at most")
  func flippingVeto() throws {
    let cache = try ObjectCache<Int, Int>()
    for key in 0..<100 { cache.setValue(key, forKey: key, cost: 1) }
    let asked = Atomic<Int>(0)
    let isInside = Atomic<Bool>(true)
    cache.shouldEvict = { _, _ in
      if isInside.exchange(true, ordering: .relaxed) { return false }
      let number = asked.add(1, ordering: .relaxed).newValue
      try? cache.setCountLimit(number % 2 == 0 ? 10 : nil)
      isInside.store(false, ordering: .relaxed)
      return number > 1000
    }
    try cache.setCostLimit(10)
    isInside.store(false, ordering: .relaxed)
    try cache.setCountLimit(10)
    #expect((100...200).contains(asked.load(ordering: .relaxed)) && cache.count == 100)
  }

  @Test("a look-up ends, though others store while its key is compared")
  func storedWhileCompared() async {
    await #expect(processExitsWith: .success) {
      alarm(600)
      let cache = try ObjectCache<WideKey, Int>()
      for number in [0, 64, 128] { cache[WideKey(number: number)] = number }
      let comparisons = Atomic<Int>(0)
      let isInside = Atomic<Bool>(false)
      WideKey.manners.withLock {
        $0 = {
          if isInside.exchange(true, ordering: .relaxed) { return }
          comparisons.add(1, ordering: .relaxed)
          // In every shard.
          for number in 1..<64 { cache[WideKey(number: number)] = number }
          isInside.store(false, ordering: .relaxed)
        }
      }
      require(cache[WideKey(number: 192)] == nil, "not there")
      require(comparisons.load(ordering: .relaxed) == 3, "compared with what is like it, each once")
      require(cache[WideKey(number: 128)] == 128, "there")
    }
  }

  @Test("what a handler finds out of a key that was just removed stands", arguments: [false, true])
  func foundOutByHandler(evicts: Bool) throws {
    let cache = try ObjectCache<Int, Int>()
    let asked = Mutex<[Int]>([])
    cache.setDepartureHandler { [weak cache] departure in
      asked.withLock { $0.append(departure.key) }
      _ = cache?.value(forKey: departure.key, keepingNilFor: .seconds(3600)) { () -> Int? in nil }
    }
    for key in 0..<4 { cache[key] = key }
    #expect((evicts ? cache.evictAll(where: { $0.key < 2 }) : cache.removeAll(where: { $0.key < 2 })) == 2)
    #expect(asked.withLock { $0 } == [0, 1] && cache.count == 2)
    for key in 0..<2 {
      guard case .miss(.absent) = cache.lookUpValue(forKey: key) else {
        Issue.record("\(key) is not known to be absent")
        continue
      }
    }
  }

  @Test("removeAll(where:) removes what was read meanwhile, and keeps what was stored meanwhile")
  func removedThoughRead() throws {
    let cache = try ObjectCache<Int, Int>()
    for key in 0..<100 { cache[key] = key }
    let removed = cache.removeAll { entry in
      _ = cache[entry.key]
      if entry.key % 10 == 0 { cache[entry.key] = -1 }
      return true
    }
    #expect(removed == 90 && cache.keys.sorted() == Array(stride(from: 0, to: 100, by: 10)))
  }

  /// A clock that looks at each shard of a cache.
  private final class LookingClock: _Concurrency.Clock {
    let look = Guarded<(@Sendable () -> Void)?>(nil)
    var now: ContinuousClock.Instant {
      look.withLock { $0 }?()
      return ContinuousClock.now
    }
    var minimumResolution: Duration { .nanoseconds(1) }
    func sleep(until deadline: ContinuousClock.Instant, tolerance: Duration?) async throws {}
  }

  @Test("slow growth asks the program's clock under no mutex")
  func clock() async {
    await #expect(processExitsWith: .success) {
      alarm(600)
      let clock = LookingClock()
      var options = CacheOptions()
      options.clock = clock
      let cache = try ObjectCache<Int, Int>(options)
      for key in 0..<1600 { cache[key] = key }
      let looks = Atomic<Int>(0)
      clock.look.withLock {
        $0 = { [unowned cache] in
          looks.add(1, ordering: .relaxed)
          for key in 0..<100 { _ = cache.peekValue(forKey: key) }
        }
      }
      cache.trim(level: .critical)
      for key in 2000..<2100 { cache[key] = key }
      require(looks.load(ordering: .relaxed) > 100 && cache.statistics.departures[.growth, default: 0] > 0, "growth is slow")
      clock.look.withLock { $0 = nil }
    }
  }

  @Test("values and handlers end with the cache, although the library still works for it")
  func endsWithCache() throws {
    let ended = Atomic<Int>(0)
    var cache: ObjectCache<Int, Counted>? = try ObjectCache()
    for key in 0..<100 { cache?[key] = Counted { ended.add(1, ordering: .relaxed) } }
    let held = Counted { ended.add(1000, ordering: .relaxed) }
    cache?.setDepartureHandler { [held] _ in withExtendedLifetime(held) {} }
    // As the library's thread does in a round.
    let store = cache?.store
    cache = nil
    #expect(ended.load(ordering: .relaxed) == 100)
    withExtendedLifetime((store, held)) {}
  }

  @Test("a cache that has nothing to give starts no thread, and is not slowed")
  func nothingToGive() throws {
    let cache = try ObjectCache<Int, Int>()
    #expect(!cache.store.giveSlice(ofParts: 16, isFelt: true))
    #expect(!cache.store.relief.withLock { $0.hasThread || $0.isWanted })
    #expect(cache.store.growthLimit == .max)
  }

  @Test("trim(level:) discards the content that nobody uses before entries go")
  func trimsContent() throws {
    let told = Departures<Int, any Sendable>()
    let cache = try ObjectCache<Int, any Sendable> { told.note($0) }
    let contents = (0..<3).map(TestContent.init)
    #expect(contents[1].beginContentAccess())
    for key in 0..<61 { cache[key] = key }
    for content in contents { cache[100 + content.number] = content }
    cache.shouldEvict = { _, _ in
      Issue.record("nobody is asked")
      return true
    }
    cache.trim(level: .warning)
    #expect(cache.count == 60)
    #expect(
      told.take().map(\.inShort) == ["100: discarded, 0", "102: discarded, 0", "0: trimmed, 0", "1: trimmed, 0"])
    #expect(!contents[1].isContentDiscarded)
  }

  @Test("trim(level:) drops what has expired before anything that lives, and tells it so")
  func trimsExpired() throws {
    let (clock, told) = (ManualClock(), Departures<Int, TestContent>())
    var options = CacheOptions()
    options.clock = clock
    let cache = try ObjectCache<Int, TestContent>(options) { told.note($0) }
    for key in 0..<40 {
      cache.setValue(TestContent(key), forKey: key, expiry: key >= 38 ? Expiry(sinceCreation: .seconds(1)) : .never)
    }
    clock.advance(by: .seconds(2))
    cache.trim(level: .warning)
    #expect(told.take().map(\.inShort).sorted() == ["38: expired, 0", "39: expired, 0"] && cache.count == 38)
  }

  @Test("a handler gets discardable content before it is discarded, and may keep it")
  func contentIsTold() throws {
    let found = Mutex<[Bool]>([])
    let kept = Mutex<TestContent?>(nil)
    let cache = try ObjectCache<Int, TestContent>(countLimit: 1) { departure in
      found.withLock { $0.append(departure.value?.isContentDiscarded == false) }
      if departure.key == 2, departure.value?.beginContentAccess() == true { kept.withLock { $0 = departure.value } }
    }
    let contents = (0..<5).map(TestContent.init)
    for content in contents { cache[content.number] = content }
    cache.remove(forKey: 4)
    #expect(found.withLock { $0 } == [true, true, true, true, true])
    #expect(contents.map(\.isContentDiscarded) == [true, true, false, true, true])
  }

  @Test("what leaves for a limit in bytes is told so, and the statistics name the limit")
  func bytes() throws {
    let told = Departures<Int, Int>()
    let cache = try ObjectCache<Int, Int>(CacheOptions(costLimit: 100, byteLimit: 50)) { told.note($0) }
    for key in 0..<6 { cache.setValue(key, forKey: key, cost: 10) }
    #expect(told.take().map(\.inShort) == ["0: byte limit, 10"])
    #expect(cache.statistics.limitInForce == 50 && cache.statistics.limitReason == .byteLimit && cache.byteCount == 50)
    try cache.setByteLimit(nil)
    for key in 10..<16 { cache.setValue(key, forKey: key, cost: 10) }
    #expect(told.take().map(\.inShort) == ["1: cost limit, 10"])
    #expect(cache.statistics.limitInForce == nil && cache.statistics.limitReason == nil)
    try cache.setMemoryShare(0.5)
    #expect(cache.statistics.limitReason == .memoryShare)
  }

  @Test("of objects that several threads register none is lost, and those that ended are forgotten")
  func registered() async {
    await #expect(processExitsWith: .success) {
      let kept = Mutex<[TestContent]>([])
      onThreads(4) { _ in
        let mine = (0..<500).map(TestContent.init)
        for content in mine { PurgeableMemory.register(content) }
        kept.withLock { $0 += mine }
      }
      var contents = kept.withLock { $0 }
      kept.withLock { $0 = [] }
      require(PurgeableMemory.discardRegisteredContent() == 2000, "all are asked")
      require(contents.allSatisfy(\.isContentDiscarded), "all are discarded")
      contents.removeLast(1500)
      PurgeableMemory.discardRegisteredContent()
      require(DiscardableRegistry.shared.size == 500, "those that ended: \(DiscardableRegistry.shared.size)")
    }
  }

  @Test("an event offers idle regions at once, as all that holds memory", .enabled(if: PageOutTests.canDiscard))
  func regions() async {
    // In a process of its own: all clients are asked.
    await #expect(processExitsWith: .success) {
      let region = try PurgeableRegion(byteCount: 1 << 20) { span throws(PurgeableError) in span.write(pattern(1 << 20)) }
      _ = PressureReaction.run(ListedClients(), .normal) { _ in false }
      require(region.offeredBytes == 1 << 20, "on offer: \(region.offeredBytes)")
      require(RegionClient.shared.offeredBytes == 1 << 20, "counted: \(RegionClient.shared.offeredBytes)")
    }
  }
}
