// SPDX-License-Identifier: MIT
// Stores and removals, and making room for them.

import CPurgeable
import Synchronization

/// ENOMEM, the one error that eviction can help against. Defined here so that no C library is imported for it.
let outOfMemoryNumber: Int32 = 12

/// Memory of an element that no slot leads to yet.
@safe struct FreshElement {
  let reference: purgeable_reference_t
  let bytes: UnsafeMutableRawBufferPointer
}

/// The length and the cost of an entry that is to be stored.
struct EntrySize {
  let cost: UInt64
  /// Of the payload: prefix, head and value.
  let byteCount: Int
  /// More than an element can have.
  let isTooLong: Bool
  let credit: Int

  @inline(__always)
  init(prefixByteCount: Int, valueByteCount: Int, _ head: EntryHead, _ credits: borrowing RecomputeCredit) {
    cost = head.cost ?? UInt64(valueByteCount)
    let (prefixed, overflow) = valueByteCount.addingReportingOverflow(prefixByteCount + head.byteCount)
    byteCount = max(1, prefixed)
    isTooLong = overflow || byteCount > Int(bitPattern: UInt(0xFFFF_FFFF - 64 << 20))
    credit = credits.noted(head.recomputeCost, byteCount: byteCount)
  }
}

extension HeldShard {
  /// Stores `value` under a key whose payload begins with `prefix`. `shards`: those that may give room when this shard has
  /// nothing left to evict.
  mutating func store(
    _ key: EngineKey, _ prefix: RawSpan, _ value: RawSpan, _ head: EntryHead,
    among shards: borrowing CacheShards
  ) -> StoreOutcome {
    let size = EntrySize(prefixByteCount: prefix.byteCount, valueByteCount: value.byteCount, head, base.credits)
    let old = find(key, prefix)
    let changesBefore = slots.changes
    if isRefused(size, key, old) { return .tooLarge }
    guard let destination = destination(of: key, size, head.priority, old) else { return pinRefusal }
    defer { base.totals.endReservation(destination.reserved) }
    let lane = lane(destination.queue, head)
    if base.limits.areStrict { makeRoom(for: size.cost, of: key, replacing: old) }
    guard let element = allocate(size.byteCount, lane, among: shards) else { return .outOfMemory }
    unsafe EntryPrefix.write(prefix, head, value, to: element.bytes)
    // Making room may have evicted the old value, or moved it.
    let replaced = slots.changes == changesBefore ? old : find(key, prefix)
    return enter(
      element, key, size, head, lane, replacing: replaced, hadOld: old != nil, isRemembered: destination.isRemembered)
  }

  /// Whether an entry exceeds a limit even when it is alone; then the key's old value goes.
  @inline(__always)
  mutating func isRefused(_ size: EntrySize, _ key: EngineKey, _ old: FoundSlot?) -> Bool {
    guard size.isTooLong || base.exceedsWholeLimit(size.cost, size.byteCount) else { return false }
    if let old { drop(old, .replaced) } else { endHollow(key, .replaced) }
    counters.refusals += 1
    return true
  }

  /// Where a key's new value goes: as its priority says; else a replaced entry stays in its queue, and the store counts as a
  /// use. nil where it may not be pinned.
  @inline(__always)
  mutating func destination(
    of key: EngineKey, _ size: EntrySize, _ priority: EntryPriority?, _ old: FoundSlot?
  ) -> EntryDestination? {
    let destination: EntryDestination?
    if priority != nil || hasPriorities {
      destination = self.destination(of: key, size, priority, replacing: old)
    } else if let old {
      destination = EntryDestination(queue: heap.queue(at: old.slot.place))
    } else {
      destination = newDestination(of: key, size)
    }
    if let old, let queue = destination?.queue { noteUse(of: old, as: queue.priority) }
    return destination
  }

  /// Of a normal entry. A key whose entry was evicted or lost not long ago goes to main.
  @inline(__always)
  func newDestination(of key: EngineKey, _ size: EntrySize) -> EntryDestination {
    let memory = ghost.memory(of: key.ghostIdentity)
    // The ghost has the size for the most entries that there were; once memory was short, for more, whose reasons are told.
    let remembered = base.limits.hasFeltPressure ? 0 : ghost.rememberedLimit
    let isRecent = memory.map { $0.age <= max(64, remembered, order.rememberedCount(ofLiving: slots.count)) } ?? false
    let reason = isRecent ? memory?.reason : nil
    let queue =
      entryOrder == nil ? order.queue(ofNew: reason, credit: size.credit, fillsMain: fillsMain(with: size)) : .main
    return EntryDestination(queue: queue, isRemembered: memory != nil)
  }

