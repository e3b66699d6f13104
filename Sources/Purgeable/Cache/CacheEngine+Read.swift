// SPDX-License-Identifier: MIT
// Reads: no mutex, no system call, no allocation, nothing written but a saturating counter.
//
//   slot -> generation -> slot again     the slot named this place while the slab had this generation: so it is the element's
//   compare key, copy, checks            in the core (heap_read.c): witnesses, header, generation
//   slot again                           the entry was still this one when its bytes were proven
//
// A slot that changed means: look again. A table that changed means the same for "not found".

import CPurgeable
import Glibc
import Synchronization

/// What a read found.
enum EngineRead {
  /// Copied; `byteCount` of value.
  case hit(byteCount: Int)
  /// There, but the buffer is too small: nothing was copied.
  case tooSmall(byteCount: Int)
  case miss(MissReason)
}

extension CacheEngine {
  /// Finds a key's slot, and has `use` look at it until what it says is consistent with the slot.
  /// `use` answers nil for "not this key", and is asked again when the slot changed under it.
  @inline(__always)
  func read(
    _ key: EngineKey, prefix: UnsafeRawBufferPointer, into buffer: UnsafeMutableRawBufferPointer, countsAsUse: Bool = true
  ) -> EngineRead {
    let index = indexes[Int(truncatingIfNeeded: key.shardHash & shardMask)]
    var tries = 0
    var foundLost = false
    again: while true {
      tries += 1
      if tries > 64 { return unsafe readUnderMutex(key, unsafe prefix, into: unsafe buffer) }
      let table = index.current()
      guard let slots = table.slots else { return .miss(.unknown) }
      let (first, second) = table.buckets(of: key.identity)
      // Both at once: which of the two it is shows only in them.
      slots[first].prefetch()
      slots[second].prefetch()
      var start = first
      for round in 0..<2 {
        for i in start..<start &+ SlotIndex.slotsPerBucket {
          // Acquire: pairs with the release that stored the slot.
          let slot = Slot(bits: slots[i].acquired)
          if slot.bits & Slot.identityMask != key.identity || slot.isEmpty { continue }
          let place = slot.place
          let generation = unsafe purgeable_heap_generation(heap.raw, place)
          guard Slot(bits: slots[i].acquired).isSameEntry(as: slot) else { continue again }
          var byteCount = 0
          var matches = false
          // Valid for the length of the call: the prefix and the buffer are the caller's.
          let outcome = unsafe purgeable_heap_read_matching(
            heap.raw, purgeable_reference_t(place: place, generation: UInt64(generation)), prefix.baseAddress!, prefix.count,
            slot.isCosted ? 8 : 0, buffer.baseAddress, buffer.count, &byteCount, &matches)
          if outcome == .busy { continue again }
          if outcome == .intact && !matches { continue }
          atomicMemoryFence(ordering: .acquiring)
          let after = Slot(bits: slots[i].relaxed)
          guard after.isSameEntry(as: slot) else { continue again }
          if outcome == .discarded {
            // Of this tag, so most likely this key; the key itself went with the page. Another slot may hold the key all the same.
            dropDiscarded(key, slot)
            foundLost = true
            continue again
          }
          if countsAsUse, byteCount <= buffer.count {
            index.countHit()
            if after.counter < 3 { raiseCounter(slots[i], after) }
          }
          return byteCount <= buffer.count ? .hit(byteCount: byteCount) : .tooSmall(byteCount: byteCount)
        }
        if round == 0, first == second { break }
        start = second
      }
      if index.isCurrent(table) { break }
    }
    return countsAsUse ? miss(key, foundLost ? .discarded : nil) : .miss(foundLost ? .discarded : .unknown)
  }

  /// One more use, up to 3. Fails silently when the slot changed: then this was not its use.
  @inline(__always)
  func raiseCounter(_ pointer: SlotPointer, _ slot: Slot) {
    let raised = slot.bits &+ 1 << Slot.counterShift
    // Weak and relaxed: a lost count loses a hint.
    pointer.tryExchange(slot.bits, for: raised)
  }

  /// Under constant change of the same slot: once more with the shard standing still.
  private func readUnderMutex(
    _ key: EngineKey, _ prefix: UnsafeRawBufferPointer, into buffer: UnsafeMutableRawBufferPointer
  ) -> EngineRead {
    let shard = shard(of: key)
    return withState(shard) { state in unsafe readLocked(key, prefix, into: buffer, shard, &state) }
  }

