// SPDX-License-Identifier: MIT
// From one shard to several, and back.
//
// One shard keeps one order of eviction and costs little; several let as many threads store at a time. So a cache begins with
// one, the founder, and opens the others when it has grown. Opening copies nothing but entries of tracked keys. Each shard fills
// slabs of its own, so under lower limits there may be too many: then they close, and the founder gets all entries back.
//
//     mask 0              all keys belong to the founder
//     mask M | draining   each key belongs to one of the others, its home; the founder still has the entries it had
//     mask M              the founder has no entries any more
//     mask M | draining   closing, with the mutexes of all shards held: the entries move to the founder
//     mask 0
//
// Above these bits the mask has a version, the number of times that closing has begun or ended. Between two of those, the mask
// takes its values in this order and no other. So a mask that is what it was has not been another meanwhile.
//
// Tracked keys go home with their entries while the shards open, before the mask is published: who looks for one takes a mutex,
// so nobody looks meanwhile. New values go to their keys' homes. The founder's entries leave one by one: they are evicted or lost
// like others, by their age among all shards, they are removed, or a store under their key brings them home first, with the
// mutexes of both shards held: the new slot is inserted (release), then the old one is emptied (release). A store then works in
// the home alone. Every other operation under a mutex works where the entry is. Closing moves entries in the same way.
//
// Readers take no mutex. A reader loads the mask, and looks in the key's home; while the founder is draining, in the founder, and
// in the home once more if any entry has moved since before the first look; then it looks at the mask again, and begins anew if
// that has changed. Why that is right:
//
//  1. While keys belong to the others, nothing comes to the founder but by closing, which publishes another mask first: a thread
//     inserts there under the founder's mutex, and looks at the mask under it; the mask changes under it too. So whoever has
//     loaded the mask (acquire) and finds no slot of a key's identity in the founder, in a table that is still the present one,
//     knows that the founder has no entry of the key as long as the mask is the same. Writers look whether it is under the mutex
//     of the key's home, without which no shard closes.
//  2. A store in a home has looked in the founder first (1) and brought home what it found. So a key has slots in two shards only
//     while both mutexes are held, and both lead to the same value. No value that a finished write replaced or removed is left
//     anywhere.
//  3. An entry that stays is always found. In the home, the reader's first look finds it. In the founder, the second look finds
//     it, or finds the slot emptied: then the entry has a slot in its home, which the third look sees (acquire). Moves are
//     counted when the new slot is there and the old one is not emptied yet. So either the count that the reader loads first has
//     the move (acquire), and the first look finds the slot at home, or the count has changed by the second look. A reader that
//     loaded 0 looks in the founder alone. An entry that is not there was stored, or brought home, after the mask was published;
//     if its slot is missed though it was there when the read began, the mask is visible too, and the reader begins anew.
//     Closing publishes its mask before it empties a slot in a home. A reader with an earlier mask that finds the slot emptied
//     sees that the mask has changed. A reader with the mask of closing, whose first look finds the slot emptied, sees the one
//     in the founder in its second look. A reader that loads the 0 sees all of them (acquire).
//  4. A read that begins after a write has returned sees it. A write under the mask 0 happens before the mask is published, under
//     the founder's mutex: the entry is in the founder, and 3 holds. A write under a later mask has loaded it, so the reader
//     loads that mask or a later one, and by 2 there is nothing else to find.
//
// A fork waits for the mutexes of all shards, so a child finds no entry half moved; there, all shards are empty.

import CPurgeable
import Synchronization

extension CacheShards {
  /// The bit of the mask that says that the founder may have entries, though keys belong to the others. No hash of a key has it
  /// (`EngineKey.shardHash`), so it changes no position.
  static let draining: UInt64 = 1 << 5

  var isOpen: Bool { openCount > 1 }

  // MARK: When

  /// The number of shards that the limits allow, a power of two; 1 for the founder alone.
  var wantedShardCount: Int {
    guard base.namesSlabs, !base.keepsLost else { return 1 }
    let count = min(EngineKey.otherCount, countOfBytes, entryLimit / sizes.entriesPerShard.load(ordering: .relaxed))
    return count < 2 ? 1 : 1 << (Int.bitWidth - 1 - count.leadingZeroBitCount)
  }

  /// How many shards the byte limit leaves room for.
  private var countOfBytes: Int {
    let bytes = base.limits.bytes.load(ordering: .relaxed)
    return bytes == .max ? .max : bytes / (base.heap.slabBytes * sizes.slabsPerShard.load(ordering: .relaxed))
  }

