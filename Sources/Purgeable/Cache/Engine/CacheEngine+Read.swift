// SPDX-License-Identifier: MIT
// Reads: no mutex, no system call, no allocation. They write only counters.
//
//   slot -> generation -> slot again     the slot named this place while the slab had this generation: so it is the element's
//   compare key, copy, checks            in the core (heap_read.c): witnesses, header, generation
//   slot again                           the entry was still this one when its bytes were proven
//
// If the slot has changed, the reader looks again. If the table has changed, or the mask, it does the same after "not found". In
// which shards it looks, and why no entry is missed: Shard/CacheShards+Opening.swift. Where the slots go on changing, it takes
// the shard's mutex.

import CPurgeable
import Glibc
import Synchronization

extension CacheEngine {
  // MARK: The search

  /// What a look at a slot comes to.
  private enum Look {
    case isKeys, otherKey
    /// The slot has changed, or its entry was dropped: all slots are looked at again.
    case changed
  }

  /// `unsettled`: the slots went on changing.
  private enum SearchEnd { case found, absent, unsettled }

  /// Looks at the slots with a key's identity, in each shard that may have the key's entry, until one is the key's.
  @inline(__always)
  private func search(
    _ key: EngineKey, _ look: (_ found: FoundSlot, _ table: SlotIndex.Table, _ position: UInt64) -> Look
  ) -> SearchEnd {
    again: for _ in 0..<64 {
      let mask = base.indexes.mask
      var looks = ShardLooks(key, mask)
      repeat {
        #if DEBUG
          looks.callHook(shards.sizes)
        #endif
        let index = base.indexes[looks.position]
        let table = index.current()
        let candidates = table.candidates(of: key.identity)
        candidates.prefetch()
        for found in candidates {
          switch look(found, table, looks.position) {
          case .isKeys: return .found
          case .otherKey: break
          case .changed: continue again
          }
        }
        guard index.isCurrent(table) else { continue again }
      } while looks.next()
      // After the fence in `isCurrent`: only with the same mask is "not found" an answer.
      if base.indexes.mask == mask { return .absent }
    }
    return .unsettled
  }

  /// What looks read.
  private struct SlotRead {
    /// Of the value.
    var byteCount = 0
    /// When it was loaded, if that is noted.
    var made: UInt64?
    /// The entry is of another version, or of none.
    var isOutdated = false
    /// What to note as the last use; nil where that is not kept.
    var moment: UInt64?
    /// Why an entry was dropped on the way.
    var reason: MissReason?
  }

  /// Reads the element of a slot with the key's identity, and copies the value unless it has more bytes than the buffer.
  /// `version`: nil for any.
  @inline(__always)
  private func look(
    at found: FoundSlot, _ table: SlotIndex.Table, _ position: UInt64, _ prefix: RawSpan,
    into buffer: UnsafeMutableRawBufferPointer, _ version: RawSpan?, _ read: inout SlotRead
  ) -> Look {
    let reference = heap.reference(found.slot.place)
    guard Slot(bits: found.pointer.acquired).isSameEntry(as: found.slot) else { return .changed }
    // Valid for the length of the call: the prefix and the buffer are the caller's.
    let element = unsafe base.elements.read(reference, hasHead: found.slot.hasHead, prefix, into: buffer)
    if element.outcome == .busy { return .changed }
    if element.outcome == .intact && !element.matches { return .otherKey }
    // Before the slot is looked at again (LastUses.swift).
    read.moment = base.useMoment(element.head)
    let isOver = base.isOver(element.head, table.lastUse(of: found.pointer).time, at: read.moment)
    atomicMemoryFence(ordering: .acquiring)
    guard Slot(bits: found.pointer.relaxed).isSameEntry(as: found.slot) else { return .changed }
    if element.outcome == .discarded || isOver {
      // A lost entry had the key's tag, so it was most likely the key's; the bytes of its key are lost. Another slot may hold the
      // key all the same.
      dropDead(found.slot, at: position)
      read.reason = element.outcome == .discarded ? .discarded : .expired
      return .changed
    }
    if let version {
      // Of the same element: its bytes do not change, and a later look at a place that got another one fails.
      guard let isOf = base.elements.isOf(version, reference, element.head, prefix.byteCount) else { return .changed }
      read.isOutdated = !isOf
    }
    (read.byteCount, read.made) = (element.byteCount, element.head.made)
    return .isKeys
  }

  /// As above, without the value.
  private func look(
    at found: FoundSlot, _ table: SlotIndex.Table, _ position: UInt64, _ prefix: RawSpan, _ read: inout SlotRead
  ) -> Look {
    unsafe look(at: found, table, position, prefix, into: UnsafeMutableRawBufferPointer(start: nil, count: 0), nil, &read)
  }

  // MARK: Copying

