// SPDX-License-Identifier: MIT
// Which entry a cache of bytes evicts first: the choices.

/// Which entry a cache of bytes evicts first. What the kernel takes is the kernel's choice in either order.
public enum EvictionOrder: Sendable, Hashable, CaseIterable {
  /// S3-FIFO: entries that were used once go before those that were used again, so a scan through many keys does not empty the
  /// cache. A hit takes no mutex. The default, and on most loads the one that hits more often.
  case s3FIFO
  /// Exactly the least recently used entry first: by limits, under pressure and by trims. Hits and stores are uses, peeks are
  /// not. One shard, whose mutex each hit takes for a moment; about 12 bytes more an entry. Memory goes back by whole slabs, so
  /// with a byte limit a quarter of it may be holes.
  case lru
}
