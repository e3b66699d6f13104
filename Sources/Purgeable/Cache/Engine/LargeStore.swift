// SPDX-License-Identifier: MIT
// Storing a large value: its bytes are copied under no mutex, so that stores of other threads do not wait for the copy.
//
//   under the shard's mutex   limits are asked, room is made, memory is allocated in the heap's stream of elements being written
//   under none                the bytes are copied; only this thread knows of the element, whose lock keeps it off offer
//   under the shard's mutex   the slab moves to the shard's stream, the element is committed, the index leads to it
//
// Between the two, the slab belongs to no shard: evictions and removals do not find it, and no sum counts it. Its memory
// counts against the byte limit from its allocation on. The key may belong to another shard by the second time; a large element
// has a slab of its own, which any shard's stream can take in.
//
// Nothing can evict what is being written. A store that has no room beside it evicts nothing, waits under no mutex until the
// others have been written, for a second at most, and tries again. Large values under tracked keys are copied under the mutex:
// they wait before they take it.

import CPurgeable
import Glibc

/// `@safe`: prefix and value are valid for the length of `run`, which is called within the store.
@safe struct LargeStore {
  private let key: EngineKey
  private let prefix: UnsafeRawBufferPointer
  private let value: UnsafeRawBufferPointer
  private let head: EntryHead
  private let size: EntrySize
  /// Looked at under each of the two mutexes, since the first may drop the key's old value.
  private let condition: StoreCondition?

  private static let longestWait: UInt64 = 1_000_000_000

  init(
    _ key: EngineKey, _ prefix: RawSpan, _ value: RawSpan, _ head: EntryHead,
    _ credits: borrowing RecomputeCredit, if condition: StoreCondition? = nil
  ) {
    self.key = key
    unsafe self.prefix = prefix.withUnsafeBytes { unsafe $0 }
    unsafe self.value = value.withUnsafeBytes { unsafe $0 }
    self.head = head
    size = EntrySize(prefixByteCount: prefix.byteCount, valueByteCount: value.byteCount, head, credits)
    self.condition = condition
  }

  /// nil where the condition did not hold.
  func run(in engine: CacheEngine) -> StoreOutcome? {
    var (failure, due) = (StoreOutcome?.some(.outOfMemory), DueAfterStore())
    var element: FreshElement?
    var search = RoomSearch(nil)
    let deadline = MonotonicTime.now + Self.longestWait
    var hasFitted = false
    while true {
      // Asked before too: what was written in full after the store got no memory can be evicted now.
      let wasWriting = isWriting(in: engine)
      element = begin(in: engine, &failure, &due)
      if element == nil, let failure, engine.makesRoom(key, failure, due, &search) { continue }
      // What was evicted is remembered, and an index may be as large as it was with all entries: that takes room, too.
      if element == nil, failure == .outOfMemory, !hasFitted, engine.base.refusalReason == .bytes {
        hasFitted = true
        engine.shards.visit { shard in engine.shards.hold(shard) { held in _ = held.fitBookkeeping() } }
        continue
      }
      guard element == nil, failure == .outOfMemory, wasWriting || isWriting(in: engine), MonotonicTime.now < deadline
      else { break }
      usleep(100)
    }
    guard let element else {
      if let failure { engine.finishStore(key, failure, DueAfterStore()) }
      return failure
    }
    write(element)
    return end(element, in: engine)
  }

  /// Waits until a value has room beside those that are being written, for a second at most. Under no mutex.
  static func awaitRoom(_ byteCount: Int, in engine: CacheEngine) {
    let deadline = MonotonicTime.now + longestWait
    while engine.base.isWithoutRoom(byteCount), !engine.base.exceedsWholeLimit(0, byteCount),
      MonotonicTime.now < deadline
    {
      usleep(100)
    }
  }

  /// Whether some thread writes a large value.
  private func isWriting(in engine: CacheEngine) -> Bool { engine.heap.oldest(of: engine.heap.writingStream) != nil }

  /// Makes room and allocates; nil, with what `run` returns in `failure`, where that fails.
  func begin(in engine: CacheEngine, _ failure: inout StoreOutcome?, _ due: inout DueAfterStore) -> FreshElement? {
    engine.shards.hold(homeOf: key) { held -> FreshElement? in
      defer { due = held.takeDue() }
      if let condition, unsafe !condition.mayHold(key, prefix.bytes, in: &held) {
        failure = nil
        return nil
      }
      let old = unsafe held.find(key, prefix.bytes)
      if held.isRefused(size, key, old) {
        failure = .tooLarge
        return nil
      }
      // Before anything goes for it. Reserved again when it has been written.
      if head.priority == .pinned {
        guard let reserved = held.reserve(size.byteCount, replacing: old) else {
          failure = held.pinRefusal
          return nil
        }
        held.base.totals.endReservation(reserved)
      }
      if held.base.exceedsWholeLimit(size.cost, size.byteCount, beside: held.heap.writingBytes) { return nil }
      if held.base.limits.areStrict { held.makeRoom(for: size.cost, of: key, replacing: old) }
      return held.allocate(size.byteCount, nil, among: engine.shards)
    }
  }

  /// Fills the element, under no mutex.
  func write(_ element: FreshElement) { unsafe EntryPrefix.write(prefix.bytes, head, value.bytes, to: element.bytes) }

  /// Has the index lead to the element, which has been written.
  func end(_ element: FreshElement, in engine: CacheEngine) -> StoreOutcome? {
    var due = DueAfterStore()
    let outcome = engine.shards.hold(homeOf: key) { held -> StoreOutcome? in
      defer { due = held.takeDue() }
      if let condition, unsafe !condition.holds(key, prefix.bytes, in: &held) {
        held.heap.free(element.reference)
        return nil
      }
      let old = unsafe held.find(key, prefix.bytes)
      let changesBefore = held.slots.changes
      guard let destination = held.destination(of: key, size, head.priority, old) else {
        held.heap.free(element.reference)
        return held.pinRefusal
      }
      defer { held.base.totals.endReservation(destination.reserved) }
      // Others may have used up the room meanwhile.
      if held.base.limits.areStrict { held.makeRoom(for: size.cost, of: key, replacing: old) }
      let lane = held.lane(destination.queue, head)
      held.heap.move(held.heap.slab(of: element.reference), to: held.stream(lane))
      held.noteBirth(element.reference, lane)
      let replaced = held.slots.changes == changesBefore ? old : unsafe held.find(key, prefix.bytes)
      return held.enter(
        element, key, size, head, lane, replacing: replaced, hadOld: old != nil, isRemembered: destination.isRemembered)
    }
    if let outcome { engine.finishStore(key, outcome, due) }
    return outcome
  }
}
