// SPDX-License-Identifier: MIT
// Look-ups under a shard's mutex.

import CPurgeable
import Glibc

/// What a peek tells beside the value's bytes. Tells an entry that has only moved from one that was stored since.
struct PeekedEntry: Equatable {
  let head: EntryHead
  let cost: UInt64
  /// Of the value's bytes; 0 where it was not asked for.
  let digest: Int
  let priority: EntryPriority
  /// When its time is over, unless it is used meanwhile; nil: never.
  let end: UInt64?

  /// Another priority makes no other entry, nor does another end: a hit may change both.
  static func == (left: PeekedEntry, right: PeekedEntry) -> Bool {
    left.head == right.head && left.cost == right.cost && left.digest == right.digest
  }
}

/// An entry locked for the caller to unlock.
@safe enum EngineLock {
  case locked(purgeable_reference_t, UnsafeRawBufferPointer)
  /// No more bytes may be locked.
  case refused
  case absent
}

extension HeldShard {
  /// The slot of a key. Lost entries of the same tag are dropped on the way, and the key's entry where its time is over.
  mutating func find(_ key: EngineKey, _ prefix: RawSpan) -> FoundSlot? {
    index.prefetch(identity: key.identity)
    for found in index.current().candidates(of: key.identity) {
      var compared = MatchingRead()
      // Busy under the mutex: the thread was preempted over and over, or the slab died in a forked child.
      for _ in 0..<64 where compared.outcome == .busy {
        compared = elements.compare(heap.reference(found.slot.place), hasHead: found.slot.hasHead, with: prefix)
      }
      if compared.outcome == .intact {
        guard compared.matches else { continue }
        guard base.isOver(compared.head, index.current().lastUse(of: found.pointer).time) else { return found }
        drop(found, .expired)
      } else {
        drop(found, .discarded)
      }
    }
    return nil
  }

  /// As `CacheEngine.read`. `version`: nil for any. `removes`: the entry is removed once it is copied, so that no other thread
  /// gets the value too.
  mutating func read(
    _ key: EngineKey, _ prefix: RawSpan, into buffer: UnsafeMutableRawBufferPointer, countsAsUse: Bool = true,
    version: RawSpan? = nil, removes: Bool = false
  ) -> BufferRead {
    var found: FoundSlot?
    return unsafe read(key, prefix, into: buffer, countsAsUse: countsAsUse, version: version, removes: removes, at: &found)
  }

  /// As above. `place`: where a hit was.
  private mutating func read(
    _ key: EngineKey, _ prefix: RawSpan, into buffer: UnsafeMutableRawBufferPointer, countsAsUse: Bool, version: RawSpan?,
    removes: Bool, at place: inout FoundSlot?
  ) -> BufferRead {
    func count(_ reason: DepartureReason) -> UInt64 { counters.departures[reason.rawValue] }
    let before = (lost: count(.discarded), expired: count(.expired))
    while let found = find(key, prefix) {
      let slot = found.slot
      let reference = heap.reference(slot.place)
      let read = unsafe elements.read(reference, hasHead: slot.hasHead, prefix, into: buffer)
      // Discarded: the key's page is intact, another page of the value is lost. Busy: another try.
      if read.outcome == .discarded { drop(found, .discarded) }
      guard read.outcome == .intact, read.matches else { continue }
      if let version {
        var isOf: Bool?
        // Busy under the mutex, as in `find`.
        for _ in 0..<64 where isOf == nil { isOf = elements.isOf(version, reference, read.head, prefix.byteCount) }
        guard let isOf else {
          drop(found, .discarded)
          continue
        }
        if !isOf {
          if countsAsUse { index.countMiss() }
          return .miss(missReason(key, .outdated, counts: countsAsUse))
        }
      }
      let byteCount = read.byteCount
      if countsAsUse, byteCount <= buffer.count {
        index.countHit()
        found.pointer.countUse(of: slot)
        noteUse(of: found)
        noteLastUse(of: found, read.head)
      }
      if byteCount > buffer.count { return .bufferTooSmall(needed: byteCount) }
      if removes { drop(found, .removed) }
      place = found
      return .hit(byteCount: byteCount)
    }
    let isLost = count(.discarded) != before.lost || isHollow(key)
    let known = count(.expired) != before.expired ? MissReason.expired : isLost ? .discarded : nil
    if removes { endHollow(key, .removed) }
    if countsAsUse { index.countMiss() }
    return .miss(missReason(key, known, counts: countsAsUse))
  }

  /// As `read`, without counting as a use.
  mutating func peek(
    _ key: EngineKey, _ prefix: RawSpan, into buffer: UnsafeMutableRawBufferPointer, digests: Bool,
    _ peeked: inout PeekedEntry?
  ) -> BufferRead {
    var found: FoundSlot?
    let read = unsafe read(key, prefix, into: buffer, countsAsUse: false, version: nil, removes: false, at: &found)
    guard case .hit = read else { return read }
    peeked = found.flatMap { peekedEntry($0, prefixByteCount: prefix.byteCount, digests: digests) }
    return peeked == nil ? .miss(.discarded) : read
  }

  /// nil where the key has no entry, or it is lost.
  mutating func peeked(_ key: EngineKey, _ prefix: RawSpan, digests: Bool) -> PeekedEntry? {
    find(key, prefix).flatMap { peekedEntry($0, prefixByteCount: prefix.byteCount, digests: digests) }
  }

