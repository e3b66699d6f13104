// SPDX-License-Identifier: MIT
// A shard while its mutex is held. All changes of a shard are made by methods of this type, and code that has a `HeldShard` holds
// the mutex.

import CPurgeable
import Synchronization

/// How many slots of the index are in use.
struct SlotCount {
  private(set) var count = 0
  /// Raised whenever a slot is emptied or exchanged: while it stands, a slot that was found before is still valid.
  private(set) var changes: UInt64 = 0

  mutating func fill() { count += 1 }

  /// A slot was exchanged for one with another place, or the table was exchanged with all slots.
  mutating func exchange() { changes &+= 1 }

  mutating func empty(_ emptied: Int) {
    assert(emptied >= 0 && emptied <= count, "PurgeableCache: more slots are emptied than there are")
    count -= emptied
    changes &+= 1
  }
}

/// How far the search for sparse slabs has got.
struct CompactionProgress {
  /// Bytes stored since the last search.
  var stored = 0
  var cursor = purgeable_slab_t.none
}

/// What a store leaves to be done when its shard's mutex has been released.
struct DueAfterStore {
  var isCompaction = false
  /// The store got no memory for something that another thread did at that moment (`CacheEngine.makesRoom`).
  var missedRoom = false
}

/// Counts of a shard's events since the cache was made.
struct EngineCounters {
  var insertions: UInt64 = 0
  var replacements: UInt64 = 0
  /// Priorities that were changed.
  var priorities: UInt64 = 0
  /// By reason, with room for more reasons. Inline, so a copy of the counters needs no allocation.
  var departures = InlineArray<16, UInt64>(repeating: 0)
  var misses = InlineArray<16, UInt64>(repeating: 0)
  var copies: UInt64 = 0
  var refusals: UInt64 = 0
}

/// No part of it grows while memory is given back.
struct HeldShard: ~Copyable {
  private let stays = StaysInPlace()
  let number: Int
  let base: CacheBase
  let heap: SlabHeap
  let index: SlotIndex
  var lanes = ShardLanes()
  var laneTimes = LaneTimes()
  /// How many queues may have entries: the first two, or all.
  var queueCount = EvictionQueue.firstCount
  /// Whether the last look at the core kept all of main: then what is new in probation is kept too.
  var coreHasMain = false
  /// When the oldest slabs may be searched for expired entries again.
  var nextSearch: UInt64 = 0
  /// nil where slabs are named.
  let entryOrder: (any EntryOrder)?
  var books: ShardBooks
  var ghost: Ghost
  var keys: ShardKeys
  var departures: ShardDepartures
  var slots = SlotCount()
  /// Whether an entry had to go, for another one or for want of memory, since the shard was empty or limits were changed.
  var hasEvicted = false
  var counters = EngineCounters()
  var compaction = CompactionProgress()
  /// Lost entries that evictions took off the books or came upon again, since the slots of lost entries were dropped last.
  var passedLostCount = 0
  /// Of the last allocation: as in `DueAfterStore`.
  var missedRoom = false

  init(_ number: Int, _ base: CacheBase, _ index: SlotIndex) {
    self.number = number
    self.base = base
    heap = base.heap
    self.index = index
    entryOrder = base.makeEntryOrder()
    books = ShardBooks(base, index)
    ghost = Ghost(countedIn: base.totals)
    keys = ShardKeys(base.observer?.nodes)
    departures = ShardDepartures(base.observer)
    if base.isTiered.load(ordering: .relaxed) { index.keepLastUses() }
    books.noteIndexBytes(index.byteCount)
  }

  var order: S3FIFOOrder { base.order }
  var elements: ElementReader { base.elements }

  /// Which of each lane's streams are its own: the founder's come first.
  var place: Int { number == 0 ? 0 : number - Int(EngineKey.firstOther) + 1 }

  func stream(_ lane: Lane) -> purgeable_stream_t { heap.streams[lane, place] }

