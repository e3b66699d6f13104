// SPDX-License-Identifier: MIT
// Codable: the bytes, and nothing else.

extension PurgeableData: Codable {
  /// Writes the bytes, as `[UInt8]` would.
  ///
  /// Name, offering, counter and closure are not written. In JSON the bytes are an array of numbers, up to four characters each;
  /// for base64 encode `Data(content)` of PurgeableFoundation instead.
  ///
  /// Begins an access by itself, so nobody needs to hold one, and ends it before the encoder is asked for anything. May be called
  /// from any thread, but not within a `withMutableBytes` of this object: that stops the program.
  ///
  /// - Throws: `EncodingError.invalidValue` when the content is discarded and could not be recreated, or no more may be
  ///   locked; `PurgeableError`, out of memory, for 128 KiB or more; what the encoder throws.
  /// - Complexity: one copy of the bytes, and the encoder's work.
  public func encode(to encoder: any Encoder) throws {
    let bytes = try withBytes { bytes throws(PurgeableError) in try array(of: bytes, for: "encode") }
    guard let bytes else {
      let why = "\(title): the content is discarded, or may not be locked now"
      throw EncodingError.invalidValue(self, EncodingError.Context(codingPath: encoder.codingPath, debugDescription: why))
    }
    var container = encoder.singleValueContainer()
    try container.encode(bytes)
  }

  /// Makes an object of encoded bytes, with an access count of 1, without a name or closure, with deferred offering.
  ///
  /// Reads what `encode(to:)` wrote, and what an array of `UInt8` is written as.
  ///
  /// - Throws: `PurgeableError`: out of memory; what the decoder throws (`DecodingError` for other content).
  /// - Complexity: the decoder's work, and one copy of the bytes.
  public convenience init(from decoder: any Decoder) throws {
    try self.init(decoder.singleValueContainer().decode([UInt8].self))
  }
}
