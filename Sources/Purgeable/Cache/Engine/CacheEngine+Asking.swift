// SPDX-License-Identifier: MIT
// Eviction with the program's consent.
//
//   a store, a lowered limit --------+--> note   the next entry of the order, under its shard's mutex
//   pressure --> a thread of its own-+    ask    under no mutex
//                                         settle it leaves, if it is still the same; or it is passed over
//
// Nothing that runs under a shard's mutex can ask. So where the program is asked, no store and no reaction evicts for the reasons
// that it is asked about (`CacheBase.asks`): a store goes over the limit, and evicts when its mutex has been released. Entries
// go one by one. For memory they go until a quarter of what is held would be holes, and then what lives in the slabs with the
// most holes moves together, as in HeldShard+EntryOrder.swift.
//
// An entry that is passed over moves to the young end of main, or to the end of an order that names entries: all others come
// before it again.

import CPurgeable
import Synchronization

/// Who asks for a cache. A subclass has the program's closure and knows keys. It is also the client that gives back under
/// pressure, on a thread of its own.
class AskingClient: ProgramClient, @unchecked Sendable {
  /// How many entries a store passes over.
  static var mostPassed: Int { 64 }

  /// Brings the cache below its limits, as far as the program agrees. `key`: the one that was just stored. Under no mutex.
  func enforceLimits(sparing key: EngineKey?) {}
}

/// An entry whose turn has come. Names the element: what is stored under the key meanwhile is another one.
struct EvictionCandidate {
  let shard: EngineShard
  let queue: EvictionQueue
  let slot: Slot
  let generation: UInt64
  let byteCount: Int
  /// Of the key's bytes. Tags would not do: among thousands of entries two have the same.
  let keyDigest: Int
}

extension CacheEngine {
  /// The limit that is exceeded, slow growth included.
  var exceededLimitOrGrowth: DepartureReason? {
    base.exceededLimit ?? (base.chargedBytes > base.growthLimit ? .growth : nil)
  }

  /// Evicts entries that may go, until there is no reason any more, all entries have been passed over, or `most` of them. `key`:
  /// is passed over unasked. `note` gets an entry under its shard's mutex; then `mayGo` is asked about it, under none. False
  /// where nothing left.
  func evict(
    most: Int, sparing key: EngineKey?, _ reason: () -> DepartureReason?, note: (borrowing HeldShard, FoundSlot) -> Void,
    mayGo: (DepartureReason) -> Bool
  ) -> Bool {
    var passed = 0
    // As in `HeldShard.evictEntries`: where a few compactions free no more than those before, entries have to go first.
    var (fruitless, least, nextCompaction) = (0, base.heldBytes, Int.max)
    // Who asks about all gets to the end of each queue.
    var passes = EvictionPasses(most: most >= base.count ? nil : base.namesSlabs ? most / 2 : most)
    var living: Int?
    var turn = AskingTurn()
    // Bounded, because other threads may store meanwhile, and the closure too.
    var left = base.count + most
    var evicted = 0
    while passed < most, left > 0, let reason = reason() {
      if reason.isOfMemory {
        let now = living ?? shards.all.reduce(0) { sum, shard in sum + shards.hold(shard) { $0.livingBytes } }
        living = now
        // What lives fits in the slabs of fewer shards: the caller closes the others, and calls again.
        if reason == .bytes, shards.areTooMany, now <= base.limits.bytes.load(ordering: .relaxed) / 4 * 3 { break }
        if now < base.heldBytes / 4 * 3, now <= nextCompaction {
          for shard in shards.all { shards.hold(shard) { held in held.compactSparsest() } }
          fruitless = base.heldBytes < least ? 0 : fruitless + 1
          least = min(least, base.heldBytes)
          if fruitless == 4 { (fruitless, nextCompaction) = (0, now - heap.slabBytes * shards.openCount) }
          continue
        }
      }
      left -= 1
      guard let candidate = turn.next(of: shards, reason, passes, note) else {
        guard turn.hasDropped else { break }
        evicted += 1
        continue
      }
      if passes.hasPassed(candidate) {
        // Behind those of its round; else the next call would begin with the second.
        shards.hold(candidate.shard) { held in held.settle(candidate, nil) }
        if base.namesSlabs { continue }
        break
      }
      let isSpared = key.map { $0.identity == candidate.slot.identity && shards.shard(of: $0).number == candidate.shard.number }
      let goes = isSpared != true && mayGo(reason)
      shards.hold(candidate.shard) { held in held.settle(candidate, goes ? reason : nil) }
      if goes {
        evicted += 1
        // What an index for fewer entries no longer takes is room, too.
        if reason == .bytes, evicted % max(256, base.count / 16) == 0 { fitBookkeeping() }
        living = living.map { $0 - candidate.byteCount }
      } else {
        passed += 1
        passes.add(candidate)
      }
    }
    if evicted > 0 { for shard in shards.all { shards.hold(shard) { held in held.shrinkIndex() } } }
    return evicted > 0
  }
}

