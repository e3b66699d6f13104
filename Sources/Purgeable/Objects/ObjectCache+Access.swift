// SPDX-License-Identifier: MIT
// Looking up, storing, removing. What is fast is compiled into its callers, where the types are known.

extension ObjectCache {
  // MARK: Looking up

  /// The value of a key, nil when there is none. Counts as a use. One mutex, no allocation.
  @inlinable
  public func value(forKey key: Key) -> Value? {
    var isExpired = false
    guard let found = use(key, &isExpired) else { return nil }
    return found.isDiscardable && dropIfDiscarded(found.value, found.birth, forKey: key) ? nil : found.value
  }

  /// Uses a key's entry, whose content may be discarded; or drops it, if its time is over.
  @inlinable
  func use(_ key: Key, _ isExpired: inout Bool) -> (value: Value, isDiscardable: Bool, birth: UInt64)? {
    var isOver = false
    let found = store.hold(key) { shard, position, _ -> (value: Value, isDiscardable: Bool, birth: UInt64)? in
      guard position != noPosition else {
        shard.counters.misses += 1
        return nil
      }
      if shard.table[position].isTimed, !store.use(position, shard.table.times) {
        shard.counters.misses += 1
        shard.counters.expiredMisses += 1
        isOver = true
        return nil
      }
      return shard.hit(position)
    }
    if isOver {
      isExpired = true
      store.dropIfExpired(key)
    }
    return found
  }

  /// As `value(forKey:)`, with the reason of a miss: `discarded` where this look-up found the entry's content discarded,
  /// `expired` where it found its time over, `absent` where a load found nothing not long ago, else `unknown`. Nothing is
  /// remembered of keys that left.
  public func lookUpValue(forKey key: Key) -> Lookup<Value> {
    var isExpired = false
    guard let found = use(key, &isExpired) else {
      return .miss(isExpired ? .expired : loads.isAbsent(key, at: moment) ? .absent : .unknown)
    }
    return found.isDiscardable && dropIfDiscarded(found.value, found.birth, forKey: key)
      ? .miss(.discarded) : .hit(found.value)
  }

  /// The value of a key, if it was stored with this version; nil where it has another version, or none. Counts as a use, or as a
  /// miss. Removes nothing.
  public func value(forKey key: Key, version: String) -> Value? {
    guard case .hit(let value) = lookUpValue(forKey: key, version: version) else { return nil }
    return value
  }

  /// As `value(forKey:version:)`, with the reason when there is no value: `outdated` where it has another version, or none.
  public func lookUpValue(forKey key: Key, version: String) -> Lookup<Value> {
    let found = lookUp(key, version)
    guard case .miss(.unknown) = found, loads.isAbsent(key, version: version, at: moment) else { return found }
    return .miss(.absent)
  }

  /// As above; a miss is never `absent`.
  @usableFromInline
  func lookUp(_ key: Key, _ version: String) -> Lookup<Value> {
    var reason = MissReason.unknown
    let found = store.hold(key) { shard, position, _ -> (value: Value, isDiscardable: Bool, birth: UInt64)? in
      if position != noPosition {
        if store.isOver(position, in: shard.table) {
          reason = .expired
          shard.counters.expiredMisses += 1
        } else if !VersionLimit.isSame(shard.table.notes(at: position)?.version, version) {
          reason = .outdated
          shard.counters.outdatedMisses += 1
        } else {
          if shard.table[position].isTimed { _ = store.use(position, shard.table.times) }
          return shard.hit(position)
        }
      }
      shard.counters.misses += 1
      return nil
    }
    guard let found else {
      if reason == .expired { store.dropIfExpired(key) }
      return .miss(reason)
    }
    return found.isDiscardable && dropIfDiscarded(found.value, found.birth, forKey: key)
      ? .miss(.discarded) : .hit(found.value)
  }

  /// The values of keys, in the order of the keys; nil where there is none. As `value(forKey:)` for each key.
  @inlinable
  public func values(forKeys keys: some Sequence<Key>) -> [Value?] { keys.map { value(forKey: $0) } }

  /// The value of a key, without counting as a use: the order of eviction and the statistics stay as they are.
  public func peekValue(forKey key: Key) -> Value? { peekEntry(forKey: key)?.value }

  /// A key's entry, without counting as a use.
  public func peekEntry(forKey key: Key) -> CacheEntry<Key, Value>? {
    find(key).flatMap { isGone($0) ? nil : $0.entry }
  }

