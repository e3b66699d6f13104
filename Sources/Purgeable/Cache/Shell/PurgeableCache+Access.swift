// SPDX-License-Identifier: MIT
// Looking up, storing, removing.

import CPurgeable

/// A value that is locked for a closure.
@usableFromInline @safe
struct LockedValue {
  let reference: (place: UInt64, generation: UInt64)
  /// The value's bytes, without key and cost.
  @usableFromInline let bytes: UnsafeRawBufferPointer

  init(place: UInt64, generation: UInt64, bytes: UnsafeRawBufferPointer) {
    reference = (place, generation)
    unsafe self.bytes = bytes
  }
}

// What makes and lends values is compiled into its callers, where the types are known: generic code would ask the runtime for
// them at each hit.
extension PurgeableCache {
  // MARK: Looking up

  /// The value of a key, nil when there is none. Counts as a use.
  ///
  /// The value's bytes are copied out of purgeable memory and checked: no system call, no mutex (except for tracked keys), one
  /// allocation for the value. A value of 128 KiB or more for which there is no memory is a miss (`MissReason.outOfMemory`). When
  /// even a small array cannot be allocated, Swift's runtime ends the program; code that has to survive that uses
  /// `read(forKey:into:)` or `withBytes(forKey:)`.
  @inlinable
  public func value(forKey key: Key) -> Value? { unsafe value { buffer in unsafe read(key, into: buffer, countsAsUse: true) } }

  /// As `value(forKey:)`, with the reason when there is no value.
  @inlinable
  public func lookUpValue(forKey key: Key) -> Lookup<Value> {
    let found = lookUp(key, countsAsUse: true)
    guard case .miss = found, loads.isAbsent(key, at: moment) else { return found }
    return .miss(.absent)
  }

  /// The value of a key, if it was stored with this version; nil where it has another version, or none. Counts as a use, or as a
  /// miss. Removes nothing. Cost: as `value(forKey:)`, with a second look at the entry for the version.
  @inlinable
  public func value(forKey key: Key, version: String) -> Value? {
    guard case .hit(let value) = lookUpValue(forKey: key, version: version) else { return nil }
    return value
  }

  /// As `value(forKey:version:)`, with the reason when there is no value: `outdated` where it has another version, or none.
  @inlinable
  public func lookUpValue(forKey key: Key, version: String) -> Lookup<Value> {
    let found = lookUp(key, version: version, countsAsUse: true)
    guard case .miss(let reason) = found, reason != .outdated, loads.isAbsent(key, version: version, at: moment) else {
      return found
    }
    return .miss(.absent)
  }

  /// The value of a key, without counting as a use: the order of eviction and the statistics stay as they are.
  @inlinable
  public func peekValue(forKey key: Key) -> Value? {
    guard case .hit(let value) = lookUp(key, countsAsUse: false) else { return nil }
    return value
  }

  /// Whether the cache has an intact value for the key. Does not count as a use.
  ///
  /// Never calls `onDeparture`, not even when it finds that the kernel took the value: that is told when the entry is looked up
  /// or swept. So it may be called under a mutex that the handler takes too. Until then `count` and `totalCost` may still include
  /// the entry, if the page of its key is intact and another one is lost.
  public func containsValue(forKey key: Key) -> Bool {
    encode(key) { engineKey, prefix in
      engine.contains(engineKey, prefix)
    } tracked: { hash in
      // As within a handler: helps with no departures that wait, since the handler may take a mutex that the caller holds.
      ThreadRole.whileTelling {
        withTracked(key, hash: hash) { engineKey, _, held in held.containsTracked(engineKey) } ?? false
      }
    }
  }

  /// Copies the value's bytes into `buffer`, without any allocation. Counts as a use; a buffer that is too small counts as
  /// nothing.
  public func read(forKey key: Key, into buffer: UnsafeMutableRawBufferPointer) -> BufferRead {
    unsafe read(key, into: buffer, countsAsUse: true)
  }

  /// Copies the value's bytes to the front of `span`, without any allocation. Counts as a use; a span that is too small counts as
  /// nothing.
  public func read(forKey key: Key, into span: inout MutableRawSpan) -> BufferRead {
    // Safe: the buffer is used within the closure only.
    unsafe span.withUnsafeMutableBytes { buffer in unsafe read(forKey: key, into: buffer) }
  }

