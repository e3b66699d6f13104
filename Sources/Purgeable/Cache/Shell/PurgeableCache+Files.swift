// SPDX-License-Identifier: MIT
// A whole cache to a file, and back (Files/CacheFile.swift has the format).
//
//   save      a walk against the order of eviction; some entries at a time are copied under their shard's mutex, encoded and
//             written under none
//   restore   a batch of the file is checked and decoded under no mutex, and each entry stored behind all others, unless its key
//             has a value or had one since the restore began (Shard/HeldShard+Restore.swift)

import CPurgeable
import Glibc

extension PurgeableCache where Key: PurgeableValue {
  // MARK: Saving

  /// Writes all entries to a new file, the hottest first, and puts it in place of the old one when it is whole and on the disk. A
  /// kill, a full disk or a power cut at any moment leaves the old file or the new one.
  ///
  /// Each entry is one that was there during the save; they are not an image of one moment. It counts as no use. What
  /// the kernel took meanwhile is left out. Values that do not encode, and a key that does not, are skipped and named.
  ///
  /// Cost: one pass over the index and 8 bytes of ordinary memory for each entry, as a loop over `keys`; a buffer of a mebibyte;
  /// a copy of 32 values at a time, of one where it has 128 KiB or more. Other threads wait for a shard's mutex while up to 32
  /// values are copied. Nothing stays in the page cache. One save or restore of a cache at a time: another waits. Any thread.
  ///
  /// - Parameters:
  ///   - path: of the file; its directory must exist. A temporary file beside it, `.NAME.PID.….tmp`, is gone when this returns;
  ///     what a killed save left there is removed. A symbolic link is replaced by the file.
  ///   - format: how values are written. Keys are written as they are `PurgeableValue`s.
  ///   - permissions: of the file, whatever the process's mask says.
  ///   - isSynchronized: false does not wait for the disk; a power cut may then leave neither file.
  ///   - progress: called about once a mebibyte with 0 to 1, under no mutex; false cancels.
  /// - Throws: `PurgeableError` of kind `systemCallFailed`, `outOfMemory`, `cancelled`, `invalidArgument` (a path that names no
  ///   file), `busy` (from within `progress` or the format's closures). The old file stays then, and no temporary one is left.
  @discardableResult
  public func save(
    to path: String, format: StoredFormat<Value> = .purgeableBytes, permissions: UInt16 = 0o600, isSynchronized: Bool = true,
    progress: ((Double) -> Bool)? = nil
  ) throws(PurgeableError) -> FileReport {
    let operation = "PurgeableCache '\(name)'.save"
    return try alone(operation) { () throws(PurgeableError) in
      engine.shards.healIfChild()
      let header = FileHeader(
        created: WallTime.now, keyType: Self.nameInFiles(Key.self), valueType: Self.nameInFiles(Value.self),
        format: UInt32(format.version))
      var writer = try CacheFileWriter.make(path, header, permissions: permissions, operation: operation)
      var report = FileReport()
      try writeAll(to: &writer, format, operation, progress, &report)
      report.byteCount = try writer.place(isSynchronized: isSynchronized)
      return report
    }
  }

  /// The same on a thread of the library's, which waits for the disk in the task's place. Cancelled with the task.
  @discardableResult
  public nonisolated(nonsending) func save(
    to path: String, format: StoredFormat<Value> = .purgeableBytes, permissions: UInt16 = 0o600, isSynchronized: Bool = true
  ) async throws(PurgeableError) -> FileReport {
    try await inBackground("save") { cache, isCancelled throws(PurgeableError) in
      try cache.save(to: path, format: format, permissions: permissions, isSynchronized: isSynchronized) { _ in !isCancelled() }
    }
  }

