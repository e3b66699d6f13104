// SPDX-License-Identifier: MIT
// Departures from a shard, collected under its mutex and told after its release.

/// Used under the shard's mutex.
struct ShardDepartures {
  private let observer: (any EngineObserver)?
  /// Tracked entries that left since the mutex was taken.
  private(set) var list = DepartureList()
  /// The tracked key that a store is under way for, and the departure of its old value, if that has left.
  private var keyInStore: (number: UInt32, departure: EngineDeparture?)?

  init(_ observer: (any EngineObserver)?) { self.observer = observer }

  /// Whether a call that takes many entries out should tell of some before it goes on.
  var sliceIsFull: Bool { list.copiedByteCount >= TellingLimits.sliceBytes }

  /// What the nodes in the list take.
  var pendingByteCount: Int { list.isEmpty ? 0 : list.count * (observer?.nodes.nodeByteCount ?? 0) }

  /// The departures since the mutex was taken, to be told when it is released.
  mutating func take() -> DepartureList {
    assert(keyInStore == nil, "PurgeableCache: a store was not ended")
    defer { list = DepartureList() }
    return list
  }

  /// Adds the departures of another shard, to be told with this one's.
  mutating func append(_ others: DepartureList) { list.append(others) }

  /// Begins a store under a key. The key stays in its table, whatever becomes of its old value.
  mutating func beginStore(_ number: UInt32) {
    assert(keyInStore == nil, "PurgeableCache: another store has not ended")
    keyInStore = (number, nil)
  }

  /// Ends the store. Returns the departure of the old value; nil when none has left.
  mutating func endStore() -> EngineDeparture? {
    defer { keyInStore = nil }
    return keyInStore?.departure
  }

  /// Notes the departure of an entry. Its key leaves the table, unless another value is being stored under the key.
  mutating func report(_ slot: Slot, _ reason: DepartureReason, _ copy: ValueCopy, _ keys: inout ShardKeys) {
    guard let observer, slot.isTracked else { return }
    let number = EngineKey.trackedNumber(of: slot)
    if keyInStore?.number == number {
      // A key has one value at a time, so one departs at most in a store.
      assert(keyInStore?.departure == nil, "PurgeableCache: a key had two values")
      keyInStore?.departure = EngineDeparture(reason: reason, cost: keys[number]?.node.cost ?? 0, copy: copy)
      return
    }
    // None after the cache's end, when its keys have ended.
    guard let pointer = keys.takeOut(number) else { return observer.endCopy(copy) }
    if observer.endsAtOnce(pointer) { return }
    pointer.node.depart((reason, copy))
    list.append(pointer)
    list.copiedByteCount += copy.byteCount
  }

  /// Takes back a number under which no entry was stored: nobody is told.
  mutating func release(_ number: UInt32, of keys: inout ShardKeys) {
    guard let pointer = keys.takeOut(number) else { return }
    if observer?.endsAtOnce(pointer) == true { return }
    pointer.node.depart(nil)
    list.append(pointer)
  }

  /// A copy of an entry's value, where the handler is told with values.
  func valueCopy(of slot: Slot, _ parts: EntryParts, _ elements: ElementReader) -> ValueCopy {
    guard let observer, observer.wantsValues else { return .unwanted }
    guard let facts = parts.facts, let head = parts.head else { return .discarded }
    let skip = facts.prefixByteCount + head.byteCount
    let byteCount = max(0, facts.payloadByteCount - skip)
    // The first value that a call takes out is copied whatever its size: a program that stores such values has room for one.
    guard let copy = observer.makeCopy(byteCount: byteCount, mayExceed: list.copiedByteCount == 0)
    else { return .notKept }
    let bytes = unsafe UnsafeMutableRawBufferPointer(rebasing: copy.bytes[..<byteCount])
    if byteCount > 0, unsafe !elements.copy(elements.heap.reference(slot.place), from: skip, into: bytes) {
      observer.endCopy(copy)
      return .discarded
    }
    return copy
  }
}
