// SPDX-License-Identifier: MIT
// Upkeep: offering, sweeping, trimming. Called by the library's thread, and by programs that want it now.

import CPurgeable
import Synchronization

extension CacheEngine {
  /// Offers what is idle; returns how many bytes.
  @discardableResult
  func offerIdle() -> Int {
    var byteCount = 0
    _ = unsafe purgeable_heap_offer_idle(heap.raw, &byteCount)
    if unsafe purgeable_heap_take_busy(heap.raw) {
      for shard in shards { withState(shard) { state in relieve(shard, &state) } }
    }
    return byteCount
  }

  /// Readers of the same entry who overlap keep its slab from ever being idle. What they use moves to a fresh slab, so that the
  /// rest of the old one can be offered again; unless most of it is in use, when that would only make another such slab.
  private func relieve(_ shard: EngineShard, _ state: inout ShardState) {
    for queue in EngineQueue.allCases {
      var busy: [purgeable_slab_t] = []
      var slab = purgeable_slab_t(index: 0, generation: 0)
      var information = purgeable_slab_information_t()
      var error = unsafe purgeable_stream_oldest(heap.raw, shard.streams[queue.rawValue], &slab)
      while error == 0, busy.count < 16 {
        if unsafe purgeable_slab_information(heap.raw, slab, &information) == 0, information.busy_rounds > 0,
          information.busy_rounds % 8 == 0, !information.is_large
        {
          busy.append(slab)
        }
        error = unsafe purgeable_slab_next(heap.raw, slab, &slab)
      }
      for slab in busy { relieve(slab, queue, shard, &state) }
    }
  }

  private func relieve(
    _ slab: purgeable_slab_t, _ queue: EngineQueue, _ shard: EngineShard, _ state: inout ShardState
  ) {
    var hot: [FoundEntry] = []
    var hotBytes = 0
    var allBytes = 0
    for entry in entries(of: slab, shard, state).living {
      allBytes += entry.facts.payloadByteCount
      if unsafe purgeable_heap_is_on_offer(heap.raw, entry.found.slot.place) { continue }
      hotBytes += entry.facts.payloadByteCount
      hot.append(entry)
    }
    guard hotBytes * 2 <= allBytes else { return }
    for entry in hot { _ = move(entry.found, to: queue, counter: entry.found.slot.counter, entry.facts, shard, &state) }
  }

  /// What the library's thread does for a cache in each of its rounds; whether another one is due.
  func upkeepRound() -> Bool {
    offerIdle()
    if budget.withLock({ $0.memoryShare }) != nil {
      applyBudget()
      if isOverLimits { enforceLimits() }
    }
    guard let due = nextIdleRound() else { return hasPending }
    if MonotonicTime.now >= due { giveBackIdle() }
    return true
  }

  var hasPending: Bool { unsafe purgeable_heap_has_pending(heap.raw) }

  /// Finds what the kernel took and drops it from the index; returns how many entries went.
  @discardableResult
  func sweep() -> Int {
    findLosses()
    var dropped = 0
    for shard in shards {
      dropped += withState(shard) { state in
        let before = state.slotCount
        sweepLost(shard, &state)
        shrinkIndex(shard, &state)
        return before - state.slotCount
      }
    }
    return dropped
  }

  /// Has the core look which pages are gone.
  func findLosses() {
    let start = MonotonicTime.now
    _ = unsafe purgeable_heap_sweep(heap.raw, nil)
    let end = MonotonicTime.now
    lastSweep.store(end, ordering: .relaxed)
    lastSweepLength.store(end - min(end, start), ordering: .relaxed)
  }

  /// Before the index grows: what is lost needs no room in a larger one. A twentieth of the time at most goes into looking. (Once
  /// a second would not do: what fills a small group fast loses far more than it holds within that time, and the index of what is
  /// gone would take the place of what nobody can give up.)
  func sweepBeforeGrowth(_ shard: EngineShard, _ state: inout ShardState) {
    let now = MonotonicTime.now
    let last = lastSweep.load(ordering: .relaxed)
    let pause = max(10_000_000, 20 * lastSweepLength.load(ordering: .relaxed))
    if now - min(now, last) >= pause { findLosses() }
    sweepLost(shard, &state)
  }

