// SPDX-License-Identifier: MIT
// Stores and removals.

import CPurgeable
import Synchronization

/// What became of a store.
public enum StoreOutcome: Sendable, Hashable {
  /// Under a key that had no value.
  case stored
  /// In place of another value.
  case replaced
  /// Larger than a whole limit: not stored, and what was there before is gone.
  case tooLarge
  /// No memory for it: not stored, and what was there before stays, unless it was the next to go and gave its room.
  case outOfMemory
}

extension CacheEngine {
  /// Stores `value` under a key whose payload begins with `prefix`. `cost` nil: the value's bytes.
  func store(
    _ key: EngineKey, prefix: UnsafeRawBufferPointer, value: UnsafeRawBufferPointer, cost: UInt64?
  ) -> StoreOutcome {
    let shard = shard(of: key)
    let outcome = withState(shard) { state in
      unsafe storeLocked(key, prefix, value, cost, shard, &state)
    }
    offerIfMuchIsIdle(prefix.count + value.count)
    // This shard had nothing left to give: others may.
    if isOverLimits { enforceLimits(sparing: shard.number) }
    return outcome
  }

  /// A program may fill memory faster than the library's thread looks, and what is not on offer yet cannot be taken: in a small
  /// group that would be the end of it. So whoever stores a mebibyte, or a 32nd of what is held, offers what is idle by then.
  func offerIfMuchIsIdle(_ byteCount: Int) {
    let stored = storedSinceOffer.add(byteCount, ordering: .relaxed).newValue
    guard stored >= 1 << 20, stored >= heldBytes / 32 else { return }
    storedSinceOffer.store(0, ordering: .relaxed)
    offerIdle()
  }

  /// As `store`, for callers that are under the shard's mutex already.
  func storeLocked(
    _ key: EngineKey, _ prefix: UnsafeRawBufferPointer, _ value: UnsafeRawBufferPointer, _ cost: UInt64?, _ shard: EngineShard,
    _ state: inout ShardState
  ) -> StoreOutcome {
    let isCosted = cost != nil && cost != UInt64(value.count)
    let itsCost = cost ?? UInt64(value.count)
    let (prefixed, overflow) = value.count.addingReportingOverflow(prefix.count + (isCosted ? 8 : 0))
    let byteCount = max(1, prefixed)
    let old = unsafe findLocked(shard, key, prefix, &state)
    let changesBefore = state.changes
    if overflow || byteCount > Int(bitPattern: UInt(0xFFFF_FFFF - 64 << 20)) || exceedsWholeLimit(itsCost, byteCount) {
      if let old = old { drop(old, .replaced, shard, &state) }
      state.counters.refusals += 1
      return .tooLarge
    }
    // Replacing counts as a use and keeps the queue; what was evicted or lost not long ago goes to main.
    let queue: EngineQueue
    if let old = old {
      queue = self.queue(at: old.slot.place)
    } else {
      switch state.ghost.reason(of: key.ghostIdentity) {
      case .evicted, .discarded: queue = .main
      case .removed, .expired, nil: queue = .probation
      }
    }
    makeRoom(for: itsCost, replacing: old?.slot, shard, &state)
    guard let (reference, bytes) = unsafe allocate(byteCount, queue, shard, &state) else {
      state.counters.refusals += 1
      return .outOfMemory
    }
    // Room for the whole payload was allocated above; nobody else knows of it before the commit.
    unsafe bytes.copyMemory(from: prefix)
    var at = prefix.count
    if isCosted {
      unsafe bytes.storeBytes(of: itsCost, toByteOffset: at, as: UInt64.self)
      at += 8
    }
    if value.count > 0 { unsafe UnsafeMutableRawBufferPointer(rebasing: bytes[at...]).copyMemory(from: value) }
    unsafe purgeable_heap_commit(heap.raw, reference)

    // Making room may have evicted the old value, or moved it.
    let replaced = state.changes == changesBefore ? old : unsafe findLocked(shard, key, prefix, &state)
    let counter = replaced.map { min(3, $0.slot.counter + 1) } ?? 0
    let slot = Slot(identity: key.identity, place: reference.place, counter: counter, isCosted: isCosted)
    if let replaced = replaced {
      replace(replaced, by: slot, shard, &state)
      state.counters.replacements += 1
    } else {
      guard insert(slot, shard, &state) else {
        unsafe purgeable_heap_free(heap.raw, reference)
        state.counters.refusals += 1
        return .outOfMemory
      }
      state.counters.insertions += 1
      state.ghost.forget(key.ghostIdentity)
    }
    // An old value of this very key that was evicted or found lost on the way: its number is in use again.
    for i in state.departures.indices where key.isTracked && state.departures[i].number == key.trackedNumber {
      state.departures[i].keepsKey = true
    }
    book(reference.place, queue, cost: itsCost, byteCount: byteCount, &state)
    state.storedSinceCompaction += byteCount
    if state.storedSinceCompaction >= slabBytes {
      state.storedSinceCompaction = 0
      compactStep(shard, &state)
    }
    return replaced == nil && old == nil ? .stored : .replaced
  }

