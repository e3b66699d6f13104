// SPDX-License-Identifier: MIT
// Foundation's types as values of a cache: Data, and anything Codable.

import Foundation
@_exported import Purgeable

extension Data: PurgeableValue {
  public init?(purgeableBytes: RawSpan) {
    // Safe: copied within the closure.
    self = unsafe purgeableBytes.withUnsafeBytes { bytes in unsafe Data(bytes) }
  }

  public func withPurgeableBytes<R, E: Error>(_ body: (RawSpan) throws(E) -> R) throws(E) -> R {
    try body(bytes)
  }
}
