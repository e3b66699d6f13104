// SPDX-License-Identifier: MIT
// Entries that stay when the kernel takes their values: `evictsEntriesWithDiscardedContent` false.

import Glibc
import Testing
import ToolSupport

@testable import Purgeable

@Suite("PurgeableCache, entries that stay when they are discarded")
struct CacheHollowTests {
  private typealias Told = Departures<UInt32, [UInt8]>

  private func options(_ order: EvictionOrder = .s3FIFO) -> CacheOptions {
    var options = CacheOptions()
    options.evictsEntriesWithDiscardedContent = false
    options.evictionOrder = order
    return options
  }

  private func value(_ key: UInt32, version: UInt32 = 1, count: Int = 200) -> [UInt8] {
    described(key, version: version, count: count)
  }

  @Test("they stay in the count without a cost, and each look-up says so", arguments: EvictionOrder.allCases)
  func stay(order: EvictionOrder) throws {
    try needRealDiscards()
    let told = Told()
    let cache = try PurgeableCache<UInt32, [UInt8]>(options(order)) { told.note($0) }
    for key in 0..<300 as Range<UInt32> { cache[key] = value(key) }
    cache.discardAll()
    #expect(cache.count == 300)
    for _ in 0..<2 {
      for key in 0..<300 as Range<UInt32> {
        #expect(MissReason.of(cache.lookUpValue(forKey: key)) == .discarded)
        #expect(cache.count == 300)
      }
    }
    #expect(cache.withBytes(forKey: 7) { _ in true } == nil)
    #expect(!cache.containsValue(forKey: 7) && cache.peekValue(forKey: 7) == nil && cache.peekEntry(forKey: 7) == nil)
    #expect(Array(cache.keys).isEmpty && cache.snapshot().isEmpty)
    #expect(cache.totalCost == 0 && told.all.isEmpty)
    #expect(cache.statistics.missesByReason[.discarded] == 601)
    cache.checkBooksSwept()
  }

  @Test("notices of changes go by entries: one that stays has not left", arguments: EvictionOrder.allCases)
  func changes(order: EvictionOrder) throws {
    try needRealDiscards()
    let told = Guarded<[CacheChanges<UInt32>]>([])
    let cache = try PurgeableCache<UInt32, [UInt8]>(options(order))
    try cache.setChangeHandler(every: .seconds(100_000)) { changes in told.withLock { $0.append(changes) } }
    func changes() -> [CacheChanges<UInt32>] {
      cache.deliverChanges()
      return told.withLock { exchange(&$0, with: []) }
    }
    cache[1] = value(1)
    #expect(changes() == [CacheChanges(updatedKeys: [1], removedKeys: [])])
    cache[2] = value(2)
    cache.discardAll()
    #expect(changes() == [CacheChanges(updatedKeys: [2], removedKeys: [])])
    #expect(MissReason.of(cache.lookUpValue(forKey: 1)) == .discarded && cache.sweep() == 0 && cache.count == 2)
    #expect(changes().isEmpty)
    cache.remove(forKey: 1)
    cache[2] = value(2, version: 2)
    #expect(changes() == [CacheChanges(updatedKeys: [2], removedKeys: [1])])
  }

