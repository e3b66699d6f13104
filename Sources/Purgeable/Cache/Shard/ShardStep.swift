// SPDX-License-Identifier: MIT
// One step from some shards to others (CacheShards+Step.swift): what is copied, in which order, and what is freed afterwards.

import CPurgeable

/// The position of a walk through one queue of a source.
private struct QueueWalk {
  var slab = purgeable_slab_t.none
  var information = SlabInformation()
  /// The slab in use after `slab`, looked up before a large slab leaves the stream.
  var next: purgeable_slab_t?
  var cursor: UInt32 = 0
  /// The age of the present element; `.max` at the end of the queue.
  var age = UInt64.max
  var reference = purgeable_reference_t(place: 0, generation: 0)
}

/// From beginning to end, the calling thread holds the mutexes of all sources and targets.
struct ShardStep {
  private let base: CacheBase
  private let heap: SlabHeap
  private let elements: ElementReader
  private let sources: [EngineShard]
  private let targets: [EngineShard]
  /// The mask that will lead to the targets, and the one that leads to the sources.
  private let mask: UInt64
  private let oldMask: UInt64
  private let now: UInt64
  /// A bit for each slot of the sources, in their order: set once the entry has a slot in its target's index.
  private let moved: MovedSlots?

  init(_ base: CacheBase, _ sources: [EngineShard], _ targets: [EngineShard], mask: UInt64, was oldMask: UInt64) {
    (self.base, self.sources, self.targets) = (base, sources, targets)
    (self.mask, self.oldMask) = (mask, oldMask)
    heap = base.heap
    elements = base.elements
    now = base.indexes.birthCount
    moved = MovedSlots(sources.map { $0.index.current().slotCount })
  }

  private enum Outcome {
    case moved, lost, refused
  }

  /// The shard of a key under a given mask.
  private func shard(of hash: UInt64, behind mask: UInt64, _ shards: [EngineShard]) -> EngineShard {
    mask == 0 ? shards[0] : shards[Int(hash & mask & (EngineKey.firstOther - 1))]
  }

  /// The `shardHash` of an entry's key; nil for a tracked number whose key is gone.
  private func shardHash(of slot: Slot, _ facts: EntryFacts) -> UInt64? {
    if let hash = facts.shardHash { return hash }
    guard slot.isTracked else { return nil }
    return base.observer?.hash(ofNumber: EngineKey.trackedNumber(of: slot)).map(EngineKey.shardHash)
  }

  // MARK: Copying

  /// Copies all entries to the targets, and drops from the sources those that turn out to be lost. False when there is no memory.
  func copyAll() -> Bool {
    guard let moved else { return false }
    // A shard that was left may have slabs that were locked, and marks at them.
    for target in targets { target.held.whileHeld { $0.idleMarks = InlineArray(repeating: IdleMarks()) } }
    guard makeRoomInIndexes() else { return false }
    for queue in EvictionQueue.both {
      guard copy(queue, moved) else { return false }
    }
    return dropLost(moved)
  }

  /// Grows the indexes of the targets in advance, so that they rarely have to grow during the copy.
  private func makeRoomInIndexes() -> Bool {
    let slots = sources.reduce(0) { $0 + $1.held.whileHeld { $0.slots.count } }
    let count = CacheShards.count(behind: mask)
    let share = slots / count + slots / count / 8
    var sizeClass = 0
    while sizeClass < SlotIndex.classCount - 1,
      SlotIndex.bucketCount(of: sizeClass) * SlotIndex.slotsPerBucket * 7 < share * 10
    { sizeClass += 1 }
    for target in targets.prefix(count) where target.index.sizeClass < sizeClass {
      guard target.held.whileHeld({ $0.resizeIndex(to: sizeClass) }) else { return false }
    }
    return true
  }

  /// Copies one queue of all sources, always from the source whose next element is the oldest.
  private func copy(_ queue: EvictionQueue, _ moved: MovedSlots) -> Bool {
    var walks = InlineArray<16, QueueWalk>(repeating: QueueWalk())
    for i in sources.indices {
      if let slab = heap.nextInUse(after: nil, of: stream(of: sources[i], queue)) {
        begin(&walks[i], slab, i, queue)
        advance(&walks[i], i, queue)
      }
    }
    while true {
      var oldest = 0
      for i in sources.indices where walks[i].age < walks[oldest].age { oldest = i }
      if walks[oldest].age == .max { return true }
      let outcome = copy(walks[oldest].reference, age: max(1, walks[oldest].age), queue, from: oldest, moved)
      if outcome == .refused { return false }
      advance(&walks[oldest], oldest, queue)
    }
  }

  private func begin(_ walk: inout QueueWalk, _ slab: purgeable_slab_t, _ source: Int, _ queue: EvictionQueue) {
    walk = QueueWalk()
    walk.slab = slab
    walk.information = heap.information(slab) ?? SlabInformation()
    walk.next = heap.nextInUse(after: slab, of: stream(of: sources[source], queue))
  }

