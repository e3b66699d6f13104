// SPDX-License-Identifier: MIT
// What a handler is told of an entry that left.

/// Why a departure is told without the value.
public enum ValueAbsence: Sendable, Hashable {
  /// The kernel took a page of it.
  case discarded
  /// There was no copy of it: more values waited to be told than a cache may copy, or there was no memory for one
  /// (`PurgeableCache.init`).
  case notKept
  /// The type's `init(purgeableBytes:)` made no value of its bytes.
  case undecodable
}

/// An entry that left, as `onDeparture` is told.
public struct Departure<Key: Hashable & Sendable, Value: Sendable>: Sendable {
  /// The entry's key.
  public let key: Key
  /// The value, where it still exists; else `absence` says why not.
  public let value: Value?
  /// The cost that was given with the value, or the value's bytes.
  public let cost: Int
  /// Why it left.
  public let reason: DepartureReason
  /// Why there is no value; nil where there is one.
  public let absence: ValueAbsence?
  /// Whether it is an object that was stored again under its own key.
  package var isStoredAgain = false
}

extension Departure: Equatable where Value: Equatable {}
extension Departure: Hashable where Value: Hashable {}
