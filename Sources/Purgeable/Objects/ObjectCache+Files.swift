// SPDX-License-Identifier: MIT
// Saving a cache of objects to a file, and restoring it. No code of the program's runs under a mutex: an object is encoded, and
// decoded, under none.

extension ObjectCache where Key: PurgeableValue {
  /// Writes all entries to a new file, the most recently used first, and puts it in place of the old one when it is whole and on
  /// the disk. A kill, a full disk or a power cut at any moment leaves the old file or the new one.
  ///
  /// Each entry is one that was there during the save; they are not an image of one moment. It counts as no use. Values that do
  /// not encode, and a key that does not, are skipped and named. Objects whose content is discarded, and what leaves meanwhile,
  /// are left out, and counted.
  ///
  ///     let widths = try ObjectCache<String, Double>(countLimit: 500)
  ///     try await widths.save(to: "/var/cache/service/widths", format: .purgeableBytes)
  ///
  /// Cost: memory for twice the keys and 16 bytes more an entry, a buffer of a mebibyte, half of which a thread writes while the
  /// other half is filled, and one encoded value. Nothing stays in the page cache. One save or restore of a cache at a time:
  /// another waits. Any thread.
  ///
  /// - Parameters:
  ///   - path: of the file; its directory must exist. A temporary file beside it, `.NAME.PID.….tmp`, is gone when this returns;
  ///     what a killed save left there is removed. A symbolic link is replaced by the file.
  ///   - format: how values are written. Keys are written as they are `PurgeableValue`s.
  ///   - permissions: of the file, whatever the process's mask says.
  ///   - isSynchronized: false does not wait for the disk; a power cut may then leave neither file.
  ///   - progress: called about once a mebibyte, between entries, with 0 to 1, under no mutex; false cancels.
  /// - Throws: `PurgeableError` of kind `systemCallFailed`, `outOfMemory`, `cancelled`, `invalidArgument` (a path that names no
  ///   file), `busy` (from within `progress` or the format's closures). The old file stays then, and no temporary one is left.
  ///   Only where the directory cannot be brought to the disk, which the error says, the new file is in place.
  @discardableResult
  public func save(
    to path: String, format: StoredFormat<Value>, permissions: UInt16 = 0o600, isSynchronized: Bool = true,
    progress: ((Double) -> Bool)? = nil
  ) throws(PurgeableError) -> FileReport {
    try saveInTurn(to: path, format, FileTerms(permissions: permissions, isSynchronized: isSynchronized), progress)
  }

  /// The same on a thread of the library's, which waits for the disk in the task's place. Cancelled with the task.
  @discardableResult
  public nonisolated(nonsending) func save(
    to path: String, format: StoredFormat<Value>, permissions: UInt16 = 0o600, isSynchronized: Bool = true
  ) async throws(PurgeableError) -> FileReport {
    try await inBackground("save") { cache, isCancelled throws(PurgeableError) in
      try cache.save(to: path, format: format, permissions: permissions, isSynchronized: isSynchronized) { _ in !isCancelled() }
    }
  }

  /// Stores the entries of a file, the most recently used first, while there is room without an eviction, with cost, expiry,
  /// recompute cost, priority and version. Each can be read as soon as it is stored. A file that is not there is an empty one.
  ///
  /// What is in memory is newer: a key that has a value keeps it, and one that was stored or removed since the restore began
  /// gets none of the file; a few others that share bits of their hash do not either. `removeAll()` ends the restore. What is
  /// restored counts as less recently used than all that was stored since the cache was made, in the order that was saved. Expiry
  /// goes by the time of the day, as with `PurgeableCache`. A file of `PurgeableCache` with such keys and values is read as well.
  ///
  /// An entry that does not decode is skipped and named, one with a wrong checksum skipped and counted.
  ///
  /// Cost: buffers of four mebibytes, of which two are used as a rule. Nothing stays in the page cache. Other threads may use the
  /// cache meanwhile. One save or restore of a cache at a time: another waits. Any thread.
  ///
  /// - Parameters:
  ///   - path: of the file.
  ///   - format: how values were written.
  ///   - progress: called about once a mebibyte, between entries, with 0 to 1, under no mutex; false cancels.
  /// - Throws: `PurgeableError` of kind `invalidFile`, before anything is stored, where the file is none of `save`, is cut or
  ///   damaged at one of its ends, was written by a newer version, or has keys of another type; and in the midst of it where
  ///   somebody cuts it. `systemCallFailed`, `outOfMemory`, `cancelled`, `invalidArgument`, `busy` as `save`. What is stored by
  ///   then stays.
  @discardableResult
  public func restore(
    from path: String, format: StoredFormat<Value>, progress: ((Double) -> Bool)? = nil
  ) throws(PurgeableError) -> FileReport {
    try restoreInTurn(from: path, format, progress)
  }

