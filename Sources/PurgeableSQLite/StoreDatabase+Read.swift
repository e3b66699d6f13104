// SPDX-License-Identifier: MIT
// Reads: of what waits to be written, then of the database.

#if SQLite
  import Glibc
  import Purgeable
  import Synchronization

  extension StoreDatabase {
    /// What a key's value is now, in whatever state of being written, and the number of its last change. Waits for the disk.
    func read(_ key: StoreKey) -> (record: StoredRecord?, number: UInt32) {
      guard isOurs else { return (nil, 0) }
      let (answer, number) = waitingAnswer(key)
      return (lookUp(key.bytes, answer), number)
    }

    func noteLookUp(isHit: Bool) {
      if isHit { hitCount.add(1, ordering: .relaxed) } else { missCount.add(1, ordering: .relaxed) }
    }

    private func lookUp(_ key: [UInt8], _ answer: Changes.Answer) -> StoredRecord? {
      let now = self.now()
      switch answer {
      case .put(let record): return record.expires.map { $0 > now } ?? true ? record : nil
      case .nothing: return nil
      case .unchanged: break
      }
      do {
        var damage: ReadRow?
        // What is damaged is read again: a file may have gone with its record, in whose place there is another.
        while true {
          guard let found = try readers.withReader({ (reader) throws(StoreFailure) in try reader.read(key) }), var found else {
            return nil
          }
          // The deadline is under the record's sum, and what follows from the last use is not.
          if [found.expires, found.record.deadline].contains(where: { $0.map { $0 <= now } ?? false }) { return nil }
          if let file = found.file { found.record.value = try folder.readValue(file, byteCount: found.valueByteCount) ?? [] }
          let row = ReadRow(id: found.id, sum: found.sum, file: found.file)
          guard found.record.sum(key) == found.sum else {
            if damage == row { return reject(row) }
            damage = row
            continue
          }
          found.record.row = row
          found.record.beginAnew(ifAheadOf: now)
          noteRead(found, at: now)
          return found.record
        }
      } catch {
        fail(error)
        return nil
      }
    }

    private func waitingAnswer(_ key: StoreKey) -> (Changes.Answer, number: UInt32) {
      mutex.withLock {
        let number = changeNumbers[key]
        // What waits here is written by now, or never: changes that came since are in memory alone.
        if isEnded { return (.nothing, number) }
        for changes in [waiting, writing] {
          let answer = changes.answer(key)
          if case .unchanged = answer { continue }
          return (answer, number)
        }
        return (isOffUntil > 0 ? .nothing : .unchanged, number)
      }
    }

    /// A value that is not what was written is none, and goes.
    private func reject(_ damage: ReadRow) -> StoredRecord? {
      noteFailure(.invalidFile, "a record is not what was written, and goes")
      mutex.withLock {
        damaged.insert(damage)
        mutex.signal()
      }
      return nil
    }

    /// A failure of one value. `isNews`: of one that was to be written.
    func noteFailure(_ kind: PurgeableError.Kind, _ explanation: String, isNews: Bool = false) {
      noteFailure(PurgeableError(kind, in: "PurgeableStore '\(name)'", explanation: explanation), isNews: isNews)
    }

    /// A forked child has no database to count it for, and somebody may have held the mutex.
    private func noteFailure(_ error: PurgeableError, isNews: Bool = false) {
      if isOurs { mutex.withLock { count(error, isNews: isNews) } }
    }

    private func noteRead(_ found: StoreReader.Found, at now: Int64) {
      // The page of a row; those of the indexes are the same again and again. A value's file leaves none.
      noteReadBytes(Schema.pageByteCount + (found.file == nil ? found.record.value.count : 0))
      let isLate = now - found.record.used >= min(touchStep.load(ordering: .relaxed), (found.record.idle ?? .max) / 16)
      guard isLate || found.record.idle != nil else { return }
      mutex.withLock {
        if let idle = found.record.idle { noteIdle(idle) }
        guard isLate else { return }
        touches[found.id] = now
        if touchedSince == nil { touchedSince = MonotonicTime.now }
        if touches.count == 1 || touches.count == Self.touchBatchCount { mutex.signal() }
      }
    }

    /// The kernel keeps what is read and written in the page cache, and takes what caches have on offer for it. So the pages are
    /// given up when they may be a 128th of what memory there is: often enough, and seldom enough for those of the indexes to be
    /// of use. Those of a database that is smaller than that stay, until nothing was written for a while.
    func noteReadBytes(_ byteCount: Int) {
      let sum = readByteCount.add(byteCount, ordering: .relaxed).newValue
      guard sum >= mostReadBytes.load(ordering: .relaxed), readByteCount.exchange(0, ordering: .relaxed) >= sum else { return }
      let most = Self.mostReadBytes()
      mostReadBytes.store(most, ordering: .relaxed)
      if StoreFolder.byteCount(folder.database) >= most, let file = FileNumber(of: folder.database) {
        OpenDatabases.shared.giveUpPages(file)
      }
    }

    static func mostReadBytes() -> Int { max(8 << 20, Int(clamping: ProcessMemory.limit() / 128)) }

    func has(_ key: StoreKey) -> Bool {
      guard isOurs else { return false }
      let now = self.now()
      switch waitingAnswer(key).0 {
      case .put(let record): return record.expires.map { $0 > now } ?? true
      case .nothing: return false
      case .unchanged: break
      }
      do {
        return try readers.withReader { (reader) throws(StoreFailure) in try reader.has(key.bytes, at: now) } ?? false
      } catch {
        fail(error)
        return false
      }
    }

    func fail(_ failure: StoreFailure) {
      noteFailure(PurgeableError(failure, in: "PurgeableStore '\(name)'"))
      // A reader that misses its tables reads a file that is none of ours.
      let isDamage = failure.isDamage || failure.isOfSchema
      guard isDamage || failure.isOfFiles || failure.isGone else { return }
      mutex.withLock {
        if isDamage { isDamaged = true } else { isSuspect = true }
        mutex.signal()
      }
    }
  }
#endif
