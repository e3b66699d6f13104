// SPDX-License-Identifier: MIT
// Saving a whole cache: a walk against the order of eviction. Some entries at a time are copied under their shard's mutex, and
// encoded and written under none.

extension PurgeableCache where Key: PurgeableValue {
  /// Writes all entries to a new file, the hottest first, and puts it in place of the old one when it is whole and on the disk. A
  /// kill, a full disk or a power cut at any moment leaves the old file or the new one.
  ///
  /// Each entry is one that was there during the save; they are not an image of one moment. It counts as no use. What the kernel
  /// took, left meanwhile, or has expired is left out, and counted. Values that do not encode, and a key that does not, are
  /// skipped and named.
  ///
  /// Cost: one pass over the index and 8 bytes of ordinary memory for each entry, as a loop over `keys`; a buffer of a mebibyte,
  /// half of which a thread writes while the other half is filled; a copy of 32 values at a time, of one where it has 128 KiB or
  /// more. Other threads wait for a shard's mutex while up to 32 values are copied. Nothing stays in the page cache. One save or
  /// restore of a cache at a time: another waits. Any thread.
  ///
  /// - Parameters:
  ///   - path: of the file; its directory must exist. A temporary file beside it, `.NAME.PID.….tmp`, is gone when this returns;
  ///     what a killed save left there is removed. A symbolic link is replaced by the file.
  ///   - format: how values are written. Keys are written as they are `PurgeableValue`s.
  ///   - permissions: of the file, whatever the process's mask says.
  ///   - isSynchronized: false does not wait for the disk; a power cut may then leave neither file.
  ///   - progress: called about once a mebibyte, and now and then where nothing is written, between entries, with 0 to 1, under
  ///     no mutex; false cancels.
  /// - Throws: `PurgeableError` of kind `systemCallFailed`, `outOfMemory`, `cancelled`, `invalidArgument` (a path that names no
  ///   file), `busy` (from within `progress` or the format's closures). The old file stays then, and no temporary one is left.
  ///   Only where the directory cannot be brought to the disk, which the error says, the new file is in place.
  @discardableResult
  public func save(
    to path: String, format: StoredFormat<Value> = .purgeableBytes, permissions: UInt16 = 0o600, isSynchronized: Bool = true,
    progress: ((Double) -> Bool)? = nil
  ) throws(PurgeableError) -> FileReport {
    try saveInTurn(to: path, format, FileTerms(permissions: permissions, isSynchronized: isSynchronized), progress)
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

  func writeAll(
    to writer: inout CacheFileWriter, _ format: StoredFormat<Value>, _ steps: inout ProgressSteps, _ report: inout FileReport
  ) throws(PurgeableError) {
    engine.shards.healIfChild()
    let total = Double(max(1, count))
    var walk = EntryWalk(engine.shards, isReversed: true)
    var (copies, tracked) = (EntryCopies(layout: form.layout), [Key]())
    var ranks: [(rank: EntryRank, isLarge: Bool)] = []
    var seen = 0
    while true {
      ranks.removeAll(keepingCapacity: true)
      copies.removeAll()
      tracked.removeAll(keepingCapacity: true)
      let goesOn = walk.visitNext(of: engine.shards) { held, found in
        let bound = min(held.heap.largeByteCount, MemoryReserve.ofLargeResults)
        let copied = copies.append(found.slot, in: held, payloadBelow: bound) { tracked.append($0.key(as: Key.self)) }
        if copied != .nothing { ranks.append((EntryRank(found.slot, in: held), copied == .key)) }
      }
      if walk.lacksMemory || copies.lacksMemory { throw PurgeableError.withoutMemory(in: "PurgeableCache.save") }
      if !goesOn { break }
      let times = FileTimes(clock: engine.base.clock, created: 0)
      for (i, (rank, isLarge)) in ranks.enumerated() {
        seen += 1
        if !isLarge {
          try copies.withEntry(i) { keyBytes, head, version, value throws(PurgeableError) in
            let record = rank.record(head, times)
            if format.isPlain, let keyBytes {
              // They are what the key writes in a file.
              try writer.append(record, key: keyBytes, version: version, value: value, &report)
            } else if let key = key(i, of: copies, tracked) {
              try write(key, version, value, record, to: &writer, format, &report)
            }
          }
        } else if let key = key(i, of: copies, tracked) {
          try writeLarge(key, rank, times, to: &writer, format, &report)
        }
        try steps.note(Double(seen) / total, at: writer.byteCount)
      }
      // Also where all of it was lost.
      try steps.note(min(1, Double(seen) / total), at: writer.byteCount)
    }
    report.noteLeftOut(of: walk.count)
  }

  /// Writes an entry whose value was too long to be copied under the mutex: it is read like any other, and is the one that was
  /// noted if nothing about it has changed meanwhile. Else it is tried again, and left out where it changes all the time.
  private func writeLarge(
    _ key: Key, _ rank: EntryRank, _ times: FileTimes, to writer: inout CacheFileWriter, _ format: StoredFormat<Value>,
    _ report: inout FileReport
  ) throws(PurgeableError) {
    func peeked() -> PeekedEntry? {
      withEntry(key) { engineKey, prefix, held in held.peeked(engineKey, prefix, digests: false) } ?? nil
    }
    for _ in 0..<8 {
      guard let before = peeked() else { return }
      var text = InlineArray<255, UInt8>(repeating: 0)
      var copied: Int? = 0
      if before.head.version != nil {
        copied = withEntry(key) { engineKey, prefix, held in held.copyVersion(engineKey, prefix, into: &text) } ?? nil
      }
      guard let textByteCount = copied,
        let bytes = unsafe lookUpBytes({ unsafe read(key, into: $0, countsAsUse: false) }), peeked() == before
      else { continue }
      let version = unsafe text.span.bytes.extracting(0..<textByteCount)
      return try write(
        key, before.head.version == nil ? nil : version, unsafe bytes.span.bytes, rank.record(before.head, times), to: &writer,
        format, &report)
    }
    report.skip("\(key)", because: "it was changed over and over, or there is no memory for a copy of it")
  }

  /// Writes one entry. `version`: its text. `record`: what is saved of it beside its bytes.
  private func write(
    _ key: Key, _ version: RawSpan?, _ value: RawSpan, _ record: FileRecord,
    to writer: inout CacheFileWriter, _ format: StoredFormat<Value>, _ report: inout FileReport
  ) throws(PurgeableError) {
    var record = record
    record.format = UInt32(format.version)
    if format.isPlain { return try writer.append(record, key: key, version: version, value: value, &report) }
    guard let decoded = Value(purgeableBytes: value) else {
      return report.skip("\(key)", because: "its value cannot be made of the bytes in memory")
    }
    guard let encoded = report.bytes(of: decoded, format, key) else { return }
    // The cost of a value that is written in other bytes counts all the same.
    record.cost = record.cost ?? UInt64(value.byteCount)
    try writer.append(record, key: key, version: version, value: unsafe encoded.span.bytes, &report)
  }
}

extension EntryRank {
  fileprivate init(_ slot: Slot, in held: borrowing HeldShard) {
    priority = held.priority(of: slot)
    isMain = held.heap.queue(at: slot.place) == .main
    useCount = slot.counter
    lastUse = held.lastUse(of: slot)
  }

  fileprivate func record(_ head: EntryHead, _ times: FileTimes) -> FileRecord {
    var record = FileRecord()
    (record.priority, record.isMain, record.useCount) = (priority, isMain, useCount)
    (record.cost, record.recomputeCost, record.sinceLastUse) = (head.cost, head.recomputeCost, head.sinceLastUse)
    record.deadline = head.deadline.map(times.wall)
    record.made = head.made.map(times.birthByDay)
    if head.sinceLastUse != nil { record.lastUse = lastUse.map { times.wall($0.moment(asOf: times.now)) } }
    return record
  }
}
