// SPDX-License-Identifier: MIT
// Removing entries, with their values or without.

extension PurgeableCache {
  /// Removes a key's entry, and returns whether there was one. The value is not copied. Any thread; one mutex, and a system call
  /// only when a slab becomes empty.
  @discardableResult
  public func remove(forKey key: Key) -> Bool {
    loads.overtake(key)
    defer { loads.overtake(key) }
    return withEntry(key) { engineKey, prefix, held in held.remove(engineKey, prefix) } ?? false
  }

  /// Removes a key's entry and returns its value; of several threads that remove one entry, only one gets the value. nil when
  /// there was no entry, or the kernel had taken it. Does not count as a use.
  ///
  /// Cost: that of `remove(forKey:)`, and a copy of the value. The entry is removed also when its bytes make no value, or when
  /// there is no memory for a value of 128 KiB or more; the result is nil then.
  @discardableResult
  public func removeValue(forKey key: Key) -> Value? {
    loads.overtake(key)
    defer { loads.overtake(key) }
    var isRemoved = false
    // The entry stays where the buffer is too small.
    let found = unsafe lookUp(
      { bytes in
        let read =
          withEntry(key) { engineKey, prefix, held in
            unsafe held.read(engineKey, prefix, into: bytes, countsAsUse: false, removes: true)
          } ?? .miss(.unknown)
        if case .hit = read { isRemoved = true }
        return read
      }, countsAsUse: false)
    switch found {
    case .hit(let value): return value
    case .miss(.outOfMemory), .miss(.undecodable): if !isRemoved { remove(forKey: key) }
    case .miss: break
    }
    return nil
  }

  /// Removes every entry, and forgets why earlier entries left: the next look-up of any key says `.unknown`. The slabs'
  /// memory has gone back when it returns, except for locked slabs; some bookkeeping stays, which `byteCount` tells. A
  /// `snapshot()` of another thread sees all or none of it, and so do `changes(every:)`; they wait for the call, a second at
  /// most, as calls that store or remove many do. Any thread.
  public func removeAll() {
    engine.lazy.batches.run {
      loads.overtakeAll()
      defer { loads.overtakeAll() }
      engine.removeAll()
    }
  }
}