  /// As `read`, for callers that are under the shard's mutex already.
  func readLocked(
    _ key: EngineKey, _ prefix: UnsafeRawBufferPointer, into buffer: UnsafeMutableRawBufferPointer, countsAsUse: Bool = true,
    _ shard: EngineShard, _ state: inout ShardState
  ) -> EngineRead {
    let lossesBefore = state.counters.departures[DepartureReason.discarded.rawValue]
    while let found = unsafe findLocked(shard, key, prefix, &state) {
      var byteCount = 0
      var matches = false
      let outcome = unsafe purgeable_heap_read_matching(
        heap.raw, reference(found.slot.place), prefix.baseAddress!, prefix.count, found.slot.isCosted ? 8 : 0,
        buffer.baseAddress, buffer.count, &byteCount, &matches)
      // The key's page is there, another of the value's is not. Busy: once more.
      if outcome == .discarded { drop(found, .discarded, shard, &state) }
      guard outcome == .intact, matches else { continue }
      if countsAsUse, byteCount <= buffer.count {
        shard.index.countHit()
        if found.slot.counter < 3 { raiseCounter(found.pointer, found.slot) }
      }
      return byteCount <= buffer.count ? .hit(byteCount: byteCount) : .tooSmall(byteCount: byteCount)
    }
    let isLost = state.counters.departures[DepartureReason.discarded.rawValue] != lossesBefore
    let reason = isLost ? .discarded : reason(of: key, state)
    if countsAsUse {
      shard.index.countMiss()
      state.counters.misses[reason.rawValue] += 1
    }
    return .miss(reason)
  }

  /// The reason, from the ghost. Not worth waiting for: who holds the mutex may be a thread that a forked child does not have.
  @inline(never)
  func miss(_ key: EngineKey, _ known: MissReason?) -> EngineRead {
    let shard = shard(of: key)
    shard.index.countMiss()
    let reason = shard.state.withLockIfAvailable { state -> MissReason in
      let reason: MissReason =
        if let known {
          known
        } else {
          self.reason(of: key, state)
        }
      state.counters.misses[reason.rawValue] += 1
      return reason
    }
    return .miss(reason ?? known ?? .unknown)
  }

  private func reason(of key: EngineKey, _ state: borrowing ShardState) -> MissReason {
    switch state.ghost.reason(of: key.ghostIdentity) {
    case .evicted: .evicted
    case .removed: .removed
    case .discarded: .discarded
    case .expired: .expired
    case nil: .unknown
    }
  }

  /// A touch found the content gone. The entry is dropped by its exact slot: whatever was stored under the key since stays.
  @inline(never)
  func dropDiscarded(_ key: EngineKey, _ slot: Slot) {
    let shard = shard(of: key)
    withState(shard) { state in
      guard let pointer = shard.index.find(identity: key.identity, place: slot.place) else { return }
      let now = Slot(bits: pointer.relaxed)
      // The same place may have begun another life with the same tag: only what is lost goes.
      guard now.isSameEntry(as: slot), isLost(now) else { return }
      drop(FoundSlot(pointer: pointer, slot: now), .discarded, shard, &state)
    }
  }

  /// Whether a slot's element is gone. Shard's mutex held.
  func isLost(_ slot: Slot) -> Bool {
    if unsafe purgeable_heap_page_is_lost(heap.raw, slot.place) { return true }
    switch unsafe purgeable_heap_check(heap.raw, reference(slot.place)) {
    case .intact, .busy: return false
    // An error: the slab's life is over, as all lives are in a forked child.
    case .discarded, .error: return true
    }
  }

  // MARK: Access without copying

  @safe enum EngineLock {
    case locked(purgeable_reference_t, UnsafeRawBufferPointer)
    /// The limit of what may be locked.
    case refused
    case absent
  }

  /// A tracked key's entry, locked for the caller to unlock: looked up under the shard's mutex, used outside of it.
  func lockLocked(
    _ key: EngineKey, _ prefix: UnsafeRawBufferPointer, _ shard: EngineShard, _ state: inout ShardState
  ) -> EngineLock {
    while let found = unsafe findLocked(shard, key, prefix, &state) {
      let reference = reference(found.slot.place)
      var bytes: UnsafeRawPointer?
      var length = 0
      let outcome = unsafe purgeable_heap_lock(heap.raw, reference, &bytes, &length)
      if outcome == .error {
        return errno == EAGAIN ? .refused : .absent
      }
      if outcome == .discarded { drop(found, .discarded, shard, &state) }
      guard outcome == .intact, let bytes = unsafe bytes else { continue }
      shard.index.countHit()
      if found.slot.counter < 3 { raiseCounter(found.pointer, found.slot) }
      let skip = prefix.count + (found.slot.isCosted ? 8 : 0)
      return unsafe .locked(reference, UnsafeRawBufferPointer(start: bytes + skip, count: length - skip))
    }
    return .absent
  }