  /// Whether a new entry comes while nothing has had to go, there is room for it, and the order fills main.
  @inline(__always)
  private func fillsMain(with size: EntrySize) -> Bool {
    let byteLimit = base.limits.bytes.load(ordering: .relaxed)
    return (base.limits.areStrict || byteLimit != .max) && !hasEvicted && fillsMain(with: size, byteLimit)
  }

  @inline(never)
  private func fillsMain(with size: EntrySize, _ byteLimit: Int) -> Bool {
    let (countLimit, costLimit) = (base.limits.count.load(ordering: .relaxed), base.limits.cost.load(ordering: .relaxed))
    let open = base.openCount
    let share = QueueSums(cost: UInt128(costLimit) / UInt128(open), count: countLimit / open, byteCount: byteLimit / open)
    return base.count < countLimit && base.totalCost + UInt128(size.cost) <= UInt128(costLimit)
      && chargedBytes + size.byteCount <= byteLimit
      && order.fillsMain(beside: books[.probation], limit: share)
  }

  /// Commits an element that has been written, and has the index lead to it. `hadOld`: the key had a value when the store began.
  @inline(__always)
  mutating func enter(
    _ element: FreshElement, _ key: EngineKey, _ size: EntrySize, _ head: EntryHead, _ lane: Lane,
    replacing replaced: FoundSlot?, hadOld: Bool, isRemembered: Bool, restored: EntryRank? = nil
  ) -> StoreOutcome {
    heap.commit(element.reference)
    // Any use would make it normal.
    let isSpeculative = lane.queue == .speculative
    let counter =
      isSpeculative ? 0 : restored?.useCount ?? order.counter(ofNew: size.credit, replacing: replaced?.slot.counter)
    let slot = Slot(identity: key.identity, place: element.reference.place, counter: counter, hasHead: !head.isEmpty)
    let use = restored?.lastUse ?? useNow(head)
    var hadOld = hadOld
    if let replaced {
      replace(replaced, by: slot, use)
      counters.replacements += 1
    } else {
      guard insert(slot, lastUse: use, isRestored: restored != nil) else {
        heap.free(element.reference)
        return .outOfMemory
      }
      counters.insertions += 1
      if endHollow(key, .replaced) { hadOld = true }
      // Making room may have evicted the old value, whose key then is in the ghost.
      if isRemembered || hadOld { ghost.forget(key.ghostIdentity) }
    }
    assert(index.find(identity: slot.identity, place: slot.place) != nil, "PurgeableCache: a stored entry is not found")
    books.book(slot.place, lane.queue, cost: size.cost, byteCount: size.byteCount)
    noteEnd(head, use, of: element.reference)
    compaction.stored += size.byteCount
    return replaced == nil && !hadOld ? .stored : .replaced
  }

  /// Exchanges an entry's slot for one with the new place. Readers see either the old value or the new one.
  private mutating func replace(_ old: FoundSlot, by slot: Slot, _ lastUse: UseTime?) {
    assert(old.slot.identity == slot.identity, "PurgeableCache: another key's entry is replaced")
    let reference = heap.reference(old.slot.place)
    let copy = unbook(old.slot, elements.parts(of: old.slot), from: heap.queue(at: old.slot.place), .replaced)
    // Release: a reader that sees the slot sees the committed element.
    old.pointer.store(releasing: slot.bits)
    if let lastUse { index.current().lastUse(of: old.pointer).set(lastUse) }
    heap.free(reference)
    report(old.slot, .replaced, copy)
  }

  // MARK: Memory

  private enum Taking {
    case taken(FreshElement)
    /// There is no memory for the sums of more pages, or no slot can name the place. Places in a slab that is given back have
    /// sums already.
    case noBooks
    case refused(errorNumber: Int32)
  }

  /// Allocates without evicting. `lane`: nil for the stream of elements that are written under no mutex. `limit`: of the heap's
  /// charged bytes, 0 for none.
  @inline(__always)
  private mutating func take(_ byteCount: Int, _ lane: Lane?, limit: Int) -> Taking {
    let (error, reference, bytes) = unsafe heap.allocate(
      byteCount, in: lane.map { stream($0) } ?? heap.writingStream, limit: limit)
    guard error == 0 else { return .refused(errorNumber: error) }
    guard reference.place < Slot.placeLimit, base.pageSums.prepare(place: reference.place) else {
      heap.free(reference)
      return .noBooks
    }
    if let lane { noteBirth(reference, lane) }
    return unsafe .taken(FreshElement(reference: reference, bytes: bytes))
  }

