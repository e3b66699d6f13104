// SPDX-License-Identifier: MIT
// Reads: no mutex, no system call, no allocation. They write only counters.
//
//   slot -> generation -> slot again     the slot named this place while the slab had this generation: so it is the element's
//   compare key, copy, checks            in the core (heap_read.c): witnesses, header, generation
//   slot again                           the entry was still this one when its bytes were proven
//
// If the slot has changed, the reader looks again. If the table has changed, or the mask, it does the same after "not found". In
// which shards it looks, and why no entry is missed: Shard/CacheShards+Opening.swift.

import CPurgeable
import Glibc
import Synchronization

extension CacheEngine {
  /// Copies a key's value into a buffer, again and again until the slot says the same before and after. `countsAsUse`: for the
  /// order of eviction and the statistics. `version`: nil for any.
  @inline(__always)
  func read(
    _ key: EngineKey, prefix: RawSpan, into buffer: UnsafeMutableRawBufferPointer, countsAsUse: Bool = true,
    version: RawSpan? = nil
  ) -> BufferRead {
    var tries = 0
    var reason: MissReason?
    again: while true {
      tries += 1
      if tries > 64 { return unsafe readUnderMutex(key, prefix, into: buffer, countsAsUse, version) }
      let mask = base.indexes.mask
      var looks = ShardLooks(key, mask)
      repeat {
        #if DEBUG
          looks.callHook(shards.sizes)
        #endif
        let index = base.indexes[looks.position]
        let table = index.current()
        guard let slots = table.slots else { return .miss(.unknown) }
        let (first, second) = table.buckets(of: key.identity)
        // Both are prefetched, since the slot may be in either.
        slots[first].prefetch()
        slots[second].prefetch()
        var start = first
        for round in 0..<2 {
          for i in start..<start &+ SlotIndex.slotsPerBucket {
            // Acquire: pairs with the release that stored the slot.
            let slot = Slot(bits: slots[i].acquired)
            if slot.bits & Slot.identityMask != key.identity || slot.isEmpty { continue }
            switch unsafe read(slot, at: slots[i], table, prefix, into: buffer, version) {
            case .otherKey: continue
            case .changed: continue again
            case .lost:
              // The lost entry had the key's tag, so it was most likely the key's; the bytes of its key are lost. Another slot
              // may hold the key all the same.
              dropDead(slot, at: looks.position)
              reason = .discarded
              continue again
            case .expired:
              dropDead(slot, at: looks.position)
              reason = .expired
              continue again
            case .outdated: return countsAsUse ? miss(key, .outdated) : .miss(.outdated)
            case .found(let byteCount, let now, let moment):
              if byteCount > buffer.count { return .bufferTooSmall(needed: byteCount) }
              if countsAsUse {
                index.countHit()
                slots[i].countUse(of: now)
                if let moment { table.lastUse(of: slots[i]).note(UseTime(moment)) }
                if !base.namesSlabs { noteHit(FoundSlot(pointer: slots[i], slot: now), in: table) }
              }
              return .hit(byteCount: byteCount)
            }
          }
          if round == 0, first == second { break }
          start = second
        }
        guard index.isCurrent(table) else { continue again }
      } while looks.next()
      if isCurrent(mask) { break }
    }
    return countsAsUse ? miss(key, reason) : .miss(reason ?? .unknown)
  }

  /// The result of reading a slot with the key's identity.
  private enum SlotRead {
    /// The value was copied, unless it has more bytes than the buffer. `now`: the slot after the copy. `moment`: what to note as
    /// the last use; nil where that is not kept.
    case found(byteCount: Int, now: Slot, moment: UInt64?)
    case otherKey, changed, lost, expired
    /// The entry is of another version, or of none.
    case outdated
  }