  /// Calls `body` with the value's bytes, locked for the length of the call: no copy. nil when there is no value. Counts as a
  /// use.
  ///
  /// nil also when more would be locked than `lockedByteLimit` allows; the statistics count that as `MissReason.lockLimit`.
  /// Meanwhile the kernel takes none of the value's pages, and `body` is not disturbed when the entry leaves the cache, or
  /// another value takes its place. Keep `body`, which cannot `await`, short: no page of the slab is offered while anything in
  /// the slab is locked. After a fork inside `body` the child reads zeros: a forked child has none of the cache's memory, locked
  /// or not.
  @inlinable
  public func withBytes<R, E: Error>(forKey key: Key, _ body: (RawSpan) throws(E) -> R) throws(E) -> R? {
    guard let locked = lock(key) else { return nil }
    defer { unlock(locked) }
    return try body(unsafe locked.bytes.bytes)
  }

  /// Locks a key's value, and counts a miss where there is none.
  @usableFromInline
  func lock(_ key: Key) -> LockedValue? {
    let lock = encode(key) { engineKey, prefix in
      engine.lock(engineKey, prefix: prefix)
    } tracked: { hash in
      var reason: MissReason?
      let lock =
        withTracked(key, hash: hash) { engineKey, prefix, held in
          defer { if held.isHollow(engineKey) { reason = .discarded } }
          return held.lock(engineKey, prefix)
        } ?? .absent
      switch lock {
      case .locked: break
      case .refused: _ = engine.miss(EngineKey(hash: hash), .lockLimit)
      case .absent: _ = engine.miss(EngineKey(hash: hash), reason)
      }
      return lock
    }
    // No mutex is held; the element stays locked.
    guard case .locked(let reference, let bytes) = lock else { return nil }
    return unsafe LockedValue(place: reference.place, generation: reference.generation, bytes: bytes)
  }

  @usableFromInline
  func unlock(_ locked: LockedValue) {
    engine.heap.unlock(purgeable_reference_t(place: locked.reference.place, generation: locked.reference.generation))
    WorkBell.ring()
  }

  // MARK: Storing

  /// Stores a value under a key, in place of an old one. `cost`: nil stands for the value's bytes; less than 0 counts as 0.
  ///
  /// The limits hold when it returns, as far as not all that is left is pinned (`EntryPriority`) or kept (`shouldEvict`); while
  /// N threads store, they are exceeded by N entries at most, and in bytes by N slabs. A value that is too large for a whole
  /// limit is refused: every other entry stays, and the key's old value is gone. Without memory the value is refused, and the old
  /// value stays as a rule (`StoreOutcome.outOfMemory`). A value that cannot be encoded is refused, and the old value stays.
  ///
  /// `expiry`: how long the value is valid; nil stands for the cache's default. A time of 0 or less is over at once: the value is
  /// refused, and the key's old value is gone. An entry whose time will be over takes 9 bytes more.
  ///
  /// `recomputeCost`: what making the value again takes; nil or less than 0 is unknown. What is dear for its bytes stays
  /// longer than its uses alone would have it (except with `EvictionOrder.lru`): twice the mean of what is stored counts as
  /// one use, eight times as two, enough to stay without any. Only ratios count, so that any unit does. An entry with it
  /// takes 9 bytes more, 17 with a deadline.
  ///
  /// `priority`: nil stands for pinned where the old value was, and the new one is no longer or fits below `pinnedByteLimit`,
  /// else for normal. A value that is to be pinned above that limit is refused (`StoreOutcome.pinnedByteLimit`), and the old
  /// value stays.
  ///
  /// `version`: which state of its source the value was made of, up to 255 bytes of UTF-8: an ETag, a modification time, a number
  /// of a format. Who asks for a version (`value(forKey:version:)`) gets no other. A longer one is refused, and the old value
  /// stays (`StoreOutcome.notEncodable`). It takes its bytes and one more, two without any other attribute.
  @discardableResult
  @inlinable
  public func setValue(
    _ value: Value, forKey key: Key, cost: Int? = nil, expiry: Expiry? = nil, recomputeCost: Duration? = nil,
    priority: EntryPriority? = nil, version: String? = nil
  ) -> StoreOutcome {
    let cost = cost.map { UInt64(max(0, $0)) }
    return encoding(value, forKey: key, cost: cost) { bytes in
      store(bytes, forKey: key, cost, expiry, recomputeCost, priority, version)
    } ?? .replaced
  }

