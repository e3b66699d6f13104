// SPDX-License-Identifier: MIT
// Upkeep on demand: trimming, sweeping, offering, numbers (CacheStatistics.swift).

import CPurgeable

extension PurgeableCache {
  /// The cache in numbers; numbers by reason are empty when there is no memory for them. Any thread. Cost: a walk over the slabs,
  /// and a mincore for each chunk of 64 MiB.
  public var statistics: CacheStatistics {
    var statistics = engine.statistics(name: name)
    (statistics.countLimit, statistics.costLimit) = (countLimit, costLimit)
    loads.addNumbers(to: &statistics)
    return statistics
  }

  /// Evicts by policy until at most `count` entries are left. Entries that other threads store meanwhile may be left. Less than 0
  /// counts as 0.
  public func trim(toCount count: Int) { engine.trim(toCount: max(0, count)) }

  /// Evicts entries of a cost above 0 by policy until costs add up to at most `cost`. Entries that other threads store meanwhile
  /// may be left. Less than 0 counts as 0.
  public func trim(toCost cost: Int) { if cost < .max { engine.trim(toCost: UInt64(max(0, cost))) } }

  /// Gives memory back until at most `byteCount` bytes are held, bookkeeping included: first what is lost or empty, then by
  /// policy, slab by slab. Entries that other threads store meanwhile may be left. Less than 0 counts as 0.
  public func trim(toBytes byteCount: Int) { engine.trim(toBytes: max(0, byteCount)) }

  /// Gives memory back until at most this share of the bytes that are held now is left, as `trim(toBytes:)`; 0 is nothing, 1 is
  /// all of it. In whole slabs: a cache of one slab or two may lose all its entries. `trim(toCount:)` counts entries.
  public func trim(toFraction fraction: Double) {
    let share = fraction.isNaN ? 1 : min(1, max(0, fraction))
    engine.trim(toBytes: Int(Double(byteCount) * share))
  }

  /// Takes the steps that the library takes when memory is short: offers everything idle, drops what is lost, gives slabs back in
  /// the policy's order, makes bookkeeping smaller, and grows slowly for a minute. How much goes back depends on the level alone,
  /// not on how much memory is free: a sixteenth of what is held at `warning`, a quarter at `critical`, nothing at `normal`, in
  /// whole slabs (64 KiB; 16 with a byte limit below 4 MiB, 256 with one from a GiB on), of which a cache of three or fewer gives
  /// one when calls have come to a quarter of it. A slab goes with all its entries that were not used since they were stored, and
  /// with half of its bytes at least: a cache of one slab may lose all of them at `critical`, and none at the first `warning`.
  /// Returns the result. Giving back takes about a second for each GiB of values of a kilobyte, of which a fifth is copied; a
  /// call ends after 0.2 s.
  @discardableResult
  public func trim(level: PressureLevel) -> PressureRelief { engine.trim(level: level) }

  /// Finds out which pages the kernel took, and drops the entries that were on them. Returns how many. The library sweeps by
  /// itself when memory is short and before the index grows. Look-ups of what this call drops say `MissReason.discarded` as far
  /// as is remembered: most of them after a loss of most entries, in memory that the index gives back. Cost: 1 ms per GiB on
  /// offer and some nanoseconds an entry.
  @discardableResult
  public func sweep() -> Int { engine.sweep(remembers: true) }

  /// Offers what is idle now, instead of within a second. Returns how many bytes.
  @discardableResult
  public func offerIdle() -> Int { engine.offerIdle() }
}

// MARK: Discards on demand

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
