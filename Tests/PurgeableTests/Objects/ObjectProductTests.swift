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

  var limit = Limit.none
  var hasExpiry = false
  var asks = false
  var isWatched = false
  var number = 0

  static let all: [Self] = Limit.allCases.flatMap { limit in
    (0..<8).map { rest in
      Self(
        limit: limit, hasExpiry: rest & 1 != 0, asks: rest & 2 != 0, isWatched: rest & 4 != 0,
        number: 8 * Limit.allCases.firstIndex(of: limit)! + rest)
    }
  }

  var testDescription: String {
    "\(limit)\(hasExpiry ? ", expiry" : "")\(asks ? ", asks" : "")\(isWatched ? ", watched" : "")"
  }

  var countLimit: Int? { limit == .count || limit == .both ? 60 : nil }
  var costLimit: Int? { limit == .cost || limit == .both ? 20_000 : nil }
}

private final class ObjectRun {
  private struct Known {
    var value: [UInt8]
    var cost: Int
    var end: Duration?
    /// How long after the last use its time is over.
    var idle: Duration?
    var used: Duration
    var recomputeCost: Duration?
    var version: String?
    var priority: EntryPriority
    /// Of its last use, in the order of the run.
    var turn: Int
    /// The run has asked for it to go, or for some of those like it.
    var mayGo = false
  }

  private let configuration: ProductOfObjects
  private let cache: ObjectCache<Int, [UInt8]>
  private let clock = ManualClock()
  private var now = Duration.zero
  private var random: SplitMix64
  private var known: [Int: Known] = [:]
  private var turn = 0
  private let told = Departures<Int, [UInt8]>()
  private let mirror = ChangeMirror()
  private(set) var failures: [String] = []
  private(set) var hits = 0
  private var version: UInt32 = 0

  private static let keyCount = 150

  init(_ configuration: ProductOfObjects, seed: UInt64) throws {
    self.configuration = configuration
    random = SplitMix64(seed: seed)
    var options = CacheOptions(countLimit: configuration.countLimit, costLimit: configuration.costLimit)
    options.clock = clock
    if configuration.hasExpiry { options.expiry = Expiry(sinceCreation: .seconds(50), sinceLastUse: .seconds(20)) }
    let told = told
    cache = try ObjectCache(options) { told.note($0) }
    cache.staysAlone()
    if configuration.asks { cache.shouldEvict = { key, _ in !Self.isKept(key) } }
    if configuration.isWatched { try cache.setChangeHandler(every: .seconds(100_000), mirror.handler) }
  }

  private static func isKept(_ key: Int) -> Bool { key % 7 == 0 }

  private func expect(_ condition: Bool, _ what: @autoclosure () -> String) {
    if !condition, failures.count < 5 { failures.append(what()) }
  }

  private func chance(_ one: Int, of all: Int) -> Bool { random.index(below: all) < one }

  private func end(_ known: Known) -> Duration? { [known.end, known.idle.map { $0 + known.used }].compactMap(\.self).min() }
  private func isOver(_ known: Known) -> Bool { end(known).map { $0 <= now } ?? false }

  private func mayBeGone(_ key: Int, _ known: Known) -> Bool {
    if isOver(known) { return true }
    if known.priority == .pinned { return false }
    return known.mayGo || configuration.limit != .none && !(configuration.asks && Self.isKept(key))
  }

  private func noteUse(_ key: Int) {
    turn += 1
    known[key]?.turn = turn
    known[key]?.used = now
    if known[key]?.priority == .speculative { known[key]?.priority = .normal }
  }

  /// What a look-up found.
  private func check(_ key: Int, _ found: [UInt8]?, _ how: String, isUse: Bool = false) {
    guard let found else {
      // Gone for whatever reason, it stays so.
      if let its = known.removeValue(forKey: key) { expect(mayBeGone(key, its), "\(how): \(key) is gone") }
      return
    }
    hits += 1
    guard let its = known[key] else { return expect(false, "\(how): \(key) is there, and should not be") }
    expect(its.value == found, "\(how): \(key) has another value")
    expect(!isOver(its), "\(how): \(key) is over")
    if isUse { noteUse(key) }
  }

  private func value(of key: Int) -> [UInt8] {
    version &+= 1
    return described(UInt32(key), version: version, count: random.index(below: 300))
  }

  private func noteStore(_ key: Int, _ new: Known, keepsPin: Bool) {
    let old = known[key]
    known[key] = new
    if keepsPin, let old, old.priority == .pinned, !isOver(old) { known[key]!.priority = .pinned }
    noteUse(key)
    known[key]!.priority = keepsPin ? known[key]!.priority : new.priority
    mirror.touch(key)
  }

