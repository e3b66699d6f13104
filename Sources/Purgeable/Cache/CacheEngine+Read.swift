// SPDX-License-Identifier: MIT
// Reads: no mutex, no system call, no allocation. They write only counters.
//
//   slot -> generation -> slot again     the slot named this place while the slab had this generation: so it is the element's
//   compare key, copy, checks            in the core (heap_read.c): witnesses, header, generation
//   slot again                           the entry was still this one when its bytes were proven
//
// If the slot has changed, the reader looks again. If the table has changed, it does the same after "not found".

import CPurgeable
import Glibc
import Synchronization

/// The result of a read.
enum EngineRead {
  /// The value was copied: `byteCount` bytes.
  case hit(byteCount: Int)
  /// The buffer is too small for the value: nothing was copied.
  case tooSmall(byteCount: Int)
  case miss(MissReason)
}

extension CacheEngine {
  /// Copies a key's value into a buffer, again and again until the slot says the same before and after. `countsAsUse`: for the
  /// order of eviction and the statistics.
  @inline(__always)
  func read(
    _ key: EngineKey, prefix: UnsafeRawBufferPointer, into buffer: UnsafeMutableRawBufferPointer, countsAsUse: Bool = true
  ) -> EngineRead {
    var tries = 0
    var foundLost = false
    again: while true {
      tries += 1
      if tries > 64 { return unsafe readUnderMutex(key, unsafe prefix, into: unsafe buffer, countsAsUse) }
      // Acquire: pairs with the release in `transfer`; a reader that sees the mask sees the indexes it leads to.
      let mask = shards.mask.load(ordering: .acquiring)
      let index = base.indexes[key.shardHash & mask]
      #if DEBUG
        if shards.sizes.pausesReaders.load(ordering: .relaxed) { pauseForStep(mask) }
      #endif
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
          switch unsafe read(slot, at: slots[i], prefix, into: buffer) {
          case .otherKey: continue
          case .changed: continue again
          case .lost:
            // The lost entry had the key's tag, so it was most likely the key's; the bytes of its key are lost. Another slot may
            // hold the key all the same.
            dropDiscarded(key, slot)
            foundLost = true
            continue again
          case .found(let byteCount, let now):
            if byteCount > buffer.count { return .tooSmall(byteCount: byteCount) }
            if countsAsUse {
              index.countHit()
              slots[i].countUse(of: now)
            }
            return .hit(byteCount: byteCount)
          }
        }
        if round == 0, first == second { break }
        start = second
      }
      if index.isCurrent(table), isCurrent(mask) { break }
    }
    return countsAsUse ? miss(key, foundLost ? .discarded : nil) : .miss(foundLost ? .discarded : .unknown)
  }

  /// The result of reading a slot with the key's identity.
  private enum SlotRead {
    /// The value was copied, unless it has more bytes than the buffer. `now`: the slot after the copy.
    case found(byteCount: Int, now: Slot)
    case otherKey, changed, lost
  }

  @inline(__always)
  private func read(
    _ slot: Slot, at pointer: SlotPointer, _ prefix: UnsafeRawBufferPointer, into buffer: UnsafeMutableRawBufferPointer
  ) -> SlotRead {
    let place = slot.place
    let generation = heap.generation(at: place)
    guard Slot(bits: pointer.acquired).isSameEntry(as: slot) else { return .changed }
    var byteCount = 0
    var matches = false
    // Valid for the length of the call: the prefix and the buffer are the caller's.
    let outcome = unsafe purgeable_heap_read_matching(
      heap.raw, purgeable_reference_t(place: place, generation: UInt64(generation)), prefix.baseAddress!, prefix.count,
      slot.isCosted ? 8 : 0, buffer.baseAddress, buffer.count, &byteCount, &matches)
    if outcome == .busy { return .changed }
    if outcome == .intact && !matches { return .otherKey }
    atomicMemoryFence(ordering: .acquiring)
    let now = Slot(bits: pointer.relaxed)
    guard now.isSameEntry(as: slot) else { return .changed }
    return outcome == .discarded ? .lost : .found(byteCount: byteCount, now: now)
  }

  /// Whether a mask is still the present one, after the fence in `SlotIndex.isCurrent`: only then is "not found" an answer
  /// (Shard/CacheShards+Step.swift).
  @inline(__always)
  func isCurrent(_ mask: UInt64) -> Bool {
    #if DEBUG
      if shards.sizes.ignoresSteps.load(ordering: .relaxed) { return true }
    #endif
    return shards.mask.load(ordering: .relaxed) == mask
  }

  #if DEBUG
    /// Waits between two loads of a reader, for a step to come between them.
    @inline(never)
    private func pauseForStep(_ mask: UInt64) {
      for _ in 0..<5 where shards.mask.load(ordering: .relaxed) == mask { usleep(100) }
      usleep(100)
    }
  #endif

  /// Reads under the shard's mutex, when the slot keeps changing.
  func readUnderMutex(
    _ key: EngineKey, _ prefix: UnsafeRawBufferPointer, into buffer: UnsafeMutableRawBufferPointer, _ countsAsUse: Bool
  ) -> EngineRead {
    shards.hold(of: key.shardHash) { held in unsafe held.read(key, prefix, into: buffer, countsAsUse: countsAsUse) }
  }

  /// Counts a miss, with its reason from the ghost. Does not wait for the mutex: a reason is not worth that, and in a forked
  /// child the mutex's holder may not exist. Takes no mutex either while the ghost remembers nothing.
  @inline(never)
  func miss(_ key: EngineKey, _ known: MissReason?) -> EngineRead {
    // By the index alone, since a reference to the shard would be counted, on a cache line that all threads share.
    let index = base.indexes[key.shardHash & shards.mask.load(ordering: .acquiring)]
    index.countMiss()
    if known == nil, !index.remembersKeys {
      index.countUnknownMiss()
      return .miss(.unknown)
    }
    let reason = shards.shard(of: key.shardHash).held.withLockIfAvailable { held in held.missReason(key, known) }
    return .miss(reason ?? known ?? .unknown)
  }

  /// Drops an entry whose content a read found lost.
  @inline(never)
  func dropDiscarded(_ key: EngineKey, _ slot: Slot) {
    shards.hold(of: key.shardHash) { held in held.dropLost(slot) }
  }

  // MARK: Access without copying

  enum EngineAccess<R> {
    case used(R)
    case miss(MissReason)
  }

  /// Locks the element for the length of `body`. Takes no mutex while `body` runs.
  func withLocked<R, E: Error>(
    _ key: EngineKey, prefix: UnsafeRawBufferPointer, _ body: (UnsafeRawBufferPointer) throws(E) -> R
  ) throws(E) -> EngineAccess<R> {
    var foundLost = false
    for _ in 0..<1000 {
      guard let found = unsafe findForAccess(key, unsafe prefix) else { break }
      let index = shards.shard(of: key.shardHash).index
      let reference = heap.reference(found.place)
      let (outcome, payload) = unsafe heap.lock(reference)
      if outcome == .discarded {
        dropDiscarded(key, found)
        foundLost = true
        continue
      }
      if outcome == .error, errno == EAGAIN {
        _ = miss(key, .lockLimit)
        return .miss(.lockLimit)
      }
      guard outcome == .intact else { continue }
      defer {
        heap.unlock(reference)
        WorkBell.ring()
      }
      // The element is locked now, but the place may have got another entry before. So the key is compared once more.
      let skip = prefix.count + (found.isCosted ? 8 : 0)
      guard payload.count >= skip, unsafe payload.prefix(prefix.count).elementsEqual(prefix),
        let now = index.find(identity: key.identity, place: found.place), now.slot.isSameEntry(as: found)
      else { continue }
      index.countHit()
      now.pointer.countUse(of: now.slot)
      return .used(try unsafe body(UnsafeRawBufferPointer(rebasing: payload[skip...])))
    }
    if case .miss(let reason) = miss(key, foundLost ? .discarded : nil) { return .miss(reason) }
    return .miss(.unknown)
  }

  // MARK: Asking

  func contains(_ key: EngineKey, _ prefix: UnsafeRawBufferPointer) -> Bool {
    for _ in 0..<64 {
      guard let slot = unsafe findForAccess(key, unsafe prefix) else { return false }
      let index = shards.shard(of: key.shardHash).index
      let outcome = base.elements.check(heap.reference(slot.place))
      if outcome == .discarded { dropDiscarded(key, slot) }
      guard outcome == .intact, let now = index.find(identity: key.identity, place: slot.place), now.slot.isSameEntry(as: slot)
      else { continue }
      return true
    }
    return shards.hold(of: key.shardHash) { held in unsafe held.contains(key, prefix) }
  }

  /// Finds a key's slot by comparing keys. Copies no value and counts no use.
  private func findForAccess(_ key: EngineKey, _ prefix: UnsafeRawBufferPointer) -> Slot? {
    for _ in 0..<64 {
      let mask = shards.mask.load(ordering: .acquiring)
      let index = base.indexes[key.shardHash & mask]
      let table = index.current()
      if table.slots == nil { return nil }
      var changed = false
      for found in table.candidates(of: key.identity) {
        let reference = heap.reference(found.slot.place)
        guard Slot(bits: found.pointer.acquired).isSameEntry(as: found.slot) else {
          changed = true
          continue
        }
        let (outcome, matches) = unsafe base.elements.compare(reference, with: prefix)
        // A lost element counts as found: the caller's lock or check makes it certain.
        if outcome == .discarded || (outcome == .intact && matches) { return found.slot }
        if outcome == .busy { changed = true }
      }
      if !changed, index.isCurrent(table), isCurrent(mask) { return nil }
    }
    return nil
  }
}
