// SPDX-License-Identifier: MIT
// Discards on demand, for demonstrations and tests: no program needs them.

import CPurgeable

/// Where discards on demand go on: calls with the same hand take a cache's slabs in turn.
package struct PageOutHand: Sendable {
  fileprivate var unit: UInt32 = 0

  package init() {}
}

extension PurgeableCache {
  /// Has the kernel discard `byteCount` bytes or a little more of what is on offer now (MADV_PAGEOUT), as shortage would. Returns
  /// how many it took. The entries that were lost are found out as after any discard.
  ///
  /// - Throws: `PurgeableError` of kind `notSupported` on a kernel without MADV_PAGEOUT (before 5.4), or `outOfMemory`.
  @discardableResult
  package func pageOut(_ byteCount: Int = .max, hand: inout PageOutHand) throws(PurgeableError) -> Int {
    var discarded = 0
    let status = unsafe purgeable_heap_page_out(engine.heap.raw, max(0, byteCount), &hand.unit, &discarded)
    if status == Status.invalid {
      throw PurgeableError(
        .notSupported, in: "PurgeableCache.pageOut(\(name))", errorNumber: status,
        explanation: "this kernel does not page out on demand")
    }
    try PurgeableError.check(status, in: "PurgeableCache.pageOut(\(name))")
    return discarded
  }
}
