// SPDX-License-Identifier: MIT
// The database of a store: what waits to be written, the thread that writes it (StoreDatabase+Thread.swift), and reads that see
// both (StoreDatabase+Read.swift). Keys and values are bytes here.
//
//   put, remove --> waiting --(a batch: 1,000 changes, 4 MiB, or the interval)--> writing --COMMIT--> the database
//   read            looks there first                                   then here               then here
//
// So a read never finds an older value than the last one that was put. Where a batch cannot be written, its values are given up,
// and the removals of their keys stay waiting until they can be: an old value in the database stays out of sight.
//
// One mutex, held for a few steps; nobody waits for the disk under it. The writer's thread is the only one that writes. Nothing
// waits for it but `flush` and its like: where more than 32 MiB wait to be written (less where memory is little), values are
// given up instead.
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

  /// A row as it was read, to do something about it as long as it is the same row.
  struct ReadRow: Hashable, Sendable {
    let id: Int64
    let sum: Int64
    /// A row that comes in the place of the last one has its number and, with the same value, its sum; but never its file.
    let file: Int64?
  }

  struct StoreLimits: Sendable {
    var byteCount = Int64.max
    var recordCount = Int64.max
    var fileThreshold = 128 << 10
    /// Nanoseconds.
    var writeInterval: UInt64 = 1_000_000_000

    /// One value must not make all others go.
    static func mostRecordBytes(of byteCount: Int64) -> Int64 { byteCount / 8 }
  }

  /// `@unchecked Sendable`: what changes is under the mutex, or is the writer's thread's own. None of it is for other types.
  final class StoreDatabase: @unchecked Sendable {
    let name: String
    let folder: StoreFolder
    let limits: StoreLimits
    private let kinds: StoreKinds
    /// Nanoseconds since 1970.
    let now: @Sendable () -> Int64
    let uses: MemoryUses
    private let forkCount = OpenDatabases.shared.forkCount
    let readers: ReaderPool
    /// Of values that wait to be written: 32 MiB, or an eighth of the memory that the process may have.
    private let mostWaitingBytes = min(32 << 20, Int(clamping: ProcessMemory.limit() / 8))
    /// Of removals, which wait in place of values that were given up, too.
    private var mostRemovalBytes: Int { 2 * mostWaitingBytes }
    /// More than a quarter of that waits, and the thread is at it: whoever changes something gives way.
    let isCrowded = Atomic<Bool>(false)
    private static let longestGivingWay: UInt64 = 20_000_000

    static let batchCount = 1000
    static let batchByteCount = 4 << 20
    static let touchBatchCount = 20_000
    static let touchInterval: UInt64 = 60_000_000_000
    /// How often memory is asked for uses: before records are evicted, when a quarter of them is new since the last time; once an
    /// hour; and in a quarter of the shortest time that a record expires after its last use, but then with pauses that are so
    /// many times as long as the asking took.
    static let askingPause: UInt64 = 16
    static let mostAskingInterval: UInt64 = 3_600_000_000_000
    /// How often room is made for one batch.
    static let roomTryCount = 4
    static let retryTime: UInt64 = 60_000_000_000
    static let passingTime: UInt64 = 500_000_000
    static let idleTime: UInt64 = 5_000_000_000
    static let mostUntidyTime: UInt64 = 60_000_000_000
    static let sweepInterval: UInt64 = 3_600_000_000_000

    // MARK: Under the mutex

    let mutex = WaitableMutex()
    var waiting = Changes()
    var writing = Changes()
    var changeNumbers = ChangeNumbers()
    /// When the oldest change came that waits; and the oldest touch.
    var waitingSince: UInt64?
    var touchedSince: UInt64?
    /// Moments of use by row.
    var touches: [Int64: Int64] = [:]
    var damaged: Set<ReadRow> = []
    var requests: [Request] = []
    /// A reader has found a page that cannot be.
    var isDamaged = false
    /// A reader could not read: the writer's thread is to look whether everything is in its place.
    var isSuspect = false
    /// Nothing is read or written until then; 0 where all is well.
    var isOffUntil: UInt64 = 0
    /// Nothing is written until then, unless somebody asks for it: something is short, and what waits stays as it is.
    var restsUntil: UInt64 = 0
    /// The shortest time since its last use after which a record expires that was stored or read here.
    var shortestIdle = Int64.max
    var isEnded = false
    /// The thread has ended.
    var isClosed = false
    /// While it runs.
    var thread: pthread_t?
    var firstFailure: PurgeableError?
    var numbers = PurgeableStoreStatistics()

    struct Request {
      enum Kind {
        case flush, removeAll, removeExpired, end
        case trim(Int64)
      }
      let kind: Kind
      let done: (Result<Int, PurgeableError>) -> Void

      /// Whether its answer is the first failure since the last such answer; others tell of their own work.
      var tellsAll: Bool {
        switch kind {
        case .flush, .end: true
        case .removeAll, .trim, .removeExpired: false
        }
      }
    }

    let hitCount = Atomic<Int>(0)
    let missCount = Atomic<Int>(0)
    let convertedCount = Atomic<Int>(0)
    let readByteCount = Atomic<Int>(0)
    let mostReadBytes = Atomic<Int>(StoreDatabase.mostReadBytes())
    /// `StoreWriter.touchStep`, as of the last write.
    let touchStep = Atomic<Int64>(0)

    // MARK: Of the writer's thread

    var writer: StoreWriter?
    var file: FileNumber?
    /// What the last writer left, and of which database.
    private var left: (file: FileNumber, disk: StoreWriter.Disk)?
    /// Up to when memory's uses are in the database, by its clock; and when it was asked, by the monotonic one.
    var usesAskedAt: UInt64
    var lastAsking = MonotonicTime.now
    var askingTime: UInt64 = 0
    var putsSinceAsking = 0
    /// Wall time of the next expiry; nil: none is known.
    var nextExpiry: Int64?
    /// When what had expired was removed last.
    var expiredAt: Int64 = 0
    /// How many were removed by this pass of the thread.
    var expiredCount = 0
    var isTidy = false
    /// How long nothing has been written when it is tidied up.
    var tidyPause = StoreDatabase.idleTime
    var tidiedAt = MonotonicTime.now
    /// When files of values that no record names were looked for; nil: not since the opening.
    var sweptAt: UInt64?
    /// Whether there is a reserve; true, too, where none could be made since it was given up.
    var hasReserve = true

    // MARK: Opening and ending

    init(
      _ name: String, _ folder: StoreFolder, _ limits: StoreLimits, kinds: StoreKinds = StoreKinds(), _ uses: MemoryUses,
      now: @escaping @Sendable () -> Int64, operation: String
    ) throws(PurgeableError) {
      (self.name, self.folder, self.limits, self.kinds, self.uses, self.now) = (name, folder, limits, kinds, uses, now)
      usesAskedAt = uses.moment()
      readers = ReaderPool(folder, kinds)
      do { try openWriter() } catch { throw PurgeableError(error, in: operation) }
      nextExpiry = 0
      if !startThread({ [self] in run() }) {
        closeAll()
        throw PurgeableError(
          .systemCallFailed(call: "pthread_create"), in: operation,
          explanation: "no thread can be made; raise the process's limits")
      }
    }

    var isOurs: Bool { OpenDatabases.shared.forkCount == forkCount }

    /// Opens the database, and puts one that is damaged aside. `again`: it was open before, and some have been told what it had.
    func openWriter(again: Bool = false) throws(StoreFailure) {
      var hasMended = false
      var tried: FileNumber?
      while true {
        do throws(StoreFailure) {
          if OpenDatabases.shared.areInherited {
            throw StoreFailure(
              number: ENOTSUP, call: "fork",
              message: "this process was forked while a database was open, and can open none: start another program (exec)")
          }
          let made = try folder.locked { () throws(StoreFailure) in
            tried = FileNumber(of: folder.database)
            return try StoreWriter(folder, fileThreshold: limits.fileThreshold, kinds)
          }
          guard let file = OpenDatabases.shared.add(folder.database) else {
            throw .system("open", "\(folder.database) cannot be opened")
          }
          if let left, left.file == file { made.disk = left.disk }
          (writer, self.file) = (made, file)
          readers.expect(file, made.sharedMemory)
          noteNumbers(of: made)
          return
        } catch {
          guard error.isDamage || error.isFull, !hasMended else { throw error }
          hasMended = true
          // Even to open it takes some room.
          if error.isFull {
            folder.giveReserveUp()
          } else {
            try folder.locked { () throws(StoreFailure) in try folder.putAside(damaged: tried) }
            noteLoss(error, isNews: again)
          }
        }
      }
    }

    /// Whether the database's place still has the one that is open.
    var isInPlace: Bool { file.map { folder.leads(to: $0) } ?? false }

    /// `isGone`: so is the database, and another may get its number.
    func closeWriter(isGone: Bool = false) {
      if let writer, let file { left = isGone ? nil : (file, writer.disk) }
      if let writer { noteNumbers(of: writer) }
      writer = nil
      if let file { OpenDatabases.shared.remove(file) }
      file = nil
    }

    func closeAll() {
      readers.end()
      // While nobody can put another database in its place. Where somebody has, nothing is made in that folder.
      if isInPlace {
        try? folder.locked { () throws(StoreFailure) in
          if isInPlace, writer?.hasItsNames ?? false { writer?.connection.leaveLogAtEnd(false) }
          closeWriter()
        }
      }
      closeWriter()
    }

    func noteNumbers(of writer: StoreWriter) {
      mutex.withLock {
        (numbers.recordCount, numbers.byteCount) = (Int(writer.total.recordCount), Int(writer.total.byteCount))
        numbers.evictedCount += writer.takeEvictedCount()
      }
    }

    // MARK: Changes

    /// From now on reads answer this. Called under mutexes of the cache. `number`: false, and nothing changes, where the key has
    /// changed since. A record that is in the database as well stays there as it is where what is written anew finds no room.
    @discardableResult
    func change(_ key: StoreKey, _ change: Change, ifUnchangedSince number: UInt32? = nil) -> Bool {
      guard isOurs else { return true }
      return mutex.withLock {
        if case .put(let record) = change, record.row != nil, !(isWanted(record, key) && hasRoom(for: record, key)) {
          return changeNumbers[key] == number
        }
        // After the end, too: what a read has found must not go to memory behind a change.
        guard changeNumbers.raise(key, ifStill: number) else { return false }
        if isEnded { return true }
        var change = change
        if case .put(let record) = change {
          let (isWanted, hasRoom) = (isWanted(record, key), hasRoom(for: record, key))
          if isWanted && !hasRoom {
            noteNoRoom("more than \(mostWaitingBytes >> 20) MiB waited to be written, and values were given up")
          }
          if isWanted && hasRoom { record.idle.map(noteIdle) } else { change = .removal }
        }
        waiting.set(change, key)
        // One removal in place of many: no key is to be found that was removed.
        if waiting.removalBytes > mostRemovalBytes {
          numbers.failureCount += waiting.putCount
          noteNoRoom(
            "removals of more than \(mostRemovalBytes >> 20) MiB waited to be written, and all that the database has goes "
              + "in their place")
          waiting.clear()
        }
        if waiting.removalBytes > mostRemovalBytes / 4, isOffUntil == 0, restsUntil <= MonotonicTime.now {
          isCrowded.store(true, ordering: .relaxed)
        }
        noteWaiting()
        return true
      }
    }

    private func isWanted(_ record: StoredRecord, _ key: StoreKey) -> Bool {
      Int64(StoredRecord.size(key.bytes, record.value.count)) <= StoreLimits.mostRecordBytes(of: limits.byteCount)
    }

    /// Under the mutex. One that is longer than all that may wait, waits alone.
    private func hasRoom(for record: StoredRecord, _ key: StoreKey) -> Bool {
      let waitingBytes = waiting.valueBytes + writing.valueBytes
      return waitingBytes == 0 || waitingBytes + StoredRecord.size(key.bytes, record.value.count) <= mostWaitingBytes
    }

    /// After a change by the program, with no mutex held. A program may change keys faster than the thread writes. Its values
    /// are given up then, and removals wait in their place; so many that all of the database would have to go for them come only
    /// where nothing can be written, since each change waits for the thread for a moment.
    @inline(__always)
    func giveWay() { if isCrowded.load(ordering: .relaxed) { waitInCrowd() } }

    @inline(never)
    private func waitInCrowd() {
      guard isOurs else { return }
      let deadline = MonotonicTime.now + Self.longestGivingWay
      repeat { usleep(1000) } while isCrowded.load(ordering: .relaxed) && MonotonicTime.now < deadline
    }

    /// Under the mutex: a value is given up, or all are.
    private func noteNoRoom(_ explanation: String) {
      // Told once: there may be many.
      if firstFailure != nil {
        numbers.failureCount += 1
        return
      }
      count(PurgeableError(.busy, in: "PurgeableStore '\(name)'", explanation: explanation), isNews: true)
    }

    /// Under the mutex. `isNews`: for the next flush.
    func count(_ error: PurgeableError, isNews: Bool) {
      numbers.failureCount += 1
      numbers.lastError = error
      if isNews, firstFailure == nil { firstFailure = error }
    }

    /// All that the database had is gone. `isNews`: for those who have been told that it was written.
    func noteLoss(_ failure: StoreFailure, isNews: Bool) {
      noteFailure(
        .invalidFile, "the database was put aside, with all that it had, and a new one is begun: \(failure.message)",
        isNews: isNews)
    }

    /// Another one after each change of the key.
    func changeNumber(of key: StoreKey) -> UInt32 { isOurs ? mutex.withLock { changeNumbers[key] } : 0 }

    func isUnchanged(_ key: StoreKey, since number: UInt32) -> Bool { changeNumber(of: key) == number }

    func removeAll() {
      guard isOurs else { return }
      mutex.withLock {
        changeNumbers.raiseAll()
        if isEnded { return }
        waiting.clear()
        noteWaiting()
      }
    }

    /// Under the mutex.
    func noteIdle(_ time: Int64) {
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
      if isOurs, mutex.withLock({ thread.map { pthread_equal($0, pthread_self()) != 0 } ?? false }) {
        // In code of a key, which runs here too: nobody else would answer.
        guard case .end = kind else {
          throw PurgeableError(.busy, in: operation, explanation: "this is called on the store's own thread, in code of a key")
        }
        ask(kind, in: operation) { _ in }
        return 0
      }
      let waiter = RequestWaiter()
      ask(kind, in: operation) { waiter.end($0) }
      return try waiter.wait().get()
    }

    func flush(in operation: String) throws(PurgeableError) { _ = try wait(.flush, in: operation) }
    func waitForRemoval(in operation: String) throws(PurgeableError) { _ = try wait(.removeAll, in: operation) }
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
  }

  /// One thread that waits for the answer to a request.
  private final class RequestWaiter: @unchecked Sendable {
    let mutex = WaitableMutex()
    var result: Result<Int, PurgeableError>?

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
