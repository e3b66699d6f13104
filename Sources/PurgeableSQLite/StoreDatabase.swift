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
    /// When the oldest change came that waits; and the oldest touch.
    private var waitingSince: UInt64?
    private var touchedSince: UInt64?
    /// Moments of use by row, and rows whose value was found damaged.
    private var touches: [Int64: Int64] = [:]
    private var damaged: Set<Int64> = []
    private var requests: [Request] = []
    /// A reader has found a page that cannot be.
    private var isDamaged = false
    /// Nothing is read or written until then; 0 where all is well.
    private var isOffUntil: UInt64 = 0
    /// The shortest time since its last use after which a record expires that was stored or read here.
    private var shortestIdle = Int64.max
    private var isEnded = false
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
          let made = try folder.locked { () throws(StoreFailure) in
            try StoreWriter(folder, fileThreshold: limits.fileThreshold)
          }
          switch OpenDatabases.shared.add(folder.database) {
          case .added(let file): self.file = file
          case .missing: throw .system("open", "\(folder.database) cannot be opened")
          case .inherited:
            throw StoreFailure(
              number: ENOTSUP, call: "fork",
              message: "this process was forked while \(folder.path) was open, and cannot open it: start another program (exec)")
          }
          writer = made
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

    /// From now on reads answer this. Called under mutexes of the cache.
    func change(_ key: [UInt8], _ change: Change) {
      guard isOurs else { return }
      mutex.withLock {
        guard !isEnded else { return }
        var change = change
        if case .put(let record) = change {
          let isWanted = Int64(StoredRecord.size(key, record.value.count)) <= limits.mostRecordBytes
          let hasRoom = waiting.byteCount + writing.byteCount <= Self.mostWaitingBytes
          if isWanted && !hasRoom { numbers.failureCount += 1 }
          if !isWanted || !hasRoom { change = .removal }
        }
        if case .put(let record) = change, let idle = record.idle { noteIdle(idle) }
        waiting.set(change, key)
        // One removal in place of many.
        if waiting.byteCount > 2 * Self.mostWaitingBytes || isOffUntil > 0 && waiting.byKey.count > Self.mostRemovals {
          waiting.clear()
        }
        noteWaiting()
      }
    }

    func removeAll() {
      guard isOurs else { return }
      mutex.withLock {
        if isEnded { return }
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

    /// What a key's value is now, in whatever state of being written. Waits for the disk.
    func read(_ key: [UInt8]) -> StoredRecord? {
      let record = lookUp(key)
      if record == nil { missCount.add(1, ordering: .relaxed) } else { hitCount.add(1, ordering: .relaxed) }
      return record
    }

    private func lookUp(_ key: [UInt8]) -> StoredRecord? {
      guard isOurs else { return nil }
      let now = self.now()
      switch waitingAnswer(key) {
      case .put(let record): return record.expires.map { $0 > now } ?? true ? record : nil
      case .nothing: return nil
      case .unchanged: break
      }
      do {
        guard let found = try readers.withReader({ (reader) throws(StoreFailure) in try reader.read(key) }), var found else {
          return nil
        }
        if let expires = found.expires, expires <= now { return nil }
        if let file = found.file {
          guard let value = folder.readValue(file, byteCount: found.valueByteCount) else { return reject(found.id) }
          found.record.value = value
        }
        guard found.record.sum(key) == found.sum else { return reject(found.id) }
        // A clock that was set back gives no record a longer life than it began with.
        if let idle = found.record.idle, found.record.used > now {
          found.record.deadline = min(found.record.deadline ?? .max, now + idle)
        }
        noteRead(found, at: now)
        return found.record
      } catch {
        fail(error)
        return nil
      }
    }

    private func waitingAnswer(_ key: [UInt8]) -> Changes.Answer {
      mutex.withLock {
        for changes in [waiting, writing] {
          let answer = changes.answer(key)
          if case .unchanged = answer { continue }
          return answer
        }
        return isEnded || isOffUntil > 0 ? .nothing : .unchanged
      }
    }

    /// A value that is not what was written is none, and goes.
    private func reject(_ id: Int64) -> StoredRecord? {
      mutex.withLock {
        damaged.insert(id)
        numbers.failureCount += 1
        mutex.signal()
      }
      return nil
    }

    private func noteRead(_ found: StoreReader.Found, at now: Int64) {
      let byteCount = found.record.value.count + Schema.pageByteCount
      let sum = readByteCount.add(byteCount, ordering: .relaxed).newValue
      if sum >= 8 << 20, readByteCount.exchange(0, ordering: .relaxed) >= 8 << 20, let file = FileNumber(of: folder.database) {
        OpenDatabases.shared.giveUpPages(file)
      }
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

    func has(_ key: [UInt8]) -> Bool {
      guard isOurs else { return false }
      let now = self.now()
      switch waitingAnswer(key) {
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
        guard !isEnded else { return false }
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
      var damaged: Set<Int64> = []
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
        if work.isEnd { return }
      }
    }

    private func awaitWork() -> Work {
      mutex.withLock {
        while true {
          let now = MonotonicTime.now
          var due = UInt64.max
          func note(_ since: UInt64?, _ time: UInt64) { if let since { due = min(due, since + time) } }
          if isOffUntil > now {
            due = isOffUntil
          } else {
            let isBatch = waiting.byKey.count >= Self.batchCount || waiting.byteCount >= Self.batchByteCount
            note(waitingSince, isBatch ? 0 : limits.writeInterval)
            note(touchedSince, touches.count >= Self.touchBatchCount ? 0 : Self.touchInterval)
            if !damaged.isEmpty || isDamaged || isOffUntil > 0 { due = now }
          }
          if !requests.isEmpty || due <= now { return takeWork() }
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
      var tries = 0
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
          if tries == 1, mends(error) { continue }
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
      nextExpiry = try writer.nextExpiry()
      func upper(_ limit: Int64) -> Int64 { limit == .max ? .max : limit - limit / 20 }
      func lower(_ limit: Int64) -> Int64 { limit == .max ? .max : limit - limit / 10 }
      if writer.total.byteCount > upper(limits.byteCount) || writer.total.recordCount > upper(limits.recordCount) {
        if MonotonicTime.now - lastAsking >= Self.leastAskingInterval { try writeUses(writer) }
        if try writer.removeExpired(at: now) > 0 { nextExpiry = try writer.nextExpiry() }
        try writer.evict(toBytes: lower(limits.byteCount), count: lower(limits.recordCount))
      }
    }

    /// Writes what was used in memory since the last time.
    private func writeUses(_ writer: StoreWriter) throws(StoreFailure) {
      lastAsking = MonotonicTime.now
      let (since, now) = (usesAskedAt, self.now())
      usesAskedAt = uses.moment()
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
        // A reader in another process stands in its way: the next time will do.
        do { try writer.checkpoint(cuts: true) } catch  where error.isBusy {}
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
      closeWriter()
      try folder.prepare()
      try openWriter()
      readers.reopen()
      nextExpiry = 0
    }

    /// Whether another try may go well.
    private func mends(_ failure: StoreFailure) -> Bool {
      do throws(StoreFailure) {
        if failure.isDamage {
          closeWriter()
          try folder.locked { () throws(StoreFailure) in try folder.putAside() }
          try openWriter()
          readers.reopen()
          hasSwept = false
          return true
        }
        if failure.isFull, let writer {
          // Even what is removed has to be written first.
          folder.giveReserveUp()
          try writer.checkpoint(cuts: true)
          try writer.evict(toBytes: writer.total.byteCount / 4 * 3, count: .max)
          try writer.vacuum()
          try writer.checkpoint(cuts: true)
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
