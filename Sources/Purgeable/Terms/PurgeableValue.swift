// SPDX-License-Identifier: MIT
// Values that can be stored: those that can be written as bytes and made from them again.

/// A value that a cache can keep in purgeable memory, as bytes.
///
/// `String`, the integers, `Float16`, `Float`, `Double`, `Bool`, and arrays and slices of trivially copyable elements (`[UInt8]`,
/// `[Float]`, `ArraySlice<UInt8>`) conform. A trivially copyable type of your own needs one line:
/// `extension Point: PurgeableElement {}`. Other types write their own encoding. The module PurgeableFoundation has `Data`,
/// `Date`, `UUID`, `URL`, and Codable types of your own (`PurgeableCodable`); `[String]` and other types of the standard library
/// go into one of these, as its member.
///
/// All requirements may be called from any thread, never under a mutex of this library.
public protocol PurgeableValue: Sendable {
  /// Makes the value from its bytes, which are valid for the length of the call; nil when they are not bytes of such a value.
  init?(purgeableBytes: RawSpan)

  /// Makes the value in the memory that the value keeps, which saves a copy. Caches call this initializer for values of more than
  /// a kilobyte.
  ///
  /// `read` copies the bytes to the front of a buffer of `byteCount` bytes, which need not be initialized. It returns how many
  /// bytes there are, at most `byteCount`, or nil when the value is gone by now. An implementation calls `read` once, or not at
  /// all where it gets no memory. The result is nil where `read` returned nil, and for bytes of no such value. With a smaller
  /// buffer `read` returns nil, and the look-up says `MissReason.undecodable`. The default implementation copies the bytes to an
  /// array for `init(purgeableBytes:)`.
  init?(purgeableByteCount byteCount: Int, read: (UnsafeMutableRawBufferPointer) -> Int?)

  /// Lends the value's bytes for the length of `body`.
  func withPurgeableBytes<R, E: Error>(_ body: (RawSpan) throws(E) -> R) throws(E) -> R

  /// As `withPurgeableBytes`, for types with values that cannot be written as bytes: for those values it does not call `body` and
  /// returns nil, and `setValue` refuses them (`StoreOutcome.notEncodable`). Caches call this method. The default implementation
  /// writes every value.
  func withPurgeableBytesIfEncodable<R, E: Error>(_ body: (RawSpan) throws(E) -> R) throws(E) -> R?
}

extension PurgeableValue {
  /// Makes the value from an array of its bytes: one allocation beside those of `init(purgeableBytes:)`.
  public init?(purgeableByteCount byteCount: Int, read: (UnsafeMutableRawBufferPointer) -> Int?) {
    guard let bytes = unsafe [UInt8](purgeableByteCount: byteCount, read: read) else { return nil }
    // Safe: the span is valid for the length of the call.
    unsafe self.init(purgeableBytes: bytes.span.bytes)
  }

  /// Lends the value's bytes: every value of a type that does not implement this can be written.
  public func withPurgeableBytesIfEncodable<R, E: Error>(_ body: (RawSpan) throws(E) -> R) throws(E) -> R? {
    try withPurgeableBytes(body)
  }
}

extension PurgeableValue where Self: BitwiseCopyable {
  /// Takes any bytes of the type's size: the value is its bytes.
  public init?(purgeableBytes: RawSpan) {
    guard purgeableBytes.byteCount == MemoryLayout<Self>.size else { return nil }
    // Safe: the bytes were written by `withPurgeableBytes` of the same type, and there are as many as it has. Of a file that is
    // for the program to see to (`PurgeableElement`).
    unsafe self = purgeableBytes.unsafeLoadUnaligned(as: Self.self)
  }

  /// Lends the value's own bytes, padding included.
  public func withPurgeableBytes<R, E: Error>(_ body: (RawSpan) throws(E) -> R) throws(E) -> R {
    // Safe: the span is valid for the length of the closure, as it promises.
    try unsafe withUnsafeBytes(of: self) { bytes throws(E) in try body(unsafe bytes.bytes) }
  }
}

/// A trivially copyable type whose arrays and slices are values too: `extension Point: PurgeableElement {}` is all it needs.
///
/// The integers, `Float16`, `Float`, `Double` and `Bool` conform. (Swift has no conformance of arrays that depends on
/// `BitwiseCopyable` alone.)
///
/// Bytes of such a type are values of it as they are, also from a file or a database that an earlier build of the program wrote:
/// there the type is told by its name and its size. When its members or cases change, give it another name, or its values a
/// `StoredFormat`.
public protocol PurgeableElement: PurgeableValue, BitwiseCopyable {}

extension Int: PurgeableElement {}
extension Int8: PurgeableElement {}
extension Int16: PurgeableElement {}
extension Int32: PurgeableElement {}
extension Int64: PurgeableElement {}
extension Int128: PurgeableElement {}
extension UInt: PurgeableElement {}
extension UInt8: PurgeableElement {}
extension UInt16: PurgeableElement {}
extension UInt32: PurgeableElement {}
extension UInt64: PurgeableElement {}
extension UInt128: PurgeableElement {}
extension Float16: PurgeableElement {}
extension Float: PurgeableElement {}
extension Double: PurgeableElement {}

extension Bool: PurgeableElement {
  /// nil for other than one byte.
  public init?(purgeableBytes: RawSpan) {
    guard purgeableBytes.byteCount == 1 else { return nil }
    // Not loaded as a Bool: a byte above 1 is no valid one.
    self = unsafe purgeableBytes.unsafeLoad(as: UInt8.self) != 0
  }
}

