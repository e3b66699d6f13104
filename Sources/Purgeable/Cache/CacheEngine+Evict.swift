// SPDX-License-Identifier: MIT
// Which entry goes: S3-FIFO over streams.
//
//   store --> probation (a tenth) --counter >= 2--> main (the rest) --counter > 0--> main again, counter - 1
//                  |                                  |
//                  +--> ghost: stored again soon -----+--> main          otherwise: evicted
//
// A queue is a stream of slabs in order of birth, and a slab's elements lie in order of birth too: so the front of a queue is the
// oldest slab's first living element, and no entry carries a link. Strict limits (count, cost) walk entry by entry; the byte limit
// and pressure take whole slabs, since only a whole slab is memory given back.
//
// After: J. Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023; the threshold of 2 and the order of main
// before probation when main is full are those of its reference implementation.

import CPurgeable
import Synchronization

extension CacheEngine {
  // MARK: Strict limits

  var isOverLimits: Bool { exceededLimit != nil }

  /// The limit that is exceeded now.
  private var exceededLimit: DepartureReason? {
    if totalCount.load(ordering: .relaxed) > countLimit.load(ordering: .relaxed) { return .count }
    let limit = costLimit.load(ordering: .relaxed)
    if limit != .max, totalCost.withLock({ $0 }) > UInt128(limit) { return .cost }
    let bytes = byteLimit.load(ordering: .relaxed)
    return bytes != .max && heldBytes + ordinaryBytes > bytes ? .bytes : nil
  }

  /// Before an entry comes in: room for one more, and for its cost, in its own shard.
  func makeRoom(for cost: UInt64, replacing old: Slot?, _ shard: EngineShard, _ state: inout ShardState) {
    let countLimit = countLimit.load(ordering: .relaxed)
    if countLimit != .max {
      let coming = old == nil ? 1 : 0
      while totalCount.load(ordering: .relaxed) + coming > countLimit {
        guard evictEntry(.count, shard, &state) else { break }
      }
    }
    let costLimit = costLimit.load(ordering: .relaxed)
    if costLimit != .max {
      // The old value's cost is given back by this store; evicting it instead comes to the same.
      var spared: UInt64 = 0
      if let old, let facts = facts(of: reference(old.place), in: shard) {
        spared = self.cost(of: old, prefixByteCount: facts.prefixByteCount, payloadByteCount: facts.payloadByteCount) ?? 0
      }
      while true {
        let total = totalCost.withLock { $0 }
        let others = total - min(total, UInt128(spared))
        guard others + UInt128(cost) > UInt128(costLimit), evictEntry(.cost, shard, &state) else { break }
      }
    }
  }

  /// Brings the cache below its limits, shard by shard: after a limit was lowered, or where a store's own shard was empty. That one
  /// is spared for as long as others have something to give, or the store would have been for nothing.
  func enforceLimits(sparing spared: Int? = nil) {
    var misses = 0
    var number = spared ?? 0
    while isOverLimits, misses < shards.count {
      number = (number + 1) % shards.count
      if number == spared, misses < shards.count - 1 { continue }
      let shard = shards[misses == shards.count - 1 ? spared ?? number : number]
      let evicted = withState(shard) { state -> Bool in
        // Asked again under the mutex: others may have made room meanwhile, and a slab too many is hundreds of entries.
        switch exceededLimit {
        case .bytes: evictSlab(.bytes, shard, &state)
        case let reason?: evictEntry(reason, shard, &state)
        case nil: true
        }
      }
      misses = evicted ? 0 : misses + 1
    }
  }

  /// Evicts the one entry that the policy names. False: there is none.
  func evictEntry(_ reason: DepartureReason, _ shard: EngineShard, _ state: inout ShardState) -> Bool {
    let before = state.slotCount
    if reason != .pressure { shard.index.noteEviction() }
    if reason == .cost, state.sums[0].cost == 0, state.sums[1].cost == 0 { return false }
    var looks = 0
    while state.slotCount > 0 {
      looks += 1
      // Every entry can be passed on three times at most; beyond that the books and the queues disagree.
      if looks > 4 * before + 1024 { break }
      let queue = nextQueue(reason, shard, state)
      guard let reference = nextElement(queue, shard, &state) ?? nextElement(queue == .main ? .probation : .main, shard, &state)
      else { break }
      switch settle(reference, reason, shard, &state) {
      case .evicted: return true
      case .lost:
        sweepLost(shard, &state)
        if state.slotCount < before { return true }
      case .kept, .unknown: continue
      }
    }
    // The queues have nothing to show, but the index has: what is left there is lost or on its way.
    sweepLost(shard, &state)
    return state.slotCount < before
  }

