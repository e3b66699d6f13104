// SPDX-License-Identifier: MIT
// Saving a cache of objects, and restoring it.

import Foundation
import Glibc
import PurgeableTestSupport
import Synchronization
import Testing
import ToolSupport

@testable import Purgeable

private struct Story: Sendable, Equatable {
  var title: String

  static let format = StoredFormat<Story>(version: 2) { story in
    if story.title == "secret" { throw Refusal() }
    return Array(story.title.utf8)
  } decode: { bytes, version in
    version == 2 ? String(purgeableBytes: bytes).map { Story(title: $0) } : nil
  }
}

private struct Refusal: Error {}

/// Content that may be discarded.
private final class Picture: DiscardableContent, @unchecked Sendable {
  let number: Int
  private let isGone = Atomic<Bool>(false)

  init(_ number: Int) { self.number = number }

  func beginContentAccess() -> Bool { !isContentDiscarded }
  func endContentAccess() {}
  func discardContentIfPossible() { isGone.store(true, ordering: .relaxed) }
  var isContentDiscarded: Bool { isGone.load(ordering: .relaxed) }

  static let format = StoredFormat<Picture>(version: 1) { picture in
    picture.number.withPurgeableBytes { span in unsafe span.withUnsafeBytes { unsafe [UInt8]($0) } }
  } decode: { bytes, _ in
    Int(purgeableBytes: bytes).map(Picture.init)
  }
}

@Suite("a saved cache of objects")
struct ObjectSaveTests {
  @Test("versions, recompute costs and ages are there again, also from a file of a cache of bytes")
  func notes() throws {
    try withFolder { folder in
      let clock = ManualClock()
      var options = CacheOptions()
      options.clock = clock
      let saved = try ObjectCache<String, String>(options)
      let bytes = try PurgeableCache<String, String>(options)
      saved.setValue("1", forKey: "a", recomputeCost: .seconds(3), version: "v1")
      bytes.setValue("1", forKey: "a", cost: 0, recomputeCost: .seconds(3), version: "v1")
      saved.setValue("2", forKey: "b", version: "")
      bytes.setValue("2", forKey: "b", cost: 0, version: "")
      saved["c"] = "3"
      bytes.setValue("3", forKey: "c", cost: 0)
      try saved.save(to: folder.path + "/objects", format: .purgeableBytes)
      try bytes.save(to: folder.path + "/bytes")
      for file in ["objects", "bytes"] {
        let restored = try ObjectCache<String, String>(options)
        let report = try restored.restore(from: folder.path + "/" + file, format: .purgeableBytes)
        #expect(report.entryCount == 3 && report.skippedCount == 0, "\(file)")
        let entries = ["a", "b", "c"].map { restored.peekEntry(forKey: $0) }
        #expect(entries.map { $0?.value } == ["1", "2", "3"] && entries.map { $0?.version } == ["v1", "", nil], "\(file)")
        #expect(entries.map { $0?.recomputeCost } == [.seconds(3), nil, nil], "\(file)")
        #expect(restored.value(forKey: "a", version: "v1") == "1" && restored.value(forKey: "a", version: "v2") == nil, "\(file)")
      }
    }
  }

  @Test("costs of a file of a cache of bytes are there again, also those that are the numbers of bytes")
  func costsOfBytes() throws {
    try withFolder { folder in
      let bytes = try PurgeableCache<String, String>()
      bytes.setValue("one", forKey: "a", cost: 3)
      bytes.setValue("one", forKey: "b", cost: 4)
      bytes["c"] = "three"
      try bytes.save(to: folder.path + "/bytes")
      let objects = try ObjectCache<String, String>()
      try objects.restore(from: folder.path + "/bytes", format: .purgeableBytes)
      #expect(["a", "b", "c"].map { objects.peekEntry(forKey: $0)?.cost } == [3, 4, 5])
    }
  }

