// SPDX-License-Identifier: MIT
// The cache of objects beside a plain model: the same answers, and the same departures in the same order.

import PurgeableTestSupport
import Synchronization
import Testing
import ToolSupport

@testable import Purgeable

/// A list in the order of last use, and the rules in the fewest words.
private struct Model {
  struct Entry {
    let key: Int
    var content: TestContent
    var cost: Int
  }
  var entries: [Entry] = []
  var countLimit: Int?
  var costLimit: Int?
  var kept: Set<Int> = []
  var evictsDiscarded = true
  var told: [String] = []

  var totalCost: Int { entries.reduce(0) { $0 + $1.cost } }

  private mutating func leave(at: Int, _ reason: DepartureReason) {
    let entry = entries.remove(at: at)
    told.append("\(entry.key): \(reason), \(entry.cost)")
    entry.content.discardContentIfPossible()
  }

  mutating func enforce(sparing spared: Int? = nil) {
    while true {
      let reason: DepartureReason
      if entries.count > countLimit ?? .max {
        reason = .count
      } else if totalCost > costLimit ?? .max {
        reason = .cost
      } else {
        return
      }
      let next = entries.firstIndex { $0.key != spared && !kept.contains($0.key) && (reason != .cost || $0.cost > 0) }
      guard let next else { return }
      leave(at: next, reason)
    }
  }

  mutating func set(_ content: TestContent, _ key: Int, _ cost: Int) {
    let cost = max(0, cost)
    let old = entries.firstIndex { $0.key == key }
    if countLimit == 0 || cost > costLimit ?? .max {
      if let old { leave(at: old, .replaced) }
      told.append("\(key): too large, \(cost)")
      return content.discardContentIfPossible()
    }
    if let old { leave(at: old, .replaced) }
    entries.append(Entry(key: key, content: content, cost: cost))
    enforce(sparing: key)
  }

  mutating func get(_ key: Int, isUse: Bool) -> Int? {
    guard let at = entries.firstIndex(where: { $0.key == key }) else { return nil }
    if isUse { entries.append(entries.remove(at: at)) }
    let place = isUse ? entries.count - 1 : at
    if evictsDiscarded, entries[place].content.isContentDiscarded {
      if isUse { leave(at: place, .discarded) }
      return nil
    }
    return entries[place].content.number
  }

  mutating func remove(_ key: Int) {
    if let at = entries.firstIndex(where: { $0.key == key }) { leave(at: at, .removed) }
  }

  mutating func sweep() {
    guard evictsDiscarded else { return }
    while let at = entries.firstIndex(where: { $0.content.isContentDiscarded }) { leave(at: at, .discarded) }
  }

  mutating func trim(to count: Int) { while entries.count > count { leave(at: 0, .trimmed) } }
}

@Suite("ObjectCache, beside a model")
struct ObjectModelTests {
  @Test("answers and departures are the model's, with vetoes, limits that change, and content that goes")
  func same() throws {
    var random = SplitMix64(seed: chosenSeed)
    let told = Departures<Int, TestContent>()
    let kept = Mutex<Set<Int>>([])
    let cache = try ObjectCache<Int, TestContent> { told.note($0) }
    var model = Model()
    for step in 0..<(TestRun.isFull ? 1_000_000 : 12_000) {
      let key = Int.random(in: 0..<60, using: &random)
      switch Int.random(in: 0..<100, using: &random) {
      case 0..<35:
        let (content, twin) = (TestContent(step), TestContent(step))
        let cost = Int.random(in: -1..<6, using: &random)
        cache.setValue(content, forKey: key, cost: cost)
        model.set(twin, key, cost)
      case 35..<70: #expect(cache.value(forKey: key)?.number == model.get(key, isUse: true), "step \(step)")
      case 70..<75: #expect(cache.peekValue(forKey: key)?.number == model.get(key, isUse: false), "step \(step)")
      case 75..<80:
        cache.remove(forKey: key)
        model.remove(key)
      case 80..<85:
        // Both contents, the cache's and the model's.
        if let entry = model.entries.first(where: { $0.key == key }) {
          entry.content.discardContentIfPossible()
          cache.store.noted().first { $0.entry.key == key }?.entry.value.discardContentIfPossible()
        }
      case 85..<88:
        cache.sweep()
        model.sweep()
      case 88..<91:
        model.countLimit = Bool.random(using: &random) ? nil : Int.random(in: 0..<40, using: &random)
        try cache.setCountLimit(model.countLimit)
        model.enforce()
      case 91..<94:
        model.costLimit = Bool.random(using: &random) ? nil : Int.random(in: 0..<90, using: &random)
        try cache.setCostLimit(model.costLimit)
        model.enforce()
      case 94..<96:
        model.kept = []
        model.enforce()
        cache.shouldEvict = nil
        model.kept = Set((0..<Int.random(in: 0..<50, using: &random)).map { _ in Int.random(in: 0..<60, using: &random) })
        let now = model.kept
        kept.withLock { $0 = now }
        if !now.isEmpty { cache.shouldEvict = { key, _ in !kept.withLock { $0.contains(key) } } }
      case 96..<98:
        model.evictsDiscarded.toggle()
        cache.evictsEntriesWithDiscardedContent = model.evictsDiscarded
      default:
        let count = Int.random(in: 0..<50, using: &random)
        cache.trim(toCount: count)
        model.trim(to: count)
      }
      let departures = told.take().map(\.inShort)
      #expect(departures == model.told, "step \(step)")
      guard departures == model.told, cache.count == model.entries.count, cache.totalCost == model.totalCost else {
        Issue.record("step \(step): \(cache.count) entries of cost \(cache.totalCost)")
        return
      }
      model.told = []
      if step % 500 == 0 {
        #expect(cache.store.noted().map(\.entry.key) == model.entries.map(\.key), "step \(step)")
      }
    }
  }
}
