// SPDX-License-Identifier: MIT
// Writing a file in place of another.
//
//   .NAME.PID.RANDOM.tmp, beside the old file     written, its length and its bytes brought to the disk
//   rename                                        the name leads to the new file, at one moment
//   fsync of the directory                        that, too, is on the disk
//
// A kill at any moment leaves the old file or the new one, and may leave the temporary one, which is locked (flock) while it is
// written: the next save removes those that nobody holds.

import CPurgeable
import CPurgeableFiles
import Glibc

/// `@safe`: the buffer is its own.
@safe struct CacheFileWriter: ~Copyable {
  private let operation: String
  private let path: String
  private let name: String
  private let temporaryName: String
  private let directory: Int32
  private let file: Int32
  private let blocks: BlockWriter
  /// Two blocks: one is filled while the other is written.
  private let buffer: UnsafeMutableRawBufferPointer
  private var block: UnsafeMutableRawBufferPointer
  private var filled: Int
  /// What was handed over to be written.
  private var flushed = 0
  private var isPlaced = false
  /// A child that a closure of the program's has forked leaves the file alone.
  private let process = getpid()

  let identity: FileIdentity
  private(set) var recordCount = 0

  /// Bytes that are written or wait in the buffer.
  var byteCount: Int { flushed + filled }

