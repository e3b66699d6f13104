// SPDX-License-Identifier: MIT
// A walk over the entries of all shards in the order of eviction, or against it.
//
//   note     each shard under its mutex: slabs in the order of their turn, then one pass over the index, which adds a note of
//            each entry to its slab's notes: 8 bytes an entry, no page of an entry is touched. Where the order names entries
//            (EntryOrder.swift), all of them in that order.
//   next     as for the limit that is nearest, or for a trim: first what goes at its first turn, then what uses save once, and
//            so on; among these, some at a time, those of the shard whose next one is the oldest; in a shard slab by slab, and in
//            a slab in order of birth. What has no turn, as what is pinned, is last
//   visit    some notes at a time, under their shard's mutex: all entries that bear the name in the note now
//
// A note has no place to look at but a name, because evictions and compactions move entries. The name is a part of the key's
// hash, so an entry keeps it as long as it lives, and a key that is stored again has the same one. Each name is noted once:
//
//   key with bytes   the identity, in the shard. No two shards have entries of one identity, unless both keys are at home.
//   tracked key      bits of the hash, among them those that decide the shard. Its number changes when entries move.
//
// So no key comes twice, and an entry that stays comes once. Where entries have moved to other shards since, a name is looked for
// in all of them, and counts for the keys that belonged to its shard.

import CPurgeable
import Synchronization

/// A noted entry. Notes of a slab are visited in the order of their bits.
///
///   63     62 61           42      41     40                                   0
///   | counter | granule in slab | tracked | tag; or 37 bits of the hash, 4 that decide the shard |
struct WalkNote {
  let bits: UInt64
  private static let nameMask: UInt64 = 1 << 41 - 1
  /// The bits of a tracked key's hash that a note has: those that decide the shard, and from bit 19 on those that decide the
  /// chain.
  static let hashMask: UInt64 = (1 << 37 - 1) << 19 | (EngineKey.firstOther - 1)

  init(bits: UInt64) { self.bits = bits }

  /// `hash`: of a tracked key. `counter` and `granule`: 0 for all where notes are taken in order.
  init(_ slot: Slot, hash: UInt64, counter: UInt64 = 0, granule: UInt64 = 0) {
    assert(granule < 1 << 20, "PurgeableCache: a slab of more than 16 MiB")
    let name = slot.isTracked ? (hash >> 19) << 4 | hash & (EngineKey.firstOther - 1) : slot.identity >> Slot.tagShift
    bits = counter << 62 | granule << 42 | (slot.isTracked ? 1 << 41 : 0) | name & Self.nameMask
  }

  var counter: UInt64 { bits >> 62 }
  var granule: UInt64 { bits >> 42 & (1 << 20 - 1) }
  var isTracked: Bool { bits & 1 << 41 != 0 }
  /// Of an entry whose key has bytes.
  var identity: UInt64 { bits << Slot.tagShift }
  /// Of a tracked key, as far as `hashMask` goes.
  var hash: UInt64 { ((bits & Self.nameMask) >> 4) << 19 | bits & (EngineKey.firstOther - 1) }
}

/// The notes of one shard, slab by slab in the order of the slabs' turn.
final class ShardNotes {
  struct Slab: BitwiseCopyable {
    /// Of the notes that have not been visited.
    var next = 0
    var end = 0
    /// The ages of the first and the last element.
    var ages = (first: UInt64.max, last: UInt64.max)
    /// Between the two.
    var agePerGranule = 0.0
    var isSorted = false
  }

  let number: Int
  let count: Int
  private var notes: BookkeepingArray<UInt64>
  private var slabs: BookkeepingArray<Slab>
  /// The number of slabs that have had their turn.
  private var passed = 0
  private let isReversed: Bool

  init(_ number: Int, _ notes: consuming BookkeepingArray<UInt64>, _ slabs: consuming BookkeepingArray<Slab>, isReversed: Bool) {
    (self.number, self.isReversed, count) = (number, isReversed, slabs[slabs.count - 1].end)
    self.notes = notes
    self.slabs = slabs
  }

  /// The age of the entry whose turn it is; nil after the last slab.
  var age: UInt64? {
    guard passed < slabs.count else { return nil }
    let slab = slabs[self.slab]
    guard slab.isSorted, slab.next < slab.end, slab.ages.first < .max else {
      return isReversed ? slab.ages.last : slab.ages.first
    }
    let note = WalkNote(bits: notes[isReversed ? slab.end - 1 : slab.next])
    return slab.ages.first &+ UInt64(Double(note.granule) * slab.agePerGranule)
  }
  private var slab: Int { isReversed ? slabs.count - 1 - passed : passed }

