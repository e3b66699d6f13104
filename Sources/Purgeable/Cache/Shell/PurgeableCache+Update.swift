// SPDX-License-Identifier: MIT
// Changes that depend on the value that is there: peeked at, made under no mutex, stored if the entry is still the same.

extension PurgeableCache {
  /// Stores a value, and returns the one that it replaced; nil when there was none. Of several threads only one gets a value that
  /// was replaced. Everything else as `setValue(_:forKey:cost:)`, whose outcome it does not tell: the new entry has the
  /// default expiry, and no recompute cost. Any thread; copies the old value, and reads it once more to tell whether it was
  /// changed meanwhile.
  @discardableResult
  public func updateValue(_ value: Value, forKey key: Key, cost: Int? = nil) -> Value? {
    let head = engine.base.head(cost: cost.map { UInt64(max(0, $0)) })
    while true {
      let (old, peeked) = whatIsThere(key)
      guard let outcome = store(value, forKey: key, head, nil, ifUnchanged: peeked) else { continue }
      switch outcome {
      case .stored, .replaced, .tooLarge, .expired: return old?.value
      // The old one stays, or was evicted to make room.
      case .outOfMemory, .notEncodable, .pinnedByteLimit: return nil
      }
    }
  }

  /// Changes a value in one step. `body` gets the value, nil where a look-up would find none; what it leaves is stored, nil
  /// removes the entry. Returns what `body` returns.
  ///
  ///     let counts = try PurgeableCache<String, Int>()
  ///     counts.modifyValue(forKey: "visits") { $0 = ($0 ?? 0) + 1 }
  ///
  /// `body` runs under no mutex, and runs again where the entry was changed meanwhile, so that no change of another thread is
  /// lost. An error of `body` leaves the entry as it was. A cost that was given with the value stays, and so do the end of its
  /// time, its recompute cost and its version; else the cost is the number of the new value's bytes. A store counts as a use, and
  /// what was loaded is not loaded anew any more (`refreshAfter`).
  /// Where the new value is refused, the entry is as after a `setValue(_:forKey:cost:)` that was refused, whose outcome this does
  /// not tell. Any thread.
  @discardableResult
  public func modifyValue<R, E: Error>(forKey key: Key, _ body: (inout Value?) throws(E) -> R) throws(E) -> R {
    // Where nothing is stored and nothing removed, what is being loaded is older all the same.
    loads.overtake(key)
    while true {
      let (old, peeked) = whatIsThere(key)
      var value = old?.value
      let result = try body(&value)
      if let value {
        var head = (old == nil ? nil : peeked?.head) ?? engine.base.head()
        // It is what the program made, and is not loaded anew.
        head.made = nil
        if store(value, forKey: key, head, old?.version, ifUnchanged: peeked) != nil { return result }
      } else {
        guard let peeked else {
          // A key that was kept without its value.
          if engine.base.keepsLost { visitEntry(key) { engineKey, _, held in held.endHollow(engineKey, .removed) } }
          return result
        }
        if takeOut(key, peeked, .removed) { return result }
      }
    }
  }

  /// The key's value, or the default where there is none, which is not stored. Setting stores. Not one step: to count, use
  /// `modifyValue(forKey:_:)`.
  public subscript(key: Key, default defaultValue: @autoclosure () -> Value) -> Value {
    get { value(forKey: key) ?? defaultValue() }
    set { setValue(newValue, forKey: key) }
  }

  // MARK: Inside

  /// A key's entry, and by what it is known again. There may be one that gives no value: its bytes make none, or there is no
  /// memory for a copy of them.
  private func whatIsThere(_ key: Key) -> (entry: CacheEntry<Key, Value>?, peeked: PeekedEntry?) {
    var before: PeekedEntry?
    while true {
      if let old = peek(key, digests: true) { return (old.entry, old.peeked) }
      let now = withEntry(key) { engineKey, prefix, held in held.peeked(engineKey, prefix, digests: true) } ?? nil
      // The same before and after a look that found no value: so it has none.
      if now == before { return (nil, now) }
      before = now
    }
  }

  /// nil, with nothing stored, where the entry is no longer as it was peeked at.
  private func store(
    _ value: Value, forKey key: Key, _ head: EntryHead, _ version: String?, ifUnchanged peeked: PeekedEntry?
  ) -> StoreOutcome? {
    loads.overtake(key)
    defer { loads.overtake(key) }
    return encoding(value, forKey: key, cost: head.cost) { store($0, forKey: key, head, version, if: .unchanged(peeked)) }
  }

  /// Takes an entry out, if it is as it was peeked at.
  func takeOut(_ key: Key, _ peeked: PeekedEntry, _ reason: DepartureReason) -> Bool {
    loads.overtake(key)
    defer { loads.overtake(key) }
    return withEntry(key) { engineKey, prefix, held in
      held.remove(engineKey, prefix, peeked: peeked, reason)
    } ?? false
  }
}
