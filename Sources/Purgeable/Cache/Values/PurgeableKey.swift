// SPDX-License-Identifier: MIT
// Keys: those that lie in elements as bytes, and those that are kept in a table.

@_spi(Reflection) import Swift

/// A key that lies in purgeable memory beside its value: the bytes that it has as a `PurgeableValue` are equal for equal keys and
/// different for different ones.
///
///     struct TileID: PurgeableKey, BitwiseCopyable { var level: Int32, column: Int32, row: Int32 }
///
/// No requirement of its own: the bytes also lead back to the key. Integers and `[UInt8]` need no conformance, nor does `String`
/// (strings that are equal may have different bytes, and the cache knows which); the module PurgeableFoundation has conformances
/// of `UUID`, `Data` and `URL`. Any other Hashable key works without this protocol: it is kept in ordinary memory, where every
/// entry costs as much as in a dictionary. So is a key whose memory may have padding, as that of `(Int8, Int32)` has, and one of
/// a floating-point number, which has two zeros: equal ones could have different bytes. Types that write equal values in
/// different ways, as JSON may, must not conform.
public protocol PurgeableKey: Hashable, PurgeableValue {}

/// How a cache's keys become bytes; decided once, when the cache is made.
@usableFromInline
enum KeyForm<Key: Hashable & Sendable>: Sendable {
  /// Integers: their own bytes.
  case integer
  case string
  case bytes
  case custom(lend: @Sendable (Key, (RawSpan) -> Void) -> Void, make: @Sendable (RawSpan) -> Key?)
  /// In a table in ordinary memory.
  case tracked

  init(tracking: Bool) {
    if tracking {
      self = .tracked
    } else if Self.isInteger {
      self = .integer
    } else if Key.self == String.self {
      self = .string
    } else if Key.self == [UInt8].self {
      self = .bytes
    } else if let type = Key.self as? any PurgeableKey.Type, !KeyPadding.isPossible(in: Key.self) {
      self = Self.form(of: type)
    } else {
      self = .tracked
    }
  }

  /// Whether hash, equality and deinit of the keys are the standard library's, not user's code.
  static var isOfStandardLibrary: Bool { isInteger || Key.self == String.self || Key.self == [UInt8].self }

  /// The integers of the standard library: all of their bytes count.
  static var integers: [Any.Type] {
    [
      Int.self, Int8.self, Int16.self, Int32.self, Int64.self, Int128.self,
      UInt.self, UInt8.self, UInt16.self, UInt32.self, UInt64.self, UInt128.self,
    ]
  }

  private static var isInteger: Bool { integers.contains { $0 == Key.self } }

  private static func form<K: PurgeableKey>(of type: K.Type) -> Self {
    // Safe: K is Key, as the caller found out.
    .custom(
      lend: { key, body in unsafe unsafeBitCast(key, to: K.self).withPurgeableBytes(body) },
      make: { span in K(purgeableBytes: span).map { unsafe unsafeBitCast($0, to: Key.self) } })
  }

  var layout: KeyLayout {
    switch self {
    case .integer: .fixed(MemoryLayout<Key>.size)
    case .string, .bytes, .custom, .tracked: .variable
    }
  }
}

extension String {
  /// The UTF-8 bytes of a string that is ASCII in its canonical form; nil otherwise.
  ///
  /// Three characters outside of ASCII are canonically equivalent to ASCII ones, so `==` takes them for the same: U+037E is ";",
  /// U+1FEF is "`", U+212A is "K". A string with any other character outside of ASCII is equal to no ASCII string.
  func asciiForm() -> String? {
    // Most strings know that they are ASCII; then no byte is looked at.
    if utf8Span.isKnownASCII || utf8.allSatisfy({ $0 < 128 }) { return self }
    var result = ""
    for scalar in unicodeScalars {
      switch scalar.value {
      case 0..<128: result.unicodeScalars.append(scalar)
      case 0x37E: result.append(";")
      case 0x1FEF: result.append("`")
      case 0x212A: result.append("K")
      default: return nil
      }
    }
    return result
  }
}

/// Whether the memory of a trivially copyable key is the key, all of it and nothing else.
package enum KeyPadding {
  /// Whether two equal keys of a type may differ in memory, as far as the type tells: by padding between members, or by members
  /// that have several forms of one value. False for types that are not trivially copyable, which write their bytes themselves.
  package static func isPossible<Key>(in key: Key.Type) -> Bool { _isPOD(key) && !isDense(key) }

  /// Whether each byte of a type belongs to an integer, a Bool, or an enum of a single byte.
  private static func isDense<T>(_ type: T.Type) -> Bool {
    if KeyForm<Never>.integers.contains(where: { $0 == type }) || type == Bool.self { return true }
    var end = 0
    var isDense = true
    let isKnown = unsafe _forEachField(of: type, options: []) { _, offset, member, _ in
      isDense = offset == end && Self.isDense(member)
      end = offset + byteCount(of: member)
      return isDense
    }
    guard isKnown, isDense else { return false }
    // No members: an enum, or a type of the compiler's own.
    return end == MemoryLayout<T>.size || end == 0 && MemoryLayout<T>.size == 1
  }

  private static func byteCount<T>(of type: T.Type) -> Int { MemoryLayout<T>.size }
}