  /// Whether the cache has a value for the key. Does not count as a use, and never calls a handler.
  public func containsValue(forKey key: Key) -> Bool { peekEntry(forKey: key) != nil }

  // MARK: Storing

  /// Stores a value under a key, in place of an old one. A cost of nil is `costOfValue`'s, one of less than 0 counts as 0.
  ///
  /// The limits hold when it returns; while N threads store, they are exceeded by N entries at most. A value whose cost is above
  /// the whole limit is refused: every other entry stays, and the key's old value is gone. Without memory the value is refused,
  /// and the old value stays. `priority`: nil stands for pinned where the old value was, else for normal. What is pinned is the
  /// program's concern: there is no limit of it. `expiry`: how long the value is valid; nil stands for the cache's default. With
  /// a time of 0 or less the value is refused, and the key's old value is gone.
  ///
  /// `recomputeCost`: what making the value again takes; nil or less than 0 is unknown. It is told with the entry, and decides
  /// nothing here: the order is exactly that of last use. `version`: which state of its source the value was made of, up to 255
  /// bytes of UTF-8; a longer one is refused, and the old value stays (`StoreOutcome.notEncodable`). Who asks for a version
  /// (`value(forKey:version:)`) gets no other. An entry with one of the two takes some 80 bytes more.
  @discardableResult
  @inlinable
  public func setValue(
    _ value: Value, forKey key: Key, cost: Int? = nil, expiry: Expiry? = nil, recomputeCost: Duration? = nil,
    priority: EntryPriority? = nil, version: String? = nil
  ) -> StoreOutcome {
    let time = store.time(expiry?.lifetime)
    if recomputeCost == nil, version == nil { return set(value, key, cost, time, priority).outcome ?? .replaced }
    return setNoted(value, key, cost, time, priority, recomputeCost, version)
  }

  @usableFromInline
  func setNoted(
    _ value: Value, _ key: Key, _ cost: Int?, _ time: ObjectTime, _ priority: EntryPriority?, _ recomputeCost: Duration?,
    _ version: String?
  ) -> StoreOutcome {
    if VersionLimit.isExceeded(by: version) { return countRefusal(.notEncodable) }
    let notes = ObjectNotes(recomputeCost: recomputeCost, version: version)
    return set(value, key, cost, time, priority, notes).outcome ?? .replaced
  }

  /// Changes the priority of a key's entry, which goes last among those of its new one then. False where there is none. Any
  /// thread.
  @discardableResult
  public func setPriority(_ priority: EntryPriority, forKey key: Key) -> Bool {
    // Under no mutex: whether content is discarded is asked of the object.
    guard holdsValue(forKey: key) else { return false }
    let isThere = store.hold(key) { shard, position, _ in
      guard position != noPosition, !store.isOver(position, in: shard.table) else { return false }
      let queue = shard.table[position].queue
      store.noteQueue(queue.with(priority))
      if queue.priority != priority {
        shard.table.setPriority(priority, position)
        shard.table.stamp(position, MonotonicTime.now)
        shard.counters.priorities += 1
      }
      return true
    }
    // Limits that what was pinned did not let hold.
    if isThere, store.isOverLimit { store.enforceLimits() }
    return isThere
  }

  /// Stores a value, and returns the one it replaced, to one thread of several: where nobody uses its discardable content,
  /// without that.
  @discardableResult
  @inlinable
  public func updateValue(_ value: Value, forKey key: Key, cost: Int? = nil) -> Value? {
    set(value, key, cost, store.time(nil)).old
  }

  /// Changes a value in one step. `body` gets the value, nil where there is none; what it leaves is stored, nil removes the
  /// entry. Returns what `body` returns.
  ///
  /// `body` runs under no mutex, and runs again where another value was stored or removed meanwhile, so that no change of another
  /// thread is lost; an object that it changes in place is the one that others have. An error of `body` leaves the entry. The
  /// cost is `costOfValue`'s, or else stays; of a value that is replaced the time stays, but for its last use, and so do its
  /// recompute cost and its version. It is not loaded anew any more (`refreshAfter`). Any thread.
  @discardableResult
  public func modifyValue<R, E: Error>(forKey key: Key, _ body: (inout Value?) throws(E) -> R) throws(E) -> R {
    // As in `PurgeableCache`.
    loads.overtake(key)
    while true {
      let found = find(key)
      let old = found.flatMap { isGone($0) ? nil : $0 }
      var value = old?.entry.value
      let result = try body(&value)
      if let value {
        let cost = store.findsCosts ? nil : old?.entry.cost
        let time = old.map { store.usedNow($0.time) } ?? store.time(nil)
        // It is what the program made, and is not loaded anew.
        var notes = old?.notes
        notes?.made = nil
        if notes?.isEmpty == true { notes = nil }
        if set(value, key, cost, time, nil, notes, if: .birth(found?.validBirth)).outcome != nil { return result }
      } else {
        guard let old else { return result }
        if let departed = take(key, .removed, birth: old.birth) {
          store.finish(departed)
          return result
        }
      }
    }
  }