  private func writeAll(
    to writer: inout CacheFileWriter, _ format: StoredFormat<Value>, _ operation: String, _ progress: ((Double) -> Bool)?,
    _ report: inout FileReport
  ) throws(PurgeableError) {
    let total = Double(max(1, count))
    var steps = ProgressSteps(progress, operation)
    var walk = EntryWalk(engine.shards, isReversed: true)
    var copies = EntryCopies<Key>()
    var ranks: [SavedRank] = []
    var seen = 0
    while true {
      ranks.removeAll(keepingCapacity: true)
      let goesOn = walk.visitNext(of: engine.shards) { held, found in
        let isLarge = held.elements.length(held.heap.reference(found.slot.place)).map { $0 >= held.heap.largeByteCount } ?? false
        guard copies.append(found.slot, in: held, withValue: !isLarge) else { return }
        ranks.append(SavedRank(found.slot, in: held, isLarge: isLarge))
      }
      if !goesOn { break }
      try copies.takeEach(for: self) { number, key, payload, prefixByteCount, hasHead throws(PurgeableError) in
        let rank = ranks[number]
        seen += 1
        if rank.isLarge { return try writeLarge(key, rank, to: &writer, format, &report) }
        try unsafe payload.withUnsafeBytes { bytes throws(PurgeableError) in
          let head = unsafe EntryPrefix.head(of: bytes, behind: prefixByteCount, hasHead: hasHead)
          let value = unsafe EntryPrefix.value(of: bytes, behind: prefixByteCount, hasHead: hasHead)
          let start = prefixByteCount + head.textStart
          let end = head.version.map { start + Int($0.byteCount) } ?? start
          let version = unsafe head.version == nil ? nil : UnsafeRawBufferPointer(rebasing: bytes[start..<end])
          unsafe try write(key, value, head, version, rank, to: &writer, format, &report)
        }
      }
      try steps.note(Double(seen) / total, at: writer.byteCount)
    }
    try steps.end()
  }

  /// Writes an entry whose value was too long to be copied under the mutex: it is read like any other, and is the one that was
  /// noted if nothing about it has changed meanwhile. Else it is tried again, and left out where it changes all the time.
  private func writeLarge(
    _ key: Key, _ rank: SavedRank, to writer: inout CacheFileWriter, _ format: StoredFormat<Value>, _ report: inout FileReport
  ) throws(PurgeableError) {
    func peeked() -> PeekedEntry? {
      unsafe withEntry(key) { engineKey, prefix, held in unsafe held.peeked(engineKey, prefix, digests: false) } ?? nil
    }
    for _ in 0..<8 {
      guard let before = peeked() else { return }
      var text = InlineArray<255, UInt8>(repeating: 0)
      var textByteCount = 0
      if before.head.version != nil {
        let count = unsafe withEntry(key) { engineKey, prefix, held in
          unsafe held.copyVersion(engineKey, prefix, into: &text)
        }
        guard let count = count ?? nil else { continue }
        textByteCount = count
      }
      var byteCount = 0
      let none = unsafe UnsafeMutableRawBufferPointer(start: nil, count: 0)
      if case .tooSmall(let needed) = unsafe read(key, into: none, countsAsUse: false) { byteCount = needed }
      guard MemoryReserve.isThere(2 * byteCount + MemoryReserve.ofObjects) else {
        return report.skip("\(key)", because: "there is no memory for a copy of its \(byteCount) bytes")
      }
      var isRead = false
      let bytes = unsafe [UInt8](unsafeUninitializedCapacity: byteCount) { buffer, count in
        guard case .hit(byteCount) = unsafe read(key, into: UnsafeMutableRawBufferPointer(buffer), countsAsUse: false)
        else { return }
        (isRead, count) = (true, byteCount)
      }
      guard isRead, peeked() == before else { continue }
      let span = unsafe text.span.bytes.extracting(0..<textByteCount)
      return try unsafe span.withUnsafeBytes { text throws(PurgeableError) in
        try unsafe bytes.span.bytes.withUnsafeBytes { value throws(PurgeableError) in
          unsafe try write(
            key, value, before.head, before.head.version == nil ? nil : text, rank, to: &writer, format, &report)
        }
      }
    }
  }

