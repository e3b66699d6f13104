// SPDX-License-Identifier: MIT
// From one shard to several, and back.
//
// One shard keeps one order of eviction and costs little; several let as many threads store at a time. So a cache begins with
// one, the founder, and opens the others when it has grown. Under lower limits they may be too many, since each fills slabs of
// its own: then they close. All entries move, some at a time when shards open, so that nobody waits for long, and together when
// they close. Each move holds the mutexes of all shards.
//
//     version    keys belong to    entries are
//     4n         the founder       there
//     4n + 1     the others        there, or in the founder still
//     4n + 2     the others        there
//     4n + 3     the founder       moving there; nobody else holds a mutex as long as that lasts
//
// The version is a part of the mask by which a key finds its home (`ShardMask`). So a mask that is what it was has not been
// another meanwhile.
//
// An operation under a mutex loads the mask, takes the mutex of the key's home, and looks whether the mask is still the same; if
// not, the operation begins anew. Where the founder may have the key's entry still, that entry goes home first. Tracked keys move
// all together, since a search for one takes the mutex of its home alone.
//
// Readers take no mutex. A reader loads the mask, and looks in the key's home; while entries move, it looks where they come from,
// and then where they go to. A reader that finds nothing looks at the mask again, and begins anew if the mask has changed. Why
// that is right:
//
//  1. An entry moves by these steps: the mask says that entries move (release), the new slot is there (release), the old one is
//     emptied (release). Both lead to the same value, and nothing is stored or removed between. As long as the mask is the same,
//     nothing comes where entries move from.
//  2. An entry that stays is always found. A reader with the mask of the move finds the old slot; or finds it emptied, and then
//     sees the new one (acquire). A reader with the mask before the move finds the old slot; or finds it emptied, and then sees
//     that the mask has changed (acquire). A reader with the mask after the move sees all new slots.
//  3. No reader finds a value that a finished write replaced or removed. When a write begins, under the mutex of the key's home,
//     no other shard has a slot of the key, and none gets one as long as the mask is the same (1).
//  4. A read that begins after a write has returned sees it. The write has loaded its mask, so the reader loads that one or a
//     later one, and 2 holds.
//
// A fork waits for the mutexes of all shards, so a child finds no entry half moved; there, all shards are empty.

import CPurgeable
import Synchronization

