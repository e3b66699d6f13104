// SPDX-License-Identifier: MIT
// Upkeep: offering, sweeping, trimming. Called by the library's thread, and by programs that want it now.

import CPurgeable
import Synchronization

extension CacheEngine {
  /// Offers what is idle; returns how many bytes.
  @discardableResult
  func offerIdle() -> Int {
    let byteCount = heap.offerIdle()
    if heap.takeBusy() {
      for shard in shards.all { shards.hold(shard) { held in held.relieveReaders() } }
    }
    return byteCount
  }

  /// The work of the library's thread for a cache in each of its rounds.
  func upkeepRound() -> UInt64 {
    lazy.knownIntervals?.resume()
    let untilCore = reviewCore()
    offerIdle()
    if base.limits.budget.withLock({ $0.memoryShare }) != nil {
      base.limits.apply(to: heap)
      if !base.isAsking.load(ordering: .relaxed), base.isOverLimits { enforceByteLimit() }
    }
    var hasMoved = false
    while shards.goOnOpening() { hasMoved = true }
    // What moves to another shard lies in slabs of that one.
    if hasMoved, base.isOverByteLimit { enforceLimits() }
    // In this order: whoever lowers a limit at this moment enforces it before any shard closes.
    if shards.areTooMany, !base.isOverLimits { enforceLimits() }
    shards.reviewOpening()
    let untilDue = dropDueSlabs()
    guard let idle = base.limits.budget.withLock({ $0.idleNanoseconds }), base.count > 0
    else { return heap.hasPending ? 0 : min(untilCore, untilDue) }
    if base.clock.now() >= lastIdleRound.load(ordering: .relaxed) + idle / 4 { giveBackIdle() }
    return 0
  }

  // MARK: Expired entries

  /// Drops what has expired slab by slab, between which mutexes are free. Returns in how many milliseconds another slab is due,
  /// as `upkeepRound`.
  @discardableResult
  func dropDueSlabs() -> UInt64 {
    guard base.hasDeadlines.exchange(false, ordering: .relaxed) else { return .max }
    let now = base.clock.now()
    var next = UInt64.max
    for shard in shards.all {
      shards.holdInParts(shard) { held in held.dropDueSlab(now: now) }
      let due = shards.hold(shard) { held in
        held.shrinkIndex()
        return held.nextDue
      }
      next = min(next, due ?? .max)
    }
    if next == .max { return .max }
    base.hasDeadlines.store(true, ordering: .relaxed)
    // How fast another clock runs is not known.
    return base.clock.isSystem ? (next - min(next, now)) / 1_000_000 + 1 : 0
  }

  /// Drops all that has expired, slab by slab. Returns how many entries.
  @discardableResult
  func removeExpired() -> Int {
    let now = base.clock.now()
    var count = 0
    heap.givingBackTogether {
      for shard in shards.all {
        let before = count
        shards.holdInParts(shard) { held in
          guard let dropped = held.dropExpiredInNextSlab(now: now) else { return false }
          count += dropped
          return true
        }
        if count > before { shards.hold(shard) { held in held.shrinkIndex() } }
      }
    }
    return count
  }

  /// Finds out which pages the kernel took, and drops their entries. Returns how many. `remembers`: as
  /// `HeldShard.sweepRemembering`.
  @discardableResult
  func sweep(remembers: Bool = false) -> Int {
    base.findLosses()
    var dropped = 0
    for shard in shards.all {
      dropped += shards.hold(shard) { held in
        let before = held.slots.count
        if remembers { held.sweepRemembering() } else { held.sweepLost() }
        held.shrinkIndex()
        return before - held.slots.count
      }
    }
    return dropped
  }

  // MARK: The eager mode

  /// Runs an idle round in each shard. Returns how many bytes it gave back.
  @discardableResult
  func giveBackIdle() -> Int {
    let now = base.clock.now()
    guard let idle = base.limits.budget.withLock({ $0.idleNanoseconds }) else { return 0 }
    lastIdleRound.store(now, ordering: .relaxed)
    let before = base.heldBytes
    for shard in shards.all { shards.hold(shard) { held in held.giveBackIdle(after: idle, now: now) } }
    return max(0, before - base.heldBytes)
  }