  @Test("what is unchanged after a restore has the time that it began with, although the clock is younger than the entry")
  func unchanged() async throws {
    let folder = try FakeRoot()
    defer { folder.remove() }
    func options(_ clock: ManualClock) -> CacheOptions {
      var options = CacheOptions()
      options.clock = clock
      return options
    }
    let (clock, later) = (ManualClock(), ManualClock())
    let found = LoadResult<String>.found("one", expiry: .sinceCreation(.seconds(3600)))
    let objects = try ObjectCache<String, String>(options(clock))
    let bytes = try PurgeableCache<String, String>(options(clock))
    _ = await objects.value(forKey: "a", refreshAfter: .seconds(10)) { _ in found }
    _ = await bytes.value(forKey: "a", refreshAfter: .seconds(10)) { _ in found }
    clock.advance(by: .seconds(3000))
    try await objects.save(to: folder.path + "/objects", format: .purgeableBytes)
    try await bytes.save(to: folder.path + "/bytes")
    let (newObjects, newBytes) = (
      try ObjectCache<String, String>(options(later)), try PurgeableCache<String, String>(options(later))
    )
    try await newObjects.restore(from: folder.path + "/objects", format: .purgeableBytes)
    try await newBytes.restore(from: folder.path + "/bytes")
    func left() -> [Duration?] { [newObjects.peekEntry(forKey: "a"), newBytes.peekEntry(forKey: "a")].map { $0?.remainingTime } }
    #expect(left().allSatisfy { (.seconds(1) ... .seconds(600)).contains($0 ?? .zero) })
    #expect(await newObjects.value(forKey: "a", refreshAfter: .seconds(10)) { _ in .unchanged } == "one")
    #expect(await newBytes.value(forKey: "a", refreshAfter: .seconds(10)) { _ in .unchanged } == "one")
    #expect(await TestRun.comes { left() == [.seconds(3600), .seconds(3600)] })
  }

  @Test("an entry's age goes on in the file: what was due for a refresh is due after a restore")
  func ages() async throws {
    let folder = try FakeRoot()
    defer { folder.remove() }
    let clock = ManualClock()
    var options = CacheOptions()
    options.clock = clock
    let saved = try ObjectCache<String, Int>(options)
    func load(_ cache: ObjectCache<String, Int>, _ value: Int) async -> Int {
      await cache.value(forKey: "a", refreshAfter: .seconds(100)) { value }
    }
    #expect(await load(saved, 1) == 1)
    clock.advance(by: .seconds(200))
    try await saved.save(to: folder.path + "/cache", format: .purgeableBytes)
    let restored = try ObjectCache<String, Int>(options)
    try await restored.restore(from: folder.path + "/cache", format: .purgeableBytes)
    // The old value at once; the new one as soon as it is loaded.
    #expect(await load(restored, 2) == 1)
    #expect(await TestRun.comes { restored.peekValue(forKey: "a") == 2 })
  }

