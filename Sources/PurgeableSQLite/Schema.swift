// SPDX-License-Identifier: MIT
// The tables of a store, and the statements on them.
//
//   record   what a value is; never changed in place, since its pages are many. A new value is a new row at the end. Alone it
//            answers a look-up, unless the record expires after its last use
//   life     what changes with each use, and what decides which record goes: rows so narrow that twenty thousand uses are
//            written in a thousand pages
//   total    one row: how many records there are, and their bytes; and the key of the hash
//   kind     what the types of keys and of values are called, whose bytes mean nothing to another type; and the key of the hash
//            once more; each with a sum
//
// A record is found by a hash of its key, of 64 bits, and then by the key itself. The hash is keyed (SipHash) by a number that is
// random for each store, so that nobody can make keys that lie together. Times are nanoseconds since 1970.

#if SQLite
  import CPurgeableFiles

  enum Schema {
    /// "PRGS".
    static let application: Int64 = 0x5052_4753
    static let version: Int64 = 1

    /// Pages of 8 KiB hold seven values of a kibibyte, and are written in three quarters of the time that those of 4 KiB take.
    static let pageByteCount = 8192
    /// The log is written back from so many pages on: 16 MiB.
    static let mostLogPages = 2048
    /// And may reach so many while a reader stands in its way: 48 MiB.
    static let mostHeldPages = 6144

    /// Of moments, and of times.
    static let latest: Int64 = 1 << 62 - 1

    /// Of records.
    static let sizes: ClosedRange<Int64> = 0...1 << 40

    /// Throws where the tables are another program's, or of a version that this one does not know.
    static func check(_ connection: Connection) throws(StoreFailure) {
      let version = try connection.number("PRAGMA user_version") ?? 0
      // One changed bit of ours makes no newer version: a version must differ in more.
      let isOlderOrDamaged = version < 1 || (version ^ self.version).nonzeroBitCount == 1
      guard try connection.number("PRAGMA application_id") == application, !isOlderOrDamaged else {
        let tableCount = try connection.number("SELECT count(*) FROM sqlite_schema")
        throw StoreFailure(
          code: StoreFailure.damageCode, call: "sqlite3_open_v2",
          message: tableCount == 0 ? "there is no table in it" : "it is another program's database")
      }
      if version > self.version {
        throw StoreFailure(
          isRefused: true, call: "sqlite3_open_v2", message: "a newer version (\(version)) of this library wrote it")
      }
      // Without an index each look-up would go through all of a table.
      guard try connection.number(countParts) == 8 else {
        throw StoreFailure(
          code: StoreFailure.damageCode, call: "sqlite3_open_v2", message: "a table or an index of it has been removed")
      }
    }

    private static let countParts = """
      SELECT count(*) FROM sqlite_schema WHERE type='table' AND name IN ('record', 'life', 'total', 'kind')
        OR type='index' AND name IN ('record_hash', 'record_file', 'life_used', 'life_expires')
      """

    /// Before there is a table.
    static let foundation = """
      PRAGMA page_size=\(pageByteCount); PRAGMA auto_vacuum=INCREMENTAL; PRAGMA journal_mode=WAL;
      """

    /// For each connection. What a distribution sets by default differs, so all of it is set here. Nothing of it writes: a reader
    /// that finds a file which is being made must not begin a database in it, of other pages.
    static let connection = """
      PRAGMA synchronous=NORMAL; PRAGMA secure_delete=OFF; PRAGMA mmap_size=0; PRAGMA cache_size=-2048;
      PRAGMA temp_store=MEMORY; PRAGMA wal_autocheckpoint=0; PRAGMA journal_size_limit=16777216; PRAGMA trusted_schema=OFF;
      PRAGMA cell_size_check=ON;
      """
    /// For the writer's, too: a cache that holds the pages of a batch, each of which is then written once.
    static let writing = "PRAGMA journal_mode=WAL; PRAGMA cache_size=-8192"

    /// `life` has no NOT NULL: SQLite keeps a journal for a statement that may replace a row and fail.
    static let tables = """
      CREATE TABLE record(id INTEGER PRIMARY KEY, hash INTEGER NOT NULL, key BLOB NOT NULL, format INTEGER NOT NULL,
        cost INTEGER, made INTEGER NOT NULL, sum INTEGER NOT NULL, version TEXT, deadline INTEGER, idle INTEGER, file INTEGER,
        value BLOB);
      CREATE TABLE life(id INTEGER PRIMARY KEY, used INTEGER, size INTEGER, expires INTEGER, deadline INTEGER, idle INTEGER);
      CREATE TABLE total(id INTEGER PRIMARY KEY, records INTEGER NOT NULL, bytes INTEGER NOT NULL, low INTEGER NOT NULL,
        high INTEGER NOT NULL);
      CREATE TABLE kind(what TEXT PRIMARY KEY, type TEXT NOT NULL) WITHOUT ROWID;
      CREATE INDEX record_hash ON record(hash);
      CREATE INDEX record_file ON record(file) WHERE file IS NOT NULL;
      CREATE INDEX life_used ON life(used, size);
      CREATE INDEX life_expires ON life(expires) WHERE expires IS NOT NULL;
      PRAGMA application_id=\(application); PRAGMA user_version=\(version);
      """

    // MARK: Statements

    static let find = """
      SELECT id, deadline, idle, format, cost, made, sum, version, file, value FROM record WHERE hash=?1 AND key=?2
      """
    static let has = "SELECT id, deadline, idle FROM record WHERE hash=?1 AND key=?2"
    static let lifeOf = "SELECT used, expires, size FROM life WHERE id=?1"
    static let identify = "SELECT id FROM record WHERE hash=?1 AND key=?2"
    static let removeRecord = "DELETE FROM record WHERE id=?1 RETURNING file"
    static let removeLife = "DELETE FROM life WHERE id=?1 RETURNING size"
    static let insertRecord = """
      INSERT INTO record(hash, key, format, cost, made, sum, version, deadline, idle, file, value)
      VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)
      """
    static let insertLife = "INSERT OR REPLACE INTO life(id, used, size, expires, deadline, idle) VALUES(?1, ?2, ?3, ?4, ?5, ?6)"
    /// A little more or less, ?3, decides nothing, unless the record's time is short.
    static let touch = """
      UPDATE life SET used=?2, expires=CASE WHEN idle IS NULL THEN expires ELSE min(?2+idle, coalesce(deadline, ?2+idle)) END
      WHERE id=?1 AND used<?2-min(?3, coalesce(idle/16, ?3))
      """
    static let oldestUse = "SELECT min(used) FROM life"
    /// Where the clock was ahead once.
    static let calm = "UPDATE life SET used=?1 WHERE used>?1"
    static let oldest = "SELECT id FROM life ORDER BY used LIMIT ?1"
    static let expired = "SELECT id FROM life WHERE expires IS NOT NULL AND expires<=?1 ORDER BY expires LIMIT ?2"
    static let nextToExpire = "SELECT min(expires) FROM life WHERE expires IS NOT NULL"
    static let readTotal = "SELECT records, bytes FROM total"
    static let readHashKey = "SELECT low, high FROM total"
    static let writeHashKey = "UPDATE total SET low=?1, high=?2"
    static let writeTotal = "UPDATE total SET records=?1, bytes=?2"
    static let sumOfSizes = "coalesce(sum(min(max(size, 0), \(sizes.upperBound))), 0)"
    static let countAll = "SELECT count(*), \(sumOfSizes) FROM life"
    static let readSum = "SELECT sum, file FROM record WHERE id=?1"
    static let knowsFile = "SELECT 1 FROM record WHERE file=?1"
    static let readKind = "SELECT type FROM kind WHERE what=?1"
    static let writeKind = "INSERT OR REPLACE INTO kind(what, type) VALUES(?1, ?2)"
  }

  /// What the hash of a store's keys is keyed by.
  struct HashKey: Equatable, Sendable {
    var low: UInt64
    var high: UInt64

    static func random() -> HashKey { HashKey(low: .random(in: 0 ... .max), high: .random(in: 0 ... .max)) }

    /// Table `kind` has it with a sum, and `total` as it is: what has changed in one of them stands in the other.
    static func read(in connection: Connection) throws(StoreFailure) -> HashKey {
      if let its = try said(in: connection) { return its }
      return try copy(in: connection)
    }

    private static func copy(in connection: Connection) throws(StoreFailure) -> HashKey {
      let read = try connection.prepare(Schema.readHashKey)
      guard try read.next() else { throw Total.missing }
      return HashKey(low: UInt64(bitPattern: read.number(0)), high: UInt64(bitPattern: read.number(1)))
    }

    private static let what = "hash"

    private static func said(in connection: Connection) throws(StoreFailure) -> HashKey? {
      let numbers = try StoreKinds.undamaged(what, in: connection)?.split(separator: " ").compactMap { UInt64($0) } ?? []
      return numbers.count == 2 ? HashKey(low: numbers[0], high: numbers[1]) : nil
    }

    /// Both say it afterwards. For the holder of the lock.
    func write(to connection: Connection) throws(StoreFailure) {
      if try Self.said(in: connection) != self { try StoreKinds.say("\(low) \(high)", of: Self.what, in: connection) }
      if try Self.copy(in: connection) == self { return }
      let write = try connection.prepare(Schema.writeHashKey)
      write.bind(1, Int64(bitPattern: low))
      write.bind(2, Int64(bitPattern: high))
      try write.run()
    }

    func hash(_ key: [UInt8]) -> Int64 {
      Int64(bitPattern: unsafe key.withUnsafeBytes { unsafe purgeable__siphash(low, high, $0.baseAddress, $0.count) })
    }
  }
#endif