  /// The outcome is nil, and nothing is stored, where the condition does not hold.
  @inlinable
  func set(
    _ value: Value, _ key: Key, _ cost: Int?, _ time: ObjectTime, _ priority: EntryPriority? = nil, _ notes: ObjectNotes? = nil,
    if condition: ObjectCondition? = nil
  ) -> (outcome: StoreOutcome?, old: Value?) {
    let cost = max(0, cost ?? store.cost(of: value))
    if condition?.isPermit != true { store.overtake(key) }
    if time.isOver { return refuse(value, key, cost, .expired, .expired, if: condition) }
    if store.refuses(cost) { return refuse(value, key, cost, .tooLarge, .tooLarge, if: condition) }
    let kind = ObjectQueue(hasCost: cost > 0, isDiscardable: store.isDiscardable(value), priority ?? .normal)
    store.noteQueue(kind)
    let moment = MonotonicTime.now
    let (outcome, stamp, old) = store.hold(key) {
      shard, position, hash -> (StoreOutcome?, UInt64, DepartedObject<Key, Value>?) in
      if let condition, !condition.holds(birth: store.birth(at: position, in: shard.table)) { return (nil, 0, nil) }
      if position != noPosition {
        let isOver = store.isOver(position, in: shard.table)
        var queue = kind
        if priority == nil, !isOver, shard.table[position].queue.isPinned {
          queue = kind.with(.pinned)
          store.noteQueue(queue)
        }
        let reason: DepartureReason = isOver ? .expired : .replaced
        guard let old = shard.table.replace(position, value, cost: cost, queue, time, notes, at: moment, reason) else {
          return (.outOfMemory, 0, nil)
        }
        if isOver { shard.counters.insertions += 1 } else { shard.counters.replacements += 1 }
        shard.counters.count(reason)
        store.book(entries: 0, cost: cost, less: old.cost)
        return (isOver ? .stored : .replaced, shard.table.lastStamp, old)
      }
      guard shard.table.insert(key, hash: hash, value, cost: cost, kind, time, notes, at: moment) else {
        return (.outOfMemory, 0, nil)
      }
      shard.counters.insertions += 1
      store.book(entries: 1, cost: cost, less: 0)
      return (.stored, shard.table.lastStamp, nil)
    }
    if condition?.isPermit != true { store.overtake(key) }
    guard let outcome else { return (nil, nil) }
    if outcome == .outOfMemory { return (countRefusal(.outOfMemory), nil) }
    if store.isWatched { store.noteChange(of: key) }
    if time.isTimed { store.noteEnd(time) }
    store.noteStore()
    if let old { finishReplaced(old, by: value) }
    if store.isOverLimit { store.enforceLimits(sparing: stamp, keepingContentSince: condition?.contentBegins(stamp) ?? .max) }
    return (outcome, old?.validValue)
  }

  /// The key's value, or the default where there is none, which is not stored. Setting stores. Not one step: to count, use
  /// `modifyValue(forKey:_:)`.
  public subscript(key: Key, default defaultValue: @autoclosure () -> Value) -> Value {
    get { value(forKey: key) ?? defaultValue() }
    set { setValue(newValue, forKey: key) }
  }

  /// The value of a key; setting stores it with the cost of `costOfValue`, setting nil removes it.
  public subscript(key: Key) -> Value? {
    @inlinable get { value(forKey: key) }
    @inlinable set {
      if let newValue { setValue(newValue, forKey: key) } else { remove(forKey: key) }
    }
  }

  // MARK: Removing

  /// Removes a key's entry, and returns whether there was one. Any thread.
  @discardableResult
  @inlinable
  public func remove(forKey key: Key) -> Bool { removeValue(forKey: key) != nil }

