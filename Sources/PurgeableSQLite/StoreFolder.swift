// SPDX-License-Identifier: MIT
// A store's folder.
//
//   NAME                  locked (flock) by who opens a database, shared, and by who puts one aside, alone
//   NAME/CACHEDIR.TAG     for programs that make backups: what is in here can be made again
//   NAME/lock             locked (flock) by who writes: one process, and one store of it, at a time
//   NAME/data/database    and what SQLite puts beside it
//   NAME/data/values/XX/  values that are too long for a row, under random names
//   NAME/data/reserve     bytes to give up when the disk is full: even a removal has to be written
//   NAME/damaged.RANDOM   what `data` was; on its way to be deleted
//
// A damaged database is put aside with all that belongs to it, by one rename: SQLite would mend the new file by the old log.

#if SQLite
  import CPurgeableFiles
  import Glibc
  import Purgeable

  struct StoreFolder: Sendable {
    let path: String

    var data: String { "\(path)/data" }
    var database: String { "\(data)/database" }
    var log: String { "\(database)-wal" }
    var sharedMemory: String { "\(database)-shm" }
    private var lock: String { "\(path)/lock" }
    private var values: String { "\(data)/values" }
    private var reserve: String { "\(data)/reserve" }

    static let reserveByteCount = 2 << 20
    private static let tag = """
      Signature: 8a477f597d28d172789f06886806bc55
      # A cache of the Swift library Purgeable. All that is in this folder can be deleted.

      """

    /// Makes what is missing of the folder.
    static func open(_ name: String, in directory: String?, operation: String) throws(PurgeableError) -> StoreFolder {
      func refusal(_ argument: String, _ explanation: String) -> PurgeableError {
        PurgeableError(.invalidArgument(argument), in: operation, explanation: explanation)
      }
      guard !name.isEmpty, name != ".", name != "..", !name.utf8.contains(UInt8(ascii: "/")), !name.utf8.contains(0) else {
        throw refusal("name", "\"\(name)\" is no name of a folder")
      }
      if let directory, directory.isEmpty || directory.utf8.contains(0) {
        throw refusal("directory", "\"\(directory)\" is no path of a directory")
      }
      guard let base = directory ?? cacheDirectory() else {
        throw refusal("directory", "neither XDG_CACHE_HOME nor HOME is set: give a directory")
      }
      let path = "\(base)/\(name)"
      let folder = StoreFolder(path: path)
      let isOurs: Bool
      do { isOurs = try folder.isOurs() } catch { throw PurgeableError(error, in: operation) }
      guard isOurs else { throw refusal("name", folder.refusal) }
      do { try folder.make() } catch { throw PurgeableError(error, in: operation) }
      return StoreFolder(existing: path)
    }

    private var refusal: String { "\(path) has files that are no store's: give another name, or another directory" }

    private init(path: String) { self.path = path }

    // MARK: Whose it is

    /// Whether all that is in the folder is a store's: with what is damaged goes whatever lies beside it.
    private func isOurs() throws(StoreFailure) -> Bool {
      if try hasTag() { return true }
      // Somebody may have removed the tag, or a power cut.
      let (names, dataNames) = (try Self.knownNames(in: path), try Self.knownNames(in: data))
      guard [nil, S_IFREG].contains(Self.kind(lock)), [nil, S_IFDIR].contains(Self.kind(data)), let database = try databaseOwner()
      else { return false }
      return names.allSatisfy {
        ["lock", "data", "CACHEDIR.TAG", "lost+found"].contains($0) || database == .this && $0.hasPrefix("damaged.")
      } && dataNames.allSatisfy { ["values", "reserve"].contains($0) || Self.databaseNames.contains($0) }
    }

    private static let databaseNames = ["", "-wal", "-shm", "-journal"].map { "database\($0)" }

    private func hasTag() throws(StoreFailure) -> Bool {
      try Self.start(of: "\(path)/CACHEDIR.TAG", Self.tag.utf8.count).elementsEqual(Self.tag.utf8)
    }

    private enum Owner { case nobody, this }

    /// Whose the database is by its header; nil: another program's. One that was just begun may have its number in the log alone.
    private func databaseOwner() throws(StoreFailure) -> Owner? {
      // Another store of this process has it open, whose locks would go with any descriptor.
      if FileNumber(of: database).map({ OpenDatabases.shared.has($0) }) ?? false { return .this }
      let header = try Self.start(of: database, 100)
      if header.isEmpty { return [nil, S_IFREG].contains(Self.kind(database)) && Self.byteCount(database) == 0 ? .nobody : nil }
      guard header.count == 100 else { return nil }
      if header[68..<72].reduce(0, { $0 << 8 | Int64($1) }) == Schema.application { return .this }
      let isBegun = header[16..<18].elementsEqual([UInt8(Schema.pageByteCount >> 8), 0])
      return isBegun && Self.byteCount(database) <= Schema.pageByteCount ? .nobody : nil
    }

    /// The first bytes of a file; none of what is no file.
    private static func start(of path: String, _ count: Int) throws(StoreFailure) -> [UInt8] {
      let file = unsafe Glibc.open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)
      if file < 0 {
        if [ENOENT, ENOTDIR, ELOOP, ENXIO].contains(errno) { return [] }
        throw .system("open", "\(path) cannot be read")
      }
      defer { close(file) }
      return unsafe [UInt8](unsafeUninitializedCapacity: count) {
        unsafe $1 = max(0, read(file, $0.baseAddress!, $0.count))
      }
    }

    /// SQLite is told to follow no links, of which there may be some on the way here.
    init(existing path: String) {
      guard let real = unsafe realpath(path, nil) else {
        self.path = path
        return
      }
      self.path = unsafe String(cString: real)
      unsafe free(real)
    }

    /// As at the opening. Another folder may have come in its place.
    func prepare() throws(StoreFailure) {
      guard try isOurs() else { throw StoreFailure(number: EEXIST, call: "open", message: refusal) }
      try make()
    }

    /// Makes what is missing, and puts aside what is none of a store's files where one belongs.
    private func make() throws(StoreFailure) {
      try makeDirectories(path)
      if Self.isOnNetwork(path) {
        throw StoreFailure(
          number: ENOTSUP, call: "statfs", message: "\(path) is on another machine, where processes cannot share a database")
      }
      try putAside(lock, unless: S_IFREG)
      try putAside(data, unless: S_IFDIR)
      try makeDirectories(data)
      // With its log, which SQLite would take for that of the next one.
      if let kind = Self.kind(database), kind != S_IFREG { try locked { () throws(StoreFailure) in try putAside() } }
      for file in [log, sharedMemory] { try putAside(file, unless: S_IFREG) }
      try writeTag()
      makeReserve()
    }

    /// As the XDG Base Directory Specification has it.
    private static func cacheDirectory() -> String? {
      func variable(_ name: String) -> String? {
        guard let text = unsafe getenv(name) else { return nil }
        let value = unsafe String(cString: text)
        return value.hasPrefix("/") ? value : nil
      }
      return variable("XDG_CACHE_HOME") ?? variable("HOME").map { $0 + "/.cache" }
    }

    private func makeDirectories(_ path: String) throws(StoreFailure) {
      if unsafe mkdir(path, 0o700) == 0 { return }
      if errno == ENOENT, let slash = path.utf8.lastIndex(of: UInt8(ascii: "/")), slash > path.startIndex {
        try makeDirectories(String(path[..<slash]))
        if unsafe mkdir(path, 0o700) == 0 { return }
      }
      guard errno == EEXIST else { throw .system("mkdir", "\(path) cannot be made") }
      var status = stat()
      guard unsafe stat(path, &status) == 0, status.st_mode & S_IFMT == S_IFDIR else {
        throw StoreFailure(number: ENOTDIR, call: "mkdir", message: "\(path) is no directory")
      }
    }

    /// A database with a log needs memory that its users share, so that they are on one machine.
    private static func isOnNetwork(_ path: String) -> Bool {
      // NFS, SMB, CIFS, SMB2, 9P, AFS, Coda, Ceph, Lustre, GFS2, OCFS2, by the kernel's list of magic numbers and their own
      // sources.
      let remote: [UInt32] = [
        0x6969, 0x517B, 0xFF53_4D42, 0xFE53_4D42, 0x0102_1997, 0x5346_414F, 0x7375_7245, 0x00C3_6400, 0x0BD0_0BD0, 0x0116_1970,
        0x7461_636F,
      ]
      return remote.contains(UInt32(truncatingIfNeeded: unsafe purgeable__file_system(path)))
    }

    /// Neither follows a link nor waits for who reads a pipe.
    private static let making = O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC

    private func writeTag() throws(StoreFailure) {
      // One that a kill or a full disk has left in part is written again.
      if try hasTag() { return }
      let file = unsafe Glibc.open("\(path)/CACHEDIR.TAG", Self.making, 0o600)
      guard file >= 0 else { return }
      defer { close(file) }
      try Self.writeAll(Array(Self.tag.utf8), to: file, "CACHEDIR.TAG")
    }

    private static func writeAll(_ bytes: [UInt8], to file: Int32, _ name: String) throws(StoreFailure) {
      var done = 0
      while done < bytes.count {
        let count = unsafe bytes.withUnsafeBytes { unsafe write(file, $0.baseAddress! + done, $0.count - done) }
        if count < 0, errno == EINTR { continue }
        if count == 0 { errno = ENOSPC }
        guard count > 0 else { throw .system("write", "\(name) cannot be written") }
        done += count
      }
    }

    // MARK: The locks

    /// Runs `body` with the lock of all who write. Waits for ten seconds at most.
    func locked<R>(_ body: () throws(StoreFailure) -> R) throws(StoreFailure) -> R {
      try locked(lock, O_RDWR | O_CREAT, LOCK_EX, body)
    }

    /// Runs `body` while the names in the folder stay whose they are: nobody puts a database aside. SQLite opens the log, and the
    /// memory that its users share, by their names, a moment after the database: those of the next one, if it was put aside
    /// between the two; and within one process it would cut them.
    func named<R>(_ body: () throws(StoreFailure) -> R) throws(StoreFailure) -> R {
      try locked(path, O_RDONLY | O_DIRECTORY, LOCK_SH, body)
    }

    private func locked<R>(
      _ path: String, _ flags: Int32, _ kind: Int32, _ body: () throws(StoreFailure) -> R
    ) throws(StoreFailure) -> R {
      let file = unsafe Glibc.open(path, flags | O_CLOEXEC | O_NOFOLLOW, 0o600)
      guard file >= 0 else { throw .system("open", "\(path) cannot be opened") }
      // A child that is forked now has the descriptor too, so the lock is ended, not only closed.
      defer {
        flock(file, LOCK_UN)
        close(file)
      }
      var waited = 0
      while flock(file, kind | LOCK_NB) != 0 {
        guard errno == EWOULDBLOCK || errno == EINTR else { throw .system("flock", "\(path) cannot be locked") }
        guard waited < 10_000 else {
          throw StoreFailure(
            code: StoreFailure.busyCode, number: errno, call: "flock", message: "another process has \(path) locked")
        }
        usleep(2000)
        waited += 2
      }
      return try body()
    }

    // MARK: Room on the disk

    func makeReserve() {
      let file = unsafe Glibc.open(reserve, Self.making, 0o600)
      guard file >= 0 else { return }
      // Nothing where it is there in whole.
      var error: Int32
      repeat { error = posix_fallocate(file, 0, off_t(Self.reserveByteCount)) } while error == EINTR
      close(file)
      if error != 0 { giveReserveUp() }
    }

    /// False where there is none.
    @discardableResult
    func giveReserveUp() -> Bool { unsafe unlink(reserve) == 0 }

    var logByteCount: Int { Self.byteCount(log) }

    /// nil where there is none: it was written back. SQLite has no locks on the log, so that it may be closed.
    func openLog() throws(StoreFailure) -> Int32? {
      let file = unsafe Glibc.open(log, O_RDONLY | O_CLOEXEC)
      if file < 0, errno != ENOENT { throw .system("open", "the log cannot be opened") }
      return file < 0 ? nil : file
    }

    /// What is free on the disk, or is in the log, which is written over.
    var roomByteCount: Int64 {
      var disk = statvfs()
      guard unsafe statvfs(data, &disk) == 0 else { return .max }
      let (free, isTooMuch) = Int64(clamping: disk.f_bavail).multipliedReportingOverflow(by: Int64(clamping: disk.f_frsize))
      return isTooMuch ? .max : max(free, free &+ Int64(logByteCount))
    }

    /// Makes the file of the database, for its owner alone, unless it is there: SQLite would go by the process's mask.
    func makeDatabase() {
      let file = unsafe Glibc.open(database, Self.making | O_EXCL, 0o600)
      if file >= 0 { close(file) }
    }

    /// The names that lead to the database are on the disk when this returns; those above it too, where they are `new`, and the
    /// directory is this user's to read.
    func synchronizeNames(new: Bool) throws(StoreFailure) {
      let above = "\(path)/.."
      for folder in [data] + (new ? [path, above] : []) {
        let directory = unsafe Glibc.open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC)
        if directory < 0, errno == EACCES, folder == above { continue }
        guard directory >= 0 else { throw .system("open", "\(folder) cannot be opened") }
        defer { close(directory) }
        // A file system may have nothing to bring there, and what is above a mounted disk may be of such a kind.
        if !purgeable__sync_file(directory), errno != EINVAL, folder != above || errno != EROFS {
          throw .system("fsync", "\(folder) cannot be brought to the disk")
        }
      }
    }

    // MARK: Values in files

    private func valuePath(_ number: Int64) -> (folder: String, file: String) {
      let digits = String(UInt64(bitPattern: number), radix: 16)
      let name = String(repeating: "0", count: 16 - digits.count) + digits
      let folder = "\(values)/\(name.prefix(2))"
      return (folder, "\(folder)/\(name)")
    }

    /// Writes a value to a file of its own, which nobody knows yet. Length and sum, in the row, say whether it is whole: no need
    /// to wait for the disk.
    func writeValue(_ bytes: [UInt8]) throws(StoreFailure) -> Int64 {
      while true {
        let number = Int64.random(in: .min ... .max)
        let (folder, path) = valuePath(number)
        var file = unsafe Glibc.open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0o600)
        if file < 0, errno == ENOENT || errno == ENOTDIR {
          for folder in [values, folder] { try putAside(folder, unless: S_IFDIR) }
          try makeDirectories(folder)
          file = unsafe Glibc.open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0o600)
        }
        if file < 0, errno == EEXIST { continue }
        guard file >= 0 else { throw .system("open", "\(path) cannot be made") }
        defer { close(file) }
        do throws(StoreFailure) {
          try Self.writeAll(bytes, to: file, path)
          // Its pages would push out what the cache has on offer.
          guard purgeable__write_out(file, 0, off_t(bytes.count)) else {
            throw .system("sync_file_range", "\(path) cannot be brought to the disk")
          }
        } catch {
          _ = unsafe unlink(path)
          throw error
        }
        return number
      }
    }

    /// nil where there is no such file, or one of another length.
    func readValue(_ number: Int64, byteCount: Int) throws(StoreFailure) -> [UInt8]? {
      let path = valuePath(number).file
      let file = unsafe Glibc.open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)
      guard file >= 0 else {
        if errno == ENOENT || errno == ELOOP || errno == ENOTDIR { return nil }
        throw .system("open", "\(path) cannot be opened")
      }
      defer { close(file) }
      var status = stat()
      guard unsafe fstat(file, &status) == 0, Int(status.st_size) == byteCount else { return nil }
      guard StoredRecord.hasMemory(for: byteCount) else {
        throw StoreFailure(number: ENOMEM, call: "malloc", message: "there is no memory for a value of \(byteCount) bytes")
      }
      var failure: StoreFailure?
      let bytes = unsafe [UInt8](unsafeUninitializedCapacity: byteCount) { buffer, count in
        while count < byteCount {
          let got = unsafe read(file, buffer.baseAddress! + count, byteCount - count)
          if got < 0, errno == EINTR { continue }
          if got < 0 { failure = .system("read", "\(path) cannot be read") }
          if got <= 0 { break }
          count += got
        }
      }
      if let failure { throw failure }
      posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED)
      return bytes.count == byteCount ? bytes : nil
    }

    func removeValue(_ number: Int64) { _ = unsafe unlink(valuePath(number).file) }

    /// Removes files older than an hour that no row names: a kill between a file and its row leaves them.
    func sweepValues(isKnown: (Int64) throws(StoreFailure) -> Bool) throws(StoreFailure) {
      let limit = time(nil) - 3600
      for folder in Self.names(in: values) {
        for name in Self.names(in: "\(values)/\(folder)") {
          let path = "\(values)/\(folder)/\(name)"
          var status = stat()
          guard name.utf8.count == 16, let number = UInt64(name, radix: 16), unsafe lstat(path, &status) == 0,
            status.st_mtim.tv_sec < limit, !(try isKnown(Int64(bitPattern: number)))
          else { continue }
          _ = unsafe unlink(path)
        }
      }
    }

    // MARK: What is damaged

    /// Puts the data aside, unless another database is in its place, which somebody else has begun. For the holder of the lock.
    func putAside(damaged: FileNumber? = nil) throws(StoreFailure) {
      if let damaged, !leads(to: damaged) { return }
      try locked(path, O_RDONLY | O_DIRECTORY, LOCK_EX) { () throws(StoreFailure) in try putAside(data) }
      try makeDirectories(data)
      makeReserve()
    }

    private func putAside(_ file: String) throws(StoreFailure) {
      let aside = "\(path)/damaged.\(String(UInt64.random(in: 0 ... .max), radix: 36))"
      guard unsafe rename(file, aside) == 0 || errno == ENOENT else { throw .system("rename", "\(file) cannot be put aside") }
    }

    /// Puts aside what is no file of this kind.
    private func putAside(_ file: String, unless kind: mode_t) throws(StoreFailure) {
      if let found = Self.kind(file), found != kind { try putAside(file) }
    }

    /// What is there, wherever a link leads; nil for nothing.
    private static func kind(_ path: String) -> mode_t? {
      var status = stat()
      return unsafe lstat(path, &status) == 0 ? status.st_mode & S_IFMT : nil
    }

    private var damaged: [String] { Self.names(in: path).filter { $0.hasPrefix("damaged.") } }
    var damagedCount: Int { damaged.count }

    func removeDamaged() { for name in damaged { Self.removeTree("\(path)/\(name)") } }

    /// Whether the database's place still has the file with this number.
    func leads(to file: FileNumber) -> Bool { FileNumber(of: database) == file && Self.kind(data) == S_IFDIR }

    /// Whether whoever writes can have the lock.
    var hasLock: Bool { Self.kind(lock).map { $0 == S_IFREG } ?? true }

    // MARK: Directories

    /// 0 where there is no such file.
    static func byteCount(_ path: String) -> Int {
      var status = stat()
      return unsafe stat(path, &status) == 0 ? Int(status.st_size) : 0
    }

    private static func names(in folder: String) -> [String] { (try? knownNames(in: folder)) ?? [] }

    /// None of what is no directory.
    private static func knownNames(in folder: String) throws(StoreFailure) -> [String] {
      guard let list = unsafe opendir(folder) else {
        if errno == ENOENT || errno == ENOTDIR { return [] }
        throw .system("opendir", "\(folder) cannot be read")
      }
      defer { unsafe closedir(list) }
      var names: [String] = []
      while let entry = unsafe readdir(list) {
        let name = unsafe withUnsafePointer(to: &entry.pointee.d_name) { name in
          unsafe String(cString: UnsafeRawPointer(name).assumingMemoryBound(to: CChar.self))
        }
        if name != ".", name != ".." { names.append(name) }
      }
      return names
    }

    /// Follows no links.
    private static func removeTree(_ path: String) {
      var status = stat()
      if unsafe lstat(path, &status) == 0, status.st_mode & S_IFMT == S_IFDIR {
        for name in names(in: path) { removeTree("\(path)/\(name)") }
        _ = unsafe rmdir(path)
      } else {
        _ = unsafe unlink(path)
      }
    }
  }
#endif
