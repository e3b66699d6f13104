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

/// What could be read of an entry: no head without facts.
typealias EntryParts = (facts: EntryFacts?, head: EntryHead?)

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
    let parsed = withPart(of: reference, from: 0, count: min(length, usualPrefixByteCount)) {
      part -> (EntryPrefix.Parsed, EngineKey?)? in
      guard let parsed = EntryPrefix.parse(part, layout: keys.layout) else { return nil }
      guard case .key(let prefixByteCount, _) = parsed, prefixByteCount <= part.byteCount else { return (parsed, nil) }
      return (parsed, keys.key(prefix: part.extracting(0..<prefixByteCount)))
    }
    switch parsed {
    case nil: return nil
    case (.tracked(let number), _)?:
      return EntryFacts(
        identity: EngineKey(trackedNumber: number, hash: 0).identity, prefixByteCount: EntryPrefix.trackedByteCount,
        payloadByteCount: length)
    case (.key(let prefixByteCount, _), let known)?:
      // A key longer than usual: rare, so it may allocate.
      guard let key = known ?? withPart(of: reference, from: 0, count: prefixByteCount, { keys.key(prefix: $0) })
      else { return nil }
      return EntryFacts(
        identity: key.identity, prefixByteCount: prefixByteCount, payloadByteCount: length, shardHash: key.shardHash)
    }
  }

  /// The facts of a slot's element, without its hash: of the key no more is read than its length, where that is not known.
  func facts(of slot: Slot) -> EntryFacts? {
    let reference = heap.reference(slot.place)
    guard let length = length(reference), let prefixByteCount = prefixByteCount(reference, length) else { return nil }
    return EntryFacts(identity: slot.identity, prefixByteCount: prefixByteCount, payloadByteCount: length)
  }

  private func prefixByteCount(_ reference: purgeable_reference_t, _ length: Int) -> Int? {
    if case .fixed(let byteCount) = keys.layout { return byteCount }
    // As long as what says how long the key is.
    return withPart(of: reference, from: 0, count: min(length, EntryPrefix.trackedByteCount)) { part in
      switch EntryPrefix.parse(part, layout: .variable) {
      case .key(let byteCount, _)?: byteCount
      case .tracked?: EntryPrefix.trackedByteCount
      case nil: nil
      }
    }
  }

  /// An entry's head, which is empty where the slot has none. nil when it is on a lost page.
  func head(of slot: Slot, _ facts: EntryFacts) -> EntryHead? {
    assert(facts.prefixByteCount > 0 && facts.prefixByteCount <= facts.payloadByteCount, "PurgeableCache: a key beyond its entry")
    guard slot.hasHead else { return EntryHead() }
    let reference = heap.reference(slot.place)
    let byteCount = min(EntryHead.mostBytes, facts.payloadByteCount - facts.prefixByteCount)
    guard var head = withPart(of: reference, from: facts.prefixByteCount, count: byteCount, { EntryHead($0) }) else { return nil }
    if head.version != nil {
      guard let digest = withVersion(reference, head, facts.prefixByteCount, { Self.digest(of: $0) }) else { return nil }
      head.version?.digest = digest
    }
    return head
  }

  /// Facts and head of a slot's element; each nil where it is lost. `known`: the facts, where the caller has them.
  func parts(of slot: Slot, _ known: EntryFacts? = nil) -> EntryParts {
    guard let facts = known ?? facts(of: slot) else { return (nil, nil) }
    return (facts, head(of: slot, facts))
  }

  private static func digest(of text: RawSpan) -> UInt32 {
    var hasher = Hasher()
    text.hash(into: &hasher)
    return UInt32(truncatingIfNeeded: hasher.finalize())
  }

  /// Calls `body` with the text of an entry's version, whose head has one. nil when the text is lost.
  func withVersion<R>(
    _ reference: purgeable_reference_t, _ head: EntryHead, _ prefixByteCount: Int, _ body: (RawSpan) -> R
  ) -> R? {
    withPart(
      of: reference, from: prefixByteCount + head.textStart, count: Int(head.version?.byteCount ?? 0), { body($0) })
  }

  /// Whether an entry is of a version. nil when that is lost.
  func isOf(
    _ version: RawSpan, _ reference: purgeable_reference_t, _ head: EntryHead, _ prefixByteCount: Int
  ) -> Bool? {
    guard let its = head.version, Int(its.byteCount) == version.byteCount else { return false }
    return withVersion(reference, head, prefixByteCount) { $0.hasSameBytes(as: version) }
  }

  /// An entry's cost. nil when the head is on a lost page.
  func cost(of slot: Slot, _ facts: EntryFacts) -> UInt64? { head(of: slot, facts).map { facts.cost($0) } }

  // MARK: Reads of the core

  /// How many bytes are read to find the prefix. Most keys are short, and every further byte would have to be copied.
  var usualPrefixByteCount: Int { if case .fixed(let byteCount) = keys.layout { byteCount } else { 64 } }

  /// The length of an element's payload; nil where its header is gone.
  func length(_ reference: purgeable_reference_t) -> Int? {
    var length = 0
    return unsafe purgeable_heap_length_bytes(heap.raw, reference, &length) == .intact ? length : nil
  }

  /// Copies a part of an element's payload, as long as `buffer`. False when the element is lost, or was changed all the time.
  func copy(_ reference: purgeable_reference_t, from offset: Int, into buffer: UnsafeMutableRawBufferPointer) -> Bool {
    unsafe purgeable_heap_read_part(heap.raw, reference, offset, buffer.count, buffer.baseAddress) == .intact
  }

  /// Copies the first bytes of an element's payload, as many as it has and there is room for. Returns how many it has; nil when
  /// any of them is lost, or they were changed all the time.
  func readStart(of reference: purgeable_reference_t, into buffer: UnsafeMutableRawBufferPointer) -> Int? {
    var length = 0
    let outcome = unsafe purgeable_heap_read_start(heap.raw, reference, buffer.baseAddress, buffer.count, &length)
    return outcome == .intact ? length : nil
  }

  /// Calls `body` with a copy of a part of an element's payload, on the stack unless it is long. nil when the element is lost,
  /// or was changed all the time.
  @inline(__always)
  func withPart<R>(
    of reference: purgeable_reference_t, from offset: Int, count: Int, _ body: (RawSpan) -> R?
  ) -> R? {
    unsafe withUnsafeTemporaryAllocation(byteCount: count, alignment: 8) { part in
      unsafe copy(reference, from: offset, into: part) ? body(part.bytes) : nil
    }
  }

  /// Copies the value of a slot's element, if its payload begins with `prefix`, and unless it has more bytes than the buffer.
  /// Only with the outcome `.intact` does the rest tell.
  @inline(__always)
  func read(
    _ reference: purgeable_reference_t, hasHead: Bool, _ prefix: RawSpan, into buffer: UnsafeMutableRawBufferPointer
  ) -> MatchingRead {
    if !hasHead {
      return unsafe readMatching(reference, prefix, head: UnsafeMutableRawBufferPointer(start: nil, count: 0), into: buffer)
    }
    return unsafe withUnsafeTemporaryAllocation(byteCount: EntryHead.mostBytes, alignment: 8) { head in
      var read = unsafe readMatching(reference, prefix, head: head, into: buffer)
      if read.outcome == .intact, read.matches { unsafe read.head = EntryHead(head.bytes) }
      return read
    }
  }

  @inline(__always)
  private func readMatching(
    _ reference: purgeable_reference_t, _ prefix: RawSpan, head: UnsafeMutableRawBufferPointer,
    into buffer: UnsafeMutableRawBufferPointer
  ) -> MatchingRead {
    var read = MatchingRead()
    unsafe prefix.withUnsafeBytes { prefix in
      unsafe read.outcome = purgeable_heap_read_matching(
        heap.raw, reference, prefix.baseAddress!, prefix.count, head.baseAddress, head.count, buffer.baseAddress, buffer.count,
        &read.byteCount, &read.matches)
    }
    return read
  }

  /// As `read`, without the value.
  func compare(_ reference: purgeable_reference_t, hasHead: Bool, with prefix: RawSpan) -> MatchingRead {
    unsafe read(reference, hasHead: hasHead, prefix, into: UnsafeMutableRawBufferPointer(start: nil, count: 0))
  }

  func check(_ reference: purgeable_reference_t) -> purgeable_outcome_t { unsafe purgeable_heap_check(heap.raw, reference) }

  /// Of a part of an element's payload: equal for equal bytes. nil when the element is lost.
  func digest(of reference: purgeable_reference_t, from start: Int, to end: Int) -> Int? {
    var hasher = Hasher()
    var at = start
    while at < end {
      // More would not lie on the stack.
      let count = min(1024, end - at)
      guard withPart(of: reference, from: at, count: count, { $0.hash(into: &hasher) }) != nil else { return nil }
      at += count
    }
    return hasher.finalize()
  }

  /// Whether the element at a place is there, all of it. Under its shard's mutex.
  func isIntact(_ place: UInt64) -> Bool {
    // Busy under the mutex: the thread was preempted over and over.
    for _ in 0..<64 {
      let outcome = check(heap.reference(place))
      if outcome != .busy { return outcome == .intact }
    }
    return false
  }

  /// Whether the element at a place is lost, or its slab has ended.
  func isGone(_ place: UInt64) -> Bool {
    if heap.isLost(place) { return true }
    // An error: the slab was given back, or the process is a forked child, in which all slabs have ended. Not a switch, which
    // asks the runtime for the type, in memory of its own, at the first eviction by an exact order.
    let outcome = check(heap.reference(place))
    return outcome == .discarded || outcome == .error
  }
}
