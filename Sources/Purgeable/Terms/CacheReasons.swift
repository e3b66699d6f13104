// SPDX-License-Identifier: MIT
// Why an entry left, and why a look-up found nothing.

/// Why an entry left a cache.
public enum DepartureReason: Int, Sendable, Hashable, CaseIterable {
  /// Another value was stored under its key, or was refused as too large or as expired.
  case replaced
  /// The program removed it.
  case removed
  /// The count limit.
  case count
  /// The cost limit.
  case cost
  /// The byte limit, or the share of the memory.
  case bytes
  /// The value was larger than a whole limit and was never stored.
  case tooLarge
  /// The kernel took a page of it.
  case discarded
  /// The cache gave memory back because memory was short: under pressure, or where the machine refused memory for a new value.
  case pressure
  /// The entry was not used for the cache's idle time.
  case idle
  /// The program's own trim: `trim(toCount:)`, `trim(toCost:)`, `trim(toBytes:)`, `trim(toFraction:)` or `trim(level:)`.
  case trimmed
  /// The entry made room for a newer one while the cache grows slowly, in the minute after it gave memory back under pressure.
  case growth
  /// The program's verdict: `evictAll(where:)`, now or at intervals (`setEvictionDecider`).
  case decider
  /// Its time was over (`Expiry`).
  case expired
}

extension DepartureReason: CustomStringConvertible {
  /// In a word or two.
  public var description: String {
    switch self {
    case .replaced: "replaced"
    case .removed: "removed"
    case .count: "count limit"
    case .cost: "cost limit"
    case .bytes: "byte limit"
    case .tooLarge: "too large"
    case .discarded: "discarded"
    case .pressure: "pressure"
    case .idle: "idle"
    case .trimmed: "trimmed"
    case .growth: "slow growth"
    case .decider: "decider"
    case .expired: "expired"
    }
  }
}

/// Why a look-up found nothing. That it found nothing is exact; the reason is advice.
public enum MissReason: Int, Sendable, Hashable, CaseIterable {
  /// Never stored, or so long ago, or before a `removeAll`, that nothing is remembered of it. A cache that has neither evicted
  /// for a limit nor felt pressure remembers few keys: after a `sweep` that found a part of the entries lost, most look-ups of
  /// lost keys say this.
  case unknown
  /// Stored and evicted, as far as is remembered: by a limit, by a trim, by a decider, for its idle time, under pressure, or
  /// while the cache grows slowly after it.
  case evicted
  /// Stored and removed by the program, as far as is remembered.
  case removed
  /// Stored, and lost to the kernel.
  case discarded
  /// Stored, but no value of the type can be made of its bytes. The entry stays until it leaves as any other does, and
  /// `read(forKey:into:)` and `withBytes` still find it.
  case undecodable
  /// Stored, but no more may be locked now (`lockedByteLimit`). Copying reads still find it.
  case lockLimit
  /// Stored, but there is no memory for a copy of it. Only for values of 128 KiB and more: for smaller ones the library does not
  /// test for memory, and Swift's runtime ends the program when it cannot allocate an array. `read(forKey:into:)` and
  /// `withBytes(forKey:)` allocate nothing.
  case outOfMemory
  /// Stored, and its time was over (`Expiry`).
  case expired
  /// A load found nothing, and that is still remembered (`keepingNilFor`).
  case absent
  /// Stored with another version than the one that was asked for, or with none. The entry stays.
  case outdated
}

extension MissReason: CustomStringConvertible {
  /// In a word or two.
  public var description: String {
    switch self {
    case .unknown: "unknown"
    case .evicted: "evicted"
    case .removed: "removed"
    case .discarded: "discarded"
    case .undecodable: "undecodable"
    case .lockLimit: "lock limit"
    case .outOfMemory: "out of memory"
    case .expired: "expired"
    case .absent: "absent"
    case .outdated: "outdated"
    }
  }
}