  private func store(_ key: Int) {
    let value = value(of: key)
    let cost = chance(1, of: 40) ? 30_000 : chance(1, of: 5) ? 0 : random.index(below: 900)
    let given: Expiry? =
      !chance(1, of: 4)
      ? nil
      : [
        .never, .sinceCreation(.seconds(1 + random.index(below: 100))), .sinceLastUse(.seconds(1 + random.index(below: 30))),
        Expiry(sinceCreation: .seconds(60), sinceLastUse: .seconds(10)),
      ][random.index(below: 4)]
    let recompute: Duration? = chance(1, of: 3) ? .milliseconds(1 + random.index(below: 5000)) : nil
    let priority = chance(1, of: 4) ? EntryPriority.allCases[random.index(below: 3)] : nil
    let label: String? = chance(1, of: 4) ? "\(random.index(below: 3))" : nil
    let before = cache.peekEntry(forKey: key)
    let outcome = cache.setValue(
      value, forKey: key, cost: cost, expiry: given, recomputeCost: recompute, priority: priority, version: label)
    switch outcome {
    case .stored, .replaced:
      expect((outcome == .replaced) == (before != nil), "\(key): \(outcome)")
      let expiry = given ?? cache.expiry ?? .never
      noteStore(
        key,
        Known(
          value: value, cost: cost, end: expiry.sinceCreation.map { now + $0 }, idle: expiry.sinceLastUse, used: now,
          recomputeCost: recompute, version: label, priority: priority ?? .normal, turn: 0),
        keepsPin: priority == nil)
    case .tooLarge:
      known[key] = nil
      expect(cost > configuration.costLimit ?? .max && !cache.containsValue(forKey: key), "\(key) is there, too large")
    case .pinnedByteLimit, .outOfMemory, .notEncodable, .expired: expect(false, "\(key): \(outcome)")
    }
  }

  private func step() throws {
    let key = random.index(below: chance(1, of: 2) ? Self.keyCount : 20)
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
        expect(entry.remainingTime == end(its).map { $0 - now }, "\(key) has another time")
      }
    case 76..<80:
      let priority = EntryPriority.allCases[random.index(below: 3)]
      let isThere = cache.containsValue(forKey: key)
      expect(cache.setPriority(priority, forKey: key) == isThere, "\(key) is there, and cannot be made \(priority)")
      guard isThere, known[key]?.priority != priority else { break }
      turn += 1
      known[key]?.priority = priority
      known[key]?.turn = turn
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
        (new.used, new.mayGo) = (now, false)
        if new.priority == .speculative { new.priority = .normal }
        expect(value == new.value, "\(key) was changed in another way")
        noteStore(key, new, keepsPin: true)
      } else {
        check(key, nil, "modify")
      }
    case 88..<91:
      clock.advance(by: .seconds(3))
      now += .seconds(3)
    case 91..<93:
      _ = cache.removeExpired()
      let entries = cache.entries
      expect(cache.count == entries.count, "\(cache.count) entries, and \(entries.count) that are not over")
      expect(cache.totalCost == entries.reduce(0) { $0 + $1.cost }, "costs of \(cache.totalCost)")
    case 93..<94:
      cache.trim(toCount: 30)
      for key in known.keys { known[key]!.mayGo = true }
    case 94..<95:
      cache.trim(toCost: 5000)
      for key in known.keys { known[key]!.mayGo = true }
    case 95..<96: _ = cache.sweep()
    case 96..<98:
      let values = Dictionary(
        uniqueKeysWithValues: (0..<3).map { (3 * random.index(below: 40) + $0, $0) }.map { ($0.0, value(of: $0.0)) })
      expect(cache.setValues(values).isEmpty, "values were refused")
      let expiry = cache.expiry ?? .never
      // In the order of the dictionary.
      for (key, value) in values {
        noteStore(
          key,
          Known(
            value: value, cost: 0, end: expiry.sinceCreation.map { now + $0 }, idle: expiry.sinceLastUse, used: now,
            priority: .normal, turn: 0), keepsPin: true)
      }
    case 98..<99: for (name, value) in cache.snapshot() { check(name, value, "snapshot") }
    default:
      expect(cache.evictAll { $0.key % 11 == 3 } >= 0, "evictAll")
      for key in known.keys where key % 11 == 3 { known[key]!.mayGo = true }
      expect(cache.entries.allSatisfy { $0.key % 11 != 3 || $0.priority == .pinned }, "what the decider named is there")
    }
  }

  /// Entries of a priority are in the order of their last use.
  private func checkOrder() {
    for priority in EntryPriority.allCases {
      let keys = cache.entries.filter { $0.priority == priority }.map(\.key)
      expect(keys == keys.sorted { known[$0]?.turn ?? 0 < known[$1]?.turn ?? 0 }, "\(priority) entries are out of order")
    }
  }

  /// What changed since the last time, as it is told.
  private func checkChanges() {
    cache.deliverChanges()
    let wrong = mirror.check(ofFirst: Self.keyCount) { cache.containsValue(forKey: $0) }
    for wrong in wrong { expect(false, wrong) }
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
    // Other operations for each.
    let run = try ObjectRun(configuration, seed: chosenSeed &+ UInt64(configuration.number))
    try run.run(steps: TestRun.isFull ? 5000 : 400)
    #expect(run.failures.isEmpty, "seed \(chosenSeed), \(configuration.testDescription): \(run.failures.joined(separator: "\n"))")
    #expect(run.hits > 50)
  }
}
