// SPDX-License-Identifier: MIT
// The books: which slot an entry has, what entries add up to, and how one leaves. Shard's mutex held throughout.

import CPurgeable
import Synchronization

/// A slot and what it held when it was found.
struct FoundSlot {
  let pointer: SlotPointer
  let slot: Slot
}

/// An entry as its element tells it: only while the header's page is there.
struct EntryFacts {
  let identity: UInt64
  let prefixByteCount: Int
  let payloadByteCount: Int
}

/// An entry as eviction meets it: its slot, and what its element tells.
struct FoundEntry {
  let found: FoundSlot
  let facts: EntryFacts
}

extension CacheEngine {
  /// The slot of a key. Lost entries of the same tag are dropped on the way.
  func findLocked(
    _ shard: EngineShard, _ key: EngineKey, _ prefix: UnsafeRawBufferPointer, _ state: inout ShardState
  ) -> FoundSlot? {
    let table = shard.index.current()
    guard let slots = table.slots else { return nil }
    let (first, second) = table.buckets(of: key.identity)
    slots[first].prefetch()
    slots[second].prefetch()
    for i in 0..<2 * SlotIndex.slotsPerBucket {
      let pointer = slots[i < SlotIndex.slotsPerBucket ? first + i : second + i - SlotIndex.slotsPerBucket]
      let slot = Slot(bits: pointer.relaxed)
      if slot.identity != key.identity || slot.isEmpty { continue }
      var rest = 0
      var matches = false
      var outcome = purgeable_outcome_t.busy
      // Busy under the mutex: the thread was preempted over and over, or the slab died in a forked child.
      for _ in 0..<64 where outcome == .busy {
        outcome = unsafe purgeable_heap_read_matching(
          heap.raw, reference(slot.place), prefix.baseAddress!, prefix.count, 0, nil, 0, &rest, &matches)
      }
      let found = FoundSlot(pointer: pointer, slot: slot)
      if outcome == .intact {
        if matches { return found }
      } else {
        drop(found, .discarded, shard, &state)
      }
    }
    return nil
  }

  /// Reads what an element says of itself; nil when it is gone.
  func facts(of reference: purgeable_reference_t, in shard: EngineShard) -> EntryFacts? {
    var length = 0
    guard unsafe purgeable_heap_length(heap.raw, reference, &length) == .intact else { return nil }
    // Most keys are short, and every byte more is copied.
    let usual: Int
    switch keyLayout {
    case .fixed(let byteCount): usual = byteCount
    case .variable: usual = 64
    }
    return unsafe withUnsafeTemporaryAllocation(byteCount: min(length, usual), alignment: 8) { scratch -> EntryFacts? in
      guard unsafe purgeable_heap_read_part(heap.raw, reference, 0, scratch.count, scratch.baseAddress) == .intact,
        let parsed = unsafe EntryPrefix.parse(UnsafeRawBufferPointer(scratch), layout: keyLayout)
      else { return nil }
      switch parsed {
      case .tracked(let number):
        return EntryFacts(
          identity: EngineKey(trackedNumber: number, hash: 0).identity, prefixByteCount: EntryPrefix.trackedByteCount,
          payloadByteCount: length)
      case .key(let prefixByteCount, _):
        if prefixByteCount <= scratch.count {
          let key = unsafe key(prefix: UnsafeRawBufferPointer(rebasing: scratch[..<prefixByteCount]))
          return EntryFacts(identity: key.identity, prefixByteCount: prefixByteCount, payloadByteCount: length)
        }
        // A key longer than the scratch: rare, so it may allocate.
        return unsafe withUnsafeTemporaryAllocation(byteCount: prefixByteCount, alignment: 8) { whole -> EntryFacts? in
          guard unsafe purgeable_heap_read_part(heap.raw, reference, 0, prefixByteCount, whole.baseAddress) == .intact
          else { return nil }
          let key = unsafe key(prefix: UnsafeRawBufferPointer(whole))
          return EntryFacts(identity: key.identity, prefixByteCount: prefixByteCount, payloadByteCount: length)
        }
      }
    }
  }

  /// An entry's cost: what was given, or the value's bytes. nil when it went with its page.
  func cost(of slot: Slot, prefixByteCount: Int, payloadByteCount: Int) -> UInt64? {
    guard slot.isCosted else { return UInt64(max(0, payloadByteCount - prefixByteCount)) }
    var cost: UInt64 = 0
    let outcome = unsafe withUnsafeMutableBytes(of: &cost) { bytes in
      unsafe purgeable_heap_read_part(heap.raw, reference(slot.place), prefixByteCount, 8, bytes.baseAddress)
    }
    return outcome == .intact ? cost : nil
  }

