// SPDX-License-Identifier: MIT
// Trimming, sweeping, numbers.

import Synchronization

extension ObjectCache {
  /// Evicts the least recently used until at most `count` entries are left. Less than 0 counts as 0. Nobody is asked.
  public func trim(toCount count: Int) { store.trim(.trimmed) { store.count <= max(0, count) } }

  /// Evicts the least recently used entries of a cost above 0 until costs add up to at most `cost`. Less than 0 counts as 0.
  public func trim(toCost cost: Int) {
    if cost < .max { store.trim(.trimmed, onlyWithCost: true) { store.totalCost <= UInt128(max(0, cost)) } }
  }

  /// As `trim(toCost:)`, for costs that are bytes, as they are where there is a `byteLimit` or a `memoryShare`.
  public func trim(toBytes byteCount: Int) { trim(toCost: byteCount) }

  /// Evicts the least recently used until at most this share of the entries is left; 0 is nothing, 1 is all.
  public func trim(toFraction fraction: Double) {
    let share = fraction.isNaN ? 1 : min(1, max(0, fraction))
    trim(toCount: Int(Double(count) * share))
  }

  /// Gives back as the library does when memory is short, and grows slowly for a minute. Content that nobody uses is discarded
  /// first; where there is no more of it, entries go. In both cases the least recently used come first. A sixteenth of the
  /// entries is concerned at `warning`, a quarter at `critical`, none at `normal`; entries whose content was discarded before go
  /// beside them. Nobody is asked. Handlers are told `discarded` of entries that go with their content, and `trimmed` of others.
  /// Of the result, only times and lost entries have a meaning here: those whose content was discarded before. What this call
  /// takes out, handlers are told and `statistics.departures` counts; how many bytes objects take is not known. Few entries may
  /// be left for a minute: the slow growth begins at what is left, 16 entries at least.
  @discardableResult
  public func trim(level: PressureLevel) -> PressureRelief {
    let begin = MonotonicTime.now
    var relief = PressureRelief()
    let before = count
    if level != .normal { loads.forgetAbsent(endsKeys: true) }
    guard level != .normal, before > 0 else { return relief }
    relief.lostEntryCount = store.sweep()
    let slices = level == .critical ? PressureReaction.sliceShare / 4 : 1
    // What has expired goes first, and counts.
    let wanted = max(1, before * slices / PressureReaction.sliceShare) - store.dropExpired()
    let discarded = store.discardContents(wanted, asks: false)
    if discarded < wanted { trim(toCount: min(before, count) - (wanted - discarded)) }
    store.endRelief(before: before)
    relief.time = .nanoseconds(MonotonicTime.now - begin)
    return relief
  }

  /// Drops the entries whose content is discarded (`evictsEntriesWithDiscardedContent`). Returns how many. Cost: a question to
  /// each object that adopts `DiscardableContent`.
  @discardableResult
  public func sweep() -> Int { store.sweep() }

  /// The cache in numbers. Any thread. What is about pages is 0. The limit in force is the smaller of `byteLimit` and
  /// `memoryShare`, if any; without one, the reason alone says that the cache grows slowly, which it does by entries.
  public var statistics: CacheStatistics {
    var memory = MemoryUse()
    var result = CacheStatistics(
      name: name, memory: memory, count: count, totalCost: totalCost, waitingDepartureCount: 0, notKeptValueCount: 0,
      givenBackSlabCount: 0, refusedOfferCount: 0,
      pressure: PressureLevel(rawValue: store.pressure.load(ordering: .relaxed)) ?? .normal)
    (result.countLimit, result.costLimit) = (countLimit, costLimit)
    for at in 0..<ObjectGate.count {
      let (counters, byteCount) = store.hold(shard: at) { ($0.counters, $0.table.byteCount) }
      memory.ordinaryBytes += byteCount
      result.hitCount += counters.hits
      result.missCount += counters.misses
      result.insertionCount += counters.insertions
      result.replacementCount += counters.replacements
      result.refusalCount += counters.refusals
      result.missesByReason[.discarded, default: 0] += counters.discardedMisses
      if counters.expiredMisses > 0 { result.missesByReason[.expired, default: 0] += counters.expiredMisses }
      if counters.outdatedMisses > 0 { result.missesByReason[.outdated, default: 0] += counters.outdatedMisses }
      result.missesByReason[.unknown, default: 0] +=
        counters.misses - counters.discardedMisses - counters.expiredMisses - counters.outdatedMisses
      for reason in DepartureReason.allCases {
        result.departures[reason, default: 0] += counters.departures[reason.rawValue]
      }
    }
    memory.ordinaryBytes += loads.absentBytes.value
    result.memory = memory
    if let limit = store.byteLimitInForce {
      (result.limitInForce, result.limitReason) = limit
    } else if store.growthLimit != .max {
      result.limitReason = .growth(remaining: .nanoseconds(store.growth.remaining(now: store.clock.now())))
    }
    loads.addNumbers(to: &result)
    return result
  }
}
