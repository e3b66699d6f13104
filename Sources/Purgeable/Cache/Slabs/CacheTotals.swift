// SPDX-License-Identifier: MIT
// Bytes that all shards of a cache count together.

import Synchronization

/// The totals of all shards of a cache, but for those that each shard publishes by itself (`SlotIndex.publish`).
final class CacheTotals: Sendable {
  /// Bytes of ghosts, for the byte limit.
  let ghostBytes = Atomic<Int>(0)
  let indexBytes = Atomic<Int>(0)
  /// Payload bytes that evictions copied to fresh slabs.
  let copiedBytes = Atomic<Int>(0)
}
