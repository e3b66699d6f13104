// SPDX-License-Identifier: MIT
// The upkeep of a heap: offering, finding losses, giving back; and its bytes by state.

import CPurgeable

extension PurgeableHeap {
  /// Offers all idle slabs that are not on offer yet to the kernel, the oldest first. Slabs that an earlier call offered for the
  /// first time are offered once more, because the first offer skips pages that another thread has just filled: also in immediate
  /// mode.
  ///
  /// - Returns: how many bytes were put on offer.
  /// - Throws: `PurgeableError`: the first failure; the other slabs were offered all the same.
  /// - Complexity: a system call (MADV_FREE) for each run of neighbouring slabs.
  @discardableResult
  public borrowing func offerIdle() throws(PurgeableError) -> Int {
    var count = 0
    try PurgeableError.check(unsafe purgeable_heap_offer_idle(handle, &count), in: "PurgeableHeap.offerIdle")
    return count
  }

  /// Whether anything was stored, unlocked or freed that `offerIdle()` has not looked at. False: it would offer nothing.
  public var hasPending: Bool { unsafe purgeable_heap_has_pending(handle) }

  /// Finds out which pages on offer are gone and records it. The elements on them stay for their owners to free.
  ///
  /// - Returns: the bytes of pages newly found gone.
  /// - Throws: `PurgeableError`: out of memory, a failed system call.
  /// - Complexity: a system call (mincore) for each chunk; 1 ms per GiB on offer.
  @discardableResult
  public borrowing func sweep() throws(PurgeableError) -> Int {
    var count = 0
    try PurgeableError.check(unsafe purgeable_heap_sweep(handle, &count), in: "PurgeableHeap.sweep", call: "mincore")
    return count
  }

  /// Gives back memory without losing content: slabs in which nothing lives, and, in a heap made with `moved`, the room in
  /// slabs of the first stream that are less than half alive.
  ///
  /// - Returns: how many bytes went back to the system.
  /// - Throws: `PurgeableError`: out of memory.
  @discardableResult
  public borrowing func trim() throws(PurgeableError) -> Int {
    var count = 0
    try PurgeableError.check(unsafe purgeable_heap_trim(handle, &count), in: "PurgeableHeap.trim")
    return count
  }

  /// Changes the limit in bytes of slabs; `nil` for none. Nothing is freed: storing throws until enough is given back.
  ///
  /// - Throws: `PurgeableError`: invalid argument (0 or less).
  public borrowing func setByteLimit(_ limit: Int?) throws(PurgeableError) {
    if let limit, limit <= 0 {
      throw PurgeableError(
        .invalidArgument("limit"), in: "PurgeableHeap.setByteLimit",
        explanation: "a limit is above 0, not \(limit); nil is none")
    }
    try PurgeableError.check(
      unsafe purgeable_heap_set_byte_limit(handle, limit ?? 0), in: "PurgeableHeap.setByteLimit", argument: "limit")
  }

  /// The bytes of slabs that are held now, gone or not. Pages that are known to be gone do not count against the limit. One
  /// atomic load.
  public var heldBytes: Int { Int(unsafe purgeable_heap_held_bytes(handle)) }

  /// The heap's own bookkeeping in ordinary memory, in bytes, now. One atomic load.
  public var ordinaryBytes: Int { Int(unsafe purgeable_heap_ordinary_bytes(handle)) }

  /// The heap's bytes by state.
  ///
  /// - Throws: `PurgeableError`: out of memory, a failed system call.
  /// - Complexity: a walk over the slabs, and a system call (mincore) for each chunk.
  public borrowing func statistics() throws(PurgeableError) -> HeapStatistics {
    var statistics = purgeable_heap_statistics_t()
    try PurgeableError.check(
      unsafe purgeable_heap_statistics(handle, &statistics), in: "PurgeableHeap.statistics", call: "mincore")
    return HeapStatistics(statistics)
  }
}