  /// Copies a key's value into a buffer. `countsAsUse`: for the order of eviction and the statistics. `version`: nil for any.
  @inline(__always)
  func read(
    _ key: EngineKey, prefix: RawSpan, into buffer: UnsafeMutableRawBufferPointer, countsAsUse: Bool = true,
    version: RawSpan? = nil
  ) -> BufferRead {
    var read = SlotRead()
    let end = search(key) { found, table, position in
      let look = unsafe look(at: found, table, position, prefix, into: buffer, version, &read)
      if look == .isKeys, countsAsUse, !read.isOutdated, read.byteCount <= buffer.count {
        noteHit(found, in: table, position, at: read.moment)
      }
      return look
    }
    switch end {
    case .found where read.isOutdated: return countsAsUse ? miss(key, .outdated) : .miss(.outdated)
    case .found:
      return read.byteCount > buffer.count ? .bufferTooSmall(needed: read.byteCount) : .hit(byteCount: read.byteCount)
    case .absent: return countsAsUse ? miss(key, read.reason) : .miss(read.reason ?? .unknown)
    case .unsettled: return unsafe readUnderMutex(key, prefix, into: buffer, countsAsUse, version)
    }
  }

  @inline(never)
  func readUnderMutex(
    _ key: EngineKey, _ prefix: RawSpan, into buffer: UnsafeMutableRawBufferPointer, _ countsAsUse: Bool,
    _ version: RawSpan? = nil
  ) -> BufferRead {
    shards.hold(homeOf: key) { held in
      unsafe held.read(key, prefix, into: buffer, countsAsUse: countsAsUse, version: version)
    }
  }

  /// Counts a use. `moment`: to note as the last use; nil where that is not kept.
  @inline(__always)
  private func noteHit(_ found: FoundSlot, in table: SlotIndex.Table, _ position: UInt64, at moment: UInt64?) {
    base.indexes[position].countHit()
    found.pointer.countUse(of: found.slot)
    if let moment { table.lastUse(of: found.pointer).note(UseTime(moment)) }
    if !base.namesSlabs { noteInOrder(found, table) }
  }

  /// For an order that names entries, which has one shard.
  @inline(never)
  private func noteInOrder(_ found: FoundSlot, _ table: SlotIndex.Table) {
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

  /// Locks a key's value for the caller to unlock, and counts a hit or a miss.
  func lock(_ key: EngineKey, prefix: RawSpan) -> EngineLock {
    var (lock, reason) = (EngineLock.absent, MissReason?.none)
    let end = search(key) { found, table, position in
      self.lock(prefix, found, table, position, &lock, &reason)
    }
    if end == .unsettled { lock = shards.hold(homeOf: key) { held in held.lock(key, prefix) } }
    switch lock {
    case .locked: break
    case .refused: _ = miss(key, .lockLimit)
    case .absent: _ = miss(key, reason)
    }
    return lock
  }

  /// Locks the element of a slot with the key's identity, and compares the key then: locked, its bytes can be looked at as they
  /// are. `reason`: set where the entry is dropped.
  @inline(__always)
  private func lock(
    _ prefix: RawSpan, _ found: FoundSlot, _ table: SlotIndex.Table, _ position: UInt64, _ lock: inout EngineLock,
    _ reason: inout MissReason?
  ) -> Look {
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
      lock = .refused
      return .isKeys
    default: return .changed
    }
    // The place may have got another entry before the lock. So the slot is looked at once more.
    let isSame = Slot(bits: found.pointer.acquired).isSameEntry(as: found.slot)
    guard isSame, unsafe payload.bytes.starts(with: prefix) else {
      heap.unlock(reference)
      return isSame ? .otherKey : .changed
    }
    var moment: UInt64?
    if found.slot.hasHead || base.notesUses.load(ordering: .relaxed) {
      let head = unsafe EntryPrefix.head(of: payload.bytes, behind: prefix.byteCount, hasHead: found.slot.hasHead)
      moment = base.useMoment(head)
      let isOver = base.isOver(head, table.lastUse(of: found.pointer).time, at: moment)
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
    }
    noteHit(found, in: table, position, at: moment)
    unsafe lock = .locked(reference, EntryPrefix.value(of: payload, behind: prefix.byteCount, hasHead: found.slot.hasHead))
    return .isKeys
  }

  // MARK: Asking

  func contains(_ key: EngineKey, _ prefix: RawSpan) -> Bool {
    var read = SlotRead()
    let end = search(key) { found, table, position in
      let look = look(at: found, table, position, prefix, &read)
      guard look == .isKeys else { return look }
      // All of it.
      let outcome = base.elements.check(heap.reference(found.slot.place))
      atomicMemoryFence(ordering: .acquiring)
      guard Slot(bits: found.pointer.relaxed).isSameEntry(as: found.slot) else { return .changed }
      if outcome == .discarded { dropDead(found.slot, at: position) }
      return outcome == .intact ? .isKeys : .changed
    }
    if end == .unsettled { return shards.hold(homeOf: key) { held in held.contains(key, prefix) } }
    return end == .found
  }

  /// When a key's value was loaded, if that is noted.
  func birth(of key: EngineKey, _ prefix: RawSpan) -> UInt64? {
    var read = SlotRead()
    switch search(key, { found, table, position in look(at: found, table, position, prefix, &read) }) {
    case .found: return read.made
    case .absent: return nil
    case .unsettled: return shards.hold(homeOf: key) { held in held.peeked(key, prefix, digests: false)?.head.made }
    }
  }
}
