// SPDX-License-Identifier: MIT
// A heap's bytes by state, as a value.

import CPurgeable

/// A heap's bytes by state, and what happened to it since it was made.
public struct HeapStatistics: Sendable, Hashable {
  /// How many elements live, discarded ones included.
  public let elementCount: UInt64
  /// Payload of living elements in bytes, less what is known to be lost.
  public let payloadByteCount: UInt64
  /// Payload of locked elements, each lock counted, and of those being written.
  public let lockedByteCount: UInt64
  /// Slab bytes held: written in this life, in whole pages, gone or not.
  public let heldByteCount: UInt64
  /// Of the held: on offer to the kernel and not known to be gone.
  public let offeredByteCount: UInt64
  /// Of the held: known to be gone.
  public let discardedByteCount: UInt64
  /// Slab bytes that are in memory now.
  public let residentByteCount: UInt64
  /// Bookkeeping in ordinary memory.
  public let ordinaryByteCount: UInt64
  /// Address space taken.
  public let mappedByteCount: UInt64
  /// How many slabs there are.
  public let slabCount: UInt64
  /// Payload found discarded so far, in bytes.
  public let discardedPayloadByteCount: UInt64
  /// Slabs given back so far, and their bytes.
  public let givenBackCount: UInt64
  public let givenBackByteCount: UInt64
  /// Elements copied to a new place so far.
  public let movedCount: UInt64
  /// Unlocks without a lock so far: errors of whoever uses the C functions on this heap.
  public let unbalancedUnlockCount: UInt64
  /// Locks refused so far for their limit.
  public let refusedLockCount: UInt64
  /// Offers the kernel refused so far.
  public let refusedOfferCount: UInt64

  init(_ core: purgeable_heap_statistics_t) {
    elementCount = core.element_count
    payloadByteCount = core.payload_bytes
    lockedByteCount = core.locked_bytes
    heldByteCount = core.held_bytes
    offeredByteCount = core.offered_bytes
    discardedByteCount = core.discarded_bytes
    residentByteCount = core.resident_bytes
    ordinaryByteCount = core.ordinary_bytes
    mappedByteCount = core.mapped_bytes
    slabCount = core.slab_count
    discardedPayloadByteCount = core.discarded_payload_bytes
    givenBackCount = core.given_back_count
    givenBackByteCount = core.given_back_bytes
    refusedLockCount = core.refused_lock_count
    movedCount = core.moved_count
    unbalancedUnlockCount = core.unbalanced_unlock_count
    refusedOfferCount = core.refused_offer_count
  }
}
