// SPDX-License-Identifier: MIT
// A look at a store from outside, also while programs use it: what is in it, whether it is sound, and room made in it. For the
// command-line tool.

#if SQLite
  import Glibc
  package import Purgeable

  /// For one thread. Makes no store, and puts nothing aside: what is no store, or another version's, is an error.
  package final class StoreInspection {
    package let folder: String
    /// As the database has it; nil where it says nothing.
    package let keyType: String?

    private let place: StoreFolder
    private let operation: String
    private let connection: Connection
    private let total: Total
    private let hashKey: HashKey

    /// `path`: of a store's folder, or of the database in it.
    package init(_ path: String) throws(PurgeableError) {
      operation = "store \(path)"
      guard FileNumber(of: path) != nil else {
        let number = errno
        throw PurgeableError(
          .invalidArgument("path"), in: operation, errorNumber: number,
          explanation: number == ENOENT ? "there is nothing at this path" : unsafe String(cString: strerror(number)))
      }
      var folder = StoreFolder(existing: path).path
      for part in ["/database", "/data"] where folder.hasSuffix(part) { folder.removeLast(part.utf8.count) }
      if FileNumber(of: folder + "/data/database") == nil { folder = StoreFolder(existing: path).path }
      guard FileNumber(of: folder + "/data/database") != nil else {
        let number = errno
        throw PurgeableError(
          .invalidArgument("path"), in: operation, errorNumber: number == ENOENT || number == ENOTDIR ? 0 : number,
          explanation: number == ENOENT || number == ENOTDIR
            ? "there is no data/database in it: name the folder of a store" : unsafe String(cString: strerror(number)))
      }
      place = StoreFolder(existing: folder)
      self.folder = place.path
      do throws(StoreFailure) {
        let place = place
        (connection, total) = try place.named { () throws(StoreFailure) in try Self.open(place) }
        keyType = try StoreKinds.ofKeys(in: connection)
        hashKey = try HashKey.read(in: connection)
      } catch {
        var error = error
        if error.isDamage { error.message += "; the next program that opens the store begins a new one" }
        throw PurgeableError(error, in: operation)
      }
    }

    private static func open(_ place: StoreFolder) throws(StoreFailure) -> (Connection, Total) {
      do throws(StoreFailure) {
        let connection = try Connection(place.database, makes: false, busyMilliseconds: 5000)
        connection.leaveLogAtEnd()
        // Before anything else is said to it: it may be another program's.
        try Schema.check(connection)
        try connection.run(Schema.connection)
        guard let total = try Total.read(connection.prepare(Schema.readTotal)) else { throw Total.missing }
        return (connection, total)
      } catch {
        // Even to open it takes some room. Without a reserve the second try fails, and is the last.
        guard error.isFull, place.giveReserveUp() else { throw error }
        return try open(place)
      }
    }

    private func failing<R>(_ body: () throws(StoreFailure) -> R) throws(PurgeableError) -> R {
      do throws(StoreFailure) { return try body() } catch { throw PurgeableError(error, in: operation) }
    }

    private func count(_ statement: String) throws(StoreFailure) -> Int {
      Int(clamping: try connection.number(statement) ?? 0)
    }

    // MARK: What is in it

    package struct Summary: Sendable {
      package var recordCount = 0
      /// Of keys and values, and 100 a record.
      package var byteCount = 0
      package var expiredCount = 0
      /// Values that are files beside the database.
      package var fileCount = 0
      package var fileByteCount = 0
      /// Records whose last use is no longer ago than each of `ages`, and not within the one before; then all others.
      package var usedCounts: [Int] = []
      /// Bytes on the disk.
      package var databaseByteCount = 0
      package var freeByteCount = 0
      package var logByteCount = 0
      /// Databases that were put aside as damaged.
      package var asideCount = 0

      /// Seconds: an hour, a day, a week, a month.
      package static let ages: [Int64] = [3600, 86_400, 7 * 86_400, 30 * 86_400]
    }

    package func summary() throws(PurgeableError) -> Summary {
      try failing { () throws(StoreFailure) in
        var summary = Summary()
        let now = WallTime.now
        summary.recordCount = try count("SELECT count(*) FROM life")
        summary.byteCount = try count("SELECT \(Schema.sumOfSizes) FROM life")
        summary.expiredCount = try count("SELECT count(*) FROM life WHERE expires IS NOT NULL AND expires<=\(now)")
        summary.fileCount = try count("SELECT count(*) FROM record WHERE file IS NOT NULL")
        summary.fileByteCount = try count(
          "SELECT \(Schema.sumOfSizes) FROM life WHERE id IN (SELECT id FROM record WHERE file IS NOT NULL)")
        var youngest = Int64.max
        for age in Summary.ages + [now / 1_000_000_000] {
          let oldest = now - age * 1_000_000_000
          summary.usedCounts.append(try count("SELECT count(*) FROM life WHERE used>=\(oldest) AND used<\(youngest)"))
          youngest = oldest
        }
        summary.databaseByteCount = StoreFolder.byteCount(place.database)
        summary.freeByteCount = try count("PRAGMA freelist_count") * Schema.pageByteCount
        summary.logByteCount = place.logByteCount
        summary.asideCount = place.damagedCount
        return summary
      }
    }

    /// A record, without its value. Times are nanoseconds since 1970.
    package struct Record: Sendable {
      package var key: [UInt8]
      package var valueByteCount: Int
      package var isFile: Bool
      package var cost: Int?
      package var version: String?
      package var made: Int64
      package var used: Int64
      package var expires: Int64?
    }

    /// The most recently used.
    package func records(most count: Int) throws(PurgeableError) -> [Record] {
      try failing { () throws(StoreFailure) in
        let list = try connection.prepare(
          """
          SELECT key, size, file IS NOT NULL, cost, version, made, used, expires FROM life l JOIN record r ON r.id=l.id
          ORDER BY used DESC LIMIT ?1
          """)
        list.bind(1, Int64(clamping: count))
        var records: [Record] = []
        while try list.next() {
          let key = try list.bytes(0) ?? []
          records.append(
            Record(
              key: key, valueByteCount: Int(list.number(1, in: Schema.sizes)) - StoredRecord.size(key, 0),
              isFile: list.number(2) != 0, cost: list.optionalNumber(3).map { Int($0) }, version: list.text(4),
              made: list.time(5) ?? 0, used: list.time(6) ?? 0, expires: list.time(7)))
        }
        return records
      }
    }

    // MARK: Whether it is sound

    package struct Fault: Sendable {
      /// nil where the fault is not one record's.
      package var key: [UInt8]?
      package var explanation: String
    }

    package struct Check: Sendable {
      package var recordCount = 0
      package var byteCount = 0
      package var faultCount = 0
      /// The first of them.
      package var faults: [Fault] = []

      package static let mostFaults = 20

      fileprivate mutating func note(_ key: [UInt8]?, _ explanation: String) {
        faultCount += 1
        if faults.count < Self.mostFaults { faults.append(Fault(key: key, explanation: explanation)) }
      }
    }

    /// Reads everything. `progress` is called now and then, with the records that were read. What changes meanwhile is no fault.
    package func check(_ progress: (Int) -> Void = { _ in }) throws(PurgeableError) -> Check {
      var check = Check()
      do throws(StoreFailure) {
        do throws(StoreFailure) {
          let verdict = try connection.prepare("PRAGMA integrity_check(\(Check.mostFaults))")
          // Several in one row, under a heading.
          try verdict.run {
            for fault in verdict.text(0)?.split(separator: "\n") ?? [] where fault != "ok" && !fault.hasPrefix("***") {
              check.note(nil, String(fault))
            }
          }
        } catch {
          guard error.isDamage else { throw error }
          check.note(nil, error.message)
        }
        var last = Int64.min
        while let next = try checkSlice(after: last, &check) {
          last = next
          progress(check.recordCount)
        }
        let counts = try connection.prepare("SELECT count(*), (SELECT count(*) FROM life), records FROM record, total")
        if try counts.next(), counts.number(0) != counts.number(1) || counts.number(0) != counts.number(2) {
          check.note(
            nil, "\(counts.number(0)) records in table record, \(counts.number(1)) in life, \(counts.number(2)) by table total")
        }
      } catch {
        // It ends here, since nothing behind this can be read.
        guard error.isDamage else { throw PurgeableError(error, in: operation) }
        check.note(nil, error.message)
      }
      return check
    }

    /// A few records, so that no writer's log waits for all of them. Answers the last one's row; nil at the end.
    private func checkSlice(after row: Int64, _ check: inout Check) throws(StoreFailure) -> Int64? {
      let slice = try connection.prepare(
        """
        SELECT r.id, key, format, cost, sum, version, file, value, hash, size, r.deadline, r.idle
        FROM record r LEFT JOIN life l ON l.id=r.id WHERE r.id>?1 ORDER BY r.id LIMIT 100
        """)
      slice.bind(1, row)
      var suspects: [(id: Int64, key: [UInt8], sum: Int64, explanation: String)] = []
      var last: Int64?
      while try slice.next() {
        let (id, key) = (slice.number(0), try slice.bytes(1) ?? [])
        last = id
        var record = StoredRecord(
          value: try slice.bytes(7) ?? [], format: UInt32(truncatingIfNeeded: slice.number(2)), cost: slice.optionalNumber(3),
          version: slice.text(5), made: 0, used: 0, deadline: slice.time(10), idle: slice.time(11))
        var explanation: String?
        if slice.optionalNumber(9) == nil { explanation = "it has no row in table life: neither limits nor uses know it" }
        if slice.number(8) != hashKey.hash(key) { explanation = "it is under the hash of another key" }
        let byteCount = Int(slice.number(9, in: Schema.sizes)) - StoredRecord.size(key, 0)
        if explanation == nil, let file = slice.optionalNumber(6) {
          if let value = try place.readValue(file, byteCount: byteCount) {
            record.value = value
          } else {
            explanation = "the file of its value is missing or cut"
          }
        }
        if explanation == nil, record.sum(key) != slice.number(4) { explanation = "its checksum does not match" }
        if let explanation { suspects.append((id, key, slice.number(4), explanation)) }
        check.recordCount += 1
        check.byteCount += key.count + record.value.count
      }
      // Files are read later than rows: what has gone meanwhile is no fault. The statement above has ended, and with it what it
      // saw.
      let sum = try connection.prepare(Schema.readSum)
      for suspect in suspects {
        sum.bind(1, suspect.id)
        let isThere = try sum.next() && sum.number(0) == suspect.sum
        sum.reset()
        if isThere { check.note(suspect.key, suspect.explanation) }
      }
      return last
    }

    // MARK: Room

    /// Removes what no limit knows of and what has expired, and then the least recently used until at most so many bytes are
    /// left; the files shrink. Returns how many records went.
    package func trim(toBytes byteCount: Int) throws(PurgeableError) -> Int {
      try failing { () throws(StoreFailure) in
        let writer = try place.locked { () throws(StoreFailure) in try StoreWriter(place, fileThreshold: .max) }
        func remove(cutsLog: Bool) throws(StoreFailure) {
          try writer.removeLifeless()
          try writer.removeExpired(at: WallTime.now)
          try writer.evict(at: WallTime.now, toBytes: Int64(byteCount), count: .max, cutsLog: cutsLog)
          try writer.vacuum(cutsLog: cutsLog)
        }
        do throws(StoreFailure) { try remove(cutsLog: false) } catch {
          var error = error
          if error.isDamage { error.message += "; remove the folder, and the next program begins a new store" }
          guard error.isFull else { throw error }
          // Even what is removed has to be written first.
          place.giveReserveUp()
          try writer.cutLog()
          try remove(cutsLog: true)
        }
        try writer.cutLog()
        return writer.removedCount
      }
    }
  }
#endif