  @Test("a store, a removal, or the removal of all ends them, and is told", arguments: EvictionOrder.allCases)
  func end(order: EvictionOrder) throws {
    try needRealDiscards()
    let told = Told()
    let cache = try PurgeableCache<UInt32, [UInt8]>(options(order)) { told.note($0) }
    for key in 0..<300 as Range<UInt32> { cache[key] = value(key) }
    cache.discardAll()
    #expect(cache.sweep() == 300 && cache.count == 300)

    #expect(cache.setValue(value(0, version: 2), forKey: 0) == .replaced)
    #expect(cache[0] == value(0, version: 2) && cache.count == 300 && cache.totalCost == 200)
    let replaced = told.take()
    #expect(replaced.map(\.reason) == [.replaced] && replaced.map(\.key) == [0] && replaced.map(\.absence) == [.discarded])
    #expect(replaced.map(\.cost) == [0] && replaced[0].value == nil)

    #expect(cache.remove(forKey: 1) && !cache.remove(forKey: 1))
    #expect(cache.removeValue(forKey: 2) == nil)
    #expect(cache.setValue(value(3), forKey: 3, expiry: .sinceCreation(.zero)) == .expired)
    #expect(cache.count == 297)
    #expect(told.take().filter { $0.value == nil }.map(\.reason) == [.removed, .removed, .replaced])
    for key in 1...3 as ClosedRange<UInt32> { #expect(MissReason.of(cache.lookUpValue(forKey: key)) != .discarded) }
    #expect(cache.value(forKey: 4) { value(4, version: 3) } == value(4, version: 3))
    #expect(cache[4] == value(4, version: 3) && cache.count == 297)
    cache.checkBooksSwept()

    _ = told.take()
    cache.removeAll()
    #expect(cache.isEmpty)
    let removed = told.take()
    #expect(Set(removed.map(\.key)) == Set(0..<300).subtracting([1, 2, 3]) && removed.allSatisfy { $0.reason == .removed })
    cache.checkBooksSwept()
  }

  @Test("a refused value ends its key's own, or leaves it, as it would a value")
  func refused() throws {
    try needRealDiscards()
    var options = options()
    options.costLimit = 1000
    let cache = try PurgeableCache<UInt32, [UInt8]>(options)
    for key in 0..<4 as Range<UInt32> { cache[key] = value(key) }
    cache.discardAll()
    #expect(cache.sweep() == 4)
    #expect(cache.setValue(value(0), forKey: 0, cost: 2000) == .tooLarge && cache.count == 3)
    #expect(cache.setValue(value(1), forKey: 1, version: String(repeating: "v", count: 300)) == .notEncodable && cache.count == 3)
    try cache.setPinnedByteLimit(1)
    #expect(cache.setValue(value(2), forKey: 2, priority: .pinned) == .pinnedByteLimit && cache.count == 3)
    #expect(MissReason.of(cache.lookUpValue(forKey: 2)) == .discarded)
    cache.checkBooksSwept()
  }

  @Test("evictions for count and bytes take them first, those for cost never", arguments: EvictionOrder.allCases)
  func limits(order: EvictionOrder) throws {
    try needRealDiscards()
    let told = Told()
    var options = options(order)
    options.countLimit = 300
    let cache = try PurgeableCache<UInt32, [UInt8]>(options) { told.note($0) }
    for key in 0..<300 as Range<UInt32> { cache[key] = value(key) }
    cache.discardAll()
    #expect(cache.sweep() == 300)
    for key in 1000..<1100 as Range<UInt32> { cache[key] = value(key) }
    #expect(cache.count == 300)
    let evicted = told.take()
    #expect(evicted.count == 100 && evicted.allSatisfy { $0.reason == .count && $0.key < 300 })
    // Stored anew at the limit: nothing else has to go.
    let left = try #require((0..<300 as Range<UInt32>).first { MissReason.of(cache.lookUpValue(forKey: $0)) == .discarded })
    #expect(cache.setValue(value(left), forKey: left) == .replaced && cache.count == 300)
    #expect(told.take().map(\.reason) == [.replaced])
    cache.trim(toCount: 101)
    #expect(cache.count == 101 && Array(cache.keys).count == 101)

    var lost = 0
    // One offer skips pages.
    for _ in 0..<200 where lost == 0 {
      drainBatches()
      cache.discardMost()
      lost = cache.sweep()
    }
    #expect(lost > 0)
    try cache.setCostLimit(2000)
    for key in 2000..<2050 as Range<UInt32> { cache[key] = value(key) }
    #expect(cache.totalCost <= 2000 && cache.count >= lost)
    _ = told.take()
    try cache.setByteLimit(max(256 << 10, cache.byteCount - 1))
    for key in 3000..<3300 as Range<UInt32> { cache.setValue(value(key, count: 2000), forKey: key, cost: 1) }
    #expect(cache.byteCount <= cache.byteLimit!)
    cache.checkBooksSwept()
  }

  @Test(
    "where the program is asked, no more of them go than have to, and it is not asked about them",
    arguments: EvictionOrder.allCases)
  func asking(order: EvictionOrder) throws {
    try needRealDiscards()
    var options = options(order)
    options.countLimit = 300
    let cache = try PurgeableCache<UInt32, [UInt8]>(options)
    for key in 0..<300 as Range<UInt32> { cache[key] = value(key) }
    cache.discardAll()
    #expect(cache.sweep() == 300)
    cache.shouldEvict = { key, _ in
      Issue.record("asked about \(key)")
      return true
    }
    for key in 1000..<1100 as Range<UInt32> { cache[key] = value(key) }
    #expect(cache.count == 300 && Array(cache.keys).count == 100)
    cache.checkBooksSwept()
  }

  @Test("a trim by bytes reaches its goal past many of them, and takes them first", arguments: EvictionOrder.allCases)
  func trimmed(order: EvictionOrder) throws {
    try needRealDiscards()
    let cache = try PurgeableCache<UInt32, [UInt8]>(options(order))
    for key in 0..<20_000 as Range<UInt32> { cache[key] = [1] }
    // Of S3-FIFO what stays on a page becomes younger by compaction, so that none is to stay.
    cache.discardAll()
    #expect(cache.sweep() == 20_000)
    for key in 100_000..<103_000 as Range<UInt32> { cache[key] = value(key, count: 1000) }
    let goal = cache.byteCount / 2
    cache.trim(toBytes: goal)
    #expect(cache.byteCount <= goal && cache.count < 3000, "\(cache.byteCount) of \(goal)")
    cache.checkBooksSwept()
  }

  @Test(
    "a restore gives them their values again, also at a full count limit, and nobody else's to any key",
    arguments: EvictionOrder.allCases)
  func restored(order: EvictionOrder) throws {
    try needRealDiscards()
    try withFolder { folder in
      let told = Told()
      var options = options(order)
      options.countLimit = 300
      let cache = try PurgeableCache<UInt32, [UInt8]>(options) { told.note($0) }
      for key in 0..<300 as Range<UInt32> { cache.setValue(value(key), forKey: key, cost: Int(key)) }
      try cache.save(to: folder.path + "/all")
      cache.discardAll()
      #expect(cache.sweep() == 300 && cache.totalCost == 0)
      #expect(cache.setValue(value(0, version: 2), forKey: 0) == .replaced)
      _ = told.take()
      let report = try cache.restore(from: folder.path + "/all")
      #expect(report.entryCount == 299 && cache.count == 300)
      for key in 0..<300 as Range<UInt32> { #expect(cache[key] == value(key, version: key == 0 ? 2 : 1)) }
      #expect(cache.totalCost == UInt64(200 + (1..<300).reduce(0, +)) && Set(cache.keys) == Set(0..<300))
      let replaced = told.take()
      #expect(Set(replaced.map(\.key)) == Set(1..<300) && replaced.count == 299)
      #expect(replaced.allSatisfy { $0.reason == .replaced && $0.value == nil && $0.absence == .discarded && $0.cost == 0 })
      cache.checkBooksSwept()
      // Numbers of keys that ended are taken by others.
      cache.trim(toCount: 100)
      for key in 1000..<1300 as Range<UInt32> {
        #expect(cache.modifyValue(forKey: key) { found in found.map { _ in true } } == nil)
        cache[key] = value(key)
      }
      #expect(told.take().allSatisfy { $0.value == value($0.key, version: $0.key == 0 ? 2 : 1) })
      cache.checkBooksSwept()
    }
  }

  @Test(
    "a store at the byte limit takes no more of them than have to go, also where it is told", arguments: EvictionOrder.allCases)
  func few(order: EvictionOrder) throws {
    try needRealDiscards()
    let told = Told()
    let cache = try PurgeableCache<UInt32, [UInt8]>(options(order)) { told.note($0) }
    for key in 0..<20_000 as Range<UInt32> { cache[key] = [1] }
    drainBatches()
    cache.discardMost()
    #expect(cache.sweep() > 10_000)
    try cache.setByteLimit(cache.byteCount + (256 << 10))
    _ = told.take()
    for key in 100_000... as PartialRangeFrom<UInt32> {
      cache[key] = value(key, count: 1000)
      let count = told.take().count
      if count == 0 { continue }
      // Those of a slab or two, not all.
      #expect(count < 3000, "\(count)")
      break
    }
    #expect(cache.byteCount <= cache.byteLimit!)
  }

  @Test("a trim to a count reaches it past values that nobody has found lost yet", arguments: EvictionOrder.allCases)
  func trimmedUnfound(order: EvictionOrder) throws {
    try needRealDiscards()
    for (count, goal) in [(5, 4), (5, 2), (10, 5), (300, 100)] {
      let cache = try PurgeableCache<UInt32, [UInt8]>(options(order))
      for key in 0..<UInt32(count) { cache[key] = value(key) }
      cache.discardAll()
      cache.trim(toCount: goal)
      #expect(cache.count == goal)
      cache.checkBooksSwept()
    }
  }

  @Test("trims by level give back their share of them", arguments: EvictionOrder.allCases)
  func levels(order: EvictionOrder) throws {
    try needRealDiscards()
    let told = Told()
    let cache = try PurgeableCache<UInt32, [UInt8]>(options(order)) { told.note($0) }
    let count = 4000
    for key in 0..<UInt32(count) { cache[key] = value(key) }
    cache.discardAll()
    #expect(cache.sweep() == count)
    cache.trimUntimed(level: .warning)
    #expect((count / 32..<count / 8).contains(count - cache.count), "\(cache.count)")
    let left = cache.count
    cache.trimUntimed(level: .critical)
    #expect((left / 8..<left / 2).contains(left - cache.count), "\(left), \(cache.count)")
    #expect(told.all.count == count - cache.count && told.all.allSatisfy { $0.reason == .trimmed })
    for _ in 0..<200 where cache.count > 0 { cache.trim(level: .critical) }
    #expect(cache.isEmpty)
    cache.checkBooksSwept()
  }

  @Test("an update that leaves no value ends one")
  func updated() throws {
    try needRealDiscards()
    let told = Told()
    let cache = try PurgeableCache<UInt32, [UInt8]>(options()) { told.note($0) }
    cache[1] = value(1)
    cache.discardAll()
    #expect(cache.sweep() == 1)
    cache.modifyValue(forKey: 1) { $0 = nil }
    #expect(cache.isEmpty && told.all.map(\.reason) == [.removed])
    cache.modifyValue(forKey: 1) { $0 = nil }
    #expect(told.all.count == 1)
  }

  @Test("beside random stores, removals, reads and losses, the count is that of the keys that were stored and not removed")
  func model() throws {
    try needRealDiscards()
    var random = SplitMix64(seed: 7)
    let cache = try PurgeableCache<UInt32, [UInt8]>(options())
    var versions: [UInt32: UInt32] = [:]
    var lost: Set<UInt32> = []
    for step in 0..<6000 as Range<UInt32> {
      let key = UInt32.random(in: 0..<200, using: &random)
      switch Int.random(in: 0..<400, using: &random) {
      case 0: cache.discardEveryThirdPage()
      case 1: cache.sweep()
      case 2..<200:
        #expect(cache.setValue(value(key, version: step, count: Int(40 + key * 20)), forKey: key).isStored)
        (versions[key], _) = (step, lost.remove(key))
      case 200..<250:
        #expect(cache.remove(forKey: key) == (versions.removeValue(forKey: key) != nil))
        lost.remove(key)
      default:
        switch (cache.lookUpValue(forKey: key), versions[key]) {
        case (.hit(let bytes), let version?):
          #expect(versionDescribed(in: bytes, key: key) == version && !lost.contains(key))
        case (.miss(let reason), .some):
          #expect(reason == .discarded)
          lost.insert(key)
        case (.miss, nil): break
        case (.hit, nil): Issue.record("a value of a key that was removed")
        }
      }
      #expect(cache.count == versions.count)
    }
    #expect(!lost.isEmpty)
    cache.checkBooksSwept()
  }

  /// A key whose hash says nothing.
  private struct Alike: Hashable {
    let number: Int
    func hash(into hasher: inout Hasher) {}
  }

  @Test("an entry that was stored again comes in a walk, whatever of the same hash is hollow", arguments: EvictionOrder.allCases)
  func walk(order: EvictionOrder) throws {
    try needRealDiscards()
    let cache = try PurgeableCache<Alike, Int>(options(order))
    for number in 0..<3 { cache[Alike(number: number)] = number }
    cache.discardAll()
    #expect(cache.sweep() == 3)
    for number in 0..<3 {
      cache[Alike(number: number)] = number
      #expect(cache.keys.map(\.number).sorted() == Array(0...number))
    }
  }

  @Test("a forked child has none of them", .forks)
  func forking() async throws {
    try needRealDiscards()
    await #expect(processExitsWith: .success) {
      var options = CacheOptions()
      options.evictsEntriesWithDiscardedContent = false
      let cache = try PurgeableCache<UInt32, [UInt8]>(options)
      for key in 0..<300 as Range<UInt32> { cache[key] = [1, 2, 3] }
      cache.discardAll()
      require(cache.sweep() == 300 && cache.count == 300, "300 stay")
      let isWell = childSays {
        cache.isEmpty && cache.setValue([4], forKey: 1) == .stored && cache.count == 1 && cache[1] == [4]
      }
      require(isWell, "the child's")
      require(cache.count == 300, "the parent's")
    }
  }
}
