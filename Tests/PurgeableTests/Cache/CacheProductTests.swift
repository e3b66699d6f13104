// SPDX-License-Identifier: MIT
// Every combination of order, limit, keys, expiry and consent, each with a core or none, and with notices of changes or none,
// under random operations with all attributes: what is returned is what was stored last and is still valid, limits hold, pins
// stay, notices say what has changed, and the cache's own books agree.

import PurgeableTestSupport
import Testing
import ToolSupport

@testable import Purgeable

struct ProductOfConfigurations: Sequence, Sendable {
  enum Limit: CaseIterable { case none, count, cost, bytes }
  enum Keys: CaseIterable { case bytes, tracked, told }

  struct One: Sendable, CustomTestStringConvertible {
    var order = EvictionOrder.s3FIFO
    var limit = Limit.none
    var keys = Keys.bytes
    var hasExpiry = false
    var asks = false
    var number = 0

    /// In turn, so that each comes with each of the others' values, though not with each of their combinations.
    var core: CacheCore? { [nil, .share(0.5), .usedWithin(.seconds(10))][(number + number / 12) % 3] }
    var isWatched: Bool { keys != .bytes && (number + number / 4) % 2 == 0 }

    var testDescription: String {
      "\(order), \(limit), \(keys)\(hasExpiry ? ", expiry" : "")\(asks ? ", asks" : "")\(isWatched ? ", watched" : "")"
        + (core.map { ", core: \($0)" } ?? "")
    }
  }

  func makeIterator() -> some IteratorProtocol<One> {
    var all: [One] = []
    for order in EvictionOrder.allCases {
      for limit in Limit.allCases {
        for keys in Keys.allCases {
          for rest in 0..<4 {
            all.append(
              One(
                order: order, limit: limit, keys: keys, hasExpiry: rest & 1 != 0, asks: rest & 2 != 0, number: all.count))
          }
        }
      }
    }
    return all.makeIterator()
  }
}

private final class ProductRun: RandomRun {
  private let configuration: ProductOfConfigurations.One
  let cache: PurgeableCache<Int, [UInt8]>

  init(_ configuration: ProductOfConfigurations.One, seed: UInt64) throws {
    self.configuration = configuration
    let (clock, told) = (ManualClock(), Departures<Int, [UInt8]>())
    var options = CacheOptions()
    switch configuration.limit {
    case .none: break
    case .count: options.countLimit = 60
    case .cost: options.costLimit = 20_000
    case .bytes: options.byteLimit = 256 << 10
    }
    options.evictionOrder = configuration.order
    options.tracksKeys = configuration.keys == .tracked
    options.pinnedByteLimit = 5_000
    options.clock = clock
    options.core = configuration.core
    if configuration.hasExpiry { options.expiry = Expiry(sinceCreation: .seconds(50), sinceLastUse: .seconds(20)) }
    cache =
      configuration.keys == .told
      ? try PurgeableCache(options) { told.note($0) } : try PurgeableCache(options)
    super.init(seed: seed, clock, told)
    if configuration.asks { cache.shouldEvict = { key, _ in key % 7 != 0 } }
    if configuration.isWatched {
      try cache.setChangeHandler(every: .seconds(100_000), mirror.handler)
    }
  }

  /// What a look-up found.
  private func check(_ key: Int, _ found: [UInt8]?, _ how: String, isUse: Bool = false) {
    guard let found else {
      // Gone for whatever reason, it stays so.
      if let its = known.removeValue(forKey: key), its.priority == .pinned {
        expect(its.isOver(at: now), "\(how): pinned \(key) is gone")
      }
      return
    }
    hits += 1
    guard let its = known[key] else { return expect(false, "\(how): \(key) is there, and should not be") }
    expect(its.value == found, "\(how): \(key) has another value")
    expect(!its.isOver(at: now), "\(how): \(key) is over")
    if isUse { known[key]?.used = now }
  }

