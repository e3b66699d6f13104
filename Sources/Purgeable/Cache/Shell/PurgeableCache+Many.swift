// SPDX-License-Identifier: MIT
// Many look-ups in one call: while one key's memory is on its way to the processor, the next keys' is asked for.
//
//   encode     each key of a group, once; its buckets of the index are prefetched
//   find       the slots that have its tag, mostly one; the slab's word and the element are prefetched
//   read       as in a single look-up

/// Some keys, encoded, in memory of the caller's: first 16 of `EncodedKey`, then their prefixes of 64 bytes each.
@usableFromInline @safe
struct KeyGroup {
  @usableFromInline static let capacity = 16
  @usableFromInline static let byteCount = capacity * (MemoryLayout<EncodedKey>.stride + prefixByteLimit)
  /// The longest prefix that is kept.
  static let prefixByteLimit = 64

  struct EncodedKey {
    let key: EngineKey
    /// 0 for a key that is looked up alone, because it is tracked or long.
    let prefixByteCount: Int
  }

  private let memory: UnsafeMutableRawBufferPointer

  /// `memory`: of `byteCount` bytes, aligned to 16, and valid as long as the group is used.
  @usableFromInline init(in memory: UnsafeMutableRawBufferPointer) {
    precondition(memory.count >= Self.byteCount, "PurgeableCache: too little memory for a group of keys")
    unsafe self.memory = memory
  }

  // In bounds: all callers count up to `capacity` at most.
  subscript(i: Int) -> EncodedKey {
    get { unsafe memory.load(fromByteOffset: i * MemoryLayout<EncodedKey>.stride, as: EncodedKey.self) }
    nonmutating set {
      unsafe memory.storeBytes(of: newValue, toByteOffset: i * MemoryLayout<EncodedKey>.stride, as: EncodedKey.self)
    }
  }

  func prefix(_ i: Int, count: Int) -> UnsafeMutableRawBufferPointer {
    let start = Self.capacity * MemoryLayout<EncodedKey>.stride + i * Self.prefixByteLimit
    return unsafe UnsafeMutableRawBufferPointer(rebasing: memory[start..<start + count])
  }
}

extension PurgeableCache {
  /// The values of keys, in the order of the keys; nil where there is none. As `value(forKey:)` for each key, in every respect
  /// but time: the memory of sixteen keys is asked for before the first of them is looked up.
  ///
  /// Worth calling where the entries are many times what the processor's caches hold (`purgeable-bench figures --only hits`).
  /// Tracked keys, and keys of more than some 60 bytes, gain nothing. No system call and no mutex, as for single look-ups; two
  /// allocations, for the keys and for the result, and those of the values. When there is no memory for the result, Swift's
  /// runtime ends the program: 16 bytes or more for each key.
  @inlinable
  public func values(forKeys keys: some Sequence<Key>) -> [Value?] {
    let keys = Array(keys)
    var values: [Value?] = []
    values.reserveCapacity(keys.count)
    unsafe withUnsafeTemporaryAllocation(byteCount: KeyGroup.byteCount, alignment: 16) { memory in
      let group = unsafe KeyGroup(in: memory)
      var start = 0
      while start < keys.count {
        let end = min(start + KeyGroup.capacity, keys.count)
        for i in start..<end { prepare(keys[i], i - start, of: group) }
        prefetchElements(end - start, of: group)
        for i in start..<end { values.append(unsafe value { unsafe read(keys[i], i - start, of: group, into: $0) }) }
        start = end
      }
    }
    return values
  }

  /// Reads the value of a key that is encoded already. Counts as a use.
  @usableFromInline
  func read(_ key: Key, _ i: Int, of group: KeyGroup, into buffer: UnsafeMutableRawBufferPointer) -> BufferRead {
    let encoded = group[i]
    if encoded.prefixByteCount == 0 { return unsafe read(key, into: buffer, countsAsUse: true) }
    return unsafe engine.read(encoded.key, prefix: group.prefix(i, count: encoded.prefixByteCount).bytes, into: buffer)
  }

  /// Encodes a key, and prefetches its buckets.
  @usableFromInline
  func prepare(_ key: Key, _ i: Int, of group: KeyGroup) {
    group[i] = KeyGroup.EncodedKey(key: EngineKey(hash: 0), prefixByteCount: 0)
    encode(key) { engineKey, prefix in
      guard prefix.byteCount <= KeyGroup.prefixByteLimit else { return }
      unsafe prefix.copy(to: group.prefix(i, count: prefix.byteCount), at: 0)
      group[i] = KeyGroup.EncodedKey(key: engineKey, prefixByteCount: prefix.byteCount)
      engine.prefetchSlots(of: engineKey)
    } tracked: { _ in
    }
  }

  @usableFromInline
  func prefetchElements(_ count: Int, of group: KeyGroup) {
    for i in 0..<count where group[i].prefixByteCount > 0 { engine.prefetchElement(of: group[i].key) }
  }
}

extension CacheEngine {
  fileprivate func prefetchSlots(of key: EngineKey) {
    base.indexes.home(of: key).prefetch(identity: key.identity)
  }

  /// Prefetches the beginning of the element that a slot with the key's identity leads to; there is hardly ever another one. A
  /// hint: nothing is checked.
  fileprivate func prefetchElement(of key: EngineKey) {
    for found in base.indexes.home(of: key).current().candidates(of: key.identity) { return heap.prefetch(found.slot.place) }
  }
}
