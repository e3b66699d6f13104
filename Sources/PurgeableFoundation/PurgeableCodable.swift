// SPDX-License-Identifier: MIT
// Codable types as values of a cache, written as JSON.

import Foundation
public import Purgeable

/// A Codable type that a cache can store: `extension Page: PurgeableCodable {}` is all it needs.
///
/// Its bytes are JSON. A value that does not encode (a number that is not finite, say) is refused by caches
/// (`StoreOutcome.notEncodable`), and an old value under its key stays. A type that is stored often and read fast had better
/// write its own bytes (`PurgeableValue`).
///
/// As a key of files and databases it serves where equal values have equal JSON: members are written in the order of their names,
/// but sets, and dictionaries whose keys are no strings, in no order.
public protocol PurgeableCodable: Codable, PurgeableValue {}

extension PurgeableCodable {
  /// nil for bytes that do not decode as this type.
  public init?(purgeableBytes: RawSpan) {
    // Safe: copied within the closure.
    let data = unsafe purgeableBytes.withUnsafeBytes { bytes in unsafe Data(bytes) }
    guard let value = try? JSONDecoder().decode(Self.self, from: data) else { return nil }
    self = value
  }

  private var json: Data? {
    let encoder = JSONEncoder()
    // Else their order is another one in each process.
    encoder.outputFormatting = .sortedKeys
    return try? encoder.encode(self)
  }

  /// Lends the value's JSON; nil, and `body` is not called, where it does not encode.
  public func withPurgeableBytesIfEncodable<R, E: Error>(_ body: (RawSpan) throws(E) -> R) throws(E) -> R? {
    guard let json else { return nil }
    return try body(json.bytes)
  }

  /// Lends the value's JSON, and no bytes where it does not encode. Caches ask `withPurgeableBytesIfEncodable`.
  public func withPurgeableBytes<R, E: Error>(_ body: (RawSpan) throws(E) -> R) throws(E) -> R {
    try body((json ?? Data()).bytes)
  }
}