  private func store(_ key: Int) {
    let value = newValue(
      of: key, byteCount: random.chance(1, of: 40) ? 2_000 + random.index(below: 10_000) : random.index(below: 400))
    let cost: Int? = random.chance(1, of: 3) ? random.index(below: 600) : nil
    let given = GivenAttributes(&random)
    let before = cache.peekEntry(forKey: key)
    let outcome = cache.setValue(
      value, forKey: key, cost: cost, expiry: given.expiry, recomputeCost: given.recomputeCost, priority: given.priority)
    switch outcome {
    case .stored, .replaced:
      expect((outcome == .replaced) == (before != nil) || configuration.limit != .none, "\(key): \(outcome)")
      var its = KnownEntry(value, cost: cost ?? value.count, given, expiry: cache.expiry, at: now)
      // A pin stays where the value fits; the entry says whether it did.
      if given.priority == nil, before?.priority == .pinned, cache.peekEntry(forKey: key)?.priority == .pinned {
        its.priority = .pinned
      }
      known[key] = its
      mirror.touch(key)
    case .tooLarge:
      known[key] = nil
      expect(!cache.containsValue(forKey: key), "\(key) is there though it is too large")
    case .pinnedByteLimit:
      // The key, and what lies before it.
      let most = value.count + EntryHead.mostBytes + 16
      expect(given.priority == .pinned && cache.statistics.pinnedBytes + most > 5_000, "\(key): there was room to pin it")
    case .outOfMemory, .notEncodable, .expired: expect(false, "\(key): \(outcome)")
    }
  }

  private func step() throws {
    let key = random.index(below: random.chance(1, of: 2) ? Self.keyCount : 20)
    switch random.index(below: 100) {
    case 0..<40: store(key)
    case 40..<65: check(key, cache.value(forKey: key), "value", isUse: true)
    case 65..<70: check(key, cache.withBytes(forKey: key) { $0.array }, "withBytes", isUse: true)
    case 70..<76:
      let entry = cache.peekEntry(forKey: key)
      check(key, entry?.value, "peek")
      if let entry, let its = known[key] {
        expect(entry.cost == its.cost && entry.recomputeCost == its.recomputeCost, "\(key) has other costs")
        // The clock began anywhere within 10 ms.
        let (right, time) = (its.end.map { $0 - now }, entry.remainingTime)
        let isRight = right.flatMap { right in time.map { $0 <= right && $0 > right - .milliseconds(10) } } ?? (right == time)
        expect(isRight, "\(key) has another time")
        expect(entry.priority == its.priority || its.priority == .speculative, "\(key) is \(entry.priority)")
      }
    case 76..<80:
      let priority = EntryPriority.allCases[random.index(below: 3)]
      let isThere = cache.containsValue(forKey: key)
      let isSet = try? cache.setPriority(priority, forKey: key)
      if isSet == true { known[key]?.priority = priority }
      expect(isSet == isThere || isSet == nil && priority == .pinned, "\(key) cannot be made \(priority)")
    case 80..<84:
      let stays = known[key].map { $0.priority == .pinned && !$0.isOver(at: now) } ?? false
      let isRemoved = cache.remove(forKey: key)
      expect(isRemoved ? known[key] != nil : !stays, "\(key) was \(isRemoved ? "" : "not ")removed")
      known[key] = nil
    case 84..<88:
      cache.modifyValue(forKey: key) { value in
        if value != nil { value![0] &+= 1 }
      }
      if let its = known[key], let value = cache.peekValue(forKey: key) {
        var changed = its.value
        changed[0] &+= 1
        expect(value == changed, "\(key) was changed in another way")
        (known[key]!.value, known[key]!.used) = (value, now)
        mirror.touch(key)
        if its.cost == its.value.count { known[key]!.cost = value.count }
        if its.priority == .speculative { known[key]!.priority = .normal }
      } else {
        check(key, nil, "modify")
      }
    case 88..<91: passTime()
    case 91..<93: _ = cache.removeExpired()
    case 93..<94: if random.chance(1, of: 2) { _ = cache.trimUntimed(level: .warning) } else { cache.trim(toCount: 30) }
    case 94..<96: cache.offerIdle()
    case 96..<97: if random.chance(1, of: 3) { try cache.pageOut() }
    case 97..<98:
      let names = cache.keys.map { $0 }
      expect(Set(names).count == names.count, "a key comes twice")
      for name in names { expect(known[name] != nil, "\(name) is listed, and should not be") }
    case 98..<99: for (name, value) in cache.snapshot() { check(name, value, "snapshot") }
    default:
      expect(cache.evictAll { $0.key % 11 == 3 } >= 0, "evictAll")
    }
  }

