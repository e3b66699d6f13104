// SPDX-License-Identifier: MIT
// Many slabs given back together, in the policy's order. Shard's mutex held throughout.
//
//   choose       the oldest slabs of the queues             from their books, without a look at their pages
//   find         one pass over the shard's index            which slots lead there, and how often each was used
//   keep         what is worth it is copied into main       the only entries whose pages are touched
//   drop         all other slots are emptied                the ghost remembers them; sums go off the books page by page
//   give back    elements are freed slab by slab            by then no slot leads there any more
//
// An eviction slab by slab looks each entry up in the index, somewhere in memory: for one slab that is less than a pass, for many it is
// far more. And what the kernel has taken of such slabs needs no look of its own: its slots are found as all others are.

import CPurgeable

/// A slab that is to be given back, and what the pass over the index found of it.
private struct Victim {
  let slab: purgeable_slab_t
  let information: purgeable_slab_information_t
  let queue: EngineQueue
  /// Hardly anything lives there: all of it is copied.
  let isSparse: Bool
  /// Whether every living element was found, and nobody has to be told of any. Else it is emptied entry by entry.
  var isPlain = false
  /// From which counter on an entry is worth copying, and how many bytes of such.
  var threshold: UInt64 = 0
  var room = Int.max

  init(_ slab: purgeable_slab_t, _ information: purgeable_slab_information_t, _ queue: EngineQueue, isSparse: Bool) {
    (self.slab, self.information, self.queue, self.isSparse) = (slab, information, queue, isSparse)
  }

  /// By the slots that lead there, counted by counter. Never more than half a slab is copied, so that every eviction frees memory: where
  /// more was used, the most used of it.
  mutating func decide(_ counts: SIMD4<UInt32>, hasTracked: Bool, overhead: Int) {
    isPlain = !hasTracked && counts.wrappedSum() == information.living_count
    if isSparse { return }
    threshold = 1
    room = Int(information.held_bytes) / 2
    let average = Int(information.living_bytes) / max(1, Int(information.living_count)) + overhead
    func byteCount(from counter: UInt64) -> Int { (Int(counter)...3).reduce(0) { $0 + Int(counts[$1]) } * average }
    while threshold < 3, byteCount(from: threshold) > room { threshold += 1 }
  }
}

/// A slot that leads to a victim.
private struct Leading {
  let slot: UInt32
  let victim: UInt16
  var isDone = false
}

extension CacheEngine {
  /// Gives back slabs of a shard until so many bytes were chosen; what is copied counts for them. Where the first to go is a large entry,
  /// that one. False: nothing could be had.
  func evictSlabs(ofBytes byteCount: Int, _ shard: EngineShard, _ state: inout ShardState) -> Bool {
    var victims = chooseVictims(byteCount, shard, state)
    guard !victims.isEmpty else { return evictSlab(.pressure, shard, &state) }
    let slots = state.slotCount
    var leading = findLeading(to: &victims, shard)
    var isGone = false
    settlingTotals(&state) { state in
      keep(&leading, &victims, shard, &state)
      drop(leading, victims, shard, &state)
      for victim in victims where victim.isPlain { unbookPages(of: victim, &state) }
    }
    // What was lost of the others is found by a pass of its own, once for all of them.
    let others = victims.filter { !$0.isPlain }
    if others.contains(where: { $0.information.lost_page_count > 0 }) { sweepLost(shard, &state) }
    for victim in victims where victim.isPlain {
      unsafe purgeable_slab_free_elements(heap.raw, victim.slab, nil)
      isGone = giveBack(victim.slab) || isGone
    }
    for victim in others {
      isGone = emptySlab(victim.slab, mayPassOn: false, isSwept: true, .pressure, shard, &state) || isGone
    }
    return isGone || state.slotCount < slots
  }

  /// Gives back a slab in which nothing lives any more; whether it is gone, now or with its last element already.
  func giveBack(_ slab: purgeable_slab_t) -> Bool {
    var information = purgeable_slab_information_t()
    return unsafe purgeable_slab_give_back(heap.raw, slab) == 0
      || purgeable_slab_information(heap.raw, slab, &information) != 0
  }

