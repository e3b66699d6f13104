// SPDX-License-Identifier: MIT
// Discards on demand: for tests of what a program does when the kernel has taken something, and for demonstrations.

import CPurgeable

/// The position from which discards on demand go on: calls with the same hand take a cache's slabs in turn.
package struct PageOutHand: Sendable {
  fileprivate var unit: UInt32 = 0

  package init() {}
}

extension PurgeableCache {
  /// Has the kernel take now all that is idle, as it would if memory were short: for tests of what a program does then. Offers
  /// first. Returns how many bytes the kernel took; what is in use elsewhere or was read a moment ago may stay. The entries that
  /// were lost are found out as after any discard. Any thread; three system calls for each slab.
  ///
  /// ```swift
  /// let cache = try PurgeableCache<String, [UInt8]>()
  /// cache["cat"] = [1, 2, 3]
  /// try cache.pageOut()
  /// if cache["cat"] == nil { print("the program has to make it again") }
  /// ```
  ///
  /// - Throws: `PurgeableError` of kind `notSupported` on a kernel without MADV_PAGEOUT (before 5.4), or `outOfMemory`.
  @discardableResult
  public func pageOut() throws(PurgeableError) -> Int {
    // Twice: an offer passes over pages that wait in another processor's batch.
    offerIdle()
    offerIdle()
    var hand = PageOutHand()
    return try pageOut(hand: &hand)
  }

  /// Has the kernel discard `byteCount` bytes or a little more of what is on offer now (MADV_PAGEOUT), as shortage would. Returns
  /// how many it took. The lost entries are found as after any discard. Throws as `pageOut()`.
  @discardableResult
  package func pageOut(_ byteCount: Int = .max, hand: inout PageOutHand) throws(PurgeableError) -> Int {
    var discarded = 0
    let status = unsafe purgeable_heap_page_out(engine.heap.raw, max(0, byteCount), &hand.unit, &discarded)
    if status == Status.invalid {
      throw PurgeableError(
        .notSupported, in: "PurgeableCache '\(name)'.pageOut", errorNumber: status,
        explanation: "this kernel does not page out on demand")
    }
    try PurgeableError.check(status, in: "PurgeableCache '\(name)'.pageOut")
    return discarded
  }
}