  /// Allocates memory for a payload, evicting where the byte limit, slow growth or the machine refuses it. `lane`: as in `take`.
  /// Sets `missedRoom`, which `takeDue` resets.
  mutating func allocate(_ byteCount: Int, _ lane: Lane?, among shards: borrowing CacheShards) -> FreshElement? {
    var (hasEvicted, refusalsByMachine) = (false, 0)
    // Until a compaction has been noticed.
    var copiesBefore: UInt64? = counters.copies
    // Slow growth after pressure is no strict limit: it yields when nothing is left to evict, and to the copies that an eviction
    // makes.
    let isAsking = base.isAsking.load(ordering: .relaxed)
    var soft = isAsking ? .max : base.growthLimit
    // A large value may need as many evictions as it is slabs long, and more where slabs hold little.
    for _ in 0..<256 + 4 * (byteCount / heap.slabBytes) {
      // Read anew each time: another thread may change or lift the limit meanwhile.
      let strict = isAsking ? .max : base.limits.bytes.load(ordering: .relaxed)
      let limit = min(strict, soft)
      // The reason for an eviction: the byte limit, slow growth, or the machine's refusal.
      var reason = soft < strict ? DepartureReason.growth : strict == .max ? .pressure : .bytes
      let slabLimit = slabLimit(limit)
      switch take(byteCount, lane, limit: slabLimit) {
      case .taken(let element):
        missedRoom = false
        return element
      case .noBooks:
        refusalsByMachine += 1
        guard let lane, byteCount <= heap.slabBytes / 2, refusalsByMachine <= 4 else { return nil }
        heap.seal(stream(lane))
        readyGhost()
        guard evictSlab(.pressure) else { return nil }
        continue
      case .refused(let errorNumber):
        guard errorNumber == outOfMemoryNumber else { return nil }
      }
      if slabLimit == 0 || heap.chargedBytes + byteCount + byteCount / 1024 + 2 * heap.slabBytes <= slabLimit {
        reason = .pressure
        // The machine refused, not the limit. A slab that is given back makes room for a payload that fits into a slab; nothing
        // helps a larger one.
        refusalsByMachine += 1
        if byteCount > heap.slabBytes / 2 || refusalsByMachine > 4 { return nil }
      } else if base.isWithoutRoom(byteCount) {
        // Evicting all that can be evicted would not help.
        return nil
      }
      readyGhost()
      if freeSlab(reason) {
        hasEvicted = true
        continue
      }
      // This shard has nothing left: try the others whose mutexes are free.
      switch shards.freeSlabElsewhere(reason, than: &self) {
      case .freed:
        hasEvicted = true
        continue
      case .busy: missedRoom = true
      case .nothing: break
      }
      // What lives in slabs with holes has moved together: the slab that took it may have room.
      if let before = copiesBefore, counters.copies != before {
        copiesBefore = nil
        continue
      }
      // What was evicted did not go back: another thread is offering it.
      missedRoom = missedRoom || hasEvicted
      if soft == .max { return nil }
      soft = .max
    }
    return nil
  }

  /// Allocates memory for a copy, without evicting. The limit is raised by one slab, and by the bytes of a large entry, because
  /// the slab that the copy comes from is about to be given back; where a lowered limit is already exceeded, the slab is added to
  /// what is held.
  mutating func allocateCopy(_ byteCount: Int, _ lane: Lane) -> FreshElement? {
    let limit = base.limits.bytes.load(ordering: .relaxed)
    // With its witnesses, in whole pages.
    let room = heap.slabBytes + (byteCount > heap.slabBytes / 4 ? byteCount + byteCount / 128 : 0)
    let slabLimit =
      limit == .max ? 0 : min(max(limit - min(limit - 1, base.ordinaryBytes), heap.chargedBytes), .max - room) + room
    guard case .taken(let element) = take(byteCount, lane, limit: slabLimit) else { return nil }
    return element
  }

  /// Allocates memory for a restored entry, without evicting. The byte limit is kept, with room for the bookkeeping that the
  /// store takes beside its element, and for the shards that it opens.
  mutating func allocateWithinLimit(_ byteCount: Int, _ lane: Lane) -> FreshElement? {
    let byteLimit = base.limits.bytes.load(ordering: .relaxed)
    let room = byteLimit == .max ? .max : byteLimit - min(byteLimit / 64, 128 << 10)
    guard case .taken(let element) = take(byteCount, lane, limit: slabLimit(room)) else { return nil }
    return element
  }

  /// As the cache's, but for the nodes of keys that have left: they are freed when that is told, after the mutex is released.
  private var ordinaryBytes: Int { base.ordinaryBytes - departures.pendingByteCount }

  /// What the byte limit counts.
  var chargedBytes: Int { heap.chargedBytes + ordinaryBytes }