  /// What changed since the last time, as it is told.
  private func checkChanges() {
    cache.deliverChanges()
    for wrong in mirror.check(ofFirst: Self.keyCount, isThere: { cache.containsValue(forKey: $0) }) { expect(false, wrong) }
    // What the library's thread drops is noted after it is gone, maybe once the key has been stored again and told: it drops what
    // has expired, what the kernel took, and what there is no room for.
    let own: [DepartureReason] = [.replaced, .removed, .decider, .trimmed]
    let others = cache.statistics.departures.reduce(0) { own.contains($1.key) ? $0 : $0 + $1.value }
    expect(mirror.untouchedCount <= others, "what was not stored was told as updated: \(mirror.untouchedCount) of \(others)")
  }

  private func checkLimits() {
    // What the program keeps may go beyond, and what is pinned.
    if configuration.asks { return }
    let pinned = known.values.count { $0.priority == .pinned }
    switch configuration.limit {
    case .none: break
    case .count: expect(cache.count <= max(60, pinned), "\(cache.count) entries")
    case .cost: expect(cache.totalCost <= 20_000 + 5_000, "costs of \(cache.totalCost)")
    case .bytes: expect(cache.byteCount <= 256 << 10, "\(cache.byteCount) bytes")
    }
  }

  func run(steps: Int) throws {
    for number in 0..<steps where failures.isEmpty {
      try step()
      checkLimits()
      if configuration.isWatched, number % 20 == 19 { checkChanges() }
      #if DEBUG
        // A recount takes longer than a step.
        if TestRun.isFull || number % 10 == 9 {
          let wrong = cache.engine.shards.checkBooks()
          if !wrong.isEmpty { failures.append("after step \(number): " + wrong.joined(separator: "; ")) }
        }
      #endif
    }
    for key in 0..<Self.keyCount { check(key, cache.value(forKey: key), "at the end") }
    if configuration.isWatched {
      // The library's thread drops what is due, too, before it tells.
      let isTold = patiently {
        checkChanges()
        return mirror.keys.allSatisfy { known[$0] != nil }
      }
      expect(isTold, "gone without a word: \(mirror.keys.filter { known[$0] == nil })")
    }
    if configuration.keys != .told { return }
    let reasons = DepartureReason.allCases.filter { $0 != .tooLarge }
    func wrong() -> DepartureReason? { reasons.first { told.count(of: $0) != cache.statistics.departures[$0] } }
    // The library's thread drops what is due, too, and counts it before it tells.
    if failures.isEmpty, !patiently({ wrong() == nil }), let reason = wrong() {
      let counted = cache.statistics.departures[reason] ?? 0
      expect(false, "\(told.count(of: reason)) were told of as \(reason), and \(counted) were counted")
    }
  }
}

@Suite("cache: the product of configurations")
struct CacheProductTests {
  @Test(
    "random operations with all attributes leave right values, limits that hold, and books that agree",
    arguments: ProductOfConfigurations().map { $0 })
  func random(configuration: ProductOfConfigurations.One) throws {
    try check(configuration) { run in try run.run(steps: TestRun.isFull ? 3000 : 200) }
  }

  @Test(
    "the same beside a thread that does the library's rounds all the time", .fullRun,
    arguments: ProductOfConfigurations().map { $0 })
  func beside(configuration: ProductOfConfigurations.One) throws {
    try check(configuration) { run in try besideRounds(of: run.cache.engine) { try run.run(steps: 1000) } }
  }

  private func check(_ configuration: ProductOfConfigurations.One, _ body: (ProductRun) throws -> Void) throws {
    // Other operations for each.
    let run = try ProductRun(configuration, seed: chosenSeed &+ UInt64(configuration.number))
    try body(run)
    #expect(run.failures.isEmpty, "seed \(chosenSeed), \(configuration.testDescription): \(run.failures.joined(separator: "\n"))")
    // How much a page-out takes hangs on what the library's thread has offered by then.
    #expect(run.hits + (run.cache.statistics.departures[.discarded] ?? 0) > 20)
  }
}