  /// The same on a thread of the library's, which waits for the disk in the task's place. Cancelled with the task.
  @discardableResult
  public nonisolated(nonsending) func restore(
    from path: String, format: StoredFormat<Value>
  ) async throws(PurgeableError) -> FileReport {
    try await inBackground("restore") { cache, isCancelled throws(PurgeableError) in
      try cache.restore(from: path, format: format) { _ in !isCancelled() }
    }
  }

  /// Saves after each interval in which an entry was stored, replaced, has left or got a priority: as
  /// `PurgeableCache.setAutosave`.
  public func setAutosave(
    to path: String, every interval: Duration, format: StoredFormat<Value>, handler: (@Sendable (SaveEvent) -> Void)? = nil
  ) throws(PurgeableError) {
    try setAutosave(to: path, every: interval, format, store.lazy, handler)
  }

  /// Ends the saves at intervals. Waits for one that is at work, and its handler, unless that handler calls this.
  /// Any thread.
  public func removeAutosave() { removeAutosave(store.lazy) }

  /// Why the last save failed, `save(to:)` or one of `setAutosave`; nil where it did not, and where there was none.
  public var lastSaveError: PurgeableError? { store.lazy.knownFiles?.lastFailure }
}

extension ObjectCache: FiledCache where Key: PurgeableValue {
  static var kind: String { "ObjectCache" }
  var fileGate: FileGate { store.lazy.files }
  var mostRecordBytes: Int { .max }
  var changeCount: Int { store.changeCount }

  func writeAll(
    to writer: inout CacheFileWriter, _ format: StoredFormat<Value>, _ steps: inout ProgressSteps, _ report: inout FileReport
  ) throws(PurgeableError) {
    let times = FileTimes(clock: store.clock, created: 0)
    // Arrays that grow are there twice for a moment.
    let needed = 4 * count * (MemoryLayout<Key>.stride + MemoryLayout<PlaceInOrder>.stride)
    guard MemoryReserve.isThere(needed + MemoryReserve.ofObjects) else {
      throw PurgeableError.withoutMemory(in: "ObjectCache.save")
    }
    // By their keys: positions change when a table grows.
    let keys = store.all { table, position, _ in table[position].key! }
    for (number, key) in keys.reversed().enumerated() {
      try steps.note(Double(number) / Double(keys.count), at: writer.byteCount)
      guard let (value, version, saved) = store.saved(key, times), !isLeaving(value) else { continue }
      guard let bytes = report.bytes(of: value, format, key) else { continue }
      var record = saved
      record.format = UInt32(format.version)
      let text = version.map { Array($0.utf8) }
      try writer.append(record, key: key, version: unsafe text?.span.bytes, value: unsafe bytes.span.bytes, &report)
    }
    report.noteLeftOut(of: keys.count)
  }

