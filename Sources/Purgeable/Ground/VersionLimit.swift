// SPDX-License-Identifier: MIT
// Versions of values, by which a look-up tells outdated ones.

/// The text of a version. It has so many bytes at most: its length is a byte.
package enum VersionLimit {
  static let byteCount = Int(UInt8.max)

  /// nil: no version.
  package static func isExceeded(by version: String?) -> Bool { version.map { $0.utf8.count > byteCount } ?? false }

  /// Whether two versions are the same by their bytes: equal strings may be written differently.
  package static func isSame(_ one: String?, _ other: String?) -> Bool {
    guard let one, let other else { return one == nil && other == nil }
    return one.utf8.elementsEqual(other.utf8)
  }
}