/// How many entries of each queue of each shard a call has passed over because the program keeps them. A queue where that is
/// nearly all there is does not hide the others: it rests for the rest of the call.
private struct EvictionPasses {
  /// Numbers of shards are below 32.
  private var counts = InlineArray<128, Int>(repeating: 0)
  /// The first two entries of each shard that were passed over, by their keys' digests. One that comes again has gone round; the
  /// second is for a first one that has left.
  private var first = InlineArray<64, Int?>(repeating: nil)
  private let most: Int?

  /// `most`: of one queue, if one shard had all entries; nil: all of it.
  init(most: Int?) { self.most = most }

  private func at(_ shard: Int, _ queue: EvictionQueue) -> Int { shard * EvictionQueue.count + queue.rawValue }

  /// Whether an entry was passed over in this call; then its queue rests.
  mutating func hasPassed(_ candidate: EvictionCandidate) -> Bool {
    let own = 2 * candidate.shard.number
    guard first[own] == candidate.keyDigest || first[own + 1] == candidate.keyDigest else { return false }
    counts[at(candidate.shard.number, candidate.queue)] = .max
    return true
  }

  mutating func add(_ candidate: EvictionCandidate) {
    counts[at(candidate.shard.number, candidate.queue)] += 1
    let own = 2 * candidate.shard.number
    if first[own] == nil {
      first[own] = candidate.keyDigest
    } else if first[own + 1] == nil {
      first[own + 1] = candidate.keyDigest
    }
  }

  /// The queues of a shard that rest, a bit for each.
  func resting(of held: borrowing HeldShard) -> UInt8 {
    let most = most.map { max(8, $0 * held.slots.count / max(1, held.base.count)) } ?? .max
    var bits: UInt8 = 0
    for queue in EvictionQueue.all where counts[at(held.number, queue)] >= most { bits |= queue.bit }
    return bits
  }
}

/// The shard whose entries are asked about. The one that is next by age is looked for once for some entries.
private struct AskingTurn {
  private var shard: EngineShard?
  private var left = 0
  /// Whether the last call dropped something instead that nobody is asked about: lost, hollow or expired entries.
  private(set) var hasDropped = false

  /// Notes the next entry; nil where there is none, or something was dropped.
  mutating func next(
    of shards: borrowing CacheShards, _ reason: DepartureReason, _ passes: EvictionPasses,
    _ note: (borrowing HeldShard, FoundSlot) -> Void
  ) -> EvictionCandidate? {
    var candidate: EvictionCandidate?
    hasDropped = false
    if let shard, left > 0 {
      left -= 1
      hasDropped = shards.hold(shard) { held in held.note(&candidate, reason, passes, in: shards, note) } && candidate == nil
      if candidate != nil || hasDropped { return candidate }
    }
    shards.evictByAge(
      age: { $0.nextAge(EvictionNeed(reason)) }, until: { candidate != nil || hasDropped },
      evict: { held in
        let isFruitful = held.note(&candidate, reason, passes, in: shards, note)
        hasDropped = isFruitful && candidate == nil
        return isFruitful
      })
    (shard, left) = (candidate?.shard, 16)
    return candidate
  }
}

extension DepartureReason {
  /// Whether memory is wanted, not places or costs.
  fileprivate var isOfMemory: Bool { self == .bytes || self == .growth || self == .pressure }
}

extension HeldShard {
  /// Notes the entry that goes next. False where none can go.
  fileprivate mutating func note(
    _ candidate: inout EvictionCandidate?, _ reason: DepartureReason, _ passes: EvictionPasses, in shards: borrowing CacheShards,
    _ note: (borrowing HeldShard, FoundSlot) -> Void
  ) -> Bool {
    guard let next = nextToGo(EvictionNeed(reason), resting: passes.resting(of: self)) else { return false }
    guard case .entry(let found, let facts) = next else { return true }
    let slot = found.slot
    guard let digest = elements.digest(of: heap.reference(slot.place), from: 0, to: facts.prefixByteCount) else {
      drop(found, elements.isGone(slot.place) ? .discarded : reason)
      return true
    }
    candidate = EvictionCandidate(
      shard: shards.positions[UInt64(number)], queue: heap.queue(at: slot.place), slot: slot,
      generation: heap.reference(slot.place).generation,
      byteCount: facts.payloadByteCount + SlabHeap.elementOverhead,
      keyDigest: digest)
    note(self, found)
    return true
  }

  /// Does to an entry what the program said; nothing where it has moved, or is another one. `reason`: nil where it is passed
  /// over.
  mutating func settle(_ candidate: EvictionCandidate, _ reason: DepartureReason?) {
    let slot = candidate.slot
    guard let found = index.find(identity: slot.identity, place: slot.place),
      heap.reference(slot.place).generation == candidate.generation
    else { return }
    guard let reason else {
      if let entryOrder {
        // Behind the normal ones, also where it is speculative.
        entryOrder.putOff(position(of: found), as: .normal)
      } else if let facts = elements.facts(of: slot) {
        _ = apply(.move(.main, counter: found.slot.counter), .busy, to: found, facts)
      }
      return
    }
    drop(found, elements.isGone(slot.place) ? .discarded : reason)
  }
}