  @Test("what was saved is there again, in the order of last use, with cost, priority and what is left of the time")
  func roundTrip() throws {
    try withFolder { folder in
      let path = folder.path + "/cache"
      var options = CacheOptions()
      let clock = ManualClock()
      options.clock = clock
      let saved = try ObjectCache<String, Story>(options)
      for number in 0..<2000 { saved.setValue(Story(title: "story \(number)"), forKey: "\(number)", cost: number % 3) }
      saved.setValue(Story(title: "pinned"), forKey: "pinned", cost: 7, priority: .pinned)
      saved.setValue(Story(title: "speculative"), forKey: "speculative", priority: .speculative)
      saved.setValue(Story(title: "hour"), forKey: "hour", expiry: .sinceCreation(.seconds(3600)))
      saved.setValue(Story(title: "used"), forKey: "used", expiry: .sinceLastUse(.seconds(600)))
      saved.setValue(Story(title: "over"), forKey: "over", expiry: .sinceCreation(.seconds(60)))
      saved.setValue(Story(title: "secret"), forKey: "secret")
      clock.advance(by: .seconds(120))
      var random = SplitMix64(seed: chosenSeed)
      for _ in 0..<3000 { _ = saved["\(random.index(below: 2000))"] }
      _ = saved["used"]
      clock.advance(by: .seconds(200))
      let before = saved.statistics
      let report = try saved.save(to: path, format: Story.format)
      #expect(report.entryCount == 2004 && report.skippedCount == 1 && report.skipped[0].hasPrefix("secret: it does not encode"))
      #expect(saved.statistics.hitCount == before.hitCount && saved.statistics.missCount == before.missCount, "no use")

      options.clock = ManualClock()
      let restored = try ObjectCache<String, Story>(options)
      let read = try restored.restore(from: path, format: Story.format)
      #expect(read.entryCount == 2004 && read.skippedCount == 0 && read.byteCount == report.byteCount)
      saved.remove(forKey: "secret")
      #expect(restored.keys == saved.keys && restored.totalCost == saved.totalCost && restored.count == 2004)
      func entry(_ key: String) throws -> CacheEntry<String, Story> { try #require(restored.peekEntry(forKey: key)) }
      #expect(try entry("pinned").cost == 7 && entry("pinned").priority == .pinned)
      #expect(try entry("speculative").priority == .speculative)
      let hour = try #require(try entry("hour").remainingTime)
      #expect(hour <= .seconds(3280) && hour > .seconds(3280 - 600))
      let used = try #require(try entry("used").remainingTime)
      #expect(used <= .seconds(400) && used > .seconds(1))
      for entry in restored.entries where entry.value.title.hasPrefix("story") {
        #expect(entry.value.title == "story \(entry.key)" && entry.cost == Int(entry.key)! % 3)
      }
      // Evictions go by it, exactly.
      let order = restored.keys
      try restored.setCountLimit(500)
      #expect(restored.keys == order.suffix(500))
      restored["speculative"] = nil
    }
  }

  @Test("what is restored counts as used before all that was stored since the start, and a later restore before the first")
  func behind() throws {
    try withFolder { folder in
      func file(_ keys: Range<Int>) throws -> String {
        let path = "\(folder.path)/\(keys.lowerBound)"
        let cache = try ObjectCache<Int, [UInt8]>()
        for key in keys { cache[key] = [UInt8(key % 256)] }
        try cache.save(to: path, format: .purgeableBytes)
        return path
      }
      let (first, second) = (try file(0..<300), try file(300..<600))
      let restored = try ObjectCache<Int, [UInt8]>()
      for key in 1000..<1100 { restored[key] = [1] }
      try restored.restore(from: first, format: .purgeableBytes)
      restored[1100] = [1]
      try restored.restore(from: second, format: .purgeableBytes)
      #expect(restored.keys == Array(300..<600) + Array(0..<300) + Array(1000...1100))
      _ = restored[450]
      try restored.setCountLimit(102)
      #expect(restored.keys == Array(1000...1100) + [450])
    }
  }

  @Test("in less room the most recently used are restored, and nothing is evicted for them")
  func lessRoom() throws {
    try withFolder { folder in
      let path = folder.path + "/cache"
      let saved = try ObjectCache<Int, [UInt8]>()
      for key in 0..<1000 { saved.setValue([1], forKey: key, cost: 10) }
      try saved.save(to: path, format: .purgeableBytes)
      let byCount = try ObjectCache<Int, [UInt8]>(countLimit: 100)
      for key in 2000..<2010 { byCount[key] = [7] }
      #expect(try byCount.restore(from: path, format: .purgeableBytes).entryCount == 90)
      #expect(byCount.keys == Array(910..<1000) + Array(2000..<2010))
      let byCost = try ObjectCache<Int, [UInt8]>(costLimit: 505)
      #expect(try byCost.restore(from: path, format: .purgeableBytes).entryCount == 50)
      #expect(byCost.keys == Array(950..<1000))
      let none = try ObjectCache<Int, [UInt8]>(costLimit: 5)
      #expect(try none.restore(from: path, format: .purgeableBytes).entryCount == 0)
      for cache in [byCount, byCost, none] { #expect(cache.statistics.departures.values.reduce(0, +) == 0) }
    }
  }

  /// A file of 400 objects of 10,000 bytes, under their numbers as text.
  private static func saved400(in folder: FakeRoot) throws -> String {
    let path = folder.path + "/cache"
    let saved = try ObjectCache<String, [UInt8]>()
    for key in 0..<400 { saved["\(key)"] = described(UInt32(key), version: 1, count: 10_000) }
    try saved.save(to: path, format: .purgeableBytes, isSynchronized: false)
    return path
  }

  @Test("a key that is there, stored or removed during a restore gets none of it, and removeAll ends it")
  func overtaken() throws {
    try withFolder { folder in
      let path = try Self.saved400(in: folder)
      let restored = try ObjectCache<String, [UInt8]>()
      restored["399"] = [2]
      var calls = 0
      try restored.restore(from: path, format: .purgeableBytes) { _ in
        calls += 1
        if calls == 1 {
          #expect(restored.peekValue(forKey: "0") == nil && restored.peekValue(forKey: "398") != nil)
          restored["0"] = [3]
          restored["1"] = [4]
          restored.remove(forKey: "1")
          restored.remove(forKey: "2")
        }
        return true
      }
      #expect(calls > 2 && restored["399"] == [2] && restored["0"] == [3] && restored["1"] == nil && restored["2"] == nil)
      // Of the others some few may share the bit of one of the three.
      let others = (3..<399).filter { restored["\($0)"] == described(UInt32($0), version: 1, count: 10_000) }
      #expect(others.count >= 390 && restored.count == others.count + 2)
      let emptied = try ObjectCache<String, [UInt8]>()
      try emptied.restore(from: path, format: .purgeableBytes) { _ in
        emptied.removeAll()
        return true
      }
      #expect(emptied.isEmpty)
    }
  }

  @Test("objects whose content is discarded are left out, and what is restored may discard its content")
  func discardable() throws {
    try withFolder { folder in
      let path = folder.path + "/cache"
      let saved = try ObjectCache<Int, Picture>()
      for key in 0..<100 { saved[key] = Picture(key) }
      for key in stride(from: 0, to: 100, by: 2) { saved.peekValue(forKey: key)?.discardContentIfPossible() }
      #expect(try saved.save(to: path, format: Picture.format).entryCount == 50)
      let restored = try ObjectCache<Int, Picture>()
      try restored.restore(from: path, format: Picture.format)
      #expect(restored.keys == Array(stride(from: 1, to: 100, by: 2)))
      restored[1]?.discardContentIfPossible()
      #expect(restored[1] == nil && restored[3]?.number == 3 && restored.sweep() == 0)
      let departed = restored[5]
      restored[5] = nil
      #expect(departed?.isContentDiscarded == true)
    }
  }

  @Test("the contents of PurgeableData come back idle; what is discarded is skipped, and later versions are")
  func contents() throws {
    try withFolder { folder in
      let path = folder.path + "/contents"
      let saved = try ObjectCache<Int, PurgeableData>()
      for key in 0..<3 { saved[key] = try PurgeableData([UInt8](repeating: UInt8(key), count: 5000 * key)) }
      saved.evictsEntriesWithDiscardedContent = false
      let lost = try PurgeableData([9])
      lost.endContentAccess()
      saved[3] = lost
      lost.discardContentIfPossible()
      let report = try saved.save(to: path, format: .contents(version: 2))
      #expect(report.entryCount == 3)
      let restored = try ObjectCache<Int, PurgeableData>()
      #expect(try restored.restore(from: path, format: .contents()).skippedCount == 3)
      #expect(try restored.restore(from: path, format: .contents(version: 2)).entryCount == 3)
      for key in 0..<3 {
        let object = try #require(restored[key])
        #expect(object.accessCount == 0)
        #expect(
          object.withBytes { unsafe $0.withUnsafeBytes { unsafe [UInt8]($0) } }
            == [UInt8](repeating: UInt8(key), count: 5000 * key))
        object.discardContentIfPossible()
        #expect(object.isContentDiscarded)
      }
    }
  }

  @Test("handlers of changes hear of what is restored; files of caches of bytes can be read")
  func others() throws {
    try withFolder { folder in
      let path = folder.path + "/cache"
      let saved = try PurgeableCache<Int, [UInt8]>()
      for key in 0..<50 { saved.setValue([UInt8(key)], forKey: key, cost: 3, version: "\(key)") }
      try saved.save(to: path)
      let restored = try ObjectCache<Int, [UInt8]>()
      let updated = Mutex<Set<Int>>([])
      try restored.setChangeHandler(every: .seconds(3600)) { changes in updated.withLock { $0.formUnion(changes.updatedKeys) } }
      #expect(try restored.restore(from: path, format: .purgeableBytes).entryCount == 50)
      restored.deliverChanges()
      #expect(updated.withLock { $0 } == Set(0..<50))
      for key in 0..<50 {
        let entry = restored.peekEntry(forKey: key)
        #expect(entry?.value == [UInt8(key)] && entry?.cost == 3)
      }
      let values = #expect(throws: PurgeableError.self) {
        try ObjectCache<Int, String>().restore(from: path, format: .purgeableBytes)
      }
      #expect(values?.kind == .invalidFile)
    }
  }