  /// Main when it holds more than nine tenths, or when probation is empty; else probation.
  private func nextQueue(_ reason: DepartureReason, _ shard: EngineShard, _ state: borrowing ShardState) -> EngineQueue {
    let probation = state.sums[EngineQueue.probation.rawValue]
    let main = state.sums[EngineQueue.main.rawValue]
    if probation.count == 0 { return .main }
    if main.count == 0 { return .probation }
    switch reason {
    case .count:
      let share = countLimit.load(ordering: .relaxed) / shards.count
      return main.count > share - max(1, share / 10) ? .main : .probation
    case .cost:
      if probation.cost == 0 || main.cost == 0 { return main.cost == 0 ? .probation : .main }
      let share = UInt128(costLimit.load(ordering: .relaxed)) / UInt128(shards.count)
      return main.cost > share - share / 10 ? .main : .probation
    default:
      return probation.byteCount * 10 > probation.byteCount + main.byteCount ? .probation : .main
    }
  }

  /// The next living element of a queue, from where the last eviction stopped.
  private func nextElement(_ queue: EngineQueue, _ shard: EngineShard, _ state: inout ShardState) -> purgeable_reference_t? {
    var cursor = state.cursors[queue.rawValue]
    defer { state.cursors[queue.rawValue] = cursor }
    var wraps = 0
    while wraps < 2 {
      if cursor.slab.generation == 0 {
        wraps += 1
        cursor.element = 0
        if unsafe purgeable_stream_oldest(heap.raw, shard.streams[queue.rawValue], &cursor.slab) != 0 {
          cursor.slab.generation = 0
          return nil
        }
      }
      var reference = purgeable_reference_t(place: 0, generation: 0)
      if unsafe purgeable_slab_next_element(heap.raw, cursor.slab, &cursor.element, &reference) == 0 { return reference }
      // Done with this slab. Given back already, or on to the next one; what stays in it is looked at again after a wrap.
      var next = purgeable_slab_t(index: 0, generation: 0)
      if unsafe purgeable_slab_next(heap.raw, cursor.slab, &next) == 0 {
        cursor = EvictionCursor(slab: next)
      } else {
        cursor.slab.generation = 0
      }
    }
    return nil
  }

  // MARK: One element

  enum Settled {
    case evicted, kept, lost, unknown
  }

  /// From which counter on an entry is worth copying. Under pressure there may be no tomorrow: what was read once is worth more
  /// than what was not.
  private func usualThreshold(_ queue: EngineQueue, _ reason: DepartureReason) -> UInt64 {
    queue == .main || reason == .pressure ? 1 : 2
  }

  /// What may be copied, and from which counter on: by a slab's entries together, or without bound.
  struct CopyRule {
    var threshold: UInt64
    var room = Int.max
  }

  /// Decides about one living element: it is evicted, or passed on to main.
  private func settle(
    _ reference: purgeable_reference_t, _ reason: DepartureReason, _ shard: EngineShard, _ state: inout ShardState
  ) -> Settled {
    guard let facts = facts(of: reference, in: shard) else { return .lost }
    guard let pointer = shard.index.find(identity: facts.identity, place: reference.place) else { return .unknown }
    let slot = Slot(bits: pointer.relaxed)
    var rule = CopyRule(threshold: usualThreshold(queue(at: slot.place), reason))
    return settle(
      FoundEntry(found: FoundSlot(pointer: pointer, slot: slot), facts: facts), reason, &rule, shard, &state)
  }

  private func settle(
    _ entry: FoundEntry, _ reason: DepartureReason, _ rule: inout CopyRule, _ shard: EngineShard, _ state: inout ShardState
  ) -> Settled {
    let (found, facts) = (entry.found, entry.facts)
    let slot = found.slot
    if reason == .cost, cost(of: slot, prefixByteCount: facts.prefixByteCount, payloadByteCount: facts.payloadByteCount) == 0 {
      // Evicting it would free nothing: passed over, where it is.
      return .kept
    }
    let byteCount = facts.payloadByteCount + Self.elementOverhead
    if slot.counter >= rule.threshold, byteCount <= rule.room {
      // Into main for the first time: a new life there. Again: one use less.
      let counter = queue(at: slot.place) == .main ? max(slot.counter, 1) - 1 : 0
      switch move(found, to: .main, counter: counter, facts, shard, &state) {
      case .kept:
        if rule.room != .max { rule.room -= byteCount }
        return .kept
      case .lost: return .lost
      case .evicted, .unknown: break
      }
    }
    drop(found, reason, shard, &state, facts: facts)
    return .evicted
  }