extension CacheShards {
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
    let mask = base.indexes.mask
    if mask.isMoving { goOnOpening() }
    guard mask.openCount == 1, mayOpen.load(ordering: .relaxed), !isRestoring.load(ordering: .relaxed),
      base.count >= sizes.count.load(ordering: .relaxed) || base.heldBytes >= sizes.byteCount.load(ordering: .relaxed)
    else { return }
    openShards()
  }

  // MARK: Opening

  /// Opens as many shards as the limits allow. Where that is none, or there is no memory for them, the next try comes after the
  /// next review.
  @inline(never)
  func openShards() {
    let hasOthers = hold(founder) { _ in
      let wanted = wantedShardCount
      return isOpen || wanted > 1 && (made.load() != nil || makeOthers(wanted))
    }
    guard hasOthers else { return mayOpen.store(false, ordering: .relaxed) }
    move {
      // Those that were made first are all that there ever are.
      let wanted = min(wantedShardCount, base.indexes.otherCount)
      guard !isOpen, wanted > 1, !isRestoring.load(ordering: .relaxed) else { return }
      begin(openCount: wanted, from: 0..<1)
      if founder.held.whileHeld({ $0.keys.count > 0 }) { moveSome(.max) }
    }
  }

  /// Moves the next of the founder's entries home, after a store and in the rounds of the library's thread. False when there are
  /// none.
  @discardableResult
  func goOnOpening() -> Bool {
    guard base.indexes.mask.isMoving else { return false }
    return move {
      // Some 150 us. The fewer, the more of what is stored meanwhile comes between the old entries.
      if base.indexes.mask.isMoving { moveSome(256) }
    }
  }

  /// As `send(_:_:to:)`.
  private func moveSome(_ most: Int) {
    let mask = base.indexes.mask
    if moveEntries(from: 0..<1, most, to: { positions[mask.home(of: $0)] }) { end(openCount: mask.openCount, from: 0..<1) }
  }

  /// Before anybody works on a key in its home: moves the founder's entries of the key's identity home, its own and, with hardly
  /// any odds, those of other keys.
  @inline(never)
  func bringHome(_ identity: UInt64) {
    // Under no mutex: "no" is right as long as the mask is the same.
    guard base.indexes[0].has(identity) else { return }
    move {
      let mask = base.indexes.mask
      guard mask.isMoving else { return }
      _ = founder.held.whileHeld { held in held.send(identity) { positions[mask.home(of: $0)] } }
    }
  }

  // MARK: Closing

  /// Called where the cache has been brought below its limits: who closes before that would drop what was used with what was not.
  /// Returns whether the shards have closed, for which bookkeeping may have grown.
  func closeIfTooMany() -> Bool {
    guard areTooMany else { return false }
    move {
      guard areTooMany else { return }
      if base.indexes.mask.isMoving { moveSome(.max) }
      let others = 1..<all.count
      begin(openCount: openCount, from: others)
      _ = moveEntries(from: others, .max) { _ in founder }
      end(openCount: 1, from: others)
    }
    return !areTooMany
  }

  // MARK: Moving

  /// Runs `body` under all mutexes, and gives back and delivers what it caused. Not in a forked child that has not begun anew,
  /// where there is nothing to move; then the result is false.
  @discardableResult
  private func move(_ body: () -> Void) -> Bool {
    var departed = DepartureList()
    lockAll()
    let hasAll = !all.contains { $0.index.isWiped }
    if hasAll {
      base.indexes.beginMove()
      body()
      base.indexes.endMove()
      for shard in all { shard.held.whileHeld { departed.append($0.departures.take()) } }
    }
    unlockAll()
    base.heap.wipeDeferred()
    deliver(departed)
    return hasAll
  }

  /// From here on readers look in two shards. `sources`: the shards that entries move from, by position in `all`.
  private func begin(openCount: Int, from sources: Range<Int>) {
    base.indexes.publishNextMask(openCount: openCount)
    var hasEvicted = false
    for i in sources {
      all[i].held.whileHeld { held in
        held.endLanes()
        // Makes room.
        held.ghost.removeAll()
        hasEvicted = hasEvicted || held.hasEvicted
      }
    }
    if hasEvicted { for shard in all { shard.held.whileHeld { $0.hasEvicted = true } } }
  }

  /// Drops what could not be read.
  private func end(openCount: Int, from sources: Range<Int>) {
    for i in sources {
      all[i].held.whileHeld { held in
        var removal = TrackedRemoval()
        while !removal.removeSlice(.discarded, from: &held) {}
        held.detachAll(.removed)
      }
    }
    base.indexes.publishNextMask(openCount: openCount)
  }

  /// Moves `most` entries, as `send(_:_:to:)`, the oldest slab of all sources first: so what is older there is older here.
  /// Returns true where none are left, which is known a call later.
  private func moveEntries(from sources: Range<Int>, _ most: Int, to home: (_ shardHash: UInt64) -> EngineShard) -> Bool {
    let shards = all
    var next = InlineArray<272, purgeable_slab_t?>(repeating: nil)
    let (streams, shardLimit) = (base.heap.streams, QueueStreams.shardCount)
    for i in 0..<QueueStreams.count where sources.contains(i % shardLimit) {
      next[i] = base.heap.nextInUse(after: nil, of: streams[i])
    }
    func age(_ i: Int) -> UInt64 { next[i].map { base.heap.information($0)?.first_age ?? 0 } ?? .max }
    var left = most
    while let i = (0..<QueueStreams.count).min(by: { age($0) < age($1) }), let slab = next[i] {
      next[i] = base.heap.nextInUse(after: slab, of: streams[i])
      left -= shards[i % shardLimit].held.whileHeld { $0.send(slab, left, to: home) }
      // Of this slab, too, some may be left.
      if left <= 0 { return false }
    }
    return true
  }
}