  /// The lanes that may have entries: of all queues, of those that are evicted from, or of one.
  var usedLanes: Lanes { Lanes(laneTimes.count, of: 0..<queueCount) }
  var evictedLanes: Lanes { Lanes(laneTimes.count, of: 0..<min(queueCount, EvictionQueue.evictedCount)) }
  func usedLanes(of queue: EvictionQueue) -> Lanes { Lanes(laneTimes.count, of: queue.rawValue..<queue.rawValue + 1) }

  /// In a forked child: the index is wiped, the heap begins anew by itself.
  mutating func beginAnew() {
    assert(index.isWiped || books.count == 0, "PurgeableCache: a shard begins anew in a forked child only")
    index.beginAnew()
    // In a forked child, any call but a read makes the heap begin anew.
    _ = heap.oldest(of: stream(Lane(.probation)))
    books.forgetAll()
    departures = ShardDepartures(base.observer)
    departures.append(keys.takeAll())
    // The threads that were removing are the parent's.
    base.removalCount.store(0, ordering: .relaxed)
    forgetEntries()
  }

  /// Forgets all entries, and the ghost unless it is kept. The caller empties index and books.
  mutating func forgetEntries(keepingGhost: Bool = false) {
    if !keepingGhost {
      ghost.removeAll()
      index.noteRemembers(false)
    }
    slots.empty(slots.count)
    hasEvicted = false
    lanes = ShardLanes()
    laneTimes = LaneTimes()
    queueCount = EvictionQueue.firstCount
    entryOrder?.removeAll()
    // The index that is emptied forgets that.
    if base.isTiered.load(ordering: .relaxed) { index.keepLastUses() }
    noteIndexBytes()
    compaction = CompactionProgress()
    passedLostCount = 0
  }

  /// What the shard's entries take of slabs, heads included.
  var livingBytes: Int { books.byteCount + SlabHeap.elementOverhead * books.count }

  // MARK: Leaving

  /// Ends an entry: its slot, its part in the books, its element. Notes it in the ghost and reports it. `facts`: spares a read of
  /// the element where the caller has them.
  mutating func drop(_ found: FoundSlot, _ reason: DepartureReason, facts known: EntryFacts? = nil) {
    let slot = found.slot
    assert(Slot(bits: found.pointer.relaxed).isSameEntry(as: slot), "PurgeableCache: an entry that has left already")
    let (reference, queue) = (heap.reference(slot.place), heap.queue(at: slot.place))
    let isLost = heap.isLost(slot.place)
    let parts: EntryParts = isLost ? (nil, nil) : elements.parts(of: slot, known)
    // Whatever it leaves for, it had expired before.
    let mayExpire = laneTimes.count > 1 || laneTimes.sharesFirst
    let reason = mayExpire && parts.head.map { base.isOver($0, lastUse(of: slot)) } ?? false ? .expired : reason
    let copy = unbook(slot, parts, from: queue, reason, isLost: isLost)
    leave(found, reason, from: queue, copy, freeing: reference)
  }

  /// Takes an entry that leaves off the books. Returns a copy of its value, where that is to be told. `isLost`: its page is known
  /// to be lost.
  mutating func unbook(
    _ slot: Slot, _ parts: EntryParts, from queue: EvictionQueue, _ reason: DepartureReason, isLost: Bool = false
  ) -> ValueCopy {
    guard !isLost, let booked = books.booked(slot, parts) else {
      // The entry's page is lost, whether the core has noted the loss or not.
      books.unbookPage(slot.place, queue, isLost: true)
      if reason != .discarded { books.addLost(-1) }
      return .discarded
    }
    books.unbook(slot.place, queue, cost: booked.cost, byteCount: booked.byteCount)
    if reason == .discarded { books.addLost(1) }
    if !slot.isTracked { return .unwanted }
    return departures.valueCopy(of: slot, parts, elements)
  }

  /// Empties an entry's slot, frees its element, notes the entry in the ghost and reports it. Its part in the books is the
  /// caller's. `element`: nil where the caller frees all elements of the slab afterwards.
  @inline(__always)
  mutating func leave(
    _ found: FoundSlot, _ reason: DepartureReason, from queue: EvictionQueue, _ copy: ValueCopy,
    freeing element: purgeable_reference_t?
  ) {
    entryOrder?.left(position(of: found))
    found.pointer.store(releasing: 0)
    slots.empty(1)
    if let element { heap.free(element) }
    noteInGhost(found.slot, reason, from: queue)
    report(found.slot, reason, copy)
  }

