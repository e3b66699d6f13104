// SPDX-License-Identifier: MIT
// A table moves to a larger or a smaller one while the program's code runs between two looks at it.

import PurgeableTestSupport
import Synchronization
import Testing
import ToolSupport

@testable import Purgeable

/// A key whose hash is that of its group.
private struct GroupedKey: Hashable, Sendable {
  let group: Int
  let number: Int
  /// Called by `==`.
  var compares: (@Sendable () -> Void)?

  static func == (left: GroupedKey, right: GroupedKey) -> Bool {
    (left.compares ?? right.compares)?()
    return left.group == right.group && left.number == right.number
  }

  func hash(into hasher: inout Hasher) { hasher.combine(group) }
}

@Suite("ObjectCache: tables that move")
struct ObjectMoveTests {
  private typealias Cache = ObjectCache<GroupedKey, Int>

  /// So many groups of keys of one shard.
  private static func groups(_ count: Int, in cache: Cache) -> [Int] {
    func shard(_ group: Int) -> Int { cache.store.shardNumber(of: GroupedKey(group: group, number: 0).hashValue) }
    return Array((0...).lazy.filter { shard($0) == shard(0) }.prefix(count))
  }

  private enum Act: CaseIterable { case look, store, remove }

  /// Entries of three groups, used in any order, and one of them asked for; meanwhile `==` stores or removes others.
  private func round(_ act: Act, random: inout SplitMix64) throws {
    let cache = try Cache()
    let groups = Self.groups(50, in: cache)
    var values: [GroupedKey: Int] = [:]
    func put(_ key: GroupedKey) {
      values[key] = values.count
      cache[key] = values[key]
    }
    for group in groups.prefix(3) { for number in 0..<3 { put(GroupedKey(group: group, number: number)) } }
    let others = groups.dropFirst(3).map { GroupedKey(group: $0, number: 0) }
    let before = Int.random(in: 0..<40, using: &random)
    for key in others.prefix(before) { put(key) }
    for key in values.keys.shuffled(using: &random) { _ = cache[key] }
    let grows = before < 8 || Bool.random(using: &random)
    let hasChanged = Atomic<Bool>(false)
    var asked = GroupedKey(group: groups[0], number: Int.random(in: 0..<3, using: &random))
    let plain = asked
    asked.compares = {
      if hasChanged.exchange(true, ordering: .relaxed) { return }
      for key in others.suffix(from: others.startIndex + (grows ? before : 0)) {
        if grows { cache[key] = -1 } else { cache.remove(forKey: key) }
      }
      if !grows { cache.trim(toCount: cache.count) }
    }
    switch act {
    case .look: #expect(cache[asked] == values[plain])
    case .store: #expect(cache.setValue(1000, forKey: asked) == .replaced && cache[plain] == 1000)
    case .remove: #expect(cache.remove(forKey: asked) && cache[plain] == nil)
    }
    let keys = cache.keys
    #expect(hasChanged.load(ordering: .relaxed) && Set(keys).count == keys.count && keys.count == cache.count)
  }

  @Test("a key is found, stored once and removed, also where `==` has the table move and its chains change their order")
  func comparing() throws {
    var random = SplitMix64(seed: chosenSeed)
    for act in Act.allCases { for _ in 0..<200 { try round(act, random: &random) } }
  }

  @Test("what the closure says goes, goes, whatever the closure stores meanwhile", arguments: [false, true])
  func taking(asDecider: Bool) throws {
    let cache = try ObjectCache<Int, Int>()
    for key in 0..<100 { cache[key] = key }
    func mayGo(_ entry: CacheEntry<Int, Int>) -> Bool {
      for number in 0..<20 { cache[1000 + 20 * entry.key + number] = 0 }
      return entry.key % 2 == 0
    }
    #expect((asDecider ? cache.evictAll(where: mayGo) : cache.removeAll(where: mayGo)) == 50)
    #expect(cache.count == 2050 && (0..<100).allSatisfy { cache.containsValue(forKey: $0) == ($0 % 2 == 1) })
  }
}
