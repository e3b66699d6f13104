// SPDX-License-Identifier: MIT
// Caches made from a value, and what objects have of it: a limit in bytes, a share of the memory, a trim by level.

import PurgeableTestSupport
import Testing

@testable import Purgeable

@Suite("CacheOptions")
struct CacheOptionsTests {
  private func fault<R>(_ body: () throws -> R) -> PurgeableError.Kind? {
    do {
      _ = try body()
      return nil
    } catch {
      return (error as? PurgeableError)?.kind
    }
  }

  private static let wrong: [(String, @Sendable (inout CacheOptions) -> Void)] = [
    ("countLimit", { $0.countLimit = -1 }), ("costLimit", { $0.costLimit = -1 }), ("byteLimit", { $0.byteLimit = -1 }),
    ("lockedByteLimit", { $0.lockedByteLimit = -1 }), ("memoryShare", { $0.memoryShare = 0 }),
    ("memoryShare", { $0.memoryShare = 1.5 }), ("memoryShare", { $0.memoryShare = .nan }), ("idleTime", { $0.idleTime = .zero }),
  ]

  @Test("each option that is out of range is named, by both kinds of cache", arguments: wrong.indices)
  func outOfRange(_ number: Int) {
    let (name, change) = Self.wrong[number]
    var options = CacheOptions()
    change(&options)
    #expect(fault { try PurgeableCache<Int, Int>(options) } == .invalidArgument(name))
    #expect(fault { try ObjectCache<Int, Int>(options) } == .invalidArgument(name))
  }

  @Test("what one kind of cache cannot do is refused by name")
  func notForThisKind() {
    var options = CacheOptions()
    options.evictsEntriesWithDiscardedContent = false
    #expect(fault { try PurgeableCache<Int, Int>(options) } == nil)
    #expect(fault { try ObjectCache<Int, Int>(options) } == nil)
    options.lockedByteLimit = 1
    #expect(fault { try ObjectCache<Int, Int>(options) } == .invalidArgument("lockedByteLimit"))
    (options.lockedByteLimit, options.core) = (nil, .share(0.5))
    #expect(fault { try ObjectCache<Int, Int>(options) } == .invalidArgument("core"))
    (options.core, options.pinnedByteLimit) = (nil, 1)
    #expect(fault { try ObjectCache<Int, Int>(options) } == .invalidArgument("pinnedByteLimit"))
  }

  @Test("a cache of bytes has the options it was made with")
  func bytes() throws {
    var options = CacheOptions(name: "pages", countLimit: 5, costLimit: 600, byteLimit: 7 << 20, memoryShare: 0.5)
    (options.lockedByteLimit, options.idleTime, options.tracksKeys) = (8, .seconds(9), true)
    let cache = try PurgeableCache<Int, [UInt8]>(options)
    #expect(cache.name == "pages" && cache.countLimit == 5 && cache.costLimit == 600 && cache.byteLimit == 7 << 20)
    #expect(cache.memoryShare == 0.5 && cache.lockedByteLimit == 8 && cache.idleTime == .seconds(9) && cache.teller != nil)
    for key in 0..<10 { cache[key] = [1] }
    #expect(cache.count == 5)
  }

  @Test("a default expiry may be given to the initializer, and one of 0 or less is refused by name")
  func expiry() throws {
    let cache = try PurgeableCache<Int, [UInt8]>(expiry: .sinceCreation(.seconds(1000)), tracksKeys: false)
    cache[1] = [1]
    let left = try #require(cache.peekEntry(forKey: 1)?.remainingTime)
    #expect(left > .zero && left <= .seconds(1000))
    #expect(fault { try PurgeableCache<Int, Int>(expiry: .sinceLastUse(.zero)) } == .invalidArgument("expiry"))
  }

  @Test("a cache of objects has the options it was made with, and tells the handler")
  func objects() throws {
    let keys = Guarded<[Int]>([])
    var options = CacheOptions(name: "faces", countLimit: 5, costLimit: 600, byteLimit: 700, memoryShare: 0.5)
    options.evictsEntriesWithDiscardedContent = false
    let cache = try ObjectCache<Int, Int>(options) { departure in keys.withLock { $0.append(departure.key) } }
    #expect(cache.name == "faces" && cache.countLimit == 5 && cache.costLimit == 600 && cache.byteLimit == 700)
    #expect(cache.memoryShare == 0.5 && !cache.evictsEntriesWithDiscardedContent)
    for key in 0..<7 { cache[key] = key }
    #expect(keys.withLock { $0 } == [0, 1])
  }