  @inline(__always)
  private func read(
    _ slot: Slot, at pointer: SlotPointer, _ table: SlotIndex.Table, _ prefix: RawSpan,
    into buffer: UnsafeMutableRawBufferPointer, _ version: RawSpan?
  ) -> SlotRead {
    let place = slot.place
    let generation = heap.generation(at: place)
    guard Slot(bits: pointer.acquired).isSameEntry(as: slot) else { return .changed }
    // Valid for the length of the call: the prefix and the buffer are the caller's.
    let reference = purgeable_reference_t(place: place, generation: UInt64(generation))
    let read = unsafe base.elements.read(reference, hasHead: slot.hasHead, prefix, into: buffer)
    if read.outcome == .busy { return .changed }
    if read.outcome == .intact && !read.matches { return .otherKey }
    // Before the slot is looked at again (LastUses.swift).
    let moment = base.useMoment(read.head)
    let isOver = base.isOver(read.head, table.lastUse(of: pointer).time, at: moment)
    atomicMemoryFence(ordering: .acquiring)
    let now = Slot(bits: pointer.relaxed)
    guard now.isSameEntry(as: slot) else { return .changed }
    if read.outcome == .discarded { return .lost }
    if isOver { return .expired }
    if let version {
      // Of the same element: its bytes do not change, and a later look at a place that got another one fails.
      guard let isOf = base.elements.isOf(version, reference, read.head, prefix.byteCount) else { return .changed }
      if !isOf { return .outdated }
    }
    return .found(byteCount: read.byteCount, now: now, moment: moment)
  }

  /// Whether a mask is still the present one, after the fence in `SlotIndex.isCurrent`: only then is "not found" an answer.
  @inline(__always)
  private func isCurrent(_ mask: ShardMask) -> Bool { base.indexes.mask == mask }

  /// Reads under the shard's mutex, when the slot keeps changing.
  func readUnderMutex(
    _ key: EngineKey, _ prefix: RawSpan, into buffer: UnsafeMutableRawBufferPointer, _ countsAsUse: Bool,
    _ version: RawSpan? = nil
  ) -> BufferRead {
    shards.hold(homeOf: key) { held in
      unsafe held.read(key, prefix, into: buffer, countsAsUse: countsAsUse, version: version)
    }
  }

  /// Notes a hit for an order that names entries, which has one shard.
  @inline(never)
  private func noteHit(_ found: FoundSlot, in table: SlotIndex.Table) {
    shards.founder.held.withLock { held in held.noteHit(found, in: table) }
  }

  /// Counts a miss, with its reason if that is known, else from the ghost. A reason that is not known is not worth a wait for the
  /// mutex, nor a look while the ghost remembers nothing.
  @inline(never)
  func miss(_ key: EngineKey, _ known: MissReason?) -> BufferRead {
    // By the index alone, since a reference to the shard would be counted, on a cache line that all threads share.
    let index = base.indexes.home(of: key)
    index.countMiss()
    if let known { return .miss(shards.hold(homeOf: key) { held in held.missReason(key, known) }) }
    if index.remembersKeys,
      let reason = shards.shard(of: key).held.withLockIfAvailable({ held in held.missReason(key, nil) })
    {
      return .miss(reason)
    }
    index.countUnknownMiss()
    return .miss(.unknown)
  }

  /// Drops an entry that a read found lost, or its time over, by the slot that was found in the index at a position.
  @inline(never)
  func dropDead(_ slot: Slot, at position: UInt64) {
    shards.hold(shards.positions[position]) { held in held.dropDead(slot) }
  }

  // MARK: Access without copying

  /// What a look at a slot comes to.
  private enum Look<R> {
    case isKeys(R)
    case otherKey
    /// The slot has changed, or its entry is lost: all slots are looked at again.
    case changed
  }

  /// Looks at the slots with a key's identity, in each shard that may have the key's entry, until one is the key's. nil where
  /// none is, or the slots have changed `tries` times.
  @inline(__always)
  private func search<R>(
    _ key: EngineKey, tries: Int, _ look: (_ found: FoundSlot, _ table: SlotIndex.Table, _ position: UInt64) -> Look<R>
  ) -> R? {
    for _ in 0..<tries {
      let mask = base.indexes.mask
      var looks = ShardLooks(key, mask)
      var changed = false
      repeat {
        #if DEBUG
          looks.callHook(shards.sizes)
        #endif
        let index = base.indexes[looks.position]
        let table = index.current()
        for found in table.candidates(of: key.identity) {
          switch look(found, table, looks.position) {
          case .isKeys(let result): return result
          case .otherKey: continue
          case .changed: changed = true
          }
        }
        if !index.isCurrent(table) { changed = true }
      } while !changed && looks.next()
      if !changed, isCurrent(mask) { return nil }
    }
    return nil
  }

  /// Locks a key's value for the caller to unlock, and counts a hit or a miss. Takes no mutex.
  func lock(_ key: EngineKey, prefix: RawSpan) -> EngineLock {
    var reason: MissReason?
    let result = search(key, tries: 1000) { found, table, position -> Look<EngineLock> in
      lock(key, prefix, found, table, at: position, &reason)
    }
    if let result { return result }
    _ = miss(key, reason)
    return .absent
  }

