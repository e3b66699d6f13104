// SPDX-License-Identifier: MIT
// Random operations on a cache and a dictionary: the cache's values are those of the dictionary.

import CPurgeable
import PurgeableTestSupport
import Testing
import ToolSupport

@testable import Purgeable

private struct ModelEntry {
  var value: [UInt8]
  var cost: Int
}

/// A cache, and what it would hold if no entry were ever lost or evicted.
private final class ModelRun<Key: Hashable & Sendable> {
  var random: SplitMix64
  let cache: PurgeableCache<Key, [UInt8]>
  let key: (Int) -> Key
  let keyCount: Int
  /// Whether entries may leave by themselves.
  let isLossy: Bool
  var model: [Key: ModelEntry] = [:]
  var failures: [String] = []
  var hits = 0
  var version: UInt32 = 0

  init(seed: UInt64, cache: PurgeableCache<Key, [UInt8]>, keyCount: Int, isLossy: Bool, key: @escaping (Int) -> Key) {
    random = SplitMix64(seed: seed)
    self.cache = cache
    self.keyCount = keyCount
    self.isLossy = isLossy
    self.key = key
  }

  func expect(_ condition: Bool, _ what: @autoclosure () -> String) {
    if !condition, failures.count < 10 { failures.append(what()) }
  }

  /// Checks the result of any kind of look-up against the model.
  func check(_ key: Key, _ found: [UInt8]?, _ how: String) {
    if let found {
      hits += 1
      expect(model[key]?.value == found, "\(how) of \(key): \(found.count) bytes, model has \(model[key]?.value.count ?? -1)")
    } else if isLossy {
      // A key that is gone stays so until it is stored again.
      model[key] = nil
    } else {
      expect(model[key] == nil, "\(how) of \(key): nothing, model has \(model[key]?.value.count ?? -1)")
    }
  }

  func step() {
    let key = key(random.index(below: random.index(below: 3) == 0 ? keyCount : keyCount / 10 + 1))
    switch random.index(below: 100) {
    case 0..<35:
      version &+= 1
      let size = random.index(below: 50) == 0 ? random.index(below: 30_000) : random.index(below: 400)
      let value = described(UInt32(truncatingIfNeeded: key.hashValue), version: version, count: size)
      let cost: Int? = random.index(below: 3) == 0 ? random.index(below: 100) : nil
      let outcome = cache.setValue(value, forKey: key, cost: cost)
      if isLossy, outcome == .tooLarge {
        // The value is above a limit set at the moment: refused, and the old value is gone.
        model[key] = nil
        expect(!cache.containsValue(forKey: key), "contains what was refused")
        return
      }
      expect(outcome == .stored || outcome == .replaced, "set: \(outcome)")
      if !isLossy { expect((outcome == .replaced) == (model[key] != nil), "set of \(key): \(outcome)") }
      model[key] = ModelEntry(value: value, cost: cost ?? value.count)
    case 35..<60: check(key, cache.value(forKey: key), "get")
    case 60..<65: check(key, cache.peekValue(forKey: key), "peek")
    case 65..<72: check(key, cache.withBytes(forKey: key) { $0.array }, "withBytes")
    case 72..<78:
      var buffer = [UInt8](repeating: 0, count: random.index(below: 600))
      switch unsafe buffer.withUnsafeMutableBytes({ unsafe cache.read(forKey: key, into: $0) }) {
      case .hit(let count): check(key, Array(buffer[..<count]), "read")
      case .bufferTooSmall(let needed): expect(model[key]?.value.count == needed, "read: \(needed) needed")
      case .miss: check(key, nil, "read")
      }
    case 78..<84:
      if !cache.containsValue(forKey: key) {
        // With tracked keys `containsValue` drops nothing, so that no handler is called: an entry whose value is partly lost
        // leaves with the next look-up, and counts until then.
        let found = cache.peekValue(forKey: key)
        expect(found == nil, "peek finds \(key), which is not contained")
        check(key, found, "contains")
      } else {
        expect(model[key] != nil, "contains \(key), which the model has not")
      }
    case 84..<96:
      let removed = cache.remove(forKey: key)
      if !isLossy { expect(removed == (model[key] != nil), "remove of \(key): \(removed)") }
      expect(!removed || model[key] != nil, "remove of \(key), which was not there")
      model[key] = nil
      expect(!cache.containsValue(forKey: key), "contains what was removed")
    case 96: cache.offerIdle()
    case 97: cache.sweep()
    default:
      expect(cache.count <= model.count, "count \(cache.count), model \(model.count)")
      if !isLossy {
        expect(cache.count == model.count, "count \(cache.count), model \(model.count)")
        expect(cache.totalCost == model.values.reduce(0) { $0 + $1.cost }, "cost \(cache.totalCost)")
      }
    }
  }

