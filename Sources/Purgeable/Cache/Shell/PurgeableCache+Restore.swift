// SPDX-License-Identifier: MIT
// Restoring a saved cache: a batch of the file is checked and decoded under no mutex, and each entry is stored behind all others,
// unless its key has a value or had one since the restore began (Shard/HeldShard+Restore.swift).

/// How many bytes a file's records are in memory: as many as in the file, but where a format has written values in other bytes.
/// Then those that were stored tell.
private struct MemoryEstimate {
  private var (inFile, inMemory) = (0, 0)
  private(set) var isKnown: Bool

  init(isPlain: Bool) { isKnown = isPlain }

  /// A value of a format is stored in so many bytes.
  mutating func note(_ record: FileRecord, valueByteCount: Int) {
    inFile += record.byteCount
    inMemory += record.byteCount - record.valueByteCount + valueByteCount
    isKnown = true
  }

  func byteCount(of record: FileRecord) -> Int {
    inFile == 0 ? record.byteCount : Int(min(Double(record.byteCount) * Double(inMemory) / Double(inFile), 0x1p62))
  }
}

extension PurgeableCache where Key: PurgeableValue {
  /// Stores the entries of a file, the hottest first, while there is room without an eviction, with cost, expiry, recompute
  /// cost, priority and version. Each can be read as soon as it is stored. A file that is not there is an empty one.
  ///
  /// What is in memory is newer: a key that has a value keeps it, and one that was stored or removed since the restore began
  /// gets none of the file; a few others that share bits of their hash do not either. `removeAll()` ends the restore. What is
  /// restored goes before all that was stored since the cache was made, in the order that was saved. Expiry goes by the time of
  /// the day: what would have ended meanwhile has ended. A clock that was set back makes no entry live longer than it had left.
  ///
  /// An entry that does not decode is skipped and named, one with a wrong checksum skipped and counted.
  ///
  /// Cost: two blocks of a mebibyte, of which a thread reads one while the entries of the other are stored, with room for two
  /// more, and the memory of a value that is longer than one. Nothing stays in the page cache. Other threads may use the cache
  /// meanwhile. One save or restore of a cache at a time: another waits. Any thread.
  ///
  /// - Parameters:
  ///   - path: of the file.
  ///   - format: how values were written. A file that holds the values' bytes as they were in memory, `purgeableBytes`, can be
  ///     read as that only with the same type of values.
  ///   - progress: called about once a mebibyte, between entries, with 0 to 1, under no mutex; false cancels.
  /// - Throws: `PurgeableError` of kind `invalidFile`, before anything is stored, where the file is none of `save`, is cut or
  ///   damaged at one of its ends, was written by a newer version, or has keys or values of another type; and in the midst of it
  ///   where somebody cuts it. `systemCallFailed`, `outOfMemory`, `cancelled`, `invalidArgument`, `busy` as `save`. What is
  ///   stored by then stays.
  @discardableResult
  public func restore(
    from path: String, format: StoredFormat<Value> = .purgeableBytes, progress: ((Double) -> Bool)? = nil
  ) throws(PurgeableError) -> FileReport {
    try restoreInTurn(from: path, format, progress)
  }

  /// The same on a thread of the library's, which waits for the disk in the task's place. Cancelled with the task.
  @discardableResult
  public nonisolated(nonsending) func restore(
    from path: String, format: StoredFormat<Value> = .purgeableBytes
  ) async throws(PurgeableError) -> FileReport {
    try await inBackground("restore") { cache, isCancelled throws(PurgeableError) in
      try cache.restore(from: path, format: format) { _ in !isCancelled() }
    }
  }

  func readAll(
    from reader: inout CacheFileReader, _ format: StoredFormat<Value>, _ overtaken: OvertakenKeys, _ steps: inout ProgressSteps,
    _ report: inout FileReport
  ) throws(PurgeableError) {
    engine.shards.healIfChild()
    let times = FileTimes(clock: engine.base.clock, created: reader.header.created)
    var batch = CacheFileReader.Batch()
    var (isFull, estimate) = (false, MemoryEstimate(isPlain: format.isPlain))
    while !isFull, !overtaken.hasAll, try reader.next(&batch) {
      var start = 0
      while start < batch.items.count, !isFull, !overtaken.hasAll {
        let end = endOfRoom(batch, from: start, estimate)
        engine.shards.restoring {
          let before = report.entryCount
          for i in start..<end where !isFull && !overtaken.hasAll {
            // An order that names entries is told of each, hottest first; slabs have the coldest first.
            let item = batch.items[engine.base.namesSlabs ? start + end - 1 - i : i]
            isFull = !restore(item, in: batch, format, times, overtaken, &estimate, &report)
          }
          return report.entryCount - before
        }
        start = end
      }
      // Also in a child that a closure of the program's has forked: there the rest is the parent's (`LoadTable.forgetInChild`).
      if overtaken.hasAll { break }
      try steps.note(reader.progress, at: .max)
    }
  }

