// SPDX-License-Identifier: MIT
// Reasons and outcomes are right, and look-ups are counted as what they are.

import CPurgeable
import PurgeableTestSupport
import Synchronization
import Testing

@testable import Purgeable

/// A type with a value that has no bytes, and bytes that make no value.
private struct Choosy: PurgeableValue, Equatable {
  var text: [UInt8]

  init(_ text: [UInt8]) { self.text = text }

  /// Makes no value of bytes that begin with 0xFF.
  init?(purgeableBytes: RawSpan) {
    text = [UInt8](copying: purgeableBytes)
    if text.first == 0xFF { return nil }
  }

  func withPurgeableBytes<R, E: Error>(_ body: (RawSpan) throws(E) -> R) throws(E) -> R { try unsafe body(text.span.bytes) }

  /// An empty value cannot be written.
  func withPurgeableBytesIfEncodable<R, E: Error>(_ body: (RawSpan) throws(E) -> R) throws(E) -> R? {
    text.isEmpty ? nil : try withPurgeableBytes(body)
  }
}

/// A type of a program that knows nothing of values without bytes.
private struct Plain: PurgeableValue {
  init() {}
  init?(purgeableBytes: RawSpan) {}
  func withPurgeableBytes<R, E: Error>(_ body: (RawSpan) throws(E) -> R) throws(E) -> R {
    try unsafe body([UInt8](repeating: 1, count: 3).span.bytes)
  }
}

/// Reads into less than it was told, which breaks the contract; after 100 tries into enough, for the test to end.
private struct Scant: PurgeableValue {
  static let tries = Atomic<Int>(0)

  init() {}
  init?(purgeableBytes: RawSpan) {}
  init?(purgeableByteCount byteCount: Int, read: (UnsafeMutableRawBufferPointer) -> Int?) {
    let tries = Self.tries.add(1, ordering: .relaxed).newValue
    let count = tries > 100 ? byteCount : byteCount / 2
    let read = unsafe withUnsafeTemporaryAllocation(byteCount: count, alignment: 1) { unsafe read($0) }
    if read == nil { return nil }
  }
  func withPurgeableBytes<R, E: Error>(_ body: (RawSpan) throws(E) -> R) throws(E) -> R {
    try unsafe body([UInt8](repeating: 1, count: 5000).span.bytes)
  }
}

@Suite("PurgeableCache, reasons and outcomes")
struct CacheReasonsTests {
  // MARK: Values without bytes, bytes without value

  @Test("a value that cannot be encoded is refused, and the old value stays", arguments: [false, true])
  func notEncodable(tracksKeys: Bool) throws {
    let told = Departures<String, Choosy>()
    var handler: (@Sendable (Departure<String, Choosy>) -> Void)?
    if tracksKeys { handler = { told.note($0) } }
    let cache = try PurgeableCache<String, Choosy>(onDeparture: handler)
    #expect(cache.setValue(Choosy([]), forKey: "a") == .notEncodable)
    #expect(cache.isEmpty && !cache.containsValue(forKey: "a"))
    #expect(cache.setValue(Choosy([1]), forKey: "a") == .stored)
    #expect(cache.setValue(Choosy([]), forKey: "a") == .notEncodable)
    #expect(cache["a"] == Choosy([1]))
    #expect(cache.count == 1 && cache.totalCost == 1)
    #expect(cache.statistics.refusalCount == 2 && cache.statistics.replacementCount == 0)
    #expect(told.all.isEmpty)
    let plain = try PurgeableCache<Int, Plain>()
    #expect(plain.setValue(Plain(), forKey: 1) == .stored)
    cache.checkBooksSwept()
  }