  /// Writes one entry. `version`: its text.
  private func write(
    _ key: Key, _ value: UnsafeRawBufferPointer, _ head: EntryHead, _ version: UnsafeRawBufferPointer?, _ rank: SavedRank,
    to writer: inout CacheFileWriter, _ format: StoredFormat<Value>, _ report: inout FileReport
  ) throws(PurgeableError) {
    var encoded: [UInt8]?
    if let encode = format.encode {
      guard let decoded = unsafe Value(purgeableBytes: value.bytes) else {
        return report.skip("\(key)", because: "its value cannot be made of the bytes in memory")
      }
      do { encoded = try encode(decoded) } catch { return report.skip("\(key)", because: "it does not encode: \(error)") }
    }
    var record = rank.record(head, clock: engine.base.clock)
    record.format = UInt32(format.version)
    record.versionByteCount = unsafe version?.count
    // The cost of a value that is written in other bytes counts all the same.
    record.cost = head.cost ?? (encoded == nil ? nil : UInt64(value.count))
    func write(_ value: UnsafeRawBufferPointer) throws(PurgeableError) {
      record.valueByteCount = value.count
      let none = unsafe UnsafeRawBufferPointer(start: nil, count: 0)
      let isWritten: ()? = try key.withPurgeableBytesIfEncodable { span throws(PurgeableError) in
        try unsafe span.withUnsafeBytes { bytes throws(PurgeableError) in
          record.keyByteCount = bytes.count
          unsafe try writer.append(record, key: bytes, version: version ?? none, value: value)
        }
      }
      if isWritten == nil { report.skip("\(key)", because: "its key does not encode") } else { report.entryCount += 1 }
    }
    if let encoded {
      try unsafe encoded.span.bytes.withUnsafeBytes { bytes throws(PurgeableError) in unsafe try write(bytes) }
    } else {
      unsafe try write(value)
    }
  }

  // MARK: Restoring