  private func exceedsWholeLimit(_ cost: UInt64, _ byteCount: Int) -> Bool {
    if cost > costLimit.load(ordering: .relaxed) || countLimit.load(ordering: .relaxed) == 0 { return true }
    let limit = byteLimit.load(ordering: .relaxed)
    if limit == .max { return false }
    // Beside its own bookkeeping it has to hold the slab of a small entry, or a large one in whole pages with its witnesses.
    let page = Int(purgeable_page_size_bytes())
    let needed = byteCount <= slabBytes / 2 ? slabBytes : byteCount + byteCount / page * 2 + page
    return needed > limit - min(limit, ordinaryBytes)
  }

  /// Exchanges an entry's place for the new one's. Readers see the old value or the new one, at no moment neither.
  private func replace(_ old: FoundSlot, by slot: Slot, _ shard: EngineShard, _ state: inout ShardState) {
    let place = old.slot.place
    let reference = reference(place)
    var cost: UInt64 = 0
    var value: [UInt8]?
    if let facts = facts(of: reference, in: shard),
      let itsCost = self.cost(
        of: old.slot, prefixByteCount: facts.prefixByteCount, payloadByteCount: facts.payloadByteCount)
    {
      cost = itsCost
      unbook(place, queue(at: place), cost: cost, byteCount: facts.payloadByteCount, &state)
      if old.slot.isTracked, observer.withLock({ $0.value?.wantsValues ?? false }) {
        let skip = facts.prefixByteCount + (old.slot.isCosted ? 8 : 0)
        value = copyPart(reference, from: skip, count: facts.payloadByteCount - skip)
      }
    } else {
      unbookLost(place, &state)
    }
    // Release: whoever sees the slot sees the committed element.
    old.pointer.store(releasing: slot.bits)
    unsafe purgeable_heap_free(heap.raw, reference)
    report(old.slot, .replaced, cost: cost, value: value, keepsKey: true, &state)
  }

  // MARK: Room

  /// Memory for a payload, evicting by policy where the byte limit or the machine refuses it.
  func allocate(
    _ byteCount: Int, _ queue: EngineQueue, _ shard: EngineShard, _ state: inout ShardState, mayEvict: Bool = true
  ) -> (purgeable_reference_t, UnsafeMutableRawBufferPointer)? {
    var refusalsByMachine = 0
    // Slow growth after pressure is no strict limit: it yields where nothing else can be had, and to what an eviction copies.
    var soft = mayEvict ? growthLimit : .max
    // A large value may need as many slabs as it has room for, and some that hold little.
    for _ in 0..<256 + 4 * (byteCount / slabBytes) {
      // Read anew each time, and 0 is none: it may be changed, or lifted, meanwhile.
      let limit = min(byteLimit.load(ordering: .relaxed), soft)
      var slabLimit = limit == .max ? 0 : max(1, limit - min(limit - 1, ordinaryBytes))
      // What an eviction copies has room beside the slab that it is about to give back.
      if limit != .max, !mayEvict { slabLimit += slabBytes }
      unsafe purgeable_heap_set_limit(heap.raw, slabLimit)
      var reference = purgeable_reference_t(place: 0, generation: 0)
      var bytes: UnsafeMutableRawPointer?
      let error = unsafe purgeable_heap_allocate_in(
        heap.raw, shard.streams[queue.rawValue], byteCount, 0, &reference, &bytes)
      if error == 0, let bytes = unsafe bytes {
        if reference.place < Slot.placeLimit, pageSums.prepare(place: reference.place) {
          return unsafe (reference, UnsafeMutableRawBufferPointer(start: bytes, count: byteCount))
        }
        unsafe purgeable_heap_free(heap.raw, reference)
        return nil
      }
      guard error == outOfMemoryNumber, mayEvict else { return nil }
      if slabLimit == 0 || heldBytes + byteCount + byteCount / 1024 + 2 * slabBytes <= slabLimit {
        // Not the limit refused but the machine. A slab given back has room for what fits a slab; nothing helps what is larger.
        refusalsByMachine += 1
        if byteCount > slabBytes / 2 || refusalsByMachine > 4 { return nil }
      }
      if evictSlab(.bytes, shard, &state) { continue }
      // Nothing left here: one of the others, if it can be had without waiting for its mutex.
      if evictSlabElsewhere(.bytes, than: shard) {
        state.owesDelivery = true
      } else if soft != .max {
        soft = .max
      } else {
        return nil
      }
    }
    return nil
  }

