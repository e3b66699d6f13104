// SPDX-License-Identifier: MIT
// Many look-ups in one call: while one key's memory is on its way to the processor, the next keys' is asked for.
//
//   encode     each key of a group, once; its buckets of the index are prefetched
//   find       the slots that have its tag, mostly one; the slab's word and the element are prefetched
//   read       as in a single look-up

import CPurgeable

/// A key of a group, encoded: its prefix lies in the group's buffer.
private struct EncodedKey {
  var key = EngineKey(hash: 0)
  /// 0 for a key that is looked up alone, because it is tracked or long.
  var prefixByteCount = 0
}

private enum KeyGroup {
  static let count = 16
  /// The longest prefix that is kept.
  static let prefixByteLimit = 64
}

extension PurgeableCache {
  /// The values of keys, in the order of the keys; nil where there is none. As `value(forKey:)` for each key, in every respect
  /// but time: the memory of sixteen keys is asked for before the first of them is looked up.
  ///
  /// Worth calling where the entries are many times what the processor's caches hold (`purgeable-bench figures --only hits`).
  /// Tracked keys, and keys of more than some 60 bytes, gain nothing. No system call and no mutex, as for single look-ups; two
  /// allocations, for the keys and for the result, and those of the values. When there is no memory for the result, Swift's
  /// runtime ends the program: 16 bytes or more for each key.
  public func values(forKeys keys: some Collection<Key>) -> [Value?] { values(of: Array(keys)) }

  private func values(of keys: [Key]) -> [Value?] {
    var values: [Value?] = []
    values.reserveCapacity(keys.count)
    unsafe withUnsafeTemporaryAllocation(byteCount: KeyGroup.count * KeyGroup.prefixByteLimit, alignment: 8) { prefixes in
      var group = InlineArray<16, EncodedKey>(repeating: EncodedKey())
      for start in stride(from: 0, to: keys.count, by: group.count) {
        let count = min(group.count, keys.count - start)
        for i in 0..<count {
          let place = unsafe UnsafeMutableRawBufferPointer(rebasing: prefixes[(i * KeyGroup.prefixByteLimit)...])
          unsafe group[i] = prepare(keys[start + i], prefixAt: place)
        }
        for i in 0..<count where group[i].prefixByteCount > 0 { engine.prefetchElement(of: group[i].key) }
        for i in 0..<count {
          let encoded = group[i]
          let begin = i * KeyGroup.prefixByteLimit
          let prefix = unsafe UnsafeRawBufferPointer(rebasing: prefixes[begin..<begin + encoded.prefixByteCount])
          unsafe values.append(encoded.prefixByteCount > 0 ? value(of: encoded.key, prefix) : value(forKey: keys[start + i]))
        }
      }
    }
    return values
  }

  /// Encodes a key, and prefetches its buckets.
  @inline(__always)
  private func prepare(_ key: Key, prefixAt place: UnsafeMutableRawBufferPointer) -> EncodedKey {
    var encoded = EncodedKey()
    unsafe encode(key) { engineKey, prefix in
      guard prefix.count <= KeyGroup.prefixByteLimit else { return }
      unsafe place.copyMemory(from: prefix)
      encoded = EncodedKey(key: engineKey, prefixByteCount: prefix.count)
      engine.prefetchSlots(of: engineKey)
    } tracked: { _ in
    }
    return encoded
  }
}

extension CacheEngine {
  fileprivate func prefetchSlots(of key: EngineKey) {
    base.indexes[key.shardHash & shards.mask.load(ordering: .acquiring)].prefetch(identity: key.identity)
  }

  /// Prefetches the beginnings of the elements that the key's slots lead to, mostly one. A hint: nothing is checked.
  fileprivate func prefetchElement(of key: EngineKey) {
    let table = base.indexes[key.shardHash & shards.mask.load(ordering: .acquiring)].current()
    for candidate in table.candidates(of: key.identity) { heap.prefetch(candidate.slot.place) }
  }
}