private enum TakeOver {
  case isDone, lost
  /// There is no memory for the copy, or the index has no room for the slot.
  case refused
}

extension HeldShard {
  /// Takes an entry over from another shard, whose mutex is held too. Without memory it stays where it is.
  fileprivate mutating func takeOver(_ found: FoundSlot, _ facts: EntryFacts, from other: inout HeldShard) -> TakeOver {
    guard let head = elements.head(of: found.slot, facts) else { return .lost }
    let (from, cost) = (heap.lane(at: found.slot.place), facts.cost(head))
    if other.hasPriorities, !makeLanes(for: from.queue, isTimed: false) { return .refused }
    let lane = lane(from.queue, head)
    let old = heap.reference(found.slot.place)
    let slab = heap.slab(of: old)
    // A large entry keeps its place: its slab changes its stream. Not that of a tracked key, which gets another number.
    let isLarge =
      facts.payloadByteCount > heap.slabBytes / 4 && !found.slot.isTracked && heap.information(slab)?.is_large == true
    var new = old
    var identity = found.slot.identity
    if !isLarge {
      guard let fresh = allocateCopy(facts.payloadByteCount, lane) else { return .refused }
      new = fresh.reference
      // Copied without a lock: locking would take the old page off offer.
      guard unsafe elements.copy(old, from: 0, into: fresh.bytes) else {
        heap.free(new)
        return .lost
      }
      if found.slot.isTracked {
        guard let number = keys.adopt(EngineKey.trackedNumber(of: found.slot), of: &other.keys) else {
          heap.free(new)
          return .refused
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
      return .refused
    }
    books.book(new.place, lane.queue, cost: cost, byteCount: facts.payloadByteCount)
    #if DEBUG
      base.moveHook.load()?.body(2)
    #endif
    // Release: pairs with the acquire of a reader, who sees the new slot where he finds this one emptied.
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
    return .isDone
  }

  /// Sends entries of a slab, `most` of them, to the shards that their keys' hashes lead to, whose mutexes are held too. The slab
  /// is given back with the last. Entries of more than 2 KiB count for several. Returns how many were sent.
  fileprivate mutating func send(_ slab: purgeable_slab_t, _ most: Int, to home: (_ shardHash: UInt64) -> EngineShard) -> Int {
    var (cursor, sent, hasLost) = (UInt32(0), 0, false)
    while sent < most, let reference = heap.nextElement(of: slab, &cursor) {
      if let facts = elements.facts(of: reference) { sent += send(facts.identity, to: home) } else { hasLost = true }
    }
    if hasLost { sweepLost() }
    shrinkIndex()
    return sent
  }

  /// Sends all entries of an identity: so no two shards have entries of one. What finds no memory leaves.
  fileprivate mutating func send(_ identity: UInt64, to home: (_ shardHash: UInt64) -> EngineShard) -> Int {
    var sent = 0
    while let found = index.current().candidates(of: identity).first(where: { _ in true }) {
      sent += 1
      guard let facts = elements.facts(of: heap.reference(found.slot.place)),
        let hash = facts.shardHash ?? keys.hash(of: EngineKey.trackedNumber(of: found.slot)).map(EngineKey.shardHash)
      else {
        drop(found, .discarded)
        continue
      }
      sent += facts.payloadByteCount / 2048
      switch home(hash).held.whileHeld({ $0.takeOver(found, facts, from: &self) }) {
      case .isDone: break
      case .lost: drop(found, .discarded)
      case .refused: drop(found, base.refusalReason)
      }
    }
    return sent
  }

  /// Seals the open slabs, which get no more elements, and gives back those that are empty.
  fileprivate mutating func endLanes() {
    for lane in usedLanes {
      heap.seal(stream(lane))
      heap.noteAge(of: lanes[lane].youngest, first: 0, last: base.indexes.birthCount)
      for slab in heap.slabs(of: stream(lane)) { heap.giveBack(slab) }
    }
  }
}