  /// Removes a key's entry and returns its value; of several threads that remove one entry, only one gets the value. Discardable
  /// content that nobody uses has been discarded by then, as that of all that leaves; a departure handler still gets it, and what
  /// is removed within one is discarded when that has returned.
  @discardableResult
  @inlinable
  public func removeValue(forKey key: Key) -> Value? {
    let departed = take(key, .removed)
    if let departed { store.finish(departed) }
    return departed?.validValue
  }

  /// Stores values, each as `setValue(_:forKey:expiry:priority:)`. Returns what was refused: empty where all are stored. A
  /// `snapshot()` of another thread sees all or none of them, and so do `changes(every:)`; they wait for the call, a second at
  /// most, as other calls that store or remove many do. Any thread.
  @discardableResult
  public func setValues(
    _ values: [Key: Value], expiry: Expiry? = nil, priority: EntryPriority? = nil
  ) -> [Key: StoreOutcome] {
    store.lazy.batches.run { values.refused { setValue($0, forKey: $1, expiry: expiry, priority: priority) } }
  }

  /// Removes the entries of keys. Returns how many there were. As `remove(forKey:)` for each key; to others as `setValues`.
  @discardableResult
  public func remove(forKeys keys: some Sequence<Key>) -> Int {
    store.lazy.batches.run { keys.count { remove(forKey: $0) } }
  }

  /// Removes every entry that is there now, in no order. To others as `setValues`. Any thread.
  public func removeAll() { store.lazy.batches.run(removeEach) }

  private func removeEach() {
    loads.overtakeAll()
    if store.mayHaveExpired { store.dropExpired() }
    removeTables(from: 0)
  }

  /// Takes the tables of this shard and of those behind it, and tells of their entries then: what handlers store meanwhile stays.
  private func removeTables(from shard: Int) {
    guard shard < ObjectGate.count else { return loads.overtakeAll() }
    var old = store.takeTable(ofShard: shard)
    removeTables(from: shard + 1)
    if old.hasDiscardable || store.tells || store.isWatched {
      while let position = old.anyPosition { store.finish(old.remove(position, .removed)) }
    }
    old.destroy()
  }

  // MARK: Inside

  /// All that is known of a key's entry, which may be over, or about to leave.
  struct Found {
    let entry: CacheEntry<Key, Value>
    let isDiscardable: Bool
    let birth: UInt64
    let time: ObjectTime
    let notes: ObjectNotes?

    /// nil where its time was over.
    var validBirth: UInt64? { entry.isOver ? nil : birth }
  }

  /// Whether a look-up would find it no more.
  func isGone(_ found: Found) -> Bool {
    found.entry.isOver || found.isDiscardable && isLeaving(found.entry.value)
  }

  func find(_ key: Key) -> Found? {
    store.hold(key) { shard, position, _ -> Found? in
      guard position != noPosition else { return nil }
      let now = shard.table[position].isTimed ? moment : 0
      return Found(
        entry: CacheEntry(shard.table, position, now: now), isDiscardable: shard.table[position].queue.isDiscardable,
        birth: shard.table[position].birth, time: shard.table.time(position), notes: shard.table.notes(at: position))
    }
  }

  /// As `containsValue`, but what is dead is dropped and told of.
  func holdsValue(forKey key: Key) -> Bool {
    guard let found = find(key) else { return false }
    if found.entry.isOver { store.dropIfExpired(key) } else if isGone(found) { dropDiscarded(key, found.birth) }
    return !isGone(found)
  }

  /// Whether the entry of an object that may discard its content goes because it has.
  @usableFromInline
  func isLeaving(_ value: Value) -> Bool {
    // Asked first: the cast alone would make an object of any other value.
    guard evictsEntriesWithDiscardedContent, store.isDiscardable(value), let content = value as? any DiscardableContent
    else { return false }
    return content.isContentDiscarded
  }

  /// `birth`: of the value, which may have been stored again since, with new content.
  @usableFromInline
  func dropIfDiscarded(_ value: Value, _ birth: UInt64, forKey key: Key) -> Bool {
    guard isLeaving(value) else { return false }
    dropDiscarded(key, birth) { shard in
      shard.counters.hits -= 1
      shard.counters.misses += 1
      shard.counters.discardedMisses += 1
    }
    return true
  }

  private func dropDiscarded(_ key: Key, _ birth: UInt64, counting count: (inout ObjectShard<Key, Value>) -> Void = { _ in }) {
    let departed = store.hold(key) { shard, position, _ -> DepartedObject<Key, Value>? in
      count(&shard)
      guard position != noPosition, shard.table[position].birth == birth else { return nil }
      return store.remove(position, .discarded, from: &shard)
    }
    if let departed { store.finish(departed) }
  }