  /// The end of those entries, hottest first, for which there is room, as far as that is known: at least one, and of the room in
  /// bytes half, since slabs are not filled to the end. A few where it is not known how many bytes they are.
  private func endOfRoom(_ batch: CacheFileReader.Batch, from start: Int, _ estimate: MemoryEstimate) -> Int {
    var room = engine.base.roomToRestore
    if room.byteCount < .max / 2 { room.byteCount /= 2 }
    let last = estimate.isKnown ? batch.items.count : min(batch.items.count, start + 32)
    var end = start
    while end < last {
      let record = batch.record(batch.items[end])
      let cost = UInt128(record.cost ?? UInt64(record.valueByteCount))
      let byteCount = estimate.byteCount(of: record)
      guard end == start || room.count > 0 && room.cost >= cost && room.byteCount >= byteCount else { break }
      room.count -= 1
      room.cost -= min(room.cost, cost)
      room.byteCount -= min(room.byteCount, byteCount)
      end += 1
    }
    return end
  }

  /// Stores one entry of a file. False where there is no room.
  private func restore(
    _ item: CacheFileReader.Item, in batch: CacheFileReader.Batch, _ format: StoredFormat<Value>, _ times: FileTimes,
    _ overtaken: OvertakenKeys, _ estimate: inout MemoryEstimate, _ report: inout FileReport
  ) -> Bool {
    let record = batch.record(item)
    var validity = RestoredValidity()
    guard let key: Key = report.key(of: item, record, in: batch, times, &validity) else { return true }
    let content = unsafe batch.content(item, record).bytes
    var head = EntryHead(cost: record.cost, recomputeCost: record.recomputeCost)
    (head.deadline, head.sinceLastUse, head.made) = (validity.deadline, validity.sinceLastUse, record.made.map(times.birth))
    if let byteCount = record.versionByteCount {
      guard byteCount <= VersionLimit.byteCount else {
        report.skip("\(key)", because: "its version is too long")
        return true
      }
      head.version = VersionText(lending: content.extracting(record.keyByteCount..<record.keyByteCount + byteCount))
    }
    let stored = content.extracting(last: record.valueByteCount)
    let rank = EntryRank(
      priority: record.priority, isMain: record.isMain, useCount: min(record.useCount, Slot.highestCounter),
      lastUse: record.lastUse.map { UseTime(times.moment($0)) })
    func store(_ value: RawSpan) -> Bool {
      if head.cost == UInt64(value.byteCount) { head.cost = nil }
      switch restore(key, value, head, rank, overtaken) {
      case .stored: report.entryCount += 1
      case .present, .tooLarge: break
      case .full: return false
      }
      return true
    }
    if format.isPlain, record.format == 0 { return store(stored) }
    guard let decoded = report.value(format, stored, of: record, key) else { return true }
    let goesOn = decoded.withPurgeableBytesIfEncodable { span in
      estimate.note(record, valueByteCount: span.byteCount)
      return store(span)
    }
    if goesOn == nil { report.skip("\(key)", because: "its value cannot be kept as bytes") }
    return goesOn ?? true
  }

  /// Stores one entry, unless its key has one or was overtaken.
  private func restore(
    _ key: Key, _ value: RawSpan, _ head: EntryHead, _ rank: EntryRank, _ overtaken: OvertakenKeys
  ) -> RestoreOutcome {
    let hashValue = key.hashValue
    return encode(key) { engineKey, prefix in
      let (outcome, due) = engine.shards.hold(homeOf: engineKey) { held in
        let outcome = overtaken.has(hashValue) ? .present : held.restore(engineKey, prefix, value, head, rank)
        return (outcome, held.takeDue())
      }
      engine.finishStore(engineKey, .stored, due)
      return outcome
    } tracked: { hash in
      let cost = head.cost ?? UInt64(value.byteCount)
      var engineKey = EngineKey(hash: hash)
      let result = withStore(of: key, hash: hash, cost: cost) {
        numbered, prefix, held -> ((RestoreOutcome, DueAfterStore), Bool) in
        engineKey = numbered
        let outcome = overtaken.has(hashValue) ? .present : held.restore(numbered, prefix, value, head, rank)
        return ((outcome, held.takeDue()), outcome == .stored)
      }
      guard let (outcome, due) = result else { return .full }
      engine.finishStore(engineKey, .stored, due)
      if outcome == .stored { teller?.board.load()?.note(key) }
      return outcome
    }
  }
}
