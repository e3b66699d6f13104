// SPDX-License-Identifier: MIT
// Reading an entry's identity, length and cost from its element, as long as its pages are intact.

import CPurgeable

/// What an element tells of its entry, as long as the pages of its header and its key are intact.
struct EntryFacts {
  let identity: UInt64
  let prefixByteCount: Int
  let payloadByteCount: Int
  /// Decides the entry's shard (`CacheShards`). nil for tracked keys, whose hash is in their node, and where it was not
  /// needed.
  var shardHash: UInt64?

  /// The entry's cost: the given one, or the value's bytes.
  func cost(_ head: EntryHead) -> UInt64 {
    head.cost ?? UInt64(max(0, payloadByteCount - prefixByteCount - head.byteCount))
  }
}

/// A slot and what it held when it was found.
struct FoundSlot {
  let pointer: SlotPointer
  let slot: Slot

  /// Whether the entry is still there, moved or not. Under the shard's mutex, where nothing was inserted since.
  var isInUse: Bool {
    let now = Slot(bits: pointer.relaxed)
    return !now.isEmpty && now.identity == slot.identity
  }
}

/// An entry as eviction meets it: its slot, and what its element tells.
struct FoundEntry {
  let found: FoundSlot
  let facts: EntryFacts
}

/// What a read that compares the key comes to.
struct MatchingRead {
  var outcome = purgeable_outcome_t.busy
  var matches = false
  var head = EntryHead()
  /// Of the value.
  var byteCount = 0
}

struct ElementReader: Sendable {
  let heap: SlabHeap
  let keys: KeyHashing

  /// Reads the facts of an element; nil when it is lost.
  func facts(of reference: purgeable_reference_t) -> EntryFacts? {
    guard let length = length(reference) else { return nil }
    // Most keys are short, and every further byte would have to be copied.
    let usual: Int
    switch keys.layout {
    case .fixed(let byteCount): usual = byteCount
    case .variable: usual = 64
    }
    return unsafe withUnsafeTemporaryAllocation(byteCount: min(length, usual), alignment: 8) { scratch -> EntryFacts? in
      guard unsafe copy(reference, from: 0, into: scratch),
        let parsed = unsafe EntryPrefix.parse(UnsafeRawBufferPointer(scratch), layout: keys.layout)
      else { return nil }
      switch parsed {
      case .tracked(let number):
        return EntryFacts(
          identity: EngineKey(trackedNumber: number, hash: 0).identity, prefixByteCount: EntryPrefix.trackedByteCount,
          payloadByteCount: length)
      case .key(let prefixByteCount, _):
        if prefixByteCount <= scratch.count {
          let key = unsafe keys.key(prefix: UnsafeRawBufferPointer(rebasing: scratch[..<prefixByteCount]))
          return EntryFacts(
            identity: key.identity, prefixByteCount: prefixByteCount, payloadByteCount: length, shardHash: key.shardHash)
        }
        // A key longer than the scratch: rare, so it may allocate.
        return unsafe withUnsafeTemporaryAllocation(byteCount: prefixByteCount, alignment: 8) { whole -> EntryFacts? in
          guard unsafe copy(reference, from: 0, into: whole) else { return nil }
          let key = unsafe keys.key(prefix: UnsafeRawBufferPointer(whole))
          return EntryFacts(
            identity: key.identity, prefixByteCount: prefixByteCount, payloadByteCount: length, shardHash: key.shardHash)
        }
      }
    }
  }

  /// The facts of a slot's element. With keys of one size, only the element's length is read.
  func facts(of slot: Slot) -> EntryFacts? {
    let reference = heap.reference(slot.place)
    guard case .fixed(let prefixByteCount) = keys.layout else { return facts(of: reference) }
    guard let length = length(reference) else { return nil }
    return EntryFacts(identity: slot.identity, prefixByteCount: prefixByteCount, payloadByteCount: length)
  }

  /// An entry's head, which is empty where the slot has none. nil when it is on a lost page.
  func head(of slot: Slot, _ facts: EntryFacts) -> EntryHead? {
    assert(facts.prefixByteCount > 0 && facts.prefixByteCount <= facts.payloadByteCount, "PurgeableCache: a key beyond its entry")
    return slot.hasHead ? head(at: slot.place, facts) : EntryHead()
  }

  /// The head of the entry at a place, which has one.
  func head(at place: UInt64, _ facts: EntryFacts) -> EntryHead? {
    unsafe withUnsafeTemporaryAllocation(byteCount: EntryHead.mostBytes, alignment: 8) { all in
      let byteCount = min(all.count, facts.payloadByteCount - facts.prefixByteCount)
      let bytes = unsafe UnsafeMutableRawBufferPointer(rebasing: all[..<byteCount])
      guard unsafe copy(heap.reference(place), from: facts.prefixByteCount, into: bytes) else { return nil }
      var head = unsafe EntryHead(bytes.bytes)
      if head.version != nil {
        guard let digest = unsafe withVersion(heap.reference(place), head, facts.prefixByteCount, { unsafe Self.digest(of: $0) })
        else { return nil }
        head.version?.digest = digest
      }
      return head
    }
  }

  private static func digest(of text: UnsafeRawBufferPointer) -> UInt32 {
    var hasher = Hasher()
    unsafe hasher.combine(bytes: text)
    return UInt32(truncatingIfNeeded: hasher.finalize())
  }

