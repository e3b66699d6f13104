// SPDX-License-Identifier: MIT
// Objects whose time is over, as the program says it (ObjectTimes.swift).

extension ObjectCache {
  /// How long entries are valid that are stored without an expiry of their own; nil: for ever.
  public var expiry: Expiry? { Expiry(store.lifetime.value) }

  /// Sets `expiry`, for values stored from now on: what is in the cache keeps its own. Any thread.
  ///
  /// - Throws: `PurgeableError` of kind `invalidArgument` for a time of 0 or less; the expiry stays as it was then.
  public func setExpiry(_ expiry: Expiry?) throws(PurgeableError) {
    try Expiry.check(expiry, in: "ObjectCache '\(name)'.setExpiry")
    store.lifetime.value = expiry?.lifetime ?? Lifetime()
  }

  /// Drops what has expired, now. Returns how many entries. Handlers are told on this thread.
  ///
  /// Without it an expired entry is dropped when it is looked up, or when a limit is exceeded, and within about half a second
  /// by a thread of the cache's own. Until then it counts in `count` and `totalCost`. Where there was no memory to note an
  /// entry's end, it is not found here, and leaves when it is looked up, or as any other does. Any thread. Cost: a look at each
  /// entry that has expired or, with `sinceLastUse`, would have but for a use; none at the others.
  @discardableResult
  public func removeExpired() -> Int { store.dropExpired() }
}