  /// Calls `store` with a value's bytes, under no mutex, since encoding may be the program's code. Tells of a value that is too
  /// large or whose time is over, and counts one that cannot be encoded. nil where `store` returns nil.
  @inlinable @inline(__always)
  func encoding(
    _ value: Value, forKey key: Key, cost: UInt64?, _ store: (RawSpan) -> StoreOutcome?
  ) -> StoreOutcome? {
    var byteCount = 0
    var outcome: StoreOutcome? = .notEncodable
    _ = value.withPurgeableBytesIfEncodable { bytes in
      byteCount = bytes.byteCount
      outcome = store(bytes)
    }
    switch outcome {
    case .stored, .replaced, .outOfMemory, .pinnedByteLimit, nil: break
    case .tooLarge: tellRefusal(.tooLarge, of: value, forKey: key, cost: cost ?? UInt64(byteCount))
    case .expired: tellRefusal(.expired, of: value, forKey: key, cost: cost ?? UInt64(byteCount))
    case .notEncodable: countRefusal()
    }
    return outcome
  }

  @usableFromInline
  func countRefusal() {
    engine.shards.hold(engine.shards.founder) { held in held.counters.refusals += 1 }
  }

  @usableFromInline
  func tellRefusal(_ reason: DepartureReason, of value: Value, forKey key: Key, cost: UInt64) {
    teller?.tellRefusal(Departure(key: key, value: value, cost: Int(clamping: cost), reason: reason, absence: nil))
  }

  /// The value of a key; setting stores it, setting nil removes it. A change in place (`cache[key]?.append(1)`) is a store, with
  /// none of the old entry's attributes, and not one step: `modifyValue(forKey:_:)` is, and keeps them.
  public subscript(key: Key) -> Value? {
    @inlinable get { value(forKey: key) }
    set {
      if let newValue { setValue(newValue, forKey: key) } else { remove(forKey: key) }
    }
  }

  // MARK: Inside

  /// The value that `read` copies the bytes of. Counts as a use, as `read` does.
  @inlinable @inline(__always)
  func value(_ read: (UnsafeMutableRawBufferPointer) -> BufferRead) -> Value? {
    if Value.self == [UInt8].self {
      // Safe: the same type. Saves a copy.
      guard let bytes = unsafe lookUpBytes(read) else { return nil }
      return unsafe unsafeBitCast(bytes, to: Value.self)
    }
    guard case .hit(let value) = unsafe lookUp(read, countsAsUse: true) else { return nil }
    return value
  }

  /// The value, made where its bytes were copied to. Values of up to a kilobyte are copied to a buffer on the stack. For a larger
  /// one the read says how many bytes it needs, and may need more when it is read again.
  @inlinable @inline(__always)
  func lookUp(_ key: Key, countsAsUse: Bool) -> Lookup<Value> {
    unsafe lookUp({ buffer in unsafe read(key, into: buffer, countsAsUse: countsAsUse) }, countsAsUse: countsAsUse)
  }

  @inlinable @inline(__always)
  func lookUp(_ read: (UnsafeMutableRawBufferPointer) -> BufferRead, countsAsUse: Bool) -> Lookup<Value> {
    var needed = 0
    while true {
      var found: BufferRead = .miss(.outOfMemory)
      var value: Value?
      if needed == 0 {
        unsafe withUnsafeTemporaryAllocation(byteCount: 1024, alignment: 16) { buffer in
          found = unsafe read(buffer)
          guard case .hit(let byteCount) = found else { return }
          // Safe: initialised by the read, and valid for the length of the call.
          unsafe value = Value(purgeableBytes: UnsafeRawBufferPointer(rebasing: buffer[..<byteCount]).bytes)
        }
      } else {
        unsafe value = Value(purgeableByteCount: needed) { buffer in
          found = unsafe read(buffer)
          guard case .hit(let byteCount) = found else { return nil }
          return byteCount
        }
      }
      switch found {
      case .hit:
        if let value { return .hit(value) }
        if countsAsUse { countUndecodable() }
        return .miss(.undecodable)
      case .bufferTooSmall(let byteCount):
        if byteCount <= needed {
          // The type read into less than `needed` bytes, and would do so again. Counted as after a read into enough.
          if countsAsUse { countUnread() }
          return .miss(.undecodable)
        }
        needed = byteCount
        if !hasMemory(for: byteCount) { return .miss(.outOfMemory) }
      case .miss(let reason): return .miss(reason)
      }
    }
  }

