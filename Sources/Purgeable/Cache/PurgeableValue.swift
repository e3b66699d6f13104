// SPDX-License-Identifier: MIT
// What can be stored: a value that can be written as bytes and made again of them.

/// A value that a cache can keep in purgeable memory, as bytes.
///
/// `[UInt8]`, `String`, the integers, floating-point numbers and `Bool` conform. A trivially copyable type of one's own needs one
/// line: `extension Point: PurgeableValue {}`. Other types write their own encoding; for Codable ones, and for `Data`, there is the
/// module PurgeableFoundation.
///
/// Both requirements may be called from any thread, never under a mutex of this library.
public protocol PurgeableValue: Sendable {
  /// Makes the value of its bytes, which are valid for the length of the call; nil when they are no such value.
  init?(purgeableBytes: RawSpan)

  /// Lends the value's bytes for the length of `body`.
  func withPurgeableBytes<R, E: Error>(_ body: (RawSpan) throws(E) -> R) throws(E) -> R
}

extension PurgeableValue where Self: BitwiseCopyable {
  /// Any bytes of the type's size: such a value is its bytes.
  public init?(purgeableBytes: RawSpan) {
    guard purgeableBytes.byteCount == MemoryLayout<Self>.size else { return nil }
    // Safe: the bytes were written by `withPurgeableBytes` of the same type, and there are as many as it has.
    unsafe self = purgeableBytes.unsafeLoadUnaligned(as: Self.self)
  }

  public func withPurgeableBytes<R, E: Error>(_ body: (RawSpan) throws(E) -> R) throws(E) -> R {
    // Safe: the span is valid for the length of the closure, as it promises.
    try unsafe withUnsafeBytes(of: self) { bytes throws(E) in try body(unsafe bytes.bytes) }
  }
}

extension Int: PurgeableValue {}
extension Int8: PurgeableValue {}
extension Int16: PurgeableValue {}
extension Int32: PurgeableValue {}
extension Int64: PurgeableValue {}
extension Int128: PurgeableValue {}
extension UInt: PurgeableValue {}
extension UInt8: PurgeableValue {}
extension UInt16: PurgeableValue {}
extension UInt32: PurgeableValue {}
extension UInt64: PurgeableValue {}
extension UInt128: PurgeableValue {}
extension Float: PurgeableValue {}
extension Double: PurgeableValue {}

extension Bool: PurgeableValue {
  public init?(purgeableBytes: RawSpan) {
    guard purgeableBytes.byteCount == 1 else { return nil }
    // Not loaded as it stands: a byte above 1 is no Bool.
    self = unsafe purgeableBytes.unsafeLoad(as: UInt8.self) != 0
  }
}

extension Array: PurgeableValue where Element == UInt8 {
  public init?(purgeableBytes: RawSpan) { self.init(copying: purgeableBytes) }

  public func withPurgeableBytes<R, E: Error>(_ body: (RawSpan) throws(E) -> R) throws(E) -> R {
    unsafe try body(span.bytes)
  }
}

extension String: PurgeableValue {
  /// Nil for bytes that are no UTF-8.
  public init?(purgeableBytes: RawSpan) {
    // Safe: the bytes are valid for the length of the closure, and copied in it.
    guard let text = unsafe purgeableBytes.withUnsafeBytes({ bytes in unsafe String(validating: bytes, as: UTF8.self) })
    else { return nil }
    self = text
  }

  public func withPurgeableBytes<R, E: Error>(_ body: (RawSpan) throws(E) -> R) throws(E) -> R {
    var text = self
    text.makeContiguousUTF8()
    return unsafe try body(text.utf8Span.span.bytes)
  }
}