  @Test("a look-up whose bytes are no value is a miss that says so, and its bytes can be read", arguments: [false, true])
  func undecodable(tracksKeys: Bool) throws {
    let cache = try PurgeableCache<Int, Choosy>(tracksKeys: tracksKeys)
    cache[1] = Choosy([0xFF, 2])
    cache[2] = Choosy([7])
    for _ in 0..<5 { #expect(MissReason.of(cache.lookUpValue(forKey: 1)) == .undecodable) }
    #expect(cache[1] == nil)
    #expect(cache.peekValue(forKey: 1) == nil)
    var numbers = cache.statistics
    #expect(numbers.hitCount == 0 && numbers.missCount == 6)
    #expect(numbers.missesByReason[.undecodable] == 6)
    #expect(cache.withBytes(forKey: 1) { $0.array } == [0xFF, 2])
    #expect(cache[2] == Choosy([7]))
    numbers = cache.statistics
    #expect(numbers.hitCount == 2 && numbers.missCount == 6 && numbers.hitRate == 0.25)
    #expect(cache.count == 2)
    cache.checkBooksSwept()
  }

  @Test("a type that reads into less than its value's length is asked once a length", .serialized, arguments: [false, true])
  func scant(tracksKeys: Bool) throws {
    let cache = try PurgeableCache<Int, Scant>(tracksKeys: tracksKeys)
    cache[1] = Scant()
    Scant.tries.store(0, ordering: .relaxed)
    #expect(MissReason.of(cache.lookUpValue(forKey: 1)) == .undecodable)
    #expect(cache.peekValue(forKey: 1) == nil)
    #expect(Scant.tries.load(ordering: .relaxed) == 2)
    let numbers = cache.statistics
    #expect(numbers.hitCount == 0 && numbers.missCount == 1 && numbers.missesByReason[.undecodable] == 1)
    #expect(cache.withBytes(forKey: 1) { $0.byteCount } == 5000)
  }

  @Test("looking without using counts as nothing, in the way under a mutex too", arguments: [false, true])
  func uncounted(tracksKeys: Bool) throws {
    let cache = try PurgeableCache<Int, [UInt8]>(tracksKeys: tracksKeys)
    cache[1] = pattern(100)
    for key in 0..<3 {
      _ = cache.peekValue(forKey: key)
      _ = cache.containsValue(forKey: key)
    }
    if !tracksKeys {
      unsafe withUnsafeBytes(of: 1) { prefix in
        var buffer = [UInt8](repeating: 0, count: 200)
        unsafe buffer.withUnsafeMutableBytes { buffer in
          let key = unsafe cache.engine.base.elements.keys.key(prefix: prefix.bytes)
          let found = unsafe cache.engine.readUnderMutex(key, prefix.bytes, into: buffer, false)
          guard case .hit(100) = found else {
            Issue.record("not found")
            return
          }
        }
      }
    }
    let numbers = cache.statistics
    #expect(numbers.hitCount == 0 && numbers.missCount == 0)
  }

  // MARK: Who did it

  @Test("what the program trims is told and counted as trimmed", arguments: [false, true])
  func trimmed(tracksKeys: Bool) throws {
    let told = Departures<Int, [UInt8]>()
    var handler: (@Sendable (Departure<Int, [UInt8]>) -> Void)?
    if tracksKeys { handler = { told.note($0) } }
    let cache = try PurgeableCache<Int, [UInt8]>(onDeparture: handler)
    let count = TestRun.isFull ? 20_000 : 6000
    let value = pattern(100)
    for key in 0..<count { cache[key] = value }
    cache.trim(toCount: count * 3 / 4)
    cache.trim(toCost: count * 50)
    cache.trim(toFraction: 0.5)
    cache.trim(toBytes: 0)
    #expect(cache.isEmpty)
    let departures = cache.statistics.departures
    #expect(departures[.trimmed] == count)
    #expect(departures[.pressure] == 0 && departures[.bytes] == 0)
    if tracksKeys { #expect(told.count(of: .trimmed) == count) }
    #expect(MissReason.of(cache.lookUpValue(forKey: count - 1)) == .evicted)
    cache.checkBooksSwept()
  }

  @Test("without a byte limit slow growth evicts for growth, and the limit in force says so")
  func growth() throws {
    // The test's clock stands still, however long the calls take.
    let cache = try PurgeableCache<Int, [UInt8]>(clock: SetClock().monotonic)
    #expect(cache.statistics.limitInForce == nil && cache.statistics.limitReason == nil)
    let value = pattern(300)
    for key in 0..<30_000 { cache[key] = value }
    cache.trimUntimed(level: .critical)
    let before = cache.statistics
    #expect(before.departures[.trimmed, default: 0] > 0)
    guard case .growth(let remaining)? = before.limitReason, let limit = before.limitInForce else {
      Issue.record("limited by \(String(describing: before.limitReason))")
      return
    }
    #expect(remaining == .seconds(60))
    #expect(limit >= before.memory.heldBytes)
    for key in 30_000..<60_000 { cache[key] = value }
    let departures = cache.statistics.departures
    #expect(departures[.growth, default: 0] > 1000)
    #expect(departures[.bytes] == 0)
    cache.checkBooksSwept()
  }

  @Test("after removeAll nothing is remembered")
  func removeAll() throws {
    let cache = try PurgeableCache<Int, [UInt8]>()
    for key in 0..<1000 { cache[key] = pattern(100) }
    cache.remove(forKey: 7)
    #expect(MissReason.of(cache.lookUpValue(forKey: 7)) == .removed)
    cache.removeAll()
    for key in [0, 7, 999] { #expect(MissReason.of(cache.lookUpValue(forKey: key)) == .unknown) }
    #expect(cache.engine.base.totals.ghostBytes.load(ordering: .relaxed) == 0)
  }

  @Test("what a sweep of a lost cache drops is remembered, though the cache never evicted", arguments: [2000, 60_000])
  func swept(count: Int) throws {
    try needRealDiscards()
    let cache = try PurgeableCache<Int, [UInt8]>()
    let value = pattern(100)
    for key in 0..<count { cache[key] = value }
    cache.discardAll()
    let ordinaryBytes = cache.engine.base.ordinaryBytes
    let dropped = cache.sweep()
    #expect(dropped > count * 3 / 4)
    #expect(cache.engine.base.ordinaryBytes <= ordinaryBytes)
    let reasons = (0..<count).compactMap { MissReason.of(cache.lookUpValue(forKey: $0)) }
    #expect(reasons.count == dropped)
    // Nine tenths at most are remembered where a limit evicts; a full bucket forgets its oldest.
    #expect(reasons.count { $0 == .discarded } > dropped * 3 / 4)
    cache.checkBooksSwept()
  }

  @Test("once pressure was felt, stores see to it that what leaves is remembered, and a reaction leaves what is little")
  func remembersUnderPressure() throws {
    let cache = try PurgeableCache<Int, [UInt8]>()
    // In one shard, whose ghost has a size that can be halved several times.
    let count = 1510
    for key in 0..<count { cache[key] = pattern(4000) }
    let before = cache.engine.base.totals.ghostBytes.load(ordering: .relaxed)
    cache.engine.setPressure(.warning)
    cache.engine.setPressure(.normal)
    #expect(cache.engine.base.totals.ghostBytes.load(ordering: .relaxed) == before, "the library's thread takes nothing")
    cache[count] = pattern(4000)
    #expect(cache.engine.base.totals.ghostBytes.load(ordering: .relaxed) >= 4 * count * 9 / 10)
    cache.trim(toFraction: 0.2)
    cache.engine.shrinkBookkeeping(.critical)
    let reasons = (0..<count).compactMap { MissReason.of(cache.lookUpValue(forKey: $0)) }
    #expect(reasons.count >= count * 3 / 4)
    #expect(reasons.count { $0 == .evicted } > reasons.count * 19 / 20)
    cache.checkBooksSwept()
  }

  @Test("at byte limits that change, after pressure, the ghost does not shrink and grow by turns")
  func steadyGhost() throws {
    // In the quick run the limit changes twice as often, for the bound to be as far below the number of changes.
    let (count, limit, step) = TestRun.isFull ? (36_000, 24 << 20, 1000) : (12_000, 8 << 20, 500)
    let cache = try PurgeableCache<Int, [UInt8]>(byteLimit: limit)
    let value = pattern(1000)
    for key in 0..<count { cache[key] = value }
    cache.engine.setPressure(.warning)
    var (changes, last) = (0, 0)
    for key in count..<2 * count {
      if key % step == 0 { try cache.setByteLimit(key % (2 * step) == 0 ? limit : limit / 2) }
      cache[key] = value
      let now = cache.engine.base.totals.ghostBytes.load(ordering: .relaxed)
      if now != last { changes += 1 }
      last = now
    }
    #expect(changes < 10, "as it grows, and where many more entries live")
    #expect(cache.engine.base.exceededLimit == nil)
    cache.checkBooksSwept()
  }

  @Test("a sweep of a reaction, which gives memory back, enlarges no ghost")
  func sweptUnderPressure() throws {
    try needRealDiscards()
    let cache = try PurgeableCache<Int, [UInt8]>()
    for key in 0..<10_000 { cache[key] = pattern(100) }
    cache.discardAll()
    let before = cache.engine.base.totals.ghostBytes.load(ordering: .relaxed)
    #expect(cache.engine.dropLost() > 5000)
    #expect(cache.engine.base.totals.ghostBytes.load(ordering: .relaxed) <= before)
  }

  @Test("a trim by level leaves alone what the sources say of pressure")
  func level() throws {
    let cache = try PurgeableCache<Int, [UInt8]>()
    for key in 0..<1000 { cache[key] = pattern(100) }
    cache.engine.setPressure(.critical)
    cache.trimUntimed(level: .warning)
    #expect(cache.statistics.pressure == .critical)
    // A level that the sources report meanwhile stands.
    PressureReaction.run([cache.engine], .warning, isFelt: false) { _ in
      cache.engine.setPressure(.normal)
      return false
    }
    #expect(cache.statistics.pressure == .normal)
  }

  // MARK: Told in words

  @Test("the limit in force is the smallest, and says whose it is")
  func limits() throws {
    let memory = Double(ProcessMemory.limit())
    let cache = try PurgeableCache<Int, [UInt8]>(byteLimit: 8 << 20)
    #expect(cache.statistics.limitInForce == 8 << 20 && cache.statistics.limitReason == .byteLimit)
    try cache.setMemoryShare(Double(4 << 20) / memory)
    let share = try #require(cache.statistics.limitInForce)
    #expect(abs(share - 4 << 20) <= 1 && cache.statistics.limitReason == .memoryShare)
    try cache.setByteLimit(2 << 20)
    #expect(cache.statistics.limitInForce == 2 << 20 && cache.statistics.limitReason == .byteLimit)
    try cache.setMemoryShare(nil)
    try cache.setByteLimit(nil)
    #expect(cache.statistics.limitInForce == nil)
  }

  @Test("statistics and reasons print in plain words, in one line")
  func words() throws {
    let cache = try PurgeableCache<Int, [UInt8]>(name: "thumbs", byteLimit: 8 << 20)
    for key in 0..<10 { cache[key] = pattern(100) }
    _ = cache[0]
    _ = cache[11]
    cache.remove(forKey: 3)
    cache.trim(toCount: 7)
    let text = cache.statistics.description
    #expect(text.hasPrefix("thumbs: 7 entries, <0.1 of 8.0 MiB (byte limit)"))
    #expect(text.contains(" of 8.0 MiB (byte limit)"))
    #expect(text.contains("hits 50.0 %") && text.contains("left: 1 removed, 2 trimmed") && text.hasSuffix("missed: 1 unknown"))
    #expect(!text.contains("\n"))
    try cache.setCountLimit(100)
    try cache.setCostLimit(5000)
    #expect(cache.statistics.description.hasPrefix("thumbs: 7 of 100 entries, cost 700 of 5000, <0.1 of 8.0 MiB (byte limit)"))
    #expect("\(DepartureReason.bytes), \(MissReason.lockLimit), \(StoreOutcome.tooLarge)" == "byte limit, lock limit, too large")
    #expect(Set(DepartureReason.allCases.map(\.description)).count == DepartureReason.allCases.count)
    #expect(Set(MissReason.allCases.map(\.description)).count == MissReason.allCases.count)
    // There is room for each.
    let counters = EngineCounters()
    #expect(DepartureReason.allCases.allSatisfy { $0.rawValue < counters.departures.count })
    #expect(MissReason.allCases.allSatisfy { $0.rawValue < counters.misses.count })
  }
}