  // MARK: Sums

  func book(_ place: UInt64, _ queue: EngineQueue, cost: UInt64, byteCount: Int, _ state: inout ShardState) {
    if let sum = unsafe pageSums.sum(at: place) {
      // The first entry of the page's new life.
      if unsafe sum.pointee.isLost { unsafe sum.pointee = PageSum() }
      unsafe sum.pointee.cost &+= UInt128(cost)
      unsafe sum.pointee.byteCount &+= UInt32(truncatingIfNeeded: byteCount)
      unsafe sum.pointee.count &+= 1
    }
    add(1, Int128(cost), byteCount, queue, &state)
  }

  func unbook(_ place: UInt64, _ queue: EngineQueue, cost: UInt64, byteCount: Int, _ state: inout ShardState) {
    var cost = UInt128(cost)
    if let sum = unsafe pageSums.sum(at: place) {
      if unsafe sum.pointee.isLost { return }
      if unsafe sum.pointee.count == 1 { unsafe cost = sum.pointee.cost }
      unsafe sum.pointee.cost &-= cost
      unsafe sum.pointee.byteCount &-= UInt32(truncatingIfNeeded: byteCount)
      unsafe sum.pointee.count &-= 1
    }
    add(-1, -Int128(cost), -byteCount, queue, &state)
  }

  /// A page is known to be lost: all that its entries added up to goes off the books at once, whoever of them is found first.
  func unbookLost(_ place: UInt64, _ state: inout ShardState) { unbookLostPage(place, queue(at: place), &state) }

  private func unbookLostPage(_ place: UInt64, _ queue: EngineQueue, _ state: inout ShardState) {
    guard let sum = unsafe pageSums.sum(at: place), unsafe !sum.pointee.isLost else { return }
    let lost = unsafe sum.pointee
    unsafe sum.pointee = .lost
    add(-Int(lost.count), -Int128(lost.cost), -Int(lost.byteCount), queue, &state)
  }

  /// All entries of a page that lives on leave it.
  func unbookPage(_ place: UInt64, _ queue: EngineQueue, _ state: inout ShardState) {
    guard let sum = unsafe pageSums.sum(at: place), unsafe !sum.pointee.isLost else { return }
    let all = unsafe sum.pointee
    unsafe sum.pointee = PageSum()
    if all.count > 0 { add(-Int(all.count), -Int128(all.cost), -Int(all.byteCount), queue, &state) }
  }

  private func add(_ count: Int, _ cost: Int128, _ byteCount: Int, _ queue: EngineQueue, _ state: inout ShardState) {
    state.sums[queue.rawValue].count += count
    state.sums[queue.rawValue].byteCount += byteCount
    let old = state.sums[queue.rawValue].cost
    let magnitude = cost.magnitude
    let new = cost >= 0 ? old + magnitude : old - min(old, magnitude)
    state.sums[queue.rawValue].cost = new
    if state.emptying != nil {
      state.emptying!.count += count
      state.emptying!.cost += Int128(new) - Int128(old)
      return
    }
    totalCount.add(count, ordering: .relaxed)
    totalCost.withLock { $0 = $0 &+ new &- old }
  }

  // MARK: Leaving

  /// Runs `body`, which ends entries of one slab, and settles what they have in common once: their elements, and the totals, which are
  /// a little high until then.
  func emptying(_ slab: purgeable_slab_t, _ state: inout ShardState, _ body: (inout ShardState) -> Void) {
    let done = settlingTotals(&state, body)
    var information = purgeable_slab_information_t()
    if unsafe purgeable_slab_information(heap.raw, slab, &information) == 0, information.living_count == done.places.count {
      unsafe purgeable_slab_free_elements(heap.raw, slab, nil)
    } else {
      // Some stay: lost ones, whose slots are still to be dropped.
      for place in done.places { unsafe purgeable_heap_free(heap.raw, reference(place)) }
    }
  }

  /// Runs `body`, which ends many entries, and settles the totals of all shards once.
  @discardableResult
  func settlingTotals(_ state: inout ShardState, _ body: (inout ShardState) -> Void) -> Emptying {
    state.emptying = Emptying()
    body(&state)
    let done = state.emptying ?? Emptying()
    state.emptying = nil
    totalCount.add(done.count, ordering: .relaxed)
    totalCost.withLock { $0 &+= UInt128(truncatingIfNeeded: done.cost) }
    return done
  }

