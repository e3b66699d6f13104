// SPDX-License-Identifier: MIT
// Objects: every combination of limit, expiry, consent and notices, under random operations with all attributes. What is returned
// is what was stored last and is still valid, limits hold, pins stay, who may not go has not gone, the order is that of last use,
// notices say what has changed, and each departure is told once.

import PurgeableTestSupport
import Testing
import ToolSupport

@testable import Purgeable

struct ProductOfObjects: Sendable, CustomTestStringConvertible {
  enum Limit: CaseIterable { case none, count, cost, both }

  let number: Int

  static let all = (0..<8 * Limit.allCases.count).map { Self(number: $0) }

  var limit: Limit { Limit.allCases[number / 8] }
  var hasExpiry: Bool { number & 1 != 0 }
  var asks: Bool { number & 2 != 0 }
  var isWatched: Bool { number & 4 != 0 }

  var testDescription: String {
    "\(limit)\(hasExpiry ? ", expiry" : "")\(asks ? ", asks" : "")\(isWatched ? ", watched" : "")"
  }

  var countLimit: Int? { limit == .count || limit == .both ? 60 : nil }
  var costLimit: Int? { limit == .cost || limit == .both ? 20_000 : nil }
}

private final class ObjectRun: RandomRun {
  private let configuration: ProductOfObjects
  let cache: ObjectCache<Int, [UInt8]>
  /// Keys that may have gone at the run's own wish, and were not seen since.
  private var mayGo: Set<Int> = []
  private var turn = 0
  /// When each key was used last: the number of that use.
  private var turns: [Int: Int] = [:]

  init(_ configuration: ProductOfObjects, seed: UInt64) throws {
    self.configuration = configuration
    let (clock, told) = (ManualClock(), Departures<Int, [UInt8]>())
    var options = CacheOptions(countLimit: configuration.countLimit, costLimit: configuration.costLimit)
    options.clock = clock
    if configuration.hasExpiry { options.expiry = Expiry(sinceCreation: .seconds(50), sinceLastUse: .seconds(20)) }
    cache = try ObjectCache(options) { told.note($0) }
    super.init(seed: seed, clock, told)
    cache.staysAlone()
    if configuration.asks { cache.shouldEvict = { key, _ in !Self.isKept(key) } }
    if configuration.isWatched { try cache.setChangeHandler(every: .seconds(100_000), mirror.handler) }
  }

  private static func isKept(_ key: Int) -> Bool { key % 7 == 0 }

  private func mayBeGone(_ key: Int, _ known: KnownEntry) -> Bool {
    if known.isOver(at: now) { return true }
    if known.priority == .pinned { return false }
    return mayGo.contains(key) || configuration.limit != .none && !(configuration.asks && Self.isKept(key))
  }

  private func noteTurn(_ key: Int) {
    turn += 1
    turns[key] = turn
  }

  /// What a look-up found.
  private func check(_ key: Int, _ found: [UInt8]?, _ how: String, isUse: Bool = false) {
    guard let found else {
      // Gone for whatever reason, it stays so.
      if let its = known.removeValue(forKey: key) { expect(mayBeGone(key, its), "\(how): \(key) is gone") }
      return
    }
    hits += 1
    mayGo.remove(key)
    guard let its = known[key] else { return expect(false, "\(how): \(key) is there, and should not be") }
    expect(its.value == found, "\(how): \(key) has another value")
    expect(!its.isOver(at: now), "\(how): \(key) is over")
    guard isUse else { return }
    noteTurn(key)
    known[key]?.used = now
    if its.priority == .speculative { known[key]?.priority = .normal }
  }

  private func value(of key: Int) -> [UInt8] { newValue(of: key, byteCount: random.index(below: 300)) }

  private func noteStore(_ key: Int, _ new: KnownEntry, keepsPin: Bool) {
    var new = new
    if keepsPin, let old = known[key], old.priority == .pinned, !old.isOver(at: now) { new.priority = .pinned }
    known[key] = new
    mayGo.remove(key)
    noteTurn(key)
    mirror.touch(key)
  }

