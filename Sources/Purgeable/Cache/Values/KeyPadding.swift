// SPDX-License-Identifier: MIT
// Whether the memory of a trivially copyable key is the key, all of it and nothing else.

@_spi(Reflection) import Swift

enum KeyPadding {
  /// Whether two equal keys of a type may differ in memory, as far as the type tells: by padding between members, or by members
  /// that have several forms of one value. False for types that are not trivially copyable, which write their bytes themselves.
  static func isPossible<Key>(in key: Key.Type) -> Bool { _isPOD(key) && !isDense(key) }

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
