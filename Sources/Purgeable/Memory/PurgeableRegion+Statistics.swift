// SPDX-License-Identifier: MIT
// What regions hold, one by one and all together.

import CPurgeable

extension PurgeableRegion {
  /// Bytes of this region that are in memory now, in whole pages. A page that was discarded and read since counts as well.
  ///
  /// - Throws: `PurgeableError`: a failed system call.
  /// - Complexity: one system call (mincore), about 1 ns a page.
  public borrowing func residentByteCount() throws(PurgeableError) -> Int {
    var count = 0
    try PurgeableError.check(
      unsafe purgeable_region_resident(handle, &count), in: "PurgeableRegion.residentByteCount", call: "mincore")
    return count
  }

  /// Bytes of this region on offer to the kernel and not rescued since, in whole pages; 0 once it is known to be discarded.
  public var offeredByteCount: Int { unsafe purgeable_region_offered_bytes(handle) }

  /// All regions of this process together.
  public static var statistics: RegionStatistics {
    var statistics = purgeable_region_statistics_t()
    _ = unsafe purgeable_region_statistics(&statistics)  // fails only for NULL
    return RegionStatistics(statistics)
  }

  /// The most bytes of regions that may be locked at a time in this process, `nil` for no limit. Above it an idle region is not
  /// locked: `withBytes` answers `nil`, `PurgeableData.beginContentAccess()` false, while `isDiscarded` stays false and reads
  /// without lock still work. A region is born locked whatever the limit is. With N threads the excess is at most N regions.
  public static func setLockedByteLimit(_ byteCount: Int?) {
    // The core's 0 is no limit: none at all may be locked is as good as a byte.
    purgeable_region_set_locked_limit(byteCount.map { UInt64(max(1, $0)) } ?? 0)
  }

  /// Offers every idle region that waits for it, neighbours merged. The library's thread does this; programs that run without it
  /// call it themselves. Any thread.
  ///
  /// - Returns: how many bytes were put on offer.
  /// - Throws: `PurgeableError`: the first failure; the rest was offered none the less.
  /// - Complexity: a system call (MADV_FREE) for each run of neighbours, of at most 2 MiB.
  @discardableResult
  public static func offerPending() throws(PurgeableError) -> Int {
    var count = 0
    try PurgeableError.check(unsafe purgeable_offer_pending(&count), in: "PurgeableRegion.offerPending")
    return count
  }
}

/// All regions of this process together, those inside of `PurgeableData` included. Bytes in whole pages.
public struct RegionStatistics: Sendable, Hashable {
  /// How many regions there are.
  public let regionCount: UInt64
  /// The memory they stand for, in bytes.
  public let byteCount: UInt64
  /// Of that: locked now.
  public let lockedByteCount: UInt64
  /// Of that: on offer to the kernel.
  public let offeredByteCount: UInt64
  /// Of that: known to be discarded.
  public let discardedByteCount: UInt64
  /// How many regions wait for `PurgeableRegion.offerPending()`.
  public let pendingCount: UInt64
  /// Discards by the kernel that were found, since the process began.
  public let kernelDiscardCount: UInt64
  /// Discards the program asked for, since the process began.
  public let ownDiscardCount: UInt64
  /// What those two add up to, in bytes.
  public let kernelDiscardByteCount: UInt64
  public let ownDiscardByteCount: UInt64
  /// Unlocks without a lock, since the process began.
  public let unbalancedUnlockCount: UInt64
  /// Offers the kernel refused, since the process began.
  public let refusedOfferCount: UInt64
  /// Locks refused for their limit, since the process began.
  public let refusedLockCount: UInt64

  init(_ core: purgeable_region_statistics_t) {
    regionCount = core.region_count
    byteCount = core.region_bytes
    lockedByteCount = core.locked_bytes
    offeredByteCount = core.offered_bytes
    discardedByteCount = core.discarded_bytes
    pendingCount = core.pending_count
    kernelDiscardCount = core.kernel_discard_count
    ownDiscardCount = core.own_discard_count
    kernelDiscardByteCount = core.kernel_discard_bytes
    ownDiscardByteCount = core.own_discard_bytes
    refusedLockCount = core.refused_lock_count
    unbalancedUnlockCount = core.unbalanced_unlock_count
    refusedOfferCount = core.refused_offer_count
  }
}
