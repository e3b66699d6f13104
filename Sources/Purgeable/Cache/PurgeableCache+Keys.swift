// SPDX-License-Identifier: MIT
// From a key to what the engine looks for: bytes on the stack, or a number from the key table.

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
      unsafe withUnsafeBytes(of: key) { prefix in unsafe bytes(engine.key(prefix: prefix), prefix) }
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
    precondition(key.count <= EntryPrefix.keyByteLimit, "PurgeableCache: a key of \(key.count) bytes")
    let headByteCount = EntryPrefix.headByteCount(forKeyOf: key.count)
    unsafe withUnsafeTemporaryAllocation(byteCount: headByteCount + key.count, alignment: 8) { prefix in
      _ = unsafe EntryPrefix.writeHead(key.count, to: prefix)
      if key.count > 0 { unsafe UnsafeMutableRawBufferPointer(rebasing: prefix[headByteCount...]).copyMemory(from: key) }
      let prefix = UnsafeRawBufferPointer(prefix)
      unsafe body(engine.key(prefix: prefix), prefix)
    }
  }

  private func hash(of key: Key) -> UInt64 {
    var hasher = Hasher()
    hasher.combine(engine.seed)
    hasher.combine(key)
    return UInt64(bitPattern: Int64(hasher.finalize()))
  }

  /// Everything that is done with a tracked key, under its shard's mutex: a number means the key only for that long.
  /// nil when the key has no number and none is to be made.
  func withTracked<R>(
    _ key: Key, hash: UInt64, makesNumber: Bool = false,
    _ body: (EngineKey, UnsafeRawBufferPointer, EngineShard, inout ShardState) -> R
  ) -> R? {
    guard let table else { return nil }
    let shard = engine.shards[Int(hash & 0xFFFF & engine.shardMask)]
    return engine.withState(shard) { state -> R? in
      var isFresh = false
      let number: UInt32
      if makesNumber {
        guard let made = table.numberOrFresh(of: key, hash: hash, shard: shard.number) else { return nil }
        (number, isFresh) = made
      } else {
        guard let known = table.number(of: key, shard: shard.number) else { return nil }
        number = known
      }
      return unsafe withUnsafeTemporaryAllocation(byteCount: EntryPrefix.trackedByteCount, alignment: 8) { prefix -> R in
        unsafe EntryPrefix.writeTracked(number, to: prefix)
        let engineKey = EngineKey(trackedNumber: number, hash: hash)
        let prefix = UnsafeRawBufferPointer(prefix)
        let result = unsafe body(engineKey, prefix, shard, &state)
        // A number that no entry came of, by refusal, goes back.
        if isFresh, unsafe engine.findLocked(shard, engineKey, prefix, &state) == nil {
          table.release(number, shard: shard.number)
        }
        return result
      }
    }
  }
}
