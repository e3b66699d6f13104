// SPDX-License-Identifier: MIT
// What saving and restoring a cache share (PurgeableCache+Save.swift, PurgeableCache+Restore.swift; Files/CacheFile.swift has the
// format).

extension PurgeableCache where Key: PurgeableValue {
  /// What a type is called in files: without its module, which may get another name.
  static func nameInFiles<T>(_ type: T.Type) -> String {
    String(decoding: _typeName(type, qualified: false).utf8.prefix(FileHeader.nameByteCount), as: UTF8.self)
  }

  func alone(
    _ operation: String, _ body: () throws(PurgeableError) -> FileReport
  ) throws(PurgeableError) -> FileReport {
    guard let report = try engine.lazy.files.run(body) else {
      throw PurgeableError(
        .busy, in: operation, explanation: "this thread is saving or restoring this cache, in one of whose closures it is called")
    }
    return report
  }

  nonisolated(nonsending) func inBackground(
    _ call: String,
    _ body: @escaping @Sendable (PurgeableCache, @escaping @Sendable () -> Bool) throws(PurgeableError) -> FileReport
  ) async throws(PurgeableError) -> FileReport {
    let result = await BackgroundCall.run { [self] isCancelled -> Result<FileReport, PurgeableError> in
      do throws(PurgeableError) { return .success(try body(self, isCancelled)) } catch { return .failure(error) }
    }
    guard let result else {
      throw PurgeableError(
        .systemCallFailed(call: "pthread_create"), in: "PurgeableCache '\(name)'.\(call)",
        explanation: "no thread can be made; raise the process's limits")
    }
    return try result.get()
  }
}

extension StoredFormat where Value: PurgeableValue {
  /// The bytes that the value has in memory, copied without decoding. Version 0. A file of it is read only as values of the same
  /// type.
  public static var purgeableBytes: StoredFormat {
    StoredFormat(plain: { bytes, version in version == 0 ? Value(purgeableBytes: bytes) : nil })
  }
}

/// Between a cache's clock, which begins anew with the machine or the process, and the time of the day.
struct FileTimes {
  private let now: UInt64
  private let wallNow: Int64
  /// When the file was written.
  private let created: Int64

  init(clock: MonotonicClock, created: Int64) { (now, wallNow, self.created) = (clock.now(), WallTime.now, created) }

  func wall(_ moment: UInt64) -> Int64 {
    moment >= now
      ? wallNow.addingReportingOverflow(Int64(clamping: moment - now)).partialValue
      : wallNow - min(wallNow, Int64(clamping: now - moment))
  }

  /// How long a moment of the file is ago; 0 where it is to come.
  private func age(_ wall: Int64) -> UInt64 { wallNow > wall ? UInt64(clamping: wallNow &- max(wall, 0)) : 0 }

  /// A moment that has passed; 0 where the clock does not reach back so far.
  func moment(_ wall: Int64) -> UInt64 { now - min(now, age(wall)) }

  /// nil for an entry whose time is over.
  func head(of record: FileRecord) -> EntryHead? {
    var head = EntryHead(cost: record.cost, recomputeCost: record.recomputeCost)
    head.made = record.made.map(moment)
    if let deadline = record.deadline {
      // Where the clock was set back, no more than was left when the file was written.
      let (left, isFar) = deadline.subtractingReportingOverflow(max(wallNow, created))
      guard isFar || left > 0 else { return nil }
      head.deadline = now &+ (isFar ? UInt64(Int64.max) : UInt64(left))
    }
    if let time = record.sinceLastUse {
      let age = record.lastUse.map(age) ?? 0
      guard age < time else { return nil }
      head.sinceLastUse = time
      // The clock does not reach back to the last use: without another one it must not live longer for that.
      if age > now { head.deadline = min(head.deadline ?? .max, now + (time - age)) }
    }
    return head
  }
}

/// Calls a program's closure about once a mebibyte.
struct ProgressSteps {
  private let progress: ((Double) -> Bool)?
  private let operation: String
  private var next = 0

  init(_ progress: ((Double) -> Bool)?, _ operation: String) { (self.progress, self.operation) = (progress, operation) }

  /// `byteCount`: written so far; `Int.max` where each call is a mebibyte.
  mutating func note(_ part: Double, at byteCount: Int) throws(PurgeableError) {
    guard byteCount >= next else { return }
    if byteCount < .max { next = byteCount + 1 << 20 }
    try tell(min(1, part))
  }

  func end() throws(PurgeableError) { try tell(1) }

  private func tell(_ part: Double) throws(PurgeableError) {
    guard let progress, !progress(part) else { return }
    throw PurgeableError(.cancelled, in: operation, explanation: "the program wanted no more of it")
  }
}