  enum EngineAccess<R> {
    case used(R)
    case miss(MissReason)
  }

  /// Locks the element for the length of `body`. Takes no mutex while `body` runs.
  func withLocked<R, E: Error>(
    _ key: EngineKey, prefix: UnsafeRawBufferPointer, _ body: (UnsafeRawBufferPointer) throws(E) -> R
  ) throws(E) -> EngineAccess<R> {
    let shard = shard(of: key)
    var foundLost = false
    for _ in 0..<1000 {
      guard let found = unsafe findForAccess(shard, key, unsafe prefix) else { break }
      let reference = reference(found.place)
      var bytes: UnsafeRawPointer?
      var length = 0
      let outcome = unsafe purgeable_heap_lock(heap.raw, reference, &bytes, &length)
      if outcome == .discarded {
        dropDiscarded(key, found)
        foundLost = true
        continue
      }
      if outcome == .error, errno == EAGAIN {
        _ = miss(key, .lockLimit)
        return .miss(.lockLimit)
      }
      guard outcome == .intact, let bytes = unsafe bytes else { continue }
      defer { unsafe purgeable_heap_unlock(heap.raw, reference) }
      let payload = unsafe UnsafeRawBufferPointer(start: bytes, count: length)
      // Locked now: what the slot named may meanwhile be another entry, so the key is compared once more.
      let skip = prefix.count + (found.isCosted ? 8 : 0)
      guard length >= skip, unsafe payload.prefix(prefix.count).elementsEqual(prefix),
        let pointer = shard.index.find(identity: key.identity, place: found.place)
      else { continue }
      let now = Slot(bits: pointer.acquired)
      guard now.isSameEntry(as: found) else { continue }
      shard.index.countHit()
      if now.counter < 3 { raiseCounter(pointer, now) }
      return .used(try unsafe body(UnsafeRawBufferPointer(rebasing: payload[skip...])))
    }
    if case .miss(let reason) = miss(key, foundLost ? .discarded : nil) { return .miss(reason) }
    return .miss(.unknown)
  }

  func unlock(_ reference: purgeable_reference_t) { _ = unsafe purgeable_heap_unlock(heap.raw, reference) }

  // MARK: Asking

  func contains(_ key: EngineKey, _ prefix: UnsafeRawBufferPointer) -> Bool {
    let shard = shard(of: key)
    for _ in 0..<64 {
      guard let slot = unsafe findForAccess(shard, key, unsafe prefix) else { return false }
      let outcome = unsafe purgeable_heap_check(heap.raw, reference(slot.place))
      if outcome == .discarded { dropDiscarded(key, slot) }
      guard outcome == .intact, let pointer = shard.index.find(identity: key.identity, place: slot.place),
        Slot(bits: pointer.acquired).isSameEntry(as: slot)
      else { continue }
      return true
    }
    return withState(shard) { state in unsafe containsLocked(key, prefix, shard, &state) }
  }

  func containsLocked(
    _ key: EngineKey, _ prefix: UnsafeRawBufferPointer, _ shard: EngineShard, _ state: inout ShardState
  ) -> Bool {
    while let found = unsafe findLocked(shard, key, prefix, &state) {
      if unsafe purgeable_heap_check(heap.raw, reference(found.slot.place)) == .intact { return true }
      drop(found, .discarded, shard, &state)
    }
    return false
  }

  /// The slot of a key, without using it: by comparing keys, without copying values.
  private func findForAccess(_ shard: EngineShard, _ key: EngineKey, _ prefix: UnsafeRawBufferPointer) -> Slot? {
    for _ in 0..<64 {
      let table = shard.index.current()
      guard let slots = table.slots else { return nil }
      let (first, second) = table.buckets(of: key.identity)
      var changed = false
      for start in [first, second] {
        for i in start..<start + SlotIndex.slotsPerBucket {
          let slot = Slot(bits: slots[i].acquired)
          if slot.identity != key.identity || slot.isEmpty { continue }
          let reference = reference(slot.place)
          guard Slot(bits: slots[i].acquired).isSameEntry(as: slot) else {
            changed = true
            continue
          }
          var rest = 0
          var matches = false
          let outcome = unsafe purgeable_heap_read_matching(
            heap.raw, reference, prefix.baseAddress!, prefix.count, 0, nil, 0, &rest, &matches)
          // A lost element is found too: the lock says so with certainty.
          if outcome == .discarded || (outcome == .intact && matches) { return slot }
          if outcome == .busy { changed = true }
        }
      }
      if !changed, shard.index.isCurrent(table) { return nil }
    }
    return nil
  }
}
