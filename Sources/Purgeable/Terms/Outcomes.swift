// SPDX-License-Identifier: MIT
// What a look-up and a store come to.

/// The result of a look-up.
public enum Lookup<Value: Sendable>: Sendable {
  /// The value, copied out of purgeable memory and checked.
  case hit(Value)
  /// There is no value, for this reason.
  case miss(MissReason)
}

extension Lookup: Equatable where Value: Equatable {}
extension Lookup: Hashable where Value: Hashable {}

/// The result of reading into a buffer.
public enum BufferRead: Sendable, Hashable {
  /// The value's bytes are at the beginning of the buffer: `byteCount` bytes.
  case hit(byteCount: Int)
  /// The value needs so many bytes; nothing was copied.
  case bufferTooSmall(needed: Int)
  /// There is no value, for this reason. The buffer's bytes are unspecified.
  case miss(MissReason)
}

/// The result of a store.
public enum StoreOutcome: Sendable, Hashable {
  /// Stored under a key that had no value.
  case stored
  /// Stored in place of another value.
  case replaced
  /// Larger than a whole limit: not stored, and the key's old value is gone.
  case tooLarge
  /// No memory for the value: not stored. The key's old value stays, unless it was the next to go and was evicted to make room.
  /// Also where the byte limit leaves no room beside what is pinned, or beside large values that other threads are storing: a
  /// value of 128 KiB and more waits for them, a second at most.
  case outOfMemory
  /// The value cannot be written as bytes (`PurgeableValue`), or its version has more than 255 bytes: not stored, and the key's
  /// old value stays. `onDeparture` is not called.
  case notEncodable
  /// Its time was over when it was stored, since it was 0 or less (`Expiry`): not stored, and the key's old value is gone.
  case expired
  /// It was to be pinned, and more would be pinned than `pinnedByteLimit` allows: not stored, and the key's old value stays.
  case pinnedByteLimit
}

extension StoreOutcome {
  package var isStored: Bool { self == .stored || self == .replaced }
}

extension Dictionary where Value: Sendable {
  /// Stores all, and returns what was refused.
  func refused(storing store: (Value, Key) -> StoreOutcome) -> [Key: StoreOutcome] {
    var refused: [Key: StoreOutcome] = [:]
    for (key, value) in self {
      let outcome = store(value, key)
      if !outcome.isStored { refused[key] = outcome }
    }
    return refused
  }
}

extension StoreOutcome: CustomStringConvertible {
  /// In a word or two.
  public var description: String {
    switch self {
    case .stored: "stored"
    case .replaced: "replaced"
    case .tooLarge: "too large"
    case .outOfMemory: "out of memory"
    case .notEncodable: "not encodable"
    case .expired: "expired"
    case .pinnedByteLimit: "pinned byte limit"
    }
  }
}