  /// What a limit of all charged bytes leaves for slabs; 0 for no limit.
  private func slabLimit(_ limit: Int) -> Int { limit == .max ? 0 : max(1, limit - min(limit - 1, ordinaryBytes)) }

  /// Counts an element. Notes the age of its slab when the element is the first in it (`SlabHeap.age`).
  @inline(__always)
  mutating func noteBirth(_ reference: purgeable_reference_t, _ lane: Lane) {
    index.countBirth()
    let slab = heap.slab(of: reference)
    if !slab.isSame(as: lanes[lane].youngest) { noteFirst(of: slab, lane) }
  }

  @inline(never)
  private mutating func noteFirst(of slab: purgeable_slab_t, _ lane: Lane) {
    guard let information = heap.information(slab) else { return }
    let now = base.indexes.birthCount
    heap.noteAge(of: slab, first: now, last: information.is_large ? now : 0)
    noteCore(slab, in: lane)
    if lane.number >= laneTimes.firstTimed { base.slabNotes[deadlinesOf: slab] = nil }
    if information.is_large { return }
    heap.noteAge(of: lanes[lane].youngest, first: 0, last: now)
    lanes[lane].youngest = slab
  }

  // MARK: After a store

  /// Whether a slab's worth of bytes was stored since the last search for sparse slabs.
  var isCompactionDue: Bool { compaction.stored >= heap.slabBytes }

  /// What is due after a store, when the mutex has been released.
  mutating func takeDue() -> DueAfterStore {
    DueAfterStore(isCompaction: isCompactionDue, missedRoom: exchange(&missedRoom, with: false))
  }

  // MARK: The index

  /// Makes the index smaller when most of it is empty.
  mutating func shrinkIndex() {
    let sizeClass = shrunkSizeClass(ofCount: slots.count)
    if sizeClass < index.sizeClass { _ = resizeIndex(to: sizeClass) }
  }

  /// The size that the index shrinks to with so many slots in use: smaller by two sizes at least, so that the index does not
  /// shrink and grow by turns, or the present one.
  func shrunkSizeClass(ofCount count: Int) -> Int {
    var sizeClass = index.sizeClass
    while sizeClass > 0, count * 10 < SlotIndex.bucketCount(of: sizeClass - 1) * SlotIndex.slotsPerBucket * 6 { sizeClass -= 1 }
    return sizeClass + 2 <= index.sizeClass ? sizeClass : index.sizeClass
  }

  /// Moves the slots to a table of another size. False, with nothing changed, when there is no memory or the slots do not fit.
  mutating func resizeIndex(to sizeClass: Int) -> Bool {
    guard index.resize(to: sizeClass, carryingOver: entryOrder) else { return false }
    slots.exchange()
    noteIndexBytes()
    return true
  }

  /// Called when the index, the lanes, or what an order keeps of its positions, have another size.
  mutating func noteIndexBytes() {
    books.noteIndexBytes(index.byteCount + lanes.byteCount + (entryOrder?.byteCount ?? 0))
  }

  // MARK: Removing

  mutating func remove(_ key: EngineKey, _ prefix: RawSpan, _ reason: DepartureReason = .removed) -> Bool {
    guard let found = find(key, prefix) else { return endHollow(key, reason) }
    drop(found, reason)
    return true
  }
}

// MARK: Conditions

/// What has to hold for a value to be stored. Asked under the mutex of the key's shard, where it is stored then. Indirect: most
/// stores have no condition, and handing on none of it should take a word.
indirect enum StoreCondition {
  /// Of a value that was loaded: nothing has overtaken the load. Where there is a second tier: it says yes, and hears of the
  /// value so when its turn among all stores of the key is decided (PurgeableCache+Tier.swift).
  case announced(LoadPermit?, (() -> Bool)?)
  /// The key's entry is as it was peeked at, with a digest; nil: there is none.
  case unchanged(PeekedEntry?)

  /// Whether it would hold now. For stores that write the value before they ask.
  func mayHold(_ key: EngineKey, _ prefix: RawSpan, in held: inout HeldShard) -> Bool {
    switch self {
    case .announced(let permit, _): permit?.mayBeTaken ?? true
    case .unchanged(let peeked): held.peeked(key, prefix, digests: true) == peeked
    }
  }

  /// Asked once.
  func holds(_ key: EngineKey, _ prefix: RawSpan, in held: inout HeldShard) -> Bool {
    guard mayHold(key, prefix, in: &held) else { return false }
    guard case .announced(let permit, let announce) = self else { return true }
    return (permit?.take() ?? true) && (announce?() ?? true)
  }
}
