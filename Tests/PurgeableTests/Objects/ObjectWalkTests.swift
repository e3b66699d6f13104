// SPDX-License-Identifier: MIT
// The walk over all shards in the order of last use, while entries are used, replaced, removed and stored between its steps.

import PurgeableTestSupport
import Testing
import ToolSupport

@testable import Purgeable

@Suite("ObjectWalk")
struct ObjectWalkTests {
  private typealias Cache = ObjectCache<Int, any Sendable>

  @Test("nobody is asked whether an object may go whose content was discarded; it may be removed")
  func discardedContent() throws {
    let cache = try ObjectCache<Int, PurgeableData>()
    for key in 0..<3 { cache[key] = try PurgeableData([UInt8(key)]) }
    let gone = try #require(cache.peekValue(forKey: 1))
    for key in 0..<3 { cache.peekValue(forKey: key)?.endContentAccess() }
    gone.discardContentIfPossible()
    #expect(gone.isContentDiscarded)
    var asked: [Int] = []
    func ask(_ entry: CacheEntry<Int, PurgeableData>) -> Bool {
      asked.append(entry.key)
      return false
    }
    #expect(cache.evictAll(where: ask) == 0 && cache.removeAll(where: ask) == 0)
    #expect(asked == [0, 2, 0, 1, 2] && cache.entries.map { $0.key } == [0, 2])
  }

  /// An entry as it was when the walk began.
  private struct Mark: Hashable {
    let key: Int
    let stamp: UInt64
    init(_ noted: NotedObject<Int, any Sendable>) { (key, stamp) = (noted.entry.key, noted.stamp) }
  }

  /// Of all kinds that have queues of their own, as the key says.
  private func put(_ key: Int, in cache: Cache) {
    let value: any Sendable = if key % 3 == 0 { TestContent(key) } else { key }
    cache.setValue(value, forKey: key, cost: key % 2)
  }

  /// Walks over `count` entries; between two steps come so many changes, of the kinds that `changes` says.
  private func walk(over count: Int, keys: Range<Int>, random: inout SplitMix64, changes: ClosedRange<Int>) throws {
    let cache = try Cache()
    for key in keys.shuffled(using: &random).prefix(count) { put(key, in: cache) }
    for key in keys where random.index(below: 3) == 0 { _ = cache.value(forKey: key) }
    let before = cache.store.noted().map { Mark($0) }
    let last = before.last?.stamp ?? 0
    // What comes later has later stamps.
    while MonotonicTime.now <= last {}
    var walk = ObjectWalk(cache.store, before: MonotonicTime.now) { _ in true }
    /// Neither used nor gone since the walk began.
    var untouched = Dictionary(uniqueKeysWithValues: before.map { ($0.key, $0.stamp) })
    var seen: [Mark] = []
    while let noted = walk.next(in: cache.store) {
      let mark = Mark(noted)
      #expect(untouched[mark.key] == mark.stamp, "\(mark): is as it was before the walk")
      #expect(seen.last.map { $0.stamp < mark.stamp } ?? true, "\(mark): once, in the order of last use")
      seen.append(mark)
      // A walk that begins again and again has no end.
      guard seen.count <= count else { break }
      for _ in 0..<Int.random(in: changes, using: &random) {
        // Mostly near the walk's place.
        let near = untouched.filter { $0.value > mark.stamp }.min { $0.value < $1.value }?.key
        let key = random.index(below: 3) > 0 ? near ?? keys.lowerBound : Int.random(in: keys, using: &random)
        untouched[key] = nil
        switch random.index(below: 5) {
        case 0: _ = cache.value(forKey: key)
        case 1: put(key, in: cache)
        case 2: cache.setValue(key, forKey: key, cost: random.index(below: 2))
        default: cache.remove(forKey: key)
        }
      }
      // Entries get new positions.
      if random.index(below: 16) == 0 { for at in 0..<16 { cache.store.hold(shard: at) { $0.table.shrink() } } }
    }
    let missed = Set(before.filter { untouched[$0.key] != nil }).subtracting(seen)
    #expect(missed.isEmpty, "what stayed was seen")
  }

  @Test("sees what was last used before it began, each entry once at most, and each that stays, in the order of last use")
  func walks() throws {
    var random = SplitMix64(seed: chosenSeed)
    for changes in [0...0, 0...1, 0...3, 2...6] {
      for count in [0, 1, 20, 200] {
        try walk(over: count, keys: 0..<max(1, count * 3 / 2), random: &random, changes: changes)
      }
    }
  }

  @Test("goes on behind what it has seen when the entry that was next is gone")
  func nextIsGone() throws {
    let cache = try ObjectCache<Int, Int>()
    // Four entries of one shard.
    let keys = Array((0...).lazy.filter { cache.store.shardNumber(of: $0.hashValue) == 0 }.prefix(4))
    for key in keys { cache[key] = key }
    var walk = ObjectWalk(cache.store, before: .max) { _ in true }
    #expect(walk.next(in: cache.store)?.entry.key == keys[0])
    cache.remove(forKey: keys[1])
    #expect(walk.next(in: cache.store)?.entry.key == keys[2])
    cache[keys[0]] = 7
    cache.remove(forKey: keys[3])
    // In its new place: this walk has no end in time.
    #expect(walk.next(in: cache.store)?.entry.value == 7)
    #expect(walk.next(in: cache.store) == nil)
  }
}
