// SPDX-License-Identifier: MIT
// Foundation's types as keys with bytes of their own: UUID, Data and URL lie in purgeable memory beside their values.

public import Foundation
public import Purgeable

extension UUID: PurgeableKey {
  /// Lends the 16 bytes.
  public func withKeyBytes<R>(_ body: (RawSpan) -> R) -> R { withPurgeableBytes(body) }
}

extension Data: PurgeableKey {
  /// Lends the bytes: no copy.
  public func withKeyBytes<R>(_ body: (RawSpan) -> R) -> R { body(bytes) }
}

extension URL: PurgeableKey {
  /// Lends the text that URLs are equal by: as it was made, relative or not, with that of its base. So
  /// `URL(string: "b", relativeTo: a)` and its `absoluteURL` are two keys, as they are two URLs to `==`.
  public func withKeyBytes<R>(_ body: (RawSpan) -> R) -> R { partsOfAllBases.withPurgeableBytes(body) }
}
