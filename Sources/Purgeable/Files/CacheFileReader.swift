// SPDX-License-Identifier: MIT
// Reading a file from its beginning to its end, around the page cache, as it was written. Never mapped: a file that somebody cuts
// would end the program.
//
//   window   | room for the beginning of a record | block, 1 MiB, read at once |
//
// What is left of a record at the end of a block moves in front of the next block. A record that is longer than that room is read
// into memory of its own.

import CPurgeable
import CPurgeableFiles
import Glibc

/// `@safe`: the memory is its own, and batches are used until the next one is read.
@safe struct CacheFileReader: ~Copyable {
  /// A record as it was read.
  struct Item: BitwiseCopyable {
    enum State: UInt8 {
      case intact
      /// Its content has another sum.
      case damaged
      /// It has flags that this version does not know.
      case unknown
      /// It could not be stored, or there is no memory to read it into.
      case tooLarge
    }

    fileprivate(set) var state = State.intact
    /// Where the record begins in the batch's bytes.
    fileprivate var at: UInt32
  }

  /// Records that lie behind one another.
  @safe struct Batch {
    fileprivate(set) var items: [Item] = []
    fileprivate var bytes = unsafe UnsafeRawBufferPointer(start: nil, count: 0)

    private static let mostItems = (blockAt + blockByteCount) / FileRecord.headerByteCount
    /// The ordinary memory that a batch takes.
    static let byteCount = mostItems * MemoryLayout<Item>.stride

    init() { items.reserveCapacity(Self.mostItems) }

    func record(_ item: Item) -> FileRecord {
      let start = Int(item.at)
      let header = unsafe bytes.bytes.extracting(start..<start + FileRecord.headerByteCount)
      // It was checked, and is what it was.
      guard case .record(let record, _) = FileRecord.parse(header) else { return FileRecord() }
      return record
    }

    /// Of an intact or damaged item: key, version, value.
    func content(_ item: Item, _ record: FileRecord) -> UnsafeRawBufferPointer {
      let start = Int(item.at) + FileRecord.headerByteCount
      return unsafe UnsafeRawBufferPointer(rebasing: bytes[start..<start + record.contentByteCount])
    }
  }

  private let operation: String
  private let path: String
  /// Longer records are passed over.
  private let mostBytes: Int
  private let file: Int32
  private var isDirect: Bool
  private let window: UnsafeMutableRawBufferPointer
  /// Memory of a long record.
  private var long = unsafe UnsafeMutableRawBufferPointer(start: nil, count: 0)
  /// What of the window is read and not given out yet. `begin` is beyond `end` where what follows is passed over.
  private var begin = blockAt
  private var end = blockAt
  /// The place in the file of what is at `end`.
  private var position = CacheFile.headerByteCount

  let header: FileHeader
  let footer: FileFooter
  /// At how many places no record can be told.
  private(set) var damageCount = 0
  /// Whether the next record is being looked for; counted as damage already.
  private var isLost = false

  private static let blockByteCount = 1 << 20
  private static let blockAt = 1 << 20

  /// Opens a file, and reads its header and its footer. nil where there is none.
  static func open(_ path: String, mostBytes: Int, operation: String) throws(PurgeableError) -> CacheFileReader? {
    if path.isEmpty || path.utf8.contains(0) {
      let explanation = path.isEmpty ? "\"\" does not name a file" : "a path has no zero byte"
      throw PurgeableError(.invalidArgument("path"), in: operation, explanation: explanation)
    }
    let flags = O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK
    var file = unsafe purgeable__open_direct(AT_FDCWD, path, flags, 0)
    let isDirect = file >= 0
    if file < 0, errno == EINVAL { file = unsafe Glibc.open(path, flags) }
    guard file >= 0 else {
      if errno == ENOENT { return nil }
      throw failure("open", errno, operation, path)
    }
    guard let raw = unsafe purgeable_bookkeeping_map(blockAt + blockByteCount) else {
      close(file)
      throw PurgeableError(
        .outOfMemory, in: operation, errorNumber: ENOMEM, explanation: "there is no memory for a buffer of two mebibytes")
    }
    return unsafe try CacheFileReader(
      operation, path, mostBytes, file, isDirect, UnsafeMutableRawBufferPointer(start: raw, count: blockAt + blockByteCount))
  }

