// SPDX-License-Identifier: MIT
// Foundation's types as values of a cache: Data, Date, UUID and URL. PurgeableCodable.swift has anything Codable.

public import Foundation
@_exported public import Purgeable

extension Data: PurgeableValue {
  /// A copy of the bytes. Never nil.
  public init?(purgeableBytes: RawSpan) {
    // Safe: copied within the closure.
    self = unsafe purgeableBytes.withUnsafeBytes { bytes in unsafe Data(bytes) }
  }

  /// As `init(purgeableBytes:)`, in the data's own storage: no copy.
  public init?(purgeableByteCount byteCount: Int, read: (UnsafeMutableRawBufferPointer) -> Int?) {
    // Safe: the data takes over the memory, of which `read` initialises the first `count` bytes.
    guard let memory = unsafe malloc(Swift.max(1, byteCount)) else { return nil }
    guard let count = unsafe read(UnsafeMutableRawBufferPointer(start: memory, count: byteCount)) else {
      unsafe free(memory)
      return nil
    }
    unsafe self.init(bytesNoCopy: memory, count: count, deallocator: .free)
  }

  /// Lends the bytes: no copy.
  public func withPurgeableBytes<R, E: Error>(_ body: (RawSpan) throws(E) -> R) throws(E) -> R {
    try body(bytes)
  }
}

extension Date: PurgeableValue {
  /// nil for other than 8 bytes.
  public init?(purgeableBytes: RawSpan) {
    guard let seconds = Double(purgeableBytes: purgeableBytes) else { return nil }
    self.init(timeIntervalSinceReferenceDate: seconds)
  }

  /// Lends the 8 bytes of `timeIntervalSinceReferenceDate`: the date comes back exactly.
  public func withPurgeableBytes<R, E: Error>(_ body: (RawSpan) throws(E) -> R) throws(E) -> R {
    try timeIntervalSinceReferenceDate.withPurgeableBytes(body)
  }
}

extension UUID: PurgeableValue {
  /// nil for other than 16 bytes.
  public init?(purgeableBytes: RawSpan) {
    guard purgeableBytes.byteCount == MemoryLayout<uuid_t>.size else { return nil }
    // Safe: as many bytes as a uuid_t has, all of them plain.
    self.init(uuid: unsafe purgeableBytes.unsafeLoadUnaligned(as: uuid_t.self))
  }

  /// Lends the 16 bytes.
  public func withPurgeableBytes<R, E: Error>(_ body: (RawSpan) throws(E) -> R) throws(E) -> R {
    // Safe: the span is valid for the length of the closure, as it promises.
    try unsafe withUnsafeBytes(of: uuid) { bytes throws(E) in try body(unsafe bytes.bytes) }
  }
}

extension URL: PurgeableValue {
  /// nil for bytes that are no URL.
  public init?(purgeableBytes: RawSpan) {
    guard let text = String(purgeableBytes: purgeableBytes) else { return nil }
    var url: URL?
    for part in text.split(separator: "\0", omittingEmptySubsequences: false).reversed() {
      // An empty text is one that only URLComponents make.
      let made = part.isEmpty ? URLComponents().url(relativeTo: url) : URL(string: String(part), relativeTo: url)
      guard let next = made else { return nil }
      url = next
    }
    guard let url else { return nil }
    self = url
  }

  /// Lends the text of the URL as it was made, relative or not; behind a zero byte, which no URL contains, that of its base.
  public func withPurgeableBytes<R, E: Error>(_ body: (RawSpan) throws(E) -> R) throws(E) -> R {
    try partsOfAllBases.withPurgeableBytes(body)
  }

  /// What two URLs are equal by: the relative text, and the same of the base, if there is one.
  var partsOfAllBases: String {
    var text = relativeString
    var base = baseURL
    while let part = base {
      text += "\0" + part.relativeString
      base = part.baseURL
    }
    return text
  }
}
