// SPDX-License-Identifier: MIT
// What a cache of either kind tells of its changes, at intervals.

/// What changed between two moments. What was set and then removed is only removed; what was removed and then set is only
/// updated.
public struct CacheChanges<Key: Hashable & Sendable>: Sendable, Hashable {
  /// Stored or replaced, also by an equal value. Ask the cache for the values. Where another thread dropped the key's entry
  /// just before it was stored again, the key may come once more, the next time.
  public let updatedKeys: Set<Key>
  /// Left, for whatever reason; what the kernel took or whose time is over when a look-up, a sweep, `removeExpired()` or the
  /// library has found it. An entry that stays without its content (`CacheOptions.evictsEntriesWithDiscardedContent`) has not
  /// left.
  public let removedKeys: Set<Key>

  var isEmpty: Bool { updatedKeys.isEmpty && removedKeys.isEmpty }
}