  func nextSlab() { passed += 1 }
  func beginAgain() { passed = 0 }

  /// Takes the next notes of the slab with a counter; with `EntryWalk.afterAll`, all of those that have no turn. nil when there
  /// is no memory.
  func take(_ counter: UInt64, into batch: inout WalkBatch) -> Int? {
    let hasTurn = self.slab < slabs.count - 1
    guard hasTurn != (counter == EntryWalk.afterAll) else { return 0 }
    var slab = slabs[self.slab]
    if !slab.isSorted {
      // Sorting takes half as much memory as is sorted, and Swift's runtime ends the program when there is none.
      guard MemoryReserve.isThere(MemoryLayout<UInt64>.stride * (slab.end - slab.next) + MemoryReserve.ofNews) else { return nil }
      unsafe notes.withElements { all in unsafe all[slab.next..<slab.end].sort() }
      slab.isSorted = true
    }
    var count = 0
    while count < batch.count, slab.next < slab.end {
      let note = notes[isReversed ? slab.end - 1 : slab.next]
      guard !hasTurn || WalkNote(bits: note).counter == counter else { break }
      batch[count] = note
      count += 1
      if isReversed { slab.end -= 1 } else { slab.next += 1 }
    }
    slabs[self.slab] = slab
    return count
  }
}

/// As many notes as are visited under one hold of a mutex.
typealias WalkBatch = InlineArray<32, UInt64>

/// When notes were taken.
private struct NotingMoment: Equatable {
  let mask: ShardMask
  let moveNumber: UInt64

  init(_ base: CacheBase) { (mask, moveNumber) = (base.indexes.mask, base.indexes.moveNumber) }
}

/// The notes of all shards, on the way through them. Used by one thread at a time.
struct EntryWalk {
  private let shards: [ShardNotes]
  private let moment: NotingMoment
  private let isReversed: Bool
  /// How many counters have had their turn.
  private var passed: UInt64 = 0
  /// The turn of what has none.
  static let afterAll = Slot.highestCounter + 1
  /// Whether it is empty, or ended early, for want of memory.
  private(set) var lacksMemory: Bool

  /// Empty where there is no memory. `isReversed`: against the order of eviction.
  init(_ shards: borrowing CacheShards, isReversed: Bool = false) {
    let noted = shards.noteAll(isReversed: isReversed)
    (self.shards, moment) = noted ?? ([], NotingMoment(shards.base))
    lacksMemory = noted == nil
    self.isReversed = isReversed
  }

  /// How many entries were noted.
  var count: Int { shards.reduce(0) { $0 + $1.count } }

  private var counter: UInt64 { isReversed ? Self.afterAll - passed : passed }

  /// Calls `body` for the entries of the next notes, lost ones or not, each under its shard's mutex. False at the end.
  mutating func visitNext(of shards: borrowing CacheShards, _ body: (borrowing HeldShard, FoundSlot) -> Void) -> Bool {
    var batch = WalkBatch(repeating: 0)
    guard let (number, count) = next(&batch) else { return false }
    let isDone = shards.hold(shards.positions[UInt64(number)]) { held in
      shards.visit(batch, count: count, of: held, since: moment, body)
    }
    if !isDone { shards.visitEverywhere(batch, count: count, of: number, at: moment.mask, body) }
    return true
  }

  /// The next notes, all of one shard; nil at the end.
  private mutating func next(_ batch: inout WalkBatch) -> (shard: Int, count: Int)? {
    while true {
      var oldest: (notes: ShardNotes, age: UInt64)?
      for notes in shards {
        if let age = notes.age, oldest.map({ isReversed ? age > $0.age : age < $0.age }) ?? true { oldest = (notes, age) }
      }
      guard let notes = oldest?.notes else {
        passed += 1
        guard passed <= Self.afterAll else { return nil }
        for notes in shards { notes.beginAgain() }
        continue
      }
      guard let count = notes.take(counter, into: &batch) else {
        lacksMemory = true
        return nil
      }
      if count > 0 { return (notes.number, count) }
      notes.nextSlab()
    }
  }
}

// MARK: - Noting

/// How shards are compared: what goes for a limit on entries or costs goes in each of them from the front of main, as far as that
/// has more than its part, then from probation, then from the rest of main.
private struct TurnPhase {
  private let isOfLimit: Bool
  private var hasProbation: Bool
  private var number: UInt64 = 1