  @Test("costs that are found are asked for where the file has none; less than nothing counts as nothing")
  func foundCosts() throws {
    try withFolder { folder in
      let path = folder.path + "/cache"
      let saved = try PurgeableCache<Int, [UInt8]>()
      for key in 0..<50 { saved[key] = [UInt8](repeating: 1, count: key) }
      try saved.save(to: path)
      let restored = try ObjectCache<Int, [UInt8]>(costLimit: 1 << 30)
      restored.costOfValue = { $0.count - 25 }
      #expect(try restored.restore(from: path, format: .purgeableBytes).entryCount == 50)
      #expect(restored.totalCost == (0..<50).reduce(0) { $0 + max(0, $1 - 25) })
    }
  }

  @Test("what a load finds during a restore is newer than the file, also where it finds nothing")
  func loadsMeanwhile() throws {
    try withFolder { folder in
      let path = try Self.saved400(in: folder)
      let restored = try ObjectCache<String, [UInt8]>()
      var calls = 0
      try restored.restore(from: path, format: .purgeableBytes) { _ in
        calls += 1
        if calls == 1 {
          #expect(restored.value(forKey: "0", keepingNilFor: .seconds(3600)) { () -> [UInt8]? in nil } == nil)
          #expect(restored.value(forKey: "1") { () -> [UInt8]? in [9] } == [9])
          // What has found nothing out costs the key nothing.
          #expect(throws: LoadError.self) {
            try restored.value(forKey: "2") { () throws(LoadError) -> [UInt8] in throw LoadError() }
          }
        }
        return true
      }
      #expect(restored["0"] == nil && restored["1"] == [9] && restored.count > 380)
      #expect(restored["2"] == described(2, version: 1, count: 10_000))
    }
  }

  @Test("so is what a load finds that lasts longer than the restore; of another version than the load's nothing goes")
  func loadsBeyond() throws {
    try withFolder { folder in
      let path = try Self.saved400(in: folder)
      func check<Cache: LoadingCache<String> & FiledCache>(_ cache: Cache) throws {
        let loads = [HeldLoad(cache, "0", nil), HeldLoad(cache, "1", [1])]
        for load in loads { #expect(load.began.blocks()) }
        var calls = 0
        _ = try cache.restoreInTurn(from: path, .purgeableBytes) { _ in
          calls += 1
          if calls == 1 {
            #expect(cache.load("new", version: "a", nil) { [5] } == [5])
            #expect(cache.load("new", version: "b", nil) { nil } == nil)
            #expect(cache.peekValue(forKey: "new") == [5], "what finds no b leaves a")
          }
          return true
        }
        #expect(cache.peekValue(forKey: "0") != nil && cache.peekValue(forKey: "1") != nil)
        for load in loads {
          load.goesOn()
          _ = load.join()
        }
        #expect(cache.peekValue(forKey: "0") == nil && cache.peekValue(forKey: "1") == [1])
        #expect(cache.peekValue(forKey: "new") == [5])
      }
      try check(ObjectCache<String, [UInt8]>())
      try check(PurgeableCache<String, [UInt8]>())
      try check(PurgeableCache<String, [UInt8]>(tracksKeys: true))
    }
  }

  @Test("so is what a load finds that began before the restore, also where the file's value was there before it ended")
  func loadsFromBefore() throws {
    try withFolder { folder in
      let path = try Self.saved400(in: folder)
      func check<Cache: LoadingCache<String> & FiledCache>(_ cache: Cache) throws {
        // The last keys are the file's first: one load ends before its record is reached, one after it.
        let loads = ["0", "399"].map { HeldLoad(cache, $0, nil) }
        for load in loads { #expect(load.began.blocks()) }
        var calls = 0
        _ = try cache.restoreInTurn(from: path, .purgeableBytes) { _ in
          calls += 1
          if calls == 2 {
            #expect(cache.peekValue(forKey: "0") == nil && cache.peekValue(forKey: "399") != nil)
            for load in loads {
              load.goesOn()
              #expect(load.join() == nil)
            }
          }
          return true
        }
        #expect(calls > 2)
        for key in ["0", "399"] { #expect(cache.peekValue(forKey: key) == nil, "\(key)") }
        #expect(cache.peekValue(forKey: "200") == described(200, version: 1, count: 10_000))
      }
      try check(ObjectCache<String, [UInt8]>())
      try check(PurgeableCache<String, [UInt8]>())
    }
  }

  @Test("an entry whose time is over keeps nothing of the file out; a child of one that restores forgets what is idle")
  func leftOvers() throws {
    try withFolder { folder in
      let path = try Self.saved400(in: folder)
      var options = CacheOptions()
      let clock = ManualClock()
      (options.clock, options.idleTime) = (clock, .seconds(100))
      let restored = try ObjectCache<String, [UInt8]>(options)
      restored.setValue([1], forKey: "0", expiry: .sinceCreation(.seconds(1)))
      clock.advance(by: .seconds(2))
      #expect(try restored.restore(from: path, format: .purgeableBytes).entryCount == 400)
      #expect(restored.peekValue(forKey: "0") == described(0, version: 1, count: 10_000))
      // As it is in a child: the thread that restores is not there.
      restored.store.beginRestoring()
      for _ in 0..<12 {
        restored.store.dropIdle()
        clock.advance(by: .seconds(25))
      }
      #expect(restored.isEmpty)
    }
  }

  @Test("threads may use the cache while it is saved and restored, and no value is wrong")
  func besideThreads() throws {
    try withFolder { folder in
      let path = folder.path + "/cache"
      let cache = try ObjectCache<Int, [UInt8]>(countLimit: 3000)
      for key in 0..<2000 { cache[key] = described(UInt32(key), version: 1, count: 40) }
      try cache.save(to: path, format: .purgeableBytes)
      let isOver = Atomic<Bool>(false)
      let threads = (0..<3).map { number in
        TestThread {
          var random = SplitMix64(seed: UInt64(number))
          while !isOver.load(ordering: .relaxed) {
            let key = random.index(below: 4000)
            switch random.index(below: 4) {
            case 0: cache[key] = described(UInt32(key), version: 2, count: 40)
            case 1: cache[key] = nil
            default:
              guard let value = cache[key] else { continue }
              let version = versionDescribed(in: value, key: UInt32(key))
              #expect(version == 1 || version == 2)
            }
          }
        }
      }
      for _ in 0..<(TestRun.isFull ? 20 : 6) {
        _ = try cache.restore(from: path, format: .purgeableBytes)
        _ = try cache.save(to: path, format: .purgeableBytes, isSynchronized: false)
      }
      isOver.store(true, ordering: .relaxed)
      for thread in threads { thread.join() }
      #expect(cache.count <= 3000 && Set(cache.keys).count == cache.count)
      #expect(cache.totalCost == 0)
    }
  }
}
