// SPDX-License-Identifier: MIT
// Looking up, storing, removing.

/// What a look-up found.
public enum Lookup<Value: Sendable>: Sendable {
  case hit(Value)
  case miss(MissReason)
}

/// What reading into a buffer came to.
public enum BufferRead: Sendable, Hashable {
  /// The value's bytes are in the buffer, from its beginning; so many.
  case hit(byteCount: Int)
  /// The value needs so many bytes; nothing was copied.
  case bufferTooSmall(needed: Int)
  case miss(MissReason)
}

extension PurgeableCache {
  // MARK: Looking up

  /// The value of a key, nil when there is none. Counts as a use.
  ///
  /// A copy: the value's bytes are copied out of purgeable memory and checked. No system call, no mutex (but for tracked keys),
  /// one allocation for the value.
  public func value(forKey key: Key) -> Value? {
    if Value.self == [UInt8].self {
      // Safe: the same type. Spares a copy, and everything that is generic.
      guard case .hit(let bytes) = lookUpBytes(key, countsAsUse: true) else { return nil }
      return unsafe unsafeBitCast(bytes, to: Value.self)
    }
    return decodedValue(forKey: key)
  }

  /// On its own, so that only those pay for its generic types who need them.
  @inline(never)
  private func decodedValue(forKey key: Key) -> Value? {
    guard case .hit(let value) = lookUp(key, countsAsUse: true) else { return nil }
    return value
  }

  /// As `value(forKey:)`, and says why where there is none.
  public func lookUp(_ key: Key) -> Lookup<Value> { lookUp(key, countsAsUse: true) }

  /// The value of a key, without counting as a use: the order of eviction and the statistics stay as they are.
  public func peek(_ key: Key) -> Value? {
    guard case .hit(let value) = lookUp(key, countsAsUse: false) else { return nil }
    return value
  }

  /// Whether the cache has an intact value for the key. Does not count as a use.
  public func contains(_ key: Key) -> Bool {
    var isThere = false
    unsafe encode(key) { engineKey, prefix in
      isThere = unsafe engine.contains(engineKey, prefix)
    } tracked: { hash in
      isThere =
        unsafe withTracked(key, hash: hash) { engineKey, prefix, shard, state in
          unsafe engine.containsLocked(engineKey, prefix, shard, &state)
        } ?? false
    }
    return isThere
  }

  /// Copies the value's bytes into `buffer`, without any allocation. Counts as a use.
  public func read(forKey key: Key, into buffer: UnsafeMutableRawBufferPointer) -> BufferRead {
    switch unsafe read(key, into: buffer, countsAsUse: true) {
    case .hit(let byteCount): .hit(byteCount: byteCount)
    case .tooSmall(let byteCount): .bufferTooSmall(needed: byteCount)
    case .miss(let reason): .miss(reason)
    }
  }

  /// Copies the value's bytes to the front of `span`. Counts as a use.
  public func read(forKey key: Key, into span: inout MutableRawSpan) -> BufferRead {
    // Safe: the buffer is used within the closure only.
    unsafe span.withUnsafeMutableBytes { buffer in unsafe read(forKey: key, into: buffer) }
  }

  /// Lends the value's bytes, locked for the length of `body`: no copy. nil when there is none. Counts as a use.
  ///
  /// nil also where more would be locked than `lockedByteLimit` allows, which the statistics count by `MissReason.lockLimit`.
  /// The kernel takes none of the value's pages meanwhile; removing or replacing it does not disturb `body` either. Keep it short:
  /// the pages of the whole slab are not offered while anything in it is locked.
  public func withBytes<R, E: Error>(forKey key: Key, _ body: (RawSpan) throws(E) -> R) throws(E) -> R? {
    var result: Result<R?, E> = .success(nil)
    unsafe encode(key) { engineKey, prefix in
      do throws(E) {
        let access = try unsafe engine.withLocked(engineKey, prefix: prefix) { bytes throws(E) in try body(unsafe bytes.bytes) }
        if case .used(let value) = access { result = .success(value) }
      } catch {
        result = .failure(error)
      }
    } tracked: { hash in
      let locked = unsafe withTracked(key, hash: hash) { engineKey, prefix, shard, state in
        unsafe engine.lockLocked(engineKey, prefix, shard, &state)
      }
      // The mutex is released; the element stays locked for the length of the closure.
      guard case .locked(let reference, let bytes)? = locked else {
        if case .refused? = locked {
          _ = engine.miss(EngineKey(hash: hash), .lockLimit)
        } else {
          _ = engine.miss(EngineKey(hash: hash), nil)
        }
        return
      }
      defer { engine.unlock(reference) }
      do throws(E) {
        result = .success(try body(unsafe bytes.bytes))
      } catch {
        result = .failure(error)
      }
    }
    return try result.get()
  }

  // MARK: Storing