  init(_ need: EvictionNeed, hasProbation: Bool) {
    isOfLimit = need.reason == .count || need.reason == .cost
    self.hasProbation = hasProbation
  }

  /// Of the next slab.
  mutating func next(_ queue: EvictionQueue) {
    switch queue {
    // Those that a limit on costs does not want, as they cost nothing, come last.
    case .speculative, .pinned: if number < 2 { number = 0 }
    case .probation where isOfLimit: (number, hasProbation) = (2, false)
    case .main where isOfLimit: number = hasProbation ? 1 : 3
    case .probation, .main: number = 1
    }
  }

  func turn(_ age: UInt64) -> UInt64 { number << 62 | age }
}

extension CacheShards {
  /// Notes all entries. nil where there is no memory.
  fileprivate func noteAll(isReversed: Bool) -> ([ShardNotes], NotingMoment)? {
    guard MemoryReserve.isThere(MemoryReserve.ofObjects) else { return nil }
    // The founder's mutex is held throughout, so no entry moves, and is noted, a second time.
    return hold(founder) { from in
      guard let founders = from.noteEntries(isReversed) else { return nil }
      var notes = [founders]
      for shard in all.dropFirst() {
        guard let others = shard.whileHeld({ $0.noteEntries(isReversed) }) else { return nil }
        notes.append(others)
      }
      return (notes, NotingMoment(base))
    }
  }
}

extension HeldShard {
  /// Notes the shard's entries. nil when there is no memory.
  fileprivate func noteEntries(_ isReversed: Bool) -> ShardNotes? {
    if let entryOrder { noteEntries(by: entryOrder, isReversed) } else { noteEntriesBySlab(isReversed) }
  }

  private func noteEntries(by entryOrder: any EntryOrder, _ isReversed: Bool) -> ShardNotes? {
    guard var notes = BookkeepingArray<UInt64>(zeros: max(1, slots.count)),
      var slabs = BookkeepingArray<ShardNotes.Slab>(zeros: 1)
    else { return nil }
    var noted = 0
    var next = entryOrder.next(after: nil)
    while let position = next, let slots = index.current().slots {
      next = entryOrder.next(after: position)
      let slot = Slot(bits: slots[Int(position)].relaxed)
      guard let hash = hash(toNote: slot) else { continue }
      notes[noted] = WalkNote(slot, hash: hash).bits
      noted += 1
    }
    slabs[0] = ShardNotes.Slab(next: 0, end: noted, isSorted: true)
    return ShardNotes(number, notes, slabs, isReversed: isReversed)
  }

  private func noteEntriesBySlab(_ isReversed: Bool) -> ShardNotes? {
    let need = base.likelyNeed
    var (count, first, last) = (0, UInt32.max, UInt32(0))
    forEachSlabInTurn(sparseFirst: false, for: need) { slab, _, _ in
      (count, first, last) = (count + 1, min(first, slab.index), max(last, slab.index))
      return .taken
    }
    // By a slab's index: its number in the order of turn, and 1. Behind the last slab come notes of slabs without a turn.
    guard var numbers = BookkeepingArray<UInt32>(zeros: count == 0 ? 1 : Int(last - first) + 1),
      var slabs = BookkeepingArray<ShardNotes.Slab>(zeros: count + 1)
    else { return nil }
    let now = base.indexes.birthCount
    var ranked = 0
    var phase = TurnPhase(need, hasProbation: books[.probation].count > 0)
    forEachSlabInTurn(sparseFirst: false, for: need) { slab, information, queue in
      guard ranked < count else { return .passed }
      phase.next(queue)
      let ages = (first: phase.turn(information.first_age), last: phase.turn(information.age(at: .max, now: now)))
      slabs[ranked].ages = ages
      slabs[ranked].agePerGranule = Double(ages.last - ages.first) / Double(max(1, information.used_granule_count))
      ranked += 1
      numbers[Int(slab.index - first)] = UInt32(ranked)
      return .taken
    }
    for i in ranked...count { slabs[i].ages = (.max, .max) }

    let (shift, granules) = (heap.slabPlaceShift, heap.granulesPerSlab)
    func slabNumber(_ slot: Slot, _ numbers: borrowing BookkeepingArray<UInt32>) -> Int {
      let at = Int(truncatingIfNeeded: slot.place >> shift) - Int(first)
      return at >= 0 && at < numbers.count && numbers[at] != 0 ? Int(numbers[at]) - 1 : count
    }
    var noted = 0
    index.forEachSlot { slot in
      slabs[slabNumber(slot, numbers)].end += 1
      noted += 1
    }
    guard var notes = BookkeepingArray<UInt64>(zeros: max(1, noted)) else { return nil }
    var start = 0
    for i in 0...count {
      let end = start + slabs[i].end
      (slabs[i].next, slabs[i].end) = (start, start)
      start = end
    }
    let table = index.current()
    guard let inTable = table.slots else { return ShardNotes(number, notes, slabs, isReversed: isReversed) }
    for i in 0..<table.slotCount {
      table.prefetch(aheadOf: i, in: table)
      let slot = Slot(bits: inTable[i].relaxed)
      guard !slot.isEmpty, let hash = hash(toNote: slot) else { continue }
      let number = slabNumber(slot, numbers)
      let rounds = order.rounds(counter: slot.counter, heap.queue(at: slot.place), need.reason.cause)
      notes[slabs[number].end] = WalkNote(slot, hash: hash, counter: rounds, granule: slot.place & (granules - 1)).bits
      slabs[number].end += 1
    }
    return ShardNotes(self.number, notes, slabs, isReversed: isReversed)
  }