  /// Puts a new slot in, growing the index when it is full. False: no memory for that, nothing is changed.
  private func insert(_ slot: Slot, _ shard: EngineShard, _ state: inout ShardState) -> Bool {
    let index = shard.index
    if (state.slotCount + 1) * 100 > index.current().slotCount * 84 {
      sweepBeforeGrowth(shard, &state)
      if (state.slotCount + 1) * 100 > index.current().slotCount * 84 { _ = grow(shard, &state) }
    }
    for _ in 0..<8 {
      if index.insert(slot) {
        state.slotCount += 1
        return true
      }
      // Large tables are full for one slot or another long before 84 %.
      let before = state.slotCount
      sweepBeforeGrowth(shard, &state)
      if state.slotCount < before - before / 16 { continue }
      if !grow(shard, &state), !evictSlab(.bytes, shard, &state) { return false }
    }
    return false
  }

  /// The next size that fits. Evicts rather than grow past the byte limit.
  private func grow(_ shard: EngineShard, _ state: inout ShardState) -> Bool {
    let limit = byteLimit.load(ordering: .relaxed)
    let before = shard.index.byteCount
    for step in 1...3 {
      let sizeClass = shard.index.sizeClass + step
      guard sizeClass < SlotIndex.classCount else { return false }
      let growth = SlotIndex.byteCount(of: sizeClass) - before
      if limit != .max, heldBytes + ordinaryBytes + growth > limit, evictSlab(.bytes, shard, &state) { return true }
      if shard.index.resize(to: sizeClass) {
        state.changes &+= 1
        indexBytes.add(shard.index.byteCount - before, ordering: .relaxed)
        return true
      }
    }
    return false
  }

  /// Makes the index smaller when most of it is empty.
  func shrinkIndex(_ shard: EngineShard, _ state: inout ShardState) {
    let index = shard.index
    let before = index.byteCount
    var sizeClass = index.sizeClass
    while sizeClass > 0, state.slotCount * 10 < SlotIndex.bucketCount(of: sizeClass - 1) * SlotIndex.slotsPerBucket * 6 {
      sizeClass -= 1
    }
    // Two sizes at once at least, so that it does not swing.
    guard sizeClass + 2 <= index.sizeClass, index.resize(to: sizeClass) else { return }
    state.changes &+= 1
    indexBytes.add(index.byteCount - before, ordering: .relaxed)
  }

  // MARK: Removing

  /// Removes a key's entry; whether there was one.
  func remove(_ key: EngineKey, prefix: UnsafeRawBufferPointer) -> Bool {
    let shard = shard(of: key)
    return withState(shard) { state in unsafe removeLocked(key, prefix, shard, &state) }
  }

  func removeLocked(
    _ key: EngineKey, _ prefix: UnsafeRawBufferPointer, _ shard: EngineShard, _ state: inout ShardState
  ) -> Bool {
    guard let found = unsafe findLocked(shard, key, prefix, &state) else { return false }
    drop(found, .removed, shard, &state)
    return true
  }

  /// Removes everything, shard by shard.
  func removeAll(_ reason: DepartureReason = .removed) {
    for shard in shards {
      withState(shard) { state in
        let table = shard.index.current()
        guard let slots = table.slots else { return }
        for i in 0..<table.slotCount {
          let slot = Slot(bits: slots[i].relaxed)
          if !slot.isEmpty { drop(FoundSlot(pointer: slots[i], slot: slot), reason, shard, &state) }
        }
        state.ghost.removeAll()
        shrinkIndex(shard, &state)
        for stream in shard.streams { unsafe purgeable_stream_seal(heap.raw, stream) }
      }
    }
    ghostBytes.store(0, ordering: .relaxed)
  }
}

/// ENOMEM: the one error that room helps against. Foundation-free and libc-free code names it itself.
let outOfMemoryNumber: Int32 = 12
