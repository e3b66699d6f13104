// SPDX-License-Identifier: MIT
// What a store is given, and what it tells.

public import Purgeable

/// Limits of a store's database, and how it is written.
public struct PurgeableStoreOptions: Sendable, Hashable {
  /// The most bytes of keys and values, with 100 for each record beside: 1 KiB or more, 0 for none; nil: no limit. Above 95 %
  /// of it the least recently used go, down to 90 %. A value of more than an eighth of it is in memory alone.
  public var byteLimit: Int?
  /// The most records, kept in the same way.
  public var countLimit: Int?
  /// How long values are valid that are stored without an expiry of their own; nil: as the cache says.
  public var expiry: Expiry?
  /// Values of more bytes are files beside the database, removed with their record; those below 16 KiB never are. At most
  /// 512 MiB: a row of the database cannot be much longer.
  public var fileThresholdBytes = 128 << 10
  /// Changes are written together, at most this much later; 0: each as soon as the one before is written.
  public var writeInterval = Duration.seconds(1)

  /// No limits but those given.
  public init(byteLimit: Int? = nil, countLimit: Int? = nil, expiry: Expiry? = nil) {
    (self.byteLimit, self.countLimit, self.expiry) = (byteLimit, countLimit, expiry)
  }
}

#if SQLite
  extension PurgeableStoreOptions {
    func limits(in operation: String) throws(PurgeableError) -> StoreLimits {
      func check(_ holds: Bool, _ name: String, _ explanation: String) throws(PurgeableError) {
        if !holds { throw PurgeableError(.invalidArgument(name), in: operation, explanation: explanation) }
      }
      var limits = StoreLimits()
      if let byteLimit {
        try check(
          byteLimit == 0 || byteLimit >= 1 << 10, "byteLimit",
          "\(byteLimit) is less than 1 KiB, and a value may take no more than an eighth of it; 0 keeps nothing")
        limits.byteCount = Int64(byteLimit)
      }
      if let countLimit {
        try check(countLimit >= 0, "countLimit", "\(countLimit) is less than 0")
        limits.recordCount = Int64(countLimit)
      }
      for time in [expiry?.sinceCreation, expiry?.sinceLastUse] {
        try check(time.map { $0 > .zero } ?? true, "expiry", "a time of 0 or less")
      }
      try check(
        fileThresholdBytes >= 0, "fileThresholdBytes", "\(fileThresholdBytes) is less than 0")
      try check(
        fileThresholdBytes <= 512 << 20, "fileThresholdBytes",
        "\(fileThresholdBytes) is more than 512 MiB, which a row of the database cannot hold")
      limits.fileThreshold = max(16 << 10, fileThresholdBytes)
      try check(writeInterval >= .zero, "writeInterval", "\(writeInterval) is less than 0")
      limits.writeInterval = writeInterval.wholeNanoseconds
      return limits
    }
  }

  /// What a store's database has done since it was opened.
  public struct PurgeableStoreStatistics: Sendable, Hashable {
    /// Records in the database, as of the last write.
    public var recordCount = 0
    /// Of their keys and values, and 100 a record.
    public var byteCount = 0
    /// Changes that wait to be written.
    public var pendingCount = 0
    /// Look-ups that memory had no answer for, and the database had.
    public var hitCount = 0
    /// Look-ups that neither had an answer for.
    public var missCount = 0
    /// Changes that were written.
    public var writeCount = 0
    /// Records that had to go before their time was over: for a limit, for a trim, or for room on a full disk.
    public var evictedCount = 0
    /// Values of an older format that were read, and replaced.
    public var convertedCount = 0
    /// Reads and writes that went wrong, values that were damaged, and values that were not written for want of room.
    public var failureCount = 0
    /// What went wrong last.
    public var lastError: PurgeableError?
  }

  extension PurgeableStoreStatistics: Encodable {
    /// Encodes each property under its name, the error by its words, nil as null.
    public func encode(to encoder: any Encoder) throws { try encodeMembers(of: self, to: encoder) }
  }

  extension PurgeableStoreStatistics: CustomStringConvertible {
    /// In one line: "4012 records, 38.2 MiB, found 611 of 900, 12 to be written, 4100 written, 88 evicted, 3 converted, 1 failed
    /// (last: ...)". Parts that are zero are left out.
    public var description: String {
      var text = "\(recordCount) \(recordCount == 1 ? "record" : "records"), \(CacheStatistics.mebibytes(byteCount)) MiB"
      if hitCount + missCount > 0 { text += ", found \(hitCount) of \(hitCount + missCount)" }
      let parts = [
        (pendingCount, "to be written"), (writeCount, "written"), (evictedCount, "evicted"), (convertedCount, "converted"),
        (failureCount, "failed"),
      ]
      for (count, what) in parts where count > 0 { text += ", \(count) \(what)" }
      if let lastError { text += " (last: \(lastError))" }
      return text
    }
  }
#endif
