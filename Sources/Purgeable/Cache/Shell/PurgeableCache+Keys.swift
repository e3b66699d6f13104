// SPDX-License-Identifier: MIT
// Encoding keys for the engine: as bytes on the stack, or as a number of their shard.

import Synchronization

extension PurgeableCache {
  /// Calls one of the two: `bytes` with the key's prefix, or `tracked` with the key's hash.
  @inline(__always)
  func encode<R>(_ key: Key, bytes: (EngineKey, RawSpan) -> R, tracked: (UInt64) -> R) -> R {
    switch form {
    case .integer:
      // Safe here and below: the spans are valid for the length of the closures.
      if MemoryLayout<Key>.size == 8 {
        // Not generic: as an integer of that size, which it is.
        let word = unsafe unsafeBitCast(key, to: UInt64.self)
        return unsafe withUnsafeBytes(of: word) { unsafe bytes(engine.base.elements.keys.key(prefix: $0.bytes), $0.bytes) }
      }
      return unsafe withUnsafeBytes(of: key) { unsafe bytes(engine.base.elements.keys.key(prefix: $0.bytes), $0.bytes) }
    case .string:
      // Safe: Key is String, as was found out at creation.
      guard var text = unsafe unsafeBitCast(key, to: String.self).asciiForm() else { return tracked(hash(of: key)) }
      return text.withUTF8 { utf8 in unsafe withLength(UnsafeRawBufferPointer(utf8).bytes, bytes) }
    case .bytes:
      // Safe: Key is [UInt8], as was found out at creation.
      return unsafe unsafeBitCast(key, to: [UInt8].self).withUnsafeBytes { unsafe withLength($0.bytes, bytes) }
    case .custom(let lend, _):
      var result: R?
      lend(key) { span in result = withLength(span, bytes) }
      guard let result else { preconditionFailure("PurgeableCache: \(Key.self).withPurgeableBytes did not lend the key's bytes") }
      return result
    case .tracked:
      return tracked(hash(of: key))
    }
  }

  /// Runs `body` for a key's entry under its shard's mutex; not for a tracked key without a number, which has no entry. Without a
  /// result of any type, which the runtime would be asked for each time.
  func visitEntry(_ key: Key, _ body: (EngineKey, RawSpan, inout HeldShard) -> Void) {
    encode(key) { engineKey, prefix in
      engine.shards.hold(homeOf: engineKey) { held in body(engineKey, prefix, &held) }
    } tracked: { hash in
      _ = withTracked(key, hash: hash, body)
    }
  }

  /// As `visitEntry`. nil for a tracked key without a number.
  func withEntry<R>(_ key: Key, _ body: (EngineKey, RawSpan, inout HeldShard) -> R) -> R? {
    var result: R?
    visitEntry(key) { engineKey, prefix, held in result = body(engineKey, prefix, &held) }
    return result
  }

  /// A key's bytes behind their length, on the stack.
  @inline(__always)
  private func withLength<R>(_ key: RawSpan, _ body: (EngineKey, RawSpan) -> R) -> R {
    precondition(key.byteCount <= EntryPrefix.keyByteLimit, "PurgeableCache: a key of \(key.byteCount) bytes is too long")
    let lengthByteCount = EntryPrefix.lengthByteCount(ofKeyOf: key.byteCount)
    return unsafe withUnsafeTemporaryAllocation(byteCount: lengthByteCount + key.byteCount, alignment: 8) { prefix in
      unsafe EntryPrefix.writeLength(key.byteCount, to: prefix)
      unsafe key.copy(to: prefix, at: lengthByteCount)
      return unsafe body(engine.base.elements.keys.key(prefix: prefix.bytes), prefix.bytes)
    }
  }

  private func hash(of key: Key) -> UInt64 {
    var hasher = Hasher()
    hasher.combine(engine.base.elements.keys.seed)
    hasher.combine(key)
    return UInt64(bitPattern: Int64(hasher.finalize()))
  }