  /// Takes file and window over.
  private init(
    _ operation: String, _ path: String, _ mostBytes: Int, _ file: Int32, _ isDirect: Bool,
    _ window: UnsafeMutableRawBufferPointer
  ) throws(PurgeableError) {
    var isDirect = isDirect
    do throws(PurgeableError) {
      (header, footer) = unsafe try Self.readEnds(of: file, &isDirect, window, operation, path)
    } catch {
      unsafe purgeable_bookkeeping_unmap(window.baseAddress!, window.count)
      close(file)
      throw error
    }
    (self.operation, self.path, self.mostBytes, self.file, self.isDirect) = (operation, path, mostBytes, file, isDirect)
    unsafe self.window = window
  }

  deinit {
    posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED)
    close(file)
    unsafe purgeable_bookkeeping_unmap(window.baseAddress!, window.count)
    if let start = unsafe long.baseAddress { unsafe purgeable_bookkeeping_unmap(start, long.count) }
  }

  /// How much of the records has been read, 0 to 1.
  var progress: Double {
    let whole = footer.recordsEnd - CacheFile.headerByteCount
    return whole == 0 ? 1 : Double(place - CacheFile.headerByteCount) / Double(whole)
  }

  /// The place in the file of what is at `begin`.
  private var place: Int { position - end + begin }

  // MARK: Batches

  /// Reads on. False at the end.
  mutating func next(_ batch: inout Batch) throws(PurgeableError) -> Bool {
    batch.items.removeAll(keepingCapacity: true)
    if let start = unsafe long.baseAddress {
      unsafe purgeable_bookkeeping_unmap(start, long.count)
      unsafe long = UnsafeMutableRawBufferPointer(start: nil, count: 0)
    }
    while place < footer.recordsEnd {
      if try takeRecords(&batch) { return true }
      if footer.recordsEnd - place < FileRecord.headerByteCount {
        if !isLost { damageCount += 1 }
        return false
      }
      try readBlock()
    }
    return false
  }

  /// Puts the records of the window into the batch. False where there is none in whole.
  private mutating func takeRecords(_ batch: inout Batch) throws(PurgeableError) -> Bool {
    unsafe batch.bytes = UnsafeRawBufferPointer(window)
    while end - begin >= FileRecord.headerByteCount {
      var item = Item(at: UInt32(begin))
      let record: FileRecord
      let contentSum: UInt32
      let header = unsafe window.bytes.extracting(begin..<begin + FileRecord.headerByteCount)
      switch FileRecord.read(header, self.header.identity) {
      case .unknown(let byteCount) where byteCount <= footer.recordsEnd - place:
        item.state = .unknown
        begin += byteCount
        batch.items.append(item)
        isLost = false
        continue
      case .record(let read, let sum) where read.byteCount <= footer.recordsEnd - place:
        (record, contentSum) = (read, sum)
        isLost = false
      case .none, .unknown, .record:
        // The next record is looked for.
        if !isLost { damageCount += 1 }
        isLost = true
        begin += CacheFile.recordAlignment
        continue
      }
      if begin + record.byteCount > end {
        // The rest of it is not read yet.
        if !batch.items.isEmpty || record.byteCount <= Self.blockAt { break }
        try takeLong(&item, record, contentSum, &batch)
        return true
      }
      if unsafe CacheFile.sum(self.header.identity, batch.content(item, record).bytes) != contentSum { item.state = .damaged }
      begin += record.byteCount
      batch.items.append(item)
    }
    return !batch.items.isEmpty
  }

  /// Reads a record that is longer than the room before a block.
  private mutating func takeLong(
    _ item: inout Item, _ record: FileRecord, _ contentSum: UInt32, _ batch: inout Batch
  ) throws(PurgeableError) {
    let byteCount = record.byteCount
    guard byteCount <= mostBytes, MemoryReserve.isThere(2 * byteCount), let raw = unsafe purgeable_bookkeeping_map(byteCount)
    else {
      item.state = .tooLarge
      begin += byteCount
      return batch.items.append(item)
    }
    unsafe long = UnsafeMutableRawBufferPointer(start: raw, count: byteCount)
    var taken = 0
    while taken < byteCount {
      if begin == end { try readBlock() }
      let count = min(end - begin, byteCount - taken)
      let part = unsafe UnsafeRawBufferPointer(rebasing: window[begin..<begin + count])
      unsafe UnsafeMutableRawBufferPointer(rebasing: long[taken..<taken + count]).copyMemory(from: part)
      (taken, begin) = (taken + count, begin + count)
    }
    item.at = 0
    unsafe batch.bytes = UnsafeRawBufferPointer(long)
    if unsafe CacheFile.sum(header.identity, batch.content(item, record).bytes) != contentSum { item.state = .damaged }
    batch.items.append(item)
  }

  /// Reads the block at `position`, behind what is left of the window.
  private mutating func readBlock() throws(PurgeableError) {
    if begin > end {
      // Passed over.
      (position, begin, end) = (place, Self.blockAt, Self.blockAt)
    }
    // Whole pages are read: a block begins with bytes that were read before, or are passed over.
    let start = position & ~(CacheFile.pageByteCount - 1)
    let again = position - start
    let left = end - begin
    assert(left + again <= Self.blockAt, "CacheFileReader: more is left than there is room for")
    let to = Self.blockAt + again - left
    if left > 0 {
      unsafe window.baseAddress!.advanced(by: to).copyMemory(from: window.baseAddress!.advanced(by: begin), byteCount: left)
    }
    // What is read again is overwritten by itself.
    let block = unsafe UnsafeMutableRawBufferPointer(rebasing: window[Self.blockAt...])
    let count = unsafe try Self.read(file, &isDirect, block, at: start, operation, path)
    guard start + count > position else {
      throw PurgeableError(.invalidFile, in: operation, explanation: "\(path) was cut while it was read")
    }
    if !isDirect { posix_fadvise(file, off_t(start), off_t(count), POSIX_FADV_DONTNEED) }
    let newPosition = min(start + count, footer.recordsEnd)
    (begin, end, position) = (to, Self.blockAt + newPosition - start, newPosition)
  }

  // MARK: The file

  /// Fills the buffer from a place that is a multiple of a page, as far as the file reaches.
  private static func read(
    _ file: Int32, _ isDirect: inout Bool, _ buffer: UnsafeMutableRawBufferPointer, at place: Int, _ operation: String,
    _ path: String
  ) throws(PurgeableError) -> Int {
    var done = 0
    while done < buffer.count {
      let got = unsafe pread(file, buffer.baseAddress! + done, buffer.count - done, off_t(place + done))
      if got < 0, errno == EINTR { continue }
      if got < 0, errno == EINVAL, isDirect {
        // A file system may take the flag and refuse to read.
        guard purgeable__leave_direct(file) else { throw failure("fcntl", errno, operation, path) }
        isDirect = false
        continue
      }
      if got < 0 { throw failure("read", errno, operation, path) }
      done += got
      // The end; around the page cache, the next read would not begin on a page.
      if got == 0 || isDirect && done % CacheFile.pageByteCount != 0 { break }
    }
    return done
  }

  private static func readEnds(
    of file: Int32, _ isDirect: inout Bool, _ window: UnsafeMutableRawBufferPointer, _ operation: String, _ path: String
  ) throws(PurgeableError) -> (FileHeader, FileFooter) {
    func refusal(_ what: String) -> PurgeableError {
      PurgeableError(.invalidFile, in: operation, explanation: "\(path) \(what)")
    }
    var status = stat()
    guard unsafe fstat(file, &status) == 0 else { throw failure("fstat", errno, operation, path) }
    guard status.st_mode & S_IFMT == S_IFREG else { throw refusal("is not a file") }
    let length = Int(status.st_size)
    let page = unsafe UnsafeMutableRawBufferPointer(rebasing: window[..<CacheFile.headerByteCount])
    guard unsafe try read(file, &isDirect, page, at: 0, operation, path) == page.count
    else { throw refusal("is no saved cache: it has \(length) bytes") }
    let header: FileHeader
    switch unsafe FileHeader.read(page.bytes) {
    case .success(let read): header = read
    case .failure(.foreign): throw refusal("is no saved cache")
    case .failure(.damaged): throw refusal("is damaged: its header has another checksum")
    case .failure(.newer(let major)):
      throw refusal("was written by a newer version: format \(major), and this one reads up to \(CacheFile.major)")
    }
    let footerAt = length - CacheFile.footerByteCount
    guard footerAt >= CacheFile.headerByteCount, footerAt % CacheFile.pageByteCount == 0,
      unsafe try read(file, &isDirect, page, at: footerAt, operation, path) == CacheFile.footerByteCount,
      let footer = unsafe FileFooter.read(page.bytes.extracting(first: CacheFile.footerByteCount), header.identity),
      footer.fileByteCount == length
    else { throw refusal("is damaged or cut: its last \(CacheFile.footerByteCount) bytes are not those of a whole file") }
    return (header, footer)
  }

  private static func failure(_ call: String, _ number: Int32, _ operation: String, _ path: String) -> PurgeableError {
    PurgeableError(
      .systemCallFailed(call: call), in: operation, errorNumber: number,
      explanation: "\(path) cannot be read (\(unsafe String(cString: strerror(number))))")
  }
}