  /// As `chooseSlab` would, one after the other: those hardly alive among the oldest, then the oldest of the queue whose turn it is.
  private func chooseVictims(_ byteCount: Int, _ shard: EngineShard, _ state: borrowing ShardState) -> [Victim] {
    var victims: [Victim] = []
    var chosen = 0
    var information = purgeable_slab_information_t()
    /// Where each queue's next one stands.
    var next: [purgeable_slab_t?] = EngineQueue.allCases.map { queue in
      var slab = purgeable_slab_t(index: 0, generation: 0)
      return unsafe purgeable_stream_oldest(heap.raw, shard.streams[queue.rawValue], &slab) == 0 ? slab : nil
    }
    for queue in EngineQueue.allCases {
      var slab = next[queue.rawValue]
      for _ in 0..<16 {
        guard let here = slab, unsafe purgeable_slab_information(heap.raw, here, &information) == 0 else { break }
        if isSparse(information), chosen < byteCount {
          victims.append(Victim(here, information, queue, isSparse: true))
          chosen += Int(information.held_bytes)
        }
        slab = following(here)
      }
    }
    let sparse = Set(victims.map(\.slab.index))
    var sums = state.sums.map(\.byteCount)
    // What is open now is the youngest: an end to the queue. So few entries at once that what is noted of them takes 8 MiB at most.
    var living = 0
    while chosen < byteCount, living < 1 << 20, victims.count < Int(UInt16.max) {
      let probation = EngineQueue.probation.rawValue
      let wanted = sums[probation] * 10 > sums[0] + sums[1] ? EngineQueue.probation : .main
      guard let queue = next[wanted.rawValue] != nil ? wanted : EngineQueue.allCases.first(where: { next[$0.rawValue] != nil }),
        let slab = next[queue.rawValue], unsafe purgeable_slab_information(heap.raw, slab, &information) == 0
      else { break }
      next[queue.rawValue] = information.is_open ? nil : following(slab)
      if information.is_open || information.lock_count > 0 || sparse.contains(slab.index) { continue }
      if information.is_large {
        // By itself: it is handed over where it was used, not copied.
        if victims.isEmpty { return [] }
        continue
      }
      victims.append(Victim(slab, information, queue, isSparse: false))
      chosen += Int(information.held_bytes)
      living += Int(information.living_count)
      sums[queue.rawValue] -= min(sums[queue.rawValue], Int(information.living_bytes))
    }
    return victims
  }

  private func following(_ slab: purgeable_slab_t) -> purgeable_slab_t? {
    var next = slab
    return unsafe purgeable_slab_next(heap.raw, slab, &next) == 0 ? next : nil
  }

  /// The pass: which slots lead to the victims. About 1 ns a slot.
  private func findLeading(to victims: inout [Victim], _ shard: EngineShard) -> [Leading] {
    let table = shard.index.current()
    guard let slots = table.slots, let first = victims.map(\.slab.index).min(), let last = victims.map(\.slab.index).max()
    else { return [] }
    // By slab: the victim's number + 1.
    var numbers = [UInt16](repeating: 0, count: Int(last - first) + 1)
    for (i, victim) in victims.enumerated() { numbers[Int(victim.slab.index - first)] = UInt16(i) + 1 }
    let shift = UInt64((slabBytes / 16).trailingZeroBitCount)
    let capacity = victims.reduce(0) { $0 + Int($1.information.living_count) }
    var counts = [SIMD4<UInt32>](repeating: SIMD4(), count: victims.count)
    var hasTracked = [Bool](repeating: false, count: victims.count)
    // All indices are in bounds: a number is that of a victim, and `count` is compared with the capacity.
    let found = unsafe [Leading](unsafeUninitializedCapacity: capacity) { found, count in
      unsafe numbers.withUnsafeBufferPointer { numbers in
        unsafe counts.withUnsafeMutableBufferPointer { counts in
          for i in 0..<table.slotCount {
            let slot = Slot(bits: slots[i].relaxed)
            // An empty slot's place is beyond all slabs.
            let at = (slot.bits & Slot.placeMask &- 1) >> shift &- UInt64(first)
            guard at < UInt64(numbers.count) else { continue }
            let number = unsafe numbers[Int(truncatingIfNeeded: at)]
            guard number != 0 else { continue }
            unsafe counts[Int(number) - 1][Int(slot.counter)] &+= 1
            if slot.isTracked { hasTracked[Int(number) - 1] = true }
            guard count < capacity else { continue }
            unsafe found[count] = Leading(slot: UInt32(truncatingIfNeeded: i), victim: number - 1)
            count += 1
          }
        }
      }
    }
    for i in victims.indices { victims[i].decide(counts[i], hasTracked: hasTracked[i], overhead: Self.elementOverhead) }
    return found
  }

