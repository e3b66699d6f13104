// SPDX-License-Identifier: MIT
// Reading: a few connections, each for one thread at a time, and the threads that read for tasks.

#if SQLite
  import Glibc
  import Purgeable

  /// A connection that reads.
  final class StoreReader {
    fileprivate let generation: Int
    private let file: FileNumber?
    private let connection: Connection
    private let hashKey: HashKey
    private let find, has, lifeOf: Statement

    /// Whoever waits for a value does not wait for a database that is locked: it is a miss.
    private static let busyMilliseconds: Int32 = 50

    fileprivate static func open(
      _ folder: StoreFolder, _ kinds: StoreKinds, generation: Int
    ) throws(StoreFailure) -> StoreReader {
      try folder.named { () throws(StoreFailure) in try StoreReader(folder, kinds, generation: generation) }
    }

    private init(_ folder: StoreFolder, _ kinds: StoreKinds, generation: Int) throws(StoreFailure) {
      self.generation = generation
      // Before it is opened: where another one takes its place meanwhile, this reader is outdated at once.
      file = FileNumber(of: folder.database)
      connection = try Connection(folder.database, makes: false, busyMilliseconds: Self.busyMilliseconds)
      connection.leaveLogAtEnd()
      try connection.run(Schema.connection)
      _ = try kinds.unsaid(in: connection)
      hashKey = try HashKey.read(in: connection)
      find = try connection.prepare(Schema.find)
      has = try connection.prepare(Schema.has)
      lifeOf = try connection.prepare(Schema.lifeOf)
    }

    /// Whether the path leads to another file by now.
    fileprivate func isOutdated(by now: FileNumber?) -> Bool { file == nil || now != file }

    /// What the database has for a key.
    struct Found {
      var id: Int64
      var record: StoredRecord
      var sum: Int64
      /// The value is in a file of this number, and not in the record.
      var file: Int64?
      var expires: Int64?
      /// Of a value in a file.
      var valueByteCount: Int
    }

    func read(_ key: [UInt8]) throws(StoreFailure) -> Found? {
      find.bind(1, hashKey.hash(key))
      find.bind(2, key)
      guard try find.next() else { return nil }
      // What is read is copied, and the statement ended: the log waits for it.
      defer { find.reset() }
      let made = find.time(5) ?? 0
      var found = Found(
        id: find.number(0),
        record: StoredRecord(
          value: try find.bytes(9) ?? [], format: UInt32(truncatingIfNeeded: find.number(3)), cost: find.optionalNumber(4),
          version: find.text(7), made: made, used: made, deadline: find.time(1), idle: find.time(2)),
        sum: find.number(6), file: find.optionalNumber(8), expires: find.optionalNumber(1), valueByteCount: 0)
      // Before the next row is looked for: where there is none, what was read ends, and the row may be another record's.
      if found.record.idle != nil || found.file != nil {
        lifeOf.bind(1, found.id)
        guard try lifeOf.next() else { return nil }
        defer { lifeOf.reset() }
        (found.record.used, found.expires) = (lifeOf.time(0) ?? 0, lifeOf.optionalNumber(1))
        found.valueByteCount = Int(lifeOf.number(2, in: Schema.sizes)) - StoredRecord.size(key, 0)
      }
      // Two rows of one key are never written: the index has missed one.
      if try find.next() {
        throw StoreFailure(code: StoreFailure.damageCode, call: "sqlite3_step", message: "a key has two rows")
      }
      return found
    }

    /// Whether there is a record whose time is not over.
    func has(_ key: [UInt8], at now: Int64) throws(StoreFailure) -> Bool {
      has.bind(1, hashKey.hash(key))
      has.bind(2, key)
      guard try has.next() else { return false }
      defer { has.reset() }
      guard has.optionalNumber(2) != nil else { return has.optionalNumber(1).map { $0 > now } ?? true }
      lifeOf.bind(1, has.number(0))
      guard try lifeOf.next() else { return false }
      defer { lifeOf.reset() }
      return lifeOf.optionalNumber(1).map { $0 > now } ?? true
    }

    func releaseMemory() { connection.releaseMemory() }
  }

  /// The readers of a store.
  final class ReaderPool: @unchecked Sendable {
    private let folder: StoreFolder
    private let kinds: StoreKinds
    private let mutex = WaitableMutex()
    private var idle: [StoreReader] = []
    private var count = 0
    private var generation = 0
    private var isEnded = false
    /// Nothing is read: the database is being made anew, and for a moment has no tables.
    private var isOff = false
    /// The writer's database, and the memory that all share who have it open. Where that lost its name, others may have opened
    /// the database with other memory, and neither find what this log has nor ask for the locks of those who have it.
    private var expected: (database: FileNumber?, sharedMemory: FileNumber?) = (nil, nil)

    private static let mostReaders = 4

    init(_ folder: StoreFolder, _ kinds: StoreKinds = StoreKinds()) { (self.folder, self.kinds) = (folder, kinds) }

    /// Runs `body` with a reader, when one is free. nil when the pool has ended, and while the database is made anew.
    func withReader<R>(_ body: (StoreReader) throws(StoreFailure) -> R) throws(StoreFailure) -> R? {
      guard let (known, generation, expected) = take() else { return nil }
      var reader = known
      defer { give(reader) }
      do throws(StoreFailure) {
        let used: StoreReader
        let database = FileNumber(of: folder.database)
        if database != nil, database == expected.database, FileNumber(of: folder.sharedMemory) != expected.sharedMemory {
          throw StoreFailure(isGone: true, call: "stat", message: "\(folder.sharedMemory) has gone")
        }
        if let known, !known.isOutdated(by: database) {
          used = known
        } else {
          used = try StoreReader.open(folder, kinds, generation: generation)
        }
        reader = used
        return try body(used)
      } catch {
        // Of a file that is another's place by now.
        if mutex.withLock({ self.generation }) != generation { return nil }
        throw error
      }
    }

    /// A reader, or none but the right to make one.
    private func take() -> (StoreReader?, generation: Int, expected: (database: FileNumber?, sharedMemory: FileNumber?))? {
      mutex.withLock {
        while !isEnded, !isOff {
          if let reader = idle.popLast() { return (reader, generation, expected) }
          if count < Self.mostReaders {
            count += 1
            return (nil, generation, expected)
          }
          _ = mutex.wait(until: nil)
        }
        return nil
      }
    }

    private func give(_ reader: StoreReader?) {
      mutex.withLock {
        if let reader, reader.generation == generation, !isEnded { idle.append(reader) } else { count -= 1 }
        // All, where `end` waits among them.
        if isEnded { mutex.broadcast() } else { mutex.signal() }
      }
    }

    /// The writer has them open.
    func expect(_ database: FileNumber, _ sharedMemory: FileNumber?) {
      mutex.withLock { expected = (database, sharedMemory) }
    }

    /// What is read from now on is read from the file that is there now; nothing until then, where that is yet to be made.
    func reopen(isMade: Bool = true) {
      let ended = mutex.withLock {
        (generation, isOff) = (generation + 1, !isMade)
        mutex.broadcast()
        count -= idle.count
        return exchange(&idle, with: [])
      }
      withExtendedLifetime(ended) {}
    }

    /// Waits until nobody reads any more who has begun before `reopen`, for a second at most.
    func awaitNone() {
      let deadline = MonotonicTime.now + 1_000_000_000
      mutex.withLock { while count > 0, mutex.wait(until: deadline) {} }
    }

    /// Waits until nobody reads, and closes all.
    func end() {
      mutex.withLock {
        isEnded = true
        count -= idle.count
        idle = []
        mutex.broadcast()
        while count > 0 { _ = mutex.wait(until: nil) }
      }
    }

    func releaseMemory() {
      mutex.withLock { for reader in idle { reader.releaseMemory() } }
    }
  }

  /// A few threads that wait for the disk in the place of tasks. Each ends when there has been nothing to do for a while.
  final class ReadThreads: @unchecked Sendable {
    private let mutex = WaitableMutex()
    private var calls: [@Sendable () -> Void] = []
    private var next = 0
    private var threadCount = 0
    private var idleCount = 0

    private static let mostThreads = 4
    private static let patience: UInt64 = 2_000_000_000

    /// Runs `body` on one of the threads; on this one where none can be made.
    func run(_ body: @escaping @Sendable () -> Void) {
      let isNeeded = mutex.withLock {
        calls.append(body)
        if idleCount > 0 { mutex.signal() }
        guard idleCount < calls.count - next, threadCount < Self.mostThreads else { return false }
        threadCount += 1
        return true
      }
      guard isNeeded, !startThread({ [self] in while let call = takeCall(waits: true) { call() } }) else { return }
      let isLast = mutex.withLock {
        threadCount -= 1
        return threadCount == 0
      }
      if isLast { while let call = takeCall(waits: false) { call() } }
    }

    private func takeCall(waits: Bool) -> (@Sendable () -> Void)? {
      mutex.withLock {
        while next == calls.count {
          guard waits else { return nil }
          idleCount += 1
          let isSignalled = mutex.wait(until: MonotonicTime.now + Self.patience)
          idleCount -= 1
          if !isSignalled, next == calls.count {
            threadCount -= 1
            return nil
          }
        }
        let call = calls[next]
        next += 1
        if next == calls.count {
          (calls, next) = ([], 0)
        } else if next >= 64, 2 * next >= calls.count {
          // Where some always wait, those that have run go all the same.
          calls.removeFirst(next)
          next = 0
        }
        return call
      }
    }
  }
#endif
