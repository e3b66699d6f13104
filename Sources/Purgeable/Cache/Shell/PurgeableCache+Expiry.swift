// SPDX-License-Identifier: MIT
// Entries whose time is over (Shard/HeldShard+Expire.swift).

extension PurgeableCache {
  /// How long entries are valid that are stored without an expiry of their own; nil: for ever.
  public var expiry: Expiry? { Expiry(engine.base.limits.lifetime.value) }

  /// Sets `expiry`, for values stored from now on: what is in the cache keeps its own. Any thread.
  ///
  /// - Throws: `PurgeableError` of kind `invalidArgument` for a time of 0 or less; the expiry stays as it was then.
  public func setExpiry(_ expiry: Expiry?) throws(PurgeableError) {
    try Expiry.check(expiry, in: "PurgeableCache '\(name)'.setExpiry")
    engine.base.limits.lifetime.value = expiry?.lifetime ?? Lifetime()
  }

  /// Drops what has expired, now. Returns how many entries.
  ///
  /// Without it an expired entry is dropped when it is looked up or when room is needed, and by the library's thread once all of
  /// its slab has expired: entries of about the same time to live share slabs, so that this is after a part of that time more.
  /// Until then it counts in `count` and the other totals. Any thread. Cost: a look at each slab that entries with a deadline are
  /// in, and at each entry of the slabs where some have expired.
  @discardableResult
  public func removeExpired() -> Int { engine.removeExpired() }
}
