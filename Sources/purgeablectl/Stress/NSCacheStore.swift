// SPDX-License-Identifier: MIT
// NSCache as a rival of the cache: the one file of the tool that needs Foundation.

import Foundation

/// Without limits, as it is used most. `@unchecked Sendable`: NSCache may be used from any thread.
final class NSCacheStore: StressStore, @unchecked Sendable {
  private final class Value {
    let bytes: [UInt8]
    init(_ bytes: [UInt8]) { self.bytes = bytes }
  }

  private let cache = NSCache<NSNumber, Value>()

  func read(_ key: UInt64, into buffer: UnsafeMutableRawBufferPointer) -> Int? {
    guard let bytes = cache.object(forKey: NSNumber(value: key))?.bytes else { return nil }
    unsafe buffer.copyBytes(from: bytes)
    return bytes.count
  }

  func store(_ key: UInt64, _ bytes: UnsafeRawBufferPointer) -> Bool {
    unsafe cache.setObject(Value(Array(bytes)), forKey: NSNumber(value: key))
    return true
  }
}