  /// Makes the temporary file, and begins it with the header.
  static func make(
    _ path: String, _ header: FileHeader, permissions: UInt16, operation: String
  ) throws(PurgeableError) -> CacheFileWriter {
    let (folder, name) = try split(path, operation: operation)
    let directory = unsafe open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC)
    guard directory >= 0 else { throw failure("open", errno, operation, "the directory \(folder) cannot be opened") }
    // A rename would put the file in place of a device, too.
    var status = stat()
    if unsafe fstatat(directory, name, &status, AT_SYMLINK_NOFOLLOW) == 0, ![S_IFREG, S_IFLNK].contains(status.st_mode & S_IFMT) {
      close(directory)
      throw PurgeableError(
        .invalidArgument("path"), in: operation, explanation: "\(path) is there, and is not a file: it stays as it is")
    }
    removeAbandoned(besides: name, in: directory)
    let made = temporaryFile(for: name, in: directory, permissions)
    guard case .made(let file, let isDirect, let temporaryName) = made else {
      let number = errno
      close(directory)
      throw failure("open", number, operation, "no file can be made in \(folder)")
    }
    guard let raw = unsafe purgeable_bookkeeping_map(2 * BlockWriter.blockByteCount) else {
      _ = unsafe unlinkat(directory, temporaryName, 0)
      close(file)
      close(directory)
      throw PurgeableError(
        .outOfMemory, in: operation, errorNumber: ENOMEM, explanation: "there is no memory for a buffer of a mebibyte")
    }
    // The program's mask has no say in it.
    fchmod(file, mode_t(permissions))
    let buffer = unsafe UnsafeMutableRawBufferPointer(start: raw, count: 2 * BlockWriter.blockByteCount)
    unsafe header.write(to: UnsafeMutableRawBufferPointer(rebasing: buffer[..<CacheFile.headerByteCount]))
    return unsafe CacheFileWriter(
      operation: operation, path: path, name: name, temporaryName: temporaryName, directory: directory, file: file,
      blocks: BlockWriter(file, isDirect: isDirect), buffer: buffer, filled: CacheFile.headerByteCount,
      identity: header.identity)
  }

  private init(
    operation: String, path: String, name: String, temporaryName: String, directory: Int32, file: Int32, blocks: BlockWriter,
    buffer: UnsafeMutableRawBufferPointer, filled: Int, identity: FileIdentity
  ) {
    (self.operation, self.path, self.name, self.temporaryName) = (operation, path, name, temporaryName)
    (self.directory, self.file, self.blocks, self.filled, self.identity) = (directory, file, blocks, filled, identity)
    unsafe self.buffer = buffer
    unsafe block = UnsafeMutableRawBufferPointer(rebasing: buffer[..<BlockWriter.blockByteCount])
  }

  deinit {
    if getpid() == process {
      blocks.end()
      if !isPlaced { _ = unsafe unlinkat(directory, temporaryName, 0) }
    }
    close(file)
    close(directory)
    unsafe purgeable_bookkeeping_unmap(buffer.baseAddress!, buffer.count)
  }

  /// Appends an entry's record, and counts it; an entry whose key does not encode is skipped. `version`: nil for none.
  mutating func append(
    _ record: FileRecord, key: some PurgeableValue, version: RawSpan?, value: RawSpan, _ report: inout FileReport
  ) throws(PurgeableError) {
    let isWritten: ()? = try key.withPurgeableBytesIfEncodable { span throws(PurgeableError) in
      try append(record, key: span, version: version, value: value, &report)
    }
    if isWritten == nil { report.skip("\(key)", because: "its key does not encode") }
  }

  /// The same with the bytes of the key.
  mutating func append(
    _ record: FileRecord, key: RawSpan, version: RawSpan?, value: RawSpan, _ report: inout FileReport
  ) throws(PurgeableError) {
    var record = record
    (record.keyByteCount, record.versionByteCount, record.valueByteCount) = (key.byteCount, version?.byteCount, value.byteCount)
    let version: RawSpan = if let version { version } else { RawSpan() }
    let keySum = CacheFile.sum(identity, key)
    let contentSum = CacheFile.sum(value, after: CacheFile.sum(version, after: keySum))
    var header = InlineArray<96, UInt8>(repeating: 0)
    var mutableSpan = header.mutableSpan
    unsafe mutableSpan.withUnsafeMutableBytes { unsafe record.write(to: $0, identity, contentSum: contentSum) }
    unsafe try append(header.span.bytes)
    try append(key)
    try append(version)
    try append(value)
    try appendZeros(record.byteCount - FileRecord.headerByteCount - record.contentByteCount)
    recordCount += 1
    report.entryCount += 1
  }

  /// Ends the file, and puts it in place of the old one. Returns its length.
  consuming func place(isSynchronized: Bool) throws(PurgeableError) -> Int {
    let recordsEnd = byteCount
    let page = CacheFile.pageByteCount
    try appendZeros((page - byteCount % page) % page)
    let length = byteCount + CacheFile.footerByteCount
    var footer = InlineArray<128, UInt8>(repeating: 0)
    var mutableSpan = footer.mutableSpan
    unsafe mutableSpan.withUnsafeMutableBytes {
      unsafe FileFooter(recordCount: recordCount, recordsEnd: recordsEnd, fileByteCount: length).write(to: $0, identity)
    }
    try flush()
    unsafe try append(footer.span.bytes)
    try naming { () throws(BlockFailure) in
      try blocks.finish()
      // What is left is no whole page.
      try blocks.leaveDirect()
    }
    try flush()
    try naming(blocks.finish)
    // A failure is final: the kernel has given the pages up, and would say that all is well if it were asked again.
    if isSynchronized, !purgeable__sync_file(file) { throw failure("fsync", "it cannot be brought to the disk") }
    posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED)
    guard unsafe renameat(directory, temporaryName, directory, name) == 0 else {
      throw failure("rename", "it cannot be put in place")
    }
    isPlaced = true
    if isSynchronized, !purgeable__sync_file(directory) {
      let number = errno
      throw PurgeableError(
        .systemCallFailed(call: "fsync"), in: operation, errorNumber: number,
        explanation: "\(path) is written, but its name may not be on the disk (\(unsafe String(cString: strerror(number))))")
    }
    return length
  }

  // MARK: Bytes

  private mutating func append(_ bytes: RawSpan) throws(PurgeableError) {
    var taken = 0
    while taken < bytes.byteCount {
      let count = unsafe min(block.count - filled, bytes.byteCount - taken)
      unsafe bytes.extracting(taken..<taken + count).withUnsafeBytes {
        unsafe UnsafeMutableRawBufferPointer(rebasing: block[filled..<filled + count]).copyMemory(from: $0)
      }
      (taken, filled) = (taken + count, filled + count)
      if unsafe filled == block.count { try flush() }
    }
  }

  private mutating func appendZeros(_ byteCount: Int) throws(PurgeableError) {
    var left = byteCount
    while left > 0 {
      let count = unsafe min(block.count - filled, left)
      unsafe block[filled..<filled + count].initializeMemory(as: UInt8.self, repeating: 0)
      (left, filled) = (left - count, filled + count)
      if unsafe filled == block.count { try flush() }
    }
  }

  /// Has the block written, and goes on with the other one.
  private mutating func flush() throws(PurgeableError) {
    guard getpid() == process else {
      throw PurgeableError(.cancelled, in: operation, explanation: "a forked child does not go on with a save of its parent's")
    }
    let full = unsafe UnsafeRawBufferPointer(rebasing: block[..<filled])
    try naming { () throws(BlockFailure) in unsafe try blocks.write(full) }
    (flushed, filled) = (flushed + filled, 0)
    let isFirst = unsafe block.baseAddress == buffer.baseAddress
    unsafe block = UnsafeMutableRawBufferPointer(
      rebasing: isFirst ? buffer[BlockWriter.blockByteCount...] : buffer[..<BlockWriter.blockByteCount])
  }

  /// Runs `body`, whose failures are this file's.
  private func naming(_ body: () throws(BlockFailure) -> Void) throws(PurgeableError) {
    do { try body() } catch { throw Self.failure(error.call, error.number, operation, "\(path): \(error.what)") }
  }

  // MARK: Names and errors

  private enum Temporary {
    case made(file: Int32, isDirect: Bool, name: String)
    /// With errno.
    case refused
  }

  /// Makes a locked file beside another one. One that another save found before it was locked, and removed, is made again.
  private static func temporaryFile(for name: String, in directory: Int32, _ permissions: UInt16) -> Temporary {
    let flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW
    while true {
      let temporaryName = prefix(of: name) + "\(getpid()).\(String(UInt64.random(in: 0 ... .max), radix: 36)).tmp"
      var file = unsafe purgeable__open_direct(directory, temporaryName, flags, mode_t(permissions))
      let isDirect = file >= 0
      if file < 0, errno == EINVAL {
        // Some file systems make the file before they refuse.
        _ = unsafe unlinkat(directory, temporaryName, 0)
        file = unsafe openat(directory, temporaryName, flags | O_CLOEXEC, mode_t(permissions))
      }
      guard file >= 0 else { return .refused }
      // A file system without locks: nobody removes what cannot be locked.
      let isTaken = flock(file, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK
      var status = stat()
      if !isTaken, unsafe fstat(file, &status) != 0 || status.st_nlink > 0 {
        return .made(file: file, isDirect: isDirect, name: temporaryName)
      }
      _ = unsafe unlinkat(directory, temporaryName, 0)
      close(file)
    }
  }

  /// The directory of a path, and the name in it.
  static func split(_ path: String, operation: String) throws(PurgeableError) -> (folder: String, name: String) {
    func refusal(_ explanation: String) -> PurgeableError {
      PurgeableError(.invalidArgument("path"), in: operation, explanation: explanation)
    }
    if path.utf8.contains(0) { throw refusal("a path has no zero byte") }
    // As bytes: with a combining mark behind it a slash is no character of its own.
    let slash = path.utf8.lastIndex(of: UInt8(ascii: "/"))
    let name = slash.map { String(path[path.utf8.index(after: $0)...]) } ?? path
    guard !name.isEmpty, name != ".", name != ".." else { throw refusal("\"\(path)\" does not name a file") }
    return (slash.map { $0 == path.startIndex ? "/" : String(path[..<$0]) } ?? ".", name)
  }

  /// Removes temporary files of saves that were killed: nobody holds their lock.
  private static func removeAbandoned(besides name: String, in directory: Int32) {
    // Its own position: `directory` stays at the beginning.
    let listed = unsafe openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC)
    guard listed >= 0 else { return }
    guard let list = unsafe fdopendir(listed) else {
      close(listed)
      return
    }
    defer { unsafe closedir(list) }
    while let entry = unsafe readdir(list) {
      let found = unsafe withUnsafePointer(to: &entry.pointee.d_name) { name in
        unsafe String(cString: UnsafeRawPointer(name).assumingMemoryBound(to: CChar.self))
      }
      guard isTemporary(found, for: name) else { continue }
      let file = unsafe openat(directory, found, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)
      guard file >= 0 else { continue }
      if flock(file, LOCK_EX | LOCK_NB) == 0 { _ = unsafe unlinkat(directory, found, 0) }
      close(file)
    }
  }

  /// How the names of a file's temporary ones begin. What follows takes 30 bytes at most, and a name has room for 255.
  private static func prefix(of name: String) -> String {
    var room = 220
    let start = name.unicodeScalars.prefix {
      room -= UTF8.width($0)
      return room >= 0
    }
    return ".\(String(String.UnicodeScalarView(start)))."
  }

  /// Whether a name is one that `temporaryFile` gives. Compared as bytes.
  private static func isTemporary(_ found: String, for name: String) -> Bool {
    let (prefix, suffix) = (prefix(of: name).utf8, ".tmp".utf8)
    guard found.utf8.starts(with: prefix), found.utf8.count > prefix.count + suffix.count,
      found.utf8.suffix(suffix.count).elementsEqual(suffix)
    else { return false }
    let rest = String(decoding: found.utf8.dropFirst(prefix.count).dropLast(suffix.count), as: UTF8.self)
    let parts = rest.split(separator: ".", omittingEmptySubsequences: false)
    return parts.count == 2 && Int32(parts[0]) != nil && UInt64(parts[1], radix: 36) != nil
  }

  private func failure(_ call: String, _ what: String) -> PurgeableError {
    Self.failure(call, errno, operation, "\(path): \(what)")
  }

  private static func failure(_ call: String, _ number: Int32, _ operation: String, _ what: String) -> PurgeableError {
    PurgeableError(
      .systemCallFailed(call: call), in: operation, errorNumber: number,
      explanation: "\(what) (\(unsafe String(cString: strerror(number)))); what was there before is there still")
  }
}
