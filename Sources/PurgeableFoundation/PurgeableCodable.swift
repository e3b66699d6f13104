// SPDX-License-Identifier: MIT
// Codable types as values of a cache, written as JSON.

import Foundation
import Purgeable

/// A Codable type that a cache can store: `extension Page: PurgeableCodable {}` is all it needs.
///
/// Its bytes are JSON. A type that is stored often and read fast had better write its own bytes (`PurgeableValue`).
public protocol PurgeableCodable: Codable, PurgeableValue {}

extension PurgeableCodable {
  /// nil for bytes that do not decode as this type.
  public init?(purgeableBytes: RawSpan) {
    // Safe: copied within the closure.
    let data = unsafe purgeableBytes.withUnsafeBytes { bytes in unsafe Data(bytes) }
    guard let value = try? JSONDecoder().decode(Self.self, from: data) else { return nil }
    self = value
  }

  /// Lends the value's JSON. A value that does not encode (a number that is not finite, say) lends no bytes, and is undecodable.
  public func withPurgeableBytes<R, E: Error>(_ body: (RawSpan) throws(E) -> R) throws(E) -> R {
    let data = (try? JSONEncoder().encode(self)) ?? Data()
    return try body(data.bytes)
  }
}