  /// Whether two values are one object.
  private func isSame(_ one: Value?, _ other: Value) -> Bool {
    guard let one, type(of: other as Any) is AnyClass else { return false }
    return one as AnyObject === other as AnyObject
  }

  /// Takes a key's entry out. The caller finishes it.
  @inlinable
  func take(_ key: Key, _ reason: DepartureReason, birth: UInt64? = nil) -> DepartedObject<Key, Value>? {
    store.overtake(key)
    defer { store.overtake(key) }
    return store.hold(key) { shard, position, _ in
      guard position != noPosition, birth == nil || shard.table[position].birth == birth else { return nil }
      return store.remove(position, store.isOver(position, in: shard.table) ? .expired : reason, from: &shard)
    }
  }

  /// The old value of a refused one is gone, if the condition holds. A loaded object keeps its content, because who asked gets
  /// it, and is told also where the old one stays, because it came during the load.
  @usableFromInline
  func refuse(
    _ value: Value, _ key: Key, _ cost: Int, _ outcome: StoreOutcome, _ reason: DepartureReason, if condition: ObjectCondition?
  ) -> (outcome: StoreOutcome?, old: Value?) {
    let isLoaded = condition?.isPermit ?? false
    let (holds, old) = store.hold(key) { shard, position, _ -> (Bool, DepartedObject<Key, Value>?) in
      if let condition, !condition.holds(birth: store.birth(at: position, in: shard.table)) { return (false, nil) }
      if position == noPosition { return (true, nil) }
      return (true, store.remove(position, store.isOver(position, in: shard.table) ? .expired : .replaced, from: &shard))
    }
    if !isLoaded { loads.overtake(key) }
    guard holds || isLoaded else { return (nil, nil) }
    if let old {
      if store.isWatched { store.noteChange(of: key) }
      finishReplaced(old, by: value)
    }
    store.finishRefused(
      DepartedObject(
        key: key, value: value, cost: cost, reason: reason, isDiscardable: !isLoaded && store.isDiscardable(value)))
    return (countRefusal(outcome), old?.validValue)
  }

  @usableFromInline
  func countRefusal(_ outcome: StoreOutcome) -> StoreOutcome {
    store.hold(shard: 0) { $0.counters.refusals += 1 }
    return outcome
  }

  /// An object that was stored again under its key keeps its content.
  @inlinable
  func finishReplaced(_ old: DepartedObject<Key, Value>, by value: Value) {
    if old.isDiscardable || store.tells { tellReplaced(old, by: value) }
  }

  @usableFromInline
  func tellReplaced(_ old: DepartedObject<Key, Value>, by value: Value) {
    store.finish(isSame(old.value, value) ? old.storedAgain : old)
  }
}

extension CacheEntry {
  @inlinable
  init(_ table: borrowing ObjectTable<Key, Value>, _ position: UInt32, now: UInt64) {
    (key, value, cost) = (table[position].key!, table[position].value!, table[position].cost)
    remainingTime = table[position].isTimed ? table.times.remaining(position, now: now) : nil
    (recomputeCost, version) = table[position].isNoted ? table.told(position) : (nil, nil)
    priority = table[position].queue.priority
  }

  /// Whether its time was over when it was noted.
  @inlinable var isOver: Bool { remainingTime == .zero }
}

/// What has to hold for an object to be stored. Asked once, under the mutex of the key's shard.
@usableFromInline
enum ObjectCondition {
  /// The object was loaded, and nothing has overtaken the load. `begun`: as `LoadTerms.begun`.
  case permit(LoadPermit, begun: UInt64?)
  /// The key's entry is of this birth; nil: there is none whose time is not over.
  case birth(UInt64?)

  @usableFromInline var isPermit: Bool { if case .permit = self { true } else { false } }

  /// From which stamp on objects keep their content where they have to go for this one: the caller gets them. `stamp`: its own.
  @usableFromInline
  func contentBegins(_ stamp: UInt64) -> UInt64 {
    guard case .permit(_, let begun) = self else { return .max }
    return min(stamp, begun ?? stamp)
  }

  @usableFromInline
  func holds(birth: UInt64?) -> Bool {
    switch self {
    case .permit(let permit, _): permit.take()
    case .birth(let wanted): birth == wanted
    }
  }
}