  /// Runs `body` for the entry of a tracked key, under its shard's mutex: only for that long does a number mean the key. `makes`:
  /// the key gets a number where it has none. nil when it has none then.
  func withTracked<R>(
    _ key: Key, hash: UInt64, makes: Bool = false, _ body: (EngineKey, RawSpan, inout HeldShard) -> R
  ) -> R? {
    guard let teller else { return nil }
    var search = KeySearch(key, hash: hash, makes: makes, comparesPlainly: teller.isOfStandardLibrary)
    var result: R?
    while true {
      let isCandidate = engine.shards.hold(homeOf: EngineKey(hash: hash)) { held -> Bool in
        switch search.step(in: &held.keys, under: engine.base.indexes.mask) {
        case .found(let number):
          let engineKey = EngineKey(trackedNumber: number, hash: hash)
          unsafe withUnsafeTemporaryAllocation(byteCount: EntryPrefix.trackedByteCount, alignment: 8) { prefix in
            unsafe EntryPrefix.writeTracked(number, to: prefix)
            unsafe result = body(engineKey, prefix.bytes, &held)
          }
          return false
        case .candidate: return true
        case .absent: return false
        }
      }
      guard isCandidate else { return result }
      search.compare()
    }
  }

  /// Runs `body` under the shard's mutex, which may store under a tracked key, and says whether it has; tells of the departure of
  /// the key's old value after the mutex is released. `cost`: the new entry's. nil where there is no memory for the key.
  func withStore<R>(
    of key: Key, hash: UInt64, cost: UInt64, _ body: (EngineKey, RawSpan, inout HeldShard) -> (R, isStored: Bool)
  ) -> R? {
    guard let teller else { return nil }
    let epoch = teller.epoch.load(ordering: .relaxed)
    var (stored, old) = (Key?.none, EngineDeparture?.none)
    let result = withTracked(key, hash: hash, makes: true) { engineKey, prefix, held -> R in
      let number = engineKey.trackedNumber
      held.departures.beginStore(number)
      let (result, isStored) = body(engineKey, prefix, &held)
      if isStored { held.keys[number]?.node.cost = cost }
      old = held.departures.endStore()
      // The key as it was first stored.
      if old != nil { stored = held.keys[number]?.key(as: Key.self) }
      // A number that has no entry, because the store was refused, is given back.
      let isThere = isStored || held.find(engineKey, prefix) != nil || held.isHollow(engineKey)
      if !isThere { held.departures.release(number, of: &held.keys) }
      return result
    }
    if let old { teller.tell(old, key: stored, since: epoch) }
    return result
  }

  /// Stores under a tracked key, and tells of its old value's departure. nil where the condition did not hold.
  func storeTracked(
    _ key: Key, hash: UInt64, _ value: RawSpan, _ head: EntryHead, if condition: StoreCondition?
  ) -> StoreOutcome? {
    if value.byteCount >= engine.heap.largeByteCount { LargeStore.awaitRoom(value.byteCount, in: engine) }
    var search = RoomSearch(condition)
    var hasEvicted = false
    // With the number that the key has then: its entry is not asked about where another one has to go.
    var engineKey = EngineKey(hash: hash)
    while true {
      let cost = head.cost ?? UInt64(value.byteCount)
      let result = withStore(of: key, hash: hash, cost: cost) {
        numbered, prefix, held -> ((StoreOutcome?, DueAfterStore), Bool) in
        engineKey = numbered
        let isWanted = condition?.holds(numbered, prefix, in: &held) ?? true
        let outcome = isWanted ? held.store(numbered, prefix, value, head, among: engine.shards) : nil
        return ((outcome, held.takeDue()), outcome?.isStored ?? false)
      }
      guard let (outcome, due) = result else {
        // There is no memory for another key: one leaves for it.
        guard !hasEvicted,
          engine.shards.hold(homeOf: engineKey, { $0.evictEntry(EvictionNeed(engine.base.refusalReason)) })
        else {
          return .outOfMemory
        }
        hasEvicted = true
        continue
      }
      guard let outcome else { return nil }
      if engine.makesRoom(engineKey, outcome, due, &search) { continue }
      engine.finishStore(engineKey, outcome, due)
      return outcome
    }
  }
}