/// Arrays of trivially copyable elements: their bytes, one element after the other, padding included.
extension Array: PurgeableValue where Element: PurgeableElement {
  /// nil where the bytes are not a whole number of elements. One allocation.
  @inlinable
  public init?(purgeableBytes: RawSpan) {
    let (count, rest) = purgeableBytes.byteCount.quotientAndRemainder(dividingBy: MemoryLayout<Element>.stride)
    guard rest == 0 else { return nil }
    unsafe self.init(unsafeUninitializedCapacity: count) { buffer, initializedCount in
      // Safe: the buffer has room for `count` elements, and the bytes were written by `withPurgeableBytes` of the same type.
      unsafe purgeableBytes.withUnsafeBytes { unsafe UnsafeMutableRawBufferPointer(buffer).copyMemory(from: $0) }
      unsafe Self.makeValid(UnsafeMutableRawBufferPointer(buffer), count: count)
      initializedCount = count
    }
  }

  /// As `init(purgeableBytes:)`, in the array's own storage: no copy.
  @inlinable
  public init?(purgeableByteCount byteCount: Int, read: (UnsafeMutableRawBufferPointer) -> Int?) {
    let stride = MemoryLayout<Element>.stride
    let capacity = (byteCount + stride - 1) / stride
    var isWhole = false
    unsafe self.init(unsafeUninitializedCapacity: capacity) { buffer, initializedCount in
      // Safe: the buffer has room for `byteCount` bytes, and they were written by `withPurgeableBytes` of the same type.
      guard let read = unsafe read(UnsafeMutableRawBufferPointer(rebasing: UnsafeMutableRawBufferPointer(buffer)[..<byteCount]))
      else { return }
      isWhole = read % stride == 0
      initializedCount = read / stride
      unsafe Self.makeValid(UnsafeMutableRawBufferPointer(buffer), count: initializedCount)
    }
    if !isWhole { return nil }
  }

  /// Of Bools: a byte above 1, as a file may have, is no valid one.
  @inlinable
  static func makeValid(_ elements: UnsafeMutableRawBufferPointer, count: Int) {
    if Element.self != Bool.self { return }
    for i in 0..<count where unsafe elements[i] > 1 { unsafe elements[i] = 1 }
  }

  /// Lends the array's own storage: no copy.
  public func withPurgeableBytes<R, E: Error>(_ body: (RawSpan) throws(E) -> R) throws(E) -> R {
    if Element.self == UInt8.self {
      // Safe: the same type. Saves a span's generic code.
      let bytes = unsafe unsafeBitCast(self, to: [UInt8].self)
      return unsafe try body(bytes.span.bytes)
    }
    return try self[...].withPurgeableBytes(body)
  }

  /// As `withPurgeableBytes`: every array can be written.
  public func withPurgeableBytesIfEncodable<R, E: Error>(_ body: (RawSpan) throws(E) -> R) throws(E) -> R? {
    if Element.self == UInt8.self {
      // As above, without a call.
      let bytes = unsafe unsafeBitCast(self, to: [UInt8].self)
      return unsafe try body(bytes.span.bytes)
    }
    return try self[...].withPurgeableBytes(body)
  }
}

/// Slices of arrays: the bytes of the slice alone. A slice that was stored comes back with indices from 0.
extension ArraySlice: PurgeableValue where Element: PurgeableElement {
  /// nil where the bytes are not a whole number of elements. One allocation.
  public init?(purgeableBytes: RawSpan) {
    guard let array = [Element](purgeableBytes: purgeableBytes) else { return nil }
    self = array[...]
  }

  /// As `init(purgeableBytes:)`, in the array's own storage: no copy.
  public init?(purgeableByteCount byteCount: Int, read: (UnsafeMutableRawBufferPointer) -> Int?) {
    guard let array = unsafe [Element](purgeableByteCount: byteCount, read: read) else { return nil }
    self = array[...]
  }

  // A call, so that arrays of bytes pay for nothing generic.
  /// Lends the slice's own storage: no copy.
  @inline(never)
  public func withPurgeableBytes<R, E: Error>(_ body: (RawSpan) throws(E) -> R) throws(E) -> R {
    // Not `span.bytes`, which lacks the padding of the last element. Safe: valid for the length of the closure.
    try unsafe withUnsafeBufferPointer { elements throws(E) in
      try body(unsafe UnsafeRawBufferPointer(elements).bytes)
    }
  }
}

extension String: PurgeableValue {
  /// nil for bytes that are not UTF-8.
  public init?(purgeableBytes: RawSpan) {
    // Safe: the bytes are valid for the length of the closure, and copied in it.
    guard let text = unsafe purgeableBytes.withUnsafeBytes({ bytes in unsafe String(validating: bytes, as: UTF8.self) })
    else { return nil }
    self = text
  }

  /// As `init(purgeableBytes:)`, in the string's own storage: no copy.
  public init?(purgeableByteCount byteCount: Int, read: (UnsafeMutableRawBufferPointer) -> Int?) {
    var isValid = false
    unsafe self.init(unsafeUninitializedCapacity: byteCount) { buffer in
      // Safe: the buffer has room for `byteCount` bytes, and as many are initialised as `read` says.
      guard let count = unsafe read(UnsafeMutableRawBufferPointer(rebasing: UnsafeMutableRawBufferPointer(buffer)[..<byteCount])),
        unsafe (try? UTF8Span(validating: UnsafeBufferPointer(rebasing: buffer[..<count]).span)) != nil
      else { return 0 }
      isValid = true
      return count
    }
    if !isValid { return nil }
  }

  /// Lends the UTF-8 bytes: no copy where the string is contiguous UTF-8 already.
  public func withPurgeableBytes<R, E: Error>(_ body: (RawSpan) throws(E) -> R) throws(E) -> R {
    var text = self
    text.makeContiguousUTF8()
    return unsafe try body(text.utf8Span.span.bytes)
  }
}