  /// Calls `body` with the text of an entry's version, whose head has one. nil when the text is lost.
  func withVersion<R>(
    _ reference: purgeable_reference_t, _ head: EntryHead, _ prefixByteCount: Int, _ body: (UnsafeRawBufferPointer) -> R
  ) -> R? {
    unsafe withUnsafeTemporaryAllocation(byteCount: VersionText.mostBytes, alignment: 8) { all in
      let text = unsafe UnsafeMutableRawBufferPointer(rebasing: all[..<Int(head.version?.byteCount ?? 0)])
      if text.count > 0, unsafe !copy(reference, from: prefixByteCount + head.textStart, into: text) { return nil }
      return unsafe body(UnsafeRawBufferPointer(text))
    }
  }

  /// Whether an entry is of a version. nil when that is lost.
  func isOf(
    _ version: UnsafeRawBufferPointer, _ reference: purgeable_reference_t, _ head: EntryHead, _ prefixByteCount: Int
  ) -> Bool? {
    guard let its = head.version, Int(its.byteCount) == version.count else { return false }
    return unsafe withVersion(reference, head, prefixByteCount) { text in
      unsafe text.elementsEqual(version)
    }
  }

  /// An entry's cost. nil when the head is on a lost page.
  func cost(of slot: Slot, _ facts: EntryFacts) -> UInt64? { head(of: slot, facts).map { facts.cost($0) } }

  // MARK: Reads of the core

  /// The length of an element's payload; nil where its header is gone.
  func length(_ reference: purgeable_reference_t) -> Int? {
    var length = 0
    return unsafe purgeable_heap_length_bytes(heap.raw, reference, &length) == .intact ? length : nil
  }

  /// Copies a part of an element's payload, as long as `buffer`. False when the element is lost, or was changed all the time.
  func copy(_ reference: purgeable_reference_t, from offset: Int, into buffer: UnsafeMutableRawBufferPointer) -> Bool {
    unsafe purgeable_heap_read_part(heap.raw, reference, offset, buffer.count, buffer.baseAddress) == .intact
  }

  /// Copies the value of a slot's element, if its payload begins with `prefix`, and unless it has more bytes than the buffer.
  /// Only with the outcome `.intact` does the rest tell.
  @inline(__always)
  func read(
    _ reference: purgeable_reference_t, hasHead: Bool, _ prefix: UnsafeRawBufferPointer,
    into buffer: UnsafeMutableRawBufferPointer
  ) -> MatchingRead {
    var read = MatchingRead()
    if !hasHead {
      unsafe read.outcome = purgeable_heap_read_matching(
        heap.raw, reference, prefix.baseAddress!, prefix.count, nil, 0, buffer.baseAddress, buffer.count, &read.byteCount,
        &read.matches)
      return read
    }
    unsafe withUnsafeTemporaryAllocation(byteCount: EntryHead.mostBytes, alignment: 8) { bytes in
      unsafe read.outcome = purgeable_heap_read_matching(
        heap.raw, reference, prefix.baseAddress!, prefix.count, bytes.baseAddress, bytes.count, buffer.baseAddress,
        buffer.count, &read.byteCount, &read.matches)
      if read.outcome == .intact, read.matches { read.head = unsafe EntryHead(bytes.bytes) }
    }
    return read
  }

  /// As `read`, without the value.
  func compare(_ reference: purgeable_reference_t, hasHead: Bool, with prefix: UnsafeRawBufferPointer) -> MatchingRead {
    unsafe read(reference, hasHead: hasHead, prefix, into: UnsafeMutableRawBufferPointer(start: nil, count: 0))
  }

  func check(_ reference: purgeable_reference_t) -> purgeable_outcome_t { unsafe purgeable_heap_check(heap.raw, reference) }

  /// Of a part of an element's payload: equal for equal bytes. nil when the element is lost.
  func digest(of reference: purgeable_reference_t, from start: Int, to end: Int) -> Int? {
    // More would not lie on the stack.
    unsafe withUnsafeTemporaryAllocation(byteCount: 1024, alignment: 8) { scratch in
      var hasher = Hasher()
      var at = start
      while at < end {
        let part = unsafe UnsafeMutableRawBufferPointer(rebasing: scratch[..<min(scratch.count, end - at)])
        guard unsafe copy(reference, from: at, into: part) else { return nil }
        unsafe hasher.combine(bytes: UnsafeRawBufferPointer(part))
        at += part.count
      }
      return hasher.finalize()
    }
  }

  /// Whether the element at a place is there, all of it. Under its shard's mutex.
  func isIntact(_ place: UInt64) -> Bool {
    var outcome = purgeable_outcome_t.busy
    // Busy under the mutex: the thread was preempted over and over.
    for _ in 0..<64 where outcome == .busy { outcome = check(heap.reference(place)) }
    return outcome == .intact
  }

  /// Whether the element at a place is lost, or its slab has ended.
  func isGone(_ place: UInt64) -> Bool {
    if heap.isLost(place) { return true }
    switch check(heap.reference(place)) {
    case .intact, .busy: return false
    // An error: the slab was given back, or the process is a forked child, in which all slabs have ended.
    case .discarded, .error: return true
    }
  }
}