  /// Advances a walk to the next element, in this slab or a later one.
  private func advance(_ walk: inout QueueWalk, _ source: Int, _ queue: EvictionQueue) {
    while true {
      let isMoved = walk.information.is_large && walk.cursor != 0
      if !isMoved, let reference = heap.nextElement(of: walk.slab, &walk.cursor) {
        walk.reference = reference
        walk.age = walk.information.age(at: walk.cursor, now: now)
        return
      }
      if sources.count == 1 { copyIdleMark(at: walk.slab, queue) }
      guard let next = walk.next else {
        walk.age = .max
        return
      }
      begin(&walk, next, source, queue)
    }
  }

  /// Copies an idle mark to the targets. All entries of the source up to this slab are older than the mark's time, and so are all
  /// entries that the targets have got so far.
  private func copyIdleMark(at slab: purgeable_slab_t, _ queue: EvictionQueue) {
    let mark = sources[0].held.whileHeld { $0.idleMarks[queue.rawValue].mark(at: slab) }
    guard let mark else { return }
    for target in targets {
      let stream = stream(of: target, queue)
      heap.seal(stream)
      guard let youngest = heap.youngest(of: stream) else { continue }
      target.held.whileHeld { held in
        // A walk that began anew has copied this mark already.
        guard (held.idleMarks[queue.rawValue].last?.time ?? 0) <= mark.time else { return }
        held.idleMarks[queue.rawValue].append(IdleMark(time: mark.time, slab: youngest))
      }
    }
  }

  /// Copies one entry to its shard under the new mask.
  private func copy(
    _ reference: purgeable_reference_t, age: UInt64, _ queue: EvictionQueue, from number: Int, _ moved: MovedSlots
  ) -> Outcome {
    let source = sources[number]
    guard let facts = elements.facts(of: reference),
      let found = source.index.find(identity: facts.identity, place: reference.place),
      let hash = shardHash(of: found.slot, facts)
    else { return .lost }
    if moved.contains(source.index.number(of: found.pointer), of: number) { return .moved }
    let target = shard(of: hash, behind: mask, targets)
    assert(target.number != source.number, "PurgeableCache: an entry is moved to the shard it is in")
    let entry = FoundEntry(found: found, facts: facts)
    let outcome = source.held.whileHeld { from in
      target.held.whileHeld { to in copy(entry, reference, age: age, queue, &from, &to) }
    }
    if outcome == .moved { moved.insert(source.index.number(of: found.pointer), of: number) }
    return outcome
  }

  private func copy(
    _ entry: FoundEntry, _ reference: purgeable_reference_t, age: UInt64, _ queue: EvictionQueue, _ from: inout HeldShard,
    _ to: inout HeldShard
  ) -> Outcome {
    let (slot, facts) = (entry.found.slot, entry.facts)
    guard let cost = elements.cost(of: slot, facts) else { return .lost }
    let slab = heap.slab(of: reference)
    if facts.payloadByteCount > heap.slabBytes / 4, heap.information(slab)?.is_large == true {
      guard insert(slot, &to) else { return .refused }
      from.books.unbook(slot.place, queue, cost: cost, byteCount: facts.payloadByteCount)
      heap.move(slab, to: to.stream(queue))
      to.books.book(slot.place, queue, cost: cost, byteCount: facts.payloadByteCount)
      return .moved
    }
    guard let new = to.allocateCopy(facts.payloadByteCount, queue, isStep: true, age: age) else { return .refused }
    // Copied without a lock: locking would take the old page off offer.
    guard unsafe elements.copy(reference, from: 0, into: new.bytes) else {
      heap.free(new.reference)
      return .lost
    }
    heap.commit(new.reference)
    // A use that a reader counts in the old slot meanwhile is lost. Counters are only hints.
    let copy = Slot(identity: slot.identity, place: new.reference.place, counter: slot.counter, isCosted: slot.isCosted)
    guard insert(copy, &to) else {
      heap.free(new.reference)
      return .refused
    }
    to.books.book(copy.place, queue, cost: cost, byteCount: facts.payloadByteCount)
    return .moved
  }

  private func insert(_ slot: Slot, _ target: inout HeldShard) -> Bool {
    for _ in 0..<8 {
      if target.index.insert(slot) {
        target.slots.fill()
        return true
      }
      let larger = SlotIndex.nextSizeClass(after: target.index.sizeClass)
      guard target.resizeIndex(to: larger) || target.resizeIndex(to: SlotIndex.nextSizeClass(after: larger)) else { return false }
    }
    return false
  }

  /// Goes through the slots that were not moved: moves entries that were only busy, and drops lost ones. False when an entry is
  /// intact but cannot be moved.
  private func dropLost(_ moved: MovedSlots) -> Bool {
    for (number, source) in sources.enumerated() {
      let table = source.index.current()
      guard let slots = table.slots else { continue }
      for i in 0..<table.slotCount where !moved.contains(i, of: number) {
        let slot = Slot(bits: slots[i].relaxed)
        if slot.isEmpty { continue }
        if !elements.isGone(slot.place) {
          let queue = heap.queue(at: slot.place)
          if copy(heap.reference(slot.place), age: now, queue, from: number, moved) == .moved { continue }
          // The entry may have been lost since the first check.
          if !elements.isGone(slot.place) { return false }
        }
        source.held.whileHeld { $0.drop(FoundSlot(pointer: slots[i], slot: slot), .discarded) }
        // Here, because the step may still fail.
        heap.free(heap.reference(slot.place))
      }
    }
    return true
  }

