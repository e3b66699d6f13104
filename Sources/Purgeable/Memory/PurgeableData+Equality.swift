// SPDX-License-Identifier: MIT
// Comparing by content, and why that does not make a key.

extension PurgeableData: Equatable {
  /// Whether the two are the same object, or the contents of both are there and equal, byte for byte.
  ///
  /// Names, counters, offering and closures are not compared. Two objects are unequal where the content of either is discarded
  /// and could not be recreated; an object is always equal to itself, discarded or not.
  ///
  /// Begins and ends an access to both, so nobody needs to hold one, and recreates as `beginContentAccess()` does. May be called
  /// from any thread and within `withBytes`. Within a `withMutableBytes` of one of two different objects it stops the program.
  ///
  /// - Complexity: one pass over the bytes where the lengths are equal, without a copy; and that of two `withBytes`.
  public static func == (left: PurgeableData, right: PurgeableData) -> Bool {
    left === right || left.withBytes { one in right.withBytes { other in one.hasSameBytes(as: other) } == true } == true
  }
}

// Hashable means equal hashes for as long as an object is a key, and content changes and goes. Without this conformance the
// compiler says only that there is none, and a program could declare its own. With it the compiler gives the reason:
//
//     Set<PurgeableData>()      // error: conformance of 'PurgeableData' to 'Hashable' is unavailable: its content changes ...
@available(
  *, unavailable,
  message: "its content changes and may be discarded, so it cannot be a key: use ObjectIdentifier(data), or a name of yours"
)
extension PurgeableData: Hashable {
  /// Not available, and stops the program. A cast from `Any` to `AnyHashable`, and a `Hashable` that the compiler derives for a
  /// type with a `PurgeableData` in it, get past the compiler's check and end here.
  public func hash(into hasher: inout Hasher) {
    stop("\(title): hashed as a key, but its content changes and may be discarded: use its ObjectIdentifier, or a name")
  }
}