  /// How many entries the limits on entries and costs leave room for, by what those cost on average that are there.
  private var entryLimit: Int {
    let entries = base.limits.count.load(ordering: .relaxed)
    let costLimit = base.limits.cost.load(ordering: .relaxed)
    if costLimit == .max { return entries }
    let cost = base.totalCost
    // Nothing costs anything, as far as is known.
    if cost == 0 { return entries }
    return min(entries, Int(clamping: UInt128(costLimit) * UInt128(max(1, base.count)) / cost))
  }

  /// Whether the limits leave room for fewer than half of the shards that are open, or for so few entries in each that which of
  /// them leaves depends on the shard more than on age.
  var areTooMany: Bool {
    let open = openCount
    return open / 2 > max(1, countOfBytes) || open > 1 && entryLimit / open < sizes.leastEntriesPerShard.load(ordering: .relaxed)
  }

  /// Called after limits may have changed, and in the rounds of the library's thread.
  func reviewOpening() { mayOpen.store(wantedShardCount > 1, ordering: .relaxed) }

  /// Called after each store, with no mutex held.
  @inline(__always)
  func openIfLarge() {
    guard !isOpen, mayOpen.load(ordering: .relaxed),
      base.count >= sizes.count.load(ordering: .relaxed) || base.heldBytes >= sizes.byteCount.load(ordering: .relaxed)
    else { return }
    openShards()
  }

  // MARK: Opening and draining

  /// Opens as many shards as the limits allow. Where that is none, or there is no memory for them, the next try comes after the
  /// next review.
  @inline(never)
  func openShards() {
    hold(founder) { held in
      let wanted = wantedShardCount
      guard !isOpen else { return }
      guard wanted > 1, made.load() != nil || makeOthers(wanted) else { return mayOpen.store(false, ordering: .relaxed) }
      // Those that were made first are all that there ever are.
      let count = min(wanted, base.indexes.otherCount)
      for lane in held.usedLanes { held.end(lane) }
      let opened = base.indexes.mask.load(ordering: .relaxed) | EngineKey.firstOther | UInt64(count - 1) | Self.draining
      if held.keys.count > 0 { bringTrackedHome(from: &held, opened) }
      // Release: pairs with the acquire of all who load the mask, who see the shards it leads to, and all of the founder's slots.
      base.indexes.mask.store(opened, ordering: .releasing)
    }
  }

  /// Called under the founder's mutex after each use of it. Nothing comes to the founder before the shards close.
  @inline(__always)
  func endDraining(_ held: inout HeldShard) {
    let now = base.indexes.mask.load(ordering: .relaxed)
    guard now & Self.draining != 0, held.slots.count == 0 else { return }
    base.indexes.mask.store(now & ~Self.draining, ordering: .releasing)
    for lane in held.usedLanes { held.end(lane) }
  }

  /// Whether the founder may have the entry of a key that belongs elsewhere under `mask`. Under no mutex: "no" is right as long
  /// as the mask is the same.
  @inline(__always)
  func founderMayHave(_ key: EngineKey, _ mask: UInt64) -> Bool {
    mask & Self.draining != 0 && founderHas(key.identity)
  }

  @inline(never)
  private func founderHas(_ identity: UInt64) -> Bool { base.indexes[0].has(identity) }

  // MARK: Closing

  /// Called where the cache has been brought below its limits: who closes before that would drop what was used with what was not.
  /// Returns whether the shards have closed, for which bookkeeping may have grown. In a forked child that has not begun anew
  /// there is nothing to close.
  func closeIfTooMany() -> Bool {
    guard areTooMany else { return false }
    var departed = DepartureList()
    lockAll()
    // Another thread may have closed them. In a forked child, they begin anew first.
    if areTooMany, !all.contains(where: { $0.index.isWiped }) {
      founder.held.whileHeld { founder in
        closeShards(&founder)
        departed = founder.departures.take()
      }
    }
    unlockAll()
    base.heap.wipeDeferred()
    deliver(departed)
    return !areTooMany
  }