  func readAll(
    from reader: inout CacheFileReader, _ format: StoredFormat<Value>, _ overtaken: OvertakenKeys, _ steps: inout ProgressSteps,
    _ report: inout FileReport
  ) throws(PurgeableError) {
    let times = FileTimes(clock: store.clock, created: reader.header.created)
    store.beginRestoring()
    defer { store.endRestoring() }
    var batch = CacheFileReader.Batch()
    while !overtaken.hasAll, try reader.next(&batch) {
      for item in batch.items {
        if overtaken.hasAll { return }
        let record = batch.record(item)
        var validity = RestoredValidity()
        guard let key: Key = report.key(of: item, record, in: batch, times, &validity) else { continue }
        let bytes = unsafe batch.content(item, record).bytes
        var notes = ObjectNotes()
        (notes.recomputeCost, notes.made) = (record.recomputeCost, record.made.map(times.birth))
        if let byteCount = record.versionByteCount {
          let start = record.keyByteCount
          notes.version = String(purgeableBytes: bytes.extracting(start..<start + byteCount))
          guard let version = notes.version, !VersionLimit.isExceeded(by: version) else {
            report.skip("\(key)", because: "its version is no text, or too long")
            continue
          }
        }
        guard let value = report.value(format, bytes.extracting(last: record.valueByteCount), of: record, key) else { continue }
        // None in the file is that of caches of bytes: as many as the value has bytes.
        func found() -> UInt64 { store.findsCosts ? UInt64(max(0, store.cost(of: value))) : UInt64(record.valueByteCount) }
        let cost = Int(clamping: record.cost ?? found())
        let lastUse = record.lastUse.map(times.moment) ?? store.clock.now()
        let time = ObjectTime(
          deadline: validity.deadline ?? .max, idle: validity.sinceLastUse ?? .max, lastUse: lastUse)
        switch store.restore(key, value, cost: cost, record.priority, time, notes, overtaken) {
        case .stored: report.entryCount += 1
        case .present, .tooLarge: break
        case .full: return
        }
      }
      try steps.note(reader.progress, at: .max)
    }
  }
}

extension ObjectStore {
  /// Another number after each store, each change of a priority and each departure; 0 where nothing was ever stored.
  var changeCount: Int {
    (0..<ObjectGate.count).reduce(0) { sum, at in
      let counters = hold(shard: at) { $0.counters }
      return DepartureReason.allCases.reduce(sum &+ counters.insertions &+ counters.replacements &+ counters.priorities) {
        $0 &+ counters.departures[$1.rawValue]
      }
    }
  }

  /// A key's value, its version, and what a file has of it beside these. nil where there is none.
  func saved(_ key: Key, _ times: FileTimes) -> (Value, version: String?, FileRecord)? {
    hold(key) { shard, position, _ in
      guard position != noPosition, !isOver(position, in: shard.table) else { return nil }
      let (node, time) = (shard.table[position], shard.table.time(position))
      var record = FileRecord()
      (record.cost, record.priority) = (UInt64(node.cost), node.queue.priority)
      if time.deadline != .max { record.deadline = times.wall(time.deadline) }
      if time.idle != .max { (record.sinceLastUse, record.lastUse) = (time.idle, times.wall(time.lastUse)) }
      let notes = shard.table.notes(at: position)
      (record.recomputeCost, record.made) = (notes?.recomputeCost, notes?.made.map(times.birthByDay))
      return (node.value!, notes?.version, record)
    }
  }

  /// Stores an entry of a file behind all others, unless its key has one or was overtaken. Evicts nothing.
  func restore(
    _ key: Key, _ value: Value, cost: Int, _ priority: EntryPriority, _ time: ObjectTime, _ notes: ObjectNotes,
    _ overtaken: OvertakenKeys
  ) -> RestoreOutcome {
    if refuses(cost) { return .tooLarge }
    let notes = notes.isEmpty ? nil : notes
    let queue = ObjectQueue(hasCost: cost > 0, isDiscardable: isDiscardable(value), priority)
    noteQueue(queue)
    let (hashValue, growthLimit) = (key.hashValue, growthLimit)
    if mayHaveExpired { dropIfExpired(key) }
    let outcome = hold(key) { shard, position, hash -> RestoreOutcome in
      if position != noPosition || overtaken.has(hashValue) { return .present }
      guard hasRoom(cost, growing: growthLimit),
        shard.table.insert(key, hash: hash, value, cost: cost, queue, time, notes, at: 0)
      else { return .full }
      shard.table.makeOldest(shard.table.newest[Int(queue.number)], nextRestoredStamp())
      shard.counters.insertions += 1
      book(entries: 1, cost: cost, less: 0)
      return .stored
    }
    guard outcome == .stored else { return outcome }
    if isWatched { noteChange(of: key) }
    if time.isTimed { noteEnd(time) }
    noteStore()
    // Another thread may have taken the room.
    if isOverLimit { enforceLimits() }
    return .stored
  }
}