  /// Disturbances for a cache that may lose entries.
  func disturb() {
    switch random.index(below: 8) {
    case 0: cache.discardOffered()
    case 1: cache.discardMost()
    case 2:
      let hand = random.index(below: 4)
      for range in cache.slabRanges() {
        cache.offerIdle()
        range.advise(advicePageout, page: hand, pageCount: 1)
      }
    case 3: cache.trim(toCount: cache.count / 2)
    case 4: cache.trim(toFraction: 0.7)
    case 5: cache.trim(toCost: cache.totalCost / 2)
    case 6:
      try! cache.setCountLimit(random.index(below: 2) == 0 ? nil : 50 + random.index(below: 500))
      try! cache.setCostLimit(random.index(below: 2) == 0 ? nil : 1000 + random.index(below: 100_000))
      try! cache.setByteLimit(random.index(below: 2) == 0 ? nil : (2 << 20) + random.index(below: 8 << 20))
    default:
      if random.index(below: 4) == 0 {
        cache.removeAll()
        model = [:]
        expect(cache.isEmpty && cache.totalCost == 0, "removeAll")
      }
    }
  }

  func run(steps: Int) {
    for step in 0..<steps {
      self.step()
      if isLossy, step % 499 == 0 { disturb() }
      if step % 1000 == 0 { cache.checkBooks() }
    }
    for number in 0..<keyCount { check(key(number), cache.value(forKey: key(number)), "the end") }
    expect(cache.count == model.count, "at the end \(cache.count), model \(model.count)")
    cache.checkBooksSwept()
  }
}

@Suite("PurgeableCache, against a model")
struct CacheModelTests {
  private let integerSteps = TestRun.isFull ? 50_000 : 15_000
  private let stringSteps = TestRun.isFull ? 25_000 : 8000

  private func run<Key: Hashable & Sendable>(
    _ cache: PurgeableCache<Key, [UInt8]>, keyCount: Int, isLossy: Bool, steps: Int, key: @escaping (Int) -> Key
  ) {
    let run = ModelRun(seed: chosenSeed, cache: cache, keyCount: keyCount, isLossy: isLossy, key: key)
    run.run(steps: steps / slowness)
    #expect(run.failures == [], "PURGEABLE_SEED=\(chosenSeed)")
    #expect(run.hits > steps / slowness / 50, "\(run.hits) hits, PURGEABLE_SEED=\(chosenSeed)")
  }

  @Test("without limits and discards it is a dictionary: integer keys", arguments: [false, true])
  func integers(tracksKeys: Bool) throws {
    try run(PurgeableCache(tracksKeys: tracksKeys), keyCount: 3000, isLossy: false, steps: integerSteps) { $0 }
  }

  @Test("without limits and discards it is a dictionary: string keys, some outside of ASCII", arguments: [false, true])
  func strings(tracksKeys: Bool) throws {
    try run(PurgeableCache(tracksKeys: tracksKeys), keyCount: 1000, isLossy: false, steps: stringSteps) {
      $0 % 3 == 0 ? "kéy \($0)" : "key \($0)"
    }
  }

  @Test("with discards, limits and trims, what is there is right: integer keys", arguments: [false, true])
  func lossyIntegers(tracksKeys: Bool) throws {
    try run(PurgeableCache(tracksKeys: tracksKeys), keyCount: 3000, isLossy: true, steps: integerSteps) { $0 }
  }

  @Test("with discards, limits and trims, what is there is right: string keys", arguments: [false, true])
  func lossyStrings(tracksKeys: Bool) throws {
    try run(PurgeableCache(tracksKeys: tracksKeys), keyCount: 1000, isLossy: true, steps: stringSteps) {
      $0 % 3 == 0 ? "kéy \($0)" : "key \($0)"
    }
  }

  @Test("with discards, limits and trims, what is there is right: keys that all collide")
  func lossyCollisions() throws {
    try run(PurgeableCache(), keyCount: 100, isLossy: true, steps: TestRun.isFull ? 10_000 : 4000) { CollidingKey(number: $0) }
  }
}