  /// nil where the name of a slot is noted at another one. The hash is that of a tracked key, else 0.
  private func hash(toNote slot: Slot) -> UInt64? {
    if slot.isTracked {
      let number = EngineKey.trackedNumber(of: slot)
      guard let hash = keys.hash(of: number) else { return nil }
      // The youngest that has a slot.
      var pointer = keys.next(hash: hash, mask: WalkNote.hashMask, below: .max, above: 0)
      while let hollow = pointer, hollow.node.isHollow {
        pointer = keys.next(
          hash: hash, mask: WalkNote.hashMask, below: hollow.node.stamp, above: 0, last: hollow.node.number)
      }
      return pointer?.node.number == number ? hash : nil
    }
    var candidates = index.current().candidates(of: slot.identity)
    return candidates.next()?.slot.place == slot.place ? 0 : nil
  }
}

// MARK: - Visiting

extension CacheShards {
  /// False, with none visited, where entries have moved since the notes were taken.
  fileprivate func visit(
    _ batch: WalkBatch, count: Int, of held: borrowing HeldShard, since noted: NotingMoment,
    _ body: (borrowing HeldShard, FoundSlot) -> Void
  ) -> Bool {
    guard NotingMoment(base) == noted else { return false }
    for i in 0..<count { held.index.prefetch(identity: WalkNote(bits: batch[i]).identity) }
    for i in 0..<count { held.visit(WalkNote(bits: batch[i]), body) }
    return true
  }

  /// Visits the notes of a shard's entries wherever these are now. `noted`: the mask when the notes were taken.
  fileprivate func visitEverywhere(
    _ batch: WalkBatch, count: Int, of number: Int, at noted: ShardMask, _ body: (borrowing HeldShard, FoundSlot) -> Void
  ) {
    func visit(_ note: WalkNote, _ held: borrowing HeldShard) {
      held.visit(note) { held, found in
        if number != 0, !note.isTracked {
          // Names are of a shard: another one may have noted the same.
          guard let hash = held.elements.facts(of: held.heap.reference(found.slot.place))?.shardHash,
            positions[noted.home(of: hash)].number == number
          else { return }
        }
        body(held, found)
      }
    }
    // Under the founder's mutex no entry goes to another shard.
    hold(founder) { held in
      for i in 0..<count {
        let note = WalkNote(bits: batch[i])
        visit(note, held)
        for shard in all.dropFirst() where note.isTracked || shard.index.has(note.identity) {
          shard.whileHeld { visit(note, $0) }
        }
      }
    }
  }
}

extension HeldShard {
  /// Calls `body` for the shard's entries with a note's name.
  fileprivate func visit(_ note: WalkNote, _ body: (borrowing HeldShard, FoundSlot) -> Void) {
    guard note.isTracked else { return visit(note.identity, body) }
    var next = keys.next(hash: note.hash, mask: WalkNote.hashMask, below: .max, above: 0)
    while let pointer = next {
      let (number, stamp) = (pointer.node.number, pointer.node.stamp)
      visit(EngineKey(trackedNumber: number, hash: 0).identity, body)
      next = keys.next(hash: note.hash, mask: WalkNote.hashMask, below: stamp, above: 0, last: number)
    }
  }

  private func visit(_ identity: UInt64, _ body: (borrowing HeldShard, FoundSlot) -> Void) {
    for found in index.current().candidates(of: identity) { body(self, found) }
  }
}
