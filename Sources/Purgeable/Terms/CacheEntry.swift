// SPDX-License-Identifier: MIT
// An entry as enumerations and peeks of a cache of either kind tell it.

/// An entry as it was at one moment.
public struct CacheEntry<Key: Hashable & Sendable, Value: Sendable>: Sendable {
  /// The entry's key.
  public let key: Key
  /// The value that was stored last: in a cache of bytes a copy.
  public let value: Value
  /// Its cost: the one that was given with it or, where none was, the one that the cache counts.
  public let cost: Int
  /// Until its time is over (`Expiry`); nil: it has no end.
  public let remainingTime: Duration?
  /// What making the value again takes: given with it, or the time of its load; nil: unknown.
  public let recomputeCost: Duration?
  /// What it is worth to the program beside others.
  public let priority: EntryPriority
  /// The version that was given with it; nil: none.
  public let version: String?

  @inlinable
  init(key: Key, value: Value, _ notes: EntryNotes) {
    (self.key, self.value, cost) = (key, value, notes.cost)
    (remainingTime, recomputeCost) = (notes.remainingTime, notes.recomputeCost)
    (priority, version) = (notes.priority, notes.version)
  }
}

extension CacheEntry: Equatable where Value: Equatable {}
extension CacheEntry: Hashable where Value: Hashable {}

/// What is known of an entry beside key and value.
@usableFromInline
struct EntryNotes {
  @usableFromInline var cost = 0
  @usableFromInline var remainingTime: Duration?
  @usableFromInline var recomputeCost: Duration?
  @usableFromInline var priority = EntryPriority.normal
  @usableFromInline var version: String?

  @usableFromInline
  init(
    cost: Int = 0, remainingTime: Duration? = nil, recomputeCost: Duration? = nil, priority: EntryPriority = .normal,
    version: String? = nil
  ) {
    (self.cost, self.remainingTime, self.recomputeCost) = (cost, remainingTime, recomputeCost)
    (self.priority, self.version) = (priority, version)
  }
}
