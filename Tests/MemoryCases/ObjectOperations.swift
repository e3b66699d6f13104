// SPDX-License-Identifier: MIT
// Caches of objects. Their tables grow by ordinary memory, for which they ask; nothing else of theirs needs any.

import Purgeable
import Synchronization

private typealias Objects = ObjectCache<Int, [UInt8]>

private func filled(countLimit: Int? = nil, costLimit: Int? = nil) throws -> Objects {
  let cache = try Objects(countLimit: countLimit, costLimit: costLimit)
  let value = bytes(100)
  for key in 0..<1000 { cache.setValue(value, forKey: key, cost: key % 3) }
  return cache
}

let objectOperations: [Operation] = [
  Operation("objects: value, peek, look-up, contains, count, totalCost") {
    let cache = try filled()
    return {
      cache[5]?.count == 100 && cache.peekValue(forKey: 6) != nil && cache.containsValue(forKey: 7) && cache[5000] == nil
        && cache.count > 0 && cache.totalCost > 0
    }
  },
  Operation("objects: stores of known keys") {
    let cache = try filled()
    let value = bytes(10)
    return { (0..<1000).allSatisfy { cache.setValue(value, forKey: $0, cost: 2) == .replaced } }
  },
  // A shard may get more entries than it had before: its table grows, or refuses.
  Operation("objects: stores at a count limit", takes: .result) {
    let cache = try filled(countLimit: 500)
    let value = bytes(10)
    let next = Atomic<Int>(10_000)
    return { (0..<700).allSatisfy { _ in cache.setValue(value, forKey: next.add(1, ordering: .relaxed).newValue) == .stored } }
  },
  Operation("objects: stores at a cost limit, and one that is too large") {
    let cache = try filled(costLimit: 300)
    let value = bytes(10)
    return {
      for key in 2000..<2500 { cache.setValue(value, forKey: key, cost: 3) }
      return cache.totalCost <= 300 && cache.setValue(value, forKey: 1, cost: 301) == .tooLarge
    }
  },
  // A table that cannot grow refuses, and keeps what it has.
  Operation("objects: stores of new keys", takes: .result) {
    let cache = try filled()
    let value = bytes(10)
    let next = Atomic<Int>(10_000)
    return {
      var stored = 0
      let before = cache.count
      for _ in 0..<5000 {
        if cache.setValue(value, forKey: next.add(1, ordering: .relaxed).newValue) == .stored { stored += 1 }
      }
      if cache.count != before + stored || cache.peekValue(forKey: 5)?.count != 100 { fail("entries were lost") }
      return stored == 5000
    }
  },
  // Times and ends take memory with the first of them, and as tables grow.
  Operation("objects: stores that expire, and what has expired", takes: .result) {
    let clock = ManualClock()
    var options = CacheOptions()
    options.clock = clock
    let cache = try Objects(options)
    let value = bytes(10)
    for key in 0..<1000 { cache[key] = value }
    return {
      var stored = 0
      for key in 1000..<4000 where cache.setValue(value, forKey: key, expiry: .sinceLastUse(.seconds(1))) == .stored {
        stored += 1
      }
      if cache.count != 1000 + stored { fail("entries were lost") }
      clock.advance(by: .seconds(1))
      let isAll = cache.removeExpired() == stored
      if (1000..<4000).contains(where: { cache[$0] != nil }) { fail("a value whose time is over") }
      if cache.count != 1000 { fail("\(cache.count) entries, not 1000") }
      return isAll && stored == 3000
    }
  },
  // The table shrinks with the last entry, and grows again.
  Operation("objects: removals, trims, limits", takes: .result) {
    let cache = try filled()
    let value = bytes(10)
    return {
      cache.remove(forKey: 5)
      cache.trim(toCount: 600)
      try! cache.setCountLimit(500)
      let isThere = cache.count <= 500
      try! cache.setCountLimit(nil)
      cache.removeAll()
      for key in 0..<1000 { cache.setValue(value, forKey: key, cost: 1) }
      return isThere
    }
  },
  Operation("objects: departures told: stores at a count limit, replacements, removals") {
    let told = Atomic<Int>(0)
    let cache = try Objects(countLimit: 500) { _ in told.add(1, ordering: .relaxed) }
    let value = bytes(10)
    for key in 0..<600 { cache.setValue(value, forKey: key) }
    return {
      let before = told.load(ordering: .relaxed)
      for key in 0..<600 { cache.setValue(value, forKey: key) }
      for key in 500..<600 { cache.setValue(value, forKey: key) }
      cache.remove(forKey: 599)
      cache.setValue(value, forKey: 599)
      return told.load(ordering: .relaxed) == before + 701
    }
  },
]
