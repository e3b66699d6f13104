// SPDX-License-Identifier: MIT
// A heap's bytes by state, as a value.

import CPurgeable

/// A heap in numbers: its memory by state, and what happened to it since it was made.
public struct HeapStatistics: Sendable, Hashable {
  /// The heap's bytes by state, in the words that regions and caches share.
  public let memory: MemoryUse
  /// How many elements live, discarded ones included.
  public let elementCount: Int
  /// How many slabs there are.
  public let slabCount: Int
  /// Address space taken, in bytes.
  public let mappedBytes: Int
  /// Slabs that ended so far: given back to the system, or kept for a while to be filled again.
  public let givenBackSlabCount: Int
  /// Elements copied to a new place so far.
  public let movedElementCount: Int
  /// Unlocks without a lock so far: errors of whoever uses the C functions on this heap.
  public let unbalancedUnlockCount: Int
  /// Offers the kernel refused so far.
  public let refusedOfferCount: Int

  init(_ core: purgeable_heap_statistics_t) {
    memory = MemoryUse(core.memory, residentBytes: Int(core.memory.resident_bytes))
    elementCount = Int(core.element_count)
    slabCount = Int(core.slab_count)
    mappedBytes = Int(core.mapped_bytes)
    givenBackSlabCount = Int(core.given_back_slab_count)
    movedElementCount = Int(core.moved_element_count)
    unbalancedUnlockCount = Int(core.unbalanced_unlock_count)
    refusedOfferCount = Int(core.refused_offer_count)
  }
}