  private func store(_ key: Int) {
    let value = value(of: key)
    let cost = random.chance(1, of: 40) ? 30_000 : random.chance(1, of: 5) ? 0 : random.index(below: 900)
    let given = GivenAttributes(&random)
    let label: String? = random.chance(1, of: 4) ? "\(random.index(below: 3))" : nil
    let before = cache.peekEntry(forKey: key)
    let outcome = cache.setValue(
      value, forKey: key, cost: cost, expiry: given.expiry, recomputeCost: given.recomputeCost, priority: given.priority,
      version: label)
    switch outcome {
    case .stored, .replaced:
      expect((outcome == .replaced) == (before != nil), "\(key): \(outcome)")
      noteStore(
        key, KnownEntry(value, cost: cost, given, expiry: cache.expiry, version: label, at: now), keepsPin: given.priority == nil)
    case .tooLarge:
      known[key] = nil
      expect(cost > configuration.costLimit ?? .max && !cache.containsValue(forKey: key), "\(key) is there, too large")
    case .pinnedByteLimit, .outOfMemory, .notEncodable, .expired: expect(false, "\(key): \(outcome)")
    }
  }

  private func step() throws {
    let key = random.index(below: random.chance(1, of: 2) ? Self.keyCount : 20)
    switch random.index(below: 100) {
    case 0..<40: store(key)
    case 40..<60: check(key, cache.value(forKey: key), "value", isUse: true)
    case 60..<65:
      let label = "\(random.index(below: 3))"
      let found = cache.value(forKey: key, version: label)
      if found != nil { expect(known[key]?.version == label, "\(key) is of another version") }
      if found != nil || known[key]?.version == label { check(key, found, "version", isUse: true) }
    case 65..<70:
      let keys = (0..<4).map { _ in random.index(below: Self.keyCount) }
      for (key, found) in zip(keys, cache.values(forKeys: keys)) { check(key, found, "values", isUse: true) }
    case 70..<76:
      let entry = cache.peekEntry(forKey: key)
      check(key, entry?.value, "peek")
      if let entry, let its = known[key] {
        expect(entry.cost == its.cost && entry.recomputeCost == its.recomputeCost, "\(key) has other costs")
        expect(entry.version == its.version && entry.priority == its.priority, "\(key): \(entry)")
        expect(entry.remainingTime == its.end.map { $0 - now }, "\(key) has another time")
      }
    case 76..<80:
      let priority = EntryPriority.allCases[random.index(below: 3)]
      let isThere = cache.containsValue(forKey: key)
      expect(cache.setPriority(priority, forKey: key) == isThere, "\(key) is there, and cannot be made \(priority)")
      guard isThere, known[key]?.priority != priority else { break }
      known[key]?.priority = priority
      noteTurn(key)
    case 80..<83:
      let its = known.removeValue(forKey: key)
      let removed = cache.removeValue(forKey: key)
      expect(removed == nil ? its.map { mayBeGone(key, $0) } ?? true : removed == its?.value, "\(key) was removed as another")
    case 83..<84:
      let keys = (0..<5).map { _ in random.index(below: Self.keyCount) }
      for key in keys { check(key, cache.peekValue(forKey: key), "before a removal") }
      expect(cache.remove(forKeys: keys) == Set(keys).count { known[$0] != nil }, "others were removed")
      for key in keys { known[key] = nil }
    case 84..<88:
      cache.modifyValue(forKey: key) { value in
        if value != nil { value![0] &+= 1 }
      }
      if let its = known[key], let value = cache.peekValue(forKey: key) {
        var new = its
        new.value[0] &+= 1
        new.used = now
        if new.priority == .speculative { new.priority = .normal }
        expect(value == new.value, "\(key) was changed in another way")
        noteStore(key, new, keepsPin: true)
      } else {
        check(key, nil, "modify")
      }
    case 88..<91: passTime()
    case 91..<93:
      _ = cache.removeExpired()
      let entries = cache.entries
      expect(cache.count == entries.count, "\(cache.count) entries, and \(entries.count) that are not over")
      expect(cache.totalCost == entries.reduce(0) { $0 + $1.cost }, "costs of \(cache.totalCost)")
    case 93..<95:
      if random.chance(1, of: 2) { cache.trim(toCount: 30) } else { cache.trim(toCost: 5000) }
      mayGo.formUnion(known.keys)
    case 95..<96: _ = cache.sweep()
    case 96..<98:
      // Three different ones.
      let keys = (0..<3).map { 3 * random.index(below: 40) + $0 }
      let values = Dictionary(uniqueKeysWithValues: keys.map { ($0, value(of: $0)) })
      expect(cache.setValues(values).isEmpty, "values were refused")
      // In the order of the dictionary.
      for (key, value) in values {
        noteStore(key, KnownEntry(value, cost: 0, expiry: cache.expiry, at: now), keepsPin: true)
      }
    case 98..<99: for (name, value) in cache.snapshot() { check(name, value, "snapshot") }
    default:
      expect(cache.evictAll { $0.key % 11 == 3 } >= 0, "evictAll")
      mayGo.formUnion(known.keys.filter { $0 % 11 == 3 })
      expect(cache.entries.allSatisfy { $0.key % 11 != 3 || $0.priority == .pinned }, "what the decider named is there")
    }
  }

