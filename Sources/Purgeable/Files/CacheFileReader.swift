// SPDX-License-Identifier: MIT
// Reading a file from its beginning to its end, around the page cache, as it was written. Never mapped: a file that somebody cuts
// would end the program.
//
//   window   | room for the beginning of a record | block, 1 MiB, read at once |     two, of which one is read ahead
//
// What is left of a record at the end of a block moves in front of the next block. A record that is longer than that room is read
// into memory of its own.

import CPurgeable
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
  private let blocks: BlockReader
  private var window: UnsafeMutableRawBufferPointer
  private var otherWindow: UnsafeMutableRawBufferPointer
  /// The place in the file of the block that is read ahead, or has been.
  private var ahead: Int?
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
  private static let windowByteCount = blockAt + blockByteCount

  /// Opens a file, and reads its header and its footer. nil where there is none.
  static func open(_ path: String, mostBytes: Int, operation: String) throws(PurgeableError) -> CacheFileReader? {
    if path.isEmpty || path.utf8.contains(0) {
      let explanation = path.isEmpty ? "\"\" does not name a file" : "a path has no zero byte"
      throw PurgeableError(.invalidArgument("path"), in: operation, explanation: explanation)
    }
    let blocks: BlockReader
    do { blocks = try BlockReader.open(path) } catch {
      if error.number == ENOENT { return nil }
      throw failure(error, operation, path)
    }
    guard let raw = unsafe purgeable_bookkeeping_map(2 * windowByteCount) else {
      throw PurgeableError(
        .outOfMemory, in: operation, errorNumber: ENOMEM, explanation: "there is no memory for buffers of four mebibytes")
    }
    return unsafe try CacheFileReader(operation, path, mostBytes, blocks, raw)
  }

  /// Takes the memory over.
  private init(
    _ operation: String, _ path: String, _ mostBytes: Int, _ blocks: BlockReader, _ raw: UnsafeMutableRawPointer
  ) throws(PurgeableError) {
    let window = unsafe UnsafeMutableRawBufferPointer(start: raw, count: Self.windowByteCount)
    do throws(PurgeableError) {
      (header, footer) = unsafe try Self.readEnds(of: blocks, window, operation, path)
    } catch {
      unsafe purgeable_bookkeeping_unmap(raw, 2 * Self.windowByteCount)
      throw error
    }
    (self.operation, self.path, self.mostBytes, self.blocks) = (operation, path, mostBytes, blocks)
    unsafe (self.window, otherWindow) = (
      window, UnsafeMutableRawBufferPointer(start: raw + Self.windowByteCount, count: Self.windowByteCount)
    )
  }

  deinit {
    blocks.close()
    unsafe purgeable_bookkeeping_unmap(min(window.baseAddress!, otherWindow.baseAddress!), 2 * Self.windowByteCount)
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
    // Once more where it is stored.
    guard byteCount <= mostBytes, MemoryReserve.isThere(2 * byteCount), ProcessMemory.hasRoom(for: 2 * byteCount),
      let raw = unsafe purgeable_bookkeeping_map(byteCount)
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

  /// Reads the block at `position`, behind what is left of the window, and has the next one read.
  private mutating func readBlock() throws(PurgeableError) {
    if begin > end {
      // Passed over.
      (position, begin, end) = (place, Self.blockAt, Self.blockAt)
    }
    // Whole pages are read: a block begins with bytes that were read before, or are passed over.
    let start = position & ~(CacheFile.pageByteCount - 1)
    let again = position - start
    let left = end - begin
    assert(left <= Self.blockAt + again, "CacheFileReader: more is left than there is room for")
    if ahead != start { readAhead(at: start) }
    let count = try naming { () throws(BlockFailure) in try blocks.fill() }
    guard start + count > position else {
      throw PurgeableError(.invalidFile, in: operation, explanation: "\(path) was cut while it was read")
    }
    let to = Self.blockAt + again - left
    if left > 0 {
      // What was read again is overwritten by itself.
      let part = unsafe UnsafeRawBufferPointer(rebasing: window[begin..<end])
      unsafe UnsafeMutableRawBufferPointer(rebasing: otherWindow[to..<to + left]).copyMemory(from: part)
    }
    unsafe swap(&window, &otherWindow)
    let newPosition = min(start + count, footer.recordsEnd)
    (begin, end, position) = (to, Self.blockAt + newPosition - start, newPosition)
    if position < footer.recordsEnd { readAhead(at: position & ~(CacheFile.pageByteCount - 1)) }
  }

  /// Begins to read a block into the other window.
  private mutating func readAhead(at place: Int) {
    blocks.wait()
    let block = unsafe UnsafeMutableRawBufferPointer(rebasing: otherWindow[Self.blockAt...])
    unsafe blocks.begin(block, at: place, isLast: place + block.count >= footer.recordsEnd)
    ahead = place
  }

  // MARK: The file

  private static func readEnds(
    of blocks: BlockReader, _ window: UnsafeMutableRawBufferPointer, _ operation: String, _ path: String
  ) throws(PurgeableError) -> (FileHeader, FileFooter) {
    func refusal(_ what: String) -> PurgeableError {
      PurgeableError(.invalidFile, in: operation, explanation: "\(path) \(what)")
    }
    func read(_ page: UnsafeMutableRawBufferPointer, at place: Int) throws(PurgeableError) -> Int {
      do throws(BlockFailure) { return unsafe try blocks.read(page, at: place) } catch { throw failure(error, operation, path) }
    }
    guard let status = blocks.status() else {
      throw failure(BlockFailure(call: "fstat", what: "it cannot be read"), operation, path)
    }
    guard status.st_mode & S_IFMT == S_IFREG else { throw refusal("is not a file") }
    let length = Int(status.st_size)
    let page = unsafe UnsafeMutableRawBufferPointer(rebasing: window[..<CacheFile.headerByteCount])
    guard unsafe try read(page, at: 0) == page.count else { throw refusal("is no saved cache: it has \(length) bytes") }
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
      unsafe try read(page, at: footerAt) == CacheFile.footerByteCount,
      let footer = unsafe FileFooter.read(page.bytes.extracting(first: CacheFile.footerByteCount), header.identity),
      footer.fileByteCount == length
    else { throw refusal("is damaged or cut: its last \(CacheFile.footerByteCount) bytes are not those of a whole file") }
    return (header, footer)
  }

  private func naming<R>(_ body: () throws(BlockFailure) -> R) throws(PurgeableError) -> R {
    do { return try body() } catch { throw Self.failure(error, operation, path) }
  }

  private static func failure(_ failure: BlockFailure, _ operation: String, _ path: String) -> PurgeableError {
    PurgeableError(
      .systemCallFailed(call: failure.call), in: operation, errorNumber: failure.number,
      explanation: "\(path): \(failure.what) (\(unsafe String(cString: strerror(failure.number))))")
  }
}