  /// Puts an entry at the young end of a queue: by copying, or a large one by handing its slab over. `endsOld`: false where the caller
  /// ends all elements of the old slab afterwards.
  func move(
    _ found: FoundSlot, to queue: EngineQueue, counter: UInt64, _ facts: EntryFacts, _ shard: EngineShard,
    _ state: inout ShardState, endsOld: Bool = true
  ) -> Settled {
    let slot = found.slot
    let old = reference(slot.place)
    let from = self.queue(at: slot.place)
    guard
      let cost = self.cost(of: slot, prefixByteCount: facts.prefixByteCount, payloadByteCount: facts.payloadByteCount)
    else { return .lost }

    var slab = purgeable_slab_t(index: 0, generation: 0)
    var information = purgeable_slab_information_t()
    if facts.payloadByteCount > slabBytes / 4, unsafe purgeable_slab_of(heap.raw, old, &slab) == 0,
      unsafe purgeable_slab_information(heap.raw, slab, &information) == 0, information.is_large
    {
      unbook(slot.place, from, cost: cost, byteCount: facts.payloadByteCount, &state)
      unsafe purgeable_slab_restream(heap.raw, slab, shard.streams[queue.rawValue])
      forgetIdleMarks(at: slab, from, &state)
      book(slot.place, queue, cost: cost, byteCount: facts.payloadByteCount, &state)
      setCounter(found, counter)
      // The slab is in another list now: eviction goes on from the front of this one.
      if state.cursors[from.rawValue].slab.index == slab.index { state.cursors[from.rawValue] = EvictionCursor() }
      return .kept
    }

    guard let (new, bytes) = unsafe allocate(facts.payloadByteCount, queue, shard, &state, mayEvict: false) else {
      return .evicted
    }
    // Without locking: a rescue would take the old page off offer.
    guard unsafe purgeable_heap_read_part(heap.raw, old, 0, bytes.count, bytes.baseAddress) == .intact else {
      unsafe purgeable_heap_free(heap.raw, new)
      return .lost
    }
    unsafe purgeable_heap_commit(heap.raw, new)
    // Exchanged, not stored: a reader may be raising the counter.
    let replacement = Slot(identity: slot.identity, place: new.place, counter: counter, isCosted: slot.isCosted)
    var expected = slot
    while true {
      let (exchanged, now) = found.pointer.exchange(expected.bits, for: replacement.bits)
      if exchanged { break }
      expected = Slot(bits: now)
      precondition(expected.isSameEntry(as: slot), "PurgeableCache: a slot changed under its shard's mutex")
    }
    unbook(slot.place, from, cost: cost, byteCount: facts.payloadByteCount, &state)
    if endsOld { unsafe purgeable_heap_free(heap.raw, old) }
    book(new.place, queue, cost: cost, byteCount: facts.payloadByteCount, &state)
    state.counters.copies += 1
    copiedBytes.add(facts.payloadByteCount, ordering: .relaxed)
    state.changes &+= 1
    return .kept
  }

  func setCounter(_ found: FoundSlot, _ counter: UInt64) {
    while true {
      let now = found.pointer.relaxed
      if found.pointer.exchange(now, for: Slot(bits: now).with(counter: counter)).exchanged { return }
    }
  }

  // MARK: Whole slabs

  /// Gives one slab back by policy: one that is wholly lost, one that is hardly alive, else the oldest of the queue whose turn it is.
  /// False: nothing could be had.
  func evictSlab(_ reason: DepartureReason, _ shard: EngineShard, _ state: inout ShardState) -> Bool {
    if reason != .pressure { shard.index.noteEviction() }
    // A large entry in use is passed on, which frees nothing yet: not for ever, since readers may use it all the time.
    let attempts = 16
    for attempt in 1...attempts {
      guard let slab = chooseSlab(reason, shard, state) else { return false }
      if emptySlab(slab, mayPassOn: attempt < attempts, reason, shard, &state) { return true }
    }
    return false
  }

