// SPDX-License-Identifier: MIT
// What the hit and store figures work on: integer keys, values of 100 bytes, look-ups in another order; and the competitors.

import BenchmarkSupport
import Foundation
import Purgeable
import ToolSupport

/// An object that NSCache can hold.
final class Box {
  let bytes: [UInt8]
  init(_ bytes: [UInt8]) { self.bytes = bytes }
}

struct Workload {
  static let valueByteCount = 100

  /// In order of storing.
  let keys: [Int]
  /// In order of looking up.
  let order: [Int]

  init(count: Int) {
    var generator = SplitMix64()
    keys = (0..<count).map { Int(truncatingIfNeeded: SplitMix64.mix(UInt64($0) &+ 1)) }
    order = keys.shuffled(using: &generator)
  }

  /// A value, made anew.
  static func value(of key: Int) -> [UInt8] {
    unsafe [UInt8](unsafeUninitializedCapacity: valueByteCount) { buffer, count in
      var word = UInt64(bitPattern: Int64(key))
      for i in 0..<valueByteCount {
        // In bounds: the buffer has room for as many.
        unsafe buffer[i] = UInt8(truncatingIfNeeded: word)
        word = word >> 8 | word << 56
      }
      count = valueByteCount
    }
  }

  func makeCache() throws -> PurgeableCache<Int, [UInt8]> {
    let cache = try PurgeableCache<Int, [UInt8]>(name: "figures")
    for key in keys { cache.setValue(Self.value(of: key), forKey: key) }
    return cache
  }

  func makeDictionary() -> [Int: [UInt8]] {
    var dictionary: [Int: [UInt8]] = [:]
    for key in keys { dictionary[key] = Self.value(of: key) }
    return dictionary
  }

  func makeNSCache() -> NSCache<NSNumber, Box> {
    let cache = NSCache<NSNumber, Box>()
    for key in keys { cache.setObject(Box(Self.value(of: key)), forKey: NSNumber(value: key), cost: 0) }
    return cache
  }
}

/// Everything on offer, and what the library's thread had to do done.
func settle<Key, Value>(_ cache: PurgeableCache<Key, Value>) {
  // Twice, with every processor's unfinished offers completed in between: one offer skips pages.
  for _ in 0..<3 {
    cache.offerIdle()
    benchmark_drain_offers()
  }
  usleep(1_700_000)
}

/// What a pass over all keys found: both are printed, and compared between the sides.
struct Pass: Equatable {
  var sum: UInt64 = 0
  var misses = 0
}

// One function per side: not inlined, so that no side's loop is known to the other's caller.

@inline(never)
func readPass(_ cache: PurgeableCache<Int, [UInt8]>, _ keys: [Int]) -> Pass {
  var pass = Pass()
  unsafe withUnsafeTemporaryAllocation(byteCount: 128, alignment: 16) { buffer in
    for key in keys {
      if case .hit(let count) = unsafe cache.read(forKey: key, into: buffer), let start = buffer.baseAddress {
        // In bounds: a hit says how many bytes it wrote.
        pass.sum &+= unsafe benchmark_sum(start, count)
      } else {
        pass.misses += 1
      }
    }
  }
  return pass
}

@inline(never)
func valuePass(_ cache: PurgeableCache<Int, [UInt8]>, _ keys: [Int]) -> Pass {
  var pass = Pass()
  for key in keys { add(cache.value(forKey: key), to: &pass) }
  return pass
}

@inline(never)
func manyPass(_ cache: PurgeableCache<Int, [UInt8]>, _ keys: [Int]) -> Pass {
  var pass = Pass()
  for start in stride(from: 0, to: keys.count, by: 1000) {
    for value in cache.values(forKeys: keys[start..<min(keys.count, start + 1000)]) { add(value, to: &pass) }
  }
  return pass
}

@inline(never)
func dictionaryPass(_ dictionary: [Int: [UInt8]], _ keys: [Int]) -> Pass {
  var pass = Pass()
  for key in keys { add(dictionary[key], to: &pass) }
  return pass
}

@inline(never)
func nsCachePass(_ cache: NSCache<NSNumber, Box>, _ keys: [Int]) -> Pass {
  var pass = Pass()
  for key in keys { add(cache.object(forKey: NSNumber(value: key))?.bytes, to: &pass) }
  return pass
}

@inline(__always)
private func add(_ bytes: [UInt8]?, to pass: inout Pass) {
  if let bytes {
    // The array's own bytes, for the length of the closure.
    pass.sum &+= unsafe bytes.withUnsafeBytes { buffer in unsafe benchmark_sum(buffer.baseAddress!, buffer.count) }
  } else {
    pass.misses += 1
  }
}
