// SPDX-License-Identifier: MIT
// The writer's thread: when it writes, what it does when that fails, and upkeep.

#if SQLite
  import Glibc
  import Purgeable

  extension StoreDatabase {
    // MARK: Work

    private struct Work {
      var changes = Changes()
      var touches: [Int64: Int64] = [:]
      var damaged: Set<ReadRow> = []
      var requests: [Request] = []
      var isDamaged = false
      var asksForUses = false
      /// There is nothing to do, and has not been for a while.
      var isIdle = false

      var isEnd: Bool { requests.contains { if case .end = $0.kind { true } else { false } } }
    }

    func run() {
      ThreadRole.enterLibrary()
      mutex.withLock { thread = pthread_self() }
      while true {
        let work = awaitWork()
        perform(work)
        guard work.isEnd else { continue }
        let late = mutex.withLock {
          (isClosed, thread) = (true, nil)
          return exchange(&requests, with: [])
        }
        for request in late { request.done(.success(0)) }
        return
      }
    }

    private func awaitWork() -> Work {
      mutex.withLock {
        while true {
          let now = MonotonicTime.now
          if !requests.isEmpty { return takeWork() }
          let pause = max(isOffUntil, restsUntil)
          if pause > now {
            _ = mutex.wait(until: pause)
            continue
          }
          if !damaged.isEmpty || isDamaged || isSuspect || isOffUntil > 0 { return takeWork() }
          let isBatch = waiting.byKey.count >= Self.batchCount || waiting.byteCount >= Self.batchByteCount
          var due = waitingSince.map { $0 + (isBatch ? 0 : limits.writeInterval) } ?? .max
          due = min(due, touchedSince.map { $0 + (touches.count >= Self.touchBatchCount ? 0 : Self.touchInterval) } ?? .max)
          if due <= now { return takeWork() }
          let asking = nextAsking(after: now)
          if asking <= now {
            var work = takeWork()
            work.asksForUses = true
            return work
          }
          due = min(due, asking)
          let wall = self.now()
          if let nextExpiry {
            // Together with others that end soon.
            if nextExpiry <= wall { return takeWork() }
            due = min(due, now + UInt64(nextExpiry - wall) + 1_000_000_000)
          }
          let isWaiting = due
          if !isTidy { due = min(due, now + tidyPause) }
          let isSignalled = mutex.wait(until: due == .max ? nil : due)
          if !isSignalled, !isTidy, isWaiting > MonotonicTime.now { return Work(isIdle: true) }
        }
      }
    }

    /// Under the mutex.
    private func nextAsking(after now: UInt64) -> UInt64 {
      let interval = min(Self.mostAskingInterval, UInt64(max(250_000_000, shortestIdle / 4)))
      return lastAsking + max(interval, min(Self.askingPause * askingTime, UInt64(shortestIdle / 2)))
    }

    private func takeWork() -> Work {
      // As many come again, perhaps.
      writing = exchange(&waiting, with: Changes(capacity: min(waiting.byKey.count, Self.batchCount)))
      isCrowded.store(false, ordering: .relaxed)
      waitingSince = nil
      let work = Work(
        changes: writing, touches: exchange(&touches, with: [:]), damaged: exchange(&damaged, with: []),
        requests: exchange(&requests, with: []), isDamaged: exchange(&isDamaged, with: false))
      (touchedSince, isSuspect) = (nil, false)
      return work
    }

    private func perform(_ work: Work) {
      if work.isIdle { return tidyUp() }
      (isTidy, tidyPause) = (false, Self.idleTime)
      // Where it is not open, or not in its place, another one may be there by now.
      if work.isDamaged, isInPlace, writer?.hasItsNames ?? true {
        _ = mend(StoreFailure(code: StoreFailure.damageCode, call: "sqlite3_step", message: "a page is damaged"))
      }
      expiredCount = 0
      var failure = writeAll(work)
      var counts = [Int](repeating: 0, count: work.requests.count)
      for (i, request) in work.requests.enumerated() where failure == nil {
        do throws(StoreFailure) { counts[i] = try answerWithRoom(request.kind) } catch {
          failure = error
          if error.isDamage || error.isHeldUp { _ = mend(error) }
        }
      }
      if failure == nil, !hasReserve { remakeReserve() }
      if let writer { noteNumbers(of: writer) }
      let first = failure.map { PurgeableError($0, in: "PurgeableStore '\(name)'") }
      let isTold = work.requests.contains { $0.tellsAll }
      let known = mutex.withLock { () -> PurgeableError? in
        // What passes is news for who waits for it only: what waited is written later.
        if let first { count(first, isNews: isTold || failure?.passes != true) }
        return isTold ? exchange(&firstFailure, with: nil) : nil
      }
      if work.isEnd { closeAll() }
      for (i, request) in work.requests.enumerated() {
        let failure = request.tellsAll ? known : first
        request.done(failure.map { .failure($0) } ?? .success(counts[i]))
      }
      // A store that is never idle is tidied all the same.
      if failure == nil, !work.isEnd, MonotonicTime.now - tidiedAt >= Self.mostUntidyTime { tidyUp() }
    }

    /// Writes what waits, and keeps the limits. Where it cannot, what waited has been given up.
    private func writeAll(_ work: Work) -> StoreFailure? {
      var (batch, work, tries) = (work.changes, work, 0)
      var writesUses = work.asksForUses || work.isEnd
      while true {
        do throws(StoreFailure) {
          try reopenIfGone()
          guard let writer else { throw StoreFailure(call: "open", message: "the database is not open") }
          if !work.changes.isEmpty {
            try writer.write(work.changes)
            putsSinceAsking += work.changes.putCount
            mutex.withLock {
              numbers.writeCount += work.changes.byKey.count
              writing = Changes()
            }
            work.changes = Changes()
          }
          if !work.damaged.isEmpty { try writer.remove(work.damaged) }
          if !work.touches.isEmpty { try writer.write(touches: work.touches) }
          if writesUses { try writeUses(writer) }
          try keepLimits(writer)
          try writer.checkpointIfLong()
          noteReadBytes(writer.takeWrittenBackBytes())
          mutex.withLock { isOffUntil = 0 }
          return nil
        } catch {
          if error.isFull, removeDamaged() { continue }
          // What is there already, and when it was used, is worth no other record.
          if error.isFull, work.changes.forgetRewritings() {
            batch = work.changes
            mutex.withLock { writing = batch }
            continue
          }
          if error.isFull, writesUses || !work.touches.isEmpty {
            (writesUses, work.touches) = (false, [:])
            continue
          }
          if error.isFull, giveUpTooLarge(&work.changes, error) {
            batch = work.changes
            continue
          }
          tries += 1
          if tries <= (error.isFull ? Self.roomTryCount : 1),
            let mended = error.isGone ? .begunAnew : mend(error, isFirst: tries == 1)
          {
            if mended == .begunAnew {
              // Rows of a database that is there no more; and with it went what was just written.
              (work.touches, work.damaged, work.changes) = ([:], [], batch)
              mutex.withLock { writing = batch }
            }
            continue
          }
          giveUp(error)
          return error
        }
      }
    }

    private func keepLimits(_ writer: StoreWriter) throws(StoreFailure) {
      let now = self.now()
      if let next = nextExpiry, next <= now {
        // The rest a second later.
        expiredCount += try writer.removeExpired(at: now) { isFree }
        expiredAt = now
      }
      // Not again at once, whatever is in its place.
      nextExpiry = try writer.nextExpiry().map { max($0, min(expiredAt, now) + 1_000_000_000) }
      touchStep.store(try writer.touchStep(at: now), ordering: .relaxed)
      func upper(_ limit: Int64) -> Int64 { limit == .max ? .max : limit - limit / 20 }
      func lower(_ limit: Int64) -> Int64 { limit == .max ? .max : limit - limit / 10 }
      if writer.total.byteCount > upper(limits.byteCount) || writer.total.recordCount > upper(limits.recordCount) {
        // What was used then is not yet among the oldest.
        if putsSinceAsking >= writer.total.recordCount / 4 { try writeUses(writer) }
        expiredCount += try writer.removeExpired(at: now)
        try writer.evict(at: now, toBytes: lower(limits.byteCount), count: lower(limits.recordCount))
      }
    }

    /// Writes what was used in memory since the last time.
    private func writeUses(_ writer: StoreWriter) throws(StoreFailure) {
      let start = MonotonicTime.now
      defer {
        lastAsking = MonotonicTime.now
        (askingTime, putsSinceAsking) = (lastAsking - start, 0)
      }
      let (since, moment, now) = (usesAskedAt, uses.moment(), self.now())
      var found: [([UInt8], Int64)] = []
      var failure: StoreFailure?
      func write() -> Bool {
        do throws(StoreFailure) { try writer.write(uses: found) } catch { failure = error }
        found.removeAll(keepingCapacity: true)
        return failure == nil
      }
      uses.forEachKey(since) { key, age in
        found.append((key, now - Int64(clamping: age)))
        return found.count < Self.batchCount || write()
      }
      if failure == nil, !found.isEmpty { _ = write() }
      if let failure { throw failure }
      usesAskedAt = moment
      // It rises again when nothing expires any more.
      let expires = try writer.nextExpiry() != nil
      mutex.withLock { if !expires, waiting.isEmpty, writing.isEmpty { shortestIdle = .max } }
    }

    /// Even what removes has to be written.
    private func answerWithRoom(_ kind: Request.Kind) throws(StoreFailure) -> Int {
      var tries = 0
      while true {
        do throws(StoreFailure) { return try answer(kind) } catch {
          tries += 1
          guard error.isFull, tries <= Self.roomTryCount, mend(error, isFirst: tries == 1) != nil else { throw error }
        }
      }
    }

    private func answer(_ kind: Request.Kind) throws(StoreFailure) -> Int {
      guard let writer else { return 0 }
      switch kind {
      case .flush, .removeAll, .end:
        try writer.synchronize()
        try writer.checkPlace()
      case .trim(let byteCount):
        try writeUses(writer)
        try writer.evict(at: now(), toBytes: byteCount, count: .max)
      case .removeExpired: return try exchange(&expiredCount, with: 0) + writer.removeExpired(at: self.now())
      }
      return 0
    }

    // MARK: Upkeep and mending

    /// Nothing waits to be written, and nobody for an answer.
    private var isFree: Bool { mutex.withLock { waitingSince == nil && requests.isEmpty } }

    /// When nothing has been written for a while. Where somebody else is in the way, it is tried again, after longer and longer
    /// pauses.
    private func tidyUp() {
      (isTidy, tidiedAt) = (true, MonotonicTime.now)
      // Another folder may be in its place: what is written next finds out.
      guard let writer, let file, isInPlace, writer.hasItsNames else { return }
      do throws(StoreFailure) {
        if sweptAt.map({ tidiedAt - $0 >= Self.sweepInterval }) ?? true {
          folder.removeDamaged()
          try writer.sweepFiles()
          try writer.countAnew()
          sweptAt = tidiedAt
        }
        try writer.vacuum { isFree }
        isTidy = try writer.cutLog() && isFree
      } catch {
        if error.isBusy { isTidy = false } else { fail(error) }
      }
      if !isTidy { tidyPause = min(2 * tidyPause, Self.mostUntidyTime) }
      makeReserve()
      writer.connection.releaseMemory()
      readers.releaseMemory()
      OpenDatabases.shared.giveUpPages(file)
    }

    /// Somebody has removed the database or what is beside it, or put something else in its place.
    private func reopenIfGone() throws(StoreFailure) {
      if let writer, isInPlace, folder.hasLock, writer.hasItsNames { return }
      readers.reopen()
      try folder.prepare()
      if let writer, isInPlace {
        do throws(StoreFailure) {
          if try !writer.rescueLog() { noteLostLog("another process has begun another one") }
        } catch {
          // It is not lost yet.
          if error.passes { throw error }
          noteLostLog(error.message)
        }
      } else if let writer, !writer.disk.isSynchronized {
        noteLoss(StoreFailure(isGone: true, call: "stat", message: "somebody has put it aside or removed it"), isNews: true)
      }
      closeWriter(isGone: !isInPlace)
      readers.reopen(isMade: false)
      // A connection of this process would share the old log's memory with the new ones.
      readers.awaitNone()
      try reopen()
    }

    private func noteLostLog(_ why: String) {
      noteFailure(
        .invalidFile, "somebody has removed the log, with what was not in the database yet: \(why)", isNews: true)
    }

    private func reopen() throws(StoreFailure) {
      try openWriter(again: true)
      readers.reopen()
      (nextExpiry, sweptAt) = (0, nil)
      // They are of what was there before.
      mutex.withLock { (touches, touchedSince, damaged, isDamaged) = ([:], nil, [], false) }
    }

    /// Whether there is more room on the disk for it.
    private func removeDamaged() -> Bool {
      let count = folder.damagedCount
      if count > 0 { folder.removeDamaged() }
      return folder.damagedCount < count
    }

    /// Gives up the values that find no room on the disk unless too many others go for them. Whether there were any.
    private func giveUpTooLarge(_ changes: inout Changes, _ failure: StoreFailure) -> Bool {
      guard let writer else { return false }
      let most = max(folder.roomByteCount, StoreLimits.mostRecordBytes(of: writer.total.byteCount))
      // A row is in the log first.
      let count = changes.forgetValues { Int64($0.value.count) * ($0.value.count > limits.fileThreshold ? 1 : 2) > most }
      if count == 0 { return false }
      let error = PurgeableError(
        .systemCallFailed(call: failure.call), in: "PurgeableStore '\(name)'", errorNumber: failure.errorNumber,
        explanation: "a value is not written: the disk is full, and more than an eighth of the records would have to go for it")
      mutex.withLock {
        writing = changes
        for _ in 0..<count { self.count(error, isNews: true) }
      }
      return true
    }

    /// From what is left of the room that was made, and from what the database does not need.
    private func remakeReserve() {
      try? writer?.vacuum(cutsLog: true)
      _ = try? writer?.cutLog()
      makeReserve()
    }

    private func makeReserve() {
      folder.makeReserve()
      hasReserve = true
    }

    private enum Mended { case madeRoom, begunAnew }

    /// nil where another try would not go better.
    private func mend(_ failure: StoreFailure, isFirst: Bool = false) -> Mended? {
      do throws(StoreFailure) {
        if failure.isDamage, let writer, isInPlace, !writer.hasItsNames {
          // Another process has the database open by other files of these names, and writes what this one reads.
          try reopenIfGone()
          return .begunAnew
        }
        if failure.isDamage || failure.isHeldUp {
          try beginAnew(failure, makesRoom: false)
          return .begunAnew
        }
        if failure.isFull, let writer {
          // Even what is removed has to be written first.
          folder.giveReserveUp()
          hasReserve = false
          // Where the log was long its room will do, and no record has to leave.
          let isLong = folder.logByteCount > 2 * StoreFolder.reserveByteCount
          if try !writer.cutLog() || !isFirst || !isLong {
            try writer.evict(at: now(), toBytes: writer.total.byteCount / 4 * 3, count: .max, cutsLog: true)
            try writer.vacuum(cutsLog: true)
            try writer.cutLog()
          }
          return .madeRoom
        }
      } catch {
        // A log that cannot be written back for want of room takes it from all else.
        guard failure.isFull, error.isFull, folder.logByteCount > StoreFolder.reserveByteCount else {
          return nil
        }
        do throws(StoreFailure) {
          try beginAnew(error, makesRoom: true)
          return .begunAnew
        } catch { return nil }
      }
      return nil
    }

    /// With a new database; the old one is put aside, and deleted later, or now.
    private func beginAnew(_ failure: StoreFailure, makesRoom: Bool) throws(StoreFailure) {
      readers.reopen(isMade: false)
      let damaged = file
      closeWriter(isGone: true)
      try folder.locked { () throws(StoreFailure) in try folder.putAside(damaged: damaged) }
      noteLoss(failure, isNews: true)
      if makesRoom { folder.removeDamaged() }
      try folder.prepare()
      try reopen()
    }

    /// What could not be written stays waiting: where somebody else is at work, or something is short for a while, as it is; else
    /// as removals, and nothing is read or written for a minute.
    private func giveUp(_ failure: StoreFailure) {
      mutex.withLock {
        var rest = exchange(&writing, with: Changes())
        if failure.passes {
          if !failure.isBusy || writer == nil { restsUntil = MonotonicTime.now + Self.passingTime }
          // Without a database nothing is read; so it is opened again soon, whether anything waits or not.
          isSuspect = isSuspect || writer == nil
        } else {
          rest.forgetRewritings()
          numbers.failureCount += max(0, rest.putCount - 1)
          rest.forgetValues()
          isOffUntil = MonotonicTime.now + Self.retryTime
        }
        isCrowded.store(false, ordering: .relaxed)
        waiting.follow(rest)
        if !waiting.isEmpty, waitingSince == nil { waitingSince = MonotonicTime.now }
      }
      if failure.isDamage { closeWriter() }
    }
  }
#endif
