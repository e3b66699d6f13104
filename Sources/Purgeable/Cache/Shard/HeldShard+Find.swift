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
    var read = MatchingRead()
    return find(key, prefix, &read)
  }

  /// As above. `read`: what was read there, without the value.
  private mutating func find(_ key: EngineKey, _ prefix: RawSpan, _ read: inout MatchingRead) -> FoundSlot? {
    unsafe find(key, prefix, into: UnsafeMutableRawBufferPointer(start: nil, count: 0), &read)
  }

  /// As above. The value is copied, unless it has more bytes than the buffer: then the pages behind its head are not looked at.
  private mutating func find(
    _ key: EngineKey, _ prefix: RawSpan, into buffer: UnsafeMutableRawBufferPointer, _ read: inout MatchingRead
  ) -> FoundSlot? {
    let candidates = index.current().candidates(of: key.identity)
    candidates.prefetch()
    for found in candidates {
      let reference = heap.reference(found.slot.place)
      // Busy under the mutex: the thread was preempted over and over, or the slab died in a forked child.
      for _ in 0..<64 {
        read = unsafe elements.read(reference, hasHead: found.slot.hasHead, prefix, into: buffer)
        if read.outcome != .busy { break }
      }
      if read.outcome == .intact {
        guard read.matches else { continue }
        guard base.isOver(read.head, index.current().lastUse(of: found.pointer).time) else { return found }
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
    var read = MatchingRead()
    func count(_ reason: DepartureReason) -> UInt64 { counters.departures[reason.rawValue] }
    let before = (lost: count(.discarded), expired: count(.expired))
    if let found = unsafe find(key, prefix, into: buffer, &read) {
      // nil: the version's text is lost.
      var isWanted: Bool? = true
      if let version { isWanted = isOf(version, found, read.head, prefix.byteCount) }
      if isWanted == true {
        let byteCount = read.byteCount
        if byteCount > buffer.count { return .bufferTooSmall(needed: byteCount) }
        if countsAsUse {
          index.countHit()
          found.pointer.countUse(of: found.slot)
          noteUse(of: found)
          noteLastUse(of: found, read.head)
        }
        if removes { drop(found, .removed) }
        return .hit(byteCount: byteCount)
      }
      if isWanted == false {
        if countsAsUse { index.countMiss() }
        return .miss(missReason(key, .outdated, counts: countsAsUse))
      }
      drop(found, .discarded)
    }
    let isLost = count(.discarded) != before.lost || isHollow(key)
    let known = count(.expired) != before.expired ? MissReason.expired : isLost ? .discarded : nil
    if removes { endHollow(key, .removed) }
    if countsAsUse { index.countMiss() }
    return .miss(missReason(key, known, counts: countsAsUse))
  }

  /// Whether an entry is of a version. nil when that is lost.
  private func isOf(_ version: RawSpan, _ found: FoundSlot, _ head: EntryHead, _ prefixByteCount: Int) -> Bool? {
    let reference = heap.reference(found.slot.place)
    // Busy under the mutex, as in `find`.
    for _ in 0..<64 {
      if let isOf = elements.isOf(version, reference, head, prefixByteCount) { return isOf }
    }
    return nil
  }

  /// Whether a key has an entry of a version, nil for any.
  mutating func isOf(_ version: String?, _ key: EngineKey, _ prefix: RawSpan) -> Bool {
    guard let version else { return true }
    return version.withPurgeableBytes { text in
      var read = MatchingRead()
      return find(key, prefix, &read).map { isOf(text, $0, read.head, prefix.byteCount) ?? false } ?? false
    }
  }

  /// As `read`, without counting as a use; a miss is given no reason.
  mutating func peek(
    _ key: EngineKey, _ prefix: RawSpan, into buffer: UnsafeMutableRawBufferPointer, digests: Bool,
    _ peeked: inout PeekedEntry?
  ) -> BufferRead {
    var read = MatchingRead()
    guard let found = unsafe find(key, prefix, into: buffer, &read) else { return .miss(.unknown) }
    if read.byteCount > buffer.count { return .bufferTooSmall(needed: read.byteCount) }
    peeked = peekedEntry(found, read, prefixByteCount: prefix.byteCount, digests: digests)
    return peeked == nil ? .miss(.unknown) : .hit(byteCount: read.byteCount)
  }

  /// nil where the key has no entry, or it is lost.
  mutating func peeked(_ key: EngineKey, _ prefix: RawSpan, digests: Bool) -> PeekedEntry? {
    var read = MatchingRead()
    return find(key, prefix, &read).flatMap { peekedEntry($0, read, prefixByteCount: prefix.byteCount, digests: digests) }
  }

  /// The text of the version of a key's entry, in `text`; nil where there is none.
  mutating func copyVersion(
    _ key: EngineKey, _ prefix: RawSpan, into text: inout InlineArray<255, UInt8>
  ) -> Int? {
    var read = MatchingRead()
    guard let found = find(key, prefix, &read), read.head.version != nil else { return nil }
    return elements.withVersion(heap.reference(found.slot.place), read.head, prefix.byteCount) { bytes in
      for i in 0..<bytes.byteCount { text[i] = bytes.integer(at: i) }
      return bytes.byteCount
    }
  }

  /// Takes a key's entry out, if it is as it was peeked at, with a digest. A decider's verdict is void where it was pinned
  /// meanwhile.
  mutating func remove(
    _ key: EngineKey, _ prefix: RawSpan, peeked: PeekedEntry, _ reason: DepartureReason
  ) -> Bool {
    var read = MatchingRead()
    guard let found = find(key, prefix, &read),
      peekedEntry(found, read, prefixByteCount: prefix.byteCount, digests: true) == peeked,
      reason == .removed || priority(of: found.slot) != .pinned
    else { return false }
    drop(found, reason)
    return true
  }

  /// `read`: of the entry just now. nil when it is lost.
  private func peekedEntry(
    _ found: FoundSlot, _ read: MatchingRead, prefixByteCount: Int, digests: Bool
  ) -> PeekedEntry? {
    let facts = EntryFacts(
      identity: found.slot.identity, prefixByteCount: prefixByteCount,
      payloadByteCount: prefixByteCount + read.head.byteCount + read.byteCount)
    // A version's text is told by its digest.
    guard let head = read.head.version == nil ? read.head : elements.head(of: found.slot, facts) else { return nil }
    let end = base.end(head, lastUse(of: found.slot), asOf: base.clock.now())
    let (reference, start) = (heap.reference(found.slot.place), facts.payloadByteCount - read.byteCount)
    guard let digest = digests ? elements.digest(of: reference, from: start, to: facts.payloadByteCount) : 0 else { return nil }
    return PeekedEntry(head: head, cost: facts.cost(head), digest: digest, priority: priority(of: found.slot), end: end)
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
      if heap.isLost(place) { books.unbookPage(place, heap.queue(at: place), isLost: true) }
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

  /// Whether an entry's time is over.
  func isExpired(_ slot: Slot) -> Bool {
    guard slot.hasHead, let head = elements.parts(of: slot).head else { return false }
    return base.isOver(head, lastUse(of: slot))
  }
}

extension MissReason {
  init(_ remembered: Ghost.Reason?) {
    self =
      switch remembered {
      case .evicted, .evictedFromMain: .evicted
      case .removed: .removed
      case .discarded: .discarded
      case .expired: .expired
      case nil: .unknown
      }
  }
}