  @Test("the description has what differs from the default")
  func description() {
    var options = CacheOptions(name: "pages", byteLimit: 64)
    #expect("\(options)" == "CacheOptions \"pages\", byteLimit 64")
    (options.tracksKeys, options.idleTime, options.evictsEntriesWithDiscardedContent) = (true, .seconds(3), false)
    #expect(
      "\(options)"
        == "CacheOptions \"pages\", byteLimit 64, idleTime 3.0 seconds, tracksKeys true, evictsEntriesWithDiscardedContent false")
  }

  /// Tells the time that it is told.
  private final class ToldClock: Clock {
    let time = Guarded(ContinuousClock().now)
    var now: ContinuousClock.Instant { time.withLock { $0 } }
    var minimumResolution: Duration { .nanoseconds(1) }
    func sleep(until deadline: ContinuousClock.Instant, tolerance: Duration?) async throws {}
    func advance(by time: Duration) { self.time.withLock { $0 += time } }
  }

  @Test("times go by the clock that is given")
  func clock() throws {
    let clock = ToldClock()
    var options = CacheOptions()
    options.clock = clock
    let cache = try ObjectCache<Int, Int>(options)
    for key in 0..<1600 { cache[key] = key }
    cache.trim(level: .critical)
    #expect(cache.count == 1200)
    // Slow growth: a sixteenth of 1,600 a second.
    for key in 2000..<4000 { cache[key] = key }
    #expect(cache.count == 1200)
    clock.advance(by: .seconds(2))
    for key in 4000..<6000 { cache[key] = key }
    #expect(cache.count == 1400)
    // It stands still until it has caught up.
    clock.advance(by: .seconds(-30))
    for key in 6000..<7000 { cache[key] = key }
    #expect(cache.count == 1400)
    clock.advance(by: .seconds(1 << 40))
    for key in 7000..<9000 { cache[key] = key }
    #expect(cache.count == 3400)
  }

  @Test("bytes limit the costs of objects, beside a cost limit")
  func byteLimit() throws {
    let cache = try ObjectCache<Int, Int>(CacheOptions(costLimit: 100, byteLimit: 50))
    for key in 0..<10 { cache.setValue(key, forKey: key, cost: 10) }
    #expect(cache.keys == [5, 6, 7, 8, 9] && cache.totalCost == 50)
    #expect(cache.setValue(0, forKey: 20, cost: 51) == .tooLarge && cache.count == 5)
    try cache.setByteLimit(20)
    #expect(cache.keys == [8, 9] && cache.byteLimit == 20 && cache.costLimit == 100)
    try cache.setByteLimit(nil)
    for key in 0..<20 { cache.setValue(key, forKey: key, cost: 10) }
    #expect(cache.totalCost == 100)
    try cache.setCostLimit(nil)
    #expect(cache.setValue(0, forKey: 20, cost: 1000) == .stored && cache.count == 11)
    #expect(fault { try cache.setByteLimit(-1) } == .invalidArgument("limit") && cache.byteLimit == nil)
  }

  @Test("a share of the memory limits the costs of objects")
  func memoryShare() throws {
    let memory = Int(clamping: ProcessMemory.limit())
    let cache = try ObjectCache<Int, Int>(memoryShare: 0.25)
    #expect(cache.setValue(1, forKey: 1, cost: memory / 4 + 4096) == .tooLarge)
    #expect(cache.setValue(1, forKey: 1, cost: memory / 4 - 4096) == .stored)
    #expect(cache.setValue(2, forKey: 2, cost: 8192) == .stored)
    #expect(cache.keys == [2])
    try cache.setMemoryShare(nil)
    #expect(cache.setValue(1, forKey: 1, cost: memory) == .stored && cache.count == 2)
    #expect(cache.value(forKey: 2) == 2)
    try cache.setMemoryShare(0.5)
    #expect(cache.keys == [2] && cache.memoryShare == 0.5)
    #expect(fault { try cache.setMemoryShare(2) } == .invalidArgument("share") && cache.memoryShare == 0.5)
  }

  @Test("a trim by level takes a sixteenth or a quarter, the least recently used, and asks nobody")
  func trimByLevel() throws {
    let told = Guarded<[DepartureReason]>([])
    let cache = try ObjectCache<Int, Int> { departure in told.withLock { $0.append(departure.reason) } }
    cache.shouldEvict = { _, _ in false }
    #expect(cache.trim(level: .critical) == PressureRelief())
    for key in 0..<32 { cache[key] = key }
    cache.trim(level: .normal)
    #expect(cache.count == 32)
    cache.trim(level: .warning)
    #expect(cache.keys == Array(2..<32))
    cache.trim(level: .critical)
    #expect(cache.count == 23 && told.withLock { $0 } == Array(repeating: .trimmed, count: 9))
  }
}
