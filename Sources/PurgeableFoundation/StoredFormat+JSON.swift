// SPDX-License-Identifier: MIT
// Codable values in files, written as JSON.

import Foundation
public import Purgeable

extension StoredFormat where Value: Codable {
  /// Values as JSON, by `JSONEncoder` and `JSONDecoder` as they are made.
  ///
  ///     import PurgeableFoundation
  ///
  ///     struct Story: Codable, Sendable { var title: String }
  ///     let stories = try ObjectCache<String, Story>(countLimit: 500)
  ///     try await stories.save(to: "/var/cache/service/stories", format: .json(version: 2))
  ///
  /// `version`: 1 or more, as `StoredFormat.init` wants it; to be raised when values that were written before mean something
  /// else now, or lack what has no default. What an earlier version wrote is decoded where its JSON is one of such a value;
  /// what a later one wrote is skipped, and so is what was not written as JSON. For `PurgeableData` there is `contents()`.
  public static func json(version: Int = 1) -> StoredFormat {
    StoredFormat(version: version) { value in
      [UInt8](try JSONEncoder().encode(value))
    } decode: { bytes, written in
      guard written > 0, written <= version else { return nil }
      // Safe: copied within the closure.
      return try JSONDecoder().decode(Value.self, from: unsafe bytes.withUnsafeBytes { unsafe Data($0) })
    }
  }
}
