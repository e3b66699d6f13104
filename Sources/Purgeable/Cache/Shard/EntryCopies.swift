// SPDX-License-Identifier: MIT
// Entries on their way out of the mutex: copied under it, made keys and values of under none.

import CPurgeable

/// Entries that were copied under their shards' mutexes. Keys without bytes are with who copies, in their order.
@usableFromInline
struct EntryCopies {
  private struct Entry {
    /// Where the copy ends, which is of the key alone or of the payload.
    let end: Int
    /// Which of the tracked keys is its own; negative: its key has bytes.
    let trackedKey: Int32
    let hasHead: Bool
  }

  @usableFromInline
  enum CopiedKey {
    /// In `bytes`.
    case bytes(Range<Int>)
    /// The number of a tracked key.
    case tracked(Int)
  }

  private let layout: KeyLayout
  private var entries: [Entry] = []
  @usableFromInline var bytes: [UInt8] = []
  private var trackedCount = 0
  /// Whether an entry was left out for want of memory.
  private(set) var lacksMemory = false

  init(layout: KeyLayout) { self.layout = layout }

  @usableFromInline var count: Int { entries.count }
  var byteCount: Int { bytes.count }

  // MARK: Copying

  /// Makes room. False where there is no memory.
  mutating func reserve(_ count: Int, byteCount: Int) -> Bool {
    guard MemoryReserve.isThere(byteCount + count * MemoryLayout<Entry>.stride + MemoryReserve.ofObjects) else { return false }
    entries.reserveCapacity(count)
    bytes.reserveCapacity(byteCount)
    return true
  }

  mutating func removeAll() {
    entries.removeAll(keepingCapacity: true)
    bytes.removeAll(keepingCapacity: true)
    trackedCount = 0
  }

  enum Copied {
    case nothing, key, payload
  }

  /// Copies an entry, unless it is lost, its time is over, or there is no memory for a large one: its payload where that is
  /// shorter than `bound` bytes, else its key. Runs none of the program's code. `keepKey`: gets the node of a key that has no
  /// bytes.
  @discardableResult
  mutating func append(
    _ slot: Slot, in held: borrowing HeldShard, payloadBelow bound: Int, keepKey: (NodePointer) -> Void
  ) -> Copied {
    if held.isExpired(slot) { return .nothing }
    let node = slot.isTracked ? held.keys[EngineKey.trackedNumber(of: slot)] : nil
    if slot.isTracked, node == nil { return .nothing }
    let (elements, reference) = (held.elements, held.heap.reference(slot.place))
    var length = 0
    if bound > 0 {
      guard let known = elements.length(reference) else { return .nothing }
      length = known
    }
    let copied = length < bound ? Copied.payload : .key
    guard
      copied == .payload
        ? copyStart(of: reference, elements, count: length) : copyKey(of: reference, elements, isTracked: node != nil)
    else { return .nothing }
    entries.append(Entry(end: bytes.count, trackedKey: node == nil ? -1 : Int32(trackedCount), hasHead: slot.hasHead))
    if let node {
      keepKey(node)
      trackedCount += 1
    }
    return copied
  }

  /// In one read, where the key has the usual length.
  private mutating func copyKey(of reference: purgeable_reference_t, _ elements: ElementReader, isTracked: Bool) -> Bool {
    let room = isTracked ? 0 : elements.usualPrefixByteCount
    var prefixByteCount = 0
    let isRead = unsafe withUnsafeTemporaryAllocation(byteCount: room, alignment: 8) { start in
      guard let length = unsafe elements.readStart(of: reference, into: start) else { return false }
      if isTracked { return true }
      guard case .key(let count, _)? = unsafe EntryPrefix.parse(start.bytes.extracting(0..<min(length, room)), layout: layout)
      else { return false }
      prefixByteCount = count
      if count <= room { unsafe bytes.append(contentsOf: UnsafeRawBufferPointer(rebasing: start[..<count])) }
      return true
    }
    return isRead && (prefixByteCount <= room || copyStart(of: reference, elements, count: prefixByteCount))
  }

  /// Copies a payload's first bytes.
  private mutating func copyStart(of reference: purgeable_reference_t, _ elements: ElementReader, count: Int) -> Bool {
    let needed = 2 * (bytes.count + count) + count
    guard bytes.count + count < MemoryReserve.ofLargeResults || MemoryReserve.isThere(needed) else {
      lacksMemory = true
      return false
    }
    // Unoptimized, Swift fills an array byte by byte, and copies memory as memory.
    let isCopied: ()? = elements.withPart(of: reference, from: 0, count: count) { copy in
      unsafe copy.withUnsafeBytes { unsafe bytes.append(contentsOf: $0) }
    }
    return isCopied != nil
  }

  // MARK: What was copied

  private func range(_ number: Int) -> Range<Int> { (number == 0 ? 0 : entries[number - 1].end)..<entries[number].end }

  /// nil where the bytes are none of a key.
  @usableFromInline
  func key(of number: Int) -> CopiedKey? {
    let entry = entries[number]
    if entry.trackedKey >= 0 { return .tracked(Int(entry.trackedKey)) }
    let range = range(number)
    switch unsafe EntryPrefix.parse(bytes.span.bytes.extracting(range), layout: layout) {
    case .key(let prefixByteCount, let keyAt): return .bytes(range.lowerBound + keyAt..<range.lowerBound + prefixByteCount)
    case .tracked, nil: return nil
    }
  }

  /// Calls `body` with an entry whose value was copied: its key's bytes, nil for one that has none; its head; the text of its
  /// version, nil for none; and its value.
  func withEntry<E: Error>(
    _ number: Int, _ body: (_ key: RawSpan?, EntryHead, _ version: RawSpan?, _ value: RawSpan) throws(E) -> Void
  ) throws(E) {
    let payload = unsafe bytes.span.bytes.extracting(range(number))
    let prefixByteCount: Int
    var key: RawSpan?
    switch EntryPrefix.parse(payload, layout: layout) {
    case .key(let count, let keyAt): (prefixByteCount, key) = (count, payload.extracting(keyAt..<count))
    case .tracked: prefixByteCount = EntryPrefix.trackedByteCount
    case nil: return
    }
    let head = EntryPrefix.head(of: payload, behind: prefixByteCount, hasHead: entries[number].hasHead)
    let start = min(payload.byteCount, prefixByteCount + head.byteCount)
    var version: RawSpan?
    // The text is the end of the head.
    if let byteCount = head.version?.byteCount { version = payload.extracting(start - Int(byteCount)..<start) }
    try body(key, head, version, payload.extracting(start..<payload.byteCount))
  }
}
