// SPDX-License-Identifier: MIT
// A connection to SQLite, and its statements: all that this module calls of SQLite is called here.

#if SQLite
  import CSQLite
  import Glibc
  import Purgeable

  /// What SQLite, or a system call on its files, said.
  package struct StoreFailure: Error {
    /// SQLite's result, extended; 0 for a system call.
    var code: Int32 = 0
    /// errno, 0 where there is none.
    var number: Int32 = 0
    /// The database has gone from its place.
    var isGone = false
    /// The database is sound, and not for this program: a newer version wrote it, or one with other types.
    var isRefused = false
    /// The log is long, and a reader that does not end keeps it from being written back.
    var isHeldUp = false
    var call: String
    var message: String

    static let busyCode = SQLITE_BUSY
    static let damageCode = SQLITE_CORRUPT

    /// Without what extends it.
    var primary: Int32 { code & 0xFF }

    /// Of a system call that has just failed.
    static func system(_ call: String, _ what: String) -> StoreFailure {
      let number = errno
      return StoreFailure(number: number, call: call, message: "\(what) (\(unsafe String(cString: strerror(number))))")
    }

    /// The file is none that SQLite can go on with.
    var isDamage: Bool { [SQLITE_CORRUPT, SQLITE_NOTADB, SQLITE_CONSTRAINT].contains(primary) }

    /// Its files cannot be opened, or not be read.
    var isOfFiles: Bool { primary == SQLITE_CANTOPEN || primary == SQLITE_IOERR }

    /// Its tables are not what its version says.
    var isOfSchema: Bool { code == SQLITE_ERROR }

    /// No room on the disk, or in what the process or the user may write. Of a write that failed otherwise SQLite may not keep
    /// why; a limit is more likely than a disk that breaks.
    var isFull: Bool {
      primary == SQLITE_FULL || code == Self.writeCode && number == 0 || number == ENOSPC || number == EDQUOT || number == EFBIG
    }

    /// SQLite may not say it of a disk that is full.
    var errorNumber: Int32 { isFull && number == 0 ? ENOSPC : number }

    /// The kernel could not bring to the disk what it had taken.
    var isOfSynchronization: Bool { [Self.fileCode, Self.directoryCode].contains(code) || call == "fsync" || call == "syncfs" }

    // SQLITE_IOERR_WRITE, _FSYNC and _DIR_FSYNC, which Swift cannot import.
    private static let writeCode = SQLITE_IOERR | 3 << 8
    private static let (fileCode, directoryCode) = (SQLITE_IOERR | 4 << 8, SQLITE_IOERR | 5 << 8)

    var isWantOfMemory: Bool { primary == SQLITE_NOMEM || number == ENOMEM }

    /// It may go by itself: somebody else is at work, or something is short for a while.
    var passes: Bool { isBusy || isWantOfMemory || number == EMFILE || number == ENFILE || number == ENOLCK }

    /// Somebody else is at work on it.
    var isBusy: Bool { primary == SQLITE_BUSY || primary == SQLITE_LOCKED || primary == SQLITE_PROTOCOL }
  }

  extension PurgeableError {
    init(_ failure: StoreFailure, in operation: String) {
      let kind: Kind
      switch failure {
      case _ where failure.isRefused || failure.isDamage: kind = .invalidFile
      case _ where failure.isBusy: kind = .busy
      case _ where failure.isWantOfMemory: kind = .outOfMemory
      case _ where failure.number == ENOTSUP: kind = .notSupported
      default: kind = .systemCallFailed(call: failure.call)
      }
      let code = failure.code == 0 ? "" : "; SQLite's result \(failure.code)"
      let cause = failure.isFull ? "there is no room on the disk, or in what may be written: " : ""
      self.init(kind, in: operation, errorNumber: failure.errorNumber, explanation: cause + failure.message + code)
    }
  }

  /// For one thread at a time. `@safe`: the handle is its own.
  @safe package final class Connection: @unchecked Sendable {
    private let handle: OpaquePointer
    /// Pages in the log, as the last commit left it.
    private(set) var logPageCount = 0

    /// Opens the file, and makes it where `makes` says so.
    package init(_ path: String, makes: Bool, busyMilliseconds: Int32) throws(StoreFailure) {
      OpenDatabases.shared.addConnection()
      var opened: OpaquePointer?
      let flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_NOFOLLOW | (makes ? SQLITE_OPEN_CREATE : 0)
      let code = unsafe sqlite3_open_v2(path, &opened, flags, nil)
      guard let opened = unsafe opened, code == SQLITE_OK else {
        let failure = unsafe StoreFailure(
          code: code, number: opened.map { unsafe sqlite3_system_errno($0) } ?? 0, call: "sqlite3_open_v2",
          message: "\(path): \(String(cString: sqlite3_errstr(code)))")
        unsafe sqlite3_close_v2(opened)
        OpenDatabases.shared.removeConnection()
        throw failure
      }
      unsafe handle = opened
      unsafe sqlite3_extended_result_codes(handle, 1)
      unsafe sqlite3_busy_timeout(handle, busyMilliseconds)
      unsafe purgeable__forbid_programs(handle)
    }

    /// Statements keep the connection: they are gone by now.
    deinit {
      unsafe sqlite3_close_v2(handle)
      OpenDatabases.shared.removeConnection()
    }

    /// Who closes the last connection writes the log back, and deletes it **by its name**: after a rename that is another
    /// database's. So connections leave it, but for that of a writer that knows whose name it is.
    func leaveLogAtEnd(_ leaves: Bool = true) { _ = unsafe purgeable__leave_log(handle, leaves ? 1 : 0) }

    /// Runs statements that answer nothing, or whose answer nobody needs.
    package func run(_ text: String) throws(StoreFailure) {
      let code = unsafe sqlite3_exec(handle, text, nil, nil, nil)
      if code != SQLITE_OK { throw failure(code, "sqlite3_exec", text) }
    }

    package func prepare(_ text: String) throws(StoreFailure) -> Statement {
      var made: OpaquePointer?
      let code = unsafe sqlite3_prepare_v3(handle, text, -1, UInt32(SQLITE_PREPARE_PERSISTENT), &made, nil)
      guard let made = unsafe made, code == SQLITE_OK else { throw failure(code, "sqlite3_prepare_v3", text) }
      return unsafe Statement(self, made)
    }

    /// The number that a statement answers first; nil where it answers none.
    func number(_ text: String) throws(StoreFailure) -> Int64? {
      let statement = try prepare(text)
      return try statement.next() ? statement.number(0) : nil
    }

    fileprivate func failure(_ code: Int32, _ call: String, _ text: String) -> StoreFailure {
      // Of other results it is what an earlier one left.
      let hasNumber = [SQLITE_IOERR, SQLITE_CANTOPEN, SQLITE_FULL].contains(code & 0xFF)
      return unsafe StoreFailure(
        code: code, number: hasNumber ? sqlite3_system_errno(handle) : 0, call: call,
        message: "\(String(cString: sqlite3_errmsg(handle))), in \"\(text.prefix(60))\"")
    }

    var lastRowID: Int64 { unsafe sqlite3_last_insert_rowid(handle) }
    var isInTransaction: Bool { unsafe sqlite3_get_autocommit(handle) == 0 }

    /// Writes the log back to the database, as far as no reader needs it. `cuts`: waits for readers, and cuts it. Returns how
    /// many pages the log has.
    @discardableResult
    package func checkpoint(cuts: Bool) throws(StoreFailure) -> Int {
      var (log, done): (Int32, Int32) = (0, 0)
      let code = unsafe sqlite3_wal_checkpoint_v2(
        handle, nil, cuts ? SQLITE_CHECKPOINT_TRUNCATE : SQLITE_CHECKPOINT_PASSIVE, &log, &done)
      if code != SQLITE_OK { throw failure(code, "sqlite3_wal_checkpoint_v2", "checkpoint") }
      logPageCount = cuts ? 0 : Int(log - done)
      return cuts ? 0 : Int(log)
    }

    /// Of the log that this connection has open, whatever its name leads to.
    var logByteCount: Int64 { unsafe purgeable__log_byte_count(handle) }

    /// From here on `logPageCount` is kept.
    func watchLog() {
      let context = unsafe Unmanaged.passUnretained(self).toOpaque()
      // Safe: called within calls of this connection, so it lives.
      _ = unsafe sqlite3_wal_hook(
        handle,
        { context, _, _, count in
          unsafe Unmanaged<Connection>.fromOpaque(context!).takeUnretainedValue().logPageCount = Int(count)
          return SQLITE_OK
        }, context)
    }

    func releaseMemory() { unsafe sqlite3_db_release_memory(handle) }

  }

  /// One thread at a time, that of its connection.
  @safe package final class Statement {
    private let connection: Connection
    private let handle: OpaquePointer
    /// What the first bind said that failed.
    private var badBind = SQLITE_OK

    fileprivate init(_ connection: Connection, _ handle: OpaquePointer) {
      self.connection = connection
      unsafe self.handle = handle
    }

    deinit { unsafe sqlite3_finalize(handle) }

    // MARK: Parameters, from 1

    package func bind(_ index: Int32, _ number: Int64?) {
      guard let number else { return unsafe discard(sqlite3_bind_null(handle, index)) }
      unsafe discard(sqlite3_bind_int64(handle, index, number))
    }

    package func bind(_ index: Int32, _ text: String?) {
      guard let text else { return unsafe discard(sqlite3_bind_null(handle, index)) }
      unsafe discard(sqlite3_bind_text(handle, index, text, Int32(text.utf8.count), Self.copies))
    }

    package func bind(_ index: Int32, _ bytes: [UInt8]?) {
      guard let bytes else { return unsafe discard(sqlite3_bind_null(handle, index)) }
      // An empty array may have no address, which would be bound as NULL.
      guard !bytes.isEmpty else { return unsafe discard(sqlite3_bind_zeroblob(handle, index, 0)) }
      unsafe discard(sqlite3_bind_blob64(handle, index, bytes, UInt64(bytes.count), Self.copies))
    }

    /// A bind fails for want of memory, or for too many bytes. The statement then fails as it is run.
    private func discard(_ code: Int32) {
      if badBind == SQLITE_OK { badBind = code }
    }

    /// SQLITE_TRANSIENT, which is no constant that Swift can import.
    private static var copies: sqlite3_destructor_type { unsafe unsafeBitCast(-1, to: sqlite3_destructor_type.self) }

    // MARK: Steps

    /// The next row; false where there is none, and the statement begins anew.
    package func next() throws(StoreFailure) -> Bool {
      let code = badBind == SQLITE_OK ? unsafe sqlite3_step(handle) : badBind
      if code == SQLITE_ROW { return true }
      let failure =
        code == SQLITE_DONE ? nil : unsafe connection.failure(code, "sqlite3_step", String(cString: sqlite3_sql(handle)))
      reset()
      if let failure { throw failure }
      return false
    }

    /// Runs it to its end. Row by row, `body` looks at it.
    package func run(_ body: () -> Void = {}) throws(StoreFailure) {
      while try next() { body() }
    }

    /// Runs it to its end with bytes for a parameter, which are not copied for it; nil stands for NULL.
    func run(with bytes: [UInt8]?, for index: Int32) throws(StoreFailure) {
      guard let bytes, !bytes.isEmpty else {
        bind(index, bytes)
        return try run()
      }
      try unsafe bytes.span.withUnsafeBytes { (bytes) throws(StoreFailure) in
        // Safe: a statement that has run to its end has no parameters any more.
        unsafe discard(sqlite3_bind_blob64(handle, index, bytes.baseAddress, UInt64(bytes.count), nil))
        try run()
      }
    }

    /// Ends what it read: a reader that does not stands in the way of the log.
    package func reset() {
      unsafe sqlite3_reset(handle)
      unsafe sqlite3_clear_bindings(handle)
      badBind = SQLITE_OK
    }

    // MARK: Columns, from 0

    func number(_ column: Int32) -> Int64 { unsafe sqlite3_column_int64(handle, column) }

    func optionalNumber(_ column: Int32) -> Int64? {
      unsafe sqlite3_column_type(handle, column) == SQLITE_NULL ? nil : number(column)
    }

    func text(_ column: Int32) -> String? {
      guard let text = unsafe sqlite3_column_text(handle, column) else { return nil }
      let count = Int(unsafe sqlite3_column_bytes(handle, column))
      return unsafe String(decoding: UnsafeBufferPointer(start: text, count: count), as: UTF8.self)
    }

    /// A number that is to be of a range: whatever is there, it is in it. All arithmetic on such numbers is then free of
    /// overflow.
    func number(_ column: Int32, in range: ClosedRange<Int64>) -> Int64 {
      min(max(number(column), range.lowerBound), range.upperBound)
    }

    /// A moment or a time, in nanoseconds.
    func time(_ column: Int32) -> Int64? { optionalNumber(column).map { min(max($0, 0), Schema.latest) } }

    /// A copy; nil for NULL.
    package func bytes(_ column: Int32) throws(StoreFailure) -> [UInt8]? {
      guard unsafe sqlite3_column_type(handle, column) != SQLITE_NULL else { return nil }
      let count = Int(unsafe sqlite3_column_bytes(handle, column))
      guard count > 0 else { return [] }
      guard StoredRecord.hasMemory(for: count) else {
        throw StoreFailure(code: SQLITE_NOMEM, call: "malloc", message: "there is no memory for a value of \(count) bytes")
      }
      guard let start = unsafe sqlite3_column_blob(handle, column) else {
        throw StoreFailure(code: SQLITE_NOMEM, call: "sqlite3_column_blob", message: "there is no memory for a value")
      }
      return unsafe [UInt8](UnsafeRawBufferPointer(start: start, count: count))
    }
  }
#endif