  /// Copies what is worth it, slab by slab: what belongs to a slab, its pages and their books, is in the processor's cache then.
  private func keep(_ leading: inout [Leading], _ victims: inout [Victim], _ shard: EngineShard, _ state: inout ShardState) {
    guard let slots = shard.index.current().slots else { return }
    let worthy = worthyOnes(leading, victims, slots)
    let ahead = 4
    for (at, i) in worthy.enumerated() {
      if at + ahead < worthy.count {
        let next = Slot(bits: slots[Int(leading[Int(worthy[at + ahead])].slot)].relaxed)
        unsafe purgeable_heap_prefetch(heap.raw, next.place)
      }
      let item = leading[Int(i)]
      let number = Int(item.victim)
      let pointer = slots[Int(item.slot)]
      let slot = Slot(bits: pointer.relaxed)
      guard let facts = facts(of: slot, in: shard) else { continue }
      let byteCount = facts.payloadByteCount + Self.elementOverhead
      guard byteCount <= victims[number].room else { continue }
      let isSparse = victims[number].isSparse
      let queue = isSparse ? victims[number].queue : .main
      // One use less, also into main for the first time: unlike `settle`, since its turn may come again before anybody could read it.
      let counter = isSparse ? slot.counter : max(slot.counter, 1) - 1
      let found = FoundSlot(pointer: pointer, slot: slot)
      let settled = move(found, to: queue, counter: counter, facts, shard, &state, endsOld: false)
      guard case .kept = settled else { continue }
      leading[Int(i)].isDone = true
      if !isSparse { victims[number].room -= byteCount }
    }
  }

  /// The numbers of those whose counters are high enough, victim by victim.
  private func worthyOnes(_ leading: [Leading], _ victims: [Victim], _ slots: SlotPointer) -> [UInt32] {
    // Where each victim's begin. Readers may have changed counters since they were counted, so there is room for all that lead there.
    var ends: [Int] = []
    ends.reserveCapacity(victims.count)
    var total = 0
    for victim in victims {
      ends.append(total)
      total += victim.isPlain ? Int(victim.information.living_count) : 0
    }
    var sorted = [UInt32](repeating: .max, count: total)
    for i in leading.indices {
      let number = Int(leading[i].victim)
      guard victims[number].isPlain,
        Slot(bits: slots[Int(leading[i].slot)].relaxed).counter >= victims[number].threshold
      else { continue }
      sorted[ends[number]] = UInt32(truncatingIfNeeded: i)
      ends[number] += 1
    }
    sorted.removeAll { $0 == .max }
    return sorted
  }

  /// What an element tells, where most of it is known without a look at it.
  private func facts(of slot: Slot, in shard: EngineShard) -> EntryFacts? {
    guard case .fixed(let prefixByteCount) = keyLayout else { return facts(of: reference(slot.place), in: shard) }
    var length = 0
    guard unsafe purgeable_heap_length(heap.raw, reference(slot.place), &length) == .intact else { return nil }
    return EntryFacts(identity: slot.identity, prefixByteCount: prefixByteCount, payloadByteCount: length)
  }

  /// Empties the slots of plain victims that were not copied.
  private func drop(_ leading: [Leading], _ victims: [Victim], _ shard: EngineShard, _ state: inout ShardState) {
    guard let slots = shard.index.current().slots else { return }
    readyGhost(shard, &state)
    // The ghost's buckets lie anywhere: fetched some entries ahead.
    let ahead = 8
    var dropped = (pressure: 0, discarded: 0)
    let isPlain = victims.map(\.isPlain)
    let hasLost = victims.map { $0.information.lost_page_count > 0 }
    for i in leading.indices {
      if i + ahead < leading.count { state.ghost.prefetch(Slot(bits: slots[Int(leading[i + ahead].slot)].relaxed).identity) }
      let item = leading[i]
      guard !item.isDone, isPlain[Int(item.victim)] else { continue }
      let pointer = slots[Int(item.slot)]
      let slot = Slot(bits: pointer.relaxed)
      let isLost = unsafe hasLost[Int(item.victim)] && purgeable_heap_page_is_lost(heap.raw, slot.place)
      pointer.store(releasing: 0)
      state.ghost.note(slot.identity, isLost ? .discarded : .evicted)
      if isLost { dropped.discarded += 1 } else { dropped.pressure += 1 }
    }
    state.slotCount -= dropped.pressure + dropped.discarded
    state.changes &+= 1
    state.counters.departures[DepartureReason.pressure.rawValue] += UInt64(dropped.pressure)
    state.counters.departures[DepartureReason.discarded.rawValue] += UInt64(dropped.discarded)
  }

  /// All that a slab's pages still add up to.
  private func unbookPages(of victim: Victim, _ state: inout ShardState) {
    let place = UInt64(victim.slab.index) * UInt64(slabBytes / 16)
    let granules = Int(purgeable_page_size_bytes()) / 16
    for page in stride(from: 0, to: slabBytes / 16, by: granules) { unbookPage(place + UInt64(page), victim.queue, &state) }
  }
}