  /// The text of the version of a key's entry, in `text`; nil where there is none.
  mutating func copyVersion(
    _ key: EngineKey, _ prefix: RawSpan, into text: inout InlineArray<255, UInt8>
  ) -> Int? {
    guard let found = find(key, prefix) else { return nil }
    let reference = heap.reference(found.slot.place)
    let read = elements.compare(reference, hasHead: found.slot.hasHead, with: prefix)
    guard read.outcome == .intact, read.head.version != nil else { return nil }
    return elements.withVersion(reference, read.head, prefix.byteCount) { bytes in
      for i in 0..<bytes.byteCount { text[i] = bytes.integer(at: i) }
      return bytes.byteCount
    }
  }

  /// Takes a key's entry out, if it is as it was peeked at, with a digest. A decider's verdict is void where it was pinned
  /// meanwhile.
  mutating func remove(
    _ key: EngineKey, _ prefix: RawSpan, peeked: PeekedEntry, _ reason: DepartureReason
  ) -> Bool {
    guard let found = find(key, prefix),
      peekedEntry(found, prefixByteCount: prefix.byteCount, digests: true) == peeked,
      reason == .removed || priority(of: found.slot) != .pinned
    else { return false }
    drop(found, reason)
    return true
  }

  /// nil when the entry is lost.
  private func peekedEntry(_ found: FoundSlot, prefixByteCount: Int, digests: Bool) -> PeekedEntry? {
    let reference = heap.reference(found.slot.place)
    guard let length = elements.length(reference) else { return nil }
    let facts = EntryFacts(identity: found.slot.identity, prefixByteCount: prefixByteCount, payloadByteCount: length)
    guard let head = elements.head(of: found.slot, facts) else { return nil }
    let cost = facts.cost(head)
    let priority = priority(of: found.slot)
    let end = base.end(head, lastUse(of: found.slot), asOf: base.clock.now())
    guard digests else { return PeekedEntry(head: head, cost: cost, digest: 0, priority: priority, end: end) }
    return elements.digest(of: reference, from: prefixByteCount + head.byteCount, to: length).map {
      PeekedEntry(head: head, cost: cost, digest: $0, priority: priority, end: end)
    }
  }

  /// The reason of a miss: the known one, else the ghost's. `counts`: for the statistics.
  mutating func missReason(_ key: EngineKey, _ known: MissReason?, counts: Bool = true) -> MissReason {
    let reason = known ?? MissReason(ghost.reason(of: key.ghostIdentity))
    if counts { counters.misses[reason.rawValue] += 1 }
    return reason
  }

  /// Locks a tracked key's entry, to be used after the mutex is released.
  mutating func lock(_ key: EngineKey, _ prefix: RawSpan) -> EngineLock {
    while let found = find(key, prefix) {
      let reference = heap.reference(found.slot.place)
      let (outcome, payload) = unsafe heap.lock(reference)
      if outcome == .error {
        return errno == EAGAIN ? .refused : .absent
      }
      if outcome == .discarded { drop(found, .discarded) }
      guard outcome == .intact else { continue }
      index.countHit()
      found.pointer.countUse(of: found.slot)
      noteUse(of: found)
      noteLastUse(of: found, unsafe EntryPrefix.head(of: payload.bytes, behind: prefix.byteCount, hasHead: found.slot.hasHead))
      return unsafe .locked(reference, EntryPrefix.value(of: payload, behind: prefix.byteCount, hasHead: found.slot.hasHead))
    }
    return .absent
  }

  mutating func contains(_ key: EngineKey, _ prefix: RawSpan) -> Bool {
    while let found = find(key, prefix) {
      if elements.check(heap.reference(found.slot.place)) == .intact { return true }
      drop(found, .discarded)
    }
    return false
  }

  /// Whether a tracked key has an intact value. Drops no entry and so causes no departure: it may be called under a mutex that
  /// handlers take. A page that it finds lost goes off the books all the same.
  mutating func containsTracked(_ key: EngineKey) -> Bool {
    // A number belongs to one key, so every candidate is the key's slot.
    for found in index.current().candidates(of: key.identity) {
      let place = found.slot.place
      if elements.isIntact(place) { return !isExpired(found.slot) }
      if heap.isLost(place) { books.unbookLostPage(place, heap.queue(at: place)) }
    }
    return false
  }

  /// Drops an entry that a read found lost, or its time over, by its exact slot: a value that was stored under the key since then
  /// stays.
  mutating func dropDead(_ slot: Slot) {
    // The place may have been used again for an entry of the same tag: only a dead entry is dropped.
    guard let now = index.find(identity: slot.identity, place: slot.place), now.slot.isSameEntry(as: slot) else { return }
    if elements.isGone(slot.place) { drop(now, .discarded) } else if isExpired(now.slot) { drop(now, .expired) }
  }

  /// Whether an entry's time is over. `facts`: spares a read of the element where the caller has them.
  func isExpired(_ slot: Slot, facts known: EntryFacts? = nil) -> Bool {
    guard slot.hasHead, let facts = known ?? elements.facts(of: slot), let head = elements.head(of: slot, facts)
    else { return false }
    return base.isOver(head, lastUse(of: slot))
  }
}

extension MissReason {
  init(_ remembered: Ghost.Reason?) {
    self =
      switch remembered {
      case .evicted: .evicted
      case .removed: .removed
      case .discarded: .discarded
      case .expired: .expired
      case nil: .unknown
      }
  }
}
