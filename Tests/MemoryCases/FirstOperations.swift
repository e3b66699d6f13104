// SPDX-License-Identifier: MIT
// Calls that find no memory when they are made for the first time: what Swift's runtime notes of their types is made with the
// cache.

import Purgeable

/// Unoptimized generic code asks the runtime for more.
private let debugFloor = isOptimized ? Floor(bytes: 0, reason: "") : valueFloor

let firstOperations: [Operation] = [
  Operation("first: look-ups and removals of tracked keys", isFirst: true) {
    let cache = try PairCache()
    for key in 0..<300 { cache.setValue(bytes(100), forKey: PairKey(left: key, right: 1)) }
    let buffer = Buffer()
    return {
      for number in 0..<10 {
        let key = PairKey(left: number, right: 1)
        _ = unsafe (cache.containsValue(forKey: key), cache.read(forKey: key, into: buffer.bytes))
        _ = (cache.withBytes(forKey: key) { $0.byteCount }, cache.remove(forKey: key))
      }
      return cache.count == 290
    }
  },
  Operation("first: an eviction by exact LRU", isFirst: true) {
    let cache = filled(try IntCache(evictionOrder: .lru))
    return {
      cache.trim(toCount: cache.count - 100)
      return true
    }
  },
  Operation("first: departures told, of tracked keys", takes: .result, isFirst: true, floor: debugFloor) {
    let cache = filled(try IntCache { if $0.key < 0 { fail("another key was told") } })
    return {
      cache.trim(toCount: cache.count - 100)
      return true
    }
  },
  Operation("first: objects: look-ups, trims, a sweep, a removal of all", isFirst: true) {
    let (cache, ofPairs) = (try ObjectCache<Int, [UInt8]>(), try ObjectCache<PairKey, [UInt8]>())
    let value = bytes(10)
    for key in 0..<1000 { (cache[key], ofPairs[PairKey(left: key, right: 1)]) = (value, value) }
    return {
      _ = (cache.containsValue(forKey: 1), cache.value(forKey: 2), cache.lookUpValue(forKey: 3))
      _ = ofPairs.containsValue(forKey: PairKey(left: 4, right: 1))
      cache.trim(toCount: 500)
      _ = cache.sweep()
      cache.removeAll()
      return true
    }
  },
  Operation(
    "first: a value that is pinned, and one that does not fit below the limit", takes: .result, isFirst: true, floor: debugFloor
  ) {
    let cache = filled(try IntCache())
    try cache.setPinnedByteLimit(150)
    return {
      let isPinned = (try? cache.setPriority(.pinned, forKey: 5)) == true
      do {
        _ = try cache.setPriority(.pinned, forKey: 6)
        return false
      } catch { return isPinned }
    }
  },
  Operation("first: a removal of a key that has no value", isFirst: true) {
    let cache = try PurgeableCache<Int, Int>()
    for key in 0..<100 { cache[key] = key }
    return { cache.removeValue(forKey: 1000) == nil }
  },
]