  /// Copies or evicts what lives in a slab, and gives it back. `isSwept`: known losses have been dropped just now. False: that freed nothing.
  func emptySlab(
    _ slab: purgeable_slab_t, mayPassOn: Bool, isSwept: Bool = false, _ reason: DepartureReason, _ shard: EngineShard,
    _ state: inout ShardState
  ) -> Bool {
    let slots = state.slotCount
    var information = purgeable_slab_information_t()
    guard unsafe purgeable_slab_information(heap.raw, slab, &information) == 0 else { return true }
    var (living, hasLost) = entries(of: slab, shard, state)
    if hasLost || !isSwept && information.lost_page_count > 0 {
      // Before the slab is given back: no slot may be left that leads there.
      sweepLost(shard, &state)
      living.removeAll { !Slot(bits: $0.found.pointer.relaxed).isSameEntry(as: $0.found.slot) }
    }
    empty(slab, information, living, mayPassOn: mayPassOn, reason, shard, &state)
    let isGone = giveBack(slab)
    // Not before: it moves the slots.
    shrinkIndex(shard, &state)
    return isGone || state.slotCount < slots
  }

  private func empty(
    _ slab: purgeable_slab_t, _ information: purgeable_slab_information_t, _ entries: [FoundEntry], mayPassOn: Bool,
    _ reason: DepartureReason, _ shard: EngineShard, _ state: inout ShardState
  ) {
    if isSparse(information) {
      for entry in entries {
        let (found, slot) = (entry.found, entry.found.slot)
        if case .kept = move(found, to: queue(at: slot.place), counter: slot.counter, entry.facts, shard, &state) { continue }
        drop(found, reason, shard, &state, facts: entry.facts)
      }
    } else {
      var rule = copyRule(entries, information, reason)
      if information.is_large, !mayPassOn { rule.threshold = .max }
      emptying(slab, &state) { state in
        for entry in entries { _ = settle(entry, reason, &rule, shard, &state) }
      }
    }
  }

  /// Never more than half a slab is copied, so that every eviction frees memory: where more was used, the most used of it. A large
  /// one is not copied but handed over.
  private func copyRule(
    _ entries: [FoundEntry], _ information: purgeable_slab_information_t, _ reason: DepartureReason
  ) -> CopyRule {
    let queue: EngineQueue = information.stream >= firstMainStream ? .main : .probation
    var rule = CopyRule(threshold: usualThreshold(queue, reason))
    if information.is_large { return rule }
    rule.room = Int(information.held_bytes) / 2
    func byteCount(from counter: UInt64) -> Int {
      entries.reduce(0) { $1.found.slot.counter < counter ? $0 : $0 + $1.facts.payloadByteCount + Self.elementOverhead }
    }
    while rule.threshold < 3, byteCount(from: rule.threshold) > rule.room { rule.threshold += 1 }
    return rule
  }

  /// Header and padding of an element.
  static let elementOverhead = 16

  /// For a store whose own shard is empty: any other shard that is not busy.
  func evictSlabElsewhere(_ reason: DepartureReason, than own: EngineShard) -> Bool {
    for shard in shards where shard !== own {
      let evicted = shard.state.withLockIfAvailable { state -> Bool in
        let evicted = evictSlab(reason, shard, &state)
        if !state.departures.isEmpty, let observer = observer.withLock({ $0.value }) {
          // Told of with the departures of the shard at hand.
          observer.entriesDeparted(state.departures, shard: shard.number)
          state.departures.removeAll(keepingCapacity: true)
        }
        return evicted
      }
      if evicted == true { return true }
    }
    return false
  }

  private func chooseSlab(
    _ reason: DepartureReason, _ shard: EngineShard, _ state: borrowing ShardState
  ) -> purgeable_slab_t? {
    for queue in EngineQueue.allCases {
      if let sparse = findSparse(from: nil, looks: 16, shard.streams[queue.rawValue]).found { return sparse }
    }
    var slab = purgeable_slab_t(index: 0, generation: 0)
    let queue = nextQueue(reason == .count || reason == .cost ? .bytes : reason, shard, state)
    for queue in [queue, queue == .main ? .probation : .main] {
      guard unsafe purgeable_stream_oldest(heap.raw, shard.streams[queue.rawValue], &slab) == 0 else { continue }
      for _ in 0..<64 {
        // What is locked cannot be given back now; it keeps its place in the queue.
        var information = purgeable_slab_information_t()
        guard unsafe purgeable_slab_information(heap.raw, slab, &information) == 0 else { break }
        if information.lock_count == 0 { return slab }
        guard unsafe purgeable_slab_next(heap.raw, slab, &slab) == 0 else { break }
      }
    }
    return nil
  }

