// SPDX-License-Identifier: MIT
// What a cache makes of a file's records, and what records are made of.

/// Between a cache's clock, which begins anew with the machine or the process, and the time of the day.
struct FileTimes {
  let now: UInt64
  private let wallNow: Int64
  /// When the file was written.
  private let created: Int64

  init(clock: MonotonicClock, created: Int64) { self.init(now: clock.now(), wallNow: WallTime.now, created: created) }

  init(now: UInt64, wallNow: Int64, created: Int64) { (self.now, self.wallNow, self.created) = (now, wallNow, created) }

  func wall(_ moment: UInt64) -> Int64 {
    guard moment >= now else { return wallNow - min(wallNow, Int64(clamping: now - moment)) }
    let (wall, isFar) = wallNow.addingReportingOverflow(Int64(clamping: moment - now))
    return isFar ? .max : wall
  }

  /// No earlier than the file was written: where the clock was set back, nothing lives longer than it had left.
  private var reference: Int64 { max(wallNow, created) }

  /// How long a moment of the file is ago; 0 where it is to come.
  private func age(_ wall: Int64) -> UInt64 { reference > wall ? UInt64(clamping: reference &- max(wall, 0)) : 0 }

  /// A moment that has passed; 0 where the clock does not reach back so far.
  func moment(_ wall: Int64) -> UInt64 { now - min(now, age(wall)) }

  /// When a value was loaded, for its age alone: wraps round where the clock does not reach back so far.
  func birth(_ wall: Int64) -> UInt64 { now &- age(wall) }
  func birthByDay(_ birth: UInt64) -> Int64 { wallNow - min(wallNow, max(0, Int64(bitPattern: now &- birth))) }

  /// nil for an entry whose time is over.
  func validity(of record: FileRecord) -> RestoredValidity? {
    var validity = RestoredValidity()
    if let deadline = record.deadline {
      guard deadline > reference else { return nil }
      let (left, isFar) = deadline.subtractingReportingOverflow(reference)
      validity.deadline = now &+ (isFar ? UInt64(Int64.max) : UInt64(left))
    }
    // More is no bound (Expiry.swift).
    if let time = record.sinceLastUse, time < Lifetime.longestSinceLastUse {
      let age = record.lastUse.map(age) ?? 0
      guard age < time else { return nil }
      validity.sinceLastUse = time
      // The clock does not reach back to the last use: without another one it must not live longer for that.
      if age > now { validity.deadline = min(validity.deadline ?? .max, now + (time - age)) }
    }
    return validity
  }
}

/// How long an entry of a file is valid, by the cache's clock.
struct RestoredValidity {
  var deadline: UInt64?
  var sinceLastUse: UInt64?
}

enum RestoreOutcome {
  case stored
  /// The key has a value.
  case present
  /// It would have no room even if it were alone.
  case tooLarge
  /// There is no room without an eviction.
  case full
}

extension FileReport {
  /// A value's bytes for a file. nil, and counted, where it does not encode.
  mutating func bytes<Value>(of value: Value, _ format: StoredFormat<Value>, _ key: some Any) -> [UInt8]? {
    do { return try format.encode(value) } catch {
      skip("\(key)", because: "it does not encode: \(error)")
      return nil
    }
  }

  /// An item's key, and how long it is valid. nil, and counted, where nothing can be made of it.
  mutating func key<Key: PurgeableValue>(
    of item: CacheFileReader.Item, _ record: FileRecord, in batch: CacheFileReader.Batch, _ times: FileTimes,
    _ validity: inout RestoredValidity
  ) -> Key? {
    switch item.state {
    case .intact:
      guard let key = unsafe Key(purgeableBytes: batch.content(item, record).bytes.extracting(first: record.keyByteCount)) else {
        skip("an entry", because: "its key does not decode")
        return nil
      }
      guard let found = times.validity(of: record) else {
        expiredCount += 1
        return nil
      }
      validity = found
      return key
    case .unknown: skip("an entry", because: "a newer version wrote it with what this one does not know")
    case .tooLarge:
      skip("an entry", because: "its \(record.valueByteCount) bytes are more than may be held, or than there is memory for")
    // No key is made of bytes that may be others: it would be another one, or none that its type knows.
    case .damaged: skip("an entry", because: "its checksum is wrong")
    }
    return nil
  }

  /// A value of a file. nil, and counted, where it does not decode.
  mutating func value<Value>(
    _ format: StoredFormat<Value>, _ bytes: RawSpan, of record: FileRecord, _ key: some Any
  ) -> Value? {
    do {
      if let value = try format.decode(bytes, Int(record.format)) { return value }
      skip("\(key)", because: "it does not decode from version \(record.format)")
    } catch {
      skip("\(key)", because: "it does not decode: \(error)")
    }
    return nil
  }
}
