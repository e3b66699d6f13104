// SPDX-License-Identifier: MIT
// Caches with entries, and buffers that are made before memory is refused.

import CPurgeable
import Glibc
import MemoryFaults
import Purgeable

/// A key without bytes of its own.
struct PairKey: Hashable, Sendable {
  var left: Int
  var right: Int
}

/// The number of entries in a scene: fewer in a debug build, which is for the tests and far slower.
func many(_ count: Int) -> Int { isOptimized ? count : count / 8 }

func bytes(_ count: Int, _ number: Int = 7) -> [UInt8] {
  [UInt8](repeating: UInt8(truncatingIfNeeded: number) | 1, count: count)
}

/// A buffer that stays allocated, for reads into it.
@safe final class Buffer: Sendable {
  nonisolated(unsafe) let bytes = UnsafeMutableRawBufferPointer.allocate(byteCount: 1 << 20, alignment: 16)
}

typealias IntCache = PurgeableCache<Int, [UInt8]>
typealias StringCache = PurgeableCache<String, [UInt8]>
typealias PairCache = PurgeableCache<PairKey, [UInt8]>

/// Fills the cache with so many entries and reads some, so that the policy has something to decide.
func filled(_ cache: IntCache, _ count: Int = 3000, bytes length: Int = 100) -> IntCache {
  let value = bytes(length)
  let count = many(count)
  for key in 0..<count { cache.setValue(value, forKey: key) }
  for key in stride(from: 0, to: count, by: 3) { for _ in 0..<2 { _ = cache.peekValue(forKey: key) } }
  for key in stride(from: 0, to: count, by: 5) {
    for _ in 0..<3 { _ = cache.containsValue(forKey: key) ? cache.value(forKey: key) : nil }
  }
  return cache
}

func stringKeys(_ count: Int) -> [String] { (0..<many(count)).map { "an ordinary key of some length, number \($0)" } }

/// A counter with storage of its own.
@safe final class Counter: Sendable {
  nonisolated(unsafe) private let place = UnsafeMutablePointer<Int>.allocate(capacity: 1)
  init(_ start: Int) { unsafe place.initialize(to: start) }
  func next() -> Int {
    defer { unsafe place.pointee += 1 }
    return unsafe place.pointee
  }
}
