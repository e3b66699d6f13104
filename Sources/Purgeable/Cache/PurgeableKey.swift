// SPDX-License-Identifier: MIT
// Keys: those that lie in elements as bytes, and those that are kept in a table.

/// A key with a byte encoding of its own, so that it can lie in purgeable memory beside its value.
///
/// Integers, `String` and `[UInt8]` have an encoding already and need no conformance; the module PurgeableFoundation has
/// conformances of `UUID`, `Data` and `URL`. Any other Hashable key works without this protocol: it is kept in ordinary memory,
/// where every entry costs as much as in a dictionary.
public protocol PurgeableKey: Hashable, Sendable {
  /// Lends bytes that are equal for equal keys and different for different ones. Any thread, under no mutex of this library.
  func withKeyBytes<R>(_ body: (RawSpan) -> R) -> R
}

/// How a cache's keys become bytes; decided once, when the cache is made.
enum KeyForm<Key: Hashable & Sendable>: Sendable {
  /// Integers: their own bytes.
  case integer
  case string
  case bytes
  case custom(@Sendable (Key, (RawSpan) -> Void) -> Void)
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
    } else if let type = Key.self as? any PurgeableKey.Type {
      self = Self.form(of: type)
    } else {
      self = .tracked
    }
  }

  /// Whether hash, equality and deinit of the keys are the standard library's, not user's code.
  static var isOfStandardLibrary: Bool { isInteger || Key.self == String.self || Key.self == [UInt8].self }

  /// Whether the keys are integers of the standard library, all of whose bytes count. Other types might have padding.
  private static var isInteger: Bool {
    let integers: [Any.Type] = [
      Int.self, Int8.self, Int16.self, Int32.self, Int64.self, Int128.self,
      UInt.self, UInt8.self, UInt16.self, UInt32.self, UInt64.self, UInt128.self,
    ]
    return integers.contains { $0 == Key.self }
  }

  private static func form<K: PurgeableKey>(of type: K.Type) -> Self {
    .custom { key, body in
      // Safe: K is Key, as the caller found out.
      unsafe unsafeBitCast(key, to: K.self).withKeyBytes(body)
    }
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