  /// Stores a value under a key, in place of an old one. `cost` nil: the value's bytes.
  ///
  /// Limits hold when it returns. Too large for a whole limit: refused, every other entry stays, and an old value under the key is
  /// gone. Out of memory: refused, and its old value stays, as a rule.
  @discardableResult
  public func set(_ value: Value, forKey key: Key, cost: UInt64? = nil) -> StoreOutcome {
    // Encoded first, outside of every mutex: encoding may be the user's code.
    var byteCount = 0
    let outcome = value.withPurgeableBytes { span in
      byteCount = span.byteCount
      return unsafe span.withUnsafeBytes { bytes in unsafe store(bytes, forKey: key, cost: cost) }
    }
    if outcome == .tooLarge { tellRefusal(of: value, forKey: key, cost: cost ?? UInt64(byteCount)) }
    Maintainer.shared.noteWork()
    return outcome
  }

  /// On its own, as `decodedValue`.
  @inline(never)
  private func tellRefusal(of value: Value, forKey key: Key, cost: UInt64) {
    table?.refuse(Departure(key: key, value: value, cost: cost, reason: .tooLarge))
  }

  /// The value of a key; setting stores it, setting nil removes it.
  public subscript(key: Key) -> Value? {
    get { value(forKey: key) }
    set {
      if let newValue { set(newValue, forKey: key) } else { remove(key) }
    }
  }

  // MARK: Removing

  /// Removes a key's entry; whether there was one.
  @discardableResult
  public func remove(_ key: Key) -> Bool {
    var removed = false
    unsafe encode(key) { engineKey, prefix in
      removed = unsafe engine.remove(engineKey, prefix: prefix)
    } tracked: { hash in
      removed =
        unsafe withTracked(key, hash: hash) { engineKey, prefix, shard, state in
          unsafe engine.removeLocked(engineKey, prefix, shard, &state)
        } ?? false
    }
    return removed
  }

  /// Removes every entry.
  public func removeAll() { engine.removeAll() }

  // MARK: Inside

  private func lookUp(_ key: Key, countsAsUse: Bool) -> Lookup<Value> {
    switch lookUpBytes(key, countsAsUse: countsAsUse) {
    case .hit(let bytes): unsafe Value(purgeableBytes: bytes.span.bytes).map { .hit($0) } ?? .miss(.undecodable)
    case .miss(let reason): .miss(reason)
    }
  }

  /// The value's bytes, in one allocation of their size.
  private func lookUpBytes(_ key: Key, countsAsUse: Bool) -> Lookup<[UInt8]> {
    // Most values fit on the stack; a larger one says how much it needs, and may have become larger still when asked again.
    var needed = 0
    while true {
      var found: EngineRead = .miss(.unknown)
      var bytes: [UInt8] = []
      if needed == 0 {
        unsafe withUnsafeTemporaryAllocation(byteCount: 1024, alignment: 16) { buffer in
          found = unsafe read(key, into: buffer, countsAsUse: countsAsUse)
          if case .hit(let byteCount) = found { bytes = unsafe [UInt8](buffer[..<byteCount]) }
        }
      } else {
        // Safe: as much is initialised as the read says.
        bytes = unsafe [UInt8](unsafeUninitializedCapacity: needed) { buffer, count in
          found = unsafe read(key, into: UnsafeMutableRawBufferPointer(buffer), countsAsUse: countsAsUse)
          if case .hit(let byteCount) = found { count = byteCount }
        }
      }
      switch found {
      case .hit: return .hit(bytes)
      case .tooSmall(let byteCount): needed = byteCount
      case .miss(let reason): return .miss(reason)
      }
    }
  }

  private func store(_ bytes: UnsafeRawBufferPointer, forKey key: Key, cost: UInt64?) -> StoreOutcome {
    var outcome = StoreOutcome.outOfMemory
    unsafe encode(key) { engineKey, prefix in
      outcome = unsafe engine.store(engineKey, prefix: prefix, value: bytes, cost: cost)
    } tracked: { hash in
      outcome =
        unsafe withTracked(key, hash: hash, makesNumber: true) { engineKey, prefix, shard, state in
          unsafe engine.storeLocked(engineKey, prefix, bytes, cost, shard, &state)
        } ?? .outOfMemory
      engine.offerIfMuchIsIdle(bytes.count)
      if engine.isOverLimits { engine.enforceLimits(sparing: Int(hash & 0xFFFF & engine.shardMask)) }
    }
    return outcome
  }

  private func read(_ key: Key, into buffer: UnsafeMutableRawBufferPointer, countsAsUse: Bool) -> EngineRead {
    var result: EngineRead = .miss(.unknown)
    unsafe encode(key) { engineKey, prefix in
      result = unsafe engine.read(engineKey, prefix: prefix, into: buffer, countsAsUse: countsAsUse)
    } tracked: { hash in
      let found = unsafe withTracked(key, hash: hash) { engineKey, prefix, shard, state in
        unsafe engine.readLocked(engineKey, prefix, into: buffer, countsAsUse: countsAsUse, shard, &state)
      }
      // Without a number the key is not there; the ghost may know why.
      result = found ?? (countsAsUse ? engine.miss(EngineKey(hash: hash), nil) : .miss(.unknown))
    }
    return result
  }
}
