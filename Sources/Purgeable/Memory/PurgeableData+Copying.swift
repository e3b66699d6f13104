// SPDX-License-Identifier: MIT
// Copies: of all, as another object, and of a part, as an array.

extension PurgeableData {
  /// Another object with the same bytes, and an access count of 1 for the caller to end. It has the same name, offering and
  /// closure; changes to one of the two leave the other as it is.
  ///
  /// Begins and ends an access by itself, so nobody needs to hold one. May be called from any thread and within `withBytes`, but
  /// not within a `withMutableBytes` of this object: that stops the program.
  ///
  /// - Returns: `nil` when the content is discarded and could not be recreated.
  /// - Throws: `PurgeableError`: out of memory.
  /// - Complexity: one copy of the bytes into a region of its own; no system call while a shared chunk of the core has room.
  public func copy() throws(PurgeableError) -> PurgeableData? {
    try withBytes { bytes throws(PurgeableError) in
      try PurgeableData(bytes, name: name, offering: offering, recreate: recreate)
    }
  }

  /// A copy of some of the bytes, by their offsets.
  ///
  /// Begins and ends an access by itself, so nobody needs to hold one. May be called from any thread and within `withBytes`, but
  /// not within a `withMutableBytes` of this object: that stops the program. `withBytes` lends the same bytes without a copy:
  /// `data.withBytes { send($0.extracting(4..<8)) }`.
  ///
  /// - Returns: `nil` when the content is discarded and could not be recreated.
  /// - Throws: `PurgeableError`: invalid argument when the range is not within the bytes there are; out of memory, for 128 KiB or
  ///   more. Where there is none for a smaller array, Swift's runtime ends the program.
  /// - Complexity: one copy of these bytes, and that of `withBytes`.
  public func bytes(in range: Range<Int>) throws(PurgeableError) -> [UInt8]? {
    try withBytes { bytes throws(PurgeableError) in
      try check(range, in: bytes.byteCount, for: "bytes(in:)")
      return try array(of: bytes.extracting(range), for: "bytes(in:)")
    }
  }

  /// An array of lent bytes; throws where it is large and there is no memory for it.
  func array(of bytes: RawSpan, for operation: String) throws(PurgeableError) -> [UInt8] {
    let count = bytes.byteCount
    guard count < MemoryReserve.ofLargeResults || MemoryReserve.isThere(count + 4096) else {
      throw PurgeableError.withoutMemory(in: "\(title).\(operation)")
    }
    return Array(copying: bytes)
  }
}