  /// As `lookUp`, for values that are arrays of bytes: without anything generic.
  @inlinable @inline(__always)
  func lookUpBytes(_ read: (UnsafeMutableRawBufferPointer) -> BufferRead) -> [UInt8]? {
    var needed = 0
    while true {
      var found: BufferRead = .miss(.unknown)
      var bytes: [UInt8] = []
      if needed == 0 {
        unsafe withUnsafeTemporaryAllocation(byteCount: 1024, alignment: 16) { buffer in
          found = unsafe read(buffer)
          if case .hit(let byteCount) = found { bytes = unsafe [UInt8](buffer[..<byteCount]) }
        }
      } else {
        // Safe: as much is initialised as the read says.
        bytes = unsafe [UInt8](unsafeUninitializedCapacity: needed) { buffer, count in
          found = unsafe read(UnsafeMutableRawBufferPointer(buffer))
          if case .hit(let byteCount) = found { count = byteCount }
        }
      }
      switch found {
      case .hit: return bytes
      case .bufferTooSmall(let byteCount):
        needed = byteCount
        if !hasMemory(for: byteCount) { return nil }
      case .miss: return nil
      }
    }
  }

  /// The value, if it is of a version.
  @inlinable
  func lookUp(_ key: Key, version: String, countsAsUse: Bool) -> Lookup<Value> {
    version.withPurgeableBytes { text in
      unsafe lookUp(
        { buffer in unsafe read(key, into: buffer, countsAsUse: countsAsUse, version: text) }, countsAsUse: countsAsUse)
    }
  }

  /// Whether a value of so many bytes can be made; small ones are not asked for.
  @usableFromInline
  func hasMemory(for byteCount: Int) -> Bool {
    // An array of bytes is the value itself; others may be made of one.
    let copies = Value.self == [UInt8].self ? 1 : 2
    return byteCount < MemoryReserve.ofLargeResults || MemoryReserve.isThere(copies * (byteCount + 4096))
  }

  @usableFromInline
  func countUndecodable() { engine.undecodableCount.add(1, ordering: .relaxed) }

  /// Undecodable without a read into enough room, which would have counted a hit.
  @usableFromInline
  func countUnread() {
    engine.shards.founder.index.countHit()
    countUndecodable()
  }

  @usableFromInline
  func store(
    _ bytes: RawSpan, forKey key: Key, _ cost: UInt64?, _ expiry: Expiry?, _ recomputeCost: Duration?,
    _ priority: EntryPriority?, _ version: String?
  ) -> StoreOutcome {
    if VersionLimit.isExceeded(by: version) { return .notEncodable }
    loads.overtake(key)
    defer { loads.overtake(key) }
    let lifetime = expiry?.lifetime
    if lifetime?.isOver == true { return refuseAtOnce(key, if: nil) }
    var head = engine.base.head(
      cost: cost, lifetime: lifetime, recomputeCost: recomputeCost.flatMap { $0 < .zero ? nil : $0.wholeNanoseconds })
    head.priority = priority
    return store(bytes, forKey: key, head, version, if: nil) ?? .replaced
  }

  /// As `store` below, with a version of `VersionLimit.byteCount` at most.
  @inline(__always)
  func store(
    _ bytes: RawSpan, forKey key: Key, _ head: EntryHead, _ version: String?, if condition: StoreCondition?
  ) -> StoreOutcome? {
    var head = head
    head.version = nil
    if head.cost == UInt64(bytes.byteCount) { head.cost = nil }
    guard let version else { return store(bytes, forKey: key, head, if: condition) }
    return version.withPurgeableBytes { text in
      head.version = VersionText(lending: text)
      return store(bytes, forKey: key, head, if: condition)
    }
  }

  /// nil where the condition did not hold, and nothing was stored.
  func store(
    _ bytes: RawSpan, forKey key: Key, _ head: EntryHead, if condition: StoreCondition?
  ) -> StoreOutcome? {
    let outcome = encode(key) { engineKey, prefix in
      engine.store(engineKey, prefix: prefix, value: bytes, head, if: condition)
    } tracked: { hash in
      let outcome = storeTracked(key, hash: hash, bytes, head, if: condition)
      if outcome?.isStored == true { teller?.board.load()?.note(key) }
      return outcome
    }
    WorkBell.ring()
    return outcome
  }

  /// `version`: nil for any.
  @usableFromInline
  func read(
    _ key: Key, into buffer: UnsafeMutableRawBufferPointer, countsAsUse: Bool, version: RawSpan? = nil
  ) -> BufferRead {
    encode(key) { engineKey, prefix in
      unsafe engine.read(engineKey, prefix: prefix, into: buffer, countsAsUse: countsAsUse, version: version)
    } tracked: { hash in
      let found = withTracked(key, hash: hash) { engineKey, prefix, held in
        unsafe held.read(engineKey, prefix, into: buffer, countsAsUse: countsAsUse, version: version)
      }
      // A key without a number has no entry; the ghost may know why.
      return found ?? (countsAsUse ? engine.miss(EngineKey(hash: hash), nil) : .miss(.unknown))
    }
  }
}
