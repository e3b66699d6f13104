// SPDX-License-Identifier: MIT
// Encoding keys for the engine: as bytes on the stack, or as a number from the key table.

import CPurgeable
import Synchronization

extension PurgeableCache {
  /// Calls one of the two: `bytes` with the key's prefix, or `tracked` with the key's hash.
  @inline(__always)
  func encode(
    _ key: Key, bytes: (EngineKey, UnsafeRawBufferPointer) -> Void, tracked: (UInt64) -> Void
  ) {
    switch form {
    case .integer:
      unsafe withUnsafeBytes(of: key) { prefix in unsafe bytes(engine.base.elements.keys.key(prefix: prefix), prefix) }
    case .string:
      // Safe: Key is String, as was found out at creation.
      guard var text = unsafe unsafeBitCast(key, to: String.self).asciiForm() else { return tracked(hash(of: key)) }
      text.withUTF8 { utf8 in unsafe withHead(UnsafeRawBufferPointer(utf8), bytes) }
    case .bytes:
      // Safe: Key is [UInt8], as was found out at creation.
      unsafe unsafeBitCast(key, to: [UInt8].self).withUnsafeBytes { unsafe withHead($0, bytes) }
    case .custom(let lend):
      lend(key) { span in unsafe span.withUnsafeBytes { unsafe withHead($0, bytes) } }
    case .tracked:
      tracked(hash(of: key))
    }
  }

  /// A key's bytes behind their length, on the stack.
  @inline(__always)
  private func withHead(_ key: UnsafeRawBufferPointer, _ body: (EngineKey, UnsafeRawBufferPointer) -> Void) {
    precondition(key.count <= EntryPrefix.keyByteLimit, "PurgeableCache: a key of \(key.count) bytes is too long")
    let headByteCount = EntryPrefix.headByteCount(forKeyOf: key.count)
    unsafe withUnsafeTemporaryAllocation(byteCount: headByteCount + key.count, alignment: 8) { prefix in
      _ = unsafe EntryPrefix.writeHead(key.count, to: prefix)
      if key.count > 0 { unsafe UnsafeMutableRawBufferPointer(rebasing: prefix[headByteCount...]).copyMemory(from: key) }
      let prefix = UnsafeRawBufferPointer(prefix)
      unsafe body(engine.base.elements.keys.key(prefix: prefix), prefix)
    }
  }

  private func hash(of key: Key) -> UInt64 {
    var hasher = Hasher()
    hasher.combine(engine.base.elements.keys.seed)
    hasher.combine(key)
    return UInt64(bitPattern: Int64(hasher.finalize()))
  }

  /// Runs `body` for the entry of a tracked key, under its shard's mutex: only for that long does a number mean the key. nil when
  /// the key has no number.
  func withTracked<R>(
    _ key: Key, hash: UInt64, _ body: (EngineKey, UnsafeRawBufferPointer, inout HeldShard) -> R
  ) -> R? {
    guard let table else { return nil }
    // The number may have departed between the look-up and the mutex: the key may have another one by now.
    while let found = table.find(key, hash: hash) {
      let engineKey = EngineKey(trackedNumber: found.number, hash: hash)
      let result = engine.shards.hold(of: engineKey.shardHash) { held -> R? in
        guard table.isStill(found) else { return nil }
        return unsafe Self.withPrefix(of: found.number) { prefix in unsafe body(engineKey, prefix, &held) }
      }
      if let result { return result }
    }
    table.helpTelling()
    return nil
  }

  /// Stores under a tracked key, and tells of its old value's departure.
  func storeTracked(
    _ key: Key, hash: UInt64, _ value: UnsafeRawBufferPointer, _ cost: UInt64?, _ permit: LoadPermit?
  ) -> StoreOutcome {
    guard let table else { return .outOfMemory }
    if value.count >= LargeStore.leastByteCount(in: engine.heap) { LargeStore.awaitRoom(value.count, in: engine) }
    var search = RoomSearch(permit)
    while let found = table.findOrMake(key, hash: hash) {
      let engineKey = EngineKey(trackedNumber: found.number, hash: hash)
      let epoch = table.epoch.load(ordering: .relaxed)
      let (outcome, old, due) = engine.shards.hold(of: engineKey.shardHash) {
        held -> (StoreOutcome?, EngineDeparture?, DueAfterStore) in
        guard table.isStill(found) else { return (nil, nil, DueAfterStore()) }
        held.departures.beginStore(found.number)
        let outcome = unsafe Self.withPrefix(of: found.number) { prefix -> StoreOutcome in
          let isOvertaken = !(permit?.take() ?? true)
          let outcome =
            isOvertaken ? .outOfMemory : unsafe held.store(engineKey, prefix, value, cost, among: engine.shards)
          switch outcome {
          case .stored, .replaced: table.setCost(cost ?? UInt64(value.count), of: found)
          default:
            // A number that has no entry, because the store was refused, is given back.
            if unsafe held.find(engineKey, prefix) == nil { held.departures.release(found, of: table) }
          }
          return isOvertaken ? .replaced : outcome
        }
        return (outcome, held.departures.endStore(), held.takeDue(value.count))
      }
      if let old {
        // In a child that a handler forked, the departure is the parent's to tell.
        let isOurs = table.epoch.load(ordering: .relaxed) == epoch
        if isOurs, let stored = found.key { table.tell(old, key: stored) } else { table.endCopy(old.copy, isCounted: isOurs) }
      }
      if let outcome {
        if engine.makesRoom(engineKey, outcome, due, &search) { continue }
        engine.finishStore(engineKey, outcome, due)
        return outcome
      }
    }
    return .outOfMemory
  }

  /// Calls `body` with the prefix of a tracked key's elements.
  private static func withPrefix<R>(of number: UInt32, _ body: (UnsafeRawBufferPointer) -> R) -> R {
    unsafe withUnsafeTemporaryAllocation(byteCount: EntryPrefix.trackedByteCount, alignment: 8) { prefix in
      unsafe EntryPrefix.writeTracked(number, to: prefix)
      return unsafe body(UnsafeRawBufferPointer(prefix))
    }
  }
}