  /// Locks the element of a slot with the key's identity, and compares the key then: locked, its bytes can be looked at as they
  /// are. `reason`: set where the entry is dropped.
  @inline(__always)
  private func lock(
    _ key: EngineKey, _ prefix: RawSpan, _ found: FoundSlot, _ table: SlotIndex.Table, at position: UInt64,
    _ reason: inout MissReason?
  ) -> Look<EngineLock> {
    let reference = heap.reference(found.slot.place)
    guard Slot(bits: found.pointer.acquired).isSameEntry(as: found.slot) else { return .changed }
    let (outcome, payload) = unsafe heap.lock(reference)
    switch outcome {
    case .intact: break
    case .discarded:
      dropDead(found.slot, at: position)
      reason = .discarded
      return .changed
    case .error where errno == EAGAIN:
      let compared = base.elements.compare(reference, hasHead: false, with: prefix)
      if compared.outcome == .intact && !compared.matches { return .otherKey }
      _ = miss(key, .lockLimit)
      return .isKeys(.refused)
    default: return .changed
    }
    // The place may have got another entry before the lock. So the slot is looked at once more.
    let isSame = Slot(bits: found.pointer.acquired).isSameEntry(as: found.slot)
    if isSame, unsafe payload.bytes.starts(with: prefix) {
      if found.slot.hasHead || base.notesUses.load(ordering: .relaxed) {
        let head = unsafe EntryPrefix.head(of: payload.bytes, behind: prefix.byteCount, hasHead: found.slot.hasHead)
        let moment = base.useMoment(head)
        let lastUse = table.lastUse(of: found.pointer)
        let isOver = base.isOver(head, lastUse.time, at: moment)
        atomicMemoryFence(ordering: .acquiring)
        let isStillSame = Slot(bits: found.pointer.relaxed).isSameEntry(as: found.slot)
        if isOver || !isStillSame {
          heap.unlock(reference)
          if isStillSame {
            dropDead(found.slot, at: position)
            reason = .expired
          }
          return .changed
        }
        if let moment { lastUse.note(UseTime(moment)) }
      }
      base.indexes[position].countHit()
      found.pointer.countUse(of: found.slot)
      if !base.namesSlabs { noteHit(found, in: table) }
      return unsafe .isKeys(
        .locked(reference, EntryPrefix.value(of: payload, behind: prefix.byteCount, hasHead: found.slot.hasHead)))
    }
    heap.unlock(reference)
    return isSame ? .otherKey : .changed
  }

  // MARK: Asking

  func contains(_ key: EngineKey, _ prefix: RawSpan) -> Bool {
    for _ in 0..<64 {
      guard let (slot, position, _) = findForAccess(key, prefix) else { return false }
      let outcome = base.elements.check(heap.reference(slot.place))
      if outcome == .discarded { dropDead(slot, at: position) }
      guard outcome == .intact, let now = base.indexes[position].find(identity: key.identity, place: slot.place),
        now.slot.isSameEntry(as: slot)
      else { continue }
      return true
    }
    return shards.hold(homeOf: key) { held in held.contains(key, prefix) }
  }

  /// When a key's value was loaded, if that is noted.
  func birth(of key: EngineKey, _ prefix: RawSpan) -> UInt64? { findForAccess(key, prefix)?.head.made }

  /// Finds a key's slot by comparing keys, the position of the shard that has it, and its head. Copies no value and counts no
  /// use.
  private func findForAccess(
    _ key: EngineKey, _ prefix: RawSpan
  ) -> (slot: Slot, position: UInt64, head: EntryHead)? {
    search(key, tries: 64) { found, table, position -> Look<(slot: Slot, position: UInt64, head: EntryHead)?> in
      let reference = heap.reference(found.slot.place)
      guard Slot(bits: found.pointer.acquired).isSameEntry(as: found.slot) else { return .changed }
      let read = base.elements.compare(reference, hasHead: found.slot.hasHead, with: prefix)
      // A lost element counts as found: the caller's lock or check makes it certain.
      if read.outcome == .discarded { return .isKeys((found.slot, position, read.head)) }
      guard read.outcome == .intact, read.matches else { return read.outcome == .busy ? .changed : .otherKey }
      guard base.isOver(read.head, table.lastUse(of: found.pointer).time) else {
        return .isKeys((found.slot, position, read.head))
      }
      dropDead(found.slot, at: position)
      return .changed
    } ?? nil
  }
}
