// SPDX-License-Identifier: MIT
// Bytes that all shards of a cache count together.

import Synchronization

/// The totals of all shards of a cache, but for those that each shard publishes by itself (`SlotIndex.publish`).
final class CacheTotals: Sendable {
  /// Bytes of ghosts, for the byte limit.
  let ghostBytes = Atomic<Int>(0)
  let indexBytes = Atomic<Int>(0)
  /// Of keys that are remembered as absent (Loading/AbsentKeys.swift).
  let absentBytes: ByteCount?
  /// Payload bytes that evictions copied to fresh slabs.
  let copiedBytes = Atomic<Int>(0)
  /// Payload bytes of pinned entries, and of those that are about to be.
  let pinnedBytes = Atomic<Int>(0)
  /// What the last round kept off offer, and new slabs since then. What of it was given back since then is in it too.
  let coreBytes = Atomic<Int>(0)

  init(absentBytes: ByteCount?) { self.absentBytes = absentBytes }

  /// False where there is no room below the limit, `Int.max` for none.
  func reservePinned(_ byteCount: Int, limit: Int) -> Bool {
    let before = pinnedBytes.add(byteCount, ordering: .relaxed).oldValue
    if byteCount == 0 || before <= limit - min(limit, byteCount) && byteCount <= limit { return true }
    endReservation(byteCount)
    return false
  }

  /// Called when the entry is booked, or will not be.
  func endReservation(_ byteCount: Int) { if byteCount > 0 { pinnedBytes.subtract(byteCount, ordering: .relaxed) } }
}
