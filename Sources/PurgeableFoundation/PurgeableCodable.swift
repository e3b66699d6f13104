// SPDX-License-Identifier: MIT
// Codable types as values of a cache, written as JSON.

import Foundation
public import Purgeable

/// A Codable type that a cache can store: `extension Page: PurgeableCodable {}` is all it needs.
///
/// Its bytes are JSON. A value that does not encode (a number that is not finite, say) is refused by caches
/// (`StoreOutcome.notEncodable`), and an old value under its key stays. A type that is stored often and read fast had better
/// write its own bytes (`PurgeableValue`).
public protocol PurgeableCodable: Codable, PurgeableValue {}

extension PurgeableCodable {
  /// nil for bytes that do not decode as this type.
  public init?(purgeableBytes: RawSpan) {
    // Safe: copied within the closure.
    let data = unsafe purgeableBytes.withUnsafeBytes { bytes in unsafe Data(bytes) }
    guard let value = try? JSONDecoder().decode(Self.self, from: data) else { return nil }
    self = value
  }

  /// Lends the value's JSON; nil, and `body` is not called, where it does not encode.
  public func withPurgeableBytesIfEncodable<R, E: Error>(_ body: (RawSpan) throws(E) -> R) throws(E) -> R? {
    guard let data = try? JSONEncoder().encode(self) else { return nil }
    return try body(data.bytes)
  }

  /// Lends the value's JSON, and no bytes where it does not encode. Caches ask `withPurgeableBytesIfEncodable`.
  public func withPurgeableBytes<R, E: Error>(_ body: (RawSpan) throws(E) -> R) throws(E) -> R {
    let data = (try? JSONEncoder().encode(self)) ?? Data()
    return try body(data.bytes)
  }
}