  /// Moves all entries to the founder. The limit that leaves room for so few shards has been enforced, so that takes
  /// milliseconds.
  private func closeShards(_ founder: inout HeldShard) {
    let version = base.indexes.version + 1
    // Release, twice: pairs with the acquire of all who load the mask or its version.
    let open = base.indexes.mask.load(ordering: .relaxed) & (Self.draining - 1)
    base.indexes.mask.store(open | Self.draining | version << ShardIndexes.versionShift, ordering: .releasing)
    for shard in all.dropFirst() {
      shard.held.whileHeld { held in
        for lane in held.usedLanes { held.end(lane) }
        // Makes room.
        held.ghost.removeAll()
      }
    }
    // The oldest slab of all shards first: so the founder evicts about in the order of age.
    var next = InlineArray<272, purgeable_slab_t?>(repeating: nil)
    let (streams, shardLimit) = (base.heap.streams, QueueStreams.shardCount)
    for i in 0..<QueueStreams.count where i % shardLimit > 0 { next[i] = base.heap.nextInUse(after: nil, of: streams[i]) }
    func age(_ i: Int) -> UInt64 { next[i].map { base.heap.information($0)?.first_age ?? 0 } ?? .max }
    while let i = (0..<QueueStreams.count).min(by: { age($0) < age($1) }), let slab = next[i] {
      next[i] = base.heap.nextInUse(after: slab, of: streams[i])
      all[i % shardLimit].held.whileHeld { $0.send(slab, to: &founder) }
    }
    for shard in all.dropFirst() { shard.held.whileHeld { $0.endClosing(&founder) } }
    base.indexes.mask.store((version + 1) << ShardIndexes.versionShift, ordering: .releasing)
  }

  // MARK: Home

  /// Moves the founder's entries of an identity to the homes of their keys: the key's whose identity it is, and, with hardly any
  /// odds, those of other keys.
  @inline(never)
  func bringHome(_ identity: UInt64) {
    hold(founder) { from in
      // 0 where the shards have closed: the founder is the home.
      let mask = base.indexes.mask.load(ordering: .relaxed)
      if mask & Self.draining != 0 { bringHome(identity, from: &from, mask) }
    }
  }

  private func bringHome(_ identity: UInt64, from: inout HeldShard, _ mask: UInt64) {
    let reason = base.refusalReason
    var triesLeft = 16
    while let found = from.index.current().candidates(of: identity).first(where: { _ in true }) {
      // What is pinned stays, if need be above the limit, until a store makes room there.
      let exceeds = triesLeft == 0 && base.heap.queue(at: found.slot.place) == .pinned
      switch sendHome(found, from: &from, mask, exceeds: exceeds) {
      case .isHome: break
      case .lost: from.drop(found, .discarded)
      case .noMemory where triesLeft > 0:
        // There is no memory for the copy: the founder's oldest slab goes for it, or another shard's.
        from.readyGhost()
        let hasRoom = from.freeSlab(reason) || freeSlabElsewhere(reason, than: &from) == .freed
        triesLeft = hasRoom ? triesLeft - 1 : 0
      case .noMemory, .noSlot: from.drop(found, reason)
      }
    }
  }

  /// Lane by lane, each in the order of eviction.
  private func bringTrackedHome(from: inout HeldShard, _ mask: UInt64) {
    for lane in from.usedLanes {
      for slab in base.heap.slabs(of: from.stream(lane)) {
        var cursor: UInt32 = 0
        while let reference = base.heap.nextElement(of: slab, &cursor) {
          guard let facts = base.elements.facts(of: reference), facts.shardHash == nil else { continue }
          bringHome(facts.identity, from: &from, mask)
        }
      }
    }
    // Those that could not be read.
    var start: UInt32 = 0
    while let number = from.keys.first(from: start) {
      bringHome(EngineKey(trackedNumber: number, hash: 0).identity, from: &from, mask)
      start = number + 1
    }
  }

  private func sendHome(_ found: FoundSlot, from: inout HeldShard, _ mask: UInt64, exceeds: Bool) -> Homecoming {
    guard let facts = base.elements.facts(of: base.heap.reference(found.slot.place)),
      let hash = facts.shardHash ?? from.keys.hash(of: EngineKey.trackedNumber(of: found.slot)).map(EngineKey.shardHash)
    else { return .lost }
    assert(facts.identity == found.slot.identity, "PurgeableCache: a slot that leads to another entry")
    let home = positions[hash & mask]
    assert(home.number > from.number, "PurgeableCache: the founder's entry is at home there")
    return home.whileHeld { held in
      let outcome = held.takeOver(found, facts, from: &from, exceeds: exceeds)
      from.departures.append(held.departures.take())
      return outcome
    }
  }
}

private enum Homecoming {
  case isHome, lost
  /// There is no memory for the copy.
  case noMemory
  /// The index has no room for the slot.
  case noSlot
}

