// SPDX-License-Identifier: MIT
// What a program can ask for now: trimming, sweeping, offering, numbers.

import CPurgeable

/// A cache in numbers. Bytes by state as the core counts them; counters since the cache was made.
public struct CacheStatistics: Sendable, Hashable {
  public var name: String
  public var count: Int
  public var totalCost: UInt64
  public var hits: UInt64
  public var misses: UInt64
  /// Misses by reason; those counted while a shard was busy are in `misses` alone.
  public var missesByReason: [MissReason: UInt64]
  public var insertions: UInt64
  public var replacements: UInt64
  /// Entries that left, by reason.
  public var departures: [DepartureReason: UInt64]
  /// Entries copied to a fresh slab by the policy.
  public var copies: UInt64
  /// Stores refused: too large, or no memory.
  public var refusals: UInt64
  /// Keys and values of living entries, less what is known to be lost.
  public var payloadBytes: Int
  public var lockedBytes: Int
  /// On offer: the kernel may take them.
  public var offeredBytes: Int
  /// In memory now.
  public var residentBytes: Int
  /// Of the held: known to be gone.
  public var discardedBytes: Int
  /// Payload that was found gone, since the cache was made.
  public var discardedPayloadBytes: UInt64
  /// Slab bytes held, gone or not.
  public var heldBytes: Int
  /// Bookkeeping: index, ghosts, sums, directories, key tables.
  public var ordinaryBytes: Int
  /// Slabs given back to the system.
  public var slabsGivenBack: UInt64
  /// Offers that the kernel refused.
  public var refusedOffers: UInt64
  /// The same bytes, and what became of them, in the words that regions and heaps share.
  public var memory: MemoryUse
  /// The level of memory pressure that the cache acts by.
  public var pressure: PressureLevel
}

extension PurgeableCache {
  /// The cache in numbers. Cost: a walk over the slabs, and a mincore for each chunk of 64 MiB.
  public var statistics: CacheStatistics {
    engine.statistics(name: name)
  }

  /// Evicts by policy until at most `count` entries are left.
  public func trim(toCount count: Int) { engine.trim(toCount: max(0, count)) }

  /// Evicts by policy until costs add up to at most `cost`.
  public func trim(toCost cost: UInt64) { engine.trim(toCost: cost) }

  /// Gives memory back until at most `byteCount` bytes are held, bookkeeping included: first what is lost or empty, then by policy,
  /// slab by slab.
  public func trim(toBytes byteCount: Int) { engine.trim(toBytes: max(0, byteCount)) }

  /// Gives memory back until at most this share of what is held now is left; 0 is nothing, 1 is all of it.
  public func trim(toFraction fraction: Double) {
    let share = fraction.isNaN ? 1 : min(1, max(0, fraction))
    engine.trim(toBytes: Int(Double(byteCount) * share))
  }

  /// Finds out which pages the kernel took, and drops the entries that were on them. Returns how many. The library does this by
  /// itself when memory is short and before the index grows. Cost: 1 ms per GiB on offer and some nanoseconds an entry.
  @discardableResult
  public func sweep() -> Int { engine.sweep() }

  /// Offers what is idle now, instead of within a second. Returns how many bytes.
  @discardableResult
  public func offerIdle() -> Int { engine.offerIdle() }
}

extension CacheEngine {
  func statistics(name: String) -> CacheStatistics {
    var heapNumbers = purgeable_heap_statistics_t()
    _ = unsafe purgeable_heap_statistics(heap.raw, &heapNumbers)
    var result = CacheStatistics(
      name: name, count: max(0, totalCount.load(ordering: .relaxed)),
      totalCost: UInt64(clamping: totalCost.withLock { $0 }), hits: 0, misses: 0, missesByReason: [:], insertions: 0,
      replacements: 0, departures: [:], copies: 0, refusals: 0, payloadBytes: Int(heapNumbers.payload_bytes),
      lockedBytes: Int(heapNumbers.locked_bytes), offeredBytes: Int(heapNumbers.offered_bytes),
      residentBytes: Int(heapNumbers.resident_bytes), discardedBytes: Int(heapNumbers.discarded_bytes),
      discardedPayloadBytes: heapNumbers.discarded_payload_bytes,
      heldBytes: Int(heapNumbers.held_bytes), ordinaryBytes: ordinaryBytes, slabsGivenBack: heapNumbers.given_back_count,
      refusedOffers: heapNumbers.refused_offer_count, memory: HeapStatistics(heapNumbers).memory,
      pressure: PressureLevel(rawValue: pressure.load(ordering: .relaxed)) ?? .none)
    result.memory.ordinary = UInt64(result.ordinaryBytes)
    for shard in shards {
      let counters = withState(shard) { $0.counters }
      result.hits += shard.index.hitCount
      result.misses += shard.index.missCount
      result.insertions += counters.insertions
      result.replacements += counters.replacements
      result.copies += counters.copies
      result.refusals += counters.refusals
      for reason in MissReason.allCases { result.missesByReason[reason, default: 0] += counters.misses[reason.rawValue] }
      for reason in DepartureReason.allCases {
        result.departures[reason, default: 0] += counters.departures[reason.rawValue]
      }
    }
    return result
  }
}
