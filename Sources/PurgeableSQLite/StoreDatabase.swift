// SPDX-License-Identifier: MIT The database of a store: what waits to be written, the thread that writes it, and reads that see
// both. Keys and values are bytes here.
//
//   put, remove --> waiting --(a batch: 1,000 changes, 4 MiB, or the interval)--> writing --COMMIT--> the database
//   read            looks there first                                   then here               then here
//
// So a read never finds an older value than the last one that was put. Where a batch cannot be written, its values are given up,
// and the removals of their keys stay waiting until they can be: an old value in the database stays out of sight.
//
// One mutex, held for a few steps; nobody waits for the disk under it. The writer's thread is the only one that writes. Nothing
// waits for it but `flush` and its like: where more than 32 MiB wait to be written, values are given up instead.
//
// A forked child has no database: SQLite must not be used in it, not even to close what is open. It finds nothing, and its
// changes are dropped.

#if SQLite
  import Glibc
  import Purgeable
  import Synchronization

  /// What memory knows of uses. Hits there tell nobody: it is asked now and then.
  struct MemoryUses: Sendable {
    /// The moment to ask for uses since.
    let moment: @Sendable () -> UInt64
    /// Calls the closure for the keys that were used since a moment, with the nanoseconds since their last use, until it returns
    /// false.
    let forEachKey: @Sendable (_ moment: UInt64, _ body: ([UInt8], UInt64) -> Bool) -> Void
  }

  /// A row whose value is not what was written, as long as it is the same row.
  struct Damage: Hashable, Sendable {
    let id: Int64
    let sum: Int64
  }

  struct StoreLimits: Sendable {
    var byteCount = Int64.max
    var recordCount = Int64.max
    var fileThreshold = 128 << 10
    /// Nanoseconds.
    var writeInterval: UInt64 = 1_000_000_000

    /// One value must not make all others go.
    var mostRecordBytes: Int64 { byteCount == .max ? .max : byteCount / 8 }
  }

  /// `@unchecked Sendable`: what changes is under the mutex, or is the writer's thread's own.
  final class StoreDatabase: @unchecked Sendable {
    let name: String
    let folder: StoreFolder
    private let limits: StoreLimits
    /// Nanoseconds since 1970.
    let now: @Sendable () -> Int64
    private let uses: MemoryUses
    private let process = getpid()
    private let readers: ReaderPool

    private static let batchCount = 1000
    private static let batchByteCount = 4 << 20
    private static let mostWaitingBytes = 32 << 20
    private static let mostRemovals = 65_536
    private static let touchBatchCount = 20_000
    private static let touchInterval: UInt64 = 60_000_000_000
    /// How often memory is asked for uses: before records are evicted, at most once in the first; else once in the second, or in
    /// a quarter of the shortest time that a record expires after its last use.
    private static let leastAskingInterval: UInt64 = 60_000_000_000
    private static let mostAskingInterval: UInt64 = 3_600_000_000_000
    private static let retryTime: UInt64 = 60_000_000_000
    private static let idleTime: UInt64 = 5_000_000_000

    // MARK: Under the mutex

    private let mutex = WaitableMutex()
    private var waiting = Changes()
    private var writing = Changes()
    private var changeNumbers = ChangeNumbers()
    /// When the oldest change came that waits; and the oldest touch.
    private var waitingSince: UInt64?
    private var touchedSince: UInt64?
    /// Moments of use by row.
    private var touches: [Int64: Int64] = [:]
    private var damaged: Set<Damage> = []
    private var requests: [Request] = []
    /// A reader has found a page that cannot be.
    private var isDamaged = false
    /// Nothing is read or written until then; 0 where all is well.
    private var isOffUntil: UInt64 = 0
    /// The shortest time since its last use after which a record expires that was stored or read here.
    private var shortestIdle = Int64.max
    private var isEnded = false
    /// The thread has ended.
    private var isClosed = false
    private var hasThread = false
    private var firstFailure: PurgeableError?
    private var numbers = PurgeableStoreStatistics()

    private struct Request {
      enum Kind {
        case flush, removeExpired, end
        case trim(Int64)
      }
      let kind: Kind
      let done: (Result<Int, PurgeableError>) -> Void
    }

    let hitCount = Atomic<Int>(0)
    let missCount = Atomic<Int>(0)
    let convertedCount = Atomic<Int>(0)
    private let readByteCount = Atomic<Int>(0)
    private let mostReadBytes = Atomic<Int>(StoreDatabase.mostReadBytes())

    // MARK: Of the writer's thread

    private var writer: StoreWriter?
    private var file: FileNumber?
    /// Up to when memory's uses are in the database, by its clock; and when it was asked, by the monotonic one.
    private var usesAskedAt: UInt64
    private var lastAsking: UInt64 = 0
    /// Wall time of the next expiry; nil: none is known.
    private var nextExpiry: Int64?
    private var isTidy = false
    private var hasSwept = false

    // MARK: Opening and ending

    init(
      _ name: String, _ folder: StoreFolder, _ limits: StoreLimits, _ uses: MemoryUses, now: @escaping @Sendable () -> Int64,
      operation: String
    ) throws(PurgeableError) {
      (self.name, self.folder, self.limits, self.uses, self.now) = (name, folder, limits, uses, now)
      usesAskedAt = uses.moment()
      readers = ReaderPool(folder)
      do { try openWriter() } catch { throw PurgeableError(error, in: operation) }
      hasThread = true
      nextExpiry = 0
      if !startThread({ [self] in run() }) {
        closeAll()
        throw PurgeableError(
          .systemCallFailed(call: "pthread_create"), in: operation,
          explanation: "no thread can be made; raise the process's limits")
      }
    }

    var isOurs: Bool { getpid() == process }

    /// Opens the database, and puts one that is damaged aside.
    private func openWriter() throws(StoreFailure) {
      var hasMended = false
      while true {
        do throws(StoreFailure) {
          if OpenDatabases.shared.isInherited(folder.database) {
            throw StoreFailure(
              number: ENOTSUP, call: "fork",
              message: "this process was forked while \(folder.path) was open, and cannot open it: start another program (exec)")
          }
          let made = try folder.locked { () throws(StoreFailure) in
            try StoreWriter(folder, fileThreshold: limits.fileThreshold)
          }
          guard let file = OpenDatabases.shared.add(folder.database) else {
            throw .system("open", "\(folder.database) cannot be opened")
          }
          (writer, self.file) = (made, file)
          note(made.total)
          return
        } catch {
          guard error.isDamage, !hasMended else { throw error }
          hasMended = true
          try folder.locked { () throws(StoreFailure) in try folder.putAside() }
        }
      }
    }

    private func closeWriter() {
      writer = nil
      if let file { OpenDatabases.shared.remove(file) }
      file = nil
    }

    private func closeAll() {
      readers.end()
      closeWriter()
    }

    private func note(_ total: Total) {
      mutex.withLock { (numbers.recordCount, numbers.byteCount) = (Int(total.recordCount), Int(total.byteCount)) }
    }

    // MARK: Changes

    /// From now on reads answer this. Called under mutexes of the cache. `number`: false, and nothing changes, where the key has
    /// changed since.
    @discardableResult
    func change(_ key: [UInt8], _ change: Change, ifUnchangedSince number: UInt32? = nil) -> Bool {
      guard isOurs else { return true }
      return mutex.withLock {
        guard !isEnded else { return true }
        if let number, number != changeNumbers[key] { return false }
        changeNumbers.raise(key)
        var change = change
        if case .put(let record) = change {
          let byteCount = StoredRecord.size(key, record.value.count)
          let isWanted = Int64(byteCount) <= limits.mostRecordBytes
          // One that is longer than all that may wait, waits alone.
          let waitingBytes = waiting.valueBytes + writing.valueBytes
          let hasRoom = waitingBytes == 0 || waitingBytes + byteCount <= Self.mostWaitingBytes
          if isWanted && !hasRoom { numbers.failureCount += 1 }
          if isWanted && hasRoom { record.idle.map(noteIdle) } else { change = .removal }
        }
        waiting.set(change, key)
        // One removal in place of many.
        if waiting.removalBytes > Self.mostWaitingBytes || isOffUntil > 0 && waiting.byKey.count > Self.mostRemovals {
          waiting.clear()
        }
        noteWaiting()
        return true
      }
    }

    /// Another one after each change of the key.
    func changeNumber(of key: [UInt8]) -> UInt32 { isOurs ? mutex.withLock { changeNumbers[key] } : 0 }

    func isUnchanged(_ key: [UInt8], since number: UInt32) -> Bool { changeNumber(of: key) == number }

    func removeAll() {
      guard isOurs else { return }
      mutex.withLock {
        if isEnded { return }
        changeNumbers.raiseAll()
        waiting.clear()
        noteWaiting()
      }
    }

    /// Under the mutex.
    private func noteIdle(_ time: Int64) {
      guard time < shortestIdle else { return }
      shortestIdle = time
      mutex.signal()
    }

    /// Under the mutex. The thread is woken for the first change, and for a whole batch.
    private func noteWaiting() {
      let isFirst = waitingSince == nil
      if isFirst { waitingSince = MonotonicTime.now }
      if isFirst || waiting.byKey.count == Self.batchCount || waiting.byteCount >= Self.batchByteCount { mutex.signal() }
    }

    // MARK: Reading

    /// What a key's value is now, in whatever state of being written, and the number of its last change. Waits for the disk.
    func read(_ key: [UInt8]) -> (record: StoredRecord?, number: UInt32) {
      guard isOurs else { return (nil, 0) }
      let (answer, number) = waitingAnswer(key)
      let record = lookUp(key, answer)
      if record == nil { missCount.add(1, ordering: .relaxed) } else { hitCount.add(1, ordering: .relaxed) }
      return (record, number)
    }

    private func lookUp(_ key: [UInt8], _ answer: Changes.Answer) -> StoredRecord? {
      let now = self.now()
      switch answer {
      case .put(let record): return record.expires.map { $0 > now } ?? true ? record : nil
      case .nothing: return nil
      case .unchanged: break
      }
      do {
        var damage: Damage?
        // What is damaged is read again: a file may have gone with its record, in whose place there is another.
        while true {
          guard let found = try readers.withReader({ (reader) throws(StoreFailure) in try reader.read(key) }), var found else {
            return nil
          }
          if let expires = found.expires, expires <= now { return nil }
          if let file = found.file { found.record.value = try folder.readValue(file, byteCount: found.valueByteCount) ?? [] }
          guard found.record.sum(key) == found.sum else {
            let seen = Damage(id: found.id, sum: found.sum)
            if damage == seen { return reject(seen) }
            damage = seen
            continue
          }
          // A clock that was set back gives no record a longer life than it began with.
          if let idle = found.record.idle, found.record.used > now {
            found.record.deadline = min(found.record.deadline ?? .max, now + idle)
          }
          noteRead(found, at: now)
          return found.record
        }
      } catch {
        fail(error)
        return nil
      }
    }

    private func waitingAnswer(_ key: [UInt8]) -> (Changes.Answer, number: UInt32) {
      mutex.withLock {
        let number = changeNumbers[key]
        for changes in [waiting, writing] {
          let answer = changes.answer(key)
          if case .unchanged = answer { continue }
          return (answer, number)
        }
        return (isEnded || isOffUntil > 0 ? .nothing : .unchanged, number)
      }
    }

    /// A value that is not what was written is none, and goes.
    private func reject(_ damage: Damage) -> StoredRecord? {
      mutex.withLock {
        damaged.insert(damage)
        numbers.failureCount += 1
        mutex.signal()
      }
      return nil
    }

    private func noteRead(_ found: StoreReader.Found, at now: Int64) {
      noteReadBytes(found.record.value.count + 2 * Schema.pageByteCount)
      // A minute more or less decides nothing, unless its time is short.
      let isLate = now - found.record.used > min(60_000_000_000, (found.record.idle ?? .max) / 16)
      guard isLate || found.record.idle != nil else { return }
      mutex.withLock {
        if let idle = found.record.idle { noteIdle(idle) }
        guard isLate else { return }
        touches[found.id] = now
        if touchedSince == nil { touchedSince = MonotonicTime.now }
        if touches.count == 1 || touches.count == Self.touchBatchCount { mutex.signal() }
      }
    }

    /// The kernel keeps what is read in the page cache, and takes what caches have on offer for it. So the pages are given up
    /// when they may be a 128th of what memory there is: often enough, and seldom enough for those of the indexes to be of use.
    private func noteReadBytes(_ byteCount: Int) {
      let sum = readByteCount.add(byteCount, ordering: .relaxed).newValue
      guard sum >= mostReadBytes.load(ordering: .relaxed), readByteCount.exchange(0, ordering: .relaxed) >= sum else { return }
      mostReadBytes.store(Self.mostReadBytes(), ordering: .relaxed)
      if let file = FileNumber(of: folder.database) { OpenDatabases.shared.giveUpPages(file) }
    }

    private static func mostReadBytes() -> Int { max(8 << 20, Int(clamping: ProcessMemory.limit() / 128)) }

    func has(_ key: [UInt8]) -> Bool {
      guard isOurs else { return false }
      let now = self.now()
      switch waitingAnswer(key).0 {
      case .put(let record): return record.expires.map { $0 > now } ?? true
      case .nothing: return false
      case .unchanged: break
      }
      do {
        return try readers.withReader { (reader) throws(StoreFailure) in try reader.has(key, at: now) } ?? false
      } catch {
        fail(error)
        return false
      }
    }

    private func fail(_ failure: StoreFailure) {
      let error = PurgeableError(failure, in: "PurgeableStore '\(name)'")
      mutex.withLock {
        numbers.failureCount += 1
        numbers.lastError = error
        if failure.isDamage {
          isDamaged = true
          mutex.signal()
        }
      }
    }

    // MARK: Requests

    var statistics: PurgeableStoreStatistics {
      guard isOurs else { return PurgeableStoreStatistics() }
      var statistics = mutex.withLock { () -> PurgeableStoreStatistics in
        var numbers = numbers
        numbers.pendingCount = waiting.byKey.count + writing.byKey.count
        return numbers
      }
      statistics.hitCount = hitCount.load(ordering: .relaxed)
      statistics.missCount = missCount.load(ordering: .relaxed)
      statistics.convertedCount = convertedCount.load(ordering: .relaxed)
      return statistics
    }

    private func ask(_ kind: Request.Kind, in operation: String, _ done: @escaping (Result<Int, PurgeableError>) -> Void) {
      guard isOurs else {
        return done(
          .failure(
            PurgeableError(.notSupported, in: operation, explanation: "a forked child has no database: start another program")))
      }
      let isTaken = mutex.withLock { () -> Bool in
        if case .end = kind, !isClosed {
          // Another one has the thread end: it answers this one, too.
        } else if isEnded {
          return false
        }
        requests.append(Request(kind: kind, done: done))
        if case .end = kind { isEnded = true }
        mutex.signal()
        return true
      }
      if isTaken { return }
      if case .end = kind { return done(.success(0)) }
      done(.failure(PurgeableError(.notSupported, in: operation, explanation: "the store is closed")))
    }

    private func wait(_ kind: Request.Kind, in operation: String) throws(PurgeableError) -> Int {
      let waiter = RequestWaiter()
      ask(kind, in: operation) { waiter.end($0) }
      return try waiter.wait().get()
    }

    func flush(in operation: String) throws(PurgeableError) { _ = try wait(.flush, in: operation) }
    func trim(toBytes byteCount: Int, in operation: String) throws(PurgeableError) {
      _ = try wait(.trim(Int64(byteCount)), in: operation)
    }
    func removeExpired(in operation: String) throws(PurgeableError) -> Int { try wait(.removeExpired, in: operation) }
    func end(in operation: String) throws(PurgeableError) { _ = try wait(.end, in: operation) }

    nonisolated(nonsending) func flush(in operation: String) async throws(PurgeableError) {
      let result = await unsafe withUnsafeContinuation { (continuation: UnsafeContinuation<Result<Int, PurgeableError>, Never>) in
        // Safe: each request is answered once.
        ask(.flush, in: operation) { unsafe continuation.resume(returning: $0) }
      }
      _ = try result.get()
    }

    // MARK: The thread

    private struct Work {
      var changes = Changes()
      var touches: [Int64: Int64] = [:]
      var damaged: Set<Damage> = []
      var requests: [Request] = []
      var isDamaged = false
      var asksForUses = false
      /// There is nothing to do, and has not been for a while.
      var isIdle = false

      var isEnd: Bool { requests.contains { if case .end = $0.kind { true } else { false } } }
    }

    private func run() {
      while true {
        let work = awaitWork()
        perform(work)
        guard work.isEnd else { continue }
        let late = mutex.withLock {
          isClosed = true
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
          var due = UInt64.max
          func note(_ since: UInt64?, _ time: UInt64) { if let since { due = min(due, since + time) } }
          if !requests.isEmpty { return takeWork() }
          if isOffUntil > now {
            _ = mutex.wait(until: isOffUntil)
            continue
          }
          do {
            let isBatch = waiting.byKey.count >= Self.batchCount || waiting.byteCount >= Self.batchByteCount
            note(waitingSince, isBatch ? 0 : limits.writeInterval)
            note(touchedSince, touches.count >= Self.touchBatchCount ? 0 : Self.touchInterval)
            if !damaged.isEmpty || isDamaged || isOffUntil > 0 { due = now }
          }
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
          if !isTidy { due = min(due, now + Self.idleTime) }
          let isSignalled = mutex.wait(until: due == .max ? nil : due)
          if !isSignalled, !isTidy, isWaiting > MonotonicTime.now { return Work(isIdle: true) }
        }
      }
    }

    /// Under the mutex.
    private func nextAsking(after now: UInt64) -> UInt64 {
      if lastAsking == 0 { lastAsking = now }
      return lastAsking + min(Self.mostAskingInterval, UInt64(max(1_000_000_000, shortestIdle / 4)))
    }

    private func takeWork() -> Work {
      writing = exchange(&waiting, with: Changes())
      waitingSince = nil
      let work = Work(
        changes: writing, touches: exchange(&touches, with: [:]), damaged: exchange(&damaged, with: []),
        requests: exchange(&requests, with: []), isDamaged: exchange(&isDamaged, with: false))
      touchedSince = nil
      return work
    }

    private func perform(_ work: Work) {
      if work.isIdle { return tidyUp() }
      isTidy = false
      if work.isDamaged {
        _ = mends(StoreFailure(code: StoreFailure.damageCode, call: "sqlite3_step", message: "a page is damaged"))
      }
      var failure = writeAll(work)
      var counts = [Int](repeating: 0, count: work.requests.count)
      for (i, request) in work.requests.enumerated() where failure == nil {
        do throws(StoreFailure) { counts[i] = try answer(request.kind) } catch {
          failure = error
          handle(error)
        }
      }
      if let writer { note(writer.total) }
      let first = failure.map { PurgeableError($0, in: "PurgeableStore '\(name)'") }
      let known = mutex.withLock { () -> PurgeableError? in
        if let first {
          numbers.failureCount += 1
          numbers.lastError = first
          if firstFailure == nil { firstFailure = first }
        }
        return work.requests.isEmpty ? nil : exchange(&firstFailure, with: nil)
      }
      if work.isEnd { closeAll() }
      for (i, request) in work.requests.enumerated() {
        request.done(known.map { .failure($0) } ?? .success(counts[i]))
      }
    }

    /// Writes what waits, and keeps the limits. Where it cannot, `handle` has seen to it.
    private func writeAll(_ work: Work) -> StoreFailure? {
      let batch = work.changes
      var (work, tries) = (work, 0)
      while true {
        do throws(StoreFailure) {
          try reopenIfGone()
          guard let writer else { throw StoreFailure(call: "open", message: "the database is not open") }
          if !work.changes.isEmpty {
            try writer.write(work.changes)
            mutex.withLock {
              numbers.writeCount += work.changes.byKey.count
              writing = Changes()
            }
            work.changes = Changes()
          }
          if !work.damaged.isEmpty { try writer.remove(work.damaged) }
          if !work.touches.isEmpty { try writer.write(touches: work.touches) }
          if work.asksForUses || work.isEnd { try writeUses(writer) }
          try keepLimits(writer)
          try writer.checkpointIfLong()
          mutex.withLock { isOffUntil = 0 }
          return nil
        } catch {
          tries += 1
          if tries == 1, error.isGone || mends(error) {
            if error.isGone || error.isDamage {
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
        try writer.removeExpired(at: now)
      }
      // Not again at once, whatever is in its place.
      nextExpiry = try writer.nextExpiry().map { max($0, now + 1_000_000_000) }
      func upper(_ limit: Int64) -> Int64 { limit == .max ? .max : limit - limit / 20 }
      func lower(_ limit: Int64) -> Int64 { limit == .max ? .max : limit - limit / 10 }
      if writer.total.byteCount > upper(limits.byteCount) || writer.total.recordCount > upper(limits.recordCount) {
        if MonotonicTime.now - lastAsking >= Self.leastAskingInterval { try writeUses(writer) }
        try writer.removeExpired(at: now)
        try writer.evict(toBytes: lower(limits.byteCount), count: lower(limits.recordCount))
      }
    }

    /// Writes what was used in memory since the last time.
    private func writeUses(_ writer: StoreWriter) throws(StoreFailure) {
      lastAsking = MonotonicTime.now
      // It rises again where no such record is stored or read any more.
      mutex.withLock { shortestIdle = .max }
      let (since, moment, now) = (usesAskedAt, uses.moment(), self.now())
      var found: [(key: [UInt8], moment: Int64)] = []
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
    }

    private func answer(_ kind: Request.Kind) throws(StoreFailure) -> Int {
      guard let writer else { return 0 }
      switch kind {
      case .flush: try writer.synchronize()
      case .end: try writer.synchronize()
      case .trim(let byteCount): try writer.evict(toBytes: byteCount, count: .max)
      case .removeExpired: return try writer.removeExpired(at: self.now())
      }
      return 0
    }

    // MARK: Upkeep and mending

    /// When nothing has been written for a while.
    private func tidyUp() {
      isTidy = true
      do throws(StoreFailure) {
        guard let writer, let file else { return }
        try writer.vacuum()
        try writer.cutLog()
        if !hasSwept {
          hasSwept = true
          folder.removeDamaged()
          try writer.sweepFiles()
        }
        folder.makeReserve()
        writer.connection.releaseMemory()
        readers.releaseMemory()
        OpenDatabases.shared.giveUpPages(file)
      } catch {
        fail(error)
      }
    }

    /// Somebody has removed the database, or put another one in its place.
    private func reopenIfGone() throws(StoreFailure) {
      if writer != nil, let file, folder.leads(to: file) { return }
      readers.reopen()
      closeWriter()
      try folder.prepare()
      try reopen()
    }

    private func reopen() throws(StoreFailure) {
      try openWriter()
      readers.reopen()
      (nextExpiry, hasSwept) = (0, false)
      // They are of what was there before.
      mutex.withLock { (touches, touchedSince, damaged, isDamaged) = ([:], nil, [], false) }
    }

    /// Whether another try may go well.
    private func mends(_ failure: StoreFailure) -> Bool {
      do throws(StoreFailure) {
        if failure.isDamage {
          readers.reopen()
          closeWriter()
          try folder.locked { () throws(StoreFailure) in try folder.putAside() }
          try reopen()
          return true
        }
        if failure.isFull, let writer {
          // Even what is removed has to be written first.
          folder.giveReserveUp()
          try writer.cutLog()
          try writer.evict(toBytes: writer.total.byteCount / 4 * 3, count: .max, cutsLog: true)
          try writer.vacuum(cutsLog: true)
          try writer.cutLog()
          folder.makeReserve()
          return true
        }
      } catch {
        return false
      }
      return false
    }

    /// What could not be written stays waiting: where somebody else is at work, as it is; else as removals, and nothing is read
    /// or written for a minute.
    private func giveUp(_ failure: StoreFailure) {
      mutex.withLock {
        var rest = exchange(&writing, with: Changes())
        if !failure.isBusy {
          rest.forgetValues(mostKeys: Self.mostRemovals)
          isOffUntil = MonotonicTime.now + Self.retryTime
        }
        waiting.follow(rest)
        if !waiting.isEmpty, waitingSince == nil { waitingSince = MonotonicTime.now }
      }
      if failure.isDamage { closeWriter() }
    }

    private func handle(_ failure: StoreFailure) {
      if failure.isDamage { _ = mends(failure) }
    }
  }

  /// One thread that waits for the answer to a request.
  private final class RequestWaiter: @unchecked Sendable {
    private let mutex = WaitableMutex()
    private var result: Result<Int, PurgeableError>?

    func end(_ result: Result<Int, PurgeableError>) {
      mutex.withLock {
        self.result = result
        mutex.signal()
      }
    }

    func wait() -> Result<Int, PurgeableError> {
      mutex.withLock {
        while true {
          if let result { return result }
          _ = mutex.wait(until: nil)
        }
      }
    }
  }
#endif