extension HeldShard {
  /// Takes an entry over from another shard, whose mutex is held too. Without memory it stays where it is. `exceeds`: the copy
  /// may exceed the byte limit by a slab.
  fileprivate mutating func takeOver(
    _ found: FoundSlot, _ facts: EntryFacts, from other: inout HeldShard, exceeds: Bool
  ) -> Homecoming {
    guard let head = elements.head(of: found.slot, facts) else { return .lost }
    let (from, cost) = (heap.lane(at: found.slot.place), facts.cost(head))
    if other.hasPriorities, !makeLanes(for: from.queue, isTimed: false) { return .noMemory }
    let lane = lane(from.queue, head)
    let old = heap.reference(found.slot.place)
    let slab = heap.slab(of: old)
    // A large entry keeps its place: its slab changes its stream. Not that of a tracked key, which gets another number.
    let isLarge =
      facts.payloadByteCount > heap.slabBytes / 4 && !found.slot.isTracked && heap.information(slab)?.is_large == true
    var new = old
    var identity = found.slot.identity
    if !isLarge {
      let taken = exceeds ? allocateCopy(facts.payloadByteCount, lane) : allocateWithinLimit(facts.payloadByteCount, lane)
      guard let fresh = taken else { return .noMemory }
      new = fresh.reference
      // Copied without a lock: locking would take the old page off offer.
      guard unsafe elements.copy(old, from: 0, into: fresh.bytes) else {
        heap.free(new)
        return .lost
      }
      if found.slot.isTracked {
        guard let number = keys.adopt(EngineKey.trackedNumber(of: found.slot), of: &other.keys) else {
          heap.free(new)
          return .noMemory
        }
        identity = EngineKey(trackedNumber: number, hash: 0).identity
        unsafe EntryPrefix.writeTracked(number, to: fresh.bytes)
      }
      heap.commit(new)
    }
    // A use that a reader counts in the old slot from here on is lost. Counters are only hints.
    let slot = Slot(identity: identity, place: new.place, counter: found.slot.counter, hasHead: found.slot.hasHead)
    #if DEBUG
      base.moveHook.load()?.body(1)
    #endif
    let use = other.lastUse(of: found.slot)
    guard insert(slot, lastUse: use) else {
      if !isLarge { heap.free(new) }
      // It gets the number back that it had: nobody has asked for one since.
      if slot.isTracked { _ = other.keys.adopt(EngineKey.trackedNumber(of: slot), of: &keys) }
      return .noSlot
    }
    // Booked here first: for a moment the totals count the entry twice, so a limit may evict too much, and never too little.
    books.book(new.place, lane.queue, cost: cost, byteCount: facts.payloadByteCount)
    #if DEBUG
      base.moveHook.load()?.body(2)
    #endif
    // Release: pairs with the acquire in `ShardLooks`. Between the two slots' stores.
    base.moveCount.add(1, ordering: .releasing)
    found.pointer.store(releasing: 0)
    other.slots.empty(1)
    other.books.unbook(old.place, lane.queue, cost: cost, byteCount: facts.payloadByteCount)
    if isLarge {
      // To the young end there first, which takes marks and cursors off it.
      other.restream(slab, from, to: from)
      heap.move(slab, to: stream(lane))
      noteBirth(new, lane)
    } else {
      heap.free(old)
    }
    noteEnd(head, use, of: new)
    return .isHome
  }

  /// Sends the entries of a slab, which is given back next, to the founder, whose mutex is held too. Without memory they leave.
  fileprivate mutating func send(_ slab: purgeable_slab_t, to founder: inout HeldShard) {
    var cursor: UInt32 = 0
    while let reference = heap.nextElement(of: slab, &cursor) {
      guard let facts = elements.facts(of: reference),
        let found = index.find(identity: facts.identity, place: reference.place)
      else { continue }
      switch founder.takeOver(found, facts, from: &self, exceeds: true) {
      case .isHome: break
      case .lost: drop(found, .discarded)
      case .noMemory, .noSlot: drop(found, base.refusalReason)
      }
    }
    shrinkIndex()
  }

  /// Drops what could not be read, and gives the memory back.
  fileprivate mutating func endClosing(_ founder: inout HeldShard) {
    var removal = TrackedRemoval()
    while !removal.removeSlice(.discarded, from: &self) {}
    detachAll(.removed)
    founder.departures.append(departures.take())
  }

  /// Seals a lane's open slab, which gets no more elements, and gives back the slabs that are empty.
  fileprivate mutating func end(_ lane: Lane) {
    heap.seal(stream(lane))
    heap.noteAge(of: lanes[lane].youngest, first: 0, last: base.indexes.birthCount)
    for slab in heap.slabs(of: stream(lane)) { heap.giveBack(slab) }
  }
}