  /// Whether a slab is less than a quarter alive, or wholly lost, and sealed.
  func isSparse(_ information: purgeable_slab_information_t) -> Bool {
    // With headers and padding, which are most of a small element. Lost elements are counted, but not their bytes.
    let living = information.living_bytes + (information.lost_page_count == 0 ? UInt64(information.living_count) * 16 : 0)
    return !information.is_open && !information.is_large && information.lock_count == 0 && living * 4 < information.held_bytes
  }

  /// Looks at some sealed slabs for one that is less than a quarter alive, or wholly lost.
  private func findSparse(
    from start: purgeable_slab_t?, looks: Int, _ stream: purgeable_stream_t
  ) -> (found: purgeable_slab_t?, next: purgeable_slab_t?) {
    var slab = purgeable_slab_t(index: 0, generation: 0)
    if let start {
      slab = start
    } else if unsafe purgeable_stream_oldest(heap.raw, stream, &slab) != 0 {
      return (nil, nil)
    }
    for _ in 0..<looks {
      var information = purgeable_slab_information_t()
      guard unsafe purgeable_slab_information(heap.raw, slab, &information) == 0 else { return (nil, nil) }
      if isSparse(information) { return (slab, nil) }
      guard unsafe purgeable_slab_next(heap.raw, slab, &slab) == 0 else { return (nil, nil) }
    }
    return (nil, slab)
  }

  /// Once for every slab stored: copies the living out of a slab that is hardly alive, when much of what is held is dead.
  func compactStep(_ shard: EngineShard, _ state: inout ShardState) {
    let alive = state.sums[0].byteCount + state.sums[1].byteCount + 16 * (state.sums[0].count + state.sums[1].count)
    guard alive * shards.count * 2 < heldBytes else { return }
    for queue in EngineQueue.allCases {
      let start = state.compactionCursor.generation == 0 ? nil : state.compactionCursor
      let (found, next) = findSparse(from: start, looks: 32, shard.streams[queue.rawValue])
      state.compactionCursor = next ?? purgeable_slab_t(index: 0, generation: 0)
      guard let slab = found else { continue }
      var information = purgeable_slab_information_t()
      guard unsafe purgeable_slab_information(heap.raw, slab, &information) == 0 else { continue }
      if information.lost_page_count > 0 { sweepLost(shard, &state) }
      for entry in entries(of: slab, shard, state).living {
        let slot = entry.found.slot
        _ = move(entry.found, to: self.queue(at: slot.place), counter: slot.counter, entry.facts, shard, &state)
      }
      _ = unsafe purgeable_slab_give_back(heap.raw, slab)
      return
    }
  }

  /// The entries that live in a slab, in order of birth, but for those that are lost; whether there are such. Shard's mutex held.
  func entries(
    of slab: purgeable_slab_t, _ shard: EngineShard, _ state: borrowing ShardState
  ) -> (living: [FoundEntry], hasLost: Bool) {
    var references: [purgeable_reference_t] = []
    var cursor: UInt32 = 0
    var reference = purgeable_reference_t(place: 0, generation: 0)
    // The core has the processor fetch each one's header.
    while unsafe purgeable_slab_next_element(heap.raw, slab, &cursor, &reference) == 0 { references.append(reference) }
    var known: [(reference: purgeable_reference_t, facts: EntryFacts)] = []
    known.reserveCapacity(references.count)
    var hasLost = false
    for reference in references {
      guard let facts = facts(of: reference, in: shard) else {
        hasLost = true
        continue
      }
      // Slots and ghosts lie anywhere: fetched while the others are read.
      shard.index.prefetch(identity: facts.identity)
      known.append((reference, facts))
    }
    var living: [FoundEntry] = []
    living.reserveCapacity(known.count)
    for (reference, facts) in known {
      guard let pointer = shard.index.find(identity: facts.identity, place: reference.place) else { continue }
      state.ghost.prefetch(facts.identity)
      living.append(FoundEntry(found: FoundSlot(pointer: pointer, slot: Slot(bits: pointer.relaxed)), facts: facts))
    }
    return (living, hasLost)
  }
}