  /// One pass over a shard's slots: drops those whose pages are known to be gone. Shard's mutex held.
  func sweepLost(_ shard: EngineShard, _ state: inout ShardState) {
    guard unsafe purgeable_heap_has_losses(heap.raw) else { return }
    let table = shard.index.current()
    guard let slots = table.slots else { return }
    var cursor = 0
    unsafe withUnsafeTemporaryAllocation(of: UInt32.self, capacity: 256) { found in
      while cursor < table.slotCount {
        let count = unsafe purgeable_heap_find_losses(
          heap.raw, slots.raw, table.slotCount, Slot.placeBits, &cursor, found.baseAddress!, found.count)
        for i in 0..<count {
          let pointer = unsafe slots[Int(found[i])]
          let slot = Slot(bits: pointer.relaxed)
          if !slot.isEmpty, isLost(slot) { drop(FoundSlot(pointer: pointer, slot: slot), .discarded, shard, &state) }
        }
      }
    }
  }

  // MARK: Trimming

  /// Evicts by policy, shard by shard in turn, until `isDone` or until nothing more can be had.
  private func trim(_ evict: (EngineShard, inout ShardState) -> Bool, until isDone: () -> Bool) {
    unsafe purgeable_heap_begin_giving_back(heap.raw)
    defer { unsafe purgeable_heap_end_giving_back(heap.raw) }
    var misses = 0
    while !isDone(), misses < shards.count { misses = evictInTurn(evict) ? 0 : misses + 1 }
  }

  /// On from where the last call stopped: many small trims are as fair as a large one.
  private func evictInTurn(_ evict: (EngineShard, inout ShardState) -> Bool) -> Bool {
    let shard = shards[trimCursor.add(1, ordering: .relaxed).newValue & (shards.count - 1)]
    return withState(shard) { state in evict(shard, &state) }
  }

  func trim(toCount count: Int) {
    trim({ evictEntry(.pressure, $0, &$1) }, until: { totalCount.load(ordering: .relaxed) <= count })
  }

  func trim(toCost cost: UInt64) {
    trim({ evictEntry(.pressure, $0, &$1) }, until: { totalCost.withLock { $0 } <= UInt128(cost) })
  }

  /// To slab bytes and ordinary memory together.
  func trim(toBytes byteCount: Int) {
    // What is lost and what is empty first: that costs nobody anything.
    sweep()
    var freed = 0
    _ = unsafe purgeable_heap_trim(heap.raw, &freed)
    giveBack { heldBytes + ordinaryBytes - byteCount }
  }

  /// Gives back slabs by policy until nothing is missing any more, or nothing more can be had. From each shard in its turn an eighth at
  /// most, and a sixteenth at least unless less is missing: the more slabs, the less is a pass over its index for each. The memory goes
  /// back after each round of the shards: their slabs of one age are neighbours. Indexes shrink then, unless the caller sees to that: it
  /// takes time.
  func giveBack(shrinksIndexes: Bool = true, missing: () -> Int) {
    var isFruitful = true
    while isFruitful, missing() > 0 {
      isFruitful = false
      unsafe purgeable_heap_begin_giving_back(heap.raw)
      for _ in shards where missing() > 0 {
        let held = heldBytes / shards.count
        let wanted = max(missing() / shards.count, min(missing(), held / 16))
        if evictInTurn({ evictSlabs(ofBytes: min(wanted, held / 8), $0, &$1) }) { isFruitful = true }
      }
      unsafe purgeable_heap_end_giving_back(heap.raw)
      if shrinksIndexes { for shard in shards { withState(shard) { state in shrinkIndex(shard, &state) } } }
    }
  }
}
