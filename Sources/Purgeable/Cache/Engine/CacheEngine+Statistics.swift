// SPDX-License-Identifier: MIT
// A cache of bytes in numbers.

import CPurgeable
import Synchronization

extension CacheEngine {
  func statistics(name: String) -> CacheStatistics {
    var heapNumbers = purgeable_heap_statistics_t()
    _ = unsafe purgeable_heap_statistics(heap.raw, &heapNumbers)
    var memory = MemoryUse(heapNumbers.memory, residentBytes: Int(heapNumbers.memory.resident_bytes))
    memory.ordinaryBytes = base.ordinaryBytes
    var result = CacheStatistics(
      name: name, memory: memory, count: max(0, base.count),
      totalCost: Int(clamping: base.totalCost), waitingDepartureCount: base.observer?.waitingCount ?? 0,
      notKeptValueCount: Int(base.observer?.notKeptCount ?? 0), givenBackSlabCount: Int(heapNumbers.given_back_slab_count),
      refusedOfferCount: Int(heapNumbers.refused_offer_count),
      pressure: PressureLevel(rawValue: base.limits.pressure.load(ordering: .relaxed)) ?? .normal)
    result.coreBytes = min(base.totals.coreBytes.load(ordering: .relaxed), base.heldBytes)
    result.pinnedBytes = max(0, base.totals.pinnedBytes.load(ordering: .relaxed))
    if let limit = base.limits.limitInForce() { (result.limitInForce, result.limitReason) = (limit.byteCount, limit.reason) }
    // Swift's runtime ends the program when it gets no memory for a dictionary.
    let hasRoom = MemoryReserve.isThere(MemoryReserve.ofNews)
    for shard in shards.all {
      let counters = shards.hold(shard) { $0.counters }
      result.hitCount += Int(shard.index.hitCount)
      result.missCount += Int(shard.index.missCount)
      result.insertionCount += Int(counters.insertions)
      result.replacementCount += Int(counters.replacements)
      result.copyCount += Int(counters.copies)
      result.refusalCount += Int(counters.refusals)
      guard hasRoom else { continue }
      result.missesByReason[.unknown, default: 0] += Int(shard.index.unknownMissCount)
      for reason in MissReason.allCases {
        result.missesByReason[reason, default: 0] += Int(counters.misses[reason.rawValue])
      }
      for reason in DepartureReason.allCases {
        result.departures[reason, default: 0] += Int(counters.departures[reason.rawValue])
      }
    }
    // The indexes count them as hits. The counters are not read at one moment, hence the minimum.
    let undecodable = min(result.hitCount, Int(undecodableCount.load(ordering: .relaxed)))
    result.hitCount -= undecodable
    result.missCount += undecodable
    if hasRoom { result.missesByReason[.undecodable, default: 0] += undecodable }
    return result
  }

  /// Another number after each store, each change of a priority and each departure; 0 where nothing was ever stored.
  var changeCount: Int {
    let count = shards.all.reduce(UInt64(0)) { sum, shard in
      let counters = shards.hold(shard) { $0.counters }
      var count = sum &+ counters.insertions &+ counters.replacements &+ counters.priorities
      for reason in DepartureReason.allCases { count &+= counters.departures[reason.rawValue] }
      return count
    }
    return Int(truncatingIfNeeded: count)
  }
}
