// SPDX-License-Identifier: MIT
// From discardable content to Data. The way back is PurgeableData's own: Data is a collection of bytes.

public import Foundation
public import Purgeable

extension Data {
  /// Makes a copy of the bytes, which stays whatever happens to the content.
  ///
  /// `PurgeableData(data)` is the way back: a copy too, straight from the data's own storage, slices included.
  ///
  /// Begins and ends an access by itself, so nobody needs to hold one. May be called from any thread and within `withBytes`, but
  /// not within a `withMutableBytes` of the same object: that stops the program.
  ///
  /// - Returns: `nil` when the content is discarded and could not be recreated, or there is no memory for the copy.
  /// - Complexity: one copy of the bytes, and that of `withBytes`.
  public init?(_ content: PurgeableData) {
    let copy = content.withBytes { bytes in
      // Safe: the data has room for exactly these bytes, and both are valid for the length of the closures.
      unsafe Data(purgeableByteCount: bytes.byteCount) { room in
        unsafe bytes.withUnsafeBytes { unsafe room.copyMemory(from: $0) }
        return bytes.byteCount
      }
    }
    guard let copy, let copy else { return nil }
    self = copy
  }
}