  /// Stores the entries of a file, the hottest first, while there is room without an eviction, with cost, expiry, recompute
  /// cost, priority and version. Each can be read as soon as it is stored. A file that is not there is an empty one.
  ///
  /// What is in memory is newer: a key that has a value keeps it, and one that was stored or removed since the restore began
  /// gets none of the file; a few others that share bits of their hash do not either. `removeAll()` ends the restore. What is
  /// restored goes before all that was stored since the cache was made, in the order that was saved. Expiry goes by the time of
  /// the day: what would have ended meanwhile has ended. A clock that was set back makes no entry live longer than it had left.
  ///
  /// An entry that does not decode or has a wrong checksum is skipped and named.
  ///
  /// Cost: buffers of two mebibytes, and the memory of a value that is longer than one. Nothing stays in the page cache. Other
  /// threads may use the cache meanwhile. One save or restore of a cache at a time: another waits. Any thread.
  ///
  /// - Parameters:
  ///   - path: of the file.
  ///   - format: how values were written. A file that holds the values' bytes as they were in memory, `purgeableBytes`, can be
  ///     read as that only with the same type of values.
  ///   - progress: called about once a mebibyte with 0 to 1, under no mutex; false cancels.
  /// - Throws: `PurgeableError` of kind `invalidFile`, before anything is stored, where the file is none of `save`, is cut or
  ///   damaged at one of its ends, was written by a newer version, or has keys or values of another type; and in the midst of it
  ///   where somebody cuts it. `systemCallFailed`, `outOfMemory`, `cancelled`, `invalidArgument`, `busy` as `save`. What is
  ///   stored by then stays.
  @discardableResult
  public func restore(
    from path: String, format: StoredFormat<Value> = .purgeableBytes, progress: ((Double) -> Bool)? = nil
  ) throws(PurgeableError) -> FileReport {
    let operation = "PurgeableCache '\(name)'.restore"
    return try alone(operation) { () throws(PurgeableError) in
      engine.shards.healIfChild()
      guard var reader = try CacheFileReader.open(path, operation: operation) else { return FileReport() }
      try check(reader.header, format, path, operation)
      guard let overtaken = OvertakenKeys(forEntries: reader.footer.recordCount) else {
        throw PurgeableError(
          .outOfMemory, in: operation, errorNumber: outOfMemoryNumber,
          explanation: "there is no memory to note which keys change")
      }
      var report = FileReport()
      report.byteCount = reader.footer.fileByteCount
      try loads.whileRestoring(overtaken) { () throws(PurgeableError) in
        try readAll(from: &reader, format, overtaken, operation, progress, &report)
      }
      return report
    }
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

  private func check(
    _ header: FileHeader, _ format: StoredFormat<Value>, _ path: String, _ operation: String
  ) throws(PurgeableError) {
    func refusal(_ what: String, _ its: String, _ ours: String) -> PurgeableError {
      PurgeableError(.invalidFile, in: operation, explanation: "\(path) has \(what) of type \(its), not \(ours)")
    }
    let (key, value) = (Self.nameInFiles(Key.self), Self.nameInFiles(Value.self))
    if header.keyType != key { throw refusal("keys", header.keyType, key) }
    // Else it is for the format's closure to tell.
    if header.format == 0, format.encode == nil, header.valueType != value { throw refusal("values", header.valueType, value) }
  }

  private func readAll(
    from reader: inout CacheFileReader, _ format: StoredFormat<Value>, _ overtaken: OvertakenKeys, _ operation: String,
    _ progress: ((Double) -> Bool)?, _ report: inout FileReport
  ) throws(PurgeableError) {
    let times = FileTimes(clock: engine.base.clock, created: reader.header.created)
    let process = getpid()
    var steps = ProgressSteps(progress, operation)
    var batch = CacheFileReader.Batch()
    var damageCount = 0
    var isFull = false
    while !isFull, try reader.next(&batch, &damageCount) {
      var start = 0
      while start < batch.items.count, !isFull, !overtaken.hasAll, getpid() == process {
        let end = endOfRoom(batch.items, from: start)
        engine.shards.restoring {
          let before = report.entryCount
          for i in start..<end where !isFull && !overtaken.hasAll && getpid() == process {
            // An order that names entries is told of each, hottest first; slabs have the coldest first.
            let item = batch.items[engine.base.namesSlabs ? start + end - 1 - i : i]
            isFull = unsafe !restore(item, batch.content(item), format, times, overtaken, &report)
          }
          return report.entryCount - before
        }
        start = end
      }
      // In a child that a closure of the program's has forked, the rest is the parent's.
      if overtaken.hasAll || getpid() != process { break }
      try steps.note(reader.progress, at: .max)
    }
    for _ in 0..<damageCount { report.skip("a place in the file", because: "it is damaged, and no entry can be told") }
    try steps.end()
  }

  /// The end of those entries, hottest first, for which there is room, as far as that is known: at least one, and of the room in
  /// bytes half, since slabs are not filled to the end.
  private func endOfRoom(_ items: [CacheFileReader.Item], from start: Int) -> Int {
    var room = engine.base.roomToRestore
    if room.byteCount < .max / 2 { room.byteCount /= 2 }
    var end = start
    while end < items.count {
      let record = items[end].record
      let cost = UInt128(record.cost ?? UInt64(record.valueByteCount))
      let byteCount = record.byteCount
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
    _ item: CacheFileReader.Item, _ content: UnsafeRawBufferPointer, _ format: StoredFormat<Value>, _ times: FileTimes,
    _ overtaken: OvertakenKeys, _ report: inout FileReport
  ) -> Bool {
    let record = item.record
    func part(_ start: Int, _ count: Int) -> UnsafeRawBufferPointer {
      unsafe UnsafeRawBufferPointer(rebasing: content[start..<start + count])
    }
    switch item.state {
    case .intact: break
    case .unknown:
      report.skip("an entry", because: "a newer version wrote it with what this one does not know")
      return true
    case .tooLarge:
      report.skip("an entry", because: "there is no memory for its \(record.valueByteCount) bytes")
      return true
    case .damaged:
      let key = unsafe Key(purgeableBytes: part(0, record.keyByteCount).bytes)
      report.skip(key.map { "\($0)" } ?? "an entry", because: "its checksum is wrong")
      return true
    }
    guard let key = unsafe Key(purgeableBytes: part(0, record.keyByteCount).bytes) else {
      report.skip("an entry", because: "its key does not decode")
      return true
    }
    guard var head = times.head(of: record) else {
      report.expiredCount += 1
      return true
    }
    let versionByteCount = record.versionByteCount ?? 0
    if record.versionByteCount != nil {
      guard versionByteCount <= VersionText.mostBytes else {
        report.skip("\(key)", because: "its version is too long")
        return true
      }
      head.version = unsafe VersionText(lending: part(record.keyByteCount, versionByteCount))
    }
    let stored = unsafe part(record.keyByteCount + versionByteCount, record.valueByteCount)
    let rank = RestoredRank(
      priority: record.priority, isMain: record.isMain, useCount: min(record.useCount, Slot.highestCounter),
      lastUse: record.lastUse.map { UseTime(times.moment($0)) })
    func store(_ value: UnsafeRawBufferPointer) -> Bool {
      if head.cost == UInt64(value.count) { head.cost = nil }
      switch unsafe restore(key, value, head, rank, overtaken) {
      case .stored: report.entryCount += 1
      case .present, .tooLarge: break
      case .full: return false
      }
      return true
    }
    if format.encode == nil, record.format == 0 { return unsafe store(stored) }
    var decoded: Value?
    do { decoded = unsafe try format.decode(stored.bytes, Int(record.format)) } catch {
      report.skip("\(key)", because: "it does not decode: \(error)")
      return true
    }
    guard let decoded else {
      report.skip("\(key)", because: "it does not decode from version \(record.format)")
      return true
    }
    let goesOn = decoded.withPurgeableBytesIfEncodable { span in unsafe span.withUnsafeBytes { unsafe store($0) } }
    if goesOn == nil { report.skip("\(key)", because: "its value cannot be kept as bytes") }
    return goesOn ?? true
  }

  /// Stores one entry, unless its key has one or was overtaken.
  private func restore(
    _ key: Key, _ value: UnsafeRawBufferPointer, _ head: EntryHead, _ rank: RestoredRank, _ overtaken: OvertakenKeys
  ) -> RestoreOutcome {
    let hashValue = key.hashValue
    return unsafe encode(key) { engineKey, prefix in
      let (outcome, due) = engine.shards.hold(toStore: engineKey) { held in
        let outcome = unsafe overtaken.has(hashValue) ? .present : held.restore(engineKey, prefix, value, head, rank)
        return (outcome, held.takeDue(prefix.count + value.count))
      }
      engine.finishStore(engineKey, .stored, due)
      return outcome
    } tracked: { hash in
      let result = unsafe withTracked(key, hash: hash, makes: true) {
        engineKey, prefix, held -> (RestoreOutcome, DueAfterStore) in
        let number = engineKey.trackedNumber
        let outcome = unsafe overtaken.has(hashValue) ? .present : held.restore(engineKey, prefix, value, head, rank)
        if outcome == .stored { unsafe held.keys[number]?.pointee.cost = head.cost ?? UInt64(value.count) }
        // A number that has no entry is given back.
        if unsafe held.find(engineKey, prefix) == nil { held.departures.release(number, of: &held.keys) }
        return (outcome, held.takeDue(value.count))
      }
      guard let (outcome, due) = result else { return .full }
      engine.finishStore(EngineKey(hash: hash), .stored, due)
      if outcome == .stored { teller?.board.load()?.note(key) }
      return outcome
    }
  }

  // MARK: Both

  /// What a type is called in files: without its module, which may get another name.
  private static func nameInFiles<T>(_ type: T.Type) -> String {
    String(decoding: _typeName(type, qualified: false).utf8.prefix(FileHeader.nameByteCount), as: UTF8.self)
  }

  private func alone(
    _ operation: String, _ body: () throws(PurgeableError) -> FileReport
  ) throws(PurgeableError) -> FileReport {
    guard let report = try engine.lazy.files.run(body) else {
      throw PurgeableError(
        .busy, in: operation, explanation: "this thread is saving or restoring this cache, in one of whose closures it is called")
    }
    return report
  }

  private nonisolated(nonsending) func inBackground(
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

/// What is saved of an entry beside its bytes.
private struct SavedRank {
  let priority: EntryPriority
  let isMain: Bool
  let useCount: UInt64
  let lastUse: UseTime?
  let isLarge: Bool

  init(_ slot: Slot, in held: borrowing HeldShard, isLarge: Bool) {
    priority = held.priority(of: slot)
    isMain = held.heap.queue(at: slot.place) == .main
    useCount = slot.counter
    lastUse = held.lastUse(of: slot)
    self.isLarge = isLarge
  }

  func record(_ head: EntryHead, clock: MonotonicClock) -> FileRecord {
    let times = FileTimes(clock: clock, created: 0)
    var record = FileRecord()
    (record.priority, record.isMain, record.useCount) = (priority, isMain, useCount)
    (record.recomputeCost, record.sinceLastUse) = (head.recomputeCost, head.sinceLastUse)
    record.deadline = head.deadline.map(times.wall)
    record.made = head.made.map(times.wall)
    if head.sinceLastUse != nil { record.lastUse = lastUse.map { times.wall($0.moment(asOf: clock.now())) } }
    return record
  }
}

/// Between a cache's clock, which begins anew with the machine or the process, and the time of the day.
private struct FileTimes {
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
private struct ProgressSteps {
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