  /// Ends an entry: slot, books, element, ghost, report. `facts` spare a look at the element where they are known.
  func drop(
    _ found: FoundSlot, _ reason: DepartureReason, _ shard: EngineShard, _ state: inout ShardState, facts known: EntryFacts? = nil
  ) {
    let slot = found.slot
    let place = slot.place
    let reference = reference(place)
    let queue = queue(at: place)
    let isTracked = slot.isTracked
    var cost: UInt64 = 0
    var value: [UInt8]?
    let pageIsLost = unsafe purgeable_heap_page_is_lost(heap.raw, place)
    if !pageIsLost, let facts = known ?? facts(of: reference, in: shard) {
      // The cost may lie on another page than the header, and that one be gone: it goes off the books with its page's last entry.
      cost = self.cost(of: slot, prefixByteCount: facts.prefixByteCount, payloadByteCount: facts.payloadByteCount) ?? 0
      if isTracked, observer.withLock({ $0.value?.wantsValues ?? false }) {
        let skip = facts.prefixByteCount + (slot.isCosted ? 8 : 0)
        value = copyPart(reference, from: skip, count: facts.payloadByteCount - skip)
      }
      unbook(place, queue, cost: cost, byteCount: facts.payloadByteCount, &state)
    } else {
      // Gone with its page, whether the core has noted that or not.
      unbookLostPage(place, queue, &state)
    }
    found.pointer.store(releasing: 0)
    state.slotCount -= 1
    state.changes &+= 1
    if state.emptying != nil {
      state.emptying!.places.append(place)
    } else {
      unsafe purgeable_heap_free(heap.raw, reference)
    }
    noteInGhost(slot, reason, shard, &state)
    report(slot, reason, cost: cost, value: value, &state)
  }

  func report(
    _ slot: Slot, _ reason: DepartureReason, cost: UInt64, value: [UInt8]?, keepsKey: Bool = false, _ state: inout ShardState
  ) {
    state.counters.departures[reason.rawValue] += 1
    if slot.isTracked {
      state.departures.append(
        EngineDeparture(number: EngineKey.trackedNumber(of: slot), reason: reason, cost: cost, value: value, keepsKey: keepsKey))
    }
  }

  /// The ghost remembers nine tenths as many as may live.
  private func noteInGhost(_ slot: Slot, _ reason: DepartureReason, _ shard: EngineShard, _ state: inout ShardState) {
    let why: Ghost.Reason
    switch reason {
    case .replaced, .tooLarge: return
    case .removed: why = .removed
    case .discarded: why = .discarded
    case .expired: why = .expired
    case .count, .cost, .bytes, .pressure, .decider, .idle: why = .evicted
    }
    readyGhost(shard, &state, isRemoval: why == .removed)
    var identity = slot.identity
    if slot.isTracked {
      let number = EngineKey.trackedNumber(of: slot)
      guard let hash = observer.withLock({ $0.value })?.hash(ofNumber: number, shard: shard.number) else { return }
      identity = EngineKey(hash: hash).ghostIdentity
    }
    state.ghost.note(identity, why)
  }

  /// Makes room in the ghost for what is about to leave.
  func readyGhost(_ shard: EngineShard, _ state: inout ShardState, isRemoval: Bool = false) {
    let limit = countLimit.load(ordering: .relaxed)
    let lives = limit == .max ? max(state.slotCount, 64) : max(1, limit / shards.count)
    // What the program removes, it knows: a small memory of that is enough, unless evictions asked for a larger one.
    let wanted = isRemoval ? max(64, state.ghost.rememberedLimit) : max(1, lives * 9 / 10)
    guard state.ghost.isSmall(for: wanted) else { return }
    let before = state.ghost.byteCount
    state.ghost.reserve(wanted)
    ghostBytes.add(state.ghost.byteCount - before, ordering: .relaxed)
  }

  func copyPart(_ reference: purgeable_reference_t, from offset: Int, count: Int) -> [UInt8]? {
    guard count > 0 else { return count == 0 ? [] : nil }
    var isIntact = false
    let bytes = unsafe [UInt8](unsafeUninitializedCapacity: count) { buffer, initialized in
      isIntact = unsafe purgeable_heap_read_part(heap.raw, reference, offset, count, buffer.baseAddress) == .intact
      initialized = isIntact ? count : 0
    }
    return isIntact ? bytes : nil
  }
}