  // MARK: Freeing

  private func stream(of shard: EngineShard, _ queue: EvictionQueue) -> purgeable_stream_t {
    shard.held.whileHeld { $0.stream(queue) }
  }

  /// After the new mask was published: no look-up leads to the sources any more.
  func freeSources() {
    heap.givingBackTogether {
      for source in sources { source.held.whileHeld { free(&$0) } }
    }
    for target in targets where target.index.sizeClass > 0 { target.held.whileHeld { $0.prepareGhost() } }
  }

  /// After a failed copy: the mask still leads to the sources.
  func freeTargets() {
    for target in targets {
      target.held.whileHeld { held in
        // Large entries go back first, to the young end of the queue they came from.
        for queue in EvictionQueue.both { returnLarge(queue, &held) }
        free(&held)
      }
    }
    for source in sources {
      source.held.whileHeld { held in
        for queue in EvictionQueue.both { held.queues[queue.rawValue].cursor = EvictionCursor() }
      }
    }
  }

  private func returnLarge(_ queue: EvictionQueue, _ target: inout HeldShard) {
    var following = heap.nextInUse(after: nil, of: target.stream(queue))
    while let slab = following {
      following = heap.nextInUse(after: slab, of: target.stream(queue))
      guard heap.information(slab)?.is_large == true else { continue }
      var cursor: UInt32 = 0
      var source = sources[0]
      if let reference = heap.nextElement(of: slab, &cursor) {
        if let facts = elements.facts(of: reference),
          let found = target.index.find(identity: facts.identity, place: reference.place),
          let hash = shardHash(of: found.slot, facts), let cost = elements.cost(of: found.slot, facts)
        {
          source = shard(of: hash, behind: oldMask, sources)
          target.books.unbook(reference.place, queue, cost: cost, byteCount: facts.payloadByteCount)
          source.held.whileHeld { $0.books.book(reference.place, queue, cost: cost, byteCount: facts.payloadByteCount) }
        } else {
          // Lost meanwhile: its page goes off the books now, and its slot is dropped when it is found.
          target.books.unbookLostPage(reference.place, queue)
        }
      }
      heap.move(slab, to: stream(of: source, queue))
    }
  }

  /// Frees everything that is left in a shard that no look-up leads to.
  private func free(_ held: inout HeldShard) {
    // The index first: a reader that is still looking at it finds its version raised before any element is freed.
    held.index.empty()
    held.books.noteIndexBytes(held.index.byteCount)
    for queue in EvictionQueue.both {
      var following = heap.nextInUse(after: nil, of: held.stream(queue))
      while let slab = following {
        following = heap.nextInUse(after: slab, of: held.stream(queue))
        for page in heap.pages(of: slab) { held.books.unbookPage(page, queue) }
        heap.freeElements(of: slab)
        _ = heap.giveBackAny(slab)
      }
      // Those that were empty already, and those that are locked, which end with their last unlock.
      for slab in heap.slabs(of: held.stream(queue)) { _ = heap.giveBackAny(slab) }
    }
    held.books.forgetAll()
    held.forgetEntries()
    assert(held.books.count == 0 && held.books.cost == 0, "PurgeableCache: a shard that was freed has entries")
  }
}

/// A bit for each slot of several indexes. The allocation may fail.
@safe private final class MovedSlots {
  private let words: UnsafeMutablePointer<UInt64>
  private let byteCount: Int
  private let firsts: [Int]

  init?(_ slotCounts: [Int]) {
    var firsts: [Int] = []
    var bits = 0
    for count in slotCounts {
      firsts.append(bits)
      bits += count
    }
    self.firsts = firsts
    byteCount = (bits / 8 + 8 + 4095) / 4096 * 4096
    guard let raw = unsafe purgeable_bookkeeping_map(byteCount) else { return nil }
    unsafe words = raw.bindMemory(to: UInt64.self, capacity: byteCount / 8)
  }

  deinit { unsafe purgeable_bookkeeping_unmap(words, byteCount) }

  // In bounds: `slot` is the number of a slot in an index that was counted, and no source's index is resized during the step.
  func insert(_ slot: Int, of index: Int) {
    let bit = firsts[index] + slot
    assert(slot >= 0 && bit / 8 < byteCount, "PurgeableCache: a slot that was not counted")
    unsafe words[bit / 64] |= 1 << UInt64(bit % 64)
  }

  func contains(_ slot: Int, of index: Int) -> Bool {
    let bit = firsts[index] + slot
    return unsafe words[bit / 64] & 1 << UInt64(bit % 64) != 0
  }
}