  /// Counts a departure, and notes it to be told of.
  mutating func report(_ slot: Slot, _ reason: DepartureReason, _ copy: ValueCopy) {
    if reason == .discarded, base.keepsLost { return keys.makeHollow(EngineKey.trackedNumber(of: slot)) }
    counters.departures[reason.rawValue] += 1
    hasEvicted = (hasEvicted || reason.isEviction) && slots.count > 0
    departures.report(slot, reason, copy, &keys)
  }

  /// `queue`: nil where the entry had no value any more.
  mutating func noteInGhost(_ slot: Slot, _ reason: DepartureReason, from queue: EvictionQueue?) {
    // An order that names entries has all of them in main.
    guard let why = order.remembered(of: reason, from: entryOrder == nil ? queue : nil),
      reason != .discarded || !base.keepsLost
    else { return }
    if let identity = ghostIdentity(of: slot) { remember(identity, why) }
  }

  /// By what the ghost knows the key of a slot; nil for a tracked key that has ended.
  func ghostIdentity(of slot: Slot) -> UInt64? {
    guard slot.isTracked else { return slot.identity }
    return keys.hash(of: EngineKey.trackedNumber(of: slot)).map { EngineKey(hash: $0).ghostIdentity }
  }

  // MARK: What is remembered

  /// Notes a key that left in the ghost.
  mutating func remember(_ identity: UInt64, _ why: Ghost.Reason) {
    ghost.note(identity, why)
    index.noteRemembers(true)
  }

  /// Called before a store evicts: the ghost grows to the size that the order wants. Never called where memory is given back: a
  /// reaction or a trim uses the ghost as it is.
  mutating func readyGhost() { ghost.reserve(wantedGhost) }

  /// How many keys are remembered: as many as the order wants or, where memory is short at times, four times as many as there are
  /// entries, if that is little beside them. So misses say that the kernel or the library took it.
  var wantedGhost: Int {
    let limit = base.limits.count.load(ordering: .relaxed)
    // A shard at its count limit has about its share. Another limit may leave far fewer entries than a large count limit allows.
    let lives =
      limit == .max ? max(slots.count, 64) : min(max(1, limit / base.openCount), max(slots.count + slots.count / 8, 64))
    let wanted = order.rememberedCount(ofLiving: lives)
    return base.limits.hasFeltPressure ? max(wanted, min(4 * slots.count, cheapGhost)) : wanted
  }

  /// How many keys stay remembered where bookkeeping shrinks: what a store would make ready again is not given back.
  var leastGhost: Int { max(64, slots.count, base.limits.hasFeltPressure ? cheapGhost : 0) }

  /// How many keys may be remembered in a 32nd of what the entries take.
  private var cheapGhost: Int { livingBytes / 32 / Ghost.mostBytesOfKey }

  /// Called as a cache grows: makes a small ghost in advance, for the entries that the program removes and for one slice of a
  /// reaction, a sixteenth of all entries. 0.3 bytes an entry.
  mutating func prepareGhost() {
    let limit = base.limits.count.load(ordering: .relaxed)
    let lives = limit == .max ? index.current().slotCount : limit / base.openCount
    ghost.reserve(limit == .max ? max(64, lives / 16) : min(64, order.rememberedCount(ofLiving: lives)))
  }
}

/// A shard behind its mutex. Readers use its index without the mutex.
final class EngineShard: Sendable {
  let number: Int
  let index: SlotIndex
  let held: Guarded<HeldShard>

  init(_ number: Int, _ base: CacheBase, _ index: SlotIndex) {
    self.number = number
    self.index = index
    held = Guarded(HeldShard(number, base, index), isBusy: true)
  }

  deinit { index.destroy() }

  /// Runs `body` under the mutex, for who holds that of no shard with a higher number, and delivers what `body` takes out
  /// (`CacheShards.hold`).
  func whileHeld<R>(_ body: (inout HeldShard) -> R) -> R {
    held.lock()
    defer { held.unlock() }
    return held.whileHeld(body)
  }
}
