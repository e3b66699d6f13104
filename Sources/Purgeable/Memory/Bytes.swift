// SPDX-License-Identifier: MIT
// Spans and raw memory: the few conversions that everything here is built from.

import Glibc

extension Array where Element == UInt8 {
  /// Copies the bytes of a span, so that they outlive the access that lent it.
  public init(copying span: RawSpan) {
    unsafe self.init(unsafeUninitializedCapacity: span.byteCount) { buffer, count in
      // Safe: the buffer has room for exactly the span's bytes, and both are valid for the length of this closure.
      unsafe span.withUnsafeBytes { bytes in
        unsafe UnsafeMutableRawBufferPointer(buffer).copyMemory(from: bytes)
      }
      count = span.byteCount
    }
  }
}

extension RawSpan {
  /// The integer that lies there; stops the program beyond the span's end.
  @inline(__always)
  func integer<T: FixedWidthInteger & BitwiseCopyable>(at offset: Int) -> T {
    // Safe: in bounds, which is checked, and any bytes are an integer.
    unsafe unsafeLoadUnaligned(fromByteOffset: offset, as: T.self)
  }

  /// Whether the first bytes are those of a prefix.
  @inline(__always)
  func starts(with prefix: RawSpan) -> Bool {
    byteCount >= prefix.byteCount && extracting(0..<prefix.byteCount).hasSameBytes(as: prefix)
  }

  /// Adds the bytes to a hash, and nothing else.
  @inline(__always)
  func hash(into hasher: inout Hasher) { unsafe withUnsafeBytes { unsafe hasher.combine(bytes: $0) } }

  /// Copies all bytes; stops the program where there is no room behind `offset`.
  @inline(__always)
  func copy(to buffer: UnsafeMutableRawBufferPointer, at offset: Int) {
    if byteCount == 0 { return }
    unsafe withUnsafeBytes { unsafe UnsafeMutableRawBufferPointer(rebasing: buffer[offset...]).copyMemory(from: $0) }
  }

  /// Whether the lengths and all bytes are equal.
  func hasSameBytes(as other: RawSpan) -> Bool {
    guard byteCount == other.byteCount else { return false }
    guard byteCount > 0 else { return true }
    // Safe: both are valid for the length of the closures, neither is empty, and the lengths are equal.
    return unsafe withUnsafeBytes { one in
      unsafe other.withUnsafeBytes { two in unsafe memcmp(one.baseAddress!, two.baseAddress!, one.count) == 0 }
    }
  }
}

/// Copies the whole of a span to the front of a larger or equal one; stops the program where it does not fit.
func copy(_ source: RawSpan, to target: inout MutableRawSpan) {
  // Safe: both are valid for the length of the closures, and the counts are compared.
  unsafe target.withUnsafeMutableBytes { to in
    unsafe source.withUnsafeBytes { from in
      if from.count > to.count { stop("copy of \(from.count) bytes into \(to.count)") }
      unsafe to.copyMemory(from: from)
    }
  }
}

/// Lends the bytes of a collection as a span; copies them first where they are not contiguous, if there is memory for a long
/// copy.
func withRawSpan(
  of bytes: some Collection<UInt8>, _ body: (RawSpan) throws(PurgeableError) -> Void
) throws(PurgeableError) {
  let outcome = bytes.withContiguousStorageIfAvailable { buffer in
    Result { () throws(PurgeableError) in
      // Safe: the storage is valid for the length of this closure, bytes have no padding, and the span cannot leave `body`.
      try unsafe body(UnsafeRawBufferPointer(buffer).bytes)
    }
  }
  if let outcome { return try outcome.get() }
  let count = bytes.count
  guard count < MemoryReserve.ofLargeResults || MemoryReserve.isThere(count) else {
    throw PurgeableError.withoutMemory(in: "a copy of \(count) bytes of a collection")
  }
  let copy = Array(bytes)
  // Safe: as above; the copy lives until `body` returns.
  try unsafe body(copy.span.bytes)
}