  /// Entries of a priority are in the order of their last use.
  private func checkOrder() {
    for priority in EntryPriority.allCases {
      let keys = cache.entries.filter { $0.priority == priority }.map(\.key)
      expect(keys == keys.sorted { turns[$0, default: 0] < turns[$1, default: 0] }, "\(priority) entries are out of order")
    }
  }

  /// What changed since the last time, as it is told.
  private func checkChanges() {
    cache.deliverChanges()
    for wrong in mirror.check(ofFirst: Self.keyCount, isThere: { cache.containsValue(forKey: $0) }) { expect(false, wrong) }
    expect(mirror.untouchedCount == 0, "what was not stored was told as updated")
  }

  private func checkLimits() {
    // What the program keeps may go beyond, and what is pinned.
    if configuration.asks { return }
    let pinned = known.values.filter { $0.priority == .pinned }
    if let limit = configuration.countLimit { expect(cache.count <= max(limit, pinned.count), "\(cache.count) entries") }
    if let limit = configuration.costLimit {
      expect(cache.totalCost <= max(limit, pinned.reduce(0) { $0 + $1.cost }), "costs of \(cache.totalCost)")
    }
  }

  func run(steps: Int) throws {
    for number in 0..<steps where failures.isEmpty {
      try step()
      checkLimits()
      if number % 20 == 19 { checkOrder() }
      if configuration.isWatched, number % 20 == 19 { checkChanges() }
      if !failures.isEmpty { failures.append("step \(number)") }
    }
    for key in 0..<Self.keyCount { check(key, cache.value(forKey: key), "at the end") }
    if configuration.isWatched {
      _ = cache.removeExpired()
      checkChanges()
      expect(mirror.keys == Set(known.keys), "by the notices there are \(mirror.keys.symmetricDifference(Set(known.keys)))")
    }
    for reason in DepartureReason.allCases where reason != .tooLarge {
      let (one, all) = (told.count(of: reason), cache.statistics.departures[reason] ?? 0)
      expect(one == all, "\(one) were told of as \(reason), and \(all) were counted")
    }
  }
}

@Suite("objects: the product of configurations")
struct ObjectProductTests {
  @Test(
    "random operations with all attributes leave right values, limits that hold, and the order of last use",
    arguments: ProductOfObjects.all)
  func random(configuration: ProductOfObjects) throws {
    try check(configuration) { run in try run.run(steps: TestRun.isFull ? 5000 : 400) }
  }

  @Test("the same beside a thread that does the library's rounds all the time", .fullRun, arguments: ProductOfObjects.all)
  func beside(configuration: ProductOfObjects) throws {
    try check(configuration) { run in try besideRounds(of: run.cache.store) { try run.run(steps: 1000) } }
  }

  private func check(_ configuration: ProductOfObjects, _ body: (ObjectRun) throws -> Void) throws {
    // Other operations for each.
    let run = try ObjectRun(configuration, seed: chosenSeed &+ UInt64(configuration.number))
    try body(run)
    #expect(run.failures.isEmpty, "seed \(chosenSeed), \(configuration.testDescription): \(run.failures.joined(separator: "\n"))")
    #expect(run.hits > 50)
  }
}