  // MARK: Trimming

  /// Evicts entry by entry, always from the shard that is next by age, until all shards' amounts add up to `wanted`, or nothing
  /// is left to evict.
  private func trim(
    _ need: EvictionNeed, to wanted: UInt128, total: () -> UInt128, amount: (borrowing HeldShard) -> UInt128
  ) {
    if total() > wanted { removeExpired() }
    let before = total()
    guard before > wanted else { return }
    // Bounded, because other threads may store meanwhile.
    let most = before - wanted + before / 4
    var evicted: UInt128 = 0
    heap.givingBackTogether {
      shards.evictByAge(
        age: { $0.nextAge(need) },
        until: { evicted > most || total() <= wanted },
        evict: { held in
          let before = amount(held)
          defer { evicted += before - min(before, amount(held)) }
          return held.evictEntry(need)
        })
    }
    enforceAfterCopying()
  }

  /// What was used was copied above the byte limit, and the slab that it came from may have stayed. (A veto may keep the cache
  /// above its other limits: that is no reason to ask again.)
  func enforceAfterCopying() {
    guard base.isOverByteLimit else { return }
    heap.trim()
    enforceLimits()
  }

  func trim(toCount count: Int) {
    if count == 0, base.totals.pinnedBytes.load(ordering: .relaxed) == 0 { return removeAll(.trimmed) }
    trim(
      EvictionNeed(.trimmed), to: UInt128(count), total: { UInt128(max(0, base.count)) }, amount: { UInt128($0.books.entryCount) }
    )
  }

  func trim(toCost cost: UInt64) {
    trim(EvictionNeed(.trimmed, isOfCost: true), to: UInt128(cost), total: { base.totalCost }, amount: { $0.books.cost })
  }

  /// Trims slabs and bookkeeping together to so many bytes.
  func trim(toBytes byteCount: Int) {
    // Lost and expired entries and empty slabs first, which costs no value.
    sweep()
    if base.chargedBytes > byteCount { removeExpired() }
    heap.trim()
    giveBack(.trimmed) { base.chargedBytes - byteCount }
  }

  /// Gives back slabs by policy until no bytes are missing, or nothing more can be given back. The shard with the oldest slab is
  /// always next. It gives at least a sixteenth of a shard's share, unless less is missing, and an eighth at most: with more
  /// slabs at a time, the pass over the index costs less for each. The memory goes back after each round of the shards, whose
  /// slabs of one age are neighbours. Indexes shrink then, unless the caller shrinks them later, because that takes time.
  func giveBack(_ reason: DepartureReason, shrinksIndexes: Bool = true, missing: () -> Int) {
    assert(reason.cause == .relief(reason), "PurgeableCache: only relief gives slabs back here")
    var isFruitful = true
    // Bounded, because other threads may store meanwhile. More than what is missing, because a part of what is evicted is copied
    // and stays.
    var left = 4 * max(0, missing()) + base.heldBytes / 4
    while isFruitful, left > 0, missing() > 0 {
      isFruitful = false
      let open = shards.openCount
      var rounds = 0
      // Smaller slices where values are copied to be told by this thread.
      let tellsValues = base.observer?.wantsValues == true && !ThreadRole.isLibrary
      let sliceLimit = tellsValues ? TellingLimits.sliceBytes : .max
      heap.givingBackTogether {
        shards.evictByAge(
          age: { $0.oldestSlabAge() },
          until: { rounds >= open || left <= 0 || missing() <= 0 },
          evict: { held in
            let share = base.heldBytes / open + held.lostBytes
            let wanted = max(missing() / open, min(missing(), share / 16))
            let byteCount = min(wanted, share / 8, sliceLimit)
            guard held.evictSlabs(ofBytes: byteCount, reason) else { return false }
            isFruitful = true
            left -= byteCount
            rounds += 1
            return true
          })
      }
      if shrinksIndexes { for shard in shards.all { shards.hold(shard) { held in held.shrinkIndex() } } }
    }
  }
}

// MARK: Numbers

extension CacheEngine {
  func statistics(name: String) -> CacheStatistics {
    shards.healIfChild()
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
