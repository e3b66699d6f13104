// SPDX-License-Identifier: MIT
// The memory of regions, one by one and all together.

import CPurgeable

extension PurgeableRegion {
  /// Bytes of this region that are in memory now, in whole pages. A page that was discarded and read since counts as well.
  ///
  /// - Throws: `PurgeableError`: a failed system call.
  /// - Complexity: one system call (mincore), about 1 ns a page.
  public borrowing func residentBytes() throws(PurgeableError) -> Int {
    var count = 0
    try PurgeableError.check(
      unsafe purgeable_region_resident_bytes(handle, &count), in: "PurgeableRegion.residentBytes", call: "mincore")
    return count
  }

  /// Bytes of this region on offer to the kernel and not rescued since, in whole pages; 0 once it is known to be discarded. Pages
  /// of zeros do not count (they are given back at once), nor does what the kernel refused.
  public var offeredBytes: Int { unsafe purgeable_region_offered_bytes(handle) }

  /// All regions of this process together.
  public static var statistics: RegionStatistics {
    var statistics = purgeable_region_statistics_t()
    _ = unsafe purgeable_region_statistics(&statistics)  // fails only for NULL
    return RegionStatistics(statistics)
  }

  /// The most bytes of regions that may be locked at a time in this process, `nil` for no limit. Above it an idle region is not
  /// locked: `withBytes` answers `nil`, `PurgeableData.beginContentAccess()` false, while `isDiscarded` stays false and reads
  /// without lock still work. A region is born locked whatever the limit is. With N threads the excess is at most N regions.
  ///
  /// - Throws: `PurgeableError` of kind `invalidArgument` for a negative limit; the limit stays as it was then.
  public static func setLockedByteLimit(_ limit: Int?) throws(PurgeableError) {
    if let limit, limit < 0 {
      throw PurgeableError(
        .invalidArgument("limit"), in: "PurgeableRegion.setLockedByteLimit",
        explanation: "a limit is nil or at least 0, not \(limit)")
    }
    // The core's 0 means no limit. A limit of one byte allows no lock either.
    purgeable_region_set_locked_byte_limit(limit.map { UInt64(max(1, $0)) } ?? 0)
  }

  /// Offers every idle region that waits for it, neighbours merged, and again what is on offer and due: the kernel passes over
  /// pages that wait in another processor's batch. The library's thread does this; programs that run without it
  /// call it themselves. Any thread.
  ///
  /// - Returns: how many bytes are newly on offer.
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
  /// The regions' bytes by state, in the words that heaps and caches share.
  public let memory: MemoryUse
  /// How many regions there are.
  public let regionCount: Int
  /// How many regions wait for `PurgeableRegion.offerPending()`.
  public let pendingCount: Int
  /// Discards by the kernel that were found, since the process began.
  public let kernelDiscardCount: Int
  /// Discards the program asked for, since the process began.
  public let ownDiscardCount: Int
  /// Unlocks without a lock, since the process began.
  public let unbalancedUnlockCount: Int
  /// Offers the kernel refused, since the process began.
  public let refusedOfferCount: Int
  /// Fills given up, since the process began.
  public let abandonedFillCount: Int

  init(_ core: purgeable_region_statistics_t) {
    memory = MemoryUse(core.memory, residentBytes: nil)
    regionCount = Int(core.region_count)
    pendingCount = Int(core.pending_count)
    kernelDiscardCount = Int(core.kernel_discard_count)
    ownDiscardCount = Int(core.own_discard_count)
    unbalancedUnlockCount = Int(core.unbalanced_unlock_count)
    refusedOfferCount = Int(core.refused_offer_count)
    abandonedFillCount = Int(core.abandoned_fill_count)
  }
}
