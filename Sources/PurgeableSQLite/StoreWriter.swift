// SPDX-License-Identifier: MIT
// Writing: one connection, on one thread, under the lock that a second process of ours waits for too. (SQLite before 3.51.3 can
// damage a database whose connections write and write the log back at the same moment: sqlite.org/wal.html#walresetbug.)

#if SQLite
  import CPurgeableFiles
  import Glibc
  import Purgeable

  final class StoreWriter {
    let folder: StoreFolder
    let connection: Connection
    /// As the last transaction left it.
    private(set) var total: Total
    private let hashKey: HashKey
    private let fileThreshold: Int
    private let file: FileNumber?
    /// The log, and the memory that users share: there as long as this connection is.
    let companions: [FileNumber?]
    /// What of the changes that were written is on the disk. The next writer of the same database goes on from there.
    var disk = Disk()
    /// Bytes of the log that were written back to the database, since the last time that it was asked.
    private var writtenBackBytes = 0

    private let identify, removeRecord, removeLife, insertRecord, insertLife, touch: Statement
    private let calm, oldest, oldestUse, expired, nextToExpire, readTotal, writeTotal, knowsFile, readSum, pageCount: Statement

    /// Another program at work on the database, with locks of its own.
    private static let busyMilliseconds: Int32 = 5000
    /// Records that leave in one transaction: of two thousand most share the pages of the indexes.
    private static let sliceCount: Int64 = 2000
    private static let leastSlices = 5
    /// And on a full disk, where a transaction has to fit into the reserve.
    private static let shortSliceCount: Int64 = 500
    /// Pages that go back to the disk in one transaction, and on a full disk.
    private static let vacuumPageCount = 200
    private static let shortVacuumPageCount = 50

    /// For the holder of the lock. A file that is none of ours is damage.
    convenience init(_ folder: StoreFolder, fileThreshold: Int, _ kinds: StoreKinds = StoreKinds()) throws(StoreFailure) {
      do throws(StoreFailure) { try self.init(opening: folder, fileThreshold, kinds) } catch {
        // A statement that cannot be made: the tables are others.
        throw error.isOfSchema ? StoreFailure(code: StoreFailure.damageCode, call: error.call, message: error.message) : error
      }
    }

    private init(opening folder: StoreFolder, _ fileThreshold: Int, _ kinds: StoreKinds) throws(StoreFailure) {
      (self.folder, self.fileThreshold) = (folder, fileThreshold)
      folder.makeDatabase()
      connection = try Connection(folder.database, makes: true, busyMilliseconds: Self.busyMilliseconds)
      connection.leaveLogAtEnd()
      file = FileNumber(of: folder.database)
      let isNew = try connection.number("SELECT count(*) FROM sqlite_schema") == 0
      if isNew, try connection.number("PRAGMA application_id") == 0, try connection.number("PRAGMA user_version") == 0 {
        try connection.run(Schema.foundation)
      } else {
        try Schema.check(connection)
      }
      try connection.run(Schema.connection)
      try connection.run(Schema.writing)
      if isNew {
        let key = HashKey.random()
        try connection.run("BEGIN IMMEDIATE; \(Schema.tables)")
        let (low, high) = (Int64(bitPattern: key.low), Int64(bitPattern: key.high))
        try connection.run("INSERT INTO total VALUES(1, 0, 0, \(low), \(high)); COMMIT")
      }
      readTotal = try connection.prepare(Schema.readTotal)
      guard let total = try Total.read(readTotal) else { throw Total.missing }
      self.total = total
      hashKey = try HashKey.read(in: connection)
      identify = try connection.prepare(Schema.identify)
      removeRecord = try connection.prepare(Schema.removeRecord)
      removeLife = try connection.prepare(Schema.removeLife)
      insertRecord = try connection.prepare(Schema.insertRecord)
      insertLife = try connection.prepare(Schema.insertLife)
      touch = try connection.prepare(Schema.touch)
      oldest = try connection.prepare(Schema.oldest)
      oldestUse = try connection.prepare(Schema.oldestUse)
      calm = try connection.prepare(Schema.calm)
      expired = try connection.prepare(Schema.expired)
      nextToExpire = try connection.prepare(Schema.nextToExpire)
      writeTotal = try connection.prepare(Schema.writeTotal)
      knowsFile = try connection.prepare(Schema.knowsFile)
      readSum = try connection.prepare(Schema.readSum)
      pageCount = try connection.prepare("PRAGMA page_count")
      connection.watchLog()
      companions = Self.companions(of: folder)
      // Whoever opens a database first says what it has.
      for (what, type) in try kinds.unsaid(in: connection) { try StoreKinds.say(type, of: what, in: connection) }
      try hashKey.write(to: connection)
    }

    /// The database's file. Throws where the names lead elsewhere: what is written would not be found.
    @discardableResult
    func checkPlace() throws(StoreFailure) -> FileNumber {
      guard let file, folder.leads(to: file), hasItsNames else {
        throw StoreFailure(isGone: true, call: "stat", message: "\(folder.database) has gone")
      }
      return file
    }

    // MARK: Transactions

    /// Runs `body`, which writes, with the lock of all who write, in the database's place: while it waited, another process may
    /// have put the database aside, or opened it beside another log. SQLite brings the log to the disk by itself before it writes
    /// it back: that may fail here too.
    private func locked<R>(_ body: (FileNumber) throws(StoreFailure) -> R) throws(StoreFailure) -> R {
      do throws(StoreFailure) {
        return try folder.locked { () throws(StoreFailure) in try body(checkPlace()) }
      } catch {
        disk.note(error)
        throw error
      }
    }

    /// Begins with a short log, however many there are one after the other.
    private func transaction(_ body: (inout Files) throws(StoreFailure) -> Void) throws(StoreFailure) {
      try checkpointIfLong()
      var files = Files()
      let before = total
      do throws(StoreFailure) {
        try locked { (file) throws(StoreFailure) in
          try connection.run("BEGIN IMMEDIATE")
          do throws(StoreFailure) {
            guard let total = try Total.read(readTotal) else { throw Total.missing }
            self.total = total
            // Nonsense is counted anew.
            if !total.isPossible { try recount() }
            try body(&files)
            writeTotal.bind(1, self.total.recordCount)
            writeTotal.bind(2, self.total.byteCount)
            try writeTotal.run()
            try takeRoom(in: file)
            try connection.run("COMMIT")
          } catch {
            if connection.isInTransaction { try? connection.run("ROLLBACK") }
            throw error
          }
        }
      } catch {
        total = before
        for file in files.made { folder.removeValue(file) }
        throw error
      }
      for file in files.removed { folder.removeValue(file) }
    }

    /// A commit is in the log first, and in the database later. Where that grows, its room is taken now: so the log can be
    /// written back whatever fills the disk, which frees the log's own room.
    private func takeRoom(in file: FileNumber) throws(StoreFailure) {
      guard try pageCount.next() else { return }
      defer { pageCount.reset() }
      let byteCount = pageCount.number(0, in: 0...Schema.latest / Int64(Schema.pageByteCount)) * Int64(Schema.pageByteCount)
      guard OpenDatabases.shared.takeRoom(file, byteCount: byteCount) else {
        throw .system("fallocate", "there is no room for the database")
      }
    }

    /// Puts right a total that damage, or another program, has changed.
    func countAnew() throws(StoreFailure) {
      if try Total.read(connection.prepare(Schema.countAll)) == Total.read(readTotal) { return }
      try transaction { (_) throws(StoreFailure) in try recount() }
    }

    private func recount() throws(StoreFailure) {
      if let counted = try Total.read(connection.prepare(Schema.countAll)) { total = counted }
    }

    /// Records that were removed, so far.
    private(set) var removedCount = 0

    /// False where there was no row of its life.
    @discardableResult
    private func remove(_ id: Int64, _ files: inout Files) throws(StoreFailure) -> Bool {
      removedCount += 1
      removeRecord.bind(1, id)
      try removeRecord.run { if let file = removeRecord.optionalNumber(0) { files.removed.append(file) } }
      var size: Int64?
      removeLife.bind(1, id)
      try removeLife.run { size = removeLife.number(0, in: Schema.sizes) }
      guard let size else { return false }
      total.recordCount -= 1
      total.byteCount -= size
      return true
    }

    /// Of rows that an index of their lives has named: one that cannot go would be named again, for ever.
    private func removeNamed(_ id: Int64, _ files: inout Files) throws(StoreFailure) {
      if try remove(id, &files) { return }
      throw StoreFailure(code: StoreFailure.damageCode, call: "sqlite3_step", message: "an index names a row that is not there")
    }

    // MARK: Changes

    func write(_ changes: Changes) throws(StoreFailure) {
      try transaction { (files) throws(StoreFailure) in
        if changes.isCleared { try clear(&files) }
        for (hash, key, change) in inIndexOrder(changes.byKey.map { ($0.key.bytes, $0.value) }) {
          // One, where nobody has written there but this library.
          let ids = try self.ids(identify) {
            identify.bind(1, hash)
            identify.bind(2, key)
          }
          // Another store, or process, may have stored or removed the key since it was read.
          if case .put(let record) = change, let row = record.row, try !isStill(row) { continue }
          for id in ids { try remove(id, &files) }
          if case .put(let record) = change { try insert(record, key, hash, &files) }
        }
      }
      disk.isSynchronized = false
    }

    /// Keys with what is to be written of them, in the order of the index that finds them.
    private func inIndexOrder<What>(_ keys: [([UInt8], What)]) -> [(hash: Int64, key: [UInt8], what: What)] {
      keys.map { (hashKey.hash($0), $0, $1) }.sorted { $0.hash < $1.hash }
    }

    private func clear(_ files: inout Files) throws(StoreFailure) {
      let listed = try connection.prepare("SELECT file FROM record WHERE file IS NOT NULL")
      files.removed += try ids(listed) {}
      try connection.run("DELETE FROM record; DELETE FROM life")
      (total.recordCount, total.byteCount) = (0, 0)
    }

    private func insert(_ record: StoredRecord, _ key: [UInt8], _ hash: Int64, _ files: inout Files) throws(StoreFailure) {
      var file: Int64?
      if record.value.count > fileThreshold {
        let made = try folder.writeValue(record.value)
        files.made.append(made)
        disk.hasNewFiles = true
        file = made
      }
      insertRecord.bind(1, hash)
      insertRecord.bind(2, key)
      insertRecord.bind(3, Int64(record.format))
      insertRecord.bind(4, record.cost)
      insertRecord.bind(5, record.made)
      insertRecord.bind(6, record.sum(key))
      insertRecord.bind(7, record.version)
      insertRecord.bind(8, record.deadline)
      insertRecord.bind(9, record.idle)
      insertRecord.bind(10, file)
      try insertRecord.run(with: file == nil ? record.value : nil, for: 11)
      let size = Int64(StoredRecord.size(key, record.value.count))
      insertLife.bind(1, connection.lastRowID)
      insertLife.bind(2, record.used)
      insertLife.bind(3, size)
      insertLife.bind(4, record.expires)
      insertLife.bind(5, record.deadline)
      insertLife.bind(6, record.idle)
      try insertLife.run()
      total.recordCount += 1
      total.byteCount += size
    }

    /// How exactly uses are kept: a minute at most, and less in a store whose records are all younger.
    func touchStep(at now: Int64) throws(StoreFailure) -> Int64 {
      guard try oldestUse.next() else { return 0 }
      defer { oldestUse.reset() }
      return min(60_000_000_000, max(0, now - (oldestUse.time(0) ?? now)) / 16)
    }

    /// In the order of the rows, so that each page is written once.
    func write(touches: [Int64: Int64]) throws(StoreFailure) {
      try transaction { (_) throws(StoreFailure) in
        let step = try touchStep(at: touches.values.max() ?? 0)
        for (id, moment) in touches.sorted(by: { $0.key < $1.key }) {
          touch.bind(1, id)
          touch.bind(2, moment)
          touch.bind(3, step)
          try touch.run()
        }
      }
    }

    func write(uses: [([UInt8], Int64)]) throws(StoreFailure) {
      var ids: [Int64: Int64] = [:]
      for (hash, key, moment) in inIndexOrder(uses) {
        identify.bind(1, hash)
        identify.bind(2, key)
        defer { identify.reset() }
        if try identify.next() { ids[identify.number(0)] = moment }
      }
      if !ids.isEmpty { try write(touches: ids) }
    }

    /// Removes damaged rows; one that is another by now stays.
    func remove(_ damaged: Set<ReadRow>) throws(StoreFailure) {
      try transaction { (files) throws(StoreFailure) in
        for row in damaged where try isStill(row) { try remove(row.id, &files) }
      }
    }

    /// Whether a row is the one that was read.
    private func isStill(_ row: ReadRow) throws(StoreFailure) -> Bool {
      readSum.bind(1, row.id)
      var isSame = false
      try readSum.run { isSame = readSum.number(0) == row.sum && readSum.optionalNumber(1) == row.file }
      return isSame
    }

    /// Removes records without a row of their life, which only damage leaves.
    func removeLifeless() throws(StoreFailure) {
      let lifeless = try connection.prepare("SELECT id FROM record WHERE id NOT IN (SELECT id FROM life)")
      try transaction { (files) throws(StoreFailure) in
        for id in try self.ids(lifeless, {}) { try remove(id, &files) }
        try recount()
      }
    }

    // MARK: Limits

    /// Removes the records whose time is over, as long as there is nothing else to do, but some slices at least. Returns how
    /// many.
    @discardableResult
    func removeExpired(at now: Int64, while isFree: () -> Bool = { true }) throws(StoreFailure) -> Int {
      var (count, slices) = (0, 0)
      while slices < Self.leastSlices || isFree() {
        slices += 1
        var slice = 0
        try transaction { (files) throws(StoreFailure) in
          let ids = try self.ids(expired) {
            expired.bind(1, now)
            expired.bind(2, Self.sliceCount)
          }
          // In the order of the rows.
          for id in ids.sorted() { try removeNamed(id, &files) }
          slice = ids.count
        }
        count += slice
        if slice < Int(Self.sliceCount) { break }
      }
      return count
    }

    private var evictedCount = 0

    /// Since the last time that it was asked.
    func takeEvictedCount() -> Int { exchange(&evictedCount, with: 0) }

    /// Removes the least recently used until no more than so much is left. `cutsLog`: on a full disk, in steps that become
    /// smaller until they find room.
    func evict(
      at now: Int64, toBytes byteLimit: Int64, count countLimit: Int64, cutsLog: Bool = false
    ) throws(StoreFailure) {
      var sliceCount = cutsLog ? Self.shortSliceCount : Self.sliceCount
      // Others may have stored since this one's last transaction.
      guard let present = try Total.read(readTotal) else { throw Total.missing }
      total = present
      // So much goes seldom, and a damaged total would take what nobody wants to go.
      if !cutsLog, byteLimit < total.byteCount - total.byteCount / 4 || countLimit < total.recordCount - total.recordCount / 4 {
        try countAnew()
      }
      while total.byteCount > byteLimit || total.recordCount > countLimit {
        let before = total.recordCount
        do throws(StoreFailure) {
          try evictSlice(of: sliceCount, at: cutsLog ? nil : now, toBytes: byteLimit, count: countLimit)
        } catch {
          guard cutsLog, error.isFull, sliceCount > 1 else { throw error }
          sliceCount /= 4
          continue
        }
        evictedCount += max(0, Int(before - total.recordCount))
        if cutsLog { try cutLog() }
        if total.recordCount >= before { return }
      }
    }

    /// `now`: nil where there may be no room to change records that were used later than that.
    private func evictSlice(
      of sliceCount: Int64, at now: Int64?, toBytes byteLimit: Int64, count countLimit: Int64
    ) throws(StoreFailure) {
      try transaction { (files) throws(StoreFailure) in
        if let now {
          calm.bind(1, now)
          try calm.run()
        }
        let ids = try self.ids(oldest) { oldest.bind(1, sliceCount) }
        for id in ids {
          guard total.byteCount > byteLimit || total.recordCount > countLimit else { break }
          try removeNamed(id, &files)
        }
        // Nothing is left, whatever the total says.
        if ids.isEmpty { (total.recordCount, total.byteCount) = (0, 0) }
      }
    }

    private func ids(_ statement: Statement, _ bind: () -> Void) throws(StoreFailure) -> [Int64] {
      bind()
      var ids: [Int64] = []
      try statement.run { ids.append(statement.number(0)) }
      return ids
    }

    /// When the next record's time is over.
    func nextExpiry() throws(StoreFailure) -> Int64? {
      guard try nextToExpire.next() else { return nil }
      defer { nextToExpire.reset() }
      return nextToExpire.optionalNumber(0)
    }

    // MARK: Upkeep

    /// Writes the log back where it is long. As long as anybody reads what it began with, it grows all the same: up to the size
    /// of the database, which a reader of all of it may take its time for.
    func checkpointIfLong() throws(StoreFailure) {
      guard connection.logPageCount >= Schema.mostLogPages else { return }
      let count = try checkpoint(cuts: false)
      guard count >= Schema.mostHeldPages, try count >= connection.number("PRAGMA page_count") ?? 0 else { return }
      do { try checkpoint(cuts: true) } catch  where error.isBusy && error.call != "flock" {
        throw StoreFailure(
          code: error.code, isHeldUp: true, call: error.call,
          message: "a reader has kept the log from being written back until it was as long as the database")
      }
    }

    /// Writes all of the log back, as far as readers allow it; false where one does not.
    @discardableResult
    func cutLog() throws(StoreFailure) -> Bool {
      do { try checkpoint(cuts: true) } catch  where error.isBusy { return false }
      return true
    }

    /// Returns how many pages the log has.
    @discardableResult
    func checkpoint(cuts: Bool) throws(StoreFailure) -> Int {
      let count = try locked { (_) throws(StoreFailure) in try connection.checkpoint(cuts: cuts) }
      // The log's own pages stay, until it is cut: it is written over, and what is not there would be read for that.
      writtenBackBytes += max(0, count) * Schema.pageByteCount
      return count
    }

    func takeWrittenBackBytes() -> Int { exchange(&writtenBackBytes, with: 0) }

    /// Gives free pages back to the disk where they are more than a tenth, as long as there is nothing else to do.
    func vacuum(cutsLog: Bool = false, while isFree: () -> Bool = { true }) throws(StoreFailure) {
      let pageCount = cutsLog ? Self.shortVacuumPageCount : Self.vacuumPageCount
      var before = Int64.max
      while let free = try connection.number("PRAGMA freelist_count"), let all = try connection.number("PRAGMA page_count"),
        free > all / 10, free > 64, free < before, isFree()
      {
        before = free
        try locked { (_) throws(StoreFailure) in try connection.run("PRAGMA incremental_vacuum(\(pageCount))") }
        if cutsLog { try cutLog() } else { try checkpointIfLong() }
      }
    }

    func sweepFiles() throws(StoreFailure) {
      try folder.sweepValues { (number) throws(StoreFailure) in
        knowsFile.bind(1, number)
        defer { knowsFile.reset() }
        return try knowsFile.next()
      }
    }

    /// What is committed is on the disk when this returns: a commit alone only has it on its way.
    func synchronize() throws(StoreFailure) {
      if let lost = disk.lost { throw lost }
      do throws(StoreFailure) { try synchronizeAll() } catch {
        disk.note(error)
        throw error
      }
      disk.isSynchronized = true
    }

    private func synchronizeAll() throws(StoreFailure) {
      if disk.hasNewFiles {
        // One call for all of them, and their directories.
        let data = unsafe open(folder.data, O_RDONLY | O_DIRECTORY | O_CLOEXEC)
        guard data >= 0 else { throw .system("open", "\(folder.data) cannot be opened") }
        defer { close(data) }
        guard purgeable__sync_file_system(data) else {
          throw .system("syncfs", "values' files cannot be brought to the disk")
        }
        disk.hasNewFiles = false
      }
      guard let log = try folder.openLog() else { return }
      defer { close(log) }
      if !purgeable__sync_file(log) { throw .system("fsync", "the log cannot be brought to the disk") }
      try folder.synchronizeNames(new: disk.hasNewFolder)
      disk.hasNewFolder = false
    }
  }
#endif
